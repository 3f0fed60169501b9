"""Embedding into the space of an earlier version: learners, workspaces, the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize
from typer.testing import CliRunner

import incontrast as ic
from incontrast.cli.app import app
from incontrast.compat import NoAdapter
from incontrast.data import read_source
from incontrast.workspace import Damaged
from incontrast.workspace.embeddings import embed_source


def new_learner() -> ic.Learner:
    return ic.Learner(
        ic.Vectors(8, hidden=16, out=6),
        fit_strategy=ic.Retrain(max_epochs=3),
        strategy=ic.ICL(max_epochs=2),
    )


@pytest.fixture
def workspace(tmp_path: Path, blobs) -> ic.Workspace:
    """Of three versions."""
    created = ic.Workspace.create(tmp_path / "space", new_learner())
    created.fit(blobs(90))
    for seed in (1, 2):
        created.update(blobs(40, seed=seed, shift=0.5), force=True)
    return created


def cosine(first: Tensor, second: Tensor) -> float:
    return float((normalize(first) * normalize(second)).sum(1).mean())


def test_the_space_of_an_encoder_that_stays_is_the_same_however_few_items_there_are(blobs) -> None:
    learner, queries = new_learner(), blobs(50, seed=9)
    learner.fit(blobs(30))
    stored = learner.embed(queries)
    learner.update(blobs(5, seed=1), strategy=ic.NoUpdate())
    assert learner.links[0].to_old.kind == learner.links[0].to_new.kind == "none"
    torch.testing.assert_close(learner.embed(queries, space=1), normalize(stored))


def test_a_learner_embeds_into_the_spaces_of_before(tmp_path: Path, blobs) -> None:
    learner, queries = new_learner(), blobs(50, seed=9)
    learner.fit(blobs(90))
    stored = learner.embed(queries)
    assert learner.links == ()
    learner.update(blobs(40, seed=1, shift=1.0), strategy=ic.Retrain(max_epochs=3))
    plain, mapped = learner.embed(queries), learner.embed(queries, space=1)
    assert cosine(mapped, stored) > cosine(plain, stored) + 0.2  # retrained: another space
    assert torch.equal(learner.embed(queries, space=2), plain)
    assert torch.equal(learner.adapter(target=1)(plain), mapped)
    assert cosine(learner.adapter(source=1)(stored), plain) > cosine(stored, plain) + 0.2
    learner.save(tmp_path / "model")
    assert torch.equal(ic.Learner.load(tmp_path / "model").embed(queries, space=1), mapped)
    learner.update(blobs(20, seed=2), strategy=ic.NoUpdate())
    assert learner.links[0].expected("to_old").recall == 1.0
    assert cosine(learner.embed(queries, space=1), mapped) == pytest.approx(1.0)
    with pytest.raises(NoAdapter, match="no map from the space of version 3 to that of version 7"):
        learner.embed(queries, space=7)
    learner.fit(blobs(90))
    assert learner.links == ()


def test_a_map_costs_a_small_part_of_its_update(blobs, monkeypatch) -> None:
    learner = new_learner()
    learner.fit(blobs(90))
    monkeypatch.setattr("incontrast.call.FEW_PAIRS", 70)
    learner.update(blobs(40, seed=1), budget=ic.Budget(forward_passes=100))
    assert learner.links[0].pairs == 70
    monkeypatch.setattr("incontrast.call.PASSES", 1)
    learner.update(blobs(40, seed=2))
    assert learner.links[0].pairs == 170  # all there are


def test_an_update_of_few_items_succeeds_without_a_map(blobs, caplog) -> None:
    learner = new_learner()
    learner.fit(blobs(30))
    learner.update(blobs(20, seed=1))
    assert "cannot be mapped: a map between versions is fitted on at least 60" in caplog.text
    with pytest.raises(NoAdapter, match="an update fits one if there are 60 items"):
        learner.embed(blobs(5), space=1)


def test_a_workspace_numbers_spaces_by_its_versions(workspace: ic.Workspace, blobs) -> None:
    queries = blobs(50, seed=9)
    stored = workspace.embed(queries, version=1)
    direct = workspace.learner(memory=False)
    assert (direct.space, [link.old for link in direct.links]) == (3, [2, 1])
    assert torch.equal(workspace.embed(queries, space=1), direct.embed(queries, space=1))
    assert len(workspace.adapter(target=1).steps) == 2
    first = workspace.versions.record(1)["encoder"]
    assert workspace.links()[0].encoder == workspace.encoder_hash(1) == first
    assert workspace.stamp(1) == (workspace.id, 1, first)
    # After a rollback the next version has a number that the learner alone would not give it.
    workspace.rollback(1)
    anew = ic.Retrain(max_epochs=2)  # whose space is another for sure
    workspace.update(blobs(40, seed=5, shift=-0.5), strategy=anew, force=True)
    assert workspace.current == 4
    mapped, unmapped = workspace.embed(queries, space=1), workspace.embed(queries)
    assert cosine(mapped, stored) > cosine(unmapped, stored)
    assert len(workspace.adapter(4, 3).steps) == 3  # 4 to 1, 1 to 2, 2 to 3
    with pytest.raises(NoAdapter, match="maps lead to 1, 2, 3, 4"):
        workspace.embed(queries, space=17)


def test_maps_outlive_the_versions_they_lead_to(tmp_path: Path, blobs) -> None:
    workspace = ic.Workspace.create(tmp_path / "space", new_learner(), keep=2)
    workspace.fit(blobs(90))
    first = workspace.encoder_hash(1)
    for seed in (1, 2):
        workspace.update(blobs(40, seed=seed), force=True)
    assert workspace.versions.numbers() == [2, 3]
    assert workspace.embed(blobs(5), space=1).shape == (5, 6)
    assert workspace.encoder_hash(1) == first
    with pytest.raises(ic.WorkspaceError, match="nothing is known of version 9"):
        workspace.encoder_hash(9)


def test_a_damaged_map_is_found(workspace: ic.Workspace, blobs) -> None:
    file = workspace.versions.folder(3) / "links.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(Damaged, match=r"links\.safetensors is damaged"):
        workspace.embed(blobs(5), space=1)
    assert any("links.safetensors is damaged" in problem for problem in workspace.check())


def test_a_file_in_an_old_space_takes_new_items_and_says_so(
    workspace: ic.Workspace, tmp_path: Path, blobs
) -> None:
    for name, seed in (("old", 3), ("new", 4)):
        np.save(tmp_path / f"{name}.npy", blobs(30, seed=seed).numpy())
    old, new = (read_source(tmp_path / f"{name}.npy") for name in ("old", "new"))
    file = tmp_path / "index.npy"
    embed_source(workspace, old, file, version=1)
    with pytest.raises(ic.WorkspaceError, match="the two cannot be mixed") as refused:
        embed_source(workspace, new, file, append=True)
    for way in ("--overwrite", "--space 1", "incontrast reembed index.npy"):
        assert way in str(refused.value)
    done = embed_source(workspace, new, file, append=True, space=1)
    assert (done.version, done.rows, done.added) == (1, 60, 30)
    stamp: dict[str, Any] = json.loads(Path(f"{file}.json").read_text())
    assert (stamp["version"], stamp["encoder"]) == (1, workspace.encoder_hash(1))
    by = [source.get("embedded_by") for source in stamp["sources"]]
    assert by == [None, workspace.encoder_hash(3)]
    expected = workspace.embed(blobs(30, seed=4), space=1)
    assert np.allclose(np.load(file)[30:], expected, atol=1e-5)


def test_the_command_line_embeds_into_a_space(
    workspace: ic.Workspace, tmp_path: Path, blobs
) -> None:
    np.save(tmp_path / "new.npy", blobs(30, seed=4).numpy())
    data, out = str(tmp_path / "new.npy"), str(tmp_path / "mapped.npy")
    where = ["-w", str(workspace.folder)]
    result = CliRunner().invoke(app, ["embed", data, out, "--space", "1", *where])
    assert result.exit_code == 0, result.output
    assert "30 embeddings in the space of version 1" in result.output
    result = CliRunner().invoke(app, ["embed", data, out, "--space", "8", *where])
    assert result.exit_code == 3
    assert "no map from the space of version 3 to that of version 8" in result.output
