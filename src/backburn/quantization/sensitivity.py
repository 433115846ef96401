"""Sensitivity analysis: the cost of quantizing each layer, measured one layer at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from backburn.base.dtypes import QuantizedDType
from backburn.base.errors import ArgumentError, DTypeError
from backburn.nn.module import Module
from backburn.nn.quantized import Ranges, as_scheme
from backburn.nn.quantized_models import quantizable_layers, quantize_model
from backburn.quantization.calibration import run
from backburn.tensor.core.messages import describe
from backburn.tensor.core.wrapping import is_tensor


@dataclass(frozen=True)
class LayerCost:
    """The cost of quantizing only the layer at ``path``, and its weight's bytes ``before`` and ``after``."""

    path: str
    cost: float
    before: int
    after: int


@dataclass(frozen=True)
class Sensitivity:
    """The costs of all layers in descending order; ``print`` shows them as a table. ``unit`` names the measure."""

    layers: tuple[LayerCost, ...]
    unit: str

    def worst(self, count: int) -> tuple[str, ...]:
        """The paths of the ``count`` most sensitive layers, for ``skip`` of :func:`quantize_model`."""
        return tuple(layer.path for layer in self.layers[:count])

    def above(self, cost: float) -> tuple[str, ...]:
        """The paths of the layers whose cost is above ``cost``."""
        return tuple(layer.path for layer in self.layers if layer.cost > cost)

    def __str__(self) -> str:
        width = max([len("layer"), *(len(layer.path) for layer in self.layers)])
        lines = [f"{'layer':{width}}  {self.unit:>14}  {'bytes':>10}  {'quantized':>10}"]
        lines += [f"{x.path:{width}}  {x.cost:14.3e}  {x.before:10}  {x.after:10}" for x in self.layers]
        return "\n".join(lines)


def sensitivity(
    model: Module,
    batches: Iterable[Any],
    scheme: QuantizedDType | str,
    *,
    pattern: str | tuple[str, ...] = "*",
    weights: Ranges | None = None,
    score: Callable[[Module], float] | None = None,
) -> Sensitivity:
    """The cost of quantizing each matching layer's weight while all others are unchanged.

    The cost is the increase of ``score(model)``, such as a loss on held-out data; without one it is the relative error
    of the model's result on ``batches`` (as for :func:`calibrate`), ``sum((y - q)**2) / sum(y**2)``. Other arguments
    are those of :func:`quantize_model`. The model runs once unchanged and once for each layer.

        >>> import backburn as bb
        >>> from backburn.nn import Linear, ReLU, Sequential
        >>> model = Sequential(Linear(8, 8), ReLU(), Linear(8, 2))
        >>> table = sensitivity(model, [bb.random.normal((16, 8))], "qint4_symmetric_tensor_float32")
        >>> sorted(layer.path for layer in table.layers), len(table.worst(1))
        (['0', '2'], 1)
    """
    chosen, data = as_scheme("sensitivity", scheme), list(batches)
    if score is None and not data:
        raise ArgumentError("sensitivity: there is no batch and no score, so that nothing can be measured")
    layers = quantizable_layers("sensitivity", model, pattern)
    reference = [] if score is not None else run(model, data)
    before = score(model) if score is not None else 0.0
    costs = []
    for path, layer in layers:
        changed = quantize_model(model, chosen, path, weights=weights)
        cost = score(changed) - before if score is not None else relative_error(reference, run(changed, data))
        quantized: Any = dict(changed.named_modules())[path]
        costs.append(LayerCost(path, cost, layer.weight.size * layer.weight.dtype.itemsize, quantized.weight.nbytes))
    costs.sort(key=lambda found: -found.cost)
    return Sensitivity(tuple(costs), "relative error" if score is None else "score increase")


def relative_error(expected: list[Any], got: list[Any]) -> float:
    """The sum of squared differences over the sum of squares; the results are float tensors."""
    wrong = whole = 0.0
    for y, q in zip(expected, got, strict=True):
        if not is_tensor(y) or not y.dtype.is_floating:
            what = describe((y,)) if is_tensor(y) else type(y).__name__
            raise DTypeError(f"sensitivity: the model's result is {what}, not a float tensor: give a score")
        wide = y.astype("float32")
        wrong += float((wide - q.astype("float32")).square().sum().item())
        whole += float(wide.square().sum().item())
    return wrong / whole if whole else wrong
