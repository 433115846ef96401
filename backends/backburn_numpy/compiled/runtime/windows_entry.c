/* The entry point of a library of kernels on Windows, which only thread-local variables need. */
#include <stdint.h>
#include "windows_entry.h"

#if defined(BACKBURN_BARE)

/* The linker places the variables, from sections .tls$, between these two, and refers to the directory by its name.
 * Windows gives each thread a copy, and writes the index by which the code finds it. */
__attribute__((section(".tls"))) char _tls_start = 0;
__attribute__((section(".tls$ZZZ"))) char _tls_end = 0;
uint32_t _tls_index = 0;

__attribute__((used)) const struct {
    const void *start, *end;
    uint32_t *index;
    const void *functions;
    uint32_t zeros, flags;
} _tls_used = {&_tls_start, &_tls_end, &_tls_index, 0, 0, 0};

#endif
