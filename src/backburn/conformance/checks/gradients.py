"""Checks of each operation's gradients, on the tested backend if it differentiates, else on ``Autodiff`` around it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from backburn.autodiff import Autodiff
from backburn.backend.contract import is_autodiff
from backburn.base.dtypes import as_dtype
from backburn.conformance.checks.behaviour import shared_samples
from backburn.conformance.checks.check import Check
from backburn.conformance.checks.derivatives import STEP, check_derivative, direction, paired, uneven, with_leaves
from backburn.conformance.checks.tolerances import GRADIENT, SECOND_GRADIENT, compare, tolerance_factor
from backburn.conformance.samples.calls import (
    as_float64,
    as_tuple,
    call,
    complex_dtypes,
    dtypes_of,
    flatten,
    host_arrays,
    is_float,
    is_inexact,
    leaves,
    map_operands,
    operands_of,
    store_quantized,
    to_host,
    to_primitives,
)
from backburn.conformance.samples.derived.complex_operands import complex_samples
from backburn.conformance.samples.table import SAMPLES, Array, Sample, Stored
from backburn.ops.table import OPERATIONS, Operation

#: The kinds of dtypes that have gradients.
_HAVE = ("float", "complex")
#: Indices of the checks of single outputs begin here.
OUTPUTS = 100


def levels(backend: Any) -> tuple[Any, Any]:
    """The inner and the autodiff backend: ``Autodiff`` around ``backend`` unless ``backend`` differentiates itself."""
    return (backend.inner_backend, backend) if is_autodiff(backend) else (backend, Autodiff(backend))


def gradient_checks(backend: Any, operation: Operation) -> Iterator[Check]:
    """Every check of an operation's gradients."""
    name = operation.name
    if not operation.differentiable:
        return
    twice, empty = 0, False
    for index, sample in enumerate(SAMPLES[name].cases):
        dtypes = dtypes_of(name, sample, backend) if leaves(sample) else []
        sized = any(a.size for a in leaves(sample))
        if sample.smooth >= 1 and not sized and dtypes and not empty:
            empty = True
            title = "without elements, of the shape of its input"
            yield Check(name, dtypes[0], "gradient", index, backend, check_gradient, sample, title)
        for dtype in dtypes if sample.smooth >= 1 and sized else []:
            if as_dtype(dtype).bits == 16 and not _moderate(sample):
                continue
            yield Check(
                name, dtype, "gradient", index, backend, check_gradient, sample, "central differences of the reference"
            )
        if sample.gradients is not None and dtypes:
            title = sample.note or "the gradient by convention"
            dtype = "float64" if "float64" in dtypes else dtypes[0]
            yield Check(name, dtype, "convention", index, backend, check_convention, sample, title)
        if sample.smooth >= 2 and sized and "float64" in dtypes and twice < 2:
            twice += 1
            title = "a central difference of the first gradient"
            yield Check(name, "float64", "second_gradient", index, backend, check_second_gradient, sample, title)
    yield from _recording_checks(backend, operation)


def complex_gradient_checks(backend: Any, operation: Operation) -> Iterator[Check]:
    """The checks of gradients by complex operands, of first and second order."""
    name, twice = operation.name, 0
    for index, sample in complex_samples(name) if operation.differentiable else ():
        if sample.smooth < 1 or not any(a.size for a in host_arrays(sample) if is_inexact(a)):
            continue
        for dtype in complex_dtypes(backend):
            title = "central differences of the reference, over both parts"
            yield Check(name, dtype, "complex_gradient", index, backend, check_gradient, sample, title)
            if sample.smooth >= 2 and dtype == "complex128" and twice < 2:
                twice += 1
                kind, title = "complex_second_gradient", "a central difference of the first gradient, over both parts"
                yield Check(name, dtype, kind, index, backend, check_second_gradient, sample, title)


def _moderate(sample: Sample) -> bool:
    """Whether 16 bits suffice for the gradients of a sample: few elements of moderate size."""
    return all(a.size <= 64 and np.abs(a).max(initial=0.0) <= 100 for a in leaves(sample))


def _recording_checks(backend: Any, operation: Operation) -> Iterator[Check]:
    name = operation.name
    for index, sample, dtype in shared_samples(backend, operation):
        if not leaves(sample):
            continue
        yield Check(name, dtype, "recorded", index, backend, check_recorded, sample, "recording changes no result")
        yield Check(name, dtype, "untracked", index, backend, check_untracked, sample, "nothing is recorded unasked")
        if sample.smooth < 1:
            continue
        yield Check(name, dtype, "fan_out", index, backend, check_fan_out, sample, "gradients of two uses add up")
        yield Check(
            name, dtype, "release", index, backend, check_release, sample, "the graph goes with its last tensor"
        )
        if len(operation.results) > 1:
            title = "gradients of single outputs add up"
            yield Check(name, dtype, "fan_out", OUTPUTS + index, backend, check_outputs, sample, title)
        shapes = {a.shape for a in leaves(sample)}
        if len(shapes) == 1 and len(leaves(sample)) > 1 and all(map(is_float, sample.operands[:2])):
            yield Check(name, dtype, "reuse", index, backend, check_reuse, sample, "one tensor as two operands")


def tracked(outer: Any, operands: list[Any]) -> list[Any]:
    """Host operands as primitives of an autodiff backend; floats become leaves that require a gradient."""

    def lift(array: Array) -> Any:
        x = outer.from_numpy(array)
        return outer.set_require_grad(x, True) if as_dtype(array.dtype).has_gradient else x

    return store_quantized(outer, map_operands(operands, lift))


def _float_leaves(outer: Any, operands: list[Any]) -> list[Any]:
    """The float primitives among operands."""
    return [x for x in flatten(operands) if hasattr(x, "shape") and outer.dtype(x).has_gradient]


def _operands(check: Check) -> tuple[Any, list[Any]]:
    """The autodiff backend, and the operands of a check as host arrays."""
    return levels(check.backend)[1], operands_of(check.operation, check.sample, check.dtype)


def _called(check: Check, outer: Any, inputs: list[Any]) -> tuple[Any, ...]:
    """The results of the call that is checked."""
    return call(outer, check.operation, inputs, check.sample.attributes)


def _total(check: Check, outer: Any, inputs: list[Any]) -> Any:
    """The :func:`weighted_sum` of the results of the call that is checked."""
    return weighted_sum(outer, _called(check, outer, inputs))


def weighted_sum(outer: Any, results: tuple[Any, ...], weights: list[Array] | None = None) -> Any:
    """``sum(w * output)`` over the float outputs on the graph, or None if none is.

    ``weights`` are those of each float output, by default :func:`uneven`.
    """
    inner, total = outer.inner_backend, None
    floats = [r for r in results if outer.dtype(r).has_gradient]
    chosen: Sequence[Array | None] = weights or [None] * len(floats)
    for result, given in zip(floats, chosen, strict=True):
        if not outer.is_tracked(result):
            continue
        shape = tuple(result.shape)
        host = (uneven(shape, outer.dtype(result).kind) if given is None else given).astype(outer.dtype(result).dtype)
        term = paired(outer, result, outer.from_inner(inner.from_numpy(host)))
        if total is not None and outer.dtype(total) != outer.dtype(term):
            term = outer.astype(term, outer.dtype(total))
        total = term if total is None else outer.add(total, term)
    return total


def gradients_of(outer: Any, scalar: Any, tensors: list[Any]) -> list[Array | None]:
    """The gradients of a scalar on the host; None for tensors without one."""
    inner = outer.inner_backend
    gradients = outer.backward(scalar)
    found = [outer.grad(x, gradients) for x in tensors]
    return [None if g is None else np.asarray(inner.to_numpy(g)) for g in found]


def check_gradient(check: Check) -> float:
    """The gradient along a direction equals differences of the float64 reference, in the operand's shape and dtype."""
    name, sample, samples = check.operation, check.sample, SAMPLES[check.operation]
    inner, outer = levels(check.backend)
    operands = operands_of(name, sample, check.dtype)
    inputs = tracked(outer, operands)
    results = _called(check, outer, inputs)
    kinds = [outer.dtype(r).kind for r in results]
    scalar = weighted_sum(outer, results)
    floats = _float_leaves(outer, inputs)
    at = [as_float64(a) for a in flatten(operands) if isinstance(a, np.ndarray) and as_dtype(a.dtype).has_gradient]
    found: list[Array | None] = [None] * len(floats)
    if scalar is not None:
        gradients = outer.backward(scalar)
        for place, x in enumerate(floats):
            g = outer.grad(x, gradients)
            if g is not None:
                own = outer.dtype(x)
                assert inner.dtype(g) == own, f"the gradient of an operand in {own} is {inner.dtype(g)}"
                assert tuple(g.shape) == tuple(x.shape), f"the gradient of shape {tuple(x.shape)} is {tuple(g.shape)}"
                found[place] = as_float64(np.asarray(inner.to_numpy(g)))
    along = [direction(check.generator, a) for a in at]
    got = sum(float((g * d).sum().real) for g, d in zip(found, along, strict=True) if g is not None)

    def reference(steps: float) -> float:
        moved = with_leaves(sample, [a + steps * STEP * d for a, d in zip(at, along, strict=True)], lambda a: a)
        with np.errstate(all="ignore"):
            exact = map_operands(moved, lambda s: s.values, Stored)
            outputs = as_tuple(samples.reference(*exact, **sample.attributes))
        weighted = [uneven(np.shape(o), kind) * o for o, kind in zip(outputs, kinds, strict=True) if kind in _HAVE]
        return float(sum(np.sum(w).real for w in weighted))

    above, below = reference(1), reference(-1)
    expected = (above - below) / (2 * STEP)
    if as_dtype(check.dtype).bits == 16:  # rounding may move an operand to a point without a derivative
        half = (reference(0.5) - reference(-0.5)) / STEP
        if not abs(half - expected) <= 1e-4 * max(1.0, abs(expected)):
            return 0.0
    size = max(1.0, abs(expected), abs(above), *(float(np.abs(g).max(initial=0.0)) for g in found if g is not None))
    factor = samples.gradient_tolerance * tolerance_factor(check.backend, name, check.dtype)
    error = abs(got - expected) / (GRADIENT[check.dtype] * factor * size)
    assert error <= 1, f"along a direction, the gradient is {got:.9g} and central differences {expected:.9g}"
    return error


def check_convention(check: Check) -> float:
    """The documented gradient at points with no or several derivatives, for a cotangent of ones."""
    assert check.sample.gradients is not None
    outer, operands = _operands(check)
    inputs = tracked(outer, operands)
    result = _called(check, outer, inputs)[0]
    plain = [x for x in inputs if not isinstance(x, list)]
    asked = [(x, e) for x, e in zip(plain, check.sample.gradients, strict=True) if e is not None]
    worst = 0.0
    for got, (_, expected) in zip(gradients_of(outer, result, [x for x, _ in asked]), asked, strict=True):
        assert got is not None, "no gradient arrived"
        worst = max(worst, compare(got, np.asarray(expected, np.float64), check.dtype, 100.0))
    return worst


def check_second_gradient(check: Check) -> float:
    """The second derivative along two directions, through ``Autodiff`` around an autodiff backend."""
    inner, outer = levels(check.backend)
    factor = SAMPLES[check.operation].gradient_tolerance * tolerance_factor(check.backend, check.operation, check.dtype)
    tolerance = SECOND_GRADIENT / 10 * factor
    return check_derivative(check.operation, check.sample, inner, 2, tolerance, outer, check.seed)


def check_recorded(check: Check) -> None:
    """With operands on the graph, results are those of the inner backend."""
    name, sample = check.operation, check.sample
    inner, outer = levels(check.backend)
    operands = operands_of(name, sample, check.dtype)
    plain = to_host(inner, name, call(inner, name, to_primitives(inner, operands), sample.attributes))
    results = call(outer, name, tracked(outer, operands), sample.attributes)
    for got, expected in zip(to_host(outer, name, results), plain, strict=True):
        compare(got, as_float64(expected), check.dtype if got.dtype.kind not in "iub" else "", 4.0)
    if sample.smooth >= 1 and OPERATIONS[name].results[0] == "same" and any(a.size for a in leaves(sample)):
        assert outer.is_tracked(results[0]), "the result is not on the graph, though an operand is"


def check_untracked(check: Check) -> None:
    """Untracked operands give untracked results, and get no gradient beside a tracked operand."""
    outer, operands = _operands(check)
    for result in _called(check, outer, to_primitives(outer, operands)):
        if outer.dtype(result).has_gradient:
            assert not outer.is_tracked(result), "the result is on the graph, and no operand is"
    if check.sample.smooth < 1:
        return
    every = tracked(outer, operands)
    total = _total(check, outer, every)
    if total is None:
        return
    names = OPERATIONS[check.operation].operands
    floats = [p for p, o in enumerate(operands) if isinstance(o, np.ndarray) and as_dtype(o.dtype).has_gradient]
    reference = gradients_of(outer, total, [every[place] for place in floats])
    for place, expected in zip(floats, reference, strict=True):
        inputs = to_primitives(outer, operands)
        inputs[place] = every[place]
        others = [x for x in _float_leaves(outer, inputs) if x is not inputs[place]]
        scalar = _total(check, outer, inputs)
        if scalar is None:
            assert expected is None, f"with {names[place]} alone on the graph, the result is not"
            continue
        got, *rest = gradients_of(outer, scalar, [inputs[place], *others])
        assert all(g is None for g in rest), "an untracked operand got a gradient"
        _agree(got, expected, check.dtype, 1.0, "beside untracked operands")


def _agree(got: Array | None, expected: Array | None, dtype: str, times: float, where: str) -> None:
    if expected is None or got is None:
        assert (got is None) == (expected is None), f"the gradient {where} is {got}, and {expected} otherwise"
        return
    try:
        compare(got, times * as_float64(expected), dtype, 20.0)
    except AssertionError as error:
        raise AssertionError(f"the gradient {where}: {error}") from error


def check_fan_out(check: Check) -> None:
    """A leaf that is used in two calls, whose results are added, gets twice the gradient."""
    outer, operands = _operands(check)
    once = tracked(outer, operands)
    scalar = _total(check, outer, once)
    if scalar is None:
        return
    single = gradients_of(outer, scalar, _float_leaves(outer, once))
    inputs = tracked(outer, operands)
    first, second = (_total(check, outer, inputs) for _ in range(2))
    double = gradients_of(outer, outer.add(first, second), _float_leaves(outer, inputs))
    for got, expected in zip(double, single, strict=True):
        _agree(got, expected, check.dtype, 2.0, "of two uses")


def check_outputs(check: Check) -> None:
    """The gradients of single outputs add up to the gradient of all outputs."""
    outer, operands = _operands(check)
    inputs = tracked(outer, operands)
    tensors = _float_leaves(outer, inputs)
    results = _called(check, outer, inputs)
    scalar = weighted_sum(outer, results)
    together = gradients_of(outer, scalar, tensors) if scalar is not None else [None] * len(tensors)
    sums: list[Any] = [None] * len(tensors)
    for number in range(len(results)):
        scalar = weighted_sum(outer, _called(check, outer, inputs)[number : number + 1])
        for place, g in enumerate(gradients_of(outer, scalar, tensors) if scalar is not None else ()):
            if g is not None:
                sums[place] = as_float64(g) if sums[place] is None else sums[place] + as_float64(g)
    for got, expected in zip(sums, together, strict=True):
        _agree(got, expected, check.dtype, 1.0, "of one output after the other")


def check_reuse(check: Check) -> None:
    """One tensor as the first two operands gets the sum of the gradients that two equal tensors get."""
    outer, operands = _operands(check)
    operands[1] = operands[0]
    two = tracked(outer, operands)
    scalar = _total(check, outer, two)
    if scalar is None:
        return
    pair = gradients_of(outer, scalar, two[:2])
    one = tracked(outer, operands)
    one[1] = one[0]
    together = gradients_of(outer, _total(check, outer, one), one[:1])[0]
    parts = [as_float64(g) for g in pair if g is not None]
    _agree(together, sum(parts[1:], parts[0]) if parts else None, check.dtype, 1.0, "of one tensor as two operands")


def check_release(check: Check) -> None:
    """The graph is freed with the last tensor on it, with and without a backward, and without the garbage collector."""
    outer, operands = _operands(check)
    inputs = tracked(outer, operands)
    enabled = gc.isenabled()
    gc.disable()
    try:
        for backward in (False, True):
            results = _called(check, outer, inputs)
            own = set(map(id, flatten(inputs)))  # an operation may return its operand
            watched = [w for r in results if id(r) not in own and (w := watch(r)) is not None]
            gradients = None
            if backward:
                scalar = weighted_sum(outer, results)
                gradients = outer.backward(scalar) if scalar is not None else None
                del scalar
            del results
            when = "after backward" if backward else "without backward"
            assert all(w() is None for w in watched), f"the graph is still held {when}, though its tensors are gone"
            del gradients
    finally:
        if enabled:
            gc.enable()


def watch(tensor: Any) -> weakref.ref[Any] | None:
    """A weak reference to a tensor's node, or to the tensor if it has no ``node``."""
    node = getattr(tensor, "node", None)
    try:
        return weakref.ref(node if node is not None else tensor)
    except TypeError:
        return None
