"""What the tests of many processes run in each of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cases
import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

import incontrast as ic
from incontrast.call import BudgetTooSmall
from incontrast.data import source as of_files
from incontrast.data.source import Source
from incontrast.loggers import Logger
from incontrast.training import collectives
from incontrast.training import fabric as fabric_module
from incontrast.training.batch_norm import SynchronisedBatchNorm
from incontrast.training.collectives import (
    LostProcess,
    ProcessFailed,
    all_gather_objects,
    all_gather_rows,
)
from incontrast.training.engine import Engine, choose_engine
from incontrast.training.fabric import FabricEngine
from incontrast.training.progress import Progress
from incontrast.workspace.embeddings import embed_source
from incontrast.workspace.files import read_json

Result = dict[str, Any]
PAYS, fabric_module.PAYS = fabric_module.PAYS, 0.0  # everything is shared, however small


def engine() -> FabricEngine:
    chosen = choose_engine("cpu", "float32", None)
    assert isinstance(chosen, FabricEngine)
    return chosen


def equal(data: str, strategy: str, precision: str) -> Result:
    """The largest difference between one process and many, of losses, gradients and weights."""
    wide, many = precision == "float64", engine()
    # What is built for large batches and encoders, on small ones.
    fabric_module.MANY_ANCHORS = 8 if data in ("vectors", "graphs") else 10**9
    collectives.BUCKET, collectives.SMALL = (2**9, 2**9) if data == "images" else (2**22, 2**17)
    how = cases.STRATEGIES[strategy] if wide else cases.gentle(cases.STRATEGIES[strategy])
    theirs = cases.trained(data, how, many, wide=wide)
    if many.rank > 0:
        return {}
    ours = cases.trained(data, how, Engine("cpu"), wide=wide)
    return _differences(ours, theirs)


def _differences(first: dict[str, Tensor], second: dict[str, Tensor]) -> Result:
    found: Result = {}
    for name, value in first.items():
        kind = name.split()[0]
        scale = max(float(value.double().abs().max()), 1.0)  # rounding is relative
        difference = float((value.double() - second[name].double()).abs().max()) / scale
        found[kind] = max(found.get(kind, 0.0), difference)
    return found


def replicas() -> Result:
    """A step that is too small to share: every process does what one would, to the last bit."""
    many = engine()
    fabric_module.PAYS = PAYS
    messages: list[str] = []
    fabric_module.log.warning = lambda text, *values: messages.append(text % values)
    try:
        theirs = cases.trained("texts", cases.JOINT, many, wide=False)
    finally:
        fabric_module.PAYS = 0.0
    ours = cases.trained("texts", cases.JOINT, Engine("cpu"), wide=False)
    return {"differences": _differences(ours, theirs), "told": messages}


def compiled() -> Result:
    """Shared steps of a compiled encoder, whose BatchNorm talks to the other process."""
    many, plain = engine(), torch.compile
    many.compile = True
    torch.compile = lambda function: plain(function, backend="eager")  # type: ignore[assignment]
    try:
        theirs = cases.trained("images", cases.JOINT, many, wide=True)
    finally:
        torch.compile = plain
    return _differences(cases.trained("images", cases.JOINT, Engine("cpu"), wide=True), theirs)


def chosen() -> Result:
    """Which encoders are worth sharing, by their operations."""
    many = engine()
    fabric_module.PAYS = PAYS
    large, small = ic.Images(32), ic.Images(28, 1, encoder="small")
    try:
        kinds = {
            "large": many.for_steps(large.encoder(), torch.zeros(4, 3, 32, 32), 64),
            "small": many.for_steps(small.encoder(), torch.zeros(4, 1, 28, 28), 96),
        }
    finally:
        fabric_module.PAYS = 0.0
    return {name: kind is many for name, kind in kinds.items()}


def overlap() -> Result:
    """Gradients are on their way before the backward pass ends."""
    many = engine()
    encoder = ic.Images(8, 1, encoder="small").encoder()
    first, *_ = parameters = list(encoder.parameters())
    sent: list[int] = []
    hook = first.register_post_accumulate_grad_hook(lambda _: sent.append(len(works)))
    works: list[Any] = []
    plain = collectives.Buckets._send
    collectives.Buckets._send = lambda self: (works.append(self), plain(self))  # type: ignore
    collectives.BUCKET = collectives.SMALL = 2**9
    try:
        embeddings = many.forward(encoder, torch.randn(4, 1, 8, 8))
        many.backward(many.gather(embeddings).square().mean(), parameters)
    finally:
        collectives.Buckets._send = plain  # type: ignore[method-assign]
        hook.remove()
    return {"before": sent[0], "all": len(works)}


def batch_norm() -> Result:
    """BatchNorm over shares of unequal size, one of them empty, against BatchNorm over all."""
    many = engine()
    found: Result = {}
    for shape in ((9, 3), (9, 3, 5), (9, 3, 4, 2), (1, 3, 4)):
        whole = torch.randn(shape, generator=Generator().manual_seed(0)).double()
        share = many.share(len(whole))
        ours, theirs = nn.BatchNorm1d(3).double(), nn.BatchNorm1d(3).double()
        with torch.no_grad():
            for norm in (ours, theirs):
                norm.weight.copy_(torch.tensor([0.5, 1.0, 2.0]))
                norm.bias.copy_(torch.tensor([0.1, 0.2, 0.3]))
        ours._check_input_dim = theirs._check_input_dim = lambda x: None  # any number of sides
        weights = torch.randn(shape, generator=Generator().manual_seed(1)).double()

        def steps(
            norm: nn.Module, x: Tensor, mask: Tensor, synchronised: bool
        ) -> tuple[Tensor, ...]:
            x = x.clone().requires_grad_()
            parameters = [x, *norm.parameters()]
            if synchronised:
                with SynchronisedBatchNorm():
                    y = norm(x)
            else:
                y = norm(x)
            first = torch.autograd.grad((y * mask).sum(), parameters, retain_graph=True)
            kept = torch.autograd.grad((y.tanh() * mask).sum(), parameters, create_graph=True)
            second = torch.autograd.grad((kept[0].square() * mask).sum(), parameters)
            return y.detach(), *first, *(g.detach() for g in kept), *second

        one = steps(ours, whole, weights, False)
        mine = slice(share.start, share.stop)
        parts = steps(theirs, whole[mine], weights[mine], True)
        for expected, part in zip(one, parts, strict=True):
            if part.dim() > 1:  # of x: each process has its rows
                got = all_gather_rows(part.flatten(1)).reshape(shape)
            else:  # of weight and bias: each process has its items' share
                got = torch.tensor(all_gather_objects(part.tolist()), dtype=torch.float64).sum(
                    dim=0
                )
            name = f"{len(shape)}d"
            found[name] = max(found.get(name, 0.0), float((got - expected).abs().max()))
        for name in ("running_mean", "running_var"):
            difference = (getattr(ours, name) - getattr(theirs, name)).abs().max()
            found[name] = max(found.get(name, 0.0), float(difference))
    low = torch.randn(8, 3, 4, generator=Generator().manual_seed(2)).bfloat16()
    share = many.share(len(low))
    norm = nn.BatchNorm1d(3)
    with SynchronisedBatchNorm():
        got = norm(low[share.start : share.stop].requires_grad_())
    got.sum().backward()
    expected = functional.batch_norm(low.float(), None, None, training=True)
    found["bfloat16"] = float((got.detach() - expected[share.start : share.stop]).abs().max())
    with SynchronisedBatchNorm():
        norm.eval()(low)
        try:
            norm.train()(torch.zeros(1 - many.rank, 3))
        except ValueError as error:
            found["too few"] = str(error)
    return found


ROWS = torch.randn(300, 5, generator=Generator().manual_seed(4))
FIT = ic.Retrain(max_epochs=3)


def learner(**settings: Any) -> ic.Learner:
    return ic.Learner(
        ic.Vectors(5, hidden=16, out=8),
        fit_strategy=FIT,
        memory=ic.Reservoir(items=90),
        strategy=ic.ICL(max_epochs=2),
        seed=3,
        **settings,
    )


def learners() -> Result:
    """Fit, update and embed through the learner, by one process and by many."""
    many, one = learner(), learner()
    one.engine = Engine("cpu")
    found: Result = {"processes": many.engine.processes}
    for name, of in (("one", one), ("many", many)):
        of.fit(ROWS[:200])
        outcome = of.update(ROWS[200:])
        found[name] = {
            "steps": outcome.steps,
            "passes": outcome.forward_passes,
            "stopped": outcome.stopped,
            "version": of.version,
            "ids": of.memory.ids.tolist(),
            "loss": list(outcome.loss.after),
        }
    found["embeddings"] = float((many.embed(ROWS) - one.embed(ROWS)).abs().max())
    found["weights"] = all_gather_objects(many.embed(ROWS[:3]).tolist())
    found["seconds"] = all_gather_objects(outcome.seconds)
    found["evaluation loss"] = [
        list(of.evaluation_loss(ROWS[:50], ROWS[250:])) for of in (one, many)
    ]
    learned = ic.ICL(max_epochs=4, lr=ic.Learned(start=0.05))
    outcomes = [of.update(ROWS[:60], strategy=learned) for of in (one, many)]
    found["learned"] = [
        [outcome.steps, outcome.rollbacks, outcome.history[-1].lr] for outcome in outcomes
    ]
    found["agents"] = all_gather_objects({n: v.tolist() for n, v in many.schedule_state.items()})
    return found


def brought_back() -> Result:
    """Weights of the second process that are others, before and after each time they are told."""
    told: list[list[float]] = []
    plain = FabricEngine.broadcast_weights

    def watched(self: FabricEngine, encoder: nn.Module) -> None:
        before = _sum(encoder)
        plain(self, encoder)
        told.append([before, _sum(encoder)])
        if self.rank and len(told) == 1:  # training begins
            with torch.no_grad():
                next(encoder.parameters()).add_(1e-3)

    FabricEngine.broadcast_weights = watched  # type: ignore[method-assign]
    try:
        of = learner()
        of.fit_strategy = ic.Retrain(max_epochs=9)  # of 7 steps each
        of.fit(ROWS[:200])
    finally:
        FabricEngine.broadcast_weights = plain  # type: ignore[method-assign]
    return {"told": told}


def _sum(encoder: nn.Module) -> float:
    return sum(float(p.double().sum()) for p in encoder.parameters())


def budgets() -> Result:
    """Clocks differ between processes, decisions do not."""
    of = learner()
    of.engine.broadcast_float(0.0)
    if of.engine.rank:
        time.sleep(0.2)
    of.fit_strategy = ic.Retrain(max_epochs=1_000_000)
    outcome, seconds = None, 1.0
    while outcome is None:
        with suppress(BudgetTooSmall):  # as it is where other work keeps the machine busy
            outcome = of.fit(ROWS, budget=ic.Budget(seconds=seconds))
        seconds *= 3
    return {"stopped": outcome.stopped, "steps": outcome.steps, "passes": outcome.forward_passes}


def few() -> Result:
    """Batches with fewer items than processes."""
    many, one = learner(), learner()
    one.engine = Engine("cpu")
    for of in (one, many):
        of.fit(ROWS[:3])
    return {"embeddings": float((many.embed(ROWS[:1]) - one.embed(ROWS[:1])).abs().max())}


def embedded(count: str) -> Result:
    """Every item once, in order: an encoder that says which item it has seen."""
    many = learner()
    many.fit(ROWS)
    many._encoder = nn.Identity()
    many.domain = replace(many.domain, dim=1, mean=(0.0,), std=(1e9,))
    rows = torch.arange(float(count))[:, None]
    told: list[int] = []
    result = many.embed(rows, progress=told.append)
    return {
        "exact": bool(torch.equal((result * 1e9).round(), rows)),
        "told": told[-1],
        "own": sum(told[-1:]) and len(told),
    }


def fabric() -> Result:
    """A Fabric object of the user's own."""
    from lightning_fabric import Fabric

    found: Result = {}
    mine = Fabric(accelerator="cpu", devices=engine().processes, strategy="ddp")
    mine.launch()
    of = learner(fabric=mine)
    of.fit(ROWS)
    found["processes"] = of.engine.processes
    wrong = Fabric(
        accelerator="cpu", devices=engine().processes, strategy="ddp", precision="64-true"
    )
    wrong.launch()
    for name, settings in {
        "precision": {"fabric": wrong},
        "device": {"fabric": mine, "device": "cpu"},
    }.items():
        try:
            learner(**settings)
        except ValueError as error:
            found[name] = str(error)
    return found


def failures() -> Result:
    """What goes wrong in one process goes wrong in all, and leaves all as they were."""
    of = learner()
    of.fit(ROWS)
    before = of.embed(ROWS)
    found: Result = {}
    second = of.engine.rank == 1
    bad = ROWS[:50].clone()
    if second:
        bad[7] = float("nan")
    for name, items in {
        "unreadable": bad,
        "another number": ROWS[: 50 - of.engine.rank],
        "other items": ROWS[:50] + of.engine.rank,
    }.items():
        try:
            of.update(items)
        except (ValueError, ProcessFailed) as error:
            found[name] = f"{type(error).__name__}: {error}"
    of.keep_neighbours = 0.9 if second else 0.8
    try:
        of.update(ROWS[:50])
    except ValueError as error:
        found["another bound"] = str(error)
    of.keep_neighbours = None
    try:
        of.update(ROWS[:50], strategy=ic.ICL(lr=ic.Fixed(1e30)))
    except ic.TrainingDiverged as error:
        found["diverged"] = str(error)
    found["unchanged"] = bool(torch.equal(before, of.embed(ROWS))) and of.version == 1
    of.keep_neighbours = 0.999
    found["kept"] = of.update(ROWS[:50], strategy=ic.ICL(max_epochs=2, lr=0.3)).kept
    found["version"] = of.version
    found["embeddings"] = of.embed(ROWS[:3]).tolist()
    return found


class Kept(Logger):
    """Keeps the names of what it is given; in the first process, it fails from the start."""

    def __init__(self, *, fails: bool) -> None:
        super().__init__(every=1, pictures=cases.pixels(6))
        self.failed, self.names = fails and int(os.environ["RANK"]) == 0, set[str]()

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self.names |= set(values)

    def image(self, name: str, pixels: Any, step: int) -> None:
        self.names.add(name)


def logged() -> Result:
    """A logger with pictures, and one that has failed in one process only."""
    of = ic.Learner(ic.Images(8, 1, encoder="small"), fit_strategy=ic.Retrain(max_epochs=1))
    good, failing = Kept(fails=False), Kept(fails=True)
    of.fit(cases.pixels(40), callbacks=[failing, good])
    return {"good": sorted(good.names), "failing": sorted(failing.names)}


@dataclass(frozen=True)
class Slow:
    """Does something to one process after a few steps."""

    rank: int
    what: str

    def __call__(self, progress: Progress) -> None:
        if progress.steps == 3 and int(os.environ["RANK"]) == self.rank:
            if self.what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(9)


def lost(what: str) -> Result:
    """One process is killed, or falls silent, in the middle of an update."""
    of = learner()
    of.fit(ROWS)
    before = {name: value.clone() for name, value in of.encoder.state_dict().items()}
    begin = time.monotonic()
    message = None
    try:
        of.update(ROWS[:100], callbacks=[Slow(1, what)])
    except LostProcess as error:
        message = str(error)
    after = of.encoder.state_dict()
    return {
        "message": message,
        "seconds": time.monotonic() - begin,
        "unchanged": of.version == 1 and all(torch.equal(before[n], after[n]) for n in before),
    }


def spaces() -> Result:
    """A workspace of two processes, step by step, beside one of a single process."""
    many, one = learner(), learner()
    folder = Path(os.environ["TEST_FOLDER"])
    together = ic.Workspace.create(folder / "many", many)
    found: Result = {"device": str(together.engine.device)}
    together.fit(ROWS[:200])
    step = together.update(ROWS[200:], force=True)
    found["step"] = [step.version, step.promoted, step.items]
    rank = together.engine.rank
    try:
        together.fit(ROWS)
    except (ic.WorkspaceError, ProcessFailed) as error:
        found["refused"] = f"{type(error).__name__}: {error}"
    np.save(folder / f"rows-{rank}.npy", ROWS)  # a source must be seen by all, under one name
    source = Source(folder / "rows-0.npy", "vectors", ROWS.numpy())
    together.engine.broadcast_float(0.0)
    for name in ("joined.npy", "shards"):
        done = embed_source(together, source, folder / name)
        found[name] = [done.rows, done.added, embed_source(together, source, folder / name).added]
    if rank == 0:
        one.engine = Engine("cpu")
        found.update(_beside(one, together, source, folder))
    together.engine.broadcast_float(0.0)
    return found


def _beside(one: ic.Learner, together: ic.Workspace, source: Source, folder: Path) -> Result:
    """What one process makes of the same, as the first process sees it."""
    found: Result = {}
    one.fit(ROWS[:200])
    one.update(ROWS[200:])
    many = together.learner()
    many.engine = Engine("cpu")
    expected = many.embed(ROWS)
    found["embeddings"] = float((one.embed(ROWS) - expected).abs().max())
    found["ids"] = many.memory.ids.tolist() == one.memory.ids.tolist()
    found["joined"] = bool(np.array_equal(np.load(folder / "joined.npy"), expected.numpy()))
    manifest = read_json(folder / "shards" / "manifest.json")
    parts = [np.load(folder / "shards" / entry["file"]) for entry in manifest["shards"]]
    found["sharded"] = bool(np.array_equal(np.concatenate(parts), expected.numpy()))
    found["wrong"] = together.check()
    found["journal"] = [event["step"] for event in together.journal.events()]
    found["leftovers"] = sorted(p.name for p in folder.iterdir() if p.name.startswith("."))
    return found


def embedding(what: str) -> Result:
    """Many small shards; one process is killed after the first round, if asked to."""
    folder = Path(os.environ["TEST_FOLDER"])
    os.environ["INCONTRAST_TIMEOUT"] = "60"
    of_files.CHUNK = 64
    of = learner()
    rank = of.engine.rank
    made = (folder / "space" / "state.json").exists()
    of.engine.broadcast_float(0.0)  # all have looked
    if not made:
        ic.Workspace.create(folder / "space", of).fit(ROWS)
    space = ic.Workspace.open(folder / "space")
    rows = torch.randn(10007, 5, generator=Generator().manual_seed(9)).numpy()
    if rank == 0:
        np.save(folder / "rows.npy", rows)
        os.utime(folder / "rows.npy", (0, 0))
    of.engine.broadcast_float(0.0)
    source = Source(folder / "rows.npy", "vectors", rows)

    def progress(done: int, total: int) -> None:
        if what == "killed" and rank == 1 and done > 2000:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        done = embed_source(space, source, folder / "all.npy", progress=progress)
    except LostProcess as error:
        return {"message": str(error)}
    if rank > 0:
        return {}
    encoder = space.learner(memory=False)
    encoder.engine = Engine("cpu")
    names = (folder / "all.ids.jsonl").read_text().splitlines()
    expected = [
        encoder.embed(part).numpy() for part in torch.from_numpy(rows).split(of_files.CHUNK)
    ]
    return {
        "rows": done.rows,
        "equal": bool(np.array_equal(np.load(folder / "all.npy"), np.concatenate(expected))),
        "names": names == [f'"{number}"' for number in range(len(rows))],
    }
