/* A program that uses the card as its arguments say: a way to reach the driver, then
   commands. Each command prints one line. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "reach.h"

static struct { CUhandle key; uint64_t size; } held[100000];
static int count;
static CUmemoryPool pool;
static CUdeviceptr mapped = 1ULL << 44;

static CUresult allocate(const char *name, uint64_t size, CUhandle *key) {
    struct array_shape flat = {1 << 16, size >> 18, 0x20, 1};
    struct array3d_shape deep = {1 << 16, 4, size >> 20, 0x20, 1, 0};
    struct array3d_shape levels = {1 << 10, size >> 12, 0, 0x20, 1, 0};
    struct create_properties on_device = {1, 0, {1, 0}}, on_host = {1, 0, {2, 0}};
    size_t pitch;
#define IS(word) !strcmp(name, #word)
    if (IS(cuMemAlloc_v2)) return GET(cuMemAlloc_v2)(key, size);
    if (IS(cuMemAllocManaged)) return GET(cuMemAllocManaged)(key, size, 1);
    if (IS(cuMemAllocPitch_v2))
        return GET(cuMemAllocPitch_v2)(key, &pitch, 1 << 20, size >> 20, 4);
    /* The stand-in makes 1024 bytes of each row; it is counted as 512 at first. */
    if (IS(narrow)) return GET(cuMemAllocPitch_v2)(key, &pitch, 512, size >> 10, 4);
    if (IS(cuMemAllocAsync)) return GET(cuMemAllocAsync)(key, size, NULL);
    if (IS(cuMemAllocAsync_ptsz)) return GET(cuMemAllocAsync_ptsz)(key, size, NULL);
    if (IS(cuMemAllocFromPoolAsync))
        return GET(cuMemAllocFromPoolAsync)(key, size, pool, NULL);
    if (IS(cuMemAllocFromPoolAsync_ptsz))
        return GET(cuMemAllocFromPoolAsync_ptsz)(key, size, pool, NULL);
    if (IS(cuMemCreate)) return GET(cuMemCreate)(key, size, &on_device, 0);
    if (IS(host)) return GET(cuMemCreate)(key, size, &on_host, 0);
    /* So many pixels of some format. */
    if (!strncmp(name, "format-", 7)) {
        flat.width = 1024, flat.height = size >> 10, flat.channels = 4;
        flat.format = (unsigned)strtoul(name + 7, NULL, 16);
        return GET(cuArrayCreate_v2)((CUarray *)key, &flat);
    }
    if (IS(cuArrayCreate_v2)) return GET(cuArrayCreate_v2)((CUarray *)key, &flat);
    if (IS(cuArray3DCreate_v2)) return GET(cuArray3DCreate_v2)((CUarray *)key, &deep);
    if (IS(cuMipmappedArrayCreate))
        return GET(cuMipmappedArrayCreate)((CUarray *)key, &levels, 1);
    if (IS(cuMemAlloc) || IS(cuMemAllocPitch) || IS(cuArrayCreate) || IS(cuArray3DCreate))
        return ((type_cuMemAlloc *)get(name))();
    if (IS(cuGraphAddMemAllocNode))
        return GET(cuGraphAddMemAllocNode)((CUgraphNode *)key, NULL, NULL, 0, &on_host);
    struct node_parameters node = {NODE_ALLOCATES};
    if (IS(kernel)) node.type = 0;
    if (IS(cuGraphAddNode) || IS(kernel))
        return GET(cuGraphAddNode)((CUgraphNode *)key, NULL, NULL, 0, &node);
    if (IS(cuGraphAddNode_v2) || IS(cuGraphAddNode_v3))
        return ((type_cuGraphAddNode_v2 *)get(name))((CUgraphNode *)key, NULL, NULL, NULL, 0,
                                                     &node);
    exit(3);
}

static CUresult release(const char *name, int i) {
    CUhandle key = held[i].key;
    if (IS(cuMemFree_v2)) return GET(cuMemFree_v2)(key);
    if (IS(cuMemFreeAsync)) return GET(cuMemFreeAsync)(key, NULL);
    if (IS(cuMemFreeAsync_ptsz)) return GET(cuMemFreeAsync_ptsz)(key, NULL);
    if (IS(cuMemRelease)) return GET(cuMemRelease)(key);
    if (IS(cuArrayDestroy)) return GET(cuArrayDestroy)((void *)key);
    if (IS(cuMipmappedArrayDestroy)) return GET(cuMipmappedArrayDestroy)((void *)key);
    /* One after another, as one range. */
    CUdeviceptr at = mapped + ((CUdeviceptr)i << 32);
    if (IS(cuMemMap)) return GET(cuMemMap)(at, 1ULL << 32, 0, key, 0);
    if (IS(exactly)) return GET(cuMemMap)(at, held[i].size, 0, key, 0);
    if (IS(cuMemRetainAllocationHandle))
        return GET(cuMemRetainAllocationHandle)(&held[i].key, (void *)at);
    /* As a program does that gives memory to itself. */
    if (IS(reimport)) {
        CUhandle shared;
        CUresult (*export)(void *, CUhandle, int, unsigned long long) =
            OTHER("cuMemExportToShareableHandle");
        return export(&shared, key, 0, 0) ||
               GET(cuMemImportFromShareableHandle)(&held[i].key, &shared, 0) ||
               GET(cuMemRelease)(key);
    }
    exit(3);
}

static void *churn(void *rounds) {
    unsigned seed = (unsigned)(uintptr_t)&seed;
    CUdeviceptr own[8] = {0};
    for (long i = 0; i < (long)rounds; i++) {
        CUdeviceptr *at = &own[rand_r(&seed) % 8];
        uint64_t size = 1 + rand_r(&seed) % (100 << rand_r(&seed) % 21);
        if (*at) {
            rand_r(&seed) % 2 ? GET(cuMemFree_v2)(*at) : GET(cuMemFreeAsync)(*at, NULL);
            *at = 0;
        } else if (rand_r(&seed) % 2 ? GET(cuMemAlloc_v2)(at, size)
                                     : GET(cuMemAllocAsync)(at, size, NULL)) {
            *at = 0;
        }
    }
    for (int i = 0; i < 8; i++)
        if (own[i])
            GET(cuMemFree_v2)(own[i]);
    return NULL;
}

static void threads(int many, long rounds) {
    pthread_t thread[64];
    for (int i = 0; i < many; i++)
        pthread_create(&thread[i], NULL, churn, (void *)rounds);
    for (int i = 0; i < many; i++)
        pthread_join(thread[i], NULL);
    printf("threads done\n");
}

static void pairs(long rounds, int async) {
    type_cuMemAlloc_v2 *make = GET(cuMemAlloc_v2);
    type_cuMemFree_v2 *end = GET(cuMemFree_v2);
    type_cuMemAllocAsync *make_async = GET(cuMemAllocAsync);
    type_cuMemFreeAsync *end_async = GET(cuMemFreeAsync);
    struct timespec from, to;
    CUdeviceptr at;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (long i = 0; i < rounds; i++)
        if (async ? make_async(&at, 1 << 20, NULL) || end_async(at, NULL)
                  : make(&at, 1 << 20) || end(at))
            exit(4);
    clock_gettime(CLOCK_MONOTONIC, &to);
    double ns = 1e9 * (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec);
    printf("pairs %.1f ns\n", ns / (double)rounds);
}

/* Children that are forked while other threads allocate; each uses the card itself. */
static void forks(int many) {
    pthread_t thread[4];
    int status, failed = 0;
    for (int i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, churn, (void *)400L);
    for (int i = 0; i < many; i++) {
        pid_t made = fork();
        CUdeviceptr at;
        if (!made)
            _exit(GET(cuMemAlloc_v2)(&at, 1) || GET(cuMemFree_v2)(at));
        failed += waitpid(made, &status, 0) != made || status;
    }
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    printf("forks %d\n", failed);
}

/* Children that all hold some memory at the same time. */
static void crowd(int many) {
    int ready[2], go[2], got = 0;
    char code;
    if (pipe(ready) || pipe(go))
        exit(4);
    for (int i = 0; i < many; i++)
        if (!fork()) {
            CUdeviceptr at;
            code = (char)GET(cuMemAlloc_v2)(&at, 1 << 20);
            close(go[1]);
            _exit(write(ready[1], &code, 1) != 1 || read(go[0], &code, 1));
        }
    for (int i = 0; i < many && read(ready[0], &code, 1) == 1; i++)
        got += !code;
    printf("crowd %d\n", got);
    CUdeviceptr at;
    printf("more %d\n", GET(cuMemAlloc_v2)(&at, (1025ULL - (unsigned)many) << 20));
    close(go[1]);
    while (wait(NULL) > 0)
        ;
}

static void *hurry(void *unused) {
    CUdeviceptr at;
    for (;; pthread_testcancel())
        if (!GET(cuMemAlloc_v2)(&at, 1))
            GET(cuMemFree_v2)(at);
    return unused;
}

/* Threads that are cancelled while they allocate. */
static void cancel(int many) {
    CUdeviceptr first;
    /* Opens what the stand-in needs, where it must not be cancelled either. */
    if (GET(cuMemAlloc_v2)(&first, 1) || GET(cuMemFree_v2)(first))
        exit(4);
    for (int i = 0; i < many; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, hurry, NULL);
        usleep((useconds_t)(i * 10));
        pthread_cancel(thread);
        pthread_join(thread, NULL);
    }
    printf("cancelled\n");
}

/* What no correct program does. */
static void odd(void) {
    CUdeviceptr at = 0, other;
    struct array3d_shape huge = {SIZE_MAX, SIZE_MAX, SIZE_MAX, 0x20, 4, 0};
    struct array_shape flat = {SIZE_MAX, SIZE_MAX, 0x20, 4};
    struct create_properties on_device = {1, 0, {1, 0}};
    CUarray array;
    size_t pitch;
    printf("huge %d %d %d %d %d %d %d\n", GET(cuMemAlloc_v2)(&other, SIZE_MAX),
           GET(cuMemAllocAsync)(&other, SIZE_MAX, NULL),
           GET(cuMemAllocPitch_v2)(&other, &pitch, SIZE_MAX, SIZE_MAX, 4),
           GET(cuArrayCreate_v2)(&array, &flat), GET(cuArray3DCreate_v2)(&array, &huge),
           GET(cuMipmappedArrayCreate)(&array, &huge, 99),
           GET(cuMemCreate)(&other, SIZE_MAX, &on_device, 0));
    printf("zero %d\n", GET(cuMemAlloc_v2)(&other, 0));
    GET(cuMemFree_v2)(other);
    CUresult made = GET(cuMemAlloc_v2)(&at, 1 << 20), inside = GET(cuMemFree_v2)(at + 512);
    CUresult freed = GET(cuMemFree_v2)(at), again = GET(cuMemFree_v2)(at);
    printf("frees %d %d %d %d\n", made, inside, freed, again);
    printf("none %d %d %d\n", GET(cuMemRelease)(12345), GET(cuMemUnmap)(mapped, SIZE_MAX),
           GET(cuMemFreeAsync)(0, NULL));
}

/* Close all files, and open one of its own in their place. */
static void shut(void) {
    for (int file = 3; file < 64; file++)
        close(file);
    printf("shut %d\n", open("other", O_RDWR | O_CREAT | O_TRUNC, 0600));
}

static void *pools(void *rounds) {
    struct pool_properties properties = {1, 0, {1, 0}};
    for (long i = 0; i < (long)rounds; i++) {
        CUmemoryPool own;
        CUdeviceptr at;
        if (GET(cuMemPoolCreate)(&own, &properties))
            exit(4);
        if (!GET(cuMemAllocFromPoolAsync)(&at, 1 << 20, own, NULL))
            GET(cuMemFreeAsync)(at, NULL);
        GET(cuMemPoolDestroy)(own);
    }
    return NULL;
}

/* Pools that come and go while other memory is asked for that does not fit. */
static void destroyed_pools(long rounds) {
    pthread_t thread[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, pools, (void *)rounds);
    for (long i = 0; i < rounds; i++) {
        CUdeviceptr at;
        if (!GET(cuMemAlloc_v2)(&at, 2ULL << 30))
            exit(4);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    printf("pools done\n");
}

/* A child that was not made by fork, so that nobody closes its parent's files. */
static void bare_clone(void) {
    long made = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (!made)
        for (;;)
            pause();
    printf("%ld\n", made);
}

/* What this process is counted for, which is alone. */
static uint64_t counted(void) {
    struct flock lock = {.l_type = F_WRLCK, .l_start = 1LL << 60, .l_len = 1LL << 60};
    int file = open("region", O_RDWR);
    fcntl(file, F_OFD_GETLK, &lock);
    close(file);
    return lock.l_type == F_UNLCK ? 0 : (uint64_t)lock.l_len - 1;
}

#define THINGS 32
static CUdeviceptr next_place = 1ULL << 45;
enum { NOTHING, FREED_NOW, FREED_LATER, AN_ARRAY, A_HANDLE, A_MAPPING, OF_POOL };
static struct thing { int kind; CUhandle key; uint64_t size; } things[THINGS];

static int make_random(struct thing *thing, unsigned *seed) {
    struct create_properties on_device = {1, 0, {1, 0}};
    struct array_shape flat = {1 + rand_r(seed) % 4096, rand_r(seed) % 4096, 0x20, 4};
    uint64_t size = 1 + rand_r(seed) % (1u << rand_r(seed) % 28);
    CUdeviceptr *at = &thing->key;
    thing->size = size;
    switch (thing->kind = 1 + (int)(rand_r(seed) % 6)) {
    case FREED_NOW:
        return rand_r(seed) % 2 ? GET(cuMemAlloc_v2)(at, size)
                                : GET(cuMemAllocManaged)(at, size, 1);
    case FREED_LATER: return GET(cuMemAllocAsync)(at, size, NULL);
    case AN_ARRAY: return GET(cuArrayCreate_v2)((CUarray *)at, &flat);
    case A_HANDLE: return GET(cuMemCreate)(at, size, &on_device, 0);
    case OF_POOL: return GET(cuMemAllocFromPoolAsync)(at, size, pool, NULL);
    }
    /* A mapping of some handle, at a place of its own. */
    struct thing *handle = &things[rand_r(seed) % THINGS];
    *at = next_place += 1ULL << 32;
    thing->size = handle->size;
    return handle->kind != A_HANDLE || GET(cuMemMap)(*at, handle->size, 0, handle->key, 0);
}

static void end_thing(struct thing *thing, unsigned *seed) {
    CUhandle key = thing->key, shared, imported;
    CUresult (*export)(void *, CUhandle, int, unsigned long long) =
        OTHER("cuMemExportToShareableHandle");
    switch (thing->kind) {
    case FREED_NOW: GET(cuMemFree_v2)(key); break;
    case FREED_LATER: case OF_POOL: GET(cuMemFreeAsync)(key, NULL); break;
    case AN_ARRAY: GET(cuArrayDestroy)((CUarray)key); break;
    case A_HANDLE:
        /* Imported memory is known by its mappings alone. */
        if (rand_r(seed) % 3 == 0 && !export(&shared, key, 0, 0) &&
            !GET(cuMemImportFromShareableHandle)(&imported, &shared, 0)) {
            thing->key = next_place += 1ULL << 32;
            thing->kind = GET(cuMemMap)(thing->key, thing->size, 0, imported, 0)
                              ? NOTHING : A_MAPPING;
            GET(cuMemRelease)(imported);
        } else {
            thing->kind = NOTHING;
        }
        GET(cuMemRelease)(key);
        return;
    case A_MAPPING:
        /* Its memory may have no other handle any more. */
        if (rand_r(seed) % 3 == 0 &&
            !GET(cuMemRetainAllocationHandle)(&thing->key, (void *)(uintptr_t)key)) {
            GET(cuMemUnmap)(key, thing->size);
            thing->kind = A_HANDLE;
            return;
        }
        GET(cuMemUnmap)(key, thing->size);
    }
    thing->kind = NOTHING;
}

/* Whatever a program does, it never holds more than it is counted for. */
static void random_calls(unsigned seed, int rounds, uint64_t limit) {
    uint64_t (*holds)(void) = OTHER("standin_held");
    struct pool_properties properties = {1, 0, {1, 0}};
    GET(cuMemPoolCreate)(&pool, &properties);
    for (int i = 0; i < rounds; i++) {
        struct thing *thing = &things[rand_r(&seed) % THINGS];
        int what = rand_r(&seed) % 16;
        if (what == 0)
            GET(cuStreamSynchronize)(NULL);
        else if (what == 1)
            GET(cuMemPoolTrimTo)(pool, 0);
        else if (what == 2)
            GET(cuCtxSetLimit)(2, rand_r(&seed) % (256u << 20));
        else if (thing->kind)
            end_thing(thing, &seed);
        else if (make_random(thing, &seed))
            thing->kind = NOTHING;
        if (holds() > counted() || counted() > limit) {
            printf("after %d calls: held %llu, counted %llu\n", i,
                   (unsigned long long)holds(), (unsigned long long)counted());
            exit(5);
        }
    }
    for (int again = 0; again < 2; again++)
        for (int i = 0; i < THINGS; i++)
            while (things[i].kind)
                end_thing(&things[i], &seed);
    GET(cuMemPoolDestroy)(pool);
    GET(cuCtxSetLimit)(2, 8 << 20);
    GET(cuCtxSynchronize)();
    printf("left %llu %llu\n", (unsigned long long)holds(), (unsigned long long)counted());
}

static void info(void) {
    size_t free = 0, total = 0, device = 0;
    CUresult code = GET(cuMemGetInfo_v2)(&free, &total);
    CUresult second = GET(cuDeviceTotalMem_v2)(&device, 0);
    printf("info %d %zu %zu %d %zu\n", code, free >> 20, total >> 20, second, device >> 20);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    door = argv[1];
    int global = !strcmp(door, "default") || !strcmp(door, "next");
    int deep = !strcmp(door, "deepbind") ? RTLD_DEEPBIND : 0;
    library = dlopen("libcuda.so.1", RTLD_NOW | deep | (global ? RTLD_GLOBAL : RTLD_LOCAL));
    CUcontext context = &context;
    if (!library)
        printf("no driver\n");
    for (int i = 2; i < argc; i++) {
        const char *name = argv[i];
        CUhandle key = 0;
        if (IS(fill) || IS(alloc)) {
            const char *what = argv[++i];
            char *unit; /* MiB, or B */
            uint64_t size = strtoull(argv[++i], &unit, 10) << (*unit == 'B' ? 0 : 20);
            int before = count, single = IS(alloc);
            CUresult code;
            while (!(code = allocate(what, size, &key))) {
                held[count].key = key;
                held[count++].size = size;
                if (single)
                    break;
            }
            printf("%s %d %d\n", what, count - before, code);
        } else if (IS(free)) {
            const char *what = argv[++i];
            CUresult code = 0;
            for (int j = 0; j < count && !code; j++)
                code = release(what, j);
            int stays = !strcmp(what, "cuMemMap") || !strcmp(what, "exactly") ||
                        !strncmp(what, "cuMemRet", 8) ||
                        !strcmp(what, "reimport") || code;
            /* Handles stay known after their release, for their mappings. */
            printf("%s %d %d\n", what, count, code);
            if (!stays && strcmp(what, "cuMemRelease"))
                count = 0;
        } else if (IS(unmap)) {
            printf("unmap %d\n", GET(cuMemUnmap)(mapped, (uint64_t)count << 32));
            count = 0;
        } else if (IS(forget)) {
            count = 0;
        } else if (IS(base)) {
            mapped = (strtoull(argv[++i], NULL, 10) + 1) << 44;
        } else if (IS(limit)) {
            int limit = atoi(argv[++i]);
            size_t value = strtoull(argv[++i], NULL, 10);
            printf("limit %d\n", GET(cuCtxSetLimit)(limit, value));
        } else if (IS(cuStreamSynchronize) || IS(cuStreamSynchronize_ptsz) ||
                   IS(cuEventSynchronize) || IS(cuCtxSynchronize_v2)) {
            printf("%s %d\n", name, ((type_cuStreamSynchronize *)get(name))(NULL));
        } else if (IS(cuCtxSynchronize)) {
            printf("%s %d\n", name, GET(cuCtxSynchronize)());
        } else if (IS(cuCtxCreate_v2)) {
            printf("%s %d\n", name, GET(cuCtxCreate_v2)(&context, 0, 0));
        } else if (IS(detach)) {
            printf("detach %d\n", GET(cuCtxDetach)(context));
            count = 0;
        } else if (IS(hostpool)) {
            struct location at = {2, 0};
            CUresult (*get_pool)(CUmemoryPool *, struct location *, int) =
                OTHER("cuMemGetDefaultMemPool");
            printf("hostpool %d\n", get_pool(&pool, &at, 1));
        } else if (IS(pool) || IS(managed)) {
            int type = IS(pool) ? 1 : MANAGED;
            struct pool_properties properties = {type, 0, {atoi(argv[++i]), 0}};
            printf("pool %d\n", GET(cuMemPoolCreate)(&pool, &properties));
        } else if (IS(trim)) {
            printf("trim %d\n", GET(cuMemPoolTrimTo)(pool, 0));
        } else if (IS(drop)) {
            printf("drop %d\n", GET(cuMemPoolDestroy)(pool));
        } else if (IS(info)) {
            info();
        } else if (IS(context)) {
            ((CUresult(*)(CUcontext))OTHER("cuCtxSetCurrent"))(context);
        } else if (IS(destroy)) {
            printf("destroy %d\n", GET(cuCtxDestroy_v2)(context));
            count = 0;
        } else if (IS(retain)) {
            GET(cuDevicePrimaryCtxRetain)(&context, 0);
        } else if (IS(cuDevicePrimaryCtxReset_v2) || IS(cuDevicePrimaryCtxRelease_v2) ||
                   IS(cuDevicePrimaryCtxReset) || IS(cuDevicePrimaryCtxRelease)) {
            printf("%s %d\n", name, ((type_cuDevicePrimaryCtxReset *)get(name))(0));
            count = 0;
        } else if (IS(fail)) {
            ((void (*)(const char *))OTHER("standin_fail"))(argv[++i]);
        } else if (IS(capture)) {
            ((void (*)(int))OTHER("standin_capture"))(atoi(argv[++i]));
        } else if (IS(point)) {
            setenv("VCUDA_POINT", argv[++i], 1);
        } else if (IS(threads)) {
            int many = atoi(argv[++i]);
            threads(many, atol(argv[++i]));
        } else if (IS(forks)) {
            forks(atoi(argv[++i]));
        } else if (IS(crowd)) {
            crowd(atoi(argv[++i]));
        } else if (IS(cancel)) {
            cancel(atoi(argv[++i]));
        } else if (IS(odd)) {
            odd();
        } else if (IS(shut)) {
            shut();
        } else if (IS(unshut)) {
            close(3);
        } else if (IS(clone)) {
            bare_clone();
        } else if (IS(random)) {
            unsigned seed = (unsigned)atoi(argv[++i]);
            random_calls(seed, atoi(argv[++i]), 1024ULL << 20);
        } else if (IS(pools)) {
            destroyed_pools(atol(argv[++i]));
        } else if (IS(many)) {
            int made = 0, most = atoi(argv[++i]);
            struct pool_properties properties = {1, 0, {1, 0}};
            while (made < most && !GET(cuMemPoolCreate)(&pool, &properties) &&
                   !allocate("cuMemAllocFromPoolAsync", 1 << 20, &key) &&
                   !GET(cuMemFreeAsync)(key, NULL) && !GET(cuMemPoolTrimTo)(pool, 0))
                made++;
            printf("many %d\n", made);
        } else if (IS(complain)) {
            fprintf(stderr, "written to where stderr was\n");
        } else if (IS(reload)) {
            dlclose(library);
            library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        } else if (IS(pairs) || !strcmp(name, "async-pairs")) {
            pairs(atol(argv[++i]), !IS(pairs));
        } else if (IS(wait)) {
            printf("waiting\n");
            if (getchar() == EOF)
                return 0;
        } else if (IS(child)) {
            /* A child does what follows until "parent"; the parent waits for it. */
            pid_t made = fork();
            int status = 0;
            if (made && (waitpid(made, &status, 0) != made || status))
                printf("child ended with %d\n", status);
            while (made && i < argc && strcmp(argv[i], "parent"))
                i++;
        } else if (IS(parent)) {
            return 0;
        } else if (IS(exec)) {
            execv(argv[i + 1], argv + i + 1);
            return 5;
        } else {
            return 3;
        }
    }
    return 0;
}
