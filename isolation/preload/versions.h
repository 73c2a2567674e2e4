/* The library must load under glibc 2.17 and newer. glibc 2.34 moved libpthread and libdl
   into libc and gave their functions new versions, which a compiler of today binds to.
   The old versions are still there, so they are asked for by name. */
#ifndef VCUDA_VERSIONS_H
#define VCUDA_VERSIONS_H

#if !defined __x86_64__ || !defined __linux__
#error "only written for Linux on x86-64: versions.h and doors.c name its registers and versions"
#endif

#define OLD(name, version) __asm__(".symver " #name ", " #name "@GLIBC_" version)

/* A sanitizer puts functions of its own in place of some, which have no versions. */
#ifndef VCUDA_SANITIZED
OLD(dladdr, "2.2.5");
OLD(dlerror, "2.2.5");
OLD(dlopen, "2.2.5");
OLD(dlvsym, "2.2.5");
OLD(pthread_setcancelstate, "2.2.5");
#endif

#endif
