"""Recurrent networks: the cells, one step each, and all steps at once.

16-bit floats are computed in float32. ``lstm_backward`` and ``gru_backward`` are the gradients of ``lstm`` and ``gru``
as one operation; they have no gradient rules: further derivatives follow from their bodies.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from backburn.base.errors import ShapeError
from backburn.ops.bodies.half_precision import upcast_half
from backburn.ops.bodies.reductions import sum_terms
from backburn.ops.bodies.scalars import shape_or_none
from backburn.ops.bodies.slicing import index_axis, slice_axis, transpose
from backburn.ops.primitives import Primitives
from backburn.ops.rules.gradients import Needs, gradient_rule
from backburn.ops.rules.tangents import decompose
from backburn.ops.rules.work import multiply_adds
from backburn.ops.table import operation
from backburn.ops.types import B, F, I, Q

Shape = tuple[int, ...]


# ---- shapes ----


def _check_cell(projected: Shape, hidden: Shape, weight: Shape, bias: Shape | None, gates: int) -> None:
    if len(hidden) != 2 or len(weight) != 2 or weight != (gates * hidden[1], hidden[1]):
        raise ShapeError(
            f"a state (examples, size) takes a weight ({gates} * size, size), not {list(hidden)} and {list(weight)}"
        )
    if projected != (hidden[0], weight[0]):
        raise ShapeError(f"the projected input must have the shape {[hidden[0], weight[0]]}, not {list(projected)}")
    if bias is not None and bias != weight[:1]:
        raise ShapeError(f"the bias must have the shape {list(weight[:1])}, not {list(bias)}")


def _lstm(
    projected: Shape, hidden: Shape, cell: Shape, weight: Shape, bias: Shape | None = None
) -> tuple[Shape, Shape, Shape]:
    _check_cell(projected, hidden, weight, bias, 4)
    if cell != hidden:
        raise ShapeError(f"the cell state {list(cell)} must have the shape {list(hidden)} of the hidden state")
    return hidden, cell, projected


def _gru(projected: Shape, hidden: Shape, weight: Shape, bias: Shape | None = None) -> tuple[Shape, Shape]:
    _check_cell(projected, hidden, weight, bias, 3)
    return hidden, (hidden[0], 4 * hidden[1])


def _check_steps(projected: Shape, gates: int) -> None:
    if len(projected) != 3 or not projected[0]:
        raise ShapeError(f"the projected input has the shape (steps, examples, {gates} * size), not {list(projected)}")


def lstm_shapes(
    projected: Shape, hidden: Shape, cell: Shape, weight: Shape, bias: Shape | None = None
) -> tuple[Shape, Shape, Shape]:
    """The shapes of the hidden states, cell states and gates of all steps."""
    _check_steps(projected, 4)
    _lstm(projected[1:], hidden, cell, weight, bias)
    states = (projected[0], *hidden)
    return states, states, projected


def gru_shapes(projected: Shape, hidden: Shape, weight: Shape, bias: Shape | None = None) -> tuple[Shape, Shape]:
    """The shapes of the hidden states and gates of all steps."""
    _check_steps(projected, 3)
    _gru(projected[1:], hidden, weight, bias)
    return (projected[0], *hidden), (*projected[:2], 4 * hidden[1])


def lstm_backward_shapes(
    weight: Shape, cell: Shape, cells: Shape, gates: Shape, g_hiddens: Shape | None = None,
    g_cells: Shape | None = None, g_gates: Shape | None = None,
) -> tuple[Shape, Shape, Shape]:  # fmt: skip
    """The shapes of the gradients for the projected input and the two states."""
    _check_results(weight, cell, gates, 4, g_gates, cells, g_hiddens, g_cells)
    return gates, cell, cell


def gru_backward_shapes(
    weight: Shape, hidden: Shape, hiddens: Shape, gates: Shape, g_hiddens: Shape | None = None,
    g_gates: Shape | None = None,
) -> tuple[Shape, Shape, Shape]:  # fmt: skip
    """The shapes of the gradients for the projected input, the product and the state."""
    _check_results(weight, hidden, gates, 3, g_gates, hiddens, g_hiddens)
    sums = (*hiddens[:2], 3 * hidden[1])
    return sums, sums, hidden


def _check_results(
    weight: Shape, state: Shape, gates: Shape, parts: int, g_gates: Shape | None, *states: Shape | None
) -> None:
    """Check operands of a gradient against the gates; ``states`` are the states of all steps, and their gradients."""
    if len(gates) != 3 or not gates[0]:
        raise ShapeError(f"the gates have the shape (steps, examples, 4 * size), not {list(gates)}")
    steps, rows, size = *gates[:2], gates[2] // 4
    wanted = [(weight, (parts * size, size)), (state, (rows, size)), (g_gates, (steps, rows, 4 * size))]
    for found, shape in [*wanted, *((x, (steps, rows, size)) for x in states)]:
        if found is not None and found != shape:
            raise ShapeError(
                f"for gates {list(gates)}, an operand must have the shape {list(shape)}, not {list(found)}"
            )


# ---- helpers ----


def split_gates(k: Any, x: Any, count: int) -> list[Any]:
    """A matrix as ``count`` matrices side by side."""
    size = x.shape[1] // count
    return [slice_axis(k, x, 1, i * size, (i + 1) * size) for i in range(count)]


def grad_lstm_step(k: Any, g: tuple[Any, Any, Any], cell: Any, new_cell: Any, gates: Any) -> tuple[Any, Any]:
    """The gradients of a step for its gates' arguments, and for the cell state before it.

    ``g`` are the gradients of the hidden state, the cell state and the gates after the step, or None.
    """
    g_hidden, g_cell, g_gates = g
    new, parts = k.tanh(new_cell), split_gates(k, gates, 4)
    i, f, c, o = parts
    zero = k.zeros(cell.shape, k.dtype(cell))
    g_hidden = zero if g_hidden is None else g_hidden
    grad_cell = sum_terms(k, (g_cell, k.tanh_slope(k.mul(g_hidden, o), new_cell, new)))
    grad_gates = [k.mul(grad_cell, c), k.mul(grad_cell, cell), k.mul(grad_cell, i), k.mul(g_hidden, new)]
    if g_gates is not None:
        grad_gates = [k.add(a, b) for a, b in zip(grad_gates, split_gates(k, g_gates, 4), strict=True)]
    before = (k.sigmoid_backward, k.sigmoid_backward, k.tanh_backward, k.sigmoid_backward)
    grad_sum = k.concat([undo(of, y) for undo, of, y in zip(before, grad_gates, parts, strict=True)], 1)
    return grad_sum, k.mul(grad_cell, f)


def grad_gru_step(k: Any, g_hidden: Any, g_gates: Any, hidden: Any, gates: Any) -> tuple[Any, Any, Any]:
    """The gradients of a step for its projected input, for the product, and for the hidden state outside the product.

    ``g_hidden`` and ``g_gates`` are the gradients of its results, or None.
    """
    reset, update, new, inner = split_gates(k, gates, 4)
    zero = k.zeros(hidden.shape, k.dtype(hidden))
    g_hidden = zero if g_hidden is None else g_hidden
    more = [zero] * 4 if g_gates is None else split_gates(k, g_gates, 4)
    grad_update = k.add(k.mul(g_hidden, k.sub(hidden, new)), more[1])
    grad_new = k.tanh_backward(k.add(k.sub(g_hidden, k.mul(g_hidden, update)), more[2]), new)
    grad_reset = k.sigmoid_backward(k.add(k.mul(grad_new, inner), more[0]), reset)
    grad_update = k.sigmoid_backward(grad_update, update)
    grad_inner = k.add(k.mul(grad_new, reset), more[3])
    grad_projected, grad_product = (k.concat([grad_reset, grad_update, of], 1) for of in (grad_new, grad_inner))
    return grad_projected, grad_product, k.mul(g_hidden, update)


# ---- gradients ----


def grad_parameters(k: Any, g: Any, hidden: Any, wanted: Needs) -> tuple[Any, Any]:
    """The gradients of ``hidden @ weight.T + bias`` for weight and bias, where wanted."""
    return k.matmul(transpose(k, g), hidden) if wanted[0] else None, k.sum(g, (0,), False) if wanted[1] else None


def run_one_step(k: Any, backward: Any, *operands: Any) -> Any:
    """``backward`` for a sequence of one step. Its first operands are the weight and the first state."""
    return backward(*operands[:2], *(None if x is None else k.reshape(x, (1, *x.shape)) for x in operands[2:]))


def grad_lstm_cell(k: Any, g: Any, hidden: Any, cell: Any, weight: Any, out: Any, needs: Needs) -> tuple[Any, ...]:
    """The gradients of :meth:`lstm_cell`, as of a sequence of one step."""
    grad_sum, grad_hidden, grad_cell = run_one_step(k, k.lstm_backward, weight, cell, out[1], out[2], *g)
    grad_sum = k.reshape(grad_sum, grad_sum.shape[1:])
    return grad_sum, grad_hidden, grad_cell, *grad_parameters(k, grad_sum, hidden, needs[3:])


def grad_gru_cell(k: Any, g: Any, hidden: Any, weight: Any, out: Any, needs: Needs) -> tuple[Any, ...]:
    """The gradients of :meth:`gru_cell`, as of a sequence of one step."""
    grad_projected, grad_product, grad_hidden = run_one_step(k, k.gru_backward, weight, hidden, out[0], out[1], *g)
    grad_projected, grad_product = (k.reshape(x, x.shape[1:]) for x in (grad_projected, grad_product))
    return grad_projected, grad_hidden, *grad_parameters(k, grad_product, hidden, needs[2:])


def grad_parameters_all_steps(k: Any, grad_products: Any, hidden: Any, hiddens: Any, wanted: Needs) -> tuple[Any, Any]:
    """:func:`grad_parameters`, from all steps at once."""
    steps, examples, size = hiddens.shape
    before = k.concat([k.reshape(hidden, (1, examples, size)), slice_axis(k, hiddens, 0, 0, steps - 1)], 0)
    if not wanted[0]:
        return None, k.sum(grad_products, (0, 1), False) if wanted[1] else None
    grad_weight, grad_bias = k.linear_weight_backward(grad_products, before)  # on shards, examples may be split
    return grad_weight, grad_bias if wanted[1] else None


def grad_lstm(k: Any, g: Any, hidden: Any, cell: Any, weight: Any, out: Any, needs: Needs) -> tuple[Any, ...]:
    """The gradients of :meth:`lstm`, for all steps in one operation."""
    grad_sums, grad_hidden, grad_cell = k.lstm_backward(weight, cell, out[1], out[2], *g)
    return grad_sums, grad_hidden, grad_cell, *grad_parameters_all_steps(k, grad_sums, hidden, out[0], needs[3:])


def grad_gru(k: Any, g: Any, hidden: Any, weight: Any, out: Any, needs: Needs) -> tuple[Any, ...]:
    """The gradients of :meth:`gru`, for all steps in one operation."""
    grad_projected, grad_products, grad_hidden = k.gru_backward(weight, hidden, out[0], out[1], *g)
    return grad_projected, grad_hidden, *grad_parameters_all_steps(k, grad_products, hidden, out[0], needs[2:])


class Recurrent(Primitives[F, I, B, Q], Protocol[F, I, B, Q]):
    """The cells of recurrent networks, and all their steps."""

    @operation(kinds="F", shape=_lstm, result=("same", "same", "same"), differentiable=True)
    def lstm_cell(self: Any, projected: F, hidden: F, cell: F, weight: F, bias: F | None = None, /) -> tuple[F, F, F]:
        """One step of a long short-term memory: the hidden state, the cell state, and the four gates.

        ``projected`` is the input times its weight, computed beforehand for all steps. With ``i, f, g, o`` the four
        parts of ``projected + hidden @ weight.T + bias``: ``cell' = sigmoid(f) * cell + sigmoid(i) * tanh(g)`` and
        ``hidden' = sigmoid(o) * tanh(cell')``. The third result is (sigmoid(i), sigmoid(f), tanh(g), sigmoid(o)) side
        by side. After Hochreiter and Schmidhuber (1997) and Gers, Schmidhuber and Cummins (2000).
        """
        _lstm(projected.shape, hidden.shape, cell.shape, weight.shape, shape_or_none(bias))
        dtype = self.dtype(projected)
        product = self.matmul(upcast_half(self, hidden), transpose(self, upcast_half(self, weight)))
        total = self.add(upcast_half(self, projected), product)
        total = total if bias is None else self.add(total, upcast_half(self, bias))
        i, f, g, o = split_gates(self, total, 4)
        i, f, g, o = self.sigmoid(i), self.sigmoid(f), self.tanh(g), self.sigmoid(o)
        new_cell = self.add(self.mul(f, upcast_half(self, cell)), self.mul(i, g))
        new_hidden = self.mul(o, self.tanh(new_cell))
        gates = self.concat([i, f, g, o], 1)
        return self.astype(new_hidden, dtype), self.astype(new_cell, dtype), self.astype(gates, dtype)

    gradient_rule(lstm_cell, ("projected", "hidden", "cell", "weight", "bias"), grad_lstm_cell)
    decompose(lstm_cell)
    multiply_adds(lstm_cell, lambda out, projected, hidden, cell, weight, bias: math.prod(projected) * weight[1])

    @operation(kinds="F", shape=_gru, result=("same", "same"), differentiable=True)
    def gru_cell(self: Any, projected: F, hidden: F, weight: F, bias: F | None = None, /) -> tuple[F, F]:
        """One step of a gated recurrent unit: the hidden state, and the gates.

        With ``r, z, n`` the parts of ``projected`` and ``r', z', n'`` of ``hidden @ weight.T + bias``: ``reset =
        sigmoid(r + r')``, ``update = sigmoid(z + z')``, ``new = tanh(n + reset * n')`` and ``hidden' = (1 - update) *
        new + update * hidden``. The second result is (reset, update, new, n') side by side. After Cho et al. (2014).
        """
        _gru(projected.shape, hidden.shape, weight.shape, shape_or_none(bias))
        dtype, old = self.dtype(projected), upcast_half(self, hidden)
        recurrent = self.matmul(old, transpose(self, upcast_half(self, weight)))
        recurrent = recurrent if bias is None else self.add(recurrent, upcast_half(self, bias))
        (r, z, n), (r2, z2, n2) = split_gates(self, upcast_half(self, projected), 3), split_gates(self, recurrent, 3)
        reset, update = self.sigmoid(self.add(r, r2)), self.sigmoid(self.add(z, z2))
        new = self.tanh(self.add(n, self.mul(reset, n2)))
        state = self.add(new, self.mul(update, self.sub(old, new)))
        gates = self.concat([reset, update, new, n2], 1)
        return self.astype(state, dtype), self.astype(gates, dtype)

    gradient_rule(gru_cell, ("projected", "hidden", "weight", "bias"), grad_gru_cell)
    decompose(gru_cell)
    multiply_adds(gru_cell, lambda out, projected, hidden, weight, bias: math.prod(projected) * weight[1])

    @operation(kinds="F", shape=lstm_shapes, result=("same", "same", "same"), differentiable=True)
    def lstm(self: Any, projected: F, hidden: F, cell: F, weight: F, bias: F | None = None, /) -> tuple[F, F, F]:
        """All steps of a long short-term memory: the hidden states, the cell states, and the gates of each.

        ``projected`` is (steps, examples, 4 * size), with at least one step. The results of :meth:`lstm_cell` for each
        step are stacked along a first axis; the first step starts from ``hidden`` and ``cell``, the others from
        the states before them.
        """
        lstm_shapes(projected.shape, hidden.shape, cell.shape, weight.shape, shape_or_none(bias))
        found = []
        for step in range(projected.shape[0]):
            hidden, cell, gates = self.lstm_cell(index_axis(self, projected, 0, step), hidden, cell, weight, bias)
            found.append((hidden, cell, gates))
        hiddens, cells, all_gates = (self.stack(list(part), 0) for part in zip(*found, strict=True))
        return hiddens, cells, all_gates

    gradient_rule(lstm, ("projected", "hidden", "cell", "weight", "bias"), grad_lstm)
    decompose(lstm)
    multiply_adds(lstm, lambda out, projected, hidden, cell, weight, bias: math.prod(projected) * weight[1])

    @operation(
        kinds="F",
        shape=lstm_backward_shapes,
        result=("same", "same", "same"),
        like=("weight", "cell", "cells", "gates"),
        differentiable=True,
    )
    def lstm_backward(
        self: Any,
        weight: F,
        cell: F,
        cells: F,
        gates: F,
        g_hiddens: F | None = None,
        g_cells: F | None = None,
        g_gates: F | None = None,
        /,
    ) -> tuple[F, F, F]:
        """The gradients of :meth:`lstm` for its projected input, and for the initial hidden and cell states.

        ``cells`` and ``gates`` are results of it, and the last three operands the gradients of its results, if any.
        The gradients of weight and bias follow from the first result with one product and one sum over all steps.
        """
        grads = map(shape_or_none, (g_hiddens, g_cells, g_gates))
        lstm_backward_shapes(weight.shape, cell.shape, cells.shape, gates.shape, *grads)
        found: list[Any] = []
        g_hidden: Any = None
        g_cell: Any = None
        for step in reversed(range(gates.shape[0])):
            later = [None if g is None else index_axis(self, g, 0, step) for g in (g_hiddens, g_cells, g_gates)]
            g = sum_terms(self, (later[0], g_hidden)), sum_terms(self, (later[1], g_cell)), later[2]
            before = index_axis(self, cells, 0, step - 1) if step else cell
            grad_sum, g_cell = grad_lstm_step(
                self, g, before, index_axis(self, cells, 0, step), index_axis(self, gates, 0, step)
            )
            g_hidden = self.matmul(grad_sum, weight)
            found.append(grad_sum)
        return self.stack(found[::-1], 0), g_hidden, g_cell

    multiply_adds(lstm_backward, lambda out, weight, *_: math.prod(out) * weight[1])

    @operation(kinds="F", shape=gru_shapes, result=("same", "same"), differentiable=True)
    def gru(self: Any, projected: F, hidden: F, weight: F, bias: F | None = None, /) -> tuple[F, F]:
        """All steps of a gated recurrent unit: the hidden states, and the gates of each.

        ``projected`` is (steps, examples, 3 * size), with at least one step. The results of :meth:`gru_cell` for each
        step are stacked along a first axis.
        """
        gru_shapes(projected.shape, hidden.shape, weight.shape, shape_or_none(bias))
        found = []
        for step in range(projected.shape[0]):
            hidden, gates = self.gru_cell(index_axis(self, projected, 0, step), hidden, weight, bias)
            found.append((hidden, gates))
        hiddens, all_gates = (self.stack(list(part), 0) for part in zip(*found, strict=True))
        return hiddens, all_gates

    gradient_rule(gru, ("projected", "hidden", "weight", "bias"), grad_gru)
    decompose(gru)
    multiply_adds(gru, lambda out, projected, hidden, weight, bias: math.prod(projected) * weight[1])

    @operation(
        kinds="F",
        shape=gru_backward_shapes,
        result=("same", "same", "same"),
        like=("weight", "hidden", "hiddens", "gates"),
        differentiable=True,
    )
    def gru_backward(
        self: Any,
        weight: F,
        hidden: F,
        hiddens: F,
        gates: F,
        g_hiddens: F | None = None,
        g_gates: F | None = None,
        /,
    ) -> tuple[F, F, F]:
        """The gradients of :meth:`gru` for its projected input, ``hidden @ weight.T + bias``, and the first state.

        ``hiddens`` and ``gates`` are results of it, and the last two operands the gradients of its results, if any.
        The gradients of weight and bias follow from the second result with one product and one sum over all steps.
        """
        grads = map(shape_or_none, (g_hiddens, g_gates))
        gru_backward_shapes(weight.shape, hidden.shape, hiddens.shape, gates.shape, *grads)
        found: list[Any] = []
        g_hidden: Any = None
        for step in reversed(range(gates.shape[0])):
            later = [None if g is None else index_axis(self, g, 0, step) for g in (g_hiddens, g_gates)]
            before = index_axis(self, hiddens, 0, step - 1) if step else hidden
            grad_projected, grad_product, g_direct = grad_gru_step(
                self, sum_terms(self, (later[0], g_hidden)), later[1], before, index_axis(self, gates, 0, step)
            )
            g_hidden = self.add(self.matmul(grad_product, weight), g_direct)
            found.append((grad_projected, grad_product))
        all_projected, all_products = (self.stack(list(part)[::-1], 0) for part in zip(*found, strict=True))
        return all_projected, all_products, g_hidden

    multiply_adds(gru_backward, lambda out, weight, *_: math.prod(out) * weight[1])
