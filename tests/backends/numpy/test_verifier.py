"""The verifier of native programs: each fault planted in the planner is refused, naming the recorded call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.helpers.kernels import needs_kernels
from tests.helpers.planting import plant

import backburn as bb
from backburn import nn
from backburn.base.errors import CaptureError
from backburn.transforms import CaptureWarning
from backburn_numpy import compiled
from backburn_numpy.elementwise import fused
from backburn_numpy.programs import effects, formulas, multiplications, program_compiler, rearrangements, verifier
from backburn_numpy.programs.layout import Layout
from backburn_numpy.programs.native_program import NativeProgram

pytestmark = needs_kernels


def plant_plan(patch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str) -> None:
    """Plant a fault in a function, also where it is registered as the planner of operations."""
    function = vars(owner)[name]
    planted = plant(patch, owner, name, old, new)
    for operation, planner in program_compiler.PLANNERS.items():
        if planner is function:
            patch.setitem(program_compiler.PLANNERS, operation, planted)


def record(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Any:
    """Record a function of arrays of these shapes; return the results of the unrecorded and of the recorded call."""
    k = "autodiff(capture(numpy))"
    rng = np.random.default_rng(0)
    given = [bb.asarray(rng.normal(size=shape).astype(np.float32), backend=k) for shape in shapes]
    captured = bb.capture(function, state=False, on_fallback="error")
    return captured(*given), captured(*given)


def prefixes(x: Any) -> Any:
    y = x * 2.0
    return bb.concat([y[:1], y[:-1] * 0.5 + y[1:], y[-1:]])


def prefix(x: Any) -> Any:
    return (bb.exp(x) * x + x - 1.0)[:1]


def chain(x: Any) -> Any:
    a, b = bb.exp(x), bb.tanh(x)
    for _ in range(3):
        a, b = a * b + x, a - b
    return a * b - 1.0


def turned(x: Any) -> Any:
    b = bb.tanh(x * 2.0)
    a = bb.exp(x)
    return bb.square(bb.square((a + b.T) * 3.0))


def oblong(x: Any) -> Any:
    return bb.tanh((bb.exp(x * 2.0) - 1.0).T * 3.0)


def two(x: Any) -> Any:
    return bb.exp(x * 2.0 + 1.0), bb.tanh(x * 3.0 - 1.0)


def product(x: Any, w: Any) -> Any:
    h = bb.tanh(x @ w + 1.0)
    return bb.tanh((h * 2.0) @ w) - 1.0


def products(x: Any, w: Any) -> Any:
    return bb.tanh(bb.tanh(x * 2.0) @ (w - 1.0)) - 1.0


def linear(x: Any, w: Any) -> Any:
    return bb.tanh(nn.functional.linear(bb.tanh(x * 2.0), w, w[0] - 1.0)) - 1.0


def side_by_side(x: Any) -> Any:
    y = bb.tanh(x * 2.0)
    return bb.concat([y, y * 3.0, x], axis=1) - 1.0


def columns(x: Any) -> Any:
    return bb.tanh(bb.exp(x)[:, 1:3] * 2.0) - 1.0


def between(x: Any) -> Any:
    y = bb.tanh(x * 2.0)
    z = (bb.exp(x) * 3.0 + x) * y
    return bb.concat([y, z]) * 2.0 - 1.0


def stack(x: Any) -> Any:
    y = bb.tanh(x * 2.0)
    return bb.stack([y + 1.0, y * 3.0])


def column(x: Any, c: Any) -> Any:
    return bb.tanh(x * 2.0) * (c + 1.0) - 1.0


def means(x: Any) -> Any:
    return bb.tanh(bb.exp(x).mean(axis=0) * 2.0) - x


def rows(x: Any) -> Any:
    return bb.tanh(x * 2.0) * (x[0] * 1.5) - 1.0


def diagonals(x: Any) -> Any:
    return bb.tanh(bb.diagonal(bb.exp(x * 2.0))) - 1.0


def inner(x: Any) -> Any:
    y = bb.tanh(x * 2.0)
    return (y[1] - 1.0) * 2.0


def lstm(x: Any, h: Any, w: Any) -> Any:
    def loss(x: Any, h: Any) -> Any:
        c = h
        for _ in range(3):
            h, c = nn.functional.lstm_cell(x, h, c, w)
        return (h * c).sum()

    return bb.grad(loss, argnums=(0, 1))(x, h)


def weights(x: Any, w: Any) -> Any:
    def loss(w: Any, b: Any) -> Any:
        return bb.square(bb.tanh(nn.functional.linear(bb.tanh(x * 2.0), w, b) * 2.0 - 1.0)).sum()

    return bb.grad(loss, argnums=(0, 1))(w, w[:, 0])


V, M, S = (7,), (3, 3), (4, 5)
CELL = (2, 12), (2, 3), (12, 3)
FAULTS: dict[str, tuple[Any, str, str, str, Callable[..., Any], tuple[tuple[int, ...], ...], str]] = {
    "a prefix whose memory is taken for the whole":
        (rearrangements, "concatenation_plan", "memory.size == size", "memory.size - size < 64", prefixes, (V,),
         "mul|add|concat"),
    "a result as small as its prefix":
        (NativeProgram, "__init__", "memory.size == bytes_of(v)", "memory.size - bytes_of(v) < 64",
         prefix, (V,), "sub"),
    "a lifetime one step short":
        (Layout, "hold", "len(self.steps) - 1", "len(self.steps) - 2", chain, (V,), "sub|add|mul"),
    "a lifetime of one step":
        (Layout, "_arena", "end[memory.last]", "end[memory.first]", chain, (V,), "mul"),
    "no longer lifetime for a transposed second operand":
        (formulas, "append_pass", "layout.hold([*targets, *sources])", "pass", turned, (M,), "add"),
    "an aliased result":
        (NativeProgram, "__init__", "self._parts[mine[0]] = number", "self._parts[mine[0]] = 0", two, (V,),
         "exp|sub|tanh"),
    "a row of a factor too long":
        (multiplications.Gemm, "append", "(m if turned[0] else k)", "k + 1", product, (M, M), "matmul"),
    "a row of a concatenation too long":
        (rearrangements, "concatenation_plan", "bytes_of(result) // rows,", "bytes_of(result) // rows + 4,",
         side_by_side, (S,), "concat"),
    "a tail too wide":
        (rearrangements, "_strided", "*places, rows, block * size,", "*places, rows, block * size + size,",
         columns, (S,), "slice"),
    "a whole that begins after its parts":
        (rearrangements, "concatenation_plan", "whole.first = min(whole.first, memory.first)", "pass", between, (V,),
         "concat|mul|tanh"),
    "an operand that is overwritten":
        (formulas, "formula_plan", "[layout.new(v) for v in results], sources",
         "[(layout.new(v), sources[0])[1] for v in results], sources", chain, (V,),
         "exp"),
    "a part in another part's place":
        (rearrangements, "concatenation_plan", "memory.offset = whole, at", "memory.offset = whole, 0", stack, (V,),
         "stack"),
    "a column with the stride of an array":
        (formulas, "pass_of", "(count if whole else 1) * size if moves else 0", "count * size", column,
         ((3000, 20), (3000, 1)), "mul"),
    "a constant too small":
        (multiplications, "cell_backward_plan", "np.zeros(state, dtype)", "np.zeros((1, 1), dtype)", lstm, CELL,
         "lstm_backward"),
    "rows and columns exchanged":
        (rearrangements, "permutation_plan", "x, count, rows, columns", "x, count, columns, rows",
         oblong, (S,), "mul"),
    "a slice that starts one further":
        (rearrangements, "slice_plan", "start += first * inner", "start += (first + 1) * inner", columns, (S,),
         "slice"),
    "a step left out":
        (formulas, "sum_plan", "layout.call(kernel, source, total, inner, number, size)", "pass", means, (S,), "mean"),
    "a row too many":
        (multiplications, "linear_plan", "places[2], m, width", "places[2], m + 1, width", linear, (M, M), "linear"),
    "an arena too small":
        (Layout, "_arena", "aligned(size)", "aligned(size - 64)", chain, (V,), "mul|add|sub|exp|tanh"),
    "a part of a result without its offset":
        (Layout, "words", "before + memory.address, offset)", "before + memory.address, 0)", stack, (V,), "mul|stack"),
    "a result in the place of an operand":
        (Layout, "words", "before = self._given if kind is result else 0", "before = 0", chain, (V,), "sub"),
    "repeated rows that overlap":
        (Layout, "repeated", "size, size, 0)", "size, 0, 0)", rows, (S,), "mul"),
    "a view without its offset":
        (rearrangements, "_strided", "offset + start * size)", "offset)", inner, (S,), "sub"),
    "a diagonal with the stride of a column":
        (rearrangements, "diagonal_plan", "(length, width + 1)", "(length, width)", diagonals, (M,), "diagonal"),
    "one matrix of a stack for all":
        (multiplications, "product_plan", "dtype.itemsize * i * size", "0 * i * size", products, ((2, 3, 3), (2, 3, 3)),
         "matmul"),
    "sizes in another order":
        (formulas, "sum_plan", "inner, number, size)", "size, number, inner)", means, (S,), "mean"),
    "a product after the cell that reads it":
        (multiplications, "cell_plan",
         "        gemm.append(layout, product, hidden, matrix, (rows, wide, size), (False, True))\n", "", lstm, CELL,
         "lstm_cell"),
    "a gradient of a weight without the transposition":
        (multiplications, "weight_gradient_plan", "(n, k, m), (True, False)", "(n, k, m), (False, False)", weights,
         ((3, 3), (3, 3)), "linear_weight_backward"),
    "a row of a bias left out":
        (multiplications, "weight_gradient_plan", '("sum_in_order", m, n', '("sum_in_order", m - 1, n', weights,
         ((2, 3, 4), (4, 4)), "linear_weight_backward"),
    "threads that write one element":
        (fused._Program, "__init__", "[*[step] * len(results),", "[*[0] * len(results),", chain, (V,), "exp"),
    "a number read as a row":
        (formulas, "pass_of", 'dtype if next(inner) else "number"', "(next(inner), dtype)[1]",
         lambda x: chain(x) * x[1] - 2.0, ((7,),), "mul"),
}  # fmt: skip


def _forget() -> None:
    """Clear caches that planning shares between programs."""
    vars(formulas)["pass_of"].cache_clear()
    fused._program.cache_clear()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_refused(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, old, new, function, shapes, operations = FAULTS[fault]
    _forget()
    record(function, *shapes)
    _forget()
    with monkeypatch.context() as patch:
        plant_plan(patch, owner, name, old, new)
        with pytest.raises(
            CaptureError, match=rf"the native program of its call \d+ of \d+, ({operations}) -> float32\["
        ):
            record(function, *shapes)
        _forget()
    first, again = record(function, *shapes)
    for x, y in zip(*([v] if isinstance(v, bb.Tensor) else v for v in (first, again)), strict=True):
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [slice(0, 4), slice(1, 3), slice(2, None)])
def test_constants_may_be_views_of_one_array(rows: slice) -> None:
    """A shorter view that starts where the array or another view does must not shorten it."""
    c = bb.asarray(np.random.default_rng(1).normal(size=(5, 8)).astype(np.float32), backend="autodiff(capture(numpy))")

    def function(x: Any) -> Any:
        product = x @ c
        moved = bb.concat([product * 0.5, c[1:2], c[rows]], axis=0)
        return moved, bb.tanh(product) + c[2:3], bb.exp(bb.concat([c[3:], c[rows]], axis=0))

    first, again = record(function, (17, 5))
    for x, y in zip(first, again, strict=True):
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=2e-5, atol=1e-6)


def test_values_may_reuse_memory() -> None:
    """Each matrix is transposed twice, through memory that the previous one has released."""

    def twice(*given: Any) -> Any:
        return bb.tanh(bb.concat([bb.exp(x * 2.0).T.T for x in given]))

    first, replayed = record(twice, (4, 3), (4, 3), (4, 3))
    np.testing.assert_allclose(first.numpy(), replayed.numpy(), rtol=1e-6)


def test_a_pass_may_overwrite_an_operand_transposed_twice() -> None:
    def function(x: Any, y: Any, z: Any, w: Any) -> Any:
        turned = bb.permute_dims(bb.permute_dims(x @ y, (1, 0)), (1, 0))
        return [bb.exp(turned * 0.1 + bb.cos(z)) * 0.124 @ w]

    first, again = record(function, (63, 2), (2, 16), (63, 16), (16, 65))
    np.testing.assert_allclose(first[0].numpy(), again[0].numpy(), rtol=1e-5, atol=1e-5)


def test_the_verifier_s_tables_match_kernels_and_planners() -> None:
    """Every kernel in ``EFFECTS`` exists for both dtypes, and ``MOVES`` are the rearrangements with a planner."""
    for name in effects.EFFECTS:
        assert compiled.kernel(name) is not None
        assert compiled.kernel(f"{name}_double") is not None
    moves = {name for name, plan in program_compiler.PLANNERS.items() if plan.__module__ == rearrangements.__name__}
    assert moves == effects.MOVES.keys()


def test_a_step_with_a_refused_native_program_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning gives the reason, as for any other step that is not recorded."""
    owner, name, old, new, function, _, _ = FAULTS["a lifetime one step short"]
    captured = bb.capture(function, state=False)
    x = bb.asarray([1.0, 2.0, 3.0], backend="capture(numpy)")
    expected = captured(x).numpy()
    plant_plan(monkeypatch, owner, name, old, new)
    with pytest.warns(CaptureWarning, match="planned wrong"):
        found = captured(x).numpy()
    np.testing.assert_array_equal(found, expected)
    assert "please report it" in captured.reason
    assert verifier.VERIFIES
