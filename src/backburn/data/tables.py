"""Tables in CSV and Parquet files, as arrays by the names of their columns."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base.errors import ArgumentError, DTypeError, FileFormatError, hint_for
from backburn.data.packages import package
from backburn.hints.arguments import explained


@explained
def read_table(path: str | os.PathLike[str], *, columns: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
    r"""The columns of a CSV or Parquet file as arrays by name, for :func:`batches`; of ``columns`` alone, if given.

    CSV files (``.csv``, ``.tsv``, also ``.gz``) begin with a line of names, and the types of columns follow from their
    values. Missing numbers are NaN, missing texts are empty; a column of integers with a missing one has floats. Times
    are ``datetime64``. A column of lists of one length has two axes. Texts are arrays of strings, which no tensor
    holds: ``names, numbers = np.unique(table["species"], return_inverse=True)`` numbers the classes.

    Needs the extra ``data``; :class:`BackendUnavailableError` says so. Raises :class:`FileFormatError` for a file that
    is no table, or has no rows, :class:`ArgumentError` for columns that it does not have, and :class:`DTypeError` for
    columns of lists of several lengths or of records.

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
    try:
        table = _read(place)
    except (arrow.ArrowException, OSError) as cause:
        if isinstance(cause, FileNotFoundError) or getattr(cause, "errno", None) is not None:
            raise  # the system's error, not one of the content
        raise FileFormatError(f"read_table: {place} cannot be read: {cause}") from cause
    known = table.column_names
    if len(set(known)) < len(known):
        twice = next(name for name in known if known.count(name) > 1)
        raise FileFormatError(f"read_table: {place} has two columns {twice!r}")
    for name in columns or ():
        if name not in known:
            raise ArgumentError(f"read_table: {place} has no column {name!r}. {hint_for(name, known)}")
    if not table.num_rows:
        raise FileFormatError(f"read_table: {place} has no rows")
    return {name: _column(table[name], f"{name!r} in {place}") for name in columns or known}


def _read(path: Path) -> Any:
    """The table in a file, by the end of its name."""
    ends = [suffix.lower() for suffix in path.suffixes]
    ending = ends[-2] if len(ends) > 1 and ends[-1] == ".gz" else ends[-1] if ends else ""
    if ending == ".parquet":
        from pyarrow import parquet

        return parquet.read_table(path)
    if ending in (".csv", ".tsv"):
        from pyarrow import csv

        return csv.read_csv(path, parse_options=csv.ParseOptions(delimiter="\t" if ending == ".tsv" else ","))
    raise FileFormatError(f"read_table: {path} is neither .csv, .tsv nor .parquet, by its name")


def _column(column: Any, what: str) -> Any:
    """A column as an array."""
    import pyarrow
    from pyarrow import types

    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return np.array(column.fill_null("").to_pylist(), dtype=str)
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
