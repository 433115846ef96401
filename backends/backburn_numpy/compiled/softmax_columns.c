/* Softmax and cross-entropy over the columns of matrices (count, inner), one matrix after the other: of the columns from
 * first to last, as many at a time as fill STRIP. */
#include "kernels.h"

#define STRIP 64
#define ROWS 16 /* summed in float, before large terms swallow small ones */

/* Calls a function for each strip; start is where it is, and place where it would be in matrices of one row. */
#define STRIPS(function, ...)                                                                                          \
    for (int64_t n = 0; n < number; n++) {                                                                             \
        for (int64_t at = first; at < last; at += STRIP) {                                                             \
            const int64_t start = n * count * inner + at, place = n * inner + at;                                      \
            (void)place;                                                                                               \
            function(__VA_ARGS__, count, inner, last - at < STRIP ? last - at : STRIP);                                \
        }                                                                                                              \
    }

#define SIZES int64_t number, int64_t count, int64_t inner, int64_t first, int64_t last
#define WIDTH LOOP for (int64_t i = 0; i < width; i++)

INLINE void tops_of(float *restrict tops, const float *restrict x, int64_t count, int64_t inner, int64_t width) {
    WIDTH tops[i] = x[i];
    for (int64_t row = 1; row < count; row++) {
        x += inner;
        WIDTH tops[i] = x[i] > tops[i] ? x[i] : tops[i];
    }
}

/* Adds up what term is in each row, which may use y, at the same place as x, and i. */
#define TOTALS(totals, term)                                                                                           \
    double sums[STRIP] = {0};                                                                                          \
    for (int64_t start = 0; start < count; start += ROWS) {                                                            \
        float part[STRIP] = {0};                                                                                       \
        for (int64_t row = start, at = start * inner; row < count && row < start + ROWS; row++, at += inner) {         \
            WIDTH part[i] += term;                                                                                     \
        }                                                                                                              \
        WIDTH sums[i] += (double)part[i];                                                                              \
    }                                                                                                                  \
    WIDTH totals[i] = (float)sums[i];

#define EVERY(expression)                                                                                              \
    for (int64_t row = 0, at = 0; row < count; row++, at += inner) { WIDTH out[at + i] = expression; }

INLINE void softmax(float *restrict out, const float *restrict x, int64_t count, int64_t inner, int64_t width) {
    float tops[STRIP], totals[STRIP];
    tops_of(tops, x, count, inner, width);
    EVERY(exp_of(x[at + i] - tops[i]))
    TOTALS(totals, out[at + i])
    WIDTH totals[i] = 1.0f / totals[i];
    EVERY(out[at + i] * totals[i])
}

KERNEL(softmax_columns, float *out, const float *x, SIZES) { STRIPS(softmax, out + start, x + start) }

INLINE void softmax_backward(float *restrict out, const float *restrict grad, const float *restrict y, int64_t count,
                             int64_t inner, int64_t width) {
    float totals[STRIP];
    TOTALS(totals, grad[at + i] * y[at + i])
    EVERY((grad[at + i] - totals[i]) * y[at + i])
}

KERNEL(softmax_backward_columns, float *out, const float *grad, const float *y, SIZES) {
    STRIPS(softmax_backward, out + start, grad + start, y + start)
}

INLINE void log_softmax(float *restrict out, const float *restrict x, int64_t count, int64_t inner, int64_t width) {
    float tops[STRIP], totals[STRIP];
    tops_of(tops, x, count, inner, width);
    TOTALS(totals, exp_of(x[at + i] - tops[i]))
    WIDTH totals[i] = log_of(totals[i]);
    EVERY((x[at + i] - tops[i]) - totals[i])
}

KERNEL(log_softmax_columns, float *out, const float *x, SIZES) { STRIPS(log_softmax, out + start, x + start) }

INLINE void log_softmax_backward(float *restrict out, const float *restrict grad, const float *restrict y,
                                 int64_t count, int64_t inner, int64_t width) {
    float totals[STRIP];
    TOTALS(totals, grad[at + i])
    EVERY(grad[at + i] - exp_of(y[at + i]) * totals[i])
}

KERNEL(log_softmax_backward_columns, float *out, const float *grad, const float *y, SIZES) {
    STRIPS(log_softmax_backward, out + start, grad + start, y + start)
}

/* The label's own power is left out of the sum, lest it absorb the others: the logarithm of 1 and more. */
INLINE void cross_entropy(float *restrict out, const float *restrict x, const int64_t *restrict labels, int64_t count,
                          int64_t inner, int64_t width) {
    float tops[STRIP], totals[STRIP], own[STRIP];
    int32_t names[STRIP];
    tops_of(tops, x, count, inner, width);
    for (int64_t i = 0; i < width; i++) names[i] = (int32_t)labels[i], own[i] = x[labels[i] * inner + i] - tops[i];
    TOTALS(totals, names[i] == (int32_t)row ? 0.0f : exp_of(x[at + i] - tops[i]))
    WIDTH out[i] = log1p_of(own[i] == 0.0f ? totals[i] : (totals[i] - 1.0f) + exp_of(own[i])) - own[i];
}

KERNEL(label_cross_entropy_columns, float *out, const float *x, const int64_t *labels, SIZES) {
    STRIPS(cross_entropy, out + place, x + start, labels + place)
}

INLINE void cross_entropy_backward(float *restrict out, const float *restrict grads, const float *restrict x,
                                   const int64_t *restrict labels, int64_t count, int64_t inner, int64_t width) {
    float tops[STRIP], totals[STRIP];
    tops_of(tops, x, count, inner, width);
    EVERY(exp_of(x[at + i] - tops[i]))
    TOTALS(totals, out[at + i])
    WIDTH totals[i] = grads[i] / totals[i];
    EVERY(out[at + i] * totals[i])
    for (int64_t i = 0; i < width; i++) out[labels[i] * inner + i] -= grads[i];
}

KERNEL(label_cross_entropy_backward_columns, float *out, const float *grads, const float *x, const int64_t *labels,
       SIZES) {
    STRIPS(cross_entropy_backward, out + start, grads + place, x + start, labels + place)
}
