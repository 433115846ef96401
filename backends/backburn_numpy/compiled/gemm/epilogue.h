/* The epilogue of a product or a convolution, of the type REAL. Included once for each type. */

/* relu, or with a mask its gradient: elements become 0 where those of the mask are not above 0. */
INLINE void NAMED(epilogue)(REAL *restrict out, const REAL *restrict mask, int64_t count) {
    if (mask) {
        LOOP for (int64_t i = 0; i < count; i++) out[i] = mask[i] > 0 ? out[i] : 0;
    } else {
        LOOP for (int64_t i = 0; i < count; i++) out[i] = out[i] < 0 ? 0 : out[i];
    }
}
