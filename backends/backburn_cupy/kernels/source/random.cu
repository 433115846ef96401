// Random numbers of the contract's stream: Philox4x64-10 (Salmon, Moraes, Dror and Shaw, SC 2011), a block of eight
// 32-bit words per thread. `*advance` (if not null) is added to the offset, so that each replay of a recorded step
// draws other numbers.
#include "common.cuh"

struct Words { unsigned at[8]; };

__device__ inline Words philox(word_t block, word_t low, word_t high) {
  word_t a = block + 1, b = 0, c = 0, d = 0;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    word_t over = __umul64hi(0xD2E7470EE14C6C93ull, a), under = 0xD2E7470EE14C6C93ull * a;
    a = __umul64hi(0xCA5A826395121157ull, c) ^ b ^ low, b = 0xCA5A826395121157ull * c;
    c = over ^ d ^ high, d = under;
    low += 0x9E3779B97F4A7C15ull, high += 0xBB67AE8584CAA73Bull;
  }
  Words words;
  word_t numbers[4] = {a, b, c, d};
#pragma unroll
  for (int i = 0; i < 8; ++i) words.at[i] = (unsigned)(numbers[i / 2] >> (i % 2 * 32));
  return words;
}

// f(words, the first word's element, which may be negative) for each block of words from `offset` on.
template <class F>
__device__ inline void for_blocks(word_t low, word_t high, word_t offset, const word_t* advance, index_t count, F f) {
  if (advance) offset += *advance;
  int skipped = offset % 8;
  for (index_t i = blockIdx.x * (index_t)blockDim.x + threadIdx.x; i * 8 < count + skipped;
       i += (index_t)gridDim.x * blockDim.x)
    f(philox(offset / 8 + i, low, high), i * 8 - skipped);
}

// f(element, its 64 bits), of two words each; if the offset is odd, a block's last pair ends in the next block.
template <class F>
__device__ inline void for_pairs(word_t low, word_t high, word_t offset, const word_t* advance, index_t count, F f) {
  if (advance) offset += *advance;
  int skipped = offset % 8, odd = skipped % 2;
  for (index_t i = blockIdx.x * (index_t)blockDim.x + threadIdx.x; i * 8 < 2 * count + skipped;
       i += (index_t)gridDim.x * blockDim.x) {
    Words words = philox(offset / 8 + i, low, high), next = odd ? philox(offset / 8 + i + 1, low, high) : words;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      index_t element = (i * 8 + j + odd - skipped) / 2;
      unsigned below = odd ? words.at[j + 1] : words.at[j];
      unsigned above = odd ? (j < 6 ? words.at[(j + 2) % 8] : next.at[0]) : words.at[j + 1];
      if (i * 8 + j + odd >= skipped && element < count) f(element, (word_t)above << 32 | below);
    }
  }
}

__global__ void __launch_bounds__(256)
random_bits(word_t low, word_t high, word_t offset, const word_t* advance, index_t* out, index_t count) {
  for_blocks(low, high, offset, advance, count, [&](Words words, index_t start) {
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (start + j >= 0 && start + j < count) out[start + j] = words.at[j];
  });
}

// Writes eight bools, one per byte of `truths` from the lowest, from element `start` on.
__device__ inline void write_truths(bool* out, index_t start, index_t count, word_t truths) {
  if (start >= 0 && start + 8 <= count && ((word_t)(out + start) & 7) == 0) {
    CHECK_ALIGNED(out + start, 8);
    *reinterpret_cast<word_t*>(out + start) = truths;
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (start + j >= 0 && start + j < count) out[start + j] = truths >> (8 * j) & 1;
  }
}

__global__ void __launch_bounds__(256) bernoulli(word_t low, word_t high, word_t offset, const word_t* advance,
                                                 bool* out, index_t count, word_t threshold) {
  for_blocks(low, high, offset, advance, count, [&](Words words, index_t start) {
    word_t truths = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) truths |= (word_t)(words.at[j] < threshold) << (8 * j);
    write_truths(out, start, count, truths);
  });
}

// x times `scale` where a word is below `threshold`, else 0; also that mask.
template <class T> __global__ void __launch_bounds__(256)
dropout(word_t low, word_t high, word_t offset, const word_t* advance, const T* x, T* out, bool* keep, index_t count,
        word_t threshold, double scale) {
  typedef compute<T> C;
  for_blocks(low, high, offset, advance, count, [&](Words words, index_t start) {
    C values[8];
    word_t truths = 0;
#pragma unroll
    for (int j = 0; j < 8; j += PACK<T>) read(x, start + j, count, values + j);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      bool is_kept = words.at[j] < threshold;
      values[j] = is_kept ? values[j] * C(scale) : C(0);
      truths |= (word_t)is_kept << (8 * j);
    }
#pragma unroll
    for (int j = 0; j < 8; j += PACK<T>) write(out, start + j, count, values + j);
    write_truths(keep, start, count, truths);
  });
}

// The significant bits of a dtype.
template <class T> constexpr int DIGITS = 24;
template <> constexpr int DIGITS<float16> = 11;
template <> constexpr int DIGITS<bfloat16> = 8;

template <class T> __global__ void __launch_bounds__(256)
uniform(word_t low, word_t high, word_t offset, const word_t* advance, T* out, index_t count) {
  typedef compute<T> C;
  if constexpr (sizeof(C) == 8)
    for_pairs(low, high, offset, advance, count,
              [&](index_t i, word_t bits) { narrow((double)(bits >> 11) * 0x1p-53, out[i]); });
  else
    for_blocks(low, high, offset, advance, count, [&](Words words, index_t start) {
      C values[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) values[j] = (float)(words.at[j] >> (32 - DIGITS<T>)) * (1.0f / (1 << DIGITS<T>));
#pragma unroll
      for (int j = 0; j < 8; j += PACK<T>) write(out, start + j, count, values + j);
    });
}
