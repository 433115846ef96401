"""Summaries of models: multiply-adds from formulas and from default bodies, shared parts, and invalid input."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn
from backburn.backend.registry import load_backend
from backburn.backend.wrapper import Wrapper
from backburn.base.errors import ArgumentError, ShapeError, Unsupported
from backburn.base.module_calls import WATCHERS
from backburn.nn.model_summary import Outputs
from backburn.ops.rules.work import multiply_adds_of
from backburn.ops.table import OPERATIONS


def zeros(*shape: int, dtype: str = "float32") -> Any:
    return bb.zeros(shape, dtype=dtype, backend="null")


def layers(summary: nn.Summary) -> dict[str, nn.LayerSummary]:
    return {layer.path: layer for layer in summary.layers}


class Block(nn.Module):
    """A residual block, with a stride and a projection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.down = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
        self.relu = nn.ReLU()

    def forward(self, x: Any) -> Any:
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + self.down(x))


def test_a_residual_stack_of_convolutions() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 7, stride=2, padding=3), Block(8, 8, 1), Block(8, 16, 2))
    found = nn.summary(model, zeros(2, 3, 32, 32))
    side, examples = 16, 2
    stem = examples * side**2 * 8 * 3 * 49
    first = examples * side**2 * (8 * 8 * 9 * 2 + 8 * 8)
    second = examples * (side // 2) ** 2 * (8 * 16 * 9 + 16 * 16 * 9 + 8 * 16)
    assert found.multiply_adds == stem + first + second
    assert found.parameters == found.trainable == model.num_parameters
    by_path = layers(found)
    assert by_path["2.conv1"].output == ("f32[2,16,8,8]",)
    assert by_path["1.relu"].calls == 2
    assert by_path["1.bn1"].nbytes == 4 * 8 * 4 + 8, "two parameters, two statistics, and a counter"
    assert found.nbytes == sum(x.nbytes for x in model.state_dict().values())


@pytest.mark.parametrize("heads", [1, 4])
def test_an_encoder_layer(heads: int) -> None:
    size, hidden, steps, examples = 32, 48, 10, 3
    model = nn.TransformerEncoderLayer(size, heads, dim_feedforward=hidden)
    found = nn.summary(model, zeros(examples, steps, size))
    rows = examples * steps
    projections, attention, block = 4 * rows * size**2, 2 * rows * steps * size, 2 * rows * size * hidden
    assert found.multiply_adds == projections + attention + block
    assert layers(found)["self_attn"].multiply_adds == attention
    assert layers(found)["linear1"].multiply_adds == rows * size * hidden


def test_grouped_queries_share_keys_without_sharing_products() -> None:
    model = nn.MultiheadAttention(16, 4, num_kv_heads=2)
    assert layers(nn.summary(model, zeros(2, 5, 16)))[""].multiply_adds == 2 * 2 * 5 * 5 * 16


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3)])
def test_recurrences(kind: Any, gates: int) -> None:
    model, steps, examples = kind(6, 5, num_layers=2, bidirectional=True), 7, 3
    expected = steps * examples * 2 * gates * 5 * ((6 + 5) + (10 + 5))
    assert nn.summary(model, zeros(steps, examples, 6)).multiply_adds == expected


def test_an_embedding_multiplies_nothing_and_a_tied_head_has_no_parameters() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            self.embed, self.head = nn.Embedding(50, 8), nn.Linear(8, 50, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: Any) -> Any:
            return self.head(self.embed(ids))

    found = nn.summary(Model(), zeros(2, 3, dtype="int64"))
    embed, head = layers(found)["embed"], layers(found)["head"]
    assert (embed.parameters, embed.multiply_adds, embed.shared) == (400, 0, 0)
    assert (head.parameters, head.multiply_adds, head.shared, head.nbytes) == (0, 2 * 3 * 400, 400, 0)
    assert found.parameters == 400
    assert "shared" in str(found).splitlines()[-2]


def test_the_size_of_quantized_layers() -> None:
    scheme = "qint4_symmetric_block32_float16"
    model = nn.Sequential(nn.Conv2d(32, 64, 1), nn.Flatten(), nn.Linear(64, 10)).freeze("2")
    quantized = nn.quantize_model(model, scheme)
    plain, small = nn.summary(model, zeros(2, 32, 1, 1)), nn.summary(quantized, zeros(2, 32, 1, 1))
    assert plain.multiply_adds == small.multiply_adds == 2 * 64 * 32 + 2 * 64 * 10
    assert small.parameters == plain.parameters
    assert plain.trainable == 64 * 32 + 64
    linear = layers(small)["2"]
    assert linear.nbytes == quantized[2].weight.nbytes + 40  # type: ignore[attr-defined]
    assert linear.nbytes < 0.25 * layers(plain)["2"].nbytes
    both = nn.quantize_model(model, "qint8_symmetric_channel0_float32", activations=bb.qint8)
    assert nn.summary(both, zeros(2, 32, 1, 1)).multiply_adds == plain.multiply_adds


def test_columns_add_up_at_every_depth() -> None:
    model = nn.Sequential(nn.ModuleList([nn.Linear(2, 3)])[0], nn.Sequential(nn.Linear(3, 3), nn.Tanh()))
    found = nn.summary(model, zeros(4, 2))
    assert found.table(depth=1).splitlines() == [
        "layer            output    parameters  bytes  multiply-adds",
        "Sequential       f32[4,3]",
        "  0: Linear      f32[4,3]           9     36             24",
        "  1: Sequential  f32[4,3]          12     48             36",
        "total                              21     84             60",
    ]
    assert found.table(0).splitlines()[1] == "Sequential  f32[4,3]          21     84             60"
    assert len(str(found).splitlines()) == 7


class Several(nn.Module):
    """A model with dicts and tuples, a layer that is not called and one that is called twice."""

    def __init__(self) -> None:
        self.twice, self.never = nn.Linear(4, 4), nn.Linear(4, 9)
        self.parts = {"a": nn.Linear(4, 2)}

    def forward(self, batch: Any, *, scale: float, extra: Any = None) -> Any:
        y = self.twice(self.twice(batch["x"][0])) * scale
        return {"y": (self.parts["a"](y), extra), "n": 3}


def test_trees_of_inputs_and_outputs() -> None:
    found = nn.summary(
        Several(), {"x": (np.zeros((5, 4), "float32"), "word")}, scale=2.0, extra=bb.zeros(3, dtype="int32")
    )
    by_path = layers(found)
    assert by_path[""].output == ("f32[5,2]", "i32[3]")
    assert (by_path["twice"].calls, by_path["twice"].multiply_adds) == (2, 2 * 5 * 16)
    assert (by_path["never"].calls, by_path["never"].parameters, by_path["never"].output) == (0, 45, ())
    assert by_path["parts.a"].multiply_adds == 40
    lines = str(found).splitlines()
    labels = ["Several", "  twice: Linear (x2)", "  never: Linear (not called)", "  parts.a: Linear"]
    assert [line[:28].rstrip() for line in lines[1:5]] == labels


def test_a_summary_changes_and_computes_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm(3), nn.Dropout(0.5))
    before, drawn = model.state_dict(), bb.random.get_state()
    nn.summary(model, zeros(6, 4))
    assert bb.random.get_state() == drawn
    assert all((x == before[path]).all() for path, x in model.state_dict().items())
    assert not any(isinstance(watcher, Outputs) for watcher in WATCHERS)
    huge = nn.Linear(8, 8).to("null")
    assert nn.summary(huge, zeros(10**9, 8)).multiply_adds == 64 * 10**9


def test_on_a_backend_without_gradients_and_with_derivatives_inside() -> None:
    class Slope(nn.Module):
        def __init__(self) -> None:
            self.inside = nn.Linear(3, 1)

        def forward(self, x: Any) -> Any:
            return bb.grad(lambda x: self.inside(x).sum())(x)

    assert nn.summary(nn.Linear(3, 2).to("numpy"), zeros(4, 3)).multiply_adds == 24
    found = nn.summary(Slope(), zeros(4, 3))
    assert (found.layers[0].output, found.multiply_adds) == (("f32[4,3]",), 24)


def test_in_threads_and_inside_of_each_other() -> None:
    class Curious(nn.Module):
        def __init__(self) -> None:
            self.inside = nn.Linear(4, 4)
            self.seen: list[int] = []

        def forward(self, x: Any) -> Any:
            self.seen.append(nn.summary(self.inside, zeros(100, 4)).multiply_adds)
            return self.inside(x)

    model, found = Curious(), list[int]()

    def run() -> None:
        for _ in range(10):
            found.append(nn.summary(model, zeros(2, 4)).multiply_adds)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [32] * 30
    assert not any(isinstance(watcher, Outputs) for watcher in WATCHERS)


def test_bad_input() -> None:
    with pytest.raises(ArgumentError, match=r"summary: takes a module, not .*; write Linear\(\.\.\.\)"):
        nn.summary(nn.Linear, zeros(2))  # type: ignore[arg-type]
    with pytest.raises(ShapeError) as error:
        nn.summary(nn.Sequential(nn.ReLU(), nn.Linear(3, 2)), zeros(2, 5))
    assert "In '1' (Linear) of this Sequential." in error.value.__notes__
    assert "summary: the model was called on shapes alone, without values." in error.value.__notes__
    with pytest.raises(Unsupported, match="nonzero"):
        nn.summary(nn.Sequential(nn.Function(lambda x: bb.nonzero(x))), zeros(2))
    assert not any(isinstance(watcher, Outputs) for watcher in WATCHERS)


# ---- the formulas ----

NULL = load_backend("null")


class Bodies(Wrapper):
    """Run the default body of every derived operation, and count multiply-adds of ``matmul``."""

    name, count = "bodies", 0

    def call(self, operation: str, /, *operands: Any, **attributes: Any) -> Any:
        entry = OPERATIONS[operation]
        if not entry.required:
            return entry.body(self, *operands, **attributes)
        result = super().call(operation, *operands, **attributes)
        if operation == "matmul":
            self.count += multiply_adds_of(operation, operands, attributes, result)
        return result


WINDOWS: dict[str, Any] = {"stride": (2, 1), "padding": ((1, 1), (0, 0)), "groups": 2}
CASES: dict[str, tuple[list[tuple[int, ...]], dict[str, Any]]] = {
    "matmul": ([(2, 3, 4), (4, 5)], {}),
    "linear": ([(2, 3, 4), (5, 4), (5,)], {}),
    "linear_weight_backward": ([(2, 3, 5), (2, 3, 4)], {}),
    "feed_forward": ([(2, 3, 4), (7, 4), (5, 7)], {}),
    "feed_forward_backward": ([(2, 3, 5), (2, 3, 4), (5, 7), (2, 3, 7)], {"approximate": "none"}),
    "conv": ([(2, 4, 9, 8), (6, 2, 3, 2)], {**WINDOWS, "dilation": (1, 2)}),
    "conv_transpose": ([(2, 4, 5, 4), (4, 3, 3, 2)], {**WINDOWS, "dilation": (1, 1), "output_padding": (0, 0)}),
    "scaled_dot_product_attention": ([(2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 7)], {}),
    "scaled_dot_product_attention_backward": ([(2, 3, 5, 7), (2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 7)], {}),
    "lstm_cell": ([(3, 20), (3, 5), (3, 5), (20, 5)], {}),
    "gru_cell": ([(3, 15), (3, 5), (15, 5)], {}),
    "lstm": ([(4, 3, 20), (3, 5), (3, 5), (20, 5)], {}),
    "gru": ([(4, 3, 15), (3, 5), (15, 5)], {}),
}


@pytest.mark.parametrize("name", CASES)
def test_formulas_agree_with_the_default_bodies(name: str) -> None:
    shapes, attributes = CASES[name]
    bodies: Any = Bodies(NULL)
    operands = [NULL.zeros(shape, bb.float32) for shape in shapes]
    result = OPERATIONS[name].body(bodies, *operands, **attributes) if name != "matmul" else bodies.matmul(*operands)
    assert bodies.count == multiply_adds_of(name, operands, attributes, result)
    assert bodies.count > 0
