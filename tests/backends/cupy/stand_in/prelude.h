// Types and functions that CUDA and CuPy provide to every kernel, for threads that run sequentially on the CPU.
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define __device__
#define __forceinline__ inline

using std::complex;

template <int EXPONENT_BITS> struct Half {
  unsigned short bits;
  static constexpr int DIGITS = 15 - EXPONENT_BITS;  // stored
  Half() : bits(0) {}
  Half(double value) { *this = Half(static_cast<float>(value)); }
  Half(int value) { *this = Half(static_cast<float>(value)); }
  Half(float value) {
    unsigned int whole;
    std::memcpy(&whole, &value, 4);
    const unsigned int sign = whole >> 16 & 0x8000;
    const float size = std::fabs(value);
    const int bias = (1 << (EXPONENT_BITS - 1)) - 1, least = 1 - bias;
    if (size != size) { bits = sign | (((1 << EXPONENT_BITS) - 1) << DIGITS) | 1 << (DIGITS - 1); return; }
    if (std::isinf(size)) { bits = sign | ((1 << EXPONENT_BITS) - 1) << DIGITS; return; }
    int exponent = 0;
    std::frexp(size, &exponent);
    exponent = std::fmax(exponent - 1, least);
    const float step = std::ldexp(1.0f, exponent - DIGITS);
    float scaled = size == 0 ? 0 : std::nearbyint(size / step);
    if (scaled >= (2 << DIGITS)) { scaled /= 2; ++exponent; }
    if (exponent > bias) { bits = sign | ((1 << EXPONENT_BITS) - 1) << DIGITS; return; }
    const unsigned int digits = static_cast<unsigned int>(scaled);
    bits = sign | (digits < (1u << DIGITS) ? digits : ((exponent + bias) << DIGITS) + (digits - (1u << DIGITS)));
  }
  operator float() const {
    const int bias = (1 << (EXPONENT_BITS - 1)) - 1;
    const int exponent = bits >> DIGITS & ((1 << EXPONENT_BITS) - 1), digits = bits & ((1 << DIGITS) - 1);
    float size;
    if (exponent == (1 << EXPONENT_BITS) - 1) size = digits ? NAN : INFINITY;
    else if (exponent == 0) size = std::ldexp(static_cast<float>(digits), 1 - bias - DIGITS);
    else size = std::ldexp(static_cast<float>(digits + (1 << DIGITS)), exponent - bias - DIGITS);
    return bits & 0x8000 ? -size : size;
  }
};
typedef Half<5> float16;
typedef Half<8> bfloat16;

inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline int __float_as_int(float x) { int bits; std::memcpy(&bits, &x, 4); return bits; }
inline long long __double_as_longlong(double x) { long long bits; std::memcpy(&bits, &x, 8); return bits; }
template <class T> T atomicAdd(T* place, T value) { T old = *place; *place += value; return old; }
template <class T> T atomicMax(T* place, T value) { T old = *place; if (value > old) *place = value; return old; }
template <class T> T atomicCAS(T* place, T expected, T value) { T old = *place; if (old == expected) *place = value; return old; }

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline double sinpi(double x) { return std::sin(3.14159265358979323846 * std::remainder(x, 2.0)); }
inline float sinpif(float x) { return static_cast<float>(sinpi(x)); }
inline double bessel(double x, int order) {  // the power series, which converges everywhere
  double term = order ? x / 2 : 1, total = term;
  for (int n = 1; n < 2000; ++n) {
    term *= x * x / 4 / n / (n + order);
    total += term;
    if (!(std::fabs(term) > 1e-18 * std::fabs(total))) break;
  }
  return total;
}
inline double cyl_bessel_i0(double x) { return std::isinf(x) ? INFINITY : bessel(x, 0); }
inline double cyl_bessel_i1(double x) { return std::isinf(x) ? x : bessel(x, 1); }
inline float cyl_bessel_i0f(float x) { return static_cast<float>(cyl_bessel_i0(x)); }
inline float cyl_bessel_i1f(float x) { return static_cast<float>(cyl_bessel_i1(x)); }
inline double erfcx(double x) {
  if (x < 10) return static_cast<double>(std::exp(static_cast<long double>(x) * x) * std::erfc((long double)x));
  double value = 0;
  for (int n = 60; n > 0; --n) value = n / 2.0 / (x + value);  // the continued fraction
  return 0.56418958354775628695 / (x + value);
}
inline float erfcxf(float x) { return static_cast<float>(erfcx(x)); }
inline double normcdf(double x) { return static_cast<double>(std::erfc(-static_cast<long double>(x) * std::sqrt(0.5L)) / 2); }
inline float normcdff(float x) { return static_cast<float>(normcdf(x)); }
inline double normcdfinv(double p) {
  if (!(p > 0 && p < 1)) return p == 0 ? -INFINITY : p == 1 ? INFINITY : NAN;
  if (p > 0.5) return -normcdfinv(1 - p);
  long double y = 1 - std::sqrt(-2 * std::log(static_cast<long double>(p)));
  for (int n = 0; n < 30; ++n) {  // Newton's method on the logarithm
    const long double tail = std::erfc(-y * std::sqrt(0.5L)) / 2;
    y -= std::log(tail / p) * tail * 2.50662827463100050242L * std::exp(y * y / 2);
  }
  return static_cast<double>(y);
}
inline float normcdfinvf(float p) { return static_cast<float>(normcdfinv(p)); }
inline double erfinv(double y) {
  if (!(std::fabs(y) < 1)) return std::fabs(y) == 1 ? std::copysign(INFINITY, y) : NAN;
  if (std::fabs(y) < 1e-9) return y * 0.88622692545275801365;
  const double size = std::fabs(y), w = -std::log1p(-size * size);
  double x = std::sqrt(std::sqrt((4.3307 + w / 2) * (4.3307 + w / 2) - w / 0.147) - 4.3307 + w / 2);
  if (!(x > 0)) x = size * 0.886;
  for (int n = 0; n < 60; ++n) {  // Newton's method on erf or erfc, whichever is exact here
    const double error = size < 0.5 ? std::erf(x) - size : (1 - size) - std::erfc(x);
    const double slope = 1.12837916709551257390 * std::exp(-x * x);
    x -= error / slope / (1 + x * error / slope);
  }
  return std::copysign(x, y);
}
inline float erfinvf(float y) { return static_cast<float>(erfinv(y)); }

template <class T> struct Raw {  // an array that a kernel indexes itself
  T* at;
  T& operator[](ptrdiff_t i) const { return at[i]; }
};
