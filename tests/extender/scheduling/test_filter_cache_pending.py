"""Pods told yes whose bind has not come."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.scheduling.filter_cache import (
    Inflight,
    KeptAnswers,
    PendingBind,
    refuse_with_pending,
)
from gpushare.domain.card_selector import CardSelector
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import NodeName, Placement, PodRequest, Reason
from gpushare.domain.placement import find_refusal, place
from gpushare.domain.policies import POLICIES
from gpushare.kube.annotations import decode_placement
from gpushare.kube.cluster import Kind
from gpushare.kube.codec import read_pod_ref
from gpushare.kube.names import MODELS, PLACEMENT, UUIDS
from tests.builders import (
    FIRST_FIT,
    SPREAD,
    apart,
    card,
    cards,
    claim,
    event,
    node_json,
    ref,
    request,
)
from tests.extender.extender_fixture import Clock, ExtenderFixture

N = NodeName("n")
A = ref("a").uid


def inflight(clock: Callable[[], float], *, wait_s: float = 0.0) -> Inflight:
    made = Inflight(wait_s=wait_s, pending_for_s=5.0, clock=clock)
    made.add(request("a", 4), FIRST_FIT, [N])
    return made


def pending(asked: PodRequest, *names: str, policy: str = "first-fit") -> PendingBind:
    nodes = [NodeName(name) for name in names]
    return PendingBind(asked, POLICIES[policy], nodes, 5.0)


@pytest.mark.parametrize("how", ["bind", "failed-bind", "refusal", "deletion"])
def test_a_pod_is_no_longer_pending(how: str) -> None:
    extender = ExtenderFixture()
    pod = extender.create(units=20)
    extender.filter(pod)
    assert len(extender.inflight) == 1
    match how:
        case "bind":
            extender.bind(pod, judged=False)
        case "failed-bind":
            extender.cluster.delete(Kind.PODS, "default", "pod")
            assert extender.bind(pod, judged=False).error
        case "refusal":
            extender.bind(extender.create("other", units=20))
            assert not extender.filter(pod).kept
        case "deletion":
            extender.pods.replace(iter([]))
    assert len(extender.inflight) == 0


def test_a_pod_waits_for_others_alone() -> None:
    """A wait ends when its time is up, and tells who is still pending."""
    clock = Clock()
    yes = inflight(clock, wait_s=0.001)
    yes.end(ref("b").uid)
    assert yes.wait(A) == yes.others(A) == ()
    clock.now = 4.9
    assert [each.request.pod.uid for each in yes.wait(ref("b").uid)] == [A]
    clock.now = 5.0
    assert yes.others(None) == ()


def test_a_pod_does_not_wait_for_its_group() -> None:
    """Its pods are bound together, so no bind can come before this one's filter."""
    yes = Inflight(wait_s=60.0, pending_for_s=5.0, clock=Clock())
    yes.add(request("a", 4), FIRST_FIT, [N], "default/gang")
    assert yes.wait(ref("b").uid, "default/gang") == ()
    assert yes.members(ref("b").uid, "default/gang") == yes.others(None)
    assert yes.members(ref("b").uid, "") == ()


def test_a_wait_ends_as_soon_as_the_other_is_bound() -> None:
    looked = Event()

    def clock() -> float:
        looked.set()
        return 0.0

    yes = inflight(clock, wait_s=60.0)
    looked.clear()
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(yes.wait, ref("b").uid)
        assert looked.wait(10)
        yes.end(A)
        assert waiting.result(30) == ()
    assert time.monotonic() - began < 30


def careful(
    ledger: Ledger, asked: PodRequest, *others: PendingBind
) -> dict[str, Reason]:
    fitting = KeptAnswers(ledger)
    fits = fitting.answer(asked, FIRST_FIT).fits
    found = refuse_with_pending(asked, FIRST_FIT, others, fitting, ledger, fits)
    return {name: no.reason for name, no in found.items()}


def ledger(**nodes: tuple[int, ...]) -> Ledger:
    made = Ledger()
    for name, units in nodes.items():
        made.set_cards(NodeName(name), cards(*units))
    return made


BOTH = ("one", "two")
NO = Reason.MEMORY


@pytest.mark.parametrize(
    ("others", "refused"),
    [
        pytest.param([], {}, id="none"),
        pytest.param([pending(request("a", 9), "one")], {}, id="room-for-both"),
        pytest.param([pending(request("a", 20), *BOTH)], {"one": NO}, id="one-card"),
        pytest.param([pending(request("a", 20), "two")], {}, id="elsewhere"),
        pytest.param(
            [pending(request(name, 20), *BOTH) for name in "ab"],
            {"one": NO, "two": NO},
            id="two-pending",
        ),
        pytest.param(
            [pending(request("a", 1, 100), *BOTH)],
            {"one": Reason.CORE_AND_MEMORY},
            id="a-whole-card",
        ),
        pytest.param(
            [pending(request("a", 1, 95), *BOTH)], {"one": Reason.CORE}, id="cores"
        ),
        pytest.param([pending(apart("a", 15, 15), *BOTH)], {"two": NO}, id="apart"),
        pytest.param([pending(request("a", 30), "one")], {}, id="no-longer-fits"),
        pytest.param([pending(request("a", 20), "gone")], {}, id="node-unknown"),
    ],
)
def test_nodes_are_refused_where_the_pending_take_the_room(
    others: list[PendingBind], refused: dict[str, Reason]
) -> None:
    """A pending pod counts on every node it was let through to, and nowhere else."""
    asked = request("b", 20, 10)
    assert careful(ledger(one=(29,), two=(29, 29)), asked, *others) == refused


@pytest.mark.parametrize(
    ("units", "waiting", "looked_at"),
    [((29, 10), 1, 200), ((29, 29), 2, 100), ((49, 29), 4, 50)],
)
def test_no_more_than_200_placements_are_tried(
    units: tuple[int, ...], waiting: int, looked_at: int
) -> None:
    """Only a trial shows that there is room, as the pending share one card."""
    names = [f"n{number:03}" for number in range(205)]
    book = ledger(**dict.fromkeys(names, units))
    others = [
        pending(request(f"a{n}", 10), *names, policy="best-fit") for n in range(waiting)
    ]
    refused = careful(book, request("b", 20), *others)
    assert refused == dict.fromkeys(names[looked_at:], Reason.CORE_AND_MEMORY)


@pytest.mark.parametrize(("units", "refused"), [(9, 0), (10, 255)])
def test_many_pending_pods_are_no_reason_where_cards_have_room(
    units: int, refused: int
) -> None:
    """A card takes three pods of 9 units and two of 10, and eight pods want room.

    Where all have room no node is tried, so there may be any number of nodes.
    """
    names = [f"n{number:03}" for number in range(255)]
    book = ledger(**dict.fromkeys(names, (29, 29, 29)))
    others = [pending(request(f"a{n}", units), *names) for n in range(7)]
    assert len(careful(book, request("b", units), *others)) == refused


@pytest.mark.parametrize(
    ("units", "where"), [(20, 255), (21, 1)], ids=["one-card", "elsewhere"]
)
def test_no_trial_where_it_would_show_nothing(units: int, where: int) -> None:
    """One card has room for all, or the pending pods may not be on the node."""
    names = [f"n{number:03}" for number in range(255)]
    book = ledger(**dict.fromkeys(names, (30,)))
    others = [pending(request(f"a{n}", n), *names[:where]) for n in (1, units)]
    refused = careful(book, request("b", 9), *others)
    assert refused == ({} if where > 1 else {"n000": NO})


def test_a_card_that_a_pod_holds_keeps_no_room_for_a_whole_card() -> None:
    """All cores of the first card are free, yet a pod holds memory of it."""
    book = ledger(one=(29, 29))
    book.reserve(request("there", 1), NodeName("one"), FIRST_FIT)
    other = pending(request("a", 1), "one", policy="spread")
    refused = careful(book, request("b", 1, 100), other)
    assert refused == {"one": Reason.UNTOUCHED_CARDS}


def test_more_cards_than_pending_pods_need_no_trial() -> None:
    """A burst on nodes of many cards: whoever is pending, one card keeps the room."""
    names = [f"n{number:03}" for number in range(205)]
    book = ledger(**dict.fromkeys(names, (29, 29, 29, 29)))
    others = [pending(request(name, 20), *names) for name in "acd"]
    assert careful(book, request("b", 20), *others) == {}
    others += [pending(request("e", 20), *names)]
    assert len(careful(book, request("b", 20), *others)) == len(names)


UNITS = st.integers(0, 12)
CORES = st.sampled_from([0, 10, 60, 99, 100, 200])


@st.composite
def asked(draw: st.DrawFn, name: str) -> PodRequest:
    wanted = draw(st.lists(st.tuples(UNITS, CORES), min_size=1, max_size=2))
    claims = [
        claim(units, cores, container=f"c{number}")
        for number, (units, cores) in enumerate(wanted)
    ]
    return request(name, claims=claims)


@settings(deadline=None)
@given(st.data())
def test_the_shortcut_never_says_more_than_a_trial(data: st.DataObject) -> None:
    """Placing the pending pods one by one on each node would keep the node too."""
    sizes = st.lists(st.integers(0, 24), min_size=1, max_size=3)
    book = ledger(a=tuple(data.draw(sizes)), b=tuple(data.draw(sizes)))
    for number in range(data.draw(st.integers(0, 2))):
        there = data.draw(asked(f"there-{number}"))
        book.reserve(there, NodeName("a"), SPREAD)
    policies = st.sampled_from(sorted(POLICIES))
    subsets = st.sampled_from([("a",), ("b",), ("a", "b"), ("b", "gone")])
    others = [
        pending(
            data.draw(asked(f"p{number}")),
            *data.draw(subsets),
            policy=data.draw(policies),
        )
        for number in range(data.draw(st.integers(1, 3)))
    ]
    mine = data.draw(asked("mine"))
    refused = careful(book, mine, *others)
    for node in book.nodes():
        after = node
        for each in (other for other in others if node.name in other.nodes):
            placed = place(each.request, after, each.policy)
            if isinstance(placed, Placement):
                after = after.with_placement(placed)
        fits_now = find_refusal(mine, node, FIRST_FIT) is None
        fits_then = find_refusal(mine, after, FIRST_FIT) is None
        if fits_now and node.name not in refused:
            assert fits_then
        if node.name in refused:
            assert fits_now
            assert not fits_then


P4, T4 = card(0, 29), card(1, 29, model="Tesla T4")


def extender() -> ExtenderFixture:
    made = ExtenderFixture()
    made.nodes.apply(event("MODIFIED", node_json("n", P4, T4)))
    return made


def only(asked: PodRequest, *uuids: str) -> PodRequest:
    return replace(asked, cards=CardSelector.of(uuids=uuids))


def test_room_on_a_card_that_it_may_not_have_is_no_room_for_both() -> None:
    """The other pod may take the one card; a large one beside it changes nothing.

    What is cached for one list of cards is no answer for another.
    """
    ledger = Ledger()
    ledger.set_cards(N, cards(29, 99))
    kept = KeptAnswers(ledger)
    for uuid, units, other, refused in (
        ("GPU-0", 20, ["GPU-0"], True),
        ("GPU-0", 20, ["GPU-1"], False),
        ("GPU-0", 9, ["GPU-0"], False),
        ("GPU-1", 20, [], False),
        ("GPU-0", 20, [], True),
    ):
        new = only(request("new", 20), uuid)
        waits = PendingBind(only(request("other", units), *other), FIRST_FIT, [N], 5.0)
        fits = kept.answer(new, FIRST_FIT).fits
        found = refuse_with_pending(new, FIRST_FIT, [waits], kept, ledger, fits)
        assert (fits, N in found) == ({N}, refused)


def placed_on(extender: ExtenderFixture) -> tuple[str, ...]:
    pod = extender.cluster.pod("pod")
    text = pod["metadata"]["annotations"][PLACEMENT]
    found = decode_placement(text, read_pod_ref(pod), N)
    assert found is not None
    return found.cards()


@pytest.mark.parametrize(
    ("key", "text", "uuid"),
    [
        (MODELS, "tesla t4", "GPU-1"),
        (UUIDS, "GPU-1", "GPU-1"),
        (MODELS, "*", "GPU-0"),
        (MODELS, "!Tesla P4", "GPU-1"),
        (MODELS, "Tesla *, !*P4", "GPU-1"),
        (UUIDS, "!GPU-0", "GPU-1"),
    ],
)
def test_filter_and_bind_keep_to_the_lists(key: str, text: str, uuid: str) -> None:
    made = extender()
    pod = made.create(units=20, annotations={key: text})
    assert made.filter(pod).kept == ["n"]
    assert not made.bind(pod).error
    assert placed_on(made) == (uuid,)


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ("H100", "No shared cards that baidu.com/vcuda-models allows"),
        ("T*4", "Invalid vcuda request: baidu.com/vcuda-models has"),
    ],
)
def test_filter_and_bind_refuse_by_the_lists(models: str, words: str) -> None:
    made = extender()
    pod = made.create(units=20, annotations={MODELS: models})
    (told,) = (made.filter(pod).refused).values()
    assert told.startswith(words)
    assert made.bind(pod).error == told


def test_a_list_may_change_while_the_pod_waits() -> None:
    made = extender()
    pod = made.create(units=20, annotations={MODELS: "H100"})
    assert not made.filter(pod).kept
    pod["metadata"]["annotations"][MODELS] = "Tesla T4"
    assert made.filter(pod).kept == ["n"]
