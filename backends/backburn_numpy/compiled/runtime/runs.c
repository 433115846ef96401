/* Element-wise kernels on arrays that broadcast or are parts of larger ones. */
#include "runs.h"
#include "thread_pool.h"

/* The stride of an array along an axis, counted from the last; 0 if it broadcasts, -1 if it does not fit. */
static int64_t stride_along(const NumpyArray *x, int axis, int64_t n) {
    if (axis >= x->axes || x->shape[x->axes - 1 - axis] == 1) return 0;
    return x->shape[x->axes - 1 - axis] == n ? x->strides[x->axes - 1 - axis] : -1;
}

int find_runs(Runs *runs, const NumpyArray *const *arrays, int count, int64_t size, int64_t least, int64_t portion) {
    *runs = (Runs){.arrays = count, .count = 1};
    for (int axis = 0; axis < arrays[0]->axes; axis++) {
        const int64_t n = arrays[0]->shape[arrays[0]->axes - 1 - axis];
        int64_t strides[MOST_ARRAYS_IN_RUNS];
        int goes_on = runs->axes == 0, is_row = 1; /* of the runs, or of the last of the axes */
        if (n == 0) return 0;
        for (int k = 0; k < count; k++) {
            strides[k] = stride_along(arrays[k], axis, n);
            if (strides[k] == -1) return 0;
            is_row &= strides[k] == 0 || strides[k] == size;
            goes_on &= strides[k] == runs->inner[k] * runs->elements;
        }
        if (n == 1) continue;
        if (!runs->elements) {
            if (!is_row) return 0;
            runs->elements = n;
            memcpy(runs->inner, strides, sizeof strides);
            continue;
        }
        if (goes_on) {
            runs->elements *= n;
            continue;
        }
        const int last = runs->axes - 1;
        goes_on = last >= 0;
        for (int k = 0; k < count && goes_on; k++)
            goes_on = strides[k] == runs->counts[last] * runs->strides[k][last];
        runs->count *= n;
        if (goes_on) {
            runs->counts[last] *= n;
            continue;
        }
        if (runs->axes == MOST_AXES) return 0;
        for (int k = 0; k < count; k++) runs->strides[k][runs->axes] = strides[k];
        runs->counts[runs->axes++] = n;
    }
    for (int k = 0; k < count; k++) runs->starts[k] = arrays[k]->data;
    runs->portion = portion;
    runs->parts = (runs->elements + portion - 1) / portion;
    if (runs->elements < least || !runs->elements) return 0;
    const int64_t elements_of_part = runs->elements < portion ? runs->elements : portion;
    runs->grain = (portion + elements_of_part - 1) / elements_of_part;
    return 1;
}

enum { MOST_ARRAYS_OF_KERNEL = 4 };

/* A kernel of 2 to 4 arrays, the result first. */
typedef struct {
    const Runs *runs;
    void (*kernel)(void);
    int is_generated;
} Call;

/* Calls the kernel on as many parts as follow each other at the same distances, in a loop that short runs need. */
INLINE int64_t parts_along(const Call *call, Place *place, int64_t most) {
    typedef void Two(char *, char *, int64_t), Three(char *, char *, char *, int64_t);
    typedef void Four(char *, char *, char *, char *, int64_t);
    const Runs *runs = call->runs;
    char *a[MOST_ARRAYS_IN_RUNS];
    const int64_t count = part_at(place, a), is_whole = runs->parts == 1 && runs->axes;
    const int64_t left = is_whole ? runs->counts[0] - place->index[0] : 1, parts = left < most ? left : most;
    int64_t s[MOST_ARRAYS_OF_KERNEL];
    for (int k = 0; k < MOST_ARRAYS_OF_KERNEL; k++) s[k] = is_whole && k < runs->arrays ? runs->strides[k][0] : 0;
    if (call->is_generated) {
        Code *code = (Code *)call->kernel;
        for (int64_t i = 0; i < parts; i++) {
            char *own[MOST_ARRAYS_OF_KERNEL];
            for (int k = 0; k < runs->arrays; k++) own[k] = a[k] + i * s[k];
            code(own, count);
        }
    } else if (runs->arrays == 2) {
        Two *kernel = (Two *)call->kernel;
        for (int64_t i = 0; i < parts; i++) kernel(a[0] + i * s[0], a[1] + i * s[1], count);
    } else if (runs->arrays == 3) {
        Three *kernel = (Three *)call->kernel;
        for (int64_t i = 0; i < parts; i++) kernel(a[0] + i * s[0], a[1] + i * s[1], a[2] + i * s[2], count);
    } else {
        Four *kernel = (Four *)call->kernel;
        for (int64_t i = 0; i < parts; i++)
            kernel(a[0] + i * s[0], a[1] + i * s[1], a[2] + i * s[2], a[3] + i * s[3], count);
    }
    return parts;
}

static void parts_of(const void *context, int64_t first, int64_t last) {
    const Call *call = context;
    Place place = place_of(call->runs, first);
    for (int64_t parts; first < last; first += parts) {
        parts = parts_along(call, &place, last - first);
        advance(&place, parts);
    }
}

/* Calls a kernel of one to three operands on all elements of a result, in several threads: `plain` on arrays, or of two
 * operands `number` if the second and `flipped` if the first is a single number in each run. Returns 0, having done
 * nothing, if there is no such kernel (0), or if the runs are too short. `is_generated`: `plain` is machine code. */
KERNEL_RETURNING(int, on_runs, void *plain, void *number, void *flipped, int is_generated, int64_t size, int64_t least,
                 int64_t portion, int threads, int count, const void *out, const void *x, const void *y,
                 const void *z) {
    const NumpyArray *arrays[] = {out, x, y, z};
    Runs runs;
    if (!find_runs(&runs, arrays, count, size, least, portion)) return 0;
    int numbers = 0;
    for (int k = 1; k < count; k++) numbers += runs.inner[k] == 0;
    if (numbers && (count != 3 || numbers == 2)) return 0;
    if (numbers && runs.inner[1] == 0) {
        arrays[1] = y, arrays[2] = x;
        find_runs(&runs, arrays, count, size, least, portion);
    }
    void *kernel = !numbers ? plain : arrays[1] == x ? number : flipped;
    if (!kernel) return 0;
    Call call = {.runs = &runs, .is_generated = is_generated && !numbers};
    memcpy(&call.kernel, &kernel, sizeof kernel);
    backburn_pool_run(parts_of, &call, runs.count * runs.parts, runs.grain, threads);
    return 1;
}
