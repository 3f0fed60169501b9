"""What strategies and data sets are called, and in which order tables show them. No torch here."""

from __future__ import annotations

RETRAINING = "retraining"
ABLATIONS = ("paper-no-lrl", "paper-no-m", "paper-no-m-lrl")
PUBLISHED = ("fine-tuning", "replay", "distillation", "paper", *ABLATIONS)
"""Strategies that the paper has figures for, retraining aside."""

ON_REQUEST = ("warm-start-96", "icl-large")
"""Strategies that only run if they are named."""

STRATEGIES = (
    *(RETRAINING, "no-update", *PUBLISHED),
    *("warm-start", "icl", "icl-learned"),
    *ON_REQUEST,
)

IMAGES, GRAPHS = ("imagenet-2", "mnist-2"), ("proteins", "reddit")
SHIFTED = ("mnist-class", "mnist-shift")
OWN_SETS = ("digits", "digits-vectors", "mnist-2-small")
"""Not of the paper: small enough to try things on."""

SETS = (*IMAGES, *GRAPHS, *SHIFTED, *OWN_SETS)

_STRATEGY_TITLES = {
    "no-update": "no update",
    "warm-start": "warm start",
    "paper": "paper's ICL",
    "paper-no-lrl": "paper's ICL w/o LRL",
    "paper-no-m": "paper's ICL w/o M",
    "paper-no-m-lrl": "paper's ICL w/o M+LRL",
    "icl": "ICL()",
    "icl-learned": "ICL, learned lr",
    "warm-start-96": "warm start, 96 items at 2e-3",
    "icl-large": "ICL, 128 + 64 items at 8e-3",
}
_SET_TITLES = {
    "imagenet-2": "ImageNet-2",
    "mnist-2": "MNIST-2",
    "proteins": "PROTEINS",
    "reddit": "REDDIT-BINARY",
    "mnist-class": "MNIST by class",
    "mnist-shift": "MNIST, turned",
    "digits": "digits by class",
    "digits-vectors": "digits by class, vectors",
    "mnist-2-small": "MNIST-2, small encoder",
}


def strategy_title(name: str) -> str:
    """A strategy's name in tables."""
    return _STRATEGY_TITLES.get(name, name)


def set_title(name: str) -> str:
    """A data set's name in tables."""
    return _SET_TITLES.get(name, name)
