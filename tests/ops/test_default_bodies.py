"""The default bodies, run on required operations alone, as for a backend that overrides nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backburn.backend.registry import load_backend
from backburn.base.errors import Unsupported
from backburn.conformance import SAMPLES, Sample, SampleSet
from backburn.conformance.checks.behaviour import must_raise, refused_calls
from backburn.conformance.checks.tolerances import compare
from backburn.conformance.samples.calls import is_float, leaves, map_operands, store_quantized, to_primitives
from backburn.conformance.samples.table import Stored
from backburn.ops.table import OPERATIONS
from backburn_numpy import NumpyBackend

DERIVED = {
    name: entry.body
    for name, entry in OPERATIONS.items()
    if not entry.required and not entry.needs_complex  # whose bodies are for backends without complex numbers
}
#: BARE is the NumPy backend with the default body of every derived operation.
NUMPY: Any = load_backend("numpy")
BARE: Any = object.__new__(type("BareBackend", (NumpyBackend,), dict(DERIVED)))


def as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def test_the_bare_backend_overrides_no_derived_operation() -> None:
    assert all(getattr(type(BARE), name) is body for name, body in DERIVED.items())
    assert any(getattr(NumpyBackend, name) is not body for name, body in DERIVED.items())


def test_required_operations_have_no_default_body() -> None:
    for name, entry in OPERATIONS.items():
        if entry.required:
            arguments = [None] * len(entry.parameters)
            with pytest.raises(Unsupported, match=rf"^{name}\("):
                entry.body(BARE, *arguments)


@pytest.mark.parametrize("name", [name for name in SAMPLES if name in DERIVED])
def test_a_body_refuses_what_the_shape_rule_refuses(name: str) -> None:
    dtype = SAMPLES[name].dtypes[0]
    for sample in SAMPLES[name].cases:
        for what, operands, attributes in refused_calls(OPERATIONS[name], sample, dtype):
            if all(np.size(x) for x in operands if isinstance(x, np.ndarray)):
                must_raise(BARE, name, to_primitives(BARE, operands), attributes, what)


@pytest.mark.parametrize("name", [name for name in SAMPLES if name in DERIVED])
def test_values(name: str) -> None:
    for sample in SAMPLES[name].cases:
        for dtype in ("float64", "float32", "float16") if leaves(sample) else ("float64",):
            if dtype in SAMPLES[name].dtypes:
                compare_values(SAMPLES[name], sample, dtype)


def compare_values(samples: SampleSet, sample: Sample, dtype: str) -> None:
    """Compare the default body with the reference for a sample in a dtype."""

    def one(operand: Any, host: str) -> Any:
        if isinstance(operand, list):
            return [one(o, host) for o in operand]
        return operand.astype(dtype).astype(host) if is_float(operand) else operand

    with np.errstate(all="ignore"):
        operands = store_quantized(NUMPY, [one(o, dtype) for o in sample.operands])
        exact = map_operands([one(o, "float64") for o in sample.operands], lambda s: s.values, Stored)
        expected = as_tuple(samples.reference(*exact, **sample.attributes))
    results = as_tuple(getattr(BARE, samples.name)(*operands, **sample.attributes))
    for result, reference in zip(results, expected, strict=True):
        got = BARE.to_numpy(result)
        assert BARE.dtype(result).kind == "quantized" or type(result) is np.ndarray
        name = got.dtype.name if got.dtype.kind == "f" else ""
        compare(got, np.asarray(reference), name, samples.tolerance)
