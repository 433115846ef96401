"""The UCI handwritten digits, part of the package; ``LICENSE.txt`` in its folder names the authors."""

from __future__ import annotations

from importlib import resources
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Images: TypeAlias = NDArray[np.float32]
Labels: TypeAlias = NDArray[np.int64]

#: The number of digits.
CLASSES = 10
#: A pixel counts the set bits of a block of 4 x 4.
BRIGHTEST = 16


def load_digits() -> tuple[Images, Labels]:
    """The 1,797 images of handwritten digits, and the digit that each shows, in the order of the file.

    Images are float32 of shape (1797, 8, 8) from 0 (paper) to 1 (ink), labels int64 of shape (1797,) from 0 to 9.
    Both are fresh arrays.

    The data are the test set of Alpaydin and Kaynak (1998), *Optical Recognition of Handwritten Digits*, UCI Machine
    Learning Repository, https://doi.org/10.24432/C50P49, licence CC BY 4.0, as scikit-learn ships it.

        >>> images, labels = load_digits()
        >>> images.shape, images.dtype, labels[:3]
        ((1797, 8, 8), dtype('float32'), array([0, 1, 2]))
    """
    import bz2  # not in every Python compiled by hand, and batches of other data do without

    packed = resources.files(__name__).joinpath("digits.bz2").read_bytes()
    numbers = np.frombuffer(bz2.decompress(packed), np.uint8)
    count = len(numbers) // 65
    labels, planes = numbers[:count], numbers[count:].reshape(64, count)
    # Each pixel's plane is sorted by the images' labels: it packs better.
    images = np.empty((count, 64), np.float32)
    images[np.argsort(labels, kind="stable")] = planes.T
    images /= BRIGHTEST
    return images.reshape(count, 8, 8), labels.astype(np.int64)
