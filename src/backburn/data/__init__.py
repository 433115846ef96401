"""Data in host memory: the handwritten digits, splits, batches, and random distortions of images.

All data are NumPy arrays; ``bb.asarray`` makes a batch a tensor on any backend.
"""

from typing import TYPE_CHECKING, NoReturn

from backburn.base.hints import missing_name
from backburn.data.digits import CLASSES, load_digits
from backburn.data.distort import Distortion, distort
from backburn.data.loader import batches, hold_out

__all__ = ["CLASSES", "Distortion", "batches", "distort", "hold_out", "load_digits"]


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> NoReturn:
        raise missing_name("backburn.data", name)
