"""Adopting an encoder from the command line, by import path."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

from incontrast import ImageViews, Workspace
from incontrast.cli.app import app
from incontrast.cli.command import Exit

ENCODER = ("--encoder", "torch.nn:Linear", "--encoder-args")
ARGUMENTS = '{"in_features": 8, "out_features": 4}'


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def files(tmp_path: Path, blobs, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Old and new vectors, weights, and a workspace that is named and not there yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("INCONTRAST_WORKSPACE", str(tmp_path / "space"))
    np.save("old.npy", blobs(60).numpy())
    np.save("new.npy", blobs(20, seed=1, shift=1.0).numpy())
    save_file(nn.Linear(8, 4).state_dict(), "weights.safetensors")
    return tmp_path


def test_an_encoder_by_import_path_is_adopted_updated_and_used(files: Path) -> None:
    weights = ("--weights", "weights.safetensors", "--seen-count", 600)
    shown = run("adopt", "old.npy", *ENCODER, ARGUMENTS, *weights)
    assert "Version 1: adopted, with 60 items of 600" in shown
    assert "adopted as version 1" in shown
    assert "trained version" not in shown
    assert "Version 1 is the current one." in shown
    assert "60 items stored / 600 seen" in run("status")
    assert "Version 2: ICL on 20 new items" in run("update", "new.npy", "--epochs", 1)
    run("embed", "new.npy", "new-embedded.npy")
    assert np.load("new-embedded.npy").shape == (20, 4)
    again = run("adopt", "old.npy", *ENCODER, ARGUMENTS, *weights)  # as a script would repeat it
    assert "Nothing to do" in again
    other = run("adopt", "old.npy", "--encoder", "torch.nn:Identity", code=Exit.DATA)
    assert "is a workspace with other settings already: domain.encoder.path is torch" in other


def test_what_bounds_updates_is_told_as_it_is(files: Path) -> None:
    def told(*options: object) -> str:
        return " ".join(run("adopt", "old.npy", *ENCODER, ARGUMENTS, *options).split())

    usual = told("-w", "usual")
    assert "an update may replace at most 40% of old items' ten nearest" in usual
    assert "incontrast config -w usual --set keep_neighbours=none suits" in usual
    changed = told("-w", "changed", "--set", "keep_neighbours=0.75")
    assert "an update may replace at most 25% of old items' ten nearest" in changed
    none = "an update may replace any number of old items' ten nearest"
    assert none in told("-w", "unbound", "--set", "keep_neighbours=none")
    refused = run(
        *("adopt", "old.npy", *ENCODER, ARGUMENTS, "-w", "usual", "--set", "keep_neighbours=none"),
        code=Exit.DATA,
    )
    assert "already: keep_neighbours is 0.6, got None" in " ".join(refused.split())
    same = told("-w", "unbound", "--set", "keep_neighbours=none")  # as a script would repeat it
    assert "Nothing to do" in same
    run("config", "-w", "usual", "--set", "keep_neighbours=none")
    # A workspace that init has made has no bound.
    run("init", "made", "--like", "old.npy", *ENCODER, ARGUMENTS)
    assert none in told("-w", "made")


def test_an_update_of_which_nothing_is_kept_says_so(files: Path) -> None:
    changes = ("--set", "keep_neighbours=0.999", "--set", "strategy.lr.lr=0.3")
    run("adopt", "old.npy", *ENCODER, ARGUMENTS, *changes)
    shown = " ".join(run("update", "new.npy", "--epochs", 20).split())
    assert "Reverted: it did more harm than good, the encoder is the previous one." in shown
    page = Path("space/reports/version-2.html").read_text()
    assert "checks passed.</strong> Reverted: it did more harm than good" in page
    assert "Nothing was learned" in page


def test_vectors_come_to_a_model_as_they_are_where_it_is_said(files: Path) -> None:
    weights = ("--weights", "weights.safetensors")
    other = ("-w", "other")
    told = run("adopt", "old.npy", *ENCODER, ARGUMENTS, *weights, *other)
    assert "(0 and 1 leave rows unchanged)" in " ".join(told.split())
    shown = run("adopt", "old.npy", *ENCODER, ARGUMENTS, *weights, "--mean", 0, "--std", 1)
    assert "rows minus mean, divided by std" in shown
    run("embed", "new.npy", "new-embedded.npy")
    trained = load_file("weights.safetensors")
    expected = np.load("new.npy") @ trained["weight"].numpy().T + trained["bias"].numpy()
    np.testing.assert_allclose(np.load("new-embedded.npy"), expected, atol=1e-5)


def test_images_are_normalised_as_told_and_the_normalisation_is_shown(files: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8)
    Path("images").mkdir()
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(f"images/{number:02}.png")
    options = ("adopt", "images", "--channels", 1, "--encoder", "torch.nn:Flatten")
    shown = run(*options, "--mean", 0.5, "--std", "0.25")
    assert "pixels / 255, minus mean [0.5], divided by std [0.25]" in shown
    expected = (pixels.reshape(20, 64) / 255 - 0.5) / 0.25
    found = Workspace.open("space").embed(pixels)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)
    other = run(*options, "--mean", 0.4, "--std", 0.25, code=Exit.DATA)
    assert "already: domain.mean is [0.5], got [0.4]. Choose another folder" in other
    usual = run(*options, "-w", "usual")
    assert "minus mean [0.449], divided by std [0.226]: give what your model" in usual
    Path("graphs.jsonl").write_text('{"edges": [[0, 1]]}\n' * 4)
    refused = run("adopt", "graphs.jsonl", "--mean", 0.5, "-w", "graphs", code=Exit.DATA)
    assert "are for images and vectors" in refused
    assert "with commas" in run("adopt", "images", "--mean", "half", code=Exit.USAGE)


def test_views_and_other_settings_are_those_that_are_given(files: Path) -> None:
    Path("images").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(f"images/{number}.png")
    options = ("adopt", "images", "--channels", 1, "--encoder", "torch.nn:Flatten", "--flip", 0)
    settings = ("--crop", 0.4, "--set", "objective.temperature=0.05", "--set", "seed=3")
    run(*options, *settings)
    learner = Workspace.open("space", trust=True).learner()
    assert learner.domain.views.given == ImageViews(flip=0.0, scale=(0.4, 1.0))
    assert (learner.objective.temperature, learner.seed) == (0.05, 3)
    assert "Nothing to do" in run(*options, *settings)
    other = run(*options, "--crop", 0.5, code=Exit.DATA)
    assert "already: domain.views.scale is [0.4, 1.0], got [0.5, 1.0]. Choose another" in other
    told = run(*options, "--set", "objective.temprature=1", "-w", "new", code=Exit.DATA)
    assert "objective.temperature" in told
    assert not Path("new").exists()


def test_epochs_of_later_updates_are_given_with_an_encoder(files: Path) -> None:
    command = ("adopt", "old.npy", *ENCODER, ARGUMENTS, "--epochs")
    run(*command, 1)
    assert "1 epoch in" in run("update", "new.npy")
    assert "Nothing to do" in run(*command, 1)
    assert "strategy.max_epochs is 1, got 2" in run(*command, 2, code=Exit.DATA)


def test_only_the_encoder_that_was_adopted_is_nothing_to_do(files: Path) -> None:
    command = ("adopt", "old.npy", *ENCODER, ARGUMENTS, "--weights")
    run(*command, "weights.safetensors")
    save_file(nn.Linear(8, 4).state_dict(), "others.safetensors")
    refused = run(*command, "others.safetensors", code=Exit.STATE)
    assert "with other weights or other data: update it, or create another workspace" in refused
    assert "Nothing to do" in run(*command, "weights.safetensors")
    run("init", "fitted", "--like", "old.npy", "--fit-epochs", 1)
    run("fit", "old.npy", "-w", "fitted")
    run("adopt", "old.npy", "-w", "fitted", code=Exit.STATE)


def test_a_function_that_loads_other_weights_by_now_is_not_adopted_again(files: Path) -> None:
    Path("own_model.py").write_text(
        "from safetensors.torch import load_file\n"
        "from torch import nn\n\n"
        "def network():\n"
        "    model = nn.Linear(8, 4)\n"
        "    model.load_state_dict(load_file('weights.safetensors'))\n"
        "    return model\n"
    )
    command = ("adopt", "old.npy", "--encoder", "own_model:network")
    run(*command)
    assert "Nothing to do" in run(*command)
    save_file(nn.Linear(8, 4).state_dict(), "weights.safetensors")
    refused = run(*command, code=Exit.STATE)
    assert "(version 1), with other weights or other data: update it" in refused


def test_a_sample_of_another_size_is_not_adopted_again(files: Path) -> None:
    command = ("adopt", "old.npy", *ENCODER, ARGUMENTS, "--weights", "weights.safetensors")
    run(*command, "--seen-count", 600)
    assert "Nothing to do" in run(*command, "--seen-count", 600)
    assert "is fitted already" in run(*command, "--seen-count", 700, code=Exit.STATE)


def test_an_adoption_that_was_refused_is_promoted_or_dropped_without_data(files: Path) -> None:
    weights = {"weight": torch.zeros(4, 8), "bias": torch.ones(4)}
    save_file(weights, "collapsed.safetensors")
    command = ("adopt", "old.npy", *ENCODER, ARGUMENTS, "--weights", "collapsed.safetensors")
    assert "have collapsed" in run(*command, code=Exit.REFUSED)
    assert "have collapsed" in run("adopt", code=Exit.REFUSED)
    assert "is dropped" in run("adopt", "--discard")
    run(*command, code=Exit.REFUSED)
    assert "is the current one" in run("adopt", "--force")
    run("adopt", code=Exit.STATE)


def test_an_adoption_whose_weights_are_not_written_asks_for_them(files: Path, monkeypatch) -> None:
    command = ("adopt", "old.npy", *ENCODER, ARGUMENTS, "--weights", "weights.safetensors")
    with monkeypatch.context() as patch:
        patch.setattr("incontrast.workspace.update.Update._train", stopped)
        run(*command, code=130)
    assert "run the previous command again" in run("adopt", code=Exit.DATA)
    assert "Version 1 is the current one" in run(*command)


def stopped(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_a_head_is_adopted_with_its_weights(files: Path) -> None:
    head = nn.Linear(4, 3)
    save_file(head.state_dict(), "head.safetensors")
    command = ("adopt", "old.npy", *ENCODER, ARGUMENTS, "--weights", "weights.safetensors")
    linear = ("--head", "torch.nn:Linear", "--head-args")
    run(*command, *linear, '{"out_features": 3}', "--head-weights", "head.safetensors")
    learner = Workspace.open("space").learner()
    rows = np.load("new.npy")
    expected = head(learner.embed(rows)).detach()
    np.testing.assert_allclose(learner.embed(rows, head=True), expected, atol=1e-6)
    again = (*command, *linear, '{"out_features": 3}', "--head-weights")
    assert "Nothing to do" in run(*again, "head.safetensors")
    save_file(nn.Linear(4, 3).state_dict(), "other.safetensors")
    assert "is fitted already" in run(*again, "other.safetensors", code=Exit.STATE)
    assert "head.path is torch.nn:Linear, got None" in run(
        *command, "--head", "mlp", code=Exit.DATA
    )
    run("update", "new.npy", "--epochs", 1)
    assert Workspace.open("space").learner().embed(rows, head=True).shape == (20, 3)


def test_a_head_without_weights_is_pointed_out(files: Path) -> None:
    command = ("adopt", "old.npy", *ENCODER, ARGUMENTS, "--weights", "weights.safetensors")
    assert "those of the head are random" in run(*command, "--head", "mlp")


def test_weights_of_a_head_are_not_left_aside(files: Path) -> None:
    save_file(nn.Linear(4, 3).state_dict(), "head.safetensors")
    command = ("adopt", "old.npy", *ENCODER, ARGUMENTS, "--weights", "weights.safetensors")
    run(*command)
    shown = run(*command, "--head-weights", "head.safetensors", code=Exit.STATE)
    assert "with other weights" in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--head", "mpl"), "head must be None"),
        (("--head", "torch.nn:Liner"), "the nearest name is Linear"),
        (("--head-args", '{"out_features": 3}'), "--head-args are for heads of your own"),
        (("--head", "torch.nn:Linear"), "torch.nn:Linear failed"),
        (("--head-weights", "weights.safetensors"), "and no head"),
        (
            ("--head", "linear", "--head-weights", "weights.safetensors"),
            "weight is (4, 8), the head's is (128, 4)",
        ),
    ],
)
def test_heads_that_cannot_be_adopted_leave_no_workspace(files, options, message) -> None:
    shown = run("adopt", "old.npy", *ENCODER, ARGUMENTS, *options, code=Exit.DATA)
    assert message in shown
    assert not (files / "space").exists()


def test_a_probe_of_what_is_adopted_has_one_figure(files: Path) -> None:
    rows = np.load("old.npy")[:30]
    lines = [",".join([*map(str, row), "high" if row[0] > 0 else "low"]) for row in rows.tolist()]
    Path("probe.csv").write_text("\n".join(["a,b,c,d,e,f,g,h,label", *lines]))
    shown = run("adopt", "old.npy", *ENCODER, ARGUMENTS, "--probe", "probe.csv")
    assert "kNN accuracy of all classes" in shown
    assert "→" not in shown


def test_history_and_journal_call_an_adopted_version_adopted(files: Path) -> None:
    run("adopt", "old.npy", *ENCODER, ARGUMENTS)
    assert "version 1, current: adopted, with 60 items" in run("history")
    journal = run("log")
    assert "version 1 adopted" in journal
    page = Path("space/reports/history.html").read_text()
    assert "version 1, current: adopted, with 60 items" in page
    assert "NoUpdate" not in journal + page
    run("update", "new.npy", "--epochs", 1)
    assert "version 2, current: ICL on 20 items" in run("history")


def test_who_gives_no_weights_is_told(files: Path) -> None:
    told = "no --weights given: the encoder is as torch.nn:Linear makes it"
    assert told in run("adopt", "old.npy", *ENCODER, ARGUMENTS)
    assert told not in run("adopt", "old.npy", *ENCODER, ARGUMENTS)  # nothing is adopted
    assert "the encoder are random" in run("adopt", "old.npy", "-w", "random")
    weights = ("--weights", "weights.safetensors")
    assert "no --weights" not in run("adopt", "old.npy", "-w", "b", *ENCODER, ARGUMENTS, *weights)


def test_what_cannot_be_adopted_leaves_only_the_workspace_that_there_was(files: Path) -> None:
    flat = ("--encoder", "torch.nn:Unflatten", "--encoder-args")
    flat = (*flat, '{"dim": 1, "unflattened_size": [2, 4]}')  # (n, 2, 4) instead of (n, d)
    run("adopt", "old.npy", *flat, code=Exit.DATA)
    assert not (files / "space").exists()
    (files / "space").mkdir()
    run("adopt", "old.npy", *flat, code=Exit.DATA)
    assert not list((files / "space").iterdir())
    run("init", "space", "--like", "old.npy", *flat)
    run("adopt", "old.npy", code=Exit.DATA)
    assert "no encoder yet" in run("status")


def test_somebody_elses_workspace_needs_trust_once(files: Path, monkeypatch) -> None:
    run("adopt", "old.npy", *ENCODER, ARGUMENTS)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(files / "another user's config"))
    refused = run("embed", "new.npy", "a.npy", code=Exit.STATE)
    assert "names code that would run here: torch.nn:Linear" in refused
    assert "--trust" in refused
    run("status")
    run("embed", "new.npy", "a.npy", "--trust")
    run("embed", "new.npy", "b.npy")


def test_a_workspace_is_ones_own_however_its_path_is_spelt(files: Path) -> None:
    Path("link").symlink_to("space")
    run("adopt", "old.npy", *ENCODER, ARGUMENTS)
    for number, folder in enumerate(("space", "link", "config/../space")):
        run("embed", "new.npy", f"{number}.npy", "-w", folder)
    Path("mine").mkdir()
    Path("other").symlink_to("mine")
    run("adopt", "old.npy", "-w", "other", *ENCODER, ARGUMENTS)
    run("embed", "new.npy", "mine.npy", "-w", "mine")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--encoder", "linear"), "or a folder with a model of transformers; got 'linear'"),
        ((*ENCODER, "3"), "arguments are a JSON object"),
        ((*ENCODER, "{in_features"), "arguments are a JSON object"),
    ],
)
def test_encoders_that_are_written_wrongly_are_usage_errors(files, options, message) -> None:
    told = run("adopt", "old.npy", *options, code=Exit.USAGE).replace("│", " ")
    assert message in " ".join(told.split())
    assert not (files / "space").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--encoder", "torch.nn:Liner"),
            "is not there: the nearest name is Linear",
        ),
        (("--encoder", "nothing_here:network"), "cannot be imported"),
        (("--encoder-args", "{}"), "are for encoders of your own"),
        ((*ENCODER, '{"in_features": 8}'), "TypeError"),
        ((*ENCODER, '{"in_features": 8, "out_features": 5}'), "weight is (4, 8), the encoder's is"),
    ],
)
def test_encoders_that_cannot_be_used_leave_no_workspace(files, options, message) -> None:
    shown = run("adopt", "old.npy", *options, "--weights", "weights.safetensors", code=Exit.DATA)
    assert message in shown
    assert not (files / "space").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--encoder", "nothing_here:network"), "cannot be imported"),
        ((*ENCODER, '{"in_features": 9, "out_features": 5}'), "cannot take a batch"),
        ((*ENCODER, ARGUMENTS, "--weights", "other.safetensors"), "of another shape"),
    ],
)
def test_an_encoder_is_tried_before_anything_is_ingested(files, options, message) -> None:
    save_file(nn.Linear(8, 5).state_dict(), "other.safetensors")
    shown = run("adopt", "old.npy", *options, code=Exit.DATA)
    assert message in shown
    assert "ingested" not in shown


def test_an_encoder_is_imported_before_data_are_read(files: Path) -> None:
    shown = run("adopt", "nothing.npy", "--encoder", "nothing_here:network", code=Exit.DATA)
    assert "cannot be imported" in shown


def test_a_workspace_of_ones_own_encoder_keeps_its_command_line(files: Path) -> None:
    run("init", "space", "--like", "old.npy", *ENCODER, ARGUMENTS, "--fit-epochs", 2)
    run("fit", "old.npy")
    assert Workspace.open("space").learner().embed(np.load("new.npy")).shape == (20, 4)
