/* Matrix products in the kernels' own threads.
 *
 * Panels of the right operand's columns are copied so that they lie side by side; tiles of rows by two vectors of columns
 * stay in registers over the depth. Where the right operand's columns lie in memory as rows, and the left one is small, the
 * product is computed turned: then the left one's rows are copied. */
#define UNROLLED
#include "runtime/kernels.h"
#include "blas.h"
#include "runtime/thread_pool.h"

#if defined(__AVX512F__)
enum { BYTES = 64, BLOCK_BYTES = 448, ROWS = 14, MOST_TURNED = 8 };
#define FLOATS(name) name##_16
#define DOUBLES(name) name##_8
#elif defined(__AVX__)
enum { BYTES = 32, BLOCK_BYTES = 384, ROWS = 6, MOST_TURNED = 4 };
#define FLOATS(name) name##_8
#define DOUBLES(name) name##_4
#else
enum { BYTES = 16, BLOCK_BYTES = 384, ROWS = 4, MOST_TURNED = 4 };
#define FLOATS(name) name##_4
#define DOUBLES(name) name##_2
#endif
enum { PANELS = 4, DEEPEST = 320, APART = DEEPEST + 16, PAGE = 4096 };

/* The compiler takes the address for another one at each use. */
#define OPAQUE(address) __asm__("" : "+r"(address))

/* The elements of two vectors in turns, of their first halves or of their last. */
#define FIRST_16 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define LAST_16 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define FIRST_8 0, 8, 1, 9, 2, 10, 3, 11
#define LAST_8 4, 12, 5, 13, 6, 14, 7, 15
#define FIRST_4 0, 4, 1, 5
#define LAST_4 2, 6, 3, 7
#define FIRST_2 0, 2
#define LAST_2 1, 3
#if defined(__clang__)
#define MIX(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MIX(a, b, ...) __builtin_shuffle(a, b, (NAMED(Places)){__VA_ARGS__})
#endif

#define WHOLE int32_t
#define OF_SIDE FLOATS
#include "gemm.h"

/* cblas_sgemm in the calling thread, of rows, with beta 0 or 1. */
KERNEL(sgemm, int order, int trans_a, int trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
       int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
    (void)order;
    const int turn_a = trans_a == TRANS, turn_b = trans_b == TRANS;
    backburn_multiply((backburn_Product){.rows = a, .columns = b, .out = c, .alpha = alpha, .adds = beta != 0, .height = m,
                                         .width = n, .depth = k, .row_step = turn_a ? 1 : lda,
                                         .row_inner = turn_a ? lda : 1, .column_step = turn_b ? ldb : 1,
                                         .column_inner = turn_b ? 1 : ldb, .out_step = ldc}, 1, 1);
}

#undef WHOLE
#undef OF_SIDE
#undef REAL
#undef NAMED
#define WHOLE int64_t
#define OF_SIDE DOUBLES
#define REAL double
#define NAMED(name) backburn_##name##_double
#include "gemm.h"
