// The largest element of a row, and the sum of the exponentials that are shifted by it.
#pragma once
#include "common.cuh"

template <class T, int LANES, class L> __device__ inline void powers(L& line, compute<T>& top, compute<T>& sum) {
  typedef compute<T> C;
  constexpr int P = PACK<T>;
  C mine = -infinity(C(0));
  sum = 0;
  if constexpr (L::HELD) {
    line.each([&](C v, C, index_t) { mine = Max()(mine, v); });
    top = largest<LANES>(mine);
    line.each([&](C v, C, index_t) { sum += exponential<T>(v - top); });
    sum = total<LANES>(sum);
  } else {
    // Each thread shifts by its largest element so far, so the row is read once; never by -infinity.
    line.packs([&](auto& values, index_t start, int) {
      C(&v)[P] = values[0];
      if (start < 0 || start + P > line.length)
#pragma unroll
        for (int j = 0; j < P; ++j)
          if (start + j < 0 || start + j >= line.length) v[j] = -infinity(C(0));
      C most = mine;
#pragma unroll
      for (int j = 0; j < P; ++j) most = Max()(most, v[j]);
      C base = most == -infinity(C(0)) ? C(0) : most;
      sum *= exponential<T>(mine - base);
#pragma unroll
      for (int j = 0; j < P; ++j) sum += exponential<T>(v[j] - base);
      mine = most;
    });
    top = largest<LANES>(mine);
    sum = total<LANES>(sum * exponential<T>(mine - (top == -infinity(C(0)) ? C(0) : top)));
  }
}
