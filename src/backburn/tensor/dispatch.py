"""The way of every tensor function to its backend: promotion, levels, the call, and the explanation of a failure.

Functions here know operations by name and tensors by their three slots. A call that succeeds pays for nothing that
only a failing one needs: errors are explained after the backend has raised, from the operation's own shape rule.
"""

from __future__ import annotations

import functools
import math
import reprlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import index
from typing import TYPE_CHECKING, Any, NoReturn

from backburn.backend.contract import AnyBackend
from backburn.backend.shapes import check_axes, check_axis
from backburn.backend.table import KINDS, OPERATIONS, Operation
from backburn.base.contexts import DEFAULT_FLOAT
from backburn.base.dtypes import DType, FloatDType, as_dtype, promote, promote_scalar
from backburn.base.errors import (
    ArgumentError,
    AxisError,
    BackburnError,
    BackendMismatchError,
    DeviceMemoryError,
    DTypeError,
    OutOfRangeError,
    ShapeError,
)
from backburn.base.quiet import quietly, silence

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, Tensor

Scalar = bool | int | float

#: The class of each kind of tensor, by the kind's name; filled where the classes are made.
CLASSES: dict[str, type[Any]] = {}


def wrap(primitive: Any, backend: AnyBackend) -> Any:
    """A primitive as a tensor of its kind."""
    dtype = backend.dtype(primitive)
    return CLASSES[dtype.kind](primitive, backend, dtype)


def is_tensor(value: Any) -> bool:
    """Whether ``value`` is a tensor of any kind."""
    return value.__class__ in _TENSORS


_TENSORS: set[type[Any]] = set()


def register_class(kind: str, cls: type[Any]) -> None:
    """Make ``cls`` the class of tensors of ``kind``."""
    CLASSES[kind] = cls
    _TENSORS.add(cls)


# ---- levels and backends ----


def inner_of(backend: AnyBackend) -> AnyBackend | None:
    """The backend that ``backend`` wraps, or None for one that computes by itself."""
    return getattr(backend, "inner_backend", None)


def innermost(backend: AnyBackend) -> AnyBackend:
    """The backend that computes, under all levels."""
    while (inner := inner_of(backend)) is not None:
        backend = inner
    return backend


def _height(backend: AnyBackend) -> int:
    """How many levels stand above the backend that computes."""
    inner = inner_of(backend)
    return 0 if inner is None else 1 + _height(inner)


def levels_between(lower: AnyBackend, upper: AnyBackend) -> list[AnyBackend] | None:
    """The decorated backends from just above ``lower`` up to ``upper``; None where ``upper`` does not wrap it."""
    path: list[AnyBackend] = []
    level: AnyBackend | None = upper
    while level is not None:
        if level is lower or level == lower:
            return path[::-1]
        path.append(level)
        level = inner_of(level)
    return None


_FROM_INNER = {
    "float": "from_inner", "int": "int_from_inner", "bool": "bool_from_inner", "quantized": "q_from_inner",
}  # fmt: skip


def lift(x: Any, backend: AnyBackend) -> Any:
    """The primitive of tensor ``x`` as a constant on ``backend``, which is ``x``'s own or stands above it."""
    primitive = x._primitive
    if x._backend is backend:
        return primitive
    return as_constant(primitive, x._dtype.kind, levels_between(x._backend, backend) or ())


def as_constant(primitive: Any, kind: str, levels: Iterable[Any]) -> Any:
    """A primitive of this kind as a constant on the last of ``levels``, each of which wraps the one before."""
    for level in levels:
        primitive = getattr(level, _FROM_INNER[kind])(primitive)
    return primitive


def common_backend(name: str, tensors: Iterable[Any]) -> AnyBackend:
    """The highest of the tensors' backends; they must all be levels over one and the same."""
    tensors = list(tensors)
    if not tensors:
        raise ArgumentError(f"{name}: at least one operand must be a tensor. bb.asarray(...) makes one")
    backend: AnyBackend = tensors[0]._backend
    for x in tensors[1:]:
        if x._backend is backend:
            continue
        if levels_between(x._backend, backend) is None:
            if levels_between(backend, x.backend) is None:
                if innermost(x.backend) == innermost(backend):
                    raise BackendMismatchError(
                        f"{name}: the operands belong to different runs of a transform: {describe(tensors)}. One was "
                        f"carried out of the function that made it: return it from there (has_aux=True lets grad "
                        f"do so), or store its numbers, x.numpy(). Or it was captured from a level that the transform "
                        f"does not stand on: .to(...) takes the arguments of the transform there first"
                    )
                # What is tracked goes to no backend of fewer levels, and anything to one of as many.
                place = max(tensors, key=lambda t: (t.is_tracked, _height(t.backend))).backend
                while "[" in place.spec and (inner := inner_of(place)) is not None:  # levels of vmap have no name
                    place = inner
                raise BackendMismatchError(
                    f"{name}: the operands live on different backends: {describe(tensors)}. "
                    f"Nothing is moved by itself: write .to({place.spec!r}) on what lives elsewhere"
                )
            backend = x._backend
    return backend


# ---- dtypes ----


def scalar_of(value: Any) -> Scalar | None:
    """``value`` as a plain Python scalar, or None when it is none (NumPy scalars count, complex numbers do not)."""
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
    """A Python scalar as the contract takes it beside operands of ``dtype``."""
    if dtype.kind == "float":
        return float(scalar)
    return int(scalar) if dtype.kind == "int" else bool(scalar)


def operand(name: str, value: Any, among: Sequence[Any]) -> Any:
    """``value``, one of the operands ``among``, as a tensor or a Python scalar; an error of ours for anything else."""
    if value.__class__ in _TENSORS:
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
            f"{name}: takes tensors and Python numbers, not {type(value).__name__}; {hint}. Operands: {words}"
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
                result = promote_scalar(result, x, DEFAULT_FLOAT.get())
    except DTypeError as error:
        raise DTypeError(f"{name}: {error}. Operands: {describe(operands)}") from None
    return result


def cast(x: Any, dtype: DType) -> Any:
    """Tensor ``x`` in another dtype; ``x`` itself when it has it already."""
    if x._dtype is dtype:
        return x
    k = x._backend
    if x._dtype.kind == "quantized":  # the result of another operation, on a backend that propagates
        chosen = dtype if dtype.kind == "float" else DEFAULT_FLOAT.get()
        return cast(CLASSES["float"](k.dequantize(x._primitive, chosen), k, chosen), dtype)
    try:
        try:
            primitive = k.cast(x._primitive, dtype)
        except RuntimeWarning as warning:
            silence(warning, k)
            primitive = k.cast(x._primitive, dtype)
    except Exception as error:
        explain("cast", (x,), {"dtype": dtype}, error)
    return CLASSES[dtype.kind](primitive, k, dtype)


def promoted(name: str, *operands: Any, kinds: str = "") -> list[Any]:
    """``operands`` in their common dtype, tensors cast and scalars fitted.

    Where the operation takes floats only, integers become the default float; other kinds that it does not take are
    refused.
    """
    takes = kinds or OPERATIONS[name].kinds
    dtype = _shared_dtype(operands)
    if dtype is not None and dtype.kind in _kinds_of(takes):
        return [*operands]
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


def _shared_dtype(operands: Sequence[Any]) -> DType | None:
    """The dtype that all operands have, which are tensors; None for others."""
    dtype: DType | None = None
    for x in operands:
        if x.__class__ not in _TENSORS or x._dtype is not dtype is not None:
            return None
        dtype = x._dtype
    return dtype


def promoted_present(name: str, *operands: Any) -> list[Any]:
    """:func:`promoted` of the tensors that are there; one that is absent (None) keeps its place."""
    values = iter(promoted(name, *(tensor_operand(name, x) for x in operands if x is not None)))
    return [None if x is None else next(values) for x in operands]


def number(name: str, option: str, value: Any, *, of: Sequence[Any] = ()) -> float:
    """An option that is a Python number; a tensor is refused, whose gradient would be lost.

    An error names the operands ``of`` the call, if any are given; so it is with :func:`one_of`.
    """
    found = None if is_tensor(value) else scalar_of(value)
    if found is None:
        raise ArgumentError(f"{name}: {option} is a number, not {describe((value,)) or None}{beside(of)}")
    try:
        float(found)
    except OverflowError as cause:
        raise ArgumentError(f"{name}: {option} is larger than floats are: {describe((value,))}{beside(of)}") from cause
    return found


def integer(name: str, option: str, value: Any) -> int:
    """An option that is one integer, of any kind."""
    try:
        if value.__class__ is not bool:
            return index(value)
    except TypeError:
        pass
    raise ArgumentError(f"{name}: {option} is an integer, not {describe((value,)) or None}")


def beside(operands: Sequence[Any]) -> str:
    """The operands of a call whose option is wrong, if they are given, as the end of a message."""
    return f". Operands: {describe(operands)}" if operands else ""


def one_of(name: str, option: str, value: Any, known: Iterable[Any], *, of: Sequence[Any] = ()) -> Any:
    """An option that is one of several words (or numbers)."""
    known = list(known)
    if isinstance(value, (str, int, float)) and not isinstance(value, bool) and value in known:
        return value
    words = ", ".join(map(repr, known))
    raise ArgumentError(f"{name}: {option} is one of {words}, not {describe((value,)) or None}{beside(of)}")


@functools.cache
def _kinds_of(letters: str) -> frozenset[str]:
    """The kinds of tensors that the table writes as these letters."""
    return frozenset(KINDS[c] for c in letters)


def accepted(name: str, dtype: DType, kinds: str, operands: Sequence[Any]) -> DType:
    """``dtype``, or the float that stands for it in an operation on floats; other kinds are refused."""
    if dtype.kind in _kinds_of(kinds):
        return dtype
    if dtype.kind == "int" and "F" in kinds:
        return DEFAULT_FLOAT.get()
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
    """The float tensor for which a quantized operand stands where only floats are taken."""
    k, chosen = x.backend, dtype or DEFAULT_FLOAT.get()
    if k.capabilities.propagates:
        from backburn.tensor.propagate import Dequantized

        return Dequantized.of(x, chosen)
    return CLASSES["float"](k.dequantize(x._primitive, chosen), k, chosen)


# ---- calls ----


def flat(operands: Iterable[Any]) -> list[Any]:
    """The tensors among operands, those in lists too."""
    return [t for x in operands for t in (x if x.__class__ is list else (x,)) if is_tensor(t)]


def lowered(name: str, operands: Sequence[Any]) -> tuple[AnyBackend, list[Any]]:
    """The highest backend of the operands, and their primitives on it."""
    backend: AnyBackend | None = None
    primitives: list[Any] = []
    for x in operands:
        if x.__class__ in _TENSORS:
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
    # Operands that others' levels lift.
    backend = common_backend(name, flat(operands))
    return backend, [
        [lift(t, backend) for t in x] if x.__class__ is list else lift(x, backend) if is_tensor(x) else x
        for x in operands
    ]


def call(name: str, *operands: Any, **attributes: Any) -> Any:
    """Call operation ``name`` on tensors, Python scalars, None and lists of tensors, all of fitting dtypes."""
    for propagated in PROPAGATED:
        if (result := propagated(name, operands, attributes)) is not None:
            return result
    backend, primitives = lowered(name, operands)
    try:
        try:
            result = getattr(backend, name)(*primitives, **attributes)
        except RuntimeWarning as warning:
            silence(warning, backend)
            result = getattr(backend, name)(*primitives, **attributes)
    except Exception as error:
        explain(name, operands, attributes, error)
    if result.__class__ is tuple:
        return tuple(wrap(r, backend) for r in result)
    return wrap(result, backend)


def unary(name: str, x: Any) -> Any:
    """An operation of one tensor which keeps its dtype; integers become floats where only floats are taken."""
    try:
        k, dtype = x._backend, x._dtype
        if dtype.__class__ is FloatDType:
            return x.__class__(getattr(k, name)(x._primitive), k, dtype)
    except RuntimeWarning:  # seen to by ``call``
        pass
    except Exception as error:
        if is_tensor(x):
            explain(name, (x,), {}, error)
    return call(name, *promoted(name, x))


def binary(name: str, x: Any, y: Any) -> Any:
    """An operation of two tensors, or of a tensor and a Python scalar, after promotion.

    Floats of one dtype on one backend, and a float beside a number, need none: they go straight to the backend.
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
        except RuntimeWarning:  # seen to by ``call``
            pass
        except Exception as error:
            explain(name, (x, y), {}, error)
    return call(name, *promoted(name, x, y))


def is_plain_float(x: Any) -> bool:
    """Whether ``x`` is a float tensor."""
    return x.__class__ in _TENSORS and x._dtype.__class__ is FloatDType


def of_floats(entry: Operation, primitive: Any, backend: AnyBackend, dtype: DType) -> Any:
    """The result of an operation on floats of ``dtype``, whose table entry says what dtype it has itself."""
    if entry.results[0] == "same":
        return CLASSES["float"](primitive, backend, dtype)
    return wrap(primitive, backend)


def axes_of(name: str, x: Tensor, axis: int | Sequence[int] | None) -> tuple[int, ...]:
    """``axis`` of a function as the contract takes it: a sorted tuple; None means all axes."""
    try:
        return check_axes(axis, len(x._primitive.shape))
    except AxisError as error:
        raise AxisError(f"{name}: {error}. Operand: {describe((x,))}") from None


def axis_of(name: str, x: Tensor, axis: int) -> int:
    """One ``axis`` of a function as the contract takes it: from 0 to rank - 1."""
    try:
        return check_axis(axis, len(x._primitive.shape))
    except AxisError as error:
        raise AxisError(f"{name}: {error}. Operand: {describe((x,))}") from None


def tensor_operand(name: str, value: Any) -> Any:
    """``value``, which must be a tensor."""
    if value.__class__ in _TENSORS:
        return value
    raise DTypeError(f"{name}: takes a tensor, not {type(value).__name__}. bb.asarray(...) makes one")


def float_operand(name: str, value: Any) -> FloatTensor:
    """``value`` as a float tensor; integers become the default float, other kinds are refused."""
    x = tensor_operand(name, value)
    if x._dtype.kind == "quantized":
        x = dequantized(x)
    return cast(x, accepted(name, x._dtype, "F", (x,)))


def kind_operand(name: str, value: Any, kinds: str = "") -> Any:
    """``value`` as a tensor of one of ``kinds``, or of those that the operation takes; others are refused."""
    x, takes = tensor_operand(name, value), kinds or OPERATIONS[name].kinds
    if x.dtype.kind == "quantized" and "F" in takes and "Q" not in takes:
        return dequantized(x)
    accepted(name, x.dtype, takes, (x,))
    return x


def integers_of(name: str, option: str, value: Any) -> tuple[int, ...]:
    """One integer or several, of any kind, as a tuple; an error of ours for anything else."""
    try:
        return tuple(map(index, value)) if value.__class__ in (tuple, list) else (index(value),)
    except TypeError:
        try:
            return tuple(map(index, value))
        except (TypeError, ShapeError):  # a tensor that is no integer
            words = describe((value,)) or None
            raise ArgumentError(f"{name}: {option} is one integer or several, not {words}") from None


def shape_of(name: str, shape: Any) -> tuple[int, ...]:
    """A shape as the contract takes it, from one length or several, integers of any kind."""
    lengths = integers_of(name, "a shape", shape)
    if any(n < 0 for n in lengths):
        raise ShapeError(f"{name}: a length is 0 or more, and the shape is {list(lengths)}")
    return lengths


def made(name: str, backend: AnyBackend, **attributes: Any) -> Any:
    """The tensor that an operation without operands makes on ``backend``."""
    try:
        primitive = quietly(backend, partial(getattr(backend, name), **attributes))
    except Exception as error:
        if isinstance(error, MemoryError) and not isinstance(error, BackburnError):
            raise _too_large(OPERATIONS[name], backend, attributes) from error
        explain(name, (), attributes, error)
    return wrap(primitive, backend)


def _too_large(entry: Operation, backend: AnyBackend, attributes: dict[str, Any]) -> DeviceMemoryError:
    """The error for a tensor that cannot be made because the memory of the device does not hold it."""
    defaults = {n: d for n, d in entry.attributes.items() if d is not entry.parameters[n].empty}
    shape: tuple[int, ...] = entry.shape(**{**defaults, **attributes}) if entry.shape is not None else ()
    (dtype,) = entry.dtypes({}, attributes)
    size = math.prod(shape) * (dtype or DEFAULT_FLOAT.get()).itemsize
    return DeviceMemoryError(
        f"{entry.name}: the memory of {backend.device} is exhausted: {dtype}[{','.join(map(str, shape))}] "
        f"({backend.spec}) takes {size:,} bytes ({size / 2**30:,.1f} GiB). Make less at a time, or a smaller dtype"
    )


# ---- errors ----


def exhausted(name: str, where: str, device: str, cause: MemoryError) -> NoReturn:
    """Raise our error for a call for which the memory does not suffice; one that is ours already stays."""
    if isinstance(cause, BackburnError):
        raise cause
    words = str(cause).strip().rstrip(".") or "nothing more can be allocated"
    raise DeviceMemoryError(
        f"{name}: the memory of {device} is exhausted: {words}.{where} Make less at a time, or take a smaller dtype"
    ) from cause


#: Writes what is long only in part.
_REPR = reprlib.Repr()
_REPR.maxother = _REPR.maxstring = _REPR.maxlong = 100
#: Integers of more bits are not written out in messages; Python refuses to write the very long ones.
LONGEST = 256


def describe(operands: Iterable[Any]) -> str:
    """``float32[2,3] (numpy), 1.5``: every operand's dtype, shape and backend, for messages; arrays by their type."""
    words = []
    for x in operands:
        if x.__class__ is list and any(map(is_tensor, x)):
            words.append(f"[{describe(x)}]")
        elif is_tensor(x):
            words.append(f"{x.dtype}[{','.join(map(str, x.shape))}] ({x.backend.spec})")
        elif x.__class__ is int and x.bit_length() > LONGEST:
            words.append(f"an integer of {x.bit_length()} bits")
        elif hasattr(x, "dtype") and isinstance(getattr(x, "shape", None), tuple) and x.shape:
            words.append(f"{type(x).__name__} {x.dtype}[{','.join(map(str, x.shape))}]")
        elif x is not None:
            words.append(_REPR.repr(x))
    return ", ".join(words)


#: How users call the options of operations that have another name in the contract.
SPOKEN = {
    ("eye", "offset"): "k",
    ("kthvalue", "nth"): "k",
    ("one_hot", "depth"): "classes",
    ("topk", "count"): "k",
    ("tril", "offset"): "k",
    ("triu", "offset"): "k",
}


def _spoken(name: str, option: str, value: Any) -> str:
    """An option as the user wrote it."""
    if (name, option) == ("searchsorted", "right"):
        return "side='right'" if value else "side='left'"
    return f"{SPOKEN.get((name, option), option)}={value!r}"


def explain(name: str, operands: Sequence[Any], attributes: dict[str, Any], cause: Exception) -> NoReturn:
    """Raise our error for a call that failed: what the operation's shape rule says, else the backend's own words.

    The backend's error stays as the cause. What is nobody's mistake (an interrupt) passes as it is.
    """
    where = f" Operands: {describe(operands)}." if operands else ""
    options = ", ".join(_spoken(name, k, v) for k, v in attributes.items())
    where += f" Options: {options}." if options else ""
    entry = OPERATIONS[name]
    if isinstance(cause, MemoryError) and not isinstance(cause, BackburnError):
        exhausted(name, where, flat(operands)[0].backend.device, cause)
    if entry.shape is not None:
        shapes = [
            [t.shape for t in x] if x.__class__ is list else x.shape if is_tensor(x) else None for x in operands
        ]
        defaults = {n: d for n, d in entry.attributes.items() if d is not entry.parameters[n].empty}
        try:
            entry.shape(*shapes, **{**defaults, **attributes})
        except BackburnError as error:
            raise type(error)(f"{name}: {error}.{where}") from cause
        except Exception:  # the rule itself could not make sense of the call: the backend's words are better
            pass
    for operand_name, x in zip(entry.operands, operands, strict=False):
        absent = x is None and operand_name not in entry.optional
        if absent or (isinstance(cause, AttributeError) and x.__class__ in (bool, int, float)):
            hint = "bb.asarray(...) makes one"
            raise DTypeError(f"{name}: {operand_name} is a tensor, not {x!r}; {hint}.{where}") from cause
    words = str(cause).strip().rstrip(".")
    if isinstance(cause, BackburnError):
        if str(cause).startswith(f"{name}:"):
            raise type(cause)(str(cause)) from cause
        raise type(cause)(f"{name}: {words}.{where}") from cause
    kinds: dict[type[Exception], type[BackburnError]] = {
        IndexError: OutOfRangeError,
        TypeError: DTypeError,
        ValueError: ShapeError if "shape" in str(cause) or "dimension" in str(cause) else ArgumentError,
        OverflowError: ArgumentError,
        RuntimeError: ArgumentError,  # what some libraries raise for any misuse; its subclasses say more
    }
    for kind, ours in kinds.items():
        if isinstance(cause, kind) and (kind is not RuntimeError or type(cause) is RuntimeError):
            raise ours(f"{name}: {words}.{where}") from cause
    cause.add_note(f"in {name}.{where}")
    raise cause


def dtype_or_default(dtype: Any, default: DType) -> DType:
    """The dtype that an argument names, or ``default`` for None."""
    return default if dtype is None else as_dtype(dtype)
