/* Matrix products of the type REAL by GEMM. Included once for each type. */

#include "epilogue.h"

/* out = x y for matrices, or added to it, plus the bias of each column; then 0 where it is negative if `rectifies`, or where
 * an element of mask, which lies as out does, is not above 0. An operand has so many elements from row to row, or if it is
 * turned, from column to column; rows of out are its width long. */
typedef struct {
    const REAL *x, *y, *bias, *mask;
    REAL *out;
    int adds, rectifies, x_turned, y_turned;
    int64_t height, width, depth, x_step, y_step;
    int64_t x_next, y_next;               /* from product to product */
    int64_t high, wide, down, across;     /* of a part, and how many there are */
} NAMED(Call);

/* Adds the bias to a part of out, and rectifies or masks it. */
static void NAMED(finish_part)(const NAMED(Call) *p, REAL *out, const REAL *mask, int64_t rows, int64_t left,
                               int64_t count) {
    for (int64_t i = 0; i < rows; i++, out += p->width) {
        if (p->bias) LOOP for (int64_t j = 0; j < count; j++) out[j] += p->bias[left + j];
        if (p->rectifies) NAMED(rectify)(out, mask ? mask + i * p->width : NULL, count);
    }
}

/* Parts first to last - 1 of the products, which are numbered along rows, columns, and products. */
static void NAMED(call_parts)(const void *context, int64_t first, int64_t last) {
    const NAMED(Call) *p = context;
    const int before = set_threads ? set_threads(1) : 0;
    for (int64_t part = first; part < last; part++) {
        const int64_t number = part / (p->down * p->across), place = part % (p->down * p->across);
        const int64_t top = place % p->down * p->high, left = place / p->down * p->wide;
        const int64_t rows = p->height - top < p->high ? p->height - top : p->high;
        const int64_t count = p->width - left < p->wide ? p->width - left : p->wide;
        const int64_t at = (number * p->height + top) * p->width + left;
        GEMM(ROW_MAJOR, p->x_turned ? TRANS : NO_TRANS, p->y_turned ? TRANS : NO_TRANS, rows, count, p->depth, 1,
             p->x + number * p->x_next + top * (p->x_turned ? 1 : p->x_step), p->x_step,
             p->y + number * p->y_next + left * (p->y_turned ? p->y_step : 1), p->y_step, p->adds, p->out + at, p->width);
        if (p->bias || p->rectifies) NAMED(finish_part)(p, p->out + at, p->mask ? p->mask + at : NULL, rows, left, count);
    }
    if (set_threads) set_threads(before);
}

/* The products, in parts that their shape decides, whatever the number of threads. */
static void NAMED(call)(NAMED(Call) p, int64_t products, int threads) {
    int64_t parts = products * p.height * p.width * p.depth / PART_WORK;
    parts = ((parts < 1 ? 1 : parts < PARTS ? parts : PARTS) + products - 1) / products;
    const int64_t most = p.height < PART_SIDE ? 1 : p.height / PART_SIDE;
    p.down = p.height < p.width ? 1 : parts < most ? parts : most;
    p.across = parts / p.down;
    p.high = (p.height + p.down - 1) / p.down;
    p.wide = (p.width + p.across - 1) / p.across;
    p.wide = (p.wide + PART_SIDE - 1) / PART_SIDE * PART_SIDE; /* whole lines of caches, whose threads would share others */
    p.down = (p.height + p.high - 1) / p.high;
    p.across = (p.width + p.wide - 1) / p.wide;
    backburn_pool_run(NAMED(call_parts), &p, products * p.down * p.across, 1, threads);
}

/* A product of matrices in rows, each of which may be transposed in memory. */
void NAMED(library_rows)(REAL *out, const REAL *x, const REAL *y, int64_t height, int64_t width, int64_t depth,
                         int x_turned, int y_turned, int64_t x_step, int64_t y_step, int adds, int threads) {
    if (!height || !width) return;
    if (!depth) { /* libraries take no rows without elements */
        if (!adds) memset(out, 0, (size_t)(height * width) * sizeof *out);
        return;
    }
    NAMED(call)((NAMED(Call)){.x = x, .y = y, .out = out, .adds = adds, .x_turned = x_turned, .y_turned = y_turned,
                              .height = height, .width = width, .depth = depth, .x_step = x_step, .y_step = y_step}, 1,
                threads);
}

/* Products of (height, depth) by (depth, width). bias and mask may be null. */
KERNEL(library_product, REAL *out, const REAL *x, const REAL *y, const REAL *bias, const REAL *mask, int rectifies,
       int64_t height, int64_t width, int64_t depth, int x_turned, int64_t x_step, int y_turned, int64_t y_step,
       int64_t products, int64_t x_next, int64_t y_next, int threads) {
    NAMED(call)((NAMED(Call)){.x = x, .y = y, .bias = bias, .mask = mask, .out = out, .rectifies = rectifies,
                              .x_turned = x_turned, .y_turned = y_turned, .height = height, .width = width,
                              .depth = depth, .x_step = x_step, .y_step = y_step, .x_next = x_next, .y_next = y_next},
                products, threads);
}
