/* Convolutions with one channel in and few out, too few for matrix products. */
#ifndef BACKBURN_CONV_FEW_CHANNELS_H
#define BACKBURN_CONV_FEW_CHANNELS_H

#include "conv_geometry.h"

enum Direction { TO_OUTPUTS, TO_IMAGE, TO_WEIGHT };

static inline int has_few_channels(const Geometry *g) { return g->inputs == 1 && g->outputs < 4; }

/* Computes the outputs, image or weight of blocks from the other two. Outputs and image begin with the bias or 0; a
 * weight is added to. */
void conv_few_channels(float *image, float *outputs, float *weight, const float *bias, float *memory, float *table,
                   const Geometry *g, const Block *blocks, int64_t number, enum Direction direction);

#endif
