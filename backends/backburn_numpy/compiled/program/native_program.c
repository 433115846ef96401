/* A part of a recorded program in one call: formulas, copies, and kernels that take addresses and sizes. */
#include "gemm/blas.h"
#include "formula.h"
#include "runtime/kernels.h"

/* A step is its kind, the number of its words, and its operands:
 * FORMULA: see formula.h, the elements of a row, the rows, the start of each array, and the row stride of each in bytes
 * COPY: the result, the operand, the rows, the bytes of a row, and the row strides of both
 * KERNEL_CALL: the address of a kernel and eleven arguments, of which it ignores those past its parameters
 * PRODUCT: the address of cblas_sgemm, or 0 for products in the kernels' threads, by the kernels or the chosen library;
 * whether each operand is transposed, m, n, k, each operand with its row stride in elements, whether the result is
 * added to, the result, and the bytes of an element
 * TRANSPOSE: the result, the operand, the number of matrices, their rows and columns, and the bytes of an element
 * PASS: the fixed part of a pass over rows (tile_interpreter.c), a thread's scratch memory, and the starts
 */
enum { FORMULA, COPY, KERNEL_CALL, PRODUCT, TRANSPOSE, PASS };
enum { MOST = 64 };

static void run_rows(const int64_t *step, int64_t grain, int64_t shared, int threads) {
    const int64_t *fixed = (const int64_t *)(intptr_t)step[0], arrays = fixed[ARRAYS], count = step[1];
    const int64_t *starts = step + 3, *between = starts + arrays;
    if (step[2] == 1) {
        backburn_run_formula(fixed, starts, count, grain, count < shared ? 1 : threads);
        return;
    }
    int64_t row[MOST];
    memcpy(row, starts, (size_t)arrays * sizeof *row);
    for (int64_t r = 0; r < step[2]; r++) {
        backburn_run_formula(fixed, row, count, grain, 1);
        for (int64_t k = 0; k < arrays; k++) row[k] += between[k];
    }
}

static void copy_rows(const int64_t *step) {
    char *out = (char *)(intptr_t)step[0];
    const char *x = (const char *)(intptr_t)step[1];
    for (int64_t r = 0; r < step[2]; r++, out += step[4], x += step[5]) memcpy(out, x, (size_t)step[3]);
}

void backburn_gemm_row_major(float *, const float *, const float *, int64_t, int64_t, int64_t, int, int, int64_t,
                             int64_t, int, int);
void backburn_gemm_row_major_double(double *, const double *, const double *, int64_t, int64_t, int64_t, int, int,
                                    int64_t, int64_t, int, int);
void backburn_blas_gemm_row_major(float *, const float *, const float *, int64_t, int64_t, int64_t, int, int, int64_t,
                                  int64_t, int, int);
void backburn_blas_gemm_row_major_double(double *, const double *, const double *, int64_t, int64_t, int64_t, int, int,
                                         int64_t, int64_t, int, int);
int backburn_blas_is_used(void);

/* Multiplications from which a second thread pays. */
enum { SHARED_WORK = 1 << 19 };

static void product(const int64_t *step, int threads) {
    if (!step[0]) {
        const int used = step[3] * step[4] * step[5] < SHARED_WORK ? 1 : threads;
        void *out = (void *)(intptr_t)step[11], *x = (void *)(intptr_t)step[6], *y = (void *)(intptr_t)step[8];
        const int is_used = backburn_blas_is_used();
        if (step[12] == 4)
            (is_used ? backburn_blas_gemm_row_major : backburn_gemm_row_major)(
                out, x, y, step[3], step[4], step[5], (int)step[1], (int)step[2], step[7], step[9], (int)step[10], used);
        else
            (is_used ? backburn_blas_gemm_row_major_double : backburn_gemm_row_major_double)(
                out, x, y, step[3], step[4], step[5], (int)step[1], (int)step[2], step[7], step[9], (int)step[10], used);
        return;
    }
    Sgemm *gemm = (Sgemm *)(intptr_t)step[0];
    gemm(ROW_MAJOR, step[1] ? TRANS : NO_TRANS, step[2] ? TRANS : NO_TRANS, step[3], step[4], step[5], 1.0f,
         (const float *)(intptr_t)step[6], step[7], (const float *)(intptr_t)step[8], step[9], (float)step[10],
         (float *)(intptr_t)step[11], step[4]);
}

/* Transposes matrices in tiles, whose lines stay in the L1 cache. */
#define TRANSPOSED(type)                                                                                               \
    static void transpose_##type(type *restrict out, const type *restrict x, int64_t rows, int64_t columns) {          \
        enum { TILE = 16 };                                                                                            \
        for (int64_t top = 0; top < rows; top += TILE)                                                                 \
            for (int64_t left = 0; left < columns; left += TILE)                                                       \
                for (int64_t j = left; j < columns && j < left + TILE; j++)                                            \
                    for (int64_t i = top; i < rows && i < top + TILE; i++) out[j * rows + i] = x[i * columns + j];     \
    }
TRANSPOSED(float)
TRANSPOSED(double)

static void transpose(const int64_t *step) {
    const int64_t rows = step[3], columns = step[4], size = step[5] * rows * columns;
    char *out = (char *)(intptr_t)step[0];
    const char *x = (const char *)(intptr_t)step[1];
    for (int64_t i = 0; i < step[2]; i++, out += size, x += size)
        if (step[5] == 4) transpose_float((float *)out, (const float *)x, rows, columns);
        else transpose_double((double *)out, (const double *)x, rows, columns);
}

void backburn_run_tiles(const int64_t *, const int64_t *, char *, int);

/* Runs the steps after patching addresses into them: each patch is the index of a word, that of a start, and an offset
 * in bytes. */
KERNEL(native_program, int64_t *restrict steps, int64_t words, const int64_t *restrict patches, int64_t count,
       const int64_t *restrict starts, int64_t grain, int64_t shared, int threads) {
    typedef void Kernel(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                        int64_t);
    for (int64_t i = 0; i < count; i++) steps[patches[3 * i]] = starts[patches[3 * i + 1]] + patches[3 * i + 2];
    for (const int64_t *step = steps, *end = steps + words; step < end; step += step[1]) {
        const int64_t *a = step + 3;
        if (step[0] == FORMULA) run_rows(step + 2, grain, shared, threads);
        else if (step[0] == COPY) copy_rows(step + 2);
        else if (step[0] == PRODUCT) product(step + 2, threads);
        else if (step[0] == TRANSPOSE) transpose(step + 2);
        else if (step[0] == PASS)
            backburn_run_tiles((const int64_t *)(intptr_t)step[2], step + 4, (char *)(intptr_t)step[3], 1);
        else ((Kernel *)(intptr_t)step[2])(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10]);
    }
}
