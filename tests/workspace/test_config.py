"""The settings of a workspace: one TOML file, changed where that is safe."""

from __future__ import annotations

import tomllib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from incontrast import (
    ICL,
    Budget,
    Fixed,
    Images,
    Learner,
    Objective,
    Reservoir,
    Retrain,
    Vectors,
    WarmStart,
    Workspace,
    WorkspaceError,
)
from incontrast.text import sentence
from incontrast.workspace.config import CONFIG, flattened, to_toml


@pytest.fixture
def workspace(tmp_path) -> Workspace:
    learner = Learner(
        Vectors(8),
        fit_strategy=Retrain(max_epochs=2),
        strategy=ICL(lr=Fixed(1e-3, warmup=0.1), max_epochs=1, epoch_steps=1),
        memory=Reservoir(items=50),
    )
    return Workspace.create(tmp_path / "space", learner, budget=Budget(forward_passes=10_000))


def reopened(workspace: Workspace) -> Workspace:
    return Workspace.open(workspace.folder)


def test_the_file_has_everything_that_a_learner_takes(workspace: Workspace) -> None:
    found = tomllib.loads((workspace.folder / CONFIG).read_text())
    taken = set(Learner.__init__.__kwdefaults__) - {"fabric"} | {"domain"}
    assert taken <= found.keys()
    assert found["strategy"]["lr"] == {"type": "Fixed", "lr": 1e-3, "warmup": 0.1}
    assert found["memory"] == {"type": "Reservoir", "items": 50, "bytes": "none"}
    assert found["budget"] == {"seconds": "none", "forward_passes": 10_000}
    assert reopened(workspace).template().strategy == workspace.template().strategy


def test_what_is_changed_holds_for_versions_that_there_are(workspace: Workspace, blobs) -> None:
    workspace.configure("head=linear", "fit_strategy.max_epochs=1")
    workspace.fit(blobs(40))
    assert workspace.learner().embed(blobs(3), head=True).shape == (3, 128)
    changes = ("temperature=0.3", "strategy.lr=0.01", "domain.drop=0.1", "precision=bfloat16")
    assert reopened(workspace).configure(*changes) == {
        "objective.temperature": 0.3,
        "strategy.lr": 0.01,
        "domain.drop": 0.1,
        "precision": "bfloat16",
    }
    learner = reopened(workspace).learner()
    assert learner.objective.temperature == 0.3
    assert learner.strategy.lr == 0.01
    assert learner.domain.drop == learner.initial_domain.drop == 0.1
    assert learner.domain.mean is not None  # what the first data told stays
    assert learner.engine.precision == "bfloat16"
    assert "settings changed: objective.temperature = 0.3" in sentence(
        workspace.journal.events()[-1]
    )
    step = reopened(workspace).update(blobs(20, seed=1))
    assert step.outcome["settings"]["lr"] == 0.01


def test_changes_by_others_since_it_was_opened_stay(workspace: Workspace) -> None:
    reopened(workspace).configure("temperature=0.3")
    workspace.configure("tolerance=0.1")
    for seen in (workspace, reopened(workspace)):
        assert seen.template().objective.temperature == 0.3
        assert seen.settings["tolerance"] == 0.1


def test_changes_take_the_place_of_what_a_workspace_was_created_with(
    workspace: Workspace, blobs
) -> None:
    workspace.fit(blobs(40))
    reopened(workspace).configure("domain.drop=0.1")
    workspace.configure("strategy.max_epochs=3")
    learner = workspace.learner()
    assert learner.domain.drop == 0.1
    assert learner.strategy.max_epochs == workspace.template().strategy.max_epochs == 3


def test_another_type_has_its_own_settings(workspace: Workspace) -> None:
    workspace.configure("strategy.max_epochs=3", "strategy.type=WarmStart")
    assert reopened(workspace).template().strategy == WarmStart(max_epochs=3)
    workspace.configure('strategy.lr={type="Cosine", lr=0.004, warmup=0.0}')
    assert reopened(workspace).template().strategy.lr.lr == 0.004


def test_the_budget_of_the_workspace_is_that_of_updates_without_one(
    workspace: Workspace, blobs
) -> None:
    workspace.fit(blobs(40))
    workspace.configure("forward_passes=128", "strategy.max_epochs=50")
    step = reopened(workspace).update(blobs(20, seed=1))
    assert step.outcome["stopped"] == "budget"
    assert step.outcome["forward_passes"] < 256
    given = reopened(workspace).update(blobs(20, seed=2), budget=Budget(forward_passes=400))
    assert 400 <= given.outcome["forward_passes"] < 800


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("strategy.learning_rate=3", "the nearest is strategy.lr"),
        ("fit_strategy.epochs=3", "the nearest is fit_strategy.max_epochs"),
        ("epochs=3", "the nearest is strategy.max_epochs"),
        ("tau=3", "the nearest is objective.temperature"),
        ("strategy.batchsize=3", "'strategy.batchsize': the nearest is strategy.batch_size"),
        ("temprature=1", "'temprature': the nearest is objective.temperature"),
        ("lr=1", r"'lr' is in several places: strategy\.lr\.lr or fit_strategy\.lr"),
        ("temperature", "changed by name=value, got 'temperature'"),
        ("temperature=-1", "temperature must be positive"),
        ("strategy.max_epochs=many", "a value of another kind|must be a whole number"),
        ("strategy.type=Retrane", "'Retrane': the nearest is Retrain"),
        ("keep=1", "keep must be at least 2"),
        ("device=abacus", "device 'abacus' cannot be used here"),
        ("precision=float16", "precision must be 'float32' or 'bfloat16'"),
        ("budget.seconds=0", "seconds must be positive"),
        ("strategy.optimizer={type='Adam', max_nrom=1}", "no setting 'max_nrom': .* max_norm"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(workspace, change, message) -> None:
    before = (workspace.folder / CONFIG).read_bytes()
    with pytest.raises(ValueError, match=message):
        workspace.configure(change)
    assert (workspace.folder / CONFIG).read_bytes() == before


@pytest.mark.parametrize("change", ["domain.dim=3", "domain.hidden=3", "seed=1", "memory.items=3"])
def test_what_data_and_encoders_depend_on_stays(workspace: Workspace, change: str) -> None:
    with pytest.raises(WorkspaceError, match="cannot be changed any more"):
        workspace.configure(change)


def test_a_head_stays_once_there_is_an_encoder(workspace: Workspace, blobs) -> None:
    workspace.fit(blobs(40))
    with pytest.raises(WorkspaceError, match="head cannot be changed any more"):
        workspace.configure("head=mlp")


def edited(workspace: Workspace, before: str, after: str) -> Workspace:
    file = workspace.folder / CONFIG
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after, 1))
    return reopened(workspace)


def test_a_person_may_edit_the_file(workspace: Workspace) -> None:
    changed = edited(workspace, "temperature = 0.1", "temperature = 0.2")
    assert changed.template().objective == Objective(temperature=0.2)
    (workspace.folder / CONFIG).unlink()  # as it was created
    assert reopened(workspace).template().objective == workspace.template().objective


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("seed = 0", "seed = 1", "seed cannot be changed any more, it was 0 and is 1 now"),
        ("dim = 8", "dim = 9", r"domain\.dim cannot be changed any more"),
        ("items = 50\n", "", r"memory\.items cannot be changed any more, .* is left out now"),
        ("[memory]\n", "[memory]\nlimit = 3\n", r"memory\.limit .* it was left out"),
        ("tolerance = 0.05", "tolerence = 0.05", "'tolerence': the nearest is tolerance"),
        ("seed = 0", "seed = ", "cannot be read"),
    ],
)
def test_edits_that_cannot_be_are_refused(workspace, before, after, message) -> None:
    with pytest.raises(WorkspaceError, match=message):
        edited(workspace, before, after)


def test_a_head_by_import_path_is_that_of_its_versions(workspace: Workspace, blobs) -> None:
    named = '{type="ImportPath", path="torch.nn:Linear", arguments={out_features=3}}'
    workspace.configure("fit_strategy.max_epochs=1", f"head={named}")
    workspace.fit(blobs(40))
    assert reopened(workspace).learner().embed(blobs(3), head=True).shape == (3, 3)


@pytest.mark.parametrize("head", ["linear", "none"])
def test_a_head_is_not_edited_once_there_is_an_encoder(workspace, blobs, head: str) -> None:
    workspace.configure("head=mlp")
    workspace.fit(blobs(40))
    assert reopened(workspace).learner().head == "mlp"
    changed = edited(workspace, 'head = "mlp"', f'head = "{head}"')
    with pytest.raises(WorkspaceError, match="head cannot be changed any more, it was 'mlp'"):
        changed.learner()


def test_a_head_that_replaces_that_of_the_creation_is_trained(tmp_path, blobs) -> None:
    learner = Learner(Vectors(8), head="mlp", fit_strategy=Retrain(max_epochs=1))
    space = Workspace.create(tmp_path / "space", learner)
    space.configure("head=linear")
    space.fit(blobs(40))
    assert reopened(space).learner().head == "linear"


def test_a_name_that_is_not_there_is_refused_when_it_is_used(workspace: Workspace) -> None:
    changed = edited(workspace, "temperature =", "temprature =")
    with pytest.raises(ValueError, match=r"no setting 'temprature': the nearest is temperature"):
        changed.template()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('type = "ICL"', 'type = "ICLL"'),
        ("temperature =", "temprature ="),
        ("temperature = ", "temperature = -"),
        ('precision = "float32"', 'precision = "float23"'),
        ("keep_neighbours =", "keep_neighbours = 7 #"),
    ],
)
def test_what_makes_no_sense_is_looked_for_where_it_is_written(
    workspace: Workspace, blobs, old: str, new: str
) -> None:
    workspace.fit(blobs(40))
    changed = edited(workspace, old, new)
    for use in (changed.learner, changed.template):
        with pytest.raises(ValueError, match=r"settings\.toml: .|settings\.toml names an unknown"):
            use()


def test_settings_of_images_are_written_and_read(tmp_path) -> None:
    learner = Learner(Images(8, 1, encoder="small"))
    space = Workspace.create(tmp_path / "images", learner)
    space.configure("flip=0", "domain.views.scale=[0.5, 1.0]")
    views = reopened(space).template().domain.arguments()["views"]
    assert (views.flip, views.scale) == (0, (0.5, 1.0))


plain = st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text(max_size=5)
numbers = st.floats(allow_nan=False, allow_infinity=False)
nested = st.recursive(
    plain | numbers | st.lists(st.integers(-5, 5) | numbers, max_size=3),
    lambda inner: st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=4), nested, max_size=4))
def test_any_settings_come_back_from_toml(config) -> None:
    def there(value):
        if isinstance(value, dict):
            return {name: there(part) for name, part in value.items()}
        return "none" if value is None else value

    assert tomllib.loads(to_toml(config)) == there(config)


def test_flattened_names_have_dots() -> None:
    assert flattened({"a": {"b": 1, "c": {}}, "d": None}) == {"a.b": 1, "a.c": {}, "d": None}


def test_bits_do_not_depend_on_where_a_setting_was_given(tmp_path, blobs) -> None:
    rows = blobs(40)
    early = Learner(Vectors(8), fit_strategy=Retrain(max_epochs=2, lr=0.005))
    early.fit(rows)
    late = Workspace.create(tmp_path / "late", Learner(Vectors(8)))
    late.configure("fit_strategy.max_epochs=2", "fit_strategy.lr=0.005")
    reopened(late).fit(rows)
    assert torch.equal(reopened(late).learner().embed(rows), early.embed(rows))
