/* A group of calls on the rows of matrices in one pass: kernels called one after another on tiles of whole rows. */
#include "runtime/kernels.h"
#include "runtime/repeat.h"
#include "runtime/thread_pool.h"

/* What does not change between calls. */
enum { STEPS, LENGTH, ROWS, WIDTH, TALL, PORTION, SIZE, ROOM, BLOCK, REPEATS };

/* Tiles do not cross blocks of rows: a repeated array lies elsewhere for the next one. REPEATS is the address of the
 * terms of all arrays (repeat.h), or 0 if none is repeated. */

/* A step is the address of a kernel, how it is called, the number of its arrays, and for each array: a start, or -1 for
 * a thread's scratch memory; the offset in bytes; and the row stride in bytes, or -1 for sums of columns, which are
 * doubles of each portion. The first array is the result.
 * ELEMENTS: all elements of a tile. NUMBERS: one number per row. BY_ROW: one row after another.
 * REDUCE: an operand and the result, one number per row.
 * COLUMNS: an operand and the sums of its columns.
 * ALONG: two to four arrays that the kernel takes with the rows and their width, in its order.
 * NORM, NORM_BACKWARD: those of standardize and its gradient; the last two arrays of the latter are sums of a few rows,
 * and of columns. The words after the arrays are eps, a double, and whether the mean is subtracted; MOMENTS has them,
 * too.
 * CODE: machine code generated for the pass; the word after the number of its arrays is the address of a table of them.
 * An array of start -2 is absent. */
enum { ELEMENTS, NUMBERS, BY_ROW, REDUCE, COLUMNS, ALONG, NORM, NORM_BACKWARD, CODE, MOMENTS };
enum { ARRAYS_OF_STEP = 6, EPS = 3 + 3 * ARRAYS_OF_STEP, CENTRED, WORDS, FEW_ROWS = 4, MOST_ARRAYS = 32 };

typedef struct {
    const int64_t *fixed, *starts;
    char *rooms;
} Pass;

static void call(void *kernel, int64_t arrays, char *const *a, int64_t count) {
    typedef void Two(char *, char *, int64_t), Three(char *, char *, char *, int64_t);
    typedef void Four(char *, char *, char *, char *, int64_t);
    if (arrays == 2) ((Two *)kernel)(a[0], a[1], count);
    else if (arrays == 3) ((Three *)kernel)(a[0], a[1], a[2], count);
    else ((Four *)kernel)(a[0], a[1], a[2], a[3], count);
}

/* A norm of rows of floats or doubles, or its gradient and the sums of columns for the scale: of a few rows at a time,
 * the remainder first, as in COLUMNS and in machine code. */
#define NORM_OF(type)                                                                                          \
    static void norm_##type(const int64_t *step, char *const *a, int is_first, int64_t rows, int64_t width) {          \
        typedef void Norm(char *, char *, char *, char *, type, int, int64_t, int64_t);                                \
        typedef void Backward(char *, type *, char *, char *, char *, type, int, int64_t, int64_t, int64_t, int64_t,   \
                              int64_t);                                                                                \
        double eps;                                                                                                    \
        memcpy(&eps, step + EPS, sizeof eps);                                                                          \
        const int centred = (int)step[CENTRED];                                                                        \
        if (step[1] == NORM) {                                                                                         \
            ((Norm *)(intptr_t)step[0])(a[0], a[1], a[2], a[3], (type)eps, centred, rows, width);                      \
            return;                                                                                                    \
        }                                                                                                              \
        type *restrict some = (type *)a[4];                                                                            \
        double *restrict sums = (double *)a[5];                                                                        \
        for (int64_t r = 0, count; r < rows; r += count) {                                                             \
            const int64_t at = r * width * (int64_t)sizeof(type);                                                      \
            count = r || rows % FEW_ROWS == 0 ? FEW_ROWS : rows % FEW_ROWS;                                            \
            ((Backward *)(intptr_t)step[0])(a[0] + at, some, a[1] + at, a[2] + at, a[3], (type)eps, centred, count,    \
                                            count, width, 0, 1);                                                       \
            if (is_first && !r) LOOP for (int64_t i = 0; i < width; i++) sums[i] = 0.0 + some[i];                      \
            else LOOP for (int64_t i = 0; i < width; i++) sums[i] += some[i];                                          \
        }                                                                                                              \
    }
NORM_OF(float)
NORM_OF(double)

/* Adds the sums of columns to doubles: of four rows at a time in their own type, the remainder first. */
#define COLUMNS_OF(type)                                                                                               \
    INLINE void add_few_##type(double *restrict sums, const type *restrict x, int count, int64_t width) {              \
        LOOP for (int64_t i = 0; i < width; i++) {                                                                     \
            type sum = (type)0 + x[i];                                                                                 \
            UNROLL for (int r = 1; r < count; r++) sum += x[r * width + i];                                            \
            sums[i] += (double)sum;                                                                                    \
        }                                                                                                              \
    }                                                                                                                  \
    static void add_columns_##type(double *restrict sums, const type *restrict x, int64_t rows, int64_t width) {       \
        const int64_t some = rows % FEW_ROWS;                                                                          \
        if (some == 1) add_few_##type(sums, x, 1, width);                                                              \
        if (some == 2) add_few_##type(sums, x, 2, width);                                                              \
        if (some == 3) add_few_##type(sums, x, 3, width);                                                              \
        for (int64_t r = some; r < rows; r += FEW_ROWS) add_few_##type(sums, x + r * width, FEW_ROWS, width);          \
    }
COLUMNS_OF(float)
COLUMNS_OF(double)

static void tile(const Pass *p, char *room, int64_t portion, int64_t top, int64_t rows) {
    typedef void Along(char *, char *, int64_t, int64_t), Along3(char *, char *, char *, int64_t, int64_t);
    typedef void Along4(char *, char *, char *, char *, int64_t, int64_t);
    typedef void Moments(char *, char *, float, int, int64_t, int64_t);
    const int64_t *f = p->fixed, *step = (const int64_t *)(intptr_t)f[STEPS], width = f[WIDTH];
    const int64_t *repeats = (const int64_t *)(intptr_t)f[REPEATS];
    const int is_first = top == portion * f[PORTION];
    for (const int64_t *end = step + WORDS * f[LENGTH]; step < end; step += WORDS) {
        void *kernel = (void *)(intptr_t)step[0];
        char *a[MOST_ARRAYS];
        const int64_t *at = step[1] == CODE ? (const int64_t *)(intptr_t)step[3] : step + 3;
        for (int64_t i = 0; i < step[2]; i++, at += 3) {
            const int64_t offset = at[0] < 0  ? 0
                                   : at[2] < 0 ? 8 * portion * width
                                   : repeats   ? offset_of_row(repeats + at[0] * WORDS_OF_REPEAT, top)
                                               : top * at[2];
            a[i] = at[0] == -2 ? NULL : (at[0] < 0 ? room : (char *)(intptr_t)p->starts[at[0]]) + at[1] + offset;
            if (at[2] < 0 && is_first) memset(a[i], 0, (size_t)width * 8);
        }
        if (step[1] == CODE) ((Code *)kernel)(a, rows);
        else if (step[1] == ELEMENTS) call(kernel, step[2], a, rows * width);
        else if (step[1] == NUMBERS) call(kernel, step[2], a, rows);
        else if (step[1] == REDUCE || (step[1] == ALONG && step[2] == 2)) ((Along *)kernel)(a[0], a[1], rows, width);
        else if (step[1] == ALONG && step[2] == 3) ((Along3 *)kernel)(a[0], a[1], a[2], rows, width);
        else if (step[1] == ALONG) ((Along4 *)kernel)(a[0], a[1], a[2], a[3], rows, width);
        else if (step[1] == MOMENTS) {
            double eps;
            memcpy(&eps, step + EPS, sizeof eps);
            ((Moments *)kernel)(a[0], a[1], (float)eps, (int)step[CENTRED], rows, width);
        }
        else if (step[1] == NORM || step[1] == NORM_BACKWARD) {
            (f[SIZE] == 4 ? norm_float : norm_double)(step, a, is_first, rows, width);
        } else if (step[1] == COLUMNS) {
            if (f[SIZE] == 4) add_columns_float((double *)a[1], (const float *)a[0], rows, width);
            else add_columns_double((double *)a[1], (const double *)a[0], rows, width);
        } else {
            for (int64_t r = 0; r < rows; r++) {
                call(kernel, step[2], a, width);
                for (int64_t i = 0; i < step[2]; i++) a[i] += step[5 + 3 * i];
            }
        }
    }
}

static void portions(const void *context, int64_t first, int64_t last) {
    const Pass *p = context;
    const int64_t *f = p->fixed;
    char *room = p->rooms + backburn_pool_place() * f[ROOM];
    for (; first < last; first++) {
        const int64_t from = first * f[PORTION], end = from + f[PORTION] < f[ROWS] ? from + f[PORTION] : f[ROWS];
        for (int64_t top = from, rows; top < end; top += rows) {
            const int64_t left = f[BLOCK] - top % f[BLOCK];
            rows = end - top < f[TALL] ? end - top : f[TALL];
            if (left < rows) rows = left;
            tile(p, room, first, top, rows);
        }
    }
}

/* Portions of rows depend on the shape alone, and so do results, bitwise. */
KERNEL(run_tiles, const int64_t *fixed, const int64_t *starts, char *rooms, int threads) {
    const Pass pass = {fixed, starts, rooms};
    backburn_pool_run(portions, &pass, (fixed[ROWS] + fixed[PORTION] - 1) / fixed[PORTION], 1, threads);
}
