"""What containers use of cards, and overuse."""

import pytest

from deviceplugin.exporter.owners import NO_POD, Owner, Tenancy
from deviceplugin.exporter.snapshot import ProcessRound, Snapshot
from deviceplugin.exporter.usage import (
    ContainerUse,
    Overuses,
    Usage,
    account_usage,
    detect_overuse,
    due,
    is_over,
    overuse_text,
)
from deviceplugin.telemetry.base import ProcessesAnswer, SmSource
from deviceplugin.telemetry.fields import (
    DEC_UTIL,
    ENC_UTIL,
    FB_USED,
    GPU_UTIL,
    MEM_COPY_UTIL,
)
from gpushare.domain.model import Amount
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from tests.builders import AT as WRITTEN
from tests.builders import placement, pod_json, share
from tests.deviceplugin.exporter_data import (
    AT,
    BLIND,
    BY_CARD,
    A,
    B,
    held,
    of,
    owner,
    processes,
    snapshot,
    tenancy,
    use,
    with_ids,
)
from tests.deviceplugin.node_fixture import NODE


def reckoned(now: Snapshot, pods: Tenancy | None, before: Usage | None = None) -> Usage:
    return account_usage(now, pods, before or Usage())


def test_processes_of_a_container_are_one() -> None:
    """Memory and work are added up; two pods on a card keep theirs apart."""
    round_ = processes(
        {A: [use(1, 100, 20), use(2, 50, 3), use(3, 7, 1)]},
        {1: owner("a"), 2: owner("a"), 3: owner("b")},
    )
    usage = reckoned(snapshot(round_=round_), tenancy(held("a"), held("b")))
    assert (of(usage, "a").memory_mib, of(usage, "a").sm) == (150, 23)
    assert (of(usage, "b").memory_mib, of(usage, "b").sm) == (7, 1)


def test_containers_of_a_pod_are_several() -> None:
    """Each has its own, not the pod's sum."""
    pod = held("a", containers={"x": (4, 0), "y": (4, 0)})
    round_ = processes(
        {A: [use(1, 100, 20), use(2, 50, 3)]},
        {1: owner("a", "x"), 2: owner("a", "y")},
    )
    usage = reckoned(snapshot(round_=round_), tenancy(pod))
    assert of(usage, "a", "x").memory_mib == 100
    assert of(usage, "a", "y").memory_mib == 50


def test_the_same_container_on_two_cards() -> None:
    """One entry on each, with the work on that card."""
    round_ = processes(
        {A: [use(1, 100, 20)], B: [use(1, 7, 1)]},
        {1: owner("a")},
    )
    usage = reckoned(snapshot(round_=round_), tenancy(held("a")))
    assert of(usage, "a", card=A).memory_mib == 100
    strayed = of(usage, "a", card=B)
    assert (strayed.memory_mib, strayed.allotted) == (7, None)


def test_idle_is_zero() -> None:
    """Of who was allotted something and has no process."""
    usage = reckoned(snapshot(round_=processes({})), tenancy(held("a", 8, 50)))
    found = of(usage, "a")
    assert found.allotted == Amount(50, 8)
    work = (found.sm, found.memory_copy, found.encoder, found.decoder)
    assert (found.memory_mib, *work) == (0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    "round_",
    [
        None,
        processes({}, failure="no driver"),
        processes({A: ProcessesAnswer(failure="it hangs")}),
        processes({A: ProcessesAnswer(known=False)}),
    ],
)
def test_unknown_is_no_zero(round_: ProcessRound | None) -> None:
    """The group is off, the card fails, or its driver lists no processes."""
    usage = reckoned(snapshot(round_=round_), tenancy(held("a")))
    found = of(usage, "a")
    assert found.allotted == Amount(0, 8)
    assert (found.memory_mib, found.sm, found.last_busy) == (None, None, None)
    assert usage.cards[A].unattributed_mib is None


def test_another_cards_failure_is_its_own() -> None:
    """What is known of one card stays known."""
    round_ = processes({A: ProcessesAnswer(failure="it hangs"), B: []})
    pods = tenancy(held("a", on=A), held("b", on=B))
    usage = reckoned(snapshot(round_=round_), pods)
    assert of(usage, "a").sm is None
    assert of(usage, "b", card=B).sm == 0


def test_while_proc_cannot_be_read_nobodys_use_is_known() -> None:
    """A process without an owner may be anybody's, of one with others, too."""
    round_ = processes({A: [use(1, 100, 20), use(2, 9, 9)]}, {1: owner("a"), 2: None})
    now = snapshot(round_=round_, troubles=BLIND, values={A: {FB_USED: 500.0}})
    usage = reckoned(now, tenancy(held("a"), held("b")))
    for pod in "ab":
        found = of(usage, pod)
        assert (found.memory_mib, found.sm, found.encoder) == (None, None, None)
    assert usage.cards[A].unattributed_mib is None


def test_while_proc_cannot_be_read_nobody_has_the_cards_own() -> None:
    """Whoever is seen alone may not be alone."""
    round_ = processes({A: [use(1, 100, None)]}, {1: owner("a")}, source=BY_CARD)
    usage = reckoned(
        snapshot(round_=round_, troubles=BLIND, values={A: BUSY}), tenancy(held("a"))
    )
    assert of(usage, "a").sm is None
    assert usage.cards[A].sm_source is SmSource.NONE


def test_a_container_that_was_just_restarted_keeps_its_use() -> None:
    """Its id is new, and kubelet has not told it: the pod has no other that asks."""
    round_ = processes({A: [use(1, 100, 20)]}, {1: Owner("uid-a", "0" * 64)})
    usage = reckoned(snapshot(round_=round_), tenancy(held("a")))
    assert [one.container for one in usage.containers] == ["main"]
    assert (of(usage, "a").memory_mib, of(usage, "a").sm) == (100, 20)


def test_of_several_containers_none_is_idle_while_one_is_restarted() -> None:
    """It may be any of the pod's; other pods' are known as before."""
    pod = held("a", containers={"x": (4, 0), "y": (4, 0)})
    round_ = processes(
        {A: [use(1, 100, 20), use(2, 7, 1), use(3, 50, 3)]},
        {1: Owner("uid-a", "0" * 64), 2: owner("a", "x"), 3: owner("b")},
    )
    usage = reckoned(snapshot(round_=round_), tenancy(pod, held("b")))
    for name in "xy":
        found = of(usage, "a", name)
        assert (found.memory_mib, found.sm) == (None, None)
    assert (of(usage, "a", "").memory_mib, of(usage, "b").sm) == (100, 3)


def test_a_process_that_has_just_ended_makes_nobody_unknown() -> None:
    """Its cgroup was gone before it could be read."""
    round_ = processes({A: [use(2, 9, 9)]}, {2: None})
    usage = reckoned(snapshot(round_=round_), tenancy(held("a")))
    assert of(usage, "a").sm == 0


def test_memory_that_the_driver_does_not_tell() -> None:
    """Makes the container's unknown, and what is left over; its work is known."""
    round_ = processes(
        {A: [use(1, 100, 20), use(2, None, 3)]}, {1: owner("a"), 2: owner("a")}
    )
    now = snapshot(round_=round_, values={A: {FB_USED: 500.0}})
    usage = reckoned(now, tenancy(held("a")))
    assert (of(usage, "a").memory_mib, of(usage, "a").sm) == (None, 23)
    assert usage.cards[A].unattributed_mib is None


def test_an_mps_clients_work_is_omitted() -> None:
    """It may be counted for the server: memory is the client's, its work unknown."""
    round_ = processes({A: [use(1, 100, None)]}, {1: owner("a")})
    usage = reckoned(snapshot(round_=round_), tenancy(held("a")))
    assert (of(usage, "a").memory_mib, of(usage, "a").sm) == (100, None)


BUSY = {GPU_UTIL: 70.0, MEM_COPY_UTIL: 30.0, ENC_UTIL: 5.0, DEC_UTIL: 6.0}


@pytest.mark.parametrize("source", [SmSource.CARD, SmSource.NONE])
def test_one_who_works_alone_has_the_cards_own(source: SmSource) -> None:
    """Where the driver tells no process's work; who has no process is idle."""
    round_ = processes({A: [use(1, 100, None)]}, {1: owner("a")}, source=source)
    now = snapshot(round_=round_, values={A: BUSY})
    usage = reckoned(now, tenancy(held("a"), held("b")))
    found = of(usage, "a")
    work = (found.sm, found.memory_copy, found.encoder, found.decoder)
    assert work == (70, 30, 5, 6)
    assert of(usage, "b").sm == 0
    assert usage.cards[A].sm_source is SmSource.CARD


@pytest.mark.parametrize("other", [owner("b"), NO_POD, Owner("uid-unknown", "0" * 64)])
def test_of_several_nobody_has_the_cards_own(other: Owner) -> None:
    """Another pod's, one outside Kubernetes, or one of a pod nobody knows."""
    round_ = processes(
        {A: [use(1, 100, None), use(2, 5, None)]},
        {1: owner("a"), 2: other},
        source=BY_CARD,
    )
    now = snapshot(round_=round_, values={A: BUSY})
    usage = reckoned(now, tenancy(held("a"), held("b")))
    assert of(usage, "a").sm is None
    assert of(usage, "a").memory_mib == 100
    assert usage.cards[A].sm_source is SmSource.NONE


def test_the_cards_own_work_may_be_unknown() -> None:
    """Then so is the container's."""
    round_ = processes({A: [use(1, 100, None)]}, {1: owner("a")}, source=BY_CARD)
    usage = reckoned(snapshot(round_=round_), tenancy(held("a")))
    assert of(usage, "a").sm is None
    assert usage.cards[A].sm_source is SmSource.NONE


def test_the_drivers_own_way_is_named() -> None:
    """As it told it."""
    now = snapshot(round_=processes({}, source=SmSource.INFO))
    usage = reckoned(now, tenancy())
    assert usage.cards[A].sm_source is SmSource.INFO


def test_processes_outside_kubernetes_are_one_entry() -> None:
    """On each card where there are any, with no name."""
    round_ = processes({A: [use(1, 100, 20), use(2, 50, 3)]}, {1: NO_POD, 2: NO_POD})
    usage = reckoned(snapshot(round_=round_), tenancy())
    outside = ContainerUse(A, "", "", "", "", None, False, 150, 23, 0, 0, 0, AT)
    assert usage.containers == (outside,)


def test_what_nobody_accounts_for() -> None:
    """In use less what processes hold; those of pods nobody knows are not known."""
    round_ = processes(
        {A: [use(1, 100), use(2, 50), use(3, 30)]},
        {1: owner("a"), 2: NO_POD, 3: owner("gone")},
    )
    now = snapshot(round_=round_, values={A: {FB_USED: 500.0}, B: {FB_USED: 0.0}})
    usage = reckoned(now, tenancy(held("a")))
    assert usage.cards[A].unattributed_mib == 350
    assert usage.cards[B].unattributed_mib == 0
    assert [one.pod for one in usage.containers] == ["", "a"]


def test_what_nobody_accounts_for_is_never_below_zero() -> None:
    """Two readings are never of one moment."""
    round_ = processes({A: [use(1, 100)]}, {1: owner("a")})
    now = snapshot(round_=round_, values={A: {FB_USED: 90.0}})
    assert reckoned(now, tenancy(held("a"))).cards[A].unattributed_mib == 0


def test_what_a_card_is_allotted() -> None:
    """All that is charged; a whole card is its pod's alone."""
    pods = tenancy(
        held("a", 8),
        held("b", 4),
        held("c", on=B, containers={"x": (0, 100)}, charged=(29, 100)),
    )
    usage = reckoned(snapshot(round_=processes({})), pods)
    assert (usage.cards[A].allotted_units, usage.cards[A].exclusive) == (12, False)
    assert (usage.cards[B].allotted_units, usage.cards[B].exclusive) == (29, True)
    assert of(usage, "c", "x", B).exclusive


def test_two_shares_of_one_card_are_added_up() -> None:
    """As an annotation may have them."""
    pod = held("a", 8)
    half = share(A, 4)
    notes = pod["metadata"]["annotations"]
    two = placement("a", shares=[half, half], node=NODE)
    notes[names.PLACEMENT] = encode_placement(two, WRITTEN)
    usage = reckoned(snapshot(round_=processes({})), tenancy(pod))
    assert of(usage, "a").allotted == Amount(0, 8)


def test_without_pods_nothing_is_said_of_containers() -> None:
    """Neither that they use nothing nor that nothing is allotted."""
    round_ = processes({A: [use(1, 100, 20)]}, {1: owner("a")})
    now = snapshot(round_=round_, values={A: {FB_USED: 500.0}})
    usage = reckoned(now, None)
    assert usage.containers == ()
    assert usage.cards[A].allotted_units is None
    assert usage.cards[A].unattributed_mib is None


def test_without_cards_there_is_nothing() -> None:
    """Before any was found."""
    assert reckoned(Snapshot(), tenancy(held("a"))) == Usage()


def test_a_pod_of_which_nobody_knows_the_cards() -> None:
    """What it uses is shown, and that it was not placed."""
    asking = with_ids(pod_json("a", units=4, node=NODE))
    round_ = processes({A: [use(1, 100, 20)]}, {1: owner("a")})
    found = of(reckoned(snapshot(round_=round_), tenancy(asking)), "a")
    assert (found.allotted, found.placed, found.memory_mib) == (None, False, 100)


def test_containers_come_in_a_fixed_order() -> None:
    """By card, namespace, pod and container, whatever came first."""
    pods = [
        held("b"),
        held("a", containers={"y": (1, 0), "x": (1, 0)}),
        held("a", namespace="another"),
        held("c", on=B),
    ]
    wanted = [
        (A, "another", "a", "main"),
        (A, "default", "a", "x"),
        (A, "default", "a", "y"),
        (A, "default", "b", "main"),
        (B, "default", "c", "main"),
    ]
    pods[2]["metadata"]["uid"] = "other"
    pods[2]["metadata"]["annotations"] = {
        key: text.replace("uid-a", "other")
        for key, text in pods[2]["metadata"]["annotations"].items()
    }
    for order in (pods, pods[::-1]):
        usage = reckoned(snapshot(round_=processes({})), tenancy(*order))
        found = [(u.card, u.namespace, u.pod, u.container) for u in usage.containers]
        assert found == wanted


def contexts(
    *rounds: tuple[float, dict[int, tuple[float, float]]], **how: float
) -> list[float]:
    """What is put down to the contexts of a container's processes, round by round.

    A round is of so many seconds, and of MiB and work by pid.
    """
    usage, found = Usage(), []
    for after_s, running in rounds:
        its = [use(pid, mib, sm) for pid, (mib, sm) in running.items()]
        owners = {pid: owner("a") for pid in running}
        round_ = processes({A: its}, owners, at=AT + after_s)
        usage = account_usage(snapshot(round_=round_), tenancy(held("a")), usage, **how)
        found.append(of(usage, "a").contexts_mib)
    return found


def test_each_process_has_a_context() -> None:
    """Of so many MiB at most, and of no more than it holds at all."""
    assert contexts((0, {1: (3000, 50), 2: (2000, 0), 3: (90, 1)})) == [512 + 512 + 90]
    assert contexts((0, {1: (3000, 50)}), context_mib=0) == [0]


def test_the_size_of_a_context_is_learnt() -> None:
    """From a process that holds the same for a minute and never works; it stays so."""
    asleep, busy = (700, 0.0), (3000, 50.0)
    found = contexts(
        (0, {1: asleep, 2: busy}),
        (58, {1: asleep, 2: busy}),
        (60, {1: asleep, 2: busy}),
        (62, {2: busy}),
    )
    assert found == [1024, 1024, 1400, 700]


def test_the_least_of_several_is_the_context() -> None:
    """The others have allocated something; the setting is never undercut."""
    running = {1: (900, 0.0), 2: (650, 0.0), 3: (3000, 50.0)}
    assert contexts((0, running), (60, running))[-1] == 650 * 3
    running[4] = (300, 0.0)
    assert contexts((0, running), (60, running))[-1] == 512 * 3 + 300


@pytest.mark.parametrize(
    "then", [(1100, 0.0), (701, 0.0), (700, 1.0)], ids=["large", "grows", "works"]
)
def test_nothing_is_learnt_of_a_process_that_allocates(
    then: tuple[float, float],
) -> None:
    """Or may do so: it is too large, it changes, or it works."""
    first = (1100, 0.0) if then[0] == 1100 else (700, 0.0)
    busy = (3000, 50.0)
    found = contexts(
        (0, {1: first, 2: busy}), (30, {1: then, 2: busy}), (60, {1: first, 2: busy})
    )
    assert found[-1] == 1024


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
