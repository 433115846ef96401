"""CuPy: attention of 16-bit floats by cuDNN where it is installed, and else by products.

Scores and their softmax have at least 32 bits; of 16-bit floats the weights are rounded before they are multiplied by
the values, by cuDNN as here, so that tensor cores make all products. CuDNN never writes the weights to memory. It takes
no mask here: one may leave a query nothing to attend to, of which the contract makes 0 and cuDNN what it likes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import ref

import cupy
import numpy as np

from backburn.backend.sequence import attended, dropped, masked_scores, transposed, weights_of
from backburn.backend.table import OPERATIONS
from backburn_cupy import cudnn
from backburn_cupy.convolve import packed
from backburn_cupy.create import converted
from backburn_cupy.products import product
from backburn_cupy.reduce import is_narrow

Array = Any
Shape = tuple[int, ...]

#: The numbers of operands and results in a graph.
QUERY, KEY, VALUE, OUT, STATISTICS, GRAD, OF_QUERY, OF_KEY, OF_VALUE = range(1, 10)

#: The sizes of heads are multiples of this, and at most that.
HEAD, LARGEST_HEAD = 8, 256


def scaled_dot_product_attention(
    k: Any, query: Array, key: Array, value: Array, mask: Array | None = None, keep: Array | None = None, /,
    causal: bool = False, scale: float = 1.0, dropout: float = 0.0,
) -> Array:  # fmt: skip
    masks = (None if t is None else t.shape for t in (mask, keep))
    attended(query.shape, key.shape, value.shape, *masks)
    if mask is None and keep is None and _is_for_cudnn(query, key, value):
        made = _Call(k, query, key, value, causal, scale).forward()
        if made is not None:
            y = made.out.reshape(*query.shape[:-1], value.shape[-1])
            _MADE[id(y)] = ref(y, _forgotten(id(y))), made
            return y
    weights = dropped(k, _weights(k, query, key, mask, causal, scale), keep, dropout)
    return product(k, converted(weights, value.dtype), value)


def scaled_dot_product_attention_backward(
    k: Any, grad: Array, query: Array, key: Array, value: Array, mask: Array | None = None,
    keep: Array | None = None, y: Array | None = None, /, causal: bool = False, scale: float = 1.0,
    dropout: float = 0.0,
) -> Any:  # fmt: skip
    rule = OPERATIONS["scaled_dot_product_attention_backward"].shape
    assert rule is not None
    rule(*(None if t is None else t.shape for t in (grad, query, key, value, mask, keep, y)))
    if mask is None and keep is None and _is_for_cudnn(query, key, value):
        gradients = _Call(k, query, key, value, causal, scale).backward(grad, _made_with(y))
        if gradients is not None:
            return tuple(g.reshape(t.shape) for g, t in zip(gradients, (query, key, value), strict=True))
    weights, wide, dtype = _weights(k, query, key, mask, causal, scale), widened_dtype(query), query.dtype
    of_value = product(k, transposed(k, converted(dropped(k, weights, keep, dropout), dtype)), grad)
    of_weights = dropped(k, product(k, grad, transposed(k, value), dtype=wide), keep, dropout)
    of_scores = converted(k.mul(k.softmax_backward(of_weights, weights, weights.ndim - 1), scale), dtype)
    return product(k, of_scores, key), product(k, transposed(k, of_scores), query), of_value


# ---- by products ----


def _weights(k: Any, query: Array, key: Array, mask: Array | None, causal: bool, scale: float) -> Array:
    """The weights of attention, of at least 32 bits; where every query may attend to something, by one softmax."""
    products = product(k, query, transposed(k, key), dtype=widened_dtype(query))
    scores = masked_scores(k, products, mask, causal, scale)
    return weights_of(k, scores) if mask is not None or 0 in scores.shape else k.softmax(scores, scores.ndim - 1)


def widened_dtype(x: Array) -> Any:
    """The dtype of sums of 16-bit floats, float32, or that of others."""
    return np.dtype(np.float32) if is_narrow(x) else x.dtype


# ---- by cuDNN ----


class Made(NamedTuple):
    """What the forward pass has computed, with four axes: the result, and the logarithms of the weights' sums."""

    out: Array
    statistics: Array


#: By the identity of each result that is alive: the contract's gradient is given the result alone, and has to make the
#: sums of the weights anew without this.
_MADE: dict[int, tuple[ref[Any], Made]] = {}


def _forgotten(name: int) -> Callable[[Any], None]:
    """What is called when a result dies."""
    return lambda _: _MADE.pop(name, None) and None


def _made_with(y: Array | None) -> Made | None:
    """What was made with the result ``y``; None where that is unknown."""
    alive, made = _MADE.get(id(y), (None, None))
    return made if y is not None and alive is not None and alive() is y else None


def _is_for_cudnn(query: Array, key: Array, value: Array) -> bool:
    """Whether cuDNN may have a plan for attention over these."""
    sizes = (query.shape[-1], value.shape[-1])
    return (
        query.dtype.itemsize == 2
        and 0 not in (*query.shape, *key.shape, *value.shape)
        and all(n % HEAD == 0 and n <= LARGEST_HEAD for n in sizes)
        and cudnn.found().module is not None
    )


class Attention(NamedTuple):
    """What a plan is made for: see :class:`backburn_cupy.cudnn.Kind`.

    Shapes and strides (in elements) are by number; those of the results among them.
    """

    device: int
    dtype: str
    tf32: bool
    deterministic: bool
    tensors: tuple[tuple[int, Shape, Shape], ...]
    causal: bool
    scale: float
    is_backward: bool

    def describe(self, graph: Any) -> None:
        def operand(number: int) -> Any:
            return graph.tensor(dim=shapes[number], stride=strides[number], data_type=types[number], uid=number)

        shapes = {number: list(shape) for number, shape, _ in self.tensors}
        strides = {number: list(steps) for number, _, steps in self.tensors}
        types = {number: cudnn.type_of("float32" if number == STATISTICS else self.dtype) for number in shapes}
        given = dict(zip("qkv", map(operand, (QUERY, KEY, VALUE)), strict=True))
        options = {"attn_scale": self.scale, "use_causal_mask": self.causal}
        results: dict[int, Any]
        if self.is_backward:
            more = {"o": operand(OUT), "dO": operand(GRAD), "stats": operand(STATISTICS)}
            made = graph.sdpa_backward(
                **given, **more, **options, use_deterministic_algorithm=self.deterministic
            )  # fmt: skip
            results = dict(zip((OF_QUERY, OF_KEY, OF_VALUE), made, strict=True))
        else:
            results = dict(zip((OUT, STATISTICS), graph.sdpa(**given, **options, is_inference=False), strict=True))
        for number, result in results.items():
            result.set_output(True).set_data_type(types[number]).set_uid(number)
            result.set_dim(shapes[number]).set_stride(strides[number])


class _Call:
    """Attention over these operands: (examples, heads, places, size), and what they are by number."""

    def __init__(self, k: Any, query: Array, key: Array, value: Array, causal: bool, scale: float) -> None:
        self._k, self._causal, self._scale = k, causal, float(scale)
        self._is_sliced_by_head = _is_sliced_by_head(query)
        self._arrays = {QUERY: _four(query), KEY: _four(key), VALUE: _four(value)}

    def forward(self) -> Made | None:
        """The result; None without a plan."""
        self._add(OUT, (*self._arrays[QUERY].shape[:3], self._arrays[VALUE].shape[3]))
        made = Made(self._arrays[OUT], cupy.empty((*self._arrays[OUT].shape[:3], 1), np.float32))
        self._arrays[STATISTICS] = made.statistics
        plan, addresses = self._planned(False)
        return made if plan.run(addresses) else None

    def backward(self, grad: Array, made: Made | None) -> tuple[Array, ...] | None:
        """The gradients, None without a plan. The forward pass is done anew if what it made is unknown."""
        if made is None and (made := self.forward()) is None:
            return None
        self._arrays |= {OUT: made.out, STATISTICS: made.statistics, GRAD: _four(grad)}
        results = {OF_QUERY: QUERY, OF_KEY: KEY, OF_VALUE: VALUE}
        for number, like in results.items():
            self._add(number, self._arrays[like].shape)
        plan, addresses = self._planned(True)
        return tuple(self._arrays[n] for n in results) if plan.run(addresses) else None

    def _add(self, number: int, shape: Shape) -> None:
        """New memory for a result, which lies as the queries do."""
        dtype = self._arrays[QUERY].dtype
        if self._is_sliced_by_head:
            new = cupy.empty((shape[0], shape[2], shape[1], shape[3]), dtype)
            self._arrays[number] = cupy.moveaxis(new, 1, 2)
        else:
            self._arrays[number] = cupy.empty(shape, dtype)

    def _planned(self, is_backward: bool) -> tuple[Any, dict[int, int]]:
        """The plan for what has been added so far, and where that is."""
        k, query = self._k, self._arrays[QUERY]
        tensors = tuple((n, x.shape, _steps(x)) for n, x in sorted(self._arrays.items()))
        kind = Attention(
            k.number, query.dtype.name, k.allow_tf32, k.deterministic, tensors, self._causal, self._scale, is_backward
        )
        return cudnn.plan(kind), {n: x.data.ptr for n, x in self._arrays.items()}


def _is_sliced_by_head(x: Array) -> bool:
    """Whether the heads of a place lie side by side, as after a projection of all of them at once."""
    return bool(x.ndim >= 4 and x.shape[-3] > 1 and x.shape[-2] > 1 and x.strides[-3] < x.strides[-2])


def _four(x: Array) -> Array:
    """``x`` with four axes, as it lies if cuDNN can read it so, else a copy."""
    four = x.reshape(math.prod(x.shape[:-3]), *(1,) * (3 - x.ndim), *x.shape[-3:])
    # The stride of an axis of one element says nothing.
    steps = [s for n, s in zip(four.shape[:3], four.strides[:3], strict=True) if n > 1]
    evenly = all(s > 0 and s % cudnn.ALIGNMENT == 0 for s in steps) and four.data.ptr % cudnn.ALIGNMENT == 0
    rows_whole = four.shape[3] == 1 or four.strides[3] == four.itemsize
    return four if evenly and rows_whole else four.copy(order="C")


def _steps(x: Array) -> Shape:
    """Strides in elements; those of axes of one element as if the array had no gaps."""
    plain = packed(x.shape, False)
    return tuple(s // x.itemsize if n > 1 else p for n, s, p in zip(x.shape, x.strides, plain, strict=True))
