"""Gradient rules: the cells of recurrent networks, and all their steps."""

from __future__ import annotations

from typing import Any

from backburn.autodiff.rules import gradient
from backburn.autodiff.tangents import through_body
from backburn.backend.views import part, transposed

Needs = tuple[bool, ...]


def of_parameters(k: Any, g: Any, hidden: Any, wanted: Needs) -> tuple[Any, Any]:
    """The gradients of ``hidden @ weight + bias`` for weight and bias, where wanted."""
    return k.matmul(transposed(k, hidden), g) if wanted[0] else None, k.sum(g, (0,), False) if wanted[1] else None


def of_one_step(k: Any, backward: Any, *operands: Any) -> Any:
    """``backward`` for a sequence of one step. Its first operands are the weight and the first state."""
    return backward(*operands[:2], *(None if x is None else k.reshape(x, (1, *x.shape)) for x in operands[2:]))


def lstm_cell(k: Any, g: Any, hidden: Any, cell: Any, weight: Any, out: Any, needs: Needs) -> tuple[Any, ...]:
    """Those of a sequence of one step."""
    of_sum, of_hidden, of_cell = of_one_step(k, k.lstm_backward, weight, cell, out[1], out[2], *g)
    of_sum = k.reshape(of_sum, of_sum.shape[1:])
    return of_sum, of_hidden, of_cell, *of_parameters(k, of_sum, hidden, needs[3:])


def gru_cell(k: Any, g: Any, hidden: Any, weight: Any, out: Any, needs: Needs) -> tuple[Any, ...]:
    """Those of a sequence of one step."""
    of_projected, of_product, of_hidden = of_one_step(k, k.gru_backward, weight, hidden, out[0], out[1], *g)
    of_projected, of_product = (k.reshape(x, x.shape[1:]) for x in (of_projected, of_product))
    return of_projected, of_hidden, *of_parameters(k, of_product, hidden, needs[2:])


gradient("lstm_cell", ("projected", "hidden", "cell", "weight", "bias"), lstm_cell)
gradient("gru_cell", ("projected", "hidden", "weight", "bias"), gru_cell)


def of_all_steps(k: Any, of_products: Any, hidden: Any, hiddens: Any, wanted: Needs) -> tuple[Any, Any]:
    """:func:`of_parameters`, from all steps at once."""
    steps, examples, size = hiddens.shape
    before = k.concat([k.reshape(hidden, (1, examples, size)), part(k, hiddens, 0, 0, steps - 1)], 0)
    together, before = (k.reshape(x, (steps * examples, x.shape[2])) for x in (of_products, before))
    return of_parameters(k, together, before, wanted)


def lstm(k: Any, g: Any, hidden: Any, cell: Any, weight: Any, out: Any, needs: Needs) -> tuple[Any, ...]:
    """Those of the steps are one operation."""
    of_sums, of_hidden, of_cell = k.lstm_backward(weight, cell, out[1], out[2], *g)
    return of_sums, of_hidden, of_cell, *of_all_steps(k, of_sums, hidden, out[0], needs[3:])


def gru(k: Any, g: Any, hidden: Any, weight: Any, out: Any, needs: Needs) -> tuple[Any, ...]:
    """Those of the steps are one operation."""
    of_projected, of_products, of_hidden = k.gru_backward(weight, hidden, out[0], out[1], *g)
    return of_projected, of_hidden, *of_all_steps(k, of_products, hidden, out[0], needs[2:])


gradient("lstm", ("projected", "hidden", "cell", "weight", "bias"), lstm)
gradient("gru", ("projected", "hidden", "weight", "bias"), gru)


# ---- tangents ----

through_body("lstm_cell", "lstm", "gru_cell", "gru")
