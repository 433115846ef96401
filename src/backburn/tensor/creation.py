"""Tensor functions: creating tensors, changing their dtype, quantizing them.

Functions that create tensors take ``dtype`` and ``backend`` (or ``device``, its name in the Array API), by default the
default backend. Raises :class:`ArgumentError` for numbers that a dtype does not hold and steps of 0,
:class:`ShapeError` for negative lengths, and :class:`DTypeError` for dtypes of another kind.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Literal, Never, SupportsIndex, overload

from backburn.backend.contract import AnyBackend
from backburn.base.contexts import default_float
from backburn.base.dtypes import BoolDType, DType, FloatDType, IntDType, bool_, complex_of, float32, qint8
from backburn.base.errors import ArgumentError, BackendMismatchError, DTypeError, ShapeError
from backburn.hints.arguments import explained, plain_signature, refuse
from backburn.ops.rules.shapes import broadcast
from backburn.tensor.core.defaults import BackendLike, as_backend, given_backend
from backburn.tensor.core.dispatch import (
    Scalar,
    as_number,
    as_scalar,
    call,
    cast,
    create,
    fit,
    kind_operand,
    promote_operands,
    tensor_operand,
)
from backburn.tensor.core.host import plain_dtype, to
from backburn.tensor.core.messages import describe
from backburn.tensor.core.methods import method
from backburn.tensor.core.options import dtype_of, dtype_or_default, integer, shape_of
from backburn.tensor.core.types import Shape
from backburn.tensor.core.wrapping import is_tensor
from backburn.tensor.inspection import iinfo
from backburn.tensor.quantized import fake_quantize, range_for, scheme_for

if TYPE_CHECKING:
    from backburn.tensor.classes import BoolTensor, FloatTensor, IntTensor, QuantizedTensor, Tensor


def _fit_scalar(name: str, value: Any, dtype: DType) -> Scalar:
    """A Python number converted to one that ``dtype`` can hold."""
    scalar = as_number(value)
    if scalar is None:
        advice = "; item() makes one of a 0-d tensor, without its gradient" if is_tensor(value) else ""
        raise DTypeError(f"{name}: takes a Python number, not {type(value).__name__}{advice}")
    try:
        return fit(scalar, dtype)
    except (TypeError, ValueError, OverflowError) as cause:
        raise ArgumentError(f"{name}: {dtype} does not hold {value!r}") from cause


def _end(value: Any) -> Any:
    """An end or step of a range; a 0-d int tensor counts as its number."""
    return operator.index(value) if is_tensor(value) and value.dtype.kind == "int" else value


# ---- constants ----


@overload
def full(
    shape: Shape, fill_value: float, *, dtype: FloatDType, backend: BackendLike = None, device: BackendLike = None
) -> FloatTensor: ...
@overload
def full(
    shape: Shape, fill_value: float, *, dtype: IntDType, backend: BackendLike = None, device: BackendLike = None
) -> IntTensor: ...
@overload
def full(
    shape: Shape, fill_value: float, *, dtype: BoolDType, backend: BackendLike = None, device: BackendLike = None
) -> BoolTensor: ...
@overload
def full(
    shape: Shape, fill_value: Any, *, dtype: Any = None, backend: BackendLike = None, device: BackendLike = None
) -> Tensor: ...
@plain_signature
def full(
    shape: Shape,
    fill_value: Any,
    *surplus: Never,
    dtype: Any = None,
    backend: BackendLike = None,
    device: BackendLike = None,
    **wrong: Never,
) -> Tensor:
    """A tensor filled with ``fill_value``.

    Without ``dtype``, it follows from the value: the default float dtype for a float, int64 for an int, bool for a
    boolean. The value may also be a 0-d tensor, to which gradients flow.

        >>> import backburn as bb
        >>> bb.full((2, 2), 0.5).tolist(), bb.full(3, 7).dtype
        ([[0.5, 0.5], [0.5, 0.5]], int64)
    """
    if surplus or wrong:
        refuse(full, surplus, wrong)
    if is_tensor(fill_value):
        value = fill_value if dtype is None else astype(fill_value, dtype)
        if value.ndim:
            raise ShapeError(f"full: the value is a number or a 0-d tensor, not {describe((value,))}")
        where = given_backend(backend, device)
        return call("broadcast_to", value if where is None else to(value, where), shape=shape_of("full", shape))
    k = as_backend(given_backend(backend, device))
    own = default_float(k)
    natural = {float: own, complex: complex_of(own), int: k.int_dtype, bool: bool_}.get(
        type(as_number(fill_value)), float32
    )
    out_dtype = plain_dtype("full", dtype_or_default(dtype, natural, k))
    return create(
        "full", k, shape=shape_of("full", shape), value=_fit_scalar("full", fill_value, out_dtype), dtype=out_dtype
    )


def _create_filled(name: str, shape: Any, dtype: Any, backend: BackendLike, device: BackendLike) -> Any:
    """The result of ``name`` (zeros, ones or empty)."""
    k = as_backend(given_backend(backend, device))
    out_dtype = plain_dtype(name, dtype_or_default(dtype, default_float(k), k))
    return create(name, k, shape=shape_of(name, shape), dtype=out_dtype)


@overload
def zeros(
    shape: Shape, *, dtype: FloatDType | None = None, backend: BackendLike = None, device: BackendLike = None
) -> FloatTensor: ...
@overload
def zeros(shape: Shape, *, dtype: IntDType, backend: BackendLike = None, device: BackendLike = None) -> IntTensor: ...
@overload
def zeros(shape: Shape, *, dtype: BoolDType, backend: BackendLike = None, device: BackendLike = None) -> BoolTensor: ...
@overload
def zeros(shape: Shape, *, dtype: Any, backend: BackendLike = None, device: BackendLike = None) -> Tensor: ...
@plain_signature
def zeros(
    shape: Shape, *surplus: Never, dtype: Any = None,
    backend: BackendLike = None, device: BackendLike = None, **wrong: Never
) -> Tensor:  # fmt: skip
    """A tensor filled with 0 (or False), in the default float dtype unless ``dtype`` is given.

    >>> import backburn as bb
    >>> bb.zeros((2, 3))
    Tensor([[0., 0., 0.],
            [0., 0., 0.]], dtype=float32, backend=autodiff(numpy))
    """
    if surplus or wrong:
        refuse(zeros, surplus, wrong)
    return _create_filled("zeros", shape, dtype, backend, device)


@overload
def ones(
    shape: Shape, *, dtype: FloatDType | None = None, backend: BackendLike = None, device: BackendLike = None
) -> FloatTensor: ...
@overload
def ones(shape: Shape, *, dtype: IntDType, backend: BackendLike = None, device: BackendLike = None) -> IntTensor: ...
@overload
def ones(shape: Shape, *, dtype: BoolDType, backend: BackendLike = None, device: BackendLike = None) -> BoolTensor: ...
@overload
def ones(shape: Shape, *, dtype: Any, backend: BackendLike = None, device: BackendLike = None) -> Tensor: ...
@plain_signature
def ones(
    shape: Shape, *surplus: Never, dtype: Any = None,
    backend: BackendLike = None, device: BackendLike = None, **wrong: Never
) -> Tensor:  # fmt: skip
    """A tensor filled with 1 (or True), in the default float dtype unless ``dtype`` is given.

    >>> import backburn as bb
    >>> bb.ones(2, dtype=bb.int64).tolist()
    [1, 1]
    """
    if surplus or wrong:
        refuse(ones, surplus, wrong)
    return _create_filled("ones", shape, dtype, backend, device)


@overload
def empty(
    shape: Shape, *, dtype: FloatDType | None = None, backend: BackendLike = None, device: BackendLike = None
) -> FloatTensor: ...
@overload
def empty(shape: Shape, *, dtype: IntDType, backend: BackendLike = None, device: BackendLike = None) -> IntTensor: ...
@overload
def empty(shape: Shape, *, dtype: BoolDType, backend: BackendLike = None, device: BackendLike = None) -> BoolTensor: ...
@overload
def empty(shape: Shape, *, dtype: Any, backend: BackendLike = None, device: BackendLike = None) -> Tensor: ...
@plain_signature
def empty(
    shape: Shape, *surplus: Never, dtype: Any = None,
    backend: BackendLike = None, device: BackendLike = None, **wrong: Never
) -> Tensor:  # fmt: skip
    """A tensor of arbitrary values, in the default float dtype unless ``dtype`` is given.

    >>> import backburn as bb
    >>> bb.empty((2, 3)).shape
    (2, 3)
    """
    if surplus or wrong:
        refuse(empty, surplus, wrong)
    return _create_filled("empty", shape, dtype, backend, device)


def _like(name: str, x: Any, dtype: Any, backend: BackendLike, device: BackendLike) -> tuple[Any, DType, AnyBackend]:
    """A tensor, and the dtype and backend of a tensor like it."""
    x = tensor_operand(name, x)
    where = given_backend(backend, device)
    k = x.backend if where is None else as_backend(where)
    return x, plain_dtype(name, dtype_or_default(dtype, x.dtype, k)), k


@plain_signature
def zeros_like(
    x: Tensor, /, *surplus: Never, dtype: Any = None,
    backend: BackendLike = None, device: BackendLike = None, **wrong: Never
) -> Tensor:  # fmt: skip
    """A constant filled with 0, with the shape, dtype and backend of ``x`` unless others are given.

    >>> import backburn as bb
    >>> bb.zeros_like(bb.asarray([1, 2])).tolist()
    [0, 0]
    """
    if surplus or wrong:
        refuse(zeros_like, surplus, wrong)
    x, out_dtype, k = _like("zeros_like", x, dtype, backend, device)
    return create("zeros", k, shape=x.shape, dtype=out_dtype)


@plain_signature
def ones_like(
    x: Tensor, /, *surplus: Never, dtype: Any = None,
    backend: BackendLike = None, device: BackendLike = None, **wrong: Never
) -> Tensor:  # fmt: skip
    """A constant filled with 1, with the shape, dtype and backend of ``x`` unless others are given.

    >>> import backburn as bb
    >>> bb.ones_like(bb.asarray([1.5, 2.5])).tolist()
    [1.0, 1.0]
    """
    if surplus or wrong:
        refuse(ones_like, surplus, wrong)
    x, out_dtype, k = _like("ones_like", x, dtype, backend, device)
    return create("ones", k, shape=x.shape, dtype=out_dtype)


def empty_like(x: Tensor, /, *, dtype: Any = None, backend: BackendLike = None, device: BackendLike = None) -> Tensor:
    """A tensor of arbitrary values, with the shape, dtype and backend of ``x`` unless others are given.

    >>> import backburn as bb
    >>> bb.empty_like(bb.asarray([1.5, 2.5])).shape
    (2,)
    """
    x, out_dtype, k = _like("empty_like", x, dtype, backend, device)
    return create("empty", k, shape=x.shape, dtype=out_dtype)


def full_like(
    x: Tensor, /, fill_value: Any, *, dtype: Any = None, backend: BackendLike = None, device: BackendLike = None
) -> Tensor:
    """A tensor filled with ``fill_value``, with the shape, dtype and backend of ``x`` unless others are given.

    >>> import backburn as bb
    >>> bb.full_like(bb.asarray([1, 2]), 7).tolist()
    [7, 7]
    """
    x, out_dtype, k = _like("full_like", x, dtype, backend, device)
    return full(x.shape, fill_value, dtype=out_dtype, backend=k)


# ---- ranges ----


@overload
def arange(
    start: SupportsIndex, /, stop: SupportsIndex | None = None, step: SupportsIndex = 1, *,
    dtype: IntDType | None = None, backend: BackendLike = None, device: BackendLike = None,
) -> IntTensor: ...  # fmt: skip
@overload
def arange(
    start: float | SupportsIndex, /, stop: float | SupportsIndex | None = None, step: float | SupportsIndex = 1, *,
    dtype: FloatDType, backend: BackendLike = None, device: BackendLike = None,
) -> FloatTensor: ...  # fmt: skip
@overload
def arange(
    start: float | SupportsIndex, /, stop: float | SupportsIndex | None = None, step: float | SupportsIndex = 1, *,
    dtype: Any = None, backend: BackendLike = None, device: BackendLike = None,
) -> Tensor: ...  # fmt: skip
def arange(
    start: float | SupportsIndex,
    /,
    stop: float | SupportsIndex | None = None,
    step: float | SupportsIndex = 1,
    *,
    dtype: Any = None,
    backend: BackendLike = None,
    device: BackendLike = None,
) -> Tensor:
    """``start``, ``start + step``, ... up to but excluding ``stop``; with one number, from 0 up to it.

    Integers, including 0-d int tensors, give int64, and a float among them the default float dtype, unless ``dtype`` is
    given; an int dtype takes integers only. Floats are computed in double precision and rounded once.

        >>> import backburn as bb
        >>> bb.arange(4).tolist(), bb.arange(1, 0, -0.25).tolist()
        ([0, 1, 2, 3], [1.0, 0.75, 0.5, 0.25])
    """
    bounds = [_end(n) for n in ((0, start, step) if stop is None else (start, stop, step))]
    kinds = [type(as_scalar(n)) for n in bounds]
    k = as_backend(given_backend(backend, device))
    out_dtype = dtype_or_default(dtype, default_float(k) if float in kinds else k.int_dtype, k)
    out_dtype = plain_dtype("arange", out_dtype, ("float", "int"))
    if out_dtype.kind == "int" and float in kinds:
        raise DTypeError(f"arange: {out_dtype} takes integers, not {bounds}; astype(...) casts a float range")
    first, last, by = [_fit_scalar("arange", n, out_dtype) for n in bounds]
    result = create("arange", k, start=first, stop=last, step=by, dtype=out_dtype)
    if out_dtype.kind == "int" and result.shape[0]:
        end, limits = first + (result.shape[0] - 1) * by, iinfo(out_dtype)
        if not limits.min <= end <= limits.max:
            raise ArgumentError(f"arange: {out_dtype} does not hold {end}")
    return result


def linspace(
    start: float | SupportsIndex | Tensor,
    stop: float | SupportsIndex | Tensor,
    /,
    num: int,
    *,
    dtype: Any = None,
    endpoint: bool = True,
    backend: BackendLike = None,
    device: BackendLike = None,
) -> FloatTensor:
    """``num`` evenly spaced numbers from ``start`` to ``stop``, which is exactly the last one.

    Without ``endpoint`` the last number is one step before ``stop``. ``dtype`` is a float dtype. If a bound is a
    tensor, bounds broadcast, the numbers run along a new first axis, in the promoted float dtype by default and on the
    tensors' backend, and gradients flow to the bounds. Raises :class:`BackendMismatchError` for another ``backend``.

        >>> import backburn as bb
        >>> bb.linspace(0, 1, 5).tolist(), bb.linspace(0, 1, 4, endpoint=False).tolist()
        ([0.0, 0.25, 0.5, 0.75, 1.0], [0.0, 0.25, 0.5, 0.75])
        >>> bb.linspace(bb.asarray([0.0, 1.0]), 4.0, 3).tolist()
        [[0.0, 1.0], [2.0, 2.5], [4.0, 4.0]]
    """
    (count,) = shape_of("linspace", integer("linspace", "num", num))
    if _has_tensors(start, stop):
        return _tensor_linspace(start, stop, count, dtype, bool(endpoint), backend, device)
    k = as_backend(given_backend(backend, device))
    out_dtype = plain_dtype("linspace", dtype_or_default(dtype, default_float(k), k), ("float",))
    first, last = (_fit_scalar("linspace", _end(n), out_dtype) for n in (start, stop))
    return create("linspace", k, start=first, stop=last, num=count, endpoint=bool(endpoint), dtype=out_dtype)


def _has_tensors(*ends: Any) -> bool:
    """Whether an end is a tensor; a 0-d int tensor counts as a number."""
    return any(is_tensor(end) and (end.ndim > 0 or end.dtype.kind != "int") for end in ends)


def _tensor_linspace(
    start: Any, stop: Any, count: int, dtype: Any, endpoint: bool, backend: BackendLike, device: BackendLike
) -> Any:
    low, high = promote_operands("linspace", start, stop, kinds="F")
    k, own = next((x.backend, x.dtype) for x in (low, high) if is_tensor(x))
    try:
        broadcast(*(x.shape for x in (low, high) if is_tensor(x)))
    except ShapeError as error:
        raise ShapeError(f"linspace: {error}. Operands: {describe((start, stop))}") from None
    given = given_backend(backend, device)
    if given is not None and as_backend(given) != k:
        raise BackendMismatchError(
            f"linspace: the numbers are on the backend of the bounds, not on {as_backend(given).spec!r}; .to(backend) "
            f"moves them. Operands: {describe((start, stop))}"
        )
    out_dtype = own if dtype is None else plain_dtype("linspace", dtype_of(dtype, k), ("float",))
    low, high = (x if is_tensor(x) else create("full", k, shape=(), value=x, dtype=own) for x in (low, high))
    wide = float32 if out_dtype.bits < 32 and own.bits < 32 else max(out_dtype, own, key=lambda d: d.bits)
    share = create("linspace", k, start=0.0, stop=1.0, num=count, endpoint=endpoint, dtype=wide)
    share = call("reshape", share, shape=(count, *(1,) * max(low.ndim, high.ndim)))
    low, high = cast(low, wide), cast(high, wide)
    gap = call("sub", high, low)
    # Computed from the nearer end: both ends are exact, and between equal ends all numbers are equal.
    near = call("less", share, 0.5)
    from_low = call("add", low, call("mul", gap, share))
    return cast(call("where", near, from_low, call("sub", high, call("mul", gap, call("sub", 1.0, share)))), out_dtype)


@explained
def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: Any = None,
    backend: BackendLike = None,
    device: BackendLike = None,
) -> Tensor:
    """A matrix of zeros with ones on a diagonal, ``k`` above the main one (below, if negative).

    >>> import backburn as bb
    >>> bb.eye(2, 3, k=1).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    n, m = shape_of("eye", (n_rows, n_rows if n_cols is None else n_cols))
    place = as_backend(given_backend(backend, device))
    out_dtype = plain_dtype("eye", dtype_or_default(dtype, default_float(place), place))
    return create("eye", place, n=n, m=m, offset=integer("eye", "k", k), dtype=out_dtype)


# ---- dtypes ----


@overload
def astype(x: Tensor, dtype: FloatDType, /, *, copy: bool = True, device: BackendLike = None) -> FloatTensor: ...
@overload
def astype(x: Tensor, dtype: IntDType, /, *, copy: bool = True, device: BackendLike = None) -> IntTensor: ...
@overload
def astype(x: Tensor, dtype: BoolDType, /, *, copy: bool = True, device: BackendLike = None) -> BoolTensor: ...
@overload
def astype(x: Tensor, dtype: Any, /, *, copy: bool = True, device: BackendLike = None) -> Tensor: ...
@method
def astype(x: Tensor, dtype: Any, /, *, copy: bool = True, device: BackendLike = None) -> Tensor:
    """``x`` cast to another float, complex, int or bool dtype; ``x`` itself if it already has it.

    A number becomes the boolean ``x != 0`` (NaN is true), and a boolean 0 or 1. Floats are truncated to integers; the
    result is unspecified if the integer dtype does not hold it. Between float dtypes the gradient is cast back.
    A real number becomes a complex one; a complex one is not cast to a real dtype (:func:`real`, :func:`abs`).
    ``copy`` exists for the Array API and changes nothing, since tensors are immutable.

        >>> import backburn as bb
        >>> bb.asarray([-1.7, 0.0, 2.5]).astype(bb.int64).tolist(), bb.asarray([0, 3]).astype("bool").tolist()
        ([-1, 0, 2], [False, True])
    """
    y = kind_operand("astype", x, "FCIB")
    y = cast(y, plain_dtype("astype", dtype_of(dtype, y.backend)))
    return y if device is None else to(y, device)


@overload
def quantize(x: Tensor, /, *, dtype: Any = qint8, low: Any = None, high: Any = None) -> QuantizedTensor: ...
@overload
def quantize(
    x: Tensor, /, *, dtype: Any = qint8, low: Any = None, high: Any = None, straight_through: Literal[True]
) -> FloatTensor: ...
@method
@explained
def quantize(
    x: Tensor, /, *, dtype: Any = qint8, low: Any = None, high: Any = None, straight_through: bool = False
) -> QuantizedTensor | FloatTensor:
    """``x`` quantized: integers times stored steps, in the scheme ``dtype`` (a :class:`QuantizedDType`).

    ``bb.qint8`` has one step for all values, ``max(abs(x)) / 127``. The error is at most half a step in every scheme.
    ``low`` and ``high``, numbers or tensors that broadcast to the shape of the steps, are the range to represent, by
    default that of the values; it is extended to include 0, and values beyond it are clamped
    (:mod:`backburn.quantization` finds ranges from data). Operations that move elements (reshaping, permuting,
    broadcasting, flipping, slicing, taking, joining) keep a tensor quantized where its steps allow it; everything else
    dequantizes it first. Raises :class:`NumericalInstabilityError` for NaN and infinite values, :class:`DTypeError` for
    tensors that are not float tensors, :class:`AxisError` and :class:`ShapeError` for a scheme or a range that does not
    fit the shape, :class:`ArgumentError` for ``low`` above ``high``, and outside of ``no_grad()``
    :class:`NotDifferentiableError` for a tracked tensor, through which no gradient would flow. With
    ``straight_through`` the result is the float tensor of the rounded values, through which the gradient passes
    unchanged (:func:`fake_quantize`).

        >>> import backburn as bb
        >>> q = bb.asarray([1.0, -127.0, 3.4]).quantize()
        >>> q.dequantize().tolist()
        [1.0, -127.0, 3.0]
        >>> bb.asarray([1.0, 3.4, 500.0]).quantize(low=0.0, high=127.0).dequantize().tolist()
        [1.0, 3.0, 127.0]
        >>> bb.zeros((4, 6)).quantize(dtype=bb.QuantizedDType("int4", granularity="channel", axis=-1)).dtype
        qint4_symmetric_channel1_float32
    """
    y = kind_operand("quantize", x, "F")
    scheme = scheme_for("quantize", y, dtype)
    if not x.dtype.is_floating:
        raise DTypeError(f"quantize: takes float tensors, not {describe((x,))}")
    if straight_through:
        return fake_quantize(y, dtype=scheme, low=low, high=high)
    ends = range_for("quantize", y, scheme, low, high)
    return call("quantize_between" if ends else "quantize", y, *ends, dtype=scheme)


@method
def dequantize(x: Tensor, /, *, dtype: Any = None) -> FloatTensor:
    """The float tensor that a quantized one represents, in the default float dtype unless ``dtype`` is given.

    A float tensor is returned unchanged, so results may be dequantized whether or not the backend requantizes them.
    Raises :class:`DTypeError` for tensors of other kinds and dtypes that are not float dtypes.

        >>> import backburn as bb
        >>> bb.asarray([0.0, 12.7]).quantize().dequantize(dtype=bb.float64).shape
        (2,)
    """
    y = tensor_operand("dequantize", x)
    if y.dtype.kind not in ("quantized", "float"):
        raise DTypeError(f"dequantize: takes quantized and float tensors, not {describe((x,))}")
    own = y.dtype if y.dtype.is_floating else default_float(y.backend)
    out_dtype = plain_dtype("dequantize", dtype_or_default(dtype, own, y.backend), ("float",))
    if y.dtype.is_floating:
        return cast(y, out_dtype)
    return call("dequantize", y, dtype=out_dtype)
