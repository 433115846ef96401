"""Data in host memory: batches, splits and windows of arrays, files of images, tables and texts, and the digits.

All data are NumPy arrays; ``bb.asarray`` makes a batch a tensor on any backend. Readers of images and tables need the
extra ``data``.
"""

from typing import TYPE_CHECKING

from backburn.data.digits import CLASSES, load_digits
from backburn.data.distort import Distortion, distort
from backburn.data.images import ImageFolder, image_folder
from backburn.data.loader import Batches, BatchIterator, batches, hold_out, windows
from backburn.data.prefetch import Prefetch, prefetch
from backburn.data.tables import read_table
from backburn.data.texts import read_text
from backburn.hints import lookups

__all__ = [
    "BatchIterator", "Batches", "CLASSES", "Distortion", "ImageFolder", "Prefetch", "batches", "distort", "hold_out",
    "image_folder", "load_digits", "prefetch", "read_table", "read_text", "windows",
]  # fmt: skip


if not TYPE_CHECKING:
    __dir__, __getattr__ = lookups("backburn.data", __all__)
