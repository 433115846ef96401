// The first out-of-range index found by a kernel; the host checks when it synchronizes anyway.
#pragma once
#include "common.cuh"

struct Fault { index_t found, index, length; };

__device__ inline void report(Fault* fault, index_t index, index_t length) {
  if (fault && atomicCAS((word_t*)&fault->found, 0ull, 1ull) == 0) fault->index = index, fault->length = length;
}
