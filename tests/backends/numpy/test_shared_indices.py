"""Indices read by several passes of a recorded step: each pass checks its own bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.helpers.kernels import needs_kernels

import backburn as bb
from backburn.errors import OutOfRangeError
from backburn.nn import functional

pytestmark = needs_kernels
AUTODIFF = "autodiff(capture(numpy))"


def both(function: Callable[..., Any], *given: Any) -> tuple[Any, Any]:
    """Results of a function of indices (the last argument), unrecorded and replayed; errors as text."""
    recorded = bb.capture(function, state=False)
    arrays = [bb.asarray(x, backend=AUTODIFF) for x in given[:-1]]
    zeros = np.zeros_like(given[-1])
    for _ in range(3):
        recorded(*arrays, bb.asarray(zeros, backend=AUTODIFF))
    assert "replayed" in repr(recorded)
    found: list[Any] = []
    for f in (function, recorded):
        try:
            found.append([x.numpy() for x in f(*arrays, bb.asarray(given[-1], backend=AUTODIFF))])
        except OutOfRangeError as error:
            found.append(str(error).partition("\n")[0])
    return found[0], found[1]


@pytest.mark.parametrize("label", [-1, -40, 39, 40, 90, 99, 100])
@pytest.mark.parametrize("order", [(40, 100), (100, 40)])
def test_indices_of_rows_of_several_widths(order: tuple[int, int], label: int) -> None:
    """Each pass has its own bounds, and negative indices count from the end of its rows."""

    def picks(x: Any, y: Any, at: Any) -> Any:
        at = bb.reshape(at, (-1, 1))
        return [bb.take_along_axis(v * 2.0, at, axis=1) * 0.5 for v in (x, y)]

    def losses(x: Any, y: Any, at: Any) -> Any:
        total = lambda x, y: sum(bb.sum(functional.cross_entropy(v * 2.0, at)) for v in (x, y))
        return bb.grad(total, argnums=(0, 1))(x, y)

    rng = np.random.default_rng(1)
    x, y = (rng.normal(size=(32, width)).astype(np.float32) for width in order)
    for function in (picks, losses):
        expected, found = both(function, x, y, np.full(32, label))
        assert isinstance(found, str) == isinstance(expected, str)
        if not isinstance(expected, str):
            for mine, theirs in zip(found, expected, strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [64, 4096])
def test_labels_that_are_also_indices_are_not_negative(rows: int) -> None:
    def step(x: Any, at: Any) -> Any:
        picked = bb.take_along_axis(x * 2.0, bb.reshape(at, (-1, 1)), axis=1)
        return picked, bb.grad(lambda x: bb.sum(functional.cross_entropy(x * 2.0, at)))(x)

    x = np.random.default_rng(1).normal(size=(rows, 40)).astype(np.float32)
    expected, found = both(step, x, np.full(rows, -1))
    assert isinstance(expected, str)
    assert isinstance(found, str)
    both_fine = both(step, x, np.full(rows, 39))
    for mine, theirs in zip(*both_fine, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
