/* libnvidia-ml.so.1 without a driver: the calls that pynvml makes for us, answered from
   the file that NVML_STUB_FILE names (state.h). With -DMIDDLE_DRIVER the symbols that
   came after 470 are missing, with -DOLD_DRIVER those that came with 450 as well. Codes
   and layouts are NVML's own. Here: the driver, and what does not change of a card. */
#include <pthread.h>

#include "stub.h"

#define MEMORY_V2 0x02000028u

struct pci { char legacy[16]; unsigned domain, bus, device, id, sub; char bus_id[32]; };
struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct slot slots[4096];
static int used_slots, opened, openings, library = -1;
/* What the library has while it is open: the last shutdown frees it, and a call that
   hung comes back to it. */
static struct opening { int load; } *opening;
static unsigned long long calls;

static struct state *current;
static char parsed[1 << 18], fresh[1 << 18];
static size_t parsed_length;

void stub_nap(int ms) {
    struct timespec moment = {0, ms * 1000 * 1000};
    nanosleep(&moment, NULL);
}

/* Parse the file only where it changed: a call must not take longer than a real one. */
static struct state *hold(void) {
    pthread_mutex_lock(&lock);
    size_t length = state_text(getenv("NVML_STUB_FILE"), fresh, sizeof fresh);
    if (!current || length != parsed_length || memcmp(parsed, fresh, length)) {
        if (current && !current->users)
            free(current);
        memcpy(parsed, fresh, length + 1);
        parsed_length = length;
        current = malloc(sizeof *current);
        state_parse(current, parsed);
    }
    struct state *s = current;
    s->users++;
    pthread_mutex_unlock(&lock);
    return s;
}

void stub_let(struct state **s) {
    if (!*s)
        return;
    pthread_mutex_lock(&lock);
    if (!--(*s)->users && *s != current)
        free(*s);
    pthread_mutex_unlock(&lock);
    *s = NULL;
}

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

/* Give whether it hung. */
static int read_on(struct state **s, const char *uuid, const char *function) {
    int hung = 0;
    for (*s = hold(); hangs(*s, uuid, function); *s = hold()) {
        stub_let(s);
        stub_nap(5);
        hung = 1;
    }
    return hung;
}

static struct opening *as_opened(void) {
    pthread_mutex_lock(&lock);
    struct opening *o = opening;
    pthread_mutex_unlock(&lock);
    return o;
}

static int opened_load(void) {
    pthread_mutex_lock(&lock);
    int load = opening ? opening->load : -1;
    pthread_mutex_unlock(&lock);
    return load;
}

int stub_failure(const struct state *s, const char *uuid, const char *function) {
    for (int i = 0; i < s->fails; i++)
        if (is_for(&s->fail[i], uuid, function))
            return s->fail[i].code;
    return OK;
}

int stub_failure_of(const struct state *s, const char *uuid, const char *part,
                    unsigned number) {
    char name[WORD];
    snprintf(name, sizeof name, "%s/%u", part, number);
    return stub_failure(s, uuid, name);
}

int stub_enter(struct state **s, const char *uuid, const char *function) {
    __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
    struct opening *o = as_opened();
    if (read_on(s, uuid, function) && o && o->load < 0)
        return UNINITIALIZED;
    if ((*s)->load != opened_load())
        return UNINITIALIZED;
    if ((*s)->init)
        return (*s)->init;
    return stub_failure(*s, uuid, function);
}

int stub_lost(const struct state *s, struct slot *slot) {
    for (int i = 0; i < s->losses; i++)
        if (!strcmp(s->lost[i].uuid, slot->uuid))
            slot->lost_in = openings;
    return slot->lost_in == openings;
}

int stub_enter_card(struct state **s, struct slot *slot, const char *function,
                    struct card **card) {
    if (slot < slots || slot >= slots + used_slots)
        return INVALID;
    int code = stub_enter(s, slot->uuid, function);
    if (code)
        return code;
    if (stub_lost(*s, slot))
        return LOST;
    int place = state_card(*s, slot->uuid);
    if (place < 0)
        /* The handle of an instance that was destroyed is stale. */
        return strncmp(slot->uuid, "MIG-", 4) ? LOST : INVALID;
    *card = &(*s)->card[place];
    return OK;
}

struct slot *stub_slot(const char *uuid) {
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

#pragma GCC visibility push(default)

/* Not NVML's: how many calls this process has made. */
unsigned long long nvmlStubCalls(void) { return calls; }

int nvmlInitWithFlags(unsigned flags) {
    HOLD(s);
    (void)flags;
    __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
    read_on(&s, "*", "Init");
    if (s->init)
        return s->init;
    if (library < 0)
        library = s->upgrade;
    if (library != s->upgrade)
        return MISMATCH;
    pthread_mutex_lock(&lock);
    if (!opened++)
        opening = malloc(sizeof *opening);
    openings++;
    opening->load = s->load;
    pthread_mutex_unlock(&lock);
    return OK;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    HOLD(s);
    read_on(&s, "*", "Shutdown");
    pthread_mutex_lock(&lock);
    int code = opened ? OK : UNINITIALIZED;
    opened -= opened > 0;
    if (!opened) {
        free(opening);
        opening = NULL;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

const char *nvmlErrorString(int code) {
    return code == OK ? "Success" : code == LOST ? "GPU is lost" : "Stub Error";
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    HOLD(s);
    int code = stub_enter(&s, "*", "SystemGetDriverVersion");
    return code ? code : put(s->version, out, size);
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    HOLD(s);
    int code = stub_enter(&s, "*", "DeviceGetCount");
    *count = 0;
    for (int i = 0; i < s->cards; i++)
        *count += s->card[i].parent < 0;
    return code ? code : s->count_code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct slot **out) {
    HOLD(s);
    s = hold();
    int i = 0;
    /* Instances are not in this list. */
    for (unsigned before = 0; i < s->cards; i++)
        if (s->card[i].parent < 0 && before++ == index)
            break;
    if (i == s->cards)
        return INVALID;
    char uuid[WORD];
    strcpy(uuid, s->card[i].uuid);
    stub_let(&s);
    *out = stub_slot(uuid);
    return stub_enter(&s, uuid, "DeviceGetHandleByIndex");
}

int nvmlDeviceGetHandleByUUID(const char *uuid, struct slot **out) {
    HOLD(s);
    int code = stub_enter(&s, uuid, "DeviceGetHandleByUUID");
    if (code)
        return code;
    for (int i = 0; i < s->cards; i++)
        if (!strcmp(s->card[i].uuid, uuid)) {
            *out = stub_slot(uuid);
            return OK;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(struct slot *slot, char *out, unsigned size) {
    ENTER(s, card, slot, "DeviceGetUUID");
    return put(card->uuid, out, size);
}

int nvmlDeviceGetName(struct slot *slot, char *out, unsigned size) {
    ENTER(s, card, slot, "DeviceGetName");
    return put(card->model, out, size);
}

int nvmlDeviceGetMinorNumber(struct slot *slot, unsigned *minor) {
    ENTER(s, card, slot, "DeviceGetMinorNumber");
    *minor = card->minor;
    return OK;
}

/* As drivers from 510 on: what the driver keeps counts as used here. */
int nvmlDeviceGetMemoryInfo(struct slot *slot, struct memory *out) {
    ENTER(s, card, slot, "DeviceGetMemoryInfo");
    out->total = card->total;
    out->used = card->used + card->reserved;
    out->free = out->total - out->used;
    return OK;
}

#if !defined OLD_DRIVER && !defined MIDDLE_DRIVER
int nvmlDeviceGetMemoryInfo_v2(struct slot *slot, struct memory_v2 *out) {
    ENTER(s, card, slot, "DeviceGetMemoryInfo_v2");
    if (out->version != MEMORY_V2)
        return VERSION;
    out->total = card->total;
    out->used = card->used;
    out->reserved = card->reserved;
    out->free = out->total - out->used - out->reserved;
    return OK;
}
#endif

#ifndef OLD_DRIVER
int nvmlDeviceGetPciInfo_v3(struct slot *slot, struct pci *out) {
    ENTER(s, card, slot, "DeviceGetPciInfo");
    memset(out, 0, sizeof *out);
    sscanf(card->bus, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    return put(card->bus, out->bus_id, sizeof out->bus_id);
}

int nvmlDeviceGetMigMode(struct slot *slot, unsigned *now, unsigned *pending) {
    ENTER(s, card, slot, "DeviceGetMigMode");
    if (card->parent >= 0)
        return NOT_SUPPORTED;
    *now = *pending = card->mig;
    return OK;
}
#endif
