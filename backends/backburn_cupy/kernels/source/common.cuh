// Shared by all kernels: 16-bit floats, 16-byte accesses, reductions over a group of threads, rows of a matrix.
//
// Every kernel parameter has eight bytes (a pointer, a long long or a double), so that a launch needs no table of
// types. No system headers: a source compiles with NVRTC alone, and with g++ after
// tests/backends/cupy/emulation/emulation.h.
#pragma once

typedef long long index_t;
typedef unsigned long long word_t;

// ---- floats: 16-bit ones are for storage only, and computed in float ----

template <class T> struct Computed { typedef float type; };
template <> struct Computed<double> { typedef double type; };
template <class T> using compute = typename Computed<T>::type;

#ifndef BACKBURN_EMULATED
struct float16 { unsigned short bits; };
struct bfloat16 { unsigned short bits; };
__device__ inline float widen(float16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
__device__ inline float widen(bfloat16 x) { return __uint_as_float((unsigned)x.bits << 16); }
__device__ inline void narrow(float x, float16& y) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }
__device__ inline void narrow(float x, bfloat16& y) {
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else  // half to even, NaN stays NaN
  unsigned bits = __float_as_uint(x);
  y.bits = x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
#endif
}
__device__ inline float near_inverse(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float infinity(float) { return __int_as_float(0x7f800000); }
__device__ inline double infinity(double) { return __longlong_as_double(0x7ff0000000000000ll); }
#define CHECK_ALIGNED(pointer, bytes)
// Makes the compiler recompute values that depend on the number, instead of keeping them in registers.
__device__ inline void forget(index_t& number) { asm volatile("" : "+l"(number)); }
// One explicit store, since the compiler may split a store of eight converted halves.
__device__ inline void write_whole(void* p, uint4 v) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
#endif
__device__ inline float widen(float x) { return x; }
__device__ inline double widen(double x) { return x; }
__device__ inline void narrow(float x, float& y) { y = x; }
__device__ inline void narrow(double x, double& y) { y = x; }

// ---- functions whose results become elements of type T: for 16 bits, by one or two instructions, which lose a few
// bits of a float; the full functions would take as long as the memory accesses ----

template <class T> __device__ inline compute<T> exponential(compute<T> x) {
  if constexpr (sizeof(T) == 2)
    return exp2f(x * 1.4426950408889634f);  // log2(e)
  else
    return exp(x);
}
// x / (1 + exp(-t)), x times the logistic function of t.
template <class T> __device__ inline compute<T> gated(compute<T> x, compute<T> t) {
  typedef compute<T> C;
  if constexpr (sizeof(T) == 2) {
    return x * near_inverse(C(1) + exponential<T>(-t));
  } else if constexpr (sizeof(T) == 4) {
    // A division has a branch, which keeps the elements of a thread from being computed in parallel. The divisor is
    // finite: below -88 the logistic function is 0, and so is the result, or NaN for an infinite x.
    C divisor = C(1) + exp(t < C(-88) ? C(88) : -t), inverse = near_inverse(divisor);
    return x * (t < C(-88) ? C(0) : inverse + inverse * (C(1) - divisor * inverse));
  } else {
    return x / (C(1) + exp(-t));
  }
}

// ---- packs: elements of 16 bytes, accessed at once if aligned ----

template <class T> constexpr int PACK = 16 / sizeof(T);
// uint4 is moved in one instruction, unlike a struct of small elements.
template <class T> union Pack { uint4 whole; T at[PACK<T>]; __device__ Pack() {} };

template <class T> __device__ inline bool is_aligned(const T* p) { return ((word_t)p & 15) == 0; }

// Whether elements start to start + PACK of a line of `length` exist, and are aligned.
template <class T> __device__ inline bool is_whole(const T* line, index_t start, index_t length) {
  return start >= 0 && start + PACK<T> <= length && is_aligned(line + start);
}

// COUNT packs of each of some lines of `length`, `step` apart from `start` on, as they are stored; 0 out of bounds. A
// thread waits for a load at the first use of its result, so all whole packs are loaded before anything else.
template <class T, int COUNT, int LINES>
__device__ inline void fetch(const T* const (&lines)[LINES], index_t start, index_t step, index_t length,
                             Pack<T> (&packs)[COUNT][LINES]) {
  bool ragged = false;
#pragma unroll
  for (int p = 0; p < COUNT; ++p)
#pragma unroll
    for (int o = 0; o < LINES; ++o) {
      index_t at = start + p * step;
      packs[p][o].whole = uint4{0, 0, 0, 0};
      if (is_whole(lines[o], at, length)) {
        CHECK_ALIGNED(lines[o] + at, 16);
        packs[p][o].whole = *reinterpret_cast<const uint4*>(lines[o] + at);
      }
      ragged = ragged || (at < length && !is_whole(lines[o], at, length));
    }
  if (!ragged) return;
  if constexpr (sizeof(T) < 8) forget(start);
#pragma unroll
  for (int p = 0; p < COUNT; ++p)
#pragma unroll
    for (int o = 0; o < LINES; ++o)
      if (!is_whole(lines[o], start + p * step, length))
#pragma unroll
        for (int j = 0; j < PACK<T>; ++j) {
          index_t at = start + p * step + j;
          if (at >= 0 && at < length) packs[p][o].at[j] = lines[o][at];
        }
}

template <class T> __device__ inline void widen(const Pack<T>& pack, compute<T>* values) {
#pragma unroll
  for (int j = 0; j < PACK<T>; ++j) values[j] = widen(pack.at[j]);
}

#if __CUDA_ARCH__ >= 800  // two floats by one instruction each way, or nearly
__device__ inline void widen(const Pack<bfloat16>& pack, float* values) {
  const unsigned pairs[] = {pack.whole.x, pack.whole.y, pack.whole.z, pack.whole.w};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    values[2 * i] = __uint_as_float(pairs[i] << 16), values[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
}
#endif

template <class T> __device__ inline void read(const T* line, index_t start, index_t length, compute<T>* values) {
  const T* lines[] = {line};
  Pack<T> packs[1][1];
  fetch(lines, start, 0, length, packs);
  widen(packs[0][0], values);
}

// A pack of two lines at once; of the first one twice if there is no second.
template <class T>
__device__ inline void read_both(const T* line, const T* other, index_t start, index_t length, compute<T>* values,
                                 compute<T>* others) {
  const T* lines[] = {line, other ? other : line};
  Pack<T> packs[1][2];
  fetch(lines, start, 0, length, packs);
  widen(packs[0][0], values), widen(packs[0][1], others);
}

template <class T> __device__ inline Pack<T> narrow_pack(const compute<T>* values) {
  Pack<T> pack;
#pragma unroll
  for (int j = 0; j < PACK<T>; ++j) narrow(values[j], pack.at[j]);
  return pack;
}

#if __CUDA_ARCH__ >= 800
__device__ inline unsigned narrow_pair(float low, float high, float16) {
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ inline unsigned narrow_pair(float low, float high, bfloat16) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
template <class T> __device__ inline Pack<T> narrow_pairs(const float* v) {
  Pack<T> pack;
  T t{};
  pack.whole = uint4{narrow_pair(v[0], v[1], t), narrow_pair(v[2], v[3], t), narrow_pair(v[4], v[5], t), narrow_pair(v[6], v[7], t)};
  return pack;
}
template <> __device__ inline Pack<float16> narrow_pack<float16>(const float* v) { return narrow_pairs<float16>(v); }
template <> __device__ inline Pack<bfloat16> narrow_pack<bfloat16>(const float* v) { return narrow_pairs<bfloat16>(v); }
#endif

template <class T> __device__ inline void write(T* line, index_t start, index_t length, const compute<T>* values) {
  Pack<T> pack = narrow_pack<T>(values);
  if (is_whole(line, start, length)) {
    CHECK_ALIGNED(line + start, 16);
    write_whole(line + start, pack.whole);
  } else {
#pragma unroll
    for (int j = 0; j < PACK<T>; ++j)
      if (start + j >= 0 && start + j < length) line[start + j] = pack.at[j];
  }
}

// ---- reductions over a group: LANES neighbours of a warp, or the block if LANES is 0 ----

// Propagates NaN, like numpy.maximum.
template <class C> __device__ inline C larger(C a, C b) { return a > b || a != a ? a : b; }
#if __CUDA_ARCH__ >= 800  // one instruction rather than three
__device__ inline float larger(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
#endif

struct Sum { template <class C> __device__ C operator()(C a, C b) const { return a + b; } };
struct Max { template <class C> __device__ C operator()(C a, C b) const { return larger(a, b); } };

template <int LANES, class C, class F> __device__ inline C reduce_group(C value, F combine, C none) {
  constexpr int width = LANES ? LANES : 32;
#pragma unroll
  for (int step = width / 2; step; step /= 2) value = combine(value, __shfl_xor_sync(0xffffffffu, value, step));
  if constexpr (LANES == 0) {
    __shared__ C warp_values[32];
    if (threadIdx.x % 32 == 0) warp_values[threadIdx.x / 32] = value;
    __syncthreads();
    value = threadIdx.x % 32 < blockDim.x / 32 ? warp_values[threadIdx.x % 32] : none;
#pragma unroll
    for (int step = 16; step; step /= 2) value = combine(value, __shfl_xor_sync(0xffffffffu, value, step));
    __syncthreads();  // warp_values is free for the next one
  }
  return value;
}

template <int LANES, class C> __device__ inline C total(C value) { return reduce_group<LANES>(value, Sum(), C(0)); }
template <int LANES, class C> __device__ inline C largest(C value) {
  return reduce_group<LANES>(value, Max(), -infinity(C(0)));
}

// ---- sums of many numbers ----

// A sum and its rounding error (Knuth's two-sum), so that floats need no doubles, which most GPUs add at 1/64 of the
// rate.
template <class C> struct Tally {
  C sum = 0, lost = 0;
  __device__ void operator+=(C x) {
    C before = sum;
    sum += x;
    C added = sum - before;
    lost += (before - (sum - added)) + (x - added);
  }
  // The rounding error of an infinite sum is NaN.
  template <class R> __device__ R value() const { return lost - lost == C(0) ? R(sum) + R(lost) : R(sum); }
};

template <int LANES, class C> __device__ inline C total(const Tally<C>& tally) {
  return total<LANES>(tally.template value<C>());
}

// The type in which elements of type T are computed where sums may cancel if they are FEW; otherwise as usual.
template <class T, bool FEW> struct Arithmetic { typedef compute<T> type; };
template <> struct Arithmetic<float, true> { typedef double type; };
template <class T, bool FEW> using arithmetic = typename Arithmetic<T, FEW>::type;

// ---- rows: one per group; a thread keeps up to ITEMS elements in registers, or rereads the row in every pass if
// ITEMS is 0 ----

// The most threads per block: fewer if each needs more registers. Rows that are reread need 512; with one operand, three
// of those blocks share a multiprocessor to have enough accesses in flight.
template <class T, int LANES, int ITEMS>
constexpr int THREADS = LANES ? 256 : sizeof(T) == 8 || ITEMS == 0 ? 512 : 1024;
template <class T, int ITEMS> constexpr int BLOCKS = ITEMS || sizeof(T) == 8 ? 1 : 3;

template <int LANES> struct Group {
  int lane, size, row, rows;  // thread index and count in the group, group index and count in the block
  __device__ Group() {
    size = LANES ? LANES : blockDim.x;
    lane = threadIdx.x % size, row = threadIdx.x / size, rows = blockDim.x / size;
  }
};

// The rows of this block's groups; every thread runs the same number of iterations, some without a row.
#define FOR_ROWS(group, row, count) \
  for (index_t first_row_ = (index_t)blockIdx.x * (group).rows, row; \
       (row = first_row_ + (group).row, first_row_ < (count)); first_row_ += (index_t)gridDim.x * (group).rows)

template <class T, int LANES, int ITEMS, int OPERANDS> struct Row {
  typedef compute<T> C;
  static constexpr bool HELD = ITEMS > 0;
  static constexpr int PACKS = HELD ? (ITEMS + PACK<T> - 1) / PACK<T> : 1;
  const T* operand[OPERANDS];
  C held[PACKS][OPERANDS][PACK<T>];
  index_t first, step, length;

  // Packs are aligned in the first operand (`shifted`), or start with the row, so that a thread has the same columns in
  // every row. A row out of bounds has no elements.
  __device__ Row(const Group<LANES>& group, index_t row, index_t rows, index_t length_, bool shifted, const T* x,
                 const T* y = nullptr) {
    length = row < rows ? length_ : 0;
    operand[0] = x + row * length_;
    if constexpr (OPERANDS > 1) operand[1] = y + row * length_;
    first = group.lane * PACK<T> - (shifted ? ((word_t)operand[0] & 15) / sizeof(T) : 0);
    step = group.size * PACK<T>;
    if constexpr (HELD) {
      Pack<T> fetched[PACKS][OPERANDS];
      fetch(operand, first, step, length, fetched);
#pragma unroll
      for (int p = 0; p < PACKS; ++p) widen_all(fetched[p], held[p]);
    }
  }

  static __device__ void widen_all(const Pack<T> (&packs)[OPERANDS], C (&values)[OPERANDS][PACK<T>]) {
#pragma unroll
    for (int o = 0; o < OPERANDS; ++o) widen(packs[o], values[o]);
  }

  // f(the thread's values of each operand in a pack, the pack's first element, the pack's index)
  template <class F> __device__ void packs(F f) {
    if constexpr (HELD) {
#pragma unroll
      for (int p = 0; p < PACKS; ++p)
        if (first + p * step < length) f(held[p], first + p * step, p);
    } else {
      Pack<T> next[1][OPERANDS];  // prefetched while the previous one is used
      fetch(operand, first, step, length, next);
      for (index_t start = first; start < length; start += step) {
        widen_all(next[0], held[0]);
        fetch(operand, start + step, step, length, next);
        f(held[0], start, 0);
      }
    }
  }

  // f(first operand's value, last operand's value, element index)
  template <class F> __device__ void each(F f) {
    packs([&](C (&values)[OPERANDS][PACK<T>], index_t start, int) {
      if (start >= 0 && start + PACK<T> <= length) {
#pragma unroll
        for (int j = 0; j < PACK<T>; ++j) f(values[0][j], values[OPERANDS - 1][j], start + j);
      } else {
#pragma unroll
        for (int j = 0; j < PACK<T>; ++j)
          if (start + j >= 0 && start + j < length) f(values[0][j], values[OPERANDS - 1][j], start + j);
      }
    });
  }

  // out = f(first operand's value, last operand's value, element index)
  template <class F> __device__ void store(T* out, F f) {
    packs([&](C (&values)[OPERANDS][PACK<T>], index_t start, int) {
      C results[PACK<T>];
#pragma unroll
      for (int j = 0; j < PACK<T>; ++j) results[j] = f(values[0][j], values[OPERANDS - 1][j], start + j);
      write(out, start, length, results);
    });
  }
};
