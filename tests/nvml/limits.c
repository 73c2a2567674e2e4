/* Limits of a card's memory by control group, as drivers from 615 on hold them. They are
   noted in a file beside the driving file, one line a call; the last one counts. The codes
   of refusals are those that nvml.h names; they were not seen on a card. */
#include <sys/stat.h>

#include "stub.h"

#if !defined OLD_DRIVER && !defined MIDDLE_DRIVER
#define NO_LIMIT ~0ULL

struct set_limits { const char *group; unsigned long long soft, hard; };
struct get_limits { const char *group; unsigned long long soft, hard, used; };

static FILE *noted(const char *how) {
    const char *state = getenv("NVML_STUB_FILE");
    char path[4096];
    snprintf(path, sizeof path, "%s.limits", state ? state : "/nowhere");
    return fopen(path, how);
}

static int is_group(const char *path) {
    struct stat found;
    return path && !stat(path, &found) && S_ISDIR(found.st_mode);
}

#pragma GCC visibility push(default)

int nvmlDeviceSetMemoryLimits_v1(struct slot *slot, struct set_limits *limits) {
    ENTER(s, card, slot, "DeviceSetMemoryLimits");
    if (card->mig || card->parent >= 0)
        return NOT_SUPPORTED;
    if (!is_group(limits->group))
        return NOT_FOUND;
    if (limits->soft > limits->hard)
        return INVALID;
    FILE *file = noted("a");
    if (!file)
        return NO_PERMISSION;
    fprintf(file, "%s %llu %llu %s\n", card->uuid, limits->soft, limits->hard,
            limits->group);
    return fclose(file) ? NO_PERMISSION : OK;
}

/* Of the group itself; what its processes use is not known here. */
int nvmlDeviceGetMemoryLimits_v1(struct slot *slot, struct get_limits *limits) {
    ENTER(s, card, slot, "DeviceGetMemoryLimits");
    if (card->mig || card->parent >= 0)
        return NOT_SUPPORTED;
    if (!is_group(limits->group))
        return NOT_FOUND;
    limits->soft = limits->used = 0;
    limits->hard = NO_LIMIT;
    char line[4096], uuid[WORD];
    FILE *file = noted("r");
    while (file && fgets(line, sizeof line, file)) {
        unsigned long long soft, hard;
        int at = 0;
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "%95s %llu %llu %n", uuid, &soft, &hard, &at) == 3 &&
            !strcmp(uuid, card->uuid) && !strcmp(line + at, limits->group)) {
            limits->soft = soft;
            limits->hard = hard;
        }
    }
    if (file)
        fclose(file);
    return OK;
}
#endif
