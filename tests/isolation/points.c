/* Lets a test kill or stop the process at a point of the library that it names. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "region.h"

void vcuda_point(const char *name) {
    const char *wanted = getenv("VCUDA_POINT");
    if (wanted && !strcmp(wanted, name))
        raise(getenv("VCUDA_STOP") ? SIGSTOP : SIGKILL);
}
