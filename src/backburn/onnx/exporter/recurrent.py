"""Recurrent layers in ONNX, which projects inputs itself: an operation's projected input is followed to its product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backburn.onnx.exporter.mappings import mapping
from backburn.onnx.exporter.recorder import Recorder, Value

#: The gates of the file's order, as numbers of the blocks of rows here.
LSTM, GRU = (0, 3, 1, 2), (1, 0, 2)


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
    """The input, the weights and the biases as the file has them; None where the input is not a product."""
    product = w.products.get(projected.name) if isinstance(projected.name, str) else None
    if product is None:
        return None
    x, input_weight, input_bias = product

    def rows(part: Any) -> Any:
        blocks = w.node("Split", part, axis=0, num_outputs=len(order), outputs=len(order))
        return w.node("Concat", *(blocks[i] for i in order), axis=0)

    biases = None
    if input_bias is not None or bias is not None:
        zeros = np.zeros((projected.shape[-1],), projected.dtype.dtype)
        halves = [rows(zeros if part is None else part) for part in (input_bias, bias)]
        biases = w.node("Unsqueeze", w.node("Concat", *halves, axis=0), [0])
    return x, *(w.node("Unsqueeze", rows(part), [0]) for part in (input_weight, weight)), biases
