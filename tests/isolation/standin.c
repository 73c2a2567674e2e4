/* libcuda.so.1 without a driver: a card of 16 GiB that the processes of one folder share.
   It remembers what each of them holds and the most that all held at once, in the file
   "card"; where that cannot be written, each process has a card alone. Pools take 32 MiB
   at a time and keep it until they are trimmed. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"

#define CARD (16ULL << 30)
#define CHUNK (32ULL << 20)
#define MOST 65536
#define PROCESSES 1024

struct holder { int64_t pid; uint64_t used; };
struct card { uint64_t peak, size; struct holder holder[PROCESSES]; };
struct piece { int kind, references; CUhandle key; uint64_t size; void *owner; };
struct own_pool { int on_device; uint64_t live, reserved; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct card *card;
static struct holder *mine;
static struct piece *pieces[MOST];
static struct own_pool the_pool = {.on_device = 1};
static CUhandle next_key = 0x7f0000000000ULL;
static char failing[64];
static int capturing, retained;
static __thread CUcontext current;

/* Children forked while another thread is inside go on, which a driver's would not. */
static void enter(void) { pthread_mutex_lock(&lock); }
static void leave(void) { pthread_mutex_unlock(&lock); }
__attribute__((constructor)) static void follow_forks(void) {
    pthread_atfork(enter, leave, leave);
}

OURS void standin_fail(const char *name) { strncpy(failing, name, sizeof failing - 1); }
OURS void standin_capture(int on) { capturing = on; }

static int fails(const char *name) {
    int found = *name && !strcmp(failing, name);
    if (found)
        failing[0] = 0;
    return found;
}

static void take_part(void) {
    if (mine && mine->pid == getpid())
        return;
    if (!card) {
        int file = open("card", O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        int own = file < 0 ? MAP_ANONYMOUS : 0;
        if (!own && ftruncate(file, sizeof *card))
            abort();
        card = mmap(NULL, sizeof *card, PROT_READ | PROT_WRITE, MAP_SHARED | own, file, 0);
        close(file);
        card->size = CARD;
    }
    mine = NULL;
    for (int i = 0; i < PROCESSES && !mine; i++) {
        int64_t nobody = 0, pid = getpid();
        struct holder *one = &card->holder[i];
        if (one->pid == pid)
            one->used = 0, mine = one;
        else if (__atomic_compare_exchange_n(&one->pid, &nobody, pid, 0, 5, 5))
            mine = one;
    }
    if (!mine)
        abort();
}

/* Take from the card; all processes race here as they do in a driver. */
static int hold(uint64_t size) {
    take_part();
    __atomic_add_fetch(&mine->used, size, __ATOMIC_SEQ_CST);
    uint64_t sum = 0, peak = __atomic_load_n(&card->peak, __ATOMIC_SEQ_CST);
    for (int i = 0; i < PROCESSES; i++) {
        int64_t pid = __atomic_load_n(&card->holder[i].pid, __ATOMIC_SEQ_CST);
        if (!pid)
            break;
        if (pid == mine->pid || !kill((pid_t)pid, 0))
            sum += __atomic_load_n(&card->holder[i].used, __ATOMIC_SEQ_CST);
    }
    if (sum > CARD) {
        __atomic_sub_fetch(&mine->used, size, __ATOMIC_SEQ_CST);
        return 0;
    }
    while (peak < sum && !__atomic_compare_exchange_n(&card->peak, &peak, sum, 0, 5, 5))
        ;
    return 1;
}

static void let_go(uint64_t size) {
    take_part();
    __atomic_sub_fetch(&mine->used, size, __ATOMIC_SEQ_CST);
}

static struct piece **place(int kind, CUhandle key) {
    size_t start = (key >> 12) % MOST;
    for (size_t i = 0; i < MOST; i++) {
        struct piece **at = &pieces[(start + i) % MOST];
        if (*at && (*at)->kind == kind && (*at)->key == key)
            return at;
        if (!*at && i > 64)
            break;
    }
    return NULL;
}

static CUresult take(const char *name, int kind, uint64_t size, void *owner,
                     CUhandle *key) {
    CUresult code = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    if (fails(name)) {
        code = 999;
    } else if (owner || hold(size)) {
        struct piece *made = malloc(sizeof *made);
        *made = (struct piece){kind, 1, next_key += 4096, size, owner};
        *key = made->key;
        size_t at = (made->key >> 12) % MOST;
        while (pieces[at])
            at = (at + 1) % MOST;
        pieces[at] = made;
        code = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static CUresult pool_take(const char *name, struct own_pool *pool, uint64_t size,
                          CUhandle *key) {
    CUresult code = 0;
    pthread_mutex_lock(&lock);
    uint64_t wanted = (pool->live + size + CHUNK - 1) / CHUNK * CHUNK;
    if (pool->on_device && wanted > pool->reserved) {
        if (hold(wanted - pool->reserved))
            pool->reserved = wanted;
        else
            code = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!code)
        pool->live += size;
    pthread_mutex_unlock(&lock);
    if (!code && (code = take(name, 0, size, pool, key))) {
        pthread_mutex_lock(&lock);
        pool->live -= size;
        pthread_mutex_unlock(&lock);
    }
    return code;
}

static CUresult give(const char *name, int kind, CUhandle key) {
    CUresult code = 1;
    pthread_mutex_lock(&lock);
    struct piece **at = place(kind, key);
    if (fails(name)) {
        code = 999;
    } else if (at) {
        struct piece *piece = *at;
        code = CUDA_SUCCESS;
        if (--piece->references == 0) {
            *at = NULL;
            if (kind == 0 && piece->owner)
                ((struct own_pool *)piece->owner)->live -= piece->size;
            else
                let_go(piece->size);
            free(piece);
        }
    }
    pthread_mutex_unlock(&lock);
    return code;
}

#define OLDEST(name) CUresult name(void) { return 1; }
OLDEST(cuMemAlloc) OLDEST(cuMemAllocPitch) OLDEST(cuArrayCreate) OLDEST(cuArray3DCreate)
OLDEST(cuMemGetInfo) OLDEST(cuDeviceTotalMem)

CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t size) {
    return take(__func__, 0, size, NULL, at);
}
CUresult cuMemAllocManaged(CUdeviceptr *at, size_t size, unsigned flags) {
    return flags ? take(__func__, 0, size, NULL, at) : 1;
}
CUresult cuMemAllocPitch_v2(CUdeviceptr *at, size_t *pitch, size_t width, size_t height,
                            unsigned element) {
    *pitch = (width + 1023) / 1024 * 1024;
    return element ? take(__func__, 0, *pitch * height, NULL, at) : 1;
}
#define ASYNC(name)                                                                      \
    CUresult name(CUdeviceptr *at, size_t size, CUstream stream) {                       \
        return pool_take(__func__, stream ? NULL : &the_pool, size, at);                 \
    }
ASYNC(cuMemAllocAsync)
ASYNC(cuMemAllocAsync_ptsz)
#define FROM_POOL(name)                                                                  \
    CUresult name(CUdeviceptr *at, size_t size, CUmemoryPool pool, CUstream stream) {    \
        return stream ? 1 : pool_take(__func__, pool, size, at);                         \
    }
FROM_POOL(cuMemAllocFromPoolAsync)
FROM_POOL(cuMemAllocFromPoolAsync_ptsz)
CUresult cuMemFree_v2(CUdeviceptr at) { return give(__func__, 0, at); }
CUresult cuMemFreeAsync(CUdeviceptr at, CUstream s) { return s ? 1 : give(__func__, 0, at); }
CUresult cuMemFreeAsync_ptsz(CUdeviceptr at, CUstream s) {
    return s ? 1 : give(__func__, 0, at);
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const struct pool_properties *properties) {
    struct own_pool *made = calloc(1, sizeof *made);
    made->on_device = !ON_HOST(properties->location.type);
    *pool = made;
    return 0;
}
CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
    struct own_pool *pool = handle;
    if (fails(__func__))
        return 999;
    pthread_mutex_lock(&lock);
    uint64_t wanted = pool->live > keep ? pool->live : keep;
    wanted = (wanted + CHUNK - 1) / CHUNK * CHUNK;
    if (wanted < pool->reserved) {
        let_go(pool->reserved - wanted);
        pool->reserved = wanted;
    }
    pthread_mutex_unlock(&lock);
    return 0;
}
CUresult cuMemPoolDestroy(CUmemoryPool pool) { return cuMemPoolTrimTo(pool, 0); }
OURS CUresult cuMemPoolGetAttribute(CUmemoryPool handle, int attribute, void *value) {
    struct own_pool *pool = handle;
    if (attribute != POOL_RESERVED_NOW)
        return 1;
    pthread_mutex_lock(&lock);
    memcpy(value, &pool->reserved, sizeof pool->reserved);
    pthread_mutex_unlock(&lock);
    return 0;
}
OURS CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    *pool = &the_pool;
    return device;
}

CUresult cuMemCreate(CUhandle *handle, size_t size, const struct create_properties *p,
                     unsigned long long flags) {
    int on_device = !ON_HOST(p->location.type);
    return flags ? 1 : take(__func__, 1, on_device ? size : 0, NULL, handle);
}
CUresult cuMemRelease(CUhandle handle) { return give(__func__, 1, handle); }

/* A mapping is a piece of its own, whose owner is the memory that it keeps. */
CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUhandle handle,
                  unsigned long long flags) {
    CUresult code = 1;
    pthread_mutex_lock(&lock);
    struct piece **memory = place(1, handle);
    if (memory && !fails(__func__) && !offset && !flags) {
        struct piece *made = malloc(sizeof *made);
        *made = (struct piece){2, 1, at, size, *memory};
        (*memory)->references++;
        size_t slot = (at >> 12) % MOST;
        while (pieces[slot])
            slot = (slot + 1) % MOST;
        pieces[slot] = made;
        code = 0;
    }
    pthread_mutex_unlock(&lock);
    return code;
}
CUresult cuMemUnmap(CUdeviceptr at, size_t size) {
    CUresult code = 1;
    for (CUdeviceptr from = at; from < at + size;) {
        pthread_mutex_lock(&lock);
        struct piece **found = fails(__func__) ? NULL : place(2, from), *piece = NULL;
        if (found) {
            piece = *found;
            *found = NULL;
        }
        struct piece *memory = piece ? piece->owner : NULL;
        pthread_mutex_unlock(&lock);
        if (!piece)
            return 1;
        code = give("", 1, memory->key);
        from += piece->size;
        free(piece);
    }
    return code;
}
CUresult cuMemRetainAllocationHandle(CUhandle *handle, void *address) {
    CUresult code = 1;
    pthread_mutex_lock(&lock);
    struct piece **found = place(2, (CUhandle)(uintptr_t)address);
    if (found) {
        struct piece *memory = (*found)->owner;
        memory->references++;
        *handle = memory->key;
        code = 0;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

CUresult cuArrayCreate_v2(CUarray *array, const struct array_shape *s) {
    size_t height = s->height ? s->height : 1;
    return take(__func__, 3, s->width * height * s->channels * 4, NULL, (CUhandle *)array);
}
CUresult cuArray3DCreate_v2(CUarray *array, const struct array3d_shape *s) {
    return take(__func__, 3, s->width * s->height * s->depth * s->channels * 4, NULL,
                (CUhandle *)array);
}
CUresult cuArrayDestroy(CUarray array) { return give(__func__, 3, (CUhandle)array); }
CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const struct array3d_shape *s,
                                unsigned levels) {
    uint64_t size = 0;
    for (unsigned level = 0; level < levels; level++)
        size += (s->width >> level) * (s->height >> level) * s->channels * 4;
    return take(__func__, 4, size, NULL, (CUhandle *)array);
}
CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    return give(__func__, 4, (CUhandle)array);
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *n, CUgraph g, const CUgraphNode *a, size_t c,
                                void *p) {
    return !n || !p || g || a || c;
}
CUresult cuGraphAddNode(CUgraphNode *n, CUgraph g, const CUgraphNode *a, size_t c,
                        struct node_parameters *p) {
    return !n || !p || g || a || c;
}
CUresult cuGraphAddNode_v2(CUgraphNode *n, CUgraph g, const CUgraphNode *a, const void *e,
                           size_t c, struct node_parameters *p) {
    return !n || !p || g || a || e || c;
}
OURS CUresult cuStreamIsCapturing(CUstream stream, int *status) {
    *status = capturing;
    return stream != NULL;
}
OURS CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status) {
    return cuStreamIsCapturing(stream, status);
}

/* Every context holds what was allocated while it was current; only the last one made
   is destroyed in tests, so that all pieces but pools' and handles' go. */
static CUresult end_of_context(void) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < MOST; i++) {
        struct piece *piece = pieces[i];
        if (piece && piece->kind != 1 && piece->kind != 2 && !piece->owner) {
            let_go(piece->size);
            free(piece);
            pieces[i] = NULL;
        }
    }
    pthread_mutex_unlock(&lock);
    return 0;
}
CUresult cuCtxDestroy(CUcontext context) { return context ? end_of_context() : 1; }
CUresult cuCtxDestroy_v2(CUcontext context) {
    return context && !fails(__func__) ? end_of_context() : 1;
}
OURS CUresult cuCtxSetCurrent(CUcontext context) { current = context; return 0; }
OURS CUresult cuCtxGetCurrent(CUcontext *context) { *context = current; return 0; }
OURS CUresult cuCtxGetDevice(CUdevice *device) { *device = 0; return 0; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    static int primary;
    retained++;
    *context = &primary;
    return device;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return --retained == 0 ? end_of_context() : device;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice d) { return cuDevicePrimaryCtxRelease_v2(d); }
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    retained = 0;
    return device ? 1 : end_of_context();
}
CUresult cuDevicePrimaryCtxReset(CUdevice d) { return cuDevicePrimaryCtxReset_v2(d); }
OURS CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    *flags = 0;
    *active = retained > 0;
    return device;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    pthread_mutex_lock(&lock);
    take_part();
    *total = CARD;
    *free = CARD - mine->used;
    pthread_mutex_unlock(&lock);
    return 0;
}
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) { *bytes = CARD; return device; }

#define ROW(result, name, base, since, per_thread, parameters)                           \
    {#name, #base, since, per_thread, (void *)name},
static const struct { const char *name, *base; int since, per_thread; void *at; } table[] =
    {CUDA_HOOKS(ROW)};

/* As the driver: the newest one that this version of CUDA knows, for this kind of stream. */
CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version,
                             unsigned long long flags, void *status) {
    (void)status;
    *function = NULL;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].base, symbol) && table[i].since <= version &&
            (!table[i].per_thread || flags & PER_THREAD_STREAM))
            *function = table[i].at;
    return *function ? 0 : 500;
}
CUresult cuGetProcAddress(const char *symbol, void **function, int version,
                          unsigned long long flags) {
    return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}
