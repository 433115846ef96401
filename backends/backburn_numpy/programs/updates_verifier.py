"""A verifier of updates of state: checks the table of steps each time before the kernel runs it.

It reads the table as the kernel does, and knows which arrays an update is given and must write, but not how the table
was computed. When it refuses, nothing has been written.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from backburn.base.errors import CaptureError
from backburn.programs.passes.in_place import Place
from backburn_numpy import compiled
from backburn_numpy.elementwise.fused import _Program
from backburn_numpy.programs.effects import Refused, uses_of
from backburn_numpy.programs.state_updates import (
    ADAM,
    FORMULA,
    MOMENTUM,
    PLAIN,
    ROWS,
    NumpyUpdates,
    Results,
)

Array = Any

#: How many addresses an element-wise step writes, and how many it reads, which follow.
ARRAYS_OF = {ADAM: (3, 4), MOMENTUM: (2, 3), PLAIN: (1, 2)}


class Bytes(NamedTuple):
    """Memory from an address on to another, and the update that uses it."""

    start: int
    end: int
    update: int

    def meets(self, other: Bytes) -> bool:
        return self.start < other.end and other.start < self.end


class VerifiedUpdates(NumpyUpdates):
    """Updates whose steps are verified before they run."""

    def begin(self, state: Sequence[Array], owned: Sequence[bool], held: Sequence[int]) -> None:
        """Begin as the base class does, and refuse to overwrite views of memory that others may use."""
        #: For each update, the arrays that it is given and must write. These references count.
        self._given: list[list[Array]] = []
        self._to_write: list[list[Array]] = []
        #: For each step of an optimizer, its operands in their order.
        self._lists: list[list[Sequence[Any]]] = []
        super().begin(state, owned, held)
        for x, is_free in zip(state, self._is_free, strict=True):
            if is_free and x.base is not None and x.base.__class__ is np.ndarray:
                self._refuse(
                    0, f"a part of the state, {x.dtype}{list(x.shape)}, is a view of memory that others may have"
                )

    def prepare(self, number: int, operands: Sequence[Any], attributes: dict[str, Any]) -> Results:
        """Prepare as the base class does, and note the operands and the arrays to be written."""
        results = super().prepare(number, operands, attributes)
        self._given.append([x for x in map(self._array, _leaves(operands)) if isinstance(x, np.ndarray)])
        lists = [] if self._updates[number].call.operation == "fuse" else [x for x in operands if x]
        self._lists.append([*zip(*lists, strict=True)])
        state = {id(x) for x in self._state}
        written = [x for x, is_owned in results if is_owned and x is not None]
        # The gradient of plain SGD is returned as the velocity, which nothing writes.
        self._to_write.append([x for x in written if id(x) in state or not any(x is y for y in self._given[-1])])
        return results

    def run(self) -> None:
        """Verify the table, and then run it."""
        number = 0
        reads: list[Bytes] = []
        writes: list[Bytes] = []
        try:
            for number in range(len(self._updates)):
                first, end = self._first[number : number + 2]
                found: list[Bytes] = []
                for i, row in enumerate(self._steps[first:end].tolist()):
                    if row[1]:
                        mine, others = self._step(number, i, *row)
                        _check_row(mine, others)
                        found += mine
                        reads += others
                wanted = sorted(_bytes(x, number) for x in self._to_write[number] if x.nbytes)
                if sorted(found) != wanted:
                    raise Refused("its steps do not write each of its new values once")
                writes += found
            for i, one in enumerate(writes):
                number = one.update
                if any(one.meets(other) for other in writes[i + 1 :]):
                    raise Refused("two steps write the same memory")
                if any(one.meets(other) for other in reads if other.update != number):
                    raise Refused("it writes over what another update reads")
        except Refused as error:
            self._refuse(number, str(error))
        finally:
            self._given, self._to_write, self._lists = [], [], []
        super().run()

    def _refuse(self, number: int, words: str) -> NoReturn:
        name = self._updates[number].call.operation
        raise CaptureError(
            f"update {number + 1} of {len(self._updates)}, {name}, was planned wrong: {words}. This is a fault of "
            "backburn, please report it; without capture(...) the step runs as it is"
        ) from None

    def _step(
        self, number: int, i: int, kind: int, elements: int, rows: int, options: int, *arrays: int
    ) -> tuple[list[Bytes], list[Bytes]]:
        """The memory that a step writes and reads."""
        if kind == FORMULA:
            return self._formula_step(number, elements, *arrays[:2])
        if options != self._at_options + self._options.strides[0] * number:
            raise Refused("a step has the options of another one")
        if kind == ROWS:
            table, values, indices, heads, following = arrays[:5]
            whole = next((x for x in self._to_write[number] if compiled.address(x) == table), None)
            if whole is None or whole.size % elements:
                raise Refused("rows are subtracted from no table of it")
            sizes = (values, 4 * rows * elements), (indices, 8 * rows), (following, 4 * rows)
            reads = [self._known(at, size, number) for at, size in (*sizes, (heads, 4 * (whole.size // elements)))]
            return [_bytes(whole, number)], reads
        if kind not in ARRAYS_OF:
            raise Refused("a step is of no known kind")
        count, others = ARRAYS_OF[kind]
        size = 4 * elements
        for at, x in zip(arrays[count : count + others], map(self._array, self._lists[number][i]), strict=False):
            if x.size != elements or (x.flags.c_contiguous and compiled.address(x) != at):
                raise Refused("a step reads another operand")
        written = [Bytes(at, at + size, number) for at in arrays[:count]]
        return written, [self._known(at, size, number) for at in arrays[count : count + others]]

    def _formula_step(
        self, number: int, elements: int, at_fixed: int, at_starts: int
    ) -> tuple[list[Bytes], list[Bytes]]:
        """The memory that a formula writes and reads; it may overwrite only what it does not read again."""
        program = next((x for x in self._kept if isinstance(x, _Program) and x.at_fixed == at_fixed), None)
        if program is None or at_starts not in [ctypes.addressof(x) for x in self._kept if isinstance(x, ctypes.Array)]:
            raise Refused("a formula is not kept while it runs")
        results, uses = uses_of(program)
        size = int(program.fixed[4])
        starts = [*(ctypes.c_int64 * len(uses)).from_address(at_starts)]
        writes = [Bytes(at, at + elements * size, number) for at in starts[:results]]
        reads = []
        calls = program.calls.reshape(-1, 6).tolist()
        for i, at in enumerate(starts[results : len(uses) - len(program.constants)], results):
            step = int(program.steps[i])
            reads.append(self._known(at, elements * size if step else size, number))
            for k, one in enumerate(writes):
                if not one.meets(reads[-1]):
                    continue
                made = min(n for n, call in enumerate(calls) if call[2] == k)
                if one[:2] != reads[-1][:2] or any(i in call[3 : 2 + call[1]] for call in calls[made + 1 :]):
                    raise Refused("a formula reads what it has written over")
        return writes, reads

    def _known(self, at: int, size: int, number: int) -> Bytes:
        """Memory that a step reads, part of an array that is alive until then."""
        arrays = [*self._state, *self._given[number], *(x for x in self._kept if isinstance(x, np.ndarray))]
        for x in arrays:
            if x.flags.c_contiguous:
                start, end, _ = _bytes(x, number)
                if start <= at and at + size <= end:
                    return Bytes(at, at + size, number)
        raise Refused(f"a step reads {size} bytes outside the arrays that it is given")


def _check_row(writes: Sequence[Bytes], reads: Sequence[Bytes]) -> None:
    """Check that threads of a step write disjoint memory, and read what they write at the same elements only."""
    for i, one in enumerate(writes):
        if any(one.meets(other) for other in writes[i + 1 :]):
            raise Refused("a step writes the same memory twice")
        if any(one.meets(other) and one != other for other in reads):
            raise Refused("a step reads what another thread of it writes")


def _bytes(x: Array, update: int) -> Bytes:
    at = compiled.address(x)
    return Bytes(at, at + x.nbytes, update)


def _leaves(operands: Sequence[Any]) -> list[Any]:
    """The operands, with lists flattened."""
    found = []
    for x in operands:
        found += _leaves(x) if isinstance(x, list | tuple) and not isinstance(x, Place) else [x]
    return found
