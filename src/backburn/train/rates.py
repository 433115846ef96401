"""Learning rates of a run: those of groups of parameters, and rates that were lowered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isclose
from typing import Any

from backburn.optim.groups import Groups


class Lowered:
    """A schedule times a factor."""

    def __init__(self, rate: Callable[[int], float], factor: float) -> None:
        self.rate, self.factor = rate, factor

    def __call__(self, step: int) -> float:
        """The rate after ``step`` steps."""
        return self.factor * self.rate(step)


def optimizers_of(optimizer: Any) -> dict[str, Any]:
    """The optimizers of groups by name, or a single optimizer under an empty name."""
    return dict(optimizer.optimizers) if isinstance(optimizer, Groups) else {"": optimizer}


def rate_values(optimizer: Any) -> dict[str, float]:
    """The rates of the next step by name: ``lr``, or ``lr/<group>`` for groups of parameters."""
    found = {}
    for name, one in optimizers_of(optimizer).items():
        value: Any = one.lr(one.steps) if callable(one.lr) else one.lr
        found[f"lr/{name}" if name else "lr"] = float(value)
    return found


def changed_rate(optimizer: Any, row: Mapping[str, float]) -> str | None:
    """A description of how a schedule differs from the one with which an epoch ended; None if it does not.

    Schedules that observe the run, such as ``ReduceOnPlateau``, are ignored.
    """
    for name, one in optimizers_of(optimizer).items():
        key = f"lr/{name}" if name else "lr"
        if not callable(one.lr) or hasattr(one.lr, "observe") or key not in row:
            continue
        now: Any = one.lr(int(row["step"]))
        rate = float(now)
        if not isclose(rate, row[key], rel_tol=1e-6):
            step = f"after step {row['step']:.0f}"
            return f"{key} {step} was {row[key]:.4g}, and is {rate:.4g} by the present schedule"
    return None


def lower(optimizer: Any, rates: dict[str, Any], factor: float) -> None:
    """Set the rates of the optimizers to ``factor`` times ``rates``."""
    for name, one in optimizers_of(optimizer).items():
        one.lr = Lowered(rates[name], factor) if callable(rates[name]) else factor * rates[name]
