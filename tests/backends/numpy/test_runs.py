"""Kernels of arrays that broadcast or are strided, against NumPy: equal bits, on any number of threads."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.guards import MemoryFault, guarded
from tests.helpers.kernels import BASE, needs_kernels

from backburn_numpy import compiled, tuning
from backburn_numpy.compiled import build
from backburn_numpy.elementwise import fused, runs
from backburn_numpy.elementwise.runs import run_on_runs
from backburn_numpy.runtime import threads

pytestmark = needs_kernels

GCC = shutil.which("gcc")
SIDES = (1, 1, 2, 3, 4, 5, 8, 16, 17, 33)
OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "maximum": np.maximum,
    "minimum": np.minimum,
}  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = {"negative": np.negative, "absolute": np.absolute, "sqrt": np.sqrt}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compute short runs by kernels, in several threads."""
    monkeypatch.setattr(tuning, "MIN_ELEMENTS_OF_RUN", 1)
    monkeypatch.setattr(tuning, "MIN_ELEMENTS_FOR_NATIVE_THREADS", 1)
    monkeypatch.setattr(tuning, "ELEMENTS_PER_TASK", 64)
    before = threads.num_threads()
    yield
    threads.set_num_threads(before)


def array(draw: random.Random, whole: list[int], dtype: str, rng: np.random.Generator) -> Any:
    """An array that broadcasts to a shape: contiguous, a part of a larger one, reversed, or with axes exchanged."""
    shape = [n if draw.random() < 0.75 else 1 for n in whole]
    kind = draw.choice(("whole", "whole", "part", "part", "reversed", "transposed", "spread"))
    if kind == "part":
        margins = [draw.choice((0, 0, 1, 5)) for _ in shape]
        base = rng.standard_normal([n + m for n, m in zip(shape, margins, strict=True)]).astype(dtype)
        return base[tuple(slice(m // 2, m // 2 + n) for n, m in zip(shape, margins, strict=True))]
    x = rng.standard_normal(shape).astype(dtype)
    if kind == "reversed":
        return x[tuple(slice(None, None, draw.choice((1, -1))) for _ in shape)]
    if kind == "transposed":
        return np.ascontiguousarray(x.swapaxes(0, -1)).swapaxes(0, -1)
    return np.broadcast_to(x, whole) if kind == "spread" else x


def by_kernel(name: str, *operands: Any) -> Any:
    """The result of a compiled kernel of contiguous arrays, where calls in runs use generated code."""
    arrays = [np.ascontiguousarray(x) for x in np.broadcast_arrays(*operands)]
    out = np.empty_like(arrays[0])
    kernel: Any = compiled.kernel(name + ("_double" if out.dtype == np.float64 else ""))
    kernel(*compiled.addresses(out, *arrays), out.size)
    return out


OPERANDS = {"silu_backward": 2, "tanh_slope": 3}
LONG: dict[str, Callable[..., Any]] = {
    name: partial(by_kernel, name) for name in ("exp", "tanh", "log", "silu", "gelu", "silu_backward", "tanh_slope")
}


def difference(count: int) -> tuple[str, int]:
    """The first difference between a kernel and NumPy, and how many results kernels computed."""
    draw, rng, tried = random.Random(4), np.random.default_rng(0), 0
    for i in range(count):
        dtype = ("float32", "float64")[i % 2]
        whole = [draw.choice(SIDES) for _ in range(draw.randint(1, 4))]
        x, y = (array(draw, whole, dtype, rng) for _ in range(2))
        if draw.random() < 0.4 and y.ndim > 1:
            y = y[0]
        threads.set_num_threads(1 + i % 3)
        cases: list[tuple[str, Callable[..., Any], Any]] = [(name, f, (x, y)) for name, f in OPERATIONS.items()]
        cases += [(name, f, (x, 1.5)) for name, f in OPERATIONS.items()]
        cases += [(name, f, (1.5, x)) for name, f in OPERATIONS.items()]
        cases += [(name, f, (x,)) for name, f in FUNCTIONS.items()]
        cases += [(name, f, (x, y, x)[: OPERANDS.get(name, 1)]) for name, f in LONG.items()]
        for name, f, operands in cases:
            with guarded():
                found = run_on_runs(name, *operands)
            if found is None:
                continue
            with np.errstate(all="ignore"):
                expected = f(*operands)
            tried += 1
            if found.dtype != expected.dtype or not np.array_equal(found, expected, equal_nan=True):
                return f"{name} of {[(getattr(v, 'shape', v), getattr(v, 'strides', v)) for v in operands]}", tried
    return "", tried


def test_kernels_equal_numpy() -> None:
    words, tried = difference(300)
    assert words == ""
    assert tried > 3000


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_formulas_equal_those_of_copies(dtype: str, axes: int) -> None:
    draw, rng, tried = random.Random(axes), np.random.default_rng(axes), 0
    formulas: list[tuple[Callable[..., Any], int]] = [
        (lambda k, x: k.mul(k.tanh(x), k.add(x, 1.0)), 1),
        (lambda k, x, y: k.add(k.mul(x, y), k.exp(k.neg(y))), 2),
        (lambda k, x, y, z: (k.mul(x, k.sub(y, z)), k.add(k.sigmoid(x), z)), 3),
    ]
    for i in range(60):
        formula, count = formulas[i % 3]
        whole = [*(draw.choice(SIDES[2:]) for _ in range(axes - 1)), draw.choice((300, 513, 1000))]
        operands = [array(draw, whole, dtype, rng) for _ in range(count)]
        operands = [x if x.shape == tuple(whole) else np.broadcast_to(x, whole) for x in operands]
        if not any(x.shape == tuple(whole) and any(x.strides) for x in operands):
            continue
        threads.set_num_threads(1 + i % 2)
        with guarded():
            found = fused.fuse(formula, *operands, few=True)
        copies = [x if x.size == 1 or not any(x.strides) else np.ascontiguousarray(x) for x in operands]
        expected = fused.fuse(formula, *copies, few=True)
        if found is None:
            continue
        tried += any(not x.flags.c_contiguous for x in operands)
        pairs = zip(found, expected, strict=True) if count == 3 else [(found, expected)]
        assert all(a.dtype == b.dtype and np.array_equal(a, b, equal_nan=True) for a, b in pairs)
    assert tried > 15


def test_donated_slices_are_kept() -> None:
    x = np.arange(4000, dtype="float32").reshape(2, 2000)[:, :1000]
    before = x.copy()
    found = fused.fuse(lambda k, x: k.mul(x, k.add(x, 1.0)), x, donate=(0,), few=True)
    assert np.array_equal(x, before)
    assert np.array_equal(found, before * (before + 1))


#: Faults of ``runs.c`` and ``runs.h``: what stands there, and what a wrong version has.
FAULTS = {
    "a broadcast operand goes on": ("== 1) return 0;", "== 2) return 0;"),
    "gaps between rows are not seen": ("strides[k] == runs->inner[k] * runs->elements", "1"),
    "gaps between axes are not seen": ("strides[k] == runs->counts[last] * runs->strides[k][last]", "1"),
    "exchanged operands": ("arrays[1] == x ? number : flipped", "number"),
    "an index that does not return": ("steps -= runs->counts[a]", "steps = 0"),
    "the next axis without a step": ("if (!is_end) return;", "return;"),
    "parts beyond an axis": ("left < most ? left : most", "most"),
    "a part too long": ("rest < runs->portion ? rest : runs->portion", "runs->portion"),
    "all parts at the first": ("place->part * runs->portion,", "0,"),
    "a part of another run": ("part / runs->parts;", "part;"),
    "generated code stays at the first part": ("own[k] = a[k] + i * s[k]", "own[k] = a[k]"),
    "elements that are not beside each other": ("strides[k] == 0 || strides[k] == size", "1"),
}


@pytest.mark.slow
@pytest.mark.skipif(GCC is None or not build.SOURCES, reason="needs GCC and the kernels' sources")
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str) -> None:
    old, new = FAULTS[fault]
    folder, count = build.FOLDER / "runtime", 0
    for name in ("runs.c", "runs.h", "thread_pool.c", "thread_pool.h", "kernels.h", "windows_entry.h"):
        text = (folder / name).read_text()
        count += text.count(old) if name.startswith("runs") else 0
        (tmp_path / name).write_text(text.replace(old, new) if name.startswith("runs") else text)
    assert count == 1, f"{old!r} must occur once"
    made = tmp_path / "runs.so"
    sources = [str(tmp_path / name) for name in ("runs.c", "thread_pool.c")]
    subprocess.run([str(GCC), *build.FLAGS, "-shared", f"-I{tmp_path}", *sources, "-o", str(made)], check=True)
    known: Any = compiled.kernel("on_runs")
    wrong = ctypes.CDLL(str(made)).backburn_on_runs
    wrong.restype, wrong.argtypes = ctypes.c_int, known.argtypes
    monkeypatch.setitem(compiled._kernels, "on_runs", wrong)
    try:
        words = difference(400)[0]
    except MemoryFault:
        return
    assert words != ""


def test_other_operands_are_left_to_numpy() -> None:
    x, y = np.ones((40, 3, 50), "float32"), np.ones((3, 50), "float32")
    assert run_on_runs("add", x, y) is not None
    assert run_on_runs("add", x, 2**53) is not None
    for one, other in (
        (x, y.astype("float64")), (x[:, :, ::2], y[:, ::2]), (x.astype("int32"), y.astype("int32")),
        (x, np.float32(1.0)), (np.float32(1.0), x), (x, 2**53 + 1), (x, True), (x, 1j),
        (x.astype("float16"), y.astype("float16")), (x[:0], y),
    ):  # fmt: skip
        assert run_on_runs("add", one, other) is None
    assert run_on_runs("remainder", x, y) is not None
    assert run_on_runs("remainder", y[0, 0], x) is None  # has no kernel of a number and arrays
    assert run_on_runs("no kernel", x, y) is None


def test_three_operands_broadcast() -> None:
    draw, rng, tried = random.Random(2), np.random.default_rng(2), 0
    for _ in range(160):
        whole = [draw.choice(SIDES) for _ in range(3)]
        grad, x, y = (array(draw, whole, "float32", rng) for _ in range(3))
        copies = [np.ascontiguousarray(np.broadcast_to(v, np.broadcast(grad, x, y).shape)) for v in (grad, x, y)]
        found, expected = run_on_runs("tanh_slope", grad, x, y), run_on_runs("tanh_slope", *copies)
        assert found is None or np.array_equal(found, expected)  # type: ignore[arg-type]
        tried += found is not None
    assert tried > 20


@pytest.mark.parametrize("number", [1e300, -1e300, 2**100, 1e-300, float("nan")])
def test_numbers_beyond_the_dtype(number: float) -> None:
    x = np.random.default_rng(0).standard_normal((300, 600)).astype("float32")
    for name in ("add", "mul", "div", "maximum"):
        part, whole = (getattr(BASE, name)(v, number) for v in (x[:, :500], x[:, :500].copy()))
        np.testing.assert_array_equal(part, whole)


def test_arrays_whose_layout_is_unknown_are_left_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(20000, dtype="float32").reshape(100, 200)
    monkeypatch.setattr(compiled, "_HEAD", 0)
    assert run_on_runs("add", x, x[:, :1]) is None
    part = x[:, 5:105]
    found = fused.fuse(lambda k, x: k.mul(x, k.add(x, 1.0)), part, few=True)
    assert np.array_equal(found, part * (part + 1))
    assert np.array_equal(BASE.exp(part), BASE.exp(part.copy()))
    assert np.array_equal(BASE.add(x, x[:1]), x + x[:1])


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "maximum", "minimum", "exp", "tanh"])
def test_operations_use_kernels(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    used: list[str] = []
    real = runs.run_on_runs

    def noted(*given: Any) -> Any:
        used.append(given[0])
        return real(*given)

    monkeypatch.setattr("backburn_numpy.elementwise.ufuncs.run_on_runs", noted)
    x, y = np.random.default_rng(0).standard_normal((300, 1400)).astype("float32"), np.full((700,), 1.5, "float32")
    part, ufunc = x[:, 700:], {"sub": "subtract", "mul": "multiply", "div": "divide"}.get(name, name)
    if name in ("exp", "tanh"):
        np.testing.assert_array_equal(getattr(BASE, name)(part), getattr(BASE, name)(part.copy()))
        assert used == [ufunc] * 2
        return
    cases = (x[:, :700], y), (y, part), (part, x[:, :700]), (part, x[:, :1].copy()), (x[:, :1], part), (part, 2.0)
    for one, other in cases:
        np.testing.assert_array_equal(getattr(BASE, name)(one, other), OPERATIONS[ufunc](one, other))
    assert used == [ufunc] * len(cases)
