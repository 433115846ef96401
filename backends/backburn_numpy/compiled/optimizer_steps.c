/* Optimizer steps. */
#include "kernels.h"

#if defined(__SSE__)
#include <xmmintrin.h>
/* Non-temporal stores, for results larger than the caches: lines are not read before they are overwritten. */
INLINE void write_past_caches(float *restrict out, const float *restrict x, int64_t count) {
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) _mm_stream_ps(out + i, _mm_loadu_ps(x + i));
    for (; i < count; i++) out[i] = x[i];
}
#else
INLINE void write_past_caches(float *restrict out, const float *restrict x, int64_t count) {
    memcpy(out, x, (size_t)count * sizeof *out);
}
#endif

/* out = param - lr grad */
KERNEL(plain_step, float *restrict out, const float *restrict param, const float *restrict grad, float lr,
       int64_t count) {
    enum { BLOCK = 1024, LARGE = 1 << 20 };
    float block[BLOCK];
    const int past = count >= LARGE && (uintptr_t)out % 16 == 0;
    for (int64_t start = 0; start < count; start += BLOCK) {
        const int64_t size = count - start < BLOCK ? count - start : BLOCK;
        float *restrict to = past ? block : out + start;
        const float *restrict p = param + start, *restrict g = grad + start;
        LOOP for (int64_t i = 0; i < size; i++) to[i] = p[i] - lr * g[i];
        if (past) write_past_caches(out + start, block, size);
    }
}

/* One step with momentum; velocity may be updated in place. */
KERNEL(momentum_step, float *restrict out, float *new_velocity, const float *restrict param,
       const float *restrict grad, const float *velocity, float lr, float momentum,
       float weight_decay, int nesterov, int64_t count) {
    LOOP for (int64_t i = 0; i < count; i++) {
        const float slope = weight_decay != 0.0f ? grad[i] + weight_decay * param[i] : grad[i];
        const float moving = momentum * velocity[i] + slope;
        new_velocity[i] = moving;
        out[i] = param[i] - lr * (nesterov ? momentum * moving + slope : moving);
    }
}

/* One step of Adam. rate and floor are its step size and epsilon after bias correction, rest1 and rest2 are 1 - beta1
 * and 1 - beta2 before rounding, decay is the weight decay added to the gradient, shrink the parameter's factor for
 * decoupled decay. The moments may be updated in place. */
KERNEL(adam_step, float *restrict out, float *new_m, float *new_v, const float *restrict param,
       const float *restrict grad, const float *m, const float *v, float rate, float floor,
       float beta1, float rest1, float beta2, float rest2, float decay, float shrink,
       int64_t count) {
    LOOP for (int64_t i = 0; i < count; i++) {
        const float g = decay != 0.0f ? grad[i] + decay * param[i] : grad[i];
        const float first = beta1 * m[i] + rest1 * g, second = beta2 * v[i] + rest2 * (g * g);
        new_m[i] = first;
        new_v[i] = second;
        out[i] = param[i] * shrink - rate * (first / (sqrtf(second) + floor));
    }
}

/* One step of Adam for several tensors: each row of the table has the addresses of the arrays, in the order above, and the
 * number of elements. */
KERNEL(adam_steps, const int64_t *restrict table, int64_t tensors, float rate, float floor, float beta1, float rest1,
       float beta2, float rest2, float decay, float shrink) {
    for (const int64_t *row = table; row < table + 8 * tensors; row += 8)
        NAMED(adam_step)((float *)row[0], (float *)row[1], (float *)row[2], (const float *)row[3],
                         (const float *)row[4], (const float *)row[5], (const float *)row[6], rate, floor, beta1,
                         rest1, beta2, rest2, decay, shrink, row[7]);
}
