/* Threads that wait for parts of kernels' work. */
#ifndef BACKBURN_TEAM_H
#define BACKBURN_TEAM_H

#include <stdint.h>

/* What does the rows first to last - 1 of something. */
typedef void Work(const void *what, int64_t first, int64_t last);

/* Do all rows, so many at a time, by at most so many threads, the caller's among them. Where another caller has the
 * threads, this one does everything itself. */
void backburn_team_do(Work *work, const void *what, int64_t rows, int64_t grain, int threads);

#endif
