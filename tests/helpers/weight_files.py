"""Weight files for tests of the readers, written from the formats' specifications."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

Arrays = Mapping[str, np.ndarray]

SAFETENSORS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int8": "I8", "uint8": "U8",
    "bool": "BOOL",
}  # fmt: skip
STORAGES = {
    "float64": "DoubleStorage", "float32": "FloatStorage", "float16": "HalfStorage", "int64": "LongStorage",
    "uint8": "ByteStorage", "bool": "BoolStorage",
}  # fmt: skip
GGUF_TYPES = {"float32": 0, "float16": 1, "Q4_0": 2, "Q8_0": 8, "Q4_K": 12, "float64": 28}


# ---- safetensors ----


def safetensors_bytes(arrays: Arrays, metadata: dict[str, str] | None = None) -> bytes:
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    place = 0
    for name, x in arrays.items():
        entry = {"dtype": SAFETENSORS[x.dtype.name], "shape": x.shape, "data_offsets": [place, place + x.nbytes]}
        header[name] = entry
        place += x.nbytes
    return with_header(header, b"".join(x.tobytes() for x in arrays.values()))


def with_header(header: Any, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


# ---- PyTorch ----


class Global(NamedTuple):
    """A class or function that a pickle names."""

    module: str
    name: str


class Call(NamedTuple):
    """A call in a pickle."""

    function: Any
    arguments: Any


class Persistent(NamedTuple):
    """A reference to data outside of a pickle."""

    reference: Any


def pickled(value: Any) -> bytes:
    return b"\x80\x02" + opcodes(value) + b"."


def opcodes(value: Any) -> bytes:
    """The opcodes that build a value, of protocol 2."""
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, int):
        small = -(1 << 31) <= value < 1 << 31
        long = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        return b"J" + struct.pack("<i", value) if small else b"\x8a" + bytes([len(long)]) + long
    if isinstance(value, str):
        text = value.encode()
        return b"X" + struct.pack("<I", len(text)) + text
    if isinstance(value, Global):
        return f"c{value.module}\n{value.name}\n".encode()
    if isinstance(value, Call):
        return opcodes(value.function) + opcodes(value.arguments) + b"R"
    if isinstance(value, Persistent):
        return opcodes(value.reference) + b"Q"
    if isinstance(value, dict):
        return b"}(" + b"".join(opcodes(part) for item in value.items() for part in item) + b"u"
    inside = b"".join(map(opcodes, value))
    return b"](" + inside + b"e" if isinstance(value, list) else b"(" + inside + b"t"


def torch_tensor(key: str, x: np.ndarray, view: tuple[Any, ...] = (), **changed: Any) -> Call:
    """The pickled form of an array whose values are the storage ``key``; ``changed`` are false attributes."""
    storage = Persistent(
        ("storage", Global("torch", STORAGES[x.dtype.name]), key, "cpu", changed.get("numel", x.size), *view)
    )
    strides = changed.get("stride", tuple(step // x.itemsize for step in x.strides))
    none = Call(Global("collections", "OrderedDict"), ())
    arguments = (storage, changed.get("offset", 0), changed.get("size", x.shape), strides, False, none)
    return Call(Global("torch._utils", "_rebuild_tensor_v2"), arguments)


def torch_tree(arrays: Arrays, legacy: bool = False) -> dict[str, Call]:
    view = (None,) if legacy else ()
    return {name: torch_tensor(str(i), x, view) for i, (name, x) in enumerate(arrays.items())}


def torch_bytes(arrays: Arrays, tree: Any = None, compression: int = zipfile.ZIP_STORED) -> bytes:
    content = io.BytesIO()
    tree = torch_tree(arrays) if tree is None else tree
    with zipfile.ZipFile(content, "w", compression) as archive:
        archive.writestr("model/data.pkl", tree if isinstance(tree, bytes) else pickled(tree))
        archive.writestr("model/byteorder", b"little")
        for i, x in enumerate(arrays.values()):
            archive.writestr(f"model/data/{i}", x.tobytes())
        archive.writestr("model/version", b"3\n")
    return content.getvalue()


def legacy_torch_bytes(arrays: Arrays, tree: Any = None, keys: Any = None) -> bytes:
    machine = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    tree = torch_tree(arrays, legacy=True) if tree is None else tree
    parts = [pickled(0x1950A86A20F9469CFC6C), pickled(1001), pickled(machine)]
    parts += [tree if isinstance(tree, bytes) else pickled(tree)]
    parts += [pickled([str(i) for i in range(len(arrays))] if keys is None else keys)]
    parts += [struct.pack("<q", x.size) + x.tobytes() for x in arrays.values()]
    return b"".join(parts)


# ---- NumPy ----


def npy_bytes(x: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, x, allow_pickle=False)
    return content.getvalue()


def npz_bytes(members: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return content.getvalue()


# ---- GGUF ----


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


#: One metadata value of each type: a number, a string, lists of numbers, strings and lists.
VALUES = {
    "general.architecture": struct.pack("<I", 8) + text("llama"),
    "general.alignment": struct.pack("<II", 4, 64),
    "llama.rope.freq_base": struct.pack("<If", 6, 10000.0),
    "tokens": struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b"),
    "scores": struct.pack("<IIQff", 9, 6, 2, 0.5, 1.5),
    "nested": struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQB", 7, 1, 1),
}


class GGUFTensor(NamedTuple):
    """A tensor of a GGUF file: the code of its type, its shape in our order, and its bytes."""

    kind: int
    shape: tuple[int, ...]
    data: bytes


def gguf_bytes(tensors: Mapping[str, GGUFTensor], values: Mapping[str, bytes] = VALUES, alignment: int = 64) -> bytes:
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    header += b"".join(text(name) + value for name, value in values.items())
    place, data = 0, b""
    for name, tensor in tensors.items():
        axes = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape[::-1])
        header += text(name) + axes + struct.pack("<IQ", tensor.kind, place)
        data += tensor.data + b"\0" * (-len(tensor.data) % alignment)
        place = len(data)
    return header + b"\0" * (-len(header) % alignment) + data
