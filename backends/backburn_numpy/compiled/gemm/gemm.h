/* Matrix products of the type REAL. Included once for each type. */

#include "epilogue.h"

#define LANES ((int)(VECTOR_BYTES / sizeof(REAL)))
#define NR (2 * LANES)
#define LINE ((int)(64 / sizeof(REAL)))
#define MC ((int)(MC_BYTES / sizeof(REAL)))
#define TRANSPOSED_MR (LANES < MAX_TRANSPOSED_MR ? LANES : MAX_TRANSPOSED_MR)
#define GEMM NAMED(Gemm)
#define VECTOR NAMED(Vector)
typedef REAL VECTOR __attribute__((vector_size(VECTOR_BYTES)));
typedef WHOLE NAMED(Places) __attribute__((vector_size(VECTOR_BYTES)));

/* What a thread packs: panels of NR columns of B and at most KC rows, and some rows of A. */
typedef struct {
    REAL packed_b[NC_PANELS * KC][NR], packed_a[KC * (MC * PITCH / MR + PITCH)]; /* an odd row is a strip, too */
} NAMED(PackBuffer) __attribute__((aligned(64)));
/* Storage for a buffer aligned to 64 bytes: Windows may align thread-local variables to 16. */
static _Thread_local char NAMED(pack_storage)[sizeof(NAMED(PackBuffer)) + 63];

/* C = alpha A B or C += alpha A B, plus the bias of each column of the caller's C; then the epilogue with the mask, in
 * the layout of C. If transposed, A is the caller's B. B may be packed beforehand. Strides are in elements: rs of rows,
 * cs of columns. */
typedef struct {
    const REAL *a, *b, *bias, *mask, *packed;
    REAL *c, alpha;
    int accumulates, transposed, has_epilogue;
    int64_t m, n, k;                            /* C is (m, n), A (m, k), B (k, n) */
    int64_t rs_a, cs_a, rs_b, cs_b, ldc;        /* ldc is that of the caller's C */
    int64_t a_stride, b_stride, c_stride;       /* from product to product */
    int64_t tile_m, tile_n, tiles_m, tiles_n;   /* what a thread computes at a time, and how many there are */
} GEMM;

INLINE VECTOR NAMED(load)(const REAL *x) {
    VECTOR some;
    memcpy(&some, x, sizeof some);
    return some;
}

INLINE void NAMED(store)(REAL *out, VECTOR some) { memcpy(out, &some, sizeof some); }

/* Transposes the square matrix in LANES vectors. */
INLINE void NAMED(transpose)(VECTOR *x) {
    VECTOR y[LANES];
    for (int done = 1; done < LANES; done *= 2) {
        for (int i = 0; i < LANES / 2; i++) {
            y[2 * i] = MIX(x[i], x[i + LANES / 2], OF_LANES(FIRST));
            y[2 * i + 1] = MIX(x[i], x[i + LANES / 2], OF_LANES(LAST));
        }
        for (int i = 0; i < LANES; i++) x[i] = y[i];
    }
}

/* ---- packing ---- */

/* Packs a panel of at most NR columns of B, padded with zeros. */
static void NAMED(pack_b_panel)(REAL (*restrict panel)[NR], const REAL *restrict b, const GEMM *p, int64_t count,
                                int64_t kc) {
    const int64_t cs = p->cs_b, rs = p->rs_b;
    if (count < NR) memset(panel, 0, (size_t)kc * sizeof *panel);
    if (cs == 1 && count == NR) {
        const int64_t ahead = p->n * p->k > CACHED ? AHEAD * rs : 0;
        for (int64_t k = 0; k < kc; k++, b += rs) {
            if (ahead) __builtin_prefetch(b + ahead, 0, 2);
            memcpy(panel[k], b, sizeof *panel);
        }
        return;
    }
    int64_t done = 0; /* whole squares by vectors */
    if (rs == 1)
        for (; done + LANES <= count; done += LANES) {
            const REAL *from = b + done * cs;
            int64_t k = 0;
            for (; k + LANES <= kc; k += LANES) {
                VECTOR square[LANES];
                for (int i = 0; i < LANES; i++) square[i] = NAMED(load)(from + i * cs + k);
                NAMED(transpose)(square);
                for (int i = 0; i < LANES; i++) NAMED(store)(panel[k + i] + done, square[i]);
            }
            for (; k < kc; k++)
                for (int i = 0; i < LANES; i++) panel[k][done + i] = from[i * cs + k];
        }
    for (int64_t k = 0; k < kc; k++)
        for (int64_t i = done; i < count; i++) panel[k][i] = b[i * cs + k * rs];
}

/* The rows of the next tile, of those that are left: as many as registers hold, or similar even numbers. */
INLINE int NAMED(next_mr)(int64_t left, int transposed) {
    const int most = transposed ? TRANSPOSED_MR : MR;
    if (left <= 1 || left == most) return (int)left;
    const int64_t tiles = (left + most - 1) / most;
    return (int)((left / tiles + 1) / 2 * 2 < left ? (left / tiles + 1) / 2 * 2 : left / 2 * 2);
}

/* Packs contiguous rows of A, whose stride is a multiple of a page, so that they do not compete for the same cache sets. */
static void NAMED(pack_rows)(REAL *restrict out, const REAL *restrict a, int64_t rs, int64_t count, int64_t kc) {
    for (int64_t i = 0; i < count; i++) memcpy(out + i * PACKED_LDA, a + i * rs, (size_t)kc * sizeof *out);
}

/* From one element to the next of a packed strip. */
INLINE int NAMED(pitch)(const GEMM *p) { return p->transposed ? TRANSPOSED_MR : PITCH; }

/* Packs strips of mr rows of A, whose columns are contiguous, `width` elements at a time. Columns ahead are prefetched,
 * because large strides defeat hardware prefetchers. */
INLINE void NAMED(copy_strips)(REAL *restrict out, const REAL *restrict a, int64_t cs, int64_t rows, int64_t kc,
                               int64_t pitch, const int mr, const int width) {
    for (int64_t k = 0; k < kc; k++, a += cs, out += pitch) {
        for (int64_t i = 0; i < rows; i += LINE) __builtin_prefetch(a + AHEAD * cs + i, 0, 2);
        REAL *strip = out;
        for (int64_t i = 0; i < rows; i += mr, strip += pitch * kc) memcpy(strip, a + i, (size_t)width * sizeof *out);
    }
}

/* Packs rows of A, of `left` rows in memory, into strips with the heights of next_mr; element k of all rows of a strip
 * is contiguous. */
static void NAMED(pack_strips)(REAL *restrict strip, const REAL *restrict a, const GEMM *p, int64_t count, int64_t left,
                               int64_t kc) {
    const int64_t rs = p->rs_a, cs = p->cs_a, pitch = NAMED(pitch)(p);
    for (int64_t done = 0, rows; done < count; done += rows, a += rows * rs) {
        const int mr = NAMED(next_mr)(count - done, p->transposed);
        for (rows = mr; rs == 1 && NAMED(next_mr)(count - done - rows, p->transposed) == mr;) rows += mr;
        if (rs != 1)
            for (int64_t k = 0; k < kc; k++)
                for (int i = 0; i < mr; i++) strip[k * pitch + i] = a[i * rs + k * cs];
        else if (mr == MR && done + rows - MR + PITCH <= left)
            NAMED(copy_strips)(strip, a, cs, rows, kc, pitch, MR, PITCH); /* whole vectors, with rows that follow */
        else if (mr == TRANSPOSED_MR)
            NAMED(copy_strips)(strip, a, cs, rows, kc, pitch, TRANSPOSED_MR, TRANSPOSED_MR);
        else NAMED(copy_strips)(strip, a, cs, rows, kc, pitch, mr, mr);
        strip += rows / mr * pitch * kc;
    }
}

/* ---- tiles ---- */

/* The product of some rows of A by NR columns of B, and where it is stored: rows with stride ldc, plus NR elements of
 * `addend` for each row, if there is one. The columns of B are also packed, if there is a panel for them. */
typedef struct {
    REAL *c, *packed;
    const REAL *addend;
    int64_t ldc, addend_stride;
} NAMED(Tile);

/* Adds the products of an element of mr rows by NR elements of B. `thirds` are every third row, from which addressing
 * modes reach the other two; by columns, the elements of all rows are contiguous. */
INLINE void NAMED(add_products)(VECTOR (*sums)[2], VECTOR low, VECTOR high, const REAL *const *thirds, int64_t lda,
                                const int at, const int by_columns, const int mr) {
    UNROLL for (int i = 0; i < mr; i++) {
        const REAL value = by_columns ? thirds[0][i] : thirds[i / 3][i % 3 * lda + at];
        sums[i][0] += value * low;
        sums[i][1] += value * high;
    }
}

/* Moves addresses on. The compiler must not compute each from the first, which would take more registers. */
INLINE void NAMED(move)(const REAL **addresses, int64_t by, const int count) {
    UNROLL for (int i = 0; i < count; i++) {
        addresses[i] += by;
        OPAQUE(addresses[i]);
    }
}

/* Computes a tile of mr rows of A by rows of B; sums stay in registers over the depth. By columns, element k of all
 * rows of A is contiguous, lda after element k - 1. */
INLINE void NAMED(micro_kernel)(const NAMED(Tile) *tile, const REAL *a, const REAL *b, int64_t depth, int64_t lda,
                                int64_t ldb, const int packs, const int by_columns, const int mr) {
    const REAL *thirds[5] = {a};
    const int count = by_columns ? 1 : (mr + 2) / 3;
    UNROLL for (int i = 1; i < count; i++) thirds[i] = thirds[i - 1] + 3 * lda;
    REAL *packed = tile->packed;
    VECTOR sums[MR][2] = {0};
    if (STEPS > 1 && (mr == MR || mr == TRANSPOSED_MR) && !packs && depth >= MIN_UNROLLED)
        for (; depth >= STEPS; depth -= STEPS) {
            UNROLL for (int i = 0; i < STEPS; i++) {
                NAMED(add_products)(sums, NAMED(load)(b), NAMED(load)(b + LANES), thirds, lda, i, by_columns, mr);
                NAMED(move)(&b, ldb, 1);
                if (by_columns) NAMED(move)(thirds, lda, 1);
            }
            if (!by_columns) NAMED(move)(thirds, STEPS, count);
        }
    for (; depth > 0; depth--) {
        const VECTOR low = NAMED(load)(b), high = NAMED(load)(b + LANES);
        NAMED(add_products)(sums, low, high, thirds, lda, 0, by_columns, mr);
        if (packs) {
            NAMED(store)(packed, low), NAMED(store)(packed + LANES, high);
            packed += NR;
            for (int i = 0; i < NR; i += LINE) __builtin_prefetch(b + AHEAD * ldb + i);
        }
        NAMED(move)(&b, ldb, 1);
        NAMED(move)(thirds, by_columns ? lda : 1, count);
    }
    if (tile->addend)
        UNROLL for (int i = 0; i < mr; i++) {
            const REAL *addend = tile->addend + i * tile->addend_stride;
            sums[i][0] += NAMED(load)(addend), sums[i][1] += NAMED(load)(addend + LANES);
        }
    REAL *out = tile->c; /* read once: each store might change the tile, as far as compilers know */
    const int64_t ldc = tile->ldc;
    UNROLL for (int i = 0; i < mr; i++, out += ldc)
        NAMED(store)(out, sums[i][0]), NAMED(store)(out + LANES, sums[i][1]);
}

/* The tile by address: compilers copy a whole structure by vectors, which wait until all earlier stores are in the
 * cache. */
SHARED void NAMED(run_micro_kernel)(const NAMED(Tile) *tile, const REAL *a, const REAL *b, int64_t depth, int64_t lda,
                                    int64_t ldb, int by_columns, int mr) {
#define RUN(packs, by_columns, n) NAMED(micro_kernel)(tile, a, b, depth, lda, ldb, packs, by_columns, n)
#define OF_MR(n)                                                                                                       \
    case n:                                                                                                            \
        if (MAY_PACK(n) && tile->packed && by_columns) RUN(MAY_PACK(n), 1, n);                                         \
        else if (MAY_PACK(n) && tile->packed) RUN(MAY_PACK(n), 0, n);                                                  \
        else if (by_columns) RUN(0, 1, n);                                                                             \
        else RUN(0, 0, n);                                                                                             \
        break;
    switch (mr) {
        OF_MR(1)
        OF_MR(2)
        OF_MR(4)
#if defined(__AVX__)
        OF_MR(6)
#endif
#if defined(__AVX512F__)
        OF_MR(8)
        OF_MR(10)
        OF_MR(12)
        OF_MR(14)
#endif
    }
}

/* Stores the sums of a tile of mr rows and nr columns, each plus an element of `addend`. */
static void NAMED(store_tile)(const GEMM *p, REAL (*restrict sums)[NR], REAL *out, const REAL *addend,
                              int64_t addend_stride, int mr, int64_t nr) {
    const VECTOR alpha = p->alpha + (VECTOR){0};
    if (!p->transposed) {
        for (int i = 0; i < mr; i++, out += p->ldc, addend += addend_stride) {
            int64_t j = 0;
            for (; j + LANES <= nr; j += LANES)
                NAMED(store)(out + j, alpha * NAMED(load)(sums[i] + j) + NAMED(load)(addend + j));
            for (; j < nr; j++) out[j] = p->alpha * sums[i][j] + addend[j];
        }
        return;
    }
    for (int64_t first = 0; first < nr; first += LANES) {
        VECTOR square[LANES];
        REAL lines[LANES][LANES];
        for (int i = 0; i < LANES; i++) square[i] = alpha * NAMED(load)(sums[i < mr ? i : 0] + first);
        NAMED(transpose)(square);
        memcpy(lines, square, sizeof lines);
        for (int64_t j = 0; j < LANES && first + j < nr; j++, out += p->ldc, addend += addend_stride)
            if (mr == TRANSPOSED_MR)
                LOOP for (int i = 0; i < TRANSPOSED_MR; i++) out[i] = lines[j][i] + addend[i];
            else
                for (int i = 0; i < mr; i++) out[i] = lines[j][i] + addend[i];
    }
}

/* Applies the epilogue to m rows of n columns of C, from out on. */
static void NAMED(finish_tile)(const GEMM *p, REAL *out, int64_t m, int64_t n) {
    for (int64_t i = 0; i < m; i++, out += p->ldc)
        NAMED(epilogue)(out, p->mask ? p->mask + (out - p->c) : NULL, n);
}

/* ---- products ---- */

INLINE int64_t NAMED(rounded)(int64_t count, int64_t by) { return (count + by - 1) / by * by; }

/* The panel of a block of columns from a column of it on. */
INLINE REAL (*NAMED(panel)(NAMED(PackBuffer) *buffer, int64_t column, int64_t kc))[NR] {
    return buffer->packed_b + column / NR * kc;
}

/* The packed panel from a column on, of kc rows from start on. */
INLINE REAL (*NAMED(packed_panel)(const GEMM *p, int64_t column, int64_t start, int64_t kc))[NR] {
    const REAL *base = (const REAL *)(((uintptr_t)p->packed + 63) / 64 * 64);
    return (REAL (*)[NR])(base + start * NAMED(rounded)(p->n, NR) + column * kc);
}

/* The fastest way to read B for so many rows of A, of which the first mr are multiplied first. Vectors across cache
 * lines take twice as long. */
static enum Reading NAMED(reading_of)(const GEMM *p, const REAL *b, int64_t rows, int mr) {
    const int64_t size = p->n * p->k;
    const int is_aligned = ((uintptr_t)b | (uintptr_t)p->rs_b * sizeof *b) % VECTOR_BYTES == 0;
    if (p->packed || p->cs_b != 1 || p->k < MIN_ROWS_OF_B) return PACK_BEFORE;
    const int64_t most = !is_aligned ? MAX_ROWS_IN_PLACE : size <= MAX_FOR_ALL_ROWS ? rows : MAX_ALIGNED_ROWS;
    if (rows <= most && size <= MAX_IN_PLACE) return IN_PLACE;
    if (p->transposed || !MAY_PACK(mr) || size < MIN_ALONG || (rows <= mr && !is_aligned)) return PACK_BEFORE;
    return PACK_ALONG;
}

/* Tiles first to last - 1 of the products, which are numbered along rows, columns, and products. */
static void NAMED(gemm_tiles)(const void *context, int64_t first, int64_t last) {
    const GEMM *p = context;
    static const REAL zeros[NR];
    REAL sums[MR < LANES ? LANES : MR][NR];
    NAMED(PackBuffer) *buffer = (NAMED(PackBuffer) *)(((uintptr_t)NAMED(pack_storage) + 63) / 64 * 64);
    const int64_t depth_blocks = p->k ? (p->k + KC - 1) / KC : 1;
    const int is_plain = p->alpha == 1 && !p->transposed;
    for (int64_t tile = first; tile < last; tile++) {
        const int64_t product = tile / (p->tiles_m * p->tiles_n), place = tile % (p->tiles_m * p->tiles_n);
        const int64_t top = place % p->tiles_m * p->tile_m, left = place / p->tiles_m * p->tile_n;
        const int64_t bottom = top + p->tile_m < p->m ? top + p->tile_m : p->m;
        const int64_t right = left + p->tile_n < p->n ? left + p->tile_n : p->n;
        const REAL *a = p->a + product * p->a_stride, *b = p->b + product * p->b_stride;
        for (int64_t block = 0; block < depth_blocks; block++) {
            const int64_t start = p->k * block / depth_blocks, kc = p->k * (block + 1) / depth_blocks - start;
            const int accumulates = p->accumulates || block, by_columns = p->cs_a != 1;
            const int64_t stride_a = by_columns ? p->cs_a : p->rs_a;
            const int packs_a = stride_a * (int64_t)sizeof(REAL) % PAGE == 0 ||
                                (by_columns && (p->rs_a != 1 || right - left > FEW_PANELS * NR));
            const int64_t most = !packs_a ? p->m : by_columns ? MC : MC - 2 * MR, pitch = NAMED(pitch)(p);
            const int64_t first_rows = bottom - top < most ? bottom - top : most;
            const int first_mr = NAMED(next_mr)(first_rows, p->transposed);
            const enum Reading reading = NAMED(reading_of)(p, b, bottom - top, first_mr);
            const int64_t first_packed = reading == PACK_BEFORE ? left : left + (right - left) / NR * NR;
            for (int64_t c = first_packed; c < right && !p->packed; c += NR)
                NAMED(pack_b_panel)(NAMED(panel)(buffer, c - left, kc), b + c * p->cs_b + start * p->rs_b, p,
                                    right - c < NR ? right - c : NR, kc);
            for (int64_t r = top, base = top, end = top, strip = 0; r < bottom; strip++) {
                const REAL *x = a + r * p->rs_a + start * p->cs_a;
                if (r == end) {
                    base = r, end = r + most < bottom ? r + most : bottom, strip = 0;
                    if (packs_a && by_columns) NAMED(pack_strips)(buffer->packed_a, x, p, end - base, p->m - base, kc);
                    else if (packs_a) NAMED(pack_rows)(buffer->packed_a, x, p->rs_a, end - base, kc);
                }
                const int mr = NAMED(next_mr)(end - r, p->transposed);
                const int64_t lda = !packs_a ? stride_a : by_columns ? pitch : PACKED_LDA;
                if (packs_a) x = buffer->packed_a + (by_columns ? strip * pitch * kc : (r - base) * PACKED_LDA);
                /* Elements of B that the products read, and pack, from their place in memory. */
                const REAL *unpacked = reading == IN_PLACE || (reading == PACK_ALONG && r == top)
                                           ? b + start * p->rs_b : NULL;
                NAMED(Tile) tile;
                for (int64_t c = left; c < right; c += NR) {
                    REAL *out = p->c + product * p->c_stride + (p->transposed ? c * p->ldc + r : r * p->ldc + c);
                    const REAL *bias = p->bias ? p->bias + (p->transposed ? r : c) : zeros;
                    const REAL *addend = accumulates ? out : bias;
                    const int64_t addend_stride = accumulates ? p->ldc : 0;
                    const int is_whole = right - c >= NR;
                    REAL (*panel)[NR] = p->packed ? NAMED(packed_panel)(p, c, start, kc)
                                                  : NAMED(panel)(buffer, c - left, kc);
                    const REAL *from = unpacked && is_whole ? unpacked + c : *panel;
                    const int64_t ldb = unpacked && is_whole ? p->rs_b : NR;
                    tile.packed = unpacked && is_whole && reading == PACK_ALONG ? *panel : NULL;
                    const int is_direct = is_plain && is_whole;
                    tile.c = is_direct ? out : *sums, tile.ldc = is_direct ? p->ldc : NR;
                    tile.addend = is_direct && (accumulates || p->bias) ? addend : NULL;
                    tile.addend_stride = addend_stride;
                    NAMED(run_micro_kernel)(&tile, x, from, kc, lda, ldb, by_columns, mr);
                    if (!is_direct)
                        NAMED(store_tile)(p, sums, out, addend, addend_stride, mr, is_whole ? NR : right - c);
                }
                r += mr;
            }
        }
        if (p->has_epilogue) {
            REAL *out = p->c + product * p->c_stride;
            if (p->transposed) NAMED(finish_tile)(p, out + left * p->ldc + top, right - left, bottom - top);
            else NAMED(finish_tile)(p, out + top * p->ldc + left, bottom - top, right - left);
        }
    }
}

/* Whether the transposed product, of B' by A', is faster: it has less to pack, or fills more of its panels. Packing an
 * element costs as much as some six multiplications if it transposes, else two. */
INLINE int NAMED(is_faster_transposed)(const GEMM *p) {
    const int64_t direct = NAMED(rounded)(p->n, NR) * p->m + p->n * (p->cs_b == 1 ? 2 : 6) +
                             p->m * (p->cs_a == 1 ? 0 : 2);
    const int64_t transposed = NAMED(rounded)(p->m, NR) * p->n + p->m * (p->rs_a == 1 ? 2 : 6) +
                           p->n * (p->rs_b == 1 ? 0 : 2) + p->m * p->n * 8 / (p->k + 1);
    return transposed < direct;
}

/* Computes products in tiles, in several threads. Sums are in the order of the elements whatever the tiles are, in
 * blocks that depend on k alone. */
static void NAMED(gemm_parallel)(GEMM p, int64_t products, int threads) {
    if (p.m < 1 || p.n < 1 || products < 1) return;
    if (NAMED(is_faster_transposed)(&p)) {
        const GEMM q = p;
        p.a = q.b, p.rs_a = q.cs_b, p.cs_a = q.rs_b, p.a_stride = q.b_stride;
        p.b = q.a, p.cs_b = q.rs_a, p.rs_b = q.cs_a, p.b_stride = q.a_stride;
        p.m = q.n, p.n = q.m, p.transposed = 1;
    }
    const int64_t panels = NAMED(rounded)(p.n, NR) / NR, wanted = threads > 1 ? 3 * threads : 1;
    const int64_t nc_panels = p.m > FEW_ROWS ? NC_PANELS : FEW_PANELS;
    p.tiles_n = (panels + nc_panels - 1) / nc_panels;
    /* First more tiles of rows, of 4 MR and more; then tiles of fewer panels. */
    const int64_t most = (p.m + 4 * MR - 1) / (4 * MR);
    const int64_t missing = (wanted + products * p.tiles_n - 1) / (products * p.tiles_n);
    p.tiles_m = missing < most ? missing : most;
    if (products * p.tiles_n * p.tiles_m < wanted) {
        const int64_t more = wanted / (products * p.tiles_m);
        p.tiles_n = more < panels ? more : panels;
    }
    p.tile_m = (p.m + p.tiles_m - 1) / p.tiles_m;
    p.tile_n = (panels + p.tiles_n - 1) / p.tiles_n * NR;
    p.tiles_n = (p.n + p.tile_n - 1) / p.tile_n;
    p.tiles_m = (p.m + p.tile_m - 1) / p.tile_m;
    backburn_pool_run(NAMED(gemm_tiles), &p, products * p.tiles_m * p.tiles_n, 1, threads);
}

/* C = A B or C += A B for row-major matrices; A and B may be transposed in memory. */
void NAMED(gemm_row_major)(REAL *c, const REAL *a, const REAL *b, int64_t m, int64_t n, int64_t k, int trans_a,
                           int trans_b, int64_t lda, int64_t ldb, int accumulates, int threads) {
    NAMED(gemm_parallel)((GEMM){.a = a, .b = b, .c = c, .alpha = 1, .accumulates = accumulates, .m = m, .n = n, .k = k,
                                .rs_a = trans_a ? 1 : lda, .cs_a = trans_a ? lda : 1, .cs_b = trans_b ? ldb : 1,
                                .rs_b = trans_b ? 1 : ldb, .ldc = n}, 1, threads);
}

#if defined(__AVX__)
/* Packs panels first to last - 1 of B. */
static void NAMED(pack_panels)(const void *context, int64_t first, int64_t last) {
    const GEMM *p = context;
    const int64_t blocks = (p->k + KC - 1) / KC;
    for (int64_t c = first * NR; c < last * NR; c += NR)
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t start = p->k * block / blocks, kc = p->k * (block + 1) / blocks - start;
            NAMED(pack_b_panel)(NAMED(packed_panel)(p, c, start, kc), p->b + c * p->cs_b + start * p->rs_b, p,
                                p->n - c < NR ? p->n - c : NR, kc);
        }
}

/* Packs B (k, n) for gemm_packed, in memory for n + 32 columns and 64 bytes. */
void NAMED(gemm_pack)(REAL *packed, const REAL *b, int64_t n, int64_t k, int64_t rs_b, int64_t cs_b, int threads) {
    const GEMM p = {.b = b, .packed = packed, .n = n, .k = k, .cs_b = cs_b, .rs_b = rs_b};
    backburn_pool_run(NAMED(pack_panels), &p, NAMED(rounded)(n, NR) / NR, 1, threads);
}

/* C = A B or C += A B, for row-major A and packed B, in the calling thread. */
void NAMED(gemm_packed)(REAL *c, const REAL *a, const REAL *packed, int64_t m, int64_t n, int64_t k, int accumulates) {
    const GEMM p = {.a = a, .packed = packed, .c = c, .alpha = 1, .accumulates = accumulates, .m = m, .n = n, .k = k,
                    .rs_a = k, .cs_a = 1, .ldc = n, .tile_m = m, .tile_n = NC_PANELS * NR, .tiles_m = 1,
                    .tiles_n = (n + NC_PANELS * NR - 1) / (NC_PANELS * NR)};
    NAMED(gemm_tiles)(&p, 0, p.tiles_n);
}
#endif

/* Products of (m, k) by (k, n), with strides in elements; C is contiguous. bias, one element for each column, and mask,
 * one for each of C, may be null. */
KERNEL(gemm, REAL *c, const REAL *a, const REAL *b, const REAL *bias, const REAL *mask, int has_epilogue, int64_t m,
       int64_t n, int64_t k, int64_t rs_a, int64_t cs_a, int64_t rs_b, int64_t cs_b, int64_t products,
       int64_t a_stride, int64_t b_stride, int threads) {
    NAMED(gemm_parallel)((GEMM){.a = a, .b = b, .bias = bias, .mask = mask, .has_epilogue = has_epilogue, .c = c,
                                .alpha = 1, .m = m, .n = n, .k = k, .rs_a = rs_a, .cs_a = cs_a, .cs_b = cs_b,
                                .rs_b = rs_b, .ldc = n, .a_stride = a_stride, .b_stride = b_stride,
                                .c_stride = m * n}, products, threads);
}

#undef LANES
#undef NR
#undef LINE
#undef MC
#undef TRANSPOSED_MR
#undef GEMM
#undef VECTOR
#undef OF_MR
#undef RUN
