/* The file has two lines, its form and the share of the container's one card in MiB, with
   the MiB that are counted for the context of each process:

     vcuda-limits 2
     card GPU-9f12f917-e458-4bb8-3d9d-8dc7fd6cddf7 5120 256

   Form 1 has no number for contexts. Anything else is an error, because a limit that is
   misread is worse than none. */
#include "limits.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define FORM_1 "vcuda-limits 1\ncard "
#define FORM_2 "vcuda-limits 2\ncard "
#define MOST_MIB (1ULL << 40)

/* Not strtoull, which a C library from 2.38 on gives a new symbol version. */
int limits_number(const char *text, uint64_t *out) {
    uint64_t value = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9' && value <= MOST_MIB; at++)
        value = value * 10 + (uint64_t)(*at - '0');
    *out = value;
    return at != text && !*at && value <= MOST_MIB;
}

const char *limits_read(struct limits *limits) {
    char text[256];
    int file = open(VCUDA_LIMITS, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return "it cannot be opened";
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length < 0)
        return "it cannot be read";
    text[length] = 0;
    int form = !strncmp(text, FORM_1, sizeof FORM_1 - 1)   ? 1
               : !strncmp(text, FORM_2, sizeof FORM_2 - 1) ? 2
                                                           : 0;
    if (!form)
        return "it does not begin with \"vcuda-limits\", 1 or 2, and a card";
    char *uuid = text + sizeof FORM_1 - 1, *end = strchr(uuid, '\n');
    if (!end || end != text + length - 1)
        return "it does not end with the line of its first card";
    *end = 0;
    char *amount = strchr(uuid, ' '), *context = NULL;
    if (form == 2 && amount && (context = strchr(amount + 1, ' ')))
        *context++ = 0;
    uint64_t mib, context_mib = 0;
    if (!amount || amount == uuid || (size_t)(amount - uuid) >= sizeof limits->uuid ||
        !limits_number(amount + 1, &mib) ||
        (form == 2 && (!context || !limits_number(context, &context_mib))))
        return form == 1 ? "its second line is not \"card UUID MIB\""
                         : "its second line is not \"card UUID MIB MIB\"";
    *amount = 0;
    strcpy(limits->uuid, uuid);
    limits->bytes = mib << 20;
    limits->context_bytes = context_mib << 20;
    return NULL;
}
