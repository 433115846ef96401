"""Derivatives of every operation outside and inside ``vmap``, on the conformance samples, against a loop.

Outside, the level of ``vmap`` runs on tracked primitives; inside, the differentiating level runs on mapped ones. Both
must follow the conventions at points without a derivative, since both use the operation's rule.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backburn.conformance.runner.suite as _suite  # noqa: F401 - fills the table of samples
from backburn.autodiff import Autodiff, Forward
from backburn.backend import load_backend
from backburn.batching import Batched, Mapped
from backburn.conformance.checks.derivatives import uneven
from backburn.conformance.samples.calls import is_float
from backburn.conformance.samples.table import SAMPLES, Sample
from backburn.ops.table import OPERATIONS

SIZE = 2
K = load_backend("numpy")
NAMES = [n for n in SAMPLES if OPERATIONS[n].differentiable and OPERATIONS[n].shape is not None]

#: The position of a float operand, and its index if the operand is a list.
Place = tuple[int, int | None]


def floats(sample: Sample) -> dict[Place, Any]:
    found: dict[Place, Any] = {}
    for i, operand in enumerate(sample.operands):
        for j, part in enumerate(operand) if isinstance(operand, list) else [(None, operand)]:
            if is_float(part) and part.size:
                found[i, j] = part
    return found


def choices(sample: Sample) -> list[set[int]]:
    """Return the sets of operands that differ between examples: all floats, and each of them alone."""
    positions = {i for i, _ in floats(sample)}
    return [positions, *({i} for i in positions if len(positions) > 1)]


def assembled(sample: Sample, given: dict[Place, Any], constant: Any) -> list[Any]:
    """Return the operands of a sample with its floats replaced by ``given``."""

    def one(i: int, j: int | None, part: Any) -> Any:
        return given.get((i, j), constant(part) if isinstance(part, np.ndarray) else part)

    return [
        [one(i, j, part) for j, part in enumerate(operand)] if isinstance(operand, list) else one(i, None, operand)
        for i, operand in enumerate(sample.operands)
    ]


def weighted(k: Any, out: Any, constant: Any) -> Any:
    """Return the sum of the float results with uneven weights on ``k``, or None without a float result."""
    total = None
    for y in out if isinstance(out, tuple) else (out,):
        if k.dtype(y).kind == "float":
            shape = tuple(y.shape)
            term = k.sum(k.mul(y, constant(uneven(shape))), tuple(range(len(shape))), False)
            total = term if total is None else k.add(total, term)
    return total


def values(sample: Sample, chosen: set[int]) -> list[dict[Place, Any]]:
    """Return the float operands of each example."""
    return [{p: a * (1.0, 0.75)[n] if p[0] in chosen else a for p, a in floats(sample).items()} for n in range(SIZE)]


def constants(level: Any) -> Callable[[Any], Any]:
    """Return a function from an array to a constant primitive of ``level``."""

    def constant(array: Any) -> Any:
        primitive = K.from_numpy(np.asarray(array))
        return level.from_inner(primitive) if is_float(array) else primitive

    return constant


def one_by_one(name: str, sample: Sample, chosen: set[int]) -> tuple[list[dict[Place, Any]], list[Any]]:
    """Return each example's gradients of the weighted sum, and its derivative along the operands themselves."""
    gradients, slopes = [], []
    outer = Autodiff(K)
    constant = constants(outer)
    for at in values(sample, chosen):
        leaves = {p: outer.set_require_grad(constant(a), True) for p, a in at.items()}
        out = getattr(outer, name)(*assembled(sample, leaves, constant), **sample.attributes)
        total = weighted(outer, out, constant)
        tracked = total is not None and outer.is_tracked(total)
        found = outer.backward(total) if tracked else None
        by_place = {p: None if found is None else outer.grad(x, found) for p, x in leaves.items()}
        gradients.append({p: np.zeros_like(at[p]) if g is None else np.asarray(g) for p, g in by_place.items()})
        slopes.append(sum(float((g * at[p]).sum()) for p, g in gradients[-1].items()))
    return gradients, slopes


def lifted(level: Batched, array: Any, stacked: bool) -> Any:
    primitive = K.from_numpy(np.asarray(array))
    return level.mapped(primitive) if stacked else primitive


def outside(name: str, sample: Sample, chosen: set[int]) -> list[dict[Place, Any]]:
    """Return each example's gradients, from a level of ``vmap`` on tracked primitives."""
    outer = Autodiff(K)
    level = Batched(outer, SIZE, on_fallback="allow", randomness="same")
    each = values(sample, chosen)
    leaves: dict[Place, Any] = {}
    for p in each[0]:  # a shared operand is not mapped, and its gradient is summed
        array = np.stack([at[p] for at in each]) if p[0] in chosen else each[0][p]
        leaves[p] = outer.set_require_grad(outer.from_inner(K.from_numpy(array)), True)

    constant = constants(outer)
    given = {p: level.mapped(x) if p[0] in chosen else x for p, x in leaves.items()}
    out = getattr(level, name)(*assembled(sample, given, constant), **sample.attributes)
    total = weighted(level, out, constant)
    if total is None or not outer.is_tracked(total.value if isinstance(total, Mapped) else total):
        return [{p: np.zeros_like(a) for p, a in at.items()} for at in each]
    if not isinstance(total, Mapped):  # the same for all examples
        total = level.mapped(outer.broadcast_to(total, (SIZE,)))
    found = outer.backward(outer.sum(total.value, (0,), False))
    gradients = {p: outer.grad(x, found) for p, x in leaves.items()}

    def of(n: int, p: Place, like: Any) -> Any:
        g = gradients[p]
        return np.zeros_like(like) if g is None else np.asarray(g)[n] if p[0] in chosen else np.asarray(g)

    return [{p: of(n, p, a) for p, a in at.items()} for n, at in enumerate(each)]


def inside(name: str, sample: Sample, chosen: set[int]) -> list[dict[Place, Any]]:
    """Return each example's gradients, from a level of ``Autodiff`` on mapped primitives."""
    level = Batched(K, SIZE, on_fallback="allow", randomness="same")
    outer = Autodiff(level)
    each = values(sample, chosen)
    constant = constants(outer)
    leaves: dict[Place, Any] = {}
    for p in each[0]:
        array = np.stack([at[p] for at in each]) if p[0] in chosen else each[0][p]
        leaves[p] = outer.set_require_grad(outer.from_inner(lifted(level, array, p[0] in chosen)), True)
    out = getattr(outer, name)(*assembled(sample, leaves, constant), **sample.attributes)
    total = weighted(outer, out, constant)
    found = outer.backward(total) if total is not None and outer.is_tracked(total) else None
    gradients = {p: None if found is None else outer.grad(x, found) for p, x in leaves.items()}

    def of(n: int, p: Place, like: Any) -> Any:
        g = gradients[p]
        return np.zeros_like(like) if g is None else np.asarray(level.example(g, n))

    return [{p: of(n, p, a) for p, a in at.items()} for n, at in enumerate(each)]


def tangents(name: str, sample: Sample, chosen: set[int]) -> list[Any]:
    """Return each example's derivative along the operands, from a level of ``Forward`` on mapped primitives."""
    level = Batched(K, SIZE, on_fallback="allow", randomness="same")
    outer: Any = Forward(level)
    each = values(sample, chosen)
    constant = constants(outer)
    duals: dict[Place, Any] = {}
    for p in each[0]:
        array = np.stack([at[p] for at in each]) if p[0] in chosen else each[0][p]
        x = lifted(level, array, p[0] in chosen)
        duals[p] = outer.dual(x, x)
    out = getattr(outer, name)(*assembled(sample, duals, constant), **sample.attributes)
    total = weighted(outer, out, constant)
    t = None if total is None else outer.tangent(total)
    return [0.0 if t is None else float(level.example(t, n)) for n in range(SIZE)]


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_are_those_of_the_loop(name: str) -> None:
    for number, sample in enumerate(SAMPLES[name].cases):
        for chosen in choices(sample):
            if not chosen:
                continue
            try:
                gradients, slopes = one_by_one(name, sample, chosen)
            except Exception:  # the other example is not a valid call
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                through = outside(name, sample, chosen)
                each = inside(name, sample, chosen)
                along = tangents(name, sample, chosen)
            where = f"{name}, sample {number}, {chosen}"
            for n in range(SIZE):
                for p, expected in gradients[n].items():
                    if p[0] not in chosen:
                        expected = sum(g[p] for g in gradients)
                    np.testing.assert_allclose(through[n][p], expected, 1e-8, 1e-8, err_msg=f"outside {where} {p}")
                    np.testing.assert_allclose(each[n][p], gradients[n][p], 1e-8, 1e-8, err_msg=f"inside {where} {p}")
                if np.isfinite(slopes[n]):
                    cast_to = str(sample.attributes)
                    tolerance = 1e-2 if "bfloat16" in cast_to else 1e-3 if "float16" in cast_to else 1e-7
                    np.testing.assert_allclose(along[n], slopes[n], tolerance, tolerance, err_msg=f"tangent {where}")
