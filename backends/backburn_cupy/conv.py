"""CuPy: convolutions, by cuDNN if installed, else by matrix products (:mod:`backburn_cupy.conv_columns`).

For operands in channels-last memory layout, the result has it, too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cupy

from backburn.ops.conv import Pairs, conv_weight_shape, convolved, convolved_transposed
from backburn.ops.table import OPERATIONS
from backburn_cupy import conv_columns, cudnn
from backburn_cupy.kernels.windows import Windows

Array = Any
Shape = tuple[int, ...]

#: The ids of operands and result in a graph.
FIRST, SECOND, BIAS, OUT = 1, 2, 3, 4


def conv(
    k: Any, x: Array, weight: Array, bias: Array | None = None, /, stride: Shape = (1,),
    padding: Pairs = ((0, 0),), dilation: Shape = (1,), groups: int = 1,
) -> Array:  # fmt: skip
    bias_shape = None if bias is None else bias.shape
    shape = convolved(
        x.shape, weight.shape, bias_shape, stride=stride, padding=padding, dilation=dilation, groups=groups
    )
    out = _try_cudnn(k, "forward", x, weight, shape, padding, stride, dilation, bias)
    if out is not None:
        return out
    if conv_columns.supports(k, weight.shape[2:], x, weight):
        windows = Windows(weight.shape[2:], shape[2:], stride, padding, dilation)
        return conv_columns.forward(k, x, weight, bias, windows, groups)
    return OPERATIONS["conv"].body(k, x, weight, bias, stride, padding, dilation, groups)


def conv_transpose(
    k: Any, x: Array, weight: Array, bias: Array | None = None, /, stride: Shape = (1,),
    padding: Pairs = ((0, 0),), output_padding: Shape = (0,), dilation: Shape = (1,), groups: int = 1,
) -> Array:  # fmt: skip
    bias_shape = None if bias is None else bias.shape
    shape = convolved_transposed(
        x.shape, weight.shape, bias_shape, stride=stride, padding=padding, output_padding=output_padding,
        dilation=dilation, groups=groups,
    )  # fmt: skip
    out = _try_cudnn(k, "input", x, weight, shape, padding, stride, dilation, bias)
    if out is not None:
        return out
    if conv_columns.supports(k, weight.shape[2:], x, weight):
        windows = Windows(weight.shape[2:], x.shape[2:], stride, padding, dilation)
        return conv_columns.backward(k, x, weight, bias, shape, windows, groups)
    return OPERATIONS["conv_transpose"].body(k, x, weight, bias, stride, padding, output_padding, dilation, groups)


def conv_weight_backward(
    k: Any, x: Array, grad: Array, /, size: Shape = (1,), stride: Shape = (1,), padding: Pairs = ((0, 0),),
    dilation: Shape = (1,), groups: int = 1,
) -> Array:  # fmt: skip
    shape = conv_weight_shape(
        x.shape, grad.shape, size=size, stride=stride, padding=padding, dilation=dilation, groups=groups
    )
    out = _try_cudnn(k, "weight", x, grad, shape, padding, stride, dilation)
    if out is not None:
        return out
    if conv_columns.supports(k, size, x, grad):
        windows = Windows(size, grad.shape[2:], stride, padding, dilation)
        return conv_columns.weight_backward(k, x, grad, shape, windows, groups)
    return OPERATIONS["conv_weight_backward"].body(k, x, grad, size, stride, padding, dilation, groups)


# ---- by cuDNN ----


class Convolution(NamedTuple):
    """The key of a plan: see :class:`backburn_cupy.cudnn.Kind`.

    ``which`` is the result: that of the convolution ("forward"), or the gradient for its input or its weight. Shapes
    are of the first operand, the second and the result, and determine the groups.
    """

    device: int
    dtype: str
    tf32: bool
    deterministic: bool
    which: str
    first: Shape
    second: Shape
    out: Shape
    padding: Pairs
    stride: Shape
    dilation: Shape
    channels_last: bool
    biased: bool

    def describe(self, graph: Any) -> None:
        def operand(number: int, shape: Shape) -> Any:
            strides = packed_strides(shape, self.channels_last)
            return graph.tensor(dim=list(shape), stride=list(strides), data_type=dtype, uid=number)

        dtype = cudnn.type_of(self.dtype)
        window = {
            "pre_padding": [before for before, _ in self.padding],
            "post_padding": [after for _, after in self.padding],
            "stride": list(self.stride),
            "dilation": list(self.dilation),
        }
        first, second = operand(FIRST, self.first), operand(SECOND, self.second)
        if self.which == "forward":
            out = graph.conv_fprop(image=first, weight=second, **window)
        elif self.which == "input":
            out = graph.conv_dgrad(loss=first, filter=second, **window)
        else:
            out = graph.conv_wgrad(image=first, loss=second, **window)
        if self.biased:
            row = (1, self.out[1], *[1] * (len(self.out) - 2))
            out = graph.bias(input=out, bias=operand(BIAS, row))
        out.set_output(True).set_data_type(dtype).set_uid(OUT)
        out.set_dim(list(self.out)).set_stride(list(packed_strides(self.out, self.channels_last)))


def _try_cudnn(
    k: Any, which: str, first: Array, second: Array, shape: Shape, padding: Pairs, stride: Shape, dilation: Shape,
    bias: Array | None = None,
) -> Array | None:  # fmt: skip
    """The result by cuDNN; None if not installed or without a plan."""
    if cudnn.found().module is None or first.dtype.kind == "c" or 0 in (*first.shape, *second.shape, *shape):
        return None
    if len(shape) == 3:  # cuDNN has no 1-d convolutions: add an axis of length 1
        first, second = (x.reshape(*x.shape[:2], 1, x.shape[2]) for x in (first, second))
        shape = (*shape[:2], 1, shape[2])
        padding, stride, dilation = ((0, 0), *padding), (1, *stride), (1, *dilation)
        out = _try_cudnn(k, which, first, second, shape, padding, stride, dilation, bias)
        return None if out is None else out.reshape(*shape[:2], shape[3])
    last = is_packed(first, True) and not is_packed(first, False)
    first, second = (with_layout(x, last) for x in (first, second))
    out = new_array(shape, first.dtype, last)
    addresses = {FIRST: first.data.ptr, SECOND: second.data.ptr, OUT: out.data.ptr}
    kind = Convolution(
        k.number, first.dtype.name, k.allow_tf32, k.deterministic, which, first.shape, second.shape, shape, padding,
        stride, dilation, last, False,
    )  # fmt: skip
    if bias is not None and which == "forward":
        row = align(cupy.ascontiguousarray(bias))
        if cudnn.plan(kind._replace(biased=True)).run({**addresses, BIAS: row.data.ptr}):
            return out
    if not cudnn.plan(kind).run(addresses):
        return None
    if bias is not None:
        cupy.add(out, bias.reshape(-1, *[1] * (len(shape) - 2)), out=out)
    return out


# ---- memory layout ----


def packed_strides(shape: Shape, channels_last: bool) -> Shape:
    """The strides, in elements, of a packed array, with channels (axis 1) first or last.

    >>> packed_strides((2, 3, 4, 5), False), packed_strides((2, 3, 4, 5), True)
    ((60, 20, 5, 1), (60, 1, 15, 3))
    """
    order = (0, *range(2, len(shape)), 1) if channels_last else tuple(range(len(shape)))
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def is_packed(x: Array, channels_last: bool) -> bool:
    """Whether an array has these strides; that of an axis of length 1 is irrelevant."""
    steps = packed_strides(x.shape, channels_last)
    return all(n == 1 or s == step * x.itemsize for n, s, step in zip(x.shape, x.strides, steps, strict=True))


def with_layout(x: Array, channels_last: bool) -> Array:
    """``x`` in a layout that cuDNN reads: itself, or a copy."""
    if is_packed(x, channels_last):
        return align(x)
    out = new_array(x.shape, x.dtype, channels_last)
    out[...] = x
    return out


def align(x: Array) -> Array:
    """``x``, or a copy if it is not aligned."""
    return x if x.data.ptr % cudnn.ALIGNMENT == 0 else x.copy(order="K")


def new_array(shape: Shape, dtype: Any, channels_last: bool) -> Array:
    """A new array of that layout."""
    if not channels_last:
        return cupy.ndarray(shape, dtype)
    return cupy.moveaxis(cupy.ndarray((shape[0], *shape[2:], shape[1]), dtype), -1, 1)
