"""Recorded steps on the CuPy backend, over the stand-in, whose recordings do the same calls again."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.cupy_stand_in import compiled
from tests.cupy_stand_in.use import standing_in

import backburn as bb
from backburn import nn, optim
from backburn.base.errors import OutOfRangeError
from backburn.nn import functional

pytestmark = pytest.mark.skipif(compiled.COMPILER is None, reason="there is no g++ to run the kernels with")


class FakeLibrary:
    """cuBLAS's own interface, over that of the stand-in; what is called while something is recorded is called again."""

    def __init__(self, cupy: Any) -> None:
        from cupy_backends.cuda.libs import cublas

        self.calls: list[str] = []

        def create(address: int) -> int:
            ctypes.c_void_p.from_address(address).value = 99
            return 0

        def product(name: str) -> Any:
            def call(handle: int, *arguments: Any) -> int:
                assert handle == 99
                self.calls.append(name)
                function = getattr(cublas, name)
                function(handle, *arguments)
                cupy.Tape.add(lambda: function(handle, *arguments))
                return 0

            return call

        def done(*_: Any) -> int:
            return 0

        self.cublasCreate_v2, self.cublasSetStream_v2, self.cublasSetWorkspace_v2 = create, done, done
        self.cublasGemmEx = product("gemmEx")
        self.cublasGemmStridedBatchedEx = product("gemmStridedBatchedEx")


@pytest.fixture(scope="module")
def library() -> Iterator[Any]:
    with standing_in() as cupy:
        import backburn_cupy.blas as blas

        fake = FakeLibrary(cupy)
        patch = pytest.MonkeyPatch()
        patch.setattr(blas, "library", lambda: fake)
        yield fake
        patch.undo()


def train(backend: str, captured: bool) -> tuple[list[float], Any]:
    """The losses of a few steps with dropout, norms, attention's softmax and Adam under a schedule."""
    def step(state: Any, x: Any, y: Any) -> Any:
        model, optimizer = state
        loss = functional.cross_entropy(model(x), y)
        optimizer.step(model, loss.backward())
        return state, loss

    run = bb.capture(step) if captured else step
    with bb.use_backend(backend):
        bb.random.seed(5)
        model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 3))
        state = (model, optim.Adam(lambda count: 0.1 / (1 + count % 3)))
        x = bb.random.normal((20, 6))
        y = bb.argmax(x[:, :3], axis=1)
        losses = []
        for _ in range(7):
            state, loss = run(state, x, y)
            losses.append(float(loss))
    return losses, run


def test_a_recorded_step_learns_as_one_that_is_not(library: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        losses, run = train("autodiff(cupy)", captured=True)
    assert run.reason == ""
    assert library.calls
    expected, _ = train("autodiff(cupy)", captured=False)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    host, _ = train("autodiff(numpy)", captured=False)
    np.testing.assert_allclose(losses, host, rtol=2e-3)


def test_what_waits_for_the_device_is_not_recorded(library: Any) -> None:
    def step(state: Any, x: Any) -> Any:
        return state * (2.0 if float(x.sum()) > 0 else 3.0), state

    run = bb.capture(step, on_fallback="allow")
    state, x = bb.ones((3,), backend="autodiff(cupy)"), bb.ones((2,), backend="autodiff(cupy)")
    for _ in range(3):
        state, _ = run(state, x)
    assert state.tolist() == [8.0, 8.0, 8.0]
    assert run.reason


def test_an_index_out_of_range_in_a_recorded_step_is_told(library: Any) -> None:
    def step(state: Any, i: Any) -> Any:
        return state + 1.0, bb.take(state, i, axis=0)

    run = bb.capture(step)
    state = bb.ones((3,), backend="autodiff(cupy)")
    for places in ([0], [1], [2]):
        state, out = run(state, bb.asarray(places, backend="autodiff(cupy)"))
        assert out.shape == (1,)
    state, out = run(state, bb.asarray([5], backend="autodiff(cupy)"))
    with pytest.raises(OutOfRangeError, match="index 5"):
        out.tolist()
