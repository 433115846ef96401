/* Kernels of small matrices, of the type REAL. Included once for each type. */

/* The element at a row and a column of TOGETHER matrices, one in each lane, with that number of columns. */
#define AT(x, columns, row, column) ((x) + ((row) * (columns) + (column)) * TOGETHER)
#define LANES_OF(i) LOOP for (int i = 0; i < TOGETHER; i++)

/* Exchanges a row, in the lanes where it is the wanted one, with the row of the pivot. */
INLINE void NAMED(exchange)(REAL *x, int64_t columns, int64_t row, int64_t other, int64_t from, const REAL *wanted) {
    for (int64_t k = from; k < columns; k++) {
        REAL *one = AT(x, columns, row, k), *two = AT(x, columns, other, k);
        LANES_OF(i) {
            const REAL first = one[i], second = two[i];
            const int is_wanted = wanted[i] == (REAL)other;
            one[i] = is_wanted ? second : first;
            two[i] = is_wanted ? first : second;
        }
    }
}

/* Subtracts a multiple of the row of the pivot. */
INLINE void NAMED(lessen)(REAL *x, int64_t columns, int64_t row, int64_t pivot, int64_t from, const REAL *factor) {
    for (int64_t k = from; k < columns; k++) {
        REAL *one = AT(x, columns, row, k);
        const REAL *other = AT(x, columns, pivot, k);
        LANES_OF(i) one[i] -= factor[i] * other[i];
    }
}

/* Solves for the columns of b, in place. The first of pivots is the sign of the exchanges. */
static void NAMED(eliminate)(REAL *a, REAL *b, REAL *pivots, int64_t n, int64_t columns) {
    LANES_OF(i) pivots[i] = 1;
    for (int64_t c = 0; c < n; c++) {
        REAL best[TOGETHER], row[TOGETHER], factor[TOGETHER], *pivot = AT(a, n, c, c);
        LANES_OF(i) {
            best[i] = OF_TYPE(fabs, pivot[i]);
            row[i] = (REAL)c;
        }
        for (int64_t r = c + 1; r < n; r++) {
            const REAL *x = AT(a, n, r, c);
            LANES_OF(i) {
                const REAL size = OF_TYPE(fabs, x[i]), before = best[i];
                best[i] = size > before ? size : before;
                row[i] = size > before ? (REAL)r : row[i];
            }
        }
        for (int64_t r = c + 1; r < n; r++) {
            NAMED(exchange)(a, n, c, r, c, row);
            NAMED(exchange)(b, columns, c, r, 0, row);
        }
        LANES_OF(i) {
            pivots[i] = row[i] == (REAL)c ? pivots[i] : -pivots[i];
            pivots[(c + 1) * TOGETHER + i] = pivot[i];
        }
        for (int64_t r = c + 1; r < n; r++) {
            const REAL *x = AT(a, n, r, c);
            LANES_OF(i) factor[i] = x[i] / pivot[i];
            NAMED(lessen)(a, n, r, c, c + 1, factor);
            NAMED(lessen)(b, columns, r, c, 0, factor);
        }
    }
    for (int64_t c = n - 1; c >= 0 && columns; c--) {
        const REAL *pivot = AT(a, n, c, c);
        for (int64_t k = 0; k < columns; k++) {
            REAL *x = AT(b, columns, c, k);
            LANES_OF(i) x[i] /= pivot[i];
        }
        for (int64_t r = 0; r < c; r++) NAMED(lessen)(b, columns, r, c, 0, AT(a, n, r, c));
    }
}

INLINE void NAMED(lanes_from)(REAL *lanes, const REAL *x, int64_t size, int64_t count) {
    for (int64_t i = 0; i < TOGETHER; i++) {
        const REAL *from = x + (i < count ? i : count - 1) * size;
        for (int64_t e = 0; e < size; e++) lanes[e * TOGETHER + i] = from[e];
    }
}

INLINE void NAMED(lanes_to)(REAL *x, const REAL *lanes, int64_t size, int64_t count) {
    for (int64_t i = 0; i < count; i++, x += size)
        for (int64_t e = 0; e < size; e++) x[e] = lanes[e * TOGETHER + i];
}

/* Solves x z = y for matrices first to last - 1 of `number`, and fills the pivots (n + 1, number), of which the first
 * is the sign of the exchanges; if y is null, it is the identity. */
KERNEL(solve_small, REAL *restrict z, const REAL *restrict x, const REAL *restrict y, REAL *restrict pivots,
       int64_t n, int64_t columns, int64_t number, int64_t first, int64_t last) {
    REAL a[SIDE * SIDE * TOGETHER], b[SIDE * SIDE * TOGETHER], found[(SIDE + 1) * TOGETHER];
    for (; first < last; first += TOGETHER) {
        const int64_t count = last - first < TOGETHER ? last - first : TOGETHER;
        NAMED(lanes_from)(a, x + first * n * n, n * n, count);
        if (y) NAMED(lanes_from)(b, y + first * n * columns, n * columns, count);
        else {
            for (int64_t e = 0; e < n * columns * TOGETHER; e++)
                b[e] = e / TOGETHER / n == e / TOGETHER % n;
        }
        NAMED(eliminate)(a, b, found, n, columns);
        if (columns) NAMED(lanes_to)(z + first * n * columns, b, n * columns, count);
        for (int64_t k = 0; k <= n; k++)
            memcpy(pivots + k * number + first, found + k * TOGETHER, (size_t)count * sizeof *pivots);
    }
}

#undef AT
#undef LANES_OF
