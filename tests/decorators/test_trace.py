"""``Trace``: events, their layers and nesting, reverse passes, replays, threads, errors, memory and files."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn, optim
from backburn.backend import load_backend
from backburn.base.contexts import scoped
from backburn.base.errors import ShapeError, SpecError
from backburn.base.module_calls import CALL, WATCHERS
from backburn.conformance import check_backend
from backburn.decorators import Trace
from backburn.nn.functional import cross_entropy
from backburn_numpy import NumpyBackend

SPEC = "autodiff(trace(numpy))"


@pytest.fixture
def trace() -> Iterator[Trace]:
    found = load_backend("trace(numpy)")
    assert isinstance(found, Trace)
    found.reset()
    with scoped(CALL, None):  # another test may have interrupted a call
        yield found
    found.reset()


class Net(nn.Module):
    """Nested modules, one of them called twice."""

    def __init__(self) -> None:
        self.first = nn.Linear(4, 6)
        self.blocks = [nn.Sequential(nn.Tanh(), nn.Linear(6, 6)) for _ in range(2)]
        self.twice = nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.twice(self.twice(x)) * 2.0


def net(spec: str = SPEC) -> tuple[Any, Any]:
    with bb.use_backend(spec):
        bb.random.seed(0)
        return Net(), bb.ones((5, 4))


def calls(trace: Trace, *categories: str) -> list[dict[str, Any]]:
    return [event for event in trace.events if event["ph"] == "X" and event["cat"] in categories]


def named(events: list[dict[str, Any]]) -> list[tuple[str, str | None]]:
    return [(event["name"], event["args"]["layer"]) for event in events]


def check_nesting(events: list[dict[str, Any]]) -> int:
    """Check that any two events of a thread are disjoint or nested; return the greatest depth."""
    deepest = 0
    for thread in {event["tid"] for event in events}:
        ends: list[float] = []
        for event in sorted((e for e in events if e["tid"] == thread), key=lambda e: (e["ts"], -e["dur"])):
            start, end = event["ts"], event["ts"] + event["dur"]
            while ends and ends[-1] <= start + 1e-3:
                ends.pop()
            assert not ends or end <= ends[-1] + 1e-3, event
            ends.append(end)
            deepest = max(deepest, len(ends))
    return deepest


LINEAR, TANH = "linear", "tanh"


def test_operations_have_the_layers_that_called_them(trace: Trace) -> None:
    model, x = net()
    trace.reset()
    model(x)
    assert named(calls(trace, "forward")) == [
        (LINEAR, "first"),
        (TANH, "blocks.0.0"), (LINEAR, "blocks.0.1"), ("add", ""),
        (TANH, "blocks.1.0"), (LINEAR, "blocks.1.1"), ("add", ""),
        (LINEAR, "twice"), (LINEAR, "twice"), ("mul", ""),
    ]  # fmt: skip
    spans = [(event["name"], event["args"]["type"]) for event in calls(trace, "module")]
    assert spans == [
        ("Net", "Net"), ("first", "Linear"),
        ("blocks.0", "Sequential"), ("blocks.0.0", "Tanh"), ("blocks.0.1", "Linear"),
        ("blocks.1", "Sequential"), ("blocks.1.0", "Tanh"), ("blocks.1.1", "Linear"),
        ("twice", "Linear"), ("twice", "Linear"),
    ]  # fmt: skip
    (first, *_) = calls(trace, "forward")
    assert first["args"]["operands"] == ["float32[5, 4]", "float32[6, 4]", "float32[6]"]
    assert first["args"]["result"] == ["float32[5, 6]"]
    assert first["args"]["multiply_adds"] == 5 * 4 * 6
    assert check_nesting(calls(trace, "module", "forward")) == 4


def test_a_reverse_pass_has_the_layers_of_its_forward_pass(trace: Trace) -> None:
    model, x = net()
    loss = model(x).sum()
    trace.reset()
    loss.backward()
    found = named(calls(trace, "backward"))
    weights = [layer for name, layer in found if name == "linear_weight_backward"]
    assert weights == ["twice", "twice", "blocks.1.1", "blocks.0.1", "first"]
    assert [layer for name, layer in found if name == "tanh_slope"] == ["blocks.1.0", "blocks.0.0"]
    assert ("mul", "") in found
    spans = calls(trace, "backward pass")
    assert spans[0]["name"] == "backward"
    assert {"blocks.1", "blocks.1.1", "blocks.0.0", "first"} <= {event["name"] for event in spans}
    assert check_nesting(calls(trace, "backward", "backward pass")) == 5
    assert not calls(trace, "module", "forward")


def test_second_derivatives_have_layers_too(trace: Trace) -> None:
    with bb.use_backend("autodiff(autodiff(trace(numpy)))"):
        model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        x = bb.ones((2, 3))
    trace.reset()
    slope = bb.grad(lambda x: (bb.grad(lambda x: model(x).sum())(x) ** 2.0).sum())
    slope(x)
    found = named(calls(trace, "backward"))
    assert [layer for name, layer in found if name == "matmul"] == ["0", "0", "0"], "slope, and two for its gradient"
    assert ("permute_dims", "0") in found, "from the gradient rule of the first derivative"
    assert {layer for name, layer in found if name == "tanh_slope"} == {"1"}
    check_nesting(calls(trace, "module", "forward", "backward", "backward pass"))


def test_a_trace_does_not_change_results(trace: Trace) -> None:
    def run(spec: str) -> list[Any]:
        model, x = net(spec)
        optimizer = optim.Adam(0.1)
        for _ in range(3):
            optimizer.step(model, (model(x) ** 2.0).mean().backward())
        return [p.numpy() for p in model.parameters()]

    for one, other in zip(run(SPEC), run("autodiff(numpy)"), strict=True):
        np.testing.assert_array_equal(one, other)
    assert CALL.get() is None


def test_recomputed_segments_are_part_of_the_reverse_pass(trace: Trace) -> None:
    with bb.use_backend(SPEC):
        model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), bb.ones((2, 4)).require_grad()
    checked = bb.checkpoint(model)
    loss = checked(x).sum()
    trace.reset()
    loss.backward()
    found = named(calls(trace, "backward"))
    assert ("linear", "0") in found, "recomputed"
    assert ("linear_weight_backward", "0") in found


@pytest.mark.parametrize("spec", ["autodiff(capture(trace(numpy)))", "autodiff(capture(trace(numpy), join=false))"])
def test_replays_are_spans_whose_operations_have_layers(trace: Trace, spec: str) -> None:
    def step(state: Any, x: Any, y: Any) -> Any:
        model, optimizer = state
        loss = cross_entropy(model(x), y)
        optimizer.step(model, loss.backward())
        return state, loss

    with bb.use_backend(spec):
        state: Any = (nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), optim.SGD(0.1))
        x, y = bb.ones((6, 4)), bb.asarray([0, 1, 2, 0, 1, 2])
    run = bb.capture(step, on_fallback="error")
    for _ in range(3):
        state, _ = run(state, x, y)
    trace.reset()
    run(state, x, y)
    assert [event["name"] for event in calls(trace, "replay")] == ["replay"]
    found = calls(trace, "forward", "backward", "other")
    assert all(event["args"].get("replayed") for event in found)
    layers = {(event["name"], event["args"]["layer"], event["cat"]) for event in found}
    assert {("linear", "0", "forward"), ("tanh", "1", "forward")} <= layers
    assert {("linear_weight_backward", "2", "backward"), ("tanh_slope", "1", "backward")} <= layers
    assert not calls(trace, "module")
    check_nesting(calls(trace, "replay", "forward", "backward", "other"))


def test_each_thread_has_its_own_timeline(trace: Trace) -> None:
    model, x = net()
    trace.reset()

    def run() -> None:
        for _ in range(10):
            model(x).sum().backward()

    threads = [threading.Thread(target=run, name=f"worker {n}") for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = calls(trace, "module", "forward", "backward", "backward pass", "other")
    assert len({event["tid"] for event in found}) == 3
    for thread in {event["tid"] for event in found}:
        own = [e for e in found if e["tid"] == thread]
        assert sum(e["name"] == "linear_weight_backward" and e["args"]["layer"] == "first" for e in own) == 10
        assert sum(e["name"] == "first" and e["cat"] == "module" for e in own) == 10
    check_nesting(found)


def test_errors_end_open_events(trace: Trace) -> None:
    with bb.use_backend(SPEC):
        model, x = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.Linear(3, 2))), bb.ones((2, 4))
    trace.reset()
    with pytest.raises(ShapeError, match=r"In '1\.1' \(Linear\) of this Sequential"):
        model(x)
    assert CALL.get() is None
    failed = {event["name"]: event["args"].get("failed", False) for event in calls(trace, "module")}
    assert failed == {"Sequential": True, "0": False, "1": True, "1.0": False, "1.1": True}
    check_nesting(calls(trace, "module", "forward"))

    cut = bb.custom_vjp(lambda x: x * 1.0)
    cut.define(lambda x: (x * 1.0, None), lambda _, g: (g * (1 / 0),))
    loss = nn.Tanh()(cut(bb.ones(3, backend=SPEC).require_grad())).sum()
    trace.reset()
    with pytest.raises(ZeroDivisionError):
        loss.backward()
    assert CALL.get() is None
    assert calls(trace, "backward pass")[0]["args"]["failed"]


def test_a_model_on_another_backend_is_not_in_the_timeline(trace: Trace) -> None:
    model, x = net("autodiff(numpy)")
    trace.reset()
    model(x).sum().backward()
    assert trace.events == []


def test_a_trace_around_a_trace(trace: Trace) -> None:
    outer = load_backend("trace(trace(numpy))")
    assert isinstance(outer, Trace)
    model, x = net("autodiff(trace(trace(numpy)))")
    trace.reset()
    outer.reset()
    model(x)
    assert named(calls(outer, "forward")) == named(calls(trace, "forward"))
    assert len(calls(outer, "module")) == len(calls(trace, "module")) == 10


# ---- memory ----


def test_memory_by_layer_without_computing() -> None:
    model, _ = net("autodiff(trace(null))")
    found = load_backend("trace(null)")
    assert isinstance(found, Trace)
    x = bb.zeros((1000, 4), backend="autodiff(trace(null))")
    found.reset()
    loss = model(x).sum()
    rows = 1000 * 6 * 4
    layers = found.layers
    assert {path: u.alive for path, u in layers.items() if path is not None} == {
        "first": rows, "blocks.0.0": rows, "blocks.0.1": 0, "": 2 * rows,
        "blocks.1.0": rows, "blocks.1.1": 0, "twice": rows,
    }  # fmt: skip
    assert layers["twice"].peak == 2 * rows
    loss.backward()
    saved = {path: u.saved for path, u in found.layers.items() if path is not None and u.saved}
    # A tanh saves its argument and its result, before the linear layer after it saves that.
    assert saved == dict.fromkeys(("blocks.0.0", "blocks.1.0", "twice"), 2 * rows)
    assert found.peak > 5 * rows
    del loss
    gc.collect()
    assert found.layers["blocks.0.0"].alive == 0


def test_operands_are_described_and_not_kept_alive() -> None:
    k: Any = Trace(load_backend("null"))
    x = k.ones((3,), k.float_dtype)
    assert k.to_numpy(x).shape == (3,)
    assert k.layers[None].alive == 12
    y = k.concat([x] * 20, 0)
    (event,) = [event for event in k.events if event["name"] == "concat"]
    assert event["args"]["operands"] == [["float32[3]"] * 16 + ["..."], "0"]
    assert event["args"]["result"] == ["float32[60]"]
    assert k.layers[None].alive == 12 + y.nbytes


def test_memory_of_arrays_counts_views_once(trace: Trace) -> None:
    k: Any = trace
    x = k.ones((100_000,), k.float_dtype)
    trace.reset()
    y = k.exp(x)
    views = [
        k.reshape(y, (100, 1000)),
        k.slice(y, (slice(0, 10, 1),)),
        k.permute_dims(k.reshape(y, (10, 10_000)), (1, 0)),
    ]
    assert trace.layers[None].alive == 400_000
    del y
    assert trace.layers[None].alive == 400_000, "the views keep it"
    del views
    assert trace.layers[None].alive == 0
    assert trace.layers[None].peak == 400_000
    events = [event["args"]["bytes"] for event in trace.events if event["ph"] == "C"]
    assert max(events) == events[-1] == 800_000, "includes x, allocated earlier"
    del x


def test_the_table_of_layers(trace: Trace) -> None:
    model, x = net()
    trace.reset()
    model(x).sum().backward()
    lines = trace.layer_table().splitlines()
    assert lines[0].split() == ["layer", "calls", "forward", "ms", "backward", "ms", "peak", "bytes", "saved", "bytes"]
    parts = {"first", "blocks.0.0", "blocks.0.1", "blocks.1.0", "blocks.1.1", "twice"}
    assert {line.split("  ")[0] for line in lines[1:]} == {*parts, "(model)", "(outside)", "all together"}
    usage = trace.layers["first"]
    assert usage.calls == 2
    assert usage.forward > 0.0
    assert usage.backward > 0.0
    assert trace.costs["linear"].calls == 5, "a trace is a profile"


# ---- files ----


def test_the_file_is_a_chrome_trace(trace: Trace, tmp_path: Path) -> None:
    model, x = net()
    trace.reset()
    optim.Adam(0.1).step(model, cross_entropy(model(x), bb.zeros(5, dtype="int64", backend=SPEC)).backward())
    trace.save(tmp_path / "step.json")
    read = json.loads((tmp_path / "step.json").read_text(encoding="utf-8"))
    events = read["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    for event in events:
        assert {"name", "ph", "pid", "tid", "args"} <= event.keys()
        if event["ph"] != "M":
            assert event["ts"] >= 0.0
        if event["ph"] == "X":
            assert event["dur"] >= 0.0
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert "trace(numpy)" in names
    assert threading.current_thread().name in names
    assert any(event["name"].startswith("adam") for event in events)
    check_nesting([event for event in events if event["ph"] == "X"])
    with pytest.raises(FileNotFoundError):
        trace.save(tmp_path / "no" / "step.json")


def test_the_last_events_are_kept() -> None:
    k: Any = Trace(NumpyBackend(), limit=6)
    assert k.spec == "trace(numpy, limit=6)"
    for _ in range(5):
        k.neg(k.ones((2,), k.float_dtype))
    assert [event["name"] for event in k.events if event["ph"] == "X"] == ["neg", "ones", "neg"]
    for limit in (0, -1, 1.5, True):
        with pytest.raises(SpecError, match="limit is a number of events"):
            Trace(NumpyBackend(), limit=limit)  # type: ignore[arg-type]
    assert load_backend("trace(numpy, limit=6)").spec == "trace(numpy, limit=6)"


def test_a_deleted_trace_stops_listening() -> None:
    before = len(WATCHERS)
    k: Any = Trace(NumpyBackend())
    x = k.ones((2,), k.float_dtype)
    assert len(WATCHERS) == before + 1
    del k
    gc.collect()
    assert len(WATCHERS) == before
    del x


@pytest.mark.parametrize("spec", ["trace(numpy)", "autodiff(trace(numpy))"])
def test_a_trace_is_a_backend_like_any_other(spec: str) -> None:
    operations = ["add", "softmax", "matmul", "topk", "dropout", "quantized_matmul", "max_pool", "adam_step"]
    report = check_backend(spec, quick=True, ops=operations)
    assert report.ok, report
