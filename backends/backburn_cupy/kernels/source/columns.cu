// For convolutions as products: the windows of an array as columns of a matrix (im2col), and their sums (col2im).
#include "windows.cuh"

// Row (channel, element of the window) has that element of every window, over all positions and examples. Each row
// takes `blocks` blocks; a thread writes one pack.
template <class T>
__global__ void __launch_bounds__(256) columns(const T* x, T* out, const __grid_constant__ Windows w, index_t blocks) {
  constexpr int P = PACK<T>;
  index_t row = blockIdx.x / blocks, first = (blockIdx.x % blocks * blockDim.x + threadIdx.x) * P;
  int per_example = w.places[0] * w.places[1] * w.places[2], rest = row % (w.window[0] * w.window[1] * w.window[2]);
  index_t length = w.examples * per_example;
  if (first >= length) return;
  int at[3], offset[3];  // the position of the window, and the element's offset from it
#pragma unroll
  for (int a = 2; a >= 0; --a) {
    offset[a] = rest % w.window[a] * w.dilation[a] - w.before[a];
    rest /= w.window[a];
  }
  index_t example = first / per_example;
  rest = first % per_example;
#pragma unroll
  for (int a = 2; a >= 0; --a) {
    at[a] = rest % (int)w.places[a];
    rest /= (int)w.places[a];
  }
  x += row / (w.window[0] * w.window[1] * w.window[2]) * w.channel;
  compute<T> values[P];
#pragma unroll
  for (int i = 0; i < P; ++i) {
    index_t place = example * w.example;
    bool exists = first + i < length;
#pragma unroll
    for (int a = 0; a < 3; ++a) {
      int position = at[a] * (int)w.stride[a] + offset[a];
      exists = exists && position >= 0 && position < w.sizes[a];
      place += position * w.step[a];
    }
    values[i] = exists ? widen(x[place]) : compute<T>(0);
    if (++at[2] == w.places[2] && (at[2] = 0, ++at[1] == w.places[1]) && (at[1] = 0, ++at[0] == w.places[0]))
      at[0] = 0, ++example;
  }
  write(out + row * length, first, length, values);
}

// For each element of a contiguous array, the sum of the window elements at its position.
template <class T>
__global__ void __launch_bounds__(256)
add_columns(const compute<T>* columns, T* out, const __grid_constant__ Windows w, index_t count) {
  index_t per_example = w.places[0] * w.places[1] * w.places[2], length = w.examples * per_example;
  int taps = w.window[0] * w.window[1] * w.window[2];
  for (index_t i = (index_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (index_t)gridDim.x * blockDim.x) {
    index_t rest = i;
    int at[3];
#pragma unroll
    for (int a = 2; a >= 0; --a) {
      at[a] = rest % w.sizes[a] + w.before[a];
      rest /= w.sizes[a];
    }
    const compute<T>* tap_row = columns + rest % w.channels * taps * length + rest / w.channels * per_example;
    compute<T> sum = 0;
    int tap[3];
    for (tap[0] = 0; tap[0] < w.window[0]; ++tap[0])
      for (tap[1] = 0; tap[1] < w.window[1]; ++tap[1])
        for (tap[2] = 0; tap[2] < w.window[2]; ++tap[2], tap_row += length) {
          bool exists = true;
          index_t place = 0;
#pragma unroll
          for (int a = 0; a < 3; ++a) {
            int from = at[a] - tap[a] * (int)w.dilation[a], stride = w.stride[a];
            exists = exists && from >= 0 && from % stride == 0 && from / stride < w.places[a];
            place = place * w.places[a] + from / stride;
          }
          if (exists) sum += tap_row[place];
        }
    narrow(sum, out[i]);
  }
}
