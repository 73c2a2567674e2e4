"""Room kept on a card for pods whose victims are on their way out."""

from collections.abc import Sequence
from threading import Thread

import pytest

from gpushare.domain.ledger import Ledger
from gpushare.domain.model import NodeName, Placement
from gpushare.domain.policies import PolicyChoice
from gpushare.informers.nodes import NodeInformer
from gpushare.informers.pods import Nominations, PodInformer
from gpushare.kube import codec, names
from gpushare.kube.cluster import Json, WatchEvent
from gpushare.kube.codec import PodRecord
from tests.builders import (
    FIRST_FIT,
    bound_json,
    card,
    event,
    ledger_of,
    node_json,
    placement,
    pod_json,
    ref,
    request,
)

N = NodeName("n")


def leaving(name: str, on: int, units: int, priority: int = 1) -> Json:
    """A pod on its way out."""
    return bound_json(placement(name, on, units, priority=priority), terminating=True)


def staying(name: str, on: int, units: int, priority: int = 1) -> Json:
    return bound_json(placement(name, on, units, priority=priority))


def nominee(
    name: str = "vip", units: int = 20, priority: int = 10, policy: str | None = None
) -> Json:
    return pod_json(
        name,
        units=units,
        priority=priority,
        nominated="n",
        annotations={names.POLICY: policy} if policy else None,
    )


def after(*pods: Json, cards: int = 1) -> tuple[Ledger, PodInformer]:
    """The books after these events."""
    ledger = ledger_of(*(card(index) for index in range(cards)))
    informer = PodInformer(ledger, PolicyChoice())
    for pod in pods:
        informer.apply(event("MODIFIED", pod))
    return ledger, informer


def kept(ledger: Ledger) -> dict[str, str]:
    """For whom which card is kept on the node."""
    page = ledger.node(N)
    return {pod.pod.name: ",".join(pod.cards()) for pod in page.nominations.values()}


OLD = leaving("old", 0, 20)
LOST = pod_json("old", units=20, node="n", priority=1, terminating=True)
LOW, HIGH, X = nominee("low", priority=5), nominee("high"), nominee("x", 9, 5)


@pytest.mark.parametrize(
    ("pods", "cards", "found"),
    [
        pytest.param([OLD, nominee()], 1, {"vip": 0}, id="victim first"),
        pytest.param([nominee(), OLD], 1, {"vip": 0}, id="nominee first"),
        pytest.param(
            [staying("old", 0, 20), nominee(), OLD], 1, {"vip": 0}, id="as it happens"
        ),
        pytest.param([LOST, nominee()], 2, {"vip": 0}, id="victim on an unknown card"),
        pytest.param(
            [leaving("old", 0, 20, priority=10), nominee()], 1, {}, id="no victim of it"
        ),
        pytest.param([LOW, HIGH, X], 1, {"high": 0, "x": 0}, id="important first"),
        pytest.param(
            [LOW, HIGH, X], 2, {"high": 0, "low": 1, "x": 0}, id="then the others"
        ),
        pytest.param(
            [staying("a", 0, 5), nominee(policy="spread")], 2, {"vip": 1}, id="policy"
        ),
        pytest.param([nominee(policy="no-such")], 1, {}, id="unknown policy"),
        pytest.param([pod_json("vip", cores=150, nominated="n")], 1, {}, id="invalid"),
    ],
)
def test_for_whom_room_is_kept(
    pods: Sequence[Json], cards: int, found: dict[str, int]
) -> None:
    """A victim as important leaves for a reason of its own: its room may be owed."""
    ledger, _ = after(*pods, cards=cards)
    assert kept(ledger) == {name: f"GPU-{index}" for name, index in found.items()}


def test_nobody_else_takes_the_room_when_the_victims_are_gone() -> None:
    ledger, informer = after(leaving("old", 0, 20), nominee())
    informer.apply(event("DELETED", leaving("old", 0, 20)))
    assert not isinstance(ledger.reserve(request("b", 10), N, FIRST_FIT), Placement)
    own_node = request("vip", 20, priority=10)
    assert isinstance(ledger.reserve(own_node, N, FIRST_FIT), Placement)


@pytest.mark.parametrize(
    "end",
    [
        event("DELETED", nominee()),
        event("MODIFIED", pod_json("vip", units=20, priority=10)),
        event("MODIFIED", pod_json("vip", units=20, nominated="m")),
        event("MODIFIED", bound_json(placement("vip", 0, 20, priority=10))),
        event("MODIFIED", bound_json(placement("vip", 0, 20, node="m", priority=10))),
        event("MODIFIED", pod_json("vip", units=20, phase="Failed")),
    ],
    ids=["deleted", "cleared", "moved", "bound here", "bound elsewhere", "failed"],
)
def test_a_nomination_ends(end: WatchEvent) -> None:
    ledger, informer = after(nominee())
    assert ledger.nodes_with_nominations() == {N}
    informer.apply(end)
    assert ledger.nodes_with_nominations() == frozenset()
    assert kept(ledger) == {}


def test_one_without_room_enough_yet_keeps_nothing() -> None:
    ledger, informer = after(staying("old", 0, 20), nominee())
    assert kept(ledger) == {}
    informer.apply(event("DELETED", staying("old", 0, 20)))
    assert kept(ledger) == {"vip": "GPU-0"}


def test_pods_and_nodes_may_change_at_the_same_moment() -> None:
    """Each is followed by a thread of its own, and neither may trip the other."""
    ledger = ledger_of()
    nominations = Nominations(ledger, PolicyChoice())
    record = codec.read_pod_record(nominee())
    nominations.follow(None, record, lambda _: ())
    others: list[Thread] = []

    def while_the_pod_goes(_name: NodeName) -> tuple[PodRecord, ...]:
        gone = (record, None, lambda _: ())
        others.append(Thread(target=nominations.follow, args=gone))
        others[0].start()
        others[0].join(0.2)
        return ()

    nominations.reconsider(N, while_the_pod_goes)
    others[0].join()
    assert kept(ledger) == {}


def test_victims_count_as_leaving_before_their_deletion_is_seen() -> None:
    """kube-scheduler deletes them one by one; the first one's room is not lost."""
    ledger, informer = after(staying("a", 0, 10), staying("b", 0, 10))
    informer.mark_preempted([ref("a").uid, ref("b").uid])
    informer.apply(event("MODIFIED", nominee()))
    assert kept(ledger) == {"vip": "GPU-0"}


def test_victims_that_live_on_are_forgotten() -> None:
    """After five seconds: the eviction was refused, or another node was taken."""
    now = [0.0]
    ledger = ledger_of(card(0))
    informer = PodInformer(ledger, PolicyChoice(), clock=lambda: now[0])
    informer.apply(event("ADDED", staying("a", 0, 20)))
    informer.mark_preempted([ref("a").uid])
    assert [pod.pod.name for pod in informer.leaving(N)] == ["a"]
    now[0] = 5.1
    assert informer.leaving(N) == ()


def test_no_room_is_kept_on_a_cordoned_card() -> None:
    """Pods may be heard of before their node; what is kept moves to another card."""
    ledger = Ledger()
    pods = PodInformer(ledger, PolicyChoice())
    nodes = NodeInformer(ledger, set_cards=pods.set_cards)
    pods.apply(event("ADDED", nominee()))
    assert ledger.nodes_with_nominations() == frozenset()
    nodes.apply(event("ADDED", node_json("n", card(0), card(1))))
    assert kept(ledger) == {"vip": "GPU-0"}
    nodes.apply(event("MODIFIED", node_json("n", card(0, cordoned=True), card(1))))
    assert kept(ledger) == {"vip": "GPU-1"}
