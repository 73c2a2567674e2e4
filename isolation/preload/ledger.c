/* Entries are chained in a fixed table, so that a process without CUDA never touches it.
   Pools keep memory that was freed, for their next allocation. So a pool is counted as
   what it reserves, by the driver's own figure, and never as less than what is allocated
   of it. */
#include "ledger.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "region.h"

#define CHAINS 4096
#define POOLS 64

struct pool {
    CUmemoryPool handle;
    int ignored, destroyed;
    uint64_t live, counted;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry *chains[CHAINS];
static struct pool pools[POOLS];

void ledger_lock(void) {
    pthread_mutex_lock(&lock);
}

void ledger_unlock(void) {
    pthread_mutex_unlock(&lock);
}

void ledger_forget(void) {
    memset(chains, 0, sizeof chains);
    memset(pools, 0, sizeof pools);
}

static struct entry **chain(CUhandle key) {
    return &chains[(key * 0x9e3779b97f4a7c15ULL) >> 52];
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

/* Returns NULL if there are too many. */
static struct pool *pool_of(CUmemoryPool handle) {
    struct pool *unused = NULL;
    for (struct pool *pool = pools; pool < pools + POOLS; pool++) {
        if (pool->handle == handle && !pool->destroyed)
            return pool;
        if (!unused && !pool->handle)
            unused = pool;
    }
    if (unused)
        unused->handle = handle;
    return unused;
}

/* Returns whether all is within the limit. */
static int reconcile(struct pool *pool, int trim) {
    uint64_t reserved = 0;
    if (!pool->destroyed && !pool->ignored) {
        if (trim && DRIVER(cuMemPoolTrimTo))
            DRIVER(cuMemPoolTrimTo)(pool->handle, 0);
        if (!DRIVER(cuMemPoolGetAttribute) ||
            DRIVER(cuMemPoolGetAttribute)(pool->handle, POOL_RESERVED_NOW, &reserved))
            reserved = 0;
    }
    uint64_t wanted = reserved > pool->live ? reserved : pool->live;
    int fits = 1;
    if (wanted > pool->counted)
        fits = region_add(wanted - pool->counted);
    else if (wanted < pool->counted)
        region_uncharge(pool->counted - wanted);
    pool->counted = wanted;
    if (pool->destroyed && !pool->live)
        memset(pool, 0, sizeof *pool);
    return fits;
}

static void trim(void) {
    for (struct pool *pool = pools; pool < pools + POOLS; pool++)
        if (pool->handle)
            reconcile(pool, 1);
}

void pool_ignore(CUmemoryPool handle) {
    ledger_lock();
    struct pool *pool = pool_of(handle);
    if (pool)
        pool->ignored = 1;
    ledger_unlock();
}

void pool_destroyed(CUmemoryPool handle, int destroyed) {
    ledger_lock();
    for (struct pool *pool = pools; pool < pools + POOLS; pool++)
        if (pool->handle == handle && pool->destroyed != destroyed) {
            pool->destroyed = destroyed;
            break;
        }
    ledger_unlock();
}

void pool_reconcile(CUmemoryPool handle) {
    ledger_lock();
    for (struct pool *pool = pools; pool < pools + POOLS; pool++)
        if (pool->handle == handle)
            reconcile(pool, 0);
    ledger_unlock();
}

/* Count bytes beside what a pool has to spare, if it is of a pool. */
static CUresult charge(struct pool *pool, uint64_t size) {
    CUresult code = CUDA_SUCCESS;
    for (int tries = 0; tries < 2; tries++) {
        uint64_t spare = pool ? pool->counted - pool->live : 0;
        uint64_t more = size > spare ? size - spare : 0;
        code = more ? region_charge(more) : CUDA_SUCCESS;
        if (!code && pool) {
            pool->live += size;
            pool->counted += more;
        }
        if (code != CUDA_ERROR_OUT_OF_MEMORY || tries)
            break;
        trim();
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
    enum state state = region_attach();
    if (state != LIMITED)
        return state == UNLIMITED ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
    ledger_lock();
    CUresult code = reserve(kind, NULL, size, entry);
    ledger_unlock();
    return code;
}

CUresult ledger_reserve_in(CUmemoryPool handle, uint64_t size, struct entry **entry) {
    *entry = NULL;
    CUresult code = CUDA_ERROR_OUT_OF_MEMORY;
    ledger_lock();
    struct pool *pool = pool_of(handle);
    if (pool)
        code = pool->ignored ? CUDA_SUCCESS : reserve(ADDRESS, pool, size, entry);
    ledger_unlock();
    return code;
}

static void give_back(struct entry *entry) {
    if (entry->pool) {
        ledger_lock();
        entry->pool->live -= entry->size;
        reconcile(entry->pool, 0);
        ledger_unlock();
    } else if (entry->size) {
        region_uncharge(entry->size);
    }
    free(entry);
}

/* A pool takes memory from the card in larger pieces than it gives out. */
static int pool_within(struct entry *entry) {
    ledger_lock();
    int fits = reconcile(entry->pool, 0);
    if (!fits) {
        trim();
        fits = region_add(0);
    }
    ledger_unlock();
    return fits;
}

CUresult ledger_settle(struct entry *entry, CUresult code, CUhandle key) {
    if (!entry)
        return code;
    if (!code && entry->pool && !pool_within(entry)) {
        if (DRIVER(cuMemFree_v2))
            DRIVER(cuMemFree_v2)(key);
        code = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (code) {
        give_back(entry);
        return code;
    }
    entry->key = key;
    if (entry->kind != HANDLE && !entry->pool && DRIVER(cuCtxGetCurrent))
        DRIVER(cuCtxGetCurrent)(&entry->context);
    ledger_lock();
    put(entry);
    ledger_unlock();
    return CUDA_SUCCESS;
}

struct entry *ledger_take(enum kind kind, CUhandle key) {
    ledger_lock();
    struct entry *entry = unlink_at(find(kind, key));
    ledger_unlock();
    return entry;
}

struct entry *ledger_take_handle(CUhandle key) {
    ledger_lock();
    struct entry **at = find(HANDLE, key), *entry = NULL;
    if (*at && --(*at)->handles == 0)
        entry = unlink_at(at);
    ledger_unlock();
    return entry;
}

struct entry *ledger_take_context(CUcontext context) {
    struct entry *taken = NULL;
    ledger_lock();
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
    ledger_unlock();
    return taken;
}

void ledger_restore(struct entry *entries) {
    ledger_lock();
    while (entries) {
        struct entry *entry = entries;
        entries = entry->next;
        entry->handles = 1;
        put(entry);
    }
    ledger_unlock();
}

void ledger_drop(struct entry *entries) {
    while (entries) {
        struct entry *entry = entries, *memory = entry->memory ? entry->memory : entry;
        entries = entry->next;
        ledger_lock();
        int unused = --memory->uses == 0;
        ledger_unlock();
        if (memory != entry)
            free(entry);
        if (unused)
            give_back(memory);
    }
}

void ledger_refer(struct entry *entry, CUhandle key, CUhandle handle) {
    entry->key = key;
    ledger_lock();
    struct entry *memory = *find(HANDLE, handle);
    if (memory) {
        entry->memory = memory->memory ? memory->memory : memory;
        entry->memory->uses++;
    }
    put(entry);
    ledger_unlock();
}

CUhandle ledger_handle_at(CUdeviceptr address) {
    CUhandle found = 0;
    ledger_lock();
    for (size_t i = 0; i < CHAINS; i++)
        for (struct entry *one = chains[i]; one; one = one->next)
            if (one->kind == MAPPING && address - one->key < one->length && one->memory)
                found = one->memory->key;
    ledger_unlock();
    return found;
}

int ledger_retain(CUhandle key) {
    ledger_lock();
    struct entry *entry = *find(HANDLE, key);
    if (entry)
        entry->handles++;
    ledger_unlock();
    return entry != NULL;
}
