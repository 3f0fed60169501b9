"""What this library says about its own update, judged by the same rules as the paper's claims."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from incontrast.report.judging import PAPER_CELLS, RATIOS, SHIFTED, cells_of, judge, reaches
from incontrast.report.names import GRAPHS, IMAGES, strategy_title
from incontrast.report.page import Verdict
from incontrast.report.summary import Place, Summary, published

__all__ = ["claims_of_ours"]


def claims_of_ours(summary: Summary) -> tuple[Verdict, ...]:
    """What this library says about its own update."""
    learned = ("icl-learned",) if "icl-learned" in summary.strategies else ()
    return tuple(
        verdict
        for name in ("icl", *learned)
        for verdict in (
            _at_or_ahead(summary, name),
            _within_the_band(summary, name),
            _level_under_shift(summary, name),
        )
    )


def _at_or_ahead(summary: Summary, name: str) -> Verdict:
    cells = cells_of(summary, (*IMAGES, *GRAPHS), name)

    def found(place: Place) -> float | None:
        speed_up = summary.our_speed_up(place, name, "time")
        return None if speed_up is None else speed_up.value

    def theirs(place: Place) -> float:
        figures = published()["speed_ups"][place.set]["paper"]["time"]
        figure: float = figures[RATIOS.index(place.growth_ratio)]
        return figure

    def figure(place: Place) -> str:
        ours = found(place)
        return f" ({'never' if ours is None else f'{ours:.1f}×'}, paper {theirs(place):g}×)"

    return judge(
        f"`{strategy_title(name)}` is level with retraining at least as fast as the paper says its "
        "ICL is.",
        cells,
        lambda place: (found(place) or 0.0) >= theirs(place),
        lambda good, total: (
            f"In {good} of {total} cells that have been run (of 12), in time by "
            "our protocol against the published row."
        ),
        summary,
        expected=PAPER_CELLS,
        figure=figure,
        why=lambda ahead, behind: _why_behind(summary, name, ahead, behind),
    )


def _why_behind(
    summary: Summary, name: str, ahead: Sequence[Place], behind: Sequence[Place]
) -> str:
    """What the cells where an update is slower than published have in common, in figures."""

    def distance(places: Sequence[Place]) -> str:
        rows = [row["ours"] for place in places for row in summary.finished(place, name)]
        ratios = [row["before"]["all"] / row["target"]["all"] for row in rows]
        return f"{100 * (statistics.median(ratios) - 1):+.0f} %"

    def ended(places: Sequence[Place]) -> str:
        rows = [row for place in places for row in summary.finished(place, "retraining")]
        by_epochs = sum(row["paper"]["stopped"] == "epochs" for row in rows)
        return f"{by_epochs} of {len(rows)}"

    compared = f" Where it is ahead: {distance(ahead)}, and {ended(ahead)}." if ahead else ""
    return (
        " An update can save what the old encoder knows already and what retraining would spend. "
        f"Where it is behind, the old encoder's loss was {distance(behind)} from retraining's at "
        f"the median, and {ended(behind)} retrainings were ended by their number of epochs, before "
        f"their loss had stopped falling.{compared}"
    )


def _within_the_band(summary: Summary, name: str) -> Verdict:
    low = published()["accuracy_band"]["low"]
    cells = [
        place
        for place in cells_of(summary, (*IMAGES, *GRAPHS), name)
        if summary.finished(place, name)
    ]

    def gap(place: Place, part: str) -> float:
        found = summary.accuracy_difference(place, name, f"svm_{part}", "ours").value
        return 0.0 if found is None else found

    every = [gap(place, part) for place in cells for part in ("old", "new")]
    return judge(
        f"`{strategy_title(name)}` loses no more than {-low:.4f} of SVM accuracy to retraining.",
        cells,
        lambda place: all(gap(place, part) >= low for part in ("old", "new")),
        lambda good, total: (
            f"On old and on new data in {good} of {total} cells; the differences "
            f"run from {min(every):+.4f} to {max(every):+.4f}."
        ),
        summary,
        expected=PAPER_CELLS,
    )


def _level_under_shift(summary: Summary, name: str) -> Verdict:
    return judge(
        f"`{strategy_title(name)}` comes to retraining's level where the noise distribution "
        "really changes.",
        cells_of(summary, SHIFTED, name),
        lambda place: reaches(summary, place, name),
        lambda good, total: f"New classes and turned images: in {good} of {total} cells.",
        summary,
        expected=len(SHIFTED),
    )
