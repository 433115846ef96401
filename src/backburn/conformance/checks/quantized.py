"""Checks of quantized tensors, for the schemes of every storage that a backend declares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import cycle, product
from typing import Any

import numpy as np

from backburn.base.dtypes import QuantizedDType, as_dtype, float32, float64, qint8
from backburn.base.errors import ArgumentError, DTypeError, ShapeError
from backburn.conformance.checks.check import Check
from backburn.conformance.samples.calls import can_store, is_float
from backburn.conformance.samples.table import SAMPLES, Array, Sample, real, stored
from backburn.ops.bodies.float8 import FORMATS
from backburn.ops.bodies.quantized import scale_shape
from backburn.ops.table import OPERATIONS, Operation

_STORAGES = (
    "int8_symmetric", "int8_affine", "uint8_affine", "int4_symmetric", "int4_affine", "float8_e4m3fn_symmetric",
    "float8_e5m2_symmetric", "int2_symmetric", "int2_affine", "int4_full",
)  # fmt: skip
_PARTS = product(_STORAGES, ("tensor", "channel0", "channel1", "block3", "block2x3"))
_SCALES = cycle(("float32", "float16", "bfloat16"))
#: Every combination of storage, mode and granularity, with the dtypes of steps in rotation.
SCHEMES = [f"q{a}_{b}_{scale}" for (a, b), scale in zip(_PARTS, _SCALES, strict=False)]


def quantized_checks(backend: Any) -> Iterator[Check]:
    """Checks of rounding within half a step, of moving values, and of refused values, for every scheme."""
    schemes = [as_dtype(name) for name in SCHEMES]
    declared = [s for s in schemes if isinstance(s, QuantizedDType) and can_store(backend, s)]
    if qint8 not in backend.capabilities.dtypes and not declared:
        return
    index = 0
    for scheme in declared or [qint8]:
        for name, function in CHECKS:
            yield Check(name, scheme.name, "quantized", index, backend, function)
            index += 1
        for name, operation in OPERATIONS.items():
            number, sample = moving(operation)
            if sample is not None and (scheme is qint8 or len(sample.operands[0].shape) > 1):
                title = "a quantized tensor moves unchanged, or is refused"
                yield Check(name, scheme.name, "quantized", number, backend, moves_quantized, sample, title)


def moving(operation: Operation) -> tuple[int, Sample | None]:
    """The first sample of an operation that can move a quantized operand, with its index; None if there is none."""
    if "Q" in operation.kinds and operation.results == ("same",) and operation.name in SAMPLES:
        for index, sample in enumerate(SAMPLES[operation.name].cases):
            first, *others = sample.operands or (None,)
            floats = [is_float(o) for o in (first, *others)]
            if floats[0] and first is not None and np.size(first) > 1 and not any(floats[1:]):
                return index, sample
    return 0, None


def scheme_of(check: Check) -> QuantizedDType:
    """The scheme under test, which is the check's dtype."""
    scheme = as_dtype(check.dtype)
    assert isinstance(scheme, QuantizedDType)
    return scheme


def half_steps(values: Array, scale: Array, scheme: QuantizedDType) -> Array:
    """Half the distance between neighbours in the scheme at each value; ``scale`` broadcasts to ``values``."""
    if not scheme.is_float:
        return np.broadcast_to(scale / 2, values.shape)
    mantissa, bias = FORMATS[scheme.storage.name]
    _, exponent = np.frexp(np.abs(values / scale))
    return np.asarray(scale * 2.0 ** (np.maximum(exponent - 1, 1 - bias) - mantissa) / 2)


def broadcast_scale(scale: Array, shape: tuple[int, ...], scheme: QuantizedDType) -> Array:
    """Steps in float64, in a shape that broadcasts to ``shape``."""
    steps = scale.astype(np.float64)
    if scheme.axis is not None:
        return steps.reshape([n if a == scheme.axis else 1 for a, n in enumerate(shape)])
    for axis, size in enumerate(scheme.block_shape, -len(scheme.block_shape)):
        steps = np.repeat(steps, size, axis)
    return steps[tuple(map(slice, shape))] if scheme.block_shape else steps


#: Arrays to quantize: values of either sign, one element, no elements, equal values, zeros, and some zeros.
GIVEN: tuple[Array, ...] = (
    real(3, 7), real(3, 7, low=0.5, high=3.0), real(3, 7, low=-900.0, high=-20.0), real(1, 1), real(0, 3), real(3, 0),
    np.full((2, 5), -0.75), np.zeros((2, 5)), np.concatenate([np.zeros((2, 4)), real(2, 4)], 1),
)  # fmt: skip


def quantizing_rounds(check: Check) -> float:
    """``quantize`` errs by at most half a step, and its dtype is the scheme."""
    k, scheme, worst = check.backend, scheme_of(check), 0.0
    for given in GIVEN:
        x = given.astype(np.float32)
        q = k.quantize(k.from_numpy(x), scheme)
        assert k.dtype(q) == scheme, f"quantize returned {k.dtype(q)}"
        assert tuple(q.shape) == x.shape, f"quantize returned shape {q.shape}"
        _, scale, zero = k.quantized_parts(q)
        assert scale.shape == scale_shape(x.shape, scheme), f"the steps have the shape {scale.shape}"
        assert scale.dtype.name == scheme.scale.name, f"the steps are {scale.dtype}"
        assert (zero is not None) == scheme.has_zero, "zero points are missing, or unexpected"
        got = k.to_numpy(k.dequantize(q, float32)).astype(np.float64)
        assert got.dtype.kind == "f"
        error = np.abs(got - x) / (half_steps(got, broadcast_scale(scale, x.shape, scheme), scheme) * (1 + 1e-5))
        if x.size:
            assert error.max() <= 1, f"an element of {x!r} is {error.max() / 2:.3g} steps off"
            worst = max(worst, float(error.max()))
        assert np.array_equal(got[x == 0], x[x == 0]), "a zero became another number"
    return worst


def quantizing_reaches(check: Check) -> None:
    """Values that a scheme holds exactly come back exactly, also on the host, in each float dtype."""
    k, scheme = check.backend, scheme_of(check)
    for shape in ((3, 7), (1, 1), (0, 3), (2, 0)):
        host = stored(scheme.name, *shape).values
        q = k.quantize(k.from_numpy(host.astype(np.float32)), scheme)
        np.testing.assert_array_equal(k.to_numpy(k.dequantize(q, float32)), host.astype(np.float32), strict=True)
        np.testing.assert_array_equal(k.to_numpy(q), host.astype(np.float32), strict=True)
        for dtype in (float32, float64):
            if k.capabilities.supports(dtype):
                assert k.dtype(k.dequantize(q, dtype)) == dtype, f"not {dtype}"


def quantizing_refuses(check: Check) -> None:
    """``quantize`` raises for NaN and infinities, which have no quantized value."""
    k, scheme = check.backend, scheme_of(check)
    for bad in (np.nan, np.inf, -np.inf):
        x = real(3, 7).astype(np.float32)
        x[1, 5] = bad
        try:
            k.to_numpy(k.quantize(k.from_numpy(x), scheme))
        except Exception:
            continue
        raise AssertionError(f"quantize returned for {bad}")


def quantizing_between(check: Check) -> None:
    """A given range determines the steps; values beyond its ends become the ends."""
    k, scheme, x = check.backend, scheme_of(check), real(3, 7).astype(np.float32)
    shape = scale_shape(x.shape, scheme)
    most = (1.0 + 0.1 * np.arange(math.prod(shape))).reshape(shape).astype(np.float32)
    q = k.quantize_between(k.from_numpy(x), k.from_numpy(-0.5 * most), k.from_numpy(most), scheme)
    _, scale, _ = k.quantized_parts(q)
    got, steps = k.to_numpy(k.dequantize(q, float32)).astype(np.float64), broadcast_scale(scale, x.shape, scheme)
    half, high = half_steps(got, steps, scheme), broadcast_scale(most, x.shape, scheme)
    low = -0.5 * high if scheme.has_zero else high * scheme.limits[0] / scheme.limits[1]
    inside = (low <= x) & (x <= high)
    assert (np.abs(got - x) <= half * (1 + 1e-5))[inside].all(), "a value in the range is more than half a step off"
    beyond = np.abs(got - np.clip(x, low, high)) <= 2 * half + 0.02  # a stored step may reach a little further
    assert beyond.all(), "a value beyond the range did not become its end"


def fakes_round(check: Check) -> None:
    """``fake_quantize`` returns the dequantized values of ``quantize``, also with a range."""
    k, scheme = check.backend, scheme_of(check)
    for given in GIVEN:
        x = k.from_numpy(given.astype(np.float32))
        expected = k.to_numpy(k.dequantize(k.quantize(x, scheme), float32))
        np.testing.assert_allclose(k.to_numpy(k.fake_quantize(x, scheme)), expected, rtol=1e-5)
        ends = [k.from_numpy(np.full(scale_shape(given.shape, scheme), end, np.float32)) for end in (-0.5, 1.0)]
        expected = k.to_numpy(k.dequantize(k.quantize_between(x, *ends, scheme), float32))
        np.testing.assert_allclose(k.to_numpy(k.fake_quantize_between(x, *ends, scheme)), expected, rtol=1e-5)


def joining_keeps_values(check: Check) -> None:
    """Tensors with different steps are joined without changing values, or refused."""
    k, scheme, x = check.backend, scheme_of(check), real(3, 6).astype(np.float32)
    parts = [k.quantize(k.from_numpy(given), scheme) for given in (x, 9 * x)]
    for axis in (0, 1):
        try:
            result = k.concat(parts, axis)
            joined = k.to_numpy(result)
        except (ShapeError, ArgumentError, DTypeError):
            continue
        assert k.dtype(result) == scheme, f"concat returned {k.dtype(result)}"
        np.testing.assert_array_equal(joined, np.concatenate([k.to_numpy(p) for p in parts], axis))


def parts_make_it_again(check: Check) -> None:
    """A quantized tensor's parts on the host are packed, share no memory with it, and rebuild an equal tensor."""
    k, scheme = check.backend, scheme_of(check)
    q = k.quantize(k.from_numpy(real(3, 7).astype(np.float32)), scheme)
    values, scale, zero = k.quantized_parts(q)
    assert values.nbytes == 3 * scheme.bytes_for(7), f"values take {values.nbytes} bytes"
    again = k.quantized_from_parts(values, scale, zero, scheme, (3, 7))
    assert k.dtype(again) == scheme
    expected = k.to_numpy(q)
    np.testing.assert_array_equal(k.to_numpy(again), expected)
    np.copyto(values, 0)
    np.copyto(scale, 0)
    np.testing.assert_array_equal(k.to_numpy(again), expected)
    np.testing.assert_array_equal(k.to_numpy(q), expected)


def moves_quantized(check: Check) -> None:
    """Moving a quantized tensor keeps its values, or is refused if values would be separated from their steps."""
    k, sample, scheme = check.backend, check.sample, scheme_of(check)
    q = k.quantize(k.from_numpy(sample.operands[0].astype(np.float32)), scheme)
    others = [k.from_numpy(o) if isinstance(o, np.ndarray) else o for o in sample.operands[1:]]
    try:
        moved = getattr(k, check.operation)(q, *others, **sample.attributes)
        on_host = k.to_numpy(moved)
    except (ShapeError, ArgumentError, DTypeError):
        assert scheme.granularity != "tensor", "refused, though one step belongs to all values"
        return
    if scheme.granularity == "tensor":
        assert k.dtype(moved) == scheme, f"{check.operation} returned {k.dtype(moved)} for a quantized tensor"
    assert k.dtype(moved).kind == "quantized", f"{check.operation} returned {k.dtype(moved)} for a quantized tensor"
    expected = SAMPLES[check.operation].reference(k.to_numpy(q), *sample.operands[1:], **sample.attributes)
    np.testing.assert_array_equal(on_host, expected)


CHECKS: tuple[tuple[str, Callable[[Check], Any]], ...] = (
    ("quantize", quantizing_rounds),
    ("dequantize", quantizing_reaches),
    ("quantize", quantizing_refuses),
    ("quantize_between", quantizing_between),
    ("fake_quantize", fakes_round),
    ("concat", joining_keeps_values),
    ("to_numpy", parts_make_it_again),
)
