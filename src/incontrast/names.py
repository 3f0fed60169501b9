"""Names that people mistype, or know from elsewhere."""

import inspect
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Self

KNOWN_AS = {  # what other libraries call it, without underscores
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
    """The one of these names that is meant, if it is likely to be one of them.

    >>> nearest("epochs", ["lr", "max_epochs"]), nearest("patiense", ["lr", "patience"])
    ('max_epochs', 'patience')
    """
    known = list(known)
    synonym = SYNONYMS.get(name.lower().replace("_", "").replace("-", ""))
    found = [synonym] if synonym in known else get_close_matches(name, known, 1, 0.7)
    return found[0] if found else None


class NamedArguments:
    """Of dataclasses whose constructors name the nearest argument to one that they have not."""

    def __new__(cls, *values: Any, **given: Any) -> Self:
        _, *parameters = inspect.signature(cls.__init__).parameters.values()
        known = [parameter.name for parameter in parameters]
        any_name = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        for name in given if not any_name else ():
            if name not in known:
                near = nearest(name, known)
                hint = f"the nearest is {near}" if near else f"it has {', '.join(known)}"
                raise TypeError(f"{cls.__name__}() has no argument {name!r}: {hint}")
        return super().__new__(cls)
