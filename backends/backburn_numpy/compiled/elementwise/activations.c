/* Element-wise activation functions and their gradients. */
#include "runtime/float64.h"
#include "runtime/kernels.h"

/* log(1 + exp(-|x|)) */
INLINE float tail_of(float x) { return log_of_one_plus(exp_of(-fabsf(x))); }

UNARY(sigmoid, sigmoid_of(x))
BINARY(relu_backward, grad, y, y > 0.0f ? grad : 0.0f)
BINARY(sigmoid_backward, grad, y, (1.0f - y) * y * grad)
BINARY(tanh_backward, grad, y, (1.0f - y * y) * grad)

/* sigmoid(x) sigmoid(-x) = e / (1 + e)**2 with e = exp(-|x|) */
INLINE float sigmoid_slope_of(float x) {
    const float e = exp_of(-fabsf(x)), above = 1.0f / (1.0f + e);
    return e * above * above;
}
BINARY(sigmoid_slope, grad, x, sigmoid_slope_of(x) * grad)
TANH_SLOPE(exp_of, fabsf)
UNARY(log_sigmoid, (x > 0.0f ? 0.0f : x) - tail_of(x))
UNARY(softplus, (x < 0.0f ? 0.0f : x) + tail_of(x))
UNARY(silu, x * sigmoid_of(x))

INLINE float silu_slope(float x) {
    const float e = exp_of(-fabsf(x)), above = 1.0f / (1.0f + e), below = e * above;
    return x > 0.0f ? (below * x + 1.0f) * above : (above * x + 1.0f) * below;
}
BINARY(silu_backward, grad, x, silu_slope(x) * grad)

/* ---- the error functions, with the coefficients of backburn/ops/bodies/special_coefficients.py ---- */

/* tanh(x r), r a rational function of x**2 that is artanh(erf(x)) / x up to where erf rounds to 1. */
INLINE float erf_of(float x) {
    const float square = x * x, z = square > 15.3664f ? 15.3664f : square;
    const float p = ((6.70396996f * z + 131.2509f) * z + 861.146179f) * z + 3472.75146f;
    const float q = ((z + 72.9091263f) * z + 482.85965f) * z + 3077.64575f;
    return tanh_of(x * (p / q));
}
UNARY(erf, erf_of(x))

/* exp(scale y**2) for y in 0 to 15: the leading bits of y have an exact square, so the large exponent is exact. */
INLINE float gauss_of(float y, float scale) {
    const float leading = from_bits(to_bits(y) & -(1 << 12)), rest = y - leading;
    return exp_of_sum(scale * (leading * leading), scale * (rest * (y + leading)));
}

/* exp(-y**2) (1 + p / q) / (1 + 2 y) for y = |x|, up to where it underflows. */
INLINE float erfc_of(float x) {
    const float size = fabsf(x), y = size > 10.25f ? 10.25f : size;
    const float p = HORNER5(y, 0.128386915f, 1.41132736f, 5.84634495f, 12.4719591f, 12.9622545f, -3.84186514e-08f);
    const float q = HORNER4(y, y + 6.60108566f, 20.8843956f, 36.9663734f, 35.7516479f, 14.8714314f);
    const float above = gauss_of(y, -1.0f) * ((p / q + 1.0f) / (2.0f * y + 1.0f));
    return x < 0.0f ? 2.0f - above : above;
}
UNARY(erfc, erfc_of(x))

/* ---- GELU: x times the normal CDF at x ---- */

/* The upper tail of the normal distribution at y = |x| is p(y) / q(y) exp(-y**2 / 2); p / q is a Remez fit on 0 to 14.6
 * (error 2**-27.3), beyond which the tail underflows float32. Sets density to the exponential; returns the tail. */
INLINE float mass_above(float y, float *density) {
    *density = gauss_of(y, -0.5f);
    const float p = HORNER4(y, 0.3989468369f, 3.935827965f, 17.74102709f, 42.42109394f, 48.37106885f);
    const float q = HORNER4(y, y + 9.866274741f, 45.45579191f, 116.392779f, 162.0312867f, 96.74213713f);
    return p / q * *density;
}

/* The normal CDF at x, and its logarithm, in double: in float each rounding would cost an ulp. The tail divided by the
 * exponential is accurate to 2**-27 up to 14.6, and far beyond to 2**-16, in a logarithm dominated by y**2 / 2. */
INLINE double tail_over_density(double y) {
    const double p = (((0.3989468369 * y + 3.935827965) * y + 17.74102709) * y + 42.42109394) * y + 48.37106885;
    const double q = ((((y + 9.866274741) * y + 45.45579191) * y + 116.392779) * y + 162.0312867) * y + 96.74213713;
    return p / q;
}

INLINE float ndtr_of(float x) {
    const double size = fabs((double)x), y = size > 20.0 ? 20.0 : size;
    const double tail = tail_over_density(y) * exp_of_double(-0.5 * y * y);
    return (float)(x > 0.0f ? 1.0 - tail : tail);
}
UNARY(ndtr, ndtr_of(x))

INLINE float log_ndtr_of(float x) {
    const double size = fabs((double)x), y = size > 1e20 ? 1e20 : size, ratio = tail_over_density(y);
    const double exponent = -0.5 * y * y, above = log1p_of_double(-ratio * exp_of_double(exponent));
    return (float)(x > 0.0f ? above : log_of_double(ratio) + exponent);
}
UNARY(log_ndtr, log_ndtr_of(x))

INLINE float clipped(float x) {
    const float y = fabsf(x);
    return y > 14.6f ? 14.6f : y;
}

INLINE float gelu_of(float x) {
    float density;
    const float y = clipped(x);
    return (x < 0.0f ? 0.0f : x) - mass_above(y, &density) * y; /* no cancellation below 0 */
}

/* With t = mass - y density / sqrt(2 pi), the derivative is t below 0 and 1 - t above. */
INLINE float gelu_slope(float x) {
    float density;
    const float y = clipped(x), mass = mass_above(y, &density), t = mass - y * 0.39894228040143268f * density;
    return x < 0.0f ? t : 1.0f - t;
}

UNARY(gelu, gelu_of(x))
BINARY(gelu_backward, grad, x, gelu_slope(x) * grad)

#define LINEAR 1.5957691216057308f /* 2 sqrt(2 / pi) */
#define CUBIC 0.07135481627159936f /* 0.044715 LINEAR */

/* x sigmoid(u) with u = x (LINEAR + CUBIC x**2): the tanh approximation, rewritten. */
UNARY(gelu_tanh, x * sigmoid_of(x * (LINEAR + CUBIC * (x * x))))

/* sigmoid(u) + x u' sigmoid(u) sigmoid(-u). Beyond +-12 it is 0 or 1 in float32; clamping prevents overflow. */
INLINE float gelu_tanh_slope(float x) {
    x = x > 12.0f ? 12.0f : x;
    x = x < -12.0f ? -12.0f : x;
    const float square = x * x, u = x * (LINEAR + CUBIC * square), slope = x * (LINEAR + 3.0f * CUBIC * square);
    const float e = exp_of(-fabsf(u)), above = 1.0f / (1.0f + e), below = e * above;
    return x > 0.0f ? (below * slope + 1.0f) * above : (above * slope + 1.0f) * below;
}
BINARY(gelu_tanh_backward, grad, x, gelu_tanh_slope(x) * grad)
