/* Kernels of element-wise operations, of the type REAL. Included once for each type. */

/* Of an array and a scalar, passed by pointer. */
#define NUMBER(name, expression)                                                                                       \
    KERNEL(name##_number, REAL *restrict out, const REAL *restrict xs, const REAL *restrict number,                    \
           int64_t count) {                                                                                            \
        const REAL y = *number;                                                                                        \
        LOOP for (int64_t i = 0; i < count; i++) {                                                                     \
            const REAL x = xs[i];                                                                                      \
            out[i] = expression;                                                                                       \
        }                                                                                                              \
    }
#define BOTH(name, expression) BINARY(name, x, y, expression) NUMBER(name, expression)

INLINE REAL NAMED(rounded)(REAL x) {
    const REAL y = OF_TYPE(fabs, x);
    return y < WHOLE ? OF_TYPE(copysign, (y + WHOLE) - WHOLE, x) : x;
}

INLINE REAL NAMED(floored)(REAL x) {
    const REAL near = NAMED(rounded)(x);
    return near > x ? near - 1 : near;
}

UNARY(negative, -x)
UNARY(absolute, OF_TYPE(fabs, x))
UNARY(square, x * x)
UNARY(sqrt, OF_TYPE(sqrt, x))
UNARY(reciprocal, 1 / x)
UNARY(sign, x > 0 ? 1 : x < 0 ? -1 : x == 0 ? 0 : x)
UNARY(floor, NAMED(floored)(x))
UNARY(round, NAMED(rounded)(x))
UNARY(exp, EXP(x))

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

KERNEL(where, REAL *restrict out, const REAL *restrict truths, const REAL *restrict xs,
       const REAL *restrict ys, int64_t count) {
    LOOP for (int64_t i = 0; i < count; i++) {
        const REAL x = xs[i], y = ys[i];
        out[i] = truths[i] != 0 ? x : y;
    }
}

/* A step of Horner's rule. */
KERNEL(multiply_add_number, REAL *restrict out, const REAL *restrict xs, const REAL *restrict ys,
       const REAL *restrict number, int64_t count) {
    const REAL z = *number;
    LOOP for (int64_t i = 0; i < count; i++) out[i] = xs[i] * ys[i] + z;
}

KERNEL(fill, REAL *restrict out, const REAL *restrict number, int64_t count) {
    LOOP for (int64_t i = 0; i < count; i++) out[i] = *number;
}

#undef NUMBER
#undef BOTH
