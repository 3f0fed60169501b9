"""Arguments that the domains of the library share: an encoder and views of one's own."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Generator, nn

from incontrast.domains.base import Domain, Part
from incontrast.domains.per_item import PerItem
from incontrast.heads import new_module
from incontrast.import_path import as_import_path
from incontrast.randomness import seeded


@dataclass(frozen=True, repr=False)
class Argument:
    """``encoder`` or ``views`` of a domain: an argument, and the method of the same name.

    Called, it is the method. Compared, shown, saved, or passed on by ``dataclasses.replace``, it is
    what was given.
    """

    given: Any
    method: Callable[..., Any] = field(compare=False)

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self.method(*values, **named)

    def __repr__(self) -> str:
        return repr(self.given)


class ArgumentDomain(Domain):
    """A domain, as a dataclass, with the fields ``encoder`` and ``views``.

    Their defaults are factories, which leave the methods of the same names on the class.

    ``encoder`` is None for the domain's own, one of its ``networks``, a module, whose weights are
    the start of every encoder (it is copied), or a function without arguments that makes a module,
    also by its import path: ``"package.module:function"``, or an ``ImportPath`` with arguments.

    ``views`` is None for the domain's own, or whatever makes one random view of a batch: a function
    of the batch and a ``torch.Generator`` to draw from, a ``PerItem`` of a function of one item, or
    a ``torch.nn.Module`` (torchvision's v2 transforms, kornia) that is called with the batch while
    torch's own generators are seeded. Two of them are for the first and the second view: a crop of
    much and one of little, say. Of more, as multi-crop has them, the first is for the first view,
    and each batch has one of the others, drawn at random, for the second: over the steps that is
    the mean over all of them, at the cost of two views.
    """

    networks: ClassVar[tuple[str, ...]] = ()
    """Encoders that have a name."""
    drawn_by_part: ClassVar[bool] = True
    """Whether ``own_views`` makes views of a part of a batch from that part alone."""

    def __post_init__(self) -> None:
        for name, check in (("encoder", self._check_encoder), ("views", _check_views)):
            value = getattr(self, name)  # an Argument already, if ``replace`` passes it on
            given = as_import_path(value.given if isinstance(value, Argument) else value)
            check(given)
            method = getattr(type(self), name).__get__(self)
            object.__setattr__(self, name, Argument(given, method))
        own = self.own_views(self._given("views"))
        inherited = type(self).views, type(self).joined_views
        if own is not None and inherited == (ArgumentDomain.views, Domain.joined_views):
            object.__setattr__(self, "joined_views", own)

    def arguments(self) -> dict[str, Any]:
        kept = {name: value for name, value in vars(self).items() if name != "joined_views"}
        return kept | {name: self._given(name) for name in ("encoder", "views")}

    @abstractmethod
    def own_encoder(self) -> nn.Module:
        """A new encoder: the usual one, or the network that was named."""

    @abstractmethod
    def own_views(self, recipe: Any) -> Callable[..., Any] | None:
        """What makes both views of a batch as one by a recipe of the domain's own, else None.

        It takes a batch, a generator, and where the batch is part of a larger one, the ``Part``.
        """

    def sides(self, batch: Any) -> tuple[Any, Any]:
        """What views of a user's own are made of: the first ones, and the second ones."""
        return batch, batch

    def after_views(self, view: Any) -> Any:
        """What such a view becomes for the encoder."""
        return view

    def encoder(self) -> nn.Module:
        given = self._given("encoder")
        if given is None or isinstance(given, str):
            return self.own_encoder()
        return self.given_encoder(given)

    def given_encoder(self, given: Any) -> nn.Module:
        """A new encoder from a module, or by a function that makes one."""
        return new_module(given, "encoder", "without arguments")

    @property
    def usual_views(self) -> bool:
        """Whether views are the domain's own, neither a user's nor a subclass's."""
        return "joined_views" in vars(self)

    @property
    def views_draw_globally(self) -> bool:  # type: ignore[override]
        given = self._given("views")
        parts = given if isinstance(given, tuple) else (given,)
        return any(isinstance(part, nn.Module | PerItem) for part in parts)

    def views(self, batch: Any, generator: Generator) -> tuple[Any, Any]:
        given = self._given("views")
        own = self.own_views(given)
        if own is not None:
            return _halves(own(batch, generator), len(batch))
        recipes = given if isinstance(given, tuple) else (given, given)

        def drawn(low: int, high: int) -> int:
            draw = torch.randint(low, high, (), generator=generator, device=generator.device)
            return int(draw)

        def view(side: Any, recipe: Any) -> Any:
            if not isinstance(recipe, nn.Module):
                return self.after_views(recipe(side, generator))
            with seeded(drawn(0, 2**62), device=side.device):
                return self.after_views(recipe(side))

        first, second = self.sides(batch)
        other = drawn(1, len(recipes)) if len(recipes) > 2 else 1
        return view(first, recipes[0]), view(second, recipes[other])

    def views_of_part(self, part: Part, generator: Generator) -> tuple[Any, Any]:
        own = vars(self).get("joined_views") if self.drawn_by_part else None
        if own is None:
            return super().views_of_part(part, generator)
        return _halves(own(part.batch, generator, part), len(part.batch))

    def _given(self, name: str) -> Any:
        return getattr(self, name).given

    def _check_encoder(self, encoder: Any) -> None:
        if isinstance(encoder, str) and encoder not in self.networks:
            names = "".join(f"{name!r}, " for name in self.networks)
            raise ValueError(
                f"encoder must be {names}{'or ' if names else ''}a module of your own, got "
                f"{encoder!r}: by its import path, it is package.module:function"
            )
        if encoder is not None and not isinstance(encoder, str) and not callable(encoder):
            weights = isinstance(encoder, Mapping)
            got = "weights alone: give the module, and them by weights=" if weights else encoder
            raise TypeError(
                "encoder must be a torch.nn.Module or a function without arguments that makes one, "
                f"got {got}"
            )


def _check_views(views: Any) -> None:
    recipes = views if isinstance(views, tuple) else (views, views)
    for recipe in recipes:
        if isinstance(recipe, type) or not (views is None or callable(recipe)):
            hint = " (without its parentheses?)" if isinstance(recipe, type) else ""
            raise TypeError(
                "views must be a function of a batch and a torch.Generator, or a "
                f"torch.nn.Module, that gives one view, got {recipe!r}{hint}"
            )
    if len(recipes) < 2:
        raise ValueError(
            f"views must be two at least, one for each side, got {len(recipes)}: give it "
            "without a tuple for both"
        )


def _halves(joined: Any, count: int) -> tuple[Any, Any]:
    return joined[:count], joined[count:]
