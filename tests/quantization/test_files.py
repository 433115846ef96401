"""Quantized models on disk: stored quantized, loaded without dequantization."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn.base.errors import FileFormatError
from backburn.io import load_model, save_model
from backburn.nn import Linear, ReLU, Sequential, quantize_model
from backburn.quantization import calibrate
from backburn.tensor.core.host import quantized_parts

SCHEMES = [
    "qint8_symmetric_channel0_float32", "qint4_symmetric_block32_float16", "qint4_affine_block7_bfloat16",
    "quint8_affine_tensor_float32", "qfloat8_e4m3fn_symmetric_block16_float16",
    "qint4_affine_block16x32_float16", "qint2_symmetric_block32_float16", "qint2_affine_channel0_float32",
]  # fmt: skip


@pytest.mark.parametrize("scheme", SCHEMES)
def test_models_are_restored_exactly(tmp_path: Path, scheme: str) -> None:
    if "bfloat16" in scheme:
        pytest.importorskip("ml_dtypes")
    model = Sequential(Linear(65, 33), ReLU(), Linear(33, 10))
    saved = quantize_model(model, scheme)
    other = quantize_model(Sequential(Linear(65, 33), ReLU(), Linear(33, 10)), scheme)
    save_model(tmp_path / "m.safetensors", saved.state_dict(), about={"epoch": 1})
    loaded = load_model(tmp_path / "m.safetensors")
    assert loaded.about == {"epoch": 1}
    weight = loaded.state["0.weight"]
    assert type(weight) is bb.QuantizedTensor
    assert weight.dtype == scheme
    assert set(loaded.state) == set(saved.state_dict())
    other.load_state_dict(loaded.state)
    x = bb.asarray(np.random.default_rng(0).standard_normal((3, 65)).astype(np.float32))
    np.testing.assert_array_equal(other(x).numpy(), saved(x).numpy())


@pytest.mark.parametrize(("scheme", "share"), [(SCHEMES[0], 0.27), (SCHEMES[1], 0.15)])
def test_bytes_on_disk(tmp_path: Path, scheme: str, share: float) -> None:
    weight = bb.asarray(np.random.default_rng(0).standard_normal((256, 512)).astype(np.float32))
    sizes = []
    for name, x in (("full", weight), ("quantized", weight.quantize(dtype=scheme))):
        save_model(tmp_path / name, {"weight": x})
        sizes.append(os.path.getsize(tmp_path / name))
    assert sizes[1] <= share * sizes[0]


def test_inconsistent_parts_are_refused(tmp_path: Path) -> None:
    from backburn.io import safe, versions

    q = bb.ones((2, 3)).quantize()
    with pytest.raises(FileFormatError, match=r"'w.scale' is both a tensor and a part of 'w'"):
        save_model(tmp_path / "m", {"w": q, "w.scale": bb.ones(())})
    good = {"scheme": "qint8_symmetric_tensor_float32", "shape": [2, 3]}
    arrays: dict[str, Any] = {"w": np.zeros((2, 3), np.int8), "w.scale": np.ones((), np.float32)}
    for about, parts in (
        ({**good, "shape": [3, 2]}, arrays),
        ({**good, "scheme": "float32"}, arrays),
        ({**good, "scheme": "qint8_affine_tensor_float32"}, arrays),
        ({"shape": [2, 3]}, arrays),
        (good, {"w": arrays["w"]}),
    ):
        safe._write(tmp_path / "m", versions.MODEL, parts, {}, {"w": about})
        with pytest.raises(FileFormatError, match="the quantized tensor 'w' is damaged"):
            load_model(tmp_path / "m")
    safe._write(tmp_path / "m", versions.MODEL, arrays, {}, {"w": good})
    np.testing.assert_array_equal(load_model(tmp_path / "m").state["w"].numpy(), np.zeros((2, 3)))


def test_training_states_can_hold_quantized_tensors(tmp_path: Path) -> None:
    from backburn.io import load_state, save_state

    weights = {
        name: bb.asarray(np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)).quantize(dtype=name)
        for name in ("qint4_affine_block3_float16", "qfloat8_e5m2_symmetric_channel0_float32", SCHEMES[0])
    }
    tree = {"model": weights, "steps": [3, {"zero": weights[SCHEMES[0]]}], "model.x": bb.ones(2)}
    save_state(tmp_path / "s", tree)
    loaded = load_state(tmp_path / "s")
    for name, x in weights.items():
        again = loaded["model"][name]
        assert again.dtype is x.dtype
        np.testing.assert_array_equal(again.numpy(), x.numpy())
    assert loaded["steps"][0] == 3
    np.testing.assert_array_equal(loaded["steps"][1]["zero"].numpy(), weights[SCHEMES[0]].numpy())
    assert (tmp_path / "s").stat().st_size < 3000


def test_a_quantized_model_is_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pydantic")
    from backburn.backend import load_backend
    from backburn.cli import main
    from backburn.train.building import build
    from backburn.train.config import run_of

    trainer = build(run_of({}, tmp_path, "the digits"), load_backend("autodiff(numpy)"), []).trainer
    trainer.run_epoch()
    found = calibrate(trainer.model, [bb.asarray(trainer.data.images[:64].reshape(64, -1))])
    options: Any = {"activations": "quint8_affine_tensor_float32", "inputs": found}
    small = quantize_model(trainer.model, "qint8_symmetric_channel0_float16", **options)
    save_model(tmp_path / "m.safetensors", small.state_dict(), about={"config": {}})
    assert main(["evaluate", str(tmp_path / "m.safetensors")]) == 0
    assert "%" in capsys.readouterr().out


def test_values_outside_the_scheme_are_refused(tmp_path: Path) -> None:
    from backburn.io import safe, versions

    for name, good, bad in (
        ("float8_e4m3fn", 0x7E, 0x7F), ("float8_e4m3fn", 0xFE, 0xFF), ("float8_e5m2", 0x7B, 0x7C),
        ("float8_e5m2", 0xFB, 0xFE), ("int8", 0x81, 0x80), ("int4", 0x97, 0x87), ("int4", 0x79, 0x78),
        *(("int2", 0b11 << i, 0b10 << i) for i in (0, 2, 4, 6)),
    ):  # fmt: skip
        about = {"scheme": f"q{name}_symmetric_tensor_float32", "shape": [1, 4]}
        stored = {"int4": 2, "int2": 1}.get(name, 4)
        values: Any = np.zeros((1, stored), np.int8 if name == "int8" else np.uint8)
        parts = {"w": values, "w.scale": np.ones((), np.float32)}
        values.view(np.uint8)[0, -1] = good
        safe._write(tmp_path / "m", versions.MODEL, parts, {}, {"w": about})
        assert load_model(tmp_path / "m").state["w"].shape == (1, 4)
        values.view(np.uint8)[0, -1] = bad
        safe._write(tmp_path / "m", versions.MODEL, parts, {}, {"w": about})
        with pytest.raises(FileFormatError, match=r"'w' is damaged.*values"):
            load_model(tmp_path / "m")


@pytest.mark.parametrize("scheme", ["qint4_affine_channel0_float32", "quint8_affine_channel0_float16"])
def test_invalid_parts_are_refused(tmp_path: Path, scheme: str) -> None:
    """A file with a valid checksum may contain invalid steps or zero points."""
    from backburn.io import load_state, safe, save_state, versions

    q = bb.asarray(np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)).quantize(dtype=scheme)
    values, scale, zero = quantized_parts(q)
    about = {"scheme": scheme, "shape": [2, 3]}
    good = {"w": values, "w.scale": scale, "w.zero": zero}
    beyond = zero + np.asarray(100, zero.dtype) if zero.dtype == np.int8 else zero.astype(np.int16)
    damaged: list[tuple[dict[str, Any], Any]] = [
        ({"w.zero": zero.astype(np.float64)}, about), ({"w.zero": zero[:1]}, about), ({"w.zero": beyond}, about),
        *(({"w.scale": (scale * [1, bad]).astype(scale.dtype)}, about) for bad in (np.nan, np.inf, -1, 0)),
        *(({}, {**about, "shape": shape}) for shape in ("23", [2.0, 3], [-2, -3], [True, 3], None, [float("inf"), 3])),
        ({}, []), ({}, "w"), ({}, None), ({}, 3),
    ]  # fmt: skip
    for parts, what in damaged:
        safe._write(tmp_path / "m", versions.MODEL, {**good, **parts}, {}, {"w": what})
        with pytest.raises(FileFormatError, match="the quantized tensor 'w' is damaged"):
            load_model(tmp_path / "m")
    for schemes in ([about], "w", 3):
        safe._write(tmp_path / "m", versions.MODEL, good, {}, schemes)
        with pytest.raises(FileFormatError, match=r"m: the metadata name no quantized tensors"):
            load_model(tmp_path / "m")
    safe._write(tmp_path / "m", versions.MODEL, good, {}, {"w": about})
    np.testing.assert_array_equal(load_model(tmp_path / "m").state["w"].numpy(), q.numpy())
    save_state(tmp_path / "s", {"w": q})
    np.testing.assert_array_equal(load_state(tmp_path / "s")["w"].numpy(), q.numpy())
