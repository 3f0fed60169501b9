"""Kills updates of a workspace, resumes them, and compares what comes of it; prints JSON.

    python killing.py FOLDER points        at every point at which something is written
    python killing.py FOLDER forget        likewise, while items are forgotten
    python killing.py FOLDER random 100    at random moments, 100 times

A program of its own: every update runs in a fork of it, so that torch is imported once.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from incontrast import ICL, Learner, Reservoir, Retrain, Vectors, Workspace
from incontrast.memory import Store
from incontrast.workspace.files import Journal

torch.set_num_threads(1)

EPOCHS = int(os.environ.get("EPOCHS", "1"))


def rows(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))


def make(folder: Path) -> Workspace:
    """A workspace that was rolled back and updated since, full: the next update also deletes."""
    learner = Learner(
        Vectors(8, hidden=16, out=8),
        fit_strategy=Retrain(max_epochs=1),
        strategy=ICL(max_epochs=EPOCHS),
        memory=Reservoir(items=30),
    )
    workspace = Workspace.create(folder, learner, keep=2)
    workspace.fit(rows(40, 0), force=True)
    workspace.update(rows(15, 9), force=True)
    workspace.rollback()
    workspace.update(rows(20, 1), force=True)
    return workspace


def update(folder: Path) -> None:
    Workspace.open(folder).update(rows(20, 2), force=True)


def in_fork(work: Callable[[], None]) -> int:
    """The process that does it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def ended(child: int) -> int:
    """How it ended: 0 is well, -9 is killed."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def bits(folder: Path) -> dict[str, Any]:
    """Everything that must be the same, however often an update was interrupted."""
    workspace = Workspace.open(folder)
    current = workspace.current
    assert current is not None
    version = workspace.versions.folder(current)
    store = Store.open(workspace.store_file, readonly=True)
    keys, sizes, states = store.columns(workspace.extent(current).arrivals)
    there = (states == 1).nonzero()[0].tolist()
    return {
        "version": current,
        "versions": workspace.versions.numbers(),
        "weights": (version / "encoder.safetensors").read_bytes().hex(),
        "learner": (version / "learner.json").read_text(),
        "keys": keys.tolist(),
        "sizes": sizes.tolist(),
        "there": there,
        "items": [content.hex() for content in store.read(there)],
        "phase": workspace.state().phase,
    }


def at_point(number: int) -> None:
    """Make this process kill itself before the n-th write."""
    count = 0

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return run

    os.fsync = watched(os.fsync)
    shutil.rmtree = watched(shutil.rmtree)
    for owner, names in (
        (Path, ("rename", "replace", "mkdir")),
        (Store, ("append", "drop_from", "remove", "fold")),
        (Journal, ("add",)),
    ):
        for name in names:
            setattr(owner, name, watched(getattr(owner, name)))


def fresh(folder: Path, name: str) -> Path:
    target = folder / name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder / "start", target)
    return target


def compare(folder: Path, expected: dict[str, Any], report: dict[str, Any], about: str) -> None:
    """After a kill: is the workspace consistent, and does the update end as it should?"""
    workspace = Workspace.open(folder)
    damage = workspace.check()
    serving = workspace.current in (3, 4) and len(workspace.learner().memory) == 30
    if damage or not serving:
        report["inconsistent"].append([about, damage])
        return
    if ended(in_fork(lambda: update(folder))) != 0 or bits(folder) != expected:
        report["different"].append(about)
    steps = [event["step"] for event in Workspace.open(folder).journal.events()]
    report["promotions"].append(steps.count("promote"))


def kill_everywhere(
    folder: Path,
    work: Callable[[Path], object],
    look: Callable[[Path, str], None],
) -> int:
    """Kill it before every write, on a fresh workspace each time; returns how often."""
    number = 0
    while True:
        number += 1
        target = fresh(folder, "killed")

        def killed(point: int = number, place: Path = target) -> None:
            at_point(point)
            work(place)

        if ended(in_fork(killed)) == 0:
            return number - 1
        look(target, f"point {number}")


def forgotten(folder: Path, item: int, secret: bytes, report: dict[str, Any], about: str) -> None:
    """After a kill while an item was forgotten: is all well, and is it gone once it is done?"""
    workspace = Workspace.open(folder)
    if workspace.check() or workspace.current != 3:
        report["inconsistent"].append([about, workspace.check()])
    workspace.forget([item])
    left = [
        path.name for path in folder.rglob("*") if path.is_file() and secret in path.read_bytes()
    ]
    if left or item in workspace.learner().memory.ids.tolist():
        report["different"].append([about, left])


def main() -> None:
    folder, how = Path(sys.argv[1]), sys.argv[2]
    make(folder / "start")
    whole = fresh(folder, "whole")
    begin = time.perf_counter()
    assert ended(in_fork(lambda: update(whole))) == 0
    seconds = time.perf_counter() - begin
    expected = bits(whole)
    report: dict[str, Any] = {"kills": 0, "inconsistent": [], "different": [], "promotions": []}
    if how == "points":
        report["kills"] = kill_everywhere(
            folder, update, lambda place, about: compare(place, expected, report, about)
        )
    elif how == "forget":
        item = max(Workspace.open(folder / "start").learner().memory.ids.tolist())
        secret = rows(20, 1)[item - 55].numpy().tobytes()  # of the second data
        assert secret in (folder / "start" / "memory.sqlite").read_bytes()
        report["kills"] = kill_everywhere(
            folder,
            lambda place: Workspace.open(place).forget([item]),
            lambda place, about: forgotten(place, item, secret, report, about),
        )
    else:
        draws = random.Random(0)
        while report["kills"] < int(sys.argv[3]):
            target = fresh(folder, "killed")
            # Some updates are killed again after they are resumed.
            for _ in range(draws.choice([1, 1, 2, 3])):
                child = in_fork(lambda place=target: update(place))
                time.sleep(draws.uniform(0.0, 1.1 * seconds))
                os.kill(child, signal.SIGKILL)
                if ended(child) == -signal.SIGKILL:
                    report["kills"] += 1
            compare(target, expected, report, f"kill {report['kills']}")
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main()
