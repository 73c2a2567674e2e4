/* The driving file of the stub: what the driver and its cards are to say just now.

   One fact a line; a test writes the file anew, and each call reads it again:

     load 2                                    which loading of the driver this is
     version 550.54.15                         the driver's
     init 9                                    what nvmlInit says; else 0
     count 999                                 what nvmlDeviceGetCount says; else 0
     card UUID TOTAL RESERVED USED BUS MINOR MIG MODEL...      amounts in bytes
     fail UUID|* FUNCTION|* CODE               FUNCTION without "nvml", or a part of an
                                               answer: FieldValue/ID, GpmMetric/ID
     hang UUID|* FUNCTION|*
     lost UUID                                 off the bus: who asks once finds it again
                                               only after opening the driver anew
     upgrade NUMBER                            another driver than the library of a
                                               process that opened it before belongs to
     event NUMBER UUID|- XID                   NUMBER grows; each is told once

   and after the cards that they are about:

     instance UUID CARD PLACE GI CI SLICES TOTAL RESERVED USED MODEL...
                                               of a card in MIG mode, at this place of
                                               its list; what is said of cards below can
                                               be said of an instance, too
     value UUID|* NAME NUMBER|-|inf            a name of VALUES; "-" is not supported,
                                               "inf" NVML's all ones
     process UUID compute|graphics|mps PID BYTES|-
     busy UUID PID SM MEMORY ENCODER DECODER   it works: always a fresh sample
     sample UUID TIME PID SM MEMORY ENCODER DECODER            one old entry, TIME in us
     joint UUID UUID LEVEL                     the nearest part of PCIe above both, as
                                               NVML numbers it
     wire UUID NUMBER BUS|down TYPE            an NVLink: what is at the other end, where,
                                               and of which kind as NVML numbers it
*/
#ifndef STATE_H
#define STATE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 64
#define MANY 2048
#define WORD 96
#define ABSENT __builtin_nan("")

/* What a card tells, and what of it where nobody said anything. */
#define VALUES(X)                                                                      \
    X(gpu_util, 0) X(memory_util, 0) X(encoder, 0) X(decoder, 0)                       \
    X(temperature, 35) X(memory_temperature, ABSENT) X(power, 20000) X(energy, 1000)   \
    X(sm_clock, 300) X(memory_clock, 405)                                              \
    X(power_violation, 0) X(thermal_violation, 0)                                      \
    X(pcie_replay, 0) X(pcie_tx, 0) X(pcie_rx, 0)                                      \
    X(ecc_sbe_volatile, 0) X(ecc_dbe_volatile, 0)                                      \
    X(ecc_sbe_aggregate, 0) X(ecc_dbe_aggregate, 0)                                    \
    X(rows_correctable, 0) X(rows_uncorrectable, 0) X(rows_pending, 0)                 \
    X(rows_failure, 0) X(retired_sbe, 0) X(retired_dbe, 0) X(retired_pending, 0)       \
    X(nvlink_tx, ABSENT) X(nvlink_rx, ABSENT) X(license, 0)                            \
    X(gpm, 0) X(gpm_graphics, 0) X(gpm_sm, 0) X(gpm_occupancy, 0) X(gpm_tensor, 0)     \
    X(gpm_dram, 0) X(gpm_pcie_tx, 0) X(gpm_pcie_rx, 0)                                 \
    X(ring_garbage, 0) X(idle_is_success, 0) X(blind_samples, 0) X(blind_info, 0)

#define PLACE(name, idle) V_##name,
enum { VALUES(PLACE) V_COUNT };
#undef PLACE
enum kind { COMPUTE, GRAPHICS, MPS };

struct card {
    char uuid[WORD], bus[WORD], model[WORD];
    unsigned long long total, reserved, used;
    unsigned minor, mig;
    double value[V_COUNT];
    /* Of an instance; the parent of a whole card is -1. */
    int parent;
    unsigned place, gi, ci, slices;
};
struct rule { char uuid[WORD], function[WORD]; int code; };
struct event { unsigned long long number, xid; char uuid[WORD]; };
struct process { int card, kind; unsigned pid; unsigned long long bytes; };
struct work { int card; unsigned pid, sm, memory, encoder, decoder; };
struct entry { unsigned long long time; struct work work; };
struct joint { char a[WORD], b[WORD]; unsigned level; };
struct wire { char uuid[WORD], to[WORD]; unsigned number, type; };

struct state {
    int load, init, count_code, upgrade, users;
    int cards, fails, hangs, losses, events, processes, works, entries;
    int joints, wires;
    char version[WORD];
    struct card card[MOST];
    struct rule fail[MOST], hang[MOST], lost[MOST];
    struct event event[MOST];
    struct process process[MANY];
    struct work work[MANY];
    struct entry entry[MANY];
    struct joint joint[MANY];
    struct wire wire[MANY];
};

static inline int state_card(const struct state *s, const char *uuid) {
    for (int i = 0; i < s->cards; i++)
        if (!strcmp(s->card[i].uuid, uuid))
            return i;
    return -1;
}

static inline void state_add_card(struct state *s, const char *line) {
#define IDLE(name, idle) idle,
    static const double idle[] = {VALUES(IDLE)};
#undef IDLE
    struct card *c = &s->card[s->cards];
    if (s->cards < MOST &&
        sscanf(line, "card %95s %llu %llu %llu %95s %u %u %95[^\n]", c->uuid, &c->total,
               &c->reserved, &c->used, c->bus, &c->minor, &c->mig, c->model) >= 7) {
        memcpy(c->value, idle, sizeof idle);
        c->parent = -1;
        s->cards++;
    }
}

/* It tells nothing of itself at work but its memory and its processes. */
static inline void state_add_instance(struct state *s, const char *line) {
    char parent[WORD];
    struct card *c = &s->card[s->cards];
    if (s->cards == MOST ||
        sscanf(line, "instance %95s %95s %u %u %u %u %llu %llu %llu %95[^\n]", c->uuid,
               parent, &c->place, &c->gi, &c->ci, &c->slices, &c->total, &c->reserved,
               &c->used, c->model) != 10 ||
        (c->parent = state_card(s, parent)) < 0)
        return;
    for (int v = 0; v < V_license; v++)
        c->value[v] = ABSENT;
    strcpy(c->bus, s->card[c->parent].bus);
    c->minor = s->card[c->parent].minor;
    s->cards++;
}

static inline void state_set_value(struct state *s, const char *line) {
#define NAME(name, idle) #name,
    static const char *const names[] = {VALUES(NAME)};
#undef NAME
    char uuid[WORD], name[WORD], number[WORD];
    if (sscanf(line, "value %95s %95s %95s", uuid, name, number) != 3)
        return;
    for (int i = 0; i < s->cards; i++)
        for (int v = 0; v < V_COUNT; v++)
            if ((strcmp(uuid, "*") ? !strcmp(uuid, s->card[i].uuid)
                                   : s->card[i].parent < 0) &&
                !strcmp(names[v], name))
                s->card[i].value[v] = strcmp(number, "-") ? atof(number) : ABSENT;
}

static inline void state_add_process(struct state *s, const char *line) {
    char uuid[WORD], kind[WORD], bytes[WORD];
    struct process *p = &s->process[s->processes];
    if (s->processes == MANY ||
        sscanf(line, "process %95s %95s %u %95s", uuid, kind, &p->pid, bytes) != 4)
        return;
    p->card = state_card(s, uuid);
    p->kind = !strcmp(kind, "mps") ? MPS : !strcmp(kind, "graphics") ? GRAPHICS : COMPUTE;
    /* All ones is NVML's own word for an amount that it cannot tell. */
    p->bytes = strcmp(bytes, "-") ? strtoull(bytes, NULL, 10) : ~0ULL;
    s->processes += p->card >= 0;
}

static inline void state_add_work(struct state *s, const char *line) {
    char uuid[WORD];
    struct work w;
    unsigned long long time = 0;
    if (sscanf(line, "busy %95s %u %u %u %u %u", uuid, &w.pid, &w.sm, &w.memory,
               &w.encoder, &w.decoder) != 6 &&
        sscanf(line, "sample %95s %llu %u %u %u %u %u", uuid, &time, &w.pid, &w.sm,
               &w.memory, &w.encoder, &w.decoder) != 7)
        return;
    if ((w.card = state_card(s, uuid)) < 0)
        return;
    if (!time && s->works < MANY)
        s->work[s->works++] = w;
    if (time && s->entries < MANY)
        s->entry[s->entries++] = (struct entry){time, w};
}

static inline void state_add_rule(struct state *s, const char *line) {
    struct rule *f = &s->fail[s->fails], *h = &s->hang[s->hangs];
    struct event *e = &s->event[s->events];
    if (s->fails < MOST &&
        sscanf(line, "fail %95s %95s %d", f->uuid, f->function, &f->code) == 3)
        s->fails++;
    if (s->hangs < MOST && sscanf(line, "hang %95s %95s", h->uuid, h->function) == 2)
        s->hangs++;
    if (s->losses < MOST && sscanf(line, "lost %95s", s->lost[s->losses].uuid) == 1)
        s->losses++;
    if (s->events < MOST &&
        sscanf(line, "event %llu %95s %llu", &e->number, e->uuid, &e->xid) == 3)
        s->events++;
}

static inline void state_add_joint(struct state *s, const char *line) {
    struct joint *j = &s->joint[s->joints];
    if (s->joints < MANY &&
        sscanf(line, "joint %95s %95s %u", j->a, j->b, &j->level) == 3)
        s->joints++;
}

static inline void state_add_wire(struct state *s, const char *line) {
    struct wire *w = &s->wire[s->wires];
    if (s->wires < MANY &&
        sscanf(line, "wire %95s %u %95s %u", w->uuid, &w->number, w->to, &w->type) == 4)
        s->wires++;
}

static inline void state_line(struct state *s, const char *line) {
    switch (line[0]) {
    case 'c':
        sscanf(line, "count %d", &s->count_code);
        state_add_card(s, line);
        break;
    case 'v':
        sscanf(line, "version %95s", s->version);
        state_set_value(s, line);
        break;
    case 'p':
        state_add_process(s, line);
        break;
    case 'i':
        sscanf(line, "init %d", &s->init);
        state_add_instance(s, line);
        break;
    case 'j':
        state_add_joint(s, line);
        break;
    case 'w':
        state_add_wire(s, line);
        break;
    case 'b':
    case 's':
        state_add_work(s, line);
        break;
    default:
        sscanf(line, "load %d", &s->load);
        sscanf(line, "upgrade %d", &s->upgrade);
        state_add_rule(s, line);
    }
}

/* Text must end with a null byte. */
static inline void state_parse(struct state *s, const char *text) {
    char line[1024];
    memset(s, 0, sizeof *s);
    while (*text) {
        size_t length = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", (int)length, text);
        state_line(s, line);
        text += length + (text[length] == '\n');
    }
}

/* Give the bytes read; without a file there is no driver. */
static inline size_t state_text(const char *path, char *out, size_t size) {
    FILE *file = path ? fopen(path, "r") : NULL;
    size_t length = 0;
    if (file) {
        setvbuf(file, NULL, _IONBF, 0);
        length = fread(out, 1, size - 1, file);
        fclose(file);
    } else
        length = snprintf(out, size, "init 9\n");
    out[length] = 0;
    return length;
}

#endif
