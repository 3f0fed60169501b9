"""The service with several worker processes."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

from incontrast import Workspace

pytestmark = pytest.mark.slow


def test_workers_share_a_port_follow_the_workspace_and_count_together(space: Workspace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "incontrast", "serve", "-w", str(space.folder)]
    process = subprocess.Popen([*command, "--port", str(port), "--workers", "2"])
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            wait_for_version(client, 2, workers=2)
            for _ in range(20):
                assert client.post("/embed", json={"items": [[0.5] * 8]}).status_code == 200
            assert figures(client)['incontrast_requests_total{path="/embed",status="200"}'] == 20
            space.rollback()
            wait_for_version(client, 1, workers=2)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def figures(client: httpx.Client) -> dict[str, float]:
    lines = client.get("/metrics").text.splitlines()
    named = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(figure) for name, figure in named}


def wait_for_version(client: httpx.Client, version: int, workers: int) -> None:
    for _ in range(600):
        time.sleep(0.1)
        try:
            found = figures(client)
        except httpx.ConnectError:
            continue
        versions = [found[name] for name in found if name.startswith("incontrast_version{")]
        if versions == [version] * workers:
            return
    raise AssertionError(f"not every worker serves version {version}")
