/* The region is a file of its container, mapped by each of its processes that uses CUDA.

   Each process has a slot in it, and holds a file lock on the slot's number as long as it
   lives: the kernel drops it when the process ends or executes another program, in any
   PID namespace. A lock on one more number guards the content; it is waited for, but not
   for ever. Nothing in the file points anywhere, so that neither damaged content nor a
   process that keeps the lock can hang or crash anybody. A process that counts just
   when another one cuts the file off may end by SIGBUS. */
#define _GNU_SOURCE
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ledger.h"
#include "versions.h"

#ifndef F_OFD_SETLK /* in headers from glibc 2.20 on */
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

#define MAGIC 0x33616475632d7661ULL
#define SLOTS 1024
#define WHOLE SLOTS /* the number of the lock that guards the content */
#ifndef VCUDA_WAIT_MS /* how long that lock is waited for; a test takes less */
#define VCUDA_WAIT_MS 10000
#endif

struct slot {
    uint64_t used;       /* bytes; 0 of a slot that may be taken */
    uint64_t pid, start; /* start: ticks since boot, because pids are used again */
    uint64_t namespace;  /* in which the pid is one; 0 if unknown */
};

struct region {
    uint64_t magic;
    uint64_t total; /* never less than the sum of all slots */
    struct slot slot[SLOTS];
};

static struct {
    pthread_mutex_t lock;
    int reported, follows_forks, has_limits, has_context;
    int blocked;   /* the lock was not had in time; it is not waited for again until it is */
    int cancelled; /* whether the thread inside may be cancelled elsewhere */
    int error;     /* its errno, which no call of the driver's is to change */
    int file;      /* -1 until it is opened */
    dev_t device;
    ino_t inode;
    struct limits limits;
    struct region *region;
    struct slot *slot; /* NULL until the first charge */
    struct slot mine;  /* what that slot has to say */
    uint64_t owed;     /* bytes given back while the region could not be entered */
} self = {.lock = PTHREAD_MUTEX_INITIALIZER, .file = -1};

/* Say once what is wrong; with no lock held, because nobody may read stderr, and without
   the signal that ends a process whose reader has gone. */
static CUresult broken(const char *file, const char *why) {
    sigset_t broken_pipe, before, pending;
    int error = errno;
    if (__atomic_exchange_n(&self.reported, 1, __ATOMIC_RELAXED))
        return CUDA_ERROR_OPERATING_SYSTEM;
    sigemptyset(&broken_pipe);
    sigaddset(&broken_pipe, SIGPIPE);
    sigpending(&pending);
    sigprocmask(SIG_BLOCK, &broken_pipe, &before);
    dprintf(2, "vcuda: %s: %s; no memory of the card can be allocated\n", file, why);
    if (!sigismember(&pending, SIGPIPE))
        sigtimedwait(&broken_pipe, NULL, &(struct timespec){0});
    sigprocmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return CUDA_ERROR_OPERATING_SYSTEM;
}

/* A system call, because glibc 2.33 gave fstat a new symbol. */
static int status(int file, struct stat *out) {
    return (int)syscall(SYS_fstat, file, out);
}

/* Locks of the open file, not of the process: those would end with any close of it. */
static int lock_number(int how, short type, off_t first, off_t many, int *taken) {
    struct flock lock = {.l_type = type, .l_start = first, .l_len = many};
    int code = fcntl(self.file, how, &lock);
    if (taken)
        *taken = code || lock.l_type != F_UNLCK;
    return code;
}

static int others_hold(off_t first, off_t many) {
    int taken;
    lock_number(F_OFD_GETLK, F_WRLCK, first, many, &taken);
    return taken;
}

/* Take the lock of the content. Whoever may read the file can keep it, and a process may be
   stopped while it has it. Pauses grow, because each try of hundreds costs the others. */
static const char *lock_content(void) {
    for (long waited = 0, pause = 20;; pause *= pause < 16000 ? 2 : 1) {
        struct timespec rest = {0};
        if (!lock_number(F_OFD_SETLK, F_WRLCK, WHOLE, 1, NULL)) {
            self.blocked = 0;
            return NULL;
        }
        if (errno == EINVAL)
            return "the kernel has no locks of open files, which Linux has from 3.15 on";
        if (errno != EAGAIN && errno != EACCES)
            return strerror(errno);
        if (self.blocked || waited >= VCUDA_WAIT_MS * 1000L)
            break;
        /* A signal may end the pause. */
        nanosleep(&(struct timespec){0, pause * 1000}, &rest);
        waited += pause - rest.tv_nsec / 1000;
    }
    self.blocked = 1;
    return "another process keeps it locked";
}

/* ENDS: it has no memory of its own any more, and a thread of it is there still. That is
   not so after an exec, nor of a zombie, which has ended. */
enum life { LIVES, ENDS, ENDED };

/* Read the start of a process from its /proc/PID/stat (see proc(5)), and whether it lives;
   it does where that cannot be read. */
static enum life look(const char *pid, struct slot *out) {
    char path[40], text[1024];
    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC), ending = 0;
    ssize_t length = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    text[length > 0 ? length : 0] = 0;
    /* The name of a program may hold blanks and brackets itself. */
    char *at = strrchr(text, ')');
    if (!at || !at[1])
        return LIVES;
    int zombie = at[2] == 'Z' || at[2] == 'X';
    for (int field = 3; (at = strchr(at + 1, ' ')) && field <= 23; field++) {
        uint64_t value = 0;
        for (const char *digit = at + 1; *digit >= '0' && *digit <= '9'; digit++)
            value = value * 10 + (uint64_t)(*digit - '0');
        if (field == 20)
            zombie = zombie && value <= 1;
        if (field == 22)
            out->start = value;
        if (field == 23)
            ending = !value && !zombie;
    }
    return zombie ? ENDED : ending ? ENDS : LIVES;
}

/* The kernel drops its lock before the driver may have freed all of its memory. */
static int is_ending(const struct slot *slot) {
    char pid[24];
    struct slot found = {0};
    snprintf(pid, sizeof pid, "%llu", (unsigned long long)slot->pid);
    return look(pid, &found) == ENDS && found.start == slot->start;
}

/* A child that was made by a bare clone, without our fork handler, keeps the open file of
   its parent, and with it the lock. So of our own PID namespace the kernel is asked. */
static int is_gone(const struct slot *slot) {
    char pid[24];
    struct slot found = {0};
    if (!slot->namespace || slot->namespace != self.mine.namespace)
        return 0;
    if (kill((pid_t)slot->pid, 0))
        return errno == ESRCH;
    snprintf(pid, sizeof pid, "%llu", (unsigned long long)slot->pid);
    return look(pid, &found) == ENDED ||
           (found.start && slot->start && found.start != slot->start);
}

static int holds_memory(size_t number, const struct slot *slot, int ask_kernel) {
    if (others_hold((off_t)number, 1))
        return !ask_kernel || !is_gone(slot);
    return is_ending(slot);
}

/* Free the slots of processes that have ended, and sum up the others anew. The kernel is
   asked of each process only where memory is short: it takes long for hundreds. */
static void reap(int ask_kernel) {
    uint64_t total = 0;
    for (size_t i = 0; i < SLOTS; i++) {
        struct slot *slot = &self.region->slot[i];
        if (slot == self.slot)
            *slot = self.mine;
        else if (slot->used && !holds_memory(i, slot, ask_kernel))
            slot->used = 0;
        if (__builtin_add_overflow(total, slot->used, &total))
            total = UINT64_MAX;
    }
    self.region->total = total;
}

/* The program may have closed the file, and opened another one by its number. */
static int is_open(struct stat *found) {
    return self.file >= 0 && !status(self.file, found) &&
           found->st_dev == self.device && found->st_ino == self.inode;
}

/* Let the region go; what this process holds stays known. */
static void detach(void) {
    struct stat found;
    if (is_open(&found))
        close(self.file);
    if (self.region)
        munmap(self.region, sizeof *self.region);
    self.file = -1;
    self.region = NULL;
    self.slot = NULL;
}

/* A child holds nothing of what its parent allocated: contexts do not survive fork. Other
   threads of the parent may have been inside, and are not there to go on. */
static void child(void) {
    pthread_mutex_init(&self.lock, NULL);
    detach();
    memset(&self.mine, 0, sizeof self.mine);
    self.owed = self.has_context = 0;
    ledger_forget();
}

static const char *open_region(struct stat *found) {
    int file = open(VCUDA_REGION, O_RDWR | O_CLOEXEC);
    /* Not in place of stdin, stdout or stderr, where a program may have closed them. */
    self.file = file < 0 || file > 2 ? file : fcntl(file, F_DUPFD_CLOEXEC, 3);
    if (self.file != file)
        close(file);
    if (self.file < 0 || status(self.file, found))
        return strerror(errno);
    self.device = found->st_dev;
    self.inode = found->st_ino;
    return NULL;
}

/* Map the region. An empty file becomes one, unless it was emptied under others. */
static const char *map(void) {
    struct stat found;
    if (status(self.file, &found))
        return strerror(errno);
    int others = others_hold(0, SLOTS), whole = found.st_size >= (off_t)sizeof(struct region);
    if (!whole && others)
        return "it was cut off under processes that use it";
    /* Going past the limit of file sizes would end the process. */
    struct rlimit most;
    if (!whole && !getrlimit(RLIMIT_FSIZE, &most) && most.rlim_cur < sizeof(struct region))
        return "the limit of file sizes (ulimit -f) is too low to make it";
    /* With blocks of its own: writing into a hole of a full disk would do the same. */
    int code = whole ? 0 : posix_fallocate(self.file, 0, sizeof(struct region));
    if (code)
        return strerror(code);
    struct region *region = mmap(NULL, sizeof *region, PROT_READ | PROT_WRITE, MAP_SHARED,
                                 self.file, 0);
    if (region == MAP_FAILED)
        return strerror(errno);
    vcuda_point("initialising");
    if (!region->magic && !others)
        region->magic = MAGIC;
    self.region = region;
    return NULL;
}

/* Find what is wrong, if anything, each time: programs can write what they like into it. */
static const char *attach(void) {
    struct stat found;
    const char *wrong = NULL;
    if (!is_open(&found)) {
        detach();
        wrong = open_region(&found);
    }
    if (wrong)
        return wrong;
    wrong = lock_content();
    if (wrong)
        return wrong;
    if (self.region && found.st_size < (off_t)sizeof *self.region)
        wrong = "it was cut off";
    else if (!self.region)
        wrong = map();
    if (!wrong && self.region->magic != MAGIC)
        wrong = "it is damaged, or of another version";
    return wrong;
}

static uint64_t pid_namespace(void) {
    char text[64]; /* "pid:[4026531836]" */
    uint64_t number = 0;
    ssize_t length = readlink("/proc/self/ns/pid", text, sizeof text);
    for (ssize_t i = 0; i < length; i++)
        if (text[i] >= '0' && text[i] <= '9')
            number = number * 10 + (uint64_t)(text[i] - '0');
    return number;
}

/* Give this process a slot, and see that it says what is true. Returns 0 if all are taken. */
static int claim(void) {
    struct region *region = self.region;
    if (self.slot && region->total >= self.mine.used)
        return 1;
    reap(0);
    if (self.slot)
        return 1;
    size_t i = 0;
    while (i < SLOTS && (region->slot[i].used ||
                         lock_number(F_OFD_SETLK, F_WRLCK, (off_t)i, 1, NULL)))
        i++;
    if (i == SLOTS)
        return 0;
    self.slot = &region->slot[i];
    look("self", &self.mine);
    self.mine.pid = (uint64_t)getpid();
    self.mine.namespace = pid_namespace();
    reap(0);
    return 1;
}

/* Note what this process holds now. A process may be killed between any two lines. */
static void note(uint64_t used) {
    uint64_t total = self.region->total - self.mine.used + used;
    int more = used > self.mine.used;
    if (more)
        __atomic_store_n(&self.region->total, total, __ATOMIC_RELEASE);
    vcuda_point("counted");
    __atomic_store_n(&self.slot->used, used, __ATOMIC_RELEASE);
    vcuda_point("noted");
    if (!more)
        __atomic_store_n(&self.region->total, total, __ATOMIC_RELEASE);
    self.mine.used = used;
}

/* Note what was freed while another process kept the lock, or no descriptor was to be
   had; and all that this process holds, if the program has closed the file. */
static void catch_up(void) {
    uint64_t owed = __atomic_load_n(&self.owed, __ATOMIC_RELAXED);
    if ((!owed && (self.slot || !self.mine.used)) || !claim())
        return;
    owed = __atomic_exchange_n(&self.owed, 0, __ATOMIC_RELAXED);
    note(self.mine.used > owed ? self.mine.used - owed : 0);
}

static void leave(void) {
    int ignored, cancelled = self.cancelled, error = self.error;
    lock_number(F_OFD_SETLK, F_UNLCK, WHOLE, 1, NULL);
    pthread_mutex_unlock(&self.lock);
    errno = error;
    pthread_setcancelstate(cancelled, &ignored);
}

static CUresult enter(void) {
    int cancelled, error = errno;
    /* Here and not in a constructor: those of other libraries may come first. Before the
       lock, because another thread may fork while this one has it; twice does no harm. */
    if (!__atomic_load_n(&self.follows_forks, __ATOMIC_ACQUIRE))
        __atomic_store_n(&self.follows_forks, !pthread_atfork(NULL, NULL, child),
                         __ATOMIC_RELEASE);
    /* A thread that were cancelled inside would lock out all others. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelled);
    pthread_mutex_lock(&self.lock);
    self.cancelled = cancelled;
    self.error = error;
    const char *file = VCUDA_LIMITS, *wrong = NULL;
    if (!self.has_limits)
        wrong = limits_read(&self.limits);
    if (!wrong) {
        self.has_limits = 1;
        file = VCUDA_REGION;
        wrong = __atomic_load_n(&self.follows_forks, __ATOMIC_ACQUIRE) ? attach()
                                                                       : "no memory";
    }
    if (!wrong) {
        vcuda_point("locked");
        catch_up();
        return CUDA_SUCCESS;
    }
    leave();
    return broken(file, wrong);
}

static int fits(uint64_t bytes) {
    uint64_t total = self.region->total, limit = self.limits.bytes;
    return total <= limit && bytes <= limit - total;
}

/* A process that uses the card has a context there, whose memory no call tells. */
static CUresult charge(uint64_t bytes, int held) {
    CUresult code = enter();
    if (code)
        return code;
    int claimed = claim();
    uint64_t context = self.has_context ? 0 : self.limits.context_bytes;
    if (__builtin_add_overflow(bytes, context, &bytes))
        bytes = UINT64_MAX;
    if (claimed && !fits(bytes))
        reap(1);
    if (claimed && !fits(bytes))
        code = CUDA_ERROR_OUT_OF_MEMORY;
    if (claimed && (!code || held)) {
        note(self.mine.used + bytes);
        self.has_context = 1;
    }
    leave();
    return claimed ? code : broken(VCUDA_REGION, "too many processes use the card");
}

CUresult region_charge(uint64_t bytes) {
    return charge(bytes, 0);
}

CUresult region_add(uint64_t bytes) {
    return charge(bytes, 1);
}

void region_uncharge(uint64_t bytes) {
    __atomic_add_fetch(&self.owed, bytes, __ATOMIC_RELAXED);
    if (!enter())
        leave();
}

CUresult region_share(struct share *share) {
    CUresult code = enter();
    if (code)
        return code;
    reap(0);
    uint64_t total = self.region->total, limit = self.limits.bytes;
    *share = (struct share){limit, total < limit ? limit - total : 0, self.limits.uuid};
    leave();
    return CUDA_SUCCESS;
}
