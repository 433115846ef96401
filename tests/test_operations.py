"""Every operation of the contract on the NumPy backend, driven by its samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from backburn.autodiff import Autodiff
from backburn.autodiff.rules import CONSTANTS, RULES
from backburn.backend.registry import load_backend
from backburn.backend.table import OPERATIONS, Operation
from backburn.base.dtypes import as_dtype
from backburn.conformance import SAMPLES, Sample, SampleSet
from backburn.conformance.checks import (
    arrays,
    as_tuple,
    check_conventional_gradients,
    check_shape_rule,
    check_value,
    dtypes_of,
    on,
)
from backburn.conformance.derivatives import check_derivative, is_float, leaves
from backburn.conformance.samples import Stored

BASE = load_backend("numpy")
OUTER = Autodiff(BASE)
CASES: list[Any] = [
    pytest.param(s, c, id=f"{name}-{i}") for name, s in SAMPLES.items() for i, c in enumerate(s.cases)
]


def operation_of(case: Any) -> Operation:
    """The operation that a case calls."""
    return OPERATIONS[case.values[0].name]


def lifted(operands: list[Any], tracked: bool = True) -> list[Any]:
    """Operands as primitives of ``Autodiff``, floats tracked or not."""

    def one(operand: Any) -> Any:
        if isinstance(operand, Stored):
            return operand.on(BASE)
        return OUTER.set_require_grad(OUTER.from_inner(operand), tracked) if is_float(operand) else operand

    return [[one(o) for o in operand] if isinstance(operand, list) else one(operand) for operand in operands]


@pytest.mark.parametrize(("samples", "sample"), CASES)
def test_value_dtype_and_shape(samples: SampleSet, sample: Sample) -> None:
    for dtype in dtypes_of(samples, sample, BASE):
        check_value(samples, sample, BASE, dtype)


@pytest.mark.parametrize(("samples", "sample"), [c for c in CASES if operation_of(c).shape is not None])
def test_shape_rule(samples: SampleSet, sample: Sample) -> None:
    check_shape_rule(samples, sample, BASE)


@pytest.mark.parametrize(("samples", "sample"), CASES)
def test_layouts_that_are_not_contiguous(samples: SampleSet, sample: Sample) -> None:
    def strided(a: Any) -> Any:
        wide = np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype) if a.ndim else np.zeros((2,), a.dtype)
        view = wide[..., ::-2] if a.ndim else wide[1:].reshape(())
        view[...] = a
        return view

    plain = as_tuple(getattr(BASE, samples.name)(*on(BASE, arrays(sample, "float64")), **sample.attributes))
    other = as_tuple(getattr(BASE, samples.name)(*on(BASE, arrays(sample, "float64", strided)), **sample.attributes))
    for a, b in zip(plain, other, strict=True):
        np.testing.assert_allclose(BASE.to_numpy(b), BASE.to_numpy(a), rtol=1e-12, atol=1e-13, strict=True)


@pytest.mark.parametrize(("samples", "sample"), CASES)
def test_autodiff_computes_the_same(samples: SampleSet, sample: Sample) -> None:
    """Recorded, and with recording of untracked operands: the inner backend's numbers, in the right kind."""
    plain = as_tuple(getattr(BASE, samples.name)(*on(BASE, arrays(sample, "float64")), **sample.attributes))
    operands = lifted(arrays(sample, "float64"), samples.name not in CONSTANTS)
    recorded = as_tuple(getattr(OUTER, samples.name)(*operands, **sample.attributes))
    for result, reference in zip(recorded, plain, strict=True):
        if OPERATIONS[samples.name].results == ("host",):
            np.testing.assert_equal(result, reference)
            continue
        is_f = OUTER.dtype(result).kind == "float"
        value = BASE.to_numpy(OUTER.inner(result)) if is_f else BASE.to_numpy(result)
        np.testing.assert_allclose(value, BASE.to_numpy(reference), rtol=1e-12, atol=1e-13, strict=True)


def derivatives() -> Iterator[Any]:
    """The orders at which each sample is differentiable; the third is checked at the first point that has it."""
    for case in CASES:
        samples, sample = case.values
        if not OPERATIONS[samples.name].differentiable or not leaves(sample):
            continue
        third = next((s for s in samples.cases if leaves(s) and s.smooth >= 3), None)
        for order in range(1, sample.smooth + 1):
            if order < 3 or sample is third:
                yield pytest.param(samples, sample, order, id=f"{case.id}-order {order}")


@pytest.mark.parametrize(("samples", "sample", "order"), list(derivatives()))
def test_derivatives(samples: SampleSet, sample: Sample, order: int) -> None:
    check_derivative(samples.name, sample, BASE, order, 1e-6 * samples.gradient_tolerance)


@pytest.mark.parametrize(("samples", "sample"), [c for c in CASES if c.values[1].gradients is not None])
def test_conventional_gradients(samples: SampleSet, sample: Sample) -> None:
    """Where there is no derivative, or a choice of them, the documented one, for a cotangent of ones."""
    check_conventional_gradients(samples, sample, BASE)


@pytest.mark.parametrize(
    ("samples", "sample"),
    [c for c in CASES if operation_of(c).differentiable and leaves(c.values[1]) and "float32" in c.values[0].dtypes],
)
def test_gradients_have_the_dtype_and_shape_of_their_inputs(samples: SampleSet, sample: Sample) -> None:
    operands = lifted(arrays(sample, "float32"))
    results = as_tuple(getattr(OUTER, samples.name)(*operands, **sample.attributes))
    result = next((r for r in results if OUTER.dtype(r).kind == "float"), None)
    if result is None or not OUTER.is_tracked(result):
        return  # no float result, or a constant one
    gradients = OUTER.backward(result)
    for operand in [o for op in operands for o in (op if isinstance(op, list) else [op])]:
        if type(operand).__name__ == "Tracked" and (got := OUTER.grad(operand, gradients)) is not None:
            assert BASE.dtype(got) is as_dtype("float32")
            assert got.shape == operand.shape


def test_every_operation_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    """An operation needs a doc, samples, and a rule or a body that decomposes; a required one is implemented."""
    lacking: dict[str, list[str]] = {"doc": [], "samples": [], "rule": [], "implementation": []}
    for name, operation in OPERATIONS.items():
        if len(operation.doc) < 10:
            lacking["doc"].append(name)
        if name not in SAMPLES and operation.operands:
            lacking["samples"].append(name)
        if operation.differentiable and operation.required and name not in RULES:
            lacking["rule"].append(name)
        if operation.required and getattr(type(BASE), name) is operation.body:
            lacking["implementation"].append(name)
    required = sum(o.required for o in OPERATIONS.values())
    differentiable = [o for o in OPERATIONS.values() if o.differentiable]
    with capsys.disabled():
        print(
            f"\n{len(OPERATIONS)} operations: {required} required, {len(OPERATIONS) - required} derived; "
            f"{len(differentiable)} differentiable, {sum(o.name in RULES for o in differentiable)} by a rule and "
            f"{sum(o.name not in RULES for o in differentiable)} by their body; "
            f"{sum(len(s.cases) for s in SAMPLES.values())} samples"
        )
    assert not any(lacking.values()), lacking
