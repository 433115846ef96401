/* Exponentials and logarithms of doubles. */
#ifndef DOUBLES_H
#define DOUBLES_H
#include "kernels.h"

/* exp(x) of a double: 2**n p(r), r in -0.35 to 0.35, by enough terms of the series. */
INLINE double power_of_2_double(int64_t n) {
    const uint64_t bits = ((uint64_t)n + 1023u) << 52; /* n is any number for NaN */
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE double exp_of_double(double x) {
    const double shift = 0x1.8p52;
    x = x > 710.0 ? 710.0 : x;
    x = x < -746.0 ? -746.0 : x;
    const double shifted = x * 1.4426950408889634 + shift, n = shifted - shift;
    const double r = (x - n * 0x1.62e42feep-1) - n * 1.9082149292705877e-10;
    double p = 1.0 / 6227020800;
    p = p * r + 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = (p * r) * r + r + 1.0;
    int64_t whole, zero;
    memcpy(&whole, &shifted, sizeof whole);
    memcpy(&zero, &shift, sizeof zero);
    whole = (int64_t)((uint64_t)whole - (uint64_t)zero);
    const int64_t half = (whole + 2048) / 2 - 1024; /* without an arithmetic shift, which AVX2 lacks */
    return p * power_of_2_double(half) * power_of_2_double(whole - half);
}

/* log(x) of a double: 2 artanh(s) with s = z / (2 + z), z in -0.3 to 0.42, by enough terms of its series. */
INLINE double log_of_double(double x) {
    const int small = x < 0x1p-1022;
    const double u = small ? x * 0x1p52 : x;
    int64_t bits;
    memcpy(&bits, &u, sizeof bits);
    /* The exponent for a significand in sqrt(1/2) to sqrt(2), via a double: AVX2 cannot convert 64-bit integers. */
    const uint64_t over = (uint64_t)bits - 0x3fe6a09e667f3bcdu + ((uint64_t)1023 << 52);
    const int64_t high = (int64_t)(over >> 52 | 0x4330000000000000u);
    double n, m;
    memcpy(&n, &high, sizeof n);
    n -= 0x1p52 + 1023.0;
    const int64_t scaled = (int64_t)((over & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu);
    memcpy(&m, &scaled, sizeof m);
    const double z = m - 1.0, s = z / (2.0 + z), square = s * s, half = 0.5 * z * z;
    double p = 2.0 / 21;
    p = p * square + 2.0 / 19;
    p = p * square + 2.0 / 17;
    p = p * square + 2.0 / 15;
    p = p * square + 2.0 / 13;
    p = p * square + 2.0 / 11;
    p = p * square + 2.0 / 9;
    p = p * square + 2.0 / 7;
    p = p * square + 2.0 / 5;
    p = p * square + 2.0 / 3;
    n = small ? n - 52.0 : n;
    const double rest = FUSED(n, 1.9082149292705877e-10, s * FUSED(p, square, half));
    const double result = n * 0x1.62e42feep-1 - ((half - rest) - z);
    return x > 0.0 ? (x < INFINITY ? result : x) : x == 0.0 ? -INFINITY : NAN;
}

INLINE double log1p_of_double(double x) {
    const double u = 1.0 + x, lost = x > 1.0 ? 1.0 - (u - x) : x - (u - 1.0);
    const double result = log_of_double(u), exact = result + (fabs(result) < INFINITY ? lost / u : 0.0);
    return fabs(x) < 0x1p-54 ? x : exact;
}

#endif
