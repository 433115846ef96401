"""Passes of 16-bit floats, with and without machine code: every call is rounded as when called singly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.backends.numpy.test_machine_code import needs_code
from tests.helpers.kernels import needs_kernels
from tests.helpers.planting import plant

import backburn as bb
from backburn.base.errors import CaptureError
from backburn.nn import functional
from backburn_numpy import tuning
from backburn_numpy.elementwise import fused
from backburn_numpy.machine_code import functions, loops, memory
from backburn_numpy.programs import tile_code

pytestmark = needs_kernels

DTYPES = [bb.float16, bb.bfloat16]


@pytest.fixture(autouse=True)
def _tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Divide small arrays into several portions and tiles."""
    monkeypatch.setattr(tuning, "PASS_TILE_BYTES", 1 << 11)
    monkeypatch.setattr(tuning, "ELEMENTS_PER_TASK", 256)
    fused._program.cache_clear()
    yield
    fused._program.cache_clear()


def every(dtype: Any) -> Any:
    """Every value of a 16-bit dtype."""
    return np.arange(1 << 16, dtype=np.uint16).view(dtype.dtype)


def same(x: Any, y: Any) -> bool:
    """Whether arrays are bitwise equal, up to the bits of NaN."""
    wide = [np.asarray(a, np.float32) for a in (x, y)]
    return bool(((x.view(np.uint16) == y.view(np.uint16)) | (np.isnan(wide[0]) & np.isnan(wide[1]))).all())


def replayed(function: Callable[..., Any], inputs: list[Any], spec: str) -> tuple[list[Any], str]:
    """The results of a replay as arrays, and the plan."""
    recorded = bb.capture(lambda *x: function(*x), state=False, on_fallback="error")
    given = [bb.asarray(x, backend=spec) for x in inputs]
    found = [recorded(*given) for _ in range(3)][-1]
    return [x.numpy() for x in (found if isinstance(found, list | tuple) else [found])], str(recorded.plan())


def all_ways(function: Callable[..., Any], inputs: list[Any], monkeypatch: pytest.MonkeyPatch) -> str:
    """The plan with machine code, after checking that kernels and single calls give bitwise equal results."""
    wanted, plan = replayed(function, inputs, "capture(numpy, join=false)")
    found, plan = replayed(function, inputs, "capture(numpy)")
    assert all(map(same, found, wanted))
    monkeypatch.setenv("BACKBURN_MACHINE_CODE", "0")
    by_kernels, without = replayed(function, inputs, "capture(numpy)")
    monkeypatch.delenv("BACKBURN_MACHINE_CODE")
    assert "machine code" not in without
    assert all(map(same, by_kernels, wanted))
    return plan


#: Expressions with the operations of such passes.
OF_ONE: dict[str, Callable[[Any], Any]] = {
    **{name: getattr(bb, name) for name in (
        "negative", "abs", "sign", "floor", "round", "square", "sqrt", "reciprocal", "exp", "tanh", "sigmoid",
    )},
    **{name: getattr(functional, name) for name in ("relu", "silu", "softplus", "gelu")},
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"), "log_sigmoid": functional.log_sigmoid,
    "clip": lambda x: bb.clip(x, -1.7, 2.3), "a number": lambda x: x * 1.7 + 0.3, "a quotient": lambda x: 1.7 / x,
    "above": lambda x: bb.maximum(x, 0.3), "a mask": lambda x: bb.where(x > 0.3, x * 3.0, -x),
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OF_ONE)
def test_all_values_equal_single_calls_bitwise(name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Any) -> Any:
        y = OF_ONE[name](x)
        return y, -y

    plan = all_ways(function, [every(dtype)], monkeypatch)
    assert "pass" in plan


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(70, 513), (37_001,), (3, 70_001)])
def test_random_operands_equal_single_calls_bitwise(
    shape: tuple[int, ...], dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    x, y = (rng.choice(every(dtype), shape) for _ in range(2))

    def function(x: Any, y: Any) -> Any:
        z = x * y + 0.1
        return [z - x / y, bb.where(z > y, bb.exp(-bb.abs(z)) * y, bb.maximum(z, x)), bb.tanh(z) + 1.0]

    assert " computed by machine code" in all_ways(function, [x, y], monkeypatch) or memory.missing()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_equal_single_calls_bitwise(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    x, grad = (rng.standard_normal((300, 511)).astype(dtype.dtype) for _ in range(2))
    bias, row = rng.standard_normal(511).astype(dtype.dtype), rng.standard_normal((300, 1)).astype(dtype.dtype)

    def function(x: Any, bias: Any, row: Any, grad: Any) -> Any:
        def layer(x: Any, bias: Any) -> Any:
            return functional.silu(functional.gelu(x + bias) * row - functional.relu(x) * bb.sigmoid(x))

        value, pull = bb.vjp(layer, x, bias)
        return [value, *pull(grad)]

    wanted, _ = replayed(function, [x, bias, row, grad], "autodiff(capture(numpy, join=false))")
    found, plan = replayed(function, [x, bias, row, grad], "autodiff(capture(numpy))")
    assert "pass" in plan
    assert all(map(same, found, wanted))


def test_intermediate_values_overflow_as_in_single_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.full((64, 64), 300.0, np.float16)
    found, plan = replayed(lambda x: (x * x - x * x, x * x * 0.0), [x], "capture(numpy)")
    assert "pass" in plan
    assert np.isnan(found[0]).all()
    assert np.isnan(found[1]).all()


def test_updates_of_the_state_are_not_passes() -> None:
    def step(state: Any, x: Any) -> Any:
        return {"w": (state["w"] * 0.9 + x * 0.1) * 0.5}, x * 2.0 + 1.0

    x = np.random.default_rng(5).standard_normal((64, 64)).astype(np.float16)
    train = bb.capture(step, on_fallback="error")
    plain = {"w": bb.zeros((64, 64), dtype=bb.float16, backend="numpy")}
    state = {"w": bb.zeros((64, 64), dtype=bb.float16, backend="capture(numpy)")}
    for _ in range(4):
        state, _ = train(state, bb.asarray(x, backend="capture(numpy)"))
        plain, _ = step(plain, bb.asarray(x, backend="numpy"))
    assert same(state["w"].numpy(), plain["w"].numpy())


#: Faults: the method, the source text that is replaced, and its replacement.
FAULTS: dict[str, tuple[Any, str, str, str]] = {
    "results of calls are not rounded": (tile_code.TileCode, "_note", "not in EXACT", "in ()"),
    "ties are rounded up": (functions, "round_to_bfloat16", "0x7FFF", "0x8000"),
    "numbers are not rounded": (tile_code.TileCode, "_operand", "if self._rounding and", "if False and"),
    "rows have the size of float32": (tile_code.TileCode, "_row", "2 if x in self._halves else 1", "1"),
}


@needs_code
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, *FAULTS[fault])
    monkeypatch.setitem(functions.OF_FLOATS, "round_to_bfloat16", functions.round_to_bfloat16)
    monkeypatch.setattr(loops, "_known", type(loops._known)())
    x = every(bb.bfloat16)

    def function(x: Any) -> Any:
        y = x * 1.7
        return y * y + x, bb.exp(y) - x

    wanted, _ = replayed(function, [x], "capture(numpy, join=false)")
    try:
        found, _ = replayed(function, [x], "capture(numpy)")
    except CaptureError:
        return
    assert not all(map(same, found, wanted))
