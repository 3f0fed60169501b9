"""Models of ``transformers`` from a folder, as encoders of images or texts (extra ``hf``)."""

from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor, nn

from incontrast.extras import needed
from incontrast.import_path import OURS, ImportPath, is_model
from incontrast.pooling import Pooling, pool

ModelPooling = Pooling | Literal["pooler"]


def pretrained(folder: str | Path, *, pooling: ModelPooling) -> ImportPath:
    """A model with its weights, written by ``save_pretrained``, as the encoder of a domain.

    A saved learner refers to the folder, which must stay where it is.

    Args:
        folder: With ``config.json`` and safetensors; nothing is ever downloaded.
        pooling: How its last hidden states become one vector: ``"mean"``, ``"max"``, ``"first"``
            (the class token), or ``"pooler"``, the model's own.
    """
    return ImportPath(OURS, {"folder": str(Path(folder).absolute()), "pooling": pooling})


def model(folder: str, pooling: Any = None) -> nn.Module:
    """The module of ``pretrained``: (n, 3, S, S) pixels or a ``TokenBatch`` to (n, d)."""
    kinds = (*get_args(Pooling), "pooler")
    if pooling not in kinds:
        names = ", ".join(f'"{kind}"' for kind in kinds)
        raise ValueError(f"say what an embedding is: pooling is one of {names}, got {pooling!r}")
    if not is_model(folder):
        raise ValueError(f"{folder} has no config.json: give what save_pretrained() has written")
    with needed("models of transformers need it", "hf"):
        from transformers import AutoModel
        from transformers.utils import logging
    progress_bar, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # missing weights are reported below, if they are needed
    try:
        loaded, about = AutoModel.from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    finally:
        logging.set_verbosity(verbosity)
        if progress_bar:
            logging.enable_progress_bar()
    missing = sorted(about["missing_keys"])
    if pooling != "pooler":
        missing = [name for name in missing if not name.startswith("pooler.")]
    if missing:
        lacking = f"{len(missing)} of {type(loaded).__name__}, such as {missing[0]}"
        raise ValueError(f"the weights in {folder} lack {lacking}: they would be random")
    return _Model(loaded, pooling)


class _Model(nn.Module):
    def __init__(self, model: nn.Module, pooling: ModelPooling) -> None:
        super().__init__()
        self.model = model
        self.pooling = pooling

    def forward(self, batch: Any) -> Tensor:
        if isinstance(batch, Tensor):
            return self._pooled(self.model(pixel_values=batch))
        vectors: Tensor = batch.in_buckets(self._of_tokens)
        return vectors

    def _of_tokens(self, batch: Any) -> Tensor:
        mask = batch.mask
        return self._pooled(self.model(input_ids=batch.ids, attention_mask=mask.long()), mask)

    def _pooled(self, output: Any, mask: Tensor | None = None) -> Tensor:
        if self.pooling != "pooler":
            return pool(output.last_hidden_state, self.pooling, mask)
        pooled = getattr(output, "pooler_output", None)
        if pooled is None:
            kind = type(self.model).__name__
            raise ValueError(f"{kind} has no pooler of its own: name another pooling")
        vectors: Tensor = pooled.flatten(1)
        return vectors
