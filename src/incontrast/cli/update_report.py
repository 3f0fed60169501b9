"""The page that follows an update, written into the workspace."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from pathlib import Path

import torch
from PIL import Image

from incontrast.cli.summary import last_retraining
from incontrast.domains.images.domain import Images
from incontrast.memory import Store
from incontrast.memory.store import PRESENT
from incontrast.report import save
from incontrast.report.update import update_page
from incontrast.workspace import Workspace
from incontrast.workspace.status import sentence

__all__ = ["write_report"]


def write_report(workspace: Workspace, number: int, to: Path | None = None) -> Path:
    """Write the page of a version; returns where."""
    versions = workspace.versions
    evaluation = versions.evaluation(number) or {"objections": [], "tolerance": 0.0, "sample": 0}
    events = workspace.journal.events()
    promoted = any(e["step"] == "promote" and e["version"] == number for e in events)
    shown = {
        item
        for example in evaluation.get("movement", {}).get("examples", [])
        for item in (example["item"], *example["before"], *example["after"])
    }
    page = update_page(
        record=versions.record(number),
        evaluation=evaluation,
        promoted=promoted,
        current=number == workspace.current,
        from_scratch_seconds=last_retraining(workspace, number),
        journal=[sentence(event) for event in events],
        pictures=_pictures(workspace, shown),
        folder=str(workspace.folder),
    )
    if to is None:
        workspace.reports.mkdir(exist_ok=True)
        to = workspace.report_file(number)
    save(page, to)
    return to


def _pictures(workspace: Workspace, ids: Iterable[int]) -> dict[int, str]:
    """Those of these items that are images and still there, as data URIs."""
    domain = workspace.template().domain
    wanted = sorted(ids)
    if not isinstance(domain, Images) or not wanted:
        return {}
    store = Store.open(workspace.store_file, readonly=True)
    try:
        states = store.columns(wanted[-1] + 1).states
        there = [item for item in wanted if states[item] == PRESENT]
        if not there:
            return {}
        pixels = domain.unpack(store.read(there)).take(torch.arange(len(there)))
    finally:
        store.close()
    return {item: _uri(image) for item, image in zip(there, pixels, strict=True)}


def _uri(pixels: torch.Tensor) -> str:
    array = pixels.permute(1, 2, 0).numpy()
    content = io.BytesIO()
    Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array).save(content, "PNG")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
