/* An element-wise formula in one pass: kernels called one after another on spans of elements. */
#include "formula.h"
#include "runtime/kernels.h"
#include "runtime/runs.h"
#include "runtime/thread_pool.h"

#define SPAN 2048 /* bytes; all registers together fit in the L1 cache */
#define REGISTERS 16
#define MOST_ARRAYS 64

#if defined(__GNUC__)
#define FETCH(place) __builtin_prefetch(place, 0, 2)
#else
#define FETCH(place)
#endif

/* A call is six numbers: the kernel's address, how many arrays it takes, and which; the first array is its result.
 * Arrays from 0 on are those at starts, with the strides of their elements in bytes, and those after them registers,
 * whose elements have size bytes. */
typedef struct {
    const int64_t *calls, *starts, *strides;
    int64_t length, arrays, size;
    int fetches;
} Program;

/* Prefetches a call's share of the span four ahead: memory would idle while registers are computed, and the processor
 * does not prefetch as many interleaved arrays by itself. */
INLINE void fetch(const Program *p, int64_t call, int64_t first) {
    const int64_t lines = SPAN / 64, ahead = first + 4 * (SPAN / p->size);
    for (int64_t k = 0; k < p->arrays; k++) {
        const char *start = (const char *)(intptr_t)p->starts[k] + ahead * p->strides[k];
        for (int64_t i = call * lines / p->length; p->strides[k] && i < (call + 1) * lines / p->length; i++)
            FETCH(start + 64 * i);
    }
}

static void elements(const void *context, int64_t first, int64_t last) {
    typedef void Two(char *, char *, int64_t), Three(char *, char *, char *, int64_t);
    typedef void Four(char *, char *, char *, char *, int64_t);
    const Program *p = context;
    _Alignas(64) char registers[REGISTERS][SPAN + 64]; /* not a power of 2 apart, where they would share cache sets */
    for (const int64_t span = SPAN / p->size; first < last; first += span) {
        const int64_t count = last - first < span ? last - first : span;
        for (const int64_t *call = p->calls, *end = call + 6 * p->length; call < end; call += 6) {
            char *a[4];
            if (p->fetches) fetch(p, (call - p->calls) / 6, first);
            for (int i = 0; i < call[1]; i++) {
                const int64_t k = call[2 + i], rest = k - p->arrays;
                a[i] = rest < 0 ? (char *)(intptr_t)p->starts[k] + first * p->strides[k] : registers[rest];
            }
            void *kernel = (void *)(intptr_t)call[0];
            if (call[1] == 2) ((Two *)kernel)(a[0], a[1], count);
            else if (call[1] == 3) ((Three *)kernel)(a[0], a[1], a[2], count);
            else ((Four *)kernel)(a[0], a[1], a[2], a[3], count);
        }
    }
}

/* A program on runs of its results and operands; its constants follow them. */
typedef struct {
    const Program *program;
    const Runs *runs;
} Apart;

static void parts_of(const void *context, int64_t first, int64_t last) {
    const Apart *apart = context;
    int64_t starts[MOST_ARRAYS];
    Program part = *apart->program;
    memcpy(starts, part.starts, (size_t)part.arrays * sizeof *starts);
    part.starts = starts;
    Place place = place_of(apart->runs, first);
    for (; first < last; first++, advance(&place, 1)) {
        char *a[MOST_ARRAYS_IN_RUNS];
        const int64_t count = part_at(&place, a);
        for (int k = 0; k < apart->runs->arrays; k++) starts[k] = (intptr_t)a[k];
        elements(&part, 0, count);
    }
}

static Program program_of(const int64_t *fixed, const int64_t *starts, int64_t count) {
    const int64_t *calls = (const int64_t *)(intptr_t)fixed[CALLS], *strides = (const int64_t *)(intptr_t)fixed[STEPS];
    const int64_t arrays = fixed[ARRAYS], size = fixed[SIZE];
    int64_t whole = 0;
    for (int64_t k = 0; k < arrays; k++) whole += strides[k] != 0;
    const int fetches = whole > 2 && whole * size * count > 1 << 20; /* larger than an L2 cache */
    return (Program){calls, starts, strides, fixed[LENGTH], arrays, size, fetches};
}

KERNEL(run_formula, const int64_t *fixed, const int64_t *starts, int64_t count, int64_t grain, int threads) {
    const Program program = program_of(fixed, starts, count);
    backburn_pool_run(elements, &program, count, grain, threads);
}

/* The same for results and operands that need not be contiguous. Of `starts`, only those of the constants are read,
 * which follow the `count` arrays. Returns 0, having done nothing, if the runs are too short, or if an operand is a
 * single number in a run and not in the program, or the reverse. */
KERNEL_RETURNING(int, run_formula_on_runs, const int64_t *fixed, const int64_t *starts, const void *const *arrays,
                 int count, int64_t size, int64_t least, int64_t portion, int threads) {
    const Program program = program_of(fixed, starts, 0); /* no prefetches, which would leave a run */
    Runs runs;
    if (count > MOST_ARRAYS_IN_RUNS || program.arrays > MOST_ARRAYS) return 0;
    if (!find_runs(&runs, (const NumpyArray *const *)arrays, count, size, least, portion)) return 0;
    for (int k = 0; k < count; k++)
        if (runs.inner[k] != program.strides[k]) return 0;
    const Apart apart = {&program, &runs};
    backburn_pool_run(parts_of, &apart, runs.count * runs.parts, runs.grain, threads);
    return 1;
}
