"""Maps between spaces: recovered exactly where there is one, and chosen on held-out pairs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.kernel_ridge import KernelRidge
from torch import Generator, Tensor
from torch.nn.functional import normalize

from incontrast.compat import Link, NoAdapter, Quality, chain, fit_link
from incontrast.compat.adapter import KINDS
from incontrast.compat.fitting import Pairs, candidates
from incontrast.compat.link import pack, unpack
from incontrast.compat.plan import cross_mapped
from incontrast.compat.quality import hits, mixed, nearest


def draws(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def vectors(count: int = 400, width: int = 16, seed: int = 0) -> Tensor:
    """With more variance in some directions than in others."""
    return torch.randn(count, width, generator=draws(seed)) * torch.linspace(2.0, 0.5, width)


def turn(width: int = 16, seed: int = 1) -> Tensor:
    return torch.linalg.qr(torch.randn(width, width, generator=draws(seed))).Q


def linked(before: Tensor, after: Tensor) -> Link:
    return fit_link(before, after, old=1, new=2, seed=0)


def test_a_turn_is_recovered_both_ways() -> None:
    before = vectors()
    after = before @ turn()
    link = linked(before, after)
    torch.testing.assert_close(link.to_new(before), normalize(after), atol=5e-4, rtol=0)
    torch.testing.assert_close(link.to_old(after), normalize(before), atol=5e-4, rtol=0)
    assert link.to_old.kind == link.to_new.kind == "orthogonal"  # the simplest that is right
    assert link.expected("to_old").recall > 0.995  # in half precision
    assert link.tried["to_old"]["none"].recall < 0.5


def test_equal_spaces_need_no_map() -> None:
    link = linked(vectors(), 3 * vectors())
    assert link.to_old.kind == "none"
    assert link.expected("to_new") == Quality(1.0, (1.0, 1.0), 1.0, (1.0, 1.0), pytest.approx(1.0))


def turn_between(source: Tensor, target: Tensor) -> np.ndarray:
    left, _, right = np.linalg.svd(source.numpy().T @ target.numpy(), full_matrices=False)
    return left @ right


def test_ridge_regression_is_that_of_its_normal_equations() -> None:
    source, target = normalize(vectors()), normalize(vectors(seed=1)[:, :5] + 0.3)
    fitted = next(iter(candidates("affine", Pairs(source, target), draws())))
    parts = {name: tensor.numpy().astype(np.float64) for name, tensor in fitted.tensors.items()}
    features, weight = source.numpy().astype(np.float64), parts["weight"]
    # The gradient of the penalised squared error is zero: relative to the turn that is its prior.
    error = features @ weight + parts["up"][0] - target.numpy()
    centred = features - features.mean(0)
    penalty = 0.1 * np.square(centred).sum() / len(features)
    gradient = centred.T @ error + penalty * (weight - turn_between(source, target))
    assert np.abs(gradient).max() < 1e-2 * np.abs(centred.T @ target.numpy()).max()
    assert np.abs(error.mean(0)).max() < 1e-4


def test_squares_are_kernel_ridge_regression_on_the_main_directions() -> None:
    """With as many forms as a quadratic function has numbers, Nyström is exact."""
    source, target = normalize(vectors(width=8)), normalize(vectors(width=8, seed=1) + 0.3)
    pairs = Pairs(source, target)
    fitted = next(
        each for each in candidates("quadratic", pairs, draws()) if "weight" in each.tensors
    )
    known, new = (rows.double().numpy() for rows in (source, normalize(vectors(50, 8, seed=2))))
    centre, turned = known.mean(0), turn_between(source, target)
    scale = np.sqrt(np.square(known - centre).sum(1).mean())

    def kernel(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Of the linear part, its penalty as strong as that of a turn's correction, and squares."""
        one, other = one - centre, other - centre
        return one @ other.T / (0.1 * scale**2) + (1 + one @ other.T / scale**2) ** 2 / 0.1

    middle = np.eye(len(known)) - 1 / len(known)  # both parts are centred, the offset is free
    within, across = kernel(known, known), kernel(new, known)
    left = target.double().numpy() - known @ turned
    dual = np.linalg.solve(middle @ within @ middle + np.eye(len(known)), middle @ left)
    predicted = left.mean(0) + (across - within.mean(0)) @ middle @ dual
    wanted = normalize(torch.from_numpy(new @ turned + predicted))
    torch.testing.assert_close(fitted(torch.from_numpy(new)).double(), wanted, atol=1e-3, rtol=0)


def test_a_residual_map_is_kernel_ridge_regression_of_what_a_turn_leaves(monkeypatch) -> None:
    monkeypatch.setattr("incontrast.compat.fitting.GROUP", 1)  # units at the items themselves
    source, target = normalize(vectors()), normalize(vectors(seed=1)[:, :5] + 0.3)
    fitted = next(iter(candidates("residual", Pairs(source, target), draws())))
    known, new = source.double().numpy(), normalize(vectors(50, seed=2)).double().numpy()
    turned = turn_between(source, target)
    ridge = KernelRidge(alpha=1e-2, kernel=lambda one, other: np.exp(one @ other - 1))
    ridge.fit(known, target.double().numpy() - known @ turned)
    wanted = normalize(torch.from_numpy(new @ turned + ridge.predict(new)))
    torch.testing.assert_close(fitted(torch.from_numpy(new)).double(), wanted, atol=5e-3, rtol=0)


def test_a_slow_map_is_taken_for_vectors_only_where_it_is_much_better() -> None:
    """Fifty groups of their own movement: squares of few directions cannot follow."""
    groups = torch.randn(50, 32, generator=draws(3))
    of = torch.randint(50, (1500,), generator=draws(4))
    before = normalize(groups[of] + 0.3 * vectors(1500, 32))
    after = normalize(before + 0.3 * torch.randn(50, 32, generator=draws(5))[of])
    link = linked(before, after)
    assert link.to_new.kind == "residual"
    assert "residual" not in link.tried["to_old"]
    assert linked(before, before @ turn(32)).to_new.kind == "orthogonal"


@pytest.mark.parametrize("kind", ["quadratic", "residual"])
def test_nothing_of_a_map_is_an_items_embedding(kind) -> None:
    source = normalize(vectors())
    for fitted in candidates(kind, Pairs(source, source @ turn()), draws()):
        for tensor in fitted.tensors.values():
            for rows in (tensor, tensor.T) if tensor.dim() == 2 else ():
                if rows.shape[1] == 16:
                    assert (normalize(rows) @ source.T).max() < 0.9999


def test_an_update_is_mapped_by_few_pairs_better_without_a_matrix() -> None:
    before = normalize(vectors(2000, 64))
    bent = normalize(before + 0.3 * before[:, :1] * before.roll(1, 1))
    mapped = {}
    for fitted in candidates("quadratic", Pairs(before[:80], bent[:80]), draws()):
        mapped.setdefault("weight" in fitted.tensors, fitted(before[80:]))
    near = {matrix: (found * bent[80:]).sum(1).mean() for matrix, found in mapped.items()}
    assert near[False] > near[True]
    assert mapped[False].shape == mapped[True].shape


def test_a_map_fitted_to_noise_leaves_vectors_nearly_where_they_are() -> None:
    for seed in range(5):
        before = normalize(vectors(150, 8, seed=seed))
        moved = normalize(torch.randn(150, 8, generator=draws(50 + seed)))
        link = linked(before, normalize(before + 0.2 * moved))  # nothing that a map could know
        assert (link.to_new(before) * before).sum(1).min() > 0.98


@pytest.mark.parametrize("apart", [1e-2, 1e-3, 1e-5])
def test_embeddings_that_nearly_coincide_are_mapped(apart) -> None:
    one = torch.nn.functional.one_hot(torch.tensor(0), 64).float()
    before, after = (one + apart * torch.randn(200, 64, generator=draws(seed)) for seed in (0, 1))
    assert linked(before, after).to_new(before).isfinite().all()


@pytest.mark.parametrize("former", [("bias",), ("down", "up")])  # of earlier releases
def test_maps_with_parts_that_are_not_known_are_left_out(former, caplog) -> None:
    before = vectors(90)
    links = tuple(
        replace(linked(before, before @ turn()), old=old, new=old + 1) for old in (3, 2, 1)
    )
    tensors, about = pack(links)
    assert tensors.pop("2-3.to_new.weight").shape == (16, 16)
    tensors |= {f"2-3.to_new.{name}": torch.ones(16, 16) for name in former}
    assert [link.old for link in unpack(tensors, about)] == [3]
    assert "maps to version 2 and before" in caplog.text


def test_low_rank_corrections_have_their_rank_and_none_is_larger_than_the_space() -> None:
    source = normalize(vectors())
    ranks = [
        adapter.tensors["across"].shape[1]
        for adapter in candidates("low-rank", Pairs(source, normalize(vectors(seed=1))), draws())
    ]
    assert ranks == [4]  # of 4, 16 and 64, in 16 dimensions


def test_a_curved_space_is_mapped_best_by_squares() -> None:
    before = vectors(1500, 8)
    after = torch.cat([before, before.square()], dim=1) @ torch.randn(16, 8, generator=draws(5))
    link = linked(before, after)
    assert link.to_new.kind == "quadratic"
    tried = link.tried["to_new"]
    assert tried["quadratic"].recall > tried["affine"].recall > tried["none"].recall


def test_a_map_between_widths() -> None:
    before = vectors(width=12)
    after = before @ torch.randn(12, 20, generator=draws(3))
    link = linked(before, after)
    assert "none" not in link.tried["to_old"]
    assert link.to_old(after).shape == before.shape
    assert link.to_new(before).shape == after.shape
    assert link.expected("to_new").recall > 0.9


def test_held_out_figures_are_those_of_new_items() -> None:
    """The interval is about items that were not used to fit: other items fall near it."""
    everything = vectors(2400)
    bent = everything @ turn() + 0.5 * torch.sin(3 * everything)
    link = linked(everything[:1200], bent[:1200])
    new = slice(1200, 1600)  # as many as were held out
    queries = link.to_old(bent[new])
    truth = nearest(normalize(bent[new]), normalize(bent[new]), 50)
    recall, _ = hits(nearest(queries, normalize(everything[new]), 10), truth)
    expected = link.expected("to_old")
    lower, upper = expected.recall_interval
    assert lower < expected.recall < upper
    assert abs(recall.mean().item() - expected.recall) < 3 * (upper - lower)


def test_vectors_are_mapped_by_what_does_not_know_them_to_say_what_to_expect() -> None:
    before, unrelated = normalize(vectors(300)), normalize(vectors(300, seed=3))
    known = next(candidates("quadratic", Pairs(before, unrelated), draws()))(before)
    others = cross_mapped(before, unrelated, old=1, new=2, seed=0)
    assert (known * unrelated).sum(1).mean() > 0.5 > 0.2 > (others * unrelated).sum(1).mean()


def test_a_small_corpus_is_not_all_neighbourhood() -> None:
    """Of 50 held-out items each is among the 50 nearest: precise by definition."""
    unrelated = linked(vectors(150), vectors(150, seed=3)).tried["to_old"]["none"]
    assert 0.05 < unrelated.precision < 0.5


def test_mapped_vectors_that_are_drawn_to_the_middle_crowd_out_new_ones_beside_them() -> None:
    exact = normalize(vectors(300, 8) + 2.0)
    drawn = normalize(exact + 0.5 * exact.mean(0))
    crowded, level = mixed(drawn, exact, 100), mixed(exact, exact, 100)
    assert (level.recall, level.own) == (1.0, level.found)
    assert crowded.own == level.own
    assert crowded.found < 0.9 * crowded.own
    by_hand = [
        sum(place >= 200 for place in row.tolist())
        for row in (exact @ exact.T).fill_diagonal_(-2.0)[200:].topk(10).indices
    ]
    assert crowded.own == pytest.approx(np.mean(by_hand))


def test_recall_and_precision_by_hand() -> None:
    found, ranked = torch.tensor([[1, 2]]), torch.tensor([[2, 3, 1, 4]])
    assert [part.tolist() for part in hits(found, ranked)] == [[0.5], [1.0]]


def test_every_kind_gives_unit_vectors_and_leaves_its_input_alone() -> None:
    before, after = vectors(), vectors(seed=2)
    pairs, copy = Pairs(normalize(before), normalize(after)), before.clone()
    for kind in KINDS:
        for adapter in candidates(kind, pairs, draws()):
            assert torch.allclose(adapter(before).norm(dim=1), torch.ones(len(before)))
    assert torch.equal(before, copy)


@pytest.mark.parametrize(("width", "other"), [(16, 16), (12, 20), (136, 136), (136, 20)])
def test_one_vector_is_mapped_as_many_are_and_into_memory_that_is_there(width, other) -> None:
    before, after = vectors(width=width), vectors(width=other, seed=2)
    pairs = Pairs(normalize(before), normalize(after))
    for kind in KINDS:
        for adapter in candidates(kind, pairs, draws()):
            mapped, out = adapter(before), torch.empty(len(before), other)
            # A residual fitted to noise has large weights, and rounds accordingly: 3e-4 was seen.
            close = {"atol": 5e-4 if kind == "residual" else 1e-4, "rtol": 0}
            assert adapter(before, out=out) is out
            assert torch.equal(out, mapped)
            alone = torch.cat([adapter(row[None]) for row in before[:20]])
            torch.testing.assert_close(alone, mapped[:20], **close)
            torch.testing.assert_close(adapter(7 * before.double()), mapped, **close)
            assert adapter(before[:0]).shape == (0, other)
            assert adapter(torch.zeros(2, width)).isfinite().all()


def test_a_change_in_few_dimensions_of_a_wide_space_takes_few_numbers() -> None:
    before = normalize(vectors(2000, width=64))
    moved = before.clone()
    moved[:, :4] @= turn(4)
    fitted = next(candidates("low-rank", Pairs(before, moved), draws()))
    assert fitted.cost < 64**2 / 4  # a turn of all dimensions has as many as 64²
    torch.testing.assert_close(fitted(before), moved, atol=1e-2, rtol=0)


def test_the_same_seed_fits_the_same_map() -> None:
    before, after = vectors(), vectors() @ turn() + 0.3 * vectors(seed=4)
    first, second = linked(before, after), linked(before, after)
    assert torch.equal(first.to_old(after), second.to_old(after))
    assert first.tried == second.tried


def test_too_few_pairs_are_refused() -> None:
    with pytest.raises(NoAdapter, match="at least 60 items that both have embedded, got 59"):
        linked(vectors(59), vectors(59))
    with pytest.raises(ValueError, match="got 400 old, 399 new"):
        linked(vectors(400), vectors(399))
    with pytest.raises(NoAdapter, match="not finite"):
        linked(vectors(), vectors() * float("inf"))


def test_a_chain_goes_over_several_versions_and_its_error_adds_up() -> None:
    spaces = [vectors()]
    for number in range(3):
        moved = spaces[-1] @ turn(seed=number) + 0.2 * vectors(seed=10 + number)
        spaces.append(moved)
    links = [
        fit_link(spaces[old], spaces[old + 1], old=old + 1, new=old + 2, seed=0) for old in range(3)
    ]
    whole = chain(links, 4, 1)
    by_hand = links[0].to_old(links[1].to_old(links[2].to_old(spaces[3])))
    assert torch.equal(whole(spaces[3]), by_hand)
    recalls = [link.expected("to_old").recall for link in links]
    assert whole.recall == pytest.approx(np.prod(recalls))
    assert chain(links, 2, 2).steps == ()
    # Sideways, as after a rollback: from one branch to its parent and into another branch.
    branch = fit_link(spaces[0], spaces[2], old=1, new=9, seed=0)
    assert len(chain([*links, branch], 2, 9).steps) == 2
    with pytest.raises(NoAdapter, match="version 4 to that of version 7: maps lead to 1, 2, 3, 4"):
        chain(links, 4, 7)


def test_links_survive_packing() -> None:
    link = linked(vectors(), vectors() @ turn() + 0.3 * vectors(seed=4))
    tensors, about = pack([link])
    assert {tensor.dtype for tensor in tensors.values()} == {torch.half}
    (again,) = unpack(tensors, json.loads(json.dumps(about)))
    assert torch.equal(again.to_new(vectors()), link.to_new(vectors()))
    assert (again.old, again.new, again.tried, again.pairs) == (1, 2, link.tried, 400)


@pytest.mark.parametrize("bias", [2.0, 20.0])
def test_embeddings_that_all_point_nearly_the_same_way_have_a_map(bias: float) -> None:
    draws = torch.Generator().manual_seed(0)
    old = torch.randn(300, 64, generator=draws) + bias
    new = old + 0.1 * torch.randn(300, 64, generator=draws)
    link = fit_link(old, new, old=1, new=2, seed=0)
    assert torch.isfinite(link.to_new(old)).all()


@pytest.mark.parametrize("length", [0.0, 1e-22, 1e-20])
@pytest.mark.parametrize("width", [16, 64])
def test_embeddings_without_a_direction_have_a_map(length: float, width: int) -> None:
    some, same = vectors(300, width), torch.ones(300, width)
    for before, after in ((some * length, some), (some, some * length), (same, some)):
        link = fit_link(before, after, old=1, new=2, seed=0)
        assert torch.isfinite(link.to_new(before)).all()
        assert torch.isfinite(link.to_old(after)).all()
