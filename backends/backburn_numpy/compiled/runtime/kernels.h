/* Shared by the kernels of the NumPy backend.
 *
 * A kernel works on contiguous float32 arrays whose sizes its caller has checked, writes only its results, and is
 * stateless, so that several threads may each process a part. The sources are plain C11, compiled once per instruction
 * set and written so that compilers vectorize their loops: no calls, no data-dependent branches. Arithmetic follows
 * IEEE 754, NaN and infinities included (no -ffast-math), but multiply-adds are fused. Results are bitwise equal for
 * all compilers: sums of floats use explicit vectors (simd.h), and only those of integers are marked as reductions,
 * which compilers reorder.
 */
#ifndef BACKBURN_KERNELS_H
#define BACKBURN_KERNELS_H

/* Loops over accumulators must be unrolled for these to stay in registers. */
#if defined(UNROLLED) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

#define TEXT(...) #__VA_ARGS__

/* A kernel, and its parameters as a string, for ctypes; of float unless REAL and NAMED say otherwise. */
#define REAL float
#define NAMED(name) backburn_##name
#define KERNEL(name, ...) KERNEL_RETURNING(void, name, __VA_ARGS__)

/* A kernel with a result. */
#define KERNEL_RETURNING(type, name, ...)                                                                              \
    EXPORT const char NAMED(parameters_of_##name)[] = TEXT(__VA_ARGS__);                                               \
    EXPORT type NAMED(name)(__VA_ARGS__)

/* Machine code takes arrays and their rows. It follows the convention of System V on Windows, too, where the compiler
 * saves the registers that it may overwrite and Windows functions may not. */
#if defined(__x86_64__)
typedef void Code(char **, int64_t) __attribute__((sysv_abi));
#else
typedef void Code(char **, int64_t);
#endif

/* Functions whose code is part of each caller's, and those whose code is shared. */
#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#define SHARED static __attribute__((noinline))
#else
#define INLINE static inline
#define SHARED static
#endif

/* A short loop over variables that must stay in registers. */
#if defined(__GNUC__)
#define UNROLL _Pragma("GCC unroll 16")
#else
#define UNROLL
#endif

#define LOOP _Pragma("omp simd")
#define SUM_OF(...) _Pragma(TEXT(omp simd reduction(+ : __VA_ARGS__)))

INLINE float from_bits(int32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE int32_t to_bits(float value) {
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* a b + c, rounded once if the processor can. Compilers differ in which of two products in a sum they fuse; this says
 * which. */
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define FUSED(a, b, c) _Generic((a), float: fmaf, double: fma)(a, b, c)
#else
#define FUSED(a, b, c) ((a) * (b) + (c))
#endif

/* Horner's rule from p on, by multiply-adds. Compilers may evaluate two polynomials in the same variable as pairs, in
 * which Clang fuses nothing by itself; GCC always does, and explicit multiply-adds make its code slower. */
#ifdef __clang__
#define HORNER1(x, p, a) FUSED(x, p, a)
#else
#define HORNER1(x, p, a) ((x) * (p) + (a))
#endif
#define HORNER2(x, p, a, ...) HORNER1(x, HORNER1(x, p, a), __VA_ARGS__)
#define HORNER3(x, p, a, ...) HORNER2(x, HORNER1(x, p, a), __VA_ARGS__)
#define HORNER4(x, p, a, ...) HORNER3(x, HORNER1(x, p, a), __VA_ARGS__)
#define HORNER5(x, p, a, ...) HORNER4(x, HORNER1(x, p, a), __VA_ARGS__)

/* 2**n for n in -126 to 127; arbitrary for other n, which come from NaN. */
INLINE float power_of_2(int32_t n) { return from_bits((int32_t)(((uint32_t)n + 127u) << 23)); }

/* exp(x + rest) / 2**whole - 1, for a rest much smaller than 1 or about the rounding error of x; the polynomial of
 * Cephes (Moshier) on -0.35 to 0.35. */
INLINE float exp_terms(float x, float rest, int32_t *whole) {
    const float shift = 12582912.0f; /* 1.5 * 2**23: adding it rounds to an integer, which its low bits hold */
    const float shifted = (x + rest) * 1.44269504088896341f + shift;
    const float n = shifted - shift;
    const float r = ((x - n * 0.693359375f) + n * 2.12194440e-4f) + rest;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    *whole = (int32_t)((uint32_t)to_bits(shifted) - (uint32_t)to_bits(shift));
    return (p * r) * r + r;
}

/* exp(x + rest). Within 1 ulp where the result is normal; overflows to infinity, underflows gradually to 0, NaN stays
 * NaN. */
INLINE float exp_of_sum(float x, float rest) {
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    int32_t whole;
    const float p = exp_terms(x, rest, &whole) + 1.0f;
    const int32_t half = whole >> 1; /* whole is in -150 to 128, out of range for a single power of 2 */
    return p * power_of_2(half) * power_of_2(whole - half);
}

INLINE float exp_of(float x) { return exp_of_sum(x, -0.0f); } /* compilers omit it, unlike 0 */

/* log(1 + z) for z in -0.3 to 0.42 is z - z**2 / 2 + z**2 times this, a polynomial of Cephes (Moshier). */
INLINE float log_terms(float z) {
    float p = 7.0376836292e-2f;
    p = p * z - 1.1514610310e-1f;
    p = p * z + 1.1676998740e-1f;
    p = p * z - 1.2420140846e-1f;
    p = p * z + 1.4249322787e-1f;
    p = p * z - 1.6668057665e-1f;
    p = p * z + 2.0000714765e-1f;
    p = p * z - 2.4999993993e-1f;
    p = p * z + 3.3333331174e-1f;
    return p * z;
}

/* log(1 + e) for e in 0 to 1, within 2 ulp: Cephes' log of 1 + e, corrected for the rounding of that sum. */
INLINE float log_of_one_plus(float e) {
    const float u = 1.0f + e, lost = e - (u - 1.0f);
    /* u is in 1 to 2: halved above sqrt(2), so that the argument of the polynomial is in -0.3 to 0.42. */
    const int above = u > 1.41421356f;
    const float m = above ? 0.5f * u : u, z = m - 1.0f;
    const float square = z * z;
    float result = log_terms(z) * square - 0.5f * square + z + lost / u;
    return above ? (result - 2.12194440e-4f) + 0.693359375f : result;
}

/* log(u) for u that is neither NaN nor negative; Cephes' (Moshier). */
INLINE float log_of_positive(float u) {
    const int small = u < 0x1p-126f;
    const int32_t bits = to_bits(small ? u * 0x1p23f : u), whole = (bits - 0x3f3504f3) >> 23;
    const float z = from_bits(bits - (int32_t)((uint32_t)whole << 23)) - 1.0f, square = z * z;
    const float n = (float)(small ? whole - 23 : whole);
    const float low = FUSED(-n, 2.12194440e-4f, log_terms(z) * square);
    const float result = (low - 0.5f * square + z) + n * 0.693359375f;
    return u == 0.0f ? -INFINITY : u == INFINITY ? u : result;
}

INLINE float log_of(float x) { return x >= 0.0f ? log_of_positive(x) : NAN; }

/* log(1 + x), corrected for the rounding of that sum. */
INLINE float log1p_of(float x) {
    const float u = 1.0f + x, lost = x > 1.0f ? 1.0f - (u - x) : x - (u - 1.0f);
    const float result = log_of_positive(u), exact = result + (fabsf(result) < INFINITY ? lost / u : 0.0f);
    return fabsf(x) < 0x1p-25f ? x : x >= -1.0f ? exact : NAN;
}

/* exp(-|x|) cannot overflow, and keeps the precision of small results. */
INLINE float sigmoid_of(float x) {
    const float e = exp_of(-fabsf(x)), above = 1.0f / (1.0f + e);
    return x < 0.0f ? e * above : above;
}

/* tanh(x), within 2 ulp: Cephes' polynomial near 0, else 1 - 2 / (exp(2 |x|) + 1) with the sign of x. */
INLINE float tanh_of(float x) {
    const float y = fabsf(x), z = x * x;
    float p = -5.70498872745e-3f;
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    const float near = p * z * y + y, far = 1.0f - 2.0f / (exp_of(2.0f * y) + 1.0f);
    return copysignf(y < 0.625f ? near : far, x);
}

/* The cross entropy of a label with the logit x; others is the sum of exp(x - top) over the other classes. Double keeps
 * the digits of a difference of large logarithms, and of a small loss: the others are not absorbed by the label's 1. */
INLINE float loss_of(float x, float top, float others) {
    const double own = (double)x - (double)top;
    return (float)(log((double)others + exp(own)) - own);
}

/* Element-wise kernels, whose result may overwrite an operand. */
#define UNARY(name, expression)                                                                                        \
    KERNEL(name, REAL *out, const REAL *xs, int64_t count) {                                                           \
        LOOP for (int64_t i = 0; i < count; i++) {                                                                     \
            const REAL x = xs[i];                                                                                      \
            out[i] = expression;                                                                                       \
        }                                                                                                              \
    }

#define BINARY(name, first, second, expression)                                                                        \
    KERNEL(name, REAL *out, const REAL *firsts, const REAL *seconds,                                                   \
           int64_t count) {                                                                                            \
        LOOP for (int64_t i = 0; i < count; i++) {                                                                     \
            const REAL first = firsts[i], second = seconds[i];                                                         \
            out[i] = expression;                                                                                       \
        }                                                                                                              \
    }

/* 1 - y**2 of y = tanh(x): exp(-2 |x|) (1 + |y|)**2. */
#define TANH_SLOPE(exponential, size)                                                                                  \
    KERNEL(tanh_slope, REAL *out, const REAL *grads, const REAL *xs, const REAL *ys, int64_t count) {                  \
        LOOP for (int64_t i = 0; i < count; i++) {                                                                     \
            const REAL above = 1 + size(ys[i]);                                                                        \
            out[i] = exponential(-2 * size(xs[i])) * (above * above) * grads[i];                                       \
        }                                                                                                              \
    }

#endif
