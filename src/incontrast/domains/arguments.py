"""Arguments that the domains of the library share: an encoder and views of one's own."""

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Generator, nn

from incontrast.domains.base import Domain, Part
from incontrast.domains.per_item import PerItem
from incontrast.import_path import ImportPath, as_import_path
from incontrast.randomness import seeded


class Argument(partial[Any]):
    """``encoder`` or ``views`` of a domain: an argument, and the method of the same name.

    Called, it is the method. Compared, shown, saved, or passed on by ``dataclasses.replace``, it is
    what was given.
    """

    given: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Argument) and bool(self.given == other.given)

    def __hash__(self) -> int:
        return hash(self.given)

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
    recipes: ClassVar[tuple[type, ...]] = (type(None),)
    """Values of ``views`` that the domain's own views understand."""

    def __post_init__(self) -> None:
        given = {name: as_import_path(self._given(name)) for name in ("encoder", "views")}
        self._check_arguments(**given)
        for name, value in given.items():
            inherited = getattr(type(self), name)
            usual = inherited is getattr(ArgumentDomain, name)
            # A method that a subclass overrides stays what it is.
            argument = Argument(self._method(name, value) if usual else inherited.__get__(self))
            argument.given = value
            object.__setattr__(self, name, argument)

    def _method(self, name: str, given: Any) -> Callable[..., Any]:
        if name == "encoder":
            named = given is None or isinstance(given, str)
            return self.own_encoder if named else self._given_encoder
        return self.own_views if isinstance(given, self.recipes) else self._given_views

    def encoder(self) -> nn.Module:
        module: nn.Module = self._method("encoder", self._given("encoder"))()
        return module

    def views(self, batch: Any, generator: Generator) -> tuple[Any, Any]:
        first, second = self._method("views", self._given("views"))(batch, generator)
        return first, second

    def arguments(self) -> dict[str, Any]:
        return {name: self._given(name) for name in vars(self)}

    @abstractmethod
    def own_encoder(self) -> nn.Module:
        """A new encoder: the usual one, or the network that was named."""

    @abstractmethod
    def own_views(
        self, batch: Any, generator: Generator, part: Part | None = None
    ) -> tuple[Any, Any]:
        """Two views of a batch, which may be part of a larger one."""

    def before_views(self, batch: Any) -> Any:
        """A batch as views of a user's own take it."""
        return batch

    def sides(self, batch: Any) -> tuple[Any, Any]:
        """What the first and what the second of such views is made of."""
        prepared = self.before_views(batch)
        return prepared, prepared

    def after_views(self, view: Any) -> Any:
        """What such a view becomes for the encoder."""
        return view

    def views_of_part(self, part: Part, generator: Generator) -> tuple[Any, Any]:
        argument: Argument = vars(self)["views"]
        if argument.func == self.own_views:
            return self.own_views(part.batch, generator, part)
        return super().views_of_part(part, generator)

    def _given_encoder(self) -> nn.Module:
        given = self._given("encoder")
        if isinstance(given, ImportPath):
            module = given()  # which says what failed
        elif isinstance(given, nn.Module):
            module = copy.deepcopy(given)
        else:
            try:
                module = given()
            except Exception as error:
                raise ValueError(
                    "the function given as encoder must make one without arguments, and failed: "
                    f"{type(error).__name__}: {error}"
                ) from error
        if not isinstance(module, nn.Module):
            raise TypeError(
                "the function given as encoder must return a torch.nn.Module, "
                f"got {type(module).__name__}"
            )
        return module

    @property
    def views_draw_globally(self) -> bool:  # type: ignore[override]
        given = self._given("views")
        parts = given if isinstance(given, tuple) else (given,)
        return any(isinstance(part, nn.Module | PerItem) for part in parts)

    def _given_views(self, batch: Any, generator: Generator) -> tuple[Any, Any]:
        recipes = self._given("views")
        recipes = recipes if isinstance(recipes, tuple) else (recipes, recipes)

        def view(side: Any, given: Any) -> Any:
            if not isinstance(given, nn.Module):
                return self.after_views(given(side, generator))
            seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
            with seeded(seed, device=side.device):
                return self.after_views(given(side))

        (first, second), other = self.sides(batch), 1
        if len(recipes) > 2:
            other = int(
                torch.randint(1, len(recipes), (), generator=generator, device=generator.device)
            )
        return view(first, recipes[0]), view(second, recipes[other])

    def _given(self, name: str) -> Any:
        value = getattr(self, name)
        return value.given if isinstance(value, Argument) else value

    def _check_arguments(self, encoder: Any, views: Any) -> None:
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
