"""Loops over the rows of a tile: kernels in one pass over its elements, with the sums and extremes of rows."""

from __future__ import annotations

from contextlib import suppress
from math import inf, nan
from struct import pack
from typing import NamedTuple
from weakref import WeakValueDictionary

from backburn.base.errors import Unsupported
from backburn_numpy.machine_code.encoding import (
    ADDRESS,
    ALWAYS,
    BELOW,
    COMPARE,
    EQUAL,
    MOVE,
    NOT_ABOVE,
    RAX,
    RBP,
    RBX,
    RCX,
    RDI,
    RDX,
    RSI,
    RSP,
    SUBTRACT,
    TEST,
    UNEQUAL,
    XOR,
    Assembler,
    Memory,
)  # fmt: skip
from backburn_numpy.machine_code.functions import function_of
from backburn_numpy.machine_code.memory import Code, executable
from backburn_numpy.machine_code.vectors import MASKS, TAIL, TOGETHER, UNORDERED, Body, Output, Program, Vector

#: The registers of pointers, the number of bytes of a row that are done, and where a block ends.
POINTERS, DONE, END = (RCX, RDX, 8, 9, RBX, 12, 13, 14, 15), 10, 11
SAVED = (RBX, 12, 13, 14, 15)
#: The elements of a row that are summed in their own type, as in ``reduce.c``.
BLOCK = 1024
#: The outputs that are sums or means of a row's elements; and all outputs with one number per row.
SUMS = ("sum", "mean")
OF_ROWS = (*SUMS, "max", "min")
#: The numbers per row in an array of moments.
MOMENTS = 4
#: The rows whose columns are summed in their own type, as in ``tile_interpreter.c``.
ROWS_OF_COLUMNS = 4
#: The bytes that processors load into the cache at once.
LINE = 64
#: The most arrays of a loop, as in ``tile_interpreter.c``.
MOST_ARRAYS = 32
#: The most bytes by which the stack grows at once: a page, less what alignment takes. Windows adds a page to a stack
#: when it is touched, and only the next one.
GROWTH = 4096 - 64


class Loop(NamedTuple):
    """A description of a function ``(arrays, rows)`` over a tile; equal loops have equal code.

    An array varies over all elements (``full``), rows (``row``, and ``moments`` with several numbers for each), columns
    (``column``) or nothing (``one``); sums of columns are doubles (``sums``), to which those of a few rows are added
    (``some``, of whole vectors). A kernel has its name and its operands: an array ``("array", number)``, a kernel's
    result ``("made", number)``, or a constant ``("constant", number as a float's hexadecimal digits)``. An output is
    ``store``, ``sum``, ``mean``, ``max``, ``min`` or ``columns``, with an operand, or two to be multiplied, and the
    array; for ``columns`` the array of ``some``, which is followed by that of ``sums``. Elements of the arrays
    ``fetched`` are loaded into the cache ``ahead`` bytes before their use.
    """

    bytes: int
    size: int
    width: int
    arrays: tuple[str, ...]
    kernels: tuple[tuple[str, tuple[tuple[str, int | str], ...]], ...]
    outputs: tuple[tuple[str, tuple[tuple[str, int | str], ...], int], ...]
    ahead: int = 0
    fetched: tuple[int, ...] = ()


_known: WeakValueDictionary[Loop, Code] = WeakValueDictionary()


def compiled_loop(loop: Loop) -> Code:
    """The code of a loop in memory; raises :class:`Unsupported` if the system refuses it, or registers run out."""
    code = _known.get(loop)
    if code is None:
        code = executable(assemble(loop))
        if code is None:
            raise Unsupported("executable memory")
        _known[loop] = code
    return code


def assemble(loop: Loop) -> bytes:
    """The code of a loop; raises :class:`Unsupported` if it needs more registers than there are."""
    *ways, last = TOGETHER[loop.bytes]
    for way in ways:
        with suppress(Unsupported):
            return _Assembly(loop, way).code()
    return _Assembly(loop, last).code()


class _Assembly:
    def __init__(self, loop: Loop, way: tuple[int, float], growths: int = 0) -> None:
        self._loop, self._way = loop, way
        #: How many times the stack grows by :data:`GROWTH`.
        self._growths = growths
        reductions = [(kind, array) for kind, _, array in loop.outputs if kind in OF_ROWS]
        self._is_flat = not reductions and not {"row", "moments", "column", "sums"} & {*loop.arrays}
        most, behind = way
        self._turns = most if self._is_flat or loop.width * loop.size >= most * loop.bytes else 2
        self._program = program = Program(loop.bytes, loop.size, self._turns)
        self._assembler = Assembler(loop.bytes, loop.size)
        for program.turn in range(self._turns):
            self._compute()
        registers = 32 if loop.bytes == 64 else 16
        #: The two accumulators of a reduction, and the mask or the vector that tells whether a number is NaN.
        self._sums: dict[int, tuple[int, int]] = {}
        self._nans: dict[int, int] = {}
        masks = [*MASKS]
        for kind, array in reductions:
            registers -= 2
            self._sums[array] = registers, registers + 1
            if kind in SUMS:
                continue
            if loop.bytes == 64:
                self._nans[array] = masks.pop()
            else:
                registers -= 1
                self._nans[array] = registers
        if reductions:  # for what a reduction does with a vector
            if loop.bytes == 64:
                self._scratch = masks.pop()
            else:
                registers -= 2 if any(kind in SUMS and len(x) > 1 for kind, x, _ in loop.outputs) else 1
                self._scratch = registers
        if len(masks) < 3 or registers < 10:
            raise Unsupported("more reductions than registers")
        self._body = Body(program, self._assembler, registers, masks, behind, self._join)
        #: The accumulator of a single vector; None if vectors that are computed together take turns.
        self._turn: int | None = 0
        wanted = [i for i, x in enumerate(loop.arrays) if x in ("some", "full", "column")]
        self._pointers = dict(zip(wanted, POINTERS, strict=False))
        self._totals = {array: self._body.slot() for array in self._sums} if loop.width > BLOCK else {}
        self._count = 0

    def _compute(self) -> None:
        """Record the vectors of the kernels, and the outputs."""
        loop, program = self._loop, self._program
        self._made: list[Vector] = []
        for name, operands in loop.kernels:
            function = function_of(name, loop.size)
            if function is None:
                raise Unsupported(f"{name} in machine code")
            self._made.append(function(program, *(x for operand in operands for x in self._operand(operand))))
            self._output(len(self._made) - 1)
        self._output(-1)

    def _output(self, last: int) -> None:
        """Record the outputs whose operands are complete after that kernel; -1: before all kernels."""
        for kind, operands, array in self._loop.outputs:
            if max((which for of, which in operands if of == "made" and isinstance(which, int)), default=-1) == last:
                self._program.output(kind, tuple(x for operand in operands for x in self._operand(operand)), array)

    def _operand(self, x: tuple[str, int | str]) -> tuple[Vector, ...]:
        kind, which = x
        if isinstance(which, str):
            return (self._program.constant(float.fromhex(which)),)
        if kind == "made":
            return (self._made[which],)
        extent = self._loop.arrays[which]
        if extent in ("row", "one"):
            return (self._program.number(which),)
        if extent == "moments":
            return tuple(self._program.number(which, i) for i in range(MOMENTS))
        return (self._program.load(which),)

    # ---- places ----

    def _place(self, array: int, turn: int) -> Memory:
        """The memory of the elements of an array."""
        offset = turn * self._loop.bytes
        if array in self._pointers:
            return Memory(self._pointers[array], DONE, offset)
        self._assembler.integer(MOVE, RAX, Memory(RDI, offset=8 * array))
        return Memory(RAX, DONE, offset)

    def _label(self) -> str:
        self._count += 1
        return f"label {self._count}"

    # ---- the code ----

    def code(self) -> bytes:
        """The bytes of the function."""
        a, loop, body = self._assembler, self._loop, self._body
        a.push((RBP,))
        a.integer(MOVE, RBP, RSP)
        a.push(SAVED)
        a.with_number(4, RSP, -64)
        for _ in range(self._growths):
            a.with_number(5, RSP, GROWTH)
            a.integer(TEST, RSP, Memory(RSP))
        a.with_number(5, RSP, 0)
        frame = len(a.code) - 4
        for array, register in self._pointers.items():
            a.integer(MOVE, register, Memory(RDI, offset=8 * array))
        self._numbers("one")
        if self._is_flat:
            self._flat()
        else:
            self._mask_of_row()
            for array in self._columns():
                self._clear(array)
            a.label("row")
            self._numbers("row", "moments")
            self._row()
            self._advance()
            a.with_number(5, RSI, 1)
            if self._columns():
                a.integer(MOVE, RAX, RSI)
                a.with_number(4, RAX, ROWS_OF_COLUMNS - 1)
                a.jump(UNEQUAL, "row")
                for array in self._columns():
                    self._add_columns(array)
                a.integer(TEST, RSI, RSI)
            a.jump(UNEQUAL, "row")
        a.zero_upper()
        a.integer(ADDRESS, RSP, Memory(RBP, offset=-8 * len(SAVED)))
        a.pop((*SAVED[::-1], RBP))
        a.returns()
        if body.frame // GROWTH != self._growths:  # known only now
            return _Assembly(loop, self._way, body.frame // GROWTH).code()
        a.code[frame : frame + 4] = pack("<i", body.frame % GROWTH)
        a.data("ones", b"\xff" * 32)
        a.data("zeros", bytes(32))
        for content, name in body.constants.items():
            a.data(name, content * (1 if loop.bytes == 64 or len(content) > 8 else loop.bytes // loop.size))
        return a.finished()

    def _numbers(self, *kinds: str) -> None:
        """Load the numbers of arrays, each into its register or stack slot."""
        a = self._assembler
        for x, home in self._body.numbers.items():
            array, which = x.immediate
            if self._loop.arrays[array] not in kinds:
                continue
            a.integer(MOVE, RAX, Memory(RDI, offset=8 * array))
            to = home if isinstance(home, int) else 0
            a.vector("broadcast", to, 0, Memory(RAX, offset=which * self._loop.size))
            if isinstance(home, Memory):
                a.vector("store", to, 0, home)

    def _flat(self) -> None:
        """All elements of a tile as one row."""
        a, loop = self._assembler, self._loop
        a.multiply(RSI, RSI, loop.width * loop.size)
        a.integer(XOR, DONE, DONE)
        a.integer(MOVE, END, RSI)
        a.with_number(4, END, -self._turns * loop.bytes)
        a.jump(EQUAL, "vectors")
        a.label("together")
        self._together()
        a.with_number(0, DONE, self._turns * loop.bytes)
        a.integer(COMPARE, DONE, END)
        a.jump(BELOW, "together")
        a.label("vectors")
        a.integer(MOVE, END, RSI)
        a.with_number(4, END, -loop.bytes)
        a.integer(COMPARE, DONE, END)
        a.jump(EQUAL, "rest")
        a.label("vector")
        self._body.emit(self._place)
        a.with_number(0, DONE, loop.bytes)
        a.integer(COMPARE, DONE, END)
        a.jump(BELOW, "vector")
        a.label("rest")
        a.with_number(4, RSI, loop.bytes - 1)
        a.integer(TEST, RSI, RSI)
        a.jump(EQUAL, "end")
        if loop.bytes == 64:
            a.shift_right(RSI, 2 if loop.size == 4 else 3)
            a.set_number(RAX, (1 << 32) - 1)
            a.low_bits(RAX, RAX, RSI)
            a.masks("from", TAIL, 0, RAX)
        else:
            a.integer(ADDRESS, RAX, Memory(0, label="zeros"))
            a.integer(SUBTRACT, RAX, RSI)
            a.vector("load", 0, 0, Memory(RAX))
        self._body.emit(self._place, TAIL if loop.bytes == 64 else 0)
        a.label("end")

    def _together(self) -> None:
        """Several vectors of elements, and the loads of later ones into the cache."""
        loop = self._loop
        self._body.emit(self._place, together=True)
        stored = {array for kind, _, array in loop.outputs if kind == "store"}
        for array in loop.fetched:
            place = self._place(array, 0)
            for offset in range(loop.ahead, loop.ahead + self._turns * loop.bytes, LINE):
                self._assembler.prefetch(place._replace(offset=offset), array in stored)

    def _mask_of_row(self) -> None:
        """The mask of the last vector of a row, if that is partial."""
        rest = self._loop.width % self._program.lanes
        if rest and self._loop.bytes == 64:
            self._assembler.set_number(RAX, (1 << rest) - 1)
            self._assembler.masks("from", TAIL, 0, RAX)

    def _row(self) -> None:
        """The elements of a row: several vectors together, then single ones, then the rest."""
        a, loop, lanes = self._assembler, self._loop, self._program.lanes
        in_blocks = bool(self._totals)
        rest = loop.width % BLOCK if in_blocks else loop.width
        together = self._turns * lanes
        end = (loop.width - rest + rest // together * together) * loop.size
        for array in self._totals:
            a.vector("xor", 0, 0, 0)
            a.vector("store_double", 0, 0, self._totals[array], bytes=16)
        self._start()
        a.integer(XOR, DONE, DONE)
        if end:
            if in_blocks:
                a.set_number(END, min(end, BLOCK * loop.size))
            a.label("together")
            self._turn = None
            self._together()
            a.with_number(0, DONE, self._turns * loop.bytes)
            if in_blocks:
                a.integer(COMPARE, DONE, END)
                a.jump(BELOW, "together")
                a.with_number(7, DONE, end)
                a.jump(EQUAL, "blocks")
                self._end_block()
                a.with_number(0, END, BLOCK * loop.size)
                a.with_number(7, END, end)
                a.jump(NOT_ABOVE, "together")
                a.set_number(END, end)
                a.jump(ALWAYS, "together")
                a.label("blocks")
            else:
                a.with_number(7, DONE, end)
                a.jump(BELOW, "together")
        if in_blocks and 0 < rest < together:
            self._end_block()
        for i in range(rest % together // lanes):
            self._turn = i % 2
            self._body.emit(self._place)
            a.with_number(0, DONE, loop.bytes)
        if count := rest % lanes:
            self._turn = 1
            if loop.bytes == 32:
                mask = b"\xff" * (count * loop.size) + bytes(32 - count * loop.size)
                a.vector("load", 0, 0, self._body.constant(mask))
            self._body.emit(self._place, TAIL if loop.bytes == 64 else 0)
        for kind, _, array in loop.outputs:
            if kind in SUMS:
                self._end_sum(kind, array)
            elif kind in OF_ROWS:
                self._end_extreme(kind, array)

    def _advance(self) -> None:
        """Go on to the next row."""
        a, loop = self._assembler, self._loop
        for i, kind in enumerate(loop.arrays):
            step = {"full": loop.width * loop.size, "row": loop.size, "moments": MOMENTS * loop.size}.get(kind, 0)
            if step:
                a.with_number(0, self._pointers.get(i, Memory(RDI, offset=8 * i)), step)

    # ---- sums of columns ----

    def _columns(self) -> list[int]:
        """The arrays of sums of a few rows."""
        return [array for kind, _, array in self._loop.outputs if kind == "columns"]

    def _clear(self, array: int) -> None:
        """Set the sums of a few rows to 0."""
        a, loop, again = self._assembler, self._loop, self._label()
        a.integer(MOVE, RAX, Memory(RDI, offset=8 * array))
        a.set_number(DONE, -(-loop.width // self._program.lanes))
        a.vector("xor", 0, 0, 0)
        a.label(again)
        a.vector("store", 0, 0, Memory(RAX))
        a.with_number(0, RAX, loop.bytes)
        a.with_number(5, DONE, 1)
        a.jump(UNEQUAL, again)

    def _add_columns(self, array: int) -> None:
        """Add the sums of a few rows to doubles, and set them to 0."""
        a, loop, lanes, again = self._assembler, self._loop, self._program.lanes, self._label()
        a.integer(MOVE, RAX, Memory(RDI, offset=8 * array))
        a.integer(MOVE, END, Memory(RDI, offset=8 * array + 8))
        a.vector("xor", 1, 1, 1)
        parts = 8 // loop.size
        if loop.width >= lanes:
            a.set_number(DONE, loop.width // lanes)
            a.label(again)
            for i in range(parts):
                part = Memory(RAX, offset=i * loop.bytes // 2)
                a.vector("widen" if parts == 2 else "load", 0, 0, part)
                a.vector("add_doubles", 0, 0, Memory(END, offset=i * loop.bytes))
                a.vector("store", 0, 0, Memory(END, offset=i * loop.bytes))
            a.vector("store", 1, 0, Memory(RAX))
            a.with_number(0, RAX, loop.bytes)
            a.with_number(0, END, parts * loop.bytes)
            a.with_number(5, DONE, 1)
            a.jump(UNEQUAL, again)
        rest = loop.width % lanes
        for i in range(rest):
            part = Memory(RAX, offset=i * loop.size)
            if parts == 2:
                a.vector("widen", 0, 0, part, bytes=16)
            else:
                a.vector("add_double", 0, 1, part, bytes=16)
            a.vector("add_double", 0, 0, Memory(END, offset=8 * i), bytes=16)
            a.vector("store_double", 0, 0, Memory(END, offset=8 * i), bytes=16)
        if rest:
            a.vector("store", 1, 0, Memory(RAX))

    # ---- reductions ----

    def _start(self) -> None:
        """Set the accumulators of a row."""
        for kind, _, array in self._loop.outputs:
            if kind not in OF_ROWS:
                continue
            for x in self._sums[array]:
                if kind in SUMS:
                    self._assembler.vector("xor", x, x, x)
                else:
                    self._broadcast(x, -inf if kind == "max" else inf)
            if kind in SUMS:
                continue
            nans = self._nans[array]
            if self._loop.bytes == 64:
                self._assembler.masks("xor", nans, nans, nans)
            else:
                self._assembler.vector("xor", nans, nans, nans)

    def _broadcast(self, to: int, number: float) -> None:
        constant = self._body.constant(self._program.constant(number).immediate)
        self._assembler.vector("broadcast" if self._loop.bytes == 64 else "load", to, 0, constant)

    def _join(self, output: Output, registers: list[int], mask: int) -> None:
        """Join a vector, or the product of two, with an accumulator."""
        a, is_wide, kind = self._assembler, self._loop.bytes == 64, output.kind
        to = self._sums[output.array][output.turn % 2 if self._turn is None else self._turn]
        used = max(mask, 0) if is_wide else 0
        if kind in SUMS:
            if mask >= 0 and not is_wide:
                for i, x in enumerate(registers):
                    a.vector("and", self._scratch + i, x, mask)
                registers = [self._scratch + i for i in range(len(registers))]
            if len(registers) == 1:
                a.vector("add", to, registers[0], to, mask=used)
            else:
                a.vector("fma231", to, *registers, mask=used)
            return
        (x,) = registers
        if mask < 0 or is_wide:
            a.vector(kind, to, x, to, mask=used)
        else:
            self._broadcast(self._scratch, -inf if kind == "max" else inf)
            a.select_by_sign(self._scratch, self._scratch, x, mask)
            a.vector(kind, to, self._scratch, to)
        nans = self._nans[output.array]
        if is_wide:
            a.vector("compare", self._scratch, x, x, immediate=UNORDERED, mask=used)
            a.masks("or", nans, nans, self._scratch)
        else:
            a.vector("compare", self._scratch, x, x, immediate=UNORDERED)
            if mask >= 0:
                a.vector("and", self._scratch, self._scratch, mask)
            a.vector("or", nans, nans, self._scratch)

    def _halves(self, to: int, x: int, bytes: int) -> None:
        """The upper half of a vector of that many bytes."""
        if bytes == 16:
            self._assembler.vector("unpack_high", to, x, x, bytes=16)
        else:
            self._assembler.vector("extract_half" if bytes == 64 else "extract", x, 0, to, immediate=1, bytes=bytes)

    def _total(self, array: int) -> None:
        """Join the accumulators of a sum, then halves of lanes, down to one lane in register 0."""
        a, (first, second), length = self._assembler, self._sums[array], self._loop.bytes
        a.vector("add", 0, first, second)
        if self._loop.size == 4:
            self._halves(1, 0, length)
            a.vector("widen", 0, 0, 0)
            a.vector("widen", 1, 0, 1)
            a.vector("add_doubles", 0, 0, 1)
        while length > 8:
            self._halves(1, 0, length)
            length //= 2
            a.vector("add_doubles", 0, 0, 1, bytes=max(length, 16))
        if array in self._totals:
            a.vector("add_double", 0, 0, self._totals[array], bytes=16)

    def _end_block(self) -> None:
        """Add the sums of a block to those of its row."""
        for kind, _, array in self._loop.outputs:
            if kind in SUMS:
                self._total(array)
                self._assembler.vector("store_double", 0, 0, self._totals[array], bytes=16)
                for x in self._sums[array]:
                    self._assembler.vector("xor", x, x, x)

    def _end_sum(self, kind: str, array: int) -> None:
        """Write the sum of a row, or that divided by the number of its elements."""
        self._total(array)
        if kind == "mean":
            each = self._body.constant(pack("<d", 1.0 / self._loop.width))
            self._assembler.vector("mul_double", 0, 0, each, bytes=16)
        if self._loop.size == 4:
            self._assembler.vector("narrow_one", 0, 0, 0, bytes=16)
        self._write(array)

    def _write(self, array: int) -> None:
        """Write the number in register 0 for a row."""
        a = self._assembler
        a.integer(MOVE, RAX, Memory(RDI, offset=8 * array))
        a.vector("store_one" if self._loop.size == 4 else "store_double", 0, 0, Memory(RAX), bytes=16)

    def _end_extreme(self, kind: str, array: int) -> None:
        """Write the greatest or the least number of a row, NaN if one is."""
        a, (first, second), length = self._assembler, self._sums[array], self._loop.bytes
        a.vector(kind, 0, second, first)
        while length > self._loop.size:
            if length == 8:
                a.vector("odd", 1, 0, 0, bytes=16)
            else:
                self._halves(1, 0, length)
            length //= 2
            a.vector(kind, 0, 1, 0, bytes=max(length, 16))
        ordered, nans = self._label(), self._nans[array]
        if self._loop.bytes == 64:
            a.masks("test", nans, 0, nans)
        else:
            a.signs(RAX, nans)
            a.integer(TEST, RAX, RAX)
        a.jump(EQUAL, ordered)
        self._broadcast(0, nan)
        a.label(ordered)
        self._write(array)
