"""Operations on the shape of quantized tensors: stored values are moved together with their steps.

Moves that separate values which share a step raise :class:`ShapeError`: a quantized tensor is moved exactly or
not at all. Each function takes the backend ``k`` first, and works with its operations on plain tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from backburn.base.dtypes import QuantizedDType
from backburn.base.errors import ArgumentError, ShapeError
from backburn.ops.bodies.quantized import Quantized, block_shape, integers, pack, scale_shape, unpack
from backburn.ops.bodies.reductions import all_true
from backburn.ops.bodies.slicing import slice_axis
from backburn.ops.index import Key, canonical_slice
from backburn.ops.rules.shapes import Shape, joined, permuted
from backburn.ops.rules.shapes import broadcast_to as broadcast_shape
from backburn.ops.rules.shapes import reshape as reshape_shape

Q = Quantized[Any]


#: A function that moves the elements of an array.
Move = Callable[[Any], Any]

#: The number of packed values that are unpacked at a time.
PART = 1 << 17


def _requantized(
    k: Any, x: Q, move: Move, dtype: QuantizedDType | None = None, steps: Move | None = None, whole: bool = False
) -> Q:
    """``x`` with its values moved by ``move``, and its steps and zero points by ``steps``.

    If the last axis stays ``whole``, values that are packed along it are moved without unpacking.
    """
    if whole or not x.dtype.is_packed:
        values = move(x.values)
        shape = (*values.shape[:-1], x.shape[-1]) if x.dtype.is_packed else tuple(values.shape)
    else:
        values = move(integers(k, x))
        shape = tuple(values.shape)
        values = pack(k, values, x.dtype.bits)
    return _with_steps(x, values, shape, dtype, steps)


def _with_steps(x: Q, values: Any, shape: Shape, dtype: QuantizedDType | None, steps: Move | None) -> Q:
    """Stored values of another shape, with the steps and zero points of ``x`` moved by ``steps``."""
    move = steps or (lambda s: s)
    zero = None if x.zero is None else move(x.zero)
    return replace(x, values=values, scale=move(x.scale), dtype=dtype or x.dtype, zero=zero, shape=shape)


def _refuse(x: Q, what: str) -> NoReturn:
    raise ShapeError(
        f"{what} would separate values of {x.dtype} in the shape {list(x.shape)} from their steps; dequantize it first"
    )


def reshape(k: Any, x: Q, /, shape: Shape) -> Q:
    """The values in another shape that keeps the channel axis, or the axes along which blocks lie."""
    reshape_shape(x.shape, shape=shape)
    old: Shape = x.shape
    whole = bool(shape and old) and shape[-1] == old[-1]

    def values(v: Any) -> Any:
        return k.reshape(v, (*shape[:-1], v.shape[-1]) if whole else shape)

    if x.dtype.axis is not None:
        a = x.dtype.axis
        before = math.prod(old[:a])
        for axis, n in enumerate(shape):
            if n == old[a] and math.prod(shape[:axis]) == before and (0 not in old or axis == a):
                return _requantized(k, x, values, x.dtype.over(axis), whole=whole)
        if old[a] == 1:  # one step serves all values
            return _requantized(k, x, values, x.dtype.for_tensor(), lambda s: k.reshape(s, ()), whole)
        _refuse(x, f"the shape {list(shape)}")
    if x.dtype.block_shape:
        dtype = x.dtype.in_blocks(_blocks_in(x, shape))
        return _requantized(k, x, values, dtype, lambda s: k.reshape(s, scale_shape(shape, dtype)), whole)
    return _requantized(k, x, values, whole=whole)


def _blocks_in(x: Q, shape: Shape) -> Shape:
    """The lengths of blocks along the last axes of another shape, which may add or drop axes of length 1."""
    lengths = x.dtype.block_shape
    if shape[-len(lengths) :] == x.shape[-len(lengths) :]:
        return lengths
    last = [(n, size) for n, size in zip(x.shape[-len(lengths) :], lengths, strict=True) if n != 1]
    found: list[int] = []
    for n in reversed(shape):
        if not last or n not in (1, last[-1][0]):
            break
        found.append(1 if n == 1 else last.pop()[1])
    if not last and max(found, default=1) > 1:
        return tuple(reversed(found))
    if math.prod(x.scale.shape) == 1:  # one step serves all values
        return ()
    _refuse(x, f"the shape {list(shape)}")


def broadcast_to(k: Any, x: Q, /, shape: Shape) -> Q:
    """The values repeated, each with its step."""
    broadcast_shape(x.shape, shape=shape)
    whole = bool(shape and x.shape) and shape[-1] == x.shape[-1]

    def values(v: Any) -> Any:
        return k.broadcast_to(v, (*shape[:-1], v.shape[-1]) if whole else shape)

    if x.dtype.axis is not None:
        axis = x.dtype.axis + len(shape) - len(x.shape)
        return _requantized(k, x, values, x.dtype.over(axis), lambda s: k.broadcast_to(s, (shape[axis],)), whole)
    if x.dtype.block_shape:
        return _requantized(k, x, values, None, lambda s: k.broadcast_to(s, scale_shape(shape, x.dtype)), whole)
    return _requantized(k, x, values, whole=whole)


def permute_dims(k: Any, x: Q, /, axes: Shape) -> Q:
    """The values with their axes, and the lengths of blocks along them, in another order."""
    permuted(x.shape, axes=axes)
    dtype, steps = None if x.dtype.axis is None else x.dtype.over(axes.index(x.dtype.axis)), None
    if x.dtype.block_shape:
        lengths = block_shape(x.dtype, len(axes))
        dtype, steps = x.dtype.in_blocks(tuple(lengths[a] for a in axes)), lambda s: k.permute_dims(s, axes)
    whole = not axes or axes[-1] == len(axes) - 1
    if x.dtype.is_packed and not whole:
        return _with_steps(x, _repack(k, x, axes), tuple(x.shape[a] for a in axes), dtype, steps)
    return _requantized(k, x, lambda v: k.permute_dims(v, axes), dtype, steps, whole)


def _repack(k: Any, x: Q, axes: Shape) -> Any:
    """The values repacked along another axis, one part of the longest axis at a time."""
    shape, bits = x.shape, x.dtype.bits
    each = 8 // bits
    longest = max(range(len(shape)), key=lambda a: shape[a])
    length, last = shape[longest], len(shape) - 1
    # whole bytes, of the old values and of the new
    size = max(1, PART * length // max(1, math.prod(shape)) // each) * each
    parts = []
    for start in range(0, max(1, length), size):
        stop = min(start + size, length)
        first, end = (start // each, -(-stop // each)) if longest == last else (start, stop)
        packed = slice_axis(k, x.values, longest, first, end)
        values = unpack(k, packed, (*shape[:longest], stop - start, *shape[longest + 1 :]), bits)
        parts.append(pack(k, k.permute_dims(values, axes), bits))
    return parts[0] if len(parts) == 1 else k.concat(parts, axes.index(longest))


def slice_(k: Any, x: Q, /, key: Key) -> Q:
    """The values at ``key``; along an axis of blocks, whole blocks, or a part of one that starts at its beginning."""
    whole = bool(key) and x.shape[-1] > 0 and key[-1] == slice(0, x.shape[-1], 1)

    def values(v: Any) -> Any:
        return k.slice(v, (*key[:-1], slice(0, v.shape[-1], 1)) if whole else key)

    if x.dtype.axis is not None:
        chosen = key[x.dtype.axis]
        return _requantized(k, x, values, None, lambda s: k.slice(s, (chosen,)), whole)
    if not x.dtype.block_shape:
        return _requantized(k, x, values, whole=whole)
    lengths = block_shape(x.dtype, len(key))
    blocks = tuple(s if n == 1 else _block_range(x, a, n, s) for a, (n, s) in enumerate(zip(lengths, key, strict=True)))
    return _requantized(k, x, values, None, lambda s: k.slice(s, blocks), whole)


def _block_range(x: Q, axis: int, size: int, key: slice) -> slice:
    """The blocks of the values at ``key`` along an axis on which blocks have ``size`` values."""
    length = x.shape[axis]
    chosen = range(*key.indices(length))
    if not chosen:
        return slice(0, 0, 1)
    first, last = sorted((chosen[0] // size, chosen[-1] // size))
    if first == last or (chosen.step == 1 and chosen[0] % size == 0):
        return slice(first, last + 1, 1)
    if chosen.step == -1 and len(chosen) == length and length % size == 0:
        return canonical_slice(slice(None, None, -1), length // size)
    _refuse(x, f"the range {key} of axis {axis}")


def take(k: Any, x: Q, indices: Any, /, axis: int) -> Q:
    """The entries at ``indices`` along ``axis``, each with its step."""
    rank, whole = len(indices.shape), axis != len(x.shape) - 1

    def values(v: Any) -> Any:
        return k.take(v, indices, axis)

    if x.dtype.axis == axis:
        if rank > 1:
            _refuse(x, f"indices of shape {list(indices.shape)}")
        dtype = x.dtype if rank else x.dtype.for_tensor()
        return _requantized(k, x, values, dtype, lambda s: k.take(s, indices, 0), whole)
    if x.dtype.axis is not None:
        return _requantized(
            k, x, values, x.dtype.over(x.dtype.axis + (rank - 1 if axis < x.dtype.axis else 0)), whole=whole
        )
    if not x.dtype.block_shape:
        return _requantized(k, x, values, whole=whole)
    lengths = block_shape(x.dtype, len(x.shape))
    if lengths[axis] > 1:
        _refuse(x, f"taking along axis {axis}")
    dtype = x.dtype.in_blocks((*lengths[:axis], *(1,) * rank, *lengths[axis + 1 :]))
    return _requantized(k, x, values, dtype, lambda s: k.take(s, indices, axis), whole)


def take_along_axis(k: Any, x: Q, indices: Any, /, axis: int) -> Q:
    """The values at ``indices`` along ``axis``, along which all must share their steps."""
    if x.dtype.axis == axis or x.dtype.block_shape:
        _refuse(x, f"gathering along axis {axis}")
    return _requantized(k, x, lambda v: k.take_along_axis(v, indices, axis))


def concat(k: Any, tensors: Sequence[Any], /, axis: int) -> Q:
    """Tensors of one scheme joined along ``axis``; where values of several share a step, their steps must be equal."""
    if not all(isinstance(x, Quantized) and x.dtype is tensors[0].dtype for x in tensors):
        raise ArgumentError("concat: quantized tensors are joined with those of one scheme; dequantize them first")
    first, dtype = tensors[0], tensors[0].dtype
    shape = joined([x.shape for x in tensors], axis=axis)
    last = len(first.shape) - 1
    if dtype.is_packed and axis == last:
        values = pack(k, k.concat([integers(k, x) for x in tensors], axis), dtype.bits)
    else:
        values = k.concat([x.values for x in tensors], axis)
    if dtype.axis == axis or dtype.block_shape:
        if dtype.block_shape and any(x.shape[axis] % block_shape(dtype, last + 1)[axis] for x in tensors[:-1]):
            _refuse(first, f"joining along axis {axis} in the middle of a block")
        place = 0 if dtype.axis is not None else axis
        joined_zero = None if first.zero is None else k.concat([x.zero for x in tensors], place)
        scale = k.concat([x.scale for x in tensors], place)
        return replace(first, values=values, scale=scale, zero=joined_zero, shape=shape)
    for x in tensors[1:]:
        if not _same(k, first.scale, x.scale) or (first.zero is not None and not _same(k, first.zero, x.zero)):
            shapes = ", ".join(str(list(t.shape)) for t in tensors)
            raise ArgumentError(
                f"concat: the tensors of {dtype} in the shapes {shapes} have different steps; dequantize them first"
            )
    return replace(first, values=values, shape=shape)


def _same(k: Any, a: Any, b: Any) -> bool:
    return a is b or all_true(k, k.equal(a, b))


#: Functions that move quantized tensors, by the names of operations.
MOVES: dict[str, Callable[..., Any]] = {
    "reshape": reshape, "broadcast_to": broadcast_to, "permute_dims": permute_dims, "slice": slice_, "take": take,
    "take_along_axis": take_along_axis, "concat": concat,
}  # fmt: skip


def take_quantized(backend: type) -> None:
    """Make the operations on the shape of a class, which take plain tensors, accept :class:`Quantized` ones too."""
    for name, move in MOVES.items():
        setattr(backend, name, _either(backend.__dict__[name], move, name == "concat"))


def _either(implementation: Any, move: Callable[..., Any], is_list: bool) -> Callable[..., Any]:
    def method(k: Any, x: Any, /, *given: Any, **attributes: Any) -> Any:
        if isinstance(x[0] if is_list else x, Quantized):
            return move(k, x, *given, **attributes)
        return implementation.__get__(k, type(k))(x, *given, **attributes)

    return method
