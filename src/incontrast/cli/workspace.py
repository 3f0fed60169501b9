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
    if damage:
        value = {"folder": str(space.folder), "damage": damage}
        lines = [str(space.folder), *(f"  damage: {text}" for text in damage)]
        return Answer(value, lines, Exit.DAMAGED)
    about = status_of(space) | ({"damage": []} if args.check else {})
    return Answer(about, _status_lines(about))


def _status_lines(about: dict[str, Any]) -> Iterator[str]:
    yield about["folder"]
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
    for name, title in (
        ("unfinished", "unfinished:"),
        ("advice", "next:"),
        ("writer", "being written by"),
    ):
        if about[name]:
            yield f"  {title} {about[name]}"
    for output in about["embeddings"]:
        state = "" if output["complete"] else "unfinished, "
        state += "up to date" if output["current"] else "out of date"
        state += f", {counted(output['mapped'], 'vector')} mapped" if output["mapped"] else ""
        yield f"  {output['file']}: version {output['version']}, {state}"
    if "damage" in about:
        yield "  every file is as it was written"


def log(args: Namespace) -> Answer:
    records = Workspace.open(args.workspace).journal.records(args.last)
    value = [event if isinstance(event, dict) else {"damaged": str(event)} for event in records]
    lines = (event.get("damaged") or f"{event['time']}  {sentence(event)}" for event in value)
    return Answer(value, lines)


def config(args: Namespace) -> Answer:
    space = Workspace.open(args.workspace, trust=args.trust)
    if not args.changes:
        settings = config_of(space.settings)
        return Answer(settings, [to_toml(settings).rstrip()])
    changes = space.configure(*args.changes)
    return Answer(changes, [f"{name} = {json.dumps(value)}" for name, value in changes.items()])


def rollback(args: Namespace) -> Answer:
    space = Workspace.open(args.workspace)
    dropped, before = unfinished(space), None if args.to else space.current
    number = space.rollback(args.to)
    lines = [f"Version {number} is the current one."]
    if number == before:
        dropped, kept = None, ", ".join(map(str, space.versions.numbers()))
        lines = [
            f"Version {number} is the current one already: the last update was rolled back. "
            f"incontrast rollback --to N goes to another (kept: {kept})."
        ]
    elif dropped is not None:
        lines.insert(0, f"Dropped: {dropped}.")
    return Answer({"current": number, "dropped": dropped}, lines)


def forget(args: Namespace) -> Answer:
    space = Workspace.open(args.workspace)
    hashes = [bytes.fromhex(digest) for digest in args.hashes or []]
    if args.like is not None:
        # Reading data, unlike naming items, needs the domain and so torch.
        from incontrast.workspace.ingest import NewData

        same = NewData(space.read(args.like, **args.table), space.learner(memory=False).domain)
        hashes += [content_hash(content) for contents in same.packed() for content in contents]
        note_skipped(same.skipped)
    count = space.forget(args.ids or [], hashes=hashes)
    files = [str(file) for file in outputs(space)]
    why = "Updates leave the same content out from now on: its hash is kept."
    if not count:
        why = "They were forgotten before, are no longer kept, or never came in."
    lines = [f"{counted(count, 'item')} forgotten. {why}"]
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
    settings = ServeSettings(
        workspace=space.folder,
        index=None if args.index is None else args.index.absolute(),
        token=token or None,
        trust=args.trust,
        threads=threads,
        batch_size=args.batch_size,
        max_items=args.max_items,
        max_bytes=args.max_bytes,
        max_waiting=args.max_waiting,
    )
    note(f"serving version {current} of {space.folder} on http://{args.host}:{args.port}")
    logger = {"incontrast": {"handlers": ["default"], "level": "INFO"}}
    options: dict[str, Any] = {
        "host": args.host,
        "port": args.port,
        "log_level": "warning",
        "log_config": {**LOGGING_CONFIG, "loggers": {**LOGGING_CONFIG["loggers"], **logger}},
        "access_log": False,
        "server_header": False,
    }
    if args.workers == 1:
        from incontrast.serve.app import create_app

        uvicorn.run(create_app(settings), **options)
        return
    settings.export()
    with tempfile.TemporaryDirectory(prefix="incontrast-metrics-") as shared:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = shared  # before the workers import its library
        app = "incontrast.serve.app:create_app"
        uvicorn.run(app, factory=True, workers=args.workers, **options)
