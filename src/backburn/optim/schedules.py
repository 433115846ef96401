"""Learning-rate schedules: functions of the number of steps done, passed to an optimizer as ``lr``.

A schedule has no state: it is called with a number of steps, which the optimizer counts and saves. Any function will
do. ::

    optimizer = AdamW(Warmup(100, Cosine(1e-3, 10_000)), weight_decay=0.1)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from backburn.base.errors import ArgumentError
from backburn.base.hints import missing_name
from backburn.tensor.options import bounded, integer

__all__ = [
    "Schedule", "Linear", "Polynomial", "Cosine", "Restarts", "Exponential", "Step", "MultiStep", "OneCycle", "Warmup",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> NoReturn:
        raise missing_name("backburn.optim.schedules", name)


class Schedule:
    """The base class of schedules, which validates their options.

    Raises :class:`ArgumentError` for negative rates and numbers of steps that are not positive integers.
    """

    def __post_init__(self) -> None:
        """Check rates, factors and numbers of steps."""
        name = type(self).__name__
        for option, value in vars(self).items():
            if option in ("steps", "every", "growth"):
                integer(name, option, value, least=1)
            elif option == "at":
                if not isinstance(value, (tuple, list)):
                    raise ArgumentError(f"{name}: at are numbers of steps, such as (30, 80), not {value!r}")
                for i, step in enumerate(value):
                    integer(name, f"at[{i}]", step, least=0)
            elif option == "share":
                bounded(name, option, value, least=0, below=1)
            elif not callable(value):
                bounded(name, option, value, least=1 if option in ("rise", "fall") else 0, below=math.inf)

    def __call__(self, step: int) -> float:
        """The rate after so many steps."""
        raise NotImplementedError


@dataclass(frozen=True)
class Linear(Schedule):
    """From ``start`` to ``end`` in ``steps`` equal steps, and constant after that.

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
    """From ``rate`` to ``end`` in ``steps`` steps, by the power ``power`` of what is left of them.

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
    """From ``rate`` to ``end`` along half a cosine, again and again (Loshchilov and Hutter, "SGDR", 2017).

    The first time in ``steps`` steps, and then each time in ``growth`` times as many as before.

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
        return float(self.rate * self.factor ** (step / self.every))


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
        return float(self.rate * self.factor ** (step // self.every))


@dataclass(frozen=True)
class MultiStep(Schedule):
    """``rate``, times ``factor`` after each of the numbers of steps ``at``.

    >>> rate = MultiStep(1.0, 0.5, at=(30, 80))
    >>> [rate(n) for n in (0, 29, 30, 79, 80)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    rate: float
    factor: float
    at: tuple[int, ...]

    def __call__(self, step: int) -> float:
        """The rate after so many steps."""
        return float(self.rate * self.factor ** sum(step >= n for n in self.at))


@dataclass(frozen=True)
class OneCycle(Schedule):
    """Up to ``rate`` in the first ``share`` of ``steps`` and down again, along cosines (Smith and Topin, 2019).

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
    """A linear rise in ``steps`` steps to the first rate of ``after``, a schedule or a constant rate, which follows.

    The rate of the first step is not 0 but one increment.

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
