"""Functions and modules shared by the tests of transforms."""

from __future__ import annotations

import gc
from typing import Any

import backburn as bb
from backburn import nn
from backburn.transforms import (
    vjp,
)


def tensor(values: Any, **options: Any) -> Any:
    return bb.asarray(values, dtype="float64", **options)


def without_collector(function: Any) -> Any:
    """Return the result of ``function`` while the cyclic collector does not run."""
    gc.collect()
    gc.freeze()  # or each collection would traverse existing objects again
    gc.disable()
    try:
        return function()
    finally:
        gc.enable()


# ---- state of modules ----


def normalized() -> Any:
    with bb.random.fork(0), bb.use_dtype("float64"):
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm(3), nn.ReLU(), nn.Linear(3, 2))


def by_hand(f: Any) -> Any:
    """``f`` of a module, with a handwritten derivative that is that of ``f``."""
    made = bb.custom_vjp(f)
    made.define(lambda m: vjp(f, m), lambda pullback, g: pullback(g))
    return made
