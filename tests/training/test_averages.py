"""BatchNorm's statistics after training, against moments over all values at once."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor, nn

from incontrast import Domain, Learner, Retrain, TensorCollection, Vectors
from incontrast.loss import Objective
from incontrast.training.averages import BATCHES, SIZE, calibrate, train_mode
from incontrast.training.engine import Engine
from incontrast.training.task import Increment, Task, joint_epoch


class Plain(Domain):
    """Rows whose views are the rows themselves."""

    def __init__(self, make) -> None:
        self.make = make

    def collect(self, items) -> TensorCollection:
        return TensorCollection(items)

    def views(self, batch: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        assert not torch.is_autocast_enabled("cpu")
        return batch, batch

    def encoder(self) -> nn.Module:
        return self.make()


def task_of(rows: Tensor, encoder: nn.Module, precision="float32", seed: int = 0) -> Task:
    domain = Plain(lambda: encoder)
    increment = Increment(None, TensorCollection(rows), 0)
    engine = Engine("cpu", precision)
    return Task(encoder, domain, increment, objective=Objective(), engine=engine, seed=seed)


@pytest.mark.parametrize("count", [40, 500, 1000])
def test_moments_are_those_of_all_values_together(count: int) -> None:
    rows = torch.randn(count, 3, generator=Generator().manual_seed(0)) * 2.0 + 5.0
    rows[: count // 2] += 20.0  # so that batches differ in their means
    encoder = nn.Sequential(nn.BatchNorm1d(3))
    task = task_of(rows, encoder)
    momentum = encoder[0].momentum
    calibrate(task, encoder)
    batches = joint_epoch(task.increment, SIZE, task.generator("calibration"))
    chosen = torch.cat([batch.new for batch in list(batches)[:BATCHES]])
    values = rows[chosen].repeat(2, 1).double()  # both views
    norm, close = encoder[0], {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(norm.running_mean.double(), values.mean(dim=0), **close)
    torch.testing.assert_close(norm.running_var.double(), values.var(dim=0), **close)
    assert encoder[0].momentum == momentum
    assert task.forward_passes == 0


def frozen() -> nn.Module:
    norm = nn.BatchNorm1d(8)
    norm.running_mean.fill_(5.0)
    norm.requires_grad_(False)
    return nn.Sequential(norm, nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 8))


def test_a_frozen_batch_norm_stays_as_it_is(blobs) -> None:
    learner = Learner(Plain(frozen), fit_strategy=Retrain(max_epochs=2))
    learner.fit(blobs(64))
    learner.update(blobs(32, seed=1))
    assert torch.equal(learner.encoder[0].running_mean, torch.full((8,), 5.0))
    assert torch.equal(learner.encoder[0].running_var, torch.ones(8))
    assert not torch.equal(learner.encoder[2].running_mean, torch.zeros(16))


def test_training_mode_leaves_frozen_batch_norm_in_evaluation_mode() -> None:
    encoder = train_mode(frozen())
    assert [module.training for module in encoder] == [False, True, True, True]


def test_encoders_without_batch_norm_need_no_calibration(blobs) -> None:
    encoder = nn.Linear(8, 4)
    task = task_of(blobs(64), encoder)
    task.view_batches = None  # type: ignore[assignment, method-assign]
    calibrate(task, encoder)


def test_views_are_not_made_under_autocast(blobs) -> None:
    """The domain asserts it; encoders do run under autocast, with other results."""
    rows = blobs(128)
    wide, narrow = (nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)) for _ in range(2))
    narrow.load_state_dict(wide.state_dict())
    calibrate(task_of(rows, wide), wide)
    calibrate(task_of(rows, narrow, "bfloat16"), narrow)
    assert not torch.equal(wide[1].running_mean, narrow[1].running_mean)
    torch.testing.assert_close(wide[1].running_mean, narrow[1].running_mean, rtol=0.05, atol=0.05)


def test_bfloat16_is_another_computation_with_nearly_the_same_result(blobs) -> None:
    found = {}
    for precision in ("float32", "bfloat16"):
        learner = Learner(Vectors(8), fit_strategy=Retrain(max_epochs=2), precision=precision)
        learner.fit(blobs(64))
        found[precision] = learner.embed(blobs(16, seed=1))
    assert not torch.equal(found["float32"], found["bfloat16"])
    cosine = nn.functional.cosine_similarity(found["float32"], found["bfloat16"])
    assert cosine.mean() > 0.9
