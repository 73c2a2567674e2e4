"""The preload library over a stand-in driver: a container stays within its share.

``probe`` is a program that uses the card as its arguments say, through a door: linked
with the driver, by dlsym, or by cuGetProcAddress. ``standin`` is a card of 16 GiB that
remembers the most that was held at once.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.isolation.build import (
    DRIVER,
    HERE,
    LIBRARY,
    PRELOAD,
    build_driver,
    build_hog,
    build_library,
    compile_program,
    needs_compiler,
)

SHARE_MIB = 1024
OUT_OF_MEMORY, OPERATING_SYSTEM = 2, 304
NOT_SUPPORTED, NOT_WHILE_CAPTURED = 801, 900
UUID = "GPU-9f12f917-e458-4bb8-3d9d-8dc7fd6cddf7"
LIMITS = f"vcuda-limits 1\ncard {UUID} {SHARE_MIB}\n"
DOORS = ("link", "dlsym", "getproc", "getproc2")
FREES = {
    "cuMemAlloc_v2": "cuMemFree_v2",
    "cuMemAllocManaged": "cuMemFreeAsync",
    "cuMemAllocPitch_v2": "cuMemFree_v2",
    "narrow": "cuMemFree_v2",
    "cuMemAllocAsync": "cuMemFree_v2",
    "cuMemAllocAsync_ptsz": "cuMemFreeAsync_ptsz",
    "cuMemCreate": "cuMemRelease",
    "cuArrayCreate_v2": "cuArrayDestroy",
    "cuArray3DCreate_v2": "cuArrayDestroy",
    "cuMipmappedArrayCreate": "cuMipmappedArrayDestroy",
}
"""Each way to allocate, and by what it is given back here: also by another API's."""


@dataclass(frozen=True, slots=True)
class Container:
    """A folder with the programs, the limits and the region."""

    folder: Path

    @property
    def limits(self) -> Path:
        return self.folder / "limits"

    @property
    def region(self) -> Path:
        return self.folder / "region"

    @property
    def peak_mib(self) -> float:
        """The most that was held at once, as the stand-in saw it."""
        content = (self.folder / "card").read_bytes()
        return int.from_bytes(content[:8], sys.byteorder) / 2**20

    @property
    def environment(self) -> dict[str, str]:
        library = str(self.folder / LIBRARY)
        path = "/usr/bin:/bin"
        return {
            "LD_PRELOAD": library,
            "LD_LIBRARY_PATH": str(self.folder),
            "PATH": path,
        }

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start the probe: a door, then commands."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [self.folder / ("linked" if words[0] == "link" else "probe"), *words],
            cwd=self.folder,
            env=self.environment,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
        )

    def said(self, *words: str) -> list[str]:
        """Run the probe to its end; its lines."""
        with self.start(*words) as process:
            out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err or out
        return out.splitlines()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is compiled, in one folder."""
    needs_compiler()
    folder = tmp_path_factory.mktemp("preload")
    places = [
        f'-DVCUDA_{name.upper()}="{folder / name}"' for name in ("limits", "region")
    ]
    build_library(folder / LIBRARY, *places, "-DVCUDA_POINTS", str(HERE / "points.c"))
    build_driver(folder)
    build_hog(folder)
    compile_program(folder / "probe", "probe.c")
    linked = ("-DLINKED", f"./{DRIVER}", f"-Wl,-rpath,{folder}")
    compile_program(folder / "linked", "probe.c", *linked)
    return folder


@pytest.fixture
def container(built: Path) -> Container:
    """A container that has just started; the region as the device plugin makes it."""
    found = Container(built)
    found.limits.write_text(LIMITS)
    for name in ("region", "card"):
        (built / name).unlink(missing_ok=True)
    found.region.touch()
    return found


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("way", FREES)
def test_each_way_ends_at_the_share(container: Container, way: str, door: str) -> None:
    """And what is freed can be had again, by whatever API it is freed."""
    full, more = f"{way} 8 {OUT_OF_MEMORY}", ("fill", way, "128")
    free = FREES[way]
    assert container.said(door, *more, "free", free, *more) == [
        full,
        f"{free} 8 0",
        full,
    ]


def test_a_hog_gets_its_share(container: Container) -> None:
    """The program of the test on a cluster, which is told what it may have."""
    told = subprocess.run(
        [container.folder / "hog", "64"],
        cwd=container.folder,
        env=container.environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert told == [
        f"shown {SHARE_MIB} of {SHARE_MIB} MiB, code 0",
        f"held {SHARE_MIB} MiB, refused with {OUT_OF_MEMORY}",
    ]


@pytest.mark.parametrize("door", DOORS)
def test_pools_end_at_the_share(container: Container, door: str) -> None:
    fill = ("fill", "cuMemAllocFromPoolAsync", "128")
    told = container.said(door, "pool", "1", *fill, "free", "cuMemFreeAsync", *fill)
    full = f"cuMemAllocFromPoolAsync 8 {OUT_OF_MEMORY}"
    assert told == ["pool 0", full, "cuMemFreeAsync 8 0", full]


def test_memory_that_is_mapped_is_held(container: Container) -> None:
    """Its handle is released, and its memory is in use until it is unmapped."""
    fill = ("fill", "cuMemCreate", "128")
    given = ("free", "cuMemMap", "free", "cuMemRelease")
    told = container.said("dlsym", *fill, *given, "alloc", "cuMemAlloc_v2", "1")
    assert told[-1] == f"cuMemAlloc_v2 0 {OUT_OF_MEMORY}"
    again = container.said("dlsym", *fill, *given, "unmap", *fill)
    assert again[-2:] == ["unmap 0", f"cuMemCreate 8 {OUT_OF_MEMORY}"]


def test_memory_of_the_host_does_not_count(container: Container) -> None:
    assert container.said("dlsym", "alloc", "host", "4096") == ["host 1 0"]


@pytest.mark.parametrize(
    "way", ["cuGraphAddMemAllocNode", "cuGraphAddNode", "cuGraphAddNode_v2"]
)
def test_graphs_that_allocate_are_refused(container: Container, way: str) -> None:
    """They would allocate at each launch, where it is not seen."""
    assert container.said("dlsym", "alloc", way, "1") == [f"{way} 0 {NOT_SUPPORTED}"]
    assert container.said("dlsym", "alloc", "kernel", "1") == ["kernel 1 0"]


def test_a_captured_stream_may_not_allocate(container: Container) -> None:
    told = container.said("dlsym", "capture", "1", "alloc", "cuMemAllocAsync", "1")
    assert told == [f"cuMemAllocAsync 0 {NOT_WHILE_CAPTURED}"]


@pytest.mark.parametrize("door", DOORS)
def test_a_program_is_shown_its_share(container: Container, door: str) -> None:
    told = container.said(door, "alloc", "cuMemAlloc_v2", "100", "info")
    left = SHARE_MIB - 100
    assert told[-1] == f"info 0 {left} {SHARE_MIB} 0 {SHARE_MIB}"


@pytest.mark.parametrize("ends", ["destroy", "reset"])
def test_what_a_context_held_ends_with_it(container: Container, ends: str) -> None:
    begin = {"destroy": ["context"], "reset": ["retain", "context"]}[ends]
    end = {"destroy": "destroy", "reset": "cuDevicePrimaryCtxReset_v2"}[ends]
    fill = ("fill", "cuMemAlloc_v2", "128")
    told = container.said("dlsym", *begin, *fill, end, *fill)
    assert told[0] == told[2] == f"cuMemAlloc_v2 8 {OUT_OF_MEMORY}"


def test_what_the_driver_refuses_is_not_counted(container: Container) -> None:
    words = ("fail", "cuMemAlloc_v2", "alloc", "cuMemAlloc_v2", "1024")
    told = container.said("dlsym", *words, "alloc", "cuMemAlloc_v2", "1024")
    assert told == ["cuMemAlloc_v2 0 999", "cuMemAlloc_v2 1 0"]


@contextmanager
def racing(container: Container, many: int, *words: str) -> Iterator[list[str]]:
    """Start programs together; what each says first. All hold it until the last has."""
    started = [container.start("dlsym", *words, "wait") for _ in range(many)]
    try:
        yield [each.stdout.readline() for each in started if each.stdout]
    finally:
        for each in started:
            each.kill()
            each.communicate()


def test_processes_that_race_share_one_share(container: Container) -> None:
    with racing(container, 8, "fill", "cuMemAlloc_v2", "64") as told:
        assert sum(int(line.split()[1]) for line in told) == SHARE_MIB // 64
    assert container.peak_mib == SHARE_MIB


def test_threads_that_race_never_pass_the_share(container: Container) -> None:
    """Also on one pool, which takes more of the card than it gives; all comes back."""
    told = container.said(
        "dlsym", "threads", "8", "300", "fill", "cuMemAlloc_v2", "128"
    )
    assert told == ["threads done", f"cuMemAlloc_v2 8 {OUT_OF_MEMORY}"]
    assert container.peak_mib == SHARE_MIB


def test_a_pool_may_not_grow_past_the_share(container: Container) -> None:
    """It would take 32 MiB for these 5: refused before the driver is called."""
    most = ("alloc", "cuMemAlloc_v2", "1016")
    told = container.said("dlsym", *most, "alloc", "cuMemAllocAsync", "5")
    assert told[-1] == f"cuMemAllocAsync 0 {OUT_OF_MEMORY}"
    assert container.peak_mib == 1016


def test_a_pool_uses_what_it_keeps(container: Container) -> None:
    """Nothing is counted for an allocation that needs no growth."""
    words = ("alloc", "cuMemAllocAsync", "900", "free", "cuMemFreeAsync")
    told = container.said("dlsym", *words, *words)
    assert told == ["cuMemAllocAsync 1 0", "cuMemFreeAsync 1 0"] * 2
    assert container.peak_mib <= SHARE_MIB


def test_what_a_pool_keeps_is_given_up_for_others(container: Container) -> None:
    words = ("alloc", "cuMemAllocAsync", "900", "free", "cuMemFreeAsync")
    told = container.said("dlsym", *words, "fill", "cuMemAlloc_v2", "128")
    assert told[-1] == f"cuMemAlloc_v2 8 {OUT_OF_MEMORY}"


def test_processes_that_race_on_pools_never_pass_the_share(
    container: Container,
) -> None:
    """A pool's growth is counted before the driver is called."""
    with racing(container, 6, "fill", "cuMemAllocAsync", "5") as told:
        assert all(line.endswith(f" {OUT_OF_MEMORY}\n") for line in told)
    assert 0 < container.peak_mib <= SHARE_MIB


POINTS = tuple(
    re.findall(r'vcuda_point\("([^"]+)"\)', (PRELOAD / "region.c").read_text())
)


@pytest.mark.parametrize("point", POINTS)
def test_a_process_killed_at_this_point_hangs_nobody(
    container: Container, point: str
) -> None:
    """Also one that has the lock; what it held is free again."""
    alloc = ("alloc", "cuMemAlloc_v2", "128")
    before = () if point == "initialising" else alloc
    with container.start("dlsym", *before, "point", point, *alloc, *alloc) as process:
        process.communicate(timeout=60)
    assert process.returncode == -9
    full = f"cuMemAlloc_v2 8 {OUT_OF_MEMORY}"
    assert container.said("dlsym", "fill", "cuMemAlloc_v2", "128") == [full]


def test_a_child_counts_for_itself(container: Container) -> None:
    """What its parent holds is the parent's: its child's end does not free it."""
    half = ("alloc", "cuMemAlloc_v2", "512")
    fill = ("fill", "cuMemAlloc_v2", "128")
    told = container.said("dlsym", *half, "child", *fill, "parent", *fill)
    assert told.count(f"cuMemAlloc_v2 4 {OUT_OF_MEMORY}") == 2


def test_a_program_that_takes_its_place_holds_nothing(container: Container) -> None:
    fill = ("fill", "cuMemAlloc_v2", "128")
    probe = str(container.folder / "probe")
    told = container.said("dlsym", *fill, "exec", probe, "dlsym", *fill)
    assert told == [f"cuMemAlloc_v2 8 {OUT_OF_MEMORY}"] * 2


BROKEN: dict[str, Callable[[Container], object]] = {
    "no limits": lambda it: it.limits.unlink(),
    "another form": lambda it: it.limits.write_text("vcuda-limits 2\n"),
    "cut short": lambda it: it.limits.write_text(LIMITS[:-1]),
    "no number": lambda it: it.limits.write_text(LIMITS.replace("1024", "1024x")),
    "two cards": lambda it: it.limits.write_text(f"{LIMITS}card b 5\n"),
    "no region": lambda it: it.region.unlink(),
    "another file": lambda it: it.region.write_bytes(b"x" * 4096),
}


@pytest.mark.parametrize("how", BROKEN)
def test_it_fails_closed(container: Container, how: str) -> None:
    """Nothing can be allocated, and one line says why."""
    BROKEN[how](container)
    alloc = ("alloc", "cuMemAlloc_v2", "1")
    with container.start("dlsym", *alloc, *alloc) as process:
        out, err = process.communicate(timeout=60)
    assert out.splitlines() == [f"cuMemAlloc_v2 0 {OPERATING_SYSTEM}"] * 2
    assert err.startswith("vcuda: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [["bash", "-c", "echo fine | cat"], [sys.executable, "-c", "print('fine')"]],
    ids=["bash", "python"],
)
def test_other_programs_do_not_notice_it(
    container: Container, words: Sequence[str]
) -> None:
    """Also where its files are missing."""
    container.limits.unlink()
    container.region.unlink()
    told = subprocess.run(
        words, env=container.environment, capture_output=True, check=True
    )
    assert told.stdout == b"fine\n"
    assert told.stderr == b""
