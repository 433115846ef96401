"""Guards around memory: each finds a planted fault, and none in correct code."""

from __future__ import annotations

import ctypes
from threading import Thread
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from tests.helpers import guards
from tests.helpers.kernels import needs_kernels

import backburn as bb
from backburn import nn
from backburn_numpy import compiled, tuning
from backburn_numpy.ops import reduce
from backburn_numpy.programs import native_program
from backburn_numpy.programs.native_program import NativeProgram
from backburn_numpy.runtime import memory

FLOAT32 = np.dtype(np.float32)


def at(x: Any, offset: int) -> Any:
    """The float at a byte offset from an array's start."""
    return ctypes.c_float.from_address(compiled.address(x) + offset)


@pytest.mark.parametrize(("offset", "where"), [(-4, "before"), (12, "after")])
def test_a_write_outside_an_array_is_found(offset: int, where: str) -> None:
    x = None

    def write() -> None:
        nonlocal x  # still alive when the context ends
        x = memory.empty((3,), FLOAT32)
        at(x, offset).value = 1.0

    with pytest.raises(guards.MemoryFault, match=f"{where} an array of 12 bytes"), guards.guarded():
        write()


def test_a_write_into_a_dead_array_is_found() -> None:
    def write() -> None:
        x = memory.empty((3,), FLOAT32)
        place = at(x, 0)
        del x
        place.value = 1.0

    with pytest.raises(guards.MemoryFault, match="after its array had died"), guards.guarded():
        write()


def test_a_write_into_the_pool_is_found() -> None:
    """A free block that is still written will belong to another array."""
    size = tuning.MIN_POOLED_BYTES // 4

    def write() -> None:
        x = memory.empty((size,), FLOAT32)
        place = at(x, 400)
        del x
        guards.check()  # returns the block
        place.value = 1.0
        assert np.isnan(memory.empty((size,), FLOAT32)).all()

    with pytest.raises(guards.MemoryFault, match="was written in the pool"), guards.guarded():
        write()


@pytest.mark.parametrize("make", [lambda: np.empty(3, np.float32), lambda: np.empty((3, 1), dtype="f4")])
def test_np_empty_is_guarded_too(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    code = make.__code__
    with guards.guarded():
        numpy = vars(reduce)["np"]
        assert numpy is not np
        x = FunctionType(code, {"np": numpy})()
        assert x.size == 3
        assert np.isnan(x).all()
        at(x, 12).value = 1.0
        with pytest.raises(guards.MemoryFault, match="after an array of 12 bytes"):
            guards.check()
    assert vars(reduce)["np"] is np


@needs_kernels
def test_concurrent_replays_find_nan_in_the_arena() -> None:
    """The arena is filled under the native program's lock; after the context the original kernel is back."""
    function, x = captured()
    with guards.guarded():
        expected = function(x).numpy()
        (one,) = guards._filled
        found: list[Any] = []
        workers = [Thread(target=lambda: found.extend(function(x).numpy() for _ in range(20))) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert len(found) == 80
        assert all(y.tobytes() == expected.tobytes() for y in found)
    assert not isinstance(one._run, guards._Filled)


def test_arrays_begin_as_nan_and_views_keep_them() -> None:
    """Also large arrays, which come from the pool without guards."""
    with guards.guarded():
        for shape in ((3,), (1 << 17,), (0, 2)):
            x = memory.empty(shape, FLOAT32)
            assert np.isnan(x).all()
            part = x[1:]
            x[...] = 2.0
            del x
            assert (part == 2.0).all()


def captured(n: int = 2) -> tuple[Any, Any]:
    function = bb.capture(lambda x: bb.tanh(x * 2.0 + 1.0) * x - 3.0, state=False, on_fallback="error")
    x = bb.asarray(np.arange(5, dtype=np.float32), backend="capture(numpy)")
    for _ in range(n):
        function(x)
    return function, x


@needs_kernels
def test_written_operands_of_a_native_program_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    function, x = captured()
    original = NativeProgram.__call__

    def writing(self: Any, *given: Any) -> Any:
        given[0][...] = 1.0
        return original(self, *given)

    monkeypatch.setattr(NativeProgram, "__call__", writing)
    words = r"native program of sub.*an operand \(float32\[5\]\)"
    with pytest.raises(guards.MemoryFault, match=words), guards.guarded():
        function(x)


@needs_kernels
def test_operands_must_have_the_recorded_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """If an operation returned a smaller array in a replay, the native program would read past its end."""
    function, x = captured()
    with guards.guarded(), monkeypatch.context() as patch:
        guarded: Any = NativeProgram.__call__
        patch.setattr(NativeProgram, "__call__", lambda self, *given: guarded(self, given[0][:4], *given[1:]))
        with pytest.raises(guards.MemoryFault, match=r"it is given float32\[4\], and float32\[5\] was recorded"):
            function(x)


@needs_kernels
def test_a_native_program_that_writes_nothing_returns_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    function, x = captured()
    with guards.guarded():
        expected = function(x).numpy()
        for one in native_program._PROGRAMS:
            monkeypatch.setattr(one, "_run", lambda *_: None)
        assert np.isnan(function(x).numpy()).all()
    assert not np.isnan(expected).any()


def test_nothing_is_found_in_a_training_step() -> None:
    def step(state: Any, x: Any) -> Any:
        model, optimizer = state
        loss = (model(x) ** 2.0).mean()
        optimizer.step(model, loss.backward())
        return state, loss

    losses = []
    for guard in (False, True):
        bb.random.seed(0)
        with bb.use_backend("autodiff(capture(numpy))"):
            state: Any = nn.Sequential(nn.Linear(4, 70), nn.ReLU(), nn.Linear(70, 2)), bb.optim.Adam(0.05)
            x = bb.random.normal((16, 4))
        train = bb.capture(step, on_fallback="error")
        found = []
        for _ in range(5):
            if guard:
                with guards.guarded():
                    state, loss = train(state, x)
            else:
                state, loss = train(state, x)
            found.append(loss.item())
        losses.append(found)
    assert losses[0] == losses[1]
