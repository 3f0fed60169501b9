"""Learning rates that need no tuning: a DDPG agent that was trained on other data before.

A few hundred noisy decisions in one update cannot teach a policy
(docs/explanation/learning-rates.md). So the policy comes with the package, trained by
``tools/policy/train.py`` on many short updates of small tasks, and what an agent learns here is
added to that, slowly. Where the paper's agent sets the learning rate of each step afresh within two
decades, this one multiplies it, every few steps, by a bounded factor.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, pstdev
from typing import ClassVar

import torch
from safetensors.torch import load_file
from torch import Generator, Tensor

from incontrast.bounds import check_number, check_whole
from incontrast.randomness import seeded
from incontrast.schedules.ddpg import ActorCritic, OrnsteinUhlenbeck, Replay, Transitions
from incontrast.schedules.guard import Guard
from incontrast.schedules.schedule import LearningRate, Schedule, ScheduleState, Verdict, check_lr

POLICY = Path(__file__).parent / "policy.safetensors"
WINDOW = 8  # decisions that a state looks back on
FEATURES = 5  # figures per decision, see `entry`
DISCOUNT = 0.97
FACTOR = 4.0  # by which the first decision changes the learning rate at most
SETTLING, LEAST = 12, 0.1  # decisions that halve the exponent of that, and where it ends
LOWEST, HIGHEST = 1e-8, 10.0  # learning rates
SETTLED = 24  # decisions until the learning rate has settled
FALLING = 25  # decisions after that in which its bound falls by √2
LARGE = 1e6  # stands for a loss that is not finite


@dataclass(frozen=True, kw_only=True)
class Learned(Schedule):
    """Learning rates by an agent that has seen many updates before, and keeps learning.

    Args:
        start: The first learning rate; it hardly matters.
        every: Steps per decision.
        explore: σ of the noise on the agent's actions.
        learn_every: Decisions per update of the agent's networks; 0 leaves them as they are.
        agent_lr: Of the agent's own networks.
        guard: Whether steps that did harm are rolled back, and an update that ends worse than it
            began is reverted.
    """

    start: float = 1e-3
    every: int = 4
    explore: float = 0.02
    learn_every: int = 16
    agent_lr: float = 1e-5
    guard: bool = True

    def __post_init__(self) -> None:
        check_lr(self.start)
        check_lr(self.agent_lr)
        check_whole(1, every=self.every)
        check_whole(0, learn_every=self.learn_every)
        check_number("[0, inf)", explore=self.explore)

    @property
    def guarded(self) -> bool:
        return self.guard

    def begin(self, generator: Generator, state: ScheduleState | None = None) -> LearnedRate:
        return LearnedRate(self, generator, state)


class LearnedRate(LearningRate):
    watches: ClassVar[bool] = True
    batch_size: ClassVar[int] = 32  # transitions per update of the networks
    kept: ClassVar[int] = 512  # transitions that are remembered, and carried to the next run

    def __init__(
        self, schedule: Learned, generator: Generator, state: ScheduleState | None
    ) -> None:
        self.schedule = schedule
        with seeded(0, "agent"):  # its first weights are drawn, and replaced below
            self.networks = ActorCritic(
                WINDOW,
                FEATURES,
                discount=DISCOUNT,
                actor_lr=schedule.agent_lr,
                critic_lr=schedule.agent_lr,
            )
        self.replay = Replay(self.kept)
        self.guard = Guard() if schedule.guard else None
        self.noise = OrnsteinUhlenbeck(schedule.explore, generator)
        self.lr = schedule.start
        self._generator = generator
        self._restore(state or {})
        self._losses: list[float] = []
        self._entries: deque[Tensor] = deque(maxlen=WINDOW)
        self._first = self._last = math.nan  # mean losses
        self._decisions = 0
        self._calm = 0  # decisions since the guard last had its way
        self._settled: list[float] = []  # learning rates, from the highest of which the bound falls
        self._action = 0.0
        self._verdict: Verdict | None = None
        self._fresh = True  # nothing was done to the weights since they were known to be good

    def observe(self, loss: float) -> Verdict | None:
        finite, self._verdict = math.isfinite(loss), None
        if not finite and self._fresh:
            return None  # no learning rate is to blame: the loop stops, and says so
        self._fresh = False
        self._losses.append(loss if finite else LARGE)
        if self._decisions == 0 or len(self._losses) == self.schedule.every or not finite:
            self._close()
            self._losses.clear()
        return self._verdict

    def next_lr(self, progress: float) -> float:
        return self.lr

    def _close(self) -> None:
        """This window is over: judge it, learn from it, decide about the next one."""
        mean = fmean(self._losses)
        if self._decisions == 0:
            self._first = self._last = mean
        before = self._state() if self._decisions else None
        self._entries.append(
            entry(
                self.lr,
                change=relative(mean, self._last),
                rise=relative(mean, self._first),
                spread=pstdev(self._losses) / (abs(mean) + 1e-12),
                decisions=self._decisions,
            )
        )
        state = self._state()
        if before is not None:
            self.replay.add(before, self._action, -10.0 * relative(mean, self._last), state)
        self._decisions += 1
        every, size = self.schedule.learn_every, self.batch_size
        if every and self._decisions % every == 0 and len(self.replay) >= size:
            self.networks.learn(self.replay.sample(size, self._generator))
        self._verdict = None if self.guard is None else self.guard.judge(mean, self.lr)
        if self._verdict == "rollback":
            # For the next decision, a window that is rolled back has never happened.
            self._entries.pop()
            self._action, self._fresh = -1.0, True
        else:
            self._last = mean
            noise = self.noise.sample() if self.schedule.explore else 0.0
            self._action = min(max(self.networks.act(state) + noise, -1.0), 1.0)
        self.lr = min(max(self.lr * self._reach() ** self._action, LOWEST), self._bound())
        ceiling = HIGHEST if self.guard is None else self.guard.ceiling
        self._calm += 1
        if self._verdict == "rollback" or self.lr >= ceiling:  # it is not yet where it would be
            self.lr, self._calm = min(self.lr, ceiling), 0
            self._settled.clear()
        if SETTLED // 2 < self._calm <= SETTLED:
            self._settled.append(self.lr)

    def _reach(self) -> float:
        """The largest factor of a decision: the longer a run, the smaller.

        The first decisions must be able to leave a bad start at once. Later ones mostly follow
        noise, which small moves average out.
        """
        return float(FACTOR ** max(1.0 / (1.0 + self._decisions / SETTLING), LEAST))

    def _bound(self) -> float:
        """The highest learning rate: once settled, it falls with the square root of time.

        At the end of a run, when the loss is little but noise, a policy cannot see that a
        lower one would do better; that steps must become smaller for noise to average out is known
        without seeing it.
        """
        if self._calm < SETTLED:
            return HIGHEST
        fall = math.sqrt(1.0 + (self._calm - SETTLED) / FALLING)
        return max(self._settled) / fall

    def _state(self) -> Tensor:
        """(window, features), padded in front with the first entry."""
        entries = list(self._entries)
        return torch.stack([entries[0]] * (WINDOW - len(entries)) + entries)

    def state(self) -> ScheduleState:
        """The networks and the transitions they learn from."""
        kept = {f"networks.{k}": v.clone() for k, v in self.networks.state_dict().items()}
        if len(self.replay):
            kept |= {f"replay.{k}": v for k, v in self.replay.all()._asdict().items()}
        return kept

    def _restore(self, state: ScheduleState) -> None:
        carried = {k[9:]: v for k, v in state.items() if k.startswith("networks.")}
        self.networks.load_state_dict(carried or policy())
        if "replay.state" in state:
            self.replay.extend(Transitions(*(state[f"replay.{k}"] for k in Transitions._fields)))


def relative(value: float, reference: float) -> float:
    """(value − reference) relative to their size, in [−2, 2]; like a difference of logarithms."""
    return 2.0 * (value - reference) / (abs(value) + abs(reference) + 1e-12)


def entry(lr: float, *, change: float, rise: float, spread: float, decisions: int) -> Tensor:
    """(features,) of one window of steps made with a learning rate, each of about unit size.

    ``change`` and ``rise`` are the mean loss's, relative to the window before and to the first one;
    ``spread`` is that of its losses, relative to their mean.
    """
    return torch.tensor(
        [
            math.log(lr / 1e-3) / math.log(100.0),
            math.tanh(5.0 * change),
            2.0 * rise,
            math.tanh(5.0 * spread),
            math.log1p(decisions) / 4.0,
        ]
    )


@cache
def policy() -> ScheduleState:
    """The weights that come with the package; targets begin where their networks are."""
    weights = {name: value.float() for name, value in load_file(POLICY).items()}
    return weights | {f"target_{name}": value for name, value in weights.items()}
