"""NumPy's ``.npz`` and ``.npy`` files: arrays alone or in an archive. Pickled objects are not read."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base.dtypes import as_dtype
from backburn.base.errors import DTypeError, FileFormatError
from backburn.base.foreign import quoted
from backburn.base.foreign_files import room
from backburn.io.weights.archive import Member
from backburn.io.weights.mapped import MappedFile
from backburn.io.weights.stored import Stored, elements, kind_of

#: Headers fit into this many bytes, unless they describe records.
START = 12 + 10_000
_MAGIC = b"\x93NUMPY"
#: Numbers; and the other dtypes that are read: strings, times and time spans.
_NUMBER = re.compile(r"[<>|=]?[biufc]\d{1,2}")
_OTHER = re.compile(r"[<>|=]?(?:[SU][1-9]\d{0,8}|[Mm]8\[\d{0,9}\w{1,2}\])")
_ENTRIES = {
    "descr": re.compile(r"'descr':\s*'([<>|=]?[A-Za-z]\d{0,9}(?:\[\w{1,20}\])?)'"),
    "fortran_order": re.compile(r"'fortran_order':\s*(True|False)"),
    "shape": re.compile(r"'shape':\s*\(([\d\s,]{0,700})\)"),
}


@dataclass(frozen=True)
class _Header:
    """The description of an array, whose elements begin at ``data``; ``dtype`` is None if it is not read."""

    descr: str
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]
    is_by_columns: bool
    data: int

    def array(self, raw: NDArray[np.uint8]) -> NDArray[Any]:
        """The array in bytes that begin with the header."""
        assert self.dtype is not None
        raw = raw[self.data :]
        array = raw != 0 if self.dtype.kind == "b" else raw.view(self.dtype)
        return array.reshape(self.shape[::-1]).T if self.is_by_columns else array.reshape(self.shape)


def _header(where: str, what: str, start: bytes, size: int, are_numbers: bool) -> _Header:
    """The header at the start of an array's ``size`` bytes. Raises :class:`FileFormatError` if it does not fit."""
    wide = 4 if start[6:7] == b"\2" else 2  # the header's version determines the width of its length
    data = 8 + wide + int.from_bytes(start[8 : 8 + wide], "little")
    text = start[8 + wide : data].decode("latin-1")
    if start[:6] != _MAGIC or start[6:7] not in b"\1\2" or len(start) < min(data, START):
        raise FileFormatError(f"{where}: {what} is not an array")
    found = {key: pattern.search(text) for key, pattern in _ENTRIES.items()}
    descr, order, lengths = (match and match[1] for match in found.values())
    if descr is None or order is None or lengths is None:
        raise FileFormatError(f"{where}: {what} is not an array of numbers with NumPy's header")
    try:
        is_read = _NUMBER.fullmatch(descr) or (not are_numbers and _OTHER.fullmatch(descr))
        dtype = np.dtype(descr) if is_read else None
        shape = tuple(int(n) for n in lengths.replace(",", " ").split())
        count = elements(where, what, shape)
    except (TypeError, ValueError) as error:
        raise FileFormatError(f"{where}: {what} has no dtype or shape ({error})") from error
    if dtype is not None and count * dtype.itemsize != size - data:
        words = f"{dtype}{list(shape)}, does not take {size - data} bytes"
        raise FileFormatError(f"{where}: {what}, {words}")
    return _Header(descr, dtype, shape, order == "True", data)


def read(file: MappedFile, found: Mapping[str, Member]) -> dict[str, Stored]:
    """The arrays of an archive with these members. Raises :class:`FileFormatError` unless every member is an array."""
    return {_name(file, name): _stored(name, member) for name, member in found.items()}


def read_arrays(file: MappedFile, found: Mapping[str, Member]) -> dict[str, NDArray[Any]]:
    """The values of all arrays of an archive, copied into memory. Raises :class:`FileFormatError` as ``read`` does.

    Also for arrays that expand beyond :func:`~backburn.base.foreign_files.room`, since no model limits their size.
    """
    size = sum(member.size for member in found.values())
    if size > room(file.size):
        raise FileFormatError(
            f"{file.where}: {file.size} bytes, which expand to {size}: at most {room(file.size)} are read; numpy.load "
            "has no limit"
        )
    return {_name(file, name): _array(name, member) for name, member in found.items()}


def single(file: MappedFile) -> NDArray[Any]:
    """The array of an ``.npy`` file, a view of the mapped file. Raises :class:`FileFormatError` for other files."""
    header = _header(file.where, "the file", file.bytes(0, min(START, file.size), "the header"), file.size, False)
    return header.array(file.view(0, file.size, "the array")) if header.dtype is not None else _refuse(file, header)


def is_single(start: bytes) -> bool:
    """Whether a file with this start is an ``.npy`` file."""
    return start.startswith(_MAGIC)


def _name(file: MappedFile, name: str) -> str:
    if not name.endswith(".npy"):
        raise FileFormatError(f"{file.where}: {quoted(name)} in it is not an array")
    return name.removesuffix(".npy")


def _array(name: str, member: Member) -> NDArray[Any]:
    header = _header(member.file.where, f"{quoted(name)} in it", member.beginning(START), member.size, False)
    if header.dtype is None:
        return _refuse(member.file, header)
    raw = member.array()
    if (member.crc or member.is_compressed) and zlib.crc32(raw.data) != member.crc:
        member.refuse_checksum()
    array = header.array(raw)
    return array if array.flags.owndata or raw.flags.owndata else array.copy("K")


def _refuse(file: MappedFile, header: _Header) -> NDArray[Any]:
    raise FileFormatError(
        f"{file.where}: an array of NumPy's {header.descr}: arrays of numbers, texts and times are read"
    )


def _stored(name: str, member: Member) -> Stored:
    where = member.file.where
    header = _header(where, f"{quoted(name)} in it", member.beginning(START), member.size, True)
    host, shape = header.dtype, header.shape
    if host is None:  # text, times, objects, other libraries' dtypes
        return Stored(shape, f"NumPy's {header.descr}", member.array, where)
    read = partial(_values, member, header)
    try:
        dtype = as_dtype(host).name
    except DTypeError:  # long double
        dtype = host.name
    return Stored(shape, dtype, read, where, member.check, kind=kind_of(dtype))


def _values(member: Member, header: _Header) -> NDArray[Any]:
    return header.array(member.array())
