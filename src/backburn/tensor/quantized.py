"""Tensor functions: products with quantized operands, and rounding to the values of a scheme."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backburn.backend.quantized import scale_shape
from backburn.backend.shapes import broadcast_to
from backburn.base.dtypes import QuantizedDType, as_dtype, float32, qint8
from backburn.base.errors import ArgumentError, AxisError, DTypeError, NotDifferentiableError, ShapeError
from backburn.tensor.dispatch import (
    axis_of,
    call,
    cast,
    describe,
    dtype_or_default,
    float_operand,
    is_tensor,
    made,
    number,
    tensor_operand,
)  # fmt: skip

if TYPE_CHECKING:
    from backburn.tensor.classes import FloatTensor, Tensor


def scheme_for(name: str, x: Tensor, dtype: Any) -> QuantizedDType:
    """The scheme that ``dtype`` names, with a channel axis that counts from 0 on in ``x``."""
    scheme = as_dtype(dtype)
    if not isinstance(scheme, QuantizedDType):
        raise DTypeError(f"{name}: {scheme} is no quantized dtype; bb.qint8 is one")
    return scheme if scheme.axis is None else scheme.over(axis_of(name, x, scheme.axis))


def range_for(name: str, x: Tensor, scheme: QuantizedDType, low: Any, high: Any) -> tuple[Any, ...]:
    """Both ends of a range, as constants of the dtype of ``x`` and the shape of its steps; none if none is given."""
    if low is None and high is None:
        return ()
    if low is None or high is None:
        raise ArgumentError(f"{name}: a range has a low and a high end; give both, or neither")
    try:
        steps = scale_shape(x.shape, scheme)
        return _end(name, x, low, steps), _end(name, x, high, steps)
    except (AxisError, ShapeError) as error:
        raise type(error)(f"{name}: {error}. Operand: {describe((x,))}") from None


def _end(name: str, x: Tensor, value: Any, steps: tuple[int, ...]) -> Any:
    if is_tensor(value):
        if value.is_tracked:
            raise NotDifferentiableError(f"{name}: the range has no gradient: detach {describe((value,))} first")
        end = cast(float_operand(name, value), x.dtype)
    else:
        end = _constant(x, number(name, "an end of the range", value))
    broadcast_to(end.shape, shape=steps)
    return call("broadcast_to", end, shape=steps)


def _constant(x: Tensor, value: float) -> Any:
    """A 0-d tensor of the dtype and backend of ``x``."""
    return made("full", x.backend, shape=(), value=value, dtype=x.dtype)


def fake_quantize(x: Tensor, /, *, dtype: Any = qint8, low: Any = None, high: Any = None) -> FloatTensor:
    """The values of ``x`` after rounding by a scheme, as a float tensor; the gradient passes straight through.

    A model that computes with them while it is trained learns to do with what quantization leaves (Jacob et al. (2018),
    *Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference*, CVPR, section 3).
    Where a range from ``low`` to ``high`` is given, what lies beyond it gets no gradient. Raises as
    :func:`backburn.quantize`.

        >>> import backburn as bb
        >>> x = bb.asarray([127.0, 0.7]).require_grad()
        >>> y = fake_quantize(x)
        >>> y.tolist(), x.grad(y.sum().backward()).tolist()
        ([127.0, 1.0], [1.0, 1.0])
    """
    y = float_operand("fake_quantize", x)
    scheme = scheme_for("fake_quantize", y, dtype)
    ends = range_for("fake_quantize", y, scheme, low, high)
    name = "fake_quantize_between" if ends else "fake_quantize"
    return call(name, y, *ends, dtype=scheme)  # type: ignore[no-any-return]


def quantized_operand(name: str, x: Any) -> Any:
    """``x``, which must be a quantized tensor."""
    if tensor_operand(name, x).dtype.kind != "quantized":
        raise DTypeError(f"{name}: takes a quantized tensor, not {describe((x,))}; x.quantize() makes one")
    return x


def quantized_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, /, *, transposed: bool = False
) -> FloatTensor:
    """``x @ weight + bias`` for a quantized ``weight`` (inputs, outputs), or with ``transposed`` (outputs, inputs).

    The weight is never expanded whole, and is a constant: gradients flow to ``x`` and ``bias``. Raises
    :class:`DTypeError` for a weight that is not quantized and :class:`ShapeError` for shapes that do not fit.

        >>> import backburn as bb
        >>> weight = bb.asarray([[127.0, 0.0], [0.0, 127.0]]).quantize()
        >>> quantized_linear(bb.asarray([1.0, 2.0]), weight).tolist()
        [127.0, 254.0]
    """
    y = float_operand("q_linear", x)
    added = None if bias is None else cast(float_operand("q_linear", bias), y.dtype)
    w = quantized_operand("q_linear", weight)
    return call("q_linear", y, w, added, transposed=transposed)  # type: ignore[no-any-return]


def quantized_matmul(x: Tensor, y: Tensor, /, *, dtype: Any = None) -> FloatTensor:
    """The product of two quantized matrices in float32, or in another float ``dtype``.

    Integers are added up exactly where one step belongs to all values, or to each row of ``x`` and each column of
    ``y``. Raises :class:`DTypeError` for what is not quantized and :class:`ShapeError` where lengths differ.

        >>> import backburn as bb
        >>> x = bb.asarray([[127.0, 1.0]]).quantize()
        >>> quantized_matmul(x, x.T).tolist()
        [[16130.0]]
    """
    operands = [quantized_operand("q_matmul", t) for t in (x, y)]
    return call("q_matmul", *operands, dtype=dtype_or_default(dtype, float32))  # type: ignore[no-any-return]
