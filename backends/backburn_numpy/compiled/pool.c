/* Max pooling over one or two axes, and scatter-add along lines. */
#include "kernels.h"

/* Sizes of images, outputs and windows, first axis first. */
typedef struct {
    int64_t height, width, rows, columns, size[2], stride[2], before[2], dilation[2];
} Windows;

/* The window elements first to last - 1 along an axis that lie inside the image. */
INLINE void reach(int64_t start, int64_t length, int64_t size, int64_t dilation, int64_t *first, int64_t *last) {
    *first = start >= 0 ? 0 : (-start + dilation - 1) / dilation;
    *last = start >= length ? 0 : (length - 1 - start) / dilation + 1;
    *last = *last < size ? *last : size;
}

/* The largest element of each window and its index in the image, for images first to last - 1. The first of equal
 * elements wins, and the first NaN over all. Every window overlaps the image. */
KERNEL(max_pool, float *restrict out, int64_t *restrict index, const float *restrict x,
       const Windows *restrict w, int64_t first, int64_t last) {
    x += first * w->height * w->width;
    out += first * w->rows * w->columns, index += first * w->rows * w->columns;
    for (int64_t image = first; image < last; image++, x += w->height * w->width)
        for (int64_t row = 0; row < w->rows; row++) {
            const int64_t top = row * w->stride[0] - w->before[0];
            int64_t i0, i1;
            reach(top, w->height, w->size[0], w->dilation[0], &i0, &i1);
            for (int64_t column = 0; column < w->columns; column++) {
                const int64_t left = column * w->stride[1] - w->before[1];
                int64_t j0, j1;
                reach(left, w->width, w->size[1], w->dilation[1], &j0, &j1);
                int64_t chosen = (top + i0 * w->dilation[0]) * w->width + left + j0 * w->dilation[1];
                float best = x[chosen];
                for (int64_t i = i0; i < i1; i++)
                    for (int64_t j = j0; j < j1; j++) {
                        const int64_t at = (top + i * w->dilation[0]) * w->width + left + j * w->dilation[1];
                        if (x[at] > best || (x[at] != x[at] && best == best)) best = x[at], chosen = at;
                    }
                *out++ = best, *index++ = chosen;
            }
        }
}

/* Adds the count values of each line to the same line of out at indices, all in range; a step of 0 between those of
 * two lines means that all lines have the same. */
#define ADD_PLACES(name, type)                                                                                         \
    KERNEL(name, type *restrict out, const int64_t *restrict indices, const type *restrict values,                     \
           int64_t lines, int64_t length, int64_t count, int64_t step) {                                               \
        for (int64_t line = 0; line < lines; line++, out += length, indices += step, values += count)                  \
            for (int64_t i = 0; i < count; i++) out[indices[i]] += values[i];                                          \
    }
ADD_PLACES(add_places, float)
ADD_PLACES(add_places_double, double)

/* Fills values with the elements of the same line of x at indices, likewise; of any type of four bytes, or of eight. */
#define TAKE_PLACES(name, type)                                                                                        \
    KERNEL(name, const type *restrict x, const int64_t *restrict indices, type *restrict values,                       \
           int64_t lines, int64_t length, int64_t count, int64_t step) {                                               \
        for (int64_t line = 0; line < lines; line++, x += length, indices += step, values += count)                    \
            for (int64_t i = 0; i < count; i++) values[i] = x[indices[i]];                                             \
    }
TAKE_PLACES(take_places, uint32_t)
TAKE_PLACES(take_places_double, uint64_t)
