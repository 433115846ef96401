"""What a Parquet file would take in memory, told by its footer and the headers of its pages, before they are expanded.

A column of a thousand million zeros is a page of some bytes, and a compressed page may expand by a factor of thousands,
so that the library that reads the file is asked only after a look at it. The headers are in Thrift's compact protocol
(https://github.com/apache/parquet-format, https://github.com/apache/thrift/blob/master/doc/specs/).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from backburn.base.errors import FileFormatError
from backburn.base.foreign import quoted

#: Bytes of an element of each type of a column; of texts, without their characters.
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 16}
#: Bytes of memory of a column of a group of rows as the library describes it.
_CHUNK = 4_000
#: The longest header of a page, the longest description of columns, and the most groups in groups of them.
_LONGEST_HEADER, _LONGEST_SCHEMA, _MOST_DEPTH = 1 << 16, 1 << 24, 64
_MAGIC, _TAIL = b"PAR1", 8


class _Reader:
    """Reads values of Thrift's compact protocol; raises ValueError for what are none."""

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
        """The next integer, of which each byte has seven bits."""
        found = 0
        for shift in range(0, 70, 7):
            byte = self.byte()
            found |= (byte & 127) << shift
            if byte < 128:
                return found
        raise ValueError("an integer of more than 64 bits")

    def integer(self) -> int:
        """The next integer, of which the lowest bit is the sign."""
        found = self.unsigned()
        return (found >> 1) ^ -(found & 1)

    def skip(self, length: int) -> None:
        """Move on."""
        if length > len(self.content) - self.place:
            raise ValueError("a header that does not end")
        self.place += length

    def value(self, kind: int, depth: int = 0) -> Any:
        """The value of a type: integers, structs as tables by number, lists of them; of others nothing."""
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
            return self.skip(self.unsigned())
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

    def struct(self, depth: int = 0, last: int = 1 << 15) -> dict[int, Any]:
        """The fields of a struct, up to the number ``last``."""
        found: dict[int, Any] = {}
        number = 0
        while (first := self.byte()) != 0:
            number = number + (first >> 4) if first >> 4 else self.integer()
            found[number & 0xFFFF] = self.value(first & 15, depth + 1)
            if number == last:
                break
        return found


def check_footer(path: Path) -> None:
    """Raise :class:`FileFormatError` for a file without a footer, and one of columns in groups too deep."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size < 2 * len(_MAGIC) + _TAIL // 2:
            raise FileFormatError(f"read_table: {path} cannot be read: it is no Parquet file")
        file.seek(size - _TAIL)
        tail = file.read(_TAIL)
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != _MAGIC or length > size - _TAIL - len(_MAGIC):
            raise FileFormatError(f"read_table: {path} cannot be read: it has no footer of Parquet, or is encrypted")
        file.seek(size - _TAIL - length)
        footer = file.read(min(length, _LONGEST_SCHEMA))
    try:
        schema = _Reader(footer).struct(last=2).get(2)
        depth = _depth(schema)
    except (ValueError, TypeError, AttributeError) as error:
        raise FileFormatError(f"read_table: {path} cannot be read: a damaged footer ({error})") from error
    if depth > _MOST_DEPTH:
        raise FileFormatError(f"read_table: {path} has columns in groups of more than {_MOST_DEPTH} levels")


def _depth(schema: Any) -> int:
    """The levels of groups of a footer's list of columns, in which each group says how many of the next are in it."""
    left, deepest = [1], 0
    for element in schema:
        while left and not left[-1]:
            left.pop()
        if not left:
            raise ValueError("columns in no group")
        left[-1] -= 1
        left.append(element.get(5, 0))
        deepest = max(deepest, len(left))
    return deepest


def check_pages(path: Path, metadata: Any, columns: Iterable[str] | None, most: int) -> None:
    """Raise :class:`FileFormatError` if columns, all or some by name, take more than ``most`` bytes of memory.

    ``metadata`` are the library's.
    """
    wanted = None if columns is None else set(columns)
    groups, count = metadata.num_row_groups, metadata.num_columns
    size = groups * count * _CHUNK
    if size <= most:
        with open(path, "rb") as file:
            for group in range(groups):
                row_group = metadata.row_group(group)
                for number in range(count):
                    column = row_group.column(number)
                    if wanted is None or column.path_in_schema.partition(".")[0] in wanted:
                        size += _chunk_size(
                            path, file, metadata.schema.column(number), column, row_group.num_rows, most
                        )
                    if size > most:
                        break
    if size > most:
        raise FileFormatError(
            f"read_table: {path} would take more than {most} bytes of memory, ten times the file and 200 MB: "
            "pyarrow.parquet.read_table has no limit, and batches(...) takes its result"
        )


def _chunk_size(path: Path, file: BinaryIO, about: Any, column: Any, rows: int, most: int) -> int:
    """The bytes of the values of a column in a group of rows."""
    start, end = column.data_page_offset, 0
    if column.has_dictionary_page and column.dictionary_page_offset is not None:
        start = min(start, column.dictionary_page_offset or start)
    end = start + column.total_compressed_size
    width = about.length if column.physical_type == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS.get(column.physical_type, 16)
    nested = about.max_repetition_level > 0
    values = size = 0
    while start < end:
        file.seek(start)
        reader = _Reader(file.read(min(end - start, _LONGEST_HEADER)))
        try:
            header = reader.struct()
            packed, expanded = header[3], header[2]
            data = header.get(5) or header.get(8) or {}
            found = data.get(1, 0)
            if min(packed, expanded, found) < 0 or packed > end - start:
                raise ValueError("a page of other lengths than it has")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            name = quoted(column.path_in_schema)
            raise FileFormatError(f"read_table: {path}: a page of {name} is damaged ({error})") from error
        values += found
        size = max(size, expanded)
        start += reader.place + packed
        if size > most:
            break
    return size + max(width, 0) * (values if nested else max(rows, 0))
