"""Vectors: standardised by the first data, and views that depend on the item alone."""

from __future__ import annotations

import pytest
import torch
from torch import Generator

from incontrast import TensorCollection, Vectors, check_domain


def fitted(blobs, **settings) -> Vectors:
    return Vectors(8, **settings).fit_statistics(TensorCollection(blobs(200)))


def test_features_are_standardised_by_the_first_data(blobs) -> None:
    rows = blobs(200)
    prepared = fitted(blobs).prepare(rows)
    # Up to the rounding that keeps single items secret: half of an eighth, and 2 ** (1 / 16).
    torch.testing.assert_close(prepared.mean(0), torch.zeros(8), atol=0.066, rtol=0)
    torch.testing.assert_close(prepared.std(0, correction=0), torch.ones(8), atol=0.045, rtol=0)
    assert fitted(blobs).fit_statistics(TensorCollection(rows + 100)) == fitted(blobs)


def test_a_feature_that_hardly_varies_cannot_blow_up() -> None:
    rows = torch.zeros(100, 2)
    rows[0, 0] = 1.0
    domain = Vectors(2).fit_statistics(TensorCollection(rows))
    assert domain.std is not None
    assert domain.std[1] == 1.0
    far = domain.prepare(torch.tensor([[1e6, 1e6], [-1e6, 0.0], [2e6, 0.0]]))
    assert far.abs().max() < 30
    assert far[2, 0] > far[0, 0] > 5.0 > -5.0 > far[1, 0]


def test_views_drop_and_shake_features(blobs) -> None:
    rows = blobs(500)
    domain = fitted(blobs, drop=0.3, noise=0.0)
    prepared = domain.prepare(rows)
    first, second = domain.views(rows, Generator().manual_seed(0))
    for view in (first, second):
        changed = view != prepared
        assert (view[changed] == 0).all()
        assert changed.float().mean().item() == pytest.approx(0.3, abs=0.02)
    assert not torch.equal(first, second)
    shaken = fitted(blobs, drop=0.0, noise=0.2).views(rows, Generator().manual_seed(0))[0]
    assert (shaken - prepared).std().item() == pytest.approx(0.2, rel=0.05)


def test_views_do_not_depend_on_the_rest_of_the_batch(blobs) -> None:
    domain, rows = fitted(blobs), blobs(6)
    other = torch.cat([rows[:3], rows[3:] * 50])
    for mine, theirs in zip(
        domain.views(rows, Generator().manual_seed(0)),
        domain.views(other, Generator().manual_seed(0)),
        strict=True,
    ):
        assert torch.equal(mine[:3], theirs[:3])


def test_contract(blobs) -> None:
    check_domain(Vectors(8), blobs(10))


def test_packed_rows_come_back(blobs) -> None:
    domain, rows = Vectors(8), TensorCollection(blobs(5))
    blobs_of_bytes = domain.pack(rows, torch.tensor([3, 1]))
    assert torch.equal(domain.unpack(blobs_of_bytes).data, rows.data[[3, 1]])
    with pytest.raises(ValueError, match="packed items are damaged"):
        domain.unpack([blobs_of_bytes[0][:-1]])


def test_a_domain_without_statistics_says_what_to_do(blobs) -> None:
    with pytest.raises(RuntimeError, match=r"fit_statistics\(\) the domain to data first"):
        Vectors(8).prepare(blobs(2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dim": 0}, "dim must be at least 1"),
        ({"dim": 3, "drop": 1.0}, r"drop must be in \[0, 1\)"),
        ({"dim": 3, "noise": -0.1}, "noise must be at least 0, got -0.1"),
        ({"dim": 3, "mean": (0.0,)}, "mean must have 3 numbers, got 1"),
    ],
)
def test_settings_are_checked(settings, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Vectors(**settings)
