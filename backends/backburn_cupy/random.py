"""CuPy: random numbers, with the bits of ``numpy.random.Philox``; all else follows the contract's formulas."""

from __future__ import annotations

import functools
import math
from typing import Any

import cupy
import numpy as np

from backburn.backend.philox import MULTIPLIERS, ROUNDS, WEYL
from backburn.backend.random import DIGITS, check_stream, threshold
from backburn.base.dtypes import DType

Array = Any
Shape = tuple[int, ...]

#: Philox4x64-10 (Salmon et al., SC 2011). One thread makes a block of four numbers, which are eight words.
_PREAMBLE = f"""
__device__ inline void philox(unsigned long long block, unsigned long long low, unsigned long long high,
                              unsigned int* words) {{
  unsigned long long a = block, b = 0, c = 0, d = 0;
  for (int round = 0; round < {ROUNDS}; ++round) {{
    const unsigned long long first = __umul64hi({MULTIPLIERS[0]:#x}ull, a);
    const unsigned long long second = __umul64hi({MULTIPLIERS[1]:#x}ull, c);
    const unsigned long long to_b = {MULTIPLIERS[1]:#x}ull * c, to_d = {MULTIPLIERS[0]:#x}ull * a;
    a = second ^ b ^ low;
    c = first ^ d ^ high;
    b = to_b;
    d = to_d;
    low += {WEYL[0]:#x}ull;
    high += {WEYL[1]:#x}ull;
  }}
  const unsigned long long numbers[4] = {{a, b, c, d}};
  for (int n = 0; n < 4; ++n) {{
    words[2 * n] = static_cast<unsigned int>(numbers[n]);
    words[2 * n + 1] = static_cast<unsigned int>(numbers[n] >> 32);
  }}
}}
"""
#: Elements of one word each; the first block is that of word ``offset``, of which ``skipped`` words come before it.
_SINGLE = """
  unsigned int words[8];
  philox(first + i, low, high, words);
  for (int n = 0; n < 8; ++n) {{
    const long long at = i * 8 + n - skipped;
    if (at >= 0 && at < size) {{
      const unsigned int word = words[n];
      out[at] = {value};
    }}
  }}
"""
#: Elements of two words, which begin in the middle of a pair where the offset is odd: the second block is then needed.
_DOUBLE = """
  unsigned int words[16];
  philox(first + i, low, high, words);
  if (skipped & 1) philox(first + i + 1, low, high, words + 8);
  for (int n = 0; n < 8; n += 2) {{
    const long long at = (i * 8 + n - (skipped & ~1ll)) / 2;
    if (i * 8 + n >= (skipped & ~1ll) && at < size) {{
      const int start = n + static_cast<int>(skipped & 1);
      const unsigned long long pair = words[start] | static_cast<unsigned long long>(words[start + 1]) << 32;
      out[at] = {value};
    }}
  }}
"""
_VALUES = {
    "bits": (_SINGLE, "static_cast<T>(word)"),
    "bernoulli": (_SINGLE, "static_cast<unsigned long long>(word) < below"),
    "uniform": (_SINGLE, "static_cast<T>(static_cast<float>(word >> shift) * scale)"),
    "uniform_double": (_DOUBLE, "static_cast<T>(static_cast<double>(pair >> 11) * 1.1102230246251565e-16)"),
}


@functools.cache
def _kernel(name: str) -> Any:
    body, value = _VALUES[name]
    return cupy.ElementwiseKernel(
        "uint64 first, uint64 low, uint64 high, int64 skipped, int64 size, uint64 below, int32 shift, float32 scale",
        "raw T out",
        body.format(value=value),
        f"backburn_random_{name}",
        preamble=_PREAMBLE,
    )


def _filled(
    name: str, key: int, offset: int, shape: Shape, dtype: Any, below: int = 0, shift: int = 0, scale: float = 1.0
) -> Array:
    check_stream(key, offset)
    out = cupy.empty(shape, dtype)
    if out.size:
        block, skipped = divmod(offset, 8)
        words = out.size * (2 if name == "uniform_double" else 1)
        numbers = (np.uint64(n % 2**64) for n in (block + 1, key, key >> 64))
        _kernel(name)(
            *numbers, skipped, out.size, np.uint64(below), shift, scale, out, size=-(-(skipped + words) // 8)
        )  # fmt: skip
    return out


def random_bits(k: Any, key: int, offset: int, shape: Shape) -> Array:
    return _filled("bits", key, offset, shape, np.int64)


def bernoulli(k: Any, key: int, offset: int, shape: Shape, p: float) -> Array:
    return _filled("bernoulli", key, offset, shape, np.bool_, below=threshold(p))


def uniform(k: Any, key: int, offset: int, shape: Shape, dtype: DType) -> Array:
    digits = DIGITS[dtype.name]
    if digits == 53:
        return _filled("uniform_double", key, offset, shape, dtype.dtype)
    return _filled("uniform", key, offset, shape, dtype.dtype, shift=32 - digits, scale=math.ldexp(1.0, -digits))
