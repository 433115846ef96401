"""Operations on the shape of quantized tensors: stored values are moved, with the steps that belong to them.

What would give neighbours that share a step different ones is refused with :class:`ShapeError`: a quantized tensor is
moved exactly or not at all. Each function takes the backend ``k`` first, whose operations on plain tensors do the work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from backburn.backend.index import Key, canonical_slice
from backburn.backend.layout import joined, permuted
from backburn.backend.quantized import Quantized, blocks_of, integers, pack, unpack
from backburn.backend.shapes import broadcast_to as broadcast_shape
from backburn.backend.shapes import reshape as reshape_shape
from backburn.base.dtypes import QuantizedDType
from backburn.base.errors import ArgumentError, ShapeError

Shape = tuple[int, ...]
Q = Quantized[Any]


#: What is to be done with an array.
Move = Callable[[Any], Any]

#: Values of which two share a byte are unpacked so many at a time.
PART = 1 << 17


def _made(
    k: Any, x: Q, move: Move, dtype: QuantizedDType | None = None, steps: Move | None = None, whole: bool = False
) -> Q:
    """``x`` with its values moved, and its steps and zero points as ``steps`` moves them.

    Where the last axis stays ``whole``, values that are packed along it are moved as they are.
    """
    if whole or not x.dtype.is_packed:
        values = move(x.values)
        shape = (*values.shape[:-1], x.shape[-1]) if x.dtype.is_packed else tuple(values.shape)
    else:
        values = move(integers(k, x))
        shape = tuple(values.shape)
        values = pack(k, values)
    return _with_steps(x, values, shape, dtype, steps)


def _with_steps(x: Q, values: Any, shape: Shape, dtype: QuantizedDType | None = None, steps: Move | None = None) -> Q:
    """Stored values of another shape, with what ``steps`` makes of the steps and zero points of ``x``."""
    move = steps or (lambda s: s)
    zero = None if x.zero is None else move(x.zero)
    return replace(x, values=values, scale=move(x.scale), dtype=dtype or x.dtype, zero=zero, shape=shape)


def _size(shape: Shape) -> int:
    return math.prod(shape)


def _refuse(x: Q, what: str) -> NoReturn:
    raise ShapeError(
        f"{what} would part values of {x.dtype} in the shape {list(x.shape)} from their steps; dequantize it first"
    )


def reshape(k: Any, x: Q, /, shape: Shape) -> Q:
    """The same values under another shape that keeps the channel axis, or the last axis where blocks lie along it."""
    reshape_shape(x.shape, shape=shape)
    old: Shape = x.shape
    whole = bool(shape and old) and shape[-1] == old[-1]

    def values(v: Any) -> Any:
        return k.reshape(v, (*shape[:-1], v.shape[-1]) if whole else shape)

    if x.dtype.axis is not None:
        a = x.dtype.axis
        before = _size(old[:a])
        for axis, n in enumerate(shape):
            if n == old[a] and _size(shape[:axis]) == before and (_size(old) or axis == a):
                return _made(k, x, values, x.dtype.over(axis), whole=whole)
        if old[a] == 1:  # one step serves all values
            return _made(k, x, values, x.dtype.for_tensor(), lambda s: k.reshape(s, ()), whole)
        _refuse(x, f"the shape {list(shape)}")
    if x.dtype.block is not None:
        if not shape or shape[-1] != old[-1] or _size(shape[:-1]) != _size(old[:-1]):
            _refuse(x, f"the shape {list(shape)}")
        return _made(k, x, values, None, lambda s: k.reshape(s, (*shape[:-1], s.shape[-1])), whole)
    return _made(k, x, values, whole=whole)


def broadcast_to(k: Any, x: Q, /, shape: Shape) -> Q:
    """The same values repeated, each with its step."""
    broadcast_shape(x.shape, shape=shape)
    whole = bool(shape and x.shape) and shape[-1] == x.shape[-1]

    def values(v: Any) -> Any:
        return k.broadcast_to(v, (*shape[:-1], v.shape[-1]) if whole else shape)

    if x.dtype.axis is not None:
        axis = x.dtype.axis + len(shape) - len(x.shape)
        return _made(k, x, values, x.dtype.over(axis), lambda s: k.broadcast_to(s, (shape[axis],)), whole)
    if x.dtype.block is not None:
        steps = (*shape[:-1], blocks_of(x.dtype, shape[-1]))
        return _made(k, x, values, None, lambda s: k.broadcast_to(s, steps), whole)
    return _made(k, x, values, whole=whole)


def permute_dims(k: Any, x: Q, /, axes: Shape) -> Q:
    """The same values with their axes in another order, in which blocks still lie along the last."""
    permuted(x.shape, axes=axes)
    if x.dtype.block is not None and axes[-1] != len(axes) - 1:
        _refuse(x, f"the order {list(axes)} of axes")
    dtype = None if x.dtype.axis is None else x.dtype.over(axes.index(x.dtype.axis))
    steps = None if x.dtype.block is None else lambda s: k.permute_dims(s, axes)
    whole = not axes or axes[-1] == len(axes) - 1
    if x.dtype.is_packed and not whole:
        return _with_steps(x, _packed_anew(k, x, axes), tuple(x.shape[a] for a in axes), dtype, steps)
    return _made(k, x, lambda v: k.permute_dims(v, axes), dtype, steps, whole)


def _packed_anew(k: Any, x: Q, axes: Shape) -> Any:
    """The values packed along another axis than before, unpacked one part of the longest axis after another."""
    shape = x.shape
    longest = max(range(len(shape)), key=lambda a: shape[a])
    length, last = shape[longest], len(shape) - 1
    size = max(2, PART * length // max(1, _size(shape)) // 2 * 2)  # whole bytes, of the old values and of the new
    parts = []
    for start in range(0, max(1, length), size):
        stop = min(start + size, length)
        taken = slice(start // 2, -(-stop // 2), 1) if longest == last else slice(start, stop, 1)
        key = tuple(taken if a == longest else slice(0, n, 1) for a, n in enumerate(x.values.shape))
        part = (*shape[:longest], stop - start, *shape[longest + 1 :])
        values = unpack(k, k.slice(x.values, key), part)
        parts.append(pack(k, k.permute_dims(values, axes)))
    return parts[0] if len(parts) == 1 else k.concat(parts, axes.index(longest))


def slice_(k: Any, x: Q, /, key: Key) -> Q:
    """The values at ``key``; along the last axis whole blocks, or parts of one, from the beginning of a block on."""
    whole = bool(key) and x.shape[-1] > 0 and key[-1] == slice(0, x.shape[-1], 1)

    def values(v: Any) -> Any:
        return k.slice(v, (*key[:-1], slice(0, v.shape[-1], 1)) if whole else key)

    if x.dtype.axis is not None:
        chosen = key[x.dtype.axis]
        return _made(k, x, values, None, lambda s: k.slice(s, (chosen,)), whole)
    if x.dtype.block is None:
        return _made(k, x, values, whole=whole)
    last = _block_range(x, key[-1])
    return _made(k, x, values, None, lambda s: k.slice(s, (*key[:-1], last)), whole)


def _block_range(x: Q, key: slice) -> slice:
    """The blocks of the values at ``key`` along the last axis."""
    size, length = x.dtype.block, x.shape[-1]
    assert size is not None
    chosen = range(*key.indices(length))
    if not chosen:
        return slice(0, 0, 1)
    blocks = blocks_of(x.dtype, length)
    first, last = sorted((chosen[0] // size, chosen[-1] // size))
    if first == last or (chosen.step == 1 and chosen[0] % size == 0):
        return slice(first, last + 1, 1)
    if chosen.step == -1 and len(chosen) == length and length % size == 0:
        return canonical_slice(slice(None, None, -1), blocks)
    _refuse(x, f"the range {key} of the last axis")


def take(k: Any, x: Q, indices: Any, /, axis: int) -> Q:
    """The entries at ``indices`` along ``axis``, each with its step."""
    rank, whole = len(indices.shape), axis != len(x.shape) - 1

    def values(v: Any) -> Any:
        return k.take(v, indices, axis)

    if x.dtype.axis == axis:
        if rank > 1:
            _refuse(x, f"indices of shape {list(indices.shape)}")
        dtype = x.dtype if rank else x.dtype.for_tensor()
        return _made(k, x, values, dtype, lambda s: k.take(s, indices, 0), whole)
    if x.dtype.axis is not None:
        return _made(k, x, values, x.dtype.over(x.dtype.axis + (rank - 1 if axis < x.dtype.axis else 0)), whole=whole)
    if x.dtype.block is None:
        return _made(k, x, values, whole=whole)
    if not whole:
        _refuse(x, f"taking along axis {axis}")
    return _made(k, x, values, None, lambda s: k.take(s, indices, axis), whole)


def gather(k: Any, x: Q, indices: Any, /, axis: int) -> Q:
    """The values that ``indices`` name along ``axis``, along which all must share their steps."""
    if x.dtype.axis == axis or x.dtype.block is not None:
        _refuse(x, f"gathering along axis {axis}")
    return _made(k, x, lambda v: k.gather(v, indices, axis))


def concat(k: Any, tensors: Sequence[Any], /, axis: int) -> Q:
    """Tensors of one scheme one after the other; where values of several share a step, their steps must be equal."""
    if not all(isinstance(x, Quantized) and x.dtype is tensors[0].dtype for x in tensors):
        raise ArgumentError("concat: quantized tensors are joined with those of one scheme; dequantize them first")
    first, dtype = tensors[0], tensors[0].dtype
    shape = joined([x.shape for x in tensors], axis=axis)
    last = len(first.shape) - 1
    if dtype.is_packed and axis == last:
        values = pack(k, k.concat([integers(k, x) for x in tensors], axis))
    else:
        values = k.concat([x.values for x in tensors], axis)
    along = dtype.axis == axis or dtype.block is not None
    if along:
        if dtype.block is not None and axis == last and any(x.shape[-1] % dtype.block for x in tensors[:-1]):
            _refuse(first, "joining along the last axis in the middle of a block")
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
    return a is b or bool(k.to_numpy(k.all(k.equal(a, b), tuple(range(len(a.shape))))))


#: What moves quantized tensors, by the names of operations.
MOVES: dict[str, Callable[..., Any]] = {
    "reshape": reshape, "broadcast_to": broadcast_to, "permute_dims": permute_dims, "slice": slice_, "take": take,
    "gather": gather, "concat": concat,
}  # fmt: skip


def take_quantized(backend: type) -> None:
    """Let the operations on the shape of a class, which take plain tensors, take :class:`Quantized` ones as well."""
    for name, move in MOVES.items():
        setattr(backend, name, _either(backend.__dict__[name], move, name == "concat"))


def _either(implementation: Any, move: Callable[..., Any], is_list: bool) -> Callable[..., Any]:
    def method(k: Any, x: Any, /, *given: Any, **attributes: Any) -> Any:
        if isinstance(x[0] if is_list else x, Quantized):
            return move(k, x, *given, **attributes)
        return implementation.__get__(k, type(k))(x, *given, **attributes)

    return method
