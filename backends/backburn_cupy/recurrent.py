"""CuPy: LSTMs and GRUs. A step is a product and one kernel.

16-bit floats are multiplied as such, on tensor cores. Gradients that pass from step to step besides the product, and
everything within a step, are float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from backburn.base.dtypes import float32
from backburn.ops.bodies.scalars import shape_or_none
from backburn.ops.recurrent import gru_backward_shapes, gru_shapes, lstm_backward_shapes, lstm_shapes
from backburn.ops.table import OPERATIONS
from backburn_cupy.kernels import geometry
from backburn_cupy.kernels.sources import c_type

Array = Any


def _by_kernels(operation: Callable[..., Any]) -> Callable[..., Any]:
    """``operation(k, ...)``; without a runner, the default body."""
    body = OPERATIONS[operation.__name__].body

    @wraps(operation)
    def either(k: Any, /, *operands: Any) -> Any:
        return body(k, *operands) if k.runner is None else operation(k, *operands)

    return either


@_by_kernels
def lstm(
    k: Any, projected: Array, hidden: Array, cell: Array, weight: Array, bias: Array | None = None, /
) -> tuple[Array, Array, Array]:
    bias_shape = None if bias is None else bias.shape
    shapes = lstm_shapes(projected.shape, hidden.shape, cell.shape, weight.shape, bias_shape)
    hiddens, cells, gates = (k.runner.xp.ndarray(shape, projected.dtype) for shape in shapes)
    projected, cell, bias = _contiguous(k, projected, cell, bias)
    transposed = weight.transpose(1, 0)
    for step in range(len(projected)):
        products = k.matmul(hiddens[step - 1] if step else hidden, transposed)
        _run(k, "lstm_step", hiddens, products, projected, bias, cell, hiddens, cells, gates, step)
    return hiddens, cells, gates


@_by_kernels
def lstm_cell(k: Any, projected: Array, /, *others: Array | None) -> tuple[Array, ...]:
    return tuple(y[0] for y in lstm(k, projected.reshape((1, *projected.shape)), *others))


@_by_kernels
def lstm_backward(
    k: Any,
    weight: Array,
    cell: Array,
    cells: Array,
    gates: Array,
    g_hiddens: Array | None = None,
    g_cells: Array | None = None,
    g_gates: Array | None = None,
    /,
) -> tuple[Array, Array, Array]:
    grads = map(shape_or_none, (g_hiddens, g_cells, g_gates))
    lstm_backward_shapes(weight.shape, cell.shape, cells.shape, gates.shape, *grads)
    cell, cells, gates, *given = _contiguous(k, cell, cells, gates, g_hiddens, g_cells, g_gates)
    grad_sums, grad_cell, grad_hidden = k.runner.xp.ndarray(gates.shape, gates.dtype), _wide_zeros(k, cell), None
    for step in reversed(range(len(gates))):
        _run(k, "lstm_step_backward", cells, grad_sums, grad_cell, grad_hidden, *given, cell, cells, gates, step)
        grad_hidden = k.matmul(grad_sums[step], weight)
    return grad_sums, grad_hidden, k.astype(grad_cell, k.dtype(cell))


@_by_kernels
def gru(k: Any, projected: Array, hidden: Array, weight: Array, bias: Array | None = None, /) -> tuple[Array, Array]:
    shapes = gru_shapes(projected.shape, hidden.shape, weight.shape, None if bias is None else bias.shape)
    hiddens, gates = (k.runner.xp.ndarray(shape, projected.dtype) for shape in shapes)
    projected, hidden, bias = _contiguous(k, projected, hidden, bias)
    transposed = weight.transpose(1, 0)
    for step in range(len(projected)):
        products = k.matmul(hiddens[step - 1] if step else hidden, transposed)
        _run(k, "gru_step", hiddens, products, projected, bias, hidden, hiddens, gates, step)
    return hiddens, gates


@_by_kernels
def gru_cell(k: Any, projected: Array, /, *others: Array | None) -> tuple[Array, ...]:
    return tuple(y[0] for y in gru(k, projected.reshape((1, *projected.shape)), *others))


@_by_kernels
def gru_backward(
    k: Any,
    weight: Array,
    hidden: Array,
    hiddens: Array,
    gates: Array,
    g_hiddens: Array | None = None,
    g_gates: Array | None = None,
    /,
) -> tuple[Array, Array, Array]:
    grads = map(shape_or_none, (g_hiddens, g_gates))
    gru_backward_shapes(weight.shape, hidden.shape, hiddens.shape, gates.shape, *grads)
    hidden, hiddens, gates, *given = _contiguous(k, hidden, hiddens, gates, g_hiddens, g_gates)
    sums = (*hiddens.shape[:2], weight.shape[0])
    grad_projected, grad_products = (k.runner.xp.ndarray(sums, gates.dtype) for _ in range(2))
    grad_state, grad_hidden = _wide_zeros(k, hidden), None
    for step in reversed(range(len(gates))):
        operands = grad_projected, grad_products, grad_state, grad_hidden, *given, hidden, hiddens, gates
        _run(k, "gru_step_backward", hiddens, *operands, step)
        grad_hidden = k.matmul(grad_products[step], weight)
    return grad_projected, grad_products, k.add(grad_hidden, k.astype(grad_state, k.dtype(hidden)))


def _contiguous(k: Any, *arrays: Array | None) -> list[Array]:
    return [None if x is None else k.runner.xp.ascontiguousarray(x) for x in arrays]


def _wide_zeros(k: Any, x: Array) -> Array:
    """Zeros of the shape of ``x``, in the compute dtype."""
    dtype = k.dtype(x)
    return k.zeros(x.shape, float32 if dtype.bits == 16 else dtype)


def _run(k: Any, kernel: str, states: Array, *arguments: Any) -> None:
    """Launch a kernel for a step of ``states`` (steps, examples, size)."""
    if states.size:
        _, rows, size = states.shape
        launch = geometry.elements(rows * size, 1)
        k.runner.run("recurrent", f"{kernel}<{c_type(states)}>", *launch, *arguments, rows, size)
