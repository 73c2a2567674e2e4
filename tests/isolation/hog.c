/* A program that takes all memory of the card that it gets, for tests on a cluster:

     hog CHUNK_MIB [wait]

   It loads libcuda.so.1 as a framework does, allocates chunks until it is refused, and
   prints two lines: what the card shows it, and what it got. With "wait" it then holds
   that memory until it is killed. Built with -DLINKED it is linked with its driver. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "driver.h"

#ifndef LINKED
static void *must(void *found, const char *name) {
    if (found)
        return found;
    fprintf(stderr, "missing: %s\n", name);
    exit(3);
}
#endif

int main(int argc, char **argv) {
    size_t chunk = argc > 1 ? strtoull(argv[1], NULL, 10) : 0, held = 0, free = 0, total = 0;
    if (!chunk)
        return 3;
    setvbuf(stdout, NULL, _IOLBF, 0);
#ifdef LINKED
#define GET(name) name
#else
    void *library = must(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1");
#define GET(name) ((type_##name *)must(dlsym(library, #name), #name))
#endif
    CUresult code = GET(cuMemGetInfo_v2)(&free, &total);
    printf("shown %zu of %zu MiB, code %d\n", free >> 20, total >> 20, code);
    CUdeviceptr at;
    while (!(code = GET(cuMemAlloc_v2)(&at, chunk << 20)))
        held += chunk;
    printf("held %zu MiB, refused with %d\n", held, code);
    while (argc > 2)
        pause();
    return 0;
}
