"""Recorded steps on the CuPy backend, on the stand-in, whose recordings compute nothing until they are replayed."""

from __future__ import annotations

import gc
import itertools
import math
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.backends.cupy.stand_in import compiled
from tests.transforms import test_capture
from tests.transforms.test_capture import OPTIMIZERS, counting, losses

import backburn as bb
from backburn import nn, optim
from backburn.autodiff import Autodiff
from backburn.backend.host_numbers import RECORDING_STEP, Recording, ReplayedFloat
from backburn.backend.registry import load_backend
from backburn.base import dtypes
from backburn.base.contexts import scoped
from backburn.base.errors import BackendMismatchError, CaptureError, DeviceError, OutOfRangeError
from backburn.nn import functional
from backburn.transforms import CaptureWarning

pytestmark = pytest.mark.skipif(compiled.COMPILER is None, reason="running the kernels needs g++")

CUPY = "autodiff(cupy)"


@pytest.fixture
def k(cupy: Any) -> Any:
    return load_backend("cupy")


def nothing_is_left(cupy: Any, k: Any) -> None:
    """Check that no recording is active, and that the backend works as before."""
    assert cupy.Tape.calls is None
    assert not cupy.cuda.Stream._current
    assert not cupy._device.ALLOCATORS
    assert not set(vars(k)) & {"add", "mul", "matmul"}
    assert RECORDING_STEP.get() is None
    assert not k.faults.pending
    one = k.ones((2, 2), dtypes.float32)
    assert k.to_numpy(k.matmul(one, k.add(one, one))).tolist() == [[4.0, 4.0], [4.0, 4.0]]


# ---- replays equal the step ----


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_replayed_training_step_gives_the_same_results(cupy: Any, k: Any, name: str, dropout: float) -> None:
    plain, (model, optimizer), _ = losses(CUPY, OPTIMIZERS[name], lambda f: f, dropout)
    replayed, (other, other_optimizer), step = losses(CUPY, OPTIMIZERS[name], bb.capture, dropout)
    assert step.reason == ""
    assert step.launches > 10
    np.testing.assert_array_equal(plain, replayed)
    for path, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), other.state_dict()[path].numpy())
    assert other_optimizer.steps == optimizer.steps == 7
    host, _, _ = losses("autodiff(numpy)", OPTIMIZERS[name], lambda f: f, dropout)
    np.testing.assert_allclose(replayed, host, rtol=2e-3)
    nothing_is_left(cupy, k)


def train(backend: str, captured: bool) -> tuple[list[float], Any]:
    """The losses of a few steps with dropout, a norm, and Adam with a schedule; and the step."""

    def step(state: Any, x: Any, y: Any) -> Any:
        model, optimizer = state
        loss = functional.cross_entropy(model(x), y)
        optimizer.step(model, loss.backward())
        return state, loss

    run = bb.capture(step, on_fallback="error") if captured else step
    with bb.use_backend(backend):
        bb.random.seed(5)
        model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 3))
        state = (model, optim.Adam(lambda count: 0.1 / (1 + count % 3)))
        x, found = bb.random.normal((20, 6)), []
        y = bb.argmax(x[:, :3], axis=1)
        for _ in range(7):
            state, loss = run(state, x, y)
            found.append(float(loss))
    return found, run


@pytest.mark.parametrize("options", ["", ":0(float_dtype=bfloat16)", ":0(deterministic=true)", ":0(allow_tf32=true)"])
def test_a_recorded_step_learns_like_an_unrecorded_one(cupy: Any, k: Any, options: str) -> None:
    found, run = train(f"autodiff(cupy{options})", captured=True)
    assert run.reason == ""
    assert found == train(f"autodiff(cupy{options})", captured=False)[0]
    nothing_is_left(cupy, k)


SCENARIOS: list[Callable[[], None]] = [
    test_capture.test_a_replay_makes_no_call_of_the_step,
    test_capture.test_outputs_outlive_the_next_replay,
    test_capture.test_a_new_state_replaces_the_last_one,
    test_capture.test_each_shape_is_recorded_separately,
    test_capture.test_tied_weights_stay_tied,
    test_capture.test_changing_numbers_in_the_state_prevent_recording,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda f: f.__name__)
def test_scenarios_of_recording_backends(
    cupy: Any, k: Any, scenario: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_capture, "RECORDING", CUPY)
    scenario()
    nothing_is_left(cupy, k)


@pytest.mark.parametrize("how", ["another is left out", "others are loaded"])
def test_each_parameter_continues_from_its_own_step_count(cupy: Any, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_capture, "RECORDING", CUPY)
    test_capture.test_each_parameter_continues_from_its_own_step_count(how)


def test_parts_of_the_state_may_be_swapped(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_capture, "RECORDING", CUPY)
    test_capture.test_parts_of_the_state_may_be_swapped(lambda a, b: (bb.flip(b), bb.flip(a)))


def test_the_state_is_used_up(cupy: Any) -> None:
    test_capture.test_the_state_is_used_up_on_every_backend(CUPY)


def recorded(k: Any, program: Any, state: Any, inputs: Any) -> tuple[Any, Recording]:
    """Record a program as ``bb.capture`` does."""
    recording = Recording()
    token = RECORDING_STEP.set(recording)
    try:
        made = k.capture(lambda s, i: program(recording, s, i), state, inputs)
    finally:
        RECORDING_STEP.reset(token)
    return made, recording


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_numbers_with_arrays_are_read_from_the_device(k: Any, dtype: str) -> None:
    rates = iter([0.5, 0.25, 3.0, 1 / 3])

    def program(recording: Recording, state: Any, inputs: Any) -> Any:
        rate = recording.number(lambda: next(rates))
        assert type(rate) is ReplayedFloat
        return [k.sub(state[0], k.mul(inputs[0], rate))], [k.where(k.less(inputs[0], rate), rate, inputs[0])]

    wanted = dtypes.as_dtype(dtype)
    state, x = k.full((3,), 2.0, wanted), k.astype(k.from_numpy(np.array([0.3, 1.0, 7.0])), wanted)
    made, recording = recorded(k, program, [state], [x])
    assert recording.unbound == 0
    made.set_state(0, state)
    for rate in (0.25, 3.0, 1 / 3):
        expected = k.sub(made.state[0].copy(), k.mul(x, rate))
        (out,) = made([x], recording.advance())
        np.testing.assert_array_equal(k.to_numpy(k.equal(made.state[0], expected)), True)
        np.testing.assert_array_equal(k.to_numpy(k.equal(out, k.where(k.less(x, rate), rate, x))), True)


def test_integers_with_arrays(k: Any) -> None:
    counts = iter([1, 2, 2**40])

    def program(recording: Recording, state: Any, inputs: Any) -> Any:
        return [k.add(state[0], recording.number(lambda: next(counts)))], []

    state = k.zeros((2,), dtypes.int64)
    made, recording = recorded(k, program, [state], [])
    made.set_state(0, state)
    for _ in range(2):
        made([], recording.advance())
    assert k.to_numpy(made.state[0]).tolist() == [2 + 2**40] * 2


def test_more_replays_than_the_host_may_be_ahead(k: Any) -> None:
    from backburn_cupy import capture

    count = iter(range(100))

    def program(recording: Recording, state: Any, inputs: Any) -> Any:
        return [k.add(state[0], recording.number(lambda: float(next(count))))], []

    made, recording = recorded(k, program, [k.zeros((), dtypes.float32)], [])
    made.set_state(0, k.zeros((), dtypes.float32))
    for _ in range(3 * capture.AHEAD):
        made([], recording.advance())
    assert k.to_numpy(made.state[0]) == sum(range(1, 3 * capture.AHEAD + 1))


def test_replays_on_other_streams_wait_for_earlier_ones(k: Any, cupy: Any) -> None:
    """All replays, also of different recordings, read their numbers from one buffer on the device."""
    from cupy._device import WAITS

    first, second = (bb.capture(lambda state, by=by: (state * by, state), on_fallback="error") for by in (2.0, 3.0))
    with bb.use_backend("autodiff(cupy)"):
        states = [first(bb.ones(3))[0], second(bb.ones(3))[0]]  # recorded
        states = [first(states[0])[0], second(states[1])[0]]
        WAITS.clear()
        here, there = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        for stream in (here, here, there, here):
            with stream:
                states = [run(state)[0] for run, state in zip((first, second), states, strict=True)]
        assert [(here.ptr, 0), (there.ptr, here.ptr), (here.ptr, there.ptr)] == WAITS
        assert [state.numpy().tolist() for state in states] == [[64.0] * 3, [729.0] * 3]


def test_states_that_are_exchanged(k: Any) -> None:
    """The new state consists of the old state's arrays in another order, and of views of them."""
    first, second = (k.from_numpy(v) for v in (np.arange(4.0), np.arange(4.0) + 10))

    def program(_: Recording, state: Any, inputs: Any) -> Any:
        a, b = state
        return [b, k.flip(a, (0,))], [a, inputs[0]]

    made, _ = recorded(k, program, [first, second], [k.ones((2,), dtypes.float64)])
    a, b = np.arange(4.0), np.arange(4.0) + 10
    for place, x in enumerate((first, second)):
        made.set_state(place, x)
    for value in (3.0, 4.0):
        out, given = made([k.full((2,), value, dtypes.float64)], [])
        assert k.to_numpy(out).tolist() == a.tolist()
        assert k.to_numpy(given).tolist() == [value] * 2
        a, b = b, a[::-1].copy()
        assert [k.to_numpy(x).tolist() for x in made.state] == [a.tolist(), b.tolist()]


@pytest.mark.parametrize("tracked", [False, True])
def test_outputs_do_not_share_memory_with_another_recording_s_state(k: Any, tracked: bool) -> None:
    """An unrecorded step gets state in memory that the first recording overwrites."""

    def step(state: Any, x: Any, kind: str) -> Any:
        weight = state[0].inner() if tracked else state[0]
        new = weight * 0.9 + bb.tanh(x)
        return [bb.from_inner(new, backend=Autodiff(k)).require_grad() if tracked else new], bb.reshape(weight, ())

    captured = bb.capture(step)
    start = bb.asarray([3.0], backend=Autodiff(k) if tracked else k)
    state: Any = [start.require_grad() if tracked else start]
    wanted, held = 3.0, []
    for i, kind in enumerate("aaabbbaba"):
        state, out = captured(state, bb.asarray([0.1 * i], backend=k), kind)
        held.append((out, wanted))
        wanted = wanted * 0.9 + math.tanh(0.1 * i)
        assert all(abs(float(x) - value) < 1e-5 for x, value in held)

    def fails(state: Any, x: Any, kind: str) -> Any:
        raise KeyError(kind)

    captured._step = fails
    with pytest.raises(KeyError):
        captured(state, bb.asarray([0.0], backend=k), "c")
    assert abs(float((state[0].inner() if tracked else state[0])[0]) - wanted) < 1e-5


def test_state_updated_in_place_is_not_copied(k: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run, copied = k.runner.run, list[int]()

    def running(family: str, kernel: str, grid: int, block: int, *arguments: Any) -> None:
        copied.extend(arguments[0].view(np.int64)[:1].tolist() if kernel.startswith("copy_tensors") else [])
        run(family, kernel, grid, block, *arguments)

    monkeypatch.setattr(k.runner, "run", running)
    for donate in (True, False):

        def program(_: Recording, state: Any, inputs: Any, donate: bool = donate) -> Any:
            return list(k.adam_step(state[0], inputs[0], *state[1:], donate=donate)), []

        recorded(k, program, [k.ones((3,), dtypes.float32) for _ in range(3)], [k.ones((3,), dtypes.float32)])
    assert copied == [2]  # the moments that were not donated: parameters are updated in place


def _distance(state: Any, loss: Any) -> Any:
    """How far the step moved."""
    model, optimizer = state
    before = model.weight.detach()
    optimizer.step(model, loss.backward())
    return state, (loss, (model.weight.detach() - before).square().sum())


def _before(state: Any, loss: Any) -> Any:
    """The parameter before the step."""
    model, optimizer = state
    before = model.weight.T.detach()
    optimizer.step(model, loss.backward())
    return state, (loss, before)


def _again(state: Any, loss: Any) -> Any:
    """The new parameter, transposed and reduced."""
    model, optimizer = state
    optimizer.step(model, loss.backward())
    return state, (model.weight.T.detach(), model.weight.T.square().sum().detach())


def _behind(state: Any, loss: Any) -> Any:
    """A copy of the parameter that is one step behind."""
    model, optimizer, old = state
    old["weight"] = model.weight.detach()
    optimizer.step(model, loss.backward())
    return state, (loss, old["weight"])


@pytest.mark.parametrize(("step", "recordings"), [(_distance, 2), (_before, 2), (_again, 1), (_behind, 2)])
@pytest.mark.parametrize("make", [optim.Adam, lambda: optim.SGD(0.1, 0.9)])
def test_parameters_are_overwritten_unless_they_are_read_again(
    cupy: Any, k: Any, step: Any, recordings: int, make: Any
) -> None:
    begun: list[bool] = []

    def run(by: Callable[[Any], Any], backend: str) -> list[Any]:
        def whole(state: Any, x: Any) -> Any:
            if (recording := RECORDING_STEP.get()) is not None:
                begun.append(recording.overwrites)
            return step(state, state[0](x).square().mean())

        found, captured = [], by(whole)
        with bb.use_backend(backend):
            bb.random.seed(1)
            model, x = nn.Linear(4, 3), bb.random.normal((5, 4))
            state = (model, make(), *([{"weight": bb.zeros((4, 3))}] if step is _behind else []))
            for _ in range(5):
                state, out = captured(state, x)
                found += [value.numpy() for value in (*out, model.weight)]
        return found

    plain = run(lambda f: f, CUPY)
    for got, expected in zip(run(lambda f: bb.capture(f, on_fallback="error"), CUPY), plain, strict=True):
        np.testing.assert_array_equal(got, expected)
    assert begun == [True, False][:recordings]
    nothing_is_left(cupy, k)


@pytest.mark.parametrize("make", [lambda: optim.SGD(0.1), lambda: optim.SGD(0.1, 0.9), optim.Adam, optim.AdamW])
def test_an_optimizer_launches_once_for_each_dtype(k: Any, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run, launched = k.runner.run, []

    def running(family: str, kernel: str, *arguments: Any) -> None:
        launched.append(kernel) if family == "optimizer_steps" else None
        run(family, kernel, *arguments)

    monkeypatch.setattr(k.runner, "run", running)
    dtypes_of = ["float32"] * 5 + ["float64"] * 3
    model = [bb.ones((i + 1, 3), dtype=d, backend=CUPY).require_grad() for i, d in enumerate(dtypes_of)]
    optimizer = make()
    for _ in range(3):
        total: Any = sum((x * x).sum().astype("float64") for x in model)
        optimizer.step(model, total.backward())
        kernel = launched[0].partition("<")[0]
        assert [name.partition(",")[0] for name in launched] == [f"{kernel}<float", f"{kernel}<double"]
        launched.clear()
    halves = [bb.ones((i + 1,), dtype="float16", backend=CUPY).require_grad() for i in range(4)]
    total = sum((x * x).sum() for x in halves)
    make().step(halves, total.backward())
    assert len(launched) == 1


def test_the_new_state_takes_one_launch_for_each_dtype(k: Any) -> None:
    def program(_: Recording, state: Any, inputs: Any) -> Any:
        first, second, third, views, count = state
        # Two change places, one is a view of another, one is not contiguous, and one is not a float.
        return [k.mul(second, 2.0), first, k.reshape(third, (2, 3)), k.permute_dims(views, (1, 0)), k.add(count, 1)], []

    shapes = [(3,), (3,), (2, 3), (4, 4)]
    state = [k.from_numpy(np.arange(np.prod(s), dtype=np.float32).reshape(s) + i) for i, s in enumerate(shapes)]
    made, _ = recorded(k, program, [*state, k.from_numpy(np.array([5]))], [])
    copies = [name for name in k.runner._functions if name.startswith("copy_tensors<float,")]
    assert len(copies) == 1
    first, second, views = (x.get() for x in (state[0], state[1], state[3]))
    for _ in range(2):
        made([], [])
        first, second, views = second * 2, first, views.T
    for x, expected in zip(made.state, (first, second, state[2].get(), views, [7]), strict=True):
        np.testing.assert_array_equal(x.get(), expected)


def test_launches_are_those_of_cuda_s_graph(k: Any, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def program(_: Recording, state: Any, inputs: Any) -> Any:
        return [k.add(k.mul(state[0], 2.0), 1.0)], []

    x = k.ones((2,), dtypes.float32)
    assert recorded(k, program, [x], [])[0].launches == 3  # including the copy to the state

    def fail(self: Any, flags: int = 0) -> str:
        raise RuntimeError("cudaErrorNotSupported")

    monkeypatch.setattr(cupy.cuda.Graph, "debug_dot_str", fail)
    assert recorded(k, program, [x], [])[0].launches == 2  # without the copy


def test_recorded_memory_is_counted_and_freed(k: Any, cupy: Any) -> None:
    gc.collect()  # garbage of other tests
    freed = cupy.cuda.MemoryPool.FREED
    freed.clear()  # ids of freed pools may be reused
    before = k.memory_stats()
    made, _ = recorded(k, lambda _, state, __: (state, []), [k.ones((2,), dtypes.float32)], [])
    after = k.memory_stats()
    assert after["used"] - before["used"] == after["held"] - before["held"] == made.held > 0
    gone, pool = weakref.ref(made), id(made._pool)
    assert pool not in freed  # the graph may use its free blocks
    del made
    gc.collect()
    assert gone() is None
    assert pool in freed
    assert k.memory_stats() == before


def test_recordings_dropped_during_a_recording_are_freed_afterwards(k: Any, cupy: Any) -> None:
    x = k.ones((3,), dtypes.float32)
    forgotten = [k.capture(lambda state, inputs: (state, [k.add(inputs[0], 1.0)]), [], [x])]
    freed, meanwhile = len(cupy._device.Pool.FREED), len(cupy._device.Pool.FREED_MEANWHILE)

    def program(state: list[Any], inputs: list[Any]) -> tuple[list[Any], list[Any]]:
        forgotten.clear()
        return state, [k.add(inputs[0], 2.0)]

    replay = k.capture(program, [], [x])
    assert len(cupy._device.Pool.FREED_MEANWHILE) == meanwhile
    assert k.to_numpy(replay([x], [])[0]).tolist() == [3.0] * 3
    del replay
    assert len(cupy._device.Pool.FREED) >= freed + 2


def test_a_recording_keeps_external_memory_alive(k: Any) -> None:
    table, x, made = k.ones((3,), dtypes.float32), k.zeros((3,), dtypes.float32), []

    def program(_: Recording, state: Any, inputs: Any) -> Any:
        made.append(k.concat([state[0], table], 0))
        made.append(k.mul(made[0], made[0]))
        return [k.slice(made[1], (slice(0, 3, 1),))], []

    replay, _ = recorded(k, program, [x], [])
    kept = {memory.ptr for memory in replay._kept.values()}
    assert table.data.mem.ptr in kept
    assert not kept & {x.data.mem.ptr for x in made}
    other, _ = recorded(k, lambda _, s, i: (s, [k.fuse(lambda k, x: k.tanh(k.add(x, x)), table)]), [], [])
    assert table.data.mem.ptr in {memory.ptr for memory in other._kept.values()}
    replay, _ = recorded(k, lambda *_: ([table], []), [x], [])
    assert table.data.mem.ptr in {memory.ptr for memory in replay._kept.values()}


def test_a_recording_keeps_plans_of_fourier_transforms_alive(cupy: Any, k: Any) -> None:
    """CuPy keeps only the last sixteen plans."""
    x = k.ones((3, 8), dtypes.float32)

    def program(_: Recording, state: Any, inputs: Any) -> Any:
        return [], [k.irfft(*k.rfft(inputs[0], 1), 8, 1)]

    program(Recording(), [], [x])
    replay, _ = recorded(k, program, [], [x])
    assert k.to_numpy(replay([x], [])[0]).tolist() == [[1.0] * 8] * 3
    gone = weakref.ref(cupy.fft.config.get_plan_cache()[-1][1].plan)
    for n in range(20, 40):
        k.rfft(k.ones((n,), dtypes.float32), 0)
    assert gone() is not None
    del replay
    gc.collect()
    assert gone() is None
    with pytest.raises(CaptureError, match="no plan for one of its Fourier transforms, of 8 elements"):
        recorded(k, program, [], [x])
    nothing_is_left(cupy, k)


def test_only_one_thread_records_at_a_time(cupy: Any, k: Any) -> None:
    x, made, rates = k.full((3,), 2.0, dtypes.float32), {}, iter([0.5, 0.25, 0.5, 0.25])

    def record(name: str, meanwhile: Callable[[], None]) -> None:
        def program(recording: Recording, state: Any, inputs: Any) -> Any:
            meanwhile()
            return [k.mul(state[0], recording.number(lambda: next(rates)))], []

        made[name] = recorded(k, program, [x], [])

    other = threading.Thread(target=record, args=("other", lambda: None))

    def begin_other() -> None:
        other.start()
        other.join(0.05)

    record("one", begin_other)
    other.join()
    for replay, recording in (made["one"], made["other"]):
        assert recording.unbound == 0
        replay.set_state(0, x)
        replay([], recording.advance())
    assert [k.to_numpy(made[name][0].state[0]).tolist() for name in ("one", "other")] == [[1.0] * 3, [0.5] * 3]
    nothing_is_left(cupy, k)


def test_scattering_a_number_does_not_use_the_host(k: Any) -> None:
    x, places = k.zeros((3, 2), dtypes.float32), k.from_numpy(np.array([[0, 1], [0, 1]]))

    def program(state: list[Any], inputs: list[Any]) -> tuple[list[Any], list[Any]]:
        return state, [k.scatter(inputs[0], inputs[1], 2.5, 0, "add"), k.scatter(inputs[0], inputs[1], 1e300, 0)]

    with scoped(RECORDING_STEP, Recording()):
        added, assigned = k.capture(program, [], [x, places])([x, places], [])
    assert k.to_numpy(added).tolist() == [[5.0, 0.0], [0.0, 5.0], [0.0, 0.0]]
    assert k.to_numpy(assigned).tolist() == [[np.inf, 0.0], [0.0, np.inf], [0.0, 0.0]]


def test_joining_many_arrays_does_not_use_the_host(k: Any) -> None:
    """CuPy copies the addresses of more than eight arrays from the host, which a recording must not."""
    arrays = [k.full((2, i % 3), float(i), dtypes.float32) for i in range(12)]
    rows = [k.full((2,), float(i), dtypes.float32) for i in range(12)]

    def program(state: list[Any], inputs: list[Any]) -> tuple[list[Any], list[Any]]:
        return state, [k.concat(inputs[:12], 1), k.stack(inputs[12:], 1)]

    with scoped(RECORDING_STEP, Recording()):
        replay = k.capture(program, [], [*arrays, *rows])
    joined, stacked = replay([*arrays, *rows], [])
    np.testing.assert_array_equal(k.to_numpy(joined), k.to_numpy(k.concat(arrays, 1)))
    np.testing.assert_array_equal(k.to_numpy(stacked), [list(map(float, range(12)))] * 2)


def test_a_recording_frees_no_memory_that_its_graph_may_use(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy's pools free blocks when CUDA reports that memory is exhausted."""
    from backburn_cupy.capture import allocate

    free, words = [0], "cudaErrorMemoryAllocation: out of memory"

    class Memory:
        def __init__(self, size: int) -> None:
            if size > free[0]:
                raise cupy.cuda.runtime.CUDARuntimeError(words)
            self.size = size

    class Pool:
        def free_all_blocks(self) -> None:
            free[0] += 100

    monkeypatch.setattr(cupy.cuda, "Memory", Memory)
    monkeypatch.setattr(cupy, "get_default_memory_pool", Pool)
    assert allocate(100).mem.size == 100
    with pytest.raises(MemoryError, match="1000 bytes cannot be allocated for a recording") as caught:
        allocate(1000)
    assert not isinstance(caught.value, RuntimeError)
    words = "cudaErrorIllegalAddress: an illegal memory access was encountered"
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="IllegalAddress"):
        allocate(1000)


# ---- what is not recorded ----

CLOCK = itertools.count()
READS = {
    "item": (lambda x: x.item(), "to_numpy reads values on the host"),
    "truth": (lambda x: bool(x > 0.0), "to_numpy reads values on the host"),
    "nonzero": (lambda x: bb.nonzero(x.reshape(1)), "nonzero reads values on the host"),
    "host": (lambda x: x + bb.asarray(0.0 * next(CLOCK) + next(CLOCK), backend=CUPY), "from_numpy copies values from"),
    "large": (lambda x: bb.asarray(np.ones((1 << 18) + 1, np.float32), backend=CUPY), r"host (float32[262145])"),
    "library": (
        lambda x: bb.linalg.qr(bb.ones((2, 2), backend=CUPY) + x)[0], "qr calls a library in a way that cannot be"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READS)
def test_a_step_that_cannot_be_recorded_runs_unrecorded_and_says_why(cupy: Any, k: Any, name: str) -> None:
    read, words = READS[name]
    results = []
    for wrap in (lambda f: f, bb.capture):
        state = ({"w": bb.asarray([0.0], backend=CUPY).require_grad()}, optim.Adam(0.1))
        step = wrap(counting(read))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(4):
                state, _ = step(state, bb.asarray([1.0], backend=CUPY))
        results.append((state[0]["w"].tolist(), state[1].steps))
    assert [w.category for w in caught] == [CaptureWarning]
    assert words in step.reason
    assert results[0] == results[1]
    nothing_is_left(cupy, k)


CONSTANTS = {
    "number": lambda x: x * bb.asarray(2.0, backend=CUPY),
    "list": lambda x: x * bb.asarray([1.0, 2.0, 1.0], backend=CUPY),
    "array": lambda x: x + bb.asarray(np.arange(3, dtype=np.float32), backend=CUPY),
    "the same twice": lambda x: x + bb.asarray(1.0, backend=CUPY) * bb.asarray(1.0, backend=CUPY),
    "indices": lambda x: x[[2, 0, 1]],
    "places": lambda x: x.at[[0, 2]].multiply(2.0),
    "a state": lambda x: bb.asarray([1.0, 2.0, 3.0], backend=CUPY),
}  # fmt: skip


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_from_the_host_are_recorded(cupy: Any, k: Any, name: str) -> None:
    results = []
    for wrap in (lambda f: f, bb.capture):
        bb.random.seed(0)
        step = wrap(lambda state, x: (CONSTANTS[name](state) + x + bb.random.uniform(3, backend=CUPY), state))
        state = bb.asarray([1.0, 2.0, 3.0], backend=CUPY)
        for number in range(6):
            if number == 4:
                bb.random.default_generator().seed(1)  # recorded again, and may copy the same values again
            state, _ = step(state, bb.asarray(float(number), backend=CUPY))
        results.append(state.tolist())
    assert step.reason == ""
    assert results[0] == results[1]
    nothing_is_left(cupy, k)


@pytest.mark.parametrize("name", READS)
def test_a_step_that_catches_a_refusal_is_not_recorded(cupy: Any, k: Any, name: str) -> None:
    """A replay would repeat the path after the refusal, not the path of a normal call."""
    read, words = READS[name]

    def step(state: Any, x: Any) -> Any:
        try:
            read(x)
        except Exception:
            return state + 100.0, x
        return state + 1.0, x

    captured = bb.capture(step, on_fallback="allow")
    state = bb.asarray([0.0], backend=CUPY)
    for _ in range(4):
        state, _ = captured(state, bb.asarray([1.0], backend=CUPY))
    assert state.tolist() == [4.0]
    assert words in captured.reason
    nothing_is_left(cupy, k)


def test_a_fallback_may_be_an_error(cupy: Any, k: Any) -> None:
    state = ({"w": bb.asarray([0.0], backend=CUPY).require_grad()}, optim.SGD(0.1))
    captured = bb.capture(counting(lambda x: x.item()), on_fallback="error")
    x = bb.asarray([1.0], backend=CUPY)
    state, _ = captured(state, x)
    before = state[0]["w"].tolist()
    with pytest.raises(CaptureError, match=r"to_numpy reads values on the host.*D2H"):
        captured(state, x)
    assert state[0]["w"].tolist() == before
    assert state[1].steps == 1
    nothing_is_left(cupy, k)


def test_rates_computed_in_python_are_found(cupy: Any, k: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from backburn.backend.contract import Backend

    def step(state: Any, x: Any) -> Any:
        model, optimizer = state
        loss = ((x - model["w"]) ** 2.0).sum()
        optimizer.step(model, loss.backward())
        return state, loss

    for name in ("adam_step", "adam_steps"):  # the default bodies compute with the numbers in Python
        monkeypatch.setattr(type(k), name, getattr(Backend, name))
    captured, x = bb.capture(step), bb.asarray([1.0], backend=CUPY)
    state, _ = captured(({"w": bb.asarray([0.0], backend=CUPY).require_grad()}, optim.Adam(0.1)), x)
    with pytest.warns(CaptureWarning, match="went through Python arithmetic"):
        state, _ = captured(state, x)
    state, _ = captured(state, x)
    assert state[1].steps == 3
    nothing_is_left(cupy, k)


def test_errors_raised_by_the_step_are_not_changed(cupy: Any, k: Any) -> None:
    def fail(error: BaseException) -> Any:
        def program(*_: Any) -> Any:
            k.take(k.ones((2,), dtypes.float32), k.arange(0, 3, 1, dtypes.int64), 0)
            raise error

        return program

    x = k.ones((2,), dtypes.float32)
    errors: list[BaseException] = [ValueError("mine"), ImportError("mine"), KeyboardInterrupt()]
    for error in errors:
        with pytest.raises(type(error)) as caught:
            recorded(k, fail(error), [x], [])
        assert caught.value is error
        nothing_is_left(cupy, k)
    with pytest.raises(CaptureError, match="a call of the step reads values on the host"):
        recorded(k, lambda *_: x.get(), [x], [])
    with pytest.raises(CaptureError, match=r"synchronize reads values on the host, or waits.*StreamCaptureUnsupported"):
        recorded(k, lambda *_: k.synchronize(), [x], [])
    with pytest.raises(BackendMismatchError, match="in host memory"):
        recorded(k, lambda *_: k.add(x, np.ones(2)), [x], [])
    nothing_is_left(cupy, k)


def test_debugging_waits_after_each_call(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from backburn_cupy import CupyBackend

    monkeypatch.setenv("BACKBURN_CUPY_DEBUG", "1")
    monkeypatch.setattr(CupyBackend, "_instances", {})
    k = CupyBackend()
    x = k.ones((2,), dtypes.float32)
    with pytest.raises(CaptureError, match="as every operation does with BACKBURN_CUPY_DEBUG=1"):
        recorded(k, lambda _, s, __: ([k.add(s[0], 1.0)], []), [x], [])
    assert "add" in vars(k)  # the wrapper that waits is still installed
    assert k.to_numpy(k.add(x, 1.0)).tolist() == [2.0, 2.0]


def test_a_recording_that_exhausts_memory(cupy: Any, k: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any, **__: Any) -> Any:
        raise cupy.cuda.memory.OutOfMemoryError("Out of memory allocating 1,000 bytes")

    x = k.ones((2,), dtypes.float32)
    with monkeypatch.context() as patch:
        patch.setattr(cupy, "zeros", exhausted)
        with pytest.raises(CaptureError, match="separate memory, and there is not enough: zeros: the memory of"):
            recorded(k, lambda *_: ([k.zeros((2,), dtypes.float32)], []), [x], [])
    nothing_is_left(cupy, k)


def test_quantized_tensors_are_not_recorded(k: Any) -> None:
    x = k.ones((4,), dtypes.float32)
    with pytest.raises(CaptureError, match="quantized"):
        recorded(k, lambda _, s, i: (s, i), [x], [k.quantize(x)])


# ---- errors found on the device ----


def test_an_index_out_of_range_in_a_replay_raises(cupy: Any, k: Any) -> None:
    def step(state: Any, i: Any) -> Any:
        return state + 1.0, bb.take(state, i, axis=0)

    run = bb.capture(step)
    state = bb.ones((3,), backend=CUPY)
    for places in ([0], [1], [2]):
        state, out = run(state, bb.asarray(places, backend=CUPY))
        assert out.tolist() == state.tolist()[:1] or out.shape == (1,)
    state, out = run(state, bb.asarray([5], backend=CUPY))
    with pytest.raises(OutOfRangeError, match="index 5"):
        out.tolist()
    state, out = run(state, bb.asarray([1], backend=CUPY))
    assert out.tolist() == [5.0]
    nothing_is_left(cupy, k)


def test_an_error_from_before_a_recording_still_raises(k: Any) -> None:
    x = k.ones((3,), dtypes.float32)
    k.take(x, k.from_numpy(np.array([7])), 0)
    recorded(k, lambda _, s, __: ([k.add(s[0], 1.0)], []), [x], [])
    with pytest.raises(OutOfRangeError, match="index 7"):
        k.synchronize()


def test_a_replay_after_a_fork_explains_the_failure(cupy: Any, k: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = k.ones((3,), dtypes.float32)
    made, _ = recorded(k, lambda _, s, __: ([k.add(s[0], 1.0)], []), [x], [])

    def fail(self: Any, stream: Any = None) -> None:
        raise cupy.cuda.runtime.CUDARuntimeError("cudaErrorInitializationError: initialization error")

    monkeypatch.setattr(cupy.cuda.Graph, "launch", fail)
    with pytest.raises(DeviceError, match="capture: cudaErrorInitializationError"):
        made([], [])
    monkeypatch.setattr(k, "process", os.getpid() + 1)
    with pytest.raises(DeviceError, match="before this process was forked"):
        made([], [])


def test_derivatives_of_derivatives_and_several_devices(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from backburn_cupy import CupyBackend

    monkeypatch.setattr(CupyBackend, "_instances", {})
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: 2)
    k = CupyBackend()
    backend, guarded = Autodiff(Autodiff(k)), vars(k)["add"]

    def step(w: Any, x: Any) -> Any:
        loss = ((w * x) ** 3.0).sum()
        slope = w.grad(loss.backward())
        return (w.inner() - 0.01 * slope).to(w.backend).require_grad(), slope

    results = []
    for wrap in (lambda f: f, bb.capture):
        w, found = bb.asarray([1.0, -2.0], backend=backend).require_grad(), []
        run = wrap(step)
        for value in (1.0, 2.0, 3.0, 4.0):
            w, slope = run(w, bb.asarray(value, backend=backend))
            found.append(slope.tolist())
        results.append(found)
    assert run.reason == ""
    assert results[0] == results[1]
    assert vars(k)["add"] is guarded


def test_a_recording_on_another_device_frees_its_memory(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of CuPy has a part per device, and frees that of the current device."""
    from backburn_cupy import CupyBackend

    current, released = [0], []
    monkeypatch.setattr(cupy.cuda.Device, "__enter__", lambda self: current.append(self.id))
    monkeypatch.setattr(cupy.cuda.Device, "__exit__", lambda self, *_: current.pop() and None)
    monkeypatch.setattr(CupyBackend, "_instances", {})
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: 2)
    monkeypatch.setattr(cupy.cuda.MemoryPool, "free_all_blocks", lambda self: released.append((id(self), current[-1])))
    k = CupyBackend(1)
    x = k.ones((2,), dtypes.float32)
    monkeypatch.setattr(type(x), "device", cupy.cuda.Device(1), raising=False)
    made, _ = recorded(k, lambda _, s, __: ([k.add(s[0], 1.0)], []), [x], [])
    pool = id(made._pool)
    del made
    gc.collect()
    assert (pool, 1) in released
    assert (pool, 0) not in released
