"""Tensor functions: special functions of each element.

Integers become the default float; other dtypes stay. Raises :class:`DTypeError` for bool and quantized tensors. Sources
and error bounds are given in :mod:`backburn.ops.bodies.special`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backburn.base.errors import DTypeError
from backburn.tensor.core.dispatch import Scalar, binary, call, float_operand, unary
from backburn.tensor.core.methods import method
from backburn.tensor.core.options import bounded
from backburn.tensor.core.wrapping import is_tensor

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, Tensor


@method
def erf(x: Tensor, /) -> FloatTensor:
    """The error function: ``2 / sqrt(pi)`` times the integral of ``exp(-t**2)`` from 0 to ``x``.

    >>> import backburn as bb
    >>> bb.erf(bb.asarray([0.0, 0.5, float("inf")], dtype="float64"))
    Tensor([0.        , 0.52049988, 1.        ], dtype=float64, backend=autodiff(numpy))
    """
    return unary("erf", x)


@method
def erfc(x: Tensor, /) -> FloatTensor:
    """``1 - erf(x)``, with its full relative precision where it is small.

    >>> import backburn as bb
    >>> bb.erfc(bb.asarray([0.0, 5.0], dtype="float64"))
    Tensor([1.00000000e+00, 1.53745979e-12], dtype=float64, backend=autodiff(numpy))
    """
    return unary("erfc", x)


def erfcx(x: Tensor, /) -> FloatTensor:
    """``exp(x**2) * erfc(x)``, without the decay of :func:`erfc`: about ``1 / (sqrt(pi) x)`` for large ``x``.

    Infinite below -26.7 in float64, and below -9.3 in float32.

        >>> import backburn as bb
        >>> bb.erfcx(bb.asarray([0.0, 1.0, 1e30], dtype="float64"))
        Tensor([1.00000000e+00, 4.27583576e-01, 5.64189584e-31], dtype=float64, backend=autodiff(numpy))
    """
    return unary("erfcx", x)


@method
def erfinv(x: Tensor, /) -> FloatTensor:
    """The inverse of :func:`erf`; infinite at -1 and 1, NaN beyond.

    >>> import backburn as bb
    >>> bb.erfinv(bb.asarray([0.0, 0.5, 1.0], dtype="float64"))
    Tensor([0.        , 0.47693628,        inf], dtype=float64, backend=autodiff(numpy))
    """
    return unary("erfinv", x)


def ndtr(x: Tensor, /) -> FloatTensor:
    """The cumulative distribution function of the standard normal distribution, accurate where it is small.

    >>> import backburn as bb
    >>> bb.ndtr(bb.asarray([0.0, -10.0], dtype="float64"))
    Tensor([5.00000000e-01, 7.61985302e-24], dtype=float64, backend=autodiff(numpy))
    """
    return unary("ndtr", x)


def log_ndtr(x: Tensor, /) -> FloatTensor:
    """The logarithm of :func:`ndtr`, without underflow. Its first four derivatives are accurate far to the left, too.

    >>> import backburn as bb
    >>> bb.log_ndtr(bb.asarray([0.0, -100.0], dtype="float64"))
    Tensor([-6.93147181e-01, -5.00552421e+03], dtype=float64, backend=autodiff(numpy))
    """
    return unary("log_ndtr", x)


def ndtri(x: Tensor, /) -> FloatTensor:
    """The inverse of :func:`ndtr`; infinite at 0 and 1, NaN beyond.

    >>> import backburn as bb
    >>> bb.ndtri(bb.asarray([0.5, 0.975, 1e-300, 1.0], dtype="float64"))
    Tensor([  0.        ,   1.95996398, -37.0470963 ,          inf], dtype=float64, backend=autodiff(numpy))
    """
    return unary("ndtri", x)


@method
def lgamma(x: Tensor, /) -> FloatTensor:
    """The logarithm of the absolute value of the gamma function; infinite at 0, -1, -2, ...

    Above -1/2 all digits but the last are correct, also near the zeros at 1 and 2. Below -1/2, where there are zeros
    between the integers (-2.457, -2.748, -3.143, ...), it is a difference of terms as large as ``lgamma(-x)``: the
    error is a few rounding units of these, so fewer digits are correct near a zero.

        >>> import backburn as bb
        >>> bb.lgamma(bb.asarray([0.0, 5.0], dtype="float64"))
        Tensor([       inf, 3.17805383], dtype=float64, backend=autodiff(numpy))
    """
    return unary("lgamma", x)


@method
def digamma(x: Tensor, /) -> FloatTensor:
    """The derivative of :func:`lgamma`; NaN at -1, -2, ...

    Above 0 all digits but the last are correct, also near the zero at 1.4616. Below, where there is a zero between
    neighbouring integers (-0.504, -1.573, -2.611, ...), it is a difference of larger terms: the error is a few rounding
    units of these, so fewer digits are correct near a zero.

        >>> import backburn as bb
        >>> bb.digamma(bb.asarray([1.0, 10.0], dtype="float64"))
        Tensor([-0.57721566,  2.25175259], dtype=float64, backend=autodiff(numpy))
    """
    return unary("digamma", x)


@method
def polygamma(x: Tensor, /, n: int = 1) -> FloatTensor:
    """The derivative of order ``n``, from 0 to 10, of :func:`digamma`: for 0 itself, for 1 the trigamma function.

    The tensor is the first argument, which is the order ``n`` in other libraries. Raises :class:`ArgumentError` for
    another ``n``.

        >>> import backburn as bb
        >>> bb.polygamma(bb.asarray([1.0, 2.0], dtype="float64"))
        Tensor([1.64493407, 0.64493407], dtype=float64, backend=autodiff(numpy))
    """
    if isinstance(x, int) and is_tensor(n):
        raise DTypeError(f"polygamma: the tensor comes first, then the order: bb.polygamma(x, {x})")
    if n.__class__ is int and n == 0:
        return call("digamma", float_operand("polygamma", x))
    return call("polygamma", float_operand("polygamma", x), n=n)


@method
def sinc(x: Tensor, /) -> FloatTensor:
    """``sin(pi x) / (pi x)``, and 1 at 0.

    >>> import backburn as bb
    >>> bb.sinc(bb.asarray([0.0, 0.5], dtype="float64"))
    Tensor([1.        , 0.63661977], dtype=float64, backend=autodiff(numpy))
    """
    return unary("sinc", x)


@method
def i0(x: Tensor, /) -> FloatTensor:
    """The modified Bessel function of the first kind and order 0.

    >>> import backburn as bb
    >>> bb.i0(bb.asarray([0.0, 1.0], dtype="float64"))
    Tensor([1.        , 1.26606588], dtype=float64, backend=autodiff(numpy))
    """
    return unary("i0", x)


@method
def i1(x: Tensor, /) -> FloatTensor:
    """The modified Bessel function of the first kind and order 1.

    >>> import backburn as bb
    >>> bb.i1(bb.asarray([0.0, 1.0], dtype="float64"))
    Tensor([0.       , 0.5651591], dtype=float64, backend=autodiff(numpy))
    """
    return unary("i1", x)


def i0e(x: Tensor, /) -> FloatTensor:
    """``exp(-|x|) * i0(x)``, which does not overflow. The derivative at 0, where there is a corner, is 0.

    >>> import backburn as bb
    >>> bb.i0e(bb.asarray([0.0, 1.0, 1000.0], dtype="float64"))
    Tensor([1.        , 0.46575961, 0.01261724], dtype=float64, backend=autodiff(numpy))
    """
    return unary("i0e", x)


def i1e(x: Tensor, /) -> FloatTensor:
    """``exp(-|x|) * i1(x)``, which does not overflow.

    >>> import backburn as bb
    >>> bb.i1e(bb.asarray([0.0, 1.0, 1000.0], dtype="float64"))
    Tensor([0.        , 0.20791042, 0.01261093], dtype=float64, backend=autodiff(numpy))
    """
    return unary("i1e", x)


# ---- logarithms ----


@method
def xlogy(x: Tensor | Scalar, y: Tensor | Scalar, /) -> FloatTensor:
    """``x * log(y)``, and 0 where ``x`` is 0 and ``y`` is not NaN.

    Both derivatives are 0 where ``x`` is 0 and the logarithm has no finite value, so that a probability of 0 does no
    harm.

        >>> import backburn as bb
        >>> bb.xlogy(bb.asarray([0.0, 0.0, 2.0]), bb.asarray([0.0, float("nan"), 1.0])).tolist()
        [0.0, nan, 0.0]
    """
    return binary("xlogy", x, y)


def xlog1py(x: Tensor | Scalar, y: Tensor | Scalar, /) -> FloatTensor:
    """``x * log(1 + y)``, accurate for small ``y``, and 0 where ``x`` is 0 and ``y`` is not NaN.

    Both derivatives are 0 where ``x`` is 0 and the logarithm has no finite value.

        >>> import backburn as bb
        >>> bb.xlog1py(bb.asarray([0.0, 2.0], dtype="float64"), bb.asarray([-1.0, 1e-20], dtype="float64")).tolist()
        [0.0, 2e-20]
    """
    return binary("xlog1py", x, y)


def entr(x: Tensor, /) -> FloatTensor:
    """``-x * log(x)``, the term of an entropy: 0 at 0, where the derivative is infinite, and -inf below.

    >>> import backburn as bb
    >>> bb.entr(bb.asarray([0.0, 1.0, -1.0])).tolist(), bb.entr(bb.asarray([0.5, 0.5], dtype="float64")).sum().item()
    ([0.0, 0.0, -inf], 0.6931471805599453)
    """
    return unary("entr", x)


@method
def logit(x: Tensor, /, eps: float | None = None) -> FloatTensor:
    """``log(x / (1 - x))``, the inverse of :func:`sigmoid`; infinite at 0 and 1, NaN beyond.

    With ``eps``, from 0 to 1/2, ``x`` is first limited to the range from ``eps`` to ``1 - eps``, outside of which the
    gradient is 0. Raises :class:`ArgumentError` for another ``eps``.

        >>> import backburn as bb
        >>> bb.logit(bb.asarray([0.0, 0.5, 0.75], dtype="float64"))
        Tensor([      -inf, 0.        , 1.09861229], dtype=float64, backend=autodiff(numpy))
        >>> bb.logit(bb.asarray([0.0, 1.0], dtype="float64"), eps=0.25)
        Tensor([-1.09861229,  1.09861229], dtype=float64, backend=autodiff(numpy))
    """
    if eps is None:
        return unary("logit", x)
    y, least = float_operand("logit", x), bounded("logit", "eps", eps, least=0.0, most=0.5, of=(x,))
    return call("logit", call("clip", y, least, 1.0 - least))
