"""The memory that a Parquet file takes, from its footer and the headers of its pages, before they are expanded.

A column of a billion zeros is a page of some bytes, and a compressed page may expand by a factor of thousands, so the
file is checked before the library reads it. The headers are in Thrift's compact protocol
(https://github.com/apache/parquet-format, https://github.com/apache/thrift/blob/master/doc/specs/). The library's own
objects for them crash the process for some damaged files, which its reader refuses with an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from backburn.base.errors import FileFormatError

#: Bytes of an element of each type of a column, by the type's number; of texts, without their characters.
_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8, 6: 16}
#: The type whose width the schema gives, and the repetition of a column with any number of values in a row.
_FIXED, _REPEATED = 7, 2
#: The type of texts and bytes, and their encoding by common prefixes, in which no header has their lengths.
_BYTES, _DELTA = 6, 7
#: Bytes of memory of the library's description of a column in a group of rows.
_CHUNK = 4_000
#: The longest header of a page, the longest footer, and the deepest nesting of groups of columns.
_LONGEST_HEADER, _LONGEST_FOOTER, _MOST_DEPTH = 1 << 16, 1 << 24, 64
_MAGIC, _TAIL = b"PAR1", 8


class _Reader:
    """Reads values of Thrift's compact protocol; raises ValueError for invalid ones."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.place = 0

    def byte(self) -> int:
        """The next byte."""
        if self.place >= len(self.content):
            raise ValueError("a header that does not end")
        self.place += 1
        return self.content[self.place - 1]

    def unsigned(self) -> int:
        """The next integer, with seven bits in each byte."""
        found = 0
        for shift in range(0, 70, 7):
            byte = self.byte()
            found |= (byte & 127) << shift
            if byte < 128:
                return found
        raise ValueError("an integer of more than 64 bits")

    def integer(self) -> int:
        """The next integer, whose lowest bit is the sign."""
        found = self.unsigned()
        return (found >> 1) ^ -(found & 1)

    def skip(self, length: int) -> None:
        """Skip bytes."""
        if length > len(self.content) - self.place:
            raise ValueError("a header that does not end")
        self.place += length

    def value(self, kind: int, depth: int = 0) -> Any:
        """The value of a type: integers, bytes, structs as tables by number, and lists of these; None for floats."""
        if depth > _MOST_DEPTH:
            raise ValueError("structs in structs too deep")
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self.byte()
        if kind in (4, 5, 6):
            return self.integer()
        if kind == 7:
            return self.skip(8)
        if kind == 8:
            length = self.unsigned()
            start = self.place
            self.skip(length)
            return self.content[start : self.place]
        if kind in (9, 10):
            first = self.byte()
            count = self.unsigned() if first >> 4 == 15 else first >> 4
            if count > len(self.content) - self.place:
                raise ValueError("a list that does not end")
            inner = first & 15
            return [self.byte() if inner in (1, 2) else self.value(inner, depth + 1) for _ in range(count)]
        if kind == 12:
            return self.struct(depth)
        raise ValueError(f"a value of the type {kind}")

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """The fields of a struct by their numbers."""
        found: dict[int, Any] = {}
        number = 0
        while (first := self.byte()) != 0:
            number = number + (first >> 4) if first >> 4 else self.integer()
            found[number & 0xFFFF] = self.value(first & 15, depth + 1)
        return found


class _UnboundedError(Exception):
    """A page does not say how long its values are."""


@dataclass(frozen=True)
class _Leaf:
    """A column that holds values: the bytes of one in memory, and whether a row may have several, of any length."""

    width: int
    is_nested: bool
    is_bytes: bool
    is_text: bool


def check_memory(path: Path, columns: Iterable[str] | None, most: int) -> None:
    """Raise :class:`FileFormatError` if columns, all or some by name, would take more than ``most`` bytes of memory.

    Also for a footer or a page that is damaged, groups of columns nested too deeply, and a file that refers to others.
    """
    wanted = None if columns is None else {name.encode() for name in columns}
    with open(path, "rb") as file:
        footer = _footer(path, file)
        try:
            found = _Reader(footer).struct()
            leaves = _leaves(found[2])
            chunks = [(group[3], group[1]) for group in found.get(4, [])]
            size = sum(len(parts) for _, parts in chunks) * _CHUNK
            left = os.fstat(file.fileno()).st_size
            for rows, parts in chunks:
                for leaf, part in zip(leaves, parts, strict=True):
                    if part.get(1):
                        raise ValueError("columns in other files")
                    left -= part[3][7]
                    if part[3][7] < 0 or left < 0:  # whose pages would be read again for each column
                        raise ValueError("columns in the same bytes")
                    if size <= most and (wanted is None or part[3][3][0] in wanted):
                        size += _chunk_size(file, leaf, part[3], rows, most)
        except _UnboundedError:
            raise FileFormatError(
                f"read_table: {path} has texts in the encoding DELTA_BYTE_ARRAY, whose lengths no header has: "
                "pyarrow.parquet.read_table has no limit, and batches(...) takes its result"
            ) from None
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            words = f"{type(error).__name__}: {error}"
            raise FileFormatError(f"read_table: {path} cannot be read: it is damaged ({words})") from error
    if size > most:
        raise FileFormatError(
            f"read_table: {path} would take more than {most} bytes of memory, ten times the file's size plus 200 MB: "
            "pyarrow.parquet.read_table has no limit, and batches(...) takes its result"
        )


def _footer(path: Path, file: BinaryIO) -> bytes:
    """The bytes of the footer."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL))
    tail = file.read(_TAIL)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or length > min(size - _TAIL - len(_MAGIC), _LONGEST_FOOTER):
        words = f"it has no footer of Parquet of at most {_LONGEST_FOOTER} bytes, or is encrypted"
        raise FileFormatError(f"read_table: {path} cannot be read: {words}")
    file.seek(size - _TAIL - length)
    return file.read(length)


def _leaves(schema: list[dict[int, Any]]) -> list[_Leaf]:
    """The columns with values in a footer's list, in which each group gives the number of following entries in it."""
    leaves: list[_Leaf] = []
    groups = [[1, False]]
    for element in schema:
        while groups and not groups[-1][0]:
            groups.pop()
        if not groups or len(groups) > _MOST_DEPTH:
            raise ValueError(f"columns in no group, or in more than {_MOST_DEPTH} levels of them")
        groups[-1][0] -= 1
        is_nested = bool(groups[-1][1]) or element.get(3) == _REPEATED
        count = element.get(5, 0)
        if count > 0:
            groups.append([count, is_nested])
        else:
            width = element.get(2, 0) if element.get(1) == _FIXED else _WIDTHS.get(element.get(1, -1), 16)
            is_text = element.get(6) == 0 or 1 in (element.get(10) or {})  # in either form of the annotation
            leaves.append(_Leaf(max(width, 1), is_nested, element.get(1) == _BYTES, is_text))
    return leaves


def _chunk_size(file: BinaryIO, leaf: _Leaf, about: dict[int, Any], rows: int, most: int) -> int:
    """The bytes of the values of a column in a group of rows, and of its largest page."""
    start = about[9]
    if about.get(11):
        start = min(start, about[11])
    end = start + about[7]
    if start < 0 or rows < 0:
        raise ValueError("a column before the beginning")
    values = size = shared = 0
    while start < end and size <= most:
        file.seek(start)
        reader = _Reader(file.read(min(end - start, _LONGEST_HEADER)))
        header = reader.struct()
        data, later = header.get(5) or {}, header.get(8) or {}
        found = (data or later).get(1, 0)
        if leaf.is_bytes and _DELTA in (data.get(2), later.get(4)):
            raise _UnboundedError
        if leaf.is_bytes and 7 in header and (leaf.is_nested or not leaf.is_text):
            shared = header[2]  # of a dictionary: one value may be as long, and be every value of the column
        if min(header[3], header[2], found) < 0 or header[3] > end - start:
            raise ValueError("a page of other lengths than it has")
        values += found
        size = max(size, header[2])
        start += reader.place + header[3]
    return int(size + (leaf.width + shared) * (values if leaf.is_nested else rows))
