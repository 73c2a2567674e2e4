/* The ways by which a program reaches the driver's functions. Built with -DLINKED it has
   libcuda.so.1 as a library of its own. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#ifdef LINKED
#define AT(name) (void *)name
#else
#define AT(name) NULL
#endif
#define ROW(result, name, base, since, per_thread, unknown, parameters)                  \
    {#name, #base, since, per_thread, AT(name)},
static const struct { const char *name, *base; int since, per_thread; void *at; } table[] =
    {CUDA_HOOKS(ROW)};

static const char *door;
static void *library;

static void *get(const char *name) {
    size_t i = 0;
    while (strcmp(table[i].name, name))
        if (++i == sizeof table / sizeof *table) {
            fprintf(stderr, "no function %s\n", name);
            exit(3);
        }
    void *found = NULL;
    unsigned long long flags = table[i].per_thread ? PER_THREAD_STREAM : 0;
    if (!strcmp(door, "link"))
        return table[i].at;
    if (!strcmp(door, "default"))
        return dlsym(RTLD_DEFAULT, name);
    if (!strcmp(door, "next"))
        return dlsym(RTLD_NEXT, name);
    if (!strcmp(door, "dlsym") || !strcmp(door, "deepbind"))
        return dlsym(library, name);
    int version = table[i].since;
    if (!strcmp(door, "getproc")) {
        type_cuGetProcAddress *ask = dlsym(library, "cuGetProcAddress");
        ask(table[i].base, &found, version, flags);
    } else {
        type_cuGetProcAddress_v2 *ask = dlsym(library, "cuGetProcAddress_v2"), *again;
        ask("cuGetProcAddress", (void **)&again, 12000, 0, NULL);
        again(table[i].base, &found, version, flags, NULL);
    }
    return found;
}
#define GET(name) ((type_##name *)get(#name))
#define OTHER(name) dlsym(library, name)
