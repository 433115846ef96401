"""Learning-rate schedules: functions of the number of steps taken, passed to an optimizer as ``lr``.

Names are those of PyTorch's schedulers, with the rate ``lr`` in place of the optimizer.

Apart from :class:`ReduceOnPlateau`, a schedule has no state: the optimizer counts the steps, and saves their number.
Any function will do. ::

    optimizer = AdamW(Warmup(100, Cosine(1e-3, 10_000)), weight_decay=0.1)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from backburn.base.errors import ArgumentError
from backburn.hints import explain_arguments, lookups
from backburn.tensor.core.options import bounded, integer, number, one_of

__all__ = [
    "Schedule", "Linear", "Polynomial", "Cosine", "CosineWarmRestarts", "Exponential", "Step", "MultiStep", "OneCycle",
    "Warmup", "ReduceOnPlateau",
]  # fmt: skip


if not TYPE_CHECKING:
    __dir__, __getattr__ = lookups("backburn.optim.schedules", __all__)


#: Options that are numbers of steps.
_COUNTS = ("total_iters", "total_steps", "T_max", "T_0", "T_mult", "step_size", "warmup_steps")
#: Options that are divisors, of at least 1.
_DIVISORS = ("div_factor", "final_div_factor")


class Schedule:
    """The base class of schedules, which validates their options.

    Raises :class:`ArgumentError` for negative rates, and for numbers of steps that are not positive integers.
    """

    def __post_init__(self) -> None:
        """Check rates, factors and numbers of steps, and convert them to Python numbers."""
        for option, value in list(vars(self).items()):
            object.__setattr__(self, option, _checked(type(self).__name__, option, value))

    def __call__(self, step: int) -> float:
        """The rate after ``step`` steps."""
        raise NotImplementedError


def _checked(name: str, option: str, value: Any) -> Any:
    """The valid value of an option."""
    if option in _COUNTS:
        return integer(name, option, value, least=0 if option == "warmup_steps" else 1)
    if option == "milestones":
        if not isinstance(value, (tuple, list)):
            raise ArgumentError(f"{name}: milestones are numbers of steps, such as (30, 80), not {value!r}")
        return tuple(integer(name, f"milestones[{i}]", step, least=0) for i, step in enumerate(value))
    if option == "pct_start":
        return bounded(name, option, value, least=0, below=1)
    if option == "after" and callable(value):
        return value
    return bounded(name, option, value, least=1 if option in _DIVISORS else 0, below=math.inf)


@dataclass(frozen=True)
class Linear(Schedule):
    """A line from ``init_value`` to ``end_value`` in ``total_iters`` equal steps; constant after that.

    >>> rate = Linear(1.0, 0.0, total_iters=4)
    >>> [rate(n) for n in (0, 1, 4, 9)]
    [1.0, 0.75, 0.0, 0.0]
    """

    init_value: float
    end_value: float
    total_iters: int

    def __call__(self, step: int) -> float:
        """The rate after ``step`` steps."""
        return self.init_value + (self.end_value - self.init_value) * min(step / self.total_iters, 1.0)


@dataclass(frozen=True)
class Polynomial(Schedule):
    """Decay from ``lr`` to ``end_value`` in ``total_iters`` steps, by the remaining fraction of steps to the ``power``.

    >>> rate = Polynomial(1.0, total_iters=4, power=2.0)
    >>> [rate(n) for n in (0, 1, 2, 4, 9)]
    [1.0, 0.5625, 0.25, 0.0, 0.0]
    """

    lr: float
    total_iters: int
    power: float = 1.0
    end_value: float = 0.0

    def __call__(self, step: int) -> float:
        """The rate after ``step`` steps."""
        left = 1.0 - min(step / self.total_iters, 1.0)
        return float(self.end_value + (self.lr - self.end_value) * left**self.power)


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine from ``lr`` to ``eta_min`` in ``T_max`` steps (Loshchilov and Hutter, "SGDR", 2017).

    >>> rate = Cosine(1.0, T_max=100)
    >>> [round(rate(n), 4) for n in (0, 50, 100, 200)]
    [1.0, 0.5, 0.0, 0.0]
    """

    lr: float
    T_max: int
    eta_min: float = 0.0

    def __call__(self, step: int) -> float:
        """The rate after ``step`` steps."""
        done = min(step / self.T_max, 1.0)
        return self.eta_min + (self.lr - self.eta_min) * 0.5 * (1.0 + math.cos(math.pi * done))


@dataclass(frozen=True)
class CosineWarmRestarts(Schedule):
    """Half a cosine from ``lr`` to ``eta_min``, over and over (Loshchilov and Hutter, "SGDR", 2017).

    The first cycle takes ``T_0`` steps, and each further one ``T_mult`` times as many as the one before.

        >>> rate = CosineWarmRestarts(1.0, T_0=2, T_mult=2)
        >>> [round(rate(n), 4) for n in range(8)]
        [1.0, 0.5, 1.0, 0.8536, 0.5, 0.1464, 1.0, 0.9619]
    """

    lr: float
    T_0: int
    T_mult: int = 1
    eta_min: float = 0.0

    def __call__(self, step: int) -> float:
        """The rate after ``step`` steps."""
        length = self.T_0
        if self.T_mult == 1:
            step %= length
        while step >= length:
            step, length = step - length, length * self.T_mult
        return self.eta_min + (self.lr - self.eta_min) * 0.5 * (1.0 + math.cos(math.pi * step / length))


def _power(factor: float, exponent: float) -> float:
    """``factor ** exponent``, infinity on overflow, which an optimizer refuses as a rate."""
    try:
        return float(factor**exponent)
    except OverflowError:
        return math.inf


@dataclass(frozen=True)
class Exponential(Schedule):
    """``lr * gamma ** (n / step_size)`` after ``n`` steps: smooth exponential decay.

    >>> rate = Exponential(1.0, 0.5, step_size=10)
    >>> [rate(n) for n in (0, 10, 20)]
    [1.0, 0.5, 0.25]
    """

    lr: float
    gamma: float
    step_size: int = 1

    def __call__(self, step: int) -> float:
        """The rate after ``step`` steps."""
        return self.lr * _power(self.gamma, step / self.step_size)


@dataclass(frozen=True)
class Step(Schedule):
    """``lr * gamma ** (n // step_size)`` after ``n`` steps: decay by ``gamma`` every ``step_size`` steps.

    >>> rate = Step(1.0, step_size=10, gamma=0.5)
    >>> [rate(n) for n in (0, 9, 10, 25)]
    [1.0, 1.0, 0.5, 0.25]
    """

    lr: float
    step_size: int
    gamma: float = 0.1

    def __call__(self, step: int) -> float:
        """The rate after ``step`` steps."""
        return self.lr * _power(self.gamma, step // self.step_size)


@dataclass(frozen=True)
class MultiStep(Schedule):
    """``lr``, multiplied by ``gamma`` at each of the step numbers ``milestones``.

    >>> rate = MultiStep(1.0, (30, 80), gamma=0.5)
    >>> [rate(n) for n in (0, 29, 30, 79, 80)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    lr: float
    milestones: tuple[int, ...]
    gamma: float = 0.1

    def __call__(self, step: int) -> float:
        """The rate after ``step`` steps."""
        return self.lr * _power(self.gamma, sum(step >= n for n in self.milestones))


@dataclass(frozen=True)
class OneCycle(Schedule):
    """Up to ``max_lr`` in the first ``pct_start`` of ``total_steps``, and down again, along half cosines.

    It begins at ``max_lr / div_factor`` and ends at that divided by ``final_div_factor``, as in "Super-convergence"
    (Smith and Topin, 2019).

        >>> rate = OneCycle(1.0, total_steps=100)
        >>> [round(rate(n), 4) for n in (0, 30, 65, 100)]
        [0.04, 1.0, 0.5, 0.0]
    """

    max_lr: float
    total_steps: int
    _: KW_ONLY
    pct_start: float = 0.3
    div_factor: float = 25.0
    final_div_factor: float = 1e4

    def __call__(self, step: int) -> float:
        """The rate after ``step`` steps."""
        up, low = self.pct_start * self.total_steps, self.max_lr / self.div_factor
        if step < up:
            return low + (self.max_lr - low) * 0.5 * (1.0 - math.cos(math.pi * step / up))
        done = min((step - up) / (self.total_steps - up), 1.0)
        end = low / self.final_div_factor
        return end + (self.max_lr - end) * 0.5 * (1.0 + math.cos(math.pi * done))


@dataclass(frozen=True)
class Warmup(Schedule):
    """A linear rise in ``warmup_steps`` steps to the first rate of ``after``, a schedule or number, which then follows.

    The rate of the first step is one increment rather than 0. With 0 steps, ``after`` begins at once.

        >>> rate = Warmup(4, Cosine(1.0, T_max=10))
        >>> [round(rate(n), 4) for n in (0, 1, 3, 4, 9, 14)]
        [0.25, 0.5, 1.0, 1.0, 0.5, 0.0]
    """

    warmup_steps: int
    after: float | Callable[[int], float]

    def __call__(self, step: int) -> float:
        """The rate after ``step`` steps."""
        after = self.after(max(step - self.warmup_steps, 0)) if callable(self.after) else self.after
        return after * min((step + 1) / max(self.warmup_steps, 1), 1.0)


class ReduceOnPlateau(Schedule):
    """``lr``, multiplied by ``factor`` whenever a metric has not improved in more than ``patience`` observations.

    ``lr`` is a number or another schedule. Call :meth:`observe` with the metric, such as the loss of an epoch. With
    ``mode="min"`` it improves if it is below the best value so far by more than ``threshold``, with ``"max"`` if it is
    above it by more than that; the threshold is relative to the best value (``threshold_mode="rel"``) or absolute
    (``"abs"``). NaN does not count as an improvement. After a reduction, the next ``cooldown`` observations are not
    counted. The rate does not fall below ``min_lr``.

    Unlike the other schedules, it has state, which is not part of the optimizer's (several optimizers may share one):
    save both. A captured step asks for the rate at each replay; call :meth:`observe` outside of it.

    Raises :class:`ArgumentError` for options out of range.

        >>> import backburn as bb
        >>> rate = ReduceOnPlateau(0.5, factor=0.5, patience=1)
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
        lr: float | Callable[[int], float],
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
    ) -> None:
        self.lr = lr if callable(lr) else bounded("ReduceOnPlateau", "lr", lr, least=0, below=math.inf)
        self.mode = one_of("ReduceOnPlateau", "mode", mode, ("min", "max"))
        self.factor = bounded("ReduceOnPlateau", "factor", factor, least=0, below=1)
        self.patience = integer("ReduceOnPlateau", "patience", patience, least=0)
        self.threshold = bounded("ReduceOnPlateau", "threshold", threshold, least=0, below=math.inf)
        self.threshold_mode = one_of("ReduceOnPlateau", "threshold_mode", threshold_mode, ("rel", "abs"))
        self.cooldown = integer("ReduceOnPlateau", "cooldown", cooldown, least=0)
        self.min_lr = bounded("ReduceOnPlateau", "min_lr", min_lr, least=0, below=math.inf)
        #: The best metric so far, or None; counted observations since then; ignored ones to come; reductions.
        self.best: float | None = None
        self.failures = 0
        self.waits = 0
        self.reductions = 0

    def __repr__(self) -> str:
        return f"ReduceOnPlateau({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def __call__(self, step: int) -> float:
        """The rate after ``step`` steps."""
        rate = self.lr(step) if callable(self.lr) else self.lr
        return max(rate * self.factor**self.reductions, min(rate, self.min_lr))

    def observe(self, metric: Any) -> bool:
        """Take the next value of the metric, a number or a 0-d tensor; returns whether it reduces the rate.

        Raises :class:`ArgumentError` for anything else.
        """
        value = float(number("ReduceOnPlateau", "a metric", metric.item() if hasattr(metric, "item") else metric))
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
        if self.best is None or math.isinf(self.best):  # no margin is relative to infinity
            return sign * value < (math.inf if self.best is None else sign * self.best)
        margin = self.threshold * (abs(self.best) if self.threshold_mode == "rel" else 1.0)
        return sign * value < sign * self.best - margin

    def state_dict(self) -> dict[str, float | int | None]:
        """The state for saving, without the options: ``best``, ``failures``, ``waits`` and ``reductions``.

        >>> ReduceOnPlateau(0.1).state_dict()
        {'best': None, 'failures': 0, 'waits': 0, 'reductions': 0}
        """
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved :meth:`state_dict`. Raises :class:`ArgumentError` for anything else, and changes nothing."""
        given: object = state
        if not isinstance(given, Mapping) or given.keys() != set(_STATE):
            names = ", ".join(_STATE)
            raise ArgumentError(f"load_state_dict: the state of a ReduceOnPlateau has {names}, and this is {given!r}")
        counts = {name: integer("load_state_dict", name, state[name], least=0) for name in _STATE[1:]}
        if max(counts.values()) >= 2**63:
            raise ArgumentError("load_state_dict: a count of a ReduceOnPlateau has more than 64 bits")
        best = None if state["best"] is None else float(number("load_state_dict", "best", state["best"]))
        vars(self).update(best=best, **counts)


#: The attributes that :class:`ReduceOnPlateau` saves.
_STATE = ("best", "failures", "waits", "reductions")


explain_arguments(Linear, Polynomial, Cosine, CosineWarmRestarts, Exponential, Step, MultiStep, OneCycle, Warmup)
explain_arguments(ReduceOnPlateau)
