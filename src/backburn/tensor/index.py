"""Tensor functions: reading and writing by position.

Indices are integer tensors of any width; negative ones count from the end of their axis. Functions that write return a
modified copy; gradients flow to the values written and to the elements kept. Raises :class:`OutOfRangeError` for an
index out of range, :class:`DTypeError` for indices that are not integers, :class:`AxisError` for an axis that does not
exist, and :class:`ShapeError` for shapes that do not fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Never

from backburn.autodiff.anomaly import unwatched
from backburn.base.dtypes import DType, int64, promote
from backburn.base.errors import ArgumentError, DTypeError, OutOfRangeError, ShapeError
from backburn.hints.arguments import explained, plain_signature, refuse
from backburn.tensor.core.dispatch import (
    Number,
    Scalar,
    accept_dtype,
    as_number,
    call,
    cast,
    fit,
    kind_operand,
    tensor_operand,
    upcast_half,
)
from backburn.tensor.core.host import first_out_of_range
from backburn.tensor.core.indices import as_int64, counted_from_zero, no_such_index
from backburn.tensor.core.messages import describe
from backburn.tensor.core.methods import method
from backburn.tensor.core.options import axis_of, dtype_of, integer, one_of
from backburn.tensor.core.types import T
from backburn.tensor.core.wrapping import is_tensor
from backburn.tensor.inspection import iinfo

if TYPE_CHECKING:
    from backburn.tensor.classes import IntTensor, Tensor
    from backburn.tensor.core.typing_stubs import Indices


#: The modes of :func:`scatter`.
_MODES = ("assign", "add", "mul", "min", "max", "mean")

#: The modes of :func:`index_reduce`.
_REDUCTIONS = _MODES[2:]


def _indices_operand(name: str, value: Any) -> Any:
    """``value`` as a tensor of indices."""
    indices = tensor_operand(name, value)
    if indices.dtype.kind != "int":
        raise DTypeError(f"{name}: indices are integers, not {describe((indices,))}; cast them with astype('int64')")
    return as_int64(indices)


def _plain_operand(name: str, value: Any) -> Any:
    """``value`` as a tensor that is not quantized."""
    x = tensor_operand(name, value)
    accept_dtype(name, x.dtype, "FCIB", (x,))
    return x


#: The types of Python's numbers, in the order in which they promote, and the kinds of tensors that hold them.
_PYTHON, _KINDS = (bool, int, float, complex), ("bool", "int", "float", "complex")


def _value_operand(name: str, x: Any, value: Any) -> Any:
    """A value to write into ``x``: a Python number, or a tensor cast to the dtype of ``x``.

    Raises :class:`DTypeError` for a dtype that does not promote to that of ``x``, such as a float into an int tensor.
    """
    scalar = None if is_tensor(value) else as_number(value)
    if scalar is None:
        given: DType = tensor_operand(name, value).dtype
        if given is x.dtype:
            return value
        if promote(x.dtype, given) is not x.dtype:
            raise DTypeError(
                f"{name}: {given} values do not fit into {x.dtype}; cast one of them first. "
                f"Operands: {describe((x, value))}"
            )
        return cast(value, x.dtype)
    if _PYTHON.index(type(scalar)) <= _KINDS.index(x.dtype.kind):
        with suppress(OverflowError):  # an integer that no float holds
            return fit(scalar, x.dtype)
    words = f"the number {describe((scalar,))} does not fit into {describe((x,))}"
    raise DTypeError(f"{name}: {words}; cast the tensor first")


# ---- along one axis, whole entries ----


@method
@plain_signature
def take(x: T, indices: Indices, /, axis: int | None = None, *surplus: Never, **wrong: Never) -> T:
    """The entries of ``x`` at ``indices`` along ``axis``, which the axes of ``indices`` replace.

    Without an axis, ``indices`` index the elements in row-major order.

        >>> import backburn as bb
        >>> x = bb.asarray([[1, 2, 3], [4, 5, 6]])
        >>> bb.take(x, bb.asarray([2, 0, -1]), axis=1).tolist()
        [[3, 1, 3], [6, 4, 6]]
        >>> bb.take(x, bb.asarray([[0], [1]]), axis=0).shape
        (2, 1, 3)
        >>> bb.take(x, bb.asarray([3, -1])).tolist()
        [4, 6]
    """
    if surplus or wrong:
        refuse(take, surplus, wrong)
    kind_operand("take", x)
    if axis is None:
        x, axis = x if x.ndim == 1 else call("reshape", x, shape=(x.size,)), 0
    return call("take", x, _indices_operand("take", indices), axis=axis_of("take", x, axis))


@method
@plain_signature
def index_add(
    x: T, indices: Indices, values: Tensor | Number, /, axis: int, *surplus: Never, **wrong: Never
) -> T:  # fmt: skip
    """``x`` with the entries of ``values`` along ``axis`` added at ``indices`` (1-d).

    For repeated indices, all entries are added.

        >>> import backburn as bb
        >>> bb.index_add(bb.asarray([0.0, 0.0]), bb.asarray([1, 1]), bb.asarray([2.0, 3.0]), axis=0).tolist()
        [0.0, 5.0]
    """
    if surplus or wrong:
        refuse(index_add, surplus, wrong)
    return _write("index_add", x, indices, values, axis)


@method
@plain_signature
def index_copy(
    x: T, indices: Indices, values: Tensor | Number, /, axis: int, *surplus: Never, **wrong: Never
) -> T:  # fmt: skip
    """``x`` with its entries at ``indices`` (1-d) along ``axis`` replaced by those of ``values``.

    For repeated indices, the last entry wins.

        >>> import backburn as bb
        >>> bb.index_copy(bb.asarray([1.0, 2.0, 3.0]), bb.asarray([2, 0]), bb.asarray([8.0, 9.0]), axis=0).tolist()
        [9.0, 2.0, 8.0]
    """
    if surplus or wrong:
        refuse(index_copy, surplus, wrong)
    return _write("index_copy", x, indices, values, axis)


def _write(name: str, x: T, indices: Any, values: Any, axis: int) -> T:
    """An operation that writes values into ``x`` at indices along one axis."""
    _plain_operand(name, x)
    operands = (x, _indices_before(name, indices, axis), _value_operand(name, x, values))
    return call(name, *operands, axis=axis_of(name, x, axis))


def _indices_before(name: str, indices: Any, axis: Any) -> Any:
    """:func:`_indices_operand`, with an error for PyTorch's order of arguments."""
    try:
        return _indices_operand(name, indices)
    except DTypeError:
        if not is_tensor(axis) or is_tensor(indices):
            raise
        raise ArgumentError(f"{name}: the axis comes last: {name}(x, indices, values, axis={indices!r})") from None


@method
@explained
def index_reduce(
    x: T, indices: Indices, values: Tensor | Scalar, /, axis: int, mode: str, *, include_self: bool = True
) -> T:
    """``x`` with the entries of ``values`` along ``axis`` combined with those at ``indices`` (1-d).

    ``mode`` is ``"mul"``, ``"min"``, ``"max"`` or, for floats, ``"mean"``, with the gradients of :func:`scatter`. With
    ``include_self=False``, the entries of ``x`` at the indices do not take part. For sums, use :func:`index_add`.
    Raises :class:`ShapeError` for indices with other than one axis, and values that do not fit.

        >>> import backburn as bb
        >>> x, values = bb.asarray([1.0, 2.0, 3.0]), bb.asarray([4.0, 8.0])
        >>> bb.index_reduce(x, bb.asarray([2, 2]), values, axis=0, mode="mean").tolist()
        [1.0, 2.0, 5.0]
        >>> bb.index_reduce(x, bb.asarray([2, 2]), values, axis=0, mode="mul", include_self=False).tolist()
        [1.0, 2.0, 32.0]
    """
    name = "index_reduce"
    _plain_operand(name, x)
    chosen, place = _indices_before(name, indices, axis), axis_of(name, x, axis)
    one_of(name, "mode", mode, _REDUCTIONS, of=(x,))
    if chosen.ndim != 1:
        raise ShapeError(f"{name}: the indices have one axis. Operands: {describe((x, indices))}")
    shape = (*x.shape[:place], chosen.size, *x.shape[place + 1 :])
    if getattr(values, "shape", shape) != shape:
        raise ShapeError(f"{name}: the values have the shape {list(shape)}. Operands: {describe((x, values))}")
    each = call("broadcast_to", call("reshape", chosen, shape=(chosen.size, *(1,) * (x.ndim - place - 1))), shape=shape)
    return _scatter(name, x, each, values, place, mode, include_self)


# ---- along one axis, an index for each element ----


@method
@plain_signature
def take_along_axis(x: T, indices: Indices, /, axis: int = -1, *surplus: Never, **wrong: Never) -> T:
    """The elements of ``x`` at ``indices`` along ``axis``; the other axes broadcast.

    With ``axis=1``, ``out[i, j] = x[i, indices[i, j]]``.

        >>> import backburn as bb
        >>> x = bb.asarray([[10, 30, 20], [60, 40, 50]])
        >>> bb.take_along_axis(x, bb.argsort(x, axis=1), axis=1).tolist()
        [[10, 20, 30], [40, 50, 60]]
    """
    if surplus or wrong:
        refuse(take_along_axis, surplus, wrong)
    kind_operand("take_along_axis", x, "FCIBQ")
    chosen = _indices_operand("take_along_axis", indices)
    place = axis_of("take_along_axis", x, axis)
    if chosen.ndim != x.ndim:
        raise ShapeError(f"take_along_axis: both operands need as many axes: {describe((x, indices))}")
    shape = [max(n, m) if 1 in (n, m) else n for n, m in zip(x.shape, chosen.shape, strict=True)]
    wanted = (*shape[:place], x.shape[place], *shape[place + 1 :])
    index_shape = (*shape[:place], chosen.shape[place], *shape[place + 1 :])
    wide = x if x.shape == wanted else call("broadcast_to", x, shape=wanted)
    if chosen.shape != index_shape:
        chosen = call("broadcast_to", chosen, shape=index_shape)
    return call("take_along_axis", wide, chosen, axis=place)


@method
@explained
def scatter(
    x: T, indices: Indices, values: Tensor | Number, /, axis: int, *, mode: str = "assign", include_self: bool = True
) -> T:
    """``x`` with ``values`` written at ``indices`` along ``axis``; the writing counterpart of :func:`take_along_axis`.

    ``indices`` has the shape of ``x`` in every other axis, and ``values`` that of ``indices``. ``mode`` is ``"assign"``
    (for repeated indices, the last value wins), ``"add"``, ``"mul"``, ``"min"``, ``"max"`` or, for floats, ``"mean"``,
    which combine all values with the element, or without it if ``include_self`` is False. Ties of ``"min"`` and
    ``"max"`` share the gradient.

        >>> import backburn as bb
        >>> x, where = bb.asarray([[1.0, 2.0, 3.0]]), bb.asarray([[2, 2]])
        >>> bb.scatter(x, where, bb.asarray([[10.0, 20.0]]), axis=1, mode="add").tolist()
        [[1.0, 2.0, 33.0]]
        >>> bb.scatter(x, where, bb.asarray([[10.0, 20.0]]), axis=1, mode="mean", include_self=False).tolist()
        [[1.0, 2.0, 15.0]]
    """
    _plain_operand("scatter", x)
    chosen = _indices_before("scatter", indices, axis)
    return _scatter("scatter", x, chosen, values, axis_of("scatter", x, axis), mode, include_self)


def _scatter(name: str, x: Any, indices: Any, values: Any, axis: int, mode: str, include_self: bool) -> Any:
    """``x`` with values written at indices, one for each index."""

    def write(into: Any, value: Any, mode: str) -> Any:
        if mode in ("assign", "add"):
            return call("scatter", into, indices, value, axis=axis, mode=mode)
        value = value if is_tensor(value) else _full(into, value, indices.shape)
        return call("scatter_reduce", into, indices, value, axis=axis, mode=mode)

    return _write_mode(name, x, _value_operand(name, x, values), mode, include_self, write)


def _write_mode(
    name: str, x: Any, value: Any, mode: str, include_self: bool, write: Callable[[Any, Any, str], Any]
) -> Any:
    """``x`` with ``value`` written by ``write``; checks that the mode exists for the kind of ``x``."""
    if one_of(name, "mode", mode, _MODES, of=(x,)) not in ("assign", "add"):
        kind_operand(name, x, "FI")
    if mode == "mean" and not x.dtype.is_floating:
        raise DTypeError(f"{name}: a mean needs floats; cast with astype('float32'). Operand: {describe((x,))}")
    kept = x
    if not include_self and mode != "assign":
        with unwatched():
            kept = write(x, _neutral_element(x.dtype, mode), "assign")
    if mode != "mean":
        return write(kept, value, mode)
    wide = upcast_half(kept)
    counts = _full(wide, 1.0, x.shape)
    counts = write(counts if include_self else write(counts, 0.0, "assign"), 1.0, "add")
    total = write(wide, cast(value, wide.dtype) if is_tensor(value) else value, "add")
    return cast(call("div", total, counts), x.dtype)


def _neutral_element(dtype: DType, mode: str) -> Scalar:
    """The neutral element of a mode."""
    if mode in ("add", "mul", "mean"):
        return fit(mode == "mul", dtype)
    if dtype.kind == "int":
        return iinfo(dtype).max if mode == "min" else iinfo(dtype).min
    return math.inf if mode == "min" else -math.inf


def _full(x: Any, value: Scalar, shape: tuple[int, ...]) -> Any:
    """A number as a tensor of the dtype of ``x``."""
    k = x.backend
    return x.__class__(k.full(shape, value, x.dtype), k, x.dtype)


# ---- several axes at once ----


def gather_nd(x: T, indices: Indices, /) -> T:
    """The entries of ``x`` at positions along its first m axes: ``indices`` has the shape (..., m).

    >>> import backburn as bb
    >>> x = bb.asarray([[1, 2], [3, 4]])
    >>> bb.gather_nd(x, bb.asarray([[0, 1], [1, 0]])).tolist(), bb.gather_nd(x, bb.asarray([[1]])).tolist()
    ([2, 3], [[3, 4]])
    """
    chosen = _indices_operand("gather_nd", indices)
    try:
        return call("gather_nd", _plain_operand("gather_nd", x), chosen)
    except OutOfRangeError as error:
        raise _out_of_range_error("gather_nd", x, _axis_indices(x, chosen), error) from error


def scatter_nd(
    x: T, indices: Indices, values: Tensor | Number, /, *, mode: str = "assign", include_self: bool = True
) -> T:
    """``x`` with entries written at positions; the writing counterpart of :func:`gather_nd`.

    ``mode`` and ``include_self`` are those of :func:`scatter`.

        >>> import backburn as bb
        >>> x, places = bb.asarray([[1, 2], [3, 4]]), bb.asarray([[0, 1], [1, 0]])
        >>> bb.scatter_nd(x, places, 0).tolist(), bb.scatter_nd(x, places, 5, mode="mul").tolist()
        ([[1, 0], [0, 4]], [[1, 10], [15, 4]])
    """
    _plain_operand("scatter_nd", x)
    chosen, value = _indices_operand("scatter_nd", indices), _value_operand("scatter_nd", x, values)

    def write(into: Any, value: Any, mode: str) -> Any:
        return call("scatter_nd", into, chosen, value, mode=mode)

    try:
        return _write_mode("scatter_nd", x, value, mode, include_self, write)
    except OutOfRangeError as error:
        raise _out_of_range_error("scatter_nd", x, _axis_indices(x, chosen), error) from error


def _axis_indices(x: Any, indices: Any) -> Iterator[tuple[int, Any]]:
    """The axes that the last axis of ``indices`` numbers, and the indices for each."""
    return ((axis, indices[..., axis]) for axis in range(min(x.ndim, indices.shape[-1])))


def _out_of_range_error(
    name: str, x: Any, indices: Iterable[tuple[int, Any]], error: OutOfRangeError
) -> OutOfRangeError:
    """The error for the first index out of range, of tensors for axes of ``x``; ``error`` if all are in range."""
    for axis, positions in indices:
        length = x.shape[axis]
        wrong = first_out_of_range(positions, length)
        if wrong is not None:
            where = f"axis {axis}, which has {length} element{'s' if length != 1 else ''}"
            return OutOfRangeError(f"{name}: index {wrong} is out of range for {where}. Operand: {describe((x,))}")
    return error


# ---- indices from values, and values from indices ----


@method
def nonzero(x: Tensor, /) -> tuple[IntTensor, ...]:
    """The indices of the elements that are not 0, one int64 tensor for each axis, in row-major order.

    Raises :class:`ShapeError` for a 0-d tensor, which has no axis.

        >>> import backburn as bb
        >>> [i.tolist() for i in bb.nonzero(bb.asarray([[0, 7], [8, 0]]))]
        [[0, 1], [1, 0]]
    """
    x = kind_operand("nonzero", x)
    if not x.ndim:
        raise ShapeError(f"nonzero: a 0-d tensor has no axis. Operand: {describe((x,))}")
    return _columns(call("nonzero", x))


def _columns(positions: Any) -> tuple[Any, ...]:
    """Each column of a matrix as a vector: for positions, the indices along each axis."""
    rows, count = positions.shape
    found = (call("slice", positions, key=(slice(0, rows, 1), slice(i, i + 1, 1))) for i in range(count))
    return tuple(call("reshape", column, shape=(rows,)) for column in found)


def one_hot(x: Tensor, /, num_classes: int | None = None, *, dtype: Any = int64) -> Tensor:
    """A new last axis of length ``num_classes`` that is 1 at the index given by ``x`` and 0 elsewhere.

    By default ``num_classes`` is the largest index plus one, which is read on the host; then an empty ``x`` raises
    :class:`ArgumentError`. An index below 0 or beyond the classes raises :class:`OutOfRangeError`.

        >>> import backburn as bb
        >>> bb.one_hot(bb.asarray([0, 2]), 3).tolist()
        [[1, 0, 0], [0, 0, 1]]
        >>> bb.one_hot(bb.asarray([0, 1])).tolist()
        [[1, 0], [0, 1]]
    """
    index = _indices_operand("one_hot", x)
    if num_classes is None:
        if not index.size:
            raise ArgumentError(f"one_hot: num_classes must be given for an empty tensor. Operand: {describe((x,))}")
        num_classes = max(int(index.max().item()) + 1, 0)
    depth = integer("one_hot", "num_classes", num_classes, least=0)
    wanted = dtype_of(dtype, index.backend)
    if wanted.kind == "quantized":
        raise DTypeError(f"one_hot: the dtype is that of floats, integers or truth values, not {wanted}")
    try:
        return call("one_hot", counted_from_zero(index), depth=depth, dtype=wanted)
    except OutOfRangeError as error:
        raise no_such_index("one_hot", error, index, depth, "classes") from error
