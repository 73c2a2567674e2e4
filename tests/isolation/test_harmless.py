"""The library does no harm: no program hangs, crashes or is told a wrong thing."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.isolation.build import (
    DRIVER,
    HERE,
    LIBRARY,
    build_library,
    compile_program,
    places_in,
)
from tests.isolation.container import (
    FILL,
    FULL,
    HALF,
    OPERATING_SYSTEM,
    OUT_OF_MEMORY,
    REFUSED,
    Container,
)

GUARD = 1 << 50
"""The byte of the region that only one process locks at a time."""
SHARED = ("-shared", "-fPIC")


@pytest.fixture(scope="module")
def impatient(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Container:
    """A container whose library waits 200 ms for the region's lock, and not 10 s."""
    folder = tmp_path_factory.mktemp("impatient")
    flags = ("-DVCUDA_WAIT_MS=200", "-DVCUDA_POINTS", str(HERE / "points.c"))
    build_library(folder / LIBRARY, *places_in(folder), *flags)
    for name in (DRIVER, "probe"):
        (folder / name).symlink_to(built / name)
    container = Container(folder)
    container.begin()
    return container


@contextmanager
def locked(container: Container, how: int = fcntl.LOCK_SH) -> Iterator[None]:
    """Keep the region's lock, as each process can that may read the file."""
    file = os.open(container.region, os.O_RDWR)
    try:
        fcntl.lockf(file, how, 1, GUARD)
        yield
    finally:
        os.close(file)


def test_a_lock_that_is_kept_hangs_nobody(impatient: Container) -> None:
    """All is refused until it is let go."""
    impatient.begin()
    with locked(impatient):
        told, complaint = impatient.both("dlsym", *FILL)
    assert told == [REFUSED]
    assert "another process keeps it locked" in complaint
    assert impatient.said("dlsym", *FILL) == [FULL]


def test_what_is_freed_meanwhile_is_given_back_afterwards(impatient: Container) -> None:
    impatient.begin()
    words = (*HALF, "wait", "free", "cuMemFree_v2", *FILL, "wait", *FILL)
    with impatient.start("dlsym", *words) as process:
        assert process.stdout
        assert process.stdin
        said = [process.stdout.readline().strip() for _ in range(2)]
        with locked(impatient):
            process.stdin.write("\n")
            process.stdin.flush()
            said += [process.stdout.readline().strip() for _ in range(3)]
        out, _ = process.communicate("\n", timeout=60)
    assert said[2:] == ["cuMemFree_v2 1 0", REFUSED, "waiting"]
    assert out.splitlines() == [FULL]


def test_a_process_that_is_stopped_inside_hangs_nobody(impatient: Container) -> None:
    impatient.begin()
    inside = ("sh", "-c", 'VCUDA_STOP=1 exec "$@"', "sh")
    with impatient.start("dlsym", "point", "locked", *FILL, before=inside) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert impatient.said("dlsym", *FILL) == [REFUSED]
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert impatient.said("dlsym", *FILL) == [FULL]


def test_a_free_without_descriptors_is_not_lost(container: Container) -> None:
    """The program has closed the region's file, and may open no other."""
    shell = ["bash", "-c", 'ulimit -n 4; exec "$@"', "bash"]
    container.region.with_name("card").write_bytes(b"\0" * 2**20)
    words = (*HALF, "shut", "free", "cuMemFree_v2", "unshut", *FILL)
    with container.start("dlsym", *words, before=shell) as process:
        out, _ = process.communicate(timeout=60)
    assert out.splitlines()[-2:] == ["cuMemFree_v2 1 0", FULL]


@pytest.mark.parametrize("zombie", [0, os.WNOWAIT])
def test_a_bare_clone_does_not_keep_what_its_parent_held(
    container: Container, zombie: int
) -> None:
    """It has the file open, and so the lock. The parent may stay a zombie."""
    with container.start("dlsym", *FILL, "clone") as process:
        assert process.stdout
        assert process.stdout.readline() == f"{FULL}\n"
        child = int(process.stdout.readline())
        os.waitid(os.P_PID, process.pid, os.WEXITED | zombie)
        try:
            assert container.said("dlsym", *FILL) == [FULL]
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_bare_clone_keeps_nobody_out(impatient: Container) -> None:
    """Its parent is killed while it lets no other in."""
    impatient.begin()
    with impatient.start("dlsym", *HALF, "clone", "point", "locked", *HALF) as process:
        assert process.stdout
        process.stdout.readline()
        child = int(process.stdout.readline())
        assert process.wait(timeout=60) == -signal.SIGKILL
        try:
            assert impatient.said("dlsym", *FILL) == [FULL]
        finally:
            os.kill(child, signal.SIGKILL)


FORKS_EARLY = """
import ctypes, os, threading, time
cuda, at, codes = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64(), []
limits = open("limits").read()
def allocate():
    codes.append(cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(1)))
def feed():
    with open("limits", "w") as file:
        file.write(limits)
os.unlink("limits")
os.mkfifo("limits")
thread = threading.Thread(target=allocate)
thread.start()
time.sleep(0.2)
fed, feeds = os.pipe()
child = os.fork()
if not child:
    # Not before, since whoever else reads the pipe would take what is for the parent.
    os.read(fed, 1)
    allocate()
    os._exit(codes[0])
feed()
thread.join()
os.write(feeds, b"1")
threading.Thread(target=feed, daemon=True).start()
print(codes, os.waitpid(child, 0)[1], flush=True)
os._exit(0)
"""


def test_a_child_that_is_forked_beside_the_first_call(container: Container) -> None:
    """Another thread of its parent is reading the limits, in a pipe here."""
    try:
        program = [sys.executable, "-c", FORKS_EARLY]
        assert container.ran(program) == ("[0] 0\n", "")
    finally:
        container.limits.unlink()


def test_a_constructor_may_allocate(container: Container, tmp_path: Path) -> None:
    """That of a library of the program comes before those of preloaded ones."""
    source = tmp_path / "early.c"
    source.write_text(
        "#include <stdio.h>\n"
        "int cuMemAlloc_v2(unsigned long long *, unsigned long);\n"
        "__attribute__((constructor)) static void early(void) {\n"
        "    unsigned long long at;\n"
        '    printf("%d\\n", cuMemAlloc_v2(&at, 4096));\n'
        "}\n"
    )
    main = tmp_path / "main.c"
    main.write_text("int main(void) { return 0; }\n")
    driver = str(container.folder / DRIVER)
    library, program = tmp_path / "early.so", tmp_path / "main"
    compile_program(library, str(source), *SHARED, driver)
    words = (str(library), driver, "-Wl,--no-as-needed", f"-Wl,-rpath,{tmp_path}")
    compile_program(program, str(main), "-Wl,--no-as-needed", *words)
    assert container.ran([str(program)]) == ("0\n", "")


LATE = """
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
int cuMemAlloc_v2(unsigned long long *, unsigned long);
#ifdef LIBRARY
void is_constructed(void);
__attribute__((constructor)) static void late(void) {
    unsigned long long at;
    is_constructed();
    usleep(200000);
    printf("%d\\n", cuMemAlloc_v2(&at, 1UL << 40));
}
#else
static volatile int constructed;
void is_constructed(void) { constructed = 1; }
static void *load(void *path) { return dlopen(path, RTLD_NOW); }
int main(int argc, char **argv) {
    pthread_t thread;
    unsigned long long at;
    pthread_create(&thread, NULL, load, argv[argc - 1]);
    while (!constructed)
        usleep(1000);
    printf("%d\\n", cuMemAlloc_v2(&at, 1UL << 40));
    pthread_join(thread, NULL);
    return 0;
}
#endif
"""


def test_a_library_that_allocates_while_it_is_loaded(
    container: Container, tmp_path: Path
) -> None:
    """Beside the first refusal of another thread: neither waits for the other."""
    source = tmp_path / "late.c"
    source.write_text(LATE)
    driver = str(container.folder / DRIVER)
    library, program = tmp_path / "late.so", tmp_path / "late"
    compile_program(library, str(source), "-DLIBRARY", *SHARED)
    compile_program(program, str(source), "-rdynamic", driver)
    said, _ = container.ran([str(program), str(library)])
    assert said.splitlines() == [str(OUT_OF_MEMORY)] * 2


@pytest.mark.parametrize("library", ["None", "'libc.so.6'"])
def test_without_a_driver_there_are_no_functions(
    container: Container, library: str
) -> None:
    """A program that looks for them takes its node for one with a card else."""
    program = (
        f"import ctypes; it = ctypes.CDLL({library});"
        "print([hasattr(it, name) for name in ('cuMemAlloc_v2', 'cuInit', 'malloc')])"
    )
    assert container.ran([sys.executable, "-c", program]) == (
        "[False, False, True]\n",
        "",
    )


FORWARDS = """
#include <dlfcn.h>
#include <stddef.h>
static void *inner(const char *name) {
    static void *library;
    if (!library)
        library = dlopen(INNER, RTLD_NOW | RTLD_LOCAL);
    return dlsym(library, name);
}
int cuMemAlloc_v2(unsigned long long *at, size_t size) {
    return ((int (*)(unsigned long long *, size_t))inner("cuMemAlloc_v2"))(at, size);
}
int cuCtxGetCurrent(void **context) {
    return ((int (*)(void **))inner("cuCtxGetCurrent"))(context);
}
"""
"""A driver that has its functions in another library, as that of WSL 2."""


def test_a_driver_that_finds_its_functions_by_dlsym(
    container: Container, tmp_path: Path
) -> None:
    source, driver = tmp_path / "forwards.c", tmp_path / DRIVER
    source.write_text(FORWARDS)
    inner = f'-DINNER="{container.folder / DRIVER}"'
    compile_program(driver, str(source), *SHARED, inner, f"-Wl,-soname,{DRIVER}")
    program = (
        f"import ctypes; cuda = ctypes.CDLL({str(driver)!r}); at = ctypes.c_uint64();"
        "size = ctypes.c_size_t(128 << 20);"
        "print([cuda.cuMemAlloc_v2(ctypes.byref(at), size) for _ in range(9)])"
    )
    path = f"{tmp_path}:{container.folder}"
    said = container.ran([sys.executable, "-c", program], LD_LIBRARY_PATH=path)
    assert said == (f"{[0] * 8 + [OUT_OF_MEMORY]}\n", "")


OWN_NAMES = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
typedef int allocate(unsigned long long *, size_t);
static unsigned long long at;
static void *of_driver(const char *name) {
    return dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), name);
}
#if defined FUNCTION
int cuMemAlloc_v2(unsigned long long *to, size_t size) {
    return ((allocate *)of_driver("cuMemAlloc_v2"))(to, size);
}
int main(void) {
    allocate *own = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    printf("%d %d\\n", own == cuMemAlloc_v2, own(&at, 1UL << 40));
}
#elif defined VARIABLE
allocate *cuMemAlloc_v2;
int main(void) {
    cuMemAlloc_v2 = of_driver("cuMemAlloc_v2");
    void *own = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    printf("%d %d\\n", own == (void *)&cuMemAlloc_v2, cuMemAlloc_v2(&at, 1UL << 40));
}
#else
int main(void) {
    int (*end)(unsigned long long) = of_driver("cuMemFree_v2");
    dlerror();
    allocate *make = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    const char *error = dlerror();
    for (int i = 0; i < 20000 && !error; i++) {
        errno = 77;
        if (make(&at, 4096) || end(at) || errno != 77)
            error = "errno is another";
    }
    puts(error ? error : "no error");
}
#endif
"""


def run_own(container: Container, folder: Path, *words: str) -> str:
    """Compile that program and run it; what it says."""
    source, program = folder / "own.c", folder / "own"
    source.write_text(OWN_NAMES)
    compile_program(program, str(source), "-rdynamic", *words)
    return container.ran([str(program)])[0]


@pytest.mark.parametrize("kind", ["FUNCTION", "VARIABLE"])
def test_a_program_may_have_names_of_the_drivers(
    container: Container, tmp_path: Path, kind: str
) -> None:
    """It is given its own by them, and the driver's from the driver."""
    said = run_own(container, tmp_path, f"-D{kind}")
    assert said == f"1 {OUT_OF_MEMORY}\n"


def test_no_error_is_left_to_a_program_that_has_made_none(
    container: Container, tmp_path: Path
) -> None:
    """Nor while another process has the lock for moments, with an older driver."""
    old = tmp_path / DRIVER
    source = tmp_path / "old.c"
    source.write_text(
        "int cuMemAlloc_v2(unsigned long long *at) { *at = 4096; return 0; }\n"
        "int cuMemFree_v2(void) { return 0; }\n"
    )
    compile_program(old, str(source), *SHARED, f"-Wl,-soname,{DRIVER}")
    older = {**container.environment, "LD_LIBRARY_PATH": str(tmp_path)}
    with container.start("dlsym", "pairs", "1000000"):
        program = tmp_path / "own"
        run_own(container, tmp_path)
        done = subprocess.run([program], env=older, capture_output=True, check=True)
    assert done.stdout == b"no error\n"


def test_signals_do_not_shorten_the_wait_for_a_lock(impatient: Container) -> None:
    impatient.begin()
    program = (
        "import ctypes, signal, time; cuda = ctypes.CDLL('libcuda.so.1');"
        "at = ctypes.c_uint64(); signal.signal(signal.SIGALRM, lambda *_: None);"
        "signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001); start = time.monotonic();"
        "code = cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(1));"
        "signal.setitimer(signal.ITIMER_REAL, 0);"
        "print(code, time.monotonic() - start > 0.15)"
    )
    with locked(impatient):
        said, _ = impatient.ran([sys.executable, "-c", program])
    assert said == f"{OPERATING_SYSTEM} True\n"
