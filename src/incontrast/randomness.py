"""Random generators, one for each purpose, all derived from one seed."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Generator


def generator(seed: int, *purpose: str | int) -> Generator:
    """A generator for one purpose, so that one more draw changes nothing elsewhere.

    >>> generator(0, "views").initial_seed() == generator(0, "views").initial_seed()
    True
    >>> generator(0, "views").initial_seed() == generator(0, "negatives").initial_seed()
    False
    """
    return Generator().manual_seed(_derive(seed, purpose))


@contextmanager
def seeded(seed: int, *purpose: str | int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Seed torch's global generators inside the block and restore their states after it.

    For operations that draw from them: the initialisation of modules, dropout.
    """
    device, number = torch.device(device), _derive(seed, purpose)
    devices = []
    if device.type == "cuda":
        devices = [torch.cuda.current_device() if device.index is None else device.index]
    mps = torch.mps.get_rng_state() if device.type == "mps" else None
    with torch.random.fork_rng(devices):
        # Not torch.manual_seed, which would seed every accelerator.
        torch.default_generator.manual_seed(number)
        for index in devices:
            torch.cuda.default_generators[index].manual_seed(number)
        if mps is not None:
            torch.mps.manual_seed(number)
        try:
            yield
        finally:
            if mps is not None:
                torch.mps.set_rng_state(mps)


def _derive(seed: int, purpose: tuple[str | int, ...]) -> int:
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
