/* Arrays that broadcast or are parts of larger ones, in runs: in each an array is contiguous or a single number. */
#ifndef RUNS_H
#define RUNS_H
#include "kernels.h"

/* An array as NumPy lays it out after an object's header: the address of its elements, and its shape and strides. */
typedef struct {
    char *data;
    int axes;
    const intptr_t *shape, *strides;
} NumpyArray;

enum { MOST_AXES = 8, MOST_ARRAYS_IN_RUNS = 12 };

/* The runs, in order of the axes that they lie along, the fastest first. Runs are divided into parts, so that threads
 * share long ones: a part has `portion` elements, the last of a run the rest. A thread takes `grain` parts at once. */
typedef struct {
    int arrays, axes;
    int64_t count, elements, parts, portion, grain, counts[MOST_AXES];
    char *starts[MOST_ARRAYS_IN_RUNS];
    /* In bytes: the stride of the elements of a run, 0 or their size, and those along the axes. */
    int64_t inner[MOST_ARRAYS_IN_RUNS], strides[MOST_ARRAYS_IN_RUNS][MOST_AXES];
} Runs;

/* Finds the runs of arrays with elements of `size` bytes, the first of which is contiguous and has the shape of all.
 * Returns 0 if runs are shorter than `least` or lie along too many axes. */
int find_runs(Runs *runs, const NumpyArray *const *arrays, int count, int64_t size, int64_t least, int64_t portion);

/* A place in runs: the indices along the axes, and the addresses of the arrays there. */
typedef struct {
    const Runs *runs;
    int64_t part, index[MOST_AXES];
    char *starts[MOST_ARRAYS_IN_RUNS];
} Place;

/* The part of that number, of all runs. */
INLINE Place place_of(const Runs *runs, int64_t part) {
    Place place = {.runs = runs, .part = part % runs->parts};
    int64_t rest = part / runs->parts;
    memcpy(place.starts, runs->starts, sizeof place.starts);
    for (int a = 0; a < runs->axes; a++, rest /= runs->counts[a - 1]) {
        place.index[a] = rest % runs->counts[a];
        for (int k = 0; k < runs->arrays; k++) place.starts[k] += place.index[a] * runs->strides[k][a];
    }
    return place;
}

/* The addresses of a part, and how many elements it has. */
INLINE int64_t part_at(const Place *place, char **a) {
    const Runs *runs = place->runs;
    const int64_t first = place->part * runs->portion, rest = runs->elements - first;
    for (int k = 0; k < runs->arrays; k++) a[k] = place->starts[k] + first * runs->inner[k];
    return rest < runs->portion ? rest : runs->portion;
}

/* Goes on by some parts, more than one only along the first axis. */
INLINE void advance(Place *place, int64_t parts) {
    const Runs *runs = place->runs;
    if (runs->parts > 1 && ++place->part < runs->parts) return;
    place->part = 0;
    int64_t steps = runs->parts > 1 ? 1 : parts;
    for (int a = 0; a < runs->axes; a++, steps = 1) {
        const int is_end = (place->index[a] += steps) == runs->counts[a];
        if (is_end) place->index[a] = 0, steps -= runs->counts[a];
        for (int k = 0; k < runs->arrays; k++) place->starts[k] += steps * runs->strides[k][a];
        if (!is_end) return;
    }
}
#endif
