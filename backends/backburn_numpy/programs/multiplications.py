"""Plans of matrix products, and of the cells of recurrent networks."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from backburn.programs.ir import Call, Variable, arguments
from backburn_numpy import compiled, tuning
from backburn_numpy.compiled import FLOAT32
from backburn_numpy.programs.layout import COPY, PRODUCT, Layout, Place, Plan, Shape, dtype_of
from backburn_numpy.runtime import blas, gemm


class Gemm(NamedTuple):
    """Matrix multiplication in a dtype: by the address of a library's function, or 0 for the kernels."""

    address: int
    dtype: np.dtype[Any]

    def append(
        self, layout: Layout, out: Place, x: Place, y: Place, sizes: tuple[int, int, int],
        turned: tuple[bool, bool] = (False, False), adds: bool = False,
    ) -> None:  # fmt: skip
        """Append ``out = x @ y``, or ``+=`` if it adds, for (m, k) by (k, n), each perhaps transposed in memory."""
        m, n, k = sizes
        left, right = (m if turned[0] else k), (k if turned[1] else n)
        few = m * n * k <= tuning.NATIVE_MAX_LIBRARY_MULTIPLICATIONS and self.dtype is FLOAT32 and not turned[1]
        address = (few and gemm.library_pays() and blas.library_sgemm_address()) or self.address
        head = PRODUCT, address, *map(int, turned), m, n, k
        layout.append(*head, x, left, y, right, int(adds), out, self.dtype.itemsize)


def gemm_of(multiplications: int, elements: int, *values: Any) -> Gemm | None:
    """The multiplication for values of one dtype; None if products of that size remain calls."""
    dtype = dtype_of(values[0])
    if dtype is None or any(dtype_of(v) is not dtype for v in values) or elements > tuning.NATIVE_MAX_ELEMENTS:
        return None
    if gemm.sgemm_address() is not None:
        return Gemm(0, dtype) if multiplications <= tuning.NATIVE_MAX_MULTIPLICATIONS else None
    address = blas.library_sgemm_address()
    if address is None or dtype is not FLOAT32 or multiplications > tuning.NATIVE_MAX_LIBRARY_MULTIPLICATIONS:
        return None
    return Gemm(address, dtype)


def product_plan(call: Call) -> Plan | None:
    """The plan of a product of two matrices, or of a matrix or a stack with a stack of equal length."""
    x, y = call.operands
    k = x.shape[-1]
    if len(y.shape) <= 2:
        count, m, n = 1, prod(x.shape[:-1]), y.shape[1] if len(y.shape) == 2 else 1
    elif x.shape[:-2] in (y.shape[:-2], ()) and len(x.shape) > 1:
        count, m, n = prod(y.shape[:-2]), x.shape[-2], y.shape[-1]
    else:
        return None
    lefts = count if len(x.shape) > 2 else 1
    gemm = gemm_of(count * m * n * k, prod(call.results.shape), x, y, call.results)
    if gemm is None or count > tuning.NATIVE_MAX_PRODUCTS:
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
        layout.hold((a, b, target))

    return plan


def _factor(layout: Layout, v: Any, dtype: Any, count: int, rows: int, columns: int) -> tuple[Place, bool]:
    """The place of ``count`` matrices, and whether they are transposed there."""
    if v.__class__ is Variable and v not in layout.places:
        source, *sides = layout.transposed[v]
        if sides == [count, columns, rows]:
            return layout.read(source, dtype), True
    return layout.read(v, dtype), False


def linear_plan(call: Call) -> Plan | None:
    """The plan of ``x @ weight.T + bias``."""
    x, weight, *rest = arguments(call)
    bias = rest[0] if rest else None
    (n, k), m = weight.shape, prod(x.shape[:-1])
    given = [v for v in (x, weight, bias) if v is not None]
    gemm = gemm_of(m * n * k, m * n, *given, call.results)
    if gemm is None:
        return None
    dtype = gemm.dtype

    def plan(layout: Layout, call: Call) -> None:
        places = [layout.read(v, dtype) for v in given]
        target = layout.new(call.results)
        if bias is not None:
            width = dtype.itemsize * n
            layout.append(COPY, target, places[2], m, width, width, 0)
        gemm.append(layout, target, places[0], places[1], (m, n, k), (False, True), bias is not None)
        layout.hold((*places, target))

    return plan


def weight_gradient_plan(call: Call) -> Plan | None:
    """The plan of the gradients of a linear layer's weight and bias: ``grad.T @ x`` over all rows, and their sum."""
    grad, x = call.operands
    (n, k), m = (grad.shape[-1], x.shape[-1]), prod(x.shape[:-1])
    weight, bias = call.results
    if weight is None:
        return None
    results = [v for v in call.results if v is not None]
    gemm = gemm_of(m * n * k, max(m, n) * max(n, k), grad, x, *results)
    if gemm is None or (bias is not None and n == 1 < m):  # NumPy sums a single column pairwise
        return None
    dtype = gemm.dtype
    # Bitwise equal to the operation: NumPy adds few rows one after the other.
    is_wide = dtype is FLOAT32 and m * n >= tuning.MIN_ELEMENTS_FOR_SHORT_ROWS
    name, *sizes = ("sum_matrices", n, 1, m * n) if m >= tuning.MIN_SHORT_ROWS else ("sum_in_order", m, n, int(is_wide))
    kernel = compiled.kernel(name if dtype is FLOAT32 else f"{name}_double")

    def plan(layout: Layout, call: Call) -> None:
        left, right = (layout.read(v, dtype) for v in (grad, x))
        target = layout.new(weight)
        gemm.append(layout, target, left, right, (n, k, m), (True, False))
        if bias is not None:
            layout.call(kernel, left, layout.new(bias), *sizes)
        layout.hold((left, right, target))

    return plan


# ---- cells of recurrent networks ----


def cell_plan(call: Call) -> Plan | None:
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
        layout.hold((projected, hidden, *cell, matrix, *last, gates, *news, product))

    return plan


def cell_backward_plan(call: Call) -> Plan | None:
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
            layout.append(COPY, sum_, source, 1, zeros.nbytes, 0, 0)
        if is_lstm:
            sums, carried, cell = results
            layout.call(kernel, sums, cell, through, 0, 0, given[2], old, new, opened, rows, size)
            gemm.append(layout, carried, sums, matrix, (rows, size, wide))
        else:
            layout.call(kernel, *results, 0, given[1], old, opened, rows, size)
            gemm.append(layout, results[2], results[1], matrix, (rows, size, wide), adds=True)
        layout.hold([p for p in (matrix, old, new, opened, *given, *results, through) if isinstance(p, Place)])

    return plan


def _step(call: Call, name: str, like: Any, weight: Any, values: Sequence[Any]) -> tuple[Gemm, Any, int, int] | None:
    """The multiplication and the kernel of a step, its rows and the size of its state; None if it stays a call."""
    rows, (wide, size) = like.shape[0], weight.shape
    results = [v for v in call.results if v is not None]
    gemm = gemm_of(rows * wide * size, 4 * rows * size, *(v for v in (*values, *results) if v is not None))
    if gemm is None:
        return None
    kernel = compiled.kernel(name if gemm.dtype is FLOAT32 else f"{name}_double")
    return None if kernel is None else (gemm, kernel, rows, size)
