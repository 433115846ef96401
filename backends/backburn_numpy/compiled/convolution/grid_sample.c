/* Sampling at arbitrary positions, linear along up to three axes or cubic along up to two, its gradient, and resizing
 * along an axis. The corners of a span of positions are computed once for all channels. */
#define UNROLLED
#include "runtime/kernels.h"

enum { SPAN = 128, CORNERS = 16, NOWHERE = -(1 << 29) }; /* three of them and a place fit an int */

/* The weights of the four places around a position as polynomials of its fractional part, the constant first, and
 * their derivatives of the first three orders (Keys 1981, with a = -0.75). */
static const double cubic[4][4][4] = {
    {{0, -0.75, 1.5, -0.75}, {1, 0, -2.25, 1.25}, {0, 0.75, 1.5, -1.25}, {0, 0, -0.75, 0.75}},
    {{-0.75, 3, -2.25, 0}, {0, -4.5, 3.75, 0}, {0.75, 3, -3.75, 0}, {0, -1.5, 2.25, 0}},
    {{3, -4.5, 0, 0}, {-4.5, 7.5, 0, 0}, {3, -7.5, 0, 0}, {-1.5, 4.5, 0, 0}},
    {{-4.5, 0, 0, 0}, {7.5, 0, 0, 0}, {-7.5, 0, 0, 0}, {4.5, 0, 0, 0}},
};
#define MISSING_OF(missing) _Pragma(TEXT(omp simd reduction(| : missing)))

#define SHIFT 0x1.8p23f /* adding it rounds to an integer */
#include "grid_sample.h"
#undef REAL
#undef NAMED
#undef SHIFT
#define REAL double
#define NAMED(name) backburn_##name##_double
#define SHIFT 0x1.8p52
#include "grid_sample.h"
