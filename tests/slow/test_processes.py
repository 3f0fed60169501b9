"""Groups of two and of four processes, the command line under torchrun, and what kills do."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from incontrast.workspace import Workspace

pytestmark = pytest.mark.slow
pytest.importorskip("lightning_fabric")

sys.path.insert(0, str(Path(__file__).parents[1] / "distributed"))
from conftest import launch  # noqa: E402

KINDS = ("vectors", "images", "graphs")
STEPS = ("NCE-I", "ICL, retention 0", "ICL, retention 1", "meta, order 1", "meta, order 2")


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-10), ("float32", 1e-5)])
def test_steps_are_those_of_one_process(
    tmp_path: Path, processes: int, precision: str, tolerance: float
) -> None:
    cases = [f"equal:{kind}:{step}:{precision}" for kind in KINDS for step in STEPS]
    ended = launch(tmp_path, cases, processes)
    assert set(ended.codes) == {0}, "\n".join(ended.outputs)
    for case in cases:
        found = ended.results[0][case]
        print(case, processes, found)  # noqa: T201
        assert found.pop("passes") == 0, case
        assert max(found.values()) < tolerance, (case, found)


def test_a_silent_process_counts_as_lost_after_the_time_out(tmp_path: Path) -> None:
    ended = launch(tmp_path, ["lost:sleep"], INCONTRAST_TIMEOUT="2")
    found = ended.results[0]["lost:sleep"]
    assert "was slower than the time-out" in found["message"]
    assert found["seconds"] < 8  # the other one sleeps for 9
    assert found["unchanged"]


def test_embedding_goes_on_after_a_process_was_lost(tmp_path: Path) -> None:
    lost = launch(tmp_path, ["embedding:killed"], 4)
    assert lost.codes[1] == -signal.SIGKILL
    assert "lost contact with the others" in lost.results[0]["embedding:killed"]["message"]
    (shards,) = tmp_path.glob(".all.npy.*")
    made = {file.name: file.stat().st_mtime_ns for file in shards.glob("*.npy")}
    assert 8 < len(made) < 157
    ended = launch(tmp_path, ["embedding:whole"], 4)
    assert set(ended.codes) == {0}, "\n".join(ended.outputs)
    assert ended.results[0]["embedding:whole"] == {"rows": 10007, "equal": True, "names": True}
    assert not shards.exists()


# The command line ------------------------------------------------------------------------------


def run(*arguments: str, processes: int = 1, **settings: Any) -> subprocess.Popen[str]:
    """A command in so many processes of one torchrun."""
    start = [sys.executable, "-m"]
    if processes > 1:
        start += ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
    return command([*start, "incontrast", *arguments], **settings)


def command(arguments: list[str], **settings: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        arguments,
        env={**os.environ, "OMP_NUM_THREADS": "1", **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def done(process: subprocess.Popen[str]) -> str:
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 0, output
    return output


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace after its first fit by two processes, and data beside it."""
    folder = tmp_path_factory.mktemp("command")
    draws = np.random.default_rng(0)
    for name, count, shift in (("old", 400, 0.0), ("new", 100, 1.0), ("all", 10007, 0.0)):
        rows = draws.normal(size=(count, 6)) + shift
        np.save(folder / f"{name}.npy", rows.astype(np.float32))
    space = str(folder / "space")
    done(run("init", space, "--like", str(folder / "old.npy"), "--fit-epochs=5", "--epochs=150"))
    done(run("fit", str(folder / "old.npy"), "-w", space, processes=2))
    return folder


def weights(space: Path) -> dict[str, str]:
    """The hashes of the second version's files that training alone decides."""
    manifest = json.loads((space / "versions" / "000002" / "manifest.json").read_text())
    return {name: value for name, value in manifest["files"].items() if "safetensors" in name}


@pytest.fixture(scope="module")
def undisturbed(fitted: Path) -> Path:
    """The workspace after an update by two processes that nothing has happened to."""
    space = fitted / "undisturbed"
    shutil.copytree(fitted / "space", space)
    output = done(run("update", str(fitted / "new.npy"), "-w", str(space), processes=2))
    assert output.count("Version 2 is the current one.") == 1
    return space


def workers(agent: int) -> dict[int, int]:
    """The processes that an agent of torchrun has started, by rank."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                variables = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            ranks = [value[5:] for value in variables if value.startswith(b"RANK=")]
            if parent == agent and ranks:
                found[int(ranks[0])] = int(entry.name)
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    raise TimeoutError


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_leaves_the_workspace_whole(
    fitted: Path, undisturbed: Path, victim: int, tmp_path: Path
) -> None:
    space = tmp_path / "space"
    shutil.copytree(fitted / "space", space)
    process = run("update", str(fitted / "new.npy"), "-w", str(space), processes=2)
    journal = Workspace.open(space).journal
    wait_for(lambda: [event["step"] for event in journal.events()].count("ingest") == 2)
    time.sleep(1.0)
    os.kill(workers(process.pid)[victim], signal.SIGKILL)
    killed = time.monotonic()
    output = process.communicate(timeout=120)[0]
    assert process.returncode != 0
    assert time.monotonic() - killed < 100
    other = 1 - victim
    assert f"incontrast: process {other} of 2" in output
    assert "look for the first error, then run it again" in output
    assert Workspace.open(space).check() == []
    assert Workspace.open(space).current == 1
    output = done(run("update", "-w", str(space), processes=2))
    assert "Version 2 is the current one." in output
    assert weights(space) == weights(undisturbed)
    steps = [event["step"] for event in journal.events()]
    assert steps.count("ingest") == 2  # the fit's and the update's: it was not done again


def test_two_hosts_run_one_update(fitted: Path, undisturbed: Path, tmp_path: Path) -> None:
    space = tmp_path / "space"
    shutil.copytree(fitted / "space", space)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    agents = [
        command(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2"),
                *("--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=test"),
                *(f"--rdzv-endpoint=127.0.0.1:{port}", "-m", "incontrast", "update"),
                *(str(fitted / "new.npy"), "-w", str(space)),
            ]
        )
        for _ in range(2)
    ]
    outputs = [done(agent) for agent in agents]
    assert sum("Version 2 is the current one." in output for output in outputs) == 1
    assert weights(space) == weights(undisturbed)


def test_embeddings_of_four_processes_are_those_of_one(undisturbed: Path, fitted: Path) -> None:
    data, space = str(fitted / "all.npy"), str(undisturbed)
    done(run("embed", data, str(fitted / "one.npy"), "-w", space))
    done(run("embed", data, str(fitted / "four.npy"), "-w", space, processes=4))
    assert np.array_equal(np.load(fitted / "one.npy"), np.load(fitted / "four.npy"))
    one, four = (fitted / f"{name}.ids.jsonl" for name in ("one", "four"))
    assert one.read_text() == four.read_text()
    assert len(np.load(fitted / "four.npy")) == 10007


def test_other_commands_are_for_one_process(undisturbed: Path) -> None:
    process = run("rollback", "-w", str(undisturbed), processes=2)
    output = process.communicate(timeout=300)[0]
    assert process.returncode != 0
    assert output.count("incontrast: rollback is for one process: leave torchrun away") == 1
    assert Workspace.open(undisturbed).current == 2


def test_data_that_only_the_first_process_misses(fitted: Path) -> None:
    process = run("update", str(fitted / "missing.npy"), "-w", str(fitted / "space"), processes=2)
    output = process.communicate(timeout=300)[0]
    assert process.returncode != 0
    assert output.count("incontrast: ") == 1
    assert "missing.npy does not exist" in output
