"""Whether a candidate may be promoted: what it did to embeddings, and which checks it fails."""

from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]
from torch.nn.functional import normalize

from incontrast.compat.link import NoAdapter
from incontrast.compat.plan import CROSSED, cross_mapped, expected_shares
from incontrast.compat.quality import NEIGHBOURS, hits, mixed, nearest, neighbours_kept
from incontrast.evaluate.collapse import effective_rank, uniformity
from incontrast.evaluate.probes import ProbeScores, significant_falls
from incontrast.learner import Learner
from incontrast.memory.memory import StoredCollection
from incontrast.memory.store import Store
from incontrast.randomness import generator

SAMPLE = 512  # old and new items, each, at most
EXAMPLES = 6
EXAMPLE_NEIGHBOURS = 5

MIN_RANK_SHARE = 0.5  # of the previous effective rank
MIN_RANK = 1.5  # below it, embeddings lie on a line
MAX_UNIFORMITY = -0.02  # above it, all embeddings are one point


class Health(NamedTuple):
    """Label-free signs of a good or a collapsed encoder."""

    effective_rank: float
    uniformity: float


def evaluate(
    before: Learner | None,
    after: Learner,
    store: Store,
    *,
    new: Tensor,
    outcome: dict[str, Any],
    tolerance: float,
) -> dict[str, Any]:
    """The figures of a candidate, as JSON; ``failed_checks`` are reasons not to promote it.

    ``before`` is the current version, ``new`` are (n,) ids of the new items, ``outcome`` the
    figures of training, ``tolerance`` how much larger the loss of old items may be.
    """
    draws = generator(after.seed, "evaluation", after.version)
    new = new[torch.randperm(len(new), generator=draws)[:SAMPLE].sort().values]
    old = torch.empty(0, dtype=torch.int64)
    if before is not None and len(before.memory):
        chosen = torch.randperm(len(before.memory), generator=draws)[:SAMPLE].sort().values
        old = before.memory.ids[chosen]
    ids = torch.cat([old, new])
    sizes = torch.from_numpy(store.columns(int(ids.max()) + 1)["size"][ids.numpy()])
    sample = StoredCollection(store, after.domain, ids, sizes)
    figures: dict[str, Any] = {"tolerance": tolerance, "sample": len(ids), "failed_checks": []}
    if len(ids) < 2:
        return figures
    embedded = after.embed(sample)
    healthy: dict[str, Any] = {"before": None, "after": health(embedded)}
    checked: dict[str, Any] = {}
    if before is not None:
        earlier = before.embed(sample)
        healthy["before"] = health(earlier)
        checked = {f"loss_{when}": outcome["loss"][when]["old"] for when in ("before", "after")}
        checked["probe"] = outcome["probe"]
        figures["movement"] = movement(earlier, embedded, ids, new=len(new))
        if after.links and len(ids) >= CROSSED:
            with suppress(NoAdapter, LinAlgError):  # nothing else depends on them
                stored = stored_vectors(after, earlier, embedded, ids, new=len(new))
                figures["stored_vectors"] = stored
    figures["failed_checks"] = failed_checks(tolerance=tolerance, **healthy, **checked)
    figures["health"] = {when: found and found._asdict() for when, found in healthy.items()}
    return figures


def failed_checks(
    *,
    tolerance: float,
    before: Health | None,
    after: Health,
    loss_before: float | None = None,
    loss_after: float | None = None,
    probe: dict[str, Any] | None = None,
) -> list[str]:
    """Reasons not to promote a candidate.

    ``before`` and ``after`` are of the same items, losses of old items (None: not finite), the
    scores of a ``probe`` before and after. After a first fit, there is nothing from before.
    """
    reasons = []
    if probe is not None:
        then, now = (ProbeScores.from_json(probe[when]) for when in ("before", "after"))
        if fallen := significant_falls(then, now, tolerance):
            reasons.append(
                f"kNN accuracy on the probe set fell by more than the {100 * tolerance:g}% that is "
                f"tolerated: of {', of '.join(fallen)}"
            )
    if loss_before is not None and loss_after is None:
        reasons.append("the loss of old items is no longer a finite number")
    elif loss_before is not None and (loss_after or 0.0) > loss_before * (1.0 + tolerance):
        reasons.append(
            f"the loss of old items rose from {loss_before:.3f} to {loss_after:.3f}, by more "
            f"than the {100 * tolerance:g}% that is tolerated"
        )
    if not (after.effective_rank >= MIN_RANK and after.uniformity <= MAX_UNIFORMITY):
        reasons.append(
            f"embeddings have collapsed: their effective rank is {after.effective_rank:.1f}, "
            f"their uniformity {after.uniformity:.3f}"
        )
    elif before is not None and after.effective_rank < MIN_RANK_SHARE * before.effective_rank:
        reasons.append(
            f"embeddings are collapsing: their effective rank fell from "
            f"{before.effective_rank:.1f} to {after.effective_rank:.1f}"
        )
    return reasons


def health(embeddings: Tensor) -> Health:
    """Of (n, d) embeddings, n >= 2."""
    return Health(effective_rank(embeddings), uniformity(embeddings))


def movement(before: Tensor, after: Tensor, ids: Tensor, *, new: int) -> dict[str, Any]:
    """What an update did to (n, d) embeddings of the same items, as JSON; the last are new ones.

    Quartiles of the ``cosine`` between an item's two embeddings; the mean ``overlap``, the share
    of its 10 nearest neighbours that stayed; ``examples`` of items with their neighbours, by ids.
    """
    cosine = (normalize(before) * normalize(after)).sum(dim=1)
    first, second, stayed = neighbours_kept(before, after)
    # Examples: half of them old, half new, evenly spaced.
    old = len(ids) - new
    places = [
        *torch.linspace(0, old - 1, min(old, EXAMPLES // 2)).long().tolist(),
        *(old + torch.linspace(0, new - 1, min(new, EXAMPLES - EXAMPLES // 2))).long().tolist(),
    ]
    return {
        "cosine": [cosine.quantile(part).item() for part in (0.25, 0.5, 0.75)],
        "overlap": stayed,
        "examples": _examples(places, ids, first, second, old),
    }


def _examples(
    places: list[int], ids: Tensor, before: Tensor, after: Tensor, old: int
) -> list[dict[str, Any]]:
    """Items at these places with their neighbours, (n, k) places each, by ids."""
    return [
        {
            "item": int(ids[place]),
            "new": place >= old,
            "before": ids[before[place, :EXAMPLE_NEIGHBOURS]].tolist(),
            "after": ids[after[place, :EXAMPLE_NEIGHBOURS]].tolist(),
        }
        for place in places
    ]


def stored_vectors(
    learner: Learner, before: Tensor, after: Tensor, ids: Tensor, *, new: int
) -> dict[str, Any]:
    """What a candidate did to stored vectors, as JSON.

    (n, d) embeddings ``before`` and (n, e) ``after`` are of the same items, the last ``new`` ones.
    """
    link = learner.links[0]
    # The link itself was fitted on many of these items, so it says too little about others.
    mapped = cross_mapped(before, after, old=link.old, new=link.new, seed=learner.seed)
    unit = normalize(after)
    found, exact = (nearest(unit, corpus, NEIGHBOURS) for corpus in (mapped, unit))
    recall, _ = hits(found, exact)
    worst = recall.argsort(stable=True)[: EXAMPLES // 2].tolist()
    expected = expected_shares(before, mapped, after, learner.seed, learner.memory.seen)
    return {
        "space": link.old,
        "items": len(ids),
        "pairs": link.pairs,
        "kinds": {"to_old": link.to_old.kind, "to_new": link.to_new.kind},
        "tried": {
            direction: {kind: quality._asdict() for kind, quality in kinds.items()}
            for direction, kinds in link.tried.items()
        },
        "expected": [share._asdict() for share in expected],
        "mixed": mixed(mapped, unit, new)._asdict(),
        "examples": _examples(worst, ids, found, exact, len(ids) - new),
    }
