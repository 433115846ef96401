"""NumPy: LSTMs and GRUs. With compiled kernels, everything in a step except its product is one pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from backburn.ops.recurrent import gru_shapes, lstm_shapes
from backburn_numpy import compiled
from backburn_numpy.half_precision import upcast_half
from backburn_numpy.memory import contiguous, empty
from backburn_numpy.ops.activations import sigmoid
from backburn_numpy.ops.linalg import multiply_into, times

Array = Any

#: The least steps and rows for which a weight is transposed in memory: products with a view take up to 4 times as long.
STEPS, ROWS = 8, 4


def lstm(
    projected: Array, hidden: Array, cell: Array, weight: Array, bias: Array | None = None, /
) -> tuple[Array, Array, Array]:
    lstm_shapes(projected.shape, hidden.shape, cell.shape, weight.shape, None if bias is None else bias.shape)
    dtype, states = projected.dtype, (projected.shape[0], *hidden.shape)
    projected, before, cell, bias = (contiguous(upcast_half(x)) for x in (projected, hidden, cell, bias))
    multiply = _state_product(weight, projected.shape)
    hiddens, cells, gates = (empty(shape, projected.dtype) for shape in (states, states, projected.shape))
    step = _step_kernel("lstm_step", _step, gates)
    for t in range(len(projected)):
        multiply(before, gates[t])
        step(gates[t], hiddens[t], cells[t], cell, projected[t], bias)
        before, cell = hiddens[t], cells[t]
    return tuple(x.astype(dtype, copy=False) for x in (hiddens, cells, gates))


def lstm_backward(
    weight: Array,
    cell: Array,
    cells: Array,
    gates: Array,
    g_hiddens: Array | None = None,
    g_cells: Array | None = None,
    g_gates: Array | None = None,
    /,
) -> tuple[Array, Array, Array]:
    dtype = gates.dtype
    weight, cell, cells, gates = (contiguous(upcast_half(x)) for x in (weight, cell, cells, gates))
    grads = [contiguous(upcast_half(g)) for g in (g_hiddens, g_cells, g_gates)]
    grad_sums = empty(gates.shape, gates.dtype)
    grad_hidden: Array = np.zeros(cell.shape, gates.dtype)
    grad_cell: Array = np.zeros(cell.shape, gates.dtype)
    step = _step_kernel("lstm_step_backward", _step_backward, gates)
    for t in reversed(range(len(gates))):
        step_grads = (None if g is None else g[t] for g in grads)
        step(grad_sums[t], grad_cell, grad_hidden, *step_grads, cells[t - 1] if t else cell, cells[t], gates[t])
        multiply_into(grad_sums[t], weight, grad_hidden)
    return tuple(x.astype(dtype, copy=False) for x in (grad_sums, grad_hidden, grad_cell))


def lstm_cell(
    projected: Array, hidden: Array, cell: Array, weight: Array, bias: Array | None = None, /
) -> tuple[Array, Array, Array]:
    hiddens, cells, gates = lstm(projected[None], hidden, cell, weight, bias)
    return hiddens[0], cells[0], gates[0]


def gru(projected: Array, hidden: Array, weight: Array, bias: Array | None = None, /) -> tuple[Array, Array]:
    shapes = gru_shapes(projected.shape, hidden.shape, weight.shape, None if bias is None else bias.shape)
    dtype = projected.dtype
    projected, before, bias = (contiguous(upcast_half(x)) for x in (projected, hidden, bias))
    multiply = _state_product(weight, projected.shape)
    hiddens, gates = (empty(shape, projected.dtype) for shape in shapes)
    products = np.empty(projected.shape[1:], projected.dtype)
    step = _step_kernel("gru_step", _gru_step, gates)
    for t in range(len(projected)):
        multiply(before, products)
        step(gates[t], hiddens[t], before, products, projected[t], bias)
        before = hiddens[t]
    return hiddens.astype(dtype, copy=False), gates.astype(dtype, copy=False)


def gru_backward(
    weight: Array,
    hidden: Array,
    hiddens: Array,
    gates: Array,
    g_hiddens: Array | None = None,
    g_gates: Array | None = None,
    /,
) -> tuple[Array, Array, Array]:
    dtype = gates.dtype
    weight, hidden, hiddens, gates = (contiguous(upcast_half(x)) for x in (weight, hidden, hiddens, gates))
    grads = [contiguous(upcast_half(g)) for g in (g_hiddens, g_gates)]
    sums = (*hiddens.shape[:2], weight.shape[0])
    grad_inputs, grad_products = empty(sums, gates.dtype), empty(sums, gates.dtype)
    grad_hidden: Array = np.zeros(hidden.shape, gates.dtype)
    through = np.empty_like(grad_hidden)
    step = _step_kernel("gru_step_backward", _gru_step_backward, gates)
    for t in reversed(range(len(gates))):
        step_grads = (None if g is None else g[t] for g in grads)
        step(grad_inputs[t], grad_products[t], grad_hidden, *step_grads, hiddens[t - 1] if t else hidden, gates[t])
        multiply_into(grad_products[t], weight, through)
        grad_hidden += through
    return tuple(x.astype(dtype, copy=False) for x in (grad_inputs, grad_products, grad_hidden))


def gru_cell(projected: Array, hidden: Array, weight: Array, bias: Array | None = None, /) -> tuple[Array, Array]:
    hiddens, gates = gru(projected[None], hidden, weight, bias)
    return hiddens[0], gates[0]


def _state_product(weight: Array, shape: tuple[int, ...]) -> Callable[[Array, Array], Any]:
    """The product of a state with a transposed weight, written to the second argument, for steps of that shape.

    Where steps and rows are enough to make up for it, the weight is transposed in memory once.
    """
    weight = upcast_half(weight)
    if shape[0] < STEPS or shape[1] < ROWS:
        return lambda state, out: times(state, weight, out)
    transposed_weight = contiguous(weight.T)
    return lambda state, out: multiply_into(state, transposed_weight, out)


def _step_kernel(name: str, plain: Callable[..., None], gates: Array) -> Callable[..., None]:
    """The kernel of that name if it applies, else ``plain``; both take the same arrays."""
    fast = compiled.serving(name, gates)
    if fast is None:
        return plain
    _, rows, width = gates.shape
    return lambda *arrays: fast(*compiled.addresses(*arrays), rows, width // 4)


def _step(gates: Array, hidden: Array, new_cell: Array, cell: Array, projected: Array, bias: Array | None) -> None:
    """One step of an LSTM, from the products that ``gates`` holds."""
    gates += projected
    if bias is not None:
        gates += bias
    i, f, g, o = np.split(gates, 4, axis=1)
    for part in (i, f, o):
        part[...] = sigmoid(part)
    np.tanh(g, out=g)
    np.multiply(f, cell, out=new_cell)
    new_cell += i * g
    np.multiply(o, np.tanh(new_cell), out=hidden)


def _step_backward(
    grad_sums: Array, grad_cell: Array, grad_hidden: Array, g_hidden: Array | None, g_cell: Array | None,
    g_gates: Array | None, cell: Array, new_cell: Array, gates: Array,
) -> None:  # fmt: skip
    """The gradients of the pre-activations of a step, and in ``grad_cell`` the gradient of the previous cell state."""
    i, f, g, o = np.split(gates, 4, axis=1)
    new = np.tanh(new_cell)
    if g_hidden is not None:
        grad_hidden += g_hidden
    if g_cell is not None:
        grad_cell += g_cell
    grad_cell += grad_hidden * o * (1 - new * new)
    np.concatenate([grad_cell * g, grad_cell * cell, grad_cell * i, grad_hidden * new], axis=1, out=grad_sums)
    if g_gates is not None:
        grad_sums += g_gates
    grad_sums *= np.concatenate([i * (1 - i), f * (1 - f), 1 - g * g, o * (1 - o)], axis=1)
    grad_cell *= f


def _gru_step(gates: Array, state: Array, old: Array, products: Array, projected: Array, bias: Array | None) -> None:
    """One step of a GRU, from the products."""
    if bias is not None:
        products += bias
    reset, update, new, inner = np.split(gates, 4, axis=1)
    (r, z, n), (r2, z2, n2) = np.split(projected, 3, axis=1), np.split(products, 3, axis=1)
    reset[...], update[...], inner[...] = sigmoid(r + r2), sigmoid(z + z2), n2
    np.tanh(n + reset * n2, out=new)
    np.add(new, update * (old - new), out=state)


def _gru_step_backward(
    grad_projected: Array, grad_products: Array, grad_state: Array, g_state: Array | None, g_gates: Array | None,
    old: Array, gates: Array,
) -> None:  # fmt: skip
    """The gradients of both sums of a step, and in ``grad_state`` that of the old state without the product."""
    reset, update, new, inner = np.split(gates, 4, axis=1)
    more = (0.0, 0.0, 0.0, 0.0) if g_gates is None else np.split(g_gates, 4, axis=1)
    if g_state is not None:
        grad_state += g_state
    grad_new = (grad_state - grad_state * update + more[2]) * (1 - new * new)
    grad_reset = (grad_new * inner + more[0]) * reset * (1 - reset)
    grad_update = (grad_state * (old - new) + more[1]) * update * (1 - update)
    np.concatenate([grad_reset, grad_update, grad_new], axis=1, out=grad_projected)
    np.concatenate([grad_reset, grad_update, grad_new * reset + more[3]], axis=1, out=grad_products)
    grad_state *= update
