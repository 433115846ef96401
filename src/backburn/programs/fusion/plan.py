"""Plans: the operations of one pass over the rows of matrices, for backends to compile."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from math import gcd, prod
from typing import Any, NamedTuple

from backburn.base.dtypes import DType
from backburn.programs.ir import Call, Variable, arguments, listed

#: The operation of a call that is a pass; its function's attribute ``made`` has the calls that it joins.
PASS = "pass"
#: The operations by which a pass reduces rows, columns, or all elements.
REDUCTIONS = frozenset(("sum", "mean", "max", "min"))
#: The operations between the elements of a row, along the last axis, and how their operands and results vary: F over
#: all elements, R over rows, C over columns, and I an index for each row. An operand C may be absent.
ALONG_ROWS = {
    "softmax": "F>F", "softmax_backward": "FF>F", "log_softmax": "F>F", "log_softmax_backward": "FF>F",
    "logsumexp": "F>R", "take_along_axis": "FI>R", "take_along_axis_backward": "RI>F",
    "label_cross_entropy": "FI>R", "label_cross_entropy_backward": "RFI>F",
    "layer_norm": "FCC>F", "layer_norm_backward": "FFC>FC", "rms_norm": "FC>F", "rms_norm_backward": "FFC>FC",
}  # fmt: skip

Shape = tuple[int, ...]


class Space(NamedTuple):
    """The elements that a pass iterates over: rows of one width and float dtype, and perhaps a shorter one.

    Arrays other than matrices are also divided into rows, which then have no meaning.
    """

    rows: int
    width: int
    dtype: DType
    rest: int = 0

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.rows * self.width + self.rest

    @property
    def numbers(self) -> int:
        """The number of rows, including a shorter one."""
        return self.rows + (self.rest > 0)


class Extent(Enum):
    """How a value varies in a space: over all elements, the rows (one number per row), the columns, or not at all."""

    __hash__ = object.__hash__  # of the identity: members are keys of sets that compilation makes for each call

    FULL = "full"
    ROW = "a number for each row"
    COLUMN = "a number for each column"
    ONE = "one number"


#: The extents that letters of :data:`ALONG_ROWS` stand for.
EXTENTS = {"F": Extent.FULL, "R": Extent.ROW, "I": Extent.ROW, "C": Extent.COLUMN}


class Repeat(NamedTuple):
    """How the rows of an array are those of a space: its shape, with a row as one element, broadcast to another.

    A block is as many rows of the space as either follow each other in the array or are one row of it.
    """

    shape: Shape
    whole: Shape

    @property
    def block(self) -> int:
        """The number of rows in a block."""
        return self._runs[0][1]

    @property
    def terms(self) -> tuple[tuple[int, int, int], ...]:
        """The row of the array for row ``r`` of the space, as terms whose sum it is: ``r // each % count * stride``."""
        found, each, stride = list[tuple[int, int, int]](), 1, 1
        for is_kept, count in self._runs:
            if is_kept:
                found.append((each, count, stride))
                stride *= count
            each *= count
        return tuple(found)

    @property
    def _runs(self) -> list[tuple[bool, int]]:
        """From the last axis on: whether axes beside each other are the array's, and the product of their sizes."""
        found = list[tuple[bool, int]]()
        for n, own in zip(self.whole[::-1], self.shape[::-1], strict=True):
            if n != 1 and found and found[-1][0] is (own == n):
                found[-1] = found[-1][0], found[-1][1] * n
            elif n != 1:
                found.append((own == n, n))
        return found


#: The most terms of a repeated array.
MAX_TERMS = 2


@lru_cache(1 << 12)
def extent_in(shape: Shape, whole: Shape, depth: int = 1) -> tuple[Extent, Repeat | None] | None:
    """How an operand of one shape varies in an array of another whose last ``depth`` axes are a row.

    That is its extent, in each block of rows if it is repeated. None if it varies in another way.
    """
    if len(shape) > len(whole):
        return None
    if prod(shape) == 1:
        return Extent.ONE, None
    shape = (*[1] * (len(whole) - len(shape)), *shape)
    is_element = shape[-depth:] == whole[-depth:]
    if not is_element and prod(shape[-depth:]) != 1:
        return None
    if shape[:-depth] == whole[:-depth]:
        return Extent.FULL if is_element else Extent.ROW, None
    if prod(shape[:-depth]) == 1:
        return Extent.COLUMN, None
    repeat = Repeat(shape[:-depth], whole[:-depth])
    if len(repeat.terms) > MAX_TERMS:
        return None
    if repeat.terms[0][0] == 1:
        return Extent.FULL if is_element else Extent.ROW, repeat
    return Extent.COLUMN if is_element else Extent.ONE, repeat


class Operand(NamedTuple):
    """A variable or a constant that a step reads, perhaps the source of a reshaped or broadcast operand.

    The extent of a repeated one is that in each block of rows.
    """

    value: Any
    extent: Extent
    repeat: Repeat | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it has separate elements for all of the space."""
        return self.repeat is None and self.extent is Extent.FULL


@dataclass(eq=False, slots=True)
class Step:
    """A call in a pass, its extent and its operands: arrays as :class:`Operand`, others, such as numbers, unchanged."""

    call: Call
    extent: Extent
    operands: list[Any]
    #: Where the call was in the program.
    place: int = 0
    #: The variables that it computes, and their extents.
    made: dict[Variable, Extent] = field(init=False)

    def __post_init__(self) -> None:
        results, kinds = self.call.results, ALONG_ROWS.get(self.call.operation)
        if kinds is None:
            self.made = {results: self.extent}
            return
        extents = [EXTENTS[kind] for kind in kinds.partition(">")[2]]
        self.made = {v: x for v, x in zip(listed(results), extents, strict=True) if v is not None}

    @property
    def is_reduction(self) -> bool:
        """Whether it reduces elements."""
        return self.call.operation in REDUCTIONS

    @property
    def is_elementwise(self) -> bool:
        """Whether an element of the result depends on one of each operand."""
        return self.call.operation not in REDUCTIONS and self.call.operation not in ALONG_ROWS

    @property
    def has_one_shape(self) -> bool:
        """Whether it computes all elements, from arrays of all elements and single numbers only."""
        return self.extent is Extent.FULL and all(
            x.extent in (Extent.FULL, Extent.ONE) and x.repeat is None for x in self.operands if isinstance(x, Operand)
        )

    @property
    def block(self) -> int:
        """The rows of the blocks of its repeated operands, of which all blocks consist; 0 if it has none."""
        return gcd(*(x.repeat.block for x in self.operands if isinstance(x, Operand) and x.repeat))

    @property
    def results(self) -> list[Variable]:
        """The variables that it computes."""
        return [*self.made]


@dataclass(eq=False, slots=True)
class Plan:
    """Steps in order, and which results are written to memory: others exist for a few rows at a time.

    A step that reduces all elements computes one number per row; ``totals`` are the calls that reduce these.
    """

    space: Space
    steps: list[Step]
    outputs: list[Variable]
    totals: list[Call] = field(default_factory=list)
    inputs: list[Operand] = field(init=False)

    def __post_init__(self) -> None:
        made = {id(v) for step in self.steps for v in step.results}
        found = (x for step in self.steps for x in step.operands if isinstance(x, Operand) and id(x.value) not in made)
        self.inputs = [*{(id(x.value), *x[1:]): x for x in found}.values()]

    @property
    def block(self) -> int:
        """The rows of the blocks of repeated operands, of which all blocks consist; 0 if none is repeated."""
        return gcd(*(step.block for step in self.steps))

    @property
    def extents(self) -> dict[Variable, Extent]:
        """The extent of each result."""
        return {v: extent for step in self.steps for v, extent in step.made.items()}

    @property
    def bytes_read(self) -> int:
        """The bytes of memory that the pass reads."""
        return sum(map(self._bytes_of, self.inputs))

    @property
    def bytes_written(self) -> int:
        """The bytes of memory that the pass writes."""
        extents = self.extents
        return sum(self._bytes(extents[v]) for v in self.outputs)

    @property
    def bytes_apart(self) -> int:
        """The bytes that its calls would read and write separately."""
        found = 0
        for step in self.steps:
            found += sum(self._bytes_of(x) for x in step.operands if isinstance(x, Operand))
            found += sum(map(self._bytes, step.made.values()))
        return found

    def _bytes_of(self, x: Operand) -> int:
        if x.repeat is None:
            return self._bytes(x.extent)
        width = self.space.width if x.extent in (Extent.FULL, Extent.COLUMN) else 1
        return prod(x.repeat.shape) * width * self.space.dtype.itemsize

    def _bytes(self, extent: Extent) -> int:
        space = self.space
        count = {Extent.FULL: space.size, Extent.ROW: space.numbers, Extent.COLUMN: space.width, Extent.ONE: 1}
        return count[extent] * space.dtype.itemsize


def key_of(plan: Plan) -> Hashable:
    """A key that is equal for plans whose compiled code may be the same: they differ in their variables alone.

    Raises ``TypeError`` if an option of a call cannot be hashed.
    """
    places: dict[int, int] = {}
    found: list[Hashable] = [plan.space]
    for x in plan.inputs:
        places.setdefault(id(x.value), len(places))
        found.append((places[id(x.value)], _kind(x.value)))
    for step in plan.steps:
        found += (step.call.operation, step.extent)
        for x in (*step.operands, *step.call.operands[len(step.operands) :], *step.call.attributes.items()):
            found.append((places[id(x.value)], *x[1:]) if isinstance(x, Operand) else _fixed(x))
        for v in step.made:
            places[id(v)] = len(places)
            found.append((v.shape, v.dtype.name))
    key = (*found, *(places[id(v)] for v in plan.outputs))
    hash(key)  # raises the error here
    return key


def _kind(x: Any) -> Hashable:
    """The properties of an input on which code may depend: shape and dtype, and of a constant its strides."""
    if x.__class__ is Variable:
        return x.shape, x.dtype.name
    return x.__class__, tuple(x.shape), x.dtype, tuple(x.strides) if hasattr(x, "strides") else id(x)


def _fixed(x: Any) -> Hashable:
    """A key of an option or a number; those of -0.0 and 0.0, and of 1 and True, differ."""
    if x.__class__ is tuple:
        return tuple(map(_fixed, x))
    return x.__class__, repr(x) if isinstance(x, float) else x


#: Compiles a plan to a function from its inputs to its outputs, or returns None; given the function of a plan with an
#: equal key, it shares the code. The function's attribute ``made`` has the calls; if it raises an error, ``failed`` may
#: be the call that did.
Compile = Callable[[Plan, Any], Callable[..., list[Any]] | None]
#: Whether plans of a dtype may have an operation. Plans of 16-bit floats have only element-wise calls; the backend
#: rounds after each call, as separate calls do.
Knows = Callable[[str, DType], bool]


def axes_of(call: Call) -> tuple[int, ...]:
    """The axes of a reduction, in their order."""
    x, axes, *_ = arguments(call)
    return tuple(sorted(axis % len(x.shape) for axis in axes))
