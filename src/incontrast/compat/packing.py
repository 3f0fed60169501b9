"""Links as tensors and JSON, to be saved with a learner."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from incontrast.compat.adapter import Adapter
from incontrast.compat.link import Link
from incontrast.compat.quality import Quality

PLAIN = ("old", "new", "pairs", "encoder")  # fields of a link that JSON has as they are


def pack(links: Iterable[Link]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Tensors by name, and JSON."""
    tensors, about = {}, []
    for link in links:
        kinds, tried = {}, {}
        for direction, found in link.tried.items():
            adapter = link.adapter(direction)
            kinds[direction] = adapter.kind
            tried[direction] = {kind: quality._asdict() for kind, quality in found.items()}
            for name, tensor in adapter.tensors.items():
                tensors[f"{link.old}-{link.new}.{direction}.{name}"] = tensor
        plain = {name: getattr(link, name) for name in PLAIN}
        about.append({**plain, "kinds": kinds, "tried": tried})
    return tensors, about


def unpack(tensors: dict[str, Tensor], about: list[dict[str, Any]]) -> tuple[Link, ...]:
    """What ``pack`` packed."""
    links = []
    for entry in about:
        adapters: dict[str, Any] = {}
        for direction, kind in entry["kinds"].items():
            prefix = f"{entry['old']}-{entry['new']}.{direction}."
            own = {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
            parts = {name.removeprefix(prefix): tensor for name, tensor in own.items()}
            adapters[direction] = Adapter(kind, parts)
        tried: Any = {
            direction: {kind: _quality(**figures) for kind, figures in found.items()}
            for direction, found in entry["tried"].items()
        }
        links.append(Link(**{name: entry[name] for name in PLAIN}, **adapters, tried=tried))
    return tuple(links)


def _quality(**figures: Any) -> Quality:
    """JSON has lists for tuples."""
    intervals = {name: tuple(figures[f"{name}_interval"]) for name in ("recall", "precision")}
    return Quality(**figures | {f"{name}_interval": ends for name, ends in intervals.items()})
