/* Ask for each function of the driver, at each version of CUDA and for each kind of stream,
   and print where the answer is not the driver's own: the function's name in the driver,
   and the name of what is given instead. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef int ask(const char *, void **, int, unsigned long long, int *);

int main(int argc, char **argv) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    size_t (*functions)(void) = dlsym(driver, "standin_functions");
    const char *(*base)(size_t) = dlsym(driver, "standin_base");
    int (*since)(size_t) = dlsym(driver, "standin_since");
    const char *(*name)(const void *) = dlsym(driver, "standin_name");
    ask *real = (ask *)dlsym(driver, "standin_ask"), *hooked;
    hooked = (ask *)dlsym(driver, "cuGetProcAddress_v2");
    if (argc > 1)
        ((void (*)(int))dlsym(driver, "standin_newest"))(atoi(argv[1]));
    long asked = 0;
    for (size_t i = 0; i < functions(); i++)
        for (size_t j = 0; j < functions(); j++) {
            int version = since(j), seen = 0;
            for (size_t k = 0; k < j; k++)
                seen |= since(k) == version;
            for (unsigned long long flags = 0; !seen && flags <= 2; flags++) {
                void *own = NULL, *given = NULL;
                Dl_info info = {0};
                int first = real(base(i), &own, version, flags, NULL);
                int second = hooked(base(i), &given, version, flags, NULL);
                asked++;
                if (first == second && own == given)
                    continue;
                if (given)
                    dladdr(given, &info);
                printf("%s %s\n", name(own), given ? info.dli_sname : "refused");
            }
        }
    printf("asked %ld\n", asked);
    return 0;
}
