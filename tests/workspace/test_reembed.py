"""Stored vectors brought into a new space: in order, resumable, and never mixed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize
from typer.testing import CliRunner

import incontrast as ic
from incontrast.cli.app import app
from incontrast.compat.plan import make_plan
from incontrast.compat.quality import hits
from incontrast.data import read_source
from incontrast.workspace.embeddings import embed_source
from incontrast.workspace.files import read_json, write_json
from incontrast.workspace.reembed import reembed
from incontrast.workspace.stamps import stamp_of

ROWS = 700


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SAMPLED", 0.3), ("SAMPLE", 200), ("BATCH_SIZE", 64)):
        monkeypatch.setattr(f"incontrast.workspace.reembed.{name}", value)
    monkeypatch.setattr("incontrast.workspace.shards.ROWS", 128)


@pytest.fixture
def workspace(tmp_path: Path, blobs) -> ic.Workspace:
    learner = ic.Learner(
        ic.Vectors(8, hidden=16, out=6),
        fit_strategy=ic.Retrain(max_epochs=2),
        strategy=ic.Retrain(max_epochs=2),
    )
    created = ic.Workspace.create(tmp_path / "space", learner)
    created.fit(blobs(90))
    return created


@pytest.fixture
def file(workspace: ic.Workspace, tmp_path: Path, blobs) -> Path:
    """Vectors of two sources by version 1, when there is a version 2."""
    for name, rows in (("a", 500), ("b", 200)):
        np.save(tmp_path / f"{name}.npy", blobs(rows, seed=ord(name)).numpy())
    stored = tmp_path / "index.npy"
    embed_source(workspace, read_source(tmp_path / "a.npy"), stored)
    embed_source(workspace, read_source(tmp_path / "b.npy"), stored, append=True)
    workspace.update(blobs(30, seed=1), force=True)
    return stored


def exact(workspace: ic.Workspace, tmp_path: Path) -> np.ndarray:
    items = np.concatenate([np.load(tmp_path / f"{name}.npy") for name in "ab"])
    return normalize(workspace.embed(items)).numpy()


def matches(file: Path, wanted: np.ndarray) -> np.ndarray:
    """Which rows are as the encoder embeds them."""
    return np.abs(np.load(file) - wanted).max(1) < 1e-5


def test_a_part_is_re_embedded_and_the_rest_mapped(
    workspace: ic.Workspace, file: Path, tmp_path: Path
) -> None:
    wanted, before = exact(workspace, tmp_path), np.load(file)
    planned = reembed(workspace, file, plan=True)
    assert np.array_equal(np.load(file), before)  # a plan changes nothing
    assert [each.share for each in planned.expected] == [0.0, 0.01, 0.05, 0.1, 0.25, 1.0]
    assert planned.expected[-1].recall == planned.expected[-1].precision == 1.0
    assert planned.expected[0].recall < planned.expected[4].recall
    done = reembed(workspace, file, share=0.4)
    assert (done.version, done.rows, done.exact) == (2, ROWS, 280)
    right = matches(file, wanted)
    assert right.sum() >= 280
    rows = np.load(file)
    assert (rows * wanted).sum(1).mean() > 0.9  # mapped
    assert (normalize(torch.from_numpy(before)).numpy() * wanted).sum(1).mean() < 0.6  # it is not 1
    stamp = stamp_of(file)
    assert stamp is not None
    assert (stamp["version"], stamp["encoder"]) == (2, workspace.encoder_hash(2))
    assert stamp["mapped"] == {
        "version": 1,
        "encoder": workspace.encoder_hash(1),
        "rows": ROWS - 280,
    }
    left = np.load(file.with_name("index.npy.order.npy"))
    assert right[np.setdiff1d(np.arange(ROWS), left)].all()
    np.save(tmp_path / "c.npy", np.zeros((3, 8), np.float32))
    more = read_source(tmp_path / "c.npy")
    with pytest.raises(ic.WorkspaceError, match="in part mapped from version 1"):
        embed_source(workspace, more, file, append=True, normalized=True)
    assert reembed(workspace, file, share=0.5).exact == 350
    assert matches(file, wanted).sum() >= 350
    assert reembed(workspace, file, share=0.3).exact == 350  # there is nothing to do
    assert reembed(workspace, file).exact == ROWS
    assert matches(file, wanted).all()
    assert "mapped" not in (stamp_of(file) or {})
    assert not file.with_name("index.npy.order.npy").exists()
    assert workspace.check() == []


def torn_apart(count: int = 900) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Vectors before and after one half of their space was torn apart, and which are in it."""
    before = normalize(torch.randn(count, 6, generator=torch.Generator().manual_seed(0)))
    noise = torch.randn(count, 6, generator=torch.Generator().manual_seed(1))
    half = before[:, 0] > 0
    return before, normalize(before + 0.6 * noise * half[:, None]), half


def test_what_the_map_misses_most_comes_first() -> None:
    before, torn, half = torn_apart()
    plan = make_plan(before, torn, old=1, new=2, seed=0)
    assert half[plan.spread(before).argsort(descending=True)[:300]].float().mean() > 0.9
    mapped = plan.link.to_new(before)
    first = plan.values(lambda: iter([(before, mapped)])).argsort(descending=True)
    assert half[first[:100]].float().mean() > 0.9
    recalls = [each.recall for each in plan.expected]
    assert recalls == sorted(recalls)


def test_a_sample_says_what_to_expect_of_all_that_is_stored() -> None:
    """In a larger index neighbours are closer, and more of them change places."""
    draws = torch.Generator().manual_seed(0)
    before = normalize(torch.randn(12000, 8, generator=draws))
    after = normalize(before + 0.05 * torch.randn(12000, 8, generator=draws))
    sample = slice(0, 600)
    plans = [
        make_plan(before[sample], after[sample], old=1, new=2, seed=0, stored=stored)
        for stored in (None, 12000)
    ]
    mapped, asked = plans[0].link.to_new(before), after[:500]
    found = (asked @ normalize(mapped).T)[:, 500:].topk(10).indices
    wanted = (asked @ after.T)[:, 500:].topk(50).indices
    recall, precision = (each.mean().item() for each in hits(found, wanted))
    alone, scaled = (plan.expected[0] for plan in plans)
    assert abs(scaled.recall - recall) < 0.06 < alone.recall - recall
    assert abs(scaled.precision - precision) < 0.06
    assert plans[1].expected[-1].recall == 1


def test_what_most_searches_change_with_comes_first() -> None:
    """All queries are in one corner: what is re-embedded for them is better than as much else."""
    draws = torch.Generator().manual_seed(0)
    before = normalize(torch.randn(1800, 8, generator=draws))
    torn = normalize(before + 0.1 * torch.randn(1800, 8, generator=draws))
    queries = torn[torn[:, 1] > 0.5]
    sample, index = slice(0, 900), slice(900, 1800)
    recalls = {}
    for known, asked in (("none", None), ("these", queries[::2])):
        plan = make_plan(before[sample], torn[sample], old=1, new=2, seed=0, queries=asked)
        mapped = plan.link.to_new(before[index])
        # In chunks of any size.
        chunks = list(zip(before[index].split(70), mapped.split(70), strict=True))
        values = plan.values(partial(iter, chunks))
        whole = plan.values(lambda mapped=mapped: iter([(before[index], mapped)]))
        torch.testing.assert_close(values, whole)
        mixed, first = mapped.clone(), values.argsort(descending=True)[:90]
        mixed[first] = torn[index][first]
        ranked = (queries[1::2] @ torn[index].T).topk(50, dim=1).indices
        found = (queries[1::2] @ mixed.T).topk(10, dim=1).indices
        recalls[known] = hits(found, ranked)[0].mean().item()
    assert recalls["these"] > recalls["none"] + 0.03


def test_what_embed_has_mapped_is_re_embedded_before_anything_is_mapped_again(
    workspace: ic.Workspace, file: Path, tmp_path: Path, blobs
) -> None:
    np.save(tmp_path / "c.npy", blobs(60, seed=3).numpy())
    more = read_source(tmp_path / "c.npy")
    embed_source(workspace, more, file, append=True, space=1)
    reembed(workspace, file, share=320 / 760)  # the sample of 200 rows, then those and some more
    wanted = normalize(workspace.embed(np.load(tmp_path / "c.npy"))).numpy()
    assert np.abs(np.load(file)[700:] - wanted).max() < 1e-5


def test_what_an_earlier_release_has_begun_starts_over(
    workspace: ic.Workspace, file: Path, tmp_path: Path
) -> None:
    """It kept rows in other files, and did not count them."""
    reembed(workspace, file, plan=True)
    manifest = tmp_path / ".index.npy.reembed" / "manifest.json"
    write_json(manifest, {"of": read_json(manifest)["of"]})
    assert reembed(workspace, file).exact == ROWS
    assert matches(file, exact(workspace, tmp_path)).all()


def test_parquet_too(workspace: ic.Workspace, file: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    other = tmp_path / "index.parquet"
    embed_source(workspace, read_source(tmp_path / "a.npy"), other, version=1)
    names = parquet.read_table(other).column("id").to_pylist()
    assert reembed(workspace, other, share=0.5).exact == 250
    table = parquet.read_table(other)
    assert table.column("id").to_pylist() == names
    rows = np.stack(table.column("embedding").to_numpy())
    assert (np.abs(rows - exact(workspace, tmp_path)[:500]).max(1) < 1e-5).sum() >= 250
    assert json.loads(table.schema.metadata[b"incontrast"])["version"] == 2


def test_another_version_starts_over(workspace: ic.Workspace, file: Path, tmp_path, blobs) -> None:
    reembed(workspace, file, plan=True)  # with version 2, which is superseded before it is used
    workspace.update(blobs(30, seed=2), force=True)
    done = reembed(workspace, file, share=0.5)
    assert done.version == 3
    assert matches(file, exact(workspace, tmp_path)).sum() >= 350


def test_what_embed_has_mapped_is_not_exact(
    workspace: ic.Workspace, file: Path, tmp_path: Path
) -> None:
    wanted, (a, b) = exact(workspace, tmp_path), (tmp_path / "a.npy", tmp_path / "b.npy")
    embed_source(workspace, read_source(a), file, overwrite=True, normalized=True)
    more = {"version": 1, "space": 2, "append": True, "normalized": True}
    embed_source(workspace, read_source(b), file, **more)
    assert reembed(workspace, file, plan=True).exact == 500
    assert reembed(workspace, file, share=0.8).exact == 560
    right = matches(file, wanted)
    assert right[:500].all()
    assert right.sum() >= 560
    stamp = stamp_of(file) or {}
    assert stamp["mapped"] == {"version": 1, "encoder": workspace.encoder_hash(1), "rows": 140}
    assert reembed(workspace, file).exact == ROWS
    assert matches(file, wanted).all()
    assert reembed(workspace, file).exact == ROWS
    assert "mapped" not in (stamp_of(file) or {})


class Killed(Exception):
    pass


@pytest.fixture
def killed_before_the_move(monkeypatch: pytest.MonkeyPatch):
    """Interrupts a call when its export waits to be moved into place."""

    def kill(call) -> None:
        def stop(file: Path) -> None:
            if any(file.parent.glob(f".{file.name}.*/{file.name}")):
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr("incontrast.workspace.shards.finish_exports", stop)
            with pytest.raises(Killed):
                call()

    return kill


def test_an_export_never_replaces_a_file_that_it_was_not_made_of(
    workspace: ic.Workspace, file: Path, tmp_path: Path, killed_before_the_move
) -> None:
    killed_before_the_move(lambda: reembed(workspace, file))
    waiting = tmp_path / ".index.npy.reembed"
    copy = shutil.copytree(waiting, tmp_path / "copy")
    other = read_source(tmp_path / "b.npy")
    embed_source(workspace, other, file, normalized=True, overwrite=True)
    assert not waiting.exists()  # it was finished before it was overwritten
    copy.rename(waiting)  # as if it had been overwritten by somebody who does not know of it
    assert reembed(workspace, file).rows == 200
    assert np.allclose(np.load(file), exact(workspace, tmp_path)[500:], atol=1e-5)
    assert not waiting.exists()


def test_re_embedding_first_finishes_what_embed_began(
    workspace: ic.Workspace, file: Path, tmp_path: Path, killed_before_the_move
) -> None:
    other = read_source(tmp_path / "b.npy")
    killed_before_the_move(lambda: embed_source(workspace, other, file, version=1, overwrite=True))
    assert reembed(workspace, file).rows == 200
    assert np.allclose(np.load(file), exact(workspace, tmp_path)[500:], atol=1e-5)
    assert not list(tmp_path.glob(".index*"))


def test_what_cannot_be_mapped_is_refused(
    workspace: ic.Workspace, file: Path, tmp_path: Path, blobs
) -> None:
    with pytest.raises(ic.WorkspaceError, match="was not written by embed"):
        reembed(workspace, tmp_path / "a.npy")
    with pytest.raises(ValueError, match=r"\.npy or \.parquet"):
        reembed(workspace, tmp_path / "folder")
    other = ic.Workspace.create(tmp_path / "other", workspace.template())
    other.fit(blobs(90))
    with pytest.raises(ic.WorkspaceError, match="of another workspace, which cannot be mixed"):
        reembed(other, file)
    record = workspace.versions.folder(1) / "version.json"
    text = record.read_text()
    np.save(tmp_path / "a.npy", blobs(500, seed=5).numpy())
    with pytest.raises(ic.WorkspaceError, match="has changed since"):
        reembed(workspace, file)
    assert record.read_text() == text


@pytest.mark.parametrize(("rows", "sample"), [(1, 1), (50, 50), (200, 200), (201, 200), (300, 200)])
def test_of_few_vectors_enough_are_sampled_to_tell(
    workspace: ic.Workspace, file: Path, tmp_path: Path, blobs, rows: int, sample: int
) -> None:
    few = tmp_path / "few.npy"
    np.save(tmp_path / "rows.npy", blobs(rows).numpy())
    embed_source(workspace, read_source(tmp_path / "rows.npy"), few, version=1)
    before = np.load(few)
    shown = CliRunner().invoke(app, ["reembed", str(few), "--plan", "-w", str(workspace.folder)])
    assert shown.exit_code == 0, shown.output
    assert np.array_equal(np.load(few), before)
    said = f"{rows} rows are few" if rows == sample else "your index: with the map"
    assert said in shown.output
    assert "Too few" not in shown.output
    done = reembed(workspace, few, share=0.1)
    assert (done.exact, done.sample) == (sample, sample)
    wanted = normalize(workspace.embed(tmp_path / "rows.npy")).numpy()
    assert matches(few, wanted).sum() >= sample
    assert workspace.check() == []


def test_the_command_line_plans_and_does_it(workspace: ic.Workspace, file: Path) -> None:
    where = ["-w", str(workspace.folder)]
    shown = CliRunner().invoke(app, ["reembed", str(file), "--plan", *where])
    assert shown.exit_code == 0, shown.output
    assert "10% re-embedded: recall@10" in shown.output
    assert "your index: with the map, " in shown.output
    done = CliRunner().invoke(app, ["reembed", str(file), "--share", "50%", "--json", *where])
    assert json.loads(done.stdout)["exact"] == 350
    assert "350 vectors mapped" in CliRunner().invoke(app, ["status", *where]).output
    done = CliRunner().invoke(app, ["reembed", str(file), *where])
    assert "700 of 700" in done.output
    for share in ("ten", "101%"):
        assert CliRunner().invoke(app, ["reembed", str(file), "--share", share]).exit_code == 2


CHILD = """
import sys, time
from pathlib import Path
import incontrast.workspace.reembed as module
import incontrast.workspace.shards as shards
from incontrast import Workspace
module.SAMPLED, module.SAMPLE, module.BATCH_SIZE, shards.ROWS = 0.3, 200, 16, 64
write = module.write_json
def slow(path, content):
    write(path, content)
    print(path.name, flush=True)
    time.sleep(0.02)
module.write_json = slow
module.reembed(Workspace.open(sys.argv[1]), Path(sys.argv[2]), share=0.8)
"""


@pytest.mark.slow
def test_kills_at_any_moment_mix_nothing(
    workspace: ic.Workspace, file: Path, tmp_path: Path
) -> None:
    wanted, before = exact(workspace, tmp_path), np.load(file)
    arguments = [sys.executable, "-c", CHILD, str(workspace.folder), str(file)]
    for kill in range(20):
        child = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        for _ in range(1 + 2 * kill):
            if not child.stdout.readline():
                break
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        whole = stamp_of(file)
        assert whole is not None
        if whole["version"] == 1:
            assert np.array_equal(np.load(file), before)
    assert subprocess.run(arguments, stdout=subprocess.DEVNULL).returncode == 0
    assert matches(file, wanted).sum() >= 0.8 * ROWS
    assert (np.load(file) * wanted).sum(1).min() > 0.0
    assert workspace.check() == []
