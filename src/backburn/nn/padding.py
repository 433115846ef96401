"""Dropout, flattening and padding as modules without parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backburn.base.errors import ShapeError
from backburn.nn import functional
from backburn.nn.module import Module
from backburn.nn.spatial import Spatial
from backburn.tensor import creation, rearrange, shape
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.core.dispatch import tensor_operand
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import axis_of, integers_of, one_of


class _Dropout(Module):
    def __init__(self, p: float = 0.5) -> None:
        functional.check_probability(type(self).__name__, p)
        self.p = p


class Dropout(_Dropout):
    """Sets each element to 0 with probability ``p``, or divides it by ``1 - p``, in training mode.

    The mode is that of :meth:`Module.train`, whatever the backend. After Srivastava et al. (2014). Raises
    :class:`ArgumentError` unless ``0 <= p <= 1``.

    >>> import backburn as bb
    >>> Dropout(0.5).eval()(bb.asarray([1.0, 2.0], backend="numpy"))
    Tensor([1., 2.], dtype=float32, backend=numpy)
    """

    def forward(self, x: Tensor) -> FloatTensor:
        """The elements that were not dropped."""
        return functional.dropout(x, self.p, training=self.training)


class _ChannelDropout(_Dropout, Spatial):
    ABOUT = """
    In training mode, each channel of each example ``(examples, channels, *spatial)`` is set to 0 with probability ``p``
    and divided by ``1 - p`` otherwise. After Tompson et al. (2015). Raises :class:`ArgumentError` unless ``0 <= p <=
    1``.

    >>> import backburn as bb
    >>> y = NAME(0.5)(bb.ones((5, 3, <4>)))
    >>> y.shape, set(y.flatten().tolist()) <= {0.0, 2.0}
    ((5, 3, <4>), True)
    """

    def forward(self, x: Tensor) -> FloatTensor:
        """The channels that were not dropped."""
        self._check(x)
        if not self.training or self.p == 0:
            return functional.dropout(x, self.p, training=False)
        ones: Any = creation.ones((*x.shape[:2], *(1,) * (x.ndim - 2)), dtype=x.dtype, backend=x.backend)
        result: Any = x * functional.dropout(ones, self.p)
        return result


class Dropout1d(_ChannelDropout, rank=1):
    """Dropout of whole channels with one spatial axis."""


class Dropout2d(_ChannelDropout, rank=2):
    """Dropout of whole channels with two spatial axes."""


class Dropout3d(_ChannelDropout, rank=3):
    """Dropout of whole channels with three spatial axes."""


class AlphaDropout(_Dropout):
    """:class:`Dropout` for SELU, which keeps mean and variance; see :func:`functional.alpha_dropout`.

    >>> import backburn as bb
    >>> AlphaDropout(0.5).eval()(bb.asarray([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """

    def forward(self, x: Tensor) -> FloatTensor:
        """The input with elements replaced as in :func:`functional.alpha_dropout`."""
        return functional.alpha_dropout(x, self.p, training=self.training)


class Flatten(Module):
    """Merges the axes from ``start_axis`` to ``end_axis`` (inclusive) into one.

    >>> import backburn as bb
    >>> Flatten()(bb.zeros((2, 3, 4))).shape, Flatten(0, 1)(bb.zeros((2, 3, 4))).shape
    ((2, 12), (6, 4))
    """

    def __init__(self, start_axis: int = 1, end_axis: int = -1) -> None:
        self.start_axis = start_axis
        self.end_axis = end_axis

    def forward(self, x: Tensor) -> Tensor:
        """The elements in their order. Raises :class:`AxisError` if there is no such axis."""
        return shape.flatten(x, self.start_axis, self.end_axis)


class Unflatten(Module):
    """Splits the axis ``axis`` into axes of the lengths ``unflattened_size``.

    One length may be -1, and is then inferred. Raises :class:`ShapeError` if the product of the lengths is not the
    length of the axis.

    >>> import backburn as bb
    >>> Unflatten(1, (2, -1))(bb.zeros((5, 6))).shape
    (5, 2, 3)
    """

    def __init__(self, axis: int, unflattened_size: tuple[int, ...]) -> None:
        self.axis = axis
        self.unflattened_size = integers_of("Unflatten", "unflattened_size", unflattened_size)

    def forward(self, x: Tensor) -> Tensor:
        """The elements in their order."""
        axis = axis_of("Unflatten", tensor_operand("Unflatten", x), self.axis)
        return shape.reshape(x, (*x.shape[:axis], *self.unflattened_size, *x.shape[axis + 1 :]))


class Pad(Module):
    """The input ``(examples, channels, *spatial)`` padded at the ends of its spatial axes; see :func:`backburn.pad`.

    ``widths`` is one number for all ends, ``(before, after)`` for all spatial axes, or such a pair for each of them;
    ``mode`` is ``"constant"`` (``value``), ``"reflect"``, ``"symmetric"``, ``"edge"`` or ``"wrap"``. Raises
    :class:`ShapeError` for an input without spatial axes.

    >>> import backburn as bb
    >>> Pad(1)(bb.asarray([[[5.0, 6.0]]])).tolist(), Pad((0, 2), mode="edge")(bb.asarray([[[5.0, 6.0]]])).tolist()
    ([[[0.0, 5.0, 6.0, 0.0]]], [[[5.0, 6.0, 6.0, 6.0]]])
    """

    def __init__(
        self, widths: int | Sequence[int] | Sequence[Sequence[int]], mode: str = "constant", value: float = 0.0
    ) -> None:
        self.widths = widths
        self.mode = one_of("Pad", "mode", mode, rearrange._MODES)
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        """The padded input."""
        tensor_operand("Pad", x)
        places = x.ndim - 2
        if places < 1:
            raise ShapeError(f"Pad: the input has the shape (examples, channels, *spatial), not {describe((x,))}")
        widths = [(0, 0), (0, 0), *rearrange._pad_ends("Pad", self.widths, places)]
        return rearrange.pad(x, widths, mode=self.mode, value=self.value)
