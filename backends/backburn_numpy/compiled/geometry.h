/* The sizes of a convolution, and the blocks it is split into. */
#ifndef BACKBURN_GEOMETRY_H
#define BACKBURN_GEOMETRY_H

#include <stdint.h>

/* Sizes, channels per group: an image is height x width, a window size[0] x size[1], the output rows x columns. */
typedef struct {
    int64_t groups, inputs, outputs, height, width, rows, columns, size[2], stride[2], before[2], dilation[2];
} Geometry;

/* The windows in output rows first to last - 1 of examples start to stop - 1. */
typedef struct {
    int64_t start, stop, first, last;
} Block;

#endif
