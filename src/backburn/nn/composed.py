"""Layers as functions that are compositions of tensor functions; they are public in :mod:`backburn.nn.functional`."""

from __future__ import annotations

from typing import Any

from backburn.backend.shapes import broadcast
from backburn.base.dtypes import float32
from backburn.base.errors import ArgumentError, ShapeError
from backburn.tensor import create, functions, host, shape
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.dispatch import cast, describe, float_operand, number, tensor_operand

__all__ = ["rotary"]


def rotary(
    x: Tensor, positions: Tensor | None = None, *, base: float = 10000.0, interleaved: bool = True
) -> FloatTensor:
    """Each vector turned by angles that grow with its position, so that products tell how far two are apart.

    ``x`` (..., steps, size) has vectors of even ``size``; pair ``i`` of their features turns by
    ``position * base ** (-2 * i / size)``. Pairs are neighbours, or with ``interleaved=False`` one feature of the first
    half and one of the second, as weights trained by GPT-NeoX's code have it. ``positions`` (numbers that broadcast to
    (..., steps)) are 0, 1, ... by default. 16-bit floats turn in float32. Raises :class:`ShapeError` for an odd size
    and for positions that do not fit. After Su et al., RoFormer, 2021.

    >>> import backburn as bb
    >>> x = bb.asarray([[1.0, 0.0], [1.0, 0.0]])
    >>> rotary(x, bb.asarray([0.0, bb.pi])).round(4).tolist()
    [[1.0, 0.0], [-1.0, -0.0]]
    """
    x = float_operand("rotary", x)
    if not number("rotary", "base", base) > 0:
        raise ArgumentError(f"rotary: base is a number above 0, not {base!r}")
    if not x.ndim or x.shape[-1] % 2 or (positions is None and x.ndim < 2):
        raise ShapeError(f"rotary: takes vectors of even size (..., steps, size), not {describe((x,))}")
    exact = float32 if x.dtype.bits < 32 else x.dtype
    if positions is None:
        places: Any = create.arange(x.shape[-2], dtype=exact, backend=x.backend)
    else:
        places = cast(tensor_operand("rotary", positions), exact)
        if places.ndim >= x.ndim or broadcast(places.shape, x.shape[:-1]) != x.shape[:-1]:
            words = f"rotary: positions broadcast to {list(x.shape[:-1])}, the shape of x without its last axis"
            raise ShapeError(f"{words}. Operands: {describe((x, positions))}")
    half = x.shape[-1] // 2
    rates = host.asarray([float(base) ** (-i / half) for i in range(half)], dtype=exact, backend=x.backend)
    angles = places[..., None] * rates
    cos, sin = functions.cos(angles), functions.sin(angles)
    y: Any = cast(x, exact)
    if interleaved:
        pairs = y.reshape((*x.shape[:-1], half, 2))
        first, second = pairs[..., 0], pairs[..., 1]
    else:
        first, second = y[..., :half], y[..., half:]
    turned = [first * cos - second * sin, first * sin + second * cos]
    y = shape.stack(turned, axis=-1).reshape(x.shape) if interleaved else shape.concat(turned, axis=-1)
    return cast(y, x.dtype)
