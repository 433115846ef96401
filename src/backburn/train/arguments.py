"""The arguments of a trainer, checked before anything is done."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from backburn.backend.contract import is_autodiff
from backburn.base.errors import ArgumentError, GraphError
from backburn.base.mutable_trees import MutableTree
from backburn.tensor.core.options import flags, integer
from backburn.tensor.core.wrapping import is_tensor
from backburn.train.batches import Place
from backburn.train.callbacks import Callback, Plateau, Progress


def checked_data(name: str, data: Any) -> Any:
    """Data that can be iterated over. Raises :class:`ArgumentError` for anything else."""
    if isinstance(data, (str, bytes, dict)) or not (hasattr(data, "__iter__") or callable(data)):
        kind = type(data).__name__ + (
            "; bb.data.batches(..., batch_size=64) makes them" if hasattr(data, "items") else ""
        )
        raise ArgumentError(
            f"Trainer: {name} is an iterable of batches, or a function from an epoch to one, not {kind}"
        )
    if is_tensor(data) or hasattr(data, "__array__"):
        raise ArgumentError(
            f"Trainer: {name} is an iterable of batches, not one array: bb.data.batches(x, y, batch_size=64) makes them"
        )
    return data


def checked_function(name: str, function: Any) -> Any:
    """A function. Raises :class:`ArgumentError` for anything else."""
    if not callable(function):
        raise ArgumentError(f"Trainer: {name} is a function of the model and a batch, not {function!r:.80}")
    return function


def checked_metrics(metrics: Any) -> dict[str, Any]:
    """Functions by name. Raises :class:`ArgumentError` for anything else."""
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping) or not all(
        isinstance(name, str) and callable(f) for name, f in metrics.items()
    ):
        raise ArgumentError("Trainer: metrics are functions of the model and a batch by name: {'accuracy': accuracy}")
    if "loss" in metrics:
        raise ArgumentError("Trainer: 'loss' is the name of the loss: give the metric another name")
    return dict(metrics)


def check_optimizer(optimizer: Any) -> None:
    """Raise :class:`ArgumentError` for anything but an optimizer."""
    if not hasattr(optimizer, "step") or isinstance(optimizer, type):
        raise ArgumentError(f"Trainer: optimizer is one of bb.optim, such as optim.AdamW(1e-3), not {optimizer!r:.80}")


def positive(name: str, value: int | None) -> int | None:
    """A positive integer, or None. Raises :class:`ArgumentError` for anything else."""
    return None if value is None else integer("Trainer", name, value, least=1)


def place_of(model: Any) -> Place:
    """The :class:`Place` of a model. Raises :class:`GraphError` if it has nothing that can be trained."""
    place = Place.of(model)
    if not is_autodiff(place.backend):
        spec = place.backend.spec
        raise GraphError(
            f"Trainer: the model is on {spec}, which has no gradients: model.to('autodiff({spec})').require_grad()"
        )
    if not any(
        leaf.value.dtype.has_gradient and leaf.value.is_require_grad for leaf in MutableTree([model], is_tensor).leaves
    ):
        raise GraphError("Trainer: no parameter of the model requires a gradient: model.require_grad() sets it for all")
    return place


def modules_of(model: Any) -> list[Any]:
    """The outermost modules of a tree."""
    if hasattr(model, "train") and hasattr(model, "named_parameters"):
        return [model]
    found = [node for node in MutableTree(model, is_tensor).nodes if hasattr(node.value, "named_parameters")]
    return [node.value for node in found]


def has_kind(callbacks: Sequence[Callback], kind: type[Callback]) -> bool:
    """Whether one of ``callbacks`` is of type ``kind``."""
    return any(isinstance(callback, kind) for callback in callbacks)


def all_callbacks(
    callbacks: Sequence[Callback], rates: Mapping[str, Any], monitored: str, progress: bool | None, is_first: bool
) -> list[Callback]:
    """The given callbacks and those that a trainer adds; processes after the first lack those with ``only_first``."""
    given: Any = callbacks
    if isinstance(given, Callback) or not isinstance(given, (list, tuple)):
        raise ArgumentError(f"Trainer: callbacks are a list of Callback objects, not {given!r:.80}")
    for callback in given:
        if not isinstance(callback, Callback):
            made = "; pass an object, not the class" if isinstance(callback, type) else ""
            raise ArgumentError(f"Trainer: a callback derives from train.Callback, and {callback!r:.80} does not{made}")
    found = list(given)
    if any(hasattr(rate, "observe") for rate in rates.values()) and not has_kind(found, Plateau):
        found.insert(0, Plateau(monitored))
    shown = sys.stderr.isatty() if progress is None else progress
    flags("Trainer", progress=shown)
    if shown and not has_kind(found, Progress):
        found.append(Progress())
    return found if is_first else [callback for callback in found if not callback.only_first]
