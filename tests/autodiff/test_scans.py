"""Gradients of running products and extrema: few calls on backends that have no linear recurrence of their own."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.autodiff import Autodiff
from backburn.ops.scan import Scan
from backburn_numpy import NumpyBackend

calls: Counter[str] = Counter()


def counted(*operands: Any) -> Any:
    """The product of operands."""
    calls["mul"] += 1
    return NumpyBackend.mul(*operands)


class Counting(NumpyBackend):
    """Count products; linear recurrences are left to the body."""

    ssm_scan: Any = Scan.ssm_scan
    mul: Any = staticmethod(counted)


@pytest.mark.parametrize("name", ["cumulative_prod", "cummax", "cummin", "logcumsumexp"])
def test_backends_without_recurrences_combine_elements(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((300, 2))

    def gradient(backend: Any) -> Any:
        return bb.grad(lambda x: bb.sum(bb.square(getattr(bb, name)(x, axis=0))))(bb.asarray(x, backend=backend))

    calls.clear()
    found = gradient(Autodiff(Counting()))
    assert 0 < calls["mul"] < 100
    np.testing.assert_allclose(found.numpy(), gradient("autodiff(numpy)").numpy(), rtol=1e-10, atol=1e-12)
