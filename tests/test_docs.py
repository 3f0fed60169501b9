"""Every Python block of the documentation runs, and says what the page says it says."""

from __future__ import annotations

import contextlib
import io
import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import incontrast

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference.md"
PAGES = (
    "docs/tutorial.md",
    "docs/updates.md",
    "docs/rates.md",
    "docs/own-data.md",
    "docs/many-processes.md",
    "docs/scale.md",
    "docs/comparing.md",
    "docs/theory.md",
    "README.md",
)
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```$(?:\n+```text\n(?P<output>.*?)^```$)?", re.DOTALL | re.MULTILINE
)
NUMBER = re.compile(r"\d[\d,]*(\.\d+)?(e[-+]?\d+)?")


class Block(NamedTuple):
    """A block of code, where it stands, and the output that is shown right below it."""

    code: str
    line: int
    output: str | None


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(found["code"], text.count("\n", 0, found.start("code")), found["output"])
        for found in BLOCK.finditer(text)
    ]


def shape(output: str) -> str:
    """The words of an output; its numbers depend on the machine."""
    return NUMBER.sub("#", output).strip()


@pytest.mark.parametrize("name", PAGES)
def test_the_blocks_of_a_page_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(ROOT / name):
        # Empty lines before it, so that a traceback names the line of the page.
        code = compile("\n" * block.line + block.code, name, "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        if block.output is not None and name.startswith("docs/"):
            assert shape(printed.getvalue()) == shape(block.output), f"{name}, line {block.line}"


def test_blocks_are_found() -> None:
    assert all(blocks(ROOT / name) for name in PAGES if name.startswith("docs/"))


def all_pages() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


@pytest.mark.parametrize("page", all_pages(), ids=lambda page: page.name)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)
    for link in links:
        assert (page.parent / link).exists(), f"{page.name} links to {link}"
    # In running text, files are named from the root of the project or of the package.
    for named in re.findall(r"`(?:python )?([\w/.-]+\.(?:py|md|toml|txt))\b[^`]*`", text):
        homes = (ROOT / named, ROOT / "src" / "incontrast" / named)
        assert any(home.exists() for home in homes), f"{page.name} names {named}"


def test_every_public_name_is_in_the_reference() -> None:
    """A page that leaves a name out is a page that nobody told about it."""
    shown = set(re.findall(r"^::: incontrast\.([\w.]+)$", REFERENCE.read_text(), re.MULTILINE))
    home = {name: module for module, names in incontrast._HOME.items() for name in names}
    for name, module in home.items():
        found = [path for path in shown if path.rpartition(".")[2] == name]
        assert found, f"{name} is not in {REFERENCE.name}"
        assert found[0].startswith(module), f"{name} is at home in {module}, not in {found[0]}"


def test_the_order_of_imports_is_the_one_that_is_checked() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    shown = re.search(r"## Who may import whom\n+```text\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = contracts["contracts"][0]["layers"]
    names = [layer.replace("incontrast.", "").replace(" |", ",") for layer in layers]
    assert [part.strip() for part in shown[1].split("→")] == names


@pytest.mark.parametrize("page", all_pages(), ids=lambda page: page.name)
def test_no_figure_is_left_to_be_filled_in(page: Path) -> None:
    assert not re.search(r"@[A-Z]+@", page.read_text())
