/* How much the processes of the container hold together. */
#ifndef VCUDA_REGION_H
#define VCUDA_REGION_H

#include <stdint.h>

#include "driver.h"
#include "limits.h"

#ifndef VCUDA_REGION
#define VCUDA_REGION "/run/vcuda/region"
#endif

/* A test kills the process here; compiled in for tests alone. */
#ifdef VCUDA_POINTS
void vcuda_point(const char *name);
#else
#define vcuda_point(name) ((void)0)
#endif

/* Each returns CUDA_ERROR_OPERATING_SYSTEM if the limits or the region cannot be used,
   the first time with a line on stderr. A later call tries again. */

/* Count bytes for this process, and its context with the first ones, which may be 0.
   OUT_OF_MEMORY if they do not fit, also without what processes held that have ended. */
CUresult region_charge(uint64_t bytes);

/* Count bytes that are held already. OUT_OF_MEMORY if the sum is above the limit now. */
CUresult region_add(uint64_t bytes);

/* Give bytes back, also if the region cannot be used now. */
void region_uncharge(uint64_t bytes);

struct share {
    uint64_t limit, left; /* in bytes; what of it no process of the container holds */
    const char *uuid;     /* of the card */
};
CUresult region_share(struct share *share);

#endif
