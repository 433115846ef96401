// Max and average pooling. A thread computes one result from its window.
#include "windows.cuh"

// The indices along the last three axes of element `i` of a contiguous array; returns the index of the matrix.
__device__ inline index_t split_index(index_t i, const index_t (&lengths)[3], int (&at)[3]) {
#pragma unroll
  for (int a = 2; a >= 0; --a) {
    at[a] = i % lengths[a];
    i /= lengths[a];
  }
  return i;
}

// f(index within the matrix, value) for each window element inside the array, in order
template <class T, class F>
__device__ inline void each_in_window(const T* x, const Windows& w, index_t matrix, const int (&window)[3], F f) {
  x += matrix / w.channels * w.example + matrix % w.channels * w.channel;
  int start[3], tap[3];
#pragma unroll
  for (int a = 0; a < 3; ++a) start[a] = window[a] * (int)w.stride[a] - (int)w.before[a];
  for (tap[0] = 0; tap[0] < w.window[0]; ++tap[0])
    for (tap[1] = 0; tap[1] < w.window[1]; ++tap[1])
      for (tap[2] = 0; tap[2] < w.window[2]; ++tap[2]) {
        index_t number = 0, place = 0;
        bool exists = true;
#pragma unroll
        for (int a = 0; a < 3; ++a) {
          int position = start[a] + tap[a] * (int)w.dilation[a];
          exists = exists && position >= 0 && position < w.sizes[a];
          number = number * w.sizes[a] + position, place += position * w.step[a];
        }
        if (exists) f(number, widen(x[place]));
      }
}

// Ties go to the first element; the first NaN wins over all.
template <class T>
__global__ void __launch_bounds__(256)
max_pool(const T* x, T* out, index_t* index, const __grid_constant__ Windows w, index_t count) {
  for (index_t i = (index_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (index_t)gridDim.x * blockDim.x) {
    int window[3];
    index_t matrix = split_index(i, w.places, window), best_index = -1;
    compute<T> best = 0;
    each_in_window(x, w, matrix, window, [&](index_t number, compute<T> v) {
      if (best_index < 0 || v > best || (v != v && best == best)) best = v, best_index = number;
    });
    narrow(best, out[i]);
    index[i] = best_index;
  }
}

// The divisor of a window's sum: the number of its elements inside the array, or with `padded` in the padding, too. At
// the end only `after` counts as padding, not what the last window has beyond it.
struct After { index_t at[3], padded; };
__device__ inline double divisor(const Windows& w, const After& after, const int (&window)[3]) {
  double product = 1;
#pragma unroll
  for (int a = 0; a < 3; ++a) {
    index_t start = window[a] * w.stride[a] - w.before[a], more = w.dilation[a] - 1;
    index_t low = after.padded ? -w.before[a] : 0, high = w.sizes[a] + (after.padded ? after.at[a] : 0);
    index_t first = start < low ? (low - start + more) / w.dilation[a] : 0;
    index_t last = (high - start + more) / w.dilation[a];
    product *= (last < w.window[a] ? last : w.window[a]) - first;
  }
  return product;
}

template <class T>
__global__ void __launch_bounds__(256) avg_pool(
    const T* x, T* out, const __grid_constant__ Windows w, index_t count, index_t after0, index_t after1,
    index_t after2, index_t padded) {
  After after{{after0, after1, after2}, padded};
  for (index_t i = (index_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (index_t)gridDim.x * blockDim.x) {
    int window[3];
    index_t matrix = split_index(i, w.places, window);
    compute<T> sum = 0;
    each_in_window(x, w, matrix, window, [&](index_t, compute<T> v) { sum += v; });
    narrow(sum / compute<T>(divisor(w, after, window)), out[i]);
  }
}

// Each element of `out`, which is contiguous, sums its share of every window that contains it.
template <class T>
__global__ void __launch_bounds__(256) avg_pool_backward(
    const T* grad, T* out, const __grid_constant__ Windows w, index_t count, index_t after0, index_t after1,
    index_t after2, index_t padded) {
  After after{{after0, after1, after2}, padded};
  index_t per_matrix = w.places[0] * w.places[1] * w.places[2];
  for (index_t i = (index_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (index_t)gridDim.x * blockDim.x) {
    int at[3], first[3], last[3], window[3];
    const T* matrix_grad = grad + split_index(i, w.sizes, at) * per_matrix;
#pragma unroll
    for (int a = 0; a < 3; ++a) {
      int from = at[a] + w.before[a], stride = w.stride[a];
      int behind = from - (int)((w.window[a] - 1) * w.dilation[a] + 1);
      first[a] = behind < 0 ? 0 : behind / stride + 1;
      last[a] = from / stride < w.places[a] ? from / stride : w.places[a] - 1;
    }
    compute<T> sum = 0;
    for (window[0] = first[0]; window[0] <= last[0]; ++window[0])
      for (window[1] = first[1]; window[1] <= last[1]; ++window[1])
        for (window[2] = first[2]; window[2] <= last[2]; ++window[2]) {
          bool inside = true;  // and not in a gap of the dilation
#pragma unroll
          for (int a = 0; a < 3; ++a)
            inside = inside && (at[a] + (int)w.before[a] - window[a] * (int)w.stride[a]) % (int)w.dilation[a] == 0;
          if (inside)
            sum += widen(matrix_grad[(window[0] * w.places[1] + window[1]) * w.places[2] + window[2]]) /
                   compute<T>(divisor(w, after, window));
        }
    narrow(sum, out[i]);
  }
}
