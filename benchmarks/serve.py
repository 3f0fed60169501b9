"""The service beside the encoder itself, and under load while versions are swapped.

    python benchmarks/serve.py

For two encoders of images: the time of `embed` on 1 and on 32 images in this process; then
`incontrast serve` in another one, asked in NumPy's format: 1 client with 1 image, 8 clients with
32. The clients are those of wrk, a program in C, where that is installed: asyncio's, which are used
otherwise, take a tenth of the time of a small encoder themselves. Last an application of uvicorn
that reads the same bodies and gives answers as long, without an encoder: what HTTP takes at least.
Direct calls and services take turns, and each figure is over all turns, so that a busy
machine slows down all. One thread each; direct calls keep freed memory as the service does, which
embeds up to 64 waiting images together. The
last column is the processor time of embed, of that of the service's process: the share of embed's
images a second that it gives on a single core. Then three updates and a rollback while 4 clients
ask: every answer is computed again by the version it names.
"""

from __future__ import annotations

import asyncio
import io
import os
import platform
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

import incontrast as ic
from incontrast.serve.batching import keep_freed_memory
from incontrast.serve.body import NPY, write_npy

WRK = shutil.which("wrk")
ENCODERS = {"small": (16, 1), "resnet18": (3, 8)}  # turns, and seconds of each


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float


class Client:
    """A connection that is kept; a library would take time that counts as the service's."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def embed(self, body: bytes) -> Answer:
        start = time.perf_counter()
        head = f"POST /embed HTTP/1.1\r\nHost: here\r\nContent-Type: {NPY}\r\nAccept: {NPY}\r\n"
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        headers = dict(line.split(": ", 1) for line in lines if line)
        content = await self.reader.readexactly(int(headers["content-length"]))
        return Answer(int(status.split()[1]), headers, content, time.perf_counter() - start)


def images(count: int, seed: int) -> torch.Tensor:
    draws = np.random.default_rng(seed)
    return torch.from_numpy(draws.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8))


def create(folder: Path, encoder: str) -> ic.Workspace:
    learner = ic.Learner(
        ic.Images(32, encoder=encoder),
        fit_strategy=ic.Retrain(max_epochs=1),
        strategy=ic.ICL(max_epochs=1),
    )
    workspace = ic.Workspace.create(folder, learner, threads=1)
    workspace.fit(images(96, 0), force=True)
    return workspace


EMPTY = """
import sys, uvicorn

async def app(scope, receive, send):
    if scope["type"] == "http":
        while (await receive())["more_body"]:
            pass
        length = [(b"content-length", sys.argv[2].encode())]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": bytes(int(sys.argv[2]))})

uvicorn.run(app, port=int(sys.argv[1]), log_level="critical", access_log=False)
"""
POST = """
local file = io.open("{body}", "rb")
wrk.method, wrk.body = "POST", file:read("*a")
wrk.headers["Content-Type"], wrk.headers["Accept"] = "{npy}", "{npy}"
"""


@asynccontextmanager
async def running(*command: object) -> AsyncIterator[tuple[int, int]]:
    """The port, which is put in place of PORT, and the process of a server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [str(port) if word == "PORT" else str(word) for word in (sys.executable, *command)]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None:
            try:
                async with Client(port):
                    break
            except OSError:
                await asyncio.sleep(0.2)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


def serving(folder: Path) -> AbstractAsyncContextManager[tuple[int, int]]:
    return running("-m", "incontrast", "serve", "-w", folder, "--port", "PORT")


async def ask(
    port: int, clients: int, body: bytes, until: Callable[[], bool], answers: list[Answer]
) -> None:
    async def one() -> None:
        async with Client(port) as client:
            while not until():
                answers.append(await client.embed(body))

    await asyncio.gather(*(one() for _ in range(clients)))


class Load(NamedTuple):
    answers: int
    seconds: float
    p50: float  # of an answer, ms
    p99: float


async def load(port: int, clients: int, body: bytes, seconds: int) -> Load:
    """Ask without a pause, and refuse any answer but 200."""
    if WRK is None:
        answers: list[Answer] = []
        start = time.perf_counter()
        await ask(port, clients, body, lambda: time.perf_counter() - start > seconds, answers)
        assert {answer.status for answer in answers} == {200}
        took = np.percentile([1000 * answer.seconds for answer in answers], [50, 99])
        return Load(len(answers), time.perf_counter() - start, *took)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "body").write_bytes(body)
        script = Path(folder, "post.lua")
        script.write_text(POST.format(body=Path(folder, "body"), npy=NPY))
        how = ["-t1", f"-c{clients}", f"-d{seconds}s", "--timeout", "60s", "--latency"]
        command = [WRK, *how, "-s", script, f"http://127.0.0.1:{port}/embed"]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Non-2xx" not in told, told
    assert "Socket errors" not in told, told
    count, took = re.search(r"(\d+) requests in ([\d.]+)s", told).groups()
    found = (re.search(rf"{part}%\s+([\d.]+)(us|ms|s)\b", told).groups() for part in (50, 99))
    p50, p99 = (float(value) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[unit] for value, unit in found)
    return Load(int(count), float(took), p50, p99)


def call(learner: ic.Learner, rows: torch.Tensor, seconds: float) -> list[float]:
    """Times of direct calls."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        learner.embed(rows)
        times.append(time.perf_counter() - start)
    return times


def processor_time(process: int) -> float:
    """Seconds that another process has had so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def compare(workspace: ic.Workspace, encoder: str) -> None:
    learner = workspace.learner(memory=False)
    rows, (turns, seconds) = images(32, 1), ENCODERS[encoder]
    for count, clients in ((1, 1), (32, 8)):
        part = rows[:count]
        body, length = write_npy(part.numpy()), len(write_npy(learner.embed(part).numpy()))
        servers = {encoder: serving(workspace.folder)}
        if encoder == "small":
            servers["nothing"] = running("-c", EMPTY, "PORT", length)
        async with AsyncExitStack() as stack:
            places = {
                name: await stack.enter_async_context(server) for name, server in servers.items()
            }
            for port, _ in places.values():
                await load(port, 1, body, 1)
            direct: list[float] = []
            loads: dict[str, list[Load]] = {name: [] for name in places}
            used = dict.fromkeys(("embed", *places), 0.0)  # seconds of processor
            for _ in range(turns):
                start = time.process_time()
                direct += call(learner, part, seconds)
                used["embed"] += time.process_time() - start
                for name, (port, process) in places.items():
                    start = processor_time(process)
                    loads[name].append(await load(port, clients, body, seconds))
                    used[name] += processor_time(process) - start
        own = [1000 * figure for figure in np.percentile(direct, [50, 99])]
        alone = count * len(direct) / sum(direct)
        for name, found in loads.items():
            answers = sum(each.answers for each in found)
            served = count * answers / sum(each.seconds for each in found)
            p50, p99 = (
                statistics.median(figures) for figures in list(zip(*found, strict=True))[2:]
            )
            print(
                f"{name:9} {count:3} {clients:8} {own[0]:8.1f} {own[1]:8.1f} {p50:8.1f} {p99:8.1f} "
                f"{alone:9.0f} {served:9.0f} {served / alone:7.2f} "
                f"{used['embed'] / len(direct) / (used[name] / answers):16.2f}",
                flush=True,
            )


async def swap(workspace: ic.Workspace) -> None:
    rows = images(4, 2)
    answers: list[Answer] = []
    done = False

    async def change() -> None:
        nonlocal done
        for seed in (3, 4, 5):
            await asyncio.to_thread(workspace.update, images(48, seed), force=True)
            await asyncio.sleep(2.0)
        await asyncio.to_thread(workspace.rollback)
        await asyncio.sleep(2.0)
        done = True

    async with serving(workspace.folder) as (port, _):
        body = write_npy(rows.numpy())
        await asyncio.gather(ask(port, 4, body, lambda: done, answers), change())
    failed = [answer for answer in answers if answer.status != 200]
    expected = {
        number: (
            workspace.encoder_hash(number),
            workspace.learner(number, memory=False).embed(rows).numpy(),
        )
        for number in workspace.versions.numbers()
    }
    counts: dict[int, int] = {}
    mixed = 0
    for answer in answers:
        number = int(answer.headers["x-incontrast-version"])
        counts[number] = counts.get(number, 0) + 1
        encoder, own = expected[number]
        found = np.load(io.BytesIO(answer.body))
        same = np.allclose(found, own, rtol=1e-3, atol=1e-4)
        mixed += not same or answer.headers["x-incontrast-encoder"] != encoder
    by_version = ", ".join(f"{count} by version {number}" for number, count in counts.items())
    print(f"\n3 updates and a rollback: {len(answers)} answers ({by_version})")
    print(f"failed: {len(failed)}, mixed: {mixed}")


async def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    keep_freed_memory()
    print(f"torch {torch.__version__}, {os.cpu_count()} cores", end=", ")
    print(f"load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}", end=", ")
    print(f"clients of {'asyncio' if WRK is None else 'wrk'}\n")
    print(f"{'':22} {'embed, ms':>17} {'service, ms':>17} {'images a second':>19}")
    print(f"{'encoder':9} {'n':>3} {'clients':>8}" + 2 * f" {'p50':>8} {'p99':>8}", end=" ")
    print(f"{'embed':>9} {'service':>9} {'share':>7} {'of its processor':>16}")
    with tempfile.TemporaryDirectory() as folder:
        for encoder in ENCODERS:
            workspace = create(Path(folder) / encoder, encoder)
            await compare(workspace, encoder)
        await swap(ic.Workspace.open(Path(folder) / "small"))


if __name__ == "__main__":
    asyncio.run(main())
