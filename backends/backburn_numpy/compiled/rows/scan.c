/* Linear recurrences, and scatter-add of rows. */
#include "runtime/kernels.h"

#include "scan.h"
#undef REAL
#undef NAMED
#define REAL double
#define NAMED(name) backburn_##name##_double
#include "scan.h"
#undef REAL
#undef NAMED
#define REAL float
#define NAMED(name) backburn_##name

/* Adds the rows of values (count, width) to out at indices, all in range, in columns first to last - 1. */
#define ADD_ROWS(name, type)                                                                                           \
    KERNEL(name, type *restrict out, const int64_t *restrict indices, const type *restrict values,                     \
           int64_t count, int64_t width, int64_t first, int64_t last) {                                                \
        for (int64_t r = 0; r < count; r++) {                                                                          \
            type *restrict row = out + indices[r] * width;                                                             \
            const type *restrict added = values + r * width;                                                           \
            LOOP for (int64_t i = first; i < last; i++) row[i] += added[i];                                            \
        }                                                                                                              \
    }
ADD_ROWS(add_rows, float)
ADD_ROWS(add_rows_double, double)
