"""CuPy: convolutions without cuDNN, by im2col: windows become the columns of a matrix for one product.

Each group of channels is one product of a stack. The columns of many examples would not fit in memory, so examples are
processed a few at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import cupy

from backburn_cupy.creation import cast
from backburn_cupy.kernels.columns import add_columns, columns
from backburn_cupy.kernels.windows import Windows
from backburn_cupy.linalg import product
from backburn_cupy.reduce import compute_dtype, is_half

Array = Any
Shape = tuple[int, ...]

#: Bytes of columns at a time.
LIMIT = 1 << 28
#: The most positions of an example: the kernels compute them in 32 bits.
POSITIONS = 1 << 30


def supports(k: Any, size: Shape, *operands: Array) -> bool:
    """Whether im2col pays off, by kernels for floats.

    Windows of one element already are a stack of matrices, which the default body multiplies, but in float32.
    """
    worth = (math.prod(size) > 1 or is_half(operands[0])) and operands[0].dtype.kind != "c"
    return worth and k.runner is not None and all(x.size and math.prod(x.shape[2:]) <= POSITIONS for x in operands)


def forward(k: Any, x: Array, weight: Array, bias: Array | None, windows: Windows, groups: int) -> Array:
    """The products of the weight and all windows of ``x``, plus ``bias``."""
    out = cupy.ndarray((x.shape[0], weight.shape[0], *windows.places), x.dtype)
    grouped = weight.reshape(groups, weight.shape[0] // groups, math.prod(weight.shape[1:]))
    for examples in _parts(x.shape, windows, x.itemsize):
        matrix = columns(k.runner, x[examples], windows)
        products = product(k, grouped, matrix.reshape(groups, -1, matrix.shape[1]))
        _examples_first(products, out[examples])
    return out if bias is None else cupy.add(out, _per_channel(bias, out), out=out)


def backward(k: Any, x: Array, weight: Array, bias: Array | None, shape: Shape, windows: Windows, groups: int) -> Array:
    """The transposed convolution of ``x``, of the given shape, plus ``bias``."""
    out = cupy.ndarray(shape, x.dtype)
    grouped = weight.reshape(groups, weight.shape[0] // groups, math.prod(weight.shape[1:]))
    wide = compute_dtype(x)
    for examples in _parts(shape, windows, wide.itemsize):
        matrix = product(k, cupy.moveaxis(grouped, 1, 2), _channels_first(x[examples], groups), dtype=wide)
        add_columns(k.runner, matrix, windows, out[examples])
    return out if bias is None else cupy.add(out, _per_channel(bias, out), out=out)


def weight_backward(k: Any, x: Array, grad: Array, shape: Shape, windows: Windows, groups: int) -> Array:
    """The gradient of a weight of the given shape."""
    wide, total = compute_dtype(x), None
    for examples in _parts(x.shape, windows, x.itemsize):
        matrix = columns(k.runner, x[examples], windows)
        grouped = cupy.moveaxis(matrix.reshape(groups, -1, matrix.shape[1]), 1, 2)
        part = product(k, _channels_first(grad[examples], groups), grouped, dtype=wide)
        total = part if total is None else cupy.add(total, part, out=total)
    assert total is not None
    return cast(total, x.dtype).reshape(shape)


def _parts(shape: Shape, windows: Windows, itemsize: int) -> Iterator[slice]:
    """Slices of examples whose columns take at most LIMIT bytes."""
    example_bytes = shape[1] * math.prod(windows.size) * math.prod(windows.places) * itemsize
    step = max(1, LIMIT // example_bytes)
    return (slice(start, start + step) for start in range(0, shape[0], step))


def _channels_first(x: Array, groups: int) -> Array:
    """``x`` as matrices (groups, channels per group, positions of all examples)."""
    moved = cupy.ascontiguousarray(cupy.moveaxis(x, 0, 1))
    return moved.reshape(groups, x.shape[1] // groups, -1)


def _examples_first(products: Array, out: Array) -> None:
    """Write a product, which has channels first, to its part of ``out``."""
    out[...] = cupy.moveaxis(products.reshape(out.shape[1], out.shape[0], *out.shape[2:]), 0, 1)


def _per_channel(bias: Array, out: Array) -> Array:
    return bias.reshape(-1, *[1] * (out.ndim - 2))
