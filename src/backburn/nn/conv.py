"""Convolutional layers."""

from __future__ import annotations

import math
from typing import ClassVar

from backburn.base.errors import ArgumentError
from backburn.nn import functional, init
from backburn.nn.linear import sizes
from backburn.nn.module import parameter
from backburn.nn.pool import Spatial
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.options import flags
from backburn.tensor.window_options import Padding, Sizes, each, pairs


class Convolution(Spatial):
    """The base class of convolutions: weights and options."""

    TRANSPOSED: ClassVar[bool] = False
    weight: FloatTensor
    bias: FloatTensor | None

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: Sizes,
        stride: Sizes = 1,
        padding: Padding = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        name = type(self).__name__
        inputs, outputs, groups = sizes(name, inputs=inputs, outputs=outputs, groups=groups)
        if inputs % groups or outputs % groups:
            raise ArgumentError(f"{name}: {inputs} inputs and {outputs} outputs do not form {groups} equal groups")
        flags(name, bias=bias)
        window = each(name, "size", size, self.RANK)
        self.size = window
        self.stride = each(name, "stride", stride, self.RANK)
        self.padding = padding
        self.dilation = each(name, "dilation", dilation, self.RANK)
        pairs(name, padding, window, self.stride, self.dilation)  # raises now rather than at the first input
        self.groups = groups
        first, second = (inputs, outputs) if self.TRANSPOSED else (outputs, inputs)
        bound = 1.0 / math.sqrt(second // groups * math.prod(window))
        self.weight = parameter(init.uniform((first, second // groups, *window), bound))
        self.bias = parameter(init.uniform((outputs,), bound)) if bias else None

    def forward(self, x: Tensor) -> FloatTensor:
        """The result, of shape ``(examples, outputs, *spatial)``."""
        self._check(x)
        return functional.conv(
            x,
            self.weight,
            self.bias,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
        )


class Conv1d(Convolution):
    """A convolution over one axis of an input (examples, inputs, places); see :func:`functional.conv`.

    ``weight`` has the shape (outputs, inputs / groups, size) and ``bias`` (outputs,); both are initialized uniformly
    between plus and minus ``1 / sqrt(inputs / groups * size)``. ``padding`` is a number, a pair for each axis,
    ``"same"`` or ``"valid"``. Raises :class:`ArgumentError` for sizes and options out of range, and when called
    :class:`ShapeError` for an input that does not fit.

    >>> import backburn as bb
    >>> Conv1d(2, 3, 4, padding="same")(bb.zeros((1, 2, 10))).shape
    (1, 3, 10)
    """

    RANK = 1


class Conv2d(Convolution):
    """A convolution over two axes of an input (examples, inputs, rows, columns), like :class:`Conv1d`.

    >>> import backburn as bb
    >>> Conv2d(1, 8, 3, stride=2, padding=1)(bb.zeros((4, 1, 28, 28))).shape
    (4, 8, 14, 14)
    """

    RANK = 2


class Conv3d(Convolution):
    """A convolution over three axes of an input ``(examples, inputs, *spatial)``, like :class:`Conv1d`.

    >>> import backburn as bb
    >>> Conv3d(1, 2, (1, 2, 3))(bb.zeros((1, 1, 4, 4, 4))).shape
    (1, 2, 4, 3, 2)
    """

    RANK = 3


class _Transposed(Convolution):
    TRANSPOSED = True

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: Sizes,
        stride: Sizes = 1,
        padding: Padding = 0,
        output_padding: Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__(inputs, outputs, size, stride, padding, dilation, groups, bias)
        self.output_padding = each(type(self).__name__, "output_padding", output_padding, self.RANK, 0)

    def forward(self, x: Tensor) -> FloatTensor:
        """The result, of shape ``(examples, outputs, *spatial)``."""
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


class ConvTranspose1d(_Transposed):
    """A transposed convolution over one axis of an input (examples, inputs, places).

    ``weight`` has the shape (inputs, outputs / groups, size), ``output_padding`` lengthens the result; see
    :func:`functional.conv_transpose`. Initialization and errors are as in :class:`Conv1d`.

    >>> import backburn as bb
    >>> ConvTranspose1d(3, 2, 4, stride=2, padding=1)(bb.zeros((1, 3, 5))).shape
    (1, 2, 10)
    """

    RANK = 1


class ConvTranspose2d(_Transposed):
    """A transposed convolution over two axes, like :class:`ConvTranspose1d`.

    >>> import backburn as bb
    >>> ConvTranspose2d(3, 2, 3, stride=2, padding=1, output_padding=1)(bb.zeros((1, 3, 4, 4))).shape
    (1, 2, 8, 8)
    """

    RANK = 2


class ConvTranspose3d(_Transposed):
    """A transposed convolution over three axes, like :class:`ConvTranspose1d`.

    >>> import backburn as bb
    >>> ConvTranspose3d(1, 1, 2)(bb.zeros((1, 1, 2, 2, 2))).shape
    (1, 1, 3, 3, 3)
    """

    RANK = 3
