"""Data in host memory: the handwritten digits, splits, batches, and random distortions of images.

All data are NumPy arrays; ``bb.asarray`` makes a batch a tensor on any backend.
"""

from typing import TYPE_CHECKING

from backburn.data.digits import CLASSES, load_digits
from backburn.data.distort import Distortion, distort
from backburn.data.loader import batches, hold_out
from backburn.hints import lookups

__all__ = ["CLASSES", "Distortion", "batches", "distort", "hold_out", "load_digits"]


if not TYPE_CHECKING:
    __dir__, __getattr__ = lookups("backburn.data", __all__)
