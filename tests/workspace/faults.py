"""Does to workspaces, saved learners and inputs what bad luck does, and looks at what comes of it.

    python faults.py FOLDER HOW COUNT
    python faults.py FOLDER kills:update,forget every

===========  =====================================================================================
HOW          a case
===========  =====================================================================================
kills        a command killed before one of its writes, or, once all have had their turn, at a
             random moment; then it is run again, and must end as if nothing had happened
states       what kills before every write leave on the disk, from one run of a command that copies
             it there instead of dying, each state once; then the same
full         a disk that is full at one of the writes of a command, then the same
power        the power fails before one of the writes of a command, or after the last; what was not
             flushed is lost, once with all new names and once with none of them; then the same
training     training killed at random moments, up to three times, then resumed
workspaces   a damaged file of a workspace, which is then checked, read and updated
learners     a damaged file of a saved learner, which is then loaded
inputs       a damaged file of data, which is then read
races        two or three commands at once
===========  =====================================================================================

``kills:update,forget`` is about these commands alone, and so are ``states:``, ``full:`` and
``power:``; ``every`` is a fault at each of their writes. FOLDER gets HOW.jsonl, a line for every
case that is done: run again, it resumes there. The summary is printed as JSON. Everything runs in
forks, so that torch is imported once.
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
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from incontrast import ICL, Learner, Replay, Reservoir, Retrain, Vectors, Workspace
from incontrast.cli.command import exit_code
from incontrast.cli.report import recorded, write_report
from incontrast.data import read_source
from incontrast.memory.store import Store, StoreUnwritable
from incontrast.training import resume
from incontrast.workspace import WorkspaceError, evaluation
from incontrast.workspace.config import CONFIG
from incontrast.workspace.embeddings import embed_source
from incontrast.workspace.files import Journal
from incontrast.workspace.ingest import NewData
from incontrast.workspace.state import StateMachine

torch.set_num_threads(1)

SECRET = 74  # an item of the second data, which is forgotten
PATIENCE = 120  # seconds until a case counts as a hang
MEMORY = 1024  # megabytes that a case may take, of which 300 are Python's and torch's
LONG = 20  # epochs of a training that is killed

Work = Callable[[Path], object]
Case = dict[str, Any]


def rows(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))


def learner(epochs: int = 1) -> Learner:
    return Learner(
        Vectors(8, hidden=16, out=8),
        fit_strategy=Retrain(max_epochs=epochs),
        strategy=ICL(max_epochs=epochs, epoch_steps=1),
        memory=Reservoir(items=30),
    )


# What faults happen to ---------------------------------------------------------------------------


def empty(folder: Path) -> None:
    Workspace.create(folder, learner(), keep=2)


def start(folder: Path) -> None:
    """A workspace that was rolled back and updated since, full: the next update also deletes."""
    empty(folder)
    workspace = Workspace.open(folder)
    workspace.fit(rows(40, 0), force=True)
    workspace.update(rows(15, 9), force=True)
    workspace.rollback()
    workspace.update(rows(20, 1), force=True)


def refused(folder: Path) -> None:
    """One with a candidate that failed a check."""
    start(folder)
    usual = evaluation.failed_checks
    evaluation.failed_checks = lambda **_: ["it is Monday"]
    assert not Workspace.open(folder).update(rows(10, 7)).promoted
    evaluation.failed_checks = usual


@cache
def fitted(seed: int) -> Learner:
    found = learner()
    found.fit(rows(40, seed))
    return found


def saved(folder: Path) -> None:
    fitted(0).save(folder)


def nothing(folder: Path) -> None:
    """A folder that is not there yet."""


def inputs(folder: Path) -> None:
    """Data of every format."""
    folder.mkdir()
    draws = np.random.default_rng(0)
    values = draws.normal(size=(30, 8)).astype(np.float32)
    np.save(folder / "a.npy", values)
    np.savez(folder / "b.npz", values)
    header = ",".join(f"c{column}" for column in range(8))
    np.savetxt(folder / "c.csv", values, delimiter=",", header=header, comments="")
    np.savetxt(
        folder / "d.tsv", values, delimiter="\t", header=header.replace(",", "\t"), comments=""
    )
    with suppress(ImportError):
        import pyarrow
        from pyarrow import parquet

        columns = {f"c{column}": values[:, column] for column in range(8)}
        parquet.write_table(pyarrow.table(columns), folder / "e.parquet")
    graph = {"edges": [[0, 1], [1, 2], [2, 0]], "x": [[1.0], [2.0], [3.0]]}
    (folder / "f.jsonl").write_text(f"{json.dumps(graph)}\n" * 20)
    (folder / "g").mkdir()
    for number in range(6):
        pixels = Image.fromarray(draws.integers(0, 255, (12, 12, 3), dtype=np.uint8))
        for suffix in ("png", "jpg", "gif", "webp", "bmp", "tiff"):
            pixels.save(folder / "g" / f"{number}.{suffix}")
    (folder / "h").mkdir()
    texts = {"A": "1,2\n2,1\n3,4", "graph_indicator": "1\n1\n2\n2", "node_labels": "0\n1\n0\n1"}
    for kind, text in {**texts, "graph_labels": "0\n1"}.items():
        (folder / "h" / f"T_{kind}.txt").write_text(text)
    (folder / "i.txt").write_text("a plain sentence\nand another one\n" * 10)


# What is done to it ------------------------------------------------------------------------------


def update(folder: Path) -> None:
    Workspace.open(folder).update(rows(20, 2), force=True)


def retry(folder: Path) -> None:
    """Train once more on what was refused, with another strategy."""
    Workspace.open(folder).update(rows(10, 7), strategy=Replay(max_epochs=1), force=True)


def forget(folder: Path) -> None:
    Workspace.open(folder).forget([SECRET])


def init(folder: Path) -> None:
    try:
        empty(folder)
    except WorkspaceError as error:
        if "is a workspace already" not in str(error):  # an init that had finished is right
            raise


def embed(folder: Path, name: str = "rows.npy") -> None:
    source = read_source(folder.parent / "inputs" / "a.npy")
    embed_source(Workspace.open(folder), source, folder.with_name(f"{folder.name}-{name}"))


def report(folder: Path) -> None:
    space = Workspace.open(folder)
    write_report(space, recorded(space, 3))


def bits(folder: Path) -> dict[str, Any]:
    """Everything that must be the same, however often a command was interrupted."""
    workspace = Workspace.open(folder)
    outputs = [*folder.parent.glob(f"{folder.name}-*"), *workspace.reports.glob("*")]
    for shards in [path for path in outputs if path.is_dir()]:
        outputs += shards.iterdir()
    found: dict[str, Any] = {
        "state": (workspace.state().phase, workspace.state().memory, workspace.current),
        "versions": workspace.versions.numbers(),
        "promotions": [each["step"] for each in workspace.journal.events()].count("promote"),
        "outputs": {
            path.name: path.read_bytes().hex()
            if path.suffix in (".npy", ".jsonl", ".html") and path.is_file()
            else None
            for path in outputs
        },
    }
    if workspace.current is None:
        return found
    version = workspace.versions.folder(workspace.current)
    store = Store.open(workspace.store_file, readonly=True)
    columns = store.columns(workspace.versions.extent(workspace.current).arrivals)
    there = (columns["state"] == 1).nonzero()[0].tolist()
    return found | {
        "weights": (version / "encoder.safetensors").read_bytes().hex(),
        "learner": (version / "learner.json").read_text(),
        "columns": [columns[name].tolist() for name in ("key", "size", "state")],
        "items": [content.hex() for content in store.read(there)],
    }


def wrong_with(folder: Path) -> list[str]:
    """What is wrong with a workspace in which a command was interrupted."""
    if not (folder / "workspace.json").exists():
        return []
    workspace = Workspace.open(folder)
    found = workspace.check()
    if not found and workspace.current is not None and len(workspace.learner().memory) < 29:
        found.append("items were lost")
    return found


def loaded(folder: Path) -> dict[str, Any]:
    found = Learner.load(folder)
    items = found.memory.items
    assert items is not None
    return {
        "embedded": found.embed(rows(9, 8)).tolist(),
        "items": items.take(torch.arange(len(items))).tolist(),
        "files": sorted(path.name for path in folder.iterdir()),
    }


def wrong_with_learner(folder: Path) -> list[str]:
    whole = [fitted(seed).embed(rows(9, 8)).tolist() for seed in (0, 1)]
    return [] if loaded(folder)["embedded"] in whole else ["it is neither the old nor the new one"]


class Command(NamedTuple):
    """What is run, on a copy of what, and what must come of it."""

    start: Callable[[Path], None]
    work: Work
    result: Callable[[Path], dict[str, Any]] = bits
    wrong: Callable[[Path], list[str]] = wrong_with


COMMANDS = {
    "init": Command(nothing, init),
    "fit": Command(empty, lambda folder: Workspace.open(folder).fit(rows(40, 0), force=True)),
    "update": Command(start, update),
    "join": Command(refused, update),
    "retry": Command(refused, retry),
    "discard": Command(refused, lambda folder: Workspace.open(folder).discard()),
    "rollback": Command(start, lambda folder: Workspace.open(folder).rollback()),
    "forget": Command(start, forget),
    "forget_refused": Command(refused, forget),
    "embed": Command(start, embed),
    "embed_shards": Command(start, lambda folder: embed(folder, "rows")),
    "report": Command(start, report),
    "save": Command(saved, lambda folder: fitted(1).save(folder), loaded, wrong_with_learner),
}


# Children ----------------------------------------------------------------------------------------


class Ended(NamedTuple):
    """How a child ended: 0 is well, 2 with an error that is explained, below 0 by a signal."""

    code: int
    said: str
    memory: int  # megabytes


class Child:
    """A process that does something."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._said, end = os.pipe()
        self.number = os.fork()
        if self.number == 0:
            code, said = 1, ""
            try:
                signal.alarm(PATIENCE)
                work()
                code = 0
            except Exception as error:
                code = 1 if exit_code(error) is None else 2
                said = str(error) if code == 2 else traceback.format_exc()[-1500:]
            finally:
                os.write(end, said.encode(errors="replace")[:3000])
                os._exit(code)
        os.close(end)

    def ended(self) -> Ended:
        with os.fdopen(self._said, "rb") as pipe:
            said = pipe.read().decode(errors="replace")
        _, status, usage = os.wait4(self.number, 0)
        return Ended(os.waitstatus_to_exitcode(status), said, usage.ru_maxrss // 1024)


def in_fork(work: Callable[[], object]) -> Ended:
    return Child(work).ended()


def at_write(number: int | None, happen: Callable[[type | None], None]) -> Callable[[], int]:
    """Let something happen before the n-th write of this process, or before all of them.

    Gives the count of writes.
    """
    count = 0

    def watched(function: Callable[..., Any], owner: type | None = None) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if number in (None, count):
                happen(owner)
            return function(*arguments, **options)

        return run

    os.fsync = watched(os.fsync)
    shutil.rmtree = watched(shutil.rmtree)
    for owner, names in (
        (Path, ("rename", "replace", "mkdir", "unlink")),
        (Store, ("append", "drop_from", "remove", "fold")),
        (Journal, ("add",)),
        (StateMachine, ("move",)),
    ):
        for name in names:
            setattr(owner, name, watched(getattr(owner, name), owner))
    return lambda: count


def killed(owner: type | None = None) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def full(owner: type | None) -> None:
    if owner is Store:
        raise StoreUnwritable("no space left")
    raise OSError(errno.ENOSPC, "No space left on device")


# Copies ------------------------------------------------------------------------------------------

IN_PLACE = ("memory.sqlite", "journal.jsonl", "outputs.jsonl", "lock")  # all others are replaced


def _copy(source: str, target: str) -> None:
    if Path(source).name.startswith(IN_PLACE):
        shutil.copyfile(source, target)
    else:
        os.link(source, target)


def template(folder: Path, create: Callable[[Path], None]) -> Path:
    made = folder / create.__name__
    if not made.exists():
        shutil.rmtree(folder / "new", ignore_errors=True)
        create(folder / "new")
        if create is not nothing:
            (folder / "new").rename(made)
    return made


def parts(folder: Path, name: str = "faulty") -> list[Path]:
    """What a case has written in a folder."""
    found = [folder / name, *folder.glob(f"{name}[-.]*"), *folder.glob(f".{name}[-.]*")]
    return [path for path in found if path.exists()]


def fresh(folder: Path, create: Callable[[Path], None], name: str = "faulty") -> Path:
    target = folder / name
    for path in parts(folder, name):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if (made := template(folder, create)).exists():
        shutil.copytree(made, target, copy_function=_copy)
    return target


# Kills and full disks ----------------------------------------------------------------------------


class Whole(NamedTuple):
    """A command that nothing happened to."""

    writes: int
    seconds: float
    result: dict[str, Any]


def undisturbed(folder: Path, command: Command) -> Whole:
    target, counted = fresh(folder, command.start), folder / "count"

    def work() -> None:
        count = at_write(0, killed)
        command.work(target)
        counted.write_text(str(count()))

    begin = time.perf_counter()
    ended = in_fork(work)
    assert ended.code == 0, ended.said
    seconds = time.perf_counter() - begin
    return Whole(int(counted.read_text()), seconds, command.result(target))


def after_fault(folder: Path, command: Command, whole: Whole) -> list[str]:
    """Is everything in order, and does the command, run again, end as it should?"""
    wrong = command.wrong(folder)
    again = in_fork(lambda: command.work(folder))
    if again.code != 0:
        wrong.append(f"run again, it ended with {again.code}: {again.said}")
    elif command.result(folder) != whole.result:
        wrong.append("run again, it gave another result")
    if command.work is forget:
        secret = rows(20, 1)[SECRET - 55].numpy().tobytes()
        files = [path for path in folder.rglob("*") if path.is_file()]
        wrong += [f"{file} has it still" for file in files if secret in file.read_bytes()]
    return wrong


def at_writes(folder: Path, names: list[str], happen: Callable[[type | None], None]) -> Any:
    """Makes cases of a fault at a write of a command, or at a random moment."""
    whole = {name: undisturbed(folder, COMMANDS[name]) for name in names}
    points = [(name, write) for name in names for write in range(1, whole[name].writes + 2)]

    def one(number: int) -> Case:
        draws = random.Random(number)
        moment = number >= len(points)
        name, write = points[number] if not moment else (draws.choice(names), 0)
        command, target = COMMANDS[name], fresh(folder, COMMANDS[name].start)

        def faulty() -> None:
            if moment:
                signal.setitimer(
                    signal.ITIMER_REAL, draws.uniform(0.001, 1.05 * whole[name].seconds)
                )
            else:
                at_write(write, happen)
            command.work(target)
            if happen is killed:
                killed()  # when all was done, but nobody knows

        ended = in_fork(faulty)
        wrong = [] if ended.code in (0, 2, -signal.SIGKILL, -signal.SIGALRM) else [ended.said]
        wrong += after_fault(target, command, whole[name])
        return {"what": name, "at": write or "a random moment", "code": ended.code, "wrong": wrong}

    one.points = len(points)  # type: ignore[attr-defined]
    return one


def kills(folder: Path, names: list[str]) -> Any:
    return at_writes(folder, names, killed)


def states(folder: Path, names: list[str]) -> Any:
    """A killed process leaves what it has given to the system: a copy of it is the same."""
    found = []
    for name in names:
        command, whole = COMMANDS[name], undisturbed(folder, COMMANDS[name])
        copies, target = folder / f"states of {name}", fresh(folder, COMMANDS[name].start)
        copies.mkdir()

        def work(command: Command = command, copies: Path = copies, target: Path = target) -> None:
            last: dict[str, bytes | None] = {}

            def keep(owner: type | None) -> None:
                nonlocal last
                now = {
                    str(path): path.read_bytes() if path.is_file() else None
                    for path in sorted(target.rglob("*"))
                }
                if now != last:
                    last = now
                    shutil.copytree(target, copies / f"{len([*copies.iterdir()]):03}")

            at_write(None, keep)
            command.work(target)
            killed()

        ended = in_fork(work)
        assert ended.code == -signal.SIGKILL, ended.said
        target.rename(copies / "end")
        found += [(name, whole, copy) for copy in sorted(copies.iterdir())]

    def one(number: int) -> Case:
        name, whole, copy = found[number]
        wrong = after_fault(copy, COMMANDS[name], whole)
        return {"what": name, "code": -signal.SIGKILL, "wrong": wrong}

    one.points = len(found)  # type: ignore[attr-defined]
    return one


def full_disks(folder: Path, names: list[str]) -> Any:
    """In another order, so that some of them are of all commands."""
    every = at_writes(folder, names, full)
    order = random.Random(0).sample(range(every.points), every.points)

    def one(number: int) -> Case:
        case: Case = every(order[number % every.points])
        return case

    one.points = every.points  # type: ignore[attr-defined]
    return one


class Disk:
    """What the files of a case would be after a power cut: what was flushed, and no more.

    SQLite flushes its own files, by settings that tests/workspace/test_durability.py looks at, so
    that they count as they are. Files and folders are held open: no number is given to another.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.left = folder, folder / "left"
        self.contents: dict[int, bytes] = {}
        self.names: dict[int, dict[str, int]] = {}
        self.folders: set[int] = set()
        self.held: dict[int, int] = {}
        self.flushed(folder)
        for part in parts(folder):
            for path in (part, *part.rglob("*")):
                self.flushed(path)
        usual = os.fsync

        def fsync(handle: int) -> None:
            usual(handle)
            self.flushed(Path(f"/proc/self/fd/{handle}").readlink())

        os.fsync = fsync

    def flushed(self, path: Path) -> None:
        number = path.stat().st_ino
        self.held.setdefault(number, os.open(path, os.O_RDONLY))
        if path.is_dir():
            entries = parts(path) if path == self.folder else [*path.iterdir()]
            self.names[number] = {entry.name: entry.stat().st_ino for entry in entries}
            self.folders |= {entry.stat().st_ino for entry in entries if entry.is_dir()}
        else:
            self.contents[number] = path.read_bytes()

    def cut(self, early: bool) -> None:
        """The power fails; ``early``: new names have reached the disk though nobody asked."""
        shutil.rmtree(self.left, ignore_errors=True)
        self._leave(self.folder, self.folder.stat().st_ino, self.left, early)
        killed()

    def _leave(self, path: Path, number: int, target: Path, early: bool) -> None:
        if path.name.startswith("memory.sqlite"):
            if path.exists() and not path.name.endswith("-shm"):
                shutil.copyfile(path, target)
        elif number in self.names or number in self.folders or (early and path.is_dir()):
            names = self.names.get(number, {})
            if early:
                there = parts(path) if path == self.folder else path.iterdir()
                names = {entry.name: entry.stat().st_ino for entry in there}
            elif path.is_dir():  # where SQLite has its files
                names |= {each.name: 0 for each in path.glob("memory.sqlite*")}
            target.mkdir()
            for name, inside in names.items():
                self._leave(path / name, inside, target / name, early)
        else:
            target.write_bytes(self.contents.get(number, b""))

    def restore(self) -> None:
        """Make the folder what is left."""
        for part in parts(self.folder):
            shutil.rmtree(part) if part.is_dir() else part.unlink()
        for path in self.left.iterdir():
            path.rename(self.folder / path.name)


def power_cuts(folder: Path, names: list[str]) -> Any:
    whole = {name: undisturbed(folder, COMMANDS[name]) for name in names}
    points = [
        (name, write, early)
        for name in names
        for write in range(1, whole[name].writes + 2)
        for early in (False, True)
    ]
    order = random.Random(0).sample(range(len(points)), len(points))

    def one(number: int) -> Case:
        name, write, early = points[order[number % len(points)]]
        command, target = COMMANDS[name], fresh(folder, COMMANDS[name].start)

        def faulty() -> None:
            disk = Disk(folder)
            at_write(write, lambda owner: disk.cut(early))
            command.work(target)
            disk.cut(early)

        ended, wrong = in_fork(faulty), []
        if ended.code != -signal.SIGKILL:
            wrong.append(f"ended with {ended.code}: {ended.said}")
        Disk(folder).restore()
        if write > whole[name].writes:
            kept = False
            with explained():
                kept = command.result(target) == whole[name].result
            wrong += [] if kept else ["what was acknowledged is lost"]
        wrong += after_fault(target, command, whole[name])
        case = {"what": name, "at": write, "names": "early" if early else "late"}
        return {**case, "code": ended.code, "wrong": wrong}

    one.points = len(points)  # type: ignore[attr-defined]
    return one


def training(folder: Path) -> Any:
    """Training is written down after every step here, so that most kills have a state to leave."""
    resume.EVERY, resume.SHARE = 0.0, float("inf")
    checkpoint = folder / "faulty.checkpoint"

    def by_learner(target: Path, step: str) -> None:
        found = learner(LONG)
        if step == "update":
            found = Learner.load(template(folder, saved))
            found.update(rows(20, 2), strategy=ICL(max_epochs=LONG), checkpoint=checkpoint)
        else:
            found.fit(rows(40, 0), checkpoint=checkpoint)
        found.save(target)

    def by_workspace(target: Path, step: str) -> None:
        workspace = Workspace.open(target)
        if step == "fit":
            workspace.fit(rows(40, 0), force=True)
        else:
            workspace.update(rows(20, 2), strategy=ICL(max_epochs=LONG), force=True)

    def lengthy(target: Path) -> None:
        Workspace.create(target, learner(LONG), keep=2)

    kinds: list[tuple[str, Command]] = [
        ("Learner.fit", Command(nothing, lambda target: by_learner(target, "fit"), loaded)),
        ("Learner.update", Command(nothing, lambda target: by_learner(target, "update"), loaded)),
        ("Workspace.fit", Command(lengthy, lambda target: by_workspace(target, "fit"))),
        ("Workspace.update", Command(start, lambda target: by_workspace(target, "update"))),
    ]
    whole = {name: undisturbed(folder, command) for name, command in kinds}

    def disturbed(work: Work, target: Path, step: int, delay: float) -> None:
        """Train, and be killed so many seconds after the state of a step begins to be written."""
        usual, steps = resume.TrainingFile.write, 0

        def write(*arguments: Any, **options: Any) -> None:
            nonlocal steps
            steps += 1
            if steps == step:
                signal.setitimer(signal.ITIMER_REAL, delay)
            usual(*arguments, **options)

        resume.TrainingFile.write = write  # type: ignore[method-assign]
        work(target)

    def one(number: int) -> Case:
        draws = random.Random(number)
        name, command = kinds[number % len(kinds)]
        target, inside, wrong = fresh(folder, command.start), 0, []
        for _ in range(draws.choice([1, 2, 3])):
            moment = draws.randrange(1, LONG), draws.uniform(0.0001, 0.02)
            ended = in_fork(lambda when=moment: disturbed(command.work, target, *when))
            inside += ended.code == -signal.SIGALRM
            wrong += [] if ended.code in (0, -signal.SIGALRM) else [ended.said]
        if (ended := in_fork(lambda: command.work(target))).code != 0:
            wrong.append(ended.said)
        elif command.result(target) != whole[name].result:
            wrong.append("resumed, it gave another result")
        return {"what": name, "inside": inside, "wrong": wrong}

    return one


# Damage ------------------------------------------------------------------------------------------


def damage(file: Path, draws: random.Random) -> str:
    """Change a file as disks and people do; says how."""
    content = bytearray(file.read_bytes())
    how = draws.choice(
        ["bit", "bit", "bytes", "zeros", "truncated", "emptied", "deleted", "longer", "other"]
    )
    written = [place for place, byte in enumerate(content) if byte] or [0]  # most of it is zeros
    place = draws.choice(written)
    file.unlink()  # it is a link to the whole one
    if how == "deleted":
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
    elif how == "other":
        content = bytearray(draws.randbytes(draws.choice([3, 300, 3000])))
    else:
        content += draws.randbytes(draws.choice([1, 100, 5000]))
    file.write_bytes(content)
    return f"{how} at {place}"


class explained(suppress):
    """Passes over errors that a command would explain."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        return error is None or (isinstance(error, Exception) and exit_code(error) is not None)


def damaged(folder: Path, create: Callable[[Path], None], look: Work) -> Any:
    """Makes cases of a damaged file, among the files of a template."""
    made = template(folder, create)
    groups = [
        [path] if path.is_file() else sorted(path.rglob("*")) for path in sorted(made.iterdir())
    ]
    if create is not inputs:  # of which each format is one, whichever files it has
        groups = [[path] for group in groups for path in group]
    choices = [
        [path.relative_to(made) for path in group if path.is_file() and path.name != "lock"]
        for group in groups
    ]
    choices = [paths for paths in choices if paths]
    choices += [[Path("memory.sqlite")]] * (len(choices) // 2) * (create is start)

    def one(number: int) -> Case:
        draws = random.Random(number)
        target, path = fresh(folder, create), draws.choice(draws.choice(choices))
        how = damage(target / path, draws)
        ended = in_fork(lambda: look(target / path if create is inputs else target))
        wrong = [] if ended.code in (0, 2) else [f"ended with {ended.code}: {ended.said}"]
        if ended.memory > MEMORY:
            wrong.append("it took too much memory")
        case = {"what": str(path), "at": how, "code": ended.code, "memory": ended.memory}
        return {**case, "said": ended.said[:300], "wrong": wrong}

    return one


def workspaces(folder: Path) -> Any:
    made, update_whole = template(folder, start), undisturbed(folder, COMMANDS["update"]).result
    whole = Workspace.open(made).learner()
    assert whole.memory.items is not None
    items, embedded = whole.memory.items.take(torch.arange(30)), whole.embed(rows(9, 8))
    config = (made / CONFIG).read_bytes()

    def look(target: Path) -> None:
        """Whatever does not fail must be right."""
        workspace = Workspace.open(target)
        found = workspace.check()
        with explained():
            assert torch.equal(workspace.learner(3, memory=False).embed(rows(9, 8)), embedded)
        with explained():
            memory = workspace.learner(3).memory
            assert memory.items is not None
            assert torch.equal(memory.items.take(torch.arange(len(memory))), items)
        with explained():
            update(target)
        if (target / CONFIG).exists() and (target / CONFIG).read_bytes() != config:
            return  # it is there to be edited: other settings give other weights
        if workspace.current == 4:  # and not after a state that was lost
            weights = workspace.versions.folder(4) / "encoder.safetensors"
            assert weights.read_bytes().hex() == update_whole["weights"]
        if not found:
            assert bits(target) == update_whole

    return damaged(folder, start, look)


def learners(folder: Path) -> Any:
    whole = loaded(template(folder, saved))

    def look(target: Path) -> None:
        found = loaded(target)
        assert (found["embedded"], found["items"]) == (whole["embedded"], whole["items"])

    return damaged(folder, saved, look)


def damaged_inputs(folder: Path) -> Any:
    made = template(folder, inputs)
    domains = {path.name: read_source(path).domain() for path in made.iterdir()}

    def look(path: Path) -> None:
        place = path if path.parent.name == "faulty" else path.parent
        source = read_source(place, check=False)
        domain = domains[place.name]
        source.check(domain)
        for contents in NewData(source, domain).packed():
            domain.unpack(contents)
        read_source(place).domain()  # as init does

    return damaged(folder, inputs, look)


# Races -------------------------------------------------------------------------------------------


def races(folder: Path) -> Any:
    """Each command succeeds or is refused, and the workspace is whole."""
    template(folder, inputs)
    commands: dict[str, Work] = {
        **{name: each.work for name, each in COMMANDS.items() if each.wrong is wrong_with},
        "check": lambda target: Workspace.open(target).check(),
        "read": lambda target: Workspace.open(target).learner().embed(rows(5, 8)),
    }

    def one(number: int) -> Case:
        draws = random.Random(number)
        target = fresh(folder, draws.choice([start, refused]))
        names = [draws.choice(sorted(commands)) for _ in range(draws.choice([2, 2, 3]))]
        children = []
        for name in names:
            children.append(Child(lambda work=commands[name]: work(target)))
            time.sleep(draws.uniform(0.0, 0.05))
        ended = [child.ended() for child in children]
        wrong = [each.said for each in ended if each.code not in (0, 2)]
        wrong += Workspace.open(target).check()
        return {"what": names, "codes": [each.code for each in ended], "wrong": wrong}

    return one


HOW: dict[str, Callable[..., Any]] = {
    "kills": kills,
    "states": states,
    "full": full_disks,
    "power": power_cuts,
    "training": training,
    "workspaces": workspaces,
    "learners": learners,
    "inputs": damaged_inputs,
    "races": races,
}


def run(folder: Path, how: str, count: str) -> dict[str, Any]:
    """Do the cases that are not done yet; returns a summary of all."""
    lines = folder / f"{how}.jsonl"
    (folder / how).mkdir(parents=True, exist_ok=True)
    lines.touch()
    done = len(lines.read_text().splitlines())
    template(folder / how, inputs)
    kind, _, some = how.partition(":")
    of_commands = kind in ("kills", "states", "full", "power")
    names = [some.split(",") if some else list(COMMANDS)] if of_commands else []
    one = HOW[kind](folder / how, *names)
    with lines.open("a") as file:
        for number in range(done, one.points if count == "every" else int(count)):
            file.write(f"{json.dumps(one(number))}\n")
            file.flush()
    cases = [json.loads(line) for line in lines.read_text().splitlines()]
    codes = [code for case in cases for code in case.get("codes", [case.get("code", 0)])]
    return {
        "cases": len(cases),
        "wrong": [case for case in cases if case["wrong"]],
        "explained": codes.count(2),
        "killed": sum(code < 0 for code in codes) + sum(case.get("inside", 0) for case in cases),
        "memory": max(case.get("memory", 0) for case in cases),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(Path(sys.argv[1]), sys.argv[2], sys.argv[3])))
