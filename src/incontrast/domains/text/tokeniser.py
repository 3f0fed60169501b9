"""Texts to tokens: by byte-level BPE that is trained on the first data, or by a user's own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from incontrast.domains.text.collection import TokenBatch
from incontrast.extras import needed

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAD, MASK = "<pad>", "<mask>"
TOKEN_BYTES = 16  # of a token at most
FEWEST = 5  # times that a token must occur: rare words, of which some may be secret, stay bytes
CACHED = 2**16  # texts whose tokens are kept for the next epoch


class TokeniserJSON(str):
    """The content of a ``tokenizer.json``, which is shown as its hash and size."""

    def __repr__(self) -> str:
        digest = hashlib.blake2b(self.encode(), digest_size=6).hexdigest()
        return f"<tokeniser {digest} of {load(self).size:,} tokens>"


def read(tokenizer: str | Path) -> TokeniserJSON:
    """A tokeniser from a ``tokenizer.json``, from a folder that has one, or from its content."""
    text = str(tokenizer)
    if not text.lstrip().startswith("{"):
        path = Path(tokenizer)
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(
                f"there is no tokeniser in {path} ({error}): give a tokenizer.json, or the folder "
                "of a model that has one"
            ) from error
    content = TokeniserJSON(text)
    load(content)
    return content


def train(texts: Iterable[str], vocabulary: int, *, lowercase: bool) -> TokeniserJSON:
    """Byte-level BPE of at most ``vocabulary`` tokens; the same texts give the same one.

    Unicode is normalised to NFKC, and to lower case if ``lowercase``.
    """
    library = _library()
    normalizers, pre_tokenizers = library.normalizers, library.pre_tokenizers
    tokenizer = library.Tokenizer(library.models.BPE())
    lower = [normalizers.Lowercase()] if lowercase else []
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), *lower])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=FEWEST,
        special_tokens=[PAD, MASK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=TOKEN_BYTES,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return TokeniserJSON(tokenizer.to_str())


class Tokeniser:
    """A tokeniser of the library ``tokenizers``."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.size = 1 + max(tokenizer.get_vocab().values())
        """The size of the vocabulary: one more than the largest id."""
        masks = (tokenizer.token_to_id(name) for name in (MASK, "[MASK]"))
        self.mask: int | None = next((mask for mask in masks if mask is not None), None)
        """The token of a word that is cut off; None if there is no such token."""
        pieces = self.pieces = [tokenizer.id_to_token(number) or "" for number in range(self.size)]
        word_piece = any(piece.startswith("##") for piece in pieces)  # ## continues a word
        self.begins = torch.tensor(
            [not p.startswith("##") if word_piece else p.startswith(("Ġ", "▁")) for p in pieces]
        )
        """(V,) whether a token begins a word."""
        example = tokenizer.encode("a")
        text = [place for place, special in enumerate(example.special_tokens_mask) if not special]
        self.frame = (example.ids[: text[0]], example.ids[text[-1] + 1 :]) if text else ([], [])
        """Tokens before and after every text, such as BERT's [CLS] and [SEP]."""
        self._ids = lru_cache(CACHED)(self._encode)

    def _encode(self, content: bytes) -> NDArray[np.int64]:
        text = content.decode("utf-8", "ignore")  # the end may be within a character
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        # A text of which nothing is left, such as an accent that a normaliser strips, is one token.
        return np.array(ids or [self.mask or 0], dtype=np.int64)

    def ids(self, content: bytes, length: int) -> NDArray[np.int64]:
        """The first tokens of a text, at most ``length``; the rest of it is not read."""
        return self._ids(content[: TOKEN_BYTES * length])[:length]

    def batch(self, contents: Sequence[bytes], length: int) -> TokenBatch:
        """The first tokens of each text, at most ``length``, without the frame."""
        rows = [self.ids(content, length) for content in contents]
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
        batch = TokenBatch(torch.zeros(len(rows), max(map(len, rows), default=1)).long(), lengths)
        if rows:
            batch.ids[batch.mask] = torch.from_numpy(np.concatenate(rows))
        return batch

    def framed(self, batch: TokenBatch) -> TokenBatch:
        """The batch with the tokens before and after every text."""
        before, after = (torch.tensor(part, dtype=torch.int64) for part in self.frame)
        if not len(before) and not len(after):
            return batch
        ids = pad(batch.ids, (len(before), len(after)))
        ids[:, : len(before)] = before
        places = (batch.lengths + len(before))[:, None] + torch.arange(len(after))
        ids.scatter_(1, places, after.expand(len(batch), -1))
        return TokenBatch(ids, batch.lengths + len(before) + len(after), batch.seeds)

    def words(self, batch: TokenBatch) -> Tensor:
        """(n, L) the number of each token's word, from 0."""
        begins = self.begins[batch.ids]
        begins[:, 0] = False
        return begins.cumsum(1)


@lru_cache(maxsize=8)
def load(content: str) -> Tokeniser:
    """The tokeniser of a ``tokenizer.json``."""
    library = _library()
    try:
        return Tokeniser(library.Tokenizer.from_str(str(content)))
    except Exception as error:  # the library raises Exception itself
        raise ValueError(f"the tokeniser cannot be read ({error})") from error


def _library() -> Any:
    with needed("texts need tokenizers", "text"):
        import tokenizers
    return tokenizers
