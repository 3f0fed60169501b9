"""The grid of an experiment, and what identifies a run of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from incontrast import Domain, Fixed, Objective, Strategy
from paper.names import ON_REQUEST, RETRAINING
from paper.sets import SCALES, DataSet
from paper.strategies import STRATEGIES

UNMENTIONED = {  # what all strategies had before there was a choice
    "optimizer": {"type": "Adam"},
    "warmup": 0.0,
    "epoch_steps": 1,
    "weight_decay": 0.0,
    "limit": 5.0,
    "compatible": 0.0,
    "ema_leaning": 1.0,
    "interpolation": 1.0,
}
SEARCH_SEED = 0  # learning rates are searched on the increment of this seed, for all seeds
LEAST = {"max_epochs": 1, "patience": 1, "items": 16}


@dataclass(frozen=True, kw_only=True)
class Group:
    """The runs of one increment: they share data, the encoder of before, and retraining."""

    scale: str
    name: str
    data: DataSet
    growth_ratio: float
    seed: int
    strategies: tuple[str, ...]

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.data.name}, α = {self.growth_ratio:g}, seed {self.seed}"

    def of_seed(self, seed: int) -> Group:
        """The same of another seed."""
        return replace(self, seed=seed)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Which runs there are to be.

    Args:
        sets: Data sets by name.
        strategies: Names of strategies.
        seeds: Seeds; all runs of the first come before those of the next.
        ratios: Growth ratios instead of each data set's own; None keeps those. A split by class
            has one ratio, which its classes decide.
        scale: A word for the sizes, under which rows are shown together.

    >>> grid = Grid.of(sets=["digits"], strategies=["icl"], seeds=[0, 1])
    >>> [group.title for group in grid.groups()]
    ['digits by class, α = 0.3, seed 0', 'digits by class, α = 0.3, seed 1']
    """

    sets: Mapping[str, DataSet]
    strategies: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    ratios: tuple[float, ...] | None = None
    scale: str = "small"

    @classmethod
    def of(
        cls,
        *,
        sets: list[str] | None = None,
        strategies: list[str] | None = None,
        seeds: list[int] | None = None,
        ratios: list[float] | None = None,
        scale: str = "small",
        **changes: Any,
    ) -> Grid:
        """A grid from names; what is named twice counts once.

        Args:
            sets: Names of data sets; those of the paper, and MNIST by class and turned, if None.
            strategies: Names of strategies; all but those on request if None.
            seeds: Seeds; 0 alone if None.
            ratios: Growth ratios; each data set's own if None.
            scale: ``"small"`` or ``"paper"``.
            **changes: Fields of every data set to change, such as ``max_epochs``.
        """
        known = SCALES[_known("scale", scale, SCALES)]
        default = [name for name in SCALES["paper"] if name in known]
        chosen = [_known("data set", name, known) for name in sets or default]
        usual = [name for name in STRATEGIES if name not in ON_REQUEST]
        named = [_known("strategy", name, STRATEGIES) for name in strategies or usual]
        by_class = [name for name in sets or [] if known[name].split == "class"]
        for ratio in ratios or []:
            if not 0.0 < ratio < 1.0:
                raise ValueError(f"a growth ratio must be in (0, 1), got {ratio}")
            if by_class:
                raise ValueError(
                    f"{by_class[0]} is split by class, which decides its growth ratio: "
                    f"leave out the ratio {ratio:g}, or the data set"
                )
        for seed in seeds or []:
            if seed < 0:
                raise ValueError(f"a seed must not be negative, got {seed}")
        given = {name: value for name, value in changes.items() if value is not None}
        for name, least in LEAST.items():
            if given.get(name, least) < least:
                raise ValueError(f"{name} must be at least {least}, got {given[name]}")
        return cls(
            sets={name: replace(known[name], **given) for name in chosen},
            strategies=tuple(dict.fromkeys(named)),
            seeds=tuple(dict.fromkeys(seeds or [0])),
            ratios=None if ratios is None else tuple(dict.fromkeys(ratios)),
            scale=scale,
        )

    def groups(self) -> Iterator[Group]:
        """The increments of the grid, in the order in which they are run."""
        for seed in self.seeds:
            for name, data in self.sets.items():
                own = data.ratios if self.ratios is None or data.split == "class" else self.ratios
                for ratio in own:
                    yield Group(
                        scale=self.scale,
                        name=name,
                        data=data,
                        growth_ratio=ratio,
                        seed=seed,
                        strategies=self.strategies,
                    )

    def count(self) -> int:
        """Runs, retraining included, trials of the search not."""
        return sum(len({RETRAINING, *group.strategies}) for group in self.groups())


def _known(what: str, name: str, there: Iterable[str]) -> str:
    if name not in there:
        raise ValueError(f"there is no {what} {name!r}: choose from {', '.join(there)}")
    return name


def settings_of(
    group: Group, *, kind: str, fit_strategy: Strategy, strategy: Strategy
) -> dict[str, Any]:
    """Everything that the figures of a row depend on: a run is done if its settings are."""
    return {
        "kind": kind,
        **group.data.settings(),
        "growth_ratio": group.growth_ratio,
        "seed": group.seed,
        "domain": describe(group.data.domain),
        "objective": describe(Objective()),
        "fit_strategy": describe(fit_strategy),
        "strategy": describe(strategy),
    }


def describe(value: Any) -> Any:
    """Settings as JSON. What is off is left out: a new switch that is off changes no key.

    >>> from incontrast import FineTune
    >>> describe(FineTune(lr=1e-3, patience=None))["lr"]
    0.001
    """
    if isinstance(value, Fixed) and value == Fixed(value.lr):
        return value.lr
    if isinstance(value, Domain) or is_dataclass(value):
        if isinstance(value, Domain):
            parts = value.arguments()
        else:
            parts = {entry.name: getattr(value, entry.name) for entry in fields(value)}
        on = {
            name: part
            for name, part in parts.items()
            if part is not None and part is not False and part != {}
        }
        described = {name: describe(part) for name, part in on.items()}
        return {"type": type(value).__name__} | {
            name: part for name, part in described.items() if UNMENTIONED.get(name) != part
        }
    if isinstance(value, list | tuple):
        return [describe(part) for part in value]
    if isinstance(value, bool | int | float | str):
        return value
    return type(value).__name__
