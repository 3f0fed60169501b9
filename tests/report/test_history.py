"""The page over all versions comes from the journal alone, also for versions deleted since."""

from __future__ import annotations

from incontrast.report.history import history_page, lines_of
from incontrast.report.page import render
from incontrast.workspace.files import outlines

PROMOTE = {"step": "promote"}


def events(version: int, loss: float, *more: dict, probe: dict | None = None) -> list[dict]:
    part = {"old": None if version == 1 else 1.0, "new": loss, "all": loss}
    steps = [
        {"step": "ingest", "data": {"name": f"week {version}", "items": 10 * version}},
        {"step": "train", "strategy": "ICL", "seconds": 2.0 * version},
        {
            "step": "evaluate",
            "loss": {"before": part, "after": part},
            "change_ratio": None if version == 1 else {"before": {"median": 0.7}},
            "overlap": None if version == 1 else 0.6,
            "probe": probe,
        },
        *more,
    ]
    return [{"time": "2026-11-18T03:00:00", "version": version, **step} for step in steps]


def test_versions_in_order_with_their_standing() -> None:
    scores = {"knn_accuracy": 0.875, "precision": 0.75, "items": 9}
    probe = {"before": {}, "after": {"all": scores, "old": None, "new": scores}}
    journal = [
        {"time": "2026-11-18T02:00:00", "step": "init"},
        *events(1, 3.0, {"step": "promote"}, {"step": "drop"}),
        *events(2, 2.0, {"step": "promote"}),
        *events(3, 1.0, {"step": "discard"}),
        *events(4, 1.5, probe=probe),
    ]
    lines = lines_of(journal, current=2)
    assert [line.standing for line in lines] == [
        *("deleted since", "current", "dropped", "not promoted")
    ]
    assert lines[0].figures["drift"] is None
    assert lines[3].figures["kNN accuracy, new"] == 0.875
    html = render(history_page(lines, "/model"))
    for words in (
        "4 versions so far",
        "version 4, not promoted: ICL on 40 items in 8 s",
        "0.875",
        "Drift and neighbours kept",
    ):
        assert words in html
    assert "retrieval precision, old" not in html  # nothing is known of it


def test_versions_that_a_rollback_left_behind_say_so() -> None:
    journal = [event for version in (1, 2, 3) for event in events(version, 2.0, PROMOTE)]
    back = [{"step": "rollback", "version": 1, "before": 3}]
    again = [*journal, *back, *events(4, 2.0, PROMOTE)]
    ahead = [*journal, *back, {"step": "rollback", "version": 3, "before": 1}]
    for told, current, expected in (
        ([*journal, *back], 1, ["current", "rolled back", "rolled back"]),
        (again, 4, ["promoted", "rolled back", "rolled back", "current"]),
        (ahead, 3, ["promoted", "promoted", "current"]),
    ):
        assert [line.standing for line in lines_of(told, current)] == expected
    newest = render(history_page(lines_of([*journal, *back], 1), "/model"))
    assert "version 3, rolled back: ICL on" in newest


def test_each_version_names_all_data_that_it_was_trained_on() -> None:
    """Of what was dropped without a version, another one has the number."""
    of_first = events(1, 3.0, PROMOTE)
    diverged = [events(2, 3.0)[0], {"step": "discard", "version": 2}]
    tried_again, joined = events(3, 2.0)[1:], events(4, 2.0, PROMOTE)
    journal = [*of_first, *diverged, *events(2, 3.0), *tried_again, *joined, *events(5, 2.0)]
    lines = lines_of(journal, current=4)
    assert [line.items for line in lines] == [10, 20, 20, 60, 50]
    assert [line.data for line in lines[2:]] == ["week 2", "week 2, week 4", "week 5"]


def test_a_first_version_has_no_figures_to_draw() -> None:
    html = render(history_page(lines_of(events(1, 3.0), current=1), "/model"))
    assert "1 version so far" in html
    assert "Over time" not in html


def test_versions_that_the_journal_has_summed_up_are_those_they_were() -> None:
    journal = [*events(4, 3.0), *events(5, 3.0), *events(6, 2.0)]
    for end in range(len(journal)):
        versions = [outline for event in journal[:end] for outline in outlines(event)]
        summary = {"time": "2026-11-18T02:00:00", "step": "summary", "versions": versions}
        assert lines_of([summary, *journal[end:]], current=6) == lines_of(journal, current=6)
