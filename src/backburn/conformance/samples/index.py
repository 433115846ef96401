"""Samples: reading and writing by position."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn.base.dtypes import bool_, float32, int64
from backburn.conformance.samples.table import booleans, case, integers, ints, real, samples

_ = slice

# ---- ranges ----

EVERY = slice(0, 3, 1)

samples(
    "slice",
    lambda x, key: x[key],
    case(real(4, 3), key=(_(1, 3, 1), EVERY)),
    case(real(4, 3), key=(_(0, 4, 2), _(2, 3, 1))),
    case(real(4, 3), key=(_(3, None, -2), _(2, 0, -1))),
    case(real(4, 3), key=(_(2, 2, 1), EVERY)),
    case(real(5), key=(_(4, None, -1),)),
    case(real(), key=()),
    case(real(0, 3), key=(_(0, 0, 1), _(0, 2, 1))),
    case(integers(4, 3), key=(_(1, 3, 1), EVERY)),
    case(booleans(4), key=(_(0, 4, 3),)),
)


samples(
    "select",
    lambda x, axis, index: np.take(x, index, axis),
    case(real(4, 3), axis=0, index=1),
    case(real(2, 4, 3), axis=1, index=3),
    case(real(2, 1), axis=1, index=0),
    case(real(3), axis=0, index=2),
    case(real(2, 0), axis=0, index=1),
    case(integers(4, 3), axis=1, index=2),
    case(booleans(4), axis=0, index=0),
)


def slice_assign(x: Any, value: Any, key: Any) -> Any:
    """The reference of ``slice_assign``."""
    out = np.copy(x)
    out[key] = value
    return out


samples(
    "slice_assign",
    slice_assign,
    case(real(4, 3), real(2, 3), key=(_(1, 3, 1), EVERY)),
    case(real(4, 3), real(2, 2, seed=1), key=(_(3, None, -2), _(2, 0, -1))),
    case(real(4, 3), real(3), key=(_(0, 4, 2), EVERY), note="the value broadcasts"),
    case(real(4, 3), real(), key=(_(0, 4, 1), EVERY)),
    case(real(4, 3), 0.5, key=(_(0, 4, 3), EVERY)),
    case(real(4, 3), real(0, 3), key=(_(2, 2, 1), EVERY)),
    case(real(), real(seed=1), key=()),
    case(integers(4), integers(2, seed=1), key=(_(0, 4, 2),)),
    case(integers(4), 7, key=(_(0, 4, 2),)),
    case(booleans(4), True, key=(_(1, 3, 1),)),
)

samples(
    "slice_backward",
    lambda grad, shape, key: slice_assign(np.zeros(shape, grad.dtype), grad, key),
    case(real(2, 3), shape=(4, 3), key=(_(1, 3, 1), EVERY)),
    case(real(2, 3), shape=(4, 3), key=(_(3, None, -2), EVERY)),
    case(real(0), shape=(4,), key=(_(1, 1, 1),)),
    case(real(), shape=(), key=()),
)

# ---- along one axis, an index for each element ----

samples(
    "take_along_axis",
    lambda x, indices, axis: np.take_along_axis(x, indices, axis),
    case(real(3, 2), ints([0, 2], [1, -1]), axis=0),
    case(real(2, 3), ints([0, 2, 2, 0], [1, -3, 1, 1]), axis=1),
    case(real(3), ints(2, 2, 0), axis=0),
    case(real(2, 2, 2), ints([[1], [0]], [[-1], [0]]), axis=2),
    case(real(2, 3), ints([2], [0]), axis=1),
    case(real(2, 3), np.zeros((2, 0), np.int64), axis=1),
    case(real(0, 3), np.zeros((0, 2), np.int64), axis=1),
    case(integers(3), ints(2, 0, -3), axis=0),
    case(booleans(3), ints(2, 1), axis=0),
)


#: The new element, from the old one and a value, by mode.
COMBINE: dict[str, Any] = {
    "assign": lambda _, new: new, "add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
}  # fmt: skip


def scatter(x: Any, indices: Any, values: Any, axis: int, mode: str = "assign") -> Any:
    """The reference of ``scatter`` and ``scatter_reduce``, value by value."""
    out = np.copy(x)
    for place in np.ndindex(indices.shape):
        target = (*place[:axis], int(indices[place]), *place[axis + 1 :])
        new = np.broadcast_to(values, indices.shape)[place]
        out[target] = COMBINE[mode](out[target], new)
    return out


samples(
    "take_along_axis_backward",
    lambda grad, indices, shape, axis: scatter(np.zeros(shape, grad.dtype), indices, grad, axis, "add"),
    case(real(2, 2), ints([0, 2], [1, -1]), shape=(3, 2), axis=0),
    case(real(2, 4), ints([0, 2, 2, 0], [1, -3, 1, 1]), shape=(2, 3), axis=1),
    case(real(2, 1), ints([2], [0]), shape=(2, 3), axis=1),
    case(real(2, 0), np.zeros((2, 0), np.int64), shape=(2, 3), axis=1),
)

samples(
    "scatter",
    scatter,
    case(real(3, 2), ints([0, 2], [1, -2]), real(2, 2, seed=1), axis=0),
    case(real(2, 3), ints([0, 2, 2, 0], [1, -3, 1, 1]), real(2, 4, seed=1), axis=1, note="the last value stays"),
    case(real(2, 3), ints([0, 2, 2, 0], [1, -3, 1, 1]), real(2, 4, seed=1), axis=1, mode="add"),
    case(real(2, 3, 2), ints([[0, 1], [0, 2]], [[2, 1], [-1, 1]]), real(2, 2, 2), axis=1, mode="add"),
    case(real(2, 3), ints([2], [0]), real(2, 1), axis=1, mode="add"),
    case(real(2, 3), ints([2], [0]), real(2, 1), axis=1),
    case(real(3), ints(0, 2), 1.5, axis=0),
    case(real(3), ints(0, 2, 2), 1.5, axis=0, mode="add"),
    case(real(2, 3), np.zeros((2, 0), np.int64), real(2, 0), axis=1, mode="add"),
    case(real(2, 0), np.zeros((2, 0), np.int64), real(2, 0), axis=1),
    case(integers(3), ints(0, -1, 2), integers(3, seed=1), axis=0, mode="add"),
    case(integers(3), ints(0, -1, 2), integers(3, seed=1), axis=0),
    case(booleans(3), ints(0, 1), True, axis=0),
    case(real(3, 2), ints([0, 1], [1, -2], [0, 0]), real(3, 2, seed=1), axis=0, note="the last value of each column"),
)

samples(
    "scatter_reduce",
    scatter,
    *(
        case(real(2, 3), ints([0, 2, 2, 0], [1, -3, 1, 1]), real(2, 4, seed=1), axis=1, mode=mode)
        for mode in ("mul", "min", "max")
    ),
    case(real(3, 2), ints([0, 2], [0, -1]), real(2, 2, seed=1), axis=0, mode="mul"),
    case(real(3, 2), np.zeros((0, 2), np.int64), real(0, 2), axis=0, mode="max"),
    case(
        np.array([2.0, 1.0, 5.0]),
        ints(0, 0, 1),
        np.array([2.0, 2.0, 3.0]),
        axis=0,
        mode="max",
        smooth=0,
        gradients=(np.array([1 / 3, 0.0, 1.0]), None, np.array([1 / 3, 1 / 3, 1.0])),
        note="ties share",
    ),
    case(
        np.array([2.0, 0.0, 3.0, 4.0]),
        ints(0, 0, 1, 2, 2),
        np.array([0.0, 3.0, 5.0, 0.0, 0.0]),
        axis=0,
        mode="mul",
        gradients=(np.array([0.0, 5.0, 0.0, 1.0]), None, np.array([6.0, 0.0, 0.0, 0.0, 0.0])),
        note="zero factors",
    ),
    case(integers(3), ints(0, -1, 2), integers(3, seed=1), axis=0, mode="mul"),
    case(integers(3), ints(0, -1, 2), integers(3, seed=1), axis=0, mode="min"),
    because="several roundings of a product",
    tolerance=2.0,
)

# ---- along one axis, whole rows ----

samples(
    "take",
    lambda x, indices, axis: np.take(x, indices, axis),
    case(real(3, 2), ints(2, 0, -1, 2), axis=0),
    case(real(2, 3), ints([2, 0], [0, 0]), axis=1),
    case(real(2, 3, 2), ints(1), axis=1),
    case(real(3), np.array(2), axis=0),
    case(real(3, 2), np.array(-1), axis=0),
    case(real(3, 2), np.zeros((0,), np.int64), axis=0),
    case(real(3, 0), ints(2, 2), axis=0),
    case(integers(3), ints(2, 1), axis=0),
    case(booleans(3), ints(2, 1), axis=0),
)


def index_add(x: Any, indices: Any, values: Any, axis: int) -> Any:
    """The reference of ``index_add``."""
    out = np.moveaxis(np.copy(x), axis, 0)
    np.add.at(out, indices, values if np.ndim(values) == 0 else np.moveaxis(values, axis, 0))
    return np.moveaxis(out, 0, axis)


def index_copy(x: Any, indices: Any, values: Any, axis: int, donate: bool = False) -> Any:
    """The reference of ``index_copy``."""
    out = np.copy(x)
    for number, index in enumerate(indices):
        np.moveaxis(out, axis, 0)[index] = values if np.ndim(values) == 0 else np.moveaxis(values, axis, 0)[number]
    return out


def take_backward(grad: Any, indices: Any, length: int, axis: int) -> Any:
    """The reference of ``take_backward``."""
    before, after = grad.shape[:axis], grad.shape[axis + indices.ndim :]
    return index_add(
        np.zeros((*before, length, *after), grad.dtype),
        indices.ravel(),
        grad.reshape(*before, indices.size, *after),
        axis,
    )


samples(
    "take_backward",
    take_backward,
    case(real(4, 2), ints(2, 0, -1, 2), length=3, axis=0),
    case(real(2, 2, 2), ints([2, 0], [0, 0]), length=3, axis=1),
    case(real(2), np.array(-1), length=3, axis=0),
    case(real(0, 2), np.zeros((0,), np.int64), length=3, axis=0),
)

WRITES = (
    case(real(3, 2), ints(2, 0, -1, 2), real(4, 2, seed=1), axis=0),
    case(real(2, 3, 2), ints(1, 1), real(2, 2, 2, seed=1), axis=1),
    case(real(3), ints(1, 1), 0.5, axis=0),
    case(real(3, 2), np.zeros((0,), np.int64), real(0, 2), axis=0),
    case(real(3, 0), ints(1), real(1, 0), axis=0),
    case(integers(3), ints(2, 2), integers(2, seed=1), axis=0),
)

samples("index_add", index_add, *WRITES)
samples(
    "index_copy",
    index_copy,
    *WRITES,
    case(booleans(3), ints(2), True, axis=0),
    case(real(2, 4, 3), ints(1, 3), real(2, 2, 3, seed=1), axis=1, donate=True),
)

# ---- several axes at once ----


def gather_nd(x: Any, indices: Any) -> Any:
    """The reference of ``gather_nd``."""
    if not indices.shape[-1]:
        return np.broadcast_to(x, indices.shape[:-1] + x.shape)
    return x[(*np.moveaxis(indices, -1, 0), ...)]


def scatter_nd(x: Any, indices: Any, values: Any, mode: str = "assign") -> Any:
    """The reference of ``scatter_nd``, entry by entry."""
    out = np.copy(x)
    for place in np.ndindex(indices.shape[:-1]):
        target = tuple(indices[place])
        new = values if np.ndim(values) == 0 else values[place]
        out[target] = COMBINE[mode](out[target], new)
    return out


samples(
    "gather_nd",
    gather_nd,
    case(real(2, 3), ints([0, 2], [1, -3], [0, 2])),
    case(real(3, 2, 2), ints([[0, 1]], [[-1, 0]])),
    case(real(3, 2), ints([2], [0])),
    case(real(3, 2), ints(2, -1)),
    case(real(3), np.zeros((2, 0), np.int64)),
    case(real(3), np.zeros((0, 1), np.int64)),
    case(integers(2, 3), ints([0, 2], [1, 0])),
    case(booleans(2, 3), ints([0, 2], [1, 0])),
)

samples(
    "scatter_nd",
    scatter_nd,
    case(real(2, 3), ints([0, 2], [1, -3], [0, 2]), real(3, seed=1)),
    case(real(2, 3), ints([0, 2], [1, -3], [0, 2]), real(3, seed=1), mode="add"),
    case(real(3, 2), ints([2], [0]), real(2, 2, seed=1)),
    case(real(3, 2), ints(2, -1), real(seed=1), mode="add"),
    case(real(3, 2), ints([2, 0], [0, 1]), 0.5),
    case(real(3), np.zeros((0, 1), np.int64), real(0)),
    *(
        case(real(3, 2), ints([[2], [0]], [[1], [-1]]), real(2, 2, 2, seed=1), mode=mode, note="twice the last")
        for mode in ("mul", "min", "max")
    ),
    case(
        np.array([[2.0, 3.0], [5.0, 7.0]]),
        ints([0, 1], [1, 0], [0, 1]),
        np.array([3.0, 6.0, 1.0]),
        mode="max",
        smooth=0,
        gradients=(np.array([[1.0, 0.5], [0.0, 1.0]]), None, np.array([0.5, 1.0, 0.0])),
        note="ties share",
    ),
    case(real(2, 3), ints([0, 2], [1, 0]), 0.5, mode="mul"),
    case(integers(2, 3), ints([0, 2], [1, 0]), integers(2, seed=1), mode="min"),
    case(integers(2, 3), ints([0, 2], [1, 0]), integers(2, seed=1), mode="add"),
    case(booleans(2, 3), ints([0, 2], [1, 0]), True),
)

# ---- indices from values, and values from indices ----

samples(
    "nonzero",
    np.argwhere,
    case(np.array([[0.0, 1.0, -0.0], [np.nan, 0.0, 2.0]])),
    case(real()),
    case(np.array(0.0)),
    case(real(0, 3)),
    case(integers(2, 3, low=-1, high=2)),
    case(booleans(2, 2, 2)),
    case(np.array([1e-300, 0.0]), note="a number that only 64 bits have"),
)


samples(
    "one_hot",
    lambda x, depth, dtype=int64: np.eye(depth)[x].astype(dtype.dtype),
    case(ints([0, 2], [-1, 1]), depth=3),
    case(ints(0, 2), depth=4, dtype=float32),
    case(ints(0, 1), depth=2, dtype=bool_),
    case(np.array(1), depth=2),
    case(np.zeros((0, 2), np.int64), depth=2),
)
