// Softmax, log-softmax and their gradients over the rows of a matrix: one read and one write of each element if a row
// fits in its group's registers.
#include "common.cuh"

template <class T, int LANES, int ITEMS>
__global__ void __launch_bounds__(THREADS<T, LANES>) softmax(const T* x, T* out, index_t rows, index_t length) {
  typedef compute<T> C;
  Group<LANES> group;
  FOR_ROWS(group, row, rows) {
    Row<T, LANES, ITEMS, 1> line(group, row, rows, length, true, x);
    C top = -infinity(C(0)), sum = 0;
    line.each([&](C v, C, index_t) { top = Max()(top, v); });
    top = largest<LANES>(top);
    line.each([&](C& v, C, index_t) {
      C power = exp(v - top);
      if (line.HELD) v = power;
      sum += power;
    });
    C inverse = C(1) / total<LANES>(sum);
    line.store(out + row * length, [&](C v, C, index_t) { return (line.HELD ? v : exp(v - top)) * inverse; });
  }
}

template <class T, int LANES, int ITEMS>
__global__ void __launch_bounds__(THREADS<T, LANES>)
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
__global__ void __launch_bounds__(THREADS<T, LANES>) log_softmax(const T* x, T* out, index_t rows, index_t length) {
  typedef compute<T> C;
  Group<LANES> group;
  FOR_ROWS(group, row, rows) {
    Row<T, LANES, ITEMS, 1> line(group, row, rows, length, true, x);
    C top = -infinity(C(0)), sum = 0;
    line.each([&](C v, C, index_t) { top = Max()(top, v); });
    top = largest<LANES>(top);
    line.each([&](C v, C, index_t) { sum += exp(v - top); });
    C logarithm = log(total<LANES>(sum));
    line.store(out + row * length, [&](C v, C, index_t) { return v - top - logarithm; });
  }
}

template <class T, int LANES, int ITEMS>
__global__ void __launch_bounds__(THREADS<T, LANES>)
log_softmax_backward(const T* grad, const T* y, T* out, index_t rows, index_t length) {
  typedef compute<T> C;
  Group<LANES> group;
  FOR_ROWS(group, row, rows) {
    Row<T, LANES, ITEMS, 2> line(group, row, rows, length, true, grad, y);
    C sum = 0;
    line.each([&](C g, C, index_t) { sum += g; });
    sum = total<LANES>(sum);
    line.store(out + row * length, [&](C g, C v, index_t) { return g - exp(v) * sum; });
  }
}
