/* Softmax and cross-entropy over rows shorter than a vector, such as of ten classes. The exponentials of as many rows
 * as fit into SOME elements are computed in one loop, and only the rest row by row. */
#include "runtime/kernels.h"
#include "softmax_short_rows.h"

enum { SOME = 512 };

/* Loops over blocks of `few` rows, from row r on; none if rows are empty. */
#define FOR_BLOCKS                                                                                                     \
    for (int64_t r = 0, few = width ? SOME / width : 0; (few = rows - r < few ? rows - r : few) > 0; r += few)

/* Fills out with exp(x - top), and tops with the largest element of each row. */
INLINE void powers(float *restrict out, float *restrict tops, const float *restrict x, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++) {
        float top = -INFINITY;
        for (int64_t i = r * width; i < (r + 1) * width; i++) top = x[i] > top ? x[i] : top;
        for (int64_t i = r * width; i < (r + 1) * width; i++) out[i] = x[i] - top;
        tops[r] = top;
    }
    LOOP for (int64_t i = 0; i < rows * width; i++) out[i] = exp_of(out[i]);
}

INLINE float sum_of(const float *restrict x, int64_t width) {
    float total = 0.0f;
    for (int64_t i = 0; i < width; i++) total += x[i];
    return total;
}

INLINE void scale(float *restrict x, float factor, int64_t width) {
    for (int64_t i = 0; i < width; i++) x[i] *= factor;
}

void backburn_softmax_short_rows(float *restrict out, const float *restrict x, int64_t rows, int64_t width) {
    float tops[SOME];
    FOR_BLOCKS {
        powers(out, tops, x + r * width, few, width);
        for (int64_t q = 0; q < few; q++, out += width) scale(out, 1.0f / sum_of(out, width), width);
    }
}

void backburn_log_softmax_short_rows(float *restrict out, const float *restrict x, int64_t rows, int64_t width) {
    float some[SOME], tops[SOME];
    FOR_BLOCKS {
        powers(some, tops, x, few, width);
        for (int64_t q = 0; q < few; q++, x += width, out += width) {
            const float logarithm = log_of(sum_of(some + q * width, width));
            for (int64_t i = 0; i < width; i++) out[i] = (x[i] - tops[q]) - logarithm;
        }
    }
}

void backburn_cross_entropy_short_rows(const float *restrict x, float *restrict out, const int64_t *restrict labels,
                                       int64_t rows, int64_t width) {
    float some[SOME], tops[SOME];
    FOR_BLOCKS {
        powers(some, tops, x, few, width);
        for (int64_t q = 0; q < few; q++, x += width) {
            const int64_t label = labels[r + q];
            some[q * width + label] = 0.0f;
            out[r + q] = loss_of(x[label], tops[q], sum_of(some + q * width, width));
        }
    }
}

void backburn_cross_entropy_short_rows_backward(float *restrict out, const float *restrict grads,
                                                const float *restrict x, const int64_t *restrict labels, int64_t rows,
                                                int64_t width) {
    float tops[SOME];
    FOR_BLOCKS {
        powers(out, tops, x + r * width, few, width);
        for (int64_t q = r; q < r + few; q++, out += width) {
            const float own = out[labels[q]];
            out[labels[q]] = 0.0f;
            const float others = sum_of(out, width), factor = grads[q] / (others + own);
            scale(out, factor, width);
            out[labels[q]] = -factor * others;
        }
    }
}
