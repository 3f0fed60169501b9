"""What labels say about embeddings: SVM by the paper's protocol, SVM on a held-out split, kNN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

C_GRID = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)  # as in GraphCL's evaluation

LARGEST_KERNEL = 5000  # items whose kernel is kept: 200 MB


class Accuracy(NamedTuple):
    """Mean and standard deviation over folds."""

    mean: float
    deviation: float


def svm_accuracy(embeddings: Any, labels: Any, *, folds: int = 5, seed: int = 0) -> Accuracy:
    """Accuracy of an SVM on frozen embeddings, cross-validated, C searched inside each fold.

    Args:
        embeddings: (n, d).
        labels: (n,).
        folds: Folds of the outer and of the inner cross-validation.
        seed: Determines the folds.
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


def svm_accuracy_held_out(
    embeddings: Any,
    labels: Any,
    held_out_embeddings: Any,
    held_out_labels: Any,
    *,
    folds: int = 5,
    seed: int = 0,
) -> float:
    """Accuracy on held-out items of an SVM fitted on the others, C searched among the others."""
    held_out_x, held_out_y = _checked(held_out_embeddings, held_out_labels, least=1)
    svm = fit_svm(embeddings, labels, folds=folds, seed=seed)
    return float(svm.score(held_out_x, held_out_y))


def fit_svm(embeddings: Any, labels: Any, *, folds: int = 5, seed: int = 0) -> Pipeline:
    """An SVM on standardised embeddings, its C searched by cross-validation.

    The same as scikit-learn's ``GridSearchCV`` finds, in a third of the time: all values of C
    share the kernel of a fold, which takes most of it, as long as it is not too large to keep.
    """
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
        shared = len(inside) <= LARGEST_KERNEL
        if shared:
            spread = x.shape[1] * inside.var()
            gamma = 1.0 / spread if spread else 1.0  # SVC's "scale"
            known, asked = (rbf_kernel(part, inside, gamma=gamma) for part in (inside, outside))
        for number, c in enumerate(C_GRID):
            if shared:
                score = SVC(C=c, kernel="precomputed").fit(known, y[seen]).score(asked, y[rest])
            else:
                score = SVC(C=c).fit(inside, y[seen]).score(outside, y[rest])
            scores[number] += score
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
    from sklearn.neighbors import NearestNeighbors

    x, y = _checked(embeddings, labels, least=2)
    index = NearestNeighbors(n_neighbors=min(neighbours, len(x) - 1), metric="cosine").fit(x)
    distances, nearest = index.kneighbors()  # of each item among all others
    classes, codes = np.unique(y, return_inverse=True)
    votes = np.zeros((len(x), len(classes)))
    # A vote counts 1 plus a little for closeness, which only ever decides a tie.
    np.add.at(votes, (np.arange(len(x))[:, None], codes[nearest]), 1.0 + 1e-3 * (2 - distances))
    right = votes.argmax(axis=1) == codes
    return float(right.mean() if queries is None else right[np.asarray(queries)].mean())


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
