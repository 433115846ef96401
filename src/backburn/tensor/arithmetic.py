"""Tensor functions: arithmetic on each element.

Operands broadcast and are promoted to one dtype; Python numbers are weakly typed. Functions raise :class:`ShapeError`
for shapes that do not broadcast, :class:`DTypeError` for kinds of tensors that they do not support (such as bool and
quantized tensors), and :class:`BackendMismatchError` for operands on different backends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from backburn.base.errors import ArgumentError
from backburn.tensor.core.dispatch import (
    Number,
    Scalar,
    binary,
    call,
    create,
    is_plain_float,
    promote_operands,
    tensor_operand,
    unary,
)
from backburn.tensor.core.integers import beyond, has_wide_integers, in_float64
from backburn.tensor.core.messages import describe
from backburn.tensor.core.methods import method
from backburn.tensor.core.types import T
from backburn.tensor.core.wrapping import is_tensor

if TYPE_CHECKING:
    from backburn.tensor.classes import ComplexTensor, FloatTensor, Tensor


def add(x: Tensor | Number, y: Tensor | Number, /) -> Tensor:
    """``x + y``.

    >>> import backburn as bb
    >>> bb.add(bb.asarray([1, 2]), 0.5)
    Tensor([1.5, 2.5], dtype=float32, backend=autodiff(numpy))
    """
    return binary("add", x, y)


def subtract(x: Tensor | Number, y: Tensor | Number, /) -> Tensor:
    """``x - y``.

    >>> import backburn as bb
    >>> bb.subtract(3, bb.asarray([1, 2])).tolist()
    [2, 1]
    """
    return binary("sub", x, y)


def multiply(x: Tensor | Number, y: Tensor | Number, /) -> Tensor:
    """``x * y``.

    >>> import backburn as bb
    >>> bb.multiply(bb.asarray([[1], [2]]), bb.asarray([3, 4])).tolist()
    [[3, 4], [6, 8]]
    """
    return binary("mul", x, y)


def divide(x: Tensor | Number, y: Tensor | Number, /) -> FloatTensor:
    """``x / y``; integers become the default float. A zero divisor gives an infinity or NaN.

    >>> import backburn as bb
    >>> bb.divide(bb.asarray([1, -1, 0]), 0).tolist()
    [inf, -inf, nan]
    """
    return binary("div", x, y)


def floor_divide(x: Tensor | Scalar, y: Tensor | Scalar, /) -> Tensor:
    """The largest integral value not above ``x / y``. The derivative is 0.

    Divided by 0, integers give 0, as in NumPy but without a warning, and floats an infinity or NaN.

        >>> import backburn as bb
        >>> bb.floor_divide(bb.asarray([7, -7]), 2).tolist(), (bb.asarray([7]) // 0).tolist()
        ([3, -4], [0])
    """
    return binary("floor_divide", x, y)


def remainder(x: Tensor | Scalar, y: Tensor | Scalar, /) -> Tensor:
    """``x - floor(x / y) * y``, which has the sign of ``y``.

    Divided by 0, integers give 0, as in NumPy but without a warning, and floats NaN.

        >>> import backburn as bb
        >>> bb.remainder(bb.asarray([7, -7]), 3).tolist(), (bb.asarray([7]) % 0).tolist()
        ([1, 2], [0])
    """
    return binary("remainder", x, y)


@method
def fmod(x: Tensor | Scalar, y: Tensor | Scalar, /) -> Tensor:
    """The remainder of truncated division, with the sign of ``x``; an integer zero divisor gives 0.

    >>> import backburn as bb
    >>> bb.fmod(bb.asarray([7, -7]), 3).tolist()
    [1, -1]
    """
    return binary("fmod", x, y)


def divmod(x: Tensor | Scalar, y: Tensor | Scalar, /) -> tuple[Tensor, Tensor]:
    """:func:`floor_divide` and :func:`remainder`.

    >>> import backburn as bb
    >>> quotient, rest = bb.divmod(bb.asarray([7, -7]), 2)
    >>> quotient.tolist(), rest.tolist()
    ([3, -4], [1, 1])
    """
    return floor_divide(x, y), remainder(x, y)


def negative(x: T, /) -> T:
    """``-x``; unsigned integers wrap around.

    >>> import backburn as bb
    >>> bb.negative(bb.asarray([1.0, -2.0])).tolist()
    [-1.0, 2.0]
    """
    return unary("neg", x)


def positive(x: T, /) -> T:
    """``+x``, which is ``x`` itself.

    >>> import backburn as bb
    >>> bb.positive(bb.asarray([1, -2])).tolist()
    [1, -2]
    """
    return tensor_operand("positive", x)


@overload
def abs(x: ComplexTensor, /) -> FloatTensor: ...
@overload
def abs(x: T, /) -> T: ...
@method
def abs(x: Tensor, /) -> Tensor:
    """``|x|``; the derivative at 0 is 0. For complex numbers a float tensor, without intermediate overflow.

    >>> import backburn as bb
    >>> bb.abs(bb.asarray([-1, 2])).tolist(), bb.abs(bb.asarray([3 - 4j])).tolist()
    ([1, 2], [5.0])
    """
    return unary("abs", x)


@method
def sign(x: T, /) -> T:
    """-1, 0 or 1 with the sign of ``x``; NaN stays NaN. The derivative is 0.

    For complex numbers it is ``x / |x|``, and 0 at 0; the derivative is not 0.

    >>> import backburn as bb
    >>> bb.sign(bb.asarray([-2.5, 0.0, 4.0])).tolist()
    [-1.0, 0.0, 1.0]
    """
    return unary("sign", x)


def heaviside(x: Tensor | Scalar, y: Tensor | Scalar, /) -> FloatTensor:
    """0 where ``x`` is negative, ``y`` where it is 0, and 1 where it is positive; NaN stays NaN.

    Integers become the default float. The derivative for ``x`` is 0; that for ``y`` is 1 where ``x`` is 0.

        >>> import backburn as bb
        >>> bb.heaviside(bb.asarray([-2.5, 0.0, 4.0]), 0.5).tolist()
        [0.0, 0.5, 1.0]
    """
    edge, value = promote_operands("heaviside", x, y, kinds="F")
    if not is_tensor(edge):
        edge = create("full", value.backend, shape=(), value=edge, dtype=value.dtype)
    return call("where", call("equal", edge, 0.0), value, call("clip", call("sign", edge), 0.0, 1.0))


@method
def square(x: T, /) -> T:
    """``x * x``.

    >>> import backburn as bb
    >>> bb.square(bb.asarray([-3, 2])).tolist()
    [9, 4]
    """
    return unary("square", x)


@method
def reciprocal(x: Tensor, /) -> FloatTensor:
    """``1 / x``; integers become the default float.

    >>> import backburn as bb
    >>> bb.reciprocal(bb.asarray([2, -4])).tolist()
    [0.5, -0.25]
    """
    return unary("reciprocal", x)


@method
def maximum(x: Tensor | Scalar, y: Tensor | Scalar, /) -> Tensor:
    """The larger of both; NaN if either is. The gradient of a tie is shared equally.

    >>> import backburn as bb
    >>> bb.maximum(bb.asarray([1.0, 5.0, float("nan")]), 3.0).tolist()
    [3.0, 5.0, nan]
    """
    return binary("maximum", x, y)


@method
def minimum(x: Tensor | Scalar, y: Tensor | Scalar, /) -> Tensor:
    """The smaller of both; NaN if either is. The gradient of a tie is shared equally.

    >>> import backburn as bb
    >>> bb.minimum(bb.asarray([1, 5]), bb.asarray([4, 4])).tolist()
    [1, 4]
    """
    return binary("minimum", x, y)


@method
def fmax(x: Tensor | Scalar, y: Tensor | Scalar, /) -> Tensor:
    """The larger of both, or the one that is not NaN. The gradient of a tie is shared equally.

    >>> import backburn as bb
    >>> bb.fmax(bb.asarray([1.0, 5.0, float("nan")]), 3.0).tolist()
    [3.0, 5.0, 3.0]
    """
    return binary("fmax", x, y)


@method
def fmin(x: Tensor | Scalar, y: Tensor | Scalar, /) -> Tensor:
    """The smaller of both, or the one that is not NaN. The gradient of a tie is shared equally.

    >>> import backburn as bb
    >>> bb.fmin(bb.asarray([1.0, 5.0, float("nan")]), 3.0).tolist()
    [1.0, 3.0, 3.0]
    """
    return binary("fmin", x, y)


@method
def clip(x: Tensor, /, min: Tensor | Scalar | None = None, max: Tensor | Scalar | None = None) -> Tensor:
    """``x`` with its values limited to the range from ``min`` to ``max``; None sets no bound.

    The bounds broadcast and take part in promotion; where they cross, ``max`` wins. NaN stays NaN. The gradient goes to
    ``x`` within the bounds, ends included, and to the bound outside.

        >>> import backburn as bb
        >>> x = bb.asarray([-2.0, 0.5, 2.0]).require_grad()
        >>> y = bb.clip(x, -1.0, 2.0)
        >>> y.tolist(), x.grad(y.backward()).tolist()
        ([-1.0, 0.5, 2.0], [0.0, 1.0, 1.0])
    """
    if min.__class__ is max.__class__ is float and is_plain_float(x):
        return call("clip", x, min, max)
    # A bound that no element can reach is dropped.
    min, max = None if beyond(x, min) < 0 else min, None if beyond(x, max) > 0 else max
    operands = promote_operands("clip", tensor_operand("clip", x), *[b for b in (min, max) if b is not None])
    for place, bound in ((1, min), (2, max)):
        if bound is None:
            operands.insert(place, None)
    return call("clip", *operands)


@method
def lerp(x: Tensor | Number, y: Tensor | Number, /, weight: Tensor | Number) -> FloatTensor:
    """``(1 - weight) * x + weight * y``: exactly ``x`` at weight 0 and ``y`` at weight 1.

    At least one of ``x`` and ``y`` must be a tensor.

        >>> import backburn as bb
        >>> bb.lerp(bb.asarray([0.0, 10.0]), 20.0, 0.25).tolist()
        [5.0, 12.5]
    """
    if has_wide_integers(x, y, weight):
        return in_float64(lerp, x, y, weight)
    if not is_tensor(x) and not is_tensor(y):
        raise ArgumentError(
            f"lerp: x or y must be a tensor. bb.asarray(...) makes one. Operands: {describe((x, y, weight))}"
        )
    return call("lerp", *promote_operands("lerp", x, y, weight))
