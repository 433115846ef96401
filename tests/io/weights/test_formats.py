"""Weights from every format: the file's values in the model's dtypes under the model's names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import weakref
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers import weight_files as files

import backburn as bb
from backburn import nn
from backburn.base.errors import DTypeError, FileFormatError, ShapeError
from backburn.io import load_weights, save_weights, torch_state
from backburn.io.weights import sources
from backburn.io.weights.numbers import decoded

RNG = np.random.default_rng(7)
ARRAYS: dict[str, Any] = {
    "weight": RNG.standard_normal((4, 6)).astype(np.float32),
    "half": RNG.standard_normal((3,)).astype(np.float16),
    "wide": RNG.standard_normal((2, 2)),
    "count": np.array(5),
    "mask": np.array([True, False, True]),
    "empty": np.zeros((0, 3), np.float32),
}


class Model(nn.Module):
    def __init__(self) -> None:
        self.weight = nn.parameter(bb.zeros((4, 6)))
        self.half = nn.parameter(bb.zeros((3,), dtype="float16"))
        self.wide = nn.parameter(bb.zeros((2, 2), dtype="float64"))
        self.count = bb.asarray(0)
        self.mask = bb.asarray([False, False, False])
        self.empty = bb.zeros((0, 3))


class Holder(nn.Module):
    """A model of one tensor."""

    def __init__(self, shape: tuple[int, ...], dtype: str = "float32") -> None:
        self.x = bb.zeros(shape, dtype=dtype)


def npz(arrays: files.Arrays, compression: int = zipfile.ZIP_STORED) -> bytes:
    return files.npz_bytes({f"{name}.npy": files.npy_bytes(x) for name, x in arrays.items()}, compression)


WRITERS: dict[str, Callable[[files.Arrays], bytes]] = {
    "safetensors": files.safetensors_bytes,
    "torch": files.torch_bytes,
    "legacy torch": files.legacy_torch_bytes,
    "npz": npz,
    "compressed npz": lambda arrays: npz(arrays, zipfile.ZIP_DEFLATED),
}


def assert_holds(model: nn.Module, arrays: files.Arrays) -> None:
    state = model.state_dict()
    assert state.keys() == arrays.keys()
    for name, x in arrays.items():
        found = state[name].numpy()
        assert found.dtype == x.dtype, name
        assert found.shape == x.shape, name
        assert np.array_equal(found, x), name


@pytest.mark.parametrize("name", WRITERS)
def test_files_of_every_format_are_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(WRITERS[name](ARRAYS))
    model = Model()
    report = load_weights(model, path)
    assert_holds(model, ARRAYS)
    assert model.weight.is_require_grad
    assert not model.empty.is_require_grad
    assert report.used == {x: x for x in ARRAYS}
    assert (report.unused, report.missing, report.cast, report.renamed) == ((), (), {}, {})


def test_arrays_are_read_from_a_mapping() -> None:
    model = Model()
    load_weights(model, {**ARRAYS, "half": bb.asarray(ARRAYS["half"]), "count": 5, "mask": [True, False, True]})
    assert_holds(model, ARRAYS)


@pytest.mark.parametrize("name", ["npz", "mapping"])
def test_arrays_of_any_layout_are_read(name: str, tmp_path: Path) -> None:
    x = np.arange(24.0).reshape(2, 3, 4)
    for array in (np.asfortranarray(x), x.astype(">f8"), x[:, ::-1], np.broadcast_to(x[:1], x.shape)):
        source: Any = {"x": array}
        if name == "npz":
            source = tmp_path / "x.npz"
            np.savez(source, x=array)
        model = Holder((2, 3, 4), "float64")
        load_weights(model, source)
        assert np.array_equal(model.x.numpy(), array)


def test_views_of_one_storage_are_read(tmp_path: Path) -> None:
    """PyTorch writes the storage once, and each tensor's offset and strides."""
    base = np.arange(12, dtype=np.float32)
    tree = {
        "turned": files.torch_tensor("0", base, size=(4, 3), stride=(1, 4)),
        "last": files.torch_tensor("0", base, size=(2,), stride=(1,), offset=10),
        "expanded": files.torch_tensor("0", base, size=(3, 2), stride=(0, 1), offset=4),
        "scalar": files.torch_tensor("0", base, size=(), stride=(), offset=11),
    }
    expected = {
        "turned": base.reshape(3, 4).T, "last": base[10:], "expanded": np.tile(base[4:6], (3, 1)), "scalar": base[11],
    }  # fmt: skip
    for number, content in enumerate(
        (files.torch_bytes({"x": base}, tree), files.legacy_torch_bytes({"x": base}, tree))
    ):
        path = tmp_path / str(number)
        path.write_bytes(content)
        for name, x in expected.items():
            model = Holder(x.shape)
            load_weights(model, path, rename=lambda found, name=name: "x" if found == name else None)  # type: ignore[misc]
            assert np.array_equal(model.x.numpy(), x), name


def test_a_view_of_a_storage_in_the_older_format(tmp_path: Path) -> None:
    base = np.arange(10, dtype=np.float32)
    tensor = files.torch_tensor("0", base, view=(("view", 3, 4),), size=(2,), offset=1)
    (tmp_path / "x").write_bytes(files.legacy_torch_bytes({"x": base}, {"x": tensor}))
    model = Holder((2,))
    load_weights(model, tmp_path / "x")
    assert model.x.tolist() == [4, 5]


def test_names_in_a_tree_are_joined_by_dots(tmp_path: Path) -> None:
    x = {"x": np.ones((2,), np.float32)}
    tensor = files.torch_tensor("0", x["x"])
    tree = {"state_dict": {"x": tensor}, "optimizer": {"state": {0: {"step": 3, "y": [tensor, None]}}}, "epoch": 3}
    (tmp_path / "x").write_bytes(files.torch_bytes(x, tree))
    model = Holder((2,))
    with pytest.raises(bb.BackburnError, match=r"if name.startswith\('state_dict\.'\) else None"):
        load_weights(model, tmp_path / "x")
    names = []

    def rename(name: str) -> str | None:
        names.append(name)
        return name.removeprefix("state_dict.") if name.startswith("state_dict.") else None

    assert load_weights(model, tmp_path / "x", rename=rename).unused == ("optimizer.state.0.y.0",)
    assert names == ["state_dict.x", "optimizer.state.0.y.0"]
    assert model.x.tolist() == [1, 1]


# ---- dtypes ----

CODES = np.arange(256, dtype=np.uint8)


def value_of(code: int, mantissa: int, bias: int) -> float:
    """The value of a finite 8-bit float, from its bits."""
    exponent, rest = (code & 127) >> mantissa, code & ((1 << mantissa) - 1)
    number = (
        (rest / 2**mantissa) * 2.0 ** (1 - bias)
        if exponent == 0
        else (1 + rest / 2**mantissa) * 2.0 ** (exponent - bias)
    )
    return -number if code > 127 else number


def expected_float8(name: str) -> np.ndarray:
    mantissa, bias = {"e4m3fn": (3, 7), "e5m2": (2, 15), "e4m3fnuz": (3, 8), "e5m2fnuz": (2, 16)}[name]
    numbers = np.array([value_of(code, mantissa, bias) for code in range(256)])
    if name == "e4m3fn":
        numbers[[127, 255]] = np.nan
    elif name == "e5m2":
        numbers[[124, 252]] = np.inf, -np.inf
        numbers[[125, 126, 127, 253, 254, 255]] = np.nan
    else:
        numbers[128] = np.nan
    return numbers


@pytest.mark.parametrize("name", ["e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"])
def test_8_bit_floats_are_read_exactly(name: str, tmp_path: Path) -> None:
    theirs = f"F8_{name.removesuffix('fn').upper()}"
    header = {"x": {"dtype": theirs, "shape": [256], "data_offsets": [0, 256]}}
    (tmp_path / "x").write_bytes(files.with_header(header, CODES.tobytes()))
    model = Holder((256,))
    report = load_weights(model, tmp_path / "x")
    assert report.cast == {"x": (f"float8_{name}", "float32")}
    assert np.array_equal(model.x.numpy(), expected_float8(name).astype("f4"), equal_nan=True)


def test_powers_of_two_are_read_exactly() -> None:
    expected = [2.0 ** (code - 127) for code in range(255)]
    found = decoded(CODES, "float8_e8m0fnu")
    assert found[:255].tolist() == expected
    assert np.isnan(found[255])


@pytest.mark.parametrize("installed", [True, False])
def test_bfloat16_is_read_with_and_without_ml_dtypes(
    installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = np.array([1.5, -0.0, np.inf, 3.0e38, 1e-40, np.nan], np.float32).view(np.uint32) & 0xFFFF0000
    bits = (wide >> 16).astype("<u2")
    header = {"x": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}
    (tmp_path / "x").write_bytes(files.with_header(header, bits.tobytes()))
    if installed:
        pytest.importorskip("ml_dtypes")
    else:
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    model = Holder((2, 3))
    assert load_weights(model, tmp_path / "x").cast == {"x": ("bfloat16", "float32")}
    found = model.x.numpy().reshape(-1)
    assert np.array_equal(found.view(np.uint32)[:5], wide[:5])
    assert np.isnan(found[5])


def test_floats_are_cast_to_the_dtype_of_the_model(tmp_path: Path) -> None:
    values = np.array([1.0, 1 / 3, 70000.0])
    for source in ("float16", "float32", "float64"):
        for target in ("float16", "bfloat16", "float32", "float64"):
            if target == "bfloat16":
                pytest.importorskip("ml_dtypes")
            with np.errstate(over="ignore"):
                array = values.astype(source)
                expected = array.astype(bb.dtypes.as_dtype(target).dtype).astype("f8")
            model = Holder((3,), target)
            load_weights(model, {"x": array})
            assert model.x.dtype == target
            assert np.array_equal(model.x.numpy().astype("f8"), expected), (source, target)


def test_dtype_casts_all_floats_of_the_model() -> None:
    model = Model()
    report = load_weights(model, {"weight": ARRAYS["weight"]}, dtype="float64", strict=False)
    state = model.state_dict()
    dtypes = {name: x.dtype.name for name, x in state.items()}
    assert dtypes == {
        "weight": "float64", "half": "float64", "wide": "float64", "count": "int64", "mask": "bool", "empty": "float64",
    }  # fmt: skip
    assert np.array_equal(state["weight"].numpy(), ARRAYS["weight"].astype("f8"))
    assert report.cast == {"weight": ("float32", "float64")}
    assert model.half.is_require_grad
    with pytest.raises(DTypeError, match="float dtype, not int32"):
        load_weights(model, {}, dtype="int32")


def test_integers_are_only_widened() -> None:
    for source in ("int8", "uint8", "int16", "int32"):
        model = Holder((2,), "int32")
        load_weights(model, {"x": np.array([1, 100], source)})
        assert model.x.tolist() == [1, 100]
    for source in ("int64", "uint32", "float32", "bool"):
        with pytest.raises(DTypeError, match=f"x is {source} there and int32 here. Nothing was loaded"):
            load_weights(Holder((2,), "int32"), {"x": np.zeros(2, source)})


def test_unsupported_dtypes_are_an_error_only_if_used(tmp_path: Path) -> None:
    content = {"long.npz": npz({"x": np.ones(2), "y": np.ones(2, np.longdouble)})}
    entry = {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}
    content["f4"] = files.with_header(
        {"y": entry, "x": {"dtype": "F64", "shape": [2], "data_offsets": [2, 18]}}, bytes(18)
    )
    for name, written in content.items():
        (tmp_path / name).write_bytes(written)
        model = Holder((2,), "float64")
        assert load_weights(model, tmp_path / name, strict=False).unused == ("y",)
        with pytest.raises(
            bb.BackburnError, match=r"y for x is (longdouble|float128|F4) there and float64 here, and this"
        ):
            load_weights(model, tmp_path / name, rename={"y": "x"}.get)


# ---- other libraries ----


def torch_models(torch: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    theirs = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.MultiheadAttention(8, 2), torch.nn.Embedding(5, 8)
    )
    return theirs, nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.MultiheadAttention(8, 2), nn.Embedding(5, 8))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("how", ["archive", "older format", "protocol 5", "safetensors", "mapping"])
def test_files_of_pytorch_are_read(torch: Any, how: str, dtype: str, tmp_path: Path) -> None:
    theirs, model = torch_models(torch)
    state = {k: x.to(getattr(torch, dtype)) if x.is_floating_point() else x for k, x in theirs.state_dict().items()}
    source: Any = tmp_path / "x"
    if how == "safetensors":
        pytest.importorskip("safetensors.torch").save_file(state, source)
    elif how == "mapping":
        source = state
    else:
        protocol = 5 if how == "protocol 5" else 2
        torch.save(state, source, pickle_protocol=protocol, _use_new_zipfile_serialization=how != "older format")
    report = load_weights(model, source)
    found = torch_state(model)
    assert found.keys() == state.keys()
    for name, x in state.items():
        assert np.array_equal(found[name].numpy(), x.to(torch.float32).numpy()), name
    assert len(report.cast) == (0 if dtype == "float32" else 15)
    assert report.used["2.k_proj.weight"] == "2.in_proj_weight"


def test_checkpoints_of_pytorch_are_read(torch: Any, tmp_path: Path) -> None:
    theirs, model = torch_models(torch)
    optimizer = torch.optim.AdamW(theirs.parameters())
    theirs[0](torch.ones(3, 8)).sum().backward()
    optimizer.step()
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 4, 4])
    parts = {"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict(), "epoch": 3, "best": 0.5}
    torch.save({"model": theirs.state_dict(), **parts, "size": torch.Size([2])}, tmp_path / "x")
    load_weights(model, tmp_path / "x", rename=lambda n: n[len("model.") :] if n.startswith("model.") else None)
    assert np.array_equal(model[0].weight.numpy(), theirs[0].weight.detach().numpy())
    parameters = dict(theirs.named_parameters())  # tracked tensors without buffers
    assert load_weights(model, parameters, strict=False).missing == ("1.running_mean", "1.running_var")


def test_files_of_pytorch_without_checksums_are_read(torch: Any, tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"x": torch.ones(3)}, tmp_path / "x")
    finally:
        torch.serialization.set_crc32_options(True)
    model = Holder((3,))
    load_weights(model, tmp_path / "x")
    assert model.x.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]
)
def test_8_bit_floats_of_pytorch_are_read(torch: Any, dtype: str, tmp_path: Path) -> None:
    x = torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype))
    torch.save({"x": x}, tmp_path / "x")
    sources: list[Any] = [tmp_path / "x", {"x": x}]
    for source in sources:
        model = Holder((256,))
        load_weights(model, source)
        assert np.array_equal(model.x.numpy(), x.float().numpy(), equal_nan=True)


def test_whole_models_of_pytorch_are_refused(torch: Any, tmp_path: Path) -> None:
    theirs, model = torch_models(torch)
    torch.save(theirs, tmp_path / "x")
    with pytest.raises(
        FileFormatError, match=r"'torch\.nn\.modules\.container\.Sequential'.*save a model's state_dict"
    ):
        load_weights(model, tmp_path / "x")
    torch.save(torch.ones(2), tmp_path / "x")
    with pytest.raises(FileFormatError, match="a single tensor, without a name"):
        load_weights(model, tmp_path / "x")


def test_arrays_of_jax_are_read() -> None:
    jnp = pytest.importorskip("jax.numpy")
    for dtype in ("float32", "bfloat16", "float8_e5m2"):
        x = jnp.asarray([1.5, -2.0, 0.25], dtype=dtype)
        model = Holder((3,))
        load_weights(model, {"x": x})
        assert model.x.tolist() == [1.5, -2.0, 0.25]


# ---- GGUF ----


def reference(name: str, b: bytes) -> list[float]:
    """The values of one block by the loops of the format's definition, in float64, where all of it is exact."""

    def half(at: int) -> float:
        return float(np.frombuffer(b[at : at + 2], "<f2")[0])

    def signed(byte: int) -> int:
        return byte - 256 if byte > 127 else byte

    def six_bits(q: bytes, j: int) -> tuple[int, int]:
        if j < 4:
            return q[j] & 63, q[j + 4] & 63
        return (q[j + 4] & 15) | (q[j - 4] >> 6) << 4, (q[j + 4] >> 4) | (q[j] >> 6) << 4

    y = [0.0] * (32 if name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0") else 256)
    if name in ("Q4_0", "Q4_1"):
        for j in range(16):
            q = b[(2 if name == "Q4_0" else 4) + j]
            for at, value in ((j, q & 15), (j + 16, q >> 4)):
                y[at] = (value - 8) * half(0) if name == "Q4_0" else value * half(0) + half(2)
    elif name in ("Q5_0", "Q5_1"):
        head = 2 if name == "Q5_0" else 4
        high = int.from_bytes(b[head : head + 4], "little")
        for j in range(16):
            q = b[head + 4 + j]
            for at, value in ((j, q & 15 | (high >> j & 1) << 4), (j + 16, q >> 4 | (high >> (j + 16) & 1) << 4)):
                y[at] = (value - 16) * half(0) if name == "Q5_0" else value * half(0) + half(2)
    elif name == "Q8_0":
        y = [signed(q) * half(0) for q in b[2:]]
    elif name == "Q2_K":
        for i in range(256):
            n, j, rest = i // 128, i % 128 // 32, i % 32
            scale = b[n * 8 + j * 2 + rest // 16]
            q = b[16 + n * 32 + rest] >> 2 * j & 3
            y[i] = half(80) * (scale & 15) * q - half(82) * (scale >> 4)
    elif name == "Q3_K":
        packed = b[96:108]
        for i in range(256):
            n, j, rest = i // 128, i % 128 // 32, i % 32
            s = n * 8 + j * 2 + rest // 16
            low = packed[s % 8] & 15 if s < 8 else packed[s % 8] >> 4
            scale = low | (packed[8 + s % 4] >> 2 * (s // 4) & 3) << 4
            q = (b[32 + n * 32 + rest] >> 2 * j & 3) - (0 if b[rest] >> (n * 4 + j) & 1 else 4)
            y[i] = half(108) * (scale - 32) * q
    elif name in ("Q4_K", "Q5_K"):
        quants = 16 if name == "Q4_K" else 48
        for i in range(256):
            pair, second, rest = i // 64, i % 64 // 32, i % 32
            scale, offset = six_bits(b[4:16], 2 * pair + second)
            q = b[quants + pair * 32 + rest] >> 4 * second & 15
            if name == "Q5_K":
                q += 16 * (b[16 + rest] >> (2 * pair + second) & 1)
            y[i] = half(0) * scale * q - half(2) * offset
    elif name == "Q6_K":
        for i in range(256):
            n, quarter, rest = i // 128, i % 128 // 32, i % 32
            low = b[n * 64 + rest + 32 * (quarter % 2)] >> 4 * (quarter // 2) & 15
            q = (low | (b[128 + n * 32 + rest] >> 2 * quarter & 3) << 4) - 32
            y[i] = half(208) * signed(b[192 + n * 8 + rest // 16 + 2 * quarter]) * q
    else:
        step = float(np.frombuffer(b[:4], "<f4")[0])
        y = [signed(q) * step for q in b[4:260]]
    return y


BLOCKS = {
    "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34),
    "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210), "Q8_K": (15, 256, 292),
}  # fmt: skip


def finite_blocks(name: str, count: int) -> np.ndarray:
    """Random blocks with moderate scales."""
    itemsize = BLOCKS[name][2]
    blocks = np.random.default_rng(3).integers(0, 256, (count, itemsize), dtype=np.uint8)
    places = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "Q8_K": ()}.get(name, (0, 2))
    if name in ("Q4_0", "Q5_0", "Q8_0"):
        places = (0,)
    for place in places:
        blocks[:, place + 1] = blocks[:, place + 1] & 0b10111111 | 0b00100000  # exponents of 2**-7 to 2**0
    if name == "Q8_K":
        blocks[:, :4] = np.random.default_rng(4).standard_normal(count).astype("<f4")[:, None].view(np.uint8)
    return blocks


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_of_gguf_have_the_values_of_the_definition(name: str, tmp_path: Path) -> None:
    number, size, _ = BLOCKS[name]
    blocks = finite_blocks(name, 6)
    shape = (3, 2 * size)
    (tmp_path / "x.gguf").write_bytes(files.gguf_bytes({"x": files.GGUFTensor(number, shape, blocks.tobytes())}))
    model = Holder(shape)
    assert load_weights(model, tmp_path / "x.gguf").cast == {"x": (name, "float32")}
    expected = np.array([reference(name, bytes(block)) for block in blocks]).astype(np.float32)
    assert np.isfinite(expected).all()
    assert len(np.unique(expected)) > 20
    assert np.array_equal(model.x.numpy(), expected.reshape(shape))


@pytest.mark.parametrize("name", [name for name in BLOCKS if name != "Q8_K"])
def test_blocks_of_gguf_have_the_values_of_the_gguf_package(name: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    number, size, itemsize = BLOCKS[name]
    blocks = np.random.default_rng(5).integers(0, 256, (300, itemsize), dtype=np.uint8)  # includes infinities and NaN
    assert gguf.GGML_QUANT_SIZES[number] == (size, itemsize)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(number))
    (tmp_path / "x").write_bytes(files.gguf_bytes({"x": files.GGUFTensor(number, (300, size), blocks.tobytes())}))
    model = Holder((300, size))
    load_weights(model, tmp_path / "x")
    assert np.array_equal(model.x.numpy(), expected, equal_nan=True)


def test_plain_tensors_of_gguf_are_read(tmp_path: Path) -> None:
    tensors = {
        "weight": files.GGUFTensor(0, (4, 6), ARRAYS["weight"].tobytes()),
        "half": files.GGUFTensor(1, (3,), ARRAYS["half"].tobytes()),
        "wide": files.GGUFTensor(28, (2, 2), ARRAYS["wide"].tobytes()),
        "count": files.GGUFTensor(27, (), ARRAYS["count"].tobytes()),
    }
    (tmp_path / "x").write_bytes(files.gguf_bytes(tensors))
    model = Model()
    assert load_weights(model, tmp_path / "x", strict=False).missing == ("mask", "empty")
    for name in tensors:
        assert np.array_equal(model.state_dict()[name].numpy(), ARRAYS[name]), name


def test_files_of_the_gguf_package_are_read(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_tensor("weight", ARRAYS["weight"])
    quantized = gguf.quants.quantize(np.ones((2, 64), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("x", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model, other = Model(), Holder((2, 64))
    load_weights(model, tmp_path / "x.gguf", strict=False)
    load_weights(other, tmp_path / "x.gguf", strict=False)
    assert np.array_equal(model.weight.numpy(), ARRAYS["weight"])
    assert np.allclose(other.x.numpy(), 1, atol=1e-3)


# ---- backburn's files ----


def test_files_of_save_model_and_save_npz_are_read(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    model = Model()
    bb.io.save_model(tmp_path / "x", ARRAYS, about={"epoch": 3})
    load_weights(model, tmp_path / "x")
    assert_holds(model, ARRAYS)
    bb.io.save_npz(tmp_path / "x.npz", ARRAYS)
    load_weights(model, tmp_path / "x.npz")
    assert_holds(model, ARRAYS)


def test_runs_and_old_model_files_are_refused(tmp_path: Path) -> None:
    """Old versions have other layouts, and a run is not a model."""
    pytest.importorskip("safetensors")
    layer = nn.Sequential(nn.Linear(4, 4))
    bb.io.save_state(tmp_path / "run", layer.state_dict())
    about = json.dumps({"format": "backburn model", "version": 1})
    (tmp_path / "old").write_bytes(files.safetensors_bytes(ARRAYS, {"backburn": about}))
    for name, words in (("run", "state, version 4"), ("old", "version 1")):
        with pytest.raises(FileFormatError, match=f"{words}.*load_model and load_state read it, or say why not"):
            load_weights(layer, tmp_path / name)


def test_metadata_may_be_null(tmp_path: Path) -> None:
    """As in MLX's files."""
    content = files.safetensors_bytes(ARRAYS)
    length = int.from_bytes(content[:8], "little")
    header = json.dumps({"__metadata__": None, **json.loads(content[8 : 8 + length])}).encode()
    (tmp_path / "x").write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])
    model = Model()
    load_weights(model, tmp_path / "x")
    assert_holds(model, ARRAYS)


# ---- folders ----


def shard(folder: Path, **changed: Any) -> Path:
    names = list(ARRAYS)
    places = {name: f"model-0000{i % 2 + 1}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(places.values()):
        held = {name: ARRAYS[name] for name in names if places[name] == file}
        (folder / file).write_bytes(files.safetensors_bytes(held))
    index = {"metadata": {"total_size": 1}, "weight_map": {**places, **changed}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_folders_with_an_index_are_read(tmp_path: Path) -> None:
    model = Model()
    load_weights(model, shard(tmp_path))
    assert_holds(model, ARRAYS)


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX links")
def test_links_in_a_folder_are_followed(tmp_path: Path) -> None:
    """Snapshots in Hugging Face's cache are links."""
    snapshot, blobs = tmp_path / "snapshots" / "0123", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "4567").write_bytes(files.safetensors_bytes(ARRAYS))
    (snapshot / "model.safetensors").symlink_to("../../blobs/4567")
    model = Model()
    load_weights(model, snapshot)
    assert_holds(model, ARRAYS)


def test_folders_with_a_single_file_are_read(tmp_path: Path) -> None:
    for name, content in (("pytorch_model.bin", files.torch_bytes(ARRAYS)), ("any.npz", npz(ARRAYS))):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_bytes(content)
        (folder / "config.json").write_text("{}")
        model = Model()
        load_weights(model, folder)
        assert_holds(model, ARRAYS)


# ---- memory and files ----


def test_loading_holds_only_the_model_and_one_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a tensor is read, earlier ones and the tensors that they replaced are already freed."""
    arrays = {str(i): np.full((100,), i, np.float32) for i in range(8)}
    (tmp_path / "x").write_bytes(npz(arrays, zipfile.ZIP_DEFLATED))
    model: Any = nn.Sequential(*(Holder((100,)) for _ in arrays))
    old = [weakref.ref(model[int(name)].x.inner().primitive) for name in arrays]
    read: list[weakref.ref[Any]] = []
    alive: list[tuple[int, int]] = []
    opened = sources.opened

    def watched(source: Any) -> Any:
        found = opened(source)
        for name, stored in found.tensors.items():

            def reading(stored: Any = stored) -> Any:
                alive.append((sum(r() is not None for r in old), sum(r() is not None for r in read)))
                array = stored.read()
                read.append(weakref.ref(array))
                return array

            found.tensors[name] = type(stored)(stored.shape, stored.dtype, reading, kind=stored.kind)
        return found

    monkeypatch.setattr("backburn.io.weights.load.opened", watched)
    load_weights(model, tmp_path / "x", rename=lambda name: f"{name}.x")
    assert alive == [(8 - i, 0) for i in range(8)]
    assert model[7].x.tolist() == [7] * 100


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory use from Linux")
def test_memory_of_a_process_that_loads_a_file(tmp_path: Path) -> None:
    """64 MiB of bfloat16 in 32 tensors are loaded into a model of 128 MiB: the peak is little more than the model."""
    program = """
import sys
from pathlib import Path
import backburn as bb
def kilobytes(what):
    return int(next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(what)).split()[1])
model = bb.nn.Sequential(*[bb.nn.Linear(1024, 1024, bias=False) for _ in range(32)])
before = kilobytes("VmRSS")
bb.io.load_weights(model, sys.argv[1])
print((kilobytes("VmHWM") - before) // 1024)
"""
    header = {}
    for i in range(32):
        header[f"{i}.weight"] = {"dtype": "BF16", "shape": [1024, 1024], "data_offsets": [i << 21, (i + 1) << 21]}
    (tmp_path / "x").write_bytes(files.with_header(header, bytes(64 << 20)))
    result = subprocess.run([sys.executable, "-c", program, tmp_path / "x"], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 24


def test_a_file_can_be_replaced_after_loading(tmp_path: Path) -> None:
    model = Model()
    path = tmp_path / "model.safetensors"
    path.write_bytes(files.safetensors_bytes(ARRAYS))
    load_weights(model, path)
    save_weights(model, path)
    os.truncate(path, 8)
    assert_holds(model, ARRAYS)


@pytest.mark.parametrize("backend", ["numpy", "null", "autodiff(autodiff(numpy))"])
def test_models_of_any_backend_are_loaded(backend: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(files.safetensors_bytes({"x": np.ones((2, 3), np.float16)}))
    with bb.use_backend(backend):
        model = Holder((2, 3))
    load_weights(model, tmp_path / "x")
    assert model.x.backend.spec == bb.load_backend(backend).spec
    assert (model.x.shape, model.x.dtype.name) == ((2, 3), "float32")
    if backend != "null":
        assert model.x.tolist() == [[1, 1, 1], [1, 1, 1]]


def test_quantized_layers_load_only_quantized_states(tmp_path: Path) -> None:
    layer = nn.Sequential(nn.Linear(32, 4))
    quantized = nn.quantize_model(layer)
    copy = nn.quantize_model(nn.Sequential(nn.Linear(32, 4)))
    load_weights(copy, quantized.state_dict())
    x = bb.random.normal((3, 32))
    assert np.array_equal(copy(x).numpy(), quantized(x).numpy())
    with pytest.raises(DTypeError, match="load the float weights, then quantize"):
        load_weights(copy, layer.state_dict())
    with pytest.raises(ShapeError, match="has no order of axes 'T'"):
        load_weights(copy, quantized.state_dict(), rename=lambda name: (name, "T"))
