"""Element-wise calls on a stack of a loop's results, which recordings apply to the parts: which ones, and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.kernels import needs_kernels

import backburn as bb
from backburn_numpy.programs import compiling

pytestmark = [needs_kernels, pytest.mark.usefixtures("guarded_memory")]


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[int, ...]]]:
    """The operations after splitting, with the shapes of their first results."""
    found: list[tuple[str, tuple[int, ...]]] = []
    split, *rest = compiling.PASSES

    def look(program: Any, k: Any) -> Any:
        found.extend((call.operation, next(iter(call.writes)).shape) for call in program.calls)
        return program.calls

    monkeypatch.setattr(compiling, "PASSES", (split, look, *rest))
    return found


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng((seed, *shape)).normal(size=shape)


def check(function: Callable[..., Any], *arrays: Any) -> None:
    """Compare values of replays with float64 results."""
    captured = bb.capture(function, state=False, on_fallback="error")
    for n in range(3):
        values = [a * (1 + 0.1 * n) for a in arrays]
        found = captured(*(bb.asarray(a, dtype=bb.float32, backend="capture(numpy)") for a in values))
        expected = function(*(bb.asarray(a, dtype=bb.float64, backend="numpy") for a in values))
        for x, y in zip(found, expected, strict=True):
            assert x.shape == y.shape
            largest = max(1.0, np.abs(y.numpy()).max(initial=0.0))
            np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=2e-4, atol=2e-5 * largest)


def states_of(a: Any, x: Any) -> list[Any]:
    h, states = 0.0 * x[0], []
    for fed in x:
        h = h * a + fed
        states.append(h)
    return states


@pytest.mark.parametrize("join", [bb.stack, bb.concat])
@pytest.mark.parametrize("mean", [bb.mean, bb.sum])
def test_a_loss_over_steps_needs_no_stack(shapes: list[Any], join: Any, mean: Any) -> None:
    """With one target for all steps and with one per step; with gradients."""

    def loss(a: Any, x: Any, goal: Any, weights: Any) -> Any:
        states = join(states_of(a, x))
        return mean((states - (goal if join is bb.stack else 0.5)) ** 2.0 * weights.reshape(states.shape))

    gradient = bb.value_and_grad(loss, argnums=(0, 1))
    check(
        lambda *given: [(found := gradient(*given))[0], *found[1]],
        normal(3), normal(10, 2, 3), normal(2, 3), normal(10, 2, 3, seed=1),
    )  # fmt: skip
    whole = {(10, 2, 3), (20, 3)}
    left = [op for op, shape in shapes if shape in whole and op not in ("reshape", "concat")]
    of_number = ["mul"] if mean is bb.mean else []
    assert left == [*of_number, "stack"], "the weights times a number, independent of the loop, and the gradient of x"


def test_stacks_that_are_read_otherwise_are_kept(shapes: list[Any]) -> None:
    """A result that is returned, reduced over some axes, or sliced differently is computed from the stack."""

    def function(a: Any, x: Any) -> Any:
        stack = bb.stack(states_of(a, x))
        square, cube = stack**2.0, bb.tanh(stack)
        return [square, square.sum(), cube[2:4], cube.mean(axis=1), bb.exp(stack - stack.mean()).sum(keepdims=True)]

    check(function, normal(3), normal(10, 2, 3))
    assert ("pow", (10, 2, 3)) in shapes
    assert ("tanh", (10, 2, 3)) in shapes
    assert ("exp", (2, 3)) in shapes


def test_large_parts_and_other_stacks_are_kept(shapes: list[Any]) -> None:
    def function(x: Any, y: Any) -> Any:
        stack = bb.stack([x * float(n) for n in range(5)])
        return [bb.where(stack > 0.0, stack, 0.5 * stack).sum(), bb.square(bb.stack([y, y + 1.0, y * 2.0])).sum()]

    check(function, normal(200, 100), normal(3))
    assert ("where", (5, 200, 100)) in shapes
    assert ("square", (3, 3)) in shapes


# ---- random programs ----

KINDS = ("number", "row", "whole", "tanh", "same", "square", "self")


@pytest.mark.slow
@given(st.data())
def test_random_programs(data: st.DataObject) -> None:
    """Chains of element-wise calls on stacks, which are indexed, sliced or reduced."""
    steps = [
        (data.draw(st.sampled_from(KINDS)), data.draw(st.integers(0, 3))) for _ in range(data.draw(st.integers(1, 8)))
    ]
    reads = data.draw(
        st.lists(
            st.tuples(st.sampled_from(["sum", "mean", "entry", "range", "columns"]), st.integers(0, 20)),
            min_size=1, max_size=5,
        )
    )  # fmt: skip
    join: Any = data.draw(st.sampled_from([bb.stack, bb.concat]))

    def function(a: Any, x: Any, whole: Any) -> Any:
        values = [join(states_of(a, x))]
        whole = whole.reshape(values[0].shape)
        for kind, back in steps:
            v = values[-1 - back % len(values)]
            made: dict[str, Callable[[Any], Any]] = {
                "number": lambda v: v * 0.5 + 1.0, "row": lambda v: v - a, "whole": lambda v: v * whole,
                "tanh": bb.tanh, "square": lambda v: 0.3 * bb.square(v), "same": lambda v: v + values[0],
                "self": lambda v: v * v.mean(),
            }  # fmt: skip
            values.append(made[kind](v))
        found = []
        for kind, which in reads:
            v = values[which % len(values)]
            read: dict[str, Callable[[Any], Any]] = {
                "sum": lambda v: v.sum(), "mean": lambda v: v.mean(keepdims=True), "entry": lambda v: v[3] * 2.0,
                "range": lambda v: v[1:3], "columns": lambda v: v.sum(axis=-1),
            }  # fmt: skip
            found.append(read[kind](v))
        return found

    check(function, 0.5 * normal(3), normal(6, 2, 3), normal(6, 2, 3, seed=1))
