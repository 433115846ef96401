"""Tensor functions: comparisons, predicates, boolean logic and bitwise operations.

Operands broadcast and are promoted to one dtype; Python scalars are weakly typed. Functions raise :class:`ShapeError`
for shapes that do not broadcast, :class:`DTypeError` for kinds of tensors that they do not support, and
:class:`BackendMismatchError` for operands on different backends. No gradient flows through booleans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backburn.tensor.arithmetic import abs, add, multiply, subtract
from backburn.tensor.core.dispatch import Number, Scalar, binary, call, promote_operands, tensor_operand
from backburn.tensor.core.host import asarray
from backburn.tensor.core.integers import has_wide_integers, in_float64
from backburn.tensor.core.methods import method
from backburn.tensor.core.options import bounded
from backburn.tensor.core.types import T
from backburn.tensor.core.wrapping import is_tensor

if TYPE_CHECKING:
    from backburn.tensor.classes import BoolTensor, FloatTensor, IntTensor, Tensor


# ---- comparisons ----


def equal(x: Tensor | Number, y: Tensor | Number, /) -> BoolTensor:
    """``x == y``, of numbers or booleans; False where either is NaN.

    >>> import backburn as bb
    >>> bb.equal(bb.asarray([1, 2, 3]), 2).tolist()
    [False, True, False]
    """
    return binary("equal", x, y)


def not_equal(x: Tensor | Number, y: Tensor | Number, /) -> BoolTensor:
    """``x != y``, of numbers or booleans; True where either is NaN.

    >>> import backburn as bb
    >>> bb.not_equal(bb.asarray([1.0, float("nan")]), bb.asarray([1.0, float("nan")])).tolist()
    [False, True]
    """
    return binary("not_equal", x, y)


def less(x: Tensor | Scalar, y: Tensor | Scalar, /) -> BoolTensor:
    """``x < y``; False where either is NaN.

    >>> import backburn as bb
    >>> bb.less(bb.asarray([1, 2, 3]), 2).tolist()
    [True, False, False]
    """
    return binary("less", x, y)


def less_equal(x: Tensor | Scalar, y: Tensor | Scalar, /) -> BoolTensor:
    """``x <= y``; False where either is NaN.

    >>> import backburn as bb
    >>> bb.less_equal(bb.asarray([1, 2, 3]), 2).tolist()
    [True, True, False]
    """
    return binary("less_equal", x, y)


def greater(x: Tensor | Scalar, y: Tensor | Scalar, /) -> BoolTensor:
    """``x > y``; False where either is NaN.

    >>> import backburn as bb
    >>> bb.greater(bb.asarray([1, 2, 3]), 2).tolist()
    [False, False, True]
    """
    return binary("greater", x, y)


def greater_equal(x: Tensor | Scalar, y: Tensor | Scalar, /) -> BoolTensor:
    """``x >= y``; False where either is NaN.

    >>> import backburn as bb
    >>> bb.greater_equal(bb.asarray([1, 2, 3]), 2).tolist()
    [False, True, True]
    """
    return binary("greater_equal", x, y)


@method
def isclose(
    x: Tensor | Number, y: Tensor | Number, /, *, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> BoolTensor:
    """Whether ``|x - y| <= atol + rtol * |y|``; infinities are close to themselves, NaN to NaN with ``equal_nan``.

    Raises :class:`ArgumentError` for a negative tolerance.

        >>> import backburn as bb
        >>> bb.isclose(bb.asarray([1.0, 1.0, float("inf")]), bb.asarray([1.000001, 1.1, float("inf")])).tolist()
        [True, False, True]
    """
    if has_wide_integers(x, y):
        return in_float64(isclose, x, y, rtol=rtol, atol=atol, equal_nan=equal_nan)
    _check_tolerances("isclose", rtol, atol)
    a, b = promote_operands("isclose", x, y, kinds="FC")
    a = a if is_tensor(a) else asarray(a, dtype=b.dtype, backend=b.backend)
    b = b if is_tensor(b) else asarray(b, dtype=a.dtype, backend=a.backend)
    near = less_equal(abs(subtract(a, b)), add(multiply(abs(b), rtol), atol))
    result = logical_or(equal(a, b), logical_and(near, isfinite(b)))
    return logical_or(result, logical_and(isnan(a), isnan(b))) if equal_nan else result


@method
def allclose(
    x: Tensor | Number, y: Tensor | Number, /, *, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Whether all elements are close, in the sense of :func:`isclose`; a Python bool.

    >>> import backburn as bb
    >>> bb.allclose(bb.asarray([1.0, 2.0]), bb.asarray([1.0, 2.000001]))
    True
    """
    _check_tolerances("allclose", rtol, atol)
    close: Any = isclose(x, y, rtol=rtol, atol=atol, equal_nan=equal_nan)
    return bool(call("all", close, axis=tuple(range(close.ndim)), keepdims=False))


def _check_tolerances(name: str, rtol: Any, atol: Any) -> None:
    for option, value in (("rtol", rtol), ("atol", atol)):
        if not is_tensor(value):
            bounded(name, option, value, least=0)


# ---- predicates ----


def _predicate(name: str, x: Any, of_others: str) -> Any:
    """A predicate of floats; for other numbers, which are always finite, ``of_others`` compares ``x`` with itself."""
    if tensor_operand(name, x).dtype.kind in ("int", "bool"):
        return call(of_others, x, x)
    return call(name, *promote_operands(name, x))


@method
def isnan(x: Tensor, /) -> BoolTensor:
    """Whether ``x`` is NaN.

    >>> import backburn as bb
    >>> bb.isnan(bb.asarray([1.0, float("nan")])).tolist()
    [False, True]
    """
    return _predicate("isnan", x, "not_equal")


@method
def isinf(x: Tensor, /) -> BoolTensor:
    """Whether ``x`` is infinite, of either sign.

    >>> import backburn as bb
    >>> bb.isinf(bb.asarray([1.0, -float("inf")])).tolist()
    [False, True]
    """
    return _predicate("isinf", x, "not_equal")


@method
def isfinite(x: Tensor, /) -> BoolTensor:
    """Whether ``x`` is neither infinite nor NaN.

    >>> import backburn as bb
    >>> bb.isfinite(bb.asarray([1.0, float("inf"), float("nan")])).tolist()
    [True, False, False]
    """
    return _predicate("isfinite", x, "equal")


@method
def signbit(x: Tensor, /) -> BoolTensor:
    """Whether ``x`` is negative, -0.0 included; unspecified for NaN.

    >>> import backburn as bb
    >>> bb.signbit(bb.asarray([1.0, -0.0])).tolist()
    [False, True]
    """
    return call("signbit", *promote_operands("signbit", x))


@method
def copysign(x: Tensor | Scalar, y: Tensor | Scalar, /) -> FloatTensor:
    """``|x|`` with the sign of ``y``, also that of -0.0; integers become the default float.

    The derivative for ``x`` is 0 at 0, that for ``y`` is 0.

        >>> import backburn as bb
        >>> bb.copysign(bb.asarray([1.0, -2.0]), -0.0).tolist()
        [-1.0, -2.0]
    """
    return binary("copysign", x, y)


@method
def nextafter(x: Tensor | Scalar, y: Tensor | Scalar, /) -> FloatTensor:
    """The next representable number after ``x`` towards ``y``; ``y`` where both are equal.

    The derivative for ``x`` is 1, that for ``y`` is 0.

        >>> import backburn as bb
        >>> (bb.nextafter(bb.asarray([1.0]), 2.0) - 1).tolist() == [2.0**-23]
        True
    """
    return binary("nextafter", x, y)


# ---- booleans ----


@method
def logical_and(x: Tensor | bool, y: Tensor | bool, /) -> BoolTensor:
    """Whether both booleans are true. Raises :class:`DTypeError` for tensors of numbers.

    >>> import backburn as bb
    >>> bb.logical_and(bb.asarray([True, False]), True).tolist()
    [True, False]
    """
    return call("logical_and", *promote_operands("logical_and", x, y))


@method
def logical_or(x: Tensor | bool, y: Tensor | bool, /) -> BoolTensor:
    """Whether either boolean is true. Raises :class:`DTypeError` for tensors of numbers.

    >>> import backburn as bb
    >>> bb.logical_or(bb.asarray([True, False]), bb.asarray([False, False])).tolist()
    [True, False]
    """
    return call("logical_or", *promote_operands("logical_or", x, y))


@method
def logical_xor(x: Tensor | bool, y: Tensor | bool, /) -> BoolTensor:
    """Whether exactly one boolean is true. Raises :class:`DTypeError` for tensors of numbers.

    >>> import backburn as bb
    >>> bb.logical_xor(bb.asarray([True, False]), True).tolist()
    [False, True]
    """
    return call("logical_xor", *promote_operands("logical_xor", x, y))


@method
def logical_not(x: Tensor, /) -> BoolTensor:
    """The negated boolean. Raises :class:`DTypeError` for tensors of numbers.

    >>> import backburn as bb
    >>> bb.logical_not(bb.asarray([True, False])).tolist()
    [False, True]
    """
    return call("logical_not", *promote_operands("logical_not", x))


# ---- bits ----


def _bits(name: str, x: Any, y: Any) -> Any:
    """A bitwise operation on integers; on booleans, the logical operation of the same name."""
    operands = promote_operands(f"bitwise_{name}", x, y, kinds="IB")
    kind = next(t.dtype.kind for t in operands if is_tensor(t))
    return call(f"logical_{name}" if kind == "bool" else f"bitwise_{name}", *operands)


def bitwise_and(x: Tensor | int, y: Tensor | int, /) -> Tensor:
    """The bits set in both integers; of booleans, logical and.

    >>> import backburn as bb
    >>> bb.bitwise_and(bb.asarray([6, 5]), 3).tolist()
    [2, 1]
    """
    return _bits("and", x, y)


def bitwise_or(x: Tensor | int, y: Tensor | int, /) -> Tensor:
    """The bits set in either integer; of booleans, logical or.

    >>> import backburn as bb
    >>> bb.bitwise_or(bb.asarray([6, 5]), 3).tolist()
    [7, 7]
    """
    return _bits("or", x, y)


def bitwise_xor(x: Tensor | int, y: Tensor | int, /) -> Tensor:
    """The bits set in exactly one integer; of booleans, exclusive or.

    >>> import backburn as bb
    >>> bb.bitwise_xor(bb.asarray([6, 5]), 3).tolist()
    [5, 6]
    """
    return _bits("xor", x, y)


def bitwise_invert(x: T, /) -> T:
    """All bits flipped, which is ``-x - 1`` for signed integers; of booleans, the negation.

    >>> import backburn as bb
    >>> bb.bitwise_invert(bb.asarray([0, 5])).tolist()
    [-1, -6]
    """
    (x,) = promote_operands("bitwise_invert", x, kinds="IB")
    return call("logical_not" if x.dtype.kind == "bool" else "bitwise_invert", x)


def bitwise_left_shift(x: Tensor | int, y: Tensor | int, /) -> IntTensor:
    """``x`` with its bits shifted left by ``y``, filled with zeros; ``0 <= y < bits``.

    >>> import backburn as bb
    >>> bb.bitwise_left_shift(bb.asarray([1, -3]), 2).tolist()
    [4, -12]
    """
    return call("bitwise_left_shift", *promote_operands("bitwise_left_shift", x, y))


def bitwise_right_shift(x: Tensor | int, y: Tensor | int, /) -> IntTensor:
    """``floor(x / 2**y)``: the bits shifted right, filled with the sign bit; ``0 <= y < bits``.

    >>> import backburn as bb
    >>> bb.bitwise_right_shift(bb.asarray([5, -5]), 1).tolist()
    [2, -3]
    """
    return call("bitwise_right_shift", *promote_operands("bitwise_right_shift", x, y))
