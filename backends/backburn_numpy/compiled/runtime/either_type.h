/* Functions of either type: those of float are in kernels.h, those of double in float64.h and here. */
#ifndef BACKBURN_GENERIC_H
#define BACKBURN_GENERIC_H

#include "float64.h"
#include "kernels.h"

INLINE double sigmoid_of_double(double x) {
    const double e = exp_of_double(-fabs(x)), above = 1.0 / (1.0 + e);
    return x < 0.0 ? e * above : above;
}

/* tanh(x), within 3 ulp: x plus x**3 times Cephes' (Moshier) rational function near 0, else 1 - 2 / (exp(2 |x|) + 1)
 * with the sign of x. */
INLINE double tanh_of_double(double x) {
    const double y = fabs(x), z = x * x;
    double p = -9.64399179425052238628e-1, q = z + 1.12811678491632931402e2;
    p = p * z - 9.92877231001918586564e1;
    p = p * z - 1.61468768441708447952e3;
    q = q * z + 2.23548839060100448583e3;
    q = q * z + 4.84406305325125486048e3;
    const double near = p / q * z * y + y, far = 1.0 - 2.0 / (exp_of_double(2.0 * y) + 1.0);
    return copysign(y < 0.625 ? near : x != x ? x : far, x);
}

#define OF_EITHER(name, x) _Generic((x), float: name, double: name##_double)(x)
#define EXP_OF(x) OF_EITHER(exp_of, x)
#define LOG_OF(x) OF_EITHER(log_of, x)
#define LOG1P_OF(x) OF_EITHER(log1p_of, x)
#define SIGMOID_OF(x) OF_EITHER(sigmoid_of, x)
#define TANH_OF(x) OF_EITHER(tanh_of, x)

#endif
