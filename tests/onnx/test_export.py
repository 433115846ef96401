"""Models exported to ONNX: valid files with the same outputs, gradients and names; errors name the call."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("onnx", reason="writing ONNX models needs the package onnx")
import numpy as np
import onnx
from tests.distributed.test_layers import CASES
from tests.models.frozen import frozen, names
from tests.onnx.exporting import HAS_RUNTIME, check_again, check_export, far, run_reference, run_runtime, tensors_of
from tests.onnx.graphs import model as text

import backburn as bb
from backburn import nn
from backburn.conformance.samples.calls import arrays, map_operands
from backburn.conformance.samples.table import SAMPLES
from backburn.errors import ArgumentError, CaptureError, Unsupported
from backburn.onnx.exporter.recorder import MAPPINGS
from backburn.tensor.core.wrapping import wrap

AUTODIFF = "autodiff(numpy)"


@pytest.fixture(autouse=True)
def _on_autodiff() -> Any:
    with bb.use_backend(AUTODIFF):
        bb.random.seed(0)
        yield


def normal(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    return bb.asarray(np.random.default_rng(seed).normal(size=shape).astype(dtype))


def mlp() -> Any:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2))


def cnn() -> Any:
    layers = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.GELU(), nn.MaxPool2d(2), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(64, 2))


def encoder() -> Any:
    return nn.TransformerEncoderLayer(8, 2, 16)


SMALL = {"mlp": (mlp, (5, 3)), "cnn": (cnn, (2, 3, 8, 8)), "encoder": (encoder, (2, 5, 8))}


class Computed(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def forward(self, *xs: Any) -> Any:
        return self.function(*xs)


# ---- layers and models ----


@pytest.mark.parametrize("name", SMALL)
def test_small_models(name: str) -> None:
    make, shape = SMALL[name]
    check_export(make(), normal(*shape))


@pytest.mark.parametrize("name", SMALL)
def test_float64_is_equal_within_rounding(name: str) -> None:
    make, shape = SMALL[name]
    model = make().astype("float64").eval()
    x = normal(*shape, dtype="float64")
    proto = bb.onnx.export(model, None, x)
    expected = model(x).numpy()
    assert far(bb.onnx.load(proto)(x).numpy(), expected) < 1e-12  # epsilon is float32 in the file
    assert far(run_reference(proto, x)[0], expected) < 1e-8  # its norms have float32 statistics


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_layers(name: str) -> None:
    make, shapes = CASES[name]
    rng = np.random.default_rng(0)
    inputs = [bb.asarray(rng.integers(0, 10, s[1])) if s[0] == "ints" else normal(*s) for s in shapes]
    check_export(
        make(), *inputs, gradients=not name.startswith("FakeQuantized")
    )  # no gradient of rounding after `load`


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_models(name: str) -> None:
    case = frozen(name)
    examples = case.given(AUTODIFF)
    check_export(case.model(AUTODIFF), *examples, tolerance=2e-6)


# ---- operations ----

#: Functions of a few tensors, compared before and after export. Values are chosen where formulas lose digits.
SMALLEST = np.array([1e-8, -1e-6, 1e-3, 0.3, -0.6, 2.0, 5.0], np.float32)
FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "expm1": (bb.expm1, (SMALLEST,)),
    "log1p": (bb.log1p, (SMALLEST,)),
    "trunc": (bb.trunc, (np.array([-1.5, -0.5, 0.5, 2.5], np.float32),)),
    "round": (bb.round, (np.array([-1.5, -0.5, 0.5, 1.5, 2.5], np.float32),)),
    "remainder": (bb.remainder, (np.array([-7, 7, -7, 7]), np.array([3, 3, -3, -3]))),
    "remainder of floats": (bb.remainder, (np.array([-7.5, 7.5, -6.0, 7], "f"), np.array([3, -3, 3, -2.5], "f"))),
    "floor_divide": (bb.floor_divide, (np.array([-7, 7, -7, 7]), np.array([3, 3, -3, -3]))),
    "floor_divide of floats": (bb.floor_divide, (np.array([-7.5, 7.5], "f"), np.array([2.0, -2.0], "f"))),
    "clip": (lambda x: bb.clip(x, -0.5, 0.5), (SMALLEST,)),
    "clip from below": (lambda x: bb.clip(x, min=0.0), (SMALLEST,)),
    "not_equal": (lambda x: x != 2.0, (SMALLEST,)),
    "rsqrt": (lambda x: bb.rsqrt(bb.abs(x)), (SMALLEST,)),
    "pow": (lambda x: x**3, (SMALLEST,)),
    "integers": (lambda x: (x * 2 - 1) // 3 + (x & 6), (np.arange(-5, 6),)),
    "where": (lambda x: bb.where(x > 0.1, x, 0.5), (SMALLEST,)),
    "any, all": (lambda x: (bb.any(x > 0, axis=1), bb.all(x > 0, axis=1)), (np.eye(3, dtype="f"),)),
    "reductions": (lambda x: (x.sum(axis=0), x.mean(axis=(0, 2)), x.max(), x.min(axis=1, keepdims=True), x.prod(axis=2),
                              x.var(axis=0), x.std(axis=1)),
                   (np.random.default_rng(0).normal(size=(2, 3, 4)).astype("f"),)),
    "logsumexp": (lambda x: bb.logsumexp(x * 100.0, axis=0), (SMALLEST,)),
    "slices": (lambda x: (x[1:], x[::-1], x[:, 1], x[1, ..., ::2], x[::-2, 1:3]),
               (np.arange(24.0, dtype="f").reshape(4, 6),)),
    "pad": (lambda x: [bb.pad(x, ((1, 2), (0, 1)), mode=m) for m in ("constant", "reflect", "edge", "wrap")],
            (np.arange(12.0, dtype="f").reshape(3, 4),)),
    "pad by more than there is": (lambda x: bb.pad(x, ((3, 4),), mode="reflect"), (np.arange(2.0, dtype="f"),)),
    "flip, roll, tile, repeat": (lambda x: (bb.flip(x, axis=0), bb.roll(x, 2, axis=1), bb.tile(x, (2, 1, 3)),
                                            bb.repeat(x, 2, axis=1)), (np.arange(12.0, dtype="f").reshape(3, 4),)),
    "stack, concat": (lambda x: (bb.stack([x, x], axis=1), bb.concat([x, x + 1.0], axis=0)), (np.eye(3, dtype="f"),)),
    "triu, tril": (lambda x: (bb.triu(x, k=1), bb.tril(x, k=-1)), (np.ones((3, 4), "f"),)),
    "sorting": (lambda x: (bb.sort(x), bb.argsort(x, descending=True), bb.argmax(x), *bb.topk(x, 3)),
                (np.array([3.0, 1.0, 2.0, 1.0, 3.0], "f"),)),
    "cumulative_sum": (lambda x: bb.cumulative_sum(x, axis=0), (SMALLEST,)),
    "take": (lambda x, i: (bb.take(x, i, axis=1), bb.take_along_axis(x, i[None] + 0 * i[:, None], axis=1)),
             (np.arange(9.0, dtype="f").reshape(3, 3), np.array([2, 0, 1]))),
    "creation": (lambda x: (x + bb.arange(7, dtype="float32"), x * bb.ones(7), bb.zeros_like(x), bb.eye(3)),
                 (SMALLEST,)),
    "one_hot": (lambda i: bb.one_hot(i, 4), (np.array([0, 3, 2]),)),
    "casts": (lambda x: (x.astype("int32"), (x > 0).astype("float32"), x.astype("float64")), (SMALLEST,)),
    "losses": (lambda x, i: nn.functional.cross_entropy(x, i), (np.eye(3, dtype="f"), np.array([0, 2, 1]))),
    "einsum": (lambda x: bb.einsum("ij,kj->ik", x, x), (np.arange(6.0, dtype="f").reshape(2, 3),)),
    "masked attention": (lambda q, m: nn.functional.scaled_dot_product_attention(q, q, q, m),
                         (np.random.default_rng(0).normal(size=(2, 3, 4)).astype("f"),
                          np.array([[True, True, False], [False, False, False], [True, True, True]]))),
    "attention with a float mask": (lambda q, m: nn.functional.scaled_dot_product_attention(q, q, q, m),
                                    (np.random.default_rng(0).normal(size=(2, 1, 2, 3, 4)).astype("f"),
                                     np.array([[0.0, 1.0, -np.inf], [-np.inf] * 3, [0, 0, 0]], "f"))),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operations(name: str) -> None:
    function, arrays = FUNCTIONS[name]
    check_export(Computed(function), *map(bb.asarray, arrays), gradients=False)


def test_dtypes_that_an_operator_lacks() -> None:
    x = bb.asarray(SMALLEST, dtype="float64")  # onnxruntime lacks it, too
    check_export(nn.CELU(), x, runtime=False)


class Operation(nn.Module):
    """Calls an operation with the operands of a sample."""

    def __init__(self, name: str, operands: Any, attributes: Any) -> None:
        self.name, self.operands, self.attributes = name, operands, attributes

    def forward(self, *xs: Any) -> Any:
        rest, k = iter(xs), xs[0].backend
        given = map_operands(self.operands, lambda _: next(rest).primitive)
        found = getattr(k, self.name)(*given, **self.attributes)
        return [wrap(x, k) for x in found] if isinstance(found, tuple) else wrap(found, k)


#: Samples with different results, by operation and number.
OTHERWISE = {
    ("floor_divide", 15): "a finite number divided by infinity is -0 or 0 in a graph",
    ("nonzero", 1): "a tensor without axes has no counterpart",
    ("nonzero", 2): "a tensor without axes has no counterpart",
    ("max_pool", 14): "of elements that are all minus infinity, another one is chosen after `load`",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(name for name in MAPPINGS if name in SAMPLES and "quantize" not in name))
def test_samples_of_mapped_operations(name: str) -> None:
    """The first conformance samples and every seventh, as graphs."""
    compared = 0
    for number, sample in enumerate(SAMPLES[name].cases):
        operands = arrays(sample, "float32")
        inputs = [bb.asarray(x) for x in host_operands(operands)]
        if not inputs or (number > 2 and number % 7) or (name, number) in OTHERWISE or has_zero_divisor(name, operands):
            continue
        model = Operation(name, operands, sample.attributes)
        with np.errstate(all="ignore"):
            expected = [x.numpy() for x in tensors_of(model(*inputs))]
            proto = bb.onnx.export(model, None, *inputs)
            found = [x.numpy() for x in tensors_of(bb.onnx.load(proto)(*inputs))]
        for x, y in zip(found, expected, strict=True):
            assert far(x, y) < 1e-5, number
        compared += 1
    assert compared or name in ("arange", "empty", "full", "ones", "zeros")


def host_operands(operands: Any) -> list[Any]:
    return [x for part in operands for x in (part if isinstance(part, list) else [part]) if isinstance(x, np.ndarray)]


def has_zero_divisor(name: str, operands: Any) -> bool:
    """Whether integers are divided by 0, which the standard does not define."""
    divides = name in ("floor_divide", "remainder", "fmod") and len(operands) == 2
    return divides and np.asarray(operands[0]).dtype.kind in "iu" and bool((np.asarray(operands[1]) == 0).any())


# ---- quantized layers ----

SCHEMES = {
    "qint8_symmetric_tensor_float32": "INT8", "qint8_affine_channel0_float32": "INT8",
    "quint8_affine_tensor_float32": "UINT8", "qint4_symmetric_block8_float16": "INT4",
    "qint4_affine_block3_float32": "INT4", "qint2_symmetric_channel0_float32": "INT4",
    "qint4_full_block16_bfloat16": "INT4", "qfloat8_e4m3fn_symmetric_tensor_float32": "FLOAT8E4M3FN",
}  # fmt: skip


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("activations", [None, "qint8_symmetric_tensor_float32", "quint8_affine_tensor_float32"])
def test_quantized_layers(scheme: str, activations: str | None) -> None:
    model = nn.QuantizedLinear(nn.Linear(13, 5), scheme, activations=activations)
    x = normal(4, 13)
    proto = check_export(model, x, tolerance=1e-6)
    operators = [node.op_type for node in proto.graph.node]
    assert operators.count("QuantizeLinear") == (activations is not None)
    (weight,) = (t for t in proto.graph.initializer if t.name == "weight")
    assert onnx.TensorProto.DataType.Name(weight.data_type) == SCHEMES[scheme]
    assert len(weight.raw_data) == (33 if SCHEMES[scheme] == "INT4" else 65)


def test_unsupported_uses_of_quantized_tensors_are_an_error() -> None:
    model = nn.QuantizedLinear(nn.Linear(16, 4), bb.QuantizedDType("int8", granularity="block", block=(2, 8)))
    with pytest.raises(Unsupported, match="has blocks of 2 axes"):
        bb.onnx.export(model, None, normal(2, 16))

    class Rows(nn.Module):
        def __init__(self) -> None:
            self.table: Any
            self.register_buffer("table", normal(4, 8).quantize())

        def forward(self, i: Any) -> Any:
            return bb.take(self.table, i, axis=0)

    with pytest.raises(Unsupported, match=r"no take of quantized tensors; it was called at .*test_export.py"):
        bb.onnx.export(Rows(), None, bb.asarray([0, 1]))


# ---- names, roles, ties ----


def test_parameters_keep_their_names_and_roles() -> None:
    model = cnn().eval()
    proto = check_export(model, normal(2, 3, 8, 8))
    roles = {x.name: {e.key: e.value for e in x.metadata_props} for x in proto.graph.initializer}
    assert roles["1.running_mean"] == {"backburn.role": "buffer"}
    loaded = bb.onnx.load(proto)
    assert [*loaded.state_dict()] == [path for path in model.state_dict() if "tracked" not in path]
    assert [path for path, _ in loaded.named_buffers()] == ["1.running_mean", "1.running_var"]
    layers = {e.value for node in proto.graph.node for e in node.metadata_props}
    assert layers == {"0", "1", "2", "3", "4", "5"}
    weights = {path: tensor * 2.0 for path, tensor in loaded.state_dict().items()}
    model.load_state_dict(weights, strict=False)
    loaded.load_state_dict(weights)
    assert far(loaded(normal(2, 3, 8, 8)).numpy(), model(normal(2, 3, 8, 8)).numpy()) < 1e-6


class Scaled(nn.Module):
    """Parameters that look like constants by their operators and names."""

    def __init__(self) -> None:
        self.val_1 = nn.parameter(bb.asarray(2.0))
        self.t = nn.parameter(bb.asarray([1.0, 1.0, 1.0]))
        self.steps: Any
        self.constant_0: Any
        self.register_buffer("steps", bb.asarray([1, 2, 3]))
        self.register_buffer("constant_0", bb.asarray([5.0, 5.0, 5.0]))

    def forward(self, x: Any) -> Any:
        return x * self.val_1 * self.t + self.steps + self.constant_0 * 0.25


def test_the_file_records_what_is_trainable() -> None:
    model = Scaled()
    x = normal(2, 3)
    proto = bb.onnx.export(model, None, x)
    loaded = bb.onnx.load(proto)
    assert [*loaded.state_dict()] == ["val_1", "t", "steps", "constant_0"]
    assert [path for path, _ in loaded.named_parameters()] == ["val_1", "t"]
    assert np.array_equal(loaded(x).numpy(), model(x).numpy())
    assert [path for path, _ in bb.onnx.load(proto, trainable="constant_*").named_parameters()] == ["constant_0"]
    with pytest.raises(ArgumentError, match="matches no tensor"):
        bb.onnx.load(proto, trainable="weights")


def test_wrong_metadata_in_a_file_are_ignored() -> None:
    proto = bb.onnx.export(mlp(), None, normal(5, 3))
    for role, paths in (("queen", "[1, 2"), ("buffer", '["a", 7, "../b", ""]'), ("parameter", "[" * 5000)):
        other = copy.deepcopy(proto)
        for tensor in other.graph.initializer:
            del tensor.metadata_props[:]
            for key, value in (("backburn.role", role), ("backburn.paths", paths)):
                entry = tensor.metadata_props.add()
                entry.key, entry.value = key, value
        assert bb.onnx.load(other)(normal(5, 3)).shape == (5, 2)


class Tied(nn.Module):
    def __init__(self) -> None:
        self.table = nn.Embedding(7, 4, padding_idx=2)
        self.first, self.second = nn.LayerNorm(4), nn.LayerNorm(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Any) -> Any:
        return self.head(self.second(self.first(self.table(tokens))))


def test_ties_and_equal_weights_and_padding() -> None:
    model = Tied()
    tokens = bb.asarray([[0, 2, 6], [2, 2, 1]])
    proto = check_export(model, tokens)
    loaded: Any = bb.onnx.load(proto)
    assert [*loaded.state_dict()] == [*model.state_dict()]
    assert [path for path, _ in loaded.named_parameters()] == [path for path, _ in model.named_parameters()]
    assert loaded.table.weight is loaded.head.weight
    apart = bb.onnx.load(proto, ties="none")
    assert "head.weight" not in apart.state_dict()


def test_unused_parameters_are_omitted_and_frozen_ones_kept() -> None:
    model = mlp()
    model.unused = nn.Linear(2, 2)
    model[0].freeze()
    proto = bb.onnx.export(model, None, normal(5, 3))
    assert [x.name for x in proto.graph.initializer] == ["0.weight", "0.bias", "3.weight", "3.bias"]


# ---- exporting loaded models ----


@pytest.mark.parametrize("name", SMALL)
def test_a_loaded_model_is_trained_and_exported_again(name: str, tmp_path: Any) -> None:
    make, shape = SMALL[name]
    x = normal(*shape)
    model = bb.onnx.load(bb.onnx.export(make(), None, x))
    optimizer = bb.optim.Adam(0.01)
    optimizer.step(model, (model(x) ** 2.0).mean().backward())
    path = tmp_path / "tuned.onnx"
    proto = bb.onnx.export(model, path, x)
    again = bb.onnx.load(path)
    assert [*again.state_dict()] == [*model.state_dict()]
    assert np.array_equal(again(x).numpy(), model(x).numpy())
    assert proto.SerializeToString() == onnx.load(path).SerializeToString()
    check_again(proto, again, [x])


def test_a_loaded_graph_in_a_model_is_written_at_each_call() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            self.part = bb.onnx.load(bb.onnx.export(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), None, normal(2, 3)))

        def forward(self, x: Any) -> Any:
            return self.part(self.part(x)) + bb.vmap(self.part)(bb.stack([x, x]))

    proto = check_export(Twice(), normal(2, 3))
    assert {"part/0/Gemm", "part/0/Gemm_1"} <= {node.name for node in proto.graph.node}


def test_names_of_nodes_and_functions_do_not_clash_with_results() -> None:
    twice = '<domain: "local", opset_import: ["": 20]> Twice (a) => (b) { y = Neg(a) b = Add(y, a) }'
    for body, functions in (
        ("{ [y] z = Neg(x) [x] y = Exp(z) }", ""),
        ("{ z = local.Twice(x) y = Exp(z) }", twice),
    ):
        loaded = bb.onnx.load(text(f"(float[2] x) => (float[2] y) {body}", imports=', "local": 1', functions=functions))
        proto = check_export(loaded, normal(2))
        assert proto.graph.output[0].name == "y"


@pytest.mark.parametrize("backend", ["numpy", "capture(numpy)", "autodiff(capture(numpy))", "sharded(numpy, dp=2)"])
def test_models_on_other_backends(backend: str) -> None:
    model = mlp().eval()
    x = normal(5, 3)
    proto = bb.onnx.export(model.to(backend), None, x.to(backend))
    assert far(run_reference(proto, x)[0], model(x).numpy()) < 1e-6


def test_exporting_does_not_change_the_model() -> None:
    model = mlp()
    before = dict(model.named_parameters())
    bb.onnx.export(model, None, normal(5, 3))
    assert model.training
    assert model[2].training
    assert all(x is before[path] for path, x in model.named_parameters())


# ---- inputs and outputs ----


class Tree(nn.Module):
    def forward(self, pair: Any, options: Any, scale: float = 2.0, other: Any = None) -> Any:
        x, y = pair
        return {"sum": x + y * scale, "same": x, "deep": [options["z"] - 1.0, options["z"] - 1.0]}


def test_trees_of_inputs_and_outputs() -> None:
    x, y, z = normal(2, 3), normal(2, 3, seed=1), normal(4, seed=2)
    proto = bb.onnx.export(Tree(), None, (x, y), {"z": z}, 3.0, names={"pair.0": "left", "sum": "total"})
    assert [v.name for v in proto.graph.input] == ["left", "pair.1", "options.z"]
    assert [v.name for v in proto.graph.output] == ["total", "same", "deep.0", "deep.1"]
    onnx.checker.check_model(proto, full_check=True)
    found = run_reference(proto, ((x, y), z))
    expected = [x.numpy() + y.numpy() * 3, x.numpy(), z.numpy() - 1, z.numpy() - 1]
    assert all(far(a, b) < 1e-6 for a, b in zip(found, expected, strict=True))


def test_names_of_inputs_and_parameters_do_not_clash() -> None:
    model: Any = nn.Sequential(nn.Linear(3, 3))
    model.x = model[0].bias  # the name of the input
    proto = bb.onnx.export(model, None, normal(2, 3))
    made = [x.name for x in (*proto.graph.input, *proto.graph.initializer)] + [
        name for node in proto.graph.node for name in node.output
    ]
    assert len(set(made)) == len(made)
    onnx.checker.check_model(proto, full_check=True)


def test_tensors_outside_the_model_are_constants() -> None:
    table = bb.asarray([[1.0, 2.0, 3.0]], backend="numpy")
    model = Computed(lambda x: x + table).to("numpy")
    x = normal(2, 3).to("numpy")
    proto = bb.onnx.export(model, None, x)
    assert far(run_reference(proto, x)[0], (x + table).numpy()) == 0.0


@pytest.mark.skipif(not HAS_RUNTIME, reason="onnxruntime is not installed")
def test_float16() -> None:
    model = mlp().eval().astype("float16")
    x = normal(5, 3, dtype="float16")
    proto = bb.onnx.export(model, None, x)
    assert far(run_runtime(proto, x)[0], model(x).numpy()) < 2e-3


def test_large_models_have_external_data(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(
        nn.Linear(3, 200), nn.ReLU(), nn.QuantizedLinear(nn.Linear(200, 30), "qint4_affine_block8_float16")
    )
    model.eval()
    x, path = normal(5, 3), tmp_path / "model.onnx"
    inside = bb.onnx.export(model, path, x)
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    monkeypatch.setattr("backburn.onnx.exporter.write.LARGEST", 4000)
    bb.onnx.export(model, path, x)
    proto = onnx.load(path, load_external_data=False)
    beside = [t.name for t in proto.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    assert beside == ["0.weight", "2.weight", "2.weight_scale"]
    onnx.checker.check_model(path, full_check=True)
    assert onnx.load(path).graph.initializer[0].raw_data == inside.graph.initializer[0].raw_data
    expected = model(x).numpy()
    assert far(bb.onnx.load(path)(x).numpy(), expected) < 1e-6
    if HAS_RUNTIME:
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        assert far(session.run(None, {"x": x.numpy()})[0], expected) < 1e-6
    with pytest.raises(ArgumentError, match=r"2 GB.*give a path"):
        bb.onnx.export(model, None, x)
    (tmp_path / "again").mkdir()
    bb.onnx.export(bb.onnx.load(path), tmp_path / "again" / path.name, x)
    for file in (path, tmp_path / "model.onnx.data"):
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()


# ---- errors ----


def test_an_operation_without_a_counterpart_names_the_call_and_its_line() -> None:
    def forward(x: Any) -> Any:
        return bb.linalg.svdvals(x)  # the line that the error names

    line = forward.__code__.co_firstlineno + 1
    with pytest.raises(Unsupported, match=rf"svd, inside of svdvals, .*test_export.py:{line} in forward"):
        bb.onnx.export(Computed(forward), None, normal(3, 3))


def test_reading_values_and_drawing_random_numbers_are_errors() -> None:
    def read(x: Any) -> Any:
        return x * 2.0 if x.sum().item() > 0 else x

    with pytest.raises(CaptureError, match=r"reads values on the host at .*test_export.py:\d+ in read"):
        bb.onnx.export(Computed(read), None, normal(3, 3))
    with pytest.raises(Unsupported, match="random numbers"):
        bb.onnx.export(Computed(lambda x: x + bb.random.normal((3,), backend=x.backend)), None, normal(3))


def test_complex_numbers_are_refused_by_name() -> None:
    z = bb.asarray(np.array([1 + 2j, 3j], np.complex64))
    with pytest.raises(Unsupported, match="input_0 is complex64"):
        bb.onnx.export(Computed(lambda z: z * z), None, z)
    with pytest.raises(Unsupported, match=r"complex computes with complex numbers at .*test_export.py:\d+"):
        bb.onnx.export(Computed(lambda x: bb.real(x.astype("complex64") * 2j)), None, normal(2))


def test_wrong_arguments() -> None:
    x = normal(5, 3)
    with pytest.raises(ArgumentError, match="a model, and not a function"):
        bb.onnx.export(lambda x: x, None, x)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="opset 23 is written"):
        bb.onnx.export(mlp(), None, x, opset=17)
    with pytest.raises(ArgumentError, match="no input or output 'y'"):
        bb.onnx.export(mlp(), None, x, names={"y": "z"})
    with pytest.raises(ArgumentError, match="is on capture"):
        bb.onnx.export(mlp(), None, x.to("capture(numpy)"))
    with pytest.raises(ArgumentError, match="returns no tensor"):
        bb.onnx.export(Computed(lambda x: None), None, x)


def test_wrong_files_are_detected() -> None:
    """The checks of these tests fail for a wrong node."""
    model, x = mlp().eval(), normal(5, 3)
    proto = bb.onnx.export(model, None, x)
    proto.graph.node[1].op_type = "Tanh"
    assert far(run_reference(proto, x)[0], model(x).numpy()) > 1e-3
