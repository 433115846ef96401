"""Hostile and damaged files: a backburn error with file, name and reason; nothing runs, nothing changes."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers import weight_files as files
from tests.helpers.weight_files import Call, GGUFTensor, Global, Persistent
from tools.fuzz_weights import FORMATS, fuzz

import backburn as bb
from backburn import nn
from backburn.base.errors import ArgumentError, BackburnError, FileFormatError, ShapeError
from backburn.io import load_weights
from backburn.io.weights import pickles

X = np.arange(6, dtype=np.float32).reshape(2, 3)
TENSOR = files.torch_tensor("0", X)


class Model(nn.Module):
    def __init__(self) -> None:
        self.x = nn.parameter(bb.zeros((2, 3)))


def refused(content: bytes, words: str, folder: Path, most: int = 8 << 20) -> str:
    """Assert that a file is refused by name, with the model unchanged and little memory used."""
    path = folder / "weights"
    path.write_bytes(content)
    model = Model()
    before = model.x
    tracemalloc.start()
    try:
        with pytest.raises(FileFormatError, match=words) as caught:
            load_weights(model, path, strict=False)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert str(caught.value).startswith(f"{path}: ") or str(path) in str(caught.value)
    assert model.x is before
    assert peak < most, f"{peak >> 20} MiB"
    return str(caught.value)


# ---- nothing is executed ----


class Attack:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("wrap", [files.torch_bytes, files.legacy_torch_bytes])
def test_pickles_execute_nothing(wrap: Callable[..., bytes], protocol: int, tmp_path: Path) -> None:
    evidence = tmp_path / "executed"
    refused(wrap({"0": X}, pickle.dumps({"x": Attack(evidence)}, protocol)), "pickle", tmp_path)
    assert not evidence.exists()


@pytest.mark.parametrize(
    "name",
    [
        "os system", "builtins eval", "builtins getattr", "torch load", "torch.storage _load_from_bytes",
        "torch._utils _rebuild_tensor_v2.__globals__", "torch hub", "numpy.core.multiarray scalar", "collections deque",
    ],
)  # fmt: skip
def test_calls_of_other_functions_are_refused(name: str, tmp_path: Path) -> None:
    words = re.escape(f"its pickle names {name.replace(' ', '.')!r}, which is not part of a dict of tensors")
    refused(files.torch_bytes({"0": X}, {"x": Call(Global(*name.split()), ("true",))}), words, tmp_path)
    module, attribute = (files.opcodes(part) for part in name.split())
    refused(files.torch_bytes({"0": X}, b"\x80\x04" + module + attribute + b"\x93)R."), words, tmp_path)


@pytest.mark.parametrize(
    "code",
    [b"(i__builtin__\neval\n", b"(c__builtin__\neval\no", b")\x81", b"\x82\x01", b"P1\n", b"I1\n", b"V1\n", b"2"],
)
def test_other_opcodes_are_refused(code: bytes, tmp_path: Path) -> None:
    refused(files.torch_bytes({"0": X}, b"\x80\x02N" + code + b"."), "pickle", tmp_path)


@pytest.mark.parametrize(
    "value",
    [
        Call(3, ()),
        Call("os", ("x",)),
        Call(Global("torch", "FloatStorage"), ()),
        Call(Call(Global("collections", "OrderedDict"), ()), ()),
        Call(Global("torch._utils", "_rebuild_tensor_v2"), [1]),
        Call(Global("torch._utils", "_rebuild_tensor_v2"), ()),
        Call(Global("torch._utils", "_rebuild_tensor_v2"), (None, 0, (1,), (1,), False, None)),
        Call(Global("torch._utils", "_rebuild_tensor_v2"), (*TENSOR.arguments, {"conj": True})),
        Call(Global("torch._utils", "_rebuild_tensor_v3"), (*TENSOR.arguments, Global("torch", "float32"))),
        Call(Global("torch._utils", "_rebuild_tensor_v3"), (*TENSOR.arguments, None)),
        Call(Global("collections", "OrderedDict"), ([[1]],)),
        Call(Global("collections", "OrderedDict"), (3,)),
        Persistent("x"),
        Persistent(("storage", "FloatStorage", "0", "cpu", 6)),
        Persistent(("storage", Global("torch", "FloatStorage"), 0, "cpu", 6)),
        Persistent(("storage", Global("torch", "FloatStorage"), "0", "cpu", -6)),
        Persistent(("storage", Global("torch", "Size"), "0", "cpu", 6)),
        Persistent(("module", Global("torch", "FloatStorage"), "0", "cpu", 6)),
    ],
)
def test_invalid_calls_and_references_are_refused(value: Any, tmp_path: Path) -> None:
    for wrap in (files.torch_bytes, files.legacy_torch_bytes):
        refused(wrap({"0": X}, {"x": value}), "weights: ", tmp_path)


# ---- bombs ----


def doubled(start: bytes, item: bytes, depth: int) -> bytes:
    """Opcodes that repeatedly put two references to a value into a new one."""
    code = b"\x80\x02" + start
    for _ in range(depth):
        code += b"q\x01" + item
    return code + b"."


def test_bombs_are_refused_before_expanding(tmp_path: Path) -> None:
    digits = struct.pack("<I", 1 << 16) + b"\x7f" * (1 << 16)
    bombs = {
        "a list that holds itself": (b"\x80\x02]q\x00h\x00a.", "too deep"),
        "a dict that holds itself": (b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.", "too deep"),
        "lists twice in lists": (doubled(b"]", b"0](h\x01h\x01e", 60), "too many"),
        "lists a thousand deep": (b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b".", "too deep"),
        "a memo of 32 GiB": (b"\x80\x02Nr\xff\xff\xff\xff.", "damaged pickle"),
        "a text of 2**63 bytes": (b"\x80\x04\x8d" + struct.pack("<Q", 2**63 - 1) + b"a.", "damaged pickle"),
        "a text of 2**32 bytes": (b"\x80\x02X\xff\xff\xff\xff.", "damaged pickle"),
        "an integer of 2**31 bytes": (b"\x80\x02\x8b\xff\xff\xff\x7f.", "damaged pickle"),
        "an integer of 2**16 bytes": (b"\x80\x02\x8b" + digits + b".", "LONG4"),
        "a line without an end": (b"\x80\x02c" + b"a" * 100_000, "damaged pickle"),
        "no end": (b"\x80\x02N", "damaged pickle"),
        "nothing left": (b"\x80\x02.", "damaged pickle"),
        "a mark for a value": (b"\x80\x02(.", "damaged pickle"),
        "no mark": (b"\x80\x02Nt.", "damaged pickle"),
        "a name of a million letters": (b"\x80\x02}" + files.opcodes("a" * 1_000_000) + b"Ns.", "too long names"),
    }  # fmt: skip
    for code, words in bombs.values():
        for wrap in (files.torch_bytes, files.legacy_torch_bytes):
            options: dict[str, Any] = {"keys": []} if wrap is files.legacy_torch_bytes else {}
            content = wrap({"0": X}, code, **options)
            refused(content, words, tmp_path, most=16 << 20)


@pytest.mark.parametrize(
    "code",
    [  # nested pairs of tuples, and many numbers with one hash
        b"\x80\x02}" + doubled(b")", b"0h\x01h\x01\x86", 60)[2:-1] + b"Ns.",
        b"\x80\x02}(" + b"".join(files.opcodes(i * ((1 << 61) - 1)) + b"N" for i in range(20_000)) + b"u.",
    ],
)
def test_keys_with_slow_or_colliding_hashes_are_not_hashed(code: bytes, tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(files.torch_bytes({"0": X}, code))
    with pytest.raises(ArgumentError, match="missing: x"):
        load_weights(Model(), tmp_path / "weights")


def test_opcodes_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "MOST_OPCODES", 100)
    (tmp_path / "x").write_bytes(files.torch_bytes({"0": X}, {"x": TENSOR}))
    load_weights(Model(), tmp_path / "x")
    refused(files.torch_bytes({"0": X}, b"\x80\x02" + b"N0" * 60 + b"N."), "more than 100 opcodes", tmp_path)


def test_huge_tensors_over_small_storages_are_not_allocated(tmp_path: Path) -> None:
    """Views that repeat elements can have any size; shapes are compared before reading."""
    tree = {"x": files.torch_tensor("0", X, size=(1 << 40, 1 << 20), stride=(0, 0))}
    for wrap in (files.torch_bytes, files.legacy_torch_bytes):
        (tmp_path / "x").write_bytes(wrap({"0": X}, tree))
        with pytest.raises(ShapeError, match=r"x has shape \[1099511627776, 1048576\] there"):
            load_weights(Model(), tmp_path / "x")


def test_oversized_arrays_are_not_expanded(tmp_path: Path) -> None:
    """A kilobyte that claims to be a terabyte, and highly compressed zeros."""
    header = files.npy_bytes(np.zeros((1, 1), np.uint8))[:-1].replace(b"(1, 1)", b"(9, 9)")
    member = header.replace(b"(9, 9), }" + b" " * 12, b"(1048576, 1048576), }") + bytes(4096)
    content = bytearray(files.npz_bytes({"x.npy": member}, zipfile.ZIP_DEFLATED))
    refused(bytes(content), "does not take", tmp_path)
    size = len(member)
    lie = bytes(content).replace(struct.pack("<I", size), struct.pack("<I", (1 << 32) - 2))
    refused(lie, "cannot have 4294967294 bytes", tmp_path)
    lie = bytes(content).replace(struct.pack("<I", size), struct.pack("<I", size - 1))
    refused(lie, "does not expand to|does not take", tmp_path)
    zeros = files.npz_bytes({"x.npy": files.npy_bytes(np.zeros((64, 1 << 20), np.uint8))}, zipfile.ZIP_DEFLATED)
    (tmp_path / "zeros").write_bytes(zeros)
    assert len(zeros) < 1 << 17
    tracemalloc.start()
    with pytest.raises(ShapeError, match=r"x has shape \[64, 1048576\] there"):
        load_weights(Model(), tmp_path / "zeros")
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


@pytest.mark.skipif(os.name != "posix", reason="needs sparse files")
def test_huge_declared_lengths_are_not_read(tmp_path: Path) -> None:
    """Lengths within the file that no name or directory needs."""
    path, size = tmp_path / "large", 1 << 30
    text = b"\x80\x04\x8d" + struct.pack("<Q", size >> 1)
    directory = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, size >> 1, size >> 2, 0)
    cases = [
        (files.pickled(0x1950A86A20F9469CFC6C) + text, b"", "a text of 536870912 bytes"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, size >> 1), b"", "a name of 536870912 bytes"),
        (b"PK\3\4", directory, "its directory is said to have 536870912 bytes"),
        (struct.pack("<Q", size >> 1) + b"{", b"", "a header of 536870912 bytes"),
    ]
    for start, end, words in cases:
        with open(path, "wb") as file:
            file.write(start)
            file.truncate(size)
            file.seek(0, 2)
            file.write(end)
        tracemalloc.start()
        with pytest.raises(FileFormatError, match=words):
            load_weights(Model(), path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 20


# ---- PyTorch's files ----


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"size": (2, 4)}, "has elements up to 6 of a storage of 6"),
        ({"offset": 1}, "has elements up to 6 of a storage of 6"),
        ({"offset": -1}, "without a beginning"),
        ({"offset": 1 << 62}, "has elements up to"),
        ({"stride": (3, 2)}, "has elements up to 7 of a storage of 6"),
        ({"stride": (-3, 1)}, "is not a list of lengths"),
        ({"stride": (1,)}, "without as many strides as axes"),
        ({"size": (-2, -3)}, "is not a list of lengths"),
        ({"size": (2, "3")}, "is not a list of lengths"),
        ({"size": (True, 3)}, "is not a list of lengths"),
        ({"size": 6}, "is not a list of lengths"),
        ({"size": (1,) * 33, "stride": (1,) * 33}, "33 axes"),
        ({"size": (0,), "stride": (1,), "offset": 7}, "has elements up to 6 of a storage of 6"),
    ],
)
def test_tensors_outside_their_storage_are_refused(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    tree = {"x": files.torch_tensor("0", X, **changed)}
    refused(files.torch_bytes({"0": X}, tree), words, tmp_path)
    refused(files.legacy_torch_bytes({"0": X}, tree), words, tmp_path)


def test_storages_of_other_sizes_are_refused(tmp_path: Path) -> None:
    longer = {"x": files.torch_tensor("0", X, numel=1 << 40, size=(1,), stride=(1,))}
    refused(files.torch_bytes({"0": X}, longer), "has 24 bytes, and not 1099511627776 of float32", tmp_path)
    refused(files.legacy_torch_bytes({"0": X}, longer), "has two lengths", tmp_path)
    refused(
        files.torch_bytes({"0": X}, {"x": files.torch_tensor("1", X)}), "the data '1' of a tensor are missing", tmp_path
    )
    refused(files.torch_bytes({"0": X}, {"x": files.torch_tensor("../data.pkl", X)}), "are missing", tmp_path)
    for keys in ([], ["1"], ["0", "0"], 3, [0], ["0", "1"]):
        content = files.legacy_torch_bytes({"0": X}, {"x": TENSOR}, keys=keys)
        refused(content, "the list of storages and the tensors disagree", tmp_path)
    two = {"x": TENSOR, "y": files.torch_tensor("0", X, numel=7)}
    refused(files.legacy_torch_bytes({"0": X}, two), "two storages have the name '0'", tmp_path)
    for view in (("v", 0, 7), ("v", -1, 2), ("v", 7, 0), ("v", 1), 3):
        tensor = files.torch_tensor("0", X, view=(view,), size=(1,), stride=(1,))
        refused(files.legacy_torch_bytes({"0": X}, {"x": tensor}), "a view of the storage '0'", tmp_path)
    colliding = {"a": {"b": TENSOR}, "a.b": TENSOR}
    refused(files.torch_bytes({"0": X}, colliding), "two tensors have the name 'a.b'", tmp_path)


def test_legacy_files_of_other_versions_are_refused(tmp_path: Path) -> None:
    content = files.legacy_torch_bytes({"0": X})
    refused(content.replace(files.pickled(1001), files.pickled(1002)), "of another version than 1001", tmp_path)


# ---- archives ----


def archive(*members: tuple[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as made:
        for name, data in members:
            made.writestr(name, data)
    return content.getvalue()


def test_compressed_members_are_refused_in_files_of_pytorch(tmp_path: Path) -> None:
    content = files.torch_bytes({"0": X}, compression=zipfile.ZIP_DEFLATED)
    refused(content, "is compressed, which PyTorch's files are not", tmp_path)
    refused(files.npz_bytes({"x.npy": files.npy_bytes(X)}, zipfile.ZIP_BZIP2), "method that is not read, 12", tmp_path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archives_that_lie_are_refused(tmp_path: Path) -> None:
    npy = files.npy_bytes(X)
    good = archive(("x.npy", npy), ("y.npy", npy))
    central = good.index(b"PK\1\2")
    second = good.index(b"PK\3\4", 4)

    def at(place: int, replacement: bytes, content: bytes = good) -> bytes:
        return content[:place] + replacement + content[place + len(replacement) :]

    refused(archive(("x.npy", npy), ("x.npy", npy)), "two members have the name 'x.npy'", tmp_path)
    refused(archive(("x.txt", npy)), "'x.txt' in it is not an array", tmp_path)
    refused(archive(("x.npy", b"")), "'x.npy' in it is not an array", tmp_path)
    refused(at(central + 8, b"\1"), "'x.npy' is encrypted", tmp_path)
    refused(at(30, b"z"), "the two headers of 'x.npy' disagree", tmp_path)
    refused(at(0, b"PK\3\5"), "the two headers of 'x.npy' disagree", tmp_path)
    refused(at(central + 42, struct.pack("<I", second)), "disagree|overlaps", tmp_path)
    refused(at(28, struct.pack("<H", 500)), "overlaps what follows it", tmp_path)
    size = len(npy)
    longer = at(central + 20, struct.pack("<II", size + 40, size + 40))
    refused(longer, "'x.npy' overlaps what follows it", tmp_path)
    refused(at(central + 20, struct.pack("<I", size - 1)), r"cannot have \d+ bytes", tmp_path)
    refused(at(30 + 5 + size - 1, b"!"), "'x.npy' is damaged: its checksum", tmp_path)
    refused(b"PK\3\4" + b"nothing", "a damaged archive", tmp_path)
    deflated = files.npz_bytes({"x.npy": files.npy_bytes(np.zeros((2, 3), np.float32))}, zipfile.ZIP_DEFLATED)
    refused(at(60, b"\xff\xff\xff", deflated), "'x.npy'", tmp_path)


def test_checksums_of_tensors_are_compared(tmp_path: Path) -> None:
    for content in (files.torch_bytes({"x": X}), files.npz_bytes({"x.npy": files.npy_bytes(X)})):
        place = content.index(X.tobytes())
        refused(content[:place] + b"\7" + content[place + 1 :], "damaged: its checksum", tmp_path)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '|O', 'fortran_order': False, 'shape': (2, 3), }",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2, 3), }",
        "{'descr': '<f4', 'fortran_order': 3, 'shape': (2, 3), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, -3), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3" + "0" * 600 + "), }",
        "{'descr': '|a4', 'fortran_order': False, 'shape': (6,), }",
        "{'descr': '<q9', 'fortran_order': False, 'shape': (2, 3), }",
        "{'descr': '<f4'}",
        "(" * 5000,
        "-" * 5000,
        "",
    ],
)
def test_headers_of_arrays_that_lie_are_refused(header: str, tmp_path: Path) -> None:
    for version, form in ((1, "<H"), (2, "<I")):
        text = header.encode() + b"\n"
        member = b"\x93NUMPY" + bytes([version, 0]) + struct.pack(form, len(text)) + text + X.tobytes()
        (tmp_path / "x").write_bytes(archive(("x.npy", member)))
        with pytest.raises(BackburnError, match="x"):
            load_weights(Model(), tmp_path / "x")
    for start in (b"\x93NUMPY\3\0", b"\x93NUMPY\1\0\xff\xff", b"\x93NUMPX\1\0", b"\x93NUMPY\2\0\xff\xff\xff\xff"):
        refused(archive(("x.npy", start + member[8:])), "'x.npy'", tmp_path)


# ---- safetensors ----

ENTRY = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def entry(**changed: Any) -> dict[str, Any]:
    return {"x": {key: value for key, value in {**ENTRY, **changed}.items() if value is not None}}


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        (b"{", X.tobytes(), "not JSON"),
        (b"{" * 50_000, X.tobytes(), "not JSON"),
        (b'{"x":' + b"[" * 50_000, X.tobytes(), "not JSON"),
        (b'{"x": {}, "x": {}}', b"", "has 'x' twice"),
        (b'{"\xff": {}}', b"", "not JSON"),
        ({"__metadata__": 3, **entry()}, X.tobytes(), "its metadata is not a table of strings"),
        ({"__metadata__": {"a": 3}, **entry()}, X.tobytes(), "its metadata is not a table of strings"),
        ({"__metadata__": {"backburn": "{"}, **entry()}, X.tobytes(), "the metadata under 'backburn' are not JSON"),
        ({"__metadata__": {"backburn": "3"}, **entry()}, X.tobytes(), "a file of backburn \\(None, version None\\)"),
        (entry(dtype=None), X.tobytes(), "'x' lacks its dtype"),
        (entry(dtype=3), X.tobytes(), "the dtype of 'x' is not a name"),
        ({"x": 3}, b"", "'x' lacks its dtype"),
        (entry(shape=None), X.tobytes(), "'x' lacks its dtype, shape"),
        (entry(shape=3), X.tobytes(), "the shape of 'x' is not a list"),
        (entry(shape=[-2, -3]), X.tobytes(), "the shape of 'x' is not a list"),
        (entry(shape=[True, 6]), X.tobytes(), "the shape of 'x' is not a list"),
        (entry(shape=[6.0]), X.tobytes(), "the shape of 'x' is not a list"),
        (entry(shape=[1] * 33), X.tobytes(), "33 axes"),
        (entry(shape=[2, 4]), X.tobytes(), r"'x', F32\[2, 4\], does not take 24 bytes"),
        (entry(shape=[2**32, 2**32]), X.tobytes(), "does not take 24 bytes"),
        (entry(data_offsets=[0]), X.tobytes(), "are not a start and an end"),
        (entry(data_offsets=[0.0, 24.0]), X.tobytes(), "are not a start and an end"),
        (entry(data_offsets=[24, 0]), X.tobytes(), "is said to be in the bytes 24 to 0"),
        (entry(data_offsets=[-24, 0]), X.tobytes(), "is said to be in the bytes -24 to 0"),
        (entry(), X.tobytes()[:-1], "is said to be in the bytes 0 to 24, and the file, which may be truncated, has 23"),
        (entry(data_offsets=[1, 25]), X.tobytes() + b"!", "'x' follows a gap of 1 bytes"),
        (entry(), X.tobytes() + b"!", "1 bytes after the last tensor belong to none"),
        ({**entry(), "y": ENTRY}, X.tobytes(), "'y' overlaps another tensor"),
        ({**entry(), "y": {**ENTRY, "data_offsets": [23, 47]}}, X.tobytes() * 2, "'y' overlaps another tensor"),
    ],
)
def test_headers_of_safetensors_that_lie_are_refused(header: Any, data: bytes, words: str, tmp_path: Path) -> None:
    refused(files.with_header(header, data), words, tmp_path, most=32 << 20)


def test_lengths_of_headers_that_lie_are_refused(tmp_path: Path) -> None:
    refused(struct.pack("<Q", 1 << 62) + b"{}", "a header of 4611686018427387904 bytes", tmp_path)
    refused(struct.pack("<Q", 99_999_999) + b"{}", "the header ends beyond the end of the file", tmp_path)


# ---- GGUF ----


def gguf(**changed: Any) -> bytes:
    return files.gguf_bytes({"x": GGUFTensor(**{"kind": 0, "shape": (2, 3), "data": X.tobytes(), **changed})})


def test_files_of_gguf_that_lie_are_refused(tmp_path: Path) -> None:
    good = gguf()
    (tmp_path / "x").write_bytes(good)
    model = Model()
    load_weights(model, tmp_path / "x")
    assert np.array_equal(model.x.numpy(), X)
    kind = good.index(b"general.alignment") + 17
    axes = struct.pack("<IQQ", 2, 3, 2)

    def at(place: int, number: bytes) -> bytes:
        return good[:place] + number + good[place + len(number) :]

    def value(code: bytes) -> bytes:
        return files.gguf_bytes({}, {"key": code})

    nested = struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 20
    for content, words in (
        (at(4, struct.pack("<I", 1)), "GGUF of version 1;"),
        (at(4, struct.pack(">I", 3)), "of a machine with another byte order"),
        (at(8, struct.pack("<Q", 1 << 62)), "header|no list"),
        (at(16, struct.pack("<Q", 1 << 62)), "header"),
        (at(24, struct.pack("<Q", 1 << 62)), "a name of 4611686018427387904 bytes in its header"),
        (at(24, struct.pack("<Q", 60_000)), "the header ends beyond the end of the file"),
        (at(kind + 4, struct.pack("<I", 12)), "its alignment is 12, not a multiple of 8"),
        (at(kind + 4, struct.pack("<I", 0)), "its alignment is 0, not a multiple of 8"),
        (value(struct.pack("<I", 13)), "a value of an unknown type, 13"),
        (value(struct.pack("<IIQ", 9, 8, 1 << 63)), "the header ends beyond the end of the file"),
        (value(struct.pack("<IIQ", 9, 12, 1 << 61)), "the header ends beyond the end of the file"),
        (value(nested), "a value of an unknown type, 9"),
        (good.replace(axes, struct.pack("<IQQ", 2**32 - 1, 3, 2)), "'x' has 4294967295 axes"),
        (good.replace(axes, struct.pack("<IQQ", 2, 3, 1 << 63)), "the shape of 'x' is not a list"),
        (good.replace(axes, struct.pack("<IQQ", 2, 3, 1 << 40)), "'x' ends beyond the end of the file"),
        (good[:-64], "'x' ends beyond the end of the file"),
        (
            good.replace(axes + bytes(12), axes + struct.pack("<IQ", 0, 1)) + bytes(64),
            "'x' begins at 1, not a multiple",
        ),
        (gguf(kind=2), "rows of 'x' do not divide into blocks of 32"),
        (good.replace(files.text("x"), struct.pack("<Q", 1) + b"\xff"), "a name in its header is not text"),
    ):
        assert content != good
        refused(content, words, tmp_path)


def test_tensors_of_gguf_that_overlap_or_repeat_are_refused(tmp_path: Path) -> None:
    two = {name: GGUFTensor(0, (2, 16), bytes(128)) for name in ("x", "y")}
    good = files.gguf_bytes(two)
    place = good.index(files.text("y")) + 9 + 4 + 16 + 4
    refused(good[:place] + struct.pack("<Q", 64) + good[place + 8 :], "'y' overlaps another tensor", tmp_path)
    refused(good.replace(files.text("y"), files.text("x")), "two tensors have the name 'x'", tmp_path)


def test_unknown_blocks_of_gguf_are_an_error_only_if_used(tmp_path: Path) -> None:
    tensors = {
        "x": GGUFTensor(0, (2, 3), X.tobytes()),
        "y": GGUFTensor(16, (2, 256), bytes(132)),
        "z": GGUFTensor(99, (1,), b""),
    }
    (tmp_path / "x").write_bytes(files.gguf_bytes(tensors))
    assert load_weights(Model(), tmp_path / "x", strict=False).unused == ("y", "z")

    class Other(nn.Module):
        def __init__(self) -> None:
            self.y = bb.zeros((2, 256))

    with pytest.raises(BackburnError, match="y is IQ2_XXS there and float32 here, and this dtype is not read"):
        load_weights(Other(), tmp_path / "x", strict=False)


# ---- folders ----


@pytest.mark.parametrize(
    "place",
    ["../outside", "/etc/passwd", "sub/model.safetensors", "..", ".", "", "C:outside", "a\\b", "a\0b", "../sub/../a",
     "é" * 128],
)  # fmt: skip
def test_an_index_that_leaves_the_folder_is_refused(place: str, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(files.safetensors_bytes({"x": X}))
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "model.safetensors").write_bytes(files.safetensors_bytes({"x": X}))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": place}}))
    with pytest.raises(FileFormatError, match=r"index\.json: names the file .*files of weights are in its folder"):
        load_weights(Model(), folder)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), "not JSON"),
        ("[]", "no weight_map"),
        ("{}", "no weight_map"),
        ('{"weight_map": {}}', "no weight_map"),
        ('{"weight_map": {"x": 3}}', "no weight_map"),
        ('{"weight_map": {"x": "other"}}', "names the file other, which is not there"),
        ('{"weight_map": {"x": "a", "y": "a"}}', "'y' is said to be in a, and is not"),
        ('{"weight_map": {"x": "a", "z": "b"}}', "'x' is in two files, .*a and .*b"),
    ],
)
def test_an_index_that_lies_is_refused(index: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(files.safetensors_bytes({"x": X}))
    (tmp_path / "b").write_bytes(files.safetensors_bytes({"x": X, "z": X}))
    (tmp_path / "model.safetensors.index.json").write_text(index, encoding="latin-1")
    model = Model()
    before = model.x
    with pytest.raises(FileFormatError, match=f"model.safetensors.index.json: .*{words}"):
        load_weights(model, tmp_path)
    assert model.x is before


def test_folders_without_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"no file of weights, such as model\.safetensors"):
        load_weights(Model(), tmp_path)
    for name in ("a.safetensors", "b.gguf"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(FileFormatError, match=r"2 files of weights and no index: name one of a\.safetensors, b\.gguf"):
        load_weights(Model(), tmp_path)


# ---- whatever else ----


@pytest.mark.parametrize(
    "content",
    [b"", b"x", b"no weights at all", bytes(100), b"\xff" * 100, pickle.dumps({"x": 1}), b"GGUF", b"PK", b"12345678{"],
)
def test_foreign_files_are_refused(content: bytes, tmp_path: Path) -> None:
    refused(content, "weights: ", tmp_path)


def test_devices_and_pipes_are_refused(tmp_path: Path) -> None:
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(FileFormatError, match="pipe: not an ordinary file"):
            load_weights(Model(), tmp_path / "pipe")
    if Path("/dev/zero").exists():
        with pytest.raises(FileFormatError, match="/dev/zero: not an ordinary file"):
            load_weights(Model(), "/dev/zero")


WHOLE = {
    "safetensors": files.safetensors_bytes({"x": X}, {"format": "pt"}),
    "torch": files.torch_bytes({"x": X}),
    "legacy torch": files.legacy_torch_bytes({"x": X}),
    "npz": files.npz_bytes({"x.npy": files.npy_bytes(X)}),
    "gguf": gguf(),
}


@pytest.mark.parametrize("name", WHOLE)
def test_every_truncated_file_is_refused(name: str, tmp_path: Path) -> None:
    content = WHOLE[name]
    path = tmp_path / "weights"
    path.write_bytes(content)
    load_weights(Model(), path)
    end = len(content) - 40 if name == "gguf" else len(content)  # padding follows the tensor
    for length in range(end):
        path.write_bytes(content[:length])
        with pytest.raises(FileFormatError, match="weights: "):
            load_weights(Model(), path)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_randomly_changed_files_are_loaded_or_refused(name: str, tmp_path: Path) -> None:
    outcomes = fuzz(name, 2000, tmp_path)
    assert outcomes.total() == 2000
    assert outcomes["read"] > 10
    assert outcomes["FileFormatError"] > 1000
