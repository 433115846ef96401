/* Softmax, cross-entropy, normalizations and attention weights over rows. */
#define UNROLLED
#include "kernels.h"
#include "softmax_short_rows.h"

EXTREME(float, largest_and_nans, >, -INFINITY, max)
INLINE float largest(const float *restrict x, int64_t width) {
    int unordered;
    return largest_and_nans(x, width, &unordered);
}

INLINE float sum_of(const float *restrict x, int64_t width) {
    float total = 0.0f;
    SUM_OF(total) for (int64_t i = 0; i < width; i++) total += x[i];
    return total;
}

INLINE float product_of(const float *restrict x, const float *restrict y, int64_t width) {
    float total = 0.0f;
    SUM_OF(total) for (int64_t i = 0; i < width; i++) total += x[i] * y[i];
    return total;
}

/* Sums of floats lose digits with their length. So those of powers go over stretches of a row, whose sums are added as
 * doubles. */
enum { STRETCH = 4096 };
#define STRETCHES                                                                                              \
    for (int64_t start = 0, stop; stop = width - start < STRETCH ? width : start + STRETCH, start < width; start = stop)

/* Fills out with exp(x - top) and returns the sum. */
INLINE float powers(float *restrict out, const float *restrict x, float top, int64_t width) {
    double total = 0.0;
    STRETCHES {
        float part = 0.0f;
        SUM_OF(part) for (int64_t i = start; i < stop; i++) {
            const float power = exp_of(x[i] - top);
            out[i] = power;
            part += power;
        }
        total += part;
    }
    return (float)total;
}

INLINE float sum_of_powers(const float *restrict x, float top, int64_t width) {
    double total = 0.0;
    STRETCHES {
        float part = 0.0f;
        SUM_OF(part) for (int64_t i = start; i < stop; i++) part += exp_of(x[i] - top);
        total += part;
    }
    return (float)total;
}

KERNEL(softmax, float *restrict out, const float *restrict x, int64_t rows, int64_t width) {
    if (width < SHORT) return backburn_softmax_short_rows(out, x, rows, width);
    for (int64_t r = 0; r < rows; r++, x += width, out += width) {
        const float factor = 1.0f / powers(out, x, largest(x, width), width);
        LOOP for (int64_t i = 0; i < width; i++) out[i] *= factor;
    }
}

KERNEL(softmax_backward, float *restrict out, const float *restrict grad, const float *restrict y,
       int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, grad += width, y += width, out += width) {
        const float product = product_of(grad, y, width);
        LOOP for (int64_t i = 0; i < width; i++) out[i] = (grad[i] - product) * y[i];
    }
}

KERNEL(log_softmax, float *restrict out, const float *restrict x, int64_t rows, int64_t width) {
    if (width < SHORT) return backburn_log_softmax_short_rows(out, x, rows, width);
    for (int64_t r = 0; r < rows; r++, x += width, out += width) {
        const float top = largest(x, width), logarithm = logf(sum_of_powers(x, top, width));
        LOOP for (int64_t i = 0; i < width; i++) out[i] = (x[i] - top) - logarithm;
    }
}

KERNEL(log_softmax_backward, float *restrict out, const float *restrict grad, const float *restrict y,
       int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, grad += width, y += width, out += width) {
        const float total = sum_of(grad, width);
        LOOP for (int64_t i = 0; i < width; i++) out[i] = grad[i] - exp_of(y[i]) * total;
    }
}

/* -log softmax(x)[label] of each row; labels are in range. */
KERNEL(label_cross_entropy, const float *restrict x, float *restrict out, const int64_t *restrict labels,
       int64_t rows, int64_t width) {
    if (width < SHORT) return backburn_cross_entropy_short_rows(x, out, labels, rows, width);
    for (int64_t r = 0; r < rows; r++, x += width) {
        const float top = largest(x, width);
        double others = 0.0;
        STRETCHES {
            float part = 0.0f;
            SUM_OF(part) for (int64_t i = start; i < stop; i++) {
                const float power = exp_of(x[i] - top);
                part += i == labels[r] ? 0.0f : power;
            }
            others += part;
        }
        out[r] = loss_of(x[labels[r]], top, (float)others);
    }
}

KERNEL(label_cross_entropy_backward, float *restrict out, const float *restrict grads,
       const float *restrict x, const int64_t *restrict labels,
       int64_t rows, int64_t width) {
    if (width < SHORT) return backburn_cross_entropy_short_rows_backward(out, grads, x, labels, rows, width);
    for (int64_t r = 0; r < rows; r++, x += width, out += width) {
        const float factor = grads[r] / powers(out, x, largest(x, width), width);
        LOOP for (int64_t i = 0; i < width; i++) out[i] *= factor;
        out[labels[r]] -= grads[r];
    }
}

/* ---- layer norm (centred) and RMS norm ---- */

typedef struct {
    float mean, factor;
} Moments;

/* The mean is corrected by the mean of x - mean, its rounding error, which would show in rows of equal elements or far
 * from 0. */
INLINE Moments moments_of(const float *restrict x, int64_t width, float eps, int centred) {
    const float mean = centred ? sum_of(x, width) / (float)width : 0.0f;
    float squares = 0.0f, rest = 0.0f;
    SUM_OF(squares, rest) for (int64_t i = 0; i < width; i++) {
        const float centre = x[i] - mean;
        squares += centre * centre;
        rest += centre;
    }
    return (Moments){centred ? mean + rest / (float)width : 0.0f, 1.0f / sqrtf(squares / (float)width + eps)};
}

/* scale and bias are rows, or null. */
KERNEL(standardize, float *restrict out, const float *restrict x, const float *restrict scale,
       const float *restrict bias, float eps, int centred, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width, out += width) {
        const Moments of = moments_of(x, width, eps, centred);
        LOOP for (int64_t i = 0; i < width; i++) out[i] = (x[i] - of.mean) * of.factor;
        if (scale) {
            LOOP for (int64_t i = 0; i < width; i++) out[i] *= scale[i];
        }
        if (bias) {
            LOOP for (int64_t i = 0; i < width; i++) out[i] += bias[i];
        }
    }
}

/* With n = (x - mean) factor: out = factor (grad scale - n mean(grad scale n) - mean(grad scale)), the last term if
 * centred. Adds the sum of grad n over rows to grad_scale; part is scratch for partial sums. */
KERNEL(standardize_backward, float *restrict out, float *restrict grad_scale, float *restrict part,
       const float *restrict grad, const float *restrict x,
       const float *restrict scale, float eps, int centred, int64_t rows,
       int64_t width) {
    for (int64_t start = 0; start < rows; start += 64) {
        const int64_t stop = start + 64 < rows ? start + 64 : rows;
        memset(part, 0, (size_t)width * sizeof *part);
        for (int64_t r = start; r < stop; r++, grad += width, x += width, out += width) {
            const Moments of = moments_of(x, width, eps, centred);
            float along = 0.0f, total = 0.0f;
            SUM_OF(along, total) for (int64_t i = 0; i < width; i++) {
                const float n = (x[i] - of.mean) * of.factor, slope = grad[i] * scale[i];
                along += slope * n;
                total += slope;
            }
            along /= (float)width;
            total = centred ? total / (float)width : 0.0f;
            LOOP for (int64_t i = 0; i < width; i++) {
                const float n = (x[i] - of.mean) * of.factor;
                out[i] = of.factor * ((grad[i] * scale[i] - n * along) - total);
                part[i] += grad[i] * n;
            }
        }
        LOOP for (int64_t i = 0; i < width; i++) grad_scale[i] += part[i];
    }
}

/* ---- attention ---- */

/* Replaces scores by attention weights: softmax of scale times a row, or 0 where all of it is minus infinity. Row r is
 * query first + r % queries; unless first is negative, attention is causal: a query sees keys up to its own number. */
KERNEL(attention_weights, float *restrict scores, float scale, int64_t first, int64_t queries,
       int64_t rows, int64_t keys) {
    for (int64_t r = 0; r < rows; r++, scores += keys) {
        const int64_t number = first + r % queries + 1, seen = first < 0 || number > keys ? keys : number;
        if (scale != 1.0f) LOOP for (int64_t i = 0; i < seen; i++) scores[i] *= scale;
        const float top = largest(scores, seen);
        const float shift = top == -INFINITY ? 0.0f : top;
        float total = 0.0f;
        SUM_OF(total) for (int64_t i = 0; i < seen; i++) {
            scores[i] = exp_of(scores[i] - shift);
            total += scores[i];
        }
        const float factor = total == 0.0f ? 0.0f : 1.0f / total;
        LOOP for (int64_t i = 0; i < seen; i++) scores[i] *= factor;
        memset(scores + seen, 0, (size_t)(keys - seen) * sizeof *scores);
    }
}

/* Replaces the gradients of the weights by those of the unscaled scores. */
KERNEL(attention_scores, float *restrict grad, const float *restrict weights, float scale, int64_t rows,
       int64_t keys) {
    for (int64_t r = 0; r < rows; r++, grad += keys, weights += keys) {
        const float mean = product_of(grad, weights, keys);
        LOOP for (int64_t i = 0; i < keys; i++) grad[i] = (grad[i] - mean) * weights[i] * scale;
    }
}
