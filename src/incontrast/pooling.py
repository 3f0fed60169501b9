"""One vector per item from encoders whose output is a tuple, dictionary, sequence or map."""

from typing import Any, Literal, get_args

from torch import Tensor, nn

Pooling = Literal["mean", "max", "first"]


class Pooled(nn.Module):
    """An encoder with one of the outputs of another, pooled.

    Args:
        encoder: Returns tuples, dictionaries (also ``transformers``' outputs) or tensors.
        output: Index of the output in a tuple, or its name in a dictionary; None for a tensor.
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
        result = self.encoder(batch)
        if self.output is not None:
            try:
                result = result[self.output]
            except (KeyError, IndexError, TypeError) as error:
                names = f": it has {', '.join(map(str, result))}" if hasattr(result, "keys") else ""
                raise ValueError(
                    f"the encoder's {type(result).__name__} has no output {self.output!r}{names}"
                ) from error
        return result if self.pooling is None else pool(result, self.pooling)


def pool(features: Tensor, pooling: Pooling, mask: Tensor | None = None) -> Tensor:
    """(n, d) vectors from (n, tokens, d) sequences or (n, d, height, width) maps.

    ``mask`` is (n, tokens), nonzero for real tokens; None if all are.
    """
    if features.dim() not in (3, 4):
        kinds, shape = "(n, tokens, d) sequences and (n, d, height, width) maps", features.shape
        raise ValueError(f"pooling is for {kinds}, got {tuple(shape)}")
    if features.dim() == 4:
        features = features.flatten(2).transpose(1, 2)
    if pooling == "first":
        return features[:, 0]
    if mask is None:
        return features.mean(dim=1) if pooling == "mean" else features.amax(dim=1)
    real = mask.bool()[:, :, None]
    if pooling == "max":
        return features.masked_fill(~real, float("-inf")).amax(dim=1)
    return (features * real).sum(dim=1) / real.sum(dim=1).clamp_min(1)
