// Layer norm and RMS norm over the rows of a matrix, and their gradients: one read of each operand, one write.
#include "common.cuh"

// (x - mean) / sqrt(variance + eps) * scale + bias, without the mean unless CENTRED; scale and bias may be null.
template <class T, int LANES, int ITEMS, bool CENTRED>
__global__ void __launch_bounds__(THREADS<T, LANES, ITEMS>, BLOCKS<T, ITEMS>)
norm(const T* x, const T* scale, const T* bias, T* out, index_t rows, index_t length, double eps) {
  typedef compute<T> C;
  Group<LANES> group;
  FOR_ROWS(group, row, rows) {
    Row<T, LANES, ITEMS, 1> line(group, row, rows, length, true, x);
    C mean = 0, square = 0;
    if (CENTRED) {
      line.each([&](C v, C, index_t) { mean += v; });
      mean = total<LANES>(mean) / length;
    }
    line.each([&](C& v, C, index_t) {
      C centred = v - mean;
      if (line.HELD) v = centred;
      square += centred * centred;
    });
    C inverse = C(1) / sqrt(total<LANES>(square) / length + C(eps));
    line.packs([&](C (&v)[1][PACK<T>], index_t start, int) {
      C factor[PACK<T>], shift[PACK<T>], y[PACK<T>];
#pragma unroll
      for (int j = 0; j < PACK<T>; ++j) factor[j] = 1, shift[j] = 0;
      if (scale) read(scale, start, line.length, factor);
      if (bias) read(bias, start, line.length, shift);
#pragma unroll
      for (int j = 0; j < PACK<T>; ++j)
        y[j] = (line.HELD ? v[0][j] : v[0][j] - mean) * (inverse * factor[j]) + shift[j];
      write(out + row * length, start, line.length, y);
    });
  }
}

// The gradient for x, and for the scale a row of partial sums per block, to be added by column_sum. A thread has the
// same columns in every row, and so accumulates its share of the scale's gradient in registers.
template <class T, int LANES, int ITEMS, bool CENTRED>
__global__ void __launch_bounds__(THREADS<T, LANES, ITEMS>)
norm_backward(const T* grad, const T* x, const T* scale, T* out, compute<T>* partial, index_t rows, index_t length,
              double eps) {
  typedef compute<T> C;
  typedef Row<T, LANES, ITEMS, 2> Line;
  constexpr int P = PACK<T>;
  Group<LANES> group;
  C* sums = partial + blockIdx.x * length;
  C grad_scale[Line::PACKS][P] = {};
  if constexpr (ITEMS == 0)
    for (index_t i = threadIdx.x; i < length; i += blockDim.x) sums[i] = 0;
  __syncthreads();
  FOR_ROWS(group, row, rows) {
    Line line(group, row, rows, length, false, grad, x);
    C mean = 0, total_inner = 0, square = 0, product = 0;
    line.packs([&](C (&v)[2][P], index_t start, int) {
      C factor[P];
      read(scale, start, length, factor);
#pragma unroll
      for (int j = 0; j < P; ++j)
        if (start + j < length) mean += v[1][j], total_inner += v[0][j] * factor[j];
    });
    mean = CENTRED ? total<LANES>(mean) / length : C(0);
    total_inner = CENTRED ? total<LANES>(total_inner) / length : C(0);
    line.packs([&](C (&v)[2][P], index_t start, int) {
      C factor[P];
      read(scale, start, length, factor);
#pragma unroll
      for (int j = 0; j < P; ++j)
        if (start + j < length) {
          C centred = v[1][j] - mean;
          square += centred * centred, product += v[0][j] * factor[j] * centred;
        }
    });
    C inverse = C(1) / sqrt(total<LANES>(square) / length + C(eps));
    C slope = total<LANES>(product) * inverse / length;
    line.packs([&](C (&v)[2][P], index_t start, int p) {
      C factor[P], y[P];
      read(scale, start, length, factor);
#pragma unroll
      for (int j = 0; j < P; ++j) {
        C normal = (v[1][j] - mean) * inverse;
        y[j] = (v[0][j] * factor[j] - total_inner - normal * slope) * inverse;
        if (start + j < length) {
          if constexpr (ITEMS > 0)
            grad_scale[p][j] += v[0][j] * normal;
          else
            sums[start + j] += v[0][j] * normal;
        }
      }
      write(out + row * length, start, line.length, y);
    });
  }
  if constexpr (ITEMS > 0) {
    if constexpr (LANES == 0) {
#pragma unroll
      for (int p = 0; p < Line::PACKS; ++p)
#pragma unroll
        for (int j = 0; j < P; ++j) {
          index_t column = ((index_t)group.lane + p * group.size) * P + j;
          if (column < length) sums[column] = grad_scale[p][j];
        }
    } else {  // one group of the block after the other, for reproducible sums
      __shared__ C block_sums[LANES * Line::PACKS * P];
      for (int turn = 0; turn < group.rows; ++turn) {
        if (group.row == turn)
#pragma unroll
          for (int p = 0; p < Line::PACKS; ++p)
#pragma unroll
            for (int j = 0; j < P; ++j) {
              C& sum = block_sums[(group.lane + p * LANES) * P + j];
              sum = (turn ? sum : C(0)) + grad_scale[p][j];
            }
        __syncthreads();
      }
      for (int i = threadIdx.x; i < length; i += blockDim.x) sums[i] = block_sums[i];
    }
  }
}

// out[column] = the sum of a matrix column; blocks of 32 columns by 32 rows.
template <class T>
__global__ void __launch_bounds__(1024) column_sum(const compute<T>* x, T* out, index_t rows, index_t length) {
  typedef compute<T> C;
  __shared__ C sums[32][33];
  index_t column = blockIdx.x * 32ll + threadIdx.x;
  C sum = 0;
  if (column < length) {
#pragma unroll 4
    for (index_t row = threadIdx.y; row < rows; row += 32) sum += x[row * length + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  // Transposed, so that a warp has a column.
  sum = total<32>(sums[threadIdx.x][threadIdx.y]);
  column = blockIdx.x * 32ll + threadIdx.y;
  if (threadIdx.x == 0 && column < length) narrow(sum, out[column]);
}
