/* 16-bit floats to float32 and back, rounded to nearest, ties to even; NaN stays NaN. */
#include "runtime/kernels.h"
#include "runtime/thread_pool.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

#ifdef __ARM_FP16_FORMAT_IEEE
INLINE float from_half(uint16_t half) {
    __fp16 value;
    memcpy(&value, &half, sizeof value);
    return value;
}

INLINE uint16_t to_half(float x) {
    const __fp16 value = (__fp16)x;
    uint16_t half;
    memcpy(&half, &value, sizeof half);
    return half;
}
#else
/* The bits shift by 13 and the exponent's bias grows by 112; a product does the latter for subnormals too. */
INLINE float from_half(uint16_t half) {
    const int32_t rest = (half & 0x7fff) << 13, infinite = 0x7c00 << 13;
    const int32_t bits = to_bits(from_bits(rest) * 0x1p112f) | (rest >= infinite ? 0x7f800000 : 0);
    return from_bits(bits | (int32_t)((uint32_t)(half & 0x8000) << 16));
}

/* Adding 1/2 rounds a subnormal half into the low bits of the float. Others are rounded by adding half a unit of the
 * last bit kept, a little less where that bit is even. */
INLINE uint16_t to_half(float x) {
    const int32_t whole = to_bits(x), bits = whole & 0x7fffffff;
    const int32_t small = to_bits(from_bits(bits) + 0.5f) - 0x3f000000;
    const int32_t normal = (bits - (112 << 23) + 0xfff + (bits >> 13 & 1)) >> 13;
    const int32_t large = bits > 0x7f800000 ? 0x7e00 : 0x7c00;
    const int32_t half = bits >= 143 << 23 ? large : bits < 113 << 23 ? small : normal;
    return (uint16_t)(half | (int32_t)((uint32_t)whole >> 16 & 0x8000));
}
#endif

KERNEL(half_to_float, float *restrict out, const uint16_t *restrict x, int64_t count) {
    int64_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= count; i += 8) {
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + i))));
    }
#endif
    LOOP for (int64_t k = i; k < count; k++) out[k] = from_half(x[k]);
}

KERNEL(float_to_half, uint16_t *restrict out, const float *restrict x, int64_t count) {
    int64_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= count; i += 8) {
        _mm_storeu_si128((__m128i *)(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
    }
#endif
    LOOP for (int64_t k = i; k < count; k++) out[k] = to_half(x[k]);
}

/* bfloat16 is the upper half of a float32. */
KERNEL(bfloat16_to_float, float *restrict out, const uint16_t *restrict x, int64_t count) {
    LOOP for (int64_t i = 0; i < count; i++) out[i] = from_bits((int32_t)((uint32_t)x[i] << 16));
}

KERNEL(float_to_bfloat16, uint16_t *restrict out, const float *restrict x, int64_t count) {
    LOOP for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = (uint32_t)to_bits(x[i]);
        const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
        out[i] = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded >> 16);
    }
}

/* ---- float32 rounded to a 16-bit float, as results within a pass are ---- */

KERNEL(round_to_half, float *restrict out, const float *restrict x, int64_t count) {
    int64_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= count; i += 8) {
        const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(half));
    }
#endif
    LOOP for (int64_t k = i; k < count; k++) out[k] = from_half(to_half(x[k]));
}

KERNEL(round_to_bfloat16, float *restrict out, const float *restrict x, int64_t count) {
    LOOP for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = (uint32_t)to_bits(x[i]);
        const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
        out[i] = x[i] != x[i] ? x[i] : from_bits((int32_t)rounded);
    }
}

/* ---- reductions, in which a row or a part of it is float32 only in the L1 cache ---- */

#define ROOM 4096

typedef void Widen(float *restrict, const uint16_t *restrict, int64_t);
typedef void Reduce(const float *restrict, float *restrict, int64_t, int64_t);

/* Rows of at most ROOM elements, by a kernel that reduces rows of float32. */
KERNEL(reduce_half_rows, float *out, const uint16_t *x, void *widen, void *reduce, int64_t rows, int64_t width) {
    float room[ROOM];
    for (int64_t r = 0; r < rows; r++, x += width) {
        ((Widen *)widen)(room, x, width);
        ((Reduce *)reduce)(room, out + r, 1, width);
    }
}

typedef struct {
    float *out;
    const uint16_t *x;
    void *widen, *reduce;
    int64_t width;
} HalfRows;

static void reduce_half_rows_task(const void *context, int64_t first, int64_t last) {
    const HalfRows *h = context;
    backburn_reduce_half_rows(h->out + first, h->x + first * h->width, h->widen, h->reduce, last - first, h->width);
}

KERNEL(parallel_reduce_half_rows, float *out, const uint16_t *x, void *widen, void *reduce, int64_t rows,
       int64_t width, int64_t grain, int threads) {
    const HalfRows all = {out, x, widen, reduce, width};
    backburn_pool_run(reduce_half_rows_task, &all, rows, grain, threads);
}

/* The sums of columns, first over blocks of rows, so that errors do not grow with the number of rows. */
KERNEL(sum_half_columns, float *restrict out, const uint16_t *restrict x, void *widen, int64_t rows,
       int64_t width) {
    float room[ROOM / 4], some[ROOM / 4];
    memset(out, 0, (size_t)width * sizeof *out);
    for (int64_t start = 0; start < rows; start += 256)
        for (int64_t at = 0; at < width; at += ROOM / 4) {
            const int64_t count = width - at < ROOM / 4 ? width - at : ROOM / 4;
            memset(some, 0, sizeof some);
            for (int64_t row = start; row < rows && row < start + 256; row++) {
                ((Widen *)widen)(room, x + row * width + at, count);
                LOOP for (int64_t i = 0; i < count; i++) some[i] += room[i];
            }
            LOOP for (int64_t i = 0; i < count; i++) out[at + i] += some[i];
        }
}
