"""The emulation and the comparison with NumPy find deliberately broken kernels."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.cupy.emulation import emulated
from tests.backends.cupy.emulation.emulated import EmulatedRunner
from tests.backends.cupy.emulation.operands import NUMPY, check, operand
from tests.backends.cupy.emulation.test_attention import check as compare_attention

from backburn_cupy.kernels import index, normalization, softmax


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        ("exponential<T>(v - top)", "exponential<T>(v)", "Not equal to tolerance"),
        ("sum = total<LANES>(sum);", "", "Not equal to tolerance"),
        ("write(out, start, length, results)", "write(out, start, length + 1, results)", "beyond an array"),
        ("fetch(operand, first, step,", "fetch(operand, first - 1, step,", "Not equal to tolerance"),
        ("&& is_aligned(line + start)", "", "not aligned"),
        ("top = largest<LANES>(top);", "if (group.lane < 3) top = largest<LANES>(top);", "never come"),
    ],
    ids=["arithmetic", "reduction", "overrun", "shifted", "misaligned", "divergent"],
)
def test_a_broken_kernel_is_found(folder: Path, right: str, wrong: str, complaint: str) -> None:
    text = emulated.program("float32", ("softmax",), "softmax<")
    assert right in text
    on = EmulatedRunner({"float32": emulated.build(text.replace(right, wrong), folder)})
    x = operand((3, 45), "float32", 0, 2)
    x *= 50

    def compare() -> None:
        check(softmax.softmax(on, x, 1), NUMPY.softmax(x, 1))

    with pytest.raises((AssertionError, RuntimeError), match=complaint):
        compare()


@pytest.mark.parametrize(
    "barrier",
    [
        "__syncthreads();\n    value = threadIdx.x % 32 < blockDim",  # values are read before they are written
        "__syncthreads();  // warp_values is free for the next one",  # or overwritten too early
    ],
    ids=["before", "after"],
)
def test_a_race_is_found(folder: Path, barrier: str) -> None:
    text = emulated.program("float32", ("norm",), "norm_backward|column_sum")
    assert barrier in text
    broken = emulated.build(text.replace(barrier, barrier.replace("__syncthreads();", "")), folder)
    x, scale = operand((12, 1500), "float32"), operand((1500,), "float32", 1)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check(
            normalization.layer_norm_backward(EmulatedRunner({"float32": broken}), x, x, scale, (1,), 1e-5),
            NUMPY.layer_norm_backward(x, x, scale, (1,), 1e-5),
        )


@pytest.mark.parametrize(
    ("order", "right", "wrong", "complaint"),
    [
        (1, "__syncthreads();\n      f(start,", "f(start,", "Not equal to tolerance"),
        (0, "tile(1, turn));\n      __syncthreads();", "tile(1, turn));", "Not equal to tolerance"),
        (1, "await_groups<1>();", "await_groups<2>();", "Not equal to tolerance"),
        (0, "turn % 2", "0 * turn", "Not equal to tolerance"),
        (0, "n * 16 + lane / 16 * 8 + lane % 8", "n * 16 + lane % 16", "Not equal to tolerance"),
        (0, "STRIDE = SIZE + 8", "STRIDE = SIZE + 4", "not aligned"),
    ],
    ids=["early", "late", "unawaited", "overwritten", "mixed up", "misaligned"],
)
def test_broken_attention_is_found(folder: Path, order: int, right: str, wrong: str, complaint: str) -> None:
    text = emulated.program("float16", ("attention",), ".*<float16, 32,")
    assert right in text
    on = EmulatedRunner({"float16": emulated.build(text.replace(right, wrong), folder)}, order=order)
    x = operand((1, 1, 200, 32), "float16")
    with pytest.raises((AssertionError, RuntimeError), match=complaint):
        compare_attention(on, x, x, x)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_results_do_not_depend_on_the_order_of_threads(library: Any, order: int) -> None:
    """Even if sums are divided among blocks and threads."""
    x, scale = operand((50, 700), "float32"), operand((700,), "float32", 1)
    indices = np.arange(50) % 7
    first, other = (EmulatedRunner({"float32": library("float32")}, o) for o in (0, order))
    for on in (first, other):
        on.deterministic = True
    for one, same in (
        (softmax.softmax(first, x, 1), softmax.softmax(other, x, 1)),
        *zip(*(normalization.layer_norm_backward(on, x, x, scale, (1,), 1e-5) for on in (first, other)), strict=True),
        *zip(*(normalization.batch_norm_training(on, x, None, None, 1, 1e-5) for on in (first, other)), strict=True),
        (index.take_backward(first, x, indices, 7, 0), index.take_backward(other, x, indices, 7, 0)),
    ):
        np.testing.assert_array_equal(one, same)


def test_16_bit_floats_round_like_numpy(folder: Path) -> None:
    """The emulated conversions of every 16-bit float, and of values halfway between two."""
    text = """
extern "C" void convert(const float* x, float16* y, float* back, long long count) {
  for (long long i = 0; i < count; ++i) narrow(x[i], y[i]), back[i] = widen(y[i]);
}
"""
    library = emulated.build("#include <cstddef>\n" + text + emulated.ENTRY % "", folder)
    every = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    every = every[np.isfinite(every)]
    ulps = np.float32(2) ** (np.floor(np.log2(np.maximum(abs(every), 2.0**-14))) - 11)
    x = np.concatenate([every, every + ulps, np.nextafter(every + ulps, np.float32(np.inf)), [np.inf, -np.inf]])
    x = x.astype(np.float32)
    y, back = np.empty(x.shape, np.float16), np.empty_like(x)
    library.convert(*(a.ctypes.data_as(ctypes.c_void_p) for a in (x, y, back)), ctypes.c_longlong(x.size))
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    np.testing.assert_array_equal(y.view(np.uint16), expected.view(np.uint16))
    np.testing.assert_array_equal(back, expected.astype(np.float32))
