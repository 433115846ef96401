// Functions of the elements of some arrays; each thread has up to two 16-byte accesses per operand in flight.
#pragma once
#include "common.cuh"

// out = f(the element of each operand, in an array); operands whose bits are set in `singles` have one element.
template <class T, int N, class F>
__device__ inline void map(const T* const (&operands)[N], T* out, index_t count, F f, index_t singles = 0) {
  typedef compute<T> C;
  constexpr int P = PACK<T>, PACKS = N > 2 ? 1 : 2;
  C single[N];
  const T *lines[N], *line = nullptr;  // a line to read instead of a single element
  bool aligned = is_aligned(out);
#pragma unroll
  for (int o = 0; o < N; ++o)
    if (singles >> o & 1)
      single[o] = widen(*operands[o]);
    else
      line = operands[o], aligned = aligned && is_aligned(line);
#pragma unroll
  for (int o = 0; o < N; ++o) lines[o] = singles >> o & 1 ? line : operands[o];
  index_t step = (index_t)blockDim.x * P;
  for (index_t block = blockIdx.x * step * PACKS; block < count; block += gridDim.x * step * PACKS) {
    index_t start = block + threadIdx.x * P;
    bool whole = aligned && block + step * PACKS <= count;  // as for most blocks
    Pack<T> in[PACKS][N];
    if (whole) {
#pragma unroll
      for (int p = 0; p < PACKS; ++p)
#pragma unroll
        for (int o = 0; o < N; ++o)
          if (!(singles >> o & 1)) in[p][o].whole = *reinterpret_cast<const uint4*>(operands[o] + start + p * step);
    } else {
      fetch(lines, start, step, count, in);
    }
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
      C values[N][P], results[P];
#pragma unroll
      for (int o = 0; o < N; ++o) {
        widen(in[p][o], values[o]);
        if (singles >> o & 1)
#pragma unroll
          for (int j = 0; j < P; ++j) values[o][j] = single[o];
      }
#pragma unroll
      for (int j = 0; j < P; ++j) {
        C at[N];
#pragma unroll
        for (int o = 0; o < N; ++o) at[o] = values[o][j];
        results[j] = f(at);
      }
      if (whole)
        write_whole(out + start + p * step, narrow_pack<T>(results).whole);
      else
        write(out, start + p * step, count, results);
    }
  }
}
