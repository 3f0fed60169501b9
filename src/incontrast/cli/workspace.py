"""``status``, ``config``, ``log``, ``rollback``, ``forget``, ``serve``: what trains nothing."""

import json
import os
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from incontrast.cli.command import Answer, Exit
from incontrast.cli.output import note, note_skipped
from incontrast.extras import needed
from incontrast.memory.store import content_hash
from incontrast.text import counted, sentence
from incontrast.workspace import Workspace
from incontrast.workspace.config import config_of, to_toml
from incontrast.workspace.stamps import outputs
from incontrast.workspace.status import status_of, unfinished


def status(args: Namespace) -> Answer:
    space = Workspace.open(args.workspace)
    damage = space.check() if args.check else []
    about: dict[str, Any] = {"folder": str(space.folder)} if damage else status_of(space)
    if args.check:
        about["damage"] = damage
    return Answer(about, _lines(about), Exit.DAMAGED if damage else Exit.DONE)


def _lines(about: dict[str, Any]) -> Iterator[str]:
    yield about["folder"]
    if about.get("damage"):
        yield from (f"  damage: {text}" for text in about["damage"])
        return
    if about["current"] is None:
        yield "  no encoder yet: run incontrast fit DATA"
    else:
        yield (
            f"  version {about['current']} of {about['domain']}, created {about['created']}; "
            f"kept: {', '.join(map(str, about['versions']))}"
        )
        yield (
            f"  memory: {about['kept']:,} items stored / {about['seen']:,} seen ({about['policy']})"
        )
    yield f"  disk: {about['bytes'] / 2**20:.1f} MB"
    if about["unfinished"]:
        yield f"  unfinished: {about['unfinished']}"
    if about["advice"]:
        yield f"  next: {about['advice']}"
    if about["writer"]:
        yield f"  being written by {about['writer']}"
    for output in about["embeddings"]:
        state = "up to date" if output["current"] else "out of date"
        state = state if output["complete"] else f"unfinished, {state}"
        state += f", {counted(output['mapped'], 'vector')} mapped" if output["mapped"] else ""
        yield f"  {output['file']}: version {output['version']}, {state}"
    if "damage" in about:
        yield "  every file is as it was written"


def log(args: Namespace) -> Answer:
    records = Workspace.open(args.workspace).journal.records(args.last)
    value = [each if isinstance(each, dict) else {"damaged": str(each)} for each in records]
    lines = (
        f"{each['time']}  {sentence(each)}" if isinstance(each, dict) else str(each)
        for each in records
    )
    return Answer(value, lines)


def config(args: Namespace) -> Answer:
    space = Workspace.open(args.workspace, trust=args.trust)
    if not args.changes:
        shown = config_of(space.settings)
        return Answer(shown, [to_toml(shown).rstrip()])
    done = space.configure(*args.changes)
    return Answer(done, [f"{name} = {json.dumps(value)}" for name, value in done.items()])


def rollback(args: Namespace) -> Answer:
    space = Workspace.open(args.workspace)
    dropped, before = unfinished(space), None if args.to else space.current
    number = space.rollback(args.to)
    if number == before:
        kept = ", ".join(map(str, space.versions.numbers()))
        line = (
            f"Version {number} is the current one already: the last update was rolled back. "
            f"incontrast rollback --to N goes to another (kept: {kept})."
        )
        return Answer({"current": number, "dropped": None}, [line])
    lines = [] if dropped is None else [f"Dropped: {dropped}."]
    lines.append(f"Version {number} is the current one.")
    return Answer({"current": number, "dropped": dropped}, lines)


def forget(args: Namespace) -> Answer:
    space = Workspace.open(args.workspace)
    wanted = [bytes.fromhex(digest) for digest in args.hashes or []]
    if args.like is not None:
        # Reading data, unlike naming items, needs the domain and so torch.
        from incontrast.workspace.ingest import NewData

        same = NewData(space.read(args.like, **args.table), space.learner(memory=False).domain)
        wanted += [content_hash(content) for contents in same.packed() for content in contents]
        note_skipped(same.skipped)
    count = space.forget(args.ids or [], hashes=wanted)
    files = [str(file) for file in outputs(space)]
    lines = [f"{counted(count, 'item')} forgotten."]
    if not count:
        lines[0] += " They were forgotten before, are no longer kept, or never came in."
    else:
        lines.append("Updates leave the same content out from now on: its hash is kept.")
    if files:
        lines.append(f"Embeddings of them may still be in {', '.join(files)}.")
    return Answer({"forgotten": count, "embeddings": files}, lines)


def serve(args: Namespace) -> None:
    with needed("serve needs starlette, uvicorn and prometheus-client", "serve"):
        import uvicorn
        from uvicorn.config import LOGGING_CONFIG

        from incontrast.serve.settings import ServeSettings

    space = Workspace.open(args.workspace, trust=args.trust)
    current = space.serving()
    space.versions.verify(current)
    token = args.token
    if args.token_file is not None:
        token = args.token_file.read_text(encoding="utf-8").strip()
        if not token:
            raise ValueError(f"{args.token_file} is empty: write the token into it")
    threads = space.settings["threads"]
    if threads is None and args.workers > 1:
        threads = max(1, (os.cpu_count() or 1) // args.workers)
    limits = ("batch_size", "max_items", "max_bytes", "max_waiting")
    settings = ServeSettings(
        workspace=space.folder,
        index=None if args.index is None else args.index.absolute(),
        token=token or None,
        trust=args.trust,
        threads=threads,
        **{name: getattr(args, name) for name in limits},
    )
    note(f"serving version {current} of {space.folder} on http://{args.host}:{args.port}")
    how: dict[str, Any] = {"host": args.host, "port": args.port, "log_level": "warning"}
    own = {"incontrast": {"handlers": ["default"], "level": "INFO"}}
    logs = {**LOGGING_CONFIG, "loggers": {**LOGGING_CONFIG["loggers"], **own}}
    how |= {"access_log": False, "server_header": False, "log_config": logs}
    if args.workers == 1:
        from incontrast.serve.app import create_app

        uvicorn.run(create_app(settings), **how)
        return
    settings.export()
    with tempfile.TemporaryDirectory(prefix="incontrast-metrics-") as shared:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = shared  # before the workers import its library
        app = "incontrast.serve.app:create_app"
        uvicorn.run(app, factory=True, workers=args.workers, **how)
