"""Large files: written without copies, mapped on loading, replaced while mapped, with one checksum per tensor."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn, optim
from backburn.base.errors import BackburnError, FileFormatError
from backburn.io import load_model, load_state, parts, safe, save_model, save_npz, save_state, save_weights
from backburn.io.parts import parts_of_bytes
from backburn.tensor.core.host import host_view

STATE = {name: np.random.default_rng(i).standard_normal((3, 5)).astype(np.float32) for i, name in enumerate("abc")}


def place_of(path: Path, array: np.ndarray) -> int:
    """The offset of an array's bytes in a file."""
    content = path.read_bytes()
    assert content.count(array.tobytes()) == 1
    return content.index(array.tobytes())


def damage(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


# ---- checksums ----


@pytest.mark.parametrize("name", STATE)
def test_a_damaged_tensor_is_named(name: str, tmp_path: Path) -> None:
    save_model(tmp_path / "m", STATE)
    save_state(tmp_path / "s", {"x": STATE})
    damage(tmp_path / "m", place_of(tmp_path / "m", STATE[name]) + 7)
    damage(tmp_path / "s", place_of(tmp_path / "s", STATE[name]) + 7)
    with pytest.raises(FileFormatError, match=f"m: '{name}' is damaged: its checksum"):
        load_model(tmp_path / "m")
    with pytest.raises(FileFormatError, match=f"s: 'x.{name}' is damaged: its checksum"):
        load_state(tmp_path / "s")
    with pytest.raises(FileFormatError, match=f"m: '{name}' is damaged: its checksum"):
        bb.io.load_weights(Holder(), tmp_path / "m")
    for found in (load_model(tmp_path / "m", verify=False).state, load_state(tmp_path / "s", verify=False)["x"]):
        assert [key for key in STATE if not np.array_equal(found[key], STATE[key])] == [name]


class Holder(nn.Module):
    def __init__(self) -> None:
        self.a, self.b, self.c = (nn.parameter(bb.zeros((3, 5))) for _ in range(3))


def test_exchanged_tensors_are_detected(tmp_path: Path) -> None:
    """Even of equal dtype and shape: checksums are stored by name."""
    save_model(tmp_path / "m", STATE)
    content = (tmp_path / "m").read_bytes()
    for old, new in ((b'"a":{"dtype"', b'"?":{"dtype"'), (b'"b":{"dtype"', b'"a":{"dtype"'), (b'"?":', b'"b":')):
        assert content.count(old) == 1
        content = content.replace(old, new)
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(FileFormatError, match="is damaged: its checksum"):
        load_model(tmp_path / "m")


def test_tensors_in_many_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART", 64)
    state = {f"{i}": np.random.default_rng(i).standard_normal((7, 11)) for i in range(5)}
    save_model(tmp_path / "m", state)
    for name, x in load_model(tmp_path / "m").state.items():
        assert np.array_equal(x, state[name])


def test_a_pipe_gets_the_same_bytes(tmp_path: Path) -> None:
    if os.name != "posix":
        pytest.skip("needs POSIX pipes")
    save_model(tmp_path / "m", STATE, about={"x": 1})
    os.mkfifo(tmp_path / "pipe")
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    save_model(tmp_path / "pipe", STATE, about={"x": 1})
    reader.join(60)
    assert found == [(tmp_path / "m").read_bytes()]


# ---- the bytes of tensors ----


def tensors() -> dict[str, Any]:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    bfloat16 = bb.asarray([[1.5, 2.5], [3.5, 4.5]], dtype="bfloat16")
    return {
        "array": x, "turned": x.T, "strided": x[:, ::-1, ::2], "swapped": x.astype(">f4"), "scalar": np.array(3.5),
        "empty": np.zeros((0, 3)), "wide": np.broadcast_to(x[:1], x.shape), "truths": x > 3,
        "tensor": bb.asarray(x), "turned tensor": bb.asarray(x[0]).T, "tracked": bb.asarray(x).require_grad() * 2.0,
        "plain": bb.asarray(x, backend="numpy"), "captured": bb.asarray(x, backend="capture(numpy)"),
        "profiled": bb.asarray(x, backend="autodiff(profile(numpy))"), "bfloat16": bfloat16, "half": bfloat16.T,
    }  # fmt: skip


@pytest.mark.parametrize("part", [4, 64, 1 << 20])
@pytest.mark.parametrize("name", tensors())
def test_parts_of_every_layout(name: str, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART", part)
    x = tensors()[name]
    host = x if isinstance(x, np.ndarray) else x.numpy()
    expected = host.astype(host.dtype.newbyteorder("<")) if host.dtype.byteorder == ">" else host
    found = list(parts_of_bytes(x))
    assert b"".join(piece.tobytes() for piece in found) == np.ascontiguousarray(expected).tobytes()
    assert all(len(piece) <= max(part, host.itemsize) for piece in found)


def test_host_memory_is_not_copied() -> None:
    x = bb.ones((1000, 10)).require_grad()
    view = host_view(x)
    assert np.shares_memory(view, x.inner().primitive)
    assert not view.flags.writeable
    assert all(np.shares_memory(piece, view) for piece in parts_of_bytes(x))
    assert host_view(bb.ones(3, backend="capture(numpy)")) is None


def test_saving_inside_a_recorded_step_is_refused(tmp_path: Path) -> None:
    with bb.use_backend("autodiff(capture(numpy))"):
        model = nn.Linear(2, 2)

        def step(state: Any, x: Any) -> Any:
            save_model(tmp_path / "m", state.state_dict())
            return state, state(x)

        train, x = bb.capture(step, on_fallback="error"), bb.ones((1, 2))
        train(model, x)
        (tmp_path / "m").unlink()
        with pytest.raises(BackburnError, match="to_numpy reads values on the host"):
            train(model, x)
    assert list(tmp_path.iterdir()) == []


MEMORY = """
import sys
import numpy as np
import backburn as bb
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
class Model(bb.nn.Module):
    def __init__(self):
        self.parts = [bb.nn.parameter(bb.ones((1024, 4096))) for _ in range(12)]
model = Model()
state = model.state_dict()
before = peak()
save = {"model": lambda p: bb.io.save_model(p, state), "state": lambda p: bb.io.save_state(p, {"model": state}),
        "weights": lambda p: bb.io.save_weights(model, p + ".safetensors"), "npz": lambda p: bb.io.save_npz(p, state)}
save[sys.argv[1]](sys.argv[2])
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads peak memory from Linux")
@pytest.mark.parametrize("what", ["model", "state", "weights", "npz"])
def test_saving_does_not_copy_the_model(what: str, tmp_path: Path) -> None:
    """The peak memory of a separate process that saves 192 MiB."""
    command = [sys.executable, "-c", MEMORY, what, str(tmp_path / "x")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240, env=environment)
    assert float(done.stdout) < (64 if what == "npz" else 16)  # an npz archive copies one tensor at a time


# ---- maps ----


def test_loaded_arrays_are_memory_of_the_file(tmp_path: Path) -> None:
    save_model(tmp_path / "m", STATE)
    save_state(tmp_path / "s", STATE)
    for found in (load_model(tmp_path / "m").state, load_state(tmp_path / "s")):
        for x in found.values():
            assert not x.flags.writeable
            assert not x.flags.owndata
            with pytest.raises(ValueError, match="read-only"):
                x[0] = 0
            with pytest.raises(ValueError, match="cannot set WRITEABLE"):
                x.flags.writeable = True


@pytest.mark.parametrize("save", [save_model, save_state])
def test_saving_over_a_mapped_file(save: Any, tmp_path: Path) -> None:
    load = {save_model: lambda path: load_model(path).state, save_state: load_state}[save]
    save(tmp_path / "m", STATE)
    first = load(tmp_path / "m")
    save(tmp_path / "m", {name: x + 1 for name, x in first.items()})  # reads the mapped file while replacing it
    second = load(tmp_path / "m")
    for name, x in STATE.items():
        assert np.array_equal(first[name], x)
        assert np.array_equal(second[name], x + 1)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_arrays_are_copied_where_mapped_files_cannot_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safe, "MAPS_ARE_REPLACED", False)
    save_model(tmp_path / "m", STATE)
    found = load_model(tmp_path / "m").state
    for name, x in found.items():
        assert x.flags.owndata
        assert not x.flags.writeable
        assert np.array_equal(x, STATE[name])


def one_step(state: Any, x: Any) -> Any:
    model, optimizer = state
    loss = model(x).square().mean()
    optimizer.step(model, loss.backward())
    return state, loss


@pytest.mark.parametrize("backend", ["autodiff(numpy)", "autodiff(capture(numpy))"])
def test_steps_do_not_write_into_the_file(backend: str, tmp_path: Path) -> None:
    """Replays overwrite only unreferenced state, which mapped memory never is."""
    with bb.use_backend(backend):
        model = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128))
        state = (model, optim.Adam(1e-2))
        save_model(tmp_path / "m", model.state_dict())
        content = (tmp_path / "m").read_bytes()
        saved = load_model(tmp_path / "m").state
        before = {name: x.copy() for name, x in saved.items()}
        model.load_state_dict(saved)

        train, x = bb.capture(one_step), bb.ones((8, 128))
        for _ in range(5):
            state, _ = train(state, x)
    assert (tmp_path / "m").read_bytes() == content
    assert all(np.array_equal(saved[name], x) for name, x in before.items())
    assert not np.array_equal(model.state_dict()["0.weight"].numpy(), before["0.weight"])


def test_a_saved_state_does_not_change_during_replays(tmp_path: Path) -> None:
    """Saving reads tensors without a copy; replays must not overwrite them."""
    with bb.use_backend("autodiff(capture(numpy))"):
        state: Any = (nn.Sequential(nn.Linear(128, 128)), optim.SGD(0.1, momentum=0.9))
        train, x = bb.capture(one_step), bb.ones((4, 128))
        for _ in range(4):
            state, _ = train(state, x)
        saved = state[0].state_dict()
        expected = {name: value.numpy() for name, value in saved.items()}
        for _ in range(3):
            state, _ = train(state, x)
        save_model(tmp_path / "m", saved)
    for name, value in load_model(tmp_path / "m").state.items():
        assert np.array_equal(value, expected[name])


def test_archives_and_weights_of_captured_tensors(tmp_path: Path) -> None:
    model = nn.Linear(3, 2).to("capture(numpy)")
    save_weights(model, tmp_path / "w.safetensors")
    save_npz(tmp_path / "w.npz", model.state_dict())
    for name in ("w.safetensors", "w.npz"):
        other = nn.Linear(3, 2)
        bb.io.load_weights(other, tmp_path / name)
        assert np.array_equal(other.weight.numpy(), model.weight.numpy())
