"""The preload library over a stand-in driver: a container stays within its share.

``probe`` is a program that uses the card as its arguments say, through a door: linked
with the driver, by dlsym, or by cuGetProcAddress. ``standin`` is a card of 16 GiB that
remembers the most that was held at once.
"""

import pytest

from tests.isolation.container import OUT_OF_MEMORY, SHARE_MIB, Container

NOT_SUPPORTED, NOT_WHILE_CAPTURED = 801, 900
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
    said, _ = container.ran([str(container.folder / "hog"), "64"])
    assert said.splitlines() == [
        f"shown {SHARE_MIB} of {SHARE_MIB} MiB, code 0",
        f"held {SHARE_MIB} MiB, refused with {OUT_OF_MEMORY}",
    ]


@pytest.mark.parametrize("door", DOORS)
def test_pools_end_at_the_share(container: Container, door: str) -> None:
    fill = ("fill", "cuMemAllocFromPoolAsync", "128")
    told = container.said(door, "pool", "1", *fill, "free", "cuMemFreeAsync", *fill)
    full = f"cuMemAllocFromPoolAsync 8 {OUT_OF_MEMORY}"
    assert told == ["pool 0", full, "cuMemFreeAsync 8 0", full]


def test_a_pool_may_not_grow_past_the_share(container: Container) -> None:
    """It would take 32 MiB for these 5: refused before the driver is called."""
    most = ("alloc", "cuMemAlloc_v2", "1016")
    told = container.said("dlsym", *most, "alloc", "cuMemAllocAsync", "5")
    assert told[-1] == f"cuMemAllocAsync 0 {OUT_OF_MEMORY}"
    assert container.peak_mib == 1016


def test_a_pool_uses_what_it_keeps(container: Container) -> None:
    """Nothing more is counted for what needs no growth.

    Also where the pool cannot be trimmed, because its stream has not freed it so far.
    """
    words = ("alloc", "cuMemAllocAsync", "900", "free", "cuMemFreeAsync")
    told = container.said("dlsym", *words, "fail", "cuMemPoolTrimTo", *words)
    assert told == ["cuMemAllocAsync 1 0", "cuMemFreeAsync 1 0"] * 2
    assert container.peak_mib <= SHARE_MIB


def test_what_a_pool_keeps_is_given_up_for_others(container: Container) -> None:
    words = ("alloc", "cuMemAllocAsync", "900", "free", "cuMemFreeAsync")
    told = container.said("dlsym", *words, "fill", "cuMemAlloc_v2", "128")
    assert told[-1] == f"cuMemAlloc_v2 8 {OUT_OF_MEMORY}"


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
    way = "cuMemAllocFromPoolAsync"
    told = container.said("dlsym", "pool", "2", "alloc", way, "4096")
    assert told == ["pool 0", f"{way} 1 0"]


def test_a_pool_of_managed_memory_counts(container: Container) -> None:
    """It has no place of its own; a part of it may lie on the card."""
    way = "cuMemAllocFromPoolAsync"
    told = container.said("dlsym", "pool", "0", "fill", way, "128")
    assert told == ["pool 0", f"{way} 8 {OUT_OF_MEMORY}"]


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


@pytest.mark.parametrize("door", ["default", "next", "deepbind"])
def test_other_forms_of_dlsym_are_held_too(container: Container, door: str) -> None:
    told = container.said(door, "fill", "cuMemAlloc_v2", "128")
    assert told == [f"cuMemAlloc_v2 8 {OUT_OF_MEMORY}"]


def test_a_driver_that_is_loaded_again_is_held(container: Container) -> None:
    fill = ("fill", "cuMemAlloc_v2", "256")
    told = container.said("dlsym", "alloc", "cuMemAlloc_v2", "512", "reload", *fill)
    assert told[-1] == f"cuMemAlloc_v2 2 {OUT_OF_MEMORY}"


def test_calls_that_make_no_sense_change_nothing(container: Container) -> None:
    """Sizes beyond all bounds, frees of what is not there, twice or within."""
    told = container.said("dlsym", "odd", "fill", "cuMemAlloc_v2", "128")
    assert told == [
        "huge" + f" {OUT_OF_MEMORY}" * 7,
        "zero 0",
        "frees 0 1 0 1",
        "none 1 1 1",
        f"cuMemAlloc_v2 8 {OUT_OF_MEMORY}",
    ]


def test_of_a_share_of_nothing_nothing_is_had(container: Container) -> None:
    """A container of cores alone; that is out of memory, and nothing is broken."""
    container.limits.write_text(container.limits.read_text().replace(" 1024", " 0"))
    words = ("dlsym", "alloc", "cuMemAlloc_v2", "1", "alloc", "cuMemAllocAsync", "1")
    with container.start(*words, "info") as process:
        out, err = process.communicate(timeout=60)
    assert out.splitlines() == [
        f"cuMemAlloc_v2 0 {OUT_OF_MEMORY}",
        f"cuMemAllocAsync 0 {OUT_OF_MEMORY}",
        "info 0 0 0 0 0",
    ]
    assert err == ""
