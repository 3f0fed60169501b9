"""An exported encoder gives the same embeddings without incontrast."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

import incontrast as ic
from incontrast.cli.app import app


def fitted(rows: torch.Tensor, **more) -> ic.Learner:
    learner = ic.Learner(ic.Vectors(8, **more), fit_strategy=ic.Retrain(max_epochs=1))
    learner.fit(rows)
    return learner


def test_onnx_gives_the_same_embeddings(tmp_path: Path, blobs) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    rows = blobs(120)
    learner = fitted(rows)
    about = ic.export(learner, tmp_path / "encoder.onnx", normalized=True)
    assert about["items"] == 100
    assert about["difference"] < 1e-4
    session = onnxruntime.InferenceSession(str(tmp_path / "encoder.onnx"))
    for count in (1, 7):  # any number of items
        (found,) = session.run(None, {"items": rows[:count].numpy()})
        unit = nn.functional.normalize(learner.embed(rows[:count])).numpy()
        assert np.abs(found - unit).max() < 1e-4


def test_torch_export_and_plain_weights(tmp_path: Path, blobs) -> None:
    rows = blobs(30)
    learner = fitted(rows)
    assert ic.export(learner, tmp_path / "encoder.pt2")["difference"] < 1e-4
    loaded = torch.export.load(tmp_path / "encoder.pt2").module()
    assert torch.allclose(loaded(rows[:3]), learner.embed(rows[:3]), atol=1e-4)
    ic.export(learner, tmp_path / "encoder.safetensors")
    plain = ic.Vectors(8).encoder()
    plain.load_state_dict(load_file(tmp_path / "encoder.safetensors"))
    prepared = learner.domain.prepare(rows)
    assert torch.allclose(plain.eval()(prepared), learner.embed(rows), atol=1e-6)


def test_what_cannot_be_exported_says_so(tmp_path: Path, blobs) -> None:
    class Restless(nn.Module):
        """Its embeddings differ by what it was called with last, which no file has."""

        def __init__(self) -> None:
            super().__init__()
            self.layer, self.calls = nn.Linear(8, 4), 0

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.layer(rows) + self.calls

    learner = fitted(blobs(30), encoder=Restless)
    with pytest.raises(ValueError, match="gives embeddings that are off by"):
        ic.export(learner, tmp_path / "encoder.pt2")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match=r"exported to \.onnx, \.pt2, \.safetensors, got 'x\.pt'"):
        ic.export(learner, tmp_path / "x.pt")
    with pytest.raises(ValueError, match="weights are not normalised"):
        ic.export(learner, tmp_path / "x.safetensors", normalized=True)


def test_a_failed_export_leaves_the_file_of_before(tmp_path: Path, blobs) -> None:
    learner, file = fitted(blobs(30)), tmp_path / "encoder.pt2"
    ic.export(learner, file)
    before = file.read_bytes()
    with torch.no_grad():
        next(learner.backbone.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match="gives embeddings that are off by nan"):
        ic.export(learner, file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_the_command(tmp_path: Path, blobs) -> None:
    learner = ic.Learner(ic.Vectors(8), fit_strategy=ic.Retrain(max_epochs=1))
    ic.Workspace.create(tmp_path / "space", learner).fit(blobs(40), force=True)
    file, space = tmp_path / "encoder.pt2", str(tmp_path / "space")
    shown = CliRunner().invoke(app, ["export", str(file), "-w", space])
    assert shown.exit_code == 0, shown.output
    assert "off on 40 items" in " ".join(shown.output.split())
    assert CliRunner().invoke(app, ["export", "encoder.pkl", "-w", space]).exit_code == 2
