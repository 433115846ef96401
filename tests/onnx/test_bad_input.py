"""Damaged, hostile and unsupported files. Errors name the node, the operator and the opset."""

import os
import re
from importlib import import_module

import pytest

pytest.importorskip("onnx", reason="reading ONNX models needs the package onnx")
import numpy as np
from onnx import TensorProto, helper
from tests.onnx.exported import FOLDER
from tests.onnx.graphs import model

import backburn as bb
from backburn.errors import ArgumentError, DTypeError, FileFormatError, ShapeError, Unsupported
from backburn.nn.module import name_buffers

PLUS = "(float[n, 2] x) => (float[n, 2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"


def load(proto, **options):
    return bb.onnx.load(proto, backend="numpy", **options)


def refused(kind, match, proto, **options):
    with pytest.raises(kind, match=match):
        load(proto, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exported", "text", "nodes"])
def test_randomly_changed_models_compute_or_are_refused(name, tmp_path):
    from tools.fuzz_onnx import fuzz

    folder = tmp_path / "inside"
    folder.mkdir()
    count = {"text": 1000, "exported": 600, "nodes": 400}[name]
    outcomes = fuzz(name, count, folder)
    assert outcomes.total() == count
    assert outcomes["read"] > 50
    assert outcomes.total() - outcomes["read"] > 150


# ---- files ----


@pytest.mark.parametrize("data", [b"", b"\x00", b"not a model at all", b"\x08\x0a"])
def test_other_data_are_refused_as_models(data, tmp_path):
    refused(FileFormatError, "not an ONNX model", data)
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    refused(FileFormatError, "not an ONNX model", path)


def test_truncated_files():
    data = (FOLDER / "gpt.onnx").read_bytes()
    for end in range(0, len(data), len(data) // 50):
        with pytest.raises(FileFormatError):
            load(data[:end])


@pytest.mark.parametrize("name", [b"gpt", b"/fc", b"Identity"])
def test_names_that_are_not_utf8(name):
    made = model("(float[2] gpt) => (float[2] y) { y = Identity(gpt) }")
    made.graph.node[0].name = "/fc"
    data = made.SerializeToString().replace(name, b"\xff" * len(name))
    refused(FileFormatError, "not text in UTF-8|not an ONNX model", data)


def test_missing_files_folders_and_other_objects(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nothing.onnx")
    refused(FileFormatError, "a folder", tmp_path)
    refused(ArgumentError, "not a int", 3)


def outside(location, **more):
    """A model with weights in another file."""
    made = model(PLUS)
    tensor = made.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **more}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(value)
    return made


def saved(made, folder):
    path = folder / "m.onnx"
    path.write_bytes(made.SerializeToString())
    return path


def test_data_beside_the_file(tmp_path):
    (tmp_path / "w.bin").write_bytes(np.asarray([9, 1, 2], "<f4").tobytes())
    found = load(saved(outside("w.bin", offset=4, length=8), tmp_path))
    assert found(np.zeros((1, 2), np.float32)).tolist() == [[1.0, 2.0]]
    with pytest.raises(ArgumentError, match="load the model by its path"):
        load(outside("w.bin", offset=4, length=8))


@pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd", "a/../../w.bin", "", "a\\b"])
def test_data_outside_of_the_folder(location, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(8))
    refused(FileFormatError, "not a path inside", saved(outside(location), tmp_path / "in"))


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs symbolic links")
def test_links_out_of_the_folder(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(8))
    (tmp_path / "in" / "link").symlink_to(tmp_path / "w.bin")
    refused(FileFormatError, "a link to", saved(outside("link"), tmp_path / "in"))


@pytest.mark.parametrize("location", ["nothing.bin", "a" * 5000, "."])
def test_missing_external_data_files(location, tmp_path):
    refused(FileFormatError, "cannot be read|not a path inside", saved(outside(location), tmp_path))


@pytest.mark.parametrize(("offset", "length"), [(4, 8), (0, 4), (0, 2**62), (2**62, 8), (-4, 8)])
def test_external_data_beyond_the_end_of_the_file(offset, length, tmp_path):
    (tmp_path / "w.bin").write_bytes(bytes(8))
    refused(FileFormatError, "tensor 'w'", saved(outside("w.bin", offset=offset, length=length), tmp_path))


@pytest.mark.parametrize("dims", [[2**62], [2**31, 2**31], [3], [-1], [2, 2**62, 0], [2**62, 2**62, 0]])
def test_dims_that_do_not_match_the_data(dims):
    made = model(PLUS)
    made.graph.initializer[0].dims[:] = dims
    refused(FileFormatError, "tensor 'w'", made)


def test_sparse_tensors():
    made = model(PLUS)
    del made.graph.initializer[0]
    values = helper.make_tensor("w", TensorProto.FLOAT, [1], [5.0])
    places = helper.make_tensor("i", TensorProto.INT64, [1], [1])
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [2]))
    assert load(made)(np.zeros((1, 2), np.float32)).tolist() == [[0.0, 5.0]]
    made.graph.sparse_initializer[0].dims[:] = [2**62]
    refused(FileFormatError, "sparse tensor 'w' has dims", made)


# ---- graphs ----


def test_unsorted_nodes_are_sorted():
    body = "(float[2] x) => (float[2] y) { b = Neg(a)  a = Exp(x)  y = Abs(b) }"
    assert np.allclose(load(model(body))(np.zeros(2, np.float32)).numpy(), 1.0)


def test_bodies_that_use_outer_names_are_sorted():
    body = """(float[2] x, bool c) => (float[2] y) { y = If(c) <then_branch = t () => (float[2] u) { u = Neg(a) },
    else_branch = e () => (float[2] v) { v = Exp(a) }>  a = Abs(x) }"""
    found = load(model(body))(np.asarray([-1, 2], np.float32), np.asarray(True))
    assert found.tolist() == [-1.0, -2.0]


def test_cycles():
    refused(
        FileFormatError,
        "cycle among the nodes",
        model("(float[2] x) => (float[2] y) { a = Neg(b)  b = Exp(a)  y = Add(a, x) }"),
    )


@pytest.mark.parametrize(
    ("body", "kind", "match"),
    [
        ("(float[2] x) => (float[2] y) { y = Add(x, nothing) }", FileFormatError, (
        r"\(Add, opset 20\).*nothing computes "
        r"the input 'nothing'"
    )),
        ("(float[2] x) => (float[2] y) { a = Abs(x) }", FileFormatError, "nothing computes the output 'y'"),
        ((
        "(float[2] x) => (float[2] y) { y = "
        "Abs(x)  y = Neg(x) }"
    ), FileFormatError, r"\(Neg, opset 20\).*'y' of an output is there twice"),
        ("(float[2] x) => (float[2] y) { y = NoSuch(x) }", Unsupported, r"\(NoSuch, opset 20\).*no operator NoSuch"),
        ("(float[2] x) => (float[2] y) { y = Abs(x, x) }", ArgumentError, r"\(Abs, opset 20\).*2 inputs"),
        ((
        "(float[2] x) => (float[2] y) { y = "
        "Abs <axis = 1> (x) }"
    ), ArgumentError, r"\(Abs, opset 20\).*no attribute axis"),
        ("(float[2] x) => (float[2] y) { y = Softmax <axis = 1.5> (x) }", ArgumentError, "axis has another type"),
        ((
        "(float[2] x) => (float[2] y) { "
        "y = Cast (x) }"
    ), ArgumentError, r"\(Cast, opset 20\).*attribute to is missing"),
        ((
        "(float[2] x) => (float[2] y) { y = "
        "com.microsoft.Gelu(x) }"
    ), FileFormatError, r"\(com.microsoft.Gelu.*'com.microsoft'"),
        ('(float[2] x) => (string[2] y) { y = Constant <value_strings = ["a"]> () }', Unsupported, "constants of text"),
    ],
)  # fmt: skip
def test_graphs_that_are_refused(body, kind, match):
    with pytest.raises(kind, match=match):
        load(model(body))


def test_other_domains_are_named_with_the_node():
    made = model("(float[2] x) => (float[2] y) { y = com.microsoft.FusedGelu(x) }", imports=', "com.microsoft": 1')
    made.graph.node[0].name = "gelu_7"
    refused(Unsupported, r"'gelu_7' \(com.microsoft.FusedGelu, opset 1\).*domain 'com.microsoft'", made)


def test_opsets_that_are_too_new_or_too_old():
    refused(Unsupported, "pip install", model(PLUS, opset=9999))
    refused(Unsupported, r"\(Add, opset 6\).*version_converter", model(PLUS, opset=6))


def test_functions():
    twice = '<domain: "local", opset_import: ["": 20]> Twice (a) => (b) { b = Add(a, a) }'
    made = model("(float[2] x) => (float[2] y) { y = local.Twice(x) }", imports=', "local": 1', functions=twice)
    assert load(made)(np.ones(2, np.float32)).tolist() == [2.0, 2.0]
    made.functions[0].node[0].op_type, made.functions[0].node[0].domain = "Twice", "local"
    del made.functions[0].node[0].input[1]
    refused(FileFormatError, "'Twice' calls itself", made)


def test_many_buffers_are_named_together(monkeypatch):
    """Naming 20,000 unused tensors (400 kB) one by one took 8 s, and grew quadratically."""
    calls = []

    def counted(*given):
        calls.append(given)
        name_buffers(*given)

    monkeypatch.setattr(import_module("backburn.onnx.load"), "name_buffers", counted)
    made = model("(float[1] x) => (float[1] y) { y = Neg(x) }")
    for name in (f"{part}w{i}" for i in range(50) for part in ("", "part.")):
        made.graph.initializer.append(helper.make_tensor(name, TensorProto.FLOAT, [1], [1.0]))
    loaded = load(made)
    assert len(calls) == 2
    assert sorted(loaded.state_dict()) == sorted(path for path, _ in loaded.named_buffers())
    assert len(loaded.named_buffers()) == 100


def test_functions_that_grow_exponentially_are_refused():
    """Each calls the previous one twice: 2**40 nodes."""
    functions = []
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    for i in range(40):
        inner, domain = ("Neg", "") if i == 0 else (f"F{i - 1}", "local")
        nodes = [
            helper.make_node(inner, ["a"], ["c"], domain=domain),
            helper.make_node(inner, ["c"], ["b"], domain=domain),
        ]
        functions.append(helper.make_function("local", f"F{i}", ["a"], ["b"], nodes, imports))
    made = model("(float[2] x) => (float[2] y) { y = local.F39(x) }", imports=', "local": 1')
    made.functions.extend(functions)
    refused(FileFormatError, "functions add more than 1000 nodes", made, limits=bb.onnx.Limits(nodes=1000))


@pytest.mark.slow
def test_forty_thousand_nodes_take_linear_time():
    """Quadratic time would take minutes."""
    count = 40_000
    nodes = [helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
    value = helper.make_tensor_value_info("v0", TensorProto.FLOAT, [1])
    graph = helper.make_graph(nodes, "g", [value], [helper.make_tensor_value_info(f"v{count}", TensorProto.FLOAT, [1])])
    made = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))
    assert made.report.operators == {"Neg": count}
    assert made(np.ones(1, np.float32)).tolist() == [1.0]


def test_unsorted_nodes_in_reverse_take_linear_time():
    count = 5000
    nodes = [helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in reversed(range(count))]
    value = helper.make_tensor_value_info("v0", TensorProto.FLOAT, [1])
    graph = helper.make_graph(nodes, "g", [value], [helper.make_tensor_value_info(f"v{count}", TensorProto.FLOAT, [1])])
    assert load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))(
        np.ones(1, np.float32)
    ).tolist() == [1.0]


# ---- running ----


ENDLESS = """(float[2] x) => (float[2] y) <bool on = {1}> { y = Loop(, on, x) <body = b (int64 i, bool c, float[2] h) =>
(bool d, float[2] k) { d = Identity(c)  k = Neg(h) }> }"""


def test_endless_loops_end_at_the_limit():
    made = load(model(ENDLESS), limits=bb.onnx.Limits(iterations=100))
    with pytest.raises(ArgumentError, match=r"\(Loop, opset 20\).*more than 100 steps"):
        made(np.ones(2, np.float32))


@pytest.mark.parametrize(
    "nodes",
    [
        "s = Constant <value_ints = [4611686018427387904]> ()  a = ConstantOfShape(s)  y = Add(x, a)",
        "s = Constant <value_ints = [1000000, 1000000]> ()  a = Expand(x, s)  y = Identity(a)",
        "s = Constant <value_ints = [4611686018427387904]> ()  y = Tile(x, s)",
        "s = Constant <value_ints = [0, 4611686018427387904]> ()  y = Pad(x, s)",
        (
        "a = Constant <value_int = 0> ()  b = Constant <value_int = 4611686018427387904> ()  c = "
        "Constant <value_int = 1> ()  r = Range(a, b, c)  s = Cast <to = 1> (r)  y = Add(x, s)"
    ),
    ],
)  # fmt: skip
def test_sizes_beyond_the_limit(nodes):
    made = load(model(f"(float[1] x) => (float[n] y) {{ {nodes} }}"))
    with pytest.raises((ShapeError, ArgumentError), match=r"node .* \(\w+, opset 20\)"):
        made(np.ones(1, np.float32))


def test_an_error_names_the_node_and_its_inputs():
    body = "(float[n, m] x) => (float[k, l] y) <float[2, 3] w = {1, 2, 3, 4, 5, 6}> { y = MatMul(x, w) }"
    made = model(body)
    made.graph.node[0].name = "head"
    with pytest.raises(ShapeError) as caught:
        load(made)(np.ones((1, 5), np.float32))
    assert re.search(r"node 'head' \(MatMul, opset 20\).*Inputs: float32\[1, 5\], float32\[2, 3\]", str(caught.value))


def test_errors_in_bodies_name_their_node():
    body = """(float[2] x) => (float[2] y) <int64 n = {2}, bool on = {1}, float[3] w = {1, 2, 3}> { y = Loop(n, on, x)
    <body = b (int64 i, bool c, float[2] h) => (bool d, float[2] k) { d = Identity(c)  k = Add(h, w) }> }"""
    with pytest.raises(ShapeError, match=r"\(Add, opset 20\)"):
        load(model(body))(np.ones(2, np.float32))


def test_errors_show_no_terminal_escapes():
    made = model(PLUS)
    made.graph.node[0].name = "\x1b[2Jnode"
    made.graph.node[0].op_type = "\x1b[31mAdd"
    with pytest.raises(Unsupported) as caught:
        load(made)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("given", "kind", "match"),
    [
        ((), ArgumentError, "missing: x"),
        ((np.ones((1, 2), np.float32),) * 2, ArgumentError, "2 inputs are given"),
        ((np.ones(2, np.float32),), ShapeError, r"'x' is float32\[n, 2\], and is given float32\[2\]"),
        ((np.ones((1, 3), np.float32),), ShapeError, r"'x' is float32\[n, 2\]"),
        ((np.ones((1, 2), np.int64),), DTypeError, r"astype\('float32'\)"),
    ],
)
def test_inputs_that_do_not_fit(given, kind, match):
    with pytest.raises(kind, match=match):
        load(model(PLUS))(*given)


def test_inputs_by_name():
    made = load(model(PLUS))
    x = np.zeros((1, 2), np.float32)
    assert made(x=x).tolist() == [[1.0, 2.0]]
    with pytest.raises(ArgumentError, match="no input 'X'"):
        made(X=x)
    with pytest.raises(ArgumentError, match="given twice"):
        made(x, x=x)
    assert made.input_names == ("x",)
    assert made.output_names == ("y",)


def test_wrong_options():
    with pytest.raises(ArgumentError, match="positive integer"):
        bb.onnx.Limits(iterations=0)
    refused(ArgumentError, "limits is a Limits", model(PLUS), limits=3)
    refused(ArgumentError, "trainable takes patterns", model(PLUS), trainable=[3])


def test_8_bit_floats_are_read_only_to_be_dequantized():
    made = model(
        (
            "(float[2] x) => (float[2] y) <float[2] w = {1, 2}, float s = {0.5}> { d = DequantizeLinear(w, "
            "s)  y = Add(x, d) }"
        ),
        opset=21,
    )
    made.graph.initializer[0].CopyFrom(helper.make_tensor("w", TensorProto.FLOAT8E4M3FN, [2], [1.0, 2.0]))
    assert load(made)(np.zeros(2, np.float32)).tolist() == [0.5, 1.0]
    made.graph.node[0].op_type, made.graph.node[0].input[:] = "Mul", ["x", "w"]
    refused(Unsupported, r"\(Mul, opset 21\).*float8_e4m3fn is read by value", made)


def test_4_bit_integers():
    made = model(
        (
            "(float[3] x) => (float[3] y) <float[3] w = {1, 2, 3}, float s = {0.5}> { d = "
            "DequantizeLinear(w, s)  y = Add(x, d) }"
        ),
        opset=21,
    )
    made.graph.initializer[0].CopyFrom(helper.make_tensor("w", TensorProto.INT4, [3], [-8, 7, 1]))
    assert load(made)(np.zeros(3, np.float32)).tolist() == [-4.0, 3.5, 0.5]


def test_operators_of_opset_7():
    body = (
        "(float[n, 1, 2] x) => (float[n, 1, 4] y) <float[1] scale = {2}, float[1] bias = {1}, float[1] mean = {0.5}, "
        "float[1] var = {4}> { a = BatchNormalization <epsilon = 0.0> (x, scale, bias, mean, var)  y = Upsample "
        "<scales = [1.0, 1.0, 2.0]> (a) }"
    )
    made = model(body, opset=7)
    assert load(made)(np.asarray([[[0.5, 4.5]]], np.float32)).tolist() == [[[1.0, 1.0, 5.0, 5.0]]]
    made.graph.node[0].attribute.append(helper.make_attribute("spatial", 0))
    with pytest.raises(Unsupported, match=r"\(BatchNormalization, opset 7\).*spatial=0"):
        load(made)(np.ones((1, 1, 2), np.float32))
