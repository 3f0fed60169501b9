"""The processes that work on one workspace: the first decides and writes, the others help it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

from incontrast.memory import Store, StoreBusy
from incontrast.training.collectives import LostProcess
from incontrast.training.engine import Engine

PATIENCE = 300.0  # seconds to wait for readers

Order = Literal["wait", "train", "evaluate", "done", "failed"]


class ProcessGroup:
    """What the first process orders, and the others receive."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.leads = engine.rank == 0
        self._joint = False

    def send(self, order: Order, payload: Any = None) -> None:
        """Tell the others what comes next; without others, nothing happens."""
        if self.engine.processes > 1:
            self.engine.broadcast((order, payload))

    def receive(self) -> tuple[Order, Any]:
        """What the first process orders."""
        order: tuple[Order, Any] = self.engine.broadcast(("wait", None))
        return order

    @contextmanager
    def joint(self, order: Order, operation: dict[str, Any], store: Store) -> Iterator[None]:
        """A block that all processes run at the same time."""
        if self.leads and self.engine.processes > 1:
            self._fold(store)
            self.send(order, operation)
            with self.engine.error_barrier("read the workspace"):
                pass
        self._joint = True
        yield
        self._joint = False

    def _fold(self, store: Store) -> None:
        """The others read the file by itself, without its log: wait until that is empty."""
        end = time.monotonic() + PATIENCE
        while not store.fold(wait=1.0):
            if time.monotonic() > end:
                raise StoreBusy(
                    f"another process has been reading {store.path} for {PATIENCE:.0f} s, which "
                    "keeps several processes from working on it: end it, then run this again"
                )
            self.send("wait")  # before they take this process for lost

    @contextmanager
    def leading(self) -> Iterator[None]:
        """A block in which the first process decides: if it fails, the others hear of it.

        What fails inside a joint block is known to the others, or ends them by its silence.
        """
        self._joint = False
        try:
            yield
        except BaseException as error:
            if not self._joint and not isinstance(error, LostProcess):
                with suppress(LostProcess):
                    self.send("failed", str(error))
            raise
