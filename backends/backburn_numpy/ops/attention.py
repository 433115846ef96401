"""NumPy: attention of float32 and 16-bit floats by compiled kernels, without copying strided heads.

Otherwise parts of the contract's bodies compute it, one block of queries after another, so that the scores of long
sequences never exist as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np

from backburn.base.errors import ShapeError
from backburn.ops import attention as bodies
from backburn.ops.bodies.scalars import shape_or_none
from backburn.ops.random import apply_dropout
from backburn_numpy import compiled, tuning
from backburn_numpy.compiled import FLOAT32
from backburn_numpy.elementwise.half_precision import cast_like, is_half, upcast_half
from backburn_numpy.implements import implements
from backburn_numpy.runtime import blas
from backburn_numpy.runtime.memory import contiguous, empty
from backburn_numpy.runtime.threads import available, parallel_for

Array = Any
Block = tuple[slice, slice, slice]

#: Half the smallest positive float32: numbers up to this round to 0.
LEAST = 2.0**-150


@implements("scaled_dot_product_attention", takes_backend=True)
def scaled_dot_product_attention(
    k: Any,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    keep: Array | None = None,
    /,
    causal: bool = False,
    scale: float = 1.0,
    dropout: float = 0.0,
    softcap: float | None = None,
) -> Array:
    shape = bodies.attention_shape(query.shape, key.shape, value.shape, *map(shape_or_none, (mask, keep)))
    fast = _run_kernel("attention", (query, key, value), mask, keep, causal, scale, dropout, softcap)
    if fast is not None:
        return cast_like(fast.attend().reshape(shape), query)
    q, keys, values = (_stacked(upcast_half(t)) for t in (query, key, value))
    q = np.multiply(q, scale, out=...)  # which has fewer elements than the scores
    masks = _stack_mask(mask, query), _stack_mask(keep, query)
    out = empty((*q.shape[:2], values.shape[2]), query.dtype)

    def part(start: int, stop: int) -> None:
        for block in _blocks(start, stop, q.shape[1], keys.shape[1], causal):
            b, rows, seen = block
            _, weights, kept = _weights(k, q, keys, block, masks, causal, softcap)
            found = np.matmul(apply_dropout(k, weights, kept, dropout), values[b, seen])
            np.copyto(out[b, rows], found, casting="same_kind")

    parallel_for(part, len(q), _worth(q, keys))
    return out.reshape(shape)


@implements("scaled_dot_product_attention_backward", takes_backend=True)
def scaled_dot_product_attention_backward(
    k: Any,
    grad: Array,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    keep: Array | None = None,
    y: Array | None = None,
    /,
    causal: bool = False,
    scale: float = 1.0,
    dropout: float = 0.0,
    softcap: float | None = None,
) -> tuple[Array, Array, Array]:
    operands = query, key, value
    shape = bodies.attention_shape(query.shape, key.shape, value.shape, *map(shape_or_none, (mask, keep)))
    if grad.shape != shape:
        raise ShapeError(f"the gradient of a result of the shape {list(shape)} has the shape {list(grad.shape)}")
    fast = _run_kernel("attention_backward", (*operands, grad), mask, keep, causal, scale, dropout, softcap)
    if fast is not None:
        return tuple(cast_like(g.reshape(t.shape), t) for g, t in zip(fast.gradients(), operands, strict=True))
    g, q, keys, values = (_stacked(upcast_half(t)) for t in (grad, *operands))
    q = np.multiply(q, scale, out=...)
    masks = _stack_mask(mask, query), _stack_mask(keep, query)
    grads = grad_query, grad_key, grad_value = [np.zeros(t.shape, t.dtype) for t in (q, keys, values)]

    def part(start: int, stop: int) -> None:
        for block in _blocks(start, stop, q.shape[1], keys.shape[1], causal):
            b, rows, seen = block
            products, weights, kept = _weights(k, q, keys, block, masks, causal, softcap)
            slopes = bodies.grad_scores_of_weights(k, g[b, rows], values[b, seen], weights, kept, dropout)
            slopes = bodies.grad_products_of_scores(k, slopes, products, 1.0, softcap)
            np.multiply(np.matmul(slopes, keys[b, seen]), scale, out=grad_query[b, rows])
            grad_key[b, seen] += np.matmul(slopes.swapaxes(1, 2), q[b, rows])
            grad_value[b, seen] += np.matmul(apply_dropout(k, weights, kept, dropout).swapaxes(1, 2), g[b, rows])

    parallel_for(part, len(q), _worth(q, keys))
    return tuple(cast_like(t.reshape(like.shape), like) for t, like in zip(grads, operands, strict=True))


# ---- by kernels ----


class _Call:
    """A call of the kernel for attention, or for its gradient, on float32 matrices."""

    def __init__(
        self, kernel: Callable[..., None], operands: list[Array], mask: Array | None, keep: Array | None, causal: bool,
        scale: float, dropout: float,
    ) -> None:  # fmt: skip
        self.kernel, self.operands = kernel, [_readable(t) for t in operands]
        whole = (*operands[0].shape[:-1], operands[2].shape[-2])
        self.masks = [None if m is None else _with_four_axes(np.broadcast_to(m, whole)) for m in (mask, keep)]
        if operands[0].shape[-2] == 1 and not causal and len(operands) == 3:
            self._join_queries()
        outer, self.inner, self.queries, self.size = self.operands[0].shape
        self.keys, self.width = self.operands[2].shape[2:]
        self.count, self.scores = outer * self.inner, self.queries * self.keys
        self.part = (
            self.queries if self.scores <= tuning.SCORES_PER_BLOCK else max(1, tuning.SCORES_PER_BLOCK // self.keys)
        )
        self.causal, self.factors = causal, (scale, 1.0 / (1.0 - dropout) if dropout < 1 else 0.0)

    def _join_queries(self) -> None:
        """Treat the single queries of heads that share keys and values as those of one head, which reads these once."""
        query, key, value = self.operands
        if query.shape[1] > 1 and key.strides[1] == value.strides[1] == 0:
            self.operands = [query.swapaxes(1, 2), key[:, :1], value[:, :1]]
            self.masks = [None if m is None else m.swapaxes(1, 2) for m in self.masks]

    def attend(self) -> Array:
        """The result, as a stack of matrices."""
        out = empty((self.count, self.queries, self.width), FLOAT32)
        self._call([out], self.count * -(-self.queries // self.part), self.part * self.keys)
        return out

    def gradients(self) -> list[Array]:
        """The gradients for queries, keys and values, each as a stack of matrices."""
        rows = (self.queries, self.size), (self.keys, self.size), (self.keys, self.width)
        results = [empty((self.count, *shape), FLOAT32) for shape in rows]
        self._call(results, self.count, self.scores)
        return results

    def _call(self, results: list[Array], parts: int, scores: int) -> None:
        """Fill the results, in ``parts`` of ``scores`` scores."""
        mask = self.masks[0]
        sizes = [self.inner, self.queries, self.keys, self.size, self.width, int(self.causal), self.part]
        sizes.append(int(mask is not None and mask.dtype == FLOAT32))
        mask_strides = [stride for m in self.masks for stride in ((0, 0, 0, 0) if m is None else m.strides)]
        strides = [stride for t in self.operands for stride in _strides(t)]
        numbers, failed = np.array([*sizes, *mask_strides, *strides], np.int64), np.zeros(1, np.intc)
        at = compiled.addresses(*results, *self.operands, *self.masks)
        cost = scores * tuning.COST_OF_FEW_QUERIES if self.queries <= tuning.MAX_FEW_QUERIES else scores
        threads = min(available(), parts) if parts * cost >= tuning.MIN_ELEMENTS_FOR_NATIVE_THREADS else 1
        with blas.single_in_kernels() if threads > 1 else nullcontext():
            self.kernel(
                *at, blas.sgemm_address(), compiled.address(numbers), *self.factors, compiled.address(failed), parts,
                max(1, tuning.ELEMENTS_PER_TASK // cost), threads,
            )  # fmt: skip
        if failed[0]:
            raise MemoryError("no memory for the scores of some queries")


def _run_kernel(
    name: str, operands: tuple[Array, ...], mask: Array | None, keep: Array | None, causal: bool, scale: float,
    dropout: float, softcap: float | None,
) -> _Call | None:  # fmt: skip
    """A call of the kernel of that name; None if it does not take these operands."""
    upcast = [upcast_half(t) for t in operands] if is_half(operands[0]) else [*operands]
    kernel = compiled.serving(name, max(upcast, key=lambda t: t.size))
    if kernel is None or not compiled.have_dtype(*upcast) or not (keep is None or keep.dtype == np.bool_):
        return None
    if blas.sgemm_address() is None or 0 in (n for t in upcast for n in t.shape):
        return None
    if softcap is not None:  # the kernels do not cap scores
        return None
    if abs(scale) <= LEAST:  # with alpha = 0 BLAS ignores the operands, and their NaN
        return None
    if mask is not None and mask.dtype != np.bool_:
        mask = mask.astype(FLOAT32, copy=False)
    return _Call(kernel, upcast, mask, keep, causal, scale, dropout)


def _with_four_axes(x: Array) -> Array:
    """``x`` with four axes."""
    return x.reshape(math.prod(x.shape[:-3]), *(1,) * (3 - x.ndim), *x.shape[-3:])


def _readable(x: Array) -> Array:
    """``x`` with four axes, as a view if its rows are contiguous and do not overlap, else a copy."""
    four = _with_four_axes(x)
    rows, size = four.shape[2:]
    strides = four.strides
    is_dense = (size == 1 or strides[3] == 4) and (rows == 1 or strides[2] >= 4 * size)
    gapless = is_dense and not any(n % 4 for n in strides)
    return four if gapless else contiguous(four)


def _strides(x: Array) -> tuple[int, int, int]:
    """The strides in elements of the batch axes and of rows; a single row has the stride of its width."""
    outer, inner, row = (n // 4 for n in x.strides[:3])
    return outer, inner, row if x.shape[2] > 1 else x.shape[3]


# ---- block by block ----


def _stacked(x: Array) -> Array:
    """``x`` as a stack of matrices."""
    return x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:])


def _stack_mask(x: Array | None, query: Array) -> Array | None:
    """A mask with one leading axis, of length 1 if all matrices share it."""
    if x is None:
        return None
    mask: Array = x.reshape((1,) * (query.ndim - x.ndim) + x.shape)
    if any(n != 1 for n in mask.shape[:-2]):
        mask = np.broadcast_to(mask, (*query.shape[:-2], *mask.shape[-2:]))
    return _stacked(mask)


def _worth(q: Array, keys: Array) -> int:
    """The fewest matrices that make a second thread pay."""
    return int(max(1, tuning.MIN_SCORES_FOR_SECOND_THREAD // max(1, q.shape[1] * keys.shape[1])))


def _blocks(start: int, stop: int, queries: int, keys: int, causal: bool) -> Iterator[Block]:
    """Slices of matrices, of queries, and of the keys that these may attend to."""
    one = queries * keys
    if one <= tuning.SCORES_PER_BLOCK:
        step = max(1, tuning.SCORES_PER_BLOCK // max(1, one))
        for first in range(start, stop, step):
            yield slice(first, min(first + step, stop)), slice(0, queries), slice(0, keys)
        return
    step = max(1, tuning.SCORES_PER_BLOCK // keys)
    for number in range(start, stop):
        for first in range(0, queries, step):
            last = min(first + step, queries)
            yield slice(number, number + 1), slice(first, last), slice(0, min(last, keys) if causal else keys)


def _weights(
    k: Any, q: Array, keys: Array, block: Block, masks: tuple[Array | None, Array | None], causal: bool,
    softcap: float | None,
) -> tuple[Array, Array, Array | None]:  # fmt: skip
    """The products and the attention weights of a block, 0 for a query that sees no key; and the part of ``keep``."""
    b, rows, seen = block
    mask, keep = (None if x is None else _mask_block(x, block) for x in masks)
    products = np.matmul(q[b, rows], keys[b, seen].swapaxes(1, 2))
    scores = products if softcap is None else products * (1.0 / softcap)
    if softcap is not None:
        np.multiply(np.tanh(scores, out=scores), softcap, out=scores)
    if mask is not None and mask.dtype == np.bool_:
        np.copyto(scores, -np.inf, where=np.logical_not(mask))
    elif mask is not None:
        np.add(scores, upcast_half(mask), out=scores)
    if causal:
        np.copyto(scores, -np.inf, where=np.arange(seen.stop) > np.arange(rows.start, rows.stop)[:, None])
    weights = k.softmax(scores, axis=2)
    if np.isnan(weights[..., :1]).any():
        np.copyto(weights, 0, where=np.maximum.reduce(scores, axis=2, keepdims=True) == -np.inf)
    return products, weights, keep


def _mask_block(x: Array, block: Block) -> Array:
    """The part of a mask that belongs to a block; axes of length 1 stay."""
    return x[tuple(slice(None) if n == 1 else s for n, s in zip(x.shape, block, strict=True))]
