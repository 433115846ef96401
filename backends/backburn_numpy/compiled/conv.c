/* Convolutions over one or two axes, as matrix products: per block, the windows of some examples, or of some rows of
 * one, are copied into columns (im2col) and multiplied by the weight; for the gradient of the input, the products are
 * added back at the windows' positions (col2im). The matrix product is that of NumPy's BLAS library. */
#include "geometry.h"
#include "kernels.h"
#include "product.h"
#include "thin.h"

INLINE int64_t windows_in(const Geometry *g, const Block *b) {
    return (b->stop - b->start) * (b->last - b->first) * g->columns;
}

/* Where an element of the windows in rows first to last lies in the image: rows top to bottom - 1 and columns from to
 * to - 1 of the windows, of which the first is at start. */
typedef struct {
    int64_t top, bottom, from, to, start;
} Place;

INLINE Place place_of(const Geometry *g, int64_t first, int64_t last, int64_t row_offset, int64_t offset) {
    Place p;
    inside(offset, g->stride[1], g->width, g->columns, &p.from, &p.to);
    inside(row_offset + first * g->stride[0], g->stride[0], g->height, last - first, &p.top, &p.bottom);
    p.start = (row_offset + (first + p.top) * g->stride[0]) * g->width + offset;
    return p;
}

INLINE void zero(float *out, int64_t count) {
    if (count > 16) memset(out, 0, (size_t)count * sizeof *out);
    else for (int64_t i = 0; i < count; i++) out[i] = 0.0f;
}

/* One element of all windows in a number of rows of a channel. */
INLINE void copy_element(float *restrict out, const float *restrict plane, const Geometry *g, const Place *p,
                         int64_t rows) {
    const int64_t stride = g->stride[1], columns = g->columns, from = p->from, to = p->to;
    zero(out, p->top * columns);
    zero(out + p->bottom * columns, (rows - p->bottom) * columns);
    if (p->top >= p->bottom) return;
    const float *restrict source = plane + p->start;
    float *restrict target = out + p->top * columns;
    if (stride == 1 && g->stride[0] == 1 && columns == g->width && to > from) {
        /* One shifted copy of all rows; what wraps around at the edges is zeroed. */
        const int64_t count = (p->bottom - p->top - 1) * columns + to;
        if (count > 64) memcpy(target + from, source + from, (size_t)(count - from) * sizeof *out);
        else LOOP for (int64_t i = from; i < count; i++) target[i] = source[i];
        if (from > 0 || to < columns)
            for (int64_t row = p->top; row < p->bottom; row++, target += columns) {
                for (int64_t i = 0; i < from; i++) target[i] = 0.0f;
                for (int64_t i = to; i < columns; i++) target[i] = 0.0f;
            }
        return;
    }
    for (int64_t row = p->top; row < p->bottom; row++, target += columns, source += g->stride[0] * g->width) {
        for (int64_t i = 0; i < from; i++) target[i] = 0.0f;
        if (stride == 1) {
            LOOP for (int64_t i = from; i < to; i++) target[i] = source[i];
        } else {
            for (int64_t i = from; i < to; i++) target[i] = source[i * stride];
        }
        for (int64_t i = to; i < columns; i++) target[i] = 0.0f;
    }
}

/* Adds one element of all windows to the plane. May zero elements of windows that lie in the padding. */
INLINE void add_element(float *restrict plane, float *restrict windows, const Geometry *g, const Place *p) {
    const int64_t stride = g->stride[1], columns = g->columns, from = p->from, to = p->to;
    if (p->top >= p->bottom || from >= to) return;
    float *restrict target = plane + p->start;
    windows += p->top * columns;
    if (stride == 1 && g->stride[0] == 1 && columns == g->width) {
        /* One shifted sum of all rows, with what would wrap around zeroed. */
        if (from > 0 || to < columns)
            for (int64_t row = 0; row < p->bottom - p->top; row++) {
                for (int64_t i = 0; i < from; i++) windows[row * columns + i] = 0.0f;
                for (int64_t i = to; i < columns; i++) windows[row * columns + i] = 0.0f;
            }
        const int64_t end = (p->bottom - p->top - 1) * columns + to;
        LOOP for (int64_t i = from; i < end; i++) target[i] += windows[i];
        return;
    }
    for (int64_t row = p->top; row < p->bottom; row++, windows += columns, target += g->stride[0] * g->width) {
        if (stride == 1) {
            LOOP for (int64_t i = from; i < to; i++) target[i] += windows[i];
        } else {
            for (int64_t i = from; i < to; i++) target[i * stride] += windows[i];
        }
    }
}

/* The windows of a block for one group, a row per element of a window; x itself where no copy is needed. */
static const float *columns_of(const float *restrict x, float *restrict columns, const Geometry *g, const Block *b,
                               int64_t group) {
    const int64_t plane = g->height * g->width, count = (b->last - b->first) * g->columns;
    const int64_t all = windows_in(g, b);
    const int is_image = g->size[0] * g->size[1] * g->stride[0] * g->stride[1] == 1 && !g->before[0] && !g->before[1] &&
                         g->rows == g->height && g->columns == g->width;
    if (is_image && b->stop == b->start + 1 && count == plane)
        return x + (b->start * g->groups + group) * g->inputs * plane;
    for (int64_t i = 0; i < g->size[0]; i++)
        for (int64_t j = 0; j < g->size[1]; j++) {
            const Place p = place_of(g, b->first, b->last, i * g->dilation[0] - g->before[0],
                                     j * g->dilation[1] - g->before[1]);
            for (int64_t c = 0; c < g->inputs; c++)
                for (int64_t n = b->start; n < b->stop; n++) {
                    float *out = columns + ((c * g->size[0] + i) * g->size[1] + j) * all + (n - b->start) * count;
                    copy_element(out, x + ((n * g->groups + group) * g->inputs + c) * plane, g, &p, b->last - b->first);
                }
        }
    return columns;
}

/* The outputs of a block for one group as rows with stride *step: a view of one example, or a copy in side. */
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

/* ---- kernels ---- */

/* Convolves x into out; bias may be null. columns and side are scratch memory for one block. */
KERNEL(conv, float *restrict out, const float *restrict x, const float *restrict weight,
       const float *restrict bias, float *restrict columns, float *restrict side, Product *product,
       const Geometry *g, const Block *blocks, int64_t number) {
    if (is_thin(g)) {
        convolve_thin((float *)x, out, (float *)weight, bias, columns, side, g, blocks, number, TO_OUTPUTS);
        return;
    }
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
            product(ROW_MAJOR, NO_TRANS, NO_TRANS, g->outputs, all, depth, 1.0f, weights, depth, windows, all,
                    biases ? 1.0f : 0.0f, to, step);
            if (!alone)
                for (int64_t n = 0; n < b->stop - b->start; n++)
                    for (int64_t c = 0; c < g->outputs; c++)
                        memcpy(first + (n * g->groups * g->outputs + c) * plane, side + c * all + n * count,
                               (size_t)count * sizeof *out);
        }
}

/* Adds the gradient of the weight to out: (groups, outputs, depth), or (groups, depth, outputs) if transposed. */
KERNEL(conv_weight, float *restrict out, const float *restrict x, const float *restrict grad,
       float *restrict columns, float *restrict side, Product *product, const Geometry *g,
       int transposed, const Block *blocks, int64_t number) {
    if (is_thin(g)) { /* never transposed */
        convolve_thin((float *)x, (float *)grad, out, 0, columns, side, g, blocks, number, TO_WEIGHT);
        return;
    }
    const int64_t depth = g->inputs * g->size[0] * g->size[1];
    for (const Block *b = blocks; b < blocks + number; b++)
        for (int64_t group = 0; group < g->groups; group++) {
            const int64_t all = windows_in(g, b);
            const float *windows = columns_of(x, columns, g, b, group);
            int64_t step;
            const float *slopes = outputs_of(grad, side, g, b, group, &step);
            float *total = out + group * g->outputs * depth;
            if (transposed)
                product(ROW_MAJOR, NO_TRANS, TRANS, depth, g->outputs, all, 1.0f, windows, all, slopes, step, 1.0f,
                        total, g->outputs);
            else
                product(ROW_MAJOR, NO_TRANS, TRANS, g->outputs, depth, all, 1.0f, slopes, step, windows, all, 1.0f,
                        total, depth);
        }
}

/* The gradient of the input, or a transposed convolution: fills channels first to last - 1 of each group of out with
 * the sums of y's windows; bias may be null. All blocks of an example must be given. */
KERNEL(conv_input, float *restrict out, const float *restrict y, const float *restrict weight,
       const float *restrict bias, float *restrict columns, float *restrict side,
       Product *product, const Geometry *g, int64_t first, int64_t last, const Block *blocks,
       int64_t number) {
    if (is_thin(g)) {
        convolve_thin(out, (float *)y, (float *)weight, bias, columns, side, g, blocks, number, TO_IMAGE);
        return;
    }
    const int64_t elements = g->size[0] * g->size[1], depth = g->inputs * elements, plane = g->height * g->width;
    for (const Block *b = blocks; b < blocks + number; b++)
        for (int64_t group = 0; group < g->groups; group++) {
            const int64_t count = (b->last - b->first) * g->columns, all = windows_in(g, b);
            int64_t step;
            const float *outputs = outputs_of(y, side, g, b, group, &step);
            product(ROW_MAJOR, TRANS, NO_TRANS, (last - first) * elements, all, g->outputs, 1.0f,
                    weight + group * g->outputs * depth + first * elements, depth, outputs, step, 0.0f, columns, all);
            float *images = out + (b->start * g->groups + group) * g->inputs * plane;
            for (int64_t c = first; c < last; c++) {
                float *images = out + ((b->start * g->groups + group) * g->inputs + c) * plane;
                const int64_t apart = g->groups * g->inputs * plane, examples = b->stop - b->start;
                const float start = bias ? bias[group * g->inputs + c] : 0.0f;
                for (int64_t n = 0; b->first == 0 && n < examples; n++)
                    LOOP for (int64_t i = 0; i < plane; i++) images[n * apart + i] = start;
                for (int64_t i = 0; i < g->size[0]; i++)
                    for (int64_t j = 0; j < g->size[1]; j++) {
                        const Place p = place_of(g, b->first, b->last, i * g->dilation[0] - g->before[0],
                                                 j * g->dilation[1] - g->before[1]);
                        float *windows = columns + (((c - first) * g->size[0] + i) * g->size[1] + j) * all;
                        for (int64_t n = 0; n < examples; n++)
                            add_element(images + n * apart, windows + n * count, g, &p);
                    }
            }
        }
}
