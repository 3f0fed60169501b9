"""The report: every table and figure of the reproduction in one HTML file."""

from __future__ import annotations

from incontrast import __version__
from incontrast.report.page import Block, Facts, Page, Section, Table, Text
from paper.drawing import can_draw
from paper.figures import accuracy_figure, parity_figure, sweep_figure, training_figure
from paper.names import RETRAINING
from paper.speed_tables import parity_tables, speed_up_tables, standings_table, sweep_table
from paper.summary import Summary, published
from paper.tables import (
    accuracy_table,
    bias_table,
    cost_table,
    loss_tables,
    search_table,
    settings_table,
)
from paper.verdicts import claims_table

METHOD = """A strategy is at **parity** when its evaluation loss (InfoNCE over all data, fixed \
views, negatives from old and new items) is at or below what retraining ends with, and on old and \
on new items apart within 2 % of it. Every strategy has as many forward passes as retraining had; \
never means not within them. By **the paper's protocol** time and epochs are those to the lowest \
training loss, before training stops for lack of patience or at its last epoch. Speed-ups are \
retraining's figure over the strategy's; evaluation does not count, and on one thread time is \
processor time."""


def table_sections(summary: Summary) -> list[tuple[str, list[Table]]]:
    """All tables that have rows, by section."""
    sections = {
        "Overview": [standings_table(summary), claims_table(summary), settings_table(summary)],
        "Tables 3 and 4": speed_up_tables(summary),
        "Time to parity with retraining": [*parity_tables(summary), sweep_table(summary)],
        "Losses and accuracies": [accuracy_table(summary), *loss_tables(summary)],
        "Bias, cost and search": [
            *(bias_table(summary), cost_table(summary), search_table(summary)),
        ],
    }
    return [
        (title, [table for table in tables if table.rows and len(table.columns) > 1])
        for title, tables in sections.items()
    ]


def paper_page(summary: Summary) -> Page:
    """The whole report."""
    (overview, glance), *rest = table_sections(summary)
    sections = [
        Section(overview, (_facts(summary), *glance)),
        Section("How it was measured", (Text(METHOD),)),
        *(Section(title, tuple(tables)) for title, tables in rest),
        Section("Figures", _figures(summary)),
    ]
    return Page(
        title="Incremental contrastive learning: the paper, reproduced",
        lead="The experiments of “Unbiased and Efficient Self-Supervised Incremental Contrastive "
        "Learning” (WSDM '23) on real data, the published figures beside ours, and the comparison "
        "that the paper leaves out.",
        sections=tuple(section for section in sections if section.blocks),
        foot=_foot(summary),
    )


def _facts(summary: Summary) -> Facts:
    runs = sum(
        len(summary.seeds(place, name)) for place in summary.places for name in summary.strategies
    )
    hours = sum(row["cost"]["seconds"] for row in summary.rows) / 3600
    seeds = {seed for place in summary.places for seed in summary.seeds(place, RETRAINING)}
    return Facts(
        (
            ("runs", f"{runs}", f"{len(seeds)} seeds"),
            ("data sets and growth ratios", f"{len(summary.places)}", ""),
            ("computing time", f"{hours:.1f} h", "evaluation included"),
            ("runs set aside", f"{summary.set_aside}", "with other settings than most seeds"),
        )
    )


def _figures(summary: Summary) -> tuple[Block, ...]:
    if not can_draw():
        return (
            Text('No figures: matplotlib is missing; `pip install "incontrast[plot]"` adds it.'),
        )
    drawn = (parity_figure, training_figure, accuracy_figure, sweep_figure)
    return tuple(figure for draw in drawn if (figure := draw(summary)) is not None)


def _foot(summary: Summary) -> str:
    machines = {
        f"{row['machine']['processor']}, {row['machine']['cores']} cores, "
        f"{row['machine']['threads']} thread"
        for row in summary.rows
    }
    dates = sorted({row["date"] for row in summary.rows})
    torch = sorted({row["software"]["torch"] for row in summary.rows})
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return (
        f"Written by `python -m paper report`, incontrast {__version__}, from rows of {when}: "
        f"{'; '.join(sorted(machines))}; torch {', '.join(torch)}.\n\n"
        f"Published figures: {published()['source']}."
    )
