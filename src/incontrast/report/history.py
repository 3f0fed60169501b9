"""A page over all versions of a workspace: quality, drift, cost, neighbours kept."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from incontrast.report import page
from incontrast.report.chart import Panel, chart
from incontrast.report.page import Cell, Column, columns, figure_cell
from incontrast.text import SCORES, counted, duration

ADOPTED = "adopted"  # instead of a strategy
PARTS = ("old", "new", "all")
PROBED = [f"{name}, {part}" for name in SCORES.values() for part in PARTS]
LOSSES = ["loss, old", "loss, new"]
MOVED = ["drift", "neighbours kept"]
STANDINGS = {"promote": "promoted", "discard": "dropped", "drop": "deleted since"}
CHARTS = (
    ("Quality by the probe set", PROBED, "Higher is better; 1 is perfect."),
    ("Loss", LOSSES, "Lower is better. Losses on new items are of other data each time."),
    ("Drift and neighbours kept", MOVED, "A drift of 1 is none."),
    ("Cost", ["seconds"], "Seconds of training of each version."),
)


class Line(NamedTuple):
    """What the journal says about a version."""

    version: int
    created: str
    data: str
    items: int
    strategy: str
    seconds: float
    figures: dict[str, float | None]  # by columns of the table; None if unknown
    standing: str

    def __str__(self) -> str:
        items, seconds = counted(self.items), duration(self.seconds)
        done = f"{self.strategy} on {items} in {seconds}"
        done = f"adopted, with {items}" if self.strategy == ADOPTED else done
        return f"version {self.version}, {self.standing}: {done}"


def lines_of(events: Iterable[Mapping[str, Any]], current: int | None) -> list[Line]:
    """A line for each version in a journal that was evaluated, also if it was deleted since."""
    lines: dict[int, Line] = {}
    trained: dict[int, tuple[Mapping[str, Any], list[Mapping[str, Any]]]] = {}
    pending: list[Mapping[str, Any]] = []  # data ingested since the last promotion or discard
    parents: dict[int | None, int | None] = {}
    serving: int | None = None
    for event in (part for each in events for part in (each, *each.get("versions", ()))):
        version, step = event.get("version"), event["step"]
        if version is None:
            continue
        if step == "ingest":
            pending = [*pending, event["data"]]
        elif step == "train":
            trained[version] = event, pending
        elif step == "evaluate" and version in trained:
            lines[version] = _line(event, *trained[version])
        elif version in lines and step in STANDINGS:
            lines[version] = lines[version]._replace(standing=STANDINGS[step])
        if step == "promote":
            parents[version] = serving
        if step in ("promote", "rollback"):
            serving = version
        if step in ("promote", "rollback", "discard"):
            pending = []
    lineage: set[int | None] = {None}  # the current version and its ancestors
    ancestor = current
    while ancestor not in lineage:
        lineage.add(ancestor)
        ancestor = parents.get(ancestor)
    for version, line in lines.items():
        if version == current:
            lines[version] = line._replace(standing="current")
        elif line.standing == "promoted" and version not in lineage:
            lines[version] = line._replace(standing="rolled back")
    return list(lines.values())


def _line(
    event: Mapping[str, Any], training: Mapping[str, Any], data: Sequence[Mapping[str, Any]]
) -> Line:
    loss, ratio, probe = (event[name] for name in ("loss", "change_ratio", "probe"))
    scores = [((probe or {"after": {}})["after"].get(part) or {}) for part in PARTS]
    values = [
        *(part.get(score) for score in SCORES for part in scores),
        *(loss["after"][part] for part in ("old", "new")),
        None if ratio is None else ratio["before"]["median"],  # as the previous version saw it
        event["overlap"],
    ]
    return Line(
        version=event["version"],
        created=event["time"],
        data=", ".join(part["name"] for part in data),
        items=sum(part["items"] for part in data),
        strategy=ADOPTED if training.get("kind") == "adopt" else training["strategy"],
        seconds=training["seconds"],
        figures=dict(zip([*PROBED, *LOSSES, *MOVED], values, strict=True)),
        standing="not promoted",
    )


def history_page(lines: Sequence[Line], folder: str) -> page.Page:
    """The page of all versions; in the table, the newest comes first."""

    points = [{**line.figures, "seconds": line.seconds} for line in lines]

    def known(names: Iterable[str]) -> list[str]:
        return [name for name in names if any(point[name] is not None for point in points)]

    figures = []
    for title, names, caption in CHARTS if len(lines) > 1 else ():
        series = {
            name: [(line.version, point[name]) for line, point in zip(lines, points, strict=True)]
            for name in known(names)
        }
        if series:
            panel = Panel(series, x="version", dots=True)
            figures.append(page.Figure(title, chart([panel], title=title, legend=True), caption))
    newest = lines[-1]
    return page.Page(
        title="History",
        lead=(
            f"{counted(len(lines), 'version')} so far. The newest is from "
            f"{newest.created[:16].replace('T', ' ')}: {newest}."
        ),
        sections=(
            page.Section("Versions", (_table(lines, known([*PROBED, *LOSSES, *MOVED])),)),
            *([page.Section("Over time", tuple(figures))] if figures else []),
        ),
        foot=f"{folder}. Written by `incontrast history`.",
    )


def _table(lines: Sequence[Line], names: Sequence[str]) -> page.Table:
    headings = (name.partition(", ") for name in names)
    return page.Table(
        title="All versions",
        columns=(
            *columns(numbers=["version"]),
            *columns("standing", "strategy", numbers=("new items", "training")),
            *(Column(part or name, True, group=name if part else "") for name, _, part in headings),
        ),
        rows=tuple(
            (
                Cell(str(line.version), sort=line.version, note=line.created[:10]),
                Cell(line.standing, mark="good" if line.standing == "current" else ""),
                Cell(line.strategy),
                figure_cell(line.items, ","),
                Cell(duration(line.seconds), sort=line.seconds),
                *(figure_cell(line.figures[name]) for name in names),
            )
            for line in reversed(lines)
        ),
        caption="Loss: evaluation loss on the items that were old and new to a version. Drift: the "
        "change ratio of the new data before the update. Neighbours kept: the share of the 10 "
        "nearest that stayed in the update.",
    )
