/* Vectors as wide as the processor's, for sums that must stay in registers. */
#ifndef BACKBURN_SIMD_H
#define BACKBURN_SIMD_H

#include <string.h>

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
typedef float Lanes __attribute__((vector_size(4 * LANES)));

INLINE Lanes load_lanes(const float *x) {
    Lanes some;
    memcpy(&some, x, sizeof some);
    return some;
}

#endif
