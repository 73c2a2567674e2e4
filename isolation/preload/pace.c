/* Launches of kernels wait here for as long as the node says, which measures how much of
   its card each container has. The file has one line: its form, how long a launch waits in
   microseconds, and when it was written, in milliseconds:

     1 2500 81234567

   Without it, or if it is old or unclear, nothing waits: this is no limit of memory. No
   lock is held and no launch waits above 0.1 s, so that kernels that wait for each other
   on several streams, threads or processes all start. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"
#include "limits.h"
#include "versions.h"

/* Beside the limits; tests compile another path in. */
#ifndef VCUDA_PACE
#define VCUDA_PACE "/etc/vcuda/pace"
#endif

#define LONGEST_US 100000
#define READ_EVERY_US 20000
#define OLD_US 1000000

/* Of all threads. A child after fork has them too: they are times of the clock and no
   locks, so that nothing of its parent's must end before it goes on. */
static uint64_t delay_us, read_at, last_start, slept_too_long;

#define LOAD(at) __atomic_load_n(at, __ATOMIC_RELAXED)
#define SET_IF(at, before, value)                                                        \
    __atomic_compare_exchange_n(at, before, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)

static uint64_t in_us(const struct timespec *time) {
    return (uint64_t)time->tv_sec * 1000000 + (uint64_t)time->tv_nsec / 1000;
}

static uint64_t now_us(clockid_t clock) {
    struct timespec now = {0};
    clock_gettime(clock, &now);
    return in_us(&now);
}

/* The delay that a file of this content says; 0 if it is of no form that is known. */
static uint64_t delay_in(char *text) {
    uint64_t delay, stamp;
    char *second = strchr(text, ' '), *third = second ? strchr(second + 1, ' ') : NULL;
    char *end = third ? strchr(third, '\n') : NULL;
    if (!end || end[1] || strncmp(text, "1 ", 2))
        return 0;
    *third = *end = 0;
    int clear = limits_number(second + 1, &delay) && limits_number(third + 1, &stamp);
    return clear && delay <= LONGEST_US ? delay : 0;
}

/* Old by the time of the file: that clock is one in all time namespaces, which that of the
   stamp is not, and a step of it lasts until the file is written again. */
static uint64_t read_delay(void) {
    char text[64];
    struct stat status = {0};
    /* Not blocking, because a FIFO in its place would hang the program. */
    int file = open(VCUDA_PACE, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return 0;
    /* A system call, because glibc 2.33 gave fstat a new symbol. */
    long failed = syscall(SYS_fstat, file, &status);
    ssize_t length = failed ? -1 : read(file, text, sizeof text - 1);
    close(file);
    if (length < 0)
        return 0;
    text[length] = 0;
    uint64_t written = in_us(&status.st_mtim), now = now_us(CLOCK_REALTIME);
    /* Unsigned, so that what is written in time to come is old as well. */
    return now - written <= OLD_US ? delay_in(text) : 0;
}

/* Threads wait one after another, so that a program has the same number of launches by
   however many it makes them. The kernel lets a thread sleep some 50 µs too long, which is
   more than many a delay, so that is taken off the next ones: of the last thread alone,
   because those after others have not lost it. */
static void wait_turn(uint64_t delay) {
    uint64_t over = smaller(__atomic_exchange_n(&slept_too_long, 0, __ATOMIC_RELAXED),
                            LONGEST_US);
    uint64_t used = smaller(over, delay), now = now_us(CLOCK_MONOTONIC), start;
    if (over > used)
        __atomic_fetch_add(&slept_too_long, over - used, __ATOMIC_RELAXED);
    uint64_t last = LOAD(&last_start);
    do
        start = smaller((last > now ? last : now) + delay - used, now + LONGEST_US);
    while (!SET_IF(&last_start, &last, start));
    if (start <= now)
        return;
    /* Until a time and not for one, so that signals do not make it longer. */
    struct timespec at = {(time_t)(start / 1000000), (long)(start % 1000000) * 1000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
        ;
    uint64_t woke = now_us(CLOCK_MONOTONIC);
    if (woke > start && LOAD(&last_start) == start)
        __atomic_store_n(&slept_too_long, woke - start, __ATOMIC_RELAXED);
}

/* What is captured becomes part of a graph and starts nothing. A program must not be kept
   up there, nor where the driver does not say, because the launch fails then. */
static int is_captured(CUstream stream, type_cuStreamIsCapturing *capturing) {
    int status = 0;
    return capturing && (capturing(stream, &status) || status);
}

static void pace(CUstream stream, type_cuStreamIsCapturing *capturing) {
    int error = errno, cancelled;
    uint64_t now = now_us(CLOCK_MONOTONIC_COARSE), before = LOAD(&read_at);
    int due = now - before >= READ_EVERY_US && SET_IF(&read_at, &before, now);
    if (!due && !LOAD(&delay_us))
        return;
    /* As in the driver's function, which is no place where a thread is cancelled. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelled);
    if (due)
        __atomic_store_n(&delay_us, read_delay(), __ATOMIC_RELAXED);
    uint64_t delay = LOAD(&delay_us);
    if (delay && !is_captured(stream, capturing))
        wait_turn(delay);
    pthread_setcancelstate(cancelled, NULL);
    errno = error;
}

#define LAUNCHES(name, capturing, stream, parameters, arguments)                         \
    CUresult name parameters {                                                           \
        REAL(name);                                                                      \
        pace(stream, DRIVER(capturing));                                                 \
        return real arguments;                                                           \
    }
#define BOTH(name, stream, parameters, arguments)                                        \
    LAUNCHES(name, cuStreamIsCapturing, stream, parameters, arguments)                   \
    LAUNCHES(name##_ptsz, cuStreamIsCapturing_ptsz, stream, parameters, arguments)

BOTH(cuLaunchKernel, stream,
     (void *function, unsigned x, unsigned y, unsigned z, unsigned block_x,
      unsigned block_y, unsigned block_z, unsigned shared, CUstream stream,
      void **parameters, void **extra),
     (function, x, y, z, block_x, block_y, block_z, shared, stream, parameters, extra))
BOTH(cuLaunchKernelEx, how ? how->stream : NULL,
     (const struct launch *how, void *function, void **parameters, void **extra),
     (how, function, parameters, extra))
BOTH(cuLaunchCooperativeKernel, stream,
     (void *function, unsigned x, unsigned y, unsigned z, unsigned block_x,
      unsigned block_y, unsigned block_z, unsigned shared, CUstream stream,
      void **parameters),
     (function, x, y, z, block_x, block_y, block_z, shared, stream, parameters))
BOTH(cuGraphLaunch, stream, (void *graph, CUstream stream), (graph, stream))
/* Its kernels start together, and wait once. */
LAUNCHES(cuLaunchCooperativeKernelMultiDevice, cuStreamIsCapturing,
         each && many ? each->how.stream : NULL,
         (struct launch_each *each, unsigned many, unsigned flags), (each, many, flags))
LAUNCHES(cuLaunch, cuStreamIsCapturing, NULL, (void *function), (function))
LAUNCHES(cuLaunchGrid, cuStreamIsCapturing, NULL,
         (void *function, int width, int height), (function, width, height))
LAUNCHES(cuLaunchGridAsync, cuStreamIsCapturing, stream,
         (void *function, int width, int height, CUstream stream),
         (function, width, height, stream))
