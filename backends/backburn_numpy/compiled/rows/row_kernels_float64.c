/* Kernels of float64: activation functions, and softmax, cross-entropy and norms over rows. Those of float are in
 * activations.c and row_kernels.c. */
#include "runtime/either_type.h"
#include "runtime/simd.h"

#undef REAL
#undef NAMED
#define REAL double
#define NAMED(name) backburn_##name##_double

/* ---- activation functions ---- */

/* log(1 + e) with e = exp(-|x|) is 2 artanh(s), s = e / (2 + e) from 0 to 1/3, by enough terms of its series. */
INLINE double tail_of(double x) {
    const double e = exp_of_double(-fabs(x)), s = e / (2.0 + e), z = s * s;
    double p = 1.0 / 33;
    p = p * z + 1.0 / 31;
    p = p * z + 1.0 / 29;
    p = p * z + 1.0 / 27;
    p = p * z + 1.0 / 25;
    p = p * z + 1.0 / 23;
    p = p * z + 1.0 / 21;
    p = p * z + 1.0 / 19;
    p = p * z + 1.0 / 17;
    p = p * z + 1.0 / 15;
    p = p * z + 1.0 / 13;
    p = p * z + 1.0 / 11;
    p = p * z + 1.0 / 9;
    p = p * z + 1.0 / 7;
    p = p * z + 1.0 / 5;
    p = p * z + 1.0 / 3;
    return 2.0 * (p * z * s + s);
}

UNARY(sigmoid, sigmoid_of_double(x))
BINARY(relu_backward, grad, y, y > 0.0 ? grad : 0.0)
BINARY(sigmoid_backward, grad, y, (1.0 - y) * y * grad)
BINARY(tanh_backward, grad, y, (1.0 - y * y) * grad)

INLINE double sigmoid_slope_of(double x) {
    const double e = exp_of_double(-fabs(x)), above = 1.0 / (1.0 + e);
    return e * above * above;
}
BINARY(sigmoid_slope, grad, x, sigmoid_slope_of(x) * grad)
TANH_SLOPE(exp_of_double, fabs)
UNARY(log_sigmoid, (x > 0.0 ? 0.0 : x) - tail_of(x))
UNARY(softplus, (x < 0.0 ? 0.0 : x) + tail_of(x))
UNARY(silu, x * sigmoid_of_double(x))

INLINE double silu_slope(double x) {
    const double e = exp_of_double(-fabs(x)), above = 1.0 / (1.0 + e), below = e * above;
    return x > 0.0 ? (below * x + 1.0) * above : (above * x + 1.0) * below;
}
BINARY(silu_backward, grad, x, silu_slope(x) * grad)

/* ---- rows ---- */

#define WIDTH LOOP for (int64_t i = 0; i < width; i++)
/* Declares the sum of a term, a vector of elements from i on, over a row. */
#define SUM(total, term)                                                                                               \
    double total;                                                                                                      \
    {                                                                                                                  \
        Wide sums[2] = {0};                                                                                            \
        BY_VECTORS(LANES / 2, 0, width, sums[turn] += term;)                                                           \
        total = sum_of_wide(sums[0] + sums[1]);                                                                        \
    }

EXTREME(double, Wide, WideInts, WIDE_AT, largest_and_nans, larger_wide, largest_lane_of_wide, -INFINITY)
INLINE double largest(const double *restrict x, int64_t width) {
    int unordered; /* the powers show NaN */
    return largest_and_nans(x, width, &unordered);
}

INLINE double sum_of(const double *restrict x, int64_t width) {
    SUM(total, WIDE_AT(x, 0.0))
    return total;
}

/* Fills out with the exponentials of x minus the largest, and returns the sum. */
INLINE double powers(double *restrict out, const double *restrict x, int64_t width) {
    const double top = largest(x, width);
    WIDTH out[i] = exp_of_double(x[i] - top);
    return sum_of(out, width);
}

enum { STRETCH = 512 }; /* powers at a time that are only added up */

/* The sum of exp(x - top), except of the element at `without`. */
INLINE double sum_of_powers(const double *restrict x, double top, int64_t row, int64_t without) {
    double total = 0.0, some[STRETCH];
    for (int64_t start = 0; start < row; start += STRETCH) {
        const int64_t width = row - start < STRETCH ? row - start : STRETCH;
        WIDTH some[i] = exp_of_double(x[start + i] - top);
        if (start <= without && without < start + width) some[without - start] = 0.0;
        total += sum_of(some, width);
    }
    return total;
}

KERNEL(softmax, double *restrict out, const double *restrict x, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width, out += width) {
        const double factor = 1.0 / powers(out, x, width);
        WIDTH out[i] *= factor;
    }
}

INLINE double product_of(const double *restrict x, const double *restrict y, int64_t width) {
    SUM(product, WIDE_AT(x, 0.0) * WIDE_AT(y, 0.0))
    return product;
}

INLINE int complete(double shares) { return fabs(shares - 1.0) < 1e-12; }

/* As for float32. */
KERNEL(softmax_backward, double *restrict out, const double *restrict grad, const double *restrict y, int64_t rows,
       int64_t width) {
    for (int64_t r = 0; r < rows; r++, grad += width, y += width, out += width) {
        if (!(largest(y, width) > 0.5)) {
            const double product = product_of(grad, y, width);
            WIDTH out[i] = (grad[i] - product) * y[i];
            continue;
        }
        int64_t at = 0;
        while (!(y[at] > 0.5)) at++;
        const int64_t next = at + 1, rest = width - next;
        const double others = product_of(grad, y, at) + product_of(grad + next, y + next, rest);
        const double product = grad[at] * y[at] + others;
        const double shares = sum_of(y, at) + sum_of(y + next, rest), winning = (grad[at] * shares - others) * y[at];
        const int wins = complete(shares + y[at]);
        WIDTH out[i] = (grad[i] - product) * y[i];
        if (wins) out[at] = winning;
    }
}

KERNEL(log_softmax, double *restrict out, const double *restrict x, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width, out += width) {
        const double top = largest(x, width), logarithm = log(sum_of_powers(x, top, width, -1));
        WIDTH out[i] = (x[i] - top) - logarithm;
    }
}

KERNEL(log_softmax_backward, double *restrict out, const double *restrict grad, const double *restrict y, int64_t rows,
       int64_t width) {
    for (int64_t r = 0; r < rows; r++, grad += width, y += width, out += width) {
        if (!(largest(y, width) > -0.6931)) {
            const double total = sum_of(grad, width);
            WIDTH out[i] = grad[i] - exp_of_double(y[i]) * total;
            continue;
        }
        int64_t at = 0;
        while (!(y[at] > -0.6931)) at++;
        const double others = sum_of(grad, at) + sum_of(grad + at + 1, width - at - 1), total = others + grad[at];
        const double shares = sum_of_powers(y, 0.0, width, at), own = exp_of_double(y[at]);
        const double winning = grad[at] * shares - own * others;
        WIDTH out[i] = grad[i] - exp_of_double(y[i]) * total;
        if (complete(shares + own)) out[at] = winning;
    }
}

KERNEL(logsumexp, const double *restrict x, double *restrict out, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width) {
        const double top = largest(x, width), shift = fabs(top) == INFINITY ? 0.0 : top;
        out[r] = log(sum_of_powers(x, shift, width, -1)) + shift;
    }
}

/* -log softmax(x)[label] of each row; labels are in range, and the label's own power is left out of the sum, lest it
 * absorb the others. */
KERNEL(label_cross_entropy, const double *restrict x, double *restrict out, const int64_t *restrict labels,
       int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width) {
        const double top = largest(x, width), own = x[labels[r]] - top;
        const double others = sum_of_powers(x, top, width, labels[r]);
        out[r] = log1p(own == 0.0 ? others : (others - 1.0) + exp(own)) - own;
    }
}

KERNEL(label_cross_entropy_backward, double *restrict out, const double *restrict grads, const double *restrict x,
       const int64_t *restrict labels, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width, out += width) {
        const int64_t label = labels[r], next = label + 1;
        const double factor = grads[r] / powers(out, x, width);
        const double others = sum_of(out, label) + sum_of(out + next, width - next);
        WIDTH out[i] *= factor;
        out[label] = -factor * others;
    }
}

/* ---- layer norm (centred) and RMS norm ---- */

typedef struct {
    double mean, factor;
} Moments;

/* The mean is corrected by the mean of x - mean, its rounding error. */
INLINE Moments moments_of(const double *restrict x, int64_t width, double eps, int centred) {
    double mean = 0.0;
    if (centred) {
        mean = sum_of(x, width) / (double)width;
        SUM(rest, WIDE_AT(x, mean) - mean)
        mean += rest / (double)width;
    }
    SUM(squares, (WIDE_AT(x, mean) - mean) * (WIDE_AT(x, mean) - mean))
    return (Moments){mean, 1.0 / sqrt(squares / (double)width + eps)};
}

/* scale and bias are rows, or null. */
KERNEL(standardize, double *restrict out, const double *restrict x, const double *restrict scale,
       const double *restrict bias, double eps, int centred, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width, out += width) {
        const Moments of = moments_of(x, width, eps, centred);
        WIDTH out[i] = (x[i] - of.mean) * of.factor;
        if (scale) WIDTH out[i] *= scale[i];
        if (bias) WIDTH out[i] += bias[i];
    }
}

/* With n = (x - mean) factor: out = factor (grad scale - n mean(grad scale n) - mean(grad scale)), the last term if
 * centred; in blocks first to last - 1, of `block` rows each. A row of sums gets the sum of grad n. */
KERNEL(standardize_backward, double *restrict out, double *restrict sums, const double *restrict grad,
       const double *restrict x, const double *restrict scale, double eps, int centred, int64_t block, int64_t rows,
       int64_t width, int64_t first, int64_t last) {
    for (; first < last; first++) {
        const int64_t start = first * block, stop = rows - start < block ? rows : start + block;
        double *restrict some = sums + first * width;
        memset(some, 0, (size_t)width * sizeof *some);
        for (int64_t at = start * width; at < stop * width; at += width) {
            const double *restrict g = grad + at, *restrict row = x + at;
            double *restrict result = out + at;
            const Moments of = moments_of(row, width, eps, centred);
            SUM(along, WIDE_AT(g, 0.0) * WIDE_AT(scale, 0.0) * ((WIDE_AT(row, of.mean) - of.mean) * of.factor))
            SUM(total, WIDE_AT(g, 0.0) * WIDE_AT(scale, 0.0))
            const double tilt = along / (double)width, shift = centred ? total / (double)width : 0.0;
            WIDTH {
                const double n = (row[i] - of.mean) * of.factor;
                result[i] = of.factor * (FUSED(g[i], scale[i], -(n * tilt)) - shift);
                some[i] += g[i] * n;
            }
        }
    }
}
