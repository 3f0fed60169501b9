"""Code of one's own by its import path: found, called, saved, and not run without permission."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from incontrast import ICL, Images, ImportPath, Learner, Optimizer, Retrain, Vectors
from incontrast.import_path import Untrusted, named_code, permit, permitted

QUICK = Retrain(max_epochs=2)
NETWORK = """
from torch import nn

def network(width=4, dim=8):
    return nn.Sequential(nn.Linear(dim, 16), nn.ReLU(), nn.Linear(16, width))

def head(width, out=3):
    return nn.Linear(width, out)

def shifted(rows, generator, by=0.5):
    return rows + by * (rows.new_empty(len(rows), 1).normal_(generator=generator))

def failing():
    raise RuntimeError("no disk")

def number():
    return 3

something = 3
"""


@pytest.fixture(autouse=True)
def own_module(tmp_path, monkeypatch) -> None:
    """A module in the current folder, as a user has it, and no permissions yet."""
    (tmp_path / "own_network.py").write_text(NETWORK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_code_is_found_in_the_current_folder_and_called_with_its_arguments() -> None:
    assert ImportPath("own_network:network", {"width": 5})()[-1].out_features == 5
    assert isinstance(ImportPath("torch.nn:Identity")(), nn.Identity)
    assert ImportPath("os:path.join")("a", "b") == "a/b"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("own_network", "named as package.module:function"),
        ("own-network:network", "named as package.module:function"),
        ("missing_module:network", r"cannot be imported \(No module named .*start in its folder"),
        ("own_network:netwrok", "own_network:netwrok is not there: the nearest name is network"),
        ("own_network:something", "is a int: name a function or a class"),
        ("own_network:failing", r"own_network:failing failed with \{\}: RuntimeError: no disk"),
    ],
)
def test_code_that_is_not_there_or_fails_is_named(path, message) -> None:
    with pytest.raises(ValueError, match=message):
        ImportPath(path)()


def test_arguments_are_what_json_has_and_what_the_function_takes() -> None:
    with pytest.raises(ValueError, match="must be what JSON has"):
        ImportPath("own_network:network", {"width": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"failed with \{'depth': 3\}: TypeError"):
        ImportPath("own_network:network", {"depth": 3})()
    with pytest.raises(TypeError, match=r"must return a torch\.nn\.Module, got int"):
        Vectors(8, encoder="own_network:number").encoder()


def test_every_domain_takes_an_import_path() -> None:
    rows = ImportPath("own_network:network", {"width": 5})
    assert Vectors(8, encoder=rows).encoder()[-1].out_features == 5
    assert Vectors(8, encoder="own_network:network").encoder()[-1].out_features == 4
    assert isinstance(Images(8, encoder="torch.nn:Flatten").encoder(), nn.Flatten)
    with pytest.raises(ValueError, match=r"encoder must be a module .* package\.module:function"):
        Vectors(8, encoder="network")


def learner(blobs) -> Learner:
    views = ImportPath("own_network:shifted", {"by": 0.2})
    made = Learner(
        Vectors(8, encoder=ImportPath("own_network:network", {"width": 5}), views=views),
        head="own_network:head",
        fit_strategy=QUICK,
        strategy=ICL(max_epochs=1, optimizer=Optimizer(factory="torch.optim:SGD", max_norm=1.0)),
    )
    made.fit(blobs(40))
    return made


def test_a_saved_learner_with_code_by_path_comes_back_whole(blobs, tmp_path) -> None:
    made, rows = learner(blobs), blobs(10)
    made.save(tmp_path / "saved")
    again = Learner.load(tmp_path / "saved", trust=True)
    assert torch.equal(again.embed(rows, head=True), made.embed(rows, head=True))
    assert again.embed(rows).shape == (10, 5)
    assert (again.domain, again.strategy, again.head) == (made.domain, made.strategy, made.head)
    first, second = made.update(blobs(20) + 1.0), again.update(blobs(20) + 1.0)
    assert first.loss == second.loss


def test_code_that_a_saved_learner_names_is_not_run_without_permission(blobs, tmp_path) -> None:
    made = learner(blobs)
    made.save(tmp_path / "saved")
    (tmp_path / "own_network.py").write_text("raise SystemExit('it ran')")
    named = "own_network:head, own_network:network, own_network:shifted, torch.optim:SGD"
    with pytest.raises(Untrusted, match=f"names code that would run here: {named}.*trust=True"):
        Learner.load(tmp_path / "saved")
    again = Learner.load(
        tmp_path / "saved",
        domain=made.initial_domain,
        strategy=ICL(),
        head=nn.Linear(5, 3),
    )  # what one passes oneself needs no permission
    assert again.version == 1


def test_plain_strings_that_would_become_code_are_code() -> None:
    settings = {"domain": {"type": "Vectors", "encoder": "os:abort", "views": ["a", {"b": "c:d"}]}}
    assert named_code(json.loads(json.dumps(settings))) == {"os:abort", "c:d"}
    assert named_code({"device": "cuda:0", "time": "12:30", "text": "see: below"}) == set()


def test_permissions_given_at_once_are_all_kept(tmp_path) -> None:
    folders = [tmp_path / str(number) for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda folder: permit(folder, {"own_network:head"}), folders))
    assert all(permitted(folder, {"own_network:head"}) for folder in folders)
    assert not permitted(tmp_path, {"own_network:head"})


@pytest.mark.parametrize("content", ["{", "[]"])
def test_damaged_permissions_are_not_written_over(tmp_path, content: str) -> None:
    permit(tmp_path, {"own_network:head"})
    (record,) = (tmp_path / "config").rglob("permissions.json")
    record.write_text(content)
    for ask in (permit, permitted):
        with pytest.raises(Untrusted, match=r"cannot be read .*: fix or delete it"):
            ask(tmp_path, {"own_network:network"})
    permit(tmp_path, ())  # what names no code asks nobody
    assert record.read_text() == content
