// Softmax, log-softmax and their gradients over the rows of a matrix: one read and one write of each element if a row
// fits in its group's registers.
#include "powers.cuh"

template <class T, int LANES, int ITEMS>
__global__ void __launch_bounds__(THREADS<T, LANES, ITEMS>, BLOCKS<T, ITEMS>)
softmax(const T* x, T* out, index_t rows, index_t length) {
  typedef compute<T> C;
  Group<LANES> group;
  FOR_ROWS(group, row, rows) {
    Row<T, LANES, ITEMS, 1> line(group, row, rows, length, true, x);
    C top = -infinity(C(0)), sum = 0;
    if constexpr (ITEMS > 0) {
      line.each([&](C v, C, index_t) { top = Max()(top, v); });
      top = largest<LANES>(top);
      line.each([&](C& v, C, index_t) { sum += v = exponential<T>(v - top); });
      sum = total<LANES>(sum);
    } else {
      powers<T, LANES>(line, top, sum);
    }
    C inverse = C(1) / sum;
    line.store(out + row * length, [&](C v, C, index_t) { return (ITEMS ? v : exponential<T>(v - top)) * inverse; });
  }
}

template <class T, int LANES, int ITEMS>
__global__ void __launch_bounds__(THREADS<T, LANES, ITEMS>)
softmax_backward(const T* grad, const T* y, T* out, index_t rows, index_t length) {
  typedef compute<T> C;
  Group<LANES> group;
  FOR_ROWS(group, row, rows) {
    Row<T, LANES, ITEMS, 2> line(group, row, rows, length, true, grad, y);
    C sum = 0;
    line.each([&](C g, C v, index_t) { sum += g * v; });
    sum = total<LANES>(sum);
    line.store(out + row * length, [&](C g, C v, index_t) { return v * (g - sum); });
  }
}

template <class T, int LANES, int ITEMS>
__global__ void __launch_bounds__(THREADS<T, LANES, ITEMS>, BLOCKS<T, ITEMS>)
log_softmax(const T* x, T* out, index_t rows, index_t length) {
  typedef compute<T> C;
  Group<LANES> group;
  FOR_ROWS(group, row, rows) {
    Row<T, LANES, ITEMS, 1> line(group, row, rows, length, true, x);
    C top, sum;
    powers<T, LANES>(line, top, sum);
    C logarithm = log(sum);
    line.store(out + row * length, [&](C v, C, index_t) { return v - top - logarithm; });
  }
}

template <class T, int LANES, int ITEMS>
__global__ void __launch_bounds__(THREADS<T, LANES, ITEMS>)
log_softmax_backward(const T* grad, const T* y, T* out, index_t rows, index_t length) {
  typedef compute<T> C;
  Group<LANES> group;
  FOR_ROWS(group, row, rows) {
    Row<T, LANES, ITEMS, 2> line(group, row, rows, length, true, grad, y);
    C sum = 0;
    line.each([&](C g, C, index_t) { sum += g; });
    sum = total<LANES>(sum);
    line.store(out + row * length, [&](C g, C v, index_t) { return g - exponential<T>(v) * sum; });
  }
}
