"""Kernels of two arrays that broadcast, against NumPy: equal bits, on any number of threads, within their arrays."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.helpers.guards import MemoryFault, guarded
from tests.helpers.kernels import BASE, needs_kernels
from tests.helpers.planting import plant

from backburn_numpy import tuning
from backburn_numpy.elementwise import broadcasting
from backburn_numpy.elementwise.broadcasting import broadcast_kernel, runs_of
from backburn_numpy.runtime import threads

pytestmark = needs_kernels

SIDES = (1, 1, 2, 3, 4, 5, 8, 16, 17, 33)
OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "maximum": np.maximum,
    "minimum": np.minimum,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compute short runs by kernels, in several threads."""
    monkeypatch.setattr(tuning, "MIN_ELEMENTS_OF_RUN", 1)
    monkeypatch.setattr(tuning, "MIN_ELEMENTS_FOR_NATIVE_THREADS", 1)
    monkeypatch.setattr(tuning, "ELEMENTS_PER_TASK", 64)
    runs_of.cache_clear()
    before = threads.num_threads()
    yield
    threads.set_num_threads(before)
    runs_of.cache_clear()


def pairs(count: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Shapes of two arrays that broadcast."""
    draw = random.Random(4)
    for _ in range(count):
        whole = [draw.choice(SIDES) for _ in range(draw.randint(1, 4))]
        x, y = (tuple(n if draw.random() < 0.65 else 1 for n in whole) for _ in range(2))
        yield x, y[draw.randrange(len(y)) if draw.random() < 0.4 else 0 :]


def difference(count: int) -> tuple[str, int]:
    """The first difference between a kernel and NumPy, and how many pairs kernels computed."""
    tried, rng = 0, np.random.default_rng(0)
    for i, (x_shape, y_shape) in enumerate(pairs(count)):
        dtype = ("float32", "float64")[i % 2]
        x, y = (rng.standard_normal(shape).astype(dtype) for shape in (x_shape, y_shape))
        if i % 5 == 0:
            x.reshape(-1)[0], y.reshape(-1)[-1] = np.nan, np.inf
        threads.set_num_threads(1 + i % 3)
        for name, ufunc in OPERATIONS.items():
            with guarded():
                found = broadcast_kernel(name, x, y)
            if found is None:
                continue
            with np.errstate(all="ignore"):
                expected = ufunc(x, y)
            tried += 1
            if found.dtype != expected.dtype or not np.array_equal(found, expected, equal_nan=True):
                return f"{name} of {x_shape} and {y_shape}", tried
    return "", tried


def test_kernels_equal_numpy() -> None:
    words, tried = difference(500)
    assert words == ""
    assert tried > 1500


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("else step))", "else size))"),
        ("block = min(block, repeat.block)", "pass"),
        ("terms[::-1] if number == 0 else terms", "terms"),
        ("if extent in (Extent.ROW, Extent.COLUMN):\n            block = 1", "if False:\n            block = 1"),
        ("0 if is_same", "0 if repeat is None"),
    ],
    ids=["bytes of an element", "runs across blocks", "exchanged terms", "runs of several rows", "one row for all"],
)
def test_faults_are_found(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    plant(monkeypatch, broadcasting, "runs_of", old, new)
    try:
        words = difference(200)[0]
    except MemoryFault:
        return
    assert words != ""


def test_other_operands_are_left_to_numpy() -> None:
    x, y = np.ones((40, 3, 50), "float32"), np.ones((3, 50), "float32")
    assert broadcast_kernel("add", x, y) is not None
    for one, other in ((x, y.astype("float64")), (x[:, :, ::2], y[:, ::2]), (x.astype("int32"), y.astype("int32"))):
        assert broadcast_kernel("add", one, other) is None
    assert broadcast_kernel("remainder", x, y) is None
    assert broadcast_kernel("add", x.astype("float16"), y.astype("float16")) is None
    assert broadcast_kernel("add", np.ones((2, 3, 2, 3), "float32"), np.ones((2, 1, 2, 1), "float32")) is not None
    assert (
        broadcast_kernel("add", np.ones((2, 3, 2, 3, 2, 3), "float32"), np.ones((2, 1, 2, 1, 2, 1), "float32")) is None
    )
    assert broadcast_kernel("add", np.ones((0, 3), "float32"), np.ones((3,), "float32")) is None


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "maximum", "minimum"])
def test_operations_use_kernels(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    used: list[str] = []
    real = broadcasting.broadcast_kernel

    def noted(*given: Any) -> Any:
        used.append(given[0])
        return real(*given)

    monkeypatch.setattr("backburn_numpy.elementwise.ufuncs.broadcast_kernel", noted)
    x, y = np.random.default_rng(0).standard_normal((300, 700)).astype("float32"), np.full((700,), 1.5, "float32")
    names = {"sub": "subtract", "mul": "multiply", "div": "divide"}
    for one, other in ((x, y), (y, x), (x, x[:, :1].copy()), (x[:, :1].copy(), x)):
        found = getattr(BASE, name)(one, other)
        expected = OPERATIONS[names.get(name, name)](one, other)
        np.testing.assert_array_equal(found, expected)
    assert used == [names.get(name, name)] * 4
