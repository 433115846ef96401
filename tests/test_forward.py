"""``Forward``: tangents of every operation, against central differences and against the gradients they are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backburn.autodiff import Autodiff
from backburn.autodiff.forward import Forward
from backburn.autodiff.tangents import way
from backburn.backend.registry import load_backend
from backburn.backend.table import OPERATIONS
from backburn.conformance import SAMPLES, Sample
from backburn.conformance.derivatives import STEP, direction, leaves, uneven, with_leaves

BASE: Any = load_backend("numpy")
FORWARD: Any = Forward(BASE)
CASES: list[Any] = [
    pytest.param(name, sample, id=f"{name}-{i}")
    for name, samples in SAMPLES.items()
    if OPERATIONS[name].differentiable
    for i, sample in enumerate(samples.cases)
    if leaves(sample)
]


def tuple_of(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def called(k: Any, name: str, sample: Sample, floats: list[Any]) -> list[Any]:
    """The float outputs of an operation on ``k``, with ``floats`` in place of the sample's float arrays."""
    outputs = getattr(k, name)(*with_leaves(sample, floats, BASE.from_numpy), **sample.attributes)
    return [y for y in tuple_of(outputs) if k.dtype(y).kind == "float"]


def pushed(name: str, sample: Sample, at: list[Any], along: list[Any]) -> tuple[list[Any], list[Any]]:
    """The values of the float outputs, and their tangents (zeros where there is none)."""
    duals = [FORWARD.dual(BASE.from_numpy(a), BASE.from_numpy(d)) for a, d in zip(at, along, strict=True)]
    outputs = called(FORWARD, name, sample, duals)
    values = [BASE.to_numpy(y.value) for y in outputs]
    return values, [np.zeros(y.shape) if y.tangent is None else BASE.to_numpy(y.tangent) for y in outputs]


def pulled(name: str, sample: Sample, at: list[Any], cotangents: list[Any]) -> list[Any]:
    """The cotangents of the float operands by reverse mode, zeros where none flowed."""
    outer: Any = Autodiff(BASE)
    inputs = [outer.set_require_grad(outer.from_inner(BASE.from_numpy(a)), True) for a in at]
    outputs = called(outer, name, sample, inputs)
    total: Any = outer.full((), 0.0, BASE.dtype(BASE.from_numpy(at[0])))
    for y, u in zip(outputs, cotangents, strict=True):
        term = outer.sum(outer.mul(y, outer.from_inner(BASE.from_numpy(u))), tuple(range(u.ndim)), False)
        total = outer.add(total, term)
    if not outer.is_tracked(total):
        return [np.zeros_like(a) for a in at]
    gradients = outer.backward(total)
    found = [outer.grad(x, gradients) for x in inputs]
    return [np.zeros_like(a) if g is None else BASE.to_numpy(g) for a, g in zip(at, found, strict=True)]


@pytest.mark.parametrize(("name", "sample"), CASES)
def test_tangents_and_gradients_are_adjoint(name: str, sample: Sample) -> None:
    """``<u, J v> = <J' u, v>`` at every sample, those included at which the derivative is a convention."""
    at = [np.asarray(a, np.float64) for a in leaves(sample)]
    along = [direction(np.random.default_rng(3), a) for a in at]
    values, tangents = pushed(name, sample, at, along)
    plain = called(BASE, name, sample, [BASE.from_numpy(a) for a in at])
    for value, tangent, expected in zip(values, tangents, plain, strict=True):
        np.testing.assert_allclose(value, BASE.to_numpy(expected), rtol=1e-12, atol=1e-12)
        assert tangent.shape == value.shape
        assert tangent.dtype == value.dtype
    cotangents = [uneven(v.shape).astype(v.dtype) for v in values]
    gradients = pulled(name, sample, at, cotangents)
    forward = [u * t for u, t in zip(cotangents, tangents, strict=True)]
    reverse = [g * d for g, d in zip(gradients, along, strict=True)]
    finite = [all(np.isfinite(x).all() for x in side) for side in (forward, reverse)]
    if not all(finite):  # NaN and infinities come out of both, unless the values are none of either's making
        assert finite[0] == finite[1] or not all(np.isfinite(v).all() for v in values)
        return
    coarsest = max([0.0, *(float(np.finfo(v.dtype).eps) for v in values)])
    size = max([1.0, *(float(np.abs(x).sum()) for x in (*forward, *reverse))])
    assert sum(float(x.sum()) for x in forward) == pytest.approx(
        sum(float(x.sum()) for x in reverse), abs=max(1e-11, coarsest) * size
    )


@pytest.mark.parametrize(("name", "sample"), [c for c in CASES if c.values[1].smooth >= 1])
def test_tangents_against_central_differences(name: str, sample: Sample) -> None:
    at = [np.asarray(a, np.float64) for a in leaves(sample)]
    along = [direction(np.random.default_rng(4), a) for a in at]
    values, tangents = pushed(name, sample, at, along)

    def moved(sign: float) -> float:
        outputs = called(BASE, name, sample, [
            BASE.from_numpy(a + sign * STEP * d) for a, d in zip(at, along, strict=True)
        ])
        return float(sum((uneven(y.shape) * BASE.to_numpy(y)).sum() for y in outputs))

    ends = moved(1.0), moved(-1.0)
    got = float(sum((uneven(t.shape) * t).sum() for t in tangents))
    size = max(1.0, abs(got), *map(abs, ends), *(float(np.abs(v).sum()) for v in values))
    assert got == pytest.approx((ends[0] - ends[1]) / (2 * STEP), abs=1e-6 * size)
