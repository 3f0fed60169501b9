"""Metrics for Prometheus, of this process or of all workers together."""

import os
import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SHARED = "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client's name for a folder that workers share
SIZES = [2**power for power in range(11)]


class Metrics:
    """Counters, gauges and histograms of a service."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ours: dict[str, Any] = {"namespace": "incontrast", "registry": self._registry}
        self.requests = Counter("requests", "Requests answered.", ("path", "status"), **ours)
        self.seconds = Histogram("request_seconds", "Time to an answer.", ("path",), **ours)
        text = "Items of a forward pass."
        self.batch_items = Histogram("batch_items", text, buckets=SIZES, **ours)
        self.encoder_seconds = Histogram("encoder_seconds", "Time of a forward pass.", **ours)
        text = "Items that wait for the encoder."
        self.waiting = Gauge("waiting_items", text, multiprocess_mode="livesum", **ours)
        text = "The version that serves."
        self.version = Gauge("version", text, multiprocess_mode="liveall", **ours)
        text = "1 if the workspace can be read, else 0."
        self.readable = Gauge("workspace_readable", text, multiprocess_mode="livemin", **ours)

    def text(self) -> bytes:
        """In the text format of Prometheus."""
        registry = self._registry
        if SHARED in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)

    def close(self) -> None:
        if SHARED in os.environ:
            mark_process_dead(os.getpid())  # type: ignore[no-untyped-call]

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """The application, with its requests counted and timed."""

        async def measured(scope: Scope, receive: Receive, send: Send) -> None:
            start, status = time.perf_counter(), 500

            async def noted(message: Message) -> None:
                nonlocal status
                status = message.get("status", status)
                await send(message)

            try:
                await app(scope, receive, noted)
            finally:
                if scope["type"] == "http":
                    # Unknown paths together: clients could create any number of time series.
                    path = scope["path"] if "endpoint" in scope else "other"
                    self.requests.labels(path, status).inc()
                    self.seconds.labels(path).observe(time.perf_counter() - start)

        return measured
