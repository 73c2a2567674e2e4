"""The functions of NVIDIA's driver, as the newest headers have them.

The wheel ``nvidia-cuda-runtime`` has ``cuda.h`` and ``cudaTypedefs.h``, which names
each function by the version of CUDA that it came with. The tests' stand-in is made from
them and not from the library's own table, which would hide what that table lacks.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import files
from pathlib import Path

_WHEEL = "nvidia-cuda-runtime"
_PFN = re.compile(r"CUDAAPI \*PFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\)\((.*)\);")


@dataclass(frozen=True, slots=True)
class DriverFunction:
    """One function: its name in the library, and how cuGetProcAddress is asked for it.

    ``since`` is the version of CUDA, such as 13040 for 13.4. ``per_thread`` is whether
    its default stream is that of the thread. ``takes`` are its parameters, in C.
    """

    name: str
    base: str
    since: int
    per_thread: bool
    takes: str = ""


def include_folder() -> Path:
    """Return the folder that has ``cuda.h``."""
    listed = files(_WHEEL) or []
    header = next(path for path in listed if path.name == "cuda.h")
    return Path(str(header.locate())).parent


def driver_functions() -> Sequence[DriverFunction]:
    """Return all functions of the newest headers, the oldest version of each first."""
    text = (include_folder() / "cudaTypedefs.h").read_text()
    versions = {
        (base, int(since), suffix): takes
        for base, since, suffix, takes in _PFN.findall(text)
    }
    functions = []
    for (base, since, suffix), takes in sorted(versions.items()):
        older = [
            other
            for other_base, other, other_suffix in versions
            if other_base == base and not other_suffix and other <= since
        ]
        number = f"_v{len(older)}" if len(older) > 1 else ""
        functions.append(
            DriverFunction(f"{base}{number}{suffix}", base, since, bool(suffix), takes)
        )
    return functions


def driver_source(functions: Iterable[DriverFunction]) -> str:
    """Return C: cuGetProcAddress, and each function that the stand-in does not have.

    ``standin_name`` tells the name of an answer, and ``standin_newest`` makes the
    driver as old as a version of CUDA.
    """
    known = list(functions)
    asked = ("cuGetProcAddress", "cuGetProcAddress_v2")
    stubs = "\n".join(
        f"__attribute__((weak)) int {name}(void) {{ return 0; }}"
        for name in sorted({function.name for function in known} - set(asked))
    )
    rows = "\n".join(
        f'    {{"{one.name}", "{one.base}", {one.since}, {one.per_thread:d}, '
        f"(void *){one.name}}},"
        for one in known
    )
    return _SOURCE.replace("STUBS", stubs).replace("ROWS", rows)


_SOURCE = """\
#include <string.h>
typedef unsigned long long flags_t;
int cuGetProcAddress(const char *, void **, int, flags_t);
int cuGetProcAddress_v2(const char *, void **, int, flags_t, int *);
STUBS
static const struct {
    const char *name, *base;
    int since, per_thread;
    void *at;
} table[] = {
ROWS
};
#define EACH(i) (size_t i = 0; i < sizeof table / sizeof *table; i++)
static int newest = 1 << 30;
void standin_newest(int version) { newest = version; }
size_t standin_functions(void) { return sizeof table / sizeof *table; }
const char *standin_base(size_t i) { return table[i].base; }
int standin_since(size_t i) { return table[i].since; }
const char *standin_name(const void *at) {
    for EACH(i)
        if (table[i].at == at)
            return table[i].name;
    return "none";
}
/* As the driver: the newest that this version of CUDA knows, for such a stream. */
int standin_ask(const char *base, void **at, int version, flags_t flags, int *status) {
    int per_thread = (flags & 2) != 0, best = -1;
    *at = 0;
    for EACH(i)
        if (!strcmp(table[i].base, base) && table[i].since <= version &&
            table[i].since <= newest && table[i].per_thread <= per_thread &&
            (best < 0 || table[i].per_thread > table[best].per_thread ||
             (table[i].per_thread == table[best].per_thread &&
              table[i].since > table[best].since)))
            best = (int)i;
    if (best >= 0)
        *at = table[best].at;
    if (status)
        *status = best < 0;
    return best < 0 ? 500 : 0;
}
int cuGetProcAddress_v2(const char *base, void **at, int version, flags_t flags,
                        int *status) {
    return standin_ask(base, at, version, flags, status);
}
int cuGetProcAddress(const char *base, void **at, int version, flags_t flags) {
    return standin_ask(base, at, version, flags, 0);
}
"""
