"""Encoders of texts: a small transformer, and a bag of hashed n-grams."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from incontrast.domains.text.collection import TokenBatch
from incontrast.domains.text.views import dropout_masks


class TextEncoder(nn.Module):
    """A ``TokenBatch`` of n texts in, (n, d) embeddings out.

    Args:
        width: Features of a token.
        sites: Places where dropout acts.
        dropout: Share of the features that views of texts leave out there.
    """

    def __init__(self, width: int, sites: int, dropout: float) -> None:
        super().__init__()
        self.width, self.sites, self.dropout = width, sites, dropout

    def masks(self, batch: TokenBatch) -> list[Tensor | None]:
        """For each site what features are multiplied by, (n, 1, width); None where by nothing."""
        if batch.seeds is None or not self.dropout:
            return [None] * self.sites
        return [*dropout_masks(batch.seeds, self.sites, self.width, self.dropout)]


class Transformer(TextEncoder):
    """A transformer with LayerNorm before each part (pre-norm), and the mean over tokens;
    computed in buckets of texts of nearly the same length.

    Args:
        vocabulary: Tokens.
        length: Tokens of a text at most, those that frame it included.
        width: Features of a token, and dimensions of an embedding.
        layers: Layers.
        heads: Heads of the attention of each layer.
        dropout: See ``TextViews``.
    """

    def __init__(
        self, vocabulary: int, length: int, width: int, layers: int, heads: int, dropout: float
    ) -> None:
        super().__init__(width, 1 + 2 * layers, dropout)
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.layers = nn.ModuleList(_Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.tokens.weight, std=0.1)
        nn.init.normal_(self.places.weight, std=0.01)

    def forward(self, batch: TokenBatch) -> Tensor:
        parts = list(batch.buckets())
        found = torch.cat([self._encoded(part) for _, part in parts])
        order = torch.cat([places for places, _ in parts]).argsort()
        return found.index_select(0, order.to(found.device))

    def _encoded(self, batch: TokenBatch) -> Tensor:
        """(n, width) embeddings of a bucket."""
        mask, masks = batch.mask, self.masks(batch)
        x = self.tokens(batch.ids) + self.places.weight[: batch.ids.shape[1]]
        x = _dropped(x, masks[0])
        unseen = torch.zeros_like(mask, dtype=x.dtype).masked_fill(~mask, -1e9)[:, None, None]
        for number, layer in enumerate(self.layers):
            x = layer(x, unseen, *masks[1 + 2 * number : 3 + 2 * number])
        there = mask[:, :, None].to(x.dtype)
        mean: Tensor = (self.norm(x) * there).sum(dim=1) / there.sum(dim=1)
        return mean


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs = nn.Linear(width, 3 * width)
        self.outputs = nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

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
    """The mean of embeddings of tokens and of pairs of neighbours, by hash, and an MLP on it.

    Args:
        buckets: Embeddings that n-grams share, by their hashes.
        width: Dimensions of an embedding.
        dropout: See ``TextViews``.
    """

    def __init__(self, buckets: int, width: int, dropout: float) -> None:
        super().__init__(width, 1, dropout)
        self.buckets = buckets
        self.grams = nn.Embedding(buckets, width)
        self.weights = nn.Embedding(buckets, 1)
        self.feed = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        nn.init.normal_(self.grams.weight, std=0.1)
        nn.init.zeros_(self.weights.weight)

    def forward(self, batch: TokenBatch) -> Tensor:
        ids, mask = batch.ids, batch.mask
        pairs = ids[:, 1:] * 1_000_003 + ids[:, :-1] * 31 + 7
        grams = torch.cat([ids, pairs], dim=1) * 2_654_435_761
        grams = (grams ^ (grams >> 17)) % self.buckets
        text, place = torch.cat([mask, mask[:, 1:]], dim=1).nonzero(as_tuple=True)
        grams = grams[text, place]
        weights = self.weights(grams).exp()
        weighted = torch.cat([weights * self.grams(grams), weights], dim=1)
        sums = weighted.new_zeros(len(batch), self.width + 1).index_add(0, text, weighted)
        [dropped] = self.masks(batch)
        x = _dropped(sums[:, :-1] / sums[:, -1:], None if dropped is None else dropped[:, 0])
        result: Tensor = x + self.feed(x)
        return result


def _dropped(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x * mask
