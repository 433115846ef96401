"""Reading between elements and beyond them: windows as columns, resizing, sampling at arbitrary positions.

``x`` has the shape ``(examples, channels, *spatial)``. Operations without a gradient rule are differentiated
through their bodies. 16-bit floats are computed in float32.
"""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

from backburn.base.dtypes import int64
from backburn.base.errors import ArgumentError, ShapeError
from backburn.ops.bodies.half_precision import upcast_half
from backburn.ops.bodies.scalars import shape_or_none
from backburn.ops.bodies.slicing import index_axis
from backburn.ops.conv import Pairs, check_bias, check_window, unpadded, window_counts, with_bias, zero_padded
from backburn.ops.primitives import Primitives
from backburn.ops.rules.gradients import gradient_rule
from backburn.ops.rules.tangents import decompose, linear_in
from backburn.ops.table import operation
from backburn.ops.types import B, F, I, Q

Shape = tuple[int, ...]

INTERPOLATIONS = ("nearest", "nearest-exact", "linear", "cubic", "lanczos3")
SAMPLINGS = ("linear", "nearest", "cubic")
OUTSIDE = ("zeros", "border", "reflection")


def _check_mode(mode: Any, known: tuple[str, ...]) -> None:
    if mode not in known:
        plain = str(mode).removeprefix("bi").removeprefix("tri")
        hint = f"; along two or more axes, use {plain!r}" if plain in known else ""
        raise ArgumentError(f"the mode is one of {', '.join(known)}, not {mode!r}{hint}")


def _interpolate_shape(x: Shape, *, size: Shape, mode: str = "nearest", align_corners: bool = False) -> Shape:
    if len(x) < 3 or len(size) != len(x) - 2 or any(m < 1 for m in size):
        raise ArgumentError(f"one size, 1 or more, for each spatial axis in {list(x)}, not {list(size)}")
    _check_mode(mode, INTERPOLATIONS)
    if align_corners and mode.startswith("nearest"):
        raise ArgumentError(f"align_corners has no meaning in mode {mode!r}")
    if 0 in x[2:]:
        raise ShapeError(f"there is nothing to interpolate in {list(x)}")
    return (*x[:2], *size)


def _interpolate_backward_shape(
    grad: Shape, *, places: Shape, mode: str = "nearest", align_corners: bool = False
) -> Shape:
    x = (*grad[:2], *places)
    _interpolate_shape(x, size=grad[2:], mode=mode, align_corners=align_corners)
    return x


def _unfold_shape(x: Shape, *, size: Shape, stride: Shape, padding: Pairs, dilation: Shape) -> Shape:
    if len(x) < 3 or len(size) != len(x) - 2:
        raise ArgumentError(f"the size {list(size)} needs one entry for each spatial axis in {list(x)}")
    counts = window_counts(x[2:], size, stride, padding, dilation)
    return (x[0], x[1] * math.prod(size), math.prod(counts))


def _fold_shape(x: Shape, *, places: Shape, size: Shape, stride: Shape, padding: Pairs, dilation: Shape) -> Shape:
    check_window(len(places), stride, padding, dilation)
    if len(size) != len(places):
        raise ArgumentError(f"the size {list(size)} needs one entry for each of the places {list(places)}")
    counts = window_counts(places, size, stride, padding, dilation)
    if len(x) != 3 or x[1] % math.prod(size) or x[2] != math.prod(counts):
        raise ShapeError(
            f"{list(x)} is not (examples, channels * {math.prod(size)}, windows), with {list(counts)} windows"
        )
    return (x[0], x[1] // math.prod(size), *places)


def _grid_sample_shape(x: Shape, grid: Shape, *, mode: str = "linear", padding: str = "zeros", **_: Any) -> Shape:
    rank = len(x) - 2
    if rank < 1 or len(grid) != len(x) or grid[-1] != rank or grid[0] != x[0]:
        raise ShapeError(
            f"the grid (examples, *spatial, {rank}) has {len(x)} axes and a position for each of its places; "
            f"these are {list(grid)}, for {list(x)}"
        )
    _check_mode(mode, SAMPLINGS)
    if padding not in OUTSIDE:
        raise ArgumentError(f"the padding is one of {', '.join(OUTSIDE)}, not {padding!r}")
    if 0 in x[2:]:
        raise ShapeError(f"there is nothing to sample in {list(x)}")
    return (*x[:2], *grid[1:-1])


def _deform_conv_shape(
    x: Shape,
    offset: Shape,
    weight: Shape,
    mask: Shape | None = None,
    bias: Shape | None = None,
    *,
    stride: Shape,
    padding: Pairs,
    dilation: Shape,
    groups: int,
) -> Shape:
    if not len(x) == len(offset) == len(weight) == 4:
        raise ShapeError(f"input, offset and weight have 4 axes each, not {len(x)}, {len(offset)} and {len(weight)}")
    counts, window = window_counts(x[2:], weight[2:], stride, padding, dilation), math.prod(weight[2:])
    if groups < 1 or weight[1] * groups != x[1] or weight[0] % groups:
        raise ShapeError(f"a weight {list(weight)} in {groups} groups does not take the {x[1]} channels of the input")
    sets = offset[1] // (2 * window)
    if sets < 1 or x[1] % sets or offset != (x[0], 2 * window * sets, *counts):
        raise ShapeError(
            f"the offset must have the shape [{x[0]}, {2 * window} times a divisor of {x[1]}, {str(counts)[1:-1]}], "
            f"not {list(offset)}"
        )
    if mask is not None and mask != (x[0], window * sets, *counts):
        raise ShapeError(f"the mask must have the shape {[x[0], window * sets, *counts]}, not {list(mask)}")
    check_bias(bias, weight[0])
    return (x[0], weight[0], *counts)


def as_axis(k: Any, x: Any, axis: int, rank: int) -> Any:
    """A vector along ``axis`` of ``rank``."""
    return k.reshape(x, tuple(x.shape[0] if a == axis else 1 for a in range(rank)))


def neighbours(
    k: Any, n: int, m: int, mode: str, align_corners: bool, dtype: Any, scale: Fraction | None = None
) -> list[tuple[Any, Any]]:
    """The elements among ``n`` that each of ``m`` new ones reads, and their weights (None: all 1).

    ``scale`` is the number of new elements per old one, by default ``m / n``. Positions are quotients of integers,
    so their integral and fractional parts are exact.
    """
    new = k.arange(0, m, 1, int64)
    more, fewer = (m, n) if scale is None else (scale.numerator, scale.denominator)
    if mode == "nearest":
        return [(k.floor_divide(k.mul(new, fewer), more), None)]
    if mode == "nearest-exact":
        return [(k.floor_divide(k.add(k.mul(new, 2 * fewer), fewer), 2 * more), None)]
    if align_corners:
        numerator, denominator = k.mul(new, n - 1), max(m - 1, 1)
    else:
        numerator, denominator = k.add(k.mul(new, 2 * fewer), fewer - more), 2 * more
    start = k.floor_divide(numerator, denominator)
    part = k.div(k.astype(k.remainder(numerator, denominator), dtype), float(denominator))
    if mode == "linear":
        weights = {0: k.sub(1.0, part), 1: part}
    elif mode == "lanczos3":
        weights = _lanczos(k, start, part, n)
    else:
        weights = {step: _cubic(k, part, step) for step in _CUBIC}
    return [(k.minimum(k.maximum(k.add(start, step), 0), n - 1), w) for step, w in weights.items()]


#: The weights of four elements around a position, as polynomials of its fractional part, the constant first; element 0
#: is at the integral part (Keys 1981, with a = -0.75).
_CUBIC = {
    -1: (0.0, -0.75, 1.5, -0.75),
    0: (1.0, 0.0, -2.25, 1.25),
    1: (0.0, 0.75, 1.5, -1.25),
    2: (0.0, 0.0, -0.75, 0.75),
}


def _cubic(k: Any, part: Any, step: int, order: int = 0) -> Any:
    """The weight of an element for the fractional part of a position, or its derivative of an ``order`` up to 3."""
    factors = [c * math.perm(power, order) for power, c in enumerate(_CUBIC[step])][order:]
    weight = factors.pop() if len(factors) > 1 else k.mul(part, 0.0)
    for factor in reversed(factors):
        weight = k.add(k.mul(part, weight), factor)
    return weight


def _lanczos(k: Any, start: Any, part: Any, n: int) -> dict[int, Any]:
    """The weights of the six elements around ``start + part``: 0 outside the ``n`` elements, and 1 in sum."""
    weights = {}
    for step in range(-2, 4):
        place, distance = k.add(start, step), k.sub(part, float(step))
        inside = k.logical_and(k.greater_equal(place, 0), k.less(place, n))
        window = k.mul(k.sinc(distance), k.sinc(k.div(distance, 3.0)))
        weights[step] = k.where(inside, window, 0.0)
    total = functools.reduce(k.add, weights.values())
    return {step: k.div(w, total) for step, w in weights.items()}


def _degree(mode: str) -> int:
    """The highest order of a derivative along an axis that is not 0 everywhere."""
    return 3 if mode == "cubic" else 1


def _check_slopes(slopes: Shape, rank: int, mode: str) -> None:
    if any(a not in range(rank) or slopes.count(a) > _degree(mode) for a in slopes):
        raise ArgumentError(
            f"the slopes are along axes below {rank}, each {_degree(mode)} times at most: {list(slopes)}"
        )


def _sample_shape(
    x: Shape, positions: Shape, *, mode: str = "linear", padding: str = "zeros", slopes: Shape = ()
) -> Shape:
    rank = len(x) - 2
    if rank < 1 or len(positions) != 3 or positions[:2] != (x[0], rank):
        raise ShapeError(f"{list(x)} is read at positions (examples, axes, wanted), not {list(positions)}")
    _check_mode(mode, SAMPLINGS)
    if padding not in OUTSIDE[:2]:
        raise ArgumentError(f"the padding is one of {', '.join(OUTSIDE[:2])}, not {padding!r}")
    _check_slopes(slopes, rank, mode)
    if 0 in x[2:]:
        raise ShapeError(f"there is nothing to sample in {list(x)}")
    return (*x[:2], positions[2])


def _sample_backward_shape(grad: Shape, positions: Shape, *, places: Shape, **options: Any) -> Shape:
    x = (*grad[:2], *places)
    if _sample_shape(x, positions, **options) != grad:
        raise ShapeError(f"the gradient of {list(x)} at positions {list(positions)} is not {list(grad)}")
    return x


class _Corners(NamedTuple):
    """The corners around positions: rows (examples * wanted), a sign, and a column of weights or None."""

    padding: Pairs
    rows: int
    unknown: Any
    corners: list[tuple[Any, float, Any]]


def _corners(k: Any, positions: Any, places: Shape, mode: str, padding: str, slopes: Shape) -> _Corners:
    """The corners that positions read; rows number all elements of the padded axes, one example after the other."""
    examples, rank, wanted = positions.shape
    given = [index_axis(k, positions, 1, a) for a in range(rank)]
    unknown = [k.isnan(p) for p in given]
    given = [k.where(no_number, 0.0, p) for no_number, p in zip(unknown, given, strict=True)]
    zeros, linear, cubic = padding == "zeros", mode == "linear", mode == "cubic"
    beyond = 3 if cubic else 2  # this far outside, only elements outside are read
    widths = ((2 * beyond - 2, 2 * beyond - 1) if zeros else (0, 0),) * rank
    lengths = [n + sum(width) for n, width in zip(places, widths, strict=True)]
    step = total = math.prod(lengths)
    first = k.reshape(k.mul(k.arange(0, examples, 1, int64), total), (examples, 1))
    choices: list[list[tuple[Any, float, Any]]] = []
    for axis, (n, length) in enumerate(zip(places, lengths, strict=True)):
        step //= length
        # Positions far outside read only zeros, even if elements at the edge are infinite.
        position = k.clip(given[axis], *((float(-beyond), n - 1.0 + beyond) if zeros or cubic else (0.0, n - 1.0)))
        start = k.round(position) if mode == "nearest" else k.floor(position)
        whole = k.astype(start, int64)
        whole = k.add(whole, widths[axis][0]) if zeros else whole
        if cubic:
            part = k.sub(position, start)
            around = []
            for offset in _CUBIC:
                place = k.add(whole, offset)
                rows = k.mul(place if zeros else k.minimum(k.maximum(place, 0), n - 1), step)
                weight = _cubic(k, part, offset, slopes.count(axis))
                around.append((rows if choices else k.add(rows, first), 1.0, weight))
            choices.append(around)
            continue
        low = k.mul(whole, step)
        low = low if choices else k.add(low, first)
        if not linear:
            choices.append([(low, 1.0, None)])
            continue
        further = step if zeros else k.mul(k.sub(k.minimum(k.add(whole, 1), n - 1), whole), step)
        high, part = k.add(low, further), k.sub(position, start)
        if axis not in slopes:
            choices.append([(low, 1.0, k.sub(1.0, part)), (high, 1.0, part)])
        else:
            moves = None if zeros else k.astype(k.equal(position, given[axis]), k.dtype(position))
            choices.append([(low, -1.0, moves), (high, 1.0, moves)])
    corners = []
    for corner in itertools.product(*choices):
        index = k.reshape(functools.reduce(k.add, [rows for rows, _, _ in corner]), (examples * wanted,))
        factors = [factor for _, _, factor in corner if factor is not None]
        weight = k.reshape(functools.reduce(k.mul, factors), (examples * wanted, 1)) if factors else None
        corners.append((index, math.prod(sign for _, sign, _ in corner), weight))
    anywhere = k.reshape(functools.reduce(k.logical_or, unknown), (examples, 1, wanted))
    return _Corners(widths, total, anywhere, corners)


def _weighted(k: Any, x: Any, sign: float, weight: Any) -> Any:
    x = x if weight is None else k.mul(x, weight)
    return x if sign == 1 else k.neg(x)


def _reflected(k: Any, position: Any, low: float, high: float) -> Any:
    """``position`` mirrored at ``low`` and ``high`` until it is between them."""
    span = high - low
    if span == 0:
        return k.mul(position, 0.0)
    around = k.remainder(k.abs(k.sub(position, low)), 2 * span)
    return k.add(k.minimum(around, k.sub(2 * span, around)), low)


def _mirrored_places(k: Any, n: int, more: int, align_corners: bool) -> Any:
    """The indices of ``n`` elements with ``more`` mirrored ones on each side: at the edges, or the outer elements."""
    period = max(2 * (n - 1), 1) if align_corners else 2 * n
    around = k.remainder(k.arange(-more, n + more, 1, int64), period)
    return k.minimum(around, k.sub(period if align_corners and n > 1 else period - 1, around))


def grad_positions(k: Any, g: Any, x: Any, positions: Any, mode: str, padding: str, slopes: Shape) -> Any:
    """The gradient of the positions: the channels' slopes along each axis, summed; 0 beyond the mode's degree."""
    shape = positions.shape
    if mode == "nearest":
        return k.zeros(shape, k.dtype(positions))
    still = k.zeros((shape[0], shape[2]), k.dtype(positions))
    along = [
        still
        if slopes.count(axis) == _degree(mode)
        else k.sum(k.mul(g, k.sample(x, positions, mode, padding, (*slopes, axis))), (1,), False)
        for axis in range(shape[1])
    ]
    return k.stack(along, 1)


class Resample(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """Windows as columns, resizing, sampling at arbitrary positions."""

    @operation(kinds="F", shape=_unfold_shape, differentiable=True)
    def unfold(
        self: Any,
        x: F,
        /,
        size: Shape = (1,),
        stride: Shape = (1,),
        padding: Pairs = ((0, 0),),
        dilation: Shape = (1,),
    ) -> F:
        """All windows of ``x`` as columns: (examples, channels * window, windows), in row-major orders."""
        shape = _unfold_shape(x.shape, size=size, stride=stride, padding=padding, dilation=dilation)
        rank = len(size)
        windows = self.sliding_window(zero_padded(self, x, padding), size, stride, tuple(range(2, 2 + rank)), dilation)
        order = (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
        return self.reshape(self.permute_dims(windows, order), shape)

    @operation(kinds="F", shape=_fold_shape, differentiable=True)
    def fold(
        self: Any,
        x: F,
        /,
        places: Shape = (1,),
        size: Shape = (1,),
        stride: Shape = (1,),
        padding: Pairs = ((0, 0),),
        dilation: Shape = (1,),
    ) -> F:
        """The sum of overlapping windows (examples, channels * window, windows): the adjoint of :meth:`unfold`."""
        shape = _fold_shape(x.shape, places=places, size=size, stride=stride, padding=padding, dilation=dilation)
        rank, counts = len(size), window_counts(places, size, stride, padding, dilation)
        split = self.reshape(upcast_half(self, x), (*shape[:2], *size, *counts))
        split = self.permute_dims(split, (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank)))
        lengths = tuple(n + before + after for n, (before, after) in zip(places, padding, strict=True))
        total = self.overlap_add(split, lengths, stride, tuple(range(2, 2 + rank)), dilation)
        return self.astype(unpadded(self, total, places, padding), self.dtype(x))

    @operation(kinds="F", shape=_interpolate_shape, differentiable=True)
    def interpolate(self: Any, x: F, /, size: Shape, mode: str = "nearest", align_corners: bool = False) -> F:
        """``x`` resized to ``size`` elements along each spatial axis.

        Elements are cells of length 1, centred at 1/2, 3/2, ...; new element ``i`` of ``m`` is centred at ``(i + 1/2) n
        / m`` among ``n`` old ones, or with ``align_corners`` the first and the last elements coincide. ``mode`` is
        ``"linear"`` or ``"cubic"`` along each axis (Keys, Cubic convolution interpolation, 1981, with a = -0.75);
        ``"lanczos3"``, with the weights ``sinc(d) sinc(d / 3)`` of elements at distances ``d`` up to 3, normalized
        (Duchon, Lanczos filtering in one and two dimensions, 1979); ``"nearest"``, which takes element ``floor(i n /
        m)``; or ``"nearest-exact"``, which takes the one whose cell contains the new centre.
        """
        shape, dtype, wide = x.shape, self.dtype(x), upcast_half(self, x)
        _interpolate_shape(shape, size=size, mode=mode, align_corners=align_corners)
        for axis, m in enumerate(size, 2):
            n = shape[axis]
            if n == m:
                continue
            total: Any = None
            for places, weight in neighbours(self, n, m, mode, align_corners, self.dtype(wide)):
                term = self.take(wide, places, axis)
                term = term if weight is None else self.mul(term, as_axis(self, weight, axis, len(shape)))
                total = term if total is None else self.add(total, term)
            wide = total
        return self.astype(wide, dtype)

    gradient_rule(
        interpolate,
        x=lambda k, g, x_shape, mode, align_corners: k.interpolate_backward(g, x_shape[2:], mode, align_corners),
    )
    linear_in(interpolate)

    @operation(kinds="F", shape=_interpolate_backward_shape, differentiable=True)
    def interpolate_backward(
        self: Any, grad: F, /, places: Shape, mode: str = "nearest", align_corners: bool = False
    ) -> F:
        """The gradient of :meth:`interpolate` for an input of spatial shape ``places``: summed where it was read."""
        shape, dtype, wide = grad.shape, self.dtype(grad), upcast_half(self, grad)
        _interpolate_backward_shape(shape, places=places, mode=mode, align_corners=align_corners)
        for axis, n in enumerate(places, 2):
            m = shape[axis]
            if n == m:
                continue
            total: Any = None
            for index, weight in neighbours(self, n, m, mode, align_corners, self.dtype(wide)):
                term = wide if weight is None else self.mul(wide, as_axis(self, weight, axis, len(shape)))
                term = self.take_backward(term, index, n, axis)
                total = term if total is None else self.add(total, term)
            wide = total
        return self.astype(wide, dtype)

    gradient_rule(
        interpolate_backward,
        grad=lambda k, g, grad_shape, mode, align_corners: k.interpolate(g, grad_shape[2:], mode, align_corners),
    )
    linear_in(interpolate_backward)

    @operation(kinds="F", shape=_grid_sample_shape, differentiable=True)
    def grid_sample(
        self: Any, x: F, grid: F, /, mode: str = "linear", padding: str = "zeros", align_corners: bool = False
    ) -> F:
        """``x`` sampled at the positions in the last axis of ``grid``, the last axis of ``x`` first.

        -1 and 1 are the outer edges of the first and last element of an axis, or with ``align_corners`` their centres.
        ``mode`` is ``"linear"``, ``"cubic"`` along each axis, as in :meth:`interpolate`, or ``"nearest"`` (whose
        gradient for ``grid`` is 0). Outside, ``padding`` gives 0 (``"zeros"``), the nearest element (``"border"``), or
        ``x`` mirrored at its edges (``"reflection"``). A position that is NaN gives NaN. After Jaderberg et al.,
        Spatial transformer networks, 2015.
        """
        shape, dtype = x.shape, self.dtype(x)
        out, places, rank = _grid_sample_shape(shape, grid.shape, mode=mode, padding=padding), shape[2:], len(shape) - 2
        wanted = self.reshape(upcast_half(self, grid), (shape[0], math.prod(out[2:]), rank))
        wide, positions = upcast_half(self, x), []
        mirrored = 2 if mode == "cubic" and padding == "reflection" else 0  # elements on each side that are read too
        for axis, n in enumerate(places):
            given = self.add(index_axis(self, wanted, 2, rank - 1 - axis), 1.0)
            position = self.mul(given, (n - 1) / 2.0) if align_corners else self.sub(self.mul(given, n / 2.0), 0.5)
            if padding == "reflection":
                edges = (0.0, n - 1.0) if align_corners else (-0.5, n - 0.5)
                position = _reflected(self, position, *edges)
            if mirrored:
                wide = self.take(wide, _mirrored_places(self, n, mirrored, align_corners), axis + 2)
                position = self.add(position, float(mirrored))
            positions.append(position)
        outside = "zeros" if padding == "zeros" else "border"
        found = self.sample(wide, self.stack(positions, 1), mode, outside)
        return self.astype(self.reshape(found, out), dtype)

    @operation(kinds="F", shape=_sample_shape, like=("x",), differentiable=True)
    def sample(self: Any, x: F, positions: F, /, mode: str = "linear", padding: str = "zeros", slopes: Shape = ()) -> F:
        """All channels of ``x`` at ``positions`` (examples, axes, wanted), which count elements from the first.

        ``mode`` is ``"linear"`` or ``"cubic"`` between elements along each axis, or ``"nearest"``. Outside is 0 or,
        with the ``padding`` ``"border"``, the nearest element. A position that is NaN gives NaN. With ``slopes``, it is
        the derivative for the position along these axes: 0 for NaN, and beyond the border. An axis may occur up to
        three times in mode ``"cubic"``, else once.
        """
        shape, dtype, wide = x.shape, self.dtype(x), upcast_half(self, x)
        out = _sample_shape(shape, positions.shape, mode=mode, padding=padding, slopes=slopes)
        if slopes and mode == "nearest":
            return self.zeros(out, dtype)
        at = _corners(self, upcast_half(self, positions), shape[2:], mode, padding, slopes)
        # A row has all channels of a position: one copy for each index.
        rows = self.reshape(zero_padded(self, wide, at.padding), (*shape[:2], at.rows))
        rows = self.reshape(self.permute_dims(rows, (0, 2, 1)), (shape[0] * at.rows, shape[1]))
        terms = (_weighted(self, self.take(rows, index, 0), *weight) for index, *weight in at.corners)
        found = self.reshape(functools.reduce(self.add, terms), (shape[0], out[2], shape[1]))
        found = self.where(at.unknown, 0.0 if slopes else math.nan, self.permute_dims(found, (0, 2, 1)))
        return self.astype(found, dtype)

    gradient_rule(
        sample,
        x=lambda k, g, x_shape, positions, mode, padding, slopes: k.sample_backward(
            g, positions, x_shape[2:], mode, padding, slopes
        ),
        positions=grad_positions,
    )
    decompose(sample)

    @operation(kinds="F", shape=_sample_backward_shape, like=("grad",), differentiable=True)
    def sample_backward(
        self: Any,
        grad: F,
        positions: F,
        /,
        places: Shape,
        mode: str = "linear",
        padding: str = "zeros",
        slopes: Shape = (),
    ) -> F:
        """The gradient of :meth:`sample` for an input of spatial shape ``places``: summed where it was read.

        A position that is NaN adds nothing.
        """
        shape, dtype, wide = grad.shape, self.dtype(grad), upcast_half(self, grad)
        given = positions.shape
        out = _sample_backward_shape(shape, given, places=places, mode=mode, padding=padding, slopes=slopes)
        if slopes and mode == "nearest":
            return self.zeros(out, dtype)
        at = _corners(self, upcast_half(self, positions), places, mode, padding, slopes)
        rows = self.permute_dims(self.where(at.unknown, 0.0, wide), (0, 2, 1))
        rows = self.reshape(rows, (shape[0] * given[2], shape[1]))
        total = self.zeros((shape[0] * at.rows, shape[1]), self.dtype(wide))
        for index, *weight in at.corners:
            total = self.index_add(total, index, _weighted(self, rows, *weight), 0)
        total = self.permute_dims(self.reshape(total, (shape[0], at.rows, shape[1])), (0, 2, 1))
        lengths = tuple(n + sum(width) for n, width in zip(places, at.padding, strict=True))
        return self.astype(unpadded(self, self.reshape(total, (*shape[:2], *lengths)), places, at.padding), dtype)

    gradient_rule(
        sample_backward,
        grad=lambda k, g, positions, mode, padding, slopes: k.sample(g, positions, mode, padding, slopes),
        positions=lambda k, g, grad, positions, mode, padding, slopes: grad_positions(
            k, grad, g, positions, mode, padding, slopes
        ),
    )
    decompose(sample_backward)

    @operation(kinds="F", shape=_deform_conv_shape, differentiable=True)
    def deform_conv2d(
        self: Any,
        x: F,
        offset: F,
        weight: F,
        mask: F | None = None,
        bias: F | None = None,
        /,
        stride: Shape = (1, 1),
        padding: Pairs = ((0, 0), (0, 0)),
        dilation: Shape = (1, 1),
        groups: int = 1,
    ) -> F:
        """A convolution over two axes, with the sampling positions of each window displaced by ``offset``.

        For each output position, ``offset`` has pairs (down, right) for all elements of the window, in row-major order,
        in one or several sets; each set applies to an equal part of the input channels. ``x`` is interpolated linearly,
        and is 0 outside. ``mask`` multiplies the samples. After Zhu et al., Deformable ConvNets v2, 2019.
        """
        shape, dtype, size = x.shape, self.dtype(x), weight.shape[2:]
        given = map(shape_or_none, (mask, bias))
        out = _deform_conv_shape(shape, offset.shape, weight.shape, *given,
                        stride=stride, padding=padding, dilation=dilation, groups=groups)  # fmt: skip
        (examples, channels, height, width), counts = shape, out[2:]
        window, count = math.prod(size), math.prod(counts)
        sets = offset.shape[1] // (2 * window)
        moves = self.reshape(upcast_half(self, offset), (examples * sets, window, 2, *counts))
        wide = self.dtype(moves)
        positions = []
        for axis in (0, 1):
            # The position of the window's element without an offset.
            element = self.mul(self.astype(self.arange(0, size[axis], 1, int64), wide), float(dilation[axis]))
            place = self.mul(self.astype(self.arange(0, counts[axis], 1, int64), wide), float(stride[axis]))
            element = self.sub(element, float(padding[axis][0]))
            element = self.broadcast_to(as_axis(self, element, axis, 2), size)
            fixed = self.add(self.reshape(element, (window, 1, 1)), as_axis(self, place, axis + 1, 3))
            moved = self.add(index_axis(self, moves, 2, axis), fixed)
            positions.append(self.reshape(moved, (examples * sets, window * count)))
        images = self.reshape(upcast_half(self, x), (examples * sets, channels // sets, height, width))
        seen = self.sample(images, self.stack(positions, 1))
        if mask is not None:
            seen = self.mul(seen, self.reshape(upcast_half(self, mask), (examples * sets, 1, window * count)))
        columns = self.reshape(seen, (examples, groups, channels // groups * window, count))
        rows = self.reshape(upcast_half(self, weight), (groups, out[1] // groups, channels // groups * window))
        return self.astype(with_bias(self, self.reshape(self.matmul(rows, columns), out), bias), dtype)
