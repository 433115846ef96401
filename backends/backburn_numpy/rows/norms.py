"""NumPy: norms by compiled kernels: of rows, of contiguous planes (batch and group norm), and of a matrix's columns."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from backburn_numpy import compiled, tuning
from backburn_numpy.compiled import FLOAT32
from backburn_numpy.runtime.memory import contiguous, empty
from backburn_numpy.runtime.threads import parallel_for

Array = Any
Axes = tuple[int, ...]
Shape = tuple[int, ...]


def standardize_backward(out: Array, grad: Array, x: Array, scale: Array, eps: float, centred: bool) -> Array:
    """Fill ``out`` with the gradient for the rows ``x``; return that for ``scale``."""
    fast: Any = compiled.serving("standardize_backward", x)
    count, length = x.shape
    block = min(
        tuning.MAX_ROWS_OF_PARTIAL_SUM,
        max(-(-count // tuning.MIN_PARTIAL_SUMS), tuning.MIN_ELEMENTS_OF_PARTIAL_SUM // length),
    )
    sums = empty((-(-count // block), length), x.dtype)
    arrays = [contiguous(a) for a in (grad, x, scale)]
    at = compiled.addresses(out, sums, *arrays)
    sizes = eps, centred, block, count, length
    parallel_for(lambda first, last: fast(*at, *sizes, first, last), len(sums), each=block * length)
    return sums[0] if len(sums) == 1 else np.add.reduce(sums, axis=0, dtype=np.float64)


class Planes:
    """The layout of the elements that share statistics, and of those that share a scale.

    Each of the ``statistics`` sets has ``planes`` planes of ``length`` elements.
    """

    def __init__(self, statistics: int, numbers: tuple[int, ...]) -> None:
        self.statistics, self.planes, self.length = statistics, numbers[1], numbers[3]
        self.numbers = np.array(numbers, np.int64)

    def over(self, work: Callable[[int, int], None]) -> None:
        """Call ``work`` for all sets, in several threads if it pays."""
        parallel_for(work, self.statistics, each=self.planes * self.length)


def plane_layout(x: Array, axis: Axes, scale: Shape | None) -> Planes | None:
    """The planes of ``x``, standardized over ``axis``, with a scale of that shape; None if no kernel applies."""
    if x.ndim < 3 or compiled.serving("normalize_planes", x) is None:
        return None
    shape, rank = x.shape, x.ndim
    lengths = (1,) * (rank - len(scale or ())) + (scale or ())
    varies = [i for i, n in enumerate(lengths) if n != 1]
    if any(lengths[i] != shape[i] for i in varies):
        return None
    if axis == (0, *range(2, rank)) and varies in ([], [1]):  # over a batch, for each channel
        examples, channels, length = shape[0], shape[1], math.prod(shape[2:])
        numbers = (length, examples, channels * length, length, channels, 1 if varies else 0, 0)
        return Planes(channels, numbers) if length >= tuning.MIN_PLANE_ELEMENTS else None
    first = rank - len(axis)
    if axis != tuple(range(first, rank)) or varies != list(range(varies[0], varies[-1] + 1) if varies else ()):
        return None
    end = max(first, varies[-1] + 1 if varies else 0)  # over groups of channels, for each example
    planes, length = math.prod(shape[first:end]), math.prod(shape[end:])
    scaled_planes = planes if varies and varies[-1] >= first else 1
    if length < tuning.MIN_PLANE_ELEMENTS or (varies and not varies[0] <= first <= varies[-1] + 1):
        return None
    scales = math.prod(shape[varies[0] : first]) if varies else 1
    is_scaled = int(bool(varies))
    numbers = (planes * length, planes, length, length, scales, is_scaled * scaled_planes, int(scaled_planes > 1))
    return Planes(math.prod(shape[:first]), numbers)


def batch_norm_train(
    x: Array, scale: Array | None, bias: Array | None, eps: float, centred: bool, planes: Planes | None,
    keep: bool = False,
) -> tuple[Array, Array | None, Array | None]:  # fmt: skip
    """The standardized planes, times ``scale``, plus ``bias``; with ``keep`` also the means and variances.

    Without planes, the columns of a matrix, as in :func:`batch_norm_train_backward`.
    """
    out, count = empty(x.shape, x.dtype), x.shape[1] if planes is None else planes.statistics
    mean, variance = (np.empty(count, x.dtype) if keep else None for _ in range(2))
    arrays = out, mean, variance, *(contiguous(a) for a in (x, scale, bias))
    _run("normalize_columns" if planes is None else "normalize_planes", x, arrays, eps, centred, planes)
    return out, mean, variance


def batch_norm_train_backward(
    grad: Array, x: Array, scale: Array, eps: float, centred: bool, planes: Planes | None
) -> tuple[Array, Array]:
    """The gradient for ``x``, and that for ``scale``; for planes, its sums over each, (statistics, planes)."""
    shape = scale.shape if planes is None else (planes.statistics, planes.planes)
    out, sums = empty(x.shape, x.dtype), np.empty(shape, x.dtype)
    arrays = out, sums, *(contiguous(a) for a in (grad, x, scale))
    name = "normalize_columns_backward" if planes is None else "normalize_planes_backward"
    _run(name, x, arrays, eps, centred, planes)
    return out, sums


def _run(
    name: str, x: Array, arrays: tuple[Array | None, ...], eps: float, centred: bool, planes: Planes | None
) -> None:
    """Call a kernel for all planes, or all columns of ``x``, in several threads if it pays."""
    kernel: Any = compiled.kernel(name)
    if planes is None:
        at, (rows, width) = compiled.addresses(*arrays), x.shape
        parallel_for(
            lambda *part: kernel(*at, eps, centred, rows, width, *part),
            width,
            max(tuning.MIN_PLANE_ELEMENTS, tuning.MIN_WORK_FOR_SECOND_THREAD // rows),
        )
    else:
        at = compiled.addresses(*arrays, planes.numbers)
        planes.over(lambda first, last: kernel(*at, eps, centred, first, last))


def columns_fit(x: Array, axis: Axes, *parameters: Array | None) -> bool:
    """Whether a kernel standardizes ``x``, a matrix, over its rows, with these scales and biases of its columns."""
    if x.ndim != 2 or axis != (0,) or compiled.serving("normalize_columns", x) is None:
        return False
    return all(p is None or (p.size == x.shape[1] == p.shape[-1] and p.ndim < 3) for p in parameters)


def batch_norm_apply(
    x: Array, mean: Array, variance: Array, scale: Array | None, bias: Array | None, axis: int, eps: float
) -> Array | None:
    """Batch norm by known statistics, each with one element for each channel along ``axis``; None without a kernel."""
    kernel = compiled.serving("normalize_by", x)
    if kernel is None:
        return None
    factor = np.reciprocal(np.sqrt(variance + eps), out=...)
    if scale is not None:
        factor *= scale
    out, channels, length = empty(x.shape, x.dtype), len(mean), math.prod(x.shape[axis + 1 :])
    bias = np.zeros_like(factor) if bias is None else bias
    arrays = [contiguous(a, FLOAT32) for a in (x, mean, factor, bias)]
    at = compiled.addresses(out, *arrays)
    examples, size = math.prod(x.shape[:axis]), channels * length
    count = examples if length == 1 else examples * channels
    parallel_for(
        lambda first, last: kernel(*at, channels, length, first, last),
        count,
        max(1, tuning.MIN_WORK_FOR_SECOND_THREAD * count // size),
    )
    return out
