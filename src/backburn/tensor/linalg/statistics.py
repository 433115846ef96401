"""Tensor functions: outer, cross and Kronecker products, convolutions, powers, pairwise distances, and covariance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backburn.base.errors import ArgumentError, AxisError, ShapeError
from backburn.tensor.complex_numbers import conj
from backburn.tensor.core.dispatch import (
    call,
    cast,
    create,
    float_operand,
    kind_operand,
    promote_operands,
    tensor_operand,
    upcast_half,
)
from backburn.tensor.core.host import has_negative
from backburn.tensor.core.integers import has_wide_integers, in_float64
from backburn.tensor.core.levels import constant
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import flags, integer, number, one_of
from backburn.tensor.reduce import _to_accumulator, mean, sum, vector_norm
from backburn.tensor.shape import expand_dims

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, Tensor


def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The outer product of two vectors. Raises :class:`ShapeError` for other ranks.

    >>> import backburn as bb
    >>> bb.linalg.outer(bb.asarray([1, 2]), bb.asarray([3, 4, 5])).tolist()
    [[3, 4, 5], [6, 8, 10]]
    """
    x, y = promote_operands("mul", tensor_operand("outer", x1), tensor_operand("outer", x2))
    if x.ndim != 1 or y.ndim != 1:
        raise ShapeError(f"outer: takes two vectors. Operands: {describe((x1, x2))}")
    return call("mul", call("reshape", x, shape=(x.size, 1)), y)


def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The cross product of vectors of three elements along ``axis``; other axes broadcast.

    A negative ``axis`` counts from the end in both. Raises :class:`ShapeError` unless there are three elements and
    :class:`AxisError` for an axis out of range.

        >>> import backburn as bb
        >>> bb.linalg.cross(bb.asarray([1, 0, 0]), bb.asarray([0, 1, 0])).tolist()
        [0, 0, 1]
    """
    x, y = promote_operands("mul", tensor_operand("cross", x1), tensor_operand("cross", x2))
    axis = integer("cross", "axis", axis)
    if not -min(x.ndim, y.ndim) <= axis < (x.ndim if x.ndim == y.ndim else 0):
        raise AxisError(
            f"cross: axis {axis} is not an axis of both operands; with different ranks it is negative. "
            f"Operands: {describe((x1, x2))}"
        )
    axis = axis if axis < 0 else axis - x.ndim
    if x.shape[axis] != 3 or y.shape[axis] != 3:
        raise ShapeError(f"cross: axis {axis} has three elements in both. Operands: {describe((x1, x2))}")

    def turned(t: Any, by: int) -> Any:
        return call("roll", t, shift=(by,), axis=(t.ndim + axis,))

    first = call("mul", turned(x, -1), turned(y, -2))
    return call("sub", first, call("mul", turned(x, -2), turned(y, -1)))


def cdist(x1: Tensor, x2: Tensor, /, *, ord: float = 2.0, method: str = "auto") -> FloatTensor:
    """The distances between all rows of ``x1`` (..., n, d) and all rows of ``x2`` (..., m, d), of shape (..., n, m).

    They are vector norms of order ``ord``; leading axes broadcast. ``method`` says how those of order 2 are computed.
    ``"products"`` takes ``sqrt(x1 @ x1 - 2 * x1 @ x2 + x2 @ x2)`` after subtracting the mean of ``x2`` from all rows:
    this needs little memory, but distances that are small compared with those from the mean lose digits.
    ``"differences"`` computes norms of the ``n * m`` differences; ``"auto"`` does so for up to 25 rows of each. Other
    orders always take differences. The gradient of a distance of 0 is 0.

    Raises :class:`ShapeError` for rows of different lengths, and :class:`ArgumentError` for ``"products"`` with another
    order.

        >>> import backburn as bb
        >>> bb.linalg.cdist(bb.asarray([[0.0, 0.0], [3.0, 0.0]]), bb.asarray([[0.0, 4.0]])).tolist()
        [[4.0], [5.0]]
    """
    if has_wide_integers(x1, x2):
        return in_float64(cdist, x1, x2, ord=ord, method=method)
    x, y = promote_operands("sub", float_operand("cdist", x1), float_operand("cdist", x2))
    if x.ndim < 2 or y.ndim < 2 or x.shape[-1] != y.shape[-1]:
        raise ShapeError(f"cdist: takes rows of one length, [..., n, d], [..., m, d]. Operands: {describe((x1, x2))}")
    order = number("cdist", "ord", ord, of=(x1, x2))
    how = one_of("cdist", "method", method, ("auto", "products", "differences"), of=(x1, x2))
    if how == "products" and order != 2.0:
        raise ArgumentError(f"cdist: products give distances of order 2, not {ord!r}. Operands: {describe((x1, x2))}")
    few = x.shape[-2] <= 25 and y.shape[-2] <= 25
    if how == "differences" or (how == "auto" and (few or order != 2.0)):
        return vector_norm(expand_dims(x, -2) - expand_dims(y, -3), axis=-1, ord=order)
    dtype = x.dtype
    x, y = upcast_half(x), upcast_half(y)
    if y.shape[-2]:
        middle = constant(mean(y, axis=-2, keepdims=True))
        x, y = x - middle, y - middle
    squares = [sum(z * z, axis=-1) for z in (x, y)]
    found = expand_dims(squares[0], -1) + expand_dims(squares[1], -2) - 2.0 * (x @ y.mT)
    apart = found > 0.0
    return cast(call("where", apart, call("sqrt", call("where", apart, found, 1.0)), 0.0), dtype)


def kron(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The Kronecker product: each element of ``x1`` times all of ``x2``, as blocks along every axis.

    The operand with fewer axes is given leading axes of length 1.

        >>> import backburn as bb
        >>> bb.kron(bb.asarray([[1, 2]]), bb.asarray([[1, 1], [0, 1]])).tolist()
        [[1, 1, 2, 2], [0, 1, 0, 2]]
    """
    x, y = promote_operands("mul", tensor_operand("kron", x1), tensor_operand("kron", x2))
    rank = max(x.ndim, y.ndim)
    blocks, inner = ((1,) * (rank - t.ndim) + t.shape for t in (x, y))
    left = call("reshape", x, shape=tuple(n for length in blocks for n in (length, 1)))
    right = call("reshape", y, shape=tuple(n for length in inner for n in (1, length)))
    shape = tuple(a * b for a, b in zip(blocks, inner, strict=True))
    return call("reshape", call("mul", left, right), shape=shape)


def convolve(x1: Tensor, x2: Tensor, /, mode: str = "full") -> Tensor:
    """The convolution of two vectors: ``out[k]`` is the sum of ``x1[i] * x2[k - i]``, the product of two polynomials.

    With lengths n and m, n the larger, ``mode="full"`` gives all n + m - 1 elements, ``"same"`` the n in the middle,
    and ``"valid"`` the n - m + 1 that use the whole shorter vector. The dtype is the promoted one.
    ``bb.nn.functional.conv`` takes batches and channels. The longer vector is padded with zeros, so that, unlike in
    NumPy, an infinite element of the shorter one gives NaN beyond the ends. Raises :class:`ShapeError` unless both are
    vectors with elements, :class:`ArgumentError` for another ``mode``, :class:`DTypeError` for bool and quantized
    tensors.

        >>> import backburn as bb
        >>> x, y = bb.asarray([1, 2, 3]), bb.asarray([1, 10])
        >>> bb.convolve(x, y).tolist(), bb.convolve(x, y, mode="valid").tolist()
        ([1, 12, 23, 30], [12, 23])
    """
    x, y, mode = _vectors("convolve", x1, x2, mode)
    if x.size < y.size:
        x, y = y, x
    return _sliding_product(x, call("flip", y, axis=(0,)), mode)


def correlate(x1: Tensor, x2: Tensor, /, mode: str = "valid") -> Tensor:
    """The cross-correlation of two vectors: ``out[k]`` is the sum of ``x1[k + i] * conj(x2[i])``, for shifts ``k``.

    ``mode`` selects shifts as in :func:`convolve`; ``"full"`` begins at ``k = 1 - x2.size``. If ``x2`` is the longer
    one, the result is that of the swapped vectors, reversed. Dtype and errors are those of :func:`convolve`.

        >>> import backburn as bb
        >>> x, y = bb.asarray([1, 2, 3]), bb.asarray([1, 10])
        >>> bb.correlate(x, y).tolist(), bb.correlate(x, y, mode="full").tolist()
        ([21, 32], [10, 21, 32, 3])
    """
    x, y, mode = _vectors("correlate", x1, x2, mode)
    y = conj(y)
    return _sliding_product(x, y, mode) if x.size >= y.size else call("flip", _sliding_product(y, x, mode), axis=(0,))


def _vectors(name: str, x1: Any, x2: Any, mode: str) -> tuple[Any, Any, str]:
    """Two vectors in their common dtype, and the mode."""
    x, y = promote_operands(name, tensor_operand(name, x1), tensor_operand(name, x2), kinds="FCI")
    if x.ndim != 1 or y.ndim != 1 or not x.size or not y.size:
        raise ShapeError(f"{name}: takes two vectors that have elements. Operands: {describe((x1, x2))}")
    return x, y, one_of(name, "mode", mode, ("full", "same", "valid"), of=(x1, x2))


def _sliding_product(x: Any, weights: Any, mode: str) -> Any:
    """The dot products of ``weights`` with the windows of ``x``, which is not shorter."""
    size = weights.size
    before, after = {"full": (size - 1, size - 1), "same": (size // 2, (size - 1) // 2), "valid": (0, 0)}[mode]
    zero = 0 if x.dtype.kind == "int" else 0.0
    padded = call("pad", x, widths=((before, after),), mode="constant", value=zero) if before else x
    return call("matmul", call("sliding_window", padded, axis=(0,), size=(size,), stride=(1,), dilation=(1,)), weights)


def vander(x: Tensor, /, n: int | None = None, increasing: bool = False) -> Tensor:
    """The Vandermonde matrix of a vector: a row of ``n`` powers of each element, n - 1 to 0, or ``increasing``.

    By default, ``n`` is the length of ``x``. The dtype is that of :func:`cumulative_prod`. Raises :class:`ShapeError`
    for other than one axis, :class:`ArgumentError` for an ``n`` that is not an integer of at least 0.

        >>> import backburn as bb
        >>> bb.vander(bb.asarray([2, 3]), 3).tolist(), bb.vander(bb.asarray([2, 3]), 3, increasing=True).tolist()
        ([[4, 2, 1], [9, 3, 1]], [[1, 2, 4], [1, 3, 9]])
    """
    y = _to_accumulator("vander", x, None)
    if y.ndim != 1:
        raise ShapeError(f"vander: takes a vector. Operand: {describe((x,))}")
    count = y.size if n is None else integer("vander", "n", n, least=0)
    flags("vander", increasing=increasing)
    factors = call("broadcast_to", call("reshape", y, shape=(y.size, 1)), shape=(y.size, max(count - 1, 0)))
    ones = create("ones", y.backend, shape=(y.size, min(count, 1)), dtype=y.dtype)
    powers = call("cumulative_prod", call("concat", [ones, factors], axis=1), axis=1)
    return powers if increasing else call("flip", powers, axis=(1,))


def cov(
    x: Tensor, /, *, correction: float = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> FloatTensor:
    """The covariance matrix of the rows of a matrix, whose columns are observations; the variance of a vector.

    The sums of products are divided by the number of observations minus ``correction``. ``fweights`` are integer
    frequencies of the observations, ``aweights`` their relative importance, which take part in promotion. For a vector,
    or a matrix of one row, the result is 0-d. 16-bit floats are computed in float32. Raises :class:`ShapeError` for
    more than two axes and for weights that do not fit, and :class:`ArgumentError` for negative weights, which are read
    on the host.

        >>> import backburn as bb
        >>> bb.cov(bb.asarray([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])).tolist()
        [[1.0, -1.0], [-1.0, 1.0]]
    """
    if has_wide_integers(x):
        return in_float64(lambda x, w: cov(x, correction=correction, fweights=fweights, aweights=w), x, aweights)
    given = float_operand("cov", x)
    if fweights is not None:
        kind_operand("cov", fweights, "I")
    if aweights is not None:
        given, aweights = promote_operands("cov", given, kind_operand("cov", aweights, "FI"), kinds="F")
    y: Any = upcast_half(given)
    if y.ndim not in (1, 2):
        raise ShapeError(f"cov: takes a vector or a matrix of observations. Operand: {describe((x,))}")
    if y.shape[:-1] == (1,):
        y = call("reshape", y, shape=y.shape[1:])
    number("cov", "correction", correction)
    last = (y.ndim - 1,)
    count: Any = float(y.shape[-1])
    weights = _weights(y, fweights, aweights)
    if weights is None:
        freedom = max(count - correction, 0.0)
        centred = call("sub", y, call("mean", y, axis=last, keepdims=True))
        weighted = centred
    else:
        count = call("sum", weights, axis=(0,))
        mean = call("div", call("sum", call("mul", y, weights), axis=last, keepdims=True), count)
        centred = call("sub", y, mean)
        weighted = call("mul", centred, weights)
        lost: Any = float(correction)
        if aweights is not None:
            own = cast(aweights, y.dtype)
            lost = call("mul", call("div", call("sum", call("mul", weights, own), axis=(0,)), count), lost)
        freedom = call("clip", call("sub", count, lost), 0.0, None)
    if y.ndim == 1:
        products = call("sum", call("mul", weighted, centred), axis=(0,))
    else:
        products = call("matmul", weighted, call("permute_dims", centred, axes=(1, 0)))
    return cast(call("div", products, freedom), given.dtype)


def _weights(x: Any, *weights: Tensor | None) -> Any:
    """The product of the given weights, in the dtype of ``x``; None if none is given."""
    result = None
    for weight in weights:
        if weight is None:
            continue
        if weight.shape != x.shape[-1:]:
            raise ShapeError(f"cov: each observation needs a weight. Operands: {describe((x, weight))}")
        if has_negative(weight):
            raise ArgumentError(f"cov: weights are 0 or more, and one is negative. Operands: {describe((x, weight))}")
        one = cast(weight, x.dtype)
        result = one if result is None else call("mul", result, one)
    return result


def corrcoef(x: Tensor, /) -> FloatTensor:
    """The correlation matrix of the rows of a matrix, between -1 and 1; NaN for a row without variance.

    >>> import backburn as bb
    >>> bb.corrcoef(bb.asarray([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    if has_wide_integers(x):
        return in_float64(corrcoef, x)
    given = float_operand("corrcoef", x)
    if given.ndim not in (1, 2):
        raise ShapeError(f"corrcoef: takes a vector or a matrix of observations. Operand: {describe((x,))}")
    products = cov(upcast_half(given))
    if products.ndim == 0:
        return cast(call("div", products, products), given.dtype)
    spread = call("sqrt", call("diagonal", products, offset=0, axis1=0, axis2=1))
    column = call("reshape", spread, shape=(*spread.shape, 1))
    found = call("clip", call("div", call("div", products, column), spread), -1.0, 1.0)
    return cast(found, given.dtype)
