"""Samples: the cells of recurrent networks, and all their steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from backburn.conformance.samples.references import sigmoid
from backburn.conformance.samples.table import Array, Sample, case, real, samples


def lstm_cell(
    projected: Array, hidden: Array, cell: Array, weight: Array, bias: Array | None = None
) -> tuple[Array, Array, Array]:
    """The reference of ``lstm_cell``."""
    i, f, g, o = np.split(projected + hidden @ weight.T + (0 if bias is None else bias), 4, 1)
    gates = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
    new = gates[1] * cell + gates[0] * gates[2]
    return gates[3] * np.tanh(new), new, np.concatenate(gates, 1)


samples(
    "lstm_cell",
    lstm_cell,
    case(real(2, 8), real(2, 2), real(2, 2, seed=1), real(8, 2, seed=1), real(8)),
    case(real(3, 4), real(3, 1), real(3, 1, seed=1), real(4, 1, seed=1), None),
    case(real(0, 4), real(0, 1), real(0, 1), real(4, 1), real(4)),
    case(100 * real(1, 8), real(1, 2), real(1, 2, seed=1), real(8, 2, seed=1), None, note="saturated"),
)


def gru_cell(projected: Array, hidden: Array, weight: Array, bias: Array | None = None) -> tuple[Array, Array]:
    """The reference of ``gru_cell``."""
    r, z, n = np.split(projected, 3, 1)
    r2, z2, n2 = np.split(hidden @ weight.T + (0 if bias is None else bias), 3, 1)
    reset, update = sigmoid(r + r2), sigmoid(z + z2)
    new = np.tanh(n + reset * n2)
    return (1 - update) * new + update * hidden, np.concatenate([reset, update, new, n2], 1)


samples(
    "gru_cell",
    gru_cell,
    case(real(2, 6), real(2, 2), real(6, 2, seed=1), real(6)),
    case(real(3, 3), real(3, 1), real(3, 1, seed=1), None),
    case(real(0, 3), real(0, 1), real(3, 1), real(3)),
    case(100 * real(1, 6), real(1, 2), real(6, 2, seed=1), None, note="saturated"),
)


def run_steps(cell: Any, projected: Array, state: Any, weight: Array, bias: Array | None) -> Any:
    """The state and the gates after each step of a cell."""
    found = []
    for step in projected:
        *state, gates = cell(step, *state, weight, bias)
        found.append((*state, gates))
    return tuple(np.stack(values) for values in zip(*found, strict=True))


def lstm(projected: Array, hidden: Array, cell: Array, weight: Array, bias: Array | None = None) -> Any:
    """The reference of ``lstm``."""
    return run_steps(lstm_cell, projected, (hidden, cell), weight, bias)


RUNS = [
    case(real(3, 2, 8), real(2, 2), real(2, 2, seed=1), real(8, 2, seed=1), real(8)),
    case(real(1, 3, 4), real(3, 1), real(3, 1, seed=1), real(4, 1, seed=1), None, note="one step"),
    case(real(2, 0, 4), real(0, 1), real(0, 1), real(4, 1), real(4), note="no examples"),
    case(100 * real(2, 1, 8), real(1, 2), real(1, 2, seed=1), real(8, 2, seed=1), None, note="saturated"),
]
samples("lstm", lstm, *RUNS)


def lstm_backward(
    weight: Array,
    cell: Array,
    cells: Array,
    gates: Array,
    g_hiddens: Array | None = None,
    g_cells: Array | None = None,
    g_gates: Array | None = None,
) -> tuple[Array, Array, Array]:
    """The reference of ``lstm_backward``: the chain rule, backwards through the steps."""
    grad_projected, grad_hidden, grad_cell = np.zeros_like(gates), np.zeros_like(cell), np.zeros_like(cell)
    for t in reversed(range(len(gates))):
        i, f, g, o = np.split(gates[t], 4, 1)
        grad_hidden = grad_hidden + (0 if g_hiddens is None else g_hiddens[t])
        new = np.tanh(cells[t])
        grad_cell = grad_cell + (0 if g_cells is None else g_cells[t]) + grad_hidden * o * (1 - new * new)
        before = cells[t - 1] if t else cell
        grad_gates = np.concatenate([grad_cell * g, grad_cell * before, grad_cell * i, grad_hidden * new], 1)
        grad_gates += 0 if g_gates is None else g_gates[t]
        grad_projected[t] = grad_gates * np.concatenate([i * (1 - i), f * (1 - f), 1 - g * g, o * (1 - o)], 1)
        grad_hidden, grad_cell = grad_projected[t] @ weight, grad_cell * f
    return grad_projected, grad_hidden, grad_cell


def _backward(run: Sample, *wanted: bool) -> Sample:
    """The case for the backward operation of a sample, with gradients of the wanted results."""
    *_, state, weight, _ = run.operands
    results = lstm(*run.operands) if len(wanted) == 3 else gru(*run.operands)
    grads = [real(*y.shape, seed=2) if want else None for y, want in zip(results, wanted, strict=True)]
    return case(weight, state, *results[-2:], *grads, note=run.note)


samples(
    "lstm_backward",
    lstm_backward,
    _backward(RUNS[0], True, True, True),
    _backward(RUNS[0], True, False, False),
    _backward(RUNS[0], False, True, False),
    _backward(RUNS[0], False, False, True),
    _backward(RUNS[1], True, False, False),
    _backward(RUNS[2], True, False, False),
)


def gru(projected: Array, hidden: Array, weight: Array, bias: Array | None = None) -> Any:
    """The reference of ``gru``."""
    return run_steps(gru_cell, projected, (hidden,), weight, bias)


GRU_RUNS = [
    case(real(3, 2, 6), real(2, 2), real(6, 2, seed=1), real(6)),
    case(real(1, 3, 3), real(3, 1), real(3, 1, seed=1), None, note="one step"),
    case(real(2, 0, 3), real(0, 1), real(3, 1), real(3), note="no examples"),
    case(100 * real(2, 1, 6), real(1, 2), real(6, 2, seed=1), None, note="saturated"),
]
samples("gru", gru, *GRU_RUNS)


def gru_backward(
    weight: Array,
    hidden: Array,
    hiddens: Array,
    gates: Array,
    g_hiddens: Array | None = None,
    g_gates: Array | None = None,
) -> tuple[Array, Array, Array]:
    """The reference of ``gru_backward``: the chain rule, backwards through the steps."""
    grad_hidden, grad_projected, grad_products = np.zeros_like(hidden), [], []
    for t in reversed(range(len(gates))):
        before = hiddens[t - 1] if t else hidden
        reset, update, new, inner = np.split(gates[t], 4, 1)
        grad_hidden = grad_hidden + (0 if g_hiddens is None else g_hiddens[t])
        more = np.split(np.zeros_like(gates[t]) if g_gates is None else g_gates[t], 4, 1)
        grad_new = (grad_hidden * (1 - update) + more[2]) * (1 - new * new)
        grad_reset = (grad_new * inner + more[0]) * reset * (1 - reset)
        grad_update = (grad_hidden * (before - new) + more[1]) * update * (1 - update)
        grad_projected.append(np.concatenate([grad_reset, grad_update, grad_new], 1))
        grad_products.append(np.concatenate([grad_reset, grad_update, grad_new * reset + more[3]], 1))
        grad_hidden = grad_hidden * update + grad_products[-1] @ weight
    return np.stack(grad_projected[::-1]), np.stack(grad_products[::-1]), grad_hidden


samples(
    "gru_backward",
    gru_backward,
    _backward(GRU_RUNS[0], True, True),
    _backward(GRU_RUNS[0], True, False),
    _backward(GRU_RUNS[0], False, True),
    _backward(GRU_RUNS[1], True, False),
    _backward(GRU_RUNS[2], True, False),
)
