"""Recurrent layers. The input is projected in one product; the recurrence of LSTMs and GRUs is one operation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from backburn.base.errors import ArgumentError, ShapeError
from backburn.nn import functional, init
from backburn.nn.linear import sizes
from backburn.nn.module import Module, parameter
from backburn.tensor import create, moving, shape
from backburn.tensor.classes import FloatTensor, Tensor
from backburn.tensor.dispatch import tensor_operand
from backburn.tensor.messages import describe
from backburn.tensor.options import flags, one_of


class _Layer(Module):
    """The weights of one layer in one direction."""

    def __init__(self, inputs: int, size: int, gates: int, bias: bool) -> None:
        bound = 1.0 / math.sqrt(size)
        self.input_weight = parameter(init.uniform((inputs, gates * size), bound))
        self.weight = parameter(init.uniform((size, gates * size), bound))
        self.input_bias = parameter(init.uniform((gates * size,), bound)) if bias else None
        self.bias = parameter(init.uniform((gates * size,), bound)) if bias else None


class _Recurrent(Module):
    """Stacked layers of cells, each in one direction or two."""

    GATES: ClassVar[int]
    STATES: ClassVar[int]

    def __init__(
        self,
        inputs: int,
        size: int,
        layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        name = type(self).__name__
        inputs, size, layers = sizes(name, inputs=inputs, size=size, layers=layers)
        flags(name, bias=bias, batch_first=batch_first, bidirectional=bidirectional)
        functional.check_probability(name, dropout)
        self.inputs = inputs
        self.size = size
        self.batch_first = batch_first
        self.dropout = dropout
        self.directions = 2 if bidirectional else 1
        lengths = [inputs] + [size * self.directions] * (layers - 1)
        self.layers = [_Layer(n, size, self.GATES, bias) for n in lengths for _ in range(self.directions)]

    def _run(self, x: Tensor, states: Any) -> tuple[Any, tuple[Any, ...]]:
        """The outputs of the last layer, and the last states of all layers and directions."""
        name = type(self).__name__
        tensor_operand(name, x)
        if x.ndim != 3 or x.shape[2] != self.inputs:
            axes = "examples, steps" if self.batch_first else "steps, examples"
            hint = "; expand_dims adds an axis for a single example" if x.ndim == 2 else ""
            raise ShapeError(f"{name}: the input has the shape ({axes}, {self.inputs}), not {describe((x,))}{hint}")
        if self.batch_first:
            x = shape.swapaxes(x, 0, 1)
        if not x.shape[0]:
            raise ShapeError(f"{name}: there is no step in {describe((x,))}")
        expected = (len(self.layers), x.shape[1], self.size)
        if states is None:
            zeros = create.zeros(expected, dtype=self.layers[0].weight.dtype, backend=x.backend)
            states = (zeros,) * self.STATES
        if not isinstance(states, (tuple, list)) or len(states) != self.STATES:
            raise ArgumentError(f"{name}: the first states are two, (hidden, cell), or None")
        for state in states:
            if tensor_operand(name, state).shape != expected:
                raise ShapeError(f"{name}: a first state has the shape {list(expected)}, not {describe((state,))}")
        last: list[tuple[Any, ...]] = []
        for index in range(0, len(self.layers), self.directions):
            if index:
                x = functional.dropout(x, self.dropout, training=self.training)
            outputs = []
            for backwards in range(self.directions):
                number = index + backwards
                first = tuple(state[number] for state in states)
                found, after = self._direction(self.layers[number], x, first, bool(backwards))
                outputs.append(found)
                last.append(after)
            x = outputs[0] if len(outputs) == 1 else shape.concat(outputs, axis=2)
        stacked = tuple(shape.stack([after[i] for after in last], axis=0) for i in range(self.STATES))
        return shape.swapaxes(x, 0, 1) if self.batch_first else x, stacked

    def _direction(self, layer: Any, x: Tensor, states: tuple[Any, ...], backwards: bool) -> Any:
        projected = functional.linear(x, layer.input_weight, layer.input_bias)
        if not backwards:
            return self._steps(layer, projected, states)
        outputs, states = self._steps(layer, moving.flip(projected, axis=0), states)
        return moving.flip(outputs, axis=0), states

    def _steps(self, layer: Any, projected: Any, states: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """The outputs of all steps, and the states after the last."""
        raise NotImplementedError


class LSTM(_Recurrent):
    """Long short-term memory over the steps of an input (steps, examples, inputs).

    Called with ``x`` and, optionally, the initial hidden and cell states, each (layers * directions, examples, size);
    it returns the outputs (steps, examples, directions * size) and the final states. With ``batch_first`` the examples
    are the first axis of input and output. ``dropout`` is applied between layers in training mode. Each layer has an
    ``input_weight`` (inputs, 4 * size), a ``weight`` (size, 4 * size) and two biases, initialized uniformly between
    plus and minus ``1 / sqrt(size)``; their four parts are input gate, forget gate, candidate and output gate. After
    Hochreiter and Schmidhuber (1997) and Gers, Schmidhuber and Cummins (2000). Raises :class:`ShapeError` for inputs
    that do not fit.

        >>> import backburn as bb
        >>> outputs, (hidden, cell) = LSTM(3, 4, layers=2)(bb.zeros((5, 2, 3)))
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

    def _steps(self, layer: Any, projected: Any, states: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        hidden, cell = states
        hiddens, cells = functional.lstm(projected, hidden, cell, layer.weight, layer.bias)
        return hiddens, (hiddens[-1], cells[-1])


class _OneState(_Recurrent):
    STATES = 1

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[FloatTensor, FloatTensor]:
        """The outputs, and the final hidden state."""
        outputs, (last,) = self._run(x, None if state is None else (state,))
        return outputs, last


class GRU(_OneState):
    """Gated recurrent units over the steps of an input (steps, examples, inputs), like :class:`LSTM`.

    There is one state, and the weights have three parts: reset gate, update gate and candidate. The candidate is made
    of ``reset * (h @ weight)``, or with ``reset_after=False`` of ``(reset * h) @ weight`` as in the paper, which is
    computed step by step and takes longer. After Cho et al. (2014).

    >>> import backburn as bb
    >>> outputs, hidden = GRU(3, 4, bidirectional=True)(bb.zeros((5, 2, 3)))
    >>> outputs.shape, hidden.shape
    ((5, 2, 8), (2, 2, 4))
    """

    GATES = 3

    def __init__(
        self,
        inputs: int,
        size: int,
        layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        reset_after: bool = True,
    ) -> None:
        flags("GRU", reset_after=reset_after)
        super().__init__(inputs, size, layers, bias, batch_first, dropout, bidirectional)
        self.reset_after = reset_after

    def _steps(self, layer: Any, projected: Any, states: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        if self.reset_after:
            hiddens = functional.gru(projected, states[0], layer.weight, layer.bias)
            return hiddens, (hiddens[-1],)
        return _one_by_one(projected, states[0], lambda step, state: _reset_first(layer, step, state))


class RNN(_OneState):
    """Layers of ``tanh(x @ input_weight + h @ weight + biases)`` over the steps of an input, like :class:`GRU`.

    ``activation`` is ``"tanh"`` or ``"relu"``. After Elman (1990).

    >>> import backburn as bb
    >>> outputs, hidden = RNN(3, 4)(bb.zeros((5, 2, 3)))
    >>> outputs.shape, hidden.shape
    ((5, 2, 4), (1, 2, 4))
    """

    GATES = 1

    def __init__(
        self,
        inputs: int,
        size: int,
        layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        activation: str = "tanh",
    ) -> None:
        one_of("RNN", "the activation", activation, ("tanh", "relu"))
        super().__init__(inputs, size, layers, bias, batch_first, dropout, bidirectional)
        self.activation = activation

    def _steps(self, layer: Any, projected: Any, states: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        return _one_by_one(projected, states[0], lambda step, state: _elman_step(layer, self.activation, step, state))


def _one_by_one(projected: Any, state: Any, step: Callable[[Any, Any], Any]) -> tuple[Any, tuple[Any, ...]]:
    """The states of all steps, and the last."""
    outputs = []
    for one in shape.unstack(projected, axis=0):
        state = step(one, state)
        outputs.append(state)
    return shape.stack(outputs, axis=0), (state,)


def _reset_first(layer: _Layer, projected: Any, state: Any) -> Any:
    """The state after a step of a GRU that resets the state before its product."""
    gates = 2 * state.shape[1]
    biases = (None, None) if layer.bias is None else (layer.bias[:gates], layer.bias[gates:])
    both = functional.sigmoid(projected[:, :gates] + functional.linear(state, layer.weight[:, :gates], biases[0]))
    reset, update = shape.chunk(both, 2, axis=1)
    product = functional.linear(reset * state, layer.weight[:, gates:], biases[1])
    new = functional.tanh(projected[:, gates:] + product)
    return new + update * (state - new)


def _elman_step(layer: _Layer, activation: str, projected: Any, state: Any) -> Any:
    """The state after a step."""
    total = projected + functional.linear(state, layer.weight, layer.bias)
    return functional.tanh(total) if activation == "tanh" else functional.relu(total)


class _Cell(_Layer):
    """One step: the weights of a layer, and states that are zeros if there are none."""

    GATES: ClassVar[int]

    def __init__(self, inputs: int, size: int, bias: bool = True) -> None:
        name = type(self).__name__
        inputs, size = sizes(name, inputs=inputs, size=size)
        flags(name, bias=bias)
        super().__init__(inputs, size, self.GATES, bias)

    def _projected(self, x: Tensor) -> Any:
        """The input of a step, projected."""
        name, inputs = type(self).__name__, self.input_weight.shape[0]
        if tensor_operand(name, x).ndim != 2 or x.shape[1] != inputs:
            raise ShapeError(f"{name}: the input has the shape (examples, {inputs}), not {describe((x,))}")
        return functional.linear(x, self.input_weight, self.input_bias)

    def _state(self, x: Tensor, state: Tensor | None) -> Any:
        """A state of as many examples as the input has."""
        expected = (x.shape[0], self.weight.shape[0])
        if state is None:
            return create.zeros(expected, dtype=self.weight.dtype, backend=x.backend)
        name = type(self).__name__
        if tensor_operand(name, state).shape != expected:
            raise ShapeError(f"{name}: a state has the shape {list(expected)}, not {describe((state,))}")
        return state


class LSTMCell(_Cell):
    """One step of :class:`LSTM`, for an input (examples, inputs).

    Called with ``x`` and, optionally, the hidden and cell states, each (examples, size); it returns the new states.
    Weights are those of a layer of :class:`LSTM`. Raises :class:`ShapeError` for operands that do not fit.

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
            raise ArgumentError("LSTMCell: the states are two, (hidden, cell), or None")
        hidden, cell = (self._state(x, state) for state in given)
        return functional.lstm_cell(projected, hidden, cell, self.weight, self.bias)


class GRUCell(_Cell):
    """One step of :class:`GRU`, for an input (examples, inputs), like :class:`LSTMCell`; there is one state.

    >>> import backburn as bb
    >>> GRUCell(3, 4)(bb.zeros((2, 3))).shape
    (2, 4)
    """

    GATES = 3

    def __init__(self, inputs: int, size: int, bias: bool = True, reset_after: bool = True) -> None:
        flags("GRUCell", reset_after=reset_after)
        super().__init__(inputs, size, bias)
        self.reset_after = reset_after

    def forward(self, x: Tensor, state: Tensor | None = None) -> FloatTensor:
        """The hidden state after the step."""
        projected, before = self._projected(x), self._state(x, state)
        if not self.reset_after:
            return _reset_first(self, projected, before)
        return functional.gru_cell(projected, before, self.weight, self.bias)


class RNNCell(_Cell):
    """One step of :class:`RNN`, for an input (examples, inputs), like :class:`GRUCell`.

    ``activation`` is ``"tanh"`` or ``"relu"``.

        >>> import backburn as bb
        >>> RNNCell(3, 4)(bb.zeros((2, 3))).shape
        (2, 4)
    """

    GATES = 1

    def __init__(self, inputs: int, size: int, bias: bool = True, activation: str = "tanh") -> None:
        one_of("RNNCell", "the activation", activation, ("tanh", "relu"))
        super().__init__(inputs, size, bias)
        self.activation = activation

    def forward(self, x: Tensor, state: Tensor | None = None) -> FloatTensor:
        """The hidden state after the step."""
        return _elman_step(self, self.activation, self._projected(x), self._state(x, state))
