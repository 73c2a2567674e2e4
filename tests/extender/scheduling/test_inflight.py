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


def test_a_yes_ends_with_its_bind() -> None:
    """Whatever came of the bind: it is over."""
    extender = ExtenderFixture()
    pod = extender.create(units=4)
    extender.filter(pod)
    assert len(extender.inflight) == 1
    extender.bind(pod)
    assert len(extender.inflight) == 0


@pytest.mark.parametrize("node", ["n", "unknown"])
def test_a_yes_ends_with_a_bind_that_fails(node: str) -> None:
    """A refused bind waits for nothing any more."""
    extender = ExtenderFixture()
    pod = extender.create(units=4)
    extender.filter(pod)
    extender.cluster.delete("pods", "default", "pod")  # type: ignore[arg-type]
    assert extender.bind(pod, node).error
    assert len(extender.inflight) == 0


def test_a_yes_ends_with_the_second_filter_of_its_pod() -> None:
    """What counts is the last answer; a refusal leaves nothing pending."""
    extender = ExtenderFixture()
    pod = extender.create(units=20)
    extender.filter(pod)
    extender.bind(extender.create("other", units=20))
    assert not extender.filter(pod).kept
    assert len(extender.inflight) == 0


def test_a_yes_ends_with_the_deletion_of_its_pod() -> None:
    """The watch says so."""
    extender = ExtenderFixture()
    extender.filter(extender.create(units=4))
    extender.pods.replace(iter([]))
    assert len(extender.inflight) == 0


def test_a_yes_ends_by_itself() -> None:
    """kube-scheduler may have chosen never to bind."""
    clock = Clock()
    yes = inflight(clock)
    clock.now = 4.9
    assert [each.request.pod.uid for each in yes.others(None)] == [A]
    clock.now = 5.0
    assert yes.others(None) == ()


def test_a_pod_does_not_wait_for_itself() -> None:
    """Only others stand in its way."""
    yes = inflight(Clock(), wait_s=60.0)
    assert yes.others(A) == ()
    assert yes.wait(A) == ()
    assert len(yes.others(ref("b").uid)) == 1


def test_a_pod_does_not_wait_for_its_group() -> None:
    """Its pods are bound together, so no bind can come before this one's filter."""
    yes = Inflight(wait_s=60.0, pending_for_s=5.0, clock=Clock())
    yes.add(request("a", 4), FIRST_FIT, [N], "default/gang")
    assert yes.wait(ref("b").uid, "default/gang") == ()
    assert yes.members(ref("b").uid, "default/gang") == yes.others(None)
    assert yes.members(ref("b").uid, "") == ()


def test_a_wait_ends_as_soon_as_the_other_is_bound() -> None:
    """Long before its time is up."""
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


def test_a_wait_ends_when_its_time_is_up() -> None:
    """And says who is still pending."""
    still = inflight(Clock(), wait_s=0.001).wait(ref("b").uid)
    assert [each.request.pod.uid for each in still] == [A]


def test_ending_what_is_not_pending_changes_nothing() -> None:
    """Every bind and deletion says so, most of them of pods never filtered here."""
    yes = inflight(Clock())
    yes.end(ref("b").uid)
    assert len(yes) == 1


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


def test_only_so_many_nodes_are_looked_at() -> None:
    """Past the bound they are refused, since another one will do."""
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
