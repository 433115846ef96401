/* Softmax and cross-entropy over short rows. */
#ifndef BACKBURN_SHORT_H
#define BACKBURN_SHORT_H

#include <stdint.h>

enum { SHORT = 16 }; /* the elements of the longest vectors: rows of fewer are short */

void backburn_short_softmax(float *restrict out, const float *restrict x, int64_t rows, int64_t width);
void backburn_short_log_softmax(float *restrict out, const float *restrict x, int64_t rows, int64_t width);
void backburn_short_losses(const float *restrict x, float *restrict out, const int64_t *restrict labels, int64_t rows,
                           int64_t width);
void backburn_short_losses_backward(float *restrict out, const float *restrict grads, const float *restrict x,
                                    const int64_t *restrict labels, int64_t rows, int64_t width);

#endif
