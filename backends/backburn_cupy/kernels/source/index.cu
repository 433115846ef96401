// Rows of a table by index, and the sums of their gradient. An index out of range is reported and skipped.
#include "common.cuh"
#include "fault.cuh"

__device__ inline index_t wrap_index(index_t index, index_t length, Fault* fault) {
  if (index >= -length && index < length) return index < 0 ? index + length : index;
  report(fault, index, length);
  return -1;
}

// Indices wrapped to 0 to length - 1; one out of range becomes `length`, which sorts last.
__global__ void __launch_bounds__(256)
wrap_indices(const index_t* indices, index_t* out, index_t count, index_t length, Fault* fault) {
  for (index_t i = blockIdx.x * (index_t)blockDim.x + threadIdx.x; i < count; i += (index_t)gridDim.x * blockDim.x) {
    index_t index = wrap_index(indices[i], length, fault);
    out[i] = index < 0 ? length : index;
  }
}

// A warp per row, eight rows per block. Bits are copied unchanged.
template <class T> __global__ void __launch_bounds__(256)
take_rows(const T* table, const index_t* indices, T* out, index_t count, index_t width, index_t length, Fault* fault) {
  constexpr int P = PACK<T>;
  for (index_t row = blockIdx.x * 8ll + threadIdx.y; row < count; row += gridDim.x * 8ll) {
    index_t index = wrap_index(indices[row], length, threadIdx.x == 0 ? fault : nullptr);
    const T* source = table + index * width;
    T* target = out + row * width;
    if (index >= 0 && width % P == 0 && is_aligned(source) && is_aligned(target)) {
#pragma unroll 4
      for (index_t start = threadIdx.x * P; start < width; start += 32 * P)
        *reinterpret_cast<uint4*>(target + start) = *reinterpret_cast<const uint4*>(source + start);
    } else {
      for (index_t i = threadIdx.x; i < width; i += 32) target[i] = index >= 0 ? source[i] : T{};
    }
  }
}

// sums[index] += grad's row, in no fixed order.
template <class T> __global__ void __launch_bounds__(256)
add_rows(const T* grad, const index_t* indices, compute<T>* sums, index_t count, index_t width, index_t length,
         Fault* fault) {
  for (index_t row = blockIdx.x * 8ll + threadIdx.y; row < count; row += gridDim.x * 8ll) {
    index_t index = wrap_index(indices[row], length, threadIdx.x == 0 ? fault : nullptr);
    if (index < 0) continue;
    for (index_t i = threadIdx.x; i < width; i += 32) atomicAdd(&sums[index * width + i], widen(grad[row * width + i]));
  }
}

// Sums of grad's rows in a fixed order. `keys` are sorted indices, `order` their original positions. A block has a chunk
// of CHUNK rows and a tile of columns; runs continued from the previous chunk, or into the next, go to heads and tails.
constexpr int CHUNK = 32;

template <class T> __global__ void __launch_bounds__(256)
sum_runs(const T* grad, const index_t* order, const index_t* keys, T* out, compute<T>* heads, compute<T>* tails,
         index_t count, index_t width, index_t length, index_t tiles) {
  typedef compute<T> C;
  index_t chunk = blockIdx.x / tiles, column = blockIdx.x % tiles * blockDim.x + threadIdx.x;
  index_t begin = chunk * CHUNK, end = begin + CHUNK < count ? begin + CHUNK : count;
  if (column >= width) return;
  C sum = 0;
  bool is_head = begin > 0 && keys[begin - 1] == keys[begin];
#pragma unroll 4
  for (index_t i = begin; i < end; ++i) {
    index_t key = keys[i];
    sum += widen(grad[order[i] * width + column]);
    if (i + 1 < end && keys[i + 1] == key) continue;
    bool is_tail = i + 1 == end && end < count && keys[end] == key;
    if (is_head)
      heads[chunk * width + column] = sum;
    else if (is_tail)
      tails[chunk * width + column] = sum;
    else if (key < length)
      narrow(sum, out[key * width + column]);
    sum = 0, is_head = false;
  }
}

// A run over several chunks: the tail of its first chunk, and the heads of the next ones.
template <class T> __global__ void __launch_bounds__(256)
join_runs(const index_t* keys, T* out, const compute<T>* heads, const compute<T>* tails, index_t count, index_t width,
          index_t length, index_t tiles) {
  typedef compute<T> C;
  index_t chunk = blockIdx.x / tiles, column = blockIdx.x % tiles * blockDim.x + threadIdx.x;
  index_t begin = chunk * CHUNK, end = begin + CHUNK;
  if (column >= width || end >= count) return;
  index_t key = keys[end - 1];
  // Only for a run that starts in this chunk and continues in the next.
  if (keys[end] != key || key >= length || (begin > 0 && keys[begin - 1] == key)) return;
  C sum = tails[chunk * width + column];
  for (++chunk; chunk * CHUNK < count && keys[chunk * CHUNK] == key; ++chunk) sum += heads[chunk * width + column];
  narrow(sum, out[key * width + column]);
}
