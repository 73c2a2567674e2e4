/* The ways by which a program reaches a function of the driver: the dynamic linker finds
   ours first, because the library is preloaded; dlsym and cuGetProcAddress are asked for
   them by name. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#include "driver.h"
#include "versions.h"

struct hook {
    const char *name, *base;
    int since, per_thread;
    void *ours;
};

#define ROW(result, name, base, since, per_thread, parameters)                           \
    {#name, #base, since, per_thread, (void *)name},
static const struct hook hooks[] = {HOOKS(ROW)};

#define NAME_OF_HOOK(result, name, base, since, per_thread, parameters) #name,
#define NAME_OF_CALL(result, name, parameters) #name,
static const char *const names[] = {HOOKS(NAME_OF_HOOK) CALLS(NAME_OF_CALL)};

typedef void *find_symbol(void *library, const char *name);

/* Read by the assembly below, after `vcuda_replacement` has filled it. */
__attribute__((visibility("hidden"))) find_symbol *vcuda_next_dlsym;

/* Not under a sanitizer, which calls dlsym before it can be called itself. */
#define FROM_THE_START __attribute__((no_sanitize("thread", "address", "undefined")))

FROM_THE_START static find_symbol *next_dlsym(void) {
    find_symbol *next = __atomic_load_n(&vcuda_next_dlsym, __ATOMIC_ACQUIRE);
    if (!next) {
        next = (find_symbol *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
        __atomic_store_n(&vcuda_next_dlsym, next, __ATOMIC_RELEASE);
    }
    return next;
}

void *driver_function(enum number number) {
    static void *found[NUMBER_COUNT];
    void *function = __atomic_load_n(&found[number], __ATOMIC_ACQUIRE);
    if (function)
        return function;
    int is_nvml = !strncmp(names[number], "nvml", 4);
    /* The program has loaded it, or it could not call us. Never unloaded from here on. */
    void *library = dlopen(is_nvml ? "libnvidia-ml.so.1" : "libcuda.so.1",
                           RTLD_LAZY | RTLD_NOLOAD);
    if (library)
        function = next_dlsym()(library, names[number]);
    if (function)
        __atomic_store_n(&found[number], function, __ATOMIC_RELEASE);
    return function;
}

static const struct hook *by_name(const char *name) {
    for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++)
        if (!strcmp(hooks[i].name, name))
            return &hooks[i];
    return NULL;
}

/* What dlsym is to return instead; NULL if the next dlsym shall answer. */
FROM_THE_START __attribute__((visibility("hidden"))) void *vcuda_replacement(
    void *library, const char *name) {
    find_symbol *next = next_dlsym();
    if (!name || !((name[0] == 'c' && name[1] == 'u') || (name[0] == 'n' && name[1] == 'v')))
        return NULL;
    const struct hook *hook = by_name(name);
    /* A driver that lacks the function must look as if it lacked it. */
    return hook && next(library, name) ? hook->ours : NULL;
}

/* In assembly, because dlsym(RTLD_NEXT) depends on the address that it returns to: the
   next dlsym must find that of our caller there, and so is jumped to. */
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, @function\n"
        "dlsym:\n"
        "    .cfi_startproc\n"
        "    endbr64\n"
        "    pushq %rdi\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    pushq %rsi\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    subq $8, %rsp\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    call vcuda_replacement\n"
        "    addq $8, %rsp\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    popq %rsi\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    popq %rdi\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    testq %rax, %rax\n"
        "    jne 1f\n"
        "    jmp *vcuda_next_dlsym(%rip)\n"
        "1:  ret\n"
        "    .cfi_endproc\n"
        ".size dlsym, . - dlsym\n");

/* The function of this base name for this version of CUDA and kind of stream. */
static const struct hook *by_base(const char *base, int version, int per_thread) {
    const struct hook *best = NULL;
    for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++) {
        const struct hook *one = &hooks[i];
        if (strcmp(one->base, base) || (one->since > version && best) ||
            (one->per_thread && !per_thread))
            continue;
        best = one;
    }
    return best ? best : by_name(base);
}

static void replace(const char *symbol, void **function, int version,
                    unsigned long long flags) {
    int per_thread = (flags & PER_THREAD_STREAM) != 0;
    const struct hook *hook =
        symbol && function && *function ? by_base(symbol, version, per_thread) : NULL;
    if (hook)
        *function = hook->ours;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version,
                          unsigned long long flags) {
    type_cuGetProcAddress *real = DRIVER(cuGetProcAddress);
    if (!real)
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
    CUresult code = real(symbol, function, version, flags);
    if (!code)
        replace(symbol, function, version, flags);
    return code;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version,
                             unsigned long long flags, void *status) {
    type_cuGetProcAddress_v2 *real = DRIVER(cuGetProcAddress_v2);
    if (!real)
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
    CUresult code = real(symbol, function, version, flags, status);
    if (!code)
        replace(symbol, function, version, flags);
    return code;
}
