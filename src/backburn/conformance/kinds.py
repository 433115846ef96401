"""The kinds of check, and why an operation has none of some kind."""

from __future__ import annotations

from backburn.backend.shapes import broadcast
from backburn.backend.table import KINDS as LETTERS
from backburn.backend.table import OPERATIONS, Operation
from backburn.base.dtypes import DTYPES
from backburn.base.errors import BackburnError
from backburn.conformance.behaviour import refused_calls
from backburn.conformance.calls import flat, host_arrays, is_float, is_float_name, leaves, main_dtype
from backburn.conformance.edge_samples import EDGE_FAMILIES, OPEN
from backburn.conformance.samples import SAMPLES
from backburn.conformance.whole_backend import ROUND_TRIPS

#: Every kind of check, and what it asks.
KINDS: dict[str, str] = {
    "value": "results near the float64 reference",
    "broadcasting": "the same, of operands of different shapes",
    "scalars": "the same, with a Python number for an operand",
    "zero_d": "the same, of operands without dimensions",
    "zero_size": "the same, without elements",
    "special": "the same, of NaN, infinities and signed zeros",
    "integer_edges": "the same, of the largest and smallest integers",
    "random": "random numbers, bit by bit the ones of the contract",
    "dtype": "result dtypes as in the operation table",
    "shape": "result shapes as the shape rule says",
    "layout": "inputs that are reversed, strided and transposed views",
    "mutation": "inputs that are left as they were",
    "aliasing": "results that neither later calls nor the host can change",
    "determinism": "equal calls, equal bits",
    "errors": "arguments that must be refused",
    "bounds": "values that must be refused: indices out of range, singular matrices",
    "signature": "operands, options and their defaults",
    "round_trip": "there and back again",
    "quantized": "the quantized kind",
    "capabilities": "declared dtypes work, undeclared ones raise Unsupported",
    "protocol": "what the backend says of itself, and waiting for it",
    "gradient": "gradients near central differences of the reference, in dtype and shape of their inputs",
    "convention": "the documented gradient where there is none, or a choice",
    "second_gradient": "gradients of gradients near central differences",
    "recorded": "recording changes no result",
    "untracked": "nothing is recorded, and no gradient flows, unasked",
    "fan_out": "gradients of several uses add up",
    "reuse": "one tensor as several operands",
    "release": "memory of the graph goes with its tensors",
    "trait": "the twelve methods of an autodiff backend",
}
#: Kinds of the backend as a whole, of no operation.
WHOLE_KINDS = ("protocol", "trait")
VALUE_KINDS = (
    "value", "broadcasting", "scalars", "zero_d", "zero_size", "special", "integer_edges", "random"
)  # fmt: skip
GRADIENT_KINDS = (
    "gradient", "convention", "second_gradient", "recorded", "untracked", "fan_out", "reuse", "release"
)  # fmt: skip
KIND_LETTERS = {kind: letter for letter, kind in LETTERS.items()}
#: The reason of a hole that nothing explains.
UNEXPLAINED = "no sample"


def exists_in(operation: str, dtype: str) -> bool:
    """Whether an operation exists in a dtype, by its kinds and by the float dtypes that its samples are limited to."""
    kind = DTYPES[dtype].kind
    if not OPERATIONS[operation].operands and "dtype" not in OPERATIONS[operation].attributes:
        return dtype in OPERATIONS[operation].results
    if KIND_LETTERS[kind] not in OPERATIONS[operation].kinds:
        return False
    if kind != "float" or operation not in SAMPLES:
        return True
    return ("float16" if dtype == "bfloat16" else dtype) in SAMPLES[operation].dtypes


def why_none(kind: str, operation: Operation) -> str:
    """Why an operation has no check of a kind, by the table and its samples; ``"no sample"`` where nothing says why."""
    cases = SAMPLES[operation.name].cases if operation.name in SAMPLES else ()
    if kind in WHOLE_KINDS:
        return "concerns the backend as a whole"
    if kind in ("round_trip", "quantized", "capabilities"):
        return {
            "round_trip": f"no way back is tried (tried: from_numpy, to_numpy, {', '.join(ROUND_TRIPS)})",
            "quantized": "takes no quantized tensor, or moves none",
            "capabilities": "no dtype enters through it",
        }[kind]
    if kind == "random":
        return "draws no random numbers"
    if operation.family == "random" and kind in ("value", "zero_size", "zero_d", "integer_edges"):
        return "its values are checked under random"
    if not cases:
        return _WITHOUT_SAMPLES.get(operation.name, UNEXPLAINED)
    if kind in GRADIENT_KINDS:
        return _why_no_gradient(kind, operation)
    if not operation.operands and kind in ("layout", "mutation", "broadcasting", "scalars", "special", "integer_edges"):
        return "has no operands"
    if kind in ("layout", "mutation") and not any(host_arrays(c) for c in cases):
        return "its operands are quantized, which hosts have no views of"
    if kind == "bounds":
        return "takes no indices, and refuses no values"
    if kind == "errors":
        return _why_no_errors(operation)
    if kind == "shape" and (operation.shape is None or operation.results == ("host",)):
        return "the shape depends on data" if operation.shape is None else "the result is no primitive"
    if kind in ("broadcasting", "scalars") and operation.shape is not broadcast:
        return "operands do not broadcast" if kind == "broadcasting" else "takes no number for an operand"
    if kind == "broadcasting" and len(operation.operands) == 1:
        return "operands do not broadcast"
    if kind == "special" and "F" not in operation.kinds:
        return "takes no floats"
    if kind == "integer_edges" and "I" not in operation.kinds:
        return "takes no integers"
    if kind in ("zero_d", "zero_size") and (reason := _refused(operation, kind)):
        return reason
    if kind in ("special", "integer_edges") and (operation.family not in EDGE_FAMILIES or operation.name in OPEN):
        return "what it does with NaN and infinities is left open" if kind == "special" else "overflow is left open"
    if kind == "integer_edges":
        return "no sample of int64 values"
    if "axis" in operation.attributes and kind == "zero_d":
        return "needs dimensions"
    if kind == "zero_d" and operation.name.endswith("_backward"):
        return "takes what its forward operation gave"
    if kind in ("zero_d", "zero_size") and operation.lists and operation.shape is None:
        return "hands over whatever to_numpy does"
    if kind == "zero_d" and operation.shape is broadcast:
        return "its 0-d samples have numbers for operands: checked under scalars"
    if kind == "scalars":
        return "its operands are tensors"
    if kind == "value":
        return "all of its samples are of another kind"
    return UNEXPLAINED


#: Why operations have no samples: they cannot be compared with a reference on the host.
_WITHOUT_SAMPLES = {
    "from_numpy": "its result is read back by to_numpy: checked under round_trip and capabilities",
    "empty": "its values are left open",
}


def _why_no_gradient(kind: str, operation: Operation) -> str:
    cases = SAMPLES[operation.name].cases
    if not operation.differentiable:
        return "not differentiable"
    if not any(leaves(c) for c in cases):
        return "samples without float operands"
    if kind == "convention":
        return (
            "nothing is left to convention" if all(c.smooth for c in cases) else "no convention besides its neighbours'"
        )
    if kind == "second_gradient":
        return "nowhere twice differentiable" if not any(c.smooth >= 2 for c in cases) else UNEXPLAINED
    if kind in ("gradient", "fan_out", "release") and not any(c.smooth and leaves(c) for c in cases):
        return "nowhere differentiable: see convention"
    if kind == "reuse":
        pairs = [c for c in cases if len(c.operands) > 1 and all(map(is_float, c.operands[:2]))]
        if not any(c.operands[0].shape == c.operands[1].shape for c in pairs):
            return "has no two float operands of one shape"
        return "the shared samples have no two float operands of one shape"
    return UNEXPLAINED


def _why_no_errors(operation: Operation) -> str:
    if operation.shape is None:
        return "no shape rule, which says what to refuse"
    if len(operation.operands) <= 1 and not operation.attributes:
        return "takes every tensor of its kind"
    cases = SAMPLES[operation.name].cases
    if not any(refused_calls(operation, c, d) for c in cases[:3] if is_float_name(d := _dtype(operation, c))):
        return "the shape rule refuses no change of one argument"
    return UNEXPLAINED


def _dtype(operation: Operation, sample: object) -> str:
    name = main_dtype(operation.name, sample)  # type: ignore[arg-type]
    return name if name != "any" else "float64"


def _refused(operation: Operation, kind: str) -> str:
    """The shape rule's own words where it refuses every operand of no dimensions, or without elements."""
    if not operation.operands:
        return "has no shape among its options"
    if operation.shape is None:
        return ""
    cases = SAMPLES[operation.name].cases
    sample = next((c for c in cases if any(hasattr(o, "shape") for o in flat(c.operands))), None)
    if sample is None:
        return ""
    shape = () if kind == "zero_d" else (0,)
    shapes = [shape if hasattr(o, "shape") else [shape] if isinstance(o, list) else None for o in sample.operands]
    try:
        operation.shape(*shapes, **{**operation.defaults, **sample.attributes})
    except BackburnError:
        return "needs dimensions" if kind == "zero_d" else "needs elements, or is refused for its samples' options"
    except Exception:
        return "needs dimensions" if kind == "zero_d" else "needs more dimensions"
    return ""


def holes(present: set[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """The reason for each pair of operation and kind that ``present`` lacks."""
    return {
        (name, kind): why_none(kind, operation)
        for name, operation in OPERATIONS.items()
        for kind in KINDS
        if kind not in WHOLE_KINDS and (name, kind) not in present
    }
