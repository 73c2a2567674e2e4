/* A clock that only sleeping moves, preloaded ahead of the library: how long launches wait
   is what they asked for, whatever else the machine does. CLOCK_LATE_US is how much too
   long each sleep is. With CLOCK_SIGNALS each ends at its half first. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#define LOAD(at) __atomic_load_n(at, __ATOMIC_SEQ_CST)

static uint64_t now_us = 1700000000ULL * 1000000, sleeps, longest_us;

static void raise_to(uint64_t *at, uint64_t value) {
    uint64_t before = LOAD(at);
    while (before < value && !__atomic_compare_exchange_n(at, &before, value, 0, 5, 5))
        ;
}

static uint64_t variable(const char *name) {
    const char *value = getenv(name);
    return value ? strtoull(value, NULL, 10) : 0;
}

uint64_t clock_longest_us(void) { return LOAD(&longest_us); }
void clock_pass(uint64_t us) { __atomic_add_fetch(&now_us, us, __ATOMIC_SEQ_CST); }

int clock_gettime(clockid_t clock, struct timespec *out) {
    uint64_t now = LOAD(&now_us);
    (void)clock;
    *out = (struct timespec){(time_t)(now / 1000000), (long)(now % 1000000) * 1000};
    return 0;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until,
                    struct timespec *rest) {
    uint64_t end = (uint64_t)until->tv_sec * 1000000 + (uint64_t)until->tv_nsec / 1000;
    uint64_t now = LOAD(&now_us), count = __atomic_add_fetch(&sleeps, 1, __ATOMIC_SEQ_CST);
    if (clock != CLOCK_MONOTONIC || flags != TIMER_ABSTIME || rest)
        abort();
    pthread_testcancel();
    while (LOAD(&sleeps) < variable("CLOCK_TOGETHER"))
        sched_yield();
    errno = EIO;
    if (end > now)
        raise_to(&longest_us, end - now);
    if (variable("CLOCK_SIGNALS") && count % 2) {
        raise_to(&now_us, now + (end - now) / 2);
        return EINTR;
    }
    raise_to(&now_us, end + variable("CLOCK_LATE_US"));
    return 0;
}
