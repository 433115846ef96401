"""Convolutions over one, two or three axes, and the gradient of their weights.

``x`` has the shape ``(examples, channels, *spatial)``. ``stride`` and ``dilation`` have one number for each spatial
axis, ``padding`` a pair: how many zeros precede and follow. As usual in deep learning, convolution means
cross-correlation: the weight is not flipped. 16-bit floats are accumulated in float32.

All three operations are linear in each operand, and each is the gradient of the others, so their derivatives of every
order are among them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, Protocol

from backburn.base.errors import ArgumentError, ShapeError
from backburn.ops.bodies.half_precision import upcast_half
from backburn.ops.bodies.scalars import shape_or_none
from backburn.ops.bodies.slicing import full_slices
from backburn.ops.primitives import Primitives
from backburn.ops.rules.gradients import gradient_rule
from backburn.ops.rules.tangents import linear_in, tangent
from backburn.ops.rules.work import multiply_adds
from backburn.ops.table import operation
from backburn.ops.types import B, F, I, Q

Shape = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]


#: The largest stride, padding and dilation: positions of windows fit 64 bits.
LARGEST_STEP = (1 << 31) - 1


# ---- shapes ----


def check_window(rank: int, stride: Shape, padding: Pairs, dilation: Shape) -> None:
    """Raise for options out of range, or without one entry for each of ``rank`` axes."""
    if not len(stride) == len(padding) == len(dilation) == rank:
        raise ArgumentError(
            f"stride {list(stride)}, padding {list(padding)} and dilation {list(dilation)} need one entry for each of "
            f"{rank} axes"
        )
    if rank and min(*stride, *dilation) < 1:
        raise ArgumentError(f"stride and dilation are 1 or more, not {list(stride)} and {list(dilation)}")
    if any(width < 0 for pair in padding for width in pair):
        raise ArgumentError(f"padding is 0 or more, not {list(padding)}")
    if rank and max(*stride, *dilation, *sum(padding, ())) > LARGEST_STEP:
        raise ArgumentError(
            f"stride, padding and dilation are at most {LARGEST_STEP}, not {list(stride)}, {list(padding)} and "
            f"{list(dilation)}"
        )


def window_reach(size: int, dilation: int) -> int:
    """The number of elements from the first to the last of a window of ``size`` elements, both included."""
    return dilation * (size - 1) + 1


def window_counts(places: Shape, size: Shape, stride: Shape, padding: Pairs, dilation: Shape) -> Shape:
    """The number of windows that fit along each axis; raises if none fits."""
    check_window(len(places), stride, padding, dilation)
    counts = []
    for axis, (n, width, step, (before, after), spacing) in enumerate(
        zip(places, size, stride, padding, dilation, strict=True)
    ):
        if width < 1:
            raise ShapeError(f"a window has 1 element or more along each axis, not {list(size)}")
        reach = window_reach(width, spacing)
        room = n + before + after - reach
        if room < 0:
            raise ShapeError(
                f"a window that reaches over {reach} elements does not fit into axis {axis + 2} of {n}, padded to "
                f"{n + before + after}"
            )
        counts.append(room // step + 1)
    return tuple(counts)


def _check_ranks(x: Shape, weight: Shape) -> None:
    if not 3 <= len(x) <= 5 or len(weight) != len(x):
        raise ShapeError(
            f"the input (examples, channels, *spatial) has 3 to 5 axes and the weight as many; these have {len(x)} and "
            f"{len(weight)}"
        )


def check_bias(bias: Shape | None, channels: int) -> None:
    """Raise unless the bias has one element for each output channel."""
    if bias is not None and bias != (channels,):
        raise ShapeError(f"the bias must have the {channels} output channels, not the shape {list(bias)}")


def _check_groups(groups: int, **channels: int) -> None:
    if groups < 1 or any(n % groups for n in channels.values()):
        raise ShapeError(
            f"{' and '.join(f'{n} {what} channels' for what, n in channels.items())} do not form {groups} groups of "
            "equal size"
        )


def convolved(
    x: Shape, weight: Shape, bias: Shape | None = None, *, stride: Shape, padding: Pairs, dilation: Shape, groups: int
) -> Shape:
    """The shape of a convolution."""
    _check_ranks(x, weight)
    _check_groups(groups, input=x[1], output=weight[0])
    if weight[1] * groups != x[1]:
        raise ShapeError(
            f"axis 1 of the input has {x[1]} channels, and the weight takes {weight[1]} in each of {groups} groups"
        )
    check_bias(bias, weight[0])
    return (x[0], weight[0], *window_counts(x[2:], weight[2:], stride, padding, dilation))


def convolved_transposed(
    x: Shape,
    weight: Shape,
    bias: Shape | None = None,
    *,
    stride: Shape,
    padding: Pairs,
    output_padding: Shape,
    dilation: Shape,
    groups: int,
) -> Shape:
    """The shape of a transposed convolution."""
    _check_ranks(x, weight)
    check_window(len(x) - 2, stride, padding, dilation)
    _check_groups(groups, input=x[1])
    if weight[0] != x[1]:
        raise ShapeError(f"axis 1 of the input has {x[1]} channels, and axis 0 of the weight {weight[0]}")
    check_bias(bias, weight[1] * groups)
    if len(output_padding) != len(stride) or any(not 0 <= p < s for p, s in zip(output_padding, stride, strict=True)):
        raise ArgumentError(
            f"output_padding chooses between the inputs that one stride maps to one output: it is from 0 to stride - 1 "
            f"along each axis, not {list(output_padding)} for strides {list(stride)}"
        )
    places = []
    for axis, (n, width, step, (before, after), extra, spacing) in enumerate(
        zip(x[2:], weight[2:], stride, padding, output_padding, dilation, strict=True)
    ):
        length = (n - 1) * step + window_reach(width, spacing) + extra - before - after
        if width < 1 or n < 1 or length < 1:
            raise ShapeError(f"nothing of axis {axis + 2} of {n} is left with a window of {width} and this padding")
        places.append(length)
    return (x[0], weight[1] * groups, *places)


def conv_weight_shape(
    x: Shape, grad: Shape, *, size: Shape, stride: Shape, padding: Pairs, dilation: Shape, groups: int
) -> Shape:
    """The shape of the gradient of a weight, from the shapes of the input and of the result's gradient."""
    _check_groups(groups, input=x[1], output=grad[1])
    counts = window_counts(x[2:], size, stride, padding, dilation)
    if grad[0] != x[0] or grad[2:] != counts:
        raise ShapeError(f"the gradient {list(grad)} is not of {x[0]} examples and {list(counts)} windows")
    return (grad[1], x[1] // groups, *size)


# ---- bodies ----


def offsets(size: Shape) -> Iterator[Shape]:
    """Every position within a window, in row-major order."""
    return itertools.product(*(range(n) for n in size))


def window_slices(offset: Shape, counts: Shape, stride: Shape, dilation: Shape) -> tuple[slice, ...]:
    """The slices that select element ``offset`` of every window."""
    starts = [o * spacing for o, spacing in zip(offset, dilation, strict=True)]
    return tuple(slice(s, s + (n - 1) * step + 1, step) for s, n, step in zip(starts, counts, stride, strict=True))


def zero_padded(k: Any, x: Any, padding: Pairs) -> Any:
    """``x`` with its spatial axes padded with zeros."""
    return k.pad(x, ((0, 0), (0, 0), *padding)) if any(map(any, padding)) else x


def unpadded(k: Any, x: Any, places: Shape, padding: Pairs) -> Any:
    """``x`` without its padding; ``places`` are the lengths of its spatial axes."""
    inner = tuple(slice(before, before + n, 1) for n, (before, _) in zip(places, padding, strict=True))
    return k.slice(x, (*full_slices(*x.shape[:2]), *inner))


def _element(k: Any, weight: Any, offset: Shape, groups: int) -> Any:
    """The weights of one window element, as a matrix for each group."""
    rows, columns = weight.shape[:2]
    part = k.slice(weight, (*full_slices(rows, columns), *(slice(o, o + 1, 1) for o in offset)))
    return k.reshape(part, (groups, rows // groups, columns))


def with_bias(k: Any, y: Any, bias: Any) -> Any:
    """``y`` plus the bias of its channels, if there is one."""
    if bias is None:
        return y
    return k.add(y, k.reshape(upcast_half(k, bias), (bias.shape[0], *[1] * (len(y.shape) - 2))))


# ---- gradients ----


def uncovered_counts(places: Shape, size: Shape, stride: Shape, padding: Pairs, dilation: Shape) -> Shape:
    """The number of padded elements at the end of each axis that no window reaches."""
    return tuple(
        (n + before + after - window_reach(width, spacing)) % step
        for n, width, step, (before, after), spacing in zip(places, size, stride, padding, dilation, strict=True)
    )


def grad_bias(k: Any, g: Any) -> Any:
    """The gradient of the bias: the sum over examples and positions."""
    return k.sum(g, (0, *range(2, len(g.shape))), False)


def grad_conv_x(
    k: Any, g: Any, x_shape: Shape, weight: Any, stride: Shape, padding: Pairs, dilation: Shape, groups: int
) -> Any:
    """The gradient of the input: each window's gradient, at the window's position."""
    if 0 in x_shape[2:]:  # all windows lie in the padding
        return k.zeros(x_shape, k.dtype(g))
    rest = uncovered_counts(x_shape[2:], weight.shape[2:], stride, padding, dilation)
    return k.conv_transpose(g, weight, None, stride, padding, rest, dilation, groups)


class Conv(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """Convolutions."""

    @operation(kinds="FC", shape=convolved, differentiable=True)
    def conv(
        self: Any,
        x: F,
        weight: F,
        bias: F | None = None,
        /,
        stride: Shape = (1,),
        padding: Pairs = ((0, 0),),
        dilation: Shape = (1,),
        groups: int = 1,
    ) -> F:
        """The products of ``weight`` with all windows of ``x``, plus ``bias``.

        ``weight`` has the shape ``(outputs, inputs / groups, *window)`` and ``bias`` (outputs,); each group of output
        channels is computed from its group of input channels. Along an axis of length ``n``, with a window of length
        ``m``, ``out[i] = sum(weight[j] * padded[i * stride + j * dilation] for j in range(m))``, for all ``i`` that
        fit.
        """
        dtype, (examples, channels) = self.dtype(x), x.shape[:2]
        options: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        shape = convolved(x.shape, weight.shape, shape_or_none(bias), **options)
        counts = shape[2:]
        padded, wide = zero_padded(self, upcast_half(self, x), padding), upcast_half(self, weight)
        total = None
        for offset in offsets(wide.shape[2:]):
            key = (*full_slices(examples, channels), *window_slices(offset, counts, stride, dilation))
            seen = self.reshape(self.slice(padded, key), (examples, groups, channels // groups, math.prod(counts)))
            part = self.matmul(_element(self, wide, offset, groups), seen)
            total = part if total is None else self.add(total, part)
        return self.astype(with_bias(self, self.reshape(total, shape), bias), dtype)

    gradient_rule(
        conv,
        x=grad_conv_x,
        weight=lambda k, g, x, weight_shape, stride, padding, dilation, groups: k.conv_weight_backward(
            x, g, weight_shape[2:], stride, padding, dilation, groups
        ),
        bias=grad_bias,
    )
    linear_in(conv, "x", "weight")
    tangent(conv, bias=lambda k, t, x: k.reshape(t, (*t.shape, *[1] * (len(x.shape) - 2))))
    multiply_adds(conv, lambda out, x, weight, bias, **_: math.prod(out) * math.prod(weight[1:]))

    @operation(kinds="FC", shape=convolved_transposed, differentiable=True)
    def conv_transpose(
        self: Any,
        x: F,
        weight: F,
        bias: F | None = None,
        /,
        stride: Shape = (1,),
        padding: Pairs = ((0, 0),),
        output_padding: Shape = (0,),
        dilation: Shape = (1,),
        groups: int = 1,
    ) -> F:
        """The gradient of a convolution with respect to its input, plus ``bias``: each element of ``x`` adds a window.

        ``weight`` has the shape ``(inputs, outputs / groups, *window)``. An axis of length ``n`` becomes one of length
        ``(n - 1) * stride + dilation * (m - 1) + 1 + output_padding``, from which ``padding`` is removed.
        ``output_padding``, below ``stride``, selects one of the lengths that the convolution maps to ``n``.
        """
        dtype, (examples, channels), given = self.dtype(x), x.shape[:2], x.shape[2:]
        options: dict[str, Any] = {"stride": stride, "padding": padding, "output_padding": output_padding}
        options |= {"dilation": dilation, "groups": groups}
        shape = convolved_transposed(x.shape, weight.shape, shape_or_none(bias), **options)
        outputs, lengths = shape[1], shape[2:]
        uncut = tuple(n + before + after for n, (before, after) in zip(lengths, padding, strict=True))
        columns = self.reshape(upcast_half(self, x), (examples, groups, channels // groups, math.prod(given)))
        wide = upcast_half(self, weight)
        total = self.zeros((examples, outputs, *uncut), self.dtype(wide))
        for offset in offsets(wide.shape[2:]):
            element = self.permute_dims(_element(self, wide, offset, groups), (0, 2, 1))
            part = self.reshape(self.matmul(element, columns), (examples, outputs, *given))
            key = (*full_slices(examples, outputs), *window_slices(offset, given, stride, dilation))
            total = self.add(total, self.slice_backward(part, total.shape, key))
        return self.astype(with_bias(self, unpadded(self, total, lengths, padding), bias), dtype)

    gradient_rule(
        conv_transpose,
        x=lambda k, g, weight, stride, padding, dilation, groups: k.conv(
            g, weight, None, stride, padding, dilation, groups
        ),
        weight=lambda k, g, x, weight_shape, stride, padding, dilation, groups: k.conv_weight_backward(
            g, x, weight_shape[2:], stride, padding, dilation, groups
        ),
        bias=grad_bias,
    )
    linear_in(conv_transpose, "x", "weight")
    tangent(conv_transpose, bias=lambda k, t, x: k.reshape(t, (*t.shape, *[1] * (len(x.shape) - 2))))
    multiply_adds(conv_transpose, lambda out, x, weight, bias, **_: math.prod(x) * math.prod(weight[1:]))

    @operation(kinds="FC", shape=conv_weight_shape, differentiable=True)
    def conv_weight_backward(
        self: Any,
        x: F,
        grad: F,
        /,
        size: Shape = (1,),
        stride: Shape = (1,),
        padding: Pairs = ((0, 0),),
        dilation: Shape = (1,),
        groups: int = 1,
    ) -> F:
        """The gradient of :meth:`conv` with respect to a weight with windows of ``size``, given that of its result."""
        conv_weight_shape(x.shape, grad.shape, size=size,
                 stride=stride, padding=padding, dilation=dilation, groups=groups)  # fmt: skip
        dtype, (examples, channels) = self.dtype(x), x.shape[:2]
        outputs, counts = grad.shape[1], grad.shape[2:]
        padded, count = zero_padded(self, upcast_half(self, x), padding), math.prod(counts)

        def by_group(t: Any, channels: int, last: bool) -> Any:
            """A matrix for each group: channels by windows of all examples if those are ``last``, else transposed."""
            split = self.reshape(t, (examples, groups, channels // groups, count))
            axes, shape = (1, 2, 0, 3), (groups, channels // groups, examples * count)
            if not last:
                axes, shape = (1, 0, 3, 2), (groups, examples * count, channels // groups)
            return self.reshape(self.permute_dims(split, axes), shape)

        rows, parts = by_group(upcast_half(self, grad), outputs, True), []
        for offset in offsets(size):
            key = (*full_slices(examples, channels), *window_slices(offset, counts, stride, dilation))
            part = self.matmul(rows, by_group(self.slice(padded, key), channels, False))
            parts.append(self.reshape(part, (outputs, channels // groups)))
        return self.astype(self.reshape(self.stack(parts, 2), (outputs, channels // groups, *size)), dtype)

    gradient_rule(
        conv_weight_backward,
        x=lambda k, g, x_shape, grad, stride, padding, dilation, groups: grad_conv_x(
            k, grad, x_shape, g, stride, padding, dilation, groups
        ),
        grad=lambda k, g, x, stride, padding, dilation, groups: k.conv(x, g, None, stride, padding, dilation, groups),
    )
    linear_in(conv_weight_backward, "x", "grad")
    multiply_adds(conv_weight_backward, lambda out, x, grad, **_: math.prod(grad) * math.prod(out[1:]))
