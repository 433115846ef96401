"""The backends under examples/backends: what the contract asks can be written over other array libraries.

A backend whose library is not installed is skipped. What a library cannot do is listed with the reason.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from backburn.backend.registry import load_backend, register_backend
from backburn.backend.table import OPERATIONS
from backburn.conformance import SAMPLES, Sample, SampleSet
from backburn.conformance.checks import check_conventional_gradients, check_shape_rule, check_value, dtypes_of
from backburn.conformance.derivatives import check_derivative, leaves

EXAMPLES = Path(__file__).parents[1] / "examples" / "backends"
#: The library, the module and the class of each backend, by name.
BACKENDS = {
    "torch": ("torch", "backburn_torch", "TorchBackend"),
    "array_api_strict": ("array_api_strict", "backburn_array_api_strict", "StrictBackend"),
}

#: What is known to fail, and why: the backend, the test, and an operation or one of its samples.
EXPECTED: dict[tuple[str, str, str], str] = {}

CASES = [pytest.param(s, c, id=f"{name}-{i}") for name, s in SAMPLES.items() for i, c in enumerate(s.cases)]
CONVENTIONS = [
    pytest.param(s, c, id=f"{name}-{i}")
    for name, s in SAMPLES.items()
    for i, c in enumerate(s.cases)
    if c.gradients is not None
]
DIFFERENTIABLE = [
    pytest.param(s, c, id=name)
    for name, s in SAMPLES.items()
    if OPERATIONS[name].differentiable
    for c in [next((c for c in s.cases if c.smooth >= 2 and leaves(c)), None)]
    if c is not None
]


@pytest.fixture(scope="module", params=BACKENDS)
def base(request: pytest.FixtureRequest) -> Any:
    name = request.param
    library, module, attribute = BACKENDS[name]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES / module))
        register_backend(name, getattr(importlib.import_module(module), attribute))
    return load_backend(name)


@pytest.fixture(autouse=True)
def known(request: pytest.FixtureRequest, base: Any) -> None:
    """Expect a test to fail for which there is a reason."""
    test, _, case = request.node.name.partition("[")
    case = case.rstrip("]").partition("-")[2]
    for what in (case, case.rpartition("-")[0]):
        reason = EXPECTED.get((base.spec, test, what))
        if reason:
            request.applymarker(pytest.mark.xfail(reason=reason))


def test_every_required_operation_is_there(base: Any) -> None:
    lacking = [n for n, o in OPERATIONS.items() if o.required and getattr(type(base), n, None) in (o.body, None)]
    assert not lacking


@pytest.mark.parametrize(("samples", "sample"), CASES)
def test_value_dtype_and_shape(base: Any, samples: SampleSet, sample: Sample) -> None:
    dtypes = dtypes_of(samples, sample, base)
    if not dtypes:
        pytest.skip(f"{base.spec} lacks a dtype of this sample")
    for dtype in dtypes:
        check_value(samples, sample, base, dtype)
    check_shape_rule(samples, sample, base)


@pytest.mark.parametrize(("samples", "sample"), DIFFERENTIABLE)
def test_derivatives(base: Any, samples: SampleSet, sample: Sample) -> None:
    for order in (1, 2):
        check_derivative(samples.name, sample, base, order, 1e-6 * samples.gradient_tolerance)


@pytest.mark.parametrize(("samples", "sample"), CONVENTIONS)
def test_conventional_gradients(base: Any, samples: SampleSet, sample: Sample) -> None:
    if not dtypes_of(samples, sample, base):
        pytest.skip(f"{base.spec} lacks a dtype of this sample")
    check_conventional_gradients(samples, sample, base)
