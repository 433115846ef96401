"""Every operation on the NumPy backend, with all of its samples; the conformance suite takes a few.

``conformance/test_conformance.py`` runs the suite itself: values, dtypes, shapes, gradients.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backburn.autodiff import Autodiff
from backburn.backend.registry import load_backend
from backburn.conformance import SAMPLES
from backburn.conformance.checks.behaviour import check_mutation
from backburn.conformance.checks.check import Check
from backburn.conformance.checks.derivatives import check_derivative
from backburn.conformance.samples.calls import arrays, as_tuple, dtypes_of, leaves, map_operands, store_quantized
from backburn.conformance.samples.table import Array, Stored
from backburn.ops.table import OPERATIONS

BASE = load_backend("numpy")
OUTER = Autodiff(BASE)
each_operation = pytest.mark.parametrize("name", SAMPLES)


@each_operation
def test_layouts_that_are_not_contiguous(name: str) -> None:
    def strided(a: Array) -> Array:
        wide = np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype) if a.ndim else np.zeros((2,), a.dtype)
        view = wide[..., ::-2] if a.ndim else wide[1:].reshape(())
        view[...] = a
        return view

    for sample in SAMPLES[name].cases:
        plain = as_tuple(getattr(BASE, name)(*store_quantized(BASE, arrays(sample, "float64")), **sample.attributes))
        views = map_operands(arrays(sample, "float64"), strided)
        other = as_tuple(getattr(BASE, name)(*store_quantized(BASE, views), **sample.attributes))
        for a, b in zip(plain, other, strict=True):
            np.testing.assert_allclose(BASE.to_numpy(b), BASE.to_numpy(a), rtol=1e-12, atol=1e-13, strict=True)


@each_operation
def test_inputs_are_not_modified(name: str) -> None:
    for index, sample in enumerate(SAMPLES[name].cases):
        if not sample.attributes.get("donate"):
            for dtype in dtypes_of(name, sample, BASE):
                Check(name, dtype, "mutation", index, BASE, check_mutation, sample)()


@each_operation
def test_autodiff_computes_the_same(name: str) -> None:
    """Autodiff gives the inner backend's values and dtypes, for tracked and untracked operands."""

    def lifted(x: Any) -> Any:
        if isinstance(x, Stored):
            return x.on(BASE)
        if x.dtype.kind not in "fc":
            return x
        return OUTER.set_require_grad(OUTER.from_inner(x), not OPERATIONS[name].constants)

    for sample in SAMPLES[name].cases:
        plain = as_tuple(getattr(BASE, name)(*store_quantized(BASE, arrays(sample, "float64")), **sample.attributes))
        operands = map_operands(arrays(sample, "float64"), lifted, (np.ndarray, Stored))
        recorded = as_tuple(getattr(OUTER, name)(*operands, **sample.attributes))
        for result, reference in zip(recorded, plain, strict=True):
            if OPERATIONS[name].results == ("host",):
                np.testing.assert_equal(result, reference)
                continue
            is_float = OUTER.dtype(result).has_gradient
            value = BASE.to_numpy(OUTER.inner(result)) if is_float else BASE.to_numpy(result)
            np.testing.assert_allclose(value, BASE.to_numpy(reference), rtol=1e-12, atol=1e-13, strict=True)


@each_operation
def test_derivatives(name: str) -> None:
    """Derivatives agree at every order that a sample has; the third only at the first sample that has it."""
    samples = SAMPLES[name]
    cases = [sample for sample in samples.cases if OPERATIONS[name].differentiable and leaves(sample)]
    third = next((sample for sample in cases if sample.smooth >= 3), None)
    for sample in cases:
        for order in range(1, sample.smooth + 1):
            if order < 3 or sample is third:
                check_derivative(name, sample, BASE, order, 1e-6 * samples.gradient_tolerance)


def test_every_operation_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    """An operation needs a doc, samples, and a rule or a body that decomposes; a required one is implemented."""
    lacking: dict[str, list[str]] = {"doc": [], "samples": [], "rule": [], "implementation": []}
    for name, operation in OPERATIONS.items():
        if len(operation.doc) < 10:
            lacking["doc"].append(name)
        if name not in SAMPLES and operation.operands:
            lacking["samples"].append(name)
        if operation.differentiable and operation.required and not operation.gradients:
            lacking["rule"].append(name)
        if operation.required and getattr(type(BASE), name) is operation.body:
            lacking["implementation"].append(name)
    required = sum(o.required for o in OPERATIONS.values())
    differentiable = [o for o in OPERATIONS.values() if o.differentiable]
    with capsys.disabled():
        print(
            f"\n{len(OPERATIONS)} operations: {required} required, {len(OPERATIONS) - required} derived; "
            f"{len(differentiable)} differentiable, {sum(bool(o.gradients) for o in differentiable)} by a rule and "
            f"{sum(not o.gradients for o in differentiable)} by their body; "
            f"{sum(len(s.cases) for s in SAMPLES.values())} samples"
        )
    assert not any(lacking.values()), lacking
