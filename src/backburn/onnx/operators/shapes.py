"""Operators that move elements: shapes, parts, indices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from backburn.base.errors import ShapeError
from backburn.onnx.dtypes import held
from backburn.onnx.host import axes_of, range_length, shape_for, slices
from backburn.onnx.registry import Host, operator
from backburn.tensor import arithmetic, creation, index, logic, rearrange, selection, sets
from backburn.tensor import shape as shapes
from backburn.tensor.classes import Tensor
from backburn.tensor.core.host import to_host


@operator("Shape")
def shape(x: Tensor, /, *, start: int = 0, end: int | None = None) -> Any:
    """The shape, on the host."""
    return np.asarray(x.shape[start:end], np.int64)


@operator("Size")
def size(x: Tensor, /) -> Any:
    """The number of elements, on the host."""
    return np.asarray(math.prod(x.shape), np.int64)


@operator("Reshape")
def reshape(x: Tensor, wanted: Host, /, *, allowzero: int = 0) -> Any:
    """In another shape."""
    return shapes.reshape(x, shape_for(x.shape, wanted, allowzero))


@operator("Flatten")
def flatten(x: Tensor, /, *, axis: int = 1) -> Any:
    """As a matrix."""
    axis = axis + x.ndim if axis < 0 else axis
    return shapes.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@operator("Transpose")
def transpose(x: Tensor, /, *, perm: Any = None) -> Any:
    """With axes in another order."""
    return shapes.permute_dims(x, tuple(reversed(range(x.ndim))) if perm is None else perm)


@operator("Squeeze")
def squeeze(x: Tensor, given: Host | None = None, /, *, axes: Any = None) -> Any:
    """Without axes of length 1."""
    return shapes.squeeze(x, axes_of(axes, given, x.ndim))


@operator("Unsqueeze")
def unsqueeze(x: Tensor, given: Host | None = None, /, *, axes: Any = None) -> Any:
    """With more axes of length 1."""
    found = axes if given is None else [int(n) for n in np.ravel(given)]
    return shapes.expand_dims(x, tuple(found))


@operator("Expand")
def expand(x: Tensor, wanted: Host, /, *, run: Any) -> Any:
    """Repeated along axes."""
    run.check_elements([max(int(n), 1) for n in wanted])
    target = np.broadcast_shapes(x.shape, tuple(map(int, wanted)))
    run.check_elements(target)
    return shapes.broadcast_to(x, target)


@operator("Tile")
def tile(x: Tensor, repeats: Host, /, *, run: Any) -> Any:
    """Repeated along axes."""
    run.check_elements([n * int(r) for n, r in zip(x.shape, repeats, strict=True)])
    return rearrange.tile(x, tuple(map(int, repeats)))


@operator("Concat")
def concat(*xs: Tensor, axis: int, run: Any) -> Any:
    """Concatenated along an axis."""
    run.check_elements((sum(math.prod(x.shape) for x in xs),))
    return shapes.concat(xs, axis=axis)


@operator("Split")
def split(
    x: Tensor, given: Host | None = None, /, *, axis: int = 0, split: Any = None, num_outputs: int | None = None,
    call: Any,
) -> Any:  # fmt: skip
    """Parts along an axis, of given lengths or of equal ones."""
    lengths = split if given is None else tuple(map(int, given))
    if lengths is None:
        count = num_outputs or call.outputs
        n = x.shape[axis]
        if not 1 <= count <= max(n, call.outputs):
            raise ShapeError(f"an axis of length {n} does not split into {count} parts")
        each = -(-n // count)
        lengths = tuple(min(each, max(n - i * each, 0)) for i in range(count))
    return shapes.split(x, lengths, axis=axis)


@operator("Slice", since=10)
def slice_(x: Tensor, starts: Host, ends: Host, axes: Host | None = None, steps: Host | None = None, /) -> Any:
    """Part of a tensor."""
    return x[slices(x.shape, starts, ends, axes, steps)]


@operator("Slice")
def _older_slice(x: Tensor, /, *, starts: Any, ends: Any, axes: Any = None) -> Any:
    return x[slices(x.shape, starts, ends, axes)]


_PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "edge", "wrap": "wrap"}


@operator("Pad", since=11)
def pad(
    x: Tensor, pads: Host, value: Host | None = None, axes: Host | None = None, /, *, mode: str = "constant", run: Any
) -> Any:
    """Longer, or shorter, at the ends of axes."""
    chosen = axes_of(None, axes, x.ndim) if axes is not None else tuple(range(x.ndim))
    assert chosen is not None
    filled = 0 if value is None or value.size == 0 else value.reshape(()).item()
    return padded(x, [int(n) for n in pads], chosen, mode, filled, run)


@operator("Pad", since=2)
def _older_pad(x: Tensor, /, *, pads: Any, mode: str = "constant", value: float = 0.0, run: Any) -> Any:
    return padded(x, pads, tuple(range(x.ndim)), mode, value, run)


def padded(x: Any, pads: Any, axes: tuple[int, ...], mode: str, value: Any, run: Any) -> Any:
    """A tensor with more elements before and after along axes."""
    if len(pads) != 2 * len(axes):
        raise ShapeError(f"{len(pads)} widths for both ends of {len(axes)} axes")
    widths = [(0, 0)] * x.ndim
    for i, axis in enumerate(axes):
        widths[axis] = (pads[i], pads[i + len(axes)])
    run.check_elements([max(n + before + after, 0) for n, (before, after) in zip(x.shape, widths, strict=True)])
    return rearrange.pad(x, widths, mode=_PAD_MODES[mode], value=value)


@operator("Gather")
def gather(x: Tensor, indices: Tensor, /, *, axis: int = 0, run: Any) -> Any:
    """Elements along an axis."""
    run.check_elements((math.prod(indices.shape), math.prod(x.shape) // max(x.shape[axis], 1)))
    return index.take(x, indices, axis=axis)


@operator("GatherElements")
def gather_elements(x: Tensor, indices: Tensor, /, *, axis: int = 0) -> Any:
    """One element along an axis for each index."""
    axis = axis + x.ndim if axis < 0 else axis
    return index.take_along_axis(_cut(x, indices, axis), indices, axis=axis)


def _cut(x: Any, indices: Any, axis: int) -> Any:
    """A tensor without the elements that indices do not reach along the other axes."""
    return x[tuple(slice(None) if i == axis else slice(n) for i, n in enumerate(indices.shape))]


@operator("GatherND")
def gather_nd(x: Tensor, indices: Tensor, /, *, batch_dims: int = 0) -> Any:
    """Parts at indices."""
    return index.gather_nd(x, _with_batches(indices, batch_dims))


def _with_batches(indices: Any, count: int) -> Any:
    """Indices preceded by those of the batch axes."""
    if count == 0:
        return indices
    before = []
    for axis in range(count):
        places = creation.arange(indices.shape[axis], dtype=indices.dtype, backend=indices.backend)
        places = shapes.reshape(places, [-1 if i == axis else 1 for i in range(indices.ndim)])
        before.append(shapes.broadcast_to(places, (*indices.shape[:-1], 1)))
    return shapes.concat([*before, indices], axis=-1)


_REDUCTIONS = {"none": "assign", "add": "add", "mul": "mul", "min": "min", "max": "max"}


@operator("ScatterElements", "Scatter")
def scatter_elements(x: Tensor, indices: Tensor, updates: Tensor, /, *, axis: int = 0, reduction: str = "none") -> Any:
    """With elements at indices replaced or combined."""
    axis = axis + x.ndim if axis < 0 else axis
    n = x.shape[axis]
    indices = selection.where(logic.less(indices, 0), arithmetic.add(indices, n), indices)
    mode = _REDUCTIONS[reduction]
    around = [size for i, size in enumerate(x.shape) if i != axis]
    if around == [size for i, size in enumerate(indices.shape) if i != axis]:
        return index.scatter(x, indices, updates, axis, mode=mode)
    places = []
    for i, size in enumerate(indices.shape):
        own = creation.arange(size, dtype=indices.dtype, backend=indices.backend)
        own = shapes.reshape(own, [-1 if j == i else 1 for j in range(x.ndim)])
        places.append(indices if i == axis else shapes.broadcast_to(own, indices.shape))
    return index.scatter_nd(x, shapes.stack(places, axis=-1), updates, mode=mode)


@operator("ScatterND")
def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, /, *, reduction: str = "none") -> Any:
    """With parts at indices replaced or combined."""
    return index.scatter_nd(x, indices, updates, mode=_REDUCTIONS[reduction])


@operator("TensorScatter")
def tensor_scatter(
    cache: Tensor, update: Tensor, write_indices: Tensor | None = None, /, *, axis: int = -2, mode: str = "linear"
) -> Any:
    """A cache with an update written at indices along an axis, for each example."""
    axis = axis + cache.ndim if axis < 0 else axis
    count = update.shape[axis]
    steps: Any = creation.arange(count, dtype="int64", backend=update.backend)
    steps = shapes.reshape(steps, [-1 if i == axis else 1 for i in range(cache.ndim)])
    if write_indices is not None:
        first = shapes.reshape(write_indices, [-1 if i == 0 else 1 for i in range(cache.ndim)])
        steps = arithmetic.add(steps, first)
    if mode == "circular":
        steps = arithmetic.remainder(steps, cache.shape[axis])
    return index.scatter(cache, shapes.broadcast_to(steps, update.shape), update, axis)


@operator("DepthToSpace")
def depth_to_space(x: Tensor, /, *, blocksize: int, mode: str = "DCR") -> Any:
    """Channels as blocks of pixels."""
    n, c, h, w = x.shape
    b = blocksize
    if mode == "DCR":
        parts = shapes.permute_dims(shapes.reshape(x, (n, b, b, c // b**2, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        parts = shapes.permute_dims(shapes.reshape(x, (n, c // b**2, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return shapes.reshape(parts, (n, c // b**2, h * b, w * b))


@operator("SpaceToDepth")
def space_to_depth(x: Tensor, /, *, blocksize: int) -> Any:
    """Blocks of pixels as channels."""
    n, c, h, w = x.shape
    b = blocksize
    parts = shapes.permute_dims(shapes.reshape(x, (n, c, h // b, b, w // b, b)), (0, 3, 5, 1, 2, 4))
    return shapes.reshape(parts, (n, c * b * b, h // b, w // b))


@operator("ReverseSequence")
def reverse_sequence(x: Tensor, lengths: Tensor, /, *, batch_axis: int = 1, time_axis: int = 0) -> Any:
    """The first elements along an axis in reverse, as many as ``lengths`` has for each example."""
    count = x.shape[time_axis]
    steps = creation.arange(count, dtype="int64", backend=x.backend)
    steps = shapes.reshape(steps, [-1 if i == time_axis else 1 for i in range(x.ndim)])
    ends: Any = creation.astype(lengths, "int64")
    ends = shapes.reshape(ends, [-1 if i == batch_axis else 1 for i in range(x.ndim)])
    places = selection.where(logic.less(steps, ends), arithmetic.subtract(ends - 1, steps), steps)
    return index.take_along_axis(x, shapes.broadcast_to(places, x.shape), axis=time_axis)


@operator("Compress")
def compress(x: Tensor, condition: Host, /, *, axis: int | None = None, run: Any) -> Any:
    """The elements along an axis for which a condition holds."""
    flat = shapes.reshape(x, (-1,)) if axis is None else x
    places = np.flatnonzero(condition)
    return index.take(flat, run.tensor(places.astype(np.int64)), axis=axis or 0)


@operator("Trilu")
def trilu(x: Tensor, k: Host | None = None, /, *, upper: int = 1) -> Any:
    """One triangle of matrices, and zeros."""
    number = 0 if k is None else int(k.reshape(()))
    return selection.triu(x, number) if upper else selection.tril(x, number)


@operator("OneHot")
def one_hot(indices: Tensor, depth: Host, values: Tensor, /, *, axis: int = -1, run: Any) -> Any:
    """One of two values, the second where the index along a new axis equals that in ``indices``."""
    count = int(depth.reshape(()).item())
    run.check_elements((*indices.shape, count))
    axis = axis + indices.ndim + 1 if axis < 0 else axis
    places: Any = creation.arange(count, dtype="int64", backend=indices.backend)
    places = shapes.reshape(places, [-1 if i == axis else 1 for i in range(indices.ndim + 1)])
    wanted: Any = creation.astype(shapes.expand_dims(indices, axis), "int64")
    wanted = selection.where(logic.less(wanted, 0), wanted + count, wanted)
    return selection.where(logic.equal(places, wanted), values[1], values[0])


@operator("EyeLike")
def eye_like(x: Tensor, /, *, dtype: int | None = None, k: int = 0) -> Any:
    """Ones on a diagonal."""
    rows, columns = x.shape
    return creation.eye(rows, columns, k=k, dtype=x.dtype if dtype is None else held(dtype), backend=x.backend)


@operator("Range")
def range_(start: Host, limit: Host, delta: Host, /, *, run: Any) -> Any:
    """Numbers in steps."""
    count = range_length(start, limit, delta)
    run.check_elements((count,))
    return run.tensor((start + np.arange(count) * delta).astype(start.dtype))


@operator("ConstantOfShape")
def constant_of_shape(lengths: Host, /, *, value: Any = None, run: Any) -> Any:
    """One value throughout."""
    sizes = tuple(map(int, lengths))
    run.check_elements(sizes)
    filled = np.zeros(1, np.float32) if value is None else value[0].reshape(-1)
    return shapes.broadcast_to(run.tensor(filled[:1]), sizes) if sizes else run.tensor(filled[0])


@operator("NonZero")
def nonzero(x: Tensor, /) -> Any:
    """The indices of elements that are not zero, as the columns of a matrix."""
    if x.ndim == 0:
        x = shapes.reshape(x, (1,))
    return shapes.stack(index.nonzero(x), axis=0)


@operator("Unique")
def unique(x: Tensor, /, *, axis: int | None = None, sorted: int = 1, run: Any, call: Any) -> Any:
    """The distinct elements, or parts along an axis; on the host, except for sorted elements without indices."""
    if axis is None and sorted and call.outputs == 1:
        return sets.unique_values(x)
    array = to_host(x)
    values, first, inverse, counts = np.unique(
        array, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    if not sorted:
        order = np.argsort(first, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        values = np.take(values, order, axis or 0)
        first, counts, inverse = first[order], counts[order], rank[inverse.reshape(-1)]
    return (
        run.tensor(values),
        *(run.tensor(np.asarray(part, np.int64).reshape(-1)) for part in (first, inverse, counts)),
    )


@operator("CenterCropPad")
def center_crop_pad(x: Tensor, wanted: Host, /, *, axes: Any = None, run: Any) -> Any:
    """Cropped or padded with zeros on both sides of axes to given lengths."""
    chosen = tuple(range(x.ndim)) if axes is None else axes_of(axes, None, x.ndim)
    assert chosen is not None
    for axis, length in zip(chosen, map(int, wanted), strict=True):
        n = x.shape[axis]
        if length < n:
            start = (n - length) // 2
            x = x[tuple(slice(start, start + length) if i == axis else slice(None) for i in range(x.ndim))]
        elif length > n:
            before = (length - n) // 2
            x = padded(x, [before, length - n - before], (axis,), "constant", 0, run)
    return x


@operator("Col2Im")
def col2im(
    x: Tensor, image: Host, block: Host, /, *, dilations: Any = None, pads: Any = None, strides: Any = None, run: Any
) -> Any:
    """The sum of overlapping blocks at their positions."""
    rank = len(block)
    sizes, window = [int(n) for n in image], [int(n) for n in block]
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    pads = pads or (0,) * (2 * rank)
    padded_sizes = [n + pads[i] + pads[i + rank] for i, n in enumerate(sizes)]
    run.check_elements((x.shape[0], x.shape[1] // math.prod(window), *padded_sizes))
    counts = [
        (n - d * (w - 1) - 1) // s + 1 for n, w, d, s in zip(padded_sizes, window, dilations, strides, strict=True)
    ]
    channels = x.shape[1] // math.prod(window)
    windows = shapes.reshape(x, (x.shape[0], channels, *window, *counts))
    order = (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
    axes = tuple(range(2, 2 + rank))
    result = rearrange.overlap_add(
        shapes.permute_dims(windows, order), padded_sizes, axis=axes, stride=strides, dilation=dilations
    )
    return result[(..., *(slice(pads[i], pads[i] + n) for i, n in enumerate(sizes)))]


@operator("CumSum")
def cumsum(x: Tensor, axis: Host, /, *, exclusive: int = 0, reverse: int = 0) -> Any:
    """Running sums."""
    from backburn.tensor.scan import cumulative_sum

    return _running(cumulative_sum, x, axis, exclusive, reverse)


@operator("CumProd")
def cumprod(x: Tensor, axis: Host, /, *, exclusive: int = 0, reverse: int = 0) -> Any:
    """Running products."""
    from backburn.tensor.scan import cumulative_prod

    return _running(cumulative_prod, x, axis, exclusive, reverse)


def _running(function: Any, x: Any, axis: Any, exclusive: int, reverse: int) -> Any:
    along = int(axis.reshape(()))
    along = along + x.ndim if along < 0 else along
    turned = rearrange.flip(x, along) if reverse else x
    result = function(turned, axis=along, dtype=x.dtype, include_initial=bool(exclusive))
    if exclusive:
        result = result[tuple(slice(x.shape[i]) for i in range(x.ndim))]
    return rearrange.flip(result, along) if reverse else result
