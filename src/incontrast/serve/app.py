"""The application: who may ask, what is asked, and what is answered."""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from torch import Tensor

from incontrast.compat import NoAdapter
from incontrast.report.history import history_page, lines_of
from incontrast.report.page import render
from incontrast.serve.batching import Batcher, QueueFull, keep_freed_memory
from incontrast.serve.body import NPY, TooLarge, UnknownFormat, read_batches, write_npy
from incontrast.serve.current import Current, Version
from incontrast.serve.metrics import Metrics
from incontrast.serve.settings import ServeSettings
from incontrast.workspace import WorkspaceError

log = logging.getLogger(__name__)

RECEIVED = 30  # seconds in which the body of a request must have come
BODIES = 16  # of full size that may be in memory
QUICK = 2**20  # bytes of an array that are read or written in less time than a thread begins
LATER = {"Retry-After": "1"}
MOST = 1000  # items that a search finds
UNROUTED = {  # what Starlette says of requests that come to no route
    "Not Found": "there is no such address",
    "Method Not Allowed": "this address takes other methods, see the header Allow",
}
REFRESH = {"Refresh": "5"}  # seconds after which a browser loads the page again


def create_app(settings: ServeSettings | None = None) -> Starlette:
    """An ASGI application that serves the current version of a workspace.

    Without settings, those that are in the environment: it is one of several workers.

    Raises:
        WorkspaceError: There is no version that could be loaded.
    """
    settings = ServeSettings.from_environment() if settings is None else settings
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    keep_freed_memory()
    metrics = Metrics()
    service = Service(settings, Current(settings, metrics), metrics)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        service.close()

    guard = [] if settings.token is None else [Middleware(_guarded, token=settings.token)]
    routes = [
        Route("/embed", service.embed, methods=["POST"], middleware=guard),
        Route("/search", service.search, methods=["POST"], middleware=guard),
        Route("/versions", service.versions, middleware=guard),
        Route("/metrics", service.measured, middleware=guard),
        Route("/", service.history, middleware=guard),
        Route("/healthz", service.health),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(metrics.around)],
        exception_handlers={HTTPException: _refusal, Exception: _failure},
        lifespan=lifespan,
    )


class Service:
    """What the routes do."""

    def __init__(self, settings: ServeSettings, current: Current, metrics: Metrics) -> None:
        self.settings = settings
        self.current = current
        self.metrics = metrics
        self.batcher = Batcher(settings.batch_size, settings.max_waiting, metrics)
        self._bytes = 0  # of bodies in memory; only the event loop's thread counts them
        # Decoding takes memory beyond that of the bodies: only so many at a time.
        self._decoders = CapacityLimiter(os.cpu_count() or 1)
        self._page: tuple[Any, str] = (None, "")
        self._drawing = threading.Lock()

    def close(self) -> None:
        self.current.close()
        self.batcher.close()
        self.metrics.close()

    async def embed(self, request: Request) -> Response:
        """Embeddings by the version that is current when the request comes."""
        version = self.current.version
        space = _number(request, "space", version.number)
        wanted = request.headers.get("accept", "")
        with self._body_counted(request):
            rows = await self._embedded(request, version, space)
            if NPY in wanted and rows.nbytes <= QUICK:
                return _answer(version, space, rows, wanted)
            return await to_thread.run_sync(_answer, version, space, rows, wanted)

    async def search(self, request: Request) -> Response:
        """The nearest items in the index, by queries that are mapped into its space."""
        version, index = self.current.version, self.current.index
        if index is None:
            raise HTTPException(404, "there is no index: start serve with --index FOLDER")
        count = _number(request, "count", 10)
        if not 1 <= count <= MOST:
            raise HTTPException(422, f"count must be 1 to {MOST}, got {count}")
        space = index.stamp.version
        with self._body_counted(request):
            rows = await self._embedded(request, version, space)
            found = await to_thread.run_sync(index.search, rows, count)
        about = version.about(space)
        return JSONResponse({**about, **found._asdict()}, headers=_headers(about))

    async def _embedded(self, request: Request, version: Version, space: int) -> Tensor:
        """Embeddings of the items of a request."""
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            async with asyncio.timeout(RECEIVED):
                body = await request.body()
            adapter = version.adapter(space)
            read = partial(
                read_batches,
                *(version.domain, content_type, body),
                max_items=self.settings.max_items,
                batch_size=self.settings.batch_size,
            )
            if content_type == NPY and len(body) <= QUICK:
                batches = read()
            else:
                batches = await to_thread.run_sync(read, limiter=self._decoders)
        except (TimeoutError, ClientDisconnect) as error:
            raise HTTPException(408, f"the body must come within {RECEIVED} s") from error
        except (ValueError, TypeError) as error:
            known: dict[type[Exception], int] = {TooLarge: 413, UnknownFormat: 415}
            raise HTTPException(known.get(type(error), 422), str(error)) from error
        try:
            rows = await self.batcher.embed(version, adapter, batches)
        except QueueFull as error:
            raise HTTPException(503, str(error), LATER) from error
        finite = np.isfinite(rows.numpy())
        if not finite.all():
            item = int(np.argmin(finite.all(1)))
            raise HTTPException(422, f"the embedding of item {item} is not finite")
        return rows

    @contextmanager
    def _body_counted(self, request: Request) -> Iterator[None]:
        """Refuse a body before it is read that is too large, alone or with those in memory.

        It counts until the request is answered.
        """
        limit, told = self.settings.max_bytes, request.headers.get("content-length", "")
        # A body in chunks is as long as it likes, whatever else the request tells.
        if not told.isdecimal() or "transfer-encoding" in request.headers:
            raise HTTPException(
                411, "the request must tell its Content-Length, and have no Transfer-Encoding"
            )
        length = int(told)
        if length > limit:
            raise HTTPException(413, f"a body may have {limit} bytes, got {length}")
        if self._bytes + length > BODIES * limit:
            raise HTTPException(503, "too many requests wait: try again later", LATER)
        self._bytes += length
        try:
            yield
        finally:
            self._bytes -= length

    async def health(self, _: Request) -> Response:
        """Whether it serves; a workspace that cannot be read does not keep it from that.

        Anybody may ask, so it names no folder.
        """
        serves = self.batcher.alive
        about = {
            "status": "ok" if serves else "failed",
            "version": self.current.version.number,
            "workspace": "ok" if self.current.problem is None else "unreadable",
        }
        return JSONResponse(about, 200 if serves else 503)

    def versions(self, _: Request) -> Response:
        """The version that serves, those that are kept, and the spaces that maps lead to."""
        version = self.current.version
        spaces: dict[str, Any] = {}
        for number, encoder in version.encoders.items():
            with suppress(NoAdapter):
                recall = version.adapter(number).recall
                spaces[str(number)] = {"encoder": encoder, "expected_recall": recall}
        with self._readable():
            workspace = self.current.open()
            kept = [workspace.versions.record(number) for number in workspace.versions.numbers()]
            names = ("version", "parent", "created", "encoder")
            told = {
                "version": version.number,
                "encoder": version.encoder,
                "spaces": spaces,
                "current": workspace.current,
                "problem": self.current.problem,
                "kept": [{name: record.get(name) for name in names} for record in kept],
            }
        return JSONResponse(told)

    def measured(self, _: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    def history(self, _: Request) -> Response:
        """The page over all versions, as `incontrast history` writes it, which loads again."""
        with self._readable(), self._drawing:
            workspace = self.current.open()
            journal, current = workspace.journal, workspace.current
            found = journal.path.stat()
            key = (found.st_mtime_ns, found.st_size, current)
            if self._page[0] != key:
                lines = lines_of(journal.events(), current)
                if not lines:
                    raise HTTPException(404, "no version was trained in this workspace yet")
                self._page = (key, render(history_page(lines, workspace.folder.name)))
            return HTMLResponse(self._page[1], headers=REFRESH)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (WorkspaceError, OSError) as error:
            log.warning("the workspace cannot be read: %s", error)
            told = f"the workspace cannot be read: {self.current.told(error)}"
            raise HTTPException(503, told, LATER) from error


def _guarded(app: ASGIApp, token: str) -> ASGIApp:
    """Refuse who has no token: as a bearer token, or as a password, which browsers ask for."""

    async def asked(scope: Scope, receive: Receive, send: Send) -> None:
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        if scheme.lower() == "basic":
            with suppress(ValueError):
                given = base64.b64decode(given).decode().partition(":")[2]
        if not hmac.compare_digest(given.encode(), token.encode()):
            # Not Bearer as well: Chromium asks for no password then.
            known = {"WWW-Authenticate": 'Basic realm="incontrast"'}
            raise HTTPException(401, "give the token: Authorization: Bearer TOKEN", known)
        await app(scope, receive, send)

    return asked


def _answer(version: Version, space: int, rows: Tensor, wanted: str) -> Response:
    about = version.about(space)
    headers = _headers(about)
    if NPY in wanted:
        return Response(write_npy(rows.numpy()), media_type=NPY, headers=headers)
    return JSONResponse({**about, "embeddings": rows.tolist()}, headers=headers)


def _headers(about: dict[str, Any]) -> dict[str, str]:
    return {f"X-Incontrast-{name.replace('_', '-')}": str(told) for name, told in about.items()}


def _number(request: Request, name: str, default: int) -> int:
    """A whole number, the one parameter that the address of a request may give, and once."""
    if not request.scope["query_string"]:
        return default
    for other in request.query_params:
        if other != name:
            refused = f"{request.url.path} has no parameter {other!r:.40}"
            raise HTTPException(422, f"{refused}: the nearest, and the only one, is {name}")
    values = request.query_params.getlist(name)
    if not values:
        return default
    if len(values) > 1:
        raise HTTPException(422, f"{name} is given {len(values)} times: give it once")
    (given,) = values
    if not given.isdecimal() or len(given) > 9:
        raise HTTPException(422, f"{name} must be a whole number, got {given!r:.40}")
    return int(given)


async def _refusal(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = UNROUTED.get(error.detail, error.detail)
    return JSONResponse({"detail": detail}, error.status_code, error.headers)


async def _failure(_: Request, error: Exception) -> Response:
    """What nobody foresaw: the server writes the error itself into its log."""
    return JSONResponse({"detail": "the service failed; its log says why"}, 500)
