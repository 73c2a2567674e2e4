"""What containers use of cards, and overuse."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from exporter.owners.owner_pods import NO_POD, Owner, OwnerPods
from exporter.run import WatchedPods
from exporter.snapshot import ProcessRound, TelemetrySnapshot
from exporter.telemetry import fields as f
from exporter.telemetry.base import ProcessesAnswer, ProcessUse, SmSource
from exporter.usage import (
    Cases,
    ContainerUse,
    Usage,
    UsageBook,
    account_usage,
    due_cases,
    follow_cases,
    is_over,
    overuse_text,
)
from gpushare.domain.model import Amount
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Json
from tests.builders import AT as WRITTEN
from tests.builders import event, page, placement, pod_json, share
from tests.deviceplugin.node_fixture import NODE, found_card
from tests.exporter.exporter_data import (
    AT,
    BLIND,
    BY_CARD,
    SAMPLES,
    A,
    B,
    held,
    of,
    owner,
    owner_pods,
    processes,
    snapshot,
    use,
    with_ids,
)

BUSY = {f.GPU_UTIL: 70.0, f.MEM_COPY_UTIL: 30.0, f.ENC_UTIL: 5.0, f.DEC_UTIL: 6.0}
STRANGER = Owner("uid-a", "0" * 64)
"""A container of pod ``a`` whose id is new: kubelet has not told it yet."""
GONE = Owner("uid-unknown", "0" * 64)
TWO = {"x": (4, 0), "y": (4, 0)}
NONE = SmSource.NONE
OWN = {"source": BY_CARD, "values": {A: BUSY}}
BLINDED = {"troubles": BLIND, "values": {A: BUSY | {f.FB_USED: 500.0}}}
NOTHING_KNOWN = dict.fromkeys([("a", "main"), ("b", "main")], (None, None))


def reckoned(now: TelemetrySnapshot, pods: OwnerPods | None) -> Usage:
    return account_usage(now, pods, Usage())


def used(
    running: Sequence[ProcessUse],
    owners: Sequence[Owner | None],
    *pods: Json,
    source: SmSource = SAMPLES,
    **known: Any,
) -> Usage:
    """The usage of card A by these processes, each with its owner."""
    its = {process.pid: owner_ for process, owner_ in zip(running, owners, strict=True)}
    round_ = processes({A: running}, its, source=source)
    return reckoned(snapshot(round_=round_, **known), owner_pods(*pods))


Wanted = dict[tuple[str, str], tuple[float | None, float | None]]
A_MAIN, B_MAIN = ("a", "main"), ("b", "main")
ALONE = ([use(1, 100, None)], [owner("a")])
OF_TWO = [use(1, 100, None), use(2, 5, None)]
THREE = [use(1, 100), use(2, 50), use(3, 30)]


@pytest.mark.parametrize(
    ("running", "owners", "how", "wanted", "source"),
    [
        (
            [use(1, 100, 20), use(2, 50, 3), use(3, 7, 1)],
            [owner("a"), owner("a"), owner("b")],
            {},
            {A_MAIN: (150, 23), B_MAIN: (7, 1)},
            SAMPLES,
        ),
        # It has just ended, so whoever has no other process is idle.
        ([use(2, 9, 9)], [None], {}, {A_MAIN: (0, 0), B_MAIN: (0, 0)}, SAMPLES),
        # An MPS client's work may be counted for the server.
        (
            [use(1, 100, 20), use(2, None, 3), use(3, 100, None)],
            [owner("a"), owner("a"), owner("b")],
            {"values": {A: {f.FB_USED: 500.0}}},
            {A_MAIN: (None, 23), B_MAIN: (100, None)},
            SAMPLES,
        ),
        # Its container was just restarted, and is the only one that asks.
        ([use(1, 9, 2)], [STRANGER], {}, {A_MAIN: (9, 2), B_MAIN: (0, 0)}, SAMPLES),
        # The driver tells no process's work, so the card's own is that of who is alone.
        (*ALONE, {"source": BY_CARD}, {A_MAIN: (100, None), B_MAIN: (0, 0)}, NONE),
        (*ALONE, OWN, {A_MAIN: (100, 70), B_MAIN: (0, 0)}, BY_CARD),
        (*ALONE, OWN | {"source": NONE}, {A_MAIN: (100, 70), B_MAIN: (0, 0)}, BY_CARD),
        # Another pod's, one outside Kubernetes, or one of a pod nobody knows.
        (
            OF_TWO,
            [owner("a"), owner("b")],
            OWN,
            {A_MAIN: (100, None), B_MAIN: (5, None)},
            NONE,
        ),
        (
            OF_TWO,
            [owner("a"), NO_POD],
            OWN,
            {("", ""): (5, None), A_MAIN: (100, None), B_MAIN: (0, 0)},
            NONE,
        ),
        (OF_TWO, [owner("a"), GONE], OWN, {A_MAIN: (100, None), B_MAIN: (0, 0)}, NONE),
        # A process without an owner may be anybody's; who seems alone may not be.
        (OF_TWO, [owner("a"), None], OWN | BLINDED, NOTHING_KNOWN, NONE),
        (OF_TWO, [owner("a"), None], BLINDED, NOTHING_KNOWN, NONE),
    ],
)
def test_what_two_pods_use(
    running: Sequence[ProcessUse],
    owners: Sequence[Owner | None],
    how: dict[str, Any],
    wanted: Wanted,
    source: SmSource,
) -> None:
    """Memory and work by container, and how the work of the card is known."""
    usage = used(running, owners, held("a"), held("b"), **how)
    uses = {(use.pod, use.container): use for use in usage.containers}
    assert {key: (use.memory_mib, use.sm) for key, use in uses.items()} == wanted
    assert usage.cards[A].sm_source is source
    assert usage.cards[A].unattributed_mib is None


def test_all_kinds_of_work_are_told() -> None:
    for how, wanted in ((OWN, (30, 5, 6)), (OWN | BLINDED, (None, None, None))):
        found = of(used(*ALONE, held("a"), **how), "a")
        assert (found.memory_copy, found.encoder, found.decoder) == wanted


def test_containers_of_a_pod_are_several() -> None:
    """None of them is taken for idle while one is restarted."""
    running = [use(1, 100, 20), use(2, 7, 1)]
    owners = [owner("a", "x"), owner("a", "y")]
    for first, wanted in (
        (owners[0], {"x": 100, "y": 7}),
        (STRANGER, {"": 100, "x": None, "y": None}),
    ):
        usage = used(running, [first, owners[1]], held("a", containers=TWO))
        assert {use.container: use.memory_mib for use in usage.containers} == wanted


@pytest.mark.parametrize(
    "round_",
    [
        None,
        processes({}, failure="no driver"),
        processes({A: ProcessesAnswer(failure="it hangs")}),
        processes({A: ProcessesAnswer(known=False)}),
    ],
    ids=["off", "no driver", "hangs", "lists none"],
)
def test_unknown_is_no_zero(round_: ProcessRound | None) -> None:
    pods = owner_pods(held("a"), held("b", on=B))
    usage = reckoned(snapshot(round_=round_), pods)
    found = of(usage, "a")
    assert found.allotted == Amount(0, 8)
    assert (found.memory_mib, found.sm, found.last_busy) == (None, None, None)
    assert usage.cards[A].unattributed_mib is None
    known = round_ is not None and not round_.failure
    assert of(usage, "b", card=B).sm == (0 if known else None)


def test_processes_outside_kubernetes_are_one_entry() -> None:
    running = [use(1, 100, 20), use(2, 50, 3)]
    usage = used(running, [NO_POD] * 2, source=SmSource.INFO)
    outside = ContainerUse(A, "", "", "", "", None, False, 150, 23, 0, 0, 0, AT)
    assert usage.containers == (outside,)
    assert usage.cards[A].sm_source is SmSource.INFO


def test_what_nobody_accounts_for() -> None:
    """Never below zero, because two readings are never of one moment."""
    running = [use(1, 100), use(2, 50), use(3, 30)]
    owners = [owner("a"), NO_POD, owner("gone")]
    for in_use, left in ((500.0, 350), (90.0, 0)):
        values = {A: {f.FB_USED: in_use}, B: {f.FB_USED: 0.0}}
        usage = used(running, owners, held("a"), values=values)
        assert usage.cards[A].unattributed_mib == left
        assert usage.cards[B].unattributed_mib == 0
        assert [use.pod for use in usage.containers] == ["", "a"]


@pytest.mark.parametrize("apart", [True, False], ids=["apart", "of-earlier-version"])
def test_parts_that_make_100_cores_can_be_exceeded(*, apart: bool) -> None:
    """They are no whole card, also where an earlier version has added them up."""
    pod = held("a", containers={"x": (4, 60), "y": (4, 40)})
    notes = pod["metadata"]["annotations"]
    notes[names.CONTAINERS] = names.APART
    if apart:
        shares = [share(A, 4, 60, container="x"), share(A, 4, 40, container="y")]
        parts = placement("a", shares=shares, node=NODE)
        notes[names.PLACEMENT] = encode_placement(parts, WRITTEN)
    usage = used([use(1, 9000)], [owner("a", "x")], pod)
    assert not usage.cards[A].exclusive
    assert is_over(of(usage, "a", "x"))


def test_what_a_card_is_allotted() -> None:
    whole = held("c", on=B, containers={"x": (0, 100)}, charged=(29, 100))
    twice = held("b", 8)
    two = placement("b", shares=[share(A, 4), share(A, 4)], node=NODE)
    notes = twice["metadata"]["annotations"]
    notes[names.PLACEMENT] = encode_placement(two, WRITTEN)
    usage = used([], [], held("a", 4), twice, whole)
    assert (usage.cards[A].allotted_units, usage.cards[A].exclusive) == (12, False)
    assert (usage.cards[B].allotted_units, usage.cards[B].exclusive) == (29, True)
    assert of(usage, "c", "x", B).exclusive
    assert of(usage, "b").allotted == Amount(0, 8)


def test_without_pods_nothing_is_said_of_containers() -> None:
    """Neither that they use nothing nor that nothing is allotted."""
    round_ = processes({A: [use(1, 100, 20)]}, {1: owner("a")})
    now = snapshot(round_=round_, values={A: {f.FB_USED: 500.0}})
    usage = reckoned(now, None)
    assert usage.containers == ()
    assert usage.cards[A].allotted_units is None
    assert usage.cards[A].unattributed_mib is None
    assert reckoned(TelemetrySnapshot(), owner_pods(held("a"))) == Usage()


def test_a_pod_of_which_nobody_knows_the_cards() -> None:
    asking = with_ids(pod_json("a", units=4, node=NODE))
    found = of(used([use(1, 100, 20)], [owner("a")], asking), "a")
    assert (found.allotted, found.placed, found.memory_mib) == (None, False, 100)


def test_containers_come_in_a_fixed_order() -> None:
    """By card, namespace, pod and container, whatever came first."""
    two = held("a", containers={"y": (1, 0), "x": (1, 0)})
    pods = [held("b"), two, held("d", namespace="another"), held("c", on=B)]
    for order in (pods, pods[::-1]):
        usage = used([], [], *order)
        found = [(u.card, u.namespace, u.pod, u.container) for u in usage.containers]
        assert found == [
            (A, "another", "d", "main"),
            (A, "default", "a", "x"),
            (A, "default", "a", "y"),
            (A, "default", "b", "main"),
            (B, "default", "c", "main"),
        ]


Running = Mapping[int, tuple[float, float]]
ASLEEP, WORKS = (700, 0.0), (3000, 50.0)


def contexts(*rounds: tuple[float, Running], **how: float) -> list[float]:
    """What counts as contexts, by round: seconds, and MiB and work by pid."""
    usage, found = Usage(), []
    for after_s, running in rounds:
        its = [use(pid, mib, sm) for pid, (mib, sm) in running.items()]
        owners = {pid: owner("a") for pid in running}
        round_ = processes({A: its}, owners, at=AT + after_s)
        usage = account_usage(
            snapshot(round_=round_), owner_pods(held("a")), usage, **how
        )
        found.append(of(usage, "a").context_mib)
    return found


def test_a_container_has_one_context_beside_its_share() -> None:
    """Of so many MiB at most, and of no more than a process holds at all."""
    assert contexts((0, {1: (3000, 50), 2: (2000, 0), 3: (90, 1)})) == [512]
    assert contexts((0, {1: (80, 50), 2: (90, 1)})) == [90]
    assert contexts((0, {1: (3000, 50)}), context_mib=0) == [0]


def test_the_size_of_a_context_is_learnt() -> None:
    """The least of several counts, because others have allocated something."""
    both: Running = {1: ASLEEP, 2: WORKS}
    rounds = ((0, both), (58, both), (60, both), (62, {2: WORKS}))
    assert contexts(*rounds) == [512, 512, 700, 700]
    running = {1: (900, 0.0), 2: (650, 0.0), 3: WORKS}
    assert contexts((0, running), (60, running))[-1] == 650
    running[4] = (300, 0.0)
    assert contexts((0, running), (60, running))[-1] == 512


@pytest.mark.parametrize(
    ("first", "then"),
    [((1100, 0.0), (1100, 0.0)), (ASLEEP, (701, 0.0)), (ASLEEP, (700, 1.0))],
    ids=["large", "grows", "works"],
)
def test_nothing_is_learnt_of_a_process_that_allocates(
    first: tuple[float, float], then: tuple[float, float]
) -> None:
    rounds = [(0, first), (30, then), (60, first)]
    assert contexts(*((at, {1: values, 2: WORKS}) for at, values in rounds))[-1] == 512


SHARE = 8 * 256


def one(mib: float | None, units: int | None = 8, **how: Any) -> ContainerUse:
    """A container of 8 units that uses so much."""
    allotted = None if units is None else Amount(0, units)
    made = ContainerUse(A, "default", "a", "uid-a", "main", allotted, memory_mib=mib)
    return replace(made, **how)


HIGH, LOW, UNKNOWN = one(3000), one(100), one(None)
NOTHING = Usage((), {}, None)


def at(after_s: float, *uses: ContainerUse) -> tuple[Usage, float]:
    return Usage(uses, {}, AT + after_s), after_s


def follow(*rounds: tuple[Usage, float]) -> Cases:
    found: Cases = {}
    for usage, now in rounds:
        found = follow_cases(found, usage, now)
    return found


def lasted(*rounds: tuple[Usage, float]) -> list[float]:
    return [excess.lasted_s for excess in follow(*rounds).values()]


def is_due(after_s: float, *rounds: tuple[Usage, float]) -> bool:
    return bool(list(due_cases(follow(*rounds), after_s)))


@pytest.mark.parametrize(
    ("use", "over"),
    [
        (one(0), False),
        (one(SHARE), False),
        (one(SHARE * 1.05), False),
        (one(SHARE * 1.06), True),
        (one(SHARE + 512, context_mib=512), False),
        (one(SHARE * 1.06 + 512, context_mib=512), True),
        (one(99, units=None, context_mib=99), True),
        (one(None), None),
        (one(99, units=None), True),
        (one(0, units=None), False),
        (one(99, units=None, placed=False), None),
        (one(99999, exclusive=True), None),
        (one(99, units=0, allotted=Amount(50, 0), context_mib=99), False),
        (one(4000, units=0, allotted=Amount(50, 0), context_mib=512), True),
        (one(99, units=None, uid="", pod="", namespace="", container=""), None),
        (one(99, units=None, container=""), None),
    ],
)
def test_what_is_over_a_share(use: ContainerUse, *, over: bool | None) -> None:
    """Never one whose share nobody knows, nor one with the card to itself."""
    assert is_over(use) is over


def test_an_excess_counts_from_its_first_round() -> None:
    assert lasted(at(0, LOW), at(2, HIGH), at(4, HIGH), at(7, HIGH)) == [5]
    assert lasted(at(2, HIGH), at(4, LOW)) == lasted(at(0, HIGH), at(2)) == []
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
    nothing = [(NOTHING, float(after_s)) for after_s in range(2, 70, 2)]
    for between in (unknown, nothing):
        assert lasted(at(0, HIGH), *between, at(70, HIGH)) == [0]
    assert lasted(at(0, HIGH), at(15, HIGH)) == [15]
    assert lasted(at(0, HIGH), at(15, HIGH), at(75, HIGH), at(77, HIGH)) == [17]


def test_the_words() -> None:
    over = one(3000.4, context_mib=512)
    [excess] = follow(*(at(after_s, over) for after_s in (0, 10, 14.2))).values()
    assert overuse_text(excess, "card 0 (GPU-1)") == (
        "container main uses 3000 MiB of card 0 (GPU-1) for 14 s; its share is 2048 "
        "MiB, plus 512 MiB allowed for one CUDA context"
    )
    alone = one(4000, units=0, allotted=Amount(50, 0), context_mib=512)
    [excess] = follow(at(0, alone)).values()
    assert overuse_text(excess, "card 0 (GPU-1)") == (
        "container main uses 4000 MiB of card 0 (GPU-1) for 0 s; it asked for cores "
        "alone, plus 512 MiB allowed for one CUDA context"
    )
    [excess] = follow(at(0, one(99, units=None))).values()
    assert overuse_text(excess, "card 0 (GPU-1)") == (
        "container main uses 99 MiB of card 0 (GPU-1) without a request for it"
    )


class BookFixture:
    """A usage book over a snapshot that a test sets."""

    def __init__(self, *pods: Json) -> None:
        self.watched = WatchedPods()
        self.watched.replace(iter([page(*pods)]))
        self.book = UsageBook(lambda: self.now, self.watched.current)
        self.work(0, 0)

    def work(self, sm: float | None, after_s: float) -> None:
        running = [] if sm == 0 else [use(1, 10, sm)]
        round_ = processes({A: running}, {1: owner("a")}, at=AT + after_s)
        self.now: TelemetrySnapshot = snapshot(found_card(0), round_=round_)

    def last_busy(self) -> float:
        return (of(self.book.now(), "a").last_busy or 0) - AT


def test_the_last_work_is_remembered() -> None:
    """Moved on by work alone, not by a silent driver; another UID begins anew."""
    fixture = BookFixture(held("a"))
    seen = []
    for sm, after_s in ((0, 0), (0, 5), (30, 10), (None, 15), (0, 20)):
        fixture.work(sm, after_s)
        seen.append(fixture.last_busy())
    assert seen == [0, 0, 10, 10, 10]
    new = pod_json("a", uid="second", units=8, node=NODE)
    notes = held("a")["metadata"]["annotations"]
    new["metadata"]["annotations"] = {
        key: text.replace("uid-a", "second") for key, text in notes.items()
    }
    fixture.watched.replace(iter([page(with_ids(new))]))
    fixture.work(0, 60)
    assert fixture.last_busy() == 60


def test_nothing_is_worked_out_twice() -> None:
    """Memory in use, and whether owners can be told, change what a card comes to."""
    fixture = BookFixture(held("a"))
    book, first = fixture.book, fixture.book.now()
    assert book.now() is first
    fixture.work(30, 5)
    second = book.now()
    assert second is not first
    fixture.watched.apply(event("ADDED", held("b")))
    assert [use.pod for use in book.now().containers] == ["a", "b"]
    assert book.now().cards[A].unattributed_mib is None
    memory = snapshot(values={A: {f.FB_USED: 19.0}}).rounds
    fixture.now = replace(fixture.now, rounds=memory)
    assert book.now().cards[A].unattributed_mib == 9
    busy = {**memory, **snapshot(values={A: {f.GPU_UTIL: 1.0}}).rounds}
    before, fixture.now = book.now(), replace(fixture.now, rounds=busy)
    assert book.now() is not before
    fixture.now = replace(fixture.now, troubles=BLIND)
    assert book.now().cards[A].unattributed_mib is None
    alone = UsageBook(lambda: fixture.now)
    assert (alone.has_pods, alone.owner_pods()) == (False, None)
    assert alone.now().cards.keys() == {A}
