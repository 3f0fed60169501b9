"""The paper's tables, claims, figures and pages, from rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from incontrast.cli.app import app
from incontrast.loss import Objective
from incontrast.report import render
from paper.claims import claims_of_the_paper
from paper.grid import describe
from paper.longer import longer_table
from paper.markdown import table_as_markdown
from paper.names import GRAPHS, IMAGES, SHIFTED
from paper.own_claims import claims_of_ours
from paper.page import paper_page
from paper.pages import BEGIN, END, overview_table, results_page, with_overview
from paper.row_file import append_row, read_rows
from paper.sets import SMALL
from paper.speed_tables import (
    level_table,
    level_tables,
    speed_up_table,
    standings_table,
    sweep_table,
)
from paper.strategies import LINE_UP, RETRAINING, retraining
from paper.summary import Summary
from paper.tables import bias_table, cost_table, loss_tables, search_table

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def summary(whole_grid) -> Summary:
    return Summary(whole_grid)


def cells(table, strategy: str):
    return next(row for row in table.rows if row[0].text == strategy)


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


def test_our_tables_say_never(summary: Summary) -> None:
    table = level_table(summary, IMAGES, "images")
    assert cells(table, "paper's ICL")[1].text == "never"
    assert cells(table, "paper's ICL")[1].note == "2 of 2 never"
    mine = cells(table, "ICL()")[1]
    assert mine.text == "20.0×"
    assert mine.mark == "best"
    assert mine.note.endswith("paper 11.2×")
    assert len(level_table(summary, SHIFTED, "shift").columns) == 5


def test_a_table_without_rows_still_shows_the_published_figures(row) -> None:
    table = speed_up_table(Summary([row("retraining"), row("paper")]), 3)
    assert cells(table, "paper's ICL")[1].text == "–"
    assert cells(table, "paper's ICL")[1].note == "paper 11.2×"
    assert table.caption.startswith("No rows yet.")


def test_other_tables(summary: Summary) -> None:
    bias = bias_table(summary)
    assert [cell.text for cell in bias.rows[0][1:]] == [
        *("0.100", "0.200", "0.100", "0.200", "0", "0", "0", "0", "0.90"),
    ]
    search = search_table(summary)
    assert search.rows[0][1].text == "0.0001"
    assert search.rows[0][1].note == "2 trials, 80 s"


def test_claims_follow_from_the_rows(summary: Summary) -> None:
    standing = [verdict.standing for verdict in claims_of_the_paper(summary)]
    assert standing == [
        "holds",  # faster than retraining: 10 times
        "fails",  # the fastest on images: w/o M is
        "fails",  # up to 16.7 times
        "holds",  # accuracy within the band
        "fails",  # never level at random splits
        "fails",  # nor under shift
        "holds",  # the old loss stays
        "fails",  # faster without meta-optimisation
        "holds",  # faster with learned rates
        "holds",  # NCE-II alone
        "holds",  # no bias
    ]
    ours = claims_of_ours(summary)
    assert [verdict.standing for verdict in ours] == [
        *("holds", "mixed", "holds", "holds", "holds"),
        "fails",  # no fall with α
    ]
    assert "In 12 of 12 cells" in ours[0].because
    assert "In 9 of 12 cells that decide it" in ours[1].because


def test_where_ours_is_behind_the_report_says_how_far_and_why(row) -> None:
    rows = []
    for name in (*IMAGES, *GRAPHS):
        for ratio in (0.3, 0.5, 0.7):
            behind = name == "mnist-2"
            retraining = row("retraining", set=name, ratio=ratio, reached=(100.0, 1))
            retraining["paper"]["stopped"] = "epochs" if behind else "patience"
            reached = None if ratio == 0.5 else (50.0, 1)
            ours = row("icl", set=name, ratio=ratio, reached=reached if behind else (1.0, 1))
            ours["ours"]["before"]["all"] = ours["ours"]["target"]["all"] * (1.2 if behind else 1)
            ours["ours"]["after"] = dict(ours["ours"]["target"], new=0.3 * 1.042)
            rows += [retraining, ours]
    verdict = claims_of_ours(Summary(rows))[0]
    assert verdict.standing == "mixed"
    assert "In 9 of 12 cells" in verdict.because
    assert (
        "MNIST-2 0.3 (2.00×, paper 14.2×), MNIST-2 0.5 (never: new items 4.2 % above, paper 16.7×)"
    ) in verdict.because
    assert "was 20 % above retraining's (median of the cells), and 3 of 3" in verdict.because
    assert "Where it is ahead: 0 % above retraining's (median of the cells), and 0 of 9" in (
        verdict.because
    )


def test_an_update_that_broke_off_everywhere_is_no_reason_to_break_off(row) -> None:
    rows = []
    for ratio in (0.3, 0.5, 0.7):
        broken = row("icl", ratio=ratio)
        broken = {k: v for k, v in broken.items() if k not in ("paper", "ours", "curve")}
        rows += [row("retraining", ratio=ratio), broken | {"failed": "nan"}]
    assert "an unknown share above" in claims_of_ours(Summary(rows))[0].because


def test_a_bound_on_the_wrong_side_decides_nothing(row) -> None:
    rows = []
    for name in (*IMAGES, *GRAPHS):
        for ratio in (0.3, 0.5, 0.7):
            cut = row("paper", set=name, ratio=ratio, best=(10.0 if ratio < 0.6 else 200.0, 10))
            cut["paper"]["stopped"] = "limit"
            rows += [row("retraining", set=name, ratio=ratio, best=(100.0, 100)), cut]
    faster = claims_of_the_paper(Summary(rows))[0]
    assert faster.standing == "open"  # 10 times at most, which may be less than once
    assert "faster in 0 of 4 cells that decide it" in faster.because
    assert "Undecided, cut short or not run: IMAGENET-2 0.3" in faster.because
    assert "0.5× to 0.5×" in faster.because  # of those that decide
    assert "That is 4 of 12: too few to decide." in faster.because


def test_seeds_that_have_nothing_to_reach_are_left_out(row) -> None:
    rows = []
    for seed, level in enumerate((None, (0.0, 0), None)):
        rows += [
            row("retraining", seed=seed, reached=(100.0, 6000)),
            row("inference", seed=seed, best=None, reached=level),
            row("icl", seed=seed, reached=(1.0, 1) if level else (50.0, 3000)),
        ]
        if level:
            rows[-3]["ours"]["before"] = dict(rows[-3]["ours"]["target"])
    table = level_table(Summary(rows), GRAPHS, "graphs")
    assert cells(table, "ICL()")[1].text == "2.0×"
    assert "1 of 3 level before" in cells(table, "ICL()")[1].note
    assert cells(table, "inference")[1].text == "1 of 3 at once"


def test_who_comes_to_the_level_at_a_glance(row) -> None:
    rows = []
    for ratio in (0.3, 0.5, 0.7):
        for seed in range(3):
            place = {"ratio": ratio, "seed": seed}
            rows.append(row("retraining", reached=(100.0, 1), **place))
            rows.append(row("icl", reached=(20.0 if ratio < 0.6 else 50.0, 1), **place))
            rows.append(row("replay", reached=(10.0, 1) if seed or ratio > 0.4 else None, **place))
            rows.append(row("fine-tuning", reached=(10.0, 1), after=(0.5, 0.3), **place))
            rows[-1]["ours"]["target"] = rows[-2]["ours"]["target"]
    shown = {cells[0].text: [cell.text for cell in cells[1:]] for cells in _glance(rows)}
    assert shown == {
        "ICL()": ["3 of 3", "3 of 3", "5.0×", "0 of 3"],
        "replay": ["2 of 3", "3 of 3", "10.0×", "0 of 3"],
        "fine-tuning": ["0 of 3", "3 of 3", "10.0×", "3 of 3"],  # level, and lost again
    }


def _glance(rows):
    return standings_table(Summary(rows)).rows


def test_the_sweep_has_a_table(summary: Summary) -> None:
    table = sweep_table(summary)
    assert [cells[0].text for cells in table.rows][:2] == ["PROTEINS, α = 0.1", "PROTEINS, α = 0.2"]
    assert len(table.rows) == 9
    assert [cell.text for cell in table.rows[0][1:]] == ["2", "11.1×", "20.0×"]


def test_seeds_that_were_level_before_do_not_make_a_claim_hold(row) -> None:
    rows = []
    for name in SHIFTED:
        for seed in range(5):
            rows += [
                row(one, set=name, seed=seed, reached=(1.0, 1)) for one in ("retraining", "paper")
            ]
            if seed < 3:
                rows[-2]["ours"]["before"] = dict(rows[-2]["ours"]["target"])
            else:
                rows[-1]["ours"]["reached"] = None
    assert claims_of_the_paper(Summary(rows))[5].standing == "fails", "none that had to get there"
    for each in rows:
        each["ours"]["before"] = dict(each["ours"]["target"])
        each["ours"]["reached"] = {"seconds": 1.0, "epochs": 1.0, "passes": 1}
    assert claims_of_the_paper(Summary(rows))[5].standing == "open"


def test_a_rival_that_was_not_run_is_not_beaten(row) -> None:
    rows = []
    for ratio in (0.3, 0.5, 0.7):
        for name in IMAGES:
            rows.append(row("retraining", set=name, ratio=ratio, best=(100.0, 100)))
            rows.append(row("paper", set=name, ratio=ratio))
    fastest = claims_of_the_paper(Summary(rows))[1]
    assert fastest.standing == "open"
    assert "No cell decides it." in fastest.because


def test_where_there_is_nothing_to_reach_nobody_is_bold(row) -> None:
    rows = [row("retraining", set="mnist-class"), row("icl", set="mnist-class")]
    rows[0]["ours"]["before"] = dict(rows[0]["ours"]["target"])
    shown = overview_table(Summary(rows)).rows[-1]
    assert [cell.text for cell in shown[-2:]] == ["level before"] * 2
    assert [cell.mark for cell in shown[-2:]] == ["", ""]


def test_one_seed_does_not_beat_five(row) -> None:
    rows = [row("retraining", seed=seed, reached=(100.0, 6000)) for seed in range(5)]
    rows += [row("icl", seed=seed, reached=(50.0, 1)) for seed in range(5)]
    rows.append(row("replay", seed=0, reached=(10.0, 1)))
    table = level_table(Summary(rows), GRAPHS, "graphs")
    assert (cells(table, "replay")[1].mark, cells(table, "ICL()")[1].mark) == ("", "best")
    assert "1 of 5 seeds run" in cells(table, "replay")[1].note


def test_what_was_level_and_is_no_longer_is_told(row) -> None:
    rows = [row("retraining", reached=(100.0, 6000)), row("icl", reached=(50.0, 1))]
    rows.append(row("fine-tuning", reached=(10.0, 1)))
    rows[2]["ours"]["after"] = {"old": 0.5, "new": 0.2, "all": 0.4}
    table = level_table(Summary(rows), GRAPHS, "graphs")
    assert "1 of 1 lost again" in cells(table, "fine-tuning")[1].note
    assert "lost" not in cells(table, "ICL()")[1].note


def test_a_little_above_the_level_is_not_lost(row) -> None:
    for above, lost in ((1.03, False), (1.05, True)):
        rows = [row("retraining", reached=(100.0, 6000)), row("icl", reached=(50.0, 1))]
        rows[1]["ours"]["after"] = {"old": 0.3 * above, "new": 0.3, "all": 0.3}
        assert ("lost" in cells(level_table(Summary(rows), GRAPHS, "graphs"), "ICL()")[1].note) is (
            lost
        )


def test_only_what_gets_there_with_every_seed_is_bold(row) -> None:
    rows = [row("retraining", seed=seed, reached=(100.0, 6000)) for seed in range(3)]
    rows += [row("replay", seed=seed, reached=(1.0, 1) if seed else None) for seed in range(3)]
    rows += [row("icl", seed=seed, reached=(50.0, 1)) for seed in range(3)]
    table = level_table(Summary(rows), GRAPHS, "graphs")
    replay, ours = (cells(table, name)[1] for name in ("replay", "ICL()"))
    assert (replay.text, replay.mark) == ("100.0×", "")
    assert "1 of 3 never" in replay.note
    assert ours.mark == "best"


def test_a_run_that_was_cut_short_gives_a_bound(row) -> None:
    rows = [row("retraining", best=(100.0, 1)), row("paper"), row("icl")]
    rows[0]["paper"]["stopped"] = "epochs"
    rows[1]["paper"]["stopped"] = "limit"
    for each in rows:
        each["settings"]["limit"] = 0.25
    table = speed_up_table(Summary(rows), 4)
    assert cells(table, "paper's ICL")[1].text == "≤ 10.0×"
    assert cells(table, "ICL()")[1].text == "10.0×"
    assert "25 % of retraining's passes for an update" in table.caption
    assert "ended by its number of epochs in 1 of 1 runs" in table.caption


def test_one_seed_that_was_cut_short_makes_a_bound(row) -> None:
    rows = []
    for seed in range(2):
        rows += [row("retraining", seed=seed, best=(100.0, 1)), row("paper", seed=seed)]
    rows[-1]["paper"]["stopped"] = "limit"
    assert cells(speed_up_table(Summary(rows), 4), "paper's ICL")[1].text == "≤ 10.0×"


@pytest.mark.parametrize(
    ("seconds", "cut", "standing"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], (), "holds"),  # ever slower
        ([6.0, 5.0, 4.0, 3.0, 2.0, 1.0], (), "fails"),
        ([6.0, 5.0, 4.0, 3.0, 2.0, 99.0], (5,), "fails"),  # a bound says nothing
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], (4, 5), "open"),  # too few are left
    ],
)
def test_the_advantage_shrinks_or_it_does_not(row, seconds, cut, standing) -> None:
    rows = []
    for number, (ratio, time) in enumerate(
        zip((0.1, 0.3, 0.5, 0.7, 0.8, 0.9), seconds, strict=True)
    ):
        rows += [row("retraining", ratio=ratio), row("icl", ratio=ratio, best=(time, 1))]
        if number in cut:
            rows[-1]["paper"]["stopped"] = "limit"
    verdict = claims_of_ours(Summary(rows))[-1]
    assert verdict.standing == standing
    if standing == "open":
        assert "cut short: 4 of 6 on PROTEINS. Too few." in verdict.because
    else:
        assert f"over {6 - len(cut)} of 6, {6 - len(cut)} of them with one seed" in verdict.because


def test_where_retraining_was_ended_by_its_epochs_captions_and_claims_say_so(row) -> None:
    rows = []
    for name in (*IMAGES, *GRAPHS):
        for ratio in (0.3, 0.5, 0.7):
            rows += [row(one, set=name, ratio=ratio) for one in ("retraining", "paper", "icl")]
            rows[-3]["paper"]["stopped"] = "epochs"
    summary = Summary(rows)
    for table in (*level_tables(summary), *loss_tables(summary), speed_up_table(summary, 3)):
        assert "ended by its number of epochs in 6 of 6 runs; in the last third" in table.caption
        assert "still fell by 25 %" in table.caption  # from 0.4 to 0.3
    faster, _, largest, *_ = claims_of_the_paper(summary)
    assert "In 12 of 12 cells retraining was ended by its number of epochs" in faster.because
    assert "In 2 of 2 cells retraining was ended" in largest.because


def test_accuracies_are_only_sure_with_a_whole_interval(row) -> None:
    rows = []
    for name in (*IMAGES, *GRAPHS):
        for ratio in (0.3, 0.5, 0.7):
            noise = 0.02 if name == "reddit" else 0.001  # in every seed another way
            for seed in range(2 if name == "proteins" else 3):
                place = {"set": name, "ratio": ratio, "seed": seed}
                rows.append(row("retraining", svm=0.8, **place))
                rows.append(row("icl", svm=0.8 + noise * (seed - 1), **place))
    band = claims_of_ours(Summary(rows))[2]
    assert band.standing == "holds"
    assert "9 cells have seeds enough for a 95 % interval" in band.because
    assert "beyond doubt it is so in 6 of them" in band.because


def test_memory_is_shown_where_it_was_measured(row) -> None:
    rows = [row("retraining"), row("icl"), row("retraining", ratio=0.5), row("icl", ratio=0.5)]
    assert [column.title for column in cost_table(Summary(rows)).columns[1:]] == ["time"] * 2
    rows[1]["cost"] = {"seconds": 40.0, "added_memory": 3 * 2**20}
    table = cost_table(Summary(rows))
    assert [column.title for column in table.columns[1:]] == ["time", "memory", "time"]
    assert [cell.text for cell in table.rows[1][1:]] == ["30.0 s", "3 MB", "30.0 s"]


def test_claims_stay_open_while_there_are_few_rows(row) -> None:
    rows = [row("retraining", best=(100.0, 1)), row("paper"), row("icl")]
    for verdict in (*claims_of_the_paper(Summary(rows)), *claims_of_ours(Summary(rows))):
        assert verdict.standing == "open"
    faster = claims_of_the_paper(Summary(rows))[0]
    assert "1 of 1 cells" in faster.because
    assert "That is 1 of 12: too few to decide." in faster.because


def test_the_report_has_everything(summary: Summary) -> None:
    text = render(paper_page(summary))
    for word in (
        *("Table 3: speed-up", "Table 4: speed-up", "Table 2, measured", "does not hold"),
        *("The sweep of α", "SVM accuracy on old and new data", "Loss against time", "Training:"),
        *("abacus", "Until level with retraining", "The search for learning rates"),
    ):
        assert word in text, word
    assert text.count("<svg") == 4


def test_markdown_can_be_turned(summary: Summary) -> None:
    table = level_table(summary, GRAPHS, "graphs")
    straight, turned = (table_as_markdown(table, turned=way) for way in (False, True))
    assert straight.splitlines()[0].startswith("| strategy | PROTEINS, α = 0.3 time |")
    assert turned.splitlines()[0].startswith("|  | inference | fine-tuning | replay |")
    assert len(turned.splitlines()) == 2 + 12


def test_longer_training_is_compared_on_the_same_seeds(row) -> None:
    short, long = [], []
    for seed, slower in ((0, 1.0), (1, 3.0)):
        short += [row("retraining", seed=seed, reached=(100.0, 1)), row("icl", seed=seed)]
        short[-1]["ours"]["reached"]["seconds"] = 50.0 / slower
    long += [row("retraining", reached=(800.0, 1)), row("icl", reached=(100.0, 1))]
    for each in long:
        each["settings"]["max_epochs"] = 900
    table = longer_table(Summary(short), Summary(long))
    texts = [[cell.text for cell in cells] for cells in table.rows]
    assert texts == [
        ["PROTEINS, α = 0.3", "200", "1", "25 %", "+60 %", "2.0×", "10.1×"],
        ["PROTEINS, α = 0.3", "900", "1", "25 %", "+60 %", "8.0×", "10.1×"],
    ]
    assert "in 0 of 1 places with few epochs, in 0 with many" in table.caption
    assert "## Trained longer" in results_page(Summary(short), Summary(long))
    long[1]["ours"]["reached"]["seconds"] = 70.0
    again = longer_table(Summary(short), Summary(long))
    assert "in 0 of 1 places with few epochs, in 1 with many" in again.caption


def test_the_readme_keeps_its_own_words(summary: Summary) -> None:
    made = with_overview(f"before\n{BEGIN}\nstale\n{END}\nafter\n", summary)
    assert made.startswith("before\n")
    assert made.endswith("\nafter\n")
    assert "stale" not in made
    assert with_overview(made, summary) == made
    with pytest.raises(ValueError, match="the README needs"):
        with_overview("no place", summary)
    assert "## Table 3" in results_page(summary)


def test_the_pages_fit_the_rows() -> None:
    """What the documentation says is what the rows say."""
    script = ROOT / "results" / "pages.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_published_rows_are_of_sets_and_strategies_as_they_are() -> None:
    """A table must not show what some earlier default did."""
    for row in read_rows(ROOT / "results" / "paper.jsonl"):
        if row["kind"] != "cell":
            continue
        told, name, data = row["settings"], row["strategy"], SMALL[row["set"]]
        settings = data.settings()
        assert {key: told[key] for key in settings} == settings, (row["set"], row["key"])
        assert told["domain"] == describe(data.domain), row["key"]
        assert told["objective"] == describe(Objective()), row["key"]
        fitting = retraining(data, told["fitting"]["rates"]["rate"])
        assert told["fitting"] == describe(fit_strategy), row["key"]
        if name == RETRAINING:
            assert told["strategy"] == told["fitting"]
        else:
            made = LINE_UP[name].make(told["strategy"]["rates"].get("rate", 1e-3))
            assert told["strategy"] == describe(made), (row["set"], name, row["key"])


def test_show_and_report_from_the_command_line(whole_grid, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    for row in whole_grid:
        append_row(rows, row)
    shown = CliRunner().invoke(app, ["paper", "show", "--rows", str(rows)])
    assert shown.exit_code == 0, shown.output
    for word in ("Table 3", "Table 4", "paper 11.2×", "paper 2.6×", "does not hold", "never"):
        assert word in shown.output
    stray = dict(whole_grid[0], settings=whole_grid[0]["settings"] | {"max_epochs": 5})
    append_row(rows, stray)
    command = ["paper", "show", "--rows", str(rows), "--part", "table-4", "--part", "level"]
    part = CliRunner().invoke(app, command)
    assert part.exit_code == 0, part.output
    there = [word in part.output for word in ("Table 4", "until level", "Table 3", "Ours")]
    assert there == [True, True, False, False]
    assert "Set aside: 1 rows" in part.output
    out = tmp_path / "paper.html"
    made = CliRunner().invoke(app, ["paper", "report", "--rows", str(rows), "--out", str(out)])
    assert made.exit_code == 0, made.output
    assert out.stat().st_size > 50_000
    made = CliRunner().invoke(app, ["paper", "report", "--rows", str(rows), "--out", str(tmp_path)])
    assert (made.exit_code, "is a folder: name a file" in made.output) == (2, True)


def test_nothing_to_show_is_told(tmp_path: Path) -> None:
    for command in (["paper", "show"], ["paper", "report"]):
        shown = CliRunner().invoke(app, [*command, "--rows", str(tmp_path / "none.jsonl")])
        assert shown.exit_code == 3
        assert "none.jsonl: name one with --rows" in " ".join(shown.output.split())
        shown = CliRunner().invoke(app, [*command, "--rows", str(tmp_path)])
        assert shown.exit_code == 2
        assert "is a folder: --rows names a file" in " ".join(shown.output.split())
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    shown = CliRunner().invoke(app, ["paper", "show", "--rows", str(empty)])
    assert "has no finished cell of scale 'small'" in " ".join(shown.output.split())
    shown = CliRunner().invoke(app, ["paper", "show", "--scale", "huge"])
    assert (shown.exit_code, "choose from small, paper" in shown.output) == (2, True)
    damaged = tmp_path / "rows.jsonl"
    damaged.write_text("nonsense\n{}\n\n")
    shown = CliRunner().invoke(app, ["paper", "show", "--rows", str(damaged)])
    assert shown.exit_code == 5
    assert "line 1 is no row" in shown.output
