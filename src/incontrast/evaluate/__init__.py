"""How good is an encoder: the true loss over X′, what labels say, signs of collapse, bias."""

from incontrast.evaluate.bias import Bias, Biases, OldNew, RiskBound, bias, risk_bound
from incontrast.evaluate.collapse import alignment, effective_rank, uniformity
from incontrast.evaluate.drift import Drift
from incontrast.evaluate.population import Population, Quartiles, TrueLoss, measure, true_loss
from incontrast.evaluate.probes import (
    Accuracy,
    fit_svm,
    knn_accuracy,
    svm_accuracy,
    svm_accuracy_held_out,
)

__all__ = [
    "Accuracy",
    "Bias",
    "Biases",
    "Drift",
    "OldNew",
    "Population",
    "Quartiles",
    "RiskBound",
    "TrueLoss",
    "alignment",
    "bias",
    "effective_rank",
    "fit_svm",
    "knn_accuracy",
    "measure",
    "risk_bound",
    "svm_accuracy",
    "svm_accuracy_held_out",
    "true_loss",
    "uniformity",
]
