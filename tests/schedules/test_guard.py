"""The guard: undoes harm, lets noise pass, remembers the rate."""

from __future__ import annotations

from random import Random

from incontrast.schedules.guard import Guard


def test_a_steady_noisy_loss_is_never_harm() -> None:
    draws = Random(0)
    guard = Guard()
    verdicts = [guard.judge(0.4 + draws.gauss(0.0, 0.05), 1e-3) for _ in range(1000)]
    assert verdicts.count("rollback") <= 2
    assert verdicts.count("checkpoint") > 500


def test_a_loss_that_jumps_is_rolled_back_and_its_rate_becomes_a_ceiling() -> None:
    guard = Guard()
    for _ in range(5):
        assert guard.judge(0.4, 1e-3) == "checkpoint"
    assert guard.ceiling == float("inf")
    assert guard.judge(0.9, 1e-2) == "rollback"
    assert guard.ceiling == 5e-3
    assert guard.rollbacks == 1


def test_a_loss_that_creeps_up_is_rolled_back_too_and_never_a_checkpoint_on_the_way() -> None:
    guard, mean = Guard(), 0.4
    for _ in range(10):
        guard.judge(mean, 1e-2)
    verdicts = []
    while "rollback" not in verdicts:
        mean *= 1.02
        verdicts.append(guard.judge(mean, 1e-2))
        assert len(verdicts) < 30
    assert mean < 0.4 * 1.35
    assert verdicts[-2] is None


def test_the_window_after_a_rollback_is_spared_unless_it_is_hopeless() -> None:
    guard = Guard()
    for _ in range(5):
        guard.judge(0.4, 1e-2)
    assert guard.judge(0.7, 1e-2) == "rollback"
    assert guard.judge(0.7, 1e-2) is None
    assert guard.judge(50.0, 1e-2) == "rollback"
    assert guard.judge(50.0, 1e-2) == "rollback"


def test_the_ceiling_rises_again() -> None:
    guard = Guard()
    guard.judge(0.4, 1e-2)
    guard.judge(1.0, 1e-2)
    low = guard.ceiling
    for _ in range(10):
        guard.judge(0.4, 1e-3)
    assert guard.ceiling > 2.5 * low
