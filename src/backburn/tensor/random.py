"""Random tensors, and the state of their generators.

A :class:`Generator` is a key and an offset in the key's stream of random words; a draw reads the next words and
advances the offset. Equal states give equal numbers on every backend (see :mod:`backburn.ops.random`), and the
numbers drawn depend only on the state, the distribution, shape and dtype.

Functions draw from their ``generator`` or from the current one: that of the process, which takes its key from the
operating system until :func:`seed` is called, or that of the innermost :func:`fork`. All take ``backend`` (or
``device``, its name in the Array API). Draws are constants; if ``mean``, ``std``, ``low``, ``high`` or ``scale`` are
tensors, gradients flow to them (the reparametrization trick).

    >>> import backburn as bb
    >>> bb.random.seed(7)
    >>> x = bb.random.normal((2, 3))
    >>> bb.random.seed(7)
    >>> (x == bb.random.normal((2, 3))).all().item()
    True
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

from backburn.base.dtypes import ComplexDType, IntDType, as_dtype, int64
from backburn.base.errors import ArgumentError, BackendMismatchError, DTypeError, ShapeError
from backburn.hints import lookups
from backburn.hints.arguments import explained
from backburn.ops.random import check_range, dropout_scale
from backburn.tensor.core.complex_numbers import check_supported
from backburn.tensor.core.defaults import BackendLike, as_backend, given_backend
from backburn.tensor.core.dispatch import (
    Number,
    as_scalar,
    binary,
    call,
    create,
    float_operand,
    kind_operand,
    upcast_half,
)
from backburn.tensor.core.host import any_of
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import axis_of, flags, integer, shape_of
from backburn.tensor.core.wrapping import is_tensor
from backburn.tensor.distributions import beta, dirichlet, gamma, parameters_first, poisson, student_t
from backburn.tensor.generators import (
    Generator,
    default_generator,
    draw,
    drawn_from,
    float_dtype,
    fork,
    get_state,
    plain_number,
    seed,
    set_state,
)
from backburn.tensor.inspection import finfo
from backburn.tensor.sort import topk

if TYPE_CHECKING:
    from backburn.tensor.classes import BoolTensor, FloatTensor, IntTensor, Tensor

T = TypeVar("T", bound="Tensor")
Shape = int | tuple[int, ...]


@explained
def uniform(
    shape: Shape = (),
    *,
    low: Tensor | float = 0.0,
    high: Tensor | float = 1.0,
    dtype: Any = None,
    backend: BackendLike = None,
    device: BackendLike = None,
    generator: Generator | None = None,
) -> FloatTensor:
    """Uniform numbers from ``low`` up to but excluding ``high`` (which rounding may reach unless they are 0 and 1).

    With numbers for ``low`` and ``high`` the result has ``shape``; tensors broadcast with it. Raises
    :class:`ArgumentError` if ``low`` is above ``high``, and for a range whose width the dtype does not hold. Tensors
    are checked only on the CPU and outside of recorded steps: a check would have to wait for a device.

        >>> import backburn as bb
        >>> x = bb.random.uniform((100,), low=-1.0, high=2.0)
        >>> ((x >= -1.0) & (x <= 2.0)).all().item()
        True
    """
    where = as_backend(given_backend(backend, device))
    found, lengths = float_dtype("uniform", dtype, where), shape_of("uniform", shape)
    x = draw("uniform", lengths, found, where, generator, shape=lengths, dtype=found)
    if is_tensor(low) or is_tensor(high):
        above: Any = binary("greater", low, high)
        if any_of(above, lambda values: values):
            raise ArgumentError(f"uniform: low is above high somewhere. Operands: {describe((low, high))}")
        return binary("add", binary("mul", x, binary("sub", high, low)), low)
    first, last = plain_number("uniform", low), plain_number("uniform", high)
    if first > last:
        raise ArgumentError(f"uniform: low is at most high, and they are {first} and {last}")
    if first != 0.0 or last != 1.0:
        if not last - first <= finfo(found).max:
            raise ArgumentError(f"uniform: {first} to {last} is wider than the largest number of {found}")
        x = binary("mul", x, last - first)  # a name for each step would keep three arrays at once
        x = binary("add", x, first)
    return x


@explained
def normal(
    shape: Shape = (),
    *,
    mean: Tensor | Number = 0.0,
    std: Tensor | float = 1.0,
    dtype: Any = None,
    backend: BackendLike = None,
    device: BackendLike = None,
    generator: Generator | None = None,
) -> FloatTensor:
    """Normally distributed numbers with the given mean and standard deviation.

    With numbers for ``mean`` and ``std`` the result has ``shape``; tensors broadcast with it. Complex numbers, whose
    ``mean`` may be complex, have real parts of half the variance, drawn first, and independent imaginary parts with the
    other half. Raises :class:`ArgumentError` for a negative ``std``, a tensor as in :func:`uniform`.

        >>> import backburn as bb
        >>> bb.random.normal((2, 3), std=0.1, dtype=bb.float64).dtype
        float64
    """
    where = as_backend(given_backend(backend, device))
    if dtype is not None and isinstance(asked := as_dtype(dtype), ComplexDType):
        return _complex_normal(shape, mean, std, asked, where, generator)
    found, lengths = float_dtype("normal", dtype, where), shape_of("normal", shape)
    centre = mean if is_tensor(mean) else plain_number("normal", mean)
    spread = std if is_tensor(std) else plain_number("normal", std)
    if not is_tensor(spread) and spread < 0.0:
        raise ArgumentError(f"normal: std is a number of at least 0, not {std!r}")
    if is_tensor(spread) and any_of(spread, lambda values: values < 0):
        raise ArgumentError(f"normal: std is 0 or more, and an element is negative. Operand: {describe((spread,))}")
    x = draw("normal", lengths, found, where, generator, shape=lengths, dtype=found)
    if is_tensor(spread) or spread != 1.0:
        x = binary("mul", x, spread)
    if is_tensor(centre) or centre != 0.0:
        x = binary("add", x, centre)
    return x


def _complex_normal(shape: Shape, mean: Any, std: Any, dtype: ComplexDType, where: Any, generator: Any) -> Any:
    """Complex numbers, of two draws."""
    check_supported("normal", where, dtype)
    half = math.sqrt(0.5)
    spread = binary("mul", std, half) if is_tensor(std) else plain_number("normal", std) * half
    draws = [normal(shape, std=spread, dtype=dtype.part, backend=where, generator=generator) for _ in range(2)]
    x = call("complex", *draws)
    return binary("add", x, mean) if is_tensor(mean) or mean != 0 else x


@explained
def integers(
    shape: Shape = (),
    low: int = 0,
    high: int | None = None,
    *,
    dtype: Any = None,
    backend: BackendLike = None,
    device: BackendLike = None,
    generator: Generator | None = None,
) -> IntTensor:
    """Uniformly distributed integers from ``low`` up to but excluding ``high``; with ``low`` alone, from 0 up to it.

    The shape is the first argument. The dtype is int64 unless another int ``dtype`` is given. Raises
    :class:`ArgumentError` if the range is empty or the dtype does not hold it, and for ``integers(0, n)``, whose shape
    has no elements: NumPy's ``integers(0, n)`` is ``integers((), 0, n)`` here.

        >>> import backburn as bb
        >>> dice = bb.random.integers((5,), 1, 7)
        >>> ((dice >= 1) & (dice <= 6)).all().item()
        True
    """
    found = int64 if dtype is None else as_dtype(dtype)
    if not isinstance(found, IntDType):
        raise DTypeError(f"integers: draws integers, not {found}; bb.random.uniform and normal draw floats")
    if high is None and low.__class__ is int and low == 0:
        one = f"; integers((), {shape}) is one integer below {shape}" if shape.__class__ is int and shape else ""
        raise ArgumentError(f"integers: the shape comes first, then the bound: integers({shape!r}, n){one}")
    if shape.__class__ is int and shape == 0 and high is None:
        raise ArgumentError(
            f"integers: the shape comes first, and this one has no elements: integers((), 0, {low!r}) is one integer, "
            f"integers((0,), {low!r}) is none"
        )
    lengths = shape_of("integers", shape)
    first, last = (0, low) if high is None else (low, high)
    bounds = [as_scalar(n) for n in (first, last)]
    if not all(type(n) is int for n in bounds):
        raise DTypeError(f"integers: the bounds are integers, not {first!r} and {last!r}")
    try:
        check_range(first, last, found)
    except ArgumentError as error:
        raise ArgumentError(f"integers: {error}") from None
    where = given_backend(backend, device)
    return draw("integers", lengths, found, where, generator, shape=lengths, low=bounds[0], high=bounds[1], dtype=found)


def bernoulli(
    shape: Shape | None = None,
    p: Tensor | float = 0.5,
    *,
    backend: BackendLike = None,
    device: BackendLike = None,
    generator: Generator | None = None,
) -> BoolTensor:
    """Booleans that are true with probability ``p``, a number or a float tensor that broadcasts to ``shape``.

    Without ``shape``, the shape is that of ``p``. Raises :class:`ArgumentError` for a number outside ``[0, 1]``;
    tensors are checked as in :func:`uniform`.

        >>> import backburn as bb
        >>> bb.random.bernoulli((3,), 1.0).tolist(), bb.random.bernoulli(p=bb.asarray([0.0, 1.0])).tolist()
        ([True, True, True], [False, True])
    """
    where = given_backend(backend, device)
    if is_tensor(p):
        chances = upcast_half(float_operand("bernoulli", p))  # 16-bit floats from 0 to 1 are too coarse
        if any_of(chances, lambda values: ~((values >= 0) & (values <= 1))):
            words = "probabilities lie between 0 and 1, and an element does not"
            raise ArgumentError(f"bernoulli: {words}. Operand: {describe((p,))}")
        lengths = chances.shape if shape is None else shape_of("bernoulli", shape)
        place = chances.backend if where is None else where
        x = draw("uniform", lengths, chances.dtype, place, generator, shape=lengths, dtype=chances.dtype)
        return binary("less", x, chances)
    lengths = shape_of("bernoulli", () if shape is None else shape)
    chance = plain_number("bernoulli", p)
    if not 0.0 <= chance <= 1.0:
        raise ArgumentError(f"bernoulli: a probability lies between 0 and 1, and this is {chance}")
    return draw("bernoulli", lengths, int64, where, generator, shape=lengths, p=chance)


def permutation(
    x: int | Tensor,
    /,
    *,
    axis: int = 0,
    backend: BackendLike = None,
    device: BackendLike = None,
    generator: Generator | None = None,
) -> Tensor:
    """The numbers from 0 to ``x - 1``, or the entries of a tensor along ``axis``, in random order.

    The numbers are on ``backend``; a tensor stays on its backend, and another ``backend`` raises
    :class:`BackendMismatchError`.

    >>> import backburn as bb
    >>> sorted(bb.random.permutation(4).tolist())
    [0, 1, 2, 3]
    """
    if is_tensor(x):
        y = _check_backend("permutation", x, given_backend(backend, device))
        along = axis_of("permutation", y, axis)
        n = y.shape[along]
        order = draw("permutation", (n,), int64, y.backend, generator, n=n)
        return call("take", y, order, axis=along)
    (n,) = shape_of("permutation", integer("permutation", _COUNT, x))
    where = given_backend(backend, device)
    return draw("permutation", (n,), int64, where, generator, n=n)


#: The argument of ``choice`` and ``permutation`` in messages.
_COUNT = "x, unless it is a tensor,"


def _check_backend(name: str, x: Any, place: Any) -> Any:
    """A tensor whose entries are drawn; raises :class:`BackendMismatchError` if ``place`` is another backend."""
    y: Any = kind_operand(name, x, "FCIB")
    if place is not None and (asked := as_backend(place)) != y.backend:
        raise BackendMismatchError(
            f"{name}: entries of a tensor are drawn on its backend, not on {asked.spec}. Write "
            f"{name}(x.to({asked.spec!r})). Operand: {describe((y,))}"
        )
    return y


@explained
def choice(
    x: int | Tensor,
    /,
    shape: Shape = (),
    *,
    p: Tensor | None = None,
    replace: bool = True,
    axis: int = 0,
    backend: BackendLike = None,
    device: BackendLike = None,
    generator: Generator | None = None,
) -> Tensor:
    """Random numbers from 0 to ``x - 1``, or random entries of a tensor along ``axis``, which ``shape`` replaces.

    ``p``, a vector, is proportional to their probabilities; by default all are equally likely. With ``replace=False``
    nothing is drawn twice: each draw is from what is left (Efraimidis and Spirakis, "Weighted random sampling with a
    reservoir", 2006). Numbers are on ``backend``, or on that of ``p``; entries of a tensor stay on its backend.

    Raises :class:`ArgumentError` if there are fewer to choose from than are drawn, and for negative, infinite or NaN
    elements of ``p``, checked as in :func:`uniform`; :class:`ShapeError` for a ``p`` of another length, and
    :class:`BackendMismatchError` for a tensor and another ``backend``.

        >>> import backburn as bb
        >>> sorted(bb.random.choice(4, (4,), replace=False).tolist())
        [0, 1, 2, 3]
        >>> letters = bb.asarray([[1, 2, 3], [4, 5, 6]])
        >>> bb.random.choice(letters, (2,), p=bb.asarray([0.0, 1.0, 0.0]), axis=1).tolist()
        [[2, 2], [5, 5]]
    """
    flags("choice", replace=replace)
    lengths, place = shape_of("choice", shape), given_backend(backend, device)
    count, values, along = math.prod(lengths), None, 0
    if is_tensor(x):
        values = _check_backend("choice", x, place)
        along = axis_of("choice", values, axis)
        n, place = values.shape[along], values.backend
    else:
        (n,) = shape_of("choice", integer("choice", _COUNT, x))
    if count > (n if not replace else n * count):
        raise ArgumentError(f"choice: {count} are to be drawn from {n}{'' if replace else ', none of them twice'}")
    drawn: Any
    if p is not None:
        drawn = _weighted_choice(n, lengths, count, p, replace, generator)
    elif replace:
        drawn = integers(lengths, 0, max(n, 1), backend=place, generator=generator)
    else:
        drawn = call("reshape", permutation(n, backend=place, generator=generator)[:count], shape=lengths)
    return drawn if values is None else call("take", values, drawn, axis=along)


def _weighted_choice(
    n: int, shape: tuple[int, ...], count: int, p: Any, replace: bool, generator: Generator | None
) -> Any:
    """Indices drawn with the probabilities ``p``."""
    chances: Any = float_operand("choice", p)
    if chances.shape != (n,):
        raise ShapeError(f"choice: p has one probability for each of {n}, and is {describe((chances,))}")
    if any_of(chances, lambda values: ~((values >= 0) & (values < math.inf))):
        words = "probabilities are finite and 0 or more, and an element of p is not"
        raise ArgumentError(f"choice: {words}. Operand: {describe((p,))}")
    if count and any_of(chances, lambda values: (values > 0).sum(-1) < (1 if replace else count)):
        enough = "one is to be drawn" if replace else f"{count} different ones are to be drawn"
        raise ArgumentError(f"choice: fewer elements of p are above 0 than {enough}. Operand: {describe((p,))}")
    logits: Any = call("log", upcast_half(chances))
    if replace:
        return categorical(logits, shape, generator=generator)
    u = uniform((n,), dtype=logits.dtype, backend=p.backend, generator=generator)
    times = call("sub", logits, call("log", call("neg", call("log", u))))
    return call("reshape", topk(times, count)[1], shape=shape)


def categorical(logits: Tensor, shape: Shape = (), *, generator: Generator | None = None) -> IntTensor:
    """Indices along the last axis of ``logits``, drawn with the probabilities ``softmax(logits)``.

    The result has the shape ``(*shape, *logits.shape[:-1])``. A logit of minus infinity excludes its index. Raises
    :class:`ShapeError` if the last axis is empty, and :class:`ArgumentError` where a logit is NaN or infinite or all
    are minus infinity, as of a model that has diverged; that is checked as in :func:`uniform`.

        >>> import backburn as bb
        >>> logits = bb.asarray([0.0, -float("inf"), 0.0])
        >>> (bb.random.categorical(logits, (100,)) != 1).all().item()
        True
    """
    x = float_operand("categorical", parameters_first("categorical", "logits", logits))
    if not x.ndim or not x.shape[-1]:
        raise ShapeError(f"categorical: there is nothing to choose from in {describe((x,))}")
    extra = shape_of("categorical", shape)
    if 0 not in extra and any_of(x, lambda values: ~(abs(values.max(-1)) < math.inf)):
        raise ArgumentError(
            f"categorical: a logit is NaN or infinite, or all of a row are minus infinity, so that there are no "
            f"probabilities. Operand: {describe((x,))}"
        )
    if extra:
        x = call("broadcast_to", x, shape=(*extra, *x.shape))
    return drawn_from("categorical", x, generator)


def dropped(x: Tensor, p: float, generator: Generator | None) -> FloatTensor:
    """``x`` with each element set to 0 with probability ``p``, and divided by ``1 - p`` otherwise."""
    if isinstance(x.dtype, ComplexDType):
        ones = create("ones", x.backend, shape=x.shape, dtype=x.dtype.part)
        kept = binary("not_equal", dropped(ones, p, generator), 0.0)
        return call("where", kept, binary("mul", x, dropout_scale(p)), 0.0)
    return drawn_from("dropout", x, generator, p=p)[0]


__all__ = [
    "Generator", "bernoulli", "beta", "categorical", "choice", "default_generator", "dirichlet", "fork", "gamma",
    "get_state", "integers", "normal", "permutation", "poisson", "seed", "set_state", "student_t", "uniform",
]  # fmt: skip


if not TYPE_CHECKING:
    __dir__, __getattr__ = lookups("backburn.random", __all__)
