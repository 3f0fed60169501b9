"""Mutation testing: change the code on purpose, one place at a time, and see whether a test fails.

    python tools/mutants.py                       a sample of 40 mutants per group of files
    python tools/mutants.py --sample 0            all of them
    python tools/mutants.py --only strategies/    mutants of these files alone

A mutant has one comparison, operator, number, condition, argument or return value changed, or one
statement left out. It is *killed* if a test fails or does not end, and *survives* otherwise. The
score is the share that is killed; a mutant that no test can tell from the original counts as a
survivor too. Texts of messages, docstrings, annotations and assertions are not changed.

How: tests run once under a trace, which tells which tests call which function. For each mutant a
fork of a process that has imported torch, but nothing of the project, imports the changed module
and runs tests that call the function, fastest first, until one fails. Results are in
benchmarks/results/mutants.txt, with the reasons for survivors: a person writes them behind ``#``,
and the next run keeps them. A run that is interrupted and begun again tries none again that it has
killed: `.mutants.killed` lists them.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import datetime
import hashlib
import importlib.abc
import importlib.util
import io
import itertools
import json
import os
import random
import resource
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "incontrast"
RESULTS = ROOT / "benchmarks" / "results" / "mutants.txt"
TRACE = ROOT / ".mutants.json"  # which test calls which function; made again when a file changes
KILLED = ROOT / ".mutants.killed"  # hashes of changed files that tests have told from the original
GROUPS = {
    "losses": ["loss.py"],
    "training": ["training/loop.py", "training/task.py"],
    "strategies": ["strategies/*.py"],
    "memory": ["memory/*.py"],
}
TESTS = [
    "tests/test_loss.py",
    "tests/test_batch_losses.py",
    "tests/training",
    "tests/strategies",
    "tests/memory",
    "tests/test_learner.py",
]
HEAVY = ("numpy", "PIL.Image", "safetensors.torch", "scipy.stats", "sklearn.datasets")
TAKEN = 20.0  # seconds of tests for a mutant: of the processor, for others may be at work
LIMIT = 60  # seconds of the processor after which a mutant does not end
ASLEEP = 1200.0  # seconds after which it waits for ever
QUIET = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--no-header", "--tb=no"]

PAIRS: tuple[tuple[type[ast.AST], type[ast.AST]], ...] = (
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.Add, ast.Sub),
    (ast.Mult, ast.Div),
    (ast.And, ast.Or),
    (ast.BitAnd, ast.BitOr),
)
SWAPS = dict(PAIRS) | {after: before for before, after in PAIRS}
SWAPS |= {ast.FloorDiv: ast.Div, ast.Mod: ast.Mult, ast.Pow: ast.Mult}


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    file: str  # below src/incontrast
    place: str  # class and function
    line: int
    function: int | None  # its first line; what is in no function runs when the module is imported
    before: str
    after: str
    source: str  # the whole file as it is after the change

    @property
    def hash(self) -> str:
        return hashlib.blake2b(self.source.encode(), digest_size=16).hexdigest()

    @property
    def name(self) -> str:
        """What it is called in the results, whatever line it is on."""
        return f"{self.file} {self.place}: {self.before} → {self.after}"


# Mutants -----------------------------------------------------------------------------------------


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """What could stand in a node's place."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        yield ast.Compare(node.left, [SWAPS[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        yield ast.BinOp(node.left, SWAPS[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(SWAPS[type(node.op)](), node.values)
    elif isinstance(node, ast.AugAssign) and type(node.op) in SWAPS:
        yield ast.AugAssign(node.target, SWAPS[type(node.op)](), node.value)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.If | ast.While):
        yield type(node)(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.Return) and node.value is not None and not none(node.value):
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield ast.Pass()
    elif isinstance(node, ast.Call):
        for argument in node.keywords:
            if argument.arg is not None:
                rest = [other for other in node.keywords if other is not argument]
                yield ast.Call(node.func, node.args, rest)


def none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def left_out(node: ast.AST) -> bool:
    """Whether nothing inside is changed: it is text, or says nothing about what the code does."""
    if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom | ast.Raise | ast.JoinedStr):
        return True
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.Assign):
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        return bool({"__all__", "T", "R"} & set(names))
    if isinstance(node, ast.Expr):
        return left_out(node.value)
    if isinstance(node, ast.Call):
        text = ast.unparse(node.func)
        return text.startswith("log.") or text in ("TypeVar", "getLogger")
    return False


def walk(node: ast.AST, place: tuple[str, ...], function: int | None) -> Iterator[tuple[Any, ...]]:
    """Every node that may be changed, with the class and function it is in."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for number, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, ast.AST) or left_out(child):
                continue
            here, within = place, function
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                here = (*place, child.name)
            if isinstance(child, ast.FunctionDef):
                within = min(line.lineno for line in (child, *child.decorator_list))
            yield node, field, number, child, here, within
            yield from walk(child, here, within)


def mutants(file: Path) -> list[Mutant]:
    """All mutants of a file."""
    tree = ast.parse(file.read_text())
    found = []
    for parent, field, number, child, place, function in walk(tree, (), None):
        for changed in changes(child):
            ast.copy_location(changed, child)
            before, after = ast.unparse(child), ast.unparse(changed)
            many = isinstance(getattr(parent, field), list)
            set_child(parent, field, number, changed, many)
            source = ast.unparse(ast.fix_missing_locations(copy.deepcopy(tree)))
            set_child(parent, field, number, child, many)
            short = [text.splitlines()[0][:70] for text in (before, after)]
            where = ".".join(place) or "module"
            path = file.relative_to(PACKAGE).as_posix()
            found.append(Mutant(path, where, child.lineno, function, *short, source))
    return found


def set_child(parent: ast.AST, field: str, number: int, child: ast.AST, many: bool) -> None:
    if many:
        getattr(parent, field)[number] = child
    else:
        setattr(parent, field, child)


# Tests -------------------------------------------------------------------------------------------


class Tracer:
    """A pytest plugin that notes which functions a test calls, and how long it takes."""

    def __init__(self, files: list[Path]) -> None:
        self.files = {str(file): file.relative_to(PACKAGE).as_posix() for file in files}
        self.called: dict[str, set[str]] = defaultdict(set)  # "file:first line" to tests
        self.seconds: dict[str, float] = {}
        self._now: set[str] = set()

    def _call(self, frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        if code.co_filename in self.files:
            self._now.add(f"{self.files[code.co_filename]}:{code.co_firstlineno}")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> Iterator[None]:
        begin, self._now = time.process_time(), set()
        threading.settrace(self._call)
        sys.settrace(self._call)
        yield
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        self.seconds[item.nodeid] = time.process_time() - begin
        for line in self._now:
            self.called[line].add(item.nodeid)


def traced(files: list[Path]) -> dict[str, Any]:
    """Which tests call which functions, from a run of all of them in a fork."""
    newest = max(file.stat().st_mtime for file in (*files, *tests()))
    if TRACE.exists() and TRACE.stat().st_mtime > newest:
        return dict(json.loads(TRACE.read_text()))
    child = os.fork()
    if child == 0:
        tracer = Tracer(files)
        code = pytest.main([*QUIET, *TESTS], plugins=[tracer])
        called = {line: sorted(names) for line, names in tracer.called.items()}
        if code == 0:
            TRACE.write_text(json.dumps({"called": called, "seconds": tracer.seconds}))
        os._exit(int(code))
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit("the tests fail without any change: fix that first")
    return dict(json.loads(TRACE.read_text()))


def tests() -> Iterator[Path]:
    for name in TESTS:
        path = ROOT / name
        yield from path.rglob("*.py") if path.is_dir() else [path]


class Changed(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Imports one module from changed source."""

    def __init__(self, mutant: Mutant) -> None:
        self.path = str(PACKAGE / mutant.file)
        self.source = mutant.source
        parts = Path(mutant.file).with_suffix("").parts
        self.name = ".".join(("incontrast", *(part for part in parts if part != "__init__")))

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.name:
            return None
        package = [str(Path(self.path).parent)] if self.path.endswith("__init__.py") else None
        return importlib.util.spec_from_file_location(
            name, self.path, loader=self, submodule_search_locations=package
        )

    def get_filename(self, name: str) -> str:
        return self.path

    def get_data(self, path: str) -> bytes:
        return self.source.encode()

    def path_stats(self, path: str) -> Any:
        raise OSError  # so that no compiled file is written or read


def killed(mutant: Mutant, chosen: list[str]) -> bool:
    """Whether one of the tests fails with this mutant, or does not end."""
    child = os.fork()
    if child == 0:
        os.setpgrp()
        spent = int(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (spent + LIMIT, spent + LIMIT))
        sys.meta_path.insert(0, Changed(mutant))
        with (
            open(os.devnull, "w") as nowhere,  # noqa: PTH123
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            try:
                code = pytest.main([*QUIET, *chosen])
            except BaseException:
                code = 1
        os._exit(int(code != 0))
    deadline = time.monotonic() + ASLEEP
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status != 0
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def calling(mutant: Mutant, trace: dict[str, Any]) -> list[str]:
    """The tests that call a mutant's function, or any of the file's if it is in none.

    The fastest come first, as many as take ``TAKEN`` seconds: what only others notice survives.
    """
    if mutant.function is not None:
        names = set(trace["called"].get(f"{mutant.file}:{mutant.function}", ()))
    else:
        lines = (found for line, found in trace["called"].items() if line.startswith(mutant.file))
        names = {name for found in lines for name in found}
    ordered = sorted(names, key=lambda name: trace["seconds"][name])
    ends = itertools.accumulate(trace["seconds"][name] for name in ordered)
    return [name for name, end in zip(ordered, ends, strict=True) if end < TAKEN] or ordered[:1]


# Results -----------------------------------------------------------------------------------------


def reasons() -> dict[str, str]:
    """What a person wrote behind survivors of earlier runs."""
    if not RESULTS.exists():
        return {}
    lines = (line.strip().partition("  # ") for line in RESULTS.read_text().splitlines())
    return {name: reason for name, _, reason in lines if reason}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--sample", type=int, default=40, help="mutants per group; 0 for all")
    arguments.add_argument("--only", default="", help="files that begin with this")
    arguments.add_argument("--seed", type=int, default=0, help="draws the sample")
    asked = arguments.parse_args()
    os.chdir(ROOT)
    for name in HEAVY:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    assert not any(name.startswith("incontrast") for name in sys.modules)
    files = {
        group: [file for pattern in patterns for file in sorted(PACKAGE.glob(pattern))]
        for group, patterns in GROUPS.items()
    }
    trace = traced([file for group in files.values() for file in group])
    known, lines, scores = reasons(), [], []
    before = {*KILLED.read_text().split()} if KILLED.exists() else set()
    for group, members in files.items():
        every = [mutant for file in members for mutant in mutants(file)]
        every = [mutant for mutant in every if mutant.file.startswith(asked.only)]
        if asked.sample and len(every) > asked.sample:
            every = random.Random(asked.seed).sample(every, asked.sample)
        survivors = []
        for number, mutant in enumerate(sorted(every, key=lambda m: (m.file, m.line)), start=1):
            chosen = calling(mutant, trace)
            begin, dead = time.perf_counter(), mutant.hash in before
            if not dead and chosen and killed(mutant, chosen):
                dead = True
                with KILLED.open("a") as file:
                    file.write(f"{mutant.hash}\n")
            told = "killed" if dead else "SURVIVED"
            seconds = time.perf_counter() - begin
            print(f"{group} {number}/{len(every)} {told} {seconds:.1f} s {mutant.name}", flush=True)
            if not dead:
                survivors.append(mutant)
        if every:
            scores.append((group, len(every) - len(survivors), len(every)))
            lines += [f"    {m.name}  # {known.get(m.name, 'no reason yet')}" for m in survivors]
    dead, total = (sum(score[place] for score in scores) for place in (1, 2))
    drawn = f"a sample of {asked.sample} per group" if asked.sample else "all mutants"
    report = [
        f"{datetime.date.today():%Y-%m-%d}, {drawn}, seed {asked.seed}: python tools/mutants.py",
        "",
        *(f"{group:<12} {got:>4} of {of:>4} killed, {got / of:.0%}" for group, got, of in scores),
        f"{'all':<12} {dead:>4} of {total:>4} killed, {dead / max(total, 1):.0%}",
        "",
        "Survivors, and why:",
        *lines,
        "",
    ]
    if asked.only:
        print("\n".join(report))
    else:
        RESULTS.write_text("\n".join(report))


if __name__ == "__main__":
    main()
