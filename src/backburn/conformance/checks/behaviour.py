"""Checks of an operation besides its values: layouts, mutation, aliasing, determinism, errors, signatures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from backburn.base.errors import BackburnError
from backburn.conformance.checks.check import NO_DTYPE, Check
from backburn.conformance.checks.tolerances import VALUE, compare
from backburn.conformance.checks.values import value_kind
from backburn.conformance.samples.calls import (
    PLACES,
    POINTERS,
    as_float64,
    call,
    dtypes_of,
    flatten,
    host_arrays,
    indexed_length,
    map_operands,
    operands_of,
    promised_shapes,
    run_sample,
    same_bits,
    store_quantized,
    to_host,
    to_primitives,
)  # fmt: skip
from backburn.conformance.samples.table import SAMPLES, Array, Sample, case
from backburn.ops.table import OPERATIONS, Operation

#: The most kinds of samples per operation that the checks of behaviour use.
MAX_KINDS = 3
#: The most elements of the sample with the most operands, which these checks use too.
MAX_ELEMENTS = 100


def shared_samples(backend: Any, operation: Operation) -> Iterator[tuple[int, Sample, str]]:
    """The first samples of distinct kinds of an operation, each in the first dtype that the backend has.

    Then the sample with the most tensors (and among those, the most dimensions), if it has more than these.
    """
    kinds: set[str] = set()
    most = (0, 0)
    cases = list(enumerate(SAMPLES[operation.name].cases))
    plain = [c for c in cases if value_kind(operation, c[1]) in ("value", "random")]
    for index, sample in [*plain[:1], *cases]:
        kind = value_kind(operation, sample)
        kind = "value" if kind == "random" else kind
        if kind in kinds or len(kinds) == MAX_KINDS or kind in ("zero_size", "special"):
            continue
        for dtype in dtypes_of(operation.name, sample, backend)[:1]:
            kinds.add(kind)
            most = max(most, _fullness(sample))
            yield index, sample, dtype
    full = [c for c in cases if value_kind(operation, c[1]) in ("value", "broadcasting") and _fullness(c[1]) > most]
    for index, sample in sorted(full, key=lambda c: _fullness(c[1]), reverse=True)[:1]:
        for dtype in dtypes_of(operation.name, sample, backend)[:1]:
            yield index, sample, dtype


def _fullness(sample: Sample) -> tuple[int, int]:
    """The number of arrays among the operands, and their largest rank; (0, 0) for large samples."""
    found = host_arrays(sample)
    if sum(a.size for a in found) > MAX_ELEMENTS or "donate" in sample.attributes:
        return (0, 0)
    return len(found), max((a.ndim for a in found), default=0)


def behaviour_checks(backend: Any, operation: Operation) -> Iterator[Check]:
    """Every check of behaviour that applies to the shared samples."""
    name = operation.name
    for index, sample, dtype in shared_samples(backend, operation):
        if any(a.size for a in host_arrays(sample)):
            yield Check(name, dtype, "layout", index, backend, check_layout, sample, "inputs that are views")
            yield Check(name, dtype, "mutation", index, backend, check_mutation, sample, "inputs are left as they were")
        yield Check(name, dtype, "aliasing", index, backend, check_aliasing, sample, "results outlive the next call")
        if backend.capabilities.deterministic:
            yield Check(
                name, dtype, "determinism", index, backend, check_determinism, sample, "equal calls, equal bits"
            )


def check_layout(check: Check) -> None:
    """Operands that are reversed, transposed and strided views by the backend's own operations; they do not change."""
    k, name, sample = check.backend, check.operation, check.sample
    operands = operands_of(name, sample, check.dtype)
    plain = run_sample(k, name, sample, check.dtype)
    for view in VIEWS:
        seen = store_quantized(k, map_operands(operands, partial(seen_by, k, view)))
        other = to_host(k, name, call(k, name, seen, sample.attributes))
        assert len(other) == len(plain), f"{len(other)} outputs from views, {len(plain)} otherwise"
        for got, expected in zip(other, plain, strict=True):
            dtype = got.dtype.name if got.dtype.name in VALUE else ""
            compare(got, as_float64(expected), dtype, 4.0)  # the order of sums may differ
        assert_kept(k, operands, seen, "an input that is a view was changed by the call")


def seen_by(k: Any, view: Callable[[Any, Array], Any], array: Array) -> Any:
    """A view of the array on the backend; the array itself if it is empty or 0-d."""
    return view(k, array) if array.size and array.ndim else k.from_numpy(array)


def _reversed(k: Any, array: Array) -> Any:
    """A view with negative strides along every axis."""
    axes = tuple(range(array.ndim))
    return k.flip(k.from_numpy(np.flip(array, axes)), axes)


def _strided(k: Any, array: Array) -> Any:
    """Every second element of the last axis of a larger tensor."""
    wide_array = np.zeros((*array.shape[:-1], 2 * array.shape[-1] + 1), array.dtype)
    wide_array[..., 1::2] = array
    return k.slice(
        k.from_numpy(wide_array), (*(slice(0, n, 1) for n in array.shape[:-1]), slice(1, 2 * array.shape[-1], 2))
    )


def _transposed(k: Any, array: Array) -> Any:
    """The axes in reverse order in memory."""
    axes = tuple(reversed(range(array.ndim)))
    return k.permute_dims(k.from_numpy(np.ascontiguousarray(array.transpose())), axes)


VIEWS: tuple[Callable[[Any, Array], Any], ...] = (_reversed, _strided, _transposed)


def check_mutation(check: Check) -> None:
    """Inputs are bitwise unchanged by the call."""
    k = check.backend
    operands = operands_of(check.operation, check.sample, check.dtype)
    inputs = to_primitives(k, operands)
    call(k, check.operation, inputs, check.sample.attributes)
    assert_kept(k, operands, inputs, "an input was changed by the call")


def assert_kept(k: Any, operands: Any, inputs: Any, message: str) -> None:
    """Raise AssertionError unless the primitives are bitwise equal to the host arrays that they were created from."""
    for old, now in zip(flatten(operands), flatten(inputs), strict=True):
        if isinstance(old, np.ndarray):
            assert same_bits(np.asarray(k.to_numpy(now)), old), message


def check_aliasing(check: Check) -> None:
    """A result is changed neither by another call of the operation nor by writing into its copy on the host."""
    k, name, sample = check.backend, check.operation, check.sample
    operands = operands_of(name, sample, check.dtype)
    results = call(k, name, to_primitives(k, operands), sample.attributes)
    before = [a.copy() for a in to_host(k, name, results)]
    named = zip(OPERATIONS[name].operands, operands, strict=False)
    others = [o if n in POINTERS else map_operands([o], partial(other_values, name))[0] for n, o in named]
    call(k, name, to_primitives(k, others), sample.attributes)
    for old, now in zip(before, to_host(k, name, results), strict=True):
        assert same_bits(old, now), "a second call changed the result of the first"
    if OPERATIONS[name].results == ("host",):
        return
    for given, result, old in zip(to_host(k, name, results), results, before, strict=True):
        if given.flags.writeable and given.size:
            given[...] = np.zeros((), given.dtype) if old.any() else np.ones((), given.dtype)
            assert same_bits(old, np.asarray(k.to_numpy(result))), "writing into the host's array changed the result"


def other_values(name: str, array: Array) -> Array:
    """Another valid array for an operation; a multiple if a matrix may have to be definite."""
    if array.dtype.kind == "b":
        return np.asarray(~array)
    return np.asarray(array * 2) if OPERATIONS[name].family == "decompositions" else np.roll(array, 1)


def check_determinism(check: Check) -> None:
    """Two equal calls return bitwise identical results."""
    first, second = (run_sample(check.backend, check.operation, check.sample, check.dtype) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert same_bits(a, b), "two equal calls gave different bits"


# ---- calls that must be refused ----


def error_checks(backend: Any, operation: Operation) -> Iterator[Check]:
    """Calls that the shape rule refuses, obtained from a valid one by changing one argument: none may return."""
    found = list(shared_samples(backend, operation))
    for index, sample, dtype in found[:1] + found[1:][-1:]:
        for number, (what, _, _) in enumerate(refused_calls(operation, sample, dtype)):
            place = 100 * index + number
            yield Check(operation.name, dtype, "errors", place, backend, check_error, sample, what)


def refused_calls(operation: Operation, sample: Sample, dtype: str) -> list[tuple[str, list[Any], dict[str, Any]]]:
    """A description, the operands and attributes for each change of one argument that the shape rule refuses."""
    if operation.shape is None:
        return []
    operands = operands_of(operation.name, sample, dtype)
    found = []
    for what, changed, attributes in _changes(operation, operands, sample.attributes):
        try:
            promised_shapes(operation, changed, attributes)
        except BackburnError as error:
            found.append((f"{what}: {error}", changed, attributes))
        except Exception:  # the change is meaningless: even the shape rule fails
            continue
    return found


def _changes(operation: Operation, operands: list[Any], attributes: dict[str, Any]) -> Iterator[Any]:
    for place, operand in enumerate(operands):
        name = operation.operands[place]
        for what, change in (("is longer", _longer), ("has another rank", _flatter), ("has one element", _first)):
            if isinstance(operand, np.ndarray) and operand.ndim:
                yield f"{name} {what}", [*operands[:place], change(operand), *operands[place + 1 :]], attributes
            elif isinstance(operand, list) and len(operand) > 1 and operand[0].ndim:
                changed = [change(operand[0]), *operand[1:]]
                yield f"the first of {name} {what}", [*operands[:place], changed, *operands[place + 1 :]], attributes
    for name, value in attributes.items():
        wrong: list[Any] = []
        if type(value) is int:
            wrong = [value + 1009]
        elif isinstance(value, str):
            wrong = ["no such choice"]
        elif isinstance(value, tuple) and value and all(type(v) is int for v in value):
            wrong = [(*value[:-1], value[-1] + 1009), (*value, value[-1])]
        elif isinstance(value, tuple) and value and all(isinstance(v, tuple) for v in value):  # widths of padding
            wrong = [(*value[:-1], (-1, 0)), value[1:]]
        for bad in wrong:
            yield f"{name} is {bad!r}", operands, {**attributes, name: bad}


def _longer(array: Array) -> Array:
    """One element more along each axis."""
    return np.pad(array, 1, mode="edge")[(slice(1, None),) * array.ndim] if array.size else array


def _first(array: Array) -> Array:
    """The first element, which broadcasts."""
    return array[(slice(1),) * array.ndim]


def _flatter(array: Array) -> Array:
    return array.reshape(-1) if array.ndim > 1 else array.reshape(-1, 1, 1)


def check_error(check: Check) -> None:
    """The call raises an exception of any class."""
    operation = OPERATIONS[check.operation]
    what, operands, attributes = refused_calls(operation, check.sample, check.dtype)[check.index % 100]
    must_raise(check.backend, check.operation, to_primitives(check.backend, operands), attributes, what)


#: Matrices that are exactly singular, or not positive definite.
WITHOUT_RESULT = {
    "cholesky": case(np.diag([1.0, -1.0])),
    "solve": case(np.diag([1.0, 0.0]), np.ones((2, 1))),
    "triangular_solve": case(np.diag([1.0, 0.0]), np.ones((2, 1))),
    "inv": case(np.diag([1.0, 0.0])),
}


def check_without_result(check: Check) -> None:
    """The call raises for a matrix without a factor or inverse."""
    operands = to_primitives(check.backend, operands_of(check.operation, check.sample, check.dtype))
    must_raise(check.backend, check.operation, operands, {}, "the matrix has no result")


def must_raise(backend: Any, name: str, operands: list[Any], attributes: dict[str, Any], why: str) -> None:
    """Raise AssertionError if a call returns, also with a result that is computed lazily."""
    try:
        results = call(backend, name, operands, attributes)
        to_host(backend, name, results)
    except (Exception, BaseExceptionGroup):
        return
    raise AssertionError(f"returned {', '.join(_describe(r) for r in results)} where it must raise ({why})")


def _describe(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if hasattr(value, "shape") else repr(value)


# ---- indices ----


def bounds_checks(backend: Any, operation: Operation) -> Iterator[Check]:
    """Values that must be refused: an index just outside its axis on either side, or far outside, a singular matrix."""
    if operation.name in WITHOUT_RESULT:
        sample = WITHOUT_RESULT[operation.name]
        for dtype in dtypes_of(operation.name, sample, backend)[:1]:
            title = "a matrix without a result"
            yield Check(operation.name, dtype, "bounds", 0, backend, check_without_result, sample, title)
    pointers = [n for n in operation.operands if n in POINTERS]
    if not pointers:
        return
    for index, sample in enumerate(SAMPLES[operation.name].cases):
        dtypes = dtypes_of(operation.name, sample, backend)
        if not dtypes or not all(a.size for a in host_arrays(sample)):
            continue
        wrong = ["length", "-length - 1", "2**32", *(["length of the first axis"] if operation.name in PLACES else [])]
        for number, what in enumerate(wrong):
            if pointers == ["labels"] and number == 1:
                continue  # by some conventions, negative labels are ignored
            place, title = 10 * index + number, f"{what} in {pointers[0]}"
            yield Check(operation.name, dtypes[0], "bounds", place, backend, check_bounds, sample, title)
        return


def check_bounds(check: Check) -> None:
    """An index outside its axis raises, and does not wrap around."""
    operands, why = out_of_bounds(check)
    must_raise(check.backend, check.operation, to_primitives(check.backend, operands), check.sample.attributes, why)


def out_of_bounds(check: Check) -> tuple[list[Any], str]:
    """The operands of a check of bounds, with one wrong index, and a description of the error."""
    name, sample = check.operation, check.sample
    operation = OPERATIONS[name]
    operands = operands_of(name, sample, check.dtype)
    place = next(i for i, n in enumerate(operation.operands) if n in POINTERS)
    length = indexed_length(name, operands, sample.attributes)
    first = operands[0].shape[0] if name in PLACES else 0
    number = check.index % 10
    wrong = (length, -length - 1, 2**32, first)[number]
    indices = operands[place].astype(np.int64)
    indices[(*(-1,) * (indices.ndim - 1), 0 if number == 3 else -1)] = wrong
    operands[place] = indices
    return operands, f"index {wrong}, length {first if number == 3 else length}"


# ---- signatures ----


def signature_checks(backend: Any, operation: Operation) -> Iterator[Check]:
    """Checks of the contract's signature, and of the effect of defaults."""
    title = "operands, options, defaults"
    yield Check(operation.name, NO_DTYPE, "signature", 0, backend, check_signature, title=title)
    defaults = operation.defaults
    for name in defaults:
        for index, sample in enumerate(SAMPLES[operation.name].cases if operation.name in SAMPLES else ()):
            dtypes = dtypes_of(operation.name, sample, backend)
            if name not in sample.attributes and dtypes and all(a.size for a in host_arrays(sample)):
                place = 100 * (1 + list(defaults).index(name)) + index
                title = f"leaving {name} out means {name}={defaults[name]!r}"
                yield Check(operation.name, dtypes[0], "signature", place, backend, check_default, sample, title)
                break


def check_signature(check: Check) -> None:
    """The callable takes operands by position and options by position and name, with the contract's defaults.

    A callable that Python cannot inspect, such as one written in C, is accepted.
    """
    operation = OPERATIONS[check.operation]
    function = getattr(check.backend, check.operation)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    required = [n for n in operation.operands if n not in operation.optional]
    options = dict.fromkeys(operation.attributes)
    for operands in {len(required): 0, len(operation.operands): 0}:
        try:
            signature.bind(*[None] * operands, **options)
        except TypeError as error:
            raise AssertionError(
                f"{check.operation}{signature} does not take {operands} operands and "
                f"the options {', '.join(options) or 'none'}: {error}"
            ) from error
    for name, default in operation.attributes.items():
        own = signature.parameters.get(name)
        if default is inspect.Parameter.empty or own is None:
            continue
        assert own.default == default, f"{name} is {own.default!r} by default, and {default!r} in the contract"
    by_position = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = [p.name for p in by_position[len(operation.operands) :]][: len(operation.attributes)]
    if len(named) == len(operation.attributes):
        assert named == list(operation.attributes), (
            f"options in the order {named}, the contract has {list(operation.attributes)}"
        )


def check_default(check: Check) -> None:
    """A call without an option is bitwise equal to one that names the contract's default."""
    k, name, sample = check.backend, check.operation, check.sample
    defaults = OPERATIONS[name].defaults
    option = list(defaults)[check.index // 100 - 1]
    operands = operands_of(name, sample, check.dtype)
    without = to_host(k, name, call(k, name, to_primitives(k, operands), sample.attributes))
    named = {**sample.attributes, option: defaults[option]}
    explicit = to_host(k, name, call(k, name, to_primitives(k, operands), named))
    for a, b in zip(without, explicit, strict=True):
        assert same_bits(a, b), f"{option} left out differs from {option}={defaults[option]!r}"
