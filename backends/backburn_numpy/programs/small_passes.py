"""Passes over few rows as steps of native programs."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np

from backburn.programs.ir import Call, Variable
from backburn_numpy import compiled, tuning
from backburn_numpy.compiled import FLOAT64
from backburn_numpy.programs.layout import PASS, Layout, Plan
from backburn_numpy.programs.tiles import TilePass
from backburn_numpy.runtime.memory import contiguous


def pass_plan(call: Call) -> Plan | None:
    """The plan of a pass; None if it is not small."""
    one: Any = call.function
    if not isinstance(one, TilePass) or not one.code.is_small:
        return None
    if any(prod(v.shape) > tuning.NATIVE_MAX_ELEMENTS for v in call.writes):
        return None
    code, size = one.code, one.code.dtype.itemsize
    divide: Any = compiled.kernel("divide_sums" if size == 4 else "divide_sums_double")

    def plan(layout: Layout, call: Call) -> None:
        for i, x in enumerate(call.operands):
            if (picker := one.picker(i)) is not None and x.__class__ is Variable:
                layout.checks[x] = picker, partial(one.given, i)
        sources = [
            layout.read(x, code.dtype) if x.__class__ is Variable else layout.constant(contiguous(one.given(i, x)))
            for i, x in enumerate(call.operands)
        ]
        targets, sums = [], []
        for v, divisor in one.results:
            if divisor is not None:
                sums.append((v, divisor, layout.scratch(v.shape, FLOAT64)))
                targets.append(sums[-1][2])
            else:
                targets.append(layout.new(v))
        room = layout.scratch((code.room,), np.dtype(np.uint8))
        layout.kept.append(code)
        layout.append(PASS, code.at_fixed, room, *targets, *sources, *map(compiled.address, code.constants))
        for v, divisor, total in sums:
            layout.call(divide, layout.new(v), total, divisor, prod(v.shape))
        # Else means could lie in the scratch memory of the pass, and the verifier could not tell them from its values.
        layout.hold([room, *targets, *sources])

    return plan
