"""How good is an encoder: the true loss over X′, what labels say, signs of collapse, bias."""

from incontrast.evaluate.bias import Bias, Biases, OldNew, RiskBound, bias, risk_bound
from incontrast.evaluate.collapse import alignment, effective_rank, uniformity
from incontrast.evaluate.drift import Drift
from incontrast.evaluate.population import (
    EvaluationLoss,
    Population,
    Quartiles,
    evaluation_loss,
    measure,
)
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
    "EvaluationLoss",
    "OldNew",
    "Population",
    "Quartiles",
    "RiskBound",
    "alignment",
    "bias",
    "effective_rank",
    "evaluation_loss",
    "fit_svm",
    "knn_accuracy",
    "measure",
    "risk_bound",
    "svm_accuracy",
    "svm_accuracy_held_out",
    "uniformity",
]
