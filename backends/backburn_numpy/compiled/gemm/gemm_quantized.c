/* Products with quantized weights, of which only a few rows are dequantized at a time. */
#define UNROLLED
#include "runtime/kernels.h"
#include "blas.h"
#include "runtime/thread_pool.h"
#include "runtime/vec16.h"

enum { INT8, UINT8, INT4, FLOAT32, FLOAT16, BFLOAT16 };

/* An array of one of these kinds. */
typedef struct {
    const void *numbers;
    int kind;
} Numbers;

/* Scales and zero points are finite: a float16 NaN or infinity is not handled. */
INLINE float number_at(Numbers of, int64_t i) {
    switch (of.kind) {
    case INT8: return (float)((const int8_t *)of.numbers)[i];
    case UINT8: return (float)((const uint8_t *)of.numbers)[i];
    case BFLOAT16: return from_bits((int32_t)((uint32_t)((const uint16_t *)of.numbers)[i] << 16));
#if defined(__F16C__)
    case FLOAT16: return _cvtsh_ss(((const uint16_t *)of.numbers)[i]);
#else
    case FLOAT16: {
        /* The exponent's bias is 112 less than in float32; a product handles subnormals, too. */
        const uint32_t bits = ((const uint16_t *)of.numbers)[i];
        return from_bits((int32_t)((bits & 0x8000u) << 16 | (bits & 0x7fffu) << 13)) * 0x1p112f;
    }
#endif
    default: return ((const float *)of.numbers)[i];
    }
}

/* Numbers of 16 and 8 bits, as many as a vector has floats. */
typedef int16_t Shorts __attribute__((vector_size(32)));
typedef uint32_t UInts __attribute__((vector_size(64)));
typedef int8_t Signed __attribute__((vector_size(16)));
typedef uint8_t Unsigned __attribute__((vector_size(16)));

/* Compilers scalarize a conversion to four times the width, unless it is done in two steps. */
#if defined(__AVX512F__)
INLINE Ints ints_of_signed(Signed x) { return (Ints)_mm512_cvtepi8_epi32((__m128i)x); }
INLINE Ints ints_of_unsigned(Unsigned x) { return (Ints)_mm512_cvtepu8_epi32((__m128i)x); }
#else
INLINE Ints ints_of_signed(Signed x) { return __builtin_convertvector(__builtin_convertvector(x, Shorts), Ints); }
INLINE Ints ints_of_unsigned(Unsigned x) { return __builtin_convertvector(__builtin_convertvector(x, Shorts), Ints); }
#endif

INLINE Ints ints_at(const uint8_t *values, int kind) {
    if (kind == UINT8) {
        Unsigned some;
        memcpy(&some, values, sizeof some);
        return ints_of_unsigned(some);
    }
    Signed some;
    memcpy(&some, values, sizeof some);
    return ints_of_signed(some);
}

INLINE Floats low_half(Ints bytes) { return __builtin_convertvector(((bytes & 15) ^ 8) - 8, Floats); }
INLINE Floats high_half(Ints bytes) { return __builtin_convertvector(bytes >> 4, Floats); }

/* A row of the weight: its values, scales and optional zero points, whose indices start at k. */
typedef struct {
    const uint8_t *values;
    int kind;
    Numbers scale, zero;
    int64_t k, bytes, block;
} Row;

/* Applies USE_VECTOR to the values of a row, (value - zero) scale, in vectors of 16, with their positions and part 0 or
 * 1 alternately, and USE_SCALAR to the rest. 4-bit values are reordered: all low halves of bytes, then all high
 * halves. */
#define USE_16(row, i, part, USE_VECTOR)                                                                               \
    {                                                                                                                  \
        const Ints some = ints_at((row).values + (i), (row).kind);                                                     \
        if ((row).kind == INT4) {                                                                                      \
            USE_VECTOR(i, (low_half(some) - shift) * scale, part)                                                      \
            USE_VECTOR((row).bytes + (i), (high_half(some) - shift) * scale, part)                                     \
        } else {                                                                                                       \
            USE_VECTOR(i, (__builtin_convertvector(some, Floats) - shift) * scale, part)                               \
        }                                                                                                              \
    }

#define FOR_VALUES(row, USE_VECTOR, USE_SCALAR)                                                                        \
    for (int64_t start = 0, k = (row).k; start < (row).bytes; start += (row).block, k++) {                             \
        const int64_t stop = start + (row).block < (row).bytes ? start + (row).block : (row).bytes;                    \
        const float scale = number_at((row).scale, k), shift = (row).zero.numbers ? number_at((row).zero, k) : 0.0f;   \
        int64_t i = start;                                                                                             \
        for (; i + 2 * WIDE <= stop; i += 2 * WIDE) {                                                                  \
            USE_16(row, i, 0, USE_VECTOR)                                                                              \
            USE_16(row, i + WIDE, 1, USE_VECTOR)                                                                       \
        }                                                                                                              \
        if (i + WIDE <= stop) {                                                                                        \
            USE_16(row, i, 0, USE_VECTOR)                                                                              \
            i += WIDE;                                                                                                 \
        }                                                                                                              \
        for (; i < stop; i++) {                                                                                        \
            const int32_t one = (row).kind == UINT8 ? (row).values[i] : (int8_t)(row).values[i];                       \
            if ((row).kind == INT4) {                                                                                  \
                USE_SCALAR(i, ((float)(((one & 15) ^ 8) - 8) - shift) * scale)                                         \
                USE_SCALAR((row).bytes + i, ((float)(one >> 4) - shift) * scale)                                       \
            } else {                                                                                                   \
                USE_SCALAR(i, ((float)one - shift) * scale)                                                            \
            }                                                                                                          \
        }                                                                                                              \
    }

INLINE void expand(float *restrict out, Row row) {
#define STORE_VECTOR(at, expression, part)                                                                             \
    {                                                                                                                  \
        const Floats some_floats = expression;                                                                         \
        memcpy(out + (at), &some_floats, sizeof some_floats);                                                          \
    }
#define STORE_SCALAR(at, expression) out[at] = expression;
    FOR_VALUES(row, STORE_VECTOR, STORE_SCALAR)
}

/* A weight, and the memory for its rows as floats. */
typedef struct {
    float *out;
    Row row;
    int64_t first, width, scales;
} Expanded;

static void expand_rows(const void *context, int64_t first, int64_t last) {
    const Expanded *e = context;
    for (int64_t r = first; r < last; r++) {
        Row row = e->row;
        row.values += (e->first + r) * row.bytes, row.k = (e->first + r) * e->scales;
        expand(e->out + r * e->width, row);
    }
}

/* Expands count rows of a weight, from row first on. */
KERNEL(q_expand, float *out, const uint8_t *values, const void *scale, const void *zero, int kind, int scale_kind,
       int zero_kind, int64_t first, int64_t count, int64_t inputs, int64_t block, int64_t scales, int64_t grain,
       int threads) {
    const int64_t bytes = kind == INT4 ? (inputs + 1) / 2 : inputs, width = kind == INT4 ? 2 * bytes : inputs;
    const Row row = {values, kind, {scale, scale_kind}, {zero, zero_kind}, 0, bytes,
                     kind == INT4 ? (block + 1) / 2 : block};
    const Expanded all = {out, row, first, width, scales};
    backburn_pool_run(expand_rows, &all, count, grain, threads);
}

/* Fills columns first to last - 1 of out (batch, outputs) with products of x (batch, width) and rows of the weight,
 * which are expanded into the buffer, `held` at a time. The rows of x have the length and order of an expanded row.
 * scales is the number of scales per row. */
KERNEL(q_linear, float *restrict out, const float *restrict x, const uint8_t *restrict values,
       const void *restrict scale, const void *restrict zero, float *restrict buffer,
       Sgemm *product, int kind, int scale_kind, int zero_kind, int64_t held, int64_t batch,
       int64_t outputs, int64_t inputs, int64_t block, int64_t scales, int64_t first,
       int64_t last) {
    const int64_t bytes = kind == INT4 ? (inputs + 1) / 2 : inputs, width = kind == INT4 ? 2 * bytes : inputs;
    Row row = {0, kind, {scale, scale_kind}, {zero, zero_kind}, 0, bytes, kind == INT4 ? (block + 1) / 2 : block};
    for (int64_t start = first; start < last; start += held) {
        const int64_t stop = start + held < last ? start + held : last;
        for (int64_t r = start; r < stop; r++) {
            row.values = values + r * bytes, row.k = r * scales;
            expand(buffer + (r - start) * width, row);
        }
        product(ROW_MAJOR, NO_TRANS, TRANS, batch, stop - start, width, 1.0f, x, width, buffer, width, 0.0f,
                out + start, outputs);
    }
}

/* ---- few rows of x, with which each row of the weight is multiplied as it is read ---- */

enum { FEW = 4, GROUP = 8 * WIDE }; /* 4-bit values of a vector of bytes: lane i has those from 8 i on */

/* A weight, and the rows of x: with 4 bits, in the order of interleave() and filled up with zeros to whole groups. */
typedef struct {
    float *out;
    const float *x;
    const uint8_t *values;
    Numbers scale, zero;
    int kind;
    int64_t batch, outputs, inputs, block, scales, x_stride;
    int64_t groups, blocks; /* of 4-bit values: whole groups in a block, blocks in a group; at least 1 */
    Ints which;             /* the block of each lane of a group, after the first one's */
    int *unfinished; /* becomes 1 where a result is not finite */
} Quantized;

/* For each lane the number at k plus `which`, of those before last. */
INLINE Floats numbers_at(Numbers of, int64_t k, int64_t last, Ints which) {
#if defined(__AVX512F__)
    const __mmask16 mask = (__mmask16)(last - k < WIDE ? (1u << (last - k)) - 1u : 0xffffu);
    __m512 all;
    switch (of.kind) {
    case INT8: {
        all = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(mask, (const int8_t *)of.numbers + k)));
        break;
    }
    case UINT8: {
        all = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, (const uint8_t *)of.numbers + k)));
        break;
    }
    case BFLOAT16: {
        const __m256i bits = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)of.numbers + k);
        all = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
        break;
    }
    case FLOAT16:
        all = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, (const uint16_t *)of.numbers + k));
        break;
    default: all = _mm512_maskz_loadu_ps(mask, (const float *)of.numbers + k);
    }
    return (Floats)_mm512_permutexvar_ps((__m512i)which, all);
#else
    Floats all;
    for (int i = 0; i < WIDE; i++) all[i] = number_at(of, k + (which[i] < last - k ? which[i] : last - k - 1));
    return all;
#endif
}

INLINE Ints words_at(const uint8_t *bytes) {
    Ints words;
    memcpy(&words, bytes, sizeof words);
    return words;
}

/* The 4-bit value j of each lane. */
INLINE Floats nibbles(Ints words, int j) {
#if defined(__AVX512F__)
    const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    return (Floats)_mm512_permutexvar_ps(_mm512_srli_epi32((__m512i)words, 4 * j), values);
#else
    return __builtin_convertvector((Ints)((UInts)words << (28 - 4 * j)) >> 28, Floats);
#endif
}

/* The products of a row of 4-bit values with count rows of x. */
INLINE void int4_products(const Quantized *q, int64_t r, int64_t n, const int has_zero, const int count) {
    Floats totals[FEW] = {0}, shift = {0};
    const int64_t bytes = (q->inputs + 1) / 2, last = q->scales ? (r + 1) * q->scales : 1;
    const uint8_t *values = q->values + r * bytes;
    const float *x = q->x + n * q->x_stride;
    int64_t k = r * q->scales, left = q->groups;
#define ADD_GROUP(load)                                                                                                \
    {                                                                                                                  \
        const Ints words = load;                                                                                       \
        const Floats scale = numbers_at(q->scale, k, last, q->which);                                                  \
        if (has_zero) shift = numbers_at(q->zero, k, last, q->which);                                                  \
        Floats sums[2][FEW] = {0};                                                                                     \
        UNROLL for (int j = 0; j < 8; j++) {                                                                           \
            const Floats some = has_zero ? nibbles(words, j) - shift : nibbles(words, j);                              \
            UNROLL for (int i = 0; i < count; i++)                                                                     \
                sums[j % 2][i] += some * floats_at(x + i * q->x_stride + 2 * at + j * WIDE);                           \
        }                                                                                                              \
        UNROLL for (int i = 0; i < count; i++) totals[i] += (sums[0][i] + sums[1][i]) * scale;                         \
    }
    int64_t at = 0;
    for (; at + GROUP / 2 <= bytes; at += GROUP / 2) {
        ADD_GROUP(words_at(values + at))
        if (--left == 0) k += q->blocks, left = q->groups;
    }
    if (at < bytes) {
        uint8_t rest[GROUP / 2] = {0};
        memcpy(rest, values + at, (size_t)(bytes - at));
        ADD_GROUP(words_at(rest))
    }
    UNROLL for (int i = 0; i < count; i++) q->out[(n + i) * q->outputs + r] = sum_of_wide(totals[i]);
}

/* The products of a row of 8-bit values with count rows of x. */
INLINE void int8_products(const Quantized *q, int64_t r, int64_t n, const int kind, const int has_zero,
                          const int count) {
    Floats totals[FEW] = {0};
    const uint8_t *values = q->values + r * q->inputs;
    int64_t k = r * q->scales;
    for (int64_t start = 0; start < q->inputs; start += q->block, k++) {
        const int64_t stop = start + q->block < q->inputs ? start + q->block : q->inputs;
        const float scale = number_at(q->scale, k), shift = has_zero ? number_at(q->zero, k) : 0.0f;
        const float *x = q->x + n * q->x_stride;
        Floats sums[2][FEW] = {0};
        int64_t i = start;
#define ADD(part, ints, load)                                                                                          \
    {                                                                                                                  \
        const Floats converted = __builtin_convertvector(ints, Floats);                                                \
        const Floats some = has_zero ? converted - shift : converted;                                                  \
        UNROLL for (int m = 0; m < count; m++) sums[part][m] += some * load(x + m * q->x_stride + i);                  \
    }
#define THE_REST(x) some_floats_at(x, stop - i)
        for (; i + 2 * WIDE <= stop; i += WIDE) {
            ADD(0, ints_at(values + i, kind), floats_at)
            i += WIDE;
            ADD(1, ints_at(values + i, kind), floats_at)
        }
        if (i + WIDE <= stop) {
            ADD(0, ints_at(values + i, kind), floats_at)
            i += WIDE;
        }
        if (i < stop) {
            uint8_t rest[WIDE] = {0};
            memcpy(rest, values + i, (size_t)(stop - i));
            ADD(1, ints_at(rest, kind), THE_REST)
        }
        UNROLL for (int m = 0; m < count; m++) totals[m] += (sums[0][m] + sums[1][m]) * scale;
    }
    UNROLL for (int m = 0; m < count; m++) q->out[(n + m) * q->outputs + r] = sum_of_wide(totals[m]);
}

/* Specialized for each kind and count, so that the compiler removes the branches. */
#define ROWS(count)                                                                                                    \
    for (int64_t r = first; r < last; r++) {                                                                           \
        if (q->kind == INT4 && q->zero.numbers) int4_products(q, r, n, 1, count);                                      \
        else if (q->kind == INT4) int4_products(q, r, n, 0, count);                                                    \
        else if (q->kind == UINT8) int8_products(q, r, n, UINT8, q->zero.numbers != NULL, count);                      \
        else if (q->zero.numbers) int8_products(q, r, n, INT8, 1, count);                                              \
        else int8_products(q, r, n, INT8, 0, count);                                                                   \
    }

static void few_outputs(const void *context, int64_t from, int64_t to) {
    enum { NEAR = 16 }; /* rows of the weight that stay in cache over all of x */
    const Quantized *q = context;
    for (int64_t first = from, last; first < to; first = last) {
        last = q->batch <= FEW || to - first < NEAR ? to : first + NEAR;
        for (int64_t n = 0; n < q->batch;) {
            if (q->batch - n >= FEW) {
                ROWS(FEW)
                n += FEW;
            } else {
                ROWS(1)
                n++;
            }
        }
    }
    int32_t any = 0;
    for (int64_t n = 0; n < q->batch; n++)
        SUM_OF(any) for (int64_t r = from; r < to; r++) any += !(fabsf(q->out[n * q->outputs + r]) < INFINITY);
    if (any) *q->unfinished = 1;
}

/* Rows of x in the order of 4-bit values: in each group, first those for value 0 of all lanes, then for 1, ... */
static void interleave(float *restrict out, const float *restrict x, int64_t batch, int64_t inputs, int64_t width) {
    for (int64_t n = 0; n < batch; n++, x += inputs, out += width) {
        for (int64_t at = 0; at < width; at += GROUP) {
            float all[GROUP] = {0};
            memcpy(all, x + at, (size_t)(inputs - at < GROUP ? inputs - at : GROUP) * sizeof *x);
            for (int j = 0; j < 8; j++)
                for (int i = 0; i < WIDE; i++) out[at + j * WIDE + i] = all[8 * i + j];
        }
    }
}

/* out (batch, outputs) = x (batch, inputs) times the transpose of a weight. A block of 4-bit values is a divisor of a
 * group in whole lanes, a multiple of a group, or a row. interleaved holds x in whole groups; only 4-bit values need
 * it. */
KERNEL(q_gemm_small_m, float *out, const float *x, const uint8_t *values, const void *scale, const void *zero,
       float *interleaved, int *unfinished, int kind, int scale_kind, int zero_kind, int64_t batch, int64_t outputs,
       int64_t inputs, int64_t block, int64_t scales, int64_t grain, int threads) {
    Quantized q = {.out = out, .x = x, .values = values, .scale = {scale, scale_kind}, .zero = {zero, zero_kind},
                   .kind = kind, .batch = batch, .outputs = outputs, .inputs = inputs, .block = block, .scales = scales,
                   .x_stride = inputs, .unfinished = unfinished};
    if (kind == INT4) {
        q.x = interleaved, q.x_stride = (inputs + GROUP - 1) / GROUP * GROUP;
        interleave(interleaved, x, batch, inputs, q.x_stride);
        q.groups = block > GROUP ? block / GROUP : 1;
        q.blocks = !scales ? 0 : block < GROUP ? GROUP / block : 1;
        for (int i = 0; i < WIDE; i++) q.which[i] = (int32_t)(8 * i / block);
    }
    backburn_pool_run(few_outputs, &q, outputs, grain, threads);
}
