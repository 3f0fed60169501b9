"""What processes compare before they train together: all of them must mean the same thing."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from incontrast.domains.base import Collection, Domain
from incontrast.training.increment import Increment

__all__ = ["facts"]

DIGESTED = 16  # old and new items, each, that processes compare before they work together


def facts(
    seed: int, version: int, domain: Domain, increment: Increment, strategy: object
) -> dict[str, Any]:
    """What all processes must agree on before they train together."""
    return {
        "seed": seed,
        "version": version,
        "strategy": repr(strategy),
        "the number of items seen": increment.seen,
        "the number of old items": increment.kept,
        "the number of new items": len(increment.new),
        "the digest of some old items": _digest(domain, increment.old),
        "the digest of some new items": _digest(domain, increment.new),
    }


def _digest(domain: Domain, items: Collection | None) -> str:
    """A few items as one short text: other data, or the same in another order, have another."""
    if items is None:
        return "nothing"
    chosen = torch.linspace(0, len(items) - 1, min(len(items), DIGESTED)).long()
    packed = b"".join(domain.pack(items, chosen))
    return hashlib.blake2b(packed, digest_size=6).hexdigest()
