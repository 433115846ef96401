"""Backend calls of tensor functions: operands are checked and promoted, and results wrapped as tensors.

A successful call does no work for error messages: an error is explained after the backend has raised it; see
:mod:`backburn.tensor.core.messages`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from backburn.backend.contract import AnyBackend
from backburn.backend.opaque import Opaque
from backburn.base.contexts import default_float
from backburn.base.dtypes import ComplexDType, DType, FloatDType, bool_, float32, promote, promote_scalar
from backburn.base.errors import ArgumentError, BackburnError, DeviceMemoryError, DTypeError
from backburn.ops.table import KINDS, OPERATIONS, Operation
from backburn.tensor.core import complex_numbers
from backburn.tensor.core.integers import CANCEL, beyond, compared, has_wide_integers, in_float64, loses
from backburn.tensor.core.levels import common_backend, lift
from backburn.tensor.core.messages import describe, explain, type_name
from backburn.tensor.core.wrapping import CLASSES, REAL_TENSORS, TENSORS, flat, is_tensor, wrap

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor

Scalar = bool | int | float
Number = bool | int | float | complex
BinaryFunction = Callable[[Any, Any], Any]


# ---- dtypes ----


def as_scalar(value: Any) -> Scalar | None:
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


def as_number(value: Any) -> Number | None:
    """:func:`as_scalar`, or a complex number of Python or NumPy as Python's."""
    if value.__class__ is complex or isinstance(value, complex):
        return complex(value)
    scalar = as_scalar(value)
    if scalar is None and not is_tensor(value) and getattr(value, "shape", None) == () and hasattr(value, "item"):
        found = value.item()
        return found if found.__class__ is complex else None
    return scalar


def fit(scalar: Any, dtype: DType) -> Any:
    """A Python scalar converted to the Python type that matches operands of ``dtype``."""
    if dtype.is_floating:
        return float(scalar)
    if dtype.kind == "complex":
        return complex(scalar)
    return int(scalar) if dtype.kind == "int" else bool(scalar)


def operand(name: str, value: Any, among: Sequence[Any]) -> Any:
    """``value`` as a tensor or a Python scalar; raises :class:`DTypeError`, which describes the operands ``among``."""
    if value.__class__ in TENSORS:
        return value
    scalar = as_number(value)
    if scalar is None:
        hint = "bb.asarray(...) makes a tensor"
        if value is None and name in ("equal", "not_equal"):
            hint = "write 'x is None' to test for None"
        elif isinstance(value, Opaque):
            hint = f"the body of an operation receives primitives: write k.{name}(...)"
        words = ", ".join(describe((x,)) or "None" for x in among)
        raise DTypeError(f"{name}: takes tensors and Python numbers, not {type_name(value)}; {hint}. Operands: {words}")
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
    if (dtype.__class__ is ComplexDType or x._dtype.__class__ is ComplexDType) and dtype.kind != x._dtype.kind:
        return complex_numbers.converted(x, dtype)
    if x._dtype.kind == "quantized":  # a result that a backend has requantized
        float_dtype = dtype if dtype.is_floating else default_float(k)
        return cast(CLASSES["float"](k.dequantize(x._primitive, float_dtype), k, float_dtype), dtype)
    try:
        primitive = k.astype(x._primitive, dtype)
    except Exception as error:
        explain("astype", (x,), {"dtype": dtype}, error)
    return CLASSES[dtype.kind](primitive, k, dtype)


def upcast_half_dtype(dtype: DType) -> DType:
    """A float dtype of at least 32 bits, in which sums and products of 16-bit floats are accurate enough."""
    return float32 if dtype.bits < 32 else dtype


def upcast_half(x: Any) -> Any:
    """A float tensor in its :func:`upcast_half_dtype`."""
    return x if x._dtype.bits >= 32 else cast(x, float32)


def promote_operands(name: str, *operands: Any, kinds: str = "") -> list[Any]:
    """``operands`` in their common dtype, tensors cast and scalars fitted.

    If the operation takes floats only, integers become the default float. Raises :class:`DTypeError` for other kinds
    that it does not take.
    """
    takes = kinds or OPERATIONS[name].kinds
    kind = _shared_kind(operands)
    if kind in _kinds(takes):
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
        dtype = accept_dtype(name, common_dtype(name, values), takes, values)
    except DTypeError:
        if "F" not in takes or "Q" in takes or not any(is_quantized(x) for x in values) or has_complex(values):
            raise
        known = [x.dtype for x in values if is_tensor(x) and x.dtype.is_floating]
        values = [dequantize_operand(x, known[0] if known else None) if is_quantized(x) else x for x in values]
        dtype = accept_dtype(name, common_dtype(name, values), takes, values)
    try:
        return [cast(x, dtype) if is_tensor(x) else fit(x, dtype) for x in values]
    except OverflowError as cause:  # an integer that no float holds
        raise ArgumentError(f"{name}: {cause}. Operands: {describe(values)}") from cause


def promote_to_tensors(name: str, *operands: Any, kinds: str = "") -> list[Any]:
    """:func:`promote_operands`, with 0-d tensors for the numbers."""
    values = promote_operands(name, *operands, kinds=kinds)
    for x in values:
        if x.__class__ not in TENSORS:
            break
    else:
        return values
    like = next(x for x in values if is_tensor(x))
    return [x if is_tensor(x) else create("full", like._backend, shape=(), value=x, dtype=like._dtype) for x in values]


def _shared_kind(operands: Sequence[Any]) -> str:
    """The kind of tensors that share a dtype, if the Python numbers among them do not change it; else empty."""
    dtype: DType | None = None
    # The kinds that the Python numbers among the operands do not change.
    numbers: tuple[str, ...] = ("float", "int", "bool", "quantized", "complex")
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


def promote_present(name: str, *operands: Any) -> list[Any]:
    """:func:`promote_operands` of the tensors among optional operands; None stays None."""
    values = promote_operands(name, *[tensor_operand(name, x) for x in operands if x is not None])
    if len(values) == len(operands):
        return values
    present = iter(values)
    return [None if x is None else next(present) for x in operands]


@functools.cache
def _kinds(letters: str) -> frozenset[str]:
    """The kinds of tensors for letters of the operation table."""
    return frozenset(KINDS[c] for c in letters)


def accept_dtype(name: str, dtype: DType, kinds: str, operands: Sequence[Any]) -> DType:
    """``dtype``, or the default float for integers if only floats are taken; :class:`DTypeError` for other kinds."""
    if dtype.kind in _kinds(kinds):
        return dtype
    if dtype.kind == "int" and "F" in kinds:
        return _default_float(operands)
    if dtype.kind == "complex":
        raise complex_numbers.closed(name, operands)
    takes = " and ".join(KINDS[c] for c in kinds if c != "C") or "complex"
    advice = "cast it with astype(...)" if takes != "complex" else "cast it with astype('complex64')"
    advice = "dequantize it first" if dtype.kind == "quantized" else advice
    raise DTypeError(f"{name}: takes {takes} tensors, not {dtype.kind}; {advice}. Operands: {describe(operands)}")


# ---- quantized operands of operations on floats ----

#: The function that calls operations with quantized operands and requantizes their results; it returns None for other
#: operands. The first quantized operand of a backend that propagates registers it.
REQUANTIZING_CALL: list[Callable[[str, Sequence[Any], dict[str, Any]], Any]] = []


def has_complex(operands: Sequence[Any]) -> bool:
    """Whether one of the operands is a complex tensor or number."""
    return any(x.__class__ is CLASSES["complex"] or x.__class__ is complex for x in operands)


def is_quantized(x: Any) -> bool:
    """Whether ``x`` is a quantized tensor."""
    return is_tensor(x) and x._dtype.kind == "quantized"


def dequantize_operand(x: Any, dtype: DType | None = None) -> Any:
    """A quantized operand as a float tensor, for an operation that takes floats only."""
    k = x.backend
    float_dtype = dtype or default_float(k)
    if k.capabilities.propagates:
        from backburn.tensor.core.propagate import Dequantized

        return Dequantized.of(x, float_dtype)
    return CLASSES["float"](k.dequantize(x._primitive, float_dtype), k, float_dtype)


# ---- calls ----


def unwrap(name: str, operands: Sequence[Any]) -> tuple[AnyBackend, list[Any]]:
    """The highest backend of the operands, and their primitives on it."""
    backend: AnyBackend | None = None
    primitives: list[Any] = []
    for x in operands:
        if x.__class__ in REAL_TENSORS:
            if backend is None:
                backend = x._backend
            elif x._backend is not backend:
                break
            primitives.append(x._primitive)
        elif x.__class__ is list:
            if backend is None and x:
                backend = x[0]._backend
            alike = [t._primitive for t in x if t._backend is backend and t.__class__ in REAL_TENSORS]
            if len(alike) < len(x):
                break
            primitives.append(alike)
        elif x.__class__ is CLASSES["complex"]:
            break
        else:
            primitives.append(x)
    else:
        if backend is not None:
            return backend, primitives
    if "C" not in OPERATIONS[name].kinds:  # rejects complex operands
        complex_numbers.check_real(name, operands)
    # Operands on several levels are lifted to the highest.
    backend = common_backend(name, flat(operands))
    return backend, [
        [lift(t, backend) for t in x] if x.__class__ is list else lift(x, backend) if is_tensor(x) else x
        for x in operands
    ]


#: The operations of the contract that keep the dtype of their operands; results of users' operations are inspected.
_KEEPING = frozenset(name for name, entry in OPERATIONS.items() if entry.results == ("same",))


def call(name: str, /, *operands: Any, **attributes: Any) -> Any:
    """Call operation ``name`` on tensors, Python scalars, None and lists of tensors that are already promoted."""
    x = operands[0]
    is_float = x.__class__ is CLASSES["float"]
    if is_float and len(operands) == 1:
        backend, primitives = x._backend, [x._primitive]
    else:
        if REQUANTIZING_CALL and (result := REQUANTIZING_CALL[0](name, operands, attributes)) is not None:
            return result
        backend, primitives = unwrap(name, operands)
    try:
        result = getattr(backend, name)(*primitives, **attributes)
    except Exception as error:
        explain(name, operands, attributes, error)
    if result.__class__ is tuple:
        return tuple([wrap(r, backend) for r in result])
    dtype: Any = x._dtype if is_float and name in _KEEPING else backend.dtype(result)
    return CLASSES[dtype.kind](result, backend, dtype)  # like ``wrap``, without another call


def call_same_dtype(name: str, x: Any, *others: Any) -> Any:
    """Call an operation with one result of the operands' dtype on a tensor and others, each of which may be None.

    Float tensors of one dtype on one backend need no promotion and go directly to the backend.
    """
    if x.__class__ is CLASSES["float"]:
        k, dtype, primitives = x._backend, x._dtype, [x._primitive]
        for y in others:
            if y is None:
                primitives.append(None)
            elif y.__class__ is x.__class__ and y._backend is k and y._dtype is dtype:
                primitives.append(y._primitive)
            else:
                break
        else:
            try:
                return x.__class__(getattr(k, name)(*primitives), k, dtype)
            except Exception as error:
                explain(name, (x, *others), {}, error)
    tensor_operand(name, x)
    return call(name, *promote_present(name, x, *others))


def unary(name: str, x: Any) -> Any:
    """An operation on one tensor that keeps its dtype; integers become floats if it takes floats only."""
    try:
        k, dtype = x._backend, x._dtype
        if dtype.__class__ is FloatDType:
            return x.__class__(getattr(k, name)(x._primitive), k, dtype)
    except Exception as error:
        if is_tensor(x):
            explain(name, (x,), {}, error)
    if x.__class__ is CLASSES["complex"] and name in complex_numbers.INSTEAD:
        return complex_numbers.INSTEAD[name](x)
    if "I" not in OPERATIONS[name].kinds and has_wide_integers(x):
        return in_float64(lambda x: call(name, x), x)
    return call(name, *promote_operands(name, x))


def binary(name: str, x: Any, y: Any) -> Any:
    """An operation on two tensors, or on a tensor and a Python number, after promotion."""
    try:
        function = _BINARY[name]
    except KeyError:
        function = _BINARY[name] = binary_function(name)
    return function(x, y)


_BINARY: dict[str, BinaryFunction] = {}


def _rounds(name: str, x: Any, y: Any) -> bool:
    """Whether an operation would compute with rounded integers, and its result lose more than they do."""
    kinds = {t._dtype.kind if is_tensor(t) else type(t).__name__ for t in (x, y)}
    if "float" not in kinds and "I" in OPERATIONS[name].kinds:
        return False
    floats = [t for t in (x, y) if t.__class__ is CLASSES["float"]]
    if (floats and name not in CANCEL) or any(is_quantized(t) for t in (x, y)):
        return False
    return any(loses(t, floats[0]._dtype if floats else default_float(t._backend)) for t in (x, y) if is_tensor(t))


def _is_exact(name: str, x: Any, y: Any) -> bool:
    """Whether an operation computes in integers: on two int tensors, or on one and a number that every dtype holds."""
    if "I" not in OPERATIONS[name].kinds:
        return False
    if x.__class__ is y.__class__:
        return True
    number = y if y.__class__ is int else x
    return number.__class__ is int and 0 <= number < 128


def call_after_promotion(name: str, x: Any, y: Any) -> Any:
    """An operation on two operands after promotion, in float64 if it would round integers."""
    integers = CLASSES["int"]
    if (x.__class__ is integers or y.__class__ is integers) and not has_complex((x, y)) and not _is_exact(name, x, y):
        x, y = operand(name, x, (x, y)), operand(name, y, (x, y))
        if (result := compared(name, x, y)) is not None:
            return result
        if name in ("maximum", "minimum"):  # a number beyond the dtype
            side = 1 if name == "minimum" else -1
            if beyond(x, y) == side or beyond(y, x) == side:
                return x if is_tensor(x) else y
        if _rounds(name, x, y):
            return in_float64(lambda x, y: call_after_promotion(name, x, y), x, y)
    return call(name, *promote_operands(name, x, y))


def binary_function(name: str, otherwise: Callable[[str, Any, Any], Any] = call_after_promotion) -> BinaryFunction:
    """The function of two operands for an operation, which operators and :func:`binary` call.

    Float tensors of one dtype on one backend, and a float tensor with a Python number, need no promotion and go
    directly to the backend. All other operands go to ``otherwise``.
    """
    entry, tensor = OPERATIONS[name], CLASSES["float"]
    if "F" not in entry.kinds:
        return lambda x, y, /: otherwise(name, x, y)
    kind, fixed = (CLASSES["bool"], bool_) if entry.results == ("bool",) else (tensor, None)

    def function(x: Any, y: Any, /) -> Any:
        k: Any
        try:
            if x.__class__ is tensor:
                k, dtype = x._backend, x._dtype
                if y.__class__ is tensor:
                    if y._backend is k and y._dtype is dtype:
                        return kind(k.OPERATION(x._primitive, y._primitive), k, fixed or dtype)
                elif y.__class__ is float or y.__class__ is int:
                    return kind(k.OPERATION(x._primitive, float(y)), k, fixed or dtype)
            elif y.__class__ is tensor and (x.__class__ is float or x.__class__ is int):
                k = y._backend
                return kind(k.OPERATION(float(x), y._primitive), k, fixed or y._dtype)
        except Exception as error:
            explain(name, (x, y), {}, error)
        return otherwise(name, x, y)

    code = function.__code__  # the operation's name replaces OPERATION: faster than getattr(k, name)
    names = tuple(name if n == "OPERATION" else n for n in code.co_names)
    function.__code__ = code.replace(co_names=names)
    return function


def is_plain_float(x: Any) -> bool:
    """Whether ``x`` is a float tensor."""
    return x.__class__ in TENSORS and x._dtype.__class__ is FloatDType


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
        x = dequantize_operand(x)
    return cast(x, accept_dtype(name, x._dtype, "F", (x,)))


def inexact_operand(name: str, value: Any) -> Any:
    """:func:`float_operand`, or a complex tensor."""
    return value if value.__class__ is CLASSES["complex"] else float_operand(name, value)


def kind_operand(name: str, value: Any, kinds: str = "") -> Any:
    """``value`` as a tensor of one of ``kinds`` (by default those of the operation); :class:`DTypeError` for others."""
    takes = kinds or OPERATIONS[name].kinds
    if value.__class__ in TENSORS and value._dtype.kind in _kinds(takes):
        return value
    x = tensor_operand(name, value)
    if x.dtype.kind == "quantized" and "F" in takes and "Q" not in takes:
        return dequantize_operand(x)
    accept_dtype(name, x.dtype, takes, (x,))
    return x


def create(name: str, backend: AnyBackend, **attributes: Any) -> Any:
    """The result of an operation without operands on ``backend``."""
    if attributes.get("dtype").__class__ is ComplexDType:
        complex_numbers.check_created(name, backend, attributes["dtype"])
    try:
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
        f"({backend.spec}) takes {size:,} bytes ({size / 2**30:,.1f} GiB). Use less at a time, or a smaller dtype"
    )
