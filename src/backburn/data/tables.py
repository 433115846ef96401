"""Tables in CSV and Parquet files, as arrays by the names of their columns."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base.errors import ArgumentError, BackburnError, DTypeError, FileFormatError, hint_for
from backburn.base.foreign import printable, quoted
from backburn.base.foreign_files import ordinary, repeated, room
from backburn.data.packages import package
from backburn.data.parquet_pages import check_memory
from backburn.hints.arguments import explained

#: The longest line of names, the bytes of memory that the reader takes for a column, and the texts made at once.
_LONGEST_NAMES, _CSV_COLUMN, _TOGETHER = 1 << 24, 12_000, 1 << 14
#: The bytes that a compressed byte may become, and those of another MiB; texts of numbers become five or ten.
_MOST_EXPANDED = 20


@explained
def read_table(path: str | os.PathLike[str], *, columns: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
    r"""The columns of a CSV or Parquet file as arrays by name, for :func:`batches`; of ``columns`` alone, if given.

    CSV files (``.csv``, ``.tsv``, also ``.gz``) begin with a line of names, and the types of columns follow from their
    values. Missing numbers are NaN, missing texts are empty; a column of integers with a missing one has floats. Times
    are ``datetime64``. A column of lists of one length has two axes. Texts are arrays of strings, which no tensor
    holds: ``names, numbers = np.unique(table["species"], return_inverse=True)`` numbers the classes. Where one text is
    so long that an array of one width would not be read, it is one of ``np.dtypes.StringDType``.

    Needs the extra ``data``; :class:`BackendUnavailableError` says so. Raises :class:`FileFormatError` for a file that
    is no table, has no rows, would take more memory than ten times its bytes and 200 MB, or expands to more than
    twenty times its bytes and 20 MB; :class:`ArgumentError` for
    columns that it does not have, and :class:`DTypeError` for columns of lists of several lengths or of records.

        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "flowers.csv")
        >>> _ = path.write_text("length,petals,species\n1.5,4,poppy\n2.5,,rose\n")
        >>> read_table(path)
        {'length': array([1.5, 2.5]), 'petals': array([ 4., nan]), 'species': array(['poppy', 'rose'], dtype='<U5')}
    """
    arrow = package("read_table", "pyarrow", "pyarrow")
    place = Path(path)
    if columns is not None and (isinstance(columns, str) or not all(isinstance(name, str) for name in columns)):
        raise ArgumentError(f"read_table: columns is a list of names, not {columns!r}")
    size = ordinary(place).st_size
    try:
        table = _read(place, columns, room(size))
    except BackburnError:
        raise
    except (arrow.ArrowException, OSError, EOFError, ValueError, zlib.error) as cause:
        if getattr(cause, "errno", None) is not None:
            raise  # the system's error, not one of the content
        words = printable(str(cause) or type(cause).__name__, 500)
        raise FileFormatError(f"read_table: {place} cannot be read: {words}") from cause
    known = table.column_names
    if len(set(known)) < len(known):
        raise FileFormatError(f"read_table: {place} has two columns {quoted(repeated(known))}")
    if columns is not None:
        present = set(known)
        for name in columns:
            if name not in present:
                raise ArgumentError(f"read_table: {place} has no column {name!r}. {hint_for(name, known)}")
    if not table.num_rows:
        raise FileFormatError(f"read_table: {place} has no rows")
    return {name: _column(table[name], f"{quoted(name)} in {place}", room(size)) for name in columns or known}


def _read(path: Path, columns: Sequence[str] | None, most: int) -> Any:
    """The table in a file, by the end of its name; it takes at most so many bytes of memory."""
    ends = [suffix.lower() for suffix in path.suffixes]
    is_packed = len(ends) > 1 and ends[-1] == ".gz"
    ending = ends[-2] if is_packed else ends[-1] if ends else ""
    if ending == ".parquet" and not is_packed:
        from pyarrow import parquet

        check_memory(path, columns, most)
        with parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            texts = [field.name for field in schema if _is_text(field.type)]
            if columns is not None and not set(columns) <= set(schema.names):
                return schema.empty_table()  # which tells what there is
        with parquet.ParquetFile(path, read_dictionary=texts) as file:  # a text in many rows stays one
            return file.read(columns=None if columns is None else list(columns))
    if ending in (".csv", ".tsv"):
        from pyarrow import csv

        delimiter = "\t" if ending == ".tsv" else ","
        with gzip.open(path) if is_packed else open(path, "rb") as file:
            line = file.readline(_LONGEST_NAMES)
        count = line.count(delimiter.encode())
        if count * _CSV_COLUMN > most or len(line) == _LONGEST_NAMES:
            raise FileFormatError(f"read_table: {path} has {count} columns or more, too many for a file of its size")
        with _Bounded(path) if is_packed else open(path, "rb") as file:
            return csv.read_csv(file, parse_options=csv.ParseOptions(delimiter=delimiter))
    raise FileFormatError(f"read_table: {path} is neither .csv, .tsv nor .parquet, by its name")


class _Bounded(gzip.GzipFile):
    """A compressed file, of which a bounded part is expanded."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._most = self._left = (path.stat().st_size + (1 << 20)) * _MOST_EXPANDED

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes."""
        found = super().read(min(size, 1 << 20) if size is not None and size >= 0 else 1 << 20)
        self._left -= len(found)
        if self._left < 0:
            raise FileFormatError(f"read_table: {self.name} expands to more than {self._most} bytes: expand it first")
        return found


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _texts(column: Any, what: str, most: int) -> Any:
    """A column of texts as an array."""
    from pyarrow import compute, types

    lengths = rows = 0
    longest = 0
    for chunk in column.chunks:
        own = chunk.dictionary if types.is_dictionary(chunk.type) else chunk
        each = compute.utf8_length(own)
        longest = max(longest, compute.max(each).as_py() or 0)
        rows += len(chunk)
        if types.is_dictionary(chunk.type):
            each = each.take(chunk.indices)
        lengths += compute.sum(each).as_py() or 0
    if lengths > most:
        raise FileFormatError(f"read_table: {what} has texts of {lengths} characters together, more than are read")
    dtype: Any = np.dtypes.StringDType() if 4 * rows * longest > most else str
    parts = []
    for chunk in column.chunks:
        for start in range(0, len(chunk), _TOGETHER):
            parts.append(
                np.array(["" if x is None else x for x in chunk[start : start + _TOGETHER].to_pylist()], dtype)
            )
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _column(column: Any, what: str, most: int) -> Any:
    """A column as an array."""
    import pyarrow
    from pyarrow import types

    kind = column.type
    if _is_text(kind.value_type if types.is_dictionary(kind) else kind):
        return _texts(column, what, most)
    if types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if types.is_boolean(kind) and column.null_count:
        return column.cast(pyarrow.int8()).to_numpy()
    if types.is_decimal(kind):
        return column.cast(pyarrow.float64()).to_numpy()
    if types.is_null(kind):
        return np.full(len(column), np.nan)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        rows = [np.asarray(row) for row in column.to_numpy()]
        if all(row.dtype.kind in "fiub" and row.shape == rows[0].shape for row in rows):
            return np.stack(rows)
    if not (types.is_primitive(kind) or types.is_boolean(kind)):
        fix = "columns=[...] reads others, and .to_pandas() of the package reads all"
        raise DTypeError(f"read_table: {what} is of type {kind}, of which no array can be made: {fix}")
    return column.to_numpy()
