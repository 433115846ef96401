/* Systems of a few equations, many at a time: Gaussian elimination with partial pivoting, each matrix in a lane of
 * vectors. */
#define UNROLLED
#include "runtime/kernels.h"

enum { SIDE = 8, TOGETHER = 16 };
#define OF_TYPE(function, ...) _Generic((REAL)0, float: function##f, double: function)(__VA_ARGS__)

#include "solve_small.h"
#undef REAL
#undef NAMED
#define REAL double
#define NAMED(name) backburn_##name##_double
#include "solve_small.h"
