"""Backends and gradient rules broken on purpose: the intended check catches each, and no other check does.

Only the operations that a fault breaks are checked. ``also`` lists kinds of checks that may catch it too.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from backburn.autodiff import Autodiff, graph
from backburn.autodiff.reverse_codegen import compile_operation
from backburn.backend.contract import Capabilities
from backburn.base.dtypes import DTYPES, as_dtype, float32, qint8
from backburn.base.errors import BackendMismatchError, Unsupported
from backburn.conformance import check_backend, checks
from backburn.conformance.checks.check import parts_of
from backburn.conformance.checks.kinds import COMPLEX_KINDS, LARGE_KINDS, VALUE_KINDS, exists_in
from backburn.ops.rules.gradients import gradient_rule
from backburn.ops.table import OPERATIONS
from backburn_numpy import NumpyBackend

Array = Any
K = NumpyBackend()


def backend(**functions: Any) -> Callable[[], Any]:
    """NumPy's backend with some operations replaced; properties may be given too."""

    def make() -> Any:
        members = {
            name: value if isinstance(value, property) or name.startswith("conformance") else staticmethod(value)
            for name, value in functions.items()
        }
        made: type[Any] = type(
            "Broken", (NumpyBackend,), {"_instance": None, "spec": property(lambda self: "broken"), **members}
        )
        return made()

    return make


def differentiating(inner: Any = K, **members: Any) -> Any:
    """A subclass of ``Autodiff`` with some members replaced."""
    own = {"spec": property(lambda self: "broken"), **members}
    made: type[Any] = type("BrokenAutodiff", (Autodiff,), own)
    return made(inner)


def rule(name: str, *together: Any, **rules: Any) -> Callable[[], Any]:
    """An autodiff backend with other gradient rules for one operation."""

    def make() -> Any:
        entry = OPERATIONS[name]
        known, entry.gradients = entry.gradients, []
        try:
            gradient_rule(name, *together, **rules)
            compiled = compile_operation(entry)
        finally:
            entry.gradients = known
        return differentiating(**{name: compiled})

    return make


def engine(**functions: Any) -> Callable[[], Any]:
    """An autodiff backend with some functions of the reverse pass replaced."""

    @contextmanager
    def replaced() -> Iterator[None]:
        known = {name: getattr(graph, name) for name in functions}
        try:
            for name, function in functions.items():
                setattr(graph, name, function)
            yield
        finally:
            for name, function in known.items():
                setattr(graph, name, function)

    def backward(self: Any, tensor: Any, cotangent: Any = None, *, retain_graph: bool = False) -> Any:
        with replaced():
            return Autodiff.backward(self, tensor, cotangent, retain_graph=retain_graph)

    return lambda: differentiating(backward=backward)


# ---- functions that are wrong ----


def like(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function like a binary ufunc as an operation that returns 0-d arrays instead of scalars."""
    return lambda x, y, /: np.asarray(function(x, y), dtype=(x if hasattr(x, "dtype") else y).dtype)


def sum_in_half(x: Array, /, axis: Any, keepdims: bool = False) -> Array:
    if x.dtype.kind != "f":
        return K.sum(x, axis, keepdims)
    return np.asarray(x.astype(np.float16).sum(axis=axis, keepdims=keepdims, dtype=np.float16)).astype(x.dtype)


def atan2_in_float32(x: Array, y: Array, /) -> Array:
    exact = K.atan2(x, y)
    return exact.astype(np.float32).astype(exact.dtype) if exact.dtype == np.float64 else exact


def atan2_to_float32(x: Array, y: Array, /) -> Array:
    exact = K.atan2(x, y)
    return exact.astype(np.float32) if exact.dtype == np.float64 else exact


def argsort_unstable(x: Array, /, axis: int, descending: bool = False) -> Array:
    order = np.flip(K.argsort(np.flip(x, axis), axis, descending), axis)
    return (x.shape[axis] - 1 - np.flip(order, axis)).astype(np.int64)


def take_wrapping(x: Array, indices: Array, /, axis: int) -> Array:
    return K.take(x, indices % x.shape[axis] if x.shape[axis] else indices, axis)


def take_clipping(x: Array, indices: Array, /, axis: int) -> Array:
    length = x.shape[axis]
    return K.take(x, np.clip(indices, -length, length - 1) if length else indices, axis)


def gather_clipping_first(x: Array, indices: Array, /) -> Array:
    if not indices.size:
        return K.gather_nd(x, indices)
    inside = indices.copy()
    inside[..., 0] = np.clip(indices[..., 0], -x.shape[0], x.shape[0] - 1 if indices.shape[-1] > 1 else None)
    return K.gather_nd(x, inside)


def solve_somehow(x: Array, y: Array, /) -> Array:
    singular = x.size and not np.linalg.det(x.astype(np.float64)).all()
    return np.zeros((x.shape[-1], y.shape[-1]), x.dtype) if singular else K.solve(x, y)


def astype_that_cuts_off(x: Array, /, dtype: Any) -> Array:
    if dtype.name != "bfloat16" or x.dtype.kind != "f":
        return K.astype(x, dtype)
    bits = np.bitwise_and(np.asarray(x, np.float32).view(np.uint32), np.uint32(0xFFFF0000), out=...)
    return K.astype(bits.view(np.float32), dtype)


def exp_in_a_view(x: Array, /) -> Array:
    return np.exp(x, out=None if x.flags.c_contiguous else x, dtype=x.dtype) if x.ndim else K.exp(x)


def isnan_in_place(x: Array, /) -> Array:
    result = np.asarray(np.isnan(x))
    if x.size and x.flags.writeable:
        x[...] = np.where(result, x, x + 1)
    return result


def isinf_in_one_buffer(x: Array, /) -> Array:
    buffer = BUFFERS.setdefault(x.shape, np.zeros(x.shape, bool))
    return np.isinf(x, out=buffer)


def signbit_in_one_buffer(x: Array, /) -> Array:
    buffer = BUFFERS.setdefault((x.shape, "sign"), np.zeros(x.shape, bool))
    return np.signbit(x, out=buffer)


BUFFERS: dict[Any, Array] = {}


def floor_of_memory(x: Array, /) -> Array:
    """The values in memory order."""
    return np.asarray(np.floor(x.ravel(order="K").reshape(x.shape)))


def isnan_of_scalars(x: Array, /) -> Any:
    return np.isnan(x)[()]


def saturating_add(x: Array, y: Array, /) -> Array:
    result = K.add(x, y)
    if result.dtype.kind not in "iu":
        return result
    ends = np.iinfo(result.dtype)  # type: ignore[type-var]
    exact = np.add(np.asarray(x, object), np.asarray(y, object))
    return np.asarray(np.clip(exact, ends.min, ends.max)).astype(result.dtype)


def truncating(x: Array, y: Array, /) -> Array:
    floats = (x if hasattr(x, "dtype") else y).dtype.kind == "f"
    return K.trunc(K.div(x, y)) if floats else K.floor_divide(x, y)


def equal_shapes_only(x: Array, y: Array, /) -> Array:
    if hasattr(x, "shape") and hasattr(y, "shape") and x.shape != y.shape:
        raise ValueError("shapes differ")
    return K.nextafter(x, y)


def pow_of_wide_scalars(x: Array, y: Array, /) -> Array:
    if isinstance(y, float):
        return np.power(x, np.float64(y))
    return K.pow(x, y)


def argmax_keeping(x: Array, /, axis: Any, keepdims: bool = False) -> Array:
    return K.argmax(x, axis, True)


def sine_of_the_day(x: Array, /) -> Array:
    if x.dtype != np.float64:
        return K.sin(x)
    DAYS.append(1)
    with np.errstate(all="ignore"):
        return np.asarray(np.sin(x) * (1 + len(DAYS) % 2 * np.finfo(x.dtype).eps)).astype(x.dtype)


DAYS: list[int] = []


def truncated_matmul(x: Array, y: Array, /) -> Array:
    inner = min(x.shape[-1], y.shape[-2 if y.ndim > 1 else 0])
    return K.matmul(x[..., :inner], y[..., :inner, :] if y.ndim > 1 else y[:inner])


def elu_of_two(x: Array, /, alpha: float = 2.0) -> Array:
    return K.elu(x, alpha)


def quantize_downwards(x: Array, /, dtype: Any = DTYPES["qint8_symmetric_tensor_float32"]) -> Any:
    step = float(np.abs(x).max(initial=0.0)) / 127 or 1.0
    return K.quantize((np.floor(x / step) * step).astype(x.dtype), dtype)


def reshape_of_floats(x: Array, /, shape: Any) -> Array:
    return K.reshape(K.dequantize(x) if not isinstance(x, np.ndarray) else x, shape)


def clipped_in_affine_schemes(x: Array, low: Array, high: Array, /, dtype: Any = qint8) -> Array:
    return K.fake_quantize_between(x, low, high, dtype) if dtype.mode == "symmetric" else np.clip(x, low, high)


def joined_with_one_step(tensors: Any, axis: int) -> Any:
    first = tensors[0]
    if isinstance(first, np.ndarray):
        return K.concat(tensors, axis)
    return K.concat([replace(t, scale=first.scale, zero=first.zero) if not t.scale.ndim else t for t in tensors], axis)


def of_one_range(x: Array, low: Array, high: Array, /, dtype: Any = qint8) -> Any:
    least, most = (a if not a.size else np.full_like(a, a.flat[0]) for a in (low, high))
    return K.quantize_between(x, least, most, dtype)


def random_bits_of_low_keys(key: int, offset: int, shape: Any) -> Array:
    return K.random_bits(key % 2**64, offset, shape)


def few(*names: str) -> Any:
    """Capabilities with only these dtypes."""
    every = K.capabilities.dtypes
    return property(lambda self: Capabilities({d: u for d, u in every.items() if d.name in names}))


def last_bits_inverted(name: str, dtype: str) -> Callable[..., Any]:
    """An operation whose last element is wrong if an operand has ``dtype``."""

    def operation(*operands: Any, **attributes: Any) -> Any:
        exact = getattr(K, name)(*operands, **attributes)
        if not any(getattr(o, "dtype", None) == dtype for o in operands) or not exact.size:
            return exact
        wrong = np.array(exact)
        wrong.reshape(-1)[-1] = ~wrong.reshape(-1)[-1]
        return wrong

    return operation


def where_without_the_other_number(condition: Array, x: Any, y: Any, /) -> Array:
    return K.where(condition, x, 0.0 if isinstance(y, float) else y)


def fmod_of_whole_numbers(x: Any, y: Any, /) -> Array:
    return K.fmod(x, float(int(y) or 1) if isinstance(y, float) else y)


def equal_to_no_number(x: Any, y: Any, /) -> Array:
    return K.equal(x, 0.0 if isinstance(y, float) else y)


def tanh_that_warns(x: Array, /) -> Array:
    warnings.warn("overflow in tanh", RuntimeWarning, stacklevel=2)
    return K.tanh(x)


def isin_inverted(x: Array, values: Array, /) -> Array:
    return np.asarray(~K.isin(x, values))


def prod_of_nothing_is_zero(x: Array, /, axis: Any, keepdims: bool = False) -> Array:
    return K.prod(x, axis, keepdims) if x.size else K.sum(x, axis, keepdims)


def equal_in_float32(x: Any, y: Any, /) -> Array:
    return K.equal(*(a.astype(np.float32) if getattr(a, "dtype", None) == np.float64 else a for a in (x, y)))


def sum_by_float64(x: Array, /, axis: Any, keepdims: bool = False) -> Array:
    return K.sum(x.astype(np.float64) if x.dtype.kind in "iu" else x, axis, keepdims).astype(x.dtype)


def at_most(name: str) -> Callable[..., Any]:
    """A sum or product whose integers saturate instead of wrapping."""

    def operation(x: Array, *others: Any, **attributes: Any) -> Array:
        exact = getattr(K, name)(x, *others, **attributes)
        if x.dtype.kind not in "iu":
            return exact
        wide = [o.astype(np.float64) for o in (x, *others) if isinstance(o, np.ndarray)]
        found = getattr(K, name)(*wide, *others[len(wide) - 1 :], **attributes)
        ends = np.iinfo(x.dtype)
        return np.where(found > float(ends.max), ends.max, np.where(found < float(ends.min), ends.min, exact))

    return operation


def layer_norm_swapped(x: Array, scale: Any = None, bias: Any = None, /, axis: Any = (1,), eps: float = 1e-5) -> Array:
    scale, bias = (scale, bias) if scale is None or bias is None else (bias, scale)
    return K.layer_norm(x, scale, bias, axis, eps)


def unfold_of_one_dilation(
    x: Array, /, size: Any = (1,), stride: Any = (1,), padding: Any = ((0, 0),), dilation: Any = (1,)
) -> Array:
    return K.unfold(x, size, stride, padding, dilation[:1] * len(dilation))


def weighing_with_doubled_weights(
    logits: Array, labels: Array, weight: Any = None, /, *options: Any, **named: Any
) -> Array:
    result = K.cross_entropy(logits, labels, weight, *options, **named)
    if weight is not None:
        weight *= 2
    return result


def logical_not_in_one_buffer(x: Array, /) -> Array:
    return np.logical_not(x, out=BUFFERS.setdefault((x.shape, "not"), np.zeros(x.shape, bool)))


# ---- autodiff backends that are wrong ----


def right_beside_the_first(k: Any, g: Any, x: Any, slope: Any, needs: Any) -> Any:
    below = k.less(x, 0.0)
    return (k.where(below, k.mul(g, slope), g), k.where(below, k.mul(g, x), 0.0)) if needs[0] else (None, g)


def right_for_all_outputs_together(k: Any, g: Any, x: Any, out: Any) -> Any:
    return EIGH.function(k, g, out) if g[1] is not None else k.zeros(x.shape, k.dtype(x))


EIGH = OPERATIONS["eigh"].gradients[0]


def without_sum(k: Any, gradient: Any, shape: Any, backward: Any) -> Any:
    return gradient


def last_use_wins() -> Any:
    """Gradients of several uses are not added: the last one wins."""
    passes: list[int] = []

    def add(x: Any, y: Any, /) -> Any:
        return y if passes else K.add(x, y)

    def backward(self: Any, tensor: Any, cotangent: Any = None, *, retain_graph: bool = False) -> Any:
        passes.append(1)
        try:
            return Autodiff.backward(self, tensor, cotangent, retain_graph=retain_graph)
        finally:
            passes.pop()

    return differentiating(backend(add=add)(), backward=backward)


def stale() -> Any:
    """Always returns the gradients of the first graph."""
    seen: list[Any] = []

    def backward(self: Any, tensor: Any, cotangent: Any = None, *, retain_graph: bool = False) -> Any:
        gradients = Autodiff.backward(self, tensor, cotangent, retain_graph=retain_graph)
        seen.append(gradients)
        return seen[0]

    return differentiating(backward=backward)


def leaking() -> Any:
    """Keeps all results of ``tanh``."""
    kept: list[Any] = []

    def tanh(self: Any, x: Any, /) -> Any:
        kept.append(Autodiff.tanh(self, x))
        return kept[-1]

    return differentiating(tanh=tanh)


def always_tracked() -> Any:
    def tanh(self: Any, x: Any, /) -> Any:
        result = Autodiff.tanh(self, x)
        return result if self.is_tracked(result) else self.set_require_grad(result, True)

    return differentiating(tanh=tanh)


def rounding_when_recorded() -> Any:
    def tanh(self: Any, x: Any, /) -> Any:
        return Autodiff.mul(self, Autodiff.tanh(self, x), 1.001) if self.is_tracked(x) else Autodiff.tanh(self, x)

    return differentiating(tanh=tanh)


def square_when_reused() -> Any:
    def hypot(self: Any, x: Any, y: Any, /) -> Any:
        return Autodiff.detach(self, Autodiff.hypot(self, x, y)) if x is y else Autodiff.hypot(self, x, y)

    return differentiating(hypot=hypot)


def backward_of_anything(self: Any, tensor: Any, cotangent: Any = None, *, retain_graph: bool = False) -> Any:
    return Autodiff.backward(self, tensor) if self.is_tracked(tensor) else None


def method(**members: Any) -> Callable[[], Any]:
    return lambda: differentiating(**members)


@dataclass
class Fault:
    """A backend, the operations checked, the kind of check meant to catch it, and others that may."""

    make: Callable[[], Any]
    ops: str
    kind: str
    also: set[str] = field(default_factory=set)


GRADIENTS = {"gradient", "second_gradient", "recorded", "untracked", "fan_out", "release"}
VALUES = {"value", "broadcasting", "scalars", "zero_d", "special", "integer_edges"}
FAULTS = {
    "swapped operands": Fault(backend(sub=like(lambda x, y: np.subtract(y, x))), "sub", "value", VALUES),
    "wrong sign": Fault(backend(atan2=like(lambda x, y: -np.arctan2(x, y))), "atan2", "value", VALUES),
    "an approximation": Fault(
        backend(tanh=lambda x, /: np.asarray(np.tanh(x) * 1.0001).astype(x.dtype)),
        "tanh",
        "value",
        {"zero_d", "special", "gradient", "second_gradient"},
    ),
    "accumulates in half precision": Fault(backend(sum=sum_in_half), "sum", "value", {"special", "zero_d", "layout"}),
    "computes float64 in float32": Fault(backend(atan2=atan2_in_float32), "atan2", "value", VALUES),
    "float64 becomes float32": Fault(
        backend(atan2=atan2_to_float32), "atan2", "dtype", {*VALUES, *GRADIENTS, "zero_size"}
    ),
    "a wide scalar widens": Fault(backend(pow=pow_of_wide_scalars), "pow", "dtype", {"gradient", "scalars"}),
    "NaN swallowed": Fault(backend(maximum=like(np.fmax)), "maximum", "special"),
    "the sign of zero lost": Fault(backend(neg=lambda x, /: np.asarray(0 - x)), "neg", "special"),
    "rounds half up": Fault(
        backend(round=lambda x, /: np.asarray(np.floor(x + 0.5)).astype(x.dtype)), "round", "value", {"special"}
    ),
    "quotients truncated": Fault(backend(floor_divide=truncating), "floor_divide", "value", VALUES),
    "int32 is added wrongly": Fault(
        backend(add=last_bits_inverted("add", "int32")), "add", "broadcasting", {"integer_edges", "scalars", "zero_d"}
    ),
    "uint16 is summed wrongly": Fault(
        backend(sum=last_bits_inverted("sum", "uint16")), "sum", "value", {"integer_edges"}
    ),
    "uint64 is chosen wrongly": Fault(
        backend(where=last_bits_inverted("where", "uint64")),
        "where",
        "broadcasting",
        {"integer_edges", "scalars", "value"},
    ),
    "a number in the other branch is lost": Fault(
        backend(where=where_without_the_other_number), "where", "scalars", {"special"}
    ),
    "a number is made whole": Fault(backend(fmod=fmod_of_whole_numbers), "fmod", "scalars"),
    "equal to 0, whatever the number": Fault(backend(equal=equal_to_no_number), "equal", "scalars"),
    "an operation warns": Fault(backend(tanh=tanh_that_warns), "tanh", "value", {"zero_d", "special", "zero_size"}),
    "whatever is in is out": Fault(
        backend(isin=isin_inverted),
        "isin",
        "value",
        {"broadcasting", "zero_d", "zero_size", "special", "integer_edges"},
    ),
    "integers saturate": Fault(backend(add=saturating_add), "add", "integer_edges"),
    "float64 is compared in float32": Fault(backend(equal=equal_in_float32), "equal", "value"),
    "integers are summed by float64": Fault(backend(sum=sum_by_float64), "sum", "value", {"integer_edges"}),
    "the neighbour is the number itself": Fault(
        backend(nextafter=lambda x, y, /: np.array(np.broadcast_arrays(x, y)[0])),
        "nextafter",
        "round_trip",
        {"special", "dtype", "scalars"},
    ),
    "scale and bias change places": Fault(backend(layer_norm=layer_norm_swapped), "layer_norm", "value"),
    "one dilation for all axes": Fault(backend(unfold=unfold_of_one_dilation), "unfold", "value", {"shape", "errors"}),
    "no broadcasting": Fault(
        backend(nextafter=equal_shapes_only),
        "nextafter",
        "broadcasting",
        {"shape", "special", "zero_size", "layout", "aliasing", "mutation", "determinism", *GRADIENTS},
    ),
    **{
        f"{name} stops at the largest integer": Fault(
            backend(**{name: at_most(name)}), name, "value", {"integer_edges", "layout"}
        )
        for name in ("sum", "cumulative_sum", "matmul")
    },
    "the product of nothing is 0": Fault(backend(prod=prod_of_nothing_is_zero), "prod", "zero_size"),
    "a dimension too many": Fault(
        backend(argmax=argmax_keeping),
        "argmax",
        "shape",
        {"value", "special", "zero_size", "integer_edges", "signature"},
    ),
    "unstable sort": Fault(
        backend(argsort=argsort_unstable), "argsort", "value", {"special", "integer_edges", "round_trip"}
    ),
    "an index wraps around": Fault(backend(take=take_wrapping), "take", "bounds", {"zero_size"}),
    "an index is clipped": Fault(backend(take=take_clipping), "take", "bounds", {"zero_size"}),
    "a place on the first axis is clipped": Fault(backend(gather_nd=gather_clipping_first), "gather_nd", "bounds"),
    "a singular matrix has a solution": Fault(backend(solve=solve_somehow), "solve", "bounds", {"errors"}),
    "casts to 16 bits are cut off": Fault(backend(astype=astype_that_cuts_off), "astype", "value"),
    "mutates its input": Fault(backend(isnan=isnan_in_place), "isnan", "mutation", {"layout"}),
    "mutates its input where that is a view": Fault(backend(exp=exp_in_a_view), "exp", "layout"),
    "mutates an operand that may be left out": Fault(
        backend(cross_entropy=weighing_with_doubled_weights), "cross_entropy", "mutation", {"signature", "layout"}
    ),
    "reuses its output, of truth values": Fault(
        backend(logical_not=logical_not_in_one_buffer), "logical_not", "aliasing"
    ),
    "reuses its output": Fault(
        backend(isinf=isinf_in_one_buffer, signbit=signbit_in_one_buffer), "isinf,signbit", "aliasing"
    ),
    "reads memory in order": Fault(backend(floor=floor_of_memory), "floor", "layout"),
    "NumPy scalars for 0-d": Fault(backend(isnan=isnan_of_scalars), "isnan", "zero_d", {"special"}),
    "shares the host's memory": Fault(
        backend(from_numpy=lambda array: array), "from_numpy", "round_trip", {"aliasing", "mutation"}
    ),
    "hands out its memory": Fault(
        backend(to_numpy=lambda x, /: x), "to_numpy", "round_trip", {"quantized", "dtype", "aliasing"}
    ),
    "another answer each time": Fault(backend(sin=sine_of_the_day), "sin", "determinism"),
    "accepts shapes that do not fit": Fault(backend(matmul=truncated_matmul), "matmul", "errors"),
    "another default": Fault(backend(elu=elu_of_two), "elu", "signature", VALUES | {"recorded"}),
    "options in another order": Fault(
        backend(hardtanh=lambda x, /, high=1.0, low=-1.0: K.hardtanh(x, low, high)),
        "hardtanh",
        "signature",
        {"recorded"},
    ),
    "rounds down as it quantizes": Fault(
        backend(quantize=quantize_downwards), "quantize", "quantized", {"value", "zero_d"}
    ),
    "reshaping dequantizes": Fault(backend(reshape=reshape_of_floats), "reshape", "quantized"),
    "fakes int8 alone": Fault(
        backend(fake_quantize=lambda x, /, dtype=qint8: K.fake_quantize(x, dtype) if dtype is qint8 else x),
        "fake_quantize",
        "quantized",
    ),
    "clamps and does not round": Fault(
        backend(fake_quantize_between=clipped_in_affine_schemes), "fake_quantize,fake_quantize_between", "quantized"
    ),
    "joins by the steps of the first": Fault(backend(concat=joined_with_one_step), "concat", "quantized"),
    "hands out the stored integers": Fault(
        backend(quantized_parts=lambda x, /: (x.values, x.scale, x.zero)), "to_numpy", "quantized"
    ),
    "one range for all channels": Fault(backend(quantize_between=of_one_range), "quantize_between", "quantized"),
    "half of the key ignored": Fault(backend(random_bits=random_bits_of_low_keys), "random_bits", "random"),
    "an undeclared dtype works": Fault(
        backend(capabilities=few("float32", "int64", "bool")), "full,astype,from_numpy", "capabilities"
    ),
    "the default dtype is undeclared": Fault(
        backend(capabilities=few("float64", "int64", "bool"), full=K.full), "backend", "protocol"
    ),
    "dtype of anything": Fault(
        backend(dtype=lambda x, /: K.dtype(x) if hasattr(x, "dtype") else float32), "backend", "protocol"
    ),
    "gradient of the wrong sign": Fault(
        rule("sub", x=lambda g: g, y=lambda g: g), "sub", "gradient", {"second_gradient"}
    ),
    "gradients swapped": Fault(
        rule("div", x=lambda k, g, out, y: k.neg(k.mul(k.div(g, y), out)), y=lambda k, g, y: k.div(g, y)),
        "div",
        "gradient",
        {"second_gradient"},
    ),
    "a factor forgotten": Fault(
        rule("square", x=lambda k, g, x: k.mul(g, x)), "square", "gradient", {"second_gradient"}
    ),
    "gradient in another dtype": Fault(
        rule("sin", x=lambda k, g, x: k.astype(k.mul(g, k.cos(x)), DTYPES["float64"])), "sin", "gradient"
    ),
    "broadcasting not undone": Fault(
        engine(unbroadcast=without_sum), "add", "gradient", {"fan_out", "untracked", "second_gradient"}
    ),
    "all to the first of a tie": Fault(
        rule(
            "maximum",
            x=lambda k, g, x, y: k.where(k.less(x, y), 0.0, g),
            y=lambda k, g, x, y: k.where(k.less(x, y), g, 0.0),
        ),
        "maximum",
        "convention",
    ),
    "right only where the first operand wants a gradient": Fault(
        rule("prelu", ("x", "slope"), right_beside_the_first), "prelu", "untracked", {"convention"}
    ),
    "right only where all outputs are used": Fault(rule("eigh", x=right_for_all_outputs_together), "eigh", "fan_out"),
    "relu'(0) = 1": Fault(rule("relu", x=lambda k, g, x: k.where(k.less(x, 0.0), 0.0, g)), "relu", "convention"),
    "the rule of a rule is wrong": Fault(rule("cos", x=lambda k, g, x: k.mul(g, k.sin(x))), "sin", "second_gradient"),
    "a conjugate too many": Fault(
        backend(exp=lambda x, /: np.conj(np.exp(x)) if x.dtype.kind == "c" else K.exp(x)),
        "exp",
        "complex",
        {"complex_gradient", "complex_second_gradient"},
    ),
    "no conjugate in a rule": Fault(rule("conj", x=lambda g: g), "conj", "complex_gradient"),
    "no conjugate in the rule of a rule": Fault(rule("conj", x=lambda g: g), "modulus", "complex_second_gradient"),
    "the last use wins": Fault(last_use_wins, "mul", "fan_out", {"reuse"}),
    "stale gradients": Fault(stale, "backend", "trait"),
    "the graph leaks": Fault(leaking, "tanh", "release"),
    "results are always tracked": Fault(always_tracked, "tanh", "untracked"),
    "recording changes the result": Fault(
        rounding_when_recorded, "tanh", "recorded", {"gradient", "second_gradient", "untracked"}
    ),
    "no gradient where a tensor is used twice": Fault(square_when_reused, "hypot", "reuse"),
    "grad_remove forgets to remove": Fault(method(grad_remove=Autodiff.grad), "backend", "trait"),
    "grad_replace replaces nothing": Fault(
        method(grad_replace=lambda self, tensor, grads, grad: None), "backend", "trait"
    ),
    "grad answers in the outer backend": Fault(
        method(grad=lambda self, t, g: self.from_inner(Autodiff.grad(self, t, g))), "backend", "trait"
    ),
    "q_inner dequantizes": Fault(method(q_inner=lambda self, x: K.dequantize(x)), "backend", "trait"),
    "int_inner makes floats": Fault(method(int_inner=lambda self, x: x.astype(np.float32)), "backend", "trait"),
    "bool_inner copies": Fault(method(bool_inner=lambda self, x: x.copy()), "backend", "trait"),
    "backward never consumes the graph": Fault(
        method(backward=lambda self, x, *a, **k: Autodiff.backward(self, x, *a, **{**k, "retain_graph": True})),
        "backend",
        "trait",
    ),
    "detach does nothing": Fault(method(detach=lambda self, x: x), "backend", "trait"),
    "backward of anything": Fault(method(backward=backward_of_anything), "backend", "trait"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught_by_its_check(name: str) -> None:
    fault = FAULTS[name]
    report = check_backend(fault.make(), ops=fault.ops.split(","))
    found = {parts_of(r.id)[2] for r in report.failures}
    assert fault.kind in found, f"{fault.kind} did not catch it; {found} did"
    others = set(LARGE_KINDS) if fault.kind in COMPLEX_KINDS else {*LARGE_KINDS, *COMPLEX_KINDS}
    assert found - others <= fault.also | {fault.kind}, {r.id: r.message for r in report.failures}
    assert not report.ok


@pytest.mark.slow
def test_the_same_operations_pass_unbroken() -> None:
    names = {n for fault in FAULTS.values() for n in fault.ops.split(",")}
    report = check_backend(K, ops=names)
    assert report.ok, str(report)
    covered = {parts_of(r.id)[2] for r in report.results}
    assert {fault.kind for fault in FAULTS.values()} <= covered


def test_there_is_a_fault_for_every_kind_of_check() -> None:
    """Checks of large operands have their own faults in ``test_conformance_large.py``."""
    kinds = {c.kind for c in checks(K)} - set(LARGE_KINDS)
    assert kinds == {f.kind for f in FAULTS.values()}


def test_every_operation_on_integers_is_compared_in_every_int_dtype() -> None:
    """Except operations with unspecified values, and those limited to some dtypes."""
    found = {(c.operation, c.dtype) for c in checks(K, kinds=VALUE_KINDS)}
    ints = [d.name for d in K.capabilities.dtypes if d.kind == "int"]
    taking = [n for n, o in OPERATIONS.items() if "I" in o.kinds and n not in ("from_numpy", "empty")]
    assert len(taking) > 80
    assert not [(n, d) for n in taking for d in ints if exists_in(n, d) and (n, d) not in found]


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("name", ["cumulative_sum", "floor_divide", "sort", "less"])
def test_a_wrong_integer_is_caught_in_every_dtype(name: str, dtype: str) -> None:
    report = check_backend(backend(**{name: last_bits_inverted(name, dtype)})(), ops=[name], dtypes=[dtype])
    assert report.failures
    assert report.matrix()[name][dtype] == "FAIL"


def sum_of_numpy(x: Array, /, axis: Any, keepdims: bool = False) -> Any:
    """Returns a NumPy scalar instead of a 0-d array."""
    exact = K.sum(x, axis, keepdims)
    return exact if exact.ndim else exact[()]


#: Formulas that lose digits of small results, overflow for large operands, or are not exact where required.
NAIVE: dict[str, Callable[..., Array]] = {
    "log1p": lambda x, /: np.where(x == 0, x, np.log(1 + x)).astype(x.dtype),
    "expm1": lambda x, /: np.where(x == 0, x, np.exp(x) - 1).astype(x.dtype),
    "erfc": lambda x, /: K.sub(1.0, K.erf(x)),
    "exp2": lambda x, /: np.exp(x * math.log(2)).astype(x.dtype),
    "log10": lambda x, /: (np.log(x) / x.dtype.type(math.log(10))).astype(x.dtype),
    "softmax": lambda x, /, axis: K.div(K.exp(x), K.sum(K.exp(x), (axis,), True)),
    "log_softmax": lambda x, /, axis: K.log(K.div(K.exp(x), K.sum(K.exp(x), (axis,), True))),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(n, d) for n in NAIVE for d in ("float32", "float64") if d == "float64" or n not in ("exp2", "log10")],
)
def test_a_naive_formula_is_caught(name: str, dtype: str) -> None:
    naive = NAIVE[name]

    def quiet(*operands: Any, **attributes: Any) -> Array:
        with np.errstate(all="ignore"):
            return naive(*operands, **attributes)

    report = check_backend(backend(**{name: quiet})(), ops=[name], dtypes=[dtype], kinds=["value"])
    assert report.failures


def test_failures_caused_by_another_operation_are_attributed_to_it() -> None:
    report = check_backend(backend(sum=sum_of_numpy)(), ops=["sum", "tanh", "vector_norm", "det"])
    assert {parts_of(r.id)[0] for r in report.failures if not r.cause} == {"sum"}
    assert list(report.causes) == ["sum"]
    assert {parts_of(r.id)[0] for r in report.causes["sum"]} == {"tanh", "vector_norm", "det"}
    words = " ".join(str(report).split())
    assert "failures of det, tanh, vector_norm are probably caused by sum, which they call and which fails" in words
    alone = check_backend(backend(sum=sum_of_numpy)(), ops=["tanh"])
    assert alone.failures
    assert not alone.causes  # sum was not checked


def test_two_faults_are_both_reported() -> None:
    report = check_backend(
        backend(sub=like(lambda x, y: np.subtract(y, x)), floor=floor_of_memory)(), ops=["sub", "floor", "lerp"]
    )
    assert {parts_of(r.id)[0] for r in report.failures if not r.cause} == {"sub", "floor"}
    assert {r.cause for r in report.failures if parts_of(r.id)[0] == "lerp"} == {"sub"}


def test_a_signature_or_a_missing_error_is_not_the_cause_of_wrong_values() -> None:
    report = check_backend(
        backend(
            from_numpy=lambda a: K.from_numpy(a),
            sum=lambda x, /, axis, keepdims=False: K.sum(x, tuple(set(axis)), keepdims),
            mean=lambda x, /, axis, keepdims=False: K.mul(K.sum(x, axis, keepdims), 2.0),
        )(),
        ops=["from_numpy", "sum", "mean"],
    )
    own = {(parts_of(r.id)[0], parts_of(r.id)[2]) for r in report.failures if not r.cause}
    assert {("from_numpy", "signature"), ("sum", "errors"), ("mean", "value")} <= own


def test_a_warning_is_reported_with_its_line_and_filters_are_respected() -> None:
    (first, *_) = check_backend(backend(tanh=tanh_that_warns)(), ops=["tanh"], kinds=["value"]).failures
    assert re.match(r"tanh warned \(RuntimeWarning: overflow in tanh, .*:\d+\), and no operation may", first.message)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert check_backend(backend(tanh=tanh_that_warns)(), ops=["tanh"], kinds=["value"]).failures
        warnings.filterwarnings("ignore", message="overflow in")
        assert check_backend(backend(tanh=tanh_that_warns)(), ops=["tanh"], kinds=["value"]).ok


def test_an_autodiff_backend_must_share_the_types_of_its_inner_backend() -> None:
    with pytest.raises(BackendMismatchError, match="share device, float type and int type"):
        check_backend(differentiating(float_dtype=property(lambda self: DTYPES["float64"])), ops=["add"])


class Waiting:
    """An array computed when copied to the host."""

    def __init__(self, compute: Callable[[], Any]) -> None:
        self.compute = compute


def test_a_lazy_backend_may_raise_when_copying_to_the_host() -> None:
    def quantize(x: Array, /, dtype: Any = qint8) -> Any:
        return K.quantize(x, dtype) if np.isfinite(x).all() else Waiting(lambda: K.quantize(x, dtype))

    def to_numpy(x: Any, /) -> Array:
        return K.to_numpy(x.compute() if isinstance(x, Waiting) else x)

    report = check_backend(backend(quantize=quantize, to_numpy=to_numpy)(), ops=["quantize"], kinds=["quantized"])
    assert report.results
    assert report.ok, str(report)


def test_a_backend_without_8_bit_integers_has_no_quantization_checks() -> None:
    k = backend(capabilities=few("float32", "int64", "bool"))()
    assert not [c.id for c in checks(k, ops=["quantize", "quantize_between", "fake_quantize"]) if c.kind != "signature"]


@pytest.mark.parametrize("name", ["float64", "float32", "float16"])
def test_a_backend_of_one_float_dtype_passes_whichever_it_is(name: str) -> None:
    declared = [DTYPES[n] for n in (name, "int64", "bool")]

    def from_numpy(array: Array) -> Array:
        if as_dtype(array.dtype) not in declared:
            raise Unsupported(f"not in {array.dtype}")
        return K.from_numpy(array)

    own = property(lambda self: declared[0])
    k = backend(capabilities=few(name, "int64", "bool"), float_dtype=own, from_numpy=from_numpy)()
    report = check_backend(k, ops=["backend", "add"])
    assert report.ok, str(report)


def test_an_operation_without_effect_may_return_its_operand() -> None:
    def total(self: Any, x: Any, /, axis: Any, keepdims: bool = False) -> Any:
        return Autodiff.sum(self, x, axis, keepdims) if axis else x

    report = check_backend(differentiating(sum=total), ops=["sum"], kinds=["release", "gradient"])
    assert report.ok, str(report)


def test_a_foreign_autodiff_backend_passes() -> None:
    report = check_backend(differentiating(), ops=["backend", "mul", "sum", "max"])
    assert report.ok, str(report)
