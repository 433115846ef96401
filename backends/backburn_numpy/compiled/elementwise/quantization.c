/* Quantization to integers of 4 and 8 bits. */
#define UNROLLED
#include "runtime/kernels.h"

/* The stored values of some elements, rounded to even. The sum with 1.5 * 2**17 undoes the rounding of the reciprocal:
 * a quotient of two float32 numbers from -512 to 512 is a half, or differs from it by more than 2**-27. The sum with
 * 1.5 * 2**52 rounds to an integer. */
INLINE void store(uint8_t *restrict out, const float *restrict x, int64_t count, double reciprocal, int32_t zero,
                  int32_t least, int32_t most) {
    const double low = least - zero, high = most - zero;
    LOOP for (int64_t i = 0; i < count; i++) {
        double steps = (x[i] * reciprocal + 0x1.8p17) - 0x1.8p17;
        steps = steps > low ? steps : low;
        steps = steps < high ? steps : high;
        out[i] = (uint8_t)((int32_t)((steps + 0x1.8p52) - 0x1.8p52) + zero);
    }
}

/* Quantizes lines of width elements, with a step for each block, for the ranges from low to high, or if these are null,
 * for those of the values and 0. refused becomes 1 if something is not finite or a range is reversed; the results are
 * then invalid. */
KERNEL(quantize, uint8_t *restrict out, float *restrict scale, int8_t *restrict zeros, int32_t *restrict refused,
       const float *restrict x, const float *restrict low, const float *restrict high, int least, int most,
       int symmetric, int64_t lines, int64_t width, int64_t block) {
    const double count = symmetric ? most : most - least;
    int64_t k = 0;
    for (int64_t line = 0; line < lines; line++) {
        for (int64_t start = 0; start < width; start += block, k++) {
            const int64_t at = line * width + start, length = width - start < block ? width - start : block;
            float lowest = 0.0f, highest = 0.0f;
            int32_t largest = 0; /* the bits of the largest magnitude, which is that of a NaN if there is one */
            _Pragma("omp simd reduction(max : largest, highest) reduction(min : lowest)")
            for (int64_t i = 0; i < length; i++) {
                const float one = x[at + i];
                const int32_t bits = to_bits(one) & 0x7fffffff;
                largest = bits > largest ? bits : largest;
                lowest = one < lowest ? one : lowest;
                highest = one > highest ? one : highest;
            }
            if (low) {
                *refused |= !(low[k] <= high[k]);
                lowest = low[k] < 0.0f ? low[k] : 0.0f;
                highest = high[k] > 0.0f ? high[k] : 0.0f;
            }
            /* A step whose multiples reach the ends of the range, as in steps_for. */
            const double reach = !symmetric ? (double)highest - lowest : highest > -lowest ? highest : -lowest;
            scale[k] = (float)(reach == 0.0 ? 1.0 : reach / count);
            double step = scale[k];
            if (step * (symmetric ? count + 0.5 : count) < reach) {
                scale[k] = (float)(step + (step > 0x1p-126 ? step * 0x1p-23 : 0x1p-149));
                step = scale[k];
            }
            *refused |= largest >= 0x7f800000 || !(step < INFINITY);
            if (*refused) return;
            int32_t zero = 0;
            if (!symmetric) {
                const double exact = (least - lowest / step + 0x1.8p52) - 0x1.8p52;
                zero = (int32_t)(exact < least ? least : exact > most ? most : exact);
                zeros[k] = (int8_t)zero;
            }
            store(out + at, x + at, length, reach == 0.0 ? 0.0 : 1.0 / step, zero, least, most);
        }
    }
}
