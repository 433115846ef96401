/* The kernels' thread pool.
 *
 * Handing work to another Python thread and waiting for it takes 50 to 100 us, as long as a kernel takes on some
 * hundred thousand elements. These threads never enter Python. After a job they spin for 100 us, longer than the usual
 * time between two operations, and then sleep. All threads take small portions until none is left, so that a late one
 * merely does less.
 */
#define _POSIX_C_SOURCE 200809L /* signals and threads, which C11 lacks */
#include "kernels.h"
#include "thread_pool.h"

#if defined(_WIN32)

void backburn_pool_run(Task *task, const void *context, int64_t rows, int64_t grain, int threads) {
    (void)grain, (void)threads;
    task(context, 0, rows);
}

int backburn_pool_place(void) { return 0; }

EXPORT int backburn_pool_reset(void) { return 0; }

#else

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#define MAX_THREADS 32   /* threads, including the caller's */
#define SPIN_TIME 100000 /* ns that a thread spins before it sleeps */

#if defined(__x86_64__) || defined(__i386__)
#define RELAX() __builtin_ia32_pause()
#else
#define RELAX() ((void)0)
#endif

/* Written by the caller that holds the pool, only while no job is open and no worker is active. */
static struct {
    Task *task;
    const void *context;
    int64_t rows, grain;
    int workers;
} job;

static atomic_int busy;       /* a caller holds the pool */
static atomic_int job_open;   /* there is a job */
static atomic_int active;     /* workers that may be reading the job */
static atomic_uint job_number;
static atomic_llong next_row; /* the first row not yet taken */
static atomic_int sleeping;   /* workers that wait to be woken */
static int workers;           /* threads started, without callers */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static _Thread_local int place;

int backburn_pool_place(void) { return place; }

static void run_portions(void) {
    for (;;) {
        const int64_t first = atomic_fetch_add(&next_row, job.grain), rest = job.rows - first;
        if (rest <= 0) return;
        job.task(job.context, first, rest < job.grain ? job.rows : first + job.grain);
    }
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

/* Spins for SPIN_TIME or until there is a new job. */
static void spin(unsigned seen) {
    const int64_t end = now() + SPIN_TIME;
    do {
        for (int i = 0; i < 64; i++) {
            if (atomic_load(&job_number) != seen) return;
            RELAX();
        }
    } while (now() < end);
}

static void *worker_loop(void *argument) {
    const int me = (int)(intptr_t)argument;
    place = me + 1;
    unsigned seen = 0;
    for (;;) {
        spin(seen);
        if (atomic_load(&job_number) == seen) {
            pthread_mutex_lock(&lock);
            atomic_fetch_add(&sleeping, 1);
            while (atomic_load(&job_number) == seen) pthread_cond_wait(&wake, &lock);
            atomic_fetch_sub(&sleeping, 1);
            pthread_mutex_unlock(&lock);
        }
        seen = atomic_load(&job_number);
        /* Either the caller sees this worker active and waits, or the worker sees that the job is over. */
        atomic_fetch_add(&active, 1);
        if (atomic_load(&job_open) && me < job.workers) run_portions();
        atomic_fetch_sub(&active, 1);
    }
    return NULL;
}

/* Starts workers up to the number wanted, or as many as the system allows; they block all signals. */
static void start_workers(int wanted) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; workers < wanted; workers++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, worker_loop, (void *)(intptr_t)workers)) break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void backburn_pool_run(Task *task, const void *context, int64_t rows, int64_t grain, int threads) {
    const int64_t portions = (rows + grain - 1) / grain;
    int wanted = (threads < MAX_THREADS ? threads : MAX_THREADS) - 1;
    if (wanted >= portions) wanted = (int)portions - 1;
    if (wanted < 1 || atomic_exchange(&busy, 1)) {
        task(context, 0, rows);
        return;
    }
    if (workers < wanted) start_workers(wanted);
    job.task = task, job.context = context, job.rows = rows, job.grain = grain, job.workers = wanted;
    atomic_store(&next_row, 0);
    atomic_store(&job_open, 1);
    atomic_fetch_add(&job_number, 1);
    if (atomic_load(&sleeping)) {
        pthread_mutex_lock(&lock);
        pthread_cond_broadcast(&wake);
        pthread_mutex_unlock(&lock);
    }
    run_portions();
    atomic_store(&job_open, 0);
    for (int i = 1; atomic_load(&active); i++) {
        if (i % 256) {
            RELAX();
        } else {
            sched_yield();
        }
    }
    atomic_store(&busy, 0);
}

/* Resets the pool in a forked child, which has no workers. Returns how many the parent had. */
EXPORT int backburn_pool_reset(void) {
    const int before = workers;
    workers = 0;
    atomic_store(&busy, 0);
    atomic_store(&job_open, 0);
    atomic_store(&active, 0);
    atomic_store(&sleeping, 0);
    atomic_store(&job_number, 0);
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&wake, NULL);
    return before;
}

#endif
