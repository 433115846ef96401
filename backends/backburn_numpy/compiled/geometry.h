/* The lengths of a convolution, and the blocks that it is cut into. */
#ifndef BACKBURN_GEOMETRY_H
#define BACKBURN_GEOMETRY_H

#include <stdint.h>

/* Lengths for one group of channels: inputs of height x width, windows of size[0] x size[1], counts of them. */
typedef struct {
    int64_t groups, inputs, outputs, height, width, rows, columns, size[2], stride[2], before[2], dilation[2];
} Geometry;

/* Windows from row first to row last of the counts, of the examples from start to stop. */
typedef struct {
    int64_t start, stop, first, last;
} Block;

#endif
