/* Formulas, as the interpreter runs them. */
#ifndef BACKBURN_FORMULA_H
#define BACKBURN_FORMULA_H

#include "runtime/kernels.h"

/* What does not change between calls: the address of the calls, their number, the address of the strides of the arrays'
 * elements in bytes, the number of arrays, and the size of an element. */
enum { CALLS, LENGTH, STEPS, ARRAYS, SIZE };

EXPORT void backburn_run_formula(const int64_t *fixed, const int64_t *starts, int64_t count, int64_t grain, int threads);

#endif
