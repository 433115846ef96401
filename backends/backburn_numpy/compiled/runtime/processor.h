/* The instructions of an x86-64 processor that the system lets programs use.
 *
 * Not __builtin_cpu_supports: it reads what the compiler's library has detected, and zig's detects nothing.
 */
#ifndef BACKBURN_PROCESSOR_H
#define BACKBURN_PROCESSOR_H

#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* Intel's Software Developer's Manual, volume 2A, CPUID; volume 1, 13.3, the states that the system saves. */
enum { FMA = 1 << 12, MOVBE = 1 << 22, OSXSAVE = 1 << 27, F16C = 1 << 29 };              /* leaf 1, ecx */
enum { LZCNT = 1 << 5 };                                                                  /* leaf 0x80000001, ecx */
enum { BMI1 = 1 << 3, AVX2 = 1 << 5, BMI2 = 1 << 8, AVX512 = 0x50030000 };                /* leaf 7, ebx: F, DQ, CD, BW */
#define AVX512VL (1u << 31)
enum { AVX512_VNNI = 1 << 11 };                                                           /* leaf 7, ecx */
enum { AVX_STATES = 0x06, AVX512_STATES = 0xe6 };

typedef struct {
    uint32_t first, extended, seventh, more, states;
} Processor;

INLINE Processor processor(void) {
    Processor p = {0, 0, 0, 0, 0};
    uint32_t a, b, c, d;
    if (__get_cpuid(1, &a, &b, &c, &d)) p.first = c;
    if (__get_cpuid(0x80000001u, &a, &b, &c, &d)) p.extended = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) p.seventh = b, p.more = c;
    if (p.first & OSXSAVE) {
        __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
        p.states = a;
    }
    return p;
}

INLINE int has(uint32_t bits, uint32_t wanted) { return (bits & wanted) == wanted; }
#endif

#endif
