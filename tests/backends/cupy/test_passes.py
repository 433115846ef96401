"""``capture(cupy)`` on the stand-in: calls are joined to passes, and then recorded as a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.backends.cupy.stand_in import compiled
from tests.backends.cupy.test_capture import SCENARIOS, nothing_is_left, train
from tests.transforms import test_capture
from tests.transforms.test_capture import OPTIMIZERS, losses

import backburn as bb
from backburn import nn, optim
from backburn.backend.registry import load_backend
from backburn.base.errors import SpecError
from backburn.nn import functional

pytestmark = pytest.mark.skipif(compiled.COMPILER is None, reason="running the kernels needs g++")

JOINED = "autodiff(capture(cupy))"


@pytest.fixture
def k(cupy: Any) -> Any:
    return load_backend("cupy")


def test_a_step_with_passes_learns_like_one_without(cupy: Any, k: Any) -> None:
    found, run = train(JOINED, captured=True)
    assert run.reason == ""
    np.testing.assert_allclose(found, train("autodiff(cupy)", captured=False)[0], rtol=1e-4)
    nothing_is_left(cupy, k)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_optimizers(cupy: Any, k: Any, name: str, dropout: float) -> None:
    plain, (_, optimizer), _ = losses("autodiff(cupy)", OPTIMIZERS[name], lambda f: f, dropout)
    replayed, (_, other_optimizer), step = losses(JOINED, OPTIMIZERS[name], bb.capture, dropout)
    assert step.reason == ""
    np.testing.assert_allclose(replayed, plain, rtol=1e-3)
    assert other_optimizer.steps == optimizer.steps == 7
    unjoined, _, _ = losses("autodiff(capture(cupy, join=false))", OPTIMIZERS[name], bb.capture, dropout)
    np.testing.assert_array_equal(unjoined, plain)
    nothing_is_left(cupy, k)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda f: f.__name__)
def test_scenarios_of_recording_backends(
    cupy: Any, k: Any, scenario: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_capture, "RECORDING", JOINED)
    scenario()
    nothing_is_left(cupy, k)


def norm(x: Any, scale: Any, weight: Any) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    return (centred * bb.rsqrt(bb.square(centred).mean(axis=-1, keepdims=True) + 1e-5) * scale * weight).sum()


def test_a_norm_and_its_gradients_are_one_pass(cupy: Any, k: Any) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s).astype(np.float32) for s in ((60, 100), (100,), (60, 100))]
    found: dict[str, Any] = {}
    launches: dict[str, int] = {}
    for backend in ("cupy", "capture(cupy)"):
        captured = bb.capture(bb.value_and_grad(norm, argnums=(0, 1, 2)), state=False, on_fallback="error")
        given = [bb.asarray(x, backend=backend) for x in arrays]
        value, gradients = [captured(*given) for _ in range(3)][-1]
        assert captured.reason == ""
        found[backend], launches[backend] = [value.numpy(), *(g.numpy() for g in gradients)], captured.launches or 0
    for one, other in zip(found["cupy"], found["capture(cupy)"], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    text = str(captured.plan())
    assert text.count("computed by CUDA") == 1
    assert "a number for each column" in text
    assert "pass of" in str(captured.program)
    assert launches["capture(cupy)"] * 4 < launches["cupy"]
    nothing_is_left(cupy, k)


def test_state_computed_by_passes(cupy: Any, k: Any) -> None:
    """Results of a pass become state, which is read before and after the update, and outlives replays."""

    def step(state: Any, x: Any) -> Any:
        a, b = state
        y = bb.tanh(a * 0.5 + x) * b
        return (y - y.mean(axis=-1, keepdims=True), b + y.sum(axis=0) * 0.01), (y * a).sum(axis=-1)

    rng = np.random.default_rng(1)
    x, a, b = (rng.normal(size=s).astype(np.float32) for s in ((40, 64), (40, 64), (64,)))
    results = []
    for backend, captured in (("cupy", step), ("capture(cupy)", bb.capture(step, on_fallback="error"))):
        state = (bb.asarray(a, backend=backend), bb.asarray(b, backend=backend))
        outs = []
        for i in range(5):
            state, out = captured(state, bb.asarray(x * i, backend=backend))
            outs.append(out)
        results.append([*(o.numpy() for o in outs), *(s.numpy() for s in state)])
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    nothing_is_left(cupy, k)


def test_changing_numbers_reach_calls_outside_passes(cupy: Any, k: Any) -> None:
    def step(state: Any, x: Any, y: Any) -> Any:
        model, optimizer = state
        loss = functional.cross_entropy(bb.gelu(model(x) * 2.0 + 1.0), y)
        optimizer.step(model, loss.backward())
        return state, loss

    found = {}
    for backend, captured in (("autodiff(cupy)", step), (JOINED, bb.capture(step, on_fallback="error"))):
        with bb.use_backend(backend):
            bb.random.seed(3)
            model = nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.2), nn.Linear(40, 40))
            state = (model, optim.SGD(lambda count: 0.5 / (1 + count), momentum=0.9))
            x = bb.random.normal((20, 6))
            y, losses_ = bb.argmax(x, axis=1), []
            for _ in range(6):
                state, loss = captured(state, x, y)
                losses_.append(float(loss))
        found[backend] = losses_
    np.testing.assert_allclose(found[JOINED], found["autodiff(cupy)"], rtol=1e-4)


def test_capture_decorates_a_recording_backend_that_compiles_passes(cupy: Any) -> None:
    assert load_backend("capture(cupy)").capabilities.capture
    with pytest.raises(SpecError, match="records by itself"):
        load_backend("capture(capture(cupy))")
