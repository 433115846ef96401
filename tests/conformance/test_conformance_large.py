"""Forty faults that small calls do not show, as users of other libraries met them, planted into NumPy's backend.

Each is right for small operands, contiguous ones, one call or one thread; the intended kind of check catches it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from backburn.autodiff import Autodiff
from backburn.autodiff.reverse_codegen import compile_operation
from backburn.conformance import check_backend
from backburn.conformance.checks.check import parts_of
from backburn.conformance.checks.kinds import LARGE_KINDS
from backburn.ops.rules.gradients import gradient_rule
from backburn.ops.table import OPERATIONS
from backburn_numpy import NumpyBackend

Array = Any
K = NumpyBackend()
#: Lengths of vectors, tiles and blocks in the faults, and the number of elements from which the faulty code is used.
VECTOR, TILE, BLOCK, MANY = 8, 32, 1024, 1000


def backend(**functions: Any) -> Any:
    """NumPy's backend with some operations replaced."""
    members = {name: staticmethod(function) for name, function in functions.items()}
    made: type[Any] = type(
        "Planted", (NumpyBackend,), {"_instance": None, "spec": property(lambda self: "planted"), **members}
    )
    return made()


def changed(name: str, change: Callable[..., Any], among: int = 1) -> dict[str, Any]:
    """The operation with ``change(result, *operands)`` applied to results of at least ``among`` elements."""

    def operation(*operands: Any, **options: Any) -> Any:
        exact = getattr(K, name)(*operands, **options)
        if not isinstance(exact, np.ndarray) or exact.size < among:
            return exact
        result = np.array(exact, order="C")
        answer = change(result, *operands)
        return result if answer is None else np.asarray(answer).astype(exact.dtype).reshape(exact.shape)

    return {name: operation}


def instead(name: str, when: Callable[..., bool], other: Callable[..., Any]) -> dict[str, Any]:
    """The operation computed by ``other`` where ``when(*operands)`` holds."""

    def operation(*operands: Any, **options: Any) -> Any:
        return (other if when(*operands) else getattr(K, name))(*operands, **options)

    return {name: operation}


def many(*operands: Any) -> bool:
    """Whether an operand has many elements."""
    return any(isinstance(o, np.ndarray) and o.size > MANY for o in operands)


def floats(x: Any, *others: Any) -> bool:
    """Whether the operand has many floats."""
    return isinstance(x, np.ndarray) and np.issubdtype(x.dtype, np.floating) and x.size > MANY


def fill_tail(width: int, value: float) -> Callable[..., None]:
    def change(result: Array, *operands: Any) -> None:
        rest = result.size % width
        if rest:
            result.reshape(-1)[-rest:] = value

    return change


# ---- values of many elements ----


def rounded_to(bits: int, x: Array) -> Array:
    """Floats rounded to a shorter fraction."""
    scale = np.exp2(bits - np.floor(np.log2(np.maximum(np.abs(x.astype(np.float64)), 1e-300))))
    return (np.round(x * scale) / scale).astype(x.dtype)


def tf32(x: Array, y: Array, /) -> Array:
    return K.matmul(rounded_to(10, x), rounded_to(10, y))


def in_float32(name: str) -> Callable[..., Any]:
    def operation(x: Array, *others: Any, **options: Any) -> Any:
        narrow = [o.astype(np.float32) if isinstance(o, np.ndarray) else o for o in (x, *others)]
        return np.asarray(getattr(K, name)(*narrow, **options)).astype(x.dtype)

    return operation


def one_after_another(x: Array, /, axis: Any, keepdims: bool = False) -> Array:
    for a in axis:
        x = np.take(np.cumsum(x, a, dtype=x.dtype), [-1], a) if x.shape[a] else np.sum(x, a, keepdims=True)
    return x if keepdims else x.squeeze(axis)


def integers_by_float32(x: Array, /, axis: Any, keepdims: bool = False) -> Array:
    return np.asarray(x.astype(np.float32).sum(axis=axis, keepdims=keepdims, dtype=np.float64)).astype(x.dtype)


def mean_of_a_short_count(x: Array, /, axis: Any, keepdims: bool = False) -> Array:
    count = int(np.prod([x.shape[a] for a in axis])) & 0xFFFF
    return np.asarray(K.sum(x.astype(np.float64), axis, keepdims) / (count or 1)).astype(x.dtype)


def last_of_the_best_blocks(x: Array, /, axis: Any, keepdims: bool = False) -> Array:
    """The first index in the last of the blocks that have the best value."""
    if not isinstance(axis, int):
        return K.argmax(x, axis, keepdims)
    length = x.shape[axis]
    whole = -(-length // 256) * 256
    wide = np.full((*x.shape[:axis], whole, *x.shape[axis + 1 :]), -np.inf)
    wide[(*[slice(None)] * axis, slice(0, length))] = x
    best = wide == wide.max(axis, keepdims=True)
    blocks = np.moveaxis(best, axis, -1).reshape(*np.moveaxis(best, axis, -1).shape[:-1], -1, 256)
    last = blocks.shape[-2] - 1 - np.argmax(blocks.any(-1)[..., ::-1], -1)
    inside = np.argmax(np.take_along_axis(blocks, last[..., None, None], -2)[..., 0, :], -1)
    found = (last * 256 + inside).astype(np.int64)
    return np.expand_dims(found, axis) if keepdims else found


def max_with_fmax_in_the_tail(x: Array, /, axis: Any, keepdims: bool = False) -> Array:
    if len(axis) != 1 or not floats(x):
        return K.max(x, axis, keepdims)
    rows = np.moveaxis(x, axis[0], -1)
    whole = rows.shape[-1] // VECTOR * VECTOR
    found = np.fmax(rows[..., :whole].max(-1, initial=-np.inf), np.fmax.reduce(rows[..., whole:], -1, initial=-np.inf))
    found = np.asarray(found).astype(x.dtype)
    return np.expand_dims(found, axis[0]) if keepdims else found


def unstable(x: Array, /, axis: int, descending: bool = False) -> Array:
    order = np.flip(K.argsort(np.flip(x, axis), axis, descending), axis)
    return (x.shape[axis] - 1 - np.flip(order, axis)).astype(np.int64)


def in_chunks(name: str) -> Callable[..., Any]:
    """A sort or scan of each block of an axis separately."""

    def operation(x: Array, /, axis: int, *others: Any, **options: Any) -> Array:
        if x.shape[axis] <= BLOCK:
            return getattr(K, name)(x, axis, *others, **options)
        parts = [
            getattr(K, name)(np.take(x, range(n, min(n + BLOCK, x.shape[axis])), axis), axis, *others, **options)
            for n in range(0, x.shape[axis], BLOCK)
        ]
        return np.concatenate(parts, axis)

    return operation


def topk_of_the_first_block(x: Array, /, count: int, axis: int, largest: bool = True) -> Any:
    return K.topk(np.take(x, range(min(x.shape[axis], BLOCK)), axis), count, axis, largest)


def carried_in_float32(x: Array, /, axis: int, reverse: bool = False) -> Array:
    parts, carry = [], None
    if reverse or not floats(x):
        return K.cumulative_sum(x, axis, reverse)
    for n in range(0, x.shape[axis], 256):
        part = K.cumulative_sum(np.take(x, range(n, min(n + 256, x.shape[axis])), axis), axis)
        part = part if carry is None else K.add(part, carry)
        parts.append(part)
        carry = np.take(part, [-1], axis).astype(np.float32).astype(x.dtype)
    return np.concatenate(parts, axis).astype(x.dtype)


def adding_once(x: Array, indices: Array, values: Any, /, axis: int, mode: str = "assign") -> Array:
    if mode != "add" or indices.size <= 512:
        return K.scatter(x, indices, values, axis, mode)
    known = np.take_along_axis(x, indices, axis)
    result = np.array(x)
    np.put_along_axis(result, indices, known + values, axis)
    return result


def tile_lost(axis: int) -> Callable[..., None]:
    """The last, incomplete tile of a product's rows or columns is not computed."""

    def change(result: Array, *operands: Any) -> None:
        if result.ndim > 1 and result.shape[axis] > TILE and (rest := result.shape[axis] % TILE):
            np.moveaxis(result, axis, -1)[..., -rest:] = 0

    return change


def behind(limit: int, axis: int = 0) -> Callable[..., None]:
    """Elements beyond a limit along an axis are not computed."""

    def change(result: Array, *operands: Any) -> None:
        if result.ndim > axis:
            np.moveaxis(result, axis, 0)[limit:] = 0

    return change


def wrapped(limit: int) -> Callable[..., None]:
    """Memory offsets have too few bits."""

    def change(result: Array, *operands: Any) -> None:
        flat = result.reshape(-1)
        flat[limit:] = flat[: max(0, flat.size - limit)]

    return change


def short_index(bits: int) -> Callable[..., Any]:
    def take(x: Array, indices: Array, /, axis: int) -> Array:
        return K.take(x, indices if (indices < 0).any() else indices & (2**bits - 1), axis)

    return take


def first_channels(x: Array, weight: Array, *others: Any, **options: Any) -> Any:
    x = np.array(x)
    x[:, x.shape[1] // 256 * 256 :] = 0
    return K.conv(x, weight, *others, **options)


# ---- memory, layouts, threads ----

RESULTS: dict[Any, Array] = {}
BUFFERS: dict[Any, Any] = {}


def cached(key: Callable[[Array], Any], name: str) -> Callable[..., Any]:
    def operation(x: Array, /) -> Array:
        if not floats(x):
            return getattr(K, name)(x)
        known = name, x.shape, x.dtype.str, key(x)
        if known not in RESULTS:
            RESULTS[known] = getattr(K, name)(x)
        return np.array(RESULTS[known])

    return operation


def address(x: Array) -> int:
    return int(x.__array_interface__["data"][0])


def fingerprint(x: Array) -> Any:
    return x.reshape(-1)[:4].tobytes(), x.reshape(-1)[-4:].tobytes()


def in_one_of(count: int, name: str) -> Callable[..., Any]:
    """Results cycle through ``count`` buffers per shape."""

    def operation(x: Array, /) -> Array:
        if not floats(x):
            return getattr(K, name)(x)
        ring = BUFFERS.setdefault((name, x.shape, x.dtype.str), [[], 0])
        if len(ring[0]) < count:
            ring[0].append(np.empty(x.shape, x.dtype))
        buffer = ring[0][ring[1] % count]
        ring[1] += 1
        buffer[...] = getattr(K, name)(x)
        return buffer

    return operation


def in_place(x: Array, /) -> Array:
    if x.size and x.flags.writeable and floats(x):
        np.abs(x, out=x)
        return np.array(x)
    return K.abs(x)


def in_memory_order(x: Array, /) -> Array:
    return K.floor(x.ravel(order="K").reshape(x.shape) if x.size > MANY else x)


def writing(x: Array, /) -> Array:
    if floats(x):
        x[...] = x  # like code that pads or sorts its input and restores it
    return K.ceil(x)


def from_aligned_memory(x: Array, /) -> Array:
    return K.trunc(x if x.flags.aligned else np.zeros_like(x))


def in_shared_scratch(x: Array, /) -> Array:
    if not floats(x):
        return K.sinh(x)
    scratch = BUFFERS.setdefault(("sinh", x.shape, x.dtype.str), np.empty(x.shape, x.dtype))
    scratch[...] = K.sinh(x)
    time.sleep(1e-3)  # long enough for another thread to overwrite it
    return np.array(scratch)


CURRENT: list[Any] = [None]


def with_a_current_operand(x: Array, /) -> Array:
    CURRENT[0] = x
    time.sleep(1e-4)
    return K.cosh(CURRENT[0] if getattr(CURRENT[0], "shape", None) == x.shape else x)


def counting_calls(x: Array, /) -> Array:
    """A different result at every third call, like a kernel chosen by autotuning."""
    result = K.atan(x)
    if floats(x):
        BUFFERS["calls"] = BUFFERS.get("calls", 0) + 1
        if BUFFERS["calls"] % 3 == 0:
            result = np.nextafter(result, np.inf).astype(x.dtype)
    return result


# ---- gradients ----


def rule(name: str, **rules: Any) -> Any:
    """An autodiff backend with another gradient rule for one operation."""
    entry = OPERATIONS[name]
    known, entry.gradients = entry.gradients, []
    try:
        gradient_rule(name, **rules)
        compiled = compile_operation(entry)
    finally:
        entry.gradients = known
    members = {"spec": property(lambda self: "planted"), name: compiled}
    made: type[Any] = type("PlantedAutodiff", (Autodiff,), members)
    return made(K)


def without_its_tail(k: Any, g: Any, x: Any) -> Any:
    result = np.array(k.mul(g, k.cos(x)))
    if rest := result.size % VECTOR if result.size > MANY else 0:
        result.reshape(-1)[-rest:] = 0
    return result


def of_the_first_rows(k: Any, g: Any, y: Any) -> Any:
    result = np.array(k.mul(g, y))
    if result.ndim:
        result[512:] = 0
    return result


@dataclass
class Planted:
    """A backend, the operation whose checks run, and the kind of check meant to catch the fault."""

    make: Callable[[], Any]
    op: str
    kind: str = "large"


def planted(members: dict[str, Any], kind: str = "large") -> Planted:
    return Planted(lambda: backend(**members), next(iter(members)), kind)


FAULTS = {
    # The ends of vectors, tiles and blocks.
    "the tail of a vector is left out": planted(changed("tanh", fill_tail(VECTOR, 0.0), MANY)),
    "one element beyond the vectors is NaN": planted(changed("exp", fill_tail(2, np.nan), MANY)),
    "the last tile of columns is lost": planted(changed("matmul", tile_lost(-1))),
    "the last tile of rows is lost": planted(changed("linear", tile_lost(0))),
    "channels beyond whole blocks are lost": planted(instead("conv", many, first_channels)),
    "a scan loses its carry between blocks": planted({"cumulative_sum": in_chunks("cumulative_sum")}),
    "blocks are sorted and not merged": planted({"sort": in_chunks("sort")}),
    "the best of the first block": planted({"topk": topk_of_the_first_block}),
    "ties between blocks go to the last": planted(instead("argmax", many, last_of_the_best_blocks)),
    "NaN is lost in the tail": planted({"max": max_with_fmax_in_the_tail}),
    "the sign of zero is lost in long arrays": planted(
        instead("abs", floats, lambda x, /: np.where(x < 0, -x, x).astype(x.dtype))
    ),
    # Counters that are too short.
    "rows beyond 65,536 are left out": planted(changed("softmax", behind(65_536))),
    "columns beyond 65,535 are left out": planted(changed("mul", behind(65_535, 1))),
    "an index of 16 bits wraps": planted({"take": short_index(16)}),
    "an index of 10 bits wraps": planted(
        {
            "embedding": lambda weight, indices, /, padding_idx=None: K.embedding(
                weight, np.where(indices < 0, indices, indices & 1023), padding_idx
            )
        }
    ),
    "offsets wrap": planted(changed("add", wrapped(2**17))),
    "offsets wrap where axes are exchanged": planted(changed("permute_dims", wrapped(2**16))),
    "a count of 16 bits": planted({"mean": mean_of_a_short_count}),
    "the place of a number in 15 bits": planted(changed("searchsorted", lambda r, *_: r & 0x3FF)),
    "pieces are joined too early": planted(changed("concat", behind(MANY))),
    # Digits.
    "products of 10 bits for long sums": planted(
        instead("matmul", lambda x, y, /: x.dtype.kind == "f" and x.shape[-1] >= 256, tf32)
    ),
    "float64 in float32 where there are many": planted(instead("erf", many, in_float32("erf"))),
    "long products of float64 in float32": planted(
        instead("linear", lambda x, *_: x.dtype == np.float64 and x.shape[-1] >= 256, in_float32("linear"))
    ),
    "long logarithms of float64 in float32": planted(
        instead("logsumexp", lambda x, *_: x.size > 20_000, in_float32("logsumexp"))
    ),
    "sums one after another in float32": planted(instead("sum", floats, one_after_another)),
    "integers summed by float32": planted(
        instead("sum", lambda x, *_: x.dtype.kind in "iu" and x.size > MANY, integers_by_float32)
    ),
    "an approximation beyond 512 elements": planted(
        changed("sin", lambda r, x: r * (1 + 2e-5) if r.dtype.kind == "f" else None, 512)
    ),
    "a carry in float32": planted({"cumulative_sum": carried_in_float32}),
    # Other algorithms.
    "unstable above 16 elements": planted(instead("argsort", lambda x, /: x.size > 16, unstable)),
    "additions to one place are lost": planted({"scatter": adding_once}),
    "selecting breaks where many broadcast": planted(changed("where", behind(512))),
    # Memory.
    "results kept by address": planted({"log1p": cached(address, "log1p")}, "memory"),
    "results kept by a few elements": planted({"expm1": cached(fingerprint, "expm1")}, "memory"),
    "one buffer for large results": planted({"square": in_one_of(1, "square")}, "memory"),
    "three buffers in turns": planted({"asinh": in_one_of(3, "asinh")}, "memory"),
    "another answer in the third call": planted({"atan": counting_calls}, "memory"),
    # Layouts and foreign memory.
    "a large operand is computed in place": planted({"abs": in_place}, "large_layout"),
    "gaps are read where there are many": planted({"floor": in_memory_order}, "large_layout"),
    "writes its operand": planted({"ceil": writing}, "large_layout"),
    "memory that is not aligned": planted({"trunc": from_aligned_memory}, "large_layout"),
    # Threads.
    "threads share a scratch buffer": planted({"sinh": in_shared_scratch}, "threads"),
    "threads share a variable": planted({"cosh": with_a_current_operand}, "threads"),
    # Gradients.
    "the gradient lacks its tail": Planted(lambda: rule("sin", x=without_its_tail), "sin", "large_gradient"),
    "the gradient lacks its last rows": Planted(
        lambda: rule("mul", x=of_the_first_rows, y=lambda k, g, x: k.mul(g, x)), "mul", "large_gradient"
    ),
}


def test_there_are_forty() -> None:
    assert len(FAULTS) >= 40
    assert {f.kind for f in FAULTS.values()} == set(LARGE_KINDS)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught_only_by_checks_of_large_operands(name: str) -> None:
    RESULTS.clear()
    BUFFERS.clear()
    fault = FAULTS[name]
    report = check_backend(
        fault.make(), ops=[fault.op], kinds=[*LARGE_KINDS, "value", "gradient", "layout", "mutation"]
    )
    found = {parts_of(r.id)[2] for r in report.failures}
    assert fault.kind in found, f"{fault.kind} did not catch it; {found} did"
    assert not report.ok
    if name not in SMALL:
        assert found <= set(LARGE_KINDS), {r.id: r.message for r in report.failures}


#: Faults that a handwritten sample of many elements, or of more than 16, shows too.
SMALL = {
    "the last tile of rows is lost", "unstable above 16 elements", "sums one after another in float32",
    "products of 10 bits for long sums", "long logarithms of float64 in float32", "memory that is not aligned",
}  # fmt: skip


def test_the_same_operations_pass_unbroken() -> None:
    report = check_backend(K, ops={f.op for f in FAULTS.values()}, kinds=LARGE_KINDS)
    assert report.ok, str(report)
