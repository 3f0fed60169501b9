"""Models that people have, of ``transformers`` or like them, as encoders of texts."""

from pathlib import Path

from torch import Tensor, nn

from incontrast.domains.text.collection import TokenBatch
from incontrast.pooling import Pooling, pool


class TokenModel(nn.Module):
    """A model that takes ``input_ids`` and ``attention_mask`` and gives (n, L, d) hidden states.

    Args:
        model: The model; its output has them as ``last_hidden_state``.
        pooling: How (n, d) embeddings are made of them: ``"mean"``, ``"max"`` or ``"first"``.
    """

    def __init__(self, model: nn.Module, pooling: Pooling = "mean") -> None:
        super().__init__()
        self.model, self.pooling = model, pooling

    def forward(self, batch: TokenBatch) -> Tensor:
        return batch.in_buckets(self._encoded)

    def _encoded(self, batch: TokenBatch) -> Tensor:
        mask = batch.mask
        found = self.model(input_ids=batch.ids, attention_mask=mask.long())
        return pool(found.last_hidden_state, self.pooling, mask)


def from_folder(folder: str | Path, pooling: Pooling = "mean") -> TokenModel:
    """The model that ``save_pretrained`` of ``transformers`` has written to a folder."""
    try:
        from transformers import AutoModel
    except ImportError as error:
        raise ImportError(
            'models in such folders need transformers: pip install "incontrast[hf]"'
        ) from error
    if not (Path(folder) / "config.json").is_file():
        raise ValueError(f"there is no model in {folder}: give a folder with a config.json")
    return TokenModel(AutoModel.from_pretrained(folder, local_files_only=True), pooling)
