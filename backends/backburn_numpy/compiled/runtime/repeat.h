/* Arrays whose rows are those of a larger one in another order, since they broadcast along several axes. */
#ifndef REPEAT_H
#define REPEAT_H
#include "kernels.h"

/* The words of an array: for each term three numbers, each, count and stride in bytes. */
enum { TERMS = 2, WORDS_OF_TERM = 3, WORDS_OF_REPEAT = TERMS * WORDS_OF_TERM };

/* Where the array's row for a row begins: the sum of row / each % count * stride, or row * stride where count is 0. */
INLINE int64_t offset_of_row(const int64_t *term, int64_t row) {
    int64_t offset = 0;
    for (int i = 0; i < TERMS; i++, term += WORDS_OF_TERM)
        offset += (term[1] ? row / term[0] % term[1] : row) * term[2];
    return offset;
}
#endif
