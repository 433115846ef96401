/* The entry point that Windows calls when it loads a library, in place of the C library's, which is several times as
 * long. */
#ifndef BACKBURN_START_H
#define BACKBURN_START_H

#if defined(BACKBURN_BARE)
int __stdcall DllMainCRTStartup(void *module, unsigned long reason, void *reserved) {
    (void)module, (void)reason, (void)reserved;
    return 1;
}
#endif

#endif
