"""Recurrent layers. The input is projected in one product; the recurrence of LSTMs and GRUs is one operation."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

from backburn.base.errors import ArgumentError, ShapeError
from backburn.nn import functional, init
from backburn.nn.linear import sizes
from backburn.nn.module import Module, parameter
from backburn.tensor import creation, rearrange, shape
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.core.dispatch import tensor_operand
from backburn.tensor.core.messages import describe
from backburn.tensor.core.options import flags, integer, one_of


class _Weights(NamedTuple):
    """The parameters of one layer in one direction; the first four have a row for each gate of each unit."""

    weight_ih: Any
    weight_hh: Any
    bias_ih: Any
    bias_hh: Any
    weight_hr: Any  # the projection of the hidden state, (proj_size, size)


def _initialize(
    module: Module, suffix: str, inputs: int, size: int, gates: int, bias: bool, proj_size: int = 0
) -> None:
    """Set the parameters whose names end with ``suffix``, uniformly distributed."""
    rows = gates * size
    shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, inputs), "weight_hh": (rows, proj_size or size)}
    if bias:
        shapes.update(bias_ih=(rows,), bias_hh=(rows,))
    if proj_size:
        shapes["weight_hr"] = (proj_size, size)
    bound = 1.0 / math.sqrt(size)
    for name in _Weights._fields:
        if name in shapes:
            setattr(module, name + suffix, parameter(init.uniform(shapes[name], -bound, bound)))
        elif name != "weight_hr":
            setattr(module, name + suffix, None)


def _weights(module: Module, suffix: str = "") -> _Weights:
    """The parameters whose names end with ``suffix``."""
    return _Weights(*(getattr(module, name + suffix, None) for name in _Weights._fields))


class _Recurrent(Module):
    """Stacked layers of cells, each in one direction or two."""

    GATES: ClassVar[int]
    STATES: ClassVar[int]

    weight_ih_l0: FloatTensor
    weight_hh_l0: FloatTensor
    bias_ih_l0: FloatTensor | None
    bias_hh_l0: FloatTensor | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
    ) -> None:
        name = type(self).__name__
        given = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}
        input_size, hidden_size, num_layers = sizes(name, **given)
        flags(name, bias=bias, batch_first=batch_first, bidirectional=bidirectional)
        functional.check_probability(name, dropout)
        if not 0 <= integer(name, "proj_size", proj_size) < hidden_size:
            raise ArgumentError(f"{name}: proj_size is from 0 to hidden_size - 1, {hidden_size - 1}, not {proj_size!r}")
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.batch_first = batch_first
        self.dropout = dropout
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        for number, suffix in enumerate(self._suffixes()):
            before = number // (1 + bidirectional)
            inputs = (1 + bidirectional) * (proj_size or hidden_size) if before else input_size
            _initialize(self, suffix, inputs, hidden_size, self.GATES, bias, proj_size)

    def _suffixes(self) -> list[str]:
        """The suffixes of the parameter names of each layer and direction."""
        directions = ("", "_reverse") if self.bidirectional else ("",)
        return [f"_l{layer}{direction}" for layer in range(self.num_layers) for direction in directions]

    def _run(self, x: Tensor, states: Any) -> tuple[Any, tuple[Any, ...]]:
        """The outputs of the last layer, and the last states of all layers and directions."""
        name = type(self).__name__
        tensor_operand(name, x)
        if x.ndim != 3 or x.shape[2] != self.input_size:
            axes = "examples, steps" if self.batch_first else "steps, examples"
            hint = "; expand_dims adds an axis for a single example" if x.ndim == 2 else ""
            raise ShapeError(f"{name}: the input has the shape ({axes}, {self.input_size}), not {describe((x,))}{hint}")
        if self.batch_first:
            x = shape.swapaxes(x, 0, 1)
        if not x.shape[0]:
            raise ShapeError(f"{name}: there is no step in {describe((x,))}")
        suffixes, lengths = self._suffixes(), (self.proj_size or self.hidden_size, self.hidden_size)
        expected = [(len(suffixes), x.shape[1], length) for length in lengths[: self.STATES]]
        if states is None:
            like: Any = {"dtype": self.weight_hh_l0.dtype, "backend": x.backend}
            states = tuple(creation.zeros(shape, **like) for shape in expected)
        if not isinstance(states, (tuple, list)) or len(states) != self.STATES:
            raise ArgumentError(f"{name}: the initial states are a pair (hidden, cell) or None")
        for state, wanted in zip(states, expected, strict=True):
            if tensor_operand(name, state).shape != wanted:
                raise ShapeError(f"{name}: an initial state has the shape {list(wanted)}, not {describe((state,))}")
        last: list[tuple[Any, ...]] = []
        directions = 1 + self.bidirectional
        for index in range(0, len(suffixes), directions):
            if index:
                x = functional.dropout(x, self.dropout, training=self.training)
            outputs = []
            for backwards in range(directions):
                number = index + backwards
                first = tuple(state[number] for state in states)
                found, after = self._direction(_weights(self, suffixes[number]), x, first, bool(backwards))
                outputs.append(found)
                last.append(after)
            x = outputs[0] if len(outputs) == 1 else shape.concat(outputs, axis=2)
        stacked = tuple(shape.stack([after[i] for after in last], axis=0) for i in range(self.STATES))
        return shape.swapaxes(x, 0, 1) if self.batch_first else x, stacked

    def _direction(self, w: _Weights, x: Tensor, states: tuple[Any, ...], backwards: bool) -> Any:
        projected = functional.linear(x, w.weight_ih, w.bias_ih)
        if not backwards:
            return self._steps(w, projected, states)
        outputs, states = self._steps(w, rearrange.flip(projected, axis=0), states)
        return rearrange.flip(outputs, axis=0), states

    def _steps(self, w: _Weights, projected: Any, states: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """The outputs of all steps, and the states after the last."""
        raise NotImplementedError


class LSTM(_Recurrent):
    """Long short-term memory over the steps of an input (steps, examples, input_size).

    Called with ``x`` and, optionally, the initial hidden and cell states, each (num_layers * directions, examples,
    hidden_size); it returns the outputs (steps, examples, directions * hidden_size) and the final states. With
    ``batch_first`` the examples are the first axis of input and output. ``dropout`` is applied between layers in
    training mode. With a ``proj_size`` above 0, the hidden state of each step is multiplied by a matrix and has that
    length (Sak, Senior and Beaufays, 2014), which is computed step by step and takes longer.

    The first layer has the parameters ``weight_ih_l0`` (4 * hidden_size, input_size), ``weight_hh_l0`` (4 *
    hidden_size, hidden_size), ``bias_ih_l0`` and ``bias_hh_l0`` (4 * hidden_size,), and with a projection
    ``weight_hr_l0`` (proj_size, hidden_size); the second has ``weight_ih_l1`` and so on, and names of the backward
    direction end with ``_reverse``. Rows are ordered: input gate, forget gate, candidate, output gate. All are
    initialized uniformly between plus and minus ``1 / sqrt(hidden_size)``. After Hochreiter and Schmidhuber (1997) and
    Gers, Schmidhuber and Cummins (2000). Raises :class:`ShapeError` for inputs that do not fit.

        >>> import backburn as bb
        >>> outputs, (hidden, cell) = LSTM(3, 4, num_layers=2)(bb.zeros((5, 2, 3)))
        >>> outputs.shape, hidden.shape, cell.shape
        ((5, 2, 4), (2, 2, 4), (2, 2, 4))
    """

    GATES = 4
    STATES = 2

    def forward(
        self, x: Tensor, states: tuple[Tensor, Tensor] | None = None
    ) -> tuple[FloatTensor, tuple[FloatTensor, FloatTensor]]:
        """The outputs, and the final hidden and cell states."""
        outputs, (hidden, cell) = self._run(x, states)
        return outputs, (hidden, cell)

    def _steps(self, w: _Weights, projected: Any, states: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        hidden, cell = states
        if self.proj_size:
            return _one_by_one(_projected_lstm_step, w, projected, hidden, cell)
        hiddens, cells = functional.lstm(projected, hidden, cell, w.weight_hh, w.bias_hh)
        return hiddens, (hiddens[-1], cells[-1])


class _OneState(_Recurrent):
    STATES = 1

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[FloatTensor, FloatTensor]:
        """The outputs, and the final hidden state."""
        outputs, (last,) = self._run(x, None if state is None else (state,))
        return outputs, last


class GRU(_OneState):
    """Gated recurrent units over the steps of an input (steps, examples, input_size), like :class:`LSTM`.

    There is one state, and the weights have three parts: reset gate, update gate and candidate. The candidate is
    computed from ``reset * (h @ weight.T)``, or with ``reset_after=False`` from ``(reset * h) @ weight.T`` as in the
    paper, which is computed step by step and takes longer. After Cho et al. (2014).

    >>> import backburn as bb
    >>> outputs, hidden = GRU(3, 4, bidirectional=True)(bb.zeros((5, 2, 3)))
    >>> outputs.shape, hidden.shape
    ((5, 2, 8), (2, 2, 4))
    """

    GATES = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        reset_after: bool = True,
    ) -> None:
        flags("GRU", reset_after=reset_after)
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        self.reset_after = reset_after

    def _steps(self, w: _Weights, projected: Any, states: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        if self.reset_after:
            hiddens = functional.gru(projected, states[0], w.weight_hh, w.bias_hh)
            return hiddens, (hiddens[-1],)
        return _one_by_one(_reset_first, w, projected, *states)


class RNN(_OneState):
    """Layers of ``tanh(x @ weight_ih.T + h @ weight_hh.T + biases)`` over the steps of an input, like :class:`GRU`.

    ``nonlinearity`` is ``"tanh"`` or ``"relu"``. After Elman (1990).

    >>> import backburn as bb
    >>> outputs, hidden = RNN(3, 4)(bb.zeros((5, 2, 3)))
    >>> outputs.shape, hidden.shape
    ((5, 2, 4), (1, 2, 4))
    """

    GATES = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        one_of("RNN", "the nonlinearity", nonlinearity, ("tanh", "relu"))
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        self.nonlinearity = nonlinearity

    def _steps(self, w: _Weights, projected: Any, states: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        return _one_by_one(partial(_elman_step, self.nonlinearity), w, projected, *states)


def _one_by_one(step: Callable[..., Any], w: _Weights, projected: Any, *states: Any) -> tuple[Any, tuple[Any, ...]]:
    """The first state after each step, and all states after the last."""
    outputs = []
    for one in shape.unstack(projected, axis=0):
        states = step(w, one, *states)
        outputs.append(states[0])
    return shape.stack(outputs, axis=0), states


def _projected_lstm_step(w: _Weights, projected: Any, hidden: Any, cell: Any) -> tuple[Any, Any]:
    """The states after a step of an LSTM whose hidden state is projected."""
    i, f, g, o = shape.chunk(projected + functional.linear(hidden, w.weight_hh, w.bias_hh), 4, axis=1)
    cell = functional.sigmoid(f) * cell + functional.sigmoid(i) * functional.tanh(g)
    return functional.linear(functional.sigmoid(o) * functional.tanh(cell), w.weight_hr), cell


def _reset_first(w: _Weights, projected: Any, state: Any) -> tuple[Any]:
    """The state after a step of a GRU that resets the state before its product."""
    gates = 2 * state.shape[1]
    biases = (None, None) if w.bias_hh is None else (w.bias_hh[:gates], w.bias_hh[gates:])
    both = functional.sigmoid(projected[:, :gates] + functional.linear(state, w.weight_hh[:gates], biases[0]))
    reset, update = shape.chunk(both, 2, axis=1)
    product = functional.linear(reset * state, w.weight_hh[gates:], biases[1])
    new = functional.tanh(projected[:, gates:] + product)
    return (new + update * (state - new),)


def _elman_step(nonlinearity: str, w: _Weights, projected: Any, state: Any) -> tuple[Any]:
    """The state after a step."""
    total = projected + functional.linear(state, w.weight_hh, w.bias_hh)
    return (functional.tanh(total) if nonlinearity == "tanh" else functional.relu(total),)


class _Cell(Module):
    """One step: the weights of a layer; states are zeros by default."""

    GATES: ClassVar[int]

    weight_ih: FloatTensor
    weight_hh: FloatTensor
    bias_ih: FloatTensor | None
    bias_hh: FloatTensor | None

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        name = type(self).__name__
        self.input_size, self.hidden_size = sizes(name, input_size=input_size, hidden_size=hidden_size)
        flags(name, bias=bias)
        _initialize(self, "", self.input_size, self.hidden_size, self.GATES, bias)

    def _projected(self, x: Tensor) -> Any:
        """The input of a step, projected."""
        name = type(self).__name__
        if tensor_operand(name, x).ndim != 2 or x.shape[1] != self.input_size:
            raise ShapeError(f"{name}: the input has the shape (examples, {self.input_size}), not {describe((x,))}")
        return functional.linear(x, self.weight_ih, self.bias_ih)

    def _state(self, x: Tensor, state: Tensor | None) -> Any:
        """A state for the examples of the input, zeros by default."""
        expected = (x.shape[0], self.hidden_size)
        if state is None:
            return creation.zeros(expected, dtype=self.weight_hh.dtype, backend=x.backend)
        name = type(self).__name__
        if tensor_operand(name, state).shape != expected:
            raise ShapeError(f"{name}: a state has the shape {list(expected)}, not {describe((state,))}")
        return state


class LSTMCell(_Cell):
    """One step of :class:`LSTM`, for an input (examples, input_size).

    Called with ``x`` and, optionally, the hidden and cell states, each (examples, hidden_size); it returns the new
    states. The parameters ``weight_ih``, ``weight_hh``, ``bias_ih`` and ``bias_hh`` are those of a layer of
    :class:`LSTM`. Raises :class:`ShapeError` for operands that do not fit.

        >>> import backburn as bb
        >>> cell = LSTMCell(3, 4)
        >>> states = cell(bb.zeros((2, 3)))
        >>> hidden, state = cell(bb.ones((2, 3)), states)
        >>> hidden.shape, state.shape
        ((2, 4), (2, 4))
    """

    GATES = 4

    def forward(self, x: Tensor, states: tuple[Tensor, Tensor] | None = None) -> tuple[FloatTensor, FloatTensor]:
        """The hidden and cell states after the step."""
        projected = self._projected(x)
        given: Any = (None, None) if states is None else states
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            raise ArgumentError("LSTMCell: the states are a pair (hidden, cell) or None")
        hidden, cell = (self._state(x, state) for state in given)
        return functional.lstm_cell(projected, hidden, cell, self.weight_hh, self.bias_hh)


class GRUCell(_Cell):
    """One step of :class:`GRU`, for an input (examples, input_size), like :class:`LSTMCell`; there is one state.

    >>> import backburn as bb
    >>> GRUCell(3, 4)(bb.zeros((2, 3))).shape
    (2, 4)
    """

    GATES = 3

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, *, reset_after: bool = True) -> None:
        flags("GRUCell", reset_after=reset_after)
        super().__init__(input_size, hidden_size, bias)
        self.reset_after = reset_after

    def forward(self, x: Tensor, state: Tensor | None = None) -> FloatTensor:
        """The hidden state after the step."""
        projected, before = self._projected(x), self._state(x, state)
        if not self.reset_after:
            after: FloatTensor = _reset_first(_weights(self), projected, before)[0]
            return after
        return functional.gru_cell(projected, before, self.weight_hh, self.bias_hh)


class RNNCell(_Cell):
    """One step of :class:`RNN`, for an input (examples, input_size), like :class:`GRUCell`.

    ``nonlinearity`` is ``"tanh"`` or ``"relu"``.

        >>> import backburn as bb
        >>> RNNCell(3, 4)(bb.zeros((2, 3))).shape
        (2, 4)
    """

    GATES = 1

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh") -> None:
        one_of("RNNCell", "the nonlinearity", nonlinearity, ("tanh", "relu"))
        super().__init__(input_size, hidden_size, bias)
        self.nonlinearity = nonlinearity

    def forward(self, x: Tensor, state: Tensor | None = None) -> FloatTensor:
        """The hidden state after the step."""
        before = self._state(x, state)
        after: FloatTensor = _elman_step(self.nonlinearity, _weights(self), self._projected(x), before)[0]
        return after
