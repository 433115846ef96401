/* The matrix product of a BLAS library, cblas_sgemm with 64-bit integers; the caller finds it. */
#ifndef BACKBURN_BLAS_H
#define BACKBURN_BLAS_H

#include <stdint.h>

typedef void Sgemm(int order, int trans_a, int trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                     int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

#endif
