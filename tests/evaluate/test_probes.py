"""Probes on embeddings whose answer is known."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from torch import Generator

from incontrast.evaluate import (
    Probe,
    alignment,
    effective_rank,
    fit_svm,
    knn_accuracy,
    svm_accuracy,
    uniformity,
)
from incontrast.evaluate.probes import C_GRID, _nearest, _precision

RANDOM = np.random.default_rng(0)


def clusters(count: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(count) % 3
    return 3 * np.eye(4)[labels] + spread * RANDOM.standard_normal((count, 4)), labels


def test_separated_clusters_are_told_apart() -> None:
    x, y = clusters(60, 0.05)
    assert svm_accuracy(x, y).mean == 1.0
    assert knn_accuracy(x, y) == 1.0
    assert fit_svm(x[:40], y[:40]).score(x[40:], y[40:]) == 1.0


def test_noise_is_at_chance() -> None:
    x, y = RANDOM.standard_normal((150, 4)), np.arange(150) % 3
    assert svm_accuracy(x, y).mean < 0.5
    assert knn_accuracy(x, y) < 0.5


@pytest.mark.parametrize("kind", ["clusters", "digits", "constant"])
def test_svm_equals_scikit_learns_search(kind) -> None:
    if kind == "clusters":
        x, y = clusters(90, 2.0)
    else:
        x, y = (part[:200] for part in load_digits(return_X_y=True))
        x = np.zeros_like(x) if kind == "constant" else x.astype(np.float32)
    folds = StratifiedKFold(3, shuffle=True, random_state=5)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), SVC()), {"svc__C": C_GRID}, cv=folds, n_jobs=1
    )
    ours = fit_svm(x, y, folds=3, seed=5)
    assert search.fit(x, y).best_params_["svc__C"] == ours["svc"].C
    np.testing.assert_array_equal(
        ours.decision_function(x), search.best_estimator_.decision_function(x)
    )
    scores = cross_val_score(search, x, y, cv=folds)
    assert svm_accuracy(x, y, folds=3, seed=5) == (scores.mean(), scores.std())


@pytest.mark.filterwarnings("ignore:The least populated class")
def test_a_class_of_one_item_is_no_reason_to_break_off() -> None:
    x, y = RANDOM.standard_normal((40, 3)), np.array([0] * 39 + [1])
    assert C_GRID[0] == fit_svm(x, y)["svc"].C  # as scikit-learn's search
    assert svm_accuracy(x, y).mean == pytest.approx(39 / 40)
    assert fit_svm(x, np.zeros(40)).score(x, np.zeros(40)) == 1.0


def test_a_kernel_that_is_too_large_to_keep_changes_nothing(monkeypatch) -> None:
    x, y = clusters(90, 2.0)
    kept = fit_svm(x, y)
    monkeypatch.setattr("incontrast.evaluate.probes.LARGEST_KERNEL", 10)
    assert fit_svm(x, y)["svc"].C == kept["svc"].C


def test_knn_equals_scikit_learn_without_ties() -> None:
    x, y = clusters(90, 2.0)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    right = 0
    for i in range(len(x)):
        rest = np.arange(len(x)) != i
        # Distances as weights of a thousandth break ties exactly as ours does.
        model = KNeighborsClassifier(
            7, weights=lambda d: 1.0 + 1e-3 * (2 - d**2 / 2), algorithm="brute"
        )
        right += model.fit(unit[rest], y[rest]).predict(unit[i : i + 1])[0] == y[i]
    assert knn_accuracy(x, y, neighbours=7) == pytest.approx(right / len(x))


@pytest.mark.parametrize("probe", [svm_accuracy, knn_accuracy])
def test_mismatched_labels_are_refused(probe) -> None:
    with pytest.raises(ValueError, match=r"the same n, got \(4, 2\) and \(3,\)"):
        probe(np.zeros((4, 2)), np.zeros(3))


def test_collapse_shows() -> None:
    generator = Generator().manual_seed(0)
    spread = torch.randn(500, 16, generator=generator)
    point = torch.ones(500, 16) + 1e-9 * spread
    line = torch.randn(500, 1, generator=generator) * torch.ones(1, 16)
    assert effective_rank(spread) > 15
    assert effective_rank(point) == 1.0
    assert effective_rank(line) == pytest.approx(1.0, abs=1e-6)
    assert uniformity(spread) < -3
    assert uniformity(point) == pytest.approx(0.0, abs=1e-6)


def test_alignment_is_the_squared_distance_between_views() -> None:
    first = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    assert alignment(first, first) == 0.0
    assert alignment(first, -first) == pytest.approx(4.0)
    assert alignment(first, first.flip(1)) == pytest.approx(2.0)


def test_retrieval_precision_is_what_a_loop_finds() -> None:
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(40, 3)), draws.integers(3, size=40)
    y[0] = 7  # the only one of its class
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    expected = []
    for item in range(1, 40):
        order = [other for other in np.argsort(-unit @ unit[item]) if other != item]
        looked = min(10, int((y == y[item]).sum()) - 1)
        expected.append(np.mean(y[order[:looked]] == y[item]))
    found = _precision(y, _nearest(x, 10)[1])
    assert np.isnan(found[0])
    assert np.nanmean(found) == pytest.approx(np.mean(expected))
    assert (_precision(y[1:], _nearest(np.eye(3)[y[1:]], 10)[1]) == 1.0).all()


def test_a_probe_tells_old_classes_from_new_ones() -> None:
    labels = np.repeat(["a", "b", "c"], 12)
    embeddings = np.eye(3)[np.repeat([0, 1, 1], 12)] + np.linspace(0, 1e-3, 36)[:, None]
    scores = Probe(embeddings, labels, new=["c"]).scores(embeddings)
    assert scores.all.items == 36
    assert scores.old is not None
    assert scores.new is not None
    assert scores.old.items == 24
    apart = Probe(embeddings, labels, new=["c"], old=["a"]).scores(embeddings)
    assert apart.old == (1.0, 1.0, 12)
    assert scores.new.precision < 1.0
    assert Probe(embeddings, labels).scores(embeddings).new is None


@pytest.mark.parametrize(
    ("labels", "more", "message"),
    [
        (None, {}, "a probe needs a label for each item"),
        (["a"], {}, "one label for each item, got 4 items"),
        (["a", "a", "a", "a"], {}, "a probe needs two classes at least, got 1"),
        (["a", "a", "a", "b"], {}, "two items of a class, got one of 'b'"),
        (["cat", "cat", "dog", "dog"], {"new": ["dogs"]}, "no class 'dogs': did you mean 'dog'?"),
    ],
)
def test_probes_that_say_nothing_are_refused(labels, more: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Probe(np.zeros((4, 2)), labels, **more)
