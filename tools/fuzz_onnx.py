"""Changes models of ONNX at random, and loads and runs them.

Each must be read and run, or be refused with one of our errors. Changes know the structure: dims, names, operators,
types, attributes, orders of nodes, locations of external data; and bytes, which are truncated or changed. Run as
``python -m tools.fuzz_onnx --count 100000``, optionally with ``--formats`` and ``--seed``. It prints how many models
were read and refused, the CPU seconds of the slowest, and the memory growth. The tests read a few.
"""

from __future__ import annotations

import functools
import os
import random
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, parser
from tools.fuzz_weights import changed
from tools.fuzzing import outcome_of, run

import backburn as bb

DATA = Path(__file__).parents[1] / "tests" / "onnx" / "data"
FORMATS = ("exported", "text", "nodes")
LIMITS = bb.onnx.Limits(iterations=200, elements=100_000, nodes=2000)
_NUMBERS = [0, 1, -1, 2, 3, 7, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63), 255, 1000]
_NAMES = ["", "x", "y", "w", "a", "\x1b[2J", "../../etc/passwd", "train", "a" * 3000, "val_1", "a.b", ".", "日本"]
_OPERATORS = [
    "Add", "Conv", "MatMul", "Reshape", "Expand", "Tile", "ConstantOfShape", "Range", "Loop", "If", "Scan", "LSTM",
    "Gather", "Concat", "Pad", "Resize", "Cast", "Attention", "Softmax", "TopK", "Split", "Identity", "NoSuch",
    "SequenceAt", "Where", "Gemm", "Einsum", "QuantizeLinear", "Slice", "Unsqueeze", "Shape", "DFT", "MaxPool",
]  # fmt: skip
_TEXTS = (
    """(float[n, 2] x) => (float[n, 3] y) <float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 2, 3}>
    { a = MatMul(x, w) y = Add(a, b) }""",
    """(float[2] x) => (float[2] y) <int64 n = {3}, bool on = {1}> { y = Loop(n, on, x) <body = b (int64 i, bool c,
    float[2] h) => (bool d, float[2] k) { d = Identity(c) k = Add(h, h) }> }""",
    """(float[2, 3] x) => (float[m, k] y) { s = Shape(x) y = Reshape(x, s) }""",
    """(float[1, 2, 4, 4] x) => (float[a, b, c, d] y) <float[2, 2, 3, 3] w, int64[4] t = {1, 2, 8, 8}, float[0] e = {}>
    { h = Conv <pads = [1, 1, 1, 1]> (x, w) r = MaxPool <kernel_shape = [2, 2]> (h) y = Resize(r, e, e, t) }""",
    """(float[2] x, bool c) => (float[2] y) { y = If(c) <then_branch = t () => (float[2] u) { u = Neg(x) },
    else_branch = e () => (float[2] v) { v = Exp(x) }> }""",
    """(float[3, 2] x) => (float[2] h, float[3, 2] y) { z = Constant <value_floats = [0.0, 0.0]> () h, y = Scan
    <num_scan_inputs = 1, body = b (float[2] s, float[2] n) => (float[2] t, float[2] o) { t = Add(s, n)
    o = Identity(t) }> (z, x) }""",
    """(float[2, 2] x) => (float[2, 2] y) { q = SequenceConstruct(x, x) i = Constant <value_int = 1> ()
    y = SequenceAt(q, i) }""",
    """(float[4] x) => (uint8[4] q, float[4] y) <float s = {0.1}, uint8 z = {3}> { q = QuantizeLinear(x, s, z)
    y = DequantizeLinear(q, s, z) }""",
    "(float[2] x) => (float[2] y) { y = local.Twice(x) }",
)
_FUNCTION = '<domain: "local", opset_import: ["": 20]> Twice (a) => (b) { b = Add(a, a) }'


@functools.cache
def _models(name: str) -> list[bytes]:
    """The models to change."""
    if name == "exported":
        return [path.read_bytes() for path in sorted(DATA.glob("*.onnx"))]
    if name == "nodes":
        from tests.onnx.nodes import cases

        return [case.model.SerializeToString() for case in list(cases("others").values())[::7]]
    made = []
    for text in _TEXTS:
        proto = parser.parse_model(f'<ir_version: 10, opset_import: ["": 20, "local": 1]> g {text} {_FUNCTION}')
        for tensor in proto.graph.initializer:
            if not (tensor.float_data or tensor.int64_data or tensor.int32_data or tensor.raw_data):
                tensor.raw_data = bytes(4 * int(np.prod(tensor.dims)))
        made.append(proto.SerializeToString())
    outside = onnx.ModelProto.FromString(made[0])
    tensor = outside.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", "24")):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    made.append(outside.SerializeToString())
    sparse = onnx.ModelProto.FromString(made[0])
    values = helper.make_tensor("w", onnx.TensorProto.FLOAT, [2], [1.0, 2.0])
    places = helper.make_tensor("i", onnx.TensorProto.INT64, [2], [0, 4])
    del sparse.graph.initializer[0]
    sparse.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [2, 3]))
    made.append(sparse.SerializeToString())
    return made


def changed_model(data: bytes, choice: random.Random) -> bytes:
    """A model with a few changes of its structure, of its bytes, or of both."""
    if choice.random() < 0.3:
        return changed(data, choice)
    proto = onnx.ModelProto.FromString(data)
    for _ in range(choice.choice((1, 1, 2, 4))):
        choice.choice(_CHANGES)(proto, choice)
    made = bytes(proto.SerializeToString())
    return changed(made, choice) if choice.random() < 0.1 else made


def _graph_of(proto: Any, choice: random.Random) -> Any:
    """The graph, or a graph nested in it."""
    graph = proto.graph
    inside = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return choice.choice(inside) if inside and choice.random() < 0.4 else graph


def _change_dims(proto: Any, choice: random.Random) -> None:
    graph = proto.graph
    kinds = list(graph.initializer) + [x.values for x in graph.sparse_initializer]
    if not kinds:
        return
    tensor = choice.choice(kinds)
    kind = choice.randrange(6)
    if kind == 0 and tensor.dims:
        tensor.dims[choice.randrange(len(tensor.dims))] = choice.choice(_NUMBERS)
    elif kind == 1:
        tensor.dims.append(choice.choice(_NUMBERS))
    elif kind == 2:
        tensor.data_type = choice.randrange(-1, 30)
    elif kind == 3:
        tensor.raw_data = tensor.raw_data[: choice.randrange(len(tensor.raw_data) + 1)]
    elif kind == 4 and tensor.external_data:
        choice.choice(tensor.external_data).value = choice.choice([*_NAMES, *map(str, _NUMBERS), "link", "weights.bin"])
    else:
        tensor.name = choice.choice(_NAMES)
    if graph.sparse_initializer and choice.random() < 0.3:
        graph.sparse_initializer[0].dims[0] = choice.choice(_NUMBERS)


def _change_node(proto: Any, choice: random.Random) -> None:
    graph = _graph_of(proto, choice)
    if not graph.node:
        return
    node = choice.choice(graph.node)
    names = [*(n for other in graph.node for n in other.output), *(x.name for x in graph.input), *_NAMES]
    kind = choice.randrange(9)
    if kind == 0:
        node.op_type = choice.choice(_OPERATORS)
    elif kind == 1 and node.input:
        node.input[choice.randrange(len(node.input))] = choice.choice(names)
    elif kind == 2 and node.output:
        node.output[choice.randrange(len(node.output))] = choice.choice(names)
    elif kind == 3:
        node.domain = choice.choice(["ai.onnx", "com.microsoft", "ai.onnx.ml", "local", *_NAMES])
    elif kind == 4:
        node.input.append(choice.choice(names))
    elif kind == 5:
        graph.node.append(node)
    elif kind == 6:
        nodes = list(graph.node)
        choice.shuffle(nodes)
        del graph.node[:]
        graph.node.extend(nodes)
    elif kind == 7 and node.input:
        del node.input[-1]
    else:
        graph.node.remove(node)


def _change_attribute(proto: Any, choice: random.Random) -> None:
    nodes = [node for node in _graph_of(proto, choice).node if node.attribute]
    if not nodes:
        return
    node = choice.choice(nodes)
    attribute = choice.choice(node.attribute)
    kind = choice.randrange(6)
    if kind == 0:
        attribute.i = choice.choice(_NUMBERS)
    elif kind == 1 and attribute.ints:
        attribute.ints[choice.randrange(len(attribute.ints))] = choice.choice(_NUMBERS)
    elif kind == 2:
        attribute.ints.append(choice.choice(_NUMBERS))
    elif kind == 3:
        attribute.name = choice.choice(["axis", "pads", "to", "kernel_shape", *_NAMES])
    elif kind == 4:
        attribute.type = choice.randrange(15)
    else:
        attribute.s = choice.choice([b"", b"SAME_UPPER", b"\xff", b"linear", b"NOTSET"])


def _change_model(proto: Any, choice: random.Random) -> None:
    kind = choice.randrange(6)
    if kind == 0 and proto.opset_import:
        choice.choice(proto.opset_import).version = choice.choice([-1, 0, 1, 7, 9, 13, 18, 21, 23, 28, 99, 2**40])
    elif kind == 1:
        value = choice.choice([*proto.graph.input, *proto.graph.output])
        value.name = choice.choice(_NAMES)
    elif kind == 2 and proto.functions:
        proto.functions[0].node[0].op_type = choice.choice(["Twice", *_OPERATORS])
        proto.functions[0].node[0].domain = choice.choice(["", "local"])
    elif kind == 3 and proto.functions:
        proto.functions.append(proto.functions[0])
    elif kind == 4 and proto.graph.input:
        value = choice.choice(proto.graph.input)
        value.type.tensor_type.elem_type = choice.randrange(30)
    elif proto.graph.input:
        shape = choice.choice(proto.graph.input).type.tensor_type.shape
        shape.dim.add().dim_value = choice.choice([0, 1, 2, 5])


_CHANGES: list[Callable[[Any, random.Random], None]] = [
    _change_dims, _change_dims, _change_node, _change_node, _change_node, _change_attribute, _change_attribute,
    _change_model,
]  # fmt: skip


def _value(spec: Any, choice: random.Random) -> Any:
    """An input of the type and shape that a graph declares, if it is small."""
    kind = bb.onnx.dtypes.held(spec.data_type)
    shape = [n if isinstance(n, int) and 0 <= n <= 64 else choice.choice((1, 2, 3)) for n in spec.shape or (2,)]
    if kind is None or int(np.prod(shape)) > 100_000:
        shape = [1]
    array = np.asarray(np.random.default_rng(choice.randrange(100)).integers(0, 3, shape))
    made = bb.asarray(
        array.astype("float32" if kind is None or kind.name == "bfloat16" else kind.dtype), backend="numpy"
    )
    return [made, made] if "sequence" in spec.kind else made


def _load_and_run(path: Path, choice: random.Random) -> None:
    model = bb.onnx.load(path, backend="numpy", limits=LIMITS)
    str(model.report)
    model(*(_value(spec, choice) for spec in model.input_specs))


def fuzz(
    name: str, count: int, folder: Path, seed: int = 0, spent: Callable[[float], None] | None = None
) -> Counter[str]:
    """Load and run ``count`` changed models; returns the number of each outcome."""
    choice = random.Random(f"{name}{seed}")
    (folder / "weights.bin").write_bytes(np.arange(6, dtype="<f4").tobytes())
    link = folder / "link"
    if hasattr(os, "symlink") and not link.is_symlink():
        link.symlink_to("/etc/passwd")
    path = folder / "model.onnx"
    outcomes: Counter[str] = Counter()
    models = _models(name)
    for number in range(count):
        path.write_bytes(changed_model(choice.choice(models), choice))
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # NaN and infinities are values
            outcome, words = outcome_of(lambda: _load_and_run(path, choice), f"model {number} of {name}, seed {seed}")
        if spent is not None:
            spent(time.process_time() - start)
        assert words.isprintable() or words.replace("\n", "").isprintable(), words
        outcomes[outcome] += 1
    return outcomes


if __name__ == "__main__":
    run(__doc__, FORMATS, fuzz)
