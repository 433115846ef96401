"""Learning-rate schedules: functions of the number of steps taken, passed to an optimizer as ``lr``.

Apart from :class:`Plateau`, a schedule has no state: the optimizer counts the steps, and saves their number. Any
function will do. ::

    optimizer = AdamW(Warmup(100, Cosine(1e-3, 10_000)), weight_decay=0.1)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backburn.base.errors import ArgumentError
from backburn.base.hints import add_option_hints, lookups
from backburn.tensor.options import bounded, integer, number, one_of

__all__ = [
    "Schedule", "Linear", "Polynomial", "Cosine", "Restarts", "Exponential", "Step", "MultiStep", "OneCycle", "Warmup",
    "Plateau",
]  # fmt: skip


if not TYPE_CHECKING:
    __dir__, __getattr__ = lookups("backburn.optim.schedules", __all__)


#: The options that are numbers, in the place of which there is no other schedule.
_NUMBERS = ("rate", "start", "end", "factor", "power", "rise", "fall")


class Schedule:
    """The base class of schedules, which validates their options.

    Raises :class:`ArgumentError` for negative rates, and for numbers of steps that are not positive integers.
    """

    def __post_init__(self) -> None:
        """Check rates, factors and numbers of steps, and keep them as numbers of Python."""
        for option, value in list(vars(self).items()):
            object.__setattr__(self, option, _checked(type(self).__name__, option, value))

    def __call__(self, step: int) -> float:
        """The rate after so many steps."""
        raise NotImplementedError


def _checked(name: str, option: str, value: Any) -> Any:
    """The valid value of an option."""
    if option in ("steps", "every", "growth"):
        return integer(name, option, value, least=1)
    if option == "at":
        if not isinstance(value, (tuple, list)):
            raise ArgumentError(f"{name}: at are numbers of steps, such as (30, 80), not {value!r}")
        return tuple(integer(name, f"at[{i}]", step, least=0) for i, step in enumerate(value))
    if option == "share":
        return bounded(name, option, value, least=0, below=1)
    if callable(value) and option not in _NUMBERS:
        return value
    return bounded(name, option, value, least=1 if option in ("rise", "fall") else 0, below=math.inf)


@dataclass(frozen=True)
class Linear(Schedule):
    """From ``start`` to ``end`` in ``steps`` equal steps; constant after that.

    >>> rate = Linear(1.0, 0.0, steps=4)
    >>> [rate(n) for n in (0, 1, 4, 9)]
    [1.0, 0.75, 0.0, 0.0]
    """

    start: float
    end: float
    steps: int

    def __call__(self, step: int) -> float:
        """The rate after so many steps."""
        return self.start + (self.end - self.start) * min(step / self.steps, 1.0)


@dataclass(frozen=True)
class Polynomial(Schedule):
    """From ``rate`` to ``end`` in ``steps`` steps, following the remaining share of steps raised to ``power``.

    >>> rate = Polynomial(1.0, steps=4, power=2.0)
    >>> [rate(n) for n in (0, 1, 2, 4, 9)]
    [1.0, 0.5625, 0.25, 0.0, 0.0]
    """

    rate: float
    steps: int
    power: float = 1.0
    end: float = 0.0

    def __call__(self, step: int) -> float:
        """The rate after so many steps."""
        left = 1.0 - min(step / self.steps, 1.0)
        return float(self.end + (self.rate - self.end) * left**self.power)


@dataclass(frozen=True)
class Cosine(Schedule):
    """From ``rate`` to ``end`` along half a cosine in ``steps`` steps (Loshchilov and Hutter, "SGDR", 2017).

    >>> rate = Cosine(1.0, steps=100)
    >>> [round(rate(n), 4) for n in (0, 50, 100, 200)]
    [1.0, 0.5, 0.0, 0.0]
    """

    rate: float
    steps: int
    end: float = 0.0

    def __call__(self, step: int) -> float:
        """The rate after so many steps."""
        done = min(step / self.steps, 1.0)
        return self.end + (self.rate - self.end) * 0.5 * (1.0 + math.cos(math.pi * done))


@dataclass(frozen=True)
class Restarts(Schedule):
    """From ``rate`` to ``end`` along half a cosine, over and over (Loshchilov and Hutter, "SGDR", 2017).

    The first cycle takes ``steps`` steps, and each further one ``growth`` times as many as the one before.

        >>> rate = Restarts(1.0, steps=2, growth=2)
        >>> [round(rate(n), 4) for n in range(8)]
        [1.0, 0.5, 1.0, 0.8536, 0.5, 0.1464, 1.0, 0.9619]
    """

    rate: float
    steps: int
    growth: int = 1
    end: float = 0.0

    def __call__(self, step: int) -> float:
        """The rate after so many steps."""
        length = self.steps
        if self.growth == 1:
            step %= length
        while step >= length:
            step, length = step - length, length * self.growth
        return self.end + (self.rate - self.end) * 0.5 * (1.0 + math.cos(math.pi * step / length))


def _power(factor: float, exponent: float) -> float:
    """``factor ** exponent``, infinity where it is beyond floats: as a rate, an optimizer refuses that."""
    try:
        return float(factor**exponent)
    except OverflowError:
        return math.inf


@dataclass(frozen=True)
class Exponential(Schedule):
    """``rate * factor ** (n / every)`` after ``n`` steps: smooth exponential decay.

    >>> rate = Exponential(1.0, 0.5, every=10)
    >>> [rate(n) for n in (0, 10, 20)]
    [1.0, 0.5, 0.25]
    """

    rate: float
    factor: float
    every: int = 1

    def __call__(self, step: int) -> float:
        """The rate after so many steps."""
        return self.rate * _power(self.factor, step / self.every)


@dataclass(frozen=True)
class Step(Schedule):
    """``rate * factor ** (n // every)`` after ``n`` steps: decay by ``factor`` every ``every`` steps.

    >>> rate = Step(1.0, 0.5, every=10)
    >>> [rate(n) for n in (0, 9, 10, 25)]
    [1.0, 1.0, 0.5, 0.25]
    """

    rate: float
    factor: float
    every: int

    def __call__(self, step: int) -> float:
        """The rate after so many steps."""
        return self.rate * _power(self.factor, step // self.every)


@dataclass(frozen=True)
class MultiStep(Schedule):
    """``rate``, multiplied by ``factor`` at each of the step numbers ``at``.

    >>> rate = MultiStep(1.0, 0.5, at=(30, 80))
    >>> [rate(n) for n in (0, 29, 30, 79, 80)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    rate: float
    factor: float
    at: tuple[int, ...]

    def __call__(self, step: int) -> float:
        """The rate after so many steps."""
        return self.rate * _power(self.factor, sum(step >= n for n in self.at))


@dataclass(frozen=True)
class OneCycle(Schedule):
    """Up to ``rate`` in the first ``share`` of ``steps``, and down again, along half cosines (Smith and Topin, 2019).

    It begins at ``rate / rise`` and ends at that divided by ``fall``, as in "Super-convergence".

        >>> rate = OneCycle(1.0, steps=100)
        >>> [round(rate(n), 4) for n in (0, 30, 65, 100)]
        [0.04, 1.0, 0.5, 0.0]
    """

    rate: float
    steps: int
    share: float = 0.3
    rise: float = 25.0
    fall: float = 1e4

    def __call__(self, step: int) -> float:
        """The rate after so many steps."""
        up, low = self.share * self.steps, self.rate / self.rise
        if step < up:
            return low + (self.rate - low) * 0.5 * (1.0 - math.cos(math.pi * step / up))
        done = min((step - up) / (self.steps - up), 1.0)
        end = low / self.fall
        return end + (self.rate - end) * 0.5 * (1.0 + math.cos(math.pi * done))


@dataclass(frozen=True)
class Warmup(Schedule):
    """A linear rise in ``steps`` steps to the first rate of ``after``, a schedule or a number, which then follows.

    The rate of the first step is one increment rather than 0.

        >>> rate = Warmup(4, Cosine(1.0, steps=10))
        >>> [round(rate(n), 4) for n in (0, 1, 3, 4, 9, 14)]
        [0.25, 0.5, 1.0, 1.0, 0.5, 0.0]
    """

    steps: int
    after: float | Callable[[int], float]

    def __call__(self, step: int) -> float:
        """The rate after so many steps."""
        after = self.after(max(step - self.steps, 0)) if callable(self.after) else self.after
        return after * min((step + 1) / self.steps, 1.0)


class Plateau(Schedule):
    """``rate``, multiplied by ``factor`` whenever a metric has not improved in more than ``patience`` observations.

    ``rate`` is a number or another schedule. Call :meth:`observe` with the metric, such as the loss of an epoch. With
    ``mode="min"`` it improves if it is below the best value so far by more than ``threshold``, with ``"max"`` if it is
    above it by more than that; the threshold is relative to the best value (``threshold_mode="rel"``) or absolute
    (``"abs"``). NaN is no improvement. After a reduction, the next ``cooldown`` observations are not counted. The rate
    does not fall below ``end``.

    Unlike the other schedules, it has state, which is not part of the optimizer's (several optimizers may share one):
    save both. A captured step asks for the rate at each replay; call :meth:`observe` outside of it.

    Raises :class:`ArgumentError` for options out of range.

        >>> import backburn as bb
        >>> rate = Plateau(0.5, factor=0.5, patience=1)
        >>> optimizer = bb.optim.Adam(rate)
        >>> for loss in (3.0, 2.0, 2.5, 2.25, 1.0):
        ...     reduced = rate.observe(loss)
        ...     print(loss, rate(optimizer.steps), reduced)
        3.0 0.5 False
        2.0 0.5 False
        2.5 0.5 False
        2.25 0.25 True
        1.0 0.25 False
    """

    def __init__(
        self,
        rate: float | Callable[[int], float],
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        end: float = 0.0,
        mode: str = "min",
    ) -> None:
        self.rate = rate if callable(rate) else bounded("Plateau", "rate", rate, least=0, below=math.inf)
        self.factor = bounded("Plateau", "factor", factor, least=0, below=1)
        self.patience = integer("Plateau", "patience", patience, least=0)
        self.threshold = bounded("Plateau", "threshold", threshold, least=0, below=math.inf)
        self.threshold_mode = one_of("Plateau", "threshold_mode", threshold_mode, ("rel", "abs"))
        self.cooldown = integer("Plateau", "cooldown", cooldown, least=0)
        self.end = bounded("Plateau", "end", end, least=0, below=math.inf)
        self.mode = one_of("Plateau", "mode", mode, ("min", "max"))
        #: The best metric so far, or None; the observations since it that count; those left that do not; reductions.
        self.best: float | None = None
        self.failures = 0
        self.waits = 0
        self.reductions = 0

    def __repr__(self) -> str:
        return f"Plateau({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def __call__(self, step: int) -> float:
        """The rate after so many steps."""
        rate = self.rate(step) if callable(self.rate) else self.rate
        return max(rate * self.factor**self.reductions, min(rate, self.end))

    def observe(self, metric: Any) -> bool:
        """Take the next value of the metric, a number or a 0-d tensor; returns whether it reduces the rate.

        Raises :class:`ArgumentError` for anything else.
        """
        value = float(number("Plateau", "a metric", metric.item() if hasattr(metric, "item") else metric))
        if self._improves(value):
            self.best, self.failures = value, 0
        else:
            self.failures += 1
        if self.waits:
            self.waits, self.failures = self.waits - 1, 0
        if self.failures <= self.patience:
            return False
        self.reductions, self.waits, self.failures = self.reductions + 1, self.cooldown, 0
        return True

    def _improves(self, value: float) -> bool:
        """Whether ``value`` is better than the best so far by more than the threshold."""
        sign = 1.0 if self.mode == "min" else -1.0
        if self.best is None or math.isinf(self.best):  # of infinity no share can be taken
            return sign * value < (math.inf if self.best is None else sign * self.best)
        margin = self.threshold * (abs(self.best) if self.threshold_mode == "rel" else 1.0)
        return sign * value < sign * self.best - margin

    def state_dict(self) -> dict[str, float | int | None]:
        """The state for saving, without the options: ``best``, ``failures``, ``waits`` and ``reductions``.

        >>> Plateau(0.1).state_dict()
        {'best': None, 'failures': 0, 'waits': 0, 'reductions': 0}
        """
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved :meth:`state_dict`. Raises :class:`ArgumentError` for anything else, and changes nothing."""
        given: object = state
        if not isinstance(given, Mapping) or given.keys() != set(_STATE):
            names = ", ".join(_STATE)
            raise ArgumentError(f"load_state_dict: the state of a Plateau has {names}, and this is {given!r}")
        counts = {name: integer("load_state_dict", name, state[name], least=0) for name in _STATE[1:]}
        best = None if state["best"] is None else float(number("load_state_dict", "best", state["best"]))
        vars(self).update(best=best, **counts)


#: What :class:`Plateau` saves.
_STATE = ("best", "failures", "waits", "reductions")


add_option_hints(Linear, Polynomial, Cosine, Restarts, Exponential, Step, MultiStep, OneCycle, Warmup, Plateau)
