/* What of the CUDA driver API and of NVML the library owns or calls, as their headers
   declare it. The values are the interface's own and do not change. */
#ifndef VCUDA_DRIVER_H
#define VCUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_SHARED_OBJECT_INIT_FAILED = 303,
    CUDA_ERROR_OPERATING_SYSTEM = 304,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900
};
enum { NVML_ERROR_FUNCTION_NOT_FOUND = 13, NVML_ERROR_UNKNOWN = 999 };

typedef int CUresult, CUdevice, nvmlReturn_t;
typedef unsigned long long CUdeviceptr, CUhandle;
typedef void *CUcontext, *CUstream, *CUevent, *CUarray, *CUmipmappedArray, *CUmemoryPool;
typedef void *CUgraph, *CUgraphNode, *nvmlDevice_t;

#define ON_HOST(type) ((type) >= 2 && (type) <= 4) /* CU_MEM_LOCATION_TYPE_HOST… */
#define MANAGED 2                     /* CU_MEM_ALLOCATION_TYPE_MANAGED */
#define POOL_RESERVED_NOW 5           /* CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT */
#define POOL_ALLOCATION_TYPE 9        /* CU_MEMPOOL_ATTR_ALLOCATION_TYPE, from CUDA 13 on */
#define POOL_LOCATION_TYPE 12         /* CU_MEMPOOL_ATTR_LOCATION_TYPE, from CUDA 13 on */
#define SYMBOL_NOT_FOUND 1            /* CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND */
#define MULTIPROCESSORS 16            /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */
#define THREADS_EACH 39 /* CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR */
#define NODE_ALLOCATES 10             /* CU_GRAPH_NODE_TYPE_MEM_ALLOC */
#define PER_THREAD_STREAM 2ULL        /* CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM */

enum { STACK_SIZE, PRINTF_FIFO_SIZE, MALLOC_HEAP_SIZE }; /* CU_LIMIT_… */

struct location { int type, id; };
struct create_properties { int type, handles; struct location location; };
struct pool_properties { int type, handles; struct location location; };
struct array_shape { size_t width, height; unsigned format, channels; };
struct array3d_shape { size_t width, height, depth; unsigned format, channels, flags; };
struct node_parameters { int type; };
struct launch { unsigned grid[3], block[3], shared; CUstream stream; };
struct launch_each { void *function; struct launch how; void **parameters; };
struct nvml_memory { unsigned long long total, free, used; };
struct nvml_memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };

/* HOOK(result, exported name, base name, first version of CUDA, per thread, what is done
   about functions that this table lacks, parameters): what is replaced. The base name is
   what cuGetProcAddress is asked for. Names without _v2 of the functions that have one are
   of CUDA 3.1 and older, with addresses of 32 bits; those that allocate or report are
   refused. */
enum unknown { PASS, REFUSE };
#define CUDA_HOOKS(HOOK)                                                                 \
    HOOK(CUresult, cuMemAlloc, cuMemAlloc, 2000, 0, REFUSE, (void))                      \
    HOOK(CUresult, cuMemAllocPitch, cuMemAllocPitch, 2000, 0, REFUSE, (void))            \
    HOOK(CUresult, cuArrayCreate, cuArrayCreate, 2000, 0, REFUSE, (void))                \
    HOOK(CUresult, cuArray3DCreate, cuArray3DCreate, 2000, 0, REFUSE, (void))            \
    HOOK(CUresult, cuMemGetInfo, cuMemGetInfo, 2000, 0, PASS, (void))                    \
    HOOK(CUresult, cuDeviceTotalMem, cuDeviceTotalMem, 2000, 0, PASS, (void))            \
    HOOK(CUresult, cuMemAlloc_v2, cuMemAlloc, 3020, 0, REFUSE,                           \
         (CUdeviceptr *, size_t))                                                        \
    HOOK(CUresult, cuMemAllocManaged, cuMemAllocManaged, 6000, 0, REFUSE,                \
         (CUdeviceptr *, size_t, unsigned))                                              \
    HOOK(CUresult, cuMemAllocPitch_v2, cuMemAllocPitch, 3020, 0, REFUSE,                 \
         (CUdeviceptr *, size_t *, size_t, size_t, unsigned))                            \
    HOOK(CUresult, cuMemAllocAsync, cuMemAllocAsync, 11020, 0, REFUSE,                   \
         (CUdeviceptr *, size_t, CUstream))                                              \
    HOOK(CUresult, cuMemAllocAsync_ptsz, cuMemAllocAsync, 11020, 1, REFUSE,              \
         (CUdeviceptr *, size_t, CUstream))                                              \
    HOOK(CUresult, cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020, 0, REFUSE,   \
         (CUdeviceptr *, size_t, CUmemoryPool, CUstream))                                \
    HOOK(CUresult, cuMemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync, 11020, 1,      \
         REFUSE,                                                                         \
         (CUdeviceptr *, size_t, CUmemoryPool, CUstream))                                \
    HOOK(CUresult, cuMemFree_v2, cuMemFree, 3020, 0, PASS, (CUdeviceptr))                \
    HOOK(CUresult, cuMemFreeAsync, cuMemFreeAsync, 11020, 0, PASS,                       \
         (CUdeviceptr, CUstream))                                                        \
    HOOK(CUresult, cuMemFreeAsync_ptsz, cuMemFreeAsync, 11020, 1, PASS,                  \
         (CUdeviceptr, CUstream))                                                        \
    HOOK(CUresult, cuMemPoolCreate, cuMemPoolCreate, 11020, 0, REFUSE,                   \
         (CUmemoryPool *, const struct pool_properties *))                               \
    HOOK(CUresult, cuMemPoolDestroy, cuMemPoolDestroy, 11020, 0, PASS, (CUmemoryPool))   \
    HOOK(CUresult, cuMemPoolTrimTo, cuMemPoolTrimTo, 11020, 0, PASS,                     \
         (CUmemoryPool, size_t))                                                         \
    HOOK(CUresult, cuStreamSynchronize, cuStreamSynchronize, 2000, 0, PASS,              \
         (CUstream))                                                                     \
    HOOK(CUresult, cuStreamSynchronize_ptsz, cuStreamSynchronize, 7000, 1, PASS,         \
         (CUstream))                                                                     \
    HOOK(CUresult, cuEventSynchronize, cuEventSynchronize, 2000, 0, PASS, (CUevent))     \
    HOOK(CUresult, cuCtxSynchronize, cuCtxSynchronize, 2000, 0, PASS, (void))            \
    HOOK(CUresult, cuCtxSynchronize_v2, cuCtxSynchronize, 13000, 0, PASS, (CUcontext))   \
    HOOK(CUresult, cuMemCreate, cuMemCreate, 10020, 0, REFUSE,                           \
         (CUhandle *, size_t, const struct create_properties *, unsigned long long))     \
    HOOK(CUresult, cuMemImportFromShareableHandle, cuMemImportFromShareableHandle,       \
         10020, 0, REFUSE,                                                               \
         (CUhandle *, void *, int))                                                      \
    HOOK(CUresult, cuMemRelease, cuMemRelease, 10020, 0, PASS, (CUhandle))               \
    HOOK(CUresult, cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000,      \
         0, REFUSE,                                                                      \
         (CUhandle *, void *))                                                           \
    HOOK(CUresult, cuMemMap, cuMemMap, 10020, 0, REFUSE,                                 \
         (CUdeviceptr, size_t, size_t, CUhandle, unsigned long long))                    \
    HOOK(CUresult, cuMemUnmap, cuMemUnmap, 10020, 0, PASS, (CUdeviceptr, size_t))        \
    HOOK(CUresult, cuArrayCreate_v2, cuArrayCreate, 3020, 0, REFUSE,                     \
         (CUarray *, const struct array_shape *))                                        \
    HOOK(CUresult, cuArray3DCreate_v2, cuArray3DCreate, 3020, 0, REFUSE,                 \
         (CUarray *, const struct array3d_shape *))                                      \
    HOOK(CUresult, cuArrayDestroy, cuArrayDestroy, 2000, 0, PASS, (CUarray))             \
    HOOK(CUresult, cuMipmappedArrayCreate, cuMipmappedArrayCreate, 5000, 0, REFUSE,      \
         (CUmipmappedArray *, const struct array3d_shape *, unsigned))                   \
    HOOK(CUresult, cuMipmappedArrayDestroy, cuMipmappedArrayDestroy, 5000, 0, PASS,      \
         (CUmipmappedArray))                                                             \
    HOOK(CUresult, cuGraphAddMemAllocNode, cuGraphAddMemAllocNode, 11040, 0, REFUSE,     \
         (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, void *))                  \
    HOOK(CUresult, cuGraphAddNode, cuGraphAddNode, 12020, 0, REFUSE,                     \
         (CUgraphNode *, CUgraph, const CUgraphNode *, size_t,                           \
          struct node_parameters *))                                                     \
    HOOK(CUresult, cuGraphAddNode_v2, cuGraphAddNode, 12030, 0, REFUSE,                  \
         (CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t,             \
          struct node_parameters *))                                                     \
    HOOK(CUresult, cuGraphAddNode_v3, cuGraphAddNode, 13040, 0, REFUSE,                  \
         (CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t,             \
          struct node_parameters *))                                                     \
    HOOK(CUresult, cuLaunch, cuLaunch, 2000, 0, PASS, (void *))                          \
    HOOK(CUresult, cuLaunchGrid, cuLaunchGrid, 2000, 0, PASS, (void *, int, int))        \
    HOOK(CUresult, cuLaunchGridAsync, cuLaunchGridAsync, 2000, 0, PASS,                  \
         (void *, int, int, CUstream))                                                   \
    HOOK(CUresult, cuLaunchKernel, cuLaunchKernel, 4000, 0, PASS,                        \
         (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,  \
          CUstream, void **, void **))                                                   \
    HOOK(CUresult, cuLaunchKernel_ptsz, cuLaunchKernel, 7000, 1, PASS,                   \
         (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,  \
          CUstream, void **, void **))                                                   \
    HOOK(CUresult, cuLaunchKernelEx, cuLaunchKernelEx, 11060, 0, PASS,                   \
         (const struct launch *, void *, void **, void **))                              \
    HOOK(CUresult, cuLaunchKernelEx_ptsz, cuLaunchKernelEx, 11060, 1, PASS,              \
         (const struct launch *, void *, void **, void **))                              \
    HOOK(CUresult, cuLaunchCooperativeKernel, cuLaunchCooperativeKernel, 9000, 0, PASS,  \
         (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,  \
          CUstream, void **))                                                            \
    HOOK(CUresult, cuLaunchCooperativeKernel_ptsz, cuLaunchCooperativeKernel, 9000, 1,   \
         PASS,                                                                           \
         (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,  \
          CUstream, void **))                                                            \
    HOOK(CUresult, cuLaunchCooperativeKernelMultiDevice,                                 \
         cuLaunchCooperativeKernelMultiDevice, 9000, 0, PASS,                            \
         (struct launch_each *, unsigned, unsigned))                                     \
    HOOK(CUresult, cuGraphLaunch, cuGraphLaunch, 10000, 0, PASS, (void *, CUstream))     \
    HOOK(CUresult, cuGraphLaunch_ptsz, cuGraphLaunch, 10000, 1, PASS, (void *, CUstream))\
    HOOK(CUresult, cuCtxSetLimit, cuCtxSetLimit, 3010, 0, REFUSE, (int, size_t))         \
    HOOK(CUresult, cuCtxCreate, cuCtxCreate, 2000, 0, PASS,                              \
         (CUcontext *, unsigned, CUdevice))                                              \
    HOOK(CUresult, cuCtxCreate_v2, cuCtxCreate, 3020, 0, PASS,                           \
         (CUcontext *, unsigned, CUdevice))                                              \
    HOOK(CUresult, cuCtxCreate_v3, cuCtxCreate, 11040, 0, PASS,                          \
         (CUcontext *, void *, int, unsigned, CUdevice))                                 \
    HOOK(CUresult, cuCtxCreate_v4, cuCtxCreate, 12050, 0, PASS,                          \
         (CUcontext *, void *, unsigned, CUdevice))                                      \
    HOOK(CUresult, cuCtxDestroy, cuCtxDestroy, 2000, 0, PASS, (CUcontext))               \
    HOOK(CUresult, cuCtxDestroy_v2, cuCtxDestroy, 4000, 0, PASS, (CUcontext))            \
    HOOK(CUresult, cuCtxDetach, cuCtxDetach, 2000, 0, PASS, (CUcontext))                 \
    HOOK(CUresult, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, 0, PASS,    \
         (CUcontext *, CUdevice))                                                        \
    HOOK(CUresult, cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, 7000, 0, PASS,  \
         (CUdevice))                                                                     \
    HOOK(CUresult, cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, 11000, 0,    \
         PASS,                                                                           \
         (CUdevice))                                                                     \
    HOOK(CUresult, cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, 7000, 0, PASS,      \
         (CUdevice))                                                                     \
    HOOK(CUresult, cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, 11000, 0, PASS,  \
         (CUdevice))                                                                     \
    HOOK(CUresult, cuMemGetInfo_v2, cuMemGetInfo, 3020, 0, PASS, (size_t *, size_t *))   \
    HOOK(CUresult, cuDeviceTotalMem_v2, cuDeviceTotalMem, 3020, 0, PASS,                 \
         (size_t *, CUdevice))                                                           \
    HOOK(CUresult, cuGetProcAddress, cuGetProcAddress, 11030, 0, REFUSE,                 \
         (const char *, void **, int, unsigned long long))                               \
    HOOK(CUresult, cuGetProcAddress_v2, cuGetProcAddress, 12000, 0, REFUSE,              \
         (const char *, void **, int, unsigned long long, int *))
#define NVML_HOOKS(HOOK)                                                                 \
    HOOK(nvmlReturn_t, nvmlDeviceGetMemoryInfo, nvmlDeviceGetMemoryInfo, 0, 0, PASS,     \
         (nvmlDevice_t, struct nvml_memory *))                                           \
    HOOK(nvmlReturn_t, nvmlDeviceGetMemoryInfo_v2, nvmlDeviceGetMemoryInfo_v2, 0, 0,     \
         PASS,                                                                           \
         (nvmlDevice_t, struct nvml_memory_v2 *))

#define HOOKS(HOOK) CUDA_HOOKS(HOOK) NVML_HOOKS(HOOK)

/* CALL(result, name, parameters): what is called, and not replaced. */
#define CALLS(CALL)                                                                      \
    CALL(CUresult, cuCtxGetCurrent, (CUcontext *))                                       \
    CALL(CUresult, cuCtxGetApiVersion, (CUcontext, unsigned *))                          \
    CALL(CUresult, cuCtxGetDevice, (CUdevice *))                                         \
    CALL(CUresult, cuCtxGetLimit, (size_t *, int))                                       \
    CALL(CUresult, cuDeviceGetAttribute, (int *, int, CUdevice))                         \
    CALL(CUresult, cuDeviceGetMemPool, (CUmemoryPool *, CUdevice))                       \
    CALL(CUresult, cuDevicePrimaryCtxGetState, (CUdevice, unsigned *, int *))            \
    CALL(CUresult, cuMemPoolGetAttribute, (CUmemoryPool, int, void *))                   \
    CALL(CUresult, cuStreamIsCapturing, (CUstream, int *))                               \
    CALL(CUresult, cuStreamIsCapturing_ptsz, (CUstream, int *))                          \
    CALL(nvmlReturn_t, nvmlDeviceGetUUID, (nvmlDevice_t, char *, unsigned))

#define OURS __attribute__((visibility("default")))
#define DECLARE(result, name, base, since, per_thread, unknown, parameters)              \
    OURS result name parameters;
HOOKS(DECLARE)
#undef DECLARE

#define NUMBER_OF_HOOK(result, name, base, since, per_thread, unknown, parameters)       \
    N_##name,
#define NUMBER_OF_CALL(result, name, parameters) N_##name,
enum number { HOOKS(NUMBER_OF_HOOK) HOOK_COUNT, BEFORE_CALLS = HOOK_COUNT - 1,
              CALLS(NUMBER_OF_CALL) NUMBER_COUNT };

#define TYPE_OF_HOOK(result, name, base, since, per_thread, unknown, parameters)         \
    typedef result type_##name parameters;
#define TYPE_OF_CALL(result, name, parameters) typedef result type_##name parameters;
HOOKS(TYPE_OF_HOOK)
CALLS(TYPE_OF_CALL)

/* The driver's own function, or NULL if this driver has none of that name. */
void *driver_function(enum number number);
#define DRIVER(name) ((type_##name *)driver_function(N_##name))
#define REAL(name)                                                                       \
    type_##name *real = DRIVER(name);                                                    \
    if (!real)                                                                           \
    return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED

static inline uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

#endif
