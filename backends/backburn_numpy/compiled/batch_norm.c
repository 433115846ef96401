/* Batch and group normalization: statistics over sets of contiguous planes, or given ones. */
#include "kernels.h"

/* Set q consists of planes of the given length, which start at q * step and are plane_step apart. Plane j is scaled by
 * element (q % scales) * scale_step + j * scale_plane of scale. */
typedef struct {
    int64_t step, planes, plane_step, length, scales, scale_step, scale_plane;
} Planes;

typedef struct {
    float mean, variance;
} Statistics;

/* The planes' sums are accumulated in double: there may be many. */
INLINE Statistics statistics_of(const float *restrict x, const Planes *p, int centred) {
    const double count = (double)(p->planes * p->length);
    double sum = 0.0, squares = 0.0;
    if (centred)
        for (int64_t j = 0; j < p->planes; j++) {
            const float *restrict plane = x + j * p->plane_step;
            float total = 0.0f;
            SUM_OF(total) for (int64_t i = 0; i < p->length; i++) total += plane[i];
            sum += total;
        }
    const float mean = (float)(sum / count);
    for (int64_t j = 0; j < p->planes; j++) {
        const float *restrict plane = x + j * p->plane_step;
        float total = 0.0f;
        SUM_OF(total) for (int64_t i = 0; i < p->length; i++) total += (plane[i] - mean) * (plane[i] - mean);
        squares += total;
    }
    return (Statistics){mean, (float)(squares / count)};
}

INLINE int64_t scale_at(const Planes *p, int64_t q, int64_t j) {
    return (q % p->scales) * p->scale_step + j * p->scale_plane;
}

/* Normalizes sets first to last - 1. means, variances, scale and bias may be null. */
KERNEL(normalize_planes, float *restrict out, float *restrict means, float *restrict variances,
       const float *restrict x, const float *restrict scale,
       const float *restrict bias, const Planes *p, float eps, int centred,
       int64_t first, int64_t last) {
    for (int64_t q = first; q < last; q++) {
        const Statistics of = statistics_of(x + q * p->step, p, centred);
        if (means) means[q] = of.mean, variances[q] = of.variance;
        const float factor = 1.0f / sqrtf(of.variance + eps);
        for (int64_t j = 0; j < p->planes; j++) {
            const int64_t at = q * p->step + j * p->plane_step, k = scale_at(p, q, j);
            const float times = scale ? factor * scale[k] : factor, plus = bias ? bias[k] : 0.0f;
            LOOP for (int64_t i = at; i < at + p->length; i++) out[i] = (x[i] - of.mean) * times + plus;
        }
    }
}

/* The gradient as in row_kernels.c; grad_scale[q * planes + j] is the sum of grad n over a plane. */
KERNEL(normalize_planes_backward, float *restrict out, float *restrict grad_scale,
       const float *restrict grad, const float *restrict x,
       const float *restrict scale, const Planes *p, float eps, int centred,
       int64_t first, int64_t last) {
    for (int64_t q = first; q < last; q++) {
        const Statistics of = statistics_of(x + q * p->step, p, centred);
        const float factor = 1.0f / sqrtf(of.variance + eps);
        double along = 0.0, total = 0.0;
        for (int64_t j = 0; j < p->planes; j++) {
            const int64_t at = q * p->step + j * p->plane_step;
            float product = 0.0f, sum = 0.0f;
            SUM_OF(product, sum) for (int64_t i = at; i < at + p->length; i++) {
                product += grad[i] * (x[i] - of.mean);
                sum += grad[i];
            }
            const double by = scale[scale_at(p, q, j)];
            grad_scale[q * p->planes + j] = product * factor;
            along += by * product * factor;
            total += by * sum;
        }
        const double count = (double)(p->planes * p->length);
        const float slope = (float)(along / count) * factor, shift = centred ? (float)(total / count) : 0.0f;
        for (int64_t j = 0; j < p->planes; j++) {
            const int64_t at = q * p->step + j * p->plane_step;
            const float by = scale[scale_at(p, q, j)];
            LOOP for (int64_t i = at; i < at + p->length; i++)
                out[i] = factor * ((grad[i] * by - (x[i] - of.mean) * slope) - shift);
        }
    }
}

/* Planes first to last - 1 by the statistics of their channels, each the next; with planes of one element, examples. */
KERNEL(normalize_by, float *restrict out, const float *restrict x, const float *restrict mean,
       const float *restrict factor, const float *restrict bias, int64_t channels, int64_t length,
       int64_t first, int64_t last) {
    if (length == 1) {
        for (int64_t at = first * channels; at < last * channels; at += channels)
            LOOP for (int64_t c = 0; c < channels; c++) out[at + c] = (x[at + c] - mean[c]) * factor[c] + bias[c];
        return;
    }
    for (int64_t q = first; q < last; q++) {
        const float centre = mean[q % channels], times = factor[q % channels], plus = bias[q % channels];
        LOOP for (int64_t i = q * length; i < (q + 1) * length; i++) out[i] = (x[i] - centre) * times + plus;
    }
}
