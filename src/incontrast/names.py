"""Suggestions for misspelt names of arguments and settings, and for names of other libraries."""

import inspect
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Self

KNOWN_AS = {  # names in other libraries, without underscores
    "lr": ("learningrate", "rate", "stepsize", "schedule", "scheduler", "lrscheduler"),
    "max_epochs": ("epochs", "epoch", "nepochs", "numepochs", "maxiter"),
    "batch_size": ("batch", "bs", "batchsize", "bsz"),
    "patience": ("earlystopping", "earlystop"),
    "ema_decay": ("ema", "momentumencoder", "averaging"),
    "weight_decay": ("wd", "l2", "decay"),
    "max_norm": ("clip", "gradclip", "clipgradnorm", "gradientclipping"),
    "temperature": ("tau", "temp", "t"),
    "warmup": ("warmupsteps", "warmupratio"),
    "optimizer": ("optim", "optimiser", "opt"),
}
SYNONYMS = {other: ours for ours, others in KNOWN_AS.items() for other in others}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant, if there is one.

    >>> nearest("epochs", ["lr", "max_epochs"]), nearest("patiense", ["lr", "patience"])
    ('max_epochs', 'patience')
    """
    known = list(known)
    synonym = SYNONYMS.get(name.lower().replace("_", "").replace("-", ""))
    matches = [synonym] if synonym in known else get_close_matches(name, known, 1, 0.7)
    return matches[0] if matches else None


class NamedArguments:
    """A base of dataclasses: an unknown argument is refused with the nearest name."""

    def __new__(cls, *values: Any, **named: Any) -> Self:
        _, *parameters = inspect.signature(cls.__init__).parameters.values()
        known = [parameter.name for parameter in parameters]
        any_name = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        unknown = [] if any_name else [name for name in named if name not in known]
        if unknown:
            near = nearest(unknown[0], known)
            hint = f"the nearest is {near}" if near else f"it has {', '.join(known)}"
            raise TypeError(f"{cls.__name__}() has no argument {unknown[0]!r}: {hint}")
        return super().__new__(cls)
