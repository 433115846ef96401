/* Convolutions with one channel in and few out, too thin for matrix products. */
#ifndef BACKBURN_THIN_H
#define BACKBURN_THIN_H

#include "geometry.h"

enum Direction { TO_OUTPUTS, TO_IMAGE, TO_WEIGHT };

static inline int is_thin(const Geometry *g) { return g->inputs == 1 && g->outputs < 4; }

/* Computes the outputs, image or weight of blocks from the other two; what is added to is initialized with bias or 0,
 * the weight is not. */
void convolve_thin(float *image, float *outputs, float *weight, const float *bias, float *memory, float *table,
                   const Geometry *g, const Block *blocks, int64_t number, enum Direction direction);

#endif
