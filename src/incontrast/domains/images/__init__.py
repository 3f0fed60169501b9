"""Images: from arrays, files and folders to views and encoders."""

from incontrast.domains.images.domain import Images

__all__ = ["Images"]
