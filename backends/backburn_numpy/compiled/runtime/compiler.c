/* The compiler, for reports; build.py names those whose own macros do not. */
#include "kernels.h"

#if !defined(BACKBURN_COMPILER)
#if defined(__clang__)
#define VERSION(major, minor, patch) "Clang " TEXT(major) "." TEXT(minor) "." TEXT(patch)
#define BACKBURN_COMPILER VERSION(__clang_major__, __clang_minor__, __clang_patchlevel__)
#else
#define BACKBURN_COMPILER "GCC " __VERSION__
#endif
#endif

EXPORT const char backburn_compiler[] = BACKBURN_COMPILER;
