"""The execution of PTX finds deliberately broken kernels, and converts 16-bit floats correctly.

The other tests here execute the PTX of the kernels with ``pytest tests/backends/cupy/emulation --ptx 90``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.cupy.emulation import executed
from tests.backends.cupy.emulation.executed import ExecutedRunner, Kernel, memory_of
from tests.backends.cupy.emulation.operands import NUMPY, check, operand
from tests.backends.cupy.emulation.test_attention import check as compare_attention

from backburn_cupy.kernels import normalization, softmax
from backburn_cupy.kernels.sources import source

pytestmark = pytest.mark.skipif(executed.missing() is not None, reason=str(executed.missing()))

#: Faulty statements of thread ``i`` in ``broken(x, y)``, for blocks of 64 threads, with parts of their messages. ``x``
#: has 64 zeros, ``y`` 64 uninitialized elements, and ``shared`` 64 elements.
BROKEN: dict[str, str] = {
    "y[i + 1] = 0;": "an access of 4 bytes outside of every array, 256 after the start of one of 256 bytes",
    "y[0] = x[(int)i - 1];": "outside of every array",
    "*(float4*)(y + 2) = make_float4(0, 0, 0, 0);": "an access of 16 bytes that is not aligned",
    "x[i] = y[i];": "a read of a new array where nothing was written",
    "y[i] = blockIdx.x;": "a race: it writes what is written by thread",
    "y[i / 2] = i;": "a race",
    "if (blockIdx.x) x[i] = 1; else y[i] = x[i];": "a race",
    "x[i] += x[i ^ 1];": "a race",
    "x[i] += 1; __syncthreads(); if (i == 0) x[40] = 2; y[i] = x[i];": "a race",
    "atomicAdd(&x[0], 1.0f); if (i == 9) x[0] = 3;": "a race",
    "if (blockIdx.x) return; y[i] = shared[i];": "a read of shared memory where nothing was written",
    "shared[i + 1] = i; __syncthreads(); x[i] = shared[i];": "an access to shared memory outside of every variable",
    "shared[i] = 0; __syncthreads(); shared[i] = i; x[i] += shared[i ^ 1];": "a race",
    "if (i % 2) __syncthreads(); __syncwarp();": "threads wait for others of their warp that never come",
    "if (i < 32) barrier(); else barrier(), x[i] = 1, barrier();": "warps meet at different barriers",
    "if (blockIdx.x == 0 && i % 2) x[i] = __shfl_xor_sync(0xffffffff, x[i], 2); __syncwarp();": "never come",
    "if (i >= 48) return; x[i] = __shfl_xor_sync(0xffffffff, x[i], 16);": "a shuffle from a thread that is not there",
    "x[i] = 7 / (int)blockIdx.y;": "a register that is not known",
    "x[i] = i % blockIdx.x;": "a division of an integer by 0",
    "__shared__ float much[12289]; much[i] = i; __syncthreads(); x[i] = much[63 - i];": "more than 48 KB",
    "if (i == 0) copy(shared + 64, x);": "an access to shared memory outside of every variable",
    "if (i == 0) copy(shared, x); __syncthreads(); x[i] = shared[i];": "memory to which a copy is under way",
    "if (i == 0) copy(shared, x);": "a thread ends while its copies are under way",
}

HELPERS = """
__device__ void barrier() { asm volatile("bar.sync 0;" ::: "memory"); }
__device__ void copy(float* to, const float* from) {
  unsigned at = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, 16;" ::"r"(at), "l"(from) : "memory");
}
"""


def run(folder: Path, text: str, name: str, block: int, *arrays: Any, fresh: Any = None) -> str:
    known = [] if fresh is None else [(fresh, np.zeros(fresh.nbytes, np.uint8))]
    arguments = [ctypes.c_void_p(a.ctypes.data) for a in arrays]
    return Kernel(folder, text, name, 80).run(2, (block, 1), 0, arguments, memory_of(list(arrays), known))


@pytest.mark.parametrize("body", BROKEN)
def test_undefined_behaviour_of_a_gpu_is_an_error(folder: Path, body: str) -> None:
    text = f"""{HELPERS}
extern "C" __global__ void __launch_bounds__(64) broken(float* x, float* y) {{
  __shared__ __align__(16) float shared[64];
  unsigned i = threadIdx.x;
  {body}
}}
"""
    x, y = np.zeros(64, np.float32), np.full(64, np.nan, np.float32)
    y.view(np.uint8)[...] = 0xFF
    assert BROKEN[body] in run(folder, text, "broken", 64, x, y, fresh=y)


def test_a_block_of_too_many_threads_is_an_error(folder: Path) -> None:
    text = 'extern "C" __global__ void __launch_bounds__(32) broken(float* x) { x[0] = 1; }'
    assert "more threads than the kernel was compiled for" in run(folder, text, "broken", 64, np.zeros(1, np.float32))


def _softmax(on: ExecutedRunner, length: int) -> None:
    x = operand((3, length), "float32", 0, 2)
    check(softmax.softmax(on, x, 1), NUMPY.softmax(x, 1))


def _norm(on: ExecutedRunner, length: int) -> None:
    x, scale = operand((12, length), "float32"), operand((length,), "float32", 1)
    actual = normalization.layer_norm_backward(on, x, x, scale, (1,), 1e-5)
    check(actual, NUMPY.layer_norm_backward(x, x, scale, (1,), 1e-5))


def _attention(on: ExecutedRunner, length: int) -> None:
    x = operand((1, 1, length, 32), "float16")
    compare_attention(on, x, x, x)


@pytest.mark.parametrize(
    ("call", "length", "right", "wrong", "complaint"),
    [
        (_softmax, 45, "sum += v =", "sum += v = 1 +", "Not equal to tolerance"),
        (_softmax, 45, "write(out, start, length, results)", "write(out, start, length + 1, results)", "outside"),
        (_softmax, 45, "&& is_aligned(line + start)", "", "not aligned"),
        (_softmax, 45, "top = largest<LANES>(top);", "if (group.lane < 3) top = largest<LANES>(top);", "never come"),
        (_softmax, 9001, "= threadIdx.x % 32 < blockDim.x / 32 ? warp", "= true ? warp", "nothing was written"),
        (_norm, 1500, "__syncthreads();\n    value =", "value =", "nothing was written|a race"),
        (_norm, 1500, "__syncthreads();  // warp_values is free for the next one", "", "a race"),
        (_attention, 200, "__syncthreads();\n      f(start,", "f(start,", "a race"),
        (_attention, 200, "tile(1, turn));\n      __syncthreads();", "tile(1, turn));", "a race"),
        (_attention, 200, "await_groups<1>();", "await_groups<2>();", "a copy is under way"),
        (_attention, 200, "n * 16 + lane / 16 * 8 + lane % 8", "n * 16 + lane % 16", "Not equal to tolerance"),
        (_attention, 200, "STRIDE = SIZE + 8", "STRIDE = SIZE + 4", "not aligned"),
        (_attention, 200, "__syncwarp();", "", "a race"),
    ],
)  # fmt: skip
def test_a_broken_kernel_is_found(
    folder: Path, call: Callable[[ExecutedRunner, int], None], length: int, right: str, wrong: str, complaint: str
) -> None:
    on = ExecutedRunner(folder, {}, 80, 1, right=right, wrong=wrong)
    with pytest.raises((AssertionError, RuntimeError), match=complaint):
        call(on, length)


def test_16_bit_floats_round_like_numpy(folder: Path) -> None:
    """Every 16-bit float, and values halfway between two."""
    text = (
        source("softmax")
        + """
template <class T> __global__ void convert(const float* x, T* y, float* back) {
  long long i = blockIdx.x * 1024ll + threadIdx.x;
  narrow(x[i], y[i]), back[i] = widen(y[i]);
}
"""
    )
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name, dtype in (("float16", np.dtype(np.float16)), ("bfloat16", np.dtype(ml_dtypes.bfloat16))):
        every = np.arange(2**16, dtype=np.uint16).view(dtype).astype(np.float32)
        bits = every[np.isfinite(every)].view(np.uint32)
        half = 1 << (12 if name == "float16" else 15)
        x = np.concatenate([bits + step for step in (0, half - 1, half, half + 1)]).astype(np.uint32).view(np.float32)
        x = np.concatenate([x, np.array([np.inf, -np.inf, np.nan], np.float32)])
        x = np.resize(x, -(-x.size // 2048) * 2048)
        y, back = np.zeros(x.shape, dtype), np.zeros_like(x)
        for first in range(0, x.size, 2048):
            parts = [np.ascontiguousarray(a[first : first + 2048]) for a in (x, y, back)]
            assert not run(folder, text, f"convert<{name}>", 1024, *parts)
            y[first : first + 2048], back[first : first + 2048] = parts[1:]
        with np.errstate(over="ignore"):
            expected = x.astype(dtype)
        np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
        known = ~np.isnan(x)
        np.testing.assert_array_equal(y.view(np.uint16)[known], expected.view(np.uint16)[known])
        np.testing.assert_array_equal(back[known], expected.astype(np.float32)[known])
