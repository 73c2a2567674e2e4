/* The driving file of the stub: what the driver and its cards are to say just now.

   One fact a line; a test writes the file anew, and each call reads it again:

     load 2                                    which loading of the driver this is
     init 9                                    what nvmlInit says; else 0
     count 999                                 what nvmlDeviceGetCount says; else 0
     card UUID TOTAL RESERVED USED BUS MINOR MIG MODEL...      amounts in bytes
     fail UUID|* FUNCTION|* CODE               FUNCTION without "nvml"
     hang UUID|* FUNCTION|*
     event NUMBER UUID|- XID                   NUMBER grows; each is told once
*/
#ifndef STATE_H
#define STATE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 64
#define WORD 96

struct card {
    char uuid[WORD], bus[WORD], model[WORD];
    unsigned long long total, reserved, used;
    unsigned minor, mig;
};
struct rule { char uuid[WORD], function[WORD]; int code; };
struct event { unsigned long long number, xid; char uuid[WORD]; };

struct state {
    int load, init, count_code;
    int cards, fails, hangs, events;
    struct card card[MOST];
    struct rule fail[MOST], hang[MOST];
    struct event event[MOST];
};

static void state_line(struct state *s, const char *line) {
    struct card c;
    struct rule r;
    struct event e;
    memset(&c, 0, sizeof c);
    memset(&r, 0, sizeof r);
    memset(&e, 0, sizeof e);
    sscanf(line, "load %d", &s->load);
    sscanf(line, "init %d", &s->init);
    sscanf(line, "count %d", &s->count_code);
    if (s->cards < MOST &&
        sscanf(line, "card %95s %llu %llu %llu %95s %u %u %95[^\n]", c.uuid, &c.total,
               &c.reserved, &c.used, c.bus, &c.minor, &c.mig, c.model) >= 7)
        s->card[s->cards++] = c;
    if (s->fails < MOST &&
        sscanf(line, "fail %95s %95s %d", r.uuid, r.function, &r.code) == 3)
        s->fail[s->fails++] = r;
    if (s->hangs < MOST && sscanf(line, "hang %95s %95s", r.uuid, r.function) == 2)
        s->hang[s->hangs++] = r;
    if (s->events < MOST &&
        sscanf(line, "event %llu %95s %llu", &e.number, e.uuid, &e.xid) == 3)
        s->event[s->events++] = e;
}

/* Without a file there is no driver. */
static void state_read(struct state *s, const char *path) {
    char line[1024];
    FILE *file = path ? fopen(path, "r") : NULL;
    memset(s, 0, sizeof *s);
    if (!file) {
        s->init = 9;
        return;
    }
    while (fgets(line, sizeof line, file))
        state_line(s, line);
    fclose(file);
}

#endif
