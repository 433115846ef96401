"""The parameters of a loaded model are those of the original: constants, splits, ties and names."""

import warnings

import pytest

pytest.importorskip("onnx", reason="reading ONNX models needs the package onnx")
import numpy as np
from tests.onnx.exported import inputs_of, load, numbers
from tests.onnx.graphs import model

import backburn as bb
from backburn import optim
from backburn.errors import ArgumentError
from backburn.onnx.naming import is_exporters, path_of, path_of_node, scopes_of


def parameters(graph, **options):
    return {
        path: tensor.numpy()
        for path, tensor in bb.onnx.load(graph, backend="autodiff(numpy)", **options).named_parameters()
    }


def trained(module, inputs, steps=10):
    """Train a model with steps of Adam that change every parameter."""
    optimizer = optim.Adam(0.1)
    for _ in range(steps):
        loss = (module(*inputs) ** 2.0).mean()
        optimizer.step(module, loss.backward())
    return module


def gradients_of(module, x):
    """The gradients of the sum of a model's outputs, by parameter path."""
    gradients = module(x).sum().backward()
    return {path: np.asarray(tensor.grad(gradients)) for path, tensor in module.named_parameters()}


# ---- T1: constants are initializers ----


@pytest.mark.parametrize("name", ["gpt", "encoder", "llama", "lstm", "resnet", "unet", "vit", "mobile", "einsums"])
def test_training_keeps_constants_and_ties(name):
    module = load(name, backend="autodiff(numpy)")
    inputs = inputs_of(name, numbers(name))
    before = {path: x.numpy() for path, x in module.named_parameters()}

    def constants():
        kept = [array.tobytes() for array in module._program.kept.arrays.values()]
        return kept, {path: x.numpy().tobytes() for path, x in module.named_buffers()}

    module(*inputs)  # converts host arrays to tensors
    bits = constants()
    trained(module, inputs)
    assert constants() == bits
    assert [path for path, x in module.named_parameters() if np.array_equal(x.numpy(), before[path])] == []
    state = module.state_dict()
    for path, other in module.report.ties:
        if other in state:
            assert np.array_equal(state[path].numpy(), state[other].numpy())
    for array in module._program.kept.arrays.values():
        assert np.array_equal(module._program.kept.tensor(array, bb.load_backend("numpy")).numpy(), array)


def test_scales_and_constants_are_no_parameters():
    body = (
        "(float[n, 2] x) => (float[n, 2] y) <float[2, 2] w = {1, 2, 3, 4}, float s = {0.5}, float[2] "
        "val_7 = {2, 2}, float[2] b = {1, 2}> { a = MatMul(x, w)  c = Add(a, b)  d = Mul(c, s)  y = "
        "Mul(d, val_7) }"
    )
    assert set(parameters(model(body))) == {"w", "b"}


def test_weights_in_constant_nodes_are_parameters():
    body = "(float[n, 2] x) => (float[n, 2] y) { w = Constant <value = float[2, 2] {1, 2, 3, 5}> ()  y = MatMul(x, w) }"
    loaded = bb.onnx.load(model(body), backend="autodiff(numpy)")
    assert [path for path, _ in loaded.named_parameters()] == ["w"]


def test_addends_are_biases_only_after_a_product():
    body = "(float[n, 2] x) => (float[n, 2] y) <float[2] shift = {1, 2}> { y = Add(x, shift) }"
    assert parameters(model(body)) == {}
    assert set(parameters(model(body), trainable="shift")) == {"shift"}


def test_trainable_overrules_and_takes_patterns():
    body = (
        "(float[n, 2] x) => (float[n, 2] y) <float[2, 2] enc.fc.weight = {1, 2, 3, 4}, float[2] "
        "enc.fc.bias = {1, 2}, float s = {0.5}> { a = MatMul(x, enc.fc.weight)  b = Add(a, enc.fc.bias) "
        " y = Mul(b, s) }"
    )
    assert set(parameters(_dotted(body))) == {"enc.fc.weight", "enc.fc.bias"}
    assert set(parameters(_dotted(body), trainable="*.weight")) == {"enc.fc.weight"}
    assert set(parameters(_dotted(body), trainable="enc.fc")) == {"enc.fc.weight", "enc.fc.bias"}
    assert set(parameters(_dotted(body), trainable=["s", "*.bias"])) == {"s", "enc.fc.bias"}
    with pytest.raises(ArgumentError, match=r"trainable='enc.wrong' matches no tensor"):
        parameters(_dotted(body), trainable=["enc.wrong"])


def _dotted(body):
    """A model with dots in names, which the text format does not allow."""
    made = model(body.replace("enc.fc.", "enc_fc_"))
    for tensor in made.graph.initializer:
        tensor.name = tensor.name.replace("enc_fc_", "enc.fc.")
    for node in made.graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = name.replace("enc_fc_", "enc.fc.")
    return made


# ---- T2: equal weights are merged ----


def test_merged_weights_of_fresh_layers_are_split():
    module = load("fresh", backend="autodiff(numpy)")
    names = {path for path, _ in module.named_parameters()}
    assert {"norm1.weight", "norm2.weight", "norm1.bias", "norm2.bias"} <= names
    assert ("norm1.weight", ("norm1.weight", "norm2.weight")) in module.report.splits
    trained(module, inputs_of("fresh", numbers("fresh")))
    state = module.state_dict()
    assert not np.array_equal(state["norm1.weight"].numpy(), state["norm2.weight"].numpy())


def test_constant_weights_without_metadata_are_split():
    body = (
        "(float[n, 2] x) => (float[n, 2] y) <float[2] ones = {1, 1}, float[2] shift = {0.5, 2}> { a = "
        "LayerNormalization(x, ones, shift)  y = LayerNormalization(a, ones, shift) }"
    )
    made = model(body)
    for i, node in enumerate(made.graph.node):
        node.name = f"/norm{i}/LayerNormalization"
    # The weights are ones, so they were merged; the biases are shared on purpose.
    assert len(parameters(made)) == 3


# ---- T3: tied weights are untied ----


def test_a_head_that_is_a_transposed_copy_stays_tied():
    module = load("gpt", backend="autodiff(numpy)")
    state = module.state_dict()
    assert np.array_equal(state["wte.weight"].numpy(), state["lm_head.weight"].numpy())
    assert sum(path.endswith(("wte.weight", "lm_head.weight")) for path, _ in module.named_parameters()) == 1
    trained(module, inputs_of("gpt", numbers("gpt")), 2)
    state = module.state_dict()
    assert np.array_equal(state["wte.weight"].numpy(), state["lm_head.weight"].numpy())


TIED = (
    "(int64[n] x) => (float[n, 3] y) <float[3, 2] table = {1, 2, 3, 4, 5, 6}, float[2, 3] head = "
    "{1, 3, 5, 2, 4, 6}, float[2, 2] w = {1, 2, 3, 4}> { a = Gather(table, x)  b = MatMul(a, w)  y "
    "= MatMul(b, head) }"
)


def test_equal_tables_are_tied_without_metadata():
    module = bb.onnx.load(model(TIED), backend="autodiff(numpy)")
    assert {path for path, _ in module.named_parameters()} == {"table", "w"}
    assert module.report.ties == (("table", "head"),)
    before = module(bb.asarray([0, 2])).numpy()
    reference = bb.onnx.load(model(TIED), backend="autodiff(numpy)", ties="none")
    assert np.array_equal(before, reference(bb.asarray([0, 2])).numpy())
    x = bb.asarray([0, 1, 2])
    tied, alone = gradients_of(module, x), gradients_of(reference, x)
    assert np.allclose(tied["table"], alone["table"] + alone["head"].T)


def test_ties_overrules():
    assert set(parameters(model(TIED), ties="none")) == {"table", "head", "w"}
    assert set(parameters(model(TIED), ties=[("table", "head")])) == {"table", "w"}
    with pytest.raises(ArgumentError, match="different values"):
        parameters(model(TIED), ties=[("table", "w")])
    with pytest.raises(ArgumentError, match="no parameter"):
        parameters(model(TIED), ties=[("table", "nothing")])
    with pytest.raises(ArgumentError, match="'auto', 'none' or pairs"):
        parameters(model(TIED), ties="some")


# ---- T4: names are lost ----


@pytest.mark.parametrize("name", ["gpt", "encoder", "lstm", "gru", "rnn", "vit", "llama", "unet", "norms"])
def test_names_and_shapes_are_those_of_the_module(name):
    arrays = numbers(name)
    expected = {key.removeprefix("grad:"): array.shape for key, array in arrays.items() if key.startswith("grad:")}
    state = load(name, backend="numpy").state_dict()
    assert {path: state[path].shape for path in expected} == expected


def test_weights_of_recurrent_layers_load_into_nn_layers():
    module = load("lstm", backend="autodiff(numpy)")
    layer = bb.nn.LSTM(3, 4, num_layers=2, batch_first=True, bidirectional=True)
    state = {path.removeprefix("rnn."): x for path, x in module.state_dict().items() if path.startswith("rnn.")}
    layer.load_state_dict(state)
    head = bb.nn.Linear(8, 2)
    head.load_state_dict(
        {path.removeprefix("head."): x for path, x in module.state_dict().items() if path.startswith("head.")}
    )
    (x,) = inputs_of("lstm", numbers("lstm"))
    assert np.allclose(head(layer(x)[0]).numpy(), module(x).numpy(), atol=1e-6)


def test_names_of_exporters_are_recognized_in_linear_time():
    """A name of 500 characters took 16 ms at each check."""
    assert all(
        map(is_exporters, ("/a/Constant_output_0", "x_const_fold_opt__3", "/linear/MatMul_output_0\n", "val_1_2"))
    )
    assert not any(map(is_exporters, ("value", "weight", "Constant" * 100)))
    assert all(is_exporters(f"{'_output_' * 60}{i}\n") for i in range(1000))  # took 16 s


def test_invalid_name_scopes_are_ignored():
    metadata = [
        {"pkg.torch.onnx.name_scopes": x} for x in ("{[]: 1}", "3", "(" * 9000, "9" * 9999, "['a', 3, 'b', '']")
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [scopes_of(x) for x in (*metadata, {"pkg.torch.onnx.name_scopes": r"['\d', '']"})] == [
            [], [], [], [], ["a", "b"], [r"\d"],
        ]  # fmt: skip


def test_names_of_nodes_of_older_exporters():
    body = "(float[n, 2] x) => (float[n, 3] y) <float[2, 3] w = {1, 2, 3, 4, 5, 6}> { y = MatMul(x, w) }"
    made = model(body)
    made.graph.initializer[0].name = made.graph.node[0].input[1] = "onnx::MatMul_7"
    made.graph.node[0].name = "/encoder/fc/MatMul"
    found = parameters(made)
    assert found["encoder.fc.weight"].shape == (3, 2)
    assert found["encoder.fc.weight"].tolist() == [[1, 4], [2, 5], [3, 6]]


def test_parameters_missing_from_the_file_are_reported():
    assert "bn1.weight" in load("resnet").report.missing


def test_names_of_module_methods_get_an_underscore():
    body = "(float[n, 2] x) => (float[n, 2] y) <float[2, 2] train = {1, 2, 3, 4}> { y = MatMul(x, train) }"
    module = bb.onnx.load(model(body), backend="autodiff(numpy)")
    assert [path for path, _ in module.named_parameters()] == ["train_"]
    assert module.train() is module


@pytest.mark.parametrize("name", ["val_1", "onnx::Conv_77", "12", "constant_3", "/a/Constant_output_0", "permute_2"])
def test_names_of_exporters(name):
    assert is_exporters(name)


@pytest.mark.parametrize("name", ["encoder.weight", "w", "layers.0.bias", "model/dense/MatMul/ReadVariableOp:0"])
def test_names_given_by_users(name):
    assert not is_exporters(name)


def test_paths_in_metadata():
    assert path_of("a_b_0_weight", ["a", "a.b", "a.b.0"]) == "a.b.0.weight"
    assert path_of("weight", []) == "weight"
    assert path_of_node("/model/layers.1/fc/Gemm") == "model.layers.1.fc"
    assert path_of_node("/layers/layers.0/fc/Gemm") == "layers.0.fc"


# ---- T5 and T6 ----


@pytest.mark.parametrize("name", ["gpt", "resnet", "encoder", "norms", "unet", "llama"])
def test_no_tensor_is_read_to_compute_shapes(name, monkeypatch):
    from backburn.onnx import graph

    module = load(name, backend="numpy")
    monkeypatch.setattr(graph, "to_host", None)
    arrays = numbers(name)
    assert module(*inputs_of(name, arrays, "numpy")).shape == arrays["output"].shape


def test_the_gradient_of_a_loop_equals_the_unrolled_loop():
    body = """(float[2] x) => (float[2] y) <float[2, 2] w = {0.5, 0.25, -0.5, 1}, int64 n = {3}, bool on = {1}>
    { y = Loop(n, on, x) <body = b (int64 i, bool c, float[2] h) => (bool d, float[2] k)
      { d = Identity(c)  a = MatMul(h, w)  k = Tanh(a) }> }"""
    looped = bb.onnx.load(model(body), backend="autodiff(numpy)")
    unrolled = (
        "(float[2] x) => (float[2] y) <float[2, 2] w = {0.5, 0.25, -0.5, 1}> { a = MatMul(x, w)  b = "
        "Tanh(a)  c = MatMul(b, w)  d = Tanh(c)  e = MatMul(d, w)  y = Tanh(e) }"
    )
    plain = bb.onnx.load(model(unrolled), backend="autodiff(numpy)")
    x = bb.asarray([1.0, -2.0])
    for module in (looped, plain):
        assert [path for path, _ in module.named_parameters()] == ["w"]
    found, expected = (gradients_of(module, x)["w"] for module in (looped, plain))
    assert np.allclose(found, expected, rtol=1e-6)


def test_the_report_is_a_table():
    text = str(load("gpt").report)
    assert "lm_head.weight" in text
    assert "tied: " in text
    assert "(T)" in text
    assert "MatMul" in text


def test_a_model_prints_its_parameters_but_not_its_graph():
    model = load("mlp")
    shown = repr(model).splitlines()
    assert shown[0].startswith("OnnxModel  # ")
    assert len(shown) == len(model.named_modules()) + len(model.state_dict())
    assert repr(model._program) == f"<graph of {len(model._program.graph.steps)} nodes>"
