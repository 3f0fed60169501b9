"""What keeps stored vectors usable: maps between the spaces of versions, indexes that migrate."""

from incontrast.compat.adapter import Adapter, Kind
from incontrast.compat.index import FaissIndex, Found, Index, LanceIndex, Stamp
from incontrast.compat.link import Chain, Link, NoAdapter, chain, fit_link
from incontrast.compat.migration import MigratingIndex
from incontrast.compat.quality import Quality

__all__ = [
    "Adapter",
    "Chain",
    "FaissIndex",
    "Found",
    "Index",
    "Kind",
    "LanceIndex",
    "Link",
    "MigratingIndex",
    "NoAdapter",
    "Quality",
    "Stamp",
    "chain",
    "fit_link",
]
