"""A service to ask: in this process, and over HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from starlette.testclient import TestClient

from incontrast import Workspace
from incontrast.serve.app import create_app
from incontrast.serve.settings import ServeSettings


@contextmanager
def client_of(space: Workspace, **settings: Any) -> Iterator[TestClient]:
    settings = {"interval": 0.01, **settings}
    with TestClient(create_app(ServeSettings(workspace=space.folder, **settings))) as client:
        yield client


def detail(response: httpx.Response, status: int) -> str:
    assert response.status_code == status, response.text
    told: str = response.json()["detail"]
    return told


def wait_for(condition: Any, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def server_of(space: Workspace) -> Iterator[str]:
    """The address of a real server, in a thread."""
    app = create_app(ServeSettings(workspace=space.folder, interval=0.02))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started)
        (listening,) = server.servers[0].sockets
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
