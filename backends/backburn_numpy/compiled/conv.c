/* Convolutions over one or two axes, as matrix products: per block, the windows of some examples, or of some rows of
 * one, are copied into columns (im2col) and multiplied by the weight; for the gradient of the input, the products are
 * added back at the windows' positions (col2im). The matrix product is that of NumPy's BLAS library. */
#include "geometry.h"
#include "kernels.h"
#include "product.h"

INLINE int64_t windows_in(const Geometry *g, const Block *b) {
    return (b->stop - b->start) * (b->last - b->first) * g->columns;
}

/* The range of columns for which offset + stride * column lies within the width. */
INLINE void inside(int64_t offset, int64_t stride, int64_t width, int64_t count, int64_t *first, int64_t *last) {
    const int64_t low = offset >= 0 ? 0 : (-offset + stride - 1) / stride;
    const int64_t high = offset >= width ? 0 : (width - 1 - offset) / stride + 1;
    *last = high < count ? high : count;
    *first = low < *last ? low : *last;
}

/* One element of all windows in rows first to last of a channel. */
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
        /* One shifted copy of all rows; what wraps around at the edges is zeroed. */
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

/* Adds one element of all windows to the plane. May zero elements of windows that lie in the padding. */
INLINE void add_element(float *restrict plane, float *restrict windows, const Geometry *g, int64_t first,
                        int64_t last, int64_t row_offset, int64_t offset) {
    const int64_t stride = g->stride[1], columns = g->columns;
    int64_t from, to;
    inside(offset, stride, g->width, columns, &from, &to);
    if (stride == 1 && g->stride[0] == 1 && columns == g->width) {
        /* One shifted sum of all rows, with what would wrap around zeroed. */
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

/* The windows of a block for one group, a row per element of a window; x itself where no copy is needed. */
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

/* ---- one channel in, few out: too thin for matrix products ---- */

INLINE int is_thin(const Geometry *g) { return g->inputs == 1 && g->outputs < 4; }

/* The windows whose element (i, j) lies inside the image: their rows and columns, and the offset of the element. */
typedef struct {
    int64_t top, bottom, left, right, offset;
} Meeting;

INLINE Meeting meeting_of(const Geometry *g, int64_t first, int64_t last, int64_t i, int64_t j) {
    const int64_t row = i * g->dilation[0] - g->before[0], column = j * g->dilation[1] - g->before[1];
    Meeting m;
    inside(row + first * g->stride[0], g->stride[0], g->height, last - first, &m.top, &m.bottom);
    inside(column, g->stride[1], g->width, g->columns, &m.left, &m.right);
    m.top += first, m.bottom += first, m.offset = row * g->width + column;
    return m;
}

enum Direction { TO_OUTPUTS, TO_IMAGE, TO_WEIGHT };

/* One plane each of image and outputs and one filter: adds products of two of them to the third. */
INLINE void convolve_rows(float *restrict image, float *restrict outputs, float *restrict weight, const Geometry *g,
                          int64_t first, int64_t last, const enum Direction direction) {
    for (int64_t i = 0; i < g->size[0]; i++)
        for (int64_t j = 0; j < g->size[1]; j++, weight++) {
            const Meeting m = meeting_of(g, first, last, i, j);
            const int64_t step = g->stride[1];
            const float by = *weight;
            float total = 0.0f;
            for (int64_t row = m.top; row < m.bottom; row++) {
                float *restrict y = outputs + row * g->columns;
                float *restrict x = image + row * g->stride[0] * g->width + m.offset;
                for (int64_t k = m.left; k < m.right; k++) {
                    if (direction == TO_OUTPUTS) y[k] += by * x[k * step];
                    if (direction == TO_IMAGE) x[k * step] += by * y[k];
                    if (direction == TO_WEIGHT) total += x[k * step] * y[k];
                }
            }
            if (direction == TO_WEIGHT) *weight += total;
        }
}

/* The same for stride 1, with both planes copied to padded rows in memory, so that each filter element is a single
 * shift of all rows. */
INLINE void convolve_shifts(float *restrict image, float *restrict outputs, float *restrict weight, const Geometry *g,
                            int64_t first, int64_t last, float *restrict memory, const enum Direction direction) {
    const int64_t length = g->columns + (g->size[1] - 1) * g->dilation[1], rows = last - first;
    const int64_t height = rows + (g->size[0] - 1) * g->dilation[0], most = rows * length;
    float *restrict x = memory, *restrict y = memory + (height + 1) * length; /* the last shift reads past the end */
    memset(memory, 0, (size_t)((height + 1) * length + most) * sizeof *memory);
    const int64_t top = first - g->before[0], left = g->before[1];
    const int64_t from = top < 0 ? -top : 0, end = top + height > g->height ? g->height - top : height;
    const int64_t width = g->width < length - left ? g->width : length - left;
    if (direction != TO_IMAGE)
        for (int64_t row = from; row < end; row++)
            for (int64_t k = 0; k < width; k++) x[row * length + left + k] = image[(top + row) * g->width + k];
    if (direction != TO_OUTPUTS)
        for (int64_t row = 0; row < rows; row++)
            for (int64_t k = 0; k < g->columns; k++) y[row * length + k] = outputs[(first + row) * g->columns + k];
    for (int64_t i = 0; i < g->size[0]; i++)
        for (int64_t j = 0; j < g->size[1]; j++, weight++) {
            float *restrict shifted = x + i * g->dilation[0] * length + j * g->dilation[1];
            const float by = *weight;
            float total = 0.0f;
            if (direction == TO_OUTPUTS) {
                LOOP for (int64_t k = 0; k < most; k++) y[k] += by * shifted[k];
            } else if (direction == TO_IMAGE) {
                LOOP for (int64_t k = 0; k < most; k++) shifted[k] += by * y[k];
            } else {
                SUM_OF(total) for (int64_t k = 0; k < most; k++) total += shifted[k] * y[k];
                *weight += total;
            }
        }
    if (direction == TO_OUTPUTS)
        for (int64_t row = 0; row < rows; row++)
            for (int64_t k = 0; k < g->columns; k++) outputs[(first + row) * g->columns + k] += y[row * length + k];
    if (direction == TO_IMAGE)
        for (int64_t row = from; row < end; row++)
            for (int64_t k = 0; k < width; k++) image[(top + row) * g->width + k] += x[row * length + left + k];
}

INLINE void convolve_plane(float *restrict image, float *restrict outputs, float *restrict weight, const Geometry *g,
                           int64_t first, int64_t last, float *restrict memory, const enum Direction direction) {
    if (g->stride[0] == 1 && g->stride[1] == 1)
        convolve_shifts(image, outputs, weight, g, first, last, memory, direction);
    else
        convolve_rows(image, outputs, weight, g, first, last, direction);
}

/* The planes of a block for one group. Image and outputs are initialized here, with bias or 0; the weight is not. */
static void convolve_thin(const float *image, const float *outputs, const float *weight, const float *bias,
                          float *memory, const Geometry *g, const Block *b, int64_t group,
                          enum Direction direction) {
    const int64_t plane = g->height * g->width, positions = g->rows * g->columns, elements = g->size[0] * g->size[1];
    for (int64_t n = b->start; n < b->stop; n++) {
        /* Only the operand that direction names is written. */
        float *x = (float *)image + (n * g->groups + group) * plane;
        const float start = bias ? bias[group] : 0.0f;
        if (direction == TO_IMAGE && b->first == 0)
            LOOP for (int64_t k = 0; k < plane; k++) x[k] = start;
        for (int64_t c = 0; c < g->outputs; c++) {
            const int64_t channel = group * g->outputs + c;
            float *y = (float *)outputs + (n * g->groups * g->outputs + channel) * positions;
            float *w = (float *)weight + channel * elements;
            if (direction == TO_OUTPUTS) {
                const float from = bias ? bias[channel] : 0.0f;
                for (int64_t k = b->first * g->columns; k < b->last * g->columns; k++) y[k] = from;
                convolve_plane(x, y, w, g, b->first, b->last, memory, TO_OUTPUTS);
            } else if (direction == TO_IMAGE) {
                convolve_plane(x, y, w, g, b->first, b->last, memory, TO_IMAGE);
            } else {
                convolve_plane(x, y, w, g, b->first, b->last, memory, TO_WEIGHT);
            }
        }
    }
}

/* ---- kernels ---- */

/* Convolves x into out; bias may be null. columns and side are scratch memory for one block. */
KERNEL(conv, float *restrict out, const float *restrict x, const float *restrict weight,
       const float *restrict bias, float *restrict columns, float *restrict side, Product *product,
       const Geometry *g, const Block *blocks, int64_t number) {
    const int64_t depth = g->inputs * g->size[0] * g->size[1], plane = g->rows * g->columns;
    for (const Block *b = blocks; b < blocks + number; b++)
        for (int64_t group = 0; group < g->groups; group++) {
            if (is_thin(g)) {
                convolve_thin(x, out, weight, bias, columns, g, b, group, TO_OUTPUTS);
                continue;
            }
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
    const int64_t depth = g->inputs * g->size[0] * g->size[1];
    for (const Block *b = blocks; b < blocks + number; b++)
        for (int64_t group = 0; group < g->groups; group++) {
            if (is_thin(g)) { /* never transposed */
                convolve_thin(x, grad, out, 0, columns, g, b, group, TO_WEIGHT);
                continue;
            }
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
    const int64_t elements = g->size[0] * g->size[1], depth = g->inputs * elements, plane = g->height * g->width;
    for (const Block *b = blocks; b < blocks + number; b++)
        for (int64_t group = 0; group < g->groups; group++) {
            if (is_thin(g)) {
                convolve_thin(out, y, weight, bias, columns, g, b, group, TO_IMAGE);
                continue;
            }
            const int64_t count = (b->last - b->first) * g->columns, all = windows_in(g, b);
            int64_t step;
            const float *outputs = outputs_of(y, side, g, b, group, &step);
            product(ROW_MAJOR, TRANS, NO_TRANS, (last - first) * elements, all, g->outputs, 1.0f,
                    weight + group * g->outputs * depth + first * elements, depth, outputs, step, 0.0f, columns, all);
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
