"""Settings of a service, which worker processes read from the environment."""

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from incontrast.bounds import check_number, check_whole

VARIABLE = "INCONTRAST_SERVE"


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """Settings of a service.

    Args:
        workspace: Whose current version is served.
        index: The folder of a ``MigratingIndex`` to search in, if any.
        token: What clients must send; None lets everybody in.
        trust: Permit the code that somebody else's workspace names.
        threads: Of torch; its default if None.
        batch_size: Items at most in one forward pass.
        max_bytes: Of the body of a request.
        max_items: Of a request.
        max_waiting: Items that may wait for the encoder.
        interval: Seconds between two checks which version is current.
    """

    workspace: Path
    index: Path | None = None
    token: str | None = None
    trust: bool = False
    threads: int | None = None
    batch_size: int = 64
    max_bytes: int = 2**24
    max_items: int = 1024
    max_waiting: int = 8192
    interval: float = 0.5

    def __post_init__(self) -> None:
        check_whole(1, batch_size=self.batch_size, max_bytes=self.max_bytes)
        check_whole(1, max_items=self.max_items, max_waiting=self.max_waiting)
        check_number("(0, inf)", interval=self.interval)
        if self.max_waiting < self.max_items:
            limits = f"max_waiting ({self.max_waiting}) is less than max_items ({self.max_items})"
            raise ValueError(f"{limits}: the largest requests would never be answered")

    def export(self) -> None:
        """Put the settings into the environment, for worker processes."""
        os.environ[VARIABLE] = json.dumps(asdict(self), default=str)

    @classmethod
    def from_environment(cls) -> Self:
        settings = cls(**json.loads(os.environ[VARIABLE]))
        index = None if settings.index is None else Path(settings.index)
        return replace(settings, workspace=Path(settings.workspace), index=index)
