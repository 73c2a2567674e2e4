/* The functions that are replaced. Each counts before it calls the driver, and gives the
   bytes back where the driver fails, so that no two processes pass the limit together. */
#include <string.h>

#include "driver.h"
#include "ledger.h"
#include "region.h"

#define KEY(handle) ((CUhandle)(uintptr_t)(handle))

static uint64_t times(uint64_t a, uint64_t b) {
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* Bits of one element, all planes and channels together; where the format is not known,
   the most that any has. */
static uint64_t element_bits(unsigned format, unsigned channels) {
    static const unsigned char bits[256] = {
        /* R10G10B10A2; YUV 4:2:2 and 4:4:4 packed; 4:2:0, 4:2:2 and 4:4:4 with two planes
           or three, of 8 and of 16 bits */
        [0x50] = 32, 16, 32, 12, 24, 16, 32, 24, 48, 12, 24, 16, 32, 24, 48,
        [0x91] = 4, 4, 8, 8, 8, 8, 4, 4, 8, 8, 8, 8, 8, 8, /* BC1 to BC7 */
        [0x9f] = 24, [0xa1] = 24, 16, 32, 32, 16, 32, 32, 32, 32, /* P010 to Y410 */
        [0xb0] = 12, 64, 24, 48, 24, 48,                          /* NV12, Y416, Y444 */
        [0xc0] = 8, 16, 32, 16, 32, 64, 8, 16, 32, 16, 32, 64,    /* UNORM, SNORM */
    };
    switch (format) {
    case 0x01: case 0x08: return 8ULL * channels;
    case 0x02: case 0x09: case 0x10: return 16ULL * channels; /* half */
    case 0x03: case 0x0a: case 0x20: return 32ULL * channels; /* float */
    }
    return format < sizeof bits && bits[format] ? bits[format] : 128;
}

/* Bytes of so many elements. */
static uint64_t elements_size(uint64_t elements, unsigned format, unsigned channels) {
    uint64_t bits = times(elements, element_bits(format, channels));
    return bits == UINT64_MAX ? bits : bits / 8 + (bits % 8 != 0);
}

#define LAYERED 0x01
#define CUBEMAP 0x04
#define SPARSE 0x40
#define DEFERRED 0x80

/* Without the padding of the driver, which it does not tell. Sparse and deferred arrays
   have no memory of their own: cuMemCreate makes it. */
static uint64_t array_size(const struct array3d_shape *shape, unsigned levels) {
    uint64_t sum = 0;
    if (!shape || shape->flags & (SPARSE | DEFERRED))
        return 0;
    size_t width = shape->width, height = shape->height ? shape->height : 1;
    size_t depth = shape->depth ? shape->depth : 1;
    int layers = shape->flags & (LAYERED | CUBEMAP);
    for (unsigned level = 0; level < levels && level < 64; level++) {
        uint64_t bytes = elements_size(times(times(width, height), depth), shape->format,
                                       shape->channels);
        if (__builtin_add_overflow(sum, bytes, &sum))
            return UINT64_MAX;
        if (width == 1 && height == 1 && (layers || depth == 1))
            break;
        width = width > 1 ? width / 2 : 1;
        height = height > 1 ? height / 2 : 1;
        if (!layers && depth > 1)
            depth /= 2;
    }
    return sum;
}

static uint64_t flat_size(const struct array_shape *flat) {
    return flat ? elements_size(times(flat->width, flat->height ? flat->height : 1),
                                flat->format, flat->channels)
                : 0;
}

/* An allocation of `size` bytes, which are known to the driver by what it puts into `at`.
   Managed memory counts in full, though a part of it may lie in the host's memory. */
#define ALLOCATES(name, kind, size, at, parameters, arguments)                           \
    CUresult name parameters {                                                           \
        REAL(name);                                                                      \
        struct entry *entry;                                                             \
        CUresult code = ledger_reserve(kind, size, &entry);                              \
        if (code)                                                                        \
            return code;                                                                 \
        code = real arguments;                                                           \
        return ledger_settle(entry, code, code ? 0 : KEY(*at));                          \
    }
ALLOCATES(cuMemAlloc_v2, ADDRESS, size, at, (CUdeviceptr *at, size_t size), (at, size))
ALLOCATES(cuMemAllocManaged, ADDRESS, size, at,
          (CUdeviceptr *at, size_t size, unsigned flags), (at, size, flags))
ALLOCATES(cuArrayCreate_v2, ARRAY, flat_size(flat), array,
          (CUarray *array, const struct array_shape *flat), (array, flat))
ALLOCATES(cuArray3DCreate_v2, ARRAY, array_size(shape, 1), array,
          (CUarray *array, const struct array3d_shape *shape), (array, shape))
ALLOCATES(cuMipmappedArrayCreate, MIPMAP, array_size(shape, levels), array,
          (CUmipmappedArray *array, const struct array3d_shape *shape, unsigned levels),
          (array, shape, levels))

#define FREES(name, kind, key, parameters, arguments)                                    \
    CUresult name parameters {                                                           \
        REAL(name);                                                                      \
        struct entry *entry = ledger_take(kind, KEY(key));                               \
        return ledger_drop(entry, real arguments);                                       \
    }
FREES(cuMemFree_v2, ADDRESS, at, (CUdeviceptr at), (at))
FREES(cuMemFreeAsync, ADDRESS, at, (CUdeviceptr at, CUstream stream), (at, stream))
FREES(cuMemFreeAsync_ptsz, ADDRESS, at, (CUdeviceptr at, CUstream stream), (at, stream))
FREES(cuArrayDestroy, ARRAY, array, (CUarray array), (array))
FREES(cuMipmappedArrayDestroy, MIPMAP, array, (CUmipmappedArray array), (array))

#define REFUSED(name)                                                                    \
    CUresult name(void) {                                                                \
        return CUDA_ERROR_NOT_SUPPORTED;                                                 \
    }
REFUSED(cuMemAlloc)
REFUSED(cuMemAllocPitch)
REFUSED(cuArrayCreate)
REFUSED(cuArray3DCreate)
REFUSED(cuMemGetInfo)
REFUSED(cuDeviceTotalMem)

/* The driver chooses the pitch. It is counted as the next 512 bytes at first. */
CUresult cuMemAllocPitch_v2(CUdeviceptr *at, size_t *pitch, size_t width, size_t height,
                            unsigned element_size) {
    REAL(cuMemAllocPitch_v2);
    uint64_t row = width > UINT64_MAX - 511 ? UINT64_MAX : (width + 511) & ~511ULL;
    struct entry *entry;
    CUresult code = ledger_reserve(ADDRESS, times(row, height), &entry);
    if (code)
        return code;
    code = real(at, pitch, width, height, element_size);
    if (!code && (code = ledger_enlarge(entry, times(*pitch, height))) &&
        DRIVER(cuMemFree_v2))
        DRIVER(cuMemFree_v2)(*at);
    return ledger_settle(entry, code, code ? 0 : *at);
}

/* A stream that is captured allocates nothing now. The graph would do so at each launch,
   where it is not seen; so such graphs are refused, as are allocation nodes below. */
static CUresult reserve_async(CUmemoryPool pool, size_t size, CUstream stream,
                              type_cuStreamIsCapturing *capturing, struct entry **entry) {
    int status = 0;
    CUdevice device;
    if (capturing && !capturing(stream, &status) && status)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!pool && (!DRIVER(cuCtxGetDevice) || DRIVER(cuCtxGetDevice)(&device) ||
                  !DRIVER(cuDeviceGetMemPool) || DRIVER(cuDeviceGetMemPool)(&pool, device)))
        return ledger_reserve(ADDRESS, size, entry);
    return ledger_reserve_in(pool, size, entry);
}

#define ALLOCATES_ASYNC(name, pool, capturing, parameters, arguments)                    \
    CUresult name parameters {                                                           \
        REAL(name);                                                                      \
        struct entry *entry;                                                             \
        CUresult code = reserve_async(pool, size, stream, DRIVER(capturing), &entry);    \
        if (code)                                                                        \
            return code;                                                                 \
        code = real arguments;                                                           \
        return ledger_settle(entry, code, code ? 0 : *at);                               \
    }
ALLOCATES_ASYNC(cuMemAllocAsync, NULL, cuStreamIsCapturing,
                (CUdeviceptr *at, size_t size, CUstream stream), (at, size, stream))
ALLOCATES_ASYNC(cuMemAllocAsync_ptsz, NULL, cuStreamIsCapturing_ptsz,
                (CUdeviceptr *at, size_t size, CUstream stream), (at, size, stream))
ALLOCATES_ASYNC(cuMemAllocFromPoolAsync, pool, cuStreamIsCapturing,
                (CUdeviceptr *at, size_t size, CUmemoryPool pool, CUstream stream),
                (at, size, pool, stream))
ALLOCATES_ASYNC(cuMemAllocFromPoolAsync_ptsz, pool, cuStreamIsCapturing_ptsz,
                (CUdeviceptr *at, size_t size, CUmemoryPool pool, CUstream stream),
                (at, size, pool, stream))

CUresult cuMemPoolCreate(CUmemoryPool *pool, const struct pool_properties *properties) {
    REAL(cuMemPoolCreate);
    CUresult code = real(pool, properties);
    if (!code && ON_HOST(properties->location.type) && properties->type != MANAGED)
        pool_ignore(*pool);
    return code;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    REAL(cuMemPoolDestroy);
    return pool_destroy(pool, real);
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    REAL(cuMemPoolTrimTo);
    CUresult code = real(pool, keep);
    pool_reconcile(pool);
    return code;
}

/* Whoever waits for what was freed may see it given back by the pool. */
#define WAITS(name, parameters, arguments)                                               \
    CUresult name parameters {                                                           \
        REAL(name);                                                                      \
        CUresult code = real arguments;                                                  \
        pools_synchronized();                                                            \
        return code;                                                                     \
    }
WAITS(cuStreamSynchronize, (CUstream stream), (stream))
WAITS(cuStreamSynchronize_ptsz, (CUstream stream), (stream))
WAITS(cuEventSynchronize, (CUevent event), (event))
WAITS(cuCtxSynchronize, (void), ())
WAITS(cuCtxSynchronize_v2, (CUcontext context), (context))

/* Memory of a handle is in use until the handle is released and nothing maps it. */
CUresult cuMemCreate(CUhandle *handle, size_t size,
                     const struct create_properties *properties,
                     unsigned long long flags) {
    REAL(cuMemCreate);
    if (!properties || ON_HOST(properties->location.type))
        return real(handle, size, properties, flags);
    struct entry *entry;
    CUresult code = ledger_reserve(HANDLE, size, &entry);
    if (code)
        return code;
    code = real(handle, size, properties, flags);
    return ledger_settle(entry, code, code ? 0 : *handle);
}

/* Memory that is exported and imported again is counted for either handle, because neither
   tells whose it is, and each keeps it. */
CUresult cuMemImportFromShareableHandle(CUhandle *handle, void *shared, int type) {
    REAL(cuMemImportFromShareableHandle);
    struct entry *entry = ledger_prepare(HANDLE);
    if (!entry)
        return CUDA_ERROR_OUT_OF_MEMORY;
    entry->imported = 1;
    CUresult code = real(handle, shared, type);
    if (code || ledger_retain(*handle))
        ledger_drop(entry, CUDA_SUCCESS);
    else
        ledger_enter(entry, *handle);
    return code;
}

CUresult cuMemRelease(CUhandle handle) {
    REAL(cuMemRelease);
    struct entry *entry = ledger_take_handle(handle);
    CUresult code = real(handle);
    if (code && !entry)
        ledger_retain(handle);
    return ledger_drop(entry, code);
}

CUresult cuMemRetainAllocationHandle(CUhandle *handle, void *address) {
    REAL(cuMemRetainAllocationHandle);
    struct entry *entry = ledger_second_handle(KEY(address));
    if (!entry)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult code = real(handle, address);
    if (code || ledger_retain(*handle))
        ledger_drop(entry, CUDA_SUCCESS);
    else
        ledger_enter(entry, *handle);
    return code;
}

CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUhandle handle,
                  unsigned long long flags) {
    REAL(cuMemMap);
    struct entry *entry = ledger_prepare(MAPPING);
    if (!entry)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult code = ledger_map_imported(handle, offset + size);
    if (!code)
        code = real(at, size, offset, handle, flags);
    entry->length = size;
    if (code)
        ledger_drop(entry, CUDA_SUCCESS);
    else
        ledger_refer(entry, at, handle);
    return code;
}

CUresult cuMemUnmap(CUdeviceptr at, size_t size) {
    REAL(cuMemUnmap);
    struct entry *taken = NULL, *entry;
    for (CUdeviceptr from = at; from - at < size; from += entry->length) {
        if (!(entry = ledger_take(MAPPING, from)))
            break;
        entry->next = taken;
        taken = entry;
    }
    return ledger_drop(taken, real(at, size));
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph,
                                const CUgraphNode *after, size_t count, void *parameters) {
    (void)node, (void)graph, (void)after, (void)count, (void)parameters;
    return CUDA_ERROR_NOT_SUPPORTED;
}

#define ADDS_NODE(name, parameters, arguments)                                           \
    CUresult name parameters {                                                           \
        REAL(name);                                                                      \
        int allocates = node_is && node_is->type == NODE_ALLOCATES;                      \
        return allocates ? CUDA_ERROR_NOT_SUPPORTED : real arguments;                    \
    }
ADDS_NODE(cuGraphAddNode,
          (CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
           struct node_parameters *node_is),
          (node, graph, after, count, node_is))
ADDS_NODE(cuGraphAddNode_v2,
          (CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges,
           size_t count, struct node_parameters *node_is),
          (node, graph, after, edges, count, node_is))
ADDS_NODE(cuGraphAddNode_v3,
          (CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges,
           size_t count, struct node_parameters *node_is),
          (node, graph, after, edges, count, node_is))

/* What a context keeps for kernels beyond what it has at first, which is counted with it. */
static uint64_t kept_for_kernels(int limit, uint64_t value) {
    CUdevice device;
    int processors = 0, threads = 0;
    if (limit != STACK_SIZE)
        return value;
    /* A stack for each thread that the card can have at once. */
    if (!DRIVER(cuCtxGetDevice) || DRIVER(cuCtxGetDevice)(&device) ||
        !DRIVER(cuDeviceGetAttribute) ||
        DRIVER(cuDeviceGetAttribute)(&processors, MULTIPROCESSORS, device) ||
        DRIVER(cuDeviceGetAttribute)(&threads, THREADS_EACH, device))
        return 0;
    return times(value, times((uint64_t)processors, (uint64_t)threads));
}

CUresult cuCtxSetLimit(int limit, size_t value) {
    REAL(cuCtxSetLimit);
    CUcontext context = NULL;
    size_t before = 0;
    if (limit > MALLOC_HEAP_SIZE || !DRIVER(cuCtxGetCurrent) || !DRIVER(cuCtxGetLimit) ||
        DRIVER(cuCtxGetCurrent)(&context) || DRIVER(cuCtxGetLimit)(&before, limit))
        return real(limit, value);
    struct entry *entry = ledger_take(LIMIT, KEY(context) + (CUhandle)limit);
    if (!entry) {
        if (!(entry = ledger_prepare(LIMIT)))
            return CUDA_ERROR_OUT_OF_MEMORY;
        entry->length = kept_for_kernels(limit, before);
        entry->context = context;
    }
    uint64_t wanted = kept_for_kernels(limit, value), had = entry->size;
    wanted = wanted > entry->length ? wanted - entry->length : 0;
    CUresult code = ledger_enlarge(entry, wanted);
    if (!code)
        code = real(limit, value);
    ledger_shrink(entry, code ? had : wanted);
    ledger_enter(entry, KEY(context) + (CUhandle)limit);
    return code;
}

/* The memory of a context is counted with the first one of a process, and stays counted
   until the process ends. */
#define MAKES_CONTEXT(name, parameters, arguments)                                       \
    CUresult name parameters {                                                           \
        REAL(name);                                                                      \
        CUresult code = region_charge(0);                                                \
        return code ? code : real arguments;                                             \
    }
MAKES_CONTEXT(cuCtxCreate, (CUcontext *context, unsigned flags, CUdevice device),
              (context, flags, device))
MAKES_CONTEXT(cuCtxCreate_v2, (CUcontext *context, unsigned flags, CUdevice device),
              (context, flags, device))
MAKES_CONTEXT(cuCtxCreate_v3,
              (CUcontext *context, void *affinity, int count, unsigned flags,
               CUdevice device),
              (context, affinity, count, flags, device))
MAKES_CONTEXT(cuCtxCreate_v4,
              (CUcontext *context, void *parameters, unsigned flags, CUdevice device),
              (context, parameters, flags, device))

/* What a context allocated ends with it. */
#define ENDS_CONTEXT(name)                                                               \
    CUresult name(CUcontext context) {                                                   \
        REAL(name);                                                                      \
        struct entry *entries = ledger_take_context(context);                            \
        return ledger_drop(entries, real(context));                                      \
    }
ENDS_CONTEXT(cuCtxDestroy)
ENDS_CONTEXT(cuCtxDestroy_v2)

/* A context that is attached to more than once is there still. */
CUresult cuCtxDetach(CUcontext context) {
    REAL(cuCtxDetach);
    unsigned version;
    CUresult code = real(context);
    if (!code && DRIVER(cuCtxGetApiVersion) && DRIVER(cuCtxGetApiVersion)(context, &version))
        ledger_drop(ledger_take_context(context), CUDA_SUCCESS);
    return code;
}

#define DEVICES 64
static CUcontext primary[DEVICES];

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    REAL(cuDevicePrimaryCtxRetain);
    CUresult code = region_charge(0);
    if (!code && !(code = real(context, device)) && device >= 0 && device < DEVICES)
        __atomic_store_n(&primary[device], *context, __ATOMIC_RELAXED);
    return code;
}

/* Its pools may end with a primary context, so the driver is not asked about them again;
   what is allocated of them stays counted. */
static void primary_ended(CUdevice device) {
    if (device < 0 || device >= DEVICES)
        return;
    CUcontext context = __atomic_load_n(&primary[device], __ATOMIC_RELAXED);
    ledger_drop(ledger_take_context(context), CUDA_SUCCESS);
    pools_destroyed();
}

/* Released, it ends when nobody retains it any more; reset, at once. */
static int is_active(CUdevice device) {
    unsigned flags;
    int active = 1;
    return !DRIVER(cuDevicePrimaryCtxGetState) ||
           DRIVER(cuDevicePrimaryCtxGetState)(device, &flags, &active) || active;
}

#define ENDS_PRIMARY(name, ended)                                                        \
    CUresult name(CUdevice device) {                                                     \
        REAL(name);                                                                      \
        CUresult code = real(device);                                                    \
        if (!code && (ended))                                                            \
            primary_ended(device);                                                       \
        return code;                                                                     \
    }
ENDS_PRIMARY(cuDevicePrimaryCtxRelease, !is_active(device))
ENDS_PRIMARY(cuDevicePrimaryCtxRelease_v2, !is_active(device))
ENDS_PRIMARY(cuDevicePrimaryCtxReset, 1)
ENDS_PRIMARY(cuDevicePrimaryCtxReset_v2, 1)

CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    REAL(cuMemGetInfo_v2);
    struct share share;
    CUresult code = region_share(&share);
    if (!code && !(code = real(free, total))) {
        *total = smaller(*total, share.limit);
        *free = smaller(*free, share.left);
    }
    return code;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    REAL(cuDeviceTotalMem_v2);
    struct share share;
    CUresult code = region_share(&share);
    if (!code && !(code = real(bytes, device)))
        *bytes = smaller(*bytes, share.limit);
    return code;
}

/* NVML counts cards on its own, so the card is known by its UUID. */
static int is_shared(nvmlDevice_t card, const char *share) {
    char uuid[96] = "";
    return !DRIVER(nvmlDeviceGetUUID) ||
           DRIVER(nvmlDeviceGetUUID)(card, uuid, sizeof uuid) || !strcmp(uuid, share);
}

#define NVML_REPORTS(name, type)                                                         \
    nvmlReturn_t name(nvmlDevice_t card, type *memory) {                                 \
        type_##name *real = DRIVER(name);                                                \
        if (!real)                                                                       \
            return NVML_ERROR_FUNCTION_NOT_FOUND;                                        \
        struct share share;                                                              \
        if (region_share(&share))                                                        \
            return NVML_ERROR_UNKNOWN;                                                   \
        nvmlReturn_t code = real(card, memory);                                          \
        if (code || !is_shared(card, share.uuid))                                        \
            return code;                                                                 \
        memory->total = smaller(memory->total, share.limit);                             \
        memory->free = smaller(memory->free, share.left);                                \
        memory->used = share.limit - share.left;                                         \
        return code;                                                                     \
    }
NVML_REPORTS(nvmlDeviceGetMemoryInfo, struct nvml_memory)
NVML_REPORTS(nvmlDeviceGetMemoryInfo_v2, struct nvml_memory_v2)
