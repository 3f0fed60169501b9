"""How good is an encoder: the loss over X′, what labels say, signs of collapse, bias, drift."""

from incontrast.evaluate.bias import Bias, Biases, OldNew, RiskBound, bias, risk_bound
from incontrast.evaluate.collapse import alignment, effective_rank, uniformity
from incontrast.evaluate.drift import Drift
from incontrast.evaluate.population import Population, Quartiles, measure
from incontrast.evaluate.probes import (
    Accuracy,
    Probe,
    ProbeScores,
    Scores,
    fit_svm,
    knn_accuracy,
    svm_accuracy,
)
from incontrast.parity import EvaluationLoss

__all__ = [
    "Accuracy",
    "Bias",
    "Biases",
    "Drift",
    "EvaluationLoss",
    "OldNew",
    "Population",
    "Probe",
    "ProbeScores",
    "Quartiles",
    "RiskBound",
    "Scores",
    "alignment",
    "bias",
    "effective_rank",
    "fit_svm",
    "knn_accuracy",
    "measure",
    "risk_bound",
    "svm_accuracy",
    "uniformity",
]
