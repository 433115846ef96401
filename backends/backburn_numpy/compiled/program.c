/* An element-wise formula in one pass: kernels called one after another on spans of elements. */
#include "kernels.h"
#include "team.h"

#define SPAN 512
#define REGISTERS 16

/* A call is six numbers: the kernel's address, how many arrays it takes, and which; the first array is its result.
 * Arrays from 0 on are those at starts, with the steps of their elements in bytes, and those after them registers. */
typedef struct {
    const int64_t *calls, *starts, *steps;
    int64_t length, arrays;
} Program;

static void elements(const void *what, int64_t first, int64_t last) {
    typedef void Two(char *, char *, int64_t), Three(char *, char *, char *, int64_t);
    typedef void Four(char *, char *, char *, char *, int64_t);
    const Program *p = what;
    _Alignas(64) float registers[REGISTERS][SPAN + 16]; /* never a power of 2 apart, which would share cache sets */
    for (; first < last; first += SPAN) {
        const int64_t count = last - first < SPAN ? last - first : SPAN;
        for (const int64_t *call = p->calls, *end = call + 6 * p->length; call < end; call += 6) {
            char *a[4];
            for (int i = 0; i < call[1]; i++) {
                const int64_t k = call[2 + i], rest = k - p->arrays;
                a[i] = rest < 0 ? (char *)(intptr_t)p->starts[k] + first * p->steps[k] : (char *)registers[rest];
            }
            void *kernel = (void *)(intptr_t)call[0];
            if (call[1] == 2) ((Two *)kernel)(a[0], a[1], count);
            else if (call[1] == 3) ((Three *)kernel)(a[0], a[1], a[2], count);
            else ((Four *)kernel)(a[0], a[1], a[2], a[3], count);
        }
    }
}

KERNEL void backburn_program(const int64_t *calls, int64_t length, const int64_t *starts, const int64_t *steps,
                             int64_t arrays, int64_t count, int64_t grain, int threads) {
    const Program program = {calls, starts, steps, length, arrays};
    backburn_team_do(elements, &program, count, grain, threads);
}
