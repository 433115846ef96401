"""Zip archives as PyTorch and NumPy write them: where the bytes of each member are, checked against the file."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from backburn.base.errors import FileFormatError
from backburn.base.foreign import quoted
from backburn.io.weights.mapped import MappedFile

_LOCAL = struct.Struct("<4s5H3L2H")
#: The most bytes that deflate stores in one: two bits can stand for 258.
_EXPANSION = 1032
_CHUNK = 1 << 20
#: The longest directory that is read, enough for some 100,000 members.
_LONGEST_DIRECTORY = 1 << 24


class _Directory:
    """A file whose directory ``zipfile`` reads; no read is longer than the longest directory."""

    def __init__(self, file: MappedFile) -> None:
        self.seek, self.tell = file.file.seek, file.file.tell
        self._file = file

    def read(self, length: int = -1) -> bytes:
        """The next bytes; all that follow if ``length`` is negative."""
        left = self._file.size - self.tell()
        if min(left, length if length >= 0 else left) > _LONGEST_DIRECTORY:
            raise ValueError(f"its directory is said to have {length} bytes")
        return self._file.file.read(length)


@dataclass(frozen=True)
class Member:
    """A file in an archive: ``length`` bytes at ``start``, ``size`` bytes once expanded."""

    file: MappedFile
    name: str
    start: int
    length: int
    size: int
    crc: int
    is_compressed: bool

    def array(self) -> NDArray[np.uint8]:
        """The member's bytes: a view of the file, or a new array if it is compressed."""
        if not self.is_compressed:
            return self._stored()
        expanded, place = np.empty(self.size, np.uint8), 0
        for chunk in self._expanded():
            expanded[place : place + len(chunk)] = np.frombuffer(chunk, np.uint8)
            place += len(chunk)
        return expanded

    def beginning(self, length: int) -> bytes:
        """The first ``length`` bytes, or all if there are fewer."""
        if self.is_compressed:
            return next(self._expanded(length), b"")
        return self.file.bytes(self.start, min(length, self.length), quoted(self.name))

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless the bytes have the checksum that the archive states.

        A stored member with a checksum of 0 is not checked: PyTorch omits checksums on request.
        """
        crc = 0
        if self.crc == 0 and not self.is_compressed:
            return
        if self.is_compressed:
            for chunk in self._expanded():
                crc = zlib.crc32(chunk, crc)
        else:
            raw = self._stored()
            for start in range(0, len(raw), _CHUNK):
                crc = zlib.crc32(raw[start : start + _CHUNK].data, crc)
        if crc != self.crc:
            self.refuse_checksum()

    def refuse_checksum(self) -> NoReturn:
        """Raise :class:`FileFormatError` for a damaged member."""
        words = "is damaged: its checksum (CRC) does not match"
        raise FileFormatError(f"{self.file.where}: {quoted(self.name)} {words}")

    def _stored(self) -> NDArray[np.uint8]:
        return self.file.array(self.start, self.length, quoted(self.name))

    def _expanded(self, most: int = _CHUNK) -> Iterator[bytes]:
        """The expanded bytes, in parts of at most ``most``; in all never more than the archive states."""
        expand, left = zlib.decompressobj(-15), self.size
        try:
            for start in range(0, self.length, _CHUNK):
                rest = self.file.bytes(self.start + start, min(_CHUNK, self.length - start), quoted(self.name))
                while rest:
                    chunk = expand.decompress(rest, most)
                    left -= len(chunk)
                    if left < 0:
                        break
                    yield chunk
                    rest = expand.unconsumed_tail
                if left < 0 or expand.eof:
                    break
        except zlib.error as error:
            raise FileFormatError(f"{self.file.where}: {quoted(self.name)} is damaged ({error})") from error
        if left or not expand.eof:
            raise FileFormatError(
                f"{self.file.where}: {quoted(self.name)} does not expand to {self.size} bytes, as the archive states"
            )


def members(file: MappedFile) -> dict[str, Member]:
    """The members of an archive by name.

    Raises :class:`FileFormatError` for archives that are damaged or encrypted, whose members overlap or share a name,
    or whose two headers of a member disagree.
    """
    file.file.seek(0)
    try:
        with zipfile.ZipFile(cast(IO[bytes], _Directory(file))) as archive:
            listed, end = archive.infolist(), archive.start_dir
    except Exception as error:  # a hostile directory may fail anywhere, such as at a negative offset
        raise FileFormatError(f"{file.where}: a damaged archive ({error})") from error
    found: dict[str, Member] = {}
    for info in sorted(listed, key=lambda info: info.header_offset, reverse=True):
        if info.filename in found:
            raise FileFormatError(f"{file.where}: two members have the name {quoted(info.filename)}")
        if not info.filename.endswith("/"):
            found[info.filename] = _member(file, info, end)
        end = info.header_offset
    return {info.filename: found[info.filename] for info in listed if info.filename in found}


def _member(file: MappedFile, info: zipfile.ZipInfo, end: int) -> Member:
    """The location of a member, which must not reach beyond ``end``, where the next one begins."""
    where, name = file.where, info.orig_filename
    if info.flag_bits & 0x41:
        raise FileFormatError(f"{where}: {quoted(name)} is encrypted")
    is_deflated = info.compress_type == zipfile.ZIP_DEFLATED
    if info.compress_type != zipfile.ZIP_STORED and not is_deflated:
        raise FileFormatError(
            f"{where}: {quoted(name)} is compressed by a method that is not read, {info.compress_type}"
        )
    if info.file_size > info.compress_size * _EXPANSION if is_deflated else info.file_size != info.compress_size:
        raise FileFormatError(f"{where}: {quoted(name)} cannot have {info.file_size} bytes, of {info.compress_size}")
    local = _LOCAL.unpack(file.bytes(info.header_offset, _LOCAL.size, f"the header of {quoted(name)}"))
    start = info.header_offset + _LOCAL.size
    own_name = file.bytes(start, local[9], f"the header of {quoted(name)}")
    listed_name = name.encode("utf-8" if info.flag_bits & 0x800 else "cp437", "replace")  # as zipfile decoded it
    if own_name != listed_name or local[0] != b"PK\x03\x04" or local[3] != info.compress_type:
        raise FileFormatError(f"{where}: the two headers of {quoted(name)} disagree")
    start += local[9] + local[10]
    if start + info.compress_size > end:
        raise FileFormatError(f"{where}: {quoted(name)} overlaps what follows it")
    return Member(file, info.filename, start, info.compress_size, info.file_size, info.CRC, is_deflated)
