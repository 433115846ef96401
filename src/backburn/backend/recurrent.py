"""Recurrent networks: the cells, one step each, and all steps at once.

16-bit floats are computed in float32. ``lstm_backward`` and ``gru_backward`` are the gradients of ``lstm`` and ``gru``
as one operation; they have no gradient rules of their own, so that further derivatives follow from their bodies.
"""

from __future__ import annotations

from typing import Any, Protocol

from backburn.backend.index import shape_of, shape_or_none
from backburn.backend.kinds import Kinds
from backburn.backend.reduce import widened
from backburn.backend.table import operation
from backburn.backend.totals import total
from backburn.backend.types import B, F, I, Q
from backburn.backend.views import entry, part
from backburn.base.errors import ShapeError

Shape = tuple[int, ...]


# ---- shapes ----


def _check_cell(projected: Shape, hidden: Shape, weight: Shape, bias: Shape | None, gates: int) -> None:
    if len(hidden) != 2 or len(weight) != 2 or weight != (hidden[1], gates * hidden[1]):
        raise ShapeError(
            f"a state (examples, size) takes a weight (size, {gates} * size), not {list(hidden)} and {list(weight)}"
        )
    if projected != (hidden[0], weight[1]):
        raise ShapeError(f"the projected input must have the shape {[hidden[0], weight[1]]}, not {list(projected)}")
    if bias is not None and bias != weight[1:]:
        raise ShapeError(f"the bias must have the shape {list(weight[1:])}, not {list(bias)}")


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


def _gru_backward(
    weight: Shape, hidden: Shape, hiddens: Shape, gates: Shape, *_: Shape | None
) -> tuple[Shape, Shape, Shape]:
    sums = (*hiddens[:2], 3 * hidden[1])
    return sums, sums, hidden


# ---- helpers ----


def gates_of(k: Any, x: Any, count: int) -> list[Any]:
    """A matrix as ``count`` matrices side by side."""
    size = x.shape[1] // count
    return [part(k, x, 1, i * size, (i + 1) * size) for i in range(count)]


def lstm_cell_gradient(k: Any, g: tuple[Any, Any, Any], cell: Any, new_cell: Any, gates: Any) -> tuple[Any, Any]:
    """The gradients of a step for the sum that its gates are made of, and for the cell state before it.

    ``g`` are those of the hidden state, the cell state and the gates after the step, None where there is none.
    """
    g_hidden, g_cell, g_gates = g
    new, parts = k.tanh(new_cell), gates_of(k, gates, 4)
    i, f, c, o = parts
    zero = k.zeros(cell.shape, k.dtype(cell))
    g_hidden = zero if g_hidden is None else g_hidden
    of_cell = total(k, (g_cell, k.tanh_backward(k.mul(g_hidden, o), new)))
    of_gates = [k.mul(of_cell, c), k.mul(of_cell, cell), k.mul(of_cell, i), k.mul(g_hidden, new)]
    if g_gates is not None:
        of_gates = [k.add(a, b) for a, b in zip(of_gates, gates_of(k, g_gates, 4), strict=True)]
    before = (k.sigmoid_backward, k.sigmoid_backward, k.tanh_backward, k.sigmoid_backward)
    of_sum = k.concat([undo(of, y) for undo, of, y in zip(before, of_gates, parts, strict=True)], 1)
    return of_sum, k.mul(of_cell, f)


def gru_cell_gradient(k: Any, g_hidden: Any, g_gates: Any, hidden: Any, gates: Any) -> tuple[Any, Any, Any]:
    """The gradients of a step for its projected input, for the product, and for the hidden state beside the product.

    ``g_hidden`` and ``g_gates`` are those of its results, None where there is none.
    """
    reset, update, new, inner = gates_of(k, gates, 4)
    zero = k.zeros(hidden.shape, k.dtype(hidden))
    g_hidden = zero if g_hidden is None else g_hidden
    more = [zero] * 4 if g_gates is None else gates_of(k, g_gates, 4)
    of_update = k.add(k.mul(g_hidden, k.sub(hidden, new)), more[1])
    of_new = k.tanh_backward(k.add(k.sub(g_hidden, k.mul(g_hidden, update)), more[2]), new)
    of_reset = k.sigmoid_backward(k.add(k.mul(of_new, inner), more[0]), reset)
    of_update = k.sigmoid_backward(of_update, update)
    of_inner = k.add(k.mul(of_new, reset), more[3])
    of_projected, of_product = (k.concat([of_reset, of_update, of], 1) for of in (of_new, of_inner))
    return of_projected, of_product, k.mul(g_hidden, update)


class Recurrent(Kinds[F, I, B, Q], Protocol[F, I, B, Q]):
    """The cells of recurrent networks, and all their steps."""

    @operation(kinds="F", shape=_lstm, result=("same", "same", "same"), differentiable=True)
    def lstm_cell(self: Any, projected: F, hidden: F, cell: F, weight: F, bias: F | None = None, /) -> tuple[F, F, F]:
        """One step of a long short-term memory: the hidden state, the cell state, and the four gates.

        ``projected`` is the input times its weight, computed beforehand for all steps. With ``i, f, g, o`` the four
        parts of ``projected + hidden @ weight + bias``: ``cell' = sigmoid(f) * cell + sigmoid(i) * tanh(g)`` and
        ``hidden' = sigmoid(o) * tanh(cell')``. The third result is (sigmoid(i), sigmoid(f), tanh(g), sigmoid(o)) side
        by side. After Hochreiter and Schmidhuber (1997) and Gers, Schmidhuber and Cummins (2000).
        """
        _lstm(shape_of(projected), shape_of(hidden), shape_of(cell), shape_of(weight), shape_or_none(bias))
        dtype = self.dtype(projected)
        total = self.add(widened(self, projected), self.matmul(widened(self, hidden), widened(self, weight)))
        total = total if bias is None else self.add(total, widened(self, bias))
        i, f, g, o = gates_of(self, total, 4)
        i, f, g, o = self.sigmoid(i), self.sigmoid(f), self.tanh(g), self.sigmoid(o)
        new_cell = self.add(self.mul(f, widened(self, cell)), self.mul(i, g))
        new_hidden = self.mul(o, self.tanh(new_cell))
        gates = self.concat([i, f, g, o], 1)
        return self.cast(new_hidden, dtype), self.cast(new_cell, dtype), self.cast(gates, dtype)

    @operation(kinds="F", shape=_gru, result=("same", "same"), differentiable=True)
    def gru_cell(self: Any, projected: F, hidden: F, weight: F, bias: F | None = None, /) -> tuple[F, F]:
        """One step of a gated recurrent unit: the hidden state, and the gates.

        With ``r, z, n`` the parts of ``projected`` and ``r', z', n'`` those of ``hidden @ weight + bias``: ``reset =
        sigmoid(r + r')``, ``update = sigmoid(z + z')``, ``new = tanh(n + reset * n')`` and ``hidden' = (1 - update) *
        new + update * hidden``. The second result is (reset, update, new, n') side by side. After Cho et al. (2014).
        """
        _gru(shape_of(projected), shape_of(hidden), shape_of(weight), shape_or_none(bias))
        dtype, old = self.dtype(projected), widened(self, hidden)
        recurrent = self.matmul(old, widened(self, weight))
        recurrent = recurrent if bias is None else self.add(recurrent, widened(self, bias))
        (r, z, n), (r2, z2, n2) = gates_of(self, widened(self, projected), 3), gates_of(self, recurrent, 3)
        reset, update = self.sigmoid(self.add(r, r2)), self.sigmoid(self.add(z, z2))
        new = self.tanh(self.add(n, self.mul(reset, n2)))
        state = self.add(new, self.mul(update, self.sub(old, new)))
        gates = self.concat([reset, update, new, n2], 1)
        return self.cast(state, dtype), self.cast(gates, dtype)

    @operation(kinds="F", shape=lstm_shapes, result=("same", "same", "same"), differentiable=True)
    def lstm(self: Any, projected: F, hidden: F, cell: F, weight: F, bias: F | None = None, /) -> tuple[F, F, F]:
        """All steps of a long short-term memory: the hidden states, the cell states, and the gates of each.

        ``projected`` is (steps, examples, 4 * size), with at least one step. The results are those of :meth:`lstm_cell`
        for each step, stacked along a first axis; the first step starts from ``hidden`` and ``cell``, the others from
        the states before them.
        """
        lstm_shapes(shape_of(projected), shape_of(hidden), shape_of(cell), shape_of(weight), shape_or_none(bias))
        found = []
        for step in range(shape_of(projected)[0]):
            hidden, cell, gates = self.lstm_cell(entry(self, projected, 0, step), hidden, cell, weight, bias)
            found.append((hidden, cell, gates))
        hiddens, cells, all_gates = (self.stack(list(part), 0) for part in zip(*found, strict=True))
        return hiddens, cells, all_gates

    @operation(
        kinds="F",
        shape=lambda weight, cell, cells, gates, *_: (gates, cell, cell),
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
        Those for weight and bias follow from the first result by one product and one sum over all steps.
        """
        found: list[Any] = []
        g_hidden: Any = None
        g_cell: Any = None
        back = self.permute_dims(weight, (1, 0))
        for step in reversed(range(shape_of(gates)[0])):
            later = [None if g is None else entry(self, g, 0, step) for g in (g_hiddens, g_cells, g_gates)]
            g = total(self, (later[0], g_hidden)), total(self, (later[1], g_cell)), later[2]
            before = entry(self, cells, 0, step - 1) if step else cell
            of_sum, g_cell = lstm_cell_gradient(
                self, g, before, entry(self, cells, 0, step), entry(self, gates, 0, step)
            )
            g_hidden = self.matmul(of_sum, back)
            found.append(of_sum)
        return self.stack(found[::-1], 0), g_hidden, g_cell

    @operation(kinds="F", shape=gru_shapes, result=("same", "same"), differentiable=True)
    def gru(self: Any, projected: F, hidden: F, weight: F, bias: F | None = None, /) -> tuple[F, F]:
        """All steps of a gated recurrent unit: the hidden states, and the gates of each.

        ``projected`` is (steps, examples, 3 * size), with at least one step. The results are those of :meth:`gru_cell`
        for each step, stacked along a first axis.
        """
        gru_shapes(shape_of(projected), shape_of(hidden), shape_of(weight), shape_or_none(bias))
        found = []
        for step in range(shape_of(projected)[0]):
            hidden, gates = self.gru_cell(entry(self, projected, 0, step), hidden, weight, bias)
            found.append((hidden, gates))
        hiddens, all_gates = (self.stack(list(part), 0) for part in zip(*found, strict=True))
        return hiddens, all_gates

    @operation(
        kinds="F",
        shape=_gru_backward,
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
        """The gradients of :meth:`gru` for its projected input, ``hidden @ weight + bias``, and the initial state.

        ``hiddens`` and ``gates`` are results of it, and the last two operands the gradients of its results, if any.
        Those for weight and bias follow from the second result by one product and one sum over all steps.
        """
        found: list[Any] = []
        g_hidden: Any = None
        back = self.permute_dims(weight, (1, 0))
        for step in reversed(range(shape_of(gates)[0])):
            later = [None if g is None else entry(self, g, 0, step) for g in (g_hiddens, g_gates)]
            before = entry(self, hiddens, 0, step - 1) if step else hidden
            of_projected, of_product, beside = gru_cell_gradient(
                self, total(self, (later[0], g_hidden)), later[1], before, entry(self, gates, 0, step)
            )
            g_hidden = self.add(self.matmul(of_product, back), beside)
            found.append((of_projected, of_product))
        of_all, of_products = (self.stack(list(part)[::-1], 0) for part in zip(*found, strict=True))
        return of_all, of_products, g_hidden
