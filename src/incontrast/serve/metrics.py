"""What Prometheus is told: of this process, or of all workers together."""

from __future__ import annotations

import os
import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SHARED = "PROMETHEUS_MULTIPROC_DIR"  # a folder that the workers share; prometheus_client's name
SIZES = [2**power for power in range(11)]


class Metrics:
    """Counters, gauges and histograms of a service."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        labels = ("path", "status")
        self.requests = Counter(
            "incontrast_requests", "Requests answered.", labels, registry=registry
        )
        self.seconds = Histogram(
            "incontrast_request_seconds", "Time to an answer.", ("path",), registry=registry
        )
        self.batch_items = Histogram(
            "incontrast_batch_items", "Items of a forward pass.", registry=registry, buckets=SIZES
        )
        self.encoder_seconds = Histogram(
            "incontrast_encoder_seconds", "Time of a forward pass.", registry=registry
        )
        self.waiting = Gauge(
            "incontrast_waiting_items",
            "Items that wait for the encoder.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.version = Gauge(
            "incontrast_version",
            "The version that serves.",
            registry=registry,
            multiprocess_mode="liveall",
        )
        self.readable = Gauge(
            "incontrast_workspace_readable",
            "1 if the workspace can be read, else 0.",
            registry=registry,
            multiprocess_mode="livemin",
        )

    def text(self) -> bytes:
        """In the text format of Prometheus."""
        if SHARED not in os.environ:
            return generate_latest(self._registry)
        together = CollectorRegistry()
        MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        return generate_latest(together)

    def close(self) -> None:
        if SHARED in os.environ:
            mark_process_dead(os.getpid())  # type: ignore[no-untyped-call]

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application, with its requests counted and timed."""

        async def measured(scope: Scope, receive: Receive, send: Send) -> None:
            start, status = time.perf_counter(), 500

            async def sent(message: Message) -> None:
                nonlocal status
                status = message.get("status", status)
                await send(message)

            try:
                await app(scope, receive, sent)
            finally:
                if scope["type"] == "http":
                    # By route: the paths that clients make up would be series without end.
                    path = scope["path"] if "endpoint" in scope else "other"
                    self.requests.labels(path, status).inc()
                    self.seconds.labels(path).observe(time.perf_counter() - start)

        return measured
