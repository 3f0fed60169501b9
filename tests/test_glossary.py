"""The field's words, in code, messages, help texts, reports and documents: no private ones."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

import incontrast
from incontrast.cli.app import app

PACKAGE = Path(incontrast.__file__).parent
REPOSITORY = Path(__file__).parents[1]

# A pattern for the private use of a word, and what to say instead.
INSTEAD = {
    r"level (with|before|after)": "at parity with, at parity before, time to parity",
    r"(until|is|are|was|at|to|retraining's|its|that|same) level": "parity",
    r"level_(seconds|after|before)": "parity_seconds",
    r"true loss(es)?": "evaluation loss",
    r"noise (from|items|like)|(as|are|is|of its) noise": "negatives",
    r"[\d}] views through the encoder|[\d}] passes|encoder passes": "forward passes",
    r"RatePlan|rates?=|(?<!earning )rates? (plan|policy|is learned|\{|\d)": "lr, schedule",
    r"(?<![Ll]earning )(?<!error )(?<!sampling )rates": "learning rates",
    r"batch=": "batch_size=",
    r"average=|`average`": "ema_decay=",
    r"largest_change|hold_back|held back": "max_relative_update, capped learning rate",
    r"undone|taken[ _]back|takes? back": "rollbacks, reverted",
    r"crew": "process group",
    r"Picks|Rounds|Loaded": "batch indices, infinite sampler, view batch",
    r"fitting=|`fitting`": "fit_strategy",
    r"\.bind\(|`bind`|binds? (a|the|its) domain": "fit to data statistics",
    r"line-?ups?": "strategies",
    r"(finished|grid) cells?|cells? of the grid": "run",
    r"(only|own|a|this|that) room(?! (for|to))|rooms": "package, folder",
    r"taken in(?! (a|an|the|one|each|all|which|order))": "ingested",
    r"tak(e|es|ing|en) (it|them|items|data|new items|new data|these) in(?! (a|an|the))": "ingested",
    r"at hand": "stored",
    r"of [\d,]+ seen|of \{\} seen": "stored / seen",
    r"objections?": "failed check",
    r"does not hold(?! [a-z]{4,})": "passed, failed",
    r"(?<!calls )(?<!calls it )(?<!paper's )(?<!paper's [*])inference(?! (time|mode))": "no update",
    r"(same|its|the) bits": "bitwise reproducible",
    r"goes on(?! \w+ing)|gone on with|(go|going) on (with|from|where)|command goes": "resumes",
    r"mend(s|ed|ing)?": "fix",
    r"of no kind": "unsupported format",
    r"is no workspace": "is not a workspace",
    r"anew": "re-embed, again",
    r"(workspace|version|file|learner|store) (is |was |being )?made(?! (of|for|up|by hand))": (
        "created"
    ),
    r", made (\{|\d{4}-)": "created",
    r"(?<![\d.,–-])1 (epochs|items|files|steps|versions|minutes|views|processes|seconds)": (
        "the singular"
    ),
}
PATTERNS = [
    (re.compile(rf"(?<![\w-])(?:{words})(?:\b(?!-)|(?<=\W))"), better)
    for words, better in INSTEAD.items()
]
ANY = re.compile("|".join(pattern.pattern for pattern, _ in PATTERNS))
OLD_FILE_NAMES = {"looking", "undoing", "words", "literal", "judging", "share", "joint"}


def private_words(text: str) -> Iterator[tuple[int, str]]:
    """The lines on which private words stand, and what to write instead."""
    joined = " ".join(text.split())  # a phrase may be broken between lines
    if ANY.search(joined) is None:
        return
    starts, lines, length = [], [], 0
    for number, line in enumerate(text.split("\n"), start=1):
        for word in line.split():
            starts.append(length)
            lines.append(number)
            length += len(word) + 1
    for pattern, better in PATTERNS:
        for found in pattern.finditer(joined):
            yield lines[bisect_right(starts, found.start()) - 1], f"{found[0]!r} → {better}"


def strings(code: str) -> Iterator[tuple[int, str]]:
    """String literals as a reader of the message sees them, ``{}`` for what is filled in."""
    inside: set[ast.AST] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.JoinedStr):
            inside.update(node.values)
            parts = (p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            yield node.lineno, node.value


def hits(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":  # a phrase may be broken between the lines of a string, not of code
        parts = [*enumerate(text.splitlines(), start=1), *strings(text)]
    else:
        old_names = re.search(r"^### Names\n.*?(?=^### )", text, re.DOTALL | re.MULTILINE)
        if old_names is not None:  # of a changelog: what things were called before
            text = text.replace(old_names[0], "\n" * old_names[0].count("\n"))
        parts = [(1, text)]
    found = {
        (start + line - 1, what) for start, part in parts for line, what in private_words(part)
    }
    return [f"{path.relative_to(REPOSITORY)}:{line}: {what}" for line, what in sorted(found)]


def documents() -> list[Path]:
    pages = [REPOSITORY / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")]
    shown = (REPOSITORY / "docs").rglob
    return [*pages, *sorted(shown("*.md")), *sorted(shown("*.svg"))]


def sources() -> list[Path]:
    return [path for ext in ("py", "html", "js") for path in sorted(PACKAGE.rglob(f"*.{ext}"))]


def test_the_patterns_find_private_words_and_leave_common_ones() -> None:
    for text in (
        "it is level with retraining",
        "its true\nloss is 0.3",
        "the same command goes on",
        "{:,} items at hand",
        "ends with the same bits",
        "space is no workspace",
        "an objection",
        "Learner(fitting=Retrain())",
        "trained for 1 epochs",
    ):
        assert list(private_words(text)), text
    for text in (
        "the confidence level is 0.05",
        "at parity with retraining",
        "learning rates between 1e-5 and 1e-2",
        "no update (the paper calls it inference)",
        "Gaussian noise is added",
        "batch_size=256",
        "21 epochs",
        "a table cell",
        "there is room for more",
    ):
        assert not list(private_words(text)), text
    assert list(strings('f"{a} items of {b} seen"')) == [(1, "{} items of {} seen")]


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_package_uses_the_words_of_the_field(path: Path) -> None:
    assert not hits(path)
    assert path.stem not in OLD_FILE_NAMES


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_documents_use_the_words_of_the_field(path: Path) -> None:
    assert not hits(path)


def test_help_texts_use_the_words_of_the_field() -> None:
    root = get_command(app)
    texts = {"incontrast": root.help or ""}
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        texts[name] = command.help or ""
        for parameter in command.params:
            about = (getattr(parameter, "help", ""), getattr(parameter, "show_default", ""))
            texts[f"{name} {parameter.name}"] = " ".join(filter(None, map(str, about)))
    assert len(texts) > 60
    assert not {name: found for name, text in texts.items() if (found := [*private_words(text)])}
