"""``incontrast fit``, ``update``, ``embed``, ``export``, ``reembed`` and ``drift``.

They run an encoder: in this process, or in all processes that torchrun has started.
"""

import logging
import os
import shlex
import signal
import socket
from argparse import Namespace
from contextlib import closing, suppress
from dataclasses import replace
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import torch

from incontrast.cli.command import Answer, Exit
from incontrast.cli.init import strategy_named
from incontrast.cli.output import (
    counting_bar,
    is_first,
    note,
    note_skipped,
    processes,
    stderr,
    training_bar,
)
from incontrast.cli.report import recorded, write_report
from incontrast.data import ProbeSet
from incontrast.exporting import export as write_encoder
from incontrast.loggers import logger_named
from incontrast.memory.store import KnownHashes, Store
from incontrast.report.update import summary
from incontrast.text import counted, index_advice
from incontrast.training.collectives import LostProcess
from incontrast.training.engine import choose_engine
from incontrast.training.progress import Budget
from incontrast.workspace import Workspace
from incontrast.workspace.embeddings import embed_source
from incontrast.workspace.ingest import NewData, left_out
from incontrast.workspace.update import Step


def fit(args: Namespace) -> Answer | None:
    return _train("fit", args, opened(args))


def update(args: Namespace) -> Answer | None:
    space = opened(args)
    options = {name: getattr(args, name) for name in ("again", "tolerance", "only_if_drift")}
    if args.strategy is not None:
        options["strategy"] = strategy_named(args.strategy, args.epochs)
    elif args.epochs is not None:
        options["strategy"] = replace(space.template().strategy, max_epochs=args.epochs)
    return _train("update", args, space, **options)


def _train(kind: str, args: Namespace, space: Workspace, **options: Any) -> Answer | None:
    training, source, first = args.training, args.data, is_first()
    if training["discard"] and source is None:
        return discard(space, kind) if first else None
    budget = Budget(**{name: training.pop(name) for name in ("seconds", "forward_passes")})
    log_to = training.pop("log_to")
    loggers = [logger_named(log_to)] if log_to is not None and first else []
    with space.engine.error_barrier("read the data"):
        # The first process ingests the data; the others read them from the workspace.
        if not first:
            source = None
        elif source is not None and source.suffix != ".tar":
            source = space.read(source, **args.table)
    with training_bar(stderr(), kind) as progress:
        step: Step = getattr(space, kind)(
            source,
            budget=budget,
            probe=probe_set(args),
            callbacks=[progress, *loggers],
            notify=note,
            **training,
            **options,
        )
    return result_of(space, step)


def embed(args: Namespace) -> Answer | None:
    space = opened(args)
    with space.engine.error_barrier("read the data"):
        source = space.read(args.data, **args.table)
    names = ("version", "space", "normalized", "dtype", "append", "overwrite", "strict")
    options = {name: getattr(args, name) for name in names}
    with counting_bar(stderr(), "embed") as progress:
        result = embed_source(space, source, args.to, progress=progress, **options)
    if not is_first():
        return None
    note_skipped(result.skipped)
    place = "of" if args.space is None else "in the space of"
    rows = f"{result.rows:,} embeddings {place} version {result.version}"
    line = f"{result.file} is up to date: {rows}"
    if result.added or result.skipped:
        line = f"{result.file}: {rows}, {result.added:,} of them new"
    return Answer(vars(result), [line])


def export(args: Namespace) -> Answer:
    space = opened(args)
    about = write_encoder(space.learner(args.version), args.file, normalized=args.normalized)
    line = f"{args.file}: the encoder as {about['format']}"
    if about["items"]:
        line += f", at most {about['difference']:.1e} off on {counted(about['items'])}"
    return Answer(about, [line])


def reembed(args: Namespace) -> Answer:
    from incontrast.workspace.reembed import reembed as reembed_file

    space = opened(args)
    with counting_bar(stderr(), "re-embed") as progress:
        result = reembed_file(
            space,
            args.vectors,
            plan=args.plan,
            share=None if args.share is None else float(args.share.rstrip("%")) / 100,
            seconds=args.seconds,
            queries=args.queries,
            progress=progress,
            **args.table,
        )
    expected = [row._asdict() for row in result.expected]
    lines = [
        f"{row.share:>4.0%} re-embedded: recall@10 {row.recall:.3f}, precision@10 "
        f"{row.precision:.3f}, {max(row.share * result.rows, result.sample) * result.seconds:.0f} s"
        for row in result.expected
    ]
    if expected and (args.plan or result.exact == result.sample):
        sample = f"{result.sample:,} rows ({result.sample / result.rows:.1%})"
        lines.append(f"{sample} are re-embedded in any case: the map is fitted on them.")
    if args.plan and expected:
        lines.append(index_advice(expected, result.sample))
    elif args.plan and result.sample == result.rows:
        lines.append(f"{result.rows:,} rows are few: all would be re-embedded, and none mapped.")
    else:
        rest = "" if result.exact == result.rows else ", the others mapped"
        lines.append(
            f"{result.file}: {result.exact:,} of {result.rows:,} vectors embedded by version "
            f"{result.version}{rest}"
        )
    return Answer({**vars(result), "expected": expected}, lines)


def drift(args: Namespace) -> Answer:
    space = opened(args)
    version = space.serving()  # another may be promoted meanwhile
    learner = space.learner(version)
    options = {"strict": args.strict, **args.table}
    source = space.read(args.data, **options)
    source.check(learner.domain)
    if source.kind == "images":
        source = space.read(args.data, check=True, **options)  # finds those that cannot be read
    note_skipped([skip.reason for skip in source.skipped])
    with closing(Store.open(space.store_file, readonly=True)) as store:
        hashes = KnownHashes(store, space.versions.extent(version))
    parts = [hashes.contains(contents) for contents in NewData(source, learner.domain).packed()]
    known, forgotten = map(np.concatenate, zip(*parts, strict=True))
    new = torch.from_numpy(~(known | forgotten)).nonzero()[:, 0]  # what an update would ingest
    counts = {"known": int(known.sum()), "forgotten": int(forgotten.sum()), "version": version}
    remarks = [f"{left_out(counts['forgotten'])}."] if counts["forgotten"] else []
    if not len(new):
        line = f"Nothing new: all {len(known):,} items have been ingested already."
        value = {"drifted": False, "advice": "nothing to do", **counts}
        return Answer(value, [f"{line} No update is needed.", *remarks])
    items = learner.domain.collect(source.items).select(new)
    result = learner.drift(items, significance=args.significance)
    lines = [str(result)]
    if result.drifted:
        lines.append(f"incontrast update {shlex.quote(str(args.data))} does that.")
    if counts["known"]:
        lines.append(f"{counted(counts['known'])} had been ingested before, and were left out.")
    value = {**vars(result), "change_ratio": result.change_ratio._asdict(), **counts}
    value |= {"drifted": result.drifted, "advice": result.advice}
    code = Exit.DRIFT if result.drifted and args.fail_on_drift else Exit.DONE
    return Answer(value, [*lines, *remarks], code)


def opened(args: Namespace) -> Workspace:
    """The workspace, with its number of threads set; in all processes or in none."""
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
        "ended, because another one has ended. What was complete is kept: look for the first "
        "error, then run it again"
    )


def probe_set(args: Namespace) -> ProbeSet | None:
    path, label = args.probing.values()
    return None if path is None else ProbeSet(path, label)


def result_of(space: Workspace, step: Step) -> Answer:
    """The result of a fit, an adoption or an update, of which the first process writes the page."""
    code = Exit.DONE if step.promoted else Exit.REFUSED
    if not is_first():
        return Answer(None, (), code)
    note_skipped(step.skipped)
    version, page = recorded(space, step.version), None
    try:
        if not step.repeated or not space.report_file(step.version).exists():
            page = write_report(space, version)
    except OSError as error:
        note(f"the report cannot be written: {error}")
    already = f"version {step.version} has learned from these data already"
    lines = [f"Nothing to do: {already} (--again ingests them once more)."]
    if not step.repeated:
        lines = [*summary(version), *([f"Report: {page}"] if page else [])]
    return Answer({**vars(step), "report": page}, lines, code)


def discard(space: Workspace, kind: str) -> Answer:
    """Drop what was interrupted or refused."""
    dropped = space.discard(kind)
    line = "nothing was interrupted or refused: there is nothing to drop"
    if dropped:
        line = "what was interrupted or refused is dropped; no version has changed"
    return Answer({"discarded": dropped}, [line])
