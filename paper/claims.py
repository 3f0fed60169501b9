"""Where the paper's claims hold and where they do not: written from the rows, by rule.

The rules are in judging.py.
"""

from __future__ import annotations

from collections.abc import Callable

from incontrast.report.page import Standing, Verdict
from paper.names import GRAPHS, IMAGES, OF_THE_PAPER, strategy_title
from paper.summary import Metric, Place, Summary, published
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

__all__ = ["claims_of_the_paper"]

METRICS: tuple[Metric, ...] = ("time", "epoch")


def claims_of_the_paper(summary: Summary) -> tuple[Verdict, ...]:
    """Every claim of the paper that rows can judge."""
    return (
        _faster_than_retraining(
            summary,
            "paper",
            "ICL trains faster than retraining at every growth ratio (Tables 3 and 4: 2.3× to "
            "16.7×).",
            lambda good, total: (
                f"By the paper's protocol the paper's ICL is faster in {good} of {total}"
            ),
        ),
        _fastest_on_images(summary),
        _largest(summary),
        _accuracy_band(summary),
        _as_good_as_retraining(summary),
        _as_good_under_shift(summary),
        _old_data_kept(summary),
        _ablation(
            summary, "paper-no-m", "Meta-optimisation is essential to the speed (Section 4.5)."
        ),
        _ablation(
            summary, "paper-no-lrl", "Learned learning rates are vital to the speed (Section 4.5)."
        ),
        _faster_than_retraining(
            summary,
            "paper-no-m-lrl",
            "NCE-II alone is faster than retraining, up to 9.8× (Section 4.5).",
            lambda good, total: (
                f"Without meta-optimisation and learned rates it is faster in {good} of {total}"
            ),
        ),
        _unbiased(summary),
    )


def _faster_than_retraining(
    summary: Summary, name: str, claim: str, said: Callable[[int, int], str]
) -> Verdict:
    cells = cells_of(summary, (*IMAGES, *GRAPHS), name)
    values = [
        speed_up(summary, place, name)
        for place in cells
        if faster(summary, place, name, 1.0) is not None
    ]
    return judge(
        claim,
        cells,
        lambda place: faster(summary, place, name, 1.0),
        lambda good, total: (
            f"{said(good, total)} cells that decide it: {min(values):.1f}× to {max(values):.1f}×."
            + under_a_cap(summary, cells)
        ),
        summary,
        expected=PAPER_CELLS,
    )


def _fastest_on_images(summary: Summary) -> Verdict:
    def fastest(place: Place) -> bool | None:
        others = [name for name in OF_THE_PAPER if name != "paper"]
        found = [faster(summary, place, "paper", name) for name in others]
        return False if False in found else None if None in found else True

    return judge(
        "On images ICL is the fastest of all strategies (Table 3: average rank 1.0).",
        cells_of(summary, IMAGES, "paper"),
        fastest,
        lambda good, total: f"It is the fastest of the paper's seven in {good} of {total} cells.",
        summary,
        expected=PAPER_CELLS // 2,
    )


def _largest(summary: Summary) -> Verdict:
    claim = "Up to 16.7× in time and 16.8× in epochs (abstract)."
    cells = cells_of(summary, (*IMAGES, *GRAPHS), "paper")
    sources = (Place("mnist-2", 0.5), Place("imagenet-2", 0.3))  # the cells that have them
    if not all(source in cells for source in sources):
        return Verdict(claim=claim, standing="open", because=NO_ROWS)
    whole = [place for place in cells if not summary.cut_short(place, "paper")]
    time, epochs = (
        max(speed_up(summary, place, "paper", metric) for place in cells) for metric in METRICS
    )
    sure_time, sure_epochs = (
        max((speed_up(summary, place, "paper", metric) for place in whole), default=0.0)
        for metric in METRICS
    )
    standing: Standing = (
        "holds"
        if sure_time >= 16.7 and sure_epochs >= 16.8
        else "fails"
        if time < 16.7 and epochs < 16.8
        else "mixed"
    )
    return Verdict(
        claim=claim,
        standing=standing,
        because=f"The largest of all cells are {time:.1f}× in time and {epochs:.1f}× in epochs, "
        "or less where updates were cut short, on a processor and at the sizes named below each "
        f"table.{under_a_cap(summary, sources)}",
    )


def _accuracy_band(summary: Summary) -> Verdict:
    band = published()["accuracy_band"]

    def gaps(place: Place) -> list[float]:
        found = [
            summary.accuracy_difference(place, "paper", f"svm_{part}").value
            for part in ("old", "new")
        ]
        return [gap for gap in found if gap is not None]

    cells = [place for place in cells_of(summary, (*IMAGES, *GRAPHS), "paper") if gaps(place)]
    every = [gap for place in cells for gap in gaps(place)]
    return judge(
        f"ICL's SVM accuracy is at most {-band['low']:.4f} below the others' (Section 4.3: its "
        f"differences are from {band['low']:+z.4f} to {band['high']:+z.4f}).",
        cells,
        lambda place: all(gap >= band["low"] for gap in gaps(place)),
        lambda good, total: (
            f"Against retraining the paper's ICL loses no more than that in {good} "
            f"of {total} cells; the differences run from {min(every):+z.4f} to {max(every):+z.4f}."
            + surely(summary, cells, "paper", ("svm_old", "svm_new"), band["low"])
        ),
        summary,
        expected=PAPER_CELLS,
    )


def _as_good_as_retraining(summary: Summary) -> Verdict:
    return judge(
        "ICL is equivalent to retraining (Theorem 1, Section 3.2).",
        cells_of(summary, (*IMAGES, *GRAPHS), "paper"),
        lambda place: reaches(summary, place, "paper"),
        lambda good, total: (
            f"Within the encoder passes of an update, the paper's ICL comes to "
            f"retraining's true loss, in most seeds, in {good} of {total} cells at random splits. "
            "It has no averaged weights, retraining has."
        ),
        summary,
        expected=PAPER_CELLS,
    )


def _as_good_under_shift(summary: Summary) -> Verdict:
    return judge(
        "The same where the noise distribution really changes (the paper has no such split).",
        cells_of(summary, SHIFTED, "paper"),
        lambda place: reaches(summary, place, "paper"),
        lambda good, total: f"New classes and turned images: in {good} of {total} cells.",
        summary,
        expected=len(SHIFTED),
    )


def _old_data_kept(summary: Summary) -> Verdict:
    cells = [
        place for place in cells_of(summary, SHIFTED, "paper") if summary.finished(place, "paper")
    ]
    changes = []
    for place in cells:
        before = summary.loss(place, "paper", "old", "before").value
        after = summary.loss(place, "paper", "old").value
        changes.append(f"{before:.2f} → {after:.2f}")
    return judge(
        "ICL is stable: old data is not forgotten (Table 1).",
        cells,
        lambda place: not summary.forgets(place, "paper"),
        lambda good, total: (
            f"Where the noise changes, the old items' true loss rises by no more than 2 % in "
            f"{good} of {total} cells: {', '.join(changes)}."
        ),
        summary,
        expected=len(SHIFTED),
    )


def _ablation(summary: Summary, without: str, claim: str) -> Verdict:
    cells = [
        place
        for place in cells_of(summary, (*IMAGES, *GRAPHS), "paper")
        if summary.runs(place, without)
    ]
    return judge(
        claim,
        cells,
        lambda place: faster(summary, place, "paper", without),
        lambda good, total: (
            f"The paper's ICL is faster than {strategy_title(without)} in {good} of "
            f"{total} cells that decide it, in time by the paper's protocol."
        ),
        summary,
        expected=PAPER_CELLS,
    )


def _unbiased(summary: Summary) -> Verdict:
    cells = [
        place
        for place in cells_of(summary, (*IMAGES, *GRAPHS), "inference")
        if summary.finished(place, "inference")
    ]

    def unbiased(place: Place) -> bool:
        rows = [row["bias"] for row in summary.finished(place, "inference")]
        none = all(row["icl"][part] < 1e-9 for row in rows for part in ("old", "new"))
        some = all(row[kind]["old"] > 1e-6 for row in rows for kind in ("inference", "fine_tuning"))
        return none and some

    return judge(
        "ICL's losses have no bias with respect to retraining's, inference's and fine-tuning's "
        "have (Table 2).",
        cells,
        unbiased,
        lambda good, total: (
            f"At the same weights ICL's bias is 0 to nine digits and theirs is not, in {good} of "
            f"{total} cells. That is an identity about losses, and says nothing about what "
            "training makes of them."
        ),
        summary,
        expected=PAPER_CELLS,
    )
