"""Tables in CSV and Parquet files, as arrays by the names of their columns."""

from __future__ import annotations

import csv
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base.errors import ArgumentError, BackburnError, DTypeError, FileFormatError, hint_for
from backburn.base.foreign import printable, quoted
from backburn.base.foreign_files import ordinary, repeated, room
from backburn.data import delimited
from backburn.data.packages import package
from backburn.data.parquet_pages import check_memory
from backburn.hints.arguments import explained
from backburn.tensor.core.options import one_of


@explained
def read_table(
    path: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    types: Mapping[str, Any] | None = None,
    missing: Sequence[str] = (),
    decimal: str = ".",
) -> dict[str, NDArray[Any]]:
    r"""The columns of a CSV or Parquet file as arrays by name, for :func:`batches`; only ``columns``, if given.

    CSV files (``.csv``, ``.tsv``, also ``.gz``) begin with a line of names, and the type of a column follows from all
    its cells. No cell is changed: numbers with leading zeros (``02116``), and integers that fit no dtype, stay text.
    Missing numbers are NaN, missing times NaT; a column of integers with a missing one has floats. Days and moments are
    ``datetime64``, those with a time zone in UTC, and times of day are ``timedelta64`` from midnight. A column of lists
    of equal length has two axes. Texts are arrays of strings, which no tensor holds:
    ``names, numbers = np.unique(table["species"], return_inverse=True)`` numbers the classes.

    ``types`` gives columns a dtype by name, such as ``{"zip": "str", "price": "float32"}``, and ``missing`` names
    further cells that mean a missing value, such as ``["?"]``, in addition to empty ones, ``NA``, ``NaN``, ``null`` and
    the like, which are unchanged in columns of text. For CSV files only, ``delimiter`` separates cells, by default
    commas, semicolons, tabs or vertical bars, whichever all rows have in equal number; and ``encoding`` is by default
    UTF-8, or UTF-16 with its mark. A line on standard error says if the delimiter is not the one that the file's name
    suggests. With ``decimal=","`` numbers have decimal commas, as in ``2,5``; points between thousands are not read.

    The unnamed index of a pandas frame in a Parquet file is read only if ``columns`` names it.

    If one text is so long that a fixed-width array would take seven times the table and 150 MB, the column is an array
    of ``np.dtypes.StringDType``.

    Raises :class:`BackendUnavailableError` without the extra ``data``; :class:`FileFormatError` for a file that is not
    a table, has no rows or another encoding, one whose columns would take more memory than ten times its size plus 200
    MB, and a compressed one that expands to more than 20 times its size plus 10 MB; :class:`ArgumentError` for columns
    that it does not have, and :class:`DTypeError` for columns of lists of several lengths or of records, for cells that
    are not of the type that ``types`` has for them, and for numbers of a Parquet file that the dtype would round
    (unless ``types`` asks for it).

        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "flowers.csv")
        >>> _ = path.write_text("length,petals,species\n1.5,4,poppy\n2.5,,rose\n")
        >>> read_table(path)
        {'length': array([1.5, 2.5]), 'petals': array([ 4., nan]), 'species': array(['poppy', 'rose'], dtype='<U5')}
        >>> read_table(path, columns=["length"], types={"length": "float32"})
        {'length': array([1.5, 2.5], dtype=float32)}
    """
    package("read_table", "pyarrow", "pyarrow")
    place = Path(path)
    for option, given in (("columns", columns), ("missing", missing)):
        if given is not None and (isinstance(given, str) or not all(isinstance(name, str) for name in given)):
            what = "names" if option == "columns" else "texts"
            raise ArgumentError(f"read_table: {option} is a list of {what}, not {given!r}")
    character: Any = delimiter
    if delimiter is not None and not (isinstance(character, str) and len(character.encode()) == 1):
        raise ArgumentError(f"read_table: delimiter is one character of ASCII, such as ';', not {delimiter!r}")
    one_of("read_table", "decimal", decimal, (".", ","))
    dtypes = _dtypes(types)
    ends = [suffix.lower() for suffix in place.suffixes]
    packed = len(ends) > 1 and ends[-1] == ".gz"
    ending = ends[-2] if packed else ends[-1] if ends else ""
    ordinary(place)
    with _errors(place):
        if ending == ".parquet":
            table, hidden = _parquet(place, None if columns is None else {*columns, *dtypes})
        elif ending in (".csv", ".tsv"):
            hidden = frozenset()
            table = delimited.read(place, packed, "\t" if ending == ".tsv" else ",", delimiter, encoding)
        else:
            raise FileFormatError(f"read_table: {place} is neither .csv, .tsv nor .parquet, by its name")
    known = table.column_names
    present = set(known)
    if len(present) < len(known):
        raise FileFormatError(f"read_table: {place} has two columns {quoted(repeated(known))}")
    for name in (*(columns or ()), *dtypes):
        if name not in present:
            raise ArgumentError(f"read_table: {place} has no column {name!r}. {hint_for(name, known)}")
    if not table.num_rows:
        raise FileFormatError(f"read_table: {place} has no rows")
    space = delimited.Space(room(table.nbytes) * 3 // 4)
    with _errors(place):
        return {
            name: _cells(table[name], ending, dtypes.get(name), missing, f"{quoted(name)} in {place}", space, decimal)
            for name in columns or [name for name in known if name not in hidden]
        }


@contextmanager
def _errors(place: Path) -> Iterator[None]:
    """Raise :class:`FileFormatError` for errors of pyarrow and of Python's modules about the content of a file."""
    import pyarrow

    try:
        yield
    except BackburnError:
        raise
    except (pyarrow.ArrowException, OSError, EOFError, ValueError, OverflowError, csv.Error, zlib.error) as cause:
        if getattr(cause, "errno", None) is not None:
            raise  # the system's error, not one of the content
        words = printable(str(cause) or type(cause).__name__, 500)
        raise FileFormatError(f"read_table: {place} cannot be read: {words}") from cause


def _cells(
    column: Any,
    ending: str,
    dtype: np.dtype[Any] | None,
    missing: Sequence[str],
    what: str,
    space: delimited.Space,
    decimal: str,
) -> NDArray[Any]:
    """A column of a file of this kind as an array, in ``dtype`` if one is given."""
    if ending == ".parquet":
        found: NDArray[Any] = _column(column, dtype, missing, what, space)
        return found
    if dtype is None:
        return delimited.column(column, missing, what, space, decimal)
    return delimited.typed(column, dtype, missing, what, space, decimal)


def _dtypes(types: Any) -> dict[str, np.dtype[Any]]:
    """The dtypes by name. Raises :class:`ArgumentError` for dtypes other than those of numbers, times and texts."""
    if types is not None and not isinstance(types, Mapping):
        raise ArgumentError(f"read_table: types is a dict of dtypes by the names of columns, not {types!r:.80}")
    found = {}
    for name, given in (types or {}).items():
        try:
            found[name] = np.dtype(given)
        except TypeError:
            raise ArgumentError(f"read_table: types has no dtype for {name!r}, but {given!r:.80}") from None
        if found[name].kind not in "iufbmMUT":
            raise ArgumentError(f"read_table: types has {found[name]} for {name!r}: numbers, times and texts are read")
    return found


def _parquet(path: Path, wanted: set[str] | None) -> tuple[Any, frozenset[str]]:
    """A table, of ``wanted`` columns if given, and the names of those that hold the unnamed index of a frame."""
    from pyarrow import parquet

    most = room(path.stat().st_size)
    check_memory(path, wanted, most)
    with parquet.ParquetFile(path) as file:
        schema = file.schema_arrow
        names = [field.name for field in schema if delimited.is_text(field.type)]
        if wanted is not None and not wanted <= set(schema.names):
            return schema.empty_table(), frozenset()  # the error names its columns
        for field in schema:
            if wanted is None or field.name in wanted:
                _check_kind(field.type, f"{quoted(field.name)} in {path}")
    with parquet.ParquetFile(path, read_dictionary=names) as file:  # a text of many rows is stored once until measured
        order = None if wanted is None else [name for name in schema.names if name in wanted]
        table = file.read(columns=order)
    table.validate(full=True)  # only this finds invalid UTF-8, and indices outside of a dictionary
    table = _expanded(table, path, most)
    is_pandas = b"pandas" in (table.schema.metadata or {})
    return table, frozenset(
        name for name in table.column_names if is_pandas and re.fullmatch(r"__index_level_\d+__", name)
    )


def _expanded(table: Any, path: Path, most: int) -> Any:
    """The table with dictionaries of texts expanded. Raises unless all have at most ``most`` bytes together."""
    from pyarrow import types

    compute = delimited.functions()

    size = 0
    for number, field in enumerate(table.schema):
        if types.is_dictionary(field.type) and delimited.is_text(field.type.value_type):
            for chunk in table.column(number).chunks:
                lengths = compute.binary_length(chunk.dictionary).take(chunk.indices)
                size += compute.sum(lengths).as_py() or 0
            if size > most:
                raise FileFormatError(f"read_table: {path} has texts of {size} bytes together, more than are read")
            table = table.set_column(number, field.name, table.column(number).cast(field.type.value_type))
    return table


def _column(column: Any, dtype: np.dtype[Any] | None, missing: Sequence[str], what: str, space: delimited.Space) -> Any:
    """A column of a Parquet file as an array, in ``dtype`` if one is given."""
    from pyarrow import types

    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if delimited.is_text(kind):
        cells = column.cast("string").fill_null("")
        if dtype is None:
            return delimited.texts(cells, missing, what, space)
        return delimited.typed(cells, dtype, missing, what, space)
    if dtype is not None and dtype.kind in "UT":
        return np.array(["" if x is None else str(x) for x in column.to_pylist()], dtype=dtype)
    if types.is_integer(kind) or types.is_decimal(kind):
        found = _number(column, dtype, what)
    elif types.is_time(kind):
        found = _time(column)
    else:
        found = _plain(column, what)
    return found if dtype is None else _cast(found, dtype, what)


def _number(column: Any, dtype: np.dtype[Any] | None, what: str) -> NDArray[Any]:
    """Integers and decimals. Raises :class:`DTypeError` for those that floats round, unless floats are requested."""
    import pyarrow
    from pyarrow import types

    kind = column.type
    rounds = dtype is not None and dtype.kind == "f"
    if types.is_decimal(kind) and kind.scale == 0 and not rounds:
        for whole in (pyarrow.int64(), pyarrow.uint64()):
            try:
                column = column.cast(whole)
                break
            except pyarrow.ArrowInvalid:
                continue
    if types.is_integer(column.type):
        if column.null_count and not rounds:
            given = column.drop_null().to_numpy()
            if delimited.largest(given) > delimited.EXACT:
                raise _rounded(what, "integers above 2**53 and gaps, for which a float's NaN stands")
        return column.to_numpy()
    found: NDArray[Any] = column.cast(pyarrow.string()).cast(pyarrow.float64()).to_numpy()  # which rounds once
    if not rounds and kind.precision > 15:  # a float keeps 15 digits
        pairs = zip(column.to_pylist(), found.tolist(), strict=True)
        if any(exact is not None and exact != Decimal(repr(near)) for exact, near in pairs):
            raise _rounded(what, f"decimals of {kind.precision} digits")
    return found


def _rounded(what: str, why: str) -> DTypeError:
    name = what.partition(" in ")[0]
    return DTypeError(
        f"read_table: {what} has {why}: types={{{name}: 'float64'}} rounds them, and {{{name}: 'str'}} has their texts"
    )


def _time(column: Any) -> NDArray[Any]:
    """Times of day, as the time since midnight."""
    import pyarrow

    unit = column.type.unit
    counts = column.cast(pyarrow.int32() if unit in ("s", "ms") else pyarrow.int64())
    whole = counts.fill_null(0).to_numpy().astype(f"m8[{unit}]")
    whole[column.is_null().to_numpy().astype(bool)] = np.timedelta64("NaT")
    return whole


def _cast(found: NDArray[Any], dtype: np.dtype[Any], what: str) -> NDArray[Any]:
    """An array in the requested dtype. Raises :class:`DTypeError` where integers or booleans would change."""
    if dtype.kind in "iub" and found.dtype.kind == "f" and np.isnan(found).any():
        raise DTypeError(f"read_table: {what} has gaps, for which {dtype} has no value: a float dtype has NaN")
    if (dtype.kind in "mM") != (found.dtype.kind in "mM"):
        raise DTypeError(f"read_table: {what} is {found.dtype}, which cannot be converted to {dtype}")
    with np.errstate(all="ignore"):
        made = found.astype(dtype)
    if dtype.kind in "iub" and not np.array_equal(made, found):
        raise DTypeError(f"read_table: {what} has values, of {found.dtype}, that {dtype} does not hold")
    return made


def _plain(column: Any, what: str) -> Any:
    """A column of another type as an array."""
    import pyarrow
    from pyarrow import types

    kind = column.type
    if types.is_boolean(kind) and column.null_count:
        return column.cast(pyarrow.int8()).to_numpy()
    if types.is_null(kind):
        return np.full(len(column), np.nan)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = delimited.functions().list_flatten(column)
        has_gaps = types.is_integer(inner.type) and inner.null_count > 0
        if has_gaps and delimited.largest(inner.drop_null().to_numpy()) > delimited.EXACT:
            raise _rounded(what, "integers above 2**53 and gaps, for which a float's NaN stands")
        rows = [np.asarray(row) for row in column.to_numpy()]
        if all(row.dtype.kind in "fiub" and row.shape == rows[0].shape for row in rows):
            return np.stack(rows)
        raise _no_array(kind, what)
    return column.to_numpy()


def _check_kind(kind: Any, what: str) -> None:
    """Raise :class:`DTypeError` for a column that cannot become an array, before it is read."""
    from pyarrow import types

    inner = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_list(inner) or types.is_large_list(inner) or types.is_fixed_size_list(inner):
        inner = inner.value_type
        usable = types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner)
    else:
        usable = delimited.is_text(inner) or types.is_decimal(inner) or types.is_null(inner)
        usable = usable or types.is_primitive(inner) or types.is_boolean(inner)
    if not usable:
        raise _no_array(kind, what)


def _no_array(kind: Any, what: str) -> DTypeError:
    fix = "columns=[...] reads others, and .to_pandas() of the package reads all"
    return DTypeError(f"read_table: {what} is of type {kind}, which cannot be converted to an array: {fix}")
