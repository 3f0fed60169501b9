"""``incontrast adopt``: an encoder that was trained elsewhere becomes version 1."""

import shutil
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from incontrast.cli.command import Answer, with_workspace
from incontrast.cli.encoder import discard, opened, probe_set, result_of
from incontrast.cli.init import domain_of, own_code, settings_with, usual_threads
from incontrast.cli.output import note
from incontrast.data import read_source
from incontrast.domains.base import Domain
from incontrast.domains.images import Images
from incontrast.domains.vectors import Vectors
from incontrast.heads import check_head
from incontrast.import_path import OURS, ImportPath, as_import_path
from incontrast.learner import ADOPTED, Learner, adopted_settings
from incontrast.memory.memory import KeepAll, Reservoir
from incontrast.workspace import Workspace
from incontrast.workspace.config import config_of, flattened, parse_changes
from incontrast.workspace.files import SETTINGS, Busy, locked
from incontrast.workspace.workspace import create_workspace


def adopt(args: Namespace) -> Answer:
    if args.data is None:
        return _finish(args)
    head = check_head(own_code("head", args.head, args.head_args))
    for code in (as_import_path(args.network["encoder"]), head):
        if isinstance(code, ImportPath):
            code.resolve()  # before data are read
    folder, existed = args.workspace, args.workspace.exists()
    space = opened(args) if (folder / SETTINGS).is_file() else None
    created = space is None
    read = partial(read_source, check=False) if space is None else space.read
    source = read(args.data, **args.table)
    domain = domain_of(source, **args.network, views=args.views)
    domain = _normalised(domain, args.mean, args.std)
    learner = Learner(
        domain,
        memory=KeepAll() if args.seen_count is None else Reservoir(),
        head=head,
        **adopted_settings(domain),
    )
    epochs = [] if args.epochs is None else [f"strategy.max_epochs={args.epochs}"]
    changes = [*(args.changes or []), *epochs]
    threads = usual_threads(domain)
    settings, learner = settings_with(changes, learner, threads=threads, table=args.table)
    if space is None:
        create_workspace(folder, learner, settings)
        space = opened(args)
    config = config_of(settings)
    chosen = {*parse_changes(changes, config)}
    chosen |= {"domain"} if any((*args.network.values(), args.mean, args.std)) else set()
    chosen |= {"head"} if head is not None else set()
    _check_same(space, config, chosen)
    for remark in _remarks(space, args):
        note(with_workspace(remark, vars(args)))
    names = ("weights", "head_weights", "seen_count", "strict", "force", "discard")
    options = {name: getattr(args, name) for name in names}
    try:
        step = space.adopt(source, probe=probe_set(args), notify=note, **options)
    except Exception:
        if created:
            _remove_unused(space, keep_folder=existed)
        raise
    return result_of(space, step)


def _normalised(
    domain: Domain, mean: tuple[float, ...] | None, std: tuple[float, ...] | None
) -> Domain:
    """The domain with the normalisation that the encoder was trained with."""
    if isinstance(domain, Images):
        return replace(domain, mean=mean, std=std)
    if isinstance(domain, Vectors):
        # One number is for all columns.
        mean = mean * domain.dim if mean and len(mean) == 1 else mean
        std = std * domain.dim if std and len(std) == 1 else std
        limit = None if mean and std else domain.limit
        return replace(domain, mean=mean, std=std, limit=limit)
    if mean or std:
        raise ValueError("--mean and --std are for images and vectors")
    return domain


def _check_same(space: Workspace, config: dict[str, Any], chosen: set[str]) -> None:
    """Refuse a workspace whose settings are not those that were chosen."""
    present, wanted = flattened(config_of(space.settings)), flattened(config)
    different = [
        f"{name} is {present.get(name)!s:.60}, got {wanted.get(name)!s:.60}"
        for name in present | wanted
        if present.get(name) != wanted.get(name)
        and any(f"{name}.".startswith(f"{part}.") for part in chosen)
    ]
    if different:
        raise ValueError(
            f"{space.folder} is a workspace with other settings already: {'; '.join(different)}. "
            "Choose another folder with --workspace, or see incontrast config"
        )


def _remarks(space: Workspace, args: Namespace) -> Iterator[str]:
    """How items are normalised, and what a first version has to do without."""
    template = space.template()
    domain, bound = template.initial_domain, template.keep_neighbours
    if isinstance(domain, Images | Vectors):
        advice = ": give what your model was trained with by --mean and --std"
        advice += " (0 and 1 leave rows unchanged)" * isinstance(domain, Vectors)
        yield domain.normalisation + ("" if args.mean and args.std else advice)
    if space.current is not None:
        return
    encoder = domain.arguments()["encoder"]
    if args.weights is None and not isinstance(encoder, ImportPath):
        yield "no --weights given: those of the encoder are random"
    elif args.weights is None and encoder.path != OURS:
        yield f"no --weights given: the encoder is as {encoder.path} makes it"
    if template.head is not None and args.head_weights is None:
        yield "no --head-weights given: those of the head are random"
    if args.probing["probe"] is None:
        limit = "any number" if bound is None else f"at most {1 - bound:.0%}"
        yield (
            f"no --probe given: an update may replace {limit} of old items' ten nearest; "
            "labelled items would judge better. incontrast config --set keep_neighbours=none suits "
            f"a model trained on views of these data, {ADOPTED} one that knows more"
        )


def _finish(args: Namespace) -> Answer:
    """Resume an adoption that is complete but for its evaluation, or drop it."""
    space = opened(args)
    if args.discard:
        return discard(space, "adopt")
    if space.state().phase == "ingested":
        raise ValueError(
            "the weights are not written yet: run the previous command again, with DATA and its "
            "options, or with --discard to drop it"
        )
    return result_of(space, space.adopt(force=args.force, strict=args.strict, notify=note))


def _remove_unused(space: Workspace, *, keep_folder: bool) -> None:
    """Delete a workspace that this command has created, unless it is in use by now."""
    with suppress(Busy), locked(space.lock_file, "adopt"):
        if space.current is not None:
            return
        for path in space.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not keep_folder:
            space.folder.rmdir()
