"""Products in a loop that a recording joins: which ones, and that values stay the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import backburn as bb
from backburn import nn
from backburn.programs.passes import loop_products as products
from backburn_numpy.programs import compiling

pytestmark = pytest.mark.usefixtures("guarded_memory")


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of calls per operation after joining."""
    found: Counter[str] = Counter()

    def look(program: Any, k: Any) -> Any:
        found.update(call.operation for call in program.calls)
        return program.calls

    for name in ("PASSES", "WITHOUT_KERNELS"):
        passes = getattr(compiling, name)
        after = passes.index(products.join_products) + 1
        monkeypatch.setattr(compiling, name, (*passes[:after], look, *passes[after:]))
    return found


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng((seed, *shape)).normal(size=shape)


def check(function: Callable[..., Any], *arrays: Any) -> None:
    """Compare values and gradients with float64 results, in replays on other values than those recorded."""
    gradient = bb.value_and_grad(function, argnums=tuple(range(len(arrays))))
    captured = bb.capture(gradient, state=False, on_fallback="error")
    for n in range(4):
        values = [a * (1 + 0.1 * n) for a in arrays]
        found = captured(*(bb.asarray(a, dtype=bb.float32, backend="capture(numpy)") for a in values))
        expected = gradient(*(bb.asarray(a, dtype=bb.float64, backend="numpy") for a in values))
        for x, y in zip([found[0], *found[1]], [expected[0], *expected[1]], strict=True):
            assert x.shape == y.shape
            np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=2e-4, atol=2e-5 * max(1.0, np.abs(y.numpy()).max()))
    assert captured.reason == ""


STEPS, ROWS, INPUTS, SIZE = 12, 5, 3, 4


def simple(x: Any, w: Any, u: Any, b: Any) -> Any:
    """A simple recurrent network."""
    h: Any = bb.zeros((ROWS, SIZE), dtype=x.dtype, backend=x.backend)
    for fed in x:
        h = bb.tanh(nn.functional.linear(fed, w, b) + h @ u)
    return (h * h).sum()


def test_a_loop_of_products(operations: Counter[str]) -> None:
    check(simple, *(normal(*s) for s in ((STEPS, ROWS, INPUTS), (SIZE, INPUTS), (SIZE, SIZE), (SIZE,))))
    assert operations["linear"] == 1
    assert operations["linear_weight_backward"] == 1
    # State products, forward and backward, depend on the previous step; then the gradients of the inputs, and of a
    # weight, whose first term has a constant operand.
    assert operations["matmul"] == STEPS + (STEPS - 1) + 1 + 2


@pytest.mark.parametrize("gates", [3, 4])
def test_a_loop_of_cells(operations: Counter[str], gates: int) -> None:
    """Two layers: the products of the second with the states of the first are joined, too."""

    def loss(x: Any, w: Any, u: Any, w2: Any, u2: Any, b: Any) -> Any:
        h = c = h2 = c2 = bb.zeros((ROWS, SIZE), dtype=x.dtype, backend=x.backend)
        total: Any = 0.0
        for fed in x:
            if gates == 4:
                h, c = nn.functional.lstm_cell(nn.functional.linear(fed, w), h, c, u, b)
                h2, c2 = nn.functional.lstm_cell(nn.functional.linear(h, w2, b), h2, c2, u2)
            else:
                h = nn.functional.gru_cell(nn.functional.linear(fed, w), h, u, b)
                h2 = nn.functional.gru_cell(nn.functional.linear(h, w2, b), h2, u2)
            total = total + (h2 * h2).sum()
        return total

    wide = gates * SIZE
    shapes = (STEPS, ROWS, INPUTS), (wide, INPUTS), (wide, SIZE), (wide, SIZE), (wide, SIZE), (wide,)
    check(loss, *(0.5 * normal(*s, seed=i) for i, s in enumerate(shapes)))
    assert operations["linear"] == 2
    assert operations["linear_weight_backward"] + operations["matmul"] < 8


def test_partial_sums_that_are_read_are_kept(operations: Counter[str]) -> None:
    """A term or partial sum that is used elsewhere is still computed."""

    def function(g: Any, h: Any) -> Any:
        total: Any = 0.0
        middle = term = None
        for n in range(10):
            term = g[n].T @ h[n]
            total = total + term
            middle = total if n == 4 else middle
        return [total, middle, term]

    arrays = [normal(10, 3, 4).astype(np.float32), normal(10, 3, 5).astype(np.float32)]
    captured = bb.capture(function, state=False, on_fallback="error")
    for n in range(3):
        g, h = (a * (1 + n) for a in arrays)
        found = captured(*(bb.asarray(a, backend="capture(numpy)") for a in (g, h)))
        terms = np.einsum("nij,nik->njk", g, h)
        for x, y in zip(found, (terms.sum(0), terms[:5].sum(0), terms[-1]), strict=True):
            np.testing.assert_allclose(x.numpy(), y, rtol=1e-5, atol=1e-5)
    assert operations["matmul"] == 3, "both partial sums of at least four terms, and the last term"


def test_large_products_are_not_joined(operations: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limits, products are joined in groups or not at all, so that not all operands are alive at once."""
    arrays = [normal(*s) for s in ((STEPS, ROWS, INPUTS), (SIZE, INPUTS), (SIZE, SIZE), (SIZE,))]
    monkeypatch.setattr(products, "MOST_ELEMENTS", 6 * ROWS * (INPUTS + SIZE))
    check(simple, *arrays)
    assert operations["linear"] == operations["linear_weight_backward"] == 2
    operations.clear()
    monkeypatch.setattr(products, "MOST_MULTIPLICATIONS", ROWS * INPUTS * SIZE - 1)
    check(simple, *arrays)
    assert operations["linear"] == operations["linear_weight_backward"] == STEPS


def test_16_bit_floats_are_not_joined(operations: Counter[str]) -> None:
    """Their partial sums may overflow."""
    captured = bb.capture(bb.grad(lambda w, x: sum((x[n] @ w).sum() for n in range(8))), state=False)
    for _ in range(3):
        captured(*(bb.ones(s, dtype=bb.float16, backend="capture(numpy)") for s in ((3, 4), (8, 2, 3))))
    assert operations["concat"] == 0


def test_without_joining_results_are_bitwise_identical() -> None:
    gradient = bb.grad(simple, argnums=(1, 2, 3))
    captured = bb.capture(gradient, state=False, on_fallback="error")
    arrays = [normal(*s).astype(np.float32) for s in ((STEPS, ROWS, INPUTS), (SIZE, INPUTS), (SIZE, SIZE), (SIZE,))]
    for _ in range(3):
        found = captured(*(bb.asarray(a, backend="capture(numpy, join=false)") for a in arrays))
    for x, y in zip(found, gradient(*(bb.asarray(a, backend="numpy") for a in arrays)), strict=True):
        np.testing.assert_array_equal(x.numpy(), y.numpy())


# ---- random programs ----

KINDS = ("weight", "weight", "linear", "tanh", "add", "sum", "product", "product", "accumulate", "accumulate")


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Calls on (3, 3) matrices, with indices of earlier values as operands; many are sums of products."""
    calls: list[tuple[Any, ...]] = []
    for n in range(4, 4 + draw(st.integers(8, 40))):
        kind = draw(st.sampled_from(KINDS))
        calls.append(
            (kind, draw(st.integers(0, n - 1)), draw(st.integers(max(0, n - 6), n - 1)), draw(st.integers(0, 1)))
        )
    return calls


def run(calls: list[tuple[Any, ...]], results: list[int], *given: Any) -> list[Any]:
    values = [*given]
    for name, i, j, weight in calls:
        x, y, w = values[i], values[j], given[weight]
        if name == "weight":
            made = y @ w
        elif name == "linear":
            made = nn.functional.linear(y, w, given[2][0])
        elif name == "tanh":
            made = bb.tanh(y)
        elif name == "add":
            made = x + y
        elif name == "sum":
            made = x + y.sum(axis=0)
        elif name == "product":
            made = x.T @ y
        else:
            made = y + x.T @ given[3]
        values.append(0.5 * made if name in ("product", "weight") and i % 2 else made)
    return [values[i] for i in results]


@pytest.mark.slow
@given(st.data())
def test_random_programs(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "FEWEST", 2)
        patch.setattr(products, "MOST_ELEMENTS", data.draw(st.sampled_from([40, 1000])))
        calls = data.draw(programs())
        results = data.draw(st.lists(st.integers(4, 3 + len(calls)), min_size=1, max_size=3))
        arrays = [0.3 * normal(3, 3, seed=n) for n in range(4)]
        captured = bb.capture(lambda *given: run(calls, results, *given), state=False, on_fallback="error")
        for n in range(3):
            values = [a * (1 + 0.1 * n) for a in arrays]
            found = captured(*(bb.asarray(a, backend="capture(numpy)") for a in values))
            expected = run(calls, results, *(bb.asarray(a, backend="numpy") for a in values))
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-9, atol=1e-11 * max(1.0, np.abs(y.numpy()).max()))
