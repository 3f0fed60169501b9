"""What processes tell each other. Every message goes through here, and has gradients if asked to.

Each process has its own graph and calls ``backward`` on its own copy of the loss: autograd then
computes derivatives of the *sum* of these copies. A sum over processes is its own transpose, so
that derivatives of it, of any order, are sums over processes again.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd import Function
from torch.autograd.function import FunctionCtx

T = TypeVar("T")

SMALL = 2**17  # bytes of all processes together
BUCKET = 2**22  # bytes of gradients that are summed together


class LostProcess(RuntimeError):
    """A process did not answer: it is gone, or slower than the time-out."""


class ProcessFailed(RuntimeError):
    """Another process raised an error, which this one repeats."""


@contextmanager
def in_contact() -> Iterator[None]:
    """Turn what torch says when a process does not answer into one clear message."""
    try:
        yield
    except (RuntimeError, dist.DistError) as error:
        here = f"process {dist.get_rank()} of {dist.get_world_size()} ({socket.gethostname()})"
        # Without the place in torch's source before it and the advice behind it.
        reason = str(error).splitlines()[0].rpartition("] ")[2].partition(". ")[0]
        raise LostProcess(
            f"{here} lost contact with the others: one of them ended, was ended, or was slower "
            f"than the time-out. What was complete stays as it was: look for the first error, "
            f"then run it again ({reason})"
        ) from error


def all_reduce_(tensor: Tensor) -> Tensor:
    """The sum over all processes, in place and without gradients."""
    count = dist.get_world_size()
    with in_contact():
        if tensor.is_cpu and count * tensor.numel() * tensor.element_size() <= SMALL:
            # One round of messages where gloo's all-reduce takes several: half the time or less.
            rows = tensor.new_empty(count, tensor.numel())
            dist.all_gather(list(rows.unbind()), tensor.reshape(-1))
            tensor.copy_(rows.sum(dim=0).view_as(tensor))
        else:
            dist.all_reduce(tensor)
    return tensor


class _Sum(Function):
    @staticmethod
    def forward(ctx: FunctionCtx, tensor: Tensor) -> Tensor:
        return all_reduce_(tensor.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Tensor:
        return all_reduce(gradient)


def all_reduce(tensor: Tensor) -> Tensor:
    """The sum over all processes, differentiable any number of times."""
    result: Tensor = _Sum.apply(tensor)  # type: ignore[no-untyped-call]
    return result


def all_gather_rows(rows: Tensor) -> Tensor:
    """(…, n, d) rows of every process, each with its own n, to the (…, N, d) of all in order.

    A sum of what is zero elsewhere: it moves twice the bytes of an all-gather, but knows rows of
    unequal number and derivatives of any order. Embeddings are small beside gradients.
    """
    counts = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=rows.device)
    rank = dist.get_rank()
    counts[rank] = rows.shape[-2]
    sizes = all_reduce_(counts).tolist()
    before, after = sum(sizes[:rank]), sum(sizes[rank + 1 :])
    return all_reduce(torch.nn.functional.pad(rows, (0, 0, before, after)))


class Buckets:
    """Averages gradients over processes while the backward pass is on its way to those before them.

    ``add`` is a hook of every parameter. Processes have the same graph and so the same order.
    """

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._waiting: list[Tensor] = []  # parameters whose gradients are not on their way
        self._sent: list[tuple[dist.Work | None, Tensor, list[Tensor]]] = []

    def add(self, parameter: Tensor) -> None:
        self._waiting.append(parameter)
        if sum(p.nbytes for p in self._waiting) >= BUCKET:
            self._send()

    def _send(self) -> None:
        flat = torch.cat([p.grad.reshape(-1) for p in self._waiting if p.grad is not None])
        if self._processes * flat.nbytes <= SMALL:
            work, flat = None, all_reduce_(flat)
        else:
            with in_contact():
                work = dist.all_reduce(flat, async_op=True)
        self._sent.append((work, flat, self._waiting))
        self._waiting = []

    def finish(self) -> None:
        """Wait, and give every parameter its averaged gradient."""
        if self._waiting:
            self._send()
        for work, flat, parameters in self._sent:
            if work is not None:
                with in_contact():
                    work.wait()
            parts = torch.split(flat.div_(self._processes), [p.numel() for p in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                assert parameter.grad is not None
                parameter.grad.copy_(part.view_as(parameter))  # keeps its layout and dtype


def broadcast_object(value: T) -> T:
    box = [value]
    with in_contact():
        dist.broadcast_object_list(box, src=0)
    return box[0]


def all_gather_objects(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    with in_contact():
        dist.all_gather_object(values, value)
    return values
