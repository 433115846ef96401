"""CuPy: LSTMs and GRUs. A step is a product and one kernel.

16-bit floats are multiplied as such, on tensor cores. What goes back from step to step beside the product, and all that
is computed within a step, is float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from backburn.backend.recurrent import gru_shapes, lstm_shapes
from backburn.backend.table import OPERATIONS
from backburn.base.dtypes import float32
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
    of_bias = None if bias is None else bias.shape
    shapes = lstm_shapes(projected.shape, hidden.shape, cell.shape, weight.shape, of_bias)
    hiddens, cells, gates = (k.runner.xp.ndarray(shape, projected.dtype) for shape in shapes)
    projected, cell, bias = _dense(k, projected, cell, bias)
    for step in range(len(projected)):
        products = k.matmul(hiddens[step - 1] if step else hidden, weight)
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
    cell, cells, gates, *given = _dense(k, cell, cells, gates, g_hiddens, g_cells, g_gates)
    back = weight.transpose(1, 0)
    of_sums, of_cell, of_hidden = k.runner.xp.ndarray(gates.shape, gates.dtype), _wide_zeros(k, cell), None
    for step in reversed(range(len(gates))):
        _run(k, "lstm_step_backward", cells, of_sums, of_cell, of_hidden, *given, cell, cells, gates, step)
        of_hidden = k.matmul(of_sums[step], back)
    return of_sums, of_hidden, k.cast(of_cell, k.dtype(cell))


@_by_kernels
def gru(k: Any, projected: Array, hidden: Array, weight: Array, bias: Array | None = None, /) -> tuple[Array, Array]:
    shapes = gru_shapes(projected.shape, hidden.shape, weight.shape, None if bias is None else bias.shape)
    hiddens, gates = (k.runner.xp.ndarray(shape, projected.dtype) for shape in shapes)
    projected, hidden, bias = _dense(k, projected, hidden, bias)
    for step in range(len(projected)):
        products = k.matmul(hiddens[step - 1] if step else hidden, weight)
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
    hidden, hiddens, gates, *given = _dense(k, hidden, hiddens, gates, g_hiddens, g_gates)
    sums = (*hiddens.shape[:2], weight.shape[1])
    of_projected, of_products = (k.runner.xp.ndarray(sums, gates.dtype) for _ in range(2))
    back = weight.transpose(1, 0)
    of_state, of_hidden = _wide_zeros(k, hidden), None
    for step in reversed(range(len(gates))):
        operands = of_projected, of_products, of_state, of_hidden, *given, hidden, hiddens, gates
        _run(k, "gru_step_backward", hiddens, *operands, step)
        of_hidden = k.matmul(of_products[step], back)
    return of_projected, of_products, k.add(of_hidden, k.cast(of_state, k.dtype(hidden)))


def _dense(k: Any, *arrays: Array | None) -> list[Array]:
    return [None if x is None else k.runner.xp.ascontiguousarray(x) for x in arrays]


def _wide_zeros(k: Any, x: Array) -> Array:
    """Zeros of the shape of ``x``, in the dtype that is computed in."""
    dtype = k.dtype(x)
    return k.zeros(x.shape, float32 if dtype.bits == 16 else dtype)


def _run(k: Any, kernel: str, states: Array, *arguments: Any) -> None:
    """Launch a kernel for a step of ``states`` (steps, examples, size)."""
    if states.size:
        _, rows, size = states.shape
        launch = geometry.elements(rows * size, 1)
        k.runner.run("recurrent", f"{kernel}<{c_type(states)}>", *launch, *arguments, rows, size)
