/* Kernels of element-wise operations, of the type REAL. Included once for each type. */

/* Kernels of an array and a scalar, passed by pointer. */
#define NUMBER(name, expression)                                                                                       \
    KERNEL(name##_number, REAL *out, const REAL *xs, const REAL *number,                                               \
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
UNARY(log, LOG(x))
UNARY(log1p, LOG1P(x))

BOTH(add, x + y)
BOTH(subtract, x - y)
BOTH(multiply, x * y)
BOTH(divide, x / y)
BOTH(maximum, x >= y || x != x ? x : y)
BOTH(minimum, x <= y || x != x ? x : y)
NUMBER(subtract_from, y - x)
NUMBER(divide_into, y / x)

/* ---- kernels of two arrays, and of an array and a number, which is repeated ---- */

typedef void NAMED(OfTwo)(REAL *restrict, const REAL *restrict, const REAL *restrict, int64_t);

SHARED void NAMED(with_number)(NAMED(OfTwo) *of_two, REAL *out, const REAL *xs, REAL number, int64_t count) {
    REAL ys[SPAN];
    for (int i = 0; i < SPAN; i++) ys[i] = number;
    for (; count > 0; out += SPAN, xs += SPAN, count -= SPAN) of_two(out, xs, ys, count < SPAN ? count : SPAN);
}

#define OF_TWO(name)                                                                                                   \
    KERNEL(name, REAL *out, const REAL *xs, const REAL *ys, int64_t count) { NAMED(name##s)(out, xs, ys, count); }     \
    KERNEL(name##_number, REAL *out, const REAL *xs, const REAL *number, int64_t count) {                              \
        NAMED(with_number)(NAMED(name##s), out, xs, *number, count);                                                   \
    }

/* The angle of (x, y): arctan of the smaller absolute value over the larger, reflected into the octant. */
INLINE REAL NAMED(arctan2_of)(REAL y, REAL x) {
    const REAL tall = OF_TYPE(fabs, y), wide = OF_TYPE(fabs, x);
    const int is_steep = tall > wide;
    const REAL low = is_steep ? wide : tall, high = is_steep ? tall : wide;
    const REAL a = low != high ? low / high : high != 0 ? 1 : 0, z = a * a; /* also of zeros and infinities */
    const REAL near = ARCTAN_TERMS(z) * z * a + a, above = is_steep ? (REAL)1.5707963267948966 - near : near;
    return OF_TYPE(copysign, OF_TYPE(copysign, 1, x) < 0 ? (REAL)3.141592653589793 - above : above, y);
}

SHARED void NAMED(arctan2s)(REAL *out, const REAL *ys, const REAL *xs, int64_t count) {
    LOOP for (int64_t i = 0; i < count; i++) out[i] = NAMED(arctan2_of)(ys[i], xs[i]);
}
OF_TWO(arctan2)
KERNEL(arctan, REAL *out, const REAL *xs, int64_t count) { NAMED(with_number)(NAMED(arctan2s), out, xs, 1, count); }

/* ---- quotients and remainders, from the remainder of the absolute values ---- */

INLINE REAL NAMED(truncated_rest)(REAL x, REAL y, REAL rest) {
    return y == 0 ? NAN : OF_TYPE(copysign, rest, x);
}

INLINE REAL NAMED(floored_rest)(REAL x, REAL y, REAL rest) {
    const REAL own = OF_TYPE(copysign, rest, x), moved = (own < 0) != (y < 0) ? own + y : own;
    return own == 0 ? OF_TYPE(copysign, 0, y) : moved;
}

INLINE REAL NAMED(floored_quotient)(REAL x, REAL y, REAL rest) {
    const REAL own = OF_TYPE(copysign, rest, x), near = (x - own) / y;
    const REAL quotient = own != 0 && (own < 0) != (y < 0) ? near - 1 : near, whole = NAMED(floored)(quotient);
    const REAL above = quotient - whole > (REAL)0.5 ? whole + 1 : whole;
    return y == 0 ? x / y : quotient == 0 ? OF_TYPE(copysign, 0, x) * OF_TYPE(copysign, 1, y) : above;
}

/* The few elements whose remainder takes a long division are computed again, by fmod. */
#define DIVISION(name, expression)                                                                                     \
    SHARED void NAMED(name##s)(REAL *restrict out, const REAL *restrict xs, const REAL *restrict ys, int64_t count) {  \
        int32_t far = 0;                                                                                               \
        SUM_OF(far) for (int64_t i = 0; i < count; i++) {                                                              \
            const REAL x = xs[i], y = ys[i], high = OF_TYPE(fabs, x), low = OF_TYPE(fabs, y);                          \
            far += IS_FAR(high, low);                                                                                  \
            out[i] = NAMED(expression)(x, y, REST(high, low));                                                         \
        }                                                                                                              \
        for (int64_t i = 0; far && i < count; i++) {                                                                   \
            const REAL x = xs[i], y = ys[i], high = OF_TYPE(fabs, x), low = OF_TYPE(fabs, y);                          \
            if (IS_FAR(high, low)) out[i] = NAMED(expression)(x, y, OF_TYPE(fmod, high, low));                         \
        }                                                                                                              \
    }                                                                                                                  \
    OF_TWO(name)

DIVISION(fmod, truncated_rest)
DIVISION(remainder, floored_rest)
DIVISION(floor_divide, floored_quotient)

/* ---- within formulas, where truth is 1 or 0 ---- */

BOTH(equal, x == y)
BOTH(not_equal, x != y)
BOTH(less, x < y)
BOTH(less_equal, x <= y)
NUMBER(greater, x > y)
NUMBER(greater_equal, x >= y)

/* Kernels of three operands; the second and the third are arrays (1) or numbers (0). */
#define OF_THREE(name, second, third, expression)                                                                      \
    KERNEL(name, REAL *out, const REAL *xs, const REAL *ys, const REAL *zs,                                            \
           int64_t count) {                                                                                            \
        const REAL first_y = *ys, first_z = *zs;                                                                       \
        LOOP for (int64_t i = 0; i < count; i++) {                                                                     \
            const REAL x = xs[i], y = second ? ys[i] : first_y, z = third ? zs[i] : first_z;                           \
            out[i] = expression;                                                                                       \
        }                                                                                                              \
    }

OF_THREE(where, 1, 1, x != 0 ? y : z)

/* Two operations in one, which saves a pass over the registers. */
OF_THREE(multiply_add, 1, 1, x * y + z)
OF_THREE(multiply_add_number, 1, 0, x * y + z) /* a step of Horner's rule */
OF_THREE(scale_add, 0, 1, x * y + z)
OF_THREE(scale_add_number, 0, 0, x * y + z)
OF_THREE(scale_multiply, 0, 1, x * y * z)

INLINE REAL NAMED(huber_of)(REAL difference, REAL delta) {
    const REAL above = difference < -delta ? -delta : difference, inside = above > delta ? delta : above;
    return inside * (difference - inside / 2);
}

OF_THREE(huber, 1, 1, NAMED(huber_of)(x - y, z))

/* The maximum with a number, then the minimum with another. */
KERNEL(clamp, REAL *out, const REAL *xs, const REAL *low, const REAL *high,
       int64_t count) {
    const REAL y = *low, z = *high, bad = y != y ? y : z != z ? z : 0;
    LOOP for (int64_t i = 0; i < count; i++) {
        const REAL above = xs[i] < y ? y : xs[i], x = above > z ? z : above;
        out[i] = bad != bad ? bad : x;
    }
}

KERNEL(fill, REAL *out, const REAL *number, int64_t count) {
    const REAL x = *number;
    LOOP for (int64_t i = 0; i < count; i++) out[i] = x;
}

#undef NUMBER
#undef DIVISION
#undef OF_TWO
#undef OF_THREE
#undef BOTH
