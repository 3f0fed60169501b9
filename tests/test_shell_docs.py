"""The pages about the command line: every shell block runs, and prints what the page says.

Lines that begin with ``incontrast``, and programs, run in this process, which spares the import of
torch for each; everything else is bash's. What installs the project runs with a pip that only
writes notes.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from incontrast.cli.app import app
from tests.documents import ROOT, blocks, shape, train_shortly

PAGES = (
    "docs/tutorials/weekly-images.md",
    "docs/tutorials/support-inbox.md",
    "docs/how-to/graphs.md",
)


def statements(code: str) -> Iterator[str]:
    """A block's commands, each with the lines that belong to it."""
    lines = iter(code.splitlines())
    for line in lines:
        here = re.search(r"<<'(\w+)'", line)
        end = here[1] if here is not None else "fi" if line.startswith("if ") else None
        statement = [line]
        while end is not None and statement[-1] != end:
            statement.append(next(lines))
        if line.strip():
            yield "\n".join(statement)


class Shell:
    """Runs statements in a folder with a checkout's tools."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.notes = folder / "pip.txt"
        self.work = folder / "checkout"
        tools = folder / "tools"
        tools.mkdir()
        self.work.mkdir()
        monkeypatch.chdir(self.work)
        run = f'exec "{sys.executable}" -W ignore'
        script(tools / "incontrast", f'{run} -m incontrast "$@"')
        script(tools / "python", f'{run} "$@"')
        script(tools / "pip", f'echo "$@" >> "{self.notes}"')
        script(
            tools / "python3",
            f'[ "$1 $2" = "-m venv" ] || exit 9; mkdir -p $3/bin; cp "{tools}/pip" $3/bin; '
            ": > $3/bin/activate",
        )
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
        if program := re.fullmatch(r"python - <<'END'\n(.*)END", statement, re.DOTALL):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(program[1], {"__name__": "__main__"})
            return printed.getvalue()
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


@pytest.mark.parametrize("page", PAGES)
def test_the_shell_blocks_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell(tmp_path, monkeypatch)
    train_shortly(monkeypatch)
    for block in blocks(page, "sh"):
        printed = "".join(shell(statement) for statement in statements(block.code))
        if block.output is not None:
            printed = printed.replace(f"{shell.work}/", "")
            assert shape(printed) == shape(block.output), f"{page}, line {block.line}"
    if shell.notes.exists():
        install, constraints, file, what = shell.notes.read_text().split()
        assert (install, constraints) == ("install", "-c")
        assert (ROOT / file).is_file()
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert set(re.findall(r"\w+", what)) <= set(project["optional-dependencies"])
