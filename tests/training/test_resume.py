"""Training that is interrupted anywhere and resumed ends with the same bits."""

from __future__ import annotations

import copy
import functools
import logging
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import incontrast as ic
from incontrast.training import resume
from incontrast.training.engine import Engine
from incontrast.training.resume import TrainingFile


class Dropping(nn.Sequential):
    """An encoder that draws from torch's own generator, and has a buffer that is never saved."""

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 8)
        )
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
        return super().forward(rows) * (1 + 1e-3 * self.seen)


class Interrupted(Exception):
    pass


class Interrupt:
    """Raises after so many steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def __call__(self, progress: ic.Progress) -> None:
        if progress.finished is None:
            self.left -= 1
            if self.left == 0:
                raise Interrupted


@dataclass(frozen=True)
class Scripted(ic.Schedule):
    """Verdicts and learning rates step by step; afterwards, the last ones."""

    verdicts: tuple[str | None, ...] = (None,)
    rates: tuple[float, ...] = (1e-3,)

    def begin(self, generator, state=None) -> ic.LearningRate:
        return ScriptedRate(self)


class ScriptedRate(ic.LearningRate):
    watches = True

    def __init__(self, schedule: Scripted) -> None:
        self.schedule, self.observed, self.asked = schedule, 0, 0

    def observe(self, loss: float) -> Any:
        self.observed += 1
        return self.schedule.verdicts[min(self.observed, len(self.schedule.verdicts)) - 1]

    def next_lr(self, progress: float) -> float:
        self.asked += 1
        return self.schedule.rates[min(self.asked, len(self.schedule.rates)) - 1]


# A checkpoint before the interruption, a rollback after it; and a best epoch before all later ones.
ROLLBACK = Scripted(("checkpoint", None, None, None, None, None, None, "rollback", None))
WORSE = Scripted(rates=(0.03,) * 4 + (100.0,))

STRATEGIES: dict[str, ic.Strategy] = {
    "joint step": ic.ICL(max_epochs=4, epoch_steps=1),
    "cosine": ic.ICL(max_epochs=4, epoch_steps=1, lr=ic.Cosine(2e-3)),
    "learned": ic.ICL(max_epochs=4, epoch_steps=1, lr=ic.Learned(start=3.0, every=2)),
    "the paper's": ic.ICL.paper(max_epochs=3),
    "warm start": ic.WarmStart(max_epochs=3, patience=2, ema_decay=0.0),
    "replay": ic.Replay(max_epochs=3),
    "distillation": ic.Distill(max_epochs=3),
    "a rollback": ic.ICL(max_epochs=4, epoch_steps=1, lr=ROLLBACK),
    "an early best": ic.WarmStart(max_epochs=4, lr=WORSE, batch_size=64, ema_decay=0.0),
    "momentum": ic.ICL(
        max_epochs=3,
        epoch_steps=1,
        lr=1e-2,
        optimizer=lambda p: torch.optim.SGD(p, momentum=0.9),
    ),
}


@pytest.fixture
def every_step(monkeypatch) -> None:
    monkeypatch.setattr(resume, "EVERY", 0.0)
    monkeypatch.setattr(resume, "SHARE", float("inf"))


@functools.cache
def _fitted(blobs) -> ic.Learner:
    learner = ic.Learner(
        ic.Vectors(8, encoder=Dropping), fit_strategy=ic.Retrain(max_epochs=5), seed=3
    )
    learner.fit(blobs(150))
    return learner


def fitted(blobs) -> ic.Learner:
    return copy.deepcopy(_fitted(blobs))


@functools.cache
def undisturbed(blobs, name: str) -> tuple[ic.Learner, ic.Outcome]:
    """What an update without an interruption gives."""
    learner = fitted(blobs)
    return learner, learner.update(blobs(90, shift=1.0, seed=1), strategy=STRATEGIES[name])


def weights(learner: ic.Learner) -> dict[str, Tensor]:
    return {**learner.encoder.state_dict(), "embeddings": learner.embed(torch.ones(3, 8))}


def assert_equal(first: ic.Learner, second: ic.Learner) -> None:
    expected = weights(first)
    for name, value in weights(second).items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("steps", [1, 4, 6])
def test_an_update_resumes_to_the_same_bits(name, steps, blobs, tmp_path, every_step) -> None:
    new, strategy = blobs(90, shift=1.0, seed=1), STRATEGIES[name]
    (straight, expected), broken = undisturbed(blobs, name), fitted(blobs)
    file = tmp_path / "training"
    with pytest.raises(Interrupted):
        broken.update(new, strategy=strategy, callbacks=[Interrupt(steps + 1)], checkpoint=file)
    steps_done: list[int] = []
    again = broken.update(
        new,
        strategy=strategy,
        callbacks=[lambda progress: steps_done.append(progress.steps)],
        checkpoint=file,
    )
    assert_equal(straight, broken)
    assert min(steps_done) > 1  # it did not begin at the first step
    assert again.steps == expected.steps
    assert again.forward_passes == expected.forward_passes
    assert [e.loss for e in again.history] == [e.loss for e in expected.history]


def test_a_fit_resumes_twice(blobs, tmp_path, every_step) -> None:
    def learner() -> ic.Learner:
        return ic.Learner(
            ic.Vectors(8, encoder=Dropping), fit_strategy=ic.Retrain(max_epochs=4), seed=1
        )

    straight, broken, file = learner(), learner(), tmp_path / "training"
    straight.fit(blobs(150))
    for steps in (3, 5):
        with pytest.raises(Interrupted):
            broken.fit(blobs(150), callbacks=[Interrupt(steps)], checkpoint=file)
    broken.fit(blobs(150), checkpoint=file)
    assert_equal(straight, broken)


def test_ctrl_c_ends_training_after_its_step_and_writes_that(
    blobs, tmp_path, monkeypatch, usual_ctrl_c
) -> None:
    """Long before a first state is due."""
    monkeypatch.setattr(resume, "SHARE", 1e-9)
    new, strategy = blobs(90, shift=1.0, seed=1), STRATEGIES["joint step"]
    (straight, expected), broken = undisturbed(blobs, "joint step"), fitted(blobs)
    file, taken = tmp_path / "training", []

    def press(progress: ic.Progress) -> None:
        taken.append(progress.steps)
        if progress.steps == 3:
            signal.raise_signal(signal.SIGINT)

    for times, options in enumerate(({"checkpoint": file}, {})):
        with pytest.raises(KeyboardInterrupt):
            broken.update(new, strategy=strategy, callbacks=[press], **options)
        assert taken[-1] == 3
        assert file.exists()
        assert times or broken.version == 1
    taken.clear()
    again = broken.update(
        new, strategy=strategy, callbacks=[lambda at: taken.append(at.steps)], checkpoint=file
    )
    assert min(taken) >= 3
    assert again.steps == expected.steps
    assert_equal(straight, broken)


def test_ctrl_c_is_left_to_whoever_handles_it(blobs, tmp_path, usual_ctrl_c) -> None:
    pressed: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        fitted(blobs).update(
            blobs(90, shift=1.0, seed=1),
            strategy=ic.ICL(max_epochs=1, epoch_steps=1),
            callbacks=[lambda at: signal.raise_signal(signal.SIGINT)],
            checkpoint=tmp_path / "training",
        )
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert len(pressed) > 1


def test_files_read_ahead_are_read_again(tmp_path, every_step) -> None:
    from PIL import Image

    for index in range(40):
        pixels = torch.randint(256, (8, 8), generator=torch.Generator().manual_seed(index))
        Image.fromarray(pixels.byte().numpy(), "L").save(tmp_path / f"{index}.png")

    def learner() -> ic.Learner:
        domain = ic.Images(8, channels=1, encoder="small")
        return ic.Learner(domain, fit_strategy=ic.Retrain(max_epochs=2, batch_size=8), seed=1)

    straight, broken, file = learner(), learner(), tmp_path / "training"
    straight.fit(tmp_path)
    with pytest.raises(Interrupted):
        broken.fit(tmp_path, callbacks=[Interrupt(4)], checkpoint=file)
    broken.fit(tmp_path, checkpoint=file)
    for name, value in straight.encoder.state_dict().items():
        assert torch.equal(value, broken.encoder.state_dict()[name]), name


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "other"])
def test_a_file_that_cannot_be_used_starts_over(
    damage, blobs, tmp_path, every_step, caplog
) -> None:
    straight, broken, file = fitted(blobs), fitted(blobs), tmp_path / "training"
    new = blobs(60, shift=1.0)
    straight.update(new, strategy=ic.ICL(max_epochs=2))
    given = blobs(61, shift=2.0) if damage == "other" else new
    with pytest.raises(Interrupted):
        broken.update(
            given, strategy=ic.ICL(max_epochs=2), callbacks=[Interrupt(3)], checkpoint=file
        )
    content = bytearray(file.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
    file.write_bytes(
        {"cut": content[:-9], "empty": b""}.get(damage, content),
    )
    with caplog.at_level(logging.INFO, "incontrast"):
        broken.update(new, strategy=ic.ICL(max_epochs=2), checkpoint=file)
    expected = "is of another run" if damage == "other" else "is damaged: training starts over"
    assert expected in caplog.text
    assert_equal(straight, broken)


def test_a_disk_that_is_full_does_not_end_training(
    blobs, tmp_path, every_step, monkeypatch, caplog
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(resume, "write_bytes", full)
    straight, other = fitted(blobs), fitted(blobs)
    straight.update(blobs(60), strategy=ic.ICL(max_epochs=1))
    other.update(blobs(60), strategy=ic.ICL(max_epochs=1), checkpoint=tmp_path / "training")
    assert "cannot be written" in caplog.text
    assert_equal(straight, other)


def test_writing_takes_a_small_share_of_the_time(tmp_path, monkeypatch) -> None:
    """A writing of 3 seconds is followed by 150 without one."""
    now = 0.0
    monkeypatch.setattr(resume.time, "monotonic", lambda: now)

    def slow(path: Path, content: bytes) -> None:
        nonlocal now
        now += 3.0

    monkeypatch.setattr(resume, "write_bytes", slow)
    engine: Any = Engine("cpu")
    file = TrainingFile(tmp_path / "training", "this run")
    assert not file.due(engine, 1)
    now = 60.0
    assert file.due(engine, 2)
    file.write({}, engine)
    now = 63.0 + 149.0
    assert not file.due(engine, 3)
    now = 63.0 + 150.0
    assert file.due(engine, 4)


def test_a_first_writing_takes_no_more_than_its_share(tmp_path, monkeypatch) -> None:
    """One that is expected to take 3 seconds waits until they are 2 % of the time."""
    now = 0.0
    monkeypatch.setattr(resume.time, "monotonic", lambda: now)

    def pack(state: Any, buffer: Any) -> None:
        nonlocal now
        now += 1.0  # a third of what writing takes, about

    monkeypatch.setattr(resume.torch, "save", pack)
    engine: Any = Engine("cpu")
    file = TrainingFile(tmp_path / "training", "this run")
    now = 60.0
    assert file.due(engine, 1)
    file.write({}, engine)
    assert not file.path.exists()
    now = 149.0
    assert not file.due(engine, 2)
    now = 150.0
    assert file.due(engine, 3)
    file.write({}, engine)
    assert file.path.exists()


def test_other_data_of_the_same_size_start_over(blobs, tmp_path, every_step, caplog) -> None:
    straight, broken, file = fitted(blobs), fitted(blobs), tmp_path / "training"
    first, second = blobs(60, seed=1), blobs(60, seed=1)
    second[7] += 1.0  # not one of those that several processes compare
    straight.update(second, strategy=ic.ICL(max_epochs=1))
    with pytest.raises(Interrupted):
        broken.update(
            first, strategy=ic.ICL(max_epochs=1), callbacks=[Interrupt(3)], checkpoint=file
        )
    with caplog.at_level(logging.INFO, "incontrast"):
        broken.update(second, strategy=ic.ICL(max_epochs=1), checkpoint=file)
    assert "is of another run" in caplog.text
    assert_equal(straight, broken)


@dataclass(frozen=True, kw_only=True)
class Counting(ic.WarmStart):
    """Keeps state of its own: a tensor, a list and a module."""

    def loss(self, task, batch, first, second) -> Tensor:
        mean = task.once("mean", lambda: torch.zeros(()))
        steps: list[int] = task.once("steps", list)
        norm = task.once("norm", lambda: nn.BatchNorm1d(8, affine=False))
        mean += 0.1
        steps.append(len(steps))
        norm(first.detach())
        weight = 1.0 + 0.01 * (mean + len(steps) + norm.running_mean.abs().sum())
        return super().loss(task, batch, first, second) * weight


def test_what_a_strategy_keeps_for_itself_is_resumed(blobs, tmp_path, every_step) -> None:
    straight, broken, file = fitted(blobs), fitted(blobs), tmp_path / "training"
    strategy = Counting(max_epochs=2, optimizer=lambda p: torch.optim.SGD(p))
    straight.update(blobs(60), strategy=strategy)
    with pytest.raises(Interrupted):
        broken.update(blobs(60), strategy=strategy, callbacks=[Interrupt(6)], checkpoint=file)
    # As after a restart, when a function of one's own has another address.
    strategy = Counting(max_epochs=2, optimizer=lambda p: torch.optim.SGD(p))
    steps: list[int] = []
    broken.update(
        blobs(60),
        strategy=strategy,
        checkpoint=file,
        callbacks=[lambda progress: steps.append(progress.steps)],
    )
    assert min(steps) == 6
    assert_equal(straight, broken)


def test_another_number_of_processes_resumes_with_other_draws(
    blobs, tmp_path, every_step, caplog, monkeypatch
) -> None:
    broken, file = fitted(blobs), tmp_path / "training"
    monkeypatch.setattr(Engine, "gather_objects", lambda self, value: [value, value])
    with pytest.raises(Interrupted):
        broken.update(
            blobs(60), strategy=ic.ICL(max_epochs=1), callbacks=[Interrupt(3)], checkpoint=file
        )
    broken.update(blobs(60), strategy=ic.ICL(max_epochs=1), checkpoint=file)
    assert "interrupted with 2 processes and resumes with 1" in caplog.text
