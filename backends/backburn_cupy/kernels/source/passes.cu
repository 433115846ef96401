// The sums of columns that a pass has written for each of its groups of threads: blocks of 32 columns by 32 groups.
#include "common.cuh"

template <class T>
__global__ void __launch_bounds__(1024) sum_groups(const double* x, T* out, index_t groups, index_t length) {
  __shared__ double sums[32][33];
  index_t column = blockIdx.x * 32ll + threadIdx.x;
  double sum = 0;
  if (column < length) {
#pragma unroll 4
    for (index_t group = threadIdx.y; group < groups; group += 32) sum += x[group * length + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  // Transposed, so that a warp has a column.
  sum = total<32>(sums[threadIdx.x][threadIdx.y]);
  column = blockIdx.x * 32ll + threadIdx.y;
  if (threadIdx.x == 0 && column < length) narrow(compute<T>(sum), out[column]);
}
