// Arithmetic that the PTX ISA defines differently from C++; approximate instructions are exact here.
#pragma once
#include <array>
#include <cmath>
#include <limits>

#include "machine.h"

template <class T> T value(u64 bits) { T v; std::memcpy(&v, &bits, sizeof v); return v; }
template <class T> u64 bits(T v) { u64 b = 0; std::memcpy(&b, &v, sizeof v); return b; }
// Float32 results have a single NaN.
template <> inline u64 bits(float v) { u32 b; std::memcpy(&b, &v, 4); return v != v ? 0x7fffffff : b; }

template <class T> T flushed(T x) { return std::fabs(x) < std::numeric_limits<T>::min() ? std::copysign(T(0), x) : x; }

// ---- 16-bit floats ----

// Rounded to nearest even; a carry propagates to the exponent.
template <int DIGITS> u16 narrowed(float x) {
  constexpr int bias = (1 << (14 - DIGITS)) - 1, infinity = (2 * bias + 1) << DIGITS;
  if (x != x) return 0x7fff;
  double size = std::fabs(x);
  int exponent = size == 0 || std::isinf(size) ? 1 - bias : std::max(std::ilogb(size), 1 - bias);
  double units = std::nearbyint(std::ldexp(size, DIGITS - exponent));
  int code = size > 1e39 || exponent > bias ? infinity : ((exponent + bias - 1) << DIGITS) + int(units);
  return (std::signbit(x) ? 0x8000 : 0) | std::min(code, infinity);
}
inline u16 to_half(float x) { return narrowed<10>(x); }
inline u16 to_bfloat(float x) { return narrowed<7>(x); }

struct Half { u16 bits; };
inline float widened(Half half) {
  static const auto every = [] {
    std::vector<float> all(1 << 16);
    for (int i = 0; i < 1 << 16; ++i) {
      int exponent = i >> 10 & 31, digits = i & 1023;
      float size = exponent == 31 ? (digits ? NAN : INFINITY)
                   : exponent     ? std::ldexp(float(1024 + digits), exponent - 25)
                                  : std::ldexp(float(digits), -24);
      all[i] = i >> 15 ? -size : size;
    }
    return all;
  }();
  return every[half.bits];
}

// ---- floats ----

// fma.rm: the product is exact in double, and so is the error of its sum.
inline float fma_down(float a, float b, float c) {
  double product = double(a) * b, sum = product + c;
  if (!std::isfinite(sum)) return std::fma(a, b, c);
  double part = sum - product, error = (product - (sum - part)) + (c - part);
  float nearest = float(sum);
  bool above = nearest > sum || (nearest == sum && error < 0);
  return above ? std::nextafter(nearest, -INFINITY) : nearest;
}

inline float sum_towards_zero(float a, float b) { return a + b >= 0 ? fma_down(a, 1, b) : -fma_down(-a, 1, -b); }

// The instructions that start an iteration give 20 bits, and a low word of 0.
inline double coarse(double x) { return flushed(value<double>(bits(x) & ~0xffffffffull)); }

inline float saturated(float x) { return x > 1 ? 1 : x > 0 ? x : 0; }

// NaN only if both are.
template <class T> T largest(T a, T b) {
  if (a != a || b != b) return a != a ? b : a;
  return a == b ? (std::signbit(a) ? b : a) : a > b ? a : b;
}
template <class T> T smallest(T a, T b) { return -largest(-a, -b); }

// ---- integers ----

// Out-of-range values saturate, unlike on x86; NaN becomes the least 64-bit integer, or 0.
template <class T> T to_integer(double x) {
  constexpr T most = std::numeric_limits<T>::max(), least = std::numeric_limits<T>::min();
  if (x != x) return sizeof(T) == 8 ? least : 0;
  return x >= -double(least) ? most : x < double(least) ? least : T(x);
}
template <class T> T to_nearest_integer(double x) { return to_integer<T>(std::nearbyint(x)); }

template <class T> T quotient(T a, T b) {
  if (b == 0) throw Error("a division of an integer by 0");
  return std::is_signed_v<T> && b == T(-1) ? T(0 - a) : a / b;
}
template <class T> T rest(T a, T b) {
  if (b == 0) throw Error("a division of an integer by 0");
  return std::is_signed_v<T> && b == T(-1) ? T(0) : a % b;
}
inline u64 high_half(u64 a, u64 b) { return (unsigned __int128)a * b >> 64; }
inline u32 high_half_of_32(u32 a, u32 b) { return u64(a) * b >> 32; }
inline u32 leading_zeros(u64 a) { return a ? __builtin_clzll(a) : 64; }
template <class T> T shifted_left(T a, u32 by) { return by < 8 * sizeof(T) ? a << by : 0; }
template <class T> T shifted_right(T a, u32 by) {
  if (by < 8 * sizeof(T)) return a >> by;
  return std::is_signed_v<T> && a < 0 ? T(-1) : T(0);
}
template <class T> T inserted(T a, T b, u32 at, u32 size) {
  T mask = (size >= 8 * sizeof(T) ? ~T(0) : (T(1) << size) - 1) << at;
  return (b & ~mask) | (a << at & mask);
}
