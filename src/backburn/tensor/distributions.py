"""Random numbers by rejection sampling, and those derived from them: gamma, beta, Dirichlet, Student's t, Poisson."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backburn.base.dtypes import float64
from backburn.base.errors import ArgumentError, DTypeError, ShapeError
from backburn.ops.rules.shapes import broadcast
from backburn.tensor import creation
from backburn.tensor.core.defaults import BackendLike, given_backend
from backburn.tensor.core.dispatch import binary, call, cast, float_operand, upcast_half
from backburn.tensor.core.host import any_of
from backburn.tensor.core.levels import constant
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import bounded, shape_of
from backburn.tensor.core.wrapping import is_tensor
from backburn.tensor.generators import Generator, draw, drawn_from, float_dtype, plain_number

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, Tensor

Shape = int | tuple[int, ...]


def gamma(
    shape: Shape | None = None,
    alpha: Tensor | float = 1.0,
    scale: Tensor | float = 1.0,
    *,
    dtype: Any = None,
    backend: BackendLike = None,
    device: BackendLike = None,
    generator: Generator | None = None,
) -> FloatTensor:
    """Random numbers from the gamma distribution with shape parameter ``alpha``, times ``scale``.

    The parameters are numbers, or float tensors that broadcast with ``shape``. Without ``shape``, the result has the
    parameters' shape; its dtype is that of ``alpha`` if that is a tensor. Results too small for the dtype (most, for a
    small ``alpha``) are 0. Gradients flow to both parameters; that of ``alpha`` takes 24 integration steps (64 for
    float64). See :meth:`backburn.backend.Backend.gamma` for the method (Marsaglia and Tsang, 2000)
    and the gradient.

    Raises :class:`ArgumentError` for parameters below 0, tensors as in :func:`uniform`; where these are not checked,
    results are NaN.

        >>> import backburn as bb
        >>> bb.random.seed(0)
        >>> x = bb.random.gamma((10_000,), 3.0, 2.0)
        >>> round(x.mean().item(), 1), bb.random.gamma(alpha=bb.asarray([0.5, 9.0])).shape
        (6.0, (2,))
    """
    (a,) = _parameters("gamma", shape, given_backend(backend, device), dtype, (scale,), alpha=alpha)
    if is_tensor(scale):
        check_positive("gamma", "scale", scale)
    factor = scale if is_tensor(scale) else bounded("gamma", "scale", plain_number("gamma", scale), least=0)
    x: FloatTensor = drawn_from("gamma", a, generator)
    return x if factor.__class__ is float and factor == 1.0 else binary("mul", x, factor)


def beta(
    shape: Shape | None = None,
    a: Tensor | float = 1.0,
    b: Tensor | float = 1.0,
    *,
    dtype: Any = None,
    backend: BackendLike = None,
    device: BackendLike = None,
    generator: Generator | None = None,
) -> FloatTensor:
    """Random numbers between 0 and 1 from the beta distribution, whose mean is ``a / (a + b)``.

    They are ``x / (x + y)`` for two :func:`gamma` numbers, computed from their logarithms. Parameters, gradients and
    errors are those of :func:`gamma`.

        >>> import backburn as bb
        >>> bb.random.seed(0)
        >>> round(bb.random.beta((10_000,), 1.0, 3.0).mean().item(), 2)
        0.25
    """
    first, second = _parameters("beta", shape, given_backend(backend, device), dtype, (), a=a, b=b)
    found = first.dtype
    first, second = upcast_half(first), upcast_half(second)
    factor = _factor(call("maximum", first, second))
    x, y = (drawn_from("gamma", call("mul", z, factor), generator, log=True) for z in (first, second))
    return cast(call("sigmoid", call("sub", x, y)), found)


def dirichlet(
    alpha: Tensor,
    shape: Shape = (),
    *,
    generator: Generator | None = None,
) -> FloatTensor:
    """Random vectors, along the last axis, from the Dirichlet distribution with parameters ``alpha``; each sums to 1.

    The result has the shape ``(*shape, *alpha.shape)``, and the mean is ``alpha / sum(alpha)``. The vectors are
    :func:`gamma` numbers divided by their sum, computed from their logarithms, and have their gradients. Raises
    :class:`ShapeError` if the last axis is empty.

        >>> import backburn as bb
        >>> bb.random.seed(0)
        >>> x = bb.random.dirichlet(bb.asarray([1.0, 2.0, 5.0]), (10_000,))
        >>> x.shape, [round(mean, 2) for mean in x.mean(axis=0).tolist()]
        ((10000, 3), [0.13, 0.25, 0.62])
    """
    x = float_operand("dirichlet", parameters_first("dirichlet", "alpha", alpha))
    if not x.ndim or not x.shape[-1]:
        raise ShapeError(f"dirichlet: alpha needs a last axis with elements, not {describe((x,))}")
    check_positive("dirichlet", "alpha", x)
    wide = call("broadcast_to", upcast_half(x), shape=(*shape_of("dirichlet", shape), *x.shape))
    wide = call("mul", wide, _factor(call("max", wide, axis=(wide.ndim - 1,), keepdims=True)))
    return cast(call("softmax", drawn_from("gamma", wide, generator, log=True), axis=wide.ndim - 1), x.dtype)


def _factor(largest: Any) -> Any:
    """A factor for the parameters of shares, which scales them up where the largest of them is tiny.

    There one share is 1, and which one depends only on the ratios of the parameters; without the factor, the logarithms
    of the gamma numbers would overflow.
    """
    tiny, power = (1e-290, 200.0) if largest.dtype is float64 else (1e-30, 60.0)
    found = constant(largest)
    ones = call("add", call("mul", found, 0.0), 1.0)
    return call("where", call("less", found, tiny), 2.0**power, ones)


def student_t(
    shape: Shape | None = None,
    df: Tensor | float = 1.0,
    *,
    dtype: Any = None,
    backend: BackendLike = None,
    device: BackendLike = None,
    generator: Generator | None = None,
) -> FloatTensor:
    """Random numbers from Student's t distribution with ``df`` degrees of freedom.

    They are normal numbers divided by ``sqrt(2 * x / df)``, for a :func:`gamma` number ``x`` with shape parameter ``df
    / 2``. Parameters, gradients and errors are those of :func:`gamma`.

        >>> import backburn as bb
        >>> bb.random.seed(0)
        >>> round((bb.random.student_t((10_000,), 5.0) ** 2.0).mean().item(), 1)
        1.7
    """
    (freedom,) = _parameters("student_t", shape, given_backend(backend, device), dtype, (), df=df)
    half = binary("mul", freedom, 0.5)
    z = draw("normal", half.shape, half.dtype, half.backend, generator, shape=half.shape, dtype=half.dtype)
    x = drawn_from("gamma", half, generator)
    return binary("mul", z, call("sqrt", binary("div", half, x)))


def poisson(
    shape: Shape | None = None,
    rate: Tensor | float = 1.0,
    *,
    dtype: Any = None,
    backend: BackendLike = None,
    device: BackendLike = None,
    generator: Generator | None = None,
) -> FloatTensor:
    """Random counts from the Poisson distribution with mean ``rate``, as floats.

    ``rate`` is a number, or a float tensor that broadcasts with ``shape``; without ``shape`` the result has the shape
    of ``rate``. ``astype("int64")`` converts the counts to integers. No gradient flows to ``rate``. See
    :meth:`backburn.backend.Backend.poisson` for the method (Hoermann, 1993).

    Raises :class:`ArgumentError` for a number below 0, a tensor as in :func:`uniform`.

        >>> import backburn as bb
        >>> bb.random.seed(0)
        >>> x = bb.random.poisson((10_000,), 4.0)
        >>> round(x.mean().item(), 1), bb.random.poisson(rate=bb.asarray([0.0, 1e6])).shape
        (4.0, (2,))
    """
    (mean,) = _parameters("poisson", shape, given_backend(backend, device), dtype, (), rate=rate)
    return drawn_from("poisson", mean, generator)


def parameters_first(name: str, option: str, x: Any) -> Any:
    """``x``; raises :class:`DTypeError` if it is a shape, which comes after the tensor."""
    if isinstance(x, int | tuple | list) and not isinstance(x, bool):
        raise DTypeError(
            f"{name}: {option}, a tensor, comes first and the shape after it, {name}({option}, (2, 3)); the first "
            f"argument is {x!r:.100}"
        )
    return x


def check_positive(name: str, option: str, x: Any) -> None:
    """Raise :class:`ArgumentError` for a negative element of a parameter, where :func:`any_of` reads it."""
    if any_of(x, lambda values: values < 0):
        raise ArgumentError(f"{name}: {option} is 0 or more, and an element is negative. Operand: {describe((x,))}")


def _parameters(
    name: str, shape: Any, place: Any, dtype: Any, others: tuple[Any, ...], **given: Any
) -> list[FloatTensor]:
    """The parameters of a distribution, broadcast with ``others`` and ``shape`` to the shape of the result."""
    tensors = {option: float_operand(name, x) for option, x in given.items() if is_tensor(x)}
    shapes = [x.shape for x in (*tensors.values(), *(x for x in others if is_tensor(x)))]
    if shape is not None:
        shapes.append(shape_of(name, shape))
    whole = broadcast(*shapes)
    if place is None and tensors:
        place = next(iter(tensors.values())).backend
    found = float_dtype(name, dtype if dtype is not None or not tensors else next(iter(tensors.values())).dtype, place)
    made: list[Any] = []
    for option, x in given.items():
        if option in tensors:
            check_positive(name, option, tensors[option])
            made.append(call("broadcast_to", cast(tensors[option], found), shape=whole))
            continue
        value = bounded(name, option, plain_number(name, x), least=0)
        made.append(creation.full(whole, value, dtype=found, backend=place))
    return made
