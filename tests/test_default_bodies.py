"""The default bodies of the contract, run over what is required only: what a backend gets that overrides nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backburn.backend.registry import load_backend
from backburn.backend.table import OPERATIONS
from backburn.base.errors import Unsupported
from backburn.conformance import SAMPLES, Sample, SampleSet
from backburn.conformance.calls import each, on
from backburn.conformance.derivatives import is_float, leaves
from backburn.conformance.samples import Stored
from backburn.conformance.tolerances import compare
from backburn_numpy import NumpyBackend

# Importing the backend silences NumPy's warnings in its own modules; the tests turn every warning into an error again.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:backburn_numpy")

DERIVED = {name: entry.body for name, entry in OPERATIONS.items() if not entry.required}
#: NumPy with every derived operation as the contract writes it.
NUMPY: Any = load_backend("numpy")
BARE: Any = object.__new__(type("BareBackend", (NumpyBackend,), dict(DERIVED)))
CASES = [
    pytest.param(s, c, id=f"{name}-{i}")
    for name, s in SAMPLES.items()
    if name in DERIVED
    for i, c in enumerate(s.cases)
]


def as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def test_nothing_derived_is_overridden() -> None:
    assert all(getattr(type(BARE), name) is body for name, body in DERIVED.items())
    assert any(getattr(NumpyBackend, name) is not body for name, body in DERIVED.items())


def test_what_is_required_has_no_body() -> None:
    for name, entry in OPERATIONS.items():
        if entry.required:
            arguments = [None] * len(entry.parameters)
            with pytest.raises(Unsupported, match=rf"^{name}\("):
                entry.body(BARE, *arguments)


@pytest.mark.parametrize(("samples", "sample"), CASES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_values(samples: SampleSet, sample: Sample, dtype: str) -> None:
    if dtype not in samples.dtypes or (dtype != "float64" and not leaves(sample)):
        pytest.skip("nothing to compute in this dtype")

    def one(operand: Any, host: str) -> Any:
        if isinstance(operand, list):
            return [one(o, host) for o in operand]
        return operand.astype(dtype).astype(host) if is_float(operand) else operand

    with np.errstate(all="ignore"):
        operands = on(NUMPY, [one(o, dtype) for o in sample.operands])
        exact = each([one(o, "float64") for o in sample.operands], lambda s: s.values, Stored)
        expected = as_tuple(samples.reference(*exact, **sample.attributes))
    results = as_tuple(getattr(BARE, samples.name)(*operands, **sample.attributes))
    for result, reference in zip(results, expected, strict=True):
        got = BARE.to_numpy(result)
        assert BARE.dtype(result).kind == "quantized" or type(result) is np.ndarray
        name = got.dtype.name if got.dtype.kind == "f" else ""
        compare(got, np.asarray(reference), name, samples.tolerance)
