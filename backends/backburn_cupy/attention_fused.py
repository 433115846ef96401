"""CuPy: attention of 16-bit floats without scores in memory, by cuDNN if installed, else by a kernel of ours.

Both keep the log-sum-exp of the scores for the gradient. cuDNN is not given masks: a mask may leave a query nothing to
attend to, where the contract requires 0 and cuDNN's result is undefined.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import ref

import cupy
import numpy as np

from backburn_cupy import cudnn
from backburn_cupy.conv import packed_strides
from backburn_cupy.kernels import attention as kernel
from backburn_cupy.kernels.attention import Options

Array = Any
Shape = tuple[int, ...]

#: The ids of operands and results in a graph.
QUERY, KEY, VALUE, OUT, STATISTICS, GRAD, GRAD_QUERY, GRAD_KEY, GRAD_VALUE = range(1, 10)

#: cuDNN takes head sizes that are multiples of this, and at most that.
HEAD, LARGEST_HEAD = 8, 256


class ForwardResults(NamedTuple):
    """The results of the forward pass, with four axes: the output, and the log-sum-exp of the scores.

    The logarithms are natural if computed by cuDNN, else to base 2.
    """

    out: Array
    statistics: Array
    by_cudnn: bool


#: The forward results by the id of each live output: the contract's gradient is given only the output, and would
#: otherwise recompute the log-sum-exp.
_SAVED: dict[int, tuple[ref[Any], ForwardResults]] = {}


def _forget(name: int) -> Callable[[Any], None]:
    """The callback for when an output is freed."""
    return lambda _: _SAVED.pop(name, None) and None


def _saved(y: Array | None) -> ForwardResults | None:
    """The results of the forward pass that computed ``y``; None if unknown."""
    alive, saved = _SAVED.get(id(y), (None, None))
    return saved if y is not None and alive is not None and alive() is y else None


def forward(k: Any, query: Array, key: Array, value: Array, options: Options) -> Array | None:
    """The result of attention; None for operands that neither cuDNN nor the kernel takes."""
    call = _supported_call(k, query, key, value, options)
    saved = None if call is None else call.forward()
    if saved is None:
        return None
    y = saved.out.reshape(*query.shape[:-1], value.shape[-1])
    _SAVED[id(y)] = ref(y, _forget(id(y))), saved
    return y


def backward(
    k: Any, grad: Array, query: Array, key: Array, value: Array, y: Array | None, options: Options
) -> tuple[Array, ...] | None:
    """The gradients for queries, keys and values; None for operands that neither cuDNN nor the kernel takes."""
    call = _supported_call(k, query, key, value, options)
    gradients = None if call is None else call.backward(grad, _saved(y))
    if gradients is None:
        return None
    return tuple(g.reshape(t.shape) for g, t in zip(gradients, (query, key, value), strict=True))


# ---- dispatch ----


def _supported_call(k: Any, query: Array, key: Array, value: Array, options: Options) -> _Call | None:
    if query.dtype.itemsize != 2 or 0 in (*query.shape, *key.shape, *value.shape):
        return None
    mask, keep, *_ = options
    by_cudnn = mask is None and keep is None and _is_for_cudnn(query, value)
    by_kernel = k.runner is not None and kernel.supports(k.runner, query, value)
    if not by_cudnn and not by_kernel:
        return None
    mask, keep = (None if m is None else _broadcast_mask(m, query, key) for m in (mask, keep))
    return _Call(k, (query, key, value), options._replace(mask=mask, keep=keep), by_cudnn, by_kernel)


def _is_for_cudnn(query: Array, value: Array) -> bool:
    """Whether cuDNN may have a plan for heads of these sizes."""
    sizes = (query.shape[-1], value.shape[-1])
    return all(n % HEAD == 0 and n <= LARGEST_HEAD for n in sizes) and cudnn.found().module is not None


class _Call:
    """Attention over operands (examples, heads, positions, size), which also have ids."""

    def __init__(
        self, k: Any, operands: tuple[Array, ...], options: Options, by_cudnn: bool, by_kernel: bool
    ) -> None:  # fmt: skip
        self._k, self._options, self._by_cudnn, self._by_kernel = k, options, by_cudnn, by_kernel
        self._is_sliced_by_head = _is_sliced_by_head(operands[0])
        self._arrays = dict(zip((QUERY, KEY, VALUE), map(_with_four_axes, operands), strict=True))

    def forward(self) -> ForwardResults | None:
        """The result; None if cuDNN has no plan and no kernel takes the operands."""
        query, key, value = (self._arrays[n] for n in (QUERY, KEY, VALUE))
        out = self._add(OUT, (*query.shape[:3], value.shape[3]))
        statistics = self._arrays[STATISTICS] = cupy.ndarray((*query.shape[:3], 1), np.float32)
        by_cudnn = self._by_cudnn and self._run_plan(False)
        if not by_cudnn:
            if not self._by_kernel:
                return None
            kernel.attend(self._k.runner, query, key, value, out, statistics, self._options)
        return ForwardResults(out, statistics, by_cudnn)

    def backward(self, grad: Array, saved: ForwardResults | None) -> tuple[Array, ...] | None:
        """The gradients; None if there is no result. The forward pass is recomputed if its results are unknown."""
        saved = saved or self.forward()
        if saved is None:
            return None
        query, key, value = (self._arrays[n] for n in (QUERY, KEY, VALUE))
        grad = _with_four_axes(grad)
        self._arrays |= {OUT: saved.out, STATISTICS: saved.statistics, GRAD: grad}
        results = [
            self._add(n, x.shape) for n, x in zip((GRAD_QUERY, GRAD_KEY, GRAD_VALUE), (query, key, value), strict=True)
        ]
        if not saved.by_cudnn:
            kernel.attend_backward(
                self._k.runner, grad, query, key, value, saved.out, saved.statistics, results, self._options
            )
        elif not self._run_plan(True):
            # The log-sum-exp is cuDNN's: a kernel has to compute its own.
            self._by_cudnn = False
            return self.backward(grad, None)
        return tuple(results)

    def _add(self, number: int, shape: Shape) -> Array:
        """A new array for a result, with the queries' memory layout."""
        dtype = self._arrays[QUERY].dtype
        if self._is_sliced_by_head:
            new = cupy.moveaxis(cupy.ndarray((shape[0], shape[2], shape[1], shape[3]), dtype), 1, 2)
        else:
            new = cupy.ndarray(shape, dtype)
        self._arrays[number] = new
        return new

    def _run_plan(self, is_backward: bool) -> bool:
        """Run cuDNN's plan for what has been added so far; False if it has none."""
        k, query, options = self._k, self._arrays[QUERY], self._options
        tensors = tuple((n, x.shape, _strides(x)) for n, x in sorted(self._arrays.items()))
        kind = Attention(
            k.number, query.dtype.name, k.allow_tf32, k.deterministic, tensors, options.causal, options.scale,
            is_backward,
        )  # fmt: skip
        return bool(cudnn.plan(kind).run({n: x.data.ptr for n, x in self._arrays.items()}))


# ---- cuDNN's graph ----


class Attention(NamedTuple):
    """The key of a plan: see :class:`backburn_cupy.cudnn.Kind`.

    Shapes and strides (in elements) are by id, including those of the results.
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
            saved = graph.sdpa_backward(
                **given, **more, **options, use_deterministic_algorithm=self.deterministic
            )  # fmt: skip
            results = dict(zip((GRAD_QUERY, GRAD_KEY, GRAD_VALUE), saved, strict=True))
        else:
            results = dict(zip((OUT, STATISTICS), graph.sdpa(**given, **options, is_inference=False), strict=True))
        for number, result in results.items():
            result.set_output(True).set_data_type(types[number]).set_uid(number)
            result.set_dim(shapes[number]).set_stride(strides[number])


# ---- memory layout ----


def _is_sliced_by_head(x: Array) -> bool:
    """Whether the heads of a position are adjacent in memory, as after projecting all of them at once."""
    return bool(x.ndim >= 4 and x.shape[-3] > 1 and x.shape[-2] > 1 and x.strides[-3] < x.strides[-2])


def _with_four_axes(x: Array) -> Array:
    """``x`` with four axes, as a view if its layout is supported, else a copy."""
    four = x.reshape(math.prod(x.shape[:-3]), *(1,) * (3 - x.ndim), *x.shape[-3:])
    # The stride of an axis of length 1 is meaningless.
    steps = [s for n, s in zip(four.shape[:3], four.strides[:3], strict=True) if n > 1]
    evenly = all(s > 0 and s % cudnn.ALIGNMENT == 0 for s in steps) and four.data.ptr % cudnn.ALIGNMENT == 0
    rows_whole = four.shape[3] == 1 or four.strides[3] == four.itemsize
    return four if evenly and rows_whole else four.copy(order="C")


def _broadcast_mask(mask: Array, query: Array, key: Array) -> Array:
    """A mask broadcast to the scores' shape, with four axes, without copying it along broadcast axes."""
    scores = (*query.shape[:-1], key.shape[-2])
    shape = (*(1,) * (len(scores) - mask.ndim), *mask.shape)
    outer, inner = shape[:-3], (*(1,) * (3 - len(shape)), *shape[-3:])
    if math.prod(outer) != 1 and outer != scores[:-3]:
        mask, outer = cupy.broadcast_to(mask, (*scores[:-3], *inner)), scores[:-3]
    whole = (math.prod(scores[:-3]), *(1,) * (3 - len(scores)), *scores[-3:])
    return cupy.broadcast_to(mask.reshape(math.prod(outer), *inner), whole)


def _strides(x: Array) -> Shape:
    """Strides in elements; for axes of length 1, those of a contiguous array."""
    plain = packed_strides(x.shape, False)
    return tuple(s // x.itemsize if n > 1 else p for n, s, p in zip(x.shape, x.strides, plain, strict=True))
