/* What this process has allocated, by what it is freed with. */
#ifndef VCUDA_LEDGER_H
#define VCUDA_LEDGER_H

#include "driver.h"

enum kind { ADDRESS, ARRAY, MIPMAP, HANDLE, MAPPING, LIMIT };

struct pool;
struct entry {
    enum kind kind;
    CUhandle key;
    uint64_t size;      /* bytes that are counted for it; 0 of what has no own memory */
    uint64_t length;    /* of a mapping; of a limit, what a context has at first */
    CUcontext context;  /* it ends with this one; NULL if it ends with none */
    struct pool *pool;  /* or its memory is counted with this pool */
    struct entry *memory; /* of a mapping or a second handle: whose memory it is */
    int imported;       /* its size is what was mapped of it */
    unsigned handles, uses; /* how often it must be released; what keeps its memory */
    struct entry *next;
};

/* Count what the driver takes for `size` bytes, and prepare an entry. Returns a CUresult. */
CUresult ledger_reserve(enum kind kind, uint64_t size, struct entry **entry);
/* Count more, where `size` bytes are needed for it and fewer were counted. */
CUresult ledger_enlarge(struct entry *entry, uint64_t size);
/* Count no more than these bytes for it. */
void ledger_shrink(struct entry *entry, uint64_t size);

/* The same for memory of a pool: what the pool keeps of earlier allocations is used, and
   else the most by which it may grow is counted. On success no other thread allocates
   from a pool until ledger_settle; `entry` is NULL if the pool's memory is not counted. */
CUresult ledger_reserve_in(CUmemoryPool pool, uint64_t size, struct entry **entry);

/* Enter what the driver returned, or give the bytes back if `code` is an error.
   Returns `code`, or OUT_OF_MEMORY if a pool has grown by more than was counted. */
CUresult ledger_settle(struct entry *entry, CUresult code, CUhandle key);

/* Prepare an entry without memory of its own; NULL if there is no memory for it. */
struct entry *ledger_prepare(enum kind kind);

/* Take an entry out. Frees do so before the driver is called, because afterwards it may
   give the same address to another thread. Returns NULL if there is none. */
struct entry *ledger_take(enum kind kind, CUhandle key);
/* One of the handles of some memory; the entry goes with the last one. */
struct entry *ledger_take_handle(CUhandle key);
struct entry *ledger_take_context(CUcontext context);

/* Give the bytes of entries back; or put them back if `code` is an error, because the
   driver did not free them. Returns `code`. */
CUresult ledger_drop(struct entry *entries, CUresult code);

/* Enter a prepared entry. */
void ledger_enter(struct entry *entry, CUhandle key);
/* Enter a mapping, which keeps the memory of a handle. */
void ledger_refer(struct entry *entry, CUhandle key, CUhandle memory);
/* Prepare an entry for one more handle of the memory that is mapped at an address. NULL if
   there is no memory for it. */
struct entry *ledger_second_handle(CUdeviceptr address);
/* Count memory that another process made, or this one again, once it is mapped up to
   `end`: its size is not told. Memory of its own is not counted again. */
CUresult ledger_map_imported(CUhandle handle, uint64_t end);
/* Note one more reference to a handle. Returns 0 if it is not known. */
int ledger_retain(CUhandle key);

/* Memory of this pool is not on the card, and is not counted. */
void pool_ignore(CUmemoryPool pool);
/* Destroy a pool, of which no other thread asks the driver meanwhile. It keeps only what is
   allocated of it. */
CUresult pool_destroy(CUmemoryPool pool, CUresult destroy(CUmemoryPool));
void pools_destroyed(void);
/* A stream, event or context was waited for: pools may have given back what was freed. */
void pools_synchronized(void);
/* Count what a pool really reserves now. */
void pool_reconcile(CUmemoryPool pool);

/* Of a child after fork, which has none of it. */
void ledger_forget(void);

#endif
