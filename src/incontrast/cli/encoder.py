"""``incontrast fit``, ``adopt``, ``update``, ``embed``, ``drift``: commands that run an encoder.

By this process, or by all processes that torchrun has started.
"""

import logging
import os
import shlex
import shutil
import signal
import socket
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import torch

from incontrast.cli.command import Answer, Exit, with_workspace
from incontrast.cli.init import domain_of, own_code, settings_with, strategy_named, usual_threads
from incontrast.cli.output import (
    counting_bar,
    note,
    note_skipped,
    processes,
    speaks,
    stderr,
    training_bar,
)
from incontrast.cli.report import summary, write_report
from incontrast.data import ProbeSet, read_source
from incontrast.domains.images import Images
from incontrast.domains.vectors import Vectors
from incontrast.exporting import export as write_encoder
from incontrast.heads import check_head
from incontrast.import_path import OURS, ImportPath, as_import_path
from incontrast.learner import ADOPTED, Learner, adopted_settings
from incontrast.loggers import logger_named
from incontrast.memory.memory import KeepAll, Reservoir
from incontrast.memory.store import KnownHashes, Store
from incontrast.settings import changed
from incontrast.text import counted, index_advice
from incontrast.training.collectives import LostProcess
from incontrast.training.engine import choose_engine
from incontrast.training.progress import Budget
from incontrast.workspace import Workspace
from incontrast.workspace.config import config_of, flattened, parse_changes
from incontrast.workspace.embeddings import embed_source
from incontrast.workspace.files import SETTINGS, Busy, locked
from incontrast.workspace.ingest import NewData, left_out
from incontrast.workspace.update import Step
from incontrast.workspace.workspace import create_workspace


def fit(args: Namespace) -> Answer | None:
    return _train(Workspace.fit, args)


def update(args: Namespace) -> Answer | None:
    options = {name: getattr(args, name) for name in ("again", "tolerance", "only_if_drift")}
    if args.strategy is not None:
        options["strategy"] = strategy_named(args.strategy, args.epochs)
    elif args.epochs is not None:
        own = Workspace.open(args.workspace, trust=args.trust).template().strategy
        options["strategy"] = replace(own, max_epochs=args.epochs)
    return _train(Workspace.update, args, **options)


def _train(run: Callable[..., Step], args: Namespace, **options: Any) -> Answer | None:
    kind, training, source = run.__name__, args.training, args.data
    space, first = _opened(args), speaks()
    if training["discard"] and source is None:
        return _discard(space, kind) if first else None
    limits = {name: training.pop(name) for name in ("seconds", "forward_passes")}
    log_to = training.pop("log_to")
    with space.engine.error_barrier("read the data"):
        # The first process ingests the data; the others read them from the workspace.
        if not first:
            source = None
        elif source is not None and source.suffix != ".tar":
            source = space.read(source, **args.table)
    with training_bar(stderr(), kind) as progress:
        step = run(
            space,
            source,
            budget=Budget(**limits),
            probe=_probe_set(args),
            callbacks=[progress, *([logger_named(log_to)] if log_to is not None and first else [])],
            notify=note,
            **training,
            **options,
        )
    return _told(space, step)


def _probe_set(args: Namespace) -> ProbeSet | None:
    probe, label = args.probing.values()
    return None if probe is None else ProbeSet(probe, label)


def adopt(args: Namespace) -> Answer:
    """Take an encoder as version 1."""
    if args.data is None:
        return _finish_adoption(args)
    own_head = check_head(own_code("head", args.head, args.head_args))
    for code in (as_import_path(args.network["encoder"]), own_head):
        if isinstance(code, ImportPath):
            code.resolve()  # or data would be read for nothing
    folder = args.workspace
    created, existed = not (folder / SETTINGS).is_file(), folder.exists()
    space = None if created else _opened(args)
    read = partial(read_source, check=False) if space is None else space.read
    source = read(args.data, **args.table)
    domain, mean, std = domain_of(source, **args.network, views=args.views), args.mean, args.std
    if isinstance(domain, Images):
        domain = replace(domain, mean=mean, std=std)
    elif isinstance(domain, Vectors):
        mean, std = (
            given * domain.dim if given and len(given) == 1 else given for given in (mean, std)
        )
        limit = None if mean and std else domain.limit  # of a model that has its own
        domain = replace(domain, mean=mean, std=std, limit=limit)
    elif mean or std:
        raise ValueError(
            f"--mean and --std are for images and vectors, and {args.data} has {source.kind}"
        )
    learner = Learner(
        domain,
        memory=KeepAll() if args.seen_count is None else Reservoir(),
        head=own_head,
        **adopted_settings(domain),
    )
    epochs = [] if args.epochs is None else [f"strategy.max_epochs={args.epochs}"]
    changes, threads = [*(args.changes or []), *epochs], usual_threads(domain)
    settings, learner = settings_with(changes, learner, threads=threads, table=args.table)
    if space is None:
        create_workspace(folder, learner, settings)
        space = _opened(args)
    else:
        config = config_of(space.settings)
        if changed(config, parse_changes(changes, config)) != config:
            raise ValueError(
                f"--set and --epochs are for a new workspace, and {folder} has other settings: "
                "incontrast config changes them"
            )
    named = ["domain"] if any((*args.network.values(), mean, std)) else []
    named += ["head"] if own_head is not None else []
    parts = ({name: config_of(each)[name] for name in named} for each in (space.settings, settings))
    theirs, ours = map(flattened, parts)
    other = [name for name in theirs | ours if theirs.get(name) != ours.get(name)]
    if other:
        told = (f"{name} is {theirs.get(name)!s:.60}, got {ours.get(name)!s:.60}" for name in other)
        raise ValueError(
            f"{folder} is a workspace with other settings already: {'; '.join(told)}. Choose "
            "another folder with --workspace"
        )
    template = space.template()
    domain = template.initial_domain
    if isinstance(domain, Images | Vectors):
        advice = (
            "" if mean and std else ": give what your model was trained with by --mean and --std"
        )
        if advice and isinstance(domain, Vectors):
            advice += " (rows as they are: --mean 0 --std 1)"
        note(domain.normalisation + advice)
    if space.current is None:
        for remark in _missing(template, args):
            note(with_workspace(remark, vars(args)))
    names = ("weights", "head_weights", "seen_count", "strict", "force", "discard")
    options = {name: getattr(args, name) for name in names}
    try:
        step = space.adopt(source, probe=_probe_set(args), notify=note, **options)
    except Exception:
        if created:
            _remove_unused(space, keep_folder=existed)
        raise
    return _told(space, step)


def _missing(template: Learner, args: Namespace) -> Iterator[str]:
    """What a first version has to do without."""
    encoder, bound = template.initial_domain.arguments()["encoder"], template.keep_neighbours
    if args.weights is None and not isinstance(encoder, ImportPath):
        yield "no --weights given: those of the encoder are random"
    elif args.weights is None and encoder.path != OURS:
        yield f"no --weights given: the encoder is as {encoder.path} makes it"
    if args.probing["probe"] is None and bound is not None:
        yield (
            "no --probe given: an update keeps a part of its change if all of it would replace "
            f"more than {100 - 100 * bound:.0f} % of old items' ten nearest. A probe set of "
            "labelled items tells better how much it may change; for a model that was trained on "
            "these data by views, incontrast config --set keep_neighbours=none takes the bound away"
        )
    elif args.probing["probe"] is None:
        yield (
            "no --probe given, and keep_neighbours is none: losses alone tell what an update does "
            "to old items. For a model that knows more than views can teach, bound that by "
            f"incontrast config --set keep_neighbours={ADOPTED}"
        )
    if template.head is not None and args.head_weights is None:
        yield "no --head-weights given: those of the head are random"


def _finish_adoption(args: Namespace) -> Answer:
    """Resume one that needs no more than what it has written, or drop it."""
    space = _opened(args)
    if args.discard:
        return _discard(space, "adopt")
    if space.state().phase == "ingested":
        raise ValueError(
            "the weights are not written yet: run the command of before once more, with DATA and "
            "its options, or with --discard to drop it"
        )
    return _told(space, space.adopt(force=args.force, strict=args.strict, notify=note))


def _remove_unused(space: Workspace, *, keep_folder: bool) -> None:
    """Delete a workspace that this command has created, unless somebody uses it by now."""
    with suppress(Busy), locked(space.lock_file, "adopt"):
        if space.current is not None:
            return
        for path in space.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not keep_folder:
            space.folder.rmdir()


def _told(space: Workspace, step: Step) -> Answer:
    """What came of a fit, an adoption or an update, with its page; the first process tells it."""
    code, page = Exit.DONE if step.promoted else Exit.REFUSED, None
    if not speaks():
        return Answer(None, (), code)
    note_skipped(step.skipped)
    try:
        if not step.repeated or not space.report_file(step.version).exists():
            page = write_report(space, step.version)
    except OSError as error:
        note(f"the report cannot be written: {error}")
    already = f"version {step.version} has learned from these data already"
    lines = [f"Nothing to do: {already} (--again ingests them once more)."]
    if not step.repeated:
        lines = [*summary(space, step.version), *([f"Report: {page}"] if page else [])]
    return Answer({**vars(step), "report": page}, lines, code)


def _discard(space: Workspace, kind: str) -> Answer:
    dropped = space.discard(kind)
    line = "nothing was interrupted or refused: there is nothing to drop"
    if dropped:
        line = "what was interrupted or refused is dropped; the current version is as it was"
    return Answer({"discarded": dropped}, [line])


def embed(args: Namespace) -> Answer | None:
    space = _opened(args)
    with space.engine.error_barrier("read the data"):
        source = space.read(args.data, **args.table)
    names = ("version", "space", "normalized", "dtype", "append", "overwrite", "strict")
    options = {name: getattr(args, name) for name in names}
    with counting_bar(stderr(), "embed") as progress:
        done = embed_source(space, source, args.to, progress=progress, **options)
    if not speaks():
        return None
    note_skipped(done.skipped)
    place = "of" if args.space is None else "in the space of"
    rows = f"{done.rows:,} embeddings {place} version {done.version}"
    line = f"{done.file}: {rows}, {done.added:,} of them new"
    unchanged = f"{done.file} is up to date: {rows}"
    return Answer(vars(done), [line if done.added or done.skipped else unchanged])


def export(args: Namespace) -> Answer:
    space = _opened(args)
    about = write_encoder(space.learner(args.version), args.file, normalized=args.normalized)
    line = f"{args.file}: the encoder as {about['format']}"
    if about["items"]:
        line += f", at most {about['difference']:.1e} off on {counted(about['items'])}"
    return Answer(about, [line])


def reembed(args: Namespace) -> Answer:
    from incontrast.workspace.reembed import reembed as bring

    space = _opened(args)
    share = None if args.share is None else float(args.share.rstrip("%")) / 100
    how: dict[str, Any] = {"plan": args.plan, "share": share, "seconds": args.seconds, **args.table}
    with counting_bar(stderr(), "re-embed") as progress:
        done = bring(space, args.vectors, queries=args.queries, progress=progress, **how)
    expected = [each._asdict() for each in done.expected]
    lines = [
        f"{each.share:>4.0%} re-embedded: recall@10 {each.recall:.3f}, precision@10 "
        f"{each.precision:.3f}, {max(each.share * done.rows, done.sample) * done.seconds:.0f} s"
        for each in done.expected
    ]
    few = done.sample == done.rows
    if not few and done.sample and (args.plan or done.exact == done.sample):
        rows = f"{done.sample:,} rows ({done.sample / done.rows:.1%})"
        lines.append(f"{rows} are re-embedded in any case: the map is fitted on them.")
    if args.plan and expected:
        lines.append(index_advice(expected, done.sample))
    elif args.plan and few:
        lines.append(f"{done.rows:,} rows are few: `incontrast reembed` embeds all, and maps none.")
    elif args.plan or done.exact == done.rows:
        lines.append(f"{done.file}: {done.exact:,} of {done.rows:,} embedded by {done.version}")
    else:
        lines.append(
            f"{done.file} is in the space of version {done.version}: {done.exact:,} of "
            f"{done.rows:,} vectors re-embedded, the others mapped"
        )
    return Answer({**vars(done), "expected": expected}, lines)


def drift(args: Namespace) -> Answer:
    space = _opened(args)
    data, how = args.data, {"strict": args.strict, **args.table}
    version = space.serving()  # another may be promoted meanwhile
    learner = space.learner(version)
    source = space.read(data, **how)
    source.check(learner.domain)
    if source.kind == "images":
        source = space.read(data, check=True, **how)  # finds out which can be read
    note_skipped([skip.reason for skip in source.skipped])
    with closing(Store.open(space.store_file, readonly=True)) as store:
        hashes = KnownHashes(store, space.versions.extent(version))
    parts = [hashes.contains(contents) for contents in NewData(source, learner.domain).packed()]
    ingested, dropped = map(np.concatenate, zip(*parts, strict=True))
    known, forgotten = int(ingested.sum()), int(dropped.sum())
    counts = {"known": known, "forgotten": forgotten, "version": version}
    remarks = [f"{left_out(forgotten)}."] if forgotten else []
    if known + forgotten == len(ingested):
        nothing = {"drifted": False, "advice": "nothing to do", **counts}
        seen = f"all {known + forgotten:,} items have been ingested already"
        return Answer(nothing, [f"Nothing new: {seen}. No update is needed.", *remarks])
    new = torch.from_numpy(~ingested & ~dropped).nonzero()[:, 0]  # what an update would ingest
    found = learner.drift(
        learner.domain.collect(source.items).select(new), significance=args.significance
    )
    lines = [str(found)]
    if found.drifted:
        lines.append(f"incontrast update {shlex.quote(str(data))} does that.")
    if known:
        lines.append(f"{counted(known)} had been ingested before, and were left out.")
    told = {"drifted": found.drifted, "advice": found.advice, **counts}
    value = {**vars(found), "change_ratio": found.change_ratio._asdict(), **told}
    code = Exit.DRIFT if found.drifted and args.fail_on_drift else Exit.DONE
    return Answer(value, [*lines, *remarks], code)


def _opened(args: Namespace) -> Workspace:
    """The workspace, with its number of threads set; by all processes or by none."""
    if processes() > 1:
        with suppress(ImportError):  # choose_engine says what to install
            import lightning_fabric  # noqa: F401 (sets its logger's level)
        logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
        signal.signal(signal.SIGTERM, _terminated)
    with choose_engine(None, "float32", None).error_barrier("open the workspace"):
        workspace = Workspace.open(args.workspace, trust=args.trust)
    if workspace.settings["threads"] is not None:
        torch.set_num_threads(workspace.settings["threads"])
    return workspace


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise LostProcess(
        f"process {os.environ.get('RANK', '0')} of {processes()} ({socket.gethostname()}) was "
        "ended, because another one has ended. What was complete stays as it was: look for the "
        "first error, then run it again"
    )
