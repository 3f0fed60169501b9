"""What drift says about the words of new texts."""

from __future__ import annotations

import incontrast as ic
from tests.domains.text.test_text import SENTENCES, learner


def test_drift_names_terms_and_rare_pieces() -> None:
    model = learner(fit_strategy=ic.Retrain(max_epochs=1))
    model.fit(SENTENCES)
    new = [f"{text} 退款 zzyzx" for text in SENTENCES[:60]]
    found = model.drift(new, forecast=False)
    terms = {entry["term"]: (entry["old"], entry["new"]) for entry in found.differences["terms"]}
    assert terms["zzyzx"] == (0.0, 1.0)
    assert terms["退款"] == (0.0, 1.0)
    rare = found.differences["rare_pieces"]
    assert rare["new"] > 0.2 > rare["old"]
    assert "zzyzx (0.0% → 100.0%)" in str(found)
    same = model.drift(SENTENCES, forecast=False).differences
    assert same["terms"] == []
    assert "No term changed clearly. Rare pieces: 0.0%" in same["summary"]
