"""Samples: Fourier transforms."""

from __future__ import annotations

import math

import numpy as np

from backburn.conformance.samples.table import Array, case, real, samples


def rfft(x: Array, axis: int) -> tuple[Array, Array]:
    """By the definition."""
    n = x.shape[axis]
    angles = -2 * math.pi * (np.outer(np.arange(n // 2 + 1), np.arange(n)) % n) / n
    moved = np.moveaxis(x, axis, -1)
    return np.moveaxis(moved @ np.cos(angles).T, -1, axis), np.moveaxis(moved @ np.sin(angles).T, -1, axis)


def irfft(real: Array, imag: Array, length: int, axis: int) -> Array:
    """By the definition; frequencies that represent two conjugates count twice."""
    angles = 2 * math.pi * (np.outer(np.arange(length), np.arange(length // 2 + 1)) % length) / length
    both = np.where(np.arange(length // 2 + 1) * 2 % length == 0, 1.0, 2.0) / length
    re, im = np.moveaxis(real, axis, -1), np.moveaxis(imag, axis, -1)
    # A sine that is 0 only up to rounding would use imaginary parts that must be ignored.
    sine = np.where(both * length == 1, 0.0, np.sin(angles))
    return np.moveaxis(re * both @ np.cos(angles).T - im * both @ sine.T, -1, axis)


BECAUSE = "sums of terms that cancel"
samples(
    "rfft",
    rfft,
    case(real(6), axis=0),
    case(real(5), axis=0),
    case(real(2, 4), axis=1),
    case(real(4, 3), axis=0),
    case(real(2, 3, 2), axis=1),
    case(real(1), axis=0),
    case(real(3, 1), axis=1),
    case(real(2), axis=0),
    case(real(0, 4), axis=1),
    tolerance=50.0,
    because=BECAUSE,
)
samples(
    "irfft",
    irfft,
    case(real(4), real(4, seed=1), length=6, axis=0),
    case(real(3), real(3, seed=1), length=5, axis=0),
    case(real(2, 3), real(2, 3, seed=1), length=4, axis=1),
    case(real(3, 2), real(3, 2, seed=1), length=5, axis=0),
    case(real(1), real(1, seed=1), length=1, axis=0),
    case(real(2), real(2, seed=1), length=2, axis=0),
    case(real(0, 3), real(0, 3), length=4, axis=1),
    tolerance=50.0,
    because=BECAUSE,
)


def fft(real: Array, imag: Array, axis: tuple[int, ...]) -> tuple[Array, Array]:
    """By the definition."""
    z = real + 1j * imag
    for a in axis:
        n = z.shape[a]
        powers = np.exp(-2j * math.pi * (np.outer(np.arange(n), np.arange(n)) % n) / n)
        z = np.moveaxis(np.moveaxis(z, a, -1) @ powers, -1, a)
    return z.real, z.imag


samples(
    "fft",
    fft,
    case(real(6), real(6, seed=1), axis=(0,)),
    case(real(5), real(5, seed=1), axis=(0,)),
    case(real(2, 4), real(2, 4, seed=1), axis=(1,)),
    case(real(4, 3), real(4, 3, seed=1), axis=(0, 1)),
    case(real(2, 3, 2), real(2, 3, 2, seed=1), axis=(0, 2)),
    case(real(1), real(1, seed=1), axis=(0,)),
    case(real(3), real(3, seed=1), axis=()),
    case(real(0, 4), real(0, 4), axis=(1,)),
    tolerance=50.0,
    because=BECAUSE,
)
