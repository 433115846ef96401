/* Convolutions over one or two axes, as matrix products: per block, the windows of some examples, or of some rows of
 * one, are copied into columns (im2col) and multiplied by the weight; for the gradient of the input, the products are
 * added back at the windows' positions (col2im). The matrix product is a given cblas_sgemm. */
#include "conv_geometry.h"
#include "runtime/kernels.h"
#include "gemm/blas.h"
#include "conv_few_channels.h"

INLINE int64_t windows_in(const Geometry *g, const Block *b) {
    return (b->stop - b->start) * (b->last - b->first) * g->columns;
}

/* The part of the image where an element of the windows in rows first to last lies: rows top to bottom - 1 and columns
 * from to to - 1 of the windows, of which the first is at start. */
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

/* For windows of stride 1 in all rows of images this small and as large as the outputs, an element of all windows is
 * the shifted image, masked by bits where it is padding. */
#define SMALL 256

typedef struct {
    int32_t bits[SMALL];
    int64_t shift;
} Shift;

INLINE int is_shift(const Geometry *g, const Block *b) {
    return g->stride[0] * g->stride[1] == 1 && g->columns == g->width && g->rows == g->height &&
           b->last - b->first == g->rows && g->rows * g->columns <= SMALL;
}

/* The places of an element of the windows of a block; and as a shift, if s is not null. */
static Place element_of(const Geometry *g, const Block *b, int64_t element, Shift *s) {
    const int64_t row_offset = element / g->size[1] * g->dilation[0] - g->before[0];
    const int64_t offset = element % g->size[1] * g->dilation[1] - g->before[1];
    const Place p = place_of(g, b->first, b->last, row_offset, offset);
    if (s) {
        s->shift = row_offset * g->width + offset;
        for (int64_t row = 0; row < g->rows; row++)
            for (int64_t i = 0; i < g->columns; i++)
                s->bits[row * g->columns + i] = -(row >= p.top && row < p.bottom && i >= p.from && i < p.to);
    }
    return p;
}

INLINE float masked(float x, int32_t bits) { return from_bits(to_bits(x) & bits); }

INLINE void add_shifted(float *restrict plane, const float *restrict windows, int64_t count, const Shift *s) {
    const int64_t from = s->shift < 0 ? -s->shift : 0, to = s->shift > 0 ? count - s->shift : count;
    LOOP for (int64_t i = from; i < to; i++) plane[i + s->shift] += masked(windows[i], s->bits[i]);
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
    const int shifts = is_shift(g, b);
    const int64_t elements = g->size[0] * g->size[1];
    const int64_t start = b->start * g->groups * g->inputs * plane, stop = b->stop * g->groups * g->inputs * plane;
    for (int64_t e = 0; e < elements; e++) {
        Shift s = {.shift = 0};
        const Place p = element_of(g, b, e, shifts ? &s : 0);
        for (int64_t c = 0; c < g->inputs; c++)
            for (int64_t n = b->start; n < b->stop; n++) {
                float *restrict out = columns + (c * elements + e) * all + (n - b->start) * count;
                const int64_t at = ((n * g->groups + group) * g->inputs + c) * plane, from = at + s.shift;
                if (shifts && from >= start && from + count <= stop) /* there are other images before and after */
                    LOOP for (int64_t k = 0; k < count; k++) out[k] = masked(x[from + k], s.bits[k]);
                else
                    copy_element(out, x + at, g, &p, b->last - b->first);
            }
    }
    return columns;
}

/* The outputs of a block for one group as rows with the leading dimension *ld: a view of one example, or a copy in
 * side. */
static const float *outputs_of(const float *restrict y, float *restrict side, const Geometry *g, const Block *b,
                               int64_t group, int64_t *ld) {
    const int64_t plane = g->rows * g->columns, count = (b->last - b->first) * g->columns;
    const float *first = y + (b->start * g->groups + group) * g->outputs * plane + b->first * g->columns;
    *ld = plane;
    if (b->stop == b->start + 1) return first;
    *ld = windows_in(g, b);
    for (int64_t n = 0; n < b->stop - b->start; n++)
        for (int64_t c = 0; c < g->outputs; c++)
            memcpy(side + c * *ld + n * count, first + (n * g->groups * g->outputs + c) * plane,
                   (size_t)count * sizeof *side);
    return side;
}

/* ---- kernels ---- */

/* Convolves x into out; bias may be null. columns and side are scratch memory for one block. */
KERNEL(conv, float *restrict out, const float *restrict x, const float *restrict weight,
       const float *restrict bias, float *restrict columns, float *restrict side, Sgemm *product,
       const Geometry *g, const Block *blocks, int64_t number) {
    if (has_few_channels(g)) {
        conv_few_channels((float *)x, out, (float *)weight, bias, columns, side, g, blocks, number, TO_OUTPUTS);
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
            const int64_t ld = alone ? plane : all;
            if (biases)
                for (int64_t c = 0; c < g->outputs; c++)
                    LOOP for (int64_t i = 0; i < all; i++) to[c * ld + i] = biases[c];
            product(ROW_MAJOR, NO_TRANS, NO_TRANS, g->outputs, all, depth, 1.0f, weights, depth, windows, all,
                    biases ? 1.0f : 0.0f, to, ld);
            if (!alone)
                for (int64_t n = 0; n < b->stop - b->start; n++)
                    for (int64_t c = 0; c < g->outputs; c++)
                        memcpy(first + (n * g->groups * g->outputs + c) * plane, side + c * all + n * count,
                               (size_t)count * sizeof *out);
        }
}

/* Adds the gradient of the weight for outputs first to last - 1 of each group, all where there are few channels, to
 * out: (groups, outputs, depth), or (groups, depth, outputs) if transposed. */
KERNEL(conv_weight, float *restrict out, const float *restrict x, const float *restrict grad,
       float *restrict columns, float *restrict side, Sgemm *product, const Geometry *g,
       int transposed, int64_t first, int64_t last, const Block *blocks, int64_t number) {
    if (has_few_channels(g)) { /* never transposed */
        conv_few_channels((float *)x, (float *)grad, out, 0, columns, side, g, blocks, number, TO_WEIGHT);
        return;
    }
    const int64_t depth = g->inputs * g->size[0] * g->size[1];
    for (const Block *b = blocks; b < blocks + number; b++)
        for (int64_t group = 0; group < g->groups; group++) {
            const int64_t all = windows_in(g, b);
            const float *windows = columns_of(x, columns, g, b, group);
            int64_t ld;
            const float *all_slopes = outputs_of(grad, side, g, b, group, &ld), *slopes = all_slopes + first * ld;
            float *total = out + group * g->outputs * depth;
            if (transposed)
                product(ROW_MAJOR, NO_TRANS, TRANS, depth, last - first, all, 1.0f, windows, all, slopes, ld, 1.0f,
                        total + first, g->outputs);
            else
                product(ROW_MAJOR, NO_TRANS, TRANS, last - first, depth, all, 1.0f, slopes, ld, windows, all, 1.0f,
                        total + first * depth, depth);
        }
}

/* The gradient of the input, or a transposed convolution: fills channels first to last - 1 of each group of out with
 * the sums of y's windows; bias may be null. All blocks of an example must be given. */
KERNEL(conv_input, float *restrict out, const float *restrict y, const float *restrict weight,
       const float *restrict bias, float *restrict columns, float *restrict side,
       Sgemm *product, const Geometry *g, int64_t first, int64_t last, const Block *blocks,
       int64_t number) {
    if (has_few_channels(g)) {
        conv_few_channels(out, (float *)y, (float *)weight, bias, columns, side, g, blocks, number, TO_IMAGE);
        return;
    }
    const int64_t elements = g->size[0] * g->size[1], depth = g->inputs * elements, plane = g->height * g->width;
    for (const Block *b = blocks; b < blocks + number; b++)
        for (int64_t group = 0; group < g->groups; group++) {
            const int64_t count = (b->last - b->first) * g->columns, all = windows_in(g, b);
            int64_t ld;
            const float *outputs = outputs_of(y, side, g, b, group, &ld);
            product(ROW_MAJOR, TRANS, NO_TRANS, (last - first) * elements, all, g->outputs, 1.0f,
                    weight + group * g->outputs * depth + first * elements, depth, outputs, ld, 0.0f, columns, all);
            float *all_images = out + (b->start * g->groups + group) * g->inputs * plane;
            const int shifts = is_shift(g, b);
            for (int64_t c = first; c < last; c++) {
                float *images = all_images + c * plane;
                const int64_t apart = g->groups * g->inputs * plane, examples = b->stop - b->start;
                const float start = bias ? bias[group * g->inputs + c] : 0.0f;
                for (int64_t n = 0; b->first == 0 && n < examples; n++)
                    LOOP for (int64_t i = 0; i < plane; i++) images[n * apart + i] = start;
                for (int64_t e = 0; !shifts && e < elements; e++) {
                    const Place p = element_of(g, b, e, 0);
                    float *windows = columns + ((c - first) * elements + e) * all;
                    for (int64_t n = 0; n < examples; n++) add_element(images + n * apart, windows + n * count, g, &p);
                }
            }
            for (int64_t e = 0; shifts && e < elements; e++) {
                Shift s;
                element_of(g, b, e, &s);
                for (int64_t c = first; c < last; c++)
                    for (int64_t n = 0; n < b->stop - b->start; n++)
                        add_shifted(all_images + (n * g->groups * g->inputs + c) * plane,
                                    columns + ((c - first) * elements + e) * all + n * count, plane, &s);
            }
        }
}
