/* Convolutions over one or two axes, as products of matrices: block by block the windows of some examples, or of some
 * rows of one, are copied side by side (im2col) and multiplied by the weight; for the gradient of the input, products
 * are added to where the windows lie (col2im). The product of matrices is the BLAS library's that NumPy brings. */
#include "kernels.h"
#include "product.h"

/* Lengths for one group of channels: inputs of height x width, windows of size[0] x size[1], counts of them. */
typedef struct {
    int64_t groups, inputs, outputs, height, width, rows, columns, size[2], stride[2], before[2], dilation[2];
} Geometry;

/* Windows from row first to row last of the counts, of the examples from start to stop. */
typedef struct {
    int64_t start, stop, first, last;
} Block;

INLINE int64_t windows_in(const Geometry *g, const Block *b) { return (b->stop - b->start) * (b->last - b->first) * g->columns; }

/* The columns of windows for which offset + stride * column lies inside the width. */
INLINE void inside(int64_t offset, int64_t stride, int64_t width, int64_t count, int64_t *first, int64_t *last) {
    const int64_t low = offset >= 0 ? 0 : (-offset + stride - 1) / stride;
    const int64_t high = offset >= width ? 0 : (width - 1 - offset) / stride + 1;
    *last = high < count ? high : count;
    *first = low < *last ? low : *last;
}

/* One element of the windows of some rows of a channel, row after row. */
INLINE void copy_element(float *restrict out, const float *restrict plane, const Geometry *g, int64_t first,
                         int64_t last, int64_t row_offset, int64_t offset) {
    const int64_t stride = g->stride[1], columns = g->columns;
    int64_t from, to;
    inside(offset, stride, g->width, columns, &from, &to);
    int64_t top, bottom;
    inside(row_offset + first * g->stride[0], g->stride[0], g->height, last - first, &top, &bottom);
    top += first, bottom += first;
    memset(out, 0, (size_t)((top - first) * columns) * sizeof *out);
    memset(out + (bottom - first) * columns, 0, (size_t)((last - bottom) * columns) * sizeof *out);
    if (top >= bottom) return;
    const float *restrict source = plane + (row_offset + top * g->stride[0]) * g->width + offset;
    float *restrict target = out + (top - first) * columns;
    if (stride == 1 && g->stride[0] == 1 && columns == g->width && to > from) {
        /* All rows at once are one shift of the plane; what it brings round its edges becomes 0. */
        memcpy(target + from, source + from, (size_t)((bottom - top - 1) * columns + to - from) * sizeof *out);
        if (from > 0 || to < columns)
            for (int64_t row = top; row < bottom; row++, target += columns) {
                for (int64_t i = 0; i < from; i++) target[i] = 0.0f;
                for (int64_t i = to; i < columns; i++) target[i] = 0.0f;
            }
        return;
    }
    for (int64_t row = top; row < bottom; row++, target += columns, source += g->stride[0] * g->width) {
        for (int64_t i = 0; i < from; i++) target[i] = 0.0f;
        if (stride == 1) {
            LOOP for (int64_t i = from; i < to; i++) target[i] = source[i];
        } else {
            for (int64_t i = from; i < to; i++) target[i] = source[i * stride];
        }
        for (int64_t i = to; i < columns; i++) target[i] = 0.0f;
    }
}

/* Adds one element of the windows to where they lie. What lies outside becomes 0 in them where that is faster. */
INLINE void add_element(float *restrict plane, float *restrict windows, const Geometry *g, int64_t first,
                        int64_t last, int64_t row_offset, int64_t offset) {
    const int64_t stride = g->stride[1], columns = g->columns;
    int64_t from, to;
    inside(offset, stride, g->width, columns, &from, &to);
    if (stride == 1 && g->stride[0] == 1 && columns == g->width) {
        /* All rows at once are one shift of the plane, without what would come round its edges. */
        int64_t top, bottom;
        inside(row_offset + first, 1, g->height, last - first, &top, &bottom);
        if (top >= bottom || from >= to) return;
        windows += top * columns;
        for (int64_t row = 0; row < bottom - top; row++) {
            for (int64_t i = 0; i < from; i++) windows[row * columns + i] = 0.0f;
            for (int64_t i = to; i < columns; i++) windows[row * columns + i] = 0.0f;
        }
        float *restrict target = plane + (row_offset + first + top) * g->width + offset;
        const int64_t end = (bottom - top - 1) * columns + to;
        LOOP for (int64_t i = from; i < end; i++) target[i] += windows[i];
        return;
    }
    for (int64_t row = first; row < last; row++, windows += columns) {
        const int64_t at = row_offset + row * g->stride[0];
        if (at < 0 || at >= g->height) continue;
        float *restrict target = plane + at * g->width + offset;
        if (stride == 1) {
            LOOP for (int64_t i = from; i < to; i++) target[i] += windows[i];
        } else {
            for (int64_t i = from; i < to; i++) target[i * stride] += windows[i];
        }
    }
}

/* The windows of a block for one group: a row for each of their elements. Returns x itself where that is the same. */
static const float *columns_of(const float *restrict x, float *restrict columns, const Geometry *g, const Block *b,
                               int64_t group) {
    const int64_t plane = g->height * g->width, count = (b->last - b->first) * g->columns;
    const int64_t all = windows_in(g, b);
    if (b->stop == b->start + 1 && g->size[0] * g->size[1] == 1 && count == plane && !g->before[0] && !g->before[1])
        return x + (b->start * g->groups + group) * g->inputs * plane;
    for (int64_t c = 0; c < g->inputs; c++)
        for (int64_t i = 0; i < g->size[0]; i++)
            for (int64_t j = 0; j < g->size[1]; j++)
                for (int64_t n = b->start; n < b->stop; n++) {
                    float *out = columns + ((c * g->size[0] + i) * g->size[1] + j) * all + (n - b->start) * count;
                    copy_element(out, x + ((n * g->groups + group) * g->inputs + c) * plane, g, b->first, b->last,
                                 i * g->dilation[0] - g->before[0], j * g->dilation[1] - g->before[1]);
                }
    return columns;
}

/* The outputs of a block for one group as rows, each of *step elements: a view of one example, or a copy in side. */
static const float *outputs_of(const float *restrict y, float *restrict side, const Geometry *g, const Block *b,
                               int64_t group, int64_t *step) {
    const int64_t plane = g->rows * g->columns, count = (b->last - b->first) * g->columns;
    const float *first = y + (b->start * g->groups + group) * g->outputs * plane + b->first * g->columns;
    *step = plane;
    if (b->stop == b->start + 1) return first;
    *step = windows_in(g, b);
    for (int64_t n = 0; n < b->stop - b->start; n++)
        for (int64_t c = 0; c < g->outputs; c++)
            memcpy(side + c * *step + n * count, first + (n * g->groups * g->outputs + c) * plane,
                   (size_t)count * sizeof *side);
    return side;
}

/* Fills out with the convolution of x, plus the bias if it is not null. Columns and side are memory for one block. */
KERNEL void backburn_conv(float *restrict out, const float *restrict x, const float *restrict weight,
                          const float *restrict bias, float *restrict columns, float *restrict side, Product *product,
                          const Geometry *g, const Block *blocks, int64_t number) {
    const int64_t depth = g->inputs * g->size[0] * g->size[1], plane = g->rows * g->columns;
    for (const Block *b = blocks; b < blocks + number; b++)
        for (int64_t group = 0; group < g->groups; group++) {
            const int64_t count = (b->last - b->first) * g->columns, all = windows_in(g, b);
            const float *windows = columns_of(x, columns, g, b, group);
            const float *weights = weight + group * g->outputs * depth, *biases = bias ? bias + group * g->outputs : 0;
            const int alone = b->stop == b->start + 1;
            float *first = out + (b->start * g->groups + group) * g->outputs * plane + b->first * g->columns;
            float *to = alone ? first : side;
            const int64_t step = alone ? plane : all;
            if (biases)
                for (int64_t c = 0; c < g->outputs; c++)
                    LOOP for (int64_t i = 0; i < all; i++) to[c * step + i] = biases[c];
            product(BY_ROWS, STRAIGHT, STRAIGHT, g->outputs, all, depth, 1.0f, weights, depth, windows, all,
                    biases ? 1.0f : 0.0f, to, step);
            if (!alone)
                for (int64_t n = 0; n < b->stop - b->start; n++)
                    for (int64_t c = 0; c < g->outputs; c++)
                        memcpy(first + (n * g->groups * g->outputs + c) * plane, side + c * all + n * count,
                               (size_t)count * sizeof *out);
        }
}

/* Adds the gradient of the weight to out: (groups, outputs, depth), or if it is turned (groups, depth, outputs). */
KERNEL void backburn_conv_weight(float *restrict out, const float *restrict x, const float *restrict grad,
                                 float *restrict columns, float *restrict side, Product *product, const Geometry *g,
                                 int turned, const Block *blocks, int64_t number) {
    const int64_t depth = g->inputs * g->size[0] * g->size[1];
    for (const Block *b = blocks; b < blocks + number; b++)
        for (int64_t group = 0; group < g->groups; group++) {
            const int64_t all = windows_in(g, b);
            const float *windows = columns_of(x, columns, g, b, group);
            int64_t step;
            const float *slopes = outputs_of(grad, side, g, b, group, &step);
            float *total = out + group * g->outputs * depth;
            if (turned)
                product(BY_ROWS, STRAIGHT, TURNED, depth, g->outputs, all, 1.0f, windows, all, slopes, step, 1.0f,
                        total, g->outputs);
            else
                product(BY_ROWS, STRAIGHT, TURNED, g->outputs, depth, all, 1.0f, slopes, step, windows, all, 1.0f,
                        total, depth);
        }
}

/* Fills the channels first to last of each group of out, the input's gradient or a transposed convolution, with the sum
 * of the windows that the places of y make, plus the bias if it is not null. All blocks of an example are given. */
KERNEL void backburn_conv_input(float *restrict out, const float *restrict y, const float *restrict weight,
                                const float *restrict bias, float *restrict columns, float *restrict side,
                                Product *product, const Geometry *g, int64_t first, int64_t last, const Block *blocks,
                                int64_t number) {
    const int64_t elements = g->size[0] * g->size[1], depth = g->inputs * elements, plane = g->height * g->width;
    for (const Block *b = blocks; b < blocks + number; b++)
        for (int64_t group = 0; group < g->groups; group++) {
            const int64_t count = (b->last - b->first) * g->columns, all = windows_in(g, b);
            int64_t step;
            const float *places = outputs_of(y, side, g, b, group, &step);
            product(BY_ROWS, TURNED, STRAIGHT, (last - first) * elements, all, g->outputs, 1.0f,
                    weight + group * g->outputs * depth + first * elements, depth, places, step, 0.0f, columns, all);
            for (int64_t n = b->start; n < b->stop; n++)
                for (int64_t c = first; c < last; c++) {
                    float *target = out + ((n * g->groups + group) * g->inputs + c) * plane;
                    if (b->first == 0) {
                        const float start = bias ? bias[group * g->inputs + c] : 0.0f;
                        LOOP for (int64_t i = 0; i < plane; i++) target[i] = start;
                    }
                    for (int64_t i = 0; i < g->size[0]; i++)
                        for (int64_t j = 0; j < g->size[1]; j++)
                            add_element(target,
                                        columns + (((c - first) * g->size[0] + i) * g->size[1] + j) * all +
                                            (n - b->start) * count,
                                        g, b->first, b->last, i * g->dilation[0] - g->before[0],
                                        j * g->dilation[1] - g->before[1]);
                }
        }
}
