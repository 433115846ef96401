"""Samples: operations on the shape."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from backburn.conformance.samples.table import Array, Sample, booleans, case, integers, real, samples


def pad(x: Array, widths: Any, mode: str = "constant", value: float = 0.0) -> Array:
    """NumPy's padding."""
    if not widths:
        return x
    return np.pad(x, widths, mode, constant_values=value) if mode == "constant" else np.pad(x, widths, mode)  # type: ignore[call-overload]


def sliding_window(x: Array, **attributes: Any) -> Array:
    """All windows, computed element by element of a window."""
    size, parts = attributes["size"], [x[key] for _, key in _offsets(x.shape, **attributes)]
    return np.stack(parts, -1).reshape(*parts[0].shape, *size)


def overlap_add(x: Array, length: Any, **attributes: Any) -> Array:
    """The sum of windows, computed element by element of a window."""
    rank = x.ndim - len(attributes["axis"])
    shape = list(x.shape[:rank])
    for a, n in zip(attributes["axis"], length, strict=True):
        shape[a] = n
    total = np.zeros(shape, x.dtype)
    for offsets, key in _offsets(shape, size=x.shape[rank:], **attributes):
        total[key] += x[(..., *offsets)]
    return total


def _offsets(shape: Any, size: Any, stride: Any, axis: Any, dilation: Any) -> Any:
    """For each element of a window, its index in the window, and its slices of the tensor."""
    for offsets in itertools.product(*map(range, size)):
        key = [slice(None)] * len(shape)
        for a, o, w, s, d in zip(axis, offsets, size, stride, dilation, strict=True):
            key[a] = slice(o * d, o * d + shape[a] - d * (w - 1), s)
        yield offsets, tuple(key)


def kinds(make: Callable[[Any], Sample]) -> tuple[Sample, Sample, Sample]:
    """One case each of floats, integers and booleans."""
    return make(real), make(integers), make(booleans)


PADDINGS = tuple(
    case(x, widths=widths, mode=mode)
    for mode in ("reflect", "edge", "wrap")
    for x, widths in (
        (real(3, 4), ((1, 2), (0, 3))),
        (real(3), ((7, 8),)),
        (real(1, 2), ((2, 1), (0, 0))),
        (real(0, 2), ((0, 0), (1, 1))),
        (integers(3, 2), ((1, 0), (0, 1))),
        (booleans(4), ((2, 2),)),
    )
)

samples(
    "reshape",
    lambda x, shape: np.reshape(x, shape),
    *kinds(lambda make: case(make(2, 3), shape=(3, 1, 2))),
    case(real(2, 3), shape=(6,)),
    case(real(1, 1), shape=()),
    case(real(), shape=(1, 1)),
    case(real(0, 3), shape=(2, 0)),
)
samples(
    "broadcast_to",
    lambda x, shape: np.broadcast_to(x, shape),
    *kinds(lambda make: case(make(2, 1), shape=(2, 2, 3))),
    case(real(2, 3), shape=(2, 3)),
    case(real(), shape=(2, 2)),
    case(real(1, 2), shape=(0, 2)),
    case(real(0), shape=(2, 0)),
)
samples(
    "permute_dims",
    lambda x, axes: np.transpose(x, axes),
    *kinds(lambda make: case(make(2, 3, 4), axes=(2, 0, 1))),
    case(real(2, 3), axes=(0, 1)),
    case(real(), axes=()),
    case(real(0, 3), axes=(1, 0)),
)
samples(
    "concat",
    lambda tensors, axis: np.concatenate(tensors, axis),
    *kinds(lambda make: case([make(2, 3), make(2, 1, seed=1), make(2, 2, seed=2)], axis=1)),
    case([real(2, 3), real(1, 3, seed=1)], axis=0),
    case([real(2, 3)], axis=1),
    case([real(2, 0), real(2, 2, seed=1)], axis=1),
    case([real(0, 3), real(0, 3)], axis=0),
)
samples(
    "stack",
    lambda tensors, axis: np.stack(tensors, axis),
    *kinds(lambda make: case([make(2, 3), make(2, 3, seed=1)], axis=1)),
    case([real(2, 3), real(2, 3, seed=1), real(2, 3, seed=2)], axis=0),
    case([real(2, 3), real(2, 3, seed=1)], axis=2),
    case([real()], axis=0),
    case([real(0, 2), real(0, 2)], axis=0),
)
samples(
    "flip",
    lambda x, axis: np.flip(x, axis),
    *kinds(lambda make: case(make(2, 3), axis=(1,))),
    case(real(2, 3, 2), axis=(0, 2)),
    case(real(2, 3), axis=()),
    case(real(0, 2), axis=(0, 1)),
    case(real(), axis=()),
)
samples(
    "roll",
    lambda x, shift, axis: np.roll(x, shift, axis) if axis else x,
    *kinds(lambda make: case(make(2, 3), shift=(1,), axis=(1,))),
    case(real(3, 4), shift=(-1, 6), axis=(0, 1)),
    case(real(3), shift=(3,), axis=(0,)),
    case(real(2, 0), shift=(2,), axis=(1,)),
    case(real(), shift=(), axis=()),
)
samples(
    "tile",
    lambda x, repeats: np.tile(x, repeats),
    *kinds(lambda make: case(make(2, 3), repeats=(2, 1))),
    case(real(2, 3), repeats=(2, 3)),
    case(real(3), repeats=(0,)),
    case(real(), repeats=()),
    case(real(0, 2), repeats=(2, 2)),
)
samples(
    "repeat",
    lambda x, repeats, axis: np.repeat(x, repeats, axis),
    *kinds(lambda make: case(make(2, 3), repeats=2, axis=1)),
    case(real(2, 3), repeats=3, axis=0),
    case(real(2), repeats=0, axis=0),
    case(real(0, 2), repeats=2, axis=0),
)
samples(
    "pad",
    pad,
    *kinds(lambda make: case(make(2, 3), widths=((1, 0), (2, 1)))),
    case(real(2, 3), widths=((0, 1), (1, 0)), value=-2.5),
    case(real(2), widths=((1, 1),), value=np.inf, smooth=0),
    case(integers(3), widths=((1, 1),), value=7),
    case(booleans(3), widths=((1, 1),), value=True),
    case(real(), widths=()),
    case(real(0, 2), widths=((1, 1), (0, 0))),
    *PADDINGS,
)
samples(
    "sliding_window",
    sliding_window,
    *kinds(lambda make: case(make(6), size=(3,), stride=(1,), axis=(0,), dilation=(1,))),
    case(real(5, 6), size=(2, 3), stride=(2, 1), axis=(0, 1), dilation=(1, 2)),
    case(real(2, 7), size=(2,), stride=(3,), axis=(1,), dilation=(3,)),
    case(real(4, 2), size=(4,), stride=(1,), axis=(0,), dilation=(1,)),
    case(real(0, 4), size=(2,), stride=(1,), axis=(1,), dilation=(1,)),
    case(real(2, 3), size=(), stride=(), axis=(), dilation=()),
)
samples(
    "overlap_add",
    overlap_add,
    case(real(4, 3), length=(6,), stride=(1,), axis=(0,), dilation=(1,)),
    case(real(2, 2, 2, 3), length=(5, 6), stride=(2, 1), axis=(0, 1), dilation=(1, 2)),
    case(real(2, 2, 2), length=(8,), stride=(3,), axis=(1,), dilation=(3,)),
    case(real(0, 3, 2), length=(4,), stride=(1,), axis=(1,), dilation=(1,)),
)
samples(
    "diagonal",
    lambda x, offset, axis1, axis2: np.diagonal(x, offset, axis1, axis2),
    *kinds(lambda make: case(make(3, 4), offset=0, axis1=0, axis2=1)),
    case(real(3, 4), offset=2, axis1=0, axis2=1),
    case(real(4, 3), offset=-2, axis1=0, axis2=1),
    case(real(2, 3, 4), offset=1, axis1=2, axis2=1),
    case(real(3, 3), offset=3, axis1=0, axis2=1),
    case(real(3, 3), offset=-9, axis1=1, axis2=0),
    case(real(0, 3), offset=0, axis1=0, axis2=1),
)
