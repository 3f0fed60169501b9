"""Time of graph batches, views and the encoder; medians and ratios within one run, one thread.

python benchmarks/graphs.py [--repeats N]
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv, global_add_pool
from torch_geometric.utils import subgraph

import real_data
from incontrast.domains.graphs.collection import GraphBatch, GraphCollection
from incontrast.domains.graphs.domain import Graphs

BATCH = 32


def medians(repeats: int, **parts: Callable[[int], Any]) -> dict[str, float]:
    """Median milliseconds of each part; they take turns, so that all see the same machine."""
    times: dict[str, list[float]] = {name: [] for name in parts}
    for turn in range(repeats + 3):
        for name, part in parts.items():
            start = time.perf_counter()
            part(turn)
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(each[3:]) for name, each in times.items()}


def naive_view(data: Data, domain: Graphs) -> Data:
    """One view of one graph, as one would write it for a PyG transform."""
    source, target = data.edge_index
    kind = random.choice(["drop", "mask", "walk"])
    if kind == "mask":
        x = data.x.clone()
        x[torch.rand(len(x)) < domain.mask] = 0.0
        return Data(x=x, edge_index=data.edge_index.clone())
    if kind == "drop":
        keep = torch.rand(len(data.x)) >= domain.drop
        if not keep.any():
            keep[random.randrange(len(keep))] = True
    else:
        keep = torch.zeros(len(data.x), dtype=torch.bool)
        root = random.randrange(len(keep))
        keep[root] = True
        for _ in range(math.ceil(domain.walkers * len(keep))):
            here = root
            for _ in range(domain.steps):
                neighbours = target[source == here]
                if len(neighbours):
                    here = int(neighbours[random.randrange(len(neighbours))])
                keep[here] = True
    edge_index, _ = subgraph(keep, data.edge_index, relabel_nodes=True, num_nodes=len(keep))
    return Data(x=data.x[keep], edge_index=edge_index)


def naive_views(graphs: list[Data], domain: Graphs) -> list[Batch]:
    """Two views of every graph, one graph after another."""
    return [Batch.from_data_list([naive_view(one, domain) for one in graphs]) for _ in range(2)]


class PyGEncoder(nn.Module):
    """The same encoder, of PyG's parts."""

    def __init__(self, features: int, hidden: int = 32) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList([GCNConv(features, hidden), GCNConv(hidden, hidden)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(hidden), nn.BatchNorm1d(hidden)])

    def forward(self, batch: GraphBatch) -> Tensor:
        x, sums = batch.x, []
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = norm(torch.relu(convolution(x, batch.edge_index)))
            sums.append(global_add_pool(x, batch.graph, len(batch)))
        return torch.cat(sums, dim=1)


def as_data(graphs: GraphCollection) -> list[Data]:
    return [
        Data(x=one.x, edge_index=one.edge_index)
        for one in (graphs.take(torch.tensor([number])) for number in range(len(graphs)))
    ]


def measure(name: str, repeats: int) -> None:
    graphs: GraphCollection = real_data.graphs(name).items
    domain = Graphs().fit_statistics(graphs)
    generator = Generator().manual_seed(0)
    draws = Generator().manual_seed(1)
    picks = [torch.randint(len(graphs), (BATCH,), generator=draws) for _ in range(repeats + 3)]
    print(f"{name}: {graphs}")

    data = as_data(graphs)
    lists = [[data[index] for index in pick.tolist()] for pick in picks]
    times = medians(
        repeats,
        take=lambda turn: graphs.take(picks[turn]),
        pyg=lambda turn: Batch.from_data_list(lists[turn]),
    )
    show("take", times["take"])
    show("PyG Batch.from_data_list", times["pyg"], times["take"], "take")

    batches = [graphs.take(pick) for pick in picks]
    few = min(repeats, 20)
    times = medians(
        few,
        views=lambda turn: domain.views(batches[turn], generator),
        naive=lambda turn: naive_views(lists[turn], domain),
    )
    show("views", times["views"])
    show("views, one graph after another", times["naive"], times["views"], "views")

    torch.manual_seed(0)
    encoder, of_pyg = domain.encoder(), PyGEncoder(graphs.features)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
    views = [domain.join(domain.views(batch, generator)) for batch in batches]

    def there_and_back(module: nn.Module) -> Callable[[int], None]:
        def run(turn: int) -> None:
            module.zero_grad()
            module(views[turn]).sum().backward()

        return run

    def prepare(turn: int) -> GraphBatch:
        return domain.join(domain.views(graphs.take(picks[turn]), generator))

    def step(turn: int) -> None:
        first, second = normalize(encoder(prepare(turn))).chunk(2)
        loss = cross_entropy(first @ second.T / 0.1, torch.arange(BATCH))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    times = medians(
        repeats,
        encoder=there_and_back(encoder),
        pyg=there_and_back(of_pyg),
        prepare=prepare,
        step=step,
    )
    show("encoder, forward and backward", times["encoder"])
    show("the same of PyG's GCNConv", times["pyg"], times["encoder"], "the encoder")
    show("take + views + join", times["prepare"], times["encoder"], "the encoder")
    show("whole training step", times["step"], times["encoder"], "the encoder")
    show("", times["step"], times["pyg"], "PyG's encoder alone")
    print()


def show(what: str, value: float, other: float | None = None, than: str = "") -> None:
    ratio = "" if other is None else f"  = {value / other:6.2f} x {than}"
    print(f"  {what:<32}{value:9.3f} ms{ratio}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=60)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    random.seed(0)
    for name in ("PROTEINS", "REDDIT-BINARY"):
        measure(name, arguments.repeats)


if __name__ == "__main__":
    main()
