"""Readers of files and folders, and of the data of other libraries."""

from incontrast.data.graphs import tu
from incontrast.data.inputs import TarImages
from incontrast.data.labelled import Labelled, digits, image_folder, mnist
from incontrast.data.probe_set import ProbeSet
from incontrast.data.source import Source
from incontrast.data.sources import arrays, read_source

__all__ = [
    "Labelled",
    "ProbeSet",
    "Source",
    "TarImages",
    "arrays",
    "digits",
    "image_folder",
    "mnist",
    "read_source",
    "tu",
]
