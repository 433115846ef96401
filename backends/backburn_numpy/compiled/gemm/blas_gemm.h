/* Matrix products of the type REAL by GEMM. Included once for each type. */

#include "epilogue.h"

/* C = A B or C += A B, plus the bias of each column; then the epilogue with the mask, in the layout of C. A and B may
 * be transposed in memory; C is contiguous. */
typedef struct {
    const REAL *a, *b, *bias, *mask;
    REAL *c;
    int accumulates, has_epilogue, trans_a, trans_b;
    int64_t m, n, k, lda, ldb;
    int64_t a_stride, b_stride;               /* from product to product */
    int64_t tile_m, tile_n, tiles_m, tiles_n; /* what a thread computes at a time, and how many there are */
} NAMED(Call);

/* Adds the bias to a tile of out, and applies the epilogue. */
static void NAMED(finish_tile)(const NAMED(Call) *p, REAL *out, const REAL *mask, int64_t rows, int64_t left,
                               int64_t count) {
    for (int64_t i = 0; i < rows; i++, out += p->n) {
        if (p->bias) LOOP for (int64_t j = 0; j < count; j++) out[j] += p->bias[left + j];
        if (p->has_epilogue) NAMED(epilogue)(out, mask ? mask + i * p->n : NULL, count);
    }
}

/* Tiles first to last - 1 of the products, which are numbered along rows, columns, and products. */
static void NAMED(call_tiles)(const void *context, int64_t first, int64_t last) {
    const NAMED(Call) *p = context;
    const int before = set_threads ? set_threads(1) : 0;
    for (int64_t tile = first; tile < last; tile++) {
        const int64_t product = tile / (p->tiles_m * p->tiles_n), place = tile % (p->tiles_m * p->tiles_n);
        const int64_t top = place % p->tiles_m * p->tile_m, left = place / p->tiles_m * p->tile_n;
        const int64_t rows = p->m - top < p->tile_m ? p->m - top : p->tile_m;
        const int64_t count = p->n - left < p->tile_n ? p->n - left : p->tile_n;
        const int64_t at = (product * p->m + top) * p->n + left;
        GEMM(ROW_MAJOR, p->trans_a ? TRANS : NO_TRANS, p->trans_b ? TRANS : NO_TRANS, rows, count, p->k, 1,
             p->a + product * p->a_stride + top * (p->trans_a ? 1 : p->lda), p->lda,
             p->b + product * p->b_stride + left * (p->trans_b ? p->ldb : 1), p->ldb, p->accumulates, p->c + at, p->n);
        if (p->bias || p->has_epilogue) NAMED(finish_tile)(p, p->c + at, p->mask ? p->mask + at : NULL, rows, left, count);
    }
    if (set_threads) set_threads(before);
}

/* The products, in tiles that depend on their shape alone, not on the number of threads. */
static void NAMED(call)(NAMED(Call) p, int64_t products, int threads) {
    int64_t tiles = products * p.m * p.n * p.k / MIN_TILE_WORK;
    tiles = ((tiles < 1 ? 1 : tiles < MAX_TILES ? tiles : MAX_TILES) + products - 1) / products;
    const int64_t most = p.m < MIN_TILE_SIDE ? 1 : p.m / MIN_TILE_SIDE;
    p.tiles_m = p.m < p.n ? 1 : tiles < most ? tiles : most;
    p.tiles_n = tiles / p.tiles_m;
    p.tile_m = (p.m + p.tiles_m - 1) / p.tiles_m;
    p.tile_n = (p.n + p.tiles_n - 1) / p.tiles_n;
    /* Whole cache lines, so that threads share none. */
    p.tile_n = (p.tile_n + MIN_TILE_SIDE - 1) / MIN_TILE_SIDE * MIN_TILE_SIDE;
    p.tiles_m = (p.m + p.tile_m - 1) / p.tile_m;
    p.tiles_n = (p.n + p.tile_n - 1) / p.tile_n;
    backburn_pool_run(NAMED(call_tiles), &p, products * p.tiles_m * p.tiles_n, 1, threads);
}

/* A product of row-major matrices; A and B may be transposed in memory. */
void NAMED(blas_gemm_row_major)(REAL *c, const REAL *a, const REAL *b, int64_t m, int64_t n, int64_t k, int trans_a,
                                int trans_b, int64_t lda, int64_t ldb, int accumulates, int threads) {
    if (!m || !n) return;
    if (!k) { /* libraries reject rows without elements */
        if (!accumulates) memset(c, 0, (size_t)(m * n) * sizeof *c);
        return;
    }
    NAMED(call)((NAMED(Call)){.a = a, .b = b, .c = c, .accumulates = accumulates, .trans_a = trans_a, .trans_b = trans_b,
                              .m = m, .n = n, .k = k, .lda = lda, .ldb = ldb}, 1, threads);
}

/* Products of (m, k) by (k, n). bias and mask may be null. */
KERNEL(blas_gemm, REAL *c, const REAL *a, const REAL *b, const REAL *bias, const REAL *mask, int has_epilogue,
       int64_t m, int64_t n, int64_t k, int trans_a, int64_t lda, int trans_b, int64_t ldb, int64_t products,
       int64_t a_stride, int64_t b_stride, int threads) {
    NAMED(call)((NAMED(Call)){.a = a, .b = b, .bias = bias, .mask = mask, .c = c, .has_epilogue = has_epilogue,
                              .trans_a = trans_a, .trans_b = trans_b, .m = m, .n = n, .k = k, .lda = lda, .ldb = ldb,
                              .a_stride = a_stride, .b_stride = b_stride}, products, threads);
}
