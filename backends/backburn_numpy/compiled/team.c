/* The kernels' thread pool.
 *
 * Handing work to another Python thread and waiting for it takes 50 to 100 us, as long as a kernel takes on some
 * hundred thousand elements. These threads never enter Python. After a job they spin for 100 us, longer than the usual
 * time between two operations, and then sleep. All threads take small portions until none is left, so that a late one
 * merely does less.
 */
#define _POSIX_C_SOURCE 200809L /* signals and threads, which C11 lacks */
#include "kernels.h"
#include "team.h"

#if defined(_WIN32)

void backburn_team_do(Work *work, const void *what, int64_t rows, int64_t grain, int threads) {
    (void)grain, (void)threads;
    work(what, 0, rows);
}

EXPORT int backburn_team_forget(void) { return 0; }

#else

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#define MOST 32         /* threads, including the caller's */
#define PATIENCE 100000 /* ns that a thread spins before it sleeps */

#if defined(__x86_64__) || defined(__i386__)
#define RELAX() __builtin_ia32_pause()
#else
#define RELAX() ((void)0)
#endif

/* Written by the caller that holds the team, only while it is closed and no member is active. */
static struct {
    Work *work;
    const void *what;
    int64_t rows, grain;
    int members;
} job;

static atomic_int taken;      /* a caller holds the team */
static atomic_int open_;      /* there is a job */
static atomic_int active;     /* members that may be reading the job */
static atomic_uint number;    /* of the job */
static atomic_llong next;     /* the first row not yet taken */
static atomic_int sleepers;
static int members;           /* threads started, without callers */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;

static void take_part(void) {
    for (;;) {
        const int64_t first = atomic_fetch_add(&next, job.grain), rest = job.rows - first;
        if (rest <= 0) return;
        job.work(job.what, first, rest < job.grain ? job.rows : first + job.grain);
    }
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

/* Spins for PATIENCE or until there is a new job. */
static void look(unsigned seen) {
    const int64_t end = now() + PATIENCE;
    do {
        for (int i = 0; i < 64; i++) {
            if (atomic_load(&number) != seen) return;
            RELAX();
        }
    } while (now() < end);
}

static void *serve(void *argument) {
    const int me = (int)(intptr_t)argument;
    unsigned seen = 0;
    for (;;) {
        look(seen);
        if (atomic_load(&number) == seen) {
            pthread_mutex_lock(&lock);
            atomic_fetch_add(&sleepers, 1);
            while (atomic_load(&number) == seen) pthread_cond_wait(&wake, &lock);
            atomic_fetch_sub(&sleepers, 1);
            pthread_mutex_unlock(&lock);
        }
        seen = atomic_load(&number);
        /* Either the caller sees this member active and waits, or the member sees that the job is over. */
        atomic_fetch_add(&active, 1);
        if (atomic_load(&open_) && me < job.members) take_part();
        atomic_fetch_sub(&active, 1);
    }
    return NULL;
}

/* Starts members up to the number wanted, or as many as the system allows; they block all signals. */
static void enlist(int wanted) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; members < wanted; members++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)members)) break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void backburn_team_do(Work *work, const void *what, int64_t rows, int64_t grain, int threads) {
    const int64_t portions = (rows + grain - 1) / grain;
    int wanted = (threads < MOST ? threads : MOST) - 1;
    if (wanted >= portions) wanted = (int)portions - 1;
    if (wanted < 1 || atomic_exchange(&taken, 1)) {
        work(what, 0, rows);
        return;
    }
    if (members < wanted) enlist(wanted);
    job.work = work, job.what = what, job.rows = rows, job.grain = grain, job.members = wanted;
    atomic_store(&next, 0);
    atomic_store(&open_, 1);
    atomic_fetch_add(&number, 1);
    if (atomic_load(&sleepers)) {
        pthread_mutex_lock(&lock);
        pthread_cond_broadcast(&wake);
        pthread_mutex_unlock(&lock);
    }
    take_part();
    atomic_store(&open_, 0);
    for (int i = 1; atomic_load(&active); i++) {
        if (i % 256) {
            RELAX();
        } else {
            sched_yield();
        }
    }
    atomic_store(&taken, 0);
}

/* Resets the team in a forked child, which has no members. Returns how many the parent had. */
EXPORT int backburn_team_forget(void) {
    const int before = members;
    members = 0;
    atomic_store(&taken, 0);
    atomic_store(&open_, 0);
    atomic_store(&active, 0);
    atomic_store(&sleepers, 0);
    atomic_store(&number, 0);
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&wake, NULL);
    return before;
}

#endif
