/* The logarithm of the gamma function and its derivative, as in backburn/ops/bodies/special.py and with its
 * coefficients. What only numbers below -1/2 need is computed only for spans that have one. */
#include "runtime/kernels.h"

#define SPAN 256

/* The sine and cosine of pi d for d in 0 to 1/2, by the polynomials of Cephes (Moshier) on 0 to pi / 4. */
INLINE void sine_and_cosine(float d, float *sine, float *cosine) {
    const int turned = d > 0.25f;
    const float x = 3.14159265f * (turned ? 0.5f - d : d), z = x * x;
    const float s = HORNER2(z, -1.9515295891e-4f, 8.3321608736e-3f, -1.6666654611e-1f);
    const float c = HORNER3(z, 2.443315711809948e-5f, -1.388731625493765e-3f, 4.166664568298827e-2f, -0.5f);
    const float near = FUSED(s * z, x, x), far = FUSED(c, z, 1.0f);
    *sine = turned ? far : near;
    *cosine = turned ? near : far;
}

/* The distance of y, not below 0, to the nearest integer; 0 where all floats are integers. */
INLINE float distance_of(float y) { return y < 0x1p23f ? y - ((y + 0x1p23f) - 0x1p23f) : 0.0f; }

/* At |x| where x is below -1/2. */
INLINE float lgamma_above(float x) {
    const float y = fabsf(x), log_y = log_of(y), inverse = 1.0f / y;
    const float tail = FUSED(inverse, FUSED(-0.00274599553f, inverse * inverse, 0.0833330378f), 0.4189385332046727f);
    const float far = FUSED(y - 0.5f, log_y - 1.0f, tail);
    const int small = y < 0.5f;
    const float z = small ? x + 1.0f : y;
    const float p = HORNER5(z, -0.361987144f, -6.11746693f, -5.27601004f, 43.5712967f, 39.6974564f, 4.65193892f);
    const float q = HORNER4(z, z + 25.1914063f, 127.19577f, 167.757065f, 52.9651871f, 2.54403424f);
    const float near = FUSED(z - 1.0f, (z - 2.0f) * (p / q + 0.375f), small ? -log_y : 0.0f);
    return y < 6.0f ? near : far;
}

INLINE float lgamma_reflected(float x, float above) {
    float sine, cosine;
    const float y = fabsf(x);
    sine_and_cosine(fabsf(distance_of(y)), &sine, &cosine);
    return x < -0x1p23f ? INFINITY : log_of(3.14159265f / (y * sine)) - above;
}

INLINE float digamma_above(float x) {
    const float y = fabsf(x), inverse = 1.0f / y, square = inverse * inverse;
    const float tail = HORNER2(square, 0.00351698021f, -0.00831681304f, 0.0833331496f);
    const float far = log_of(y) - FUSED(square, tail, 0.5f * inverse);
    const int small = y < 0.5f;
    const float z = small ? x + 1.0f : y;
    const float p = HORNER4(z, -0.730358005f, -8.65627289f, -3.91788602f, 42.3842964f, 27.8192177f);
    const float q = HORNER3(z, z + 16.7643127f, 55.2986031f, 40.6471443f, 0.00148160511f);
    const float from_root = (z - 1.4616321325302124f) - 1.2438149938918909e-08f;
    const float near = FUSED(from_root, p / q + 0.75f, small ? -1.0f / x : 0.0f);
    return y < 4.0f ? near : far;
}

INLINE float digamma_reflected(float x, float above) {
    float sine, cosine;
    const float y = fabsf(x), distance = distance_of(y);
    sine_and_cosine(fabsf(distance), &sine, &cosine);
    const float cotangent = copysignf(3.14159265f * cosine / sine, distance);
    return distance != 0.0f ? above + (1.0f / y + cotangent) : NAN;
}

#define REFLECTED(name)                                                                                                \
    KERNEL(name, float *out, const float *xs, int64_t count) {                                                         \
        for (; count > 0; out += SPAN, xs += SPAN, count -= SPAN) {                                                    \
            const int64_t n = count < SPAN ? count : SPAN;                                                             \
            float x[SPAN];                                                                                             \
            int32_t below = 0;                                                                                         \
            memcpy(x, xs, (size_t)n * sizeof *x);                                                                      \
            SUM_OF(below) for (int64_t i = 0; i < n; i++) {                                                            \
                below += x[i] <= -0.5f;                                                                                \
                out[i] = name##_above(x[i]);                                                                           \
            }                                                                                                          \
            if (below) LOOP for (int64_t i = 0; i < n; i++)                                                            \
                out[i] = x[i] <= -0.5f ? name##_reflected(x[i], out[i]) : out[i];                                      \
        }                                                                                                              \
    }
REFLECTED(lgamma)
REFLECTED(digamma)
