"""How good is an encoder: the true loss over X′, what labels say, signs of collapse."""

from incontrast.evaluate.collapse import alignment, effective_rank, uniformity
from incontrast.evaluate.population import Population, Quartiles, TrueLoss, measure, true_loss
from incontrast.evaluate.probes import (
    Accuracy,
    knn_accuracy,
    svm_accuracy,
    svm_accuracy_held_out,
)

__all__ = [
    "Accuracy",
    "Population",
    "Quartiles",
    "TrueLoss",
    "alignment",
    "effective_rank",
    "knn_accuracy",
    "measure",
    "svm_accuracy",
    "svm_accuracy_held_out",
    "true_loss",
    "uniformity",
]
