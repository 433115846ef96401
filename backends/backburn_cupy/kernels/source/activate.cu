// Element-wise GELU and SiLU, their gradients, and those of ReLU, sigmoid and tanh; each thread has two 16-byte
// accesses per operand in flight.
#include "common.cuh"

constexpr int PACKS_EACH = 2;

template <class T, class F>
__device__ inline void map(const T* first, const T* second, T* out, index_t count, F f) {
  typedef compute<T> C;
  constexpr int P = PACK<T>;
  index_t step = (index_t)blockDim.x * P;
  for (index_t block = blockIdx.x * step * PACKS_EACH; block < count; block += gridDim.x * step * PACKS_EACH) {
    C a[PACKS_EACH][P], b[PACKS_EACH][P];
#pragma unroll
    for (int p = 0; p < PACKS_EACH; ++p) {
      index_t start = block + threadIdx.x * P + p * step;
      if (start < count) read(first, start, count, a[p]);
      if (second && start < count) read(second, start, count, b[p]);
    }
#pragma unroll
    for (int p = 0; p < PACKS_EACH; ++p) {
      index_t start = block + threadIdx.x * P + p * step;
#pragma unroll
      for (int j = 0; j < P; ++j) a[p][j] = f(a[p][j], b[p][j]);
      if (start < count) write(out, start, count, a[p]);
    }
  }
}

// 2 sqrt(2 / pi) and 0.044715 times it: tanh GELU is x sigmoid(LINEAR x + CUBIC x^3). Linear beyond FLAT.
constexpr double LINEAR = 1.5957691216057308, CUBIC = LINEAR * 0.044715, FLAT = 32;
// sqrt(1/2), and the normal density at 0. Below -ZERO exact GELU is 0; clamping avoids infinity times 0.
constexpr double ROOT_HALF = 0.7071067811865476, DENSITY = 0.3989422804014327, ZERO = 40;

template <class T> __global__ void __launch_bounds__(256) gelu(const T* x, T* out, index_t count) {
  typedef compute<T> C;
  map(x, (const T*)nullptr, out, count, [](C v, C) {
    v = v < -C(ZERO) ? -C(ZERO) : v;
    return v * C(0.5) * erfc(-v * C(ROOT_HALF));
  });
}

template <class T>
__global__ void __launch_bounds__(256) gelu_backward(const T* grad, const T* x, T* out, index_t count) {
  typedef compute<T> C;
  map(grad, x, out, count, [](C g, C v) {
    v = v > C(ZERO) ? C(ZERO) : v < -C(ZERO) ? -C(ZERO) : v;
    return g * (erfc(-v * C(ROOT_HALF)) * C(0.5) + v * (exp(v * v * C(-0.5)) * C(DENSITY)));
  });
}

template <class T> __global__ void __launch_bounds__(256) gelu_tanh(const T* x, T* out, index_t count) {
  typedef compute<T> C;
  map(x, (const T*)nullptr, out, count, [](C v, C) {
    return v / (C(1) + exp(-v * (v * v * C(CUBIC) + C(LINEAR))));
  });
}

template <class T>
__global__ void __launch_bounds__(256) gelu_tanh_backward(const T* grad, const T* x, T* out, index_t count) {
  typedef compute<T> C;
  map(grad, x, out, count, [](C g, C v) {
    v = v > C(FLAT) ? C(FLAT) : v < -C(FLAT) ? -C(FLAT) : v;  // beyond, exp overflows, and infinity times 0 is NaN
    C gate = C(1) / (C(1) + exp(-v * (v * v * C(CUBIC) + C(LINEAR))));
    return g * (gate * (C(1) + v * (v * v * C(3 * CUBIC) + C(LINEAR)) * (C(1) - gate)));
  });
}

template <class T>
__global__ void __launch_bounds__(256) relu_backward(const T* grad, const T* y, T* out, index_t count) {
  typedef compute<T> C;
  map(grad, y, out, count, [](C g, C v) { return v > 0 ? g : C(0); });
}

template <class T>
__global__ void __launch_bounds__(256) sigmoid_backward(const T* grad, const T* y, T* out, index_t count) {
  typedef compute<T> C;
  map(grad, y, out, count, [](C g, C v) { return g * (v * (C(1) - v)); });
}

template <class T>
__global__ void __launch_bounds__(256) tanh_backward(const T* grad, const T* y, T* out, index_t count) {
  typedef compute<T> C;
  map(grad, y, out, count, [](C g, C v) { return g * (C(1) - v * v); });
}

template <class T> __global__ void __launch_bounds__(256) silu(const T* x, T* out, index_t count) {
  typedef compute<T> C;
  map(x, (const T*)nullptr, out, count, [](C v, C) { return v / (C(1) + exp(-v)); });
}

template <class T>
__global__ void __launch_bounds__(256) silu_backward(const T* grad, const T* x, T* out, index_t count) {
  typedef compute<T> C;
  map(grad, x, out, count, [](C g, C v) {
    C gate = C(1) / (C(1) + exp(-v));
    return g * (gate * (C(1) + v * (C(1) - gate)));
  });
}
