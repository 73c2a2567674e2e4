/* Entries are chained in a fixed table, so that a process without CUDA never touches it.

   Pools take memory from the card in chunks, and keep what was freed for their next
   allocation. So a pool is counted as what it reserves, by the driver's own figure, and
   never as less than what is allocated of it. */
#include "ledger.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "region.h"

#ifndef CHAINS /* a test takes fewer */
#define CHAINS 4096
#endif
/* By how much a pool grows at once; the driver does not tell. */
#define CHUNK (32ULL << 20)

struct pool {
    CUmemoryPool handle;
    int ignored, destroyed;
    uint64_t live, counted; /* in bytes */
    size_t entries; /* that name it; some have no bytes */
    struct pool *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry *chains[CHAINS];
/* Held also while the driver allocates from a pool: its growth is counted before. */
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool *pools;

void ledger_forget(void) {
    pthread_mutex_init(&lock, NULL);
    pthread_mutex_init(&pools_lock, NULL);
    memset(chains, 0, sizeof chains);
    pools = NULL;
}

static struct entry **chain(CUhandle key) {
    return &chains[(key * 0x9e3779b97f4a7c15ULL >> 32) % CHAINS];
}

static struct entry **find(enum kind kind, CUhandle key) {
    struct entry **at = chain(key);
    while (*at && ((*at)->kind != kind || (*at)->key != key))
        at = &(*at)->next;
    return at;
}

static struct entry *unlink_at(struct entry **at) {
    struct entry *entry = *at;
    if (entry) {
        *at = entry->next;
        entry->next = NULL;
    }
    return entry;
}

static void put(struct entry *entry) {
    struct entry **at = chain(entry->key);
    entry->next = *at;
    *at = entry;
}

/* Whether a pool's memory is the host's. Managed memory may lie on the card, wherever it
   is preferred. Drivers before CUDA 13 have no pools of the host but those that a program
   makes, which it says itself. */
static int is_of_host(CUmemoryPool handle) {
    int location = 0, allocation = 0;
    type_cuMemPoolGetAttribute *get = DRIVER(cuMemPoolGetAttribute);
    return get && !get(handle, POOL_LOCATION_TYPE, &location) && ON_HOST(location) &&
           !get(handle, POOL_ALLOCATION_TYPE, &allocation) && allocation != MANAGED;
}

/* The pool of this handle that is not destroyed, entered if `add`. Returns NULL if there
   is none, or no memory for it. */
static struct pool *pool_of(CUmemoryPool handle, int add) {
    struct pool *pool = pools;
    while (pool && (pool->handle != handle || pool->destroyed))
        pool = pool->next;
    if (pool || !add || !(pool = calloc(1, sizeof *pool)))
        return pool;
    *pool = (struct pool){.handle = handle, .ignored = is_of_host(handle), .next = pools};
    return pools = pool;
}

/* A pool that is destroyed is kept for what is allocated of it still. */
static void forget_unused(void) {
    for (struct pool **at = &pools; *at;) {
        struct pool *pool = *at;
        if (!pool->destroyed || pool->entries) {
            at = &pool->next;
            continue;
        }
        *at = pool->next;
        free(pool);
    }
}

/* Count the pool as what it holds now. OUT_OF_MEMORY if all is above the limit then. */
static CUresult reconcile(struct pool *pool) {
    uint64_t reserved = 0;
    if (!pool->destroyed && !pool->ignored &&
        (!DRIVER(cuMemPoolGetAttribute) ||
         DRIVER(cuMemPoolGetAttribute)(pool->handle, POOL_RESERVED_NOW, &reserved)))
        reserved = 0;
    uint64_t wanted = reserved > pool->live ? reserved : pool->live;
    CUresult code = CUDA_SUCCESS;
    if (wanted > pool->counted)
        code = region_add(wanted - pool->counted);
    else if (wanted < pool->counted)
        region_uncharge(pool->counted - wanted);
    pool->counted = wanted;
    return code;
}

static void trim(void) {
    for (struct pool *pool = pools; pool; pool = pool->next) {
        if (!pool->destroyed && !pool->ignored && DRIVER(cuMemPoolTrimTo))
            DRIVER(cuMemPoolTrimTo)(pool->handle, 0);
        reconcile(pool);
    }
}

void pool_ignore(CUmemoryPool handle) {
    pthread_mutex_lock(&pools_lock);
    struct pool *pool = pool_of(handle, 1);
    if (pool)
        pool->ignored = 1;
    pthread_mutex_unlock(&pools_lock);
}

void pool_reconcile(CUmemoryPool handle) {
    pthread_mutex_lock(&pools_lock);
    struct pool *pool = pool_of(handle, 0);
    if (pool)
        reconcile(pool);
    pthread_mutex_unlock(&pools_lock);
}

CUresult pool_destroy(CUmemoryPool handle, CUresult destroy(CUmemoryPool)) {
    pthread_mutex_lock(&pools_lock);
    CUresult code = destroy(handle);
    struct pool *pool = code ? NULL : pool_of(handle, 0);
    if (pool) {
        pool->destroyed = 1;
        reconcile(pool);
        forget_unused();
    }
    pthread_mutex_unlock(&pools_lock);
    return code;
}

void pools_destroyed(void) {
    pthread_mutex_lock(&pools_lock);
    for (struct pool *pool = pools; pool; pool = pool->next) {
        pool->destroyed = 1;
        reconcile(pool);
    }
    forget_unused();
    pthread_mutex_unlock(&pools_lock);
}

void pools_synchronized(void) {
    pthread_mutex_lock(&pools_lock);
    for (struct pool *pool = pools; pool; pool = pool->next)
        if (pool->counted > pool->live)
            reconcile(pool);
    pthread_mutex_unlock(&pools_lock);
}

/* What to count for an allocation beside what the pool has to spare. */
static uint64_t growth(const struct pool *pool, uint64_t size) {
    if (size <= pool->counted - pool->live)
        return 0;
    return size > UINT64_MAX - CHUNK ? UINT64_MAX : (size + CHUNK - 1) / CHUNK * CHUNK;
}

/* What the driver takes of the card for an allocation. It has blocks of 2 MiB, and puts
   smaller allocations of like size together into one: of an RTX 3090 it is known that
   0.75 MiB take 1, 1 MiB and a byte take 2, and 2 MiB and a byte take 4. */
#define BLOCK (2ULL << 20)
static uint64_t taken(uint64_t size) {
    if (size > UINT64_MAX - BLOCK)
        return UINT64_MAX;
    if (size > BLOCK / 2)
        return (size + BLOCK - 1) / BLOCK * BLOCK;
    size = (size + 511) / 512 * 512;
    return size ? (BLOCK / (BLOCK / size) + 511) / 512 * 512 : 0;
}

static CUresult charge(struct pool *pool, uint64_t size) {
    uint64_t more = pool ? growth(pool, size) : size;
    CUresult code = more || !pool ? region_charge(more) : CUDA_SUCCESS;
    if (code == CUDA_ERROR_OUT_OF_MEMORY) {
        /* What pools have to spare is the process's own. */
        if (!pool)
            pthread_mutex_lock(&pools_lock);
        trim();
        if (!pool)
            pthread_mutex_unlock(&pools_lock);
        more = pool ? growth(pool, size) : size;
        code = region_charge(more);
    }
    if (!code && pool) {
        pool->entries++;
        pool->live += size;
        pool->counted += more;
    }
    return code;
}

struct entry *ledger_prepare(enum kind kind) {
    struct entry *entry = calloc(1, sizeof *entry);
    if (entry) {
        entry->kind = kind;
        entry->handles = entry->uses = 1;
    }
    return entry;
}

static CUresult reserve(enum kind kind, struct pool *pool, uint64_t size,
                        struct entry **out) {
    struct entry *entry = ledger_prepare(kind);
    CUresult code = entry ? charge(pool, size) : CUDA_ERROR_OUT_OF_MEMORY;
    if (code) {
        free(entry);
        return code;
    }
    entry->size = size;
    entry->pool = pool;
    *out = entry;
    return CUDA_SUCCESS;
}

CUresult ledger_reserve(enum kind kind, uint64_t size, struct entry **entry) {
    *entry = NULL;
    return reserve(kind, NULL, taken(size), entry);
}

CUresult ledger_enlarge(struct entry *entry, uint64_t size) {
    size = taken(size);
    if (size <= entry->size)
        return CUDA_SUCCESS;
    CUresult code = charge(NULL, size - entry->size);
    if (!code)
        entry->size = size;
    return code;
}

void ledger_shrink(struct entry *entry, uint64_t size) {
    size = taken(size);
    if (size >= entry->size)
        return;
    region_uncharge(entry->size - size);
    entry->size = size;
}

CUresult ledger_reserve_in(CUmemoryPool handle, uint64_t size, struct entry **entry) {
    *entry = NULL;
    CUresult code = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&pools_lock);
    struct pool *pool = pool_of(handle, 1);
    if (pool)
        code = pool->ignored ? CUDA_SUCCESS : reserve(ADDRESS, pool, size, entry);
    if (!*entry)
        pthread_mutex_unlock(&pools_lock);
    return code;
}

/* Of a pool with its lock held. */
static CUresult settle_in(struct pool *pool, uint64_t size, CUresult code, CUhandle key) {
    if (!code && reconcile(pool)) {
        trim();
        code = region_add(0);
        if (code && DRIVER(cuMemFree_v2))
            DRIVER(cuMemFree_v2)(key);
    }
    if (code) {
        pool->entries--;
        pool->live -= size;
        reconcile(pool);
    }
    pthread_mutex_unlock(&pools_lock);
    return code;
}

CUresult ledger_settle(struct entry *entry, CUresult code, CUhandle key) {
    if (!entry)
        return code;
    if (entry->pool)
        code = settle_in(entry->pool, entry->size, code, key);
    else if (code)
        region_uncharge(entry->size);
    if (code) {
        free(entry);
        return code;
    }
    entry->key = key;
    if (entry->kind != HANDLE && !entry->pool && DRIVER(cuCtxGetCurrent))
        DRIVER(cuCtxGetCurrent)(&entry->context);
    pthread_mutex_lock(&lock);
    put(entry);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

struct entry *ledger_take(enum kind kind, CUhandle key) {
    pthread_mutex_lock(&lock);
    struct entry *entry = unlink_at(find(kind, key));
    pthread_mutex_unlock(&lock);
    return entry;
}

struct entry *ledger_take_handle(CUhandle key) {
    pthread_mutex_lock(&lock);
    struct entry **at = find(HANDLE, key), *entry = NULL;
    if (*at && --(*at)->handles == 0)
        entry = unlink_at(at);
    pthread_mutex_unlock(&lock);
    return entry;
}

struct entry *ledger_take_context(CUcontext context) {
    struct entry *taken = NULL;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; context && i < CHAINS; i++)
        for (struct entry **at = &chains[i]; *at;) {
            if ((*at)->context != context) {
                at = &(*at)->next;
                continue;
            }
            struct entry *entry = unlink_at(at);
            entry->next = taken;
            taken = entry;
        }
    pthread_mutex_unlock(&lock);
    return taken;
}

static void give_back(struct entry *entry) {
    if (entry->pool) {
        pthread_mutex_lock(&pools_lock);
        entry->pool->entries--;
        entry->pool->live -= entry->size;
        reconcile(entry->pool);
        forget_unused();
        pthread_mutex_unlock(&pools_lock);
    } else if (entry->size) {
        region_uncharge(entry->size);
    }
    free(entry);
}

CUresult ledger_drop(struct entry *entries, CUresult code) {
    while (entries) {
        struct entry *entry = entries, *memory = entry->memory ? entry->memory : entry;
        entries = entry->next;
        pthread_mutex_lock(&lock);
        int unused = !code && --memory->uses == 0;
        if (code) {
            entry->handles = 1;
            put(entry);
        }
        pthread_mutex_unlock(&lock);
        if (!code && memory != entry)
            free(entry);
        if (unused)
            give_back(memory);
    }
    return code;
}

static void refer(struct entry *entry, struct entry *memory) {
    if (!memory)
        return;
    entry->memory = memory->memory ? memory->memory : memory;
    entry->memory->uses++;
}

void ledger_refer(struct entry *entry, CUhandle key, CUhandle handle) {
    entry->key = key;
    pthread_mutex_lock(&lock);
    refer(entry, *find(HANDLE, handle));
    put(entry);
    pthread_mutex_unlock(&lock);
}

struct entry *ledger_second_handle(CUdeviceptr address) {
    struct entry *entry = ledger_prepare(HANDLE);
    pthread_mutex_lock(&lock);
    for (size_t i = 0; entry && i < CHAINS; i++)
        for (struct entry *mapping = chains[i]; mapping; mapping = mapping->next)
            if (mapping->kind == MAPPING && address - mapping->key < mapping->length)
                refer(entry, mapping->memory);
    pthread_mutex_unlock(&lock);
    return entry;
}

void ledger_enter(struct entry *entry, CUhandle key) {
    entry->key = key;
    pthread_mutex_lock(&lock);
    put(entry);
    pthread_mutex_unlock(&lock);
}

CUresult ledger_map_imported(CUhandle handle, uint64_t end) {
    CUresult code = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    struct entry *entry = *find(HANDLE, handle);
    /* Memory of its own has its size from the start. */
    uint64_t needed = taken(end);
    uint64_t more =
        entry && entry->imported && needed > entry->size ? needed - entry->size : 0;
    pthread_mutex_unlock(&lock);
    if (!more || (code = charge(NULL, more)))
        return code;
    pthread_mutex_lock(&lock);
    entry = *find(HANDLE, handle);
    if (entry)
        entry->size += more;
    pthread_mutex_unlock(&lock);
    if (!entry)
        region_uncharge(more);
    return code;
}

int ledger_retain(CUhandle key) {
    pthread_mutex_lock(&lock);
    struct entry *entry = *find(HANDLE, key);
    if (entry)
        entry->handles++;
    pthread_mutex_unlock(&lock);
    return entry != NULL;
}
