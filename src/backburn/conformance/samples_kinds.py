"""Samples: quantizing. What has quantized operands only is checked with what quantizes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base.dtypes import qint8
from backburn.conformance.samples import case, real, samples


def quantized(x: NDArray[Any], dtype: Any = qint8) -> NDArray[Any]:
    """Every element as the nearest multiple of the step, which is rounded to float32."""
    step = float(np.float32(np.max(np.abs(x), initial=0.0) / 127)) or 1.0
    return np.asarray(np.clip(np.rint(x / step), -127, 127) * step)


samples(
    "quantize",
    quantized,
    case(real(3, 4)),
    case(real(3, 4), dtype=qint8),
    case(real(200, low=-1e-3, high=2e4)),
    case(real()),
    case(real(0, 3)),
    case(np.zeros(3)),
    case(np.array([0.5, -1.5, 2.5, 127.0])),
)

samples(
    "fake_quantize",
    quantized,
    case(real(3, 4), smooth=0, gradients=(np.ones((3, 4)),)),
    case(real(3, 4), dtype=qint8, smooth=0, gradients=(np.ones((3, 4)),)),
    case(real(), smooth=0, gradients=(np.ones(()),)),
    case(real(0, 3), smooth=0, gradients=(np.ones((0, 3)),)),
    case(np.array([0.5, -1.5, 2.5, 127.0]), smooth=0, gradients=(np.ones(4),)),
)


def between(x: NDArray[Any], low: Any, high: Any, dtype: Any = qint8) -> NDArray[Any]:
    """Every element as the nearest multiple of the step that a symmetric int8 range has, and at most its end."""
    step = np.float32(np.maximum(np.maximum(-low, high), 0.0) / 127).astype(np.float64)
    return np.asarray(np.clip(np.rint(x / step), -127, 127) * step)


#: Halfway between two steps for none of them, in any dtype.
RANGED = np.array([[0.3, -1.2, 2.6], [-127.2, 63.4, 126.7]])
LOW, HIGH = np.array(-127.0), np.array(63.5)

samples(
    "quantize_between",
    between,
    case(RANGED, LOW, HIGH),
    case(np.array(63.4), LOW, HIGH),
    case(real(0, 3), LOW, HIGH),
)

_INSIDE = np.array([[1.0, 1.0, 1.0], [0.0, 1.0, 1.0]])  # a symmetric range is as wide on both sides
samples(
    "fake_quantize_between",
    between,
    case(RANGED, LOW, HIGH, smooth=0, gradients=(_INSIDE, None, None)),
    case(RANGED, np.array(-63.5), np.array(127.0), dtype=qint8, smooth=0, gradients=(_INSIDE, None, None)),
    case(np.array(63.4), LOW, HIGH, smooth=0, gradients=(np.ones(()), None, None)),
    case(real(0, 3), LOW, HIGH, smooth=0, gradients=(np.ones((0, 3)), None, None)),
)
