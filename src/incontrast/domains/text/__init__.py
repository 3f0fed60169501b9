"""The domain of texts."""

from incontrast.domains.text.domain import Text

__all__ = ["Text"]
