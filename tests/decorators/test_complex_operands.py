"""Complex operands under the decorators that observe and record: the bits of the backend inside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.helpers.real_only import RealOnly
from tests.ops.test_complex_operations import COMPUTED, cases_of, cast

from backburn.backend import load_backend
from backburn.conformance import check_backend
from backburn.conformance.samples.calls import as_tuple, map_operands

NUMPY = load_backend("numpy")


@pytest.mark.parametrize("spec", ["profile(numpy)", "trace(numpy)", "capture(numpy)", "autodiff(forward(numpy))"])
def test_every_operation(spec: str) -> None:
    k: Any = load_backend(spec)
    for name in COMPUTED:
        for size, dtype in ((0, "complex128"), (1, "complex64")):
            for _, sample in list(cases_of(name, size))[:1]:
                operands = cast(sample.operands, dtype)
                expected = as_tuple(getattr(NUMPY, name)(*operands, **sample.attributes))
                found = as_tuple(getattr(k, name)(*map_operands(operands, k.from_numpy), **sample.attributes))
                for x, y in zip(found, expected, strict=True):
                    assert k.dtype(x) is NUMPY.dtype(y), name
                    np.testing.assert_array_equal(k.to_numpy(x), y, err_msg=name)


def test_a_backend_without_complex_dtypes_is_complete() -> None:
    """Nothing that is checked needs them: the backend raises where it is asked for them."""
    report = check_backend(RealOnly(NUMPY), quick=True, kinds=["protocol", "capabilities", "dtype", "gradient"])
    assert report.failures == []
    assert len(report.results) > 300
