/* Reductions, and running results. */
#define UNROLLED
#include "kernels.h"

#include "simd.h"

#define PRODUCT_OF(product) _Pragma(TEXT(omp simd reduction(* : product)))

enum {
    VECTORS = 4,  /* separate sums: one would wait for each addition */
    CHAINS = 8,   /* rows at a time: independent chains of operations hide their latency */
    BLOCK = 1024, /* elements summed in their type */
    NARROW = 24,  /* elements of a row that are joined one after the other, */
    ABREAST = 16, /* in as many rows side by side */
    LINE = 64,    /* elements that narrow rows of matrices fill together */
    WIDE = 1024,  /* columns at a time, whose last results stay in the cache */
};

INLINE double backburn_sum_of_block(const float *restrict x, int64_t count) {
    double sum = 0.0;
    int64_t start = 0;
    if (count >= 2 * VECTORS * LANES) {
        Lanes sums[VECTORS] = {0};
        for (; start + VECTORS * LANES <= count; start += VECTORS * LANES)
            for (int v = 0; v < VECTORS; v++) sums[v] += load_lanes(x + start + v * LANES);
        const Lanes all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        SUM_OF(sum) for (int i = 0; i < LANES; i++) sum += all[i];
    }
    SUM_OF(sum) for (int64_t i = start; i < count; i++) sum += x[i];
    return sum;
}

INLINE double backburn_sum_of_block_double(const double *restrict x, int64_t count) {
    double first = 0.0, second = 0.0, third = 0.0, fourth = 0.0;
    const int64_t part = count / 4;
    if (count < 2 * VECTORS * LANES) {
        SUM_OF(first) for (int64_t i = 0; i < count; i++) first += x[i];
        return first;
    }
    const double *a = x, *b = a + part, *c = b + part, *d = c + part;
    SUM_OF(first, second, third, fourth) for (int64_t i = 0; i < part; i++)
        first += a[i], second += b[i], third += c[i], fourth += d[i];
    for (int64_t i = 4 * part; i < count; i++) fourth += x[i];
    return (first + second) + (third + fourth);
}

/* The squares are exact in double precision. */
KERNEL(norm_rows, const float *restrict x, float *restrict out, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width) {
        double sum = 0.0;
        SUM_OF(sum) for (int64_t i = 0; i < width; i++) sum += (double)x[i] * x[i];
        out[r] = (float)sqrt(sum);
    }
}

#include "reduce.h"
#define RUNNING_SUMS /* those of floats are in running.c */
#undef REAL
#undef NAMED
#define REAL double
#define NAMED(name) backburn_##name##_double
#include "reduce.h"
