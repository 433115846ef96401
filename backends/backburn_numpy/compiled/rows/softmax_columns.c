/* Softmax and cross-entropy over columns, of float and of double. */
#include "runtime/either_type.h"

#define STRIP 64
#define ROWS 16 /* summed in the type itself: so few that large terms absorb no small ones */

/* Calls a function for each strip; start is its index, and place its index in matrices of one row. */
#define STRIPS(function, ...)                                                                                          \
    for (int64_t n = 0; n < number; n++) {                                                                             \
        for (int64_t at = first; at < last; at += STRIP) {                                                             \
            const int64_t start = n * count * inner + at, place = n * inner + at;                                      \
            (void)place;                                                                                               \
            function(__VA_ARGS__, count, inner, last - at < STRIP ? last - at : STRIP);                                \
        }                                                                                                              \
    }

#define SIZES int64_t number, int64_t count, int64_t inner, int64_t first, int64_t last
#define WIDTH LOOP for (int64_t i = 0; i < width; i++)

/* Adds up a term over the rows; it may use row, at, the index of the row's first element, and i, the column. */
#define TOTALS(totals, term)                                                                                           \
    double sums[STRIP] = {0};                                                                                          \
    for (int64_t start = 0; start < count; start += ROWS) {                                                            \
        REAL part[STRIP] = {0};                                                                                       \
        for (int64_t row = start, at = start * inner; row < count && row < start + ROWS; row++, at += inner) {         \
            WIDTH part[i] += term;                                                                                     \
        }                                                                                                              \
        WIDTH sums[i] += (double)part[i];                                                                              \
    }                                                                                                                  \
    WIDTH totals[i] = (REAL)sums[i];

/* Whether shares add up to 1, those of float32 even if rounded to bfloat16. */
#define COMPLETE(shares) ((shares) > 1 - CLOSE && (shares) < 1 + CLOSE)
#define CLOSE (sizeof(REAL) == 4 ? (REAL)0.004 : (REAL)1e-12)

#define EVERY(expression)                                                                                              \
    for (int64_t row = 0, at = 0; row < count; row++, at += inner) { WIDTH out[at + i] = expression; }

#include "softmax_columns.h"
#undef REAL
#undef NAMED
#define REAL double
#define NAMED(name) backburn_##name##_double
#include "softmax_columns.h"
