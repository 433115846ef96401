"""The reverse pass settles the gradient of a leaf as soon as it is final, on backends that settle gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.backend.wrapper import Wrapper
from backburn.base.errors import ShapeError
from backburn_numpy import NumpyBackend


class Settles(Wrapper):
    """Record the operations of a reverse pass, and settle gradients to new primitives."""

    name = "settles"
    settles = True

    def __init__(self, wrapped: Any) -> None:
        super().__init__(wrapped)
        self.calls: list[str] = []
        self.settled: list[tuple[Any, Any]] = []

    def call(self, operation: str, /, *operands: Any, **attributes: Any) -> Any:
        self.calls.append(operation)
        if operation != "settle":
            return super().call(operation, *operands, **attributes)
        gradient, like = operands
        self.settled.append((gradient.copy(), like))
        return gradient + 0.0


@pytest.fixture
def level() -> Any:
    return Settles(NumpyBackend())


def leaf(level: Any, values: Any) -> Any:
    return bb.asarray(values, backend=bb.Autodiff(level)).require_grad()


def test_each_gradient_is_settled_once_like_its_leaf(level: Any) -> None:
    x, y = leaf(level, [1.0, 2.0]), leaf(level, [3.0, 4.0])
    gradients = (x * y + x).sum().backward()
    found = [(g.tolist(), like.tolist()) for g, like in level.settled]
    assert sorted(found) == [([1.0, 2.0], [3.0, 4.0]), ([4.0, 5.0], [1.0, 2.0])]
    assert (x.grad(gradients).tolist(), y.grad(gradients).tolist()) == ([4.0, 5.0], [1.0, 2.0])


def test_a_gradient_is_settled_before_the_pass_continues(level: Any) -> None:
    x, w = leaf(level, [1.0, 2.0]), leaf(level, [3.0, 4.0])
    y = bb.exp(bb.sin(x)) * w
    level.calls.clear()
    y.sum().backward()
    assert "settle" in level.calls
    assert level.calls.index("settle") < level.calls.index("cos"), "the gradient of w is final before that of sin"
    assert level.settled[0][1].tolist() == [3.0, 4.0]


def test_a_gradient_with_two_parts_is_settled_after_the_last(level: Any) -> None:
    x = leaf(level, [1.0, 2.0])
    (bb.sin(bb.exp(x)) + 3.0 * x).sum().backward()
    values = np.array([1.0, 2.0])
    np.testing.assert_allclose(level.settled[0][0], np.cos(np.exp(values)) * np.exp(values) + 3.0, rtol=1e-5)
    assert len(level.settled) == 1


def test_a_leaf_without_a_gradient_from_one_branch_is_settled_at_the_end(level: Any) -> None:
    x, y = leaf(level, [1.0, 2.0]), leaf(level, [3.0, 4.0])

    @bb.custom_vjp
    def first(a: Any, b: Any) -> Any:
        return a + b

    first.define(lambda a, b: (a + b, ()), lambda saved, g: (g, None))
    (first(x, y) + bb.sin(y)).sum().backward()
    assert sorted(like.tolist() for _, like in level.settled) == [[1.0, 2.0], [3.0, 4.0]]


def test_slices_are_summed_first(level: Any) -> None:
    x = leaf(level, [1.0, 2.0, 3.0])
    gradients = (x[:2].sum() + x[1:].sum()).backward()
    assert x.grad(gradients).tolist() == [1.0, 2.0, 1.0]
    assert all(g.tolist() == [1.0, 2.0, 1.0] for g, _ in level.settled)


def test_second_derivatives_settle_on_the_level_that_settles(level: Any) -> None:
    x = bb.asarray([2.0, 3.0], backend=bb.Autodiff(bb.Autodiff(level)))
    found = bb.grad(lambda t: bb.grad(lambda s: (s**3.0).sum())(t).sum())(x)
    assert found.tolist() == [12.0, 18.0]


def test_functions_have_settled_gradients(level: Any) -> None:
    x = bb.asarray([2.0, 3.0], backend=level)
    assert bb.grad(lambda t: (t * t).sum())(x).tolist() == [4.0, 6.0]
    assert [like.tolist() for _, like in level.settled] == [[2.0, 3.0]]


def test_backends_that_do_not_settle_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Quiet(Settles):
        settles = False

    level = Quiet(NumpyBackend())
    x = leaf(level, [1.0, 2.0])
    x.sum().backward()
    assert "settle" not in level.calls


def test_the_shape_is_that_of_the_parameter() -> None:
    k = NumpyBackend()
    with pytest.raises(ShapeError, match="gradient has shape \\[2\\] and its parameter \\[3\\]"):
        k.settle(np.zeros(2), np.zeros(3))
