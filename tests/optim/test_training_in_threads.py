"""Training in eight threads gives the same results as in one thread, with the GIL and without."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn, optim

THREADS, ROUNDS, STEPS = 8, 2, 4


def together(run: Callable[[int], Any]) -> list[Any]:
    """Return the results of ``run(0)`` to ``run(7)``, called at the same time in one thread each."""
    results: list[Any] = [None] * THREADS
    start = threading.Barrier(THREADS)

    def thread(i: int) -> None:
        start.wait(60)
        try:
            results[i] = run(i)
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=thread, args=(i,), daemon=True) for i in range(THREADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(120)
        assert not each.is_alive(), "a thread did not end"
    return results


def assert_as_alone(run: Callable[[int], Any]) -> None:
    """Assert that ``run`` gives the same results in eight threads as in this one."""
    alone = [run(i) for i in range(THREADS)]
    assert len({repr(result) for result in alone}) == THREADS, "every thread has different results"
    for _ in range(ROUNDS):
        for i, (found, expected) in enumerate(zip(together(run), alone, strict=True)):
            assert found == expected, f"thread {i}"


def convolutional() -> nn.Module:
    """Convolution, batch normalization, pooling and dropout, on 8 by 8 pixels."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(128, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.3), nn.Linear(64, 10)),
    )


def wide() -> nn.Module:
    """Layers large enough for products and kernels with native threads."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 640), nn.SiLU(), nn.Dropout(0.3), nn.Linear(640, 10))


def batches(seed: int, size: int) -> list[tuple[bb.Tensor, bb.Tensor]]:
    rng = np.random.default_rng(seed)
    images, labels = rng.normal(size=(STEPS, size, 1, 8, 8)).astype("f"), rng.integers(0, 10, (STEPS, size))
    return [(bb.asarray(x), bb.asarray(y)) for x, y in zip(images, labels, strict=True)]


def bits(model: nn.Module) -> list[bytes]:
    return [tensor.numpy().tobytes() for tensor in model.state_dict().values()]


@pytest.mark.parametrize(
    ("spec", "made", "size"),
    [
        ("autodiff(numpy)", convolutional, 32),
        ("autodiff(numpy)", wide, 128),
        ("autodiff(autodiff(numpy))", convolutional, 8),
    ],
)
def test_models_trained_in_eight_threads(spec: str, made: Callable[[], nn.Module], size: int) -> None:
    def train(seed: int) -> Any:
        with bb.use_backend(spec), bb.random.fork(seed):
            model, optimizer = made(), optim.AdamW(1e-3)
            losses = []
            for x, y in batches(seed, size):
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.step(model, loss.backward())
                losses.append(loss.item())
            return losses, bits(model)

    assert_as_alone(train)


def test_steps_recorded_and_replayed_in_eight_threads() -> None:
    def step(state: Any, x: bb.Tensor, y: bb.Tensor) -> Any:
        model, optimizer = state
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.step(model, loss.backward())
        return state, loss

    def train(seed: int) -> Any:
        with bb.use_backend("autodiff(capture(numpy))"), bb.random.fork(seed):
            captured, state = bb.capture(step, on_fallback="error"), (wide(), optim.AdamW(1e-3))
            losses = []
            for x, y in batches(seed, 16):
                state, loss = captured(state, x, y)
                losses.append(loss.item())
            return losses, bits(state[0])

    assert_as_alone(train)


def test_one_model_in_eight_threads() -> None:
    """Gradients of shared parameters, from different batches in each thread."""
    with bb.random.fork(0):
        model = wide()

    def gradients(seed: int) -> Any:
        found = []
        with bb.random.fork(seed):
            for x, y in batches(seed, 32):
                grads = nn.functional.cross_entropy(model(x), y).backward()
                found += [gradient.numpy().tobytes() for gradient in optim.named_gradients(model, grads).values()]
        return found

    assert_as_alone(gradients)


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this build of Python always has the GIL")
def test_computing_leaves_the_gil_disabled() -> None:
    program = """
import sys
import backburn as bb
from backburn_numpy import compiled
bb.ones(3).require_grad().exp().sum().backward()
print(sys._is_gil_enabled(), compiled.level())
"""
    done = subprocess.run([sys.executable, "-X", "gil=0", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False ")
