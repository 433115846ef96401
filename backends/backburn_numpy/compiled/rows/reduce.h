/* Kernels of reductions and running results, of the type REAL, whose vectors are SEVERAL. Included once for each
 * type. */
#define IN_VECTOR ((int64_t)(sizeof(SEVERAL) / sizeof(REAL)))

/* Sums (0), products (2), maxima (1) and minima (-1), in which the first NaN stays. */
INLINE REAL NAMED(joined)(REAL x, REAL y, int operation) {
    if (operation == 0) return x + y;
    if (operation == 2) return x * y;
    return ((operation > 0 ? !(y <= x) : !(y >= x)) & (x == x)) ? y : x;
}

INLINE SEVERAL NAMED(joined_several)(SEVERAL x, SEVERAL y, int operation) {
    if (operation == 0) return x + y;
    if (operation == 2) return x * y;
    return NAN_OF_SEVERAL(x, y, operation > 0 ? LARGER(y, x) : SMALLER(y, x));
}

/* Reduces rows, if they are narrow, and returns how many: as many as fit a vector side by side, and the rest alone, in
 * the same order. Columns are loaded PART at a time; the last load ends with the row, and only its new columns
 * count. */
INLINE int64_t NAMED(narrow_rows)(const REAL *restrict x, REAL *restrict out, int64_t rows, int64_t width,
                                  int operation, int64_t most) {
    if (width > most || width < 1) return 0;
    if (width == 1) {
        memcpy(out, x, (size_t)rows * sizeof *x);
        return rows;
    }
    enum { PART = 16 / sizeof(REAL) };
    int64_t done = 0;
    /* Shorter rows are loaded with the first elements of the next ones. */
    for (; done + IN_VECTOR + (width < PART ? PART : 0) <= rows; done += IN_VECTOR, x += IN_VECTOR * width) {
        SEVERAL columns[PART], all;
        LOAD_COLUMNS(columns, x, width);
        all = columns[0];
        UNROLL for (int k = 1; k < PART; k++)
            if (k < width) all = NAMED(joined_several)(all, columns[k], operation);
        for (int64_t i = PART; i < width; i += PART) {
            const int64_t at = i + PART < width ? i : width - PART;
            LOAD_COLUMNS(columns, x + at, width);
            UNROLL for (int k = 0; k < PART; k++)
                if (at + k >= i) all = NAMED(joined_several)(all, columns[k], operation);
        }
        memcpy(out + done, &all, sizeof all);
    }
    for (; done < rows; done++, x += width) {
        REAL all = *x;
        for (int64_t i = 1; i < width; i++) all = NAMED(joined)(all, x[i], operation);
        out[done] = all;
    }
    return rows;
}

/* The sum of few elements, for which their type is precise enough. */
INLINE double NAMED(sum_of_block)(const REAL *restrict x, int64_t count) {
    SEVERAL sums[2] = {0};
    BY_VECTORS(IN_VECTOR, 0, count, sums[turn] += SEVERAL_AT(x, 0);)
    return SUM_OF_SEVERAL(sums[0] + sums[1]);
}

KERNEL(sum_rows, const REAL *restrict x, REAL *restrict out, int64_t rows, int64_t width) {
    for (int64_t r = NAMED(narrow_rows)(x, out, rows, width, 0, NARROW); r < rows; r++, x += width) {
        double sum = NAMED(sum_of_block)(x, width < BLOCK ? width : BLOCK);
        for (int64_t start = BLOCK; start < width; start += BLOCK)
            sum += NAMED(sum_of_block)(x + start, width - start < BLOCK ? width - start : BLOCK);
        out[r] = (REAL)sum;
    }
}

/* The element of each row at an index, and its gradient. */
KERNEL(pick, const REAL *restrict x, REAL *restrict out, const int64_t *restrict at, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width) out[r] = x[at[r]];
}
KERNEL(pick_backward, REAL *restrict out, const REAL *restrict grad, const int64_t *restrict at, int64_t rows,
       int64_t width) {
    memset(out, 0, (size_t)(rows * width) * sizeof *out);
    for (int64_t r = 0; r < rows; r++, out += width) out[at[r]] = grad[r];
}

/* Sums of columns divided by a count, rounded. */
KERNEL(divide_sums, REAL *restrict out, const double *restrict sums, int64_t count, int64_t width) {
    LOOP for (int64_t i = 0; i < width; i++) out[i] = (REAL)(sums[i] / (double)count);
}

KERNEL(prod_rows, const REAL *restrict x, REAL *restrict out, int64_t rows, int64_t width) {
    for (int64_t r = NAMED(narrow_rows)(x, out, rows, width, 2, NARROW); r < rows; r++) {
        SEVERAL products[2] = {(SEVERAL){0} + 1, (SEVERAL){0} + 1};
        BY_VECTORS(IN_VECTOR, r * width, (r + 1) * width, products[turn] *= SEVERAL_AT(x, 1);)
        out[r] = PRODUCT_OF_SEVERAL(products[0] * products[1]);
    }
}

EXTREME(REAL, SEVERAL, SEVERAL_INTS, SEVERAL_AT, NAMED(largest), LARGER, LARGEST, -INFINITY)
EXTREME(REAL, SEVERAL, SEVERAL_INTS, SEVERAL_AT, NAMED(smallest), SMALLER, SMALLEST, INFINITY)

#define EXTREMES(name, extreme, operation)                                                                             \
    KERNEL(name, const REAL *restrict x, REAL *restrict out, int64_t rows, int64_t width) {                            \
        for (int64_t r = NAMED(narrow_rows)(x, out, rows, width, operation, 96 / sizeof *x); r < rows; r++) {          \
            int unordered;                                                                                             \
            const REAL best = extreme(x + r * width, width, &unordered);                                               \
            out[r] = unordered ? (REAL)NAN : best;                                                                     \
        }                                                                                                              \
    }
EXTREMES(max_rows, NAMED(largest), 1)
EXTREMES(min_rows, NAMED(smallest), -1)
#undef EXTREMES

/* The difference of each element and the one before it. */
KERNEL(diff_rows, REAL *restrict out, const REAL *restrict x, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width, out += width - 1)
        LOOP for (int64_t i = 1; i < width; i++) out[i - 1] = x[i] - x[i - 1];
}

/* Joins rows of a width up to LINE, stride apart. */
INLINE void NAMED(join_rows)(REAL *restrict out, const REAL *restrict x, int64_t rows, int64_t stride, int64_t width,
                             int operation) {
    REAL some[LINE];
    memcpy(some, x, (size_t)width * sizeof *x);
    for (int64_t row = 1; row < rows; row++)
        LOOP for (int64_t i = 0; i < width; i++) some[i] = NAMED(joined)(some[i], x[row * stride + i], operation);
    memcpy(out, some, (size_t)width * sizeof *x);
}

/* Adds up rows of a width up to WIDE, stride apart, or their squared differences from a row mean + rest: as doubles,
 * except within four rows at a time, which lose no more digits than the rows of sum_rows. */
INLINE void NAMED(add_rows)(double *restrict out, const REAL *restrict x, const REAL *restrict mean,
                            const REAL *restrict rest, int64_t rows, int64_t stride, int64_t width, int squared) {
    memset(out, 0, (size_t)width * sizeof *out);
    for (; rows >= 4; rows -= 4, x += 4 * stride) {
        const REAL *restrict y = x + stride, *restrict z = y + stride, *restrict w = z + stride;
        LOOP for (int64_t i = 0; i < width; i++) {
            REAL sum = (x[i] + y[i]) + (z[i] + w[i]);
            if (squared) {
                const REAL a = (x[i] - mean[i]) - rest[i], b = (y[i] - mean[i]) - rest[i];
                const REAL c = (z[i] - mean[i]) - rest[i], d = (w[i] - mean[i]) - rest[i];
                sum = FUSED(a, a, b * b) + FUSED(c, c, d * d);
            }
            out[i] += (double)sum;
        }
    }
    for (; rows > 0; rows--, x += stride) LOOP for (int64_t i = 0; i < width; i++) {
        const REAL centre = squared ? (x[i] - mean[i]) - rest[i] : 1;
        out[i] += (double)(squared ? centre * centre : x[i]);
    }
}

/* The sums of columns first to last - 1 of matrices (rows, width), one after the other. */
KERNEL(sum_columns, const REAL *restrict x, double *restrict out, int64_t number, int64_t rows, int64_t width,
       int64_t first, int64_t last) {
    for (; number > 0; number--, x += rows * width, out += width)
        for (int64_t at = first; at < last; at += WIDE)
            NAMED(add_rows)(out + at, x + at, 0, 0, rows, width, last - at < WIDE ? last - at : WIDE, 0);
}

/* The sums of their squared differences from mean + rest. */
KERNEL(deviation_columns, const REAL *restrict x, double *restrict out, const REAL *restrict mean,
       const REAL *restrict rest, int64_t number, int64_t rows, int64_t width, int64_t first, int64_t last) {
    for (; number > 0; number--, x += rows * width, out += width, mean += width, rest += width)
        for (int64_t at = first; at < last; at += WIDE)
            NAMED(add_rows)(out + at, x + at, mean + at, rest + at, rows, width, last - at < WIDE ? last - at : WIDE, 1);
}

/* The mean of each row, and the sum of its elements' squared differences from it. Blocks are summed in their type, and
 * the mean is corrected by the mean of x - mean, its rounding error. */
KERNEL(deviation_rows, const REAL *restrict x, double *restrict means, double *restrict squares, int64_t rows,
       int64_t width) {
    for (int64_t r = 0; r < rows; r++, x += width) {
        double sum = 0.0, rest = 0.0, total = 0.0;
        if (width <= LINE) {
            Wide sums[2] = {0}, totals[2] = {0};
            BY_VECTORS(LANES / 2, 0, width, sums[turn] += DOUBLES_AT(x, 0);)
            means[r] = sum = sum_of_wide(sums[0] + sums[1]) / (double)width;
            BY_VECTORS(LANES / 2, 0, width, const Wide some = DOUBLES_AT(x, 0) - sum;
                       totals[turn] += whole ? some * some : low_lanes(some * some, end - i);)
            squares[r] = sum_of_wide(totals[0] + totals[1]);
            continue;
        }
        for (int64_t start = 0; start < width; start += BLOCK)
            sum += NAMED(sum_of_block)(x + start, width - start < BLOCK ? width - start : BLOCK);
        const REAL mean = (REAL)(sum / (double)width);
        for (int64_t start = 0, stop; start < width; start = stop) {
            SEVERAL rests[2] = {0}, totals[2] = {0};
            stop = start + BLOCK / 2 < width ? start + BLOCK / 2 : width;
            BY_VECTORS(IN_VECTOR, start, stop, const SEVERAL centre = SEVERAL_AT(x, mean) - mean; rests[turn] += centre;
                       totals[turn] += centre * centre;)
            rest += SUM_OF_SEVERAL(rests[0] + rests[1]);
            total += SUM_OF_SEVERAL(totals[0] + totals[1]);
        }
        means[r] = mean + rest / (double)width;
        squares[r] = total - rest * rest / (double)width;
    }
}

/* Reductions of matrices (count, inner), one after the other, over their rows. Narrow rows are taken together, as many
 * as fill LINE. */
typedef void NAMED(Join)(REAL *restrict, const REAL *restrict, int64_t, int64_t, int64_t);
static void NAMED(join_matrices)(const REAL *restrict x, REAL *restrict out, int64_t inner, int64_t number,
                                 int64_t size, NAMED(Join) *join) {
    const int64_t count = size / inner, most = LINE / inner < count ? LINE / inner : count;
    for (; number > 0; number--, x += size, out += inner) {
        if (most < 2) {
            for (int64_t i = 0; i < inner; i += LINE)
                join(out + i, x + i, count, inner, inner - i < LINE ? inner - i : LINE);
            continue;
        }
        REAL all[2 * LINE];
        const int64_t width = most * inner, rest = size % width;
        join(all, x, count / most, width, width);
        memcpy(all + width, x + size - rest, (size_t)rest * sizeof *x);
        join(out, all, most + rest / inner, inner, inner);
    }
}

#define MATRICES(name, operation)                                                                                      \
    static void NAMED(rows_of_##name)(REAL *restrict out, const REAL *restrict x, int64_t rows, int64_t stride,        \
                                      int64_t width) {                                                                 \
        NAMED(join_rows)(out, x, rows, stride, width, operation);                                                      \
    }                                                                                                                  \
    KERNEL(name, const REAL *restrict x, REAL *restrict out, int64_t inner, int64_t number, int64_t size) {            \
        NAMED(join_matrices)(x, out, inner, number, size, NAMED(rows_of_##name));                                      \
    }
static void NAMED(sums_of_rows)(REAL *restrict out, const REAL *restrict x, int64_t rows, int64_t stride, int64_t width) {
    double sums[LINE];
    NAMED(add_rows)(sums, x, 0, 0, rows, stride, width, 0);
    LOOP for (int64_t i = 0; i < width; i++) out[i] = (REAL)sums[i];
}

/* The sums of columns, row after row, as NumPy adds few rows: in double precision if wide. */
KERNEL(sum_in_order, const REAL *restrict x, REAL *restrict out, int64_t rows, int64_t width, int64_t wide) {
    double sums[LINE];
    for (int64_t at = 0, some; at < width; at += some) {
        some = width - at < LINE ? width - at : LINE;
        const REAL *row = x + at;
        LOOP for (int64_t i = 0; i < some; i++) out[at + i] = row[i], sums[i] = (double)row[i];
        for (int64_t r = 1; r < rows; r++) {
            row += width;
            if (wide)
                LOOP for (int64_t i = 0; i < some; i++) sums[i] += (double)row[i];
            else
                LOOP for (int64_t i = 0; i < some; i++) out[at + i] += row[i];
        }
        if (wide)
            LOOP for (int64_t i = 0; i < some; i++) out[at + i] = (REAL)sums[i];
    }
}

KERNEL(sum_matrices, const REAL *restrict x, REAL *restrict out, int64_t inner, int64_t number, int64_t size) {
    NAMED(join_matrices)(x, out, inner, number, size, NAMED(sums_of_rows));
}
MATRICES(prod_matrices, 2)
MATRICES(max_matrices, 1)
MATRICES(min_matrices, -1)
#undef MATRICES

/* Running results along rows, from their end if backwards. */
INLINE void NAMED(run_rows)(REAL *restrict out, const REAL *restrict x, int64_t rows, int64_t width, int operation,
                            int backwards) {
    const int64_t first = backwards ? width - 1 : 0, stride = backwards ? -1 : 1;
    int64_t r = 0;
    for (; r + CHAINS <= rows; r += CHAINS, x += CHAINS * width, out += CHAINS * width) {
        REAL totals[CHAINS];
        for (int c = 0; c < CHAINS; c++) out[c * width + first] = totals[c] = x[c * width + first];
        for (int64_t i = 1, at = first + stride; i < width; i++, at += stride)
            UNROLL for (int c = 0; c < CHAINS; c++)
                out[at + c * width] = totals[c] = NAMED(joined)(totals[c], x[at + c * width], operation);
    }
    for (; r < rows; r++, x += width, out += width) {
        REAL total = out[first] = x[first];
        for (int64_t i = 1, at = first + stride; i < width; i++, at += stride)
            out[at] = total = NAMED(joined)(total, x[at], operation);
    }
}

/* Running results along the columns first to last - 1 of matrices (length, inner). */
INLINE void NAMED(run_columns)(REAL *restrict out, const REAL *restrict x, int64_t number, int64_t length,
                               int64_t inner, int64_t first, int64_t last, int operation, int backwards) {
    for (; number > 0; number--, out += length * inner, x += length * inner)
        for (int64_t from = first; from < last; from += WIDE) {
            const int64_t to = from + WIDE < last ? from + WIDE : last, stride = backwards ? -inner : inner;
            int64_t at = backwards ? (length - 1) * inner : 0;
            LOOP for (int64_t i = at + from; i < at + to; i++) out[i] = x[i];
            for (int64_t row = 1; row < length; row++) {
                at += stride;
                LOOP for (int64_t i = at + from; i < at + to; i++)
                    out[i] = NAMED(joined)(out[i - stride], x[i], operation);
            }
        }
}

#define RUNNING(name, operation, backwards)                                                                            \
    KERNEL(name, REAL *restrict out, const REAL *restrict x, int64_t rows, int64_t width) {                            \
        NAMED(run_rows)(out, x, rows, width, operation, backwards);                                                    \
    }                                                                                                                  \
    KERNEL(name##_columns, REAL *restrict out, const REAL *restrict x, int64_t number, int64_t length, int64_t inner,  \
           int64_t first, int64_t last) {                                                                              \
        NAMED(run_columns)(out, x, number, length, inner, first, last, operation, backwards);                          \
    }
#ifdef RUNNING_SUMS
RUNNING(cumsum, 0, 0)
RUNNING(cumsum_reverse, 0, 1)
RUNNING(cumprod, 2, 0)
RUNNING(cumprod_reverse, 2, 1)
#endif
RUNNING(cummax, 1, 0)
RUNNING(cummin, -1, 0)
#undef RUNNING
#undef IN_VECTOR
