"""Encoders of texts: a transformer, and a bag of tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from incontrast.domains.text.collection import TokenBatch
from incontrast.domains.text.views import dropout_masks


class TextEncoder(nn.Module):
    """A ``TokenBatch`` of n texts in, (n, width) out: a mean over tokens with learned weights.

    ``sites`` counts the places where dropout is applied to batches with seeds.
    """

    def __init__(self, vocabulary: int, width: int, sites: int, dropout: float) -> None:
        super().__init__()
        self.width, self.sites, self.dropout = width, sites, dropout
        self.tokens = nn.Embedding(vocabulary, width)
        self.weights = nn.Embedding(vocabulary, 1)  # logarithms of the weights
        nn.init.normal_(self.tokens.weight, std=0.1)
        nn.init.zeros_(self.weights.weight)

    def masks(self, batch: TokenBatch) -> list[Tensor | None]:
        """The dropout mask of each site, (n, 1, width), or None."""
        if batch.seeds is None or not self.dropout:
            return [None] * self.sites
        return [*dropout_masks(batch.seeds, self.sites, self.width, self.dropout)]


class Transformer(TextEncoder):
    """A pre-norm transformer below the mean over tokens, computed in buckets of similar length.

    ``length`` is that of the longest text, with the tokens before and after it.
    """

    def __init__(
        self, vocabulary: int, length: int, width: int, layers: int, heads: int, dropout: float
    ) -> None:
        super().__init__(vocabulary, width, 1 + 2 * layers, dropout)
        self.places = nn.Embedding(length, width)
        self.layers = nn.ModuleList(_Layer(width, heads) for _ in range(layers))
        nn.init.zeros_(self.places.weight)  # it begins as a bag of tokens, see _Layer

    def forward(self, batch: TokenBatch) -> Tensor:
        return batch.in_buckets(self._encoded)

    def _encoded(self, batch: TokenBatch) -> Tensor:
        """(n, width) embeddings of a bucket."""
        mask, masks = batch.mask, self.masks(batch)
        x = self.tokens(batch.ids) + self.places.weight[: batch.ids.shape[1]]
        x = _dropped(x, masks[0])
        unseen = torch.zeros_like(mask, dtype=x.dtype).masked_fill(~mask, -1e9)[:, None, None]
        for number, layer in enumerate(self.layers):
            x = layer(x, unseen, *masks[1 + 2 * number : 3 + 2 * number])
        weights = self.weights(batch.ids).exp() * mask[:, :, None]
        mean: Tensor = (x * weights).sum(dim=1) / weights.sum(dim=1)
        return mean


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs = nn.Linear(width, 3 * width)
        self.outputs = nn.Linear(width, width)
        last = nn.Linear(4 * width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), last)
        # The encoder begins as a bag of tokens, and learns from there what their order adds.
        for weights in (*self.outputs.parameters(), *last.parameters()):
            nn.init.zeros_(weights)

    def forward(
        self, x: Tensor, unseen: Tensor, first: Tensor | None, second: Tensor | None
    ) -> Tensor:
        count, length, width = x.shape
        parts = self.inputs(self.attention_norm(x)).view(count, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # (n, heads, L, width / heads) each
        # Written out: torch's fused attention has no second derivative, which a meta step takes.
        scores = query @ key.transpose(2, 3) / key.shape[3] ** 0.5 + unseen
        mixed = (scores.softmax(dim=3) @ value).transpose(1, 2).reshape(count, length, width)
        x = x + _dropped(self.outputs(mixed), first)
        return x + _dropped(self.feed(self.feed_norm(x)), second)


class NGrams(TextEncoder):
    """The weighted mean of embeddings of tokens, which are n-grams of bytes in a byte-level BPE.

    Hashed pairs of tokens and an MLP on top were tried and are worse.
    """

    def __init__(self, vocabulary: int, width: int, dropout: float) -> None:
        super().__init__(vocabulary, width, 1, dropout)

    def forward(self, batch: TokenBatch) -> Tensor:
        text, place = batch.places()
        ids = batch.ids[text, place]
        weights = self.weights(ids).exp()
        weighted = torch.cat([weights * self.tokens(ids), weights], dim=1)
        sums = weighted.new_zeros(len(batch), self.width + 1).index_add(0, text, weighted)
        [dropped] = self.masks(batch)
        return _dropped(sums[:, :-1] / sums[:, -1:], None if dropped is None else dropped[:, 0])


def _dropped(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x * mask
