"""Tensor functions: convolutions over one, two or three axes.

Inputs have the shape `(examples, channels, *spatial)`. ``stride``, ``dilation`` and ``output_padding`` are a number, or
one for each spatial axis; ``padding`` is a number of zeros at all ends, one for each axis, a pair (before, after) for
each axis, ``"valid"`` (none) or ``"same"`` (output as long as the input; with stride 1). Integers become the default
float. Raises :class:`ShapeError` if shapes do not fit or a window is larger than the padded input, and
:class:`ArgumentError` for options out of range.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from backburn.nn.functional.window_options import Padding, Sizes, each, pairs, places_rank
from backburn.tensor.core.dispatch import call, promote_present, tensor_operand

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, Tensor

__all__ = ["conv", "conv_transpose", "deform_conv2d"]


def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> FloatTensor:
    """The convolution (strictly, cross-correlation) of ``x`` with ``weight`` over all spatial axes.

    ``weight`` has the shape ``(outputs, inputs / groups, *window)``, ``bias`` (outputs,). Along an axis, ``out[i] =
    sum(weight[j] * padded[i * stride + j * dilation])``: the window is not flipped. With ``groups``, each group of
    output channels is computed from its group of input channels only.

        >>> import backburn as bb
        >>> x, weight = bb.asarray([[[1.0, 2.0, 4.0, 8.0]]]), bb.asarray([[[1.0, -1.0]]])
        >>> conv(x, weight).tolist()
        [[[-1.0, -2.0, -4.0]]]
        >>> conv(x, weight, stride=2, padding=1).tolist()
        [[[-1.0, -2.0, 8.0]]]
        >>> conv(x, weight, padding="same").shape
        (1, 1, 4)
        >>> conv(bb.ones((2, 3, 8, 8)), bb.ones((4, 3, 3, 3))).shape
        (2, 4, 6, 6)
    """
    x, weight, bias = promote_present("conv", tensor_operand("conv", x), tensor_operand("conv", weight), bias)
    options = _options("conv", (x, weight), weight, places_rank("conv", x), stride, padding, dilation, groups)
    return call("conv", x, weight, bias, **options)


def conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> FloatTensor:
    """The transposed convolution: the gradient of :func:`conv` with respect to its input.

    ``weight`` has the shape ``(inputs, outputs / groups, *window)``. ``padding`` is removed from the ends; the length
    of an axis is ``(n - 1) * stride + dilation * (window - 1) + 1 - before - after + output_padding``. An
    ``output_padding`` below ``stride`` selects one of the lengths that :func:`conv` maps to ``n``; a larger one adds
    positions that no window reaches and that hold ``bias``.

        >>> import backburn as bb
        >>> x, weight = bb.asarray([[[1.0, 10.0]]]), bb.asarray([[[1.0, 2.0, 3.0]]])
        >>> conv_transpose(x, weight).tolist()
        [[[1.0, 12.0, 23.0, 30.0]]]
        >>> conv_transpose(x, weight, stride=2, padding=1, output_padding=1).tolist()
        [[[2.0, 13.0, 20.0, 30.0]]]
    """
    name = "conv_transpose"
    x, weight, bias = promote_present(name, tensor_operand(name, x), tensor_operand(name, weight), bias)
    rank = places_rank(name, x)
    of = (x, weight)
    options = _options(name, of, weight, rank, stride, padding, dilation, groups)
    # Each whole stride of output_padding is one more zero at the end of the input.
    extra = each(name, "output_padding", output_padding, rank, 0, of=of)
    more, extra = zip(*map(divmod, extra, options["stride"]), strict=True)
    if any(more):
        x = call("pad", x, widths=((0, 0), (0, 0), *((0, m) for m in more)))
    return call(name, x, weight, bias, output_padding=extra, **options)


def deform_conv2d(
    x: Tensor,
    offset: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    mask: Tensor | None = None,
    *,
    groups: int = 1,
) -> FloatTensor:
    """:func:`conv` over two axes, with the sampling positions of each window displaced by ``offset``.

    ``offset`` (examples, sets * 2 * window, rows, columns) has pairs (down, right) for each output position; each set
    is for an equal part of the input channels. ``mask`` (examples, sets * window, rows, columns) multiplies the
    samples. ``x`` is interpolated linearly, and is 0 outside. After Zhu et al., Deformable ConvNets v2, 2019.

        >>> import backburn as bb
        >>> x = bb.asarray([[[[1.0, 2.0], [3.0, 4.0]]]])
        >>> right = bb.asarray([0.0, 0.5]).reshape((1, 2, 1, 1)) + bb.zeros((1, 2, 2, 2))
        >>> deform_conv2d(x, right, bb.ones((1, 1, 1, 1))).tolist()
        [[[[1.5, 1.0], [3.5, 2.0]]]]
    """
    name = "deform_conv2d"
    x, offset, weight = (tensor_operand(name, t) for t in (x, offset, weight))
    x, offset, weight, mask, bias = promote_present(name, x, offset, weight, mask, bias)
    options = _options(name, (x, offset, weight), weight, 2, stride, padding, dilation, groups)
    return call(name, x, offset, weight, mask, bias, **options)


def _options(
    name: str, of: Sequence[Tensor], weight: Tensor, rank: int, stride: Sizes, padding: Padding, dilation: Sizes,
    groups: int,
) -> dict[str, Any]:  # fmt: skip
    """The options of a convolution over ``rank`` axes as the contract takes them."""
    steps, spacing = each(name, "stride", stride, rank, of=of), each(name, "dilation", dilation, rank, of=of)
    window = weight.shape[2:] if len(weight.shape) == rank + 2 else (1,) * rank  # another rank is rejected later
    widths = pairs(name, padding, window, steps, spacing, of=of)
    (groups,) = each(name, "groups", groups, 1, of=of)
    return {"stride": steps, "padding": widths, "dilation": spacing, "groups": groups}
