"""Weights from a safetensors file or a state dict, under the names that other libraries use."""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

Weights = str | Path | Mapping[str, Tensor]
M = TypeVar("M", bound=nn.Module)

CLASSIFIERS = ("fc.", "classifier.", "head.fc.")  # of torchvision's and timm's ResNets, and others
SHOWN = 5  # names of a kind that an error lists


def load_weights(
    module: M, weights: Weights, *, prefix: str | None = None, name: str = "encoder"
) -> M:
    """Give a module the weights of a file or a state dict; returns the module.

    A prefix of the names (``module.``, ``backbone.``) is removed, and a classifier that the module
    does not have is left out: a state dict of torchvision's or timm's ``resnet18`` fits ours. With
    a prefix, parts under other prefixes (a projection head) are left out too.

    Args:
        module: Its weights are replaced.
        weights: A ``.safetensors`` file, or names and tensors.
        prefix: Prefix of the names to take (``encoder_q.``); None for the one that fits best.
        name: What errors call the module.

    Raises:
        ValueError: They do not fit, and it says which names, and the nearest ones; or different
            weights fit equally well under two prefixes.
    """
    if isinstance(weights, str | Path):
        tensors: dict[str, Any] = dict(_read(Path(weights)))
    elif isinstance(weights, Mapping):
        tensors = dict(weights)
    else:
        raise TypeError(
            f"weights are a .safetensors file or a state dict, got a {type(weights).__name__}"
        )
    if parts := [key for key, part in tensors.items() if isinstance(part, Mapping)]:
        dicts = [k for k in parts if all(isinstance(v, Tensor) for v in tensors[k].values())]
        raise ValueError(
            f"the weights are a checkpoint with {', '.join(map(repr, tensors))}: give the state "
            f"dict in it, [{(dicts or parts)[0]!r}]"
        )
    own = module.state_dict()
    choices = _by_prefix(tensors, own, prefix)
    (first, chosen), *others = choices.items()
    if problems := misfits(chosen, own, name):
        hint = _stem_hint(chosen, own)
        raise ValueError(f"the weights do not fit the {name}: {'; '.join(problems)}{hint}")
    for other, renamed in others:
        common = own.keys() & chosen.keys() & renamed.keys()
        if not all(torch.equal(chosen[k], renamed[k].to(chosen[k])) for k in common):
            raise ValueError(
                f"different weights fit the {name} equally well, those under {first!r} and under "
                f"{other!r}: choose by load_weights(encoder, weights, prefix={first!r})"
            )
    module.load_state_dict(chosen, strict=False)
    return module


def _read(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist: give a .safetensors file")
    try:
        return load_file(file)
    except SafetensorError as error:
        with file.open("rb") as content:
            by_torch = content.read(2) in (b"PK", b"\x80\x02")  # a zip file, or a pickle
        if not by_torch:
            raise ValueError(
                f"{file} is no complete safetensors file ({error}): copy or write it again"
            ) from error
        raise ValueError(
            f"{file} is not a safetensors file ({error}): convert its state dict with "
            "safetensors.torch.save_file(torch.load(file, weights_only=True), 'new.safetensors')"
        ) from error


def _by_prefix(
    tensors: dict[str, Tensor], own: dict[str, Tensor], prefix: str | None
) -> dict[str, dict[str, Tensor]]:
    """For the prefixes that fit best, the tensors without prefix and classifier."""
    dots = ((key, place) for key in tensors for place, sign in enumerate(key) if sign == ".")
    prefixes = ["", *sorted({key[: place + 1] for key, place in dots})]
    choices = {
        start: {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
        for start in (prefixes if prefix is None else [prefix])
    }

    def fit(renamed: dict[str, Tensor]) -> tuple[int, int]:
        common = renamed.keys() & own.keys()
        return len(common), sum(renamed[k].shape == own[k].shape for k in common)

    best = max(map(fit, choices.values()))
    return {
        start: {k: v for k, v in renamed.items() if k in own or not k.startswith(CLASSIFIERS)}
        for start, renamed in choices.items()
        if fit(renamed) == best
    }


def misfits(weights: dict[str, Tensor], own: dict[str, Tensor], name: str = "encoder") -> list[str]:
    """Why weights are not those of a module, each reason in a few words."""

    def nearest(key: str, others: list[str], owner: str) -> str:
        near = get_close_matches(key, others, n=1)
        return f"{key} ({owner} has {near[0]})" if near else key

    # Not every file has the counters, which nothing reads.
    missing = [k for k in own if k not in weights and not k.endswith("num_batches_tracked")]
    unknown = [k for k in weights if k not in own]
    problems = {
        "missing": [nearest(key, unknown, "the file") for key in missing],
        "unknown": [nearest(key, missing, f"the {name}") for key in unknown],
        "of another shape": [
            f"{k} is {tuple(weights[k].shape)}, the {name}'s is {tuple(own[k].shape)}"
            for k in own
            if k in weights and weights[k].shape != own[k].shape
        ],
    }
    return [
        f"{len(names)} {problem}: {', '.join(names[:SHOWN])}{', …' * (len(names) > SHOWN)}"
        for problem, names in problems.items()
        if names
    ]


def _stem_hint(weights: dict[str, Tensor], own: dict[str, Tensor]) -> str:
    """What to do if only the first convolution of a ResNet differs, which depends on the size."""
    stems = [tensors["conv1.weight"] for tensors in (weights, own) if "conv1.weight" in tensors]
    if [stem.shape[-1] for stem in stems] != [7, 3]:
        return ""
    return ". Its first convolution is of 7×7, as encoder='resnet18-standard' has it at any size"
