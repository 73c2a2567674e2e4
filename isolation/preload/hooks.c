/* The functions that are replaced. Each counts before it calls the driver, and gives the
   bytes back where the driver fails, so that no two processes pass the limit together. */
#include <string.h>

#include "driver.h"
#include "ledger.h"
#include "region.h"

#define REAL(name)                                                                       \
    type_##name *real = DRIVER(name);                                                    \
    if (!real)                                                                           \
    return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED

#define RESERVE(entry, kind, size)                                                       \
    struct entry *entry;                                                                 \
    CUresult refused = ledger_reserve(kind, size, &entry);                               \
    if (refused)                                                                         \
    return refused

static CUhandle key_of(const void *handle) {
    return (CUhandle)(uintptr_t)handle;
}

static uint64_t times(uint64_t a, uint64_t b) {
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

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

CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t size) {
    REAL(cuMemAlloc_v2);
    RESERVE(entry, ADDRESS, size);
    CUresult code = real(at, size);
    return ledger_settle(entry, code, code ? 0 : *at);
}

/* Managed memory counts in full, though a part of it may lie in the host's memory. */
CUresult cuMemAllocManaged(CUdeviceptr *at, size_t size, unsigned flags) {
    REAL(cuMemAllocManaged);
    RESERVE(entry, ADDRESS, size);
    CUresult code = real(at, size, flags);
    return ledger_settle(entry, code, code ? 0 : *at);
}

/* The driver chooses the pitch. It is counted as the next 512 bytes at first. */
CUresult cuMemAllocPitch_v2(CUdeviceptr *at, size_t *pitch, size_t width, size_t height,
                            unsigned element) {
    REAL(cuMemAllocPitch_v2);
    uint64_t row = width > UINT64_MAX - 511 ? UINT64_MAX : (width + 511) & ~511ULL;
    RESERVE(entry, ADDRESS, times(row, height));
    CUresult code = real(at, pitch, width, height, element);
    if (!code && entry && *pitch > row) {
        uint64_t more = times(*pitch - row, height);
        code = region_charge(more);
        if (!code)
            entry->size += more;
        else if (DRIVER(cuMemFree_v2))
            DRIVER(cuMemFree_v2)(*at);
    }
    return ledger_settle(entry, code, code ? 0 : *at);
}

CUresult cuMemFree_v2(CUdeviceptr at) {
    REAL(cuMemFree_v2);
    struct entry *entry = ledger_take(ADDRESS, at);
    CUresult code = real(at);
    code ? ledger_restore(entry) : ledger_drop(entry);
    return code;
}

static CUresult free_async(CUdeviceptr at, CUstream stream, type_cuMemFreeAsync *real) {
    if (!real)
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
    struct entry *entry = ledger_take(ADDRESS, at);
    CUresult code = real(at, stream);
    code ? ledger_restore(entry) : ledger_drop(entry);
    return code;
}

CUresult cuMemFreeAsync(CUdeviceptr at, CUstream stream) {
    return free_async(at, stream, DRIVER(cuMemFreeAsync));
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr at, CUstream stream) {
    return free_async(at, stream, DRIVER(cuMemFreeAsync_ptsz));
}

/* A stream that is captured allocates nothing now. The graph would do so at each launch,
   where it is not seen; so such graphs are refused, as are allocation nodes below. */
static CUresult reserve_async(CUmemoryPool pool, size_t size, CUstream stream,
                              type_cuStreamIsCapturing *capturing, struct entry **entry) {
    int status = 0;
    *entry = NULL;
    enum state state = region_attach();
    if (state != LIMITED)
        return state == UNLIMITED ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
    if (capturing && !capturing(stream, &status) && status)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!pool) {
        CUdevice device;
        if (!DRIVER(cuCtxGetDevice) || DRIVER(cuCtxGetDevice)(&device) ||
            !DRIVER(cuDeviceGetMemPool) || DRIVER(cuDeviceGetMemPool)(&pool, device))
            return ledger_reserve(ADDRESS, size, entry);
    }
    return ledger_reserve_in(pool, size, entry);
}

#define ALLOC_ASYNC(name, capturing)                                                     \
    CUresult name(CUdeviceptr *at, size_t size, CUstream stream) {                       \
        REAL(name);                                                                      \
        struct entry *entry;                                                             \
        CUresult code = reserve_async(NULL, size, stream, DRIVER(capturing), &entry);    \
        if (code)                                                                        \
            return code;                                                                 \
        code = real(at, size, stream);                                                   \
        return ledger_settle(entry, code, code ? 0 : *at);                               \
    }
ALLOC_ASYNC(cuMemAllocAsync, cuStreamIsCapturing)
ALLOC_ASYNC(cuMemAllocAsync_ptsz, cuStreamIsCapturing_ptsz)

#define ALLOC_FROM_POOL(name, capturing)                                                 \
    CUresult name(CUdeviceptr *at, size_t size, CUmemoryPool pool, CUstream stream) {    \
        REAL(name);                                                                      \
        struct entry *entry;                                                             \
        CUresult code = reserve_async(pool, size, stream, DRIVER(capturing), &entry);    \
        if (code)                                                                        \
            return code;                                                                 \
        code = real(at, size, pool, stream);                                             \
        return ledger_settle(entry, code, code ? 0 : *at);                               \
    }
ALLOC_FROM_POOL(cuMemAllocFromPoolAsync, cuStreamIsCapturing)
ALLOC_FROM_POOL(cuMemAllocFromPoolAsync_ptsz, cuStreamIsCapturing_ptsz)

CUresult cuMemPoolCreate(CUmemoryPool *pool, const struct pool_properties *properties) {
    REAL(cuMemPoolCreate);
    CUresult code = real(pool, properties);
    if (!code && properties->location.type != MEMORY_ON_DEVICE)
        pool_ignore(*pool);
    return code;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    REAL(cuMemPoolDestroy);
    pool_destroyed(pool, 1);
    CUresult code = real(pool);
    if (code)
        pool_destroyed(pool, 0);
    else
        pool_reconcile(pool);
    return code;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    REAL(cuMemPoolTrimTo);
    CUresult code = real(pool, keep);
    pool_reconcile(pool);
    return code;
}

/* Memory of a handle is in use until the handle is released and nothing maps it. */
CUresult cuMemCreate(CUhandle *handle, size_t size,
                     const struct create_properties *properties,
                     unsigned long long flags) {
    REAL(cuMemCreate);
    if (!properties || properties->location.type != MEMORY_ON_DEVICE)
        return real(handle, size, properties, flags);
    RESERVE(entry, HANDLE, size);
    CUresult code = real(handle, size, properties, flags);
    return ledger_settle(entry, code, code ? 0 : *handle);
}

CUresult cuMemRelease(CUhandle handle) {
    REAL(cuMemRelease);
    struct entry *entry = ledger_take_handle(handle);
    CUresult code = real(handle);
    if (!code)
        ledger_drop(entry);
    else if (entry)
        ledger_restore(entry);
    else
        ledger_retain(handle);
    return code;
}

CUresult cuMemRetainAllocationHandle(CUhandle *handle, void *address) {
    REAL(cuMemRetainAllocationHandle);
    struct entry *entry = ledger_prepare(HANDLE);
    if (!entry)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUhandle memory = ledger_handle_at(key_of(address));
    CUresult code = real(handle, address);
    if (!code && memory && !ledger_retain(*handle))
        ledger_refer(entry, *handle, memory);
    else
        ledger_drop(entry);
    return code;
}

CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUhandle handle,
                  unsigned long long flags) {
    REAL(cuMemMap);
    struct entry *entry = ledger_prepare(MAPPING);
    if (!entry)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult code = real(at, size, offset, handle, flags);
    entry->length = size;
    code ? ledger_drop(entry) : ledger_refer(entry, at, handle);
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
    CUresult code = real(at, size);
    code ? ledger_restore(taken) : ledger_drop(taken);
    return code;
}

/* Bytes of one element, and the most that any format has for one that is not known. */
static uint64_t element(unsigned format, unsigned channels) {
    switch (format) {
    case 0x01: case 0x08: return channels;                          /* 8 bits */
    case 0x02: case 0x09: case 0x10: return 2ULL * channels;        /* 16, half */
    case 0x03: case 0x0a: case 0x20: return 4ULL * channels;        /* 32, float */
    default: return 16;
    }
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
        uint64_t bytes = times(times(times(width, height), depth),
                               element(shape->format, shape->channels));
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

CUresult cuArrayCreate_v2(CUarray *array, const struct array_shape *flat) {
    REAL(cuArrayCreate_v2);
    struct array3d_shape shape = {0};
    if (flat)
        shape = (struct array3d_shape){.width = flat->width, .height = flat->height,
                                       .format = flat->format,
                                       .channels = flat->channels};
    RESERVE(entry, ARRAY, array_size(&shape, 1));
    CUresult code = real(array, flat);
    return ledger_settle(entry, code, code ? 0 : key_of(*array));
}

CUresult cuArray3DCreate_v2(CUarray *array, const struct array3d_shape *shape) {
    REAL(cuArray3DCreate_v2);
    RESERVE(entry, ARRAY, array_size(shape, 1));
    CUresult code = real(array, shape);
    return ledger_settle(entry, code, code ? 0 : key_of(*array));
}

CUresult cuArrayDestroy(CUarray array) {
    REAL(cuArrayDestroy);
    struct entry *entry = ledger_take(ARRAY, key_of(array));
    CUresult code = real(array);
    code ? ledger_restore(entry) : ledger_drop(entry);
    return code;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array,
                                const struct array3d_shape *shape, unsigned levels) {
    REAL(cuMipmappedArrayCreate);
    RESERVE(entry, MIPMAP, array_size(shape, levels));
    CUresult code = real(array, shape, levels);
    return ledger_settle(entry, code, code ? 0 : key_of(*array));
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    REAL(cuMipmappedArrayDestroy);
    struct entry *entry = ledger_take(MIPMAP, key_of(array));
    CUresult code = real(array);
    code ? ledger_restore(entry) : ledger_drop(entry);
    return code;
}

static CUresult node_refused(int allocates) {
    if (!allocates)
        return CUDA_SUCCESS;
    switch (region_attach()) {
    case UNLIMITED: return CUDA_SUCCESS;
    case LIMITED: return CUDA_ERROR_NOT_SUPPORTED;
    default: return CUDA_ERROR_OPERATING_SYSTEM;
    }
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph,
                                const CUgraphNode *after, size_t count, void *parameters) {
    REAL(cuGraphAddMemAllocNode);
    CUresult code = node_refused(1);
    return code ? code : real(node, graph, after, count, parameters);
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                        size_t count, struct node_parameters *parameters) {
    REAL(cuGraphAddNode);
    CUresult code = node_refused(parameters && parameters->type == NODE_ALLOCATES);
    return code ? code : real(node, graph, after, count, parameters);
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                           const void *edges, size_t count,
                           struct node_parameters *parameters) {
    REAL(cuGraphAddNode_v2);
    CUresult code = node_refused(parameters && parameters->type == NODE_ALLOCATES);
    return code ? code : real(node, graph, after, edges, count, parameters);
}

/* What a context allocated ends with it. */
static CUresult destroy(CUcontext context, type_cuCtxDestroy *real) {
    if (!real)
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
    struct entry *entries = ledger_take_context(context);
    CUresult code = real(context);
    code ? ledger_restore(entries) : ledger_drop(entries);
    return code;
}

CUresult cuCtxDestroy(CUcontext context) {
    return destroy(context, DRIVER(cuCtxDestroy));
}

CUresult cuCtxDestroy_v2(CUcontext context) {
    return destroy(context, DRIVER(cuCtxDestroy_v2));
}

#define DEVICES 64
static CUcontext primary[DEVICES];

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    REAL(cuDevicePrimaryCtxRetain);
    CUresult code = real(context, device);
    if (!code && device >= 0 && device < DEVICES)
        __atomic_store_n(&primary[device], *context, __ATOMIC_RELAXED);
    return code;
}

/* The primary context ends when nobody retains it any more. */
static CUresult let(CUdevice device, type_cuDevicePrimaryCtxReset *real) {
    if (!real)
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
    CUresult code = real(device);
    unsigned flags;
    int active = 1;
    if (code || device < 0 || device >= DEVICES || !DRIVER(cuDevicePrimaryCtxGetState) ||
        DRIVER(cuDevicePrimaryCtxGetState)(device, &flags, &active) || active)
        return code;
    CUcontext context = __atomic_load_n(&primary[device], __ATOMIC_RELAXED);
    ledger_drop(ledger_take_context(context));
    return code;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    return let(device, DRIVER(cuDevicePrimaryCtxRelease));
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return let(device, DRIVER(cuDevicePrimaryCtxRelease_v2));
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) {
    return let(device, DRIVER(cuDevicePrimaryCtxReset));
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return let(device, DRIVER(cuDevicePrimaryCtxReset_v2));
}

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* What of the share nobody in the container holds, in bytes. */
static uint64_t share_left(void) {
    uint64_t used = region_used(), limit = region_limits()->bytes;
    return used < limit ? limit - used : 0;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    REAL(cuMemGetInfo_v2);
    enum state state = region_attach();
    if (state == BROKEN)
        return CUDA_ERROR_OPERATING_SYSTEM;
    CUresult code = real(free, total);
    if (!code && state == LIMITED) {
        *total = smaller(*total, region_limits()->bytes);
        *free = smaller(*free, share_left());
    }
    return code;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    REAL(cuDeviceTotalMem_v2);
    enum state state = region_attach();
    if (state == BROKEN)
        return CUDA_ERROR_OPERATING_SYSTEM;
    CUresult code = real(bytes, device);
    if (!code && state == LIMITED)
        *bytes = smaller(*bytes, region_limits()->bytes);
    return code;
}

/* NVML counts cards on its own, so the card is known by its UUID. */
static int has_limit(nvmlDevice_t card) {
    char uuid[96] = "";
    return !DRIVER(nvmlDeviceGetUUID) ||
           DRIVER(nvmlDeviceGetUUID)(card, uuid, sizeof uuid) ||
           !strcmp(uuid, region_limits()->uuid);
}

#define NVML_REPORT(name, type)                                                          \
    nvmlReturn_t name(nvmlDevice_t card, type *memory) {                                 \
        type_##name *real = DRIVER(name);                                                \
        if (!real)                                                                       \
            return NVML_ERROR_FUNCTION_NOT_FOUND;                                        \
        enum state state = region_attach();                                              \
        if (state == BROKEN)                                                             \
            return NVML_ERROR_UNKNOWN;                                                   \
        nvmlReturn_t code = real(card, memory);                                          \
        if (code || state == UNLIMITED || !has_limit(card))                              \
            return code;                                                                 \
        uint64_t left = share_left();                                                    \
        memory->total = smaller(memory->total, region_limits()->bytes);                  \
        memory->free = smaller(memory->free, left);                                      \
        memory->used = region_limits()->bytes - left;                                    \
        return code;                                                                     \
    }
NVML_REPORT(nvmlDeviceGetMemoryInfo, struct nvml_memory)
NVML_REPORT(nvmlDeviceGetMemoryInfo_v2, struct nvml_memory_v2)
