"""The report about the paper: what was run, what came of it, what holds."""

from __future__ import annotations

from incontrast._version import __version__
from incontrast.report.figures import can_draw
from incontrast.report.page import Block, Facts, Page, Section, Text, Verdicts
from paper.captions import provenance
from paper.claims import claims_of_the_paper
from paper.figures import (
    accuracy_figure,
    level_figure,
    sweep_figure,
    training_figure,
)
from paper.own_claims import claims_of_ours
from paper.speed_tables import level_tables, speed_up_tables, standings_table
from paper.summary import Summary, published
from paper.tables import (
    accuracy_tables,
    bias_table,
    cost_table,
    loss_tables,
    search_table,
)
from paper.verdicts import RULE, with_rows

__all__ = ["PROTOCOLS", "TUNED", "paper_page"]

PROTOCOLS = """**The paper's protocol.** Time and epochs until the training loss is lowest, where \
training stops once it has not fallen for `patience` epochs, or its epochs are over. The speed-up \
is retraining's over the strategy's.

**Our protocol.** The training loss differs in meaning from strategy to strategy, and says nothing \
about old data. So we ask for the time and the encoder passes until the true loss over all data \
(fixed views, noise from old and new items) is at the level where retraining ends, and on old and \
on new items apart within 2 % of it. Retraining's own time is until it first is at that level \
itself. Every strategy has as many encoder passes as retraining had; "never" is: not within them.

**Weights.** All strategies, retraining among them, are measured with averaged weights, which are \
worth a good deal, but the paper's ICL and its ablations, which are to the letter. Along the way \
these are measured with their weights as they are; at the end, as an update returns them, with \
those of the epoch of lowest training loss.

**What is on the clock.** Training, with everything a strategy needs (teachers, agents, support \
steps). Measuring along the way is not. On one thread, time is processor time; other work on the \
machine still slows it by what it takes of caches and memory, so that small differences in time \
mean nothing and passes are the steadier figure. The first training on old data is the same for \
all and counts for none; nor does the search for learning rates, whose cost has a table of its \
own."""


TUNED = (
    "The steps and the rate of `ICL()` were chosen on digits, PROTEINS and MNIST-2 (with a small "
    "encoder), the bound on its rate on MNIST-2 with ResNet-18: what is said of these sets is no "
    "test of them. Its rivals have the paper's steps of 32 items, and the best of the paper's "
    "rates, of which the highest is 1e-3."
)


def paper_page(summary: Summary) -> Page:
    """The whole report."""
    sections = [
        Section("At a glance", (_facts(summary), standings_table(summary))),
        Section(
            "Where the paper's claims hold and where they do not",
            (
                Text(RULE),
                Verdicts(with_rows(claims_of_the_paper(summary))),
            ),
        ),
        Section(
            "What we say of ICL()", (Text(TUNED), Verdicts(with_rows(claims_of_ours(summary))))
        ),
        Section("How it was measured", (Text(PROTOCOLS),)),
        Section("Tables 3 and 4", tuple(speed_up_tables(summary))),
        Section("Until level with retraining", tuple(level_tables(summary))),
        Section("Losses and accuracies", (*accuracy_tables(summary), *loss_tables(summary))),
        Section("Figures", _figures(summary)),
        Section(
            "Bias, cost and search",
            (bias_table(summary), cost_table(summary), search_table(summary)),
        ),
    ]
    return Page(
        title="Incremental contrastive learning: the paper, reproduced and judged",
        lead="The experiments of “Unbiased and Efficient Self-Supervised Incremental Contrastive "
        "Learning” (WSDM '23) on real data, the published figures beside ours, and the comparison "
        "that the paper leaves out.",
        sections=tuple(section for section in sections if section.blocks),
        foot=_foot(summary),
    )


def _facts(summary: Summary) -> Facts:
    cells = sum(
        len(summary.seeds(place, name)) for place in summary.places for name in summary.strategies
    )
    seconds = sum(row["cost"]["seconds"] for row in summary.rows)
    judged = claims_of_the_paper(summary)
    kinds = ("holds", "mixed", "fails", "open")
    counts = {kind: sum(verdict.standing == kind for verdict in judged) for kind in kinds}
    return Facts(
        (
            ("cells run", f"{cells}", f"{len(summary.places)} data sets and growth ratios"),
            ("computing time", _duration(seconds), "measuring included"),
            ("claims that hold", f"{counts['holds']}", f"{counts['mixed']} in part"),
            (
                "claims that do not",
                f"{counts['fails']}",
                f"of {len(judged)}; {counts['open']} not decided",
            ),
        )
    )


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"


def _figures(summary: Summary) -> tuple[Block, ...]:
    if not can_draw():
        return (
            Text('No figures: matplotlib is missing, `pip install "incontrast[plot]"` brings it.'),
        )
    makers = (level_figure, training_figure, accuracy_figure, sweep_figure)
    found = [make(summary) for make in makers]
    figures: tuple[Block, ...] = tuple(figure for figure in found if figure is not None)
    missing: tuple[Block, ...] = ()
    if found[-1] is None:
        missing = (Text("The sweep of α from 0.1 to 0.9 has no rows yet."),)
    return figures + missing


def _foot(summary: Summary) -> str:
    machines = sorted(
        {
            f"{row['machine']['processor']}, {row['machine']['cores']} cores, "
            f"{row['machine']['threads']} thread"
            for row in summary.rows
        }
    )
    dates = sorted({row["date"] for row in summary.rows})
    torch = sorted({row["software"]["torch"] for row in summary.rows})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}" if dates else ""
    return (
        f"Made by `incontrast paper report`, incontrast {__version__}, from rows of {when}: "
        f"{'; '.join(machines)}; torch {', '.join(torch)}. {provenance(summary)}\n\n"
        f"Published figures: {published()['source']}."
    )
