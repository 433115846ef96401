/* NumPy's element-wise functions, to be run by several threads or as parts of formulas. Arithmetic and comparisons are
 * bit-identical to NumPy; the others are within 2 ulp. */
#include "kernels.h"

/* Of an array and a scalar, passed by pointer. */
#define NUMBER(name, expression)                                                                                       \
    KERNEL void backburn_##name##_number(float *restrict out, const float *restrict xs,                               \
                                         const float *restrict number, int64_t count) {                                \
        const float y = *number;                                                                                       \
        LOOP for (int64_t i = 0; i < count; i++) {                                                                     \
            const float x = xs[i];                                                                                     \
            out[i] = expression;                                                                                       \
        }                                                                                                              \
    }
#define BOTH(name, expression) BINARY(name, x, y, expression) NUMBER(name, expression)

/* exp(x) - 1 is 2**whole times the polynomial and 1 - 2**-whole, which is exact. */
INLINE float expm1_of(float x) {
    x = x > 89.0f ? 89.0f : x;
    x = x < -18.0f ? -18.0f : x;
    int32_t whole;
    const float rest = exp_terms(x, 0.0f, &whole);
    const int32_t half = whole >> 1, least = whole < 126 ? whole : 126;
    const float result = (rest + (1.0f - power_of_2(-least))) * power_of_2(half) * power_of_2(whole - half);
    return x == 0.0f ? x : result;
}

/* log(u), which is not NaN and not below 0; Cephes' (Moshier). */
INLINE float log_of_positive(float u) {
    const int small = u < 0x1p-126f;
    const int32_t bits = to_bits(small ? u * 0x1p23f : u), whole = (bits - 0x3f3504f3) >> 23;
    const float z = from_bits(bits - (int32_t)((uint32_t)whole << 23)) - 1.0f, square = z * z;
    const float n = (float)(small ? whole - 23 : whole);
    const float result = ((log_terms(z) * square - n * 2.12194440e-4f) - 0.5f * square + z) + n * 0.693359375f;
    return u == 0.0f ? -INFINITY : u == INFINITY ? u : result;
}

INLINE float log_of(float x) { return x >= 0.0f ? log_of_positive(x) : NAN; }

/* log(1 + x), corrected for the rounding of that sum. */
INLINE float log1p_of(float x) {
    const float u = 1.0f + x, lost = x > 1.0f ? 1.0f - (u - x) : x - (u - 1.0f);
    const float result = log_of_positive(u), exact = result + (fabsf(result) < INFINITY ? lost / u : 0.0f);
    return fabsf(x) < 0x1p-25f ? x : x >= -1.0f ? exact : NAN;
}

INLINE float round_of(float x) {
    const float y = fabsf(x);
    return y < 0x1p23f ? copysignf((y + 0x1p23f) - 0x1p23f, x) : x;
}

INLINE float floor_of(float x) {
    const float near = round_of(x);
    return near > x ? near - 1.0f : near;
}

UNARY(negative, -x)
UNARY(absolute, fabsf(x))
UNARY(square, x * x)
UNARY(sqrt, sqrtf(x))
UNARY(reciprocal, 1.0f / x)
UNARY(sign, x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == 0.0f ? 0.0f : x)
UNARY(floor, floor_of(x))
UNARY(round, round_of(x))
UNARY(exp, exp_of(x))
UNARY(expm1, expm1_of(x))
UNARY(log, log_of(x))
UNARY(log1p, log1p_of(x))
UNARY(tanh, tanh_of(x))

BOTH(add, x + y)
BOTH(subtract, x - y)
BOTH(multiply, x * y)
BOTH(divide, x / y)
BOTH(maximum, x >= y || x != x ? x : y)
BOTH(minimum, x <= y || x != x ? x : y)
NUMBER(subtract_from, y - x)
NUMBER(divide_into, y / x)

/* ---- within formulas, where truth is 1 or 0 ---- */

BOTH(equal, x == y)
BOTH(not_equal, x != y)
BOTH(less, x < y)
BOTH(less_equal, x <= y)
NUMBER(greater, x > y)
NUMBER(greater_equal, x >= y)

KERNEL void backburn_where(float *restrict out, const float *restrict truths, const float *restrict xs,
                           const float *restrict ys, int64_t count) {
    LOOP for (int64_t i = 0; i < count; i++) {
        const float x = xs[i], y = ys[i];
        out[i] = truths[i] != 0.0f ? x : y;
    }
}

/* A step of Horner's rule. */
KERNEL void backburn_multiply_add_number(float *restrict out, const float *restrict xs, const float *restrict ys,
                                         const float *restrict number, int64_t count) {
    const float z = *number;
    LOOP for (int64_t i = 0; i < count; i++) out[i] = xs[i] * ys[i] + z;
}

KERNEL void backburn_fill(float *restrict out, const float *restrict number, int64_t count) {
    LOOP for (int64_t i = 0; i < count; i++) out[i] = *number;
}
