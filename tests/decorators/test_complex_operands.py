"""Complex operands at three sizes: every decorator gives the results of its inner backend."""

from __future__ import annotations

from typing import Any

import pytest
from tests.helpers.complex_operands import COMPUTED, DTYPES, NUMPY, SIZES, cases_of, compare, elements_of, plain
from tests.helpers.real_only import RealOnly

from backburn.backend import load_backend
from backburn.conformance import check_backend
from backburn.conformance.checks.kinds import COMPLEX_KINDS, holes
from backburn.conformance.runner.suite import checks
from backburn.conformance.samples.calls import as_tuple, map_operands

#: Decorators with bitwise identical results, with two levels of derivatives; and those that reorder sums.
SPECS = (
    "autodiff(numpy)", "forward(numpy)", "capture(numpy)", "profile(numpy)", "trace(numpy)",
    "autodiff(autodiff(numpy))", "autodiff(forward(capture(numpy)))",
)  # fmt: skip
SHARDED = "autodiff(sharded(numpy, dp=2, on_fallback=allow, inputs=first))"


#: The largest size takes as long as the others together: it is slow except under the first decorator.
TRIED = [
    pytest.param(spec, size, marks=pytest.mark.slow if size == 2 and spec in SPECS[1:] else ())
    for spec in (*SPECS, SHARDED, "null", "autodiff(null)")
    for size in SIZES
]


@pytest.mark.parametrize(("spec", "size"), TRIED)
def test_every_operation_at_three_sizes(spec: str, size: int) -> None:
    k: Any = load_backend(spec)
    for name in COMPUTED:
        for dtype in DTYPES if cases_of(name, size) else ():
            operands, attributes, expected = plain(name, size, dtype)
            found = as_tuple(getattr(k, name)(*map_operands(operands, k.from_numpy), **attributes))
            for x, y in zip(found, expected, strict=True):
                assert (k.dtype(x), tuple(x.shape)) == (NUMPY.dtype(y), y.shape), name
                if spec == SHARDED:
                    compare(k.to_numpy(x), y, 8.0 * elements_of(operands) ** 0.5)
                elif "null" not in spec:
                    assert k.to_numpy(x).tobytes() == y.tobytes(), name


def test_a_backend_without_complex_dtypes_is_complete() -> None:
    """No check needs them: the backend raises if they are requested, and reports give the reason."""
    k = RealOnly(NUMPY)
    report = check_backend(k, quick=True, kinds=["protocol", "capabilities", "dtype", "gradient"], dtypes=["float32"])
    assert report.failures == []
    assert len(report.results) > 200
    assert not list(checks(k, kinds=COMPLEX_KINDS))
    reasons = holes(set(), has_complex=False)
    assert reasons["mul", "complex_gradient"] == "the backend declares no complex dtype"
    assert reasons["sort", "complex"] == "takes no complex numbers"
    assert holes(set())["nonzero", "complex_gradient"] == "not differentiable"
