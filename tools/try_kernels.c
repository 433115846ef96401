/* Calls element-wise kernels of a library, products in two threads, and machine code, and prints a checksum of each
 * result; try_kernels.py compiles it.
 *
 *     try_kernels PROCESSOR LIBRARY CODE KERNEL...
 *
 * CODE is a file with a loop assembled by try_kernels.py, or "none".
 * Operands are computed from integers, so that they are the same on every machine; all NaN count as equal, since their
 * signs depend on the processor. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The work of a second thread. */
typedef void Work(void *);
typedef struct {
    Work *work;
    void *context;
} Start;

#if defined(_WIN32)
#include <windows.h>
static DWORD WINAPI started(void *start) { return ((Start *)start)->work(((Start *)start)->context), 0; }
static void in_two_threads(Work *work, void *here, void *there) {
    Start start = {work, there};
    HANDLE thread = CreateThread(NULL, 0, started, &start, 0, NULL);
    work(here);
    WaitForSingleObject(thread, INFINITE);
}
static void *opened(const char *path) { return (void *)LoadLibraryA(path); }
static void *found(void *library, const char *name) { return (void *)GetProcAddress((HMODULE)library, name); }
static void *executable(const void *code, size_t size) {
    void *made = VirtualAlloc(NULL, size, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
    DWORD before;
    if (!made) return NULL;
    memcpy(made, code, size);
    if (!VirtualProtect(made, size, PAGE_EXECUTE_READ, &before)) return NULL;
    return FlushInstructionCache(GetCurrentProcess(), made, size) ? made : NULL;
}
#else
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
static void *started(void *start) { return ((Start *)start)->work(((Start *)start)->context), NULL; }
static void in_two_threads(Work *work, void *here, void *there) {
    Start start = {work, there};
    pthread_t thread;
    if (pthread_create(&thread, NULL, started, &start)) abort();
    work(here);
    pthread_join(thread, NULL);
}
static void *opened(const char *path) { return dlopen(path, RTLD_NOW); }
static void *found(void *library, const char *name) { return dlsym(library, name); }
static void *executable(const void *code, size_t size) {
    void *made = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) return NULL;
    memcpy(made, code, size);
    return mprotect(made, size, PROT_READ | PROT_EXEC) ? NULL : made;
}
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

/* Repeated matrix products, with packed copies in each thread's own memory. */
typedef void Multiply(void *, void *, void *, void *, void *, int, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                      int64_t, int64_t, int64_t, int64_t, int);
enum { HEIGHT = 121, WIDTH = 93, DEPTH = 165, TIMES = 20 };
typedef struct {
    Multiply *kernel;
    Array out, x, y;
} Products;
static void multiply(void *context) {
    const Products *p = context;
    for (int i = 0; i < TIMES; i++)
        p->kernel(p->out.bytes, p->x.bytes, p->y.bytes, NULL, NULL, 0, HEIGHT, WIDTH, DEPTH, DEPTH, 1, WIDTH, 1, 1, 0, 0,
                  1);
}

/* The checksum of the product of two arrays, which two threads compute; 0 if their results differ. */
static uint32_t product(Multiply *kernel, Array *x, size_t size) {
    Products here = {kernel, x[2], x[0], x[1]}, there = {kernel, x[3], x[0], x[1]};
    for (int k = 0; k < 4; k++) fill(x[k], size, (uint32_t)(k % 2));
    in_two_threads(multiply, &here, &there);
    return memcmp(x[2].bytes, x[3].bytes, HEIGHT * WIDTH * size) ? 0 : checksum(x[2], size, 2166136261u);
}

/* The checksum of the results of a loop of machine code, which the interpreter of tiles calls in two threads. It writes
 * elements, and sums and maxima of rows, from elements and numbers per column and row; 0 if it cannot be executed. */
typedef void RunTiles(const int64_t *, const int64_t *, char *, int);
enum { CODE = 8, ARRAYS = 6, WORDS = 23, WIDTH_OF_ROWS = 77, ROWS = 250, PORTION = 50, TALL = 3 };
static uint32_t tiles(RunTiles *run, const char *path) {
    static char code[1 << 16];
    static float arrays[ARRAYS][COUNT];
    static int64_t places[ARRAYS][3], step[WORDS];
    FILE *file = fopen(path, "rb");
    const size_t size = file ? fread(code, 1, sizeof code, file) : 0;
    void *loop = size ? executable(code, size) : NULL;
    if (file) fclose(file);
    if (!loop || !run) return 0;
    int64_t starts[ARRAYS];
    for (int i = 0; i < ARRAYS; i++) {
        fill((Array){.floats = arrays[i]}, sizeof(float), (uint32_t)i);
        starts[i] = (int64_t)(intptr_t)arrays[i];
        places[i][0] = i;
        places[i][2] = i == 4 ? 0 : i == 0 || i == 3 ? WIDTH_OF_ROWS * 4 : 4;
    }
    step[0] = (int64_t)(intptr_t)loop, step[1] = CODE, step[2] = ARRAYS, step[3] = (int64_t)(intptr_t)places;
    const int64_t fixed[] = {(int64_t)(intptr_t)step, 1, ROWS, WIDTH_OF_ROWS, TALL, PORTION, 4, 0, ROWS, 0};
    run(fixed, starts, NULL, 2);
    uint32_t sum = 2166136261u;
    for (int i = 0; i < 3; i++) sum = checksum((Array){.floats = arrays[i]}, sizeof(float), sum);
    return sum;
}

int main(int count, char **arguments) {
    void *processor = count > 3 ? opened(arguments[1]) : NULL, *library = count > 3 ? opened(arguments[2]) : NULL;
    if (!processor || !library) return fprintf(stderr, "no libraries, or none that can be loaded\n"), 1;
    printf("level %d\n", ((int (*)(void))found(processor, "backburn_level"))());
    Share *share = (Share *)found(library, "backburn_parallel_for");
    Array x[MOST];
    for (int i = 0; i < MOST; i++) x[i].bytes = malloc(COUNT * sizeof(double));
    for (int i = 4; i < count; i++) {
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
        if (arrays == 2 && strncmp(arguments[i], "fill", 4)) { /* again, on several threads; fill reads one number */
            share(kernel, COUNT, 0, 512, 4, 2, a, b, NULL, NULL, step, step, 0, 0);
            sum = checksum(x[0], size, sum);
        }
        printf("%s %08x\n", arguments[i], (unsigned)sum);
    }
    printf("gemm %08x\n", (unsigned)product((Multiply *)found(library, "backburn_gemm"), x, sizeof(float)));
    printf("gemm_double %08x\n",
           (unsigned)product((Multiply *)found(library, "backburn_gemm_double"), x, sizeof(double)));
    if (strcmp(arguments[3], "none"))
        printf("code %08x\n", (unsigned)tiles((RunTiles *)found(library, "backburn_run_tiles"), arguments[3]));
    return 0;
}
