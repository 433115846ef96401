"""Steps as formulas, each parameter's in one pass over memory, and the numbers in them that change at every step."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from math import prod
from typing import Any

from backburn.base.replay import REPLAY


def each(k: Any, formula: Callable[..., Any], lists: list[list[Any]], *common: Any, donate: bool) -> tuple[Any, ...]:
    """A formula of each parameter, its gradient and what is remembered of it, the ``lists``, and ``common`` numbers.

    It results in the new parameter and what is remembered from now on, as do the steps of many of the contract.
    """
    places = tuple(range(2, len(lists))) if donate else ()
    steps = [k.one_pass(formula, *tensors, *common, donate=places) for tensors in zip(*lists, strict=True)]
    return tuple(chain.from_iterable(zip(*steps, strict=True)))


def numbers_of_step(k: Any, like: Any, formula: Callable[..., tuple[float, ...]], lr: float, step: int) -> list[Any]:
    """The numbers ``formula(lr, step)``, in recorded steps of the present rate and count, as 0-d tensors.

    Python's own numbers are constants of a formula, which a backend would prepare anew whenever they change.
    """
    recording = REPLAY.get()
    numbers = formula(lr, step) if recording is None else recording.derived(formula, lr, step)
    one = k.full((), 1.0, k.dtype(like))
    return [k.mul(one, number) for number in numbers]


# ---- parts of formulas ----


def decayed(k: Any, g: Any, x: Any, weight_decay: float) -> Any:
    """A gradient with ``weight_decay`` times the parameter added."""
    return k.add(g, k.mul(x, weight_decay)) if weight_decay else g


def mean(k: Any, before: Any, x: Any, beta: float) -> Any:
    """A running mean with one more element."""
    return k.add(k.mul(before, beta), k.mul(x, 1.0 - beta))


def mean_square(k: Any, before: Any, x: Any, beta: float) -> Any:
    """The same of squares."""
    return mean(k, before, k.square(x), beta)


# ---- sums ----


def total(k: Any, x: Any) -> Any:
    """The sum of all elements, in one order: in whatever way they lie in memory, a run that is resumed rounds alike."""
    return k.sum(k.reshape(x, (prod(x.shape),)), (0,), False)


def length(k: Any, x: Any) -> Any:
    """The norm of all elements, in one order too."""
    return k.norm(k.reshape(x, (prod(x.shape),)), (0,))
