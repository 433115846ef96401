"""Passes over the rows of matrices, run by code that equal passes share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from backburn.base.dtypes import float32, float64
from backburn.programs.fusion.plan import Plan
from backburn.programs.ir import Call, Variable
from backburn.programs.lowering import UNTRACEABLE
from backburn_numpy import compiled
from backburn_numpy.ops.index import wrap_indices
from backburn_numpy.ops.losses import class_indices
from backburn_numpy.programs.tile_code import INDEX, ROUNDINGS, TileCode, takes_labels
from backburn_numpy.runtime.memory import contiguous, empty
from backburn_numpy.runtime.quiet import quietly
from backburn_numpy.runtime.threads import available

Array = Any


class TilePass:
    """A pass: a function of the inputs of its plan. Several replays may run it at a time."""

    def __init__(self, plan: Plan, twin: TilePass | None = None) -> None:
        """``twin`` is the pass of an equal plan. Raises one of ``UNTRACEABLE`` if an operation has no kernels."""
        #: The calls that it joins, and the call that failed last.
        self.made: Sequence[Call] = [step.call for step in plan.steps]
        self.failed: Call | None = None
        self.code: TileCode = TileCode(plan) if twin is None else twin.code
        #: The recorded call that uses each input as indices, if any.
        self._checked = [None if i is None else self.made[i] for i in self.code.pickers]
        self._plan = plan

    @property
    def generator(self) -> str:
        """How it is computed, for plans."""
        return self.code.generator

    def picker(self, i: int) -> Call | None:
        """The recorded call that uses input ``i`` as indices, if any."""
        return self._checked[i]

    def checks(self, given: Sequence[Any]) -> Iterator[tuple[Variable, Any]]:
        """The variables given as indices, each with the function that checks it and the width of rows."""
        for x, call in zip(given, self._checked, strict=True):
            if call is not None and isinstance(x, Variable):
                yield x, (_check_of(call), self._plan.space.width)

    @property
    def results(self) -> list[tuple[Variable, int | None]]:
        """The results, and of sums of columns the divisor."""
        return [(v, self.code.columns.get(i)) for i, v in enumerate(self._plan.outputs)]

    def given(self, i: int, x: Array) -> Array:
        """Input ``i`` as the pass reads it: one element if all are the same, and indices checked and counted from 0."""
        if (call := self._checked[i]) is not None:
            return contiguous(_check_of(call)(x, self._plan.space.width), INDEX)
        return x[(0,) * x.ndim + (...,)] if self.code.splats[i] else x

    @quietly
    def __call__(self, *given: Array) -> list[Array]:
        """The outputs for the inputs of the plan."""
        code = self.code
        arrays = [contiguous(x[(0,) * x.ndim] if splat else x) for x, splat in zip(given, code.splats, strict=True)]
        if code.is_rounded:
            arrays = [x if whole else contiguous(x, code.dtype) for x, whole in zip(arrays, code.wholes, strict=True)]
        for i, call in enumerate(self._checked):
            if call is not None:
                self.failed = call
                arrays[i] = self.given(i, arrays[i])
        self.failed = None
        results = []
        try:
            for shape, dtype in code.shapes:
                results.append(empty(shape, dtype))
            threads = available()
            rooms = empty((code.room_of(threads),), np.dtype(np.uint8))
        except MemoryError:
            made = self._plan.outputs[min(len(results), len(code.shapes) - 1)]
            self.failed = next(step.call for step in self._plan.steps if made in step.results)
            raise
        code.run(np.array(compiled.addresses_of([*results, *arrays]), np.int64), rooms, threads)
        for i, divisor in code.columns.items():
            total = np.add.reduce(results[i], axis=0)
            total /= divisor
            results[i] = total.astype(code.dtype).reshape(self._plan.outputs[i].shape)
        return results


def _check_of(call: Call) -> Callable[[Array, int], Array]:
    """The function that checks the indices of a call, and counts them from 0."""
    return class_indices if takes_labels(call.operation) else wrap_indices


def compile_plan(plan: Plan, twin: TilePass | None = None) -> TilePass | None:
    """A function of the inputs of a plan, with the code of an equal plan's ``twin``; None if it has no kernels."""
    if compiled.kernel("run_tiles") is None or plan.space.dtype not in (float32, float64, *ROUNDINGS):
        return None
    try:
        return TilePass(plan, twin)
    except UNTRACEABLE:
        return None
