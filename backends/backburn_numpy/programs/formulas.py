"""Plans of element-wise formulas, sums and means."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import groupby
from math import prod
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from backburn.ops.table import OPERATIONS
from backburn.programs.ir import Call, Number, Variable, arguments
from backburn.programs.lowering import Formula, is_formula, method_of
from backburn_numpy import compiled, tuning
from backburn_numpy.elementwise.fused import COSTS, _Program, _program
from backburn_numpy.programs.layout import FORMULA, Layout, Place, Plan, Shape, dtype_of

#: The most arrays of a formula.
MOST_ARRAYS = 64


class Pass(NamedTuple):
    """A program run on rows: their number and width, and the row stride of each array in bytes.

    It is run for each group of rows; ``apart`` has the strides from group to group of each result and operand.
    """

    program: _Program
    rows: int
    width: int
    between: tuple[int, ...]
    groups: int = 1
    apart: tuple[int, ...] = ()


def formula_plan(call: Call) -> Plan | None:
    """The plan of an element-wise call: an operation's kernel or body, or a formula."""
    results = call.results if call.results.__class__ is list else [call.results]
    first = results[0]
    if (dtype := dtype_of(first)) is None or prod(first.shape) > tuning.NATIVE_MAX_ELEMENTS:
        return None
    formula: Formula | None
    if call.operation == "broadcast_to":
        x = arguments(call)[0]
        # An operand must vary along the row: ones, where each number of a column fills a row.
        is_column = first.shape[-1:] != x.shape[-1:] and first.shape[-1] > 1
        formula, values = method_formula("mul"), [x, np.ones(first.shape[-1:], dtype) if is_column else 1.0]
    elif call.operation == "fuse":
        formula, *values = call.operands
        values += [x for name, x in call.attributes.items() if name != "donate"]
        if any(dtype_of(v) is not dtype or v.shape != first.shape for v in results):
            return None
    elif (formula := method_formula(call.operation)) is None:  # also a call with an epilogue, which is not an operation
        return None
    else:
        values = arguments(call)
        if call.operation == "pow" and values[1].__class__ is float and values[1] == 2.0:
            formula, values = method_formula("square"), values[:1]
    if formula is None:
        return None
    kinds: list[Any] = []
    operands = []
    for x in values:
        kind = x.__class__
        if kind is Variable or kind is np.ndarray:
            if dtype_of(x) is not dtype:  # in comparisons of dtypes NumPy takes None for float64
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
            kinds.append(Constant((x,) if x else (x, repr(x))))  # -0.0 == 0.0
    level = compiled.level()
    assert level is not None
    made = pass_of(formula, first.shape, first.dtype.name, tuple(kinds), level)
    if made is None:
        return None

    shape, whole = first.shape, None
    if (
        made.rows > 1
        and made.groups == 1
        and made.width * dtype.itemsize <= tuning.NATIVE_MAX_REPEATED_ROW_BYTES
        and prod(shape) <= tuning.NATIVE_MAX_REPEATED_ELEMENTS
    ):
        whole = pass_of(
            formula, shape, first.dtype.name, tuple(shape if _is_row(x, shape) else x for x in kinds), level
        )
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
        append_pass(layout, made, [layout.new(v) for v in results], sources)

    return plan


def _is_row(kind: Any, shape: Shape) -> bool:
    """Whether an operand has the shape of one or several rows of ``shape``."""
    if kind.__class__ is Constant or prod(kind) == 1 or len(kind) >= len(shape):
        return False
    return kind == shape[len(shape) - len(kind) :]


def append_pass(layout: Layout, made: Pass, targets: list[Place], sources: list[Place]) -> None:
    """Append a formula to the steps."""
    program = made.program
    layout.kept.append(program)
    constants = program.starts[len(targets) + len(sources) :]
    head = FORMULA, program.at_fixed, made.width, made.rows
    for i in range(made.groups):
        places = [*targets, *sources]
        if i:
            places = [Place(p.memory, p.offset + i * step) for p, step in zip(places, made.apart, strict=True)]
        layout.append(*head, *places, *constants, *made.between)
    layout.hold([*targets, *sources])  # one may have been transposed after another was read


@dataclass(frozen=True, slots=True)
class Constant:
    """A number or an option of a formula, as a key of programs; not a bare tuple, which could equal a shape."""

    kind: tuple[Any, ...]


@cache
def method_formula(name: str) -> Formula | None:
    """An element-wise operation as a formula."""
    return method_of(name) if name in COSTS or (name in OPERATIONS and is_formula(name)) else None


@lru_cache(1024)
def pass_of(formula: Formula, shape: Shape, dtype: str, kinds: tuple[Any, ...], level: str) -> Pass | None:
    """A program for operands of these shapes, which broadcast to the result's, and constants; None if there is none.

    Axes along which the same operands vary are merged; then at most two may be left, rows and elements of a row, and
    perhaps a few groups of rows.
    """
    shapes = [kind for kind in kinds if kind.__class__ is not Constant]
    is_one = prod(shape) == 1
    patterns = []
    for i, n in enumerate(shape):
        at = i - len(shape)
        if n > 1:
            patterns.append((n, tuple(len(s) >= -at and s[at] == n for s in shapes)))
    axes = [(prod(n for n, _ in group), which) for which, group in groupby(patterns, key=itemgetter(1))]
    never = (False,) * len(shapes)
    groups, which = axes.pop(0) if len(axes) == 3 else (1, never)
    if len(axes) > 2 or groups > tuning.NATIVE_MAX_GROUPS:
        return None
    count, varies = axes[-1] if axes else (1, (is_one,) * len(shapes))
    rows, outer = axes[0] if len(axes) == 2 else (1, never)
    found: list[Any] = []
    inner = iter(varies)
    for kind in kinds:
        found.append(kind.kind if kind.__class__ is Constant else dtype if next(inner) else "number")
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
    return Pass(program, rows, count, tuple(between), groups, tuple(apart))


def sum_plan(call: Call) -> Plan | None:
    """The plan of a sum or a mean over adjacent axes."""
    x, axes, *_ = arguments(call)
    result, dtype = call.results, dtype_of(x)
    if dtype is None or dtype is not dtype_of(result) or prod(x.shape) > tuning.NATIVE_MAX_ELEMENTS or not axes:
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
        total = layout.result(None if by else result, result.shape, dtype)
        layout.call(kernel, source, total, inner, number, size)
        if by is not None:
            append_pass(layout, by, [layout.new(result)], [total])

    return plan


def _mean_of(shape: Shape, dtype: str, count: int) -> Pass | None:
    """The pass that divides sums by the number of their terms."""
    formula, level = method_formula("div"), compiled.level()
    assert formula is not None
    assert level is not None
    return pass_of(formula, shape, dtype, (shape, Constant((float(count),))), level)
