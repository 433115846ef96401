/* A part of a recorded program in one call: formulas, copies, and kernels that take addresses and sizes. */
#include "formula.h"
#include "kernels.h"

/* A step is its kind, the number of its words, and what it needs:
 * FORMULA: see formula.h, the elements of a row, the rows, the start of each array, and the bytes from row to row of each
 * COPY: the result, the operand, the rows, the bytes of a row, and those from row to row of each
 * KERNEL_CALL: the address of a kernel and eight arguments; it ignores those that it does not have
 */
enum { FORMULA, COPY, KERNEL_CALL };
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

/* Runs the steps after putting addresses into them: each patch is the place of a word, which of the starts, and the bytes
 * after it. */
KERNEL(native_list, int64_t *restrict steps, int64_t words, const int64_t *restrict patches, int64_t count,
       const int64_t *restrict starts, int64_t grain, int64_t shared, int threads) {
    typedef void Kernel(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);
    for (int64_t i = 0; i < count; i++) steps[patches[3 * i]] = starts[patches[3 * i + 1]] + patches[3 * i + 2];
    for (const int64_t *step = steps, *end = steps + words; step < end; step += step[1]) {
        const int64_t *a = step + 3;
        if (step[0] == FORMULA) run_rows(step + 2, grain, shared, threads);
        else if (step[0] == COPY) copy_rows(step + 2);
        else ((Kernel *)(intptr_t)step[2])(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
    }
}
