"""Samples: the cells of recurrent networks, and all their steps."""

from __future__ import annotations

import numpy as np

from backburn.conformance.samples import Array, Sample, case, real, samples
from backburn.conformance.samples_activate import sigmoid


def lstm_cell(
    projected: Array, hidden: Array, cell: Array, weight: Array, bias: Array | None = None
) -> tuple[Array, Array, Array]:
    """The reference of ``lstm_cell``."""
    i, f, g, o = np.split(projected + hidden @ weight + (0 if bias is None else bias), 4, 1)
    gates = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
    new = gates[1] * cell + gates[0] * gates[2]
    return gates[3] * np.tanh(new), new, np.concatenate(gates, 1)


samples(
    "lstm_cell",
    lstm_cell,
    case(real(2, 8), real(2, 2), real(2, 2, seed=1), real(2, 8, seed=1), real(8)),
    case(real(3, 4), real(3, 1), real(3, 1, seed=1), real(1, 4, seed=1), None),
    case(real(0, 4), real(0, 1), real(0, 1), real(1, 4), real(4)),
    case(100 * real(1, 8), real(1, 2), real(1, 2, seed=1), real(2, 8, seed=1), None, note="saturated"),
)


def gru_cell(projected: Array, hidden: Array, weight: Array, bias: Array | None = None) -> tuple[Array, Array]:
    """The reference of ``gru_cell``."""
    r, z, n = np.split(projected, 3, 1)
    r2, z2, n2 = np.split(hidden @ weight + (0 if bias is None else bias), 3, 1)
    reset, update = sigmoid(r + r2), sigmoid(z + z2)
    new = np.tanh(n + reset * n2)
    return (1 - update) * new + update * hidden, np.concatenate([reset, update, new, n2], 1)


samples(
    "gru_cell",
    gru_cell,
    case(real(2, 6), real(2, 2), real(2, 6, seed=1), real(6)),
    case(real(3, 3), real(3, 1), real(1, 3, seed=1), None),
    case(real(0, 3), real(0, 1), real(1, 3), real(3)),
    case(100 * real(1, 6), real(1, 2), real(2, 6, seed=1), None, note="saturated"),
)


def lstm(
    projected: Array, hidden: Array, cell: Array, weight: Array, bias: Array | None = None
) -> tuple[Array, Array, Array]:
    """The reference of ``lstm``."""
    found = []
    for step in projected:
        hidden, cell, gates = lstm_cell(step, hidden, cell, weight, bias)
        found.append((hidden, cell, gates))
    hiddens, cells, all_gates = (np.stack(part) for part in zip(*found, strict=True))
    return hiddens, cells, all_gates


RUNS = [
    case(real(3, 2, 8), real(2, 2), real(2, 2, seed=1), real(2, 8, seed=1), real(8)),
    case(real(1, 3, 4), real(3, 1), real(3, 1, seed=1), real(1, 4, seed=1), None, note="one step"),
    case(real(2, 0, 4), real(0, 1), real(0, 1), real(1, 4), real(4), note="no examples"),
    case(100 * real(2, 1, 8), real(1, 2), real(1, 2, seed=1), real(2, 8, seed=1), None, note="saturated"),
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
    """The reference of ``lstm_backward``, the chain rule back through the steps."""
    of_projected, of_hidden, of_cell = np.zeros_like(gates), np.zeros_like(cell), np.zeros_like(cell)
    for t in reversed(range(len(gates))):
        i, f, g, o = np.split(gates[t], 4, 1)
        of_hidden = of_hidden + (0 if g_hiddens is None else g_hiddens[t])
        new = np.tanh(cells[t])
        of_cell = of_cell + (0 if g_cells is None else g_cells[t]) + of_hidden * o * (1 - new * new)
        before = cells[t - 1] if t else cell
        of_gates = np.concatenate([of_cell * g, of_cell * before, of_cell * i, of_hidden * new], 1)
        of_gates += 0 if g_gates is None else g_gates[t]
        of_projected[t] = of_gates * np.concatenate([i * (1 - i), f * (1 - f), 1 - g * g, o * (1 - o)], 1)
        of_hidden, of_cell = of_projected[t] @ weight.T, of_cell * f
    return of_projected, of_hidden, of_cell


def given(results: tuple[Array, ...], wanted: tuple[bool, ...]) -> list[Array | None]:
    """Gradients of these results, where wanted."""
    return [real(*y.shape, seed=2) if want else None for y, want in zip(results, wanted, strict=True)]


def _backward(run: Sample, *wanted: bool) -> Sample:
    """The gradient of a sample, where gradients come for these of its results."""
    _, _, cell, weight, _ = run.operands
    results = lstm(*run.operands)
    return case(weight, cell, *results[1:], *given(results, wanted), note=run.note)


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


def gru(projected: Array, hidden: Array, weight: Array, bias: Array | None = None) -> tuple[Array, Array]:
    """The reference of ``gru``."""
    found = []
    for step in projected:
        hidden, gates = gru_cell(step, hidden, weight, bias)
        found.append((hidden, gates))
    hiddens, all_gates = (np.stack(part) for part in zip(*found, strict=True))
    return hiddens, all_gates


GRU_RUNS = [
    case(real(3, 2, 6), real(2, 2), real(2, 6, seed=1), real(6)),
    case(real(1, 3, 3), real(3, 1), real(1, 3, seed=1), None, note="one step"),
    case(real(2, 0, 3), real(0, 1), real(1, 3), real(3), note="no examples"),
    case(100 * real(2, 1, 6), real(1, 2), real(2, 6, seed=1), None, note="saturated"),
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
    """The reference of ``gru_backward``, the chain rule back through the steps."""
    of_hidden, of_projected, of_products = np.zeros_like(hidden), [], []
    for t in reversed(range(len(gates))):
        before = hiddens[t - 1] if t else hidden
        reset, update, new, inner = np.split(gates[t], 4, 1)
        of_hidden = of_hidden + (0 if g_hiddens is None else g_hiddens[t])
        more = np.split(np.zeros_like(gates[t]) if g_gates is None else g_gates[t], 4, 1)
        of_new = (of_hidden * (1 - update) + more[2]) * (1 - new * new)
        of_reset = (of_new * inner + more[0]) * reset * (1 - reset)
        of_update = (of_hidden * (before - new) + more[1]) * update * (1 - update)
        of_projected.append(np.concatenate([of_reset, of_update, of_new], 1))
        of_products.append(np.concatenate([of_reset, of_update, of_new * reset + more[3]], 1))
        of_hidden = of_hidden * update + of_products[-1] @ weight.T
    return np.stack(of_projected[::-1]), np.stack(of_products[::-1]), of_hidden


def _gru_backward(run: Sample, *wanted: bool) -> Sample:
    """The gradient of a sample, where gradients come for these of its results."""
    _, hidden, weight, _ = run.operands
    results = gru(*run.operands)
    return case(weight, hidden, *results, *given(results, wanted), note=run.note)


samples(
    "gru_backward",
    gru_backward,
    _gru_backward(GRU_RUNS[0], True, True),
    _gru_backward(GRU_RUNS[0], True, False),
    _gru_backward(GRU_RUNS[0], False, True),
    _gru_backward(GRU_RUNS[1], True, False),
    _gru_backward(GRU_RUNS[2], True, False),
)
