"""Libraries that come with an extra of the package."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed(what: str, extra: str, error: type[Exception] = ImportError) -> Iterator[None]:
    """A block of imports; where a library is missing, says what needs it and how to install it.

    >>> with needed("sails need wind", "weather"):
    ...     import wind
    Traceback (most recent call last):
    ImportError: sails need wind: pip install "incontrast[weather]"
    """
    try:
        yield
    except ImportError as missing:
        raise error(f'{what}: pip install "incontrast[{extra}]"') from missing
