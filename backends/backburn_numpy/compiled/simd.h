/* Vectors as wide as the processor's, for sums that must stay in registers and whose order the source decides: compilers
 * reduce loops in orders of their own. */
#ifndef BACKBURN_SIMD_H
#define BACKBURN_SIMD_H

#include <string.h>

#if defined(__AVX__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
#define VECTOR(type, lanes) __attribute__((vector_size((lanes) * sizeof(type)))) type

typedef VECTOR(float, LANES) Lanes;
typedef VECTOR(float, LANES / 2) Half;
typedef VECTOR(double, LANES / 2) Wide; /* as many bytes as Lanes */

INLINE Lanes load_lanes(const float *x) {
    Lanes some;
    memcpy(&some, x, sizeof some);
    return some;
}

INLINE Wide load_wide(const double *x) {
    Wide some;
    memcpy(&some, x, sizeof some);
    return some;
}

/* The first n elements, fewer than lanes, and others in the lanes after them. */
INLINE Lanes load_some(const float *x, int64_t n, float others) {
#if defined(__AVX512F__)
    return (Lanes)_mm512_mask_loadu_ps(_mm512_set1_ps(others), (__mmask16)((1u << n) - 1u), x);
#elif defined(__AVX__)
    static const int32_t masks[] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
    const __m256i mask = _mm256_loadu_si256((const __m256i *)(masks + 8 - n));
    return (Lanes)_mm256_blendv_ps(_mm256_set1_ps(others), _mm256_maskload_ps(x, mask), (__m256)mask);
#else
    return (Lanes){n > 0 ? x[0] : others, n > 1 ? x[1] : others, n > 2 ? x[2] : others, others};
#endif
}

INLINE Wide load_some_wide(const double *x, int64_t n, double others) {
#if defined(__AVX512F__)
    return (Wide)_mm512_mask_loadu_pd(_mm512_set1_pd(others), (__mmask8)((1u << n) - 1u), x);
#elif defined(__AVX__)
    static const int64_t masks[] = {-1, -1, -1, -1, 0, 0, 0, 0};
    const __m256i mask = _mm256_loadu_si256((const __m256i *)(masks + 4 - n));
    return (Wide)_mm256_blendv_pd(_mm256_set1_pd(others), _mm256_maskload_pd(x, mask), (__m256d)mask);
#else
    return (Wide){n > 0 ? x[0] : others, others};
#endif
}

/* A vector of which only the first n lanes are not 0. */
INLINE Wide low_lanes(Wide x, int64_t n) {
    double all[sizeof x / sizeof(double)];
    memcpy(all, &x, sizeof x);
    return load_some_wide(all, n, 0.0);
}

/* Conversions, for which GCC's __builtin_convertvector takes several instructions. */
INLINE Wide widen(Half x) {
#if defined(__AVX512F__)
    return (Wide)_mm512_cvtps_pd((__m256)x);
#elif defined(__AVX__)
    return (Wide)_mm256_cvtps_pd((__m128)x);
#else
    return __builtin_convertvector(x, Wide);
#endif
}

INLINE Half narrow(Wide x) {
#if defined(__AVX512F__)
    return (Half)_mm512_cvtpd_ps((__m512d)x);
#elif defined(__AVX__)
    return (Half)_mm256_cvtpd_ps((__m256d)x);
#else
    return __builtin_convertvector(x, Half);
#endif
}

INLINE Wide load_widened(const float *x) {
    Half some;
    memcpy(&some, x, sizeof some);
    return widen(some);
}

INLINE Wide low_half(Lanes x) {
    Half low;
    memcpy(&low, &x, sizeof low);
    return widen(low);
}

INLINE Wide high_half(Lanes x) {
    Half halves[2];
    memcpy(halves, &x, sizeof halves);
    return widen(halves[1]);
}

/* The lanes of a vector joined: each with the one half of them further on, until one is left. */
#define JOIN_LANES(name, type, operator)                                                                               \
    INLINE type name(VECTOR(type, sizeof(Lanes) / sizeof(type)) x) {                                                   \
        type all[sizeof x / sizeof(type)];                                                                             \
        memcpy(all, &x, sizeof x);                                                                                     \
        UNROLL for (int n = sizeof x / sizeof(type) / 2; n > 0; n /= 2)                                                \
            UNROLL for (int k = 0; k < n; k++) all[k] = all[k] operator all[k + n];                                    \
        return all[0];                                                                                                 \
    }
JOIN_LANES(sum_of_wide, double, +)
INLINE double sum_of_lanes(Lanes x) { return sum_of_wide(low_half(x) + high_half(x)); }

/* Does something with vectors of as many elements as size, from the one at start to the one before stop. The index of the
 * first is i; turn, 0 or 1, tells which of two sums to add it to, so that none waits for the one before it. AT loads it,
 * and others in place of what is missing in the last one. */
#define BY_VECTORS(size, start, stop, ...)                                                                             \
    {                                                                                                                  \
        const int64_t end = stop;                                                                                      \
        int64_t i = start;                                                                                             \
        for (; end - i >= 2 * (size); i += size) {                                                                     \
            { enum { turn = 0, whole = 1 }; __VA_ARGS__ }                                                              \
            i += size;                                                                                                 \
            { enum { turn = 1, whole = 1 }; __VA_ARGS__ }                                                              \
        }                                                                                                              \
        if (end - i >= (size)) {                                                                                       \
            { enum { turn = 0, whole = 1 }; __VA_ARGS__ }                                                              \
            i += size;                                                                                                 \
        }                                                                                                              \
        if (i < end) { enum { turn = 1, whole = 0 }; __VA_ARGS__ }                                                     \
    }
#define AT(x, others) (whole ? load_lanes(x + i) : load_some(x + i, end - i, others))
#define WIDE_AT(x, others) (whole ? load_wide(x + i) : load_some_wide(x + i, end - i, others))
#define WIDENED_AT(x, others) (whole ? load_widened(x + i) : low_half(load_some(x + i, end - i, others)))

/* The sum of fewer floats than lose digits. */
INLINE double sum_of_floats(const float *restrict x, int64_t start, int64_t stop) {
    Lanes sums[2] = {0};
    BY_VECTORS(LANES, start, stop, sums[turn] += AT(x, 0.0f);)
    return sum_of_lanes(sums[0] + sums[1]);
}

#endif
