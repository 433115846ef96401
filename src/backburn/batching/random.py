"""Batching rules: random draws, one for all examples or one for each, depending on ``randomness`` of ``vmap``."""

from __future__ import annotations

from typing import Any

from backburn.base.errors import ArgumentError
from backburn.batching.rules import Rule, Same, batching, front, is_mapped
from backburn.ops.table import OPERATIONS


def draw_rule(name: str) -> Rule:
    """The rule of a draw of a shape: if examples differ, each takes the next values of the stream."""

    def rule(level: Any, *, shape: tuple[int, ...], **attributes: Any) -> Any:
        draw = getattr(level.inner_backend, name)
        if level.randomness == "same":
            return Same(draw(shape=shape, **attributes))
        if level.randomness == "different":
            if "axis" in attributes:
                attributes["axis"] += 1
            return draw(shape=(level.size, *shape), **attributes)
        raise ArgumentError(
            f"{name}: random numbers inside vmap: vmap(..., randomness='different') draws for each example, "
            f"randomness='same' draws once for all"
        )

    return rule


for name in ("random_bits", "random_window", "uniform", "integers", "bernoulli", "normal"):
    batching(name, draw_rule(name))


def use_body(level: Any, *operands: Any, **attributes: Any) -> Any:
    """The rule of an operation whose body draws: the body runs on this level, even if it is differentiated."""
    return NotImplemented


def gamma(level: Any, alpha: Any, **attributes: Any) -> Any:
    """Its derivative is not the body's: a level below that differentiates must receive the operation itself."""
    k = level.inner_backend
    if level.randomness == "different":
        return k.gamma(front(level, alpha), **attributes)
    if level.randomness == "same" and level.size and level.is_differentiated_whole("gamma", (alpha,)):
        if not is_mapped(level, alpha):
            return Same(k.gamma(alpha, **attributes))
        return level.one_by_one(OPERATIONS["gamma"], (alpha,), attributes).value
    return NotImplemented


batching("dropout", use_body)
batching("gamma", gamma)
