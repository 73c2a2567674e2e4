/* What the parts of the stub share: handles, codes, and the way into each call. */
#ifndef STUB_H
#define STUB_H

#include <time.h>

#include "state.h"

enum {
    OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4,
    NOT_FOUND = 6, SMALL = 7, TIMEOUT = 10, LOST = 15, MISMATCH = 18, VERSION = 25
};

struct slot { char uuid[WORD]; int lost_in; };

/* A state as it was read; it is let go of at the end of the block. */
#define HOLD(s) struct state *s __attribute__((cleanup(stub_let))) = NULL

void stub_let(struct state **s);
void stub_nap(int ms);

/* Read the file, stay while it says "hang", and give what it says of this call. */
int stub_enter(struct state **s, const char *uuid, const char *function);
int stub_enter_card(struct state **s, struct slot *slot, const char *function,
                    struct card **card);

/* What the file says of a call, and of one part of its answer: "FieldValue/82". */
int stub_failure(const struct state *s, const char *uuid, const char *function);
/* Whether a card is lost to this opening of the driver. */
int stub_lost(const struct state *s, struct slot *slot);
/* The handle of a card or an instance; NULL if there are too many. */
struct slot *stub_slot(const char *uuid);
int stub_failure_of(const struct state *s, const char *uuid, const char *part,
                    unsigned number);

#define ENTER(s, card, slot, function)                                                 \
    HOLD(s);                                                                           \
    struct card *card = NULL;                                                          \
    int code = stub_enter_card(&s, slot, function, &card);                             \
    if (code)                                                                          \
        return code

/* Give a value, all ones for "inf", or leave with NOT_SUPPORTED. */
#define TELL(out, known)                                                               \
    do {                                                                               \
        double told = (known);                                                         \
        if (told != told)                                                              \
            return NOT_SUPPORTED;                                                      \
        *(out) = (__typeof__(*(out)))(told > 1e300 ? ~0ULL : (unsigned long long)told);\
    } while (0)

#endif
