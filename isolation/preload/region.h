/* How much the processes of the container hold together. */
#ifndef VCUDA_REGION_H
#define VCUDA_REGION_H

#include <stdint.h>

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

enum state { UNKNOWN, BROKEN, UNLIMITED, LIMITED };

/* Read the limits and map the region, once for each process.

   Returns BROKEN if one of them cannot be used, with a line on stderr the first time;
   a later call tries again. */
enum state region_attach(void);

/* What region_attach read; of a LIMITED process alone. */
const struct limits *region_limits(void);

/* Count bytes for this process. Returns a CUresult: OUT_OF_MEMORY if they do not fit
   also without the processes that have ended. */
int region_charge(uint64_t bytes);

/* Count bytes that are held already. Returns whether the sum is still within the limit. */
int region_add(uint64_t bytes);

void region_uncharge(uint64_t bytes);

/* Read what all living processes of the container hold, in bytes. */
uint64_t region_used(void);

/* What the process keeps besides: locked while it forks, forgotten in the child. */
void ledger_lock(void);
void ledger_unlock(void);
void ledger_forget(void);

#endif
