/* The region is a file of its container, mapped by each of its processes that uses CUDA.
   A robust mutex guards it: the kernel tells the next process that its owner has died. */
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"
#include "versions.h"

#define MAGIC 0x31616475632d7661ULL
#define SLOTS 512

struct slot {
    uint64_t pid, start; /* start: ticks since boot, because pids are used again */
    uint64_t used;
};

struct region {
    uint64_t magic, size;
    pthread_mutex_t lock;
    uint64_t total; /* the sum of all slots */
    struct slot slot[SLOTS];
};

static struct {
    pthread_mutex_t lock;
    int state, reported, follows_forks;
    struct limits limits;
    struct region *region;
    struct slot *slot; /* NULL until the first charge */
    struct slot mine;  /* what that slot has to say */
} self = {.lock = PTHREAD_MUTEX_INITIALIZER};

static enum state broken(const char *file, const char *why) {
    if (!__atomic_exchange_n(&self.reported, 1, __ATOMIC_RELAXED))
        dprintf(2, "vcuda: %s: %s; no memory of the card can be allocated\n", file, why);
    return BROKEN;
}

static uint64_t digits(const char *text) {
    uint64_t value = 0;
    for (; *text >= '0' && *text <= '9'; text++)
        value = value * 10 + (uint64_t)(*text - '0');
    return value;
}

/* Read the state and the start of a process; 0 is this one, whose number in this /proc
   is then told in `pid`. Returns 0 if the file cannot be read. */
static int look(uint64_t of, uint64_t *pid, char *state, uint64_t *start) {
    char path[48], text[1024];
    snprintf(path, sizeof path, of ? "/proc/%llu/stat" : "/proc/self/stat",
             (unsigned long long)of);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0)
        return 0;
    text[length] = 0;
    /* The name of a program may hold blanks and brackets itself. */
    char *at = strrchr(text, ')');
    if (!at || at[1] != ' ')
        return 0;
    *state = at[2];
    uint64_t threads = 0;
    for (int field = 3; at && field <= 22; field++) {
        at = strchr(at + 1, ' ');
        if (at && field == 20)
            threads = digits(at + 1);
    }
    if (!at)
        return 0;
    *start = digits(at + 1);
    /* Its main thread may have ended before the others. */
    if (*state == 'Z' && threads > 1)
        *state = 'S';
    if (pid)
        *pid = digits(text);
    return 1;
}

/* A program that replaced itself by exec has the same pid and start, and has lost the
   memory. Its new image does not map the region, unless it uses CUDA itself. */
static int has_left(uint64_t pid) {
    char path[48], line[4608];
    int lines = 0, maps = 0;
    snprintf(path, sizeof path, "/proc/%llu/maps", (unsigned long long)pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    for (; !maps && fgets(line, sizeof line, file); lines++)
        maps = strstr(line, VCUDA_REGION) != NULL;
    fclose(file);
    /* No line at all: it is ending, and the driver may hold its memory still. */
    return lines && !maps;
}

static int gone(const struct slot *slot) {
    uint64_t start = 0;
    char state = 0;
    if (!look(slot->pid, NULL, &state, &start))
        /* /proc may hide other users' processes. */
        return kill((pid_t)slot->pid, 0) && errno == ESRCH;
    return start != slot->start || state == 'Z' || state == 'X' || has_left(slot->pid);
}

/* Free the slots of processes that have ended, and sum up the others anew. */
static void reap(void) {
    uint64_t total = 0, own = 0, start;
    char state;
    /* A slot with our number that is not ours is of this process before an exec. */
    if (!self.slot)
        look(0, &own, &state, &start);
    for (struct slot *slot = self.region->slot; slot < self.region->slot + SLOTS; slot++) {
        if (slot->pid && slot != self.slot && (slot->pid == own || gone(slot)))
            memset(slot, 0, sizeof *slot);
        total += slot->used;
    }
    self.region->total = total;
}

static int enter(void) {
    int code = pthread_mutex_lock(&self.region->lock);
    if (code == EOWNERDEAD) {
        /* Its owner died between two writes; the slots say what is true. */
        code = pthread_mutex_consistent(&self.region->lock);
        reap();
    }
    if (code)
        broken(VCUDA_REGION, strerror(code));
    else
        vcuda_point("locked");
    return code;
}

static void leave(void) {
    pthread_mutex_unlock(&self.region->lock);
}

/* Give this process a slot. Returns 0 if there is none. */
static int claim(void) {
    if (self.slot && self.slot->pid == self.mine.pid &&
        self.slot->start == self.mine.start)
        return 1;
    char state;
    struct slot *free = NULL;
    uint64_t held = self.mine.used;
    memset(&self.mine, 0, sizeof self.mine);
    self.slot = NULL;
    if (!look(0, &self.mine.pid, &state, &self.mine.start)) {
        broken("/proc/self/stat", "it cannot be read");
        return 0;
    }
    reap();
    for (struct slot *slot = self.region->slot; slot < self.region->slot + SLOTS; slot++) {
        if (!free && !slot->pid)
            free = slot;
    }
    if (!free) {
        broken(VCUDA_REGION, "too many processes use the card");
        return 0;
    }
    self.mine.used = held;
    *free = self.mine;
    self.region->total += held;
    self.slot = free;
    return 1;
}

static void count(uint64_t bytes) {
    self.slot->used = self.mine.used += bytes;
    vcuda_point("counted");
    self.region->total += bytes;
}

static void prepare(void) {
    ledger_lock();
    pthread_mutex_lock(&self.lock);
}

static void parent(void) {
    pthread_mutex_unlock(&self.lock);
    ledger_unlock();
}

/* A child holds nothing of what its parent allocated: contexts do not survive fork. */
static void child(void) {
    self.slot = NULL;
    memset(&self.mine, 0, sizeof self.mine);
    ledger_forget();
    parent();
}

static const char *initialise(struct region *region) {
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    int code = pthread_mutex_init(&region->lock, &kind);
    pthread_mutexattr_destroy(&kind);
    if (code)
        return strerror(code);
    region->size = sizeof *region;
    vcuda_point("initialising");
    /* The last write: whoever finds no magic starts again. */
    region->magic = MAGIC;
    return NULL;
}

static const char *map(int file) {
    off_t size = lseek(file, 0, SEEK_END);
    if (size == 0 && ftruncate(file, sizeof(struct region)))
        return strerror(errno);
    if (size != 0 && size != sizeof(struct region))
        return "it has another size";
    struct region *region = mmap(NULL, sizeof *region, PROT_READ | PROT_WRITE,
                                 MAP_SHARED, file, 0);
    if (region == MAP_FAILED)
        return strerror(errno);
    const char *wrong = NULL;
    if (!region->magic && !region->size)
        wrong = initialise(region);
    else if (!region->magic)
        wrong = region->size == sizeof *region ? initialise(region) : "it is damaged";
    else if (region->magic != MAGIC || region->size != sizeof *region)
        wrong = "it is damaged, or of another version";
    if (wrong)
        munmap(region, sizeof *region);
    else
        self.region = region;
    return wrong;
}

static const char *open_region(void) {
    int file = open(VCUDA_REGION, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return strerror(errno);
    /* Processes that start together must not initialise it twice. The kernel drops this
       lock with its holder. */
    const char *wrong = flock(file, LOCK_EX) ? strerror(errno) : map(file);
    flock(file, LOCK_UN);
    close(file);
    return wrong;
}

static enum state attach(void) {
    const char *wrong = limits_read(&self.limits);
    if (wrong)
        return broken(VCUDA_LIMITS, wrong);
    if (self.limits.unlimited)
        return UNLIMITED;
    if (!self.region && (wrong = open_region()))
        return broken(VCUDA_REGION, wrong);
    if (!self.follows_forks && pthread_atfork(prepare, parent, child))
        return broken(VCUDA_REGION, "no memory");
    self.follows_forks = 1;
    return LIMITED;
}

enum state region_attach(void) {
    int state = __atomic_load_n(&self.state, __ATOMIC_ACQUIRE);
    if (state != UNKNOWN)
        return state;
    pthread_mutex_lock(&self.lock);
    state = self.state;
    if (state == UNKNOWN) {
        state = attach();
        if (state != BROKEN)
            __atomic_store_n(&self.state, state, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&self.lock);
    return state;
}

const struct limits *region_limits(void) {
    return &self.limits;
}

int region_charge(uint64_t bytes) {
    if (enter())
        return CUDA_ERROR_OPERATING_SYSTEM;
    int code = CUDA_SUCCESS;
    if (!claim())
        code = CUDA_ERROR_OPERATING_SYSTEM;
    for (int tries = 0; !code; tries++) {
        uint64_t total = self.region->total;
        if (total <= self.limits.bytes && bytes <= self.limits.bytes - total) {
            count(bytes);
            break;
        }
        if (tries)
            code = CUDA_ERROR_OUT_OF_MEMORY;
        else
            reap();
    }
    leave();
    return code;
}

int region_add(uint64_t bytes) {
    if (enter())
        return 0;
    int fits = claim();
    if (fits) {
        count(bytes);
        fits = self.region->total <= self.limits.bytes;
    }
    leave();
    return fits;
}

void region_uncharge(uint64_t bytes) {
    if (enter())
        return;
    if (claim())
        count(-bytes);
    leave();
}

uint64_t region_used(void) {
    uint64_t used = self.limits.bytes;
    if (enter())
        return used;
    reap();
    used = self.region->total;
    leave();
    return used;
}
