"""Projection heads: the loss sees a head's output; embeddings are its input, from the backbone."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from incontrast.import_path import ImportPath, as_import_path

Head = str | nn.Module | Callable[[int], nn.Module] | None
"""None, ``"linear"``, ``"mlp"``, a module, or a function of embeddings' width that makes one."""

OUT = 128  # dimensions of the output of the built-in heads, as in SimCLR


class EncoderWithHead(nn.Module):
    """A backbone that gives (n, width) embeddings, and a head on top of it that gives (n, d)."""

    def __init__(self, backbone: nn.Module, head: nn.Module, width: int) -> None:
        super().__init__()
        self.backbone, self.head, self.width = backbone, head, width

    def forward(self, batch: Any) -> Tensor:
        projected: Tensor = self.head(self.backbone(batch))
        return projected


def backbone_of(encoder: nn.Module) -> nn.Module:
    """The encoder without its head, which gives embeddings."""
    return encoder.backbone if isinstance(encoder, EncoderWithHead) else encoder


def named_parameters(encoder: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters by name: the backbone's as in the backbone alone, a head's after ``head.``."""
    yield from backbone_of(encoder).named_parameters()
    if isinstance(encoder, EncoderWithHead):
        yield from encoder.head.named_parameters("head")


def check_head(head: Head) -> Head:
    """Refuse what cannot be a head; a string with a colon becomes an import path."""
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


def new_module(source: Any, name: str, how: str, *arguments: Any) -> nn.Module:
    """A copy of a module, or the result of a function; messages call the source by its name."""
    if isinstance(source, nn.Module):
        return copy.deepcopy(source)
    try:
        module = source(*arguments)
    except Exception as error:
        if isinstance(source, ImportPath):  # its message says what failed
            raise
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"the function given as {name} must make one {how}, and failed: {reason}"
        ) from error
    if not isinstance(module, nn.Module):
        kind = type(module).__name__
        raise TypeError(f"the function given as {name} must return a torch.nn.Module, got {kind}")
    return module
