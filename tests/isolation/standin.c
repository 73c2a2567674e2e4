/* libcuda.so.1 without a driver, made from NVIDIA's header: a card of 16 GiB that the
   processes of one folder share. It remembers what each of them holds and the most that
   all held at once, in the file "card"; where that cannot be written, each process has a
   card alone. What it holds is what a driver takes, which is more than it is asked for.
   Pools take 32 MiB at a time, and keep it until they are trimmed or waited for. The
   functions that do nothing, and cuGetProcAddress, are in a file that headers.py writes. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef unsigned long long CUhandle;

#define CARD (16ULL << 30)
#define CHUNK (32ULL << 20)
#define MOST 65536
#define PROCESSES 1024

struct holder { int64_t pid; uint64_t used; };
struct card { uint64_t peak, size; struct holder holder[PROCESSES]; };
struct piece { int kind, references; CUhandle key; uint64_t size; void *owner; };
struct own_pool {
    CUmemAllocationType type;
    CUmemLocation at;
    uint64_t live, reserved;
    int destroyed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct card *card;
static struct holder *mine;
static struct piece *pieces[MOST];
static struct own_pool the_pool = {CU_MEM_ALLOCATION_TYPE_PINNED,
                                   {.type = CU_MEM_LOCATION_TYPE_DEVICE}, 0, 0, 0};
static struct own_pool host_pool = {CU_MEM_ALLOCATION_TYPE_PINNED,
                                    {.type = CU_MEM_LOCATION_TYPE_HOST}, 0, 0, 0};
static const size_t at_first[3] = {1024, 1 << 20, 8 << 20}; /* by CUlimit */
static size_t limits[3] = {1024, 1 << 20, 8 << 20};
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

void standin_fail(const char *name) { strncpy(failing, name, sizeof failing - 1); }
void standin_capture(int on) { capturing = on; }

static int fails(const char *name) {
    int found = *name && !strcmp(failing, name);
    if (found)
        failing[0] = 0;
    return found;
}

static int is_on_card(const struct own_pool *pool) {
    return pool->type == CU_MEM_ALLOCATION_TYPE_MANAGED ||
           pool->at.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

/* Measured on an RTX 3090: 0.75 MiB take 1, 1 MiB and a byte 2, 2 MiB and a byte 4. */
static uint64_t taken(uint64_t size) {
    const uint64_t block = 2 << 20;
    if (size > UINT64_MAX - block)
        return UINT64_MAX;
    return size > block / 2 ? (size + block - 1) / block * block
           : size           ? block / (block / size)
                            : 0;
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
    if (size > CARD)
        return 0;
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

/* What this process holds. */
uint64_t standin_held(void) {
    take_part();
    return __atomic_load_n(&mine->used, __ATOMIC_SEQ_CST);
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
    size = owner ? size : taken(size);
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
    if (is_on_card(pool) && wanted > pool->reserved) {
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
        while (piece && --piece->references == 0) {
            struct piece *imported = kind == 1 ? piece->owner : NULL;
            if ((at = place(kind, piece->key)))
                *at = NULL;
            if (kind == 0 && piece->owner)
                ((struct own_pool *)piece->owner)->live -= piece->size;
            else
                let_go(piece->size);
            free(piece);
            piece = imported;
        }
    }
    pthread_mutex_unlock(&lock);
    return code;
}

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
        return stream ? 1 : pool_take(__func__, (struct own_pool *)pool, size, at);      \
    }
FROM_POOL(cuMemAllocFromPoolAsync)
FROM_POOL(cuMemAllocFromPoolAsync_ptsz)
CUresult cuMemFree_v2(CUdeviceptr at) { return give(__func__, 0, at); }
CUresult cuMemFreeAsync(CUdeviceptr at, CUstream s) { return s ? 1 : give(__func__, 0, at); }
CUresult cuMemFreeAsync_ptsz(CUdeviceptr at, CUstream s) {
    return s ? 1 : give(__func__, 0, at);
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    struct own_pool *made = calloc(1, sizeof *made);
    made->type = properties->allocType;
    made->at = properties->location;
    *pool = (CUmemoryPool)made;
    return 0;
}
CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *at,
                                CUmemAllocationType type) {
    (void)type;
    *pool = (CUmemoryPool)(at->type == CU_MEM_LOCATION_TYPE_DEVICE ? &the_pool : &host_pool);
    return 0;
}
static CUresult trim(struct own_pool *pool, size_t keep) {
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
/* As a driver, which crashes with a pool that is not there any more. */
static struct own_pool *alive(CUmemoryPool handle) {
    struct own_pool *pool = (struct own_pool *)handle;
    if (pool->destroyed)
        abort();
    return pool;
}
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    return fails(__func__) ? 999 : trim(alive(pool), keep);
}
CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    ((struct own_pool *)pool)->destroyed = 1;
    return trim((struct own_pool *)pool, 0);
}
CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                               void *value) {
    struct own_pool *pool = alive(handle);
    pthread_mutex_lock(&lock);
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *(uint64_t *)value = pool->reserved; break;
    case CU_MEMPOOL_ATTR_ALLOCATION_TYPE: *(int *)value = (int)pool->type; break;
    case CU_MEMPOOL_ATTR_LOCATION_TYPE: *(int *)value = (int)pool->at.type; break;
    default: abort();
    }
    pthread_mutex_unlock(&lock);
    return 0;
}
CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    *pool = (CUmemoryPool)&the_pool;
    return (CUresult)device;
}

/* The release threshold of each pool is 0, as it is at first. */
static CUresult waited(void) { return trim(&the_pool, 0); }
CUresult cuStreamSynchronize(CUstream stream) { return stream ? 1 : waited(); }
CUresult cuStreamSynchronize_ptsz(CUstream stream) { return stream ? 1 : waited(); }
CUresult cuEventSynchronize(CUevent event) { return event ? 1 : waited(); }
CUresult cuCtxSynchronize(void) { return waited(); }
CUresult cuCtxSynchronize_v2(CUcontext context) { return context ? 1 : waited(); }

CUresult cuMemCreate(CUhandle *handle, size_t size, const CUmemAllocationProp *p,
                     unsigned long long flags) {
    int on_device = p->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    return flags ? 1 : take(__func__, 1, on_device ? size : 0, NULL, handle);
}
CUresult cuMemRelease(CUhandle handle) { return give(__func__, 1, handle); }

/* What is imported is a handle of its own, which keeps the memory. */
CUresult cuMemExportToShareableHandle(void *shared, CUhandle handle,
                                      CUmemAllocationHandleType type,
                                      unsigned long long flags) {
    *(CUhandle *)shared = handle;
    return type || flags ? 1 : 0;
}
CUresult cuMemImportFromShareableHandle(CUhandle *handle, void *shared,
                                        CUmemAllocationHandleType type) {
    pthread_mutex_lock(&lock);
    struct piece **memory = place(1, *(CUhandle *)shared);
    if (memory)
        (*memory)->references++;
    pthread_mutex_unlock(&lock);
    return memory ? take(__func__, 1, type, *memory, handle) : 1;
}

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

/* The formats that tests use. */
static uint64_t array_bits(CUarray_format format, unsigned channels) {
    switch (format) {
    case CU_AD_FORMAT_FLOAT: return 32 * channels;
    case CU_AD_FORMAT_UNORM_INT8X4: return 32;
    case CU_AD_FORMAT_NV12: return 12;
    case CU_AD_FORMAT_BC1_UNORM: return 4;
    case CU_AD_FORMAT_BC7_UNORM: return 8;
    default: abort();
    }
}
CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *s) {
    uint64_t pixels = s->Width * (s->Height ? s->Height : 1);
    uint64_t bits = array_bits(s->Format, s->NumChannels);
    return take(__func__, 3, pixels * bits / 8, NULL, (CUhandle *)array);
}
CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *s) {
    uint64_t bits = array_bits(s->Format, s->NumChannels);
    return take(__func__, 3, s->Width * s->Height * s->Depth * bits / 8, NULL,
                (CUhandle *)array);
}
CUresult cuArrayDestroy(CUarray array) { return give(__func__, 3, (CUhandle)array); }
CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *s,
                                unsigned levels) {
    uint64_t size = 0;
    for (unsigned level = 0; level < levels; level++)
        size += (s->Width >> level) * (s->Height >> level) * s->NumChannels * 4;
    return take(__func__, 4, size, NULL, (CUhandle *)array);
}
CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    return give(__func__, 4, (CUhandle)array);
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *n, CUgraph g, const CUgraphNode *a, size_t c,
                                CUDA_MEM_ALLOC_NODE_PARAMS *p) {
    return !n || !p || g || a || c;
}
CUresult cuGraphAddNode(CUgraphNode *n, CUgraph g, const CUgraphNode *a, size_t c,
                        CUgraphNodeParams *p) {
    return !n || !p || g || a || c;
}
CUresult cuGraphAddNode_v2(CUgraphNode *n, CUgraph g, const CUgraphNode *a,
                           const CUgraphEdgeData *e, size_t c, CUgraphNodeParams *p) {
    return !n || !p || g || a || e || c;
}
CUresult cuGraphAddNode_v3(CUgraphNode *n, CUgraph g, const CUgraphNode *a,
                           const CUgraphEdgeData *e, size_t c, CUgraphNodeParams *p) {
    return cuGraphAddNode_v2(n, g, a, e, c, p);
}
/* 1: all streams are captured; else the one of that number. */
static int is_captured(CUstream stream) {
    return capturing && (capturing == 1 || (uintptr_t)stream == (uintptr_t)capturing);
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    *status = is_captured(stream);
    return fails(__func__) ? 999 : 0;
}
CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus *status) {
    *status = is_captured(stream);
    return fails(__func__) ? 999 : 0;
}

/* Launches by the function that was called. In a captured stream nothing starts. */
static struct { const char *name; long started, captured; } launches[16];
static CUresult launch(const char *name, CUstream stream) {
    int i = 0;
    pthread_mutex_lock(&lock);
    while (launches[i].name && strcmp(launches[i].name, name))
        i++;
    launches[i].name = name;
    *(is_captured(stream) ? &launches[i].captured : &launches[i].started) += 1;
    pthread_mutex_unlock(&lock);
    return fails(name) ? 999 : 0;
}
/* How many there were: `started` or captured ones, by one function or, of NULL, by all. */
long standin_launches(const char *name, int started) {
    long sum = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 16 && launches[i].name; i++)
        if (!name || !strcmp(launches[i].name, name))
            sum += started ? launches[i].started : launches[i].captured;
    pthread_mutex_unlock(&lock);
    return sum;
}
#define OF_THREAD(name) __typeof__(name) name##_ptsz
#define KERNEL                                                                           \
    CUfunction f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by,          \
        unsigned bz, unsigned shared, CUstream stream, void **values
#define LAUNCHES(name, stream, ...)                                                      \
    CUresult name(__VA_ARGS__) { return launch(#name, stream); }
#define BOTH(name, stream, ...)                                                          \
    OF_THREAD(name);                                                                     \
    LAUNCHES(name, stream, __VA_ARGS__)                                                  \
    LAUNCHES(name##_ptsz, stream, __VA_ARGS__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
BOTH(cuLaunchKernel, stream, KERNEL, void **extra)
BOTH(cuLaunchCooperativeKernel, stream, KERNEL)
BOTH(cuLaunchKernelEx, config->hStream, const CUlaunchConfig *config, CUfunction f,
     void **values, void **extra)
BOTH(cuGraphLaunch, stream, CUgraphExec graph, CUstream stream)
LAUNCHES(cuLaunchCooperativeKernelMultiDevice, each->hStream, CUDA_LAUNCH_PARAMS *each,
         unsigned many, unsigned flags)
LAUNCHES(cuLaunch, NULL, CUfunction f)
LAUNCHES(cuLaunchGrid, NULL, CUfunction f, int width, int height)
LAUNCHES(cuLaunchGridAsync, stream, CUfunction f, int width, int height, CUstream stream)
#pragma GCC diagnostic pop

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
static CUcontext detached;
CUresult cuCtxDetach(CUcontext context) {
    detached = context;
    return end_of_context();
}
CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version) {
    *version = 3020;
    return context == detached ? CUDA_ERROR_INVALID_CONTEXT : 0;
}
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
    static int own;
    *context = current = (CUcontext)&own;
    return flags ? 1 : (CUresult)device;
}
CUresult cuCtxGetLimit(size_t *value, CUlimit limit) { *value = limits[limit]; return 0; }
CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    uint64_t each = limit == CU_LIMIT_STACK_SIZE ? 20 * 2048 : 1;
    if (limit > CU_LIMIT_MALLOC_HEAP_SIZE)
        return 0;
    pthread_mutex_lock(&lock);
    /* What a context has at first is its own, and no part of what is held. */
    size_t from = limits[limit] > at_first[limit] ? limits[limit] : at_first[limit];
    size_t to = value > at_first[limit] ? value : at_first[limit];
    int fits = to <= from || hold((to - from) * each);
    if (to < from)
        let_go((from - to) * each);
    if (fits)
        limits[limit] = value;
    pthread_mutex_unlock(&lock);
    return fits ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuDeviceGet(CUdevice *device, int number) { *device = number; return 0; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    *value = attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT ? 20 : 2048;
    return (CUresult)device;
}
CUresult cuCtxSetCurrent(CUcontext context) { current = context; return 0; }
CUresult cuCtxGetCurrent(CUcontext *context) { *context = current; return 0; }
CUresult cuCtxGetDevice(CUdevice *device) { *device = 0; return 0; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    static int primary;
    retained++;
    *context = (CUcontext)&primary;
    return (CUresult)device;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return --retained ? (CUresult)device : end_of_context();
}
CUresult cuDevicePrimaryCtxRelease(CUdevice d) { return cuDevicePrimaryCtxRelease_v2(d); }
/* Whoever retains it may go on to use it, and has to let it go still. */
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return device ? 1 : end_of_context();
}
CUresult cuDevicePrimaryCtxReset(CUdevice d) { return cuDevicePrimaryCtxReset_v2(d); }
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
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
