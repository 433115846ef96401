"""One training step: loss, gradients, clipping, update and average, recorded on request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from backburn.backend import AnyBackend
from backburn.base.contexts import MEANS, scoped
from backburn.base.dtypes import float32
from backburn.base.errors import DTypeError, ShapeError
from backburn.base.trees import tree_map
from backburn.optim.gradients import (
    NamedGradients,
    add,
    clip_grad_norm,
    global_norm,
    named_gradients,
    scale,
    to_backend_of,
)
from backburn.tensor.core.dispatch import cast
from backburn.tensor.core.host import asarray
from backburn.tensor.core.messages import describe
from backburn.tensor.core.wrapping import is_tensor
from backburn.tensor.selection import where
from backburn.train.batches import examples
from backburn.train.precision import Precision, buffers_by_path, put_buffers
from backburn.transforms.capturing import Captured, CapturedFunction, OnFallback, capture

Values = dict[str, Any]
#: By name, the weights of means that are not over the examples: 0-d tensors, or numbers that follow from shapes.
Weights = dict[str, Any]


class Step:
    """A step with an optimizer: its call takes the state and tensors, and returns the loss and further values.

    A ``guarded`` step has two parts, gradients and update; the second is taken only if the gradients are finite, which
    the host checks in between. Both parts are recorded, if anything is.
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
        """``on_fallback`` is what happens if a step cannot be recorded; None records nothing."""
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

    def __call__(self, state: tuple[Any, Any, Any], batches: tuple[Any, ...]) -> tuple[Values, Weights, bool]:
        """The values and weights of a step on one batch, or on several together; and whether it was taken."""
        if not self.guarded:
            return *self._whole(state, *batches)[1], True
        model, precision = state[0], self._precision
        factor = asarray(precision.scale, dtype=float32, backend=self._backend) if precision.scales else None
        (values, weights), gradients, buffers, norm = self._first(model, factor, *batches)
        if not precision.observe(isfinite(norm.item())):
            return values, weights, False
        self._second(state, gradients, buffers)
        return values, weights, True

    @property
    def reason(self) -> str | None:
        """Why the last step was not replayed: empty if it was, None if nothing is to be recorded."""
        return getattr(self._first if self.guarded else self._whole, "reason", None)

    @property
    def plans(self) -> list[Any]:
        """The passes over memory of a step's recorded parts, as text; empty if nothing is recorded."""
        parts = [self._first, self._second] if self.guarded else [self._whole]
        found = [part.plan() for part in parts if isinstance(part, Captured | CapturedFunction)]
        return [plan for plan in found if plan is not None]

    def _learn(self, state: tuple[Any, Any, Any], *batches: Any) -> tuple[Any, tuple[Values, Weights]]:
        model, optimizer, average = state
        if self._copies or self._clip is not None or len(batches) > 1:
            found, gradients, buffers, _ = self._gradients(model, None, *batches)
            return self._update(state, gradients, buffers)[0], found
        value, values, weights = measured(self._loss, model, *batches)
        optimizer.step(model, value.backward())
        if average is not None:
            average.update(model)
        return state, (values, weights)

    def _gradients(
        self, model: Any, factor: Any, *batches: Any
    ) -> tuple[tuple[Values, Weights], Any, dict[str, Any], Any]:
        """Values and weights, gradients by path, new buffers, and, if the step is guarded, the norm of the gradients.

        A guarded or cast step uses a copy of the model, whose own buffers do not change before the update.
        """
        precision, total, whole = self._precision, None, None
        found = list[tuple[Values, Weights, int]]()
        buffers: dict[str, Any] = {}
        for batch in batches:
            used = model
            if self._copies:  # a new one for each batch: the casts are a part of its graph
                used = precision.cast(model) if precision.casts else tree_map(lambda x: x, model)
                put_buffers(used, buffers)
            value, values, weights = measured(self._loss, used, precision.cast(batch))
            wide = cast(value, float32) if precision.casts else value
            buffers = buffers_by_path(used) if self._copies else buffers
            gradients = named_gradients(model, (wide if factor is None else wide * factor).backward())
            count = examples(batch)
            if len(batches) > 1:
                weight = weights.get("loss", count)
                gradients = _weighted(gradients, weight)
                whole = weight if whole is None else whole + weight
            total = gradients if total is None else add(total, gradients)
            found.append((values, weights, count))
        if whole is not None:
            total = scale(total, _inverse(whole))
        if factor is not None:
            total = scale(total, 1.0 / factor)
        values, weights = found[0][:2] if len(found) == 1 else _mean(found)
        norm = None
        if self._clip is not None:
            total, norm = clip_grad_norm(total, self._clip)
            values = {**values, "gradient_norm": norm}
        elif self.guarded:
            norm = global_norm(total)
        return (values, weights), total, buffers, norm

    def _update(self, state: tuple[Any, Any, Any], gradients: Any, buffers: Mapping[str, Any]) -> tuple[Any, None]:
        model, optimizer, average = state
        put_buffers(model, buffers)
        optimizer.step(model, gradients)
        if average is not None:
            average.update(model)
        return state, None


def measured(function: Callable[[Any, Any], Any], model: Any, batch: Any) -> tuple[Any, Values, Weights]:
    """The loss with its history, all values without, and the weights of those that are not means over examples.

    Raises :class:`DTypeError` and :class:`ShapeError` for anything else.
    """
    with scoped(MEANS, list[Any]()):
        result, means = function(model, batch), MEANS.get() or []
    further: Mapping[str, Any] = {}
    if result.__class__ is tuple and len(result) == 2 and isinstance(result[1], Mapping):
        result, further = result
    value, weight = _pair(result)
    if value.__class__ is tuple or (value is not result and not is_tensor(weight)):
        raise DTypeError(
            f"loss: returns a scalar, or a pair of a scalar and a dict of scalars by name, or of a scalar and its "
            f"weight, a 0-d tensor, and not a tuple of {describe(result)}"
        )
    if not is_tensor(value) or not value.dtype.is_floating:
        raise DTypeError(f"loss: returns a 0-d float tensor, not {describe((value,)) or None}")
    if value.shape:
        raise ShapeError(f"loss: returns a scalar, and this is {describe((value,))}: take its mean()")
    if "loss" in further:
        raise DTypeError("loss: 'loss' is the name of the loss itself: give the further value another name")
    if weight is None:
        weight = next((divisor() for mean, divisor in means if mean is value), None)
    values, weights = {"loss": value.detach()}, {} if weight is None else {"loss": _plain("loss", "weight", weight)}
    for name, x in further.items():
        put_mean(values, weights, "loss", name, x)
    return value, values, weights


def put_mean(values: Values, weights: Weights, function: str, name: str, x: Any) -> None:
    """Record a value, or a pair of a value and its weight. Raises unless they are 0-d tensors."""
    mean, weight = _pair(x)
    values[name] = _plain(function, name, mean)
    if weight is not None:
        weights[name] = _plain(function, f"the weight of {name}", weight)


def _pair(x: Any) -> tuple[Any, Any]:
    """A mean, and its weight if it has one."""
    return x if x.__class__ is tuple and len(x) == 2 else (x, None)


def _plain(function: str, name: str, x: Any) -> Any:
    """A 0-d tensor, without history, or a number that follows from shapes."""
    if x.__class__ is int and name == "weight":
        return x
    if not is_tensor(x):
        raise DTypeError(f"{function}: {name!r} is a 0-d tensor, not {describe((x,)) or None}; bb.asarray makes one")
    if x.shape:
        raise ShapeError(f"{function}: {name!r} is a scalar, and this is {describe((x,))}: take its mean()")
    return x.detach() if x.dtype.has_gradient else x


def _weighted(gradients: NamedGradients, weight: Any) -> NamedGradients:
    """Gradients times a weight; 0 where that is 0, though a mean of nothing is NaN."""
    if not is_tensor(weight):
        return scale(gradients, weight)
    weight, found = cast(weight, float32), dict[str, Any]()
    for path, x in scale(gradients, weight).items():
        found[path] = where(to_backend_of(x, weight) != 0.0, x, 0.0)
    return found


def _inverse(whole: Any) -> Any:
    """``1 / whole``, 1 for 0."""
    return 1.0 / where(whole == 0.0, 1.0, cast(whole, float32)) if is_tensor(whole) else 1.0 / whole


def _mean(found: list[tuple[Values, Weights, int]]) -> tuple[Values, Weights]:
    """The means of the values of several batches, and the weights of those that have separate ones."""
    values, whole = Values(), Weights()
    for name in found[0][0]:
        own = [weights.get(name, count) for _, weights, count in found]
        terms = [_term(each[name], weight) for (each, _, _), weight in zip(found, own, strict=True)]
        total = sum(own[1:], start=own[0])
        values[name] = sum(terms[1:], start=terms[0]) / total
        if any(name in weights for _, weights, _ in found):
            whole[name] = total
    return values, whole


def _term(value: Any, weight: Any) -> Any:
    """A value times its weight, 0 where that is 0."""
    wide = cast(value, float32)
    return where(weight == 0, 0.0, wide) * cast(weight, float32) if is_tensor(weight) else wide * weight
