"""Learned rates: on a quadratic with known best rate, their guard, what they carry over."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Generator

from incontrast import Learned
from incontrast.schedules.learned import (
    FACTOR,
    FALLING,
    SETTLED,
    LearnedRate,
    policy,
    relative,
)


def begin(seed: int = 0, state: dict | None = None, **settings) -> LearnedRate:
    return Learned(**settings).begin(Generator().manual_seed(seed), state)


def descend(rates: LearnedRate, best: float, steps: int, seed: int = 0) -> list[float]:
    """Noisy gradient descent on ½·w²/best + 0.3: above 2·best it diverges."""
    draws = Generator().manual_seed(seed)
    curvature = torch.logspace(-1, 0, 16, dtype=torch.float64) / best
    weights = torch.randn(16, generator=draws, dtype=torch.float64) / curvature.sqrt()
    kept, tried = weights.clone(), []
    for _ in range(steps):
        loss = 0.5 * float((curvature * weights**2).sum()) / 8.0 + 0.3
        noise = 0.02 * torch.randn((), generator=draws).item()
        verdict = rates.observe(min(loss, 1e6) * math.exp(noise))
        if verdict == "rollback":
            weights = kept.clone()
            continue
        if verdict == "checkpoint":
            kept = weights.clone()
        shake = torch.randn(16, generator=draws, dtype=torch.float64)
        tried.append(rates.next_lr(0.0))
        weights = weights - tried[-1] * (curvature * weights + 0.2 * curvature.sqrt() * shake)
    return tried


@pytest.mark.parametrize("best", [5e-4, 3e-3, 2e-2])
@pytest.mark.parametrize("start", [1e-5, 1e-3, 1e-1])
def test_the_best_rate_of_a_quadratic_is_found_within_a_factor_of_3(
    best: float, start: float
) -> None:
    tried = descend(begin(start=start), best, steps=240)
    typical = math.exp(sum(math.log(rate) for rate in tried[60:160]) / 100)
    assert best / 3 < typical < best * 3


def test_rates_differ_between_a_converging_and_a_diverging_run() -> None:
    def after(losses: Callable[[int], float]) -> float:
        rates = begin(start=3e-3, guard=False, explore=0.0)
        for step in range(41):
            rates.observe(losses(step))
        return rates.next_lr(0.0)

    falling, rising = after(lambda step: 0.98**step), after(lambda step: 1.06**step)
    assert rising < falling / 3


def test_a_decision_changes_the_rate_by_a_bounded_factor_every_few_steps() -> None:
    rates, tried = begin(guard=False, explore=3.0), []
    for step in range(41):
        rates.observe(1.0 / (1 + step))
        tried.append(rates.next_lr(0.0))
    changes = [step for step in range(1, 41) if tried[step] != tried[step - 1]]
    assert changes
    assert all(step % 4 == 0 for step in changes)
    for step in changes:
        assert 1 / FACTOR * 0.999 < tried[step] / tried[step - 1] < FACTOR * 1.001


def test_the_highest_rate_falls_once_the_rate_has_settled() -> None:
    rates = begin(start=1e-3, explore=0.0, learn_every=0, guard=False)
    draws, tried = Generator().manual_seed(0), []
    for _ in range(4 * 400):
        # A loss that does nothing but waver.
        rates.observe(1.0 + 0.02 * torch.randn((), generator=draws).item())
        tried.append(rates.next_lr(0.0))
    settled = max(tried[4 * SETTLED // 2 : 4 * SETTLED])
    fall = math.sqrt(1.0 + (400 - SETTLED - 1) / FALLING)
    assert 0.3 * settled / fall < tried[-1] <= 1.01 * settled / fall


def test_harm_is_undone_at_a_lower_rate() -> None:
    rates = begin(start=1e-2)
    for _ in range(9):
        rates.observe(0.4)
    before = rates.next_lr(0.0)
    assert [rates.observe(1.5) for _ in range(4)][-1] == "rollback"
    assert rates.next_lr(0.0) <= before / 2
    assert rates.observe(0.4) is None


def test_a_loss_that_is_not_finite_is_undone_once_and_then_left_to_the_loop() -> None:
    rates = begin()
    for _ in range(6):
        rates.observe(0.4)
    assert rates.observe(math.nan) == "rollback"
    assert rates.observe(math.nan) is None
    assert math.isfinite(rates.next_lr(0.0))


def test_the_agent_learns_and_what_it_has_learned_is_carried_over() -> None:
    first = begin(seed=1)
    descend(first, 3e-3, steps=400)
    state = first.state()
    learned = {name: v for name, v in state.items() if name.startswith("networks.")}
    assert all(
        any(
            not torch.equal(v, policy()[name.removeprefix("networks.")])
            for name, v in learned.items()
            if name.startswith(f"networks.{network}.")
        )
        for network in ("actor", "critic", "target_actor", "target_critic")
    )
    second = begin(seed=2, state=state)
    for name, value in second.state().items():
        assert torch.equal(value, state[name]), name
    assert len(second.replay) == len(first.replay)


def test_an_agent_saved_and_loaded_proposes_the_same_rates(tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    first = begin(seed=1)
    descend(first, 3e-3, steps=300)
    save_file(first.state(), tmp_path / "rates.safetensors")
    loaded = load_file(tmp_path / "rates.safetensors")
    again = descend(begin(seed=2, state=loaded), 3e-3, steps=300)
    assert again == descend(begin(seed=2, state=first.state()), 3e-3, steps=300)
    assert again != descend(begin(seed=2), 3e-3, steps=300)


def test_the_same_seed_gives_the_same_rates_whatever_the_global_generator() -> None:
    torch.manual_seed(5)
    first = descend(begin(), 3e-3, steps=100)
    torch.manual_seed(6)
    assert descend(begin(), 3e-3, steps=100) == first


def test_starting_an_agent_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    descend(begin(), 3e-3, steps=100)
    assert torch.equal(torch.get_rng_state(), before)


def test_relative_change_is_like_a_difference_of_logarithms() -> None:
    assert relative(1.02, 1.0) == pytest.approx(math.log(1.02), rel=1e-3)
    assert relative(-1.0, -1.0) == 0.0
    assert relative(1.0, -1.0) == pytest.approx(2.0 * 2.0 / 2.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start": 0.0}, "positive and finite"),
        ({"every": 0}, "every must be at least 1"),
        ({"explore": -0.1}, "explore must be at least 0"),
        ({"agent_lr": math.nan}, "positive and finite"),
    ],
)
def test_settings_are_checked(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Learned(**settings)
