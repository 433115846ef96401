"""NumPy's ``.npz`` files: an archive with an array in each member. Pickled objects are not read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base.dtypes import as_dtype
from backburn.base.errors import DTypeError, FileFormatError
from backburn.base.foreign import quoted
from backburn.io.weights.archive import Member
from backburn.io.weights.mapped import MappedFile
from backburn.io.weights.stored import Stored, elements, kind_of

#: The header of an array is shorter, unless it describes a record.
_LONGEST_HEADER = 10_000
_NUMBER = re.compile(r"[<>|=]?[biufc]\d{1,2}")
_ENTRIES = {
    "descr": re.compile(r"'descr':\s*'([<>|=]?[A-Za-z]\d{0,4})'"),
    "fortran_order": re.compile(r"'fortran_order':\s*(True|False)"),
    "shape": re.compile(r"'shape':\s*\(([\d\s,]{0,700})\)"),
}


def read(file: MappedFile, found: Mapping[str, Member]) -> dict[str, Stored]:
    """The arrays of an archive with these members. Raises :class:`FileFormatError` for a member that is no array."""
    tensors: dict[str, Stored] = {}
    for name, member in found.items():
        if not name.endswith(".npy"):
            raise FileFormatError(f"{file.where}: {quoted(name)} in it is no array")
        tensors[name.removesuffix(".npy")] = _stored(name, member)
    return tensors


def _stored(name: str, member: Member) -> Stored:
    where = member.file.where
    start = member.beginning(12 + _LONGEST_HEADER)
    wide = 4 if start[6:7] == b"\2" else 2  # the version of the header, and so the bytes of its length
    header_length = int.from_bytes(start[8 : 8 + wide], "little")
    data = 8 + wide + header_length
    header = start[8 + wide : data].decode("latin-1")
    if start[:6] != b"\x93NUMPY" or start[6:7] not in b"\1\2" or len(start) < min(data, 12 + _LONGEST_HEADER):
        raise FileFormatError(f"{where}: {quoted(name)} in it is no array")
    found = {key: pattern.search(header) for key, pattern in _ENTRIES.items()}
    descr, order, lengths = (match and match[1] for match in found.values())
    if descr is None or order is None or lengths is None:
        raise FileFormatError(f"{where}: {quoted(name)} in it is no array of numbers with a header as NumPy writes it")
    try:
        host = np.dtype(descr) if _NUMBER.fullmatch(descr) else None
        shape = tuple(int(n) for n in lengths.replace(",", " ").split())
        count = elements(where, name, shape)
    except (TypeError, ValueError) as error:
        raise FileFormatError(f"{where}: {quoted(name)} has no dtype or shape ({error})") from error
    if host is None:  # text, times, objects, dtypes of others
        return Stored(shape, f"NumPy's {descr}", member.array, where)
    if count * host.itemsize != member.size - data:
        raise FileFormatError(f"{where}: {quoted(name)}, {host}{list(shape)}, does not take {member.size - data} bytes")
    read = partial(_values, member, data, host, shape, order == "True")
    try:
        dtype = as_dtype(host).name
    except DTypeError:  # complex numbers, long double
        dtype = host.name
    return Stored(shape, dtype, read, where, member.check, kind=kind_of(dtype))


def _values(member: Member, start: int, dtype: np.dtype[Any], shape: tuple[int, ...], columns: bool) -> NDArray[Any]:
    raw = member.array()[start:]
    array = raw != 0 if dtype.kind == "b" else raw.view(dtype)
    return array.reshape(shape[::-1]).T if columns else array.reshape(shape)
