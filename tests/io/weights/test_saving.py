"""``save_weights``: files that other libraries and ``load_weights`` read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn
from backburn.base.errors import ArgumentError
from backburn.io import load_weights, save_weights, torch_state


class Tied(nn.Module):
    def __init__(self) -> None:
        self.embed = nn.Embedding(5, 4)
        self.attention = nn.MultiheadAttention(4, 2)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight


def assert_equal(one: nn.Module, other: nn.Module) -> None:
    a, b = one.state_dict(), other.state_dict()
    assert a.keys() == b.keys()
    for name, x in a.items():
        assert b[name].dtype is x.dtype, name
        assert np.array_equal(b[name].numpy(), x.numpy()), name


@pytest.mark.parametrize("size", ["5GB", 10**9, 100, "0.2KB", 1])
def test_models_come_back(size: int | str, tmp_path: Path) -> None:
    model, other = Tied(), Tied()
    save_weights(model, tmp_path / "m", max_shard_size=size)
    names = sorted(path.name for path in (tmp_path / "m").iterdir())
    if size in ("5GB", 10**9):
        assert names == ["model.safetensors"]
    else:
        count = 10 if size == 1 else len(names) - 1
        assert names == [
            *(f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)),
            "model.safetensors.index.json",
        ]
        index = json.loads((tmp_path / "m" / "model.safetensors.index.json").read_text())
        assert index["metadata"]["total_size"] == sum(
            x.numpy().nbytes for n, x in torch_state(model).items() if n != "head.weight"
        )
        assert set(index["weight_map"].values()) == set(names[:-1])
    load_weights(other, tmp_path / "m")
    assert_equal(model, other)
    assert other.head.weight is other.embed.weight


def test_a_file_name_writes_one_file(tmp_path: Path) -> None:
    model, other = Tied(), Tied()
    save_weights(model, tmp_path / "m.safetensors", max_shard_size=1)
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]
    load_weights(other, tmp_path / "m.safetensors")
    assert_equal(model, other)


def test_every_dtype_comes_back(tmp_path: Path) -> None:
    pytest.importorskip("ml_dtypes")
    dtypes = [d for d in bb.dtypes.DTYPES.values() if d.kind != "quantized" and d.name != "complex128"]

    class Model(nn.Module):
        def __init__(self, fill: int) -> None:
            self.parts = {d.name: bb.full((3,), fill, dtype="int64").astype(d) for d in dtypes}
            self.scalar = bb.asarray(float(fill))
            self.empty = bb.zeros((0, 2))

    model, other = Model(1), Model(0)
    save_weights(model, tmp_path / "m.safetensors")
    assert load_weights(other, tmp_path / "m.safetensors").cast == {}
    assert_equal(model, other)


def test_safetensors_reads_the_tensors(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    from safetensors import safe_open
    from safetensors.numpy import load_file

    model = Tied()
    path = tmp_path / "m.safetensors"
    save_weights(model, path)
    found = load_file(path)
    expected = {name: x.numpy() for name, x in torch_state(model).items() if name != "head.weight"}
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        assert np.array_equal(found[name], x), name
    with safe_open(path, framework="numpy") as file:
        assert file.metadata() == {"format": "pt", "head.weight": "embed.weight"}
    header = int.from_bytes(path.read_bytes()[:8], "little")
    assert header % 8 == 0


def test_pytorch_loads_what_is_saved(torch: Any, tmp_path: Path) -> None:
    load_file = pytest.importorskip("safetensors.torch").load_file
    theirs = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.MultiheadAttention(4, 2, batch_first=True))
    ours = nn.Sequential(nn.Linear(4, 4), nn.MultiheadAttention(4, 2)).astype("float16").astype("float32")
    save_weights(ours, tmp_path, max_shard_size="100B")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    state: dict[str, Any] = {}
    for file in set(index.values()):
        state |= load_file(tmp_path / file)
    assert state.keys() == index.keys()
    theirs.load_state_dict(state)
    x = bb.random.normal((2, 3, 4))
    expected = theirs[1](*[theirs[0](torch.from_numpy(x.numpy()))] * 3)[0].detach().numpy()
    assert np.allclose(ours(x).numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_mlx_files_are_read_and_written(dtype: str, tmp_path: Path) -> None:
    mx = pytest.importorskip("mlx.core")
    model, other = nn.Linear(4, 3).astype(dtype), nn.Linear(4, 3).astype(dtype)
    save_weights(model, tmp_path / "ours.safetensors")
    found = mx.load(str(tmp_path / "ours.safetensors"))
    assert {name: str(x.dtype) for name, x in found.items()} == dict.fromkeys(["weight", "bias"], f"mlx.core.{dtype}")
    assert np.array_equal(np.array(found["weight"].astype(mx.float32)), model.weight.astype("float32").numpy())
    mx.save_safetensors(str(tmp_path / "theirs.safetensors"), found)
    load_weights(other, tmp_path / "theirs.safetensors")
    assert_equal(model, other)


def test_files_of_an_earlier_model_are_removed(tmp_path: Path) -> None:
    model = nn.Linear(10, 10)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "other.safetensors").write_bytes(b"")
    for size in (1, "5GB", 10, "5GB", 1):
        save_weights(model, tmp_path, max_shard_size=size)
        kept = {path.name for path in tmp_path.iterdir()} - {"config.json", "other.safetensors"}
        shards = {
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
        }
        assert kept == ({"model.safetensors"} if size == "5GB" else shards)
        assert {"config.json", "other.safetensors"} < {path.name for path in tmp_path.iterdir()}
        other = nn.Linear(10, 10)
        load_weights(other, tmp_path)
        assert_equal(model, other)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 2)
    save_weights(model, tmp_path / "m.safetensors")
    before = (tmp_path / "m.safetensors").read_bytes()

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save_weights(nn.Linear(2, 2), tmp_path / "m.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]
    assert (tmp_path / "m.safetensors").read_bytes() == before


def test_what_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="writes the weights of a model, and not of a dict"):
        save_weights(nn.Linear(2, 2).state_dict(), tmp_path / "m")  # type: ignore[arg-type]
    for size in (0, -1, "5 parsecs", "GB", 1.5, True, "0GB"):
        with pytest.raises(ArgumentError, match="max_shard_size is a number of bytes"):
            save_weights(nn.Linear(2, 2), tmp_path / "m", max_shard_size=size)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []

    class Reserved(nn.Module):
        def __init__(self) -> None:
            self.__metadata__ = bb.zeros(1)

    with pytest.raises(ArgumentError, match="__metadata__"):
        save_weights(Reserved(), tmp_path / "m")
