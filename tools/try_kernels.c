/* Calls element-wise kernels of a library and prints a checksum of what each computes; try_kernels.py compiles it.
 *
 *     try_kernels PROCESSOR LIBRARY KERNEL...
 *
 * Numbers come from integers, so that they are the same on every machine; NaN are made alike, whose signs are the
 * processor's choice. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#include <windows.h>
static void *opened(const char *path) { return (void *)LoadLibraryA(path); }
static void *found(void *library, const char *name) { return (void *)GetProcAddress((HMODULE)library, name); }
#else
#include <dlfcn.h>
static void *opened(const char *path) { return dlopen(path, RTLD_NOW); }
static void *found(void *library, const char *name) { return dlsym(library, name); }
#endif

enum { COUNT = 20001, MOST = 5 };
typedef union {
    float *floats;
    double *doubles;
    unsigned char *bytes;
} Array;
typedef void One(void *, int64_t), Two(void *, void *, int64_t), Three(void *, void *, void *, int64_t);
typedef void Four(void *, void *, void *, void *, int64_t), Five(void *, void *, void *, void *, void *, int64_t);
typedef void Share(void *, int64_t, int64_t, int64_t, int, int, void *, void *, void *, void *, int64_t, int64_t,
                   int64_t, int64_t);

static void fill(Array x, size_t size, uint32_t seed) {
    for (int i = 0; i < COUNT; i++) {
        seed = seed * 1664525u + 1013904223u;
        const double value = ((int32_t)(seed >> 8) - (1 << 23)) / 2097152.0;
        if (size == sizeof(double)) x.doubles[i] = value;
        else x.floats[i] = (float)value;
    }
}

static uint32_t checksum(Array x, size_t size, uint32_t sum) {
    for (int i = 0; i < COUNT; i++) {
        const int nan = size == sizeof(double) ? x.doubles[i] != x.doubles[i] : x.floats[i] != x.floats[i];
        for (size_t k = 0; k < size; k++) sum = (sum ^ (nan ? 255 : x.bytes[i * size + k])) * 16777619u;
    }
    return sum;
}

int main(int count, char **arguments) {
    void *processor = count > 2 ? opened(arguments[1]) : NULL, *library = count > 2 ? opened(arguments[2]) : NULL;
    if (!processor || !library) return fprintf(stderr, "no libraries, or none that can be loaded\n"), 1;
    printf("level %d\n", ((int (*)(void))found(processor, "backburn_level"))());
    Share *share = (Share *)found(library, "backburn_parallel_for");
    Array x[MOST];
    for (int i = 0; i < MOST; i++) x[i].bytes = malloc(COUNT * sizeof(double));
    for (int i = 3; i < count; i++) {
        char name[200];
        snprintf(name, sizeof name, "backburn_%s", arguments[i]);
        void *kernel = found(library, name);
        snprintf(name, sizeof name, "backburn_parameters_of_%s", arguments[i]);
        const char *parameters = found(library, name);
        int arrays = 0;
        for (const char *p = parameters; p && *p; p++) arrays += *p == '*';
        if (!kernel || arrays < 1 || arrays > MOST) return fprintf(stderr, "%s: no such kernel\n", arguments[i]), 1;
        const size_t size = strstr(parameters, "double") ? sizeof(double) : sizeof(float);
        for (int k = 0; k < arrays; k++) fill(x[k], size, (uint32_t)k);
        void *a = x[0].bytes, *b = x[1].bytes, *c = x[2].bytes, *d = x[3].bytes, *e = x[4].bytes;
        if (arrays == 1) ((One *)kernel)(a, COUNT);
        else if (arrays == 2) ((Two *)kernel)(a, b, COUNT);
        else if (arrays == 3) ((Three *)kernel)(a, b, c, COUNT);
        else if (arrays == 4) ((Four *)kernel)(a, b, c, d, COUNT);
        else ((Five *)kernel)(a, b, c, d, e, COUNT);
        uint32_t sum = 2166136261u;
        for (int k = 0; k < arrays; k++) sum = checksum(x[k], size, sum);
        const int64_t step = (int64_t)size;
        if (arrays == 2 && strncmp(arguments[i], "fill", 4)) { /* again, shared among threads; fill reads one number */
            share(kernel, COUNT, 0, 512, 4, 2, a, b, NULL, NULL, step, step, 0, 0);
            sum = checksum(x[0], size, sum);
        }
        printf("%s %08x\n", arguments[i], (unsigned)sum);
    }
    return 0;
}
