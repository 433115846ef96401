"""NumPy: LSTMs and GRUs, by kernels of all steps or of a step after its product, or by bodies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from backburn.ops.bodies.scalars import shape_or_none
from backburn.ops.recurrent import gru_backward_shapes, gru_shapes, lstm_backward_shapes, lstm_shapes
from backburn.ops.table import OPERATIONS
from backburn_numpy import compiled, tuning
from backburn_numpy.elementwise.half_precision import in_float32, is_half, upcast_half
from backburn_numpy.implements import implements
from backburn_numpy.ops.linalg import multiply_into, times
from backburn_numpy.runtime.memory import contiguous, empty
from backburn_numpy.runtime.threads import available

Array = Any


@implements("lstm", takes_backend=True)
def lstm(
    k: Any, projected: Array, hidden: Array, cell: Array, weight: Array, bias: Array | None = None, /
) -> tuple[Array, Array, Array]:
    lstm_shapes(projected.shape, hidden.shape, cell.shape, weight.shape, None if bias is None else bias.shape)
    if is_half(projected):
        return in_float32(lstm, k, projected, hidden, cell, weight, bias)
    step = _step_kernel("lstm_step", projected.shape[1:], projected, hidden, cell, weight, bias)
    if step is None:
        return OPERATIONS["lstm"].body(k, projected, hidden, cell, contiguous(weight.T).T, bias)
    states = (projected.shape[0], *hidden.shape)
    projected, before, cell, bias = (contiguous(x) for x in (projected, hidden, cell, bias))
    hiddens, cells, gates = (empty(shape, projected.dtype) for shape in (states, states, projected.shape))
    if (run := _kernel_of_all_steps("lstm", projected.shape, weight, len(weight))) is not None:
        run(gates, hiddens, cells, projected, before, cell, bias)
        return hiddens, cells, gates
    multiply = _state_product(weight, projected.shape)
    for t in range(len(projected)):
        multiply(before, gates[t])
        step(gates[t], hiddens[t], cells[t], cell, projected[t], bias)
        before, cell = hiddens[t], cells[t]
    return hiddens, cells, gates


@implements("lstm_backward", takes_backend=True)
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
    operands = weight, cell, cells, gates, g_hiddens, g_cells, g_gates
    if is_half(gates):
        return in_float32(lstm_backward, k, *operands)
    lstm_backward_shapes(weight.shape, cell.shape, cells.shape, gates.shape, *map(shape_or_none, operands[4:]))
    if (step := _step_kernel("lstm_step_backward", gates.shape[1:], gates, *operands)) is None:
        return OPERATIONS["lstm_backward"].body(k, *operands)
    weight, cell, cells, gates, *grads = map(contiguous, operands)
    grad_sums = empty(gates.shape, gates.dtype)
    grad_hidden: Array = np.zeros(cell.shape, gates.dtype)
    grad_cell: Array = np.zeros(cell.shape, gates.dtype)
    if (run := _kernel_of_all_steps("lstm_backward", gates.shape, weight, cell.shape[1])) is not None:
        run(grad_sums, grad_cell, grad_hidden, *grads, cell, cells, gates)
        return grad_sums, grad_hidden, grad_cell
    for t in reversed(range(len(gates))):
        step_grads = (None if g is None else g[t] for g in grads)
        step(grad_sums[t], grad_cell, grad_hidden, *step_grads, cells[t - 1] if t else cell, cells[t], gates[t])
        multiply_into(grad_sums[t], weight, grad_hidden)
    return grad_sums, grad_hidden, grad_cell


@implements("lstm_cell", takes_backend=True)
def lstm_cell(
    k: Any, projected: Array, hidden: Array, cell: Array, weight: Array, bias: Array | None = None, /
) -> tuple[Array, Array, Array]:
    if compiled.serving("lstm_step", upcast_half(projected)) is None:
        return OPERATIONS["lstm_cell"].body(k, projected, hidden, cell, weight, bias)
    hiddens, cells, gates = lstm(k, projected[None], hidden, cell, weight, bias)
    return hiddens[0], cells[0], gates[0]


@implements("gru", takes_backend=True)
def gru(k: Any, projected: Array, hidden: Array, weight: Array, bias: Array | None = None, /) -> tuple[Array, Array]:
    shapes = gru_shapes(projected.shape, hidden.shape, weight.shape, None if bias is None else bias.shape)
    if is_half(projected):
        return in_float32(gru, k, projected, hidden, weight, bias)
    if (step := _step_kernel("gru_step", shapes[1][1:], projected, hidden, weight, bias)) is None:
        return OPERATIONS["gru"].body(k, projected, hidden, contiguous(weight.T).T, bias)
    projected, before, bias = (contiguous(x) for x in (projected, hidden, bias))
    hiddens, gates = (empty(shape, projected.dtype) for shape in shapes)
    product = np.empty(projected.shape[1:], projected.dtype)
    if (run := _kernel_of_all_steps("gru", projected.shape, weight, len(weight))) is not None:
        run(gates, hiddens, product, projected, before, bias)
        return hiddens, gates
    multiply = _state_product(weight, projected.shape)
    for t in range(len(projected)):
        multiply(before, product)
        step(gates[t], hiddens[t], before, product, projected[t], bias)
        before = hiddens[t]
    return hiddens, gates


@implements("gru_backward", takes_backend=True)
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
    operands = weight, hidden, hiddens, gates, g_hiddens, g_gates
    if is_half(gates):
        return in_float32(gru_backward, k, *operands)
    gru_backward_shapes(weight.shape, hidden.shape, hiddens.shape, gates.shape, *map(shape_or_none, operands[4:]))
    if (step := _step_kernel("gru_step_backward", gates.shape[1:], gates, *operands)) is None:
        return OPERATIONS["gru_backward"].body(k, *operands)
    weight, hidden, hiddens, gates, *grads = map(contiguous, operands)
    sums = (*hiddens.shape[:2], weight.shape[0])
    grad_inputs, grad_products = empty(sums, gates.dtype), empty(sums, gates.dtype)
    grad_hidden: Array = np.zeros(hidden.shape, gates.dtype)
    if (run := _kernel_of_all_steps("gru_backward", gates.shape, weight, hidden.shape[1])) is not None:
        run(grad_inputs, grad_products, grad_hidden, *grads, hidden, hiddens, gates)
        return grad_inputs, grad_products, grad_hidden
    through = np.empty_like(grad_hidden)
    for t in reversed(range(len(gates))):
        step_grads = (None if g is None else g[t] for g in grads)
        step(grad_inputs[t], grad_products[t], grad_hidden, *step_grads, hiddens[t - 1] if t else hidden, gates[t])
        multiply_into(grad_products[t], weight, through)
        grad_hidden += through
    return grad_inputs, grad_products, grad_hidden


@implements("gru_cell", takes_backend=True)
def gru_cell(
    k: Any, projected: Array, hidden: Array, weight: Array, bias: Array | None = None, /
) -> tuple[Array, Array]:
    if compiled.serving("gru_step", upcast_half(projected)) is None:
        return OPERATIONS["gru_cell"].body(k, projected, hidden, weight, bias)
    hiddens, gates = gru(k, projected[None], hidden, weight, bias)
    return hiddens[0], gates[0]


def _kernel_of_all_steps(name: str, shape: tuple[int, ...], weight: Array, columns: int) -> Callable[..., None] | None:
    """The kernel of that name for gates of that shape, which packs the columns of the weight once for all steps.

    None for a single step, for few rows, and where a library is faster than our products. Threads share the rows.
    """
    steps, rows = shape[:2]
    if (
        steps == 1
        or steps * rows < tuning.MIN_ROWS_FOR_PACKED_WEIGHT
        or compiled.level() not in tuning.MIN_GEMM_PRODUCTS
    ):
        return None
    kernel: Any = compiled.serving(name, weight)
    depth, weight = weight.size // columns, contiguous(weight)
    packed = empty((depth * (columns + 32) + 16,), weight.dtype)  # for whole panels of columns, and a cache line
    sizes = steps, rows, min(depth, columns), available()
    return lambda *arrays: kernel(*compiled.addresses(*arrays, weight, packed), *sizes)


def _state_product(weight: Array, shape: tuple[int, ...]) -> Callable[[Array, Array], Any]:
    """The product of a state with a transposed weight, written to the second argument, for steps of that shape.

    With enough steps and rows to make up for it, the weight is transposed in memory once.
    """
    if shape[0] < tuning.MIN_STEPS_FOR_TRANSPOSED_WEIGHT or shape[1] < tuning.MIN_ROWS_FOR_TRANSPOSED_WEIGHT:
        return lambda state, out: times(state, weight, out)
    transposed_weight = contiguous(weight.T)
    return lambda state, out: multiply_into(state, transposed_weight, out)


def _step_kernel(name: str, shape: tuple[int, ...], like: Array, *others: Array | None) -> Callable[..., None] | None:
    """The kernel of that name for the dtype of all arrays, and gates of that shape; None if there is none."""
    fast = compiled.serving(name, like) if compiled.have_dtype(like, *others) else None
    rows, width = shape
    return None if fast is None else lambda *arrays: fast(*compiled.addresses(*arrays), rows, width // 4)
