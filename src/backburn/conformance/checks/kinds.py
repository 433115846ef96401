"""The kinds of check, and the reasons why an operation has no check of a kind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

from backburn.base.dtypes import DTYPES
from backburn.base.errors import BackburnError
from backburn.conformance.checks.behaviour import refused_calls
from backburn.conformance.checks.whole_backend import ROUND_TRIPS
from backburn.conformance.samples.calls import flatten, host_arrays, is_float, is_float_name, leaves, main_dtype
from backburn.conformance.samples.derived.complex_operands import complex_samples, takes_complex
from backburn.conformance.samples.derived.edge_values import EDGE_FAMILIES, OPEN
from backburn.conformance.samples.derived.stretched import stretches
from backburn.conformance.samples.table import SAMPLES
from backburn.ops.rules.shapes import broadcast
from backburn.ops.table import KINDS as LETTERS
from backburn.ops.table import OPERATIONS, Operation

#: Every kind of check, and its meaning.
KINDS: dict[str, str] = {
    "value": "results near the float64 reference",
    "broadcasting": "the same for operands of different shapes",
    "scalars": "the same with a Python number as an operand",
    "zero_d": "the same for operands without dimensions",
    "zero_size": "the same for operands without elements",
    "special": "the same for NaN, infinities and signed zeros",
    "integer_edges": "the same for the largest and smallest integers",
    "complex": "the same as value for complex operands, including shape and dtype",
    "random": "random numbers bitwise equal to those of the contract",
    "dtype": "result dtypes as in the operation table",
    "shape": "result shapes by the shape rule",
    "layout": "inputs that are reversed, strided and transposed views",
    "mutation": "inputs do not change",
    "aliasing": "neither later calls nor the host change results",
    "determinism": "equal calls, bitwise identical results",
    "errors": "arguments that must be refused",
    "bounds": "values that must be refused: indices out of range, singular matrices",
    "signature": "operands, options and their defaults",
    "round_trip": "round trips return the same values",
    "quantized": "operations on quantized tensors",
    "capabilities": "declared dtypes work, undeclared ones raise Unsupported",
    "large": "the same as value with many elements along each axis in turn",
    "large_layout": "large operands that are strided, reversed, misaligned or read-only",
    "large_gradient": "gradients of large calls near central differences of the reference",
    "memory": "successive calls in the same memory, while earlier results stay intact",
    "threads": "calls from several threads at once",
    "protocol": "the backend's declarations, and synchronization",
    "gradient": "gradients near central differences of the reference, in dtype and shape of their inputs",
    "convention": "the documented gradient at points with no or several derivatives",
    "second_gradient": "gradients of gradients near central differences",
    "complex_gradient": "the same as gradient for complex operands, over both parts",
    "complex_second_gradient": "the same as second_gradient for complex operands, over both parts",
    "recorded": "recording does not change results",
    "untracked": "nothing is recorded, and no gradient flows, without a request",
    "fan_out": "gradients of several uses add up",
    "reuse": "one tensor as several operands",
    "release": "the graph is freed with its tensors",
    "trait": "the twelve methods of an autodiff backend",
}
#: Kinds of check of the whole backend, not of an operation.
WHOLE_KINDS = ("protocol", "trait")
VALUE_KINDS = (
    "value", "broadcasting", "scalars", "zero_d", "zero_size", "special", "integer_edges", "random"
)  # fmt: skip
GRADIENT_KINDS = (
    "gradient", "convention", "second_gradient", "recorded", "untracked", "fan_out", "reuse", "release"
)  # fmt: skip
#: Kinds for backends with complex dtypes; the last two check gradients.
COMPLEX_KINDS = ("complex", "complex_gradient", "complex_second_gradient")
LARGE_KINDS = ("large", "large_layout", "large_gradient", "memory", "threads")
KIND_LETTERS = {kind: letter for letter, kind in LETTERS.items()}
#: The reason for an unexplained hole.
UNEXPLAINED = "no sample"


def kinds_of(backend: Any) -> Collection[str] | None:
    """The kinds of check that apply to a backend, as it or a backend inside declares; None without a declaration."""
    declared: Collection[str] | None = getattr(backend, "conformance_kinds", None)
    inner = getattr(backend, "inner_backend", None)
    return kinds_of(inner) if declared is None and inner is not None else declared


def exists_in(operation: str, dtype: str) -> bool:
    """Whether an operation exists in a dtype, by its kinds and the float dtypes of its samples."""
    kind = DTYPES[dtype].kind
    if not OPERATIONS[operation].operands and "dtype" not in OPERATIONS[operation].attributes:
        return dtype in OPERATIONS[operation].results
    if KIND_LETTERS[kind] not in OPERATIONS[operation].kinds:
        return False
    if kind != "float" or operation not in SAMPLES:
        return True
    return ("float16" if dtype == "bfloat16" else dtype) in SAMPLES[operation].dtypes


def why_none(kind: str, operation: Operation) -> str:
    """Why an operation has no check of a kind, by the table and its samples; ``"no sample"`` if no reason is known."""
    cases = SAMPLES[operation.name].cases if operation.name in SAMPLES else ()
    found = (why for kinds, holds, why in REASONS if kind in kinds.split() and holds(operation, cases))
    return next(found, UNEXPLAINED)


#: Whether a reason holds for an operation with these samples.
Condition: TypeAlias = Callable[[Operation, Sequence[Any]], bool]


def _always(operation: Operation, cases: Sequence[Any]) -> bool:
    return True


def _has_equal_pair(operation: Operation, cases: Sequence[Any]) -> bool:
    """Whether a sample begins with two float operands of one shape."""
    pairs = (c.operands[:2] for c in cases if len(c.operands) > 1 and all(map(is_float, c.operands[:2])))
    return any(a.shape == b.shape for a, b in pairs)


def _refuses_no_change(operation: Operation, cases: Sequence[Any]) -> bool:
    """Whether the shape rule accepts every call that differs from a sample in one argument."""

    def dtype(sample: Any) -> str:
        name = main_dtype(operation.name, sample)
        return name if name != "any" else "float64"

    return not any(refused_calls(operation, c, d) for c in cases[:3] if is_float_name(d := dtype(c)))


def _refuses(shape: tuple[int, ...], *errors: type[Exception]) -> Condition:
    """Whether the shape rule raises one of ``errors`` if every operand of a sample has this shape."""

    def holds(operation: Operation, cases: Sequence[Any]) -> bool:
        sample = next((c for c in cases if any(hasattr(o, "shape") for o in flatten(c.operands))), None)
        if sample is None or operation.shape is None:
            return False
        shapes = [shape if hasattr(o, "shape") else [shape] if isinstance(o, list) else None for o in sample.operands]
        try:
            operation.shape(*shapes, **{**operation.defaults, **sample.attributes})
        except Exception as error:
            return isinstance(error, errors)
        return False

    return holds


_GRADIENT, _EVERY, _COMPLEX = " ".join(GRADIENT_KINDS), " ".join(KINDS), " ".join(COMPLEX_KINDS)
_OPEN: Condition = lambda op, cases: op.family not in EDGE_FAMILIES or op.name in OPEN  # noqa: E731

#: Missing kinds of check, a condition, and the reason; the first row whose condition holds counts.
REASONS: tuple[tuple[str, Condition, str], ...] = (
    (" ".join(WHOLE_KINDS), _always, "concerns the backend as a whole"),
    ("round_trip", _always, f"no way back is tried (tried: from_numpy, to_numpy, {', '.join(ROUND_TRIPS)})"),
    ("quantized", _always, "takes no quantized tensor, or moves none"),
    ("capabilities", _always, "no dtype enters through it"),
    ("random", _always, "draws no random numbers"),
    ("value zero_size zero_d integer_edges", lambda op, _: op.family == "random",
     "its values are checked under random"),
    # Complex operands.
    (_COMPLEX, lambda op, _: not takes_complex(op), "takes no complex numbers"),
    (_COMPLEX, lambda op, _: not complex_samples(op.name), "samples without float operands"),
    (" ".join(COMPLEX_KINDS[1:]), lambda op, _: not op.differentiable, "not differentiable"),
    (" ".join(COMPLEX_KINDS[1:]), lambda op, _: all(s.smooth < 2 for _, s in complex_samples(op.name)),
     "nowhere differentiable by complex numbers"),
    # Operations without samples, which cannot be compared with a reference on the host.
    (_EVERY, lambda op, cases: not cases and op.name == "from_numpy",
     "its result is read back by to_numpy: checked under round_trip and capabilities"),
    (_EVERY, lambda op, cases: not cases and op.name == "empty", "its values are left open"),
    (_EVERY, lambda op, cases: not cases, UNEXPLAINED),
    # Gradients.
    (f"{_GRADIENT} large_gradient", lambda op, _: op.needs_complex,
     "derivatives by complex numbers are checked under complex_gradient"),
    (_GRADIENT, lambda op, cases: not op.differentiable, "not differentiable"),
    (_GRADIENT, lambda op, cases: not any(map(leaves, cases)), "samples without float operands"),
    ("convention", lambda op, cases: all(c.smooth for c in cases), "nothing is left to convention"),
    ("convention", _always, "no convention besides its neighbours'"),
    ("second_gradient", lambda op, cases: all(c.smooth < 2 for c in cases), "nowhere twice differentiable"),
    ("gradient fan_out release", lambda op, cases: not any(c.smooth and leaves(c) for c in cases),
     "nowhere differentiable: see convention"),
    ("reuse", _has_equal_pair, "the shared samples have no two float operands of one shape"),
    ("reuse", _always, "has no two float operands of one shape"),
    (_GRADIENT, _always, UNEXPLAINED),
    # Large operands.
    ("large_gradient", lambda op, cases: not op.differentiable, "not differentiable"),
    ("large_gradient", lambda op, cases: not any(map(leaves, cases)), "samples without float operands"),
    ("large_gradient", lambda op, cases: not any(c.smooth and leaves(c) for c in cases),
     "nowhere differentiable: see convention"),
    (" ".join(LARGE_KINDS), lambda op, cases: not any(stretches(op.name, n, 0) for n in range(len(cases))),
     "no axis of its samples can be longer alone"),
    ("large_layout large_gradient memory", lambda op, cases: not any(map(host_arrays, cases)), "has no operands"),
    ("memory", lambda op, cases: op.results == ("host",), "the result is not a primitive"),
    ("large_gradient", _always, "the samples that can be large have no derivative"),
    # Operands and options.
    ("layout mutation broadcasting scalars special integer_edges", lambda op, _: not op.operands, "has no operands"),
    ("layout mutation", lambda op, cases: not any(map(host_arrays, cases)),
     "its operands are quantized, which hosts have no views of"),
    ("bounds", _always, "takes no indices, and refuses no values"),
    ("errors", lambda op, cases: op.shape is None, "no shape rule, which says what to refuse"),
    ("errors", lambda op, cases: len(op.operands) <= 1 and not op.attributes, "takes every tensor of its kind"),
    ("errors", _refuses_no_change, "the shape rule refuses no change of one argument"),
    ("errors", _always, UNEXPLAINED),
    ("shape", lambda op, cases: op.shape is None, "the shape depends on data"),
    ("shape", lambda op, cases: op.results == ("host",), "the result is not a primitive"),
    ("broadcasting", lambda op, cases: op.shape is not broadcast or len(op.operands) == 1, "operands do not broadcast"),
    ("scalars", lambda op, cases: op.shape is not broadcast, "takes no number for an operand"),
    ("special", lambda op, cases: "F" not in op.kinds, "takes no floats"),
    ("integer_edges", lambda op, cases: "I" not in op.kinds, "takes no integers"),
    # No dimensions or no elements, if the shape rule refuses every such operand.
    ("zero_d zero_size", lambda op, cases: not op.operands, "has no shape among its options"),
    ("zero_d", _refuses((), Exception), "needs dimensions"),
    ("zero_size", _refuses((0,), BackburnError), "needs elements, or is refused for its samples' options"),
    ("zero_size", _refuses((0,), Exception), "needs more dimensions"),
    ("special", _OPEN, "what it does with NaN and infinities is left open"),
    ("integer_edges", _OPEN, "overflow is left open"),
    ("integer_edges", _always, "no sample of int64 values"),
    ("zero_d", lambda op, cases: "axis" in op.attributes, "needs dimensions"),
    ("zero_d", lambda op, cases: op.name.endswith("_backward"), "takes what its forward operation gave"),
    ("zero_d zero_size", lambda op, cases: bool(op.lists) and op.shape is None, "hands over whatever to_numpy does"),
    ("zero_d", lambda op, cases: op.shape is broadcast,
     "its 0-d samples have numbers for operands: checked under scalars"),
    ("scalars", _always, "its operands are tensors"),
    ("value", _always, "all of its samples are of another kind"),
)  # fmt: skip


def holes(present: set[tuple[str, str]], has_complex: bool = True) -> dict[tuple[str, str], str]:
    """The reason for each missing pair of operation and kind, with or without complex dtypes."""

    def why(kind: str, operation: Operation) -> str:
        if kind in COMPLEX_KINDS and not has_complex and takes_complex(operation):
            return "the backend declares no complex dtype"
        return why_none(kind, operation)

    return {
        (name, kind): why(kind, operation)
        for name, operation in OPERATIONS.items()
        for kind in KINDS
        if kind not in WHOLE_KINDS and (name, kind) not in present
    }
