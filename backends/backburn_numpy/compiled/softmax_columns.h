/* Softmax and cross-entropy over the columns of matrices (count, inner), one matrix after the other: of the columns from
 * first to last, as many at a time as fill STRIP. Of the type REAL; included once for each type. */

INLINE void NAMED(tops_of_strip)(REAL *restrict tops, const REAL *restrict x, int64_t count, int64_t inner,
                                 int64_t width) {
    WIDTH tops[i] = x[i];
    for (int64_t row = 1; row < count; row++) {
        x += inner;
        WIDTH tops[i] = x[i] > tops[i] ? x[i] : tops[i];
    }
}

INLINE void NAMED(softmax_strip)(REAL *restrict out, const REAL *restrict x, int64_t count, int64_t inner,
                                 int64_t width) {
    REAL tops[STRIP], totals[STRIP];
    NAMED(tops_of_strip)(tops, x, count, inner, width);
    EVERY(EXP_OF(x[at + i] - tops[i]))
    TOTALS(totals, out[at + i])
    WIDTH totals[i] = 1 / totals[i];
    EVERY(out[at + i] * totals[i])
}

KERNEL(softmax_columns, REAL *out, const REAL *x, SIZES) { STRIPS(NAMED(softmax_strip), out + start, x + start) }

INLINE void NAMED(softmax_backward_strip)(REAL *restrict out, const REAL *restrict grad, const REAL *restrict y,
                                          int64_t count,
                                   int64_t inner, int64_t width) {
    REAL totals[STRIP];
    TOTALS(totals, grad[at + i] * y[at + i])
    EVERY((grad[at + i] - totals[i]) * y[at + i])
}

KERNEL(softmax_backward_columns, REAL *out, const REAL *grad, const REAL *y, SIZES) {
    STRIPS(NAMED(softmax_backward_strip), out + start, grad + start, y + start)
}

INLINE void NAMED(log_softmax_strip)(REAL *restrict out, const REAL *restrict x, int64_t count, int64_t inner,
                                     int64_t width) {
    REAL tops[STRIP], totals[STRIP];
    NAMED(tops_of_strip)(tops, x, count, inner, width);
    TOTALS(totals, EXP_OF(x[at + i] - tops[i]))
    WIDTH totals[i] = LOG_OF(totals[i]);
    EVERY((x[at + i] - tops[i]) - totals[i])
}

KERNEL(log_softmax_columns, REAL *out, const REAL *x, SIZES) { STRIPS(NAMED(log_softmax_strip), out + start, x + start) }

INLINE void NAMED(logsumexp_strip)(REAL *restrict out, const REAL *restrict x, int64_t count, int64_t inner,
                                   int64_t width) {
    REAL tops[STRIP], totals[STRIP];
    NAMED(tops_of_strip)(tops, x, count, inner, width);
    WIDTH tops[i] = tops[i] == INFINITY || tops[i] == -INFINITY ? 0 : tops[i];
    TOTALS(totals, EXP_OF(x[at + i] - tops[i]))
    WIDTH out[i] = LOG_OF(totals[i]) + tops[i];
}

KERNEL(logsumexp_columns, REAL *out, const REAL *x, SIZES) { STRIPS(NAMED(logsumexp_strip), out + place, x + start) }

INLINE void NAMED(log_softmax_backward_strip)(REAL *restrict out, const REAL *restrict grad, const REAL *restrict y,
                                 int64_t count, int64_t inner, int64_t width) {
    REAL totals[STRIP];
    TOTALS(totals, grad[at + i])
    EVERY(grad[at + i] - EXP_OF(y[at + i]) * totals[i])
}

KERNEL(log_softmax_backward_columns, REAL *out, const REAL *grad, const REAL *y, SIZES) {
    STRIPS(NAMED(log_softmax_backward_strip), out + start, grad + start, y + start)
}

/* The label's own power is left out of the sum, lest it absorb the others: the logarithm of 1 and more. */
INLINE void NAMED(cross_entropy_strip)(REAL *restrict out, const REAL *restrict x, const int64_t *restrict labels,
                                       int64_t count,
                                   int64_t inner, int64_t width) {
    REAL tops[STRIP], totals[STRIP], own[STRIP];
    int32_t names[STRIP];
    NAMED(tops_of_strip)(tops, x, count, inner, width);
    for (int64_t i = 0; i < width; i++) names[i] = (int32_t)labels[i], own[i] = x[labels[i] * inner + i] - tops[i];
    TOTALS(totals, names[i] == (int32_t)row ? 0 : EXP_OF(x[at + i] - tops[i]))
    WIDTH out[i] = LOG1P_OF(own[i] == 0 ? totals[i] : (totals[i] - 1) + EXP_OF(own[i])) - own[i];
}

KERNEL(label_cross_entropy_columns, REAL *out, const REAL *x, const int64_t *labels, SIZES) {
    STRIPS(NAMED(cross_entropy_strip), out + place, x + start, labels + place)
}

INLINE void NAMED(cross_entropy_backward_strip)(REAL *restrict out, const REAL *restrict grads, const REAL *restrict x,
                                   const int64_t *restrict labels, int64_t count, int64_t inner, int64_t width) {
    REAL tops[STRIP], totals[STRIP];
    NAMED(tops_of_strip)(tops, x, count, inner, width);
    EVERY(EXP_OF(x[at + i] - tops[i]))
    TOTALS(totals, out[at + i])
    WIDTH totals[i] = grads[i] / totals[i];
    EVERY(out[at + i] * totals[i])
    for (int64_t i = 0; i < width; i++) out[labels[i] * inner + i] -= grads[i];
}

KERNEL(label_cross_entropy_backward_columns, REAL *out, const REAL *grads, const REAL *x, const int64_t *labels,
       SIZES) {
    STRIPS(NAMED(cross_entropy_backward_strip), out + start, grads + place, x + start, labels + place)
}
