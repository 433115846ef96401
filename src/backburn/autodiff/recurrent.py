"""Gradient rules: the cells of recurrent networks, and all steps of a long short-term memory."""

from __future__ import annotations

from typing import Any

from backburn.autodiff.rules import gradient
from backburn.autodiff.tangents import through_body
from backburn.backend.recurrent import gates_of
from backburn.backend.views import part, transposed

Needs = tuple[bool, ...]


def recurrent(k: Any, g: Any, hidden: Any, weight: Any, wanted: Needs) -> tuple[Any, Any, Any]:
    """The gradients of ``hidden @ weight + bias`` for hidden, weight and bias, where wanted."""
    return (
        k.matmul(g, transposed(k, weight)) if wanted[0] else None,
        k.matmul(transposed(k, hidden), g) if wanted[1] else None,
        k.sum(g, (0,), False) if wanted[2] else None,
    )


def lstm_cell(k: Any, g: Any, hidden: Any, cell: Any, weight: Any, out: Any, needs: Needs) -> tuple[Any, ...]:
    """Those of a sequence of one step."""

    def one(x: Any) -> Any:
        return None if x is None else k.reshape(x, (1, *x.shape))

    of_sum, of_hidden, of_cell = k.lstm_backward(weight, cell, one(out[1]), one(out[2]), *map(one, g))
    of_sum = k.reshape(of_sum, of_sum.shape[1:])
    _, of_weight, of_bias = recurrent(k, of_sum, hidden, weight, (False, needs[3], needs[4]))
    return of_sum, of_hidden, of_cell, of_weight, of_bias


gradient("lstm_cell", ("projected", "hidden", "cell", "weight", "bias"), lstm_cell)


def lstm(k: Any, g: Any, hidden: Any, cell: Any, weight: Any, out: Any, needs: Needs) -> tuple[Any, ...]:
    """Weight and bias get theirs from all steps at once."""
    of_sum, of_hidden, of_cell = k.lstm_backward(weight, cell, out[1], out[2], *g)
    steps, examples, size = out[0].shape
    before = k.concat([k.reshape(hidden, (1, examples, size)), part(k, out[0], 0, 0, steps - 1)], 0)
    rows = steps * examples
    together, before = k.reshape(of_sum, (rows, 4 * size)), k.reshape(before, (rows, size))
    _, of_weight, of_bias = recurrent(k, together, before, weight, (False, needs[3], needs[4]))
    return of_sum, of_hidden, of_cell, of_weight, of_bias


gradient("lstm", ("projected", "hidden", "cell", "weight", "bias"), lstm)


def gru_cell(k: Any, g: Any, hidden: Any, weight: Any, out: Any, needs: Needs) -> tuple[Any, ...]:
    """The hidden state has a gradient of its own, besides that through the gates."""
    g_hidden, g_gates = g
    reset, update, new, inner = gates_of(k, out[1], 4)
    zero = k.zeros(hidden.shape, k.dtype(hidden))
    g_hidden = zero if g_hidden is None else g_hidden
    more = [zero] * 4 if g_gates is None else gates_of(k, g_gates, 4)
    of_update = k.add(k.mul(g_hidden, k.sub(hidden, new)), more[1])
    of_new = k.tanh_backward(k.add(k.sub(g_hidden, k.mul(g_hidden, update)), more[2]), new)
    of_reset = k.sigmoid_backward(k.add(k.mul(of_new, inner), more[0]), reset)
    of_update = k.sigmoid_backward(of_update, update)
    of_inner = k.add(k.mul(of_new, reset), more[3])
    of_recurrent = k.concat([of_reset, of_update, of_inner], 1)
    of_hidden, of_weight, of_bias = recurrent(k, of_recurrent, hidden, weight, needs[1:])
    if needs[1]:
        of_hidden = k.add(of_hidden, k.mul(g_hidden, update))
    return k.concat([of_reset, of_update, of_new], 1), of_hidden, of_weight, of_bias


gradient("gru_cell", ("projected", "hidden", "weight", "bias"), gru_cell)


# ---- tangents ----

through_body("lstm_cell", "lstm", "gru_cell")
