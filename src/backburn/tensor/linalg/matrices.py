"""Tensor functions: determinants, powers and norms of matrices; see :mod:`backburn.tensor.linalg.decompositions`."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from backburn.base.dtypes import complex128, float64
from backburn.base.errors import AxisError
from backburn.tensor.arithmetic import maximum
from backburn.tensor.core.dispatch import call, cast, create, kind_operand, upcast_half
from backburn.tensor.core.host import largest_value
from backburn.tensor.core.integers import has_wide_integers, in_float64
from backburn.tensor.core.levels import constant
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import axes_of, integer, integers_of, one_of
from backburn.tensor.linalg.decompositions import check_square, matrices, svdvals
from backburn.tensor.linalg.solve import inv, solve
from backburn.tensor.reduce import max, sum, vector_norm
from backburn.tensor.shape import expand_dims, moveaxis

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, Tensor


class SlogdetResult(NamedTuple):
    """``sign * exp(logabsdet)`` is the determinant."""

    sign: FloatTensor
    logabsdet: FloatTensor


def det(x: Tensor, /) -> FloatTensor:
    """The determinant; its gradient is correct for singular matrices too.

    >>> import backburn as bb
    >>> bb.linalg.det(bb.asarray([[2.0, 0.0], [0.0, 4.0]])).item()
    8.0
    """
    if has_wide_integers(x):
        return in_float64(det, x)
    return call("det", matrices("det", x))


def slogdet(x: Tensor, /) -> SlogdetResult:
    """The sign of the determinant and the logarithm of its absolute value, which does not overflow.

    For a singular matrix they are 0 and -inf, and the gradient is NaN.

        >>> import backburn as bb
        >>> sign, logarithm = bb.linalg.slogdet(bb.asarray([[0.0, 1.0], [1.0, 0.0]]))
        >>> sign.item(), logarithm.item()
        (-1.0, 0.0)
    """
    if has_wide_integers(x):
        return in_float64(slogdet, x)
    return SlogdetResult(*call("slogdet", matrices("slogdet", x)))


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """The matrix power ``x @ x @ ...`` with ``n`` factors.

    A negative ``n`` gives a power of the inverse, and 0 the identity matrix. Raises :class:`ArgumentError` if ``n`` is
    not an integer.

        >>> import backburn as bb
        >>> bb.linalg.matrix_power(bb.asarray([[1, 1], [0, 1]]), 5).tolist()
        [[1, 5], [0, 1]]
    """
    base, n = kind_operand("matrix_power", x, "FCI"), integer("matrix_power", "n", n)
    matrices("matrix_power", x)
    check_square("matrix_power", base)
    if n == 0:
        unit = create("eye", base.backend, n=base.shape[-1], m=base.shape[-1], offset=0, dtype=base.dtype)
        return call("broadcast_to", unit, shape=base.shape)
    if n < 0:
        base, n = inv(base), -n
    result = None
    while n:
        if n % 2:
            result = base if result is None else call("matmul", result, base)
        n //= 2
        base = call("matmul", base, base) if n else base
    return result  # type: ignore[return-value]


def matrix_exp(x: Tensor, /, *, max_squarings: int = 16) -> FloatTensor:
    """The matrix exponential: the limit of ``I + x + x @ x / 2 + x @ x @ x / 6 + ...``.

    Computed by scaling and squaring: a Padé approximation of ``x / 2**s``, of degree 7 (13 in float64), is squared
    ``s`` times (Higham, "The scaling and squaring method for the matrix exponential revisited", 2005). ``s`` follows
    from the norms of the fourth and the sixth power of ``x`` (Al-Mohy and Higham, "A new scaling and squaring algorithm
    for the matrix exponential", 2009). On a device and in a recorded step, which do not read ``s``, ``max_squarings``
    squarings are computed for every norm; where more are needed (by default for a norm above 260,000, or 350,000 in
    float64), the result is NaN.

    Raises :class:`ShapeError` for matrices that are not square.

        >>> import backburn as bb
        >>> bb.linalg.matrix_exp(bb.asarray([[0.0, -bb.pi], [bb.pi, 0.0]])).numpy().round(4) + 0.0
        array([[-1.,  0.],
               [ 0., -1.]], dtype=float32)
    """
    if has_wide_integers(x):
        return in_float64(matrix_exp, x, max_squarings=max_squarings)
    y = matrices("matrix_exp", x)
    check_square("matrix_exp", y)
    most = integer("matrix_exp", "max_squarings", max_squarings, least=0)
    if 0 in y.shape:
        return y
    a: Any = upcast_half(y)
    theta, numbers = (5.371920351148152, PADE_13) if a.dtype in (float64, complex128) else (3.925724783138660, PADE_7)
    # Divided by a power of two near the largest element, so that no power of the matrix overflows.
    largest = _largest(abs(constant(a)))
    finite = call("isfinite", largest)
    top = call("exp2", call("floor", call("log2", call("where", finite & (largest > 0.0), largest, 1.0))))
    a = call("where", finite, a, 0.0) / top
    square = a @ a
    fourth = square @ square
    powers = [square, fourth, fourth @ square]
    norms = [_largest(sum(abs(constant(p)), axis=-2, keepdims=True)) for p in powers[1:]]
    size = maximum(norms[0] ** 0.25, norms[1] ** (1.0 / 6.0))
    exponent = call("log2", top) + call("log2", call("where", size > 0.0, size, 1.0) / theta)
    times = maximum(call("ceil", call("where", size > 0.0, exponent, 0.0)), 0.0)
    needed = largest_value(times)
    fits = finite if needed is not None else finite & (times <= most)
    most = most if needed is None else int(needed)
    times = call("where", fits, times, 0.0)
    half = call("floor", times * 0.5)  # in two factors, since 2**-times alone may underflow
    factor = (top * call("exp2", -half)) * call("exp2", half - times)
    factor = call("where", fits, factor, 0.0)
    scaled = a * factor
    for i, power in enumerate(powers):
        for _ in range(2 * i + 2):  # one factor at a time, since its power may overflow
            power = power * factor
        powers[i] = power
    unit = create("eye", a.backend, n=a.shape[-1], m=a.shape[-1], offset=0, dtype=a.dtype)
    odd, even = _pade(scaled, [unit, *powers], numbers)
    result: Any = solve(even - odd, even + odd)
    for i in range(most):
        result = call("where", times > i, result @ result, result)
    return cast(call("where", fits, result, math.nan), y.dtype)


def _largest(x: Any) -> Any:
    """The largest element of each matrix, with both axes kept."""
    return max(max(x, axis=-2, keepdims=True), axis=-1, keepdims=True)


#: The coefficients of the numerators, beginning with that of the identity matrix.
PADE_7 = (17297280.0, 8648640.0, 1995840.0, 277200.0, 25200.0, 1512.0, 56.0, 1.0)
PADE_13 = (
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0, 129060195264000.0,
    10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0, 40840800.0, 960960.0, 16380.0, 182.0, 1.0,
)  # fmt: skip


def _pade(a: Any, powers: list[Any], b: tuple[float, ...]) -> tuple[Any, Any]:
    """The odd and the even part of the numerator, from even powers of ``a``; degree 13 takes three products."""

    def part(first: int, last: int) -> Any:
        return reduce(operator.add, (powers[i] * b[first + 2 * i] for i in range((last - first) // 2 + 1)))

    if len(b) == 8:
        return a @ part(1, 7), part(0, 6)
    high = [powers[3] @ reduce(operator.add, (powers[i] * b[6 + j + 2 * i] for i in (1, 2, 3))) for j in (0, 1)]
    return a @ (high[1] + part(1, 7)), high[0] + part(0, 6)


def matrix_norm(
    x: Tensor, /, *, axis: Sequence[int] = (-2, -1), keepdims: bool = False, ord: float | str = "fro"
) -> FloatTensor:
    """A norm of the matrices whose rows and columns lie along the two axes ``axis``.

    ``ord`` is ``"fro"`` (the root of the sum of squares), ``"nuc"`` (the sum of the singular values), 2 or -2 (the
    largest or smallest singular value), 1 or -1 (the largest or smallest column sum of absolute values), inf or -inf
    (the same of rows). A maximum over no elements is 0. The gradient at a zero matrix is 0. Raises
    :class:`ArgumentError` for any other ``ord``, and :class:`AxisError` unless there are two axes.

        >>> import backburn as bb
        >>> x = bb.asarray([[3.0, 0.0], [0.0, -4.0]])
        >>> bb.linalg.matrix_norm(x).item(), bb.linalg.matrix_norm(x, ord="nuc").item()
        (5.0, 7.0)
    """
    if has_wide_integers(x):
        return in_float64(matrix_norm, x, axis=axis, keepdims=keepdims, ord=ord)
    y = matrices("matrix_norm", x)
    pair = integers_of("matrix_norm", "axis", axis)
    if pair != (-2, -1):
        if len(pair) != 2:
            raise AxisError(f"matrix_norm: axis is a pair, rows and columns, not {axis!r}. Operand: {describe((x,))}")
        axes_of("matrix_norm", y, pair)
        y = moveaxis(y, pair, (-2, -1))
    rows, columns = y.ndim - 2, y.ndim - 1

    def largest(norms: Any, axis: int) -> Any:
        return call("max" if norms.shape[axis] else "sum", norms, axis=(axis,), keepdims=True)

    def sums(axis: int) -> Any:
        return call("sum", abs(y), axis=(axis,), keepdims=True)

    def values() -> Any:
        """The singular values; constants for a zero matrix, whose arbitrary vectors would give them a gradient."""
        some = call("any", call("not_equal", y, 0.0), axis=(rows, columns), keepdims=True)
        return svdvals(call("where", some, y, 0.0))

    norms: dict[Any, Callable[[], Any]] = {
        "fro": lambda: vector_norm(y, axis=(rows, columns), keepdims=True),
        "nuc": lambda: call("sum", values(), axis=(rows,)),
        2: lambda: largest(values(), rows),
        -2: lambda: call("min", values(), axis=(rows,)),
        1: lambda: largest(sums(rows), columns),
        -1: lambda: call("min", sums(rows), axis=(columns,)),
        math.inf: lambda: largest(sums(columns), rows),
        -math.inf: lambda: call("min", sums(columns), axis=(rows,)),
    }
    one_of("matrix_norm", "ord", ord, norms, of=(x,))
    result = call("reshape", norms[ord](), shape=y.shape[:-2])
    return expand_dims(result, [a % y.ndim for a in pair]) if keepdims else result
