/* Matrix products in the kernels' own threads.
 *
 * As in BLIS: panels of NR columns of B are packed, NC_PANELS of them and KC rows at a time, and tiles of MR rows by NR
 * columns of C stay in registers over the depth. For few rows of A, packing B does not pay; else the products of the
 * first rows pack what they read, if they can. If B is transposed in memory and A is small, the transposed product is
 * computed: then the rows of A are packed. */
#define UNROLLED
#include "runtime/kernels.h"
#include "blas.h"
#include "runtime/thread_pool.h"

#if defined(__AVX512F__)
enum { VECTOR_BYTES = 64, MC_BYTES = 448, MR = 14, PITCH = 16, MAX_TRANSPOSED_MR = 8, NC_PANELS = 16, STEPS = 4 };
#define FLOATS(name) name##_16
#define DOUBLES(name) name##_8
#elif defined(__AVX__)
enum { VECTOR_BYTES = 32, MC_BYTES = 384, MR = 6, PITCH = 6, MAX_TRANSPOSED_MR = 4, NC_PANELS = 8, STEPS = 1 };
#define FLOATS(name) name##_8
#define DOUBLES(name) name##_4
#else
enum { VECTOR_BYTES = 16, MC_BYTES = 384, MR = 4, PITCH = 4, MAX_TRANSPOSED_MR = 4, NC_PANELS = 8, STEPS = 1 };
#define FLOATS(name) name##_4
#define DOUBLES(name) name##_2
#endif
enum { KC = 320, PACKED_LDA = KC + 16, PAGE = 4096 };
/* The least depth for loops of several STEPS. */
enum { MIN_UNROLLED = 96 };

/* How whole panels of B are read: packed before, packed by the products of the first rows of A, or never packed. */
enum Reading { PACK_BEFORE, PACK_ALONG, IN_PLACE };
/* Whether there is a kernel of so many rows that packs. */
#define MAY_PACK(mr) ((mr) == MR || (mr) == MR - 2)
/* The least depth for reading rows of B from their place in memory, and the fewest elements of B to pack along. */
enum { MIN_ROWS_OF_B = 48, MIN_ALONG = 1 << 15 };
/* The most elements of B that are never packed, and the most rows of A for that, without and with aligned vectors. A B
 * of fewer elements, in aligned vectors, is not packed for any number of rows. */
enum { MAX_IN_PLACE = 1 << 19, MAX_ROWS_IN_PLACE = 48, MAX_ALIGNED_ROWS = 96, MAX_FOR_ALL_ROWS = 1 << 16 };

/* With few rows, each panel is read only a few times, so fewer are packed at once and stay in the L1 cache. */
enum { FEW_ROWS = 64, FEW_PANELS = 4 };

/* How many rows ahead packing prefetches, and above how many elements: smaller matrices are in a core's cache. */
enum { AHEAD = 12, CACHED = 1 << 17 };

/* Makes the compiler treat an address as unknown. */
#define OPAQUE(address) __asm__("" : "+r"(address))

/* The elements of two vectors interleaved: their first halves or their last. */
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
#define OF_LANES FLOATS
#include "gemm.h"

/* cblas_sgemm in the calling thread, in row-major order, with beta 0 or 1. */
KERNEL(sgemm, int order, int trans_a, int trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
       int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
    (void)order;
    const int is_a_transposed = trans_a == TRANS, is_b_transposed = trans_b == TRANS;
    backburn_gemm_parallel((backburn_Gemm){.a = a, .b = b, .c = c, .alpha = alpha, .accumulates = beta != 0, .m = m, .n = n,
                                           .k = k, .rs_a = is_a_transposed ? 1 : lda,
                                           .cs_a = is_a_transposed ? lda : 1, .cs_b = is_b_transposed ? ldb : 1,
                                           .rs_b = is_b_transposed ? 1 : ldb, .ldc = ldc}, 1, 1);
}

#undef WHOLE
#undef OF_LANES
#undef REAL
#undef NAMED
#define WHOLE int64_t
#define OF_LANES DOUBLES
#define REAL double
#define NAMED(name) backburn_##name##_double
#include "gemm.h"
