"""Layouts: the steps of a native program, and where their operands and results lie."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from enum import Enum
from math import prod
from typing import Any, NamedTuple

import numpy as np

from backburn.programs.ir import Call, Number, Variable
from backburn_numpy import compiled
from backburn_numpy.compiled import FLOAT32, FLOAT64
from backburn_numpy.runtime.memory import aligned, contiguous

#: The arguments of a kernel call, padded with zeros.
ARGUMENTS = 11
#: The kinds of steps, as the kernel numbers them.
FORMULA, COPY, KERNEL_CALL, PRODUCT, TRANSPOSE, PASS = range(6)
#: The alignment of values in the arena, in bytes.
LINE = 64
#: The dtypes of native programs.
FLOATS: dict[str, np.dtype[Any]] = {"float32": FLOAT32, "float64": FLOAT64}

Shape = tuple[int, ...]


class Kind(Enum):
    """The owner of a memory: the program's arena, a given array, a constant, or a result."""

    ARENA, GIVEN, CONSTANT, RESULT = range(4)


class Memory:
    """The memory of a value and of its views; perhaps part of a larger memory."""

    __slots__ = ("address", "first", "kind", "last", "offset", "size", "whole")

    def __init__(self, kind: Kind, address: int = 0, size: int = 0, step: int = 0) -> None:
        self.kind = kind
        #: The offset in the arena, the address of a constant, or the number of a given array or result.
        self.address = address
        #: The exact bytes of the value. The arena rounds them up; comparisons of sizes must not.
        self.size = size
        #: The steps that write it first and use it last.
        self.first = self.last = step
        self.whole: Memory | None = None
        self.offset = 0


class Place(NamedTuple):
    """The location of a value: an offset in bytes from the start of a memory."""

    memory: Memory
    offset: int

    def resolved(self) -> Place:
        """The place in the outermost memory."""
        memory, offset = self
        while memory.whole is not None:
            offset += memory.offset
            memory = memory.whole
        return Place(memory, offset)


def is_free(memory: Memory, whole: Memory) -> bool:
    """Whether a value may be computed inside the memory of another one."""
    return memory.kind is Kind.ARENA and memory.whole is None and memory is not whole


class Layout:
    """The steps of a native program, and where their operands and results lie."""

    def __init__(self, given: Sequence[Variable | Number]) -> None:
        self.steps: list[tuple[Any, ...]] = []
        #: The call being planned, and the call of each step.
        self.planned: Call | None = None
        self.owners: list[Call | None] = []
        #: Each assigned place: its variable, if any, the call, the place, and the bytes.
        self.values: list[tuple[Variable | None, Call | None, Place, int]] = []
        self.places: dict[Variable, Place] = {}
        #: Matrices that are transposed only if something other than a product reads them: the source, and its number of
        #: matrices, rows and columns.
        self.transposed: dict[Variable, tuple[Variable, int, int, int]] = {}
        #: For given indices, the call that uses them and the function that checks them.
        self.checks: dict[Variable, tuple[Call, Callable[[Any], Any]]] = {}
        #: The memory of numbers that replays pass.
        self.cells: dict[tuple[Number, np.dtype[Any]], Any] = {}
        #: Objects whose memory the steps refer to: constants, programs of formulas, passes.
        self.kept: list[Any] = []
        self.arena: Any = None
        self._memories: list[Memory] = []
        #: Repeated rows by the identity of the operand, which is kept lest another array get it.
        self._repeated: dict[tuple[int, Shape], tuple[Any, Place]] = {}
        for x in given:
            if isinstance(x, Variable):
                self.places[x] = Place(Memory(Kind.GIVEN, len(self.places)), 0)
        self._given = len(self.places)

    def new(self, v: Variable) -> Place:
        """The place of a value that the next step computes."""
        place = self.places[v] = self._value(v, bytes_of(v))
        return place

    def append(self, *step: Any) -> None:
        """Append a step: its kind and its words, in which a place stands for its address."""
        self.steps.append(step)
        self.owners.append(self.planned)

    def read(self, x: Any, dtype: np.dtype[Any]) -> Place:
        """The place of an operand of the next step."""
        if x.__class__ is Variable:
            if x not in self.places:
                source, *sides = self.transposed[x]
                self.append(TRANSPOSE, self.new(x), self.read(source, dtype), *sides, dtype.itemsize)
            place = self.places[x]
            memory: Memory | None = place.memory
            while memory is not None:
                memory.last = len(self.steps)
                memory = memory.whole
            return place
        if x.__class__ is Number:
            cell = self.cells.get((x, dtype))
            if cell is None:
                cell = self.cells[x, dtype] = np.zeros((), dtype)
            return self.constant(cell)
        return self.constant(contiguous(x, dtype))

    def repeated(self, x: Any, dtype: np.dtype[Any], shape: Shape) -> Place:
        """The place of one or several rows repeated to a shape, shared by all calls that read it."""
        key = id(x), shape
        if key not in self._repeated:
            source, size = self.read(x, dtype), prod(x.shape) * dtype.itemsize
            place = self.scratch(shape, dtype)
            self._repeated[key] = x, place
            self.append(COPY, place, source, prod(shape) // prod(x.shape), size, size, 0)
        _, place = self._repeated[key]
        place.memory.last = len(self.steps)
        return place

    def constant(self, x: Any) -> Place:
        """The place of a constant array, or of one that is written before the steps run."""
        self.kept.append(x)
        return Place(Memory(Kind.CONSTANT, compiled.address(x)), 0)

    def scratch(self, shape: Shape, dtype: np.dtype[Any]) -> Place:
        """A place for an intermediate value of the next steps."""
        return self._value(None, prod(shape) * dtype.itemsize)

    def _value(self, v: Variable | None, size: int) -> Place:
        memory = Memory(Kind.ARENA, 0, size, len(self.steps))
        self._memories.append(memory)
        place = Place(memory, 0)
        self.values.append((v, self.planned, place, size))
        return place

    def result(self, v: Variable | None, shape: Shape, dtype: np.dtype[Any]) -> Place:
        """The place of a value that the next step computes; scratch memory if nothing reads it."""
        return self.scratch(shape, dtype) if v is None else self.new(v)

    def hold(self, places: Sequence[Place]) -> None:
        """Extend the lifetime of memory to the last step of a call."""
        for place in places:
            memory: Memory | None = place.memory
            while memory is not None:
                memory.last = len(self.steps) - 1
                memory = memory.whole

    def call(self, kernel: Any, *arguments: Place | int) -> None:
        """Append a kernel call."""
        self.append(KERNEL_CALL, kernel.where, *arguments, *[0] * (ARGUMENTS - len(arguments)))

    def words(self) -> tuple[list[int], list[int]]:
        """The words of all steps, and the patches: the word that a replay replaces, the array it points to, offset."""
        start = self._arena()
        arena, given, result = Kind.ARENA, Kind.GIVEN, Kind.RESULT  # looked up once: each lookup takes long
        found: list[int] = []
        patches: list[int] = []
        for step, *rest in self.steps:
            found += (step, len(rest) + 2)
            for word in rest:
                if word.__class__ is Place:
                    memory, offset = word if word.memory.whole is None else word.resolved()
                    kind = memory.kind
                    if kind is given or kind is result:
                        before = self._given if kind is result else 0
                        patches += (len(found), before + memory.address, offset)
                    word = memory.address + offset + (start if kind is arena else 0)
                found.append(word)
        return found, patches

    def _arena(self) -> int:
        """Assign the values places in a new arena, and return its address."""
        free: dict[int, list[int]] = defaultdict(list)
        begin: dict[int, list[Memory]] = defaultdict(list)
        end: dict[int, list[Memory]] = defaultdict(list)
        for memory in self._memories:
            if memory.whole is None and memory.kind is Kind.ARENA:
                begin[memory.first].append(memory)
                end[memory.last].append(memory)
        size = 0
        for step in range(len(self.steps)):
            for memory in begin[step]:
                room = _room(memory)
                if places := free[room]:
                    memory.address = places.pop()
                else:
                    memory.address = size
                    size += room
            for memory in end[step]:
                free[_room(memory)].append(memory.address)
        self.arena = aligned(size)
        return compiled.address(self.arena)


def _room(memory: Memory) -> int:
    """The bytes that a value takes in an arena: whole cache lines."""
    return -(-memory.size // LINE) * LINE


#: Appends the steps of a call to a layout.
Plan = Callable[[Layout, Call], None]


def bytes_of(v: Variable) -> int:
    return prod(v.shape) * v.dtype.bits // 8


def dtype_of(v: Any) -> np.dtype[Any] | None:
    """The dtype of a value that native programs compute; None for any other value."""
    if v.__class__ is Variable:
        return FLOATS.get(v.dtype.name) if prod(v.shape) else None
    return FLOATS.get(v.dtype.name) if v.__class__ is np.ndarray and v.size and v.dtype.isnative else None
