/* The BLAS library's product of matrices, cblas_sgemm with 64-bit integers; the caller finds it. */
#ifndef BACKBURN_PRODUCT_H
#define BACKBURN_PRODUCT_H

#include <stdint.h>

typedef void Product(int order, int turn_a, int turn_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                     int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
enum { BY_ROWS = 101, STRAIGHT = 111, TURNED = 112 };

#endif
