/* Kernels of sampling and resizing, of the type REAL. Included once for each type. */

typedef struct {
    int32_t places[CORNERS][SPAN], held[CORNERS][SPAN]; /* places are below 0 outside the image, where held is 0 */
    REAL weights[CORNERS][SPAN];
} NAMED(Corners);

/* Replaces each corner by four, for a cubic along an axis of n places that are stride apart; order is that of a
 * slope. */
INLINE void NAMED(cubic_corners)(NAMED(Corners) *c, const REAL *restrict positions, REAL *restrict unknown, int corners,
                                 int32_t n, int32_t stride, int64_t count, int zeros, int order) {
    int32_t around[4][SPAN];
    REAL shares[4][SPAN];
    LOOP for (int64_t i = 0; i < count; i++) {
        const REAL given = positions[i], some = given == given ? given : 0, least = some < -3 ? -3 : some;
        const REAL cut = least > n + 2 ? n + 2 : least, near = (cut + SHIFT) - SHIFT;
        const REAL start = near - (near > cut), part = cut - start;
        const int32_t at = (int32_t)start - 1;
        for (int k = 0; k < 4; k++) {
            const double *factors = cubic[order][k];
            const int32_t place = at + k, high = place < n ? place : n - 1, held = high < 0 ? 0 : high;
            around[k][i] = zeros && place != held ? NOWHERE : held * stride;
            shares[k][i] = (REAL)factors[0] +
                           part * ((REAL)factors[1] + part * ((REAL)factors[2] + part * (REAL)factors[3]));
        }
        unknown[i] = given == given ? unknown[i] : NAN;
    }
    for (int j = corners - 1; j >= 0; j--)
        LOOP for (int64_t i = 0; i < count; i++) {
            const int32_t place = c->places[j][i];
            const REAL weight = c->weights[j][i];
            for (int k = 3; k >= 0; k--) {
                c->places[4 * j + k][i] = place + around[k][i];
                c->weights[4 * j + k][i] = weight * shares[k][i];
            }
        }
}

/* Fills the corners of count positions, whose coordinates are `wanted` apart; returns whether all are inside. Along an
 * axis, `reads` places are read, and two bits of slopes are the order of the derivative. */
static int NAMED(corners_of)(NAMED(Corners) *c, const REAL *positions, const int64_t *places, int64_t rank,
                             int64_t wanted, int64_t count, int zeros, int reads, int slopes) {
    int32_t stride = 1, missing = 0;
    int corners = 1, linear = reads == 2;
    REAL unknown[SPAN];
    for (int64_t axis = 0; axis < rank; axis++) stride *= (int32_t)places[axis];
    LOOP for (int64_t i = 0; i < count; i++) {
        c->places[0][i] = 0;
        c->weights[0][i] = 1;
        unknown[i] = 0;
    }
    for (int64_t axis = 0; axis < rank; axis++, positions += wanted) {
        const int32_t n = (int32_t)places[axis], most = zeros ? n : n - 1; /* place n does not exist */
        const REAL low = zeros ? -2 : 0, high = (REAL)(zeros ? n + 1 : n - 1), beyond = zeros, floors = linear;
        /* Weights follow from a position's part beyond the first place; those of a slope are -1 and 1, or 0 beyond the
         * border. */
        const int slope = slopes >> 2 * axis & 3;
        const REAL one = !slope, by_part = linear && !slope, by_moves = slope;
        int32_t first[SPAN], second[SPAN];
        REAL below[SPAN], above[SPAN];
        stride /= n;
        if (reads == 4) {
            NAMED(cubic_corners)(c, positions, unknown, corners, n, stride, count, zeros, slope);
            corners *= 4;
            continue;
        }
        LOOP for (int64_t i = 0; i < count; i++) {
            const REAL given = positions[i], some = given == given ? given : 0, least = some < low ? low : some;
            const REAL cut = least > high ? high : least, near = (cut + SHIFT) - SHIFT;
            const REAL start = near - (near > cut ? floors : 0), part = cut - start, moves = cut == some ? 1 : beyond;
            const int32_t at = (int32_t)start, after = at + 1, next = after < most ? after : most;
            first[i] = (uint32_t)at < (uint32_t)n ? at * stride : NOWHERE;
            second[i] = (uint32_t)next < (uint32_t)n ? next * stride : NOWHERE;
            below[i] = one - by_part * part - by_moves * moves;
            above[i] = by_part * part + by_moves * moves;
            unknown[i] = given == given ? unknown[i] : NAN;
        }
        for (int k = corners - 1; k >= 0; k--) {
            LOOP for (int64_t i = 0; i < count; i++) {
                const int32_t place = c->places[k][i];
                const REAL weight = c->weights[k][i];
                if (linear) {
                    c->places[2 * k + 1][i] = place + second[i];
                    c->weights[2 * k + 1][i] = weight * above[i];
                }
                c->places[linear ? 2 * k : k][i] = place + first[i];
                c->weights[linear ? 2 * k : k][i] = weight * below[i];
            }
        }
        corners *= linear ? 2 : 1;
    }
    for (int k = 0; k < corners; k++) {
        const REAL no_weight = slopes ? 0 : NAN;
        MISSING_OF(missing) for (int64_t i = 0; i < count; i++) {
            const int32_t place = unknown[i] == 0 ? c->places[k][i] : NOWHERE;
            c->weights[k][i] = unknown[i] == 0 ? c->weights[k][i] : no_weight;
            c->places[k][i] = place;
            c->held[k][i] = place < 0 ? 0 : place;
            missing |= place < 0;
        }
    }
    return !missing;
}

INLINE void NAMED(read)(REAL *restrict out, const REAL *restrict x, const NAMED(Corners) *c, int64_t count, int corners,
                        int whole) {
    LOOP for (int64_t i = 0; i < count; i++) {
        REAL total = 0;
        for (int k = 0; k < corners; k++) {
            const REAL found = x[c->held[k][i]];
            total += c->weights[k][i] * (whole || c->places[k][i] >= 0 ? found : 0);
        }
        out[i] = total;
    }
}

INLINE void NAMED(spread)(REAL *restrict out, const REAL *restrict grad, const NAMED(Corners) *c, int64_t count,
                          int corners, int whole) {
    for (int64_t i = 0; i < count; i++) {
        for (int k = 0; k < corners; k++) {
            const int32_t place = c->places[k][i];
            if (whole || place >= 0) out[place] += c->weights[k][i] * grad[i];
        }
    }
}

/* Specialized for the number of corners, and for whether all are inside. */
#define FOR_CORNERS(move, ...)                                                                                         \
    if (corners == 4 && whole) NAMED(move)(__VA_ARGS__, 4, 1);                                                         \
    else if (corners == 4) NAMED(move)(__VA_ARGS__, 4, 0);                                                             \
    else if (corners == 16 && whole) NAMED(move)(__VA_ARGS__, 16, 1);                                                  \
    else if (corners == 16) NAMED(move)(__VA_ARGS__, 16, 0);                                                           \
    else if (corners == 1) NAMED(move)(__VA_ARGS__, 1, 0);                                                             \
    else if (corners == 2) NAMED(move)(__VA_ARGS__, 2, 0);                                                             \
    else NAMED(move)(__VA_ARGS__, 8, 0);

/* Lines first to last - 1 of (examples, channels): x has all places, out the `wanted` positions. Each example has
 * positions (rank, wanted). */
#define SAMPLING(name, move, to, from)                                                                                 \
    KERNEL(name, REAL *restrict out, const REAL *restrict x, const REAL *restrict positions,                           \
           const int64_t *places, int64_t rank, int64_t channels, int64_t wanted, int zeros, int reads,                \
           int slopes, int64_t first, int64_t last) {                                                                  \
        const int corners = reads == 4 ? 1 << 2 * rank : reads == 2 ? 1 << rank : 1;                                   \
        int64_t all = 1;                                                                                               \
        NAMED(Corners) c;                                                                                              \
        for (int64_t axis = 0; axis < rank; axis++) all *= places[axis];                                               \
        for (int64_t line = first, stop; line < last; line = stop) {                                                   \
            const int64_t example = line / channels, end = (example + 1) * channels;                                   \
            stop = end < last ? end : last;                                                                            \
            for (int64_t start = 0; start < wanted; start += SPAN) {                                                   \
                const int64_t count = wanted - start < SPAN ? wanted - start : SPAN;                                   \
                const int whole = NAMED(corners_of)(&c, positions + example * rank * wanted + start, places, rank,     \
                                                    wanted, count, zeros, reads, slopes);                              \
                for (int64_t i = line; i < stop; i++) {                                                                \
                    FOR_CORNERS(move, to, from, &c, count)                                                             \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }

SAMPLING(sample, read, out + i * wanted + start, x + i * all)
SAMPLING(sample_backward, spread, out + i * all, x + i * wanted + start)

#undef FOR_CORNERS
#undef SAMPLING

/* ---- weighted sums of entries along one axis, with weights (number, m) ---- */

/* Weighted sums of a row of single elements. */
INLINE void NAMED(resized_row)(REAL *restrict out, const REAL *restrict x, const int32_t *restrict places,
                               const REAL *restrict weights, int64_t number, int64_t m) {
    LOOP for (int64_t j = 0; j < m; j++) {
        REAL total = 0;
        for (int64_t k = 0; k < number; k++) total += weights[k * m + j] * x[places[k * m + j]];
        out[j] = total;
    }
}

/* Matrices first to last - 1, of n entries of inner elements each, to m entries. */
KERNEL(resize, REAL *restrict out, const REAL *restrict x, const int32_t *places, const REAL *weights,
       int64_t number, int64_t n, int64_t m, int64_t inner, int64_t first, int64_t last) {
    for (int64_t r = first; r < last; r++) {
        const REAL *from = x + r * n * inner;
        REAL *to = out + r * m * inner;
        if (inner == 1) {
            if (number == 2) NAMED(resized_row)(to, from, places, weights, 2, m);
            else if (number == 4) NAMED(resized_row)(to, from, places, weights, 4, m);
            else NAMED(resized_row)(to, from, places, weights, number, m);
            continue;
        }
        for (int64_t j = 0; j < m; j++, to += inner) {
            for (int64_t k = 0; k < number; k += 2) { /* an even number */
                const REAL *one = from + places[k * m + j] * inner, *two = from + places[(k + 1) * m + j] * inner;
                const REAL a = weights[k * m + j], b = weights[(k + 1) * m + j];
                if (k) LOOP for (int64_t i = 0; i < inner; i++) to[i] += a * one[i] + b * two[i];
                else LOOP for (int64_t i = 0; i < inner; i++) to[i] = a * one[i] + b * two[i];
            }
        }
    }
}

/* The transpose: adds to out. */
KERNEL(resize_backward, REAL *restrict out, const REAL *restrict grad, const int32_t *places, const REAL *weights,
       int64_t number, int64_t n, int64_t m, int64_t inner, int64_t first, int64_t last) {
    for (int64_t r = first; r < last; r++) {
        const REAL *from = grad + r * m * inner;
        REAL *to = out + r * n * inner;
        for (int64_t j = 0; j < m; j++, from += inner) {
            for (int64_t k = 0; k < number; k++) {
                REAL *one = to + places[k * m + j] * inner;
                const REAL a = weights[k * m + j];
                if (inner == 1) *one += a * *from;
                else LOOP for (int64_t i = 0; i < inner; i++) one[i] += a * from[i];
            }
        }
    }
}
