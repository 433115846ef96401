/* Max pooling over up to three axes, of the type REAL. Included once for each type. */

/* The windows of count columns, whose first elements in the image are at x, x + stride ... NaN is larger than all. */
INLINE void NAMED(best_of)(REAL *restrict out, int64_t *restrict index, const REAL *restrict x, const Windows *w,
                           Reach z, Reach y, Reach c, int64_t at, int64_t count, int64_t stride) {
    REAL best[COLUMNS];
    int32_t chosen[COLUMNS];
    const int64_t top = (z.first * w->lengths[1] + y.first) * w->lengths[2] + c.first;
    LOOP for (int64_t i = 0; i < count; i++) best[i] = x[top + i * stride], chosen[i] = (int32_t)top;
    for (int64_t k = z.first; k < z.last; k += w->dilation[0])
        for (int64_t j = y.first; j < y.last; j += w->dilation[1])
            for (int64_t l = c.first; l < c.last; l += w->dilation[2]) {
                const int64_t offset = (k * w->lengths[1] + j) * w->lengths[2] + l;
                LOOP for (int64_t i = 0; i < count; i++) {
                    const REAL seen = x[offset + i * stride];
                    const int better = !(seen <= best[i]) & (best[i] == best[i]);
                    chosen[i] = better ? (int32_t)offset : chosen[i];
                    best[i] = better ? seen : best[i];
                }
            }
    LOOP for (int64_t i = 0; i < count; i++) out[i] = best[i];
    LOOP for (int64_t i = 0; i < count; i++) index[i] = at + i * stride + chosen[i];
}

/* Windows of `lanes` columns inside the image, one or two elements apart; otherwise as best_of. Elements behind the
 * last window are read, too. */
#define BEST_OF_LANES(name, lanes, ...)                                                                                \
    typedef REAL NAMED(name##_reals) __attribute__((vector_size(lanes * sizeof(REAL))));                               \
    typedef WHOLE NAMED(name##_places) __attribute__((vector_size(lanes * sizeof(WHOLE))));                            \
    INLINE NAMED(name##_reals) NAMED(name##_load)(const REAL *x, int64_t stride) {                                     \
        NAMED(name##_reals) first, second;                                                                             \
        memcpy(&first, x, sizeof first);                                                                               \
        if (stride == 1) return first;                                                                                 \
        memcpy(&second, x + lanes, sizeof second);                                                                     \
        return EVENS(first, second, NAMED(name##_places), __VA_ARGS__);                                                \
    }                                                                                                                  \
    INLINE void NAMED(name)(REAL *restrict out, int64_t *restrict index, const REAL *restrict x, const Windows *w,     \
                            Reach z, Reach y, int64_t at, int64_t stride) {                                            \
        const int64_t top = (z.first * w->lengths[1] + y.first) * w->lengths[2];                                       \
        const int64_t last = w->size[2] * w->dilation[2];                                                              \
        NAMED(name##_reals) best = NAMED(name##_load)(x + top, stride);                                                \
        NAMED(name##_places) chosen = (NAMED(name##_places)){0} + (WHOLE)top;                                          \
        for (int64_t k = z.first; k < z.last; k += w->dilation[0])                                                     \
            for (int64_t j = y.first; j < y.last; j += w->dilation[1])                                                 \
                for (int64_t l = 0; l < last; l += w->dilation[2]) {                                                   \
                    const int64_t offset = (k * w->lengths[1] + j) * w->lengths[2] + l;                                \
                    const NAMED(name##_reals) seen = NAMED(name##_load)(x + offset, stride);                           \
                    const NAMED(name##_places) better =                                                                \
                        (NAMED(name##_places))~(seen <= best) & (NAMED(name##_places))(best == best);                  \
                    chosen = (better & (WHOLE)offset) | (~better & chosen);                                            \
                    best = (NAMED(name##_reals))((better & (NAMED(name##_places))seen) |                               \
                                                 (~better & (NAMED(name##_places))best));                              \
                }                                                                                                      \
        WHOLE places[lanes];                                                                                           \
        memcpy(places, &chosen, sizeof places);                                                                        \
        memcpy(out, &best, sizeof best);                                                                               \
        LOOP for (int64_t i = 0; i < lanes; i++) index[i] = at + i * stride + places[i];                               \
    }
BEST_OF_LANES(best_of_many, MOST, EVENS_OF(MOST))
BEST_OF_LANES(best_of_few, LEAST, EVENS_OF(LEAST))
#undef BEST_OF_LANES

/* The largest element of each window and its index in the image, for images first to last - 1. The first of equal
 * elements wins, and the first NaN over all. Every window overlaps the image, whose indices fit into 32 bits. */
KERNEL(max_pool, REAL *restrict out, int64_t *restrict index, const REAL *restrict x,
       const Windows *restrict w, int64_t first, int64_t last) {
    const int64_t *n = w->counts, stride = w->stride[2], reached = (w->size[2] - 1) * w->dilation[2];
    const int64_t image = w->lengths[0] * w->lengths[1] * w->lengths[2];
    /* Windows from column inner to outer - 1 lie inside the image. */
    const int64_t last_start = w->lengths[2] - 1 - reached + w->before[2];
    const int64_t inner = (w->before[2] + stride - 1) / stride, outer = last_start < 0 ? 0 : last_start / stride + 1;
    /* Elements from the last one of a window's first line, and so after its first element, to that of its last line. */
    const int64_t below = ((w->size[0] - 1) * w->dilation[0] * w->lengths[1] + (w->size[1] - 1) * w->dilation[1])
                          * w->lengths[2];
    const REAL *const end_of_x = x + last * image, *const end_of_out = out + last * n[0] * n[1] * n[2];
    x += first * image, out += first * n[0] * n[1] * n[2], index += first * n[0] * n[1] * n[2];
    for (int64_t i = first; i < last; i++, x += image)
        for (int64_t plane = 0; plane < n[0]; plane++)
            for (int64_t row = 0; row < n[1]; row++) {
                const Reach z = reach(w, 0, plane), y = reach(w, 1, row);
                const int64_t line = (z.start * w->lengths[1] + y.start) * w->lengths[2];
                for (int64_t column = 0, count; column < n[2]; column += count) {
                    const Reach c = reach(w, 2, column);
                    const int64_t at = line + c.start, end = outer < n[2] ? outer : n[2];
                    const int64_t rest = end - column, block = rest <= LEAST ? LEAST : MOST;
                    /* A block may go beyond the row: it reads what follows, and later rows overwrite it. */
                    if (MOST > 2 && stride <= 2 && column >= inner && rest >= FEWER && end_of_out - out >= block
                        && end_of_x - (x + at) >= below + reached + block * stride) {
                        count = rest < block ? rest : block;
                        if (stride == 1 && block == MOST) NAMED(best_of_many)(out, index, x + at, w, z, y, at, 1);
                        else if (stride == 1) NAMED(best_of_few)(out, index, x + at, w, z, y, at, 1);
                        else if (block == MOST) NAMED(best_of_many)(out, index, x + at, w, z, y, at, 2);
                        else NAMED(best_of_few)(out, index, x + at, w, z, y, at, 2);
                        out += count, index += count;
                        continue;
                    }
                    count = column < inner || rest < FEW ? 1 : rest < COLUMNS ? rest : COLUMNS;
                    if (count == 1)
                        NAMED(best_of)(out, index, x + at, w, z, y, c, at, 1, 1);
                    else if (stride == 1)
                        NAMED(best_of)(out, index, x + at, w, z, y, c, at, count, 1);
                    else if (stride == 2)
                        NAMED(best_of)(out, index, x + at, w, z, y, c, at, count, 2);
                    else
                        NAMED(best_of)(out, index, x + at, w, z, y, c, at, count, stride);
                    out += count, index += count;
                }
            }
}
