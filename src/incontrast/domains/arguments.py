"""Arguments that the library's domains share: a user's encoder and views."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, ClassVar

import torch
from torch import Generator, nn

from incontrast.domains.base import Domain
from incontrast.domains.per_item import PerItem
from incontrast.heads import new_module
from incontrast.import_path import as_import_path
from incontrast.randomness import seeded


@dataclass(frozen=True, repr=False)
class Argument:
    """``encoder`` or ``views`` of a domain: both an argument and the method of the same name.

    Calling it calls the method. It is compared, printed and saved as the value that was given, and
    ``dataclasses.replace`` may pass it on.
    """

    given: Any
    method: Callable[..., Any] = field(compare=False)

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self.method(*values, **named)

    def __repr__(self) -> str:
        return repr(self.given)


class ArgumentDomain(Domain):
    """A domain that is a dataclass with the fields ``encoder`` and ``views``.

    Their defaults are factories, so that the class keeps the methods of the same names.

    ``encoder`` is None for the usual encoder, the name of one of ``networks``, a module (it is
    copied, so that every encoder starts from its weights), or a function without arguments that
    makes a module, also by its import path: ``"package.module:function"``, or an ``ImportPath``.

    ``views`` is a recipe of the domain's own type, or whatever makes one random view of a batch: a
    function of the batch and a ``torch.Generator``, a ``PerItem``, or a ``torch.nn.Module`` that is
    called with the batch while torch's global generators are seeded. A tuple of two is for the
    first and the second view. With more, as in multi-crop, the first is for the first view, and
    each batch draws one of the others for the second: over many steps that is the mean over all.
    """

    networks: ClassVar[tuple[str, ...]] = ()
    """Encoders that have a name."""
    recipe: ClassVar[type] = NoneType
    """The type of ``views`` for which ``own_views`` makes them."""

    def __post_init__(self) -> None:
        for name, check in (("encoder", self._check_encoder), ("views", self._check_views)):
            value = getattr(self, name)  # already an Argument, if ``replace`` passes it on
            value = as_import_path(value.given if isinstance(value, Argument) else value)
            check(value)
            method = getattr(type(self), name).__get__(self)
            object.__setattr__(self, name, Argument(value, method))
        if self.usual_views:  # a step makes them by one call
            object.__setattr__(self, "joined_views", self.own_views)

    def arguments(self) -> dict[str, Any]:
        values = {name: value for name, value in vars(self).items() if name != "joined_views"}
        return values | {name: self._given(name) for name in ("encoder", "views")}

    @abstractmethod
    def own_encoder(self) -> nn.Module:
        """A new encoder: the usual one, or the network that was named."""

    @abstractmethod
    def own_views(self, batch: Any, generator: Generator) -> Any:
        """Both views of a batch by the domain's own recipe, as ``joined_views`` returns them."""

    def sides(self, batch: Any) -> tuple[Any, Any]:
        """The inputs of a user's ``views``: for the first view, and for the second."""
        return batch, batch

    def after_views(self, view: Any) -> Any:
        """A view by a user's ``views``, in the form that the encoder takes."""
        return view

    def encoder(self) -> nn.Module:
        encoder = self._given("encoder")
        if encoder is None or isinstance(encoder, str):
            return self.own_encoder()
        return self.given_encoder(encoder)

    def given_encoder(self, given: Any) -> nn.Module:
        """A new encoder from a module, or by a function that makes one."""
        return new_module(given, "encoder", "without arguments")

    @property
    def usual_views(self) -> bool:
        """Whether ``own_views`` makes the views, not a user's argument or subclass."""
        kind = type(self)
        inherited = kind.views is ArgumentDomain.views and kind.joined_views is Domain.joined_views
        return inherited and isinstance(self._given("views"), self.recipe)

    @property
    def views_draw_globally(self) -> bool:  # type: ignore[override]
        views = self._given("views")
        recipes = views if isinstance(views, tuple) else (views,)
        return any(isinstance(recipe, nn.Module | PerItem) for recipe in recipes)

    def views(self, batch: Any, generator: Generator) -> tuple[Any, Any]:
        recipes = self._given("views")
        if isinstance(recipes, self.recipe):
            return halves(self.own_views(batch, generator))
        if not isinstance(recipes, tuple):
            recipes = (recipes, recipes)

        def draw(low: int, high: int) -> int:
            where = generator.device
            return int(torch.randint(low, high, (), generator=generator, device=where))

        def view(inputs: Any, recipe: Any) -> Any:
            if not isinstance(recipe, nn.Module):
                return self.after_views(recipe(inputs, generator))
            with seeded(draw(0, 2**62), device=inputs.device):
                return self.after_views(recipe(inputs))

        first, second = self.sides(batch)
        other = draw(1, len(recipes)) if len(recipes) > 2 else 1
        return view(first, recipes[0]), view(second, recipes[other])

    def _given(self, name: str) -> Any:
        return getattr(self, name).given

    def _check_encoder(self, encoder: Any) -> None:
        if isinstance(encoder, str) and encoder not in self.networks:
            names = ", ".join(map(repr, self.networks))
            raise ValueError(
                f"encoder must be {names}{', or ' if names else ''}a module of your own, got "
                f"{encoder!r}: by its import path, it is package.module:function"
            )
        if encoder is not None and not isinstance(encoder, str) and not callable(encoder):
            weights = isinstance(encoder, Mapping)
            got = "weights alone: give the module, and them by weights=" if weights else encoder
            raise TypeError(
                f"encoder must be a torch.nn.Module or a function that makes one, got {got}"
            )

    def _check_views(self, views: Any) -> None:
        if isinstance(views, self.recipe):
            return
        recipes = views if isinstance(views, tuple) else (views, views)
        for recipe in recipes:
            if isinstance(recipe, type) or not callable(recipe):
                hint = " (without its parentheses?)" if isinstance(recipe, type) else ""
                raise TypeError(
                    "views must be a function of a batch and a torch.Generator, or a "
                    f"torch.nn.Module, that gives one view, got {recipe!r}{hint}"
                )
        if len(recipes) < 2:
            raise ValueError(
                f"views must be two at least, one for each side, got {len(recipes)}: give one "
                "that serves for both without a tuple"
            )


def halves(joined: Any) -> tuple[Any, Any]:
    """The first and the second views of ``joined_views``."""
    count = len(joined) // 2
    return joined[:count], joined[count:]
