"""Recurrent layers in ONNX, whose operators project the input: a projected input is traced back to its product.

Layers that compute step by step are written as one operator, if the standard has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from backburn import nn
from backburn.onnx.exporter.mappings import mapping
from backburn.onnx.exporter.recorder import Recorder, Value
from backburn.tensor.core.wrapping import wrap

#: The order of gates in ONNX, as indices of the blocks of rows here.
LSTM, GRU, RNN = (0, 3, 1, 2), (1, 0, 2), (0,)


def write_whole(model: nn.Module, recorder: Recorder) -> None:
    """Patch layers that compute step by step to write one node for all steps."""
    for _, layer in model.named_modules():
        if isinstance(layer, nn.RNN) and type(layer)._steps is nn.RNN._steps:
            attributes = {"activations": [layer.nonlinearity.capitalize()]}
            vars(layer)["_steps"] = partial(_steps, recorder, layer, "RNN", RNN, attributes)
        elif isinstance(layer, nn.GRU) and type(layer)._steps is nn.GRU._steps and not layer.reset_after:
            vars(layer)["_steps"] = partial(_steps, recorder, layer, "GRU", GRU, {"linear_before_reset": 0})


def _steps(
    w: Recorder, layer: Any, operator: str, order: Sequence[int], attributes: dict[str, Any], weights: Any,
    projected: Any, states: Any,
) -> Any:  # fmt: skip
    """The outputs of all steps and the last state of a layer in one direction."""
    steps = partial(type(layer)._steps, layer)
    tensors = projected, *states, *(part for part in weights if part is not None)
    if any(x.backend is not w for x in tensors):  # inside of a transform
        return steps(weights, projected, states)
    given = _operands(w, projected.primitive, weights.weight_hh.primitive, _primitive(weights.bias_hh), order)
    if given is None:
        return steps(weights, projected, states)
    first = w.node("Unsqueeze", states[0].primitive, [0])
    size = layer.hidden_size
    names = w.node(operator, *given, None, first, hidden_size=size, outputs=2, **attributes)
    names = [w.node("Squeeze", names[0], [1]), w.node("Squeeze", names[1], [0])]
    inner = [weights._replace(**{key: _inside(w, x) for key, x in weights._asdict().items()}), _inside(w, projected)]
    outputs, (last,) = steps(*inner, tuple(_inside(w, x) for x in states))
    loose = any(x.primitive.loose for x in tensors)
    found, state = (wrap(w.made(name, x.primitive, loose), w) for name, x in zip(names, (outputs, last), strict=True))
    return found, (state,)


def _primitive(x: Any) -> Any:
    return None if x is None else x.primitive


def _inside(w: Recorder, x: Any) -> Any:
    """A tensor on the recorder's inner backend."""
    return None if x is None else wrap(x.primitive.primitive, w.inner_backend)


@mapping("lstm")
def _lstm(w: Recorder, projected: Value, hidden: Value, cell: Value, weight: Any, bias: Any, /) -> Any:
    given = _operands(w, projected, weight, bias, LSTM)
    if given is None:
        return NotImplemented
    first = [w.node("Unsqueeze", state, [0]) for state in (hidden, cell)]
    size = hidden.shape[1]
    found, _, last = w.node("LSTM", *given, None, *first, hidden_size=size, outputs=3)
    cells = w.missing("the cells of all steps of an LSTM")
    w.last_of[cells] = last
    return [w.node("Squeeze", found, [1]), cells, w.missing("the gates of an LSTM")]


@mapping("gru")
def _gru(w: Recorder, projected: Value, hidden: Value, weight: Any, bias: Any, /) -> Any:
    given = _operands(w, projected, weight, bias, GRU)
    if given is None:
        return NotImplemented
    first = w.node("Unsqueeze", hidden, [0])
    found = w.node("GRU", *given, None, first, hidden_size=hidden.shape[1], linear_before_reset=1)
    return [w.node("Squeeze", found, [1]), w.missing("the gates of a GRU")]


def _operands(
    w: Recorder, projected: Value, weight: Any, bias: Any, order: Sequence[int]
) -> tuple[Any, Any, Any, Any] | None:
    """The input, weights and biases in ONNX's layout; None if the projected input is not a product."""
    product = w.products.get(projected.name) if isinstance(projected.name, str) else None
    if product is None:
        return None
    x, input_weight, input_bias = product

    def rows(part: Any) -> Any:
        if len(order) == 1:
            return part
        blocks = w.node("Split", part, axis=0, num_outputs=len(order), outputs=len(order))
        return w.node("Concat", *(blocks[i] for i in order), axis=0)

    biases = None
    if input_bias is not None or bias is not None:
        zeros = np.zeros((projected.shape[-1],), projected.dtype.dtype)
        halves = [rows(zeros if part is None else part) for part in (input_bias, bias)]
        biases = w.node("Unsqueeze", w.node("Concat", *halves, axis=0), [0])
    return x, *(w.node("Unsqueeze", rows(part), [0]) for part in (input_weight, weight)), biases
