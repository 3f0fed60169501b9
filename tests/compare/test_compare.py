"""Comparing on one's own data, and what is recommended."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from incontrast import ICL, FineTune, Vectors
from incontrast.cli.app import app
from incontrast.cli.compare import quick_domain
from incontrast.compare import run as comparison
from incontrast.compare.recommend import Attempt, recommend
from incontrast.compare.run import compare, sampled
from incontrast.compare.trace import trace
from incontrast.data.sources import read_source
from incontrast.evaluate import EvaluationLoss
from incontrast.training.progress import Budget


def attempt(name: str, old: float, new: float, parity: float | None = None, **more) -> Attempt:
    loss = EvaluationLoss(old, new, 0.5 * (old + new))
    return Attempt(strategy=name, seconds=5.0, loss=loss, parity_seconds=parity, **more)


CEILING = attempt("retraining", 0.30, 0.30, 20.0)
BEFORE = EvaluationLoss(0.30, 0.90, 0.60)


def test_the_fastest_at_parity_is_recommended() -> None:
    attempts = [attempt("a", 0.3, 0.3, 4.0), attempt("b", 0.29, 0.29, 2.0)]
    result = recommend(BEFORE, CEILING, attempts)
    assert result.strategy == "b"
    assert result.reasons[0] == (
        "At parity with retraining after 2.0 s, 10.0 times as fast as retraining itself (20.0 s)."
    )


def test_no_update_is_needed_where_nothing_can_be_gained() -> None:
    parity = EvaluationLoss(0.3, 0.3, 0.3)
    result = recommend(parity, CEILING, [attempt("a", 0.296, 0.296, 1.0)])
    assert result.strategy == "no update"
    assert "gains little over no update (0.300)" in result.reasons[0]
    assert recommend(parity, CEILING, [attempt("a", 0.29, 0.29, 1.0)]).strategy == "a"
    forgets = attempt("fine-tuning", 0.33, 0.1)
    assert recommend(parity, CEILING, [forgets]).strategy == "no update"
    assert recommend(parity, CEILING, []).strategy == "no update"
    assert recommend(parity, CEILING, [attempt("a", 0.1, 0.1, 1.0)]).strategy == "a"


def test_an_update_that_gains_where_retraining_does_not_is_recommended() -> None:
    result = recommend(CEILING.loss, CEILING, [attempt("a", 0.2, 0.2, 25.0)])
    assert result.strategy == "a", "a better update must not make retraining the choice"
    assert "a 0.200 (old 0.200, new 0.200) in 5.0 s gains more" in result.reasons[0]


def test_what_is_at_parity_only_for_a_while_is_not_recommended() -> None:
    passing, staying = attempt("passing", 2.0, 0.2, 1.0), attempt("staying", 0.3, 0.3, 1.2)
    result = recommend(BEFORE, CEILING, [passing, staying])
    assert result.strategy == "staying"
    assert "At parity for a while, but not at the end: passing." in result.reasons


def test_an_update_that_saves_no_time_is_not_recommended() -> None:
    result = recommend(BEFORE, CEILING, [attempt("a", 0.3, 0.3, 25.0)])
    assert result.strategy == "retraining"
    assert result.reasons[0] == (
        "No update saves time: a was at parity after 25.0 s, retraining after 20.0 s."
    )


def test_an_update_that_is_worse_than_none_is_not_recommended() -> None:
    before = EvaluationLoss(0.30, 0.34, 0.32)
    result = recommend(before, CEILING, [attempt("a", 0.30, 0.345)])
    assert result.strategy == "retraining"
    assert "No update came close to it without forgetting" in result.reasons[0]


def test_what_forgets_is_named_and_not_recommended() -> None:
    result = recommend(BEFORE, CEILING, [attempt("a", 0.35, 0.2), attempt("b", 0.4, 0.2)])
    assert result.strategy == "retraining"
    assert result.reasons[1] == "Forgets: the loss of old items rose by more than 2 %: a, b."


def test_without_one_at_parity_the_best_that_keeps_old_items_is_recommended() -> None:
    attempts = [attempt("forgets", 0.4, 0.2), attempt("keeps", 0.30, 0.34)]
    result = recommend(BEFORE, CEILING, attempts)
    assert result.strategy == "keeps"
    assert "without forgetting: keeps 0.320 (old 0.300, new 0.340) in 5.0 s." in result.reasons[0]
    assert "rose by more than 2 %: forgets." in result.reasons[1]


def test_nothing_is_recommended_before_retraining_has_converged() -> None:
    falling = attempt("retraining", 0.90, 0.90, 20.0, falling=True)
    attempts = [attempt("a", 0.3, 0.5, 4.0), attempt("b", 0.3, 0.4), attempt("forgets", 0.4, 0.1)]
    result = recommend(BEFORE, falling, attempts)  # BEFORE is below that retraining
    assert result.strategy is None
    assert str(result) == "Recommended: nothing yet, give it more minutes"
    assert "still falling after 5 s (0.900), so there is no parity" in result.reasons[0]
    assert "b 0.350 (old 0.300, new 0.400) in 5.0 s is better than no" in result.reasons[0]
    assert result.reasons[1] == (
        "Forgets: the loss of old items rose by more than 2 %: forgets, retraining."
    )
    assert "times as fast" not in " ".join(result.reasons)
    none = recommend(BEFORE, replace(falling, seconds=0.44), attempts[2:])
    assert none.strategy is None
    assert "still falling after 0.4 s" in none.reasons[0]
    assert "nothing is better than no update (0.600)" in none.reasons[0]
    ahead = attempt("retraining", 0.2, 0.2, 20.0, falling=True)
    assert "retraining 0.200" in recommend(BEFORE, ahead, attempts).reasons[0]


def test_what_was_still_falling_is_named() -> None:
    falling = attempt("falls", 0.30, 0.60, falling=True)
    result = recommend(BEFORE, CEILING, [falling, attempt("ended", 0.30, 0.62)])
    assert "Still falling at the end: falls." in result.reasons


def test_what_had_less_time_than_retraining_is_named(blobs) -> None:
    result = compare(
        Vectors(8, hidden=16, out=8), blobs(60), blobs(30), seconds=1.0, strategies={"ICL": ICL()}
    )
    full = replace(result.retraining, seconds=5.0)
    for seconds, named in ((4.9, False), (2.0, True)):
        late = (replace(result.attempts[0], seconds=seconds),)
        reasons = replace(result, retraining=full, attempts=late).recommendation.reasons
        assert ("became slower: ICL." in " ".join(reasons)) is named


def test_a_time_that_is_far_too_short_comes_first(blobs) -> None:
    result = compare(
        Vectors(8, hidden=16, out=8), blobs(60), blobs(30), seconds=1.0, strategies={"ICL": ICL()}
    )
    retraining = result.traces["retraining"]
    for steps, short in ((4, True), (5, False)):
        trace = replace(retraining, outcome=replace(retraining.outcome, steps=steps))
        first = replace(result, traces={"retraining": trace}).recommendation.reasons[0]
        assert first.startswith(f"The time was too short to tell: retraining had {steps}") is short


def test_retraining_is_the_safe_choice() -> None:
    failed = attempt("a", 0.3, 0.3, failed="the loss became nan")
    for attempts in ([], [failed], [attempt("far", 0.30, 0.60)]):
        assert recommend(BEFORE, CEILING, attempts).strategy == "retraining"


def test_a_comparison_of_vectors(blobs) -> None:
    result = compare(
        Vectors(8, hidden=16, out=8),
        blobs(60),
        blobs(30, seed=1, shift=2.0),
        seconds=2.0,
        strategies={"fine-tuning": FineTune(), "ICL": ICL()},
    )
    assert result.growth_ratio == pytest.approx(1 / 3)
    assert [entry.strategy for entry in result.attempts] == ["fine-tuning", "ICL"]
    assert set(result.traces) == {"retraining", "fine-tuning", "ICL"}
    again = recommend(result.before, result.retraining, result.attempts)
    assert result.recommendation.strategy == again.strategy
    with pytest.raises(ValueError, match="seconds must be positive, got 0"):
        compare(Vectors(8), blobs(9), blobs(9), seconds=0)


def test_updates_have_as_much_time_as_retraining(blobs, monkeypatch) -> None:
    seconds, measured = {}, []

    def watched(learner, old, new, strategy, *, budget, measuring, **more):
        seconds[type(strategy).__name__] = budget.seconds
        measured.append((measuring, strategy.patience))
        return trace(learner, old, new, strategy, budget=Budget(forward_passes=400), **more)

    monkeypatch.setattr(comparison, "trace", watched)
    monkeypatch.setattr(comparison, "FIRST_FIT", 0.003)
    strategies = {"fine-tuning": FineTune(), "ICL": ICL()}
    compare(
        Vectors(8, hidden=16, out=8),
        blobs(60),
        blobs(30, seed=1),
        seconds=200.0,
        strategies=strategies,
    )
    assert len(set(seconds.values())) == 1
    assert 3 * 1.25 * seconds["ICL"] < 200.0, "evaluation is within the time"
    assert measured == [(0.25, None)] * 3, "its time ends a run, and measuring does not take over"


def test_what_one_run_cannot_tell_apart_is_told() -> None:
    near = [attempt("a", 0.30, 0.32), attempt("b", 0.30, 0.322), attempt("c", 0.30, 0.34)]
    result = recommend(BEFORE, CEILING, near)
    assert result.strategy == "a"
    assert "cannot tell apart: b." in " ".join(result.reasons)


def test_an_interrupted_comparison_says_so(tmp_path, monkeypatch) -> None:
    def interrupted(path, **columns):
        raise KeyboardInterrupt

    monkeypatch.setattr("incontrast.cli.compare.read_source", interrupted)
    shown = CliRunner().invoke(app, ["compare", "a", "b"])
    assert (shown.exit_code, "interrupted: what was complete is kept" in shown.output) == (
        130,
        True,
    )


def test_images_are_made_small_unless_asked_for(tmp_path) -> None:
    draws = np.random.default_rng(0)
    for number in range(4):
        pixels = draws.integers(0, 255, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    source = read_source(tmp_path)
    for asked, size, network in (
        ({}, 32, "small"),
        ({"size": 64}, 64, "resnet18"),
        ({"encoder": "resnet18"}, 40, "resnet18"),
        ({"channels": 1}, 32, "small"),
    ):
        domain = quick_domain(source, **asked)
        assert (domain.size, domain.encoder.given) == (size, network)


def test_names_of_files_are_printed_as_they_are(tmp_path, monkeypatch, blobs) -> None:
    """Neither rich nor the terminal takes a part of a path for a command."""
    monkeypatch.setattr(comparison, "STRATEGIES", {"ICL": ICL()})
    folder = tmp_path / "[bold]\x1b[2J"
    folder.mkdir()
    lines = [",".join(str(value) for value in row) for row in blobs(40).tolist()]
    (folder / "rows.csv").write_text("\n".join(["a,b,c,d,e,f,g,Label", *lines]))
    names = [str(folder / "rows.csv")] * 2
    page = str(folder / "page.html")
    shown = CliRunner().invoke(app, ["compare", *names, "--minutes", "0.04", "--out", page])
    assert shown.exit_code == 0, shown.output
    assert "\x1b" not in shown.output
    assert "OLD and NEW are the same" in shown.output
    assert f"Report: {tmp_path}/[bold]\\u001b[2J/page.html" in shown.output
    shown = CliRunner().invoke(app, ["compare", *names, "--out", str(folder)])
    assert "\x1b[2J" not in shown.output
    shown = CliRunner().invoke(app, ["compare", *names, "--size", "32"])
    assert f"incontrast: {tmp_path}/[bold]\\u001b[2J/rows.csv holds vectors" in shown.output


def test_one_item_is_too_few(tmp_path, blobs) -> None:
    for name, count in (("old", 60), ("one", 1)):
        np.save(tmp_path / f"{name}.npy", blobs(count).numpy())
    names = [str(tmp_path / f"{name}.npy") for name in ("old", "one")]
    shown = CliRunner().invoke(app, ["compare", *names])
    assert shown.exit_code == 3
    assert "one.npy holds one item: a comparison needs at least two" in (
        " ".join(shown.output.split())
    )


def test_samples_keep_the_proportion() -> None:
    old, new = sampled(np.arange(900), np.arange(300), 100)
    assert (len(old), len(new)) == (75, 25)
    assert np.array_equal(sampled(np.arange(9), np.arange(3), 100)[0], np.arange(9))


def test_the_command(tmp_path, monkeypatch, blobs) -> None:
    monkeypatch.setattr(comparison, "STRATEGIES", {"ICL": ICL()})
    np.save(tmp_path / "old.npy", blobs(60).numpy())
    np.save(tmp_path / "new.npy", blobs(30, seed=1, shift=2.0).numpy())
    names = [str(tmp_path / name) for name in ("old.npy", "new.npy")]
    out = tmp_path / "page.html"
    shown = CliRunner().invoke(app, ["compare", *names, "--minutes", "0.04", "--out", str(out)])
    assert shown.exit_code == 0, shown.output
    assert "60 old and 30 new items (vectors: rows of 8 numbers, encoder MLP" in shown.output
    for doing in ("first fit", "retraining", "ICL"):
        assert f"{doing}\n" in shown.stderr
    assert "Recommended: " in shown.output
    assert "Which strategy for these data?" in out.read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["compare", "nowhere", "nowhere"], 3, "does not exist"),
        (["compare", "a", "b", "--minutes", "0"], 2, "--minutes"),
        (["compare", "a", "b", "--items", "3"], 2, "--items"),
        (["compare", "a", "b", "--seed", "-1"], 2, "--seed"),
        (["compare", "a", "b", "--size", "0"], 2, "--size"),
        (["compare", "a", "b", "--out", "."], 2, "must name a file"),
        (["compare", "a", "b", "--out", "no/where.html"], 2, "in a folder that exists"),
        (["compare", "a", "b", "--encoder", "huge"], 2, "--encoder"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], code: int, message: str) -> None:
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == code
    assert message in " ".join(shown.output.split())


def test_what_a_user_may_not_have_meant_is_told(tmp_path, monkeypatch, blobs, caplog) -> None:
    monkeypatch.setattr(comparison, "STRATEGIES", {"ICL": ICL()})
    table = tmp_path / "rows.csv"
    lines = [",".join(str(value) for value in row) for row in blobs(40).tolist()]
    table.write_text("\n".join(["a,b,c,d,e,f,g,Label", *lines]))
    command = ["compare", str(table), str(table), "--minutes", "0.04"]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    said = " ".join(shown.output.split())
    assert "OLD and NEW are the same" in said
    assert "the column 'Label' is taken as a feature: is it one?" in caplog.text
    for options, message in (
        (("--size", "32"), "--size and --channels are for images"),
        (("--encoder", "small"), "encoder must be a module of your own, got 'small'"),
    ):
        shown = CliRunner().invoke(app, [*command, *options])
        assert shown.exit_code == 3
        assert message in " ".join(shown.output.split())
