"""Steps run compiled, and everything else as it was. No test waits for a compiler."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import incontrast as ic
from incontrast.saving import describe, rebuild

COMPILE = torch.compile


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Calls of compiled graphs, which run the same operations as the encoder does."""
    calls: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        def run(*values: Any) -> Any:
            calls.append(len(values))
            return graph(*values)

        return run

    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", lambda function: COMPILE(function, backend=backend))
    return calls


class Counting(nn.Sequential):
    """Statistics, dropout, and a buffer that counts forward passes."""

    def __init__(self) -> None:
        layers = [nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2)]
        super().__init__(*layers, nn.Linear(16, 8))
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, rows: Tensor) -> Tensor:
        self.passes += 1.0
        return super().forward(rows)


def learner(**settings: Any) -> ic.Learner:
    return ic.Learner(
        ic.Vectors(8, encoder=Counting),
        strategy=ic.ICL(max_epochs=2, epoch_steps=2),
        fit_strategy=ic.Retrain(max_epochs=2),
        **settings,
    )


@pytest.mark.parametrize("settings", [{}, {"head": "mlp", "micro_batch_size": 20}], ids=str)
def test_a_compiled_learner_is_the_same(blobs, graphs, settings: dict[str, Any]) -> None:
    learners = [learner(compile=on, **settings) for on in (False, True)]
    for each in learners:
        each.fit(blobs(70))
        each.update(blobs(30, seed=1), tolerance=0.5)
    plain, compiled = (each.encoder.state_dict() for each in learners)
    assert graphs
    assert plain.keys() == compiled.keys()
    torch.testing.assert_close(compiled, plain)


def test_only_steps_are_compiled(blobs, graphs) -> None:
    compiled = learner(compile=True)
    outcome = compiled.fit(blobs(70))
    called = len(graphs)
    assert called == outcome.steps + 1  # and what is tried first
    compiled.embed(blobs(70))
    compiled.evaluation_loss(blobs(70))
    assert compiled.forecast(blobs(20, seed=1)) > 0.0
    assert len(graphs) == called


def test_an_interrupted_training_resumes(blobs, graphs, tmp_path) -> None:
    def stop(progress: ic.Progress) -> None:
        if progress.steps == 3:
            raise KeyboardInterrupt

    whole, resumed = learner(compile=True), learner(compile=True)
    whole.fit(blobs(70))
    with pytest.raises(KeyboardInterrupt):
        resumed.fit(blobs(70), callbacks=[stop], checkpoint=tmp_path / "state")
    resumed.fit(blobs(70), checkpoint=tmp_path / "state")
    assert torch.equal(whole.embed(blobs(9)), resumed.embed(blobs(9)))


def test_the_setting_is_saved_and_was_off_before_it_was_known(tmp_path) -> None:
    settings = describe(ic.Learner(ic.Vectors(8), compile=True))
    assert rebuild(settings, tmp_path, ic.Learner).engine.compile
    del settings["compile"]
    assert not rebuild(settings, tmp_path, ic.Learner).engine.compile
    workspace = ic.Workspace.create(tmp_path / "space", ic.Learner(ic.Vectors(8)))
    assert workspace.configure("compile=true") == {"compile": True}
    assert ic.Workspace.open(workspace.folder).template().engine.compile


def test_what_cannot_be_compiled_is_told_and_changes_nothing(
    blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(function: Any) -> Any:
        def run(*values: Tensor) -> Tensor:
            raise OSError("no working C++ compiler\nand more")

        return run

    monkeypatch.setattr(torch, "compile", missing)
    compiled = learner(compile=True)
    with pytest.raises(RuntimeError, match=r"for 'cpu' here \(no working C\+\+ compiler\)\. Inst"):
        compiled.fit(blobs(70))
    assert not compiled.fitted
    with pytest.raises(TypeError, match="compile must be True or False, got 'yes'"):
        learner(compile="yes")
