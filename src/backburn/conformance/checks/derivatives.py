"""Gradient checks: directional derivatives of an operation, of any order, by nested ``Autodiff``.

The directional derivative of order n, computed by n levels of ``Autodiff``, is compared with one central difference
of the directional derivative of order n - 1, in float64 (after Chainer's and HIPS autograd's gradient checks).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from backburn.autodiff import Autodiff
from backburn.base.dtypes import as_dtype
from backburn.conformance.samples.calls import (
    as_float64,
    as_tuple,
    host_arrays,
    is_inexact,
    map_operands,
    store_quantized,
)
from backburn.conformance.samples.table import Array, Sample
from backburn.ops.table import OPERATIONS

STEP = 2.0**-17


def with_leaves(sample: Sample, values: list[Any], other: Any) -> list[Any]:
    """The operands, with ``values`` for arrays of floats and complex numbers, and ``other(array)`` for other arrays."""
    remaining = iter(values)
    return map_operands(sample.operands, lambda a: next(remaining) if is_inexact(a) else other(a))


def directional_derivative(
    name: str, sample: Sample, base: Any, directions: list[list[Array]], at: list[Array], first: Any = None
) -> float:
    """The derivative of ``sum(cotangent * operation(at))`` along ``directions``, one list of arrays for each order.

    ``first`` is the autodiff backend over ``base`` that differentiates first; by default ``Autodiff``.
    """
    order = len(directions)
    tower = [base]
    for level in range(order):
        tower.append(first if level == 0 and first is not None else Autodiff(tower[-1]))
    inputs = []
    for value in at:
        x = base.from_numpy(np.asarray(value))
        for k in tower[1:]:
            x = k.set_require_grad(k.from_inner(x), True)
        inputs.append(x)
    top = tower[-1]
    operands = store_quantized(base, with_leaves(sample, inputs, base.from_numpy))
    outputs = getattr(top, name)(*operands, **sample.attributes)
    scalar = _weighted_sum(top, base, outputs)
    if scalar is None:  # no float output
        return 0.0
    for level, direction in zip(range(order, 0, -1), directions, strict=True):
        k, below = tower[level], tower[level - 1]
        if not k.is_tracked(scalar):  # nothing depends on the inputs
            return 0.0
        gradients = k.backward(scalar)
        total: Any = below.full((), 0.0, as_dtype(np.real(at[0]).dtype))
        for index, along in enumerate(direction):
            g = k.grad(inputs[index], gradients)
            inputs[index] = k.inner(inputs[index])
            if g is not None:
                total = below.add(total, paired(below, g, _constant(below, base, along)))
        scalar = total
    result = base.to_numpy(scalar)
    return float(result)


def _constant(k: Any, base: Any, array: Array) -> Any:
    """A host array as an untracked primitive of ``k``, which is some levels above ``base``."""
    return base.from_numpy(array) if k is base else k.from_inner(_constant(k.inner_backend, base, array))


def _weighted_sum(k: Any, base: Any, outputs: Any) -> Any:
    """``sum(w * output)`` over the float outputs; the weights are fixed and distinct, so swapped elements are found."""
    total = None
    for output in as_tuple(outputs):
        if not k.dtype(output).has_gradient:
            continue
        term = paired(k, output, _constant(k, base, uneven(tuple(output.shape), k.dtype(output).kind)))
        total = term if total is None else k.add(total, term)
    return total


def paired(k: Any, x: Any, y: Any) -> Any:
    """The pairing of a cotangent with a tangent: the sum of products, and its real part for complex numbers."""
    total = k.sum(k.mul(x, y), tuple(range(len(x.shape))), False)
    return k.real(total) if k.dtype(total).kind == "complex" else total


def uneven(shape: tuple[int, ...], kind: str = "float") -> Array:
    """Distinct weights between 0.5 and 2.5, with imaginary parts of both signs for complex results."""
    places = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
    weights = np.cos(places + 0.7) + 1.5
    return weights + 1j * np.sin(places + 0.4) if kind == "complex" else weights


def check_derivative(
    name: str,
    sample: Sample,
    base: Any,
    order: int,
    tolerance: float = 1e-6,
    first: Any = None,
    seed: int | None = None,
) -> float:
    """Compare the derivative of ``order`` with a central difference; raises AssertionError if they differ.

    Returns the error in units of tolerance. ``first`` is as in :func:`directional_derivative`; ``seed`` determines the
    directions.
    """
    at = [as_float64(a) for a in host_arrays(sample) if is_inexact(a)]
    if not at or not OPERATIONS[name].differentiable:
        return 0.0
    generator = np.random.default_rng(order if seed is None else seed)
    directions = [[direction(generator, a) for a in at] for _ in range(order)]
    got = directional_derivative(name, sample, base, directions, at, first)
    last = directions[-1]
    difference = [
        directional_derivative(
            name, sample, base, directions[:-1], [a + sign * STEP * d for a, d in zip(at, last, strict=True)], first
        )
        for sign in (1, -1)
    ]
    expected = (difference[0] - difference[1]) / (2 * STEP)
    size = max(1.0, abs(expected), *(abs(d) for d in difference))
    error: float = abs(got - expected) / (tolerance * 10 ** (order - 1) * size)
    if not error <= 1:
        raise AssertionError(
            f"{name}, derivative of order {order}: got {got!r}, central difference {expected!r}; sample {sample}"
        )
    return error


def direction(generator: np.random.Generator, like: Array) -> Array:
    """A direction whose components and their parts are all well away from 0, so that every element is checked."""

    def part() -> Array:
        signs = generator.choice([-1.0, 1.0], like.shape)
        return np.asarray(generator.uniform(0.3, 1.0, like.shape) * signs)

    return part() + 1j * part() if like.dtype.kind == "c" else part()
