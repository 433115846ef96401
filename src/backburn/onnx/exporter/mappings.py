"""Operations as ONNX operators: tables of operations with one operator, and functions for the others.

A function takes the recorder, the operands (values, numbers, None) and the attributes of the operation as the table of
operations declares them. It returns the name of the result, a list of names for several, or, before it writes
anything, NotImplemented to use the operation's default body. Lengths are inputs rather than attributes of nodes, since
they may depend on the lengths of the model's inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from backburn.base.dtypes import DType
from backburn.onnx.dtypes import NAMES
from backburn.onnx.exporter.lengths import Length
from backburn.onnx.exporter.recorder import MAPPINGS, Mapped, Recorder, Value
from backburn.onnx.naming import STOP

#: ``TensorProto.DataType`` by name.
NUMBERS = {name: number for number, name in NAMES.items()}
#: Operators with the operands of the operation and no attributes. A scalar has the dtype of the other operand.
SAME = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "add": "Add", "asin": "Asin", "asinh": "Asinh", "atan": "Atan",
    "atanh": "Atanh", "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "div": "Div", "equal": "Equal", "erf": "Erf",
    "exp": "Exp", "floor": "Floor", "greater": "Greater", "greater_equal": "GreaterOrEqual", "isinf": "IsInf",
    "isnan": "IsNaN", "less": "Less", "less_equal": "LessOrEqual", "log": "Log", "logical_and": "And",
    "logical_not": "Not", "logical_or": "Or", "logical_xor": "Xor", "matmul": "MatMul", "maximum": "Max",
    "minimum": "Min", "mish": "Mish", "mul": "Mul", "neg": "Neg", "pow": "Pow", "prelu": "PRelu",
    "reciprocal": "Reciprocal", "relu": "Relu", "round": "Round", "sigmoid": "Sigmoid", "sign": "Sign", "sin": "Sin",
    "sinh": "Sinh", "softsign": "Softsign", "sqrt": "Sqrt", "stop_gradient": "Identity", "sub": "Sub", "tan": "Tan",
    "tanh": "Tanh", "bitwise_invert": "BitwiseNot", "bitwise_or": "BitwiseOr",
    "bitwise_xor": "BitwiseXor", "hard_swish": "HardSwish",
}  # fmt: skip
#: Operators with attributes of the operation, and the names of these in ONNX.
WITH_ATTRIBUTES: dict[str, tuple[str, dict[str, str]]] = {
    "celu": ("Celu", {"alpha": "alpha"}), "elu": ("Elu", {"alpha": "alpha"}),
    "gelu": ("Gelu", {"approximate": "approximate"}),
    "leaky_relu": ("LeakyRelu", {"slope": "alpha"}), "log_softmax": ("LogSoftmax", {"axis": "axis"}),
    "softmax": ("Softmax", {"axis": "axis"}),
    "take": ("Gather", {"axis": "axis"}), "take_along_axis": ("GatherElements", {"axis": "axis"}),
}  # fmt: skip
REDUCTIONS = {
    "sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin", "prod": "ReduceProd",
    "logsumexp": "ReduceLogSumExp", "any": "ReduceMax", "all": "ReduceMin",
}  # fmt: skip


def mapping(*names: str) -> Callable[[Mapped], Mapped]:
    """Register a function as the mapping of operations."""

    def enter(function: Mapped) -> Mapped:
        MAPPINGS.update(dict.fromkeys(names, function))
        return function

    return enter


def scalar(value: Any, dtype: DType) -> Any:
    """A Python number as an array of a dtype; anything else unchanged."""
    return np.asarray(value, dtype.dtype) if isinstance(value, bool | int | float) else value


def alike(*operands: Any) -> list[Any]:
    """Operands, with Python numbers in the dtype of the tensors."""
    dtype = next(x.dtype for x in operands if x.__class__ is Value)
    return [scalar(x, dtype) for x in operands]


#: Operators that lack integers of 8 and 16 bits.
_WIDE_ONLY = frozenset({"Pow", "CumSum", "ReduceSum", "ReduceProd", "ReduceMean"})


def _computed(w: Recorder, operator: str, x: Any, *inputs: Any, **attributes: Any) -> Any:
    """A node; on int64 if the operator lacks the integer dtype, with the same wrap-around."""
    dtype = next(part.dtype for part in (x, *inputs) if part.__class__ is Value)
    is_narrow = dtype.kind == "int" and dtype.name not in ("int32", "int64") and operator in _WIDE_ONLY
    if not is_narrow and not (operator == "Neg" and dtype.name.startswith("uint")):
        return w.node(operator, *alike(x, *inputs), **attributes)
    wide = [w.node("Cast", p, to=NUMBERS["int64"]) if isinstance(p, Value) else p for p in alike(x, *inputs)]
    return w.node("Cast", w.node(operator, *wide, **attributes), to=NUMBERS[dtype.name])


def _same(operator: str, w: Recorder, *operands: Any) -> Any:
    return _computed(w, operator, *operands)


def _with_attributes(operator: str, names: dict[str, str], w: Recorder, *operands: Any, **options: Any) -> Any:
    if operator == "Celu" and operands[0].dtype.name != "float32":  # the operator's only dtype
        return NotImplemented
    return w.node(operator, *alike(*operands), **{theirs: options[ours] for ours, theirs in names.items()})


def _reduced(operator: str, w: Recorder, x: Value, /, axis: Sequence[int], keepdims: bool) -> Any:
    if not axis:
        return x
    if operator == "ReduceMean" and x.dtype.bits < 32:
        return NotImplemented
    return _computed(w, operator, x, np.array(axis, np.int64), keepdims=int(keepdims))


for _name, _operator in SAME.items():
    mapping(_name)(partial(_same, _operator))
for _name, (_operator, _names) in WITH_ATTRIBUTES.items():
    mapping(_name)(partial(_with_attributes, _operator, _names))
for _name, _operator in REDUCTIONS.items():
    mapping(_name)(partial(_reduced, _operator))


# ---- elements ----


@mapping("square")
def _square(w: Recorder, x: Value, /) -> Any:
    return w.node("Mul", x, x)


@mapping("rsqrt")
def _rsqrt(w: Recorder, x: Value, /) -> Any:
    return w.node("Reciprocal", w.node("Sqrt", x))


@mapping("silu")
def _silu(w: Recorder, x: Value, /) -> Any:
    return w.node("Mul", x, w.node("Sigmoid", x))


@mapping("not_equal")
def _not_equal(w: Recorder, x: Any, y: Any, /) -> Any:
    return w.node("Not", w.node("Equal", *alike(x, y)))


@mapping("bitwise_and")
def _bitwise_and(w: Recorder, x: Any, y: Any, /) -> Any:
    """Indices are masked with ``2**63 - 1`` to refuse negative ones; no operator refuses any: the mask is dropped."""
    return x if y.__class__ is int and y == 2**63 - 1 else w.node("BitwiseAnd", *alike(x, y))


@mapping("trunc")
def _trunc(w: Recorder, x: Value, /) -> Any:
    is_negative = w.node("Less", x, scalar(0.0, x.dtype))
    return w.node("Where", is_negative, w.node("Ceil", x), w.node("Floor", x))


@mapping("expm1")
def _expm1(w: Recorder, x: Value, /) -> Any:
    """``tanh(x / 2) (exp(x) + 1)``, without cancellation near 0."""
    half = w.node("Tanh", w.node("Mul", x, scalar(0.5, x.dtype)))
    return w.node("Mul", half, w.node("Add", w.node("Exp", x), scalar(1.0, x.dtype)))


@mapping("log1p")
def _log1p(w: Recorder, x: Value, /) -> Any:
    """``2 atanh(x / (2 + x))`` near 0, where ``log(1 + x)`` loses the digits of ``x``."""
    one, two = scalar(1.0, x.dtype), scalar(2.0, x.dtype)
    is_near = w.node("Less", w.node("Abs", x), scalar(0.5, x.dtype))
    ratio = w.node("Div", x, w.node("Add", x, two))
    near = w.node("Mul", w.node("Atanh", w.node("Where", is_near, ratio, scalar(0.0, x.dtype))), two)
    return w.node("Where", is_near, near, w.node("Log", w.node("Add", x, one)))


@mapping("remainder", "floor_divide")
def _remainder(w: Recorder, x: Any, y: Any, /) -> Any:
    """Rounds towards minus infinity, as Python does."""
    x, y = alike(x, y)
    is_float = (x if x.__class__ is Value else y).dtype.is_floating
    is_remainder = w.operation == "remainder"
    if not is_float:
        rest = w.node("Mod", x, y)
        return rest if is_remainder else w.node("Div", w.node("Sub", x, rest), y)
    if not is_remainder:
        return w.node("Floor", w.node("Div", x, y))
    rest, zero = w.node("Mod", x, y, fmod=1), scalar(0.0, x.dtype if x.__class__ is Value else y.dtype)
    differs = w.node("Less", w.node("Mul", w.node("Sign", rest), w.node("Sign", y)), zero)
    return w.node("Where", differs, w.node("Add", rest, y), rest)


@mapping("fmod")
def _fmod(w: Recorder, x: Any, y: Any, /) -> Any:
    return w.node("Mod", *alike(x, y), fmod=1)


@mapping("atan2")
def _atan2(w: Recorder, y: Any, x: Any, /) -> Any:
    """The angle of the quotient, half a turn further where ``x`` is negative or -0; a quarter turn where it is 0."""
    y, x = alike(y, x)
    dtype = (x if x.__class__ is Value else y).dtype
    zero, one, half = (scalar(number, dtype) for number in (0.0, 1.0, np.pi / 2))
    both = w.node("And", w.node("IsInf", y), w.node("IsInf", x))
    y, x = (w.node("Where", both, w.node("Sign", part), part) for part in (y, x))
    is_zero, is_flat = (w.node("Equal", part, zero) for part in (x, y))
    below = [
        w.node("Less", w.node("Where", at_zero, w.node("Div", one, part), part), zero)
        for part, at_zero in ((y, is_flat), (x, is_zero))
    ]
    near = w.node("Atan", w.node("Div", y, w.node("Where", is_zero, one, x)))
    turned = w.node("Add", near, w.node("Where", below[0], scalar(-np.pi, dtype), scalar(np.pi, dtype)))
    found = w.node("Where", below[1], turned, near)
    is_upright = w.node("And", is_zero, w.node("Not", is_flat))
    return w.node("Where", is_upright, w.node("Mul", w.node("Sign", y), half), found)


@mapping("bitwise_left_shift", "bitwise_right_shift")
def _shift(w: Recorder, x: Any, y: Any, /) -> Any:
    """The operator takes unsigned integers; right shifts invert negative numbers before and after."""
    x, y = alike(x, y)
    dtype = (x if x.__class__ is Value else y).dtype
    is_left, is_signed = w.operation == "bitwise_left_shift", not dtype.name.startswith("u")
    plain = f"u{dtype.name}" if is_signed else dtype.name

    def shifted(x: Any) -> Any:
        parts = [w.node("Cast", part, to=NUMBERS[plain]) if is_signed else part for part in (x, y)]
        found = w.node("BitShift", *parts, direction="LEFT" if is_left else "RIGHT")
        return w.node("Cast", found, to=NUMBERS[dtype.name]) if is_signed else found

    if is_left or not is_signed:
        return shifted(x)
    is_negative = w.node("Less", x, scalar(0, dtype))
    found = shifted(w.node("Where", is_negative, w.node("BitwiseNot", x), x))
    return w.node("Where", is_negative, w.node("BitwiseNot", found), found)


@mapping("clip")
def _clip(w: Recorder, x: Any, low: Any, high: Any, /) -> Any:
    x, low, high = alike(x, low, high)
    for operator, bound in (("Max", low), ("Min", high)):
        x = x if bound is None else w.node(operator, x, bound)
    return x


@mapping("hardtanh")
def _hardtanh(w: Recorder, x: Value, /, low: float, high: float) -> Any:
    return w.node("Clip", x, scalar(low, x.dtype), scalar(high, x.dtype))


@mapping("relu6")
def _relu6(w: Recorder, x: Value, /) -> Any:
    return _hardtanh(w, x, 0.0, 6.0)


@mapping("hard_sigmoid")
def _hard_sigmoid(w: Recorder, x: Value, /) -> Any:
    return w.node("HardSigmoid", x, alpha=1 / 6, beta=0.5)


@mapping("selu")
def _selu(w: Recorder, x: Value, /) -> Any:
    return w.node("Selu", x)


@mapping("softplus")
def _softplus(w: Recorder, x: Value, /, beta: float) -> Any:
    return w.node("Softplus", x) if beta == 1.0 else NotImplemented


@mapping("softshrink")
def _softshrink(w: Recorder, x: Value, /, threshold: float) -> Any:
    return w.node("Shrink", x, lambd=threshold, bias=threshold)


@mapping("where")
def _where(w: Recorder, condition: Any, x: Any, y: Any, /) -> Any:
    x, y = alike(x, y)
    if "bool" not in (x.dtype.name, y.dtype.name):
        return w.node("Where", condition, x, y)
    return w.node("Or", w.node("And", condition, x), w.node("And", w.node("Not", condition), y))


@mapping("masked_fill")
def _masked_fill(w: Recorder, x: Value, mask: Any, value: Any, /) -> Any:
    return _where(w, mask, value, x)


@mapping("astype")
def _astype(w: Recorder, x: Value, /, dtype: DType) -> Any:
    return x if x.dtype is dtype else w.node("Cast", x, to=NUMBERS[dtype.name])


# ---- shapes ----


@mapping("reshape")
def _reshape(w: Recorder, x: Value, /, shape: Sequence[int]) -> Any:
    # A length that depends on values may be 0; a single one is written as -1.
    loose = [n for n in shape if isinstance(n, Length)]
    is_zero = len(loose) > 1 or any(n == 0 and not isinstance(n, Length) for n in shape)
    return w.node("Reshape", x, [*shape], allowzero=1 if is_zero else None)


@mapping("permute_dims")
def _permute_dims(w: Recorder, x: Value, /, axes: Sequence[int]) -> Any:
    return w.node("Transpose", x, perm=[*axes]) if axes else x


@mapping("broadcast_to")
def _broadcast_to(w: Recorder, x: Value, /, shape: Sequence[int]) -> Any:
    return w.node("Expand", x, [*shape])


@mapping("concat")
def _concat(w: Recorder, tensors: Sequence[Value], /, axis: int) -> Any:
    return w.node("Concat", *tensors, axis=axis)


@mapping("stack")
def _stack(w: Recorder, tensors: Sequence[Value], /, axis: int) -> Any:
    return w.node("Concat", *(w.node("Unsqueeze", x, [axis]) for x in tensors), axis=axis)


@mapping("flip")
def _flip(w: Recorder, x: Value, /, axis: Sequence[int]) -> Any:
    if not axis:
        return x

    def flipped(x: Any) -> str:
        count = len(axis)
        return str(w.node("Slice", x, [-1] * count, [-(2**62)] * count, [*axis], [-1] * count))

    found = flipped(x)
    if isinstance(x.name, str) and x.name in w.products and [*axis] == [0]:
        before, *rest = w.products[x.name]
        w.products[found] = (flipped(before), *rest)
    return found


@mapping("tile")
def _tile(w: Recorder, x: Value, /, repeats: Sequence[int]) -> Any:
    more = len(repeats) - len(x.shape)
    given = w.node("Unsqueeze", x, [*range(more)]) if more > 0 else x
    return w.node("Tile", given, [*(1,) * -more, *repeats])


@mapping("pad")
def _pad(w: Recorder, x: Value, /, widths: Sequence[tuple[int, int]], mode: str, value: float) -> Any:
    if not widths:
        return x
    if mode == "reflect" and any(max(pair) >= max(n, 1) for n, pair in zip(x.shape, widths, strict=True)):
        return NotImplemented
    ends = [before for before, _ in widths] + [after for _, after in widths]
    return w.node("Pad", x, ends, scalar(value, x.dtype) if mode == "constant" else None, mode=mode)


@mapping("triu", "tril")
def _triangle(w: Recorder, x: Value, /, offset: int) -> Any:
    return w.node("Trilu", x, np.asarray(offset, np.int64), upper=int(w.operation == "triu"))


@mapping("slice")
def _slice(w: Recorder, x: Value, /, key: Sequence[slice]) -> Any:
    wanted = _wanted(x.shape, key)
    if isinstance(x.name, str) and x.name in w.last_of:
        steps = x.shape[0]
        if wanted == ([] if steps == 1 else [(0, (steps - 1, steps, 1))]):
            return w.last_of[x.name]
    return _sliced(w, x, wanted)


def _wanted(shape: Sequence[int], key: Sequence[slice]) -> list[tuple[int, tuple[int, int, int]]]:
    """The axes that are not taken whole, each with its start, end and step."""
    found = []
    for axis, (part, n) in enumerate(zip(key, shape, strict=True)):
        ends = part.indices(n)
        if ends == (0, n, 1):
            continue
        # Keep the objects: they may be formulas of lengths.
        found.append((axis, (part.start, part.stop, part.step) if ends == (part.start, part.stop, part.step) else ends))
    return found


def _sliced(w: Recorder, x: Any, wanted: Sequence[tuple[int, tuple[int, int, int]]]) -> Any:
    if not wanted:
        return x
    axes = [axis for axis, _ in wanted]
    starts, stops, steps = ([part[i] for _, part in wanted] for i in range(3))
    stops = [-(2**62) if stop < 0 else stop for stop in stops]
    return w.node("Slice", x, starts, stops, axes, steps if any(n != 1 for n in steps) else None)


@mapping("slice_assign")
def _slice_assign(w: Recorder, x: Value, value: Any, /, key: Sequence[slice]) -> Any:
    """The value, concatenated with the parts of ``x`` before and after it, axis by axis."""
    shape = [len(range(*part.indices(n))) for part, n in zip(key, x.shape, strict=True)]
    if value.__class__ is not Value or [*value.shape] != shape:
        value = w.node("Expand", scalar(value, x.dtype), shape)

    def assigned(x: Any, wanted: Any, lengths: list[int]) -> Any:
        if not wanted:
            return value
        (axis, (start, stop, step)), *rest = wanted
        whole, middle = 2**62, value
        if rest:
            part = _sliced(w, x, wanted[:1])
            middle = assigned(part, rest, [*lengths[:axis], shape[axis], *lengths[axis + 1 :]])
        if step != 1:
            places = w.node("Range", *(np.asarray(n, np.int64) for n in (start, stop, step)))
            places = w.node("Reshape", places, [-1 if a == axis else 1 for a in range(len(shape))])
            lengths = [*lengths[:axis], shape[axis], *lengths[axis + 1 :]]
            return w.node("ScatterElements", x, w.node("Expand", places, lengths), middle, axis=axis)
        parts = [] if start == 0 else [_sliced(w, x, [(axis, (0, start, 1))])]
        parts.append(middle)
        parts += [] if stop >= lengths[axis] else [_sliced(w, x, [(axis, (stop, whole, 1))])]
        return w.node("Concat", *parts, axis=axis) if len(parts) > 1 else middle

    return assigned(x, _wanted(x.shape, key), [*x.shape])


@mapping("select")
def _select(w: Recorder, x: Value, /, axis: int, index: int) -> Any:
    if isinstance(x.name, str) and x.name in w.last_of and (axis, index) == (0, x.shape[0] - 1):
        return w.node("Squeeze", w.last_of[x.name], [0])
    return w.node("Gather", x, index, axis=axis)


@mapping("full", "zeros", "ones", "empty")
def _full(w: Recorder, /, shape: Sequence[int], dtype: DType, value: float | None = None) -> Any:
    number = float(w.operation == "ones") if value is None else value
    return w.node("Expand", scalar(dtype.dtype.type(number).item(), dtype), [*shape])


@mapping("arange")
def _arange(w: Recorder, /, start: float, stop: float, step: float, dtype: DType) -> Any:
    if not all(float(x).is_integer() for x in (start, stop, step)):
        return NotImplemented
    found = w.node("Range", *(x if isinstance(x, int) else int(x) for x in (start, stop, step)))
    return found if dtype.name == "int64" else w.node("Cast", found, to=NUMBERS[dtype.name])


# ---- indices ----


@mapping("embedding")
def _embedding(w: Recorder, weight: Value, indices: Any, /, padding_idx: int | None) -> Any:
    """Rows of the padding are copied by an ``Identity`` that :func:`backburn.onnx.load` treats as a constant."""
    rows = w.node("Gather", weight, indices, axis=0)
    if padding_idx is None:
        return rows
    is_padding = w.node("Equal", indices, scalar(padding_idx % weight.shape[0], indices.dtype))
    held = w.node("Identity", rows, note=STOP)
    return w.node("Where", w.node("Unsqueeze", is_padding, [-1]), held, rows)


@mapping("scatter")
def _scatter(w: Recorder, x: Value, indices: Any, values: Any, /, axis: int, mode: str) -> Any:
    if values.__class__ is not Value:
        values = w.node("Expand", scalar(values, x.dtype), [*indices.shape])
    return w.node("ScatterElements", x, indices, values, axis=axis, reduction=None if mode == "assign" else mode)


@mapping("gather_nd")
def _gather_nd(w: Recorder, x: Value, indices: Any, /) -> Any:
    return w.node("GatherND", x, indices)


@mapping("nonzero")
def _nonzero(w: Recorder, x: Value, /) -> Any:
    return w.node("Transpose", w.node("NonZero", x), perm=[1, 0]) if x.shape else NotImplemented


@mapping("argmax", "argmin")
def _argmax(w: Recorder, x: Value, /, axis: int, keepdims: bool) -> Any:
    return w.node("ArgMax" if w.operation == "argmax" else "ArgMin", x, axis=axis, keepdims=int(keepdims))


@mapping("topk")
def _topk(w: Recorder, x: Value, /, count: int, axis: int, largest: bool) -> Any:
    given = w.node("Cast", x, to=NUMBERS["int32"]) if x.dtype.kind == "bool" else x
    values, indices = w.node("TopK", given, [count], axis=axis, largest=int(largest), outputs=2)
    return [w.node("Cast", values, to=NUMBERS["bool"]) if given is not x else values, indices]


@mapping("sort_with_indices")
def _sort_with_indices(w: Recorder, x: Value, /, axis: int, descending: bool) -> Any:
    return _topk(w, x, x.shape[axis], axis, descending)


@mapping("argsort", "sort")
def _argsort(w: Recorder, x: Value, /, axis: int, descending: bool) -> Any:
    return _topk(w, x, x.shape[axis], axis, descending)[w.operation == "argsort"]


@mapping("cumulative_sum")
def _cumulative_sum(w: Recorder, x: Value, /, axis: int, reverse: bool) -> Any:
    return _computed(w, "CumSum", x, np.asarray(axis, np.int64), reverse=int(reverse) or None)


# ---- products, convolutions, windows ----


@mapping("scaled_dot_product_attention")
def _attention(
    w: Recorder, query: Value, key: Any, value: Any, mask: Any, keep: Any, /, causal: bool, scale: float,
    dropout: float, softcap: float | None,
) -> Any:  # fmt: skip
    """The operator takes batches and heads. A query that attends to nothing gives NaN in ONNX, and 0 here."""
    if keep is not None or (mask is not None and (causal or 0 in mask.shape)):
        return NotImplemented
    lead, rank = query.shape[:-2], len(query.shape)
    given, masked = [query, key, value], mask
    last = [query.shape[-2], key.shape[-2]]
    if mask is not None and [*mask.shape[-2:]] != last:
        masked = w.node("Expand", mask, [*mask.shape[:-2], *last])
    if rank < 4:
        given = [w.node("Unsqueeze", x, [*range(4 - rank)]) for x in given]
    elif rank > 4:
        merged = (int(np.prod(lead[:-1])), lead[-1])
        if mask is not None and len(mask.shape) > 2:
            masked = w.node("Reshape", w.node("Expand", mask, [*lead, *last]), [*merged, *last])
        given = [w.node("Reshape", x, [*merged, *x.shape[-2:]]) for x in given]
    found = w.node("Attention", *given, masked, is_causal=int(causal) or None, scale=scale, softcap=softcap)
    if rank < 4:
        found = w.node("Squeeze", found, [*range(4 - rank)])
    elif rank > 4:
        found = w.node("Reshape", found, [*query.shape[:-1], value.shape[-1]])
    if mask is None:
        return found
    top = w.node("ReduceMax", mask, [-1], keepdims=1)
    attends = top if mask.dtype.kind == "bool" else w.node("Greater", top, scalar(-np.inf, mask.dtype))
    return w.node("Where", attends, found, scalar(0.0, query.dtype))


@mapping("linear")
def _linear(w: Recorder, x: Value, weight: Any, bias: Any, /) -> Any:
    if len(x.shape) == 2:
        return w.node("Gemm", x, weight, bias, transB=1)
    found = w.node("MatMul", x, w.node("Transpose", weight, perm=[1, 0]))
    found = found if bias is None else w.node("Add", found, bias)
    w.products[found] = x, weight, bias
    return found


@mapping("conv", "conv_transpose")
def _conv(
    w: Recorder, x: Value, weight: Any, bias: Any, /, stride: Any, padding: Any, dilation: Any, groups: int,
    output_padding: Any = (),
) -> Any:  # fmt: skip
    return w.node(
        "Conv" if w.operation == "conv" else "ConvTranspose", x, weight, bias, strides=[*stride], pads=_ends(padding),
        dilations=[*dilation], group=groups, output_padding=[*output_padding] if any(output_padding) else None,
    )  # fmt: skip


def _ends(padding: Sequence[tuple[int, int]]) -> list[int]:
    """The widths before each axis, then those after."""
    return [before for before, _ in padding] + [after for _, after in padding]


def _is_padded_by_windows(size: Sequence[int], padding: Sequence[tuple[int, int]]) -> bool:
    """Whether a window may lie entirely in the padding, which onnxruntime refuses."""
    return any(max(pair) >= n for n, pair in zip(size, padding, strict=True))


@mapping("max_pool")
def _max_pool(w: Recorder, x: Value, /, size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Any:
    """The operator's indices count across examples and channels."""
    if _is_padded_by_windows(size, padding):
        return NotImplemented
    values, indices = w.node(
        "MaxPool", x, kernel_shape=[*size], strides=[*stride], pads=_ends(padding), dilations=[*dilation],
        ceil_mode=int(ceil_mode), outputs=2,
    )  # fmt: skip
    places = w.node("ReduceProd", w.node("Shape", x, start=2), keepdims=0)
    return [values, w.node("Mod", indices, places)]


@mapping("avg_pool")
def _avg_pool(
    w: Recorder, x: Value, /, size: Any, stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool,
    dilation: Any,
) -> Any:  # fmt: skip
    if _is_padded_by_windows(size, padding):
        return NotImplemented
    return w.node(
        "AveragePool", x, kernel_shape=[*size], strides=[*stride], pads=_ends(padding), ceil_mode=int(ceil_mode),
        count_include_pad=int(count_include_pad), dilations=[*dilation] if any(n > 1 for n in dilation) else None,
    )  # fmt: skip


@mapping("adaptive_avg_pool")
def _adaptive_avg_pool(w: Recorder, x: Value, /, size: Sequence[int]) -> Any:
    if all(n == 1 for n in size):
        return w.node("GlobalAveragePool", x)
    if any(n % m for n, m in zip(x.shape[2:], size, strict=True)):
        return NotImplemented
    steps = [n // m for n, m in zip(x.shape[2:], size, strict=True)]
    return w.node("AveragePool", x, kernel_shape=steps, strides=steps)


# ---- norms ----


def _vector(w: Recorder, given: Any, value: float, length: int, dtype: DType) -> Any:
    """A parameter of a norm; a constant if it is absent."""
    return np.full((length,), value, dtype.dtype) if given is None else given


@mapping("layer_norm", "rms_norm")
def _layer_norm(w: Recorder, x: Value, scale: Any, bias: Any = None, /, axis: Any = (), eps: float = 0.0) -> Any:
    first, rank = min(axis), len(x.shape)
    inside = x.shape[first:]
    if sorted(axis) != [*range(first, rank)] or any(p is not None and p.shape != inside for p in (scale, bias)):
        return NotImplemented
    scale = np.ones(inside, x.dtype.dtype) if scale is None else scale
    operator = "LayerNormalization" if w.operation == "layer_norm" else "RMSNormalization"
    return w.node(operator, x, scale, bias, axis=first - rank, epsilon=eps)


@mapping("group_norm", "instance_norm")
def _group_norm(w: Recorder, x: Value, scale: Any, bias: Any, /, eps: float, groups: int | None = None) -> Any:
    channels = x.shape[1]
    given = x, _vector(w, scale, 1.0, channels, x.dtype), _vector(w, bias, 0.0, channels, x.dtype)
    if groups is None:
        return w.node("InstanceNormalization", *given, epsilon=eps)
    return w.node("GroupNormalization", *given, num_groups=groups, epsilon=eps)


@mapping("batch_norm")
def _batch_norm(
    w: Recorder, x: Value, mean: Any, variance: Any, scale: Any, bias: Any, /, axis: int, eps: float
) -> Any:
    if axis != 1:
        return NotImplemented
    given = _vector(w, scale, 1.0, x.shape[1], x.dtype), _vector(w, bias, 0.0, x.shape[1], x.dtype)
    return w.node("BatchNormalization", x, *given, mean, variance, epsilon=eps)
