"""Launchers: pooling."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn.base.errors import ShapeError
from backburn.ops.conv import Pairs
from backburn.ops.table import shape_rule
from backburn_cupy.kernels import geometry
from backburn_cupy.kernels.runner import Runner
from backburn_cupy.kernels.sources import c_type
from backburn_cupy.kernels.windows import Windows, table

Array = Any
Shape = tuple[int, ...]

#: Longer axes are left to others: the kernels compute positions along an axis in 32 bits.
LONGEST = 1 << 30


def max_pool(
    on: Runner, x: Array, /, size: Shape = (1,), stride: Shape = (1,), padding: Pairs = ((0, 0),),
    dilation: Shape = (1,), ceil_mode: bool = False,
) -> Any:  # fmt: skip
    windows = _windows(x.shape, size, stride, padding, dilation, ceil_mode, False)
    if max(x.shape[2:]) > LONGEST:
        return NotImplemented
    shape = (*x.shape[:2], *windows.places)
    out, index = on.xp.ndarray(shape, x.dtype), on.xp.ndarray(shape, np.int64)
    if out.size:
        _run(on, "max_pool", out.size, on.address(x), out, index, table(x, windows))
    return out, index


def avg_pool(
    on: Runner, x: Array, /, size: Shape = (1,), stride: Shape = (1,), padding: Pairs = ((0, 0),),
    ceil_mode: bool = False, count_include_pad: bool = True, dilation: Shape = (),
) -> Array:  # fmt: skip
    windows = _windows(x.shape, size, stride, padding, dilation, ceil_mode, count_include_pad)
    if max(x.shape[2:]) > LONGEST:
        return NotImplemented
    out = on.xp.ndarray((*x.shape[:2], *windows.places), x.dtype)
    if out.size:
        _run(on, "avg_pool", out.size, on.address(x), out, table(x, windows), after=(padding, count_include_pad))
    return out


def avg_pool_backward(
    on: Runner, grad: Array, /, places: Shape = (1,), size: Shape = (1,), stride: Shape = (1,),
    padding: Pairs = ((0, 0),), ceil_mode: bool = False, count_include_pad: bool = True, dilation: Shape = (),
) -> Array:  # fmt: skip
    shape = (*grad.shape[:2], *places)
    windows = _windows(shape, size, stride, padding, dilation, ceil_mode, count_include_pad)
    if grad.shape[2:] != windows.places:
        raise ShapeError(
            f"avg_pool_backward: the gradient {list(grad.shape)} is not of the windows {list(windows.places)}"
        )
    if max(places) > LONGEST:
        return NotImplemented
    grad, out = on.xp.ascontiguousarray(grad), on.xp.ndarray(shape, grad.dtype)
    if out.size:
        _run(on, "avg_pool_backward", out.size, grad, out, table(out, windows), after=(padding, count_include_pad))
    return out


def _windows(
    x: Shape, size: Shape, stride: Shape, padding: Pairs, dilation: Shape, ceil_mode: bool, counts_pad: bool
) -> Windows:
    places = shape_rule("avg_pool")(
        x, size=size, stride=stride, padding=padding, dilation=dilation, ceil_mode=ceil_mode,
        count_include_pad=counts_pad,
    )[2:]  # fmt: skip
    return Windows(size, places, stride, padding, dilation or (1,) * len(size))


def _run(on: Runner, kernel: str, count: int, *arguments: Any, after: tuple[Pairs, bool] | None = None) -> None:
    """Launch a kernel over ``count`` elements of its result; ``after`` determines the divisors of means."""
    more: list[int] = []
    if after is not None:
        padding, counted = after
        more = [*[0] * (3 - len(padding)), *(a for _, a in padding), int(counted)]
    out = arguments[1]
    on.run("pool", f"{kernel}<{c_type(out)}>", *geometry.elements(count, 1), *arguments, count, *more)
