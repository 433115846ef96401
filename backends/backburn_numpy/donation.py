"""State that a replay renews in its own memory: optimizer steps by one call of a kernel, which nothing interrupts.

Every array of the state to which nothing but the state refers is written over, as its reference count tells; views,
exports and other tensors of an array hold references to it. Any other is replaced by a new one, of which that is true
in the next replay. So no caller sees a value change.

What the kernels do not serve (other dtypes, layouts, and steps for which NumPy is as fast) is computed into new memory,
as the operations do it, and with the same bits.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from backburn.decorators.capture.donation import Place, Renewal, Update
from backburn.ops.optimizer_steps import transpose_results
from backburn_numpy import compiled
from backburn_numpy.compiled import FLOAT32
from backburn_numpy.fused import bound
from backburn_numpy.memory import contiguous, empty
from backburn_numpy.ops.index import _wrap_indices
from backburn_numpy.ops.optimizer_steps import SMALL, _adam_numbers
from backburn_numpy.threads import available

Array = Any

#: From this many elements on, a second thread pays: the others spin or sleep.
SHARED = 1 << 15

#: The kinds of steps, as the kernel numbers them.
ADAM, MOMENTUM, PLAIN, ROWS, FORMULA = range(5)
#: The integers of a step: its kind, the elements, the rows, the address of the options, and those of the arrays.
WORDS, ARRAYS = 11, 7
#: The most options of a step.
OPTIONS = 8

_getrefcount: Callable[[Any], int] | None = getattr(sys, "getrefcount", None)
#: What is counted of an object in a list that nothing else refers to.
ONCE = next(map(_getrefcount, [object()])) if _getrefcount is not None else 0

#: Results of an update, each with whether nothing else can refer to it.
Results = list[tuple[Any, bool]]


def renewal(k: Any, updates: Sequence[Update]) -> NumpyRenewal | None:
    """How the backend ``k`` makes these updates; None without kernels, or without reference counts."""
    if _getrefcount is None or compiled.kernel("renew") is None:
        return None
    return NumpyRenewal(k, updates)


class NumpyRenewal(Renewal):
    """The updates of a program: see :class:`backburn.decorators.capture.donation.Renewal`."""

    def __init__(self, k: Any, updates: Sequence[Update]) -> None:
        """Updates of the backend ``k``."""
        self._k = k
        self._updates = updates
        most = sum(len(update.results) for update in updates)
        self._steps, self._options = np.zeros((most, WORDS), np.int64), np.zeros((len(updates), OPTIONS), FLOAT32)
        self._at_steps, self._at_options = compiled.addresses(self._steps, self._options)
        self._count = 0
        self.done = (ctypes.c_int64 * 1)()
        self._kernel: Any = compiled.kernel("renew")
        self._chain: Any = compiled.kernel("chain_places")
        self._state: Sequence[Any] = ()
        self._is_free: list[bool] = []
        #: What only the kernel reads.
        self._kept: list[Any] = []

    def begin(self, state: Sequence[Any], owned: Sequence[bool]) -> None:
        """Find which of the state may be written over."""
        assert _getrefcount is not None
        self.done[0] = self._count = 0
        self._kept.clear()
        self._state = state
        self._is_free = [own and count == ONCE for own, count in zip(owned, map(_getrefcount, state), strict=True)]

    def prepare(self, number: int, operands: Sequence[Any], attributes: dict[str, Any]) -> Results:
        """The results of an update, most of which the kernel is to write."""
        operation = self._updates[number].call.operation
        if operation == "fuse":
            return self._formula(number, *operands)
        return (self._adam if operation == "adam_steps" else self._sgd)(number, operands, **attributes)

    def run(self) -> None:
        """Call the kernel."""
        self._kernel(self._at_steps, self._count, self.done, compiled.PORTION, SHARED, available())
        self._kept.clear()
        self._state = ()

    def _array(self, operand: Any) -> Array:
        """The array of an operand."""
        return self._state[operand.number] if operand.__class__ is Place else operand

    def _target(self, operand: Any) -> Array:
        """The array for the new values of an operand: its own, or a new one."""
        if operand.__class__ is Place and self._is_free[operand.number]:
            return self._state[operand.number]
        x = self._array(operand)
        return empty(x.shape, x.dtype)

    def _add(self, kind: int, number: int, elements: int, rows: int, *addresses: int) -> None:
        """Add a step to those of the kernel."""
        rest = [0] * (ARRAYS - len(addresses))
        self._steps[self._count] = (kind, elements, rows, self._at_options + 4 * OPTIONS * number, *addresses, *rest)
        self._count += 1

    def _adam(
        self,
        number: int,
        operands: Sequence[Any],
        lr: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        step: int = 1,
        weight_decay: float = 0.0,
        decoupled: bool = False,
    ) -> Results:
        options = lr, beta1, beta2, eps, step, weight_decay, decoupled
        self._options[number] = _adam_numbers(*options)
        found = []
        for param, grad, m, v in zip(*operands, strict=True):
            p, g, first, second = arrays = [*map(self._array, (param, grad, m, v))]
            if not _are_plain(arrays, p.shape):
                found.append(_as_new(self._k.adam_step(*arrays, *options)))
                continue
            news = [*map(self._target, (param, m, v))]
            g = contiguous(g)
            self._kept.append(g)
            self._add(ADAM, number, p.size, 1, *map(compiled.address, (*news, p, g, first, second)))
            found.append([(x, True) for x in news])
        return [*transpose_results(map(tuple, found))]

    def _sgd(
        self,
        number: int,
        operands: Sequence[Any],
        lr: float = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> Results:
        options = lr, momentum, nesterov, weight_decay
        self._options[number, :4] = lr, momentum, weight_decay, nesterov
        params, grads, *rest = operands
        velocities = rest[0] if rest and rest[0] else [None] * len(params)
        found = []
        for i, (param, grad, velocity) in enumerate(zip(params, grads, velocities, strict=True)):
            p, before, gathered = self._array(param), self._array(velocity), i in self._updates[number].gathered
            is_plain = before is None or momentum == 0.0
            if gathered and (is_plain and self._gathers(p, *grad)):
                new = self._rows(number, param, *grad)
                found.append([(new, True), (None, False)])
                continue
            g = self._k.take_backward(*grad, 0) if gathered else grad
            arrays = [p, g] if is_plain else [p, g, before]
            if not _are_plain(arrays, p.shape) or (is_plain and (weight_decay != 0.0 or p.nbytes < SMALL)):
                found.append(_as_new(self._k.sgd_step(p, g, before, *options)))
                continue
            g = contiguous(g)
            self._kept.append(g)
            new = self._target(param)
            if is_plain:
                self._add(PLAIN, number, p.size, 1, *map(compiled.address, (new, p, g)))
                found.append([(new, True), (g, False)])
            else:
                moving = self._target(velocity)
                self._add(MOMENTUM, number, p.size, 1, *map(compiled.address, (new, moving, p, g, before)))
                found.append([(new, True), (moving, True)])
        return [*transpose_results(map(tuple, found))]

    def _formula(self, number: int, formula: Any, *operands: Any) -> Results:
        values = [*map(self._array, operands)]
        found = bound(formula, values)
        if found is None:
            results = self._k.fuse(formula, *values)
            return _as_new(results if isinstance(results, tuple) else (results,))
        program, main, arrays = found
        news = []
        for place, made in zip(self._updates[number].places, program.made, strict=True):
            over = None if place is None or not self._is_free[place] else self._state[place]
            if over is not None and (over.shape != main.shape or not over.flags.c_contiguous):
                over = None
            # What a formula reads after it has the result needs its memory for as long.
            if over is not None and any(
                x is over and last > made for x, last in zip(arrays, program.read, strict=True)
            ):
                over = None
            news.append(empty(main.shape, main.dtype) if over is None else over)
        starts = program.bound(news, arrays)
        self._kept += [*arrays, program, starts]
        self._add(FORMULA, number, main.size, 1, program.at_fixed, ctypes.addressof(starts))
        return [(x, True) for x in news]

    def _gathers(self, p: Array, values: Array, indices: Array, length: int) -> bool:
        """Whether the kernel subtracts the gradient's rows: where the step would subtract all, and they are fewer."""
        fits = p.nbytes >= SMALL and 0 < indices.size <= length
        return fits and _are_plain((p,), p.shape) and values.__class__ is np.ndarray and values.dtype == FLOAT32

    def _rows(self, number: int, param: Any, values: Array, indices: Array, length: int) -> Array:
        """The new table, from which the kernel is to subtract rows."""
        p, new = self._array(param), self._target(param)
        where = contiguous(_wrap_indices(indices, length), np.dtype(np.int64))
        heads, following = np.empty(length, np.int32), np.empty(where.size, np.int32)
        self._chain(*compiled.addresses(heads, following, where), where.size)
        arrays = new, contiguous(values), where, heads, following
        if new is not p:
            np.copyto(new, p)
        self._kept += arrays[1:]
        self._add(ROWS, number, p.size // length, where.size, *map(compiled.address, arrays))
        return new


def _are_plain(arrays: Iterable[Any], shape: tuple[int, ...]) -> bool:
    """Whether all are float32 arrays of the shape in row-major order; a gradient may lie otherwise."""
    return all(
        x.__class__ is np.ndarray and x.dtype == FLOAT32 and x.shape == shape and (i == 1 or x.flags.c_contiguous)
        for i, x in enumerate(arrays)
    )


def _as_new(results: Iterable[Array]) -> Results:
    """Results that an operation has computed: something may refer to their memory."""
    return [(x, False) for x in results]
