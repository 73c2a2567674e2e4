/* libnvidia-ml.so.1 without a driver: the calls that pynvml makes for us, answered from
   the file that NVML_STUB_FILE names (state.h). With -DOLD_DRIVER the symbols that
   drivers before 450 lack are missing. Codes and layouts are NVML's own. */
#include <pthread.h>
#include <time.h>

#include "state.h"

enum {
    OK = 0, UNINITIALIZED = 1, INVALID = 2, TIMEOUT = 10, SMALL = 7, LOST = 15,
    VERSION = 25
};
#define XID_EVENT 8ULL
#define MEMORY_V2 0x02000028u

struct slot { char uuid[WORD]; };
struct pci { char legacy[16]; unsigned domain, bus, device, id, sub; char bus_id[32]; };
struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
struct event_out { struct slot *card; unsigned long long type, xid; unsigned gi, ci; };
struct set { unsigned long long told; int count; struct slot *card[MOST]; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct slot slots[4096];
static int used_slots, opened, opened_load;

static void nap(void) {
    struct timespec moment = {0, 5 * 1000 * 1000};
    nanosleep(&moment, NULL);
}

static void now(struct state *s) { state_read(s, getenv("NVML_STUB_FILE")); }

static int is_for(const struct rule *r, const char *uuid, const char *function) {
    return (!strcmp(r->uuid, "*") || !strcmp(r->uuid, uuid)) &&
           (!strcmp(r->function, "*") || !strcmp(r->function, function));
}

static int hangs(const struct state *s, const char *uuid, const char *function) {
    for (int i = 0; i < s->hangs; i++)
        if (is_for(&s->hang[i], uuid, function))
            return 1;
    return 0;
}

/* Read the file, stay while it says "hang", and give what it says of this call. */
static int enter(struct state *s, const char *uuid, const char *function) {
    for (now(s); hangs(s, uuid, function); now(s))
        nap();
    if (!opened || s->load != opened_load)
        return UNINITIALIZED;
    if (s->init)
        return s->init;
    for (int i = 0; i < s->fails; i++)
        if (is_for(&s->fail[i], uuid, function))
            return s->fail[i].code;
    return OK;
}

static int enter_card(struct state *s, struct slot *slot, const char *function,
                      struct card **card) {
    if (slot < slots || slot >= slots + used_slots)
        return INVALID;
    int code = enter(s, slot->uuid, function);
    if (code)
        return code;
    for (int i = 0; i < s->cards; i++)
        if (!strcmp(s->card[i].uuid, slot->uuid)) {
            *card = &s->card[i];
            return OK;
        }
    return LOST;
}

static struct slot *slot_of(const char *uuid) {
    struct slot *found = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < used_slots && !found; i++)
        if (!strcmp(slots[i].uuid, uuid))
            found = &slots[i];
    if (!found && used_slots < 4096) {
        found = &slots[used_slots];
        strcpy(found->uuid, uuid);
        used_slots++;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static int put(const char *text, char *out, unsigned size) {
    if (strlen(text) + 1 > size)
        return SMALL;
    strcpy(out, text);
    return OK;
}

int nvmlInitWithFlags(unsigned flags) {
    struct state s;
    (void)flags;
    for (now(&s); hangs(&s, "*", "Init"); now(&s))
        nap();
    if (s.init)
        return s.init;
    pthread_mutex_lock(&lock);
    opened++;
    opened_load = s.load;
    pthread_mutex_unlock(&lock);
    return OK;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    struct state s;
    for (now(&s); hangs(&s, "*", "Shutdown"); now(&s))
        nap();
    pthread_mutex_lock(&lock);
    int code = opened ? OK : UNINITIALIZED;
    opened -= opened > 0;
    pthread_mutex_unlock(&lock);
    return code;
}

const char *nvmlErrorString(int code) {
    return code == OK ? "Success" : code == LOST ? "GPU is lost" : "Stub Error";
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    struct state s;
    int code = enter(&s, "*", "DeviceGetCount");
    *count = s.cards;
    return code ? code : s.count_code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct slot **out) {
    struct state s;
    now(&s);
    if (index >= (unsigned)s.cards)
        return INVALID;
    char uuid[WORD];
    strcpy(uuid, s.card[index].uuid);
    *out = slot_of(uuid);
    return enter(&s, uuid, "DeviceGetHandleByIndex");
}

int nvmlDeviceGetUUID(struct slot *slot, char *out, unsigned size) {
    struct state s;
    struct card *card;
    int code = enter_card(&s, slot, "DeviceGetUUID", &card);
    return code ? code : put(card->uuid, out, size);
}

int nvmlDeviceGetName(struct slot *slot, char *out, unsigned size) {
    struct state s;
    struct card *card;
    int code = enter_card(&s, slot, "DeviceGetName", &card);
    return code ? code : put(card->model, out, size);
}

int nvmlDeviceGetMinorNumber(struct slot *slot, unsigned *minor) {
    struct state s;
    struct card *card;
    int code = enter_card(&s, slot, "DeviceGetMinorNumber", &card);
    if (!code)
        *minor = card->minor;
    return code;
}

/* As drivers from 510 on: what the driver keeps counts as used here. */
int nvmlDeviceGetMemoryInfo(struct slot *slot, struct memory *out) {
    struct state s;
    struct card *card;
    int code = enter_card(&s, slot, "DeviceGetMemoryInfo", &card);
    if (code)
        return code;
    out->total = card->total;
    out->used = card->used + card->reserved;
    out->free = out->total - out->used;
    return OK;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetMemoryInfo_v2(struct slot *slot, struct memory_v2 *out) {
    struct state s;
    struct card *card;
    int code = enter_card(&s, slot, "DeviceGetMemoryInfo_v2", &card);
    if (code)
        return code;
    if (out->version != MEMORY_V2)
        return VERSION;
    out->total = card->total;
    out->used = card->used;
    out->reserved = card->reserved;
    out->free = out->total - out->used - out->reserved;
    return OK;
}

int nvmlDeviceGetPciInfo_v3(struct slot *slot, struct pci *out) {
    struct state s;
    struct card *card;
    int code = enter_card(&s, slot, "DeviceGetPciInfo", &card);
    if (code)
        return code;
    memset(out, 0, sizeof *out);
    sscanf(card->bus, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    return put(card->bus, out->bus_id, sizeof out->bus_id);
}

int nvmlDeviceGetMigMode(struct slot *slot, unsigned *current, unsigned *pending) {
    struct state s;
    struct card *card;
    int code = enter_card(&s, slot, "DeviceGetMigMode", &card);
    if (!code)
        *current = *pending = card->mig;
    return code;
}
#endif

int nvmlEventSetCreate(struct set **out) {
    struct state s;
    int code = enter(&s, "*", "EventSetCreate");
    if (code)
        return code;
    *out = calloc(1, sizeof **out);
    /* What happened before nobody waited for is never told. */
    for (int i = 0; i < s.events; i++)
        if (s.event[i].number > (*out)->told)
            (*out)->told = s.event[i].number;
    return OK;
}

int nvmlDeviceRegisterEvents(struct slot *slot, unsigned long long types,
                             struct set *set) {
    struct state s;
    struct card *card;
    int code = enter_card(&s, slot, "DeviceRegisterEvents", &card);
    (void)types;
    if (code)
        return code;
    pthread_mutex_lock(&lock);
    if (set->count < MOST)
        set->card[set->count++] = slot;
    pthread_mutex_unlock(&lock);
    return OK;
}

static int wanted(const struct set *set, const struct event *e, struct event_out *out) {
    memset(out, 0, sizeof *out);
    out->type = XID_EVENT;
    out->xid = e->xid;
    if (e->number <= set->told)
        return 0;
    if (!strcmp(e->uuid, "-"))
        return 1;
    for (int i = 0; i < set->count; i++)
        if (!strcmp(set->card[i]->uuid, e->uuid)) {
            out->card = set->card[i];
            return 1;
        }
    return 0;
}

int nvmlEventSetWait_v2(struct set *set, struct event_out *out, unsigned timeout_ms) {
    struct state s;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    long long end = t.tv_sec * 1000LL + t.tv_nsec / 1000000 + timeout_ms;
    for (;;) {
        int code = enter(&s, "*", "EventSetWait");
        if (code)
            return code;
        for (int i = 0; i < s.events; i++)
            if (wanted(set, &s.event[i], out)) {
                set->told = s.event[i].number;
                return OK;
            }
        clock_gettime(CLOCK_MONOTONIC, &t);
        if (t.tv_sec * 1000LL + t.tv_nsec / 1000000 >= end)
            return TIMEOUT;
        nap();
    }
}

int nvmlEventSetFree(struct set *set) {
    free(set);
    return OK;
}
