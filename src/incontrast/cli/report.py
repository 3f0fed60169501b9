"""A version, or all of them: told in a few lines, and as an HTML page in the workspace."""

import base64
import io
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from incontrast.cli.command import Answer
from incontrast.files import check_outside
from incontrast.memory.store import PRESENT, Store
from incontrast.report.history import ADOPTED, history_page, lines_of
from incontrast.report.page import Item, save
from incontrast.report.update import cost_share, update_page
from incontrast.text import (
    counted,
    duration,
    index_advice,
    mixed_advice,
    part_of_the_way,
    probe_changes,
)
from incontrast.workspace import Workspace, WorkspaceError
from incontrast.workspace.files import NO_ENCODER

LONGEST = 100  # characters of a text
SHOWN = 100  # lines of the journal, the last ones: `incontrast log` has all


def report(args: Namespace) -> Answer:
    space = Workspace.open(args.workspace)
    numbers = space.versions.numbers()
    if not numbers:
        raise WorkspaceError(f"{space.folder} {NO_ENCODER}")
    number = numbers[-1] if args.version is None else args.version
    space.versions.verify(number)
    page = write_report(space, number, args.to)
    value = {"version": number, "report": page}
    return Answer(value, [*summary(space, number), f"Report: {page}"])


def history(args: Namespace) -> Answer:
    space = Workspace.open(args.workspace)
    lines = lines_of(space.journal.events(), space.current)
    if not lines:
        raise WorkspaceError(f"{space.folder} {NO_ENCODER}")
    place = _place(args.to, space.reports / "history.html")
    with space.writing_reports() if args.to is None else nullcontext():
        save(history_page(lines, str(space.folder)), place)
    sentences = []
    for line in lines:
        done = f"{line.strategy} on {counted(line.items)} in {duration(line.seconds)}"
        done = f"adopted, with {counted(line.items)}" if line.strategy == ADOPTED else done
        sentences.append(f"version {line.version}, {line.standing}: {done}")
    value = {"versions": [line.as_json() for line in lines], "report": place}
    return Answer(value, [*sentences, f"Report: {place}"])


def write_report(workspace: Workspace, number: int, to: Path | None = None) -> Path:
    """Write the page of a version, from what was written down about it; returns where."""
    state, evaluation = workspace.state(), workspace.versions.evaluation(number) or {}
    shown = {
        item
        for part in ("movement", "stored_vectors")
        for example in evaluation.get(part, {}).get("examples", [])
        for item in (example["item"], *example["before"], *example["after"])
    }
    place = _place(to, workspace.report_file(number))
    # In the workspace, no item is shown that is forgotten meanwhile.
    with workspace.writing_reports() if to is None else nullcontext():
        page = update_page(
            record=workspace.versions.record(number),
            evaluation=evaluation,
            promoted=number != state.candidate,
            current=number == state.current,
            events=workspace.journal.events(SHOWN),
            items=_items(workspace, sorted(shown)),
            folder=str(workspace.folder),
        )
        save(page, place)
    return place


def _place(to: Path | None, usual: Path) -> Path:
    """Where a page goes, which replaces what is there: neither data nor a workspace's files."""
    if to is None:
        return usual
    if to.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"a page is written to .html, got {to.name!r}")
    check_outside(to)
    return to


def _items(workspace: Workspace, ids: Sequence[int]) -> dict[int, Item]:
    """Of these items, those that are still there and can be shown."""
    kind = workspace.settings["learner"]["domain"]["type"]
    if not ids or kind not in ("Images", "Text"):
        return {}
    with closing(Store.open(workspace.store_file, readonly=True)) as store:
        states = store.columns(ids[-1] + 1)["state"]
        there = [item for item in ids if states[item] == PRESENT]
        contents = store.read(there)
    shown = map(_beginning, contents) if kind == "Text" else _pictures(workspace, contents)
    return dict(zip(there, shown, strict=True))


def _beginning(content: bytes) -> Item:
    # Enough bytes for so many characters; a pair has a byte between its texts that is no UTF-8.
    text = content[: 8 * LONGEST].replace(b"\xff", b" \xe2\x80\x94 ").decode("utf-8", "ignore")
    # What is not printable could change how the rest of the page reads (right to left, say).
    text = "".join(letter for letter in " ".join(text.split()) if letter.isprintable())
    return Item(text if len(text) <= LONGEST else text[: LONGEST - 1] + "…")


def _pictures(workspace: Workspace, contents: Sequence[bytes]) -> Iterator[Item]:
    if not contents:
        return
    # Images are decoded by their domain, which needs torch; no other page does.
    import torch
    from PIL import Image

    for image in workspace.domain.unpack(contents).take(torch.arange(len(contents))):
        array = image.permute(1, 2, 0).numpy()
        content = io.BytesIO()
        Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array).save(content, "PNG")
        png = base64.b64encode(content.getvalue()).decode()
        yield Item(picture=f"data:image/png;base64,{png}")


def summary(workspace: Workspace, number: int) -> list[str]:
    """What was done for a version, what came of it, and which version serves."""
    state, evaluation = workspace.state(), workspace.versions.evaluation(number) or {}
    record = workspace.versions.record(number)
    outcome, adopted = record["outcome"], record["kind"] == "adopt"
    items = counted(record["data"]["items"], "item" if record["parent"] is None else "new item")
    epochs, seconds = counted(outcome["epochs"], "epoch"), outcome["seconds"]
    line = f"Version {number}: {outcome['strategy']} on {items}, {epochs} in {seconds:.1f} s"
    if adopted:
        line = f"Version {number}: adopted, with {items} of {record['memory']['seen']:,}"
    if (share := cost_share(record)) is not None:
        line += f", about {share:.1%} of a retraining"
    lines = [line]
    if (kept := outcome.get("kept", 1.0)) < 1.0:
        lines.append(f"  {part_of_the_way(kept)}")
    lines += (f"  {name:<35}{words}" for name, words in _figures(outcome, evaluation, adopted))
    lines += (f"  failed check: {check}" for check in evaluation.get("failed_checks", []))
    lines += (f"  worse: {change}" for change in outcome.get("worse", ()))
    if number == state.candidate:
        current = state.current
        keeps = "there is no other" if current is None else f"version {current} keeps serving"
        command = f"incontrast {record['kind']}"
        advice = f"Promote it with `{command} --force`, drop it with `{command} --discard`."
        return [*lines, f"Not promoted: {keeps}. {advice}"]
    if outcome.get("worse"):
        lines.append(
            "Promoted, but it got worse: `incontrast rollback` returns to the version "
            "before, `incontrast compare OLD NEW` says which strategy learns new items better."
        )
    return [*lines, f"Version {state.current} is the current one."]


def _figures(
    outcome: Mapping[str, Any], evaluation: Mapping[str, Any], adopted: bool
) -> Iterator[tuple[str, str]]:
    """What came of a version, by name; of an adopted one, nothing has changed."""

    def change(*values: float | None) -> str:
        shown = ["not finite" if value is None else f"{value:.3f}" for value in values]
        return " → ".join(shown[-1:] if adopted else shown)

    for name, *values in probe_changes(outcome["probe"]):
        yield name, change(*values)
    before, after = outcome["loss"]["before"], outcome["loss"]["after"]
    for part in ("old", "new") if not adopted else ():
        if before["old"] is not None:
            yield f"loss of {part} items", change(before[part], after[part])
        elif part == "new":
            yield "loss", change(before[part], after[part])
    if ratios := outcome["change_ratio"]:
        yield "change ratio", change(*(ratios[when]["median"] for when in ("before", "after")))
    if moved := evaluation.get("movement"):
        stayed = f"{moved['overlap']:.0%} of the 10 nearest neighbours stayed"
        yield "embeddings moved", f"cosine {moved['cosine'][1]:.3f}, {stayed}"
    if stored := evaluation.get("stored_vectors"):
        mapped = index_advice(stored["expected"], stored["items"])
        yield "stored vectors, mapped (reembed)", mapped
        if beside := mixed_advice(stored.get("mixed")):
            yield "new items beside mapped ones", beside
        recall = stored["tried"]["to_old"][stored["kinds"]["to_old"]]["recall"]
        how = f"embed --space {stored['space']}; recall@10 {recall:.2f}"
        yield "stored vectors, as they are", how
