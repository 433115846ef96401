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

// Whether the shares of a row add up to 1. Then 1 minus the share above 1/2 is computed as the sum of the others: the
// difference would have few digits, or none.
template <class C> __device__ inline bool complete(C sum) {
  return fabs(sum - C(1)) < (sizeof(C) == 8 ? C(1e-12) : C(4e-3));
}

template <class T, int LANES, int ITEMS>
__global__ void __launch_bounds__(THREADS<T, LANES, ITEMS>)
softmax_backward(const T* grad, const T* y, T* out, index_t rows, index_t length) {
  typedef compute<T> C;
  Group<LANES> group;
  FOR_ROWS(group, row, rows) {
    Row<T, LANES, ITEMS, 2> line(group, row, rows, length, true, grad, y);
    C others = 0, of_others = 0, winner = 0, of_winner = 0;
    line.each([&](C g, C v, index_t) {
      if (v > C(0.5)) winner += v, of_winner += g * v;
      else others += v, of_others += g * v;
    });
    others = total<LANES>(others), of_others = total<LANES>(of_others);
    winner = total<LANES>(winner), of_winner = total<LANES>(of_winner);
    const bool full = complete(others + winner);
    const C sum = of_others + of_winner;
    line.store(out + row * length, [&](C g, C v, index_t) {
      return v * (full && v > C(0.5) ? g * others - of_others : g - sum);
    });
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
    C others = 0, of_others = 0, winner = 0, of_winner = 0;
    line.each([&](C g, C v, index_t) {
      const C share = exponential<T>(v);
      if (share > C(0.5)) winner += share, of_winner += g;
      else others += share, of_others += g;
    });
    others = total<LANES>(others), of_others = total<LANES>(of_others);
    winner = total<LANES>(winner), of_winner = total<LANES>(of_winner);
    const bool full = complete(others + winner);
    const C sum = of_others + of_winner;
    line.store(out + row * length, [&](C g, C v, index_t) {
      const C share = exponential<T>(v);
      return full && share > C(0.5) ? g * others - share * of_others : g - share * sum;
    });
  }
}
