"""State that replays update in place: arrays that are still referenced keep their values."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.helpers.interrupts import Interrupter
from tests.helpers.kernels import USABLE, needs_kernels, use_level

import backburn as bb
from backburn import nn, optim
from backburn.backend import Wrapper, load_backend
from backburn.backend.host_numbers import RECORDING_STEP, Recording
from backburn.base.contexts import scoped
from backburn.base.errors import DeviceMemoryError
from backburn.decorators import Capture
from backburn.nn import functional
from backburn.transforms import captured_state
from backburn_numpy import NumpyBackend, compiled
from backburn_numpy.programs import state_updates

pytestmark = pytest.mark.usefixtures("guarded_memory")

SPEC = "autodiff(capture(numpy, join=false))"
ROWS, WIDTH = 300, 64


class Model(nn.Module):
    """A table with a gathered gradient, a matrix in recycled memory, and three small parameters."""

    def __init__(self) -> None:
        self.table = nn.Embedding(ROWS, WIDTH)
        self.matrix = nn.Linear(WIDTH, 4 * ROWS)
        self.head = nn.Linear(4 * ROWS, 3)

    def forward(self, ids: Any) -> Any:
        return self.head(bb.tanh(self.matrix(bb.take(self.table.weight, ids, axis=0))))  # ids may be negative


def step(state: Any, ids: Any, labels: Any) -> Any:
    """A training step whose outputs share memory with the old and new state."""
    model, optimizer = state
    before = model.table.weight.detach()
    loss = functional.cross_entropy(model(ids), labels)
    optimizer.step(model, loss.backward())
    return state, {"loss": loss, "view": model.matrix.weight.detach().T, "before": before[3:5], "all": before}


def plain_step(state: Any, ids: Any, labels: Any) -> Any:
    """A training step whose only output is the loss."""
    model, optimizer = state
    loss = functional.cross_entropy(model(ids), labels)
    optimizer.step(model, loss.backward())
    return state, loss


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optim.SGD(0.5),
    "decay": lambda: optim.SGD(0.5, weight_decay=0.1),
    "momentum": lambda: optim.SGD(0.1, 0.9, nesterov=True),
    "adam": lambda: optim.Adam(0.01),
    "adamw": lambda: optim.AdamW(optim.schedules.Linear(0.01, 0.001, 50), weight_decay=0.1),
    "lion": lambda: optim.Lion(0.001),
    "rmsprop": lambda: optim.RMSprop(0.001, momentum=0.9, centered=True),
    "groups": lambda: optim.Groups({"table.*": optim.SGD(0.5), "*": optim.Adam(0.01)}),
}


def start(make: Callable[[], Any], spec: Any = SPEC) -> tuple[Any, Callable[[int], Any]]:
    """A state, and a function that returns a batch by number."""
    bb.random.seed(1)
    state = (Model().to(spec), make())

    def batch(number: int) -> Any:
        rng = np.random.default_rng(number)
        ids = rng.integers(-ROWS, ROWS, (4, 4)) // (1 + 2 * (number % 2))
        return bb.asarray(ids, backend=spec), bb.asarray(rng.integers(0, 3, (4, 4)), backend=spec)

    return state, batch


def program(captured: Any) -> Any:
    """The recorded program of a captured step."""
    return next(plan.executable for _, plan in captured._plans if hasattr(plan, "executable"))


# ---- what is kept ----

HOLDERS: dict[str, Callable[[Any, Any], Any]] = {
    "detached": lambda state, out: [x.detach() for x in state[0].parameters()],
    "state_dict": lambda state, out: state[0].state_dict(),
    "optimizer": lambda state, out: state[1].state_dict(),
    "copy": lambda state, out: copy.deepcopy(state[0]).state_dict(),
    "pickled": lambda state, out: pickle.loads(pickle.dumps(state[0])).state_dict(),
    "inner": lambda state, out: [x.inner() for x in state[0].parameters()],
    "views": lambda state, out: (
        [bb.reshape(x.inner(), (-1,)) for x in state[0].parameters()] + [state[0].table.weight.inner()[2:7].T]
    ),
    "arrays": lambda state, out: [x.numpy() for x in state[0].parameters()],
    "exported": lambda state, out: [np.from_dlpack(x.inner()) for x in state[0].parameters()],
    "outputs": lambda state, out: out,
    "moved": lambda state, out: state[0].matrix.weight.detach().to("numpy"),
}


def values(held: Any) -> list[Any]:
    """Copies of the held values."""
    return [np.array(x) for x in bb.trees.flatten(held)[0]]


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
@settings(max_examples=2, deadline=None, phases=[Phase.generate])
@given(data=st.data())
def test_referenced_arrays_keep_their_values_over_100_replays(name: str, data: st.DataObject) -> None:
    moments = data.draw(
        st.dictionaries(st.integers(3, 60), st.lists(st.sampled_from([*HOLDERS]), min_size=1), max_size=8)
    )
    state, batch = start(OPTIMIZERS[name])
    other, batch_of_other = start(OPTIMIZERS[name], "autodiff(numpy)")
    captured, held = bb.capture(step, on_fallback="error"), []
    for number in range(103):
        state, out = captured(state, *batch(number % 7))
        other, wanted = step(other, *batch_of_other(number % 7))
        assert out["loss"].item() == wanted["loss"].item()
        for kind in moments.get(number, ()):
            found = HOLDERS[kind](state, out)
            held.append((kind, found, values(found)))
        if number % 20 == 19:
            held = [entry for i, entry in enumerate(held) if i % 3]
    assert captured.reason == ""
    for kind, found, before in held:
        for x, y in zip(values(found), before, strict=True):
            np.testing.assert_array_equal(x, y, err_msg=kind)
    for x, y in zip(values(state[0].state_dict()), values(other[0].state_dict()), strict=True):
        np.testing.assert_array_equal(x, y)
    for x, y in zip(values(state[1].state_dict()), values(other[1].state_dict()), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_initial_state_is_copied_once(name: str) -> None:
    """Host arrays, arrays of other tensors and results of a step are not overwritten."""
    state, batch = start(OPTIMIZERS[name])
    array = np.ones((ROWS, WIDTH), np.float32)
    given = bb.from_inner(bb.asarray(array, backend="capture(numpy, join=false)"), backend=SPEC)
    state[0].table.weight = given.require_grad()
    primitives = [x.primitive.value for x in state[0].parameters()]
    before = [p.copy() for p in primitives]
    captured = bb.capture(plain_step, on_fallback="error")
    for number in range(6):
        state, _ = captured(state, *batch(number))
    assert captured.reason == ""
    assert (array == 1.0).all()
    for p, q in zip(primitives, before, strict=True):
        np.testing.assert_array_equal(p, q)


# ---- what is overwritten ----


@needs_kernels
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_unreferenced_state_is_updated_in_place(name: str) -> None:
    state, batch = start(OPTIMIZERS[name])
    captured = bb.capture(plain_step, on_fallback="error")
    for number in range(5):
        state, _ = captured(state, *batch(number))
    large = [x for x in program(captured).state if x.nbytes >= 1 << 16]
    addresses = [compiled.address(x) for x in large]
    del large
    gc.collect()
    for number in range(5):
        state, _ = captured(state, *batch(number))
        again = [compiled.address(x) for x in program(captured).state if x.nbytes >= 1 << 16]
        assert again == addresses or name == "decay", "plain steps with decay have no kernel"
    held = state[0].table.weight.detach()
    state, _ = captured(state, *batch(0))
    assert captured.reason == ""
    assert not np.shares_memory(held.inner().primitive, state[0].table.weight.primitive.value)


@needs_kernels
def test_a_gathered_gradient_is_subtracted_by_rows() -> None:
    ids, found = [[1, 5, 1], [-1, 1, ROWS - 1]], []
    for spec in ("autodiff(numpy)", SPEC):
        bb.random.seed(0)
        model = nn.Embedding(ROWS, WIDTH).to(spec)
        state, captured = (model, optim.SGD(0.5)), bb.capture(rows_step, on_fallback="error")
        for number in range(5):
            state, _ = captured(state, bb.asarray(ids, backend=spec) - number)
        found.append(state[0].weight.numpy())
    np.testing.assert_array_equal(*found)
    calls = [call.operation for call in program(captured).source.calls.values()]
    assert "take_backward" not in calls


@needs_kernels
def test_a_constant_gathered_gradient_is_not_materialized() -> None:
    """It would have the size of the table, of which a step changes only some rows."""
    ids, found = [[1, 5, 1], [-1, 1, ROWS - 1]], []

    def constant_step(state: Any) -> Any:
        model, optimizer = state
        loss = (bb.take(model.weight, chosen, axis=0) * weights).sum()
        optimizer.step(model, loss.backward())
        return state, loss

    for spec in ("autodiff(numpy)", SPEC):
        bb.random.seed(0)
        with bb.use_backend(spec):
            chosen, weights = bb.asarray(ids), bb.random.normal((2, 3, WIDTH))
            model = nn.Embedding(ROWS, WIDTH)
        state, captured = (model, optim.SGD(0.5)), bb.capture(constant_step, on_fallback="error")
        for _ in range(5):
            state, _ = captured(state)
        found.append(state[0].weight.numpy())
    np.testing.assert_array_equal(*found)
    (update,) = program(captured).updates
    assert update.gathered == {0}
    assert not any(x.shape == (ROWS, WIDTH) for x in update.operands[1] if hasattr(x, "shape"))
    assert not any(getattr(x, "shape", ()) == (ROWS, WIDTH) for x in update.call.operands[1])


def rows_step(state: Any, ids: Any) -> Any:
    model, optimizer = state
    loss = (bb.take(model.weight, ids, axis=0) ** 2.0).sum()
    optimizer.step(model, loss.backward())
    return state, loss


@needs_kernels
@pytest.mark.parametrize("level", USABLE)
@pytest.mark.parametrize(("rows", "width", "count"), [(70_000, 1, 9), (300, 64, 300), (40, 1000, 40), (130, 513, 1)])
def test_rows_equal_the_dense_step_at_every_instruction_set(
    level: str, rows: int, width: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_level(monkeypatch, level)
    k, rng = NumpyBackend(), np.random.default_rng(0)
    table = rng.normal(size=(rows, width)).astype(np.float32)
    table[0, 0], table[1, 0] = -0.0, np.inf
    ids = rng.integers(0, max(2, rows // 8), count)
    grad = rng.normal(size=(count, width)).astype(np.float32)
    grad[0] = -0.0
    (expected, *_) = k.sgd_steps([table], [k.take_backward(grad, ids, rows, 0)], [], lr=0.3)

    def update(state: list[Any], given: list[Any]) -> Any:
        base = load_backend("capture(numpy)")
        return [base.sgd_steps(state, [base.take_backward(given[0], given[1], rows, 0)], [], lr=0.3)[0]], []

    replay = recorded(update, [table], [grad, ids])
    replay([grad, ids], [], lambda: [0])
    np.testing.assert_array_equal(replay.state[0], expected)
    assert replay.state[0] is not table
    first = replay.state[0]
    kept = first.copy()
    replay([grad, ids], [], lambda: [0])
    np.testing.assert_array_equal(first, kept)  # still referenced
    address = compiled.address(replay.state[0])
    replay([grad, ids], [], lambda: [0])
    assert compiled.address(replay.state[0]) == address
    (twice, *_) = k.sgd_steps([kept], [k.take_backward(grad, ids, rows, 0)], [], lr=0.3)
    (thrice, *_) = k.sgd_steps([twice], [k.take_backward(grad, ids, rows, 0)], [], lr=0.3)
    np.testing.assert_array_equal(replay.state[0], thrice)


def recorded(update: Any, state: list[Any], given: list[Any]) -> Any:
    """The program of an update, with the given state."""
    with scoped(RECORDING_STEP, Recording()):
        base: Any = load_backend("capture(numpy)")
        replay = base.capture(update, state, given)
    for place, x in enumerate(state):
        replay.set_state(place, x)
    return replay


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_gradients_may_be_constant(name: str) -> None:
    """The velocity of plain SGD is then the constant gradient itself: such a step is not recorded."""

    def constant_step(state: Any) -> Any:
        model, optimizer = state
        loss = model["w"].sum()
        optimizer.step(model, loss.backward())
        return state, loss

    found, reason = [], ""
    for spec in ("autodiff(numpy)", SPEC):
        model = {"w": bb.ones((200, 200), backend=spec).require_grad()}
        state = model, optim.SGD(0.5) if name == "groups" else OPTIMIZERS[name]()
        captured = bb.capture(constant_step, on_fallback="allow")
        for _ in range(5):
            state, _ = captured(state)
        found.append(model["w"].numpy())
        reason = captured.reason
    assert reason == "" or name in ("sgd", "decay", "groups")
    np.testing.assert_array_equal(*found)


@needs_kernels
def test_swapped_or_shared_state_is_not_overwritten() -> None:
    base: Any = load_backend("capture(numpy)")
    rng = np.random.default_rng(0)
    a, b, g = (rng.normal(size=(200, 200)).astype(np.float32) for _ in range(3))
    swapped = recorded(lambda s, v: ([*base.sgd_steps(s, [v[0], v[0]], [], lr=0.5)[1::-1]], []), [a, b], [g])
    twice = recorded(
        lambda s, v: ([base.sgd_steps([x], [s[0]], [], lr=0.5)[0] for x in s], []),
        [a, b], [g],
    )  # fmt: skip
    x, y = a, b
    p, q = a, b
    for _ in range(4):
        swapped([g], [], lambda: [0, 0])
        x, y = (NUMPY.sgd_step(z, g, lr=0.5)[0] for z in (y, x))
        twice([g], [], lambda: [0, 0])
        p, q = NUMPY.sgd_step(p, p, lr=0.5)[0], NUMPY.sgd_step(q, p, lr=0.5)[0]
        for got, wanted in zip([*swapped.state, *twice.state], [x, y, p, q], strict=True):
            np.testing.assert_array_equal(got, wanted)


NUMPY: Any = load_backend("numpy")


# ---- errors, interrupts, other backends ----


@needs_kernels
@pytest.mark.parametrize("name", ["groups", "adam", "lion"])
@pytest.mark.parametrize("where", ["begin", "second", "run", "after", "commit", "call"])
def test_an_interrupt_leaves_a_consistent_state(name: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state before the step or, once everything is written, after it; step counts agree."""
    (state, batch), (other, _) = start(OPTIMIZERS[name]), start(OPTIMIZERS[name])
    captured, apart = bb.capture(plain_step, on_fallback="error"), bb.capture(plain_step, on_fallback="error")
    for number in range(5):
        state, _ = captured(state, *batch(number))
        other, _ = apart(other, *batch(number))
    tensors = [*state[0].parameters()]
    kind = state_updates.NumpyUpdates
    with monkeypatch.context() as patch:

        def interrupts(owner: Any, method: str, first: bool = True) -> None:
            original, calls = getattr(owner, method), []

            def failing(self: Any, *args: Any) -> Any:
                calls.append(1)
                if first and (where != "second" or len(calls) == 2 or name == "adam"):
                    raise KeyboardInterrupt
                result = original(self, *args)
                if not first:
                    raise KeyboardInterrupt
                return result

            patch.setattr(owner, method, failing)

        if where == "begin":
            interrupts(kind, "begin")
        elif where == "second":
            interrupts(kind, "prepare")
        elif where in ("run", "after"):
            interrupts(kind, "run", first=where == "run")
        elif where == "commit":
            interrupts(captured_state.State, "commit", first=False)
        else:
            interrupts(type(program(captured)), "__call__", first=False)
        with pytest.raises(KeyboardInterrupt):
            captured(state, *batch(5))
    if where in ("after", "commit", "call"):
        other, _ = apart(other, *batch(5))
    assert all(x is y for x, y in zip(tensors, state[0].parameters(), strict=True))
    for number in range(6, 10):
        for mine, theirs in zip(state, other, strict=True):
            for x, y in zip(values(mine.state_dict()), values(theirs.state_dict()), strict=True):
                np.testing.assert_array_equal(x, y)
        state, _ = captured(state, *batch(number))
        other, _ = apart(other, *batch(number))
    assert captured.reason == apart.reason == ""


@pytest.mark.parametrize("name", ["adam", "sgd", "rmsprop"])
def test_an_interrupt_at_any_moment_leaves_a_consistent_state(name: str) -> None:
    """Parameters, moments, counts and random state are either all from before the step or all from after it."""

    class Run:
        """A run with its own generator."""

        def __init__(self) -> None:
            self.generator = bb.random.Generator(3)
            model = {"table": bb.full((6, 4), 0.5, backend=SPEC).require_grad(), "w": bb.ones((4, 3), backend=SPEC)}
            model["w"] = model["w"].require_grad()
            self.state: Any = (model, OPTIMIZERS[name](), optim.Average(0.9))
            self.captured = bb.capture(self.step, on_fallback="error")

        def step(self, state: Any, ids: Any, labels: Any) -> Any:
            model, optimizer, average = state
            hidden = functional.dropout(bb.tanh(model["table"][ids]), 0.25, generator=self.generator)
            loss = functional.cross_entropy(hidden @ model["w"], labels)
            optimizer.step(model, loss.backward())
            average.update(model)
            return state, loss

        def call(self, number: int) -> None:
            rng = np.random.default_rng(number)
            ids, labels = (bb.asarray(rng.integers(0, n, 8), backend=SPEC) for n in (6, 3))
            self.state, _ = self.captured(self.state, ids, labels)

        def numbers(self) -> list[bytes]:
            found = [np.asarray(self.generator.offset), *(x.numpy() for x in self.state[0].values())]
            for part in self.state[1:]:
                found += [np.asarray(x.numpy() if isinstance(x, bb.Tensor) else x) for x in part.state_dict().values()]
            return [x.tobytes() for x in found]

    run, other, seen = Run(), Run(), set()
    number = 4
    for n in range(number):
        run.call(n)
        other.call(n)
    other.call(number)
    with Interrupter(1 << 60) as interrupter:
        run.call(number)
    points = interrupter.points
    assert points > 50
    for point in range(1, points + 1, -(-points // 100)):
        number += 1
        old = other.numbers()
        other.call(number)
        new = other.numbers()
        interrupter, found = Interrupter(point), new
        try:
            with interrupter:
                run.call(number)
        except KeyboardInterrupt:
            found = run.numbers()
        which = [x == y for x, y in zip(found, new, strict=True)]
        assert found in (old, new), f"point {point}, {interrupter.where}: new parts: {which}"
        seen.add(found == new)
        if found == old:
            run.call(number)
        assert run.captured.reason == ""
    assert seen == {False, True}


@needs_kernels
def test_an_update_that_runs_out_of_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    state, batch = start(OPTIMIZERS["adam"])
    captured = bb.capture(plain_step, on_fallback="error")
    for number in range(4):
        state, _ = captured(state, *batch(number))
    held = state[0].state_dict()

    def full(*_: Any) -> Any:
        raise MemoryError("none left")

    with monkeypatch.context() as patch:
        patch.setattr(state_updates, "empty", full)
        with pytest.raises(DeviceMemoryError, match=r"adam_steps: .*float32"):
            captured(state, *batch(4))
    for x, y in zip(values(held), values(state[0].state_dict()), strict=True):
        np.testing.assert_array_equal(x, y)
    state, _ = captured(state, *batch(4))
    assert state[1].steps == 5


class Plain(Wrapper):
    """A backend that cannot update state in place."""

    name = "plain"


class Own(NumpyBackend):
    """A backend with its own step."""

    def sgd_steps(self, params: Any, grads: Any, *rest: Any, **options: Any) -> Any:
        return NUMPY.sgd_steps(params, grads, *rest, **options)


@pytest.mark.parametrize("make", [lambda: Plain(NumpyBackend()), Own])
def test_other_backends_run_the_calls_unchanged(make: Callable[[], Any]) -> None:
    state, batch = start(OPTIMIZERS["sgd"], bb.Autodiff(Capture(make())))
    captured = bb.capture(plain_step, on_fallback="error")
    for number in range(4):
        state, _ = captured(state, *batch(number))
    assert captured.reason == ""
    calls = [call.operation for call in program(captured).source.calls.values()]
    assert {"sgd_steps", "take_backward"} < {*calls}
    other, batch = start(OPTIMIZERS["sgd"], "autodiff(numpy)")
    for number in range(4):
        other, _ = plain_step(other, *batch(number))
    for x, y in zip(values(state[0].state_dict()), values(other[0].state_dict()), strict=True):
        np.testing.assert_allclose(x, y, 1e-5, 1e-6)


def test_recordings_of_two_shapes_share_a_state() -> None:
    (state, batch), (other, _) = start(OPTIMIZERS["adam"]), start(OPTIMIZERS["adam"], "autodiff(numpy)")
    captured, held = bb.capture(plain_step, on_fallback="error"), []
    for number in range(14):
        ids, labels = batch(number)
        n = 2 + number // 2 % 2
        state, _ = captured(state, ids[:n], labels[:n])
        other, _ = plain_step(other, *(x[:n].to("autodiff(numpy)") for x in (ids, labels)))
        found = state[0].state_dict()
        held.append((found, values(found)))
    assert captured.reason == ""
    for found, before in held:
        for x, y in zip(values(found), before, strict=True):
            np.testing.assert_array_equal(x, y)
    for x, y in zip(values(state[0].state_dict()), values(other[0].state_dict()), strict=True):
        np.testing.assert_array_equal(x, y)
