"""Who is over its share, and since when."""

import pytest

from deviceplugin.usage import ContainerUse, Usage
from deviceplugin.watchdog import Excesses, due, is_over, look, may_evict, words
from gpushare.domain.model import Amount
from tests.deviceplugin.scene import AT, A

SHARE = 8 * 256


def one(mib: float | None, units: int | None = 8, **how: object) -> ContainerUse:
    """A container of 8 units that uses so much."""
    allotted = None if units is None else Amount(0, units)
    made = ContainerUse(A, "default", "a", "uid-a", "main", allotted, memory_mib=mib)
    fields = {name: getattr(made, name) for name in made.__slots__}
    return ContainerUse(**(fields | how))


def at(after_s: float, *uses: ContainerUse) -> Usage:
    return Usage(uses, {}, AT + after_s)


def follow(*usages: Usage) -> Excesses:
    found: Excesses = {}
    for usage in usages:
        found = look(found, usage)
    return found


@pytest.mark.parametrize(
    ("use", "over"),
    [
        (one(0), False),
        (one(SHARE), False),
        (one(SHARE * 1.05), False),
        (one(SHARE * 1.06), True),
        (one(None), None),
        (one(99, units=None), True),
        (one(0, units=None), False),
        (one(99, units=None, placed=False), None),
        (one(99999, exclusive=True), None),
        (one(99, units=0, allotted=Amount(50, 0)), None),
        (one(99, units=None, uid="", pod="", namespace="", container=""), None),
        (one(99, units=None, container=""), None),
    ],
)
def test_what_is_over_a_share(use: ContainerUse, *, over: bool | None) -> None:
    """More memory than allotted, and a little; never one whose share nobody knows.

    Neither one with the card to itself, one that asked for cores alone, nor what runs
    outside Kubernetes or in no container that is known.
    """
    assert is_over(use) is over


def test_an_excess_counts_from_its_first_round() -> None:
    """And is over with the first round below the share."""
    high, low = one(3000), one(100)
    found = follow(at(0, low), at(2, high), at(4, high))
    assert [excess.since for excess in found.values()] == [AT + 2]
    assert not follow(at(2, high), at(4, low))
    again = follow(at(2, high), at(4, low), at(6, high))
    assert [excess.since for excess in again.values()] == [AT + 6]


def test_a_silent_driver_ends_no_excess() -> None:
    """Nor is anything due while nobody knows the use, or nothing was read."""
    high, unknown = one(3000), one(None)
    nothing = Usage((), {}, None)
    found = follow(at(0, high), at(2, unknown), nothing, at(70, high))
    assert [excess.since for excess in found.values()] == [AT]
    assert not list(due(found, at(70, unknown), 60))
    assert not list(due(found, nothing, 60))
    assert len(list(due(found, at(70, high), 60))) == 1


def test_who_has_gone_is_forgotten() -> None:
    """With its pod."""
    assert not follow(at(0, one(3000)), at(2))


def test_what_is_due() -> None:
    """After so long by the rounds' own times, not before."""
    high = one(3000)
    found = follow(at(0, high))
    assert not list(due(found, at(59, high), 60))
    assert [excess.use for excess in due(found, at(60, high), 60)] == [high]


def test_who_may_be_evicted() -> None:
    """One that asked for a share; what never asked is the node's own, mostly."""
    asked, never = follow(at(0, one(3000))), follow(at(0, one(3000, units=None)))
    assert [may_evict(excess) for excess in asked.values()] == [True]
    assert [may_evict(excess) for excess in never.values()] == [False]


def test_the_words() -> None:
    """Numbers, the card, and for how long."""
    [excess] = follow(at(0, one(3000.4))).values()
    assert words(excess, "card 0 (GPU-1)", 61.2) == (
        "container main uses 3000 MiB of card 0 (GPU-1) for 61 s; its share is 2048 MiB"
    )
    [excess] = follow(at(0, one(99, units=None))).values()
    assert words(excess, "card 0 (GPU-1)", 61.2) == (
        "container main uses 99 MiB of card 0 (GPU-1) without having asked for any "
        "part of it"
    )
