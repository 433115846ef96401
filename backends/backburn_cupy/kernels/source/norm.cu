// Layer norm and RMS norm over the rows of a matrix, and their gradients: one read of each operand, one write.
#include "common.cuh"

// A mean is rounded to a float; the mean of the centred elements, its rest, is the rounding error, which matters in
// rows far from 0. Rows so short that four threads have one are computed in double: subtracting the mean and the slope
// may cancel most digits of their gradients.

// 1 / sqrt(x), and its rounding error.
template <class C> __device__ inline C inverse_root(C x, C& lost) {
  C root = C(1) / sqrt(x), product = x * root;
  lost = C(0.5) * root * (fma(-product, root, C(1)) - fma(x, root, -product) * root);
  if (!(lost - lost == C(0))) lost = 0;  // of 0 and infinity
  return root;
}

// (x - mean) / sqrt(variance + eps) * scale + bias, without the mean unless CENTRED; scale and bias may be null.
template <class T, int LANES, int ITEMS, bool CENTRED>
__global__ void __launch_bounds__(THREADS<T, LANES, ITEMS>, BLOCKS<T, ITEMS>)
norm(const T* x, const T* scale, const T* bias, T* out, index_t rows, index_t length, double eps) {
  typedef compute<T> C;
  typedef arithmetic<T, LANES == 4> A;
  constexpr int P = PACK<T>;
  Group<LANES> group;
  FOR_ROWS(group, row, rows) {
    Row<T, LANES, ITEMS, 1> line(group, row, rows, length, true, x);
    Tally<A> first, left, squares;
    A mean = 0, rest = 0;
    if (CENTRED) {
      line.packs([&](C (&v)[1][P], index_t, int) {  // 0 out of bounds
        A sum = 0;
#pragma unroll
        for (int j = 0; j < P; ++j) sum += v[0][j];
        first += sum;
      });
      mean = total<LANES>(first) / length;
    }
    line.packs([&](C (&v)[1][P], index_t start, int) {
      A sum = 0, square = 0;
#pragma unroll
      for (int j = 0; j < P; ++j)
        if (start + j >= 0 && start + j < line.length) {
          A centred = v[0][j] - mean;
          sum += centred, square += centred * centred;
        }
      left += sum, squares += square;
    });
    if (CENTRED) rest = total<LANES>(left) / length;
    A variance = total<LANES>(squares) / length - rest * rest;
    A lost, inverse = inverse_root((variance < A(0) ? A(0) : variance) + A(eps), lost);
    line.packs([&](C (&v)[1][P], index_t start, int) {
      C factor[P], shift[P], y[P];
#pragma unroll
      for (int j = 0; j < P; ++j) factor[j] = 1, shift[j] = 0;
      if (scale) read(scale, start, line.length, factor);
      if (bias) read(bias, start, line.length, shift);
#pragma unroll
      for (int j = 0; j < P; ++j) {
        A times = inverse * factor[j] + lost * factor[j];
        y[j] = ((v[0][j] - mean) - rest) * times + shift[j];
      }
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
  typedef arithmetic<T, LANES == 4> A;
  typedef Row<T, LANES, ITEMS, 2> Line;
  constexpr int P = PACK<T>;
  Group<LANES> group;
  C* sums = partial + blockIdx.x * length;
  Tally<A> grad_scale[Line::PACKS][P];
  if constexpr (ITEMS == 0)
    for (index_t i = threadIdx.x; i < length; i += blockDim.x) sums[i] = 0;
  __syncthreads();
  FOR_ROWS(group, row, rows) {
    Line line(group, row, rows, length, false, grad, x);
    Tally<A> first, left, squares, inners, products;
    line.packs([&](C (&v)[2][P], index_t start, int) {
      C factor[P];
      A sum = 0, inner = 0;
      read(scale, start, length, factor);
#pragma unroll
      for (int j = 0; j < P; ++j)
        if (start + j < length) sum += v[1][j], inner += A(v[0][j]) * factor[j];
      first += sum, inners += inner;
    });
    A mean = CENTRED ? total<LANES>(first) / length : A(0), inner = CENTRED ? total<LANES>(inners) : A(0);
    line.packs([&](C (&v)[2][P], index_t start, int) {
      C factor[P];
      A sum = 0, square = 0, product = 0;
      read(scale, start, length, factor);
#pragma unroll
      for (int j = 0; j < P; ++j)
        if (start + j < length) {
          A centred = v[1][j] - mean;
          sum += centred, square += centred * centred, product += A(v[0][j]) * factor[j] * centred;
        }
      left += sum, squares += square, products += product;
    });
    A rest = CENTRED ? total<LANES>(left) / length : A(0), variance = total<LANES>(squares) / length - rest * rest;
    A inverse = A(1) / sqrt((variance < A(0) ? A(0) : variance) + A(eps));
    A slope = (total<LANES>(products) - rest * inner) * inverse / length, shift = inner / length;
    line.packs([&](C (&v)[2][P], index_t start, int p) {
      C factor[P], y[P];
      read(scale, start, length, factor);
#pragma unroll
      for (int j = 0; j < P; ++j) {
        A normal = ((v[1][j] - mean) - rest) * inverse;
        y[j] = (A(v[0][j]) * factor[j] - shift - normal * slope) * inverse;
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
          if (column < length) sums[column] = grad_scale[p][j].template value<C>();
        }
    } else {  // one group of the block after the other, for reproducible sums
      __shared__ double block_sums[LANES * Line::PACKS * P];
      for (int turn = 0; turn < group.rows; ++turn) {
        if (group.row == turn)
#pragma unroll
          for (int p = 0; p < Line::PACKS; ++p)
#pragma unroll
            for (int j = 0; j < P; ++j) {
              double& sum = block_sums[(group.lane + p * LANES) * P + j];
              sum = (turn ? sum : 0.0) + grad_scale[p][j].template value<double>();
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
