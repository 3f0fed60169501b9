"""Projection heads: the loss sees a head's output, an embedding is its input, the backbone's."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from incontrast.import_path import ImportPath, as_import_path

Head = str | nn.Module | Callable[[int], nn.Module] | None
"""None, ``"linear"``, ``"mlp"``, a module, or a function of embeddings' width that makes one."""

OUT = 128  # dimensions that a head of ours gives, as in SimCLR


class EncoderWithHead(nn.Module):
    """A backbone that gives (n, width) embeddings, and a head on top of it that gives (n, d)."""

    def __init__(self, backbone: nn.Module, head: nn.Module, width: int) -> None:
        super().__init__()
        self.backbone, self.head, self.width = backbone, head, width

    def forward(self, batch: Any) -> Tensor:
        projected: Tensor = self.head(self.backbone(batch))
        return projected


def backbone_of(encoder: nn.Module) -> nn.Module:
    """What gives embeddings: the encoder without its head."""
    return encoder.backbone if isinstance(encoder, EncoderWithHead) else encoder


def named_parameters(encoder: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The backbone's parameters under its own names; a head's begin with ``head.``."""
    yield from backbone_of(encoder).named_parameters()
    if isinstance(encoder, EncoderWithHead):
        yield from encoder.head.named_parameters("head")


def check_head(head: Head) -> Head:
    """Refuse what cannot be a head; a string with a colon in it is an import path."""
    head = as_import_path(head)
    if head is None or head in ("linear", "mlp") or (callable(head) and not isinstance(head, type)):
        return head
    hint = " (without its parentheses?)" if isinstance(head, type) else ""
    raise ValueError(
        'head must be None, "linear", "mlp", a torch.nn.Module, or a function of the width of '
        f"embeddings that makes one, got {head!r}{hint}"
    )


def make_head(head: Head, width: int) -> nn.Module:
    """A new head for embeddings of this width; a module is copied, with its weights."""
    if head == "linear":
        return nn.Linear(width, OUT)
    if head == "mlp":  # g of SimCLR (Chen et al. 2020), with BatchNorm as in its released code
        return nn.Sequential(
            nn.Linear(width, width, bias=False),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, OUT),
        )
    assert callable(head)
    return new_module(head, "head", "of the width of embeddings", width)


def new_module(given: Any, name: str, how: str, *arguments: Any) -> nn.Module:
    """A copy of a module, or what a function makes; messages call it by its name."""
    if isinstance(given, nn.Module):
        return copy.deepcopy(given)
    try:
        made = given(*arguments)
    except Exception as error:
        if isinstance(given, ImportPath):  # which says what failed
            raise
        raise ValueError(
            f"the function given as {name} must make one {how}, and failed: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, nn.Module):
        raise TypeError(
            f"the function given as {name} must return a torch.nn.Module, got {type(made).__name__}"
        )
    return made
