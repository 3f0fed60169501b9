"""Texts: collections, tokens, views and encoders."""

from incontrast.domains.text.collection import TokenBatch
from incontrast.domains.text.domain import Text
from incontrast.domains.text.views import TextViews

__all__ = ["Text", "TextViews", "TokenBatch"]
