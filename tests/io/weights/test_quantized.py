"""Quantized weights of files in quantized layers: identical values, in a model that never had floats."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers import weight_files as files
from tests.helpers.weight_files import GGUFTensor

import backburn as bb
from backburn import nn
from backburn.base.errors import ArgumentError, BackburnError, DTypeError, FileFormatError
from backburn.io import load_weights, save_weights
from backburn.tensor.core.host import quantized_parts

RNG = np.random.default_rng(5)
OUTPUTS, INPUTS = 24, 64


class Model(nn.Module):
    """Layers that are quantized in the files, an embedding and a norm."""

    def __init__(self) -> None:
        self.embedding = nn.Embedding(24, 64)
        self.layers = [nn.Linear(64, 24), nn.Linear(64, 24, bias=False)]
        self.norm = nn.LayerNorm(64)

    def forward(self, x: Any) -> Any:
        return self.layers[0](self.norm(x)) + self.layers[1](x)


def floats() -> dict[str, np.ndarray]:
    shapes = {"layers.0.bias": (24,), "norm.weight": (64,), "norm.bias": (64,)}
    return {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def on_null() -> Model:
    with bb.use_backend("autodiff(null)"):
        return Model()


# ---- GGUF ----


def q8_0(shape: tuple[int, ...], steps: Any = None) -> tuple[bytes, np.ndarray]:
    """Blocks of Q8_0, and their values."""
    count = int(np.prod(shape)) // 32
    d = np.abs(RNG.standard_normal(count)).astype(np.float16) if steps is None else np.asarray(steps, np.float16)
    q = RNG.integers(-127, 128, (count, 32)).astype(np.int8)
    raw = b"".join(a.tobytes() + b.tobytes() for a, b in zip(d, q, strict=True))
    with np.errstate(invalid="ignore"):
        return raw, (d.astype(np.float32)[:, None] * q).reshape(shape)


def q4_0(shape: tuple[int, ...], steps: Any = None) -> tuple[bytes, np.ndarray]:
    """Blocks of Q4_0, with scales of either sign, and their values."""
    count = int(np.prod(shape)) // 32
    d = RNG.standard_normal(count).astype(np.float16) if steps is None else np.asarray(steps, np.float16)
    q = RNG.integers(-8, 8, (count, 32))
    raw = b""
    for step, values in zip(d, q, strict=True):
        raw += step.tobytes() + bytes(int(values[j] + 8) | int(values[j + 16] + 8) << 4 for j in range(16))
    with np.errstate(invalid="ignore"):
        return raw, (d.astype(np.float32)[:, None] * q).reshape(shape)


def gguf(tmp_path: Path, kinds: tuple[str, str], **more: Any) -> tuple[Path, dict[str, np.ndarray]]:
    """A file with the model's tensors, and their values."""
    numbers = {"Q4_0": (2, q4_0), "Q8_0": (8, q8_0)}
    expected = floats()
    tensors = {name: GGUFTensor(0, x.shape, x.tobytes()) for name, x in expected.items()}
    for name, kind in (("layers.0.weight", kinds[0]), ("layers.1.weight", kinds[1]), ("embedding.weight", kinds[0])):
        raw, expected[name] = numbers[kind][1]((24, 64), more.get(name))
        tensors[name] = GGUFTensor(numbers[kind][0], (24, 64), raw)
    (tmp_path / "x.gguf").write_bytes(files.gguf_bytes(tensors))
    return tmp_path / "x.gguf", expected


@pytest.mark.parametrize("build", [on_null, Model])
def test_blocks_of_gguf_become_quantized_layers(build: Callable[[], Model], tmp_path: Path) -> None:
    path, expected = gguf(tmp_path, ("Q4_0", "Q8_0"))
    model = build()
    report = load_weights(model, path, quantized=True, backend="autodiff(numpy)")
    first, second = model.layers
    assert isinstance(first, nn.QuantizedLinear)
    assert first.weight.dtype == "qint4_full_block32_float16"
    assert second.weight.dtype == "qint8_symmetric_block32_float16"
    assert report.cast["layers.0.weight"] == ("Q4_0", "qint4_full_block32_float16")
    assert report.cast["embedding.weight"] == ("Q4_0", "float32")
    for name, x in model.state_dict().items():
        found = (x.dequantize() if x.dtype.kind == "quantized" else x).numpy()
        assert np.array_equal(found, expected[name]), name
    assert {name: p.is_require_grad for name, p in model.named_parameters()} == {
        "embedding.weight": True, "layers.0.bias": False, "norm.weight": True, "norm.bias": True,
    }  # fmt: skip
    plain = Model()
    load_weights(plain, path)
    x = bb.asarray(RNG.standard_normal((3, 64)).astype(np.float32))
    np.testing.assert_allclose(model(x).numpy(), plain(x).numpy(), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_blocks_agree_with_another_reader(kind: str, tmp_path: Path) -> None:
    library = pytest.importorskip("gguf")
    quants = library.quants
    x = RNG.standard_normal((24, 64)).astype(np.float32)
    x[0, :32] = 0
    raw = quants.quantize(x, library.GGMLQuantizationType[kind])
    number = {"Q4_0": 2, "Q8_0": 8}[kind]
    (tmp_path / "x").write_bytes(files.gguf_bytes({"0.weight": GGUFTensor(number, (24, 64), raw.tobytes())}))
    model = nn.Sequential(nn.Linear(64, 24, bias=False))
    load_weights(model, tmp_path / "x", quantized=True)
    expected = quants.dequantize(raw, library.GGMLQuantizationType[kind])
    assert np.array_equal(model.state_dict()["0.weight"].dequantize().numpy(), expected)


def test_nonpositive_scales(tmp_path: Path) -> None:
    """A Q8_0 scale of 0 gives zeros, and a negative one negates the values; Q4_0 keeps its scales."""
    steps = np.ones(48, np.float16)
    steps[:4] = 0.0, -0.5, -0.0, 2.0**-24
    path, expected = gguf(tmp_path, ("Q4_0", "Q8_0"), **{"layers.0.weight": steps, "layers.1.weight": steps})
    model = on_null()
    load_weights(model, path, quantized=True, backend="numpy")
    for i in range(2):
        weight = model.layers[i].weight
        assert np.array_equal(weight.dequantize().numpy(), expected[f"layers.{i}.weight"])
    assert np.array_equal(quantized_parts(model.layers[0].weight)[1].reshape(-1), steps)
    assert (quantized_parts(model.layers[1].weight)[1] > 0).all()


@pytest.mark.parametrize(("kind", "steps"), [("Q4_0", np.nan), ("Q8_0", np.inf)])
def test_nonfinite_scales_are_refused(kind: str, steps: float, tmp_path: Path) -> None:
    path, _ = gguf(tmp_path, (kind, kind), **{"layers.1.weight": np.full(48, steps)})
    model = Model()
    before = [*model.layers, *model.state_dict().values()]
    with pytest.raises(FileFormatError, match=r"x\.gguf: 'layers.1.weight': its steps.*load it into a float layer"):
        load_weights(model, path, quantized=True)
    assert [id(x) for x in model.layers] == [id(x) for x in before[:2]]
    assert not any(isinstance(layer, nn.QuantizedLinear) for layer in model.layers)
    load_weights(model, path)


def test_values_outside_the_symmetric_scheme_are_refused(tmp_path: Path) -> None:
    raw = bytearray(q8_0((24, 64))[0])
    raw[34 + 2] = 0x80
    (tmp_path / "x").write_bytes(files.gguf_bytes({"0.weight": GGUFTensor(8, (24, 64), bytes(raw))}))
    with pytest.raises(FileFormatError, match=r"'0.weight': its values are not all in the range \(-127, 127\)"):
        load_weights(nn.Sequential(nn.Linear(64, 24, bias=False)), tmp_path / "x", quantized=True)


def test_layers_that_are_quantized_take_their_scheme(tmp_path: Path) -> None:
    path, expected = gguf(tmp_path, ("Q4_0", "Q8_0"))
    model = nn.quantize_model(Model(), "qint4_full_block32_float16", "layers.0")
    load_weights(model, path)
    assert np.array_equal(model.layers[0].weight.dequantize().numpy(), expected["layers.0.weight"])
    assert model.layers[1].weight.dtype == "float32"
    other = nn.quantize_model(Model(), "qint4_symmetric_block32_float16", "layers.0")
    with pytest.raises(DTypeError, match=r"layers\.0\.weight is Q4_0 there and qint4_symmetric_block32_float16 here"):
        load_weights(other, path)


def test_tied_weights_stay_floats(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            self.embedding = nn.Embedding(24, 64)
            self.head = nn.Linear(64, 24, bias=False)
            self.head.weight = self.embedding.weight
            self.both = [nn.Linear(64, 24, bias=False)] * 2

    raws = {name: q4_0((24, 64)) for name in ("embedding.weight", "both.1.weight")}
    (tmp_path / "x").write_bytes(files.gguf_bytes({k: GGUFTensor(2, (24, 64), v[0]) for k, v in raws.items()}))
    model = Tied()
    load_weights(model, tmp_path / "x", quantized=True)
    assert model.head.weight is model.embedding.weight
    assert np.array_equal(model.head.weight.numpy(), raws["embedding.weight"][1])
    assert isinstance(model.both[0], nn.QuantizedLinear)
    assert model.both[0] is model.both[1]


def test_transposed_weights_become_floats(tmp_path: Path) -> None:
    raw, values = q4_0((24, 64))
    (tmp_path / "x").write_bytes(files.gguf_bytes({"w": GGUFTensor(2, (24, 64), raw)}))
    model = nn.Sequential(nn.Linear(24, 64, bias=False))
    load_weights(model, tmp_path / "x", rename=lambda name: ("0.weight", "T"), quantized=True)
    assert np.array_equal(model.state_dict()["0.weight"].numpy(), values.T)


@pytest.mark.parametrize(("kind", "made"), [(2, q4_0), (8, q8_0)])
def test_reordered_rows_stay_quantized(kind: int, made: Callable[..., Any], tmp_path: Path) -> None:
    raw, values = made((24, 64))
    (tmp_path / "x").write_bytes(files.gguf_bytes({"w": GGUFTensor(kind, (24, 64), raw)}))
    model, rows = nn.Sequential(nn.Linear(64, 24, bias=False)), RNG.permutation(24)
    load_weights(model, tmp_path / "x", rename=lambda name: ("0.weight", rows), quantized=True)
    assert isinstance(model[0], nn.QuantizedLinear)
    assert np.array_equal(model[0].weight.dequantize().numpy(), values[rows])


# ---- GPTQ and AWQ ----


def packed(numbers: np.ndarray, bits: int, order: tuple[int, ...] | None = None) -> np.ndarray:
    """Pack numbers (rows, columns) along the columns into 32-bit words, from the lowest bits up, or in ``order``."""
    each = 32 // bits
    order = tuple(range(each)) if order is None else order
    words = np.zeros((numbers.shape[0], numbers.shape[1] // each), np.int64)
    for column in range(words.shape[1]):
        for place in range(each):
            words[:, column] |= numbers[:, column * each + order[place]].astype(np.int64) << (place * bits)
    return words.astype(np.uint32).view(np.int32)


def arrays_of(method: str, bits: int, groups: int, inputs: int, v2: bool = False) -> tuple[dict[str, Any], Any]:
    """The packed arrays of a layer as a library writes them, and their values (inputs, outputs)."""
    q = RNG.integers(0, 1 << bits, (inputs, OUTPUTS * 2))
    zeros = RNG.integers(0 if method == "AWQ" or v2 else 1, 1 << bits, (groups, OUTPUTS * 2))
    scales = np.abs(RNG.standard_normal((groups, OUTPUTS * 2)) + 0.01).astype(np.float16)
    which = np.arange(inputs) // (inputs // groups)
    values = scales[which].astype(np.float32) * (q - zeros[which]).astype(np.float32)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    if method == "AWQ":
        return {"qweight": packed(q, 4, order), "qzeros": packed(zeros, 4, order), "scales": scales}, values
    stored = zeros if v2 else zeros - 1
    arrays = {"qweight": packed(q.T, bits).T.copy(), "qzeros": packed(stored, bits), "scales": scales}
    return {**arrays, "g_idx": which.astype(np.int32)}, values


def saved(folder: Path, arrays: dict[str, Any], config: Any = None) -> Path:
    library = pytest.importorskip("safetensors.numpy")
    folder.mkdir(exist_ok=True)
    state = {"0.bias": np.ones(OUTPUTS * 2, np.float16)}
    state |= {f"0.{name}": np.ascontiguousarray(x) for name, x in arrays.items()}
    library.save_file(state, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def layer_on_null(inputs: int) -> Any:
    with bb.use_backend("autodiff(null)"):
        return nn.Sequential(nn.Linear(inputs, OUTPUTS * 2))


CASES = [("AWQ", 4, 2, 256), ("GPTQ", 4, 2, 256), ("GPTQ", 8, 3, 96), ("GPTQ", 2, 1, 64), ("AWQ", 4, 1, 32)]


@pytest.mark.parametrize(("method", "bits", "groups", "inputs"), CASES)
@pytest.mark.parametrize("quantized", [True, False])
def test_packed_weights_become_quantized_layers(
    method: str, bits: int, groups: int, inputs: int, quantized: bool, tmp_path: Path
) -> None:
    arrays, values = arrays_of(method, bits, groups, inputs)
    path = saved(tmp_path / "m", arrays)
    model = layer_on_null(inputs)
    report = load_weights(model, path, quantized=quantized, backend="autodiff(numpy)")
    weight = model.state_dict()["0.weight"]
    if quantized:
        storage = {8: "uint8", 4: "int4", 2: "int2"}[bits]
        assert weight.dtype == f"q{storage}_affine_block{inputs // groups}_float16"
        weight = weight.dequantize()
    assert np.array_equal(weight.numpy(), values.T)
    assert report.used == {"0.weight": "0.weight", "0.bias": "0.bias"}
    assert report.cast["0.weight"][0] == f"{method} in {bits} bits"
    x = bb.asarray(RNG.standard_normal((3, inputs)).astype(np.float32))
    np.testing.assert_allclose(model(x).numpy(), x.numpy() @ values + 1, rtol=1e-3, atol=1e-2)


def test_zero_points_of_gptq_v2(tmp_path: Path) -> None:
    arrays, values = arrays_of("GPTQ", 4, 2, 64, v2=True)
    config = {"quantization_config": {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}}
    path = saved(tmp_path / "m", arrays, config)
    model = layer_on_null(64)
    load_weights(model, path, quantized=True, backend="numpy")
    assert np.array_equal(model.state_dict()["0.weight"].dequantize().numpy(), values.T)


def test_inputs_in_another_order_are_refused(tmp_path: Path) -> None:
    arrays, _ = arrays_of("GPTQ", 4, 2, 64)
    arrays["g_idx"] = arrays["g_idx"][::-1].copy()
    for quantized in (True, False):
        with pytest.raises(FileFormatError, match=r"m: 0\.weight: its g_idx is not ascending .* \(desc_act\)"):
            load_weights(layer_on_null(64), saved(tmp_path / "m", arrays), quantized=quantized)


def test_a_zero_point_beyond_the_stored_bits(tmp_path: Path) -> None:
    """A stored 15 means 16, as libraries use it; only a float layer can hold it."""
    arrays, _ = arrays_of("GPTQ", 4, 2, 64)
    arrays["qzeros"][0, 0] = -1
    path = saved(tmp_path / "m", arrays)
    with pytest.raises(FileFormatError, match=r"0\.weight: a zero point is 16, .*load it into a float layer"):
        load_weights(layer_on_null(64), path, quantized=True)
    model = nn.Sequential(nn.Linear(64, OUTPUTS * 2))
    load_weights(model, path)
    q = arrays["qweight"].view(np.uint32)[0, 0] & 15
    assert model.state_dict()["0.weight"].numpy()[0, 0] == np.float32(arrays["scales"][0, 0]) * (float(q) - 16)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"qweight": np.zeros((8, 48), np.int64)}, "qweight and qzeros are matrices of int32, not int64"),
        ({"qzeros": np.zeros((6,), np.int32)}, "matrices of int32"),
        ({"scales": np.zeros((2, 48), np.int8)}, "scales are a matrix of floats, not int8"),
        ({"scales": np.zeros((0, 48), np.float16)}, "scales are a matrix of floats"),
        ({"qzeros": np.zeros((3, 6), np.int32)}, "zero points do not fit its scales"),
        ({"qzeros": np.zeros((2, 7), np.int32)}, "zero points do not fit its scales"),
        ({"qzeros": np.zeros((2, 24), np.int32)}, "16 bits are not read, 2, 4 and 8 are"),
        ({"qweight": np.zeros((8, 47), np.int32)}, "qweight does not fit its scales"),
        ({"qweight": np.zeros((0, 48), np.int32)}, "0 inputs do not divide into 2 groups"),
        ({"g_idx": np.zeros(63, np.int32)}, r"g_idx is int32\[63\], and not 64 integers"),
        ({"g_idx": np.zeros(64, np.float32)}, r"g_idx is float32\[64\]"),
        ({"weight": np.zeros((48, 64), np.float32)}, "'0.qweight' and '0.weight' are one weight"),
    ],
)
def test_inconsistent_packed_weights_are_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    arrays, _ = arrays_of("GPTQ", 4, 2, 64)
    model = nn.Sequential(nn.Linear(64, OUTPUTS * 2))
    before = model[0]
    with pytest.raises(FileFormatError, match=words) as caught:
        load_weights(model, saved(tmp_path / "m", {**arrays, **change}), quantized=True)
    assert str(tmp_path / "m") in str(caught.value)
    assert model[0] is before


def test_arrays_with_names_of_packed_weights_may_be_plain(tmp_path: Path) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            self.qweight = bb.zeros((2,))

    model = Own()
    load_weights(model, {"qweight": np.ones(2, np.float32)}, quantized=True)
    assert model.qweight.tolist() == [1.0, 1.0]


# ---- backburn's files ----


class Mixed(nn.Module):
    def __init__(self) -> None:
        self.conv = nn.Conv2d(2, 4, 3)
        self.attention = nn.MultiheadAttention(8, 2)
        self.layer = nn.Linear(8, 3)

    def forward(self, x: Any, image: Any) -> Any:
        return self.layer(self.attention(x)) + self.conv(image).mean()


@pytest.mark.parametrize("scheme", ["qint4_affine_block8_float16", "qint8_symmetric_channel0_float32"])
@pytest.mark.parametrize("size", ["5GB", 100])
@pytest.mark.parametrize("activations", [None, "quint8_affine_tensor_float32"])
def test_quantized_models_are_saved_and_loaded(scheme: str, size: Any, activations: str | None, tmp_path: Path) -> None:
    model = nn.quantize_model(Mixed().eval(), scheme, activations=activations)
    save_weights(model, tmp_path, max_shard_size=size)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) is (size == 100)
    with bb.use_backend("autodiff(null)"):
        other = Mixed().eval()
    load_weights(other, tmp_path, quantized=True, backend="autodiff(numpy)")
    assert other.state_dict().keys() == model.state_dict().keys()
    x, image = bb.ones((1, 5, 8)), bb.ones((1, 2, 6, 6))
    assert np.array_equal(other(x, image).numpy(), model(x, image).numpy())
    again = nn.quantize_model(Mixed().eval(), scheme, activations=activations)
    load_weights(again, tmp_path)
    assert np.array_equal(again(x, image).numpy(), model(x, image).numpy())


def test_known_ranges_of_inputs_are_loaded(tmp_path: Path) -> None:
    from backburn.quantization import calibrate

    plain = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    found = calibrate(plain, [bb.asarray(RNG.standard_normal((16, 8)).astype(np.float32))])
    scheme: Any = {"activations": "quint8_affine_tensor_float32", "inputs": found}
    model = nn.quantize_model(plain, "qint8_symmetric_channel0_float32", **scheme)
    save_weights(model, tmp_path / "m.safetensors")
    other = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    load_weights(other, tmp_path / "m.safetensors", quantized=True)
    x = bb.asarray(RNG.standard_normal((4, 8)).astype(np.float32))
    assert np.array_equal(other(x).numpy(), model(x).numpy())


def test_files_of_save_model_are_read_too(tmp_path: Path) -> None:
    model = nn.quantize_model(nn.Sequential(nn.Linear(64, 4)), "qint4_full_block32_float16")
    bb.io.save_model(tmp_path / "m", model.state_dict())
    other = nn.Sequential(nn.Linear(64, 4))
    with pytest.raises(DTypeError, match="quantized=True quantizes linear and convolutional layers"):
        load_weights(other, tmp_path / "m")
    load_weights(other, tmp_path / "m", quantized=True)
    assert np.array_equal(other.state_dict()["0.weight"].numpy(), model.state_dict()["0.weight"].numpy())
    content = bytearray((tmp_path / "m").read_bytes())
    content[-1] ^= 1
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(FileFormatError, match=r"m: '0\.weight' is damaged: its checksum"):
        load_weights(nn.Sequential(nn.Linear(64, 4)), tmp_path / "m", quantized=True)


def test_a_mapping_may_hold_quantized_tensors() -> None:
    model = nn.quantize_model(nn.Sequential(nn.Linear(64, 4)))
    other = nn.Sequential(nn.Linear(64, 4))
    load_weights(other, model.state_dict(), quantized=True)
    assert np.array_equal(other.state_dict()["0.weight"].numpy(), model.state_dict()["0.weight"].numpy())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scheme": "float32"}, "float32 is not a scheme"),
        ({"scheme": "qint9"}, "damaged"),
        ({"shape": [4, 62]}, "parts do not fit"),
        ({"shape": [4, -64]}, "is not a shape"),
        ({"shape": "x"}, "is not a shape"),
        ({"scheme": "qint4_affine_block32_float16"}, "zero points do not fit"),
        ({"scheme": None}, "damaged"),
    ],
)
def test_inconsistent_schemes_are_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    values: dict[str, Any] = {"0.weight": np.zeros((4, 32), np.uint8), "0.weight.scale": np.ones((4, 2), np.float16)}
    about = {"scheme": "qint4_full_block32_float16", "shape": [4, 64], **change}
    table = {"format": "backburn weights", "version": 4, "quantized": {"0.weight": about}}
    (tmp_path / "x").write_bytes(files.safetensors_bytes(values, {"backburn": json.dumps(table)}))
    with pytest.raises(FileFormatError, match=f"x: the quantized tensor '0.weight' is damaged .*{words}|{words}"):
        load_weights(nn.Sequential(nn.Linear(64, 4, bias=False)), tmp_path / "x", quantized=True)


def test_names_that_collide_with_parts(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            self.w = bb.ones((4,)).quantize()
            self.register_buffer("w.scale", bb.ones(()))

    with pytest.raises(ArgumentError, match=r"the name 'w\.scale' is used twice"):
        save_weights(Model(), tmp_path / "m")


# ---- backends ----


def test_entries_missing_from_the_source_need_values(tmp_path: Path) -> None:
    state = {"weight": np.ones((2, 3), np.float32)}
    with bb.use_backend("null"):
        model = nn.Linear(3, 2)
    before = model.weight
    with pytest.raises(ArgumentError, match=r"bias is not in the source, and has no values on null"):
        load_weights(model, state, strict=False, backend="numpy")
    assert model.weight is before
    other = nn.Linear(3, 2)
    load_weights(other, state, strict=False, backend="numpy")
    assert {x.backend.spec for x in other.state_dict().values()} == {"numpy"}
    assert not other.weight.is_require_grad


def test_a_single_layer_as_the_model_is_refused(tmp_path: Path) -> None:
    state = nn.quantize_model(nn.Sequential(nn.Linear(4, 3, bias=False))).state_dict()
    layer = nn.Linear(4, 3, bias=False)
    with pytest.raises(ArgumentError, match=r"the model is a layer itself; put it into Sequential"):
        load_weights(layer, {"weight": state["0.weight"]}, quantized=True)


def test_an_error_leaves_the_layers(tmp_path: Path) -> None:
    path, _ = gguf(tmp_path, ("Q4_0", "Q8_0"))
    model = Model()
    layers, state = list(model.layers), model.state_dict()
    with pytest.raises(BackburnError, match="unused"):
        load_weights(model, path, rename=lambda name: name.replace("norm", "other"), quantized=True)
    assert all(a is b for a, b in zip(model.layers, layers, strict=True))
    assert all(np.array_equal(x.numpy(), state[name].numpy()) for name, x in model.state_dict().items())


def test_a_loaded_model_is_quantized_saved_and_loaded(tmp_path: Path) -> None:
    """Quantized with GPTQ; the model loaded last never had floats."""
    from backburn.quantization import gptq

    def build() -> Any:
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))

    save_weights(build(), tmp_path / "floats")
    model = build()
    load_weights(model, tmp_path / "floats")
    batches = [bb.asarray(RNG.standard_normal((48, 64)).astype(np.float32))]
    small = gptq(model, batches, "qint4_affine_block32_float16")
    save_weights(small, tmp_path / "small")
    with bb.use_backend("autodiff(null)"):
        other = build()
    report = load_weights(other, tmp_path / "small", quantized=True, backend="autodiff(numpy)")
    assert report.cast == {}
    for name, x in small.state_dict().items():
        found = other.state_dict()[name]
        assert found.dtype is x.dtype
        if x.dtype.kind == "quantized":
            for ours, theirs in zip(quantized_parts(found), quantized_parts(x), strict=True):
                assert np.array_equal(ours, theirs)
    assert np.array_equal(other(batches[0]).numpy(), small(batches[0]).numpy())
    sizes = [sum(file.stat().st_size for file in (tmp_path / kind).iterdir()) for kind in ("small", "floats")]
    assert sizes[0] < 0.3 * sizes[1]


MEMORY = """
import sys
import backburn as bb
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
def build():
    return bb.nn.Sequential(*(bb.nn.Linear(1024, 1024, bias=False) for _ in range(24)))
if sys.argv[1] == "save":
    bb.io.save_weights(bb.nn.quantize_model(build(), "qint4_full_block32_float16"), sys.argv[2])
else:
    bb.asarray([1.0])
    before = peak()
    with bb.use_backend("autodiff(null)"):
        model = build()
    bb.io.load_weights(model, sys.argv[2], quantized=True, backend="autodiff(numpy)")
    print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads peak memory from Linux")
def test_loading_takes_the_memory_of_the_quantized_model(tmp_path: Path) -> None:
    """13.5 MiB, instead of 96 MiB in floats."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    for what in ("save", "load"):
        command = [sys.executable, "-c", MEMORY, what, str(tmp_path / "m")]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240, env=environment)
    assert float(done.stdout) < 40


def test_bfloat16_scales_without_ml_dtypes_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_weights(nn.quantize_model(nn.Sequential(nn.Linear(64, 4)), "qint4_full_block32_bfloat16"), tmp_path)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    model = nn.Sequential(nn.Linear(64, 4))
    before = model[0]
    with pytest.raises(DTypeError, match=r"pip install 'backburn\[bfloat16\]'"):
        load_weights(model, tmp_path, quantized=True)
    assert model[0] is before


def test_inputs_that_are_not_quantized_are_unused(tmp_path: Path) -> None:
    model = nn.quantize_model(nn.Sequential(nn.Linear(64, 4)))
    state = {**model.state_dict(), "0.inputs": np.zeros(3, np.float32)}
    with pytest.raises(ArgumentError, match=r"unused: 0\.inputs"):
        load_weights(nn.Sequential(nn.Linear(64, 4)), state, quantized=True)
