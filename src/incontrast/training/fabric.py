"""The engine of many processes: lightning-fabric starts and places them."""

from __future__ import annotations

import atexit
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.functional import pad
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.flop_counter import FlopCounterMode

from incontrast.extras import needed
from incontrast.loss import Objective, Strata, anchor_losses
from incontrast.training.batch_norm import SynchronisedBatchNorm
from incontrast.training.collectives import (
    Buckets,
    ProcessFailed,
    all_gather_objects,
    all_gather_rows,
    all_reduce,
    all_reduce_,
    broadcast_object,
    in_contact,
)
from incontrast.training.engine import Engine, Precision

if TYPE_CHECKING:
    from lightning_fabric import Fabric

log = logging.getLogger(__name__)
T = TypeVar("T")

# A core, and messages between processes of one machine; a step counts as shared only where these
# say that it pays. On an accelerator both are faster, the first one more.
OPERATIONS, LATENCY, BANDWIDTH = 1e11, 5e-4, 1e9  # per second, seconds, bytes per second
PAYS = 1.1  # times as fast as one process
MANY_ANCHORS = 512  # items of a batch from which on each process compares its own with all
TIMEOUT = "INCONTRAST_TIMEOUT"  # environment: seconds after which a silent process counts as lost
DEFAULT_TIMEOUT = 600.0
PRECISIONS: dict[str, Precision] = {"32-true": "float32", "bf16-mixed": "bfloat16"}


def joint_engine(
    device: torch.device | str | None, precision: Precision, fabric: Fabric | None
) -> Engine:
    """The engine of the processes of a Fabric object, or of those that torchrun has started."""
    if fabric is None:
        return FabricEngine(_torchrun(device, precision))
    if device is not None or precision != "float32":
        raise ValueError(
            "a Fabric object decides device and precision: "
            f"leave out device={device!r}, precision={precision!r}"
        )
    if fabric.world_size == 1:
        return Engine(fabric.device, _precision(fabric))
    return FabricEngine(fabric)


def _torchrun(device: torch.device | str | None, precision: Precision) -> Fabric:
    """A Fabric of the processes that torchrun has started."""
    count, local = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    with needed(f"torchrun started {count} processes, which need lightning-fabric", "dist"):
        from lightning_fabric import Fabric
        from lightning_fabric.strategies import DDPStrategy
    kind = Engine(device, precision).device.type
    fabric = Fabric(
        accelerator=kind,
        devices=local,
        num_nodes=count // local,
        strategy=DDPStrategy(timeout=timedelta(seconds=time_out())),
        precision="bf16-mixed" if precision == "bfloat16" else "32-true",
    )
    fabric.launch()
    # Fabric leaves gloo's threads to the end of the program, which then sometimes aborts.
    atexit.unregister(_leave)
    atexit.register(_leave)
    return fabric


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


class FabricEngine(Engine):
    """Many processes that give the answer of one.

    All of them draw the same items and the same views. Each loads its share of a batch, a range of
    nearly equal length, and runs it through its copy of the encoder; losses are computed by all
    from the embeddings of the whole batch.
    """

    def __init__(self, fabric: Fabric) -> None:
        if not dist.is_initialized():
            raise ValueError("the Fabric object has not started its processes: call launch() on it")
        super().__init__(fabric.device, _precision(fabric))
        self.fabric = fabric
        self.rank, self.processes = fabric.global_rank, fabric.world_size
        self.own = (self.rank,)

    @contextmanager
    def encoding(self) -> Iterator[None]:
        with self.fabric.autocast(), SynchronisedBatchNorm():
            yield

    def share(self, count: int) -> range:
        return share_of(count, self.rank, self.processes)

    def gather(self, embeddings: Tensor) -> Tensor:
        return all_gather_rows(embeddings)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return all_reduce_(tensor.clone())

    def average_gradients(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        flat = all_reduce(torch.cat([gradient.reshape(-1) for gradient in gradients]))
        parts = torch.split(flat / self.processes, [gradient.numel() for gradient in gradients])
        return [part.view_as(g) for part, g in zip(parts, gradients, strict=True)]

    def backward(self, loss: Tensor, parameters: Sequence[Tensor]) -> None:
        # Not DDP, which counts forward passes and hooks parameters: a strategy may embed several
        # times for one loss, and the meta step runs the encoder with other weights.
        with ExitStack() as hooks:
            buckets = Buckets(self.processes)
            for parameter in parameters:
                hook = parameter.register_post_accumulate_grad_hook(buckets.add)  # type: ignore[no-untyped-call]
                hooks.callback(hook.remove)
            super().backward(loss, parameters)
        buckets.finish()

    def objective(self, objective: Objective) -> Objective:
        if type(objective) is not Objective:  # its losses may be others
            return objective
        return SharedObjective(**asdict(objective))

    def for_steps(self, encoder: nn.Module, views: Any, items: int) -> Engine:
        alone = 3 * 2 * items * operations(encoder, views) / len(views) / OPERATIONS
        norms = sum(isinstance(module, _BatchNorm) for module in encoder.modules())
        size = sum(p.numel() * p.element_size() for p in encoder.parameters() if p.requires_grad)
        talking = (2 * norms + 4) * LATENCY + 2 * size / BANDWIDTH
        if alone >= PAYS * (alone / self.processes + talking):
            return self
        if self.rank == 0:
            log.warning(
                "a step of this encoder is too small for %d processes to share: each does all of "
                "it, and one process would be as fast",
                self.processes,
            )
        replicas = _Replicas(self.fabric)
        replicas.compile = self.compile
        return replicas

    def broadcast_(self, tensor: Tensor) -> Tensor:
        with in_contact():
            dist.broadcast(tensor, src=0)
        return tensor

    def broadcast(self, value: T) -> T:
        return broadcast_object(value)

    def gather_objects(self, value: T) -> list[T]:
        return all_gather_objects(value)

    def broadcast_weights(self, encoder: nn.Module) -> None:
        weights = list(encoder.state_dict().values())
        for dtype in dict.fromkeys(tensor.dtype for tensor in weights):  # a message each
            own = [tensor for tensor in weights if tensor.dtype == dtype]
            flat = self.broadcast_(torch.cat([tensor.reshape(-1) for tensor in own]))
            parts = torch.split(flat, [tensor.numel() for tensor in own])
            for tensor, part in zip(own, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    @contextmanager
    def error_barrier(self, task: str) -> Iterator[None]:
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        report = None if failure is None else f"{socket.gethostname()}: {failure}"
        reports = all_gather_objects(report)
        if failure is not None:
            raise failure
        for rank, text in enumerate(reports):
            if text is not None:
                raise ProcessFailed(f"process {rank} of {self.processes} could not {task}: {text}")

    def check_equal(self, facts: Callable[[], dict[str, Any]]) -> None:
        first, *others = all_gather_objects(facts())
        for rank, theirs in enumerate(others, start=1):
            for name, value in first.items():
                if theirs[name] != value:
                    raise ValueError(
                        f"all processes must be given the same: {name} is {value} in process 0 "
                        f"and {theirs[name]} in process {rank}"
                    )


class _Replicas(FabricEngine):
    """Processes that all do the work of one, without a message but for what the first decides."""

    encoding = Engine.encoding  # type: ignore[assignment]
    share, gather, all_reduce = Engine.share, Engine.gather, Engine.all_reduce
    average_gradients = Engine.average_gradients
    backward, objective = Engine.backward, Engine.objective

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        self.own = ()  # dropout alike, too


@dataclass(frozen=True, kw_only=True)
class SharedObjective(Objective):
    """Each process compares its own anchors with all items: n²/P similarities instead of n²."""

    def losses(self, first: Tensor, second: Tensor, strata: Strata) -> Tensor:
        count = len(first)
        if count < MANY_ANCHORS:  # the loss is quick, and takes two messages less
            return super().losses(first, second, strata)
        own = share_of(count, dist.get_rank(), dist.get_world_size())
        losses = anchor_losses(first, second, self, strata, own)
        return all_reduce(pad(losses, (own.start, count - own.stop)))


@torch.no_grad()
def operations(encoder: nn.Module, views: Any) -> int:
    """Of a forward pass, as torch counts them: additions and multiplications of matrices.

    Counted and not timed, so that all processes, and a run that resumes, find the same.
    """
    training = [module for module in encoder.modules() if module.training]
    encoder.eval()
    with FlopCounterMode(display=False) as counter:
        encoder(views)
    for module in training:
        module.training = True
    return int(counter.get_total_flops())


def share_of(count: int, rank: int, processes: int) -> range:
    """The range of so many items that one process takes: nearly equal, in order, each item once.

    >>> [share_of(7, rank, 3) for rank in range(3)]
    [range(0, 3), range(3, 5), range(5, 7)]
    """
    size, rest = divmod(count, processes)
    start = rank * size + min(rank, rest)
    return range(start, start + size + (rank < rest))


def _precision(fabric: Fabric) -> Precision:
    name = str(fabric._precision.precision)
    if name not in PRECISIONS:
        raise ValueError(
            f"Fabric's precision must be one of {', '.join(PRECISIONS)}, got {name}: "
            "weights stay in float32"
        )
    return PRECISIONS[name]


def time_out() -> float:
    text = os.environ.get(TIMEOUT, str(DEFAULT_TIMEOUT))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ValueError(f"{TIMEOUT} must be a number of seconds above 0, got {text!r}")
    return seconds
