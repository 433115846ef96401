"""Tensor functions: reshaping, permuting axes, broadcasting, joining and splitting.

Negative axes count from the end. Gradients are moved back to where the elements came from. Quantized tensors stay
quantized when they are reshaped, permuted or broadcast. Raises :class:`AxisError` for an axis that is out of range or
repeated, :class:`ShapeError` for lengths that do not fit, and :class:`DTypeError` for quantized tensors in other
functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Never

from backburn.base.errors import ArgumentError, AxisError, ShapeError
from backburn.hints.arguments import explained, plain_signature, refuse
from backburn.ops.rules.shapes import broadcast, check_axis
from backburn.tensor.core.dispatch import call, is_quantized, kind_operand, promote_operands, tensor_operand
from backburn.tensor.core.messages import describe, explain
from backburn.tensor.core.methods import method
from backburn.tensor.core.options import axes_of, axis_of, integer, integers_of, one_integer, one_of, shape_of
from backburn.tensor.core.types import T
from backburn.tensor.core.wrapping import is_tensor
from backburn.tensor.quantized import exact_or_float

if TYPE_CHECKING:
    from backburn.tensor.classes import Tensor

_Shape = tuple[int, ...]


# ---- shapes ----


def reshape(x: T, /, shape: int | Sequence[int], *, copy: bool | None = None) -> T:
    """``x`` in another shape, its elements in row-major order; one length may be -1, and is then inferred.

    ``copy`` exists for the Array API and changes nothing, since tensors are immutable. Raises :class:`ShapeError` if
    the number of elements differs.

        >>> import backburn as bb
        >>> bb.reshape(bb.arange(6), (2, -1)).tolist(), bb.arange(6).reshape(3, 2).shape
        ([[0, 1, 2], [3, 4, 5]], (3, 2))
    """
    x = tensor_operand("reshape", x)
    return call("reshape", x, shape=_infer_length("reshape", x, shape))


@method(name="reshape")
def _reshape_method(x: T, /, *shape: Any, **wrong: Never) -> T:
    """This tensor in another shape, given as lengths or as one tuple. See :func:`backburn.reshape`."""
    if wrong:
        refuse(reshape, (), wrong)
    return call("reshape", x, shape=_infer_length("reshape", x, shape[0] if len(shape) == 1 else shape))


def _infer_length(name: str, x: Any, shape: Any) -> _Shape:
    """``shape`` with -1 replaced by the inferred length."""
    lengths = integers_of(name, "a shape", shape)
    if not lengths or min(lengths) >= 0:
        return lengths
    if lengths.count(-1) > 1:
        raise ShapeError(f"{name}: only one length can be -1, and the shape is {list(lengths)}")
    if min(lengths) < -1:
        shape_of(name, [n for n in lengths if n != -1])  # raises
    known = -math.prod(lengths)
    if known == 0 or x.size % known:
        raise ShapeError(
            f"{name}: no length for -1 makes {list(lengths)} hold {x.size} elements. Operand: {describe((x,))}"
        )
    return tuple([x.size // known if n == -1 else n for n in lengths])


@method
@plain_signature
def flatten(x: T, /, start_axis: int = 0, end_axis: int = -1, *surplus: Never, **wrong: Never) -> T:
    """``x`` with its axes from ``start_axis`` to ``end_axis``, both included, merged; a 0-d tensor becomes a vector.

    >>> import backburn as bb
    >>> bb.zeros((2, 3, 4)).flatten().shape, bb.zeros((2, 3, 4)).flatten(start_axis=1).shape
    ((24,), (2, 12))
    """
    if surplus or wrong:
        refuse(flatten, surplus, wrong)
    x = tensor_operand("flatten", x)
    if x.ndim == 0:
        return reshape(x, (1,))
    first, last = axis_of("flatten", x, start_axis), axis_of("flatten", x, end_axis)
    if first > last:
        raise AxisError(f"flatten: axis {start_axis} comes after axis {end_axis}. Operand: {describe((x,))}")
    shape = x.shape
    return call("reshape", x, shape=(*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]))


@method
@plain_signature
def squeeze(x: T, /, axis: int | Sequence[int] | None = None, *surplus: Never, **wrong: Never) -> T:
    """``x`` without ``axis``, whose length must be 1, or by default without all axes of length 1.

    >>> import backburn as bb
    >>> bb.zeros((1, 3, 1)).squeeze().shape, bb.squeeze(bb.zeros((1, 3, 1)), 0).shape
    ((3,), (3, 1))
    """
    if surplus or wrong:
        refuse(squeeze, surplus, wrong)
    x = tensor_operand("squeeze", x)
    shape = x.shape
    axes = axes_of("squeeze", x, axis) if axis is not None else tuple(a for a, n in enumerate(shape) if n == 1)
    for a in axes:
        if shape[a] != 1:
            raise ShapeError(f"squeeze: axis {a} has length {shape[a]}, not 1. Operand: {describe((x,))}")
    return call("reshape", x, shape=tuple(n for a, n in enumerate(shape) if a not in axes))


@method
@plain_signature
def expand_dims(x: T, /, axis: int | Sequence[int] = 0, *surplus: Never, **wrong: Never) -> T:
    """``x`` with new axes of length 1 at the positions ``axis`` of the result.

    >>> import backburn as bb
    >>> bb.zeros((3,)).expand_dims(axis=-1).shape, bb.expand_dims(bb.zeros((3,)), axis=(0, 2)).shape
    ((3, 1), (1, 3, 1))
    """
    if surplus or wrong:
        refuse(expand_dims, surplus, wrong)
    x = tensor_operand("expand_dims", x)
    new = integers_of("expand_dims", "axis", axis)
    rank = x.ndim + len(new)
    axes = {a % rank for a in new if -rank <= a < rank}
    if len(axes) != len(new):
        raise AxisError(
            f"expand_dims: axis {axis} is out of range for the {rank} dimensions of the result, or names one twice. "
            f"Operand: {describe((x,))}"
        )
    shape = [*x.shape]
    for a in sorted(axes):
        shape.insert(a, 1)
    return call("reshape", x, shape=tuple(shape))


def atleast_1d(x: T, /) -> T:
    """``x`` with at least one axis.

    >>> import backburn as bb
    >>> bb.atleast_1d(bb.asarray(3.0)).shape
    (1,)
    """
    x = tensor_operand("atleast_1d", x)
    return x if x.ndim >= 1 else reshape(x, (1,))


def atleast_2d(x: T, /) -> T:
    """``x`` with at least two axes; new ones come first.

    >>> import backburn as bb
    >>> bb.atleast_2d(bb.asarray([1, 2, 3])).shape
    (1, 3)
    """
    x = tensor_operand("atleast_2d", x)
    return x if x.ndim >= 2 else reshape(x, (1,) * (2 - x.ndim) + x.shape)


def atleast_3d(x: T, /) -> T:
    """``x`` with at least three axes; a vector becomes (1, n, 1), a matrix (m, n, 1).

    >>> import backburn as bb
    >>> bb.atleast_3d(bb.asarray([1, 2, 3])).shape, bb.atleast_3d(bb.zeros((2, 3))).shape
    ((1, 3, 1), (2, 3, 1))
    """
    x = tensor_operand("atleast_3d", x)
    shapes = {0: (1, 1, 1), 1: (1, *x.shape, 1), 2: (*x.shape, 1)}
    return reshape(x, shapes[x.ndim]) if x.ndim < 3 else x


# ---- the order of axes ----


@method
@plain_signature
def permute_dims(x: T, /, axes: Sequence[int], *surplus: Never, **wrong: Never) -> T:
    """``x`` with its axes in the order ``axes``: axis ``i`` of the result is axis ``axes[i]`` of ``x``.

    >>> import backburn as bb
    >>> bb.zeros((2, 3, 4)).permute_dims((2, 0, 1)).shape
    (4, 2, 3)
    """
    if surplus or wrong:
        refuse(permute_dims, surplus, wrong)
    x = tensor_operand("permute_dims", x)
    order = [axis_of("permute_dims", x, a) for a in integers_of("permute_dims", "axes", axes)]
    return call("permute_dims", x, axes=tuple(order))


@plain_signature
def transpose(x: T, /, axes: Sequence[int] | None = None, *surplus: Never, **wrong: Never) -> T:
    """``x`` with its axes in the order ``axes``, as :func:`permute_dims`, or without ``axes`` in reverse order.

    ``bb.swapaxes(x, axis1, axis2)`` swaps two axes, ``x.mT`` the last two. Raises :class:`AxisError` for an axis that
    does not exist, is repeated or is left out.

        >>> import backburn as bb
        >>> bb.transpose(bb.zeros((2, 3, 4))).shape, bb.transpose(bb.zeros((2, 3, 4)), (0, 2, 1)).shape
        ((4, 3, 2), (2, 4, 3))
    """
    if surplus or wrong:
        refuse(transpose, surplus, wrong)
    x = tensor_operand("transpose", x)
    given = range(x.ndim)[::-1] if axes is None else integers_of("transpose", "axes", axes)
    order = tuple([axis_of("transpose", x, a) for a in given])
    if sorted(order) != list(range(x.ndim)):
        raise AxisError(f"transpose: axes are an order of all axes, not {list(given)}. Operand: {describe((x,))}")
    return call("permute_dims", x, axes=order)


@method
def moveaxis(x: T, source: int | Sequence[int], destination: int | Sequence[int], /) -> T:
    """``x`` with the axes ``source`` moved to the positions ``destination``; the others keep their order.

    >>> import backburn as bb
    >>> bb.moveaxis(bb.zeros((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    x = tensor_operand("moveaxis", x)
    start, end = integers_of("moveaxis", "source", source), integers_of("moveaxis", "destination", destination)
    origins, places = ([axis_of("moveaxis", x, a) for a in axes] for axes in (start, end))
    if not len(origins) == len(places) == len(set(origins)) == len(set(places)):
        raise AxisError(
            f"moveaxis: needs as many different destinations as sources, not {list(start)} to {list(end)}. "
            f"Operand: {describe((x,))}"
        )
    order = [a for a in range(x.ndim) if a not in origins]
    for place, origin in sorted(zip(places, origins, strict=True)):
        order.insert(place, origin)
    return call("permute_dims", x, axes=tuple(order))


@method
def swapaxes(x: T, axis1: int, axis2: int, /) -> T:
    """``x`` with two axes swapped.

    >>> import backburn as bb
    >>> bb.swapaxes(bb.zeros((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    x = tensor_operand("swapaxes", x)
    first, second = axis_of("swapaxes", x, axis1), axis_of("swapaxes", x, axis2)
    order = list(range(x.ndim))
    order[first], order[second] = second, first
    return call("permute_dims", x, axes=tuple(order))


# ---- broadcasting ----


@method
def broadcast_to(x: T, /, shape: int | Sequence[int]) -> T:
    """``x`` broadcast to ``shape``. The gradient is summed over the repetitions.

    >>> import backburn as bb
    >>> bb.broadcast_to(bb.asarray([1, 2]), (2, 2)).tolist()
    [[1, 2], [1, 2]]
    """
    x = tensor_operand("broadcast_to", x)
    return call("broadcast_to", x, shape=shape_of("broadcast_to", shape))


def broadcast_arrays(*arrays: Tensor) -> tuple[Tensor, ...]:
    """The tensors, broadcast to their common shape, in a tuple.

    >>> import backburn as bb
    >>> [x.shape for x in bb.broadcast_arrays(bb.zeros((2, 1)), bb.zeros(3))]
    [(2, 3), (2, 3)]
    """
    tensors = [tensor_operand("broadcast_arrays", x) for x in arrays]
    shape = _common_shape("broadcast_arrays", tensors)
    return tuple([call("broadcast_to", x, shape=shape) for x in tensors])


def _common_shape(name: str, tensors: list[Any]) -> _Shape:
    try:
        return broadcast(*(x.shape for x in tensors))
    except ShapeError as error:
        raise ShapeError(f"{name}: {error}. Operands: {describe(tensors)}") from None


def meshgrid(*arrays: Tensor, indexing: str = "xy", sparse: bool = False) -> tuple[Tensor, ...]:
    """The coordinates of all points of a grid: a tuple with one tensor for each of the 1-d ``arrays``.

    With ``indexing="ij"`` axis ``i`` belongs to array ``i``; with ``"xy"`` the first two axes are swapped. With
    ``sparse``, axes along which an array does not vary have length 1. Raises :class:`ShapeError` for arrays of two or
    more axes.

        >>> import backburn as bb
        >>> x, y = bb.meshgrid(bb.arange(2), bb.arange(3))
        >>> x.tolist(), y.tolist()
        ([[0, 1], [0, 1], [0, 1]], [[0, 0], [1, 1], [2, 2]])
    """
    one_of("meshgrid", "indexing", indexing, ("xy", "ij"))
    tensors = [atleast_1d(kind_operand("meshgrid", x, "FCIB")) for x in arrays]
    for x in tensors:
        if x.ndim > 1:
            raise ShapeError(f"meshgrid: takes one-dimensional tensors, not {describe((x,))}")
    rank = len(tensors)
    axes = [1, 0, *range(2, rank)] if indexing == "xy" and rank > 1 else list(range(rank))
    shape = tuple(tensors[a].size for a in axes)  # swapping two axes is its own inverse
    along = (tuple(x.size if b == a else 1 for b in range(rank)) for a, x in zip(axes, tensors, strict=True))
    lying = tuple([reshape(x, lengths) for x, lengths in zip(tensors, along, strict=True)])
    return lying if sparse else tuple([broadcast_to(x, shape) for x in lying])


# ---- joining ----


@plain_signature
def concat(arrays: Sequence[Tensor], /, axis: int | None = 0, *surplus: Never, **wrong: Never) -> Tensor:
    """Tensors joined along ``axis``, in their promoted dtype; if ``axis`` is None, they are flattened first.

    Raises :class:`ShapeError`, which names the axis, if they differ in another axis.

        >>> import backburn as bb
        >>> bb.concat([bb.zeros((2, 1)), bb.ones((2, 2))], axis=1).tolist()
        [[0.0, 1.0, 1.0], [0.0, 1.0, 1.0]]
    """
    if surplus or wrong:
        refuse(concat, surplus, wrong)
    tensors = promote_operands("concat", *_tensor_list("concat", arrays))
    if axis is None:
        tensors, axis = [reshape(x, (-1,)) if x.size else reshape(x, (0,)) for x in tensors], 0
    return call("concat", tensors, axis=axis_of("concat", tensors[0], axis))


@plain_signature
def stack(arrays: Sequence[Tensor], /, axis: int = 0, *surplus: Never, **wrong: Never) -> Tensor:
    """Tensors of one shape joined along a new axis, in their promoted dtype.

    >>> import backburn as bb
    >>> bb.stack([bb.arange(2), bb.arange(2)], axis=1).tolist()
    [[0, 0], [1, 1]]
    """
    if surplus or wrong:
        refuse(stack, surplus, wrong)
    tensors = _tensor_list("stack", arrays)
    if not is_quantized(tensors[0]) or any(x.dtype is not tensors[0].dtype for x in tensors):
        return _stack(promote_operands("stack", *tensors), axis)
    return exact_or_float(lambda *xs: _stack(xs, axis), *tensors)


def _stack(tensors: Sequence[Any], axis: int) -> Any:
    try:
        place = check_axis(axis, tensors[0].ndim + 1)
    except AxisError as error:
        raise AxisError(f"stack: {error} of the result. Operands: {describe(tensors)}") from None
    if is_quantized(tensors[0]):
        return call("concat", [expand_dims(x, place) for x in tensors], axis=place)
    return call("stack", list(tensors), axis=place)


def _tensor_list(name: str, arrays: Any) -> list[Any]:
    """One or more tensors."""
    if is_tensor(arrays):
        raise ArgumentError(f"{name}: takes a list of tensors, not one tensor: {describe((arrays,))}")
    try:
        given = list(arrays)
    except TypeError as cause:
        raise ArgumentError(f"{name}: takes a list of tensors, not {type(arrays).__name__}") from cause
    tensors = [tensor_operand(name, x) for x in given]
    if not tensors:
        raise ArgumentError(f"{name}: takes a list of at least one tensor, and this is empty")
    return tensors


# ---- splitting ----


@method
@explained
def split(x: T, size: int | Sequence[int], /, axis: int = 0) -> tuple[T, ...]:
    """``x`` split along ``axis`` into pieces of length ``size``, the last perhaps shorter, or of the given lengths.

    Raises :class:`ShapeError` if several lengths do not sum to the length of the axis.

        >>> import backburn as bb
        >>> [p.tolist() for p in bb.arange(5).split(2)], [p.tolist() for p in bb.arange(5).split([1, 4])]
        ([[0, 1], [2, 3], [4]], [[0], [1, 2, 3, 4]])
    """
    return exact_or_float(lambda y: _split(y, size, axis), kind_operand("split", x, "FCIBQ"))


def _split(x: Any, size: int | Sequence[int], axis: int) -> tuple[Any, ...]:
    axis = axis_of("split", x, axis)
    n = x.shape[axis]
    if (length := one_integer(size)) is not None:
        if length < 1:
            raise ArgumentError(f"split: pieces have at least one entry, not {length}")
        size = [min(length, n - start) for start in range(0, n, length)] or [0]
    sizes = shape_of("split", size)
    if sum(sizes) != n:
        raise ShapeError(f"split: the sizes {list(sizes)} do not add up to {n}, axis {axis} of {describe((x,))}")
    pieces, start = [], 0
    whole = [slice(0, m, 1) for m in x.shape]
    for count in sizes:
        whole[axis] = slice(start, start + count, 1)
        pieces.append(call("slice", x, key=tuple(whole)))
        start += count
    return tuple(pieces)


@method
@explained
def chunk(x: T, chunks: int, /, axis: int = 0) -> tuple[T, ...]:
    """``x`` split along ``axis`` into ``chunks`` pieces of equal length, rounded up; the last may be shorter.

    There may be fewer pieces; an axis of length 0 gives ``chunks`` empty ones.

        >>> import backburn as bb
        >>> [p.tolist() for p in bb.arange(5).chunk(2)], len(bb.arange(6).chunk(4))
        ([[0, 1, 2], [3, 4]], 3)
    """
    x = kind_operand("chunk", x, "FCIBQ")
    axis = axis_of("chunk", x, axis)
    count = integer("chunk", "chunks", chunks)
    if count < 1:
        raise ArgumentError(f"chunk: at least one chunk, not {count}")
    length = x.shape[axis]
    return split(x, -(-length // count) if length else [0] * count, axis=axis)


@method
@plain_signature
def unstack(x: T, /, axis: int = 0, *surplus: Never, **wrong: Never) -> tuple[T, ...]:
    """The entries along ``axis`` as a tuple of tensors without it: the inverse of :func:`stack`.

    >>> import backburn as bb
    >>> [p.tolist() for p in bb.unstack(bb.asarray([[1, 2], [3, 4]]), axis=1)]
    [[1, 3], [2, 4]]
    """
    if surplus or wrong:
        refuse(unstack, surplus, wrong)
    x = kind_operand("unstack", x, "FCIBQ")
    axis = axis_of("unstack", x, axis)
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])

    def entries(y: Any) -> tuple[Any, ...]:
        if is_quantized(y):
            return tuple([call("reshape", p, shape=shape) for p in split(y, [1] * y.shape[axis], axis=axis)])
        k, primitive, kind, dtype = y._backend, y._primitive, y.__class__, y._dtype
        try:
            return tuple([kind(k.select(primitive, axis, i), k, dtype) for i in range(y.shape[axis])])
        except Exception as error:
            explain("select", (y,), {"axis": axis, "index": 0}, error)

    return exact_or_float(entries, x)


def _slice_and_reshape(x: T, ranges: tuple[slice, ...], shape: _Shape) -> T:
    """A tensor that is not quantized, sliced to these ranges of its axes and then reshaped."""
    k, y = x._backend, x._primitive
    try:
        for s, n in zip(ranges, y.shape, strict=True):
            if s.step != 1 or s.stop - s.start != n:
                y = k.slice(y, ranges)
                break
        if y.shape != shape:
            y = k.reshape(y, shape)
    except Exception as error:
        explain("slice", (x,), {"key": ranges}, error)
    return x.__class__(y, k, x._dtype)
