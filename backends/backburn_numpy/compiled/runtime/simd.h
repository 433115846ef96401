/* Vectors as wide as the processor's, for sums that must stay in registers and whose order the source fixes: compilers
 * reduce loops in different orders. */
#ifndef BACKBURN_SIMD_H
#define BACKBURN_SIMD_H

#include <string.h>

#if defined(__SSE2__)
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
typedef VECTOR(int32_t, LANES) Ints;
typedef VECTOR(int64_t, LANES / 2) WideInts;

/* The intrinsic for vectors of all lanes with this suffix. */
#if defined(__AVX512F__)
#define ALL_LANES(name) _mm512_##name
#elif defined(__AVX__)
#define ALL_LANES(name) _mm256_##name
#else
#define ALL_LANES(name) _mm_##name
#endif

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

/* The first n elements, fewer than there are lanes, and `others` in the remaining lanes. */
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

INLINE void store_lanes(float *out, Lanes x) { memcpy(out, &x, sizeof x); }

/* Stores the first n lanes, fewer than there are. */
INLINE void store_some(float *out, int64_t n, Lanes x) {
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(out, (__mmask16)((1u << n) - 1u), (__m512)x);
#elif defined(__AVX__)
    __m128 some = _mm256_castps256_ps128((__m256)x);
    if (n & 4) {
        _mm_storeu_ps(out, some);
        some = _mm256_extractf128_ps((__m256)x, 1);
        out += 4;
    }
    if (n & 2) {
        _mm_storel_pi((__m64 *)out, some);
        some = _mm_movehl_ps(some, some);
        out += 2;
    }
    if (n & 1) _mm_store_ss(out, some);
#else
    for (int64_t k = 0; k < n; k++) out[k] = x[k];
#endif
}

/* x with 0 in all but the first n lanes. */
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

/* x with adjacent groups of n lanes exchanged. */
INLINE Lanes swapped(Lanes x, int n) {
#if defined(__AVX512F__)
    if (n == 8) return (Lanes)_mm512_shuffle_f32x4((__m512)x, (__m512)x, 0x4e);
    if (n == 4) return (Lanes)_mm512_shuffle_f32x4((__m512)x, (__m512)x, 0xb1);
#elif defined(__AVX__)
    if (n == 4) return (Lanes)_mm256_permute2f128_ps((__m256)x, (__m256)x, 1);
#endif
#if defined(__SSE2__)
    return (Lanes)(n == 2 ? ALL_LANES(shuffle_ps)(x, x, 0x4e) : ALL_LANES(shuffle_ps)(x, x, 0xb1));
#else
    Lanes y = x;
    UNROLL for (int k = 0; k < LANES; k++) y[k] = x[k ^ n];
    return y;
#endif
}

/* Defines a function that joins the lanes of a vector: each with the one half of them further on, until one is left. */
#define JOIN_STEP(n, several, joined)                                                                                  \
    if (n <= LANES / 2 && n >= (int)(sizeof x[0] / sizeof(float))) {                                                   \
        const several y = (several)swapped((Lanes)x, n);                                                               \
        x = joined;                                                                                                    \
    }
#define JOIN_LANES(name, type, several, joined)                                                                        \
    INLINE type name(several x) {                                                                                      \
        JOIN_STEP(8, several, joined)                                                                                  \
        JOIN_STEP(4, several, joined)                                                                                  \
        JOIN_STEP(2, several, joined)                                                                                  \
        JOIN_STEP(1, several, joined)                                                                                  \
        return x[0];                                                                                                   \
    }
JOIN_LANES(sum_of_wide, double, Wide, x + y)
JOIN_LANES(product_of_wide, double, Wide, x * y)
INLINE double sum_of_lanes(Lanes x) { return sum_of_wide(low_half(x) + high_half(x)); }

/* Keeps Clang from unrolling a loop: its setup takes longer than short rows do. */
#if defined(__clang__)
#define AS_IT_IS _Pragma("clang loop unroll(disable)")
#else
#define AS_IT_IS
#endif

/* Runs statements for vectors of `size` elements, from start to stop - 1. i is the index of the first element; turn, 0
 * or 1, tells which of two sums to add to, so that no addition waits for the one before it. AT loads the vector, with
 * `others` in place of elements missing in the last one. */
#define BY_VECTORS(size, start, stop, ...)                                                                             \
    {                                                                                                                  \
        const int64_t end = stop;                                                                                      \
        int64_t i = start;                                                                                             \
        AS_IT_IS for (; end - i >= 2 * (size); i += size) {                                                            \
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

/* The better number of two lanes, the larger or the smaller; the second if they are equal or one is NaN, as in x86's
 * instructions. And the best of all lanes. */
#if defined(__SSE2__)
#define CHOICE(name, better, instruction)                                                                              \
    INLINE Lanes name##_lanes(Lanes x, Lanes y) { return (Lanes)ALL_LANES(instruction##_ps)(x, y); }                   \
    INLINE Wide name##_wide(Wide x, Wide y) { return (Wide)ALL_LANES(instruction##_pd)(x, y); }
#else
#define CHOICE(name, better, instruction)                                                                              \
    INLINE Lanes name##_lanes(Lanes x, Lanes y) {                                                                      \
        UNROLL for (int k = 0; k < LANES; k++) y[k] = x[k] better y[k] ? x[k] : y[k];                                  \
        return y;                                                                                                      \
    }                                                                                                                  \
    INLINE Wide name##_wide(Wide x, Wide y) {                                                                          \
        UNROLL for (int k = 0; k < LANES / 2; k++) y[k] = x[k] better y[k] ? x[k] : y[k];                              \
        return y;                                                                                                      \
    }
#endif
CHOICE(larger, >, max)
CHOICE(smaller, <, min)
#undef CHOICE
JOIN_LANES(largest_lane, float, Lanes, larger_lanes(y, x))
JOIN_LANES(smallest_lane, float, Lanes, smaller_lanes(y, x))
JOIN_LANES(largest_lane_of_wide, double, Wide, larger_wide(y, x))
JOIN_LANES(smallest_lane_of_wide, double, Wide, smaller_wide(y, x))

INLINE int is_any(Ints x) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)x, (__m512i)x) != 0;
#elif defined(__SSE2__)
    return ALL_LANES(movemask_ps)((Lanes)x) != 0;
#else
    int32_t any = 0;
    for (int k = 0; k < LANES; k++) any |= x[k];
    return any;
#endif
}

/* y where it is NaN and x is not, else other. */
INLINE Lanes nan_of(Lanes x, Lanes y, Lanes other) {
#if defined(__AVX512F__)
    return (Lanes)_mm512_mask_mov_ps(
        other, _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), y, y, _CMP_UNORD_Q), y);
#else
    const Ints chosen = (x == x) & (y != y);
    return (Lanes)((chosen & (Ints)y) | (~chosen & (Ints)other));
#endif
}

INLINE Wide nan_of_wide(Wide x, Wide y, Wide other) {
#if defined(__AVX512F__)
    return (Wide)_mm512_mask_mov_pd(
        other, _mm512_mask_cmp_pd_mask(_mm512_cmp_pd_mask(x, x, _CMP_ORD_Q), y, y, _CMP_UNORD_Q), y);
#else
    const WideInts chosen = (x == x) & (y != y);
    return (Wide)((chosen & (WideInts)y) | (~chosen & (WideInts)other));
#endif
}

/* Defines a function for the best number of a row, `least` if it has none, and whether it has a NaN. 0 equals -0. */
#define EXTREME(type, several, nans_of_several, at, name, better, best, least)                                         \
    INLINE type name(const type *restrict x, int64_t width, int *unordered) {                                          \
        several some[2] = {(several){0} + (type)least, (several){0} + (type)least};                                    \
        nans_of_several nans = {0};                                                                                    \
        BY_VECTORS((int64_t)(sizeof(several) / sizeof(type)), 0, width, const several y = at(x, (type)least);          \
                   nans |= y != y; some[turn] = better(y, some[turn]);)                                                \
        *unordered = is_any((Ints)nans);                                                                               \
        return best(better(some[1], some[0]));                                                                         \
    }

#if defined(__SSE2__)
/* A vector of parts of 16 bytes that are `stride` bytes apart. */
INLINE VECTOR(float, LANES) load_parts(const void *x, int64_t stride) {
    const char *at = x;
#define PART(n) _mm_loadu_ps((const float *)(at + n * stride))
#if defined(__AVX512F__)
    const __m512 low = _mm512_insertf32x4(_mm512_castps128_ps512(PART(0)), PART(1), 1);
    return (Lanes)_mm512_insertf32x4(_mm512_insertf32x4(low, PART(2), 2), PART(3), 3);
#elif defined(__AVX__)
    return (Lanes)_mm256_insertf128_ps(_mm256_castps128_ps256(PART(0)), PART(1), 1);
#else
    return (Lanes)PART(0);
#endif
#undef PART
}
#endif

/* The first 16 bytes of rows, one row per lane, width apart, as a vector for each column. */
INLINE void load_columns(Lanes *columns, const float *x, int64_t width) {
#if defined(__SSE2__)
    const int64_t stride = 4 * width * (int64_t)sizeof *x;
    const Lanes a = load_parts(x, stride), b = load_parts(x + width, stride);
    const Lanes c = load_parts(x + 2 * width, stride), d = load_parts(x + 3 * width, stride);
    const Wide ab = (Wide)ALL_LANES(unpacklo_ps)(a, b), cd = (Wide)ALL_LANES(unpacklo_ps)(c, d);
    const Wide after_ab = (Wide)ALL_LANES(unpackhi_ps)(a, b), after_cd = (Wide)ALL_LANES(unpackhi_ps)(c, d);
    columns[0] = (Lanes)ALL_LANES(unpacklo_pd)(ab, cd);
    columns[1] = (Lanes)ALL_LANES(unpackhi_pd)(ab, cd);
    columns[2] = (Lanes)ALL_LANES(unpacklo_pd)(after_ab, after_cd);
    columns[3] = (Lanes)ALL_LANES(unpackhi_pd)(after_ab, after_cd);
#else
    for (int r = 0; r < LANES; r++)
        for (int k = 0; k < 4; k++) columns[k][r] = x[r * width + k];
#endif
}

INLINE void load_columns_wide(Wide *columns, const double *x, int64_t width) {
#if defined(__SSE2__)
    const int64_t stride = 2 * width * (int64_t)sizeof *x;
    const Wide a = (Wide)load_parts(x, stride), b = (Wide)load_parts(x + width, stride);
    columns[0] = (Wide)ALL_LANES(unpacklo_pd)(a, b);
    columns[1] = (Wide)ALL_LANES(unpackhi_pd)(a, b);
#else
    for (int r = 0; r < LANES / 2; r++)
        for (int k = 0; k < 2; k++) columns[k][r] = x[r * width + k];
#endif
}

#define STORE(out, x) (whole ? store_lanes(out + i, x) : store_some(out + i, end - i, x))

/* The sum of floats, too few to lose digits. */
INLINE double sum_of_floats(const float *restrict x, int64_t start, int64_t stop) {
    Lanes sums[2] = {0};
    BY_VECTORS(LANES, start, stop, sums[turn] += AT(x, 0.0f);)
    return sum_of_lanes(sums[0] + sums[1]);
}

#endif
