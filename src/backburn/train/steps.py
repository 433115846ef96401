"""One training step: loss, gradients, clipping, update and average, recorded where that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from backburn.backend import AnyBackend
from backburn.base.dtypes import float32
from backburn.base.errors import DTypeError, ShapeError
from backburn.base.trees import tree_map
from backburn.optim.gradients import add, clip_grad_norm, global_norm, named_gradients, scale
from backburn.tensor.core.dispatch import cast
from backburn.tensor.core.host import asarray
from backburn.tensor.core.messages import describe
from backburn.tensor.core.wrapping import is_tensor
from backburn.train.batches import examples
from backburn.train.precision import Precision, buffers_by_path, put_buffers
from backburn.transforms.capturing import OnFallback, capture

Values = dict[str, Any]


class Step:
    """A step with an optimizer: its call takes the state and tensors, and returns the loss and further values.

    A step that is ``guarded`` is taken in two parts, gradients and update, and the second one only if the gradients are
    finite, which the host asks for in between. Both parts are recorded where ``captured``.
    """

    def __init__(
        self,
        loss: Callable[[Any, Any], Any],
        precision: Precision,
        clip: float | None,
        guarded: bool,
        on_fallback: OnFallback | None,
        backend: AnyBackend,
    ) -> None:
        """``on_fallback`` is what happens where a step cannot be recorded; None records nothing."""
        self._loss = loss
        self._backend = backend
        self._precision = precision
        self._clip = clip
        self.guarded = guarded or precision.scales
        self._copies = self.guarded or precision.casts
        self._whole: Callable[..., Any] = self._learn
        self._first: Callable[..., Any] = self._gradients
        self._second: Callable[..., Any] = self._update
        if on_fallback is not None:
            self._whole = capture(self._learn, on_fallback=on_fallback)
            self._first = capture(self._gradients, state=False, on_fallback=on_fallback)
            self._second = capture(self._update, on_fallback=on_fallback)

    def __call__(self, state: tuple[Any, Any, Any], batches: tuple[Any, ...]) -> tuple[Values, bool]:
        """The values of a step on one batch, or on several whose gradients are averaged; and whether it was taken."""
        if not self.guarded:
            return self._whole(state, *batches)[1], True
        model, precision = state[0], self._precision
        factor = asarray(precision.scale, dtype=float32, backend=self._backend) if precision.scales else None
        values, gradients, buffers, norm = self._first(model, factor, *batches)
        if not precision.observe(isfinite(norm.item())):
            return values, False
        self._second(state, gradients, buffers)
        return values, True

    @property
    def reason(self) -> str | None:
        """Why the last step was not replayed: empty if it was, None if nothing is to be recorded."""
        return getattr(self._first if self.guarded else self._whole, "reason", None)

    def _learn(self, state: tuple[Any, Any, Any], *batches: Any) -> tuple[Any, Values]:
        model, optimizer, average = state
        if self._copies or self._clip is not None or len(batches) > 1:
            values, gradients, buffers, _ = self._gradients(model, None, *batches)
            return self._update(state, gradients, buffers)[0], values
        value, values = self._called(model, *batches)
        optimizer.step(model, value.backward())
        if average is not None:
            average.update(model)
        return state, values

    def _gradients(self, model: Any, factor: Any, *batches: Any) -> tuple[Values, Any, dict[str, Any], Any]:
        """Values, gradients by path, new buffers, and, if the step is guarded, the norm of the gradients.

        Guarded or cast, the step uses a copy of the model, so that its buffers are those of before until the update.
        """
        precision, total, found = self._precision, None, list[Values]()
        buffers: dict[str, Any] = {}
        counts = [examples(batch) for batch in batches]
        weights = [count / sum(counts) for count in counts]
        for batch, weight in zip(batches, weights, strict=True):
            used = model
            if self._copies:  # a new one for each batch: the casts are a part of its graph
                used = precision.cast(model) if precision.casts else tree_map(lambda x: x, model)
                put_buffers(used, buffers)
            value, values = self._called(used, precision.cast(batch))
            wide = cast(value, float32) if precision.casts else value
            buffers = buffers_by_path(used) if self._copies else buffers
            gradients = named_gradients(model, (wide if factor is None else wide * factor).backward())
            if weight != 1.0:
                gradients = scale(gradients, weight)
            total = gradients if total is None else add(total, gradients)
            found.append(values)
        if factor is not None:
            total = scale(total, 1.0 / factor)
        values = found[0] if len(found) == 1 else _mean(found, weights)
        norm = None
        if self._clip is not None:
            total, norm = clip_grad_norm(total, self._clip)
            values = {**values, "gradient_norm": norm}
        elif self.guarded:
            norm = global_norm(total)
        return values, total, buffers, norm

    def _update(self, state: tuple[Any, Any, Any], gradients: Any, buffers: Mapping[str, Any]) -> tuple[Any, None]:
        model, optimizer, average = state
        put_buffers(model, buffers)
        optimizer.step(model, gradients)
        if average is not None:
            average.update(model)
        return state, None

    def _called(self, model: Any, batch: Any) -> tuple[Any, Values]:
        """The loss with its history, and all values without."""
        value, further = parts_of(self._loss(model, batch))
        values = {"loss": value.detach()}
        for name, x in further.items():
            values[name] = x.detach() if x.dtype.kind == "float" else x
        return value, values


def parts_of(result: Any) -> tuple[Any, Mapping[str, Any]]:
    """The loss, and the further values, of what a loss function returned. Raises for anything else."""
    further: Mapping[str, Any] = {}
    value = result
    if result.__class__ is tuple:
        if len(result) != 2 or not isinstance(result[1], Mapping):
            raise DTypeError(
                f"loss: returns a scalar, or a pair of a scalar and a dict of scalars by name, not a tuple of "
                f"{describe(result)}"
            )
        value, further = result
    if not is_tensor(value) or value.dtype.kind != "float":
        raise DTypeError(f"loss: returns a 0-d float tensor, not {describe((value,)) or None}")
    if value.shape:
        raise ShapeError(f"loss: returns a scalar, and this is {describe((value,))}: take its mean()")
    for name, x in further.items():
        check_scalar("loss", name, x)
        if name == "loss":
            raise DTypeError("loss: the further values have names of their own, and one is called 'loss'")
    return value, further


def check_scalar(function: str, name: Any, x: Any) -> None:
    """Raise unless a value is a 0-d tensor."""
    if not is_tensor(x):
        raise DTypeError(f"{function}: {name!r} is a 0-d tensor, not {describe((x,)) or None}; bb.asarray makes one")
    if x.shape:
        raise ShapeError(f"{function}: {name!r} is a scalar, and this is {describe((x,))}: take its mean()")


def _mean(found: list[Values], weights: list[float]) -> Values:
    """The weighted mean of the values of several batches."""
    return {
        name: sum((cast(values[name], float32) * w for values, w in zip(found, weights, strict=True)), start=0.0)
        for name in found[0]
    }
