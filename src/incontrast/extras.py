"""Optional libraries, which come with an extra of the package."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed(what: str, extra: str, error: type[Exception] = ImportError) -> Iterator[None]:
    """A block of imports; if a library is missing, the error says how to install it.

    >>> with needed("sails need wind", "weather"):
    ...     import wind
    Traceback (most recent call last):
    ImportError: sails need wind: pip install "incontrast[weather]"
    """
    try:
        yield
    except ImportError as missing:
        raise error(f'{what}: pip install "incontrast[{extra}]"') from missing
