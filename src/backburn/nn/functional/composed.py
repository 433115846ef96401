"""Layers as compositions of tensor functions; they are public in :mod:`backburn.nn.functional`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from backburn.base.errors import ArgumentError, ShapeError
from backburn.nn.functional.attention import embedding
from backburn.nn.functional.pooling import avg_pool, max_pool
from backburn.nn.functional.window_options import Sizes, each, places_rank
from backburn.ops.rules.shapes import broadcast
from backburn.tensor import arithmetic, creation, elementwise, random, rearrange, selection, shape
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.core import host
from backburn.tensor.core.dispatch import (
    call,
    cast,
    float_operand,
    promote_operands,
    tensor_operand,
    upcast_half,
    upcast_half_dtype,
)
from backburn.tensor.core.integers import has_wide_integers, in_float64
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import axis_of, bounded, flags, integer, number, one_of
from backburn.transforms.custom import stop_gradient

__all__ = [
    "alpha_dropout", "bilinear", "embedding_bag", "gumbel_softmax", "local_response_norm", "lp_pool", "pad_sequence",
    "rotary",
]  # fmt: skip

#: The limit of SELU at minus infinity: minus its scale times its alpha.
SATURATED = -1.7580993408473766


def check_probability(operation: str, p: float) -> None:
    """Raise :class:`ArgumentError` unless ``p`` is a probability."""
    bounded(operation, "p", p, least=0, most=1)


def bilinear(x1: Tensor, x2: Tensor, weight: Tensor, bias: Tensor | None = None) -> FloatTensor:
    """The sum of ``x1[..., i] * x2[..., j] * weight[:, i, j]`` over ``i`` and ``j``, plus ``bias``.

    ``x1`` (..., first) and ``x2`` (..., second), whose leading axes broadcast, and ``weight`` (outputs, first, second)
    give (..., outputs); ``bias`` is (outputs,). Raises :class:`ShapeError` where shapes do not fit.

    >>> import backburn as bb
    >>> bilinear(bb.asarray([1.0, 2.0]), bb.asarray([3.0, 4.0]), bb.ones((1, 2, 2))).tolist()
    [21.0]
    """
    given = [tensor_operand("bilinear", t) for t in (x1, x2, weight, *(() if bias is None else (bias,)))]
    x1, x2, weight, *rest = promote_operands("bilinear", *given, kinds="F")
    bias = rest[0] if rest else None
    fits = weight.ndim == 3 and x1.ndim and x2.ndim and (x1.shape[-1], x2.shape[-1]) == weight.shape[1:]
    if not fits or (bias is not None and bias.shape != weight.shape[:1]):
        words = "the weight is (outputs, first, second), x1 (..., first), x2 (..., second) and the bias (outputs,)"
        raise ShapeError(f"bilinear: {words}. Operands: {describe(given)}")
    products: Any = x1[..., :, None] * x2[..., None, :]
    pairs = math.prod(weight.shape[1:])
    flat, matrix = products.reshape((*products.shape[:-2], pairs)), weight.reshape((weight.shape[0], pairs))
    return call("linear", flat, matrix, bias)


def alpha_dropout(x: Tensor, p: float = 0.5, training: bool = False, *, generator: Any = None) -> FloatTensor:
    """Dropout for SELU: dropped elements saturate, then an affine map restores mean 0 and variance 1.

    Each element is ``-1.7581`` (the limit of SELU) with probability ``p``; ``x`` itself unless ``training``, and 0 with
    ``p=1``. The random numbers come from ``generator``, or from the default one. Raises :class:`ArgumentError` unless
    ``0 <= p <= 1``. After Klambauer et al., Self-normalizing neural networks, 2017.

    >>> import backburn as bb
    >>> alpha_dropout(bb.asarray([1.0, 2.0]), 0.5, training=False).tolist()
    [1.0, 2.0]
    """
    check_probability("alpha_dropout", p)
    x = float_operand("alpha_dropout", x)
    if not training or p == 0:
        return x
    if p == 1:
        return random.dropped(x, 1.0, generator)
    is_kept = random.bernoulli(x.shape, 1.0 - p, backend=x.backend, generator=generator)
    scale = 1.0 / math.sqrt((1.0 - p) * (1.0 + p * SATURATED**2))
    return selection.where(is_kept, x, SATURATED) * scale - scale * SATURATED * p  # type: ignore[return-value]


def gumbel_softmax(
    logits: Tensor, tau: float = 1.0, hard: bool = False, *, axis: int = -1, generator: Any = None
) -> FloatTensor:
    """A random distribution along ``axis``, close to one category drawn with the probabilities ``softmax(logits)``.

    It is ``softmax((logits + g) / tau)`` with standard Gumbel noise ``g``: the smaller ``tau``, the closer to one-hot.
    With ``hard`` the result is one-hot, and the gradient that of the soft one. The random numbers come from
    ``generator``, or from the default one. Raises :class:`ArgumentError` unless ``tau`` is positive. After Jang, Gu and
    Poole, "Categorical reparameterization with Gumbel-softmax", 2017, and Maddison, Mnih and Teh, "The concrete
    distribution", 2017.

        >>> import backburn as bb
        >>> gumbel_softmax(bb.asarray([0.0, -bb.inf, -bb.inf]), hard=True).tolist()
        [1.0, 0.0, 0.0]
    """
    if has_wide_integers(logits):
        return in_float64(gumbel_softmax, logits, tau=tau, hard=hard, axis=axis, generator=generator)
    bounded("gumbel_softmax", "tau", tau, above=0, below=math.inf)
    flags("gumbel_softmax", hard=hard)
    given: Any = float_operand("gumbel_softmax", logits)
    along = axis_of("gumbel_softmax", given, axis)
    logits = upcast_half(given)
    draws = random.uniform(logits.shape, dtype=logits.dtype, backend=logits.backend, generator=generator)
    noise = call("neg", call("log", call("neg", call("log", draws))))
    soft = cast(call("softmax", (logits + noise) / float(tau), axis=along), given.dtype)
    if not hard:
        return soft
    places = call("argmax", soft, axis=along, keepdims=True)
    numbers = creation.arange(soft.shape[along], backend=soft.backend)
    numbers = call("reshape", numbers, shape=tuple(-1 if a == along else 1 for a in range(soft.ndim)))
    return cast(places == numbers, soft.dtype) + (soft - stop_gradient(soft))


def pad_sequence(sequences: Sequence[Tensor], *, padding_value: float = 0.0) -> Tensor:
    """Sequences of different lengths stacked into one tensor, the shorter ones padded with ``padding_value``.

    Tensors (length, ...) of the same shape apart from their lengths give (sequences, longest length, ...), in their
    promoted dtype. Raises :class:`ShapeError` for tensors of other shapes, and :class:`ArgumentError` for an empty
    list.

        >>> import backburn as bb
        >>> pad_sequence([bb.asarray([1, 2, 3]), bb.asarray([4])], padding_value=-1).tolist()
        [[1, 2, 3], [4, -1, -1]]
    """
    tensors = shape._tensor_list("pad_sequence", sequences)
    if any(x.ndim == 0 or x.shape[1:] != tensors[0].shape[1:] for x in tensors):
        raise ShapeError(f"pad_sequence: the sequences differ in more than their length. Operands: {describe(tensors)}")
    longest = max(x.shape[0] for x in tensors)
    rest = ((0, 0),) * (tensors[0].ndim - 1)
    return shape.stack([rearrange.pad(x, ((0, longest - x.shape[0]), *rest), value=padding_value) for x in tensors])


def local_response_norm(x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> FloatTensor:
    """Each element over ``(k + alpha * mean)**beta``; ``mean`` is the mean square of ``size`` neighbouring channels.

    ``x`` is (examples, channels, ...); channels beyond the first and the last count as zeros. Raises
    :class:`ShapeError` for fewer than two axes. After Krizhevsky, Sutskever and Hinton (2012), where ``alpha``
    multiplies the sum.

    >>> import backburn as bb
    >>> local_response_norm(bb.asarray([[2.0, 0.0, 1.0]]), 1, alpha=1.0, beta=1.0).numpy().round(2).tolist()
    [[0.4000000059604645, 0.0, 0.5]]
    """
    name = "local_response_norm"
    x = float_operand(name, x)
    if x.ndim < 2:
        raise ShapeError(f"{name}: the input is (examples, channels, ...), not {describe((x,))}")
    (size,) = each(name, "size", (integer(name, "size", size),), 1)
    terms = {"alpha": alpha, "beta": beta, "k": k}
    alpha, beta, k = (float(number(name, option, value)) for option, value in terms.items())
    if not x.size:
        return x
    wide = upcast_half(x)
    squares: Any = (wide * wide).reshape((x.shape[0], 1, x.shape[1], -1))
    means = avg_pool(squares, (size, 1), stride=1, padding=((size // 2, (size - 1) // 2), (0, 0)))
    return cast(wide / (means.reshape(x.shape) * alpha + k) ** beta, x.dtype)


def lp_pool(
    x: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> FloatTensor:
    """The norm of each window, ``sum(abs(x)**p)**(1 / p)`` with ``p = norm_type``; the gradient of a norm of 0 is 0.

    ``x`` is ``(examples, channels, *spatial)``; ``kernel_size`` and ``stride`` (by default the same) are a number, or
    one for each spatial axis. With ``ceil_mode`` windows may reach beyond the end; their sum is scaled to a whole
    window, as in PyTorch. Raises :class:`ArgumentError` for an order below 1, :class:`ShapeError` where no window fits.

    >>> import backburn as bb
    >>> lp_pool(bb.asarray([[[3.0, -4.0, 0.0, 1.0]]]), 2, 2).tolist()
    [[[5.0, 1.0]]]
    """
    name = "lp_pool"
    x = float_operand(name, x)
    p = bounded(name, "norm_type", norm_type, least=1)
    lengths = each(name, "kernel_size", kernel_size, places_rank(name, x), of=(x,))
    if p == math.inf:
        return max_pool(arithmetic.abs(x), lengths, stride=stride, ceil_mode=ceil_mode)
    wide = upcast_half(x)
    means = avg_pool(arithmetic.abs(wide) ** p, lengths, stride=stride, ceil_mode=ceil_mode)
    sums: Any = means * float(math.prod(lengths))
    empty = sums == 0.0
    norms = selection.where(empty, 0.0, selection.where(empty, 1.0, sums) ** (1.0 / p))
    return cast(norms, x.dtype)


def embedding_bag(
    x: Tensor,
    weight: Tensor,
    *,
    mode: str = "mean",
    per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None,
) -> FloatTensor:
    """The mean, sum or maximum of the rows of ``weight`` that each bag of indices selects.

    Indices ``x`` (..., bag) and a ``weight`` (rows, size) give (..., size). Entries equal to ``padding_idx`` are
    ignored, so that bags may differ in length; a bag with nothing else gives 0. ``mode`` is ``"mean"``, ``"sum"`` (the
    only one with ``per_sample_weights``, of the shape of ``x``) or ``"max"``. Raises the errors of :func:`embedding`,
    and :class:`ArgumentError` and :class:`ShapeError` for invalid options.

    >>> import backburn as bb
    >>> weight = bb.asarray([[0.0, 0.0], [1.0, 2.0], [3.0, 6.0]])
    >>> embedding_bag(bb.asarray([[1, 2], [2, 0]]), weight, padding_idx=0).tolist()
    [[2.0, 4.0], [3.0, 6.0]]
    """
    name = "embedding_bag"
    one_of(name, "the mode", mode, ("mean", "sum", "max"))
    if not tensor_operand(name, x).ndim:
        raise ShapeError(f"{name}: bags are the last axis, but the indices are 0-d. Operands: {describe((x, weight))}")
    rows: Any = embedding(x, weight, padding_idx)
    present: Any = None
    if padding_idx is not None:
        present = (x != padding_idx % weight.shape[0])[..., None]
    if per_sample_weights is not None:
        if mode != "sum":
            raise ArgumentError(f"{name}: per_sample_weights are for mode='sum', not {mode!r}")
        if tensor_operand(name, per_sample_weights).shape != x.shape:
            raise ShapeError(f"{name}: takes a weight for each index. Operands: {describe((x, per_sample_weights))}")
        rows = rows * per_sample_weights[..., None]
    return _pool_bags(rows, present, mode)


def _pool_bags(rows: Any, present: Any, mode: str) -> Any:
    """The rows (..., bag, size) of each bag reduced to one: all rows, or those that are ``present``."""
    if mode == "max" and rows.shape[-2]:
        if present is None:
            return rows.max(-2)
        return selection.where(present.any(-2), selection.where(present, rows, -math.inf).max(-2), 0.0)
    wide = upcast_half(rows) if mode == "mean" else rows
    total = (wide if present is None else selection.where(present, wide, 0.0)).sum(-2)
    if mode != "mean":
        return total
    count = max(1.0, rows.shape[-2]) if present is None else cast(present, wide.dtype).sum(-2).maximum(1.0)
    return cast(total / count, rows.dtype)


def rotary(
    x: Tensor, positions: Tensor | None = None, *, base: float = 10000.0, interleaved: bool = True
) -> FloatTensor:
    """Rotary position embedding: each vector rotated by angles proportional to its position.

    ``x`` (..., steps, size) has vectors of even ``size``; pair ``i`` of their features is rotated by ``position * base
    ** (-2 * i / size)``. Pairs are adjacent features, or with ``interleaved=False`` one of the first half and one of
    the second, as in GPT-NeoX. ``positions`` (numbers that broadcast to (..., steps)) are 0, 1, ... by default. 16-bit
    floats are computed in float32. Raises :class:`ShapeError` for an odd size and for positions that do not fit. After
    Su et al., RoFormer, 2021.

    >>> import backburn as bb
    >>> x = bb.asarray([[1.0, 0.0], [1.0, 0.0]])
    >>> rotary(x, bb.asarray([0.0, bb.pi])).round(4).tolist()
    [[1.0, 0.0], [-1.0, -0.0]]
    """
    x = float_operand("rotary", x)
    base = bounded("rotary", "base", base, above=0)
    if not x.ndim or x.shape[-1] % 2 or (positions is None and x.ndim < 2):
        raise ShapeError(f"rotary: takes vectors of even size (..., steps, size), not {describe((x,))}")
    exact = upcast_half_dtype(x.dtype)
    if positions is None:
        places: Any = creation.arange(x.shape[-2], dtype=exact, backend=x.backend)
    else:
        places = cast(tensor_operand("rotary", positions), exact)
        if places.ndim >= x.ndim or broadcast(places.shape, x.shape[:-1]) != x.shape[:-1]:
            words = f"rotary: positions broadcast to {list(x.shape[:-1])}, the shape of x without its last axis"
            raise ShapeError(f"{words}. Operands: {describe((x, positions))}")
    half = x.shape[-1] // 2
    rates = host.asarray([base ** (-i / half) for i in range(half)], dtype=exact, backend=x.backend)
    angles = places[..., None] * rates
    cos, sin = elementwise.cos(angles), elementwise.sin(angles)
    y: Any = cast(x, exact)
    if interleaved:
        pairs = y.reshape((*x.shape[:-1], half, 2))
        first, second = pairs[..., 0], pairs[..., 1]
    else:
        first, second = y[..., :half], y[..., half:]
    turned = [first * cos - second * sin, first * sin + second * cos]
    y = shape.stack(turned, axis=-1).reshape(x.shape) if interleaved else shape.concat(turned, axis=-1)
    return cast(y, x.dtype)
