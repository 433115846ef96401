"""Checks of the whole backend: its declarations, transfers of values, and undeclared dtypes."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from backburn.backend.registry import load_backend
from backburn.backend.spec import parse
from backburn.base.dtypes import DTYPES, DType, as_dtype, bool_, float64
from backburn.base.errors import BackburnError, Unsupported
from backburn.conformance.checks.check import NO_DTYPE, WHOLE, Check
from backburn.conformance.checks.tolerances import VALUE, compare
from backburn.conformance.samples.calls import as_float64, same_bits
from backburn.conformance.samples.table import Array, real
from backburn.ops.table import OPERATIONS, Operation, missing

# ---- declarations ----


def spec_is_an_expression(check: Check) -> None:
    """``spec`` is a valid expression of backends."""
    spec = check.backend.spec
    assert isinstance(spec, str), f"spec is a string, not {type(spec).__name__}"
    parse(spec)


def device_is_named(check: Check) -> None:
    """``device`` is a word such as ``cpu`` or ``cuda:1``."""
    device = check.backend.device
    assert isinstance(device, str), f"device is a string, not {type(device).__name__}"
    assert device, "device is empty"


def capabilities_are_declared(check: Check) -> None:
    """``capabilities`` maps dtypes to uses."""
    for dtype, uses in check.backend.capabilities.dtypes.items():
        unknown = set(uses) - {"storage", "arithmetic", "accelerated"}
        assert not unknown, f"{dtype} is declared for unknown uses {sorted(unknown)}"


def default_dtypes_are_declared(check: Check) -> None:
    """``float_dtype`` and ``int_dtype`` are a declared float and int dtype."""
    for what, kind in (("float_dtype", "float"), ("int_dtype", "int")):
        dtype = getattr(check.backend, what)
        assert isinstance(dtype, DType), f"{what} is {dtype!r}"
        assert dtype.kind == kind, f"{what} is {dtype}"
        assert check.backend.capabilities.supports(dtype), f"{what} {dtype} is not declared for arithmetic"


def it_equals_itself(check: Check) -> None:
    """A backend is a value: equal to itself, unequal to others, and hashable."""
    k = check.backend
    assert k == k, "a backend equals itself"
    assert hash(k) == hash(k), "a backend has a hash"
    assert k != "no backend", "a backend equals a string"


def it_survives_pickling(check: Check) -> None:
    """A backend is pickled as its spec, if the spec can be loaded."""
    k = check.backend
    try:
        known = load_backend(k.spec)
    except BackburnError:
        return  # the backend has no name to be loaded by
    if known == k:
        assert pickle.loads(pickle.dumps(k)) == k, "pickling gives another backend"


def it_can_be_waited_for(check: Check) -> None:
    """``synchronize``, ``libraries``, ``memory_stats`` and ``memory_cleanup`` return what the contract says."""
    k = check.backend
    assert k.synchronize() is None, "synchronize must return None"
    words = k.libraries
    assert isinstance(words, Mapping), f"libraries is a mapping, not {type(words).__name__}"
    assert all(isinstance(text, str) for pair in words.items() for text in pair), "libraries maps strings to strings"
    stats = k.memory_stats()
    assert isinstance(stats, Mapping), f"memory_stats is a mapping, not {type(stats).__name__}"
    assert all(isinstance(n, int) for n in stats.values()), "memory_stats counts bytes in ints"
    assert k.memory_cleanup() is None, "memory_cleanup must return None"


def required_operations_are_there(check: Check) -> None:
    """The backend implements every required operation."""
    lacking = missing_operations(check.backend)
    assert not lacking, f"required and not implemented: {', '.join(o.name for o in lacking)}"


def missing_operations(backend: Any) -> list[Operation]:
    """The required operations that a backend's class does not implement."""
    kind = type(backend)
    return [o for o in OPERATIONS.values() if o.required and getattr(kind, o.name, o.body) in (o.body, missing)]


def strangers_have_no_dtype(check: Check) -> None:
    """``dtype`` refuses objects that are not primitives."""
    for stranger in ("text", None, object()):
        try:
            answer = check.backend.dtype(stranger)
        except Exception:
            continue
        raise AssertionError(f"dtype({stranger!r}) is {answer!r}: it must raise for what is not a primitive")


def plain_primitives_are_untracked(check: Check) -> None:
    """A new float primitive is not tracked, and ``detach`` leaves its values alone."""
    k = check.backend
    ones = np.ones(2, k.float_dtype.dtype)
    x = k.from_numpy(ones)
    assert not k.is_tracked(x), "a new primitive is tracked"
    assert not k.is_require_grad(x), "a new primitive requires a gradient"
    assert same_bits(k.to_numpy(k.detach(x)), ones), "detach changed values"


def the_host_gets_all_at_once(check: Check) -> None:
    """``to_numpy_many`` returns the arrays in order, also for no tensors, and after ``synchronize``."""
    k = check.backend
    given: list[Array] = [real(2, 3).astype(k.float_dtype.dtype), np.arange(3), np.array([True, False])]
    tensors = [k.from_numpy(a) for a in given]
    k.synchronize()
    answers = k.to_numpy_many(tensors)
    assert len(answers) == 3
    assert all(same_bits(a, b) for a, b in zip(answers, given, strict=True))
    assert len(k.to_numpy_many([])) == 0


MEMBERS: tuple[Callable[[Check], None], ...] = (
    spec_is_an_expression,
    device_is_named,
    capabilities_are_declared,
    default_dtypes_are_declared,
    it_equals_itself,
    it_survives_pickling,
    it_can_be_waited_for,
    required_operations_are_there,
    strangers_have_no_dtype,
    plain_primitives_are_untracked,
    the_host_gets_all_at_once,
)


def member_checks(backend: Any) -> Iterator[Check]:
    """Checks of a backend's declarations and of synchronization."""
    for index, function in enumerate(MEMBERS):
        yield Check(WHOLE, NO_DTYPE, "protocol", index, backend, function)


# ---- declared and undeclared dtypes ----


def capability_checks(backend: Any) -> Iterator[Check]:
    """Checks that operations that create data work in declared dtypes and raise in undeclared ones."""
    for dtype in DTYPES.values():
        if dtype.kind == "quantized" or not _on_host(dtype):
            continue
        declared = dtype in backend.capabilities.dtypes
        function = _entering_works if declared else _entering_raises
        for index, name in enumerate(ENTRIES):
            if name == "arange" and dtype is bool_:
                continue
            title = f"{name} in {dtype} " + (
                "works, as declared" if declared else "raises Unsupported, as it is not declared"
            )
            yield Check(name, dtype.name, "capabilities", index, backend, function, title=title)


ENTRIES: dict[str, Callable[[Any, DType], Any]] = {
    "full": lambda k, d: k.full((2,), 1, d),
    "astype": lambda k, d: k.astype(k.from_numpy(np.ones(2, bool)), d),
    "arange": lambda k, d: k.arange(1, 3, 1, d),
    "from_numpy": lambda k, d: k.from_numpy(np.ones(2, d.dtype)),
    "zeros": lambda k, d: k.zeros((2,), d),
}


def _on_host(dtype: DType) -> bool:
    try:
        return bool(dtype.dtype)
    except BackburnError:  # bfloat16 without ml_dtypes
        return False


def _entering_works(check: Check) -> None:
    dtype = as_dtype(check.dtype)
    got = ENTRIES[check.operation](check.backend, dtype)
    assert check.backend.dtype(got) == dtype, f"returned {check.backend.dtype(got)} instead of {dtype}"


def _entering_raises(check: Check) -> None:
    try:
        got = ENTRIES[check.operation](check.backend, as_dtype(check.dtype))
    except Unsupported:
        return
    except Exception as error:
        raise AssertionError(f"raised {type(error).__name__}, but the contract says Unsupported: {error}") from error
    raise AssertionError(f"returned {check.backend.dtype(got)}: an undeclared dtype must raise Unsupported")


# ---- round trips ----


def round_trip_checks(backend: Any) -> Iterator[Check]:
    """Checks that values survive round trips."""
    for dtype in backend.capabilities.dtypes:
        if dtype.kind == "quantized" or not _on_host(dtype):
            continue
        title = "bitwise equal from the host and back, for any layout"
        yield Check("from_numpy", dtype.name, "round_trip", 0, backend, host_and_back, title=title)
        title = "the host gets a copy"
        yield Check("to_numpy", dtype.name, "round_trip", 0, backend, host_keeps_its_copy, title=title)
    for dtype in backend.capabilities.dtypes:
        if dtype.name not in VALUE or not _on_host(dtype) or not backend.capabilities.supports(dtype):
            continue
        for index, name in enumerate(ROUND_TRIPS, 1):
            yield Check(name, dtype.name, "round_trip", index, backend, _returns, title=name)


def edges_of(dtype: DType) -> Array:
    """Values of a dtype, including its extremes."""
    if dtype.kind == "bool":
        return np.array([[True, False, True], [False, False, True]])
    if dtype.kind == "int":
        ends = np.iinfo(dtype.name)
        return np.array([[ends.min, 0, 1], [2, ends.max - 1, ends.max]], dtype.name)
    with np.errstate(all="ignore"):
        return np.array([[-0.0, 1 / 3, np.inf], [-np.inf, np.nan, 6e4]]).astype(dtype.dtype)


def host_and_back(check: Check) -> None:
    """``to_numpy`` returns the array that ``from_numpy`` took, for every layout, also 0-d and zero-size.

    Writing into the host's array later does not change the primitive.
    """
    k, plain = check.backend, edges_of(as_dtype(check.dtype))
    frozen = plain.copy()
    frozen.flags.writeable = False
    for array in (plain, plain.T, plain[::-1, ::-1], plain[:, ::2], frozen, plain[:0], np.asarray(plain[0, 1])):
        got = k.to_numpy(k.from_numpy(array))
        assert isinstance(got, np.ndarray), f"the host gets {type(got).__name__}"
        assert same_bits(got, array), f"{array!r} came back as {got!r}"
    source = plain.copy()
    x = k.from_numpy(source)
    source[...] = np.ones((), source.dtype)
    assert same_bits(k.to_numpy(x), plain), "from_numpy shares memory with the host's array"


def host_keeps_its_copy(check: Check) -> None:
    """Writing into the array from ``to_numpy`` does not change the primitive."""
    k, plain = check.backend, edges_of(as_dtype(check.dtype))
    x = k.from_numpy(plain.copy())
    given = k.to_numpy(x)
    if given.flags.writeable:
        given[...] = np.ones((), given.dtype)
        assert same_bits(k.to_numpy(x), plain), "to_numpy returns the primitive's own memory"


def _rows(start: int, stop: int) -> tuple[slice, ...]:
    return (slice(start, stop, 1), slice(0, 4, 1))


def _stepped(k: Any, x: Any) -> Any:
    """The next larger number and back; NaN if a number lies between the two."""
    up = k.nextafter(x, math.inf)
    middle = k.add(x, k.mul(k.sub(up, x), 0.5))
    next_to = k.logical_and(k.less(x, up), k.logical_or(k.equal(middle, x), k.equal(middle, up)))
    return k.where(next_to, k.nextafter(up, -math.inf), math.nan)


def _unsorted(k: Any, x: Any) -> Any:
    """The sorted values, put back by the inverse permutation."""
    order = k.argsort(x, 1)
    return k.take_along_axis(k.take_along_axis(x, order, 1), k.argsort(order, 1), 1)


Trip = Callable[[Any, Any], Any]
#: A round trip by operation, and its largest error in units of the tolerance of values (0: exact).
ROUND_TRIPS: dict[str, tuple[Trip, float]] = {
    "reshape": (lambda k, x: k.reshape(k.reshape(x, (3, 1, 4)), (3, 4)), 0),
    "permute_dims": (lambda k, x: k.permute_dims(k.permute_dims(x, (1, 0)), (1, 0)), 0),
    "flip": (lambda k, x: k.flip(k.flip(x, (0, 1)), (0, 1)), 0),
    "roll": (lambda k, x: k.roll(k.roll(x, (2, 1), (0, 1)), (-2, -1), (0, 1)), 0),
    "concat": (lambda k, x: k.concat([k.slice(x, _rows(0, 1)), k.slice(x, _rows(1, 3))], 0), 0),
    "slice_assign": (lambda k, x: k.slice_assign(x, k.slice(x, _rows(0, 2)), _rows(0, 2)), 0),
    "neg": (lambda k, x: k.neg(k.neg(x)), 0),
    "nextafter": (_stepped, 0),
    "exp": (lambda k, x: k.log(k.exp(x)), 8),
    "sqrt": (lambda k, x: k.mul(k.sign(x), k.square(k.sqrt(k.abs(x)))), 4),
    "cumulative_sum": (lambda k, x: k.concat([k.slice(x, _rows(0, 1)), k.diff(k.cumulative_sum(x, 0), 0)], 0), 8),
    "argsort": (_unsorted, 0),
    "rfft": (lambda k, x: k.irfft(*k.rfft(x, 1), 4, 1), 20),
    "astype": (lambda k, x: k.astype(k.astype(x, float64), k.dtype(x)), 0),
}


def _returns(check: Check) -> float:
    k = check.backend
    there_and_back, factor = ROUND_TRIPS[check.operation]
    if check.operation == "astype" and not k.capabilities.supports(float64):
        return 0.0
    x = real(3, 4).astype(as_dtype(check.dtype).dtype)
    got = k.to_numpy(there_and_back(k, k.from_numpy(x)))
    if not factor:
        assert same_bits(got, x), f"went as {x!r}, came back as {got!r}"
        return 0.0
    return compare(got, as_float64(x), check.dtype, factor)


# ---- random numbers: the stream does not depend on how it is drawn ----


def random_checks(backend: Any) -> Iterator[Check]:
    """Checks of properties of the stream of random words other than its values."""
    for index, function in enumerate((stream_can_be_split, keys_differ), 50):
        yield Check("random_bits", "int64", "random", index, backend, function)


def stream_can_be_split(check: Check) -> None:
    """A stream drawn in two parts equals the stream drawn at once."""
    k, key = check.backend, 2**90 + check.seed
    whole = k.to_numpy(k.random_bits(key, 3, (20,)))
    parts = [k.to_numpy(k.random_bits(key, 3, (7,))), k.to_numpy(k.random_bits(key, 10, (13,)))]
    assert np.array_equal(np.concatenate(parts), whole), "the stream depends on how it is drawn"


def keys_differ(check: Check) -> None:
    """Different keys give different streams, even if only the highest bit differs."""
    k = check.backend
    streams = [
        k.to_numpy(k.random_bits(key, 0, (8,))).tobytes() for key in (check.seed, check.seed + 1, check.seed + 2**127)
    ]
    assert len(set(streams)) == 3, "two keys have the same stream"
