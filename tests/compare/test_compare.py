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
    found = recommend(BEFORE, CEILING, [attempt("a", 0.3, 0.3, 4.0), attempt("b", 0.29, 0.29, 2.0)])
    assert found.strategy == "b"
    assert "100% above retraining's 0.300 (new items: 0.900 and 0.300)" in found.reasons[0]
    assert "at parity with retraining after 2.0 s" in found.reasons[1]
    assert "10.0 times as fast" in found.reasons[1]
    assert found.reasons[2] == "Also at parity, but later: a (4.0 s)."


def test_what_needs_no_old_items_says_so() -> None:
    found = recommend(BEFORE, CEILING, [attempt("fine-tuning", 0.3, 0.3, 1.0)])
    assert found.reasons[-1] == "It needs no old items, so a small memory will do."


def test_no_update_is_needed_where_nothing_can_be_gained() -> None:
    parity = EvaluationLoss(0.3, 0.3, 0.3)
    found = recommend(parity, CEILING, [attempt("a", 0.296, 0.296, 1.0)])
    assert found.strategy == "no update"
    assert "to 0.300 in 5.0 s, the best update (a) to 0.296: there is little" in found.reasons[0]
    assert recommend(parity, CEILING, [attempt("a", 0.29, 0.29, 1.0)]).strategy == "a"
    forgets = attempt("fine-tuning", 0.33, 0.1)
    assert recommend(parity, CEILING, [forgets]).strategy == "no update"
    assert "best update" not in recommend(parity, CEILING, []).reasons[0]
    assert recommend(parity, CEILING, [attempt("a", 0.1, 0.1, 1.0)]).strategy == "a"


def test_an_update_that_gains_where_retraining_does_not_is_recommended() -> None:
    found = recommend(CEILING.loss, CEILING, [attempt("a", 0.2, 0.2, 25.0)])
    assert found.strategy == "a", "a better update must not make retraining the choice"
    assert "nothing to add" in " ".join(found.reasons)


def test_what_is_at_parity_only_for_a_while_is_not_recommended() -> None:
    passing, staying = attempt("passing", 2.0, 0.2, 1.0), attempt("staying", 0.3, 0.3, 1.2)
    found = recommend(BEFORE, CEILING, [passing, staying])
    assert found.strategy == "staying"
    assert "At parity for a while, and worse again in the end: passing." in found.reasons


def test_an_update_that_saves_no_time_is_not_recommended() -> None:
    found = recommend(BEFORE, CEILING, [attempt("a", 0.3, 0.3, 25.0)])
    assert found.strategy == "retraining"
    assert "retraining itself after 20.0 s: no update saves time" in found.reasons[1]


def test_an_update_that_is_worse_than_none_is_not_recommended() -> None:
    before = EvaluationLoss(0.30, 0.34, 0.32)
    found = recommend(before, CEILING, [attempt("a", 0.30, 0.345)])
    assert found.strategy == "retraining"
    assert "No update was better than none" in found.reasons[1]


def test_what_forgets_is_never_said_to_keep() -> None:
    found = recommend(BEFORE, CEILING, [attempt("a", 0.35, 0.2), attempt("b", 0.4, 0.2)])
    assert found.strategy == "retraining"
    assert "better than none without forgetting" in found.reasons[1]
    assert found.reasons[2] == "The loss of old items rose under a, b."


def test_an_encoder_below_retraining_is_said_to_be_below() -> None:
    found = recommend(EvaluationLoss(0.1, 0.5, 0.29), CEILING, [attempt("a", 0.3, 0.3, 1.0)])
    assert "0.290, 3% below retraining's 0.300" in found.reasons[0]


def test_without_one_at_parity_the_best_that_keeps_old_items_is_recommended() -> None:
    found = recommend(BEFORE, CEILING, [attempt("forgets", 0.4, 0.2), attempt("keeps", 0.30, 0.34)])
    assert found.strategy == "keeps"
    assert "came closest without forgetting: 0.320 (old 0.300, new 0.340)" in found.reasons[1]
    assert found.reasons[2] == "The loss of old items rose under forgets."


def test_a_retraining_that_has_not_converged_is_no_yardstick() -> None:
    falling = attempt("retraining", 0.90, 0.90, 20.0, falling=True)
    tried = [attempt("a", 0.3, 0.5, 4.0), attempt("b", 0.3, 0.4), attempt("forgets", 0.4, 0.1)]
    found = recommend(BEFORE, falling, tried)  # which is below that retraining without any update
    assert found.strategy is None
    assert str(found) == "Recommended: nothing yet, give it more minutes"
    assert "it is no yardstick" in found.reasons[0]
    assert found.reasons[1].startswith("b has the lowest loss of those that keep old items: 0.350 ")
    assert "(old 0.300, new 0.400) in 5.0 s, 42% below no update" in found.reasons[1]
    assert "times as fast" not in " ".join(found.reasons)
    none = recommend(BEFORE, replace(falling, seconds=0.44), tried[2:])
    assert none.strategy is None
    assert "when its 0.4 s were over" in none.reasons[0]
    assert "None of the updates beats leaving the encoder alone (0.600)" in none.reasons[1]
    ahead = attempt("retraining", 0.2, 0.2, 20.0, falling=True)
    assert recommend(BEFORE, ahead, tried).reasons[1].startswith("retraining has the lowest loss")


def test_what_was_still_falling_is_named() -> None:
    falling = attempt("falls", 0.30, 0.60, falling=True)
    found = recommend(BEFORE, CEILING, [falling, attempt("ended", 0.30, 0.62)])
    assert "Still falling when its time was over, and not converged: falls." in found.reasons


def test_what_is_lower_over_all_items_is_named_where_no_update_is_recommended() -> None:
    forgets = attempt("forgets", 0.4, 0.1)
    said = "Lower over all items, at the cost of old ones: forgets (0.250, old items +33%)"
    falling = attempt("retraining", 0.90, 0.90, 20.0, falling=True)
    parity = EvaluationLoss(0.3, 0.3, 0.3)
    for before, ceiling in ((BEFORE, falling), (parity, CEILING)):
        found = recommend(before, ceiling, [forgets])
        assert found.strategy == (None if ceiling.falling else "no update")
        assert said in found.reasons[-1]
        assert "best update (forgets)" not in found.reasons[0]


def test_who_had_less_time_than_retraining_is_named(blobs) -> None:
    result = compare(
        Vectors(8, hidden=16, out=8), blobs(60), blobs(30), seconds=1.0, strategies={"ICL": ICL()}
    )
    full = replace(result.retraining, seconds=5.0)
    for seconds, named in ((4.9, False), (2.0, True)):
        late = (replace(result.attempts[0], seconds=seconds),)
        told = replace(result, retraining=full, attempts=late).recommendation.reasons
        assert (f"ICL {seconds:.1f} s, where retraining had 5.0 s" in " ".join(told)) is named


def test_a_time_that_is_far_too_short_is_said_first(blobs) -> None:
    result = compare(
        Vectors(8, hidden=16, out=8), blobs(60), blobs(30), seconds=1.0, strategies={"ICL": ICL()}
    )
    outcome = replace(result.traces["retraining"].outcome, steps=500)
    traces = {"retraining": replace(result.traces["retraining"], outcome=outcome)}
    had = replace(result.retraining, seconds=0.25)
    short = replace(result, retraining=had, seconds=6.0, traces=traces)
    first = short.recommendation.reasons[0]
    assert first == (
        "The time was too short to tell: retraining had 500 steps in 0.2 s. "
        "Give about 4 minutes (--minutes 4)."
    )
    enough = replace(short, retraining=replace(had, seconds=5.0))
    assert "too short" not in enough.recommendation.reasons[0]


def test_retraining_is_the_safe_choice() -> None:
    failed = attempt("a", 0.3, 0.3, failed="the loss became nan")
    for attempts, said in (
        ([], "No update was tried."),
        ([failed], "No update ended."),
        ([attempt("far", 0.30, 0.60)], "the best that does not forget, far, ended at 0.450"),
    ):
        found = recommend(BEFORE, CEILING, attempts)
        assert found.strategy == "retraining"
        assert said in found.reasons[1]


def test_a_comparison_of_vectors(blobs) -> None:
    result = compare(
        Vectors(8, hidden=16, out=8),
        blobs(60),
        blobs(30, seed=1, shift=2.0),
        seconds=2.0,
        strategies={"fine-tuning": FineTune(), "ICL": ICL()},
    )
    assert result.counts == (60, 30)
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
    monkeypatch.setattr(comparison, "FIT", 0.003)
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
    found = recommend(BEFORE, CEILING, near)
    assert found.strategy == "a"
    assert "cannot tell apart: b." in " ".join(found.reasons)


def test_an_interrupted_comparison_says_so(tmp_path, monkeypatch) -> None:
    def interrupted(path, **columns):
        raise KeyboardInterrupt

    monkeypatch.setattr("incontrast.cli.compare.read_source", interrupted)
    shown = CliRunner().invoke(app, ["compare", "a", "b"])
    assert (shown.exit_code, "interrupted: nothing was changed" in shown.output) == (130, True)


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
    assert "60 old and 30 new items (vectors of 8 numbers)" in shown.output
    for doing in ("first fit", "retraining", "ICL"):
        assert f"{doing}\n" in shown.stderr
    assert "Recommended: " in shown.output
    assert "Which strategy for this data?" in out.read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["compare", "nowhere", "nowhere"], 3, "does not exist"),
        (["compare", "a", "b", "--minutes", "0"], 2, "minutes must be positive, got 0"),
        (["compare", "a", "b", "--items", "3"], 2, "--items"),
        (["compare", "a", "b", "--seed", "-1"], 2, "--seed"),
        (["compare", "a", "b", "--size", "0"], 2, "--size"),
        (["compare", "a", "b", "--out", "."], 2, "is a folder: name a file"),
        (["compare", "a", "b", "--out", "no/where.html"], 2, "in a folder that does not exist"),
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
        (("--size", "32"), "size and channels are for images"),
        (("--encoder", "small"), "encoder must be a module of your own, got 'small'"),
    ):
        shown = CliRunner().invoke(app, [*command, *options])
        assert shown.exit_code == 3
        assert message in " ".join(shown.output.split())
