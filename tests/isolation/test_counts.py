"""What the driver takes is counted, also where it takes more than it was asked for.

The stand-in keeps what is held apart from what the library counts: no container may
ever hold more than its share.
"""

import pytest

from tests.isolation.container import (
    FILL,
    FULL,
    LIMITS,
    OUT_OF_MEMORY,
    SHARE_MIB,
    Container,
    racing,
)

CONTEXT_MIB = 256
STACK, PRINTF, HEAP = "0", "1", "2"
"""The numbers of limits of a context."""
MIB = 2**20


@pytest.fixture
def contexts(container: Container) -> Container:
    """A container where each process's context counts."""
    limits = LIMITS.replace("limits 1", "limits 2")
    container.limits.write_text(limits.replace(" 1024", f" 1024 {CONTEXT_MIB}"))
    return container


@pytest.mark.parametrize(
    ("size", "fit"),
    [
        (MIB + 1, 512),
        (MIB, 1024),
        (MIB * 3 // 4, 1024),
        (MIB * 2 + 1, 256),
        (MIB // 2 + 1, 1535),
    ],
)
def test_what_the_driver_rounds_up_is_counted_so(
    container: Container, size: int, fit: int
) -> None:
    """Measured on a 3090: they take 2, 1, 1 and 4 MiB; three of the last take 2."""
    told = container.said("dlsym", "fill", "cuMemAlloc_v2", f"{size}B")
    assert told == [f"cuMemAlloc_v2 {fit} {OUT_OF_MEMORY}"]
    assert SHARE_MIB - 4 <= container.peak_mib <= SHARE_MIB


@pytest.mark.parametrize(
    ("way", "fit"),
    [("c2", 4), ("91", 32), ("9d", 16), ("b0", 10)],
    ids=["UNORM_INT8X4", "BC1", "BC7", "NV12"],
)
def test_arrays_count_by_their_format(container: Container, way: str, fit: int) -> None:
    """64 Mi pixels of 32, 4, 8 and 12 bits."""
    told = container.said("dlsym", "fill", f"format-{way}", "64")
    assert told == [f"format-{way} {fit} {OUT_OF_MEMORY}"]


@pytest.mark.parametrize(
    ("limit", "value", "fit"),
    [(HEAP, 264 * MIB, 6), (PRINTF, 129 * MIB, 7), (STACK, 4096, 7), (HEAP, 1024, 8)],
    ids=["heap", "printf", "stack", "less"],
)
def test_memory_for_kernels_counts_with_its_context(
    container: Container, limit: str, value: int, fit: int
) -> None:
    """Stacks are for 20 times 2048 threads. What a context has at first is its own."""
    words = ("context", "limit", limit, str(value), *FILL)
    end = ("destroy", *FILL)
    full = f"cuMemAlloc_v2 {fit} {OUT_OF_MEMORY}"
    assert container.said("dlsym", *words, *end) == ["limit 0", full, "destroy 0", FULL]


def test_memory_for_kernels_ends_at_the_share(container: Container) -> None:
    """And comes back where the limit is lowered again."""
    words = [word for mib in (8 * 1024, 512, 8) for word in ("limit", HEAP, mib * MIB)]
    told = container.said("dlsym", *map(str, words), *FILL)
    assert told == [f"limit {OUT_OF_MEMORY}", "limit 0", "limit 0", FULL]


@pytest.mark.parametrize("seed", range(10))
def test_whatever_is_called_no_more_is_held_than_counted(
    container: Container, seed: int
) -> None:
    """Addresses, arrays, pools, handles, mappings, imports and limits, at random."""
    told = container.said("dlsym", "random", str(seed), "1500")
    assert told == ["left 0 0"]


WAITS = (
    "cuStreamSynchronize",
    "cuStreamSynchronize_ptsz",
    "cuEventSynchronize",
    "cuCtxSynchronize",
    "cuCtxSynchronize_v2",
)


@pytest.mark.parametrize("wait", WAITS)
def test_what_a_pool_gave_back_is_free_for_others(
    container: Container, wait: str
) -> None:
    """A pool keeps what was freed until somebody waits for it."""
    words = ("alloc", "cuMemAllocAsync", "960", "free", "cuMemFreeAsync", wait)
    with container.start("dlsym", *words, "wait") as process:
        assert process.stdout
        told = [process.stdout.readline() for _ in range(4)]
        assert told[-2:] == [f"{wait} 0\n", "waiting\n"]
        assert container.said("dlsym", *FILL) == [FULL]


def test_a_pool_of_the_host_does_not_count(container: Container) -> None:
    """CUDA 13 has one by default."""
    way = "cuMemAllocFromPoolAsync"
    told = container.said("dlsym", "hostpool", "alloc", way, "4096")
    assert told == ["hostpool 0", f"{way} 1 0"]


def test_a_managed_pool_that_prefers_the_host_counts(container: Container) -> None:
    way = "cuMemAllocFromPoolAsync"
    told = container.said("dlsym", "managed", "2", "fill", way, "128")
    assert told == ["pool 0", f"{way} 8 {OUT_OF_MEMORY}"]


def test_a_program_may_have_many_pools(container: Container) -> None:
    assert container.said("dlsym", "many", "200", *FILL) == ["many 200", FULL]


def test_pools_come_and_go_while_others_are_trimmed(container: Container) -> None:
    """The driver is not asked about one that another thread has just destroyed."""
    assert container.said("dlsym", "pools", "400", *FILL) == ["pools done", FULL]


def test_memory_that_is_mapped_again_by_another_handle_counts(
    container: Container,
) -> None:
    """Its first handle is released before the second is made of a mapping."""
    first = ("free", "cuMemMap", "free", "cuMemRelease")
    second = ("free", "cuMemRetainAllocationHandle", "base", "1", *first)
    words = ("fill", "cuMemCreate", "128", *first, *second, "base", "0", "unmap")
    told = container.said("dlsym", *words, "alloc", "cuMemAlloc_v2", "1")
    assert told[-2:] == ["unmap 0", f"cuMemAlloc_v2 0 {OUT_OF_MEMORY}"]


def test_memory_that_a_program_gives_to_itself_counts(container: Container) -> None:
    words = ("fill", "cuMemCreate", "128", "free", "reimport", "free", "exactly")
    told = container.said("dlsym", *words, "alloc", "cuMemAlloc_v2", "1")
    assert told[1:] == [
        "reimport 8 0",
        "exactly 8 0",
        f"cuMemAlloc_v2 0 {OUT_OF_MEMORY}",
    ]
    assert container.said("dlsym", *FILL) == [FULL]


def test_a_context_that_is_detached_gives_all_back(container: Container) -> None:
    words = ("cuCtxCreate_v2", *FILL, "detach", *FILL)
    told = container.said("dlsym", *words)
    assert told == ["cuCtxCreate_v2 0", FULL, "detach 0", FULL]


def test_a_context_is_part_of_the_share(contexts: Container) -> None:
    told = contexts.said("dlsym", "cuCtxCreate_v2", "info", *FILL)
    left = SHARE_MIB - CONTEXT_MIB
    assert told == [
        "cuCtxCreate_v2 0",
        f"info 0 {left} {SHARE_MIB} 0 {SHARE_MIB}",
        f"cuMemAlloc_v2 6 {OUT_OF_MEMORY}",
    ]


@pytest.mark.parametrize("use", ["cuCtxCreate_v2", "alloc"])
def test_so_many_processes_have_contexts_as_fit(contexts: Container, use: str) -> None:
    """Their memory is told by no call, and 15 of them would take a whole card."""
    words = {"alloc": ("alloc", "cuMemAlloc_v2", "1")}.get(use, (use,))
    with racing(contexts, 15, *words) as told:
        refused = [line for line in told if line.endswith(f" {OUT_OF_MEMORY}\n")]
    assert len(told) - len(refused) == {"alloc": 3}.get(use, 4)
    assert contexts.said("dlsym", *FILL) == [f"cuMemAlloc_v2 6 {OUT_OF_MEMORY}"]


def test_a_child_has_a_context_of_its_own(contexts: Container) -> None:
    told = contexts.said("dlsym", "cuCtxCreate_v2", "child", *FILL, "parent", *FILL)
    assert told == [
        "cuCtxCreate_v2 0",
        f"cuMemAlloc_v2 4 {OUT_OF_MEMORY}",
        f"cuMemAlloc_v2 6 {OUT_OF_MEMORY}",
    ]


@pytest.mark.parametrize("last", ["", " 256x", " 256 1", " -1"])
def test_limits_with_contexts_are_read_strictly(
    container: Container, last: str
) -> None:
    limits = LIMITS.replace("limits 1", "limits 2").replace(" 1024", f" 1024{last}")
    container.limits.write_text(limits)
    told, complaint = container.both("dlsym", *FILL)
    assert told == ["cuMemAlloc_v2 0 304"]
    assert 'its second line is not "card UUID MIB MIB"' in complaint
