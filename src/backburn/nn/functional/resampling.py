"""Tensor functions: unfolding windows, interpolation, sampling on a grid.

Inputs have the shape `(examples, channels, *spatial)`; options of windows are those of :func:`conv`. Integers become
the default float.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from backburn.base.errors import ArgumentError, ShapeError
from backburn.hints.arguments import explained
from backburn.nn.functional.window_options import Padding, Sizes, each, pairs, places_rank
from backburn.ops.resample import as_axis, neighbours
from backburn.tensor.core.dispatch import call, cast, float_operand, promote_operands, tensor_operand, upcast_half
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import flags, integers_of, number, one_of, shape_of
from backburn.tensor.core.wrapping import wrap
from backburn.tensor.creation import arange, ones
from backburn.tensor.shape import meshgrid, reshape, stack

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, Tensor

__all__ = ["affine_grid", "fold", "grid_sample", "interpolate", "unfold"]


def unfold(x: Tensor, kernel_size: Sizes, dilation: Sizes = 1, padding: Padding = 0, stride: Sizes = 1) -> FloatTensor:
    """All windows of ``x`` as columns: a tensor of shape (examples, channels * window, windows).

    Raises :class:`ShapeError` where no window fits.

        >>> import backburn as bb
        >>> unfold(bb.asarray([[[1.0, 2.0, 3.0]]]), 2).tolist()
        [[[1.0, 2.0], [2.0, 3.0]]]
    """
    x = float_operand("unfold", x)
    return call("unfold", x, **_options("unfold", x, places_rank("unfold", x), kernel_size, stride, padding, dilation))


def fold(
    x: Tensor,
    output_size: Sequence[int],
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Padding = 0,
    stride: Sizes = 1,
) -> FloatTensor:
    """The sum of overlapping windows (examples, channels * window, windows): the adjoint of :func:`unfold`.

    The result has the shape `(examples, channels, *spatial)`. Raises :class:`ShapeError` if the windows do not fit it.

        >>> import backburn as bb
        >>> fold(bb.asarray([[[1.0, 2.0], [2.0, 3.0]]]), (3,), 2).tolist()
        [[[1.0, 4.0, 3.0]]]
    """
    x = float_operand("fold", x)
    lengths = each("fold", "output_size", output_size, len(integers_of("fold", "output_size", output_size)), of=(x,))
    return call("fold", x, places=lengths, **_options("fold", x, len(lengths), kernel_size, stride, padding, dilation))


@explained
def interpolate(
    x: Tensor,
    size: Sizes | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> FloatTensor:
    """``x`` resized to ``size`` along each spatial axis, or to ``floor(scale_factor * n)``.

    ``scale_factor`` is one number, or one for each axis. ``mode`` is ``"nearest"``, ``"nearest-exact"``, ``"linear"``,
    ``"cubic"`` or ``"lanczos3"``, the last three along each axis (bilinear, bicubic), without antialiasing. New pixel
    ``i`` of ``m`` is centred at ``(i + 1/2) n / m`` among cells of length 1, or at ``(i + 1/2) / scale_factor``; with
    ``align_corners`` the first and the last pixels coincide. Raises :class:`ArgumentError` unless one of ``size`` and
    ``scale_factor`` is given, and for unknown modes. After Keys, Cubic convolution interpolation, 1981 (a = -0.75), and
    Duchon, Lanczos filtering in one and two dimensions, 1979 (three lobes, normalized over the existing pixels).

        >>> import backburn as bb
        >>> x = bb.asarray([[[0.0, 4.0]]])
        >>> interpolate(x, 4).tolist(), interpolate(x, scale_factor=2, mode="linear").tolist()
        ([[[0.0, 0.0, 4.0, 4.0]]], [[[0.0, 1.0, 3.0, 4.0]]])
        >>> interpolate(x, 5, mode="linear", align_corners=True).tolist()
        [[[0.0, 1.0, 2.0, 3.0, 4.0]]]
    """
    x = float_operand("interpolate", x)
    rank, align_corners = places_rank("interpolate", x), _corners("interpolate", align_corners)
    if (size is None) == (scale_factor is None):
        raise ArgumentError(
            f"interpolate: give either size or scale_factor, which determine the length of the result. "
            f"Operand: {describe((x,))}"
        )
    if size is None:
        factors = list(scale_factor) if isinstance(scale_factor, Sequence) else [scale_factor] * rank
        if len(factors) != rank:
            raise ArgumentError(
                f"interpolate: scale_factor needs one number for each of {rank} spatial axes, not {scale_factor!r}. "
                f"Operand: {describe((x,))}"
            )
        size = [_scaled_length(x, n, f) for n, f in zip(x.shape[2:], factors, strict=True)]
        if not align_corners:
            return _resize_by_scales(x, size, factors, mode)
    lengths = each("interpolate", "size", size, rank, of=(x,))
    return call("interpolate", x, size=lengths, mode=mode, align_corners=align_corners)


def _resize_by_scales(x: Any, size: list[int], factors: list[Any], mode: str) -> Any:
    """``x`` resized to ``size``, with positions computed from the factors even if ``scale * n`` is not an integer."""
    k, rank, dtype = x.backend, x.ndim, x.dtype
    scales = [Fraction(float(f)).limit_denominator(10**9) for f in factors]
    whole = [m == n * scale for n, m, scale in zip(x.shape[2:], size, scales, strict=True)]
    lengths = tuple(m if w else n for n, m, w in zip(x.shape[2:], size, whole, strict=True))
    x = call("interpolate", x, size=lengths, mode=mode)
    wide = upcast_half(x)
    for axis, (m, scale, done) in enumerate(zip(size, scales, whole, strict=True), 2):
        if done:
            continue
        terms = []
        for places, weight in neighbours(k, x.shape[axis], m, mode, False, wide.dtype, scale):
            term = call("take", wide, wrap(places, k), axis=axis)
            terms.append(term if weight is None else term * wrap(as_axis(k, weight, axis, rank), k))
        wide = functools.reduce(operator.add, terms)
    return cast(wide, dtype)


def _scaled_length(x: Tensor, length: int, scale: float | None) -> int:
    """``floor(length * scale)``, which must be at least 1."""
    wanted = length * number("interpolate", "scale_factor", scale, of=(x,))
    if not 1 <= wanted < math.inf:
        raise ArgumentError(
            f"interpolate: a scale_factor of {scale!r} does not resize {length} positions to one or more. "
            f"Operand: {describe((x,))}"
        )
    return math.floor(wanted)


def grid_sample(
    x: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> FloatTensor:
    """``x`` sampled at the positions in ``grid`` ``(examples, *wanted, axes)``, the last axis of ``x`` first.

    -1 and 1 are the outer edges of the first and the last pixel of an axis, or with ``align_corners`` their centres.
    ``mode`` is ``"bilinear"`` (linear along each axis), ``"bicubic"`` (cubic along each axis, as in
    :func:`interpolate`) or ``"nearest"``; beyond the edges ``padding_mode`` takes 0 (``"zeros"``), the nearest pixel
    (``"border"``) or ``x`` mirrored (``"reflection"``). Gradients reach ``x`` and, but for mode ``"nearest"``, the
    grid. Raises :class:`ShapeError` where the grid does not fit ``x``. After Jaderberg et al., Spatial transformer
    networks, 2015.

        >>> import backburn as bb
        >>> x, grid = bb.asarray([[[1.0, 3.0]]]), bb.asarray([[[-0.5], [0.0], [3.0]]])
        >>> grid_sample(x, grid).tolist(), grid_sample(x, grid, padding_mode="border").tolist()
        ([[[1.0, 2.0, 0.0]]], [[[1.0, 2.0, 3.0]]])
    """
    x, grid = promote_operands("grid_sample", tensor_operand("grid_sample", x), tensor_operand("grid_sample", grid))
    one_of("grid_sample", "mode", mode, ("bilinear", "bicubic", "nearest"))
    one_of("grid_sample", "padding_mode", padding_mode, ("zeros", "border", "reflection"))
    corners = _corners("grid_sample", align_corners)
    options = {"mode": mode.removeprefix("bi"), "padding": padding_mode, "align_corners": corners}
    return call("grid_sample", x, grid, **options)


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> FloatTensor:
    """The grid with which :func:`grid_sample` applies an affine map to each example, over one to three axes.

    ``size`` is the wanted shape ``(examples, channels, *spatial)``, and ``theta`` of shape (examples, axes, axes + 1)
    holds the linear part and, as its last column, the translation. A pixel at ``p``, the last spatial axis first, takes
    the value at ``linear @ p + translation``; -1 and 1 are the edges, or the centres of the outermost pixels with
    ``align_corners``. The result has the shape ``(examples, *spatial, axes)``. Raises :class:`ShapeError` where
    ``theta`` does not fit ``size``. After Jaderberg et al., Spatial transformer networks, 2015.

        >>> import backburn as bb
        >>> mirror = bb.asarray([[[-1.0, 0.0]]])
        >>> grid = affine_grid(mirror, (1, 1, 3), align_corners=True)
        >>> grid_sample(bb.asarray([[[1.0, 2.0, 4.0]]]), grid, align_corners=True).tolist()
        [[[4.0, 2.0, 1.0]]]
    """
    theta = float_operand("affine_grid", theta)
    lengths, align_corners = shape_of("affine_grid", size), _corners("affine_grid", align_corners)
    places, rank = lengths[2:], len(lengths) - 2
    if rank < 1 or theta.shape != (lengths[0], rank, rank + 1):
        fit = f"have the shape {[lengths[0], rank, rank + 1]}" if rank > 0 else "are for samples of three axes or more"
        raise ShapeError(
            f"affine_grid: the maps theta to the shape {list(lengths)} {fit}. Operand: {describe((theta,))}"
        )
    wide = upcast_half(theta)
    lines = [_pixel_centres(n, align_corners, wide) for n in places]
    points = [*meshgrid(*lines, indexing="ij")[::-1], ones(places, dtype=wide.dtype, backend=wide.backend)]
    flat = reshape(stack(points, axis=-1), (math.prod(places), rank + 1))
    return cast(reshape(flat @ wide.mT, (lengths[0], *places, rank)), theta.dtype)


def _pixel_centres(n: int, align_corners: bool, like: Tensor) -> Tensor:
    """The centres of ``n`` pixels between -1 and 1; a single one is at 0."""
    steps = arange(n, dtype=like.dtype, backend=like.backend) * 2.0
    if n == 1:
        return steps
    return steps / (n - 1) - 1.0 if align_corners else (steps + 1.0) / n - 1.0


def _corners(name: str, align_corners: bool | None) -> bool:
    """Whether corners are aligned; None means not."""
    flags(name, align_corners=False if align_corners is None else align_corners)
    return bool(align_corners)


def _options(
    name: str, x: Tensor, rank: int, kernel_size: Sizes, stride: Sizes, padding: Padding, dilation: Sizes
) -> dict[str, Any]:
    """The options of windows over ``rank`` axes as the contract takes them."""
    given = {"kernel_size": kernel_size, "stride": stride, "dilation": dilation}
    size, steps, spacing = (each(name, option, value, rank, of=(x,)) for option, value in given.items())
    widths = pairs(name, padding, size, steps, spacing, of=(x,))
    return {"size": size, "stride": steps, "dilation": spacing, "padding": widths}
