"""The domain of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, get_args

from torch import Generator, Tensor, nn

from incontrast.bounds import check_whole
from incontrast.domains.arguments import ArgumentDomain
from incontrast.domains.text import tokeniser as tokenisers
from incontrast.domains.text.collection import BETWEEN, TextCollection, TokenBatch
from incontrast.domains.text.differences import differences
from incontrast.domains.text.encoders import NGrams, Transformer
from incontrast.domains.text.reading import read_texts, unpack_texts
from incontrast.domains.text.tokeniser import Tokeniser
from incontrast.domains.text.views import TextViews
from incontrast.import_path import ImportPath, is_model

Network = Literal["transformer", "ngrams"]

HEAD = 32  # features of a head of the transformer
LEARNED_FROM = 2**26  # bytes of the first data that a tokeniser is trained on, evenly spaced


@dataclass(frozen=True, kw_only=True)
class Text(ArgumentDomain):
    """Texts, or pairs of texts that belong together: a question and its answer, a title and a body.

    Texts are stored unchanged; the encoder sees the tokens that a tokeniser makes of them. The two
    views of a pair are views of its two texts; its embedding is that of one text after the other.

    Args:
        encoder: ``"ngrams"``, a bag of tokens, which trains in a minute and is the better one for
            short texts; ``"transformer"``, which sees the order of tokens; a module, or a function
            that makes one: a ``TokenBatch`` of n texts in, (n, d) out.
        views: ``TextViews``, or what makes one random view of a ``TokenBatch``: a function of the
            batch and a ``torch.Generator``, or a ``torch.nn.Module``.
        width: Dimensions of an embedding.
        layers: Layers of the transformer.
        length: The tokens of a text that are read, from its beginning.
        vocabulary: The largest size of a tokeniser that is trained on the first data.
        lowercase: Whether that tokeniser makes letters lower case.
        tokenizer: A ``tokenizer.json``, or a folder that has one; None takes that of a
            ``pretrained`` encoder, or trains one on the first data. No update changes it.

    >>> import torch
    >>> texts = Text().collect(["Where is my card?", "My card has not come.", "Hello!"] * 10)
    >>> domain = Text().fit_statistics(texts)
    >>> first, second = domain.views(texts.take(torch.arange(4)), Generator().manual_seed(0))
    >>> domain.encoder()(domain.join([first, second])).shape
    torch.Size([8, 128])
    """

    encoder: Any = field(default_factory=lambda: "ngrams")
    views: Any = field(default_factory=TextViews)
    width: int = 128
    layers: int = 1
    length: int = 64
    vocabulary: int = 8192
    lowercase: bool = True
    tokenizer: Any = None

    kind = "texts"
    networks: ClassVar[tuple[str, ...]] = get_args(Network)
    views_on_cpu: ClassVar[bool] = True  # their lengths depend on what is drawn
    recipe: ClassVar[type] = TextViews

    def __post_init__(self) -> None:
        check_whole(1, layers=self.layers, length=self.length)
        check_whole(512, vocabulary=self.vocabulary)
        check_whole(HEAD, width=self.width)
        if self.width % HEAD:
            raise ValueError(f"width must be a multiple of {HEAD}, got {self.width}")
        super().__post_init__()
        tokenizer, encoder = self.tokenizer, self.encoder.given
        if tokenizer is None and isinstance(encoder, ImportPath) and is_model(encoder.folder):
            tokenizer = encoder.folder
        if tokenizer is not None:
            object.__setattr__(self, "tokenizer", tokenisers.read(tokenizer))

    @property
    def tokeniser(self) -> Tokeniser:
        """The tokeniser in use."""
        if self.tokenizer is None:
            raise RuntimeError("there is no tokeniser yet: call fit_statistics() first")
        return tokenisers.load(self.tokenizer)

    def collect(self, items: Any) -> TextCollection:
        """Take strings, UTF-8 bytes or pairs of them, records with a field ``text`` (as a Hugging
        Face data set has them), a torch Dataset of any of these, or a ``TextCollection``."""
        return read_texts(items)

    def collect_json(self, items: list[Any]) -> TextCollection:
        if isinstance(items[0], bytes):
            raise ValueError("items must be texts in JSON, got the content of a file")
        return read_texts(items)

    def fit_statistics(self, collection: Any) -> Text:
        contents = collection.contents
        if len(contents) > 1 and all(content == contents[0] for content in contents):
            raise ValueError(
                f"all {len(contents)} texts are the same, so there is nothing to learn"
            )
        if self.tokenizer is not None:
            return self
        stride = -(-collection.nbytes // LEARNED_FROM)
        texts = (
            text[:LEARNED_FROM].decode("utf-8", "ignore")
            for content in contents[::stride]
            for text in content.split(BETWEEN, 1)
        )
        trained = tokenisers.train(texts, self.vocabulary, lowercase=self.lowercase)
        return replace(self, tokenizer=trained)

    def examples(self) -> TextCollection | None:
        texts = [b"One.", b"Two of them?", b"And a third, longer one.", b"The last!"]
        return None if self.tokenizer is None else TextCollection(texts)

    def prepare(self, batch: TextCollection) -> TokenBatch:
        """The tokens of each text; a pair is one text after the other."""
        contents = [content.replace(BETWEEN, b"\n") for content in batch.contents]
        tokens = self.tokeniser.batch(contents, self.length)
        return self.tokeniser.framed(tokens).to(batch.device)

    def sides(self, batch: TextCollection) -> tuple[TokenBatch, TokenBatch]:
        pairs = [content.partition(BETWEEN) for content in batch.contents]
        seconds = [second or first for first, _, second in pairs]
        tokens = self.tokeniser.batch([*(first for first, _, _ in pairs), *seconds], self.length)
        return tokens[: len(batch)], tokens[len(batch) :]

    def after_views(self, view: TokenBatch) -> TokenBatch:
        return self.tokeniser.framed(view)

    def own_views(self, batch: TextCollection, generator: Generator) -> TokenBatch:
        sides = TokenBatch.join(self.sides(batch))
        return self.after_views(self.views.given(sides, self.tokeniser, generator))

    def differences(self, old: TextCollection, new: TextCollection) -> dict[str, Any]:
        return differences(old.contents, new.contents, self.tokeniser)

    def own_encoder(self) -> nn.Module:
        views = self.views.given
        dropout = views.dropout if isinstance(views, TextViews) else 0.0
        if self.encoder.given == "ngrams":
            return NGrams(self.tokeniser.size, self.width, dropout)
        before, after = self.tokeniser.frame
        length = self.length + len(before) + len(after)
        return Transformer(
            self.tokeniser.size, length, self.width, self.layers, self.width // HEAD, dropout
        )

    def given_encoder(self, given: Any) -> nn.Module:
        module = super().given_encoder(given)
        sizes = [m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding)]
        if sizes and max(sizes) < self.tokeniser.size:
            raise ValueError(
                f"the tokeniser has {self.tokeniser.size} tokens, but the encoder has embeddings "
                f"of {max(sizes)}: give the tokeniser that belongs to this encoder"
            )
        return module

    def pack(self, collection: TextCollection, indices: Tensor) -> list[bytes]:
        return list(collection.take(indices).contents)

    def unpack(self, blobs: Sequence[bytes]) -> TextCollection:
        return unpack_texts(blobs)
