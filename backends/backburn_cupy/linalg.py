"""CuPy: matrix and vector products, by cuBLASLt, or cuBLAS if that is missing.

CuPy's ``matmul`` computes stacks of float16 matrices in float32, fails for stacks of bfloat16, and copies transposed
operands. Here every float product has its own dtype, accumulates in float32 (float64 in float64), and reads transposed,
sliced or broadcast operands in place. Only :func:`gemm` calls the libraries.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
import operator
from typing import Any

import cupy
import numpy as np

from backburn.ops.bodies.slicing import transpose
from backburn.ops.rules.shapes import matmul as product_shape
from backburn.ops.table import OPERATIONS, shape_rule
from backburn_cupy import cublaslt
from backburn_cupy.cublaslt import Layout, Sizes

Array = Any
Shape = tuple[int, ...]

#: cuBLAS's constant for its default algorithm.
DEFAULT_ALGORITHM = -1

#: The devices on which cuBLASLt applies GELU, sm_90 and sm_100; on sm_89 and sm_120 it is reported to be slower than a
#: separate kernel.
GELU_CAPABILITIES = range(90, 120)

#: Products with fewer results per multiprocessor (half a tile) and sums of at least this length are split.
RESULTS, LONG = 1 << 13, 1 << 11

#: The most calls for a stack whose axes are not evenly strided; with more, it is copied.
CALLS = 64

# The factors 1 and 0, which cuBLAS takes by reference: they must live as long as the process.
_FACTORS = {dtype: np.array([1, 0], dtype) for dtype in ("float32", "float64", "complex64", "complex128")}
_ADDRESSES = {dtype: (array.ctypes.data, array.ctypes.data + array.itemsize) for dtype, array in _FACTORS.items()}


_shape_of_matmul = functools.lru_cache(maxsize=4096)(product_shape)


def matmul(k: Any, x: Array, y: Array, /) -> Array:
    shape = _shape_of_matmul(x.shape, y.shape)
    if x.dtype.kind in "iub":
        return cupy.matmul(x, y)
    left = x.reshape(1, -1) if x.ndim == 1 else x
    right = y.reshape(-1, 1) if y.ndim == 1 else y
    result = product(k, left, right)
    return result if result.shape == shape else result.reshape(shape)


@functools.lru_cache(maxsize=4096)
def _shape_of_linear(x: Shape, weight: Shape, bias: Shape | None) -> Shape:
    return shape_rule("linear")(x, weight, bias)


def linear(k: Any, x: Array, weight: Array, bias: Array | None = None, /) -> Array:
    shape = _shape_of_linear(x.shape, weight.shape, None if bias is None else bias.shape)
    weight = weight.transpose((1, 0))
    if len(shape) == 2:
        return product(k, x, weight, bias)
    return product(k, _rows(x), weight, bias).reshape(shape)


@functools.lru_cache(maxsize=4096)
def _shapes_of_weight_backward(grad: Shape, x: Shape) -> tuple[Shape, Shape]:
    return shape_rule("linear_weight_backward")(grad, x)


def linear_weight_backward(k: Any, grad: Array, x: Array, /) -> tuple[Array, Array]:
    shapes = _shapes_of_weight_backward(grad.shape, x.shape)
    left, right = _rows(grad).transpose((1, 0)), _rows(x)
    size = shapes[0][0] * shapes[0][1]
    if size and left.size and x.dtype.kind != "c" and not _is_split(k, size, left.shape[1]):
        grad_weight, grad_bias = cupy.ndarray(shapes[0], x.dtype), cupy.ndarray(shapes[1], x.dtype)
        if gemm_with(k, left, right, grad_weight, cublaslt.SUM_RIGHT, grad_bias):
            return grad_weight, grad_bias
    return product(k, left, right), k.sum(left, (1,), False)


def _is_split(k: Any, results: int, length: int) -> bool:
    """Whether a product is so small, and its sums so long, that they are split among multiprocessors.

    A product that also sums an operand is not expected to be split: most multiprocessors would be idle.
    """
    return k.runner is not None and results < k.runner.processors * RESULTS and length >= LONG


def feed_forward(
    k: Any, x: Array, weight1: Array, weight2: Array, bias1: Array | None = None, bias2: Array | None = None, /,
    approximate: str = "none",
) -> tuple[Array, Array, Array]:  # fmt: skip
    operation = OPERATIONS["feed_forward"]
    _, hidden, _ = operation.result_shape((x, weight1, weight2, bias1, bias2), {})
    if bias1 is not None and _is_gelu_fused(k, x, hidden[-1], approximate):
        before, bias = cupy.ndarray(hidden, x.dtype), cupy.ascontiguousarray(bias1)
        after = _gelu_product(k, x, weight1.transpose((1, 0)), before, cublaslt.ADD_BIAS_AND_GELU, bias)
        if after is not None:
            return k.linear(after, weight2, bias2), before, after
    return operation.body(k, x, weight1, weight2, bias1, bias2, approximate)


def feed_forward_backward(
    k: Any, grad: Array, x: Array, weight2: Array, before: Array, /, approximate: str
) -> tuple[Array, Array, Array]:
    operation = OPERATIONS["feed_forward_backward"]
    *_, biases = operation.result_shape((grad, x, weight2, before), {})
    if _is_gelu_fused(k, grad, biases[0], approximate):
        before, grad_bias = cupy.ascontiguousarray(before), cupy.ndarray(biases, x.dtype)
        grad_before = _gelu_product(k, grad, weight2, before, cublaslt.GELU_GRADIENT_AND_SUMS, grad_bias)
        if grad_before is not None:
            return grad_before, product(k, transpose(k, _rows(grad_before)), _rows(x)), grad_bias
    return operation.body(k, grad, x, weight2, before, approximate)


def _is_gelu_fused(k: Any, x: Array, columns: int, approximate: str) -> bool:
    """Whether a product of ``x`` with so many columns may apply GELU, or its gradient, to its result.

    cuBLASLt has the tanh form, of a precision that is not documented: it is used for 16-bit floats.
    """
    return (
        approximate == "tanh"
        and x.dtype.itemsize == 2
        and k.runner is not None
        and k.runner.capability in GELU_CAPABILITIES
        and columns % cublaslt.AUX_STEP == 0
        and bool(x.size and columns)
    )


def _gelu_product(k: Any, x: Array, y: Array, before: Array, epilogue: int, numbers: Array) -> Array | None:
    """``x @ y`` with an epilogue of GELU, which writes or reads ``before``; None if not supported."""
    if before.data.ptr % cublaslt.AUX_ALIGNMENT:
        return None
    out = cupy.ndarray(before.shape, before.dtype)
    return out if gemm_with(k, _rows(x), y, _rows(out), epilogue, numbers, before) else None


def _rows(x: Array) -> Array:
    """``x`` as a matrix whose rows are its last axis."""
    return x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def product(k: Any, x: Array, y: Array, bias: Array | None = None, dtype: Any = None) -> Array:
    """The product of float matrices of at least two axes; ``bias`` is added to each row.

    ``dtype`` is the result's: for 16-bit operands it may be float32.
    """
    if y.ndim == 2 and x.ndim > 2:
        # One large product is faster than a stack of small ones.
        return product(k, _rows(x), y, bias, dtype).reshape(*x.shape[:-1], y.shape[1])
    front, back = x.shape[:-2], y.shape[:-2]
    stack = front if front == back else np.broadcast_shapes(front, back)
    out = cupy.ndarray((*stack, x.shape[-2], y.shape[-1]), x.dtype if dtype is None else dtype)
    if not out.size or not x.shape[-1]:
        out.fill(0)
        return out if bias is None else cupy.add(out, bias)
    if not stack:
        gemm(k, x, y, out, bias)
        return out
    x, y = _as_readable(x), _as_readable(y)
    if front != back:
        x, y = (cupy.broadcast_to(o, (*stack, *o.shape[-2:])) for o in (x, y))
    inner = _even_axes(stack, x, y)
    if math.prod(stack[:inner]) > CALLS:
        x, y = (_with_even_stack(o) for o in (x, y))
        inner = _even_axes(stack, x, y)
    if not inner:
        gemm(k, x, y, out, bias)
        return out
    for place in itertools.product(*(range(n) for n in stack[:inner])):
        gemm(k, x[place], y[place], out[place], bias)
    return out


# ---- memory layout ----


@functools.lru_cache(maxsize=4096)
def layout(shape: Shape, strides: Shape, itemsize: int) -> Layout | None:
    """The layout of an evenly strided stack of matrices (the last two axes); None if cuBLAS cannot read it.

    >>> layout((2, 3), (12, 4), 4), layout((3, 2), (4, 12), 4), layout((2, 2), (12, 8), 4)
    (Layout(leading=3, step=0, transposed=False), Layout(leading=3, step=0, transposed=True), None)
    >>> layout((5, 2, 3), (24, 12, 4), 4), layout((5, 2, 3), (-24, 12, 4), 4)
    (Layout(leading=3, step=6, transposed=False), None)
    """
    rows, columns = shape[-2:]
    by_row, by_column = strides[-2:]
    if by_row % itemsize or by_column % itemsize:
        return None
    by_row, by_column = by_row // itemsize, by_column // itemsize
    # The stride of an axis of length 1 is meaningless.
    step = next((s // itemsize for n, s in zip(shape[-3::-1], strides[-3::-1], strict=True) if n != 1), 0)
    if step < 0:  # cuBLAS does not promise to read it
        return None
    if columns == 1 or by_column == 1:
        leading = by_row if rows > 1 else max(columns, 1)
        if leading >= columns:
            return Layout(leading, step, False)
    if rows == 1 or by_row == 1:
        leading = by_column if columns > 1 else max(rows, 1)
        if leading >= rows:
            return Layout(leading, step, True)
    return None


def _as_readable(x: Array) -> Array:
    """``x``, copied if cuBLAS cannot read its matrices' layout."""
    return x if layout(x.shape, x.strides, x.itemsize) else cupy.ascontiguousarray(x)


def _with_even_stack(x: Array) -> Array:
    return x if _first_even_axis(x.shape[:-2], x.strides[:-2]) == 0 else cupy.ascontiguousarray(x)


def _even_axes(stack: Shape, x: Array, y: Array) -> int:
    """The first axis from which on both operands' stacks are evenly strided."""
    return max(_first_even_axis(stack, x.strides[:-2]), _first_even_axis(stack, y.strides[:-2]))


def _first_even_axis(stack: Shape, strides: Shape) -> int:
    """The first axis from which on a single stride covers the axes of a stack.

    >>> [_first_even_axis((2, 3, 1), strides) for strides in ((24, 8, 8), (8, 24, 8), (0, 0, 4))]
    [0, 1, 0]
    """
    first, covered, step = len(stack), 1, None
    for axis in reversed(range(len(stack))):
        if stack[axis] != 1:
            if step is None:
                step = strides[axis]
            elif strides[axis] != step * covered:
                return first
            covered *= stack[axis]
        first = axis
    return first


# ---- kinds of products ----


def gemm(k: Any, x: Array, y: Array, out: Array, bias: Array | None = None) -> None:
    """``out[...] = x @ y + bias`` for even stacks of one shape; ``out`` is contiguous."""
    x, y, products = _readable_operands(k, x, y, out.dtype)
    addresses = (y.data.ptr, x.data.ptr, out.data.ptr)
    # No epilogue takes complex numbers.
    row = None if bias is None else cupy.ascontiguousarray(bias)
    if row is not None and row.dtype.kind != "c" and products.multiply((*addresses, row.data.ptr), cublaslt.ADD_BIAS):
        return
    if not products.multiply(addresses):
        _by_cublas(addresses, *products.options)
    if row is not None:
        cupy.add(out, row, out=out)


def gemm_with(k: Any, x: Array, y: Array, out: Array, epilogue: int, *operands: Array) -> bool:
    """``out[...] = x @ y`` with an epilogue and its contiguous operands; False if not supported.

    With ``SUM_RIGHT``, the operand becomes ``x.sum(1)``.
    """
    x, y, products = _readable_operands(k, x, y, out.dtype)
    return products.multiply((y.data.ptr, x.data.ptr, out.data.ptr, *[o.data.ptr for o in operands]), epilogue)


def _readable_operands(k: Any, x: Array, y: Array, result: Any) -> tuple[Array, Array, Products]:
    """``x`` and ``y``, copied if cuBLAS cannot read their layout, and the :class:`Products` of such operands."""
    products = kind(k.number, x.shape, x.strides, y.shape, y.strides, x.dtype, result, k.allow_tf32)
    if products is not None:
        return x, y, products
    return _readable_operands(k, _as_readable(x), _as_readable(y), result)


class Products:
    """The products of operands of one layout: the libraries' options, and cuBLASLt's plans."""

    __slots__ = ("_device", "_plans", "options")

    def __init__(
        self, device: int, left: Layout, right: Layout, sizes: Sizes, dtype: str, tf32: bool, result: str
    ) -> None:
        self._device = device
        self.options = left, right, sizes, dtype, tf32, result
        #: By epilogue and alignments; by epilogue alone for operands that are aligned as those of CuPy's pool are.
        self._plans: dict[Any, cublaslt.Plan] = {}

    def multiply(self, addresses: tuple[int, ...], epilogue: int = cublaslt.NO_EPILOGUE) -> bool:
        """``out = left @ right``, all column-major, by cuBLASLt; False if not supported.

        ``addresses`` are those of the operands, of ``out``, and for an ``epilogue`` of its biases or sums, one per row,
        and of its auxiliary matrix, if it has one. ``out`` and the latter are contiguous and of the result's dtype. The
        work is queued on the current stream.
        """
        if cublaslt.library() is None:
            return False
        is_aligned = not functools.reduce(operator.or_, addresses) % cublaslt.ALIGNMENT
        alignments = None if is_aligned else tuple(map(cublaslt.alignment, addresses))
        plan = self._plans.get(epilogue if is_aligned else (epilogue, alignments))
        if plan is None:
            left, right, sizes, dtype, tf32, result = self.options
            compute = cublaslt.compute_type(dtype, tf32)
            kind = cublaslt.Kind(
                self._device, *sizes, left, right, dtype, compute, epilogue,
                alignments or (cublaslt.ALIGNMENT,) * len(addresses), result,
            )  # fmt: skip
            plan = self._plans[epilogue if is_aligned else (epilogue, alignments)] = cublaslt.Plan(kind)
        return plan.run(*addresses)


@functools.lru_cache(maxsize=4096)
def kind(
    device: int, x: Shape, x_strides: Shape, y: Shape, y_strides: Shape, dtype: Any, result: Any, tf32: bool
) -> Products | None:
    """The :class:`Products` of operands of these layouts; None if the libraries cannot read one."""
    left, right = layout(x, x_strides, dtype.itemsize), layout(y, y_strides, dtype.itemsize)
    if left is None or right is None:
        return None
    # In column-major order the product is y.T @ x.T, and a row-major matrix is its transpose.
    sizes = (y[-1], x[-2], x[-1], math.prod(x[:-2]))
    return Products(device, right, left, sizes, str(dtype.name), tf32, str(result.name))


# ---- the libraries ----


@functools.cache
def cublas() -> Any:
    """CuPy's bindings; imported when first needed, so that a machine without cuBLAS has all else."""
    return importlib.import_module("cupy_backends.cuda.libs.cublas")


def _by_cublas(
    addresses: tuple[int, ...], left: Layout, right: Layout, sizes: Sizes, dtype: str, allow_tf32: bool, result: str
) -> None:
    """The column-major product through CuPy, which graphs cannot record."""
    kind, compute, made = cublaslt.TYPES[dtype], cublaslt.compute_type(dtype, allow_tf32), cublaslt.TYPES[result]
    one, zero = _ADDRESSES[cublaslt.scale_type(dtype)]
    handle = cupy.cuda.device.get_cublas_handle()
    transposes = (int(left.transposed), int(right.transposed))
    m, n, length, count = sizes
    first, second, out = addresses
    if count == 1:
        cublas().gemmEx(
            handle, *transposes, m, n, length, one, first, kind, left.leading, second, kind, right.leading, zero, out,
            made, m, compute, DEFAULT_ALGORITHM,
        )  # fmt: skip
    else:
        cublas().gemmStridedBatchedEx(
            handle, *transposes, m, n, length, one, first, kind, left.leading, left.step, second, kind, right.leading,
            right.step, zero, out, made, m, m * n, count, compute, DEFAULT_ALGORITHM,
        )  # fmt: skip
