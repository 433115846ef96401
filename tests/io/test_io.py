"""Model files: round trips, and errors for damaged, foreign and hostile files."""

import json
import os
import pickle
import struct
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backburn as bb
from backburn import nn
from backburn.base.errors import DTypeError, FileFormatError
from backburn.io import load_model, load_npz, load_state, save_model, save_npz, save_state, write_atomically
from backburn.io.safe import _digest

STATE = {
    "0.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "0.bias": np.array([1.5, -2.5]),
    "scalar": np.array(3, dtype=np.int64),
    "empty": np.zeros((0, 3), np.float16),
    "mask": np.array([True, False]),
}
ABOUT = {"epoch": 3, "config": {"train": {"epochs": 5}}, "metrics": {"accuracy": 0.5}}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        assert found[name].shape == array.shape, name
        assert np.array_equal(found[name], array), name


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_model(path, STATE, about=ABOUT)
    return path


# ---- round trips ----


def test_model_comes_back(model_file: Path) -> None:
    saved = load_model(model_file)
    assert_same(saved.state, STATE)
    assert saved.about == ABOUT


def test_tensors_come_back_from_every_level(tmp_path: Path) -> None:
    plain = bb.asarray([[1.0, 2.0]], backend="numpy")
    tracked = bb.asarray([3.0]).require_grad()
    save_model(tmp_path / "m", {"plain": plain, "tracked": tracked, "ints": bb.asarray([1, 2])})
    state = load_model(tmp_path / "m").state
    assert_same(
        state,
        {"plain": np.array([[1, 2]], "f4"), "tracked": np.array([3], "f4"), "ints": np.array([1, 2])},
    )


def test_arrays_of_any_layout_come_back(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    wide = np.broadcast_to(array[0], (5, 3, 4))
    views = {"turned": array.transpose(2, 0, 1), "strided": array[:, ::-1, ::2], "wide": wide}
    save_model(tmp_path / "m", views)
    assert_same(load_model(tmp_path / "m").state, views)
    save_npz(tmp_path / "m.npz", views)
    assert_same(load_npz(tmp_path / "m.npz"), views)


def test_arrays_of_any_byte_order_come_back(tmp_path: Path) -> None:
    swapped = {"floats": np.array([1.5, -2.0], ">f4"), "ints": np.array([[1, 2]], ">i8")}
    native = {name: array.astype(array.dtype.newbyteorder("=")) for name, array in swapped.items()}
    save_model(tmp_path / "m", swapped)
    assert_same(load_model(tmp_path / "m").state, native)
    save_npz(tmp_path / "m.npz", swapped)
    assert_same(load_npz(tmp_path / "m.npz"), native)


def test_safetensors_reads_the_tensors(model_file: Path) -> None:
    from safetensors.numpy import load_file

    assert_same(load_file(model_file), STATE)


def test_bfloat16_comes_back(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    state = {"x": np.array([1.5, -2.0], dtype=ml_dtypes.bfloat16)}
    save_model(tmp_path / "m", state)
    assert_same(load_model(tmp_path / "m").state, state)
    with pytest.raises(DTypeError, match=r"x: npz files cannot hold bfloat16"):
        save_npz(tmp_path / "m.npz", state)


def test_trees_come_back(tmp_path: Path) -> None:
    tree = {
        "step": 7,
        "rates": [1e-3, 0.1, None, True, "cosine"],
        "nested": {"a.b": np.array([1, 2], "f4"), "a": {"b": np.array(4)}},
        "list": [np.zeros(2), (np.ones(1), 2)],
        "large": 2**70,
    }
    save_state(tmp_path / "s", tree)
    found = load_state(tmp_path / "s")
    assert found["step"] == 7
    assert found["rates"] == [1e-3, 0.1, None, True, "cosine"]
    assert found["nested"]["a.b"].tolist() == [1, 2]
    assert found["nested"]["a"]["b"].tolist() == 4
    assert found["list"][1][0].tolist() == [1]
    assert found["list"][1][1] == 2
    assert found["large"] == 2**70


def test_npz_comes_back(tmp_path: Path) -> None:
    save_npz(tmp_path / "s.npz", STATE)
    assert_same(load_npz(tmp_path / "s.npz"), STATE)
    with np.load(tmp_path / "s.npz", allow_pickle=False) as other_reader:
        assert set(other_reader.files) == set(STATE)


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    save_model(tmp_path / "a", STATE, about=ABOUT)
    save_model(tmp_path / "b", STATE, about=ABOUT)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# ---- what cannot be saved ----


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array([object()]), np.array(["text"]), 1j, np.array([1j])])
def test_unsupported_values_are_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(DTypeError, match="weights"):
        save_state(tmp_path / "s", {"weights": value})
    assert list(tmp_path.iterdir()) == []


def test_modules_are_refused_with_a_hint_at_state_dict(tmp_path: Path) -> None:
    with pytest.raises(DTypeError, match=r"^model: a value of type Linear cannot be saved: save its state_dict\(\)$"):
        save_state(tmp_path / "s", {"model": bb.nn.Linear(2, 2)})


def test_a_model_state_holds_tensors_only(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="tensors by name"):
        save_model(tmp_path / "s", {"weights": 3})


@pytest.mark.parametrize("key", [3, "$array"])
def test_bad_keys_are_refused(tmp_path: Path, key: object) -> None:
    with pytest.raises(DTypeError, match="keys"):
        save_state(tmp_path / "s", {"a": {key: 1}})


def test_the_error_for_a_key_suggests_a_string(tmp_path: Path) -> None:
    for tree in ({1: 2}, {"best": {1: 2}}):
        with pytest.raises(DTypeError, match=r": the keys of what is saved are strings, not 1; '1' would do$") as found:
            save_state(tmp_path / "s", tree)
        assert str(found.value).startswith("the state: " if 1 in tree else "best: ")


def test_numpy_scalars_are_saved_as_python_numbers(tmp_path: Path) -> None:
    numbers = {"best": np.float32(1.5), "steps": np.int64(3), "done": np.bool_(True), "rate": np.float64(0.1)}
    save_state(tmp_path / "s", numbers)
    found = load_state(tmp_path / "s")
    assert found == {"best": 1.5, "steps": 3, "done": True, "rate": 0.1}
    assert [type(found[name]) for name in numbers] == [float, int, bool, float]
    save_model(tmp_path / "m", STATE, about={"best": np.float32(1.5)})
    assert load_model(tmp_path / "m").about == {"best": 1.5}
    for wrong in (np.ones(2), object()):
        with pytest.raises(DTypeError, match="best"):
            save_model(tmp_path / "w", STATE, about={"best": wrong})


# ---- damage ----


def test_every_truncated_file_is_refused(model_file: Path) -> None:
    content = model_file.read_bytes()
    for length in (*range(0, len(content) - 1, 7), len(content) - 1):
        model_file.write_bytes(content[:length])
        with pytest.raises(FileFormatError, match=r"model\.safetensors: "):
            load_model(model_file)


def test_every_changed_byte_is_noticed(model_file: Path) -> None:
    content = model_file.read_bytes()
    refused = []
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 0x10
        model_file.write_bytes(changed)
        try:
            found = load_model(model_file)
        except FileFormatError as error:
            refused.append(str(error))
        else:  # an unused byte, such as padding
            assert_same(found.state, STATE)
            assert found.about == ABOUT
    assert len(refused) > 0.9 * len(content)
    assert all(words.startswith(f"{model_file}: ") for words in refused)


def test_npz_holds_arrays_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above 2 GiB, archives need a format extension; the limit is lowered here."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
    save_npz(tmp_path / "large.npz", {"x": np.arange(1000)})
    assert load_npz(tmp_path / "large.npz")["x"].tolist() == list(range(1000))


def test_npz_damage_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    save_npz(path, STATE)
    content = path.read_bytes()
    for length in range(0, len(content) - 1, 11):
        path.write_bytes(content[:length])
        with pytest.raises(FileFormatError, match=r"s\.npz: "):
            load_npz(path)
    array = content.index(STATE["0.bias"].tobytes())
    path.write_bytes(content[:array] + b"\x01" + content[array + 1 :])
    with pytest.raises(FileFormatError, match="CRC"):
        load_npz(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no model at all",
        b"\x00" * 100,
        b"\xff" * 100,
        pickle.dumps({"weights": [1, 2, 3]}),
        struct.pack("<Q", 2**62) + b"{}",
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 40) + b"[" * 40,
    ],
)
def test_foreign_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(content)
    for load in (load_model, load_state, load_npz):
        with pytest.raises(FileFormatError, match="foreign: "):
            load(path)


class Attack:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_pickles_are_never_executed(tmp_path: Path) -> None:
    evidence = tmp_path / "executed"
    (tmp_path / "attack").write_bytes(pickle.dumps(Attack(evidence)))
    np.save(tmp_path / "attack.npy", np.array([Attack(evidence)]), allow_pickle=True)
    np.savez(tmp_path / "attack.npz", x=np.array([Attack(evidence)]))
    for load in (load_model, load_state, load_npz):
        for name in ("attack", "attack.npy", "attack.npz"):
            with pytest.raises(FileFormatError, match=name):
                load(tmp_path / name)
    assert not evidence.exists()


def test_an_array_without_a_name_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(2))
    with pytest.raises(FileFormatError, match="single array"):
        load_npz(tmp_path / "x.npy")


def test_archives_without_arrays_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(FileFormatError, match=r"x\.npz"):
        load_npz(tmp_path / "x.npz")


# ---- files of other programs and versions ----


def written(path: Path, metadata: dict[str, str] | None) -> Path:
    from safetensors.numpy import save_file

    save_file({"x": np.zeros(2)}, path, metadata=metadata)
    return path


def checksums(**more: str) -> dict[str, Any]:
    return {"document": _digest({}, None), "tensors": {"x": "0" * 8, **more}}


def header(**changed: object) -> dict[str, str]:
    """Metadata like backburn's with changed entries; None removes one."""
    entries = {"format": "backburn model", "version": 4, "document": {}, "crc32": checksums(), **changed}
    return {"backburn": json.dumps({key: value for key, value in entries.items() if value is not None})}


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (None, "backburn did not write"),
        ({"format": "pt"}, "backburn did not write"),
        ({"backburn": "{"}, "cannot be read"),
        ({"backburn": "3"}, "lack crc32, document, format, version"),
        ({"backburn": '["format", "version", "document", "crc32"]'}, "lack crc32, document, format, version"),
        ({"backburn": "[" * 100_000}, "cannot be read"),
        (header(version=5), "format version 5, and this release of backburn reads version 4"),
        (header(version=3), "format version 3, whose checksums are of another kind"),
        (header(version=2), "format version 2, which has one checksum of all tensors together"),
        (header(version=[2]), "format version [2], and this release"),
        (header(version=1), "version 1, whose weights of linear, bilinear and recurrent layers are transposed"),
        (header(format="backburn state"), "this is a backburn state, and not a backburn model"),
        (header(), "'x' is damaged: its checksum (CRC-32) does not match"),
        (header(document={"epoch": 3}), "the checksum of its metadata does not match"),
        (header(crc32=checksums(y="0" * 8)), "its checksums do not match its tensors"),
        (header(crc32="0" * 64), "no table of checksums"),
        (header(crc32={"tensors": 3}), "no table of checksums"),
        (header(crc32=None), "lack crc32"),
        (header(document=None), "lack document"),
    ],
)
def test_wrong_metadata_are_refused(tmp_path: Path, metadata: dict[str, str] | None, words: str) -> None:
    path = written(tmp_path / "other.safetensors", metadata)
    with pytest.raises(FileFormatError) as caught:
        load_model(path)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


def test_a_state_is_refused_as_a_model(tmp_path: Path) -> None:
    save_state(tmp_path / "s", {"x": np.zeros(1)})
    with pytest.raises(FileFormatError, match="not a backburn model"):
        load_model(tmp_path / "s")


def test_a_state_that_misses_an_array_is_refused(tmp_path: Path) -> None:
    from backburn.io import safe, versions

    safe._write(tmp_path / "s", versions.STATE, {}, {"x": {"$array": "x"}})
    with pytest.raises(FileFormatError, match="'x' is missing"):
        load_state(tmp_path / "s")


@pytest.mark.parametrize("load", [load_model, load_state, load_npz])
def test_missing_files_and_folders(tmp_path: Path, load) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nowhere")
    with pytest.raises(FileFormatError, match="folder"):
        load(tmp_path)


def test_files_need_no_other_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    save_model(tmp_path / "x", STATE)
    assert_same(load_model(tmp_path / "x").state, STATE)


def test_bfloat16_without_its_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path / "x", {"w": bb.asarray([1.5], dtype="bfloat16")})
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(DTypeError, match=r"x: 'w': bfloat16 on the host needs .*pip install 'backburn\[bfloat16\]'"):
        load_model(tmp_path / "x")


# ---- writing ----


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "model"
    save_model(path, STATE, about=ABOUT)

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save_model(path, {"x": np.zeros(1)})
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert load_model(path).about == ABOUT


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    def interrupted(source: object, target: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "x", b"content")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX links and modes")
def test_links_are_followed_and_permissions_kept(tmp_path: Path) -> None:
    (tmp_path / "x").touch(mode=0o600)
    (tmp_path / "latest").symlink_to("x")
    write_atomically(tmp_path / "latest", b"content")
    assert (tmp_path / "latest").is_symlink()
    assert (tmp_path / "x").read_bytes() == b"content"
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX pipes")
def test_a_pipe_is_written_to_and_kept(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(tmp_path / "pipe", b"content")
    assert os.read(reader, 100) == b"content"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


def test_documents_are_json(model_file: Path) -> None:
    from safetensors import safe_open

    with safe_open(model_file, framework="numpy") as file:
        assert json.loads(file.metadata()["backburn"])["document"] == ABOUT


def test_save_model_of_a_module_suggests_state_dict(tmp_path: Path) -> None:
    model: Any = nn.Linear(2, 1)
    with pytest.raises(DTypeError, match=r"this is a Linear: write model\.state_dict\(\)$"):
        bb.io.save_model(tmp_path / "model.safetensors", model)
    with pytest.raises(AttributeError, match=r"no attribute 'save'; here: bb\.io\.save_model"):
        getattr(bb.io, "sav" + "e")


def test_concurrent_writes_leave_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    contents = [bytes([number]) * 300_000 for number in range(4)]
    write_atomically(path, contents[0])

    def write(content: bytes) -> None:
        for _ in range(20):
            write_atomically(path, content)
            assert path.read_bytes() in contents

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, contents))
    assert [found.name for found in tmp_path.iterdir()] == ["x"]


def test_a_tensor_cannot_have_the_name_of_the_metadata(tmp_path: Path) -> None:
    for save in (save_model, save_state):
        with pytest.raises(DTypeError, match=r"the name '__metadata__'.*choose another"):
            save(tmp_path / "x", {"__metadata__": bb.ones(2)})


def test_a_tree_that_contains_itself_is_refused(tmp_path: Path) -> None:
    tree: list[Any] = []
    tree.append(tree)
    with pytest.raises(DTypeError, match="contains itself"):
        save_state(tmp_path / "x", tree)


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX permissions")
def test_the_replacement_of_a_private_file_is_never_public(tmp_path: Path) -> None:
    """Not even while it is being written."""
    path, modes = tmp_path / "x", []
    path.write_bytes(b"old")
    for mode in (0o600, 0o444, 0o666):
        path.chmod(mode)
        write_atomically(path, lambda file: modes.append(os.fstat(file.fileno()).st_mode & 0o777))
        assert modes[-1] & ~mode == 0
        assert path.stat().st_mode & 0o777 == mode


@pytest.mark.skipif(not os.path.exists("/dev/null"), reason="needs /dev/null")
def test_arrays_are_written_to_devices_that_cannot_seek() -> None:
    """/dev/null claims to be seekable, but its position is always 0."""
    for save in (save_npz, save_model):
        save("/dev/null", {"a": np.ones(3), "b": np.ones(2)})


@pytest.mark.parametrize("save", [save_model, save_npz])
def test_only_mappings_from_names_can_be_saved(save: Any, tmp_path: Path) -> None:
    with pytest.raises(DTypeError, match=rf"{save.__name__}: .* a Linear: write model\.state_dict\(\)"):
        save(tmp_path / "x", nn.Linear(2, 2))
    with pytest.raises(DTypeError, match="strings, not 3"):
        save(tmp_path / "x", {3: bb.ones(1)})


def test_files_of_other_programs_are_read_by_load_weights(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"weight": np.ones((1, 2), np.float32), "bias": np.zeros(1, np.float32)}, tmp_path / "x")
    with pytest.raises(FileFormatError, match=r"bb\.io\.load_weights\(model, path\) loads them"):
        load_model(tmp_path / "x")
    layer = nn.Linear(2, 1)
    bb.io.load_weights(layer, tmp_path / "x")
    assert layer.weight.tolist() == [[1.0, 1.0]]


def test_damaged_npz_files_raise_only_format_errors(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    save_npz(path, {"w": bb.ones(2)})
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x5A]) + content[place + 1 :])
        with suppress(FileFormatError):
            assert load_npz(path).keys() <= {"w"}


#: A depth that JSON accepts and backburn does not; before Python 3.12, comprehensions and JSON's calls count too.
DEEP = 700 if sys.version_info < (3, 12) else 990


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"a": {"$array": ["x"]}}, r"the array \['x'\] is missing"),
        (json.loads("[" * DEEP + "]" * DEEP), "is nested too deeply"),
    ],
)
def test_forged_documents_are_refused(tmp_path: Path, document: Any, words: str) -> None:
    found = {"document": _digest(document, None), "tensors": {"x": "0" * 8}}
    path = written(tmp_path / "state", header(format="backburn state", document=document, crc32=found))
    with pytest.raises(FileFormatError, match=words):
        load_state(path, verify=False)
