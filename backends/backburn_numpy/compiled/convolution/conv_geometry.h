/* The sizes of a convolution, and the blocks it is split into. */
#ifndef BACKBURN_CONV_GEOMETRY_H
#define BACKBURN_CONV_GEOMETRY_H

#include <stdint.h>

/* Sizes, channels per group: an image is height x width, a window size[0] x size[1], the output rows x columns. */
typedef struct {
    int64_t groups, inputs, outputs, height, width, rows, columns, size[2], stride[2], before[2], dilation[2];
} Geometry;

/* The windows in output rows first to last - 1 of examples start to stop - 1. */
typedef struct {
    int64_t start, stop, first, last;
} Block;

/* The range of columns for which offset + stride * column lies within the width. */
static inline void inside(int64_t offset, int64_t stride, int64_t width, int64_t count, int64_t *first, int64_t *last) {
    const int64_t low = offset >= 0 ? 0 : (-offset + stride - 1) / stride;
    const int64_t high = offset >= width ? 0 : (width - 1 - offset) / stride + 1;
    *last = high < count ? high : count;
    *first = low < *last ? low : *last;
}

#endif
