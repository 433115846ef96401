"""A verifier of native programs: proves, without knowing how one was planned, that it computes what was recorded.

It reads the words that the kernel reads, and runs the steps on symbols: each element of a recorded value has one, and
memory holds the symbols of what was written there last. A step may read its call's operands and what the same call has
written before, and write to the places that the plan has assigned to its call's values. So

- every read and write lies in memory that the program owns, or is given, and what is given or constant is only read,
- every element is written before it is read,
- nothing is overwritten that a later step reads: that would find another value's symbols,
- results are complete, in separate memory, and hold what was recorded when the program ends,
- no step reads what it writes, and its threads write disjoint ranges.

Steps that only move elements (copies, transpositions) move symbols; NumPy's slices, stacks and transpositions give the
symbols that the result of the recorded call must have. The symbol of a constant is its bits.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, NoReturn

import numpy as np

from backburn.base.errors import CaptureError
from backburn.programs.ir import Call, Number, Variable, arguments
from backburn_numpy import compiled
from backburn_numpy.programs import tiles_verifier
from backburn_numpy.programs.effects import CELLS, EFFECTS, MOVES, Refused, kernels, uses_of
from backburn_numpy.runtime import blas, gemm

Array = Any

#: Whether native programs are verified when they are planned, and updates of state before they run.
VERIFIES = os.environ.get("BACKBURN_DEBUG", "") not in ("", "0")

#: The kinds of steps, and the words of each without those of a formula's or a pass's arrays.
FORMULA, COPY, KERNEL_CALL, PRODUCT, TRANSPOSE, PASS = range(6)
WORDS = {FORMULA: 5, COPY: 8, KERNEL_CALL: 14, PRODUCT: 15, TRANSPOSE: 8, PASS: 4}
#: The bytes that a symbol stands for.
UNIT = 4
#: The bytes that the interpreter of formulas computes at a time, and the most arrays of a formula for rows.
SPAN, MOST_ARRAYS = 1 << 11, 64


class Value(NamedTuple):
    """A place that the plan has assigned to a variable or an intermediate value: the call, the address and the size."""

    variable: Variable | None
    call: Call
    #: The index of the start (an address that replays pass) and the offset from it; or None and the address.
    start: int | None
    at: int
    size: int
    #: Whether it is a result that is copied after the steps of all calls.
    is_copied: bool


class Finished(NamedTuple):
    """A native program as it is replayed."""

    words: Array
    #: The words that a replay replaces: the index, the start, and the offset from it in bytes.
    patches: Array
    calls: Sequence[Call]
    #: The call of each step.
    owners: Sequence[Call]
    values: Sequence[Value]
    given: Sequence[Variable | Number]
    #: The bytes that a replay allocates for each new array.
    news: Sequence[int]
    #: Each result: the number of its new array, and the offset in bytes.
    results: Sequence[tuple[Variable, int, int]]
    arena: Array
    constants: Sequence[Array]
    #: Arrays of one number, which is written before the steps.
    cells: Sequence[tuple[Number, Array]]
    #: The programs of formulas, by the address of their fixed part.
    formulas: Mapping[int, Any]
    #: Passes over rows as their verifier reads them, likewise.
    passes: Mapping[int, tiles_verifier.Finished]


class Region(NamedTuple):
    """Memory: its name, the symbols of its units (0 for what nothing has written), and whether steps may write it."""

    name: str
    symbols: Array
    is_written: bool


class Span(NamedTuple):
    """Bytes of a region: rows of ``length`` elements of ``size`` bytes that begin ``between`` bytes apart."""

    region: Region
    start: int
    rows: int
    between: int
    length: int
    size: int

    @property
    def ends(self) -> tuple[int, int]:
        """The first byte and the one after the last."""
        first = last = self.start
        if self.between < 0:
            first += self.between * (self.rows - 1)
        else:
            last += self.between * (self.rows - 1)
        return first, last + self.length * self.size

    def elements(self) -> Array:
        """The indices of the elements in the region, (rows, count)."""
        first = self.start // self.size
        if self.rows == 1:
            return np.arange(first, first + self.length)[None]
        return np.arange(self.rows)[:, None] * (self.between // self.size) + np.arange(first, first + self.length)

    def symbols(self) -> Array:
        """The symbols of the elements, (rows, count, units)."""
        first, all_of_region = self.start // self.size, self.region.symbols.reshape(-1, self.size // UNIT)
        return all_of_region[first : first + self.length][None] if self.rows == 1 else all_of_region[self.elements()]


def verify(finished: Finished) -> None:
    """Raise a :class:`CaptureError` that names the recorded call if a native program is not what was recorded."""
    _Run(finished).run()


class _Run:
    """A run of a native program on symbols."""

    def __init__(self, finished: Finished) -> None:
        self._list = finished
        self._next = 1
        #: The first symbol of each maker, and its name, for errors.
        self._begins: list[int] = []
        self._makers: list[str] = []
        self._symbols: dict[Any, Array] = {}
        for x in finished.given:
            if isinstance(x, Variable):
                self._symbols[x] = self._new(x.shape, _size(x), "what is given")
        for number, cell in finished.cells:
            self._symbols[number, cell.dtype.itemsize] = self._new((), cell.dtype.itemsize, "a number")
        for call in finished.calls:
            self._record(call)
        given = [x for x in finished.given if isinstance(x, Variable)]
        #: The regions that replays pass, in the order of their starts, and others by their first address.
        self._starts = [Region(f"given array {i}", _line(self._symbols[v]), False) for i, v in enumerate(given)]
        self._starts += [Region(f"new array {i}", _unwritten(n), True) for i, n in enumerate(finished.news)]
        fixed = {compiled.address(cell): _line(self._symbols[x, cell.dtype.itemsize]) for x, cell in finished.cells}
        regions = {at: Region("a number", symbols, False) for at, symbols in fixed.items()}
        regions |= {at: Region("a constant", bits, False) for at, bits in _constants(finished.constants)}
        if finished.arena.size:
            regions[compiled.address(finished.arena)] = Region("the arena", _unwritten(finished.arena.size), True)
        self._addresses = sorted(regions)
        self._regions = [regions[at] for at in self._addresses]
        self._places: dict[Call, list[tuple[Region, int, int, Value]]] = defaultdict(list)
        #: The memory that replays pass, by the index of the word that they replace.
        self._patches: dict[int, tuple[Region, int]] = {}
        #: The call whose step runs, and the first symbol of its intermediate values.
        self._call = finished.calls[0]
        self._scratch = self._next
        #: The number of the last call that may read each symbol, and of the last that has read it.
        self._may_read, self._has_read = np.zeros((2, self._next), np.int64)
        self._number = 0
        self._size = UNIT
        #: The variables, numbers and arrays that the call reads, in order.
        self._operands: list[Any] = []

    # ---- what was recorded ----

    def _new(self, shape: tuple[int, ...], size: int, maker: str) -> Array:
        """New symbols, (*shape, units)."""
        units = size // UNIT
        found = np.arange(self._next, self._next + prod(shape) * units).reshape(*shape, units)
        self._begins.append(self._next)
        self._makers.append(maker)
        self._next += found.size
        return found

    def _of(self, x: Any, size: int) -> Array:
        """The symbols of an operand."""
        if isinstance(x, Variable):
            return self._symbols[x]
        if isinstance(x, Number):
            return self._symbols[x, size]
        return _bits(np.ascontiguousarray(x)).reshape(*x.shape, -1)

    def _record(self, call: Call) -> None:
        """Note the symbols of the results of a recorded call."""
        move = MOVES.get(call.operation)
        if move is not None:
            result = call.results
            size = _size(result)
            self._symbols[result] = move(lambda x: self._of(x, size), arguments(call), result)
            return
        for v in call.results if isinstance(call.results, list) else [call.results]:
            if v is not None:
                self._symbols[v] = self._new(v.shape, _size(v), call.operation)

    # ---- steps ----

    def run(self) -> None:
        """Run the steps, and check the results."""
        try:
            for value in self._list.values:
                self._call = value.call
                size = value.size if value.variable is None else prod(value.variable.shape) * _size(value.variable)
                region, start = self._find(value.at) if value.start is None else (self._starts[value.start], value.at)
                self._places[value.call].append((region, start, size, value))
            for place, start, offset in self._list.patches.tolist():
                if place in self._patches:
                    raise Refused("a replay replaces a word twice")
                self._patches[place] = self._starts[start], offset
            self._steps()
            if self._patches:
                raise Refused("a replay replaces a word that is not an address")
            for v, number, start in self._list.results:
                self._call = next(call for call in self._list.calls if v in call.writes)
                wanted = self._symbols[v]
                line = _line(wanted)
                region = self._starts[len(self._starts) - len(self._list.news) + number]
                found = region.symbols[start // UNIT : start // UNIT + len(line)]
                if start < 0 or len(found) < len(line):
                    raise Refused(f"its result ends outside {region.name}")
                self._compare(found, line, "its result")
        except Refused as error:
            self._refuse(error)

    def _refuse(self, error: Refused) -> NoReturn:
        calls = [*self._list.calls]
        results = self._call.results if isinstance(self._call.results, list) else [self._call.results]
        shown = ", ".join(f"{v.dtype}{list(v.shape)}" for v in results if v is not None)
        raise CaptureError(
            f"the native program of its call {calls.index(self._call) + 1} of {len(calls)}, {self._call.operation} -> "
            f"{shown}, was planned wrong: {error}. This is a fault of backburn, please report it; "
            "capture(numpy, join=false) compiles no native programs"
        ) from None

    def _steps(self) -> None:
        """Run the steps of each call, in the order of the calls, and those that copy results."""
        at, left = 0, [*reversed(self._list.calls)]
        unseen = {*left}
        current: Call | None = None
        is_copied = False
        for step, owner in enumerate(self._list.owners):
            if owner is not current:
                if current is not None:
                    self._finish(is_copied)
                is_copied = owner not in unseen
                while left and (is_copied or left[-1] is not owner):
                    self._begin(left.pop())
                    self._finish(False)  # a view, or parts that are already in place
                    unseen.remove(self._call)
                if not is_copied:
                    unseen.remove(left.pop())
                self._begin(owner)
                current = owner
            at = self._step(step, at)
        if current is not None:
            self._finish(is_copied)
        for call in reversed(left):
            self._begin(call)
            self._finish(False)
        if at != len(self._list.words):
            raise Refused(f"there are {len(self._list.words) - at} words after the last step")

    def _begin(self, call: Call) -> None:
        self._call = call
        self._number += 1
        self._size = next(_size(v) for v in call.writes)
        values = [*call.operands[1:], *call.attributes.values()] if call.operation == "fuse" else arguments(call)
        nested = [y for x in values for y in (x if x.__class__ is list else (x,))]
        self._operands = [x for x in nested if x.__class__ in (Variable, Number, np.ndarray)]
        for x in self._operands:
            if x.__class__ is not np.ndarray:
                symbols = self._of(x, self._size)
                self._may_read[symbols[symbols > 0]] = self._number
        for v in call.writes:
            symbols = self._symbols[v]
            self._may_read[symbols[symbols > 0]] = self._number
        self._scratch = self._next

    def _finish(self, is_copied: bool) -> None:
        """Check, after the last step of a call, that its results are complete and its operands read."""
        for region, start, size, value in self._places[self._call]:
            v = value.variable
            if v is not None and v in self._call.writes and value.is_copied is is_copied:
                found = region.symbols[start // UNIT : (start + size) // UNIT]
                self._compare(found, _line(self._symbols[v]), "its result")
        if self._call.operation not in CELLS and self._call.operation not in MOVES:
            for x in self._operands:
                symbols = self._symbols[x] if isinstance(x, Variable) else np.zeros(0, np.int64)
                if not (self._has_read[symbols[symbols > 0]] == self._number).all():
                    raise Refused(f"it does not read all of an operand, {x.dtype}{list(x.shape)}")

    def _step(self, number: int, at: int) -> int:
        """Run a step; returns the index of the next one's first word."""
        words = self._list.words[at : at + 5].tolist()
        kind = words[0] if words else -1
        known = {FORMULA: self._list.formulas, PASS: self._list.passes}.get(kind)
        if kind not in WORDS or (known is not None and words[2] not in known):
            raise Refused(f"step {number} is of no known kind")
        arrays = self._list.formulas[words[2]].arrays if kind == FORMULA else 0
        length = WORDS[kind] + (len(self._list.passes[words[2]].starts) if kind == PASS else 2 * arrays)
        if words[1] != length or at + length > len(self._list.words):
            raise Refused(f"step {number} has {words[1]} words instead of {length}")
        words = self._list.words[at : at + length].tolist()
        self._at = at
        {
            FORMULA: self._formula,
            COPY: self._copy,
            KERNEL_CALL: self._kernel,
            PRODUCT: self._product,
            TRANSPOSE: self._transpose,
            PASS: self._pass,
        }[kind](words)
        return at + length

    # ---- memory ----

    def _find(self, address: int) -> tuple[Region, int]:
        i = bisect_right(self._addresses, address) - 1
        if i < 0:
            raise Refused("an address is in no memory of the program")
        return self._regions[i], address - self._addresses[i]

    def _span(self, words: list[int], at: int, count: int, size: int, rows: int = 1, between: int = 0) -> Span:
        """The bytes at the address in a word, as rows of elements."""
        region, start = self._patches.pop(self._at + at) if self._at + at in self._patches else self._find(words[at])
        span = Span(region, start, rows, between, count, size)
        first, end = span.ends
        if count < 1 or rows < 1:
            raise Refused("a step has no elements")
        whole = len(region.symbols) * UNIT
        if first < 0 or end > whole or any(n % size for n in (start, between, whole)):
            raise Refused(f"bytes {first} to {end} are used of {region.name}, which has {whole}")
        return span

    def _read(self, span: Span) -> Array:
        """The symbols that a step of the call reads, (rows, count, units)."""
        found = span.symbols()
        if not found.all():
            first, end = span.ends
            raise Refused(f"bytes {first} to {end} of {span.region.name} are read before all of them are written")
        old = found
        if found.min() < 0 or found.max() >= len(self._may_read):
            old = found[(found > 0) & ((found < len(self._may_read)) | (found < self._scratch))]
            if old.size and old.max() >= len(self._may_read):
                raise Refused(f"it reads {self._what(old.max())}, which is not its operand")
        if not (is_operand := self._may_read[old] == self._number).all():
            raise Refused(f"it reads {self._what(old[~is_operand][0])}, which is not its operand")
        self._has_read[old] = self._number
        return found

    def _what(self, symbol: int) -> str:
        return f"a value of {self._makers[bisect_right(self._begins, symbol) - 1]}"

    def _compare(self, found: Array, wanted: Array, what: str) -> None:
        if found.shape != wanted.shape or not np.array_equal(found, wanted):
            wrong = found[found != wanted] if found.shape == wanted.shape else found.reshape(-1)
            held = self._what(wrong[0]) if wrong.size and wrong[0] > 0 else "a constant" if wrong.all() else "nothing"
            raise Refused(f"where {what} is to lie, there is {held}")

    def _place(self, span: Span, symbols: Array | None = None) -> tuple[Variable | None, Array]:
        """The value of the call that a step writes, and which of its elements, (rows, count).

        Several values of the call may lie there one after the other: it is one that has the ``symbols``, if there is
        one.
        """
        first, end = span.ends
        if not span.region.is_written:
            raise Refused(f"it writes over {span.region.name}")
        if span.rows > 1 and abs(span.between) < span.length * span.size:
            raise Refused("the rows that it writes overlap")
        found = [
            (value.variable, span.elements() - start // span.size)
            for region, start, size, value in self._places[self._call]
            if region is span.region and start <= first and end <= start + size
        ]
        if not found:
            raise Refused(f"it writes bytes {first} to {end} of {span.region.name}, where no value of it lies")
        for v, elements in found[1:]:  # several values of the call, one after the other
            if v is None:
                continue
            if symbols is None and v in self._call.writes and self._call.operation not in MOVES:
                return v, elements
            if symbols is not None and np.array_equal(symbols, self._elements(v, elements, span.size)):
                return v, elements
        return found[0]

    def _elements(self, v: Variable, elements: Array, size: int) -> Array:
        """The symbols of some elements of a variable, (rows, count, units)."""
        return self._symbols[v].reshape(-1, size // UNIT)[elements]

    def _write(self, span: Span) -> None:
        """Write what a step computes."""
        v, elements = self._place(span)
        units = span.size // UNIT
        if v is None:
            symbols = self._new(elements.shape, span.size, self._call.operation)
        elif v not in self._call.writes or self._call.operation in MOVES:
            raise Refused("it computes what is to be moved")
        else:
            symbols = self._elements(v, elements, span.size)
        span.region.symbols.reshape(-1, units)[span.elements()] = symbols

    def _move(self, span: Span, symbols: Array) -> None:
        """Write what a step moves, (rows, count, units)."""
        v, elements = self._place(span, symbols)
        if v is not None and (v not in self._call.writes or self._call.operation in MOVES):
            self._compare(symbols, self._elements(v, elements, span.size), "a part of it")
        span.region.symbols.reshape(-1, span.size // UNIT)[span.elements()] = symbols

    def _apart(self, writes: Sequence[Span], reads: Sequence[Span]) -> None:
        """Refuse a step that writes memory which it also reads, or writes twice."""
        for i, one in enumerate(writes):
            for other in (*writes[i + 1 :], *reads):
                (a, b), (c, d) = one.ends, other.ends
                if one.region is other.region and a < d and c < b:
                    raise Refused(f"a step writes bytes {a} to {b} of {one.region.name}, and uses {c} to {d} as well")

    # ---- the kinds of steps ----

    def _copy(self, words: list[int]) -> None:
        rows, width, out_step, step = words[4:]
        out = self._span(words, 2, width // UNIT, UNIT, rows, out_step)
        source = self._span(words, 3, width // UNIT, UNIT, rows, step)
        if width % UNIT:
            raise Refused("a row that is copied ends within an element")
        self._apart([out], [source])
        self._move_units(out, self._read(source))

    def _move_units(self, out: Span, symbols: Array) -> None:
        """Move symbols of single units, whatever the size of the elements."""
        units = self._size // UNIT
        if out.length % units:
            raise Refused("a row that is copied ends within an element")
        whole = out._replace(length=out.length // units, size=units * UNIT)
        if out.start % whole.size or out.between % whole.size:
            raise Refused("a row that is copied begins within an element")
        self._move(whole, symbols.reshape(out.rows, -1, units))

    def _transpose(self, words: list[int]) -> None:
        count, rows, columns, size = words[4:]
        every = count * rows * columns
        out, source = (self._span(words, i, every, size) for i in (2, 3))
        self._apart([out], [source])
        region = source.symbols()
        if not region.all():
            raise Refused("a matrix is transposed before all of it is written")
        turned = region.reshape(count, rows, columns, -1).swapaxes(1, 2).reshape(1, every, -1)
        self._move(out, turned)

    def _product(self, words: list[int]) -> None:
        address, turned_x, turned_y, m, n, k = words[2:8]
        left, right, adds, size = words[9], words[11], words[12], words[14]
        known = {0, blas.library_sgemm_address(), gemm.sgemm_address()}
        if address not in known or (address and size != 4) or size != self._size:
            raise Refused("a product calls no function for its elements")
        x = self._span(words, 8, *((m, size, k) if turned_x else (k, size, m)), left * size)
        y = self._span(words, 10, *((k, size, n) if turned_y else (n, size, k)), right * size)
        out = self._span(words, 13, m * n, size)
        if min(left - x.length, right - y.length) < 0:
            raise Refused("the rows of a factor overlap")
        self._apart([out], [x, y])
        for i, (span, turned) in enumerate(((x, turned_x), (y, turned_y))):
            symbols = self._read(span)
            matrix = symbols.swapaxes(0, 1) if turned else symbols
            if self._call.operation == "linear_weight_backward":  # of all rows
                rows = self._rows(i)
                self._compare(matrix, rows if i else rows.swapaxes(0, 1), "a factor")
            else:
                self._is_matrix(matrix)
        if adds:
            self._read(out)
        self._write(out)

    def _rows(self, number: int) -> Array:
        """The symbols of an operand of the call as one matrix, (rows, columns, units)."""
        symbols = self._of(self._call.operands[number], self._size)
        return symbols.reshape(-1, *symbols.shape[-2:])

    def _is_matrix(self, symbols: Array) -> None:
        """Check that rows of a factor are rows of an operand, perhaps transposed, or of an intermediate value."""
        if (symbols >= self._scratch).all():
            return
        units = symbols.shape[-1]
        line = symbols.reshape(-1, units)
        for x in (*self._operands, *self._call.writes):
            own = self._of(x, units * UNIT)
            turned = [own.swapaxes(-2, -3)] if own.ndim > 2 else []
            for whole in (own, *turned):
                flat = whole.reshape(-1, units)
                for start in np.flatnonzero((flat == line[0]).all(-1)).tolist():
                    if np.array_equal(flat[start : start + len(line)], line):
                        return
        raise Refused("a factor is not a matrix of an operand")

    def _kernel(self, words: list[int]) -> None:
        name = kernels().get(words[2], "")
        base = name.removesuffix("_double")
        size = 8 if base != name else 4
        if base not in EFFECTS or size != self._size:
            raise Refused(f"it calls a kernel that is not known here, or is for other elements: {name}")
        effects, *rest = EFFECTS[base]
        counts = words[3 + len(effects) : 3 + len(effects) + len(rest)]
        sizes = dict(zip(rest, counts, strict=True))
        spans: dict[str, list[Span]] = {"r": [], "w": [], "rw": []}
        for i, (mode, count) in enumerate(effects, 3):
            if mode == "r?" and words[i] == 0 and self._at + i not in self._patches:
                continue
            span = self._span(words, i, count(**sizes), 8 if mode == "d" else size)
            spans["r" if mode == "d" else mode.rstrip("?")].append(span)
        written = [*spans["w"], *spans["rw"]]
        self._apart(written, spans["r"])
        for span in (*spans["r"], *spans["rw"]):
            found = self._read(span)
            if self._call.operation == "linear_weight_backward":
                self._compare(_line(found), _line(self._rows(0)), "what it sums")
        for span in written:
            self._write(span)

    def _pass(self, words: list[int]) -> None:
        one = self._list.passes[words[2]]
        room, size = int(one.fixed[7]), int(one.fixed[6])
        if size != self._size or one.portions != 1:
            raise Refused("a pass is of other elements, or has several portions")
        spans = []
        for i, start in enumerate(one.starts, 4):
            wide = UNIT if not start.is_result else 8 if start.row < 0 else size
            spans.append(self._span(words, i, start.size // wide, wide))
        results = [span for span, start in zip(spans, one.starts, strict=True) if start.is_result]
        operands = spans[len(results) :]
        self._apart([*results, self._span(words, 3, room // UNIT, UNIT)], operands)
        self._place(self._span(words, 3, room // UNIT, UNIT))
        for x, span in zip(self._operands, operands, strict=False):
            found, own = _line(self._read(span)), _line(self._of(x, size))
            if len(found) == size // UNIT:  # one number of all
                own = own[: len(found)]
            self._compare(found, own, "an operand")
        for span in operands[len(self._operands) :]:
            if (self._read(span) > 0).any():
                raise Refused("a pass reads a value as a constant")
        for span in results:
            self._write(span)

    def _formula(self, words: list[int]) -> None:
        formula = self._list.formulas[words[2]]
        count, rows, size = words[3], words[4], int(formula.fixed[4])
        results, uses = uses_of(formula)
        arrays = len(uses)
        if rows > 1 and arrays > MOST_ARRAYS:
            raise Refused("a formula has too many arrays for rows")
        between, steps = words[5 + arrays :], formula.steps.tolist()
        if size != self._size:
            raise Refused("a formula is of other elements")
        spans = []
        for i, (use, step, apart) in enumerate(zip(uses, steps, between, strict=True)):
            if step not in (0, size) or (i < results and not step):
                raise Refused("threads of a formula write the same element")
            width = 1 if use == "number" else count if step else min(count, SPAN // size)
            spans.append(self._span(words, 5 + i, width, size, rows, apart))
        self._apart(spans[:results], spans[results:])
        wanted = [] if self._call.operation == "mean" else self._operands
        place: Any = None
        for out in spans[:results]:
            v, elements = self._place(out)
            if v is not None and place is not None and not np.array_equal(elements, place[1]):
                raise Refused("the results of a formula are not of the same elements")
            place = (v, elements) if v is not None else place
        for x, span in zip(wanted, spans[results:], strict=False):
            found = self._read(span)
            if place is None:
                raise Refused("a formula writes none of its results")
            v, elements = place
            own = self._of(x, size)
            full = np.broadcast_to(own, (*v.shape, size // UNIT)).reshape(-1, size // UNIT)[elements]
            if not (found == full).all():
                self._compare(np.broadcast_to(found, full.shape), full, "an operand")
        for span in spans[results + len(wanted) :]:
            found = self._read(span)
            if (wrong := found[(found > 0) & (found < self._scratch)]).size:
                raise Refused(f"it reads {self._what(wrong[0])} as another operand")
        for out in spans[:results]:
            self._write(out)


def _size(v: Variable) -> int:
    return v.dtype.bits // 8


def _line(symbols: Array) -> Array:
    return symbols.reshape(-1)


def _bits(x: Array) -> Array:
    """The symbols of a constant, negative: the bits of its units."""
    return -1 - x.reshape(-1).view(np.uint32).astype(np.int64)


def _constants(arrays: Sequence[Array]) -> list[tuple[int, Array]]:
    """The addresses and symbols of constants; parts of one array that overlap are one constant."""
    found: list[tuple[int, Array]] = []
    for x in sorted(arrays, key=compiled.address):
        at, bits = compiled.address(x), _line(_bits(x))
        if found and (common := found[-1][0] + found[-1][1].size * UNIT - at) > 0:
            at, before = found.pop()
            bits = np.concatenate([before, bits[common // UNIT :]])
        found.append((at, bits))
    return found


def _unwritten(size: int) -> Array:
    return np.zeros(size // UNIT, np.int64)
