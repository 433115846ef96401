"""Passes over rows: random graphs beside the same calls one by one, faults that must be found, plans as text."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.helpers.guards import guarded
from tests.helpers.kernels import needs_kernels

import backburn as bb
from backburn.nn import functional
from backburn.programs.fusion import partition
from backburn_numpy import tuning
from backburn_numpy.programs import tiles
from backburn_numpy.runtime import threads

pytestmark = needs_kernels

SIDES = (1, 2, 3, 5, 8, 16, 17, 31, 32, 33, 48, 64, 67)
#: Numbers that are not ordinary, of which inputs have a few.
SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-42, -1e-310)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Passes of any size, in several portions and tiles."""
    monkeypatch.setattr(partition, "MIN_ELEMENTS_OF_ROWS", 1)
    monkeypatch.setattr(partition, "MIN_WIDTH", 1)
    monkeypatch.setattr(partition, "MIN_ELEMENTS", 1 << 30)
    monkeypatch.setattr(tiles, "TILE_BYTES", 1 << 10)
    monkeypatch.setattr(tuning, "ELEMENTS_PER_TASK", 256)
    before = threads.num_threads()
    threads.set_num_threads(2)
    yield
    threads.set_num_threads(before)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, special: bool) -> Any:
    """An input."""
    made = rng.standard_normal(shape)
    if special and made.size > 4:
        at = rng.integers(0, made.size, 3)
        made.reshape(-1)[at] = rng.choice(SPECIAL, 3)
    return made.astype(dtype)


UNARY: tuple[Callable[[Any], Any], ...] = (
    *(
        bb.tanh,
        bb.sigmoid,
        bb.abs,
        bb.square,
        lambda x: -x,
        lambda x: bb.exp(bb.minimum(x, 2.0)),
        functional.gelu,
    ),
    *(lambda x: bb.sqrt(bb.abs(x) + 0.5), lambda x: bb.log(bb.abs(x) + 1.5), lambda x: bb.clip(x, -1.0, 1.5)),
    *(functional.softplus, lambda x: 1.0 / (bb.abs(x) + 1.0), functional.silu, lambda x: x * 0.5),
)
BINARY: tuple[Callable[[Any, Any], Any], ...] = (
    *(bb.add, bb.subtract, bb.multiply, bb.maximum, bb.minimum, lambda x, y: x / (bb.abs(y) + 1.0)),
    *(lambda x, y: bb.where(x > 0.25, y, x * 0.5), lambda x, y: x * y + 0.25),
)


def graph(seed: int, shape: tuple[int, ...], dtype: str) -> tuple[Callable[..., Any], list[Any]]:
    """A function of 2 to 40 operations, and its inputs: arrays, rows, columns and one number."""
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    special, count = draw.random() < 0.5, draw.randint(2, 40)
    shapes = [shape, shape, (*shape[:-1], 1), shape[-1:], (1,) * len(shape)]
    inputs = [numbers(rng, s, dtype, special) for s in shapes]
    plan = [
        (draw.random(), draw.randrange(1 << 30), draw.randrange(1 << 30), draw.randrange(1 << 30)) for _ in range(count)
    ]
    leading = tuple(range(len(shape) - 1))
    kept = [draw.random() < 0.2 for _ in range(count)]

    def function(*given: Any) -> list[Any]:
        whole, rows, out = [*given[:2]], [given[2]], []
        others = [given[2], given[3], given[4]]
        for (kind, a, b, c), keeps in zip(plan, kept, strict=True):
            x = whole[-1 - a % min(4, len(whole))]
            if kind < 0.3:
                made = UNARY[c % len(UNARY)](x)
            elif kind < 0.5:
                made = BINARY[c % len(BINARY)](x, whole[b % len(whole)])
            elif kind < 0.7:
                other = (others + rows)[b % (len(others) + len(rows))]
                pair = (x, other) if c & 1 else (other, x)
                made = BINARY[(c >> 1) % len(BINARY)](*pair)
            elif kind < 0.82:
                made = (bb.mean, bb.sum, bb.max, bb.min)[b % 4](x, axis=-1, keepdims=True)
                rows.append(bb.tanh(made) if c & 1 else made * 0.125)
                continue
            elif kind < 0.88:
                rows.append(UNARY[c % len(UNARY)](rows[b % len(rows)]))
                continue
            elif kind < 0.93:
                out.append((bb.sum, bb.mean)[b % 2](x, axis=leading))
                continue
            elif kind < 0.96:
                out.append((bb.sum, bb.mean)[b % 2](x))
                continue
            else:
                made = x - bb.sum(bb.tanh(x), axis=leading) * 0.01  # which another pass reads
            whole.append(bb.tanh(made) if len(whole) % 3 == 0 else made)
            if keeps:
                out.append(whole[-1])
        return [*out, whole[-1], rows[-1]]

    return function, inputs


def replayed(function: Callable[..., Any], inputs: list[Any], backend: str) -> tuple[list[Any], Any]:
    """The results of a replay, and the captured function."""
    captured = bb.capture(function, state=False, on_fallback="error")
    for _ in range(3):
        found = captured(*(bb.asarray(x, backend=backend) for x in inputs))
    return [x.numpy() for x in found], captured


def differences(mine: list[Any], theirs: list[Any], dtype: str) -> str:
    """How results differ by more than rounding, in words."""
    close = 2e-4 if dtype == "float32" else 1e-11
    for i, (x, y) in enumerate(zip(mine, theirs, strict=True)):
        if not np.array_equal(np.isnan(x), np.isnan(y)) or not np.array_equal(np.isinf(x), np.isinf(y)):
            return f"result {i} is not finite elsewhere"
        finite = np.isfinite(y)
        scale = np.max(np.abs(y[finite]), initial=1.0)
        if np.max(np.abs(x[finite] - y[finite]), initial=0.0) > close * scale:
            return f"result {i} is off by {np.max(np.abs(x[finite] - y[finite])) / scale}"
    return ""


def cases(count: int) -> Iterator[tuple[int, tuple[int, ...], str]]:
    draw = random.Random(5)
    for seed in range(count):
        rank = draw.choice((2, 2, 3))
        shape = tuple(draw.choice(SIDES) for _ in range(rank))
        yield seed, shape, draw.choice(("float32", "float32", "float64"))


def test_random_graphs_are_their_calls() -> None:
    passes = 0
    for seed, shape, dtype in cases(150):
        function, inputs = graph(seed, shape, dtype)
        expected, _ = replayed(function, inputs, "capture(numpy, join=false)")
        with guarded():
            found, captured = replayed(function, inputs, "capture(numpy)")
        assert differences(found, expected, dtype) == "", (seed, shape, dtype)
        passes += sum(" = pass of " in line for line in str(captured.program).splitlines())
    assert passes > 100
