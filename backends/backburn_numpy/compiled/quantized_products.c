/* Products with quantized weights, of which only a few rows are dequantized at a time. */
#define UNROLLED
#include "kernels.h"
#include "blas.h"

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
    case FLOAT16: {
        /* The exponent's bias is 112 less than in float32; a product is right for subnormals too. */
        const uint32_t bits = ((const uint16_t *)of.numbers)[i];
        return from_bits((int32_t)((bits & 0x8000u) << 16 | (bits & 0x7fffu) << 13)) * 0x1p112f;
    }
    default: return ((const float *)of.numbers)[i];
    }
}

/* 16 values at a time, as vector extensions: compilers split them into what the processor has. */
enum { WIDE = 16 };
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef int16_t Shorts __attribute__((vector_size(32)));
typedef int8_t Signed __attribute__((vector_size(16)));
typedef uint8_t Unsigned __attribute__((vector_size(16)));

/* Compilers scalarize a conversion to four times the width, unless it is done in two steps. */
#if defined(__AVX512F__)
#include <immintrin.h>
INLINE Ints ints_of_signed(Signed x) { return (Ints)_mm512_cvtepi8_epi32((__m128i)x); }
INLINE Ints ints_of_unsigned(Unsigned x) { return (Ints)_mm512_cvtepu8_epi32((__m128i)x); }
#else
INLINE Ints ints_of_signed(Signed x) { return __builtin_convertvector(__builtin_convertvector(x, Shorts), Ints); }
INLINE Ints ints_of_unsigned(Unsigned x) { return __builtin_convertvector(__builtin_convertvector(x, Shorts), Ints); }
#endif

INLINE Floats floats_at(const float *x) {
    Floats some;
    memcpy(&some, x, sizeof some);
    return some;
}

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

INLINE float sum_of_lanes(Floats x) {
    float total = 0.0f;
    for (int i = 0; i < WIDE; i++) total += x[i];
    return total;
}

/* A row of the weight: its values, scales and optional zero points, whose indices start at k. */
typedef struct {
    const uint8_t *values;
    int kind;
    Numbers scale, zero;
    int64_t k, bytes, block;
} Row;

/* Applies USE_VECTOR to the values of a row, (value - zero) scale, in vectors of 16, with their positions and part 0 or
 * 1 in turn, and USE_SCALAR to the rest. 4-bit values are reordered: all low halves of bytes, then all high halves. */
#define USE_16(row, i, part, USE_VECTOR)                                                                               \
    {                                                                                                                  \
        const Ints some = ints_at((row).values + (i), (row).kind);                                                     \
        if ((row).kind == INT4) {                                                                                      \
            USE_VECTOR(i, (low_half(some) - shift) * step, part)                                                       \
            USE_VECTOR((row).bytes + (i), (high_half(some) - shift) * step, part)                                      \
        } else {                                                                                                       \
            USE_VECTOR(i, (__builtin_convertvector(some, Floats) - shift) * step, part)                                \
        }                                                                                                              \
    }

#define FOR_VALUES(row, USE_VECTOR, USE_SCALAR)                                                                        \
    for (int64_t start = 0, k = (row).k; start < (row).bytes; start += (row).block, k++) {                             \
        const int64_t stop = start + (row).block < (row).bytes ? start + (row).block : (row).bytes;                    \
        const float step = number_at((row).scale, k), shift = (row).zero.numbers ? number_at((row).zero, k) : 0.0f;    \
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
                USE_SCALAR(i, ((float)(((one & 15) ^ 8) - 8) - shift) * step)                                          \
                USE_SCALAR((row).bytes + i, ((float)(one >> 4) - shift) * step)                                        \
            } else {                                                                                                   \
                USE_SCALAR(i, ((float)one - shift) * step)                                                             \
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

/* The products of a row with count rows of x, few enough for the sums to stay in registers. */
INLINE void products_of(float *restrict out, int64_t outputs, const float *restrict x, int64_t width, Row row,
                        const int count) {
    Floats sums[2][4] = {0}; /* two of each, to hide the latency of additions */
    float rest[4] = {0};
#define ADD_VECTOR(at, expression, part)                                                                               \
    {                                                                                                                  \
        const Floats some_floats = expression;                                                                         \
        for (int n = 0; n < count; n++) sums[part][n] += some_floats * floats_at(x + n * width + (at));                \
    }
#define ADD_SCALAR(at, expression)                                                                                     \
    {                                                                                                                  \
        const float one_float = expression;                                                                            \
        for (int n = 0; n < count; n++) rest[n] += one_float * x[n * width + (at)];                                    \
    }
    FOR_VALUES(row, ADD_VECTOR, ADD_SCALAR)
    for (int n = 0; n < count; n++) out[n * outputs] = sum_of_lanes(sums[0][n] + sums[1][n]) + rest[n];
}

/* Specialized for each kind and count, so that the compiler removes the branches. */
#define PRODUCTS(name, the_kind, count)                                                                                \
    static void name(float *restrict out, int64_t outputs, const float *restrict x, int64_t width, Row row) {          \
        row.kind = the_kind;                                                                                           \
        products_of(out, outputs, x, width, row, count);                                                               \
    }
enum { TOGETHER = 4 };
PRODUCTS(int8_by_one, INT8, 1)
PRODUCTS(int8_by_some, INT8, TOGETHER)
PRODUCTS(uint8_by_one, UINT8, 1)
PRODUCTS(uint8_by_some, UINT8, TOGETHER)
PRODUCTS(int4_by_one, INT4, 1)
PRODUCTS(int4_by_some, INT4, TOGETHER)

typedef void Products(float *restrict, int64_t, const float *restrict, int64_t, Row);
static Products *const BY_ONE[] = {int8_by_one, uint8_by_one, int4_by_one};
static Products *const BY_SOME[] = {int8_by_some, uint8_by_some, int4_by_some};

/* Fills columns first to last - 1 of out (batch, outputs) with products of x (batch, width) and rows of the weight. The
 * rows of x have the length and order of an expanded row. steps is the number of scales per row. held is the number of
 * expanded rows that the buffer holds; if 0, rows are not expanded. */
KERNEL(q_linear, float *restrict out, const float *restrict x, const uint8_t *restrict values,
       const void *restrict scale, const void *restrict zero, float *restrict buffer,
       Sgemm *product, int kind, int scale_kind, int zero_kind, int64_t held, int64_t batch,
       int64_t outputs, int64_t inputs, int64_t block, int64_t steps, int64_t first,
       int64_t last) {
    enum { NEAR = 16 }; /* rows of the weight that stay in cache over all of x */
    const int64_t bytes = kind == INT4 ? (inputs + 1) / 2 : inputs, width = kind == INT4 ? 2 * bytes : inputs;
    const int64_t chunk = held ? held : NEAR;
    Row row = {0, kind, {scale, scale_kind}, {zero, zero_kind}, 0, bytes, kind == INT4 ? (block + 1) / 2 : block};
    for (int64_t start = first; start < last; start += chunk) {
        const int64_t stop = start + chunk < last ? start + chunk : last;
        for (int64_t n = 0, together; n < (held ? 1 : batch); n += together) {
            together = batch - n >= TOGETHER ? TOGETHER : 1;
            for (int64_t r = start; r < stop; r++) {
                row.values = values + r * bytes, row.k = r * steps;
                if (held)
                    expand(buffer + (r - start) * width, row);
                else
                    (together == 1 ? BY_ONE : BY_SOME)[kind](out + n * outputs + r, outputs, x + n * width, width, row);
            }
        }
        if (held)
            product(ROW_MAJOR, NO_TRANS, TRANS, batch, stop - start, width, 1.0f, x, width, buffer, width, 0.0f,
                    out + start, outputs);
    }
}
