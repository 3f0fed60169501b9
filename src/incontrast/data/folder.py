"""Images in a folder, with one subfolder for each class, or with none."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from incontrast.data.labelled import Labelled
from incontrast.domains.images.files import find_images, is_image


def image_folder(root: str | Path) -> Labelled:
    """The paths of all images below a folder; the images stay on disk.

    With subfolders, the first level names the classes, in order of name. A flat folder has no
    labels.

    Raises:
        ValueError: There is no such folder, no image in it or in one of its classes, or images
            lie beside the classes.
    """
    root = Path(root).absolute()
    entries = sorted(root.iterdir()) if root.is_dir() else []
    classes = [entry.name for entry in entries if entry.is_dir() and entry.name[0] != "."]
    if not classes:
        return Labelled(find_images(root))
    loose = [entry.name for entry in entries if is_image(entry.name) and not entry.is_dir()]
    if loose:
        raise ValueError(
            f"{root} has subfolders for classes and {len(loose)} images beside them, such as "
            f"{loose[0]}: move them into a class, or into a folder of their own"
        )
    by_class = [find_images(root / name) for name in classes]
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), [len(files) for files in by_class])
    return Labelled([path for files in by_class for path in files], labels, tuple(classes))
