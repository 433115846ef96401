"""Samples: convolutions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from backburn.conformance.samples.table import case, real, samples

Array = Any


def places(offset: Any, counts: Any, stride: Any, dilation: Any) -> tuple[slice, ...]:
    """The slices that select element ``offset`` of all windows."""
    return tuple(
        slice(o * d, o * d + (n - 1) * s + 1, s) for o, n, s, d in zip(offset, counts, stride, dilation, strict=True)
    )


def padded_counts(x: Array, size: Any, stride: Any, padding: Any, dilation: Any) -> tuple[Array, tuple[int, ...]]:
    """The padded input, and the number of windows along each axis."""
    padded = np.pad(x, [(0, 0), (0, 0), *padding])
    lengths = zip(padded.shape[2:], size, stride, dilation, strict=True)
    return padded, tuple((n - d * (m - 1) - 1) // s + 1 for n, m, s, d in lengths)


def grouped(weight: Array, groups: int) -> Array:
    """A weight (outputs, inputs, ...) with zeros for inputs of other groups."""
    outputs, inputs = weight.shape[0], weight.shape[1]
    full = np.zeros((outputs, inputs * groups, *weight.shape[2:]), weight.dtype)
    for g, part in enumerate(np.split(weight, groups)):
        start = g * outputs // groups
        full[start : start + len(part), g * inputs : (g + 1) * inputs] = part
    return full


def conv(
    x: Array, weight: Array, bias: Array | None = None, *, stride: Any, padding: Any, dilation: Any, groups: int
) -> Array:
    """The reference of ``conv``: a sum over the elements of a window, by the definition."""
    full, size = grouped(weight, groups), weight.shape[2:]
    padded, counts = padded_counts(x, size, stride, padding, dilation)
    out = np.zeros((len(x), len(weight), *counts), x.dtype)
    for offset in itertools.product(*map(range, size)):
        seen = padded[(..., *places(offset, counts, stride, dilation))]
        out += np.moveaxis(np.tensordot(full[(..., *offset)], seen, (1, 1)), 0, 1)
    return out if bias is None else out + bias.reshape(-1, *[1] * len(size))


def conv_transpose(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    stride: Any,
    padding: Any,
    output_padding: Any,
    dilation: Any,
    groups: int,
) -> Array:
    """The reference of ``conv_transpose``: every input element adds a window."""
    full, size = grouped(weight, groups), weight.shape[2:]
    given = x.shape[2:]
    sizes = zip(given, stride, dilation, size, output_padding, strict=True)
    full_size = [(n - 1) * s + d * (m - 1) + 1 + e for n, s, d, m, e in sizes]
    out = np.zeros((len(x), full.shape[1], *full_size), x.dtype)
    for offset in itertools.product(*map(range, size)):
        part = np.moveaxis(np.tensordot(full[(..., *offset)], x, (0, 1)), 0, 1)
        target: Any = (..., *places(offset, given, stride, dilation))
        out[target] += part
    inside: Any = (..., *(slice(b, n - a) for n, (b, a) in zip(full_size, padding, strict=True)))
    out = out[inside]
    return out if bias is None else out + bias.reshape(-1, *[1] * len(size))


def weight_backward(
    x: Array, grad: Array, *, size: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Array:
    """The reference of ``conv_weight_backward``."""
    padded, counts = padded_counts(x, size, stride, padding, dilation)
    outputs, inputs = grad.shape[1] // groups, x.shape[1] // groups
    result = np.zeros((grad.shape[1], inputs, *size), x.dtype)
    axes = (0, *range(2, x.ndim))
    for offset in itertools.product(*map(range, size)):
        seen = padded[(..., *places(offset, counts, stride, dilation))]
        for g in range(groups):
            rows, columns = slice(g * outputs, (g + 1) * outputs), slice(g * inputs, (g + 1) * inputs)
            place: Any = (rows, slice(None), *offset)
            result[place] = np.tensordot(grad[:, rows], seen[:, columns], (axes, axes))
    return result


def options(rank: int, stride: Any = 1, padding: Any = (0, 0), dilation: Any = 1, **more: Any) -> dict[str, Any]:
    """The options of a convolution, equal for each axis."""
    axes = {"stride": (stride,), "padding": (padding,), "dilation": (dilation,)}
    return {name: value * rank for name, value in axes.items()} | {"groups": 1, **more}


PLAIN = options(1)
samples(
    "conv",
    conv,
    case(real(2, 2, 4), real(2, 2, 2, seed=1), real(2), **PLAIN),
    case(real(1, 1, 5), real(2, 1, 3, seed=1), None, **options(1, padding=(1, 1))),
    case(real(1, 2, 6), real(1, 2, 3, seed=1), real(1), **options(1, 2), note="a place is left over"),
    case(real(1, 1, 7), real(1, 1, 2, seed=1), None, **options(1, 3, (0, 1), 2), note="two places are left over"),
    case(real(1, 4, 3), real(2, 2, 2, seed=1), real(2), **{**PLAIN, "groups": 2}),
    case(real(1, 2, 3), real(4, 1, 2, seed=1), None, **{**PLAIN, "groups": 2}, note="one channel in each group"),
    case(real(1, 2, 3, 3), real(2, 2, 2, 2, seed=1), real(2), **options(2)),
    case(
        real(2, 1, 3, 4), real(1, 1, 2, 3, seed=1), None,
        stride=(2, 1), padding=((1, 0), (0, 2)), dilation=(1, 2), groups=1, note="each axis its own",
    ),
    case(real(1, 1, 2, 3, 2), real(2, 1, 2, 1, 2, seed=1), real(2), **options(3)),
    case(real(1, 1, 2, 2, 2), real(1, 1, 2, 2, 2, seed=1), None, **options(3, 2, (1, 0)), smooth=2),
    case(real(1, 1, 1), real(1, 1, 3, seed=1), None, **options(1, padding=(1, 1)), note="padding makes room"),
    case(real(0, 2, 3), real(1, 2, 2, seed=1), real(1), **PLAIN, note="no examples"),
    case(real(2, 0, 3), real(1, 0, 2), real(1), **PLAIN, smooth=1, note="no channels"),
    case(np.ones((1, 40, 4)), np.full((1, 40, 3), 0.1), None, **PLAIN, smooth=1, note="16-bit sums"),
    case(real(1, 1, 6), real(1, 1, 2, seed=1), None, **options(1, 3, (1, 0)), note="two places are left over"),
)  # fmt: skip


def transposed(rank: int, output_padding: int = 0, **more: Any) -> dict[str, Any]:
    """The options of a transposed convolution, equal for each axis."""
    return options(rank, **more) | {"output_padding": (output_padding,) * rank}


samples(
    "conv_transpose",
    conv_transpose,
    case(real(2, 2, 3), real(2, 2, 2, seed=1), real(2), **transposed(1)),
    case(real(1, 1, 3), real(1, 2, 3, seed=1), None, **transposed(1, padding=(1, 1))),
    case(real(1, 1, 3), real(1, 2, 2, seed=1), real(2), **transposed(1, stride=2)),
    case(real(1, 1, 3), real(1, 1, 3, seed=1), real(1), **transposed(1, 1, stride=2, padding=(1, 1))),
    case(real(1, 1, 3), real(1, 1, 2, seed=1), None, **transposed(1, 2, stride=3), note="gaps"),
    case(real(1, 1, 3), real(1, 1, 2, seed=1), None, **transposed(1, dilation=2, padding=(1, 0))),
    case(real(1, 1, 4), real(1, 1, 2, seed=1), None, **transposed(1, padding=(2, 1)), note="more than a window is cut"),
    case(real(1, 4, 2), real(4, 1, 2, seed=1), real(2), **transposed(1, groups=2)),
    case(real(1, 4, 2), real(4, 1, 2, seed=1), real(2), **transposed(1, stride=2, groups=2)),
    case(real(1, 2, 2, 3), real(2, 1, 2, 2, seed=1), real(1), **transposed(2)),
    case(
        real(1, 1, 2, 3), real(1, 2, 2, 1, seed=1), None,
        stride=(2, 1), padding=((1, 0), (0, 1)), output_padding=(1, 0), dilation=(1, 2), groups=1,
    ),
    case(real(1, 1, 2, 1, 2), real(1, 2, 1, 2, 2, seed=1), real(2), **transposed(3, stride=2), smooth=2),
    case(real(0, 2, 3), real(2, 1, 2, seed=1), real(1), **transposed(1), note="no examples"),
    case(real(1, 1, 2, 2), real(1, 1, 2, 2, seed=1), None, **{**transposed(2), "dilation": (1, 3)}, smooth=2),
)  # fmt: skip
samples(
    "conv_weight_backward",
    weight_backward,
    case(real(2, 1, 4), real(2, 2, 3, seed=1), size=(2,), **PLAIN),
    case(real(1, 2, 6), real(1, 1, 2, seed=1), size=(3,), **options(1, 2)),
    case(real(1, 1, 5), real(1, 1, 3, seed=1), size=(2,), **options(1, 2, (1, 1), 2)),
    case(real(1, 4, 3), real(1, 2, 2, seed=1), size=(2,), **{**PLAIN, "groups": 2}),
    case(real(1, 1, 3, 3), real(1, 2, 2, 2, seed=1), size=(2, 2), **options(2)),
    case(real(1, 1, 2, 2, 2), real(1, 1, 1, 2, 1, seed=1), size=(2, 1, 2), **options(3), smooth=2),
    case(real(0, 2, 3), real(0, 1, 2), size=(2,), **PLAIN, note="no examples"),
)
