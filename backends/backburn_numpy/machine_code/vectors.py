"""Straight-line code on vectors: expressions in order of computation, their registers, and instructions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from struct import pack, unpack
from typing import Any, TypeAlias

from backburn.base.errors import Unsupported
from backburn_numpy.machine_code.encoding import RSP, Assembler, Memory, Source

Number: TypeAlias = "Vector | float"

#: How numbers are compared: the first is ... the second, or (``NOT_EQUAL``, ``UNORDERED``) one is NaN.
IS_EQUAL, UNORDERED, NOT_EQUAL, LESS, LESS_EQUAL, AT_LEAST, GREATER = 0, 3, 4, 17, 18, 29, 30
#: The mask register of the last, partial vector, and those that masks may use.
TAIL, MASKS = 1, (2, 3, 4, 5, 6, 7)
#: The most numbers that stay in registers, by the size of vectors in bytes.
PINNED = {32: 2, 64: 8}
#: The vectors of elements that are computed together, and the steps by which each is behind the one before, by the size
#: of vectors in bytes. A processor lets some 64 to 128 instructions wait for operands: too few of the next vectors if
#: one vector, or two, are computed at a time. Vectors at different steps need fewer registers. Code with too many masks
#: for the first way is made in the next one; in the last, one vector follows the other.
TOGETHER: dict[int, tuple[tuple[int, float], ...]] = {32: ((4, 3),), 64: ((4, 3), (2, 3), (2, inf))}


class Vector:
    """A vector that code computes; also a mask (``is_mask``), all lanes of which are true or false."""

    __slots__ = ("immediate", "is_mask", "name", "operands", "program")

    def __init__(
        self, program: Program, name: str, operands: tuple[Vector, ...], immediate: Any, is_mask: bool
    ) -> None:
        self.program, self.name, self.operands = program, name, operands
        self.immediate, self.is_mask = immediate, is_mask

    @property
    def is_known_number(self) -> bool:
        """Whether it is a constant that is not NaN."""
        if self.name != "constant":
            return False
        (number,) = unpack("<f" if len(self.immediate) == 4 else "<d", self.immediate)
        return bool(number == number)

    def __add__(self, other: Number) -> Vector:
        return self.program.make("add", self, other)

    def __sub__(self, other: Number) -> Vector:
        return self.program.make("sub", self, other)

    def __mul__(self, other: Number) -> Vector:
        return self.program.make("mul", self, other)

    def __truediv__(self, other: Number) -> Vector:
        return self.program.make("div", self, other)

    def __radd__(self, other: float) -> Vector:
        return self.program.make("add", self, other)

    def __rsub__(self, other: float) -> Vector:
        return self.program.make("sub", other, self)

    def __rmul__(self, other: float) -> Vector:
        return self.program.make("mul", self, other)

    def __rtruediv__(self, other: float) -> Vector:
        return self.program.make("div", other, self)


@dataclass(slots=True)
class Output:
    """The use of a vector, or of the product of two: it is stored, or added to sums, or joined with extremes."""

    kind: str
    values: tuple[Vector, ...]
    array: int
    #: Which of the vectors of elements that are computed together it belongs to, from 0.
    turn: int


Step: TypeAlias = "Vector | Output"


class Program:
    """Vectors of elements of ``size`` bytes in order of computation; equal ones are shared.

    ``turn``, from 0 to ``turns - 1``, is the one of the vectors of elements computed together that is loaded.
    """

    def __init__(self, bytes: int, size: int, turns: int) -> None:
        self.bytes, self.size, self.lanes = bytes, size, bytes // size
        self.order: list[Step] = []
        self.turns = turns
        self.turn = 0
        self._known: dict[Any, Vector] = {}

    def make(self, name: str, *operands: Number, immediate: Any = None, is_mask: bool = False) -> Vector:
        """The result of an instruction."""
        vectors = tuple(x if isinstance(x, Vector) else self.constant(x) for x in operands)
        key = (name, *map(id, vectors), immediate)
        if key not in self._known:
            self._known[key] = made = Vector(self, name, vectors, immediate, is_mask)
            self.order.append(made)
        return self._known[key]

    def _source(self, name: str, immediate: Any) -> Vector:
        key = (name, immediate)
        if key not in self._known:
            self._known[key] = Vector(self, name, (), immediate, False)
        return self._known[key]

    def constant(self, number: float) -> Vector:
        """A number in all lanes."""
        return self._source("constant", pack("<f" if self.size == 4 else "<d", number))

    def bits(self, number: int) -> Vector:
        """An integer in all lanes."""
        return self._source("constant", pack("<i" if self.size == 4 else "<q", number))

    def load(self, array: int) -> Vector:
        """Elements of an array."""
        return self._source("array", (array, self.turn))

    def number(self, array: int, which: int = 0) -> Vector:
        """The number of an array that is the same for all elements of a row or of the code; ``which`` of several."""
        return self._source("number", (array, which))

    def output(self, kind: str, values: tuple[Vector, ...], array: int) -> None:
        """Use a vector, or the product of two."""
        self.order.append(Output(kind, values, array, self.turn))

    # ---- building blocks of kernels ----

    def fma(self, x: Number, y: Number, z: Number) -> Vector:
        """``x * y + z``, rounded once."""
        return self.make("fma", x, y, z)

    def fms(self, x: Number, y: Number, z: Number) -> Vector:
        """``x * y - z``, rounded once."""
        return self.make("fms", x, y, z)

    def fnma(self, x: Number, y: Number, z: Number) -> Vector:
        """``z - x * y``, rounded once."""
        return self.make("fnma", x, y, z)

    def compare(self, x: Number, y: Number, how: int) -> Vector:
        """The mask of a comparison."""
        return self.make("compare", x, y, immediate=how, is_mask=True)

    def select(self, mask: Vector, x: Number, y: Number) -> Vector:
        """``x`` where the mask is true, ``y`` elsewhere."""
        return self.make("select", mask, x, y)

    def either(self, x: Vector, y: Vector) -> Vector:
        """Where one of two masks is true."""
        return self.make("or_masks", x, y, is_mask=True)

    def truth(self, mask: Vector) -> Vector:
        """1 where a mask is true, 0 elsewhere."""
        return self.make("and", mask, 1.0) if self.bytes == 32 else self.select(mask, 1.0, 0.0)

    def both_bits(self, x: Vector, y: Vector) -> Vector:
        """Bitwise and."""
        return self.make("and", x, y)

    def absolute(self, x: Vector) -> Vector:
        """The absolute value."""
        return self.make("and", x, self.bits((1 << 8 * self.size - 1) - 1))

    def negative(self, x: Vector) -> Vector:
        """The negated value."""
        return self.make("xor", x, -0.0)

    def with_sign(self, x: Vector, y: Vector) -> Vector:
        """``x``, which has no sign, with the sign of ``y``."""
        return self.make("or", x, self.make("and", y, -0.0))

    def shifted(self, x: Vector, how: str, count: int) -> Vector:
        """Integers shifted by a constant."""
        return self.make("shift", x, immediate=(how, count))

    def maximum(self, x: Number, y: Number) -> Vector:
        """``x > y ? x : y``."""
        return self.make("max", x, y)

    def minimum(self, x: Number, y: Number) -> Vector:
        """``x < y ? x : y``."""
        return self.make("min", x, y)


def operands_of(step: Step) -> Sequence[Vector]:
    """The vectors that a step reads."""
    return step.values if isinstance(step, Output) else step.operands


def only(steps: Sequence[Step], turn: int) -> list[Step]:
    """The steps needed for the outputs of one vector of elements."""
    wanted: set[int] = set()
    found: list[Step] = []
    for x in reversed(steps):
        if (isinstance(x, Output) and x.turn == turn) or id(x) in wanted:
            wanted.update(map(id, operands_of(x)))
            found.append(x)
    return found[::-1]


def in_turns(parts: Sequence[Sequence[Step]], behind: float) -> list[Step]:
    """Steps of several vectors of elements, interleaved: while the processor waits for one, it runs the others.

    Each is ``behind`` steps behind the one before. The outputs stay in the order of the vectors, so that sums do.
    """
    left, found = {id(x) for part in parts for x in part}, list[Step]()
    waiting, done, outputs = [[*reversed(part)] for part in parts], [0] * len(parts), [0] * len(parts)
    while any(waiting):
        for turn, steps in enumerate(waiting):
            if not steps or not left.isdisjoint(map(id, operands_of(steps[-1]))):
                continue
            is_output = isinstance(steps[-1], Output)
            if turn and waiting[turn - 1] and done[turn - 1] < done[turn] + behind:
                continue
            if turn and is_output and outputs[turn] == outputs[turn - 1]:
                continue
            left.discard(id(steps[-1]))
            found.append(steps.pop())
            done[turn] += 1
            outputs[turn] += is_output
    return found


COMMUTATIVE = frozenset(("add", "mul", "and", "or", "xor", "int_add"))


class Body:
    """The instructions of a program, once for whole vectors and once for a partial one.

    ``places`` gives the memory of an array's elements, which may take an instruction. Pinned numbers and sums have
    reserved registers; ``frame`` is the bytes of the stack in use.
    """

    def __init__(
        self, program: Program, assembler: Assembler, top: int, masks: Sequence[int], behind: float,
        joins: Callable[[Output, list[int], int], None],
    ) -> None:  # fmt: skip
        self.program, self.assembler = program, assembler
        self._joins = joins
        self._top, self._masks = top, masks
        parts, mine = list[list[Step]](), set[int]()
        for turn in range(program.turns):
            parts.append([x for x in only(program.order, turn) if id(x) not in mine])
            mine.update(map(id, parts[-1]))
        single = parts[0]
        #: The steps of one vector of elements, and of those computed together.
        self._steps = single, in_turns(parts, behind)
        self.frame = 0
        #: The stack slots of vectors, and the registers or slots of numbers.
        self._slots: dict[Vector, Memory] = {}
        self.numbers: dict[Vector, Source] = {}
        self.constants: dict[bytes, str] = {}
        numbers = Counter(y for x in single for y in operands_of(x) if y.name == "number")
        for i, (x, _) in enumerate(numbers.most_common()):
            if i < PINNED[program.bytes] and self._top > 10:
                self._top -= 1
                self.numbers[x] = self._top
            else:
                self.numbers[x] = self.slot()

    def slot(self) -> Memory:
        """A stack slot for a vector."""
        found = Memory(RSP, offset=self.frame)
        self.frame += self.program.bytes
        return found

    def constant(self, content: bytes) -> Memory:
        """A constant's memory: one element, or a whole vector where instructions cannot read one for all lanes."""
        name = self.constants.setdefault(content, f"constant {content.hex()}")
        return Memory(0, label=name)

    def emit(self, places: Callable[[int, int], Memory], mask: int = -1, together: bool = False) -> None:
        """Emit the instructions; ``mask`` is the register (``k1``, or a vector) that masks a partial vector, or -1."""
        self._places, self._mask = places, mask
        self._free = [r for r in range(self._top - 1, -1, -1) if r != mask or self.program.bytes == 64]
        self._free_masks = [*self._masks]
        self._where: dict[Vector, int] = {}
        steps = self._steps[together]
        self._left: dict[Vector, list[int]] = {x: [] for x in steps if isinstance(x, Vector)}
        for i, step in enumerate(steps):
            for x in operands_of(step):
                self._left.setdefault(x, []).append(i)
        self._spilled: dict[Vector, Memory] = {}
        self._locked: list[Vector] = []
        for i, step in enumerate(steps):
            self._step(i, step)

    def _step(self, i: int, step: Step) -> None:
        self._locked = operands = [*operands_of(step)]
        for x in operands:
            while self._left[x] and self._left[x][0] <= i:
                self._left[x].pop(0)
        if isinstance(step, Output):
            registers = [self._register(x) for x in step.values]
            if step.kind == "store":
                self._store(registers[0], step.array, step.turn)
            elif step.kind == "columns":  # also past the end of a row, within the array
                self._add_to_columns(registers, self._places(step.array, step.turn), step.values)
            else:
                self._joins(step, registers, self._mask)
        else:
            self._make(step, operands)
        for x in operands:
            self._release(x)

    def _add_to_columns(self, registers: list[int], place: Memory, values: tuple[Vector, ...]) -> None:
        """Add a vector, or the product of two, to sums in memory."""
        if len(registers) == 1:
            to = self._target(*values)
            self.assembler.vector("add", to, registers[0], place)
        else:
            to = self._new()
            self.assembler.vector("load", to, 0, place)
            self.assembler.vector("fma231", to, *registers)
        self.assembler.vector("store", to, 0, place)
        self._free.append(to)

    def _release(self, x: Vector) -> None:
        """Free the register of a vector that nothing reads any more."""
        if not self._left[x] and x in self._where:
            (self._free_masks if self._is_in_mask(x) else self._free).append(self._where.pop(x))

    def _is_in_mask(self, x: Vector) -> bool:
        return x.is_mask and self.program.bytes == 64

    def _dies(self, x: Vector) -> bool:
        return not self._left[x] and x in self._where

    def _new(self) -> int:
        """A free register, or that of the vector read furthest ahead, which is spilled if it is not in memory."""
        if self._free:
            return self._free.pop()
        able = [x for x in self._where if x not in self._locked and not self._is_in_mask(x)]
        if not able:
            raise Unsupported("an instruction with more operands than registers")
        x = max(able, key=lambda x: self._left[x][0] if self._left[x] else 0)
        register = self._where.pop(x)
        if x.name not in ("constant", "array", "number") and x not in self._spilled:
            if x not in self._slots:
                self._slots[x] = self.slot()
            self._spilled[x] = self._slots[x]
            self.assembler.vector("store", register, 0, self._slots[x])
        return register

    def _is_read(self, x: Vector) -> bool:
        """Whether an instruction may read a vector from memory in place of a register."""
        if x in self._where or isinstance(self.numbers.get(x), int):
            return False
        return x.name != "array" or (self._mask < 0 and not self._left[x])

    def _memory(self, x: Vector) -> tuple[Memory, bool]:
        """The memory of a vector that :meth:`_is_read`, and whether it is one element for all lanes."""
        if x.name == "constant":
            return self.constant(x.immediate), self.program.bytes == 64
        if x.name == "array":
            return self._places(*x.immediate), False
        return (self._slot_of(x) if x.name == "number" else self._spilled[x]), False

    def _register(self, x: Vector) -> int:
        """The register that holds a vector."""
        if x in self._where:
            return self._where[x]
        pinned = self.numbers.get(x)
        if isinstance(pinned, int):
            return pinned
        to = self._new()
        if x.name == "constant":
            if self.program.bytes == 64:
                self.assembler.vector("broadcast", to, 0, self.constant(x.immediate))
            else:
                self.assembler.vector("load", to, 0, self.constant(x.immediate))
        elif x.name == "array":
            self._load(to, *x.immediate)
        else:
            self.assembler.vector("load", to, 0, self._spilled[x] if x in self._spilled else self._slot_of(x))
        self._where[x] = to
        return to

    def _slot_of(self, x: Vector) -> Memory:
        found = self.numbers[x]
        assert isinstance(found, Memory)
        return found

    def _load(self, to: int, array: int, turn: int) -> None:
        place = self._places(array, turn)
        if self._mask < 0:
            self.assembler.vector("load", to, 0, place)
        elif self.program.bytes == 64:
            self.assembler.vector("load", to, 0, place, mask=self._mask, zeroing=True)
        else:
            self.assembler.vector("masked_load", to, self._mask, place)

    def _store(self, x: int, array: int, turn: int) -> None:
        place = self._places(array, turn)
        if self._mask < 0:
            self.assembler.vector("store", x, 0, place)
        elif self.program.bytes == 64:
            self.assembler.vector("store", x, 0, place, mask=self._mask)
        else:
            self.assembler.vector("masked_store", x, self._mask, place)

    def _last(self, x: Vector) -> tuple[Source, bool]:
        """The last operand of an instruction: memory, or a register."""
        return self._memory(x) if self._is_read(x) else (self._register(x), False)

    def _target(self, *dying: Vector) -> int:
        """A register for a result: that of an operand that nothing else reads, or another one."""
        for x in dying:
            if self._dies(x) and not self._is_in_mask(x):
                return self._where.pop(x)
        return self._new()

    def _make(self, x: Vector, operands: list[Vector]) -> None:
        """The instruction of a vector."""
        vector = self.assembler.vector
        if x.name in ("fma", "fms", "fnma"):
            to = self._multiply_add(x.name, *operands)
        elif x.name == "select":
            mask, first, second = operands
            low = self._register(second)
            where = self._register(mask)
            high, splat = self._last(first)
            to = self._target(second, first)
            if self.program.bytes == 64:
                vector("select", to, low, high, mask=where, splat=splat)
            else:
                self.assembler.select_by_sign(to, low, high, where)
        elif x.name == "or_masks":
            first, second = operands
            one, two = self._register(first), self._register(second)
            if self.program.bytes == 64:
                to = self._new_mask()
                self.assembler.masks("or", to, one, two)
            else:
                to = self._target(first, second)
                vector("or", to, one, two)
        elif x.name == "compare":
            one = self._register(operands[0])
            last, splat = self._last(operands[1])
            to = self._new_mask() if self.program.bytes == 64 else self._target(*operands)
            vector("compare", to, one, last, immediate=x.immediate, splat=splat)
        elif x.name == "shift":
            one = self._register(operands[0])
            to = self._target(operands[0])
            self.assembler.shift(x.immediate[0], to, one, x.immediate[1])
        elif x.name == "round_half":
            one = self._register(operands[0])
            to = self._target(operands[0])
            vector("to_half", one, 0, to, immediate=0)
            vector("from_half", to, 0, to)
        elif len(operands) == 1:
            last, splat = self._last(operands[0])
            to = self._target(operands[0])
            vector(x.name, to, 0, last, splat=splat)
        else:
            first, second = operands
            if x.name in COMMUTATIVE and self._is_read(first) and not self._is_read(second):
                first, second = second, first
            one = self._register(first)
            last, splat = self._last(second)
            to = self._target(first, second)
            vector(x.name, to, one, last, splat=splat)
        self._where[x] = to

    def _new_mask(self) -> int:
        if not self._free_masks:
            raise Unsupported("more masks than registers")
        return self._free_masks.pop()

    def _multiply_add(self, name: str, x: Vector, y: Vector, z: Vector) -> int:
        """``x * y + z`` or ``- z``, or ``z - x * y``: the result takes the register of an operand, or of a copy."""
        if self._is_read(z):
            if not self._dies(x) and (self._dies(y) or self._is_read(x)):
                x, y = y, x
            return self._in_place(f"{name}213", x, y, z)
        if self._is_read(x) and not self._is_read(y):
            x, y = y, x
        if self._is_read(y) or self._dies(z):
            return self._in_place(f"{name}231", z, x, y)
        if self._dies(y):
            x, y = y, x
        if self._dies(x):
            return self._in_place(f"{name}213", x, y, z)
        return self._in_place(f"{name}231", z, x, y)

    def _in_place(self, name: str, first: Vector, second: Vector, third: Vector) -> int:
        """An instruction whose first operand becomes the result."""
        own = self._register(first)
        two = self._register(second)
        three, splat = self._last(third)
        to = self._target(first) if first not in (second, third) else self._new()
        if to != own:
            self.assembler.vector("move", to, 0, own)
        self.assembler.vector(name, to, two, three, splat=splat)
        return to
