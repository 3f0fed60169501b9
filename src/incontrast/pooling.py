"""One vector per item from encoders that give more: tuples, dictionaries, sequences, maps."""

from typing import Any, Literal, get_args

from torch import Tensor, nn

Pooling = Literal["mean", "max", "first"]


class Pooled(nn.Module):
    """An encoder whose output is one of those that another gives, pooled.

    Args:
        encoder: What gives tuples, dictionaries (also ``transformers``' outputs) or tensors.
        output: Which of them: a place in a tuple, a name in a dictionary; None for a tensor.
        pooling: How (n, tokens, d) sequences or (n, d, height, width) maps become (n, d):
            ``"mean"``, ``"max"``, or ``"first"`` (the class token of a sequence). None for (n, d).
    """

    def __init__(
        self, encoder: nn.Module, *, output: str | int | None = None, pooling: Pooling | None = None
    ) -> None:
        super().__init__()
        if pooling not in (None, *get_args(Pooling)):
            raise ValueError(f"pooling must be 'mean', 'max', 'first' or None, got {pooling!r}")
        self.encoder, self.output, self.pooling = encoder, output, pooling

    def forward(self, batch: Any) -> Any:
        found = self.encoder(batch)
        if self.output is not None:
            try:
                found = found[self.output]
            except (KeyError, IndexError, TypeError) as error:
                names = f": it has {', '.join(map(str, found))}" if hasattr(found, "keys") else ""
                raise ValueError(
                    f"the encoder's {type(found).__name__} has no output {self.output!r}{names}"
                ) from error
        return found if self.pooling is None else pool(found, self.pooling)


def pool(features: Tensor, pooling: Pooling, mask: Tensor | None = None) -> Tensor:
    """(n, d) vectors from (n, tokens, d) sequences or (n, d, height, width) maps.

    ``mask`` is (n, tokens), not 0 where there is a token; None for all.
    """
    if features.dim() not in (3, 4):
        raise ValueError(
            "pooling is for (n, tokens, d) sequences and (n, d, height, width) maps, got "
            f"{tuple(features.shape)}"
        )
    if features.dim() == 4:
        features = features.flatten(2).transpose(1, 2)
    if pooling == "first":
        return features[:, 0]
    if mask is None:
        return features.mean(dim=1) if pooling == "mean" else features.amax(dim=1)
    there = mask.bool()[:, :, None]
    if pooling == "max":
        return features.masked_fill(~there, float("-inf")).amax(dim=1)
    return (features * there).sum(dim=1) / there.sum(dim=1).clamp_min(1)
