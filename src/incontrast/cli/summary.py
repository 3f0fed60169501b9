"""A version in a few lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from incontrast.workspace import Workspace

__all__ = ["last_retraining", "summary"]


def summary(workspace: Workspace, number: int, *, refused: bool) -> Iterator[str]:
    """What was done, what came of it, and which version serves."""
    record = workspace.versions.record(number)
    evaluation = workspace.versions.evaluation(number) or {}
    outcome = record["outcome"]
    yield (
        f"Version {number}: {outcome['strategy']} on {record['data']['items']:,} "
        f"{'items' if record['kind'] == 'fit' else 'new items'}, "
        f"{outcome['epochs']} epochs in {outcome['seconds']:.1f} s"
        f"{_against(last_retraining(workspace, number), outcome['seconds'])}"
    )
    before, after = outcome["loss"]["before"], outcome["loss"]["after"]
    parts = ("old", "new") if before["old"] is not None else ("new",)
    for part in parts:
        name = f"loss of {part} items" if len(parts) > 1 else "loss"
        yield f"  {name:<20}{_figure(before[part])} → {_figure(after[part])}"
    if outcome["change_ratio"] is not None:
        ratios = (outcome["change_ratio"][when]["median"] for when in ("before", "after"))
        yield "  {:<20}{} → {}".format("change ratio", *map(_figure, ratios))
    if "movement" in evaluation:
        moved = evaluation["movement"]
        yield (
            f"  embeddings moved    cosine {moved['cosine'][1]:.3f}, "
            f"{moved['overlap']:.0%} of the 10 nearest neighbours stayed"
        )
    for objection in evaluation.get("objections", []):
        yield f"  objection: {objection}"
    if refused:
        serving = workspace.current
        keeps = "there is no other" if serving is None else f"version {serving} keeps serving"
        yield (
            f"Not promoted: {keeps}. Promote it with "
            f"`incontrast {record['kind']} --force`, drop it with "
            f"`incontrast {record['kind']} --discard`."
        )
    else:
        yield f"Version {workspace.current} is the current one."


def _figure(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3f}"


def last_retraining(workspace: Workspace, number: int) -> float | None:
    """Seconds of the last training from scratch before a version."""
    for event in reversed(workspace.journal.events()):
        if event["step"] == "train" and event["from_scratch"] and event["version"] < number:
            seconds: float = event["training_seconds"]
            return seconds
    return None


def _against(whole: float | None, seconds: float) -> str:
    if whole is None or seconds == 0:
        return ""
    return f" (the last training from scratch took {whole:.1f} s: {whole / seconds:.1f}×)"
