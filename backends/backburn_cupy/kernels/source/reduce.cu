// Sums of all elements of an array that is too small for more than a block.
#include "common.cuh"

template <class T>
__global__ void __launch_bounds__(1024) sum_all(const T* x, T* out, index_t count, double divisor) {
  typedef compute<T> C;
  C sum = 0;
  for (index_t i = threadIdx.x; i < count; i += blockDim.x) sum += widen(x[i]);
  sum = total<0>(sum);
  if (threadIdx.x == 0) narrow(sum / C(divisor), out[0]);
}
