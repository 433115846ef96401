"""Checks of an operation's results: values, dtype and shape, each under a kind that follows from the inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import numpy as np

from backburn.base.dtypes import ComplexDType, as_dtype
from backburn.conformance.checks.check import Check
from backburn.conformance.checks.silence import assert_no_warnings
from backburn.conformance.checks.tolerances import ROUNDINGS, VALUE, compare, tolerance_factor
from backburn.conformance.samples.calls import (
    as_float64,
    call,
    complex_dtypes,
    dtypes_of,
    expected_of,
    flatten,
    host_arrays,
    is_inexact,
    map_operands,
    operands_of,
    promised_dtypes,
    promised_shapes,
    to_host,
    to_primitives,
)  # fmt: skip
from backburn.conformance.samples.derived.complex_operands import complex_samples
from backburn.conformance.samples.derived.dtypes import dtype_samples
from backburn.conformance.samples.derived.edge_values import samples_of
from backburn.conformance.samples.table import SAMPLES, Array, Sample, SampleSet, Stored
from backburn.ops.rules.shapes import broadcast
from backburn.ops.table import OPERATIONS, Operation

#: Operations that add values to an element sequentially, and lose more digits than other sums.
ONE_BY_ONE = frozenset(
    {"scatter", "scatter_nd", "scatter_reduce", "take_backward", "take_along_axis_backward", "interpolate_backward"}
)

#: The relative rounding error of one operation in float64.
ROUNDING_ERROR = 2.0**-53


@cache
def value_kind(operation: Operation, sample: Sample) -> str:
    """The kind of check for comparing the results of a sample with the reference."""
    found = [*host_arrays(sample), *(o.values for o in sample.operands if isinstance(o, Stored))]
    if operation.family == "random":
        return "random"
    shape = sample.attributes.get("shape")
    if any(a.size == 0 for a in found) or (not found and isinstance(shape, tuple) and 0 in shape):
        return "zero_size"
    if any(a.dtype.kind == "f" and _special(a) for a in found):
        return "special"
    if any(a.dtype.kind in "iu" and _at_the_end(a) for a in found):
        return "integer_edges"
    if any(isinstance(o, bool | int | float) for o in sample.operands):
        return "scalars"
    if (found and all(a.ndim == 0 for a in found)) or (not found and shape == ()):
        return "zero_d"
    if operation.shape is broadcast and len({a.shape for a in found}) > 1:
        return "broadcasting"
    return "value"


def _special(array: Array) -> bool:
    return not np.isfinite(array).all() or bool(np.any((array == 0) & np.signbit(array)))


def _at_the_end(array: Array) -> bool:
    ends = np.iinfo(array.dtype)
    return bool(np.any(array == ends.max) or (ends.min != 0 and np.any(array == ends.min)))


def value_checks(backend: Any, operation: Operation) -> Iterator[Check]:
    """Every sample in every dtype against the float64 reference."""
    for dtype, index, sample in _samples_in_dtypes(backend, operation):
        kind = value_kind(operation, sample)
        yield Check(operation.name, dtype, kind, index, backend, check_value, sample, "the values of the reference")


def complex_checks(backend: Any, operation: Operation) -> Iterator[Check]:
    """Complex operands in each complex dtype of the backend, against the reference."""
    for dtype in complex_dtypes(backend):
        for index, sample in complex_samples(operation.name):
            title = "the values of the reference"
            yield Check(operation.name, dtype, "complex", index, backend, check_complex, sample, title)


def check_complex(check: Check) -> float:
    """Compare the values of complex operands with the reference, and their shapes with the rule."""
    operation = OPERATIONS[check.operation]
    if operation.shape is not None and operation.results != ("host",):
        check_shape(check)
    return compare_call(check, check.sample, zeros=False, sensitive=True)


def _samples_in_dtypes(backend: Any, operation: Operation) -> Iterator[tuple[str, int, Sample]]:
    """Dtype, index and sample of every call of an operation: written samples in each dtype, then derived samples."""
    for index, sample in samples_of(operation.name):
        for dtype in dtypes_of(operation.name, sample, backend):
            yield dtype, index, sample
    yield from dtype_samples(backend, operation)


def check_value(check: Check) -> float:
    """Compare the values with the reference, with the tolerance of the dtype in the table."""
    return compare_call(check, check.sample, check.kind == "special")


def compare_call(check: Check, sample: Sample, zeros: bool, sensitive: bool = False) -> float:
    """Call a sample and :func:`compare_results`; dtypes are compared too, and warnings are errors."""
    operation = OPERATIONS[check.operation]
    operands = operands_of(check.operation, sample, check.dtype)
    inputs = to_primitives(check.backend, operands)
    with assert_no_warnings(check.operation):
        primitives = call(check.backend, check.operation, inputs, sample.attributes)
        results = to_host(check.backend, check.operation, primitives)
    if operation.results != ("host",):
        dtypes = promised_dtypes(operation, operands, sample.attributes, len(results))
        for primitive, promised in zip(primitives, dtypes, strict=False):
            made = check.backend.dtype(primitive)  # raises for anything but a primitive, such as a number
            assert promised is None or made == promised, f"the result is {made}, the table says {promised}"
    return compare_results(check, sample, operands, results, zeros, sensitive)


def compare_results(
    check: Check,
    sample: Sample,
    operands: list[Any],
    results: list[Array],
    zeros: bool = False,
    sensitive: bool = False,
) -> float:
    """Compare the results of a call with the reference. Returns the error in units of tolerance.

    With ``zeros`` the signs of zeros are compared where they are promised. With ``sensitive`` the tolerance also grows
    with the change of the result under rounding of the operands, which matters if many terms cancel.
    """
    operation, samples = OPERATIONS[check.operation], SAMPLES[check.operation]
    expected = expected_of(samples, sample, operands)
    dtypes = promised_dtypes(operation, operands, sample.attributes, len(expected))
    assert len(results) == len(expected), f"{len(results)} outputs, and the table has {len(expected)}"
    factor = samples.tolerance * tolerance_factor(check.backend, check.operation, check.dtype)
    worst = 0.0
    for number, (got, reference, promised) in enumerate(zip(results, expected, dtypes, strict=False)):
        held = as_dtype(got.dtype) if promised is None or promised.kind == "quantized" else promised
        parts = held.part if isinstance(held, ComplexDType) else held
        tolerance = parts.name if parts.is_floating else ""
        if promised is not None and promised.kind == "int":
            reference = reference.astype(promised.name)  # integers are taken modulo the size of their dtype
        slack = partial(sensitivity, samples, sample, operands, check.dtype, number) if sensitive else None
        worst = max(worst, compare(got, reference, tolerance, factor, sample.relative, slack))
        assert not sample.exact or np.array_equal(as_float64(got), reference), (
            f"got {got}, expected exactly {reference}"
        )
        if zeros and tolerance and _keeps_zeros(operation):
            _compare_zeros(as_float64(got), as_float64(reference))
    return worst


def sensitivity(samples: SampleSet, sample: Sample, operands: list[Any], dtype: str, number: int) -> Array:
    """The change of an output relative to that of its operands: the condition of the result, from the reference alone.

    The operands are rounded up and down at random by a few units in the last place of ``dtype``, so that a result that
    jumps there (such as an integer quotient) may have either value. Elements with less than the median change get the
    median. In float64, sequential sums lose more: one rounding error per term, which is still far below float32's.
    """
    step = ROUNDINGS.get(dtype, 2.0**-40)
    generator = np.random.default_rng(0)
    exact = map_operands(operands, as_float64)

    def rounded(array: Array) -> Array:
        return array * (1 + step * generator.choice([-1.0, 1.0], array.shape)) if is_inexact(array) else array

    base = as_float64(expected_of(samples, sample, exact)[number])
    found = np.zeros(base.shape)
    with np.errstate(all="ignore"):
        for _ in range(4):
            other = as_float64(expected_of(samples, sample, map_operands(exact, rounded))[number])
            found = np.fmax(found, np.abs(other - base) / step)
    found[~np.isfinite(found)] = 0
    if samples.name in ONE_BY_ONE:
        found *= 4
    if not found.size:
        return found
    found = np.maximum(found, np.median(found))
    terms = sum(a.size for a in flatten(exact) if is_inexact(a)) // base.size
    if dtype in ("float64", "complex128") and terms > 1:
        # Adding n terms rounds n times, relative to their sum and to the sum of their sizes.
        share = terms * ROUNDING_ERROR / (4 * VALUE["float64"][0])
        found = found + share * (np.abs(base) + math.sqrt(terms) * found)
    return found


def _keeps_zeros(operation: Operation) -> bool:
    """Whether the sign of a zero is promised: by IEEE 754 and C, and if values only move."""
    exact = ("add", "sub", "mul", "div", "fmod", "reciprocal", "neg", "abs", "copysign")
    moving = ("where", "masked_fill", "masked_select", "triu", "tril")
    return operation.family in ("elementwise", "shape", "index") or operation.name in exact + moving


def _compare_zeros(got: Array, reference: Array) -> None:
    """Raise AssertionError if a zero has not the sign of the reference's."""
    zeros = (got == 0) & (reference == 0)
    wrong = zeros & (np.signbit(got) != np.signbit(reference))
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(f"the zero at {place} is {got[place]}, expected {reference[place]}")


def dtype_checks(backend: Any, operation: Operation) -> Iterator[Check]:
    """The dtype of each output, for each dtype of the operands that the backend declares."""
    name, seen = operation.name, set()
    for dtype, index, sample in _samples_in_dtypes(backend, operation):
        kinds = tuple(a.dtype.kind for a in host_arrays(sample))
        key = (dtype, kinds, sample.attributes.get("dtype"), any(isinstance(o, int | float) for o in sample.operands))
        if key not in seen:
            seen.add(key)
            yield Check(name, dtype, "dtype", index, backend, check_dtype, sample, "the dtypes that the table says")


def check_dtype(check: Check) -> None:
    """Compare the dtypes of the outputs with the operation table."""
    operation, backend = OPERATIONS[check.operation], check.backend
    operands = operands_of(check.operation, check.sample, check.dtype)
    results = call(backend, check.operation, to_primitives(backend, operands), check.sample.attributes)
    if operation.results == ("host",):
        for got, given in zip(results, flatten(operands), strict=True):
            assert isinstance(got, np.ndarray), f"the host gets {type(got).__name__}, not a NumPy array"
            assert got.dtype == given.dtype, f"the host gets {got.dtype} for {given.dtype}"
        return
    promised = promised_dtypes(operation, operands, check.sample.attributes, len(results))
    assert len(results) == len(promised), f"{len(results)} outputs, and the table has {len(promised)}"
    for number, (result, dtype) in enumerate(zip(results, promised, strict=True)):
        if dtype is not None:
            got = backend.dtype(result)
            assert got == dtype, f"output {number} is {got}, the table says {dtype}"


def shape_checks(backend: Any, operation: Operation) -> Iterator[Check]:
    """The shape of each output of every sample, in one dtype."""
    if operation.shape is None or operation.results == ("host",):
        return
    for index, sample in samples_of(operation.name):
        for dtype in dtypes_of(operation.name, sample, backend)[:1]:
            yield Check(operation.name, dtype, "shape", index, backend, check_shape, sample, "the shape rule")


def check_shape(check: Check) -> None:
    """Compare the shapes of the outputs with the shape rule; a shape is a tuple of ints."""
    operation, backend = OPERATIONS[check.operation], check.backend
    operands = operands_of(check.operation, check.sample, check.dtype)
    promised = promised_shapes(operation, operands, check.sample.attributes)
    results = call(backend, check.operation, to_primitives(backend, operands), check.sample.attributes)
    for result in results:
        assert isinstance(result.shape, tuple), f"a shape is a tuple, not {type(result.shape).__name__}"
    got = tuple(tuple(r.shape) for r in results)
    assert got == promised, f"shapes {got}, the rule says {promised}"
    if operation.results[0] != "dtype" or backend.dtype(results[0]).kind != "quantized":
        for result in results:
            seen = backend.to_numpy(result).shape
            assert seen == tuple(result.shape), f"shape {result.shape}, and on the host {seen}"
