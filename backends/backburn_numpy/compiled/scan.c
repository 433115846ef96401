/* Linear recurrences, and scatter-add of rows. */
#include "kernels.h"

/* h[t] = a[t] h[t - 1] + b[t] x[t], starting from h0 (0 if null), for columns first to last - 1 of inner. Arrays are
 * (outer, steps, inner), h0 is (outer, inner). backwards reverses time. */
KERNEL(scan, float *restrict out, const float *restrict a, const float *restrict b,
       const float *restrict x, const float *restrict h0, int backwards, int64_t outer,
       int64_t steps, int64_t inner, int64_t first, int64_t last) {
    for (int64_t o = 0; o < outer; o++) {
        const float *before = h0 ? h0 + o * inner : 0;
        for (int64_t step = 0; step < steps; step++) {
            const int64_t at = (o * steps + (backwards ? steps - 1 - step : step)) * inner;
            if (before) {
                LOOP for (int64_t i = first; i < last; i++) out[at + i] = FUSED(a[at + i], before[i], b[at + i] * x[at + i]);
            } else {
                LOOP for (int64_t i = first; i < last; i++) out[at + i] = b[at + i] * x[at + i];
            }
            before = out + at;
        }
    }
}

/* Its gradients. s[t] = grad[t] + a[t + 1] s[t + 1] is the total gradient of h[t]; s ends as that of h0. */
KERNEL(scan_backward, float *restrict grad_a, float *restrict grad_b, float *restrict grad_x,
       const float *restrict grad, const float *restrict a, const float *restrict b,
       const float *restrict x, const float *restrict out, float *restrict s,
       const float *restrict h0, int backwards, int64_t outer, int64_t steps,
       int64_t inner, int64_t first, int64_t last) {
    for (int64_t o = 0; o < outer; o++) {
        float *restrict sum = s + o * inner;
        for (int64_t i = first; i < last; i++) sum[i] = 0.0f;
        for (int64_t step = steps - 1; step >= 0; step--) {
            const int64_t at = (o * steps + (backwards ? steps - 1 - step : step)) * inner;
            const float *restrict before = step ? out + at + (backwards ? inner : -inner) : h0 ? h0 + o * inner : 0;
            /* sum goes from a[t + 1] s[t + 1] to a[t] s[t], which is h0's gradient at the first step. */
            LOOP for (int64_t i = first; i < last; i++) {
                const float reached = grad[at + i] + sum[i];
                grad_b[at + i] = reached * x[at + i];
                grad_x[at + i] = reached * b[at + i];
                grad_a[at + i] = before ? reached * before[i] : 0.0f;
                sum[i] = reached * a[at + i];
            }
        }
    }
}

/* Adds the rows of values (count, width) to out at indices, all in range, in columns first to last - 1. */
#define ADD_ROWS(name, type)                                                                                           \
    KERNEL(name, type *restrict out, const int64_t *restrict indices, const type *restrict values,                     \
           int64_t count, int64_t width, int64_t first, int64_t last) {                                                \
        for (int64_t r = 0; r < count; r++) {                                                                          \
            type *restrict row = out + indices[r] * width;                                                             \
            const type *restrict added = values + r * width;                                                           \
            LOOP for (int64_t i = first; i < last; i++) row[i] += added[i];                                            \
        }                                                                                                              \
    }
ADD_ROWS(add_rows, float)
ADD_ROWS(add_rows_double, double)
