/* The region is a FIFO of its container. Nothing is written into it: each of the container's
   processes that uses CUDA counts in the locks that it holds on it. A lock has a first and
   a last byte, and a FIFO has none, so that it cannot be cut off, damaged or grow on the
   node's disk, and nobody can change what another process counts.

   A process has a slot as long as it lives: four locks, which are as long as the numbers
   that they tell. Only one process at a time looks at the others' and adds to its own;
   that lock is waited for, but not for ever. The kernel drops them all when the process
   ends or executes another program, in any PID namespace. */
#define _GNU_SOURCE
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
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

/* exporter/owners/regions.py reads the same. */
#define SLOTS 1024
#define SLOT_LENGTH (1LL << 50)
#define MOST (SLOT_LENGTH - 2) /* locks that touch would become one */
#define GUARD SLOT_LENGTH      /* the byte that only one process has at a time */
enum fact { USED, PID, START, NAMESPACE, FACTS }; /* START: pids are used again */

#ifndef VCUDA_WAIT_MS /* how long another process is waited for; a test takes less */
#define VCUDA_WAIT_MS 10000
#endif

/* A file that the program may have closed, and opened another one by its number. */
struct file {
    int number; /* -1 if there is none */
    dev_t device;
    ino_t inode;
};

static struct {
    pthread_mutex_t lock;
    int reported, follows_forks, has_limits, has_context;
    int blocked;   /* the lock was not had in time; it is not waited for again until it is */
    int cancelled; /* whether the thread inside may be cancelled elsewhere */
    int error;     /* its errno, which no call of the driver's is to change */
    int has_slot;
    size_t slot;
    struct file region, socket;
    struct limits limits;
    uint64_t used; /* bytes that this process holds, whatever its locks tell */
    uint64_t pid_namespace;
} self = {.lock = PTHREAD_MUTEX_INITIALIZER, .region.number = -1, .socket.number = -1};

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

static int is_open(const struct file *file) {
    struct stat found;
    return file->number >= 0 && !status(file->number, &found) &&
           found.st_dev == file->device && found.st_ino == file->inode;
}

/* Keep a file that was opened, but not in place of stdin, stdout or stderr, where a program
   may have closed them. Returns whether that is done. */
static int keep(struct file *file, int number) {
    struct stat found;
    file->number = number < 0 || number > 2 ? number : fcntl(number, F_DUPFD_CLOEXEC, 3);
    if (file->number != number)
        close(number);
    if (file->number < 0 || status(file->number, &found))
        return 0;
    file->device = found.st_dev;
    file->inode = found.st_ino;
    return 1;
}

static void let_go(struct file *file) {
    if (is_open(file))
        close(file->number);
    file->number = -1;
}

static off_t place(enum fact fact, size_t slot) {
    return (1LL + fact) * SLOTS * SLOT_LENGTH + (off_t)slot * SLOT_LENGTH;
}

/* Change locks of the open file. Those of a process end with any close of the file in it,
   and before its other files are closed. */
static int lock(short type, off_t first, off_t length) {
    struct flock lock = {.l_type = type, .l_start = first, .l_len = length};
    return fcntl(self.region.number, F_OFD_SETLK, &lock);
}

/* Return a lock that others hold here; all of it, if the kernel does not say. */
static struct flock others_lock(off_t first, off_t end) {
    struct flock lock = {.l_type = F_WRLCK, .l_start = first, .l_len = end - first};
    fcntl(self.region.number, F_OFD_GETLK, &lock);
    return lock;
}

/* Return the number that a lock tells, which may be anything. */
static uint64_t number_of(const struct flock *lock, off_t first) {
    if (lock->l_type == F_UNLCK)
        return 0;
    off_t last = lock->l_start - 1 + lock->l_len; /* a length of 0: without an end */
    return !lock->l_len || last - first > MOST ? MOST : (uint64_t)(last - first);
}

static uint64_t read_number(enum fact fact, size_t slot) {
    off_t first = place(fact, slot);
    struct flock lock = others_lock(first, first + SLOT_LENGTH);
    return number_of(&lock, first);
}

/* Let no other process in. Whoever may open the file can keep them out, and a process may be
   stopped inside. Pauses grow, because each try of hundreds costs the others. This lock is
   of the process: one of the open file would stay with a child by a bare clone. */
static const char *lock_others_out(void) {
    for (long waited = 0, pause = 20;; pause *= pause < 16000 ? 2 : 1) {
        struct timespec rest = {0};
        struct flock guard = {.l_type = F_WRLCK, .l_start = GUARD, .l_len = 1};
        if (!fcntl(self.region.number, F_SETLK, &guard)) {
            self.blocked = 0;
            return NULL;
        }
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

static void let_others_in(void) {
    struct flock guard = {.l_type = F_UNLCK, .l_start = GUARD, .l_len = 1};
    fcntl(self.region.number, F_SETLK, &guard);
}

/* Read the start of a process from its /proc/PID/stat (see proc(5)), 0 if that cannot be
   read. Returns whether it is a zombie, and so has ended. */
static int is_zombie(const char *pid, uint64_t *start) {
    char path[40], text[1024];
    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC), ended = 0;
    ssize_t length = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    text[length > 0 ? length : 0] = 0;
    *start = 0;
    /* The name of a program may hold blanks and brackets itself. */
    char *at = strrchr(text, ')');
    if (!at || !at[1])
        return 0;
    ended = at[2] == 'Z' || at[2] == 'X';
    for (int field = 3; (at = strchr(at + 1, ' ')) && field <= 22; field++) {
        uint64_t value = 0;
        for (const char *digit = at + 1; *digit >= '0' && *digit <= '9'; digit++)
            value = value * 10 + (uint64_t)(*digit - '0');
        /* Of several threads the first may have ended alone. */
        if (field == 20)
            ended = ended && value <= 1;
        if (field == 22)
            *start = value;
    }
    return ended;
}

/* A child that was made by a bare clone, without our fork handler, keeps the open file of
   its parent, and with it the locks. So of our own PID namespace the kernel is asked. */
static int is_gone(size_t slot) {
    char pid[24];
    uint64_t number = read_number(PID, slot), is_of = read_number(NAMESPACE, slot), start;
    if (!number || !is_of || is_of != self.pid_namespace)
        return 0;
    if (kill((pid_t)number, 0))
        return errno == ESRCH;
    snprintf(pid, sizeof pid, "%llu", (unsigned long long)number);
    if (is_zombie(pid, &start))
        return 1;
    uint64_t was = read_number(START, slot);
    return start && was && start != was;
}

/* Find the first slot that another process has and that is not before this one. Returns
   SLOTS if there is none. */
static size_t next_slot(size_t from, uint64_t *used) {
    size_t slot = SLOTS;
    for (struct flock lock; from < slot;) {
        lock = others_lock(place(USED, from), place(USED, slot));
        if (lock.l_type == F_UNLCK)
            break;
        /* The kernel returns any of several; one may begin before. */
        off_t behind = lock.l_start - place(USED, from);
        slot = from + (behind > 0 ? (size_t)(behind / SLOT_LENGTH) : 0);
        *used = number_of(&lock, place(USED, slot));
    }
    return slot;
}

/* Sum up what all hold. The kernel is asked whether each lives only where memory is short:
   it takes long for hundreds. */
static uint64_t total_held(int ask_kernel) {
    uint64_t total = self.used, used = 0;
    for (size_t i = 0; (i = next_slot(i, &used)) < SLOTS; i++)
        if ((!ask_kernel || !is_gone(i)) && __builtin_add_overflow(total, used, &total))
            total = UINT64_MAX;
    return total;
}

/* Let the region go; what this process holds stays known. */
static void detach(void) {
    let_go(&self.region);
    let_go(&self.socket);
    self.has_slot = 0;
}

/* A child holds nothing of what its parent allocated: contexts do not survive fork. Other
   threads of the parent may have been inside, and are not there to go on. */
static void child(void) {
    pthread_mutex_init(&self.lock, NULL);
    detach();
    self.used = self.has_context = 0;
    ledger_forget();
}

/* The kernel closes the files of a process that ends in some order, and frees what the
   driver has for it with the driver's files. What lies in a socket goes after all of
   those, and the locks go with the last reference to the file. */
static void outlast_driver(void) {
    int pair[2];
    char space[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8))) = {0};
    struct iovec byte = {"", 1};
    struct msghdr message = {.msg_iov = &byte, .msg_iovlen = 1};
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    struct cmsghdr *part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(part), &self.region.number, sizeof(int));
    /* Without it memory may be counted as free a moment too early. */
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair))
        return;
    sendmsg(pair[0], &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    close(pair[0]);
    keep(&self.socket, pair[1]);
}

static const char *attach(void) {
    if (is_open(&self.region))
        return NULL;
    detach();
    /* Not written either, but locks need it. */
    if (!keep(&self.region, open(VCUDA_REGION, O_RDWR | O_CLOEXEC | O_NONBLOCK)))
        return strerror(errno);
    struct flock any = {.l_type = F_WRLCK};
    if (!fcntl(self.region.number, F_OFD_GETLK, &any)) {
        outlast_driver();
        return NULL;
    }
    detach();
    return "the kernel has no locks of open files, which Linux has from 3.15 on";
}

static uint64_t read_pid_namespace(void) {
    char text[64]; /* "pid:[4026531836]" */
    uint64_t number = 0;
    ssize_t length = readlink("/proc/self/ns/pid", text, sizeof text);
    for (ssize_t i = 0; i < length; i++)
        if (text[i] >= '0' && text[i] <= '9')
            number = number * 10 + (uint64_t)(text[i] - '0');
    return number;
}

/* Tell what this process holds now, if it has a slot. Returns what is wrong, if anything. */
static const char *show_used(uint64_t used) {
    off_t first = place(USED, self.slot), length = (off_t)(used < MOST ? used : MOST) + 1;
    if (self.has_slot && used > self.used && lock(F_RDLCK, first, length))
        return strerror(errno);
    vcuda_point("counted");
    if (self.has_slot && used < self.used)
        lock(F_UNLCK, first + length, SLOT_LENGTH - length);
    self.used = used;
    return NULL;
}

/* Give this process a slot, if it has none. */
static const char *claim(void) {
    uint64_t used, facts[FACTS] = {[USED] = self.used < MOST ? self.used : MOST};
    size_t slot = 0;
    if (self.has_slot)
        return NULL;
    while (slot < SLOTS && next_slot(slot, &used) == slot)
        slot++;
    if (slot == SLOTS)
        return "too many processes use the card";
    self.pid_namespace = read_pid_namespace();
    facts[PID] = (uint64_t)getpid();
    facts[NAMESPACE] = self.pid_namespace;
    is_zombie("self", &facts[START]);
    for (int i = 0; i < FACTS; i++)
        if (lock(F_RDLCK, place(i, slot), (off_t)facts[i] + 1)) {
            const char *wrong = strerror(errno);
            detach();
            return wrong;
        }
    vcuda_point("claimed");
    self.slot = slot;
    self.has_slot = 1;
    return NULL;
}

/* Let no other thread in. */
static void begin(void) {
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
}

static void end(void) {
    int ignored, cancelled = self.cancelled, error = self.error;
    pthread_mutex_unlock(&self.lock);
    errno = error;
    pthread_setcancelstate(cancelled, &ignored);
}

static CUresult enter(void) {
    const char *file = VCUDA_LIMITS, *wrong = NULL;
    begin();
    if (!self.has_limits)
        wrong = limits_read(&self.limits);
    if (!wrong) {
        self.has_limits = 1;
        file = VCUDA_REGION;
        wrong = __atomic_load_n(&self.follows_forks, __ATOMIC_ACQUIRE) ? attach()
                                                                       : "no memory";
    }
    if (!wrong)
        wrong = lock_others_out();
    if (!wrong) {
        vcuda_point("locked");
        /* The program may have closed the file, and the locks with it. */
        if (self.used)
            claim();
        return CUDA_SUCCESS;
    }
    end();
    return broken(file, wrong);
}

static void leave(void) {
    let_others_in();
    end();
}

static int fits(uint64_t bytes, int ask_kernel) {
    uint64_t total = total_held(ask_kernel), limit = self.limits.bytes;
    return total <= limit && bytes <= limit - total;
}

/* A process that uses the card has a context there, whose memory no call tells. */
static CUresult charge(uint64_t bytes, int held) {
    CUresult code = enter();
    if (code)
        return code;
    const char *wrong = claim();
    uint64_t context = self.has_context ? 0 : self.limits.context_bytes;
    if (__builtin_add_overflow(bytes, context, &bytes))
        bytes = UINT64_MAX;
    if (!wrong && !fits(bytes, 0) && !fits(bytes, 1))
        code = CUDA_ERROR_OUT_OF_MEMORY;
    if (!wrong && (!code || held)) {
        wrong = show_used(self.used + bytes);
        self.has_context |= !wrong;
    }
    leave();
    return wrong ? broken(VCUDA_REGION, wrong) : code;
}

CUresult region_charge(uint64_t bytes) {
    return charge(bytes, 0);
}

CUresult region_add(uint64_t bytes) {
    return charge(bytes, 1);
}

/* Without waiting for others: they may see more than is held for a moment, never less. */
void region_uncharge(uint64_t bytes) {
    begin();
    if (!is_open(&self.region))
        self.has_slot = 0;
    show_used(self.used > bytes ? self.used - bytes : 0);
    end();
}

CUresult region_share(struct share *share) {
    CUresult code = enter();
    if (code)
        return code;
    uint64_t total = total_held(0), limit = self.limits.bytes;
    *share = (struct share){limit, total < limit ? limit - total : 0, self.limits.uuid};
    leave();
    return CUDA_SUCCESS;
}
