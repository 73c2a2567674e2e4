"""Who is over its share, and for how long."""

import pytest

from deviceplugin.exporter.usage import (
    ContainerUse,
    Overuses,
    Usage,
    detect_overuse,
    due,
    is_over,
    may_evict,
    overuse_text,
)
from gpushare.domain.model import Amount
from tests.deviceplugin.scene import AT, A

SHARE = 8 * 256


def one(mib: float | None, units: int | None = 8, **how: object) -> ContainerUse:
    """A container of 8 units that uses so much."""
    allotted = None if units is None else Amount(0, units)
    made = ContainerUse(A, "default", "a", "uid-a", "main", allotted, memory_mib=mib)
    fields = {name: getattr(made, name) for name in made.__slots__}
    return ContainerUse(**(fields | how))


HIGH, LOW, UNKNOWN = one(3000), one(100), one(None)
NOTHING = Usage((), {}, None)


def at(after_s: float, *uses: ContainerUse) -> tuple[Usage, float]:
    """A round so many seconds after the beginning."""
    return Usage(uses, {}, AT + after_s), after_s


def follow(*rounds: tuple[Usage, float]) -> Overuses:
    found: Overuses = {}
    for usage, now in rounds:
        found = detect_overuse(found, usage, now)
    return found


def lasted(*rounds: tuple[Usage, float]) -> list[float]:
    return [excess.lasted_s for excess in follow(*rounds).values()]


def is_due(after_s: float, *rounds: tuple[Usage, float]) -> bool:
    return bool(list(due(follow(*rounds), after_s)))


@pytest.mark.parametrize(
    ("use", "over"),
    [
        (one(0), False),
        (one(SHARE), False),
        (one(SHARE * 1.05), False),
        (one(SHARE * 1.06), True),
        (one(SHARE + 512, contexts_mib=512), False),
        (one(SHARE * 1.06 + 512, contexts_mib=512), True),
        (one(99, units=None, contexts_mib=99), True),
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

    The contexts of its processes are none of it.
    Neither one with the card to itself, one that asked for cores alone, nor what runs
    outside Kubernetes or in no container that is known.
    """
    assert is_over(use) is over


def test_an_excess_counts_from_its_first_round() -> None:
    """And is over with the first round below the share."""
    assert lasted(at(0, LOW), at(2, HIGH), at(4, HIGH), at(7, HIGH)) == [5]
    assert lasted(at(2, HIGH), at(4, LOW)) == []
    assert lasted(at(2, HIGH), at(4, LOW), at(6, HIGH), at(8, HIGH)) == [2]


def test_a_silent_driver_ends_no_excess() -> None:
    """What was counted before stays, and nothing is due on the word of then."""
    over = [at(after_s, HIGH) for after_s in range(0, 31, 2)]
    later = [at(after_s, HIGH) for after_s in range(90, 121, 2)]
    for silence in (at(32, UNKNOWN), (NOTHING, 32.0)):
        assert lasted(*over, silence) == [30]
        assert not is_due(30, *over, silence)
        assert lasted(*over, silence, *later) == [60]
        assert is_due(60, *over, silence, *later)


def test_time_in_which_use_was_unknown_does_not_count() -> None:
    """It may have been below its share: two rounds that tell are no minute."""
    unknown = [at(after_s, UNKNOWN) for after_s in range(2, 70, 2)]
    assert lasted(at(0, HIGH), *unknown, at(70, HIGH)) == [0]
    nothing = [(NOTHING, float(after_s)) for after_s in range(2, 70, 2)]
    assert lasted(at(0, HIGH), *nothing, at(70, HIGH)) == [0]


def test_time_without_rounds_does_not_count() -> None:
    """Nobody read anything then; two that lie a little apart are one after another."""
    assert lasted(at(0, HIGH), at(15, HIGH)) == [15]
    assert lasted(at(0, HIGH), at(15, HIGH), at(75, HIGH), at(77, HIGH)) == [17]


def test_who_has_gone_is_forgotten() -> None:
    """With its pod."""
    assert not follow(at(0, HIGH), at(2))


def test_what_is_due() -> None:
    """After so long over its share, not before, and only while it is."""
    rounds = [at(after_s, HIGH) for after_s in range(0, 61, 2)]
    assert not is_due(60, *rounds[:-1])
    assert is_due(60, *rounds)
    assert not is_due(60, *rounds, at(62, LOW))


def test_who_may_be_evicted() -> None:
    """One that asked for a share; what never asked is the node's own, mostly."""
    asked, never = follow(at(0, HIGH)), follow(at(0, one(3000, units=None)))
    assert [may_evict(excess) for excess in asked.values()] == [True]
    assert [may_evict(excess) for excess in never.values()] == [False]


def test_the_words() -> None:
    """Numbers, the card, and for how long."""
    over = one(3000.4, contexts_mib=512)
    [excess] = follow(*(at(after_s, over) for after_s in (0, 10, 14.2))).values()
    assert overuse_text(excess, "card 0 (GPU-1)") == (
        "container main uses 3000 MiB of card 0 (GPU-1) for 14 s; its share is 2048 "
        "MiB, plus 512 MiB allowed for CUDA contexts"
    )
    [excess] = follow(at(0, one(99, units=None))).values()
    assert overuse_text(excess, "card 0 (GPU-1)") == (
        "container main uses 99 MiB of card 0 (GPU-1) without a request for it"
    )
