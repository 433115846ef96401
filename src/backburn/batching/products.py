"""Batching rules: matrix products and convolutions."""

from __future__ import annotations

from typing import Any

from backburn.batching.rules import (
    Rule,
    aligned,
    batching,
    broadcasting,
    folded,
    front,
    is_mapped,
    moved,
    rank_of,
    sharing,
    with_rank,
)

Shape = tuple[int, ...]


def matmul(level: Any, x: Any, y: Any) -> Any:
    """Vectors become matrices of one row or column; the vectors of all examples may form one matrix."""
    k = level.inner_backend
    if not is_mapped(level, y) and rank_of(y) <= 2:  # the examples become additional rows
        return k.matmul(x.value, y)
    if rank_of(y) == 1 and not is_mapped(level, x) and rank_of(x) == 2:
        return k.matmul(y.value, k.permute_dims(x, (1, 0)))
    left, right = as_matrices(level, x, -2), as_matrices(level, y, -1)
    product = k.matmul(*aligned(level, left, right))
    shape = product.shape[1:]
    if rank_of(y) == 1:
        shape = shape[:-1]
    if rank_of(x) == 1:
        shape = shape[:-2] + shape[-1:] if rank_of(y) > 1 else shape[:-1]
    return k.reshape(product, (level.size, *shape))


def as_matrices(level: Any, x: Any, place: int) -> Any:
    """``x`` itself, or a vector with a new axis of length 1 at ``place``, -2 or -1."""
    if len(x.shape) > 1:
        return x
    return level.reshape(x, (1, *x.shape) if place == -2 else (*x.shape, 1))


def pinv(level: Any, x: Any, rtol: Any) -> Any:
    """The pseudoinverses; the threshold broadcasts to the leading axes."""
    return level.inner_backend.pinv(front(level, x), with_rank(level, rtol, len(x.shape) - 2))


# ---- convolutions ----


def into_channels(level: Any, x: Any) -> Any:
    """``(places, size * channels, ...)`` from ``(places, channels, ...)`` of each example."""
    k, (places, channels, *rest) = level.inner_backend, x.shape
    return k.reshape(moved(k, front(level, x), 0, 1), (places, level.size * channels, *rest))


def from_channels(level: Any, y: Any) -> Any:
    """The inverse of :func:`into_channels`."""
    k, (places, channels, *rest) = level.inner_backend, y.shape
    return moved(k, k.reshape(y, (places, level.size, channels // level.size, *rest)), 1, 0)


def into_rows(level: Any, weight: Any) -> Any:
    """The weights of all examples, joined along the first axis: ``(size * rows, ...)``."""
    rows, *rest = weight.shape
    return level.inner_backend.reshape(front(level, weight), (level.size * rows, *rest))


def convolution(name: str) -> Rule:
    """The rule of a convolution: examples extend the first axis or, where weights differ, the groups."""
    same_weight = folded(name, 0)

    def rule(level: Any, x: Any, weight: Any, bias: Any, *, groups: int, **attributes: Any) -> Any:
        if is_mapped(level, bias):
            y = getattr(level, name)(x, weight, None, groups=groups, **attributes)
            return level.add(y, level.reshape(bias, (*bias.shape, *(1,) * (len(x.shape) - 2)))).value
        if not is_mapped(level, weight):
            return same_weight(level, x, weight, bias, groups=groups, **attributes)
        if not level.size:
            return NotImplemented
        if bias is not None:
            bias = into_rows(level, bias)
        operands = into_channels(level, x), into_rows(level, weight), bias
        return from_channels(
            level, getattr(level.inner_backend, name)(*operands, groups=groups * level.size, **attributes)
        )

    return rule


def conv_weight_backward(level: Any, x: Any, grad: Any, *, groups: int, **attributes: Any) -> Any:
    """A weight gradient for each example, whose channels become separate groups."""
    if not level.size:
        return NotImplemented
    k = level.inner_backend
    operands = into_channels(level, x), into_channels(level, grad)
    found = k.conv_weight_backward(*operands, groups=groups * level.size, **attributes)
    return k.reshape(found, (level.size, found.shape[0] // level.size, *found.shape[1:]))


batching("matmul", matmul)
batching("linear", sharing("linear"))
batching("quantized_linear", sharing("quantized_linear"))
batching("quantized_linear_backward", sharing("quantized_linear_backward"))
batching("solve", broadcasting("solve"))
batching("triangular_solve", broadcasting("triangular_solve"))
batching("pinv", pinv)
batching("conv", convolution("conv"))
batching("conv_transpose", convolution("conv_transpose"))
batching("conv_weight_backward", conv_weight_backward)
