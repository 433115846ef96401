// Tensor cores of sm_80 and newer, in PTX: warp-wide products of 16 x 16 and 16 x 8 matrices of 16-bit floats,
// accumulated in float; and loading their operands to shared memory and registers.
//
// "Fragments" are a thread's elements of a matrix, two per 32 bits. With g = lane / 4 and t = lane % 4:
// of the left one (16 x 16), rows g and g + 8 at columns 2t, 2t + 1, then the same rows at columns 2t + 8, 2t + 9;
// of the right one (16 x 8), rows 2t, 2t + 1, then 2t + 8, 2t + 9, at column g;
// of the product (16 x 8), row g at columns 2t, 2t + 1, then row g + 8. (PTX ISA, mma.m16n8k16.)
#pragma once
#include "common.cuh"

#ifndef BACKBURN_EMULATED
#define MULTIPLY_ADD(TYPE, NAME) \
  __device__ inline void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, TYPE) { \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 " \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)); \
  }
MULTIPLY_ADD(float16, "f16")
MULTIPLY_ADD(bfloat16, "bf16")

__device__ inline unsigned in_shared(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// Four 8 x 8 matrices: lane i gives the address of row i % 8 of matrix i / 8. Of each matrix, a lane gets row g at
// columns 2t and 2t + 1, or if transposed, rows 2t and 2t + 1 at column g.
#define LOAD_MATRICES(FUNCTION, HOW) \
  __device__ inline void FUNCTION(unsigned (&r)[4], const void* row) { \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" HOW ".shared.b16 {%0, %1, %2, %3}, [%4];" \
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(in_shared(row)) : "memory"); \
  }
LOAD_MATRICES(load_matrices, "")
LOAD_MATRICES(load_transposed, ".trans")

// Asynchronous 16-byte copies (or zero fills) to shared memory, awaited in groups.
__device__ inline void copy_ahead(void* to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(in_shared(to)), "l"(from), "r"(exists ? 16 : 0)
               : "memory");
}
__device__ inline void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all copy groups of this thread but the last LEFT.
template <int LEFT> __device__ inline void await_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
#endif

template <class T> __device__ inline float low(unsigned pair) { T x; x.bits = pair & 0xffff; return widen(x); }
template <class T> __device__ inline float high(unsigned pair) { T x; x.bits = pair >> 16; return widen(x); }

// ---- tiles: rows of SIZE elements in shared memory, padded by eight so that eight rows use different banks ----

template <int SIZE> constexpr int STRIDE = SIZE + 8;

// Starts copying COUNT rows to a tile, from row `first` of `rows` rows of `size` elements, padding with zeros.
template <class T, int SIZE, int COUNT>
__device__ inline void load_tile(T* tile, const T* from, index_t step, index_t first, index_t rows, index_t size) {
  constexpr int CHUNKS = SIZE / 8;
#pragma unroll 4
  for (int i = threadIdx.x; i < COUNT * CHUNKS; i += blockDim.x) {
    int row = i / CHUNKS, column = i % CHUNKS * 8;
    bool exists = first + row < rows && column < size;
    copy_ahead(tile + row * STRIDE<SIZE> + column, exists ? from + (first + row) * step + column : from, exists);
  }
}

// Loads 16 rows of a tile as left operand fragments.
template <class T, int SIZE> __device__ inline void load_fragments(unsigned (&a)[SIZE / 16][4], const T* tile) {
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < SIZE / 16; ++i) load_matrices(a[i], tile + lane % 16 * STRIDE<SIZE> + i * 16 + lane / 16 * 8);
}

// c += a @ tile.T; the tile has COUNT rows
template <class T, int SIZE, int COUNT>
__device__ inline void multiply_by_rows(float (&c)[COUNT / 8][4], const unsigned (&a)[SIZE / 16][4], const T* tile) {
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < SIZE / 16; ++i)
#pragma unroll
    for (int n = 0; n < COUNT / 16; ++n) {
      unsigned b[4];
      load_matrices(b, tile + (n * 16 + lane / 16 * 8 + lane % 8) * STRIDE<SIZE> + i * 16 + lane / 8 % 2 * 8);
      multiply_add(c[2 * n], a[i], b[0], b[1], T());
      multiply_add(c[2 * n + 1], a[i], b[2], b[3], T());
    }
}

// c += a @ tile; a is a product of COUNT columns, rounded to T here
template <class T, int SIZE, int COUNT>
__device__ inline void multiply_by_tile(float (&c)[SIZE / 8][4], const float (&a)[COUNT / 8][4], const T* tile) {
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < COUNT / 16; ++i) {
    const float(&l)[4] = a[2 * i], (&r)[4] = a[2 * i + 1];
    unsigned left[4] = {narrow_pair(l[0], l[1], T()), narrow_pair(l[2], l[3], T()), narrow_pair(r[0], r[1], T()),
                        narrow_pair(r[2], r[3], T())};
#pragma unroll
    for (int n = 0; n < SIZE / 16; ++n) {
      unsigned b[4];
      load_transposed(b, tile + (i * 16 + lane % 16) * STRIDE<SIZE> + n * 16 + lane / 16 * 8);
      multiply_add(c[2 * n], left, b[0], b[1], T());
      multiply_add(c[2 * n + 1], left, b[2], b[3], T());
    }
  }
}

// Writes the 16 rows of a product to row `first` and on of `rows` rows of `size` elements, through this warp's tile.
template <class T, int SIZE>
__device__ inline void store_rows(
    const float (&c)[SIZE / 8][4], T* tile, T* to, index_t step, index_t first, index_t rows, index_t size) {
  constexpr int CHUNKS = SIZE / 8;
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < SIZE / 8; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i)
      *reinterpret_cast<unsigned*>(tile + (lane / 4 + 8 * i) * STRIDE<SIZE> + n * 8 + lane % 4 * 2) =
          narrow_pair(c[n][2 * i], c[n][2 * i + 1], T());
  __syncwarp();
#pragma unroll 4
  for (int i = lane; i < 16 * CHUNKS; i += 32) {
    int row = i / CHUNKS, column = i % CHUNKS * 8;
    if (first + row < rows && column < size)
      write_whole(to + (first + row) * step + column, *reinterpret_cast<const uint4*>(tile + row * STRIDE<SIZE> + column));
  }
}
