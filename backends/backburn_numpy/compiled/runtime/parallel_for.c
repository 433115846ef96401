/* Kernels whose rows are shared among threads. */
#include "kernels.h"
#include "thread_pool.h"

/* A kernel, its arrays with their row strides in bytes, and the width of the rows (0: the kernel takes none). Arrays of
 * any type are char *: all pointers are passed alike. */
typedef struct {
    void (*kernel)(void);
    char *starts[4];
    int64_t strides[4], width;
    int arrays;
} Call;

static void rows_of(const void *context, int64_t first, int64_t last) {
    const Call *call = context;
    char *a[4];
    for (int i = 0; i < 4; i++) a[i] = call->starts[i] + first * call->strides[i];
    const int64_t rows = last - first, width = call->width;
    typedef void Two(char *, char *, int64_t), Three(char *, char *, char *, int64_t);
    typedef void TwoWide(char *, char *, int64_t, int64_t), ThreeWide(char *, char *, char *, int64_t, int64_t);
    typedef void Four(char *, char *, char *, char *, int64_t);
    typedef void FourWide(char *, char *, char *, char *, int64_t, int64_t);
    if (call->arrays == 2) {
        if (width) ((TwoWide *)call->kernel)(a[0], a[1], rows, width);
        else ((Two *)call->kernel)(a[0], a[1], rows);
    } else if (call->arrays == 3) {
        if (width) ((ThreeWide *)call->kernel)(a[0], a[1], a[2], rows, width);
        else ((Three *)call->kernel)(a[0], a[1], a[2], rows);
    } else if (width) {
        ((FourWide *)call->kernel)(a[0], a[1], a[2], a[3], rows, width);
    } else {
        ((Four *)call->kernel)(a[0], a[1], a[2], a[3], rows);
    }
}

/* Calls a kernel of 2 to 4 arrays on all rows. */
KERNEL(parallel_for, void *kernel, int64_t rows, int64_t width, int64_t grain, int threads, int arrays, char *a,
       char *b, char *c, char *d, int64_t stride_a, int64_t stride_b, int64_t stride_c, int64_t stride_d) {
    Call call = {.starts = {a, b, c, d}, .strides = {stride_a, stride_b, stride_c, stride_d}, .width = width,
                 .arrays = arrays};
    memcpy(&call.kernel, &kernel, sizeof kernel);
    backburn_pool_run(rows_of, &call, rows, grain, threads);
}
