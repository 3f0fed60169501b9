"""A version told: in a few lines, and as an HTML page in the workspace."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from incontrast.cli.command import Answer
from incontrast.cli.output import counted
from incontrast.report import save
from incontrast.report.update import update_page
from incontrast.workspace import Workspace, WorkspaceError
from incontrast.workspace.status import refused_candidate, sentence

__all__ = ["report", "summary", "write_report"]


def report(*, workspace: Path, version: int | None, to: Path | None) -> Answer:
    """Write the page of a version, and sum it up."""
    space = Workspace.open(workspace)
    numbers = space.versions.numbers()
    if not numbers:
        raise WorkspaceError(f"{space.folder} has no encoder yet: run fit first")
    number = numbers[-1] if version is None else version
    space.versions.verify(number)
    page = write_report(space, number, to)
    lines = summary(space, number, refused=number == refused_candidate(space))
    return Answer({"version": number, "report": page}, [*lines, f"Report: {page}"])


def write_report(workspace: Workspace, number: int, to: Path | None = None) -> Path:
    """Write the page of a version; returns where."""
    versions = workspace.versions
    evaluation = versions.evaluation(number) or {"failed_checks": [], "tolerance": 0.0, "sample": 0}
    events = workspace.journal.events()
    shown = {
        item
        for example in evaluation.get("movement", {}).get("examples", [])
        for item in (example["item"], *example["before"], *example["after"])
    }
    page = update_page(
        record=versions.record(number),
        evaluation=evaluation,
        promoted=any(e["step"] == "promote" and e["version"] == number for e in events),
        current=number == workspace.current,
        from_scratch_seconds=_last_retraining(workspace, number),
        journal=[sentence(event) for event in events],
        pictures=_pictures(workspace, sorted(shown)),
        folder=str(workspace.folder),
    )
    if to is None:
        workspace.reports.mkdir(exist_ok=True)
        to = workspace.report_file(number)
    save(page, to)
    return to


def _pictures(workspace: Workspace, ids: list[int]) -> dict[int, str]:
    """Those of these items that are images and still there, as data URIs."""
    if not ids or workspace.settings["learner"]["domain"]["type"] != "Images":
        return {}
    # Images are decoded by their domain, which needs torch; no other page does.
    import torch
    from PIL import Image

    from incontrast.memory import Store
    from incontrast.memory.store import PRESENT

    with closing(Store.open(workspace.store_file, readonly=True)) as store:
        states = store.columns(ids[-1] + 1).states
        there = [item for item in ids if states[item] == PRESENT]
        blobs = store.read(there) if there else []
    pixels = workspace.template().domain.unpack(blobs).take(torch.arange(len(there)))
    uris = {}
    for item, image in zip(there, pixels, strict=True):
        array = image.permute(1, 2, 0).numpy()
        content = io.BytesIO()
        Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array).save(content, "PNG")
        uris[item] = f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
    return uris


def summary(workspace: Workspace, number: int, *, refused: bool) -> Iterator[str]:
    """What was done, what came of it, and which version serves."""
    record = workspace.versions.record(number)
    evaluation = workspace.versions.evaluation(number) or {}
    outcome = record["outcome"]
    items = counted(record["data"]["items"], "item" if record["kind"] == "fit" else "new item")
    yield (
        f"Version {number}: {outcome['strategy']} on {items}, "
        f"{counted(outcome['epochs'], 'epoch')} in {outcome['seconds']:.1f} s"
        f"{_against(_last_retraining(workspace, number), outcome['seconds'])}"
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
    for check in evaluation.get("failed_checks", []):
        yield f"  failed check: {check}"
    if refused:
        serving = workspace.current
        keeps = "there is no other" if serving is None else f"version {serving} keeps serving"
        again = f"incontrast {record['kind']}"
        yield (
            f"Not promoted: {keeps}. Promote it with `{again} --force`, drop it with "
            f"`{again} --discard`."
        )
    else:
        yield f"Version {workspace.current} is the current one."


def _last_retraining(workspace: Workspace, number: int) -> float | None:
    """Seconds of the last training from scratch before a version."""
    for event in reversed(workspace.journal.events()):
        if event["step"] == "train" and event["from_scratch"] and event["version"] < number:
            seconds: float = event["training_seconds"]
            return seconds
    return None


def _figure(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3f}"


def _against(whole: float | None, seconds: float) -> str:
    if whole is None or seconds == 0:
        return ""
    return f" (the last training from scratch took {whole:.1f} s: {whole / seconds:.1f}×)"
