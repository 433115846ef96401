/* The kernels' thread pool. */
#ifndef BACKBURN_THREAD_POOL_H
#define BACKBURN_THREAD_POOL_H

#include <stdint.h>

/* Processes rows first to last - 1. */
typedef void Task(const void *context, int64_t first, int64_t last);

/* The index of the calling thread among those of a run, from 0 on: unique in the run, and less than the number of
 * threads given. */
int backburn_pool_place(void);

/* Processes all rows, grain at a time, on at most that many threads including the caller's; on the caller's only while
 * another caller has the pool. */
void backburn_pool_run(Task *task, const void *context, int64_t rows, int64_t grain, int threads);

#endif
