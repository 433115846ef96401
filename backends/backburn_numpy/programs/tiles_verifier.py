"""A verifier of passes over rows: proves, without knowing how a pass was laid out, that kernels read the right memory.

It reads the table as the interpreter does, for tiles at both ends of the first and the last portion: every read lies in
memory that holds the value, every write in a result or in a thread's scratch memory, and every result is complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from backburn.base.errors import CaptureError
from backburn.programs.fusion.plan import Extent, Repeat
from backburn.programs.ir import Call
from backburn.programs.lowering import Value
from backburn_numpy import compiled
from backburn_numpy.elementwise.fused import DOWNCASTS, UPCASTS
from backburn_numpy.programs.effects import ARRAYS_ALONG_ROWS, Refused
from backburn_numpy.programs.tile_loops import Joined

#: The ways to call a kernel and the words of a step, as ``tile_interpreter.c`` numbers and counts them.
ELEMENTS, NUMBERS, BY_ROW, REDUCE, COLUMNS, ALONG, NORM, NORM_BACKWARD, CODE, MOMENTS = range(10)
WORDS = 23
#: The kernels that convert 16-bit floats, and which of their arrays holds these.
HALVES = {**dict.fromkeys(UPCASTS.values(), 1), **dict.fromkeys(DOWNCASTS.values(), 0)}


class Start(NamedTuple):
    """Memory that a pass is given: the value in it, its bytes, those of a row, and whether it is a result.

    For sums of columns ``row`` is -1. A repeated input has rows of ``row_of_repeat`` bytes.
    """

    value: Value
    size: int
    row: int
    is_result: bool
    repeat: Repeat | None = None
    row_of_repeat: int = 0

    def offsets(self, rows: range) -> np.ndarray[Any, Any]:
        """The offset in bytes of each of some rows."""
        if self.repeat is None:
            return np.arange(rows.start, rows.stop) * self.row
        shape, whole = self.repeat
        places = np.unravel_index(np.arange(rows.start, rows.stop), whole)
        own = [place * (n > 1) for place, n in zip(places, shape, strict=True)]
        return np.ravel_multi_index(own, shape) * self.row_of_repeat


class Finished(NamedTuple):
    """A pass as it is replayed, and the kernels that it should call.

    A kernel is its name, its result and its operands, each with whether the kernel reads a single number of it.
    """

    words: np.ndarray[Any, Any]
    fixed: np.ndarray[Any, Any]
    rows: int
    width: int
    kernels: Sequence[tuple[str, Value, Sequence[tuple[Value, bool]]] | Joined]
    extents: Mapping[Value, Extent]
    #: The array of each value that stands for its single numbers, and the constants embedded in code.
    arrays: Mapping[Value, Value]
    numbers: Mapping[Value, float]
    tables: Sequence[np.ndarray[Any, Any]]
    starts: Sequence[Start]
    portions: int
    makers: Mapping[Value, Call]
    #: Arrays filled with one number, and the number.
    constants: Sequence[tuple[np.ndarray[Any, Any], float]]
    #: The epsilon of each norm, and whether it subtracts the mean; the sums of columns that a kernel also computes.
    options: Mapping[Value, tuple[float, bool]]
    sums: Mapping[Value, Value]
    #: The values that are moments, four numbers per row.
    moments: Set[Value]
    #: The value that stands for an absent operand.
    absent: Value
    #: The terms by which the interpreter computes where rows begin, if an input is repeated.
    terms: np.ndarray[Any, Any] | None


class _Part(NamedTuple):
    """Bytes of a start, or of scratch memory (-1)."""

    start: int
    first: int
    end: int

    def meets(self, other: _Part) -> bool:
        return self.start == other.start and self.first < other.end and other.first < self.end


def verify(finished: Finished) -> None:
    """Raise a :class:`CaptureError` that names the recorded call if a pass does not compute what was recorded."""
    value = _made(finished.kernels[0])
    try:
        _, length, rows, width, tall, portion, _, _, block, _ = finished.fixed.tolist()
        if (length, rows, width) != (len(finished.kernels), finished.rows, finished.width):
            raise Refused("it has other steps, or other rows")
        if portion % tall or not 0 < rows - (finished.portions - 1) * portion <= portion:
            raise Refused("its portions are not its rows")
        if any(
            not np.array_equal(array, np.full_like(array, number), equal_nan=True)
            for array, number in finished.constants
        ):
            raise Refused("a constant is another number")
        for tile_rows in _tiles(rows, tall, portion, block):
            tile = _Tile(finished, tile_rows)
            for step in range(length):
                value = _made(finished.kernels[step])
                tile.run(step)
            for number, start in enumerate(finished.starts):
                value = start.value
                if start.is_result and tile.held.get(tile.whole(number)) is not value:
                    raise Refused("not all of its result is written")
    except Refused as error:
        call = finished.makers[value]
        raise CaptureError(
            f"the pass that computes {call.operation} was planned wrong: {error}. This is a fault of backburn, please "
            "report it; capture(numpy, join=false) has no passes"
        ) from None


def _made(kernel: tuple[str, Value, Any] | Joined) -> Value:
    """The first value of a step."""
    return kernel.writes[0] if isinstance(kernel, Joined) else kernel[1]


def _tiles(rows: int, tall: int, portion: int, block: int) -> list[range]:
    """The rows of the first two tiles, those around the end of the first block, and the last, of the outer portions."""
    found: dict[range, None] = {}
    for start in dict.fromkeys((0, (rows - 1) // portion * portion)):
        end, tiles = min(start + portion, rows), list[range]()
        while (top := tiles[-1].stop if tiles else start) < end:
            tiles.append(range(top, min(top + tall, end, (top // block + 1) * block)))
        around = next((i for i, x in enumerate(tiles) if x.stop % block == 0), 0)
        found.update(dict.fromkeys((*tiles[:2], *tiles[around : around + 2], tiles[-1])))
    return [*found]


class _Tile:
    """A tile of some rows, and what memory holds while its steps run."""

    def __init__(self, finished: Finished, rows: range) -> None:
        self._finished = finished
        _, _, _, self._width, _, self._portion, self._size, self._room, _, at = finished.fixed.tolist()
        self._terms = finished.terms
        if at != (0 if self._terms is None else compiled.address(self._terms)):
            raise Refused("repeated inputs are read by other terms")
        self._top, self._rows = rows.start, len(rows)
        #: The parts that have been written, with the values in them.
        self.held: dict[_Part, Value] = {}

    def whole(self, number: int) -> _Part:
        """The part of a result that a tile writes."""
        start = self._finished.starts[number]
        if start.row >= 0:
            return _Part(number, self._top * start.row, (self._top + self._rows) * start.row)
        first = self._sums()
        return _Part(number, first, first + self._width * 8)

    def _sums(self) -> int:
        """Where the sums of the columns of the tile's portion begin."""
        return self._top // self._portion * self._width * 8

    def run(self, step: int) -> None:
        """Check a step, and note what it writes."""
        entry = self._finished.kernels[step]
        if isinstance(entry, Joined):
            self._run_code(step, entry)
            return
        name, made, given = entry
        words = self._finished.words.reshape(-1, WORDS)[step]
        kernel, how, arrays, *_ = words.tolist()
        found: Any = compiled.kernel(name)
        if kernel != found.where:
            raise Refused("a step calls another kernel")
        line, column = self._width * self._size, self._rows * self._size
        if how == REDUCE:
            lengths = [self._rows * line, column]
        elif how == COLUMNS:
            lengths = [self._rows * line, 8 * self._width]
        elif how in (ALONG, NORM, NORM_BACKWARD, MOMENTS):
            sizes = {
                "F": self._rows * line,
                "R": column,
                "M": 4 * column,
                "I": self._rows * 8,
                "C": line,
                "S": 8 * self._width,
            }
            lengths = [sizes[kind] for kind in ARRAYS_ALONG_ROWS[name.removesuffix("_double")][0]]
            options = float(words[-2:-1].view(np.float64)[0]), bool(words[-1])
            if options != self._finished.options.get(made, (0.0, False)):
                raise Refused("a norm has other options")
        else:
            length = {ELEMENTS: self._rows * line, NUMBERS: column, BY_ROW: line}[how]
            lengths = [length, *(self._size if is_number else length for _, is_number in given)]
            if name in HALVES:  # of the result or the operand
                lengths[HALVES[name]] //= 2
        if arrays != len(lengths):
            raise Refused("a step has another number of arrays")
        parts = [self._parts(step, i, length, how) for i, length in enumerate(lengths)]
        at = 0 if how in (ELEMENTS, NUMBERS, BY_ROW) else len(parts) - 1
        if how in (ALONG, NORM, NORM_BACKWARD, MOMENTS):
            at = ARRAYS_ALONG_ROWS[name.removesuffix("_double")][1]
        result, operands = parts[at], [*parts[:at], *parts[at + 1 :]][: len(given)]
        if any(
            bool(mine) is (value is self._finished.absent) for (value, _), mine in zip(given, operands, strict=True)
        ):
            raise Refused("an operand is absent, or another is")
        for (value, _), mine in zip(given, operands, strict=True):
            for r, part in enumerate(mine):
                self._read(value, part, range(r, r + 1) if how == BY_ROW else range(self._rows))
        besides = [*parts[-2], *parts[-1]] if how == NORM_BACKWARD else []
        for part in [*result, *besides]:
            if any(part.meets(x) for mine in operands for x in mine):
                raise Refused("a step writes over its operand")
            for other in [x for x in self.held if x.meets(part)]:
                del self.held[other]
        self._write(made, result)
        if how == NORM_BACKWARD:
            self._write(self._finished.sums[made], parts[-1])

    def _run_code(self, step: int, joined: Joined) -> None:
        """Check a step of machine code, and note what it writes."""
        finished = self._finished
        address, how, count, at, *_ = finished.words.reshape(-1, WORDS)[step].tolist()
        table = next((x for x in finished.tables if compiled.address(x) == at), None)
        if (address, how) != (joined.code.address, CODE) or table is None:
            raise Refused("a step runs other code")
        arrays = joined.arrays
        if not count == len(table) == len(arrays):
            raise Refused("a step has another number of arrays")
        known = {*joined.reads}
        for _, made, given in joined.calls:
            if any(finished.arrays.get(x, x) not in known for x in given if x not in finished.numbers):
                raise Refused("code reads what it has not made")
            if finished.extents[made] is Extent.FULL:  # values per row are known after the loop
                known.add(made)
        if not {made for _, made, _ in joined.calls} >= {*joined.writes}:
            raise Refused("code does not make what it writes")
        of = {
            x: self._part_of_code(x, place, x in joined.some) for x, place in zip(arrays, table.tolist(), strict=True)
        }
        read = [of[x] for x in joined.reads]
        for x, part in zip(joined.reads, read, strict=True):
            self._read(x, part, range(self._rows))
        written = [of[x] for x in (*joined.writes, *joined.some)]
        for i, part in enumerate(written):
            if any(part.meets(x) for x in [*read, *written[:i]]):
                raise Refused("a step writes over its operand")
            for other in [x for x in self.held if x.meets(part)]:
                del self.held[other]
        for x in joined.writes:
            self._write(x, [of[x]])

    def _part_of_code(self, value: Value, place: Sequence[int], is_room: bool) -> _Part:
        """The part of an array that code reads or writes; code itself advances from row to row."""
        start, first, stride = place
        line = self._width * self._size
        extent = Extent.COLUMN if is_room else self._finished.extents[value]
        length = {Extent.FULL: self._rows * line, Extent.ROW: self._rows * self._size, Extent.COLUMN: line}.get(
            extent, self._size
        )
        if value in self._finished.moments:
            length *= 4
        if is_room:  # of whole vectors
            length = -(-line // 64) * 64
        if start >= 0 and stride < 0:
            first, length = first + self._sums(), 8 * self._width
        elif start >= 0:
            first += self._offset(start, stride)
        limit = self._room if start < 0 else self._finished.starts[start].size
        if first < 0 or first + length > limit:
            raise Refused("a step leaves the memory of a value")
        return _Part(start, first, first + length)

    def _parts(self, step: int, i: int, length: int, how: int) -> list[_Part]:
        """The parts of an array that a kernel reads or writes, call by call."""
        at = step * WORDS + 3 + 3 * i
        start, first, stride = self._finished.words[at : at + 3].tolist()
        if start == -2:
            return []
        if start >= 0:
            first += self._sums() if stride < 0 else self._offset(start, stride)
        limit = self._room if start < 0 else self._finished.starts[start].size
        rows = range(self._rows if how == BY_ROW else 1)
        found = [_Part(start, first + r * stride, first + r * stride + length) for r in rows]
        if any(x.first < 0 or x.end > limit for x in found):
            raise Refused("a step leaves the memory of a value")
        return found

    def _offset(self, start: int, stride: int) -> int:
        """The offset of the tile in an array, as the interpreter computes it."""
        if self._terms is None:
            return self._top * stride
        terms = self._terms[start].tolist()
        return sum((self._top // each % count if count else self._top) * between for each, count, between in terms)

    def _read(self, value: Value, part: _Part, rows: range) -> None:
        """Check that a part of memory has these rows of the tile of the value."""
        if part.start >= 0 and not (start := self._finished.starts[part.start]).is_result:
            offsets = start.offsets(range(self._top + rows.start, self._top + rows.stop))
            if start.value is not value or part.first != offsets[0] or (np.diff(offsets) != start.row).any():
                raise Refused("a step reads another operand")
            return
        for whole, held in self.held.items():
            row = (whole.end - whole.first) // self._rows
            if (
                held is value
                and part.start == whole.start
                and part.first == whole.first + rows.start * row
                and part.end <= whole.end
            ):
                return
        raise Refused("a step reads what is not there yet, or no longer")

    def _write(self, value: Value, parts: Sequence[_Part]) -> None:
        """Note a value, whose rows must be contiguous and in their place."""
        whole = _Part(parts[0].start, parts[0].first, parts[-1].end)
        if any(x.end != y.first for x, y in pairwise(parts)):
            raise Refused("a step leaves out elements of its result")
        if whole.start >= 0:
            start = self._finished.starts[whole.start]
            if not start.is_result or start.value is not value or whole != self.whole(whole.start):
                raise Refused("a step writes to the memory of another value")
        self.held[whole] = value
