/* 16 numbers at a time, as vector extensions: compilers split them into what the processor has, and the order of sums
 * is the same on all. */
#ifndef BACKBURN_VEC16_H
#define BACKBURN_VEC16_H

#if defined(__AVX__)
#include <immintrin.h>
#endif

enum { WIDE = 16 };
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));

INLINE Floats floats_at(const float *x) {
    Floats some;
    memcpy(&some, x, sizeof some);
    return some;
}

/* The first n, fewer than 16, and zeros. */
INLINE Floats some_floats_at(const float *x, int64_t n) {
#if defined(__AVX512F__)
    return (Floats)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), x);
#else
    Floats some = {0};
    memcpy(&some, x, (size_t)n * sizeof *x);
    return some;
#endif
}

INLINE float sum_of_wide(Floats x) {
    typedef float Eight __attribute__((vector_size(32)));
    typedef float Four __attribute__((vector_size(16)));
    Eight eight[2];
    memcpy(eight, &x, sizeof x);
    eight[0] += eight[1];
    Four four[2];
    memcpy(four, eight, sizeof four);
    four[0] += four[1];
    return (four[0][0] + four[0][2]) + (four[0][1] + four[0][3]);
}

#endif
