"""Pooling and resizing layers; they have no parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from backburn.backend.resample import INTERPOLATIONS
from backburn.base.errors import ArgumentError, ShapeError
from backburn.nn import functional
from backburn.nn.module import Module
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.dispatch import tensor_operand
from backburn.tensor.messages import describe
from backburn.tensor.options import bounded, flags, number, one_of
from backburn.tensor.window_options import Padding, Sizes, each, pairs


class Spatial(Module):
    """The base class of layers whose input has ``RANK`` spatial axes after examples and channels."""

    RANK: ClassVar[int]

    def _check(self, x: Tensor) -> None:
        layer = type(self).__name__
        tensor_operand(layer, x)
        if x.ndim != self.RANK + 2:
            hint = "; expand_dims adds an axis for a single example" if x.ndim == self.RANK + 1 else ""
            axes = f"the input (examples, channels, *spatial) has {self.RANK + 2} axes, not {x.ndim}"
            raise ShapeError(f"{layer}: {axes}: {describe((x,))}{hint}")


class _Pool(Spatial):
    def _set_windows(
        self, size: Sizes, stride: Sizes | None, padding: Padding, dilation: tuple[int, ...] | None = None
    ) -> None:
        """Set these options; what does not fit is refused now rather than at the first input."""
        name = type(self).__name__
        self.size = each(name, "size", size, self.RANK)
        self.stride = self.size if stride is None else each(name, "stride", stride, self.RANK)
        self.padding = padding
        pairs(name, padding, self.size, self.stride, dilation or (1,) * self.RANK)


class _MaxPool(_Pool):
    def __init__(
        self,
        size: Sizes,
        stride: Sizes | None = None,
        padding: Padding = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
    ) -> None:
        name = type(self).__name__
        flags(name, ceil_mode=ceil_mode)
        self.dilation = each(name, "dilation", dilation, self.RANK)
        self._set_windows(size, stride, padding, self.dilation)
        self.ceil_mode = ceil_mode

    def forward(self, x: Tensor) -> FloatTensor:
        """The largest elements, of shape ``(examples, channels, *windows)``."""
        self._check(x)
        return functional.max_pool(
            x, self.size, stride=self.stride, padding=self.padding, dilation=self.dilation, ceil_mode=self.ceil_mode
        )


class MaxPool1d(_MaxPool):
    """The largest element of each window over one axis, ``size`` apart by default; see :func:`functional.max_pool`.

    >>> import backburn as bb
    >>> MaxPool1d(2)(bb.asarray([[[1.0, 3.0, 2.0, 0.0]]])).tolist()
    [[[3.0, 2.0]]]
    """

    RANK = 1


class MaxPool2d(_MaxPool):
    """The largest element of each window over two axes, like :class:`MaxPool1d`.

    >>> import backburn as bb
    >>> MaxPool2d(3, stride=2, padding=1)(bb.zeros((1, 4, 9, 9))).shape
    (1, 4, 5, 5)
    """

    RANK = 2


class MaxPool3d(_MaxPool):
    """The largest element of each window over three axes, like :class:`MaxPool1d`.

    >>> import backburn as bb
    >>> MaxPool3d(2)(bb.zeros((1, 1, 4, 4, 4))).shape
    (1, 1, 2, 2, 2)
    """

    RANK = 3


class _MaxUnpool(_Pool):
    def __init__(self, size: Sizes, stride: Sizes | None = None, padding: Padding = 0) -> None:
        self._set_windows(size, stride, padding)

    def forward(self, x: Tensor, indices: Tensor, output_size: Sizes | None = None) -> FloatTensor:
        """The elements at their indices, of shape ``(examples, channels, *spatial)``."""
        self._check(x)
        return functional.max_unpool(
            x, indices, self.size, stride=self.stride, padding=self.padding, output_size=output_size
        )


class MaxUnpool1d(_MaxUnpool):
    """The inverse of max pooling over one axis: maxima are put back in place; see :func:`functional.max_unpool`.

    Called with the maxima, their indices, and optionally the length of the result.

        >>> import backburn as bb
        >>> values, indices = functional.max_pool_with_indices(bb.asarray([[[1.0, 3.0, 2.0, 0.0]]]), 2)
        >>> MaxUnpool1d(2)(values, indices).tolist()
        [[[0.0, 3.0, 2.0, 0.0]]]
    """

    RANK = 1


class MaxUnpool2d(_MaxUnpool):
    """The inverse of max pooling over two axes, like :class:`MaxUnpool1d`.

    >>> import backburn as bb
    >>> values, indices = functional.max_pool_with_indices(bb.ones((1, 4, 9, 9)), 3)
    >>> MaxUnpool2d(3)(values, indices).shape
    (1, 4, 9, 9)
    """

    RANK = 2


class MaxUnpool3d(_MaxUnpool):
    """The inverse of max pooling over three axes, like :class:`MaxUnpool1d`.

    >>> import backburn as bb
    >>> values, indices = functional.max_pool_with_indices(bb.ones((1, 1, 5, 5, 5)), 2)
    >>> MaxUnpool3d(2)(values, indices, output_size=5).shape
    (1, 1, 5, 5, 5)
    """

    RANK = 3


class _AvgPool(_Pool):
    def __init__(
        self,
        size: Sizes,
        stride: Sizes | None = None,
        padding: Padding = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: float | None = None,
    ) -> None:
        name = type(self).__name__
        flags(name, ceil_mode=ceil_mode, count_include_pad=count_include_pad)
        self._set_windows(size, stride, padding)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        given = divisor_override is not None
        self.divisor_override = number(name, "divisor_override", divisor_override) if given else None

    def forward(self, x: Tensor) -> FloatTensor:
        """The means, of shape ``(examples, channels, *windows)``."""
        self._check(x)
        return functional.avg_pool(
            x,
            self.size,
            stride=self.stride,
            padding=self.padding,
            ceil_mode=self.ceil_mode,
            count_include_pad=self.count_include_pad,
            divisor_override=self.divisor_override,
        )


class _LPPool(Spatial):
    def __init__(self, ord: float, size: Sizes, stride: Sizes | None = None) -> None:
        name = type(self).__name__
        self.ord = bounded(name, "ord", ord, least=1)
        self.size = each(name, "size", size, self.RANK)
        self.stride = self.size if stride is None else each(name, "stride", stride, self.RANK)

    def forward(self, x: Tensor) -> FloatTensor:
        """The norms, of shape ``(examples, channels, *windows)``."""
        self._check(x)
        return functional.lp_pool(x, self.ord, self.size, stride=self.stride)


class LPPool1d(_LPPool):
    """The norm of order ``ord`` of each window over one axis; see :func:`functional.lp_pool`.

    >>> import backburn as bb
    >>> LPPool1d(2, 2)(bb.asarray([[[3.0, 4.0, 0.0, 1.0]]])).tolist()
    [[[5.0, 1.0]]]
    """

    RANK = 1


class LPPool2d(_LPPool):
    """The norm of order ``ord`` of each window over two axes, like :class:`LPPool1d`.

    >>> import backburn as bb
    >>> LPPool2d(2, (2, 1))(bb.ones((1, 3, 4, 4))).shape
    (1, 3, 2, 4)
    """

    RANK = 2


class LPPool3d(_LPPool):
    """The norm of order ``ord`` of each window over three axes, like :class:`LPPool1d`.

    >>> import backburn as bb
    >>> LPPool3d(2, 2)(bb.ones((1, 1, 4, 4, 4))).shape
    (1, 1, 2, 2, 2)
    """

    RANK = 3


class AvgPool1d(_AvgPool):
    """The mean of each window over one axis, ``size`` apart by default; see :func:`functional.avg_pool`.

    >>> import backburn as bb
    >>> AvgPool1d(2)(bb.asarray([[[1.0, 3.0, 2.0, 0.0]]])).tolist()
    [[[2.0, 1.0]]]
    """

    RANK = 1


class AvgPool2d(_AvgPool):
    """The mean of each window over two axes, like :class:`AvgPool1d`.

    >>> import backburn as bb
    >>> AvgPool2d(2)(bb.zeros((1, 4, 9, 8))).shape
    (1, 4, 4, 4)
    """

    RANK = 2


class AvgPool3d(_AvgPool):
    """The mean of each window over three axes, like :class:`AvgPool1d`.

    >>> import backburn as bb
    >>> AvgPool3d(2)(bb.zeros((1, 1, 4, 4, 4))).shape
    (1, 1, 2, 2, 2)
    """

    RANK = 3


class _AdaptiveAvgPool(Spatial):
    def __init__(self, size: Sizes) -> None:
        self.size = each(type(self).__name__, "size", size, self.RANK)

    def forward(self, x: Tensor) -> FloatTensor:
        """The means, of shape ``(examples, channels, *size)``."""
        self._check(x)
        return functional.adaptive_avg_pool(x, self.size)


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """The means of ``size`` windows of nearly equal length over one axis; see :func:`functional.adaptive_avg_pool`.

    >>> import backburn as bb
    >>> AdaptiveAvgPool1d(1)(bb.asarray([[[1.0, 3.0, 2.0, 0.0]]])).tolist()
    [[[1.5]]]
    """

    RANK = 1


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """The means of ``size`` windows along each of two axes, like :class:`AdaptiveAvgPool1d`.

    >>> import backburn as bb
    >>> AdaptiveAvgPool2d((1, 2))(bb.zeros((1, 4, 9, 8))).shape
    (1, 4, 1, 2)
    """

    RANK = 2


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """The means of ``size`` windows along each of three axes, like :class:`AdaptiveAvgPool1d`.

    >>> import backburn as bb
    >>> AdaptiveAvgPool3d(2)(bb.zeros((1, 1, 4, 5, 6))).shape
    (1, 1, 2, 2, 2)
    """

    RANK = 3


class Upsample(Module):
    """The input ``(examples, channels, *spatial)`` in another resolution; see :func:`functional.interpolate`.

    Either ``size`` or ``scale`` determines the size of the output.

    >>> import backburn as bb
    >>> Upsample(scale=2)(bb.asarray([[[1.0, 2.0]]])).tolist()
    [[[1.0, 1.0, 2.0, 2.0]]]
    """

    def __init__(
        self,
        size: Sizes | None = None,
        scale: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool = False,
    ) -> None:
        if (size is None) == (scale is None):
            raise ArgumentError("Upsample: either size or scale says how many places come out; give one of them")
        self.size = size
        self.scale = scale
        self.mode = one_of("Upsample", "mode", mode, INTERPOLATIONS)
        self.align_corners = align_corners

    def forward(self, x: Tensor) -> FloatTensor:
        """The interpolated input."""
        return functional.interpolate(
            x, self.size, scale=self.scale, mode=self.mode, align_corners=self.align_corners
        )
