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
    enum unknown unknown;
    void *ours;
};

#define ROW(result, name, base, since, per_thread, unknown, parameters)                  \
    {#name, #base, since, per_thread, unknown, (void *)name},
static const struct hook hooks[] = {HOOKS(ROW)};

#define NAME_OF_HOOK(result, name, base, since, per_thread, unknown, parameters) #name,
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

#define MISSING ((void *)-1)
static void *functions[NUMBER_COUNT];

static int is_of_nvml(const char *name) {
    return !strncmp(name, "nvml", 4);
}

/* All at once, and so before any lock of ours is taken: the dynamic linker has a lock of
   its own, which a thread holds while constructors run that may call us. */
static void look_up(int nvml) {
    /* The program has loaded it, or it could not call us. Never unloaded from here on. */
    void *library = dlopen(nvml ? "libnvidia-ml.so.1" : "libcuda.so.1",
                           RTLD_LAZY | RTLD_NOLOAD);
    for (size_t i = 0; library && i < NUMBER_COUNT; i++)
        if (is_of_nvml(names[i]) == nvml) {
            void *function = next_dlsym()(library, names[i]);
            __atomic_store_n(&functions[i], function ? function : MISSING,
                             __ATOMIC_RELEASE);
        }
    dlerror(); /* A driver may lack some; that is no failure of the program's. */
}

void *driver_function(enum number number) {
    void *function = __atomic_load_n(&functions[number], __ATOMIC_ACQUIRE);
    if (!function) {
        look_up(is_of_nvml(names[number]));
        function = __atomic_load_n(&functions[number], __ATOMIC_ACQUIRE);
    }
    return function == MISSING ? NULL : function;
}

static const struct hook *by_name(const char *name) {
    for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++)
        if (!strcmp(hooks[i].name, name))
            return &hooks[i];
    return NULL;
}

static int is_driver(const void *code) {
    Dl_info info;
    if (!dladdr(code, &info) || !info.dli_fname)
        return 0;
    const char *slash = strrchr(info.dli_fname, '/');
    const char *file = slash ? slash + 1 : info.dli_fname;
    return !strncmp(file, "libcuda.so", 10) || !strncmp(file, "libnvidia-ml.so", 15);
}

/* A version of a function that this library does not know, by which memory could be had
   uncounted. */
static int is_newer(const char *name) {
    const char *version = strstr(name, "_v");
    if (!version || version[2] < '2' || version[2] > '9')
        return 0;
    for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++)
        if (hooks[i].unknown == REFUSE &&
            strlen(hooks[i].base) == (size_t)(version - name) &&
            !strncmp(hooks[i].base, name, (size_t)(version - name)))
            return 1;
    return 0;
}

/* What dlsym is to return instead; NULL if the next dlsym shall answer, for `name`. */
FROM_THE_START __attribute__((visibility("hidden"))) void *vcuda_replacement(
    void *library, const char **name, const void *caller) {
    find_symbol *next = next_dlsym();
    if (!*name || (strncmp(*name, "cu", 2) && strncmp(*name, "nv", 2)))
        return NULL;
    const struct hook *hook = by_name(*name);
    int newer = !hook && is_newer(*name);
    /* The driver may find its own functions by dlsym, as that of WSL 2 does. Were it
       given ours, they would call each other for ever. */
    if ((!hook && !newer) || is_driver(caller))
        return NULL;
    if (newer) {
        *name = "a function that is newer than the library that holds this container";
        return NULL;
    }
    /* What the caller has next, nobody but it can ask. What the program has of that name
       itself stays the program's. */
    void *function = library == RTLD_NEXT ? hook->ours : next(library, *name);
    if (!function || (function != hook->ours && !is_driver(function)))
        return NULL;
    /* A driver that lacks the function must look as if it lacked it. A search that begins
       at the program finds ours even where there is no driver. */
    if (function == hook->ours && !driver_function(hook - hooks)) {
        *name = "a function of the driver, which has none of this name";
        return NULL;
    }
    dlerror(); /* No error from before is left, as after the next dlsym. */
    return hook->ours;
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
        "    movq %rsp, %rsi\n"
        "    movq 16(%rsp), %rdx\n"
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

static CUresult ask(const char *symbol, void **function, int version,
                    unsigned long long flags, int *status) {
    *function = NULL;
    if (DRIVER(cuGetProcAddress_v2))
        return DRIVER(cuGetProcAddress_v2)(symbol, function, version, flags, status);
    return DRIVER(cuGetProcAddress)(symbol, function, version, flags);
}

/* Whether the driver's answer is the function that a hook replaces, if it is none that an
   older hook does. Not by the version that the program named: newer drivers have newer
   functions for it, and older ones answer with what they have. */
static int is_replaced(const struct hook *hook, const void *function,
                       unsigned long long flags) {
    void *same;
    int status;
    flags &= ~PER_THREAD_STREAM;
    if (hook->per_thread)
        flags |= PER_THREAD_STREAM;
    return function == driver_function(hook - hooks) ||
           (!ask(hook->base, &same, hook->since, flags, &status) && same == function);
}

/* Put ours in the place of the driver's answer. A function that is newer than this library
   is refused where memory could be had by it uncounted. */
static CUresult replace(const char *symbol, void **function, unsigned long long flags) {
    int refused = 0;
    for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++) {
        const struct hook *hook = &hooks[i];
        int by_base = !strcmp(hook->base, symbol), by_name = !strcmp(hook->name, symbol);
        if ((by_name && !by_base) || (by_base && is_replaced(hook, *function, flags))) {
            *function = hook->ours;
            return CUDA_SUCCESS;
        }
        refused |= by_base && hook->unknown == REFUSE;
    }
    if (!refused)
        return CUDA_SUCCESS;
    *function = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version,
                          unsigned long long flags) {
    type_cuGetProcAddress *real = DRIVER(cuGetProcAddress);
    if (!real)
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
    CUresult code = real(symbol, function, version, flags);
    return code || !symbol || !function || !*function ? code
                                                      : replace(symbol, function, flags);
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version,
                             unsigned long long flags, int *status) {
    type_cuGetProcAddress_v2 *real = DRIVER(cuGetProcAddress_v2);
    if (!real)
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
    CUresult code = real(symbol, function, version, flags, status);
    if (code || !symbol || !function || !*function)
        return code;
    code = replace(symbol, function, flags);
    if (code && status)
        *status = SYMBOL_NOT_FOUND;
    return code;
}
