/* Running sums and products of floats, and products of all other elements, kept as doubles. */
#include <float.h>

#include "runtime/kernels.h"

#include "runtime/simd.h"

enum {
    CHAINS = 8,  /* rows at a time: independent chains of operations hide their latency */
    WIDE = 1024, /* columns at a time, whose totals stay in the cache */
};

/* Sums (0) and products (1). Sums begin with -0, so that a first -0 stays -0. */
#define JOINED(x, y) (operation ? (x) * (y) : (x) + (y))
#define NEUTRAL (operation ? 1.0 : -0.0)

#ifdef __AVX512F__
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLED(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define SHUFFLED(x, y, ...) __builtin_shuffle(x, y, (__typeof__((x) < (y))){__VA_ARGS__})
#endif
#define LIST(...) __VA_ARGS__

/* Eight rows of eight elements become columns. */
INLINE void transpose(Half *x) {
    Half a[8], b[8];
    UNROLL for (int i = 0; i < 8; i += 2) {
        a[i] = SHUFFLED(x[i], x[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        a[i + 1] = SHUFFLED(x[i], x[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    UNROLL for (int i = 0; i < 8; i += 4)
        UNROLL for (int k = 0; k < 2; k++) {
            b[i + 2 * k] = SHUFFLED(a[i + k], a[i + k + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            b[i + 2 * k + 1] = SHUFFLED(a[i + k], a[i + k + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    UNROLL for (int i = 0; i < 4; i++) {
        x[i] = SHUFFLED(b[i], b[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        x[i + 4] = SHUFFLED(b[i], b[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

/* Runs along CHAINS rows in whole blocks of CHAINS elements; returns how many elements of each are done. */
INLINE int64_t run_chains(float *restrict out, const float *restrict x, int64_t width, double *totals, int operation,
                          int backwards) {
    Wide total;
    memcpy(&total, totals, sizeof total);
    int64_t done = 0;
    for (; done + CHAINS <= width; done += CHAINS) {
        const int64_t at = backwards ? width - CHAINS - done : done;
        Half some[CHAINS];
        UNROLL for (int c = 0; c < CHAINS; c++) memcpy(some + c, x + c * width + at, sizeof *some);
        transpose(some);
        UNROLL for (int i = 0; i < CHAINS; i++) {
            Half *column = some + (backwards ? CHAINS - 1 - i : i);
            total = JOINED(total, widen(*column));
            *column = narrow(total);
        }
        transpose(some);
        UNROLL for (int c = 0; c < CHAINS; c++) memcpy(out + c * width + at, some + c, sizeof *some);
    }
    memcpy(totals, &total, sizeof total);
    return done;
}

/* Each lane joined with the one that is 1, 2 or 4 before it (after it, if backwards), if there is one. */
#define STEP(x, ahead, back) x = JOINED(x, backwards ? SHUFFLED(x, none, back) : SHUFFLED(x, none, ahead))

/* Runs along a row: lanes are joined among themselves first, so that only the join with the total waits for its
 * predecessor. */
INLINE int64_t run_chain(float *restrict out, const float *restrict x, int64_t width, double *total, int operation,
                         int backwards) {
    Wide none;
    for (int i = 0; i < CHAINS; i++) none[i] = NEUTRAL;
    Wide before = none;
    int64_t done = 0;
    for (; done + CHAINS <= width; done += CHAINS) {
        const int64_t at = backwards ? width - CHAINS - done : done;
        Half some;
        memcpy(&some, x + at, sizeof some);
        Wide run = widen(some);
        STEP(run, LIST(8, 0, 1, 2, 3, 4, 5, 6), LIST(1, 2, 3, 4, 5, 6, 7, 8));
        STEP(run, LIST(8, 8, 0, 1, 2, 3, 4, 5), LIST(2, 3, 4, 5, 6, 7, 8, 8));
        STEP(run, LIST(8, 8, 8, 8, 0, 1, 2, 3), LIST(4, 5, 6, 7, 8, 8, 8, 8));
        some = narrow(JOINED(before, run));
        memcpy(out + at, &some, sizeof some);
        before = JOINED(before, backwards ? SHUFFLED(run, run, 0, 0, 0, 0, 0, 0, 0, 0)
                                          : SHUFFLED(run, run, 7, 7, 7, 7, 7, 7, 7, 7));
    }
    *total = before[0];
    return done;
}
#else
#define run_chains(...) 0
#define run_chain(...) 0
#endif

INLINE void run_rows(float *restrict out, const float *restrict x, int64_t rows, int64_t width, int operation,
                     int backwards) {
    const int64_t stride = backwards ? -1 : 1, first = backwards ? width - 1 : 0;
    int64_t r = 0;
    for (; r + CHAINS <= rows; r += CHAINS, x += CHAINS * width, out += CHAINS * width) {
        double totals[CHAINS];
        for (int c = 0; c < CHAINS; c++) totals[c] = NEUTRAL;
        int64_t done = run_chains(out, x, width, totals, operation, backwards);
        for (int64_t at = first + done * stride; done < width; done++, at += stride)
            for (int c = 0; c < CHAINS; c++)
                out[at + c * width] = (float)(totals[c] = JOINED(totals[c], x[at + c * width]));
    }
    for (; r < rows; r++, x += width, out += width) {
        double total = NEUTRAL;
        int64_t done = run_chain(out, x, width, &total, operation, backwards);
        for (int64_t at = first + done * stride; done < width; done++, at += stride)
            out[at] = (float)(total = JOINED(total, x[at]));
    }
}

/* Runs along a few rows of columns, stride apart, with their totals. */
INLINE void run_on(float *restrict out, const float *restrict x, double *restrict totals, int rows, int64_t stride,
                   int64_t width, int operation) {
    int64_t i = 0;
    for (; i + LANES / 2 <= width; i += LANES / 2) {
        Wide total = load_wide(totals + i);
        UNROLL for (int row = 0; row < rows; row++) {
            total = JOINED(total, load_widened(x + row * stride + i));
            const Half some = narrow(total);
            memcpy(out + row * stride + i, &some, sizeof some);
        }
        memcpy(totals + i, &total, sizeof total);
    }
    for (; i < width; i++)
        for (int row = 0; row < rows; row++)
            out[row * stride + i] = (float)(totals[i] = JOINED(totals[i], x[row * stride + i]));
}

/* Along the columns first to last - 1 of matrices (length, inner), four rows at a time. */
INLINE void run_columns(float *restrict out, const float *restrict x, int64_t number, int64_t length, int64_t inner,
                        int64_t first, int64_t last, int operation, int backwards) {
    const int64_t stride = backwards ? -inner : inner;
    for (; number > 0; number--, out += length * inner, x += length * inner)
        for (int64_t from = first; from < last; from += WIDE) {
            const int64_t width = last - from < WIDE ? last - from : WIDE;
            double totals[WIDE];
            for (int64_t i = 0; i < width; i++) totals[i] = NEUTRAL;
            int64_t row = 0, at = (backwards ? (length - 1) * inner : 0) + from;
            for (; row + 4 <= length; row += 4, at += 4 * stride)
                run_on(out + at, x + at, totals, 4, stride, width, operation);
            for (; row < length; row++, at += stride) run_on(out + at, x + at, totals, 1, stride, width, operation);
        }
}
static void sum_columns(float *restrict out, const float *restrict x, int64_t number, int64_t length, int64_t inner,
                        int64_t first, int64_t last, int backwards) {
    run_columns(out, x, number, length, inner, first, last, 0, backwards);
}
static void prod_columns(float *restrict out, const float *restrict x, int64_t number, int64_t length, int64_t inner,
                         int64_t first, int64_t last, int backwards) {
    run_columns(out, x, number, length, inner, first, last, 1, backwards);
}

#define RUNNING(name, kind, operation, backwards)                                                                      \
    KERNEL(name, float *restrict out, const float *restrict x, int64_t rows, int64_t width) {                          \
        run_rows(out, x, rows, width, operation, backwards);                                                           \
    }                                                                                                                  \
    KERNEL(name##_columns, float *restrict out, const float *restrict x, int64_t number, int64_t length,               \
           int64_t inner, int64_t first, int64_t last) {                                                               \
        kind##_columns(out, x, number, length, inner, first, last, backwards);                                         \
    }
RUNNING(cumsum, sum, 0, 0)
RUNNING(cumsum_reverse, sum, 0, 1)
RUNNING(cumprod, prod, 1, 0)
RUNNING(cumprod_reverse, prod, 1, 1)

/* ---- the product of all other elements of a line: that of the line, divided by the element ---- */

/* Whether a product is a normal number as a float, too: then no factor is 0, infinite or NaN, and floats are divided,
 * in a third of the time of doubles. */
INLINE int is_normal(double product) { return (fabs(product) >= FLT_MIN) & (fabs(product) <= FLT_MAX); }
INLINE float divided(double product, float x) { return (float)product / x; }

/* Multiplies products by the elements that are not 0, and counts those that are. */
SHARED void multiply_nonzero(double *restrict products, double *restrict zeros, const float *restrict x,
                             int64_t width) {
    LOOP for (int64_t i = 0; i < width; i++) {
        const int is_zero = x[i] == 0.0f;
        products[i] *= is_zero ? 1.0 : (double)x[i];
        zeros[i] += is_zero ? 1.0 : 0.0;
    }
}

/* If there is no 0, or one, which has the only result that is not 0. A column's bits do not depend on its neighbours. */
SHARED void divide_by_nonzero(float *restrict out, const float *restrict x, const double *restrict products,
                              const double *restrict zeros, int64_t width) {
    LOOP for (int64_t i = 0; i < width; i++) {
        const int is_zero = x[i] == 0.0f;
        const double others = products[i] / (is_zero ? 1.0 : (double)x[i]);
        const float some = is_normal(products[i]) ? divided(products[i], is_zero ? 1.0f : x[i]) : (float)others;
        out[i] = zeros[i] == (is_zero ? 1.0 : 0.0) ? some : 0.0f;
    }
}

/* Lines side by side: rows of width elements, stride apart; or, if joined, one line in rows of which the last may be
 * shorter. The products are those of the elements that are not 0. */
SHARED void divide_nonzero_products(float *restrict out, const float *restrict x, double *restrict products,
                                    int64_t size, int64_t stride, int64_t width, int joined) {
    double zeros[WIDE];
    for (int64_t i = 0; i < width; i++) products[i] = 1.0, zeros[i] = 0.0;
    for (int64_t at = 0; at < size; at += stride)
        multiply_nonzero(products, zeros, x + at, size - at < width ? size - at : width);
    if (joined) {
        for (int64_t i = 1; i < width; i++) *products *= products[i], *zeros += zeros[i];
        for (int64_t i = 1; i < width; i++) products[i] = *products, zeros[i] = *zeros;
    }
    for (int64_t at = 0; at < size; at += stride)
        divide_by_nonzero(out + at, x + at, products, zeros, size - at < width ? size - at : width);
}

KERNEL(prod_of_others, float *restrict out, const float *restrict x, double *restrict products, int64_t rows,
       int64_t width) {
    enum { SIDE = 64 };
    double some[SIDE];
    for (int64_t r = 0; r < rows; r++, out += width, x += width) {
        Wide parts[4];
        for (int i = 0; i < LANES / 2; i++) parts[0][i] = parts[1][i] = parts[2][i] = parts[3][i] = 1.0;
        BY_VECTORS(LANES, 0, width, const Lanes y = AT(x, 1.0f); parts[turn] *= low_half(y);
                   parts[2 + turn] *= high_half(y);)
        products[r] = product_of_wide((parts[0] * parts[1]) * (parts[2] * parts[3]));
        if (is_normal(products[r])) {
            const double product = products[r];
            LOOP for (int64_t i = 0; i < width; i++) out[i] = divided(product, x[i]);
        } else {
            divide_nonzero_products(out, x, some, width, SIDE, SIDE, 1);
            products[r] = *some;
        }
    }
}

/* width columns of a matrix (length, inner); returns 0 if a product is not normal. */
SHARED int divide_columns(float *restrict out, const float *restrict x, double *restrict products, int64_t length,
                          int64_t inner, int64_t width) {
    int all = 1;
    for (int64_t i = 0; i < width; i++) products[i] = 1.0;
    for (int64_t row = 0; row < length; row++)
        LOOP for (int64_t i = 0; i < width; i++) products[i] *= x[row * inner + i];
    LOOP for (int64_t i = 0; i < width; i++) all &= is_normal(products[i]);
    for (int64_t row = 0; all && row < length; row++)
        LOOP for (int64_t i = 0; i < width; i++) out[row * inner + i] = divided(products[i], x[row * inner + i]);
    return all;
}

/* Along the columns first to last - 1 of matrices (length, inner). */
KERNEL(prod_of_others_columns, float *restrict out, const float *restrict x, double *restrict products, int64_t number,
       int64_t length, int64_t inner, int64_t first, int64_t last) {
    const int64_t size = length * inner;
    for (; number > 0; number--, out += size, x += size, products += inner)
        for (int64_t at = first; at < last; at += WIDE) {
            const int64_t width = last - at < WIDE ? last - at : WIDE;
            if (!divide_columns(out + at, x + at, products + at, length, inner, width))
                divide_nonzero_products(out + at, x + at, products + at, size - at, inner, width, 0);
        }
}
