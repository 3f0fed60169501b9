"""From rows to figures that compare."""

from __future__ import annotations

import math

import pytest

from paper.statistics import mean, ratio
from paper.summary import Place, Summary, published
from paper.tables import settings_table

HERE = Place("proteins", 0.3)


def settings(summary: Summary) -> dict[str, str]:
    table = settings_table(summary)
    titles = (column.title for column in table.columns)
    return dict(zip(titles, (cell.text for cell in table.rows[0]), strict=True))


def test_speed_ups_are_retraining_over_the_strategy(row) -> None:
    summary = Summary(
        [
            row("retraining", best=(100.0, 150), reached=(80.0, 6000)),
            row("icl", best=(10.0, 30), reached=(4.0, 1500)),
        ]
    )
    assert summary.paper_speed_up(HERE, "icl", "time").value == pytest.approx(10.0)
    assert summary.paper_speed_up(HERE, "icl", "epoch").value == pytest.approx(5.0)
    assert summary.parity_speed_up(HERE, "icl", "time").value == pytest.approx(20.0)
    assert summary.parity_speed_up(HERE, "icl", "forward passes").value == pytest.approx(4.0)
    assert summary.paper_speed_up(HERE, "replay", "time") is None


def test_never_is_a_result(row) -> None:
    rows = [row("retraining", seed=seed) for seed in range(3)]
    rows += [row("icl", seed=0), row("icl", seed=1, reached=None), row("icl", seed=2)]
    found = Summary(rows).parity_speed_up(HERE, "icl", "time")
    assert (found.seeds, found.never) == (2, 1)
    assert found.value == pytest.approx(1.0)
    rows[3] = row("icl", seed=0, reached=None)
    assert Summary(rows).parity_speed_up(HERE, "icl", "time").value is None


def test_a_run_that_diverged_counts_as_never(row) -> None:
    broken = {k: v for k, v in row("icl").items() if k not in ("paper", "parity", "curve")}
    summary = Summary([row("retraining"), broken | {"failed": "nan"}])
    assert summary.parity_speed_up(HERE, "icl", "time").never == 1
    assert summary.finished(HERE, "icl") == []
    assert summary.accuracy(HERE, "icl", "svm_old").value is None


def test_a_retraining_that_diverged_is_nothing_to_compare_with(row) -> None:
    broken = {k: v for k, v in row("retraining").items() if k not in ("paper", "parity", "total")}
    summary = Summary([broken | {"failed": "nan"}, row("icl"), row("no-update", best=None)])
    assert summary.places == []
    assert summary.paper_speed_up(HERE, "icl", "time") is None


def test_a_retraining_that_diverged_does_not_replace_one_that_did_not(row) -> None:
    broken = {k: v for k, v in row("retraining").items() if k not in ("paper", "parity", "total")}
    summary = Summary([row("retraining"), row("icl"), broken | {"failed": "nan"}])
    assert summary.parity_speed_up(HERE, "icl", "time").value == pytest.approx(1.0)


def test_a_seed_that_was_at_parity_and_is_ruined_counts(row) -> None:
    rows = []
    for seed, spoilt in enumerate((False, True, False)):
        rows += [row("retraining", seed=seed, reached=(100.0, 6000)), row("icl", seed=seed)]
        if seed < 2:  # at parity before any update
            rows[-2]["parity"]["before"] = dict(rows[-2]["parity"]["target"])
        if spoilt:
            rows[-1]["parity"] |= {"reached": None, "after": {"old": 0.9, "new": 0.9, "all": 0.9}}
    found = Summary(rows).parity_speed_up(HERE, "icl", "time")
    assert (found.seeds, found.never, found.before) == (1, 1, 1)
    assert found.value is None, "half of the seeds that count never come to parity"
    assert not Summary(rows).sure(HERE, "icl")


def test_a_trial_run_with_other_settings_does_not_mix_with_the_rest(row) -> None:
    def with_epochs(made, epochs):
        return made | {"settings": made["settings"] | {"max_epochs": epochs}}

    rows = []
    for seed in range(3):
        rows += [row("retraining", seed=seed, best=(100.0, 1)), row("icl", seed=seed)]
    short = [with_epochs(row(name, best=(1.0, 1)), 5) for name in ("retraining", "icl")]
    for order in ([*rows, *short], [*short, *rows], [*rows, short[0]]):
        summary = Summary(order)
        found = summary.paper_speed_up(HERE, "icl", "time")
        assert (found.seeds, found.value) == (3, pytest.approx(10.0))
        assert settings(summary)["epochs at most"] == "200"
        assert settings(summary)["seeds"] == "3"
    assert Summary([*rows, *short]).set_aside == 2
    assert Summary(rows).set_aside == 0
    again = [with_epochs(made, 400) for made in rows]
    assert settings(Summary([*rows, *again]))["epochs at most"] == "400", "the later ones"


def test_times_by_different_clocks_are_not_compared(row) -> None:
    assert Summary([row("retraining"), row("icl") | {"clock": "wall"}]).runs(HERE, "icl") == []


def test_the_last_row_counts_and_only_like_is_compared_with_like(row) -> None:
    early, late = row("icl", best=(50.0, 1)), row("icl", best=(5.0, 1))
    summary = Summary([row("retraining", best=(100.0, 1)), early, late])
    assert summary.paper_speed_up(HERE, "icl", "time").value == pytest.approx(20.0)
    other = row("icl", seed=1)
    other["settings"] = other["settings"] | {"patience": 3}
    summary = Summary([row("retraining", seed=1), other])
    assert summary.runs(HERE, "icl") == []
    assert Summary([row("retraining")], "paper").places == []


def test_differences_are_taken_seed_by_seed(row) -> None:
    rows = [row("retraining", seed=s, svm=0.7 + 0.1 * s) for s in range(3)]
    rows += [row("icl", seed=s, svm=0.69 + 0.1 * s) for s in range(3)]
    gap = Summary(rows).accuracy_difference(HERE, "icl", "svm_old")
    assert gap.value == pytest.approx(-0.01)
    assert gap.high - gap.low == pytest.approx(0.0, abs=1e-9)
    assert Summary(rows).accuracy(HERE, "icl", "held_out").value == pytest.approx(0.79)


def test_ranks_are_averaged_over_places(whole_grid) -> None:
    summary = Summary(whole_grid)
    ranks = summary.average_rank([HERE], ("paper", "fine-tuning", "replay"), "time")
    assert ranks == {"paper": 2.0, "fine-tuning": 1.0, "replay": 3.0}
    assert summary.average_rank([Place("none", 0.3)], ("paper",), "time") == {}


def test_the_search_and_its_cost(row, trial_row) -> None:
    rows = [trial_row("replay", 1e-3, 0.5), trial_row("replay", 1e-4, 0.4)]
    rows.append(trial_row("replay", 1e-5, None))
    stale = trial_row("replay", 1e-2, 0.1)
    stale["settings"] = stale["settings"] | {"patience": 3}
    summary = Summary([row("retraining"), *rows, stale])
    assert summary.search_cost(HERE) == {"replay": (3, 120.0, 1e-4)}


def test_the_settings_say_what_figures_rest_on(row) -> None:
    rows = [row("retraining", seed=seed) for seed in (0, 3)]
    rows[0]["paper"]["stopped"] = "epochs"
    assert settings(Summary(rows)) == {
        "data": "PROTEINS",
        "encoder": "ResNet-18, 16×16 px",
        "items": "100",
        "held out": "10",
        "patience": "50",
        "epochs at most": "200",
        "limit": "100 %",
        "spacing": "1",
        "seeds": "2",
        "ended by epochs": "1 of 2",
        "still falling": "25 %",  # from 0.4 to 0.3
    }
    rows.append(row("retraining", ratio=0.5, seed=0))
    assert settings(Summary(rows))["seeds"] == "1 or 2"


def test_confidence_intervals() -> None:
    three = mean([1.0, 2.0, 3.0])
    assert three.value == 2.0
    assert three.high == pytest.approx(2.0 + 4.303 / math.sqrt(3))  # Student's t with 2 degrees
    assert three.interval == "-0.5–4.5"
    assert mean([1.0, 2.0]).low is None, "two seeds say nothing about their spread"
    assert mean([]).value is None
    many = mean([float(value) for value in range(12)])
    spread = math.sqrt(13.0)  # variance of 0 to 11
    assert many.high - many.value == pytest.approx(2.201 * spread / math.sqrt(12))
    some_never = ratio([8.0, None, 2.0, None, 4.0])
    assert (some_never.value, some_never.low) == (2.0, None), "never is infinitely slow"
    assert ratio([1.0, 8.0, 8.0, 8.0, None]).value < ratio([1.0, 8.0, 8.0, 8.0]).value + 1e-9
    geometric = ratio([1.0, 2.0, 4.0])
    assert geometric.value == pytest.approx(2.0)
    assert geometric.low * geometric.high == pytest.approx(4.0)


def test_published_figures_are_whole() -> None:
    """As many as the paper has: 4 sets × 7 strategies × 3 growth ratios × 2."""
    figures = published()
    assert "doi:10.1145/3539597.3570458" in figures["source"]
    sets = {k: v for k, v in figures["speed_ups"].items() if k != "about"}
    assert list(sets) == ["imagenet-2", "mnist-2", "proteins", "reddit"]
    for strategies in sets.values():
        assert len(strategies) == 7
        for metrics in strategies.values():
            assert [len(values) for values in metrics.values()] == [3, 3]
    everything = [v for s in sets.values() for m in s.values() for v in m["time"]]
    assert max(sets["mnist-2"]["paper"]["time"]) == 16.7
    assert max(everything) == 25.7
