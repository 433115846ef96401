/* Kernels of float64: activation functions, and softmax and cross-entropy over rows. Those of float are in activations.c
 * and row_kernels.c. */
#define UNROLLED
#include "generic.h"

EXTREME(double, largest_and_nans, >, -INFINITY, max)

#undef REAL
#undef NAMED
#define REAL double
#define NAMED(name) backburn_##name##_double

/* ---- activation functions ---- */

INLINE double tail_of(double x) { return log1p_of_double(exp_of_double(-fabs(x))); }

UNARY(sigmoid, sigmoid_of_double(x))
BINARY(relu_backward, grad, y, y > 0.0 ? grad : 0.0)
BINARY(sigmoid_backward, grad, y, (1.0 - y) * y * grad)
BINARY(tanh_backward, grad, y, (1.0 - y * y) * grad)
UNARY(log_sigmoid, (x > 0.0 ? 0.0 : x) - tail_of(x))
UNARY(softplus, (x < 0.0 ? 0.0 : x) + tail_of(x))
UNARY(silu, x * sigmoid_of_double(x))

INLINE double silu_slope(double x) {
    const double gate = sigmoid_of_double(x);
    return ((1.0 - gate) * x + 1.0) * gate;
}
BINARY(silu_backward, grad, x, silu_slope(x) * grad)

/* ---- rows ---- */

#define WIDTH LOOP for (int64_t i = 0; i < width; i++)
#define SUM(total, term)                                                                                               \
    double total = 0.0;                                                                                                \
    SUM_OF(total) for (int64_t i = 0; i < width; i++) total += term;

INLINE double largest(const double *restrict x, int64_t width) {
    int unordered;
    return largest_and_nans(x, width, &unordered);
}

/* Fills out with the powers of x less the largest, and returns the sum. */
INLINE double powers(double *restrict out, const double *restrict x, int64_t width) {
    const double top = largest(x, width);
    WIDTH out[i] = exp_of_double(x[i] - top);
    SUM(total, out[i])
    return total;
}

KERNEL(softmax, double *restrict out, const double *restrict x, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width, out += width) {
        const double factor = 1.0 / powers(out, x, width);
        WIDTH out[i] *= factor;
    }
}

KERNEL(softmax_backward, double *restrict out, const double *restrict grad, const double *restrict y, int64_t rows,
       int64_t width) {
    for (int64_t r = 0; r < rows; r++, grad += width, y += width, out += width) {
        SUM(product, grad[i] * y[i])
        WIDTH out[i] = (grad[i] - product) * y[i];
    }
}

KERNEL(log_softmax, double *restrict out, const double *restrict x, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width, out += width) {
        const double top = largest(x, width);
        SUM(total, exp_of_double(x[i] - top))
        const double logarithm = log(total);
        WIDTH out[i] = (x[i] - top) - logarithm;
    }
}

KERNEL(log_softmax_backward, double *restrict out, const double *restrict grad, const double *restrict y, int64_t rows,
       int64_t width) {
    for (int64_t r = 0; r < rows; r++, grad += width, y += width, out += width) {
        SUM(total, grad[i])
        WIDTH out[i] = grad[i] - exp_of_double(y[i]) * total;
    }
}

KERNEL(logsumexp, const double *restrict x, double *restrict out, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width) {
        const double top = largest(x, width), shift = fabs(top) == INFINITY ? 0.0 : top;
        SUM(total, exp_of_double(x[i] - shift))
        out[r] = log(total) + shift;
    }
}

/* -log softmax(x)[label] of each row; labels are in range, and the label's own power is left out of the sum, lest it
 * absorb the others. */
KERNEL(label_cross_entropy, const double *restrict x, double *restrict out, const int64_t *restrict labels,
       int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width) {
        const double top = largest(x, width), own = x[labels[r]] - top;
        SUM(others, i == labels[r] ? 0.0 : exp_of_double(x[i] - top))
        out[r] = log1p(own == 0.0 ? others : (others - 1.0) + exp(own)) - own;
    }
}

KERNEL(label_cross_entropy_backward, double *restrict out, const double *restrict grads, const double *restrict x,
       const int64_t *restrict labels, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width, out += width) {
        const double factor = grads[r] / powers(out, x, width);
        WIDTH out[i] *= factor;
        out[labels[r]] -= grads[r];
    }
}
