"""Recurrent layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from backburn.base.errors import ArgumentError
from backburn.nn import functional
from backburn.onnx.registry import Host, operator
from backburn.tensor import activations, arithmetic, creation, elementwise, index, logic, rearrange, selection
from backburn.tensor import shape as shapes
from backburn.tensor.classes import Tensor
from backburn.tensor.linalg.products import matmul

#: The activation functions of cells by lower-case name; they take alpha and beta.
_ACTIVATIONS: dict[str, Callable[[Any, float | None, float | None], Any]] = {
    "relu": lambda x, a, b: activations.relu(x),
    "tanh": lambda x, a, b: elementwise.tanh(x),
    "sigmoid": lambda x, a, b: activations.sigmoid(x),
    "affine": lambda x, a, b: x * (1.0 if a is None else a) + (0.0 if b is None else b),
    "leakyrelu": lambda x, a, b: functional.leaky_relu(x, 0.01 if a is None else a),
    "thresholdedrelu": lambda x, a, b: functional.threshold(x, 1.0 if a is None else a, 0.0),
    "scaledtanh": lambda x, a, b: elementwise.tanh(x * (1.0 if b is None else b)) * (1.0 if a is None else a),
    "hardsigmoid": lambda x, a, b: arithmetic.clip(x * (0.2 if a is None else a) + (0.5 if b is None else b), 0.0, 1.0),
    "elu": lambda x, a, b: functional.elu(x, 1.0 if a is None else a),
    "softsign": lambda x, a, b: functional.softsign(x),
    "softplus": lambda x, a, b: functional.softplus(x),
}
_WITH_ALPHA = {"affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"}
_WITH_BETA = {"affine", "scaledtanh", "hardsigmoid"}


def _activated(key: str, alpha: float | None, beta: float | None, x: Any) -> Any:
    return _ACTIVATIONS[key](x, alpha, beta)


def _functions(names: Any, alphas: Any, betas: Any, count: int) -> list[Callable[[Any], Any]]:
    """The activation functions of all directions."""
    left, right = list(alphas or ()), list(betas or ())
    found: list[Callable[[Any], Any]] = []
    for name in names:
        key = name.lower()
        if key not in _ACTIVATIONS:
            raise ArgumentError(f"there is no activation {name!r}")
        a = left.pop(0) if key in _WITH_ALPHA and left else None
        b = right.pop(0) if key in _WITH_BETA and right else None
        found.append(partial(_activated, key, a, b))
    if len(found) != count:
        raise ArgumentError(f"{len(found)} activations are given, not {count}")
    return found


class _Layer:
    """The operands of a recurrent layer, with the steps as first axis, and the code that all layers share."""

    def __init__(
        self, x: Any, lengths: Any, first: Sequence[Any], direction: str, layout: int, size: int, clip: float | None
    ) -> None:
        if direction not in ("forward", "reverse", "bidirectional"):
            raise ArgumentError(f"there is no direction {direction!r}")
        self.layout = layout
        self.x: Any = shapes.swapaxes(x, 0, 1) if layout else x
        self.steps, self.examples = self.x.shape[:2]
        self.directions = 2 if direction == "bidirectional" else 1
        self.reverse = [direction == "reverse", True]
        self.size = size
        self.clip = clip
        self.lengths: Any = None
        if lengths is not None and not (lengths == self.steps).all():
            if lengths.shape != (self.examples,) or (lengths < 0).any() or (lengths > self.steps).any():
                raise ArgumentError(
                    f"sequence_lens has a length of at most {self.steps} for each of {self.examples} examples"
                )
            self.lengths = creation.astype(self._tensor(lengths), "int64")
        shape = (self.directions, self.examples, size)
        self.first = [
            creation.zeros(shape, dtype=x.dtype, backend=x.backend) if state is None
            else shapes.swapaxes(state, 0, 1) if layout else state
            for state in first
        ]  # fmt: skip

    def _tensor(self, array: Any) -> Any:
        from backburn.tensor.core.host import asarray

        return asarray(array, backend=self.x.backend)

    def turned(self, x: Any) -> Any:
        """Steps in reverse, within the length of each example."""
        if self.lengths is None:
            return rearrange.flip(x, 0)
        places: Any = shapes.reshape(creation.arange(self.steps, dtype="int64", backend=x.backend), (-1, 1))
        ends = shapes.reshape(self.lengths, (1, -1))
        order = selection.where(logic.less(places, ends), arithmetic.subtract(ends - 1, places), places)
        return index.take_along_axis(x, shapes.broadcast_to(shapes.expand_dims(order, 2), x.shape), axis=0)

    def limited(self, x: Any) -> Any:
        """The input of an activation function, within ``clip``."""
        return x if self.clip is None else arithmetic.clip(x, -self.clip, self.clip)

    def run(self, direction: Callable[[int, Any], tuple[Any, tuple[Any, ...]]]) -> tuple[Any, ...]:
        """The outputs of all steps and the last states, from a function for one direction."""
        outputs, last = [], []
        for d in range(self.directions):
            backwards = self.reverse[d]
            found, states = direction(d, self.turned(self.x) if backwards else self.x)
            if self.lengths is not None:
                found, states = self._masked(found, states)
            outputs.append(self.turned(found) if backwards else found)
            last.append(states)
        y: Any = shapes.stack(outputs, axis=1)
        ends = [shapes.stack([states[i] for states in last], axis=0) for i in range(len(last[0]))]
        if self.layout:
            y = shapes.permute_dims(y, (2, 0, 1, 3))
            ends = [shapes.swapaxes(end, 0, 1) for end in ends]
        return y, *ends

    def _masked(self, outputs: Any, states: Any) -> tuple[Any, tuple[Any, ...]]:
        """Outputs with zeros after the end of each example; :meth:`loop` has kept the states there."""
        places = shapes.reshape(creation.arange(self.steps, dtype="int64", backend=outputs.backend), (-1, 1, 1))
        inside = logic.less(places, shapes.reshape(self.lengths, (1, -1, 1)))
        return selection.where(inside, outputs, creation.zeros_like(outputs)), states

    def loop(self, projected: Any, states: tuple[Any, ...], step: Callable[..., tuple[Any, ...]]) -> Any:
        """The first state after each step, and all states at the end of each example."""
        outputs = []
        for t in range(self.steps):
            new = step(projected[t], *states)
            if self.lengths is not None:
                on = shapes.reshape(logic.greater(self.lengths, t), (-1, 1))
                new = tuple(selection.where(on, a, b) for a, b in zip(new, states, strict=True))
            states = new
            outputs.append(states[0])
        if not outputs:
            return creation.zeros((0, self.examples, self.size), dtype=self.x.dtype, backend=self.x.backend), states
        return shapes.stack(outputs, axis=0), states


def _blocks(x: Any, order: Sequence[int], size: int) -> Any:
    """The rows with their blocks reordered."""
    return shapes.concat([x[i * size : (i + 1) * size] for i in order], axis=0)


def _halves(bias: Any, d: int, rows: int) -> tuple[Any, Any]:
    """The biases of the input and of the hidden state."""
    return (None, None) if bias is None else (bias[d][:rows], bias[d][rows:])


@operator("LSTM")
def lstm(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Host | None = None, h: Tensor | None = None,
    c: Tensor | None = None, p: Tensor | None = None, /,
    *, activation_alpha: Any = None, activation_beta: Any = None, activations: Any = None, clip: float | None = None,
    direction: str = "forward", hidden_size: int | None = None, input_forget: int = 0, layout: int = 0,
) -> Any:  # fmt: skip
    """Long short-term memory; gates are in the order input, output, forget, candidate."""
    n = r.shape[-1]
    layer = _Layer(x, lengths, (h, c), direction, layout, n, clip)
    names = activations or ("Sigmoid", "Tanh", "Tanh") * layer.directions
    functions = _functions(names, activation_alpha, activation_beta, 3 * layer.directions)
    usual = [name.lower() for name in names] == ["sigmoid", "tanh", "tanh"] * layer.directions
    quick = usual and clip is None and not input_forget and p is None and layer.lengths is None and layer.steps > 0
    gates = (0, 2, 3, 1)  # ours: input, forget, candidate, output

    def one(d: int, steps: Any) -> Any:
        first, second = _halves(b, d, 4 * n)
        states = tuple(state[d] for state in layer.first)
        if quick:
            before = None if first is None else _blocks(first, gates, n)
            after = None if second is None else _blocks(second, gates, n)
            projected = functional.linear(steps, _blocks(w[d], gates, n), before)
            hiddens, cells = functional.lstm(projected, states[0], states[1], _blocks(r[d], gates, n), after)
            return hiddens, (hiddens[-1], cells[-1])
        f, g, k = functions[3 * d : 3 * d + 3]
        projected = functional.linear(steps, w[d], None if first is None else arithmetic.add(first, second))
        weight = shapes.permute_dims(r[d], (1, 0))
        peep = None if p is None else [p[d][i * n : (i + 1) * n] for i in range(3)]

        def step(now: Any, hidden: Any, cell: Any) -> tuple[Any, ...]:
            parts: Any = arithmetic.add(now, matmul(hidden, weight))
            i, o, forget, new = (parts[:, j * n : (j + 1) * n] for j in range(4))
            if peep is not None:
                i, forget = i + peep[0] * cell, forget + peep[2] * cell
            i = f(layer.limited(i))
            kept = 1.0 - i if input_forget else f(layer.limited(forget))
            cell = kept * cell + i * g(layer.limited(new))
            o = f(layer.limited(o if peep is None else o + peep[1] * cell))
            return o * k(cell), cell

        return layer.loop(projected, states, step)

    return layer.run(one)


@operator("GRU")
def gru(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Host | None = None, h: Tensor | None = None, /,
    *, activation_alpha: Any = None, activation_beta: Any = None, activations: Any = None, clip: float | None = None,
    direction: str = "forward", hidden_size: int | None = None, layout: int = 0, linear_before_reset: int = 0,
) -> Any:  # fmt: skip
    """Gated recurrent units; gates are in the order update, reset, candidate."""
    n = r.shape[-1]
    layer = _Layer(x, lengths, (h,), direction, layout, n, clip)
    names = activations or ("Sigmoid", "Tanh") * layer.directions
    functions = _functions(names, activation_alpha, activation_beta, 2 * layer.directions)
    usual = [name.lower() for name in names] == ["sigmoid", "tanh"] * layer.directions
    quick = usual and clip is None and linear_before_reset and layer.lengths is None and layer.steps > 0
    gates = (1, 0, 2)  # ours: reset, update, candidate

    def one(d: int, steps: Any) -> Any:
        first, second = _halves(b, d, 3 * n)
        (state,) = (state[d] for state in layer.first)
        if quick:
            before = None if first is None else _blocks(first, gates, n)
            after = None if second is None else _blocks(second, gates, n)
            projected = functional.linear(steps, _blocks(w[d], gates, n), before)
            hiddens = functional.gru(projected, state, _blocks(r[d], gates, n), after)
            return hiddens, (hiddens[-1],)
        f, g = functions[2 * d : 2 * d + 2]
        projected = functional.linear(steps, w[d], first)
        weight = shapes.permute_dims(r[d], (1, 0))
        zeros = creation.zeros(3 * n, dtype=x.dtype, backend=x.backend)
        more: Any = zeros if second is None else second

        def step(now: Any, hidden: Any) -> tuple[Any, ...]:
            recurrent: Any = matmul(hidden, weight[:, : 2 * n])
            update = f(layer.limited(now[:, :n] + recurrent[:, :n] + more[:n]))
            reset = f(layer.limited(now[:, n : 2 * n] + recurrent[:, n:] + more[n : 2 * n]))
            last = weight[:, 2 * n :]
            if linear_before_reset:
                inner: Any = reset * arithmetic.add(matmul(hidden, last), more[2 * n :])
            else:
                inner = arithmetic.add(matmul(reset * hidden, last), more[2 * n :])
            new = g(layer.limited(now[:, 2 * n :] + inner))
            return ((1.0 - update) * new + update * hidden,)

        return layer.loop(projected, (state,), step)

    return layer.run(one)


@operator("RNN")
def rnn(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Host | None = None, h: Tensor | None = None, /,
    *, activation_alpha: Any = None, activation_beta: Any = None, activations: Any = None, clip: float | None = None,
    direction: str = "forward", hidden_size: int | None = None, layout: int = 0,
) -> Any:  # fmt: skip
    """A plain recurrent layer."""
    n = r.shape[-1]
    layer = _Layer(x, lengths, (h,), direction, layout, n, clip)
    names = (activations or ("Tanh",) * layer.directions)[: layer.directions]
    functions = _functions(names, activation_alpha, activation_beta, layer.directions)

    def one(d: int, steps: Any) -> Any:
        first, second = _halves(b, d, n)
        projected = functional.linear(steps, w[d], None if first is None else arithmetic.add(first, second))
        weight = shapes.permute_dims(r[d], (1, 0))

        def step(now: Any, hidden: Any) -> tuple[Any, ...]:
            return (functions[d](layer.limited(arithmetic.add(now, matmul(hidden, weight)))),)

        return layer.loop(projected, (layer.first[0][d],), step)

    return layer.run(one)
