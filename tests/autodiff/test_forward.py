"""``Forward``: tangents of every operation, against central differences and against gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.autodiff import Autodiff, Forward, decompose, elementwise, jvp_strategy, tangent
from backburn.backend.registry import load_backend
from backburn.conformance import SAMPLES, Sample
from backburn.conformance.checks.derivatives import STEP, direction, uneven, with_leaves
from backburn.conformance.samples.calls import leaves, store_quantized
from backburn.ops.table import OPERATIONS

BASE: Any = load_backend("numpy")
FORWARD: Any = Forward(BASE)
#: The differentiable samples of each operation.
CASES: dict[str, list[Sample]] = {
    name: found
    for name, samples in SAMPLES.items()
    if OPERATIONS[name].differentiable and (found := [sample for sample in samples.cases if leaves(sample)])
}


def tuple_of(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def called(k: Any, name: str, sample: Sample, floats: list[Any]) -> list[Any]:
    """Return the float outputs of an operation on ``k``, with ``floats`` in place of the sample's float arrays."""
    outputs = getattr(k, name)(
        *store_quantized(BASE, with_leaves(sample, floats, BASE.from_numpy)), **sample.attributes
    )
    return [y for y in tuple_of(outputs) if k.dtype(y).kind == "float"]


def pushed(name: str, sample: Sample, at: list[Any], along: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the float outputs and their tangents, with zeros for missing ones."""
    duals = [FORWARD.dual(BASE.from_numpy(a), BASE.from_numpy(d)) for a, d in zip(at, along, strict=True)]
    outputs = called(FORWARD, name, sample, duals)
    values = [BASE.to_numpy(y.value) for y in outputs]
    return values, [np.zeros(y.shape) if y.tangent is None else BASE.to_numpy(y.tangent) for y in outputs]


def pulled(name: str, sample: Sample, at: list[Any], cotangents: list[Any]) -> list[Any]:
    """Return the cotangents of the float operands from reverse mode, with zeros for missing ones."""
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


@pytest.mark.parametrize("name", CASES)
def test_tangents_and_gradients_are_adjoint(name: str) -> None:
    """``<u, J v> = <J' u, v>`` at every sample, including those where the derivative is a convention."""
    for sample in CASES[name]:
        check_adjoint(name, sample)


def check_adjoint(name: str, sample: Sample) -> None:
    at = [np.asarray(a, np.float64) for a in leaves(sample)]
    along = [direction(np.random.default_rng(3), a) for a in at]
    values, tangents = pushed(name, sample, at, along)
    plain = called(BASE, name, sample, [BASE.from_numpy(a) for a in at])
    for value, moved, expected in zip(values, tangents, plain, strict=True):
        np.testing.assert_allclose(value, BASE.to_numpy(expected), rtol=1e-12, atol=1e-12)
        assert moved.shape == value.shape
        assert moved.dtype == value.dtype
    cotangents = [uneven(v.shape).astype(v.dtype) for v in values]
    gradients = pulled(name, sample, at, cotangents)
    forward = [u * t for u, t in zip(cotangents, tangents, strict=True)]
    reverse = [g * d for g, d in zip(gradients, along, strict=True)]
    finite = [all(np.isfinite(x).all() for x in side) for side in (forward, reverse)]
    if not all(finite):  # both have NaN or infinities, unless the values have them
        assert finite[0] == finite[1] or not all(np.isfinite(v).all() for v in values)
        return
    coarsest = max([0.0, *(bb.finfo(v.dtype).eps for v in values)])
    size = max([1.0, *(float(np.abs(x).sum()) for x in (*forward, *reverse))])
    assert sum(float(x.sum()) for x in forward) == pytest.approx(
        sum(float(x.sum()) for x in reverse), abs=max(1e-11, coarsest) * size
    )


@pytest.mark.parametrize("name", CASES)
def test_tangents_against_central_differences(name: str) -> None:
    for sample in CASES[name]:
        if sample.smooth >= 1:
            check_tangents(name, sample)


def check_tangents(name: str, sample: Sample) -> None:
    at = [np.asarray(a, np.float64) for a in leaves(sample)]
    along = [direction(np.random.default_rng(4), a) for a in at]
    values, tangents = pushed(name, sample, at, along)

    def moved(sign: float) -> float:
        outputs = called(
            BASE, name, sample, [BASE.from_numpy(a + sign * STEP * d) for a, d in zip(at, along, strict=True)]
        )
        return float(sum((uneven(y.shape) * BASE.to_numpy(y)).sum() for y in outputs))

    ends = moved(1.0), moved(-1.0)
    got = float(sum((uneven(t.shape) * t).sum() for t in tangents))
    size = max(1.0, abs(got), *map(abs, ends), *(float(np.abs(v).sum()) for v in values))
    assert got == pytest.approx((ends[0] - ends[1]) / (2 * STEP), abs=1e-6 * size)


# ---- how tangents are computed ----

#: Operations with a tangent rule, and operations whose gradient rule is transposed; both should stay few.
TANGENTS = {
    "conv", "conv_transpose", "cummax", "cummin", "cumulative_prod", "dropout", "eig", "eigh", "embedding", "inv",
    "linear", "log_softmax", "log_softmax_backward", "logcumsumexp", "max_pool", "modulus", "pad", "phase",
    "quantized_linear", "slogdet", "softmax", "softmax_backward", "solve", "ssm_scan", "svd", "topk",
    "triangular_solve",
}  # fmt: skip
TRANSPOSED = {"cholesky", "fake_quantize_between", "lu", "pinv", "qr", "scatter_reduce"}


def test_few_operations_have_tangent_rules() -> None:
    ours = (e for e in OPERATIONS.values() if e.differentiable and e.body.__module__.startswith("backburn.ops."))
    ways = {entry.name: jvp_strategy(entry.name) for entry in ours}
    assert {n for n, w in ways.items() if "tangent" in w} == TANGENTS
    assert {n for n, w in ways.items() if w == "transposed"} == TRANSPOSED
    assert set(ways.values()) == {
        "body", "elementwise", "linear", "linear, tangent", "reduction", "tangent", "transposed"
    }  # fmt: skip


def test_tangent_marks_are_checked_when_declared() -> None:
    with pytest.raises(ValueError, match="already"):
        elementwise("sin")
    with pytest.raises(ValueError, match="several operands at once"):
        elementwise("layer_norm")
    with pytest.raises(ValueError, match="'weight'"):
        tangent("qr", x=lambda k, t, weight: t)
    with pytest.raises(ValueError, match="no operand 'y'"):
        tangent("qr", y=lambda t: t)
    with pytest.raises(ValueError, match="no body"):
        decompose("qr")
    assert jvp_strategy("qr") == "transposed"


# ---- nesting ----

#: For each operation, a small sample with two derivatives, if it has one.
SMOOTH: dict[str, Sample] = {}
for _name, _samples in CASES.items():
    for _sample in _samples:
        if _sample.smooth >= 2 and 0 < sum(a.size for a in leaves(_sample)) <= 60:
            SMOOTH.setdefault(_name, _sample)


def scalar_of(name: str, sample: Sample, k: Any, inputs: list[Any]) -> Any:
    """``sum(w * out)`` on ``k`` over the float outputs, with uneven weights."""
    total = k.full((), 0.0, BASE.dtype(np.zeros(())))
    outputs = getattr(k, name)(
        *store_quantized(BASE, with_leaves(sample, inputs, BASE.from_numpy)), **sample.attributes
    )
    for y in (y for y in tuple_of(outputs) if k.dtype(y).kind == "float"):
        weight = constant(k, uneven(tuple(y.shape)))
        total = k.add(total, k.sum(k.mul(y, weight), tuple(range(len(y.shape))), False))
    return total


def constant(k: Any, array: Any) -> Any:
    """Return a host array as a constant of ``k``, at any level above ``BASE``."""
    return BASE.from_numpy(array) if k is BASE else k.from_inner(constant(k.inner_backend, array))


def along(k: Any, function: Any, at: list[Any], directions: list[Any]) -> Any:
    """Return the derivative of a scalar function along ``directions`` at primitives of ``k``, from ``Forward(k)``."""
    level: Any = Forward(k)
    out = function(level, [level.dual(x, constant(k, d)) for x, d in zip(at, directions, strict=True)])
    found = level.tangent(out)
    return k.full((), 0.0, BASE.dtype(np.zeros(()))) if found is None else found


def against(k: Any, function: Any, at: list[Any], directions: list[Any]) -> Any:
    """Return the same derivative from ``Autodiff(k)``."""
    level: Any = Autodiff(k)
    inputs = [level.set_require_grad(level.from_inner(x), True) for x in at]
    out = function(level, inputs)
    total = k.full((), 0.0, BASE.dtype(np.zeros(())))
    if not level.is_tracked(out):
        return total
    gradients = level.backward(out)
    for x, d in zip(inputs, directions, strict=True):
        g = level.grad(x, gradients)
        if g is not None:
            total = k.add(total, k.sum(k.mul(g, constant(k, d)), tuple(range(d.ndim)), False))
    return total


@pytest.mark.parametrize("name", SMOOTH)
def test_second_derivatives_by_every_nesting(name: str) -> None:
    sample = SMOOTH[name]
    at = [np.asarray(a, np.float64) for a in leaves(sample)]
    first, second = ([direction(np.random.default_rng(seed), a) for a in at] for seed in (5, 6))
    modes = {"forward": along, "reverse": against}
    found = {}
    for outer_name, outer in modes.items():
        for inner_name, inner in modes.items():
            function = lambda k, xs, inner=inner: inner(k, partial(scalar_of, name, sample), xs, first)
            found[f"{outer_name} over {inner_name}"] = float(
                BASE.to_numpy(outer(BASE, function, [BASE.from_numpy(a) for a in at], second))
            )
    expected = found["reverse over reverse"]
    for way_there, value in found.items():
        assert value == pytest.approx(expected, rel=1e-8, abs=1e-8), way_there


def test_third_derivatives_mix() -> None:
    """d^3 tanh(x)^2 in all eight nestings of the two modes."""
    x = np.array([0.3, -0.7])
    ones = [np.ones(2)]

    def square(k: Any, xs: list[Any]) -> Any:
        return k.sum(k.square(k.tanh(xs[0])), (0,), False)

    t = np.tanh(x)
    u = 1 - t * t
    expected = float((2 * u * (4 * t**3 - 8 * t * u)).sum())
    for a in (along, against):
        for b in (along, against):
            for c in (along, against):
                one = lambda k, xs, a=a: a(k, square, xs, ones)
                two = lambda k, xs, b=b, one=one: b(k, one, xs, ones)
                assert float(c(BASE, two, [x], ones)) == pytest.approx(expected, rel=1e-12)
