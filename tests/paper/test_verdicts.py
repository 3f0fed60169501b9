"""In how many places claims hold, from rows."""

from __future__ import annotations

import pytest

from paper.names import GRAPHS, IMAGES, SHIFTED
from paper.row_file import read_rows
from paper.summary import Summary
from paper.verdicts import claims_table
from paper.write_pages import ROWS

PAPER = (*IMAGES, *GRAPHS)


def claims(rows: list[dict]) -> dict[str, list[str]]:
    """Holds, does not, undecided and figures of each claim."""
    return {
        row[0].text: [cell.text for cell in row[1:]] for row in claims_table(Summary(rows)).rows
    }


def claim(rows: list[dict], *words: str) -> list[str]:
    """Of the first claim that has these words."""
    return next(
        found for text, found in claims(rows).items() if all(word in text for word in words)
    )


def test_claims_follow_from_the_rows(whole_grid) -> None:
    assert list(claims(whole_grid).values()) == [
        ["12", "0", "0", "10.00×"],  # faster than retraining
        ["0", "6", "0", "10.00×"],  # the fastest on images: w/o M is
        ["0", "1", "0", "10.00×"],  # up to 16.7 times
        ["0", "1", "0", "10.00×"],
        ["12", "0", "0", "-0.0100"],  # accuracy within the band
        ["0", "0", "12", "–"],  # but two seeds have no interval
        ["0", "12", "0", "–"],  # never at parity at random splits
        ["0", "2", "0", "–"],  # nor under a shift
        ["2", "0", "0", "–"],  # the old loss stays
        ["0", "12", "0", "10.00×"],  # faster without meta-optimisation
        ["12", "0", "0", "10.00×"],  # faster with learned learning rates
        ["12", "0", "0", "2.50×"],  # NCE-II alone
        ["12", "0", "0", "–"],  # no bias
        ["12", "0", "0", "20.00×"],  # ICL() to parity as fast as published
        ["9", "3", "0", "11.11×"],  # by the paper's protocol
        ["12", "0", "0", "+0.0000"],
        ["0", "0", "12", "–"],
        ["12", "0", "0", "+0.0000"],
        ["0", "0", "12", "–"],
        ["2", "0", "0", "–"],  # parity under a shift
        ["0", "1", "0", "+0.00"],  # no fall with α
    ]


def test_a_bound_on_the_wrong_side_decides_nothing(row) -> None:
    rows = []
    for name in PAPER:
        for ratio in (0.3, 0.5, 0.7):
            cut = row("paper", set=name, ratio=ratio, best=(10.0 if ratio < 0.6 else 200.0, 10))
            cut["paper"]["stopped"] = "limit"
            rows += [row("retraining", set=name, ratio=ratio, best=(100.0, 100)), cut]
    # 10 times at most may be less than once; half as fast at most is slower.
    assert claim(rows, "faster than retraining") == ["0", "4", "8", "0.50×"]
    assert claim(rows, "16.7×") == ["0", "1", "0", "10.00×"]
    for each in rows[1::2]:
        each["paper"]["best"]["seconds"] = 1.0
    assert claim(rows, "16.7×") == ["0", "0", "1", "–"]


def test_seeds_that_were_at_parity_before_do_not_make_a_claim_hold(row) -> None:
    rows = []
    for name in SHIFTED:
        for seed in range(5):
            rows += [
                row(one, set=name, seed=seed, reached=(1.0, 1)) for one in ("retraining", "paper")
            ]
            if seed < 3:
                rows[-2]["parity"]["before"] = dict(rows[-2]["parity"]["target"])
            else:
                rows[-1]["parity"]["reached"] = None
    assert claim(rows, "parity", "under a shift")[:3] == ["0", "2", "0"], "none that had to"
    for each in rows:
        each["parity"]["before"] = dict(each["parity"]["target"])
        each["parity"]["reached"] = {"seconds": 1.0, "epochs": 1.0, "forward_passes": 1}
    assert claim(rows, "parity", "under a shift")[:3] == ["0", "0", "2"]


def test_a_rival_that_was_not_run_is_not_beaten(row) -> None:
    rows = []
    for ratio in (0.3, 0.5, 0.7):
        for name in IMAGES:
            rows.append(row("retraining", set=name, ratio=ratio, best=(100.0, 100)))
            rows.append(row("paper", set=name, ratio=ratio))
    assert claim(rows, "fastest on images") == ["0", "0", "6", "–"]


def test_an_update_that_diverged_everywhere_is_slower(row) -> None:
    rows = []
    for ratio in (0.3, 0.5, 0.7):
        broken = {k: v for k, v in row("icl", ratio=ratio).items() if k not in ("paper", "parity")}
        rows += [row("retraining", ratio=ratio), broken | {"failed": "nan"}]
    assert claim(rows, "ICL() comes to parity") == ["0", "3", "0", "–"]
    assert claim(rows, "ICL() is as fast") == ["0", "3", "0", "0.00×"]


def test_accuracies_are_only_sure_with_a_whole_interval(row) -> None:
    rows = []
    for name in PAPER:
        for ratio in (0.3, 0.5, 0.7):
            spread = 0.02 if name == "reddit" else 0.001  # in every seed another way
            for seed in range(2 if name == "proteins" else 3):
                place = {"set": name, "ratio": ratio, "seed": seed}
                rows.append(row("retraining", svm=0.8, **place))
                rows.append(row("icl", svm=0.8 + spread * (seed - 1), **place))
    assert claim(rows, "ICL(): SVM")[:3] == ["12", "0", "0"]
    assert claim(rows, "ICL(): SVM", "95 %")[:3] == ["6", "3", "3"]


@pytest.mark.parametrize(
    ("seconds", "cut", "found"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], (), ["1", "0", "0", "-1.00"]),  # ever slower
        ([6.0, 5.0, 4.0, 3.0, 2.0, 1.0], (), ["0", "1", "0", "+1.00"]),
        ([6.0, 5.0, 4.0, 3.0, 2.0, 99.0], (5,), ["0", "1", "0", "+1.00"]),  # a bound says nothing
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], (4, 5), ["0", "0", "1", "–"]),  # too few are left
    ],
)
def test_the_advantage_shrinks_or_it_does_not(row, seconds, cut, found) -> None:
    rows = []
    for number, (ratio, time) in enumerate(
        zip((0.1, 0.3, 0.5, 0.7, 0.8, 0.9), seconds, strict=True)
    ):
        rows += [row("retraining", ratio=ratio), row("icl", ratio=ratio, best=(time, 1))]
        if number in cut:
            rows[-1]["paper"]["stopped"] = "limit"
    assert claim(rows, "falls with α") == found


def test_claims_without_rows_are_left_out(row) -> None:
    assert list(claims([row("retraining"), row("icl")])) == [
        "ICL() comes to parity with retraining as fast as published",
        "ICL() is as fast as published",
        "ICL(): SVM accuracy at most 0.0137 below retraining",
        "ICL(): SVM accuracy at most 0.0137 below retraining, by 95 % intervals",
        "ICL(): held-out accuracy at most 0.0137 below retraining",
        "ICL(): held-out accuracy at most 0.0137 below retraining, by 95 % intervals",
    ]


def test_published_claims_are_those_that_were_published_first() -> None:
    """Where each holds, and how many places decide it, as the first published page said."""
    counts = [tuple(map(int, found[:3])) for found in claims(read_rows(ROWS)).values()]
    assert [(holds, holds + fails) for holds, fails, _ in counts] == [
        *((0, 12), (0, 6), (0, 1), (0, 1)),  # faster; the fastest; up to 16.7× and 16.8×
        *((9, 12), (0, 6), (0, 12), (0, 2), (0, 2)),  # accuracy; parity; old data kept
        *((0, 7), (0, 0), (6, 8), (12, 12)),  # meta, learned lr; NCE-II alone; no bias
        *((2, 12), (1, 12), (10, 12), (0, 6), (9, 12), (1, 6), (2, 2)),  # ICL()
        *((2, 12), (0, 11), (6, 12), (1, 6), (11, 12), (0, 6), (2, 2)),  # with learned lr
        (0, 0),  # falls with α
    ]
