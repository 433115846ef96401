"""NumPy: resizing, and sampling at arbitrary positions."""

from __future__ import annotations

import math
from functools import lru_cache, partial
from typing import Any

import numpy as np

from backburn.ops.resample import neighbours
from backburn.ops.table import OPERATIONS
from backburn_numpy import compiled, tuning
from backburn_numpy.elementwise.half_precision import cast_like, upcast_half
from backburn_numpy.implements import implements
from backburn_numpy.runtime.memory import contiguous, empty
from backburn_numpy.runtime.threads import parallel_for

Array = Any
Shape = tuple[int, ...]

#: The number of elements that a position reads along an axis.
READS = {"nearest": 1, "linear": 2, "cubic": 4}


@implements("interpolate", takes_backend=True)
def interpolate(k: Any, x: Array, /, size: Shape, mode: str = "nearest", align_corners: bool = False) -> Array:
    options = {"mode": mode, "align_corners": align_corners}
    OPERATIONS["interpolate"].result_shape((x,), {"size": size, **options})
    found = _resized(k, "resize", x, x.shape[2:], size, mode, align_corners)
    return OPERATIONS["interpolate"].body(k, x, size, **options) if found is None else found


@implements("interpolate_backward", takes_backend=True)
def interpolate_backward(
    k: Any, grad: Array, /, places: Shape, mode: str = "nearest", align_corners: bool = False
) -> Array:
    options = {"mode": mode, "align_corners": align_corners}
    OPERATIONS["interpolate_backward"].result_shape((grad,), {"places": places, **options})
    found = _resized(k, "resize_backward", grad, places, grad.shape[2:], mode, align_corners)
    return OPERATIONS["interpolate_backward"].body(k, grad, places, **options) if found is None else found


def _resized(k: Any, name: str, x: Array, old: Shape, new: Shape, mode: str, align_corners: bool) -> Array | None:
    """``x`` resized from or, for its gradient, to ``old`` places, one axis after the other; None without a kernel."""
    y = contiguous(upcast_half(x))
    fast: Any = compiled.serving(name, y)
    if fast is None or mode.startswith("nearest") or max(old, default=0) >= tuning.MAX_RESAMPLED_ELEMENTS:
        return None
    axes = range(2, x.ndim)
    # The last axis, whose elements are gathered, is resized while there are few.
    for axis in reversed(axes) if (math.prod(old) < math.prod(new)) == (name == "resize") else axes:
        n, m = old[axis - 2], new[axis - 2]
        if n == m:
            continue
        places, weights = _neighbours(k, n, m, mode, align_corners, y.dtype)
        inner = math.prod(y.shape[axis + 1 :])
        out = empty((*y.shape[:axis], m if name == "resize" else n, *y.shape[axis + 1 :]), y.dtype)
        if name == "resize_backward":
            out.fill(0)
        part = partial(fast, *compiled.addresses(out, y, places, weights), len(places), n, m, inner)
        parallel_for(part, math.prod(y.shape[:axis]), each=m * inner or 1)
        y = out
    return cast_like(y, x)


@lru_cache(64)
def _neighbours(k: Any, n: int, m: int, mode: str, align_corners: bool, dtype: Any) -> tuple[Array, Array]:
    """The places that each new element reads, and their weights, each (number, m)."""
    chosen = neighbours(k, n, m, mode, align_corners, k.dtype(np.empty(0, dtype)))
    return np.array([places for places, _ in chosen], np.int32), np.array([weights for _, weights in chosen], dtype)


@implements("sample", takes_backend=True)
def sample(
    k: Any, x: Array, positions: Array, /, mode: str = "linear", padding: str = "zeros", slopes: Shape = ()
) -> Array:
    attributes = {"mode": mode, "padding": padding, "slopes": slopes}
    shape = OPERATIONS["sample"].result_shape((x, positions), attributes)
    return _run_kernel(k, "sample", x, positions, x.shape[2:], shape, attributes)


@implements("sample_backward", takes_backend=True)
def sample_backward(
    k: Any,
    grad: Array,
    positions: Array,
    /,
    places: Shape,
    mode: str = "linear",
    padding: str = "zeros",
    slopes: Shape = (),
) -> Array:
    attributes = {"mode": mode, "padding": padding, "slopes": slopes}
    shape = OPERATIONS["sample_backward"].result_shape((grad, positions), {**attributes, "places": places})
    return _run_kernel(k, "sample_backward", grad, positions, places, shape, attributes)


def _run_kernel(
    k: Any, name: str, x: Array, positions: Array, places: Shape, shape: Shape, attributes: dict[str, Any]
) -> Array:
    """The result of a kernel, or of the operation's body if there is none."""
    mode, slopes, wide = attributes["mode"], attributes["slopes"], upcast_half(x)
    fast: Any = compiled.serving(name, wide)
    fits = (
        len(places) <= (2 if mode == "cubic" else 3)
        and math.prod(places) < tuning.MAX_RESAMPLED_ELEMENTS
        and max(places) < tuning.MAX_SAMPLED_LENGTH
    )
    if fast is None or not fits or (slopes and mode == "nearest") or wide.dtype != (at := upcast_half(positions)).dtype:
        if name == "sample_backward":
            attributes["places"] = places
        return OPERATIONS[name].body(k, x, positions, **attributes)
    out = empty(shape, wide.dtype)
    if name == "sample_backward":
        out.fill(0)
    whole = [out, contiguous(wide), contiguous(at), np.array(places, np.int64)]
    options = attributes["padding"] == "zeros", READS[mode], sum(1 << 2 * axis for axis in slopes)
    sizes, channels, wanted = compiled.addresses(*whole), x.shape[1], positions.shape[2]
    parallel_for(
        lambda first, last: fast(*sizes, len(places), channels, wanted, *options, first, last),
        x.shape[0] * channels,
        each=wanted or 1,
    )
    return cast_like(out, x)
