// Attention of 16-bit floats, and its gradient, on tensor cores: scores are computed tile by tile and never stored.
//
// A warp has 16 rows of queries (or of keys), with accumulators in registers, while the block iterates over tiles of
// the other side, prefetching the next tile to shared memory. After Dao, FlashAttention-2, 2023. The gradient takes two
// kernels, one for queries and one for keys and values: no sum is split among blocks, so results are deterministic.
// Exponentials are powers of 2, with exponents multiplied by log2(e).
#include "tensor_cores.cuh"

constexpr int ATTENTION_WARPS = 4, ATTENTION_ROWS = 16 * ATTENTION_WARPS;  // per block
constexpr float LOG2E = 1.4426950408889634f;

// Matrices over two batch axes; strides in elements. Columns are contiguous; a null address: an absent operand.
struct Stack { word_t at; index_t example, head, row, column; };

struct Attention {
  Stack query, key, value, out, grad, grad_query, grad_key, grad_value, mask, keep;
  // A float per query: its log-sum-exp; the product of its result and the result's gradient.
  word_t logarithms, products;
  index_t heads, queries, keys, size, width, causal, mask_is_bool;
  double scale, keep_scale;  // keep_scale: the factor of weights that are not dropped
};

// A block's part: rows of one matrix of the stack.
struct Part {
  index_t example, head, first;
  __device__ Part(const Attention& a, index_t rows, bool last_first) {
    index_t tiles = (rows + ATTENTION_ROWS - 1) / ATTENTION_ROWS, tile = blockIdx.x % tiles, matrix = blockIdx.x / tiles;
    // With `causal` the last queries have the most work, and start first.
    first = (last_first ? tiles - 1 - tile : tile) * ATTENTION_ROWS;
    head = matrix % a.heads, example = matrix / a.heads;
  }
  template <class T> __device__ T* pointer(const Stack& s) const {
    return reinterpret_cast<T*>(s.at) + example * s.example + head * s.head;
  }
  __device__ float* per_query(const Attention& a, word_t at) const {
    return reinterpret_cast<float*>(at) + (example * a.heads + head) * a.queries;
  }
};

// Scaling (to base 2) and masking of scores before their exponential, and dropout of weights. Without MASKED there is
// neither a mask nor dropout.
template <class T, bool MASKED> struct Masks {
  const Attention& a;
  const T* added = nullptr;
  const bool *allowed = nullptr, *keep = nullptr;
  float scale;
  __device__ Masks(const Attention& a_, const Part& part) : a(a_), scale(float(a_.scale) * LOG2E) {
    if (!MASKED) return;
    if (a.mask.at && a.mask_is_bool) allowed = part.pointer<const bool>(a.mask);
    if (a.mask.at && !a.mask_is_bool) added = part.pointer<const T>(a.mask);
    if (a.keep.at) keep = part.pointer<const bool>(a.keep);
  }
  // Whether a tile has invalid pairs: out of bounds, or of a query and a later key.
  __device__ bool is_partial(index_t first_query, index_t end_query, index_t end_key) const {
    return end_query > a.queries || end_key > a.keys || (a.causal && end_key - 1 > first_query);
  }
  __device__ float score(float product, index_t query, index_t key, bool partial) const {
    float x = product * scale;
    if (partial && (query >= a.queries || key >= a.keys || (a.causal && key > query))) return -infinity(0.0f);
    if (MASKED && allowed && !allowed[query * a.mask.row + key * a.mask.column]) return -infinity(0.0f);
    if (MASKED && added) x += widen(added[query * a.mask.row + key * a.mask.column]) * LOG2E;
    return x;
  }
  __device__ float factor(index_t query, index_t key) const {
    if (!MASKED || !keep) return 1;
    bool exists = query < a.queries && key < a.keys;
    return exists && keep[query * a.keep.row + key * a.keep.column] ? float(a.keep_scale) : 0.0f;
  }
};

// f(fragment and element index of this thread, the row among the block's rows, the column)
template <int COLUMNS, class F> __device__ inline void for_fragments(F f) {
  int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (int n = 0; n < COLUMNS / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) f(n, i, row + i / 2 * 8, n * 8 + lane % 4 * 2 + i % 2);
}

// A reduction over the four threads of a row.
template <class F> __device__ inline float reduce_row(float value, F combine) {
  value = combine(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return combine(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

// Loads this warp's rows of the block's as fragments, through the tiles.
template <class T, int SIZE>
__device__ inline void load_rows(
    unsigned (&a)[SIZE / 16][4], T* tiles, const T* from, const Stack& s, const Part& part, index_t rows, index_t size) {
  load_tile<T, SIZE, ATTENTION_ROWS>(tiles, from, s.row, part.first, rows, size);
  end_group(), await_groups<0>();
  __syncthreads();
  load_fragments<T, SIZE>(a, tiles + threadIdx.x / 32 * 16 * STRIDE<SIZE>);
  __syncthreads();
}

// Two matrices with the same number of rows, read in tiles, double-buffered.
template <class T, int SIZE, int COUNT> struct Pipeline {
  T* tiles;
  const T *first, *second;
  index_t first_step, second_step, rows, first_size, second_size;

  __device__ T* tile(int which, int turn) const { return tiles + (2 * which + turn % 2) * COUNT * STRIDE<SIZE>; }
  __device__ void load(index_t row, int turn) const {
    load_tile<T, SIZE, COUNT>(tile(0, turn), first, first_step, row, rows, first_size);
    load_tile<T, SIZE, COUNT>(tile(1, turn), second, second_step, row, rows, second_size);
    end_group();
  }
  // f(the tiles' first row, the first matrix's tile, the second's)
  template <class F> __device__ void run(index_t start, index_t end, F f) const {
    if (start < end) load(start, 0);
    for (int turn = 0; start < end; start += COUNT, ++turn) {
      if (start + COUNT < end) {
        load(start + COUNT, turn + 1);
        await_groups<1>();
      } else {
        await_groups<0>();
      }
      __syncthreads();
      f(start, tile(0, turn), tile(1, turn));
      __syncthreads();
    }
  }
};

// The rows of a tile: as many as fit four tiles in 48 KB, and their sums in registers.
template <int SIZE> constexpr int KEYS = SIZE > 64 ? 32 : 64;
template <int SIZE> constexpr int QUERIES = SIZE > 64 ? 16 : 32;

template <class T, int SIZE, bool MASKED>
__global__ void __launch_bounds__(32 * ATTENTION_WARPS) attend(const __grid_constant__ Attention a) {
  constexpr int COUNT = KEYS<SIZE>;
  __shared__ uint4 memory[4 * COUNT * STRIDE<SIZE> / 8];
  T* tiles = reinterpret_cast<T*>(memory);
  Part part(a, a.queries, true);
  Masks<T, MASKED> masks(a, part);
  int warp_row = threadIdx.x / 32 * 16;
  unsigned query[SIZE / 16][4];
  load_rows<T, SIZE>(query, tiles, part.pointer<const T>(a.query), a.query, part, a.queries, a.size);

  float out[SIZE / 8][4] = {}, top[2] = {-infinity(0.0f), -infinity(0.0f)}, sum[2] = {};
  Pipeline<T, SIZE, COUNT> pairs{tiles, part.pointer<const T>(a.key), part.pointer<const T>(a.value), a.key.row,
                                 a.value.row, a.keys, a.size, a.width};
  index_t end = a.causal && part.first + ATTENTION_ROWS < a.keys ? part.first + ATTENTION_ROWS : a.keys;
  pairs.run(0, end, [&](index_t first, T* keys, T* values) {
    float weights[COUNT / 8][4] = {}, base[2];
    multiply_by_rows<T, SIZE, COUNT>(weights, query, keys);
    bool partial = masks.is_partial(part.first + warp_row, part.first + warp_row + 16, first + COUNT);
    float highest[2] = {top[0], top[1]};
    for_fragments<COUNT>([&](int n, int i, int row, int column) {
      weights[n][i] = masks.score(weights[n][i], part.first + row, first + column, partial);
      highest[i / 2] = fmaxf(highest[i / 2], weights[n][i]);
    });
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      highest[i] = reduce_row(highest[i], fmaxf);
      base[i] = highest[i] == -infinity(0.0f) ? 0 : highest[i];
      float factor = exp2f(top[i] - base[i]);
      top[i] = highest[i], sum[i] *= factor;
#pragma unroll
      for (int n = 0; n < SIZE / 8; ++n) out[n][2 * i] *= factor, out[n][2 * i + 1] *= factor;
    }
    for_fragments<COUNT>([&](int n, int i, int row, int column) {
      float power = exp2f(weights[n][i] - base[i / 2]);
      sum[i / 2] += power;
      weights[n][i] = power * masks.factor(part.first + row, first + column);
    });
    multiply_by_tile<T, SIZE, COUNT>(out, weights, values);
  });

  int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float all = reduce_row(sum[i], Sum()), inverse = all == 0 ? 0 : 1 / all;
    index_t row = part.first + warp_row + lane / 4 + 8 * i;
    // For a query that attends to nothing, infinity makes all weights 0 in the backward pass as well.
    if (lane % 4 == 0 && row < a.queries)
      part.per_query(a, a.logarithms)[row] = all == 0 ? infinity(0.0f) : top[i] + log2f(all);
#pragma unroll
    for (int n = 0; n < SIZE / 8; ++n) out[n][2 * i] *= inverse, out[n][2 * i + 1] *= inverse;
  }
  store_rows<T, SIZE>(out, tiles + warp_row * STRIDE<SIZE>, part.pointer<T>(a.out), a.out.row, part.first + warp_row,
                      a.queries, a.width);
}

template <class T, int SIZE, bool MASKED>
__global__ void __launch_bounds__(32 * ATTENTION_WARPS) attend_backward_queries(const __grid_constant__ Attention a) {
  constexpr int COUNT = KEYS<SIZE>;
  __shared__ uint4 memory[4 * COUNT * STRIDE<SIZE> / 8];
  T* tiles = reinterpret_cast<T*>(memory);
  Part part(a, a.queries, true);
  Masks<T, MASKED> masks(a, part);
  int warp_row = threadIdx.x / 32 * 16, lane = threadIdx.x % 32;
  unsigned query[SIZE / 16][4], grad[SIZE / 16][4], out[SIZE / 16][4];
  load_rows<T, SIZE>(out, tiles, part.pointer<const T>(a.out), a.out, part, a.queries, a.width);
  load_rows<T, SIZE>(grad, tiles, part.pointer<const T>(a.grad), a.grad, part, a.queries, a.width);
  load_rows<T, SIZE>(query, tiles, part.pointer<const T>(a.query), a.query, part, a.queries, a.size);

  float product[2] = {}, logarithm[2];
#pragma unroll
  for (int n = 0; n < SIZE / 16; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      product[i % 2] += low<T>(out[n][i]) * low<T>(grad[n][i]) + high<T>(out[n][i]) * high<T>(grad[n][i]);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    index_t row = part.first + warp_row + lane / 4 + 8 * i;
    product[i] = reduce_row(product[i], Sum());
    logarithm[i] = row < a.queries ? part.per_query(a, a.logarithms)[row] : infinity(0.0f);
    if (lane % 4 == 0 && row < a.queries) part.per_query(a, a.products)[row] = product[i];
  }

  float grad_query[SIZE / 8][4] = {};
  Pipeline<T, SIZE, COUNT> pairs{tiles, part.pointer<const T>(a.key), part.pointer<const T>(a.value), a.key.row,
                                 a.value.row, a.keys, a.size, a.width};
  index_t end = a.causal && part.first + ATTENTION_ROWS < a.keys ? part.first + ATTENTION_ROWS : a.keys;
  pairs.run(0, end, [&](index_t first, T* keys, T* values) {
    float scores[COUNT / 8][4] = {}, grad_weights[COUNT / 8][4] = {};
    multiply_by_rows<T, SIZE, COUNT>(scores, query, keys);
    multiply_by_rows<T, SIZE, COUNT>(grad_weights, grad, values);
    bool partial = masks.is_partial(part.first + warp_row, part.first + warp_row + 16, first + COUNT);
    for_fragments<COUNT>([&](int n, int i, int row, int column) {
      index_t q = part.first + row, k = first + column;
      float weight = exp2f(masks.score(scores[n][i], q, k, partial) - logarithm[i / 2]);
      scores[n][i] = weight * (grad_weights[n][i] * masks.factor(q, k) - product[i / 2]);
    });
    multiply_by_tile<T, SIZE, COUNT>(grad_query, scores, keys);
  });
#pragma unroll
  for (int n = 0; n < SIZE / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) grad_query[n][i] *= float(a.scale);
  store_rows<T, SIZE>(grad_query, tiles + warp_row * STRIDE<SIZE>, part.pointer<T>(a.grad_query), a.grad_query.row,
                      part.first + warp_row, a.queries, a.size);
}

// Runs after attend_backward_queries, which writes `products`.
template <class T, int SIZE, bool MASKED>
__global__ void __launch_bounds__(32 * ATTENTION_WARPS) attend_backward_keys(const __grid_constant__ Attention a) {
  constexpr int COUNT = QUERIES<SIZE>;
  __shared__ uint4 memory[(4 * COUNT > ATTENTION_ROWS ? 4 * COUNT : ATTENTION_ROWS) * STRIDE<SIZE> / 8];
  T* tiles = reinterpret_cast<T*>(memory);
  Part part(a, a.keys, false);
  Masks<T, MASKED> masks(a, part);
  int warp_row = threadIdx.x / 32 * 16;
  unsigned key[SIZE / 16][4], value[SIZE / 16][4];
  load_rows<T, SIZE>(key, tiles, part.pointer<const T>(a.key), a.key, part, a.keys, a.size);
  load_rows<T, SIZE>(value, tiles, part.pointer<const T>(a.value), a.value, part, a.keys, a.width);
  const float *logarithms = part.per_query(a, a.logarithms), *products = part.per_query(a, a.products);

  float grad_key[SIZE / 8][4] = {}, grad_value[SIZE / 8][4] = {};
  Pipeline<T, SIZE, COUNT> pairs{tiles, part.pointer<const T>(a.query), part.pointer<const T>(a.grad), a.query.row,
                                 a.grad.row, a.queries, a.size, a.width};
  pairs.run(a.causal ? part.first / COUNT * COUNT : 0, a.queries, [&](index_t first, T* queries, T* grads) {
    float scores[COUNT / 8][4] = {}, weights[COUNT / 8][4] = {};
    multiply_by_rows<T, SIZE, COUNT>(scores, key, queries);
    multiply_by_rows<T, SIZE, COUNT>(weights, value, grads);  // first their gradients
    bool partial = masks.is_partial(first, first + COUNT, part.first + warp_row + 16);
    for_fragments<COUNT>([&](int n, int i, int row, int column) {
      index_t q = first + column, k = part.first + row;
      bool exists = q < a.queries;
      float factor = masks.factor(q, k);
      float weight = exp2f(masks.score(scores[n][i], q, k, partial) - (exists ? logarithms[q] : infinity(0.0f)));
      scores[n][i] = weight * (weights[n][i] * factor - (exists ? products[q] : 0));
      weights[n][i] = weight * factor;
    });
    multiply_by_tile<T, SIZE, COUNT>(grad_value, weights, grads);
    multiply_by_tile<T, SIZE, COUNT>(grad_key, scores, queries);
  });
#pragma unroll
  for (int n = 0; n < SIZE / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) grad_key[n][i] *= float(a.scale);
  T* tile = tiles + warp_row * STRIDE<SIZE>;
  store_rows<T, SIZE>(grad_key, tile, part.pointer<T>(a.grad_key), a.grad_key.row, part.first + warp_row, a.keys,
                      a.size);
  __syncwarp();
  store_rows<T, SIZE>(grad_value, tile, part.pointer<T>(a.grad_value), a.grad_value.row, part.first + warp_row, a.keys,
                      a.width);
}
