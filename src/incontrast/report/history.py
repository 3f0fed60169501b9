"""A page over all versions of a workspace: quality, drift, cost, neighbours kept."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from incontrast.report import page
from incontrast.report.chart import Panel, chart
from incontrast.report.page import Cell, Column, columns, figure_cell
from incontrast.text import PROBE_FIGURES, counted, duration

SECONDS = "seconds"
ADOPTED = "adopted"  # instead of a strategy
PARTS = ("old", "new", "all")
PROBED = [f"{name}, {part}" for name in PROBE_FIGURES.values() for part in PARTS]
LOSSES = ["loss, old", "loss, new"]
MOVED = ["drift", "neighbours kept"]
STANDINGS = {"promote": "promoted", "discard": "dropped", "drop": "deleted since"}


class Line(NamedTuple):
    """What the journal says about one version; figures are nan where it says nothing."""

    version: int
    created: str
    data: str
    items: int
    strategy: str
    seconds: float
    figures: dict[str, float]  # by columns of the table
    standing: str

    def as_json(self) -> dict[str, Any]:
        """The same with None for nan, which JSON has not."""
        figures = {name: None if math.isnan(v) else v for name, v in self.figures.items()}
        return {**self._asdict(), "figures": figures}


def lines_of(events: Iterable[Mapping[str, Any]], current: int | None) -> list[Line]:
    """A line for each version of a journal that was trained and evaluated, if deleted since too."""
    pending: list[Mapping[str, Any]] = []  # data: what was refused is taken along, or tried again
    trained: dict[int, tuple[Mapping[str, Any], list[Mapping[str, Any]]]] = {}
    found: dict[int, Line] = {}
    parents: dict[int | None, int | None] = {}
    serving: int | None = None
    for event in (part for each in events for part in (each, *each.get("versions", ()))):
        version, step = event.get("version"), event["step"]
        if version is None:
            continue
        if step == "promote":
            parents[version] = serving
        if step in ("promote", "rollback"):
            serving = version
        if step in ("promote", "rollback", "discard"):
            pending = []
        if step == "ingest":
            pending = [*pending, event["data"]]
        elif step == "train":
            trained[version] = event, pending
        elif step == "evaluate" and version in trained:
            training, parts = trained[version]
            found[version] = Line(
                version,
                event["time"],
                ", ".join(part["name"] for part in parts),
                sum(part["items"] for part in parts),
                ADOPTED if training.get("kind") == "adopt" else training["strategy"],
                training[SECONDS],
                _figures(event),
                "not promoted",
            )
        elif version in found and step in STANDINGS:
            found[version] = found[version]._replace(standing=STANDINGS[step])
    lineage: set[int | None] = {None}  # the current version, and those from which it was trained
    version = current
    while version not in lineage:
        lineage.add(version)
        version = parents.get(version)
    for version, line in found.items():
        if version == current:
            found[version] = line._replace(standing="current")
        elif line.standing == "promoted" and version not in lineage:
            found[version] = line._replace(standing="rolled back")
    return list(found.values())


def _figures(event: Mapping[str, Any]) -> dict[str, float]:
    """By name, as the version ended; drift is how the new data looked to the version before."""
    loss, ratio, probe = (event[name] for name in ("loss", "change_ratio", "probe"))
    scores = [((probe or {"after": {}})["after"].get(part) or {}) for part in PARTS]
    values = [
        *(score.get(figure) for figure in PROBE_FIGURES for score in scores),
        *(loss["after"][part] for part in ("old", "new")),
        None if ratio is None else ratio["before"]["median"],
        event["overlap"],
    ]
    named = zip([*PROBED, *LOSSES, *MOVED], values, strict=True)
    return {name: math.nan if value is None else value for name, value in named}


def history_page(lines: Sequence[Line], folder: str) -> page.Page:
    """The page of all versions; in the table, the newest comes first."""

    def known(names: Iterable[str]) -> list[str]:
        return [n for n in names if any(not math.isnan(line.figures[n]) for line in lines)]

    panels = [
        ("Quality by the probe set", known(PROBED), "Higher is better; 1 is perfect."),
        (
            "Loss",
            known(LOSSES),
            "The evaluation loss of each version on what was old and what was new to it; lower is "
            "better. New data are another yardstick each time.",
        ),
        (
            "Drift and neighbours kept",
            known(MOVED),
            "Drift is the change ratio of the new data before the update; 1 is none. Neighbours "
            "kept is the share of the 10 nearest that an update left in place.",
        ),
        ("Cost", [SECONDS], "Seconds of training of each version."),
    ]
    drawn = [_figure(lines, *panel) for panel in panels if panel[1] and len(lines) > 1]
    newest = lines[-1]
    standing = {"current": "is the current one", "promoted": "was promoted"}.get(
        newest.standing, f"was {newest.standing}"
    )
    training = f"training took {duration(newest.seconds)}"
    training = "it was trained elsewhere" if newest.strategy == ADOPTED else training
    return page.Page(
        title="History",
        lead=(
            f"{counted(len(lines), 'version')} so far. The newest, version {newest.version}, is "
            f"from {newest.created[:16].replace('T', ' ')} and {standing}; {training}."
        ),
        sections=(
            page.Section("Versions", (_table(lines, known([*PROBED, *LOSSES, *MOVED])),)),
            *([page.Section("Over time", tuple(drawn))] if drawn else []),
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
        caption="Loss: evaluation loss, lower is better. Drift: the change ratio of the new data "
        "before the update. Neighbours kept: of the 10 nearest, by the update.",
    )


def _figure(lines: Sequence[Line], title: str, names: Sequence[str], caption: str) -> page.Figure:
    cost = names == [SECONDS]
    series = {
        name: [(line.version, line.seconds if cost else line.figures[name]) for line in lines]
        for name in names
    }
    drawn = chart([Panel(series, x="version", bars=cost, dots=True)], title=title, legend=not cost)
    return page.Figure(title=title, svg=drawn, caption=caption)
