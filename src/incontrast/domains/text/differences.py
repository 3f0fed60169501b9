"""How the words of new texts differ from those of old ones."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from incontrast.domains.text.collection import BETWEEN
from incontrast.domains.text.tokeniser import Tokeniser

TERM = re.compile(r"[^\W_]{2,}")
READ_BYTES = 2**14  # of each text
SHOWN = 5  # terms that became more frequent, and as many that became rarer
CLEAR = 3.0  # standard deviations by which the frequency of a term must change


def differences(old: Sequence[bytes], new: Sequence[bytes], tokeniser: Tokeniser) -> dict[str, Any]:
    """Terms that became more or less frequent, and the share of tokens that old texts lack.

    Returns:
        ``terms``: the share of old and of new texts that have a term, for those that changed most;
        ``rare_pieces``: of old and of new texts, the share of tokens that half of the old texts
        lacks (old texts are those of the other half); ``summary``: a sentence.
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
        torch.cat([torch.from_numpy(tokeniser.ids(text, READ_BYTES)) for text in texts])
        for texts in (old[::2], old[1::2], new)
    )
    rare = [float((~torch.isin(pieces, known)).float().mean()) for pieces in (others, added)]
    parts = []
    for word, changes in (("more", risen), ("less", fallen)):
        shares = [f"{term} ({was:.1%} → {now:.1%})" for _, term, was, now in changes]
        if shares:
            parts.append(f"{word} often: {', '.join(shares)}")
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
        words = text[:READ_BYTES].replace(BETWEEN, b" ").decode("utf-8", "ignore").lower()
        counts.update(set(TERM.findall(words)))
    return counts
