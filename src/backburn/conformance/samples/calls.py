"""Calls of samples: operands in a dtype, on a backend, with results on the host."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from backburn.base.dtypes import DTYPES, ComplexDType, DType, QuantizedDType, as_dtype, complex64, complex128
from backburn.conformance.samples.table import SAMPLES, Array, Sample, SampleSet, Stored
from backburn.ops.table import OPERATIONS, Operation

#: Int operands that are indices or class labels, whose dtype is not the dtype of the computation.
POINTERS = frozenset({"indices", "labels"})


# ---- operands, some of which may be lists ----


def map_operands(operands: Any, change: Callable[[Any], Any], kind: type | tuple[type, ...] = np.ndarray) -> list[Any]:
    """The operands, with ``change`` applied to those of ``kind``, also in lists."""

    def one(operand: Any) -> Any:
        return change(operand) if isinstance(operand, kind) else operand

    return [[one(o) for o in operand] if isinstance(operand, list) else one(operand) for operand in operands]


def flatten(operands: Iterable[Any]) -> list[Any]:
    """All operands, with lists flattened."""
    return [o for operand in operands for o in (operand if isinstance(operand, list) else [operand])]


def host_arrays(sample: Sample) -> list[Array]:
    """Every array among the operands of a sample."""
    return [o for o in flatten(sample.operands) if isinstance(o, np.ndarray)]


def is_float(operand: Any) -> bool:
    """Whether an operand of a sample is a float array, which has a gradient."""
    return isinstance(operand, np.ndarray) and operand.dtype.kind == "f"


def is_inexact(operand: Any) -> bool:
    """Whether an operand of a sample is an array of floats or complex numbers."""
    return isinstance(operand, np.ndarray) and operand.dtype.kind in "fc"


def leaves(sample: Sample) -> list[Array]:
    """The float arrays of a sample in order, including those in lists."""
    return [a for a in host_arrays(sample) if is_float(a)]


def arrays(sample: Sample, dtype: str) -> list[Any]:
    """The operands of a sample, with float arrays in ``dtype``, or in the dtype of its parts if it is complex."""
    wanted = as_dtype(dtype)
    floats = wanted.part if isinstance(wanted, ComplexDType) else wanted

    def one(array: Array) -> Array:
        if array.dtype.kind == "c" and wanted.kind == "complex":
            return array.astype(wanted.dtype)
        return array.astype(floats.dtype) if is_float(array) else array

    with np.errstate(over="ignore"):  # a sample may exceed the range of a narrow dtype
        return map_operands(sample.operands, one)


def as_float64(array: Array) -> Array:
    """Floats in float64 and complex numbers in complex128, since NumPy does not recognize NaN in bfloat16."""
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    return array if array.dtype.kind in "iub" else array.astype(np.float64)


def dtype_of(operand: Any) -> DType | None:
    """The dtype of a host operand as a primitive; None for numbers and absent operands."""
    if isinstance(operand, Stored):
        return operand.scheme
    return as_dtype(operand.dtype) if isinstance(operand, np.ndarray) else None


def operands_of(name: str, sample: Sample, dtype: str) -> list[Any]:
    """The operands of ``sample`` as host arrays, with its floats, or for an int dtype its int64 arrays, in ``dtype``.

    For a complex dtype, complex numbers are in ``dtype``, and floats in the dtype of its parts.
    """
    wanted = DTYPES.get(dtype)
    operands = arrays(sample, dtype if wanted is not None and wanted.has_gradient else "float64")
    if wanted is None or wanted.kind != "int":
        return operands
    names = OPERATIONS[name].operands
    return [
        operand
        if n in POINTERS
        else map_operands([operand], lambda a: a.astype(dtype) if a.dtype == np.int64 else a)[0]
        for n, operand in zip(names, operands, strict=False)
    ]


def is_float_name(dtype: str) -> bool:
    """Whether ``dtype`` names a float dtype."""
    return dtype in DTYPES and DTYPES[dtype].is_floating


def store_quantized(k: Any, operands: list[Any]) -> list[Any]:
    """The operands, with :class:`Stored` ones as quantized primitives of a backend."""
    return map_operands(operands, lambda s: s.on(k), Stored)


def to_primitives(backend: Any, operands: list[Any]) -> list[Any]:
    """Host operands as primitives of a backend; floats are untracked."""
    return store_quantized(backend, map_operands(operands, backend.from_numpy))


# ---- indices ----

#: The length of the axis that an operation's indices refer to, unless it is ``axis`` of ``x``.
_LENGTHS: dict[str, Callable[[list[Any], dict[str, Any]], int]] = {
    "take_along_axis_backward": lambda o, a: int(a["shape"][a["axis"]]),
    "take_backward": lambda o, a: int(a["length"]),
    "gather_nd": lambda o, a: int(o[0].shape[o[1].shape[-1] - 1]),
    "scatter_nd": lambda o, a: int(o[0].shape[o[1].shape[-1] - 1]),
}
#: Operations whose indices hold, along their last axis, an index into each of several axes.
PLACES = ("gather_nd", "scatter_nd")


def indexed_length(name: str, operands: list[Any], attributes: dict[str, Any]) -> int:
    """The length of the axis that the indices or labels among the operands refer to."""
    operation = OPERATIONS[name]
    attributes = {**operation.attributes, **attributes}
    if name in _LENGTHS:
        return _LENGTHS[name](operands, attributes)
    values = {n: o for n, o in zip(operation.operands, operands, strict=False) if n not in POINTERS}
    target = values.get("x", next(iter(values.values())))
    return int(target.shape[attributes.get("axis", 0)])


# ---- calls ----


def as_tuple(value: Any) -> tuple[Any, ...]:
    """The outputs of an operation as a tuple, also for a single one."""
    return value if isinstance(value, tuple) else (value,)


def call(backend: Any, name: str, operands: list[Any], attributes: dict[str, Any]) -> tuple[Any, ...]:
    """All outputs of an operation on primitives."""
    return as_tuple(getattr(backend, name)(*operands, **attributes))


def to_host(backend: Any, name: str, results: tuple[Any, ...]) -> list[Array]:
    """The outputs as host arrays; some operations return such arrays."""
    if OPERATIONS[name].results == ("host",):
        return [np.asarray(r) for r in results]
    return [np.asarray(backend.to_numpy(r)) for r in results]


def run_sample(backend: Any, name: str, sample: Sample, dtype: str) -> list[Array]:
    """The outputs of a sample's call as host arrays."""
    inputs = to_primitives(backend, operands_of(name, sample, dtype))
    return to_host(backend, name, call(backend, name, inputs, sample.attributes))


def expected_of(samples: SampleSet, sample: Sample, operands: list[Any]) -> tuple[Any, ...]:
    """The results of the reference in float64, for the values of the operands in their dtype."""
    inputs = map_operands(map_operands(operands, as_float64), lambda s: s.values, Stored)
    with np.errstate(all="ignore"):
        return tuple(np.asarray(r) for r in as_tuple(samples.reference(*inputs, **sample.attributes)))


def same_bits(first: Array, second: Array) -> bool:
    """Whether two arrays have the same shape, dtype and values, including NaN and the sign of zero."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.dtype.kind == "c":
        return same_bits(np.real(first), np.real(second)) and same_bits(np.imag(first), np.imag(second))
    a, b = as_float64(first), as_float64(second)
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    return bool(np.array_equal(a, b, equal_nan=True) and np.array_equal(np.signbit(a), np.signbit(b)))


# ---- dtypes ----


def main_dtype(name: str, sample: Sample) -> str:
    """The dtype that identifies a call without floats: that of its first value, its attribute, or its result."""
    like = OPERATIONS[name].like or OPERATIONS[name].operands
    named = zip(OPERATIONS[name].operands, sample.operands, strict=False)
    values = [a for n, o in named if n in like for a in flatten([o]) if isinstance(a, np.ndarray)]
    if found := values or host_arrays(sample):
        return str(as_dtype(found[0].dtype).name)
    if schemes := [o.scheme.name for o in sample.operands if isinstance(o, Stored)]:
        return schemes[0]
    attribute = sample.attributes.get("dtype")
    if isinstance(attribute, DType):
        return attribute.name
    result = OPERATIONS[name].results[0]
    return result if result in DTYPES else "any"


def can_store(base: Any, scheme: QuantizedDType) -> bool:
    """Whether a backend declares the storage of a scheme, and has the dtype of its steps."""
    declared: frozenset[str] = base.capabilities.storages
    stored = scheme.storage.name in declared and base.capabilities.supports(scheme.scale)
    return stored or scheme in base.capabilities.dtypes


def dtypes_of(name: str, sample: Sample, backend: Any) -> list[str]:
    """The dtypes in which a sample can be tried on a backend; none if the backend lacks another dtype of the sample.

    Floats are tried in each float dtype of the operation, and with float16 also in bfloat16, if the host has it.
    """
    capabilities = backend.capabilities
    attribute = sample.attributes.get("dtype", OPERATIONS[name].attributes.get("dtype"))
    if isinstance(attribute, QuantizedDType) and not can_store(backend, attribute):
        return []
    if isinstance(attribute, DType) and attribute.kind != "quantized" and attribute not in capabilities.dtypes:
        return []
    others = [a for a in host_arrays(sample) if not is_float(a)]
    if not all(capabilities.supports(as_dtype(a.dtype)) for a in others):
        return []
    if not all(can_store(backend, o.scheme) for o in sample.operands if isinstance(o, Stored)):
        return []
    if not leaves(sample):
        return [main_dtype(name, sample)]
    if "complex" in OPERATIONS[name].results and not capabilities.supports(complex128):
        return []
    wanted = list(SAMPLES[name].dtypes)
    if "float16" in wanted and importlib.util.find_spec("ml_dtypes"):
        wanted.append("bfloat16")
    return [d for d in wanted if capabilities.supports(as_dtype(d))]


def complex_dtypes(backend: Any) -> list[str]:
    """The complex dtypes in which a backend computes."""
    return [dtype.name for dtype in (complex64, complex128) if backend.capabilities.supports(dtype)]


# ---- promises of the operation table ----


def promised_dtypes(
    operation: Operation, operands: list[Any], attributes: dict[str, Any], outputs: int
) -> tuple[DType | None, ...]:
    """The dtypes of the outputs, by the table; ``outputs`` is their number if the table leaves it open."""
    first = [o[0] if isinstance(o, list) and o else o for o in operands]
    known = [dtype_of(o) for o in first]
    return operation.dtypes(dict(zip(operation.operands, known, strict=False)), attributes, outputs)


def promised_shapes(operation: Operation, operands: list[Any], attributes: dict[str, Any]) -> tuple[Any, ...] | None:
    """The shapes of the outputs, by the shape rule; None if they depend on values. Raises what the rule raises."""
    promised = operation.result_shape(operands, attributes)
    if promised is None:
        return None
    return tuple(tuple(s) for s in promised) if len(operation.results) > 1 else (tuple(promised),)
