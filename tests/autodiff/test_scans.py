"""Gradients of running products and extrema: few calls on backends that have no linear recurrence of their own."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import numpy as np
import pytest

import backburn as bb
from backburn.autodiff import Autodiff
from backburn.ops.scan import Scan
from backburn_numpy import NumpyBackend


class Counting(NumpyBackend):
    """Count products; linear recurrences are left to the body."""

    calls: ClassVar[Counter[str]] = Counter()
    ssm_scan: Any = Scan.ssm_scan

    def mul(self, x: Any, y: Any, /) -> Any:
        Counting.calls["mul"] += 1
        return NumpyBackend.mul(x, y)


@pytest.mark.parametrize("name", ["cumulative_prod", "cummax", "cummin", "logcumsumexp"])
def test_backends_without_recurrences_combine_elements(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((300, 2))

    def gradient(backend: Any) -> Any:
        return bb.grad(lambda x: bb.sum(bb.square(getattr(bb, name)(x, axis=0))))(bb.asarray(x, backend=backend))

    Counting.calls.clear()
    found = gradient(Autodiff(Counting()))
    assert 0 < Counting.calls["mul"] < 100
    np.testing.assert_allclose(found.numpy(), gradient("autodiff(numpy)").numpy(), rtol=1e-10, atol=1e-12)
