"""Texts: speed, and quality on unseen items beside TF-IDF with a truncated SVD of the same width.

    python benchmarks/text.py speed
    python benchmarks/text.py quality --encoder ngrams transformer --seed 0 1 2
    python benchmarks/text.py show

``speed``: views and batches against the encoder's forward and backward pass on the same batches
(both in processor time, one thread), padding, texts ingested, a thousand texts embedded.

``quality``: an encoder is trained from scratch on the texts of the training set alone. Accuracy on
unseen items of kNN (10 neighbours, cosine) and of a linear probe (logistic regression on
standardised features), for the embeddings and for TF-IDF with a truncated SVD. Views, encoder,
learning rate and epochs were chosen on 2,003 held-out texts of Banking77's training set. Its test
set and the film reviews, of which a fifth is unseen (the label: rated above 0 or not), were only
judged. Rows are in results/text.jsonl; a rerun skips those that are there.
"""

import argparse
import json
import statistics
import tempfile
import time
from functools import cache
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import incontrast as ic
import real_data
from incontrast.randomness import seeded

ROWS = Path(__file__).parent / "results" / "text.jsonl"
EPOCHS = 15
LR = 5e-3
STEPS = 30
SHORT_TEXTS = 200_000


class Split(NamedTuple):
    """Texts and labels to train on, and unseen ones."""

    seen: list[str]
    labels: NDArray[Any]
    unseen: list[str]
    unseen_labels: NDArray[Any]


@cache
def banking77(seed: int) -> Split:
    train, test = (real_data.banking77(part) for part in ("train", "test"))
    return Split(train.items, train.labels, test.items, test.labels)


@cache
def reviews(seed: int) -> Split:
    lines = (real_data.folder() / "text" / "movie_reviews.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in lines.splitlines()]
    order = np.random.default_rng(seed).permutation(len(rows))
    texts, labels = [rows[i][2] for i in order], np.array([float(rows[i][1]) > 0 for i in order])
    count = len(rows) * 4 // 5
    return Split(texts[:count], labels[:count], texts[count:], labels[count:])


SETS = {"Banking77": banking77, "film reviews": reviews}


def probes(seen: NDArray[Any], unseen: NDArray[Any], split: Split) -> dict[str, float]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.preprocessing import StandardScaler, normalize

    seen, unseen = normalize(seen), normalize(unseen)
    knn = KNeighborsClassifier(10, metric="cosine").fit(seen, split.labels)
    scaler = StandardScaler().fit(seen)
    linear = LogisticRegression(max_iter=100, tol=1e-3).fit(scaler.transform(seen), split.labels)
    return {
        "knn": round(float(knn.score(unseen, split.unseen_labels)), 4),
        "linear": round(float(linear.score(scaler.transform(unseen), split.unseen_labels)), 4),
    }


def tfidf(split: Split, seed: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer()
    counts = vectorizer.fit_transform(split.seen)
    svd = TruncatedSVD(width, random_state=seed).fit(counts)
    return svd.transform(counts), svd.transform(vectorizer.transform(split.unseen))


def embedded(split: Split, seed: int, encoder: str) -> tuple[NDArray[Any], NDArray[Any]]:
    strategy = ic.Retrain(
        batch_size=128,
        lr=ic.Cosine(LR),
        max_epochs=EPOCHS,
        patience=None,
    )
    learner = ic.Learner(ic.Text(encoder=encoder), fit_strategy=strategy, seed=seed)
    learner.fit(split.seen)
    return learner.embed(split.seen).numpy(), learner.embed(split.unseen).numpy()


def quality(sets: list[str], encoders: list[str], seeds: list[int]) -> None:
    done = {tuple(row[part] for part in ("set", "seed", "encoder")) for row in rows()}
    for seed, name, encoder in product(seeds, sets, encoders):
        if (name, seed, encoder) in done:
            continue
        split, begin = SETS[name](seed), time.process_time()
        make = tfidf if encoder == "TF-IDF + SVD" else embedded
        last = 128 if encoder == "TF-IDF + SVD" else encoder
        vectors = make(split, seed, last)
        row = {"set": name, "seed": seed, "encoder": encoder}
        row |= {"seconds": round(time.process_time() - begin, 1), **probes(*vectors, split)}
        with ROWS.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def show() -> None:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows():
        groups.setdefault((row["set"], row["encoder"]), []).append(row)
    print("| data | embeddings | seeds | kNN | linear probe | processor time |")
    print("|---|---|---:|---:|---:|---:|")
    for (name, encoder), found in sorted(groups.items()):
        cells = [
            f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"
            for values in ([row[part] for row in found] for part in ("knn", "linear"))
        ]
        seconds = statistics.median(row["seconds"] for row in found)
        print(f"| {name} | {encoder} | {len(found)} | {' | '.join(cells)} | {seconds:.0f} s |")


def speed() -> None:
    texts = banking77(0).seen
    for name in ("transformer", "ngrams"):
        domain = ic.Text(encoder=name)
        items = domain.collect(texts)
        domain = domain.fit_statistics(items)
        with seeded(0, "benchmark"):
            encoder = domain.encoder()
        draws = torch.Generator().manual_seed(0)
        order = torch.split(torch.randperm(len(items), generator=draws), 64)
        for _ in range(2):  # in the first round, texts are tokenised
            begin = time.process_time()
            batches = [domain.join(domain.views(items.take(at), draws)) for at in order[:STEPS]]
            views = (time.process_time() - begin) / STEPS
        begin = time.process_time()
        for batch in batches:
            encoder(batch).square().mean().backward()
        passes = (time.process_time() - begin) / STEPS
        padded = sum(part.ids.numel() for batch in batches for _, part in batch.buckets())
        waste = 1 - sum(int(batch.lengths.sum()) for batch in batches) / padded
        learner = ic.Learner(domain, fit_strategy=ic.Retrain(max_epochs=1))
        learner.fit(texts[:64])
        begin, wall = time.process_time(), time.perf_counter()
        learner.embed(texts[:1000])
        took = f"{time.process_time() - begin:.2f} s ({time.perf_counter() - wall:.2f} s elapsed)"
        print(
            f"{name}: views and batches {1000 * views:.1f} ms, encoder {1000 * passes:.1f} ms "
            f"({views / passes:.1%}); padding {waste:.1%}; 1,000 texts embedded in {took}"
        )
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "texts.txt"
        lines = (f"{' '.join(text.split())} {n}" for n in range(100) for text in texts)
        short = islice(lines, SHORT_TEXTS)
        file.write_text("\n".join(short), encoding="utf-8")
        learner = ic.Learner(ic.Text(encoder="ngrams"))
        space = ic.Workspace.create(Path(place) / "space", learner)
        marks: list[tuple[str, float, float]] = []
        budget = ic.Budget(forward_passes=1)
        begin, wall = time.process_time(), time.perf_counter()
        space.fit(
            file,
            budget=budget,
            notify=lambda line: marks.append(
                (line, time.process_time() - begin, time.perf_counter() - wall)
            ),
        )
        line, processor, elapsed = marks[0]
        print(f"{line} ({processor:.0f} s of the processor, {elapsed:.0f} s elapsed)")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    encoders = ["TF-IDF + SVD", "ngrams", "transformer"]
    parser.add_argument("what", choices=["speed", "quality", "show"])
    parser.add_argument("--set", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--encoder", nargs="+", choices=encoders, default=encoders)
    parser.add_argument("--seed", nargs="+", type=int, default=[0, 1, 2])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.what == "quality":
        quality(arguments.set, arguments.encoder, arguments.seed)
    else:
        {"speed": speed, "show": show}[arguments.what]()


if __name__ == "__main__":
    main()
