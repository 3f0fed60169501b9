"""Code and output blocks of the documentation, for the tests that run them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sklearn.datasets import load_digits
from sklearn.utils import Bunch

from incontrast.compat import fitting
from incontrast.strategies import Strategy
from incontrast.training.loop import Training
from incontrast.training.task import Task, ViewBatch

ROOT = Path(__file__).parents[1]
BATCHES = 8
GENERATED = re.compile(r"<!-- table: .*?<!-- end of table -->", re.DOTALL)
NUMBER = re.compile(
    r"\d{4}-\d\d-\d\dT\S+"  # a time
    r"|\d[\d.]* (?:s|min|h)\b"  # a duration, whose unit depends on the machine
    r"|\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"
)


class Block(NamedTuple):
    """A block of code, the line it begins on, and the output shown right below it."""

    code: str
    line: int
    output: str | None


def pages() -> list[str]:
    """Every page that is written by hand, as a path from the root of the project."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(str(page.relative_to(ROOT)) for page in found if page.name != "results-tables.md")


def text(page: str) -> str:
    """What a page says, without the parts that a program writes."""
    return GENERATED.sub("", (ROOT / page).read_text(encoding="utf-8"))


def blocks(page: str, language: str) -> list[Block]:
    """The blocks of a page in one language."""
    whole = (ROOT / page).read_text(encoding="utf-8")
    pattern = rf"^```{language}\n(?P<code>.*?)^```$(?:\n+```text\n(?P<output>.*?)^```$)?"
    return [
        Block(found["code"], whole.count("\n", 0, found.start("code")), found["output"])
        for found in re.finditer(pattern, whole, re.DOTALL | re.MULTILINE)
    ]


def shape(output: str) -> list[str]:
    """The words of an output, line by line; its figures depend on the machine.

    So does what follows from them: the advice on stored vectors, whether all of a change is kept,
    whether something got worse, how new items do beside mapped ones, and whether a short training
    was enough to recognise views.
    """
    output = re.sub(" Items were compared as they are: [^.]*[.][^.]*[.]", "", output)
    lines = [" ".join(NUMBER.sub("#", line).split()) for line in output.strip().splitlines()]
    by_chance = (
        "of the change is kept",
        "worse:",
        "another strategy, a lower learning rate",
        "It got worse",
        "shows which strategy does better",
        "where the old ones are mapped",
    )
    advice = re.compile("(Keep your index|Re-embed your index|Too few items to say).*")
    verdict = re.compile("(Promoted: all checks passed).*")
    return [
        verdict.sub(r"\1", advice.sub("advice", line)).replace("# epoch,", "# epochs,")
        for line in lines
        if not any(words in line for words in by_chance)
    ]


def fewer_digits() -> Any:
    """What scikit-learn's load_digits gives, but for two thirds of the items."""
    found = load_digits()
    return Bunch(images=found.images[::3], target=found.target[::3])


def train_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    """End a long training after two epochs of a few batches, and fit maps of few hidden units.

    A page's words are the same.
    """
    usual, counted = Training.__init__, Training.counted

    def short(training: Training, task: Task, strategy: Strategy, *others: Any) -> None:
        if strategy.epochs(task.increment) > 4:
            strategy = replace(strategy, max_epochs=2)
        usual(training, task, strategy, *others)

    def few(training: Training, batches: Iterator[ViewBatch]) -> Iterator[ViewBatch]:
        return islice(counted(training, batches), BATCHES)

    monkeypatch.setattr(fitting, "UNITS", 32)
    monkeypatch.setattr(Training, "__init__", short)
    monkeypatch.setattr(Training, "counted", few)
