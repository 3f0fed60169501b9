"""The application: who may ask, what is asked, and what is answered."""

from __future__ import annotations

import asyncio
import base64
import hmac
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Annotated, Any

import torch
from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.requests import ClientDisconnect
from torch import Tensor

from incontrast.compat import NoAdapter
from incontrast.report.history import history_page, lines_of
from incontrast.report.page import render
from incontrast.serve.batching import Batcher, QueueFull
from incontrast.serve.body import NPY, TooLarge, UnknownFormat, read_batches, write_npy
from incontrast.serve.current import Current, Version
from incontrast.serve.metrics import Metrics
from incontrast.serve.settings import ServeSettings
from incontrast.workspace import WorkspaceError

RECEIVED = 30  # seconds in which the body of a request must have come
BODIES = 16  # of full size that may be in memory
QUICK = 2**20  # bytes of an array that are read or written in less time than a thread begins
LATER = {"Retry-After": "1"}
Count = Annotated[int, Query(ge=1, le=1000)]
REFRESH = {"Refresh": "5"}  # seconds after which a browser loads the page again


def from_environment() -> FastAPI:
    """The application of a worker process."""
    return create_app(ServeSettings.from_environment())


def create_app(settings: ServeSettings) -> FastAPI:
    """An ASGI application that serves the current version of a workspace.

    Raises:
        WorkspaceError: There is no version that could be loaded.
    """
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    metrics = Metrics()
    service = Service(settings, Current(settings, metrics), metrics)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    # Pages that describe the API would come from elsewhere, and ask for no token.
    app = FastAPI(title="incontrast", lifespan=lifespan, openapi_url=None)
    app.add_middleware(lambda application: metrics.around(application))
    app.add_exception_handler(RequestValidationError, _one_sentence)
    app.include_router(service.router())
    app.add_api_route("/healthz", service.health)
    return app


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

    def router(self) -> APIRouter:
        router = APIRouter(dependencies=[Depends(self.authorise)])
        router.add_api_route("/embed", self.embed, methods=["POST"])
        router.add_api_route("/search", self.search, methods=["POST"])
        router.add_api_route("/versions", self.versions)
        router.add_api_route("/metrics", self.measured)
        router.add_api_route("/", self.history)
        return router

    def close(self) -> None:
        self.current.close()
        self.batcher.close()
        self.metrics.close()

    async def authorise(self, request: Request) -> None:
        """Refuse who has no token: as a bearer token, or as a password, which browsers ask for."""
        if self.settings.token is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "basic":
            with suppress(ValueError):
                given = base64.b64decode(given).decode().partition(":")[2]
        if not hmac.compare_digest(given.encode(), self.settings.token.encode()):
            # Not Bearer as well: Chromium asks for no password then.
            known = {"WWW-Authenticate": 'Basic realm="incontrast"'}
            raise HTTPException(401, "give the token: Authorization: Bearer TOKEN", known)

    async def embed(self, request: Request, space: int | None = None) -> Response:
        """Embeddings by the version that is current when the request comes."""
        version = self.current.version
        space = version.number if space is None else space
        wanted = request.headers.get("accept", "")
        async with self._embedded(request, version, space) as rows:
            if NPY in wanted and rows.nbytes <= QUICK:
                return _answer(version, space, rows, wanted)
            return await to_thread.run_sync(_answer, version, space, rows, wanted)

    async def search(self, request: Request, count: Count = 10) -> Response:
        """The nearest items in the index, by queries that are mapped into its space."""
        version, index = self.current.version, self.current.index
        if index is None:
            raise HTTPException(404, "there is no index: start serve with --index FOLDER")
        space = index.stamp.version
        async with self._embedded(request, version, space) as rows:
            found = await to_thread.run_sync(index.search, rows, count)
        about = version.about(space)
        return JSONResponse({**about, **found._asdict()}, headers=_headers(about))

    @asynccontextmanager
    async def _embedded(
        self, request: Request, version: Version, space: int
    ) -> AsyncIterator[Tensor]:
        """Embeddings of the items of a request, which counts as waiting until it is answered."""
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        with self._body_counted(request):
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
                futures = self.batcher.submit(version, adapter, batches)
            except (TimeoutError, ClientDisconnect) as error:
                raise HTTPException(408, f"the body must come within {RECEIVED} s") from error
            except QueueFull as error:
                raise HTTPException(503, str(error), LATER) from error
            except (ValueError, TypeError) as error:
                known: dict[type[Exception], int] = {TooLarge: 413, UnknownFormat: 415}
                status = known.get(type(error), 422)
                raise HTTPException(status, str(error)) from error
            rows = torch.cat(await asyncio.gather(*map(asyncio.wrap_future, futures)))
            finite = rows.isfinite().all(1)
            if not bool(finite.all()):
                item = int((~finite).nonzero()[0])
                raise HTTPException(422, f"the embedding of item {item} is not finite")
            yield rows

    @contextmanager
    def _body_counted(self, request: Request) -> Iterator[None]:
        """Refuse a body before it is read that is too large, alone or with those in memory."""
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

    async def health(self) -> JSONResponse:
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

    def versions(self) -> dict[str, Any]:
        """The version that serves, those that are kept, and the spaces that maps lead to."""
        version = self.current.version
        spaces: dict[str, Any] = {}
        for number, encoder in version.encoders.items():
            with suppress(NoAdapter):
                recall = version.adapter(number).recall
                spaces[str(number)] = {"encoder": encoder, "expected_recall": recall}
        with _readable():
            workspace = self.current.open()
            kept = [workspace.versions.record(number) for number in workspace.versions.numbers()]
            names = ("version", "parent", "created", "encoder")
            return {
                "version": version.number,
                "encoder": version.encoder,
                "spaces": spaces,
                "current": workspace.current,
                "problem": self.current.problem,
                "kept": [{name: record.get(name) for name in names} for record in kept],
            }

    def measured(self) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    def history(self) -> HTMLResponse:
        """The page over all versions, as `incontrast history` writes it, which loads again."""
        with _readable(), self._drawing:
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
def _readable() -> Iterator[None]:
    try:
        yield
    except (WorkspaceError, OSError) as error:
        raise HTTPException(503, f"the workspace cannot be read: {error}", LATER) from error


def _answer(version: Version, space: int, rows: Tensor, wanted: str) -> Response:
    about = version.about(space)
    headers = _headers(about)
    if NPY in wanted:
        return Response(write_npy(rows.numpy()), media_type=NPY, headers=headers)
    return JSONResponse({**about, "embeddings": rows.tolist()}, headers=headers)


def _headers(about: dict[str, Any]) -> dict[str, str]:
    return {f"X-Incontrast-{name.replace('_', '-')}": str(told) for name, told in about.items()}


async def _one_sentence(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = " ".join(map(str, first["loc"]))
    return JSONResponse({"detail": f"{place}: {first['msg']}, got {first['input']!r:.40}"}, 422)
