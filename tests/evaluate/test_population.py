"""The true loss against a loop over all pairs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Generator, Tensor

from incontrast import TensorCollection, Vectors
from incontrast.evaluate import measure
from incontrast.evaluate import population as module
from incontrast.evaluate.population import population
from incontrast.loss import Objective
from incontrast.training.task import Increment

OBJECTIVE = Objective()


def pair(seed: int, count: int) -> tuple[Tensor, Tensor]:
    generator = Generator().manual_seed(seed)
    return tuple(torch.randn(count, 4, dtype=torch.float64, generator=generator) for _ in range(2))


def f(a: Tensor, b: Tensor) -> float:
    return math.exp((a @ b / (a.norm() * b.norm())).item() / OBJECTIVE.temperature)


def naive(old, new, alpha: float) -> tuple[float, float, list[float]]:
    """Mean true loss of old and of new items, and the change ratio of each old one."""
    k = OBJECTIVE.negatives
    losses: dict[str, list[float]] = {"old": [], "new": []}
    ratios = []
    for name, (first, second) in {"old": old, "new": new}.items():
        for i in range(len(first)):
            positive = f(first[i], second[i])
            e_old = [f(first[i], b) for j, b in enumerate(old[1]) if name == "new" or j != i]
            e_new = [f(first[i], b) for j, b in enumerate(new[1]) if name == "old" or j != i]
            mean_old, mean_new = sum(e_old) / len(e_old), sum(e_new) / len(e_new)
            noise = (1 - alpha) * mean_old + alpha * mean_new
            losses[name].append(-math.log(positive / (positive + k * noise)))
            if name == "old":
                ratios.append((positive + k * mean_new) / (positive + k * mean_old))
    mean = {name: sum(values) / len(values) for name, values in losses.items()}
    return mean["old"], mean["new"], ratios


@pytest.mark.parametrize("rows", [1024, 3])
def test_true_loss_and_change_ratio_are_their_formulas(rows: int, monkeypatch) -> None:
    monkeypatch.setattr(module, "ROWS", rows)
    old, new, alpha = pair(0, 7), pair(1, 5), 0.3
    measured = population(old, new, growth_ratio=alpha, objective=OBJECTIVE)
    loss_old, loss_new, ratios = naive(old, new, alpha)
    loss = measured.evaluation_loss()
    assert loss.old == pytest.approx(loss_old)
    assert loss.new == pytest.approx(loss_new)
    assert loss.all == pytest.approx(0.7 * loss_old + 0.3 * loss_new)
    torch.testing.assert_close(measured.change_ratios(), torch.tensor(ratios, dtype=torch.float64))
    assert measured.change_ratio().median == pytest.approx(sorted(ratios)[3])


def test_without_old_or_new_items() -> None:
    only = pair(0, 6)
    measured = population(None, only, growth_ratio=1.0, objective=OBJECTIVE).evaluation_loss()
    assert math.isnan(measured.old)
    assert measured.all == measured.new
    with pytest.raises(ValueError, match="needs old and new items"):
        population(only, None, growth_ratio=0.0, objective=OBJECTIVE).change_ratios()


def test_one_new_item_has_only_old_negatives() -> None:
    old, new = pair(0, 6), pair(1, 1)
    measured = population(old, new, growth_ratio=1 / 7, objective=OBJECTIVE)
    assert math.isfinite(measured.evaluation_loss().new)


def test_views_are_fixed_and_samples_too(blobs) -> None:
    domain = Vectors(8).fit_statistics(TensorCollection(blobs(50)))
    encoder = domain.encoder().eval()
    increment = Increment(TensorCollection(blobs(50)), TensorCollection(blobs(30, seed=1)), 50)
    whole = measure(encoder, domain, increment).evaluation_loss()
    assert whole == measure(encoder, domain, increment).evaluation_loss()
    assert whole != measure(encoder, domain, increment, seed=1).evaluation_loss()
    part = measure(encoder, domain, increment, sample=20).evaluation_loss()
    assert part == measure(encoder, domain, increment, sample=20).evaluation_loss()
    assert part != whole
    assert part.all == pytest.approx(whole.all, rel=0.2)


def test_measuring_does_not_touch_the_encoder(blobs) -> None:
    domain = Vectors(8).fit_statistics(TensorCollection(blobs(50)))
    encoder = domain.encoder().eval()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    measure(encoder, domain, Increment(None, TensorCollection(blobs(20)), 0))
    for name, value in encoder.state_dict().items():
        assert torch.equal(before[name], value)


def test_the_encoder_s_own_device_is_taken(blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else the machine has."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    domain = Vectors(8).fit_statistics(TensorCollection(blobs(50)))
    increment = Increment(None, domain.collect(blobs(50)), 0)
    loss = measure(domain.encoder().eval(), domain, increment, sample=10).evaluation_loss()
    assert loss.new > 0.0
