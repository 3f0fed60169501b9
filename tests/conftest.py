"""Shared fixtures: small data with structure, a workspace, the real sets where there are any."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from torch import Generator, Tensor

from incontrast import ICL, Learner, Retrain, Vectors, Workspace
from incontrast.evaluate import forecast

# Two tests run side by side on two cores; more threads would only wait for each other. One thread
# also makes sums independent of the machine's number of cores. `make test-portable` tries others.
torch.set_num_threads(int(os.environ.get("INCONTRAST_THREADS", "1")))

# Machines differ in speed, and no test is about time. Every run draws other examples: few of them
# in each of many runs find what many in one do.
settings.register_profile("incontrast", deadline=None, max_examples=30)
settings.load_profile("incontrast")


@pytest.fixture(autouse=True, scope="session")
def no_permissions(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What tests permit is not remembered for whoever runs them."""
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))


@pytest.fixture(autouse=True, scope="session")
def frozen() -> None:
    """What is imported by now is never garbage: it is not searched again at every collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)  # nor is the rest as often as usual


@pytest.fixture(autouse=True, scope="session")
def short_trials() -> None:
    """Forecasts of drift train for a moment instead of a second, for which no test waits."""
    forecast.TRIAL = 0.05


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_disks() -> None:
    """The power does not fail here: what is flushed, and when, is traced where it matters."""
    os.fsync = os.fstat  # for which a wrong handle is an error, too


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets: INCONTRAST_DATA, or ../shared/data beside the project."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("INCONTRAST_DATA", beside))
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder}: set INCONTRAST_DATA")
    return folder


@pytest.fixture(scope="session")
def blobs() -> Callable[..., Tensor]:
    """Makes (count, dim) rows around a few centres."""

    def make(count: int, *, dim: int = 8, shift: float = 0.0, seed: int = 0) -> Tensor:
        centres = torch.randn(4, dim, generator=Generator().manual_seed(99)) * 3
        draws = Generator().manual_seed(seed)
        which = torch.randint(len(centres), (count,), generator=draws)
        return centres[which] + torch.randn(count, dim, generator=draws) + shift

    return make


@pytest.fixture(scope="session")
def created(tmp_path_factory: pytest.TempPathFactory, blobs) -> Path:
    """A workspace with two versions, to copy."""
    folder = tmp_path_factory.mktemp("created") / "space"
    learner = Learner(
        Vectors(8, hidden=16, out=8),
        fit_strategy=Retrain(max_epochs=1),
        strategy=ICL(max_epochs=1, epoch_steps=1),
    )
    workspace = Workspace.create(folder, learner)
    workspace.fit(blobs(40))
    workspace.update(blobs(20, seed=1), force=True)
    return folder


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[Path], Workspace]:
    """Opens a copy of a workspace, which takes a tenth of the time of fitting one."""

    def copy(folder: Path) -> Workspace:
        shutil.copytree(folder, tmp_path / "space")
        return Workspace.open(tmp_path / "space")

    return copy


@pytest.fixture
def space(created: Path, copy_of) -> Workspace:
    return copy_of(created)


@pytest.fixture
def usual_ctrl_c() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where a shell has begun the tests to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    after = signal.signal(signal.SIGINT, before)
    assert after is signal.default_int_handler  # or what was tested has left its own there
