"""What strategies and data sets are called in tables, and in which order they stand."""

from __future__ import annotations

__all__ = [
    "GRAPHS",
    "IMAGES",
    "OF_THE_PAPER",
    "SETS",
    "SHIFTED",
    "STRATEGIES",
    "TITLES",
    "strategy_title",
]

STRATEGIES = {
    "retraining": "retraining",
    "inference": "inference",
    "fine-tuning": "fine-tuning",
    "replay": "replay",
    "distillation": "distillation",
    "paper": "paper's ICL",
    "paper-no-lrl": "paper's ICL w/o LRL",
    "paper-no-m": "paper's ICL w/o M",
    "paper-no-m-lrl": "paper's ICL w/o M+LRL",
    "warm-start": "warm start",
    "icl": "ICL()",
    "icl-learned": "ICL(lr=Learned())",
    "warm-start-96": "warm start, 96 items at 2e-3",
    "icl-large": "ICL, 128 + 64 items at 8e-3",
}
OF_THE_PAPER = (
    *("fine-tuning", "replay", "distillation"),
    *("paper", "paper-no-lrl", "paper-no-m", "paper-no-m-lrl"),
)
"""Strategies that the paper has figures for, retraining aside."""

IMAGES, GRAPHS = ("imagenet-2", "mnist-2"), ("proteins", "reddit")
TITLES = {
    "imagenet-2": "ImageNet-2",
    "mnist-2": "MNIST-2",
    "proteins": "PROTEINS",
    "reddit": "REDDIT-BINARY",
}
"""The paper's data sets, also while they have no rows."""

SHIFTED = ("mnist-class", "mnist-shift")
SETS = (*IMAGES, *GRAPHS, *SHIFTED, "digits", "digits-vectors", "mnist-2-small")


def strategy_title(name: str) -> str:
    """A strategy's name in tables."""
    return STRATEGIES.get(name, name)
