/* Reductions, and running results. */
#define UNROLLED
#include "runtime/kernels.h"

#include "runtime/simd.h"

enum {
    CHAINS = 8,   /* rows at a time: independent chains of operations hide their latency */
    BLOCK = 1024, /* elements summed in their type */
    NARROW = 24,  /* elements up to which a row is reduced sequentially */
    LINE = 64,    /* elements that narrow rows of matrices fill together */
    WIDE = 1024,  /* columns at a time, whose last results stay in the cache */
};

JOIN_LANES(product_of_lanes, float, Lanes, x * y)

/* The squares are exact in double precision. */
KERNEL(norm_rows, const float *restrict x, float *restrict out, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width) {
        Wide sums[2] = {0};
        BY_VECTORS(LANES / 2, 0, width, const Wide some = WIDENED_AT(x, 0.0f); sums[turn] += some * some;)
        out[r] = (float)sqrt(sum_of_wide(sums[0] + sums[1]));
    }
}

#define SEVERAL Lanes
#define SEVERAL_INTS Ints
#define LARGER larger_lanes
#define SMALLER smaller_lanes
#define LARGEST largest_lane
#define SMALLEST smallest_lane
#define NAN_OF_SEVERAL nan_of
#define LOAD_COLUMNS load_columns
#define SEVERAL_AT AT
#define DOUBLES_AT WIDENED_AT
#define SUM_OF_SEVERAL sum_of_lanes
#define PRODUCT_OF_SEVERAL product_of_lanes
#include "reduce.h"
#define RUNNING_SUMS /* those of floats are in cumulative.c */
#undef REAL
#undef NAMED
#undef SEVERAL
#undef SEVERAL_INTS
#undef LARGER
#undef SMALLER
#undef LARGEST
#undef SMALLEST
#undef NAN_OF_SEVERAL
#undef LOAD_COLUMNS
#undef SEVERAL_AT
#undef DOUBLES_AT
#undef SUM_OF_SEVERAL
#undef PRODUCT_OF_SEVERAL
#define REAL double
#define NAMED(name) backburn_##name##_double
#define SEVERAL Wide
#define SEVERAL_INTS WideInts
#define LARGER larger_wide
#define SMALLER smaller_wide
#define LARGEST largest_lane_of_wide
#define SMALLEST smallest_lane_of_wide
#define NAN_OF_SEVERAL nan_of_wide
#define LOAD_COLUMNS load_columns_wide
#define SEVERAL_AT WIDE_AT
#define DOUBLES_AT WIDE_AT
#define SUM_OF_SEVERAL sum_of_wide
#define PRODUCT_OF_SEVERAL product_of_wide
#include "reduce.h"
