"""Passes over blocks of rows: operands that broadcast along several axes, rows of several axes, and planted faults."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np
import pytest
from tests.backends.numpy.test_passes import BINARY, UNARY, differences, numbers, replayed
from tests.helpers.guards import guarded
from tests.helpers.kernels import needs_kernels
from tests.helpers.planting import plant

import backburn as bb
from backburn.programs.fusion import limits, partition, replacement
from backburn.programs.fusion.plan import MAX_TERMS, Extent, Repeat, extent_in
from backburn_numpy import tuning
from backburn_numpy.programs import tile_code, verifier
from backburn_numpy.runtime import threads

pytestmark = needs_kernels

SIDES = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use passes of any size, in several portions and tiles, and rows of several short axes."""
    monkeypatch.setattr(limits, "MIN_ELEMENTS_OF_ROWS", 2)
    monkeypatch.setattr(limits, "MIN_ELEMENTS_OF_BLOCK", 1)
    monkeypatch.setattr(limits, "MIN_WIDTH", 8)
    monkeypatch.setattr(limits, "MAX_SHORT_ROWS", 12)
    monkeypatch.setattr(limits, "MAX_ELEMENTS_ALONE", 0)
    monkeypatch.setattr(tuning, "PASS_TILE_BYTES", 1 << 10)
    monkeypatch.setattr(tuning, "ELEMENTS_PER_TASK", 256)
    monkeypatch.setattr(tuning, "MOST_ELEMENTS_OF_ONE_PORTION", 0)
    before = threads.num_threads()
    threads.set_num_threads(2)
    yield
    threads.set_num_threads(before)


def test_rows_of_a_repeated_array_are_those_of_numpy() -> None:
    draw, tried = random.Random(1), 0
    for _ in range(2000):
        whole = tuple(draw.choice(SIDES) for _ in range(draw.randint(2, 5)))
        depth = draw.randint(1, len(whole) - 1)
        shape = tuple(n if draw.random() < 0.5 else 1 for n in whole)
        found = extent_in(shape, whole, depth)
        rows = np.broadcast_to(np.arange(prod(shape[:-depth])).reshape(shape[:-depth]), whole[:-depth]).reshape(-1)
        if found is None:
            repeat = Repeat(shape[:-depth], whole[:-depth])
            in_part = shape[-depth:] != whole[-depth:] and prod(shape[-depth:]) != 1
            assert in_part or len(repeat.terms) > MAX_TERMS
            continue
        extent, repeat_or_none = found
        is_element = prod(shape[-depth:]) == prod(whole[-depth:]) and prod(shape) > 1
        if repeat_or_none is None:
            moves = bool(rows.any())
            assert extent is {
                (True, True): Extent.FULL, (True, False): Extent.COLUMN, (False, True): Extent.ROW,
                (False, False): Extent.ONE,
            }[is_element, moves] or prod(whole[:-depth]) == 1 or prod(whole[-depth:]) == 1  # fmt: skip
            continue
        r = np.arange(len(rows))
        terms = repeat_or_none.terms
        assert 1 <= len(terms) <= MAX_TERMS
        assert np.array_equal(sum(r // each % count * stride for each, count, stride in terms), rows)
        steps = np.diff(rows.reshape(-1, repeat_or_none.block), axis=1)
        assert (steps == (extent in (Extent.FULL, Extent.ROW))).all()
        tried += 1
    assert tried > 300


def graph(seed: int, dtype: str) -> tuple[Callable[..., Any], list[Any]]:
    """A function of 2 to 16 operations on arrays of three to five axes and others that broadcast to them."""
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    whole = tuple(draw.choice(SIDES) for _ in range(draw.choice((3, 3, 4, 4, 5))))
    special = draw.random() < 0.3
    shapes = [whole, whole]
    for _ in range(4):
        shape = tuple(n if draw.random() < 0.5 else 1 for n in whole)
        shapes.append(shape[draw.randrange(len(shape)) if draw.random() < 0.3 else 0 :])
    inputs = [numbers(rng, shape, dtype, special) for shape in shapes]
    plan = [
        (draw.random(), draw.randrange(1 << 30), draw.randrange(1 << 30), draw.randrange(1 << 30))
        for _ in range(draw.randint(2, 16))
    ]
    depths = [draw.sample(range(len(whole)), draw.randint(1, len(whole))) for _ in plan]

    def function(*given: Any) -> list[Any]:
        values, out = [*given[:2]], []
        for (kind, a, b, c), axes in zip(plan, depths, strict=True):
            x, other = values[-1 - a % min(3, len(values))], given[2 + b % 4]
            if kind < 0.25:
                made = UNARY[c % len(UNARY)](x)
            elif kind < 0.35:
                made = BINARY[c % len(BINARY)](x, values[b % len(values)])
            elif kind < 0.75:
                made = BINARY[(c >> 1) % len(BINARY)](*((x, other) if c & 1 else (other, x)))
            elif kind < 0.8:
                made = bb.where(other > 0.1, x, x * 0.5)
            elif kind < 0.85:
                made = BINARY[c % len(BINARY)](x, bb.tanh(other))
            elif kind < 0.9:
                made = x - bb.mean(x, axis=tuple(axes), keepdims=True)
            else:
                out.append((bb.sum, bb.mean, bb.max, bb.min)[b % 4](x, axis=tuple(axes), keepdims=bool(c & 1)))
                continue
            values.append(bb.tanh(made) if len(values) % 3 == 0 else made)
        return [*out, values[-1]]

    return function, inputs


def first_difference(count: int) -> tuple[str, int]:
    """The first difference between a random graph and its single calls, or the error; and how many have blocks."""
    blocks = 0
    for seed in range(count):
        dtype = ("float32", "float32", "float64")[seed % 3]
        function, inputs = graph(seed, dtype)
        expected, _ = replayed(function, inputs, "capture(numpy, join=false)")
        try:
            with guarded():
                found, captured = replayed(function, inputs, "capture(numpy)")
        except Exception as error:  # including MemoryFault
            return f"{seed}: {type(error).__name__}: {error}", blocks
        if words := differences(found, expected, dtype):
            return f"{seed} {dtype}: {words}", blocks
        blocks += " in blocks of " in str(captured.plan())
    return "", blocks


@pytest.mark.parametrize("code", ["0", "1"])
def test_random_graphs_equal_single_calls(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setenv("BACKBURN_MACHINE_CODE", code)
    words, blocks = first_difference(120)
    assert words == ""
    assert blocks > 30


def test_generators_and_threads_give_equal_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(40):
        function, inputs = graph(seed, ("float32", "float64")[seed % 2])
        results = []
        for code, count in (("0", 1), ("1", 1), ("1", 2), ("1", 4)):
            monkeypatch.setenv("BACKBURN_MACHINE_CODE", code)
            threads.set_num_threads(count)
            results.append(replayed(function, inputs, "capture(numpy)")[0])
        for found in results[1:]:
            for x, y in zip(found, results[0], strict=True):
                np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_floats_are_rounded_as_by_single_calls(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    monkeypatch.setattr(limits, "MIN_ELEMENTS", 2)
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal(shape) for shape in ((3, 20, 4, 16), (20, 1, 16), (3, 1, 4, 1), (4, 16))]

    def function(x: Any, a: Any, b: Any, c: Any) -> Any:
        return [bb.tanh(x * a + b) * c - a]

    found = []
    for backend in ("capture(numpy)", "capture(numpy, join=false)"):
        captured = bb.capture(function, state=False, on_fallback="error")
        given = [bb.asarray(x, dtype=getattr(bb, dtype), backend=backend) for x in arrays]
        found.append([captured(*given)[0].numpy() for _ in range(3)][-1])
    assert np.array_equal(*found)


@pytest.mark.parametrize(
    ("owner", "name", "old", "new"),
    [
        (tile_code.TileCode, "_lower", "numbers += [self._block,", "numbers += [self._plan.space.rows,"),
        (tile_code.TileCode, "__init__", "self._block = plan.block or", "self._block = plan.block * 2 or"),
        (tile_code.TileCode, "_lower", "self._bytes_of_row(x) if repeat", "self.dtype.itemsize if repeat"),
        (tile_code, "row_terms", "else repeat.terms", "else repeat.terms[:1]"),
        (tile_code.TileCode, "_lower", "self._repeats.get(x))", "None)"),
        (replacement, "_with_totals", "for i in axes", "for i in axes[-depth:]"),
        (partition.Partition, "_operand", "return Operand(x, extent, repeat)", "return Operand(x, extent)"),
    ],
    ids=[
        *("tiles cross blocks", "blocks are too large", "a stride of one element", "a term is missing"),
        *("no terms", "a mean of several rows", "nothing is repeated"),
    ],
)
def test_faults_are_found(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str) -> None:
    plant(monkeypatch, owner, name, old, new)
    assert first_difference(80)[0] != ""


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("_lower", "numbers += [self._block,", "numbers += [self._plan.space.rows,"),
        ("_lower", "self._bytes_of_row(x) if repeat", "self.dtype.itemsize if repeat"),
        ("_lower", "self._repeats.get(x))", "None)"),
        ("_finished", "ABSENT, self._terms,", "ABSENT, np.copy(self._terms),"),
    ],
    ids=["tiles cross blocks", "a stride of one element", "no terms", "other terms"],
)
def test_the_verifier_refuses_faults(monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str) -> None:
    monkeypatch.setattr(verifier, "VERIFIES", True)
    plant(monkeypatch, tile_code.TileCode, name, old, new)
    assert "was planned wrong" in first_difference(80)[0]


def test_norms_of_channels_and_modulation_are_one_pass() -> None:
    """The calls of an instance norm, and those of a modulated layer norm, with what a plan says about them."""

    def norm(x: Any, scale: Any) -> Any:
        centre = x - bb.mean(x, axis=(2, 3), keepdims=True)
        return centre * bb.rsqrt(bb.var(x, axis=(2, 3), keepdims=True) + 1e-5) * scale

    def modulated(x: Any, scale: Any, shift: Any) -> Any:
        return bb.nn.functional.layer_norm(x) * (1.0 + scale[:, None]) + shift[:, None]

    rng = np.random.default_rng(0)
    for function, shapes, words in (
        (norm, ((4, 6, 7, 5), (6, 1, 1)), "a number for each row in blocks of 6 rows, 1 x 6 to 4 x 6"),
        (modulated, ((4, 30, 40), (4, 40), (4, 40)), "a number for each column in blocks of 30 rows, 4 x 1 to 4 x 30"),
    ):
        arrays = [rng.standard_normal(shape).astype("float32") for shape in shapes]
        found, captured = replayed(lambda *given, f=function: [f(*given)], arrays, "capture(numpy)")
        expected = function(*(bb.asarray(x, backend="numpy") for x in arrays)).numpy()
        np.testing.assert_allclose(found[0], expected, rtol=2e-5, atol=2e-5)
        plan = str(captured.plan())
        assert plan.count("\npass ") == 0
        assert plan.startswith("pass 0: ")
        assert words in plan


def test_small_blocks_end_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MIN_ELEMENTS_OF_BLOCK", 1 << 10)
    x, y = (np.ones(shape, "float32") for shape in ((40, 3, 64), (3, 64)))
    _, captured = replayed(lambda x, y: [bb.tanh(x * y)], [x, y], "capture(numpy)")
    assert "an operand broadcasts to few rows at a time" in str(captured.plan())
