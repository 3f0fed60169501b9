"""``python -m incontrast``."""

from incontrast.cli import main

main()
