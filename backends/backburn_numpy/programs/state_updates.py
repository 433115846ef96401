"""State that a replay updates in place: optimizer steps in one kernel call, which nothing interrupts.

An array of the state is overwritten if its reference count shows that nothing but the state refers to it; views,
exports and other tensors of an array hold references. Otherwise it is replaced by a new array, which the next replay
may overwrite. So no caller sees a value change.

What the kernels do not serve (other dtypes and layouts, and steps for which NumPy is as fast) is computed into new
memory by the operations, bitwise equal.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from operator import and_
from typing import Any

import numpy as np

from backburn.ops.optimizer_steps import adam_numbers, transpose_results
from backburn.ops.table import OPERATIONS
from backburn.programs.passes.in_place import STEPS, InPlaceUpdates, Place, Update
from backburn_numpy import compiled, tuning
from backburn_numpy.compiled import FLOAT32
from backburn_numpy.elementwise.fused import bound
from backburn_numpy.ops.index import wrap_indices
from backburn_numpy.programs import verifier
from backburn_numpy.runtime.memory import contiguous, empty
from backburn_numpy.runtime.threads import available

Array = Any


#: The kinds of steps, as the kernel numbers them.
ADAM, MOMENTUM, PLAIN, ROWS, FORMULA = range(5)
#: The integers of a step: its kind, the elements, the rows, the address of the options, and those of the arrays.
WORDS, ARRAYS = 11, 7
#: The most options of a step.
OPTIONS = 8

_getrefcount: Callable[[Any], int] | None = getattr(sys, "getrefcount", None)
#: The reference count of an object that is in one list only, counted as :meth:`NumpyUpdates.begin` counts.
ONCE = next(map(_getrefcount, [object()])) if _getrefcount is not None else 0

#: Results of an update, each with whether nothing else can refer to it.
Results = list[tuple[Any, bool]]


def in_place_updates(k: Any, updates: Sequence[Update]) -> NumpyUpdates | None:
    """The in-place updates of the backend ``k``; None without kernels, or without reference counts."""
    if _getrefcount is None or compiled.kernel("renew") is None:
        return None
    if verifier.VERIFIES:
        from backburn_numpy.programs.updates_verifier import VerifiedUpdates

        return VerifiedUpdates(k, updates)
    return NumpyUpdates(k, updates)


def is_unshared(arrays: Sequence[Any], known_references: Sequence[int]) -> list[bool]:
    """For each array, whether nothing refers to it but ``arrays`` and that many known references."""
    if _getrefcount is None:
        return [False] * len(arrays)
    found = []
    for n, more in zip(map(_getrefcount, arrays), known_references, strict=True):
        found.append(n == ONCE + more)
    return found


class NumpyUpdates(InPlaceUpdates):
    """The updates of a program: see :class:`backburn.programs.passes.in_place.InPlaceUpdates`."""

    def __init__(self, k: Any, updates: Sequence[Update]) -> None:
        """Updates of the backend ``k``."""
        self._k = k
        self._updates = updates
        counts = [1 if update.call.operation == "fuse" else len(update.operands[0]) for update in updates]
        #: The first step of each update, in a table that the kernel reads.
        self._first = [0, *accumulate(counts)]
        self._steps = np.zeros((sum(counts), WORDS), np.int64)
        self._options = np.zeros((len(updates), OPTIONS), FLOAT32)
        self._at_steps, self._at_options = map(compiled.address, (self._steps, self._options))
        #: The defaults of each update's options but ``donate``: what may be overwritten is decided here.
        self._defaults = [
            {name: value for name, value in OPERATIONS[operation].defaults.items() if name != "donate"}
            if operation in STEPS
            else {}
            for operation in (update.call.operation for update in updates)
        ]
        #: Whether all results of an update are state, by the update's number.
        self._is_state = [
            all(place is not None or made is None for place, made in zip(update.places, update.results, strict=True))
            for update in updates
        ]
        #: Whether the table already has all steps of an update, for the state that the last replay left.
        self._is_known = [False] * len(updates)
        self.done: Any = (ctypes.c_int64 * 1)()
        self._kernel: Any = compiled.kernel("renew")
        self._chain: Any = compiled.kernel("chain_places")
        self._state: Sequence[Any] = ()
        self._is_free: list[bool] = []
        #: Arrays that the kernel reads and that nothing else keeps alive.
        self._kept: list[Any] = []

    def begin(self, state: Sequence[Any], owned: Sequence[bool], held: Sequence[int]) -> None:
        """Determine which arrays of the state may be overwritten."""
        self.done[0] = 0
        self._kept.clear()
        self._state = state
        self._is_free = [*map(and_, owned, is_unshared(state, held))]

    def prepare(self, number: int, operands: Sequence[Any], attributes: dict[str, Any]) -> Results:
        """The results of an update, most of which the kernel will write."""
        update = self._updates[number]
        make = {"fuse": self._formula, "adam_steps": self._adam, "sgd_steps": self._sgd}[update.call.operation]
        was_known, self._is_known[number] = self._is_known[number], self._is_state[number]
        try:
            return make(
                number, operands, was_known and self._are_free(update.places), **self._defaults[number] | attributes
            )
        except BaseException:
            self._is_known[number] = False
            raise

    def run(self) -> None:
        """Call the kernel."""
        self._kernel(
            self._at_steps,
            len(self._steps),
            self.done,
            tuning.ELEMENTS_PER_TASK,
            tuning.MIN_ELEMENTS_FOR_NATIVE_THREADS,
            available(),
        )
        self._kept.clear()
        self._state = ()

    def _are_free(self, places: Iterable[int | None]) -> bool:
        """Whether all results of an update may overwrite what they replace."""
        is_free = self._is_free
        for place in places:  # noqa: SIM110 (a generator costs a call per item)
            if place is not None and not is_free[place]:
                return False
        return True

    def _array(self, operand: Any) -> Array:
        """The array of an operand."""
        return self._state[operand.number] if operand.__class__ is Place else operand

    def _target(self, number: int, operand: Any) -> Array:
        """The array for the new values of an operand: its own, or a new one."""
        if operand.__class__ is Place and self._is_free[operand.number]:
            return self._state[operand.number]
        self._is_known[number] = False  # the next replay reads it elsewhere
        x = self._array(operand)
        return empty(x.shape, x.dtype)

    def _put(self, step: int, number: int, kind: int, elements: int, rows: int, *addresses: int) -> None:
        """Put a step into the table."""
        rest = [0] * (ARRAYS - len(addresses))
        self._steps[step] = (kind, elements, rows, self._at_options + 4 * OPTIONS * number, *addresses, *rest)

    def _leave_out(self, step: int, number: int, results: Iterable[Array]) -> Results:
        """Skip a step that the operation has computed: something else may refer to the memory of its results."""
        self._steps[step] = 0  # of no elements
        self._is_known[number] = False
        return [(x, False) for x in results]

    def _renewed(self, number: int, grads: Sequence[Any], at: int) -> Results | None:
        """The results of an update like the last with new gradients, whose addresses go to place ``at`` of the arrays.

        None unless the gradients are float32 in row-major order; their shapes are those recorded.
        """
        for g in grads:
            if g.__class__ is not np.ndarray or g.dtype is not FLOAT32 or not g.flags.c_contiguous:
                return None
        first, state = self._first[number], self._state
        self._steps[first : first + len(grads), -ARRAYS + at] = compiled.addresses_of(grads)
        results: Results = []
        for place in self._updates[number].places:
            results.append((None if place is None else state[place], True))
        return results

    def _adam(
        self,
        number: int,
        operands: Sequence[Any],
        is_same: bool,
        **options: Any,
    ) -> Results:
        self._options[number] = adam_numbers(**options)
        if is_same and (same := self._renewed(number, operands[1], 4)) is not None:
            return same
        found = []
        for at, (param, grad, m, v) in enumerate(zip(*operands, strict=True), self._first[number]):
            p, g, first, second = arrays = [*map(self._array, (param, grad, m, v))]
            if not _are_plain(arrays, p.shape):
                found.append(self._leave_out(at, number, self._k.adam_step(*arrays, **options)))
                continue
            news = [self._target(number, x) for x in (param, m, v)]
            g = contiguous(g)
            self._kept.append(g)
            self._put(at, number, ADAM, p.size, 1, *map(compiled.address, (*news, p, g, first, second)))
            found.append([(x, True) for x in news])
        return [*transpose_results(map(tuple, found))]

    def _sgd(
        self,
        number: int,
        operands: Sequence[Any],
        is_same: bool,
        **options: Any,
    ) -> Results:
        gathered, momentum, weight_decay = self._updates[number].gathered, options["momentum"], options["weight_decay"]
        self._options[number, :4] = options["lr"], momentum, weight_decay, options["nesterov"]
        params, grads, *rest = operands
        velocities = rest[0] if rest and rest[0] else [None] * len(params)
        if is_same and not gathered and (same := self._renewed(number, grads, 3 if momentum else 2)) is not None:
            return same
        found = []
        for i, (param, grad, velocity) in enumerate(zip(params, grads, velocities, strict=True)):
            p, before, at = self._array(param), self._array(velocity), self._first[number] + i
            is_plain = before is None or momentum == 0.0
            if i in gathered and is_plain and self._gathers(p, *grad):
                found.append([(self._rows(at, number, param, *grad), True), (None, False)])
                continue
            g = self._k.take_backward(*grad, 0) if i in gathered else grad
            arrays = [p, g] if is_plain else [p, g, before]
            if not _are_plain(arrays, p.shape) or (
                is_plain and (weight_decay != 0.0 or p.nbytes < tuning.MIN_BYTES_FOR_PLAIN_STEP)
            ):
                found.append(self._leave_out(at, number, self._k.sgd_step(p, g, before, **options)))
                continue
            g = contiguous(g)
            self._kept.append(g)
            new = self._target(number, param)
            if is_plain:
                self._put(at, number, PLAIN, p.size, 1, *map(compiled.address, (new, p, g)))
                found.append([(new, True), (g, False)])
            else:
                moving = self._target(number, velocity)
                self._put(at, number, MOMENTUM, p.size, 1, *map(compiled.address, (new, moving, p, g, before)))
                found.append([(new, True), (moving, True)])
        return [*transpose_results(map(tuple, found))]

    def _formula(self, number: int, operands: Sequence[Any], is_same: bool) -> Results:
        formula, *rest = operands
        values, at = [*map(self._array, rest)], self._first[number]
        found = bound(formula, values)
        if found is None:
            results = self._k.fuse(formula, *values)
            return self._leave_out(at, number, results if isinstance(results, tuple) else (results,))
        program, main, arrays = found
        news = []
        for place, made in zip(self._updates[number].places, program.made, strict=True):
            over = None if place is None or not self._is_free[place] else self._state[place]
            if over is not None and (over.shape != main.shape or not over.flags.c_contiguous):
                over = None
            # An operand that the formula reads after it has written the result must not share the result's memory.
            if any(x is over and last > made for x, last in zip(arrays, program.read, strict=True)):
                over = None
            news.append(empty(main.shape, main.dtype) if over is None else over)
        starts = program.bound(news, arrays)
        self._kept += [*arrays, program, starts]
        self._put(at, number, FORMULA, main.size, 1, program.at_fixed, ctypes.addressof(starts))
        return [(x, True) for x in news]

    def _gathers(self, p: Array, values: Array, indices: Array, length: int) -> bool:
        """Whether the kernel subtracts only the gradient's rows: from a large table, and no more than it has."""
        fits = p.nbytes >= tuning.MIN_BYTES_FOR_PLAIN_STEP and 0 < indices.size <= length
        return fits and _are_plain((p,), p.shape) and values.__class__ is np.ndarray and values.dtype == FLOAT32

    def _rows(self, at: int, number: int, param: Any, values: Array, indices: Array, length: int) -> Array:
        """The new table, from which the kernel will subtract rows."""
        p, new = self._array(param), self._target(number, param)
        where = contiguous(wrap_indices(indices, length), np.dtype(np.int64))
        heads, following = np.empty(length, np.int32), np.empty(where.size, np.int32)
        self._chain(*compiled.addresses(heads, following, where), where.size)
        arrays = new, contiguous(values), where, heads, following
        if new is not p:
            np.copyto(new, p)
        self._kept += arrays[1:]
        self._put(at, number, ROWS, p.size // length, where.size, *map(compiled.address, arrays))
        return new


def _are_plain(arrays: Iterable[Any], shape: tuple[int, ...]) -> bool:
    """Whether all are float32 arrays of the shape in row-major order; a gradient may have another layout."""
    return all(
        x.__class__ is np.ndarray and x.dtype == FLOAT32 and x.shape == shape and (i == 1 or x.flags.c_contiguous)
        for i, x in enumerate(arrays)
    )
