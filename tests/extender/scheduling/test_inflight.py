"""Pods told yes whose bind has not come."""

import time
from collections.abc import Callable
from threading import Event, Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.scheduling.inflight import Inflight, Pending, cautious
from gpushare.domain.cache import Fitting
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import NodeName, Placement, PodRequest
from gpushare.domain.placement import place, refusal
from gpushare.domain.policies import POLICIES
from gpushare.domain.refusal import Reason
from gpushare.kube.cluster import Kind
from tests.builders import FIRST_FIT, SPREAD, apart, cards, claim, ref, request
from tests.extender.extender_fixture import Clock, ExtenderFixture

N = NodeName("n")
A = ref("a").uid


def inflight(clock: Callable[[], float], *, wait_s: float = 0.0) -> Inflight:
    made = Inflight(wait_s=wait_s, pending_for_s=5.0, clock=clock)
    made.add(request("a", 4), FIRST_FIT, [N])
    return made


def pending(asked: PodRequest, *names: str, policy: str = "first-fit") -> Pending:
    nodes = [NodeName(name) for name in names]
    return Pending(asked, POLICIES[policy], nodes, 5.0)


@pytest.mark.parametrize("how", ["bind", "failed-bind", "refusal", "deletion"])
def test_a_pod_is_no_longer_pending(how: str) -> None:
    """After its bind, whatever came of it, its next filter, or its deletion."""
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


def test_a_yes_ends_by_itself() -> None:
    clock = Clock()
    yes = inflight(clock)
    clock.now = 4.9
    assert [each.request.pod.uid for each in yes.others(None)] == [A]
    clock.now = 5.0
    assert yes.others(None) == ()


def test_a_pod_waits_for_others_alone() -> None:
    """A wait ends when its time is up, and tells who is still pending."""
    yes = inflight(Clock(), wait_s=0.001)
    yes.end(ref("b").uid)
    assert yes.wait(A) == yes.others(A) == ()
    assert [each.request.pod.uid for each in yes.wait(ref("b").uid)] == [A]


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

    def bind() -> None:
        looked.wait(10)
        yes.end(A)

    thread = Thread(target=bind)
    began = time.monotonic()
    thread.start()
    assert yes.wait(ref("b").uid) == ()
    thread.join()
    assert time.monotonic() - began < 30


def careful(ledger: Ledger, asked: PodRequest, *others: Pending) -> dict[str, Reason]:
    fitting = Fitting(ledger)
    fits = fitting.answer(asked, FIRST_FIT).fits
    found = cautious(asked, FIRST_FIT, others, fitting, ledger, fits)
    return {name: no.reason for name, no in found.items()}


def ledger(**nodes: tuple[int, ...]) -> Ledger:
    made = Ledger()
    for name, units in nodes.items():
        made.set_cards(NodeName(name), cards(*units))
    return made


@pytest.mark.parametrize(
    ("others", "refused"),
    [
        pytest.param([], {}, id="nobody-pending"),
        pytest.param([pending(request("a", 9), "one")], {}, id="room-for-both"),
        pytest.param(
            [pending(request("a", 20), "one", "two")],
            {"one": Reason.MEMORY},
            id="only-where-there-is-one-card",
        ),
        pytest.param(
            [pending(request("a", 20), "two")], {}, id="let-through-elsewhere"
        ),
        pytest.param(
            [pending(request(name, 20), "one", "two") for name in "ab"],
            {"one": Reason.MEMORY, "two": Reason.MEMORY},
            id="two-pending",
        ),
        pytest.param(
            [pending(request("a", 1, 100), "one", "two")],
            {"one": Reason.CORE_AND_MEMORY},
            id="a-whole-card",
        ),
        pytest.param(
            [pending(apart("a", 15, 15), "one", "two")],
            {"two": Reason.MEMORY},
            id="several-claims-that-fit-on-two-cards-alone",
        ),
        pytest.param(
            [pending(request("a", 30), "one")], {}, id="one-that-no-longer-fits"
        ),
        pytest.param([pending(request("a", 20), "gone")], {}, id="node-unknown"),
    ],
)
def test_nodes_are_refused_where_the_pending_take_the_room(
    others: list[Pending], refused: dict[str, Reason]
) -> None:
    """A pending pod counts on every node it was let through to, and nowhere else."""
    asked = request("b", 20, 10)
    assert careful(ledger(one=(29,), two=(29, 29)), asked, *others) == refused


def test_no_more_than_200_nodes_are_looked_at() -> None:
    names = [f"n{number:03}" for number in range(205)]
    book = ledger(**dict.fromkeys(names, (29, 29)))
    refused = careful(book, request("b", 20), pending(request("a", 20), *names))
    assert refused == dict.fromkeys(names[200:], Reason.CORE_AND_MEMORY)


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
        fits_now = refusal(mine, node, FIRST_FIT) is None
        fits_then = refusal(mine, after, FIRST_FIT) is None
        if fits_now and node.name not in refused:
            assert fits_then
        if node.name in refused:
            assert fits_now
            assert not fits_then
