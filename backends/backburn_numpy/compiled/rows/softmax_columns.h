/* Softmax and cross-entropy over the columns of matrices (count, inner), one matrix after the other: of the columns
 * first to last - 1, STRIP of them at a time. Of the type REAL; included once for each type. */

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
    REAL totals[STRIP], winners[STRIP], differences[STRIP], wins[STRIP];
    TOTALS(totals, grad[at + i] * y[at + i])
    {
        TOTALS(wins, y[at + i])
    }
    WIDTH wins[i] = COMPLETE(wins[i]) ? (REAL)0.5 : INFINITY;
    /* A share above 1/2 gets the sum of its differences to the others', as in rows. */
    WIDTH winners[i] = 0;
    for (int64_t row = 0, at = 0; row < count; row++, at += inner) {
        WIDTH winners[i] = y[at + i] > wins[i] ? grad[at + i] : winners[i];
    }
    {
        TOTALS(differences, y[at + i] > wins[i] ? 0 : (winners[i] - grad[at + i]) * y[at + i])
    }
    EVERY((y[at + i] > wins[i] ? differences[i] : grad[at + i] - totals[i]) * y[at + i])
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
    REAL totals[STRIP], winners[STRIP], shares[STRIP], others[STRIP], wins[STRIP];
    TOTALS(wins, EXP_OF(y[at + i]))
    WIDTH wins[i] = COMPLETE(wins[i]) ? (REAL)-0.6931 : INFINITY;
    WIDTH winners[i] = 0;
    for (int64_t row = 0, at = 0; row < count; row++, at += inner) {
        WIDTH winners[i] = y[at + i] > wins[i] ? grad[at + i] : winners[i];
    }
    {
        TOTALS(others, y[at + i] > wins[i] ? 0 : grad[at + i])
    }
    {
        TOTALS(shares, y[at + i] > wins[i] ? 0 : EXP_OF(y[at + i]))
    }
    WIDTH totals[i] = others[i] + winners[i];
    EVERY(y[at + i] > wins[i] ? grad[at + i] * shares[i] - EXP_OF(y[at + i]) * others[i]
                              : grad[at + i] - EXP_OF(y[at + i]) * totals[i])
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
    REAL tops[STRIP], others[STRIP], own[STRIP];
    NAMED(tops_of_strip)(tops, x, count, inner, width);
    EVERY(EXP_OF(x[at + i] - tops[i]))
    for (int64_t i = 0; i < width; i++) own[i] = out[labels[i] * inner + i], out[labels[i] * inner + i] = 0;
    TOTALS(others, out[at + i])
    WIDTH own[i] = grads[i] / (others[i] + own[i]);
    EVERY(out[at + i] * own[i])
    for (int64_t i = 0; i < width; i++) out[labels[i] * inner + i] = -own[i] * others[i];
}

KERNEL(label_cross_entropy_backward_columns, REAL *out, const REAL *grads, const REAL *x, const int64_t *labels,
       SIZES) {
    STRIPS(NAMED(cross_entropy_backward_strip), out + start, grads + place, x + start, labels + place)
}
