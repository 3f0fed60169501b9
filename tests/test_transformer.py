"""The transformer keeps scikit-learn's contract."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

import incontrast as ic
from incontrast.transformer import ContrastiveTransformer


def short(**more) -> ContrastiveTransformer:
    return ContrastiveTransformer(
        fit_strategy=ic.Retrain(max_epochs=1, batch_size=16),
        strategy=ic.ICL(max_epochs=1, epoch_steps=1),
        **more,
    )


@pytest.mark.filterwarnings("ignore")  # of checks that are skipped
def test_checks_of_scikit_learn() -> None:
    results = check_estimator(short(), on_fail=None)
    others = {r["check_name"]: r["exception"] for r in results if r["status"] != "passed"}
    assert len(results) > 40
    # The first asks for SCIPY_ARRAY_API in the environment. The second compares rows one by one
    # with all of them to 1e-7, which products in float32 do not keep on every processor: see below.
    assert set(others) <= {"check_array_api_input", "check_methods_subset_invariance"}, others


def test_a_row_alone_is_transformed_as_among_others(blobs) -> None:
    rows = blobs(40).numpy()
    fitted = short().fit(rows)
    alone = np.concatenate([fitted.transform(row[None]) for row in rows])
    np.testing.assert_allclose(alone, fitted.transform(rows), rtol=1e-3, atol=1e-5)


def test_in_a_pipeline_pickled_and_cloned(blobs) -> None:
    rows = blobs(60).numpy()
    labels = (rows[:, 0] > rows[:, 0].mean()).astype(int)
    pipeline = make_pipeline(short(normalized=True), LogisticRegression()).fit(rows, labels)
    assert pipeline.score(rows, labels) > 0.5
    again = pickle.loads(pickle.dumps(pipeline))
    assert np.array_equal(again[0].transform(rows), pipeline[0].transform(rows))
    assert np.linalg.norm(again[0].transform(rows), axis=1) == pytest.approx(1.0, abs=1e-5)
    copied = clone(pipeline[0])
    assert not hasattr(copied, "learner_")
    assert copied.get_params() == pipeline[0].get_params()
    assert np.array_equal(copied.fit_transform(rows), pipeline[0].transform(rows))
    assert len(pipeline[0].get_feature_names_out()) == 64


def test_updates_and_other_kinds_of_data(blobs) -> None:
    rows = blobs(60).numpy()
    updated = short().partial_fit(rows[:50]).partial_fit(rows[50:])
    assert updated.learner_.version == 2
    assert updated.outcome_.growth_ratio == pytest.approx(1 / 6)
    digits = ic.data.digits().items[:40]
    images = short(domain=ic.Images(size=8, channels=1, encoder="small"))
    assert images.fit(digits).transform(digits[:3]).shape == (3, 128)
    drawn = short(random_state=np.random.RandomState(3)).fit(rows)
    assert drawn.learner_.seed != 0
