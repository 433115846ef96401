// Element-wise GELU, SiLU and ReLU, their gradients, and those of sigmoid and tanh.
#include "map.cuh"

// 2 sqrt(2 / pi) and 0.044715 times it: tanh GELU is x sigmoid(LINEAR x + CUBIC x^3). Linear beyond FLAT.
constexpr double LINEAR = 1.5957691216057308, CUBIC = LINEAR * 0.044715, FLAT = 32;
// sqrt(1/2), and the normal density at 0. Below -ZERO exact GELU is 0; clamping avoids infinity times 0.
constexpr double ROOT_HALF = 0.7071067811865476, DENSITY = 0.3989422804014327, ZERO = 40;

template <class T> __global__ void __launch_bounds__(256) gelu(const T* x, T* out, index_t count) {
  typedef compute<T> C;
  map<T>({x}, out, count, [](const C* at) {
    C v = at[0];
    v = v < -C(ZERO) ? -C(ZERO) : v;
    return v * C(0.5) * erfc(-v * C(ROOT_HALF));
  });
}

template <class T>
__global__ void __launch_bounds__(256) gelu_backward(const T* grad, const T* x, T* out, index_t count) {
  typedef compute<T> C;
  map<T>({grad, x}, out, count, [](const C* at) {
    C g = at[0], v = at[1];
    v = v > C(ZERO) ? C(ZERO) : v < -C(ZERO) ? -C(ZERO) : v;
    return g * (erfc(-v * C(ROOT_HALF)) * C(0.5) + v * (exponential<T>(v * v * C(-0.5)) * C(DENSITY)));
  });
}

template <class T> __global__ void __launch_bounds__(256) gelu_tanh(const T* x, T* out, index_t count) {
  typedef compute<T> C;
  map<T>({x}, out, count, [](const C* at) {
    const C v = at[0];
    return gated<T>(v, v * (v * v * C(CUBIC) + C(LINEAR)));
  });
}

template <class T>
__global__ void __launch_bounds__(256) gelu_tanh_backward(const T* grad, const T* x, T* out, index_t count) {
  typedef compute<T> C;
  map<T>({grad, x}, out, count, [](const C* at) {
    C g = at[0], v = at[1];
    v = v > C(FLAT) ? C(FLAT) : v < -C(FLAT) ? -C(FLAT) : v;  // beyond, exp overflows, and infinity times 0 is NaN
    C gate = gated<T>(C(1), v * (v * v * C(CUBIC) + C(LINEAR)));
    return g * (gate * (C(1) + v * (v * v * C(3 * CUBIC) + C(LINEAR)) * (C(1) - gate)));
  });
}

template <class T> __global__ void __launch_bounds__(256) relu(const T* x, T* out, index_t count) {
  typedef compute<T> C;
  map<T>({x}, out, count, [](const C* at) { return larger(at[0], C(0)); });
}

template <class T>
__global__ void __launch_bounds__(256) relu_backward(const T* grad, const T* y, T* out, index_t count) {
  typedef compute<T> C;
  map<T>({grad, y}, out, count, [](const C* at) { return at[1] > 0 ? at[0] : C(0); });
}

template <class T>
__global__ void __launch_bounds__(256) sigmoid_backward(const T* grad, const T* y, T* out, index_t count) {
  typedef compute<T> C;
  map<T>({grad, y}, out, count, [](const C* at) { return at[0] * (at[1] * (C(1) - at[1])); });
}

template <class T>
__global__ void __launch_bounds__(256) tanh_backward(const T* grad, const T* y, T* out, index_t count) {
  typedef compute<T> C;
  map<T>({grad, y}, out, count, [](const C* at) { return at[0] * (C(1) - at[1] * at[1]); });
}

template <class T> __global__ void __launch_bounds__(256) silu(const T* x, T* out, index_t count) {
  typedef compute<T> C;
  map<T>({x}, out, count, [](const C* at) { return gated<T>(at[0], at[0]); });
}

template <class T>
__global__ void __launch_bounds__(256) silu_backward(const T* grad, const T* x, T* out, index_t count) {
  typedef compute<T> C;
  map<T>({grad, x}, out, count, [](const C* at) {
    const C g = at[0], v = at[1];
    C gate = gated<T>(C(1), v);
    return g * (gate * (C(1) + v * (C(1) - gate)));
  });
}
