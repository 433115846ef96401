"""``evaluate``: the means of a loss and of metrics over data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from backburn.base.errors import ArgumentError
from backburn.hints.arguments import explained
from backburn.tensor.core.defaults import no_grad
from backburn.tensor.generators import Generator, fork
from backburn.tensor.shape import concat
from backburn.train.arguments import checked_data, checked_function, checked_metrics, modules_of
from backburn.train.batches import Data, Place, batches_of, described, examples
from backburn.train.steps import Values, Weights, measured, put_mean
from backburn.train.sums import READ_AFTER, Entry, Sums
from backburn.transforms.capturing import capture

M = TypeVar("M")


@explained
def evaluate(
    model: M,
    loss: Callable[[M, Any], Any],
    data: Data,
    *,
    metrics: Mapping[str, Callable[[M, Any], Any]] | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """The means over ``data`` of the loss, its further values and ``metrics``, by name; NaN for a mean of nothing.

    Batches are weighted by their number of examples, or by the weights of the values, as in training. ``loss`` and
    ``metrics`` are those of :class:`Trainer`. Nothing is recorded for gradients. The model is left in ``eval()`` mode;
    random draws follow from ``seed``. Raises :class:`ArgumentError` for data without a batch.

        >>> import numpy as np
        >>> from backburn import data, nn, train
        >>> model = nn.Linear(2, 1)
        >>> def loss(model, x):
        ...     return (model(x) - model(x)).square().mean()
        >>> train.evaluate(model, loss, [np.ones((4, 2)), np.ones((2, 2))])
        {'loss': 0.0}
    """
    found = Evaluation(checked_function("loss", loss), checked_metrics(metrics), Place.of(model), records=False)
    return found(model, checked_data("data", data), Generator(seed))


@explained
def predict(model: Callable[[Any], Any], data: Data) -> Any:
    """The outputs of ``model`` for each batch of ``data``, concatenated along the first axis.

    Nothing is recorded for gradients. The model is left in ``eval()`` mode. Raises :class:`ArgumentError` for data
    without a batch.

        >>> import numpy as np
        >>> from backburn import data, nn, train
        >>> train.predict(nn.Linear(2, 3), [np.ones((4, 2)), np.ones((1, 2))]).shape
        (5, 3)
    """
    place = Place.of(model)
    for module in modules_of(model):
        module.eval()
    with no_grad():
        found = [model(place.tensors(batch)) for batch in batches_of(checked_data("data", data), 1)]
    if not found:
        raise ArgumentError(f"predict: the data, a {type(data).__name__}, have no batch")
    return concat(found)


class Evaluation:
    """A loss and metrics to evaluate models with, recorded if ``records``."""

    def __init__(self, loss: Any, metrics: Mapping[str, Any], place: Place, records: bool) -> None:
        self._loss, self._metrics, self._place = loss, metrics, place
        self._measure: Callable[..., Any] = self._measured
        if records:
            self._measure = capture(self._measured, state=False, on_fallback="allow")

    def __call__(self, model: Any, data: Data, random: Generator, epoch: int = 1) -> dict[str, float]:
        """The means of all values over data, whose ``epoch`` is set if they have one."""
        sums, found = Sums(), list[Entry]()
        for module in modules_of(model):
            module.eval()
        with no_grad(), fork(random):
            for batch in batches_of(data, epoch):
                tensors = batch
                try:
                    tensors = self._place.tensors(batch)
                    found.append((examples(tensors), *self._measure(model, tensors)))
                except Exception as error:
                    error.add_note(f"In an evaluation, with the batch {described(tensors)}.")
                    raise
                if len(found) >= READ_AFTER:
                    sums.add(found)
        sums.add(found)
        if not sums.examples:
            raise ArgumentError(f"evaluate: the data, a {type(data).__name__}, have no batch")
        return sums.means()

    def _measured(self, model: Any, batch: Any) -> tuple[Values, Weights]:
        _, values, weights = measured(self._loss, model, batch)
        for name, metric in self._metrics.items():
            put_mean(values, weights, "metrics", name, metric(model, batch))
        return values, weights
