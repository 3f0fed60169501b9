"""How far a reader walks: files, functions and switches between files of one fit and one update.

    python benchmarks/walk.py [most]

One epoch on 24 images of 16 pixels, an update with 16 more, by the library and by the command
line, report included. A switch is a call from one file of the package to a function in another;
``most`` lists so many of the most frequent ones.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from PIL import Image
from typer.testing import CliRunner

import incontrast as ic
from incontrast.cli.app import app

PACKAGE = str(Path(ic.__file__).parent)
MOST = int(sys.argv[1]) if sys.argv[1:] else 0


class Walk:
    """The files and functions that are walked through, and the switches between files."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.functions: set[tuple[str, str]] = set()
        self.switches: Counter[tuple[str, str]] = Counter()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or not ours(frame):
            return
        if frame.f_code.co_name.startswith("<"):  # module level, comprehensions, lambdas
            return
        file = frame.f_code.co_filename
        self.files.add(file)
        self.functions.add((file, frame.f_code.co_qualname))
        caller = frame.f_back
        while caller is not None and not ours(caller):
            caller = caller.f_back
        if caller is None or caller.f_code.co_filename != file:
            self.switches[place(caller), place(frame)] += 1


def place(frame: FrameType | None) -> str:
    if frame is None:
        return "outside"
    file = Path(frame.f_code.co_filename).relative_to(PACKAGE)
    return f"{file}:{frame.f_code.co_qualname}"


def ours(frame: FrameType) -> bool:
    """Whether a frame is of the package; templates are not, which jinja resumes at every line."""
    file = frame.f_code.co_filename
    return file.startswith(PACKAGE) and file.endswith(".py")


@contextmanager
def walking() -> Iterator[Walk]:
    walk = Walk()
    threading.setprofile(walk)
    sys.setprofile(walk)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def show(name: str, run: Callable[[], object]) -> None:
    with walking() as walk:
        run()
    print(
        f"{name:<20} {len(walk.files):>3} files {len(walk.functions):>4} functions "
        f"{walk.switches.total():>4} switches"
    )
    for (caller, callee), times in walk.switches.most_common(MOST):
        print(f"{times:>6}  {caller} → {callee}")


def main() -> None:
    torch.set_num_threads(1)
    draws = np.random.default_rng(0)
    pixels = draws.integers(0, 256, (40, 16, 16, 1), dtype=np.uint8)
    domain = ic.Images(16, 1, encoder="small")

    def learner() -> ic.Learner:
        once = {"max_epochs": 1}
        return ic.Learner(
            domain, fit_strategy=ic.Retrain(**once), strategy=ic.ICL(**once, epoch_steps=1)
        )

    fitted = learner()
    fitted.fit(pixels[:24])  # so that nothing is imported while it is watched
    fitted.update(pixels[24:])
    fresh = learner()
    show("Learner.fit", lambda: fresh.fit(pixels[:24]))
    show("Learner.update", lambda: fresh.update(pixels[24:]))
    with tempfile.TemporaryDirectory() as folder:
        for name, part in (("old", pixels[:24]), ("new", pixels[24:])):
            (Path(folder) / name).mkdir()
            for number, image in enumerate(part):
                Image.fromarray(image[..., 0]).save(f"{folder}/{name}/{number}.png")
        for space in ("first", "second"):
            ic.Workspace.create(f"{folder}/{space}", learner()).fit(f"{folder}/old")
        update = ("update", f"{folder}/new", "--force", "-w")
        command(*update, f"{folder}/first")
        show("incontrast update", lambda: command(*update, f"{folder}/second"))


def command(*words: str) -> None:
    done = CliRunner().invoke(app, words)
    if done.exit_code != 0:
        raise SystemExit(f"{done.output}\n{done.exception!r}")


if __name__ == "__main__":
    main()
