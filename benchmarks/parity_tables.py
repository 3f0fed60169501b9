"""Tables of the rows of benchmarks/parity.py.

    python benchmarks/parity_tables.py show    # each cell with the range over seeds
    python benchmarks/parity_tables.py page    # docs/parity-tables.md, and the tables of README.md
                                               # and docs/explanation/updates.md; --check compares

Each cell is the share of the gap between no update and retraining that is closed on new items, by
evaluation loss, kNN accuracy and precision@10; in parentheses the loss of old items against
retraining's, and precision@10 over all items minus retraining's. ``show --where stored`` is about
X′ itself instead of unseen items, ``show --rows`` about other files of results:
parity_tuning*.jsonl have what was tried on tuning sets, parity_before.jsonl older rules.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROWS = HERE / "results" / "parity.jsonl"
PAGE = HERE.parent / "docs" / "parity-tables.md"
README = HERE.parent / "README.md"
UPDATES = HERE.parent / "docs" / "explanation" / "updates.md"
NAMES = {  # of data sets in short tables
    "MNIST by class": "MNIST, three new digits",
    "digits by class": "8×8 digits, three new",
    "Fashion-MNIST by class": "Fashion-MNIST, three new classes",
    "digits as vectors": "8×8 digits as vectors, an MLP",
    "MNIST turned": "MNIST, new ones turned",
    "Banking77 by intent": "Banking77, 26 new intents",
    "Imagenette by class": "Imagenette, three new classes",
}
KEEL = {  # data sets that were run once, after everything was fixed
    f"KEEL {name}": name
    for name in (
        *("letter", "marketing", "penbased", "satimage"),
        *("segment", "texture", "vehicle", "vowel"),
    )
}
LEAST_GAP = 0.02  # in loss, accuracy or precision: a share of less is a share of noise
HIGHER_IS_BETTER = ("knn_old", "knn_new", "precision_old", "precision_new")
RIVALS = ("ICL", "warm start", "ICL, free")
TITLES = {"ICL": "`ICL()`", "ICL, free": "emphasis alone, Adam at 2e-3"}
PARTS = (
    "ICL",
    "ICL, no emphasis",
    "ICL, no hard negatives",
    "ICL, no protection",
    "ICL, Adam at 4e-3",
    "ICL, all of the change",
    "ICL, tolerance 5 %",
    "ICL, learned learning rates",
)
OTHERS = ("ICL", "warm start", "fine-tuning", "replay", "distillation", "the paper's ICL")

Measures = dict[str, float]
Seeds = dict[int, Measures]


class Rows:
    """Measures by data set, growth ratio, strategy and share, for every seed."""

    def __init__(self, file: Path, where: str = "unseen", head: str = "none") -> None:
        self.found: dict[tuple[str, float, str, float], Seeds] = {}
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row.get("head", "none") == head:  # rows from before there were heads have none
                place = (row["set"], row["alpha"], row["strategy"], row["share"])
                self.found.setdefault(place, {})[row["seed"]] = row[where]

    def seeds(self, name: str, alpha: float, strategy: str, share: float) -> Seeds:
        return self.found.get((name, alpha, strategy, share), {})

    def floor(self, name: str, alpha: float) -> Seeds:
        return self.seeds(name, alpha, "no update", 0.0)

    def ceiling(self, name: str, alpha: float) -> Seeds:
        return self.seeds(name, alpha, "retraining", 1.0)

    def strategies(self) -> list[str]:
        """All but the ends of the gap, and the grid of retraining's schedules."""
        names = {strategy for _, _, strategy, _ in self.found}
        return sorted(
            n for n in names if n not in ("no update", "retraining") and "retraining, " not in n
        )

    def shares(self, name: str, alpha: float, strategies: Iterable[str]) -> list[float]:
        return sorted(
            {
                s
                for n, a, strategy, s in self.found
                if (n, a) == (name, alpha) and strategy in strategies
            }
        )

    def sets(self) -> dict[str, list[float]]:
        """The growth ratios of each data set."""
        found: dict[str, set[float]] = {}
        for name, alpha, _, _ in self.found:
            found.setdefault(name, set()).add(alpha)
        return {name: sorted(found[name]) for name in sorted(found)}

    def noise(self, name: str, measured: str) -> float:
        """How much retraining differs between seeds: the root mean variance over growth ratios."""
        ends = [self.ceiling(name, alpha) for alpha in self.sets()[name]]
        variances = [
            statistics.variance([one[measured] for one in seeds.values()])
            for seeds in ends
            if len(seeds) > 1
        ]
        return math.sqrt(statistics.mean(variances)) if variances else 0.0


class Column(NamedTuple):
    """What is said of a row, given no update and retraining."""

    title: str
    value: Callable[[Measures, Measures, Measures], float]
    form: str


def gap(measured: str) -> Callable[[Measures, Measures, Measures], float]:
    """The share of the gap between no update and retraining that is closed."""

    def closed(found: Measures, floor: Measures, ceiling: Measures) -> float:
        whole = ceiling[measured] - floor[measured]
        gained = found[measured] - floor[measured]
        return gained / whole if abs(whole) >= LEAST_GAP else math.nan

    return closed


COLUMNS = (
    Column("gap closed on new items: loss", gap("loss_new"), "{:.2f}"),
    Column("kNN", gap("knn_new"), "{:.2f}"),
    Column("precision@10", gap("precision_new"), "{:.2f}"),
    Column(
        "loss of old items against retraining's",
        lambda found, _, ceiling: found["loss_old"] / ceiling["loss_old"] - 1,
        "{:+.1%}",
    ),
    Column(
        "precision@10 of all",
        lambda found, _, ceiling: found["precision"] - ceiling["precision"],
        "{:+.3f}",
    ),
)


def values(rows: Rows, name: str, alpha: float, strategy: str, share: float) -> list[list[float]]:
    """A list over seeds for every column; without what is not finite."""
    found = rows.seeds(name, alpha, strategy, share)
    floors, ceilings = rows.floor(name, alpha), rows.ceiling(name, alpha)
    whole = [(found[s], floors[s], ceilings[s]) for s in found if s in floors and s in ceilings]
    columns = [[column.value(*three) for three in whole] for column in COLUMNS]
    return [[value for value in column if not math.isnan(value)] for column in columns]


def written(form: str, value: float) -> str:
    return form.format(value).replace("-", "−").replace("%", " %")


def spread(numbers: Sequence[float], form: str) -> str:
    if not numbers:
        return "–"
    middle = written(form, statistics.median(numbers))
    if len(numbers) == 1:
        return middle
    return f"{middle} ({written(form, min(numbers))} to {written(form, max(numbers))})"


def cell(columns: list[list[float]]) -> str:
    if not columns[-1]:
        return ""
    parts = [
        written(column.form, statistics.median(numbers)) if numbers else "–"
        for column, numbers in zip(COLUMNS, columns, strict=True)
    ]
    return f"{', '.join(parts[:3])} ({', '.join(parts[3:])})"


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    body = [f"| {' | '.join(line)} |" for line in lines]
    return [f"| {' | '.join(header)} |", "|---" * len(header) + "|", *body, ""]


def show(rows: Rows) -> list[str]:
    """Median, lowest and highest over seeds of every row."""
    lines = []
    for name, alphas in rows.sets().items():
        for alpha in alphas:
            for strategy in rows.strategies():
                for share in rows.shares(name, alpha, [strategy]):
                    columns = values(rows, name, alpha, strategy, share)
                    cells = [
                        spread(numbers, column.form)
                        for column, numbers in zip(COLUMNS, columns, strict=True)
                    ]
                    place = [name, f"{alpha:g}", f"{share:.1%}", strategy, str(len(columns[-1]))]
                    lines.append([*place, *cells])
    header = ["data", "α", "share", "strategy", "seeds", *(column.title for column in COLUMNS)]
    return table(header, lines)


def parity_from(rows: Rows, name: str, alpha: float, strategy: str, judged: Iterable[str]) -> str:
    """The smallest share from which on these measures are on average at retraining's level."""
    ceilings = rows.ceiling(name, alpha)
    enough = None
    for share in reversed(rows.shares(name, alpha, [strategy])):
        found = rows.seeds(name, alpha, strategy, share)
        if not found.keys() >= ceilings.keys():
            continue  # some seeds have more shares than others
        for measured in judged:
            gains = [found[seed][measured] - ceilings[seed][measured] for seed in ceilings]
            better = statistics.mean(gains) * (1 if measured in HIGHER_IS_BETTER else -1)
            if better < -rows.noise(name, measured):
                return "not yet" if enough is None else written("{:.1%}", enough)
        enough = share
    return "" if enough is None else written("{:.1%}", enough)


def parity(rows: Rows) -> list[str]:
    """From which share of retraining's passes on an update is at parity."""
    judged = (HIGHER_IS_BETTER, (*HIGHER_IS_BETTER, "loss_old", "loss_new"))
    lines = []
    for name, alphas in rows.sets().items():
        for alpha in alphas:
            seeds = len(rows.ceiling(name, alpha))
            if seeds < 2:
                continue
            found = [
                parity_from(rows, name, alpha, strategy, names)
                for strategy in ("ICL", "warm start")
                for names in judged
            ]
            tried = ", ".join(f"{share:.1%}" for share in rows.shares(name, alpha, ["ICL"]))
            lines.append([name, f"{alpha:g}", str(seeds), *found, tried.replace("%", " %")])
    strategies = ("`ICL()`", "warm start")
    header = [
        f"{name}: {what}" for name in strategies for what in ("kNN, precision@10", "and loss")
    ]
    return table(["data", "α", "seeds", *header, "shares tried"], lines)


def everything(rows: Rows, name: str) -> list[str]:
    """Every growth ratio and share of a data set."""
    strategies = [s for s in RIVALS if any(key[0] == name and key[2] == s for key in rows.found)]
    lines = []
    for alpha in rows.sets()[name]:
        for share in rows.shares(name, alpha, strategies):
            columns = [values(rows, name, alpha, strategy, share) for strategy in strategies]
            seeds = {len(column[-1]) for column in columns} - {0}
            count = " / ".join(str(number) for number in sorted(seeds))
            cells = [cell(column) for column in columns]
            lines.append([f"{alpha:g}", written("{:.1%}", share), count, *cells])
    return table(["α", "share", "seeds", *(TITLES.get(s, s) for s in strategies)], lines)


def side_by_side(rows: Rows, alpha: float, strategies: Sequence[str]) -> list[str]:
    """These strategies, where all of them were run."""
    lines = []
    for name in rows.sets():
        for share in rows.shares(name, alpha, strategies[2:4]):
            cells = [cell(values(rows, name, alpha, strategy, share)) for strategy in strategies]
            lines.append([name, written("{:.1%}", share), *cells])
    titles = [TITLES.get(name, name.removeprefix("ICL, ")) for name in strategies]
    return table(["data", "share", *titles], lines)


def emphasised(rows: Rows) -> list[str]:
    """Retraining with an update's emphasis, beside plain retraining: absolute figures."""
    measured = ("precision_new", "precision_old", "loss_new", "loss_old")
    lines = []
    for name, alphas in rows.sets().items():
        for alpha in alphas:
            found = rows.seeds(name, alpha, "retraining with emphasis", 1.0)
            plain = {seed: rows.ceiling(name, alpha)[seed] for seed in found}
            if found:
                cells = [
                    f"{statistics.median(one[what] for one in of.values()):.3f}"
                    for what in measured
                    for of in (plain, found)
                ]
                lines.append([name, f"{alpha:g}", str(len(found)), *cells])
    titles = ("precision@10 of new items", "of old items", "loss of new items", "of old items")
    header = [f"{title}: {of}" for title in titles for of in ("retraining", "with emphasis")]
    return table(["data", "α", "seeds", *header], lines)


def found_again(rows: Rows, alpha: float, share: float, names: dict[str, str] = NAMES) -> list[str]:
    """Precision@10 in figures, of new and of old items."""
    lines = []
    for name, title in names.items():
        line = [title]
        for kind in ("new", "old"):
            parts = [
                rows.seeds(name, alpha, "warm start", share),
                rows.seeds(name, alpha, "ICL", share),
                rows.ceiling(name, alpha),
            ]
            if kind == "new":
                parts.insert(0, rows.floor(name, alpha))
            seeds = set.intersection(*(set(part) for part in parts))
            middle = [statistics.median(p[s][f"precision_{kind}"] for s in seeds) for p in parts]
            line += [f"{value:.3f}" for value in middle]
        lines.append(line)
    strategies = ["warm start", "**`ICL()`**", "retraining"]
    header = ["", "new items: no update", *strategies, f"old items: {strategies[0]}"]
    return table([*header, *strategies[1:]], lines)[:-1]


def in_short(rows: Rows, places: Sequence[tuple[float, float]]) -> list[str]:
    """The update beside warm start at a few growth ratios and shares."""
    lines = []
    for alpha, share in places:
        for name, title in NAMES.items():
            cells = [cell(values(rows, name, alpha, s, share)) for s in ("ICL", "warm start")]
            if all(cells):
                lines.append([f"{alpha:g}", written("{:.1%}", share), title, *cells])
    return table(["α", "share", "data", "`ICL()`", "warm start"], lines)[:-1]


def with_table(text: str, lines: Sequence[str], name: str = "parity") -> str:
    """A page with this table between its two marks."""
    start, end = f"<!-- {name}: generated -->\n", "<!-- end -->"
    head, rest = text.split(start, 1)
    return head + start + "\n".join(lines) + "\n" + end + rest.split(end, 1)[1]


def page(rows: Rows) -> str:
    about = """
# Updates against retraining: every figure

Generated from `benchmarks/results/parity.jsonl` by `python benchmarks/parity_tables.py page`;
[Updates](explanation/updates.md) says what follows from it. Run a row again, or more of them:

```sh
# needs INCONTRAST_DATA, a folder with MNIST/*.gz, TU/*.zip and text; for some sets
# INCONTRAST_IMAGENETTE, INCONTRAST_FASHION or INCONTRAST_KEEL (benchmarks/parity_sets.py)
.venv/bin/python benchmarks/parity.py run --set "MNIST by class" --alpha 0.05 --seed 0
.venv/bin/python benchmarks/parity_tables.py show   # each figure with its range over seeds
```

An update has a share of retraining's forward passes. Everything is measured on items that no
encoder has seen, with X′ as the corpus of searches; medians over seeds. Settings were chosen on
*digits by class* and *MNIST by class* (and, for random splits, *digits at random* and *MUTAG*);
all other sets were only judged.

## At parity from which share on

The smallest share of retraining's forward passes from which on an update is on average no worse
than retraining, beyond the noise of seeds, in all of: kNN accuracy and precision@10 of old and of
new items; then also the evaluation loss of both. The noise is the standard deviation of retraining
over seeds. "Not yet": not with the largest share that was tried.
"""
    cells = """
## Every set, growth ratio and share

Each cell: the share of the gap between no update and retraining that is closed on new items, by
evaluation loss, kNN accuracy and precision@10 (1 is retraining, – where the gap is below 0.02); in
parentheses the loss of old items against retraining's, and precision@10 over all items minus
retraining's.
"""
    parts_of = """
## What each part of the rule does

The default rule with one part left out or replaced, α = 0.05; cells as above.
"""
    others = """
## The rivals

Other strategies with as many forward passes, α = 0.05; cells as above.
"""
    emphasis = """
## Retraining with the emphasis of an update

Plain retraining gives rare new items their share of the gradient, which is no ceiling: with an
update's emphasis and steps it finds new items better, and old ones have a higher loss.
"""
    sections = [[about.strip(), "", *parity(rows)], [cells.strip(), ""]]
    sections += [[f"### {name}", "", *everything(rows, name)] for name in rows.sets()]
    sections += [[parts_of.strip(), "", *side_by_side(rows, 0.05, PARTS)]]
    sections += [[others.strip(), "", *side_by_side(rows, 0.05, OTHERS)]]
    sections += [[emphasis.strip(), "", *emphasised(rows)]]
    return "\n".join(line for section in sections for line in section).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["show", "page"])
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--where", choices=["unseen", "stored"], default="unseen")
    parser.add_argument("--head", default="none")
    parser.add_argument("--check", action="store_true", help="fail if the page is not of the rows")
    arguments = parser.parse_args()
    if arguments.what == "show":
        print("\n".join(show(Rows(arguments.rows, arguments.where, arguments.head))))
        return
    rows = Rows(arguments.rows)
    short = in_short(rows, ((0.01, 0.015), (0.05, 0.05), (0.05, 0.12), (0.3, 0.25)))
    updates = with_table(UPDATES.read_text(encoding="utf-8"), short)
    pages = {
        PAGE: page(rows),
        README: with_table(README.read_text(encoding="utf-8"), found_again(rows, 0.05, 0.12)),
        UPDATES: with_table(updates, found_again(rows, 0.05, 0.12, KEEL), "keel"),
    }
    for file, text in pages.items():
        if not arguments.check:
            file.write_text(text, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != text:
            sys.exit(f"{file.name} is not what its rows give: python {Path(__file__).name} page")


if __name__ == "__main__":
    main()
