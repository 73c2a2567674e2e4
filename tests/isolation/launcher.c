/* A program that launches kernels as its arguments say: a way to reach the driver, then
   commands. Time is that of clock.c where it is preloaded. */
#include "reach.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static CUstream stream;
static const char *name; /* of the function that launches */
static long rounds, together;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

#define IS(word) !strcmp(name, #word)
static CUresult launch(void *function) {
    struct launch how = {{1, 1, 1}, {1, 1, 1}, 0, stream};
    struct launch_each each = {NULL, how, NULL};
    if (IS(cuLaunchKernel) || IS(cuLaunchKernel_ptsz))
        return ((type_cuLaunchKernel *)function)(NULL, 1, 1, 1, 1, 1, 1, 0, stream, NULL,
                                                 NULL);
    if (IS(cuLaunchCooperativeKernel) || IS(cuLaunchCooperativeKernel_ptsz))
        return ((type_cuLaunchCooperativeKernel *)function)(NULL, 1, 1, 1, 1, 1, 1, 0,
                                                            stream, NULL);
    if (IS(cuLaunchKernelEx) || IS(cuLaunchKernelEx_ptsz))
        return ((type_cuLaunchKernelEx *)function)(&how, NULL, NULL, NULL);
    if (IS(cuGraphLaunch) || IS(cuGraphLaunch_ptsz))
        return ((type_cuGraphLaunch *)function)(NULL, stream);
    if (IS(cuLaunchCooperativeKernelMultiDevice))
        return ((type_cuLaunchCooperativeKernelMultiDevice *)function)(&each, 1, 0);
    if (IS(cuLaunch))
        return ((type_cuLaunch *)function)(NULL);
    if (IS(cuLaunchGrid))
        return ((type_cuLaunchGrid *)function)(NULL, 1, 1);
    if (IS(cuLaunchGridAsync))
        return ((type_cuLaunchGridAsync *)function)(NULL, 1, 1, stream);
    exit(3);
}

static long launches(const char *of, int started) {
    return ((long (*)(const char *, int))OTHER("standin_launches"))(of, started);
}

/* A number of the test's clock; -1 where there is none. */
static long of_clock(const char *what) {
    uint64_t (*number)(void) = dlsym(RTLD_DEFAULT, what);
    return number ? (long)number() : -1;
}

/* As the node: a file in place of the one before, of this moment. */
static void say(const char *text) {
    struct timespec times[2];
    FILE *file = fopen("pace.new", "w");
    clock_gettime(CLOCK_REALTIME, &times[0]);
    times[1] = times[0];
    if (!file || fprintf(file, "%s\n", text) < 0 || fclose(file) ||
        utimensat(AT_FDCWD, "pace.new", times, 0) || rename("pace.new", "pace"))
        exit(4);
}

static void *launch_rounds(void *function) {
    for (long i = 0; i < rounds; i++)
        if (launch(function))
            exit(4);
    return NULL;
}

/* Kernels that wait for each other: none ends before all have started. */
static void *launch_together(void *function) {
    launch_rounds(function);
    while (launches(NULL, 1) < together)
        sched_yield();
    return NULL;
}

static void *launch_cancelled(void *function) {
    pthread_cancel(pthread_self());
    launch_rounds(function);
    pthread_testcancel();
    exit(4);
}

static void run(int many, void *each(void *), void *function) {
    pthread_t thread[64];
    for (int i = 0; i < many; i++)
        pthread_create(&thread[i], NULL, each, function);
    for (int i = 0; i < many; i++)
        pthread_join(thread[i], NULL);
}

static void told(uint64_t since) {
    printf("%s %ld %ld %ld %ld\n", name, launches(name, 1), launches(name, 0),
           (long)(now_ns() - since) / 1000, of_clock("clock_longest_us"));
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    door = argv[1];
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    for (int i = 2; i < argc; i++) {
        const char *command = argv[i], *word = i + 1 < argc ? argv[++i] : "";
        uint64_t since = now_ns();
        if (!strcmp(command, "door")) {
            name = word;
        } else if (!strcmp(command, "stream")) {
            stream = (CUstream)strtoul(word, NULL, 10);
        } else if (!strcmp(command, "capture")) {
            ((void (*)(int))OTHER("standin_capture"))(atoi(word));
        } else if (!strcmp(command, "fail")) {
            ((void (*)(const char *))OTHER("standin_fail"))(word);
        } else if (!strcmp(command, "say")) {
            say(word);
        } else if (!strcmp(command, "pass")) {
            ((void (*)(uint64_t))dlsym(RTLD_DEFAULT, "clock_pass"))(strtoul(word, 0, 10));
        } else if (!strcmp(command, "launch")) {
            rounds = atol(word);
            errno = ENOTTY;
            launch_rounds(get(name));
            if (errno != ENOTTY)
                printf("errno %d\n", errno);
            told(since);
        } else if (!strcmp(command, "threads")) {
            rounds = 5;
            run(atoi(word), launch_rounds, get(name));
            told(since);
        } else if (!strcmp(command, "together")) {
            rounds = 1;
            together = atol(word);
            run(atoi(word), launch_together, get(name));
            told(since);
        } else if (!strcmp(command, "cancelled")) {
            rounds = atol(word);
            run(1, launch_cancelled, get(name));
            told(since);
        } else if (!strcmp(command, "speed")) {
            rounds = atol(word);
            void *function = get(name);
            since = now_ns();
            launch_rounds(function);
            printf("launch %.2f ns\n", (double)(now_ns() - since) / (double)rounds);
        } else if (!strcmp(command, "children")) {
            for (int child = 0; child < atoi(word); child++)
                if (!fork()) {
                    rounds = 2;
                    launch_rounds(get(name));
                    told(since);
                    return 0;
                }
            while (wait(NULL) > 0)
                ;
        } else {
            return 3;
        }
    }
    return 0;
}
