"""Layers that PyTorch also has, with its arguments and state dicts: outputs and gradients in both modes.

The expected values are in `torch_layers.npz`, which `tools/freeze_torch_layers.py` writes.
"""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn
from backburn.errors import ArgumentError, DTypeError, ShapeError

FILE = Path(__file__).parent / "torch_layers.npz"


class Reader:
    """Read the arrays of the file in order."""

    def __init__(self) -> None:
        with np.load(FILE) as arrays:
            self.flat = {name: arrays[name] for name in arrays.files}
        self.next = dict.fromkeys(self.flat, 0)
        self.cases: list[dict[str, Any]] = json.loads(self.flat.pop("cases").tobytes())

    def take(self, dtype: str, shape: list[int]) -> Any:
        begin, size = self.next[dtype], int(np.prod(shape))
        self.next[dtype] = begin + size
        found = self.flat[dtype][begin : begin + size].reshape(shape)
        return found if dtype == "int64" else found.astype(np.float64)

    def given(self, value: Any) -> Any:
        return [self.given(part) for part in value] if isinstance(value, list) else self.take(**value)


def read() -> list[dict[str, Any]]:
    """Return the cases with their arrays."""
    reader = Reader()
    for case in reader.cases:
        case["state"] = {name: reader.take(**about) for name, about in case["state"].items()}
        case["inputs"] = [reader.given(about) for about in case["inputs"]]
        for mode in case["modes"]:
            mode["outputs"] = [reader.take(**about) for about in mode["outputs"]]
            mode["grad_inputs"] = [reader.take("float32", shape) for shape in mode["grad_inputs"]]
            for part in ("grad_parameters", "buffers"):
                mode[part] = {name: reader.take("float32", shape) for name, shape in mode[part].items()}
    assert reader.next == {"cases": 0} | {name: len(flat) for name, flat in reader.flat.items()}
    return reader.cases


def identity(case: dict[str, Any]) -> str:
    options = [*map(repr, case["arguments"]), *(f"{name}={value!r}" for name, value in case["options"].items())]
    return f"{case['layer']}({', '.join(options)})" + "".join(f", {name}" for name in case["call"])


CASES = read()


def listed(value: Any) -> Any:
    """Return JSON lists as the tuples they were."""
    return tuple(map(listed, value)) if isinstance(value, list) else value


def made(case: dict[str, Any]) -> Any:
    """Return our layer; ``"bilinear"`` is named ``"linear"`` here for any number of axes."""
    options = {name: listed(value) for name, value in (case["options"] | case["ours"]).items()}
    if options.get("mode") == "bilinear":
        options["mode"] = "linear"
    return getattr(nn, case["layer"])(*map(listed, case["arguments"]), **options)


def tensors(value: Any, dtype: str = "float64") -> Any:
    """Return inputs as tensors, where floats require gradients; several states form a tuple."""
    if isinstance(value, list):
        states = tuple(tensors(part, dtype) for part in value)
        return states if len(states) > 1 else states[0]
    return bb.asarray(value) if value.dtype.kind == "i" else bb.asarray(value, dtype=dtype).require_grad()


def flattened(result: Any) -> list[Any]:
    return [x for part in result for x in flattened(part)] if isinstance(result, (tuple, list)) else [result]


def called(case: dict[str, Any], layer: Any, inputs: list[Any]) -> list[Any]:
    options = {n: bb.asarray(np.array(x)) if isinstance(x, list) else x for n, x in case["call"].items()}
    return flattened(layer(*inputs, **options))


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("case", CASES, ids=identity)
def test_layers_equal_torchs(case: dict[str, Any], training: bool) -> None:
    with bb.use_dtype("float64"):
        ours = made(case)
    ours.load_state_dict(case["state"])
    ours.train(training)
    expected = case["modes"][0 if training else -1]
    inputs = [tensors(x) for x in case["inputs"]]
    parameters = dict(ours.named_parameters())
    outputs = called(case, ours, inputs)
    loss: Any = bb.asarray(0.0, dtype="float64")
    for got, right in zip(outputs, expected["outputs"], strict=True):
        assert got.shape == right.shape
        close(got, right)
        if right.dtype.kind == "f":
            weight = np.cos(np.arange(right.size, dtype=np.float64)).reshape(right.shape)
            loss = loss + (got * bb.asarray(weight)).sum()
    gradients = loss.backward()
    leaves = [x for x in flattened(inputs) if x.dtype.kind == "float"]
    for x, right in zip(leaves, expected["grad_inputs"], strict=True):
        close(x.grad(gradients), right)
    found = {}
    for path, x in parameters.items():  # under the names of our model
        found[path] = bb.zeros(x.shape, dtype="float64") if (g := x.grad(gradients)) is None else g
    twin = made(case).astype("float64")
    twin.load_state_dict({**twin.state_dict(), **found})
    packed = bb.io.torch_state(twin)
    for name, right in expected["grad_parameters"].items():
        assert packed[name].shape == right.shape
        close(packed[name], right)
    state = ours.state_dict()
    for name, right in expected["buffers"].items():
        close(state[name], right)


def close(got: Any, right: Any) -> None:
    """Compare to the precision of float32."""
    np.testing.assert_allclose(got.numpy(), right, rtol=1e-6, atol=1e-6 * max(1.0, np.abs(right).max(initial=0.0)))


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("case", CASES, ids=identity)
def test_state_dicts_go_both_ways(torch: Any, case: dict[str, Any]) -> None:
    """From an instantiated torch layer to ours and back."""
    options = {name: listed(value) for name, value in (case["options"] | case["theirs"]).items()}
    theirs = getattr(torch.nn, case["layer"])(*map(listed, case["arguments"]), **options)
    ours = made(case)
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    assert {path: x.shape for path, x in ours.named_parameters()}.keys() == set(dict(made(case).named_parameters()))
    state = bb.io.torch_state(ours)
    assert sorted(state) == sorted(theirs.state_dict())
    for name, x in theirs.state_dict().items():
        assert np.array_equal(state[name].numpy(), x.numpy())
    theirs.load_state_dict({name: torch.from_numpy(x.numpy()) for name, x in state.items()})
    if len(case["inputs"]) > 1 or case["call"] or case["layer"].endswith("Layer"):
        return  # torch calls these differently
    theirs.eval(), ours.eval()
    x = case["inputs"][0]
    other = torch.from_numpy(x) if x.dtype.kind == "i" else torch.from_numpy(x.astype(np.float32))
    inputs = (other,) * 3 if case["layer"] == "MultiheadAttention" else (other,)
    right = [y for y in flattened(theirs(*inputs)) if y is not None]
    for got, y in zip(called(case, ours, [tensors(x, "float32")]), right, strict=False):
        np.testing.assert_allclose(got.numpy(), y.detach().numpy(), rtol=1e-4, atol=1e-5)


class Two(nn.Module):
    """Attention layers in a list, one of them also as an attribute."""

    def __init__(self) -> None:
        self.layers = [nn.MultiheadAttention(4, 2), nn.Sequential(nn.MultiheadAttention(4, 2, num_kv_heads=1))]
        self.first = self.layers[0]


def test_packed_weights_are_split_by_their_names() -> None:
    ours, other = Two(), Two()
    state = bb.io.torch_state(ours)
    assert [name for name in state if name.startswith("layers.1")] == [
        *(f"layers.1.0.{name}" for name in ("out_proj.weight", "out_proj.bias", "in_proj_weight", "in_proj_bias")),
    ]  # fmt: skip
    assert state["layers.1.0.in_proj_weight"].shape == (8, 4)  # two heads of queries, and one of keys and values
    assert [name for name in state if "layers.0" not in name and "layers.1" not in name] == [
        "first.out_proj.weight", "first.out_proj.bias", "first.in_proj_weight", "first.in_proj_bias",
    ]  # fmt: skip
    other.load_state_dict(state)
    for (path, a), b in zip(ours.named_parameters(), other.parameters(), strict=True):
        assert a.tolist() == b.tolist(), path
        assert b.is_require_grad
    only = {name: x.numpy() for name, x in state.items() if not name.startswith("first")}
    Two().load_state_dict(only)
    with pytest.raises(ArgumentError, match=r"unexpected: first\.in_proj_weight\."):
        Two().load_state_dict({**ours.state_dict(), "first.in_proj_weight": state["first.in_proj_weight"]})
    with pytest.raises(ArgumentError, match=r"missing: q_proj\.bias, k_proj\.bias, v_proj\.bias\."):
        nn.MultiheadAttention(4, 2).load_state_dict({n[6:]: x for n, x in state.items() if n in (
            "first.in_proj_weight", "first.out_proj.weight", "first.out_proj.bias")})  # fmt: skip
    with pytest.raises(ArgumentError, match=r"unexpected: in_proj_bias\."):
        nn.MultiheadAttention(4, 2, bias=False).load_state_dict({"in_proj_bias": np.zeros(12)}, strict=True)


def test_packed_weights_that_do_not_fit_are_refused() -> None:
    layer = nn.Sequential(nn.MultiheadAttention(4, 2))
    state = bb.io.torch_state(layer)
    before = layer.state_dict()
    words = (
        r"0\.in_proj_weight has shape \[8, 4\] there and is made of 0\.q_proj\.weight, 0\.k_proj\.weight, "
        r"0\.v_proj\.weight here, together \[12, 4\]\. Nothing was loaded"
    )
    with pytest.raises(ShapeError, match=words):
        layer.load_state_dict({**state, "0.in_proj_weight": np.zeros((8, 4), np.float32)})
    with pytest.raises(DTypeError, match=r"the value of 0\.in_proj_bias"):
        layer.load_state_dict({**state, "0.in_proj_bias": "no tensor"})
    with pytest.raises(DTypeError, match=r"0\.q_proj\.bias is float64 there and float32 here"):
        layer.load_state_dict({**state, "0.in_proj_bias": np.zeros(12)})
    assert {name: x.tolist() for name, x in layer.state_dict().items()} == {n: x.tolist() for n, x in before.items()}


def test_optional_entries_of_a_state() -> None:
    layer = nn.Sequential(nn.BatchNorm1d(3))
    layer(bb.asarray(np.arange(6.0).reshape(2, 3), dtype="float32"))
    state = layer.state_dict()
    assert state.pop("0.num_batches_tracked").item() == 1
    other = nn.Sequential(nn.BatchNorm1d(3))
    other.load_state_dict(state)
    assert other.state_dict()["0.running_mean"].tolist() == state["0.running_mean"].tolist()
    del state["0.running_mean"]
    with pytest.raises(ArgumentError, match=r"missing: 0\.running_mean\. "):
        other.load_state_dict(state)


def test_packed_states_on_disk(tmp_path: Path) -> None:
    layer, other = nn.MultiheadAttention(4, 2, kdim=3), nn.MultiheadAttention(4, 2, kdim=3)
    state = bb.io.torch_state(layer)
    assert sorted(state) == [
        "in_proj_bias", "k_proj_weight", "out_proj.bias", "out_proj.weight", "q_proj_weight", "v_proj_weight",
    ]  # fmt: skip
    bb.io.save_model(tmp_path / "model.safetensors", state)
    other.load_state_dict(bb.io.load_model(tmp_path / "model.safetensors").state)
    assert {n: x.tolist() for n, x in other.state_dict().items()} == {
        n: x.tolist() for n, x in layer.state_dict().items()
    }
    quantized = nn.quantize_model(nn.Sequential(layer))
    with pytest.raises(DTypeError, match=r"torch_state: 0\.q_proj\.weight is qint8.*dequantize it"):
        bb.io.torch_state(quantized)


@pytest.mark.parametrize("layer", ["BatchNorm", "InstanceNorm", "Dropout", "MaxPool", "Conv"])
def test_names_with_a_rank_check_it(layer: str) -> None:
    arguments = {"MaxPool": (1,), "Conv": (2, 2, 1), "Dropout": ()}.get(layer, (2,))
    for rank in (1, 2, 3):
        kind = getattr(nn, f"{layer}{rank}d")
        module = pickle.loads(pickle.dumps(kind(*arguments)))
        assert type(module) is kind
        for axes in range(2, 7):
            x = bb.ones((2, 2, *(3,) * (axes - 2)))
            if axes == rank + 2 or (layer == "BatchNorm" and rank == 1 and axes == 2):
                assert module(x).ndim == axes
            else:
                with pytest.raises(ShapeError, match=rf"{layer}{rank}d: the input .* has {rank + 2} axes, not {axes}"):
                    module(x)


def test_dropout_of_channels() -> None:
    bb.random.seed(0)
    layer: Any = nn.Dropout2d(0.25)
    x: Any = bb.ones((40, 50, 2, 3)).require_grad()
    y = layer(x)
    kept = y.numpy().reshape(2000, 6)
    assert (kept == kept[:, :1]).all()
    assert {*np.unique(kept)} == {np.float32(0), np.float32(1 / 0.75)}
    assert 0.7 < (kept != 0).mean() < 0.8
    assert np.array_equal(x.grad(y.sum().backward()).numpy(), y.numpy())
    assert layer.eval()(x).tolist() == x.tolist()
    with pytest.raises(ArgumentError, match="Dropout3d: p is a number from 0 to 1"):
        nn.Dropout3d(2.0)


def test_every_layer_shared_with_torch_has_a_case(torch: Any) -> None:
    """Every module name that torch and we share has a case, apart from containers."""
    both = {
        name
        for name in nn.__all__
        if isinstance(getattr(nn, name), type) and isinstance(getattr(torch.nn, name, None), type)
    }
    assert both - {"Module", "Sequential", "ModuleList"} == {case["layer"] for case in CASES}


def test_the_file_is_small() -> None:
    assert FILE.stat().st_size < 300_000
