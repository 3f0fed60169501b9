"""Learning rates as far as each layer's cap lets them, and optimisers of one's own."""

from __future__ import annotations

import copy
import functools
import math

import pytest
import torch
from torch import Tensor, nn

from incontrast import ICL, Adam, Learner, Muon, Prodigy, Retrain, Vectors
from incontrast.training import orthogonal
from incontrast.training.optimizers import Stepper, mark_tables
from incontrast.training.orthogonal import orthogonalised, protected


def cap(weights: Tensor, share: float = 1 / 8) -> float:
    """The cap that a parameter with these weights gets; infinite if none."""
    capped = Stepper(torch.optim.Adam([nn.Parameter(weights)]), share).capped
    return capped[0][1] if capped else math.inf


def test_capped_parameters_take_smaller_steps_and_the_others_the_same() -> None:
    parameters = [nn.Parameter(torch.zeros(3)) for _ in range(4)]
    caps = [math.inf, 0.01, 0.5, 1e-9]
    for parameter in parameters:
        parameter.grad = torch.ones(3)
    Stepper(Adam()(parameters), 1 / 8, agreed=lambda _: caps).step(0.1)
    taken = [parameter[0].item() for parameter in parameters]
    assert taken == pytest.approx([-0.1, -0.01, -0.1, -0.1 / 32])  # next to nothing may still grow


@pytest.mark.parametrize(
    "make",
    [
        Adam(),
        functools.partial(torch.optim.AdamW, betas=(0.5, 0.9), weight_decay=0.1),
        functools.partial(torch.optim.SGD, momentum=0.9, weight_decay=0.1),
    ],
)
def test_a_cap_is_a_learning_rate_of_its_own(make) -> None:
    """As if every capped layer had a parameter group, with one call for all of them."""
    draws = torch.Generator().manual_seed(0)
    start = [torch.randn(4, 3, generator=draws) for _ in range(2)]
    ours, theirs = ([nn.Parameter(weights.clone()) for weights in start] for _ in range(2))
    stepper = Stepper(make(ours), 1 / 8, agreed=lambda _: [math.inf, 0.02])
    groups = make([{"params": [parameter]} for parameter in theirs])
    for lr in (0.1, 0.01, 0.05, 2.0):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn(4, 3, generator=draws)
            other.grad = one.grad.clone()
        stepper.step(lr)
        for group, cap in zip(groups.param_groups, (math.inf, 0.02), strict=True):
            group["lr"] = min(lr, max(cap, lr / 32))
        groups.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_one_call_takes_the_steps_of_all_layers() -> None:
    parameters = [nn.Parameter(torch.randn(64, 64)) for _ in range(3)]
    optimizer = Adam()(parameters)
    Stepper(optimizer, 1 / 8)
    assert len(optimizer.param_groups) == 1


def test_at_its_cap_a_step_changes_a_layer_by_the_share() -> None:
    wide = 0.02 * torch.randn(512, 256, 3, 3, generator=torch.Generator().manual_seed(0))
    step = torch.full_like(wide, cap(wide)).flatten(1)  # every weight by the learning rate
    norms = [torch.linalg.matrix_norm(part, 2).item() for part in (step, wide.flatten(1))]
    assert norms[0] / norms[1] == pytest.approx(1 / 8, rel=1e-4)
    assert cap(wide.flatten(1).T) == pytest.approx(cap(wide), rel=1e-4)


@pytest.mark.parametrize(
    "weights",
    [
        torch.zeros(8, 8),  # else it would never move
        torch.full((4096,), 1e-4),  # a bias
        torch.full((8, 8), math.nan),  # which the loop names
        torch.zeros(0, 8),
    ],
)
def test_some_layers_have_no_cap(weights: Tensor) -> None:
    assert cap(weights) == math.inf


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, math.nan])
def test_a_share_beyond_the_whole_layer_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="max_relative_update must be in"):
        Adam(max_relative_update=share)


def test_the_first_step_of_an_update_changes_a_wide_layer_by_its_share_at_most() -> None:
    items = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    learner = Learner(Vectors(16, hidden=1024), fit_strategy=Retrain(max_epochs=1))
    learner.fit(items[:40])

    def change(optimizer: Adam) -> float:
        twin = copy.deepcopy(learner)
        strategy = ICL(
            optimizer=optimizer,
            protection=None,
            lr=2e-3,
            max_epochs=1,
            epoch_steps=1,
            ema_decay=0.0,
            batch_size=32,
        )
        assert twin.update(items[40:], strategy=strategy).steps == 1
        before, after = (
            next(w for w in one.encoder.parameters() if w.shape == (1024, 1024)).detach()
            for one in (learner, twin)
        )
        return float(torch.linalg.matrix_norm(after - before, 2) / torch.linalg.norm(before, 2))

    assert change(Adam()) > 0.3
    assert 0.01 < change(Adam(max_relative_update=1 / 8)) <= 1 / 8 + 1e-6


def test_prodigy_trains() -> None:
    pytest.importorskip("prodigyopt")
    items = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    learner = Learner(Vectors(16, hidden=1024), fit_strategy=Retrain(max_epochs=1))
    learner.fit(items[:40])
    assert learner.update(items[40:], strategy=ICL(optimizer=Prodigy(), max_epochs=2)).steps == 20


def test_any_torch_optimiser_takes_the_steps() -> None:
    items = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    optimizer = functools.partial(torch.optim.SGD, momentum=0.9)
    learner = Learner(Vectors(16), fit_strategy=Retrain(max_epochs=20, optimizer=optimizer, lr=0.1))
    outcome = learner.fit(items)
    assert outcome.loss_new.after < outcome.loss_new.before
    with pytest.raises(TypeError, match="optimizer must take parameters"):
        Retrain(optimizer="sgd")


def test_a_processor_that_nobody_knows_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("cpuinfo initialization failed")

    assert isinstance(orthogonal.processor(), str)
    monkeypatch.setattr(torch.cpu, "get_capabilities", fail, raising=False)
    assert orthogonal.processor() == ""
    monkeypatch.delattr(torch.cpu, "get_capabilities")  # as in older versions
    assert orthogonal.processor() == ""


@pytest.mark.parametrize("one_dnn", [True, False])
@pytest.mark.parametrize("shape", [(3, 8, 12), (2, 160, 160), (1, 128, 512)])  # most are LARGE
def test_orthogonalised_is_newton_and_schulz_by_whatever_library(
    shape: tuple[int, ...], one_dnn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if one_dnn and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(orthogonal, "ONE_DNN_IS_FASTER", one_dnn)
    wide = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected = wide.double() / torch.linalg.matrix_norm(wide.double(), keepdim=True)
    a, b, c = orthogonal.COEFFICIENTS
    for _ in range(2):
        gram = expected @ expected.mT
        expected = a * expected + (b * gram + c * gram @ gram) @ expected
    torch.testing.assert_close(orthogonalised(wide).double(), expected, rtol=1e-4, atol=1e-5)
    factor = torch.randn(shape[2], shape[2]).double()
    factor = factor + factor.T
    step = protected(wide[0], factor.float())
    torch.testing.assert_close(step.double(), wide[0].double() @ factor, rtol=1e-4, atol=1e-3)


def test_orthogonalised_gives_all_directions_about_the_same_length() -> None:
    draws = torch.Generator().manual_seed(0)
    for shape in ((8, 72), (72, 8), (16, 16)):
        matrix = torch.randn(shape, generator=draws) * torch.logspace(-2, 0, shape[1])
        matrix = matrix if shape[0] <= shape[1] else matrix.T
        left, before, right = torch.linalg.svd(matrix, full_matrices=False)
        (result,) = orthogonalised(matrix[None])
        values = torch.linalg.svdvals(result)
        assert values[before > 0.05 * matrix.norm()].min() > 0.6
        assert values.max() < 1.3
        # The nearest such matrix is U·Vᵀ: it keeps the directions.
        turned = left.T @ result @ right.T
        assert torch.allclose(turned, turned.diag().diag(), atol=1e-3)
    assert torch.equal(orthogonalised(torch.zeros(1, 3, 5)), torch.zeros(1, 3, 5))


def naive_muon(weights, gradients, factors, lr: float, momentum: float):
    """Jordan's iteration, twice, layer by layer as it is written."""
    a, b, c = 3.4445, -4.7750, 2.0315
    norms = [float(torch.linalg.matrix_norm(w.flatten(1), 2)) for w in weights]
    past = [torch.zeros_like(w) for w in weights]
    for step in gradients:
        for w, g, m, norm, factor in zip(weights, step, past, norms, factors, strict=True):
            m.mul_(momentum).add_(g)
            x = (g + momentum * m).flatten(1)
            x = x / x.norm()
            for _ in range(2):
                gram = x @ x.T
                x = a * x + (b * gram + c * gram @ gram) @ x
            x = x.view_as(w)
            if factor is not None and len(factor) == w.shape[1]:
                x = torch.einsum("oi...,ij->oj...", x, factor)
            elif factor is not None:
                x = (x.flatten(1) @ factor).view_as(w)
            w.sub_(lr * norm * x)
    return weights


def test_muon_takes_the_steps_that_it_is_defined_by() -> None:
    """Wide, tall and square layers, some of one shape, protected or not, against a loop."""
    draws = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draws, dtype=torch.float64)

    shapes = ((8, 4, 3, 3), (8, 4, 3, 3), (12, 5), (5, 12), (6, 6), (6, 8))
    weights = [normal(*shape) for shape in shapes]
    weights[0] = weights[0].contiguous(memory_format=torch.channels_last)
    factors = [normal(4, 4), normal(36, 36), None, normal(12, 12), normal(6, 6), None]
    gradients = [[normal(*shape) for shape in shapes] for _ in range(3)]
    expected = naive_muon([w.clone() for w in weights], gradients, factors, 0.01, 0.6)
    parameters = [nn.Parameter(w) for w in weights]
    pairs = zip(parameters, factors, strict=True)
    stepper = Stepper(Muon()(parameters), protection={p: f for p, f in pairs if f is not None})
    assert not stepper.capped
    for step in gradients:
        for p, gradient in zip(parameters, step, strict=True):
            p.grad = gradient
        stepper.step(0.01)
    for p, wanted in zip(parameters, expected, strict=True):
        # A layer's norm is measured in single precision.
        torch.testing.assert_close(p.detach(), wanted, rtol=1e-6, atol=1e-7)


def test_a_step_of_muon_changes_a_layer_by_a_share_of_its_norm_and_vectors_as_adam_does() -> None:
    torch.manual_seed(0)
    layer, table, twin = nn.Conv2d(8, 16, 3), nn.Embedding(200, 4), nn.Conv2d(8, 16, 3)
    twin.load_state_dict(layer.state_dict())
    parameters = [*layer.parameters(), *table.parameters()]
    mark_tables(table)
    steps = [Muon()(parameters), Adam()([twin.bias])]
    before = [p.detach().clone() for p in parameters]
    for p in parameters:
        p.grad = torch.randn_like(p)
    twin.bias.grad = layer.bias.grad.clone()
    for optimizer in steps:
        for group in optimizer.param_groups:
            group["lr"] = 0.01
        optimizer.step()
    moved = (layer.weight.detach() - before[0]).flatten(1)
    share = torch.linalg.matrix_norm(moved, 2) / torch.linalg.matrix_norm(before[0].flatten(1), 2)
    assert 0.006 < float(share) < 0.013
    assert torch.equal(layer.bias, twin.bias)
    # A table of embeddings is no layer: Adam's first step moves every entry by the learning rate.
    assert torch.allclose((table.weight.detach() - before[2]).abs(), torch.tensor(0.01), rtol=1e-3)


def test_sparse_gradients_are_refused_with_advice() -> None:
    for optimizer in (Adam(), Muon()):
        table = nn.Embedding(30, 4, sparse=True)
        table(torch.tensor([1, 2])).sum().backward()
        with pytest.raises(ValueError, match="make the embedding with sparse=False"):
            optimizer([table.weight]).step()


def test_a_layer_of_zeros_begins_to_grow_with_muon() -> None:
    weights = nn.Parameter(torch.zeros(4, 6))
    optimizer = Muon()([weights])
    weights.grad = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    optimizer.step()
    assert float(weights.detach().norm()) > 0.0
