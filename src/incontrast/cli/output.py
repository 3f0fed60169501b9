"""What commands print: plain lines for people, JSON for machines, progress on stderr."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

__all__ = [
    "counted",
    "emit",
    "note",
    "note_skipped",
    "plain",
    "processes",
    "say",
    "speaks",
    "stderr",
    "stdout",
]

# Terminals obey control characters, also those in a file's name; lone surrogates, which stand for
# bytes of a name that are not UTF-8, cannot be printed at all.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: str) -> str:
    r"""Text that a terminal shows and does not obey; the escapes are those of JSON.

    >>> print(plain("week\x1b[2J.npy"))
    week\u001b[2J.npy
    """
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def stdout() -> Console:
    """For results."""
    console = Console(highlight=False, soft_wrap=True)
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, width=110)


def stderr() -> Console:
    """For progress and remarks."""
    return Console(stderr=True, highlight=False, soft_wrap=True, quiet=not speaks())


def say(line: str, style: str = "") -> None:
    """Print a line of a result. Nothing in it is markup."""
    stdout().print(Text(plain(line), style=style))


def note(line: str) -> None:
    """Print a remark on stderr. Nothing in it is markup."""
    stderr().print(Text(plain(line)))


def note_skipped(reasons: Sequence[str]) -> None:
    """Name what was left out, the first few."""
    if reasons:
        note(f"{counted(len(reasons), 'file')} {'was' if len(reasons) == 1 else 'were'} skipped:")
    for reason in reasons[:10]:
        note(f"  {reason}")
    if len(reasons) > 10:
        note(f"  and {len(reasons) - 10} more (--json lists them all)")


def emit(value: Any, *, indent: int | None = 2) -> None:
    """Print JSON."""
    typer.echo(plain(json.dumps(value, indent=indent, ensure_ascii=False, default=str)))


def counted(count: int, thing: str) -> str:
    """So many things, in words."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def processes() -> int:
    """How many processes torchrun has started."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def speaks() -> bool:
    """Whether this process is the only one, or the first, and so prints."""
    return processes() == 1 or os.environ.get("RANK", "0") == "0"
