"""What loggers write can be read back, and one that fails never ends a run."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import incontrast as ic
from incontrast.loggers import Logger, MLflow, TensorBoard, WandB, logger_named

IMAGES = ic.data.digits().select(range(40))


def learner(**more) -> ic.Learner:
    return ic.Learner(
        ic.Images(size=8, channels=1, encoder="small"),
        fit_strategy=ic.Retrain(max_epochs=2, batch_size=16),
        strategy=ic.ICL(max_epochs=1, epoch_steps=1),
        **more,
    )


class Kept(Logger):
    """Keeps what it is given."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.written: list[tuple[str, float, int]] = []
        self.images: list[np.ndarray] = []

    def scalars(self, values, step: int) -> None:
        self.written += [(name, value, step) for name, value in values.items()]

    def image(self, name: str, pixels: np.ndarray, step: int) -> None:
        self.images.append(pixels)


def test_steps_epochs_and_outcomes_of_runs_that_follow_each_other() -> None:
    kept, model = Kept(every=1, pictures=IMAGES.items[:6]), learner()
    probe = ic.Probe(IMAGES.items, np.arange(40) % 2)
    first = model.fit(IMAGES.items[:30], callbacks=[kept], probe=probe)
    second = model.update(IMAGES.items[30:], callbacks=[kept], probe=probe)
    steps = [step for name, _, step in kept.written if name == "step/loss"]
    assert steps == list(range(1, first.steps + second.steps + 1))
    epochs = [value for name, value, _ in kept.written if name == "epoch/loss"]
    assert epochs == [epoch.loss for epoch in (*first.history, *second.history)]
    after = [value for name, value, _ in kept.written if name == "outcome/loss of new items after"]
    assert after == [first.loss_new.after, second.loss_new.after]
    assert any(name.startswith("outcome/kNN accuracy") for name, _, _ in kept.written)
    last = {name: value for name, value, _ in kept.written if name.startswith("outcome/")}
    assert last["outcome/loss after"] == second.loss.after.all
    assert last["outcome/forward passes"] == second.forward_passes
    assert last["outcome/change ratio before"] == second.change_ratio.before.median
    assert last["outcome/part kept"] == second.kept
    assert [image.shape for image in kept.images] == [(6 * 8, 6 * 8, 1)] * 2
    column = kept.images[0][:, :8, 0].reshape(6, 8, 8)
    assert np.array_equal(column, IMAGES.items[:6]), "each row begins with its item"


def test_a_logger_that_fails_is_left_out(caplog) -> None:
    class Broken(Kept):
        calls = 0

        def scalars(self, values, step: int) -> None:
            self.calls += 1
            raise OSError("the server is down")

    broken = Broken(every=1)
    with caplog.at_level(logging.WARNING):
        outcome = learner().fit(IMAGES.items, callbacks=[broken])
    assert outcome.stopped == "epochs"
    assert broken.calls == 1
    assert "Broken is disabled from now on: the server is down" in caplog.text


def test_pictures_that_cannot_be_embedded_do_not_end_a_run(caplog) -> None:
    kept = Kept(pictures=["nowhere.png"])
    with caplog.at_level(logging.WARNING):
        learner().fit(IMAGES.items, callbacks=[kept])
    assert "Kept is disabled from now on: " in caplog.text
    assert not kept.images


def test_tensorboard_is_read_back(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(tmp_path, every=1, pictures=IMAGES.items[:6])
    outcome = learner().fit(IMAGES.items, callbacks=[board])
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    losses = [event.value for event in events.Scalars("epoch/loss")]
    assert losses == pytest.approx([epoch.loss for epoch in outcome.history])
    assert len(events.Scalars("step/lr")) == outcome.steps
    (picture,) = events.Images("nearest neighbours")
    assert (picture.width, picture.height) == (48, 48)
    (text,) = events.Tensors("outcome/text_summary")
    assert b"stopped by epochs" in text.tensor_proto.string_val[0]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_is_read_back(tmp_path: Path, monkeypatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)  # where it keeps pictures and texts
    place = f"sqlite:///{tmp_path}/runs.db"
    logger = MLflow(place, every=1, pictures=IMAGES.items[:6])
    outcome = learner().fit(IMAGES.items, callbacks=[logger])
    assert not logger.failed
    client = mlflow.MlflowClient(place)
    losses = client.get_metric_history(logger.run_id, "epoch/loss")
    assert [m.value for m in losses] == pytest.approx([epoch.loss for epoch in outcome.history])
    assert [m.step for m in losses] == [epoch.steps for epoch in outcome.history]
    run = client.get_run(logger.run_id)
    assert run.data.metrics["outcome/loss of new items after"] == outcome.loss_new.after
    names = {artifact.path for artifact in client.list_artifacts(logger.run_id)}
    assert names == {f"outcome-{outcome.steps}.txt", f"nearest-neighbours-{outcome.steps}.png"}


def test_weights_and_biases_by_its_documented_calls(monkeypatch) -> None:
    logged: list[tuple[dict, int]] = []
    run = SimpleNamespace(summary={})
    run.log = lambda values, step, commit=False: logged.append((values, step))
    fake = ModuleType("wandb")
    fake.init = lambda project, **more: run if (project, more) == ("p", {"mode": "offline"}) else 0
    fake.Image = lambda pixels: ("image", pixels.shape)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    logger = WandB("p", init={"mode": "offline"}, every=1, pictures=IMAGES.items[:6])
    outcome = learner().fit(IMAGES.items, callbacks=[logger])
    assert not logger.failed
    assert logged[-2] == ({"nearest neighbours": ("image", (48, 48, 1))}, outcome.steps)
    assert logged[-1] == ({}, outcome.steps), "so that the last step does not wait for another"
    assert "stopped by epochs" in run.summary["outcome"]


@pytest.mark.parametrize("rank", [0, 1])
def test_of_many_processes_the_first_one_opens_a_run(rank: int, monkeypatch) -> None:
    opened: list[str] = []
    run = SimpleNamespace(log=lambda values, **when: None, summary={})
    fake = ModuleType("wandb")
    fake.init = lambda project: opened.append(project) or run
    monkeypatch.setitem(sys.modules, "wandb", fake)
    logger = WandB("p", every=1)
    monkeypatch.setattr("incontrast.loggers._first_process", lambda: rank == 0)
    learner().fit(IMAGES.items, callbacks=[logger])
    assert opened == ["p"] * (rank == 0)


def test_a_server_that_is_down_from_the_start_does_not_end_a_run(monkeypatch, caplog) -> None:
    def refused(project: str) -> None:
        raise ConnectionError("no answer")

    fake = ModuleType("wandb")
    fake.init = refused
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with caplog.at_level(logging.WARNING):
        outcome = learner().fit(IMAGES.items, callbacks=[WandB("p", every=1)])
    assert outcome.stopped == "epochs"
    assert caplog.text.count("WandB is disabled from now on: no answer") == 1


@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_offline(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("wandb")
    logger = WandB("p", init={"mode": "offline", "dir": str(tmp_path)}, pictures=IMAGES.items[:6])
    outcome = learner().fit(IMAGES.items, callbacks=[logger])
    assert not logger.failed
    assert logger.run.summary["outcome/loss after"] == pytest.approx(outcome.loss.after.all)
    assert "stopped by epochs" in logger.run.summary["outcome"]
    logger.run.finish()
    assert list(tmp_path.rglob("run-*.wandb"))


def test_names_of_loggers(monkeypatch) -> None:
    for name in ("paper", "tensorboard", "mlflow:"):
        with pytest.raises(ValueError, match="a logger is tensorboard:FOLDER, mlflow:URI or"):
            logger_named(name)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r'pip install "incontrast\[wandb\]"'):
        logger_named("wandb:project")
    with pytest.raises(ValueError, match="every must be at least 1, got 0"):
        Kept(every=0)
