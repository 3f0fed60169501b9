"""What a training step costs on many processes: a model small enough to be done by hand.

docs/explanation/scale.md uses it; ``benchmarks/processes.py`` compares it with what is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

__all__ = ["Holdings", "Link", "Step", "step_seconds"]

NUMBER = 4  # bytes of a float32
MOMENT = 8  # bytes of a sum of BatchNorm's, in double precision
AGREEMENTS = 4  # small messages of a step: number of rows, loss, rate, time
ON_DISK = 33  # bytes beside an item in the store: key 8, size 8, state 1, content hash 16
IN_MEMORY = 48  # bytes of an item in every process: key, size, id twice, its place in a round twice


@dataclass(frozen=True, kw_only=True)
class Link:
    """What lies between processes.

    Args:
        latency: Seconds of a sum over processes that hardly has any bytes.
        bandwidth: Bytes per second that a process sends while a large sum goes on.
    """

    latency: float
    bandwidth: float

    @classmethod
    def measured(cls, processes: int, small: float, size: int, large: float) -> Link:
        """From the seconds of a small sum and of one over ``size`` bytes."""
        sent = _sent(size, processes)
        return cls(latency=small, bandwidth=sent / max(large - small, 1e-9))

    def seconds(self, size: float, processes: int) -> float:
        """Seconds of a sum over ``size`` bytes."""
        if processes == 1:
            return 0.0
        return self.latency + _sent(size, processes) / self.bandwidth


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a step is made of.

    Args:
        items: Items of a batch, old and new.
        width: Dimensions of an embedding.
        parameters: Parameters of the encoder.
        norms: Its BatchNorm layers.
        channels: Their channels, in all.

    >>> from incontrast.domains.images.encoders import ResNet18
    >>> step = Step.of(ResNet18(3, "small"), items=96)
    >>> step.parameters, step.norms, step.gradient_bytes
    (11168832, 20, 44675328)
    >>> step.gathered_bytes  # both views of 96 items, 512 dimensions
    393216
    """

    items: int
    width: int
    parameters: int
    norms: int
    channels: int

    @classmethod
    def of(cls, encoder: nn.Module, *, items: int, width: int | None = None) -> Step:
        """The step of an encoder; its width is that of its last BatchNorm, unless given."""
        norms = [m for m in encoder.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        return cls(
            items=items,
            width=width or (norms[-1].num_features if norms else 0),
            parameters=sum(p.numel() for p in encoder.parameters() if p.requires_grad),
            norms=len(norms),
            channels=sum(norm.num_features for norm in norms),
        )

    @property
    def gathered_bytes(self) -> int:
        """Embeddings of both views that every process holds."""
        return 2 * self.items * self.width * NUMBER

    @property
    def similarity_bytes(self) -> int:
        """Similarities of all pairs; autograd keeps a few tensors of this size."""
        return self.items**2 * NUMBER

    @property
    def similarity_operations(self) -> int:
        """Multiplications and additions of similarities, forward and backward; all do all."""
        return 6 * self.items**2 * self.width

    @property
    def gradient_bytes(self) -> int:
        return self.parameters * NUMBER

    def talking(self, link: Link, processes: int) -> float:
        """Seconds in which processes exchange sums, none of which hides behind computation."""
        if processes == 1:
            return 0.0
        # Forward and backward each; a layer's sums are two numbers per channel.
        embeddings = 2 * link.seconds(self.gathered_bytes, processes)
        norms = 2 * self.norms * link.latency
        norms += 2 * _sent(2 * self.channels * MOMENT, processes) / link.bandwidth
        gradients = link.seconds(self.gradient_bytes, processes)
        return embeddings + norms + gradients + AGREEMENTS * link.latency


@dataclass(frozen=True, kw_only=True)
class Holdings:
    """What there is to keep and to read.

    Args:
        items: Items that are remembered.
        size: Bytes of an item in the store.

    >>> held = Holdings(items=10**9, size=3073)  # images of 32 px
    >>> held.store_bytes / 1e12, held.memory_bytes / 1e9
    (3.106, 48.0)
    >>> round(held.ingest_seconds(20_000) / 3600, 1)
    13.9
    """

    items: int
    size: int

    @property
    def store_bytes(self) -> int:
        """Of the store, on disk."""
        return self.items * (self.size + ON_DISK)

    @property
    def memory_bytes(self) -> int:
        """Of every process, for what is known of all items; the items stay on disk."""
        return self.items * IN_MEMORY

    def ingest_seconds(self, rate: float) -> float:
        """Until all have come in, at so many items per second: one process writes."""
        return self.items / rate


def step_seconds(
    alone: float, step: Step, link: Link, processes: int, *, cores: int, common: float = 0.0
) -> float:
    """Seconds of a step on many processes, from those of one.

    Args:
        alone: Seconds of one process.
        step: What is computed and sent.
        link: What lies between processes.
        processes: How many there are.
        cores: How many can compute at the same time.
        common: Share of a step that every process does for the whole batch: losses, optimiser.

    >>> step = Step(items=96, width=512, parameters=11_168_832, norms=20, channels=4800)
    >>> wire = Link(latency=1e-4, bandwidth=1e9)
    >>> [round(8.0 / step_seconds(8.0, step, wire, count, cores=64), 1) for count in (1, 2, 64)]
    [1.0, 2.0, 36.4]
    """
    parallel = min(processes, cores)
    # Processes beyond the cores wait for each other, also with what all do alike.
    repeated = alone * common * (processes / parallel)
    return alone * (1.0 - common) / parallel + repeated + step.talking(link, processes)


def _sent(size: float, processes: int) -> float:
    """Bytes that each process sends in a sum over ``size`` bytes: a ring's 2·(P−1)/P."""
    return 2.0 * (processes - 1) / processes * size
