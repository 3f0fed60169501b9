"""An update that makes new items worse is not promoted without a word."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from incontrast import ICL, FineTune, Fixed, Learner, Probe, Retrain, Vectors, Workspace
from incontrast.cli.app import app
from incontrast.data import Labelled
from incontrast.text import fallen_scores
from tests.documents import shape


@dataclass(frozen=True, kw_only=True)
class Worsen(FineTune):
    """Climbs instead of descending."""

    def loss(self, task, batch, first, second):
        return -super().loss(task, batch, first, second)


def learner() -> Learner:
    return Learner(Vectors(8), fit_strategy=Retrain(max_epochs=5), seed=0)


def test_an_outcome_says_so_and_what_to_do(blobs) -> None:
    trained = learner()
    trained.fit(blobs(80))
    outcome = trained.update(blobs(40, seed=1), strategy=Worsen(max_epochs=20))
    assert outcome.loss_new.after > outcome.loss_new.before
    (worse,) = outcome.worse
    assert worse.startswith("the loss of new items rose from")
    assert f"worse: {worse}. Keep the encoder of before" in str(outcome)
    assert outcome.as_json()["worse"] == [worse]
    # Pages that show an outcome hold on machines where it got worse.
    assert shape(str(outcome)) == shape(str(replace(outcome, worse=())))


def test_embeddings_that_have_collapsed_are_pointed_out(blobs) -> None:
    encoder = nn.Linear(8, 4)
    with torch.no_grad():
        encoder.weight.mul_(1e-3)
        encoder.bias.fill_(100.0)
    domain = Vectors(8)
    collapsed = Learner.from_encoder(encoder, domain, seen=blobs(80))
    update = FineTune(max_epochs=1, lr=Fixed(1e-9))
    outcome = collapsed.update(blobs(40, seed=1), strategy=update)
    assert "all embeddings are nearly the same, they have collapsed" in outcome.worse


def test_one_that_helps_or_changes_nothing_says_nothing(blobs) -> None:
    trained = learner()
    assert trained.fit(blobs(80)).worse == ()
    outcome = trained.update(blobs(40, seed=1, shift=2.0), strategy=ICL(max_epochs=3))
    assert outcome.loss_new.after < outcome.loss_new.before
    assert outcome.worse == ()
    assert "worse" not in str(outcome)


def test_scores_of_a_probe_that_fall_are_named() -> None:
    def scores(accuracy: float, precision: float) -> dict[str, object]:
        part = {"knn_accuracy": accuracy, "precision": precision, "items": 99}
        return {"old": None, "new": part, "all": None}

    change = {"before": scores(0.9, 0.8), "after": scores(0.85, 0.79)}
    assert list(fallen_scores(change)) == ["kNN accuracy of new classes fell from 0.900 to 0.850"]
    assert list(fallen_scores(None)) == []


@pytest.fixture
def space(tmp_path, blobs) -> Workspace:
    created = Workspace.create(tmp_path / "space", learner(), tolerance=99.0)
    created.fit(blobs(80))
    return created


def test_a_workspace_promotes_it_with_a_remark_everywhere(space, blobs) -> None:
    rows = blobs(40, seed=1)
    probe = Probe(Labelled(rows, (rows[:, 0] > 0).long().numpy()))
    step = space.update(rows, strategy=Worsen(max_epochs=20), probe=probe)
    assert step.promoted
    (worse, *_) = step.outcome["worse"]
    assert worse.startswith("the loss of new items rose from")

    def run(command: str) -> str:
        result = CliRunner().invoke(app, [command, "-w", str(space.folder)])
        assert result.exit_code == 0, result.output
        return result.output

    shown = run("report")
    assert f"Promoted: all checks passed, but {worse}" in shown
    assert "It got worse: `incontrast rollback -w" in shown
    page = (space.reports / "version-2.html").read_text()
    assert f"Promoted: all checks passed, but {worse}" in page
    assert f"all checks passed; but {worse}" in run("log")


def test_one_that_was_forced_passed_no_checks(space, blobs, monkeypatch) -> None:
    failing = "incontrast.workspace.evaluation.failed_checks"
    monkeypatch.setattr(failing, lambda **about: ["it is Monday"])
    space.update(blobs(40, seed=1), strategy=Worsen(max_epochs=20))
    result = CliRunner().invoke(app, ["update", "--force", "-w", str(space.folder)])
    assert "Promoted by force, despite: it is Monday." in result.output
    assert "It got worse" in result.output
    assert "checks passed" not in result.output.lower()
