"""Table 2 and Theorem 2 against loops written from their formulas, and on a trained encoder."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

from incontrast import Learner, Retrain, Vectors
from incontrast.data import digits
from incontrast.evaluate import Population, bias, measure, risk_bound
from incontrast.evaluate.population import population
from incontrast.loss import Objective, change_ratio, incremental_info_nce, info_nce
from incontrast.streams import by_class
from incontrast.training.task import Increment

OBJECTIVE = Objective()
K = OBJECTIVE.negatives
ALPHA = 5 / 12

Pair = tuple[Tensor, Tensor]


def pair(seed: int, count: int, dtype: torch.dtype = torch.float64) -> Pair:
    first, second = torch.randn(2, count, 4, generator=Generator().manual_seed(seed), dtype=dtype)
    return first, second


def made(old: Pair | None, new: Pair | None, growth_ratio: float = ALPHA) -> Population:
    return population(old, new, growth_ratio=growth_ratio, objective=OBJECTIVE)


def f(a: Tensor, b: Tensor) -> float:
    return math.exp((a @ b / (a.norm() * b.norm())).item() / OBJECTIVE.temperature)


def partitions(anchors: Pair, old: Pair, new: Pair) -> list[dict[str, float]]:
    """f⁺ and f⁺ + K·E_P for negatives from P = X, ΔX, X′, of every anchor."""
    found = []
    for i in range(len(anchors[0])):
        a, positive = anchors[0][i], f(anchors[0][i], anchors[1][i])
        mean = {}
        for name, items in {"X": old, "ΔX": new}.items():
            values = [f(a, b) for j, b in enumerate(items[1]) if anchors is not items or j != i]
            mean[name] = sum(values) / len(values)
        mean["X′"] = (1 - ALPHA) * mean["X"] + ALPHA * mean["ΔX"]
        found.append(
            {"f⁺": positive} | {name: positive + K * negatives for name, negatives in mean.items()}
        )
    return found


def test_bias_of_no_update_and_fine_tuning_is_that_of_table_2() -> None:
    old, new = pair(0, 7), pair(1, 5)
    on_old, on_new = partitions(old, old, new), partitions(new, old, new)
    log_ratio = [math.log(z["X′"] / z["X"]) for z in on_old]  # log r^{X→X′}
    biases = bias(made(old, new))
    assert biases.no_update.old.tolist() == pytest.approx(log_ratio, abs=1e-10)
    assert biases.fine_tuning.old.tolist() == pytest.approx(log_ratio, abs=1e-10)
    assert biases.no_update.new.tolist() == pytest.approx(
        [-math.log(z["f⁺"] / z["X′"]) for z in on_new], abs=1e-10
    )
    assert biases.fine_tuning.new.tolist() == pytest.approx(
        [math.log(z["X′"] / z["ΔX"]) for z in on_new], abs=1e-10
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("growth_ratio", [0.01, ALPHA, 0.99])
def test_retraining_and_icl_have_no_bias(dtype: torch.dtype, growth_ratio: float) -> None:
    biases = bias(made(pair(0, 7, dtype), pair(1, 5, dtype), growth_ratio))
    for row in (biases.retraining, biases.icl):
        for part in (row.old, row.new):
            assert part.dtype == torch.float64
            torch.testing.assert_close(part, torch.zeros_like(part), rtol=0.0, atol=1e-10)


def test_the_old_bias_of_no_update_is_nce_ii_itself() -> None:
    measured = made(pair(0, 7), pair(1, 5))
    assert measured.old is not None
    nce_ii = incremental_info_nce(
        measured.old.positive,
        measured.old.old_negatives,
        measured.old.new_negatives,
        k=K,
        growth_ratio=ALPHA,
    )
    torch.testing.assert_close(bias(measured).no_update.old, nce_ii)


def test_summaries() -> None:
    row = bias(made(pair(0, 7), pair(1, 5))).fine_tuning
    assert row.mean() == pytest.approx((row.old.mean().item(), row.new.mean().item()))
    assert row.mean_absolute().old == pytest.approx(sum(abs(b) for b in row.old.tolist()) / 7)
    assert row.mean_absolute().new >= abs(row.mean().new)


def test_both_readings_of_theorem_2_at_one_encoder() -> None:
    old, new = pair(0, 7), pair(1, 5)
    on_old, on_new = partitions(old, old, new), partitions(new, old, new)
    old_risk = sum(math.log(z["X"] / z["f⁺"]) for z in on_old) / 7
    of_new = sum(math.log(z["X′"] / z["f⁺"]) for z in on_new)
    nce_ii = [math.log(ALPHA * z["ΔX"] / z["X"] + 1 - ALPHA) for z in on_old]

    risk = risk_bound(made(old, new))
    assert risk.old_risk == pytest.approx(old_risk)
    assert risk.objective == pytest.approx((sum(nce_ii) + of_new) / 12)
    assert risk.retraining == pytest.approx(
        (sum(math.log(z["X′"] / z["f⁺"]) for z in on_old) + of_new) / 12
    )
    assert risk.bound == pytest.approx(ALPHA * old_risk)
    assert risk.process_difference == pytest.approx(risk.bound, abs=1e-12)
    assert risk.objective_difference == pytest.approx((1 - ALPHA) * old_risk)
    assert risk.objective_difference > risk.bound  # so this reading breaks it: α < 1/2
    assert risk.holds


def test_theorem_2_with_two_encoders_counts_what_was_forgotten() -> None:
    before, after = made(pair(0, 7), pair(1, 5)), made(pair(2, 7), pair(3, 5))
    risk = risk_bound(after, before=before)
    rise = risk_bound(after).old_risk - risk_bound(before).old_risk
    assert risk.old_risk == risk_bound(before).old_risk
    assert risk.process_difference == pytest.approx(risk.bound - (1 - ALPHA) * rise)


@pytest.mark.parametrize(
    ("old", "new", "growth_ratio", "message"),
    [
        (None, pair(1, 5), ALPHA, "an increment with old and new items, got no old ones"),
        (pair(0, 7), None, ALPHA, "an increment with old and new items, got no new ones"),
        (pair(0, 7), pair(1, 1), 1 / 8, "needs at least 2 old and 2 new items, got 1 new item"),
        (pair(0, 1), pair(1, 5), 5 / 6, "needs at least 2 old and 2 new items, got 1 old item"),
        (pair(0, 7), pair(1, 5), 0.0, r"growth_ratio must be in \(0, 1\), got 0.0"),
    ],
)
def test_what_is_missing_is_named(
    old: Pair | None, new: Pair | None, growth_ratio: float, message: str
) -> None:
    for figure in (bias, risk_bound):
        with pytest.raises(ValueError, match=message):
            figure(made(old, new, growth_ratio))


def test_risks_under_two_objectives_do_not_compare() -> None:
    measured = made(pair(0, 7), pair(1, 5))
    other = replace(measured, objective=Objective(temperature=0.5))
    with pytest.raises(ValueError, match=r"under one objective only, got .*0\.5.* before"):
        risk_bound(measured, before=other)


@pytest.mark.parametrize("new_logit", [-5.0, 1.0, 4.0])
@pytest.mark.parametrize("margin", [-0.01, 0.01])
def test_old_items_repel_each_other_from_a_certain_retention(
    new_logit: float, margin: float
) -> None:
    """The force on E_X turns at ρ = α·r / (1 − α + α·r): docs/explanation/theory.md derives it."""
    positive, old, new = (
        torch.tensor(logit, dtype=torch.float64) for logit in ([4.0], [[1.0]], [[new_logit]])
    )
    ratio = change_ratio(positive, old, new, k=K).item()
    retention = ALPHA * ratio / (1 - ALPHA + ALPHA * ratio) + margin
    old.requires_grad_()
    loss = incremental_info_nce(positive, old, new, k=K, growth_ratio=ALPHA)
    (force,) = torch.autograd.grad(loss + retention * info_nce(positive, old, k=K), old)
    assert math.copysign(1.0, force.item()) == math.copysign(1.0, margin)


@pytest.fixture(scope="module")
def trained() -> tuple[Learner, Increment]:
    old, new = by_class(digits(), new=[7, 8, 9])
    learner = Learner(Vectors(64), fit_strategy=Retrain(max_epochs=15), seed=0)
    rows = [part.items.reshape(len(part), 64) for part in (old, new)]
    learner.fit(rows[0])
    collected = [learner.domain.collect(part) for part in rows]
    return learner, Increment(*collected, len(rows[0]))


def test_bias_is_real_when_new_classes_arrive(trained: tuple[Learner, Increment]) -> None:
    learner, increment = trained
    biases = bias(measure(learner.encoder, learner.domain, increment))
    assert biases.no_update.mean_absolute().old > 0.02
    assert biases.no_update.mean().new > 0.3
    assert biases.fine_tuning.mean_absolute().new > 0.1
    for row in (biases.retraining, biases.icl):
        assert row.mean_absolute() == pytest.approx((0.0, 0.0), abs=1e-10)
