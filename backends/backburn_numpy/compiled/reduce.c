/* Reductions, and running results. */
#define UNROLLED
#include "kernels.h"

#include "simd.h"

enum {
    CHAINS = 8,   /* rows at a time: independent chains of operations hide their latency */
    BLOCK = 1024, /* elements summed in their type */
    NARROW = 24,  /* elements of a row that are joined one after the other, */
    ABREAST = 16, /* in as many rows side by side */
    LINE = 64,    /* elements that narrow rows of matrices fill together */
    WIDE = 1024,  /* columns at a time, whose last results stay in the cache */
};

JOIN_LANES(product_of_lanes, float, *)
JOIN_LANES(product_of_wide, double, *)

/* The squares are exact in double precision. */
KERNEL(norm_rows, const float *restrict x, float *restrict out, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width) {
        Wide sums[2] = {0};
        BY_VECTORS(LANES / 2, 0, width, const Wide some = WIDENED_AT(x, 0.0f); sums[turn] += some * some;)
        out[r] = (float)sqrt(sum_of_wide(sums[0] + sums[1]));
    }
}

#define INTEGER int32_t
#define SEVERAL Lanes
#define SEVERAL_AT AT
#define DOUBLES_AT WIDENED_AT
#define SUM_OF_SEVERAL sum_of_lanes
#define PRODUCT_OF_SEVERAL product_of_lanes
#include "reduce.h"
#define RUNNING_SUMS /* those of floats are in running.c */
#undef REAL
#undef NAMED
#undef INTEGER
#undef SEVERAL
#undef SEVERAL_AT
#undef DOUBLES_AT
#undef SUM_OF_SEVERAL
#undef PRODUCT_OF_SEVERAL
#define REAL double
#define NAMED(name) backburn_##name##_double
#define INTEGER int64_t
#define SEVERAL Wide
#define SEVERAL_AT WIDE_AT
#define DOUBLES_AT WIDE_AT
#define SUM_OF_SEVERAL sum_of_wide
#define PRODUCT_OF_SEVERAL product_of_wide
#include "reduce.h"
