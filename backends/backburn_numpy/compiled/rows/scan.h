/* Linear recurrences, of the type REAL. Included once for each type. */

/* h[t] = a[t] h[t - 1] + b[t] x[t], starting from h0 (0 if null), for columns first to last - 1 of inner. Arrays are
 * (outer, steps, inner), h0 is (outer, inner). backwards reverses time. */
KERNEL(scan, REAL *restrict out, const REAL *restrict a, const REAL *restrict b,
       const REAL *restrict x, const REAL *restrict h0, int backwards, int64_t outer,
       int64_t steps, int64_t inner, int64_t first, int64_t last) {
    for (int64_t o = 0; o < outer; o++) {
        const REAL *before = h0 ? h0 + o * inner : 0;
        for (int64_t step = 0; step < steps; step++) {
            const int64_t at = (o * steps + (backwards ? steps - 1 - step : step)) * inner;
            if (before) {
                LOOP for (int64_t i = first; i < last; i++)
                    out[at + i] = FUSED(a[at + i], before[i], b[at + i] * x[at + i]);
            } else {
                LOOP for (int64_t i = first; i < last; i++) out[at + i] = b[at + i] * x[at + i];
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
