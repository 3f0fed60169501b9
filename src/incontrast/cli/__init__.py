"""The command line: a thin shell over the library. It alone talks to the terminal."""

from incontrast.cli.app import main

__all__ = ["main"]
