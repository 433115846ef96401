"""Recorded and replayed steps give the results of plain steps, on every backend."""

from __future__ import annotations

import copy
import dataclasses
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.helpers.kernels import needs_kernels

import backburn as bb
from backburn import nn, optim
from backburn.backend import Backend
from backburn.base.errors import ArgumentError, CaptureError, GraphError
from backburn.decorators import Capture
from backburn.nn import functional
from backburn.programs import executable
from backburn.transforms import CaptureWarning, captured_state, capturing
from backburn_numpy.programs import verifier

RECORDING = "autodiff(capture(numpy))"
#: Replays are bitwise equal to calls one by one.
EXACT = "autodiff(capture(numpy, join=false))"


def batches(n: int, backend: str, seed: int = 0) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(seed)
    made = [(rng.normal(size=(8, 5)).astype(np.float32), rng.integers(0, 3, 8)) for _ in range(n)]
    return [(bb.asarray(x, backend=backend), bb.asarray(y, backend=backend)) for x, y in made]


def model_on(backend: str, dropout: float = 0.0) -> nn.Module:
    bb.random.seed(1)
    model = nn.Sequential(nn.Linear(5, 16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 3))
    return model.to(backend)


def train_step(state: Any, x: Any, y: Any) -> Any:
    model, optimizer = state
    loss = functional.cross_entropy(model(x), y)
    optimizer.step(model, loss.backward())
    return state, loss


OPTIMIZERS = {
    "sgd": lambda: optim.SGD(0.1, momentum=0.9),
    "adam": lambda: optim.Adam(0.01),
    "scheduled": lambda: optim.AdamW(lambda step: 0.05 / (1 + step)),
    "rmsprop": lambda: optim.RMSprop(optim.schedules.Warmup(3, 0.01), momentum=0.9, centered=True),
    "lbfgs": lambda: optim.LBFGS(0.1, history_size=3),
    "amsgrad": lambda: optim.AdamW(optim.schedules.Linear(0.1, 0.01, 5), amsgrad=True),
    "cautious": lambda: optim.AdamW(optim.schedules.Linear(0.1, 0.01, 5), weight_decay=0.1, cautious=True),
    "adadelta": lambda: optim.Adadelta(optim.schedules.Linear(1.0, 0.1, 5)),
    "adamax": lambda: optim.Adamax(optim.schedules.Linear(0.1, 0.01, 5), weight_decay=0.1),
    "nadam": lambda: optim.NAdam(0.01, weight_decay=0.1, decoupled_weight_decay=True),
    "radam": lambda: optim.RAdam(optim.schedules.Linear(0.1, 0.01, 5), (0.9, 0.9), weight_decay=0.1),
    "lion": lambda: optim.Lion(optim.schedules.Linear(0.01, 0.001, 5), weight_decay=0.1),
    "adan": lambda: optim.Adan(optim.schedules.Linear(0.1, 0.01, 5), weight_decay=0.1),
    "adafactor": lambda: optim.Adafactor(optim.schedules.Linear(0.1, 0.01, 5), weight_decay=0.1),
    "muon": lambda: optim.Groups({"*.weight": optim.Muon(optim.schedules.Linear(0.1, 0.01, 5)), "*": optim.SGD(0.1)}),
    "groups": lambda: optim.Groups({"*.bias": optim.SGD(0.01, 0.9), "*": optim.Adagrad(0.1)}),
}


def losses(backend: str, optimizer: Any, wrap: Any, dropout: float = 0.0) -> tuple[list[float], Any, Any]:
    state = (model_on(backend, dropout), optimizer())
    step = wrap(train_step)
    bb.random.seed(5)
    found = []
    for x, y in batches(7, backend):
        state, loss = step(state, x, y)
        found.append(loss.item())
    return found, state, step


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_replayed_training_step_equals_a_plain_one(name: str, dropout: float) -> None:
    plain, (model, optimizer), _ = losses("autodiff(numpy)", OPTIMIZERS[name], lambda f: f, dropout)
    joined, _, _ = losses(RECORDING, OPTIMIZERS[name], bb.capture, dropout)
    np.testing.assert_allclose(joined, plain, rtol=1e-3)
    replayed, (other, other_optimizer), step = losses(EXACT, OPTIMIZERS[name], bb.capture, dropout)
    assert step.reason == ""
    assert repr(step) == "<captured step: replayed>"
    np.testing.assert_array_equal(plain, replayed)
    for path, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), other.state_dict()[path].numpy())
    assert other_optimizer.steps == optimizer.steps == 7
    for path, value in optimizer.state_dict().items():
        np.testing.assert_array_equal(np.asarray(value), np.asarray(other_optimizer.state_dict()[path]))
    assert bb.random.get_state()["offset"] == 7 * 8 * 16 * bool(dropout)


def test_the_rate_of_a_plateau_is_read_at_each_replay() -> None:
    found = []
    for backend, wrap in (("autodiff(numpy)", lambda f: f), (EXACT, bb.capture)):
        rate = optim.schedules.ReduceOnPlateau(0.5, factor=0.5, patience=0)
        state, step = (model_on(backend), optim.Adam(rate)), wrap(train_step)
        for i, (x, y) in enumerate(batches(7, backend)):
            state, loss = step(state, x, y)
            found.append(loss.item())
            rate.observe(float(i))
        assert rate.reductions == 6
    assert found[:7] == found[7:]
    assert step.reason == ""


def test_a_plateau_cannot_observe_inside_a_captured_step() -> None:
    rate = optim.schedules.ReduceOnPlateau(0.5)

    def step(state: Any, x: Any, y: Any) -> Any:
        state, loss = train_step(state, x, y)
        rate.observe(loss)
        return state, loss

    captured, state = bb.capture(step, on_fallback="error"), (model_on(RECORDING), optim.Adam(rate))
    first, second = batches(2, RECORDING)
    state, _ = captured(state, *first)
    with pytest.raises(CaptureError):
        captured(state, *second)


@pytest.mark.parametrize("name", ["lion", "radam", "amsgrad", "cautious"])
def test_steps_of_many_elements_are_replayed(name: str) -> None:
    """NumPy computes such steps in one pass instead of calling operations; that pass is recorded too."""

    def step(state: Any, x: Any) -> Any:
        model, optimizer = state
        loss = bb.silu(model["w"] * x - 1.0).square().sum()
        optimizer.step(model, loss.backward())
        return state, loss

    found = []
    for backend, wrap in (("autodiff(numpy)", lambda f: f), (RECORDING, bb.capture)):
        start = np.linspace(-1.0, 1.0, 20_000, dtype=np.float32)
        state, run = ({"w": bb.asarray(start, backend=backend).require_grad()}, OPTIMIZERS[name]()), wrap(step)
        for factor in (1.0, 0.5, 2.0, 1.0, 3.0):
            state, _ = run(state, bb.asarray(factor, dtype="float32", backend=backend))
        found.append(state[0]["w"].numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_a_replay_makes_no_call_of_the_step() -> None:
    calls = []

    def step(state: Any, x: Any) -> Any:
        calls.append(1)
        return {"w": state["w"] * 0.5 + x}, state["w"].sum()

    captured, state = bb.capture(step), {"w": bb.asarray([1.0, 2.0], backend=RECORDING)}
    sums = []
    for i in range(5):
        state, total = captured(state, bb.asarray(float(i), backend=RECORDING))
        sums.append(total.item())
    assert len(calls) == 2
    w, expected = np.array([1.0, 2.0]), []
    for i in range(5):
        expected.append(w.sum())
        w = w * 0.5 + i
    np.testing.assert_allclose(sums, expected)
    np.testing.assert_allclose(state["w"].numpy(), w)


@pytest.mark.parametrize("backend", ["autodiff(numpy)", RECORDING])
def test_the_state_is_used_up_on_every_backend(backend: str) -> None:
    captured = bb.capture(lambda w, x: (w + x, w.sum()))
    for _ in range(3):
        w = bb.asarray([1.0], backend=backend)
        new, _ = captured(w, bb.asarray(1.0, backend=backend))
        assert new.tolist() == [2.0]
        with pytest.raises(GraphError, match="used up"):
            w + 1.0
        for use in (bb.Tensor.numpy, bb.Tensor.detach, bb.Tensor.inner, copy.deepcopy):
            with pytest.raises(GraphError, match="used up"):
                use(w)
        assert repr(w) == "<a tensor of a state that a captured step has used up>"
        with pytest.raises(GraphError, match="used up"):
            captured(w, bb.asarray(1.0, backend=backend))


def test_outputs_outlive_the_next_replay() -> None:
    captured = bb.capture(lambda w, x: (w + x, (w * 2.0, 7)))
    w = bb.asarray([1.0], backend=RECORDING)
    kept = []
    for _ in range(4):
        w, (double, seven) = captured(w, bb.asarray(1.0, backend=RECORDING))
        kept.append(double)
        assert seven == 7
    assert [x.tolist() for x in kept] == [[2.0], [4.0], [6.0], [8.0]]


def test_a_new_state_replaces_the_last_one() -> None:
    captured, w = bb.capture(lambda w, x: (w + x, None)), bb.asarray([1.0], backend=RECORDING)
    one = bb.asarray(1.0, backend=RECORDING)
    for _ in range(3):
        w, _ = captured(w, one)
    w, _ = captured(bb.asarray([10.0], backend=RECORDING), one)
    assert w.tolist() == [11.0]


@pytest.mark.parametrize("turn", [lambda a, b: (b, a), lambda a, b: (bb.flip(b), bb.flip(a)), lambda a, b: (b, b + a)])
def test_parts_of_the_state_may_be_swapped(turn: Callable[[Any, Any], Any]) -> None:
    def step(state: Any, x: Any) -> Any:
        return (state[0] + x, state[1] * 2.0), None

    results = []
    for run in (step, bb.capture(step, on_fallback="error")):
        with bb.use_backend(RECORDING):
            state = (bb.asarray([1.0, 2.0, 3.0]), bb.asarray([10.0, 20.0, 30.0]))
            for i in range(7):
                state, _ = run(state, bb.ones(3))
                if i >= 3:
                    state = turn(*state)
            results.append([x.tolist() for x in state])
    assert results[0] == results[1]


def test_each_shape_is_recorded_separately() -> None:
    captured = bb.capture(lambda w, x: (w + x.sum(), x.shape[0]))
    w = bb.asarray(0.0, backend=RECORDING)
    reasons = []
    for n in (2, 2, 3, 2, 3, 3):
        w, rows = captured(w, bb.ones((n,), backend=RECORDING))
        assert rows == n
        reasons.append(captured.reason == "")
    assert w.item() == 15.0
    assert reasons == [False, True, False, True, True, True]


def test_equal_numbers_of_other_types_are_other_arguments() -> None:
    captured = bb.capture(lambda w, number: (w + 1.0, bb.full((), number)), on_fallback="error")
    w = bb.asarray(0.0, backend=RECORDING)
    with bb.use_backend(RECORDING):
        for number in (1, 1, 1, 1.0, 1.0, True, -0.0, 0.0, -0.0, 0.0):
            w, out = captured(w, number)
            assert repr(out.item()) == repr(number)
    assert captured.reason == ""


def test_the_number_of_recordings_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capturing, "MAX_RECORDINGS", 3)
    captured = bb.capture(lambda w, number: (w + number, None))
    w = bb.asarray(0.0, backend=RECORDING)
    for number in (0, 1, 2):
        w, _ = captured(w, number)
    for number in (3, 4):
        with pytest.warns(CaptureWarning, match="3 kinds of arguments and states: use tensors") as told:
            w, _ = captured(w, number)
        assert told[0].filename == __file__
    w, _ = captured(w, 2)
    assert captured.reason == "", "the recordings kept are still in use"
    assert w.item() == 12.0


def test_a_captured_step_inside_another_is_a_part_of_it() -> None:
    def step(w: Any, x: Any) -> Any:
        return w * 0.5 + x, w.sum()

    def two(inner: Any) -> Any:
        return lambda w, x: inner(inner(w, x)[0], x)

    results = []
    for run in (two(step), bb.capture(two(bb.capture(step, on_fallback="error")), on_fallback="error")):
        w, found = bb.asarray([1.0, 2.0], backend=RECORDING), []
        for number in range(5):
            w, out = run(w, bb.asarray(float(number), backend=RECORDING))
            found += [w.tolist(), out.item()]
        results.append(found)
    assert results[0] == results[1]
    assert run.reason == ""


def test_tied_weights_stay_tied() -> None:
    shared = bb.asarray([[1.0, 2.0], [3.0, 4.0]], backend=RECORDING).require_grad()
    model = {"in": shared, "out": shared}

    def step(state: Any, x: Any) -> Any:
        model, optimizer = state
        loss = ((x @ model["in"]) @ model["out"].T).sum()
        optimizer.step(model, loss.backward())
        return state, loss

    captured, state = bb.capture(step), (model, optim.SGD(0.01))
    for _ in range(4):
        state, _ = captured(state, bb.ones((1, 2), backend=RECORDING))
    assert captured.reason == ""
    assert state[0]["in"] is state[0]["out"]


# ---- what cannot be recorded ----


def counting(read: Any) -> Any:
    def step(state: Any, x: Any) -> Any:
        model, optimizer = state
        loss = ((x - model["w"]) ** 2.0).sum()
        optimizer.step(model, loss.backward())
        return state, read(loss)

    return step


@pytest.mark.parametrize("read", [lambda x: x.item(), lambda x: bool(x > 0.0), lambda x: bb.nonzero(x.reshape(1))])
def test_a_step_that_reads_values_runs_unrecorded(read: Any) -> None:
    results = []
    for backend in ("autodiff(numpy)", RECORDING):
        state = ({"w": bb.asarray([0.0], backend=backend).require_grad()}, optim.Adam(0.1))
        captured = bb.capture(counting(read))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(5):
                state, _ = captured(state, bb.asarray([1.0], backend=backend))
        results.append((state[0]["w"].numpy(), state[1].steps))
        if backend == RECORDING:
            assert [w.category for w in caught] == [CaptureWarning]
            assert "reads values on the host" in captured.reason
    np.testing.assert_array_equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1] == 5


def test_a_fallback_may_be_an_error() -> None:
    state = ({"w": bb.asarray([0.0], backend=RECORDING).require_grad()}, optim.SGD(0.1))
    captured = bb.capture(counting(lambda x: x.item()), on_fallback="error")
    x = bb.asarray([1.0], backend=RECORDING)
    state, _ = captured(state, x)
    before = state[0]["w"].tolist()
    with pytest.raises(CaptureError, match="reads values"):
        captured(state, x)
    assert state[0]["w"].tolist() == before
    assert state[1].steps == 1


def test_changing_numbers_in_the_state_prevent_recording() -> None:
    def step(state: Any, x: Any) -> Any:
        return {"w": state["w"] + x, "count": state["count"] + 1}, None

    for start in (0, np.zeros(2)):
        captured, state = bb.capture(step), {"w": bb.asarray(0.0, backend=RECORDING), "count": start}
        one = bb.asarray(1.0, backend=RECORDING)
        state, _ = captured(state, one)
        with pytest.warns(CaptureWarning, match="a number in it that is not a tensor changed"):
            state, _ = captured({**state, "count": start}, one)
        state, _ = captured({**state, "count": start}, one)
        assert state["w"].item() == 3.0


def test_rates_in_python_arithmetic_prevent_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("adam_step", "adam_steps"):  # the default bodies compute with the rates in Python
        monkeypatch.setattr(Capture, name, getattr(Backend, name))
    with pytest.warns(CaptureWarning, match="went through Python arithmetic"):
        found, (_, optimizer), _ = losses(RECORDING, OPTIMIZERS["adam"], bb.capture)
    assert optimizer.steps == 7
    np.testing.assert_allclose(found, losses("autodiff(numpy)", OPTIMIZERS["adam"], lambda f: f)[0], rtol=1e-6)


def test_misuse_is_explained() -> None:
    x = bb.asarray([1.0])
    with pytest.raises(ArgumentError, match="takes a function"):
        bb.capture(3)  # type: ignore[call-overload]
    with pytest.raises(ArgumentError, match="on_fallback is"):
        bb.capture(lambda s: (s, s), on_fallback="maybe")  # type: ignore[call-overload]
    with pytest.raises(ArgumentError, match="returns the pair"):
        bb.capture(lambda s: s)(x)
    with pytest.raises(ArgumentError, match="neither the state nor the batch has a tensor"):
        bb.capture(lambda s: (s, s))(3)
    with pytest.raises(ArgumentError, match=r"use bb\.asarray"):
        bb.capture(lambda s, x: (s, x))(x, np.ones(2))


def _numbers(generator: Any = None) -> Any:
    return bb.random.uniform((2,), backend=RECORDING, generator=generator)


def _forked(state: Any) -> Any:
    with bb.random.fork(3):
        return state, _numbers()


def _forked_from_here(state: Any) -> Any:
    with bb.random.fork():
        first = _numbers()
    return state, bb.stack([first, _numbers(), _numbers()])


def _checkpointed(state: Any) -> Any:
    x = (_numbers() + 1.0).require_grad()
    loss = bb.checkpoint(lambda x: x * _numbers())(x).sum()
    return state, x.grad(loss.backward())


def _seeded(state: Any) -> Any:
    bb.random.seed(4)
    return state, _numbers()


@pytest.mark.parametrize("step", [
    _forked, _forked_from_here, _checkpointed, _seeded,
    lambda state: (state, _numbers()),
    lambda state: (state, _numbers(bb.random.Generator(9))),
])  # fmt: skip
def test_a_replayed_step_draws_the_same_numbers_as_a_plain_one(step: Any) -> None:
    def run(step: Any) -> list[Any]:
        bb.random.seed(0)
        state, found = {"a": bb.asarray(1.0, backend=RECORDING)}, []
        for number in range(9):
            if number == 4:
                bb.random.seed(7)
            with bb.random.fork(5) if number == 6 else bb.random.fork(bb.random.default_generator()):
                state, out = step(state)
            found.append(out.tolist())
        return [*found, bb.random.get_state()]

    assert run(bb.capture(step, on_fallback="error")) == run(step)


def test_a_step_in_a_new_fork_is_recorded_once() -> None:
    """Forks with one seed draw the same numbers; a generator that the step names is used in every fork."""
    named, seen = bb.random.Generator(11), []

    def step(state: Any) -> Any:
        seen.append(state)
        return state, bb.stack([_numbers(), _numbers(named), _numbers(bb.random.default_generator())])

    def run(step: Any) -> list[Any]:
        named.seed(11)
        state, found = {"a": bb.asarray(1.0, backend=RECORDING)}, []
        for start in (named, 5, 5, 5, named, {"key": 5, "offset": 7}):
            with bb.random.fork(start) as current:
                state, out = step(state)
                found.append((out.tolist(), current.state()))
        return found

    expected = run(step)
    seen.clear()
    assert run(bb.capture(step, on_fallback="error")) == expected
    assert len(seen) == 4  # once plain, then recorded for the key 5, for 11, and for 5 again


def test_a_generator_without_a_seed_cannot_be_recorded() -> None:
    step = bb.capture(lambda state: (state, _numbers(bb.random.Generator())), on_fallback="error")
    state = {"a": bb.asarray(1.0, backend=RECORDING)}
    state, _ = step(state)
    with pytest.raises(CaptureError, match="without a seed"):
        step(state)


@pytest.mark.parametrize(("make", "options"), [
    (lambda: optim.SGD(0.1, momentum=0.9), {"momentum": 0.1, "weight_decay": 0.5, "nesterov": True}),
    (lambda: optim.Adam(0.1), {"betas": (0.1, 0.2), "eps": 0.5, "weight_decay": 0.5}),
    (lambda: optim.SGD(0.1), {"lr": 0.5}),
    (lambda: optim.SGD(lambda step: 0.1 / (1 + step)), {"steps": 50}),
])  # fmt: skip
def test_options_of_an_optimizer_may_change_between_replays(make: Any, options: dict[str, Any]) -> None:
    def run(step: Any) -> list[float]:
        state, found = (model_on(EXACT), make()), []
        for number, (x, y) in enumerate(batches(7, EXACT)):
            if number == 4:
                vars(state[1]).update(options)
            state, loss = step(state, x, y)
            found.append(loss.item())
        return found

    assert run(bb.capture(train_step, on_fallback="error")) == run(train_step)


@pytest.mark.parametrize("how", ["another is left out", "others are loaded"])
def test_each_parameter_continues_from_its_own_step_count(how: str) -> None:
    """Also if plain steps of a part of the model, or loading a state, come between replays."""

    def run(wrap: Any) -> list[list[float]]:
        def step(state: Any, rate: Any) -> Any:
            model, optimizer = state
            loss: Any = sum((x * x * rate).sum() for x in model.values())
            optimizer.step(model, loss.backward())
            return state, loss

        train, rate, found = wrap(step), bb.asarray(0.5, backend=RECORDING), []
        model = {n: bb.asarray([1.0, -2.0], backend=RECORDING).require_grad() for n in "abc"}
        optimizer = optim.Adam(0.1)
        state, saved = (model, optimizer), {}
        for i in range(9):
            if i == 3:
                saved = {n: x if isinstance(x, int) else x.numpy().copy() for n, x in optimizer.state_dict().items()}
            if i in (4, 6) and how == "another is left out":
                optimizer.step(model, (model["b"] * 3.0).sum().backward())
            if i == 6 and how == "others are loaded":
                optimizer.load_state_dict(saved)
            state, _ = train(state, rate)
            found.append([x for n in "abc" for x in model[n].tolist()])
        found.append([v for n, v in optimizer.state_dict().items() if n.endswith("step")])
        return found

    recorded = []

    def capture(step: Any) -> Any:
        recorded.append(bb.capture(step, on_fallback="error"))
        return recorded[0]

    assert run(capture) == run(lambda f: f)
    assert recorded[0].reason == ""


def test_each_default_dtype_is_recorded_separately() -> None:
    step = bb.capture(lambda state: (state, bb.zeros((2,), backend=RECORDING)), on_fallback="error")
    state = {"a": bb.asarray(1.0, backend=RECORDING)}
    for dtype in ("float32", "float32", "float32", "float64", "float64", "float64", "float32"):
        with bb.use_dtype(dtype):
            state, out = step(state)
        assert out.dtype == dtype


def test_an_output_that_is_a_part_of_the_old_state() -> None:
    step = bb.capture(lambda state, x: ({"a": bb.flip(state["a"]) + x}, state["a"][1:]), on_fallback="error")
    state, found = {"a": bb.asarray([1.0, 2.0, 3.0], backend=RECORDING)}, []
    for number in range(4):
        state, out = step(state, bb.asarray(float(number), backend=RECORDING))
        found.append(out.tolist())
    assert found == [[2.0, 3.0], [2.0, 1.0], [3.0, 4.0], [5.0, 4.0]]


def without_bias(model: Any, optimizer: Any) -> None:
    model[0].bias = (model[0].bias * 0.0).detach().require_grad()


def step_besides(model: Any, optimizer: Any) -> None:
    ((x, y),) = batches(1, model[0].weight.backend.spec)
    train_step((model, optimizer), x, y)


def forget(model: Any, optimizer: Any) -> None:
    memories = optimizer.state_dict()
    optimizer.load_state_dict({k: v if isinstance(v, int) else v * 0.0 for k, v in memories.items()})


INTERVENTIONS: dict[str, Any] = {
    "another parameter": without_bias,
    "no dropout": lambda model, optimizer: model.eval(),
    "a frozen layer": lambda model, optimizer: model.freeze("0.*"),
    "another rate": lambda model, optimizer: setattr(optimizer, "lr", 0.3),
    "what is remembered": forget,
    "a step besides": step_besides,
    "other weights": lambda model, optimizer: model.load_state_dict(
        {path: value * 0.5 for path, value in model.state_dict().items()}
    ),
}


@pytest.mark.parametrize("name", INTERVENTIONS)
def test_changes_between_replays_are_noticed(name: str) -> None:
    """An unchanged state is not traversed again, but a changed one is."""

    def run(backend: str, wrap: Any) -> list[float]:
        model, optimizer = model_on(backend, 0.3), optim.Adam(0.05)
        step, found = wrap(train_step), []
        bb.random.seed(5)
        for i, (x, y) in enumerate(batches(12, backend)):
            if i == 6:
                INTERVENTIONS[name](model, optimizer)
            _, loss = step((model, optimizer), x, y)
            found.append(loss.item())
        return found

    plain = run("autodiff(numpy)", lambda f: f)
    np.testing.assert_array_equal(run(EXACT, bb.capture), plain)
    np.testing.assert_allclose(run(RECORDING, bb.capture), plain, rtol=1e-3)


def test_products_by_one_are_kept_for_bitwise_equal_replays() -> None:
    """Without the product by 1, the gradient would be a strided view, for which ``matmul`` rounds differently."""

    def loss(x: Any) -> Any:
        products = (x @ bb.swapaxes(x, -1, -2)) * 1.0
        return bb.mean(bb.sin(bb.pad(products, [(0, 1), (2, 0), (2, 1)], mode="constant"))) * 2.0

    x = np.random.default_rng(1).normal(size=(4, 8, 1)).astype(np.float32)
    plain = bb.grad(loss)(bb.asarray(x, backend="autodiff(numpy)")).numpy()
    recorded = bb.capture(bb.grad(loss), state=False)
    for _ in range(3):
        np.testing.assert_array_equal(recorded(bb.asarray(x, backend=EXACT)).numpy(), plain)


def test_an_unchanged_state_is_not_traversed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    walks = []
    look = captured_state.State.__init__

    def looking(self: Any, state: Any) -> None:
        walks.append(1)
        look(self, state)

    monkeypatch.setattr(captured_state.State, "__init__", looking)
    step, (model, optimizer) = bb.capture(train_step), (model_on(RECORDING), optim.Adam(0.01))
    counts = []
    for x, y in batches(6, RECORDING):
        step((model, optimizer), x, y)
        counts.append(len(walks))
    assert counts[2:] == [counts[2]] * 4


@dataclasses.dataclass
class Counter:
    value: Any
    step: float = dataclasses.field(default=1.0, metadata={"static": True})


def test_a_changed_static_field_is_noticed() -> None:
    def add(counter: Counter) -> Any:
        counter.value = counter.value + counter.step
        return counter, counter.value * 1.0

    step, counter, found = bb.capture(add), Counter(bb.asarray(0.0, backend=RECORDING)), []
    for i in range(8):
        if i == 5:
            counter.step = 10.0
        counter, out = step(counter)
        found.append(out.item())
    assert found == [1.0, 2.0, 3.0, 4.0, 5.0, 15.0, 25.0, 35.0]
    assert not step.reason


def test_equal_static_fields_of_other_types_are_distinguished() -> None:
    captured = bb.capture(lambda c: (c.value * 2.0, bb.full((), c.step)), state=False, on_fallback="error")
    x, nan = bb.asarray(0.0, backend=RECORDING), float("nan")
    with bb.use_backend(RECORDING):
        for step in (1, 1, 1, True, 1.0, 1.0, -0.0, 0.0, -0.0, nan, float("nan"), float("nan")):
            assert repr(captured(Counter(x, step))[1].item()) == repr(step)
    assert captured.reason == "", "different NaN objects are equal arguments"


def test_copies_of_the_state_are_not_changed_by_replays() -> None:
    model, optimizer = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm(3)).to(RECORDING), optim.Adam(0.1)
    model.register_buffer("count", bb.asarray([1, 2], backend=RECORDING))
    step = bb.capture(train_step)
    (*first, last) = batches(5, RECORDING)
    for x, y in first:
        step((model, optimizer), x, y)
    assert not step.reason
    target = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm(3)).to(RECORDING)
    target.register_buffer("count", bb.asarray([0, 0], backend=RECORDING))
    target.load_state_dict(model.state_dict())

    def kept() -> Any:
        return [
            model.state_dict(),
            copy.deepcopy(model).state_dict(),
            [x.detach() for x in model.parameters()],
            {name: x for name, x in optimizer.state_dict().items() if not isinstance(x, int)},
            target.state_dict(),
        ]

    found = kept()
    before = bb.trees.tree_map(lambda x: x.tolist(), found)
    step((model, optimizer), *last)
    assert bb.trees.tree_map(lambda x: x.tolist(), found) == before
    after = bb.trees.tree_map(lambda x: x.tolist(), kept())
    assert [now != then for now, then in zip(after, before, strict=True)] == [True, True, True, True, False]


@pytest.mark.parametrize("backend", ["autodiff(numpy)", RECORDING])
def test_the_error_for_a_derivative_of_a_captured_step_names_a_workaround(backend: str) -> None:
    def step(w: Any, x: Any) -> Any:
        return w * 2.0, (w * x * x).sum()

    x = bb.asarray([3.0, 4.0], backend=backend)
    captured, w = bb.capture(step), bb.asarray([1.0, 2.0], backend=backend)
    with pytest.raises(ArgumentError, match=r"capture: .* transform around .* take them inside, as in bb\.capture"):
        bb.jvp(lambda x: captured(w, x)[1], (x,), (x,))
    inside = bb.capture(lambda w, x: (w * 1.0, bb.jvp(lambda x: step(w, x)[1], (x,), (x,))[1]), on_fallback="error")
    for _ in range(4):
        w, slope = inside(w, x)
        assert slope.item() == 82.0


def test_containers_that_the_step_replaces_in_the_state_are_renewed() -> None:
    def step(state: Any, x: Any) -> Any:
        state["mean"] = {name: value * 0.5 + x for name, value in state["mean"].items()}
        state["last"] = [state["last"][0] + x, (state["last"][1][0] * 2.0,)]
        state["count"].value = [state["count"].value[0] + 1.0]
        return state, state["mean"]["a"].sum()

    def run(step: Any) -> list[Any]:
        with bb.use_backend(RECORDING):
            state, found = {"mean": {"a": bb.ones(2)}, "last": [bb.ones(()), (bb.ones(()),)]}, []
            state["count"] = Counter([bb.ones(())])  # type: ignore[assignment]
            for number in range(6):
                state, out = step(state, bb.asarray(float(number)))
                found.append((out, state["mean"], state["last"], state["count"].value))
                found[-1] = bb.trees.tree_map(lambda x: x.tolist(), found[-1])
        return found

    captured = bb.capture(step, on_fallback="error")
    assert run(captured) == run(step)
    assert captured.reason == ""


@pytest.mark.parametrize("change", [
    lambda state: state["list"].pop(), lambda state: state["list"].append(1), lambda state: state.pop("more"),
    lambda state: state.update(other=1),
])  # fmt: skip
def test_a_state_is_restored_if_the_step_changes_its_structure(change: Any) -> None:
    def step(state: Any) -> Any:
        state["w"] = state["w"] * 2.0
        if len(calls) == 1:
            change(state)
        calls.append(1)
        return state, None

    calls: list[int] = []
    captured = bb.capture(step, on_fallback="error")
    with bb.use_backend(RECORDING):
        state: Any = {"w": bb.ones(()), "list": [bb.ones(()), bb.ones(())], "more": bb.ones(())}
    captured(state)
    with pytest.raises(CaptureError, match="it has other parts"):
        captured(state)
    assert list(state) == ["w", "list", "more"]
    assert (state["w"].item(), [x.item() for x in state["list"]]) == (2.0, [1.0, 1.0])


# ---- Python calls per replay ----

#: At most so many Python calls in a replay of one linear layer with Adam, and so many more for 15 more layers.
FRAMES, MORE_FRAMES = 60, 10


def frames_of(call: Callable[[], Any]) -> int:
    """Return the number of Python functions that ``call`` calls."""
    seen = []
    sys.setprofile(lambda frame, event, _: seen.append(frame.f_code) if event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(seen) - 1  # without ``call`` itself


def layers_step(state: Any, x: Any, y: Any) -> Any:
    model, optimizer = state
    loss = functional.mse_loss(model(x), y)
    optimizer.step(model, loss.backward())
    return state, loss


@needs_kernels
@pytest.mark.parametrize("optimizer", [
    lambda: optim.Adam(1e-3), lambda: optim.SGD(1e-3), lambda: optim.SGD(1e-3, momentum=0.9),
    lambda: optim.RMSprop(1e-3), lambda: optim.Adagrad(1e-3), lambda: optim.Lion(1e-3),
])  # fmt: skip
def test_the_number_of_python_calls_of_a_replay_hardly_grows_with_layers(
    optimizer: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifier, "VERIFIES", False)
    monkeypatch.setattr(executable, "WATCHERS", [])  # a timeline of another test may still be there
    found = []
    for count in (1, 16):
        with bb.use_backend(RECORDING):
            state = nn.Sequential(*(nn.Linear(8, 8) for _ in range(count))), optimizer()
            x, y = bb.random.normal((8, 8)), bb.random.normal((8, 8))
        captured = bb.capture(layers_step, on_fallback="error")
        for _ in range(3):
            state, _ = captured(state, x, y)
        found.append(frames_of(lambda: captured(state, x, y)))  # noqa: B023 - called at once
    assert found[0] <= FRAMES, found
    assert found[1] <= found[0] + MORE_FRAMES, found


X: Any = bb.ones((8, 8), backend=RECORDING)
KEPT: dict[str, Callable[[Any], Any]] = {
    "a parameter": lambda model: model[0].weight,
    "its method": lambda model: model[0].weight.sum,
    "a weak reference": lambda model: weakref.ref(model[0].weight),
    "its primitive": lambda model: model[0].weight.primitive,
    "its leaf": lambda model: model[0].weight.primitive.node,
    "a loss and its graph": lambda model: functional.mse_loss(model(X), X),
    "gradients": lambda model: functional.mse_loss(model(X), X).backward(),
    "a copy": lambda model: copy.deepcopy(model[0].weight),
    "a list of it": lambda model: [model[0].weight],
}


@pytest.mark.parametrize("name", KEPT)
def test_a_referenced_tensor_is_replaced_by_a_new_one_in_a_replay(name: str) -> None:
    """Without other references, the tensor object is reused with its new value."""
    state: Any = (nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).to(RECORDING), optim.Adam(0.1))
    x, y = X, X * 0.5
    captured = bb.capture(layers_step, on_fallback="error")
    for _ in range(4):
        state, _ = captured(state, x, y)
    first, other = id(state[0][0].weight), id(state[0][1].weight)
    state, _ = captured(state, x, y)
    assert (id(state[0][0].weight), id(state[0][1].weight)) == (first, other)
    kept, before = KEPT[name](state[0]), state[0][0].weight.numpy().copy()
    state, _ = captured(state, x, y)
    weight = state[0][0].weight
    assert (weight.numpy() != before).any()
    assert id(state[0][1].weight) == other or "graph" in name or name == "gradients"
    if name in ("a parameter", "a list of it"):
        with pytest.raises(GraphError, match="used up"):
            bb.trees.flatten(kept)[0][0].sum()
    elif name == "its method":
        with pytest.raises(GraphError, match="used up"):
            kept()
    elif name == "a weak reference":
        assert kept() is None
    elif name == "its primitive":
        np.testing.assert_array_equal(kept.value, before)
    elif name == "its leaf":
        assert kept is not weight.primitive.node
    elif name == "gradients":
        assert weight.grad(kept) is None
    elif name == "a loss and its graph":
        assert weight.grad(kept.backward()) is None
    else:
        np.testing.assert_array_equal(kept.numpy(), before)


def test_an_old_tuple_keeps_its_old_tensors() -> None:
    captured = bb.capture(lambda state, x: ((state[0] + x, [state[1][0] * x]), x * 1.0), on_fallback="error")
    with bb.use_backend(RECORDING):
        state: Any = (bb.zeros(3), [bb.ones(3)])
    for _ in range(5):
        old = state
        state, _ = captured(state, X[0, :3])
        with pytest.raises(GraphError, match="used up"):
            old[0].sum()
    assert state[0].tolist() == [5.0] * 3


def test_a_tensor_in_two_states_is_used_up_in_both() -> None:
    step, other = (bb.capture(lambda s, x: ({"w": s["w"] + x}, x * 1.0), on_fallback="error") for _ in range(2))
    with bb.use_backend(RECORDING):
        state: Any = {"w": bb.zeros(3)}
    for _ in range(4):
        state, _ = step(state, X[0, :3])
    apart: Any = {"w": state["w"]}
    for _ in range(3):
        apart, _ = other(apart, X[0, :3])
    assert apart["w"].tolist() == [7.0] * 3
    with pytest.raises(GraphError, match="used up"):
        step(state, X[0, :3])


def test_two_captured_steps_may_share_a_state() -> None:
    with bb.use_backend(RECORDING):
        state = nn.Sequential(nn.Linear(8, 8)), optim.Adam(0.1)
        plain = copy.deepcopy(state[0]), optim.Adam(0.1)
    steps = [bb.capture(layers_step, on_fallback="error") for _ in range(2)]
    for number in range(16):
        state, loss = steps[number // 3 % 2](state, X, X * 0.5)
        plain, wanted = layers_step(plain, X, X * 0.5)
        np.testing.assert_allclose(loss.numpy(), wanted.numpy(), 1e-4, 1e-6)
    assert [step.reason for step in steps] == ["", ""]


def test_batches_in_containers_are_read_with_few_calls() -> None:
    """Batches of one structure are replayed; other orders of keys, lengths, types and shapes are distinguished."""

    def f(m: Any, pair: Any) -> Any:
        first, *rest = pair
        return {"out": m["w"] * first - next(iter(m.values())) + (rest[0][0] if rest else 0.0)}

    captured = bb.capture(f, state=False, on_fallback="error")
    x, y = bb.asarray([1.0, 2.0], backend=RECORDING), bb.asarray([5.0, 7.0], backend=RECORDING)
    longer = bb.asarray([1.0, 2.0, 3.0], backend=RECORDING)
    batches: list[tuple[Any, Any]] = [
        ({"w": x, "b": y}, (y, [x])), ({"b": y, "w": x}, (y, [x])), ({"w": x, "b": y}, (y,)),
        ({"w": longer, "b": longer}, (longer, [longer])), ({"w": x, "b": y}, [y, [x]]), ({"w": x, "c": y}, (y, [x])),
        ({"w": x, "b": y}, (y, (x,))), ({"w": x, "b": x}, (y, [2.0])), ({"w": x, "b": x}, (y, [3.0])),
    ]  # fmt: skip
    for batch in (*batches, *batches, *batches, *reversed(batches)):
        for _ in range(2):
            assert captured(*batch)["out"].tolist() == f(*batch)["out"].tolist()
    assert captured.reason == ""
    flat = bb.capture(lambda w, b, y, x: f({"w": w, "b": b}, (y, [x])), state=False, on_fallback="error")
    for _ in range(3):
        captured(*batches[0]), flat(x, y, y, x)
    calls = frames_of(lambda: captured(*batches[0])) - frames_of(lambda: flat(x, y, y, x))
    assert calls <= 3, "one call per container"


def test_no_tensor_of_a_batch_is_kept() -> None:
    captured = bb.capture(lambda xs: xs[0] * 2.0 + xs[1], state=False)
    for _ in range(4):
        pair = [bb.asarray([1.0, 2.0], backend=RECORDING), bb.asarray([5.0, 7.0], backend=RECORDING)]
        kept = [weakref.ref(x) for x in pair]
        captured(pair)
        del pair
        assert [x() for x in kept] == [None, None]


def test_products_of_complex_numbers_are_recorded() -> None:
    captured = bb.capture(lambda z: z * 2.0 + z * (1.0 + 2.0j), state=False, on_fallback="error")
    z = bb.asarray(np.array([1.0 + 1.0j, -2.0j], np.complex64), backend="capture(numpy)")
    found = [captured(z) for _ in range(3)][-1]
    np.testing.assert_array_equal(found.numpy(), np.array([1.0 + 5.0j, 4.0 - 6.0j], np.complex64))


def test_a_function_takes_arguments_by_name() -> None:
    def f(x: bb.Tensor, *, scale: float = 1.0, shift: bb.Tensor | None = None) -> bb.Tensor:
        return x * scale if shift is None else x * scale + shift

    captured = bb.capture(f, state=False, on_fallback="error")
    x = bb.asarray([1.0, 2.0], backend="capture(numpy)")
    for n in range(3):
        assert captured(x + n, scale=2.0, shift=x).tolist() == ((x + n) * 2.0 + x).tolist()
    assert repr(captured) == "<captured function: replayed>"
    assert captured.program is not None
    assert captured(x, scale=3.0).tolist() == [3.0, 6.0]  # another scale, and no shift
    for _ in range(3):
        assert captured(x).tolist() == [1.0, 2.0]
    assert captured(x, scale=2.0, shift=x).tolist() == [3.0, 6.0]
    assert repr(captured) == "<captured function: replayed>"
    assert repr(copy.deepcopy(captured)).endswith("since it has not been called>")


@dataclasses.dataclass
class Setting:
    scale: float = 1.0


class Settings:
    """An object of a class that is no tree."""

    def __init__(self) -> None:
        self.scale, self.inner = 1.0, {"scale": [1.0]}


class Scaled(nn.Module):
    """A model with settings in containers and objects."""

    def __init__(self) -> None:
        self.weight = nn.parameter(bb.ones((2,)))
        self.table, self.items, self.data, self.object, self.names = {"scale": 1.0}, [1.0], Setting(), Settings(), {"a"}

    def __call__(self, x: Any) -> Any:
        factors = [self.table["scale"], self.items[0], self.data.scale, self.object.scale]
        for factor in (*factors, self.object.inner["scale"][0], float(len(self.names))):
            x = x * factor
        return x * self.weight


CHANGES: dict[str, Callable[[Any], Any]] = {
    "dict": lambda m: m.table.update(scale=3.0), "list": lambda m: m.items.__setitem__(0, 3.0),
    "dataclass": lambda m: setattr(m.data, "scale", 3.0), "object": lambda m: setattr(m.object, "scale", 3.0),
    "nested": lambda m: m.object.inner["scale"].__setitem__(0, 3.0), "set": lambda m: m.names.update("bc"),
}  # fmt: skip


@pytest.mark.parametrize("is_state", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_settings_that_change_in_place_are_noticed(change: str, is_state: bool) -> None:
    with bb.use_backend(RECORDING):
        model, x = Scaled(), bb.ones((2,))
        if is_state:
            step = bb.capture(lambda model, x: (model, model(x)), on_fallback="error")
            run = lambda: step(model, x)[1]
        else:
            function = bb.capture(lambda model, x: model(x), state=False, on_fallback="error")
            run = lambda: function(model, x)
        assert [run().tolist() for _ in range(4)] == [[1.0, 1.0]] * 4
        CHANGES[change](model)
        assert [run().tolist() for _ in range(4)] == [[3.0, 3.0]] * 4


def test_large_containers_are_not_read_before_each_replay() -> None:
    class Counted(dict[int, int]):
        reads = 0

        def values(self) -> Any:
            Counted.reads += 1
            return super().values()

    x, words = bb.ones((2,), backend=RECORDING), Counted((i, i) for i in range(captured_state.MOST_CONTENTS + 1))
    holder = Settings()
    holder.inner = words  # type: ignore[assignment]
    function = bb.capture(lambda x, s: x * float(len(s.inner)), state=False)
    for _ in range(4):
        assert function(x, holder).tolist() == [len(words)] * 2
    assert Counted.reads == 0


def test_arguments_that_change_in_place_are_noticed() -> None:
    x, settings, names = bb.ones((2,), backend=RECORDING), Settings(), {1}
    of_object = bb.capture(lambda x, s: x * s.inner["scale"][0], state=False)
    of_set = bb.capture(lambda x, s: x * float(len(s)), state=False)
    for i in range(6):
        settings.inner["scale"][0] = float(i // 3)
        names.add(i // 3)
        assert of_object(x, settings).tolist() == [i // 3] * 2
        assert of_set(x, names).tolist() == [len(names)] * 2


def test_complex_arguments_with_other_zeros_have_their_own_recordings() -> None:
    x = bb.ones((1,), dtype="complex64", backend="capture(numpy)")
    root = bb.capture(lambda x, a: bb.sqrt(x * a), state=False)
    for a, sign in ((complex(-1, 0.0), 1), (complex(-1, -0.0), -1)):
        assert [root(x, a).tolist() for _ in range(3)] == [[complex(0, sign)]] * 3


@pytest.mark.parametrize("backend", ["numpy", "capture(numpy)"])
def test_outputs_that_are_the_state_may_be_kept(backend: str) -> None:
    def step(state: Any, x: Any) -> Any:
        new = state + x
        return new, [new, {"twice": new}]

    captured, state, kept = bb.capture(step), bb.zeros((2,), backend=backend), []
    for _ in range(4):
        state, out = captured(state, bb.ones((2,), backend=backend))
        kept.append(out)
    assert [(a.tolist(), b["twice"].tolist()) for a, b in kept] == [([float(i)] * 2,) * 2 for i in range(1, 5)]
