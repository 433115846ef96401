"""Checks with large operands, with successive calls in the same memory, and with calls from several threads.

A backend may compute differently by the size of its operands: vectors have tails, tiles have edges, threads share the
work, and another algorithm may be better for many elements. The samples are small ones whose axes are stretched, one at
a time (:mod:`backburn.conformance.samples.derived.stretched`), when a check runs.
"""

from __future__ import annotations

import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from backburn.base.dtypes import DTYPES, as_dtype
from backburn.conformance.checks.behaviour import VIEWS, other_values, seen_by
from backburn.conformance.checks.check import Check
from backburn.conformance.checks.derivatives import STEP, direction, uneven, with_leaves
from backburn.conformance.checks.gradients import levels, tracked, weighted_sum
from backburn.conformance.checks.tolerances import GRADIENT, VALUE, compare, tolerance_factor
from backburn.conformance.checks.values import compare_call, compare_results, sensitivity, value_kind
from backburn.conformance.samples.calls import (
    POINTERS,
    as_float64,
    as_tuple,
    call,
    dtypes_of,
    flatten,
    host_arrays,
    leaves,
    map_operands,
    operands_of,
    same_bits,
    store_quantized,
    to_host,
    to_primitives,
)  # fmt: skip
from backburn.conformance.samples.derived.dtypes import in_dtype
from backburn.conformance.samples.derived.edge_values import has_edges
from backburn.conformance.samples.derived.stretched import ALL, Stretch, stretched, stretches
from backburn.conformance.samples.table import SAMPLES, Array, Sample, Stored
from backburn.ops.table import OPERATIONS, Operation

#: Factors of the sample's number and the length's number in the index of a check; the rest is the axis's number.
SAMPLE, LENGTH = 1000, 100
#: The number for the first length with special values at the end of the axis.
EDGES = 8
#: The most samples of an operation that are stretched, among those that differ in more than their values.
FORMS = 2
#: The int dtypes in which large samples of int64 are tried besides int64.
INTS = ("int32", "uint8")
#: Step functions with so many steps that a central difference sees a slope.
STEPS = frozenset({"floor_divide"})
#: Families that may reduce any axis, so that each axis is very long once.
ADDING = frozenset({"reduce", "scan", "linalg"})
THREADS, CALLS = 4, 2
#: The seconds after which Python switches threads; with fewer, switching alone takes several times as long.
SWITCH = 1e-4
#: Operations in which the order of products decides between NaN and infinities.
WITHOUT_EDGES = frozenset({"scatter_reduce", "prod", "prod_of_others"})


def large_checks(backend: Any, operation: Operation, everything: bool = False) -> Iterator[Check]:
    """Every check with large operands; with ``everything``, of all samples, in all dtypes, and larger."""
    name, main = operation.name, None
    for first, index, sample in _forms(operation, everything):
        dtypes = dtypes_of(name, sample, backend)
        if not dtypes:
            continue
        main = index if main is None else main
        for number in (0, ALL, 1, 2, 3) if first or everything else (0,):
            found = stretches(name, index, number) if everything else _in_short(operation, index, number, main)
            for stretch in found:
                place = SAMPLE * index + LENGTH * number + stretch.number
                chosen = _dtypes(name, sample, dtypes, backend, number, stretch.number, first, everything)
                for dtype in chosen:
                    yield Check(name, dtype, "large", place, backend, check_large, sample, f"large: {stretch}")
                if first and number == 0:
                    yield from _with_edges(backend, operation, index, sample, dtypes, stretch)
            if first and number == 0:  # the operands of the last stretch are still cached
                yield from _behaviour(backend, operation, index, sample, dtypes, index == main, everything)


def _in_short(operation: Operation, index: int, number: int, main: int) -> tuple[Stretch, ...]:
    """The stretches of a sample in a full run, with only a few beyond 65,536."""
    if number not in (0, ALL, 1):
        return ()
    if number == 1 and operation.family not in ADDING:
        alone = operation.elementwise and len(operation.operands) == 1
        other = index != main and operation.family != "index"  # whose kinds of indices may be computed differently
        if other or (alone and zlib.crc32(operation.name.encode()) % 2):
            return ()
        found = stretches(operation.name, index, number)
        return found[-1:] if operation.elementwise else found[:1]
    return stretches(operation.name, index, number)


def _forms(operation: Operation, everything: bool) -> Iterator[tuple[bool, int, Sample]]:
    """Samples that can be large: whether each is the first with its kinds of dtypes, its index, and the sample.

    Without ``everything`` they differ in ranks, options, or the presence of operands.
    """
    seen: set[Any] = set()
    kinds: set[str] = set()
    cases = [c for c in enumerate(SAMPLES[operation.name].cases) if value_kind(operation, c[1]) in PLAIN]
    cases.sort(key=lambda c: (PLAIN.index(value_kind(operation, c[1])), c[0]))
    for index, sample in cases:
        options = [(n, v) for n, v in sample.attributes.items() if isinstance(v, bool | str)]
        form = tuple(getattr(o, "ndim", type(o)) for o in sample.operands), tuple(options)
        kind = "".join(sorted({a.dtype.kind for a in host_arrays(sample)}))
        if not everything and kind in kinds and (form in seen or len(seen) == FORMS):
            continue
        if not stretches(operation.name, index, 0):
            continue
        yield kind not in kinds, index, sample
        seen.add(form)
        kinds.add(kind)


#: The kinds of samples that can be large, in order of preference.
PLAIN = ("value", "random", "broadcasting", "scalars")


def _dtypes(
    name: str, sample: Sample, dtypes: list[str], backend: Any, number: int, place: int, first: bool, everything: bool
) -> list[str]:
    """The dtypes in which one length of one axis is tried; they rotate from axis to axis if a check is expensive."""
    if leaves(sample):
        wide = [d for d in dtypes if as_dtype(d).bits >= 32] or dtypes
        if everything:
            return dtypes if number < 2 else wide[-1:] if number == 3 else wide
        if first and number == 0 and (place == 0 or OPERATIONS[name].family in ADDING):
            narrow = [d for d in dtypes if d not in wide]
            return [*wide, *narrow[place % 2 :][:1]]
        return wide if number == ALL else [wide[place % len(wide)]]
    if number or not first or dtypes != ["int64"]:
        return dtypes
    declared = [d for d in INTS if backend.capabilities.supports(DTYPES[d])]
    return [*dtypes, *(d for d in declared if in_dtype(OPERATIONS[name], sample, DTYPES[d]) is not None)]


def _with_edges(
    backend: Any, operation: Operation, index: int, sample: Sample, dtypes: list[str], stretch: Stretch
) -> Iterator[Check]:
    if (
        operation.name in WITHOUT_EDGES
        or not (has_edges(operation) or operation.family == "reduce")
        or not leaves(sample)
        or not any(a.ndim for a in leaves(sample))
    ):
        return
    place = SAMPLE * index + LENGTH * EDGES + stretch.number
    wide = [d for d in dtypes if as_dtype(d).bits >= 32] or dtypes
    for dtype in wide[stretch.number % len(wide) :][:1]:
        title = f"NaN, infinities and -0.0 at the end: {stretch}"
        yield Check(operation.name, dtype, "large", place, backend, check_large, sample, title)


def _behaviour(
    backend: Any, operation: Operation, index: int, sample: Sample, dtypes: list[str], main: bool, everything: bool
) -> Iterator[Check]:
    """Checks other than those of values, with the last stretched axis.

    ``main`` says whether this is the operation's first large sample: with others, successive calls and calls from
    threads run the same code.
    """
    name, donated = operation.name, sample.attributes.get("donate")
    for number in (0, 1) if everything else (0,):
        for stretch in stretches(name, index, number)[-1:]:
            place = SAMPLE * index + LENGTH * number + stretch.number
            make = partial(Check, name, dtypes[0], index=place, backend=backend, sample=sample)
            if any(a.size for a in host_arrays(sample)):
                if not donated:
                    title = "large operands that are strided, misaligned or read-only"
                    yield make(kind="large_layout", function=check_large_layout, title=title)
                if operation.results != ("host",) and (main or everything):
                    title = "successive calls with other values in the memory of earlier ones"
                    yield make(kind="memory", function=check_memory, title=title)
            if main or everything:
                yield make(kind="threads", function=check_threads, title="calls from several threads at once")
        smooth = operation.differentiable and operation.shape and sample.smooth and name not in STEPS
        if smooth and leaves(sample) and not donated:
            wide = [d for d in dtypes if as_dtype(d).bits >= 32][: None if everything else 1]
            found = stretches(name, index, number)
            if not everything:  # the first and the last; for element-wise functions of one operand the last
                alone = operation.elementwise and len(operation.operands) == 1
                found = found[-1:] if alone else found[:: max(1, len(found) - 1)]
            for stretch in found:
                place = SAMPLE * index + LENGTH * number + stretch.number
                title = f"central differences of the reference: {stretch}"
                for dtype in wide:
                    yield Check(name, dtype, "large_gradient", place, backend, check_large_gradient, sample, title)


def large_sample(check: Check, ties: bool = True) -> Sample:
    """The sample of a check, stretched by its index."""
    return _stretched_for(check, stretch_of(check), ties)


def stretch_of(check: Check) -> Stretch:
    """The stretch of a check, by its index."""
    index, number, place = check.index // SAMPLE, check.index % SAMPLE // LENGTH, check.index % LENGTH
    found = stretches(check.operation, index, 0 if number == EDGES else number)
    return next(s for s in found if s.number == place)


def _stretched_for(check: Check, stretch: Stretch, ties: bool = True) -> Sample:
    sample = stretched(check.operation, check.index // SAMPLE, stretch, _has_edges(check), ties)
    if check.dtype in INTS:
        return in_dtype(OPERATIONS[check.operation], sample, DTYPES[check.dtype]) or sample
    return sample


def _has_edges(check: Check) -> bool:
    return check.index % SAMPLE // LENGTH == EDGES


def check_large(check: Check) -> float:
    """Compare the values of a large call with the reference."""
    return compare_call(check, large_sample(check), _has_edges(check), sensitive=True)


def shortest_failing(check: Check) -> Sample:
    """The sample of a failing check with the shortest long axis that still fails, if shorter ones pass."""
    stretch = stretch_of(check)
    best = _stretched_for(check, stretch)
    slots = [slot for slot, _ in stretch.lengths]
    passing, failing = 1, stretch.lengths[0][1]
    if check.function is not check_large or len({n for _, n in stretch.lengths}) > 1:
        return best
    while failing - passing > 1:
        length = (passing + failing) // 2
        sample = _stretched_for(check, replace(stretch, lengths=tuple((slot, length) for slot in slots)))
        try:
            compare_call(check, sample, _has_edges(check), sensitive=True)
        except AssertionError:
            best, failing = sample, length
        except Exception:
            return best  # this length is unusable
        else:
            passing = length
    return best


# ---- memory ----


def _variants(check: Check, sample: Sample) -> list[list[Any]]:
    """The operands of a sample, and others: with all values rolled by one, and with some in the middle reversed."""
    operands = operands_of(check.operation, sample, check.dtype)
    named = list(zip(OPERATIONS[check.operation].operands, operands, strict=False))

    def changed(change: Callable[[Array], Array]) -> list[Any]:
        return [o if n in POINTERS else map_operands([o], change)[0] for n, o in named]

    others = [operands, changed(partial(other_values, check.operation))]
    if OPERATIONS[check.operation].family != "decompositions":  # the matrix might have no result
        others.append(changed(_middle_exchanged))
    return others


def _middle_exchanged(array: Array) -> Array:
    """An array that differs from the given one in few elements, none of them at an end."""
    result = array.copy()
    flat, middle = result.reshape(-1), array.size // 2
    if array.size > 8:
        flat[middle - 3 : middle + 3] = flat[middle - 3 : middle + 3][::-1].copy()
    return result


def check_memory(check: Check) -> float:
    """Results depend on values and not on addresses, and stay intact while later calls reuse memory."""
    k, name, sample = check.backend, check.operation, large_sample(check)
    kept: list[tuple[tuple[Any, ...], list[Array]]] = []
    worst = 0.0
    found: dict[int, list[Array]] = {}
    variants = _variants(check, sample)
    for turn in (0, 1, *(len(variants) - 1, 1) * 2):  # no later call has the first one's values
        results = call(k, name, to_primitives(k, variants[turn]), sample.attributes)  # the operands are freed here
        host = [a.copy() for a in to_host(k, name, results)]
        kept.append((results, host))
        if turn not in found:
            found[turn] = host
            if OPERATIONS[name].family == "decompositions" or any(isinstance(o, Stored) for o in sample.operands):
                continue
            worst = max(worst, compare_results(check, sample, variants[turn], host, sensitive=True))
        for got, before in zip(host, found[turn], strict=True):
            _assert_near(check, got, before, "the same call, later, gave another result")
        if len(kept) > 3:
            del kept[1]  # so that its memory is used again
    for results, before_all in kept:
        for now, before in zip(to_host(k, name, results), before_all, strict=True):
            assert same_bits(now, before), "a later call changed an earlier result"
    return worst


def _assert_near(check: Check, got: Array, expected: Array, message: str) -> None:
    if check.backend.capabilities.deterministic:
        assert same_bits(got, expected), message
        return
    try:
        compare(got, as_float64(expected), got.dtype.name if got.dtype.name in VALUE else "", 4.0)
    except AssertionError as error:
        raise AssertionError(f"{message}: {error}") from error


# ---- threads ----


def check_threads(check: Check) -> None:
    """Calls from several threads at once return the results of one thread."""
    k, name, sample = check.backend, check.operation, large_sample(check)
    variants = _variants(check, sample)[:2]

    def result(operands: list[Any]) -> list[Array]:
        return to_host(k, name, call(k, name, to_primitives(k, operands), sample.attributes))

    expected = [result(v) for v in variants]
    problems: list[BaseException] = []
    start = threading.Barrier(THREADS)

    def work(number: int) -> None:
        try:
            start.wait()
            for turn in range(CALLS):
                which = (number + turn) % len(variants)
                for got, before in zip(result(variants[which]), expected[which], strict=True):
                    _assert_near(check, got, before, f"in one of {THREADS} threads the result differed")
        except BaseException as error:
            problems.append(error)

    with _many_switches():
        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if problems:
        raise problems[0]


@contextmanager
def _many_switches() -> Iterator[None]:
    """Let Python switch threads many times during a call."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


# ---- layouts, and memory of the host ----


def check_large_layout(check: Check) -> None:
    """Large operands that are views, or come from misaligned or read-only host arrays, give the same result."""
    k, name, sample = check.backend, check.operation, large_sample(check)
    operands = operands_of(name, sample, check.dtype)
    plain = to_host(k, name, call(k, name, to_primitives(k, operands), sample.attributes))
    views: list[Callable[[Array], Any]] = [partial(seen_by, k, view) for view in VIEWS]
    for make in views + _foreign(k):
        seen = store_quantized(k, map_operands(operands, make))
        other = to_host(k, name, call(k, name, seen, sample.attributes))
        for number, (got, expected) in enumerate(zip(other, plain, strict=True)):
            dtype = got.dtype.name if got.dtype.name in VALUE else ""
            slack = partial(sensitivity, SAMPLES[name], sample, operands, check.dtype, number)
            compare(got, as_float64(expected), dtype, 4.0, slack=slack)  # the order of sums may differ
        for old, now in zip(flatten(operands), flatten(seen), strict=True):
            if isinstance(old, np.ndarray):
                assert same_bits(np.asarray(k.to_numpy(now)), old), "an input was changed by the call"


def _foreign(k: Any) -> list[Callable[[Array], Any]]:
    """Ways to pass a host array: by ``from_numpy``, and directly if the backend's tensors are NumPy arrays."""
    ways: list[Callable[[Array], Any]] = [lambda a: k.from_numpy(askew(a)), lambda a: k.from_numpy(frozen(a))]
    if type(k.from_numpy(np.zeros(2, k.float_dtype.dtype))) is np.ndarray:
        ways += [askew, frozen]
    return ways


def askew(array: Array) -> Array:
    """A misaligned copy: it begins one byte after the start of its memory."""
    raw = np.zeros(array.nbytes + 1, np.uint8)
    result = raw[1:].view(array.dtype).reshape(array.shape) if array.size else array.copy()
    result[...] = array
    return result


def frozen(array: Array) -> Array:
    """A read-only copy."""
    result = array.copy()
    result.flags.writeable = False
    return result


# ---- gradients ----


def check_large_gradient(check: Check) -> float:
    """The gradient of a large call along a direction equals differences of the float64 reference."""
    name, sample, samples = check.operation, large_sample(check, ties=False), SAMPLES[check.operation]
    inner, outer = levels(check.backend)
    operands = operands_of(name, sample, check.dtype)
    inputs = tracked(outer, operands)
    outputs = call(outer, name, inputs, sample.attributes)
    kinds = [outer.dtype(r).kind for r in outputs]
    floats = [x for x, a in zip(flatten(inputs), flatten(operands), strict=True) if is_float_leaf(a)]
    at = [as_float64(a) for a in flatten(operands) if is_float_leaf(a)]
    along = [direction(check.generator, a) for a in at]

    def reference(steps: float) -> list[Array]:
        changed = with_leaves(sample, [a + steps * STEP * d for a, d in zip(at, along, strict=True)], lambda a: a)
        exact = map_operands(changed, lambda s: s.values, Stored)
        with np.errstate(all="ignore"):
            found = as_tuple(samples.reference(*exact, **sample.attributes))
        return [np.asarray(o, np.float64) for o, kind in zip(found, kinds, strict=True) if kind == "float"]

    weights, terms = [], []
    for above, at_point, lower, below in zip(*(reference(steps) for steps in (1, 0, -0.5, -1)), strict=True):
        slope, rising, falling = (above - below) / (2 * STEP), (above - at_point) / STEP, 2 * (at_point - lower) / STEP
        bent = np.maximum(np.abs(slope - rising), np.abs(slope - falling))
        smooth = bent <= 1e-4 * np.maximum(1, np.abs(slope))  # neither a jump nor a kink lies between
        weights.append(np.where(smooth, uneven(slope.shape), 0.0))
        terms.append(np.where(smooth, weights[-1] * slope, 0.0))
    expected, got = float(sum(t.sum() for t in terms)), 0.0
    scalar = weighted_sum(outer, outputs, weights)
    if scalar is not None:
        gradients = outer.backward(scalar)
        for x, d in zip(floats, along, strict=True):
            g = outer.grad(x, gradients)
            if g is not None:
                assert tuple(g.shape) == tuple(x.shape), f"the gradient of shape {tuple(x.shape)} is {tuple(g.shape)}"
                got += float((as_float64(np.asarray(inner.to_numpy(g))) * d).sum())
    # Rounding errors of elements add up like a random walk; a wrong element is off by about a term.
    size = max(1.0, *(float(np.sqrt((t**2).sum())) for t in terms))
    factor = samples.gradient_tolerance * tolerance_factor(check.backend, name, check.dtype)
    error = abs(got - expected) / (10 * GRADIENT[check.dtype] * factor * size)
    assert error <= 1, f"along a direction, the gradient is {got:.9g} and central differences {expected:.9g}"
    return error


def is_float_leaf(operand: Any) -> bool:
    """Whether a host operand is a float array, in any dtype."""
    return isinstance(operand, np.ndarray) and as_dtype(operand.dtype).is_floating
