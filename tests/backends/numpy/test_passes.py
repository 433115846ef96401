"""Passes over rows: random graphs compared with single calls, planted faults, and plans as text."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from graphlib import TopologicalSorter
from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.helpers.guards import guarded
from tests.helpers.kernels import BASE, needs_kernels
from tests.helpers.planting import plant

import backburn as bb
from backburn.base.errors import CaptureError, OutOfRangeError
from backburn.nn import functional
from backburn.ops.table import OPERATIONS
from backburn.programs.fusion import limits, partition, replacement
from backburn.programs.fusion.plan import PASS, Extent, Operand, Plan, Space, Step
from backburn.programs.fusion.replacement import fuse_calls
from backburn.programs.ir import Call, Program, ordered
from backburn_numpy import tuning
from backburn_numpy.elementwise import fused
from backburn_numpy.programs import compiling, program_compiler, small_passes, tile_code, tiles
from backburn_numpy.runtime import threads

pytestmark = needs_kernels

SIDES = (1, 2, 3, 5, 8, 16, 17, 31, 32, 33, 48, 64, 67)
#: Special values, of which some inputs have a few.
SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-42, -1e-310)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use passes of any size, in several portions and tiles."""
    monkeypatch.setattr(limits, "MIN_ELEMENTS_OF_ROWS", 1)
    monkeypatch.setattr(limits, "MIN_WIDTH", 1)
    monkeypatch.setattr(limits, "MIN_ELEMENTS", 1 << 30)
    monkeypatch.setattr(tuning, "PASS_TILE_BYTES", 1 << 10)
    monkeypatch.setattr(tuning, "ELEMENTS_PER_TASK", 256)
    monkeypatch.setattr(tuning, "MOST_ELEMENTS_OF_ONE_PORTION", 0)
    monkeypatch.setattr(tuning, "MIN_BYTES_TO_FETCH", 1)

    def checked(wanted: Any, makers: Any) -> Any:
        """The calls in order; raises if they form a cycle."""
        before = {id(c): {id(makers[v]) for v in c.reads if v in makers} for c in makers.values()}
        TopologicalSorter(before).prepare()
        return ordered(wanted, makers)

    monkeypatch.setattr(replacement, "ordered", checked)
    before = threads.num_threads()
    threads.set_num_threads(2)
    yield
    threads.set_num_threads(before)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, special: bool) -> Any:
    """A random input, with a few special values if ``special``."""
    made = rng.standard_normal(shape)
    if special and made.size > 4:
        at = rng.integers(0, made.size, 3)
        made.reshape(-1)[at] = rng.choice(SPECIAL, 3)
    return made.astype(dtype)


UNARY: tuple[Callable[[Any], Any], ...] = (
    *(
        bb.tanh,
        bb.sigmoid,
        bb.abs,
        bb.square,
        lambda x: -x,
        lambda x: bb.exp(bb.minimum(x, 2.0)),
        functional.gelu,
    ),
    *(lambda x: bb.sqrt(bb.abs(x) + 0.5), lambda x: bb.log(bb.abs(x) + 1.5), lambda x: bb.clip(x, -1.0, 1.5)),
    *(functional.softplus, lambda x: 1.0 / (bb.abs(x) + 1.0), functional.silu, lambda x: x * 0.5),
)
ALONG: tuple[Callable[[Any, Any, Any], Any], ...] = (
    *(lambda x, row, _: functional.layer_norm(x, row, row), lambda x, row, _: functional.rms_norm(x, row)),
    *(lambda x, row, _: bb.softmax(x, axis=-1), lambda x, row, _: bb.log_softmax(x, axis=-1)),
    *(lambda x, _, rows: x * bb.logsumexp(x, axis=-1, keepdims=True), lambda x, _, rows: functional.layer_norm(x)),
)
BINARY: tuple[Callable[[Any, Any], Any], ...] = (
    *(bb.add, bb.subtract, bb.multiply, bb.maximum, bb.minimum, lambda x, y: x / (bb.abs(y) + 1.0)),
    *(lambda x, y: bb.where(x > 0.25, y, x * 0.5), lambda x, y: x * y + 0.25),
)


def graph(seed: int, shape: tuple[int, ...], dtype: str) -> tuple[Callable[..., Any], list[Any]]:
    """A function of 2 to 40 operations, and its inputs: two arrays, a row, a column and a single number."""
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    special, count = draw.random() < 0.5, draw.randint(2, 40)
    shapes = [shape, shape, (*shape[:-1], 1), shape[-1:], (1,) * len(shape)]
    inputs = [numbers(rng, s, dtype, special) for s in shapes]
    plan = [
        (draw.random(), draw.randrange(1 << 30), draw.randrange(1 << 30), draw.randrange(1 << 30)) for _ in range(count)
    ]
    leading = tuple(range(len(shape) - 1))
    kept = [draw.random() < 0.2 for _ in range(count)]

    def function(*given: Any) -> list[Any]:
        whole, rows, out = [*given[:2]], [given[2]], []
        others = [given[2], given[3], given[4]]
        for (kind, a, b, c), keeps in zip(plan, kept, strict=True):
            x = whole[-1 - a % min(4, len(whole))]
            if kind < 0.3:
                made = UNARY[c % len(UNARY)](x)
            elif kind < 0.38:
                made = ALONG[c % len(ALONG)](x, others[1], others[0])
            elif kind < 0.5:
                made = BINARY[c % len(BINARY)](x, whole[b % len(whole)])
            elif kind < 0.7:
                other = (others + rows)[b % (len(others) + len(rows))]
                pair = (x, other) if c & 1 else (other, x)
                made = BINARY[(c >> 1) % len(BINARY)](*pair)
            elif kind < 0.82:
                reduce = (bb.mean, bb.sum, bb.max, bb.min)[b % 4] if c % 7 else bb.var
                made = reduce(x, axis=-1, keepdims=True)
                rows.append(bb.tanh(made) if c & 1 else made * 0.125)
                continue
            elif kind < 0.88:
                rows.append(UNARY[c % len(UNARY)](rows[b % len(rows)]))
                continue
            elif kind < 0.93:
                out.append(((bb.sum, bb.mean)[b % 2] if c % 5 else bb.var)(x, axis=leading))
                continue
            elif kind < 0.96:
                out.append((bb.sum, bb.mean)[b % 2](x))
                continue
            else:
                made = x - bb.sum(bb.tanh(x), axis=leading) * 0.01  # another pass reads the sum
            whole.append(bb.tanh(made) if len(whole) % 3 == 0 else made)
            if keeps:
                out.append(whole[-1])
        return [*out, whole[-1], rows[-1]]

    return function, inputs


def replayed(function: Callable[..., Any], inputs: list[Any], backend: str) -> tuple[list[Any], Any]:
    """The results of a replay, and the captured function."""
    captured = bb.capture(function, state=False, on_fallback="error")
    found = [captured(*(bb.asarray(x, backend=backend) for x in inputs)) for _ in range(3)][-1]
    return [x.numpy() for x in found], captured


def differences(mine: list[Any], theirs: list[Any], dtype: str) -> str:
    """How results differ by more than rounding, as text."""
    close = 2e-4 if dtype == "float32" else 1e-11
    for i, (x, y) in enumerate(zip(mine, theirs, strict=True)):
        if not np.array_equal(np.isnan(x), np.isnan(y)) or not np.array_equal(np.isinf(x), np.isinf(y)):
            return f"result {i} is not finite elsewhere"
        finite = np.isfinite(y)
        scale = np.max(np.abs(y[finite]), initial=1.0)
        if np.max(np.abs(x[finite] - y[finite]), initial=0.0) > close * scale:
            return f"result {i} is off by {np.max(np.abs(x[finite] - y[finite])) / scale}"
    return ""


def cases(count: int) -> Iterator[tuple[int, tuple[int, ...], str]]:
    draw = random.Random(5)
    for seed in range(count):
        rank = draw.choice((2, 2, 3))
        shape = tuple(draw.choice(SIDES) for _ in range(rank))
        yield seed, shape, draw.choice(("float32", "float32", "float64"))


def test_random_graphs_equal_single_calls() -> None:
    passes = 0
    for seed, shape, dtype in cases(100):
        function, inputs = graph(seed, shape, dtype)
        expected, _ = replayed(function, inputs, "capture(numpy, join=false)")
        with guarded():
            found, captured = replayed(function, inputs, "capture(numpy)")
        assert differences(found, expected, dtype) == "", (seed, shape, dtype)
        passes += sum(" = pass of " in line for line in str(captured.program).splitlines())
    assert passes > 80


def flat_graph(seed: int, shape: tuple[int, ...], dtype: str) -> tuple[Callable[..., Any], list[Any]]:
    """A function of element-wise calls on arrays of one shape and on single numbers, and of full reductions."""
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    inputs = [numbers(rng, s, dtype, draw.random() < 0.3) for s in (shape, shape, (1,) * len(shape))]
    plan = [(draw.random(), draw.randrange(1 << 20), draw.randrange(1 << 20)) for _ in range(draw.randint(2, 30))]

    def function(x: Any, y: Any, one: Any) -> list[Any]:
        values, out = [x, y], []
        for kind, a, b in plan:
            z = values[-1 - a % min(4, len(values))]
            if kind < 0.4:
                made = UNARY[b % len(UNARY)](z)
            elif kind < 0.8:
                made = BINARY[b % len(BINARY)](z, (*values, one)[a % (len(values) + 1)])
            else:
                out.append((bb.sum, bb.mean, bb.max, bb.min)[b % 4](z))
                continue
            values.append(bb.tanh(made) if len(values) % 3 == 0 else made)
        return [*out, values[-1]]

    return function, inputs


def flat_cases(count: int) -> Iterator[tuple[int, tuple[int, ...], str]]:
    draw = random.Random(3)
    for seed in range(count):
        size = draw.choice((2, 31, 63, 64, 65, 127, 128, 129, 1000, 1024, 4099))
        shape = draw.choice(((size,), (size,), (1, size), (5, size)))
        yield seed, shape, draw.choice(("float32", "float32", "float64"))


def flat_difference(monkeypatch: pytest.MonkeyPatch, count: int) -> str:
    """The first random graph without rows that differs from single calls; empty if none does."""
    monkeypatch.setattr(limits, "MAX_FLAT_ROW", 64)
    monkeypatch.setattr(limits, "FLAT_WIDTH", 64)
    monkeypatch.setattr(limits, "MAX_WIDTH", 63)
    monkeypatch.setattr(tuning, "PASS_FLAT_TILE_BYTES", 1 << 8)
    plans = ""
    for seed, shape, dtype in flat_cases(count):
        function, inputs = flat_graph(seed, shape, dtype)
        expected, _ = replayed(function, inputs, "capture(numpy, join=false)")
        try:
            with guarded():
                found, captured = replayed(function, inputs, "capture(numpy)")
        except Exception as error:  # including MemoryFault
            return f"{type(error).__name__}: {error}"
        if words := differences(found, expected, dtype):
            return f"{seed} {shape} {dtype}: {words}"
        plans += str(captured.plan())
    assert plans.count("pass 0: ") > count - 3
    assert plans.count(" rows of 64 and one of ") > count // 3
    return ""


@pytest.mark.parametrize("code", ["0", "1"])
def test_passes_over_arrays_without_rows(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setenv("BACKBURN_MACHINE_CODE", code)
    assert flat_difference(monkeypatch, 60) == ""


@pytest.mark.parametrize(
    ("owner", "name", "old", "new"),
    [
        (tile_code.TileCode, "run", "starts + self._before", "starts"),
        (tile_code.TileCode, "run", "self._rest is not None", "self._rest is None and False"),
        (tile_code, "_of_rest", "width=space.rest", "width=space.rest // 2 + 1"),
        (replacement, "_with_totals", "space.numbers", "space.rows"),
    ],
    ids=["remainder at the start", "no remainder", "half the remainder", "no total of the remainder"],
)
def test_faults_of_arrays_without_rows_are_found(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str
) -> None:
    plant(monkeypatch, owner, name, old, new)
    assert flat_difference(monkeypatch, 40) != ""


def test_small_passes_are_in_native_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "MOST_ELEMENTS_OF_ONE_PORTION", 1 << 20)
    passes = 0
    for seed, shape, dtype in cases(40):
        function, inputs = graph(seed, shape, dtype)
        expected, _ = replayed(function, inputs, "capture(numpy, join=false)")
        with guarded():
            found, captured = replayed(function, inputs, "capture(numpy)")
        assert differences(found, expected, dtype) == "", (seed, shape, dtype)
        passes += sum(line.startswith("    ") and " = pass of " in line for line in str(captured.program).splitlines())
    assert passes > 30


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("code", ["0", "1"])
def test_sums_of_columns_do_not_use_the_scratch_of_their_pass(
    monkeypatch: pytest.MonkeyPatch, code: str, dtype: str
) -> None:
    """The verifier would take writes there for part of the pass, whose scratch may be as small as a result."""
    monkeypatch.setenv("BACKBURN_MACHINE_CODE", code)
    for name, value in (("MIN_ELEMENTS_OF_ROWS", 2), ("MIN_WIDTH", 1), ("MAX_ELEMENTS_ALONE", 0)):
        monkeypatch.setattr(limits, name, value)
    rng = np.random.default_rng(2)

    def function(x: Any, y: Any) -> Any:
        greatest = bb.astype(x == bb.max(x, axis=0, keepdims=True), x.dtype)
        share = 1.0 / bb.sum(greatest, axis=0, keepdims=True)
        return [bb.sum(greatest * share * y, axis=0)]

    for width in (1, 2, 3, 8):
        inputs = [numbers(rng, (13, width), dtype, False) for _ in range(2)]
        expected, _ = replayed(function, inputs, "capture(numpy, join=false)")
        found, captured = replayed(function, inputs, "capture(numpy)")
        assert differences(found, expected, dtype) == "", width
        assert " = native program of " in str(captured.program)


#: Faults of a pass in a native program: the source text that is replaced, and its replacement.
SMALL_FAULTS = {
    "an operand is missing": ("layout.read(x, code.dtype) if x", "layout.read(call.operands[0], code.dtype) if x"),
    "sums overlap other values": ("layout.hold([room, *targets, *sources])", "pass"),
    "the scratch is too small": ("layout.scratch((code.room,)", "layout.scratch((code.room // 2,)"),
    "results are exchanged": ("*targets, *sources, *map", "*targets[::-1], *sources, *map"),
    "sums are of other columns": ("prod(v.shape))", "prod(v.shape) // 2 or 1)"),
}


@pytest.mark.parametrize("fault", SMALL_FAULTS)
def test_the_verifier_refuses_faults_of_small_passes(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(tuning, "MOST_ELEMENTS_OF_ONE_PORTION", 1 << 20)
    changed = plant(monkeypatch, small_passes, "pass_plan", *SMALL_FAULTS[fault])
    monkeypatch.setitem(program_compiler.PLANNERS, PASS, changed)

    def record() -> None:
        for seed, shape, dtype in cases(30):
            function, inputs = graph(seed, shape, dtype)
            captured = bb.capture(function, state=False, on_fallback="error")
            for _ in range(2):
                captured(*(bb.asarray(x, backend="capture(numpy)") for x in inputs))

    with pytest.raises(CaptureError, match=r"the native program of its call .* was planned wrong"):
        record()


def first_difference(count: int = 60) -> str:
    """The first difference between a random graph and its single calls, or the error raised; empty if none."""
    for seed, shape, dtype in cases(count):
        function, inputs = graph(seed, shape, dtype)
        expected, _ = replayed(function, inputs, "capture(numpy, join=false)")
        try:
            with guarded():
                found, _ = replayed(function, inputs, "capture(numpy)")
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        if words := differences(found, expected, dtype):
            return words
    return ""


@pytest.mark.parametrize(
    ("owner", "name", "old", "new"),
    [
        (partition.Partition, "_depends", "other in self._reached(", "other is None in self._reached("),
        (tile_code.TileCode, "_lower", "space.rows, width", "space.rows // self._tall * self._tall, width"),
        (tiles.TilePass, "__call__", "np.add.reduce(results[i], axis=0)", "results[i][0]"),
        (tile_code.TileCode, "_lower", "last[x] == i and", "last[x] <= i + 1 and"),
        (tile_code.TileCode, "_lower", "np.full(length, trace.constants[x]", "np.full(length, 0.3"),
        (tile_code.TileCode, "_operand", "own is extent or own is Extent.COLUMN", "own is extent"),
        (tile_code.TileCode, "_how", "own is Extent.COLUMN or", ""),
        (tiles.TilePass, "__call__", "total /= divisor", "pass"),
        (replacement, "_with_totals", "call, operands=[rows, *step", "call, operands=[names[result], *step"),
    ],
    ids=[
        *("a barrier is missing", "a tail is left out", "a portion is left out", "a result overlaps an operand"),
        *("a constant is stale", "a number instead of a column", "columns like elements"),
        *("a mean is a sum", "a mean of all elements is a sum"),
    ],
)
def test_faults_are_found(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str) -> None:
    monkeypatch.setenv("BACKBURN_MACHINE_CODE", "0")  # machine code has other steps
    plant(monkeypatch, owner, name, old, new)
    assert first_difference() != ""


def test_a_pass_that_fails_names_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = bb.capture(lambda x: bb.exp(x - bb.mean(x, axis=1, keepdims=True)), state=False)
    x = bb.ones((40, 40), backend="capture(numpy)")
    for _ in range(3):
        captured(x)

    def full(shape: tuple[int, ...], dtype: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(tiles, "empty", full)
    with pytest.raises(MemoryError, match="exp") as caught:
        captured(x)
    assert "float32[40,40]" in str(caught.value)


def test_comparisons_of_another_pass_are_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Any, row: Any) -> Any:
        y = x * row
        above = y > bb.mean(y, axis=-1, keepdims=True)
        found = bb.sum(bb.where(above, y, 0.5), axis=0)  # another pass reads this
        return found, bb.where(above, bb.tanh(y - found), y * 2.0)

    inputs = [numbers(np.random.default_rng(2), shape, "float32", False) for shape in ((33, 40), (40,))]
    expected, _ = replayed(function, inputs, "capture(numpy, join=false)")
    with guarded():
        found, captured = replayed(function, inputs, "capture(numpy)")
    assert differences(found, expected, "float32") == ""
    assert captured.plan().count("greater(") == 2
    assert captured.plan().count("pass ") == 2
    plant(monkeypatch, partition.Partition, "_repeated", "[*one.operands], step", "[*one.operands[::-1]], step")
    found, _ = replayed(function, inputs, "capture(numpy)")
    assert differences(found, expected, "float32") != ""


def test_replays_are_bitwise_equal_on_any_number_of_threads() -> None:
    function, inputs = graph(3, (67, 64), "float32")
    found = []
    for count in (1, 2, 4):
        threads.set_num_threads(count)
        found.append([x.tobytes() for x in replayed(function, inputs, "capture(numpy)")[0]])
    assert found[0] == found[1] == found[2]


def test_updates_of_the_state_stay_in_place() -> None:
    """Passes write new memory, so an element-wise update does not become part of a pass with a reduction."""

    def step(state: Any, x: Any) -> Any:
        state["w"] = state["w"] * 0.9 + bb.tanh(x - bb.mean(x, axis=1, keepdims=True)) * 0.1
        return state, bb.sum(x * x, axis=0)

    train = bb.capture(step, on_fallback="error")
    state = {"w": bb.zeros((128, 128), backend="capture(numpy)")}
    x = bb.ones((128, 128), backend="capture(numpy)")
    for _ in range(4):
        state, _ = train(state, x)
    assert "# update in place: state 0" in str(train.program)


def test_sums_of_a_pass_are_exact() -> None:
    """Sums of long rows and columns are accumulated in float64 (decision 0034)."""
    rng = np.random.default_rng(7)
    x = (rng.random((4096, 512)) + 1.0).astype(np.float32)

    def function(x: Any) -> Any:
        y = x * 1.5
        return bb.sum(y, axis=0), bb.sum(y, axis=1), bb.sum(y)

    found, captured = replayed(function, [x], "capture(numpy)")
    assert " = pass of 4 calls" in str(captured.program)
    exact = (x * np.float32(1.5)).astype(np.float64)
    for made, axis in zip(found, (0, 1, None), strict=True):
        truth = exact.sum(axis=axis)
        assert np.max(np.abs(made - truth) / truth) <= 2.0**-22


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_passes_compute_variances_from_sums(dtype: str) -> None:
    rng = np.random.default_rng(8)
    given = (rng.normal(size=(1000, 300)) + 1000.0 * rng.random((1000, 1))).astype(dtype)

    def function(x: Any) -> Any:
        y = x * 1.5
        return [bb.var(y, axis=1, keepdims=True), bb.var(y, axis=0, correction=1)]

    for code in ("0", "1"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BACKBURN_MACHINE_CODE", code)
            found, captured = replayed(function, [given], "capture(numpy)")
        assert "no pass computes var" not in str(captured.plan())
        exact = (given * np.asarray(1.5, dtype)).astype(np.float64)
        for made, wanted in zip(found, [exact.var(axis=1, keepdims=True), exact.var(axis=0, ddof=1)], strict=True):
            assert made.shape == wanted.shape
            assert np.max(np.abs(made - wanted) / wanted) <= (2.0**-22 if dtype == "float32" else 1e-13)


def test_variances_that_overflow_are_infinite() -> None:
    x = np.random.default_rng(3).normal(size=(64, 128)).astype(np.float32)
    x[::2] = np.float32(1e30) + np.float32(1e28) * x[::2]

    def function(x: Any) -> Any:
        y = x * 1.5
        return [bb.var(y, axis=1), (y - bb.mean(y, axis=1, keepdims=True)) / bb.std(y, axis=1, keepdims=True)]

    (variances, standardized), captured = replayed(function, [x], "capture(numpy)")
    assert "no pass computes var" not in str(captured.plan())
    assert np.isinf(variances[::2]).all()
    assert np.isfinite(variances[1::2]).all()
    assert not standardized[::2].any()
    assert standardized[1::2].all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logsumexp_and_its_gradient_share_their_sums(dtype: str) -> None:
    rng = np.random.default_rng(10)
    given = (10.0 * rng.normal(size=(60, 96))).astype(dtype)
    given[0], given[1], given[2, 3], given[3, 5:7], given[4, 1], given[5, 0] = (
        1e3,
        -np.inf,
        np.inf,
        np.inf,
        np.nan,
        1e30,
    )
    weights = rng.normal(size=60).astype(dtype)

    def function(x: Any, weights: Any) -> Any:
        value, pull = bb.vjp(lambda x: bb.logsumexp(x * 0.5, axis=1), x)
        return [value, pull(weights)[0] * 2.0]

    (sums, slopes), captured = replayed(function, [given, weights], "autodiff(capture(numpy))")
    assert "logsumexp" not in (plan := str(captured.plan()))
    assert "softmax" not in plan
    y = given.astype(np.float64) * 0.5
    with np.errstate(invalid="ignore"):
        powers = np.exp(np.clip(y, -1e300, 1e300) - np.clip(y.max(axis=1, keepdims=True), -1e300, 1e300))
        shares = powers / powers.sum(axis=1, keepdims=True)
    shares[1] = 0.0  # of a row of -inf
    bound = 2.0**-21 if dtype == "float32" else 1e-14
    np.testing.assert_allclose(sums, np.log(powers.sum(axis=1)) + y.max(axis=1), rtol=bound)
    np.testing.assert_allclose(slopes, shares * weights[:, None], rtol=64 * bound, atol=1e-37)


@pytest.mark.parametrize("bound", ["arrays", "integers", "one"])
def test_a_softmax_of_other_bounds_is_not_that_of_a_gradient(bound: str) -> None:
    x = np.random.default_rng(12).normal(size=(64, 96)).astype(np.float32)
    ends: Any = {"arrays": np.linspace(0.1, 0.9, 96, dtype=np.float32), "integers": 1, "one": None}[bound]

    def function(x: Any) -> Any:
        low = None if ends is None else -bb.asarray(ends, backend=x.backend) if bound == "arrays" else -ends
        high = 0.5 if ends is None else bb.asarray(ends, backend=x.backend) if bound == "arrays" else ends
        return [bb.softmax(bb.clip(x, low, high), axis=1) * 2.0, bb.logsumexp(x, axis=1)]

    found, captured = replayed(function, [x], "capture(numpy)")
    assert "softmax" in str(captured.plan())
    y = np.clip(x.astype(np.float64), None if ends is None else -ends, 0.5 if ends is None else ends)
    np.testing.assert_allclose(found[0], 2.0 * np.exp(y) / np.exp(y).sum(axis=1, keepdims=True), rtol=1e-6)
    np.testing.assert_allclose(found[1], np.log(np.exp(x.astype(np.float64)).sum(axis=1)), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_standard_deviations_are_roots_of_variances(dtype: str) -> None:
    given = np.random.default_rng(9).normal(size=(70, 48)).astype(dtype)
    given[3] = 2.0

    def function(x: Any) -> Any:
        y = bb.tanh(x)
        return [
            *bb.value_and_grad(lambda y: bb.sum(bb.std(y, axis=1) * bb.mean(y, axis=1)))(y),
            bb.std(y, axis=1),
            bb.std(y, axis=0),
        ]

    backend = "autodiff(capture(numpy{}))"
    expected, _ = replayed(function, [given], backend.format(", join=false"))
    found, captured = replayed(function, [given], backend.format(""))
    assert found[2][3] == 0.0  # equal elements: the kernel has a rounding error, also in the gradient
    assert found[1][3].any() == 0
    expected[1][3], expected[2][3] = 0.0, 0.0
    assert differences(found, expected, dtype) == ""
    assert "std" not in str(captured.plan())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_powers_are_in_passes(dtype: str) -> None:
    assert {*fused.POWERS} == partition.EXPONENTS
    x = np.random.default_rng(6).normal(size=(40, 40)).astype(dtype) * 3.0
    x[0, :10] = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-30, -1e-30, 1e19, -1e19, 1.0)
    for exponent in sorted(partition.EXPONENTS):

        def function(x: Any, y: float = exponent) -> Any:
            rows = bb.sum(bb.abs(x[:, 10:]), axis=1, keepdims=True)
            return [(-x) ** y, rows**y * x]

        expected, _ = replayed(function, [x], "capture(numpy, join=false)")
        found, captured = replayed(function, [x], "capture(numpy)")
        assert "computes pow" not in str(captured.plan())
        ordinary = ~np.isnan(expected[0])
        np.testing.assert_array_equal(np.signbit(found[0])[ordinary], np.signbit(expected[0])[ordinary])
        for mine, theirs, close in zip(found, expected, (4, 20), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=close * float(np.finfo(dtype).eps))
    captured = bb.capture(lambda x: bb.tanh(x) ** 1.5 * 2.0, state=False)
    for _ in range(3):
        captured(bb.asarray(x, backend="capture(numpy)"))
    assert "its exponent is not a small integer or half" in str(captured.plan())


def masked(x: Any, whole: Any, rows: Any, columns: Any) -> Any:
    """A value with varying and constant masks, its gradient, and a masked result."""
    constant = bb.asarray(np.tril(np.ones(x.shape[-2:], bool)), backend=x.backend)

    def loss(x: Any) -> Any:
        y = bb.where(whole, x * 1.5, 0.25)
        z = bb.where(rows, bb.tanh(y), bb.where(columns, y * x, -y))
        shares = bb.softmax(bb.where(constant, z, -30.0), axis=-1)
        return bb.sum(shares * bb.where(bb.logical_and(whole, z > 0.25), z, 0.5))

    value, gradient = bb.value_and_grad(loss)(x)
    return [value, gradient, bb.where(whole, 1.0, bb.sum(gradient, axis=-1, keepdims=True))]


def replayed_masks(shape: tuple[int, int], dtype: str, join: str = "") -> tuple[list[Any], Any]:
    rng = np.random.default_rng(shape[0])
    inputs = [numbers(rng, shape, dtype, False)]
    inputs += [rng.random(s) < 0.6 for s in (shape, (shape[0], 1), shape[1:])]
    return replayed(masked, inputs, f"autodiff(capture(numpy{join}))")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_masks_are_read_by_passes(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    monkeypatch.setattr(limits, "MAX_ELEMENTS_ALONE", 0)
    for shape in ((40, 33), (67, 64), (7, 5)):
        expected, _ = replayed_masks(shape, dtype, ", join=false")
        bits = []
        for code in ("0", "1"):
            monkeypatch.setenv("BACKBURN_MACHINE_CODE", code)
            with guarded():
                found, captured = replayed_masks(shape, dtype)
            assert differences(found, expected, dtype) == "", shape
            bits.append([x.tobytes() for x in found])
        assert bits[0] == bits[1]
        apart = str(captured.plan()).partition("calls in no pass")[2]
        assert "where(" not in apart
        assert "softmax" not in apart
    expected, _ = replayed_masks((67, 64), dtype, ", join=false")
    plant(
        monkeypatch, replacement._Replacement, "_as_floats", "k.astype(v, dtype)", "k.astype(k.logical_not(v), dtype)"
    )
    found, _ = replayed_masks((67, 64), dtype)
    assert differences(found, expected, dtype) != ""


def test_formulas_read_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_ELEMENTS_ALONE", 0)
    rng = np.random.default_rng(1)
    x, mask = numbers(rng, (40, 33), "float32", False), rng.random((40, 33)) < 0.5

    def function(x: Any, given: Any) -> Any:
        constant = bb.asarray(mask, backend=x.backend)
        return [bb.where(constant, x, 0.5) + bb.tanh(x), bb.where(given, x * 2.0, bb.exp(-bb.abs(x)))]

    expected, _ = replayed(function, [x, ~mask], "capture(numpy, join=false)")
    for code in ("0", "1"):
        monkeypatch.setenv("BACKBURN_MACHINE_CODE", code)
        with guarded():
            found, captured = replayed(function, [x, ~mask], "capture(numpy)")
        assert differences(found, expected, "float32") == ""
        assert "bool" not in str(captured.plan()).partition("calls in no pass")[0]


def test_masks_with_recomputed_comparisons_and_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recomputed comparisons have their own operands."""
    monkeypatch.setattr(limits, "MAX_ELEMENTS_ALONE", 0)

    def power(x: Any, y: Any) -> Any:
        return bb.mean(bb.sin(bb.exp(bb.tanh(x)) ** y))

    def clipped(x: Any, y: Any) -> Any:
        return bb.mean(bb.sin(functional.softmin(functional.hardtanh(x * y), axis=1)))

    def second(x: Any, y: Any) -> Any:
        gradients = bb.grad(clipped, argnums=(0, 1))
        return bb.grad(lambda *given: sum(bb.mean(g**2.0) for g in gradients(*given)), argnums=(0, 1))(x, y)

    rng = np.random.default_rng(1)
    for function, shapes in ((bb.grad(power, argnums=(0, 1)), [(16, 6)] * 2), (second, [(16, 1), (1, 6)])):
        inputs = [rng.normal(size=s) for s in shapes]
        expected, _ = replayed(lambda *x: [*function(*x)], inputs, "autodiff(capture(numpy, join=false))")  # noqa: B023
        found, _ = replayed(lambda *x: [*function(*x)], inputs, "autodiff(capture(numpy))")  # noqa: B023
        assert differences(found, expected, "float64") == ""


def test_small_masks_and_those_of_updates_are_in_no_pass() -> None:
    expected, _ = replayed_masks((40, 33), "float32", ", join=false")
    found, captured = replayed_masks((40, 33), "float32")
    assert differences(found, expected, "float32") == ""
    assert "it reads a bool, which no group computes" in str(captured.plan())

    def step(state: Any, x: Any, mask: Any) -> Any:
        return {"w": bb.where(mask, bb.tanh(state["w"]) * 0.9 + x, 0.5)}, bb.sum(x)

    train = bb.capture(step, on_fallback="error")
    x = bb.ones((300, 300), backend="capture(numpy)")
    state = {"w": x * 0.0}
    for _ in range(4):
        state, _ = train(state, x, x > 0.5)
    assert "pass of" not in next(line for line in str(train.program).splitlines() if "where" in line)


def outer(row: Any, column: Any, x: Any) -> Any:
    """Products of rows and columns that two passes read, and that one pass computes for other calls."""
    y, z = row * column, row - column
    share = bb.exp(y - bb.max(y, axis=1, keepdims=True))
    centred = z - bb.mean(z, axis=0, keepdims=True)
    return [bb.sum(share, axis=1), bb.tanh(centred) * bb.sum(share, axis=0) + z, bb.tanh(x) + y]


def test_products_of_rows_and_columns_are_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    inputs = [numbers(rng, shape, "float32", False) for shape in ((70, 1), (1, 40), (70, 40))]
    expected, _ = replayed(outer, inputs, "capture(numpy, join=false)")
    with guarded():
        found, captured = replayed(outer, inputs, "capture(numpy)")
    assert differences(found, expected, "float32") == ""
    writes = [line for line in str(captured.plan()).splitlines() if line.startswith("  writes ")]
    assert sum(line.count("(full)") for line in writes) == 2  # the results
    plant(monkeypatch, replacement._Replacement, "_copy", "[*maker.operands]", "[*maker.operands[::-1]]")
    found, _ = replayed(outer, inputs, "capture(numpy)")
    assert differences(found, expected, "float32") != ""


def test_products_of_constants_are_recomputed() -> None:
    rng = np.random.default_rng(4)
    row, column, x = (numbers(rng, shape, "float32", False) for shape in ((70, 1), (1, 40), (70, 40)))
    found = []
    for spec in ("capture(numpy)", "capture(numpy, join=false)"):
        constant = bb.asarray(row, backend=spec)
        found.append(replayed(lambda column, x, row=constant: outer(row, column, x), [column, x], spec)[0])
    assert differences(found[0], found[1], "float32") == ""


def test_a_value_is_kept_if_no_pass_recomputes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    inputs = [numbers(rng, shape, "float32", False) for shape in ((70, 1), (1, 40), (70, 40))]
    expected, _ = replayed(outer, inputs, "capture(numpy, join=false)")
    made = tiles.compile_plan

    def none(plan: Plan, twin: Any) -> Any:
        return None if any(step.call.operation == "tanh" for step in plan.steps) else made(plan, twin)

    steps = [partial(fuse_calls, compile=none, knows=tile_code.knows) if one.__class__ is partial and
             one.func is fuse_calls else one for one in compiling.PASSES]  # fmt: skip
    monkeypatch.setattr(compiling, "PASSES", tuple(steps))
    found, captured = replayed(outer, inputs, "capture(numpy)")
    assert differences(found, expected, "float32") == ""
    assert "the backend has no kernels for the pass" in str(captured.plan())


def heads(x: Any, w: Any, b: Any, labels: Any) -> Any:
    """Norms, softmax and losses of rows, with gradients."""

    def loss(x: Any, w: Any, b: Any) -> Any:
        y = functional.layer_norm(x * 0.5 + b, w, b)
        z = bb.log(bb.softmax(y, axis=-1) + 0.1) + bb.log_softmax(functional.rms_norm(y, w), axis=-1)
        picked = bb.take_along_axis(bb.tanh(z), bb.reshape(labels, (-1, 1)), axis=-1)
        return bb.sum(picked) + bb.sum(functional.cross_entropy(z * 2.0, labels, reduction="none") * 0.3)

    return bb.value_and_grad(loss, argnums=(0, 1, 2))(x, w, b)


def replayed_heads(shape: tuple[int, int], dtype: str, join: str = "") -> tuple[list[Any], Any]:
    rng = np.random.default_rng(shape[0])
    backend = f"autodiff(capture(numpy{join}))"
    given = [bb.asarray(rng.standard_normal(s).astype(dtype), backend=backend) for s in (shape, shape[1:], shape[1:])]
    labels = bb.asarray(rng.integers(0, shape[1], shape[0]), backend=backend)
    captured = bb.capture(heads, state=False, on_fallback="error")
    value, grads = [captured(*given, labels) for _ in range(3)][-1]
    return [x.numpy() for x in (value, *grads)], captured


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_passes_compute_norms_and_losses_of_rows(dtype: str) -> None:
    for shape in ((7, 2), (40, 33), (67, 64), (130, 31), (3, 300)):
        expected, _ = replayed_heads(shape, dtype, ", join=false")
        with guarded():
            found, captured = replayed_heads(shape, dtype)
        assert differences(found, expected, dtype) == "", shape
        for one in ("layer_norm_backward", "softmax_backward", "take_along_axis_backward", "cross_entropy_backward"):
            assert f"{one}(" in captured.plan().partition("calls in no pass")[0], one


@pytest.mark.parametrize("most", [0, 1 << 20])
def test_indices_out_of_range_name_the_call(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """In a separate pass, and in a native program."""
    monkeypatch.setattr(tuning, "MOST_ELEMENTS_OF_ONE_PORTION", most)
    picks = {
        "take_along_axis": lambda x, at: bb.take_along_axis(x * 2.0, bb.reshape(at, (-1, 1)), axis=1),
        "label_cross_entropy": lambda x, at: bb.grad(lambda x: bb.sum(functional.cross_entropy(x * 2.0, at)))(x),
    }
    for name, pick in picks.items():
        captured = bb.capture(pick, state=False)
        x = bb.ones((40, 40), backend="autodiff(capture(numpy))")
        for _ in range(3):
            captured(x, bb.asarray(np.arange(40) - 1 * (name[0] == "t"), backend="autodiff(capture(numpy))"))
        assert (" = native program of " if most else " = pass of ") in str(captured.program)
        with pytest.raises(OutOfRangeError, match=name):
            captured(x, bb.asarray(np.arange(40) + 1, backend="autodiff(capture(numpy))"))


def test_the_plan_lists_every_call() -> None:
    def function(x: Any, bias: Any) -> Any:
        y = bb.tanh(x + bias)
        return y, bb.sum(y, axis=0), bb.sort(y, axis=1)

    captured = bb.capture(function, state=False)
    assert captured.plan() is None
    given = [bb.ones(shape, backend="capture(numpy)") for shape in ((40, 40), (40,))]
    for _ in range(3):
        captured(*given)
    lines = str(captured.plan()).splitlines()
    assert lines[0] == "pass 0: 40 rows of 40 float32, 3 calls"
    assert lines[1] == "  reads v0 (full), v1 (a number for each column)"
    assert [line.split(" = ")[1] for line in lines[2:5]] == [
        "add(v0, v1)",
        "tanh(v2)",
        "sum(v3, axis=(0,), keepdims=False)",
    ]
    assert lines[5] == "  writes v3 (full), v4 (a number for each column)"
    assert lines[6].startswith("  6.6 kB read, 6.6 kB written: 13.1 kB in place of")
    assert lines[7].startswith("  computed by ")
    assert lines[9].endswith("= sort(v3, axis=1, descending=False): by itself; no pass computes sort")
    assert "join=false" not in str(captured.plan())


#: Faults of a layout: the method, the source text that is replaced, and its replacement.
FAULTS = {
    "a tail is left out": ("_lower", "space.rows, width", "space.rows // self._tall * self._tall, width"),
    "a lifetime is too short": ("_lower", "last[x] == i and", "last[x] <= i + 1 and"),
    "a constant is stale": ("_lower", "np.full(length, trace.constants[x]", "np.full(length, 0.3"),
    "values overlap": ("_lower", "room += arrays[extent] + LINE", "room += arrays[extent] // 2"),
    "a stride is wrong": ("_lower", "else self._row(value))", "else self._row(value) and size)"),
    "the scratch is too small": ("_lower", "self.room = -(-room // 4096)", "self.room = (room // 8192)"),
    "operands are exchanged": ("_lower", "for x in given)]", "for x in given[::-1])]"),
    "columns like elements": ("_how", "own is Extent.COLUMN or", ""),
    "sums of columns advance by rows": ("_lower", "SUMS if is_sums", "8 if is_sums"),
    "portions overlap": ("_lower", "self._tall, self._portion, size", "self._tall, self._portion // 2, size"),
    "sums overlap other values": ("_lower", "where += [Place(-1, room, 0)", "where += [Place(-1, 0, 0)"),
    "arrays are in another order": ("_lower", "ARRAYS_ALONG_ROWS[kernel][1]", "0"),
    "a norm has another eps": ("_lower", "np.float64(eps)", "np.float64(eps * 2)"),
    "indices are of another size": ("_lower", "Place(i, 0, INDEX.itemsize)", "Place(i, 0, 4)"),
    "a portion is empty": ("__init__", "-(-space.rows // self._portion)", "space.rows // self._portion + 1"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_verifier_refuses_faults(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setenv("BACKBURN_MACHINE_CODE", "0")  # machine code has other steps
    plant(monkeypatch, tile_code.TileCode, *FAULTS[fault])

    def record() -> None:
        for seed, shape, dtype in cases(30):
            function, inputs = graph(seed, shape, dtype)
            captured = bb.capture(function, state=False, on_fallback="error")
            for _ in range(2):
                captured(*(bb.asarray(x, backend="capture(numpy)") for x in inputs))
        replayed_heads((67, 64), "float32")

    with pytest.raises(CaptureError, match=r"the pass that computes .* was planned wrong"):
        record()


#: Operations without a kernel for a dtype.
UNKNOWN = {(name, "float64") for name in ("tanh", "tanh_slope", "expm1", "sinh", "cosh")}
#: Options of operations.
ATTRIBUTES: dict[str, dict[str, Any]] = {"gelu": {"approximate": "tanh"}, "gelu_backward": {"approximate": "none"}}


def planned(name: str, extents: tuple[Extent, ...], dtype: str) -> tuple[list[Any], list[Any]]:
    """An operation between two others in a pass, and the backend's result, for operands of these extents."""
    k, rng, shape = BASE, np.random.default_rng(1), (19, 37)
    space = Space(*shape, getattr(bb, dtype))
    shapes = {Extent.FULL: shape, Extent.ROW: (shape[0], 1), Extent.COLUMN: shape[1:], Extent.ONE: ()}
    is_logical = name.startswith("logical")
    program, steps, given, values = Program([], [], [], []), list[Step](), list[Any](), list[Any]()

    def step(operation: str, extent: Extent, operands: list[Operand | float], arrays: list[Any], **given: Any) -> Any:
        made = getattr(k, operation)(*arrays, **given)
        kind = bb.bool if made.dtype == bool else space.dtype
        v = program.variable(shapes[extent] if made.shape == shapes[extent] else tuple(made.shape), kind)
        call = Call(operation, getattr(k, operation), [getattr(x, "value", x) for x in operands], given, v)
        steps.append(Step(call, extent, operands))
        return Operand(v, extent), made

    for i, extent in enumerate(extents):
        # A gradient of infinity times a slope of 0 differs between a kernel and a body.
        x = numbers(rng, shapes[extent], dtype, special=not name.endswith(("backward", "slope")))
        v = program.variable(x.shape, space.dtype)
        given.append((v, x))
        operand, array = Operand(v, extent), x
        if extent in (Extent.FULL, Extent.ROW):
            operand, array = step("neg", extent, [operand], [array])
            if is_logical or (name == "where" and i == 0) or (name == "masked_fill" and i == 1):
                operand, array = step("less", extent, [operand, 0.25], [array, 0.25])
        if name == "tanh_slope" and i == 2:  # this operand is tanh of the previous one
            operand, array = step("tanh", extent, [values[1][0]], [values[1][1]])
        values.append((operand, array))
    widest = Extent.FULL if any(x in (Extent.FULL, Extent.COLUMN) for x in extents) else Extent.ROW
    options = {"dtype": space.dtype} if name == "astype" else ATTRIBUTES.get(name, {})
    operand, made = step(name, widest, [x for x, _ in values], [x for _, x in values], **options)
    if made.dtype == bool:
        operand, made = step("astype", widest, [operand], [made], dtype=space.dtype)
    _, last = step("maximum", widest, [operand, -30.0], [made, -30.0])
    plan = Plan(space, steps, [steps[-1].results[0]])
    found = tiles.compile_plan(plan)
    assert found is not None
    held = {id(v): x for v, x in given}
    return found(*(held[id(x.value)] for x in plan.inputs)), [np.broadcast_to(last, found.code.shapes[0][0])]


@pytest.mark.parametrize("name", sorted((partition.FUSABLE | partition.OF_ROWS) - {"pow"}))
def test_each_operation_in_a_pass_equals_the_backend_s(name: str) -> None:
    count = len(OPERATIONS[name].operands)
    made_inside = {"where": (0,), "masked_fill": (1,)}.get(name, range(count) if name.startswith("logical") else ())
    tried = 0
    for extents in product((Extent.FULL, Extent.ROW, Extent.COLUMN, Extent.ONE), repeat=count):
        inside = [extents[i] in (Extent.FULL, Extent.ROW) for i in made_inside]
        if not all(inside) or not {Extent.FULL, Extent.ROW} & {*extents}:
            continue
        if name.endswith(("backward", "slope")) and len({*extents}) > 1:  # their operands have equal shapes
            continue
        if Extent.FULL not in extents and Extent.COLUMN in extents and Extent.ROW not in extents:
            continue
        for dtype in ("float32", "float64"):
            if not tile_code.knows("tanh" if name == "tanh_slope" else name, getattr(bb, dtype)):
                assert (name, dtype) in UNKNOWN
                continue
            mine, theirs = planned(name, extents, dtype)
            assert differences(mine, theirs, dtype) == "", (extents, dtype)
            tried += 1
    assert tried >= 1
