"""The documentation: its programs run, and what it names exists."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

import incontrast
from incontrast.cli.app import app
from incontrast.cli.command import Exit
from tests.documents import ROOT, blocks, fewer_digits, pages, shape, text, train_shortly

PROGRAMS = [page for page in pages() if blocks(page, "python")]


@pytest.mark.parametrize("page", PROGRAMS)
def test_the_programs_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train_shortly(monkeypatch)
    if "load_digits" in text(page):  # trains by itself, which nothing shortens
        monkeypatch.setattr("sklearn.datasets.load_digits", fewer_digits)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page, "python"):
        # Empty lines before it, so that a traceback names the line of the page.
        code = compile("\n" * block.line + block.code, page, "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        if block.output is not None:
            assert shape(printed.getvalue()) == shape(block.output), f"{page}, line {block.line}"


@pytest.mark.parametrize("page", pages())
def test_files_that_a_page_names_exist(page: str) -> None:
    found, folder = text(page), (ROOT / page).parent
    for link, heading in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", found):
        target = folder / link if link else ROOT / page
        assert target.exists(), f"{page} links to {link}"
        assert not heading or heading in headings(target), f"{page} links to {link}#{heading}"
    # In running text, files are named from the root of the project or of the package.
    code = [*re.findall(r"`([^`\n]+)`", found), *(block.code for block in blocks(page, "sh"))]
    for named in re.findall(r"(?<![\w/.])(\w[\w/-]*\.(?:py|md|toml|txt))\b", "\n".join(code)):
        homes = (ROOT / named, ROOT / "src" / "incontrast" / named)
        known = named in ("program.py", "settings.toml")
        written_here = known or re.search(rf"> ?{re.escape(named)}", found)
        assert written_here or any(home.exists() for home in homes), f"{page} names {named}"


def headings(page: Path) -> set[str]:
    """What a link to a heading of a page ends with."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", [page for page in pages() if page != "CHANGELOG.md"])
def test_commands_that_a_page_names_exist(page: str) -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    targets = phony[1].split()
    code = [*re.findall(r"`([^`\n]+)`", text(page)), *_shell_lines(page)]
    for line in code:
        for name, options in re.findall(r"(?:^|-m )incontrast ([a-z]\w*)([^|;&#]*)", line):
            assert name in commands, f"{page}: incontrast {name}"
            known = {flag for option in commands[name].params for flag in option.opts}
            named = set(re.findall(r"(?<=\s)(--?[a-z][\w-]*)", options)) - {"--help"}
            assert named <= known, f"{page}: incontrast {name} has no {named - known}"
        for target in re.findall(r"^make ([\w-]+)", line):
            assert target in targets, f"{page}: make {target}"


def _shell_lines(page: str) -> list[str]:
    code = "".join(block.code for block in blocks(page, "sh"))
    return code.replace("\\\n", " ").splitlines()


def test_every_public_name_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^::: incontrast\.(\w+)$", page, re.MULTILINE))
    modules = {"compat", "data", "evaluate", "loggers", "loss", "streams", "__version__"}
    assert shown == set(incontrast.__all__) - modules


def test_the_order_of_imports_is_the_one_that_is_checked() -> None:
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    shown = re.search(r"## Who may import whom\n+```text\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = contracts["contracts"][0]["layers"]
    names = [layer.replace("incontrast.", "").replace(" |", ",") for layer in layers]
    assert [part.strip() for part in shown[1].split("→")] == names


def test_the_architecture_names_every_part_of_the_package() -> None:
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    parts = [part for part in (ROOT / "src" / "incontrast").iterdir() if part.name[0] not in "_."]
    for part in parts:
        assert re.search(rf"\b{part.name}", page) or part.name == "py.typed", part.name


def test_pages_that_code_names_exist() -> None:
    sources = [
        source
        for folder in ("src", "paper", "benchmarks", "tools")
        for source in (ROOT / folder).rglob("*.py")
    ]
    for source in sources:
        for page in re.findall(r"docs/[\w/-]+\.md", source.read_text(encoding="utf-8")):
            assert (ROOT / page).exists(), f"{source} names {page}"


def test_every_exit_code_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)} == set(Exit)


@pytest.mark.parametrize("name", ["architecture", "result"])
def test_a_picture_is_what_its_script_draws(name: str) -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "figures" / f"{name}.py"))["svg"]()
    kept = (ROOT / "docs" / "figures" / f"{name}.svg").read_text(encoding="utf-8")
    assert drawn == kept, f"run python docs/figures/{name}.py"
