"""Models exported with variable lengths, run at lengths that were not recorded; and recurrent layers."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("onnx", reason="writing ONNX models needs the package onnx")
import numpy as np
import onnx
from tests.distributed.test_layers import CASES
from tests.models.frozen import frozen, names
from tests.onnx.exporting import HAS_RUNTIME, check_again, check_export, far, run_reference, run_runtime, tensors_of

import backburn as bb
from backburn import nn
from backburn.errors import ArgumentError, CaptureError, Unsupported

AUTODIFF = "autodiff(numpy)"
#: The axes of the models' inputs.
AXES = {
    "tokens": {0: "batch", 1: "time"}, "attention_mask": {0: "batch", 1: "time"},
    "token_type_ids": {0: "batch", 1: "time"}, "pixels": {0: "batch", 2: "height"},
    "sample": {0: "batch", 2: "height"}, "timestep": {0: "batch"},
}  # fmt: skip
#: Models with fewer variable lengths: a ViT has positions for one size; this Llama's angles depend on the length.
OTHERWISE: dict[str, dict[int, str]] = {"vit": {0: "batch"}, "llama_dynamic": {}}
#: Lengths other than the recorded ones.
SIZES = [{"batch": 1, "time": 1, "height": 24}, {"batch": 3, "time": 5, "height": 16}]


@pytest.fixture(autouse=True)
def _on_autodiff() -> Any:
    with bb.use_backend(AUTODIFF):
        bb.random.seed(0)
        yield


def normal(*shape: int) -> Any:
    return bb.asarray(np.random.default_rng(0).normal(size=shape).astype(np.float32))


class Computed(nn.Module):
    def __init__(self, function: Any) -> None:
        self.function = function

    def forward(self, *xs: Any) -> Any:
        return self.function(*xs)


def resized(x: Any, axes: dict[int, str], sizes: dict[str, int]) -> Any:
    array = x.numpy()
    for axis, name in axes.items():
        array = np.take(array, np.arange(sizes[name]) % array.shape[axis], axis=axis)
    return bb.asarray(array)


def check_dynamic(
    model: Any, examples: Any, dynamic: dict[str, dict[int, str]], sizes: list[dict[str, int]], tolerance: float = 1e-6,
    reference: bool = True,
) -> Any:  # fmt: skip
    """Export a model, and compare results at other lengths."""
    model = model.eval()
    proto = bb.onnx.export(model, None, *examples, dynamic=dynamic)
    onnx.checker.check_model(proto, full_check=True)
    loaded = bb.onnx.load(proto)
    check_again(proto, loaded, tensors_of(examples), dynamic)
    for lengths in sizes:
        axes = [dynamic.get(v.name, {}) for v in proto.graph.input]
        inputs = [resized(x, a, lengths) for x, a in zip(tensors_of(examples), axes, strict=True)]
        expected = [x.numpy() for x in tensors_of(model(*inputs))]
        found = [[x.numpy() for x in tensors_of(loaded(*inputs))]]
        found += [run_reference(proto, inputs)] if reference else []
        found += [run_runtime(proto, inputs)] if HAS_RUNTIME else []
        for results in found:
            for x, y in zip(results, expected, strict=True):
                assert far(np.asarray(x), y) < tolerance
    return proto


def shapes_of(values: Any) -> list[list[int | str]]:
    return [[d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values]


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in names() if OTHERWISE.get(n, AXES)])
def test_models(name: str) -> None:
    case = frozen(name)
    model, examples = case.model(AUTODIFF), case.given(AUTODIFF)
    given = {key: OTHERWISE.get(name, AXES[key]) for key, _ in zip(_inputs(model), examples, strict=False)}
    proto = check_dynamic(model, examples, given, SIZES, tolerance=2e-6)
    assert shapes_of(proto.graph.output)[0][0] == "batch"
    free = {n for shape in shapes_of(proto.graph.input) for n in shape if isinstance(n, str)}
    assert len(free) == 2 - (name in OTHERWISE)


def test_at_least_14_models_have_two_variable_lengths() -> None:
    assert len(names()) - len(OTHERWISE) >= 14


def test_angles_that_depend_on_the_length_name_their_call() -> None:
    case = frozen("llama_dynamic")
    with pytest.raises(CaptureError, match=r"at .*test_export_dynamic.py:\d+ .*another length of 'time'"):
        bb.onnx.export(case.model(AUTODIFF), None, *case.given(AUTODIFF), dynamic={"tokens": {1: "time"}})


def _inputs(model: Any) -> list[str]:
    import inspect

    return [*inspect.signature(model.forward).parameters]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["MaxPool2d", "AdaptiveMaxPool2d", "MultiheadAttention", "EmbeddingBag", "LPPool1d", "MaxUnpool2d", "Upsample"],
)
def test_layers_of_any_batch(name: str) -> None:
    make, shapes = CASES[name]
    rng = np.random.default_rng(0)
    inputs = [bb.asarray(rng.integers(0, 10, (2, *s[1][1:]))) if s[0] == "ints" else normal(2, *s[1:]) for s in shapes]
    proto = bb.onnx.export(make().eval(), None, *inputs)
    dynamic = {v.name: {0: "batch"} for v in proto.graph.input}
    check_dynamic(make(), inputs, dynamic, [{"batch": 1}, {"batch": 5}])


def test_a_transformer_of_any_batch_and_time() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16)
    axes = {"x": {0: "batch", 1: "time"}}
    sizes = [{"batch": 1, "time": 1}, {"batch": 4, "time": 7}]
    proto = check_dynamic(model, [normal(2, 3, 8)], axes, sizes)
    assert shapes_of([*proto.graph.input, *proto.graph.output]) == [["batch", "time", 8]] * 2


class Halving(nn.Module):
    """A model of images that divides their sides by 4."""

    def __init__(self) -> None:
        layers = nn.Conv2d(1, 2, 3, padding=1), nn.MaxPool2d(2), nn.AvgPool2d(2), nn.ConvTranspose2d(2, 1, 4, stride=4)
        self.net = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return self.net(x).reshape(x.shape) + x


def test_images_of_any_size_divisible_by_4() -> None:
    sizes = [{"height": 4, "width": 12}, {"height": 16, "width": 4}]
    check_dynamic(Halving(), [normal(1, 1, 8, 8)], {"x": {2: "height", -1: "width"}}, sizes)


RECURRENT: dict[str, tuple[str, dict[str, Any]]] = {
    "LSTM": ("LSTM", {}), "GRU": ("GRU", {}), "GRU that resets first": ("GRU", {"reset_after": False}),
    "RNN": ("RNN", {}), "RNN of relu": ("RNN", {"nonlinearity": "relu", "bias": False, "batch_first": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_are_operators(name: str) -> None:
    kind, options = RECURRENT[name]
    model = getattr(nn, kind)(3, 4, num_layers=2, bidirectional=True, **options)
    axes, sizes = {"x": {0: "time", 1: "batch"}}, [{"batch": 1, "time": 1}, {"batch": 3, "time": 8}]
    evaluated = name != "RNN of relu"  # missing from the reference evaluator
    proto = check_dynamic(model, [normal(5, 2, 3)], axes, sizes, reference=evaluated)
    assert [node.op_type for node in proto.graph.node].count(kind) == 4
    assert {x.name for x in proto.graph.initializer} >= set(model.state_dict())
    x = normal(5, 2, 3)
    loaded = bb.onnx.load(proto)
    ours, theirs = ((sum((t**2.0).sum() for t in tensors_of(m(x)))).backward() for m in (model.eval(), loaded))
    there = dict(loaded.named_parameters())
    for path, parameter in model.named_parameters():
        one, other = parameter.grad(ours), there[path].grad(theirs)
        assert one is not None
        assert other is not None
        assert far(other.numpy(), one.numpy()) < 1e-5, path


def test_an_lstm_with_a_projection_is_written_step_by_step() -> None:
    model = nn.LSTM(3, 4, proj_size=2)
    check_export(model, normal(3, 2, 3))
    line = r"at .*test_export_dynamic.py:\d+ in test_an_lstm_with_a_projection"
    with pytest.raises(CaptureError, match=line + ".* computes something else at another length of 'time'"):
        bb.onnx.export(model, None, normal(3, 2, 3), dynamic={"x": {0: "time"}})
    check_dynamic(model, [normal(3, 2, 3)], {"x": {1: "batch"}}, [{"batch": 1}, {"batch": 4}])


def test_results_that_the_standard_lstm_lacks_are_an_error() -> None:
    weights = [normal(8, 3), normal(8, 2)]

    def cells(x: Any) -> Any:
        zero = bb.zeros((2, 2), backend=x.backend)
        w, r = (bb.asarray(weight.numpy(), backend=x.backend) for weight in weights)
        return nn.functional.lstm(nn.functional.linear(x, w), zero, zero, r)[1]

    with pytest.raises(
        Unsupported, match=r"lstm at .*test_export_dynamic.py:\d+ in cells returns the cells of all steps"
    ):
        bb.onnx.export(Computed(cells), None, normal(4, 2, 3))


#: Functions of (batch, 4) whose lengths are formulas.
FORMULAS: dict[str, Any] = {
    "as it is": lambda x: x.reshape((x.shape[0], 2, 2)),
    "one axis": lambda x: x.reshape((-1,)),
    "a multiple and a constant": lambda x: (
        bb.concat([x, x, bb.ones((3, 4))], axis=0) * bb.ones((2 * x.shape[0] + 3, 1))
    ),
    "places": lambda x: x * bb.arange(x.shape[0], dtype="float32").reshape((-1, 1)),
    "a square": lambda x: (x @ x.T).reshape((x.shape[0] * x.shape[0],)) + bb.zeros(x.shape[0] ** 2),
    "a part": lambda x: x[1 : x.shape[0]],
    "all in reverse": lambda x: x[::-1],
    "the last": lambda x: x[-1],
    "a shape": lambda x: bb.asarray(np.array([*x.shape, 7 - x.shape[0]])),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_of_lengths(name: str) -> None:
    function = FORMULAS[name]
    if name == "a square":
        with pytest.raises(CaptureError, match="by more than sums and products"):
            bb.onnx.export(Computed(function), None, normal(3, 4), dynamic={"input_0": {0: "batch"}})
        return
    check_dynamic(Computed(function), [normal(3, 4)], {"input_0": {0: "batch"}}, [{"batch": 2}, {"batch": 9}])


def test_products_of_lengths() -> None:
    axes = {"input_0": {0: "batch", 1: "time"}, "input_1": {0: "batch"}}

    def function(x: Any, y: Any) -> Any:
        flat = x.reshape((x.shape[0] * x.shape[1], 4)) + bb.zeros((x.shape[0] * x.shape[1], 1))
        return flat, bb.broadcast_to(y.reshape((-1, 1)), (x.shape[0], x.shape[1])) * 2.0

    sizes = [{"batch": 2, "time": 7}, {"batch": 6, "time": 1}]
    proto = check_dynamic(Computed(function), [normal(2, 3, 4), normal(2)], axes, sizes)
    assert shapes_of(proto.graph.output)[1] == ["batch", "time"]


class Positions(nn.Module):
    """A table of positions with a limited length."""

    def __init__(self, function: Any = None) -> None:
        self.table = nn.Embedding(6, 4)
        self.function = function

    def forward(self, x: Any) -> Any:
        return x + self.table(bb.arange(x.shape[0]))


def test_lengths_up_to_a_maximum() -> None:
    check_dynamic(Positions(), [normal(5, 4)], {"x": {0: "time"}}, [{"time": 1}, {"time": 6}])
    with pytest.raises(ArgumentError, match="does not run with another length of 'time' than 2"):
        bb.onnx.export(Computed(lambda x: x + bb.ones((2, 1))), None, normal(2, 3), dynamic={"input_0": {0: "time"}})


def test_other_dependences_on_lengths_name_the_call() -> None:
    def halves(x: Any) -> Any:
        return x[: x.shape[0] // 2] * 2.0

    def branches(x: Any) -> Any:
        return bb.exp(x) if x.shape[0] % 2 else bb.sin(x)

    def scaled(x: Any) -> Any:
        return x * (1.0 / x.shape[0])

    def table(x: Any) -> Any:
        return x + bb.asarray(np.ones((x.shape[0], 1), np.float32))

    for function, words in ((halves, "slice"), (branches, "exp|sin"), (scaled, "mul"), (table, "add")):
        line = rf"({words}) at .*test_export_dynamic.py:\d+ in {function.__name__}"
        with pytest.raises(CaptureError, match=line):
            bb.onnx.export(Computed(function), None, normal(5, 3), dynamic={"input_0": {0: "n"}})


# ---- lengths that depend on values ----

VALUES = np.array([[1.0, -2.0, 3.0], [-1.0, 5.0, -6.0]], np.float32)
CHOSEN: dict[str, Any] = {
    "nonzero": lambda x: bb.nonzero(x > 0),
    "a mask": lambda x: x[x > 0],
    "rows": lambda x: x[x[:, 0] > 0] * 2.0,
    "sums": lambda x: (x[x > 0].sum(), x[:, x[0] > 0].sum(axis=0)),
    "shapes": lambda x: (x[x > 0].reshape((-1, 1)), bb.stack([x[x > 0]] * 2).reshape((-1,))),
    "values and the whole": lambda x: bb.concat([x[x > 0], x.reshape((-1,))], axis=0),
    "unique": bb.unique_values,
    "a product of lengths": lambda x: (x[x > 0][:, None] * x[x > 2]).reshape((-1,)),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_lengths_that_depend_on_values(name: str) -> None:
    model = Computed(CHOSEN[name])
    proto = bb.onnx.export(model, None, bb.asarray(VALUES))
    onnx.checker.check_model(proto, full_check=True)
    for values in (VALUES, np.abs(VALUES), VALUES[::-1] + 1.5):
        x = bb.asarray(np.ascontiguousarray(values))
        expected = [t.numpy() for t in tensors_of(model(x))]
        found = [[t.numpy() for t in tensors_of(bb.onnx.load(proto)(x))], run_reference(proto, x)]
        found += [run_runtime(proto, x)] if HAS_RUNTIME else []
        assert all(far(np.asarray(a), b) < 1e-6 for results in found for a, b in zip(results, expected, strict=True))


def test_python_numbers_that_depend_on_values_are_errors() -> None:
    def frozen_length(x: Any) -> Any:
        return x[x > 0] + bb.ones(len(x[x > 0]))

    def half(x: Any) -> Any:
        return x[x > 0][: x[x > 0].shape[0] // 2]

    def steps(x: Any) -> Any:
        for _ in range(x[x > 0].shape[0]):
            x = x * 2.0
        return x

    for function, words in ((frozen_length, "ones|add"), (half, "slice"), (steps, "mul")):
        with pytest.raises(CaptureError, match=rf"({words}).* at .*_dynamic.py:\d+ in {function.__name__}|divided at"):
            bb.onnx.export(Computed(function), None, bb.asarray(VALUES))


def test_wrong_axes() -> None:
    x = normal(2, 3)
    model = Computed(lambda x, y: x + y)
    wrong: list[tuple[Any, str]] = [
        ({"z": {0: "n"}}, "no input 'z'"),
        ({"input_0": {2: "n"}}, "input_0 has no axis 2"),
        ({"input_0": {0: ""}}, "name of an axis is an identifier"),
        ({"input_0": {0: "n", 1: "n"}}, "2 and 3 for the length 'n'"),
        ({0: "n"}, r"as in \{'x': \{0: 'batch'\}\}, not \{0: 'n'\}"),
        ("input_0", "dynamic names axes of inputs, .*, not 'input_0'"),
        ({"input_0": 0}, "dynamic names axes of inputs"),
    ]
    for dynamic, words in wrong:
        with pytest.raises(ArgumentError, match=words):
            bb.onnx.export(model, None, x, x, dynamic=dynamic)
