"""How claims are judged: cell by cell, from the rows (``RULE``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from incontrast.report.page import Standing, Verdict
from paper.names import SHIFTED
from paper.summary import RATIOS, Metric, Place, Summary

__all__ = [
    "NO_ROWS",
    "PAPER_CELLS",
    "RATIOS",
    "RULE",
    "SHIFTED",
    "cells_of",
    "counts_of",
    "faster",
    "judge",
    "reaches",
    "speed_up",
    "surely",
    "under_a_cap",
    "with_rows",
]

RULE = (
    "Written from the rows, by rule: a claim about cells (a data set at a growth ratio) holds if "
    "it holds in all of them that have been run, does not if it holds in none that decides it, and "
    "otherwise in part; it stays open while fewer than half of its cells decide it. A cell whose "
    "figure is only a bound on the wrong side decides nothing, and is named. Where retraining was "
    "ended by its number of epochs, figures are those of training so long, and say nothing of "
    "longer training."
)
PAPER_CELLS = 12  # of Tables 3 and 4
NO_ROWS = "There are no rows for it yet."


def cells_of(summary: Summary, sets: Sequence[str], strategy: str) -> list[Place]:
    """The cells of these data sets in which a strategy has been run."""
    return [
        place
        for place in summary.places
        if place.set in sets and place.usual and summary.runs(place, strategy)
    ]


def judge(
    claim: str,
    cells: Sequence[Place],
    holds: Callable[[Place], bool | None],
    because: Callable[[int, int], str],
    summary: Summary,
    *,
    expected: int,
    figure: Callable[[Place], str] = lambda _: "",
    why: Callable[[Sequence[Place], Sequence[Place]], str] = lambda _good, _bad: "",
) -> Verdict:
    """A claim about so many cells, with those where it does not hold by name.

    Args:
        claim: What is said.
        cells: Cells that have rows.
        holds: Whether it holds in one; None where that cannot be told.
        because: A sentence from the number of cells where it holds, and of those that decide.
        summary: The rows.
        expected: Cells that it is about.
        figure: What to say of a cell where it does not hold.
        why: A sentence from the cells where it holds and those where it does not.
    """
    if not cells:
        return Verdict(claim=claim, standing="open", because=NO_ROWS)
    judged = [(place, holds(place)) for place in cells]
    good, bad, open_ = (
        [place for place, held in judged if held is kind] for kind in (True, False, None)
    )
    decided = len(good) + len(bad)
    standing: Standing = "fails" if not good else "mixed" if bad or open_ else "holds"
    said = because(len(good), decided) if decided else "No cell decides it."
    if bad and (good or open_):
        said += f" Not at: {_names(summary, bad, figure)}."
    if bad:
        said += why(good, bad)
    if open_:
        said += f" Undecided, cut short or not run: {_names(summary, open_, figure)}."
    if 2 * decided < expected:
        standing = "open"
        said += f" That is {decided} of {expected}: too few to decide."
    return Verdict(claim=claim, standing=standing, because=said)


def with_rows(verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Those that there is anything to say of."""
    return tuple(verdict for verdict in verdicts if verdict.because != NO_ROWS)


def counts_of(verdicts: Sequence[Verdict]) -> str:
    """How many claims hold, as a sentence."""
    kinds = (
        *(("holds", "holds"), ("mixed", "holds in part")),
        *(("fails", "does not hold"), ("open", "is not decided")),
    )
    counts = ((sum(v.standing == kind for v in verdicts), words) for kind, words in kinds)
    told = ", ".join(f"{words}: {count}" for count, words in counts if count)
    return f"Of {len(verdicts)} claims of the paper, {told}."


def _names(summary: Summary, places: Sequence[Place], figure: Callable[[Place], str]) -> str:
    return ", ".join(
        f"{summary.title(place.set)} {place.growth_ratio:g}{figure(place)}" for place in places
    )


def speed_up(summary: Summary, place: Place, name: str, metric: Metric = "time") -> float:
    """By the paper's protocol; 0 where there is none."""
    found = summary.paper_speed_up(place, name, metric)
    return 0.0 if found is None or found.value is None else found.value


def faster(summary: Summary, place: Place, name: str, than: str | float) -> bool | None:
    """Whether a strategy is faster than another or than so many times retraining; None: unknown.

    In time, by the paper's protocol. Of a strategy that was cut short the speed-up is at most what
    was found.
    """
    mine = speed_up(summary, place, name)
    if mine == 0.0:
        return False  # it broke off
    if isinstance(than, str) and not summary.runs(place, than):
        return None
    other = than if isinstance(than, float) else speed_up(summary, place, than)
    if mine > other:
        return None if summary.cut_short(place, name) else True
    bound = not isinstance(than, float) and summary.cut_short(place, than)
    return None if bound else False


def under_a_cap(summary: Summary, cells: Sequence[Place]) -> str:
    """In how many cells retraining was ended by its number of epochs, as a sentence."""
    ended = [place for place in cells if summary.capped(place)]
    if not ended:
        return ""
    return (
        f" In {len(ended)} of {len(cells)} cells retraining was ended by its number of epochs, "
        "with at least one seed: these figures are those of training so long."
    )


def surely(
    summary: Summary,
    cells: Sequence[Place],
    name: str,
    parts: Sequence[str],
    low: float,
    protocol: str = "paper",
) -> str:
    """In how many cells no doubt is left that accuracies are at most so far below retraining's."""
    gaps = [
        [summary.accuracy_difference(place, name, part, protocol).low for part in parts]
        for place in cells
    ]
    known = [ends for ends in gaps if None not in ends]
    sure = sum(all(end is not None and end >= low for end in ends) for ends in known)
    return (
        f" That is by means over seeds. {len(known)} cells have seeds enough for a 95 % interval, "
        f"and beyond doubt it is so in {sure} of them."
    )


def reaches(summary: Summary, place: Place, name: str) -> bool | None:
    """Whether a strategy comes to retraining's level in most seeds that were not there before.

    None where all were.
    """
    found = summary.our_speed_up(place, name, "time")
    assert found is not None
    return None if found.level == found.total else found.seeds > found.never
