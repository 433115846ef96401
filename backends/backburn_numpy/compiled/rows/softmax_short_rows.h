/* Softmax and cross-entropy over short rows. */
#ifndef BACKBURN_SOFTMAX_SHORT_ROWS_H
#define BACKBURN_SOFTMAX_SHORT_ROWS_H

#include <stdint.h>

enum { SHORT = 16 }; /* the elements of the longest vectors: shorter rows are short */

void backburn_softmax_short_rows(float *restrict out, const float *restrict x, int64_t rows, int64_t width);
void backburn_log_softmax_short_rows(float *restrict out, const float *restrict x, int64_t rows, int64_t width);
void backburn_cross_entropy_short_rows(const float *restrict x, float *restrict out, const int64_t *restrict labels,
                                       int64_t rows, int64_t width);
void backburn_cross_entropy_short_rows_backward(float *restrict out, const float *restrict grads,
                                                const float *restrict x, const int64_t *restrict labels, int64_t rows,
                                                int64_t width);

#endif
