"""What labels say about embeddings: SVMs, kNN accuracy, retrieval, and probe sets."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from incontrast.data.labelled import Labelled
from incontrast.names import nearest as nearest_name

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

C_GRID = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)  # as in GraphCL's evaluation
LARGEST_KERNEL = 5000  # items whose kernel matrix is kept in memory: 200 MB
NEIGHBOURS = 10


class Accuracy(NamedTuple):
    mean: float
    deviation: float


def svm_accuracy(embeddings: Any, labels: Any, *, folds: int = 5, seed: int = 0) -> Accuracy:
    """Cross-validated accuracy of an SVM on frozen (n, d) embeddings with (n,) labels.

    Inside each fold, C is searched by cross-validation with as many folds. ``seed`` draws them.
    """
    from sklearn.model_selection import StratifiedKFold

    x, y = _checked(embeddings, labels, least=folds)
    splits = StratifiedKFold(folds, shuffle=True, random_state=seed).split(x, y)
    scores = [
        fit_svm(x[train], y[train], folds=folds, seed=seed).score(x[test], y[test])
        for train, test in splits
    ]
    return Accuracy(float(np.mean(scores)), float(np.std(scores)))


def fit_svm(embeddings: Any, labels: Any, *, folds: int = 5, seed: int = 0) -> "Pipeline":
    """An SVM on standardised embeddings, with C searched by cross-validation.

    It is what scikit-learn's ``GridSearchCV`` finds, in a third of the time: all values of C share
    the kernel matrix of a fold.
    """
    from sklearn import config_context, dummy, model_selection, svm
    from sklearn.metrics.pairwise import rbf_kernel
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = _checked(embeddings, labels, least=folds)
    if len(np.unique(y)) < 2:
        return make_pipeline(dummy.DummyClassifier()).fit(x, y)
    scores = np.zeros(len(C_GRID))
    splitter = model_selection.StratifiedKFold(folds, shuffle=True, random_state=seed)
    for train, test in splitter.split(x, y):
        if len(np.unique(y[train])) < 2:
            scores += np.nan  # as in GridSearchCV: then the first C is taken
            continue
        scaler = StandardScaler().fit(x[train])
        known, unknown = (scaler.transform(x[part]).astype(np.float64) for part in (train, test))
        kernel = "rbf"
        if len(known) <= LARGEST_KERNEL:
            variance = x.shape[1] * known.var()
            gamma = 1.0 / variance if variance else 1.0  # SVC's "scale"
            unknown = rbf_kernel(unknown, known, gamma=gamma)
            known, kernel = rbf_kernel(known, known, gamma=gamma), "precomputed"
        with config_context(assume_finite=True, skip_parameter_validation=True):
            for number, c in enumerate(C_GRID):
                model = svm.SVC(C=c, kernel=kernel).fit(known, y[train])
                scores[number] += (model.predict(unknown) == y[test]).mean()
    return make_pipeline(StandardScaler(), svm.SVC(C=C_GRID[int(scores.argmax())])).fit(x, y)


def knn_accuracy(
    embeddings: Any, labels: Any, *, neighbours: int = 10, queries: Any = None
) -> float:
    """The share of items whose nearest other items, by cosine, have the same label by majority.

    In a tie, the label of the closer neighbours counts.

    Args:
        embeddings: (n, d).
        labels: (n,).
        neighbours: How many of the other items vote.
        queries: (n,) booleans, the items that are counted; all of them if None.
    """
    x, y = _checked(embeddings, labels, least=2)
    correct = _voted_correctly(y, *_nearest(x, neighbours))
    return float(correct.mean() if queries is None else correct[np.asarray(queries)].mean())


def _nearest(x: NDArray[Any], count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """(n, count) cosine distances and places of each item's nearest other items."""
    from sklearn.neighbors import NearestNeighbors

    index = NearestNeighbors(n_neighbors=min(count, len(x) - 1), metric="cosine").fit(x)
    distances, nearest = index.kneighbors()
    return distances, nearest


def _voted_correctly(
    y: NDArray[Any], distances: NDArray[Any], nearest: NDArray[Any]
) -> NDArray[np.bool_]:
    classes, codes = np.unique(y, return_inverse=True)
    votes = np.zeros((len(y), len(classes)))
    # A vote counts 1 plus a little for closeness, which decides ties only.
    np.add.at(votes, (np.arange(len(y))[:, None], codes[nearest]), 1.0 + 1e-3 * (2 - distances))
    correct: NDArray[np.bool_] = votes.argmax(axis=1) == codes
    return correct


def _precision(y: NDArray[Any], nearest: NDArray[Any]) -> NDArray[np.float64]:
    """(n,) the share of each item's nearest that have its label; nan if no other item has it.

    If a class has fewer other items than ``nearest``, only as many neighbours count, so that 1 is
    possible.
    """
    _, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    same = np.cumsum(codes[nearest] == codes[:, None], axis=1)
    considered = np.minimum(counts[codes] - 1, nearest.shape[1])
    hits = same[np.arange(len(y)), considered - 1]
    return np.where(considered > 0, hits / np.maximum(considered, 1), np.nan)


class Scores(NamedTuple):
    """Scores of a probe on some of its classes; 1 is the best."""

    knn_accuracy: float
    precision: float  # of the 10 nearest neighbours
    items: int


class ProbeScores(NamedTuple):
    """Scores of a probe on all its classes, on the old ones and on the new ones."""

    all: Scores
    old: Scores | None = None
    new: Scores | None = None

    @classmethod
    def from_json(cls, figures: Mapping[str, Any]) -> Self:
        """From the JSON of an outcome."""
        parts: dict[str, Any] = {name: part and Scores(**part) for name, part in figures.items()}
        return cls(**parts)


def significant_falls(before: ProbeScores, after: ProbeScores, tolerance: float) -> list[str]:
    """The classes whose kNN accuracy fell by more than the tolerance and more than by chance.

    >>> before, after = (ProbeScores(Scores(knn, knn, 100)) for knn in (0.8, 0.7))
    >>> significant_falls(before, after, 0.05)
    ['all classes from 0.800 to 0.700']
    >>> significant_falls(before, after, 0.2), significant_falls(after, before, 0.0)
    ([], [])
    """
    falls = []
    for name in ("old", "new", "all"):
        first, last = getattr(before, name), getattr(after, name)
        if first is None or last is None:
            continue
        then, now = first.knn_accuracy, last.knn_accuracy
        chance = 2.0 * math.sqrt(then * (1.0 - then) / first.items)  # two standard errors
        if then - now > max(tolerance * then, chance):
            falls.append(f"{name} classes from {then:.3f} to {now:.3f}")
    return falls


@dataclass(frozen=True, eq=False)
class Probe:
    """Labelled items that show whether an encoder is good for its purpose.

    They are never trained on. A few hundred are enough, if the encoder is not trained on them
    either.

    Args:
        items: What the domain collects, or ``Labelled`` items.
        labels: (n,) numbers or names; None if ``items`` has them.
        new: Labels of classes that come with an update: old and new classes then have scores of
            their own. None if unknown.
        old: Labels of classes that came before; None for all others.

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
            numbers, names = self.items.labels, self.items.classes
            named = names and numbers is not None
            self._set("labels", np.asarray(names)[numbers] if named else numbers)
            self._set("items", self.items.items)
        if self.labels is None:
            hint = "give labels, a folder with a subfolder for each class, or a column of labels"
            raise ValueError(f"a probe needs a label for each item: {hint}")
        labels = np.asarray(self.labels)
        if labels.ndim != 1 or len(labels) != len(self.items):
            shapes = f"{len(self.items)} items and labels of shape {labels.shape}"
            raise ValueError(f"a probe needs one label for each item, got {shapes}")
        self._set("labels", labels)
        counts = Counter(labels.tolist())
        if len(counts) < 2:
            raise ValueError(f"a probe needs two classes at least, got {len(counts)}")
        rarest, least = counts.most_common()[-1]
        if least < 2:
            hint = "add another, or leave the class out"
            raise ValueError(f"a probe needs two items of a class, got one of {rarest!r}: {hint}")
        for part in ("new", "old"):
            if getattr(self, part) is None:
                continue
            self._set(part, tuple(getattr(self, part)))
            for name in getattr(self, part):
                if name not in counts:
                    near = nearest_name(str(name), map(str, counts))
                    hint = f"did you mean {near!r}?" if near else f"it has {sorted(counts)}"
                    raise ValueError(f"the probe has no class {name!r}: {hint}")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def scores(self, embeddings: Any) -> ProbeScores:
        """Scores of (n, d) embeddings of the items."""
        x, y = _checked(embeddings, self.labels, least=2)
        distances, nearest = _nearest(x, NEIGHBOURS)
        correct, precision = _voted_correctly(y, distances, nearest), _precision(y, nearest)

        def of(chosen: NDArray[np.bool_]) -> Scores:
            means = float(correct[chosen].mean()), float(precision[chosen].mean())
            return Scores(*means, items=int(chosen.sum()))

        overall = of(np.ones(len(y), bool))
        if self.new is None:
            return ProbeScores(overall)
        new = np.isin(y, list(self.new))
        old = ~new if self.old is None else np.isin(y, list(self.old))
        return ProbeScores(overall, *(of(part) if part.any() else None for part in (old, new)))


def _checked(embeddings: Any, labels: Any, *, least: int) -> tuple[NDArray[Any], NDArray[Any]]:
    x, y = np.asarray(embeddings), np.asarray(labels)
    if x.ndim != 2 or y.ndim != 1 or len(x) != len(y):
        shapes = f"{x.shape} and {y.shape}"
        raise ValueError(f"embeddings must be (n, d), labels (n,) with the same n, got {shapes}")
    if len(x) < least:
        raise ValueError(f"at least {least} items are needed, got {len(x)}")
    return x, y
