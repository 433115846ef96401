/* Reductions and cumulative sums of rows. */
#define UNROLLED
#include "kernels.h"

#include "lanes.h"

#define MAXIMUM_AND(count, top) _Pragma(TEXT(omp simd reduction(+ : count) reduction(max : top)))
#define MINIMUM_AND(count, low) _Pragma(TEXT(omp simd reduction(+ : count) reduction(min : low)))
#define PRODUCT_OF(product) _Pragma(TEXT(omp simd reduction(* : product)))
#define BLOCK 1024 /* elements summed in float32 */

#define VECTORS 4 /* sums of their own: one would wait for each addition */

INLINE float sum_of_block(const float *restrict x, int64_t count) {
    float sum = 0.0f;
    int64_t start = 0;
    if (count >= 2 * VECTORS * LANES) {
        Lanes sums[VECTORS] = {0};
        for (; start + VECTORS * LANES <= count; start += VECTORS * LANES)
            for (int v = 0; v < VECTORS; v++) sums[v] += lanes_at(x + start + v * LANES);
        const Lanes all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        SUM_OF(sum) for (int i = 0; i < LANES; i++) sum += all[i];
    }
    SUM_OF(sum) for (int64_t i = start; i < count; i++) sum += x[i];
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

KERNEL(sum_rows_double, const double *restrict x, double *restrict out, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width) {
        double all = 0.0;
        for (int64_t start = 0; start < width; start += BLOCK) {
            const int64_t count = start + BLOCK < width ? BLOCK : width - start, part = count / 4;
            const double *a = x + start, *b = a + part, *c = b + part, *d = c + part;
            double first = 0.0, second = 0.0, third = 0.0, fourth = 0.0;
            SUM_OF(first, second, third, fourth) for (int64_t i = 0; i < part; i++)
                first += a[i], second += b[i], third += c[i], fourth += d[i];
            for (int64_t i = 4 * part; i < count; i++) fourth += a[i];
            all += (first + second) + (third + fourth);
        }
        out[r] = all;
    }
}

#define PRODUCTS(name, type)                                                                                           \
    KERNEL(name, const type *restrict x, type *restrict out, int64_t rows, int64_t width) {                            \
        for (int64_t r = 0; r < rows; r++, x += width) {                                                               \
            type product = 1;                                                                                          \
            PRODUCT_OF(product) for (int64_t i = 0; i < width; i++) product *= x[i];                                   \
            out[r] = product;                                                                                          \
        }                                                                                                              \
    }
PRODUCTS(prod_rows, float)
PRODUCTS(prod_rows_double, double)

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
        MAXIMUM_AND(unordered, top) for (int64_t i = 0; i < width; i++) {
            unordered += x[i] != x[i];
            top = x[i] > top ? x[i] : top;
        }
        out[r] = unordered ? NAN : top;
    }
}

KERNEL(min_rows, const float *restrict x, float *restrict out, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width) {
        float low = x[0];
        int unordered = 0;
        MINIMUM_AND(unordered, low) for (int64_t i = 0; i < width; i++) {
            unordered += x[i] != x[i];
            low = x[i] < low ? x[i] : low;
        }
        out[r] = unordered ? NAN : low;
    }
}

/* Reductions of matrices (count, inner), one after the other, over their rows. Narrow rows are taken together, as many
 * as fill LINE; blocks of rows are joined one by one, so that errors do not grow with their number. */
#define LINE 64
#define ROWS 256

INLINE float joined(float x, float y, int operation) {
    if (operation == 0) return x + y;
    return (operation > 0 ? y > x : y < x) | (y != y) ? y : x; /* once NaN, x stays */
}

INLINE void join(float *restrict x, const float *restrict y, int64_t width, int operation) {
    LOOP for (int64_t i = 0; i < width; i++) x[i] = joined(x[i], y[i], operation);
}

INLINE void join_rows(float *restrict out, const float *restrict x, int64_t rows, int64_t step, int64_t width,
                      int operation) {
    for (int64_t start = 0; start < rows; start += ROWS) {
        float some[LINE];
        memcpy(some, x + start * step, (size_t)width * sizeof *x);
        for (int64_t row = start + 1; row < rows && row < start + ROWS; row++)
            join(some, x + row * step, width, operation);
        if (start)
            join(out, some, width, operation);
        else
            memcpy(out, some, (size_t)width * sizeof *x);
    }
}

INLINE void join_matrices(const float *restrict x, float *restrict out, int64_t inner, int64_t number, int64_t size,
                          int operation) {
    const int64_t count = size / inner, together = inner < LINE ? (LINE / inner < count ? LINE / inner : count) : 1;
    for (; number > 0; number--, x += size, out += inner) {
        if (together == 1) {
            for (int64_t i = 0; i < inner; i += LINE)
                join_rows(out + i, x + i, count, inner, inner - i < LINE ? inner - i : LINE, operation);
            continue;
        }
        float all[LINE];
        join_rows(all, x, count / together, together * inner, together * inner, operation);
        memcpy(out, all, (size_t)inner * sizeof *x);
        for (int64_t row = 1; row < together; row++) join(out, all + row * inner, inner, operation);
        for (int64_t row = count / together * together; row < count; row++)
            join(out, x + row * inner, inner, operation);
    }
}

#define MATRICES(name, operation)                                                                                      \
    KERNEL(name, const float *restrict x, float *restrict out, int64_t inner, int64_t number, int64_t size) {        \
        join_matrices(x, out, inner, number, size, operation);                                                         \
    }
MATRICES(sum_matrices, 0)
MATRICES(max_matrices, 1)
MATRICES(min_matrices, -1)

#define CHAINS 8 /* rows at a time: independent chains of operations hide their latency */
#define WIDE 1024 /* columns at a time, whose last results stay in the cache */

/* Running results along rows, and along the columns first to last - 1 of matrices; the first is at begin. */
#define RUNNING(name, joined, begin, step)                                                                             \
    KERNEL(name, REAL *restrict out, const REAL *restrict x, int64_t rows, int64_t width) {                            \
        const int64_t first = begin(width);                                                                            \
        for (int64_t r = 0, count; r < rows; r += count) {                                                             \
            REAL totals[CHAINS];                                                                                       \
            const REAL *restrict from = x + r * width;                                                                 \
            REAL *restrict to = out + r * width;                                                                       \
            count = rows - r < CHAINS ? 1 : CHAINS;                                                                    \
            for (int c = 0; c < count; c++) to[c * width + first] = totals[c] = from[c * width + first];               \
            if (count == 1) {                                                                                          \
                for (int64_t i = 1, at = first + step; i < width; i++, at += step)                                     \
                    to[at] = totals[0] = joined(totals[0], from[at]);                                                  \
                continue;                                                                                              \
            }                                                                                                          \
            for (int64_t i = 1, at = first + step; i < width; i++, at += step)                                         \
                for (int c = 0; c < CHAINS; c++)                                                                       \
                    to[at + c * width] = totals[c] = joined(totals[c], from[at + c * width]);                          \
        }                                                                                                              \
    }                                                                                                                  \
    KERNEL(name##_columns, REAL *restrict out, const REAL *restrict x, int64_t number, int64_t length, int64_t inner,  \
           int64_t first, int64_t last) {                                                                              \
        for (; number > 0; number--, out += length * inner, x += length * inner)                                       \
            for (int64_t from = first; from < last; from += WIDE) {                                                    \
                const int64_t to = from + WIDE < last ? from + WIDE : last;                                            \
                int64_t at = begin(length) * inner;                                                                    \
                LOOP for (int64_t i = from; i < to; i++) out[at + i] = x[at + i];                                      \
                for (int64_t row = 1; row < length; row++) {                                                           \
                    const int64_t before = at;                                                                         \
                    at += (step) * inner;                                                                              \
                    LOOP for (int64_t i = from; i < to; i++) out[at + i] = joined(out[before + i], x[at + i]);         \
                }                                                                                                      \
            }                                                                                                          \
    }

#define SUM(total, x) (total) + (x)
#define PRODUCT(total, x) (total) * (x)
/* The first NaN stays. */
#define LARGER(total, x) (!((x) <= (total)) & ((total) == (total)) ? (x) : (total))
#define SMALLER(total, x) (!((x) >= (total)) & ((total) == (total)) ? (x) : (total))
#define START(length) 0
#define END(length) ((length) - 1)
#define ALL_RUNNING                                                                                                    \
    RUNNING(cumsum, SUM, START, 1)                                                                                     \
    RUNNING(cumsum_reverse, SUM, END, -1)                                                                              \
    RUNNING(cumprod, PRODUCT, START, 1)                                                                                \
    RUNNING(cumprod_reverse, PRODUCT, END, -1)                                                                         \
    RUNNING(cummax, LARGER, START, 1)                                                                                  \
    RUNNING(cummin, SMALLER, START, 1)
ALL_RUNNING
#undef REAL
#undef NAMED
#define REAL double
#define NAMED(name) backburn_##name##_double
ALL_RUNNING
