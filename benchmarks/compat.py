"""What stored vectors are worth after an update: maps between versions, and re-embedding a part.

    python benchmarks/compat.py train --cache FOLDER       encoders, of which embeddings are kept
    python benchmarks/compat.py measure --cache FOLDER     rows, from those embeddings
    python benchmarks/compat.py dial                       rows on ICL(compatible=...)
    python benchmarks/compat.py speed
    python benchmarks/compat.py million                    needs 1.5 GB of disk
    python benchmarks/compat.py show

For each data set, growth ratio α and seed an encoder is fitted on the old items; then it is updated
(a quarter of retraining's forward passes) or retrained. At most 3,000 old items are learned from.
A map is fitted on up to 4,000 of the items that were learned from, as an update does, or on half of
all where that is less. The index has all others, as the encoder of before embedded them: none that
the map was fitted on. Queries are items that no encoder has seen. Precision@10 is the share of a
query's ten nearest items that have its label, recall@10 the share of those ten that would also be
found after everything was re-embedded. A share that is re-embedded counts the sample on which that
map is corrected, as reembed does; in a small index the sample is more than the share. Encoders are
trained once, all figures come from their embeddings; a rerun skips what is there. The sets are
those of parity_sets.py; docs/explanation/stored-vectors.md says what was chosen on which.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.nn.functional import normalize

import incontrast as ic
from incontrast.call import PAIRS
from incontrast.compat import fit_link
from incontrast.compat.fitting import Pairs, candidates
from incontrast.compat.plan import FEWEST, QUERIES, make_plan
from incontrast.data import Labelled
from incontrast.data.sources import read_source
from incontrast.randomness import generator
from incontrast.workspace.embeddings import embed_source
from incontrast.workspace.reembed import SAMPLE, SAMPLED, reembed
from parity_sets import MNIST, SETS, Problem, drawn, mnist_parts, of_classes

ROWS = Path(__file__).parent / "results" / "compat.jsonl"
KEY = ("kind", "set", "alpha", "updates", "seed")
WEIGHTS = (0.0, 0.1, 0.3, 1.0, 3.0)  # of the anchor
ALPHAS, SEEDS = (0.05, 0.3), (0, 1, 2)
TRAINED = (
    "digits by class",
    "PROTEINS",
    "MNIST by class",
    "MNIST at random",
    "Banking77 by intent",
    "Imagenette by class",
)
CHAINED = ("MNIST by class", "MNIST at random")
OLD = 3000  # items at most
MILLION_FROM = 64  # dimensions of the items of a million vectors
FIRST, LATER = 2500, 130  # items of a first fit and of each of five updates
SHARE = 0.25  # of retraining's forward passes, for an update
LONG: dict[str, Any] = {"max_epochs": 1_000_000, "patience": None}  # the budget ends every update
UPDATE = ic.ICL(**LONG)
KINDS = ("retraining", "update", "chain")


def place(cache: Path, *parts: Any) -> Path:
    return cache / (re.sub("[^a-zA-Z0-9.]+", "_", " ".join(map(str, parts))) + ".npz")


def reduced(problem: Problem, alpha: float, seed: int) -> Problem:
    old = min(len(problem.old), OLD)
    new = min(len(problem.new), round(old * alpha / (1 - alpha)))
    return problem._replace(
        old=drawn(problem.old, old, seed, "reduced"), new=drawn(problem.new, new, seed, "reduced")
    )


def labels_of(*parts: Labelled) -> Any:
    return np.concatenate([part.labels for part in parts])


def embedded(learner: ic.Learner, *parts: Labelled) -> Any:
    return torch.cat([learner.embed(part.items) for part in parts]).numpy()


def embeddings(
    learner: ic.Learner, version: str, parts: dict[str, Sequence[Labelled]]
) -> dict[str, Any]:
    return {f"{version} {part}": embedded(learner, *items) for part, items in parts.items()}


def parts_of(name: str, alpha: float, seed: int) -> tuple[Problem, dict[str, Sequence[Labelled]]]:
    """What is learned from, and what is embedded by every version."""
    whole = SETS[name].problem(alpha, seed)
    problem = reduced(whole, alpha, seed)
    return problem, {
        "index": whole[1:3],
        "queries": whole[3:],
        "pairs": problem[1:3],
        "fresh": [drawn(problem.new, QUERIES, seed, "fresh")],
    }


def fitted(folder: Path, name: str, domain: ic.Domain, old: Any, seed: int) -> ic.Learner:
    """A learner on the old items, kept in a folder: whatever changes in updates, it stays."""
    if not folder.exists():
        learner = ic.Learner(domain, fit_strategy=SETS[name].retraining, seed=seed)
        learner.fit(old)
        learner.save(folder)
    return ic.Learner.load(folder)


def pair(cache: Path, kind: str, name: str, alpha: float, seed: int) -> None:
    """Embeddings of X′ and of unseen items, by an encoder and by its retraining or update."""
    before, file = (place(cache, name, alpha, seed, version) for version in ("before", kind))
    if file.exists():
        return
    problem, parts = parts_of(name, alpha, seed)
    learner = fitted(before.with_suffix(""), name, problem.domain, problem.old.items, seed)
    if not before.exists():
        labels, asked = labels_of(*parts["index"]), labels_of(*parts["queries"])
        arrays = embeddings(learner, "before", parts)
        np.savez(before, labels=labels, query_labels=asked, **arrays)
    strategy, budget = SETS[name].retraining, None
    if kind == "update":
        count = 2 * strategy.max_epochs * (len(problem.old) + len(problem.new))
        strategy, budget = UPDATE, ic.Budget(forward_passes=round(SHARE * count))
    learner.update(problem.new.items, strategy=strategy, budget=budget)
    np.savez(file, settings=repr(strategy), **embeddings(learner, kind, parts))
    print(time.strftime("%H:%M:%S"), file.name, flush=True)


def chain(cache: Path, name: str, seed: int) -> None:
    """Five updates in a row: embeddings of all items and of unseen ones by each of six versions."""
    file = place(cache, "chain", name, seed)
    if file.exists():
        return
    seen, unseen = mnist_parts()
    queries = drawn(unseen, 1500, seed, "unseen")
    if name == "MNIST by class":  # five classes first, then one at a time
        first = drawn(of_classes(seen, range(5)), FIRST, seed, "first")
        later = [drawn(of_classes(seen, [new]), LATER, seed, "later") for new in range(5, 10)]
    else:
        mixed = drawn(seen, FIRST + 5 * LATER, seed, "first")
        ends = [FIRST + LATER * number for number in range(6)]
        first = mixed.select(np.arange(FIRST))
        later = [mixed.select(np.arange(end, end + LATER)) for end in ends[:-1]]
    corpus = (first, *later)
    learner = fitted(file.with_suffix(""), name, MNIST, first.items, seed)
    passes = 2 * SETS[name].retraining.max_epochs * len(first)
    arrays = {"labels": labels_of(*corpus), "query_labels": queries.labels}
    for version in range(1, 7):
        if version > 1:
            budget = ic.Budget(forward_passes=round(SHARE * passes))
            learner.update(later[version - 2].items, strategy=UPDATE, budget=budget)
        parts = {"index": corpus, "queries": [queries]}
        arrays |= embeddings(learner, str(version), parts)
    np.savez(file, settings=repr(UPDATE), **arrays)
    print(time.strftime("%H:%M:%S"), file.name, flush=True)


def train(cache: Path, kinds: Sequence[str]) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    for seed in SEEDS:
        for alpha, kind, name in product(ALPHAS, kinds, TRAINED):  # the quickest first
            if kind != "chain":
                pair(cache, kind, name, alpha, seed)
        for name in CHAINED if "chain" in kinds else ():
            chain(cache, name, seed)


def dial() -> None:
    """What ``compatible`` costs new items and gives stored vectors, on a tuning set."""
    name, alpha = "digits by class", 0.05
    done = {(row["seed"], row["compatible"]) for row in rows() if row["kind"] == "dial"}
    for seed in SEEDS:
        if all((seed, weight) in done for weight in WEIGHTS):
            continue
        problem, retraining = SETS[name].problem(alpha, seed), SETS[name].retraining
        learner = ic.Learner(problem.domain, fit_strategy=retraining, seed=seed)
        passes = learner.fit(problem.old.items).forward_passes
        corpus, queries = problem[1:3], problem[3:]
        labels, asked = labels_of(*corpus), labels_of(*queries)
        before = torch.from_numpy(embedded(learner, *corpus))
        for weight in WEIGHTS:
            twin = copy.deepcopy(learner)
            strategy = ic.ICL(compatible=weight, **LONG)
            budget = ic.Budget(forward_passes=round(SHARE * passes))
            twin.update(problem.new.items, strategy=strategy, budget=budget)
            after, found = (torch.from_numpy(embedded(twin, *part)) for part in (corpus, queries))
            fresh = torch.from_numpy(embedded(twin, queries[1]))
            write(
                {
                    "kind": "dial",
                    "set": name,
                    "alpha": alpha,
                    "seed": seed,
                    "compatible": weight,
                    "nothing": precision(found, before, asked, labels),
                    "map": precision(found, twin.links[0].to_new(before), asked, labels),
                    "full": precision(found, after, asked, labels),
                    "full, new classes": precision(fresh, after, queries[1].labels, labels),
                }
            )


def measure(cache: Path) -> None:
    """Precision@10 with nothing, each map, parts re-embedded, everything."""
    done = {tuple(row.get(name) for name in KEY) for row in rows()}
    for seed in SEEDS:
        for name, alpha in product(TRAINED, ALPHAS):
            before = place(cache, name, alpha, seed, "before")
            for what in ("update", "retraining"):
                file = place(cache, name, alpha, seed, what)
                about = {"kind": what, "set": name, "alpha": alpha, "seed": seed}
                if file.exists() and tuple(about.get(part) for part in KEY) not in done:
                    data = dict(np.load(before)) | dict(np.load(file))
                    write({**about, **figures(data, "before", what, seed), **settings(data)})
        for name in CHAINED:
            file = place(cache, "chain", name, seed)
            if file.exists():
                data = dict(np.load(file))
                for version in range(2, 7):
                    about = {"kind": "chain", "set": name, "updates": version - 1, "seed": seed}
                    if tuple(about.get(part) for part in KEY) not in done:
                        write({**about, **chained(data, version, seed), **settings(data)})


def settings(data: dict[str, Any]) -> dict[str, str]:
    return {"settings": str(data["settings"])}


def tensors(data: dict[str, Any], *names: str) -> list[torch.Tensor]:
    return [normalize(torch.from_numpy(data[name])) for name in names]


def figures(data: dict[str, Any], old: str, new: str, seed: int) -> dict[str, Any]:
    """With a map fitted on items that were learned from, and an index of the others."""
    before, after, queries = tensors(data, f"{old} pairs", f"{new} pairs", f"{new} queries")
    count = min(PAIRS, len(data["labels"]) // 2)
    chosen = torch.randperm(len(before), generator=generator(seed, "pairs"))[:count]
    before, after = before[chosen], after[chosen]
    (index,) = tensors(data, f"{old} index")
    data = without(data, (before @ index.T).argmax(1))
    link = fit_link(before, after, old=1, new=2, seed=seed)
    index, asked, labels = tensors(data, f"{old} index")[0], data["query_labels"], data["labels"]
    (fresh,) = tensors(data, f"{new} fresh")
    row = searched(data, old, new, link.to_new, fresh, seed)
    row |= {"pairs": len(before), "chosen": [link.to_old.kind, link.to_new.kind]}
    row["expected recall"] = round(link.expected("to_new").recall, 4)
    row["map to_old"] = precision(link.to_old(queries), index, asked, labels)
    for kind in ("orthogonal", "low-rank", "affine", "quadratic"):
        with patch("incontrast.compat.link.KINDS", (kind,)):
            one = fit_link(before, after, old=1, new=2, seed=seed)
        row[f"{kind} to_old"] = precision(one.to_old(queries), index, asked, labels)
        row[f"{kind} to_new"] = precision(queries, one.to_new(index), asked, labels)
    return row


def without(data: dict[str, Any], rows: torch.Tensor) -> dict[str, Any]:
    """The index without some rows."""
    return {
        name: np.delete(values, rows, 0) if name == "labels" or name.endswith(" index") else values
        for name, values in data.items()
    }


def searched(
    data: dict[str, Any], old: str, new: str, mapped: Any, fresh: torch.Tensor, seed: int
) -> dict[str, Any]:
    """Searches with a map of the index, then with a part of it re-embedded, then with all."""
    names = (f"{old} index", f"{new} index", f"{old} queries", f"{new} queries")
    before, after, old_queries, queries = tensors(data, *names)
    asked, labels = data["query_labels"], data["labels"]
    known = mapped(before)
    was, now = (
        shares(*sides, asked, labels) for sides in ((old_queries, before), (queries, known))
    )
    full = (queries @ after.T).topk(10, dim=1).indices
    row: dict[str, Any] = {
        "items": len(before),
        "old encoder": precision(old_queries, before, asked, labels),
        "none": precision(queries, before, asked, labels),
        "map to_new": precision(queries, known, asked, labels),
        "map - old encoder, ±": round(1.96 * float((now - was).std()) / len(now) ** 0.5, 4),
        "map recall": recall(queries, known, full),
        "full": precision(queries, after, asked, labels),
    }
    size = min(SAMPLE, max(FEWEST, round(SAMPLED * len(before))))
    sample = torch.randperm(len(before), generator=generator(seed, "sample"))[:size]
    plan = make_plan(known[sample], after[sample], old=1, new=2, seed=seed, queries=fresh)
    corrected = plan.link.to_new(known)
    values = plan.values(lambda: iter([(known, corrected)]))
    at_random = torch.rand(len(before), generator=generator(seed, "at random"))
    for title, worth in (("plan", values), ("at random", at_random)):
        worth[sample] = torch.inf  # they are re-embedded already
        order = worth.argsort(descending=True)
        for share in (0.05, 0.1, 0.25):
            mixed, again = corrected.clone(), order[: max(round(share * len(before)), size)]
            mixed[again] = after[again]
            row[f"{share:.0%} {title}"] = precision(queries, mixed, asked, labels)
            row[f"{share:.0%} {title} recall"] = recall(queries, mixed, full)
    return row


def chained(data: dict[str, Any], version: int, seed: int) -> dict[str, Any]:
    """The first index after some updates: over all maps in a row, and by one direct map."""
    count = len(data["labels"])
    order = torch.randperm(count, generator=generator(seed, "pairs"))
    sample, left = order[: count // 2], order[count // 2 :].sort().values
    spaces = [tensors(data, f"{number} index")[0] for number in range(1, version + 1)]
    links = [
        fit_link(before[sample], after[sample], old=number, new=number + 1, seed=seed)
        for number, (before, after) in enumerate(pairwise(spaces), start=1)
    ]
    (queries,) = tensors(data, f"{version} queries")
    asked, labels = data["query_labels"], data["labels"]
    there, back = ic.compat.chain(links, version, 1), ic.compat.chain(links, 1, version)
    # The last items of the index came with the last update.
    fresh = spaces[-1][FIRST : FIRST + LATER * (version - 1)]
    direct = fit_link(spaces[0][sample], spaces[-1][sample], old=1, new=2, seed=seed)
    ends = (without(data, sample), "1", str(version))
    row, other = (
        searched(*ends, mapped, fresh[-QUERIES:], seed) for mapped in (back, direct.to_new)
    )
    index, labels = spaces[0][left], labels[left.numpy()]
    return {
        **row,
        "pairs": len(sample),
        "map to_old": precision(there(queries), index, asked, labels),
        "direct to_new": other["map to_new"],
        "10% plan, direct": other["10% plan"],
        "chain expected recall": round(back.recall, 4),
    }


def recall(queries: torch.Tensor, corpus: torch.Tensor, full: torch.Tensor) -> float:
    found = (queries @ corpus.T).topk(10, dim=1).indices
    return round(float((found[:, :, None] == full[:, None, :]).any(2).float().mean()), 4)


def shares(queries: torch.Tensor, corpus: torch.Tensor, asked: Any, labels: Any) -> Any:
    """Of each query's ten nearest, those that have its label."""
    near = (normalize(queries) @ normalize(corpus).T).topk(10, dim=1).indices.numpy()
    return (labels[near] == asked[:, None]).mean(1)


def precision(queries: Any, corpus: Any, asked: Any, labels: Any) -> float:
    return round(float(shares(queries, corpus, asked, labels).mean()), 4)


def speed() -> None:
    """Seconds to fit, and to apply each map, on one thread: processor time, the best of several.

    Beside them the roofline: what as many multiplications take in a product of matrices that stay
    in the cache (1,024 rows), as PyTorch computes it here.
    """
    draws = torch.Generator().manual_seed(0)
    for count, width in ((1000, 64), (1000, 128), (10_000, 512)):
        before = torch.randn(count, 32, generator=draws) @ torch.randn(32, width, generator=draws)
        before += 0.3 * torch.randn(count, width, generator=draws)
        turn = torch.eye(width) + 0.02 * torch.randn(width, width, generator=draws)
        after = before @ turn + 0.1 * torch.randn(count, width, generator=draws)
        row: dict[str, Any] = {"kind": "speed", "pairs": count, "width": width}
        start = time.process_time()
        fit_link(before, after, old=1, new=2, seed=0)
        row["fit, s"] = round(time.process_time() - start, 2)
        block, square = torch.randn(1024, width), torch.randn(width, width)
        multiplied = torch.empty_like(block)
        product_time = best_of(partial(torch.mm, block, square, out=multiplied), 20) / 1024
        row["product, GFLOP/s"] = round(2e-9 * width**2 / product_time, 1)
        stored = torch.randn(2**15, width, generator=draws)
        query, out = stored[:1].clone(), torch.empty(2**15, width)
        pairs = Pairs(normalize(before), normalize(after))
        for kind in ("orthogonal", "low-rank", "affine", "quadratic", "residual"):
            for adapter in candidates(kind, pairs, draws):
                rank = f" {len(adapter.tensors['up']) - 1}" if "up" in adapter.tensors else ""
                rank += " and a matrix" if rank and "weight" in adapter.tensors else ""
                if kind + rank in row:  # of another strength, at the same cost
                    continue
                one = best_of(partial(adapter, query), 1000)
                many = best_of(partial(adapter, stored, out=out), 1) / len(stored)
                row[kind + rank] = {
                    "one, µs": round(1e6 * one, 1),
                    "million/s": round(1e-6 / many, 2),
                    "of roofline": round(adapter.cost * product_time / width**2 / many, 2),
                }
        write(row)


def million() -> None:
    """Seconds and memory of a plan for a million stored vectors, by a process of its own."""
    with tempfile.TemporaryDirectory() as place:
        folder, rows, file = (Path(place) / name for name in ("W", "rows.npy", "vectors.npy"))
        draws = np.random.default_rng(0)
        mixed = draws.standard_normal((16, MILLION_FROM), dtype=np.float32)
        data = np.lib.format.open_memmap(rows, "w+", np.float32, (10**6, MILLION_FROM))
        for first in range(0, len(data), 2**16):
            part = data[first : first + 2**16]
            part[:] = draws.standard_normal((len(part), 16), dtype=np.float32) @ mixed
            part += 0.3 * draws.standard_normal(part.shape, dtype=np.float32)
        short = {"fit_strategy": ic.Retrain(max_epochs=3), "strategy": ic.ICL(max_epochs=3)}
        learner = ic.Learner(ic.Vectors(MILLION_FROM, out=128), **short)
        workspace = ic.Workspace.create(folder, learner, threads=1)
        workspace.fit(data[:5000].copy(), force=True)
        embed_source(workspace, read_source(rows), file)
        workspace.update(data[5000:5300] + 1.0, force=True)
        del data
        program = "import compat; compat.plan_million(*map(compat.Path, compat.sys.argv[1:]))"
        here = str(Path(__file__).parent)
        subprocess.run([sys.executable, "-c", program, folder, file], check=True, cwd=here)


def plan_million(folder: Path, file: Path) -> None:
    """A plan, and the largest memory beside the file's pages, which the system may drop."""
    torch.set_num_threads(1)
    highest, ended = 0, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not ended.wait(0.02):
            told = dict(
                line.split(":") for line in Path("/proc/self/status").read_text().split("\n")[:-1]
            )
            highest = max(highest, int(told["RssAnon"].split()[0]))

    watching = threading.Thread(target=watch)
    watching.start()
    wall, used = time.perf_counter(), time.process_time()
    found = reembed(ic.Workspace.open(folder), file, plan=True)
    row = {"seconds": time.perf_counter() - wall, "of processor": time.process_time() - used}
    ended.set()
    watching.join()
    row = {name: round(value, 1) for name, value in row.items()}
    about = {
        "kind": "million",
        "rows": found.rows,
        "dimensions": np.load(file, mmap_mode="r").shape[1],
    }
    write(
        {
            **about,
            **row,
            "memory, MB": round(highest / 1024),
            "file, MB": round(file.stat().st_size / 2**20),
        }
    )


def best_of(call: Callable[[], object], repeats: int, rounds: int = 5) -> float:
    """Processor seconds of a call, in the quickest of some rounds of it."""
    found = []
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(repeats):
            call()
        found.append((time.process_time() - start) / repeats)
    return min(found)


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def write(row: dict[str, Any]) -> None:
    with ROWS.open("a") as file:
        file.write(json.dumps({**row, "date": time.strftime("%Y-%m-%d")}) + "\n")
    print(row, flush=True)


def show() -> None:
    """Medians over seeds, as tables in Markdown."""
    columns = ("old encoder", "none", "map to_old", "map to_new", "5% plan", "10% plan", "full")
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows():
        if "full" in row and "map to_new" in row:
            key = tuple(row.get(name) for name in ("kind", "set", "alpha", "updates"))
            groups.setdefault(key, []).append(row)
    direct = ("direct to_new", "10% plan, direct")
    for part, extra in (("update", ()), ("retraining", ()), ("chain", direct)):
        names = (*columns, *extra)
        last = ("updates",) if extra else ("α",)
        print(
            f"\n{part}\n\n|",
            " | ".join(("data", *last, "seeds", *names, "map + 10 % of full")),
            "|",
        )
        print("|---" * (len(names) + 4) + "|")
        for (kind, name, alpha, updates), found in groups.items():
            if kind == part:
                figure = [
                    f"{statistics.median(row[column] for row in found):.3f}" for column in names
                ]
                kept = [row["10% plan"] / row["full"] for row in found]
                told = f"{statistics.median(kept):.1%} ({min(kept):.1%} to {max(kept):.1%})"
                place_of = str(updates if extra else alpha)
                print("|", " | ".join((name, place_of, str(len(found)), *figure, told)), "|")
    print(
        "\n| compatible | seeds | nothing | map | full | full, new classes |\n" + "|---" * 6 + "|"
    )
    for weight in WEIGHTS:
        found = [row for row in rows() if row.get("compatible") == weight]
        if found:
            names = ("nothing", "map", "full", "full, new classes")
            cells = [f"{statistics.median(row[name] for row in found):.3f}" for name in names]
            print("|", " | ".join((f"{weight:g}", str(len(found)), *cells)), "|")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("train", "measure", "dial", "speed", "million", "show"))
    parser.add_argument("--cache", type=Path, default=Path("build/compat"))
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=KINDS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.what == "train":
        train(arguments.cache, arguments.kind)
    elif arguments.what == "measure":
        measure(arguments.cache)
    else:
        {"dial": dial, "speed": speed, "million": million, "show": show}[arguments.what]()
