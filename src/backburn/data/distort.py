"""Random distortions of images, to augment a small data set."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base.errors import ArgumentError, DTypeError, ShapeError
from backburn.tensor.core.options import bounded


@dataclass(frozen=True)
class Distortion:
    """The largest distortion of each kind; distortions are uniformly distributed between minus and plus that.

    ``rotation`` is in degrees, ``scale`` the logarithm of the factor of each axis, ``shear`` the slope by which rows
    are shifted against each other, ``shift`` in pixels.
    """

    rotation: float = 0.0
    scale: float = 0.0
    shear: float = 0.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        """Check that every strength is finite and not negative."""
        for field in fields(self):
            bounded("Distortion", field.name, getattr(self, field.name), least=0, below=math.inf)


def distort(images: NDArray[Any], how: Distortion, random: np.random.Generator) -> NDArray[Any]:
    """Each image under a random affine map within the limits ``how``; pixels are interpolated, and 0 outside.

    ``images`` has shape (number, height, width), the result its shape and dtype. Raises :class:`ShapeError` for other
    ranks, :class:`DTypeError` for other than floats, and :class:`ArgumentError` for wrong limits and generators. The
    method is that of Simard, Steinkraus and Platt (2003), *Best Practices for Convolutional Neural Networks Applied to
    Visual Document Analysis*, ICDAR, section 2, without its elastic part.

        >>> image = np.eye(3, dtype=np.float32)[None]
        >>> (distort(image, Distortion(), np.random.default_rng(0)) == image).all()
        np.True_
    """
    given: object = images
    if not isinstance(given, np.ndarray) or given.dtype.kind != "f":
        raise DTypeError(f"distort: takes a NumPy array of floats, not {getattr(given, 'dtype', type(given).__name__)}")
    if images.ndim != 3:
        raise ShapeError(f"distort: images have shape (number, height, width), not {list(images.shape)}")
    limits: object = how
    if not isinstance(limits, Distortion):
        raise ArgumentError(f"distort: how is a Distortion(...), not {limits!r}")
    source: object = random
    if not isinstance(source, np.random.Generator):
        raise ArgumentError(f"distort: random is a generator of NumPy, such as default_rng(0), not {source!r}")
    return _sample(images, _positions(images.shape, how, random))


def _positions(shape: tuple[int, ...], how: Distortion, random: np.random.Generator) -> NDArray[Any]:
    """The row and column from which each pixel of each image is read: shape (number, height, width, 2)."""
    number, height, width = shape
    angle = np.deg2rad(random.uniform(-how.rotation, how.rotation, number))
    stretch = np.exp(random.uniform(-how.scale, how.scale, (number, 2)))
    slope = random.uniform(-how.shear, how.shear, number)
    shift = random.uniform(-how.shift, how.shift, (number, 1, 1, 2))
    cos, sin = np.cos(angle), np.sin(angle)
    turned = np.stack([cos, -sin, sin + slope * cos, cos - slope * sin], axis=-1).reshape(number, 2, 2)
    maps = turned * stretch[..., None]
    centre = np.array([height - 1, width - 1]) / 2
    grid = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"), axis=-1) - centre
    return np.einsum("nij,hwj->nhwi", maps, grid) + shift + centre


def _sample(images: NDArray[Any], positions: NDArray[Any]) -> NDArray[Any]:
    """The images at fractional positions, bilinear, with a border of zeros."""
    _, height, width = images.shape
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    limits = np.array([height, width])
    positions = np.clip(positions, -1, limits) + 1
    corner = np.minimum(positions.astype(np.int64), limits)
    (row, column), (down, right) = np.moveaxis(corner, -1, 0), np.moveaxis(positions - corner, -1, 0)
    image = np.arange(len(images))[:, None, None]
    result = (
        padded[image, row, column] * (1 - down) * (1 - right)
        + padded[image, row + 1, column] * down * (1 - right)
        + padded[image, row, column + 1] * (1 - down) * right
        + padded[image, row + 1, column + 1] * down * right
    )
    return result.astype(images.dtype)
