"""What a fit or an update did."""

import math
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from incontrast.evaluate.population import Quartiles
from incontrast.evaluate.probes import ProbeScores
from incontrast.parity import EvaluationLoss
from incontrast.strategies.strategy import Strategy
from incontrast.text import counted, part_of_the_way, probe_changes
from incontrast.training.progress import Epoch, Stop

T = TypeVar("T")


class Change(NamedTuple, Generic[T]):
    """A figure before and after."""

    before: T
    after: T


@dataclass(frozen=True)
class Outcome:
    """What a fit or an update did, and what came of it.

    Args:
        strategy: How it was done.
        growth_ratio: α; 1 for a fit.
        loss: The evaluation loss over X′, of old items, of new items and of all, before and after.
        change_ratio: The quartiles of r over old items, before and after; None where there are
            fewer than two stored old items.
        seconds: Training time; what callbacks and evaluation took does not count.
        evaluation_seconds: Time spent on the figures of this outcome.
        epochs: Epochs, the last of which may not be complete.
        steps: Steps of the optimiser.
        forward_passes: Views that went through the encoder.
        stopped: What ended training.
        rollbacks: How often a learned schedule rolled back steps that had done harm.
        kept: The part of the way from the encoder of before to the trained one that was kept. Less
            than 1 where going all the way would have done harm, and 0 where a guarded schedule
            ended above the loss it began with.
        history: One line per epoch.
        probe: The scores of a probe, before and after; None without one.
        neighbours: The share of old items' ten nearest items that are still theirs; None where
            nothing bounds it, see ``Learner``.
        worse: What an update made worse that no check is about, in words: new items beyond what
            chance does, a probe's scores.
    """

    strategy: Strategy
    growth_ratio: float
    loss: Change[EvaluationLoss]
    change_ratio: Change[Quartiles] | None
    seconds: float
    evaluation_seconds: float
    epochs: int
    steps: int
    forward_passes: int
    stopped: Stop
    rollbacks: int
    kept: float
    history: tuple[Epoch, ...]
    probe: Change[ProbeScores] | None = None
    neighbours: float | None = None
    worse: tuple[str, ...] = ()

    @property
    def reverted(self) -> bool:
        """Whether the encoder is the one of before."""
        return self.kept == 0.0

    @property
    def loss_old(self) -> Change[float]:
        """The evaluation loss of old items, before and after."""
        return Change(self.loss.before.old, self.loss.after.old)

    @property
    def loss_new(self) -> Change[float]:
        """The evaluation loss of new items, before and after."""
        return Change(self.loss.before.new, self.loss.after.new)

    def as_json(self) -> dict[str, Any]:
        """All figures, with None for what is not finite, which JSON has not."""

        def plain(value: Any) -> Any:
            if hasattr(value, "_asdict"):
                value = value._asdict()
            if isinstance(value, dict):
                return {name: plain(entry) for name, entry in value.items()}
            if isinstance(value, tuple):
                return [plain(vars(part)) if isinstance(part, Epoch) else part for part in value]
            return None if isinstance(value, float) and not math.isfinite(value) else value

        figures: dict[str, Any] = plain({**vars(self), "strategy": type(self.strategy).__name__})
        return {**figures, "from_scratch": self.strategy.from_scratch}

    def __str__(self) -> str:
        lines = [
            f"{type(self.strategy).__name__}: {counted(self.epochs, 'epoch')}, "
            f"{counted(self.steps, 'step')}, "
            f"{self.seconds:.1f} s, stopped by {self.stopped}"
        ]
        if self.kept < 1.0:
            lines.append(f"  {part_of_the_way(self.kept)}")
        if self.neighbours is not None:
            lines.append(f"  old items keep {self.neighbours:.0%} of their nearest items")
        if self.worse:
            lines.append(f"  worse: {'; '.join(self.worse)}. Keep the encoder of before, or try")
            lines.append("  another strategy, a lower learning rate, or more of such items")
        if self.change_ratio is not None:
            lines.append(f"  loss of old items  {_arrow(*self.loss_old)}")
            lines.append(f"  loss of new items  {_arrow(*self.loss_new)}")
            ratios = (quartiles.median for quartiles in self.change_ratio)
            lines.append(f"  change ratio       {_arrow(*ratios)}")
        else:
            lines.append(f"  loss  {_arrow(*self.loss_new)}")
        for name, *change in probe_changes(self.probe):
            lines.append(f"  {name}  {_arrow(*change)}")
        return "\n".join(lines)


def _arrow(before: float, after: float) -> str:
    return f"{before:.3f} → {after:.3f}"
