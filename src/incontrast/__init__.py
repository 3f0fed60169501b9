"""Keep a self-supervised encoder up to date."""

from incontrast._version import __version__

__all__ = ["__version__"]
