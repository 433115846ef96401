// Functions of the elements of some arrays; each thread has up to two 16-byte accesses per operand in flight.
#pragma once
#include "common.cuh"

// out = f(the element of each operand, in an array); operands whose bits are set in `singles` have one element.
template <class T, int N, class F>
__device__ inline void map(const T* const (&operands)[N], T* out, index_t count, F f, index_t singles = 0) {
  typedef compute<T> C;
  constexpr int P = PACK<T>, PACKS = N > 2 ? 1 : 2;
  index_t step = (index_t)blockDim.x * P;
  for (index_t block = blockIdx.x * step * PACKS; block < count; block += gridDim.x * step * PACKS) {
    C in[PACKS][N][P];
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
      index_t start = block + threadIdx.x * P + p * step;
#pragma unroll
      for (int o = 0; o < N; ++o) {
        if (singles >> o & 1) {
#pragma unroll
          for (int j = 0; j < P; ++j) in[p][o][j] = widen(*operands[o]);
        } else if (start < count) {
          read(operands[o], start, count, in[p][o]);
        }
      }
    }
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
      index_t start = block + threadIdx.x * P + p * step;
      C results[P];
#pragma unroll
      for (int j = 0; j < P; ++j) {
        C at[N];
#pragma unroll
        for (int o = 0; o < N; ++o) at[o] = in[p][o][j];
        results[j] = f(at);
      }
      if (start < count) write(out, start, count, results);
    }
  }
}
