"""What every strategy does to an encoder, and what each of them is about."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

import pytest
import torch
from torch import Tensor, nn

from incontrast import (
    DDPG,
    ICL,
    Adam,
    BatchIndices,
    Cosine,
    Distill,
    Emphasis,
    FineTune,
    Fixed,
    Meta,
    NoUpdate,
    Replay,
    Retrain,
    Strategy,
    StrategyError,
    TensorCollection,
    Vectors,
    ViewBatch,
    WarmStart,
    check_strategy,
)
from incontrast.loss import Objective, batch_losses, increment_losses
from incontrast.randomness import seeded
from incontrast.strategies.distill import relation_loss
from incontrast.strategies.meta import adapt
from incontrast.training.engine import Engine
from incontrast.training.loop import train
from incontrast.training.task import Increment, InfiniteSampler, Task, new_epoch

TRAINED = [
    FineTune(),
    Retrain(),
    WarmStart(),
    Replay(),
    Distill(),
    ICL(),
    ICL(retention=0.0),
    ICL(retention=0.5),
    ICL(meta=Meta(order=1)),
    ICL(meta=Meta(order=2, query="both", steps=2)),
    ICL(lr=Cosine(1e-3)),
    ICL(emphasis=Emphasis(), epoch_steps=3),
    ICL.paper(),
    ICL.paper(order=1),
    ICL.paper(learned_lr=False),
    ICL.paper(meta=False),
    ICL.paper(meta=False, learned_lr=False),
]


def name(strategy: Strategy) -> str:
    return repr(strategy)[:60]


def make_task(blobs, *, old: int = 40, new: int = 20, seen: int | None = None) -> Task:
    domain = Vectors(8, hidden=16, out=8).fit_statistics(TensorCollection(blobs(old)))
    with seeded(0, "test"):
        encoder = domain.encoder()
    return Task(
        encoder,
        domain,
        Increment(
            TensorCollection(blobs(old)),
            TensorCollection(blobs(new, shift=1.0, seed=1)),
            seen or old,
        ),
        objective=Objective(),
        engine=Engine("cpu"),
        seed=0,
    )


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


@pytest.mark.parametrize("strategy", TRAINED, ids=name)
def test_every_strategy_but_inference_changes_every_weight(strategy: Strategy, blobs) -> None:
    task = make_task(blobs)
    before = weights(task.encoder)
    train(task, dataclasses.replace(strategy, max_epochs=2))
    after = weights(task.encoder)
    for parameter, _ in task.encoder.named_parameters():
        assert not torch.equal(before[parameter], after[parameter]), parameter
        assert torch.isfinite(after[parameter]).all()


def test_inference_changes_nothing(blobs) -> None:
    task = make_task(blobs)
    before = weights(task.encoder)
    run = train(task, NoUpdate())
    assert (run.steps, run.forward_passes, run.stopped) == (0, 0, "nothing to do")
    for key, value in weights(task.encoder).items():
        assert torch.equal(before[key], value)


@pytest.mark.parametrize("strategy", TRAINED, ids=name)
def test_every_strategy_keeps_its_contract(strategy: Strategy) -> None:
    check_strategy(strategy)


@pytest.mark.parametrize(
    ("strategy", "forward_passes"),
    [
        (FineTune(), 2 * 20),
        (WarmStart(), 2 * 60),
        (Retrain(), 2 * 60),
        (Replay(share=0.5), 2 * (20 + 20)),
        (Distill(), 2 * 2 * 20),  # student and teacher
        (ICL(batch_size=32, old_batch_size=32, epoch_steps=1), 2 * (20 + 32)),
        (ICL(batch_size=32, old_batch_size=8, epoch_steps=1), 2 * (20 + 8)),
        (ICL(batch_size=8, old_batch_size=32, epoch_steps=4), 2 * 2 * (20 + 2 * 27)),  # twice
        (ICL.paper(learned_lr=False), 2 * 3 * (20 + 32)),  # S = 2,
    ],
    ids=name,
)
def test_encoder_passes_of_an_epoch(strategy: Strategy, forward_passes: int, blobs) -> None:
    run = train(make_task(blobs), dataclasses.replace(strategy, max_epochs=1))
    assert run.forward_passes == forward_passes


@pytest.mark.parametrize("new", [1, 5, 20])
def test_a_small_increment_has_as_many_steps_as_an_epoch_needs(new: int, blobs) -> None:
    task = make_task(blobs, new=new)
    strategy = ICL(batch_size=8, epoch_steps=10)
    batches = list(strategy.sample(task))
    assert len(batches) >= 10
    assert 2 * strategy.epoch_items(task.increment) == 2 * sum(map(len, map(torch.cat, batches)))
    times = torch.cat([batch.new for batch in batches]).bincount()
    assert (times == times[0]).all(), "every new item comes equally often"


def test_an_update_costs_what_the_new_items_cost(blobs) -> None:
    small = train(make_task(blobs, old=200), ICL(max_epochs=1))
    large = train(make_task(blobs, old=4000), ICL(max_epochs=1))
    assert small.forward_passes == large.forward_passes


def first_loss(strategy: Strategy, task: Task) -> Tensor:
    batches = task.view_batches(strategy.sample(task))
    batch = next(batches)
    embedded = task.embed(batch.views, parameters=strategy.adapt(task, batches))
    return strategy.loss(task, batch, *embedded)


def test_the_joint_step_is_the_weighed_loss_of_its_items(blobs) -> None:
    """One step of ICL, from the items and views that its own draws name."""
    task, twin = make_task(blobs), make_task(blobs)
    loss = first_loss(ICL(batch_size=32, old_batch_size=16, emphasis=None), task)

    new = torch.randperm(20, generator=twin.draws)  # the epoch over ΔX is drawn first
    old = torch.randperm(40, generator=twin.generator("old items"))[:16]
    batch = torch.cat([twin.increment.old.take(old), twin.increment.new.take(new)])
    seed = int(torch.randint(2**62, (), generator=twin.generator("views")))
    views = twin.domain.views(batch, torch.Generator().manual_seed(seed))
    first, second = twin.encoder(torch.cat(views)).chunk(2)
    of_old, of_new = increment_losses(
        first, second, Objective(), old=16, growth_ratio=20 / 60, retention=1.0
    )
    torch.testing.assert_close(loss, (2 / 3) * of_old.mean() + (1 / 3) * of_new.mean())


def test_growth_ratio_counts_what_was_seen(blobs) -> None:
    assert make_task(blobs, old=40, new=20, seen=380).growth_ratio == 20 / 400


def test_distillation_holds_on_to_the_teachers_similarities(blobs) -> None:
    task = make_task(blobs)
    teacher = copy.deepcopy(task.encoder).eval()
    rows = task.increment.new.take(torch.arange(20))

    def drift(weight: float) -> float:
        run = make_task(blobs)
        train(run, Distill(weight=weight, max_epochs=30))
        with torch.no_grad():
            pair = [(e(rows), e(rows)) for e in (run.encoder, teacher)]
            return relation_loss(*pair, Objective()).mean().item()

    assert drift(20.0) < 0.7 * drift(0.0)


def test_relation_loss_is_a_divergence() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(5, 3, generator=generator) for _ in range(2))
    assert relation_loss((a, b), (a, b), Objective()).abs().max() < 1e-6
    assert (relation_loss((a, b), (b, a), Objective()) > 0).all()


def test_replay_mixes_in_the_same_old_items_all_the_time(blobs) -> None:
    task = make_task(blobs)
    taken: list[Tensor] = []
    original = task.increment.old.take
    task.increment.old.take = lambda indices: taken.append(indices) or original(indices)  # type: ignore[method-assign]
    train(task, Replay(share=0.25, max_epochs=4))
    drawn = torch.cat(taken)
    calibration = torch.unique(drawn[40:])
    assert len(torch.unique(drawn[:40])) == 10
    assert len(calibration) == 40


# Meta-optimisation -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alpha", "steps"), [(0.5, 1), (0.3, 3), (0.1, 9), (0.9, 1), (0.25, 3), (1 / 3, 2)]
)
def test_support_steps_follow_the_growth_ratio(alpha: float, steps: int) -> None:
    assert Meta().support_steps(alpha) == steps


def test_second_order_gradients_equal_finite_differences() -> None:
    """d/dθ of a query loss at θ′ = θ − lr·∇support(θ), for two support steps."""
    generator = torch.Generator().manual_seed(0)
    support, query = (torch.randn(6, 3, dtype=torch.float64, generator=generator) for _ in range(2))
    theta = torch.randn(3, 4, dtype=torch.float64, generator=generator)

    def loss(weight: Tensor, rows: Tensor, scale: float) -> Tensor:
        return batch_losses(rows @ weight, torch.tanh(scale * rows @ weight), Objective()).mean()

    def outer(weight: Tensor, order: int = 2) -> Tensor:
        adapted = {"w": weight}
        for scale in (0.7, 1.3):
            value = loss(adapted["w"], support, scale)
            adapted = adapt(adapted, value, 0.2, order=order, engine=Engine("cpu"))
        return loss(adapted["w"], query, 1.0)

    assert torch.autograd.gradcheck(outer, theta.requires_grad_())
    second = torch.autograd.grad(outer(theta), theta)[0]
    first = torch.autograd.grad(outer(theta, order=1), theta)[0]
    assert not torch.allclose(first, second)
    adapted = theta.detach().clone()
    for scale in (0.7, 1.3):
        adapted.requires_grad_()
        gradient = torch.autograd.grad(loss(adapted, support, scale), adapted)[0]
        adapted = (adapted - 0.2 * gradient).detach()
    at_adapted = torch.autograd.grad(loss(adapted.requires_grad_(), query, 1.0), adapted)[0]
    torch.testing.assert_close(first, at_adapted)


@pytest.mark.parametrize("order", [1, 2])
def test_the_meta_step_leaves_batch_norm_alone(order, blobs) -> None:
    task = make_task(blobs)
    before = weights(task.encoder)
    strategy = ICL(meta=Meta(order=order))
    first_loss(strategy, task).backward()
    for key, value in weights(task.encoder).items():
        assert torch.equal(before[key], value), key


def test_the_meta_step_through_the_encoder_equals_finite_differences(blobs) -> None:
    """The whole second-order step of ICL.paper(), BatchNorm included, in one direction."""
    task = make_task(blobs)
    task.encoder.double()
    task.increment = Increment(
        TensorCollection(blobs(40).double()), TensorCollection(blobs(20, seed=1).double()), 40
    )
    strategy = ICL.paper(learned_lr=False, lr=0.05)
    parameters = list(task.encoder.parameters())

    def loss() -> Tensor:
        task.draws = task.generator("draws")
        task._views = task.generator("views")
        task.old_items = InfiniteSampler(40, task.generator("old items"))
        return first_loss(strategy, task)

    gradient = torch.autograd.grad(loss(), parameters)
    generator = torch.Generator().manual_seed(1)
    direction = [torch.randn(p.shape, dtype=p.dtype, generator=generator) for p in parameters]
    step = 1e-6
    values = []
    for sign in (1.0, -1.0):
        with torch.no_grad():
            torch._foreach_add_(parameters, direction, alpha=sign * step)
        values.append(loss().item())
        with torch.no_grad():
            torch._foreach_add_(parameters, direction, alpha=-sign * step)
    numeric = (values[0] - values[1]) / (2 * step)
    analytic = sum((g * d).sum() for g, d in zip(gradient, direction, strict=True)).item()
    assert analytic == pytest.approx(numeric, rel=1e-5)


def test_paper_is_the_paper() -> None:
    paper = ICL.paper()
    assert (paper.retention, paper.ema_decay, paper.patience) == (0.0, 0.0, 50)
    assert (paper.batch_size, paper.old_batch_size) == (32, 32)
    assert paper.meta == Meta(order=2, query="new", steps=None, lr=DDPG())
    assert paper.lr == DDPG()
    assert paper.optimizer == Adam()
    assert (paper.emphasis, paper.epoch_steps) == (None, 1)
    assert ICL.paper(meta=False).meta is None
    assert ICL.paper(learned_lr=False, lr=1e-4).lr == 1e-4


# Errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ICL(retention=-1.0), "retention must be at least 0"),
        (lambda: ICL(old_batch_size=1), "old_batch_size must be at least 2"),
        (lambda: ICL(epoch_steps=0), "epoch_steps must be at least 1"),
        (lambda: Replay(share=0.0), r"share must be in \(0, 1\]"),
        (lambda: Distill(weight=-1.0), "weight must be at least 0"),
        (lambda: Meta(order=3), "order must be 1 or 2, got 3"),
        (lambda: Meta(query="old"), "query must be 'new' or 'both'"),
        (lambda: Meta(steps=0), "steps must be at least 1"),
        (lambda: Fixed(0.0), "a learning rate must be positive"),
        (lambda: DDPG(low=1.0, high=0.1), "0 < low < high"),
    ],
)
def test_settings_are_checked(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_icl_without_old_items_says_what_to_do(blobs) -> None:
    task = make_task(blobs, old=1)
    with pytest.raises(ValueError, match="at least 2 old items in memory, got 1"):
        train(task, ICL())
    assert train(make_task(blobs, old=2), ICL(max_epochs=1, epoch_steps=1)).steps > 0


COUNTER = count(1)


@dataclass(frozen=True, kw_only=True)
class Mine(Strategy):
    """A user's strategy that can be broken in several ways."""

    fault: str = ""

    def epoch_items(self, increment: Increment) -> int:
        return increment.new_count + {"about": 1, "too many": 2}.get(self.fault, 0)

    def sample(self, task: Task) -> Iterator[BatchIndices]:
        if self.fault == "beyond":
            yield BatchIndices(torch.tensor([0, 99]), torch.tensor([0, 1]))
        if self.fault == "list":
            yield [1, 2, 3]
        if self.fault != "empty":
            epoch = new_epoch(task.increment, 8, task.draws)
            yield from islice(epoch, 1 if self.fault == "shorter" else None)

    def loss(self, task: Task, batch: ViewBatch, first: Tensor, second: Tensor) -> Tensor:
        losses = batch_losses(first, second, task.objective)
        if self.fault == "stateful":
            losses = losses * next(COUNTER)
        if self.fault == "vector":
            return losses
        if self.fault == "detached":
            return losses.mean().detach()
        if self.fault == "elsewhere":
            return torch.ones((), requires_grad=True)
        return losses.mean()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("vector", r"scalar tensor, got \(8,\): take a mean"),
        ("detached", "this one is detached"),
        ("elsewhere", "must depend on task.encoder"),
        ("empty", "at least one batch"),
        ("shorter", r"epoch_items\(\) must count .* it says 16, an epoch embedded 8"),
        ("too many", r"epoch_items\(\) must count .* it says 18, an epoch embedded 16"),
        ("list", r"must yield BatchIndices\(old, new\), got \[1, 2, 3\]"),
        ("beyond", r"sample\(\) gave places where there is no item"),
    ],
)
def test_check_strategy_names_the_fault(fault: str, message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        check_strategy(Mine(fault=fault))


def test_check_strategy_finds_state_of_ones_own() -> None:
    with pytest.raises(StrategyError, match="the same seed must give the same weights"):
        check_strategy(Mine(fault="stateful"))


def test_check_strategy_accepts_a_good_one_and_wants_a_frozen_dataclass() -> None:
    check_strategy(Mine())
    check_strategy(Mine(fault="about"))  # batches that are drawn at random differ by as much

    class Loose(Mine):
        pass

    with pytest.raises(StrategyError, match="Loose must be a frozen dataclass"):
        check_strategy(Loose())
    with pytest.raises(StrategyError, match=r"got .*Mine.* \(without its parentheses\?\)"):
        check_strategy(Mine)  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", TRAINED, ids=name)
def test_an_epoch_embeds_the_items_it_says(strategy: Strategy, blobs) -> None:
    task = make_task(blobs)
    run = train(task, dataclasses.replace(strategy, max_epochs=1))
    assert run.forward_passes == 2 * strategy.epoch_items(task.increment)


def test_the_smallest_settings_are_settings() -> None:
    FineTune(max_epochs=1, patience=1, batch_size=4)
    ICL(old_batch_size=2, retention=0.0)
    Meta(order=1, steps=1)
    Replay(share=1.0)
    Distill(weight=0.0)
    with pytest.raises(ValueError, match="share must be in"):
        Replay(share=1.5)


@pytest.mark.parametrize("kind", [FineTune, WarmStart, Replay, Distill, ICL])
def test_every_strategy_checks_what_all_of_them_have(kind: type[Strategy]) -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 4"):
        kind(batch_size=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plain(Strategy):
    """One that says nothing about its epochs."""

    def sample(self, task: Task) -> Iterator[BatchIndices]:
        return iter(())


@pytest.mark.parametrize(
    ("strategy", "items"),
    [
        (NoUpdate(), 0),
        (FineTune(), 7),
        (WarmStart(), 16),
        (Retrain(), 16),
        (Distill(), 14),
        (Plain(), 16),
    ],
)
def test_items_of_an_epoch(strategy: Strategy, items: int, blobs) -> None:
    increment = Increment(TensorCollection(blobs(9)), TensorCollection(blobs(7)), 9)
    assert strategy.epoch_items(increment) == items
