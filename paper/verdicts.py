"""In how many places claims hold: the paper's, and this library's about its own update.

Only numbers are computed here. What follows from them is written in docs/results.md, by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from incontrast.report.page import Cell, Table
from paper.names import GRAPHS, IMAGES, PUBLISHED, SHIFTED, strategy_title
from paper.statistics import rank_correlation
from paper.summary import Metric, Place, Protocol, Summary, published, published_speed_up
from paper.tables import NOTHING, columns

PAPER = (*IMAGES, *GRAPHS)
SWEPT = 5  # growth ratios that a trend needs at least
FALL = -0.5  # a rank correlation that is a fall
SVM = ("svm_old", "svm_new")
TIMES, GAP = "{:.2f}×", "{:+z.4f}"


@dataclass(frozen=True)
class Verdict:
    """What became of a claim at one place, or in one series of places.

    Args:
        holds: Whether it holds; None where that is not decided, as with a bound on the wrong side.
        figures: The figures that it is about.
    """

    holds: bool | None
    figures: tuple[float | None, ...] = ()


def claims_table(summary: Summary) -> Table:
    """Every claim that the rows can judge, with the number of places where it holds."""
    rows = [
        _row(claim, list(verdicts), form) for claim, form, verdicts in _Claims(summary).all_claims()
    ]
    return Table(
        title="Claims",
        columns=columns("claim", "confirmed", "not confirmed", "undecided", "figures"),
        rows=tuple(row for row in rows if row is not None),
        caption="Data sets at a growth ratio where a claim was confirmed, where it was not, and "
        "where that is undecided: an update was cut short, so that its figure is only a bound, or "
        "there are too few seeds. Figures: the range over the places that decide. Speed-ups are by "
        "the paper's protocol, unless parity is named. Where the number of epochs ended "
        "retraining (see the settings), they are those of training so long.",
    )


def _row(claim: str, verdicts: Sequence[Verdict], form: str) -> tuple[Cell, ...] | None:
    if not verdicts:
        return None
    counts = [sum(each.holds is kind for each in verdicts) for kind in (True, False, None)]
    decided = [each.figures for each in verdicts if each.holds is not None]
    figures = [figure for found in decided for figure in found if figure is not None]
    span = NOTHING
    if figures and form:
        low, high = (form.format(end) for end in (min(figures), max(figures)))
        span = Cell(low if low == high else f"{low} to {high}")
    return (Cell(claim), *(Cell(f"{count}", sort=count) for count in counts), span)


@dataclass(frozen=True)
class _Claims:
    summary: Summary

    def all_claims(self) -> Iterator[tuple[str, str, Iterable[Verdict]]]:
        """Claims, how their figures are written, and what became of them."""
        band = published()["accuracy_band"]["low"]
        parity, within = "comes to parity with retraining", f"at most {-band:.4f} below retraining"
        yield "Paper: ICL is faster than retraining (Tables 3, 4)", TIMES, self.faster("paper", 1.0)
        yield "Paper: ICL is the fastest on images (Table 3)", TIMES, self.fastest_on_images()
        yield "Paper: up to 16.7× in time (abstract)", TIMES, self.up_to("time", 16.7)
        yield "Paper: up to 16.8× in epochs (abstract)", TIMES, self.up_to("epoch", 16.8)
        for sure, how in ((False, ""), (True, ", by 95 % intervals")):
            svm = self.accuracy("paper", SVM, band, "paper", sure=sure)
            yield f"Paper: ICL's SVM accuracy is {within} (Section 4.3){how}", GAP, svm
        yield f"Paper: ICL {parity} (Theorem 1)", "", self.parity(PAPER, "paper")
        yield f"Paper: ICL {parity} under a shift", "", self.parity(SHIFTED, "paper")
        yield "Paper: ICL does not forget (Table 1), under a shift", "", self.keeps("paper")
        for name, part in (("paper-no-m", "meta-optimisation"), ("paper-no-lrl", "learned lr")):
            yield f"Paper: {part} is essential (Section 4.5)", TIMES, self.faster("paper", name)
        alone = self.faster("paper-no-m-lrl", 1.0)
        yield "Paper: NCE-II alone is faster than retraining (Section 4.5)", TIMES, alone
        yield "Paper: ICL's losses have no bias (Table 2)", "", self.unbiased()
        for name in ("icl", "icl-learned"):
            title = strategy_title(name)
            soon = self.parity_as_published(name)
            yield f"{title} {parity} as fast as published", TIMES, soon
            yield f"{title} is as fast as published", TIMES, self.as_published(name)
            for which, kind in ((SVM, "SVM"), (("held_out",), "held-out")):
                for sure, how in ((False, ""), (True, ", by 95 % intervals")):
                    gaps = self.accuracy(name, which, band, "parity", sure=sure)
                    yield f"{title}: {kind} accuracy {within}{how}", GAP, gaps
            yield f"{title} {parity} under a shift", "", self.parity(SHIFTED, name)
        yield "ICL(): the speed-up falls with α (Section 4.4)", "{:+.2f}", self.falls("icl")

    def at(self, sets: Sequence[str], strategy: str) -> list[Place]:
        """Places of these data sets at which a strategy has been run."""
        return [
            place
            for place in self.summary.places
            if place.set in sets and place.usual and self.summary.runs(place, strategy)
        ]

    def speed_up(self, place: Place, name: str, metric: Metric = "time") -> float:
        """By the paper's protocol; 0 where there is none."""
        found = self.summary.paper_speed_up(place, name, metric)
        return 0.0 if found is None or found.value is None else found.value

    def is_faster(self, place: Place, name: str, than: str | float) -> bool | None:
        """Whether a strategy is faster than another or than so many times retraining.

        Of one that was cut short the speed-up is at most what was found.
        """
        mine = self.speed_up(place, name)
        if mine == 0.0:
            return False  # it diverged
        if isinstance(than, str) and not self.summary.runs(place, than):
            return None
        other = than if isinstance(than, float) else self.speed_up(place, than)
        if mine > other:
            return None if self.summary.cut_short(place, name) else True
        bound = isinstance(than, str) and self.summary.cut_short(place, than)
        return None if bound else False

    def faster(self, name: str, than: str | float) -> Iterator[Verdict]:
        for place in self.at(PAPER, name):
            if isinstance(than, float) or self.summary.runs(place, than):
                yield Verdict(self.is_faster(place, name, than), (self.speed_up(place, name),))

    def fastest_on_images(self) -> Iterator[Verdict]:
        for place in self.at(IMAGES, "paper"):
            others = [name for name in PUBLISHED if name != "paper"]
            found = [self.is_faster(place, "paper", name) for name in others]
            holds = False if False in found else None if None in found else True
            yield Verdict(holds, (self.speed_up(place, "paper"),))

    def up_to(self, metric: Metric, claimed: float) -> Iterator[Verdict]:
        """One verdict: the largest of all places, or a bound on it."""
        places = self.at(PAPER, "paper")
        if places:
            sure = [place for place in places if not self.summary.cut_short(place, "paper")]
            most, least = (
                max((self.speed_up(place, "paper", metric) for place in some), default=0.0)
                for some in (places, sure)
            )
            holds = True if least >= claimed else False if most < claimed else None
            yield Verdict(holds, (most,))

    def accuracy(
        self,
        name: str,
        which: Sequence[str],
        least: float,
        protocol: Protocol,
        *,
        sure: bool = False,
    ) -> Iterator[Verdict]:
        """By means over seeds; or surely, by the lower ends of their 95 % intervals."""
        for place in self.at(PAPER, name):
            found = [
                self.summary.accuracy_difference(place, name, part, protocol) for part in which
            ]
            gaps = [gap.low if sure else gap.value for gap in found if gap.value is not None]
            known = [gap for gap in gaps if gap is not None]
            if gaps:
                yield Verdict(min(known) >= least if known else None, tuple(known))

    def parity(self, sets: Sequence[str], name: str) -> Iterator[Verdict]:
        """In most of the seeds that were not there before; undecided where all were."""
        for place in self.at(sets, name):
            found = self.summary.parity_speed_up(place, name, "time")
            assert found is not None
            yield Verdict(None if found.before == found.total else found.seeds > found.never)

    def keeps(self, name: str) -> Iterator[Verdict]:
        for place in self.at(SHIFTED, name):
            if self.summary.finished(place, name):
                yield Verdict(not self.summary.forgets(place, name))

    def unbiased(self) -> Iterator[Verdict]:
        for place in self.at(PAPER, "no-update"):
            rows = [row["bias"] for row in self.summary.finished(place, "no-update")]
            none = all(row["icl"][part] < 1e-9 for row in rows for part in ("old", "new"))
            others = ("no_update", "fine_tuning")
            some = all(row[kind]["old"] > 1e-6 for row in rows for kind in others)
            if rows:
                yield Verdict(none and some)

    def parity_as_published(self, name: str) -> Iterator[Verdict]:
        """Our time to parity against the published time to the lowest training loss."""
        for place in self.at(PAPER, name):
            found = self.summary.parity_speed_up(place, name, "time")
            if found is not None and found.before < found.total:
                yield Verdict((found.value or 0.0) >= _theirs(place), (found.value,))

    def as_published(self, name: str) -> Iterator[Verdict]:
        for place in self.at(PAPER, name):
            holds = self.is_faster(place, name, _theirs(place) - 1e-9)
            yield Verdict(holds, (self.speed_up(place, name),))

    def falls(self, name: str) -> Iterator[Verdict]:
        """One verdict for each data set with enough growth ratios, from those not cut short."""
        for data in dict.fromkeys(place.set for place in self.summary.places):
            places = [
                p for p in self.summary.places if p.set == data and self.summary.runs(p, name)
            ]
            known = [
                self.speed_up(place, name)
                for place in places
                if not self.summary.cut_short(place, name) and self.speed_up(place, name) > 0.0
            ]
            if len(known) >= SWEPT:
                correlation = rank_correlation(known)
                yield Verdict(correlation <= FALL, (correlation,))
            elif len(places) >= SWEPT:
                yield Verdict(None)


def _theirs(place: Place) -> float:
    figure = published_speed_up(place, "paper", "time")
    assert figure is not None
    return figure
