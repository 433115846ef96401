"""Calibration: observing the inputs of a model's layers while it runs on data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from backburn.base.errors import ArgumentError
from backburn.nn.module import Module
from backburn.nn.quantized_models import quantizable_layers
from backburn.quantization.observers import MinMax, Observer
from backburn.tensor.classes import Tensor
from backburn.tensor.core.defaults import no_grad

M = TypeVar("M", bound=Module)


def observe(
    model: M, observer: Observer | None = None, pattern: str | tuple[str, ...] = "*"
) -> tuple[M, dict[str, Observer]]:
    """A copy of ``model`` with observers on the inputs of its layers, and the observers by the layers' paths.

    Linear and convolutional layers whose paths match ``pattern`` (one or several, with shell wildcards) are observed,
    each by a new observer with the options of ``observer``, by default :class:`MinMax`. The copy returns the same
    results, so any loop can run it; :func:`calibrate` is the usual one. Raises :class:`ArgumentError` if no layer
    matches.

        >>> import backburn as bb
        >>> from backburn.nn import Linear, ReLU, Sequential
        >>> watched, found = observe(Sequential(Linear(4, 4), ReLU(), Linear(4, 2)))
        >>> result = watched(bb.ones((3, 4)))
        >>> found["0"].low.tolist(), found["2"].count
        ([1.0], 12)
    """
    made = copy.deepcopy(model)
    found: dict[str, Observer] = {}
    for path, layer in quantizable_layers("observe", made, pattern):
        found[path] = copy.deepcopy(observer) if observer is not None else MinMax()
        watch(layer, found[path].observe)
    return made, found


def watch(layer: Module, see: Callable[[Tensor], None]) -> None:
    """Call ``see`` with the input of each call of this module, before the call."""
    forward = layer.forward

    def watched(x: Tensor) -> Any:
        see(x)
        return forward(x)

    vars(layer)["forward"] = watched


def calibrate(
    model: Module,
    batches: Iterable[Any],
    observer: Observer | None = None,
    pattern: str | tuple[str, ...] = "*",
) -> dict[str, Observer]:
    """Run ``model`` on ``batches`` and return observers of the inputs of its layers; see :func:`observe`.

    A batch is the model's input, or a tuple of its arguments. The model runs in evaluation mode without recording, and
    is not changed. :func:`quantize_model` takes the result as ``inputs``. Raises :class:`ArgumentError` if there are no
    batches.

        >>> import backburn as bb
        >>> from backburn.nn import Linear, Sequential
        >>> found = calibrate(Sequential(Linear(2, 2)), [bb.asarray([[1.0, -2.0]]), bb.asarray([[5.0, 0.0]])])
        >>> [float(end.item()) for end in found["0"].range(bb.qint8)]
        [-2.0, 5.0]
    """
    watched, found = observe(model, observer, pattern)
    if not run(watched, batches):
        raise ArgumentError("calibrate: there is no batch, so that no range can be found")
    return found


def run(model: Module, batches: Iterable[Any]) -> list[Any]:
    """The results of a model in evaluation mode for each batch, without recording. Its modes are restored."""
    modes = [(module, module.training) for _, module in model.named_modules()]
    model.eval()
    try:
        with no_grad():
            return [model(*batch) if isinstance(batch, tuple) else model(batch) for batch in batches]
    finally:
        for module, mode in modes:
            module.training = mode
