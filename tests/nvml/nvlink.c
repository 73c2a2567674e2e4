/* How cards are joined: what they share of PCIe, and their NVLinks. As with a card that
   has none, a link that the file does not name is not supported. */
#include "stub.h"

#define MOST_LINKS 36

struct pci { char legacy[16]; unsigned domain, bus, device, id, sub; char bus_id[32]; };

/* An instance is answered for by its card. */
static const char *physical(const struct state *s, const struct slot *slot) {
    int i = state_card(s, slot->uuid);
    return i < 0 || s->card[i].parent < 0 ? slot->uuid : s->card[s->card[i].parent].uuid;
}

#pragma GCC visibility push(default)

int nvmlDeviceGetTopologyCommonAncestor(struct slot *slot, struct slot *other,
                                        unsigned *level) {
    ENTER(s, card, slot, "DeviceGetTopologyCommonAncestor");
    const char *a = physical(s, slot), *b = physical(s, other);
    for (int i = 0; i < s->joints; i++) {
        const struct joint *j = &s->joint[i];
        if ((!strcmp(j->a, a) && !strcmp(j->b, b)) ||
            (!strcmp(j->b, a) && !strcmp(j->a, b))) {
            *level = j->level;
            return OK;
        }
    }
    return NOT_SUPPORTED;
}

static int wire(const struct state *s, const struct slot *slot, unsigned number,
                const struct wire **out) {
    if (number >= MOST_LINKS)
        return INVALID;
    for (int i = 0; i < s->wires; i++)
        if (!strcmp(s->wire[i].uuid, physical(s, slot)) && s->wire[i].number == number) {
            *out = &s->wire[i];
            return OK;
        }
    return NOT_SUPPORTED;
}

int nvmlDeviceGetNvLinkState(struct slot *slot, unsigned number, unsigned *active) {
    ENTER(s, card, slot, "DeviceGetNvLinkState");
    const struct wire *w = NULL;
    if (!(code = wire(s, slot, number, &w)))
        *active = strcmp(w->to, "down") != 0;
    return code;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(struct slot *slot, unsigned number,
                                        struct pci *out) {
    ENTER(s, card, slot, "DeviceGetNvLinkRemotePciInfo");
    const struct wire *w = NULL;
    if ((code = wire(s, slot, number, &w)))
        return code;
    memset(out, 0, sizeof *out);
    sscanf(w->to, "%31s", out->bus_id);
    return OK;
}

#ifndef OLD_DRIVER
/* 0 is a card, 2 a switch. */
int nvmlDeviceGetNvLinkRemoteDeviceType(struct slot *slot, unsigned number,
                                        unsigned *type) {
    ENTER(s, card, slot, "DeviceGetNvLinkRemoteDeviceType");
    const struct wire *w = NULL;
    if (!(code = wire(s, slot, number, &w)))
        *type = w->type;
    return code;
}
#endif
