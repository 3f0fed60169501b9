"""What labels say about embeddings: SVMs, kNN accuracy, retrieval, and probe sets of one's own."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from incontrast.data.labelled import Labelled

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

C_GRID = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)  # as in GraphCL's evaluation

LARGEST_KERNEL = 5000  # items whose kernel is kept: 200 MB


class Accuracy(NamedTuple):
    mean: float
    deviation: float


def svm_accuracy(embeddings: Any, labels: Any, *, folds: int = 5, seed: int = 0) -> Accuracy:
    """Accuracy of an SVM on frozen (n, d) embeddings with (n,) labels, cross-validated.

    C is searched inside each fold, by cross-validation with as many folds, which ``seed`` draws.
    """
    from sklearn.model_selection import StratifiedKFold

    x, y = _checked(embeddings, labels, least=folds)
    outer = StratifiedKFold(folds, shuffle=True, random_state=seed)
    scores = np.array(
        [
            fit_svm(x[seen], y[seen], folds=folds, seed=seed).score(x[rest], y[rest])
            for seen, rest in outer.split(x, y)
        ]
    )
    return Accuracy(float(scores.mean()), float(scores.std()))


def fit_svm(embeddings: Any, labels: Any, *, folds: int = 5, seed: int = 0) -> Pipeline:
    """An SVM on standardised embeddings, its C searched by cross-validation; ``score`` judges it.

    The same as scikit-learn's ``GridSearchCV`` finds, in a third of the time: all values of C
    share the kernel of a fold, which takes most of it, as long as it is not too large to keep.
    """
    from sklearn import config_context
    from sklearn.dummy import DummyClassifier
    from sklearn.metrics.pairwise import rbf_kernel
    from sklearn.model_selection import StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    x, y = _checked(embeddings, labels, least=folds)
    if len(np.unique(y)) < 2:
        return make_pipeline(DummyClassifier()).fit(x, y)  # nothing to tell apart
    scores = np.zeros(len(C_GRID))
    for seen, rest in StratifiedKFold(folds, shuffle=True, random_state=seed).split(x, y):
        if len(np.unique(y[seen])) < 2:
            scores += np.nan  # as there: a fold that cannot be fitted leaves no C to choose
            continue
        scaler = StandardScaler().fit(x[seen])
        inside, outside = (scaler.transform(x[part]).astype(np.float64) for part in (seen, rest))
        known, asked, kernel = inside, outside, "rbf"
        if len(inside) <= LARGEST_KERNEL:
            spread = x.shape[1] * inside.var()
            gamma = 1.0 / spread if spread else 1.0  # SVC's "scale"
            known, asked = (rbf_kernel(part, inside, gamma=gamma) for part in (inside, outside))
            kernel = "precomputed"
        with config_context(assume_finite=True, skip_parameter_validation=True):
            for number, c in enumerate(C_GRID):
                svm = SVC(C=c, kernel=kernel).fit(known, y[seen])
                scores[number] += (svm.predict(asked) == y[rest]).mean()
    return make_pipeline(StandardScaler(), SVC(C=C_GRID[int(scores.argmax())])).fit(x, y)


def knn_accuracy(
    embeddings: Any, labels: Any, *, neighbours: int = 10, queries: Any = None
) -> float:
    """How often the nearest other items, by cosine and majority, have an item's own label.

    Ties go to the label of the nearer neighbours.

    Args:
        embeddings: (n, d).
        labels: (n,).
        neighbours: How many of the other items vote.
        queries: (n,) which items are asked about, as booleans; all of them if None.
    """
    x, y = _checked(embeddings, labels, least=2)
    right = _right_votes(y, *_nearest(x, neighbours))
    return float(right.mean() if queries is None else right[np.asarray(queries)].mean())


def _nearest(x: NDArray[Any], count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """(n, count) cosine distances and places of the nearest others of each item."""
    from sklearn.neighbors import NearestNeighbors

    index = NearestNeighbors(n_neighbors=min(count, len(x) - 1), metric="cosine").fit(x)
    distances, nearest = index.kneighbors()
    return distances, nearest


def _right_votes(
    y: NDArray[Any], distances: NDArray[Any], nearest: NDArray[Any]
) -> NDArray[np.bool_]:
    classes, codes = np.unique(y, return_inverse=True)
    votes = np.zeros((len(y), len(classes)))
    # A vote counts 1 plus a little for closeness, which only ever decides a tie.
    np.add.at(votes, (np.arange(len(y))[:, None], codes[nearest]), 1.0 + 1e-3 * (2 - distances))
    right: NDArray[np.bool_] = votes.argmax(axis=1) == codes
    return right


def _precision(y: NDArray[Any], nearest: NDArray[Any]) -> NDArray[np.float64]:
    """(n,) the share of each item's nearest that have its label; nan where no other item has it.

    Of an item whose class has fewer others than ``nearest``, only as many are looked at, so that
    1 can be reached.
    """
    _, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    same = np.cumsum(codes[nearest] == codes[:, None], axis=1)
    looked = np.minimum(counts[codes] - 1, nearest.shape[1])
    found = same[np.arange(len(y)), looked - 1]
    return np.where(looked > 0, found / np.maximum(looked, 1), np.nan)


class Scores(NamedTuple):
    """What a probe says of some classes: both are 1 at best."""

    knn_accuracy: float
    precision: float  # of the 10 nearest neighbours
    items: int


class ProbeScores(NamedTuple):
    """What a probe says of all its classes, of the old ones and of the new ones."""

    all: Scores
    old: Scores | None = None
    new: Scores | None = None

    @classmethod
    def from_json(cls, figures: Mapping[str, Any]) -> ProbeScores:
        """Out of what an outcome has as JSON."""
        parts: dict[str, Any] = {part: found and Scores(**found) for part, found in figures.items()}
        return cls(**parts)


def significant_falls(before: ProbeScores, after: ProbeScores, tolerance: float) -> list[str]:
    """Of which classes the kNN accuracy fell by more than is tolerated, and than chance does.

    >>> before, after = (ProbeScores(Scores(knn, knn, 100)) for knn in (0.8, 0.7))
    >>> significant_falls(before, after, 0.05)
    ['all classes from 0.800 to 0.700']
    >>> significant_falls(before, after, 0.2), significant_falls(after, before, 0.0)
    ([], [])
    """
    found = []
    for part in ("old", "new", "all"):
        first, last = getattr(before, part), getattr(after, part)
        if first is None or last is None:
            continue
        then, now = first.knn_accuracy, last.knn_accuracy
        # Two standard errors are what chance does on so many items.
        if then - now > max(tolerance * then, 2.0 * math.sqrt(then * (1.0 - then) / first.items)):
            found.append(f"{part} classes from {then:.3f} to {now:.3f}")
    return found


@dataclass(frozen=True, eq=False)
class Probe:
    """Labelled items that tell whether an encoder is good at what it is used for.

    Nothing is trained on them. A few hundred are enough, if they are items that the encoder will
    not be trained on.

    Args:
        items: What the domain collects, or ``Labelled`` items.
        labels: (n,) numbers or names; None if ``items`` has them.
        new: The labels of classes that come with an update; scores of old and of new classes are
            then told apart. None if it is not known.
        old: The labels of classes that came before; None for all others.

    >>> probe = Probe([[0.0], [0.1], [1.0], [1.1]], ["low", "low", "high", "high"], new=["high"])
    >>> probe.scores(np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1]])).new.precision
    1.0
    """

    items: Any
    labels: Any = None
    new: Iterable[Any] | None = None
    old: Iterable[Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.items, Labelled) and self.labels is None:
            found, names = self.items.labels, self.items.classes
            labels = None if found is None else np.asarray(names)[found] if names else found
            object.__setattr__(self, "labels", labels)
            object.__setattr__(self, "items", self.items.items)
        if self.labels is None:
            raise ValueError(
                "a probe needs a label for each item: give labels, a folder with a subfolder for "
                "each class, or a table with a column of labels"
            )
        labels = np.asarray(self.labels)
        if labels.ndim != 1 or len(labels) != len(self.items):
            raise ValueError(
                f"a probe needs one label for each item, got {len(self.items)} items and labels of "
                f"shape {labels.shape}"
            )
        object.__setattr__(self, "labels", labels)
        counts = Counter(labels.tolist())
        if len(counts) < 2:
            raise ValueError(f"a probe needs two classes at least, got {len(counts)}")
        single = next((name for name, count in counts.items() if count < 2), None)
        if single is not None:
            raise ValueError(
                f"a probe needs two items of each class at least, got one of {single!r}: "
                "add another, or leave the class out"
            )
        for part in ("new", "old"):
            named = getattr(self, part)
            if named is not None:
                object.__setattr__(self, part, tuple(named))
            for name in getattr(self, part) or ():
                if name not in counts:
                    near = get_close_matches(str(name), map(str, counts), 1)
                    hint = f"did you mean {near[0]!r}?" if near else f"it has {sorted(counts)}"
                    raise ValueError(f"the probe has no class {name!r}: {hint}")

    def scores(self, embeddings: Any) -> ProbeScores:
        """What (n, d) embeddings of the items say."""
        x, y = _checked(embeddings, self.labels, least=2)
        distances, nearest = _nearest(x, 10)
        right, precision = _right_votes(y, distances, nearest), _precision(y, nearest)

        def of(chosen: NDArray[np.bool_]) -> Scores | None:
            if not chosen.any():
                return None
            found = float(right[chosen].mean()), float(precision[chosen].mean())
            return Scores(*found, items=int(chosen.sum()))

        everything = np.ones(len(y), bool)
        overall = of(everything)
        assert overall is not None
        if self.new is None:
            return ProbeScores(overall)
        new = np.isin(y, list(self.new))
        old = ~new if self.old is None else np.isin(y, list(self.old))
        return ProbeScores(overall, of(old), of(new))


def _checked(embeddings: Any, labels: Any, *, least: int) -> tuple[NDArray[Any], NDArray[Any]]:
    x, y = np.asarray(embeddings), np.asarray(labels)
    if x.ndim != 2 or y.ndim != 1 or len(x) != len(y):
        raise ValueError(
            "embeddings must be (n, d) and labels (n,) with the same n, "
            f"got {x.shape} and {y.shape}"
        )
    if len(x) < least:
        raise ValueError(f"at least {least} items are needed, got {len(x)}")
    return x, y
