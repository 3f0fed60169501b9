"""Names that are not there get the one that was meant."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, replace
from functools import partial

import pytest

import incontrast as ic
from incontrast.names import nearest


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(ic.ICL, epochs=3), r"ICL\(\) has no argument 'epochs': the nearest is max_epochs"),
        (partial(ic.Retrain, learning_rate=1.0), r"'learning_rate': the nearest is lr"),
        (partial(ic.FineTune, batchsize=8), r"'batchsize': the nearest is batch_size"),
        (partial(ic.Replay, shares=0.1), r"'shares': the nearest is share"),
        (partial(ic.Adam, wd=0.1), r"Adam\(\) has no argument 'wd': the nearest is weight_decay"),
        (partial(ic.Muon, momentun=0.1), r"'momentun': the nearest is momentum"),
        (partial(ic.Cosine, 0.1, warm_up=0.1), r"'warm_up': the nearest is warmup"),
        (partial(ic.Learned, xyz=0.1), r"Learned\(\) has no argument 'xyz': it has "),
        (partial(ic.Objective, tau=0.1), r"'tau': the nearest is temperature"),
    ],
)
def test_constructors_name_the_nearest_argument(make, message) -> None:
    with pytest.raises(TypeError, match=message):
        make()


@dataclass(frozen=True, kw_only=True)
class Own(ic.FineTune):
    extra: int = 1


class Free(ic.FineTune):
    def __init__(self, **anything: object) -> None:
        super().__init__(lr=0.5)


@pytest.mark.parametrize("value", [ic.ICL(lr=0.1), Own(extra=2), ic.Cosine(0.1), ic.Muon()])
def test_dataclasses_stay_what_they_are(value) -> None:
    assert pickle.loads(pickle.dumps(value)) == copy.deepcopy(value) == replace(value) == value
    assert repr(value).startswith(f"{type(value).__name__}(")
    assert hash(ic.ICL(lr=0.1)) == hash(ic.ICL(lr=0.1))


def test_strategies_of_ones_own_have_it_too_and_may_take_anything() -> None:
    with pytest.raises(TypeError, match=r"Own\(\) has no argument 'extras': the nearest is extra"):
        Own(extras=1)
    assert Free(whatever=3).lr == 0.5


def test_dashes_are_underscores() -> None:
    assert nearest("learning-rate", ["lr", "batch_size"]) == "lr"


def test_what_is_like_nothing_has_no_nearest_name() -> None:
    assert nearest("zzz", ["lr", "batch_size"]) is None
