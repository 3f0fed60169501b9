"""What this library says about its own update, judged by the same rules as the paper's claims."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from incontrast.report.page import Standing, Verdict
from paper.names import GRAPHS, IMAGES, strategy_title
from paper.statistics import Estimate, rank_correlation
from paper.summary import Place, Summary, published, published_speed_up
from paper.verdicts import (
    NO_ROWS,
    PAPER_CELLS,
    SHIFTED,
    cells_of,
    faster,
    judge,
    reaches,
    speed_up,
    surely,
    under_a_cap,
)

__all__ = ["claims_of_ours"]


def claims_of_ours(summary: Summary) -> tuple[Verdict, ...]:
    """What this library says about its own update."""
    learned = ("icl-learned",) if "icl-learned" in summary.strategies else ()
    each = tuple(
        verdict
        for name in ("icl", *learned)
        for verdict in (
            _at_or_ahead(summary, name),
            _at_or_ahead_by_their_protocol(summary, name),
            _within_the_band(summary, name),
            _held_out(summary, name),
            _level_under_shift(summary, name),
        )
    )
    return (*each, _speed_up_falls(summary))


def _at_or_ahead(summary: Summary, name: str) -> Verdict:
    def found(place: Place) -> float | None:
        speed_up = summary.our_speed_up(place, name, "time")
        return None if speed_up is None else speed_up.value

    def figure(place: Place) -> str:
        ours = found(place)
        told = f"never{_how_far(summary, place, name)}" if ours is None else f"{ours:.2f}×"
        return f" ({told}, paper {_theirs(place):g}×)"

    # Where the old encoder is level with every seed there is no time to compare.
    cells = [
        place
        for place in cells_of(summary, (*IMAGES, *GRAPHS), name)
        if (speed_up := summary.our_speed_up(place, name, "time")) is not None
        and speed_up.level < speed_up.total
    ]
    return judge(
        f"`{strategy_title(name)}` is level with retraining at least as fast as the paper says its "
        "ICL is.",
        cells,
        lambda place: (found(place) or 0.0) >= _theirs(place),
        lambda good, total: (
            f"In {good} of {total} cells{' run so far' * (total < PAPER_CELLS)}: our time until "
            "level against the published time to the lowest training loss."
        ),
        summary,
        expected=PAPER_CELLS,
        figure=figure,
        why=lambda ahead, behind: _why_behind(summary, name, ahead, behind),
    )


def _at_or_ahead_by_their_protocol(summary: Summary, name: str) -> Verdict:
    return judge(
        f"The same by the paper's protocol: `{strategy_title(name)}` has its lowest training loss "
        "at least as soon.",
        cells_of(summary, (*IMAGES, *GRAPHS), name),
        lambda place: faster(summary, place, name, _theirs(place) - 1e-9),
        lambda good, total: (
            f"In {good} of {total} cells that decide it."
            + under_a_cap(summary, cells_of(summary, (*IMAGES, *GRAPHS), name))
        ),
        summary,
        expected=PAPER_CELLS,
        figure=lambda place: f" ({speed_up(summary, place, name):.2f}×, paper {_theirs(place):g}×)",
    )


def _theirs(place: Place) -> float:
    figure = published_speed_up(place, "paper", "time")
    assert figure is not None
    return figure


def _how_far(summary: Summary, place: Place, name: str) -> str:
    """What was missing in the end, where an update never was level: on the worst items."""
    ended = [row["ours"] for row in summary.never_level(place, name)]
    if not ended:
        return ""
    gaps = {
        words: statistics.median(row["after"][part] / row["target"][part] - 1.0 for row in ended)
        for part, words in (("old", "old items"), ("new", "new items"), ("all", "all items"))
    }
    worst = max(gaps, key=lambda words: gaps[words])
    return f": {worst} {100 * gaps[worst]:.1f} % above"


def _why_behind(
    summary: Summary, name: str, ahead: Sequence[Place], behind: Sequence[Place]
) -> str:
    """What the cells where an update is slower than published have in common, in figures."""

    def distance(place: Place) -> float | None:
        rows = [row["ours"] for row in summary.finished(place, name)]
        ratios = [row["before"]["all"] / row["target"]["all"] for row in rows]
        return statistics.median(ratios) - 1.0 if ratios else None

    def told(places: Sequence[Place]) -> str:
        known = [value for value in map(distance, places) if value is not None]
        rows = [row for place in places for row in summary.finished(place, "retraining")]
        ended = sum(row["paper"]["stopped"] == "epochs" for row in rows)
        middle = f"{100 * statistics.median(known):.0f} % " if known else "an unknown share "
        return (
            f"{middle}above retraining's (median of the cells), and {ended} of {len(rows)} "
            "retrainings were ended by their number of epochs"
        )

    compared = f" Where it is ahead: {told(ahead)}." if ahead else ""
    return (
        " What an update can save is what the old encoder knows and what retraining would still "
        f"spend. Where it is behind, the old encoder's loss was {told(behind)}.{compared}"
    )


def _within_the_band(summary: Summary, name: str) -> Verdict:
    low = published()["accuracy_band"]["low"]
    cells = _finished_cells(summary, name)

    def gaps(place: Place, protocol: str) -> list[float]:
        found = [
            summary.accuracy_difference(place, name, f"svm_{part}", protocol).value
            for part in ("old", "new")
        ]
        return [gap for gap in found if gap is not None]

    def span(protocol: str) -> str:
        every = [gap for place in cells for gap in gaps(place, protocol)]
        return f"{min(every):+z.4f} to {max(every):+z.4f}"

    return judge(
        f"`{strategy_title(name)}` loses no more than {-low:.4f} of SVM accuracy to retraining.",
        cells,
        lambda place: min(gaps(place, "ours")) >= low,
        lambda good, total: (
            f"On old and on new data in {good} of {total} cells, with the encoder that was first "
            f"level: {span('ours')}; with that of the paper's stop: {span('paper')}."
            + surely(summary, cells, name, ("svm_old", "svm_new"), low, "ours")
        ),
        summary,
        expected=PAPER_CELLS,
        figure=lambda place: f" ({min(gaps(place, 'ours')):+z.4f})",
    )


def _held_out(summary: Summary, name: str) -> Verdict:
    low = published()["accuracy_band"]["low"]

    def gap(place: Place) -> Estimate:
        return summary.accuracy_difference(place, name, "held_out", "ours")

    def figure(place: Place) -> str:
        found = gap(place)
        between = "" if found.low is None else f", {found.low:+z.4f} to {found.high:+z.4f}"
        return f" ({found.value or 0.0:+z.4f}{between})"

    cells = _finished_cells(summary, name)
    return judge(
        f"Nor on items that no encoder has seen: `{strategy_title(name)}` is at most {-low:.4f} "
        "below retraining.",
        cells,
        lambda place: (gap(place).value or 0.0) >= low,
        lambda good, total: (
            f"In {good} of {total} cells."
            + surely(summary, cells, name, ("held_out",), low, "ours")
        ),
        summary,
        expected=PAPER_CELLS,
        figure=figure,
    )


def _finished_cells(summary: Summary, name: str) -> list[Place]:
    cells = cells_of(summary, (*IMAGES, *GRAPHS), name)
    return [place for place in cells if summary.finished(place, name)]


def _level_under_shift(summary: Summary, name: str) -> Verdict:
    return judge(
        f"`{strategy_title(name)}` comes to retraining's level where the noise distribution "
        "really changes.",
        cells_of(summary, SHIFTED, name),
        lambda place: reaches(summary, place, name),
        lambda good, total: (
            f"New classes and turned images: in most seeds, in {good} of {total} cells."
        ),
        summary,
        expected=len(SHIFTED),
    )


def _speed_up_falls(summary: Summary) -> Verdict:
    claim = (
        "The advantage of `ICL()` shrinks as the share of new data grows (as the paper says of its "
        "ICL, Section 4.4)."
    )
    found, told, left = {}, [], []
    for name in sorted({place.set for place in summary.places}):
        places = [p for p in summary.places if p.set == name and summary.runs(p, "icl")]
        known = [
            place
            for place in places  # by growth ratio
            if not summary.cut_short(place, "icl") and speed_up(summary, place, "icl") > 0.0
        ]
        if len(places) >= 5 and len(known) < 5:
            left.append(f"{len(known)} of {len(places)} on {summary.title(name)}")
        if len(known) >= 5:
            found[name] = rank_correlation([speed_up(summary, place, "icl") for place in known])
            single = sum(len(summary.seeds(place, "icl")) == 1 for place in known)
            told.append(
                f"{summary.title(name)} {found[name]:+.2f} over {len(known)} of {len(places)}, "
                f"{single} of them with one seed"
            )
    if not found:
        too_few = f"Growth ratios at which no update was cut short: {', '.join(left)}. Too few."
        return Verdict(claim=claim, standing="open", because=too_few if left else NO_ROWS)
    falling = sum(value <= -0.5 for value in found.values())
    standing: Standing = "holds" if falling == len(found) else "fails" if not falling else "mixed"
    return Verdict(
        claim=claim,
        standing=standing,
        because="Rank correlation of the speed-up by the paper's protocol with α, over the growth "
        f"ratios at which no update was cut short, at least five: {'; '.join(told)}. At most −0.5 "
        "is a fall.",
    )
