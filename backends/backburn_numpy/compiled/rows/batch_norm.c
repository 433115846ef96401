/* Batch and group normalization: statistics over sets of contiguous planes, or given ones. */
#include "runtime/kernels.h"
#include "runtime/simd.h"

/* Set q consists of planes of the given length, which start at q * set_stride and are plane_stride apart. Plane j is
 * scaled by element (q % scales) * scale_stride + j * scale_plane of scale. */
typedef struct {
    int64_t set_stride, planes, plane_stride, length, scales, scale_stride, scale_plane;
} Planes;

typedef struct {
    double mean, variance;
} Statistics;

/* Long sums of floats lose digits. So floats are summed over stretches of a plane, of 64 elements in each lane of a
 * vector, and the sums of stretches are added as doubles. */
enum { STRETCH = 64 * LANES };
#define STRETCHES(length)                                                                                              \
    for (int64_t start = 0, stop; stop = (length) - start < STRETCH ? (length) : start + STRETCH, start < (length);    \
         start = stop)

INLINE Statistics statistics_of(const float *restrict x, const Planes *p, int centred) {
    const double count = (double)(p->planes * p->length);
    double sum = 0.0, squares = 0.0, rest = 0.0;
    if (centred)
        for (int64_t j = 0; j < p->planes; j++) {
            const float *restrict plane = x + j * p->plane_stride;
            STRETCHES(p->length) sum += sum_of_floats(plane, start, stop);
        }
    /* The mean is corrected by the mean of x - mean, its rounding error. */
    const float mean = (float)(sum / count);
    for (int64_t j = 0; j < p->planes; j++) {
        const float *restrict plane = x + j * p->plane_stride;
        STRETCHES(p->length) {
            Lanes parts[2] = {0}, rests[2] = {0};
            BY_VECTORS(LANES, start, stop, const Lanes centre = AT(plane, mean) - mean;
                       parts[turn] += centre * centre; rests[turn] += centre;)
            squares += sum_of_lanes(parts[0] + parts[1]);
            rest += sum_of_lanes(rests[0] + rests[1]);
        }
    }
    rest = centred ? rest / count : 0.0;
    const double variance = squares / count - rest * rest;
    return (Statistics){mean + rest, variance < 0.0 ? 0.0 : variance};
}

INLINE int64_t scale_at(const Planes *p, int64_t q, int64_t j) {
    return (q % p->scales) * p->scale_stride + j * p->scale_plane;
}

/* Normalizes sets first to last - 1. means, variances, scale and bias may be null. */
KERNEL(normalize_planes, float *restrict out, float *restrict means, float *restrict variances,
       const float *restrict x, const float *restrict scale,
       const float *restrict bias, const Planes *p, float eps, int centred,
       int64_t first, int64_t last) {
    for (int64_t q = first; q < last; q++) {
        const Statistics of = statistics_of(x + q * p->set_stride, p, centred);
        if (means) means[q] = (float)of.mean, variances[q] = (float)of.variance;
        const double factor = 1.0 / sqrt(of.variance + eps);
        const float mean = (float)of.mean, rest = (float)(of.mean - mean);
        for (int64_t j = 0; j < p->planes; j++) {
            const int64_t at = q * p->set_stride + j * p->plane_stride, k = scale_at(p, q, j);
            const float times = (float)(scale ? factor * scale[k] : factor), plus = bias ? bias[k] : 0.0f;
            LOOP for (int64_t i = at; i < at + p->length; i++) out[i] = ((x[i] - mean) - rest) * times + plus;
        }
    }
}

/* The gradient as in row_kernels.c; grad_scale[q * planes + j] is the sum of grad n over a plane. */
KERNEL(normalize_planes_backward, float *restrict out, float *restrict grad_scale,
       const float *restrict grad, const float *restrict x,
       const float *restrict scale, const Planes *p, float eps, int centred,
       int64_t first, int64_t last) {
    for (int64_t q = first; q < last; q++) {
        const Statistics of = statistics_of(x + q * p->set_stride, p, centred);
        const double factor = 1.0 / sqrt(of.variance + eps);
        const float mean = (float)of.mean, rest = (float)(of.mean - mean);
        double along = 0.0, total = 0.0;
        for (int64_t j = 0; j < p->planes; j++) {
            const int64_t at = q * p->set_stride + j * p->plane_stride;
            const float *restrict g = grad + at, *restrict plane = x + at;
            Wide products[2] = {0}, sums[2] = {0};
            BY_VECTORS(LANES / 2, 0, p->length, const Wide slope = WIDENED_AT(g, 0.0f); sums[turn] += slope;
                       products[turn] += slope * (WIDENED_AT(plane, mean) - mean);)
            const double sum = sum_of_wide(sums[0] + sums[1]);
            const double product = sum_of_wide(products[0] + products[1]) - rest * sum;
            const double by = scale[scale_at(p, q, j)];
            grad_scale[q * p->planes + j] = (float)(product * factor);
            along += by * product;
            total += by * sum;
        }
        const double count = (double)(p->planes * p->length);
        const float slope = (float)(along / count * factor * factor), shift = centred ? (float)(total / count) : 0.0f;
        const float times = (float)factor;
        for (int64_t j = 0; j < p->planes; j++) {
            const int64_t at = q * p->set_stride + j * p->plane_stride;
            const float by = scale[scale_at(p, q, j)];
            LOOP for (int64_t i = at; i < at + p->length; i++)
                out[i] = times * ((grad[i] * by - ((x[i] - mean) - rest) * slope) - shift);
        }
    }
}

/* ---- over the rows of matrices (rows, width), for the columns first to last - 1; all sums are of doubles ---- */

enum { WIDE = 256 }; /* columns at a time, whose sums stay in the cache */
#define STRIPS for (int64_t from = first; from < last; from += WIDE)
#define STRIP (last - from < WIDE ? last - from : WIDE)
#define EVERY(statement)                                                                                               \
    for (int64_t row = 0, at = from; row < rows; row++, at += width)                                                   \
        LOOP for (int64_t i = 0; i < count; i++) { statement; }

/* The means and the variances of count columns, starting at from. */
INLINE void column_statistics(double *restrict mean, double *restrict variance, const float *restrict x, int centred,
                              int64_t rows, int64_t width, int64_t from, int64_t count) {
    memset(mean, 0, (size_t)count * sizeof *mean);
    memset(variance, 0, (size_t)count * sizeof *variance);
    if (centred) EVERY(mean[i] += x[at + i])
    LOOP for (int64_t i = 0; i < count; i++) mean[i] /= (double)rows;
    EVERY(variance[i] += (x[at + i] - mean[i]) * (x[at + i] - mean[i]))
    LOOP for (int64_t i = 0; i < count; i++) variance[i] /= (double)rows;
}

/* means, variances, scale and bias may be null. */
KERNEL(normalize_columns, float *restrict out, float *restrict means, float *restrict variances,
       const float *restrict x, const float *restrict scale, const float *restrict bias, float eps, int centred,
       int64_t rows, int64_t width, int64_t first, int64_t last) {
    STRIPS {
        const int64_t count = STRIP;
        double mean[WIDE], variance[WIDE], times[WIDE], plus[WIDE];
        column_statistics(mean, variance, x, centred, rows, width, from, count);
        for (int64_t i = 0; means && i < count; i++)
            means[from + i] = (float)mean[i], variances[from + i] = (float)variance[i];
        LOOP for (int64_t i = 0; i < count; i++) {
            times[i] = (scale ? scale[from + i] : 1.0) / sqrt(variance[i] + eps);
            plus[i] = bias ? bias[from + i] : 0.0;
        }
        EVERY(out[at + i] = (float)((x[at + i] - mean[i]) * times[i] + plus[i]))
    }
}

KERNEL(normalize_columns_backward, float *restrict out, float *restrict grad_scale, const float *restrict grad,
       const float *restrict x, const float *restrict scale, float eps, int centred, int64_t rows, int64_t width,
       int64_t first, int64_t last) {
    STRIPS {
        const int64_t count = STRIP;
        double mean[WIDE], variance[WIDE], total[WIDE] = {0}, along[WIDE] = {0}, times[WIDE];
        column_statistics(mean, variance, x, centred, rows, width, from, count);
        EVERY(total[i] += grad[at + i]; along[i] += grad[at + i] * (x[at + i] - mean[i]))
        LOOP for (int64_t i = 0; i < count; i++) {
            const double factor = 1.0 / sqrt(variance[i] + eps);
            grad_scale[from + i] = (float)(along[i] * factor);
            times[i] = factor * scale[from + i];
            along[i] *= factor * factor / (double)rows;
            total[i] = centred ? total[i] / (double)rows : 0.0;
        }
        EVERY(out[at + i] = (float)(times[i] * ((grad[at + i] - (x[at + i] - mean[i]) * along[i]) - total[i])))
    }
}

/* Normalizes planes first to last - 1 by the statistics of their channels, which alternate; with planes of one element,
 * examples first to last - 1. */
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
