"""The page of an update holds what happened, and needs nothing else."""

from __future__ import annotations

import re

from incontrast.report.page import Item, render
from incontrast.report.update import Version, summary, update_page

EPOCHS = [
    {
        "number": number,
        "loss": 1.0 / number,
        "lr": 1e-3,
        "steps": 6,
        "forward_passes": 99,
        "seconds": 1.0,
    }
    for number in (1, 2, 3)
]
RECORD = {
    "version": 2,
    "kind": "update",
    "from_scratch": {"forward_passes": 90000, "items": 1264, "stopped": "patience"},
    "created": "2026-11-16T00:00:00+0000",
    "incontrast": "0.1.0",
    "torch": "2.13.0",
    "data": {"name": "/photos/<week 1>", "items": 179, "skipped": ["a.png cannot be read"]},
    "memory": {"kept": 1443, "seen": 1443},
    "outcome": {
        "strategy": "ICL",
        "from_scratch": False,
        "growth_ratio": 0.124,
        "loss": {
            "before": {"old": 1.1, "new": 1.3, "all": 1.2},
            "after": {"old": 0.9, "new": 1.0, "all": 0.95},
        },
        "change_ratio": {
            "before": {"lower": 0.4, "median": 0.6, "upper": 0.8},
            "after": {"lower": 0.5, "median": 0.7, "upper": 0.9},
        },
        "seconds": 2.0,
        "epochs": 3,
        "steps": 18,
        "forward_passes": 3000,
        "stopped": "epochs",
        "history": EPOCHS,
        "probe": None,
    },
}
BEFORE = {"knn_accuracy": 0.8, "precision": 0.7, "items": 100}
AFTER = {"knn_accuracy": 0.9, "precision": 0.6, "items": 100}
PROBE = {
    "before": {"all": BEFORE, "old": AFTER, "new": None},
    "after": {"all": AFTER, "old": BEFORE, "new": None},
}
EXAMPLES = [{"item": 3, "new": False, "before": [4, 5], "after": [5, 6]}]
EVENTS = [
    {"time": "2026-11-16", "step": "init"},
    {"time": "2026-11-16", "step": "promote", "version": 2, "despite": []},
]
PICTURES = {item: Item(picture="data:image/png;base64,AAAA") for item in (3, 5)}
EVALUATION = {
    "tolerance": 0.05,
    "sample": 512,
    "failed_checks": [],
    "health": {
        "before": {"effective_rank": 30.0, "uniformity": -2.0},
        "after": {"effective_rank": 31.0, "uniformity": -2.1},
    },
    "movement": {"cosine": [0.8, 0.9, 0.95], "overlap": 0.75, "examples": EXAMPLES},
}
VERSION = {"record": RECORD, "evaluation": EVALUATION, "promoted": True, "current": 2}


def version(**changes) -> Version:
    return Version(**{**VERSION, **changes})


def page(items: dict[int, Item] = PICTURES, **changes) -> str:
    return render(update_page(version(**changes), events=EVENTS, items=items, folder="/model"))


def test_the_page_of_an_update() -> None:
    html = page()
    for words in (
        *("Promoted: all checks passed.", "about 2.9% of a retraining", "are 12.4% of all. 1 item"),
        *("loss of old items", "1.100", "0.900", "change ratio", "Effective rank 30.0"),
        *("3 epochs, 18 steps", "cosine between the embedding", "75%", "workspace created"),
        "&lt;week 1&gt;",
    ):
        assert words in html, words
    assert html.index("version 2 promoted") < html.index("workspace created")
    assert not re.search(r'(src|href)="http', html)


def test_the_page_of_a_fit() -> None:
    outcome = {
        **RECORD["outcome"],
        "from_scratch": True,
        "change_ratio": None,
        "loss": {
            "before": {"old": None, "new": 3.0, "all": 3.0},
            "after": {"old": None, "new": 1.0, "all": 1.0},
        },
        "history": EPOCHS[:1],
    }
    evaluation = {"tolerance": 0.05, "sample": 1, "failed_checks": []}
    html = page(
        record={**RECORD, "kind": "fit", "outcome": outcome, "from_scratch": None},
        evaluation=evaluation,
        items={},
    )
    assert "loss of old items" not in html
    assert "new item" not in html.lower()
    assert "There were too few items to look at." in html
    assert "Nearest neighbours" not in html


def test_a_refused_and_a_forced_version() -> None:
    evaluation = {**EVALUATION, "failed_checks": ["the loss of old items rose"]}
    assert "It is the current one" in page()
    assert "It is the current one" not in page(current=3)
    refused = page(evaluation=evaluation, promoted=False, current=1)
    assert "Not promoted: the loss of old items rose." in refused
    assert "<code>incontrast compare -w /model OLD NEW</code>" in refused
    forced = "Promoted by force, despite: the loss of old items rose."
    assert forced in page(evaluation=evaluation)
    assert summary(version(evaluation=evaluation))[-3:] == [
        forced,
        "Vectors of two versions cannot be compared: re-embed what you search in with "
        "`incontrast embed`.",
        "Version 2 is the current one.",
    ]
    lines = summary(version(evaluation=evaluation, promoted=False, current=None))
    assert "Not promoted: the loss of old items rose." in lines
    assert lines[-1] == "There is no other version."


def test_a_probe_says_what_changed_and_what_to_do() -> None:
    worse = ["kNN accuracy of old classes fell from 0.900 to 0.800"]
    outcome = {**RECORD["outcome"], "probe": PROBE, "worse": worse}
    html = page(record={**RECORD, "outcome": outcome})
    lines = summary(version(record={**RECORD, "outcome": outcome}))
    assert "  kNN accuracy of all classes         0.800 → 0.900" in lines
    assert all(figure in html for figure in ("kNN accuracy of all classes", "0.800", "+0.100"))
    assert f"Promoted: all checks passed, but {worse[0]}." in html
    assert "It got worse: <code>incontrast rollback -w /model</code> returns to the prev" in html
    assert "of new classes" not in html
    assert html.index("Verdict</h2>") < html.index("What changed</h2>") < html.index("<img")
    assert "--probe DATA" in page()


def test_a_change_that_is_too_small_to_show_is_neither_good_nor_bad() -> None:
    loss = {"before": {"old": 1.0, "new": 2.0, "all": 1.5}}
    loss["after"] = {"old": 1.0002, "new": 1.9998, "all": 1.5}
    html = page(record={**RECORD, "outcome": {**RECORD["outcome"], "loss": loss}})
    assert "-0.000" not in html
    assert html.count("+0.000") >= 3


def test_what_to_do_next_is_what_the_map_allows() -> None:
    shares = [{"share": share, "recall": 0.9, "precision": 0.98} for share in (0.0, 1.0)]
    about = {"examples": [], "tried": {}, "pairs": 512, "items": 512, "space": 1}
    stored = {"expected": shares, **about}
    with_map = page(evaluation={**EVALUATION, "stored_vectors": stored})
    assert (
        "</strong> Keep your index: with the map, 90 % of the 10 nearest items are found, "
        "and 98 % of what is found is near."
    ) in with_map
    assert "<code>incontrast embed -w /model --space 1</code> embeds queries" in with_map
    assert "re-embed what you search in" not in with_map
    few = page(evaluation={**EVALUATION, "stored_vectors": {**stored, "items": 180}})
    assert "Too few items to say how precise search with the map is; recall@10 0.90." in few
    assert "is found is near." not in few
    assert "re-embed what you search in" in page()
    mixed = {"items": 150, "recall": 0.6, "own": 4.6, "found": 3.9}
    few = {**mixed, "items": 20}
    close = {**mixed, "found": 4.5}
    for figures, told in ((mixed, True), (few, False), (close, False), (None, False)):
        html = page(evaluation={**EVALUATION, "stored_vectors": {**stored, "mixed": figures}})
        assert ("4.6 are new, and 3.9 where the old ones are mapped" in html) is told


def test_a_cost_is_compared_with_a_retraining_that_converged_or_with_nothing() -> None:
    for whole in (None, {**RECORD["from_scratch"], "stopped": "budget"}):
        assert "of a retraining" not in page(record={**RECORD, "from_scratch": whole})


def test_neighbours_as_pictures() -> None:
    html = page(items={item: Item(picture=f"data:{item}") for item in (3, 5, 6)})
    assert html.count("<img") == 4  # 3, 5 before, 5 and 6 after
    assert html.count("(forgotten)") == 1  # 4 is gone
    assert html.count('class="fresh"') == 1  # 6 is new among the neighbours


def test_figures_that_are_not_finite() -> None:
    """JSON has no nan: it is None in the files of a workspace."""
    nothing = {"old": None, "new": None, "all": None}
    outcome = {
        **RECORD["outcome"],
        "loss": {"before": {"old": 1.0, "new": 2.0, "all": 1.5}, "after": nothing},
        "change_ratio": {
            "before": {"lower": 0.4, "median": float("inf"), "upper": None},
            "after": {"lower": None, "median": 0.7, "upper": 0.9},
        },
        "history": [{**epoch, "loss": None, "lr": None} for epoch in EPOCHS],
    }
    evaluation = {
        **EVALUATION,
        "health": {
            "before": {"effective_rank": None, "uniformity": None},
            "after": {"effective_rank": 31.0, "uniformity": float("nan")},
        },
        "movement": {"cosine": [None, 0.9, None], "overlap": None, "examples": EXAMPLES},
    }
    html = page(record={**RECORD, "outcome": outcome}, evaluation=evaluation)
    assert "Effective rank not finite → 31.0, uniformity not finite." in html
    assert "is 0.900 (not finite to not finite); on average not finite of" in html
    assert html.count("not finite") == 9
    assert "Training loss and learning rate over epochs" in html


def test_neighbours_of_texts_are_texts() -> None:
    html = page(items={item: Item(f"<b>text {item}</b>") for item in (3, 5)})
    assert "Nearest neighbours before and after" in html
    assert "&lt;b&gt;text 3&lt;/b&gt;" in html
    assert "<b>text" not in html
    assert "(forgotten)" in html
