"""Passes over rows: the kernels generated for their plans, run on the CPU, against NumPy in float64."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tests.backends.cupy.emulation import nvrtc
from tests.backends.cupy.emulation.emulated import EmulatedRunner
from tests.backends.cupy.emulation.nvrtc import CUPYS
from tests.backends.cupy.emulation.operands import host_dtype
from tests.backends.cupy.emulation.passes import (
    BLOCKS,
    CASES,
    Faulty,
    Noting,
    OverCuda,
    close,
    gradients,
    layer_norm,
    modulated,
    operands,
    passed,
    plain,
)

import backburn as bb
from backburn.backend.host_numbers import RECORDING_STEP, Recording
from backburn.base.contexts import scoped
from backburn.decorators.capture.recorder import Capture
from backburn.errors import BackburnError
from backburn.ops.table import OPERATIONS
from backburn.programs.fusion.partition import EXPONENTS, FUSABLE, OF_ROWS
from backburn_cupy.kernels.passes import knows
from backburn_cupy.kernels.sources import OPTIONS, source

EITHER = pytest.mark.parametrize("dtype", ["float32", "float64"], indirect=True)
FLOAT = pytest.mark.parametrize("dtype", ["float32"], indirect=True)
#: Few rows, and many short ones; odd widths and whole packs; rows per warp and per block, longer rows, and one row.
SHAPES = [
    *((2, 256), (5, 3, 35), (200, 3), (3, 255), (7, 260), (70, 33)),
    *((2, 4096), (2, 4095), (1, 5001), (600,), (3, 5000)),
]


@EITHER
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_values(on: EmulatedRunner, dtype: str, name: str, shape: tuple[int, ...]) -> None:
    function, has_gradients = CASES[name]
    arrays = operands(shape, dtype)
    if has_gradients:
        function = gradients(function, len(arrays))
    with np.errstate(all="ignore"):
        found, captured = passed(on, function, *arrays)
        close(found, plain(function, *arrays), dtype)
    if len(shape) > 1 and shape[0] > 1 and shape[-1] <= (4096 if dtype == "float32" else 2048):
        assert "computed by CUDA" in str(captured.plan())
        assert any(kernel.startswith("pass_") for kernel in on.launched)


@EITHER
@pytest.mark.parametrize("shapes", BLOCKS, ids=str)
def test_operands_that_broadcast_along_several_axes(
    on: EmulatedRunner, dtype: str, shapes: tuple[tuple[int, ...], ...]
) -> None:
    rng = np.random.default_rng(3)
    arrays = [rng.normal(size=shape).astype(dtype) for shape in shapes]
    found, captured = passed(on, modulated, *arrays)
    close(found, plain(modulated, *arrays), dtype)
    text = str(captured.plan())
    assert "computed by CUDA" in text
    assert text.count(" in blocks of ") >= 2


@EITHER
def test_the_order_of_threads_does_not_change_results(on: EmulatedRunner, dtype: str) -> None:
    for shape in ((70, 33), (9, 1023)):
        arrays = operands(shape, dtype)
        results = []
        for order in range(4):
            on.order = order
            results.append(passed(on, gradients(layer_norm, 4), *arrays)[0])
        for found in results[1:]:
            for one, other in zip(found, results[0], strict=True):
                np.testing.assert_array_equal(one, other)


@EITHER
@pytest.mark.parametrize("name", CASES)
def test_values_that_are_not_finite(on: EmulatedRunner, dtype: str, name: str) -> None:
    function, has_gradients = CASES[name]
    arrays = operands((6, 130), dtype)
    arrays[0][1, 5], arrays[0][2, 129], arrays[0][3, 0], arrays[0][4, 7] = np.nan, np.inf, -np.inf, -0.0
    if has_gradients:
        function = gradients(function, 1)
    with np.errstate(all="ignore"):
        close(passed(on, function, *arrays)[0], plain(function, *arrays), dtype)


@EITHER
def test_sums_of_rows_keep_their_digits(on: EmulatedRunner, dtype: str) -> None:
    """Sums are finished in float64, so means of rows and columns with large means are rounded once."""

    def sums(x: Any) -> Any:
        y = x * 1.0
        return y.sum(axis=-1), y.mean(axis=-1), y.sum(axis=0), y.mean(axis=0), y

    for shape in ((300, 40), (12, 4096)):
        x = (np.random.default_rng(1).normal(size=shape) + 1000).astype(dtype)
        found, _ = passed(on, sums, x)
        for one, other in zip(found, plain(sums, x), strict=True):
            scale = 1.01 if dtype == "float32" else 4.0
            np.testing.assert_allclose(one, other, rtol=scale * float(np.finfo(dtype).eps))


@EITHER
def test_operations(on: EmulatedRunner, dtype: str) -> None:
    """Many operations of passes, with rows, columns and a single number."""

    def function(x: Any, row: Any, column: Any, one: Any) -> Any:
        y = bb.clip(x + row, -1.0, 2.0) * bb.log1p(bb.abs(column)) - bb.sign(x) * one
        z = bb.where((x > row) & ~(x == column), bb.tanh(y), bb.expm1(-bb.abs(y)))
        z = z + x**2.0 + bb.abs(x) ** 3.0 + (bb.abs(x) + 1.0) ** -1.0 + (bb.abs(x) + 1.0) ** -0.5
        z = bb.maximum(bb.minimum(z, 3.0), bb.relu(x)) + bb.silu(x) + bb.gelu(x) + bb.nn.functional.softplus(column * x)
        return z + z.mean(axis=-1, keepdims=True) * bb.sqrt(bb.abs(row)) + bb.nn.functional.leaky_relu(x, 0.1)

    rng = np.random.default_rng(2)
    for rows, width in ((40, 50), (4, 700)):
        arrays = [rng.normal(size=s).astype(dtype) for s in ((rows, width), (rows, 1), (width,), (1,))]
        found, captured = passed(on, function, *arrays)
        close(found, plain(function, *arrays), dtype, 8.0)
        assert re.search(r"pass \d+: .* (3|4)\d calls", str(captured.plan()))
    names = ("add", "gelu", "gelu_backward", "where", "pow", "astype", "tanh_slope", "masked_fill", "isinf", "softplus")
    assert all(knows(name, getattr(bb, dtype)) for name in names)
    assert not any(knows(name, getattr(bb, dtype)) for name in ("softmax", "layer_norm", "matmul"))


def between(k: Any, name: str, a: Any, b: Any) -> list[Any]:
    """An operation between others, with float results, in several forms if it has options."""
    less, dtype = k.less(a, b), k.dtype(a)
    if name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
        found = [k.where(getattr(k, name)(a, k.round(b)), a, b)]
    elif name.startswith("logical_"):
        rest = [k.less(b, 0.5)] if name != "logical_not" else []
        found = [k.where(getattr(k, name)(less, *rest), a, b)]
    elif name == "pow":
        found = [k.pow(a, exponent) for exponent in sorted(EXPONENTS)]
    elif name in ("gelu", "gelu_backward"):
        operands = (a, b)[: len(OPERATIONS[name].operands)]
        found = [getattr(k, name)(*operands, approximate=form) for form in ("none", "tanh")]
    else:
        special: dict[str, Any] = {
            "where": (less, a, b), "masked_fill": (a, less, 0.25), "astype": (less, dtype), "clip": (a, -0.5, 0.75),
            "leaky_relu": (a, 0.1), "tanh_slope": (a, b, k.tanh(b)), "softplus": (a, 0.5),
        }  # fmt: skip
        made = getattr(k, name)(*special.get(name, (a, b)[: len(OPERATIONS[name].operands)]))
        found = [k.where(made, a, b) if name == "isinf" else made]
    return [k.mul(k.add(x, 1.0), a) for x in found]


@EITHER
@pytest.mark.slow
def test_every_operation_between_others(on: EmulatedRunner, dtype: str) -> None:
    names = sorted(name for name in FUSABLE | OF_ROWS if knows(name, getattr(bb, dtype)))
    assert {*names} == FUSABLE | OF_ROWS
    rng = np.random.default_rng(4)
    x, y = (rng.uniform(-1.3, 1.3, size=(20, 40)).astype(dtype) for _ in range(2))
    OverCuda.runner, plain_k = on, OverCuda()
    recording = Capture(plain_k)
    with np.errstate(all="ignore"):
        for name in names:

            def step(k: Any, values: Any, name: str = name) -> list[Any]:
                return between(k, name, k.add(values[0], 0.125), k.mul(values[1], 0.75))

            def recorded(_: Any, values: Any, step: Any = step) -> tuple[list[Any], list[Any]]:
                return [], step(recording, values)

            expected = step(plain_k, [x.astype(np.float64), y.astype(np.float64)])
            with scoped(RECORDING_STEP, Recording()):
                program = recording.capture(recorded, [], [x, y])
            before = len(on.launched)
            close(program([x, y], []), expected, dtype, 8.0)
            assert len(on.launched) > before, name


@FLOAT
def test_calls_that_end_a_pass(on: EmulatedRunner) -> None:
    def function(x: Any) -> Any:
        return bb.softmax(bb.exp(x) * 2.0, axis=-1) * 3.0 + 1.0

    x = operands((30, 40), "float32")[0]
    found, captured = passed(on, function, x)
    close(found, plain(function, x), "float32")
    text = str(captured.plan())
    assert text.count("computed by CUDA") == 2
    assert "the backend has no kernel of softmax for float32" in text
    # More sums of columns than a thread has registers for are not joined.
    many, arrays = operands((30, 40), "float32"), [float(i) for i in range(1, 6)]
    found, captured = passed(on, lambda x: [(x * i + bb.exp(x)).sum(axis=0) for i in arrays], many[0])
    close(found, plain(lambda x: [(x * i + bb.exp(x)).sum(axis=0) for i in arrays], many[0]), "float32")
    assert "the backend has no kernels for the pass" in str(captured.plan())


@FLOAT
def test_views_and_arrays_without_elements(on: EmulatedRunner) -> None:
    def function(x: Any, y: Any) -> Any:
        return bb.exp(x.T * y) * 0.5 + x.T

    x, y = operands((40, 30), "float32")[0], operands((30, 40), "float32")[0]
    close(passed(on, function, x, y)[0], plain(function, x, y), "float32")
    empty = np.zeros((0, 40), np.float32)
    found, captured = passed(on, lambda x, y: (bb.exp(x) * 2.0, bb.exp(y) * 2.0), empty, y)
    assert found[0].shape == (0, 40)
    assert str(captured.plan()).count("computed by CUDA") == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"], indirect=True)
def test_16_bit_floats_are_rounded_after_each_call(on: EmulatedRunner, dtype: str) -> None:
    """As in single calls: a value that overflows in one is infinite in the next."""

    def function(x: Any, row: Any, column: Any, one: Any) -> Any:
        y = x * row + column * 0.1
        z = bb.where(y > one, y * y, bb.relu(-y) - 0.3) / (bb.abs(x) + 1.0)
        return bb.maximum(z, y), bb.tanh(z) * bb.sigmoid(x) + bb.gelu(x), (x * 30000.0) * 1e-3

    rng = np.random.default_rng(3)
    for rows, width in ((70, 65), (20, 1000), (3, 4000)):
        arrays = [rng.normal(size=s).astype(host_dtype(dtype)) for s in ((rows, width), (rows, 1), (width,), (1,))]
        with np.errstate(all="ignore"):
            found, captured = passed(on, function, *arrays)
            expected = [x.numpy() for x in function(*map(bb.asarray, arrays))]
        assert re.search(r"pass 0: .* 1\d calls", str(captured.plan()))
        close([found[0], found[2]], [expected[0].astype(np.float64), expected[2].astype(np.float64)], dtype, 1e-6)
        close(found[1:2], [expected[1].astype(np.float64)], dtype, 4.0)
        assert np.isinf(found[2].astype(np.float32)).any() == (dtype == "float16")


# ---- the checks can fail ----


@pytest.mark.parametrize(
    ("name", "shape", "right", "wrong", "complaint"),
    [
        ("layer norm", (9, 1023), "__syncthreads();\n    value", "value", "Not equal"),
        ("layer norm", (9, 1023), "__syncthreads();  // warp_values", "// warp_values", "Not equal"),
        ("softmax", (9, 1021), "start + j < length)", "start + j < length + 1)", "Not equal|beyond"),
        ("log shares", (9, 1021), "start + j >= 0 && ", "", "Not equal"),
        ("gelu", (5, 1021), "write(y1 + at, start, length,", "write(y1 + at, start, length + 3,", "Not equal|beyond"),
        ("layer norm", (9, 1023), "if (at < width) {", "{", "beyond an array|Not equal"),
        ("layer norm", (9, 1023), "y0[row]", "y0[row + 1]", "beyond an array|Not equal"),
        ("softmax", (40, 200), "total<LANES>", "total<16>", "Not equal"),
        ("softmax", (9, 1023), "kept0[p][j] = ", "", "Not equal"),
        ("range", (9, 1023), "a > b || a != a ? a : b", "a > b ? a : b", "not equal"),
        ("layer norm", (9, 1023), "row * width", "row * width + 1", "Not equal|beyond"),
        ("softmax", (9, 1023), "  Tally<C>", "  if (group.lane < 3) __syncthreads(); Tally<C>", "never come"),
    ],
    ids=[
        *("barrier", "second barrier", "tail", "head", "overrun", "columns", "row", "lanes", "unkept", "NaN"),
        *("shifted", "divergent"),
    ],
)
def test_a_broken_kernel_is_found(
    library: Any, name: str, shape: tuple[int, ...], right: str, wrong: str, complaint: str
) -> None:
    function, has_gradients = CASES[name]
    arrays = operands(shape, "float32")
    if name == "range":
        arrays[0][1, 700] = np.nan
    function = gradients(function, 4) if has_gradients else function
    faulty = Faulty({"float32": library("float32")}, right, wrong)
    with np.errstate(all="ignore"), pytest.raises((AssertionError, BackburnError), match=complaint):
        close(passed(faulty, function, *arrays)[0], plain(function, *arrays), "float32")
    assert faulty.is_changed


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("row / 70u % 3u", "row / 70u % 2u"), ("row / 1u % 70u", "row / 70u % 70u"), ("% 70u * 1u) * width", "% 70u)")],
    ids=["count", "block", "width"],
)
def test_a_broken_row_of_a_repeated_operand_is_found(library: Any, right: str, wrong: str) -> None:
    rng = np.random.default_rng(3)
    arrays = [rng.normal(size=shape).astype("float32") for shape in BLOCKS[0]]
    faulty = Faulty({"float32": library("float32")}, right, wrong)
    with pytest.raises((AssertionError, BackburnError), match=r"Not equal|beyond"):
        close(passed(faulty, modulated, *arrays)[0], plain(modulated, *arrays), "float32")
    assert faulty.is_changed


# ---- NVIDIA's compiler ----

needs_nvrtc = pytest.mark.skipif(nvrtc.missing() is not None, reason=str(nvrtc.missing()))


def texts(dtype: str) -> dict[str, str]:
    """The kernels of all cases and some sizes, and their sources."""
    noting = Noting()
    with np.errstate(all="ignore"):
        for function, has_gradients in CASES.values():
            for shape in ((70, 33), (5, 1023), (2, 4096)):
                arrays = operands(shape, host_dtype(dtype))
                passed(noting, gradients(function, 4) if has_gradients else function, *arrays)
        for shapes in BLOCKS[:3]:  # 4 bytes of the last one are spilled on sm_80
            passed(noting, modulated, *(operands(shape, host_dtype(dtype))[0] for shape in shapes))
        passed(noting, lambda x: bb.exp(x * 2.0) + x, operands((5001,), host_dtype(dtype))[0])
    return {kernel: source(kernel.partition("<")[0]) for kernel in noting.kernels}


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype_name", "arch"),
    [
        *(("float32", "sm_80"), ("float32", "sm_90"), ("float64", "sm_90")),
        *(("float16", "sm_80"), ("bfloat16", "sm_80"), ("bfloat16", "sm_90")),
    ],
)
def test_kernels_compile_without_spills(dtype_name: str, arch: str) -> None:
    found = texts(dtype_name)
    assert len(found) > (8 if dtype_name.startswith("float") and dtype_name != "float16" else 3)
    for kernel, text in found.items():
        code, _, log = nvrtc.compiled(text, (*OPTIONS, *CUPYS, f"-arch={arch}", "--ptxas-options=-v"), [kernel])
        assert code[:4] == b"\x7fELF"
        assert "warning" not in log
        assert [int(count) for count in re.findall(r"(\d+) bytes spill stores", log)] == [0], (kernel, log)


@needs_nvrtc
@pytest.mark.slow
def test_packs_are_read_and_written_in_one_access() -> None:
    for kernel, text in texts("float32").items():
        code, _, _ = nvrtc.compiled(text, (*OPTIONS, *CUPYS, "-arch=compute_90"), [kernel])
        assert re.search(rb"ld\.global\.(nc\.)?v4\.", code)
        assert "write(y" not in text or re.search(rb"st\.global\.v4\.", code)
        assert not re.search(rb"(ld|st)\.local", code)
