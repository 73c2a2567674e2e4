/* Cards in MIG mode and their instances: a handle each, with memory and processes of its
   own. The codes are those that nvml.h names; they were not seen on a card. */
#include "stub.h"

#define MOST_INSTANCES 7
#define PROCESSORS_OF_A_SLICE 14

struct attributes {
    unsigned processors, copy, decoders, encoders, jpeg, ofa, slices, compute_slices;
    unsigned long long memory_mib;
};

#ifndef OLD_DRIVER
#pragma GCC visibility push(default)

/* 0 where MIG is off, also on a card that has no MIG. */
int nvmlDeviceGetMaxMigDeviceCount(struct slot *slot, unsigned *count) {
    ENTER(s, card, slot, "DeviceGetMaxMigDeviceCount");
    *count = card->mig ? MOST_INSTANCES : 0;
    return OK;
}

/* Places stay: one that was destroyed leaves a hole. */
int nvmlDeviceGetMigDeviceHandleByIndex(struct slot *slot, unsigned place,
                                        struct slot **out) {
    ENTER(s, card, slot, "DeviceGetMigDeviceHandleByIndex");
    if (!card->mig)
        return NOT_SUPPORTED;
    if (place >= MOST_INSTANCES)
        return INVALID;
    for (int i = 0; i < s->cards; i++)
        if (s->card[i].parent >= 0 && &s->card[s->card[i].parent] == card &&
            s->card[i].place == place) {
            *out = stub_slot(s->card[i].uuid);
            return OK;
        }
    return NOT_FOUND;
}

int nvmlDeviceIsMigDeviceHandle(struct slot *slot, unsigned *is) {
    ENTER(s, card, slot, "DeviceIsMigDeviceHandle");
    *is = card->parent >= 0;
    return OK;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct slot *slot, struct slot **out) {
    ENTER(s, card, slot, "DeviceGetDeviceHandleFromMigDeviceHandle");
    if (card->parent < 0)
        return INVALID;
    *out = stub_slot(s->card[card->parent].uuid);
    return OK;
}

int nvmlDeviceGetGpuInstanceId(struct slot *slot, unsigned *id) {
    ENTER(s, card, slot, "DeviceGetGpuInstanceId");
    if (card->parent < 0)
        return NOT_SUPPORTED;
    *id = card->gi;
    return OK;
}

int nvmlDeviceGetComputeInstanceId(struct slot *slot, unsigned *id) {
    ENTER(s, card, slot, "DeviceGetComputeInstanceId");
    if (card->parent < 0)
        return NOT_SUPPORTED;
    *id = card->ci;
    return OK;
}

int nvmlDeviceGetAttributes_v2(struct slot *slot, struct attributes *out) {
    ENTER(s, card, slot, "DeviceGetAttributes");
    if (card->parent < 0)
        return NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    out->processors = card->slices * PROCESSORS_OF_A_SLICE;
    out->copy = out->slices = out->compute_slices = card->slices;
    out->memory_mib = card->total >> 20;
    return OK;
}
#endif
