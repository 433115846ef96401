/* NumPy's element-wise functions, here to be run by several threads. Bit-identical to NumPy except exp and tanh. */
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

UNARY(negative, -x)
UNARY(absolute, fabsf(x))
UNARY(square, x * x)
UNARY(sqrt, sqrtf(x))
UNARY(reciprocal, 1.0f / x)
UNARY(exp, exp_of(x))
UNARY(tanh, tanh_of(x))

BINARY(add, x, y, x + y)
BINARY(subtract, x, y, x - y)
BINARY(multiply, x, y, x * y)
BINARY(divide, x, y, x / y)
BINARY(maximum, x, y, x >= y || x != x ? x : y)
BINARY(minimum, x, y, x <= y || x != x ? x : y)

NUMBER(add, x + y)
NUMBER(subtract, x - y)
NUMBER(multiply, x * y)
NUMBER(divide, x / y)
NUMBER(maximum, x >= y || x != x ? x : y)
NUMBER(minimum, x <= y || x != x ? x : y)
NUMBER(subtract_from, y - x)
NUMBER(divide_into, y / x)
