"""Files in the safetensors format: the length of a header, the header in JSON, and the bytes of the tensors.

(https://huggingface.co/docs/safetensors.) Unlike with the package ``safetensors``, dtypes that NumPy lacks are read
too, and values are not copied.
"""

from __future__ import annotations

import functools
import zlib
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from backburn.base.errors import FileFormatError
from backburn.base.foreign import quoted
from backburn.base.foreign_files import parsed, repeated
from backburn.io.parts import PART
from backburn.io.versions import FORMAT_VERSION, KEY, MODEL, WEIGHTS
from backburn.io.weights.mapped import MappedFile
from backburn.io.weights.numbers import ITEMSIZE, decoded
from backburn.io.weights.packed import joined
from backburn.io.weights.stored import Stored, elements, kind_of, nothing

#: The format's names of dtypes.
DTYPE_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ", "complex64": "C64",
}  # fmt: skip
_DTYPES = {theirs: ours for ours, theirs in DTYPE_NAMES.items()}
#: The longest header that the format allows, in bytes.
LONGEST_HEADER = 100_000_000
METADATA = "__metadata__"
#: The most characters of the name of a dtype, also of one that is not read.
_LONGEST_DTYPE = 50


def looks_like(start: bytes) -> bool:
    """Whether a file with this start may be of this format."""
    return start[8:9] == b"{"


@dataclass(frozen=True)
class Entry:
    """A tensor as the header describes it: ``length`` bytes at ``start`` of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    length: int

    def array(self, file: MappedFile) -> NDArray[Any]:
        """The values, a view of the mapped file if NumPy has the dtype."""
        return decoded(file.array(self.start, self.length, quoted(self.name)), self.dtype).reshape(self.shape)

    def digest(self, file: MappedFile) -> str:
        """The checksum of name, dtype, shape and bytes."""
        found = Checksum(self.name, self.dtype, self.shape)
        for start in range(self.start, self.start + self.length, PART):
            length = min(PART, self.start + self.length - start)
            found.update(file.view(start, length, quoted(self.name)))
            file.give_back(start, length)
        return found.text()


class Checksum:
    """The CRC-32 of a tensor in backburn's files: of its name, dtype and shape, continued with its bytes."""

    def __init__(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        self._value = zlib.crc32(f"{name}\0{dtype}\0{shape}\0".encode())

    def update(self, part: Any) -> None:
        """Continue with bytes."""
        self._value = zlib.crc32(part, self._value)

    def text(self) -> str:
        """The checksum in eight digits."""
        return f"{self._value:08x}"


def read(file: MappedFile) -> dict[str, Stored]:
    """The tensors of a file. Raises :class:`FileFormatError` for a header that does not describe it."""
    entries, metadata = entries_of(file)
    own = _own_metadata(file, metadata)
    digests = own["crc32"]["tensors"] if own else {}
    tensors = {
        name: Stored(
            entry.shape,
            entry.dtype,
            functools.partial(entry.array, file),
            file.where,
            functools.partial(check_digest, file, entry, digests[name]) if name in digests else nothing,
            kind=kind_of(entry.dtype),
        )
        for name, entry in entries.items()
    }
    return joined(file.where, tensors, own.get("quantized", {}))


def check_digest(file: MappedFile, entry: Entry, expected: object) -> None:
    """Raise :class:`FileFormatError` for a tensor with another digest."""
    if entry.digest(file) != expected:
        raise FileFormatError(f"{file.where}: {quoted(entry.name)} is damaged: its checksum (CRC-32) does not match")


def entries_of(file: MappedFile) -> tuple[dict[str, Entry], dict[str, str]]:
    """The tensors that a header describes, and its metadata, after every check of the header."""
    length = int.from_bytes(file.bytes(0, 8, "the length of the header"), "little")
    if length > LONGEST_HEADER:
        raise FileFormatError(f"{file.where}: a header of {length} bytes; the format allows {LONGEST_HEADER}")
    header = _header(file, file.bytes(8, length, "the header"))
    metadata = header.pop(METADATA, None)
    metadata = {} if metadata is None else metadata  # MLX writes null for no metadata
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise FileFormatError(f"{file.where}: its metadata is not a table of strings")
    data = 8 + length
    entries = {name: _entry(file, data, name, about) for name, about in header.items()}
    places = [(x.start - data, x.start - data + x.length, x.name) for x in entries.values()]
    _check_places(file, sorted(places), file.size - data)
    return entries, metadata


def _header(file: MappedFile, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise FileFormatError(f"{file.where}: its header has {quoted(repeated(x for x, _ in pairs))} twice")
        return found

    header = parsed(text, f"{file.where}: its header is", pairs=unique)
    if not isinstance(header, dict):
        raise FileFormatError(f"{file.where}: its header is not a table of tensors")
    return header


def _own_metadata(file: MappedFile, metadata: dict[str, str]) -> dict[str, Any]:
    """The table in the metadata of backburn's files; empty for others. Raises for files that other functions read."""
    if KEY not in metadata:
        return {}
    about = parsed(metadata[KEY].encode(), f"{file.where}: the metadata under {KEY!r} are")
    own = about if isinstance(about, dict) else {}
    checksums = own.setdefault("crc32", {})
    is_known = own.get("format") in (MODEL, WEIGHTS) and own.get("version") == FORMAT_VERSION
    if not (
        is_known
        and isinstance(checksums, dict)
        and isinstance(checksums.setdefault("tensors", {}), dict)
        and isinstance(own.setdefault("quantized", {}), dict)
    ):
        raise FileFormatError(
            f"{file.where}: a file of backburn ({own.get('format')!s:.50}, version {own.get('version')!s:.20}) of a "
            "whole run, or of another release: load_model and load_state read it, or say why not"
        )
    return own


def _entry(file: MappedFile, data: int, name: str, about: Any) -> Entry:
    """The tensor that an entry of the header describes, whose data begin at ``data``."""
    if not isinstance(about, dict) or not {"dtype", "shape", "data_offsets"} <= about.keys():
        raise FileFormatError(f"{file.where}: the entry of {quoted(name)} lacks its dtype, shape or data_offsets")
    theirs, offsets = about["dtype"], about["data_offsets"]
    if not isinstance(theirs, str) or len(theirs) > _LONGEST_DTYPE:
        raise FileFormatError(f"{file.where}: the dtype of {quoted(name)} is not a name")
    count = elements(file.where, name, about["shape"])
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(n) is int for n in offsets):
        raise FileFormatError(f"{file.where}: the data_offsets of {quoted(name)} are not a start and an end")
    start, end = offsets
    if not 0 <= start <= end <= file.size - data:
        raise FileFormatError(
            f"{file.where}: {quoted(name)} is said to be in the bytes {start} to {end}, and the file, which may be "
            f"truncated, has {file.size - data}"
        )
    dtype = _DTYPES.get(theirs, theirs)
    if dtype in ITEMSIZE and count * ITEMSIZE[dtype] != end - start:
        raise FileFormatError(
            f"{file.where}: {quoted(name)}, {theirs}{list(about['shape'])}, does not take {end - start} bytes"
        )
    return Entry(name, dtype, tuple(about["shape"]), data + start, end - start)


def _check_places(file: MappedFile, places: list[tuple[int, int, str]], length: int) -> None:
    """Check that tensors follow one another without gaps up to the end of the file, as the format demands."""
    last = 0
    for start, end, name in places:
        if start != last:
            fault = "overlaps another tensor" if start < last else f"follows a gap of {start - last} bytes"
            raise FileFormatError(f"{file.where}: {quoted(name)} {fault}")
        last = end
    if last != length:
        raise FileFormatError(f"{file.where}: {length - last} bytes after the last tensor belong to none")
