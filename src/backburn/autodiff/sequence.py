"""Gradient rules: tables of vectors, the cells of recurrent networks, attention."""

from __future__ import annotations

from typing import Any

from backburn.autodiff.rules import gradient
from backburn.autodiff.tangents import tangent, through_body
from backburn.backend.sequence import attention_weights, gates_of, scores_gradient, transposed

Needs = tuple[bool, ...]


def is_padding(k: Any, indices: Any, weight_shape: tuple[int, ...], padding_idx: int) -> Any:
    """Which indices, which may count from the end, mean padding; in the rank of the rows."""
    found = k.equal(k.remainder(indices, weight_shape[0]), padding_idx % weight_shape[0])
    return k.reshape(found, (*indices.shape, *[1] * (len(weight_shape) - 1)))


def embedding_gradient(k: Any, g: Any, indices: Any, weight_shape: tuple[int, ...], padding_idx: int | None) -> Any:
    """The rows of the gradient, added at their indices."""
    if padding_idx is not None:
        g = k.where(is_padding(k, indices, weight_shape, padding_idx), 0.0, g)
    return k.take_backward(g, indices, weight_shape[0], 0)


gradient("embedding", weight=embedding_gradient)


def total(k: Any, *terms: Any) -> Any:
    """The sum of the terms that are there; None of none."""
    present = [t for t in terms if t is not None]
    result = present[0] if present else None
    for term in present[1:]:
        result = k.add(result, term)
    return result


def before_sigmoid(k: Any, g: Any, y: Any) -> Any:
    """The gradient of the operand of a sigmoid whose result was ``y``."""
    return k.mul(g, k.mul(y, k.sub(1.0, y)))


def before_tanh(k: Any, g: Any, y: Any) -> Any:
    """The gradient of the operand of a tanh whose result was ``y``."""
    return k.mul(g, k.sub(1.0, k.square(y)))


def recurrent(k: Any, g: Any, hidden: Any, weight: Any, wanted: Needs) -> tuple[Any, Any, Any]:
    """The gradients of ``hidden @ weight + bias`` for hidden, weight and bias, where wanted."""
    return (
        k.matmul(g, transposed(k, weight)) if wanted[0] else None,
        k.matmul(transposed(k, hidden), g) if wanted[1] else None,
        k.sum(g, (0,), False) if wanted[2] else None,
    )


def lstm_cell(k: Any, g: Any, hidden: Any, cell: Any, weight: Any, out: Any, needs: Needs) -> tuple[Any, ...]:
    """All operands but the cell state get theirs through the four gates."""
    g_hidden, g_cell, g_gates = g
    new_cell, gates = k.tanh(out[1]), gates_of(k, out[2], 4)
    i, f, c, o = gates
    of_cell = total(k, g_cell, None if g_hidden is None else before_tanh(k, k.mul(g_hidden, o), new_cell))
    zero = k.zeros(cell.shape, k.dtype(cell))
    of_cell = zero if of_cell is None else of_cell
    of_o = zero if g_hidden is None else k.mul(g_hidden, new_cell)
    of_gates = [k.mul(of_cell, c), k.mul(of_cell, cell), k.mul(of_cell, i), of_o]
    if g_gates is not None:
        of_gates = [k.add(a, b) for a, b in zip(of_gates, gates_of(k, g_gates, 4), strict=True)]
    before = (before_sigmoid, before_sigmoid, before_tanh, before_sigmoid)
    of_sum = k.concat([undo(k, of, y) for undo, of, y in zip(before, of_gates, gates, strict=True)], 1)
    of_hidden, of_weight, of_bias = recurrent(k, of_sum, hidden, weight, (needs[1], needs[3], needs[4]))
    return of_sum, of_hidden, k.mul(of_cell, f), of_weight, of_bias


gradient("lstm_cell", ("projected", "hidden", "cell", "weight", "bias"), lstm_cell)


def gru_cell(k: Any, g: Any, hidden: Any, weight: Any, out: Any, needs: Needs) -> tuple[Any, ...]:
    """The hidden state has a gradient of its own, besides that through the gates."""
    g_hidden, g_gates = g
    reset, update, new, inner = gates_of(k, out[1], 4)
    zero = k.zeros(hidden.shape, k.dtype(hidden))
    g_hidden = zero if g_hidden is None else g_hidden
    more = [zero] * 4 if g_gates is None else gates_of(k, g_gates, 4)
    of_update = k.add(k.mul(g_hidden, k.sub(hidden, new)), more[1])
    of_new = before_tanh(k, k.add(k.sub(g_hidden, k.mul(g_hidden, update)), more[2]), new)
    of_reset = before_sigmoid(k, k.add(k.mul(of_new, inner), more[0]), reset)
    of_update = before_sigmoid(k, of_update, update)
    of_inner = k.add(k.mul(of_new, reset), more[3])
    of_recurrent = k.concat([of_reset, of_update, of_inner], 1)
    of_hidden, of_weight, of_bias = recurrent(k, of_recurrent, hidden, weight, needs[1:])
    if needs[1]:
        of_hidden = k.add(of_hidden, k.mul(g_hidden, update))
    return k.concat([of_reset, of_update, of_new], 1), of_hidden, of_weight, of_bias


gradient("gru_cell", ("projected", "hidden", "weight", "bias"), gru_cell)


def attention(
    k: Any,
    g: Any,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    keep: Any,
    out: Any,
    causal: bool,
    scale: float,
    dropout: float,
    needs: Needs,
) -> tuple[Any, ...]:
    """One operation for the three, which share the gradient of the weights; a float mask gets that of the scores."""
    of_query, of_key, of_value = k.scaled_dot_product_attention_backward(
        g, query, key, value, mask, keep, out, causal, scale, dropout
    )
    of_mask = None
    if needs[3]:
        weights = attention_weights(k, query, key, mask, causal, scale)
        of_mask = k.cast(scores_gradient(k, g, value, weights, keep, dropout), k.dtype(mask))
    return of_query, of_key, of_value, of_mask


gradient("scaled_dot_product_attention", ("query", "key", "value", "mask"), attention)

# ---- tangents ----


def embedding_tangent(k: Any, t: Any, indices: Any, padding_idx: int | None) -> Any:
    """The rows of the tangent; 0 for padding, whose row is held."""
    rows = k.embedding(t, indices)
    if padding_idx is None:
        return rows
    return k.where(is_padding(k, indices, t.shape, padding_idx), 0.0, rows)


tangent("embedding", weight=embedding_tangent)
through_body("lstm_cell", "gru_cell", "scaled_dot_product_attention")
