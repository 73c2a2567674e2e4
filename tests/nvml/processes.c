/* Who is on a card, and how busy each of them keeps it. */
#include "stub.h"

#define RING 100
#define UTILIZATION_V1 0x01000018u

/* Two layouts, told apart by the function's name alone; garbled if mixed up. */
struct process_v1 { unsigned pid; unsigned long long bytes; };
struct process_v2 { unsigned pid; unsigned long long bytes; unsigned gi, ci; };
struct sample { unsigned pid; unsigned long long time; unsigned sm, memory, enc, dec; };
struct sample_v1 {
    unsigned long long time;
    unsigned pid, sm, memory, enc, dec, jpg, ofa;
};
struct samples_v1 {
    unsigned version, count;
    unsigned long long since;
    struct sample_v1 *samples;
};

static int list(struct slot *slot, const char *function, int kind, unsigned *count,
                void *out, int v1) {
    ENTER(s, card, slot, function);
    unsigned room = out ? *count : 0;
    *count = 0;
    for (int i = 0; i < s->processes; i++) {
        const struct process *p = &s->process[i];
        const struct card *on = &s->card[p->card];
        int instance = on->parent >= 0;
        /* A card in MIG mode lists those of its instances. */
        if ((on != card && !(instance && &s->card[on->parent] == card)) ||
            p->kind != kind)
            continue;
        if (*count < room && v1)
            ((struct process_v1 *)out)[*count] = (struct process_v1){p->pid, p->bytes};
        else if (*count < room)
            ((struct process_v2 *)out)[*count] =
                (struct process_v2){p->pid, p->bytes, instance ? on->gi : ~0u,
                                    instance ? on->ci : ~0u};
        ++*count;
    }
    return *count > room ? SMALL : OK;
}

static struct sample sample_of(unsigned long long time, const struct work *w) {
    return (struct sample){w->pid, time, w->sm, w->memory, w->encoder, w->decoder};
}

/* What is newer than "since": whoever works has worked just now. */
static unsigned newer(const struct state *s, const struct card *card,
                      unsigned long long since, struct sample *out) {
    struct timespec t;
    unsigned count = 0;
    clock_gettime(CLOCK_REALTIME, &t);
    unsigned long long now = t.tv_sec * 1000000ULL + t.tv_nsec / 1000;
    for (int i = 0; i < s->entries && count < RING; i++)
        if (&s->card[s->entry[i].work.card] == card && s->entry[i].time > since)
            out[count++] = sample_of(s->entry[i].time, &s->entry[i].work);
    for (int i = 0; i < s->works && count < RING; i++)
        if (&s->card[s->work[i].card] == card)
            out[count++] = sample_of(now, &s->work[i]);
    return count;
}

/* Processes long gone, a busier one than a card can have, and what "since" forbids. */
static void garbage(const struct state *s, const struct card *card, struct sample *out,
                    unsigned from) {
    unsigned any = out[0].pid;
    for (int i = 0; i < s->processes; i++)
        if (&s->card[s->process[i].card] == card)
            any = s->process[i].pid;
    for (unsigned i = from; i < RING; i++) {
        out[i] = (struct sample){4100000 + i, out[0].time + 1, 37, 37, 37, 37};
        if (i % 3 == 1)
            out[i] = (struct sample){out[0].pid, out[0].time + 1, 0xfff0bdc0, 7, 0, 0};
        if (i % 3 == 2)
            out[i] = (struct sample){any, 1, 88, 0, 0, 0};
    }
}

#pragma GCC visibility push(default)

#define LIST(function, kind, v1)                                                       \
    int nvml##function(struct slot *slot, unsigned *count, void *out) {                \
        return list(slot, #function, kind, count, out, v1);                            \
    }
LIST(DeviceGetComputeRunningProcesses, COMPUTE, 1)
LIST(DeviceGetGraphicsRunningProcesses, GRAPHICS, 1)
#ifndef OLD_DRIVER
LIST(DeviceGetMPSComputeRunningProcesses, MPS, 1)
LIST(DeviceGetComputeRunningProcesses_v2, COMPUTE, 0)
LIST(DeviceGetGraphicsRunningProcesses_v2, GRAPHICS, 0)
LIST(DeviceGetMPSComputeRunningProcesses_v2, MPS, 0)
#ifndef MIDDLE_DRIVER
LIST(DeviceGetComputeRunningProcesses_v3, COMPUTE, 0)
LIST(DeviceGetGraphicsRunningProcesses_v3, GRAPHICS, 0)
LIST(DeviceGetMPSComputeRunningProcesses_v3, MPS, 0)
#endif
#endif

int nvmlDeviceGetProcessUtilization(struct slot *slot, struct sample *out,
                                    unsigned *count, unsigned long long since) {
    struct sample found[RING];
    ENTER(s, card, slot, "DeviceGetProcessUtilization");
    if (card->mig || card->parent >= 0)
        return NOT_SUPPORTED;
    const double *v = card->value;
    unsigned all = v[V_blind_samples] ? 0 : newer(s, card, since, found);
    if (!all) {
        *count = 0;
        return v[V_idle_is_success] ? OK : NOT_FOUND;
    }
    if (!out || *count < all) {
        /* The ring's size, however few samples there are. */
        *count = RING;
        return SMALL;
    }
    if (v[V_ring_garbage] && *count == RING) {
        garbage(s, card, found, all);
        all = RING;
    }
    memcpy(out, found, all * sizeof *out);
    *count = all;
    return OK;
}

#if !defined OLD_DRIVER && !defined MIDDLE_DRIVER
int nvmlDeviceGetProcessesUtilizationInfo(struct slot *slot, struct samples_v1 *out) {
    struct sample found[RING];
    ENTER(s, card, slot, "DeviceGetProcessesUtilizationInfo");
    if (out->version != UTILIZATION_V1)
        return VERSION;
    if (card->mig || card->parent >= 0)
        return NOT_SUPPORTED;
    unsigned all = card->value[V_blind_info] ? 0 : newer(s, card, out->since, found);
    unsigned room = out->samples ? out->count : 0;
    out->count = all;
    if (!all)
        return NOT_FOUND;
    if (room < all)
        return SMALL;
    for (unsigned i = 0; i < all; i++)
        out->samples[i] = (struct sample_v1){
            found[i].time, found[i].pid, found[i].sm, found[i].memory,
            found[i].enc, found[i].dec, 0, 0};
    return OK;
}
#endif
