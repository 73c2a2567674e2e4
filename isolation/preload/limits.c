/* The file has one line for its form, and one for each card:

     vcuda-limits 1
     card GPU-9f12f917-e458-4bb8-3d9d-8dc7fd6cddf7 5120      MiB, or "whole"

   One card with a number is a share of that card. All cards "whole" is no limit.
   Anything else is an error, because a limit that is misread is worse than none. */
#include "limits.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define FORM "vcuda-limits 1\n"
#define MOST_MIB (1ULL << 40)

/* Not strtoull, which a C library from 2.38 on gives a new symbol version. */
static int number(const char *text, uint64_t *out) {
    uint64_t value = 0;
    if (!*text)
        return 0;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || value > MOST_MIB)
            return 0;
        value = value * 10 + (uint64_t)(*text - '0');
    }
    *out = value;
    return value > 0 && value <= MOST_MIB;
}

static const char *card(char *line, struct limits *limits, int *cards) {
    if (strncmp(line, "card ", 5))
        return "a line is not \"card UUID MIB\"";
    char *uuid = line + 5, *amount = strchr(uuid, ' ');
    if (!amount || amount == uuid || (size_t)(amount - uuid) >= sizeof limits->uuid)
        return "a line is not \"card UUID MIB\"";
    *amount++ = 0;
    uint64_t mib = 0;
    int whole = !strcmp(amount, "whole");
    if (!whole && !number(amount, &mib))
        return "the memory of a card is neither MiB nor \"whole\"";
    if ((*cards)++ && !(whole && limits->unlimited))
        return "a container with a share has one card";
    limits->unlimited = whole;
    limits->bytes = mib << 20;
    strcpy(limits->uuid, uuid);
    return NULL;
}

const char *limits_read(struct limits *limits) {
    char text[8192];
    size_t length = 0;
    int file = open(VCUDA_LIMITS, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return "it cannot be opened";
    for (ssize_t got = 1; got > 0 && length < sizeof text - 1; length += (size_t)got)
        if ((got = read(file, text + length, sizeof text - 1 - length)) < 0) {
            close(file);
            return "it cannot be read";
        }
    close(file);
    text[length] = 0;
    if (length == sizeof text - 1 || strlen(text) != length)
        return "it is too long, or no text";
    if (strncmp(text, FORM, sizeof FORM - 1))
        return "its first line is not \"vcuda-limits 1\"";
    int cards = 0;
    for (char *line = text + sizeof FORM - 1; *line;) {
        char *end = strchr(line, '\n');
        if (!end)
            return "its last line is cut short";
        *end = 0;
        const char *wrong = card(line, limits, &cards);
        if (wrong)
            return wrong;
        line = end + 1;
    }
    return cards ? NULL : "it names no card";
}
