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
    """Settings of a service."""

    workspace: Path  # whose current version is served
    index: Path | None = None  # folder of a ``MigratingIndex`` to search in
    token: str | None = None  # that clients must send; None lets everybody in
    trust: bool = False  # permit the code that somebody else's workspace names
    threads: int | None = None  # of torch
    batch_size: int = 64  # most items in one forward pass
    max_bytes: int = 2**24  # of the body of a request
    max_items: int = 1024  # of a request
    max_waiting: int = 8192  # items that may wait for the encoder
    interval: float = 0.5  # seconds between two checks which version is current

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
