/* Sums over the alignments of labels with steps, as logarithms: the recurrences over the steps. */
#include "runtime/kernels.h"

#define IMPOSSIBLE -1e30f

/* The logarithm of the sum of three exponentials. */
INLINE float log_of_three(float a, float b, float c) {
    float top = a > b ? a : b;
    top = top > c ? top : c;
    const float sum = exp_of(a - top) + exp_of(b - top) + exp_of(c - top); /* 1 to 3 */
    const int above = sum > 2.0f;
    const float rest = log_of_one_plus((above ? 0.5f * sum : sum) - 1.0f);
    return top + (above ? rest + 0.693147181f : rest);
}

/* For examples first to last - 1: the sum over all ways to each place, after each step. skips is 0 where a label may
 * follow the one two places before, else IMPOSSIBLE. memory holds two rows with two places more. */
KERNEL(align, float *restrict found, const float *restrict emitted, const float *restrict skips,
       const int64_t *restrict lengths, float *restrict memory, int64_t steps, int64_t examples, int64_t places,
       int64_t first, int64_t last) {
    float *restrict now = memory + 2; /* nothing comes from before the first place */
    for (int64_t n = first; n < last; n++) {
        for (int64_t i = -2; i < places; i++) now[i] = i ? IMPOSSIBLE : 0.0f;
        for (int64_t t = 0; t < steps; t++) {
            float *restrict next = found + (t * examples + n) * places;
            const float *restrict own = emitted + (t * examples + n) * places, *skip = skips + n * places;
            if (t < lengths[n])
                LOOP for (int64_t i = 0; i < places; i++)
                    next[i] = log_of_three(now[i], now[i - 1], now[i - 2] + skip[i]) + own[i];
            else
                memcpy(next, now, (size_t)places * sizeof *now);
            memcpy(now, next, (size_t)places * sizeof *now);
        }
    }
}

/* The sum over all ways from each place, after each step, to the end, where the logarithms are those of ends. */
KERNEL(align_backward, float *restrict found, const float *restrict emitted, const float *restrict skips,
       const float *restrict ends, const int64_t *restrict lengths, float *restrict memory, int64_t steps,
       int64_t examples, int64_t places, int64_t first, int64_t last) {
    float *restrict ahead = memory, *restrict jumped = memory + places + 2;
    for (int64_t n = first; n < last; n++) {
        for (int64_t i = places; i < places + 2; i++) ahead[i] = jumped[i] = IMPOSSIBLE;
        const float *restrict end = ends + n * places, *restrict skip = skips + n * places;
        for (int64_t t = steps - 1; t >= 0; t--) {
            float *restrict now = found + (t * examples + n) * places;
            if (t == steps - 1 || t + 1 >= lengths[n]) {
                memcpy(now, end, (size_t)places * sizeof *now);
                continue;
            }
            const float *restrict after = now + examples * places;
            const float *restrict own = emitted + ((t + 1) * examples + n) * places;
            LOOP for (int64_t i = 0; i < places; i++) ahead[i] = after[i] + own[i];
            LOOP for (int64_t i = 0; i < places; i++) jumped[i] = ahead[i] + skip[i];
            LOOP for (int64_t i = 0; i < places; i++) now[i] = log_of_three(ahead[i], ahead[i + 1], jumped[i + 2]);
        }
    }
}
