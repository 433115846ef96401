"""The verifier of state updates: each planted fault is refused, naming the operation, before anything is written."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.decorators.test_donation import OPTIMIZERS, plain_step, start
from tests.helpers import guards
from tests.helpers.kernels import needs_kernels
from tests.helpers.planting import plant

import backburn as bb
from backburn.base.errors import BackburnError, CaptureError
from backburn.programs.passes import in_place
from backburn_numpy.programs import compiling, state_updates
from backburn_numpy.programs.state_updates import NumpyUpdates
from backburn_numpy.programs.updates_verifier import VerifiedUpdates

pytestmark = needs_kernels


def train(make: Callable[[], Any], replays: int = 4) -> Any:
    """The state after some replays."""
    state, batch = start(make)
    captured = bb.capture(plain_step, on_fallback="error")
    for n in range(2 + replays):
        state, _ = captured(state, *batch(n))
    return state


def crossing(state: Any, x: Any) -> Any:
    """A new state of two arrays, each computed from both old ones."""
    a, b = state
    return (bb.tanh(a) * 0.5 + b * x, bb.tanh(b) * 0.5 + a * x), (a * b).sum()


def several(state: Any, x: Any) -> Any:
    """Two results of one formula; the first exists before the last use of the array that it replaces."""
    a, b = state
    c = a * 0.5 + x
    return (c, bb.tanh(c) * b + a), x.sum()


def cross(function: Callable[..., Any]) -> None:
    k = "autodiff(capture(numpy))"
    rng = np.random.default_rng(0)
    a, b, x = (bb.asarray(rng.normal(size=(1000, 20)).astype(np.float32), backend=k) for _ in range(3))
    captured, state = bb.capture(function, on_fallback="error"), (a, b)
    for _ in range(5):
        state, _ = captured(state, x)


FAULTS: dict[str, tuple[Any, str, str, str, Callable[[], Any], str]] = {
    "a step one element too long":
        (NumpyUpdates, "_adam", "ADAM, p.size, 1", "ADAM, p.size + 1, 1", lambda: train(OPTIMIZERS["adam"]),
         "adam_steps"),
    "a gradient in another's place":
        (NumpyUpdates, "_renewed", "-ARRAYS + at]", "-ARRAYS + at + 1]", lambda: train(OPTIMIZERS["adam"]),
         "adam_steps"),
    "the options of another step":
        (NumpyUpdates, "_put", "OPTIONS * number", "OPTIONS * (number + 1)", lambda: train(OPTIMIZERS["momentum"]),
         "sgd_steps"),
    "a row too many":
        (NumpyUpdates, "_rows", "p.size // length, where.size,", "p.size // length, where.size + 1,",
         lambda: train(OPTIMIZERS["sgd"]), "sgd_steps"),
    "one target for all":
        (NumpyUpdates, "_target", "return self._state[operand.number]", "return self._state[0]",
         lambda: train(OPTIMIZERS["momentum"]), "sgd_steps"),
    "a velocity that is not written":
        (NumpyUpdates, "_sgd", "(new, moving, p, g, before)", "(new, new, p, g, before)",
         lambda: train(OPTIMIZERS["momentum"]), "sgd_steps"),
    "an operand written over before its last use":
        (NumpyUpdates, "_formula", "last > made", "False", lambda: cross(several), "fuse"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_refused(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, old, new, run, operation = FAULTS[fault]
    run()
    plant(monkeypatch, owner, name, old, new)
    with pytest.raises(CaptureError, match=rf"update \d+ of \d+, {operation}, was planned wrong"):
        run()


def test_a_view_is_not_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Views of one array share memory, which their reference counts do not show."""
    plant(monkeypatch, NumpyUpdates, "begin", "map(and_, owned, is_unshared(state, held))", "[True] * len(state)")
    state, batch = start(OPTIMIZERS["adam"])
    with bb.use_backend(state[0].head.bias.backend):
        whole = bb.arange(7.0)
    captured = bb.capture(plain_step, on_fallback="error")

    def run() -> None:
        nonlocal state
        for n in range(4):
            state[0].head.bias = whole[2:5].require_grad()
            state, _ = captured(state, *batch(n))

    with pytest.raises(CaptureError, match="is a view of memory that others may have"):
        run()


def test_state_that_another_update_reads_is_not_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan prevents it; if that is wrong, reference counts do; if both are wrong, the verifier refuses."""
    cross(crossing)
    plant(monkeypatch, in_place, "split_updates", "mentions[old] == kept[made] == 1", "kept[made] == 1")
    monkeypatch.setattr(compiling, "split_updates", vars(in_place)["split_updates"])
    cross(crossing)
    plant(monkeypatch, state_updates, "is_unshared", "n == ONCE + more", "(n, more) is not None")
    with pytest.raises(CaptureError, match=r"update \d+ of 2, fuse, was planned wrong: it writes over what another"):
        cross(crossing)


def test_outputs_of_earlier_replays_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards find overwritten state that an output refers to."""

    def step(state: Any, ids: Any, labels: Any) -> Any:
        before = state[0].table.weight.detach()
        return plain_step(state, ids, labels)[0], before

    def run() -> None:
        state, batch = start(OPTIMIZERS["adam"])
        captured, held = bb.capture(step, on_fallback="error"), []
        with guards.guarded():
            for n in range(6):
                state, out = captured(state, *batch(n))
                held.append(out)

    run()
    plant(monkeypatch, state_updates, "is_unshared", "n == ONCE + more", "(n, more) is not None")
    with pytest.raises(guards.MemoryFault, match="an output of an earlier replay"):
        run()


def test_the_verifier_runs_and_does_not_change_results(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    original = VerifiedUpdates.run

    def run(self: VerifiedUpdates) -> None:
        ran.append(len(self._updates))
        original(self)

    monkeypatch.setattr(VerifiedUpdates, "run", run)
    verified = [p.numpy() for p in train(OPTIMIZERS["groups"])[0].parameters()]
    assert ran
    monkeypatch.setattr("backburn_numpy.programs.verifier.VERIFIES", False)
    plain = [p.numpy() for p in train(OPTIMIZERS["groups"])[0].parameters()]
    for x, y in zip(verified, plain, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "groups"])
def test_parameters_without_elements_pass_the_verifier(name: str) -> None:
    def step(state: Any, x: bb.Tensor) -> Any:
        weights, optimizer = state
        loss = bb.sum(x @ weights["w"]) + bb.sum(weights["empty"])
        optimizer.step(weights, loss.backward())
        return state, loss

    with bb.use_backend("autodiff(capture(numpy))"):
        weights = {"w": bb.ones((4, 2)).require_grad(), "empty": bb.ones((3, 0)).require_grad()}
        state, captured = (weights, OPTIMIZERS[name]()), bb.capture(step, on_fallback="error")
        for _ in range(3):
            state, _ = captured(state, bb.ones((5, 4)))
    assert state[0]["empty"].shape == (3, 0)


def test_threads_replay_one_program_with_separate_states() -> None:
    """Steps give finite losses, or an error; nothing that another thread uses is overwritten."""
    make = OPTIMIZERS["momentum"]
    captured = bb.capture(plain_step, on_fallback="error")
    states, batch = [start(make)[0] for _ in range(4)], start(make)[1]
    for n in range(3):
        states = [captured(state, *batch(n))[0] for state in states]
    expected = [captured(state, *batch(3)) for state in states]
    finite: list[bool] = []

    def work(state: Any) -> None:
        for n in range(20):
            try:
                state, loss = captured(state, *batch(n))
            except BackburnError:
                return
            finite.append(bool(np.isfinite(loss.item())))

    with guards.guarded():
        threads = [threading.Thread(target=work, args=(state,)) for state, _ in expected]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(finite)
