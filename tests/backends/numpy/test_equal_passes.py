"""Equal passes of a program share their code: random loops compared with passes that share nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.helpers.kernels import needs_kernels
from tests.helpers.planting import plant

import backburn as bb
from backburn.base.errors import CaptureError
from backburn.nn import functional
from backburn.programs.fusion import limits, plan, replacement
from backburn_numpy.programs import tile_code, tiles

pytestmark = needs_kernels

#: Groups of calls that differ little: in a number, its sign or class, an option, the order or number of operands, how
#: an operand varies, or in what is read later. The operands are two matrices, a row and a column.
GROUPS: tuple[Callable[..., Any], ...] = (
    lambda x, y, row, column: bb.tanh(x * 0.5 + y),
    lambda x, y, row, column: bb.tanh(x * 0.25 + y),
    lambda x, y, row, column: bb.tanh(x * 0.5 - y),
    lambda x, y, row, column: bb.tanh(y - x * 0.5),
    lambda x, y, row, column: bb.tanh(x * 0.5 + x),
    lambda x, y, row, column: bb.tanh(x * 0.5 + row),
    lambda x, y, row, column: bb.tanh(x * 0.5 + column),
    lambda x, y, row, column: 1.0 / (bb.maximum(x, 0.0) * 0.0 + bb.tanh(x * y) * 0.0 - 0.0),
    lambda x, y, row, column: 1.0 / (bb.maximum(x, 0.0) * -0.0 + bb.tanh(x * y) * -0.0 - 0.0),
    lambda x, y, row, column: bb.clip(x + y, -0.5, 0.75) * 2.0,
    lambda x, y, row, column: bb.clip(x + y, -0.75, 0.5) * 2.0,
    lambda x, y, row, column: functional.gelu(x + y),
    lambda x, y, row, column: functional.gelu(x + y, approximate="tanh"),
    lambda x, y, row, column: functional.layer_norm(x + y, eps=1e-5),
    lambda x, y, row, column: functional.layer_norm(x + y, eps=1e-2),
    lambda x, y, row, column: bb.softmax(x * y, axis=-1),
    lambda x, y, row, column: bb.sum(x * y, axis=-1, keepdims=True) + x,
    lambda x, y, row, column: bb.mean(x * y, axis=-1, keepdims=True) + x,
    lambda x, y, row, column: x + bb.sum(x * y, axis=0),
    lambda x, y, row, column: x + bb.mean(x * y, axis=0),
)


def loop(seed: int, constants: list[Any]) -> Callable[..., Any]:
    """A function that applies groups one after the other, with a call between them that is in no pass."""
    draw = random.Random(seed)
    kinds = draw.sample(range(len(GROUPS)), 4)
    plans = [(draw.choice(kinds), draw.choice((None, None, 0, 1)), draw.random() < 0.3) for _ in range(12)]

    def function(x: Any, y: Any, row: Any, rows: Any) -> list[Any]:
        # The elements of a constant with a single value are not read.
        same = bb.broadcast_to(bb.asarray(0.5, dtype=x.dtype, backend=x.backend), x.shape)
        whole, of_columns = (bb.asarray(c, backend=x.backend) for c in constants)
        out, column = [], bb.reshape(rows, (-1, 1))
        for kind, constant, is_kept in plans:
            other = y if constant is None else (same, whole)[constant]
            inside = x * 0.75 + other
            made = GROUPS[kind](inside, other, of_columns if constant else row, column)
            if is_kept:
                out.append(inside)
            x = bb.flip(bb.clip(made, -4.0, 4.0), axis=0)
        return [*out, x]

    return function


def replayed(seed: int, dtype: str) -> list[Any]:
    """The results of a replay."""
    rng = np.random.default_rng(seed)
    shape = [(8, 33), (40, 40), (3, 300)][seed % 3]
    inputs = [rng.standard_normal(s).astype(dtype) for s in (shape, shape, shape[-1:], shape[:1])]
    constants = [rng.standard_normal(s).astype(dtype) for s in (shape, shape[-1:])]
    captured = bb.capture(loop(seed, constants), state=False, on_fallback="error")
    found = [captured(*(bb.asarray(x, backend="capture(numpy)") for x in inputs)) for _ in range(3)][-1]
    return [x.numpy() for x in found]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Passes of small arrays, and the plans for which code was made."""
    monkeypatch.setattr(limits, "MIN_ELEMENTS_OF_ROWS", 1)
    found: list[Any] = []

    class Counted(tile_code.TileCode):
        def __init__(self, plan: Any) -> None:
            found.append(plan)
            super().__init__(plan)

    monkeypatch.setattr(tiles, "TileCode", Counted)
    return found


def difference(made: list[Any], count: int) -> str:
    """The first loop whose results differ from those of passes without shared code; empty if none does."""
    shared = separate = 0
    for seed in range(count):
        dtype = ("float32", "float64", "float16")[seed % 3 if seed % 4 else 0]
        made.clear()
        found = replayed(seed, dtype)
        shared += len(made)
        made.clear()
        with pytest.MonkeyPatch.context() as patch:
            plant(patch, replacement._Replacement, "_pass_of", "self._twins.get(key)", "None")
            expected = replayed(seed, dtype)
        separate += len(made)
        for i, (x, y) in enumerate(zip(found, expected, strict=True)):
            if not np.array_equal(x, y, equal_nan=True) or not np.array_equal(np.signbit(x), np.signbit(y)):
                return f"seed {seed}, {dtype}: result {i}"
    assert shared < 0.8 * separate
    return ""


def test_loops_equal_those_of_passes_without_shared_code(made: list[Any]) -> None:
    assert difference(made, 60) == ""


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("key_of", "_fixed(x)", "0"),
        ("_fixed", "repr(x) if isinstance(x, float) else x", "x"),
        ("key_of", "(places[id(x.value)], *x[1:]) if", "places[id(x.value)] if"),
        ("key_of", "(places[id(x.value)], *x[1:]) if", "x[1:] if"),
        ("key_of", "(*found, *(places[id(v)] for v in plan.outputs))", "(*found,)"),
        ("key_of", "found += (step.call.operation, step.extent)", "found.append(step.extent)"),
        ("_kind", "tuple(x.strides) if", "() if"),
    ],
    ids=[
        *("numbers are left out", "zeros have no sign", "extents are left out", "operands are left out"),
        *("outputs are left out", "operations are left out", "strides are left out"),
    ],
)
def test_faults_of_keys_are_found(
    monkeypatch: pytest.MonkeyPatch, made: list[Any], name: str, old: str, new: str
) -> None:
    plant(monkeypatch, replacement if name == "key_of" else plan, name, old, new)
    try:
        found = difference(made, 120)
    except (CaptureError, ValueError) as error:  # refused by the verifier, or of other results
        found = repr(error)
    assert found != ""


def test_equal_passes_of_a_loop_are_compiled_once(made: list[Any]) -> None:
    def step(x: Any, w: Any) -> Any:
        h = x
        for _ in range(50):
            h = bb.tanh(h @ w + x)
        return bb.mean(h)

    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((32, 64)).astype("float32"), rng.standard_normal((64, 64)).astype("float32") / 8
    captured = bb.capture(step, state=False)
    found = [captured(*(bb.asarray(v, backend="capture(numpy)") for v in (x, w))).item() for _ in range(3)]
    assert len(made) == 2  # the last one computes the mean, too
    assert found[0] == pytest.approx(found[2], rel=1e-5, abs=1e-7)
    assert str(captured.plan()).count("tanh(") == 50
