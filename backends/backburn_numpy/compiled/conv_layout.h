/* Images copied to rows of equal length, so that an element of the windows is at the same offset for all positions.
 * With a stride there are several planes of them, as many as the stride in each direction, each of every so many rows
 * and columns of the image. */
#ifndef BACKBURN_CONV_LAYOUT_H
#define BACKBURN_CONV_LAYOUT_H

#include "conv_geometry.h"

/* Planes of rows of the same length, step apart, and the elements of the windows, those of a plane together: where
 * they are for the first position, and which they are. starts has the first element of each plane. margin is the
 * largest offset within a plane. */
typedef struct {
    int64_t planes[2], reach[2], length, step, margin, slack;
    int64_t *offsets, *indices, *starts;
} Layout;

/* For blocks of the given rows at most; slack is what may be read after the end. table is memory for the arrays. */
static inline Layout layout_of(const Geometry *g, int64_t rows, int64_t slack, int64_t *table) {
    Layout of = {.slack = slack, .offsets = table, .indices = table + g->size[0] * g->size[1]};
    of.starts = of.indices + g->size[0] * g->size[1];
    for (int axis = 0; axis < 2; axis++) {
        const int64_t last = (g->size[axis] - 1) * g->dilation[axis];
        of.planes[axis] = g->stride[axis] <= last ? g->stride[axis] : last + 1;
        of.reach[axis] = last / g->stride[axis];
    }
    of.length = g->columns + of.reach[1];
    of.margin = of.reach[0] * of.length + of.reach[1];
    of.step = rows * of.length + of.margin + slack;
    int64_t count = 0;
    for (int64_t plane = 0; plane < of.planes[0] * of.planes[1]; plane++) {
        of.starts[plane] = count;
        for (int64_t i = 0; i < g->size[0]; i++)
            for (int64_t j = 0; j < g->size[1]; j++) {
                const int64_t row = i * g->dilation[0], column = j * g->dilation[1];
                if (row % g->stride[0] * of.planes[1] + column % g->stride[1] != plane) continue;
                of.offsets[count] = plane * of.step + row / g->stride[0] * of.length + column / g->stride[1];
                of.indices[count++] = i * g->size[1] + j;
            }
    }
    of.starts[of.planes[0] * of.planes[1]] = count;
    return of;
}

/* Every stride-th element from first on, in rows down apart, of a matrix height x width; 0 outside, and for a rest
 * after the end. */
static inline void lay_out(float *restrict to, int64_t rows, int64_t length, const float *restrict x, int64_t height,
                    int64_t width, int64_t top, int64_t down, int64_t first, int64_t stride, int64_t rest) {
    int64_t from, end;
    inside(first, stride, width, length, &from, &end);
    for (int64_t row = 0; row < rows; row++, to += length) {
        const int64_t at = top + row * down;
        if (at < 0 || at >= height || from >= end) {
            memset(to, 0, (size_t)length * sizeof *to);
            continue;
        }
        const float *restrict source = x + at * width + first;
        for (int64_t i = 0; i < from; i++) to[i] = 0.0f;
        if (stride == 1)
            LOOP for (int64_t i = from; i < end; i++) to[i] = source[i];
        else if (stride == 2)
            LOOP for (int64_t i = from; i < end; i++) to[i] = source[i * 2];
        else
            for (int64_t i = from; i < end; i++) to[i] = source[i * stride];
        for (int64_t i = end; i < length; i++) to[i] = 0.0f;
    }
    memset(to, 0, (size_t)rest * sizeof *to);
}

/* The planes of an image, for the windows of rows from first on. */
static inline void lay_planes(float *planes, const float *image, const Geometry *g, const Layout *of, int64_t first,
                       int64_t rows) {
    for (int64_t plane = 0; plane < of->planes[0] * of->planes[1]; plane++) {
        const int64_t top = first * g->stride[0] - g->before[0] + plane / of->planes[1];
        const int64_t left = plane % of->planes[1] - g->before[1];
        if (of->starts[plane] < of->starts[plane + 1])
            lay_out(planes + plane * of->step, rows + of->reach[0], of->length, image, g->height, g->width, top,
                    g->stride[0], left, g->stride[1], of->reach[1] + of->slack);
    }
}

#endif
