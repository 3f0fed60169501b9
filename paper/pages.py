"""The pages of the documentation that are made from rows."""

from __future__ import annotations

import re

from incontrast.report.page import Cell, Column, Mark, Table
from paper.captions import provenance, size, where_retraining_ends
from paper.claims import claims_of_the_paper
from paper.longer import longer_table
from paper.markdown import table_as_markdown, verdicts_as_markdown
from paper.names import GRAPHS, IMAGES, strategy_title
from paper.own_claims import claims_of_ours
from paper.page import PROTOCOLS, TUNED
from paper.speed_tables import (
    level_tables,
    speed_up_tables,
    standings_table,
    standings_told,
    sweep_table,
)
from paper.summary import Metric, Place, Summary, published
from paper.tables import (
    accuracy_tables,
    bias_table,
    cost_table,
    loss_tables,
    search_table,
)
from paper.verdicts import RULE, counts_of

__all__ = ["BEGIN", "END", "overview_table", "results_page", "with_overview"]

BEGIN = "<!-- made from results/ by results/pages.py: do not edit -->"
OVERVIEW = "mnist-class"  # the data set of the README's table
LONGER = (
    "With few epochs nothing is trained out, neither the old encoder nor retraining. What becomes "
    "of the figures when both are trained longer, for a few strategies (`results/longer.jsonl`, "
    "made by `incontrast paper run --data FOLDER --epochs 200 --patience 50 --rows "
    "results/longer.jsonl` with `--set`, `--ratio`, `--seed` and `--strategy` of these). On "
    "REDDIT-BINARY part of the gap closes at once, as an update sets BatchNorm's statistics anew, "
    "which is luck ([what is noisy](comparing.md)):"
)
METRICS: tuple[Metric, ...] = ("time", "passes")
END = "<!-- end of what results/pages.py makes -->"


def results_page(summary: Summary, longer: Summary | None = None) -> str:
    """docs/results.md.

    Args:
        summary: The rows of the grid.
        longer: Rows of some of its increments with more epochs.
    """
    glance = standings_table(summary)
    parts = [
        "# Results",
        BEGIN,
        "The paper's experiments on real data, the published figures beside ours. All rows are in "
        "`results/paper.jsonl`; `incontrast paper report` makes a page with figures of them, "
        "`incontrast paper run --data FOLDER` makes more rows.",
        "## At a glance",
        counts_of(claims_of_the_paper(summary)),
        table_as_markdown(glance),
        glance.caption,
        "## Where the paper's claims hold and where they do not",
        RULE,
        verdicts_as_markdown(claims_of_the_paper(summary)),
        "And ours:",
        TUNED,
        verdicts_as_markdown(claims_of_ours(summary)),
        "## How it was measured",
        PROTOCOLS,
    ]
    tables = [
        *speed_up_tables(summary),
        *level_tables(summary),
        sweep_table(summary),
        *accuracy_tables(summary),
        *loss_tables(summary),
        bias_table(summary),
        cost_table(summary),
        search_table(summary),
    ]
    for table in tables:
        if len(table.columns) > 1 and table.rows:
            turned = len(table.columns) > len(table.rows)
            parts += [
                f"## {table.title}",
                table_as_markdown(table, turned=turned),
                table.caption,
            ]
    if longer is not None and longer.places:
        table = longer_table(summary, longer)
        parts += [f"## {table.title}", LONGER, table_as_markdown(table), table.caption]
    parts += [
        _missing(summary),
        provenance(summary),
        f"Published figures: {published()['source']}.",
        END,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def with_overview(readme: str, summary: Summary) -> str:
    """The README with its table made anew; the rest stays.

    Raises:
        ValueError: It has no place for the table.
    """
    pattern = re.compile(re.escape(BEGIN) + r".*?" + re.escape(END), re.DOTALL)
    if len(pattern.findall(readme)) != 1:
        raise ValueError(f"the README needs {BEGIN!r} and {END!r} once, around its table")
    table = overview_table(summary)
    glance = standings_told(summary)
    made = "\n\n".join((BEGIN, table_as_markdown(table), table.caption, glance, END))
    return pattern.sub(lambda _: made, readme)


def overview_table(summary: Summary) -> Table:
    """What a reader wants to know first: who gets to retraining's level, and how fast."""
    place = next((place for place in summary.places if place.set == OVERVIEW), None)
    rows = [_overview_row(summary, place, name) for name in summary.strategies] if place else []
    caption = "No rows yet." if place is None else f"{size(summary, place.set)}."
    return Table(
        title="Overview",
        columns=(
            Column("strategy"),
            Column("loss of old items", number=True),
            Column("of new items", number=True),
            Column("accuracy", number=True),
            Column("level with retraining", number=True),
            Column("speed-up in time", number=True),
            Column("in encoder passes", number=True),
        ),
        rows=tuple(rows),
        caption=f"{caption} Losses are true losses over old and new data together, after as many "
        "encoder passes as retraining had. Level means as good as retraining's final loss, on old "
        "and on new items within 2 %; the speed-ups are retraining's own time and passes until "
        "then over the strategy's. The accuracy is an SVM's on items that no encoder has seen "
        "(mean of old and of new kinds), with the encoder that was first level, or the last one. "
        "**Bold** is the fastest of those that are level with every seed."
        + ("" if place is None else where_retraining_ends(summary, [place])),
    )


def _overview_row(summary: Summary, place: Place, name: str) -> tuple[Cell, ...]:
    speeds = [summary.our_speed_up(place, name, metric) for metric in METRICS]
    losses = [summary.loss(place, name, part).value for part in ("old", "new")]
    accuracy = summary.accuracy(place, name, "held_out", "ours").value
    shown = [
        Cell("–") if value is None else Cell(f"{value:.3f}", sort=value)
        for value in (*losses, accuracy)
    ]
    title = Cell(strategy_title(name))
    if name == "retraining":
        return (title, *shown, Cell("by definition"), *2 * (Cell("1×", sort=1.0),))
    level = Cell("{} of {} seeds".format(*summary.level_seeds(place, name)))
    if name == "inference" or None in speeds:
        return (title, *shown, level, Cell("–"), Cell("–"))
    fast = []
    for metric, speed in zip(METRICS, speeds, strict=True):
        assert speed is not None
        mark: Mark = "best" if name == _fastest(summary, place, metric) else ""
        value = speed.value
        nothing = "level before" if speed.level == speed.total else "never"
        text = nothing if value is None else f"{value:.1f}×"
        fast.append(Cell(text, sort=value, mark=mark))
    return (title, *shown, level, *fast)


def _fastest(summary: Summary, place: Place, metric: Metric) -> str:
    """The fastest of the strategies that are level with every seed."""
    speeds = {}
    for name in summary.strategies:
        found = summary.our_speed_up(place, name, metric)
        sure = found is not None and summary.sure(place, name)
        if name not in ("retraining", "inference") and sure and found and found.value is not None:
            speeds[name] = found.value
    return max(speeds, key=lambda name: speeds[name], default="")


def _missing(summary: Summary) -> str:
    """What has not been run is said, not extrapolated."""
    gaps = []
    for name in (*IMAGES, *GRAPHS):
        for ratio in (0.3, 0.5, 0.7):
            place = Place(name, ratio)
            absent = [
                strategy_title(strategy)
                for strategy in (*summary.strategies,)
                if not summary.runs(place, strategy)
            ]
            if len(absent) == len(summary.strategies):
                gaps.append(f"{name} {ratio:g}")
            elif absent:
                gaps.append(f"{name} {ratio:g} ({', '.join(absent)})")
    if not gaps:
        return ""
    return f"**Not run yet:** {'; '.join(gaps)}."
