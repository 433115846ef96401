/* NumPy's functions of each element, which here are done by several threads. Their results are NumPy's to the bit but
 * for exponentials and tangents. */
#define SMALL_CODE
#include "kernels.h"

#define ONE(name, expression)                                                                                          \
    KERNEL void backburn_##name(float *restrict out, const float *restrict xs, int64_t count) {                       \
        LOOP for (int64_t i = 0; i < count; i++) {                                                                     \
            const float x = xs[i];                                                                                     \
            out[i] = expression;                                                                                       \
        }                                                                                                              \
    }

/* Of two arrays, and of an array and a number, which stands behind a pointer. */
#define TWO(name, expression)                                                                                          \
    KERNEL void backburn_##name(float *restrict out, const float *xs, const float *ys, int64_t count) {               \
        LOOP for (int64_t i = 0; i < count; i++) {                                                                     \
            const float x = xs[i], y = ys[i];                                                                          \
            out[i] = expression;                                                                                       \
        }                                                                                                              \
    }
#define NUMBER(name, expression)                                                                                       \
    KERNEL void backburn_##name##_number(float *restrict out, const float *restrict xs,                               \
                                         const float *restrict number, int64_t count) {                                \
        const float y = *number;                                                                                       \
        LOOP for (int64_t i = 0; i < count; i++) {                                                                     \
            const float x = xs[i];                                                                                     \
            out[i] = expression;                                                                                       \
        }                                                                                                              \
    }

ONE(negative, -x)
ONE(absolute, fabsf(x))
ONE(square, x * x)
ONE(sqrt, sqrtf(x))
ONE(reciprocal, 1.0f / x)
ONE(exp, exp_of(x))
ONE(tanh, tanh_of(x))

TWO(add, x + y)
TWO(subtract, x - y)
TWO(multiply, x * y)
TWO(divide, x / y)
TWO(maximum, x >= y || x != x ? x : y)
TWO(minimum, x <= y || x != x ? x : y)

NUMBER(add, x + y)
NUMBER(subtract, x - y)
NUMBER(multiply, x * y)
NUMBER(divide, x / y)
NUMBER(maximum, x >= y || x != x ? x : y)
NUMBER(minimum, x <= y || x != x ? x : y)
NUMBER(subtract_from, y - x)
NUMBER(divide_into, y / x)
