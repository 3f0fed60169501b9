"""How new texts differ from old ones in their words: terms that changed, pieces that are rare."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from incontrast.domains.text.collection import BETWEEN
from incontrast.domains.text.tokeniser import Tokeniser

TERM = re.compile(r"[^\W_]{2,}")
LOOKED_AT = 2**14  # bytes of a text
SHOWN = 5  # terms that became more frequent, and as many that became less
CLEAR = 3.0  # standard deviations by which a term must have changed


def differences(old: Sequence[bytes], new: Sequence[bytes], tokeniser: Tokeniser) -> dict[str, Any]:
    """Terms by the share of texts that have them, and the share of pieces that old texts lack.

    A piece is rare if none of one half of the old texts has it; its share is counted in the other
    half and in the new texts.

    Returns:
        ``terms``: for each term that clearly changed its share before and after, the largest
        changes first; ``rare_pieces``: their share in old and in new texts; a ``summary``.
    """
    before, after = _shares(old), _shares(new)
    changes = []
    for term in before.keys() | after.keys():
        was, now = before[term] / len(old), after[term] / len(new)
        pooled = (before[term] + after[term]) / (len(old) + len(new))
        spread = (pooled * (1 - pooled) * (1 / len(old) + 1 / len(new))) ** 0.5
        if spread and abs(now - was) > CLEAR * spread:
            changes.append(((now - was) / spread, term, was, now))
    changes.sort(reverse=True)
    risen = [change for change in changes[:SHOWN] if change[0] > 0]
    fallen = [change for change in changes[: -SHOWN - 1 : -1] if change[0] < 0]
    known, others, added = (
        torch.cat([torch.from_numpy(tokeniser.ids(text, LOOKED_AT)) for text in texts])
        for texts in (old[::2], old[1::2], new)
    )
    rare = [float((~torch.isin(pieces, known)).float().mean()) for pieces in (others, added)]
    parts = [
        f"{word} often: "
        + ", ".join(f"{term} ({was:.1%} → {now:.1%})" for _, term, was, now in some)
        for word, some in (("more", risen), ("less", fallen))
        if some
    ]
    terms = f"Terms {'; '.join(parts)}. " if parts else "No term changed clearly. "
    return {
        "terms": [{"term": t, "old": was, "new": now} for _, t, was, now in risen + fallen],
        "rare_pieces": {"old": rare[0], "new": rare[1]},
        "summary": f"{terms}Rare pieces: {rare[0]:.1%} of old texts, {rare[1]:.1%} of new ones.",
    }


def _shares(texts: Sequence[bytes]) -> Counter[str]:
    """How many texts have each term."""
    counts: Counter[str] = Counter()
    for text in texts:
        words = text[:LOOKED_AT].replace(BETWEEN, b" ").decode("utf-8", "ignore").lower()
        counts.update(set(TERM.findall(words)))
    return counts
