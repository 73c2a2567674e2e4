/* The cards' faults: a set of events, told in order and each once. */
#include <pthread.h>

#include "stub.h"

#define XID_EVENT 8ULL

struct told { struct slot *card; unsigned long long type, xid; unsigned gi, ci; };
struct set { unsigned long long told; int count, lost; struct slot *card[MOST]; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* A fault in an instance is told of its card, with the instance's numbers. */
static int wanted(const struct state *s, const struct set *set, const struct event *e,
                  struct told *out) {
    int place = state_card(s, e->uuid);
    const struct card *on = place < 0 ? NULL : &s->card[place];
    int instance = on && on->parent >= 0;
    const char *uuid = instance ? s->card[on->parent].uuid : e->uuid;
    memset(out, 0, sizeof *out);
    out->type = XID_EVENT;
    out->xid = e->xid;
    out->gi = instance ? on->gi : ~0u;
    out->ci = instance ? on->ci : ~0u;
    if (e->number <= set->told)
        return 0;
    if (!strcmp(e->uuid, "-"))
        return 1;
    for (int i = 0; i < set->count; i++)
        if (!strcmp(set->card[i]->uuid, uuid)) {
            out->card = set->card[i];
            return 1;
        }
    return 0;
}

/* A lost card is said at once, and at every wait from then on, whatever comes. */
static int is_lost(const struct state *s, struct set *set) {
    for (int i = 0; i < set->count; i++)
        if (stub_lost(s, set->card[i]) ||
            stub_failure(s, set->card[i]->uuid, "EventSetWait") == LOST)
            set->lost = 1;
    return set->lost;
}

#pragma GCC visibility push(default)

int nvmlEventSetCreate(struct set **out) {
    HOLD(s);
    int code = stub_enter(&s, "*", "EventSetCreate");
    if (code)
        return code;
    *out = calloc(1, sizeof **out);
    /* What happened before nobody waited for is never told. */
    for (int i = 0; i < s->events; i++)
        if (s->event[i].number > (*out)->told)
            (*out)->told = s->event[i].number;
    return OK;
}

int nvmlDeviceRegisterEvents(struct slot *slot, unsigned long long types,
                             struct set *set) {
    ENTER(s, card, slot, "DeviceRegisterEvents");
    (void)types;
    pthread_mutex_lock(&lock);
    if (set->count < MOST)
        set->card[set->count++] = slot;
    pthread_mutex_unlock(&lock);
    return OK;
}

int nvmlEventSetWait_v2(struct set *set, struct told *out, unsigned timeout_ms) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    long long end = t.tv_sec * 1000LL + t.tv_nsec / 1000000 + timeout_ms;
    for (;;) {
        HOLD(s);
        int code = stub_enter(&s, "*", "EventSetWait");
        if (code)
            return code;
        if (set->lost)
            return LOST;
        for (int i = 0; i < s->events; i++)
            if (wanted(s, set, &s->event[i], out)) {
                set->told = s->event[i].number;
                return OK;
            }
        if (is_lost(s, set))
            return LOST;
        clock_gettime(CLOCK_MONOTONIC, &t);
        if (t.tv_sec * 1000LL + t.tv_nsec / 1000000 >= end)
            return TIMEOUT;
        stub_nap(25);
    }
}

int nvmlEventSetFree(struct set *set) {
    free(set);
    return OK;
}
