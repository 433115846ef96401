"""Derived samples: int64 samples in every int dtype, and samples of creation in every dtype."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from backburn.base.dtypes import DTYPES, DType
from backburn.conformance.samples.calls import (
    POINTERS,
    dtypes_of,
    flatten,
    host_arrays,
    is_float,
    main_dtype,
    map_operands,
)
from backburn.conformance.samples.derived.edge_values import INTEGER_EDGES, samples_of
from backburn.conformance.samples.table import Array, Sample
from backburn.ops.table import OPERATIONS, Operation

#: The number of forms (ranks of the operands, numbers among them) in which an operation is tried in each dtype.
FORMS = 4

#: Operations whose values are indices: negative ones have no unsigned counterpart.
PLACES = frozenset({"one_hot"})


def dtype_samples(backend: Any, operation: Operation) -> list[tuple[str, int, Sample]]:
    """Dtype, index and sample for each dtype that a backend declares for arithmetic but no sample was written in."""
    return [
        (dtype.name, index, sample)
        for dtype in backend.capabilities.dtypes
        if dtype.kind in ("int", "float", "bool") and backend.capabilities.supports(dtype)
        for index, sample in samples_in(operation.name, dtype)
        if dtypes_of(operation.name, sample, backend)
    ]


@cache
def samples_in(name: str, dtype: DType) -> tuple[tuple[int, Sample], ...]:
    """The first samples of an operation in each of some forms, and one with the dtype's ends, converted to ``dtype``.

    Each has the index of its original sample.
    """
    forms: dict[Any, tuple[int, Sample]] = {}
    for index, sample in samples_of(name):
        edges = index == INTEGER_EDGES
        form = edges or (tuple(getattr(o, "ndim", type(o)) for o in sample.operands), frozenset(sample.attributes))
        if form in forms or (len(forms) >= FORMS and not edges):
            continue
        moved = in_dtype(OPERATIONS[name], sample, dtype)
        if moved is not None:
            forms[form] = (index, moved)
    return tuple(forms.values())


def in_dtype(operation: Operation, sample: Sample, dtype: DType) -> Sample | None:
    """An int64 sample in another int dtype, or one without operands in another dtype of its kind; None for others."""
    written = DTYPES.get(main_dtype(operation.name, sample))
    if written is None or written == dtype or written.kind != dtype.kind or operation.family == "random":
        return None
    arrays = host_arrays(sample)
    if not arrays:
        return _made_in(sample, dtype)
    if written.name != "int64" or any(map(is_float, arrays)) or not any(a.size for a in arrays):
        return None
    if operation.name in PLACES and dtype.name.startswith("u") and any((a < 0).any() for a in arrays):
        return None
    operands = [
        operand if name in POINTERS or not _of_int64(operand) else _fitting(operand, dtype)
        for name, operand in zip(operation.operands, sample.operands, strict=False)
    ]
    return replace(sample, operands=tuple(operands), smooth=0, gradients=None)


def _of_int64(operand: Any) -> bool:
    """Whether an operand is converted to another dtype: int64 arrays and numbers are."""
    return type(operand) is int or (isinstance(operand, np.ndarray | list) and flatten([operand])[0].dtype == np.int64)


def _fitting(operand: Any, dtype: DType) -> Any:
    """An operand with values of ``dtype``; arrays are shifted up if it has no negative values.

    The ends of int64 become those of ``dtype``; other values are clipped to its range.
    """
    least, most = int(np.iinfo(dtype.name).min), int(np.iinfo(dtype.name).max)
    if type(operand) is int:
        return abs(operand) if least == 0 else operand
    ends = np.iinfo(np.int64)

    def fit(array: Array) -> Array:
        is_most, is_least = array == ends.max, array == ends.min
        plain = array[~(is_most | is_least)]
        up = -int(plain.min(initial=0)) if least == 0 else 0
        clipped = np.clip(np.where(is_most | is_least, 0, array) + up, least, min(most, int(ends.max)))
        values = np.array(clipped, dtype.name)
        values[is_most], values[is_least] = most, least
        return values

    return map_operands([operand], fit)[0]


def _made_in(sample: Sample, dtype: DType) -> Sample | None:
    """A call that creates a tensor, now of ``dtype``; None if its numbers may not fit."""
    numbers = [v for v in sample.attributes.values() if isinstance(v, int | float) and not isinstance(v, bool)]
    fits = all(abs(v) < 100 and (v >= 0 or not dtype.name.startswith("u")) for v in numbers)
    return replace(sample, attributes={**sample.attributes, "dtype": dtype}) if fits else None
