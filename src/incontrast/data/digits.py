"""The handwritten digits that come with scikit-learn: no download, no files."""

from __future__ import annotations

import numpy as np

from incontrast.data.labelled import Labelled


def digits() -> Labelled:
    """1,797 digits of 8×8 pixels: items (1797, 8, 8) uint8 from 0 to 255.

    >>> len(digits()), digits().items.shape
    (1797, (1797, 8, 8))
    """
    from sklearn.datasets import load_digits  # takes a second: only when asked for

    bunch = load_digits()
    pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    return Labelled(
        pixels, bunch.target.astype(np.int64), tuple(str(name) for name in bunch.target_names)
    )
