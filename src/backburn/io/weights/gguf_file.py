"""Files in llama.cpp's format GGUF: metadata, a table of tensors, and their values, mostly in blocks of integers.

(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3.) Blocks, whose formats are in
:mod:`~backburn.io.weights.gguf_blocks`, are read as float32 or as a quantization scheme. The order of axes is reversed:
files list the columns first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from backburn.base.dtypes import QuantizedDType, as_dtype
from backburn.base.errors import FileFormatError
from backburn.base.foreign import quoted
from backburn.base.foreign_files import room
from backburn.io.quantized import Parts, check_values
from backburn.io.weights.gguf_blocks import BLOCKS, SCHEMES, dequantized
from backburn.io.weights.mapped import MappedFile
from backburn.io.weights.numbers import ITEMSIZE, decoded
from backburn.io.weights.stored import TENSOR, Stored, elements

MAGIC = b"GGUF"
#: Tensor types by number; those that are not read have only a name.
TYPES = {
    0: "float32", 1: "float16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K",
    11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "int8", 25: "int16", 26: "int32",
    27: "int64", 28: "float64", 29: "IQ1_M", 30: "bfloat16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip
#: Bytes of metadata types by number, and two types of variable length.
_VALUE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
#: NumPy's dtypes of the metadata types that are numbers or booleans.
_VALUE_TYPES = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
#: The longest string and list of numbers of the metadata that are kept; lists of tokens are longer.
_LONGEST_TEXT, _LONGEST_LIST = 1000, 1000
_ALIGNMENT = "general.alignment"
_LONGEST_NAME = 65_535


class _Cursor:
    """A position in the file that advances as values are read; none may be longer than the rest of the file."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.place = 4

    def number(self, length: int) -> int:
        """The next unsigned integer of ``length`` bytes."""
        return int.from_bytes(self.raw(length), "little")

    def raw(self, length: int) -> bytes:
        found = self.file.bytes(self.place, length, "the header")
        self.place += length
        return found

    def text(self) -> str:
        """The next string, which is a name."""
        length = self.number(8)
        if length > _LONGEST_NAME:
            raise FileFormatError(
                f"{self.file.where}: a name of {length} bytes in its header; {_LONGEST_NAME} are allowed"
            )
        try:
            return self.raw(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise FileFormatError(f"{self.file.where}: a name in its header is not text ({error})") from error

    def skip(self, length: int) -> None:
        """Skip bytes. Raises :class:`FileFormatError` if the file ends before."""
        if length > self.file.size - self.place:
            raise FileFormatError(f"{self.file.where}: the header ends beyond the end of the file")
        self.place += length

    def value(self, kind: int) -> Any:
        """A value of the metadata: a number, a string or a list of numbers; None for longer and other values."""
        start = self.place
        if kind in _VALUE_TYPES:
            return np.frombuffer(self.raw(_VALUE_BYTES[kind]), _VALUE_TYPES[kind])[0].item()
        if kind == _STRING and (length := self.number(8)) <= _LONGEST_TEXT:
            return self.raw(length).decode("utf-8", "replace")
        if kind == _ARRAY:
            inner, count = self.number(4), self.number(8)
            if inner in _VALUE_TYPES and count <= _LONGEST_LIST:
                return np.frombuffer(self.raw(count * _VALUE_BYTES[inner]), _VALUE_TYPES[inner]).tolist()
        self.place = start
        self.skip_value(kind)
        return None

    def skip_value(self, kind: int, depth: int = 0) -> None:
        """Skip a value of the metadata."""
        if kind in _VALUE_BYTES:
            self.skip(_VALUE_BYTES[kind])
        elif kind == _STRING:
            self.skip(self.number(8))
        elif kind == _ARRAY and depth < 8:
            inner, count = self.number(4), self.number(8)
            if inner in _VALUE_BYTES:
                self.skip(count * _VALUE_BYTES[inner])
            elif count > self.file.size - self.place:  # each takes a byte at least
                self.skip(count)
            else:
                for _ in range(count):
                    self.skip_value(inner, depth + 1)
        else:
            raise FileFormatError(f"{self.file.where}: its metadata hold a value of an unknown type, {kind}")


def read(file: MappedFile, metadata: dict[str, Any]) -> dict[str, Stored]:
    """The tensors of a file; ``metadata`` is filled with its values by key.

    Raises :class:`FileFormatError` for a header that does not describe the file.
    """
    cursor = _Cursor(file)
    version = cursor.number(4)
    if version not in (2, 3):
        order = " (or of a machine with another byte order)" * (version % 65536 == 0)
        raise FileFormatError(f"{file.where}: GGUF of version {version}{order}; versions 2 and 3 are read")
    tensor_count, value_count = cursor.number(8), cursor.number(8)
    if tensor_count * TENSOR > room(file.size):
        raise FileFormatError(f"{file.where}: its header names {tensor_count} tensors, and it has {file.size} bytes")
    alignment = _read_metadata(cursor, value_count, metadata)
    listed: list[tuple[str, tuple[int, ...], int, int]] = []
    names: set[str] = set()
    for _ in range(tensor_count):
        name, axes = cursor.text(), cursor.number(4)
        if name in names:
            raise FileFormatError(f"{file.where}: two tensors have the name {quoted(name)}")
        if axes > 8:
            raise FileFormatError(
                f"{file.where}: {quoted(name)} has {axes} axes, and tensors of this format have at most 4"
            )
        names.add(name)
        shape = tuple(cursor.number(8) for _ in range(axes))[::-1]
        listed.append((name, shape, cursor.number(4), cursor.number(8)))
    data = -(-cursor.place // alignment) * alignment
    tensors: dict[str, Stored] = {}
    places = []
    for name, shape, kind, offset in listed:
        length, tensors[name] = _stored(file, data + offset, name, shape, kind)
        places.append((offset, offset + length, name))
        if offset % alignment:
            raise FileFormatError(f"{file.where}: {quoted(name)} begins at {offset}, not a multiple of {alignment}")
    last = 0
    for start, end, name in sorted(places):
        if start < last:
            raise FileFormatError(f"{file.where}: {quoted(name)} overlaps another tensor")
        last = end
    return tensors


def _read_metadata(cursor: _Cursor, count: int, metadata: dict[str, Any]) -> int:
    """Fill ``metadata``; returns the alignment of tensors."""
    alignment = 32
    for _ in range(count):
        key, kind = cursor.text(), cursor.number(4)
        metadata[key] = cursor.value(kind)
        if key == _ALIGNMENT and kind == 4:
            alignment = metadata[key]
    if alignment < 8 or alignment % 8:
        raise FileFormatError(f"{cursor.file.where}: its alignment is {alignment}, not a multiple of 8")
    return alignment


def _stored(file: MappedFile, start: int, name: str, shape: tuple[int, ...], number: int) -> tuple[int, Stored]:
    """The number of bytes of a tensor, 0 if its type is not read, and the tensor."""
    count = elements(file.where, name, shape)
    dtype = TYPES.get(number, f"GGUF type {number}")
    if dtype in ITEMSIZE:
        length, kind = count * ITEMSIZE[dtype], "int" if dtype.startswith("int") else "float"
    elif dtype in BLOCKS:
        block = BLOCKS[dtype]
        if not shape or shape[-1] % block.size:
            raise FileFormatError(
                f"{file.where}: rows of {quoted(name)} do not divide into blocks of {block.size}: {list(shape)}"
            )
        length, kind = count // block.size * block.itemsize, "float"
    else:
        length, kind = 0, ""
    if start + length > file.size:
        raise FileFormatError(
            f"{file.where}: {quoted(name)} ends beyond the end of the file, which is truncated or damaged"
        )
    read = functools.partial(_values, file, start, length, name, dtype, shape)
    if dtype not in SCHEMES:
        return length, Stored(shape, dtype, read, file.where, kind=kind)
    parts = functools.partial(_parts, file, start, length, name, dtype, shape)
    scheme = SCHEMES[dtype][0]
    check = functools.partial(_check_parts, file.where, name, parts, scheme)
    return length, Stored(shape, dtype, read, file.where, kind=kind, scheme=scheme, parts=parts, check_parts=check)


def _values(file: MappedFile, start: int, length: int, name: str, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    raw: NDArray[np.uint8] = file.array(start, length, quoted(name))
    return (dequantized(raw, dtype) if dtype in BLOCKS else decoded(raw, dtype)).reshape(shape)


def _parts(file: MappedFile, start: int, length: int, name: str, dtype: str, shape: tuple[int, ...]) -> Parts:
    return SCHEMES[dtype][1](file.array(start, length, quoted(name)), shape)


def _check_parts(where: str, name: str, parts: Callable[[], Parts], scheme: str) -> None:
    """Raise :class:`FileFormatError` for values and steps that the scheme cannot have."""
    try:
        check_values(parts(), cast(QuantizedDType, as_dtype(scheme)))
    except FileFormatError as error:
        raise FileFormatError(f"{where}: {quoted(name)}: {error}: load it into a float layer") from error
