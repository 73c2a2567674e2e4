"""The library under gcc's sanitizers, which end a process at the first wrong access.

Undefined behaviour and data races are found only on the ways that these tests take.
"""

from pathlib import Path

import pytest

from tests.isolation.build import DRIVER, LIBRARY, build_library, places_in
from tests.isolation.container import (
    FILL,
    FULL,
    Container,
)
from tests.machine import sanitizer

# A second for each: `make unit` has the same ways without a sanitizer.
pytestmark = pytest.mark.processes

SANITIZERS = {
    "addresses": ("address,undefined", "libasan.so", "detect_leaks=0"),
    "races": ("thread", "libtsan.so", "halt_on_error=1:die_after_fork=0"),
}
"""Flags, runtime, and the runtime's options. Leaks: the ledger's entries are one."""
WAYS = {
    "cuMemAlloc_v2": "cuMemFree_v2",
    "narrow": "cuMemFree_v2",
    "cuMemAllocAsync": "cuMemFreeAsync",
    "cuMemAllocFromPoolAsync": "cuMemFreeAsync",
    "cuMemCreate": "cuMemRelease",
    "cuArray3DCreate_v2": "cuArrayDestroy",
    "cuMipmappedArrayCreate": "cuMipmappedArrayDestroy",
}
HANDLES = ("fill", "cuMemCreate", "128", "free", "cuMemMap", "free", "cuMemRelease")
CONTEXT = ("retain", "context", *FILL, "cuDevicePrimaryCtxReset_v2")
CASES = {
    "ways": [
        *("pool", "1"),
        *(word for way in WAYS for word in ("fill", way, "128", "free", WAYS[way])),
        *("trim", "drop", "info"),
    ],
    "handles": [*HANDLES, "unmap"],
    "contexts": CONTEXT,
    "nonsense": ["odd"],
    "nothing of a pool that ends": [
        *("pool", "1", "alloc", "cuMemAllocFromPoolAsync", "0", "drop"),
        *("free", "cuMemFreeAsync"),
    ],
    "random calls": ["random", "7", "1500"],
    "pools": ["pools", "200"],
    "threads": ["threads", "6", "2000"],
    "forks": ["forks", "5"],
    "children": ["alloc", "cuMemAlloc_v2", "512", "child", *FILL, "parent", "info"],
    "files closed": ["alloc", "cuMemAlloc_v2", "512", "shut", *FILL],
}


# A forked child makes its locks anew: like a race with threads of its parent.
PAIRS = [
    (kind, case)
    for kind in SANITIZERS
    for case in CASES
    if (kind, case) != ("races", "forks")
]


@pytest.fixture(scope="module", params=SANITIZERS)
def sanitized(
    request: pytest.FixtureRequest,
    built: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Container:
    """A container whose library has a sanitizer in it."""
    kind, runtime, options = SANITIZERS[request.param]
    path = sanitizer(runtime)
    folder = tmp_path_factory.mktemp("sanitized")
    flags = [f"-fsanitize={kind}", "-fno-sanitize-recover=all", "-DVCUDA_SANITIZED"]
    # So that threads and entries meet in one chain.
    flags += ["-DCHAINS=2"]
    build_library(folder / LIBRARY, *places_in(folder), *flags)
    for name in (DRIVER, "probe", "launcher"):
        (folder / name).symlink_to(built / name)
    return Container(folder, path, options)


@pytest.mark.parametrize(("sanitized", "case"), PAIRS, indirect=["sanitized"])
def test_a_sanitizer_finds_nothing(sanitized: Container, case: str) -> None:
    sanitized.begin()
    _, complaints = sanitized.both("dlsym", *CASES[case])
    assert complaints == ""
    assert sanitized.said("dlsym", *FILL) == [FULL]


@pytest.mark.parametrize("say", ["1 300 5", "1 soon 5"])
def test_nor_where_threads_launch(sanitized: Container, say: str) -> None:
    sanitized.begin()
    words = ("door", "cuLaunchKernel", "launch", "1", "say", say, "threads", "8")
    launcher = [str(sanitized.folder / "launcher"), "dlsym", "say", "1 900 5"]
    told, complaints = sanitized.ran([*launcher, *words, "children", "2"])
    assert complaints == ""
    assert [line.split()[1] for line in told.splitlines()] == ["1", "41", "43", "43"]


@pytest.mark.parametrize("how", ["region", "limits"])
def test_nor_where_files_are_broken(sanitized: Container, how: str) -> None:
    sanitized.begin()
    if how == "region":
        sanitized.region.unlink()
    else:
        sanitized.limits.write_text("vcuda-limits 1\ncard " + "G" * 200)
    told, complaints = sanitized.both("dlsym", *FILL)
    assert told == ["cuMemAlloc_v2 0 304"]
    assert complaints.startswith("vcuda: ")
    assert complaints.count("\n") == 1
