"""How tensor functions call their backend: operands checked and promoted to one dtype, the call, the result wrapped.

A call that succeeds pays for nothing that only a failing one needs: an error is explained after the backend has
raised it; see :mod:`backburn.tensor.messages`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from backburn.backend.contract import AnyBackend
from backburn.backend.table import KINDS, OPERATIONS, Operation
from backburn.base.contexts import default_float
from backburn.base.dtypes import DType, FloatDType, float32, promote, promote_scalar
from backburn.base.errors import ArgumentError, BackburnError, DeviceMemoryError, DTypeError
from backburn.base.quiet import RAISED, silence
from backburn.tensor.levels import common_backend, lift
from backburn.tensor.messages import describe, explain, type_name
from backburn.tensor.wrapping import CLASSES, TENSORS, flat, is_tensor, wrap

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor

Scalar = bool | int | float


# ---- dtypes ----


def scalar_of(value: Any) -> Scalar | None:
    """``value`` as a Python scalar; None if it is not a real scalar of Python or NumPy."""
    if value.__class__ in (float, int, bool):
        return value
    if isinstance(value, (bool, int, float)):
        return float(value) if isinstance(value, float) else int(value)
    item = getattr(value, "item", None)
    if item is not None and not is_tensor(value) and getattr(value, "shape", None) == () and hasattr(value, "dtype"):
        found = item()
        return found if isinstance(found, (bool, int, float)) else None
    return None


def fit(scalar: Scalar, dtype: DType) -> Scalar:
    """A Python scalar converted to the Python type that goes with operands of ``dtype``."""
    if dtype.kind == "float":
        return float(scalar)
    return int(scalar) if dtype.kind == "int" else bool(scalar)


def operand(name: str, value: Any, among: Sequence[Any]) -> Any:
    """``value`` as a tensor or a Python scalar; raises :class:`DTypeError`, which describes the operands ``among``."""
    if value.__class__ in TENSORS:
        return value
    scalar = scalar_of(value)
    if scalar is None:
        hint = "bb.asarray(...) makes a tensor"
        if value is None and name in ("equal", "not_equal"):
            hint = "write 'x is None' to ask whether there is one"
        elif isinstance(value, complex):
            hint = "complex numbers have no dtype here"
        words = ", ".join(describe((x,)) or "None" for x in among)
        raise DTypeError(
            f"{name}: takes tensors and Python numbers, not {type_name(value)}; {hint}. Operands: {words}"
        )
    return scalar


def common_dtype(name: str, operands: Sequence[Any]) -> DType:
    """The dtype of an operation on tensors and (weak) Python scalars."""
    dtypes = [x._dtype for x in operands if is_tensor(x)]
    try:
        result: DType = dtypes[0]
        for dtype in dtypes[1:]:
            result = promote(result, dtype)
        for x in operands:
            if not is_tensor(x):
                result = promote_scalar(result, x, _default_float(operands))
    except DTypeError as error:
        raise DTypeError(f"{name}: {error}. Operands: {describe(operands)}") from None
    return result


def _default_float(operands: Sequence[Any]) -> DType:
    """The default float of the first tensor's backend."""
    return default_float(next(x._backend for x in operands if is_tensor(x)))


def cast(x: Any, dtype: DType) -> Any:
    """Tensor ``x`` in another dtype; ``x`` itself if it already has it."""
    if x._dtype is dtype:
        return x
    k = x._backend
    if x._dtype.kind == "quantized":  # the result of another operation, on a backend that propagates
        chosen = dtype if dtype.kind == "float" else default_float(k)
        return cast(CLASSES["float"](k.dequantize(x._primitive, chosen), k, chosen), dtype)
    try:
        try:
            primitive = k.cast(x._primitive, dtype)
        except RAISED as raised:
            with silence(raised, k):
                primitive = k.cast(x._primitive, dtype)
    except Exception as error:
        explain("cast", (x,), {"dtype": dtype}, error)
    return CLASSES[dtype.kind](primitive, k, dtype)


def widened_dtype(dtype: DType) -> DType:
    """A float dtype of at least 32 bits, in which sums and products of 16-bit floats are exact enough."""
    return float32 if dtype.bits < 32 else dtype


def widened(x: Any) -> Any:
    """A float tensor in its :func:`widened_dtype`."""
    return x if x._dtype.bits >= 32 else cast(x, float32)


def promoted(name: str, *operands: Any, kinds: str = "") -> list[Any]:
    """``operands`` in their common dtype, tensors cast and scalars fitted.

    If the operation takes floats only, integers become the default float. Raises :class:`DTypeError` for other kinds
    that it does not take.
    """
    takes = kinds or OPERATIONS[name].kinds
    kind = _shared_kind(operands)
    if kind in _kinds_of(takes):
        if kind != "float":
            return list(operands)
        try:
            return [float(x) if x.__class__ is int else x for x in operands]
        except OverflowError:  # explained below
            pass
    values = [operand(name, x, operands) for x in operands]
    if not any(is_tensor(x) for x in values):
        raise ArgumentError(f"{name}: at least one operand must be a tensor. bb.asarray(...) makes one")
    try:
        dtype = accepted(name, common_dtype(name, values), takes, values)
    except DTypeError:
        if "F" not in takes or "Q" in takes or not any(is_quantized(x) for x in values):
            raise
        known = [x.dtype for x in values if is_tensor(x) and x.dtype.kind == "float"]
        values = [dequantized(x, known[0] if known else None) if is_quantized(x) else x for x in values]
        dtype = accepted(name, common_dtype(name, values), takes, values)
    try:
        return [cast(x, dtype) if is_tensor(x) else fit(x, dtype) for x in values]
    except OverflowError as cause:  # an integer that no float holds
        raise ArgumentError(f"{name}: {cause}. Operands: {describe(values)}") from cause


def _shared_kind(operands: Sequence[Any]) -> str:
    """The kind of tensors of one dtype, among which there may be Python numbers that do not change it; else empty."""
    dtype: DType | None = None
    numbers: tuple[str, ...] = ("float", "int", "bool", "quantized")  # the kinds that the numbers do not change
    for x in operands:
        if x.__class__ in TENSORS and (dtype is None or x._dtype is dtype):
            dtype = x._dtype
        elif x.__class__ is float:
            numbers = ("float",)
        elif x.__class__ is int:
            numbers = numbers[:2]
        else:
            return ""
    return dtype.kind if dtype is not None and dtype.kind in numbers else ""


def promoted_present(name: str, *operands: Any) -> list[Any]:
    """:func:`promoted` of the tensors among optional operands; None stays None."""
    values = promoted(name, *[tensor_operand(name, x) for x in operands if x is not None])
    if len(values) == len(operands):
        return values
    present = iter(values)
    return [None if x is None else next(present) for x in operands]


@functools.cache
def _kinds_of(letters: str) -> frozenset[str]:
    """The kinds of tensors that these letters of the operation table stand for."""
    return frozenset(KINDS[c] for c in letters)


def accepted(name: str, dtype: DType, kinds: str, operands: Sequence[Any]) -> DType:
    """``dtype``, or the default float for integers if only floats are taken; :class:`DTypeError` for other kinds."""
    if dtype.kind in _kinds_of(kinds):
        return dtype
    if dtype.kind == "int" and "F" in kinds:
        return _default_float(operands)
    takes = " and ".join(KINDS[c] for c in kinds)
    advice = "dequantize it first" if dtype.kind == "quantized" else "cast it with astype(...)"
    raise DTypeError(f"{name}: takes {takes} tensors, not {dtype.kind}; {advice}. Operands: {describe(operands)}")


# ---- quantized operands of operations on floats ----

#: What makes calls with quantized operands, else answers None, once a backend is in use that quantizes results again.
PROPAGATED: list[Callable[[str, Sequence[Any], dict[str, Any]], Any]] = []


def is_quantized(x: Any) -> bool:
    """Whether ``x`` is a quantized tensor."""
    return is_tensor(x) and x._dtype.kind == "quantized"


def dequantized(x: Any, dtype: DType | None = None) -> Any:
    """A quantized operand as a float tensor, for an operation that takes floats only."""
    k = x.backend
    chosen = dtype or default_float(k)
    if k.capabilities.propagates:
        from backburn.tensor.propagate import Dequantized

        return Dequantized.of(x, chosen)
    return CLASSES["float"](k.dequantize(x._primitive, chosen), k, chosen)


# ---- calls ----


def unwrap(name: str, operands: Sequence[Any]) -> tuple[AnyBackend, list[Any]]:
    """The highest backend of the operands, and their primitives on it."""
    backend: AnyBackend | None = None
    primitives: list[Any] = []
    for x in operands:
        if x.__class__ in TENSORS:
            if backend is None:
                backend = x._backend
            elif x._backend is not backend:
                break
            primitives.append(x._primitive)
        elif x.__class__ is list:
            if backend is None and x:
                backend = x[0]._backend
            alike = [t._primitive for t in x if t._backend is backend]
            if len(alike) < len(x):
                break
            primitives.append(alike)
        else:
            primitives.append(x)
    else:
        if backend is not None:
            return backend, primitives
    # Operands on several levels, which are lifted to the highest.
    backend = common_backend(name, flat(operands))
    return backend, [
        [lift(t, backend) for t in x] if x.__class__ is list else lift(x, backend) if is_tensor(x) else x
        for x in operands
    ]


#: The operations of the contract that keep the dtype of their operands; what users' own return is looked at.
_KEEPING = frozenset(name for name, entry in OPERATIONS.items() if entry.results == ("same",))


def call(name: str, /, *operands: Any, **attributes: Any) -> Any:
    """Call operation ``name`` on tensors, Python scalars, None and lists of tensors that are already promoted."""
    for propagated in PROPAGATED:
        if (result := propagated(name, operands, attributes)) is not None:
            return result
    dtype: Any = None  # of the result, where that of the operand tells
    if len(operands) == 1 and operands[0].__class__ is CLASSES["float"]:
        (x,) = operands
        backend, primitives = x._backend, [x._primitive]
        if name in _KEEPING:
            dtype = x._dtype
    else:
        backend, primitives = unwrap(name, operands)
    try:
        try:
            result = getattr(backend, name)(*primitives, **attributes)
        except RAISED as raised:
            with silence(raised, backend):
                result = getattr(backend, name)(*primitives, **attributes)
    except Exception as error:
        explain(name, operands, attributes, error)
    if result.__class__ is tuple:
        return tuple([wrap(r, backend) for r in result])
    if dtype is None:
        dtype = backend.dtype(result)
    return CLASSES[dtype.kind](result, backend, dtype)  # as ``wrap``, without one more call


def unary(name: str, x: Any) -> Any:
    """An operation on one tensor that keeps its dtype; integers become floats if it takes floats only."""
    try:
        k, dtype = x._backend, x._dtype
        if dtype.__class__ is FloatDType:
            return x.__class__(getattr(k, name)(x._primitive), k, dtype)
    except RAISED:  # handled by ``call``
        pass
    except Exception as error:
        if is_tensor(x):
            explain(name, (x,), {}, error)
    return call(name, *promoted(name, x))


def binary(name: str, x: Any, y: Any) -> Any:
    """An operation on two tensors, or on a tensor and a Python scalar, after promotion.

    Float tensors of one dtype on one backend, and a float tensor with a Python number, need no promotion and take a
    short cut to the backend.
    """
    entry = OPERATIONS[name]
    if "F" in entry.kinds:
        try:
            if is_plain_float(x):
                k, dtype, first = x._backend, x._dtype, x._primitive
                if is_plain_float(y):
                    if y._dtype is dtype and y._backend is k:
                        return of_floats(entry, getattr(k, name)(first, y._primitive), k, dtype)
                elif y.__class__ is float or y.__class__ is int:
                    return of_floats(entry, getattr(k, name)(first, float(y)), k, dtype)
            elif is_plain_float(y) and (x.__class__ is float or x.__class__ is int):
                k = y._backend
                return of_floats(entry, getattr(k, name)(float(x), y._primitive), k, y._dtype)
        except RAISED:  # handled by ``call``
            pass
        except Exception as error:
            explain(name, (x, y), {}, error)
    return call(name, *promoted(name, x, y))


def is_plain_float(x: Any) -> bool:
    """Whether ``x`` is a float tensor."""
    return x.__class__ in TENSORS and x._dtype.__class__ is FloatDType


def of_floats(entry: Operation, primitive: Any, backend: AnyBackend, dtype: DType) -> Any:
    """Wrap the result of an operation on floats of ``dtype``; its dtype follows from the table entry."""
    if entry.results[0] == "same":
        return CLASSES["float"](primitive, backend, dtype)
    return wrap(primitive, backend)


def tensor_operand(name: str, value: Any) -> Any:
    """``value``, which must be a tensor."""
    if value.__class__ in TENSORS:
        return value
    raise DTypeError(f"{name}: takes a tensor, not {type_name(value)}. bb.asarray(...) makes one")


def float_operand(name: str, value: Any) -> FloatTensor:
    """``value`` as a float tensor; integers become the default float. Raises :class:`DTypeError` for other kinds."""
    if value.__class__ in TENSORS and value._dtype.__class__ is FloatDType:
        return value
    x = tensor_operand(name, value)
    if x._dtype.kind == "quantized":
        x = dequantized(x)
    return cast(x, accepted(name, x._dtype, "F", (x,)))


def kind_operand(name: str, value: Any, kinds: str = "") -> Any:
    """``value`` as a tensor of one of ``kinds`` (by default those of the operation); :class:`DTypeError` for others."""
    takes = kinds or OPERATIONS[name].kinds
    if value.__class__ in TENSORS and value._dtype.kind in _kinds_of(takes):
        return value
    x = tensor_operand(name, value)
    if x.dtype.kind == "quantized" and "F" in takes and "Q" not in takes:
        return dequantized(x)
    accepted(name, x.dtype, takes, (x,))
    return x


def create(name: str, backend: AnyBackend, **attributes: Any) -> Any:
    """The result of an operation without operands on ``backend``."""
    try:
        try:
            primitive = getattr(backend, name)(**attributes)
        except RAISED as raised:
            with silence(raised, backend):
                primitive = getattr(backend, name)(**attributes)
    except Exception as error:
        if isinstance(error, MemoryError) and not isinstance(error, BackburnError):
            raise _too_large(OPERATIONS[name], backend, attributes) from error
        explain(name, (), attributes, error)
    return wrap(primitive, backend)


def _too_large(entry: Operation, backend: AnyBackend, attributes: dict[str, Any]) -> DeviceMemoryError:
    """The error for a new tensor that does not fit into the memory of the device."""
    shape: tuple[int, ...] = entry.result_shape((), attributes) or ()
    (dtype,) = entry.dtypes({}, attributes)
    size = math.prod(shape) * (dtype or default_float(backend)).itemsize
    return DeviceMemoryError(
        f"{entry.name}: the memory of {backend.device} is exhausted: {dtype}[{','.join(map(str, shape))}] "
        f"({backend.spec}) takes {size:,} bytes ({size / 2**30:,.1f} GiB). Make less at a time, or a smaller dtype"
    )
