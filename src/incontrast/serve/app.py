"""The web application: its routes, who may use them, and its limits."""

import asyncio
import base64
import hmac
import logging
import os
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

BODY_SECONDS = 30  # in which the body of a request must arrive
MAX_BODIES = 16  # of full size in memory
QUICK = 2**20  # bytes of an array that take less time than to start a thread
MAX_COUNT = 1000  # items that a search finds
RETRY = {"Retry-After": "1"}
REFRESH = {"Refresh": "5"}  # seconds after which a browser reloads the page
DETAILS = {  # for Starlette's own messages
    "Not Found": "there is no such address",
    "Method Not Allowed": "this address takes other methods, see the header Allow",
}


def create_app(settings: ServeSettings | None = None) -> Starlette:
    """An ASGI application that serves the current version of a workspace.

    Args:
        settings: From the environment if None, as in one of several workers.

    Raises:
        WorkspaceError: No version can be loaded.
    """
    settings = ServeSettings.from_environment() if settings is None else settings
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    keep_freed_memory()
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        service.close()

    guard = [] if settings.token is None else [Middleware(_guarded, token=settings.token)]
    return Starlette(
        routes=[
            Route("/embed", service.embed, methods=["POST"], middleware=guard),
            Route("/search", service.search, methods=["POST"], middleware=guard),
            Route("/versions", service.versions, middleware=guard),
            Route("/metrics", service.prometheus, middleware=guard),
            Route("/", service.history, middleware=guard),
            Route("/healthz", service.health),
        ],
        middleware=[Middleware(service.metrics.middleware)],
        exception_handlers={HTTPException: _refused, Exception: _failed},
        lifespan=lifespan,
    )


class Service:
    """The handlers of the routes."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.current = Current(settings, self.metrics)
        self.batcher = Batcher(settings.batch_size, settings.max_waiting, self.metrics)
        self._bytes = 0  # of bodies in memory; only the thread of the event loop changes it
        self._decoders = CapacityLimiter(os.cpu_count() or 1)  # since decoding takes memory

    def close(self) -> None:
        self.current.close()
        self.batcher.close()
        self.metrics.close()

    async def embed(self, request: Request) -> Response:
        """Embeddings by the version that is current when the request arrives."""
        version = self.current.version
        space = _number(request, "space", version.number)
        npy = NPY in request.headers.get("accept", "")
        with self._body_counted(request):
            rows = await self._embedded(request, version, space)
            response = partial(_embeddings, version.about(space), rows, npy)
            quick = npy and rows.nbytes <= QUICK
            return response() if quick else await to_thread.run_sync(response)

    async def search(self, request: Request) -> Response:
        """The nearest items in the index, for queries mapped into its space."""
        version, index = self.current.version, self.current.index
        if index is None:
            raise HTTPException(404, "there is no index: start serve with --index FOLDER")
        count = _number(request, "count", 10)
        if not 1 <= count <= MAX_COUNT:
            raise HTTPException(422, f"count must be 1 to {MAX_COUNT}, got {count}")
        space = index.stamp.version
        with self._body_counted(request):
            rows = await self._embedded(request, version, space)
            found = await to_thread.run_sync(index.search, rows, count)
        about = version.about(space)
        return JSONResponse({**about, **found._asdict()}, headers=_headers(about))

    async def _embedded(self, request: Request, version: Version, space: int) -> Tensor:
        """Embeddings of the items in the body."""
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            async with asyncio.timeout(BODY_SECONDS):
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
            raise HTTPException(408, f"the body must come within {BODY_SECONDS} s") from error
        except (ValueError, TypeError) as error:
            statuses: dict[type[Exception], int] = {TooLarge: 413, UnknownFormat: 415}
            raise HTTPException(statuses.get(type(error), 422), str(error)) from error
        try:
            rows = await self.batcher.embed(version, adapter, batches)
        except QueueFull as error:
            raise HTTPException(503, str(error), RETRY) from error
        finite = np.isfinite(rows.numpy()).all(1)
        if not finite.all():
            raise HTTPException(422, f"the embedding of item {finite.argmin()} is not finite")
        return rows

    @contextmanager
    def _body_counted(self, request: Request) -> Iterator[None]:
        """Refuse a body that is too large, alone or with those in memory, before it is read."""
        limit, length = self.settings.max_bytes, request.headers.get("content-length", "")
        # A chunked body may have any length, whatever its Content-Length.
        if not length.isdecimal() or "transfer-encoding" in request.headers:
            raise HTTPException(411, "a request needs a Content-Length and no Transfer-Encoding")
        size = int(length)
        if size > limit:
            raise HTTPException(413, f"a body may have {limit} bytes, got {size}")
        if self._bytes + size > MAX_BODIES * limit:
            raise HTTPException(503, "too many requests wait: try again later", RETRY)
        self._bytes += size
        try:
            yield
        finally:
            self._bytes -= size

    async def health(self, _: Request) -> Response:
        """Whether it serves, even if the workspace cannot be read. It needs no token."""
        alive = self.batcher.alive
        about = {
            "status": "ok" if alive else "failed",
            "version": self.current.version.number,
            "workspace": "ok" if self.current.problem is None else "unreadable",
        }
        return JSONResponse(about, 200 if alive else 503)

    def versions(self, _: Request) -> Response:
        """The serving version, the versions that are kept, and the spaces that maps lead to."""
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
            about = {
                "version": version.number,
                "encoder": version.encoder,
                "spaces": spaces,
                "current": workspace.current,
                "problem": self.current.problem,
                "kept": [{name: record.get(name) for name in names} for record in kept],
            }
        return JSONResponse(about)

    def prometheus(self, _: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    def history(self, _: Request) -> Response:
        """The page of ``incontrast history``."""
        with self._readable():
            workspace = self.current.open()
            lines = lines_of(workspace.journal.events(), workspace.current)
        if not lines:
            raise HTTPException(404, "no version was trained in this workspace yet")
        return HTMLResponse(render(history_page(lines, workspace.folder.name)), headers=REFRESH)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (WorkspaceError, OSError) as error:
            log.warning("the workspace cannot be read: %s", error)
            detail = f"the workspace cannot be read: {self.current.public(error)}"
            raise HTTPException(503, detail, RETRY) from error


def _guarded(app: ASGIApp, token: str) -> ASGIApp:
    """Require the token: as a bearer token, or as the password that browsers ask for."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        scheme, _, password = Headers(scope=scope).get("authorization", "").partition(" ")
        if scheme.lower() == "basic":
            with suppress(ValueError):
                password = base64.b64decode(password).decode().partition(":")[2]
        if not hmac.compare_digest(password.encode(), token.encode()):
            # Without Bearer, since Chromium does not ask for a password then.
            headers = {"WWW-Authenticate": 'Basic realm="incontrast"'}
            raise HTTPException(401, "give the token: Authorization: Bearer TOKEN", headers)
        await app(scope, receive, send)

    return checked


def _embeddings(about: dict[str, Any], rows: Tensor, npy: bool) -> Response:
    headers = _headers(about)
    if npy:
        return Response(write_npy(rows.numpy()), media_type=NPY, headers=headers)
    return JSONResponse({**about, "embeddings": rows.tolist()}, headers=headers)


def _headers(about: dict[str, Any]) -> dict[str, str]:
    return {f"X-Incontrast-{name.replace('_', '-')}": str(value) for name, value in about.items()}


def _number(request: Request, name: str, default: int) -> int:
    """The only parameter that a route has, a whole number."""
    parameters = request.query_params.multi_items()
    for other, _ in parameters:
        if other != name:
            detail = f"{request.url.path} has no parameter {other!r:.40}: the only one is {name}"
            raise HTTPException(422, detail)
    if len(parameters) > 1:
        raise HTTPException(422, f"{name} is given {len(parameters)} times: give it once")
    for _, value in parameters:
        if not value.isdecimal() or len(value) > 9:
            raise HTTPException(422, f"{name} must be a whole number, got {value!r:.40}")
        return int(value)
    return default


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = DETAILS.get(error.detail, error.detail)
    return JSONResponse({"detail": detail}, error.status_code, error.headers)


async def _failed(_: Request, error: Exception) -> Response:
    return JSONResponse({"detail": "the service failed; its log says why"}, 500)
