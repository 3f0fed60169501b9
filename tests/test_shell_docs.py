"""Every shell block of the pages about commands runs, and prints what the page says it prints.

Lines that begin with ``incontrast`` run in this process, which spares the import of torch for each;
everything else is bash's. What installs the project runs with a pip that only takes notes.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from incontrast.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = ("docs/weekly-images.md", "docs/weekly-graphs.md", "docs/commands.md")
BLOCK = re.compile(
    r"^```sh\n(?P<code>.*?)^```$(?:\n+```text\n(?P<output>.*?)^```$)?", re.DOTALL | re.MULTILINE
)
TIME = re.compile(r"\d{4}-\d\d-\d\dT\S+")
DURATION = re.compile(r"(\d[\d.]*) (s|min|h)\b")
NUMBER = re.compile(r"\d[\d,]*(\.\d+)?(e[-+]?\d+)?")


class Block(NamedTuple):
    """Commands, where they stand, and the output shown right below them."""

    code: str
    line: int
    output: str | None


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(found["code"], text.count("\n", 0, found.start("code")), found["output"])
        for found in BLOCK.finditer(text)
    ]


def statements(code: str) -> Iterator[str]:
    """A block's commands, each with the lines that belong to it."""
    lines = iter(code.splitlines())
    for line in lines:
        here = re.search(r"<<'(\w+)'", line)
        if here is not None:
            whole = [line]
            for following in lines:
                whole.append(following)
                if following == here[1]:
                    break
            yield "\n".join(whole)
        elif line.startswith("if "):
            whole = [line]
            for following in lines:
                whole.append(following)
                if following == "fi":
                    break
            yield "\n".join(whole)
        elif line.strip():
            yield line


class Shell:
    """Runs statements in a folder with a checkout's tools."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.notes = folder / "pip.txt"
        tools = folder / "tools"
        tools.mkdir()
        self.work = folder / "checkout"
        self.work.mkdir()
        monkeypatch.chdir(self.work)
        run = f'exec "{sys.executable}" -W ignore'
        script(tools / "incontrast", f'{run} -m incontrast "$@"')
        script(tools / "python", f'{run} "$@"')
        pip = f'echo "$@" >> "{self.notes}"'
        script(
            tools / "python3",
            f'[ "$1 $2" = "-m venv" ] || exit 9; mkdir -p $3/bin; cp "{tools}/pip" $3/bin; '
            ": > $3/bin/activate",
        )
        script(tools / "pip", pip)
        monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
        monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def __call__(self, statement: str) -> str:
        words = shlex.split(statement, comments=True) if "\n" not in statement else []
        simple = words and not set("<>|&$") & set(statement)
        if simple and words[0] == "incontrast":
            result = CliRunner().invoke(app, words[1:])
            assert result.exit_code == 0, f"{statement}\n{result.output}"
            return result.stdout
        if words and words[0] == "export":
            name, _, value = words[1].partition("=")
            self.monkeypatch.setenv(name, value.replace("$PWD", str(self.work)))
            return ""
        done = subprocess.run(
            ["bash", "-c", statement], capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, f"{statement}\n{done.stderr}"
        return done.stdout


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def shape(output: str, folder: Path) -> list[str]:
    """The words of an output; figures, times and folders depend on the machine."""
    output = output.replace(f"{folder}/", "")
    output = DURATION.sub("# #", TIME.sub("#", output))
    return [" ".join(NUMBER.sub("#", line).split()) for line in output.strip().splitlines()]


@pytest.mark.parametrize("page", PAGES)
def test_the_shell_blocks_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell(tmp_path, monkeypatch)
    for block in blocks(page):
        printed = "".join(shell(statement) for statement in statements(block.code))
        if block.output is not None:
            where = f"{page}, line {block.line}"
            assert shape(printed, shell.work) == shape(block.output, shell.work), where
    if shell.notes.exists():
        install, constraints, file, what = shell.notes.read_text().split()
        assert (install, constraints) == ("install", "-c")
        assert (ROOT / file).is_file()
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
            "optional-dependencies"
        ]
        assert set(re.findall(r"\w+", what)) <= set(extras)


def test_blocks_are_found() -> None:
    assert all(blocks(page) for page in PAGES)
