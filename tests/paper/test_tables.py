"""The paper's tables, figures and pages, from rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from incontrast import Objective
from paper.__main__ import app
from paper.grid import describe
from paper.longer import longer_table
from paper.markdown import table_as_markdown
from paper.names import GRAPHS, IMAGES, RETRAINING, SHIFTED
from paper.overview import overview_table
from paper.page import table_sections
from paper.row_file import append_row, key_of, read_rows
from paper.sets import SMALL
from paper.speed_tables import parity_table, speed_up_table, standings_table, sweep_table
from paper.strategies import STRATEGIES, retraining
from paper.summary import Summary
from paper.tables import bias_table, cost_table, search_table
from paper.write_pages import DOCS, LONGER, ROWS, pages, tables_page, with_tables

EXPECTED = Path(__file__).with_name("published_tables.json")


@pytest.fixture(scope="module")
def summary(whole_grid) -> Summary:
    return Summary(whole_grid)


@pytest.fixture(scope="module")
def published_rows() -> tuple[Summary, Summary]:
    return Summary(read_rows(ROWS)), Summary(read_rows(LONGER))


def cells(table, strategy: str):
    return next(row for row in table.rows if row[0].text == strategy)


def test_published_tables_are_those_that_were_published_first(published_rows) -> None:
    """All figures, notes and marks: the file was written by the code that first published them."""
    summary, longer = published_rows
    tables = [table for _, section in table_sections(summary) for table in section]
    tables += [overview_table(summary), longer_table(summary, longer)]
    made = {table.title: table_as_markdown(table).splitlines() for table in tables}
    expected = json.loads(EXPECTED.read_text(encoding="utf-8"))
    assert len(expected) == 18
    for title, lines in expected.items():
        assert made[title] == lines, title


def test_published_rows_are_of_sets_and_strategies_as_they_are() -> None:
    """A table must not show what some earlier default did, and no run must be repeated."""
    for row in read_rows(ROWS):
        settings, name, data = row["settings"], row["strategy"], SMALL[row["set"]]
        assert row["key"] == key_of(settings)
        if row["kind"] != "run":
            continue
        own = data.settings()
        assert {key: settings[key] for key in own} == own, (row["set"], row["key"])
        assert settings["domain"] == describe(data.domain), row["key"]
        assert settings["objective"] == describe(Objective()), row["key"]
        fit_strategy = retraining(data, settings["fit_strategy"]["lr"])
        assert settings["fit_strategy"] == describe(fit_strategy), row["key"]
        if name == RETRAINING:
            assert settings["strategy"] == settings["fit_strategy"]
        else:
            lr = settings["strategy"]["lr"]
            strategy = STRATEGIES[name].make(lr if isinstance(lr, float) else 1e-3)
            assert settings["strategy"] == describe(strategy), (row["set"], name, row["key"])


def test_the_pages_fit_the_rows() -> None:
    """What the documentation shows is what the rows say."""
    results = (DOCS / "results.md").read_text(encoding="utf-8")
    assert "<!-- table: overview -->" in results
    for page, text in pages().items():
        assert page.read_text(encoding="utf-8") == text, f"{page.name}: run `make results`"


def test_every_figure_of_tables_3_and_4_has_the_published_one_beside_it(summary: Summary) -> None:
    for number, first in ((3, "paper 11.2×"), (4, "paper 10.1×")):
        table = speed_up_table(summary, number)
        mine = cells(table, "paper's ICL")
        assert mine[1].text == "10.0×"
        assert mine[1].note.endswith(first)
        assert all("paper " in cell.note for cell in mine[1:])
        assert cells(table, "ICL()")[1].note.find("paper") == -1
    assert cells(speed_up_table(summary, 3), "fine-tuning")[1].mark == "best"
    assert cells(speed_up_table(summary, 3), "fine-tuning")[-2].note == "paper 2.3"


def test_parity_tables_say_never(summary: Summary) -> None:
    table = parity_table(summary, IMAGES, "images")
    assert cells(table, "paper's ICL")[1].text == "never"
    assert cells(table, "paper's ICL")[1].note == "2 of 2 never"
    mine = cells(table, "ICL()")[1]
    assert mine.text == "20.0×"
    assert mine.mark == "best"
    assert mine.note.endswith("paper 11.2×")
    assert len(parity_table(summary, SHIFTED, "shift").columns) == 5


def test_a_table_without_rows_still_shows_the_published_figures(row) -> None:
    table = speed_up_table(Summary([row("retraining"), row("paper")]), 3)
    assert cells(table, "paper's ICL")[1].text == "–"
    assert cells(table, "paper's ICL")[1].note == "paper 11.2×"


def test_bias_and_search(summary: Summary) -> None:
    bias = bias_table(summary)
    assert [cell.text for cell in bias.rows[0][1:]] == [
        *("0.100", "0.200", "0.100", "0.200", "0", "0", "0", "0", "0.90"),
    ]
    search = search_table(summary)
    assert search.rows[0][1].text == "0.0001"
    assert search.rows[0][1].note == "2 trials, 80 s"


def test_seeds_that_were_at_parity_before_are_left_out(row) -> None:
    rows = []
    for seed, before in enumerate((None, (0.0, 0), None)):
        rows += [
            row("retraining", seed=seed, reached=(100.0, 6000)),
            row("no-update", seed=seed, best=None, reached=before),
            row("icl", seed=seed, reached=(1.0, 1) if before else (50.0, 3000)),
        ]
        if before:
            rows[-3]["parity"]["before"] = dict(rows[-3]["parity"]["target"])
    table = parity_table(Summary(rows), GRAPHS, "graphs")
    assert cells(table, "ICL()")[1].text == "2.0×"
    assert "1 of 3 at parity before" in cells(table, "ICL()")[1].note
    assert cells(table, "no update")[1].text == "1 of 3 at once"


def test_who_comes_to_parity_at_a_glance(row) -> None:
    rows = []
    for ratio in (0.3, 0.5, 0.7):
        for seed in range(3):
            place = {"ratio": ratio, "seed": seed}
            rows.append(row("retraining", reached=(100.0, 1), **place))
            rows.append(row("icl", reached=(20.0 if ratio < 0.6 else 50.0, 1), **place))
            rows.append(row("replay", reached=(10.0, 1) if seed or ratio > 0.4 else None, **place))
            rows.append(row("fine-tuning", reached=(10.0, 1), after=(0.5, 0.3), **place))
            rows[-1]["parity"]["target"] = rows[-2]["parity"]["target"]
    table = standings_table(Summary(rows))
    shown = {cells[0].text: [cell.text for cell in cells[1:]] for cells in table.rows}
    assert shown == {
        "ICL()": ["3 of 3", "3 of 3", "5.0×", "0 of 3"],
        "replay": ["2 of 3", "3 of 3", "10.0×", "0 of 3"],
        "fine-tuning": ["0 of 3", "3 of 3", "10.0×", "3 of 3"],  # at parity, and lost again
    }


def test_the_sweep_has_a_table(summary: Summary) -> None:
    table = sweep_table(summary)
    assert [cells[0].text for cells in table.rows][:2] == ["PROTEINS, α = 0.1", "PROTEINS, α = 0.2"]
    assert len(table.rows) == 9
    assert [cell.text for cell in table.rows[0][1:]] == ["2", "11.1×", "20.0×"]


def test_where_there_is_nothing_to_gain_nobody_is_bold(row) -> None:
    rows = [row("retraining", set="mnist-class"), row("icl", set="mnist-class")]
    rows[0]["parity"]["before"] = dict(rows[0]["parity"]["target"])
    shown = overview_table(Summary(rows)).rows[-1]
    assert [cell.text for cell in shown[-2:]] == ["at parity before"] * 2
    assert "best" not in [cell.mark for cell in shown[-2:]]


def test_one_seed_does_not_beat_five(row) -> None:
    rows = [row("retraining", seed=seed, reached=(100.0, 6000)) for seed in range(5)]
    rows += [row("icl", seed=seed, reached=(50.0, 1)) for seed in range(5)]
    rows.append(row("replay", seed=0, reached=(10.0, 1)))
    table = parity_table(Summary(rows), GRAPHS, "graphs")
    assert (cells(table, "replay")[1].mark, cells(table, "ICL()")[1].mark) == ("", "best")
    assert "1 of 5 seeds run" in cells(table, "replay")[1].note


def test_what_was_at_parity_and_is_no_longer_is_noted(row) -> None:
    rows = [row("retraining", reached=(100.0, 6000)), row("icl", reached=(50.0, 1))]
    rows.append(row("fine-tuning", reached=(10.0, 1)))
    rows[2]["parity"]["after"] = {"old": 0.5, "new": 0.2, "all": 0.4}
    table = parity_table(Summary(rows), GRAPHS, "graphs")
    assert "1 of 1 lost again" in cells(table, "fine-tuning")[1].note
    assert "lost" not in cells(table, "ICL()")[1].note


@pytest.mark.parametrize(("above", "lost"), [(1.03, False), (1.05, True)])
def test_a_little_above_retraining_is_not_lost(row, above: float, lost: bool) -> None:
    rows = [row("retraining", reached=(100.0, 6000)), row("icl", reached=(50.0, 1))]
    rows[1]["parity"]["after"] = {"old": 0.3 * above, "new": 0.3, "all": 0.3}
    note = cells(parity_table(Summary(rows), GRAPHS, "graphs"), "ICL()")[1].note
    assert ("lost" in note) is lost


def test_only_what_comes_to_parity_with_every_seed_is_bold(row) -> None:
    rows = [row("retraining", seed=seed, reached=(100.0, 6000)) for seed in range(3)]
    rows += [row("replay", seed=seed, reached=(1.0, 1) if seed else None) for seed in range(3)]
    rows += [row("icl", seed=seed, reached=(50.0, 1)) for seed in range(3)]
    table = parity_table(Summary(rows), GRAPHS, "graphs")
    replay, ours = (cells(table, name)[1] for name in ("replay", "ICL()"))
    assert (replay.text, replay.mark) == ("100.0×", "")
    assert "1 of 3 never" in replay.note
    assert ours.mark == "best"


@pytest.mark.parametrize("seeds", [1, 2])
def test_one_seed_that_was_cut_short_makes_a_bound(row, seeds: int) -> None:
    rows = []
    for seed in range(seeds):
        rows += [row("retraining", seed=seed, best=(100.0, 1)), row("icl", seed=seed)]
        rows.append(row("paper", seed=seed))
    rows[-1]["paper"]["stopped"] = "limit"
    table = speed_up_table(Summary(rows), 4)
    assert cells(table, "paper's ICL")[1].text == "≤ 10.0×"
    assert cells(table, "ICL()")[1].text == "10.0×"


def test_memory_is_shown_where_it_was_measured(row) -> None:
    rows = [row("retraining"), row("icl"), row("retraining", ratio=0.5), row("icl", ratio=0.5)]
    assert [column.title for column in cost_table(Summary(rows)).columns[1:]] == ["time"] * 2
    rows[1]["cost"] = {"seconds": 40.0, "added_memory": 3 * 2**20}
    table = cost_table(Summary(rows))
    assert [column.title for column in table.columns[1:]] == ["time", "memory"] * 2
    assert [cell.text for cell in table.rows[1][1:]] == ["30.0 s", "3 MiB", "30.0 s", "–"]


def test_wide_tables_are_transposed_in_markdown(summary: Summary) -> None:
    wide, long = (parity_table(summary, sets, "") for sets in (GRAPHS, SHIFTED))
    assert table_as_markdown(long).startswith("| strategy | MNIST by class, α = 0.3 time |")
    assert table_as_markdown(wide).startswith("|  | no update | fine-tuning | replay |")
    assert len(table_as_markdown(wide).splitlines()) == 2 + 12


def test_longer_training_is_compared_on_the_same_seeds(row) -> None:
    short, long = [], []
    for seed, slower in ((0, 1.0), (1, 3.0)):
        short += [row("retraining", seed=seed, reached=(100.0, 1)), row("icl", seed=seed)]
        short[-1]["parity"]["reached"]["seconds"] = 50.0 / slower
    long += [row("retraining", reached=(800.0, 1)), row("icl", reached=(100.0, 1))]
    for each in long:
        each["settings"]["max_epochs"] = 900
    table = longer_table(Summary(short), Summary(long))
    texts = [[cell.text for cell in cells] for cells in table.rows]
    assert texts == [
        ["PROTEINS, α = 0.3", "200", "1", "25 %", "+60 %", "2.0×", "10.1×"],
        ["PROTEINS, α = 0.3", "900", "1", "25 %", "+60 %", "8.0×", "10.1×"],
    ]
    page = tables_page(Summary(short), Summary(long))
    assert "### Trained longer" in page
    assert "### Table 4" in page


def test_pages_keep_their_own_words(summary: Summary) -> None:
    tables = {"overview": overview_table(summary)}
    page = "before\n<!-- table: overview -->\nstale\n<!-- end of table -->\nafter\n"
    written = with_tables(page, tables)
    assert written.startswith("before\n")
    assert written.endswith("\nafter\n")
    assert "stale" not in written
    assert "| warm start |" in written
    assert with_tables(written, tables) == written
    with pytest.raises(ValueError, match="there is no table 'overview': choose from other"):
        with_tables(page, {"other": overview_table(summary)})


def test_show_and_report_from_the_command_line(whole_grid, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    for row in whole_grid:
        append_row(rows, row)
    shown = CliRunner().invoke(app, ["show", "--rows", str(rows)])
    assert shown.exit_code == 0, shown.output
    for word in ("Table 3", "Table 4", "paper 11.2×", "paper 2.6×", "confirmed", "never", "sweep"):
        assert word in shown.output
    stray = dict(whole_grid[0], settings=whole_grid[0]["settings"] | {"max_epochs": 5})
    append_row(rows, stray)
    command = ["show", "--rows", str(rows), "--part", "table-4", "--part", "parity"]
    part = CliRunner().invoke(app, command)
    assert part.exit_code == 0, part.output
    there = [word in part.output for word in ("Table 4", "to parity", "Table 3", "Claims")]
    assert there == [True, True, False, False]
    assert "Set aside: 1 rows" in part.output
    out = tmp_path / "paper.html"
    written = CliRunner().invoke(app, ["report", "--rows", str(rows), "--out", str(out)])
    assert written.exit_code == 0, written.output
    text = out.read_text(encoding="utf-8")
    for word in (
        *("Table 3: speed-up", "Table 4: speed-up", "Table 2, measured", "Data sets and settings"),
        *("The sweep of α", "SVM accuracy on old and new data", "Loss against time", "Training:"),
        *("abacus", "Time to parity with retraining", "The search for learning rates", "Claims"),
    ):
        assert word in text, word
    assert text.count("<svg") == 4
    wrong = CliRunner().invoke(app, ["report", "--rows", str(rows), "--out", str(tmp_path)])
    assert (wrong.exit_code, "is a folder: name a file" in wrong.output) == (2, True)


def test_nothing_to_show_is_an_error_that_says_so(tmp_path: Path) -> None:
    for command in ("show", "report"):
        shown = CliRunner().invoke(app, [command, "--rows", str(tmp_path / "none.jsonl")])
        assert shown.exit_code == 3
        assert "none.jsonl: name one with --rows" in " ".join(shown.output.split())
        shown = CliRunner().invoke(app, [command, "--rows", str(tmp_path)])
        assert shown.exit_code == 2
        assert "is a folder: --rows names a file" in " ".join(shown.output.split())
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    shown = CliRunner().invoke(app, ["show", "--rows", str(empty)])
    assert "has no finished run of scale 'small'" in " ".join(shown.output.split())
    shown = CliRunner().invoke(app, ["show", "--scale", "huge"])
    assert (shown.exit_code, "choose from small, paper" in shown.output) == (2, True)
    damaged = tmp_path / "rows.jsonl"
    damaged.write_text("nonsense\n{}\n\n")
    shown = CliRunner().invoke(app, ["show", "--rows", str(damaged)])
    assert shown.exit_code == 5
    assert "line 1 is not a row" in shown.output
