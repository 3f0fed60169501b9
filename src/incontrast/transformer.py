"""A learner as a scikit-learn transformer."""

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch.nn.functional import normalize

from incontrast.domains.base import Domain
from incontrast.domains.vectors import Vectors
from incontrast.learner import Learner
from incontrast.loss import Objective
from incontrast.memory.memory import Policy
from incontrast.strategies import Strategy

ONE = torch.tensor([0])


class ContrastiveTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Features that are learned without labels, and kept up to date by ``partial_fit``.

    Use it like ``PCA``: in a pipeline before a classifier, or in a grid search.

    Args:
        domain: The kind of data; None for rows of numbers, by ``Vectors``.
        fit_strategy: How ``fit`` trains, as in ``Learner``.
        strategy: How ``partial_fit`` updates.
        objective: Temperature and number of negatives of the contrastive loss.
        memory: Which old items to keep.
        normalized: Give unit vectors.
        random_state: A number makes results reproducible.

    Attributes:
        learner_: The fitted ``Learner``.
        n_features_in_: Columns of the rows it was fitted on.

    >>> from incontrast import Retrain
    >>> rows = np.random.default_rng(0).normal(size=(60, 5))
    >>> short = ContrastiveTransformer(fit_strategy=Retrain(max_epochs=1))
    >>> short.fit(rows[:50]).partial_fit(rows[50:]).transform(rows).shape
    (60, 64)
    """

    def __init__(
        self,
        domain: Domain | None = None,
        *,
        fit_strategy: Strategy | None = None,
        strategy: Strategy | None = None,
        objective: Objective | None = None,
        memory: Policy | None = None,
        normalized: bool = False,
        random_state: Any = 0,
    ) -> None:
        self.domain = domain
        self.fit_strategy = fit_strategy
        self.strategy = strategy
        self.objective = objective
        self.memory = memory
        self.normalized = normalized
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train a new learner on these items."""
        items = self._items(X, reset=True)
        domain = Vectors(self.n_features_in_) if self.domain is None else self.domain
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31)
        learner = Learner(
            domain,
            fit_strategy=self.fit_strategy,
            strategy=self.strategy,
            objective=self.objective,
            memory=self.memory,
            seed=int(seed),
        )
        self.outcome_ = learner.fit(items)
        self.learner_ = learner
        assert learner.memory.items is not None
        self._n_features_out = learner.embed(learner.memory.items.select(ONE)).shape[1]
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Update with new items; the first call fits."""
        if not hasattr(self, "learner_"):
            return self.fit(X)
        self.outcome_ = self.learner_.update(self._items(X, reset=False))
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """(n, d) embeddings."""
        check_is_fitted(self)
        vectors = self.learner_.embed(self._items(X, reset=False))
        vectors = normalize(vectors) if self.normalized else vectors
        embeddings: NDArray[np.float32] = vectors.numpy()
        return embeddings

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]  # which encoders compute in
        tags.non_deterministic = self.random_state is None
        return tags

    def _items(self, X: Any, *, reset: bool) -> Any:
        if self.domain is not None and not isinstance(self.domain, Vectors):
            return X
        least = 2 if reset else 1
        rows = validate_data(self, X, reset=reset, dtype=np.float32, ensure_min_samples=least)
        return torch.from_numpy(rows)
