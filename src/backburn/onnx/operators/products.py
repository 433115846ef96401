"""Products of matrices."""

from __future__ import annotations

from typing import Any

from backburn.nn import functional
from backburn.onnx.registry import UseBody, Value, operator
from backburn.tensor import arithmetic, creation
from backburn.tensor import shape as shapes
from backburn.tensor.classes import Tensor
from backburn.tensor.einsum import einsum as einsum_of
from backburn.tensor.linalg import matrices
from backburn.tensor.linalg.products import matmul as product


@operator("MatMul")
def matmul(x: Tensor, y: Tensor, /, *, run: Any) -> Any:
    """The product of matrices, or of stacks of them."""
    run.check_broadcast((*x.shape[:-1], 1), (*y.shape[:-2], 1, y.shape[-1]) if y.ndim > 1 else (1,))
    return product(x, y)


@operator("Gemm")
def gemm(
    x: Tensor, y: Tensor, z: Tensor | None = None, /,
    *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0,
) -> Any:  # fmt: skip
    """``alpha * x @ y + beta * z``, with either matrix transposed."""
    left = shapes.permute_dims(x, (1, 0)) if transA else x
    if alpha == beta == 1.0 and transB and x.dtype.is_floating and (z is None or z.ndim == 1):
        return functional.linear(left, y, z)
    result: Any = product(left, shapes.permute_dims(y, (1, 0)) if transB else y)
    if alpha != 1.0:
        result = _scaled(result, alpha)
    return result if z is None else arithmetic.add(result, z if beta == 1.0 else _scaled(z, beta))


def _scaled(x: Any, factor: float) -> Any:
    """A product with an attribute's value, in the dtype of the tensor."""
    return arithmetic.multiply(x, factor if x.dtype.is_floating else int(factor))


@operator("Einsum")
def einsum(*xs: Tensor, equation: str, run: Any) -> Any:
    """Einstein's summation."""
    operands, _, result = equation.replace(" ", "").partition("->")
    lengths = {
        letter: n
        for word, x in zip(operands.split(","), xs, strict=False)
        for letter, n in zip(word, x.shape, strict=False)
    }
    run.check_elements([lengths.get(letter, 1) for letter in result or operands])
    return einsum_of(equation.replace(" ", ""), *xs)


@operator("Attention")
def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, past_key: Value = None,
    past_value: Value = None, lengths: Value = None, /,
    *, is_causal: int = 0, scale: float | None = None, softcap: float = 0.0, call: Any,
) -> Any:  # fmt: skip
    """Attention of batches and heads, without the matrix of all scores; other options use the standard's body."""
    heads = {x.shape[:2] for x in (query, key, value)}
    has_more = call.outputs > 1 or any(x is not None for x in (past_key, past_value, lengths))
    is_masked = mask is not None and (bool(is_causal) or mask.shape[-1:] != key.shape[-2:-1])
    if query.ndim != 4 or len(heads) > 1 or has_more or is_masked:
        raise UseBody("heads in one axis, shared heads and caches are not supported")
    options: dict[str, Any] = {"is_causal": bool(is_causal), "scale": scale, "softcap": softcap or None}
    return functional.scaled_dot_product_attention(query, key, value, mask, **options)


@operator("Det")
def det(x: Tensor, /) -> Any:
    """Determinants."""
    return matrices.det(x)


@operator("MatMulInteger")
def matmul_integer(x: Tensor, y: Tensor, x_zero: Tensor | None = None, y_zero: Tensor | None = None, /) -> Any:
    """The product of 8-bit integers minus their zero points, as 32-bit integers."""
    return product(shifted(x, x_zero, -2), shifted(y, y_zero, -1))


def shifted(x: Any, zero: Any, axis: int) -> Any:
    """Integers minus their zero point, in 32 bits; a vector of zero points applies along an axis."""
    whole = creation.astype(x, "int32")
    if zero is None:
        return whole
    zeros = creation.astype(zero, "int32")
    if zeros.ndim == 1 and zeros.shape[0] > 1 and x.ndim > 1:
        zeros = shapes.reshape(zeros, [-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
    return arithmetic.subtract(whole, zeros)
