"""``Capture``: which calls a recording omits, and that a replay gives the step's results."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, ClassVar

import numpy as np
import pytest

import backburn as bb
from backburn import nn, optim
from backburn.backend import OPERATIONS, Wrapper, load_backend
from backburn.backend.host_numbers import RECORDING_STEP, Recording
from backburn.base.contexts import scoped
from backburn.base.errors import BackburnError, CaptureError, NumericalInstabilityError, OutOfRangeError, SpecError
from backburn.conformance import SAMPLES, check_backend
from backburn.conformance.samples.calls import flatten, operands_of, to_primitives
from backburn.decorators import Capture, Profile
from backburn.nn import functional
from backburn.programs.executable import CompiledProgram
from backburn.programs.ir import Call, Program, Variable, rewrite
from backburn.transforms import CapturedFunction, CaptureWarning
from backburn_numpy import NumpyBackend, compiled

NUMPY: Any = load_backend("numpy")
RECORDING: Any = load_backend("capture(numpy)")
HOST = {n for n, entry in OPERATIONS.items() if entry.shape is None or entry.results[0] == "host"}


def on(*values: Any) -> list[Any]:
    return [bb.asarray(x, backend=RECORDING) for x in values]


def replayed(function: Callable[..., Any], *batches: Sequence[Any]) -> tuple[list[Any], CapturedFunction]:
    """The results of a captured function for each batch; replays begin with the third."""
    captured = bb.capture(function, state=False, on_fallback="error")
    return [captured(*batch) for batch in batches], captured


# ---- every operation ----


def as_list(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (list, tuple)) else [result]


@pytest.mark.parametrize("name", [name for name in SAMPLES if name not in HOST | {"from_numpy"}])
def test_every_operation_is_replayed_on_other_operands(name: str) -> None:
    for sample in SAMPLES[name].cases[:6]:
        operands = to_primitives(NUMPY, operands_of(name, sample, SAMPLES[name].dtypes[0]))
        inputs = [x for x in flatten(operands) if hasattr(x, "shape")]
        attributes = {n: x for n, x in sample.attributes.items() if n != "donate"}

        def call(k: Any, values: list[Any], attributes: Any = attributes, operands: Any = operands) -> Any:
            rest = iter(values)
            given = [
                [next(rest) if hasattr(x, "shape") else x for x in o]
                if isinstance(o, list)
                else (next(rest) if hasattr(o, "shape") else o)
                for o in operands
            ]
            return as_list(getattr(k, name)(*given, **attributes))

        with scoped(RECORDING_STEP, Recording()):
            program = RECORDING.capture(lambda _, values, call=call: ([], call(RECORDING, values)), [], inputs)
        others = [turned(x) for x in inputs]
        try:
            expected = [call(NUMPY, values) for values in (others, inputs)]
        except (BackburnError, IndexError):  # reversed indices may be out of range
            others, expected = inputs, [call(NUMPY, inputs)] * 2
        for values, wanted in zip((others, inputs), expected, strict=True):
            for got, x in zip(program(values, []), wanted, strict=True):
                np.testing.assert_array_equal(NUMPY.to_numpy(got), NUMPY.to_numpy(x))
                assert NUMPY.dtype(got) is NUMPY.dtype(x)


def turned(x: Any) -> Any:
    """The operand with its first axis reversed."""
    return x if NUMPY.dtype(x).kind == "quantized" else np.ascontiguousarray(x[::-1]) if x.ndim else x.copy()


@pytest.mark.parametrize("name", sorted(HOST & set(SAMPLES)))
def test_operations_that_read_values_cannot_be_recorded(name: str) -> None:
    operands = to_primitives(NUMPY, operands_of(name, SAMPLES[name].cases[0], SAMPLES[name].dtypes[0]))
    recording = Recording()
    with scoped(RECORDING_STEP, recording), pytest.raises(CaptureError, match=f"{name} reads values on the host"):
        RECORDING.capture(
            lambda _, values: ([], [getattr(RECORDING, name)(*operands, **SAMPLES[name].cases[0].attributes)]), [], []
        )
    assert isinstance(recording.refused, CaptureError)


@pytest.mark.parametrize("spec", ["capture(numpy)", "autodiff(capture(numpy))"])
def test_it_is_a_backend_like_any_other(spec: str) -> None:
    operations = ["add", "softmax", "matmul", "topk", "dropout", "quantized_matmul", "adam_step"]
    report = check_backend(spec, quick=True, ops=operations)
    assert report.ok, report


# ---- derivatives ----


def network(x: Any, w: Any) -> Any:
    return bb.tanh(x @ w).sum()


@pytest.mark.parametrize("derivative", [
    lambda x, w: bb.grad(network, argnums=(0, 1))(x, w),
    lambda x, w: bb.hessian(network)(x[0], w),
    lambda x, w: bb.jacobian(lambda x: bb.softmax(x @ w))(x[0]),
    lambda x, w: bb.jvp(lambda w: bb.grad(network)(x, w), (w,), (w,)),
    lambda x, w: bb.vmap(bb.grad(network), in_axes=(0, None))(x, w),
    lambda x, w: bb.grad(lambda w: bb.checkpoint(lambda w: network(x, w))(w))(w),
    lambda x, w: {"a": [x.sum(axis=0), 7], "b": bb.split(x, 2)},
])  # fmt: skip
def test_derivatives_are_replayed(derivative: Callable[..., Any]) -> None:
    """Bitwise equal without joined calls, within rounding with them."""
    for k, rounding in ((RECORDING, 1e-14), (bb.load_backend("capture(numpy, join=false)"), 0.0)):
        rng = np.random.default_rng(0)
        batches = [[bb.asarray(rng.normal(size=shape), backend=k) for shape in ((4, 3), (3, 3))] for _ in range(5)]
        found, captured = replayed(derivative, *batches)
        assert captured.reason == ""
        assert repr(captured) == "<captured function: replayed>"
        same = partial(np.testing.assert_allclose, rtol=rounding, atol=rounding)
        for got, batch in zip(found, batches, strict=True):
            bb.trees.tree_map(lambda a, b, same=same: same(np.asarray(a), np.asarray(b)), got, derivative(*batch))


# ---- what is recorded ----


def test_unused_and_constant_calls_are_omitted() -> None:
    def function(x: Any) -> Any:
        bb.exp(x)  # not used
        table = bb.arange(3, dtype="float64", backend=RECORDING) * 2.0 + 1.0  # never changes
        return x * table

    found, captured = replayed(function, *(on(np.full(3, n)) for n in (1.0, 2.0, 3.0)))
    assert [x.tolist() for x in found] == [[n, 3 * n, 5 * n] for n in (1.0, 2.0, 3.0)]
    assert captured.launches == 1


def test_equal_calls_run_once() -> None:
    def function(x: Any) -> Any:
        return (x * 2.0) + (x * 2.0) - x[1:2] * x[1:2], x * -0.0, x * 0.0

    found, captured = replayed(function, *(on([n, 1.0]) for n in (1.0, 2.0, 3.0)))
    assert captured.launches == 7  # x * 2.0, the sum, the slice, its square, the difference, and the two zeros
    assert [[x.tolist() for x in out] for out in found] == [
        [[4.0 * n - 1.0, 3.0], [-0.0, -0.0], [0.0, 0.0]] for n in (1.0, 2.0, 3.0)
    ]
    assert repr(found[2][1].tolist()) == "[-0.0, -0.0]"


def test_one_tensor_as_two_arguments_may_be_two_tensors_later() -> None:
    x, y, z = on(1.0, 2.0, 4.0)

    def function(a: Any, b: Any) -> Any:
        return a - b + x

    found, _ = replayed(function, (x, x), (x, x), (y, z), (z, y))
    assert [v.item() for v in found] == [1.0, 1.0, -1.0, 3.0]


def test_a_tensor_twice_in_the_state_may_be_two_tensors_later() -> None:
    def step(state: Any, x: Any) -> Any:
        return (state[1] * 2.0, state[0] + x), state[0]

    captured, (x,) = bb.capture(step, on_fallback="error"), on(1.0)
    (a,), (b,) = on(3.0), on(3.0)
    state, found = (a, bb.asarray(a)), []
    for _ in range(4):
        state, out = captured(state, x)
        found.append(out.item())
    assert found == [3.0, 6.0, 8.0, 14.0]
    assert b.item() == 3.0


class Watching(Wrapper):
    """Counts how many results of ``exp`` are alive at once."""

    name = "watching"

    def __init__(self, wrapped: Any) -> None:
        super().__init__(wrapped)
        self.results: list[Any] = []
        self.most = 0

    def call(self, operation: str, /, *operands: Any, **attributes: Any) -> Any:
        result = super().call(operation, *operands, **attributes)
        if operation == "exp":
            self.results.append(weakref.ref(result))
            self.most = max(self.most, sum(known() is not None for known in self.results))
        return result


def test_a_replay_frees_unneeded_results() -> None:
    watching = Watching(NumpyBackend())
    k = Capture(watching)
    x = bb.asarray([0.1], backend=k)

    def function(x: Any) -> Any:
        for _ in range(8):
            x = bb.exp(-bb.exp(x))
        return x

    captured = bb.capture(function, state=False, on_fallback="error")
    outputs = [captured(x) for _ in range(2)]
    watching.most = 0
    outputs += [captured(x) for _ in range(2)]
    assert captured.reason == ""
    assert len({out.item() for out in outputs}) == 1
    assert watching.most <= 4 + 2, "the returned ones, and one or two at a time"


def test_checkpoints_are_recomputed_in_replays() -> None:
    watching = Watching(NumpyBackend())
    x = bb.asarray([0.1], backend=Capture(watching))

    def block(x: Any) -> Any:
        for _ in range(6):
            x = bb.exp(-bb.exp(x))
        return x

    most = []
    for wrap in (bb.checkpoint, lambda f: f):

        def loss(x: Any, wrap: Any = wrap) -> Any:
            return wrap(block)(wrap(block)(x)).sum()

        captured = bb.capture(bb.grad(loss), state=False, on_fallback="error")
        for _ in range(3):
            watching.most = 0
            found = captured(x)
        assert captured.reason == ""
        assert found.item() == bb.grad(loss)(x).item()
        most.append(watching.most)
    assert most[0] < 0.8 * most[1]


def test_outputs_are_never_overwritten() -> None:
    captured = bb.capture(lambda w, x: (w + x, (w, x)), on_fallback="error")
    (one, state), kept = on(1.0, 0.0), []
    for _ in range(5):
        state, out = captured(state, one)
        kept.append(out)
    assert [[x.item() for x in out] for out in kept] == [[float(n), 1.0] for n in range(5)]


# ---- joined calls ----

UNARY = ["negative", "abs", "square", "exp", "sin", "tanh", "sigmoid", "sign", "reciprocal"]
BINARY = ["add", "subtract", "multiply", "maximum", "minimum"]


def formula_of(seed: int) -> Callable[..., Any]:
    """A random program, mostly of element-wise functions."""

    def function(*given: Any) -> Any:
        rng = np.random.default_rng(seed)
        values, bools, outputs = list(given), [], []

        def some() -> Any:
            return values[rng.integers(max(0, len(values) - 6), len(values))]

        for _ in range(rng.integers(4, 30)):
            kind = rng.integers(10)
            x, y = some(), some()
            if kind < 3:
                values.append(getattr(bb, UNARY[rng.integers(len(UNARY))])(x * 0.5))
            elif kind < 6:
                values.append(getattr(bb, BINARY[rng.integers(len(BINARY))])(x, y))
            elif kind == 6:
                bools.append(x < y)
            elif kind == 7 and bools:
                values.append(bb.where(bools[-1], x, y))
            elif kind == 8:
                values.append(x - x.mean(axis=rng.integers(x.ndim), keepdims=True) if x.ndim else x)
            else:
                values.append(x * float(rng.integers(-2, 3)) + 1.0)
            if rng.random() < 0.15:
                outputs.append(values[-1])
        return [*outputs, *bools[:1], values[-1], values[-1].sum()]

    return function


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("shape", [(70, 80), (5000,), (2, 3)])
def test_joined_calls_give_the_results_of_separate_calls(dtype: str, shape: tuple[int, ...]) -> None:
    tolerance = {"float32": 2e-4, "float64": 1e-10, "float16": 0.0}[dtype]
    fewer = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        arrays = [rng.uniform(-1, 1, s).astype(dtype) for s in (shape, shape, (), shape[-1:])]
        function = formula_of(seed)
        with np.errstate(all="ignore"):
            expected = function(*(bb.asarray(a) for a in arrays))
            launches = []
            for spec in ("capture(numpy)", "capture(numpy, join=false)"):
                captured = bb.capture(function, state=False, on_fallback="error")
                operands = [bb.asarray(a, backend=spec) for a in arrays]
                for _ in range(3):
                    found = captured(*operands)
                assert captured.reason == ""
                launches.append(captured.launches or 0)
                for got, wanted in zip(found, expected, strict=True):
                    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
                    if "join=false" in spec or dtype == "float16":
                        np.testing.assert_array_equal(got.numpy(), wanted.numpy())
                    elif wanted.dtype.kind == "float":
                        a, b = got.numpy().astype("float64"), wanted.numpy().astype("float64")
                        np.testing.assert_allclose(a, b, tolerance, tolerance * max(1.0, np.abs(b).max()))
        fewer += launches[0] < launches[1]
    assert (fewer > 5) == (prod(shape) > 1000)  # native programs are not launches


def test_a_joined_formula_is_one_call() -> None:
    profile = load_backend("profile(numpy)")
    assert isinstance(profile, Profile)
    x = bb.linspace(-1.0, 1.0, 5000, backend="capture(profile(numpy))")
    table = bb.linspace(0.0, 1.0, 5000, backend="capture(profile(numpy))")
    y = x * 0.5

    def function(x: Any, y: Any) -> Any:
        is_more, mean = x > y, y.mean()
        return bb.where(is_more, bb.exp(-x * x) * 2.0, table) + mean, is_more

    captured = bb.capture(function, state=False, on_fallback="error")
    for _ in range(3):
        captured(x, y)
    profile.reset()
    captured(x, y)
    counts = {name: cost.calls for name, cost in profile.costs.items()}
    assert counts.pop("greater") == 1, "not joined a second time: its result is returned"
    assert counts.pop("mean") == 1
    assert counts == {"greater neg mul exp mul where add": 1}


def test_calls_with_changing_attributes_are_not_joined() -> None:
    slopes, recording = iter([0.5, 0.25, 2.0]), Recording()
    x = np.linspace(-1.0, 1.0, 5000)

    def program(_: Any, values: list[Any]) -> Any:
        slope = recording.number(lambda: next(slopes))
        bent = RECORDING.leaky_relu(RECORDING.neg(values[0]), slope=slope)
        return [], [RECORDING.mul(RECORDING.exp(bent), 2.0)]

    with scoped(RECORDING_STEP, recording):
        replay = RECORDING.capture(program, [], [x])
    assert replay.launches == 3
    for slope in (0.25, 2.0):
        (out,) = replay([x], recording.advance())
        np.testing.assert_allclose(out, 2.0 * np.exp(np.where(x < 0, -x, -x * slope)), rtol=1e-12)


def test_join_is_part_of_the_spec() -> None:
    k = load_backend("capture(numpy, join=false)")
    assert k.spec == "capture(numpy, join=false)"
    assert k is not RECORDING
    assert load_backend("capture(numpy, join=true)") is RECORDING


# ---- numbers, random numbers, the host ----


def test_backends_receive_plain_numbers() -> None:
    seen: list[type] = []

    class Looking(Wrapper):
        name = "looking"

        def call(self, operation: str, /, *operands: Any, **attributes: Any) -> Any:
            seen.extend(type(x) for x in (*operands, *attributes.values()) if isinstance(x, float))
            return super().call(operation, *operands, **attributes)

    k = bb.Autodiff(Capture(Looking(NumpyBackend())))
    model, optimizer = {"w": bb.ones(3, backend=k).require_grad()}, optim.Adam(lambda step: 0.5 / (step + 1))

    def step(state: Any) -> Any:
        loss = (state[0]["w"] ** 2.0).sum()
        state[1].step(state[0], loss.backward())
        return state, loss

    captured, state, losses = bb.capture(step, on_fallback="error"), (model, optimizer), []
    for _ in range(5):
        state, loss = captured(state)
        losses.append(loss.item())
    assert captured.reason == ""
    assert set(seen) == {float}
    assert losses == sorted(losses, reverse=True)


def test_dropout_draws_other_masks() -> None:
    (x,) = on(np.ones(64))
    found, captured = replayed(lambda x: functional.dropout(x, 0.5, training=True), *[(x,)] * 5)
    assert captured.reason == ""
    assert len({tuple(out.tolist()) for out in found}) == 5


def test_arrays_created_in_the_step_are_constants() -> None:
    batches = [on([n, n]) for n in (1.0, 2.0, 3.0)]
    found, captured = replayed(lambda x: x * bb.asarray([1.0, 2.0], backend=RECORDING), *batches)
    assert [x.tolist() for x in found] == [[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]
    assert captured.launches == 1
    counts = iter(range(9))
    captured = bb.capture(lambda x: x + bb.asarray([float(next(counts))], backend=RECORDING), state=False)
    with pytest.warns(CaptureWarning, match="copies values from the host .* pass what changes in the batch"):
        assert [captured(*on([0.0])).item() for _ in range(4)] == [0.0, 2.0, 3.0, 4.0], "recording fails: it runs again"


# ---- errors ----


def rows(state: Any, places: Any) -> Any:
    model, optimizer = state
    loss = bb.take(model["w"], places, axis=0).sum()
    optimizer.step(model, loss.backward())
    return state, loss


def test_a_replay_that_fails_changes_nothing() -> None:
    with bb.use_backend("autodiff(capture(numpy))"):
        state = ({"w": bb.ones((3, 2)).require_grad()}, optim.Adam(0.1))
        captured, good, bad = bb.capture(rows), bb.asarray([0, 2]), bb.asarray([0, 3])
        for _ in range(3):
            state, _ = captured(state, good)
        before = state[0]["w"].tolist()
        words = r"take: index 3 .* Operands: float32\[3,2\] \(capture\(numpy\)\), int64\[2\]"
        with pytest.raises(OutOfRangeError, match=words):
            captured(state, bad)
        assert state[0]["w"].tolist() == before
        assert state[1].steps == 3
        state, _ = captured(state, good)
        assert state[1].steps == 4
        assert captured.reason == ""


def test_warnings_that_are_errors_do_not_stop_a_replay() -> None:
    (x,) = on([0.0, 1.0])
    captured = bb.capture(lambda x: 1.0 / x, state=False, on_fallback="error")
    with np.errstate(all="raise"):
        assert [captured(x).tolist() for _ in range(3)] == [[np.inf, 1.0]] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert captured(x).tolist() == [np.inf, 1.0]


def test_a_backend_that_records_is_not_decorated() -> None:
    with pytest.raises(SpecError, match=r"capture\(numpy\) records by itself"):
        load_backend("capture(capture(numpy))")
    with pytest.raises(SpecError, match="join is true or false, not 'maybe'"):
        load_backend("capture(numpy, join=maybe)")


# ---- among other decorators and threads ----


def test_a_profile_sees_what_is_replayed() -> None:
    profile = load_backend("profile(numpy)")
    assert isinstance(profile, Profile)
    x = bb.ones(3, backend="capture(profile(numpy))")
    captured = bb.capture(lambda x: bb.exp(x) * 2.0, state=False, on_fallback="error")
    for _ in range(3):
        captured(x)
    profile.reset()
    captured(x)
    assert {name: cost.calls for name, cost in profile.costs.items()} == {"exp": 1, "mul": 1}
    profile.reset()
    assert not load_backend("profile(capture(numpy))").capabilities.capture


def test_another_thread_is_not_recorded() -> None:
    (x,) = on(2.0)
    found = []

    def function(y: Any) -> Any:
        thread = threading.Thread(target=lambda: found.append(x.item()))  # reading on the host would be refused
        thread.start()
        thread.join()
        return y * x

    results, captured = replayed(function, *(on(n) for n in (1.0, 2.0, 3.0)))
    assert [out.item() for out in results] == [2.0, 4.0, 6.0]
    assert captured.reason == ""
    assert found == [2.0, 2.0]


def test_what_another_thread_computes_is_not_recorded() -> None:
    def function(y: Any) -> Any:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(y * 2.0))
        thread.start()
        thread.join()
        return found[0]

    captured = bb.capture(function, state=False, on_fallback="allow")
    assert [captured(*on(n)).item() for n in (1.0, 2.0, 3.0)] == [2.0, 4.0, 6.0]
    assert "another thread" in captured.reason


def test_a_model_among_the_arguments() -> None:
    with bb.use_backend("autodiff(capture(numpy))"):
        bb.random.seed(0)
        model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), bb.ones((2, 3))
        captured = bb.capture(lambda model, x: model(x), state=False, on_fallback="error")
        for _ in range(4):
            np.testing.assert_array_equal(captured(model, x).numpy(), model(x).numpy())
            optimizer = optim.SGD(0.1)
            optimizer.step(model, model(x).sum().backward())
        assert captured.reason == ""


def test_quantized_models_are_replayed() -> None:
    bb.random.seed(0)
    model, x = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)), bb.random.normal((5, 64))
    quantized, x = bb.quantization.quantize_model(model).to("capture(numpy)"), x.to("capture(numpy)")
    captured = bb.capture(lambda model, x: model(x), state=False, on_fallback="error")
    expected = quantized(x).numpy()
    for _ in range(4):
        np.testing.assert_array_equal(captured(quantized, x).numpy(), expected)
    assert captured.reason == ""


# ---- what changes outside the state, and what else tells steps apart ----


def test_tensors_kept_outside_are_detected() -> None:
    """Results that a replay could not update: gradient tables, objects that are not trees, models from outside."""

    class Found:
        def __init__(self, loss: Any) -> None:
            self.loss = loss

    with bb.use_backend("autodiff(capture(numpy))"):
        w, layer, optimizer = bb.asarray([1.0, 2.0]).require_grad(), nn.BatchNorm(3), optim.SGD(0.1, momentum=0.9)
        kept: dict[str, Any] = {}

        def steps(x: Any) -> Any:
            model = {"w": bb.asarray([1.0, 2.0]).require_grad()}
            optimizer.step(model, (model["w"] * x.sum()).sum().backward())
            return model["w"]

        functions: list[Any] = [
            lambda x: (w * x.sum()).sum().backward(),
            lambda x: Found(x * 2.0),
            lambda x: layer(x),
            lambda x: kept.update(x=x * 2.0),
            steps,
        ]
        for function in functions:
            captured = bb.capture(function, state=False)
            captured(bb.ones((2, 3)))
            with pytest.warns(CaptureWarning, match=r"a float32\[.*\] that it computes is kept outside") as told:
                captured(bb.ones((2, 3)))
            assert told[0].filename == __file__
        captured = bb.capture(functions[0], state=False, on_fallback="allow")
        for n in range(4):
            slope: Any = w.grad(captured(bb.full((2, 3), n)))
            assert slope.tolist() == [6.0 * n, 6.0 * n]


def test_constant_gradients_are_recorded() -> None:
    """The gradient of a loss linear in the table is constant, and plain SGD returns it as its velocity."""
    with bb.use_backend("autodiff(capture(numpy))"):
        model, ids, weights = nn.Embedding(9, 4), bb.asarray([1, 5, 1]), bb.linspace(0.0, 1.0, 12).reshape(3, 4)
        before, optimizer = model.weight.numpy().copy(), optim.SGD(0.5)

        def step(state: Any) -> Any:
            loss = (model(ids) * weights).sum()
            optimizer.step(model, loss.backward())
            return state, loss

        captured = bb.capture(step, on_fallback="error")
        for _ in range(5):
            captured((model, optimizer))
        slope = np.zeros((9, 4), np.float32)
        np.add.at(slope, ids.numpy(), weights.numpy())
        np.testing.assert_allclose(model.weight.numpy(), before - 2.5 * slope, rtol=1e-6)


def test_a_batch_that_the_step_changes_is_not_recorded() -> None:
    with bb.use_backend("autodiff(capture(numpy))"):
        x = bb.linspace(0.0, 1.0, 6).reshape(2, 3)
        for change in (lambda layer, batch: layer(batch["x"]), lambda layer, batch: batch.pop("x") * 2.0):
            layer = nn.BatchNorm(3)
            captured = bb.capture(change, state=False)
            captured(layer, {"x": x})
            with pytest.warns(CaptureWarning, match="it changes the batch .* in the state"):
                captured(layer, {"x": x})
        layers: list[Any] = [nn.BatchNorm(3), nn.BatchNorm(3)]
        layer, other = layers
        captured = bb.capture(lambda layer, x: layer(x), state=False, on_fallback="allow")
        for n in range(4):
            captured(layer, x * float(n))
            other(x * float(n))
        found, wanted = ({n: x.tolist() for n, x in m.state_dict().items()} for m in layers)
        assert found == wanted


def test_a_parameter_twice_in_the_batch_is_one_parameter() -> None:
    def function(model: Any, x: Any) -> Any:
        gradients = (model["a"] * model["b"] * x).sum().backward()
        return model["a"].grad(gradients), model["b"].grad(gradients)

    with bb.use_backend("autodiff(capture(numpy))"):
        one, two = (bb.asarray([1.0, 2.0]).require_grad() for _ in range(2))
        captured = bb.capture(function, state=False, on_fallback="error")
        for a, b in [(one, one)] * 3 + [(one, two)] * 3 + [(two, two)] * 2:
            found, wanted = captured({"a": a, "b": b}, bb.asarray(3.0)), function({"a": a, "b": b}, bb.asarray(3.0))
            assert [x.tolist() for x in found] == [x.tolist() for x in wanted]
        assert captured.reason == ""


@pytest.mark.parametrize("make", [
    lambda: optim.SGD(0.5), lambda: optim.Adam(0.5, betas=(0.5, 0.5)), lambda: optim.SGD(lambda step: 0.1 / (step + 1)),
])  # fmt: skip
def test_other_optimizers_continue_from_their_own_rate_and_steps(make: Callable[[], Any]) -> None:
    def run(step: Any) -> list[Any]:
        found = []
        for optimizer in (optim.SGD(0.1), make(), make()):
            with bb.use_backend("autodiff(capture(numpy))"):
                state = {"w": bb.asarray([1.0, 2.0]).require_grad()}, optimizer
            for i in range(6):
                if i == 4:
                    state = state[0], copy.deepcopy(state[1])
                state, loss = step(state)
                found.append(loss.item())
            found.append(state[1].steps)
        return found

    def step(state: Any) -> Any:
        loss = (state[0]["w"] ** 2.0).sum()
        state[1].step(state[0], loss.backward())
        return state, loss

    assert run(bb.capture(step, on_fallback="error")) == run(step)


def test_each_default_backend_has_its_own_recording() -> None:
    captured, (x,) = bb.capture(lambda x: (x, bb.zeros(2)), state=False, on_fallback="error"), on(1.0)
    for spec in ["capture(numpy)", "autodiff(capture(numpy))"] * 4:
        with bb.use_backend(spec):
            assert captured(x)[1].backend.spec == spec


def test_anomalies_are_detected() -> None:
    captured = bb.capture(lambda x: bb.log(x), state=False)
    with bb.use_backend("autodiff(capture(numpy))"):
        x = bb.asarray([-1.0])
    for _ in range(3):
        captured(x)
    with bb.detect_anomaly(), pytest.raises(NumericalInstabilityError, match="log"):
        captured(x)


def test_captured_functions_run_unrecorded_inside_transforms() -> None:
    captured, (x,) = bb.capture(lambda x: x * x, state=False), on([1.0, 2.0])
    for _ in range(3):
        assert bb.vmap(captured)(x).tolist() == [1.0, 4.0]
    assert "inside of a transform" in captured.reason


def test_forward_mode_is_refused_with_a_hint() -> None:
    for level in ("forward(numpy)", "forward(capture(numpy))"):
        captured = bb.capture(lambda x: x * x, state=False)
        assert captured(bb.asarray([2.0], backend=f"autodiff({level})")).tolist() == [4.0]
        assert captured.reason == f"{level} does not record; capture(numpy) does"


def test_a_failing_replay_restores_step_counts_and_generators() -> None:
    fails: list[int] = []

    def rate(step: int) -> float:
        if fails:
            raise ValueError("no rate")
        return 0.1

    def step(state: Any) -> Any:
        x = bb.random.uniform((2,), backend=RECORDING)
        named.seed(3)
        for model, optimizer in state:
            optimizer.step(model, (model["w"] * x.to(model["w"].backend)).sum().backward())
        return state, bb.random.uniform((1,), backend=RECORDING, generator=named)

    with bb.use_backend("autodiff(capture(numpy))"):
        state = [({"w": bb.ones(2).require_grad()}, optim.Adam(lr)) for lr in (0.1, rate)]
    named, captured = bb.random.Generator(5), bb.capture(step, on_fallback="error")
    for _ in range(3):
        captured(state)
    assert captured.reason == ""
    named.seed(9)
    before = [optimizer.state_dict()["steps"] for _, optimizer in state], named.state(), bb.random.get_state()
    fails.append(1)
    with pytest.raises(ValueError, match="no rate"):
        captured(state)
    assert before == (
        [optimizer.state_dict()["steps"] for _, optimizer in state], named.state(), bb.random.get_state()
    )  # fmt: skip


def test_a_recording_keeps_no_tensors_of_the_recorded_run() -> None:
    watching = Watching(NumpyBackend())
    with bb.use_backend(bb.Autodiff(Capture(watching))):
        w, x = bb.ones(3).require_grad(), bb.ones(3)
        captured = bb.capture(lambda w, x: bb.exp(bb.exp(w * x)), state=False, on_fallback="error")
        captured(w, x)
        watching.results.clear()
        out = captured(w, x)
    assert captured.reason == ""
    assert not out.is_tracked
    assert sum(known() is not None for known in watching.results) == 1, "the output of the replay"


def test_recordings_for_several_shapes_share_one_state() -> None:
    """The previous state, left by another recording, is freed."""
    captured, (w,) = bb.capture(lambda w, x: (w + x.sum(), None), on_fallback="error"), on([1.0, 2.0])
    states = []
    for number in range(12):
        w, _ = captured(w, bb.ones(2 + number % 3, backend=RECORDING))
        states.append(weakref.ref(w.primitive))
    assert captured.reason == ""
    assert [known() is not None for known in states] == [False] * 11 + [True]
    assert w.tolist() == [1.0 + 36.0, 2.0 + 36.0]


def test_copies_start_unrecorded() -> None:
    captured = bb.capture(bb.exp, state=False, on_fallback="error")
    step = bb.capture(tick, on_fallback="error")
    (x,) = on([0.0])
    state = {"x": on([0.0])[0]}
    for _ in range(3):
        expected = captured(x).tolist()
        state, _ = step(state)
    for again in (copy.deepcopy(captured), copy.copy(captured), pickle.loads(pickle.dumps(captured))):
        assert "it has not been called" in repr(again)
        assert [again(x).tolist() for _ in range(3)] == [expected] * 3
        assert again._captured._on_fallback == "error"
    again = pickle.loads(pickle.dumps(copy.deepcopy(step)))
    for _ in range(3):
        state, _ = again(state)
    assert again.reason == step.reason == ""
    assert state["x"].tolist() == [6.0]


def tick(state: Any) -> Any:
    return {"x": state["x"] + 1.0}, None


# ---- the program as text, and backends that compile ----


def test_a_program_is_shown_as_text() -> None:
    def step(state: Any, x: Any, y: Any) -> Any:
        model, optimizer, cache = state
        loss = nn.functional.mse_loss(bb.sort(model(x), axis=1), y)
        optimizer.step(model, loss.backward())
        return (model, optimizer, cache + 1.0), loss

    captured = bb.capture(step, on_fallback="error")
    assert captured.program is None
    with bb.use_backend("autodiff(capture(numpy))"):
        state: Any = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), optim.Adam(1e-3), bb.zeros(3)
        x, y = bb.ones((5, 4)), bb.ones((5, 2))
    for _ in range(3):
        state, _ = captured(state, x, y)
    text = str(captured.program)
    assert repr(captured.program) == text
    lines = text.splitlines()
    assert lines[0].startswith("state: v0: float32[3, 4], ")
    assert lines[-2].startswith("new state: ")
    assert lines[-1].startswith("outputs: v")
    sort = next(line for line in lines if "sort(" in line)
    assert "[5, 2]" in sort
    if compiled.level() is not None:
        assert any("native program of" in line for line in lines)
        assert any(line.startswith("    ") and " linear_weight_backward(" in line for line in lines)
        assert any("# not native: fewer than 4 calls in a row" in line for line in lines)
        assert "# not native: " in sort
        assert any("adam_steps(" in line and "# update in place: state 0" in line for line in lines)


def test_captured_functions_without_state_have_a_program() -> None:
    captured = bb.capture(lambda x: bb.exp(x * 2.0) * x + 1.0, state=False, on_fallback="error")
    x = bb.ones((100, 100), backend="capture(numpy)")
    for _ in range(3):
        captured(x)
    assert " = pass of 4 calls(v0)" in str(captured.program)
    assert "outputs: " in str(captured.program)


class Counting(Wrapper):
    """A backend that compiles programs, without changing their calls."""

    name = "counting"
    programs: ClassVar[list[list[str]]] = []

    def compile(self, program: Program) -> CompiledProgram:
        self.programs.append([call.operation for call in program.calls])
        return CompiledProgram(self, program)


def test_a_backend_compiles_programs_itself() -> None:
    k = Capture(Counting(NumpyBackend()))
    captured = bb.capture(lambda x: (bb.exp(x) * 2.0 + x).sum(), state=False, on_fallback="error")
    x = bb.asarray(np.linspace(0.0, 1.0, 10_000), backend=k)
    found = [captured(x).item() for _ in range(3)]
    assert Counting.programs == [["exp", "mul", "add", "sum"]]
    assert found[0] == found[1] == found[2]


def test_passes_drop_unused_calls() -> None:
    """Calls that a pass leaves unused are removed; its new variables have new indices."""
    k: Any = load_backend("numpy")
    x, y, z = (Variable(i, (3,), bb.float32) for i in (0, 7, 3))
    calls = [Call("exp", k.exp, [x], {}, y), Call("neg", k.neg, [y], {}, z)]
    program = Program(calls, [], [x], [[], [z]])

    def halve(program: Program, k: Any) -> list[Call]:
        new = program.variable((3,), bb.float32)
        assert new.index == 8
        return [*program.calls[:1], Call("square", k.square, [x], {}, new), Call("neg", k.neg, [new], {}, z)]

    assert program.makers() == {y: calls[0], z: calls[1]}
    assert program.users()[y] == [calls[1]]
    assert program.uses() == {x: 1, y: 1, z: 1}
    rewrite(program, k, (halve,))
    assert [call.operation for call in program.calls] == ["square", "neg"]
    assert program.launches == 2
    executable = CompiledProgram(k, program)
    np.testing.assert_array_equal(executable([np.array([1.0, 2.0, 3.0], np.float32)], [])[0], [-1.0, -4.0, -9.0])
