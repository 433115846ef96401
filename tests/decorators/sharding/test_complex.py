"""Complex tensors on shards: every operation that takes them, its gradients, training, and signs of zeros."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.helpers.complex_operands import (
    COMPUTED,
    DIFFERENTIABLE,
    Call,
    cases_of,
    compare,
    elements_of,
    operands_in,
    smooth_cases,
)

import backburn as bb
from backburn import nn, optim
from backburn.backend import load_backend
from backburn.conformance.samples.calls import as_tuple, map_operands
from backburn.decorators.sharding.decorator import INPUTS
from backburn.distributed import place

NUMPY = load_backend("numpy")


def levels(*given: str) -> list[Any]:
    return [load_backend(f"sharded(numpy, dp=2, on_fallback=allow, inputs={inputs})") for inputs in given]


@pytest.mark.parametrize("name", COMPUTED)
def test_values(name: str) -> None:
    for dtype in ("complex128", "complex64"):
        for sample in cases_of(name, 0)[:4]:
            operands = operands_in(name, sample, dtype)
            expected = as_tuple(getattr(NUMPY, name)(*operands, **sample.attributes))
            for k in levels(*INPUTS[1:]):
                got = as_tuple(getattr(k, name)(*map_operands(operands, k.from_numpy), **sample.attributes))
                for g, e in zip(got, expected, strict=True):
                    assert k.dtype(g) is NUMPY.dtype(e)
                    compare(k.to_numpy(g), e, 8.0 * elements_of(operands) ** 0.5)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients(name: str) -> None:
    for sample in smooth_cases(name)[:2]:
        call = Call(name, sample)
        expected = call.gradients(NUMPY, call.at)
        for k in levels("first", "addends"):
            found = call.gradients(k, [k.from_numpy(x) for x in call.at])
            for g, e in zip(found, expected, strict=True):
                np.testing.assert_allclose(k.to_numpy(g), e, rtol=1e-11, atol=1e-11)


def test_parts_that_are_broadcast_are_gathered() -> None:
    real, imag = np.ones((0, 3)), np.ones((1, 3))
    for k in levels("first", "last"):
        found = k.to_numpy(k.complex(k.from_numpy(real), k.from_numpy(imag)))
        assert (found.shape, found.dtype) == ((0, 3), np.complex128)
        found = k.to_numpy(k.complex(k.from_numpy(np.ones((2, 1))), k.from_numpy(imag)))
        np.testing.assert_array_equal(found, np.full((2, 3), 1 + 1j))


def test_zeros_of_sums_keep_their_signs() -> None:
    zeros = np.array([complex(a, b) for a in (0.0, -0.0) for b in (0.0, -0.0)])
    k: Any = load_backend("sharded(numpy, dp=3)")
    for x in (k.addends(k.from_numpy(zeros)), k.take(k.cut(k.from_numpy(zeros), 0), k.from_numpy(np.arange(4)), 0)):
        found = k.to_numpy(x)
        np.testing.assert_array_equal(np.signbit(np.real(found)), np.signbit(np.real(zeros)))
        np.testing.assert_array_equal(np.signbit(np.imag(found)), np.signbit(np.imag(zeros)))


class Net(nn.Module):
    """Two complex layers."""

    def __init__(self) -> None:
        self.first: Any = nn.Linear(4, 6).astype("complex64")
        self.first.weight = nn.parameter(nn.init.normal((6, 4), dtype="complex64"))
        self.second: Any = nn.Linear(6, 2).astype("complex64")

    def forward(self, x: Any) -> Any:
        h = self.first(x)
        return self.second(h * bb.sigmoid(bb.abs(h)))


@pytest.mark.parametrize("recorded", [False, True])
def test_training(recorded: bool) -> None:
    """A mesh with cut parameters and data gives the results of one device."""
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(2, 8, n)) @ np.eye(n) for n in (4, 2))
    x, y = ((a[0] + 1j * a[1]).astype(np.complex64) for a in (x, y))
    found = []
    for spec in ("autodiff(capture(numpy))", "autodiff(capture(sharded(sharded(numpy, tp=2), dp=2)))"):
        with bb.use_backend(spec):
            bb.random.seed(1)
            model, optimizer = Net(), optim.Adam(0.02)
            inputs, targets = bb.asarray(x), bb.asarray(y)
            if "sharded" in spec:
                model.first.weight = place(model.first.weight, {"tp": 0, "dp": 1})
                model.second.weight = place(model.second.weight, {"tp": 1})
                inputs, targets = place(inputs, {"dp": 0}), place(targets, {"dp": 0})

            def step(state: Any, inputs: Any, targets: Any) -> Any:
                model, optimizer = state
                loss = bb.mean(bb.abs(model(inputs) - targets) ** 2)
                gradients = optim.named_gradients(model, loss.backward())
                optimizer.step(model, optim.clip_grad_norm(gradients, 1.0)[0])
                return state, loss

            run = bb.capture(step, on_fallback="error") if recorded else step
            state, losses = (model, optimizer), []
            for _ in range(4):
                state, loss = run(state, inputs, targets)
                losses.append(loss.item())
            found.append((losses, [p.numpy() for p in state[0].parameters()]))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-5)
    for a, b in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    assert found[0][0][-1] < found[0][0][0]


def test_random_numbers_are_those_of_one_device() -> None:
    made = []
    for spec in ("numpy", "sharded(numpy, dp=3)"):
        bb.random.seed(3)
        with bb.distributed.created_in_parts({"dp": 0}) if "sharded" in spec else bb.no_grad():
            made.append(bb.random.normal((5, 3), mean=1j, std=2.0, dtype="complex64", backend=spec).numpy())
    np.testing.assert_array_equal(made[0], made[1])
