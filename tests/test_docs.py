"""Every Python block of the documentation runs, and says what the page says it says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("docs/tutorial.md", "docs/own-data.md", "README.md")
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


def test_pages_name_no_place_of_their_author() -> None:
    for page in (ROOT / "docs").glob("*.md"):
        assert not re.search(r"/home/|/Users/|/work/|/tmp/", page.read_text(encoding="utf-8")), page
