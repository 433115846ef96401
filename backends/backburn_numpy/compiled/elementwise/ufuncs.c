/* NumPy's element-wise functions, to be run by several threads or as parts of formulas. Arithmetic and comparisons are
 * bitwise identical to NumPy; the others are within 2 ulp. */
#include "runtime/float64.h"
#include "runtime/kernels.h"

/* exp(x) - 1 is 2**whole times the sum of the polynomial and 1 - 2**-whole, which is exact. */
INLINE float expm1_of(float x) {
    x = x > 89.0f ? 89.0f : x;
    x = x < -18.0f ? -18.0f : x;
    int32_t whole;
    const float rest = exp_terms(x, -0.0f, &whole);
    const int32_t half = whole >> 1, least = whole < 126 ? whole : 126;
    const float result = (rest + (1.0f - power_of_2(-least))) * power_of_2(half) * power_of_2(whole - half);
    return x == 0.0f ? x : result;
}

UNARY(expm1, expm1_of(x))
UNARY(tanh, tanh_of(x))

/* exp(y) / 2, which overflows only where cosh does. The leading digits of log(2) are subtracted exactly from 0.35
 * on. */
INLINE float half_exp_of(float y) { return exp_of_sum(y - 0.693359375f, 2.12194440e-4f); }

INLINE float cosh_of(float x) {
    const float e = half_exp_of(fabsf(x));
    return e + 0.25f / e;
}

/* The Taylor polynomial up to 1, beyond which nothing cancels. */
INLINE float sinh_of(float x) {
    const float y = fabsf(x), z = x * x, e = half_exp_of(y);
    const float p = HORNER4(z, 1.0f / 39916800, 1.0f / 362880, 1.0f / 5040, 1.0f / 120, 1.0f / 6);
    return copysignf(y < 1.0f ? p * z * y + y : e - 0.25f / e, x);
}

UNARY(cosh, cosh_of(x))
UNARY(sinh, sinh_of(x))

/* (arctan(a) / a - 1) / a**2 for a in 0 to 1, of z = a**2: the polynomials with the least relative error of arctan,
 * 2**-28.5 and 2**-57.6 (by Remez' algorithm). */
INLINE float arctan_terms(float z) {
    return HORNER5(z, HORNER3(z, -0.00179362029f, 0.0109145986f, -0.0311778318f, 0.0579575785f), -0.0840344951f,
                   0.109521851f, -0.142642409f, 0.199985489f, -0.333332986f);
}

INLINE double arctan_terms_double(double z) {
    double p = HORNER4(z, 1.322518965712377e-05, -0.0001521618818176523, 0.0008313259524050171, -0.002884928352038416,
                   0.007196518930527816);
    p = HORNER5(z, p, -0.013900577214659716, 0.021984865869996387, -0.02990386384226365, 0.0366419110426766,
                   -0.042191787902766904);
    p = HORNER5(z, p, 0.047223220824395416, -0.05253518490262242, 0.058805277948088173, -0.06666404053158394,
                   0.07692279838596802);
    p = HORNER5(z, p, -0.0909090700291556, 0.1111111100702069, -0.14285714282574868, 0.19999999999951454,
                   -0.3333333333333307);
    return p;
}

/* The sine and the cosine of x, below 2**20 in absolute value, by their series, after subtracting the nearest multiple
 * of pi / 2 in three parts. */
typedef struct {
    double sine, cosine;
} Circle;

INLINE Circle circle_of(double x) {
    const double shift = 0x1.8p52, shifted = x * 0.63661977236758134 + shift, q = shifted - shift;
    const double r = ((x - q * 0x1.921fb544p+0) - q * 0x1.0b4611a6p-34) - q * 0x1.3198a2e037073p-69, z = r * r;
    uint64_t quarter;
    memcpy(&quarter, &shifted, sizeof quarter);
    double s = 1.0 / 355687428096000;
    s = s * z - 1.0 / 1307674368000;
    s = s * z + 1.0 / 6227020800;
    s = s * z - 1.0 / 39916800;
    s = s * z + 1.0 / 362880;
    s = s * z - 1.0 / 5040;
    s = s * z + 1.0 / 120;
    s = s * z - 1.0 / 6;
    s = s * z * r + r;
    double c = 1.0 / 20922789888000;
    c = c * z - 1.0 / 87178291200;
    c = c * z + 1.0 / 479001600;
    c = c * z - 1.0 / 3628800;
    c = c * z + 1.0 / 40320;
    c = c * z - 1.0 / 720;
    c = c * z + 1.0 / 24;
    const double half = 0.5 * z, one = 1.0 - half;
    c = one + (((1.0 - one) - half) + c * z * z);
    const double sine = x == 0.0 ? x : quarter & 1 ? c : s, cosine = quarter & 1 ? s : c;
    return (Circle){quarter & 2 ? -sine : sine, (quarter + 1) & 2 ? -cosine : cosine};
}

/* The elements of temporary results. */
#define SPAN 256

/* Kernels of either type. Numbers from WHOLE on have no fraction. */
#define OF_TYPE(function, ...) _Generic((REAL)0, float: function##f, double: function)(__VA_ARGS__)
#define WHOLE _Generic((REAL)0, float: 0x1p23f, double: 0x1p52)
#define EXP(x) _Generic((x), float: exp_of, double: exp_of_double)(x)
#define LOG(x) _Generic((x), float: log_of, double: log_of_double)(x)
#define ARCTAN_TERMS(x) _Generic((x), float: arctan_terms, double: arctan_terms_double)(x)
#define LOG1P(x) _Generic((x), float: log1p_of, double: log1p_of_double)(x)

/* The remainder of x / y, neither negative: x minus the nearest multiple of y, which is exact, plus y if that is
 * negative. IS_FAR tells where it would not be exact. */
INLINE int is_far_of_float(float x, float y) { return !((double)x / y < 0x1p28); }

INLINE float rest_of_float(float x, float y) {
    const double shift = 0x1.8p52, whole = ((double)x / y + shift) - shift;
    const double rest = whole == 0.0 ? x : x - whole * y; /* y may be infinite */
    return (float)(rest < 0.0 ? rest + y : rest);
}

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
INLINE int is_far_of_double(double x, double y) { return !(x / y < 0x1p51); }

INLINE double less_multiple(double x, double whole, double y) { return fma(-whole, y, x); }
#else
INLINE int is_far_of_double(double x, double y) { return !(x / y < 0x1p24) || !(x < 0x1p1022); }

/* Each half of y's digits times the whole number is exact. */
INLINE double less_multiple(double x, double whole, double y) {
    uint64_t bits;
    double high;
    memcpy(&bits, &y, sizeof bits);
    bits &= ~(((uint64_t)1 << 26) - 1);
    memcpy(&high, &bits, sizeof high);
    return (x - whole * high) - whole * (y - high);
}
#endif

INLINE double rest_of_double(double x, double y) {
    const double shift = 0x1.8p52, whole = (x / y + shift) - shift;
    const double rest = whole == 0.0 ? x : less_multiple(x, whole, y);
    return rest < 0.0 ? rest + y : rest;
}

#define IS_FAR(x, y) _Generic((x), float: is_far_of_float, double: is_far_of_double)(x, y)
#define REST(x, y) _Generic((x), float: rest_of_float, double: rest_of_double)(x, y)

#include "elementwise.h"
#undef REAL
#undef NAMED
#define REAL double
#define NAMED(name) backburn_##name##_double
#include "elementwise.h"
#undef REAL
#undef NAMED
#define REAL float
#define NAMED(name) backburn_##name

/* By the library's functions if a number is far from 0 or not finite. Floats are computed as doubles. */
#define CIRCULAR(name, expression)                                                                                     \
    KERNEL(name##_double, double *out, const double *xs, int64_t count) {                                              \
        int64_t far = 0;                                                                                               \
        SUM_OF(far) for (int64_t i = 0; i < count; i++) far += !(fabs(xs[i]) < 0x1p20);                                \
        if (far) {                                                                                                     \
            for (int64_t i = 0; i < count; i++) out[i] = name(xs[i]);                                                  \
            return;                                                                                                    \
        }                                                                                                              \
        LOOP for (int64_t i = 0; i < count; i++) {                                                                     \
            const Circle c = circle_of(xs[i]);                                                                         \
            out[i] = expression;                                                                                       \
        }                                                                                                              \
    }                                                                                                                  \
    KERNEL(name, float *out, const float *xs, int64_t count) {                                                         \
        double room[SPAN];                                                                                             \
        for (; count > 0; out += SPAN, xs += SPAN, count -= SPAN) {                                                    \
            const int64_t n = count < SPAN ? count : SPAN;                                                             \
            LOOP for (int64_t i = 0; i < n; i++) room[i] = xs[i];                                                      \
            NAMED(name##_double)(room, room, n);                                                                       \
            LOOP for (int64_t i = 0; i < n; i++) out[i] = (float)room[i];                                              \
        }                                                                                                              \
    }
CIRCULAR(sin, c.sine)
CIRCULAR(cos, c.cosine)
CIRCULAR(tan, c.sine / c.cosine)
