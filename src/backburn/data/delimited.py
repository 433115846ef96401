"""Tables as text: the delimiter, the encoding and the types of columns, detected without changing any cell.

All cells are read as texts first. A column becomes numbers, times or booleans if each of its cells is one and converts
back exactly; otherwise it stays text.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from backburn.base.errors import ArgumentError, DTypeError, FileFormatError
from backburn.base.foreign_files import room

#: Delimiters to detect if none is given.
DELIMITERS = (",", ";", "\t", "|")
#: Cells that are missing in a column of numbers, times or booleans, as pandas and pyarrow write them.
MISSING = (
    "", "#N/A", "#N/A N/A", "#NA", "-NaN", "-nan", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "NaT", "n/a", "nan",
    "null",
)  # fmt: skip
#: The bytes and the records from which a delimiter is detected.
SAMPLE, RECORDS = 1 << 17, 200
_BLOCK, _LARGEST_BLOCK = 1 << 24, (1 << 31) - 1
#: The bytes of memory of a column while it is read, and the most that a byte of a compressed file, or of half a MiB
#: besides, may expand to.
_COLUMN, _MOST_EXPANDED = 12_000, 20
#: The rows whose texts are Python objects at a time.
_ROWS = 1 << 16
#: The most digits of an integer that is read as a float.
_LONGEST_NUMBER = 300
_WORDS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))

INTEGER = r"^[+-]?[0-9]+$"
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$|^[+-]?(?i:inf|infinity)$"
LEADING_ZERO = r"^[+-]?0[0-9]"
#: Numbers with a comma, decimal or between thousands.
COMMA = r"^[+-]?([0-9]+(,[0-9]*)?|,[0-9]+)([eE][+-]?[0-9]+)?$"
TRUE, FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?"
DATE, TIME = f"^{_DAY}$", f"^{_CLOCK}$"
MOMENT, ZONED = f"^{_DAY}([ T]{_CLOCK})?$", f"^{_DAY}[ T]{_CLOCK} ?(Z|[+-][0-9]{{2}}:?[0-9]{{2}})$"
#: Floats represent every integer up to this one.
EXACT = 1 << 53


def functions() -> Any:
    """The functions of ``pyarrow.compute``, which are created when it is imported, so that type checkers know none."""
    from pyarrow import compute

    return cast(Any, compute)


def read(path: Path, packed: bool, usual: str, delimiter: str | None, encoding: str | None) -> Any:
    """The file's cells as a table of texts, unchanged. ``usual`` is the delimiter that the file's name suggests.

    A detected delimiter that is not the usual one is noted on standard error, as is a detected encoding. Raises
    :class:`FileFormatError` for a file that is not in the given or detected encoding, and if two delimiters fit.
    """
    import pyarrow

    content = _expanded(path) if packed else path.read_bytes()
    found = next((name for mark, name in _MARKS if content.startswith(mark)), None)
    if encoding is None and found == "utf-16":
        _say(path, "the encoding is UTF-16")
    content = _decoded(path, content, encoding or found)
    sample = content[:SAMPLE].decode("utf-8", "ignore")
    whole = len(content) <= SAMPLE
    if delimiter is None:
        delimiter = _delimiter(path, sample, whole, usual)
    line = content[: content.find(b"\n") + 1 or len(content)]
    if line.count(delimiter.encode()) * _COLUMN > room(len(content)):
        count = line.count(delimiter.encode()) + 1
        raise FileFormatError(f"read_table: {path} has {count} columns, too many for a file of its size")
    names: list[str] = next(_records(sample, delimiter), [])
    block = _BLOCK
    while True:
        try:
            table = _parsed(content, delimiter, names, _apart(content, block))
        except pyarrow.ArrowInvalid as error:
            if "straddling" in str(error) and block < _LARGEST_BLOCK:  # a cell that is longer than a block
                block = min(8 * block, _LARGEST_BLOCK)
                continue
            hint = "; delimiter=... says what separates cells" if "columns, got" in str(error) else ""
            raise FileFormatError(f"read_table: {path} cannot be read: {error}{hint}") from error
        if all(kind == pyarrow.string() for kind in table.schema.types):
            return table
        names = table.column_names  # which the sample lacked or truncated


def _expanded(path: Path) -> bytes:
    """The content of a compressed file. Raises :class:`FileFormatError` if it expands far more than texts do."""
    most = (path.stat().st_size + (1 << 19)) * _MOST_EXPANDED
    with gzip.open(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise FileFormatError(f"read_table: {path} expands to more than {most} bytes: expand it first")
    return content


def _apart(content: bytes, block: int) -> int:
    """The largest size of blocks, at most ``block``, with which no line end of two bytes is split between two.

    Of a split one in a cell, pyarrow drops the second byte.
    """
    while any(content[end - 1 : end + 1] == b"\r\n" for end in range(block, len(content), block)):
        block -= 1
    return block


def _parsed(content: bytes, delimiter: str, names: Sequence[str], block: int) -> Any:
    import pyarrow
    from pyarrow import csv as reader

    return reader.read_csv(
        pyarrow.BufferReader(content),
        read_options=reader.ReadOptions(block_size=block),
        parse_options=reader.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=reader.ConvertOptions(
            column_types=dict.fromkeys(names, pyarrow.string()), strings_can_be_null=False
        ),
    )


def _decoded(path: Path, content: bytes, encoding: str | None) -> bytes:
    """The content in UTF-8, without a byte-order mark."""
    name = encoding or "utf-8"
    try:
        is_utf8 = codecs.lookup(name).name == "utf-8"
        text = content.decode(name)
    except LookupError:
        raise ArgumentError(f"read_table: no encoding has the name {encoding!r}; 'cp1252' is one") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        hint = (
            "" if encoding else ": encoding='cp1252' reads files of Western Windows, 'latin-1' those of older systems"
        )
        words = f"is not in {name.upper()}, at byte {error.start} in line {line} ({error.reason}){hint}"
        raise FileFormatError(f"read_table: {path} {words}") from None
    return content if is_utf8 else text.encode()


def _records(sample: str, delimiter: str) -> Any:
    """The records of a text; quoted cells may have line ends."""
    return (record for record in csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter) if record)


def _delimiter(path: Path, sample: str, whole: bool, usual: str) -> str:
    """The delimiter of a text: the one that gives all records the same number of cells, above one."""
    fitting = []
    for each in DELIMITERS:
        records = []
        for record in _records(sample, each):
            records.append(len(record))
            if len(records) > RECORDS:
                break
        if not whole and len(records) <= RECORDS and len(records) > 1:
            records.pop()  # which the sample may truncate
        if records and records[0] > 1 and len(set(records)) == 1:
            fitting.append(each)
    if len(fitting) > 1:
        words = " and ".join(_WORDS[each] for each in fitting)
        raise FileFormatError(
            f"read_table: {path} has {words} in equal number in all rows: delimiter={fitting[0]!r} or "
            f"{', '.join(map(repr, fitting[1:]))} says which separate cells"
        )
    found = fitting[0] if fitting else usual
    if found != usual:
        _say(path, f"the cells are separated by {_WORDS[found]}")
    return found


def _say(path: Path, words: str) -> None:
    print(f"note: read_table: {path}: {words}", file=sys.stderr, flush=True)


# ---- types ----


class Space:
    """The bytes that the texts of a table may take in arrays of fixed width; beyond them, widths are variable."""

    def __init__(self, most: int) -> None:
        self.left = most

    def empty(self, count: int, longest: int) -> NDArray[Any]:
        """An array for so many texts."""
        size = 4 * max(longest, 1) * count
        if size > self.left:
            return np.empty(count, np.dtypes.StringDType())
        self.left -= size
        return np.empty(count, f"U{max(longest, 1)}")


def column(cells: Any, missing: Collection[str], what: str, space: Space, decimal: str = ".") -> NDArray[Any]:
    """The cells of a column as an array of the narrowest type that holds all of them."""
    compute = functions()

    bare = compute.utf8_trim_whitespace(cells)
    gaps = _is_in(bare, (*MISSING, *missing))
    given = bare.filter(compute.invert(gaps))
    count = len(given)
    if not count:
        return np.full(len(cells), np.nan)
    has_commas = _all(given, COMMA) and _any(given, ",")
    if has_commas and decimal == ",":
        given = compute.replace_substring(given, ",", ".")
    elif has_commas:
        words = "has numbers with commas, which stay texts; decimal=',' takes them for decimal points"
        print(f"note: read_table: {what} {words}", file=sys.stderr, flush=True)
    elif decimal == "," and _any(given, r"^[+-]?[0-9]*\.[0-9]*$"):  # between thousands, or of another language
        return texts(cells, missing, what, space)
    for kind in (_integers, _floats, _truths, _times):
        found = kind(given, len(cells) > count)
        if found is not None:
            return spread(found, gaps.to_numpy().astype(bool))
    return texts(cells, missing, what, space)


def texts(cells: Any, missing: Collection[str], what: str, space: Space) -> NDArray[Any]:
    """The cells as texts; those in ``missing`` are empty."""
    compute = functions()

    if missing:
        cells = compute.if_else(_is_in(cells, tuple(missing)), "", cells)
    if compute.any(compute.ends_with(cells, "\0")).as_py():
        raise DTypeError(f"read_table: {what} has texts that end with a zero byte, which arrays of strings lose")
    longest = compute.max(compute.utf8_length(cells)).as_py() or 0
    found = space.empty(len(cells), longest)
    for start in range(0, len(cells), _ROWS):  # all texts as Python objects would take the most memory
        found[start : start + _ROWS] = cells.slice(start, _ROWS).to_pylist()
    return found


def is_text(kind: Any) -> bool:
    """Whether a pyarrow type is text."""
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def spread(values: NDArray[Any], gaps: NDArray[np.bool_]) -> NDArray[Any]:
    """Values where there is no gap; NaN or NaT in gaps."""
    if not gaps.any():
        return values
    missing: Any = "NaT" if values.dtype.kind in "mM" else np.nan
    found = np.full(len(gaps), missing, values.dtype if values.dtype.kind in "mM" else np.float64)
    found[~gaps] = values
    return found


def _is_in(cells: Any, values: Sequence[str]) -> Any:
    import pyarrow

    compute = functions()

    return compute.is_in(cells, value_set=pyarrow.array(values, pyarrow.string()))


def _all(cells: Any, pattern: str) -> bool:
    compute = functions()

    return bool(compute.all(compute.match_substring_regex(cells, pattern)).as_py())


def _any(cells: Any, pattern: str) -> bool:
    compute = functions()

    return bool(compute.any(compute.match_substring_regex(cells, pattern)).as_py())


def _cast(cells: Any, kind: Any) -> NDArray[Any] | None:
    """Texts cast to a pyarrow type; None if it cannot read all of them."""
    import pyarrow

    compute = functions()

    try:
        found: NDArray[Any] = compute.cast(cells, kind).to_numpy()
    except pyarrow.ArrowInvalid:
        return None
    return found


def _unsigned(cells: Any) -> Any:
    """Numbers without a leading plus, which casts do not read."""
    compute = functions()

    return compute.utf8_ltrim(cells, "+")


def _integers(cells: Any, gaps: bool) -> NDArray[Any] | None:
    import pyarrow

    if not _all(cells, INTEGER) or _any(cells, LEADING_ZERO):
        return None
    for kind in (pyarrow.int64(), pyarrow.uint64()):
        found = _cast(_unsigned(cells), kind)
        if found is not None:
            return None if gaps and largest(found) > EXACT else found
    return None


def largest(values: NDArray[Any]) -> int:
    """The largest absolute value of integers."""
    return max(abs(int(values.min(initial=0))), abs(int(values.max(initial=0))))


def _floats(cells: Any, gaps: bool) -> NDArray[Any] | None:
    import pyarrow

    compute = functions()

    if not _all(cells, NUMBER) or _any(cells, LEADING_ZERO):
        return None
    whole = cells.filter(compute.match_substring_regex(cells, r"^[+-]?[0-9]{16,}$"))
    if any(len(cell) > _LONGEST_NUMBER or int(float(cell)) != int(cell) for cell in whole.to_pylist()):
        return None
    found = _cast(_unsigned(cells), pyarrow.float64())
    if found is None or (np.isinf(found).any() and not _any(cells, r"(?i)inf")):
        return None
    zeros = cells.filter(pyarrow.array(found == 0))
    return None if _any(zeros, r"^[^eE]*[1-9]") else found  # below the smallest float


def _truths(cells: Any, gaps: bool) -> NDArray[Any] | None:
    compute = functions()

    if not compute.all(_is_in(cells, (*TRUE, *FALSE))).as_py():
        return None
    found: NDArray[Any] = _is_in(cells, TRUE).to_numpy()
    return found.astype(bool)


def _times(cells: Any, gaps: bool) -> NDArray[Any] | None:
    """Days, moments and times of day; moments with a zone in UTC."""
    import pyarrow

    compute = functions()

    if _all(cells, DATE):
        return _cast(cells, pyarrow.date32())
    is_clock, is_zoned = _all(cells, TIME), _all(cells, ZONED)
    if not (is_clock or is_zoned or _all(cells, MOMENT)):
        return None
    digits = compute.max(compute.utf8_length(compute.replace_substring_regex(cells, r"^[^.]*\.?([0-9]*).*$", r"\1")))
    unit = next(unit for limit, unit in ((0, "s"), (3, "ms"), (6, "us"), (9, "ns")) if digits.as_py() <= limit)
    if is_clock:
        cells = compute.binary_join_element_wise("1970-01-01T", cells, "")
    if is_zoned:
        cells = compute.replace_substring_regex(cells, " (Z|[+-])", r"\1")
    found = _cast(cells, pyarrow.timestamp(unit, "UTC" if is_zoned else None))
    if found is None:
        return None
    return found.astype(f"m8[{unit}]") if is_clock else found


# ---- requested types ----


def typed(
    cells: Any, dtype: np.dtype[Any], missing: Collection[str], what: str, space: Space, decimal: str = "."
) -> NDArray[Any]:
    """The cells in a dtype. Raises :class:`DTypeError`, which names the first cell that it cannot hold."""
    compute = functions()

    if dtype.kind in "UT":
        found = texts(cells, missing, what, space)
        return found if found.dtype.kind == "T" and not dtype.itemsize else found.astype(dtype)
    bare = compute.utf8_trim_whitespace(cells)
    gaps = _is_in(bare, (*MISSING, *missing)).to_numpy().astype(bool)
    if dtype.kind in "iub" and gaps.any():
        row = int(np.flatnonzero(gaps)[0])
        raise DTypeError(
            f"read_table: {what} is missing in row {row + 1}, for which {dtype} has no value: a float dtype has NaN"
        )
    found = np.full(len(bare), np.nan if dtype.kind == "f" else 0 if dtype.kind in "iub" else "NaT", dtype)
    if dtype.kind in "mM":
        given = _times(bare.filter(compute.invert(_is_in(bare, (*MISSING, *missing)))), False)
        if given is None or given.dtype.kind != dtype.kind:
            raise DTypeError(f"read_table: {what} has cells that are not all times such as 2024-01-31 or 12:30")
        found[~gaps] = given
        return found
    for start in range(0, len(bare), _ROWS):
        values = bare.slice(start, _ROWS).to_pylist()
        for row in map(int, np.flatnonzero(~gaps[start : start + _ROWS])):
            try:
                found[start + row] = _value(values[row], dtype, decimal)
            except (ValueError, OverflowError):
                hint = ": decimal=',' reads it" if dtype.kind == "f" and re.fullmatch(COMMA, values[row]) else ""
                raise DTypeError(
                    f"read_table: {what} has {values[row]!r:.60} in row {start + row + 1}, which cannot be read as "
                    f"{dtype}{hint}"
                ) from None
    return found


def _value(cell: str, dtype: np.dtype[Any], decimal: str) -> Any:
    """A cell as a number. Raises ValueError for any other."""
    if dtype.kind == "f":
        if decimal == ",":
            if "." in cell:
                raise ValueError(cell)
            cell = cell.replace(",", ".")
        if not re.fullmatch(NUMBER, cell):
            raise ValueError(cell)
        return float(cell)
    if dtype.kind == "b":
        if cell not in (*TRUE, *FALSE, "0", "1"):
            raise ValueError(cell)
        return cell in (*TRUE, "1")
    if not re.fullmatch(INTEGER, cell):
        raise ValueError(cell)
    return int(cell)
