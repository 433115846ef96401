/* Max pooling over up to three axes, and scatter-add along lines. */
#include "kernels.h"

/* Sizes of images, outputs and windows, first axis first. */
typedef struct {
    int64_t lengths[3], counts[3], size[3], stride[3], before[3], dilation[3];
} Windows;

/* The elements of a window along an axis that lie inside the image: offsets first, first + step ... below last. */
typedef struct {
    int64_t start, first, last;
} Reach;

INLINE Reach reach(const Windows *w, int axis, int64_t n) {
    const int64_t start = n * w->stride[axis] - w->before[axis], step = w->dilation[axis], end = w->size[axis] * step;
    const int64_t room = w->lengths[axis] - start;
    return (Reach){start, start >= 0 ? 0 : (-start + step - 1) / step * step, room < end ? room : end};
}

/* Windows that are computed side by side at most. Fewer than FEW, or FEWER where a block may go beyond the row, are
 * faster one at a time. */
enum { COLUMNS = 64, FEW = 8, FEWER = 3 };

#include "pool.h"
#undef REAL
#undef NAMED
#define REAL double
#define NAMED(name) backburn_##name##_double
#include "pool.h"
#undef REAL
#undef NAMED
#define REAL float
#define NAMED(name) backburn_##name

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
