"""Steps that spare what old items use."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from incontrast import (
    ICL,
    Adam,
    Graphs,
    Learner,
    Objective,
    Protection,
    Retrain,
    TrainingDiverged,
    Vectors,
)
from incontrast.data import digits
from incontrast.streams import by_class
from incontrast.training.engine import Engine
from incontrast.training.optimizers import Stepper
from incontrast.training.orthogonal import protected
from incontrast.training.protection import _InputCovariances
from incontrast.training.task import Increment, Task


def watched(module: nn.Module, *batches: Tensor) -> list[Tensor]:
    """Mean a·aᵀ of the inputs of each weight that was seen, in the order of parameters."""
    watch = _InputCovariances([p for p in module.parameters() if p.ndim > 1])
    with watch, torch.no_grad():
        for batch in batches:
            module(batch)
    return [watch.sums[p] / watch.rows[p] for p in module.parameters() if p in watch.sums]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_covariance_of_a_linear_layer_is_that_of_its_inputs() -> None:
    rows = normal(40, 3)
    naive = sum(torch.outer(row, row) for row in rows) / 40
    for batches in ([rows], [rows[:10], rows[10:]], [rows.view(4, 10, 3)]):
        torch.testing.assert_close(watched(nn.Linear(3, 2), *batches), [naive])


@pytest.mark.parametrize("settings", [{}, {"stride": 2, "padding": 1}, {"dilation": 2}])
def test_the_covariance_of_a_convolution_is_that_of_its_patches(settings) -> None:
    layer, images = nn.Conv2d(2, 4, 3, **settings), normal(3, 2, 9, 7)
    (found,) = watched(layer, images)
    # Each output is a product with a patch: one of the identity gives the patch itself.
    eye = torch.eye(18).view(18, 2, 3, 3)
    patches = torch.conv2d(images, eye, None, layer.stride, layer.padding, layer.dilation)
    rows = patches.movedim(1, -1).reshape(-1, 18)
    torch.testing.assert_close(found, rows.T @ rows / len(rows))


def test_a_wide_convolution_and_those_of_other_dimensions_have_one_over_channels() -> None:
    wide, images = nn.Conv2d(130, 2, 3), normal(2, 130, 4, 4)
    rows = images.movedim(1, -1).reshape(-1, 130)
    torch.testing.assert_close(watched(wide, images), [rows.T @ rows / len(rows)])
    assert [len(found) for found in watched(nn.Conv1d(3, 2, 5), normal(2, 3, 9))] == [3]
    same = watched(nn.Conv2d(2, 2, 3, padding="same"), normal(2, 2, 5, 5))
    assert [len(found) for found in same] == [2]
    assert watched(nn.Conv2d(4, 4, 3, groups=2), normal(2, 4, 5, 5)) == []


def test_the_covariances_of_attention_are_those_of_its_two_projections() -> None:
    layer, rows = nn.MultiheadAttention(6, 2, batch_first=True), normal(5, 4, 6)
    with torch.no_grad():
        layer.in_proj_bias.copy_(normal(18))
        layer.out_proj.bias.copy_(normal(6))
        # A loop over heads, up to the second projection.
        q, k, v = linear(rows, layer.in_proj_weight, layer.in_proj_bias).chunk(3, dim=-1)
        heads = []
        for part in (slice(0, 3), slice(3, 6)):
            scores = q[..., part] @ k[..., part].mT / 3**0.5
            heads.append(scores.softmax(dim=-1) @ v[..., part])
        inner = torch.cat(heads, dim=-1)
    found = _InputCovariances(list(layer.parameters()))
    with found, torch.no_grad():
        output, _ = layer(rows, rows, rows)
    torch.testing.assert_close(output, linear(inner, layer.out_proj.weight, layer.out_proj.bias))
    for weight, inputs in ((layer.in_proj_weight, rows), (layer.out_proj.weight, inner)):
        flat = inputs.reshape(-1, 6)
        torch.testing.assert_close(found.sums[weight], flat.T @ flat)
        assert found.rows[weight] == 20
    other = _InputCovariances(list(layer.parameters()))
    with other, torch.no_grad():
        layer(rows, rows + 1.0, rows + 1.0)  # of which the first projection has no one input
    assert set(other.sums) == {layer.out_proj.weight}


@pytest.mark.parametrize("norm_first", [True, False])
def test_every_matrix_of_a_transformer_is_protected(norm_first: bool) -> None:
    """Also in evaluation mode, in which torch has a faster way past its layers' functions."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)
    matrices = [weight for weight in encoder.parameters() if weight.ndim > 1]
    for mode in (True, False):
        watch = _InputCovariances(matrices)
        with watch, torch.no_grad():
            encoder.train(mode)(normal(3, 5, 8))
        assert set(watch.sums) == set(matrices)
        assert all(len(watch.sums[weight]) == weight.shape[1] for weight in matrices)


def test_a_transformer_of_ones_own_is_updated_with_protected_attention(blobs) -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0)
            self.body = nn.TransformerEncoder(layer, 1)

        def forward(self, batch: Tensor) -> Tensor:
            return self.body(batch.view(len(batch), 2, 4)).mean(dim=1)

    learner = Learner(Vectors(8, encoder=Tokens()), fit_strategy=Retrain(max_epochs=2))
    learner.fit(blobs(60))
    increment = Increment(learner.memory.items, learner.domain.collect(blobs(20)), 60)
    twin, how = copy.deepcopy(learner.encoder), {"engine": Engine.of(learner.encoder), "seed": 0}
    task = Task(
        twin, learner.domain, increment, objective=Objective(), before=learner.encoder, **how
    )
    attention = task.encoder.body.layers[0].self_attn
    factors = Protection().factors(task)
    assert {attention.in_proj_weight, attention.out_proj.weight} <= set(factors)
    learner.update(blobs(20, seed=1), strategy=ICL(max_epochs=1))


def test_inputs_may_be_none_or_have_no_batch() -> None:
    rows = normal(6, 3)
    expected = [rows.T @ rows / 6]
    torch.testing.assert_close(watched(nn.Linear(3, 2), rows, rows[:0]), expected)
    torch.testing.assert_close(watched(nn.Linear(3, 2), *rows), expected)
    image = normal(2, 5, 5)
    layer = nn.Conv2d(2, 4, 3)
    torch.testing.assert_close(watched(layer, image), watched(layer, image[None]))


class Odd(nn.Module):
    """A learned query, a part without inputs, a table, and a weight that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.query = nn.Linear(6, 8, bias=False), nn.Linear(4, 8, bias=False)
        self.idle, self.table = nn.Linear(6, 8, bias=False), nn.Embedding(30, 8)
        self.learned = nn.Parameter(torch.ones(4))
        self.logit_scale = nn.Parameter(torch.ones(()))

    def forward(self, rows: Tensor) -> Tensor:
        few = self.idle(rows[:0]).sum()
        looked_up = self.table(rows[:, 0].long() % 30)
        return self.first(rows) + self.query(self.learned) + looked_up + few


def test_odd_encoders_are_updated() -> None:
    domain = Vectors(6, encoder=Odd)
    learner = Learner(domain, fit_strategy=Retrain(max_epochs=1))
    learner.fit(normal(60, 6))
    before = copy.deepcopy(learner.encoder.state_dict())
    learner.update(normal(20, 6, seed=1) + 1.0, strategy=ICL(max_epochs=2))
    after = learner.encoder.state_dict()
    assert not torch.equal(before["first.weight"], after["first.weight"])
    assert torch.equal(before["logit_scale"], after["logit_scale"])


def test_a_weight_that_is_not_finite_is_what_the_error_is_about() -> None:
    learner = Learner(Vectors(6), fit_strategy=Retrain(max_epochs=1))
    learner.fit(normal(60, 6))
    with torch.no_grad():
        next(learner.encoder.parameters())[0, 0] = torch.inf
    with pytest.raises(TrainingDiverged, match="nan"):
        learner.update(normal(20, 6), strategy=ICL(max_epochs=2))


def test_a_weight_is_seen_that_is_used_without_its_layer() -> None:
    class Functional(nn.Linear):
        def forward(self, rows: Tensor) -> Tensor:
            return linear(rows, self.weight) + self.bias

    rows = normal(20, 3)
    torch.testing.assert_close(watched(Functional(3, 2), rows), watched(nn.Linear(3, 2), rows))


def test_many_inputs_are_thinned_out() -> None:
    images = normal(4, 1, 200, 200)
    (found,) = watched(nn.Conv2d(1, 2, 3), images)
    assert len(found) == 9
    torch.testing.assert_close(found, torch.eye(9), rtol=0, atol=0.1)
    watch = _InputCovariances([weight := nn.Parameter(torch.ones(1, 2))])
    with watch:
        linear(normal(100_000, 2), weight)
    assert 10_000 < watch.rows[weight] <= 16_384


def task_of(domain, items, new) -> Task:
    learner = Learner(domain, fit_strategy=Retrain(max_epochs=1, batch_size=16))
    learner.fit(items)
    old = learner.domain.collect(items)
    return Task(
        copy.deepcopy(learner.encoder),
        learner.domain,
        Increment(old, learner.domain.collect(new), len(old)),
        objective=Objective(),
        engine=Engine("cpu"),
        seed=0,
        before=learner.encoder,
    )


def test_the_factor_damps_what_old_items_use(blobs) -> None:
    """boost · e(A + e)⁻¹, for the inputs that the encoder of before has."""
    task = task_of(Vectors(8, hidden=16, out=8), blobs(40), blobs(10, seed=1))
    seen: list[Tensor] = []
    assert task.before is not None
    layer = next(m for m in task.before.modules() if isinstance(m, nn.Linear))
    with layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].double())):
        factors = Protection(damping=0.5, boost=3.0, items=30).factors(task)
    rows = torch.cat(seen)
    assert len(rows) == task.forward_passes == 60  # two views of each
    covariance = rows.T @ rows / len(rows)
    e = 0.5 * covariance.trace() / len(covariance)
    expected = 3.0 * e * torch.linalg.inv(covariance + e * torch.eye(len(covariance)))
    own = next(m for m in task.encoder.modules() if isinstance(m, nn.Linear)).weight
    torch.testing.assert_close(factors[own].double(), expected, rtol=1e-4, atol=1e-4)
    linears = [m.weight for m in task.encoder.modules() if isinstance(m, nn.Linear)]
    assert set(factors) == set(linears)  # and no bias, no BatchNorm


def test_old_items_stay_where_they_are_if_little_is_damped() -> None:
    """Steps change W·a for new inputs, and not for those that old items have."""
    used, unused = torch.eye(4)[:, :2], torch.eye(4)[:, 2:]
    covariance = used @ used.T
    factor = Protection(damping=1e-6, boost=2.0)._factor(covariance).float()
    layer = nn.Linear(4, 3, bias=False)
    before = layer.weight.detach().clone()
    layer.weight.grad = normal(3, 4)
    Stepper(torch.optim.SGD([layer.weight]), protection={layer.weight: factor}).step(0.1)
    change = layer.weight.detach() - before
    torch.testing.assert_close(change @ used, torch.zeros(3, 2), atol=1e-5, rtol=0)
    torch.testing.assert_close(change @ unused, -0.2 * layer.weight.grad @ unused)


def test_a_layer_that_old_items_do_not_reach_steps_freely() -> None:
    torch.testing.assert_close(
        Protection(boost=2.0)._factor(torch.zeros(3, 3)), 2.0 * torch.eye(3, dtype=torch.float64)
    )


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("width", [18, 2])
def test_a_factor_over_patches_or_channels(width, layout) -> None:
    step, factor = normal(5, 2, 3, 3), normal(width, width)
    rows = step.flatten(1) if width == 18 else step
    naive = (
        torch.einsum("oi,ij->oj", rows, factor).view_as(step)
        if width == 18
        else torch.einsum("oixy,ij->ojxy", rows, factor)
    )
    torch.testing.assert_close(protected(step.contiguous(memory_format=layout), factor), naive)


def test_a_protected_layer_is_capped_by_how_far_its_steps_really_go() -> None:
    weight = nn.Parameter(normal(6, 4))
    caps = [
        Stepper(Adam()([weight]), 1 / 8, protection=protection).capped[0][1]
        for protection in (None, {weight: torch.eye(4)}, {weight: 4.0 * torch.eye(4)})
    ]
    assert caps[1] == pytest.approx(caps[0])
    assert caps[2] == pytest.approx(caps[0] / 4)


def test_an_update_spares_old_items() -> None:
    """Same steps, same learning rates: with protection old items lose less, and new ones gain.

    Without retention, so that there is something to lose. Over ten seeds the two shares are 0.12
    apart, with a standard deviation of 0.01.
    """
    old, new = (part.items.reshape(-1, 64) for part in by_class(digits(), new=[7, 8, 9]))
    learner = Learner(Vectors(64), fit_strategy=Retrain(max_epochs=10), seed=0)
    learner.fit(old[:600])
    spared, free = (
        copy.deepcopy(learner).update(
            new[:100], strategy=ICL(max_epochs=5, retention=0.0, protection=protection)
        )
        for protection in (Protection(boost=1.0), None)
    )
    assert spared.loss_old[1] / spared.loss_old[0] < free.loss_old[1] / free.loss_old[0]
    assert spared.loss_new[1] < spared.loss_new[0]


def test_graphs_are_protected_too() -> None:
    path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    graphs = [(path, normal(3, 2, seed=number)) for number in range(30)]
    task = task_of(Graphs(hidden=8, layers=2), graphs[:20], graphs[20:])
    factors = Protection().factors(task)
    assert len(factors) == sum(p.ndim > 1 for p in task.encoder.parameters())


def test_what_is_no_protection_is_refused() -> None:
    with pytest.raises(ValueError, match="damping must be positive"):
        Protection(damping=0.0)
    with pytest.raises(ValueError, match="boost must be positive"):
        Protection(boost=-1.0)
    with pytest.raises(ValueError, match="items must be"):
        Protection(items=0)
