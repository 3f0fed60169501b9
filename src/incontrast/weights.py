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

    A prefix of the names (``module.``, ``backbone.``) and a classifier at the end, which an encoder
    does not have, are left away: so a state dict of torchvision's or timm's ``resnet18`` fits ours.
    Where the names have a prefix, parts with another one (a projection head) are left away too.

    Args:
        module: Its weights are replaced.
        weights: A ``.safetensors`` file, or names and tensors.
        prefix: Of the names to take (``encoder_q.``); None for the one under which most fit.
        name: What errors call the module.

    Raises:
        ValueError: They do not fit, and it says which names, and the nearest ones; or different
            weights fit equally well under two prefixes.
    """
    if not isinstance(weights, str | Path | Mapping):
        raise TypeError(
            f"weights are a .safetensors file or a state dict, got a {type(weights).__name__}"
        )
    found: dict[str, Any] = dict(weights) if isinstance(weights, Mapping) else _read(Path(weights))
    if parts := [name for name, part in found.items() if isinstance(part, Mapping)]:
        tensors = [n for n in parts if all(isinstance(v, Tensor) for v in found[n].values())]
        raise ValueError(
            f"the weights are a checkpoint with {', '.join(map(repr, found))}: give the state dict "
            f"in it, [{(tensors or parts)[0]!r}]"
        )
    own = module.state_dict()
    choices = _renamed(found, own, prefix)
    (first, fitting), *others = choices.items()
    if problems := misfits(fitting, own, name):
        hint = _stem_hint(fitting, own)
        raise ValueError(f"the weights do not fit the {name}: {'; '.join(problems)}{hint}")
    for other, named in others:
        common = own.keys() & fitting.keys() & named.keys()
        if not all(torch.equal(fitting[k], named[k].to(fitting[k])) for k in common):
            raise ValueError(
                f"different weights fit the {name} equally well, those under {first!r} and under "
                f"{other!r}: choose by load_weights(encoder, weights, prefix={first!r}), or give "
                "the tensors of one alone"
            )
    module.load_state_dict(fitting, strict=False)
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
            f"{file} is not a safetensors file ({error}): convert a state dict with "
            "safetensors.torch.save_file(torch.load(file, weights_only=True), 'new.safetensors'), "
            "of a checkpoint its state dict alone, such as torch.load(…)['model']"
        ) from error


def _renamed(
    found: dict[str, Tensor], own: dict[str, Tensor], prefix: str | None
) -> dict[str, dict[str, Tensor]]:
    """By prefix, under the encoder's names without it and the classifier: those that fit best."""
    ends = {name[: place + 1] for name in found for place, sign in enumerate(name) if sign == "."}
    choices = {
        start: {name.removeprefix(start): v for name, v in found.items() if name.startswith(start)}
        for start in (("", *sorted(ends)) if prefix is None else (prefix,))
    }

    def fit(named: dict[str, Tensor]) -> tuple[int, int]:
        common = named.keys() & own.keys()
        return len(common), sum(named[k].shape == own[k].shape for k in common)

    best = max(map(fit, choices.values()))
    return {
        start: {k: v for k, v in named.items() if k in own or not k.startswith(CLASSIFIERS)}
        for start, named in choices.items()
        if fit(named) == best
    }


def misfits(found: dict[str, Tensor], own: dict[str, Tensor], name: str = "encoder") -> list[str]:
    """What keeps weights from being a module's own, each kind in a few words."""
    # Counters that nothing reads are not in every file.
    missing = [k for k in own if k not in found and not k.endswith("num_batches_tracked")]
    unknown = [k for k in found if k not in own]
    shapes = [
        f"{k} is {tuple(found[k].shape)}, the {name}'s is {tuple(own[k].shape)}"
        for k in own
        if k in found and found[k].shape != own[k].shape
    ]
    lists = {
        "missing": [_nearest(key, unknown, "the file has") for key in missing],
        "unknown": [_nearest(key, missing, f"the {name} has") for key in unknown],
        "of another shape": shapes,
    }
    return [
        f"{len(names)} {kind}: {', '.join(names[:SHOWN])}{', …' * (len(names) > SHOWN)}"
        for kind, names in lists.items()
        if names
    ]


def _stem_hint(found: dict[str, Tensor], own: dict[str, Tensor]) -> str:
    """What to do where only the beginning of a ResNet differs, which goes by the images' size."""
    kernels = [named["conv1.weight"].shape[-1] for named in (found, own) if "conv1.weight" in named]
    if kernels != [7, 3]:
        return ""
    return ". Its first convolution is of 7×7, as encoder='resnet18-standard' has it at any size"


def _nearest(name: str, others: list[str], whose: str) -> str:
    near = get_close_matches(name, others, n=1)
    return f"{name} ({whose} {near[0]})" if near else name
