"""Functions that are run again draw the same random numbers from any generator, and advance it once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn, optim

Drawn = Callable[[bb.random.Generator], Callable[[Any], Any]]


class Holder(nn.Module):
    """A module with a generator of its own."""

    def __init__(self, generator: bb.random.Generator) -> None:
        self.generator = generator

    def forward(self, x: Any) -> Any:
        return x * bb.random.uniform(x.shape, generator=self.generator)


def _default(generator: bb.random.Generator) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        with bb.random.fork(generator):
            return x * bb.random.uniform(x.shape)

    return function


def _drawn(x: Any, generator: Any) -> Any:
    return x * bb.random.uniform(x.shape, generator=generator)


WAYS: dict[str, Drawn] = {
    "closure": lambda g: lambda x: x * bb.random.uniform(x.shape, generator=g),
    "twice": lambda g: (
        lambda x: x * bb.random.uniform(x.shape, generator=g) + x * bb.random.normal(x.shape, generator=g)
    ),
    "argument": lambda g: partial(_drawn, generator=g),
    "module": Holder,
    "spawned": lambda g: lambda x: x * bb.random.uniform(x.shape, generator=g.spawn(2)[1]),
    "dropout": lambda g: lambda x: nn.functional.dropout(x, 0.5, generator=g),
    "saved": lambda g: lambda x: x * bb.random.uniform(x.shape, generator=g) * float(g.state()["offset"]),
    "fork": _default,
}


@pytest.mark.parametrize("way", WAYS)
def test_checkpoint_draws_again(way: str) -> None:
    x = bb.asarray(np.linspace(1.0, 2.0, 6))
    generator = bb.random.Generator(5)
    function = WAYS[way](generator)
    expected, after = bb.grad(lambda x: function(x).sum())(x), generator.state()
    derivatives: list[Callable[[Any], Any]] = [
        lambda f: bb.grad(lambda x: bb.checkpoint(f)(x).sum())(x),
        lambda f: bb.grad(lambda x: bb.checkpoint(bb.checkpoint(f))(x).sum())(x),
        lambda f: (leaf := x.require_grad()).grad(bb.checkpoint(f)(leaf).sum().backward()),
    ]
    for derivative in derivatives:
        generator = bb.random.Generator(5)
        found = derivative(WAYS[way](generator))
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
        assert generator.state() == after


def test_checkpoint_does_not_affect_later_draws() -> None:
    """The reverse pass repeats the function's draws, and not those drawn after it."""
    x, generator = bb.asarray([1.0, 2.0]).require_grad(), bb.random.Generator(5)
    y = bb.checkpoint(lambda x: x * bb.random.uniform((2,), generator=generator))(x)
    after = bb.random.uniform((2,), generator=generator)
    state = generator.state()
    x.grad(y.sum().backward())
    assert generator.state() == state
    again = bb.random.Generator(5)
    bb.random.uniform((2,), generator=again)
    assert bb.random.uniform((2,), generator=again).tolist() == after.tolist()


def test_generators_without_a_seed_get_the_same_key_again() -> None:
    drawn: list[list[float]] = []

    def function(x: Any) -> Any:
        u = bb.random.uniform((3,), generator=bb.random.Generator())
        drawn.append(u.tolist())
        return x * u

    gradient = bb.grad(lambda x: bb.checkpoint(function)(x).sum())(bb.asarray([1.0, 2.0, 3.0]))
    assert gradient.tolist() == drawn[0] == drawn[1]


@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_jacobians_and_hessians_draw_once(mode: str) -> None:
    x, expected = bb.asarray([1.0, 2.0, 3.0]), bb.random.uniform((3,), generator=bb.random.Generator(5))
    generator = bb.random.Generator(5)
    found = bb.jacobian(lambda x: x * bb.random.uniform((3,), generator=generator), mode=mode)(x)
    np.testing.assert_array_equal(found.numpy(), np.diag(expected.numpy()))
    assert generator.offset == 3
    generator = bb.random.Generator(5)
    hessian = bb.hessian(lambda x: (x * x * bb.random.uniform((3,), generator=generator)).sum())(x)
    np.testing.assert_array_equal(hessian.numpy(), np.diag(2.0 * expected.numpy()))
    assert generator.offset == 3


@pytest.mark.parametrize("steps", [1, 4])
def test_line_searches_compare_losses_with_the_same_random_numbers(steps: int) -> None:
    generator, seen = bb.random.Generator(5), []
    model = {"w": bb.asarray([3.0, -2.0]).require_grad()}

    def loss(model: Any) -> Any:
        scales = bb.random.uniform((2,), generator=generator)
        seen.append(scales.tolist())
        return (scales * model["w"] ** 2.0).sum()

    optim.LBFGS().step(model, loss, steps=steps)
    assert len(seen) > steps
    assert all(each == seen[0] for each in seen)
    assert generator.offset == 2, "as after one call"
