"""Samples: quantization, and operations on quantized operands."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base.dtypes import float16, float32, float64, qint8
from backburn.conformance.samples.linalg import linear
from backburn.conformance.samples.table import case, real, samples, stored


def quantized(x: NDArray[Any], dtype: Any = qint8) -> NDArray[Any]:
    """Every element rounded to the nearest multiple of the step, which is rounded to float32."""
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
    """Every element rounded to the nearest multiple of a symmetric int8 range's step, and clipped to the range."""
    step = np.float32(np.maximum(np.maximum(-low, high), 0.0) / 127).astype(np.float64)
    return np.asarray(np.clip(np.rint(x / step), -127, 127) * step)


#: Values that are not halfway between two steps in any dtype.
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


# ---- quantized operands ----

#: Every storage and mode, which together have every granularity and dtype of steps.
SCHEMES = (
    "qint8_symmetric_tensor_float32", "qint8_symmetric_channel0_float16", "qint8_affine_block4_bfloat16",
    "quint8_affine_channel1_float32", "quint8_affine_block3_float16", "quint8_affine_tensor_bfloat16",
    "qint4_symmetric_block4_float16", "qint4_symmetric_channel1_bfloat16", "qint4_affine_tensor_float32",
    "qint4_affine_channel0_float16", "qfloat8_e4m3fn_symmetric_channel0_float32",
    "qfloat8_e4m3fn_symmetric_block3_float16", "qfloat8_e5m2_symmetric_tensor_float32",
    "qint4_symmetric_block2x3_float16", "quint8_affine_block2x4_float32", "qint2_symmetric_block4_float16",
    "qint2_affine_channel0_float32",
)  # fmt: skip


samples(
    "dequantize",
    lambda x, dtype=float32: x,
    *(case(stored(name, 3, 7)) for name in SCHEMES),
    *(case(stored(name, *shape)) for name in SCHEMES for shape in ((2, 0), (0, 3), (1, 1))),
    case(stored("qint4_affine_tensor_float32"), note="one value in a byte"),
    case(stored("qint8_symmetric_tensor_float32"), dtype=float64),
    case(stored("qint4_symmetric_block4_float16", 2, 9), dtype=float16),
    case(stored("quint8_affine_channel0_float32", 4, 2, 3)),
    case(stored("qfloat8_e4m3fn_symmetric_block3_float16", 2, 2, 5)),
)


samples(
    "quantized_linear",
    linear,
    *(case(real(2, 7), stored(name, 3, 7), real(3)) for name in SCHEMES),
    case(real(2, 2, 7), stored(SCHEMES[6], 3, 7)),
    case(real(7), stored(SCHEMES[3], 3, 7)),
    case(real(0, 7), stored(SCHEMES[1], 3, 7), real(3)),
    case(real(2, 0), stored(SCHEMES[0], 3, 0), real(3)),
    case(real(2, 3), stored(SCHEMES[2], 0, 3)),
    tolerance=8.0,
    gradient_tolerance=10.0,
    because="values up to 900 are added up",
)


samples(
    "quantized_linear_backward",
    np.matmul,
    *(case(real(2, 7), stored(name, 7, 3)) for name in SCHEMES),
    case(real(2, 2, 7), stored(SCHEMES[6], 7, 3)),
    case(real(7), stored(SCHEMES[3], 7, 3)),
    case(real(0, 7), stored(SCHEMES[1], 7, 3)),
    case(real(2, 0), stored(SCHEMES[0], 0, 3)),
    case(real(2, 3), stored(SCHEMES[2], 3, 0)),
    tolerance=8.0,
    gradient_tolerance=10.0,
    because="values up to 900 are added up",
)


samples(
    "quantized_matmul",
    lambda x, y, dtype=float32, transposed=False: x @ (y.T if transposed else y),
    *(case(stored(name, 2, 7), stored(name, 7, 3, seed=1)) for name in SCHEMES),
    *(case(stored(name, 2, 7), stored(other, 3, 7), transposed=True)
      for name, other in zip(SCHEMES, SCHEMES[1:] + SCHEMES[:1], strict=True)),
    case(stored(SCHEMES[0], 2, 1500), stored(SCHEMES[0], 1500, 3, seed=1), note="sums beyond what float32 holds"),
    case(stored(SCHEMES[5], 2, 600), stored(SCHEMES[5], 3, 600, seed=1), transposed=True, dtype=float64),
    case(stored(SCHEMES[0], 2, 7), stored(SCHEMES[0], 7, 3), dtype=float16),
    case(stored(SCHEMES[0], 0, 7), stored(SCHEMES[0], 7, 3)),
    case(stored(SCHEMES[0], 2, 0), stored(SCHEMES[6], 0, 3)),
    case(stored(SCHEMES[1], 1, 1), stored(SCHEMES[3], 1, 1)),
    tolerance=8.0,
    because="values up to 900 are added up",
)  # fmt: skip
