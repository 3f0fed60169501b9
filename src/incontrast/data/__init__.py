"""Readers: files and folders as items for a domain, with labels where there are any."""

from incontrast.data.digits import digits
from incontrast.data.folder import image_folder
from incontrast.data.labelled import Labelled
from incontrast.data.mnist import mnist
from incontrast.data.sources import Source, read_source
from incontrast.data.tables import arrays
from incontrast.data.tu import tu

__all__ = ["Labelled", "Source", "arrays", "digits", "image_folder", "mnist", "read_source", "tu"]
