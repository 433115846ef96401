/* The processor's instruction sets. */
#include "processor.h"
#include "windows_entry.h"

/* The index of the best instruction set, in the order of build.py. */
EXPORT int backburn_level(void) {
#if defined(__x86_64__)
    const Processor p = processor();
    if (!(has(p.first, FMA | MOVBE | F16C) && has(p.extended, LZCNT) && has(p.seventh, BMI1 | AVX2 | BMI2) &&
          has(p.states, AVX_STATES)))
        return 0;
    return has(p.seventh, AVX512 | AVX512VL) && has(p.states, AVX512_STATES) ? 2 : 1;
#else
    return 0;
#endif
}
