"""Derived samples: edge values, 0-d operands, and scalars that reveal lost or swapped operands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from backburn.conformance.samples.calls import POINTERS, flatten, host_arrays, is_float, map_operands
from backburn.conformance.samples.table import SAMPLES, Array, Sample
from backburn.ops.rules.shapes import broadcast
from backburn.ops.table import OPERATIONS, Operation

#: Indices of derived samples begin here, so that samples that are added later do not change their ids.
SPECIAL, INTEGER_EDGES, ZERO_D = 1000, 1001, 1002

#: Families of operations whose results for edge values are defined.
EDGE_FAMILIES = frozenset(
    {"activations", "arithmetic", "creation", "index", "logic", "scan", "selection", "sets", "shape", "sort"}
)
#: Operations of these families whose results for edge values are left open.
OPEN = frozenset(
    {
        "to_numpy_many",
        "astype",
        "lerp",
        "gelu_backward",
        "silu_backward",
        "silu",
        "mish",
        "gelu",
        "softsign",
        "glu",
        "one_hot",
        "bitwise_left_shift",
        "bitwise_right_shift",
    }
)

#: Samples with a number as an operand: arrays that hold the number among others of both signs, and numbers of both
#: signs that are neither 0 nor 1, nor whole if floats, so that lost or changed ones are detected.
LADDERS: dict[type, list[Any]] = {
    bool: [True, False], int: [-3, -2, 1, 2, 3], float: [-1.75, -1.0, 0.5, 0.75, 1.0, 2.5]
}  # fmt: skip
NUMBERS: dict[type, tuple[Any, Any]] = {bool: (True, False), int: (2, -3), float: (0.75, -1.75)}
#: The first index of samples with these numbers.
SCALARS = 1010
#: Operations with an operand that cannot be negative: a shift, the exponent of an integer, a tolerance.
_POSITIVE = frozenset({"bitwise_left_shift", "bitwise_right_shift", "pow", "pinv"})


@cache
def samples_of(name: str) -> tuple[tuple[int, Sample], ...]:
    """Every sample of an operation with its index: written samples, then derived ones."""
    if name not in SAMPLES:
        return ()
    return (*enumerate(SAMPLES[name].cases), *_derived(OPERATIONS[name]))


def has_edges(operation: Operation) -> bool:
    """Whether the results of an operation for edge values are defined."""
    return operation.family in EDGE_FAMILIES and operation.name not in OPEN


def _derived(operation: Operation) -> Iterator[tuple[int, Sample]]:
    cases = SAMPLES[operation.name].cases
    edges = has_edges(operation)
    floats = [c for c in cases if any(is_float(a) and a.size > 2 for a in host_arrays(c))]
    if edges and floats and not any(not np.isfinite(a).all() for c in floats for a in host_arrays(c)):
        yield SPECIAL, _changed(operation, floats[0], _special)
    ints = [c for c in cases if any(a.dtype == np.int64 and a.size > 2 for a in _values(operation, c))]
    ends = np.iinfo(np.int64)
    if edges and ints and not any(np.any(a == ends.max) for c in ints for a in host_arrays(c) if a.dtype == np.int64):
        yield INTEGER_EDGES, _changed(operation, ints[0], _ends)
    if operation.elementwise and not any(host_arrays(c) and all(a.ndim == 0 for a in host_arrays(c)) for c in cases):
        for sample in cases:
            if not any(a.size for a in host_arrays(sample)) or "dtype" in sample.attributes:
                continue
            yield (
                ZERO_D,
                replace(sample, operands=tuple(map_operands(sample.operands, _number)), smooth=0, gradients=None),
            )
            break
    yield from _with_numbers(operation)


def _with_numbers(operation: Operation) -> Iterator[tuple[int, Sample]]:
    """Calls with each of two other numbers, for each operand that is a number in a sample."""
    kinds = list(NUMBERS)
    for place in range(len(operation.operands)):
        for kind in kinds:
            found = [
                c for c in SAMPLES[operation.name].cases if len(c.operands) > place and type(c.operands[place]) is kind
            ]
            if not found or operation.name in _POSITIVE:
                continue
            for which, number in enumerate(NUMBERS[kind]):
                operands = list(found[0].operands)
                if operation.shape is broadcast:
                    operands = map_operands(operands, partial(_ladder, kind))
                operands[place] = number
                index = SCALARS + 10 * place + 2 * kinds.index(kind) + which
                yield index, replace(found[0], operands=tuple(operands), smooth=0, gradients=None, note="a number")


def _ladder(kind: type, array: Array) -> Array:
    """An array of increasing values of the numbers' type, or a mask of the same length."""
    if array.dtype.kind == "b" and kind is not bool:
        return np.asarray(np.arange(len(LADDERS[kind])) % 2 == 0)
    return np.array(LADDERS[kind])


def _values(operation: Operation, sample: Sample) -> list[Array]:
    """The arrays among the operands that are values, if the first array is of int64; else none."""
    named = [
        (n, a)
        for n, o in zip(operation.operands, sample.operands, strict=False)
        for a in flatten([o])
        if isinstance(a, np.ndarray)
    ]
    return [a for n, a in named if n not in POINTERS] if named and named[0][1].dtype == np.int64 else []


def _changed(operation: Operation, sample: Sample, change: Callable[[Array], Array]) -> Sample:
    operands = tuple(
        operand if name in POINTERS else map_operands([operand], change)[0]
        for name, operand in zip(operation.operands, sample.operands, strict=False)
    )
    return replace(sample, operands=operands, smooth=0, gradients=None, note="edge values")


def _special(array: Array) -> Array:
    """An array with four of five elements replaced by NaN, infinities and a negative zero, in rotation."""
    if not is_float(array):
        return array
    result = array.copy()
    for start, value in enumerate((np.nan, np.inf, -0.0, -np.inf)):
        result.reshape(-1)[start::5] = value
    return result


def _ends(array: Array) -> Array:
    """An array with the first elements replaced by the ends of int64."""
    if array.dtype != np.int64:
        return array
    result = array.copy()
    ends = np.iinfo(np.int64)
    result.reshape(-1)[: min(2, array.size)] = [ends.max, ends.min][: min(2, array.size)]
    return result


def _number(array: Array) -> Array:
    """The first element, without dimensions."""
    return array.reshape(-1)[:1].reshape(()) if array.size else array
