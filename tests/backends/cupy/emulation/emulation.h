// The part of CUDA C++ that our kernels use, on the CPU: every thread of a block is a fiber, and blocks run
// sequentially. Included before a kernel's source (g++ -std=c++20 -include emulation.h).
//
// Undefined behaviour of a GPU is an error here: a barrier that some threads do not reach, a shuffle in which some
// threads are missing, an unaligned wide access. `order` is the order in which threads run between barriers: results
// that depend on it are races.
#pragma once
#define BACKBURN_EMULATED
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static  // one block at a time

using std::acos, std::acosh, std::asin, std::asinh, std::atan, std::atan2, std::atanh, std::ceil, std::cos, std::cosh,
    std::erf, std::erfc, std::exp, std::exp2, std::expm1, std::fabs, std::floor, std::fma, std::hypot, std::lgamma, std::log,
    std::log1p, std::log2, std::pow, std::rint, std::sin, std::sinh, std::sqrt, std::tan, std::tanh, std::trunc;
template <class C> C rsqrt(C x) { return 1 / std::sqrt(x); }

struct alignas(16) uint4 { unsigned x, y, z, w; };
struct Size { unsigned x = 1, y = 1, z = 1; };
inline Size threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {

enum State { READY, AT_BLOCK, AT_WARP, DONE };

struct Fiber {
  jmp_buf place;
  State state;
  unsigned mask, shuffles;
  char* stack = nullptr;
};

constexpr size_t STACK = 1 << 17;
inline std::vector<Fiber> fibers;
inline jmp_buf scheduler;
inline unsigned current, count;
inline void (*body)(const void*);  // the kernel, called with its arguments
inline const void* arguments;
inline std::string error;
inline int order = 0;
inline uint64_t slots[2][1024];  // values of a shuffle's lanes; alternating, so that a fast lane overwrites nothing

// From the scheduler into a fiber, and back. Jumps make no system call, unlike swapcontext.
[[gnu::noinline]] inline void enter(Fiber& fiber) {
  if (!_setjmp(scheduler)) _longjmp(fiber.place, 1);
}
[[gnu::noinline]] inline void leave(Fiber& fiber) {
  if (!_setjmp(fiber.place)) _longjmp(scheduler, 1);
}

[[noreturn]] inline void stop(const std::string& message) {
  error = message + " (block " + std::to_string(blockIdx.x) + ", thread " + std::to_string(current) + ")";
  for (;;) leave(fibers[current]);
}

inline void wait(State state, unsigned mask) {
  Fiber& fiber = fibers[current];
  fiber.state = state, fiber.mask = mask;
  leave(fiber);
}

// Body of a fiber: one thread of each block.
inline void live() {
  for (;;) {
    leave(fibers[current]);
    body(arguments);
    fibers[current].state = DONE;
  }
}

// Allocate a fiber's stack, and run it until it waits for its first block.
[[gnu::noinline]] inline void begin(Fiber& fiber) {
  ucontext_t context;
  getcontext(&context);
  fiber.stack = new char[STACK];
  context.uc_stack.ss_sp = fiber.stack, context.uc_stack.ss_size = STACK;
  makecontext(&context, live, 0);
  if (!_setjmp(scheduler)) setcontext(&context);
}

// Release threads of a warp whose whole mask waits at a warp barrier. Returns whether any were released.
inline bool release_warp(unsigned first, unsigned end) {
  bool any = false;
  for (unsigned i = first; i < end; ++i) {
    if (fibers[i].state != AT_WARP) continue;
    unsigned mask = fibers[i].mask, here = 0;
    for (unsigned j = first; j < end; ++j)
      if (fibers[j].state == AT_WARP && fibers[j].mask == mask) here |= 1u << (j - first);
    if (here != mask) continue;
    for (unsigned j = first; j < end; ++j)
      if (here >> (j - first) & 1) fibers[j].state = READY;
    any = true;
  }
  return any;
}

inline void scatter(std::vector<unsigned>& numbers) {
  if (order % 2) std::reverse(numbers.begin(), numbers.end());
  if (order >= 2)
    for (unsigned i = numbers.size(); i > 1; --i) std::swap(numbers[i - 1], numbers[(i * 2654435761u + order) % i]);
}

// Each warp runs until all of it waits at a block barrier, so that warps are as far apart as possible.
inline void run_block() {
  if (fibers.size() < count) fibers.resize(count);
  for (current = 0; current < count; ++current) {
    Fiber& fiber = fibers[current];
    if (!fiber.stack) begin(fiber);
    fiber.state = READY, fiber.shuffles = 0;
  }
  std::vector<unsigned> warps((count + 31) / 32), lanes(32);
  std::iota(warps.begin(), warps.end(), 0u), std::iota(lanes.begin(), lanes.end(), 0u);
  scatter(warps), scatter(lanes);
  for (;;) {
    unsigned waiting = 0, done = 0;
    for (unsigned warp : warps) {
      do {
        for (unsigned lane : lanes) {
          unsigned i = warp * 32 + lane;
          if (i >= count || fibers[i].state != READY) continue;
          current = i;
          threadIdx = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
          enter(fibers[i]);
          if (!error.empty()) return;
        }
      } while (release_warp(warp * 32, std::min(warp * 32 + 32, count)));
    }
    for (unsigned i = 0; i < count; ++i) waiting += fibers[i].state == AT_BLOCK, done += fibers[i].state == DONE;
    if (done == count) return;
    if (waiting + done != count) {
      error = "threads wait for others that never come: a barrier or shuffle that not all reach, in block " +
              std::to_string(blockIdx.x);
      return;
    }
    for (unsigned i = 0; i < count; ++i)
      if (fibers[i].state == AT_BLOCK) fibers[i].state = READY;
  }
}

inline void run(Size grid, Size block, void (*kernel)(const void*), const void* given) {
  gridDim = grid, blockDim = block, body = kernel, arguments = given, count = block.x * block.y * block.z;
  if (count > 1024) error = "a block has at most 1024 threads";
  for (unsigned z = 0; z < grid.z && error.empty(); ++z)
    for (unsigned y = 0; y < grid.y && error.empty(); ++y)
      for (unsigned x = 0; x < grid.x && error.empty(); ++x) blockIdx = {x, y, z}, run_block();
  if (error.empty()) return;
  for (Fiber& fiber : fibers) delete[] fiber.stack;
  fibers.clear();  // they are suspended inside the kernel
}

// A kernel called with the addresses of its arguments, as the driver does.
template <class... P> void call(void (*kernel)(P...), Size grid, Size block, void** arguments) {
  static_assert(((sizeof(P) == 8 || sizeof(P) > 64) && ...), "parameters have eight bytes, or are tables");
  [&]<size_t... I>(std::index_sequence<I...>) {
    const auto launch = [&, values = std::make_tuple(*static_cast<P*>(arguments[I])...)] { std::apply(kernel, values); };
    run(grid, block, [](const void* it) { (*static_cast<const decltype(launch)*>(it))(); }, &launch);
  }(std::index_sequence_for<P...>{});
}

}  // namespace emulation

// ---- cooperation of threads ----

inline void __syncthreads() { emulation::wait(emulation::AT_BLOCK, 0); }
inline void __syncwarp(unsigned mask = ~0u) { emulation::wait(emulation::AT_WARP, mask); }

template <class V> V emulated_shuffle(unsigned mask, V value, unsigned lane) {
  using namespace emulation;
  static_assert(sizeof(V) <= 8);
  unsigned warp = current / 32 * 32, me = current;
  if (!(mask >> (me - warp) & 1)) stop("a thread shuffles that is not in the mask");
  uint64_t* given = slots[fibers[me].shuffles++ % 2];
  std::memcpy(&given[me], &value, sizeof value);
  wait(AT_WARP, mask);
  if (lane < 32 && mask >> lane & 1) std::memcpy(&value, &given[warp + lane], sizeof value);
  return value;
}
template <class V> V __shfl_xor_sync(unsigned mask, V value, int step, int = 32) {
  return emulated_shuffle(mask, value, (emulation::current % 32) ^ step);
}
template <class V> V __shfl_sync(unsigned mask, V value, int lane, int = 32) {
  return emulated_shuffle(mask, value, lane);
}
template <class V> V __shfl_up_sync(unsigned mask, V value, unsigned step, int = 32) {
  unsigned lane = emulation::current % 32;
  return emulated_shuffle(mask, value, lane < step ? lane : lane - step);
}

template <class V> V atomicAdd(V* place, V value) { return std::exchange(*place, *place + value); }
template <class V> V atomicCAS(V* place, V expected, V value) {
  return *place == expected ? std::exchange(*place, value) : *place;
}

// ---- numbers ----

inline uint64_t __umul64hi(uint64_t a, uint64_t b) { return (unsigned __int128)a * b >> 64; }

inline float near_inverse(float x) { return 1 / x; }
inline float infinity(float) { return std::numeric_limits<float>::infinity(); }
inline double infinity(double) { return std::numeric_limits<double>::infinity(); }
inline void write_whole(void* p, uint4 value) { *static_cast<uint4*>(p) = value; }
#define CHECK_ALIGNED(pointer, bytes) \
  if (reinterpret_cast<uintptr_t>(pointer) % (bytes)) emulation::stop("a wide access is not aligned")

namespace emulation {

inline float of_half(uint16_t bits) {
  uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
  float magnitude = exponent == 31 ? std::bit_cast<float>(0x7f800000u | fraction << 13)
                    : exponent   ? std::bit_cast<float>((exponent + 112) << 23 | fraction << 13)
                                 : std::ldexp(float(fraction), -24);
  return bits >> 15 ? -magnitude : magnitude;
}

inline uint16_t to_half(float x) {
  uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) return 0x7fff;
  float magnitude = std::fabs(x);
  if (magnitude >= 65520.0f) return sign | 0x7c00;
  int exponent = magnitude < 0x1p-14f ? -14 : std::ilogb(magnitude);
  // In units of the last place, rounded to nearest even. A carry propagates to the exponent.
  uint16_t units = uint16_t(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  return sign | (units + (magnitude < 0x1p-14f ? 0 : (exponent + 14) << 10));
}

inline uint16_t to_bfloat(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  return std::isnan(x) ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

}  // namespace emulation

// The 16-bit floats, by their bits.
struct float16 { unsigned short bits; };
struct bfloat16 { unsigned short bits; };
inline float widen(float16 x) { return emulation::of_half(x.bits); }
inline float widen(bfloat16 x) { return std::bit_cast<float>(uint32_t(x.bits) << 16); }
inline void narrow(float x, float16& y) { y.bits = emulation::to_half(x); }
inline void narrow(float x, bfloat16& y) { y.bits = emulation::to_bfloat(x); }

// ---- tensor cores and their loads: see tensor_cores.cuh ----

namespace emulation {

struct Given { unsigned a[4], b[2]; const char* row; };
inline Given given[2][1024];  // from the lanes of a warp that multiply or load; alternating, like `slots`

// Values given by all lanes of this warp, once all have given them.
inline const Given* exchanged(const Given& mine) {
  Given* all = given[fibers[current].shuffles++ % 2];
  all[current] = mine;
  wait(AT_WARP, ~0u);
  return all + current / 32 * 32;
}

template <class T> float half_of(unsigned pair, int which) {
  return widen(T{static_cast<unsigned short>(pair >> 16 * which)});
}

// A pending copy to shared memory. A GPU may perform it at any time until it is awaited: if `order` is even, it is
// performed immediately, otherwise when awaited.
struct Copy {
  void* to;
  const void* from;
  bool exists;
  int group;
  void make() const { exists ? std::memcpy(to, from, 16) : std::memset(to, 0, 16); }
};
inline std::vector<Copy> copies[1024];
inline int groups[1024];

}  // namespace emulation

template <class T> void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, T) {
  using namespace emulation;
  const Given* all = exchanged({{a[0], a[1], a[2], a[3]}, {b0, b1}, nullptr});
  int lane = current % 32;
  for (int i = 0; i < 4; ++i)
    for (int k = 0, row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2; k < 16; ++k)
      c[i] += half_of<T>(all[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2], k % 2) *
              half_of<T>(all[column * 4 + k % 8 / 2].b[k / 8], k % 2);
}

template <class N> void forget(N&) {}

template <class T> unsigned narrow_pair(float low, float high, T) {
  T l, h;
  narrow(low, l), narrow(high, h);
  return l.bits | unsigned(h.bits) << 16;
}

inline void load_matrices(unsigned (&r)[4], const void* row) {
  CHECK_ALIGNED(row, 16);
  const emulation::Given* all = emulation::exchanged({{}, {}, static_cast<const char*>(row)});
  int lane = emulation::current % 32;
  for (int i = 0; i < 4; ++i) std::memcpy(&r[i], all[8 * i + lane / 4].row + lane % 4 * 4, 4);
}

inline void load_transposed(unsigned (&r)[4], const void* row) {
  CHECK_ALIGNED(row, 16);
  const emulation::Given* all = emulation::exchanged({{}, {}, static_cast<const char*>(row)});
  int lane = emulation::current % 32;
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 2; ++j)
      std::memcpy(reinterpret_cast<char*>(&r[i]) + 2 * j, all[8 * i + lane % 4 * 2 + j].row + lane / 4 * 2, 2);
}

inline void copy_ahead(void* to, const void* from, bool exists) {
  CHECK_ALIGNED(to, 16);
  CHECK_ALIGNED(from, 16);
  emulation::Copy copy{to, from, exists, emulation::groups[emulation::current]};
  if (emulation::order % 2 == 0) return copy.make();
  emulation::copies[emulation::current].push_back(copy);
}
inline void end_group() { ++emulation::groups[emulation::current]; }
template <int LEFT> void await_groups() {
  auto& pending = emulation::copies[emulation::current];
  int done = emulation::groups[emulation::current] - LEFT;
  size_t kept = 0;
  for (const auto& copy : pending)
    if (copy.group >= done)
      pending[kept++] = copy;
    else
      copy.make();
  pending.resize(kept);
}
