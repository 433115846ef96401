/* Max pooling over up to three axes, and scatter-add along lines. */
#include "runtime/kernels.h"
#include "runtime/thread_pool.h"

/* Sizes of images, outputs and windows, first axis first. */
typedef struct {
    int64_t lengths[3], counts[3], size[3], stride[3], before[3], dilation[3];
} Windows;

/* The elements of a window along an axis that lie inside the image: offsets first, first + dilation ... below last. */
typedef struct {
    int64_t start, first, last;
} Reach;

INLINE Reach reach(const Windows *w, int axis, int64_t n) {
    const int64_t start = n * w->stride[axis] - w->before[axis], dilation = w->dilation[axis];
    const int64_t end = w->size[axis] * dilation;
    const int64_t inside = w->lengths[axis] - start;
    return (Reach){start, start >= 0 ? 0 : (-start + dilation - 1) / dilation * dilation, inside < end ? inside : end};
}

/* The most windows that are computed side by side. Fewer than FEW, or FEWER where a block may go beyond the row, are
 * faster one at a time. */
enum { COLUMNS = 64, FEW = 8, FEWER = 3 };

/* The even-indexed elements of two vectors. */
#define EVENS_2 0, 2
#define EVENS_4 0, 2, 4, 6
#define EVENS_8 0, 2, 4, 6, 8, 10, 12, 14
#define EVENS_16 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define EVENS_OF(lanes) JOINED(EVENS_, lanes)
#define JOINED(one, other) one##other
#if defined(__clang__)
#define EVENS(first, second, places, ...) __builtin_shufflevector(first, second, __VA_ARGS__)
#else
#define EVENS(first, second, places, ...) __builtin_shuffle(first, second, (places){__VA_ARGS__})
#endif

/* The lanes of vectors: as many as the processor has, or half of them if it has many. */
#define WHOLE int32_t
#if defined(__AVX512F__)
#define MOST 16
#define LEAST 8
#elif defined(__AVX__)
#define MOST 8
#define LEAST 8
#else
#define MOST 4
#define LEAST 4
#endif
#include "max_pool.h"
#undef REAL
#undef NAMED
#undef WHOLE
#undef MOST
#undef LEAST

#define REAL double
#define NAMED(name) backburn_##name##_double
#define WHOLE int64_t
#if defined(__AVX512F__)
#define MOST 8
#define LEAST 4
#elif defined(__AVX__)
#define MOST 4
#define LEAST 4
#else
#define MOST 2
#define LEAST 2
#endif
#include "max_pool.h"
#undef REAL
#undef NAMED
#define REAL float
#define NAMED(name) backburn_##name

/* Adds the count values of each line to the same line of out at indices, all in range; with a stride of 0 all lines
 * share the indices. */
#define ADD_PLACES(name, type)                                                                                         \
    KERNEL(name, type *restrict out, const int64_t *restrict indices, const type *restrict values,                     \
           int64_t lines, int64_t length, int64_t count, int64_t stride) {                                             \
        for (int64_t line = 0; line < lines; line++, out += length, indices += stride, values += count)                \
            for (int64_t i = 0; i < count; i++) out[indices[i]] += values[i];                                          \
    }
ADD_PLACES(add_places, float)
ADD_PLACES(add_places_double, double)

/* Lines of zeros, to which the values of each are added likewise. */
typedef struct {
    void *out;
    const int64_t *indices;
    const void *values;
    int64_t length, count;
} Spread;

/* Fills out with such lines, in the threads of kernels. */
#define SPREAD_PLACES(name, type)                                                                                      \
    static void name##_lines(const void *context, int64_t first, int64_t last) {                                       \
        const Spread *s = context;                                                                                     \
        for (int64_t line = first; line < last; line++) {                                                              \
            type *restrict out = (type *)s->out + line * s->length;                                                    \
            const type *restrict values = (const type *)s->values + line * s->count;                                   \
            const int64_t *restrict indices = s->indices + line * s->count;                                            \
            memset(out, 0, (size_t)s->length * sizeof *out);                                                           \
            for (int64_t i = 0; i < s->count; i++) out[indices[i]] += values[i];                                       \
        }                                                                                                              \
    }                                                                                                                  \
    KERNEL(name, type *out, const int64_t *indices, const type *values, int64_t lines, int64_t length, int64_t count,  \
           int64_t grain, int threads) {                                                                               \
        const Spread all = {out, indices, values, length, count};                                                      \
        backburn_pool_run(name##_lines, &all, lines, grain, threads);                                                  \
    }
SPREAD_PLACES(spread_places, float)
SPREAD_PLACES(spread_places_double, double)

/* Fills values with the elements of the same line of x at indices, likewise; of any type of four bytes, or of eight. */
#define TAKE_PLACES(name, type)                                                                                        \
    KERNEL(name, const type *restrict x, const int64_t *restrict indices, type *restrict values,                       \
           int64_t lines, int64_t length, int64_t count, int64_t stride) {                                             \
        for (int64_t line = 0; line < lines; line++, x += length, indices += stride, values += count)                  \
            for (int64_t i = 0; i < count; i++) values[i] = x[indices[i]];                                             \
    }
TAKE_PLACES(take_places, uint32_t)
TAKE_PLACES(take_places_double, uint64_t)
