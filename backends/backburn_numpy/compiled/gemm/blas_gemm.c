/* Matrix products by the functions of a BLAS library, in the kernels' threads: each tile is a call in one thread. */
#include "runtime/kernels.h"
#include "blas.h"
#include "runtime/thread_pool.h"

/* The most tiles of a product, and the fewest multiplications and rows or columns of a tile. */
enum { MAX_TILES = 8, MIN_TILE_WORK = 1 << 20, MIN_TILE_SIDE = 64 };

typedef void Dgemm(int order, int trans_a, int trans_b, int64_t m, int64_t n, int64_t k, double alpha, const double *a,
                   int64_t lda, const double *b, int64_t ldb, double beta, double *c, int64_t ldc);
typedef int SetThreads(int threads);

/* Written before the first product; set_threads sets the number of threads for products of the calling thread, and
 * returns the previous one. */
static Sgemm *gemm_of_floats;
static Dgemm *gemm_of_doubles;
static SetThreads *set_threads;

/* Selects the library's cblas_sgemm and cblas_dgemm, with 64-bit integers. threads (set_threads) may be null. */
KERNEL(blas_use, const void *floats, const void *doubles, const void *threads) {
    gemm_of_floats = (Sgemm *)(intptr_t)floats, gemm_of_doubles = (Dgemm *)(intptr_t)doubles;
    set_threads = (SetThreads *)(intptr_t)threads;
}

int backburn_blas_is_used(void) { return gemm_of_floats != NULL; }

#define GEMM gemm_of_floats
#include "blas_gemm.h"

/* cblas_sgemm of the library in the calling thread. */
KERNEL(blas_sgemm, int order, int trans_a, int trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
       int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
    const int before = set_threads ? set_threads(1) : 0;
    gemm_of_floats(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    if (set_threads) set_threads(before);
}

#undef GEMM
#undef REAL
#undef NAMED
#define REAL double
#define NAMED(name) backburn_##name##_double
#define GEMM gemm_of_doubles
#include "blas_gemm.h"
