/* nvidia-smi -L for containers: static, so that any image can run it.

   It lists a card only where the injection itself put something into the container: the
   card's device node /dev/nvidia<minor>, or the marker /run/nvidia-stub/cards/<uuid>.
   No environment variable counts, since a user could set it. "--every" lists all, for
   the node itself, where nothing is injected. */
#include <unistd.h>

#include "state.h"

#define FOLDER "/run/nvidia-stub"
#define INSIDE FOLDER "/state/driver"

static int visible(const struct card *card) {
    char node[WORD], marker[2 * WORD];
    snprintf(node, sizeof node, "/dev/nvidia%u", card->minor);
    snprintf(marker, sizeof marker, FOLDER "/cards/%s", card->uuid);
    return !access(node, F_OK) || !access(marker, F_OK);
}

int main(int argc, char **argv) {
    static struct state s;
    static char text[1 << 18];
    int list = 0, every = 0, number = 0;
    for (int i = 1; i < argc; i++) {
        list |= !strcmp(argv[i], "-L") || !strcmp(argv[i], "--list-gpus");
        every |= !strcmp(argv[i], "--every");
    }
    if (!list) {
        fprintf(stderr, "only nvidia-smi -L is played here\n");
        return 2;
    }
    state_text(access(INSIDE, F_OK) ? getenv("NVML_STUB_FILE") : INSIDE, text,
               sizeof text);
    state_parse(&s, text);
    if (s.init) {
        printf("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA "
               "driver. Make sure that the latest NVIDIA driver is installed and "
               "running.\n\n");
        return 9;
    }
    for (int i = 0; i < s.cards; i++)
        if (every || visible(&s.card[i]))
            printf("GPU %d: %s (UUID: %s)\n", number++, s.card[i].model,
                   s.card[i].uuid);
    if (number)
        return 0;
    printf("No devices were found\n");
    return 6;
}
