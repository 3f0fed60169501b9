"""The paper's graph encoder: a graph convolutional network with sum pooling."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, relu

from incontrast.domains.graphs.collection import GraphBatch


class GCN(nn.Module):
    """Graph convolutions, each followed by ReLU and BatchNorm; the sums of each layer's nodes.

    A convolution is Â X W + b with Â = D^(-1/2) (A + I) D^(-1/2) (Kipf and Welling 2017), the same
    as ``torch_geometric.nn.GCNConv`` on graphs without self-loops. Scaling the nodes before and
    after the sum over neighbours, rather than every edge, and summing the narrower side of W makes
    a training step about twice as fast (``benchmarks/graphs.py``). A batch of n graphs in,
    (n, layers * hidden) embeddings out.
    """

    def __init__(self, features: int, hidden: int, layers: int) -> None:
        super().__init__()
        widths = [features] + [hidden] * layers
        self.layers = nn.ModuleList(_Layer(before, after) for before, after in pairwise(widths))

    def forward(self, batch: GraphBatch) -> Tensor:
        source, target = batch.edge_index.unbind()
        degree = torch.ones_like(batch.x[:, 0])
        degree = degree.scatter_add(0, target, degree.new_ones(()).expand(target.shape[0]))
        scale = degree.rsqrt().unsqueeze(1)  # (nodes, 1) diagonal of D^(-1/2)

        def propagate(x: Tensor) -> Tensor:  # Â X
            x = x * scale
            return x.index_add(0, target, x.index_select(0, source)) * scale

        x, sums = batch.x, []
        for layer in self.layers:
            x = layer(x, propagate)
            sums.append(x.new_zeros(len(batch), x.shape[1]).index_add(0, batch.graph, x))
        return torch.cat(sums, dim=1)


class _Layer(nn.Module):
    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor, propagate: Callable[[Tensor], Tensor]) -> Tensor:
        if self.linear.in_features <= self.linear.out_features:
            x = self.linear(propagate(x))
        else:
            x = propagate(linear(x, self.linear.weight)) + self.linear.bias
        normalised: Tensor = self.norm(relu(x))
        return normalised
