"""``incontrast report`` and ``history``: a version, or all of them, as an HTML page."""

import base64
import io
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path

from incontrast.cli.command import Answer
from incontrast.files import check_outside
from incontrast.memory.store import PRESENT, Store
from incontrast.report.history import history_page, lines_of
from incontrast.report.page import Item, save
from incontrast.report.update import Version, summary, update_page
from incontrast.workspace import Workspace, WorkspaceError
from incontrast.workspace.files import NO_ENCODER

LONGEST = 100  # characters of a text
SHOWN = 100  # lines of the journal, the last ones: `incontrast log` has all


def report(args: Namespace) -> Answer:
    workspace = Workspace.open(args.workspace)
    numbers = workspace.versions.numbers()
    if not numbers:
        raise WorkspaceError(f"{workspace.folder} {NO_ENCODER}")
    number = numbers[-1] if args.version is None else args.version
    workspace.versions.verify(number)
    version = recorded(workspace, number)
    page = write_report(workspace, version, args.to)
    return Answer({"version": number, "report": page}, [*summary(version), f"Report: {page}"])


def history(args: Namespace) -> Answer:
    workspace = Workspace.open(args.workspace)
    lines = lines_of(workspace.journal.events(), workspace.current)
    if not lines:
        raise WorkspaceError(f"{workspace.folder} {NO_ENCODER}")
    page = _page_file(args.to) or workspace.reports / "history.html"
    with workspace.writing_reports() if args.to is None else nullcontext():
        save(history_page(lines, str(workspace.folder)), page)
    value = {"versions": [line._asdict() for line in lines], "report": page}
    return Answer(value, [*map(str, lines), f"Report: {page}"])


def recorded(workspace: Workspace, number: int) -> Version:
    """What the workspace has recorded about a version."""
    state, versions = workspace.state(), workspace.versions
    evaluation = versions.evaluation(number) or {}
    promoted = number != state.candidate
    return Version(versions.record(number), evaluation, promoted, state.current)


def write_report(workspace: Workspace, version: Version, to: Path | None = None) -> Path:
    """Write the page of a version; returns where."""
    shown = {
        item
        for part in ("movement", "stored_vectors")
        for example in version.evaluation.get(part, {}).get("examples", [])
        for item in (example["item"], *example["before"], *example["after"])
    }
    file = _page_file(to) or workspace.report_file(version.record["version"])
    # While a page is written into the workspace, nobody can forget what it shows.
    with workspace.writing_reports() if to is None else nullcontext():
        page = update_page(
            version,
            events=workspace.journal.events(SHOWN),
            items=_items(workspace, sorted(shown)),
            folder=str(workspace.folder),
        )
        save(page, file)
    return file


def _page_file(to: Path | None) -> Path | None:
    """The file that ``--to`` names; it must not be one of a workspace."""
    if to is not None:
        if to.suffix.lower() not in (".html", ".htm"):
            raise ValueError(f"a page is written to .html, got {to.name!r}")
        check_outside(to)
    return to


def _items(workspace: Workspace, ids: Sequence[int]) -> dict[int, Item]:
    """Those of these items that are still stored and can be shown."""
    kind = workspace.settings["learner"]["domain"]["type"]
    if not ids or kind not in ("Images", "Text"):
        return {}
    with closing(Store.open(workspace.store_file, readonly=True)) as store:
        states = store.columns(ids[-1] + 1)["state"]
        stored = [item for item in ids if states[item] == PRESENT]
        contents = store.read(stored)
    shown = map(_beginning, contents) if kind == "Text" else _pictures(workspace, contents)
    return dict(zip(stored, shown, strict=True))


def _beginning(content: bytes) -> Item:
    # Enough bytes for so many characters. 0xff, which is not UTF-8, separates the texts of a pair.
    text = content[: 8 * LONGEST].replace(b"\xff", b" \xe2\x80\x94 ").decode("utf-8", "ignore")
    # Unprintable characters could change how the rest of the page reads (right to left, say).
    text = "".join(letter for letter in " ".join(text.split()) if letter.isprintable())
    return Item(text if len(text) <= LONGEST else text[: LONGEST - 1] + "…")


def _pictures(workspace: Workspace, contents: Sequence[bytes]) -> Iterator[Item]:
    if not contents:
        return
    # Only images are decoded by their domain, which needs torch.
    import torch
    from PIL import Image

    for image in workspace.domain.unpack(contents).take(torch.arange(len(contents))):
        array = image.permute(1, 2, 0).numpy()
        content = io.BytesIO()
        Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array).save(content, "PNG")
        png = base64.b64encode(content.getvalue()).decode()
        yield Item(picture=f"data:image/png;base64,{png}")
