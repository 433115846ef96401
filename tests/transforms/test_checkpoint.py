"""Checkpoints: values, memory, random numbers, state, and functions that change between the passes."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
from tests.helpers.transforms import normalized, tensor, without_collector

import backburn as bb
from backburn.base.errors import (
    GraphError,
)
from backburn.transforms import (
    checkpoint,
    grad,
    hessian,
    jacobian,
    jvp,
)

# ---- checkpoint ----


def test_checkpoint_uses_values_of_an_inner_transform() -> None:
    """Although that value is on the graph of the outer transform, whose reverse pass comes later."""
    for block in (lambda u, b: u.reshape(b.shape) * u, lambda u, b: (b * 1.0, u * u)[1]):
        for inner in (
            lambda f: grad(f)(1.0),
            lambda f: jvp(f, (tensor(1.0),), (tensor(1.0),))[1],
            lambda f: jacobian(f)(tensor(1.0)),
        ):
            outer = lambda a, block=block, inner=inner: inner(lambda b: checkpoint(lambda u: block(u, b))(a) * b)
            assert grad(outer)(2.0).item() == 4.0


def test_checkpoint_gives_the_same_derivatives_of_any_order() -> None:
    w = tensor([0.5, -0.3])

    def plain(x: Any) -> Any:
        return (bb.tanh(bb.tanh(x * w) * x) * w).sum()

    f = checkpoint(plain)
    x = tensor([0.3, 0.7])
    np.testing.assert_array_equal(grad(f)(x).numpy(), grad(plain)(x).numpy())
    np.testing.assert_allclose(hessian(f)(x).numpy(), hessian(plain)(x).numpy(), rtol=1e-13)
    nested = checkpoint(lambda x: checkpoint(lambda y: bb.tanh(y * y))(x).sum())
    np.testing.assert_allclose(grad(nested)(x).numpy(), grad(lambda x: bb.tanh(x * x).sum())(x).numpy(), rtol=1e-14)


def test_checkpoint_gives_captured_parameters_their_gradients() -> None:
    w = tensor([0.5, -0.3]).require_grad()
    x = tensor([1.0, 2.0]).require_grad()
    before = x * w  # the block's input is not a leaf
    out = checkpoint(lambda h: (bb.tanh(h * w), h.sum()))(before)
    grads = (out[0].sum() * out[1]).backward()
    h = x * w
    plain = (bb.tanh(h * w).sum() * h.sum()).backward()
    for leaf in (w, x):
        np.testing.assert_allclose(leaf.grad(grads).numpy(), leaf.grad(plain).numpy(), rtol=1e-14)


def test_checkpoint_recomputes_instead_of_storing() -> None:
    calls = []

    def f(x: Any) -> Any:
        calls.append(1)
        return bb.tanh(bb.tanh(x))

    x = tensor([1.0]).require_grad()
    y = checkpoint(f)(x)
    assert len(calls) == 1
    assert y.primitive.node.parents[0].parents == (x.primitive.node,)  # the output, the block, its entry
    y.backward()
    assert len(calls) == 2
    with bb.no_grad():
        checkpoint(f)(x)
    assert len(calls) == 3


@pytest.mark.parametrize("depth", [1, 2])
def test_checkpoint_draws_the_same_random_numbers_again(depth: int) -> None:
    drawn = []

    def f(x: Any) -> Any:
        drawn.append(bb.random.uniform((4,)))
        return bb.tanh(x * drawn[-1]) * drawn[-1]

    block = f
    for _ in range(depth):
        block = checkpoint(block)
    bb.random.seed(3)
    x = tensor([0.1, 0.2, 0.3, 0.4]).require_grad()
    y = block(x)
    state = bb.random.get_state()
    gradient = x.grad(y.backward())
    assert bb.random.get_state() == state  # later draws are not affected
    assert len(drawn) > 1
    assert all((d == drawn[0]).all().item() for d in drawn)
    slope = 1 - np.tanh(x.numpy() * drawn[0].numpy()) ** 2
    np.testing.assert_allclose(gradient.numpy(), slope * drawn[0].numpy() ** 2, rtol=1e-6)


def test_checkpoint_recomputes_inside_the_same_transforms() -> None:
    """Perturbations are not confused, although the outer transform has ended."""
    f = checkpoint(lambda x: x * grad(lambda y: x * y)(1.0))
    assert grad(f)(2.0).item() == 4.0
    forward = checkpoint(lambda x: x * bb.jvp(lambda y: x * y, (tensor(1.0),), (1.0,))[1])
    assert grad(forward)(tensor(2.0)).item() == 4.0


def test_checkpoint_of_a_block_that_returns_its_arguments() -> None:
    w, x = tensor(3.0).require_grad(), tensor(2.0).require_grad()
    out = checkpoint(lambda x: (x * w, w, x, x))(x)
    total = out[0] + out[1] * out[2] + out[3]
    gradients = total.backward()
    assert w.grad(gradients).item() == 4.0
    assert x.grad(gradients).item() == 7.0


def test_checkpoint_frees_its_values_at_once() -> None:
    """Values are freed at once, without the cyclic collector."""
    seen: list[Any] = []

    def block(x: Any) -> Any:
        y = bb.tanh(x)
        seen.append(weakref.ref(y.primitive.node))
        return bb.sin(y)

    def run() -> tuple[list[bool], list[bool]]:
        out = checkpoint(block)(tensor([0.5]).require_grad())
        forward = [ref() is None for ref in seen]
        out.backward()
        return forward, [ref() is None for ref in seen]

    assert without_collector(run) == ([True], [True, True])


def test_a_checkpoint_that_returns_something_else_the_second_time() -> None:
    calls: list[int] = []

    def f(x: Any) -> Any:
        calls.append(1)
        return (x * x, x * 2.0) if len(calls) > 1 else x * x

    y = checkpoint(f)(tensor([1.0]).require_grad())
    with pytest.raises(GraphError, match="returned 1 tracked tensors, and 2 when it was called again"):
        y.backward()


def test_a_checkpoint_whose_parameter_was_replaced_before_the_reverse_pass() -> None:
    model = {"w": tensor(2.0).require_grad()}
    x = tensor(3.0).require_grad()
    out = checkpoint(lambda x: x * model["w"])(x)
    model["w"] = tensor(5.0).require_grad()
    with pytest.raises(GraphError, match="a parameter that a step has replaced"):
        out.backward()


def test_a_checkpoint_keeps_the_original_contents_of_containers() -> None:
    """Although the caller changes them later, or the block itself does."""
    x = tensor([1.0, 2.0])

    def reused(x: Any) -> Any:
        state: dict[str, Any] = {"x": x}
        total = tensor(0.0)
        for state["scale"] in (2.0, 3.0):
            total = total + checkpoint(lambda state: (state["x"] * state["scale"]).sum())(state)
        return total

    def emptied(x: Any) -> Any:
        return checkpoint(lambda stack: (stack.pop() * stack.pop()).sum())([x, x])

    assert grad(reused)(x).tolist() == [5.0, 5.0]
    assert grad(emptied)(x).tolist() == [2.0, 4.0]
    assert grad(lambda x: grad(emptied)(x).sum())(x).tolist() == [2.0, 2.0]
    statistics: Any = normalized()
    model, rows = statistics[1], bb.stack([x, 2.0 * x, x])[:, :1] * tensor([1.0, 2.0, 3.0])
    grad(lambda x: checkpoint(lambda held, x: held[0](x).square().sum())([model], x))(rows)
    assert model.running_mean.tolist() != [0.0] * 3  # a module is not a container: it keeps its new state
