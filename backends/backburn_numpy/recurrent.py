"""NumPy: LSTMs and GRUs. With compiled kernels, everything in a step except its product is one pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from backburn.backend.recurrent import gru_shapes, lstm_shapes
from backburn_numpy import compiled
from backburn_numpy.activate import sigmoid
from backburn_numpy.halves import widened
from backburn_numpy.memory import contiguous, empty

Array = Any


def lstm(
    projected: Array, hidden: Array, cell: Array, weight: Array, bias: Array | None = None, /
) -> tuple[Array, Array, Array]:
    lstm_shapes(projected.shape, hidden.shape, cell.shape, weight.shape, None if bias is None else bias.shape)
    dtype, states = projected.dtype, (projected.shape[0], *hidden.shape)
    projected, before, cell, weight = (contiguous(widened(x)) for x in (projected, hidden, cell, weight))
    bias = None if bias is None else contiguous(widened(bias))
    hiddens, cells, gates = (empty(shape, projected.dtype) for shape in (states, states, projected.shape))
    step = _step_of("lstm_step", _step, gates)
    for t in range(len(projected)):
        np.matmul(before, weight, out=gates[t])
        step(gates[t], hiddens[t], cells[t], cell, projected[t], bias)
        before, cell = hiddens[t], cells[t]
    return hiddens.astype(dtype, copy=False), cells.astype(dtype, copy=False), gates.astype(dtype, copy=False)


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
    weight, cell, cells, gates = (contiguous(widened(x)) for x in (weight, cell, cells, gates))
    given = tuple(None if g is None else contiguous(widened(g)) for g in (g_hiddens, g_cells, g_gates))
    of_sums = empty(gates.shape, gates.dtype)
    of_hidden, of_cell = np.zeros(cell.shape, gates.dtype), np.zeros(cell.shape, gates.dtype)
    step = _step_of("lstm_step_backward", _step_backward, gates)
    for t in reversed(range(len(gates))):
        own = (None if g is None else g[t] for g in given)
        step(of_sums[t], of_cell, of_hidden, *own, cells[t - 1] if t else cell, cells[t], gates[t])
        np.matmul(of_sums[t], weight.T, out=of_hidden)
    return of_sums.astype(dtype, copy=False), of_hidden.astype(dtype, copy=False), of_cell.astype(dtype, copy=False)


def lstm_cell(
    projected: Array, hidden: Array, cell: Array, weight: Array, bias: Array | None = None, /
) -> tuple[Array, Array, Array]:
    hiddens, cells, gates = lstm(projected[None], hidden, cell, weight, bias)
    return hiddens[0], cells[0], gates[0]


def gru(projected: Array, hidden: Array, weight: Array, bias: Array | None = None, /) -> tuple[Array, Array]:
    of_states, of_gates = gru_shapes(projected.shape, hidden.shape, weight.shape, None if bias is None else bias.shape)
    dtype = projected.dtype
    projected, before, weight = (contiguous(widened(x)) for x in (projected, hidden, weight))
    bias = None if bias is None else contiguous(widened(bias))
    hiddens, gates = empty(of_states, projected.dtype), empty(of_gates, projected.dtype)
    products = np.empty(projected.shape[1:], projected.dtype)
    step = _step_of("gru_step", _gru_step, gates)
    for t in range(len(projected)):
        np.matmul(before, weight, out=products)
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
    weight, hidden, hiddens, gates = (contiguous(widened(x)) for x in (weight, hidden, hiddens, gates))
    given = tuple(None if g is None else contiguous(widened(g)) for g in (g_hiddens, g_gates))
    sums = (*hiddens.shape[:2], weight.shape[1])
    of_inputs, of_products = empty(sums, gates.dtype), empty(sums, gates.dtype)
    of_hidden = np.zeros(hidden.shape, gates.dtype)
    step = _step_of("gru_step_backward", _gru_step_backward, gates)
    for t in reversed(range(len(gates))):
        own = (None if g is None else g[t] for g in given)
        step(of_inputs[t], of_products[t], of_hidden, *own, hiddens[t - 1] if t else hidden, gates[t])
        of_hidden += np.matmul(of_products[t], weight.T)
    inputs, products, first = (x.astype(dtype, copy=False) for x in (of_inputs, of_products, of_hidden))
    return inputs, products, first


def gru_cell(projected: Array, hidden: Array, weight: Array, bias: Array | None = None, /) -> tuple[Array, Array]:
    hiddens, gates = gru(projected[None], hidden, weight, bias)
    return hiddens[0], gates[0]


def _step_of(name: str, plain: Callable[..., None], gates: Array) -> Callable[..., None]:
    """The kernel of that name if it applies, else ``plain``; both take the same arrays."""
    fast = compiled.serving(name, gates)
    if fast is None:
        return plain
    _, rows, width = gates.shape
    return lambda *arrays: fast(*compiled.addresses(*arrays), rows, width // 4)


def _step(gates: Array, hidden: Array, new_cell: Array, cell: Array, projected: Array, bias: Array | None) -> None:
    """One step from the products that ``gates`` holds."""
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
    of_sums: Array, of_cell: Array, of_hidden: Array, g_hidden: Array | None, g_cell: Array | None,
    g_gates: Array | None, cell: Array, new_cell: Array, gates: Array,
) -> None:  # fmt: skip
    """The gradients of the pre-activations of a step, and in ``of_cell`` that of the previous cell state."""
    i, f, g, o = np.split(gates, 4, axis=1)
    new = np.tanh(new_cell)
    if g_hidden is not None:
        of_hidden += g_hidden
    if g_cell is not None:
        of_cell += g_cell
    of_cell += of_hidden * o * (1 - new * new)
    np.concatenate([of_cell * g, of_cell * cell, of_cell * i, of_hidden * new], axis=1, out=of_sums)
    if g_gates is not None:
        of_sums += g_gates
    of_sums *= np.concatenate([i * (1 - i), f * (1 - f), 1 - g * g, o * (1 - o)], axis=1)
    of_cell *= f


def _gru_step(gates: Array, state: Array, old: Array, products: Array, projected: Array, bias: Array | None) -> None:
    """One step from the products."""
    if bias is not None:
        products += bias
    reset, update, new, inner = np.split(gates, 4, axis=1)
    (r, z, n), (r2, z2, n2) = np.split(projected, 3, axis=1), np.split(products, 3, axis=1)
    reset[...], update[...], inner[...] = sigmoid(r + r2), sigmoid(z + z2), n2
    np.tanh(n + reset * n2, out=new)
    np.add(new, update * (old - new), out=state)


def _gru_step_backward(
    of_projected: Array, of_products: Array, of_state: Array, g_state: Array | None, g_gates: Array | None,
    old: Array, gates: Array,
) -> None:  # fmt: skip
    """The gradients of both sums of a step, and in ``of_state`` that of the old state beside the product."""
    reset, update, new, inner = np.split(gates, 4, axis=1)
    more = (0.0, 0.0, 0.0, 0.0) if g_gates is None else np.split(g_gates, 4, axis=1)
    if g_state is not None:
        of_state += g_state
    of_new = (of_state - of_state * update + more[2]) * (1 - new * new)
    of_reset = (of_new * inner + more[0]) * reset * (1 - reset)
    of_update = (of_state * (old - new) + more[1]) * update * (1 - update)
    np.concatenate([of_reset, of_update, of_new], axis=1, out=of_projected)
    np.concatenate([of_reset, of_update, of_new * reset + more[3]], axis=1, out=of_products)
    of_state *= update
