"""Each function of NVIDIA's newest headers is given, replaced or refused rightly.

All of them are asked for by ``cuGetProcAddress``, at each version of CUDA and for each
kind of stream: some 90,000 questions.
"""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.isolation.build import DRIVER, PRELOAD, compile_program
from tests.isolation.container import OUT_OF_MEMORY, Container
from tests.isolation.headers import driver_functions

MAY_ALLOCATE = re.compile(r"Alloc|Create|Import|Pool|Limit|MemMap|Retain|AddNode")
HARMLESS = {
    "of the host": """cuMemAllocHost cuMemHostAlloc""",
    "addresses without memory": """cuMemGetAllocationGranularity
        cuMemGetAllocationPropertiesFromHandle cuTensorMapSetAllocationClass""",
    "asks or says what is": """cuCtxGetLimit cuDeviceGetDefaultMemPool
        cuDeviceGetMemPool cuDeviceSetMemPool cuMemGetDefaultMemPool cuMemGetMemPool
        cuMemSetMemPool cuMemPoolGetAccess cuMemPoolGetAttribute cuMemPoolSetAccess
        cuMemPoolSetAttribute cuLogicalEndpointGetLimits
        cuGraphMemAllocNodeGetParams""",
    "memory of others, which they count": """cuImportExternalMemory
        cuLogicalEndpointImport cuMemPoolImportFromShareableHandle
        cuMemPoolImportPointer cuMemPoolExportPointer
        cuMemPoolExportToShareableHandle""",
    "holds no memory of its own": """cuEventCreate cuStreamCreate
        cuStreamCreateWithPriority cuGraphCreate cuLinkCreate cuTexObjectCreate
        cuSurfObjectCreate cuTexRefCreate cuUserObjectCreate cuUserObjectRetain
        cuGraphRetainUserObject cuGraphConditionalHandleCreate cuMulticastCreate
        cuImportExternalSemaphore cuLogicalEndpointCreate cuGreenCtxStreamCreate""",
    "of a context, which is counted": """cuGreenCtxCreate""",
    "sparse arrays, whose memory cuMemCreate makes": """cuMemMapArrayAsync""",
}
"""Functions that sound as if they allocated, each with why it need not be counted."""

MAY_LAUNCH = re.compile(r"CUfunction|CUkernel|CUgraphExec|CUlaunchConfig|LAUNCH_PARAMS")
STARTS_NOTHING = {
    "runs on the host": "cuLaunchHostFunc",
    "brings to the card what is launched later": "cuGraphUpload",
}
"""Functions that sound as if they launched kernels, each with why it does not wait."""


@pytest.fixture(scope="module")
def asker(built: Path) -> Path:
    compile_program(built / "doors", "doors.c")
    return built / "doors"


def answers(asker: Path, container: Container, *newest: str) -> Mapping[str, str]:
    """Return what is given in place of functions, by their names."""
    told = {**os.environ, **container.environment}
    done = subprocess.run(
        [asker, *newest], env=told, cwd=asker.parent, capture_output=True, check=True
    )
    *lines, asked = done.stdout.decode().splitlines()
    assert int(asked.split()[1]) > 80_000
    pairs = {tuple(line.split()) for line in lines}
    assert len(pairs) == len({name for name, _ in pairs}), "one function, two answers"
    return dict(pairs)


def hooked() -> set[str]:
    table = (PRELOAD / "driver.h").read_text()
    return set(re.findall(r"HOOK\(CUresult, (\w+),", table))


def test_each_is_replaced_by_its_own_and_no_other(
    asker: Path, container: Container
) -> None:
    """And what is newer than the library is refused where it could allocate."""
    given = dict(answers(asker, container))
    assert given.pop("cuMemAlloc_v3") == "refused"
    assert given == {name: name for name in hooked()}


@pytest.mark.parametrize("version", ["11040", "12000", "12080", "13000"])
def test_an_older_driver_is_replaced_by_what_it_has(
    asker: Path, container: Container, version: str
) -> None:
    """It answers a question for a newer version with its newest function."""
    given = answers(asker, container, version)
    assert all(name == instead for name, instead in given.items())
    had = {one.name for one in driver_functions() if one.since <= int(version)}
    assert set(given) == hooked() & had


def test_what_sounds_as_if_it_allocated_is_replaced_or_reviewed() -> None:
    """A new header's functions are looked at before it is taken."""
    reviewed = {name for names in HARMLESS.values() for name in names.split()}
    names = {one.name for one in driver_functions()} - hooked()
    unseen = {name for name in names if MAY_ALLOCATE.search(name)}
    assert {re.sub(r"(_v\d)?(_ptsz)?$", "", name) for name in unseen} == reviewed


def test_what_sounds_as_if_it_launched_waits_or_is_reviewed() -> None:
    """By its name, or because it takes a kernel or a graph beside a stream."""
    sounds = {
        one.name
        for one in driver_functions()
        if "Launch" in one.name
        or (MAY_LAUNCH.search(one.takes) and "CUstream" in one.takes)
    }
    unseen = {re.sub(r"(_v\d)?(_ptsz)?$", "", name) for name in sounds - hooked()}
    assert unseen == set(STARTS_NOTHING.values())


def test_by_name_a_newer_one_is_not_there(container: Container) -> None:
    """``dlsym`` answers as if the driver did not have it."""
    library = container.folder / "libcuda.so.1"
    program = (
        f"import ctypes; cuda = ctypes.CDLL({str(library)!r});"
        "print([hasattr(cuda, name) for name in "
        "('cuMemAlloc_v2', 'cuMemAlloc_v3', 'cuStreamSynchronize_v2', 'cuInit')])"
    )
    assert container.ran(["python3", "-c", program]) == (
        "[True, False, True, True]\n",
        "",
    )


def test_a_library_that_is_opened_finds_ours_next(
    container: Container, tmp_path: Path
) -> None:
    """By ``RTLD_NEXT``, in libraries that none but itself has."""
    source, library = tmp_path / "next.c", tmp_path / "next.so"
    source.write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stddef.h>\n"
        "int take(unsigned long long *at, size_t size) {\n"
        '    int (*next)() = dlsym(RTLD_NEXT, "cuMemAlloc_v2");\n'
        "    return next(at, size);\n"
        "}\n"
    )
    driver = ("-Wl,--no-as-needed", str(container.folder / DRIVER))
    compile_program(library, str(source), "-shared", "-fPIC", *driver)
    program = (
        f"import ctypes; it = ctypes.CDLL({str(library)!r}); at = ctypes.c_uint64();"
        "print(it.take(ctypes.byref(at), ctypes.c_size_t(2 << 30)))"
    )
    assert container.ran(["python3", "-c", program]) == (f"{OUT_OF_MEMORY}\n", "")
