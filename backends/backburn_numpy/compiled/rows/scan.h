/* Linear recurrences, of the type REAL. Included once for each type. */

/* Along a row, whose elements are stride apart, those of b b_stride. */
SHARED void NAMED(scan_row)(REAL *restrict out, const REAL *restrict a, const REAL *restrict b,
                            const REAL *restrict x, const REAL *restrict h0, int64_t stride, int64_t b_stride,
                            int64_t steps) {
    REAL state = h0 ? FUSED(*a, *h0, *b * *x) : *b * *x;
    *out = state;
    while (--steps > 0) {
        out += stride, a += stride, b += b_stride, x += stride;
        *out = state = FUSED(*a, state, *b * *x);
    }
}

/* h[t] = a[t] h[t - 1] + b[t] x[t], starting from h0 (0 if null), for columns first to last - 1 of inner. Arrays are
 * (outer, steps, inner), h0 is (outer, inner), and a shared b is (inner). backwards reverses time. */
KERNEL(scan, REAL *restrict out, const REAL *restrict a, const REAL *restrict b,
       const REAL *restrict x, const REAL *restrict h0, int backwards, int shared, int64_t outer,
       int64_t steps, int64_t inner, int64_t first, int64_t last) {
    for (int64_t o = 0; o < outer; o++) {
        const REAL *before = h0 ? h0 + o * inner : 0;
        if (inner == 1) {
            const int64_t at = o * steps + (backwards ? steps - 1 : 0), stride = backwards ? -1 : 1;
            NAMED(scan_row)(out + at, a + at, shared ? b : b + at, x + at, before, stride, shared ? 0 : stride, steps);
            continue;
        }
        for (int64_t step = 0; step < steps; step++) {
            const int64_t at = (o * steps + (backwards ? steps - 1 - step : step)) * inner;
            const REAL *restrict factors = shared ? b : b + at;
            if (before) {
                LOOP for (int64_t i = first; i < last; i++)
                    out[at + i] = FUSED(a[at + i], before[i], factors[i] * x[at + i]);
            } else {
                LOOP for (int64_t i = first; i < last; i++) out[at + i] = factors[i] * x[at + i];
            }
            before = out + at;
        }
    }
}

/* Its gradients. s[t] = grad[t] + a[t + 1] s[t + 1] is the total gradient of h[t]; s ends as that of h0. */
KERNEL(scan_backward, REAL *restrict grad_a, REAL *restrict grad_b, REAL *restrict grad_x,
       const REAL *restrict grad, const REAL *restrict a, const REAL *restrict b,
       const REAL *restrict x, const REAL *restrict out, REAL *restrict s,
       const REAL *restrict h0, int backwards, int64_t outer, int64_t steps,
       int64_t inner, int64_t first, int64_t last) {
    for (int64_t o = 0; o < outer; o++) {
        REAL *restrict sum = s + o * inner;
        for (int64_t i = first; i < last; i++) sum[i] = 0;
        for (int64_t step = steps - 1; step >= 0; step--) {
            const int64_t at = (o * steps + (backwards ? steps - 1 - step : step)) * inner;
            const REAL *restrict before = step ? out + at + (backwards ? inner : -inner) : h0 ? h0 + o * inner : 0;
            /* sum goes from a[t + 1] s[t + 1] to a[t] s[t], which is h0's gradient at the first step. */
            LOOP for (int64_t i = first; i < last; i++) {
                const REAL reached = grad[at + i] + sum[i];
                grad_b[at + i] = reached * x[at + i];
                grad_x[at + i] = reached * b[at + i];
                grad_a[at + i] = before ? reached * before[i] : 0;
                sum[i] = reached * a[at + i];
            }
        }
    }
}
