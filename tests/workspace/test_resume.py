"""An update that is killed while it trains resumes from its last checkpoint."""

from __future__ import annotations

import signal
from dataclasses import asdict, dataclass

import pytest
import torch

import incontrast as ic
from incontrast.training import resume
from incontrast.workspace.files import write_json


class Killed(BaseException):
    """Like SIGKILL: nothing may catch it."""


@pytest.fixture
def every_step(monkeypatch) -> None:
    monkeypatch.setattr(resume, "EVERY", 0.0)
    monkeypatch.setattr(resume, "SHARE", float("inf"))


def workspace(folder) -> ic.Workspace:
    learner = ic.Learner(
        ic.Vectors(8, hidden=16, out=8),
        strategy=ic.ICL(max_epochs=6, epoch_steps=2),
        fit_strategy=ic.Retrain(max_epochs=6),
        memory=ic.Reservoir(items=50),
        seed=0,
    )
    return ic.Workspace.create(folder, learner)


def killed_after(steps: int, seen: list[int]):
    def progress(progress: ic.Progress) -> None:
        seen.append(progress.steps)
        if progress.steps >= steps:
            raise Killed

    return progress


def weights(space: ic.Workspace) -> dict[str, torch.Tensor]:
    return space.learner().encoder.state_dict()


def test_training_resumes_where_it_was_killed(tmp_path, blobs, every_step) -> None:
    straight, broken = workspace(tmp_path / "a"), workspace(tmp_path / "b")
    for space in (straight, broken):
        for command, rows in (("fit", blobs(80)), ("update", blobs(40, shift=1.0))):
            run = getattr(space, command)
            if space is broken:
                for steps in (3, 5):
                    with pytest.raises(Killed):
                        run(rows, callbacks=[killed_after(steps, [])])
                    assert space.training_file.exists()
                    rows = None  # resumes without the data
            seen: list[int] = []
            run(rows, force=True, callbacks=[killed_after(10_000, seen)])
            assert min(seen) >= (4 if space is broken else 1)
            assert not space.training_file.exists()
    expected = weights(straight)
    for name, value in weights(broken).items():
        assert torch.equal(value, expected[name]), name


def test_what_trains_is_not_changed_under_an_update(tmp_path, blobs, every_step) -> None:
    space = workspace(tmp_path / "space")
    space.fit(blobs(80))
    with pytest.raises(Killed):
        space.update(blobs(40, shift=1.0), callbacks=[killed_after(3, [])])
    for change in ("strategy.type=FineTune", "temperature=0.3", "domain.drop=0.1"):
        with pytest.raises(ic.WorkspaceError, match=r"an update .* is unfinished: .* --discard"):
            ic.Workspace.open(space.folder).configure(change)
    space.configure("keep=5")  # trains nothing
    step = ic.Workspace.open(space.folder).update(force=True)
    assert step.outcome["strategy"] == "ICL"
    space.configure("strategy.type=FineTune")


def test_a_hand_edit_does_not_change_what_trains(tmp_path, blobs, every_step) -> None:
    space = workspace(tmp_path / "space")
    space.fit(blobs(80))
    with pytest.raises(Killed):
        space.update(blobs(40, shift=1.0), callbacks=[killed_after(3, [])])
    file = space.folder / "settings.toml"
    whole = file.read_text()
    file.write_text(whole.replace("temperature = 0.1", "temperature = 0.3"))
    expected = r"objective.temperature was 0\.1 when an update began .* is 0\.3 now: change it back"
    with pytest.raises(ic.WorkspaceError, match=expected):
        ic.Workspace.open(space.folder).update()
    file.write_text(whole.replace("keep = 10", "keep = 9"))  # trains nothing
    assert ic.Workspace.open(space.folder).update(force=True).promoted


def test_discarding_an_update_leaves_no_training_state(tmp_path, blobs, every_step) -> None:
    space = workspace(tmp_path / "space")
    space.fit(blobs(80))
    with pytest.raises(Killed):
        space.update(blobs(40), callbacks=[killed_after(3, [])])
    assert space.discard()
    assert not space.training_file.exists()


def test_a_budget_too_small_keeps_what_was_ingested(tmp_path, blobs) -> None:
    space = workspace(tmp_path / "space")
    space.fit(blobs(80))
    # What was given, not what is left of it for the learner.
    pending = "40 items of data in memory ingested, to be trained: incontrast update --seconds N"
    with pytest.raises(ValueError, match=rf"budget of 1e-06 seconds is too small.*\. {pending}"):
        space.update(blobs(40), budget=ic.Budget(seconds=1e-6))
    assert space.state().resumable
    said: list[str] = []
    budget = ic.Budget(forward_passes=1_000)
    step = space.update(force=True, budget=budget, notify=said.append)
    assert "data in memory, another budget and otherwise the settings it was begun" in said[0]
    assert step.promoted
    assert step.items == 40
    assert step.outcome["forward_passes"] <= 1_400


@dataclass(frozen=True)
class Halved(ic.Schedule):
    """A schedule of one's own, which no file can hold."""

    def begin(self, generator, state=None) -> ic.LearningRate:
        return ic.Fixed(5e-4).begin(generator, state)


BAD = ic.FineTune(max_epochs=30, lr=3e-2, ema_decay=0.0)


def refused(tmp_path, blobs) -> ic.Workspace:
    learner = ic.Learner(
        ic.Vectors(8, hidden=16, out=8), fit_strategy=ic.Retrain(max_epochs=20), seed=0
    )
    space = ic.Workspace.create(tmp_path / "space", learner, tolerance=0.0)
    space.fit(blobs(60))
    step = space.update(blobs(40, shift=30.0, seed=1), strategy=BAD)
    assert not step.promoted
    return space


def test_a_strategy_with_a_schedule_of_ones_own(tmp_path, blobs) -> None:
    space = refused(tmp_path, blobs)
    strategy = ic.ICL(max_epochs=3, lr=Halved())
    step = space.update(blobs(7, seed=5), strategy=strategy, force=True)
    assert step.items == 47  # with those that were refused
    assert step.outcome["strategy"] == "ICL"
    with pytest.raises(Killed):
        space.update(blobs(9, seed=6), strategy=strategy, callbacks=[killed_after(1, [])])
    with pytest.raises(ic.WorkspaceError, match="pass it again to resume"):
        space.update()
    assert space.update(strategy=strategy, force=True).items == 9


def test_refused_items_survive_whatever_they_are_joined_by(tmp_path, blobs, monkeypatch) -> None:
    space = refused(tmp_path, blobs)

    def fails(self, task):
        raise ValueError("no batches today")

    monkeypatch.setattr(ic.ICL, "sample", fails)
    with pytest.raises(ValueError, match="no batches today"):
        space.update(blobs(7, seed=5), strategy=ic.ICL(max_epochs=3))
    monkeypatch.undo()
    assert space.state().refused
    step = space.update(strategy=ic.ICL(max_epochs=3), force=True)
    assert step.items == 47


def test_what_was_begun_before_a_setting_existed_resumes(tmp_path, blobs, every_step) -> None:
    space = workspace(tmp_path / "space")
    with pytest.raises(Killed):
        space.fit(blobs(80), callbacks=[killed_after(3, [])])
    state = asdict(space.state())
    for name in ("compile", "keep_neighbours"):
        del state["operation"]["settings"][name]
    write_json(space.state_file, state)
    assert space.fit().promoted


def test_what_was_refused_can_be_trained_again_with_other_settings(tmp_path, blobs) -> None:
    space = refused(tmp_path, blobs)
    again = space.update()
    assert not again.promoted  # the same settings: the same verdict, and no training
    assert again.version == 2
    other = space.update(strategy=ic.ICL(max_epochs=3), force=True)
    assert other.promoted
    assert (other.version, other.items, other.outcome["strategy"]) == (3, 40, "ICL")
    assert space.versions.numbers() == [1, 3]


def test_what_was_refused_is_trained_again_once_settings_have_changed(tmp_path, blobs) -> None:
    space = refused(tmp_path, blobs)
    space.configure("strategy.max_epochs=3")
    sentences: list[str] = []
    step = space.update(notify=sentences.append)
    assert sentences[0] == "training on data in memory once more, with the present settings"
    assert (step.version, step.items, step.outcome["strategy"]) == (3, 40, "ICL")
    assert step.outcome["epochs"] == 3


def test_force_promotes_what_was_refused_whatever_settings_are_now(tmp_path, blobs) -> None:
    space = refused(tmp_path, blobs)
    space.configure("strategy.max_epochs=3")
    step = space.update(force=True)
    assert (step.version, step.promoted, step.outcome["strategy"]) == (2, True, "FineTune")


def test_training_keeps_to_the_tolerance_it_was_begun_with(tmp_path, blobs, monkeypatch) -> None:
    learner = ic.Learner(ic.Vectors(8, hidden=16, out=8), fit_strategy=ic.Retrain(max_epochs=1))
    space = ic.Workspace.create(tmp_path / "space", learner)
    space.fit(blobs(60))
    given = []
    update = ic.Learner.update

    def noted(self, items, **options):
        given.append(options["tolerance"])
        return update(self, items, **options)

    monkeypatch.setattr(ic.Learner, "update", noted)
    space.update(blobs(20, seed=1), tolerance=0.4, strategy=ic.ICL(max_epochs=1))
    space.update(blobs(20, seed=2), strategy=ic.ICL(max_epochs=1))
    assert given == [0.4, 0.05]


def test_what_was_refused_can_be_judged_by_another_tolerance(tmp_path, blobs) -> None:
    space = refused(tmp_path, blobs)
    (reason,) = space.state().operation["failed_checks"]
    assert "than the 0% that is tolerated" in reason
    assert not space.update(tolerance=0.065).promoted
    assert "than the 6.5% that is tolerated" in space.state().operation["failed_checks"][0]
    step = space.update(tolerance=1e6)
    assert (step.promoted, step.version, step.failed_checks) == (True, 2, ())
    steps = [event["step"] for event in space.journal.events()]
    assert (steps.count("train"), steps.count("evaluate")) == (2, 4)
    with pytest.raises(ValueError, match="tolerance must be"):
        space.update(blobs(20), tolerance=-0.1)


def test_a_number_that_is_given_again_is_not_taken_for_the_version_it_named(
    tmp_path, blobs
) -> None:
    space = refused(tmp_path, blobs)
    assert space.versions.record(2)["outcome"]["strategy"] == "FineTune"
    folder = space.versions.folder(2)
    content = space.versions.record(2) | {"outcome": {"strategy": "other"}}
    write_json(folder / "version.json", content)
    assert space.versions.record(2)["outcome"]["strategy"] == "other"


def presses_ctrl_c(after: int, times: int = 1):
    """A callback that sends this process what Ctrl-C sends."""

    def progress(progress: ic.Progress) -> None:
        if progress.steps == after and progress.finished is None:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    return progress


def note_step(progress: ic.Progress, taken: list[int]) -> None:
    if progress.finished is None:
        taken.append(progress.steps)


def test_ctrl_c_keeps_every_step(tmp_path, blobs, usual_ctrl_c) -> None:
    """No minute has passed, and no state was written yet."""
    straight, broken = workspace(tmp_path / "a"), workspace(tmp_path / "b")
    for space in (straight, broken):
        for command, rows in (("fit", blobs(80)), ("update", blobs(40, shift=1.0))):
            run = getattr(space, command)
            if space is broken:
                with pytest.raises(KeyboardInterrupt):
                    run(rows, callbacks=[presses_ctrl_c(3)])
                rows = None
            taken: list[int] = []
            run(rows, force=True, callbacks=[lambda at, taken=taken: note_step(at, taken)])
            assert taken[0] == (4 if space is broken else 1)
    expected = weights(straight)
    for name, value in weights(broken).items():
        assert torch.equal(value, expected[name]), name


def test_a_second_ctrl_c_does_not_wait(tmp_path, blobs, usual_ctrl_c) -> None:
    space = workspace(tmp_path / "space")
    with pytest.raises(KeyboardInterrupt):
        space.fit(blobs(80), callbacks=[presses_ctrl_c(3, times=2)])
    assert not space.training_file.exists()
    space.fit()


def test_ctrl_c_in_the_last_step_is_not_lost(tmp_path, blobs, usual_ctrl_c) -> None:
    space = workspace(tmp_path / "space")
    with pytest.raises(KeyboardInterrupt):
        space.fit(blobs(80), callbacks=[lambda step: presses(step.finished is not None)])
    assert space.current is None
    assert space.fit().version == 1


def presses(now: bool) -> None:
    if now:
        signal.raise_signal(signal.SIGINT)


def test_the_state_of_a_finished_training_is_deleted_by_the_next_command(tmp_path, blobs) -> None:
    """A power cut may fall between the write that ends training and the deletion of its state."""
    space = workspace(tmp_path / "space")
    space.fit(blobs(80))
    space.training_file.write_bytes(b"of a training that is over")
    with pytest.raises(ic.WorkspaceError):
        space.rollback()
    assert not space.training_file.exists()
