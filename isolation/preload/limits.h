/* What the container may use, as the device plugin wrote it. */
#ifndef VCUDA_LIMITS_H
#define VCUDA_LIMITS_H

#include <stdint.h>

/* Tests compile other paths in. No variable names them, because a pod may set variables. */
#ifndef VCUDA_LIMITS
#define VCUDA_LIMITS "/etc/vcuda/limits"
#endif

struct limits {
    uint64_t bytes;
    uint64_t context_bytes; /* counted for each process that uses the card */
    char uuid[96]; /* of the card; the container has no other */
};

/* Read the file. Returns NULL, or what is wrong with it. */
const char *limits_read(struct limits *limits);

/* Read a number, at most 2^40, that is the whole text. Returns 0 if it is none. */
int limits_number(const char *text, uint64_t *out);

#endif
