"""Samples: complex numbers and their parts."""

from __future__ import annotations

import numpy as np

from backburn.conformance.samples.table import Array, case, real, samples


def cplx(*shape: int, seed: int = 0) -> Array:
    """Complex128 values with the parts of :func:`real`."""
    return np.asarray(real(*shape, seed=seed) + 1j * real(*shape, seed=seed + 1))


def phase(x: Array) -> Array:
    """``x / |x|``, and 0 at 0."""
    return np.where(x == 0, 0, x / np.where(x == 0, 1, np.abs(x)))


PARTS = (case(cplx(2, 3)), case(cplx()), case(cplx(0, 2)), case(np.array([0j, 1e-23, 1e200j, -1e200 + 1e200j])))
samples(
    "complex",
    lambda x, y: x + 1j * y,
    case(real(2, 3), real(3, seed=1), smooth=0),
    case(real(3), 0.5, smooth=0),
    case(-0.5, real(3), smooth=0),
    case(real(), real(seed=1), smooth=0),
    case(real(0, 3), real(1, 3), smooth=0),
    dtypes=("float64", "float32"),
)
samples("real", np.real, *PARTS)
samples("imag", np.imag, *PARTS)
samples("conj", np.conj, *PARTS)
samples("modulus", np.abs, *PARTS)
samples("phase", phase, *PARTS)
samples("angle", np.angle, *PARTS)
