"""Random views of texts: crop, delete, cut off, shuffle, for a whole padded batch at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from incontrast.bounds import check_number
from incontrast.domains.text.collection import TokenBatch
from incontrast.domains.text.tokeniser import Tokeniser


@dataclass(frozen=True, kw_only=True)
class TextViews:
    """Random views of texts; a view keeps at least one token.

    By default half of the tokens are deleted, which made the best embeddings of short texts
    (docs/how-to/texts.md). After weak changes, views can be told apart by details that do not say
    what a text is about.

    Args:
        crop: Smallest and largest share of the tokens that a view keeps, from a random place on.
        delete: Probability that a token is deleted.
        cut: Probability that a word is cut off: its tokens are replaced by the tokeniser's mask
            token, or deleted where it has none (Yan et al. 2021, ConSERT).
        shuffle: How many places a word may move; 0 keeps the order.
        dropout: Share of the features that the encoder sets to zero, in each layer and for all
            tokens of a text alike, since the mean over tokens would hide it otherwise (Gao et al.
            2021, SimCSE). Has no effect on encoders of your own.
    """

    crop: tuple[float, float] = (1.0, 1.0)
    delete: float = 0.5
    cut: float = 0.0
    shuffle: float = 0.0
    dropout: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "crop", tuple(self.crop))
        if len(self.crop) != 2 or not self.crop[0] <= self.crop[1]:
            raise ValueError(f"crop must be a smallest and a largest share, got {self.crop}")
        for share in self.crop:
            check_number("(0, 1]", crop=share)
        check_number("[0, 1)", delete=self.delete, cut=self.cut, dropout=self.dropout)
        check_number("[0, inf)", shuffle=self.shuffle)

    def __call__(self, batch: TokenBatch, tokeniser: Tokeniser, generator: Generator) -> TokenBatch:
        """One random view of every text; the batch is not changed."""
        count, width = batch.ids.shape
        # All numbers are drawn, used or not: changing one setting does not change the others.
        by_token = torch.rand(3, count, width, generator=generator)
        share, start = torch.rand(2, count, 1, generator=generator)
        seeds = torch.randint(2**62, (count,), generator=generator)

        lengths = batch.lengths[:, None]
        words = tokeniser.words(batch)
        places = torch.arange(width).expand(count, width)
        low, high = self.crop
        shown = ((low + (high - low) * share) * lengths).ceil().clamp(min=1)
        begin = (start * (lengths - shown + 1)).floor()
        inside = (places >= begin) & (places < begin + shown)
        kept = inside & (by_token[0] >= self.delete)
        cut = by_token[1].gather(1, words) < self.cut
        ids = batch.ids
        if tokeniser.mask is None:
            kept &= ~cut
        else:
            ids = ids.masked_fill(cut, tokeniser.mask)
        # A view without tokens gets the first one of its crop.
        kept |= ~kept.any(dim=1, keepdim=True) & (places == begin)

        order = words + (self.shuffle + 1e-3) * by_token[2].gather(1, words)
        order = order.masked_fill(~kept, torch.inf).argsort(dim=1, stable=True)
        remaining = kept.sum(dim=1)
        longest = int(remaining.max()) if count else 1
        ids = ids.gather(1, order[:, :longest])
        ids = ids.masked_fill(places[:, :longest] >= remaining[:, None], 0)
        return TokenBatch(ids, remaining, seeds if self.dropout else None)


def dropout_masks(seeds: Tensor, sites: int, width: int, share: float) -> Tensor:
    """(sites, n, 1, width) factors of the features of each text, at each site of the encoder.

    They are hashes of the text's seed (splitmix64), not draws: they do not depend on the batch, the
    device or the process.
    """
    counters = torch.arange(1, sites * width + 1, device=seeds.device) * -0x61C8864680B583EB
    state = seeds[:, None] + counters
    state = (state ^ (state >> 30)) * -0x40A7B892E31B1A47
    state = (state ^ (state >> 27)) * -0x6B2FB644ECCEEE15
    uniform = ((state >> 31) & 0xFFFFFF).float() / 2**24
    masks = (uniform >= share).float() / (1 - share)
    return masks.view(len(seeds), sites, 1, width).transpose(0, 1)
