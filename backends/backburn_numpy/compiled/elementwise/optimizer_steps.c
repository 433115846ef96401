/* Optimizer steps. */
#include "runtime/kernels.h"
#include "runtime/thread_pool.h"

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

/* out = param - lr grad; out may be param. */
KERNEL(plain_step, float *out, const float *param, const float *restrict grad, float lr, int64_t count) {
    enum { BLOCK = 1024, LARGE = 1 << 20 };
    float block[BLOCK];
    const int past = count >= LARGE && (uintptr_t)out % 16 == 0 && out != param;
    for (int64_t start = 0; start < count; start += BLOCK) {
        const int64_t size = count - start < BLOCK ? count - start : BLOCK;
        float *to = past ? block : out + start;
        const float *p = param + start, *restrict g = grad + start;
        LOOP for (int64_t i = 0; i < size; i++) to[i] = p[i] - lr * g[i];
        if (past) write_past_caches(out + start, block, size);
    }
}

/* One step with momentum; param and velocity may be updated in place. */
KERNEL(momentum_step, float *out, float *new_velocity, const float *param,
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
 * decoupled decay. All but the gradient may be updated in place. */
KERNEL(adam_step, float *out, float *new_m, float *new_v, const float *param,
       const float *restrict grad, const float *m, const float *v, float rate, float floor,
       float beta1, float rest1, float beta2, float rest2, float decay, float shrink,
       int64_t count) {
    LOOP for (int64_t i = 0; i < count; i++) {
        const float g = decay != 0.0f ? grad[i] + decay * param[i] : grad[i];
        const float first = FUSED(beta1, m[i], rest1 * g), second = FUSED(beta2, v[i], rest2 * (g * g));
        new_m[i] = first;
        new_v[i] = second;
        out[i] = FUSED(param[i], shrink, -rate * (first / (sqrtf(second) + floor)));
    }
}

/* One step of Adam for several tensors. Each row of the table has the addresses of the arrays, in the order above, and
 * the number of elements. */
KERNEL(adam_steps, const int64_t *restrict table, int64_t tensors, float rate, float floor, float beta1, float rest1,
       float beta2, float rest2, float decay, float shrink) {
    for (const int64_t *row = table; row < table + 8 * tensors; row += 8)
        NAMED(adam_step)((float *)row[0], (float *)row[1], (float *)row[2], (const float *)row[3],
                         (const float *)row[4], (const float *)row[5], (const float *)row[6], rate, floor, beta1,
                         rest1, beta2, rest2, decay, shrink, row[7]);
}

/* ---- steps in the memory of the state ---- */

/* The kinds of steps; arrays are in the order of the kernel's, without sizes and options. */
enum { ADAM, MOMENTUM, PLAIN, ROWS, FORMULA };

/* One step. Its options are floats, which formulas do not use; elements is the size of its arrays, or of one of the
 * rows of ROWS. */
typedef struct {
    int64_t kind, elements, rows;
    const float *options;
    float *arrays[7];
} Step;

typedef struct {
    const Step *steps;
    int64_t count;
} Steps;

/* Element-wise steps one after another, as if they were one array; other steps are skipped. */
static void elements_of_steps(const void *context, int64_t first, int64_t last) {
    const Steps *all = context;
    int64_t start = 0;
    for (const Step *s = all->steps; s < all->steps + all->count && start < last; s++) {
        if (s->kind > PLAIN) continue;
        const int64_t from = first > start ? first - start : 0, end = last - start;
        const int64_t size = (end < s->elements ? end : s->elements) - from;
        start += s->elements;
        if (size <= 0) continue;
        const float *o = s->options;
        float *a[7];
        for (int i = 0; i < 7; i++) a[i] = s->arrays[i] ? s->arrays[i] + from : 0;
        if (s->kind == ADAM)
            NAMED(adam_step)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], o[0], o[1], o[2], o[3], o[4], o[5], o[6], o[7],
                             size);
        else if (s->kind == MOMENTUM)
            NAMED(momentum_step)(a[0], a[1], a[2], a[3], a[4], o[0], o[1], o[2], o[3] != 0.0f, size);
        else
            NAMED(plain_step)(a[0], a[1], a[2], o[0], size);
    }
}

/* Subtracts from rows of a table the rate times the sum of the values with their index. Arrays: table (in place),
 * values, indices, heads, next. */
static void rows_of_table(const void *context, int64_t first, int64_t last) {
    enum { WIDTH = 512 };
    const Step *s = context;
    const int64_t width = s->elements;
    const int64_t *indices = (const int64_t *)s->arrays[2];
    const int32_t *heads = (const int32_t *)s->arrays[3], *next = (const int32_t *)s->arrays[4];
    const float rate = s->options[0];
    float sum[WIDTH];
    for (int64_t r = first; r < last; r++) {
        if (heads[indices[r]] != r) continue;
        for (int64_t start = 0; start < width; start += WIDTH) {
            const int64_t size = width - start < WIDTH ? width - start : WIDTH;
            for (int64_t i = 0; i < size; i++) sum[i] = 0.0f;
            for (int64_t k = r; k >= 0; k = next[k]) {
                const float *value = s->arrays[1] + k * width + start;
                LOOP for (int64_t i = 0; i < size; i++) sum[i] += value[i];
            }
            float *row = s->arrays[0] + indices[r] * width + start;
            LOOP for (int64_t i = 0; i < size; i++) row[i] = row[i] - rate * sum[i];
        }
    }
}

/* Chains the places of each index: heads has the first, next the one after each, -1 after the last. Only heads of
 * indices that occur are written. */
KERNEL(chain_places, int32_t *restrict heads, int32_t *restrict next, const int64_t *restrict indices, int64_t count) {
    for (int64_t i = 0; i < count; i++) heads[indices[i]] = -1;
    for (int64_t i = count - 1; i >= 0; i--) {
        next[i] = heads[indices[i]];
        heads[indices[i]] = (int32_t)i;
    }
}

void NAMED(run_formula)(const int64_t *, const int64_t *, int64_t, int64_t, int);

/* Runs all steps, and then sets done to 1. */
KERNEL(renew, const void *steps, int64_t count, int64_t *done, int64_t grain, int64_t shared, int threads) {
    const Steps all = {steps, count};
    int64_t elements = 0;
    for (const Step *s = all.steps; s < all.steps + count; s++) {
        const int64_t size = s->rows * s->elements;
        if (s->kind <= PLAIN)
            elements += s->elements;
        else if (s->kind == ROWS)
            backburn_pool_run(rows_of_table, s, s->rows, grain / s->elements + 1, size < shared ? 1 : threads);
        else
            NAMED(run_formula)((const int64_t *)s->arrays[0], (const int64_t *)s->arrays[1], s->elements, grain,
                               s->elements < shared ? 1 : threads);
    }
    if (elements) backburn_pool_run(elements_of_steps, &all, elements, grain, elements < shared ? 1 : threads);
    *done = 1;
}
