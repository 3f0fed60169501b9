"""The command line: a thin shell over the library. It alone talks to the terminal."""

import sys

__all__ = ["main"]


def main() -> None:
    """The entry point of the ``incontrast`` command."""
    try:
        from incontrast.cli.app import app

        app()
    except KeyboardInterrupt:  # while the program starts: later, a command says what is left
        sys.stderr.write("incontrast: interrupted\n")
        sys.exit(130)
