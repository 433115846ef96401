/* Images copied to rows of equal length, so that an element of the windows is at the same offset for all positions.
 * With a stride there are several planes, as many as the stride in each direction, each of every stride-th row and
 * column of the image. In flat layouts rows are as long as those of the outputs, so that positions are contiguous: they
 * have a plane for each column of the windows in place of those for a stride along the columns. */
#ifndef BACKBURN_CONV_LAYOUT_H
#define BACKBURN_CONV_LAYOUT_H

#include "conv_geometry.h"
#include "runtime/simd.h"

/* Planes of rows of the same length, plane_stride apart, and the elements of the windows, grouped by plane: their
 * offsets for the first position, and their indices. starts has the first element of each plane. margin is the largest
 * offset within a plane. */
typedef struct {
    int64_t planes[2], reach[2], length, plane_stride, margin, slack, flat;
    int64_t *offsets, *indices, *starts;
} Layout;

/* For blocks of the given rows at most; slack is what may be read after the end. table is memory for the arrays. */
static inline Layout layout_of(const Geometry *g, int64_t rows, int64_t slack, int64_t *table, int flat) {
    Layout of = {.slack = slack, .offsets = table, .indices = table + g->size[0] * g->size[1], .flat = flat};
    of.starts = of.indices + g->size[0] * g->size[1];
    for (int axis = 0; axis < 2; axis++) {
        const int64_t last = (g->size[axis] - 1) * g->dilation[axis];
        of.planes[axis] = g->stride[axis] <= last ? g->stride[axis] : last + 1;
        of.reach[axis] = last / g->stride[axis];
    }
    if (flat) of.planes[1] = g->size[1], of.reach[1] = 0;
    of.length = g->columns + of.reach[1];
    of.margin = of.reach[0] * of.length + of.reach[1];
    of.plane_stride = rows * of.length + of.margin + slack;
    int64_t count = 0;
    for (int64_t plane = 0; plane < of.planes[0] * of.planes[1]; plane++) {
        of.starts[plane] = count;
        for (int64_t i = 0; i < g->size[0]; i++)
            for (int64_t j = 0; j < g->size[1]; j++) {
                const int64_t row = i * g->dilation[0], column = flat ? j : j * g->dilation[1];
                const int64_t column_stride = flat ? g->size[1] : g->stride[1];
                if (row % g->stride[0] * of.planes[1] + column % column_stride != plane) continue;
                of.offsets[count] = plane * of.plane_stride + row / g->stride[0] * of.length + column / column_stride;
                of.indices[count++] = i * g->size[1] + j;
            }
    }
    of.starts[of.planes[0] * of.planes[1]] = count;
    return of;
}

/* Copies LANES columns of rows low to high - 1, with 0 in columns before from and from end on. The vectors of a row may
 * reach into the next one. */
INLINE void copy_columns(float *restrict to, int64_t length, const float *restrict x, int64_t x_stride, int64_t low,
                         int64_t high, int64_t from, int64_t end) {
    const int64_t first = from < 0 ? 0 : from < LANES ? from : LANES;
    const int64_t last = end < first ? first : end < LANES ? end : LANES;
    if (first == 0 && last == LANES) {
        for (int64_t row = low; row < high; row++) store_lanes(to + row * length, load_lanes(x + row * x_stride));
        return;
    }
#if defined(__AVX512F__)
    const __mmask16 mask = (__mmask16)((1u << last) - (1u << first));
    for (int64_t row = low; row < high; row++)
        store_lanes(to + row * length, (Lanes)_mm512_maskz_loadu_ps(mask, x + row * x_stride));
#elif defined(__AVX__)
    int32_t bits[LANES];
    for (int i = 0; i < LANES; i++) bits[i] = -(i >= first && i < last);
    const __m256i mask = _mm256_loadu_si256((const __m256i *)bits);
    for (int64_t row = low; row < high; row++)
        store_lanes(to + row * length, (Lanes)_mm256_maskload_ps(x + row * x_stride, mask));
#else
    for (int64_t row = low; row < high; row++)
        for (int i = 0; i < LANES; i++) to[row * length + i] = i >= first && i < last ? x[row * x_stride + i] : 0.0f;
#endif
}

/* Every stride-th element from first on, in rows row_stride apart, of a matrix height x width; 0 outside, and for
 * `rest` elements after the end. May write up to LANES - 1 elements beyond that. */
static inline void lay_out(float *restrict to, int64_t rows, int64_t length, const float *restrict x, int64_t height,
                           int64_t width, int64_t top, int64_t row_stride, int64_t first, int64_t stride,
                           int64_t rest) {
    int64_t from, end, low, high;
    inside(first, stride, width, length, &from, &end);
    inside(top, row_stride, height, rows, &low, &high);
    if (from >= end) low = high = rows;
    x += top * width + first;
    memset(to, 0, (size_t)(low * length) * sizeof *to);
    /* From the last columns backwards, so that what vectors write beyond a row is overwritten. */
    for (int64_t i = (length - 1) / LANES * LANES; stride == 1 && i >= 0; i -= LANES)
        copy_columns(to + i, length, x + i, row_stride * width, low, high, from - i, end - i);
    for (int64_t row = low; stride > 1 && row < high; row++) {
        const float *restrict source = x + row * row_stride * width;
        float *restrict target = to + row * length;
        for (int64_t i = 0; i < from; i++) target[i] = 0.0f;
        if (stride == 2)
            LOOP for (int64_t i = from; i < end; i++) target[i] = source[i * 2];
        else
            for (int64_t i = from; i < end; i++) target[i] = source[i * stride];
        for (int64_t i = end; i < length; i++) target[i] = 0.0f;
    }
    memset(to + high * length, 0, (size_t)((rows - high) * length + rest) * sizeof *to);
}

/* The planes of an image, for the windows of rows from first on. */
static inline void lay_planes(float *planes, const float *image, const Geometry *g, const Layout *of, int64_t first,
                              int64_t rows) {
    for (int64_t plane = 0; plane < of->planes[0] * of->planes[1]; plane++) {
        const int64_t top = first * g->stride[0] - g->before[0] + plane / of->planes[1];
        const int64_t left = plane % of->planes[1] * (of->flat ? g->dilation[1] : 1) - g->before[1];
        if (of->starts[plane] < of->starts[plane + 1])
            lay_out(planes + plane * of->plane_stride, rows + of->reach[0], of->length, image, g->height, g->width, top,
                    g->stride[0], left, g->stride[1], of->reach[1] + of->slack);
    }
}

#endif
