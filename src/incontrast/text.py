"""Words for people."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def counted(count: int, thing: str = "item") -> str:
    """So many of something.

    >>> counted(1, "epoch"), counted(2000)
    ('1 epoch', '2,000 items')
    """
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """A time as one says it.

    >>> duration(1.26), duration(45), duration(600), duration(9000)
    ('1.3 s', '45 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 2 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


COMMANDS = "adopt compare config drift embed export fit forget history log reembed report rollback"
_COMMAND = re.compile(rf"\bincontrast ({COMMANDS.replace(' ', '|')}|serve|status|update)\b( DATA)?")


def addressed(text: str, folder: str) -> str:
    """Text whose commands name the workspace in this folder.

    >>> addressed("run incontrast fit DATA, or incontrast rollback --to N", "my space")
    "run incontrast fit DATA -w 'my space', or incontrast rollback -w 'my space' --to N"
    """
    return _COMMAND.sub(lambda match: f"{match[0]} -w {shlex.quote(folder)}", text)


def part_of_the_way(kept: float) -> str:
    """Why the encoder is not the one that training ended with."""
    if kept == 0.0:
        return "reverted: it did more harm than good, the encoder is the one of before"
    return f"{kept:.0%} of the change is kept: all of it would be no better, or beyond a bound"


FEWEST_SEARCHED = 200  # items below which precision says little of a larger index
KEEPS = 0.9  # precision of mapped vectors from which on they need not be re-embedded at once
FEWEST_NEW = 30  # new items below which what becomes of them may be chance
NOTABLE_PART = 0.05


def index_advice(expected: Sequence[Mapping[str, float]], items: int) -> str:
    """What to do with stored vectors after an update.

    Args:
        expected: ``recall`` and ``precision`` after a ``share`` of them was re-embedded, by share,
            from 0. Near are the 50 nearest items after re-embedding, fewer of a small sample.
        items: Among which was searched for that.

    >>> figures = [(0.0, 0.83, 0.97), (0.05, 0.9, 0.992), (1.0, 1.0, 1.0)]
    >>> names = ("share", "recall", "precision")
    >>> advice = index_advice([dict(zip(names, each, strict=True)) for each in figures], 500)
    >>> print(advice.replace(": ", ":\\n", 1).replace("; ", ";\\n"))
    Keep your index:
    with the map, 83 % of the 10 nearest items are found, and 97 % of what is found is near;
    re-embed 5 % of it for 99 %.
    """
    recall, precision = expected[0]["recall"], expected[0]["precision"]
    if items < FEWEST_SEARCHED:
        return f"Too few items to say how precise search with the map is; recall@10 {recall:.2f}."
    more = [each for each in expected[1:-1] if each["precision"] >= precision + 0.01]
    better = ""
    if more and precision >= KEEPS:
        share, then = (more[0][name] * 100 for name in ("share", "precision"))
        better = f"; re-embed {share:.0f} % of it for {then:.0f} %"
    return (
        f"{'Keep' if precision >= KEEPS else 'Re-embed'} your index: with the map, "
        f"{recall * 100:.0f} % of the 10 nearest items are found, and {precision * 100:.0f} % of "
        f"what is found is near{better}."
    )


def mixed_advice(mixed: Mapping[str, float] | None) -> str | None:
    """What happens to new items in an index where old ones are mapped; None if nothing to tell.

    >>> mixed_advice({"items": 150, "recall": 0.6, "own": 4.6, "found": 3.9})
    'of the 10 nearest of a new item, 4.6 are new; 3.9 where the old ones are mapped'
    """
    if mixed is None or mixed["items"] < FEWEST_NEW:
        return None
    own, found = mixed["own"], mixed["found"]
    if abs(found - own) < NOTABLE_PART * max(own, 1.0):
        return None
    return (
        f"of the 10 nearest of a new item, {own:.1f} are new; "
        f"{found:.1f} where the old ones are mapped"
    )


NOTICEABLE = 0.02  # of a probe's figures: less is what chance does on a few hundred items
PROBE_FIGURES = {"knn_accuracy": "kNN accuracy", "precision": "retrieval precision"}


def probe_changes(probe: Any) -> Iterator[tuple[str, float, float]]:
    """What a probe says of an encoder before and after, by name.

    Args:
        probe: ``ProbeScores`` before and after, or the same out of JSON; None if there is none.
    """
    for part in ("old", "new", "all") if probe is not None else ():
        first, last = (_of(_of(probe, when), part) for when in ("before", "after"))
        if first is not None and last is not None:
            for figure, name in PROBE_FIGURES.items():
                yield f"{name} of {part} classes", _of(first, figure), _of(last, figure)


def _of(part: Any, name: str) -> Any:
    return part[name] if isinstance(part, Mapping) else getattr(part, name)


def fallen_scores(probe: Any) -> Iterator[str]:
    """Those of a probe that fell by more than a little, in words; arguments as above."""
    for name, before, after in probe_changes(probe):
        if after < before - NOTICEABLE:
            yield f"{name} fell from {before:.3f} to {after:.3f}"


def sentence(event: Mapping[str, Any]) -> str:
    """What an event of a workspace's journal was."""
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
            text = f"{version} adopted as it was"
        case "train":
            text = (
                f"{version} trained: {event['strategy']}, {counted(event['epochs'], 'epoch')}, "
                f"{counted(event['steps'], 'step')}, stopped by {event['stopped']}"
            )
        case "evaluate":
            found = [*(event["failed_checks"] or ["all checks passed"])]
            found += [f"but {change}" for change in event.get("worse", ())]
            for name, before, after in probe_changes(event["probe"]):
                found.append(f"{name} {before:.3f} → {after:.3f}")
            text = f"{version} evaluated: {'; '.join(found)}"
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
            counts = (f"{count:,} × {name}" for name, count in event["steps"].items())
            text = f"{counted(event['number'], 'event')} since {event['since']}: "
            text += ", ".join(counts)
        case "forgetting":
            text = f"{counted(len(event['ids']))} to be forgotten"
        case "forget":
            text = f"{counted(event['items'])} forgotten"
        case _:
            text = step
    return f"{text} ({event['seconds']:.1f} s)" if "seconds" in event else text
