"""What is checked of an operation on any backend: values, dtypes, shapes, untouched inputs, gradients by convention.

Each check raises AssertionError where the backend does not do what the contract says.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.autodiff import Autodiff
from backburn.backend.table import OPERATIONS
from backburn.base.dtypes import DType, QuantizedDType, as_dtype
from backburn.conformance.derivatives import is_float
from backburn.conformance.samples import Sample, SampleSet, Stored
from backburn.conformance.tolerances import compare

Array = NDArray[Any]


def arrays(sample: Sample, dtype: str, change: Callable[[Array], Array] = lambda a: a) -> list[Any]:
    """The operands with float arrays in ``dtype``, each array passed through ``change``."""
    with np.errstate(over="ignore"):  # a sample may leave the range of a narrow dtype
        return each(sample.operands, lambda a: change(a.astype(as_dtype(dtype).dtype) if is_float(a) else a))


def each(operands: Any, change: Callable[[Any], Any], kind: type = np.ndarray) -> list[Any]:
    """The operands with what is of ``kind`` passed through ``change``, in lists too."""

    def one(operand: Any) -> Any:
        return change(operand) if isinstance(operand, kind) else operand

    return [[one(o) for o in operand] if isinstance(operand, list) else one(operand) for operand in operands]


def on(k: Any, operands: list[Any]) -> list[Any]:
    """The operands with those that are to be quantized as primitives of a backend."""
    return each(operands, lambda s: s.on(k), Stored)


def can_store(base: Any, scheme: QuantizedDType) -> bool:
    """Whether a backend declares the storage of a scheme, and has the dtype of its steps."""
    declared: frozenset[str] = base.capabilities.storages
    stored = scheme.storage.name in declared and base.capabilities.supports(scheme.scale)
    return stored or scheme in base.capabilities.dtypes


def flat(operands: list[Any]) -> list[Any]:
    """The operands one after the other, those in lists too."""
    return [o for operand in operands for o in (operand if isinstance(operand, list) else [operand])]


def dtype_of(operand: Any) -> DType | None:
    """The dtype of a host operand as a primitive; None for a number and for what is absent."""
    if isinstance(operand, Stored):
        return operand.scheme
    return as_dtype(operand.dtype) if isinstance(operand, np.ndarray) else None


def as_tuple(value: Any) -> tuple[Any, ...]:
    """The outputs of an operation, also where there is one."""
    return value if isinstance(value, tuple) else (value,)


def expected_of(samples: SampleSet, sample: Sample, operands: list[Any]) -> tuple[Any, ...]:
    """The reference in float64, for the values that the operands have in their dtype."""
    inputs = each(each(operands, wide), lambda s: s.values, Stored)
    with np.errstate(all="ignore"):
        return tuple(np.asarray(r) for r in as_tuple(samples.reference(*inputs, **sample.attributes)))


def dtypes_of(samples: SampleSet, sample: Sample, base: Any) -> list[str]:
    """The float dtypes in which to try a sample on a backend; none where it lacks another dtype of the sample.

    What works in float16 must in bfloat16, where the host has it.
    """
    others = [a.dtype.name for a in flat(list(sample.operands)) if isinstance(a, np.ndarray) and not is_float(a)]
    attribute = sample.attributes.get("dtype")
    if attribute is not None and attribute not in base.capabilities.dtypes:
        return []
    if not all(base.capabilities.supports(as_dtype(name)) for name in others):
        return []
    if not all(can_store(base, o.scheme) for o in sample.operands if isinstance(o, Stored)):
        return []
    has_floats = any(is_float(o) for o in flat(list(sample.operands)))
    wanted = list(samples.dtypes) if has_floats else ["float64"]
    if "float16" in wanted and importlib.util.find_spec("ml_dtypes"):
        wanted.append("bfloat16")
    return [name for name in wanted if not has_floats or base.capabilities.supports(as_dtype(name))]


def check_value(samples: SampleSet, sample: Sample, base: Any, dtype: str) -> None:
    """Compare an operation's results with the reference, in value, dtype and shape.

    Inputs must not change, if they are not donated.
    """
    operation = OPERATIONS[samples.name]
    operands = arrays(sample, dtype)
    inputs = on(base, each(operands, base.from_numpy))
    results = as_tuple(getattr(base, samples.name)(*inputs, **sample.attributes))
    expected = expected_of(samples, sample, operands)
    first = [o[0] if isinstance(o, list) and o else o for o in operands]
    known = [dtype_of(o) for o in first]
    dtypes = operation.dtypes(dict(zip(operation.operands, known, strict=False)), sample.attributes, len(expected))
    assert len(results) == len(expected) == len(dtypes), f"{len(results)} results"
    for result, reference, promised in zip(results, expected, dtypes, strict=True):
        got = result if operation.results == ("host",) else base.to_numpy(result)
        assert isinstance(got, np.ndarray), f"the host gets {type(got).__name__}"
        if promised is not None:
            assert base.dtype(result) is promised, f"dtype {base.dtype(result)}, the table says {promised}"
        if operation.results != ("host",):
            assert isinstance(result.shape, tuple), f"a shape is a tuple, not {type(result.shape).__name__}"
            assert result.shape == got.shape, f"shape {result.shape}, on the host {got.shape}"
        compare(got, reference, got.dtype.name if got.dtype.kind not in "iub" else "", samples.tolerance)
    for old, now in zip(flat(operands), flat(inputs), strict=True):
        if isinstance(old, np.ndarray) and not sample.attributes.get("donate"):
            unchanged = np.array_equal(wide(base.to_numpy(now)), wide(old), equal_nan=True)
            assert unchanged, "an input was changed"


def wide(array: Array) -> Array:
    """Floats in float64, whatever their dtype: of bfloat16 NumPy does not know what NaN is."""
    return array if array.dtype.kind in "iub" else array.astype(np.float64)


def check_shape_rule(samples: SampleSet, sample: Sample, base: Any) -> None:
    """Compare the shapes of an operation's results with its shape rule, where there is one."""
    operation = OPERATIONS[samples.name]
    if operation.shape is None:
        return
    operands = arrays(sample, "float64")
    shapes = [
        [np.shape(x) for x in o] if isinstance(o, list) else getattr(o, "shape", None) for o in operands
    ]
    defaults = {n: d for n, d in operation.attributes.items() if d is not operation.parameters[n].empty}
    promised = operation.shape(*shapes, **{**defaults, **sample.attributes})
    results = as_tuple(getattr(base, samples.name)(*on(base, each(operands, base.from_numpy)), **sample.attributes))
    got = tuple(tuple(r.shape) for r in results)
    expected = promised if len(operation.results) > 1 else (tuple(promised),)
    assert got == expected, f"shapes {got}, the rule says {expected}"


def check_conventional_gradients(samples: SampleSet, sample: Sample, base: Any) -> None:
    """Compare with ``sample.gradients``: where there is no derivative, or a choice of them, the documented one."""
    outer: Any = Autodiff(base)

    def lift(a: Array) -> Any:
        x = base.from_numpy(a)
        return outer.set_require_grad(outer.from_inner(x), True) if is_float(a) else x

    operands = on(base, each(arrays(sample, "float64"), lift))
    result = as_tuple(getattr(outer, samples.name)(*operands, **sample.attributes))[0]
    gradients = outer.backward(result)
    assert sample.gradients is not None
    for operand, expected in zip(operands, sample.gradients, strict=True):
        if expected is None:
            continue
        got = outer.grad(operand, gradients)
        assert got is not None, "no gradient"
        compare(base.to_numpy(got), np.asarray(expected, np.float64), "float64", 100.0)
