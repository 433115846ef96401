"""Parts of a recorded program in one call of a kernel: formulas, sums, small products, views, stacks, concatenations.

What a list computes for itself alone lies in an arena, in places that are fixed when the list is made; values that are
not needed at the same time share one. Views are addresses. The parts of a stack are computed where they lie in it.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, lru_cache
from itertools import groupby
from math import prod
from operator import itemgetter
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np

from backburn.backend.tracing import Formula, is_formula, method_of
from backburn.decorators.capture.program import Call, Number, Variable, arguments
from backburn.ops.table import OPERATIONS
from backburn_numpy import blas, compiled, products
from backburn_numpy.compiled import FLOAT32, FLOAT64
from backburn_numpy.fused import COSTS, SHARED, _Program, _program
from backburn_numpy.memory import aligned, contiguous, empty
from backburn_numpy.threads import available

#: The most elements of a result of a list: for larger ones it gains nothing, and the arena would keep their memory.
MOST = 1 << 16
#: The most multiplications of a matrix product by the kernels, and by OpenBLAS, which makes such a one in the calling
#: thread; and the most products of a stack.
MOST_MULTIPLICATIONS, MOST_BY_LIBRARY, MOST_PRODUCTS = 1 << 24, 1 << 18, 32
#: The most steps for groups of rows, and for matrices whose diagonals are copied.
MOST_GROUPS = 64
#: The arguments of a kernel's call.
ARGUMENTS = 11
#: The bytes of a row up to which rows are repeated rather than passed over one by one, and the most elements then.
SHORT, MOST_REPEATED = 1 << 10, 1 << 14
#: The kinds of steps, as the kernel numbers them, and the most arrays of a formula.
FORMULA, COPY, KERNEL_CALL, PRODUCT, TRANSPOSE = range(5)
MOST_ARRAYS = 64
#: The alignment of values in the arena, in bytes.
LINE = 64

Shape = tuple[int, ...]


class Kind(Enum):
    """Whose a memory is: the list's own, a given array's, a constant's, or a result's."""

    ARENA, GIVEN, CONSTANT, RESULT = range(4)


class Memory:
    """The memory of a value and of its views; perhaps a part of a larger one."""

    __slots__ = ("address", "first", "kind", "last", "offset", "size", "whole")

    def __init__(self, kind: Kind, address: int = 0, size: int = 0, step: int = 0) -> None:
        self.kind = kind
        #: In the arena from its start on; of given arrays and results, their number instead.
        self.address = address
        self.size = size
        #: The steps that write it first and use it last.
        self.first = self.last = step
        self.whole: Memory | None = None
        self.offset = 0


class Place(NamedTuple):
    """Where a value lies: some bytes after the start of a memory."""

    memory: Memory
    offset: int

    def resolved(self) -> Place:
        """The place in the memory that is no part of another."""
        memory, offset = self
        while memory.whole is not None:
            offset += memory.offset
            memory = memory.whole
        return Place(memory, offset)


#: Appends the steps of a call to a layout.
Plan = Callable[["Layout", Call], None]


class Lister:
    """Makes lists of the calls of one program: see :class:`backburn.decorators.capture.native.Lister`."""

    def __init__(self) -> None:
        self._plans: dict[int, Plan] = {}

    def spares(self, call: Call) -> int:
        """How many calls are spared where this one becomes part of a list: 0 for a view, -1 if it cannot."""
        plan = PLANNERS.get(call.operation, _formula)(call)
        if plan is None:
            return -1
        self._plans[id(call)] = plan
        return 0 if call.operation in VIEWS else 1

    def native_list(
        self, calls: Sequence[Call], given: Sequence[Variable | Number], results: Sequence[Variable]
    ) -> Callable[..., list[Any]]:
        """A function of what is given that makes the calls and returns the results."""
        layout = Layout(given)
        for call in calls:
            self._plans[id(call)](layout, call)
        return NativeList(layout, given, results, {v: call for call in calls for v in call.writes})


class Layout:
    """The steps of a list, and where their operands and results lie."""

    def __init__(self, given: Sequence[Variable | Number]) -> None:
        self.steps: list[list[Any]] = []
        self.places: dict[Variable, Place] = {}
        #: Transposed matrices, until something else than a product reads them: of which, how many, of what sides.
        self.transposed: dict[Variable, tuple[Variable, int, int, int]] = {}
        #: The memory of numbers that replays bring.
        self.cells: dict[tuple[Number, np.dtype[Any]], Any] = {}
        self.kept: list[Any] = []
        self._memories: list[Memory] = []
        self._repeated: dict[tuple[int, Shape], Place] = {}
        for x in given:
            if isinstance(x, Variable):
                self.places[x] = Place(Memory(Kind.GIVEN, len(self.places)), 0)
        self._given = len(self.places)

    def new(self, v: Variable) -> Place:
        """The place of a value that the next step computes."""
        place = self.places[v] = self.scratch(v.shape, _FLOATS[v.dtype.name])
        return place

    def read(self, x: Any, dtype: np.dtype[Any]) -> Place:
        """The place of an operand of the next step."""
        if x.__class__ is Variable:
            if x not in self.places:
                source, *sides = self.transposed[x]
                self.steps.append([TRANSPOSE, self.new(x), self.read(source, dtype), *sides, dtype.itemsize])
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
        """The place of a row, or of several, repeated to a shape: many calls may read it."""
        key = id(x), shape
        if (place := self._repeated.get(key)) is None:
            source, size = self.read(x, dtype), prod(x.shape) * dtype.itemsize
            place = self._repeated[key] = self.scratch(shape, dtype)
            self.steps.append([COPY, place, source, prod(shape) // prod(x.shape), size, size, 0])
        place.memory.last = len(self.steps)
        return place

    def constant(self, x: Any) -> Place:
        """The place of an array that stays as it is, or that is written before the steps."""
        self.kept.append(x)
        return Place(Memory(Kind.CONSTANT, compiled.address(x)), 0)

    def scratch(self, shape: Shape, dtype: np.dtype[Any]) -> Place:
        """A place for what only the next steps need."""
        memory = Memory(Kind.ARENA, 0, -(-prod(shape) * dtype.itemsize // LINE) * LINE, len(self.steps))
        self._memories.append(memory)
        return Place(memory, 0)

    def result(self, v: Variable | None, shape: Shape, dtype: np.dtype[Any]) -> Place:
        """The place of a value that the next step computes, or of what nobody needs."""
        return self.scratch(shape, dtype) if v is None else self.new(v)

    def call(self, kernel: Any, *arguments: Place | int) -> None:
        """Append the call of a kernel."""
        self.steps.append([KERNEL_CALL, kernel.where, *arguments, *[0] * (ARGUMENTS - len(arguments))])

    def words(self) -> tuple[list[int], list[int]]:
        """The words of all steps, and the patches: which word a replay replaces, by the address of what, plus what."""
        start = self._arena()
        found: list[int] = []
        patches: list[int] = []
        for kind, *rest in self.steps:
            found += (kind, len(rest) + 2)
            for word in rest:
                if word.__class__ is Place:
                    memory, offset = word.resolved()
                    if memory.kind is Kind.GIVEN or memory.kind is Kind.RESULT:
                        before = self._given if memory.kind is Kind.RESULT else 0
                        patches += (len(found), before + memory.address, offset)
                    word = memory.address + offset + (start if memory.kind is Kind.ARENA else 0)
                found.append(word)
        return found, patches

    def _arena(self) -> int:
        """Give the values their places in a new arena, and return its address."""
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
                if places := free[memory.size]:
                    memory.address = places.pop()
                else:
                    memory.address = size
                    size += memory.size
            for memory in end[step]:
                free[memory.size].append(memory.address)
        arena = aligned(size)
        self.kept.append(arena)
        return compiled.address(arena)


class NativeList:
    """A list of steps with its arena. One replay runs it at a time."""

    def __init__(
        self,
        layout: Layout,
        given: Sequence[Variable | Number],
        results: Sequence[Variable],
        makers: Mapping[Variable, Call],
    ) -> None:
        parts: list[tuple[int, int, Variable]] = []
        news: list[Memory] = []
        for v in results:
            memory, offset = layout.read(v, _FLOATS[v.dtype.name]).resolved()
            if memory.kind is Kind.GIVEN or memory.kind is Kind.CONSTANT:  # a view, whose copy is the result
                source = layout.read(v, _FLOATS[v.dtype.name])
                layout.steps.append([COPY, layout.new(v), source, 1, _bytes(v), 0, 0])
                memory, offset = layout.places[v]
            if memory.kind is Kind.ARENA:
                memory.kind, memory.address = Kind.RESULT, len(news)
                news.append(memory)
            parts.append((memory.address, offset, v))
        #: The results that have memory of their own, by shape and dtype; and all, by which of them and what part.
        self._news: list[tuple[Shape, np.dtype[Any]]] = []
        #: The call of each of these, and the last one for whose result there was no memory.
        self._makers: list[Call] = []
        self.failed: Call | None = None
        self._parts: list[tuple[int, slice | None, Shape]] = [(0, None, ())] * len(parts)
        for number, memory in enumerate(news):
            mine = [i for i, part in enumerate(parts) if part[0] == number]
            _, offset, v = parts[mine[0]]
            self._makers.append(makers[v])
            dtype = _FLOATS[v.dtype.name]
            if len(mine) == 1 and offset == 0 and memory.size - _bytes(v) < LINE:
                self._news.append((v.shape, dtype))
                self._parts[mine[0]] = number, None, v.shape
                continue
            self._news.append(((memory.size // dtype.itemsize,), dtype))
            for i in mine:
                _, offset, v = parts[i]
                start = offset // dtype.itemsize
                self._parts[i] = number, slice(start, start + prod(v.shape)), v.shape
        words, patches = layout.words()
        self._steps, self._patches = np.array(words, np.int64), np.array(patches, np.int64)
        self._arrays = [i for i, x in enumerate(given) if isinstance(x, Variable)]
        self._numbers = [(given.index(number), cell) for (number, _), cell in layout.cells.items()]
        self._starts = np.zeros(len(self._arrays) + len(news), np.int64)
        self._kept = layout.kept
        at_steps, at_patches, at_starts = map(compiled.address, (self._steps, self._patches, self._starts))
        self._given = at_steps, len(words), at_patches, len(patches) // 3, at_starts, compiled.PORTION, SHARED
        self._run: Any = compiled.kernel("native_list")
        self._lock = threading.Lock()
        _LISTS.add(self)

    def __call__(self, *given: Any) -> list[Any]:
        """The results for what is given."""
        arrays = [
            x if x.__class__ is np.ndarray and x.flags.c_contiguous else contiguous(x)
            for x in map(given.__getitem__, self._arrays)
        ]
        news: list[Any] = []
        for shape, dtype in self._news:
            try:
                news.append(empty(shape, dtype))
            except MemoryError:
                self.failed = self._makers[len(news)]
                raise
        with self._lock:
            self._starts[:] = [*map(compiled.address, arrays), *map(compiled.address, news)]
            for i, cell in self._numbers:
                cell[()] = given[i]
            self._run(*self._given, available())
        return [
            news[number] if part is None else news[number][part].reshape(shape) for number, part, shape in self._parts
        ]


#: All lists: a thread of the parent may have been in one of them when it forked.
_LISTS: WeakSet[NativeList] = WeakSet()


def _after_fork_in_child() -> None:
    for one in _LISTS:
        one._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _bytes(v: Variable) -> int:
    return prod(v.shape) * v.dtype.bits // 8


def _dtype(v: Any) -> np.dtype[Any] | None:
    """The dtype of a value that lists compute; None for any other value."""
    if v.__class__ is Variable:
        return _FLOATS.get(v.dtype.name) if prod(v.shape) else None
    return _FLOATS.get(v.dtype.name) if v.__class__ is np.ndarray and v.size and v.dtype.isnative else None


_FLOATS: dict[str, np.dtype[Any]] = {"float32": FLOAT32, "float64": FLOAT64}


# ---- element-wise formulas ----


class _Pass(NamedTuple):
    """A program for rows of arrays: how many, of what width, and the bytes from row to row of each array.

    It is run for so many groups of rows, with so many bytes from group to group of each result and operand.
    """

    program: _Program
    rows: int
    width: int
    between: tuple[int, ...]
    groups: int = 1
    apart: tuple[int, ...] = ()


def _formula(call: Call) -> Plan | None:
    """The plan of an element-wise call: an operation's kernel or body, or a formula."""
    results = call.results if call.results.__class__ is list else [call.results]
    first = results[0]
    if (dtype := _dtype(first)) is None or prod(first.shape) > MOST:
        return None
    formula: Formula | None
    if call.operation == "broadcast_to":
        x = arguments(call)[0]
        # A formula passes over something: over ones, where each number of a column fills a row.
        is_column = first.shape[-1:] != x.shape[-1:] and first.shape[-1] > 1
        formula, values = _method("mul"), [x, np.ones(first.shape[-1:], dtype) if is_column else 1.0]
    elif call.operation == "fuse":
        formula, *values = call.operands
        values += [x for name, x in call.attributes.items() if name != "donate"]
        if any(_dtype(v) is not dtype or v.shape != first.shape for v in results):
            return None
    else:
        formula, values = _method(call.operation), arguments(call)
        if call.operation == "pow" and values[1:] == [2.0] and values[1].__class__ is float:
            formula, values = _method("square"), values[:1]
    if formula is None:
        return None
    kinds: list[Any] = []
    operands = []
    for x in values:
        kind = x.__class__
        if kind is Variable or kind is np.ndarray:
            if _dtype(x) is not dtype:  # NumPy takes None for float64 where dtypes are compared
                return None
            if kind is np.ndarray and not any(x.strides):  # one number, perhaps broadcast
                x = x[(0,) * x.ndim + (...,)]
            kinds.append(x.shape)
            operands.append(x)
        elif kind is Number:
            kinds.append(())
            operands.append(x)
        elif kind is list:
            return None
        else:
            kinds.append(_Constant((x,) if x else (x, repr(x))))  # -0.0 == 0.0
    level = compiled.level()
    assert level is not None
    made = _pass(formula, first.shape, first.dtype.name, tuple(kinds), level)
    if made is None:
        return None

    shape, whole = first.shape, None
    if made.rows > 1 and made.groups == 1 and made.width * dtype.itemsize <= SHORT and prod(shape) <= MOST_REPEATED:
        whole = _pass(formula, shape, first.dtype.name, tuple(shape if _is_row(x, shape) else x for x in kinds), level)
    is_repeated = False
    if whole is not None and whole.rows == 1:
        made, is_repeated = whole, True

    def plan(layout: Layout, call: Call) -> None:
        sources = [
            layout.repeated(x, dtype, shape)
            if is_repeated and x.__class__ is not Number and _is_row(x.shape, shape)
            else layout.read(x, dtype)
            for x in operands
        ]
        _append(layout, made, [layout.new(v) for v in results], sources)

    return plan


def _is_row(kind: Any, shape: Shape) -> bool:
    """Whether the shape of an operand is that of one or several rows of a shape."""
    if kind.__class__ is _Constant or prod(kind) == 1 or len(kind) >= len(shape):
        return False
    return kind == shape[len(shape) - len(kind) :]


def _append(layout: Layout, made: _Pass, targets: list[Place], sources: list[Place]) -> None:
    """Append a formula to the steps."""
    program = made.program
    layout.kept.append(program)
    constants = program.starts[len(targets) + len(sources) :]
    head = FORMULA, program.at_fixed, made.width, made.rows
    for i in range(made.groups):
        places = [*targets, *sources]
        if i:
            places = [Place(p.memory, p.offset + i * step) for p, step in zip(places, made.apart, strict=True)]
        layout.steps.append([*head, *places, *constants, *made.between])
    _extend(layout, [*targets, *sources])  # one may have been transposed after another was read


@dataclass(frozen=True, slots=True)
class _Constant:
    """A number or an option of a formula, as programs know it: no tuple, which may equal a shape."""

    kind: tuple[Any, ...]


@cache
def _method(name: str) -> Formula | None:
    """An element-wise operation as a formula."""
    return method_of(name) if name in COSTS or (name in OPERATIONS and is_formula(name)) else None


@lru_cache(1024)
def _pass(formula: Formula, shape: Shape, dtype: str, kinds: tuple[Any, ...], level: str) -> _Pass | None:
    """A program for operands of these shapes, which broadcast to the result's, and constants; None if there is none.

    Axes along which the same operands vary are one; there are at most two then, rows and elements of a row, and perhaps
    a few groups of rows.
    """
    shapes = [kind for kind in kinds if kind.__class__ is not _Constant]
    is_one = prod(shape) == 1
    patterns = []
    for i, n in enumerate(shape):
        at = i - len(shape)
        if n > 1:
            patterns.append((n, tuple(len(s) >= -at and s[at] == n for s in shapes)))
    axes = [(prod(n for n, _ in group), which) for which, group in groupby(patterns, key=itemgetter(1))]
    never = (False,) * len(shapes)
    groups, which = axes.pop(0) if len(axes) == 3 else (1, never)
    if len(axes) > 2 or groups > MOST_GROUPS:
        return None
    count, varies = axes[-1] if axes else (1, (is_one,) * len(shapes))
    rows, outer = axes[0] if len(axes) == 2 else (1, never)
    found: list[Any] = []
    inner = iter(varies)
    for kind in kinds:
        found.append(kind.kind if kind.__class__ is _Constant else dtype if next(inner) else "number")
    if dtype not in found:
        return None
    program = _program(formula, tuple(found), level)
    if program is None or program.arrays > MOST_ARRAYS:
        return None
    size = np.dtype(dtype).itemsize
    results = len(program.made)
    between = [count * size] * results
    between += [(count if whole else 1) * size if moves else 0 for whole, moves in zip(varies, outer, strict=True)]
    between += [0] * (program.arrays - len(between))
    apart = [rows * count * size] * results
    for whole, moves, differs in zip(varies, outer, which, strict=True):
        apart.append((count if whole else 1) * (rows if moves else 1) * size if differs else 0)
    return _Pass(program, rows, count, tuple(between), groups, tuple(apart))


# ---- sums, views, stacks ----


def _sum(call: Call) -> Plan | None:
    """The plan of a sum or a mean over axes that follow one another."""
    x, axes, *_ = arguments(call)
    result, dtype = call.results, _dtype(x)
    if dtype is None or dtype is not _dtype(result) or prod(x.shape) > MOST or not axes:
        return None
    if [*axes] != [*range(axes[0], axes[0] + len(axes))]:
        return None
    kernel: Any = compiled.kernel("sum_matrices" if dtype.itemsize == 4 else "sum_matrices_double")
    if kernel is None:
        return None
    number, inner = prod(x.shape[: axes[0]]), prod(x.shape[axes[-1] + 1 :])
    size = prod(x.shape) // number
    by = _mean_of(result.shape, result.dtype.name, size // inner) if call.operation == "mean" else None
    if call.operation == "mean" and by is None:
        return None

    def plan(layout: Layout, call: Call) -> None:
        source = layout.read(x, dtype)
        total = layout.new(result)
        layout.call(kernel, source, total, inner, number, size)
        if by is not None:
            total.memory.last = len(layout.steps)
            _append(layout, by, [layout.new(result)], [total])

    return plan


def _mean_of(shape: Shape, dtype: str, count: int) -> _Pass | None:
    """The pass that divides sums by the number of their terms."""
    formula, level = _method("div"), compiled.level()
    assert formula is not None
    assert level is not None
    return _pass(formula, shape, dtype, (shape, _Constant((float(count),))), level)


class _Gemm(NamedTuple):
    """The multiplication of matrices of a dtype: the address of a library's function, 0 for the kernels."""

    address: int
    dtype: np.dtype[Any]

    def append(
        self, layout: Layout, out: Place, x: Place, y: Place, sizes: tuple[int, int, int],
        turned: tuple[bool, bool] = (False, False), adds: bool = False,
    ) -> None:  # fmt: skip
        """Append ``out = x @ y``, or its addition, for (m, k) by (k, n), each perhaps transposed in memory."""
        m, n, k = sizes
        left, right = (m if turned[0] else k), (k if turned[1] else n)
        few = m * n * k <= MOST_BY_LIBRARY and self.dtype is FLOAT32 and not turned[1]
        address = (few and products.library_pays() and blas.library_sgemm_address()) or self.address
        head = PRODUCT, address, *map(int, turned), m, n, k
        layout.steps.append([*head, x, left, y, right, int(adds), out, self.dtype.itemsize])


def _gemm(multiplications: int, elements: int, *values: Any) -> _Gemm | None:
    """The multiplication in lists of operands and results of one dtype; None if products of that size are calls."""
    dtype = _dtype(values[0])
    if dtype is None or any(_dtype(v) is not dtype for v in values) or elements > MOST:
        return None
    if products.sgemm_address() is not None:
        return _Gemm(0, dtype) if multiplications <= MOST_MULTIPLICATIONS else None
    address = blas.library_sgemm_address()
    if address is None or dtype is not FLOAT32 or multiplications > MOST_BY_LIBRARY:
        return None
    return _Gemm(address, dtype)


def _product(call: Call) -> Plan | None:
    """The plan of a product of matrices, or of as many on both sides."""
    x, y = call.operands
    k = x.shape[-1]
    if len(y.shape) <= 2:
        count, m, n = 1, prod(x.shape[:-1]), y.shape[1] if len(y.shape) == 2 else 1
    elif x.shape[:-2] in (y.shape[:-2], ()) and len(x.shape) > 1:
        count, m, n = prod(y.shape[:-2]), x.shape[-2], y.shape[-1]
    else:
        return None
    lefts = count if len(x.shape) > 2 else 1
    gemm = _gemm(count * m * n * k, prod(call.results.shape), x, y, call.results)
    if gemm is None or count > MOST_PRODUCTS:
        return None
    dtype = gemm.dtype

    def plan(layout: Layout, call: Call) -> None:
        (a, is_turned), (b, is_other_turned) = (
            _factor(layout, x, dtype, count, m, k),
            _factor(layout, y, dtype, count, k, n),
        )
        target = layout.new(call.results)
        for i in range(count):
            out, one, two = (
                Place(p.memory, p.offset + dtype.itemsize * i * size)
                for p, size in ((target, m * n), (a, m * k if lefts > 1 else 0), (b, k * n))
            )
            gemm.append(layout, out, one, two, (m, n, k), (is_turned, is_other_turned))
        _extend(layout, (a, b, target))

    return plan


def _factor(layout: Layout, v: Any, dtype: Any, count: int, rows: int, columns: int) -> tuple[Place, bool]:
    """The place of as many matrices, and whether they are there transposed."""
    if v.__class__ is Variable and v not in layout.places:
        source, *sides = layout.transposed[v]
        if sides == [count, columns, rows]:
            return layout.read(source, dtype), True
    return layout.read(v, dtype), False


def _extend(layout: Layout, places: Sequence[Place]) -> None:
    """Keep memory for the last of several steps of a call."""
    for place in places:
        memory: Memory | None = place.memory
        while memory is not None:
            memory.last = len(layout.steps) - 1
            memory = memory.whole


def _linear(call: Call) -> Plan | None:
    """The plan of ``x @ weight.T + bias``."""
    x, weight, *rest = arguments(call)
    bias = rest[0] if rest else None
    (n, k), m = weight.shape, prod(x.shape[:-1])
    given = [v for v in (x, weight, bias) if v is not None]
    gemm = _gemm(m * n * k, m * n, *given, call.results)
    if gemm is None:
        return None
    dtype = gemm.dtype

    def plan(layout: Layout, call: Call) -> None:
        places = [layout.read(v, dtype) for v in given]
        target = layout.new(call.results)
        if bias is not None:
            width = dtype.itemsize * n
            layout.steps.append([COPY, target, places[2], m, width, width, 0])
        gemm.append(layout, target, places[0], places[1], (m, n, k), (False, True), bias is not None)
        _extend(layout, (*places, target))

    return plan


# ---- cells of recurrent networks ----


def _cell(call: Call) -> Plan | None:
    """The plan of a step of an LSTM or a GRU."""
    values = arguments(call)
    is_lstm = call.operation == "lstm_cell"
    *states, weight, bias = values[1:] if len(values) > (4 if is_lstm else 3) else [*values[1:], None]
    step = _step(call, "lstm_step" if is_lstm else "gru_step", values[0], weight, values)
    if step is None:
        return None
    gemm, kernel, rows, size = step
    dtype, wide = gemm.dtype, weight.shape[0]
    shapes: list[Shape] = [*[(rows, size)] * (1 + is_lstm), (rows, 4 * size)]

    def plan(layout: Layout, call: Call) -> None:
        projected, hidden, *cell = (layout.read(v, dtype) for v in (values[0], *states))
        matrix = layout.read(weight, dtype)
        last = [] if bias is None else [layout.read(bias, dtype)]
        *news, gates = (layout.result(v, shape, dtype) for v, shape in zip(call.results, shapes, strict=True))
        product = gates if is_lstm else layout.scratch((rows, wide), dtype)
        gemm.append(layout, product, hidden, matrix, (rows, wide, size), (False, True))
        states_and_sums = [*cell, projected] if is_lstm else [hidden, product, projected]
        layout.call(kernel, gates, *news, *states_and_sums, last[0] if last else 0, rows, size)
        _extend(layout, (projected, hidden, *cell, matrix, *last, gates, *news, product))

    return plan


def _cell_backward(call: Call) -> Plan | None:
    """The plan of the gradients of one step of an LSTM or a GRU."""
    values = arguments(call)
    is_lstm = call.operation == "lstm_backward"
    weight, before, after, gates, *grads = [*values, None, None, None][: 7 if is_lstm else 6]
    if after.shape[0] != 1:
        return None
    name = "lstm_step_backward" if is_lstm else "gru_step_backward"
    step = _step(call, name, before, weight, values)
    if step is None:
        return None
    gemm, kernel, rows, size = step
    dtype, wide = gemm.dtype, weight.shape[0]
    state = rows, size
    zeros = np.zeros(state, dtype)

    def plan(layout: Layout, call: Call) -> None:
        matrix, old, new, opened = (layout.read(v, dtype) for v in (weight, before, after, gates))
        given = [0 if g is None else layout.read(g, dtype) for g in grads]
        shapes = [(rows, wide), state, state] if is_lstm else [(rows, wide), (rows, wide), state]
        results = [layout.result(v, s, dtype) for v, s in zip(call.results, shapes, strict=True)]
        through = layout.scratch(state, dtype) if is_lstm else results[2]
        for sum_, g in [(through, 0), (results[2], 1)][: 1 + is_lstm]:
            source = given[g] or layout.constant(zeros)
            layout.steps.append([COPY, sum_, source, 1, zeros.nbytes, 0, 0])
        if is_lstm:
            sums, carried, cell = results
            layout.call(kernel, sums, cell, through, 0, 0, given[2], old, new, opened, rows, size)
            gemm.append(layout, carried, sums, matrix, (rows, size, wide))
        else:
            layout.call(kernel, *results, 0, given[1], old, opened, rows, size)
            gemm.append(layout, results[2], results[1], matrix, (rows, size, wide), adds=True)
        _extend(layout, [p for p in (matrix, old, new, opened, *given, *results, through) if isinstance(p, Place)])

    return plan


def _step(call: Call, name: str, like: Any, weight: Any, values: Sequence[Any]) -> tuple[_Gemm, Any, int, int] | None:
    """The multiplication and the kernel of a step, its rows and the size of its state; None if it stays a call."""
    rows, (wide, size) = like.shape[0], weight.shape
    results = [v for v in call.results if v is not None]
    gemm = _gemm(rows * wide * size, 4 * rows * size, *(v for v in (*values, *results) if v is not None))
    if gemm is None:
        return None
    kernel = compiled.kernel(name if gemm.dtype is FLOAT32 else f"{name}_double")
    return None if kernel is None else (gemm, kernel, rows, size)


def _permutation(call: Call) -> Plan | None:
    """The plan of matrices that are transposed, or of axes whose order does not matter."""
    x, axes = arguments(call)
    dtype = _dtype(x)
    if dtype is None or prod(x.shape) > MOST:
        return None
    order = [a for a in axes if x.shape[a] > 1]
    rank = {a: i for i, a in enumerate(sorted(order))}
    if order == sorted(order):
        return _view(call)
    groups: list[list[int]] = []  # axes that follow one another before and after
    for a in order:
        if groups and rank[a] == rank[groups[-1][-1]] + 1:
            groups[-1].append(a)
        else:
            groups.append([a])
    if [groups.index(group) for group in sorted(groups)] not in ([1, 0], [0, 2, 1]):
        return None
    sizes = [prod(x.shape[a] for a in group) for group in groups]
    count = sizes[0] if len(sizes) == 3 else 1
    columns, rows = sizes[-2:]

    def plan(layout: Layout, call: Call) -> None:
        layout.transposed[call.results] = x, count, rows, columns

    return plan


def _view(call: Call) -> Plan | None:
    """The plan of a view whose elements follow one another."""
    x = arguments(call)[0]
    dtype = _dtype(x)
    if dtype is None or _dtype(call.results) is None:
        return None

    def plan(layout: Layout, call: Call) -> None:
        if x.__class__ is Variable and x not in layout.places and x.shape == call.results.shape:
            layout.transposed[call.results] = layout.transposed[x]
        else:
            layout.places[call.results] = layout.read(x, dtype)

    return plan


def _slice(call: Call) -> Plan | None:
    """The plan of a slice."""
    x, key = arguments(call)
    start, inner = 0, 1
    axes: list[tuple[int, int]] = []
    for s, n, length in zip(reversed(key), reversed(x.shape), reversed(call.results.shape), strict=True):
        first, _, step = s.indices(n)
        start += first * inner
        axes.append((length, step * inner))
        inner *= n
    return _strided(x, call.results, start, axes[::-1])


def _diagonal(call: Call) -> Plan | None:
    """The plan of the diagonals of the last two axes."""
    x, offset, *axes = arguments(call)
    rank = len(x.shape)
    rows, columns = x.shape[-2:]
    if [a % rank for a in axes] != [rank - 2, rank - 1]:
        return None
    sides = prod(x.shape[:-2]), columns, rows
    length = call.results.shape[-1]

    def plan_of(v: Any, width: int, offset: int) -> Plan | None:
        start = offset if offset >= 0 else -offset * width
        return _strided(v, call.results, start, [(sides[0], rows * columns), (length, width + 1)])

    if (as_it_is := plan_of(x, columns, offset)) is None:
        return None

    def plan(layout: Layout, call: Call) -> None:
        held = layout.transposed.get(x) if x.__class__ is Variable and x not in layout.places else None
        turned = plan_of(held[0], rows, -offset) if held is not None and held[1:] == sides else None
        (turned or as_it_is)(layout, call)

    return plan


def _strided(x: Any, result: Variable, start: int, axes: Sequence[tuple[int, int]]) -> Plan | None:
    """The plan of some elements: axes with as many, so far apart. A view if they follow one another, else a copy."""
    dtype = _dtype(x)
    if dtype is None or _dtype(result) is not dtype:
        return None
    merged: list[tuple[int, int]] = []
    for length, step in axes:
        if merged and merged[-1][1] == length * step:
            merged[-1] = merged[-1][0] * length, step
        elif length > 1:
            merged.append((length, step))
    block = merged.pop()[0] if merged and merged[-1][1] == 1 else 1
    rows, between = merged.pop() if merged else (1, 0)
    starts = [start]
    for length, step in merged:
        starts = [at + i * step for at in starts for i in range(length)]
    if rows > 1 and (prod(result.shape) > MOST or len(starts) > MOST_GROUPS):
        return None
    size = dtype.itemsize

    def plan(layout: Layout, call: Call) -> None:
        memory, offset = layout.read(x, dtype)
        if rows == 1:
            layout.places[result] = Place(memory, offset + start * size)
            return
        target = layout.new(result).memory
        for i, at in enumerate(starts):
            places = Place(target, i * rows * block * size), Place(memory, offset + at * size)
            layout.steps.append([COPY, *places, rows, block * size, block * size, between * size])
        _extend(layout, (Place(memory, offset), Place(target, 0)))

    return plan


def _concatenation(call: Call) -> Plan | None:
    """The plan of a stack or a concatenation: parts along the first axis are computed where they lie in the result."""
    values = arguments(call)
    parts, axis = values[0], values[1] if len(values) > 1 else 0
    result = call.results
    dtype = _dtype(result)
    if dtype is None or any(_dtype(v) is not dtype for v in parts):
        return None
    rows = prod(result.shape[:axis])

    def plan(layout: Layout, call: Call) -> None:
        now = len(layout.steps)
        whole = layout.new(result).memory
        at = 0
        for v in parts:
            place, size = layout.read(v, dtype), prod(v.shape) * dtype.itemsize
            memory = place.memory
            if rows == 1 and place == (memory, 0) and _is_free(memory, whole) and memory.size - size < LINE:
                memory.whole, memory.offset = whole, at
                whole.first = min(whole.first, memory.first)
            else:
                target = Place(whole, at)
                layout.steps.append([COPY, target, place, rows, size // rows, _bytes(result) // rows, size // rows])
            at += size // rows
        whole.last = max(now, len(layout.steps))

    return plan


def _is_free(memory: Memory, whole: Memory) -> bool:
    """Whether a value may be computed as a part of another one."""
    return memory.kind is Kind.ARENA and memory.whole is None and memory is not whole


PLANNERS: dict[str, Callable[[Call], Plan | None]] = {
    "sum": _sum, "mean": _sum, "reshape": _view, "slice": _slice, "diagonal": _diagonal, "permute_dims": _permutation,
    "stack": _concatenation, "concat": _concatenation, "matmul": _product, "linear": _linear, "lstm_cell": _cell,
    "gru_cell": _cell, "lstm_backward": _cell_backward, "gru_backward": _cell_backward,
}  # fmt: skip
#: Calls that take no time outside a list.
VIEWS = frozenset(("reshape", "slice", "permute_dims", "broadcast_to"))
