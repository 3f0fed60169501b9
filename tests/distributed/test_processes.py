"""Two processes give the answer of one, and end together."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incontrast.training import fabric
from incontrast.training.engine import Engine, choose_engine
from incontrast.training.fabric import share_of

KINDS = ("vectors", "images", "graphs")
STEPS = ("NCE-I", "ICL, retention 0", "ICL, retention 1", "meta, order 2")
WIDE = [f"equal:{kind}:{step}:float64" for kind in KINDS for step in (*STEPS, "ICL, capped")]
WIDE.remove("equal:images:meta, order 2:float64")  # as dear as all others of images; in tests/slow
WIDE.append("equal:texts:ICL, retention 1:float64")
SINGLE = ["equal:vectors:ICL, retention 1:float32"]  # images and graphs are in tests/slow
OTHERS = ["batch_norm", "learners", "budgets", "few", "embedded:10007", "fabric", "failures"]
OTHERS += ["logged", "compiled", "replicas", "chosen", "overlap", "brought_back"]
SPACES = ["spaces"]
LAST = ["lost:kill"]  # after which there is no group any more


@pytest.fixture(scope="module")
def results(process_group: Callable[..., Any]) -> list[dict[str, Any]]:
    """Everything that two processes can do in one go: starting them takes seconds.

    The second one is killed at the end.
    """
    ended = process_group([*WIDE, *SINGLE, *OTHERS, *SPACES, *LAST])
    assert ended.codes == [0, -9], "\n".join(ended.outputs)
    return ended.results


@given(st.integers(0, 400), st.integers(1, 70))
def test_shares_are_without_overlap_and_without_loss(count: int, processes: int) -> None:
    shares = [share_of(count, rank, processes) for rank in range(processes)]
    assert [item for share in shares for item in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("case", WIDE)
def test_steps_are_those_of_one_process(results: list[dict[str, Any]], case: str) -> None:
    found = results[0][case]
    assert found.pop("passes") == 0
    assert max(found.values()) < 1e-10, found


@pytest.mark.parametrize("case", SINGLE)
def test_steps_in_single_precision(results: list[dict[str, Any]], case: str) -> None:
    found = results[0][case]
    assert found.pop("passes") == 0
    assert max(found.values()) < 1e-5, found


def test_compiled_steps_are_those_of_one_process(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert max(result["compiled"].values()) < 1e-10, result["compiled"]


def test_what_is_too_small_to_share_is_done_by_each_process_as_by_one(
    results: list[dict[str, Any]],
) -> None:
    for result in results:
        assert set(result["replicas"]["differences"].values()) == {0.0}
        assert result["chosen"] == {"large": True, "small": False}
    first, second = (result["replicas"]["told"] for result in results)
    assert "too small for 2 processes to share" in first[0]
    assert second == []


def test_gradients_are_reduced_while_backward_runs(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert 1 < result["overlap"]["before"] < result["overlap"]["all"]


def test_batch_norm_sees_the_items_of_all_processes(results: list[dict[str, Any]]) -> None:
    for result in results:
        found = dict(result["batch_norm"])
        assert found.pop("bfloat16") < 0.02
        assert "at least 2 values per channel in training, got 1 in all" in found.pop("too few")
        assert len(found) == 5
        assert max(found.values()) < 1e-10, found


def test_a_learner_gives_the_same_answer(results: list[dict[str, Any]]) -> None:
    for result in results:
        found = result["learners"]
        one, many = found["one"], found["many"]
        assert found["processes"] == 2
        assert many.pop("loss") == pytest.approx(one.pop("loss"), rel=1e-4)
        assert one == many
        assert len(one["ids"]) == 90
        assert found["embeddings"] < 1e-3
        assert found["evaluation loss"][0] == pytest.approx(found["evaluation loss"][1], rel=1e-4)


def test_a_learned_schedule_is_the_same_everywhere(results: list[dict[str, Any]]) -> None:
    for result in results:
        one, many = result["learners"]["learned"]
        assert one[:2] == many[:2]
        assert one[2] == pytest.approx(many[2], rel=1e-2)
        first, second = result["learners"]["agents"]
        assert first == second
        assert first


def test_all_processes_end_with_the_same_weights(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert result["learners"]["weights"][0] == result["learners"]["weights"][1]
        assert len(set(result["learners"]["seconds"])) == 1


def test_weights_that_drift_apart_are_the_first_ones_again_after_50_steps(
    results: list[dict[str, Any]],
) -> None:
    first, second = (result["brought_back"]["told"] for result in results)
    assert len(first) == len(second) == 3  # before training, after 56 steps, after training
    assert all(before == after for before, after in first[:2])
    assert second[1][0] != second[1][1]
    assert [after for _, after in first] == [after for _, after in second]


def test_the_first_process_decides_when_time_is_up(results: list[dict[str, Any]]) -> None:
    first, second = (result["budgets"] for result in results)
    assert first == second
    assert first["stopped"] == "budget"


def test_batches_may_have_fewer_items_than_there_are_processes(
    results: list[dict[str, Any]],
) -> None:
    assert results[0]["few"]["embeddings"] < 1e-3


def test_every_item_is_embedded_once_and_in_order(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert result["embedded:10007"]["exact"]
        assert result["embedded:10007"]["told"] == 10007
        assert result["embedded:10007"]["own"] == 20  # batches, of 40 in all


def test_a_fabric_object_can_be_given(results: list[dict[str, Any]]) -> None:
    found = results[0]["fabric"]
    assert found["processes"] == 2
    assert "precision must be one of 32-true, bf16-mixed, got 64-true" in found["precision"]
    assert "a Fabric object decides device and precision" in found["device"]


def test_what_fails_in_one_process_fails_in_all(results: list[dict[str, Any]]) -> None:
    first, second = (result["failures"] for result in results)
    assert second["unreadable"].startswith("ValueError: vectors must be finite")
    assert first["unreadable"].startswith("ProcessFailed: process 1 of 2 could not read the new")
    assert "NaN or infinity in item 7" in first["unreadable"]
    for found in (first, second):
        assert (
            "the number of new items is 50 in process 0 and 49 in process 1"
            in (found["another number"])
        )
        assert "the digest of some new items is" in found["other items"]
        assert "keep_neighbours is 0.8 in process 0 and 0.9 in process 1" in found["another bound"]
        assert found["diverged"]
        assert found["unchanged"]
        assert found["version"] == 2
        assert found["kept"] < 1.0  # of a change that replaces old items' neighbours
    assert first["embeddings"] == second["embeddings"]


def test_the_first_process_logs_and_a_failed_logger_keeps_nobody_waiting(
    results: list[dict[str, Any]],
) -> None:
    first, second = (result["logged"] for result in results)
    assert {"step/loss", "epoch/loss", "nearest neighbours"} <= set(first["good"])
    assert first["failing"] == second["good"] == second["failing"] == []


def test_a_killed_process_ends_the_others_with_one_message(results: list[dict[str, Any]]) -> None:
    found = results[0]["lost:kill"]
    assert "process 0 of 2" in found["message"]
    assert "lost contact with the others" in found["message"]
    assert found["unchanged"]


def test_a_workspace_is_written_by_one_process(results: list[dict[str, Any]]) -> None:
    first, second = (result["spaces"] for result in results)
    for found in (first, second):
        assert found["step"] == [2, True, 100]
        assert found["joined.npy"] == [300, 300, 0]
        assert found["shards"] == [300, 300, 0]
    assert first["refused"].startswith("WorkspaceError: ")
    assert second["refused"].startswith("ProcessFailed: process 0 of 2 has failed: ")
    assert "is fitted already (version 2)" in second["refused"]
    assert first["embeddings"] < 1e-3
    assert first["ids"]
    assert first["joined"]
    assert first["sharded"]
    assert first["wrong"] == first["leftovers"] == []
    steps = ["ingest", "train", "evaluate", "promote"]
    assert first["journal"] == ["init", *steps, *steps]


def test_a_time_out_must_be_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INCONTRAST_TIMEOUT", "soon")
    with pytest.raises(
        ValueError, match="INCONTRAST_TIMEOUT must be a number of seconds above 0, got 'soon'"
    ):
        fabric.time_out()


def test_torchrun_without_the_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "3", "TORCHELASTIC_RUN_ID": "test"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    with pytest.raises(ImportError, match=r'started 3 processes.*pip install "incontrast\[dist\]"'):
        choose_engine("cpu", "float32", None)


def test_one_process_of_torchrun_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "test"}.items():
        monkeypatch.setenv(name, value)
    assert type(choose_engine("cpu", "float32", None)) is Engine


def test_a_fabric_of_one_process_needs_no_more() -> None:
    made = pytest.importorskip("lightning_fabric").Fabric(accelerator="cpu", devices=1)
    assert type(choose_engine(None, "float32", made)) is Engine
