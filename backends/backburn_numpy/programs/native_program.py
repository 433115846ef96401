"""``NativeProgram``: the steps of a layout, run by one call of a kernel."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, cast
from weakref import WeakSet

import numpy as np

from backburn.programs.ir import Call, Number, Variable
from backburn_numpy import compiled, tuning
from backburn_numpy.elementwise.fused import _Program
from backburn_numpy.programs import verifier
from backburn_numpy.programs.layout import COPY, FLOATS, Kind, Layout, Memory, Shape, bytes_of
from backburn_numpy.programs.tile_code import TileCode
from backburn_numpy.programs.verifier import Finished, Value
from backburn_numpy.runtime.memory import append_empty, contiguous
from backburn_numpy.runtime.threads import available


class NativeProgram:
    """Steps and their arena. One replay runs at a time."""

    def __init__(
        self,
        layout: Layout,
        given: Sequence[Variable | Number],
        results: Sequence[Variable],
        makers: Mapping[Variable, Call],
    ) -> None:
        #: The calls, in order.
        self.made = [*dict.fromkeys(makers.values())]
        parts: list[tuple[int, int, Variable]] = []
        news: list[Memory] = []
        copied = len(layout.values)
        for v in results:
            layout.planned = makers[v]
            memory, offset = layout.read(v, FLOATS[v.dtype.name]).resolved()
            if memory.kind is Kind.GIVEN or memory.kind is Kind.CONSTANT:  # a view, whose copy is the result
                source = layout.read(v, FLOATS[v.dtype.name])
                layout.append(COPY, layout.new(v), source, 1, bytes_of(v), 0, 0)
                memory, offset = layout.places[v]
            if memory.kind is Kind.ARENA:
                memory.kind, memory.address = Kind.RESULT, len(news)
                news.append(memory)
            parts.append((memory.address, offset, v))
        #: New arrays: shape, dtype, and whether the memory is pooled. Results: number of the new array, part, and
        #: shape.
        self._news: list[tuple[Shape, np.dtype[Any], bool]] = []
        #: The call of each new array, and the call that failed last.
        self.makers: list[Call] = []
        self.failed: Call | None = None
        self._parts: list[tuple[int, slice | None, Shape]] = [(0, None, ())] * len(parts)
        for number, memory in enumerate(news):
            mine = [i for i, part in enumerate(parts) if part[0] == number]
            _, offset, v = parts[mine[0]]
            self.makers.append(makers[v])
            dtype = FLOATS[v.dtype.name]
            is_whole = len(mine) == 1 and memory.size == bytes_of(v)
            self._news.append(
                (
                    v.shape if is_whole else (memory.size // dtype.itemsize,),
                    dtype,
                    memory.size >= tuning.MIN_POOLED_BYTES,
                )
            )
            if is_whole:
                self._parts[mine[0]] = number, None, v.shape
                continue
            for i in mine:
                _, offset, v = parts[i]
                start = offset // dtype.itemsize
                self._parts[i] = number, slice(start, start + prod(v.shape)), v.shape
        words, patches = layout.words()
        self._steps, self._patches = np.array(words, np.int64), np.array(patches, np.int64)
        self._arrays = [i for i, x in enumerate(given) if isinstance(x, Variable)]
        self._checks = {i: layout.checks[x] for i, x in enumerate(given) if x in layout.checks}
        self._numbers = [(given.index(number), cell) for (number, _), cell in layout.cells.items()]
        self._starts = np.zeros(len(self._arrays) + len(news), np.int64)
        self._kept = layout.kept
        self.arena = layout.arena
        #: The recorded variables and numbers that a replay passes.
        self.given = [*given]
        at_steps, at_patches, at_starts = map(compiled.address, (self._steps, self._patches, self._starts))
        self._given = (
            at_steps,
            len(words),
            at_patches,
            len(patches) // 3,
            at_starts,
            tuning.ELEMENTS_PER_TASK,
            tuning.MIN_ELEMENTS_FOR_NATIVE_THREADS,
        )
        self._run: Any = compiled.kernel("native_program")
        self._lock = threading.Lock()
        if verifier.VERIFIES:
            verifier.verify(self._finished(layout, results, makers, copied))
        _PROGRAMS.add(self)

    def _finished(
        self,
        layout: Layout,
        results: Sequence[Variable],
        makers: Mapping[Variable, Call],
        copied: int,
    ) -> Finished:
        """The program as the verifier reads it; the values from number ``copied`` on are copies of results."""
        values = []
        for i, (v, call, place, size) in enumerate(layout.values):
            memory, offset = place.resolved()
            if memory.kind is Kind.RESULT:
                values.append(Value(v, cast(Call, call), len(self._arrays) + memory.address, offset, size, i >= copied))
            else:
                at = compiled.address(self.arena) + memory.address + offset
                values.append(Value(v, cast(Call, call), None, at, size, i >= copied))
        return Finished(
            self._steps,
            self._patches.reshape(-1, 3),
            [*dict.fromkeys(makers.values())],
            [cast(Call, call) for call in layout.owners],
            values,
            self.given,
            [prod(shape) * dtype.itemsize for shape, dtype, _ in self._news],
            [
                (v, number, part.start * self._news[number][1].itemsize if part is not None else 0)
                for v, (number, part, _) in zip(results, self._parts, strict=True)
            ],
            self.arena,
            [
                *self.constants,
                *(x for one in self._kept if isinstance(one, _Program | TileCode) for x in one.constants),
            ],
            [(number, cell) for (number, _), cell in layout.cells.items()],
            {one.at_fixed: one for one in self._kept if isinstance(one, _Program)},
            {one.at_fixed: one.finished for one in self._kept if isinstance(one, TileCode)},
        )

    @property
    def constants(self) -> list[Any]:
        """The arrays that its steps read and nothing writes."""
        cells = {id(cell) for _, cell in self._numbers}
        return [x for x in self._kept if x.__class__ is np.ndarray and id(x) not in cells]

    def __call__(self, *given: Any) -> list[Any]:
        """The results for the values of ``given``."""
        arrays: list[Any] = []
        for i in self._arrays:
            x = given[i]
            if i in self._checks:
                self.failed, check = self._checks[i]
                x = check(x)
            arrays.append(x if x.__class__ is np.ndarray and x.flags.c_contiguous else contiguous(x))
        self.failed = None
        count = len(arrays)
        try:
            append_empty(arrays, self._news)
        except MemoryError:
            self.failed = self.makers[len(arrays) - count]
            raise
        with self._lock:
            self._starts[:] = compiled.addresses_of(arrays)
            for i, cell in self._numbers:
                cell[()] = given[i]
            self._run(*self._given, available())
        results = []
        for number, part, shape in self._parts:
            new = arrays[count + number]
            results.append(new if part is None else new[part].reshape(shape))
        return results


#: All native programs: a thread of the parent may have held the lock of one at a fork.
_PROGRAMS: WeakSet[NativeProgram] = WeakSet()


def _after_fork_in_child() -> None:
    for one in _PROGRAMS:
        one._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
