/* Products of matrices of 8-bit integers, whose sums are exact. */
#define UNROLLED
#include "runtime/kernels.h"
#include "runtime/processor.h"
#include "runtime/thread_pool.h"

/* Rows of 8-bit integers with a scale and a zero point for each row (each: 1) or for all (0); without zero points,
 * these are 0. */
typedef struct {
    const uint8_t *values;
    const float *scale;
    const int32_t *zero;
    int is_unsigned, each;
} Rows;

/* The products of all rows of x and of w, which have the same length. */
typedef struct {
    float *out;
    Rows x, w;
    int64_t batch, outputs, inputs;
} Integers;

enum { TOGETHER = 4, CHUNK = 128 }; /* rows of w and of x whose products are added up at a time */
typedef int32_t Totals[CHUNK][TOGETHER];

/* Fills totals for count rows of x from first on, and some rows of w. */
typedef void Fill(Totals totals, const Integers *q, int64_t first, int64_t count, const int64_t *rows);

INLINE int32_t zero_of(const Rows *rows, int64_t row) { return rows->zero ? rows->zero[rows->each * row] : 0; }

/* A part of a row minus its zero point, and zeros to the next multiple of VALUES. */
enum { DEEP = 256, VALUES = 32 };

INLINE void widen(int16_t *restrict out, const Rows *rows, int64_t row, int64_t inputs, int64_t start, int64_t length) {
    const uint8_t *values = rows->values + row * inputs + start;
    const int16_t zero = (int16_t)zero_of(rows, row);
    if (rows->is_unsigned) {
        LOOP for (int64_t i = 0; i < length; i++) out[i] = (int16_t)(values[i] - zero);
    } else {
        LOOP for (int64_t i = 0; i < length; i++) out[i] = (int16_t)((int8_t)values[i] - zero);
    }
    for (int64_t i = length; i % VALUES; i++) out[i] = 0;
}

/* With products of 16-bit integers, which every processor has. */
static void fill(Totals totals, const Integers *q, int64_t first, int64_t count, const int64_t *rows) {
    int16_t x[DEEP], w[TOGETHER][DEEP];
    memset(totals, 0, (size_t)count * sizeof totals[0]);
    for (int64_t start = 0; start < q->inputs; start += DEEP) {
        const int64_t length = q->inputs - start < DEEP ? q->inputs - start : DEEP;
        const int64_t padded = (length + VALUES - 1) / VALUES * VALUES;
        for (int c = 0; c < TOGETHER; c++) widen(w[c], &q->w, rows[c], q->inputs, start, length);
        for (int64_t r = 0; r < count; r++) {
            int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
            widen(x, &q->x, first + r, q->inputs, start, length);
            for (int64_t i = 0; i < padded; i++) {
                s0 += x[i] * w[0][i];
                s1 += x[i] * w[1][i];
                s2 += x[i] * w[2][i];
                s3 += x[i] * w[3][i];
            }
            totals[r][0] += s0, totals[r][1] += s1, totals[r][2] += s2, totals[r][3] += s3;
        }
    }
}

#if defined(__AVX512BW__) && defined(__GNUC__)
#include <immintrin.h>
#include <stdatomic.h>

#define VNNI __attribute__((target("avx512vnni")))

/* Not __m512i: GCC moves each value to and fro between it and this type. */
typedef int32_t Ints __attribute__((vector_size(64)));

/* The sums of the lanes of four vectors. */
VNNI INLINE __m128i sums_of_lanes(const Ints *lanes) {
    const __m512i x[] = {(__m512i)lanes[0], (__m512i)lanes[1], (__m512i)lanes[2], (__m512i)lanes[3]};
    const __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1]));
    const __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3]));
    const __m512i c = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    const __m256i d = _mm256_add_epi32(_mm512_castsi512_si256(c), _mm512_extracti64x4_epi64(c, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(d), _mm256_extracti128_si256(d, 1));
}

/* 64 products at a time, of unsigned and signed integers: with their highest bits flipped, signed integers are unsigned
 * and 128 larger, and unsigned ones signed and 128 smaller. */
VNNI INLINE void add_products(Ints (*sums)[TOGETHER], const uint8_t *x, const uint8_t *const *w, int64_t inputs,
                              int64_t at, __mmask64 mask, __m512i flip_x, __m512i flip_w, const int count,
                              const int has_ones) {
    __m512i some[TOGETHER];
    for (int c = 0; c < TOGETHER; c++)
        some[c] = _mm512_maskz_mov_epi8(mask, _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, w[c] + at), flip_w));
    for (int r = 0; r < count; r++) {
        const __m512i one = _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, x + r * inputs + at), flip_x);
        for (int c = 0; c < TOGETHER; c++) sums[r][c] = (Ints)_mm512_dpbusd_epi32((__m512i)sums[r][c], one, some[c]);
    }
    for (int c = 0; c < TOGETHER && has_ones; c++)
        sums[count][c] = (Ints)_mm512_dpbusd_epi32((__m512i)sums[count][c], _mm512_set1_epi8(1), some[c]);
}

/* The products of count rows of x, and with has_ones those of a row of ones. */
VNNI INLINE void products_of(int32_t (*out)[TOGETHER], int32_t *ones_sums, const uint8_t *x, const uint8_t *const *w,
                             int64_t inputs, char flip_x, char flip_w, const int count, const int has_ones) {
    const __m512i x_flips = _mm512_set1_epi8(flip_x), w_flips = _mm512_set1_epi8(flip_w);
    Ints sums[TOGETHER + 1][TOGETHER] = {0};
    int64_t at = 0;
    for (; at + 64 <= inputs; at += 64) add_products(sums, x, w, inputs, at, ~0ull, x_flips, w_flips, count, has_ones);
    if (at < inputs)
        add_products(sums, x, w, inputs, at, (1ull << (inputs - at)) - 1, x_flips, w_flips, count, has_ones);
    for (int r = 0; r < count; r++) _mm_storeu_si128((__m128i *)out[r], sums_of_lanes(sums[r]));
    if (has_ones) _mm_storeu_si128((__m128i *)ones_sums, sums_of_lanes(sums[count]));
}

VNNI static void fill_vnni(Totals totals, const Integers *q, int64_t first, int64_t count, const int64_t *rows) {
    const int64_t inputs = q->inputs;
    const uint8_t *x = q->x.values + first * inputs, *w[TOGETHER];
    const char flip_x = q->x.is_unsigned ? 0 : (char)0x80, flip_w = q->w.is_unsigned ? (char)0x80 : 0;
    int32_t ones_sums[TOGETHER], zero[TOGETHER], any = 0;
    for (int c = 0; c < TOGETHER; c++) {
        w[c] = q->w.values + rows[c] * inputs;
        zero[c] = zero_of(&q->w, rows[c]) - (q->w.is_unsigned ? 128 : 0);
        any |= zero[c];
    }
    for (int64_t r = 0; r < count;) {
        const int few = count - r < TOGETHER;
        if (few && r) products_of(totals + r, ones_sums, x + r * inputs, w, inputs, flip_x, flip_w, 1, 0);
        else if (few) products_of(totals + r, ones_sums, x + r * inputs, w, inputs, flip_x, flip_w, 1, 1);
        else if (r) products_of(totals + r, ones_sums, x + r * inputs, w, inputs, flip_x, flip_w, TOGETHER, 0);
        else products_of(totals + r, ones_sums, x + r * inputs, w, inputs, flip_x, flip_w, TOGETHER, 1);
        r += few ? 1 : TOGETHER;
    }
    for (int64_t r = 0; r < count; r++) {
        const uint32_t shift = (uint32_t)(zero_of(&q->x, first + r) + (q->x.is_unsigned ? 0 : 128));
        uint32_t total = 0; /* of the row, if it is needed */
        if (any) {
            SUM_OF(total) for (int64_t i = 0; i < inputs; i++) total += (uint8_t)(x[r * inputs + i] ^ flip_x);
            total -= (uint32_t)inputs * shift;
        }
        for (int c = 0; c < TOGETHER; c++)
            totals[r][c] = (int32_t)((uint32_t)totals[r][c] - shift * (uint32_t)ones_sums[c] - total * (uint32_t)zero[c]);
    }
}

/* Queried once: virtual machines answer slowly. */
static Fill *fastest(void) {
    static atomic_int known; /* 1 or 2 */
    if (!known) known = has(processor().more, AVX512_VNNI) ? 2 : 1;
    return known == 2 ? fill_vnni : fill;
}
#else
static Fill *fastest(void) { return fill; }
#endif

static void columns_of(const void *context, int64_t first, int64_t last) {
    const Integers *q = context;
    Fill *fill_totals = fastest();
    for (int64_t n = 0; n < q->batch; n += CHUNK) {
        const int64_t count = q->batch - n < CHUNK ? q->batch - n : CHUNK;
        for (int64_t c = first; c < last; c += TOGETHER) {
            const int64_t width = last - c < TOGETHER ? last - c : TOGETHER;
            int64_t rows[TOGETHER];
            double scale[TOGETHER];
            Totals totals;
            for (int i = 0; i < TOGETHER; i++) {
                rows[i] = i < width ? c + i : c;
                scale[i] = q->w.scale[q->w.each * rows[i]];
            }
            fill_totals(totals, q, n, count, rows);
            for (int64_t r = 0; r < count; r++) {
                const double row_scale = q->x.scale[q->x.each * (n + r)];
                float products[TOGETHER], *out = q->out + (n + r) * q->outputs + c;
                for (int i = 0; i < TOGETHER; i++) products[i] = (float)(totals[r][i] * row_scale * scale[i]);
                if (width == TOGETHER) memcpy(out, products, sizeof products);
                else for (int64_t i = 0; i < width; i++) out[i] = products[i];
            }
        }
    }
}

/* out (batch, outputs) = x (batch, inputs) times the transpose of w (outputs, inputs). int32 must hold each sum.
 * Threads take grain rows of w at a time. */
KERNEL(q_matmul, float *out, const uint8_t *x, const float *x_scale, const int32_t *x_zero, const uint8_t *w,
       const float *w_scale, const int32_t *w_zero, int x_unsigned, int x_each, int w_unsigned, int w_each,
       int64_t batch, int64_t outputs, int64_t inputs, int64_t grain, int threads) {
    const Integers q = {out, {x, x_scale, x_zero, x_unsigned, x_each}, {w, w_scale, w_zero, w_unsigned, w_each},
                        batch, outputs, inputs};
    backburn_pool_run(columns_of, &q, outputs, grain, threads);
}
