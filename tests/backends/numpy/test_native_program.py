"""Native programs: their values equal those of the single calls in every memory layout."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.kernels import USABLE, needs_kernels, use_level

import backburn as bb
from backburn import nn
from backburn.backend import load_backend
from backburn.base.errors import DeviceMemoryError
from backburn.programs import executable
from backburn.programs.ir import Call, Number, Variable
from backburn.programs.passes.native_programs import NATIVE_PROGRAM
from backburn_numpy import compiled, tuning
from backburn_numpy.programs import native_program
from backburn_numpy.programs.layout import COPY, Layout
from backburn_numpy.programs.program_compiler import ProgramCompiler

pytestmark = [needs_kernels, pytest.mark.usefixtures("guarded_memory")]


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operations of compiled programs, in order."""
    found: list[str] = []
    module: Any = executable
    source_of = module.source_of

    def compiled(calls: Any, *rest: Any) -> Any:
        found.extend(call.operation for call in calls)
        return source_of(calls, *rest)

    monkeypatch.setattr(module, "source_of", compiled)
    return found


def replayed(function: Callable[..., Any], *arrays: Any, spec: str = "capture(numpy)") -> list[Any]:
    """The results of three calls; the last is a replay with values other than the recorded ones."""
    captured = bb.capture(function, state=False, on_fallback="error")
    return [captured(*(bb.asarray(a * (1 + 0.1 * n), backend=spec) for a in arrays)) for n in range(3)]


def check(function: Callable[..., Any], *arrays: Any) -> None:
    """Compare results with those of single calls, after later replays."""
    found, expected = replayed(function, *arrays), replayed(function, *arrays, spec="capture(numpy, join=false)")
    for mine, theirs in zip(found, expected, strict=True):
        for x, y in zip(mine, theirs, strict=True):
            assert x.shape == y.shape
            assert x.dtype is y.dtype
            largest = max(1.0, np.abs(y.numpy()).max(initial=0.0))
            np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=2e-5, atol=1e-6 * largest)


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(len(shape) + sum(shape)).normal(size=shape).astype(dtype)


# ---- random programs ----

SHAPES = [(1,), (3,), (17,), (2, 3), (1, 3), (2, 1), (3, 17), (3, 3), (17, 3), (2, 3, 17), (2, 17, 3), (1, 1, 1)]
KINDS = (
    *("unary", "binary", "binary", "number", "sum", "mean", "matmul", "linear"),
    *("slice", "reshape", "stack", "concat", "permute", "broadcast", "diagonal", "fill"),
)


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[tuple[Any, ...]], list[int]]:
    """Calls, as names and indices of earlier values, and the indices of the results."""
    shapes = [draw(st.sampled_from(SHAPES)) for _ in range(3)]
    given_count = len(shapes)
    calls: list[tuple[Any, ...]] = []
    for _ in range(draw(st.integers(4, 20))):
        kind = draw(st.sampled_from(KINDS))
        i = draw(st.integers(0, len(shapes) - 1))
        shape = shapes[i]
        if kind == "unary":
            calls.append((draw(st.sampled_from(["tanh", "negative", "square", "sigmoid", "abs"])), i))
        elif kind == "number":
            calls.append(("scale", i, draw(st.sampled_from([0.0, -0.0, 0.5, 2.0, -1.5]))))
        elif kind == "binary":
            fitting = [j for j, other in enumerate(shapes) if _broadcasts(shape, other)]
            j = draw(st.sampled_from(fitting))
            calls.append((draw(st.sampled_from(["add", "multiply", "subtract", "maximum"])), i, j))
            shape = np.broadcast_shapes(shape, shapes[j])
        elif kind == "permute":
            axes = draw(st.permutations(range(len(shape))))
            calls.append((kind, i, tuple(axes)))
            shape = tuple(shape[a] for a in axes)
        elif kind == "broadcast":
            shape = (2, *shape)
            calls.append((kind, i, shape))
        elif kind in ("matmul", "linear"):
            last = -2 if kind == "matmul" else -1
            fitting = [
                j
                for j, other in enumerate(shapes)
                if (len(shape) > 1 and len(other) == 2 and other[last] == shape[-1])
                or (
                    kind == "matmul"
                    and len(other) == 3
                    and len(shape) > 1
                    and shape[:-2] in ((), other[:1])
                    and other[1] == shape[-1]
                )
            ]
            if not fitting:
                continue
            j = draw(st.sampled_from(fitting))
            outputs = shapes[j][-1 if kind == "matmul" else 0]
            count = shapes[j][:-2] if kind == "matmul" and len(shape) == 2 else ()
            biases = [b for b, other in enumerate(shapes) if other == (outputs,)]
            bias = draw(st.sampled_from([None, *biases])) if kind == "linear" else None
            calls.append((kind, i, j) if bias is None else (kind, i, j, bias))
            shape = (*count, *shape[:-1], outputs)
        elif kind in ("sum", "mean"):
            first = draw(st.integers(0, len(shape) - 1))
            last = draw(st.integers(first, len(shape) - 1))
            keep = draw(st.booleans()) or last - first + 1 == len(shape)
            calls.append((kind, i, tuple(range(first, last + 1)), keep))
            shape = tuple(1 if first <= a <= last else n for a, n in enumerate(shape) if keep or not first <= a <= last)
        elif kind == "slice":
            key = []
            for n in shape:
                start = draw(st.integers(0, n - 1))
                key.append(slice(start, draw(st.integers(start + 1, n)), draw(st.sampled_from([1, 1, 1, 2, 3]))))
                if draw(st.booleans()) and start:
                    key[-1] = slice(start, None, -1)
            calls.append(("slice", i, tuple(key)))
            shape = tuple(len(range(n)[s]) for s, n in zip(key, shape, strict=True))
        elif kind == "diagonal":
            rows, columns = (shape if len(shape) > 1 else (1, *shape))[-2:]
            offset = draw(st.integers(1 - rows, columns - 1))
            calls.append((kind, i, offset))
            shape = (*shape[:-2], min(rows + min(offset, 0), columns - max(offset, 0)))
        elif kind == "fill":
            shape = (*shape, 5)
            calls.append((kind, i, shape))
        elif kind == "reshape":
            shape = draw(st.sampled_from([(int(np.prod(shape)),), (1, *shape), (*shape, 1)]))
            calls.append(("reshape", i, shape))
        else:
            alike = [j for j, other in enumerate(shapes) if other == shape]
            parts = draw(st.lists(st.sampled_from(alike), min_size=1, max_size=4))
            axis = draw(st.integers(0, len(shape) - (kind == "concat")))
            calls.append((kind, parts, axis))
            one = (*shape[:axis], len(parts), *shape[axis:])
            shape = one if kind == "stack" else (*shape[:axis], shape[axis] * len(parts), *shape[axis + 1 :])
        shapes.append(shape)
    results = draw(st.lists(st.integers(given_count, len(shapes) - 1), min_size=1, max_size=4))
    return [("shapes", shapes[:given_count]), *calls], results


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(a[::-1], b[::-1], strict=False))


def run(program: list[tuple[Any, ...]], results: list[int], *given: Any) -> Any:
    values = list(given)
    for name, *rest in program[1:]:
        if name in ("stack", "concat"):
            values.append(getattr(bb, name)([values[i] for i in rest[0]], axis=rest[1]))
        elif name == "scale":
            values.append(values[rest[0]] * rest[1])
        elif name in ("sum", "mean"):
            values.append(getattr(bb, name)(values[rest[0]], axis=rest[1], keepdims=rest[2]))
        elif name == "permute":
            values.append(bb.permute_dims(values[rest[0]], rest[1]))
        elif name == "broadcast":
            values.append(bb.broadcast_to(values[rest[0]], rest[1]))
        elif name == "diagonal":
            x = values[rest[0]]
            values.append(bb.diagonal(x if x.ndim > 1 else x[None], offset=rest[1]))
        elif name == "fill":
            values.append(bb.broadcast_to(values[rest[0]][..., None], rest[1]))
        elif name == "linear":
            values.append(nn.functional.linear(*(values[i] for i in rest)))
        elif name == "slice":
            values.append(values[rest[0]][rest[1]])
        elif name == "reshape":
            values.append(values[rest[0]].reshape(rest[1]))
        else:
            values.append(getattr(bb, name)(*(values[i] for i in rest)))
    return [values[i] for i in results]


@given(programs(), st.sampled_from([np.float32, np.float64]))
def test_random_programs(drawn: tuple[list[tuple[Any, ...]], list[int]], dtype: Any) -> None:
    program, results = drawn
    arrays = [normal(*shape, dtype=dtype) for shape in program[0][1]]
    check(lambda *given: run(program, results, *given), *arrays)


# ---- slices of values: prefixes, suffixes, and values computed in place ----


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [2, 3, 5, 8, 15, 16, 17, 33])
def test_a_slice_is_never_confused_with_its_whole(size: int, dtype: Any) -> None:
    """Values occupy whole cache lines of an arena, but their exact sizes are compared."""

    def function(x: Any) -> Any:
        y = x * 2.0
        half = size // 2
        return [
            bb.concat([y[:1], y[:-1] * 0.5 + y[1:], y[-1:]]),
            bb.concat([y[:half] * 0.5 + y[-half:], y[:half]]),
            bb.concat([y[:-1], y[:-1]]),
            bb.stack([y[:half], y[half : 2 * half] + 1.0, y[:half]]),
            bb.stack([y[:half], y[half : 2 * half]], axis=1) - 1.0,
            bb.concat([bb.stack([y[:1], y[:1] - 1.0]), bb.exp(-y)[None, :1]]),
            bb.concat([(z := bb.tanh(y))[:1], z, z[-1:]]),
        ]

    check(function, normal(size, dtype=dtype))
    check(lambda x: [*function(x[:, 0]), *function(x[0])], normal(size, size, dtype=dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [2, 3, 8, 16, 17])
@pytest.mark.parametrize("part", [lambda y: y[0], lambda y: y[:1], lambda y: y[:-1], lambda y: y[1:], lambda y: y[-1]])
def test_a_result_that_is_a_slice_has_the_memory_of_the_whole(part: Any, size: int, dtype: Any) -> None:
    """The native program writes the whole, even if only a slice is returned."""
    check(lambda x: [part(bb.exp(x) * x + x - 1.0)], normal(size, dtype=dtype))
    check(lambda x: [part(y := bb.exp(x) * x + x - 1.0), part(y).reshape(-1), y], normal(size, 2, dtype=dtype))


def test_results_have_the_memory_that_their_program_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of each result has the size of the value that it is a slice of."""
    asked: list[tuple[int, ...]] = []
    module: Any = native_program
    original = module.append_empty

    def watched(arrays: list[Any], kinds: list[Any]) -> None:
        asked.extend(shape for shape, *_ in kinds)
        original(arrays, kinds)

    monkeypatch.setattr(native_program, "append_empty", watched)
    check(lambda x: [(bb.exp(x) * x + x - 1.0)[:1]], normal(8))
    assert {*asked} == {(8,)}


@pytest.mark.parametrize("derive", [bb.grad, lambda f: bb.grad(lambda x: bb.grad(f)(x).sum())])
def test_derivatives_of_slices_and_their_whole(derive: Any) -> None:
    """Their cotangents are sums of padded slices."""

    def loss(z: Any) -> Any:
        y: Any = bb.exp(z)
        slopes: Any = bb.gradient(y)
        return (bb.concat([y[:1], y, y[:-1] * y[1:]]) ** 2).sum() + (slopes**3).sum()

    check(lambda x: [derive(loss)(x)], 0.1 * normal(3))
    check(lambda x: [bb.vmap(derive(loss))(x)], 0.1 * normal(4, 5))


def test_powers_with_an_array_of_constants() -> None:
    """A scalar exponent of 2 becomes a square; an array of exponents does not."""
    for exponents in ([2.0], [1.0, 2.0, 3.0], [[2.0, 2.0, 2.0]] * 2):
        c = bb.asarray(exponents, dtype=bb.float32, backend="capture(numpy)")
        function: Any = lambda x, c=c: [(bb.exp(x) ** c) * x + x * 2.0, (c**x) ** 2.0 - x]
        captured = bb.capture(function, state=False, on_fallback="error")
        for n in range(3):
            x = normal(2, 3) * (1 + n)
            found = captured(bb.asarray(x, backend="capture(numpy)"))
            wide, power = x.astype(np.float64), np.array(exponents)
            expected = np.exp(wide) ** power * wide + 2 * wide, (power**wide) ** 2 - wide
            for mine, theirs in zip(found, expected, strict=True):
                np.testing.assert_allclose(mine.numpy(), theirs, rtol=2e-5, atol=1e-5)


# ---- native programs ----


def test_a_loop_is_one_native_program(operations: list[str]) -> None:
    def loop(w: Any, x: Any) -> Any:
        h = x
        for _ in range(50):
            h = bb.tanh(h * w + x)
        return h.sum()

    gradient = bb.value_and_grad(loop, argnums=(0, 1))
    captured = bb.capture(gradient, state=False, on_fallback="error")
    for n in range(4):
        w, x = normal(16) * (1 + n), normal(16)
        value, grads = captured(*(bb.asarray(a, backend="capture(numpy)") for a in (w, x)))
        expected, slopes = gradient(*(bb.asarray(a.astype(np.float64), backend="numpy") for a in (w, x)))
        np.testing.assert_allclose(value.numpy(), expected.numpy(), rtol=1e-5)
        for mine, theirs in zip(grads, slopes, strict=True):
            np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-6)
    assert operations == [NATIVE_PROGRAM]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [3, 70])
@pytest.mark.parametrize("operation", ["lstm_cell", "gru_cell"])
def test_cells_and_their_gradients_join(operations: list[str], operation: str, size: int, dtype: Any) -> None:
    """With and without a bias, and if only some of the results have gradients."""
    is_lstm, rows = operation == "lstm_cell", 9
    wide = (4 if is_lstm else 3) * size

    def loss(x: Any, h: Any, c: Any, w: Any, b: Any) -> Any:
        total: Any = 0.0
        for n in range(6):
            bias = b if n % 2 else None
            if is_lstm:
                h, c = nn.functional.lstm_cell(x[n], h, c, w, bias)
            else:
                h = nn.functional.gru_cell(x[n], h, w, bias) * c
            total = total + (h * h).sum() if n % 3 else total
        return total + (c.sum() if is_lstm else 0.0)

    gradient = bb.value_and_grad(loss, argnums=(0, 1, 2, 3, 4))
    shapes = (6, rows, wide), (rows, size), (rows, size), (wide, size), (wide,)
    check(lambda *given: [(found := gradient(*given))[0], *found[1]], *(0.5 * normal(*s, dtype=dtype) for s in shapes))
    if (
        dtype is np.float32 or compiled.level() in tuning.MIN_GEMM_PRODUCTS
    ):  # otherwise native programs have no float64 products
        assert operations[0] == NATIVE_PROGRAM
        assert operations.count(operation) == 6, "in the program without native programs"


@pytest.mark.parametrize("level", USABLE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients_of_linear_layers_join(level: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of few and of many rows are bitwise equal to the operation's; products are as exact."""
    use_level(monkeypatch, level)
    k, kind = load_backend("numpy"), bb.float32 if dtype is np.float32 else bb.float64
    for lead, n, inputs in (
        ((8,), 3, 16), ((1,), 8, 8), ((2,), 2, 1), ((63,), 65, 3), ((100,), 41, 5), ((255,), 100, 3), ((300,), 7, 9),
        ((4, 5), 6, 3), ((7, 1, 3), 2, 4), ((8,), 1, 8),
    ):  # fmt: skip
        grad, x = normal(*lead, n, dtype=dtype), normal(*lead, inputs, dtype=dtype)
        given = [Variable(i, a.shape, kind) for i, a in enumerate((grad, x))]
        made = [Variable(2, (n, inputs), kind), Variable(3, (n,), kind)]
        expected = k.linear_weight_backward(grad, x)
        for results in (made, [made[0], None]):
            call = Call("linear_weight_backward", k.linear_weight_backward, [*given], {}, results)
            compiler, wanted = ProgramCompiler(), [v for v in results if v is not None]
            if compiler.calls_saved(call) is None:
                assert (n, len(wanted)) == (1, 2) or (dtype is np.float64 and level not in tuning.MIN_GEMM_PRODUCTS)
                continue
            found = compiler.native_program([call], given, wanted)(grad, x)
            np.testing.assert_allclose(found[0], expected[0], 1e-4, 1e-5)
            for mine in found[1:]:
                np.testing.assert_array_equal(mine, expected[1])


def test_large_products_join(operations: list[str]) -> None:
    """In both precisions, divided among threads, and with transposed operands."""

    def function(x: Any, w: Any) -> Any:
        h = x
        for _ in range(3):
            h = 0.5 * (h @ w.T) + x
        return [h, h.T @ x, (x.T @ h) @ w]

    for dtype in (np.float32, np.float64):
        operations.clear()
        check(function, normal(50, 130, dtype=dtype), 0.1 * normal(130, 130, dtype=dtype))
        if compiled.level() in tuning.MIN_GEMM_PRODUCTS:
            assert operations[0] == NATIVE_PROGRAM


def test_parts_of_a_stack_are_computed_in_place(operations: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    layouts: list[Layout] = []
    words = Layout.words

    def watched(layout: Layout) -> tuple[list[int], list[int]]:
        layouts.append(layout)
        return words(layout)

    monkeypatch.setattr(Layout, "words", watched)

    def loop(a: Any, x: Any) -> Any:
        h, states = 0.0 * x[0], []
        for fed in x:
            h = h * a + fed
            states.append(h)
        return bb.stack(states), h

    check(loop, normal(3), normal(20, 2, 3))
    assert operations[0] == NATIVE_PROGRAM
    copies = [step for step in layouts[0].steps if step[0] == COPY]
    assert [step[3:] for step in copies] == [(2, 12, 12, 0)], "the row that all steps read, repeated once"


def test_results_of_earlier_replays_do_not_change() -> None:
    """Also results that are views of one another or of operands, or operands themselves."""

    def function(x: Any, y: Any) -> Any:
        a = bb.tanh(x * y) * y
        b = a.reshape(6)
        return [a, b, b[1:4], x[0] + bb.square(bb.square(y)), x[1:].reshape(3), (a + y).reshape(3, 2)]

    check(function, normal(2, 3), normal(2, 3))


def test_views_of_operands_are_results(operations: list[str]) -> None:
    """A view of an operand inside the native program is copied; a view that other calls need is made before it."""

    def function(x: Any) -> Any:
        row = x[1:3]
        inside = row.reshape(6)
        y = bb.square(bb.tanh(inside * 2.0) + inside)
        return [y - 1.0, inside.reshape(3, 2), bb.sort(row, axis=1)]

    check(function, normal(4, 3))
    assert NATIVE_PROGRAM in operations


def test_numbers_of_replays_reach_a_native_program() -> None:
    """Such as a learning rate; they are written to memory before the steps, once per dtype."""
    k = load_backend("numpy")
    x, y, scaled, wide = (Variable(i, (2, 3), t) for i, t in enumerate((bb.float32, bb.float64) * 2))
    rate = Number(0)
    calls = [
        Call("mul", k.mul, [x, rate], {}, scaled),
        Call("sub", k.sub, [rate, y], {}, wide),
    ]
    compiler = ProgramCompiler()
    assert [compiler.calls_saved(call) for call in calls] == [1, 1]
    function = compiler.native_program(calls, [x, rate, y], [wide, scaled])
    single, double = normal(2, 3), normal(2, 3, dtype=np.float64)
    for number in (0.5, -2.0):
        found = function(single, number, double)
        np.testing.assert_array_equal(found[0], number - double)
        np.testing.assert_array_equal(found[1], single * np.float32(number))


def test_constants_are_distinguished_from_shapes() -> None:
    """Such as a constant 2.0 from an operand of shape (2,)."""
    check(lambda x, y: [x * 2.0, x * y, bb.tanh(x * 2.0) * y - y * 2.0], normal(2), normal(2))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_columns_and_long_arrays(dtype: Any) -> None:
    """Broadcasting along either axis, and results divided among threads."""

    def function(x: Any, row: Any, column: Any) -> Any:
        y = bb.tanh(x * row + column)
        return [y * y - row, (y * column).sum(axis=0), bb.maximum(column * row, x), bb.exp(-(y * y)).sum(axis=1)]

    for rows, width in ((3, 17), (1, 40_000), (200, 300), (40_000, 1)):
        check(function, *(normal(*s, dtype=dtype) for s in ((rows, width), (width,), (rows, 1))))


def test_unsupported_calls_do_not_join(operations: list[str]) -> None:
    """Other dtypes, empty arrays, three axes that broadcast differently, and results that are too large."""

    def function(x: Any, y: Any) -> Any:
        z = bb.where(x < y, x, y) * 2.0
        return [z, bb.logical_not(x < y), bb.where(x > z, x, y) + 1.0]

    for a, b in (
        (normal(0, 3), normal(0, 3)), (normal(2, 1, 3), normal(1, 4, 1)),
        (normal(300, 300), normal(300, 300)), (normal(4, 4).astype(np.float16), normal(4, 4).astype(np.float16)),
    ):  # fmt: skip
        operations.clear()
        check(function, a, b)
        assert NATIVE_PROGRAM not in operations


def test_several_threads_replay_one_native_program() -> None:
    captured = bb.capture(lambda x: bb.tanh(bb.tanh(bb.tanh(x * 2.0) + 1.0) * x) - x, state=False)
    inputs = [bb.full((1000,), 0.001 * n, dtype=bb.float32, backend="capture(numpy)") for n in range(40)]
    expected = [captured(x).numpy() for x in inputs]
    wrong: list[int] = []

    def work(start: int) -> None:
        for n in [*range(start, 40), *range(start)] * 5:
            if not np.array_equal(captured(inputs[n]).numpy(), expected[n]):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(7 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_operands_may_have_any_strides() -> None:
    """Transposed and strided arrays are copied before a native program reads them."""
    captured = bb.capture(lambda x: bb.tanh(x * 2.0 + 1.0) * x - 3.0, state=False)
    array = normal(6, 8)
    for x in (array, array[::2, ::2], array.T, array[::-1]):
        for _ in range(3):
            found = captured(bb.asarray(x, backend="capture(numpy)").T)
        np.testing.assert_allclose(found.numpy(), (np.tanh(x * 2 + 1) * x - 3).T, rtol=2e-5, atol=1e-6)


# ---- errors, interrupts, forks ----


def trained() -> tuple[Any, Any, Any]:
    """A captured step with native programs, its state after some replays, and a batch."""
    k = "autodiff(capture(numpy))"
    with bb.use_backend(k):
        bb.random.seed(0)
        state = nn.LSTMCell(5, 7), bb.optim.Adam(0.01)
        x = bb.random.normal((6, 3, 5))

    def step(state: Any, x: Any) -> Any:
        cell, optimizer = state
        h = c = bb.zeros((3, 7), backend=x.backend)
        total: Any = 0.0
        for row in x:
            h, c = cell(row, (h, c))
            total = total + (h * h).mean()
        optimizer.step(cell, total.backward())
        return state, total

    captured = bb.capture(step, on_fallback="error")
    for _ in range(4):
        state, _ = captured(state, x)
    return captured, state, x


def values_of(state: Any) -> list[Any]:
    return [p.numpy().copy() for p in state[0].parameters()]


def test_exhausted_memory_names_the_call_and_keeps_the_state(operations: list[str]) -> None:
    """The state is unchanged, and the next step equals that of a run without the error."""
    (captured, state, x), (other, apart, y) = trained(), trained()
    assert NATIVE_PROGRAM in operations

    def exhausted(*_: Any) -> Any:
        raise MemoryError

    before = values_of(state)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_program, "append_empty", exhausted)
        with pytest.raises(DeviceMemoryError, match=r"(linear|matmul|mul|add|sum|lstm_cell|lstm_backward|fuse)\b"):
            captured(state, x)
    for mine, theirs in zip(values_of(state), before, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    state, loss = captured(state, x)
    apart, expected = other(apart, y)
    np.testing.assert_array_equal(loss.numpy(), expected.numpy())
    for mine, theirs in zip(values_of(state), values_of(apart), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_an_interrupt_keeps_the_state(operations: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C arrives after the kernel has run, before its results are returned."""
    (captured, state, x), (other, apart, y) = trained(), trained()
    assert NATIVE_PROGRAM in operations
    before = values_of(state)
    original = native_program.NativeProgram.__call__

    def interrupted(self: Any, *given: Any) -> Any:
        original(self, *given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(native_program.NativeProgram, "__call__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            captured(state, x)
    for mine, theirs in zip(values_of(state), before, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    state, _ = captured(state, x)
    apart, _ = other(apart, y)
    for mine, theirs in zip(values_of(state), values_of(apart), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_native_programs_after_a_fork_an_interrupt_and_an_error_in_a_thread() -> None:
    """A forked child replays a native program that another thread was running during the fork."""
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=200)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.split() == ["child", "thread", "interrupted", "ended"]


PROGRAM = """
import os, signal, threading
import numpy as np
import backburn as bb
from backburn_numpy.runtime import threads
from backburn_numpy.programs import native_program
threads.set_num_threads(2)
k = "capture(numpy)"
captured = bb.capture(lambda x, w: bb.tanh(bb.tanh((x * 2.0 + 1.0) @ w) * x - x) * x + x, state=False)
rng = np.random.default_rng(0)
x = bb.asarray(rng.normal(size=(130, 130)).astype("f"), backend=k)
w = bb.asarray((0.1 * rng.normal(size=(130, 130))).astype("f"), backend=k)
for _ in range(3):
    expected = captured(x, w).numpy()
same = lambda: np.array_equal(captured(x, w).numpy(), expected)
assert same()
if hasattr(os, "fork"):
    held = [one._lock for one in native_program._PROGRAMS]
    for lock in held:
        lock.acquire()  # as a thread that replays does
    if os.fork() == 0:
        os.write(1, b"child\\n" if same() else b"wrong\\n")
        os._exit(0)
    os.wait()
    for lock in held:
        lock.release()
else:
    print("child", flush=True)

def fail():
    try:
        captured(x, bb.zeros((3, 3), backend=k))
    except bb.errors.BackburnError:
        print("thread", flush=True)

other = threading.Thread(target=fail)
other.start()
assert same()
other.join()
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGINT)).start()
try:
    while True:
        captured(x, w)
except KeyboardInterrupt:
    print("interrupted", flush=True)
assert same()
print("ended", flush=True)
"""
