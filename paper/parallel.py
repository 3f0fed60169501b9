"""Increments of a grid in several processes, of which the parent alone writes rows.

All increments of a seed come before those of the next, so that no two processes search for the
same learning rates at once.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from itertools import groupby
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch

from paper.grid import Group
from paper.group_run import Event, GroupRun, Notify
from paper.row_file import Row
from paper.search import Ledger

LAST_EVENT = 10.0  # seconds to wait for the last event of a task that is done
IMPORTED = ["torch._dynamo", "sklearn.datasets", "sklearn.svm", "paper.group_run"]  # once for all


def run_groups(
    todo: list[Group],
    rows: Ledger,
    folder: Path | None,
    work: Path,
    jobs: int,
    notify: Notify,
    keep: Callable[[Row], None],
) -> None:
    """Run these increments, so many at a time.

    Args:
        todo: The increments, by seed.
        rows: The rows there are.
        folder: The folder of data sets.
        work: A folder for fitted learners.
        jobs: Processes.
        notify: Called with what happens.
        keep: Called with rows that were finished after the run was ended.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    events: Any = context.Queue()
    stop = context.Event()
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_begin_worker, initargs=(events, stop)
    ) as pool:
        for _, wave in groupby(enumerate(todo), key=lambda entry: entry[1].seed):
            tasks = {
                number: pool.submit(_work, number, group, dict(rows), folder, work)
                for number, group in wave
            }
            ended: set[int] = set()
            try:
                for event in _until_done(tasks, ended, events):
                    notify(event)
            except BaseException:
                stop.set()  # workers look at it after every epoch
                for task in tasks.values():
                    task.cancel()
                # A worker whose events nobody takes does not end, and a row among them is finished.
                for event in _until_done(tasks, ended, events):
                    if event.row is not None:
                        with suppress(OSError):  # the disk may be what this ends for
                            keep(event.row)
                raise
            for task in tasks.values():
                if not task.cancelled():
                    task.result()


def _until_done(tasks: dict[int, Future[None]], ended: set[int], events: Any) -> Iterator[Event]:
    """The events of all workers. When one of them fails, the others finish what they are at.

    A task is done a moment before its last event arrives, for a thread of its worker sends it.

    Args:
        tasks: By number.
        ended: Numbers of tasks whose last event has come; it is filled here.
        events: Numbers of tasks and their events; None is a task's last one.
    """
    while True:
        running = [task for task in tasks.values() if not task.done()]
        if any(_fault(task) is not None for task in tasks.values()):
            for task in running:
                task.cancel()
        late = any(_has_last_event(task) for number, task in tasks.items() if number not in ended)
        try:
            number, event = events.get(timeout=0.2 if running or not late else LAST_EVENT)
        except queue.Empty:
            if not running:
                return
            continue
        if event is None:
            ended.add(number)
        else:
            yield event


def _fault(task: Future[None]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


def _has_last_event(task: Future[None]) -> bool:
    """Whether this task sends a last event: not if it never began, or if its worker died."""
    return not task.cancelled() and not isinstance(_fault(task), BrokenProcessPool)


_events: Any = None  # of a worker process, set once when it begins
_stop: Any = None


def _begin_worker(events: Any, stop: Any) -> None:
    global _events, _stop
    _events, _stop = events, stop
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker of a parent that was killed would train on for nobody."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _work(number: int, group: Group, rows: Ledger, folder: Path | None, work: Path) -> None:
    def notify(event: Event) -> None:
        _events.put((number, event))
        if _stop.is_set():
            raise InterruptedError("the run was ended")

    try:
        GroupRun(group, rows, folder, work, notify).run()
    finally:
        _events.put((number, None))
