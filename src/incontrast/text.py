"""Wording shared by commands, reports and logs."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any


def counted(count: int, noun: str = "item") -> str:
    """A number of things.

    >>> counted(1, "epoch"), counted(2000)
    ('1 epoch', '2,000 items')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """A time in a suitable unit.

    >>> duration(1.26), duration(45), duration(600), duration(9000)
    ('1.3 s', '45 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 2 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


_COMMANDS = "adopt compare config drift embed export fit forget history log reembed report rollback"
_COMMAND = re.compile(
    rf"\bincontrast ({_COMMANDS.replace(' ', '|')}|serve|status|update)\b( DATA)?"
)


def addressed(text: str, folder: str) -> str:
    """Text with ``-w folder`` added to the commands in it.

    >>> addressed("run incontrast fit DATA, or incontrast rollback --to N", "my space")
    "run incontrast fit DATA -w 'my space', or incontrast rollback -w 'my space' --to N"
    """
    return _COMMAND.sub(lambda match: f"{match[0]} -w {shlex.quote(folder)}", text)


def part_of_the_way(kept: float) -> str:
    """Why the encoder is not the one that training ended with."""
    if kept == 0.0:
        return "reverted: it did more harm than good, the encoder is the previous one"
    return f"{kept:.0%} of the change is kept: all of it would be no better, or beyond a bound"


FEWEST_SEARCHED = 200  # items; the precision in fewer says little about a larger index
PRECISE = 0.9  # precision from which mapped vectors need not be re-embedded at once


def index_advice(expected: Sequence[Mapping[str, float]], items: int) -> str:
    """What to do with stored vectors after an update.

    ``expected`` are ``recall`` and ``precision`` of a search among ``items`` after re-embedding a
    ``share`` of them, from a share of 0.

    >>> after = [(0.0, 0.83, 0.97), (0.05, 0.9, 0.992), (1.0, 1.0, 1.0)]
    >>> names = ("share", "recall", "precision")
    >>> advice = index_advice([dict(zip(names, row, strict=True)) for row in after], 500)
    >>> print(advice.replace(": ", ":\\n", 1).replace("; ", ";\\n"))
    Keep your index:
    with the map, 83 % of the 10 nearest items are found, and 97 % of what is found is near;
    re-embed 5 % of it for 99 %.
    """
    recall, precision = expected[0]["recall"], expected[0]["precision"]
    if items < FEWEST_SEARCHED:
        return f"Too few items to say how precise search with the map is; recall@10 {recall:.2f}."
    keep = precision >= PRECISE
    better = [row for row in expected[1:-1] if row["precision"] >= precision + 0.01]
    more = ""
    if keep and better:
        share, then = better[0]["share"], better[0]["precision"]
        more = f"; re-embed {share * 100:.0f} % of it for {then * 100:.0f} %"
    return (
        f"{'Keep' if keep else 'Re-embed'} your index: with the map, {recall * 100:.0f} % of the "
        f"10 nearest items are found, and {precision * 100:.0f} % of what is found is near{more}."
    )


NOTICEABLE = 0.02  # change of a score; less is chance on a few hundred items
SCORES = {"knn_accuracy": "kNN accuracy", "precision": "retrieval precision"}


def probe_changes(probe: Any) -> Iterator[tuple[str, float, float]]:
    """The name of each score of a probe, and the score before and after.

    ``probe`` is a pair ``before`` and ``after`` of ``ProbeScores``, the same as JSON, or None.
    """
    for part in ("old", "new", "all") if probe is not None else ():
        before, after = (_get(_get(probe, when), part) for when in ("before", "after"))
        if before is not None and after is not None:
            for score, name in SCORES.items():
                yield f"{name} of {part} classes", _get(before, score), _get(after, score)


def _get(value: Any, name: str) -> Any:
    return value[name] if isinstance(value, Mapping) else getattr(value, name)


def fallen_scores(probe: Any) -> Iterator[str]:
    """The scores of a probe that fell noticeably, in words."""
    for name, before, after in probe_changes(probe):
        if after < before - NOTICEABLE:
            yield f"{name} fell from {before:.3f} to {after:.3f}"


def journal_lines(events: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The time of each event of a workspace's journal, and the event in words."""
    return [(event["time"], sentence(event)) for event in events]


def sentence(event: Mapping[str, Any]) -> str:
    """An event of a workspace's journal in words."""
    step, data = event["step"], event.get("data", {})
    version = f"version {event.get('version')}"
    match step:
        case "init":
            text = "workspace created"
        case "config":
            changes = (f"{name} = {value}" for name, value in event["changes"].items())
            text = f"settings changed: {', '.join(changes)}"
        case "ingest":
            first, last = event["first"], event["first"] + data["items"] - 1
            text = f"{counted(data['items'])} of {data['name']} ingested as {first}"
            text += f" to {last}" if last > first else ""
            text += f", {data['known']:,} had been ingested before" if data["known"] else ""
            skipped = len(data["skipped"])
            text += f", {counted(skipped, 'file')} skipped" if skipped else ""
        case "train" if event.get("kind") == "adopt":
            text = f"{version} adopted"
        case "train":
            text = (
                f"{version} trained: {event['strategy']}, {counted(event['epochs'], 'epoch')}, "
                f"{counted(event['steps'], 'step')}, stopped by {event['stopped']}"
            )
        case "evaluate":
            results = [
                *(event["failed_checks"] or ["all checks passed"]),
                *(f"but {change}" for change in event.get("worse", ())),
                *(f"{name} {b:.3f} → {a:.3f}" for name, b, a in probe_changes(event["probe"])),
            ]
            text = f"{version} evaluated: {'; '.join(results)}"
        case "promote":
            despite = f" despite: {'; '.join(event['despite'])}" if event["despite"] else ""
            text = f"{version} promoted{despite}"
        case "discard":
            text = f"{data['name']} discarded" + (f" with {version}" if event["trained"] else "")
        case "drop":
            text = f"{version} deleted ({event['reason']})"
        case "rollback":
            text = f"{version} is the current one again"
        case "summary":
            counts = ", ".join(f"{count:,} × {name}" for name, count in event["steps"].items())
            text = f"{counted(event['number'], 'event')} since {event['since']}: {counts}"
        case "forgetting":
            text = f"{counted(len(event['ids']))} to be forgotten"
        case "forget":
            text = f"{counted(event['items'])} forgotten"
        case _:
            text = step
    return f"{text} ({event['seconds']:.1f} s)" if "seconds" in event else text
