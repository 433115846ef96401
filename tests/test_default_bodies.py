"""The default bodies of derived operations, also of those that the NumPy backend overrides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backburn.backend.table import OPERATIONS
from backburn.conformance import SAMPLES, Sample, SampleSet
from backburn.conformance.derivatives import is_float, leaves
from backburn.conformance.tolerances import compare
from backburn_numpy import NumpyBackend


class Bare(NumpyBackend):
    """NumPy's required operations, and nothing but default bodies besides."""

    _instance = None


for _name, _operation in OPERATIONS.items():
    if not _operation.required:
        setattr(Bare, _name, _operation.body)

BARE = Bare()
CASES = [
    pytest.param(s, c, id=f"{name}-{i}")
    for name, s in SAMPLES.items()
    for i, c in enumerate(s.cases)
    if not OPERATIONS[name].required and getattr(NumpyBackend, name) is not OPERATIONS[name].body
]


@pytest.mark.parametrize(("samples", "sample"), CASES)
def test_value_dtype_and_shape(samples: SampleSet, sample: Sample) -> None:
    operation = OPERATIONS[samples.name]
    for dtype in samples.dtypes if leaves(sample) else ("float64",):

        def cast(operand: Any, to: str) -> Any:
            if isinstance(operand, list):
                return [cast(o, to) for o in operand]
            with np.errstate(over="ignore"):
                return operand.astype(to) if is_float(operand) else operand

        operands = [cast(o, dtype) for o in sample.operands]
        got = getattr(BARE, samples.name)(*operands, **sample.attributes)
        with np.errstate(all="ignore"):
            expected = samples.reference(*(cast(o, "float64") for o in operands), **sample.attributes)
        tuples = [r if isinstance(r, tuple) else (r,) for r in (got, expected)]
        for result, reference in zip(*tuples, strict=True):
            kind = "" if result.dtype.kind != "f" else result.dtype.name
            compare(BARE.to_numpy(result), np.asarray(reference), kind, samples.tolerance)
        known = {n: BARE.dtype(o) for n, o in zip(operation.operands, operands, strict=False) if is_float(o)}
        for result, promised in zip(tuples[0], operation.dtypes(known, sample.attributes), strict=True):
            assert promised is None or BARE.dtype(result) is promised
