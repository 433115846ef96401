"""Dropout, flattening and padding as modules without parameters."""

from __future__ import annotations

from collections.abc import Sequence

from backburn.base.errors import ShapeError
from backburn.nn import functional
from backburn.nn.module import Module
from backburn.tensor import moving, shape
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.dispatch import tensor_operand
from backburn.tensor.messages import describe
from backburn.tensor.options import axis_of, integers_of, one_of


class Dropout(Module):
    """In training mode, each element is set to 0 with probability ``p`` and divided by ``1 - p`` otherwise.

    The mode is that of :meth:`Module.train`, whatever the backend. After Srivastava et al. (2014). Raises
    :class:`ArgumentError` unless ``0 <= p <= 1``.

    >>> import backburn as bb
    >>> Dropout(0.5).eval()(bb.asarray([1.0, 2.0], backend="numpy"))
    Tensor([1., 2.], dtype=float32, backend=numpy)
    """

    def __init__(self, p: float = 0.5) -> None:
        functional.check_probability("Dropout", p)
        self.p = p

    def forward(self, x: Tensor) -> FloatTensor:
        """The elements that were not dropped."""
        return functional.dropout(x, self.p, training=self.training)


class AlphaDropout(Module):
    """:class:`Dropout` for SELU, which keeps mean and variance; see :func:`functional.alpha_dropout`.

    >>> import backburn as bb
    >>> AlphaDropout(0.5).eval()(bb.asarray([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """

    def __init__(self, p: float = 0.5) -> None:
        functional.check_probability("AlphaDropout", p)
        self.p = p

    def forward(self, x: Tensor) -> FloatTensor:
        """The input with elements replaced as in :func:`functional.alpha_dropout`."""
        return functional.alpha_dropout(x, self.p, training=self.training)


class Flatten(Module):
    """Merges all axes from ``start`` on into one."""

    def __init__(self, start: int = 1) -> None:
        self.start = start

    def forward(self, x: Tensor) -> Tensor:
        """The same elements in the same order."""
        return functional.flatten(x, start=self.start)


class Unflatten(Module):
    """Splits the axis ``axis`` into axes of the lengths ``shape``, one of which may be -1 and is then inferred.

    Raises :class:`ShapeError` if the product of the lengths is not that of the axis.

    >>> import backburn as bb
    >>> Unflatten(1, (2, -1))(bb.zeros((5, 6))).shape
    (5, 2, 3)
    """

    def __init__(self, axis: int, shape: tuple[int, ...]) -> None:
        self.axis = axis
        self.shape = integers_of("Unflatten", "shape", shape)

    def forward(self, x: Tensor) -> Tensor:
        """The same elements in the same order."""
        axis = axis_of("Unflatten", tensor_operand("Unflatten", x), self.axis)
        return shape.reshape(x, (*x.shape[:axis], *self.shape, *x.shape[axis + 1 :]))


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
        self.mode = one_of("Pad", "mode", mode, moving.MODES)
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        """The padded input."""
        tensor_operand("Pad", x)
        places = x.ndim - 2
        if places < 1:
            raise ShapeError(f"Pad: the input has the shape (examples, channels, *spatial), not {describe((x,))}")
        widths = [(0, 0), (0, 0), *moving.ends_of("Pad", self.widths, places)]
        return moving.pad(x, widths, mode=self.mode, value=self.value)
