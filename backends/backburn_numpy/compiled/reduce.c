/* Reductions and cumulative sums of rows. */
#define UNROLLED
#include "kernels.h"

#define MINIMUM_OF(low) _Pragma(TEXT(omp simd reduction(min : low)))
#define PRODUCT_OF(product) _Pragma(TEXT(omp simd reduction(* : product)))
#define BLOCK 1024 /* elements summed in float32 */

INLINE float sum_of_block(const float *restrict x, int64_t count) {
    float sum = 0.0f;
    SUM_OF(sum) for (int64_t i = 0; i < count; i++) sum += x[i];
    return sum;
}

KERNEL(sum_rows, const float *restrict x, float *restrict out, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width) {
        double sum = 0.0;
        for (int64_t start = 0; start < width; start += BLOCK) {
            sum += (double)sum_of_block(x + start, start + BLOCK < width ? BLOCK : width - start);
        }
        out[r] = (float)sum;
    }
}

KERNEL(prod_rows, const float *restrict x, float *restrict out, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width) {
        float product = 1.0f;
        PRODUCT_OF(product) for (int64_t i = 0; i < width; i++) product *= x[i];
        out[r] = product;
    }
}

/* The squares are exact in double precision. */
KERNEL(norm_rows, const float *restrict x, float *restrict out, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width) {
        double sum = 0.0;
        SUM_OF(sum) for (int64_t i = 0; i < width; i++) sum += (double)x[i] * x[i];
        out[r] = (float)sqrt(sum);
    }
}

/* NaN propagates. */
KERNEL(max_rows, const float *restrict x, float *restrict out, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width) {
        float top = x[0];
        int unordered = 0;
        MAXIMUM_OF(top) for (int64_t i = 0; i < width; i++) top = x[i] > top ? x[i] : top;
        SUM_OF(unordered) for (int64_t i = 0; i < width; i++) unordered += x[i] != x[i];
        out[r] = unordered ? NAN : top;
    }
}

KERNEL(min_rows, const float *restrict x, float *restrict out, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width) {
        float low = x[0];
        int unordered = 0;
        MINIMUM_OF(low) for (int64_t i = 0; i < width; i++) low = x[i] < low ? x[i] : low;
        SUM_OF(unordered) for (int64_t i = 0; i < width; i++) unordered += x[i] != x[i];
        out[r] = unordered ? NAN : low;
    }
}

#define CHAINS 8 /* rows at a time: independent chains of operations hide their latency */

INLINE float next_of(float total, float x, int multiplies) { return multiplies ? total * x : total + x; }

INLINE void running(float *restrict out, const float *restrict x, int64_t rows, int64_t width, int64_t first,
                    int64_t step, int multiplies) {
    int64_t r = 0;
    for (; r + CHAINS <= rows; r += CHAINS) {
        float totals[CHAINS];
        for (int c = 0; c < CHAINS; c++) totals[c] = multiplies ? 1.0f : 0.0f;
        for (int64_t i = 0; i < width; i++) {
            const int64_t at = r * width + first + i * step;
            for (int c = 0; c < CHAINS; c++) {
                out[at + c * width] = totals[c] = next_of(totals[c], x[at + c * width], multiplies);
            }
        }
    }
    for (; r < rows; r++) {
        float total = multiplies ? 1.0f : 0.0f;
        for (int64_t i = 0; i < width; i++) {
            const int64_t at = r * width + first + i * step;
            out[at] = total = next_of(total, x[at], multiplies);
        }
    }
}

#define RUNNING(name, multiplies)                                                                                      \
    KERNEL(name, float *restrict out, const float *restrict x, int64_t rows, int64_t width) {                        \
        running(out, x, rows, width, 0, 1, multiplies);                                                                \
    }                                                                                                                  \
    KERNEL(name##_reverse, float *restrict out, const float *restrict x, int64_t rows, int64_t width) {              \
        running(out, x, rows, width, width - 1, -1, multiplies); /* from the end to the start */                       \
    }
RUNNING(cumsum, 0)
RUNNING(cumprod, 1)
