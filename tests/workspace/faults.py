"""Does to workspaces what bad luck does, and compares what comes of it; prints JSON.

    python faults.py FOLDER kill COMMAND    killed before every write, then run again
    python faults.py FOLDER full COMMAND    a disk that is full at every write, then run again
    python faults.py FOLDER random 100      updates killed at random moments, 100 times
    python faults.py FOLDER damage 1000     a file damaged, 1000 times, then read, checked, updated
    python faults.py FOLDER races 100       two processes at once, 100 times

COMMAND is one of those in ``COMMANDS``. A program of its own: everything runs in forks of it, so
that torch is imported once.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from incontrast import ICL, Learner, Replay, Reservoir, Retrain, Vectors, Workspace, WorkspaceError
from incontrast.data import read_source
from incontrast.memory import Store, StoreError, StoreUnwritable
from incontrast.workspace import evaluation
from incontrast.workspace.embeddings import embed_source
from incontrast.workspace.files import Journal
from incontrast.workspace.state import StateMachine

torch.set_num_threads(1)

EPOCHS = int(os.environ.get("EPOCHS", "1"))
SECRET = 74  # an item of the second data, which is forgotten
PATIENCE = 60  # seconds that a child may take

Report = dict[str, Any]


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
    np.save(folder.parent / "rows.npy", rows(30, 5).numpy())
    return workspace


def refuse(folder: Path) -> None:
    """Leave a candidate behind that failed a check."""
    usual = evaluation.failed_checks
    evaluation.failed_checks = lambda **_: ["it is Monday"]
    assert not Workspace.open(folder).update(rows(10, 7)).promoted
    evaluation.failed_checks = usual


def embed(folder: Path) -> None:
    target = folder.with_name(f"{folder.name}.npy")
    embed_source(Workspace.open(folder), read_source(folder.parent / "rows.npy"), target)


def update(folder: Path) -> None:
    Workspace.open(folder).update(rows(20, 2), force=True)


def retry(folder: Path) -> None:
    """Train once more on what was refused, with another strategy."""
    Workspace.open(folder).update(rows(10, 7), strategy=Replay(max_epochs=EPOCHS), force=True)


def forget(folder: Path) -> None:
    Workspace.open(folder).forget([SECRET])


COMMANDS: dict[str, tuple[Callable[[Path], object] | None, Callable[[Path], object]]] = {
    "update": (None, update),
    "join": (refuse, update),
    "discard": (refuse, lambda folder: Workspace.open(folder).discard()),
    "rollback": (None, lambda folder: Workspace.open(folder).rollback()),
    "retry": (refuse, retry),
    "forget": (None, forget),
    "forget_refused": (refuse, forget),
    "embed": (None, embed),
}


# Children ----------------------------------------------------------------------------------------


def in_fork(work: Callable[[], object]) -> int:
    """The process that does it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(PATIENCE)
            work()
            code = 0
        except (WorkspaceError, StoreError, OSError, ValueError):  # which the commands explain
            code = 2
        finally:
            os._exit(code)
    return child


def ended(child: int) -> int:
    """How it ended: 0 is well, 2 with an error that is explained, below 0 by a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def at_write(number: int, happen: Callable[[type | None], None]) -> None:
    """Let something happen before the n-th write of this process."""
    count = 0

    def watched(function: Callable[..., Any], owner: type | None = None) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                happen(owner)
            return function(*arguments, **options)

        return run

    os.fsync = watched(os.fsync)
    shutil.rmtree = watched(shutil.rmtree)
    for owner, names in (
        (Path, ("rename", "replace", "mkdir")),
        (Store, ("append", "drop_from", "remove", "compact", "fold")),
        (Journal, ("add",)),
        (StateMachine, ("move",)),
    ):
        for name in names:
            setattr(owner, name, watched(getattr(owner, name), owner))


def killed(owner: type | None) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def full(owner: type | None) -> None:
    if owner is Store:
        raise StoreUnwritable("no space left")
    raise OSError(errno.ENOSPC, "No space left on device")


# What must hold ----------------------------------------------------------------------------------


def bits(folder: Path) -> dict[str, Any]:
    """Everything that must be the same, however often a command was interrupted."""
    workspace = Workspace.open(folder)
    current = workspace.current
    assert current is not None
    version = workspace.versions.folder(current)
    store = Store.open(workspace.store_file, readonly=True)
    keys, sizes, states = store.columns(workspace.extent(current).arrivals)
    there = (states == 1).nonzero()[0].tolist()
    embeddings = folder.with_name(f"{folder.name}.npy")
    return {
        "version": current,
        "versions": workspace.versions.numbers(),
        "weights": (version / "encoder.safetensors").read_bytes().hex(),
        "learner": (version / "learner.json").read_text(),
        "keys": keys.tolist(),
        "sizes": sizes.tolist(),
        "there": there,
        "items": [content.hex() for content in store.read(there)],
        "state": (workspace.state().phase, workspace.state().memory),
        "embeddings": embeddings.read_bytes().hex() if embeddings.exists() else None,
    }


def fresh(folder: Path, name: str, start: str = "start") -> Path:
    target = folder / name
    shutil.rmtree(target, ignore_errors=True)
    for path in (*folder.glob(f"{name}.*"), *folder.glob(f".{name}.*")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(folder / start, target)
    return target


def compare(
    folder: Path, work: Callable[[Path], object], expected: dict[str, Any], report: Report, at: str
) -> None:
    """After a fault: is the workspace consistent, and does the command end as it should?"""
    workspace = Workspace.open(folder)
    damage = workspace.check()
    if damage or len(workspace.learner().memory) < 29:
        report["inconsistent"].append([at, damage])
        return
    if ended(in_fork(lambda: work(folder))) != 0 or bits(folder) != expected:
        report["different"].append(at)
    steps = [event["step"] for event in Workspace.open(folder).journal.events()]
    report["promotions"].append(steps.count("promote"))
    if work is forget:
        secret = rows(20, 1)[SECRET - 55].numpy().tobytes()
        left = [
            path for path in folder.rglob("*") if path.is_file() and secret in path.read_bytes()
        ]
        report["different"] += [[at, path.name] for path in left]


def at_every_write(folder: Path, command: str, happen: Callable[[type | None], None]) -> Report:
    prepare, work = COMMANDS[command]
    if prepare is not None:
        prepare(folder / "start")
    whole = fresh(folder, "whole")
    assert ended(in_fork(lambda: work(whole))) == 0
    expected = bits(whole)
    report: Report = {"faults": 0, "inconsistent": [], "different": [], "promotions": []}
    while True:
        number, target = report["faults"] + 1, fresh(folder, "faulty")

        def faulty(point: int = number, place: Path = target) -> None:
            at_write(point, happen)
            work(place)

        code = ended(in_fork(faulty))
        if code == 0 and happen is killed:
            return report
        if code == 0 and bits(target) == expected:
            missed = report.setdefault("missed", 0)
            if missed > 5:  # beyond the last write, nothing can happen
                return report
            report["missed"] += 1
        elif code not in (2, -signal.SIGKILL):
            report["inconsistent"].append([f"write {number}", code])
        compare(target, work, expected, report, f"write {number}")
        report["faults"] += 1


def at_random(folder: Path, count: int) -> Report:
    whole = fresh(folder, "whole")
    begin = time.perf_counter()
    assert ended(in_fork(lambda: update(whole))) == 0
    seconds, expected = time.perf_counter() - begin, bits(whole)
    report: Report = {"faults": 0, "inconsistent": [], "different": [], "promotions": []}
    draws = random.Random(0)
    while report["faults"] < count:
        target = fresh(folder, "faulty")
        # Some updates are killed again after they are resumed.
        for _ in range(draws.choice([1, 1, 2, 3])):
            child = in_fork(lambda place=target: update(place))
            time.sleep(draws.uniform(0.0, 1.1 * seconds))
            os.kill(child, signal.SIGKILL)
            report["faults"] += ended(child) == -signal.SIGKILL
        compare(target, update, expected, report, f"kill {report['faults']}")
    return report


# Damage ------------------------------------------------------------------------------------------


def damage(file: Path, draws: random.Random) -> str:
    """Change a file as disks and people do; says how."""
    content = bytearray(file.read_bytes())
    how = draws.choice(
        ["bit", "bit", "bytes", "zeros", "truncated", "emptied", "deleted", "longer"]
    )
    written = [place for place, byte in enumerate(content) if byte] or [0]  # most of it is zeros
    place = draws.choice(written)
    if how == "deleted":
        file.unlink()
        return how
    if how == "bit" and content:
        content[place] ^= 1 << draws.randrange(8)
    elif how == "bytes":
        content[place : place + 8] = draws.randbytes(len(content[place : place + 8]))
    elif how == "zeros":
        content[place : place + 4096] = bytes(len(content[place : place + 4096]))
    elif how == "truncated":
        del content[place:]
    elif how == "emptied":
        content.clear()
    else:
        content += draws.randbytes(draws.choice([1, 100, 5000]))
    file.write_bytes(content)
    return f"{how} at {place}"


def after_damage(folder: Path, expected: dict[str, Any]) -> None:
    """Whatever does not fail must be right; raises AssertionError where it is wrong."""
    workspace = Workspace.open(folder)
    found = workspace.check()
    with suppress(WorkspaceError, StoreError, OSError, ValueError):
        assert torch.equal(
            workspace.learner(3, memory=False).embed(rows(9, 8)), expected["embedded"]
        )
    with suppress(WorkspaceError, StoreError, OSError, ValueError):
        memory = workspace.learner(3).memory
        items = memory.items.take(torch.arange(len(memory)))
        assert torch.equal(items, expected["items"])
    with suppress(WorkspaceError, StoreError, OSError, ValueError):
        update(folder)
        if workspace.current == 4:  # and not after a state that was lost
            weights = workspace.versions.folder(4) / "encoder.safetensors"
            assert weights.read_bytes() == expected["weights"]
    if not found:
        assert bits(folder) == expected["bits"]


def damaged(folder: Path, count: int, seed: int = 0) -> Report:
    start = Workspace.open(folder / "start")
    whole = fresh(folder, "whole")
    assert ended(in_fork(lambda: update(whole))) == 0
    memory = start.learner().memory
    expected = {
        "embedded": start.learner(memory=False).embed(rows(9, 8)),
        "items": memory.items.take(torch.arange(len(memory))),
        "weights": (whole / "versions/000004/encoder.safetensors").read_bytes(),
        "bits": bits(whole),
    }
    files = sorted(path.relative_to(start.folder) for path in start.folder.rglob("*"))
    files = [path for path in files if (start.folder / path).is_file() and path.name != "lock"]
    report: Report = {"faults": 0, "wrong": [], "refused": 0}
    draws = random.Random(seed)
    while report["faults"] < count:
        target = fresh(folder, "faulty")
        file = draws.choice([*files, *[Path("memory.sqlite")] * (len(files) // 2)])
        how = damage(target / file, draws)
        code = ended(in_fork(lambda place=target: after_damage(place, expected)))
        report["faults"] += 1
        report["refused"] += code == 2
        if code not in (0, 2):  # a traceback, a hang, or a wrong result
            report["wrong"].append([str(file), how, code])
    return report


# Races -------------------------------------------------------------------------------------------


def raced(folder: Path, count: int) -> Report:
    """Two processes at once: each command succeeds or is refused, and the workspace is whole."""
    draws = random.Random(0)
    report: Report = {"faults": 0, "wrong": []}
    commands: dict[str, Callable[[Path], object]] = {
        **{name: work for name, (_, work) in COMMANDS.items()},
        "check": lambda place: Workspace.open(place).check(),
        "read": lambda place: Workspace.open(place).learner().embed(rows(5, 8)),
    }
    while report["faults"] < count:
        target = fresh(folder, "faulty")
        names = [draws.choice(sorted(commands)) for _ in range(draws.choice([2, 2, 3]))]
        children = []
        for name in names:
            children.append(in_fork(lambda work=commands[name], place=target: work(place)))
            time.sleep(draws.uniform(0.0, 0.05))
        codes = [ended(child) for child in children]
        report["faults"] += 1
        found = Workspace.open(target).check()
        if found or any(code not in (0, 2) for code in codes):
            report["wrong"].append([names, codes, found])
    return report


def main() -> None:
    folder, how, what = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    make(folder / "start")
    if how in ("kill", "full"):
        report = at_every_write(folder, what, killed if how == "kill" else full)
    else:
        report = {"random": at_random, "damage": damaged, "races": raced}[how](folder, int(what))
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main()
