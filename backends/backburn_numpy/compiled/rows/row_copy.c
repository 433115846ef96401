/* Copies of rows of any type. */
#include "runtime/kernels.h"

#include "runtime/thread_pool.h"

typedef struct {
    char *out;
    const int64_t *starts, *strides, *widths;
    int64_t count, out_stride;
} Concat;

/* In vectors of 64 bytes. */
INLINE void copy(char *restrict to, const char *restrict from, int64_t bytes) {
    for (; bytes >= 64; to += 64, from += 64, bytes -= 64) memcpy(to, from, 64);
    memcpy(to, from, (size_t)bytes);
}

INLINE void copy_rows(char *restrict to, const char *restrict from, int64_t rows, int64_t to_stride,
                      int64_t from_stride, int64_t width) {
    for (int64_t row = 0; row < rows; row++, to += to_stride, from += from_stride) copy(to, from, width);
}

#define NEAR (1 << 14) /* bytes of the result that stay in the cache until the next array's are written */

/* Copies of a small constant width are inlined. */
static void concat_rows(const void *context, int64_t first, int64_t last) {
    const Concat *c = context;
    const int64_t stride = c->out_stride, near = stride < NEAR ? NEAR / stride : 1;
    for (int64_t row = first; row < last; row += near) {
        const int64_t rows = last - row < near ? last - row : near;
        char *to = c->out + row * stride;
        for (int64_t i = 0; i < c->count; to += c->widths[i++]) {
            const int64_t width = c->widths[i], from_stride = c->strides[i];
            const char *from = (const char *)(intptr_t)c->starts[i] + row * from_stride;
            if (width == 4) copy_rows(to, from, rows, stride, from_stride, 4);
            else if (width == 8) copy_rows(to, from, rows, stride, from_stride, 8);
            else if (width == 16) copy_rows(to, from, rows, stride, from_stride, 16);
            else if (width == 32) copy_rows(to, from, rows, stride, from_stride, 32);
            else if (width == 64) copy_rows(to, from, rows, stride, from_stride, 64);
            else copy_rows(to, from, rows, stride, from_stride, width);
        }
    }
}

/* Rows of several arrays side by side, with these strides. Widths are in bytes, and out_stride their sum. */
KERNEL(concat, char *out, const int64_t *starts, const int64_t *strides, const int64_t *widths, int64_t count,
       int64_t out_stride, int64_t rows, int64_t grain, int threads) {
    const Concat all = {out, starts, strides, widths, count, out_stride};
    backburn_pool_run(concat_rows, &all, rows, grain, threads);
}

typedef struct {
    char *out;
    const char *x;
    int64_t size, height, width, offset;
    int upper;
} Triangle;

static void triangle_rows(const void *context, int64_t first, int64_t last) {
    const Triangle *t = context;
    for (int64_t row = first; row < last; row++) {
        const int64_t from = row % t->height + t->offset, stride = t->width * t->size;
        const int64_t cut = from < 0 ? 0 : from > t->width ? stride : from * t->size;
        char *to = t->out + row * stride;
        const char *x = t->x + row * stride;
        memset(to + (t->upper ? 0 : cut), 0, (size_t)(t->upper ? cut : stride - cut));
        if (t->upper) copy(to + cut, x + cut, stride - cut);
        else copy(to, x, cut);
    }
}

/* The part on and above a diagonal, or below it, of matrices with elements of size bytes; 0 elsewhere. */
KERNEL(triangle, char *out, const char *x, int64_t size, int64_t height, int64_t width, int64_t offset, int upper,
       int64_t rows, int64_t grain, int threads) {
    const Triangle all = {out, x, size, height, width, offset, upper};
    backburn_pool_run(triangle_rows, &all, rows, grain, threads);
}
