"""Pooling and resizing layers; they have no parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Literal, overload

from typing_extensions import TypeVar

from backburn.base.errors import ArgumentError
from backburn.nn import functional
from backburn.nn.functional.window_options import Padding, Sizes, each, pairs
from backburn.nn.module import Module
from backburn.nn.spatial import Spatial
from backburn.ops.resample import INTERPOLATIONS
from backburn.tensor.classes import FloatTensor, IntTensor, Tensor
from backburn.tensor.core.options import bounded, flags, number, one_of

#: The result type of max pooling: the values, or with ``return_indices`` a pair of values and indices.
R = TypeVar("R", covariant=True, default=FloatTensor)


class _Pool(Spatial):
    def _set_windows(
        self, kernel_size: Sizes, stride: Sizes | None, padding: Padding, dilation: tuple[int, ...] | None = None
    ) -> None:
        """Set these options; invalid ones raise here rather than at the first input."""
        name, rank = type(self).__name__, self._rank
        self.kernel_size = each(name, "kernel_size", kernel_size, rank)
        self.stride = self.kernel_size if stride is None else each(name, "stride", stride, rank)
        self.padding = padding
        pairs(name, padding, self.kernel_size, self.stride, dilation or (1,) * rank)


class _MaxPool(_Pool, Generic[R]):
    ABOUT = """
    The input is ``(examples, channels, *spatial)``; windows of ``kernel_size`` are ``stride`` apart, by default their
    size; see :func:`functional.max_pool`. With ``return_indices`` the result is a pair of the elements and their
    indices.

    >>> import backburn as bb
    >>> NAME(3, stride=2, padding=1)(bb.zeros((1, 4, <9>))).shape
    (1, 4, <5>)
    """

    @overload
    def __init__(
        self: _MaxPool[FloatTensor],
        kernel_size: Sizes,
        stride: Sizes | None = ...,
        padding: Padding = ...,
        dilation: Sizes = ...,
        return_indices: Literal[False] = ...,
        ceil_mode: bool = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: _MaxPool[tuple[FloatTensor, IntTensor]],
        kernel_size: Sizes,
        stride: Sizes | None = ...,
        padding: Padding = ...,
        dilation: Sizes = ...,
        return_indices: bool = ...,
        ceil_mode: bool = ...,
    ) -> None: ...
    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Padding = 0,
        dilation: Sizes = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        name = type(self).__name__
        flags(name, return_indices=return_indices, ceil_mode=ceil_mode)
        self.dilation = each(name, "dilation", dilation, self._rank)
        self._set_windows(kernel_size, stride, padding, self.dilation)
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def forward(self, x: Tensor) -> R:
        """The largest elements, of shape ``(examples, channels, *windows)``, and with ``return_indices`` their indices.

        The indices are those of :func:`functional.max_pool_with_indices`.
        """
        self._check(x)
        pool: Any = functional.max_pool_with_indices if self.return_indices else functional.max_pool
        found: R = pool(
            x,
            self.kernel_size,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            ceil_mode=self.ceil_mode,
        )
        return found


class MaxPool1d(_MaxPool[R], rank=1):
    """The largest element of each window over one axis."""


class MaxPool2d(_MaxPool[R], rank=2):
    """The largest element of each window over two axes."""


class MaxPool3d(_MaxPool[R], rank=3):
    """The largest element of each window over three axes."""


class _MaxUnpool(_Pool):
    ABOUT = """
    Maxima are put back in place; see :func:`functional.max_unpool`. Called with the maxima, their indices, and
    optionally the size of the result.

    >>> import backburn as bb
    >>> values, indices = functional.max_pool_with_indices(bb.ones((1, 4, <9>)), 3)
    >>> NAME(3)(values, indices).shape
    (1, 4, <9>)
    """

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Padding = 0) -> None:
        self._set_windows(kernel_size, stride, padding)

    def forward(self, x: Tensor, indices: Tensor, output_size: Sizes | None = None) -> FloatTensor:
        """The elements at their indices, of shape ``(examples, channels, *spatial)``."""
        self._check(x)
        return functional.max_unpool(
            x, indices, self.kernel_size, stride=self.stride, padding=self.padding, output_size=output_size
        )


class MaxUnpool1d(_MaxUnpool, rank=1):
    """The inverse of max pooling over one axis."""


class MaxUnpool2d(_MaxUnpool, rank=2):
    """The inverse of max pooling over two axes."""


class MaxUnpool3d(_MaxUnpool, rank=3):
    """The inverse of max pooling over three axes."""


class _AvgPool(_Pool):
    ABOUT = """
    The input is ``(examples, channels, *spatial)``; windows of ``kernel_size`` are ``stride`` apart, by default their
    size; see :func:`functional.avg_pool`.

    >>> import backburn as bb
    >>> NAME(2)(bb.zeros((1, 4, <9>))).shape
    (1, 4, <4>)
    """

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Padding = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: float | None = None,
        *,
        dilation: Sizes = 1,
    ) -> None:
        name = type(self).__name__
        flags(name, ceil_mode=ceil_mode, count_include_pad=count_include_pad)
        self.dilation = each(name, "dilation", dilation, self._rank)
        self._set_windows(kernel_size, stride, padding, self.dilation)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        given = divisor_override is not None
        self.divisor_override = number(name, "divisor_override", divisor_override) if given else None

    def forward(self, x: Tensor) -> FloatTensor:
        """The means, of shape ``(examples, channels, *windows)``."""
        self._check(x)
        return functional.avg_pool(
            x,
            self.kernel_size,
            stride=self.stride,
            padding=self.padding,
            ceil_mode=self.ceil_mode,
            count_include_pad=self.count_include_pad,
            divisor_override=self.divisor_override,
            dilation=self.dilation,
        )


class AvgPool1d(_AvgPool, rank=1):
    """The mean of each window over one axis."""


class AvgPool2d(_AvgPool, rank=2):
    """The mean of each window over two axes."""


class AvgPool3d(_AvgPool, rank=3):
    """The mean of each window over three axes."""


class _LPPool(Spatial):
    ABOUT = """
    The norm is of order ``norm_type``, and of absolute values; see :func:`functional.lp_pool`.

    >>> import backburn as bb
    >>> NAME(2, 2)(bb.ones((1, 3, <4>))).shape
    (1, 3, <2>)
    """

    def __init__(
        self, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
    ) -> None:
        name, rank = type(self).__name__, self._rank
        flags(name, ceil_mode=ceil_mode)
        self.ceil_mode = ceil_mode
        self.norm_type = bounded(name, "norm_type", norm_type, least=1)
        self.kernel_size = each(name, "kernel_size", kernel_size, rank)
        self.stride = self.kernel_size if stride is None else each(name, "stride", stride, rank)

    def forward(self, x: Tensor) -> FloatTensor:
        """The norms, of shape ``(examples, channels, *windows)``."""
        self._check(x)
        return functional.lp_pool(x, self.norm_type, self.kernel_size, stride=self.stride, ceil_mode=self.ceil_mode)


class LPPool1d(_LPPool, rank=1):
    """The norm of each window over one axis."""


class LPPool2d(_LPPool, rank=2):
    """The norm of each window over two axes."""


class LPPool3d(_LPPool, rank=3):
    """The norm of each window over three axes."""


class _AdaptiveAvgPool(Spatial):
    ABOUT = """
    There are ``output_size`` windows of nearly equal length along each axis; see :func:`functional.adaptive_avg_pool`.

    >>> import backburn as bb
    >>> NAME(2)(bb.zeros((1, 4, <9>))).shape
    (1, 4, <2>)
    """

    def __init__(self, output_size: Sizes) -> None:
        self.output_size = each(type(self).__name__, "output_size", output_size, self._rank)

    def forward(self, x: Tensor) -> FloatTensor:
        """The means, of shape ``(examples, channels, *output_size)``."""
        self._check(x)
        return functional.adaptive_avg_pool(x, self.output_size)


class AdaptiveAvgPool1d(_AdaptiveAvgPool, rank=1):
    """The means of a given number of windows over one axis."""


class AdaptiveAvgPool2d(_AdaptiveAvgPool, rank=2):
    """The means of a given number of windows over two axes."""


class AdaptiveAvgPool3d(_AdaptiveAvgPool, rank=3):
    """The means of a given number of windows over three axes."""


class _AdaptiveMaxPool(Spatial, Generic[R]):
    ABOUT = """
    There are ``output_size`` windows of nearly equal length along each axis; see :func:`functional.adaptive_max_pool`.
    With ``return_indices`` the result is a pair of the elements and their indices.

    >>> import backburn as bb
    >>> NAME(2)(bb.zeros((1, 4, <9>))).shape
    (1, 4, <2>)
    """

    @overload
    def __init__(
        self: _AdaptiveMaxPool[FloatTensor], output_size: Sizes, return_indices: Literal[False] = ...
    ) -> None: ...
    @overload
    def __init__(
        self: _AdaptiveMaxPool[tuple[FloatTensor, IntTensor]], output_size: Sizes, return_indices: bool = ...
    ) -> None: ...
    def __init__(self, output_size: Sizes, return_indices: bool = False) -> None:
        name = type(self).__name__
        flags(name, return_indices=return_indices)
        self.output_size = each(name, "output_size", output_size, self._rank)
        self.return_indices = return_indices

    def forward(self, x: Tensor) -> R:
        """The largest elements, ``(examples, channels, *output_size)``, and with ``return_indices`` their indices."""
        self._check(x)
        values, indices = functional.adaptive_max_pool_with_indices(x, self.output_size)
        found: Any = (values, indices) if self.return_indices else values
        return found


class AdaptiveMaxPool1d(_AdaptiveMaxPool[R], rank=1):
    """The largest elements of a given number of windows over one axis."""


class AdaptiveMaxPool2d(_AdaptiveMaxPool[R], rank=2):
    """The largest elements of a given number of windows over two axes."""


class AdaptiveMaxPool3d(_AdaptiveMaxPool[R], rank=3):
    """The largest elements of a given number of windows over three axes."""


class Upsample(Module):
    """The input ``(examples, channels, *spatial)`` in another resolution; see :func:`functional.interpolate`.

    Either ``size`` or ``scale_factor`` determines the size of the output.

    >>> import backburn as bb
    >>> Upsample(scale_factor=2)(bb.asarray([[[1.0, 2.0]]])).tolist()
    [[[1.0, 1.0, 2.0, 2.0]]]
    """

    def __init__(
        self,
        size: Sizes | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
    ) -> None:
        if (size is None) == (scale_factor is None):
            raise ArgumentError("Upsample: either size or scale_factor gives the size of the output; give one of them")
        self.size = size
        self.scale_factor = scale_factor
        self.mode: str = one_of("Upsample", "mode", mode, INTERPOLATIONS)
        self.align_corners = align_corners

    def forward(self, x: Tensor) -> FloatTensor:
        """The interpolated input."""
        return functional.interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners)
