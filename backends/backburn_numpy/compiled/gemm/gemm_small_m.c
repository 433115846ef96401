/* Products of few rows with a matrix, whose rows are read once and not packed: the time is that of reading. */
#define UNROLLED
#include "runtime/kernels.h"
#include "gemm_small_m.h"
#include "runtime/thread_pool.h"
#include "runtime/vec16.h"

/* Specialized for each count, so that sums stay in registers; each has two, to hide the latency of additions. */
INLINE void dots(float *restrict out, int64_t out_stride, const float *restrict x, int64_t x_stride,
                 const float *restrict w, int64_t inputs, float scale, const int count) {
    Floats sums[2][MAX_M] = {0};
    int64_t i = 0;
#define ADD(part, load)                                                                                                \
    {                                                                                                                  \
        const Floats some = load(w + i);                                                                               \
        UNROLL for (int n = 0; n < count; n++) sums[part][n] += some * load(x + n * x_stride + i);                     \
    }
#define THE_REST(x) some_floats_at(x, inputs - i)
    for (; i + 2 * WIDE <= inputs; i += WIDE) {
        ADD(0, floats_at)
        i += WIDE;
        ADD(1, floats_at)
    }
    if (i + WIDE <= inputs) {
        ADD(0, floats_at)
        i += WIDE;
    }
    if (i < inputs) ADD(1, THE_REST)
    UNROLL for (int n = 0; n < count; n++) out[n * out_stride] = sum_of_wide(sums[0][n] + sums[1][n]) * scale;
}

void backburn_small_m_dot(float *out, int64_t out_stride, const float *x, int64_t x_stride, const float *w,
                          int64_t w_stride, int64_t inputs, float scale, int64_t count, int64_t first, int64_t last) {
#define FOR_ROWS(the_count)                                                                                            \
    for (int64_t r = first; r < last; r++)                                                                             \
        dots(out + r, out_stride, x, x_stride, w + r * w_stride, inputs, scale, the_count);
    if (count == 1) FOR_ROWS(1)
    else if (count == 2) FOR_ROWS(2)
    else if (count == 3) FOR_ROWS(3)
    else FOR_ROWS(4)
}

/* Four vectors of columns at a time. */
enum { NR = 4 * WIDE };
INLINE void combine(float *restrict out, int64_t out_stride, const float *restrict x, int64_t x_stride,
                    const float *restrict w, int64_t w_stride, int64_t depth, const int count) {
    Floats sums[MAX_M][NR / WIDE] = {0};
    for (int64_t k = 0; k < depth; k++, w += w_stride) {
        UNROLL for (int j = 0; j < NR / WIDE; j++) {
            const Floats some = floats_at(w + j * WIDE);
            UNROLL for (int n = 0; n < count; n++) sums[n][j] += some * x[n * x_stride + k];
        }
    }
    UNROLL for (int n = 0; n < count; n++) memcpy(out + n * out_stride, sums[n], sizeof sums[n]);
}

void backburn_small_m_axpy(float *out, int64_t out_stride, const float *x, int64_t x_stride, const float *w,
                           int64_t w_stride, int64_t depth, int64_t width, int64_t count) {
    int64_t c = 0;
    for (; c + NR <= width; c += NR) {
        if (count == 1) combine(out + c, out_stride, x, x_stride, w + c, w_stride, depth, 1);
        else if (count == 2) combine(out + c, out_stride, x, x_stride, w + c, w_stride, depth, 2);
        else if (count == 3) combine(out + c, out_stride, x, x_stride, w + c, w_stride, depth, 3);
        else combine(out + c, out_stride, x, x_stride, w + c, w_stride, depth, 4);
    }
    for (int64_t n = 0; n < count && c < width; n++) {
        float *mine = out + n * out_stride;
        for (int64_t j = c; j < width; j++) mine[j] = 0.0f;
        for (int64_t k = 0; k < depth; k++)
            LOOP for (int64_t j = c; j < width; j++) mine[j] = FUSED(x[n * x_stride + k], w[k * w_stride + j], mine[j]);
    }
}

typedef struct {
    float *out;
    const float *x, *w;
    int64_t count, outputs, inputs, w_stride;
} Product;

static void outputs_of(const void *context, int64_t first, int64_t last) {
    const Product *p = context;
    for (int64_t n = 0; n < p->count; n += MAX_M)
        backburn_small_m_dot(p->out + n * p->outputs, p->outputs, p->x + n * p->inputs, p->inputs, p->w, p->w_stride,
                             p->inputs, 1.0f, p->count - n < MAX_M ? p->count - n : MAX_M, first, last);
}

/* out (count, outputs) = x (count, inputs) times the transpose of w, whose rows have a stride of w_stride elements. */
KERNEL(gemm_small_m, float *out, const float *x, const float *w, int64_t count, int64_t outputs, int64_t inputs,
       int64_t w_stride, int64_t grain, int threads) {
    const Product all = {out, x, w, count, outputs, inputs, w_stride};
    backburn_pool_run(outputs_of, &all, outputs, grain, threads);
}
