"""Normally distributed float32 values, float64 references of norms, and errors in epsilons."""

from __future__ import annotations

from typing import Any

import numpy as np


def real(*shape: int, mean: float = 0.0, seed: int = 0) -> Any:
    return (np.random.default_rng([seed, *shape]).normal(size=shape) + mean).astype(np.float32)


def error(got: Any, expected: Any, axis: Any = None, least: float = 0.0) -> float:
    """The largest error, in epsilons times the largest expected value over ``axis``, or ``least``."""
    assert got.shape == expected.shape
    assert got.dtype == np.float32
    largest = np.maximum(np.abs(expected).max(axis=axis, keepdims=True), least)
    far = np.abs(got.astype(np.float64) - expected).max(axis=axis, keepdims=True)
    return float((far / np.where(largest == 0, 1, largest)).max() / np.finfo(np.float32).eps)


def norm(x: Any, axis: Any, centred: bool, scale: Any = 1.0, bias: Any = 0.0) -> Any:
    """The result in float64, and a function from its gradient to those of ``x`` and (unreduced) ``scale``."""
    x, scale, bias = (np.asarray(a, np.float64) for a in (x, scale, bias))
    centre = x - x.mean(axis, keepdims=True) if centred else x
    factor = 1 / np.sqrt(np.square(centre).mean(axis, keepdims=True) + 1e-5)
    normal = centre * factor

    def backward(grad: Any) -> Any:
        slope = grad.astype(np.float64) * scale
        rest = slope - normal * (slope * normal).mean(axis, keepdims=True)
        return factor * (rest - slope.mean(axis, keepdims=True) if centred else rest), grad * normal

    return normal * scale + bias, backward
