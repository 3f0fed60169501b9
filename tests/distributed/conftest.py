"""Small groups of processes that work together, started as torchrun starts them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

collect_ignore = ["cases.py", "jobs.py", "worker.py"]  # what the processes run

HERE = Path(__file__).parent


class Ended(NamedTuple):
    """What became of a group of processes."""

    codes: list[int]  # exit codes
    outputs: list[str]  # what each printed, errors too
    results: list[dict[str, Any]]  # what the jobs of each returned


def launch(folder: Path, jobs: list[str], processes: int = 2, **environment: str) -> Ended:
    """Run these jobs of ``jobs.py`` in processes that work together."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "test",
        "OMP_NUM_THREADS": "1",
        "TEST_FOLDER": str(folder),
        **environment,
    }
    group = subprocess.run(
        [sys.executable, str(HERE / "worker.py"), str(folder), *jobs],
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=True,
    )
    results = [folder / f"{rank}.json" for rank in range(processes)]
    return Ended(
        json.loads(group.stdout),
        [(folder / f"{rank}.txt").read_text() for rank in range(processes)],
        [json.loads(file.read_text()) if file.exists() else {} for file in results],
    )


@pytest.fixture(scope="session")
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ended]:
    """Runs jobs in a new group of processes."""
    pytest.importorskip("lightning_fabric")

    def run(jobs: list[str], folder: Path | None = None, **settings: Any) -> Ended:
        return launch(folder or tmp_path_factory.mktemp("group"), jobs, **settings)

    return run
