"""What keeps stored vectors usable: maps between the spaces of versions."""

from incontrast.compat.adapter import Adapter, Kind
from incontrast.compat.chain import Chain, chain
from incontrast.compat.link import Link, NoAdapter, fit_link
from incontrast.compat.quality import Quality

__all__ = ["Adapter", "Chain", "Kind", "Link", "NoAdapter", "Quality", "chain", "fit_link"]
