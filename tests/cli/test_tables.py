"""Columns of tables that a workspace remembers: names, labels and features."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from incontrast import Learner, NoUpdate, Retrain, Vectors, Workspace
from incontrast.cli.app import app
from incontrast.cli.command import Exit
from incontrast.data.sources import read_source, with_columns
from incontrast.workspace.config import NO_TABLE
from incontrast.workspace.files import SETTINGS, read_json, write_json

HEADER = "user,kind,a,b,c,d,e,f,g,h"
TABLE = ("--id", "user", "--label", "kind")


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def write(name: str, rows, *, header: str = HEADER, start: int = 0) -> None:
    names = header.split(",")
    lines = []
    for number, row in enumerate(rows.tolist(), start=start):
        values = {"user": f"u{number}", "customer": f"c{number}", "kind": "x"}
        values |= dict(zip("abcdefgh", map(str, row), strict=True))
        lines.append(",".join(values[name] for name in names))
    Path(name).write_text("\n".join([header, *lines]))


@pytest.fixture
def weeks(tmp_path: Path, blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INCONTRAST_WORKSPACE", str(tmp_path / "space"))
    write("old.csv", blobs(60))
    write("new.csv", blobs(20, seed=1, shift=1.0), start=60)


def names(file: str) -> list[str]:
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


def test_columns_of_init_hold_for_every_later_command(weeks, blobs) -> None:
    run("init", "space", "--like", "old.csv", *TABLE, "--fit-epochs", 1, "--epochs", 1)
    assert tomllib.loads(run("config"))["table"] == {
        "columns": list("abcdefgh"),
        "id": "user",
        "label": "kind",
    }
    run("fit", "old.csv")
    run("drift", "new.csv")
    run("update", "new.csv")
    run("embed", "new.csv", "new.npy")
    assert names("new.ids.jsonl")[:2] == ["u60", "u61"]
    write("late.csv", blobs(20, seed=2, shift=2.0))
    run("update", "late.csv")
    run("reembed", "new.npy")
    assert "20 items forgotten" in run("forget", "--like", "new.csv")
    assert Workspace.open("space").embed("new.csv").shape[0] == 20  # so has Python


def test_columns_that_are_given_come_before_those_of_the_workspace(weeks, blobs) -> None:
    run("init", "space", "--like", "old.csv", *TABLE, "--fit-epochs", 1)
    run("fit", "old.csv")
    write("other.csv", blobs(20), header=HEADER.replace("user", "customer"))
    shown = run("embed", "other.csv", "other.npy", code=Exit.DATA)
    assert "has no column 'user', which this workspace has as --id: it has ['customer'" in shown
    assert "give --id, or incontrast config --set table.id=none" in shown
    run("embed", "other.csv", "other.npy", "--id", "customer")
    assert names("other.ids.jsonl")[0] == "c0"
    run("config", "--set", "table.id=customer")
    run("embed", "other.csv", "again.npy")
    assert names("again.ids.jsonl")[0] == "c0"


def test_a_label_that_new_data_have_not_is_not_missed(weeks, blobs) -> None:
    run("init", "space", "--like", "old.csv", *TABLE, "--fit-epochs", 1)
    run("fit", "old.csv")
    write("unlabelled.csv", blobs(20), header=HEADER.replace("kind,", ""))
    run("embed", "unlabelled.csv", "unlabelled.npy")


def test_features_are_remembered_and_missed(weeks, blobs) -> None:
    some = ("--columns", "a,b,c", "--id", "user")
    run("init", "space", "--like", "old.csv", *some, "--fit-epochs", 1, "--epochs", 1)
    run("fit", "old.csv")
    run("update", "new.csv")
    write("narrow.csv", blobs(20), header="user,a,b,d")
    shown = run("drift", "narrow.csv", code=Exit.DATA)
    assert "has no column 'c', which this workspace has as --columns" in shown


def test_rows_that_are_not_whole_are_named_and_skipped(weeks) -> None:
    run("init", "space", "--like", "old.csv", *TABLE, "--fit-epochs", 1)
    run("fit", "old.csv")
    lines = Path("new.csv").read_text().splitlines()
    cells = lines[3].split(",")
    cells[2] = ""
    Path("gap.csv").write_text("\n".join([*lines[:3], ",".join(cells), *lines[4:]]))
    place = "gap.csv must hold finite numbers, and has none in line 4"
    for command in (("drift", "gap.csv"), ("embed", "gap.csv", "gap.npy")):
        shown = " ".join(run(*command).split())
        assert "1 item was skipped" in shown
        assert place in shown
    names = Path("gap.ids.jsonl").read_text().splitlines()
    assert len(names) == len(np.load("gap.npy")) == len(lines) - 2
    shown = run("update", "gap.csv", "--strict", code=Exit.DATA)
    assert place in " ".join(shown.split())
    shown = run("update", "gap.csv", "--epochs", 1)
    assert place in " ".join(shown.split())


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_an_item_with_an_id_is_appended_once(weeks, kind: str) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    run("init", "space", "--like", "old.csv", *TABLE, "--fit-epochs", 1)
    run("fit", "old.csv")
    run("embed", "old.csv", f"all.{kind}")
    lines = Path("new.csv").read_text().splitlines()
    first = Path("old.csv").read_text().splitlines()[1]
    Path("again.csv").write_text("\n".join([*lines, first]))
    shown = run("embed", "again.csv", f"all.{kind}", "--append", code=Exit.STATE)
    assert f"has 1 of these {len(lines)} ids already, such as" in " ".join(shown.split())
    run("embed", "new.csv", f"all.{kind}", "--append")
    ids = read_source(f"all.{kind}").ids
    assert ids is not None
    assert len({*ids}) == len(ids) == 60 + len(lines) - 1


def test_features_are_found_by_the_names_of_the_first_table(weeks, blobs) -> None:
    run("init", "space", "--like", "old.csv", *TABLE, "--fit-epochs", 1)
    run("fit", "old.csv")
    run("embed", "new.csv", "new.npy")
    write(
        "turned.csv", blobs(20, seed=1, shift=1.0), header="h,b,customer,a,user,g,f,e,d,c", start=60
    )
    run("embed", "turned.csv", "turned.npy")
    assert np.array_equal(np.load("new.npy"), np.load("turned.npy"))
    text = Path("new.csv").read_text()
    Path("renamed.csv").write_text(text.replace("g,h", "g,height", 1))
    shown = run("update", "renamed.csv", code=Exit.DATA)
    assert "has no column 'h', which this workspace has as --columns" in shown


@pytest.mark.parametrize("kind", ["fit", "adopt"])
def test_features_of_the_first_data_are_remembered_without_init(weeks, blobs, kind) -> None:
    plain = "a,b,c,d,e,f,g,h"
    write("plain.csv", blobs(60), header=plain)
    write("turned.csv", blobs(60), header=plain[::-1])
    learner = Learner(Vectors(8), fit_strategy=Retrain(max_epochs=1))
    space = Workspace.create("space", learner)
    np.save("rows.npy", blobs(60).numpy())
    getattr(space, kind)("plain.csv")
    for opened in (space, Workspace.open("space")):
        assert opened.settings["table"]["columns"] == list("abcdefgh")
        assert torch.equal(opened.embed("turned.csv"), opened.embed("rows.npy"))
    space.configure("table.columns=none")
    space.update("turned.csv", strategy=NoUpdate())  # later data are not the first
    assert Workspace.open("space").settings["table"]["columns"] is None


def test_a_feature_that_is_said_to_be_a_label_is_none(weeks, blobs) -> None:
    run("init", "space", "--like", "old.csv", *TABLE, "--fit-epochs", 1)
    shown = run("fit", "old.csv", "--label", "h", code=Exit.DATA)
    assert "has 7 columns of numbers, but 8 are expected here" in shown


@pytest.mark.parametrize("header", ["0,1", "a,a", "0.5,1.5"])
def test_names_that_tell_no_features_apart_are_not_remembered(tmp_path: Path, header: str) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(f"{header}\n1,2\n3,4\n")
    assert read_source(file).columns == ()
    assert read_source(file).items[-1].tolist() == [3.0, 4.0]


def test_a_parquet_file_has_names(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.table({"user": ["u"], "b": [1.0], "a": [2.0]}), file)
    assert read_source(file, id="user").columns == ("b", "a")


def test_files_without_names_of_columns_are_read_as_they_are(weeks, blobs) -> None:
    run("init", "space", "--like", "old.csv", *TABLE, "--fit-epochs", 1, "--epochs", 1)
    run("fit", "old.csv")
    np.save("rows.npy", blobs(20, seed=3).numpy())
    run("update", "rows.npy")
    np.savez("rows.npz", blobs(20, seed=4).numpy())
    run("drift", "rows.npz")
    named = {"user": np.arange(20), "kind": np.repeat([0, 1], 10)}
    np.savez("named.npz", rows=blobs(20, seed=4).numpy(), **named)
    run("drift", "named.npz")
    run("update", "named.npz", "--probe", "named.npz", "--probe-label", "kind")
    np.savetxt("rows.csv", blobs(20, seed=5).numpy(), delimiter=",")
    run("drift", "rows.csv")


def test_numbers_may_be_names_beside_columns_that_are_known(tmp_path: Path) -> None:
    file = tmp_path / "years.csv"
    file.write_text("user,2020,2021\nu1,0.5,0.6\n")
    usual = {"columns": None, "id": "user", "label": None}
    assert with_columns(file, usual, {}) == {"id": "user"}
    usual = {"columns": None, "id": "customer", "label": None}
    assert with_columns(file, usual, {"id": "user"}) == {"id": "user"}
    with pytest.raises(ValueError, match="has no column 'customer', which this workspace has"):
        with_columns(file, usual, {"columns": ["2020"]})


@pytest.mark.parametrize("start", ["\n", " \n\n", "\ufeff"])
def test_fields_of_the_first_record_are_found(tmp_path: Path, start: str) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text(start + '{"user": "u1", "body": "a cat"}\n', encoding="utf-8")
    usual = {"columns": ["body"], "id": "user", "label": "kind"}
    assert with_columns(file, usual, {}) == {"columns": ["body"], "id": "user"}
    assert read_source(file, columns=["body"], id="user").ids == ["u1"]


def test_fields_of_a_long_first_record_are_found(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text(json.dumps({"body": "cat " * 2**18, "user": "u1"}))
    usual = {"columns": None, "id": "user", "label": None}
    assert with_columns(file, usual, {}) == {"id": "user"}
    with pytest.raises(ValueError, match="has no column 'customer', which this workspace has"):
        with_columns(file, {**usual, "id": "customer"}, {})
    assert with_columns(file, {**usual, "id": None}, {}) == {}
    file.write_text(json.dumps({"edges": [[0, 1]] * 2**18}))
    assert with_columns(file, usual, {}) == {}  # graphs have no columns


def test_columns_of_adopt_and_of_a_comparison(weeks) -> None:
    encoder = ("--encoder", "torch.nn:Linear", "--encoder-args")
    run("adopt", "old.csv", *TABLE, *encoder, '{"in_features": 8, "out_features": 4}')
    run("update", "new.csv", "--epochs", 1)
    compare = ("compare", "old.csv", "new.csv", "--minutes", 0.02, "-w")
    assert "has adopted a model, and compare trains an encoder of its own" in run(
        *compare, "space", code=3
    )
    assert "is a workspace for vectors: rows of 8 numbers, encoder MLP of 2 × 128 units" in run(
        *("init", "fresh", "--like", "old.csv", *TABLE, "--fit-epochs", 1)
    )
    assert "vectors: rows of 8 numbers" in run(*compare, "fresh")


def test_a_probe_set_is_read_by_the_same_columns(weeks, blobs) -> None:
    run("init", "space", "--like", "old.csv", *TABLE, "--fit-epochs", 1, "--epochs", 1)
    write("probe.csv", blobs(40))
    text = Path("probe.csv").read_text()
    Path("probe.csv").write_text(text.replace(",x,", ",y,", 20))
    shown = run("fit", "old.csv", "--probe", "probe.csv", "--probe-label", "kind")
    assert "kNN accuracy of all classes" in shown
    write("nameless.csv", blobs(40), header=HEADER.replace("user,", ""))
    Path("nameless.csv").write_text(Path("nameless.csv").read_text().replace("x,", "y,", 20))
    probe = ("--probe", "nameless.csv", "--probe-label", "kind")
    assert "kNN accuracy" in run("update", "new.csv", *probe)


def test_a_table_of_settings_is_checked(weeks, blobs) -> None:
    run("init", "space", "--like", "old.csv", *TABLE)
    shown = run("config", "--set", "table.columns=a,b", code=Exit.DATA)
    assert "columns, a list of names" in shown
    run("config", "--set", 'table.columns=["a", "b"]')


def test_no_table_is_one_without_columns(weeks) -> None:
    run("init", "space", "--like", "old.csv", *TABLE)
    run("config", "--set", "table=none", "--set", "table.label=kind")
    assert Workspace.open("space").settings["table"] == {**NO_TABLE, "label": "kind"}
    settings = Path("space/settings.toml")
    text = settings.read_text().partition("[table]")[0]
    settings.write_text('table = "none"\n' + text)
    space = Workspace.open("space")
    assert space.settings["table"] == NO_TABLE
    assert space.read("old.csv", columns=["a"]).ids is None


def test_workspaces_of_before_remember_nothing(tmp_path: Path) -> None:
    space = Workspace.create(tmp_path / "space", Learner(Vectors(3)))
    created = read_json(space.folder / SETTINGS)
    write_json(space.folder / SETTINGS, {k: v for k, v in created.items() if k != "table"})
    settings = space.folder / "settings.toml"
    settings.write_text(settings.read_text().partition("[table]")[0])
    assert Workspace.open(space.folder).settings["table"]["id"] is None
