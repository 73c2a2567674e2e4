/* GPM, of Hopper and newer: what a card did between two samples. */
#ifndef OLD_DRIVER
#ifndef MIDDLE_DRIVER
#include "stub.h"

struct support { unsigned version, supported; };
struct gpm { char uuid[WORD]; long long at_ms; };
struct metric { unsigned id; int code; double value; const char *words[3]; };
struct metrics {
    unsigned version, count;
    struct gpm *first, *second;
    struct metric metric[];
};

static int alive;

static double known(const struct card *card, unsigned id) {
    switch (id) {
    case 1:
        return card->value[V_gpm_graphics];
    case 2:
        return card->value[V_gpm_sm];
    case 3:
        return card->value[V_gpm_occupancy];
    case 5:
        return card->value[V_gpm_tensor];
    case 10:
        return card->value[V_gpm_dram];
    case 20:
        return card->value[V_gpm_pcie_tx];
    case 21:
        return card->value[V_gpm_pcie_rx];
    default:
        return ABSENT;
    }
}

#pragma GCC visibility push(default)

/* Not NVML's: how many samples nobody has given back. */
int nvmlStubGpmSamples(void) { return alive; }

int nvmlGpmQueryDeviceSupport(struct slot *slot, struct support *out) {
    ENTER(s, card, slot, "GpmQueryDeviceSupport");
    if (out->version != 1)
        return VERSION;
    out->supported = card->value[V_gpm] == 1 && card->parent < 0;
    return OK;
}

int nvmlGpmSampleAlloc(struct gpm **out) {
    *out = calloc(1, sizeof **out);
    __atomic_add_fetch(&alive, 1, __ATOMIC_RELAXED);
    return OK;
}

int nvmlGpmSampleFree(struct gpm *sample) {
    free(sample);
    __atomic_add_fetch(&alive, -1, __ATOMIC_RELAXED);
    return OK;
}

static int take(const struct card *card, struct gpm *sample) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    strcpy(sample->uuid, card->uuid);
    sample->at_ms = t.tv_sec * 1000LL + t.tv_nsec / 1000000;
    return OK;
}

int nvmlGpmSampleGet(struct slot *slot, struct gpm *sample) {
    ENTER(s, card, slot, "GpmSampleGet");
    if (card->value[V_gpm] != 1 || card->parent >= 0)
        return NOT_SUPPORTED;
    return take(card, sample);
}

/* Of the instance with this number; the handle is its card's. */
int nvmlGpmMigSampleGet(struct slot *slot, unsigned gi, struct gpm *sample) {
    ENTER(s, card, slot, "GpmMigSampleGet");
    if (card->value[V_gpm] != 1 || !card->mig)
        return NOT_SUPPORTED;
    for (int i = 0; i < s->cards; i++)
        if (s->card[i].parent >= 0 && &s->card[s->card[i].parent] == card &&
            s->card[i].gi == gi)
            return take(&s->card[i], sample);
    return INVALID;
}

/* The card refreshes its samples every 100 ms: two closer ones tell nothing. */
int nvmlGpmMetricsGet(struct metrics *out) {
    HOLD(s);
    if (out->version != 1)
        return VERSION;
    if (strcmp(out->first->uuid, out->second->uuid) ||
        out->second->at_ms - out->first->at_ms < 100)
        return INVALID;
    int code = stub_enter(&s, out->first->uuid, "GpmMetricsGet");
    int place = code ? -1 : state_card(s, out->first->uuid);
    if (place < 0)
        return code ? code : LOST;
    for (unsigned i = 0; i < out->count; i++) {
        struct metric *m = &out->metric[i];
        m->value = known(&s->card[place], m->id);
        int failure = stub_failure_of(s, out->first->uuid, "GpmMetric", m->id);
        m->code = failure ? failure : m->value == m->value ? OK : NOT_SUPPORTED;
    }
    return OK;
}
#endif
#endif
