"""Whether a version was promoted, why, by how much each figure changed, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from incontrast.text import part_of_the_way, probe_changes

NOTICEABLE = 0.02  # of a probe's figures: less is what chance does on a few hundred items


class Verdict(NamedTuple):
    """What came of a fit or an update, in words."""

    sentence: str
    changes: str
    next_steps: tuple[str, ...]


def verdict(record: Mapping[str, Any], evaluation: Mapping[str, Any], *, promoted: bool) -> Verdict:
    """What to tell a person first.

    Args:
        record: What was written down about the version.
        evaluation: How it was judged.
        promoted: Whether it is or was the current one.
    """
    outcome, failed = record["outcome"], evaluation.get("failed_checks", [])
    if not promoted:
        reason = "Not promoted: " + "; ".join(failed)
    elif failed:
        reason = "Promoted by force, despite: " + "; ".join(failed)
    else:
        reason = "Promoted: all checks passed"
    if 0.0 < (kept := outcome.get("kept", 1.0)) < 1.0:
        reason += f". {part_of_the_way(kept)}"
    return Verdict(
        f"{reason}.", "; ".join(_changes(outcome)), tuple(_next_steps(record, promoted, failed))
    )


def _changes(outcome: Mapping[str, Any]) -> Iterator[str]:
    """What a probe says, if there is one, and the losses, in a few words."""
    for name, before, after in probe_changes(outcome["probe"]):
        if name.startswith("kNN"):
            yield f"{name} {before:.3f} → {after:.3f} ({100 * (after - before):+.1f} points)"
    before, after = outcome["loss"]["before"], outcome["loss"]["after"]
    for part in ("old", "new"):
        if before[part] and after[part] is not None:
            share = after[part] / before[part] - 1.0
            whose = f"loss of {part} items" if before["old"] is not None else "loss"
            yield f"{whose} {before[part]:.3f} → {after[part]:.3f} ({share:+.0%})"


def _next_steps(record: Mapping[str, Any], promoted: bool, failed: list[str]) -> Iterator[str]:
    command = f"incontrast {record['kind']}"
    worse = [
        f"{name} ({before:.3f} → {after:.3f})"
        for name, before, after in probe_changes(record["outcome"]["probe"])
        if record["kind"] == "update" and name.startswith("kNN") and after < before - NOTICEABLE
    ]
    if not promoted:
        yield (
            f"look at the table below. `{command} --force` promotes it all the same, "
            f"`{command} --discard` drops it with its items; the next `{command}` with data takes "
            "them along."
        )
        if any("rose" in check for check in failed):
            yield "`incontrast compare OLD NEW` says which strategy keeps old items better."
    elif worse:
        yield (
            f"the probe got worse: {', '.join(worse)}. `incontrast rollback` returns to the "
            "version before."
        )
    if promoted and record["kind"] == "update":
        yield (
            "re-embed what you search in: `incontrast embed`. Embeddings of two versions do not go "
            "together."
        )
    if not record["outcome"]["probe"]:
        yield (
            f"the loss alone does not say how good search is. `{command} --probe FOLDER`, with a "
            "subfolder of images for each class, or a table with labels, does."
        )


def cost_share(record: Mapping[str, Any]) -> float | None:
    """The cost of an update as a share of what retraining to convergence is estimated to take.

    None where that cannot be said: the last training from scratch had not converged, or the update
    was one itself.
    """
    outcome, whole = record["outcome"], record["from_scratch"]
    if outcome["from_scratch"] or whole is None or whole["stopped"] != "patience":
        return None
    passes = whole["forward_passes"] / whole["items"] * record["memory"]["seen"]
    return float(outcome["forward_passes"] / passes)
