"""Gradients reduced over processes while others are computed: exact results, buckets, and memory being read."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from tests.helpers.threads import Late, Threads, on_threads

import backburn as bb
from backburn import nn, optim
from backburn.backend.wrapper import Wrapper
from backburn.decorators import Capture
from backburn.decorators.sharding import Sharded, gradient_reduction
from backburn.distributed import place
from backburn.nn.functional import cross_entropy
from backburn.tensor.generators import Generator, fork
from backburn_numpy import NumpyBackend

CUT = {"*.weight": {"dp": 0}, "*.bias": {"dp": 0}}
FEATURES = np.random.default_rng(0).normal(size=(61, 12)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 5, 61)


def digest(model: Any) -> str:
    values = [np.asarray(p.tolist(), np.float64) for p in model.state_dict().values()]
    return hashlib.sha256(b"".join(v.tobytes() for v in values)).hexdigest()


def model_of(placements: Any) -> Any:
    with fork(Generator(0)):  # not shared with other threads
        model = nn.Sequential(nn.Linear(12, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 5))
    return place(model, placements) if placements else model


def train(level: Any, placements: Any, make: Any, steps: int = 3, clip: bool = True) -> str:
    """A digest of all parameters after some steps."""
    with bb.use_backend(bb.Autodiff(level)):
        model, optimizer = model_of(placements), make()
        for _ in range(steps):
            x, y = place(bb.asarray(FEATURES), {"dp": 0}), place(bb.asarray(LABELS), {"dp": 0})
            gradients = optim.named_gradients(model, cross_entropy(model(x), y).backward())
            if clip:
                gradients, _ = optim.clip_grad_norm(gradients, 0.5)
            optimizer.step(model, gradients)
        return digest(model)


def with_momentum() -> Any:
    return optim.SGD(0.1, momentum=0.9, weight_decay=0.01)


def adam() -> Any:
    return optim.AdamW(1e-2)


@pytest.fixture(params=["one bucket", "several", "each alone"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    full, alone = {"one bucket": (1 << 30, 1 << 30), "several": (300, 1 << 30), "each alone": (1, 1)}[request.param]
    monkeypatch.setattr(gradient_reduction, "FULL", full)
    monkeypatch.setattr(gradient_reduction, "ALONE", alone)
    return request.param


@pytest.mark.parametrize("placements", [None, CUT], ids=["whole", "cut"])
@pytest.mark.parametrize("make", [with_momentum, adam])
def test_two_processes_are_bitwise_equal_to_one(make: Any, placements: Any, sizes: str) -> None:
    def run(comm: Any) -> str:
        return train(Sharded(NumpyBackend(), dp=4, comm=comm), placements, make)

    wanted = [run(None)] * 2
    assert on_threads(2, run, Late) == wanted
    assert on_threads(2, run, Threads) == wanted


def test_four_processes_are_bitwise_equal_to_one(sizes: str) -> None:
    alone = train(Sharded(NumpyBackend(), dp=4), None, adam)
    found = on_threads(4, lambda comm: train(Sharded(NumpyBackend(), dp=4, comm=comm), None, adam), Late)
    assert found == [alone] * 4


@pytest.mark.parametrize("shards", [3, 6])
def test_sums_whose_subtrees_span_processes(shards: int, sizes: str) -> None:
    alone = train(Sharded(NumpyBackend(), dp=shards), None, adam)
    found = on_threads(3, lambda comm: train(Sharded(NumpyBackend(), dp=shards, comm=comm), None, adam), Late)
    assert found == [alone] * 3


def test_two_levels(sizes: str) -> None:
    placements = {"0.*": {"tp": 0}, "3.weight": {"tp": 1}}

    def run(comm: Any) -> str:
        inner = Sharded(NumpyBackend(), tp=2) if comm is None else Sharded(NumpyBackend(), tp=2, comm=comm)
        return train(Sharded(inner, dp=2), placements, adam)

    assert on_threads(2, run, Late) == [run(None)] * 2


# ---- order of events ----


class Notes(Wrapper):
    """Records operations in the events of a communicator."""

    name = "notes"

    def __init__(self, wrapped: Any, events: list[Any]) -> None:
        super().__init__(wrapped)
        self.events = events

    def call(self, operation: str, /, *operands: Any, **attributes: Any) -> Any:
        self.events.append((operation, 0))
        return super().call(operation, *operands, **attributes)


def events_of(placements: Any, full: int, alone: int, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    monkeypatch.setattr(gradient_reduction, "FULL", full)
    monkeypatch.setattr(gradient_reduction, "ALONE", alone)

    def run(comm: Any) -> Any:
        train(Sharded(Notes(NumpyBackend(), comm.events), dp=2, comm=comm), placements, adam, steps=1, clip=False)
        return comm.events

    found: list[tuple[str, int]] = on_threads(2, run, Late)[0]
    return found


def test_a_gradient_is_sent_while_others_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    events = events_of(None, 1, 1, monkeypatch)
    kinds = [name for name, _ in events]
    first, waits = kinds.index("start"), kinds.index("wait")
    assert kinds.count("start") == 6, "each parameter's gradient separately"
    between = kinds[first:waits]
    assert "linear_weight_backward" in between or "matmul" in between, between
    assert "layer_norm_backward" in between
    assert "adam_steps" in kinds[waits:]


def test_small_gradients_are_sent_together(monkeypatch: pytest.MonkeyPatch) -> None:
    events = events_of(None, 1 << 30, 1 << 30, monkeypatch)
    count = 12 * 48 + 48 + 48 + 48 + 48 * 5 + 5
    sent = [size for name, size in events if name == "start"]
    assert len(sent) == 1
    assert sent[0] == pytest.approx(4 * count / 2, abs=4 * 6)
    gathered = [size for name, size in events if name == "all_gather" and size > 1000]
    assert gathered == [pytest.approx(4 * count / 2, abs=4 * 6)]


def test_gradients_of_cut_parameters_are_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    events = events_of(CUT, 1 << 30, 1 << 30, monkeypatch)
    kinds = [name for name, _ in events]
    sent, step = kinds.index("start"), next(i for i, name in enumerate(kinds) if name.startswith("adam_step"))
    assert sent < step
    assert "all_gather" not in kinds[sent:step]


def test_large_gradients_are_sent_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    events = events_of(None, 1 << 30, 2000, monkeypatch)
    assert sorted(size for name, size in events if name == "start")[-1] == 12 * 48 * 4 // 2
    assert len([name for name, _ in events if name == "start"]) == 2


# ---- memory ----


def test_memory_is_not_overwritten_during_a_reduction() -> None:
    """In-place steps and a recorded step, with a communicator that reads as late as possible."""

    def run(captured: bool) -> Any:
        def on(comm: Any) -> Any:
            level = Sharded(NumpyBackend(), dp=2, comm=comm)
            with bb.use_backend(bb.Autodiff(Capture(level) if captured else level)):
                model, optimizer = model_of(None), with_momentum()

                def step(state: Any, x: Any, y: Any) -> Any:
                    model, optimizer = state
                    loss = cross_entropy(model(x), y)
                    optimizer.step(model, loss.backward())
                    return state, loss

                call, state, losses = bb.capture(step) if captured else step, (model, optimizer), []
                for i in range(6):
                    x = place(bb.asarray(FEATURES + np.float32(i)), {"dp": 0})
                    state, loss = call(state, x, place(bb.asarray(LABELS), {"dp": 0}))
                    losses.append(loss.item())
                assert not captured or "replayed" in repr(call)
                return losses, digest(state[0])

        return on

    plain = on_threads(2, run(captured=False), Late)
    assert plain[0] == plain[1]
    assert on_threads(2, run(captured=True), Late) == plain


def test_collectives_are_not_in_native_programs() -> None:
    """Native programs run without Python, which collectives need."""
    assert not hasattr(Sharded(NumpyBackend(), dp=2), "compile")


# ---- what is reduced ----


def addends_of(level: Any, values: Any) -> Any:
    return level.addends(level.wrapped.from_numpy(np.asarray(values, np.float32)))


def test_a_gradient_that_is_being_reduced_can_be_read_in_any_way(sizes: str) -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 6)

    def run(comm: Any) -> Any:
        k = Sharded(NumpyBackend(), dp=2, comm=comm, on_fallback="allow")
        like = k.cut(k.wrapped.zeros((4, 6), k.float_dtype), 1)
        found = []
        for target in (k.wrapped.zeros((4, 6), k.float_dtype), like):
            for read in (
                lambda g: g,
                lambda g: k.add(g, g),
                lambda g: k.mul(g, 0.5),
                lambda g: k.reshape(g, (24,)),
                lambda g: k.permute_dims(g, (1, 0)),
                lambda g: k.slice(g, (slice(1, 3, 1), slice(0, 6, 2))),
                lambda g: k.sum(g, (0,), False),
                lambda g: k.matmul(g, k.wrapped.ones((6, 2), k.float_dtype)),
                lambda g: k.max(g, (0, 1), False),
            ):
                found.append(k.to_numpy(read(k.settle(addends_of(k, values), target))).tolist())
        return found

    rows = on_threads(2, run, Late)
    assert rows[0] == rows[1]
    expected = [
        values, values * 2, values * 0.5, values.reshape(24), values.T, values[1:3, ::2], values.sum(0),
        values @ np.ones((6, 2)), values.max(),
    ]  # fmt: skip
    for got, wanted in zip(rows[0], expected * 2, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_gradients_without_a_sum_are_returned_unchanged() -> None:
    def run(comm: Any) -> Any:
        k = Sharded(NumpyBackend(), dp=2, comm=comm)
        whole = k.wrapped.zeros((4,), k.float_dtype)
        cut, empty = k.cut(whole, 0), addends_of(k, np.zeros((0, 3)))
        assert k.settle(whole, whole) is whole
        assert k.settle(cut, cut) is cut
        assert k.settle(cut, whole) is cut
        assert k.settle(empty, empty) is empty
        return comm.events

    assert on_threads(2, run, Late) == [[]] * 2


def test_one_process_sums_immediately() -> None:
    k = Sharded(NumpyBackend(), dp=2)
    assert k.settles
    whole = k.wrapped.zeros((4,), k.float_dtype)
    assert k.settle(addends_of(k, np.arange(4)), whole).tolist() == [0.0, 1.0, 2.0, 3.0]
    cut = k.settle(addends_of(k, np.arange(4)), k.cut(whole, 0))
    assert (cut.axis, [p.tolist() for p in cut.parts]) == (0, [[0.0, 1.0], [2.0, 3.0]])


def test_one_shard_settles_nothing() -> None:
    assert not Sharded(NumpyBackend(), dp=1).settles
    assert Sharded(Sharded(NumpyBackend(), tp=2), dp=1).settles
