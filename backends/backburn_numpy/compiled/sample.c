/* Sampling at arbitrary positions, linear between places along up to three axes, and what is added up there for its
 * gradient. What the corners of a span of positions are is found once for all channels. Resizing along an axis. */
#define UNROLLED
#include "kernels.h"

enum { SPAN = 128, CORNERS = 8, NOWHERE = -(1 << 29) }; /* three of them and a place are an int */
#define MISSING_OF(missing) _Pragma(TEXT(omp simd reduction(| : missing)))

#define SHIFT 0x1.8p23f /* adding it rounds to an integer */
#include "sample.h"
#undef REAL
#undef NAMED
#undef SHIFT
#define REAL double
#define NAMED(name) backburn_##name##_double
#define SHIFT 0x1.8p52
#include "sample.h"
