"""Convolutional layers."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from backburn.base.errors import ArgumentError
from backburn.nn import functional, init
from backburn.nn.functional.window_options import Padding, Sizes, each, pairs
from backburn.nn.linear import sizes
from backburn.nn.module import parameter
from backburn.nn.spatial import Spatial
from backburn.tensor import rearrange
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.core.options import flags, one_of

#: The mode of :func:`backburn.pad` for each ``padding_mode``.
_PAD_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


class Convolution(Spatial):
    """The base class of convolutions: weights and options."""

    ABOUT = """
    The input is ``(examples, in_channels, *spatial)``, the result ``(examples, out_channels, *spatial)``; see
    :func:`functional.conv`. ``weight`` has the shape ``(out_channels, in_channels / groups, *kernel_size)`` and
    ``bias`` (out_channels,); both are initialized uniformly between plus and minus ``1 / sqrt(k)``, where ``k`` is the
    number of weights per output channel. ``padding`` is a number, a number or a pair for each axis, ``"same"`` or
    ``"valid"``; ``padding_mode`` is ``"zeros"``, ``"reflect"``, ``"replicate"`` or ``"circular"``. Raises
    :class:`ArgumentError` for sizes and options out of range, and when called :class:`ShapeError` for an input that
    does not fit.

    >>> import backburn as bb
    >>> NAME(2, 3, 4, padding="same")(bb.zeros((1, 2, <8>))).shape
    (1, 3, <8>)
    """
    TRANSPOSED: ClassVar[bool] = False
    weight: FloatTensor
    bias: FloatTensor | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Padding = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
    ) -> None:
        name, rank = type(self).__name__, self._rank
        inputs, outputs, groups = sizes(name, in_channels=in_channels, out_channels=out_channels, groups=groups)
        if inputs % groups or outputs % groups:
            raise ArgumentError(f"{name}: {inputs} and {outputs} channels do not form {groups} equal groups")
        flags(name, bias=bias)
        window = each(name, "kernel_size", kernel_size, rank)
        self.in_channels = inputs
        self.out_channels = outputs
        self.kernel_size = window
        self.stride = each(name, "stride", stride, rank)
        self.padding = padding
        self.dilation = each(name, "dilation", dilation, rank)
        self.groups = groups
        self.padding_mode: str = one_of(name, "padding_mode", padding_mode, _PAD_MODES)
        self._widths()  # raises here rather than at the first input
        first, second = (inputs, outputs) if self.TRANSPOSED else (outputs, inputs)
        bound = 1.0 / math.sqrt(second // groups * math.prod(window))
        self.weight = parameter(init.uniform((first, second // groups, *window), -bound, bound))
        self.bias = parameter(init.uniform((outputs,), -bound, bound)) if bias else None

    def _widths(self) -> tuple[tuple[int, int], ...]:
        """The padding of each axis at both ends."""
        return pairs(type(self).__name__, self.padding, self.kernel_size, self.stride, self.dilation)

    def forward(self, x: Tensor) -> FloatTensor:
        """The result, of shape ``(examples, out_channels, *spatial)``."""
        self._check(x)
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            x = rearrange.pad(x, ((0, 0), (0, 0), *self._widths()), mode=_PAD_MODES[self.padding_mode])
            padding = 0
        return functional.conv(
            x,
            self.weight,
            self.bias,
            stride=self.stride,
            padding=padding,
            dilation=self.dilation,
            groups=self.groups,
        )


class Conv1d(Convolution, rank=1):
    """A convolution over one axis."""


class Conv2d(Convolution, rank=2):
    """A convolution over two axes."""


class Conv3d(Convolution, rank=3):
    """A convolution over three axes."""


class _Transposed(Convolution):
    ABOUT = """
    The input is ``(examples, in_channels, *spatial)``, the result ``(examples, out_channels, *spatial)``, which
    ``output_padding`` lengthens; see :func:`functional.conv_transpose`. ``weight`` has the shape ``(in_channels,
    out_channels / groups, *kernel_size)``. ``padding_mode`` is ``"zeros"``. Initialization and errors are those of
    :class:`Conv1d`.

    >>> import backburn as bb
    >>> NAME(3, 2, 4, stride=2, padding=1)(bb.zeros((1, 3, <5>))).shape
    (1, 2, <10>)
    """
    TRANSPOSED = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Padding = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        padding_mode: str = "zeros",
    ) -> None:
        one_of(type(self).__name__, "padding_mode", padding_mode, ("zeros",))
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias)
        self.output_padding = each(type(self).__name__, "output_padding", output_padding, self._rank, 0)

    def forward(self, x: Tensor) -> FloatTensor:
        """The result, of shape ``(examples, out_channels, *spatial)``."""
        self._check(x)
        return functional.conv_transpose(
            x,
            self.weight,
            self.bias,
            stride=self.stride,
            padding=self.padding,
            output_padding=self.output_padding,
            dilation=self.dilation,
            groups=self.groups,
        )


class ConvTranspose1d(_Transposed, rank=1):
    """A transposed convolution over one axis."""


class ConvTranspose2d(_Transposed, rank=2):
    """A transposed convolution over two axes."""


class ConvTranspose3d(_Transposed, rank=3):
    """A transposed convolution over three axes."""
