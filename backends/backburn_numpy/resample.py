"""NumPy: sampling at arbitrary positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from backburn.backend.table import OPERATIONS
from backburn_numpy import compiled
from backburn_numpy.blocks import WORTH
from backburn_numpy.halves import narrowed, widened
from backburn_numpy.memory import empty
from backburn_numpy.threads import for_parts

Array = Any
Shape = tuple[int, ...]

#: The most places, which kernels count in 32 bits, and a float32 exactly along an axis.
MOST, LONGEST = 1 << 29, 1 << 22


def sample(x: Array, positions: Array, /, mode: str = "linear", padding: str = "zeros", slopes: Shape = ()) -> Array:
    attributes = {"mode": mode, "padding": padding, "slopes": slopes}
    shape = OPERATIONS["sample"].result_shape((x, positions), attributes)
    return _by_kernel("sample", x, positions, x.shape[2:], shape, attributes)


def sample_backward(
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
    return _by_kernel("sample_backward", grad, positions, places, shape, attributes)


def _by_kernel(
    name: str, x: Array, positions: Array, places: Shape, shape: Shape, attributes: dict[str, Any]
) -> Array:
    """A kernel's result, or the body's if there is none."""
    mode, slopes, wide = attributes["mode"], attributes["slopes"], widened(x)
    fast: Any = compiled.serving(name, wide)
    fits = len(places) <= 3 and math.prod(places) < MOST and max(places) < LONGEST
    if fast is None or not fits or (slopes and mode != "linear") or wide.dtype != (at := widened(positions)).dtype:
        from backburn_numpy.backend import NumpyBackend

        if name == "sample_backward":
            attributes["places"] = places
        return OPERATIONS[name].body(NumpyBackend(), x, positions, **attributes)
    out = empty(shape, wide.dtype)
    if name == "sample_backward":
        out.fill(0)
    whole = [out, np.ascontiguousarray(wide), np.ascontiguousarray(at), np.array(places, np.int64)]
    options = attributes["padding"] == "zeros", mode == "linear", sum(1 << axis for axis in slopes)
    sizes, channels, wanted = compiled.addresses(*whole), x.shape[1], positions.shape[2]
    for_parts(
        lambda first, last: fast(*sizes, len(places), channels, wanted, *options, first, last),
        x.shape[0] * channels,
        max(1, WORTH // (wanted or 1)),
    )
    return narrowed(out, x)
