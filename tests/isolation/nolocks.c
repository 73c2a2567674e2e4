/* A kernel that has no locks of open files: Linux before 3.15, or one that only looks
   like Linux. Preloaded before the library. */
#include <errno.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FIRST 36 /* F_OFD_GETLK, F_OFD_SETLK and F_OFD_SETLKW */
#define LAST 38

int fcntl(int file, int how, ...) {
    va_list rest;
    va_start(rest, how);
    long argument = va_arg(rest, long);
    va_end(rest);
    if (how < FIRST || how > LAST)
        return (int)syscall(SYS_fcntl, file, how, argument);
    errno = EINVAL;
    return -1;
}
