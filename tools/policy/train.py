"""Trains the policy of ``Learned()`` and writes src/incontrast/schedules/policy.safetensors.

    python tools/policy/train.py [--episodes 120] [--rounds 0]

1. Episodes: short updates of small tasks, in which the rate wanders to a rate drawn at random and
   stays about there. All that is asked of the encoder is hidden behind a factor that differs from
   episode to episode, so that a policy has to look at losses and cannot learn one rate by heart.
2. Imitation: the rate at which a task went best is known afterwards; the actor learns to move
   there from every state that was visited.
   With --rounds, also from the states that the actor itself comes to (Ross et al. 2011).
3. DDPG on all that was recorded: the critic learns by temporal differences, the actor by its
   gradient, held near imitation. The policy by imitation, with its critic, is what is written;
   docs/explanation/learning-rates.md says why.

The reward of a decision is the fall of the logarithm of the evaluation loss of the *averaged*
weights, relative to what could be gained on the task.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Generator, Tensor, nn

from incontrast.schedules.ddpg import ActorCritic, OrnsteinUhlenbeck, Transitions, follow
from incontrast.schedules.learned import (
    DISCOUNT,
    FACTOR,
    FEATURES,
    POLICY,
    WINDOW,
    Learned,
    LearnedRate,
)
from incontrast.schedules.schedule import ScheduleState
from tasks import Curve, Quadratic, Update, updates

STEPS = 480  # of an episode
EVERY = 4  # steps per decision
LOOKS = 16  # steps between two measurements of the evaluation loss
GAIN = 0.1  # of log loss: the least that counts as what could be gained on a task


class Recorded(LearnedRate):
    """Learning rates that follow another behaviour and remember states and actions."""

    def __init__(
        self, networks: ScheduleState, start: float, hidden: float, behave: Callable[..., float]
    ) -> None:
        plan = Learned(start=start, every=EVERY, explore=0.0, learn_every=0, guard=False)
        super().__init__(plan, Generator(), networks)
        self.hidden, self._behave = hidden, behave
        self.states: list[Tensor] = []
        self.actions: list[float] = []
        self.tried: list[float] = []  # learning rates

    def _act(self, state: Tensor) -> float:
        action = min(max(self._behave(self, state), -1.0), 1.0)
        self.states.append(state)
        self.actions.append(action)
        self.tried.append(self.lr)
        return action

    def _reach(self) -> float:
        return FACTOR

    def next_lr(self, progress: float) -> float:
        return min(self.lr * self.hidden, 0.3)


@dataclass(frozen=True)
class Episode:
    task: str
    states: Tensor  # (n + 1, window, features)
    actions: Tensor  # (n + 1,)
    rates: Tensor  # (n + 1,) before each action, as the encoder feels them
    losses: Tensor  # (n + 1,) log evaluation loss of the averaged weights at each decision

    @property
    def fall(self) -> float:
        return float(self.losses[0] - self.losses[-1])

    @property
    def typical(self) -> float:
        """The logarithm of the rate that most of it was made with."""
        return float(self.rates[len(self.rates) // 4 :].log().mean())


def play(
    task: Update | Quadratic,
    networks: ScheduleState,
    draws: Generator,
    behave: Callable[..., float],
) -> Episode:
    start = 10 ** (-6 + 4.5 * torch.rand((), generator=draws).item())
    hidden = 4 ** (2 * torch.rand((), generator=draws).item() - 1)
    rates = Recorded(networks, start, hidden, behave)
    curve: Curve = task.run(rates, draws, STEPS, LOOKS)
    count = min(len(rates.states), curve.steps[-1] // EVERY + 1)
    at = np.arange(count) * EVERY
    return Episode(
        task.name,
        torch.stack(rates.states[:count]),
        torch.tensor(rates.actions[:count]),
        torch.tensor(rates.tried[:count]) * hidden,
        torch.tensor(np.interp(at, curve.steps, curve.losses), dtype=torch.float32),
    )


def wander(draws: Generator, middle: float) -> Callable[..., float]:
    """Go to a rate drawn around ``middle`` (as the encoder feels it), and stay about there."""
    target = math.log(middle) + 1.2 * torch.randn((), generator=draws).item()
    noise = OrnsteinUhlenbeck(0.15, draws)

    def behave(rates: Recorded, state: Tensor) -> float:
        away = target - math.log(rates.lr * rates.hidden)
        return away / math.log(FACTOR) + noise.sample()

    return behave


def random_quadratic(draws: Generator) -> Quadratic:
    return Quadratic(2e-4 * 250 ** torch.rand((), generator=draws).item())


def knowing(best: float) -> Callable[..., float]:
    """Go straight to the best rate: what imitation aims at, and no policy can know."""

    def behave(rates: Recorded, state: Tensor) -> float:
        return (best - math.log(rates.lr * rates.hidden)) / math.log(FACTOR)

    return behave


def follow_actor(networks: ActorCritic, draws: Generator, sigma: float) -> Callable[..., float]:
    noise = OrnsteinUhlenbeck(sigma, draws)

    def behave(rates: Recorded, state: Tensor) -> float:
        return networks.act(state) + (noise.sample() if sigma else 0.0)

    return behave


def best_rates(episodes: list[Episode]) -> dict[str, float]:
    """The logarithm of the rate with the lowest loss at the end, for each task.

    Episodes at about the same rate are averaged: a Gaussian of width 0.6 in log rate.
    """
    best = {}
    for task in {episode.task for episode in episodes}:
        if task.startswith("quadratic"):
            best[task] = math.log(float(task.split()[1]))
            continue
        own = [e for e in episodes if e.task == task and len(e.losses) >= STEPS // EVERY]
        typical = torch.tensor([e.typical for e in own])
        losses = torch.tensor([float(e.losses[-1]) for e in own])
        candidates = torch.linspace(math.log(1e-4), math.log(3e-2), 40)
        near = torch.exp(-0.5 * ((candidates[:, None] - typical) / 0.6) ** 2)
        mean = (near @ losses) / (near.sum(1) + 1e-6)
        mean[near.sum(1) < 1.0] = math.inf  # too few episodes there
        best[task] = float(candidates[mean.argmin()])
    return best


def expert(episode: Episode, best: dict[str, float]) -> Tensor:
    """(n,) actions that move to the best rate."""
    away = best[episode.task] - episode.rates.log()
    return (away / math.log(FACTOR)).clamp(-0.95, 0.95)


def imitate(networks: ActorCritic, states: Tensor, actions: Tensor, draws: Generator) -> float:
    optimizer = torch.optim.Adam(networks.actor.parameters(), 3e-3)
    mean = 0.0
    for step in range(3000):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (1 - step / 3000) + 1e-5
        picks = torch.randint(len(states), (256,), generator=draws)
        loss = nn.functional.mse_loss(networks.actor(states[picks]), actions[picks])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean += 0.01 * (loss.item() - mean)
    networks.target_actor.load_state_dict(networks.actor.state_dict())
    return mean


def transitions(episodes: list[Episode]) -> Transitions:
    gains = {
        task: max(GAIN, max(e.fall for e in episodes if e.task == task))
        for task in {e.task for e in episodes}
    }
    parts = []
    for e in episodes:
        reward = 10.0 * (e.losses[:-1] - e.losses[1:]) / gains[e.task]
        parts.append((e.states[:-1], e.actions[:-1], reward.clamp(-5, 5), e.states[1:]))
    return Transitions(*(torch.cat(column) for column in zip(*parts, strict=True)))


def improve(
    networks: ActorCritic,
    data: Transitions,
    states: Tensor,
    actions: Tensor,
    draws: Generator,
    *,
    steps: int,
    actor: bool,
    hold: float = 1.0,
) -> None:
    """DDPG on recorded transitions; ``hold`` weighs imitation beside the policy gradient."""
    critic_step = torch.optim.Adam(networks.critic.parameters(), 1e-3)
    actor_step = torch.optim.Adam(networks.actor.parameters(), 1e-4)
    for _ in range(steps):
        picks = torch.randint(len(data.state), (256,), generator=draws)
        batch = Transitions(*(column[picks] for column in data))
        loss = networks.critic_loss(batch)
        critic_step.zero_grad()
        loss.backward()
        critic_step.step()
        if actor:
            value = networks.critic(batch.state, networks.actor(batch.state))
            near = torch.randint(len(states), (256,), generator=draws)
            away = nn.functional.mse_loss(networks.actor(states[near]), actions[near])
            loss = -value.mean() / value.abs().mean().detach() + hold * away
            actor_step.zero_grad()
            loss.backward()
            actor_step.step()
        follow(networks.target_actor, networks.actor, 5e-3)
        follow(networks.target_critic, networks.critic, 5e-3)


def judge(
    tasks: list[Update], networks: ActorCritic, best: dict[str, float] | None = None
) -> dict[str, float]:
    """Mean fall of the log loss by the end of episodes and over them, without noise."""
    draws, own = Generator().manual_seed(1), state_of(networks)
    ends, overs = [], []
    for task in tasks:
        behave = follow_actor(networks, draws, 0.0) if best is None else knowing(best[task.name])
        episode = play(task, own, draws, behave)
        ends.append(episode.fall)
        overs.append(float(episode.losses[0] - episode.losses.mean()))
    return {"fall at the end": float(np.mean(ends)), "mean fall": float(np.mean(overs))}


def write(networks: ActorCritic) -> None:
    """The package's policy: actor and critic in half precision."""
    weights = {k: v.half() for k, v in networks.state_dict().items() if "target" not in k}
    save_file(weights, POLICY)


def state_of(networks: ActorCritic) -> ScheduleState:
    return {f"networks.{k}": v.clone() for k, v in networks.state_dict().items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--cache", type=Path, default=Path("build/policy"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    draws = Generator().manual_seed(0)
    began = time.perf_counter()

    def say(text: str) -> None:
        print(f"{time.perf_counter() - began:6.0f} s  {text}", flush=True)

    arguments.cache.mkdir(parents=True, exist_ok=True)
    real = updates()
    say(f"{len(real)} tasks fitted")
    networks = ActorCritic(WINDOW, FEATURES, discount=DISCOUNT)
    blank = state_of(networks)
    recorded = arguments.cache / "episodes.pt"
    episodes = []
    if recorded.exists():
        episodes = [Episode(**entry) for entry in torch.load(recorded, weights_only=True)]
    for number in range(2 * len(episodes) // 3, arguments.episodes):
        draws = Generator().manual_seed(number)
        task = real[number % len(real)]
        episodes.append(play(task, blank, draws, wander(draws, 2e-3)))
        if number % 2:
            quadratic = random_quadratic(draws)
            episodes.append(play(quadratic, blank, draws, wander(draws, quadratic.best)))
            torch.save([vars(e) for e in episodes], recorded)
        if number % len(real) == 0:
            say(f"{number} episodes")
    draws = Generator().manual_seed(arguments.episodes)
    best = best_rates(episodes)
    for name, rate in sorted(best.items()):
        if not name.startswith("quadratic"):
            say(f"best learning rate of {name}: {math.exp(rate):.1e}")

    def lessons() -> tuple[Tensor, Tensor]:
        return (
            torch.cat([e.states for e in episodes]),
            torch.cat([expert(e, best) for e in episodes]),
        )

    say(f"imitation: error {imitate(networks, *lessons(), draws):.3f}")
    for number in range(arguments.rounds):
        own = state_of(networks)
        for task in [*real, *(random_quadratic(draws) for _ in range(2 * len(real)))]:
            episodes.append(play(task, own, draws, follow_actor(networks, draws, 0.1)))
        best = best_rates(episodes)
        say(f"round {number + 1}: error {imitate(networks, *lessons(), draws):.3f}")
    data = transitions(episodes)
    improve(networks, data, *lessons(), draws, steps=4000, actor=False)
    write(networks)
    say("the policy by imitation is written")
    imitation = judge(real, networks)
    say(f"knowing the best rate: {judge(real, networks, best)}")
    say(f"imitation: {imitation}")
    improve(networks, data, *lessons(), draws, steps=4000, actor=True)
    gradient = judge(real, networks)
    say(f"after DDPG: {gradient}")
    save_file(dict(networks.state_dict()), arguments.cache / "ddpg.safetensors")


if __name__ == "__main__":
    main()
