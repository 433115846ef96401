/* Matrix products of the type REAL. Included once for each type. */

#include "epilogue.h"

#define SIDE ((int)(BYTES / sizeof(REAL)))
#define WIDE (2 * SIDE)
#define BLOCK ((int)(BLOCK_BYTES / sizeof(REAL)))
#define TURNED (SIDE < MOST_TURNED ? SIDE : MOST_TURNED)
#define PRODUCT NAMED(Product)
#define VECTOR NAMED(Vector)
typedef REAL VECTOR __attribute__((vector_size(BYTES)));
typedef WHOLE NAMED(Places) __attribute__((vector_size(BYTES)));

/* What a thread copies: panels of columns, each WIDE of them for each of at most DEEPEST elements, and some rows. */
typedef struct {
    REAL panels[PANELS][DEEPEST][WIDE], rows[DEEPEST * BLOCK];
} NAMED(Copies) __attribute__((aligned(64)));
/* Room for them at any multiple of 64 bytes: Windows may begin a thread's variables at one of 16. */
static _Thread_local char NAMED(room)[sizeof(NAMED(Copies)) + 63];

/* out = alpha rows columns, and added to out or not, plus the bias of each element of a row of the caller's; then 0 where
 * it is negative if `rectifies`, or where an element of mask, unless it is null, is not above 0; mask lies as out does. The
 * caller's product may be turned: then rows are its columns. Columns may have been packed before. Steps are in elements. */
typedef struct {
    const REAL *rows, *columns, *bias, *mask, *packed;
    REAL *out, alpha;
    int adds, turned, rectifies;
    int64_t height, width, depth;               /* of out, and of the sums */
    int64_t row_step, row_inner;                /* from row to row, and in one */
    int64_t column_step, column_inner;          /* from column to column, and in one */
    int64_t out_step;                           /* from row to row of the caller's */
    int64_t next_rows, next_columns, next_out;  /* from product to product */
    int64_t high, wide, down, across;           /* of a part, and how many there are */
} PRODUCT;

INLINE VECTOR NAMED(load)(const REAL *x) {
    VECTOR some;
    memcpy(&some, x, sizeof some);
    return some;
}

INLINE void NAMED(store)(REAL *out, VECTOR some) { memcpy(out, &some, sizeof some); }

/* The matrix in some vectors, turned. */
INLINE void NAMED(turn)(VECTOR *x) {
    VECTOR y[SIDE];
    for (int done = 1; done < SIDE; done *= 2) {
        for (int i = 0; i < SIDE / 2; i++) {
            y[2 * i] = MIX(x[i], x[i + SIDE / 2], OF_SIDE(FIRST));
            y[2 * i + 1] = MIX(x[i], x[i + SIDE / 2], OF_SIDE(LAST));
        }
        for (int i = 0; i < SIDE; i++) x[i] = y[i];
    }
}

/* ---- copies ---- */

/* A panel of at most WIDE columns, with zeros in place of those that are missing. */
static void NAMED(copy_panel)(REAL (*restrict panel)[WIDE], const REAL *restrict x, const PRODUCT *p,
                              int64_t count, int64_t depth) {
    const int64_t step = p->column_step, inner = p->column_inner;
    if (count < WIDE) memset(panel, 0, (size_t)depth * sizeof *panel);
    if (step == 1 && count == WIDE) {
        for (int64_t k = 0; k < depth; k++) memcpy(panel[k], x + k * inner, sizeof *panel);
        return;
    }
    int64_t done = 0; /* whole squares by vectors */
    if (inner == 1)
        for (; done + SIDE <= count; done += SIDE) {
            const REAL *from = x + done * step;
            int64_t k = 0;
            for (; k + SIDE <= depth; k += SIDE) {
                VECTOR square[SIDE];
                for (int i = 0; i < SIDE; i++) square[i] = NAMED(load)(from + i * step + k);
                NAMED(turn)(square);
                for (int i = 0; i < SIDE; i++) NAMED(store)(panel[k + i] + done, square[i]);
            }
            for (; k < depth; k++)
                for (int i = 0; i < SIDE; i++) panel[k][done + i] = from[i * step + k];
        }
    for (int64_t k = 0; k < depth; k++)
        for (int64_t i = done; i < count; i++) panel[k][i] = x[i * step + k * inner];
}

/* Rows for which caches have room: steps that are multiples of a page would have all in one place of them. */
static void NAMED(copy_rows)(REAL *restrict out, const REAL *restrict x, const PRODUCT *p, int64_t count, int64_t depth) {
    const int64_t step = p->row_step, inner = p->row_inner;
    if (inner == 1)
        for (int64_t i = 0; i < count; i++) memcpy(out + i * APART, x + i * step, (size_t)depth * sizeof *out);
    else if (step == 1)
        for (int64_t k = 0; k < depth; k++) memcpy(out + k * BLOCK, x + k * inner, (size_t)count * sizeof *out);
    else
        for (int64_t k = 0; k < depth; k++)
            for (int64_t i = 0; i < count; i++) out[k * BLOCK + i] = x[i * step + k * inner];
}

/* ---- tiles ---- */

/* The sums of a tile stay in registers over the depth: of rows, by_columns or in place, by the columns of a panel. */
INLINE void NAMED(sum_tile)(REAL (*restrict out)[WIDE], const REAL *restrict x, REAL (*restrict panel)[WIDE],
                            int64_t depth, int64_t step, const int by_columns, const int rows) {
    /* Every third row has an address, from which processors find the other two. */
    const REAL *x0 = x, *x3 = x + 3 * step, *x6 = x3 + 3 * step, *x9 = x6 + 3 * step, *x12 = x9 + 3 * step;
    VECTOR sums[ROWS][2] = {0};
    for (int64_t k = 0; k < depth; k++) {
        const VECTOR low = NAMED(load)(panel[k]), high = NAMED(load)(panel[k] + SIDE);
        UNROLL for (int i = 0; i < rows; i++) {
            const REAL *third = i < 3 ? x0 : i < 6 ? x3 : i < 9 ? x6 : i < 12 ? x9 : x12;
            const REAL value = by_columns ? x0[i] : third[i % 3 * step];
            sums[i][0] += value * low;
            sums[i][1] += value * high;
        }
        x0 += by_columns ? step : 1, x3++, x6++, x9++, x12++;
        OPAQUE(x0);
        if (rows > 3 && !by_columns) OPAQUE(x3);
        if (rows > 6 && !by_columns) OPAQUE(x6);
        if (rows > 9 && !by_columns) OPAQUE(x9);
        if (rows > 12 && !by_columns) OPAQUE(x12);
    }
    for (int i = 0; i < rows; i++) {
        NAMED(store)(out[i], sums[i][0]);
        NAMED(store)(out[i] + SIDE, sums[i][1]);
    }
}

/* The number of rows of the next tile, of those that are left: as many as registers hold, or even numbers that are alike. */
INLINE int NAMED(next_rows)(int64_t left, int turned) {
    const int most = turned ? TURNED : ROWS;
    if (left <= 1 || left == most) return (int)left;
    const int64_t tiles = (left + most - 1) / most;
    return (int)((left / tiles + 1) / 2 * 2 < left ? (left / tiles + 1) / 2 * 2 : left / 2 * 2);
}

static void NAMED(sum_rows)(REAL (*sums)[WIDE], const REAL *x, REAL (*panel)[WIDE], int64_t depth, int64_t step,
                            int by_columns, int rows) {
#define OF_ROWS(n)                                                                                                     \
    case n:                                                                                                            \
        if (by_columns) NAMED(sum_tile)(sums, x, panel, depth, step, 1, n);                                                \
        else NAMED(sum_tile)(sums, x, panel, depth, step, 0, n);                                                       \
        break;
    switch (rows) {
        OF_ROWS(1)
        OF_ROWS(2)
        OF_ROWS(4)
#if defined(__AVX__)
        OF_ROWS(6)
#endif
#if defined(__AVX512F__)
        OF_ROWS(8)
        OF_ROWS(10)
        OF_ROWS(12)
        OF_ROWS(14)
#endif
    }
}

/* Puts the sums of a tile of so many rows and columns, each added to an element of before. */
static void NAMED(put)(const PRODUCT *p, REAL (*restrict sums)[WIDE], REAL *out, const REAL *before, int64_t before_step,
                       int rows, int64_t count) {
    const VECTOR alpha = p->alpha + (VECTOR){0};
    if (!p->turned) {
        for (int i = 0; i < rows; i++, out += p->out_step, before += before_step) {
            int64_t j = 0;
            for (; j + SIDE <= count; j += SIDE)
                NAMED(store)(out + j, alpha * NAMED(load)(sums[i] + j) + NAMED(load)(before + j));
            for (; j < count; j++) out[j] = p->alpha * sums[i][j] + before[j];
        }
        return;
    }
    for (int64_t first = 0; first < count; first += SIDE) {
        VECTOR square[SIDE];
        REAL lines[SIDE][SIDE];
        for (int i = 0; i < SIDE; i++) square[i] = alpha * NAMED(load)(sums[i < rows ? i : 0] + first);
        NAMED(turn)(square);
        memcpy(lines, square, sizeof lines);
        for (int64_t j = 0; j < SIDE && first + j < count; j++, out += p->out_step, before += before_step)
            if (rows == TURNED)
                LOOP for (int i = 0; i < TURNED; i++) out[i] = lines[j][i] + before[i];
            else
                for (int i = 0; i < rows; i++) out[i] = lines[j][i] + before[i];
    }
}

/* Rectifies or masks some rows of out from there on. */
static void NAMED(finish)(const PRODUCT *p, REAL *out, int64_t rows, int64_t count) {
    for (int64_t i = 0; i < rows; i++, out += p->out_step)
        NAMED(rectify)(out, p->mask ? p->mask + (out - p->out) : NULL, count);
}

/* ---- products ---- */

INLINE int64_t NAMED(rounded)(int64_t count, int64_t by) { return (count + by - 1) / by * by; }

/* The packed panel from a column on, of a block of that start and depth. */
INLINE REAL (*NAMED(packed_panel)(const PRODUCT *p, int64_t column, int64_t start, int64_t depth))[WIDE] {
    const REAL *base = (const REAL *)(((uintptr_t)p->packed + 63) / 64 * 64);
    return (REAL (*)[WIDE])(base + start * NAMED(rounded)(p->width, WIDE) + column * depth);
}

/* Parts first to last - 1 of the products, which are numbered along rows, columns, and products. */
static void NAMED(multiply_parts)(const void *context, int64_t first, int64_t last) {
    const PRODUCT *p = context;
    static const REAL zeros[WIDE];
    REAL sums[ROWS < SIDE ? SIDE : ROWS][WIDE];
    NAMED(Copies) *mine = (NAMED(Copies) *)(((uintptr_t)NAMED(room) + 63) / 64 * 64);
    const int64_t blocks = p->depth ? (p->depth + DEEPEST - 1) / DEEPEST : 1;
    for (int64_t part = first; part < last; part++) {
        const int64_t number = part / (p->down * p->across), place = part % (p->down * p->across);
        const int64_t top = place % p->down * p->high, left = place / p->down * p->wide;
        const int64_t bottom = top + p->high < p->height ? top + p->high : p->height;
        const int64_t right = left + p->wide < p->width ? left + p->wide : p->width;
        const REAL *rows = p->rows + number * p->next_rows, *columns = p->columns + number * p->next_columns;
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t start = p->depth * block / blocks, depth = p->depth * (block + 1) / blocks - start;
            for (int64_t c = left, n = 0; c < right && !p->packed; c += WIDE, n++)
                NAMED(copy_panel)(mine->panels[n], columns + c * p->column_step + start * p->column_inner, p,
                                  right - c < WIDE ? right - c : WIDE, depth);
            const int adds = p->adds || block, by_columns = p->row_inner != 1;
            const int64_t given = by_columns ? p->row_inner : p->row_step;
            const int copies = (by_columns && p->row_step != 1) || given * (int64_t)sizeof(REAL) % PAGE == 0;
            const int64_t step = !copies ? given : by_columns ? BLOCK : APART;
            const int64_t most = !copies ? p->height : by_columns ? BLOCK : BLOCK - 2 * ROWS;
            for (int64_t r = top, base = top, end = top; r < bottom;) {
                const REAL *x = rows + r * p->row_step + start * p->row_inner;
                if (r == end) {
                    base = r, end = r + most < bottom ? r + most : bottom;
                    if (copies) NAMED(copy_rows)(mine->rows, x, p, end - base, depth);
                }
                const int count = NAMED(next_rows)(end - r, p->turned);
                if (copies) x = mine->rows + (r - base) * (by_columns ? 1 : APART);
                for (int64_t c = left, n = 0; c < right; c += WIDE, n++) {
                    REAL *out = p->out + number * p->next_out + (p->turned ? c * p->out_step + r : r * p->out_step + c);
                    const REAL *bias = p->bias ? p->bias + (p->turned ? r : c) : zeros;
                    REAL (*panel)[WIDE] = p->packed ? NAMED(packed_panel)(p, c, start, depth) : mine->panels[n];
                    NAMED(sum_rows)(sums, x, panel, depth, step, by_columns, count);
                    NAMED(put)(p, sums, out, adds ? out : bias, adds ? p->out_step : 0, count,
                               right - c < WIDE ? right - c : WIDE);
                }
                r += count;
            }
        }
        if (p->rectifies) {
            REAL *out = p->out + number * p->next_out;
            if (p->turned) NAMED(finish)(p, out + left * p->out_step + top, right - left, bottom - top);
            else NAMED(finish)(p, out + top * p->out_step + left, bottom - top, right - left);
        }
    }
}

/* Whether the product of the columns of y by the rows of x, both turned, is faster: it has less to copy, or fills more
 * of its panels. Of copies with turns an element costs as much as some six products, of others two. */
INLINE int NAMED(is_better_turned)(const PRODUCT *p) {
    const int64_t as_it_is = NAMED(rounded)(p->width, WIDE) * p->height + p->width * (p->column_step == 1 ? 2 : 6) +
                             p->height * (p->row_inner == 1 ? 0 : 2);
    const int64_t turned = NAMED(rounded)(p->height, WIDE) * p->width + p->height * (p->row_step == 1 ? 2 : 6) +
                           p->width * (p->column_inner == 1 ? 0 : 2) + p->height * p->width * 8 / (p->depth + 1);
    return turned < as_it_is;
}

/* Computes products, each in parts that several threads take. Sums are in the order of the elements whatever the parts
 * are, in blocks that the depth decides. */
static void NAMED(multiply)(PRODUCT p, int64_t products, int threads) {
    if (p.height < 1 || p.width < 1 || products < 1) return;
    if (NAMED(is_better_turned)(&p)) {
        const PRODUCT q = p;
        p.rows = q.columns, p.row_step = q.column_step, p.row_inner = q.column_inner, p.next_rows = q.next_columns;
        p.columns = q.rows, p.column_step = q.row_step, p.column_inner = q.row_inner, p.next_columns = q.next_rows;
        p.height = q.width, p.width = q.height, p.turned = 1;
    }
    const int64_t panels = NAMED(rounded)(p.width, WIDE) / WIDE, wanted = threads > 1 ? 3 * threads : 1;
    p.across = (panels + PANELS - 1) / PANELS;
    /* First more parts of rows, of 4 tiles and more; then parts of fewer panels. */
    const int64_t most = (p.height + 4 * ROWS - 1) / (4 * ROWS), missing = (wanted + products * p.across - 1) / (products * p.across);
    p.down = missing < most ? missing : most;
    if (products * p.across * p.down < wanted) {
        const int64_t more = wanted / (products * p.down);
        p.across = more < panels ? more : panels;
    }
    p.high = (p.height + p.down - 1) / p.down;
    p.wide = (panels + p.across - 1) / p.across * WIDE;
    p.across = (p.width + p.wide - 1) / p.wide;
    p.down = (p.height + p.high - 1) / p.high;
    backburn_pool_run(NAMED(multiply_parts), &p, products * p.down * p.across, 1, threads);
}

/* out = x y for matrices in rows, or added to it; each operand may be transposed in memory, with so many elements from row
 * to row there. */
void NAMED(rows_product)(REAL *out, const REAL *x, const REAL *y, int64_t height, int64_t width, int64_t depth,
                         int x_turned, int y_turned, int64_t x_step, int64_t y_step, int adds, int threads) {
    NAMED(multiply)((PRODUCT){.rows = x, .columns = y, .out = out, .alpha = 1, .adds = adds, .height = height,
                              .width = width, .depth = depth, .row_step = x_turned ? 1 : x_step,
                              .row_inner = x_turned ? x_step : 1, .column_step = y_turned ? y_step : 1,
                              .column_inner = y_turned ? 1 : y_step, .out_step = width}, 1, threads);
}

#if defined(__AVX__)
/* Packs panels first to last - 1 of a product's columns. */
static void NAMED(pack_panels)(const void *context, int64_t first, int64_t last) {
    const PRODUCT *p = context;
    const int64_t blocks = (p->depth + DEEPEST - 1) / DEEPEST;
    for (int64_t c = first * WIDE; c < last * WIDE; c += WIDE)
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t start = p->depth * block / blocks, depth = p->depth * (block + 1) / blocks - start;
            NAMED(copy_panel)(NAMED(packed_panel)(p, c, start, depth), p->columns + c * p->column_step + start * p->column_inner,
                              p, p->width - c < WIDE ? p->width - c : WIDE, depth);
        }
}

/* Packs the columns of a matrix (depth, width) for packed_product, in memory for width + 32 of them and 64 bytes. */
void NAMED(pack)(REAL *packed, const REAL *y, int64_t width, int64_t depth, int64_t y_row, int64_t y_column, int threads) {
    const PRODUCT p = {.columns = y, .packed = packed, .width = width, .depth = depth, .column_step = y_column,
                       .column_inner = y_row};
    backburn_pool_run(NAMED(pack_panels), &p, NAMED(rounded)(width, WIDE) / WIDE, 1, threads);
}

/* out = x y, or added to it, for rows x and packed columns y, in the calling thread. */
void NAMED(packed_product)(REAL *out, const REAL *x, const REAL *packed, int64_t height, int64_t width, int64_t depth,
                           int adds) {
    const PRODUCT p = {.rows = x, .packed = packed, .out = out, .alpha = 1, .adds = adds, .height = height, .width = width,
                       .depth = depth, .row_step = depth, .row_inner = 1, .out_step = width, .high = height,
                       .wide = PANELS * WIDE, .down = 1, .across = (width + PANELS * WIDE - 1) / (PANELS * WIDE)};
    NAMED(multiply_parts)(&p, 0, p.across);
}
#endif

/* products of (height, depth) by (depth, width), with the given steps in elements; rows of out are its width long.
 * bias, one element for each column, and mask, one for each of out, may be null. */
KERNEL(product, REAL *out, const REAL *x, const REAL *y, const REAL *bias, const REAL *mask, int rectifies,
       int64_t height, int64_t width, int64_t depth, int64_t x_row, int64_t x_column, int64_t y_row,
       int64_t y_column, int64_t products, int64_t x_next, int64_t y_next, int threads) {
    NAMED(multiply)((PRODUCT){.rows = x, .columns = y, .bias = bias, .mask = mask, .rectifies = rectifies, .out = out,
                              .alpha = 1, .height = height, .width = width, .depth = depth, .row_step = x_row, .row_inner = x_column,
                              .column_step = y_column, .column_inner = y_row, .out_step = width, .next_rows = x_next,
                              .next_columns = y_next, .next_out = height * width}, products, threads);
}

#undef SIDE
#undef WIDE
#undef BLOCK
#undef TURNED
#undef PRODUCT
#undef VECTOR
#undef OF_ROWS
