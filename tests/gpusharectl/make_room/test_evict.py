"""A plan that is carried out on a cluster in memory, and all that may come between."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.domain.eviction.moves import MovePlan, plan_moves
from gpushare.domain.model import PodRequest
from gpushare.kube import codec, facts, names
from gpushare.kube.annotations import read_uuids
from gpushare.kube.cluster import Kind, PodTarget
from gpushare.kube.errors import Conflict, Forbidden, Unavailable
from gpusharectl.cordon import Order, carry_out_order
from gpusharectl.make_room.evict import Eviction, EvictionResult
from gpusharectl.make_room.situation import RoomDemand, read_inputs
from tests.builders import card, request
from tests.gpusharectl.cluster_states import extender
from tests.gpusharectl.make_room.small_cluster import SmallCluster, small_cluster

CORDONED = 3
"""The first request after those that cordon the cards."""


@contextmanager
def two_cards(folder: Path) -> Iterator[SmallCluster]:
    """Two cards of 29 units: 10 and 5 are held of A, 10 of B; "big" wants 20."""
    with small_cluster(folder) as found:
        found.node("n1", card(0, uuid="A"), card(1, uuid="B"))
        found.place("ten", "n1", "A", 10)
        found.place("five", "n1", "A", 5)
        found.place("other", "n1", "B", 10)
        found.pod("big", 20)
        yield found


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SmallCluster]:
    with two_cards(tmp_path) as found:
        yield found


def asked(cluster: SmallCluster) -> RoomDemand:
    body = cluster.get("big")
    request = codec.read_pod_record(body).request
    assert isinstance(request, PodRequest)
    return RoomDemand(request, body)


def planned(cluster: SmallCluster) -> MovePlan:
    asks = asked(cluster)
    found = plan_moves(asks.request, read_inputs(cluster.access, asks, ()).situation)
    assert isinstance(found, MovePlan)
    return found


def evicted(cluster: SmallCluster, plan: MovePlan | None = None) -> EvictionResult:
    plan = plan or planned(cluster)
    asks = asked(cluster)
    run = Eviction(cluster.access, asks, (), cluster.said.append, cluster.patience)
    return run.carry_out(plan)


def once_evicted(cluster: SmallCluster, act: Callable[[], object]) -> None:
    """Change the cluster once, as soon as "other" is evicted."""

    def look_at_it() -> None:
        if "default/other evicted" in "".join(cluster.said[-1:]):
            cluster.hinder = lambda: None
            act()

    cluster.hinder = look_at_it


def test_the_waiting_pod_gets_the_room(cluster: SmallCluster) -> None:
    """The cheapest pod moves to the other card; nothing stays cordoned."""
    result = evicted(cluster)
    assert (result.done, result.evicted) == (True, ("default/other",))
    assert result.outcome == "default/big is on n1 card B."
    assert cluster.cards_of("other-new1") == ("A",)
    assert cluster.cordon() == ""


def test_the_cards_are_cordoned_until_the_room_is_there(cluster: SmallCluster) -> None:
    """And the pod is nominated before they open, so that the room is kept for it."""
    seen = []

    def look_at_it() -> None:
        pod = cluster.get("big")
        closed = sorted(read_uuids(cluster.cordon()))
        seen.append((closed, pod["status"].get("nominatedNodeName")))

    cluster.hinder = look_at_it
    assert evicted(cluster).done
    assert seen[0] == (["B"], None)
    assert seen[-1] == ([], "n1")


def test_a_new_pod_that_is_bound_at_once_is_not_enough(cluster: SmallCluster) -> None:
    """The old one still holds the room, and another pod waits for just as much."""
    cluster.pod("also-big", 20)
    cluster.at_once, cluster.ends_after_s = True, 20
    seen = []

    def look_at_it() -> None:
        there = {facts.name_of(pod) for pod in cluster.pods()}
        seen.append(("other" in there, "as planned" in "".join(cluster.said)))

    cluster.hinder = look_at_it
    result = evicted(cluster)
    assert result.done
    assert cluster.cards_of("other-new1") == ("A",)
    assert (cluster.cards_of("big"), cluster.cards_of("also-big")) == (("B",), ())
    assert (True, False) in seen
    assert (True, True) not in seen


def test_a_budget_that_refuses_stops_it(cluster: SmallCluster) -> None:
    """Which nobody knew when the plan was made."""
    plan = planned(cluster)
    cluster.budget("other", 0)
    result = evicted(cluster, plan)
    assert not result.done
    assert result.evicted == ()
    assert "default/other may not be evicted: " in result.outcome
    assert cluster.cordon() == ""
    assert cluster.cards_of("other") == ("B",)


def test_a_budget_is_awaited(cluster: SmallCluster) -> None:
    """It allows nothing while the pod before is not ready."""
    plan = planned(cluster)
    cluster.budget("other", 0)

    def allow() -> None:
        cluster.hinder = lambda: None
        cluster.allow("other", 1)

    cluster.hinder = allow
    assert evicted(cluster, plan).done


class Conflicting:
    """A client whose first evictions are refused with a conflict, as by a budget's."""

    def __init__(self, real: Any, times: int, gone: Callable[[], None]) -> None:
        self._real, self._times, self._gone = real, times, gone

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def evict(self, pod: PodTarget) -> None:
        self._times -= 1
        if self._times >= 0:
            self._gone()
            raise Conflict("the object has been modified")
        self._real.evict(pod)


@pytest.mark.parametrize(("times", "evicts"), [(2, True), (1000, False)])
def test_a_conflict_of_a_pod_that_is_there_is_tried_again(
    cluster: SmallCluster, times: int, *, evicts: bool
) -> None:
    """Two evictions write a budget at once; the Eviction API then answers 409."""
    real = cluster.access.cluster
    refusing: Any = Conflicting(real, times, lambda: None)
    cluster.access = replace(cluster.access, cluster=refusing)
    result = evicted(cluster)
    assert result.done is evicts
    assert result.evicted == (("default/other",) if evicts else ())
    if not evicts:
        why = "default/other may not be evicted: the object has been modified"
        assert why in result.outcome


@pytest.mark.parametrize("same_name", [False, True])
def test_a_conflict_of_a_pod_that_is_gone_is_its_end(
    cluster: SmallCluster, *, same_name: bool
) -> None:
    """It went by itself, and its controller has made another one."""
    real = cluster.access.cluster

    def gone() -> None:
        if same_name:
            # As of a StatefulSet.
            owner = facts.label(cluster.get("other"), "app")
            cluster.end("other")
            cluster.pod("other", 10, owner=owner)
        else:
            cluster.leave("other")
        cluster.step()

    refusing: Any = Conflicting(real, 1000, gone)
    cluster.access = replace(cluster.access, cluster=refusing)
    assert evicted(cluster).done
    assert not [line for line in cluster.said if "may not be evicted" in line]


def test_nothing_is_evicted_if_the_landing_is_taken(cluster: SmallCluster) -> None:
    """Checked before each eviction."""
    plan = planned(cluster)
    cluster.place("stranger", "n1", "A", 10)
    result = evicted(cluster, plan)
    assert (result.done, result.evicted) == (False, ())
    assert "default/other would land nowhere" in result.outcome
    assert cluster.cordon() == ""


def test_nothing_is_evicted_while_no_extender_is_ready(cluster: SmallCluster) -> None:
    """The new pod would wait. An extender that is started again is awaited."""
    plan = planned(cluster)
    cluster.extender(ready=False)
    result = evicted(cluster, plan)
    assert (result.done, result.evicted) == (False, ())
    said = "no extender pod is ready, so a new pod of default/other would wait"
    assert result.outcome == f"Stopped: {said}."
    assert cluster.cordon() == ""
    cluster.hinder = lambda: cluster.extender(ready=True)
    assert evicted(cluster, plan).done


def test_an_extender_that_is_no_pod_may_work(cluster: SmallCluster) -> None:
    """Whether it does is not known, so it is tried."""
    name = facts.name_of(extender())
    cluster.api.delete(Kind.PODS, facts.SYSTEM, name, grace_period_s=0)
    assert evicted(cluster).done


def test_a_landing_elsewhere_stops_it(cluster: SmallCluster) -> None:
    """It says so; the room is there, and the pod gets it all the same."""
    cluster.node("n0", card(0, 18, uuid="C"))
    plan = planned(cluster)

    once_evicted(cluster, lambda: cluster.place("stranger", "n1", "A", 14))
    result = evicted(cluster, plan)
    assert any("landed on n0 card C, not on n1 card A" in line for line in cluster.said)
    assert result.done
    assert cluster.cards_of("big") == ("B",)


def test_another_new_pod_of_the_controller_does_not_matter(
    cluster: SmallCluster,
) -> None:
    """An autoscaler or a rollout makes one at the same time; it lands elsewhere."""
    cluster.node("n0", card(0, 18, uuid="C"))

    once_evicted(cluster, lambda: cluster.pod("zzz", 15, owner="other"))
    plan = planned(cluster)
    assert evicted(cluster, plan).done
    assert cluster.cards_of("zzz") == ("C",)
    assert not any("Stopped" in line for line in cluster.said)


def test_another_card_of_the_planned_node_stops_it(tmp_path: Path) -> None:
    """A plan is about cards."""
    with small_cluster(tmp_path) as cluster:
        cluster.node("n1", *(card(i, uuid=uuid) for i, uuid in enumerate("ABC")))
        cluster.place("wide", "n1", "A", 14)
        cluster.place("other", "n1", "B", 10)
        cluster.place("low", "n1", "C", 12)
        cluster.pod("big", 20)
        plan = planned(cluster)
        assert [move.landing.cards() for move in plan.moves] == [("A",)]

        def taken() -> None:
            if "evicted" in "".join(cluster.said[-1:]):
                cluster.hinder = lambda: None
                cluster.place("stranger", "n1", "A", 15)

        cluster.hinder = taken
        evicted(cluster, plan)
        assert any(
            "landed on n1 card C, not on n1 card A" in line for line in cluster.said
        )


def test_a_pod_that_was_there_replaces_none(cluster: SmallCluster) -> None:
    """Another replica on the planned card, while the new pod stays Pending."""
    cluster.bind(cluster.pod("replica", 1, owner="other"), "n1", "A")

    once_evicted(cluster, lambda: cluster.place("stranger", "n1", "A", 13))
    assert "other-new1 stays Pending: " in evicted(cluster).outcome


def test_no_room_is_kept_for_a_pod_that_does_not_take_it(cluster: SmallCluster) -> None:
    """Its nomination is taken back, so that others may have the room."""
    cluster.binds = False
    plan = planned(cluster)
    cluster.end("other")
    result = evicted(cluster, plan)
    assert result.outcome.startswith("default/big still waits: ")
    assert not cluster.get("big")["status"].get("nominatedNodeName")


def test_a_long_grace_period_is_awaited(cluster: SmallCluster) -> None:
    """It counts beside the timeout, which is half a minute here."""
    cluster.end("other")
    cluster.place("other", "n1", "B", 10, terminationGracePeriodSeconds=120)
    cluster.ends_after_s = 100
    assert evicted(cluster).done


def test_a_replacement_that_stays_pending_stops_it(cluster: SmallCluster) -> None:
    """Its room was taken after the eviction; its old one is not kept from it."""

    once_evicted(cluster, lambda: cluster.place("stranger", "n1", "A", 14))
    result = evicted(cluster)
    assert "other-new1 stays Pending: " in result.outcome
    assert "nominatedNodeName" not in cluster.get("big")["status"]
    assert cluster.cordon() == ""


def test_a_pod_that_ended_meanwhile_needs_no_eviction(cluster: SmallCluster) -> None:
    """The room is there without it."""
    plan = planned(cluster)
    cluster.end("other")
    result = evicted(cluster, plan)
    assert (result.done, result.evicted) == (True, ())
    assert any("default/other has ended by itself" in line for line in cluster.said)


def test_a_pod_that_terminates_already_is_awaited(cluster: SmallCluster) -> None:
    """It has its new pod, maybe, so nothing that is made later replaces it."""
    plan = planned(cluster)
    cluster.leave("other")
    result = evicted(cluster, plan)
    assert (result.done, result.evicted) == (True, ())
    assert any("default/other has ended by itself" in line for line in cluster.said)


def test_a_node_that_is_removed_meanwhile_stops_it(cluster: SmallCluster) -> None:
    """With its cards, which cannot be opened any more."""

    once_evicted(cluster, lambda: cluster.api.delete(Kind.NODES, "", "n1"))
    result = evicted(cluster)
    assert (result.done, result.evicted) == (False, ("default/other",))
    assert any('there is no node "n1"' in line for line in cluster.said)


def test_a_controller_that_makes_no_new_pod_stops_it(tmp_path: Path) -> None:
    """It was scaled down, has no quota, or does not run: who knows what comes back."""
    with small_cluster(tmp_path) as cluster:
        cluster.node("n1", card(0, uuid="A"), card(1, uuid="B"))
        cluster.bind(cluster.pod("bare", 10, owner=""), "n1", "A")
        cluster.place("four", "n1", "B", 4)
        cluster.place("five", "n1", "B", 5)
        cluster.pod("big", 29)
        plan = planned(cluster)
        assert [move.pod.name for move in plan.moves] == ["four", "five"]
        cluster.replaces = False
        result = evicted(cluster, plan)
        assert (result.done, result.evicted) == (False, ("default/four",))
        assert "Stopped: default/four is gone, and its controller" in result.outcome


def test_the_room_is_there_if_no_new_pod_is_made(cluster: SmallCluster) -> None:
    """By the last eviction, so the waiting pod gets it."""
    cluster.replaces = False
    assert evicted(cluster).done
    assert any("The room is there all the same" in line for line in cluster.said)


def test_an_older_nomination_gives_way(cluster: SmallCluster) -> None:
    """kube-scheduler leaves one behind when a preemption came to nothing."""
    status, seen = {"status": {"nominatedNodeName": "n9"}}, []
    cluster.api.patch(Kind.PODS, "default", "big", status, subresource="status")
    cluster.hinder = lambda: seen.append(
        cluster.get("big")["status"]["nominatedNodeName"]
    )
    assert evicted(cluster).done
    assert seen[-1] == "n1"


def test_what_an_operator_has_cordoned_stays_so(cluster: SmallCluster) -> None:
    """Another run or an operator was first: nothing is evicted."""
    plan = planned(cluster)
    carry_out_order(cluster.access, Order.CORDON, "n1", ["B"])
    result = evicted(cluster, plan)
    assert (result.done, result.evicted) == (False, ())
    assert "somebody else has cordoned" in result.outcome
    assert cluster.cordon() == "B"


@pytest.mark.parametrize("by_hand", [False, True])
def test_an_operators_cordon_meanwhile_stays(
    cluster: SmallCluster, *, by_hand: bool
) -> None:
    """It is the operator's from then on: the run gives up, and opens nothing."""

    def cordon() -> None:
        cluster.hinder = lambda: None
        if by_hand:
            cluster.api.annotate(Kind.NODES, "", "n1", {names.CORDON: "B"})
        else:
            done = carry_out_order(cluster.access, Order.CORDON, "n1", ["B"])
            assert done.changed == {"B"}

    cluster.hinder = cordon
    result = evicted(cluster)
    assert not result.done
    assert "somebody else has cordoned or opened a card of the plan" in result.outcome
    assert cluster.said[-1] == "n1 card B: still cordoned, by somebody else."
    assert cluster.cordon() == "B"
    assert not facts.node_of(cluster.get("big"))
    assert "nominatedNodeName" not in cluster.get("big")["status"]


def test_a_card_that_an_operator_opens_meanwhile_stops_it(
    cluster: SmallCluster,
) -> None:
    """Nothing is evicted for room that others may take."""
    plan = planned(cluster)
    cluster.place("stranger", "n1", "A", 10)

    def opened() -> None:
        cluster.hinder = lambda: None
        assert carry_out_order(cluster.access, Order.UNCORDON, "n1", ["B"]).changed == {
            "B"
        }
        cluster.end("stranger")

    cluster.hinder = opened
    result = evicted(cluster, plan)
    assert "somebody else has cordoned or opened" in result.outcome
    assert (result.evicted, cluster.cordon()) == ((), "")


def test_one_card_of_several_that_is_cordoned_stops_it(tmp_path: Path) -> None:
    """What this run has cordoned is opened, and no more."""
    with small_cluster(tmp_path) as cluster:
        cluster.node("n1", *(card(i, uuid=uuid) for i, uuid in enumerate("ABC")))
        for uuid, units in (("A", 1), ("B", 1), ("C", 2)):
            cluster.place(uuid.lower(), "n1", uuid, units)
        asks = request("w", 0, 200)
        found = plan_moves(
            asks, read_inputs(cluster.access, RoomDemand(asks), ()).situation
        )
        assert isinstance(found, MovePlan)
        assert len(found.cards) == 2
        carry_out_order(cluster.access, Order.CORDON, "n1", found.cards[1:])
        run = Eviction(
            cluster.access, RoomDemand(asks), (), cluster.said.append, cluster.patience
        )
        result = run.carry_out(found)
        assert (result.done, result.evicted) == (False, ())
        assert "somebody else has cordoned" in result.outcome
        assert cluster.cordon() == found.cards[1]


class Fails:
    """A client of which one request, by number, is done, and then an error is raised.

    ``names`` are the methods that were called, of all clients that share the list.
    """

    def __init__(
        self, real: Any, names: list[str], at: int, error: BaseException
    ) -> None:
        self._real, self._names, self._at, self._error = real, names, at, error

    def __getattr__(self, name: str) -> Any:
        def call(*words: Any, **named: Any) -> Any:
            self._names.append(name)
            mine = len(self._names)
            answer = getattr(self._real, name)(*words, **named)
            if mine == self._at:
                raise self._error
            return answer

        return call


def failing(cluster: SmallCluster, at: int, error: BaseException) -> list[str]:
    """Let one request fail; return the list to which the names of all are added."""
    access, names = cluster.access, list[str]()
    cluster.access = replace(
        access,
        objects=Fails(access.objects, names, at, error),
        cluster=Fails(access.cluster, names, at, error),
    )
    return names


LOST = Unavailable("no answer")


def test_one_lost_answer_changes_nothing(tmp_path: Path) -> None:
    """Whichever it is, but for the cordon's: then it ends before the first eviction."""
    with two_cards(tmp_path) as cluster:
        plan, names = planned(cluster), failing(cluster, 0, LOST)
        assert evicted(cluster, plan).done
    for at, name in enumerate(names, start=1):
        with two_cards(tmp_path) as cluster:
            plan = planned(cluster)
            failing(cluster, at, LOST)
            if at < CORDONED:
                with pytest.raises(Unavailable):
                    evicted(cluster, plan)
                assert cluster.cards_of("other") == ("B",)
            else:
                assert evicted(cluster, plan).done, name
            assert cluster.cordon() == "", name


def test_a_right_that_is_missing_half_way_is_an_outcome(cluster: SmallCluster) -> None:
    """It names what was evicted."""

    def denied() -> None:
        if "default/other evicted" in "".join(cluster.said[-1:]):
            raise Forbidden("pods is forbidden")

    cluster.hinder = denied
    result = evicted(cluster)
    assert result.outcome == "Stopped: pods is forbidden."
    assert (result.done, result.evicted) == (False, ("default/other",))
    assert cluster.cordon() == ""


@pytest.mark.parametrize("at", range(1, CORDONED + 1))
def test_ctrl_c_while_it_cordons_opens_the_cards(
    cluster: SmallCluster, at: int
) -> None:
    """The order may be written already."""
    plan = planned(cluster)
    failing(cluster, at, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        evicted(cluster, plan)
    assert cluster.cordon() == ""


def test_ctrl_c_opens_the_cards(cluster: SmallCluster) -> None:
    """Whatever it interrupts."""
    plan = planned(cluster)

    def interrupt() -> None:
        raise KeyboardInterrupt

    cluster.hinder = interrupt
    with pytest.raises(KeyboardInterrupt):
        evicted(cluster, plan)
    assert cluster.cordon() == ""
    assert any("gpusharectl uncordon-card n1 B" in line for line in cluster.said)


def test_a_pod_that_got_a_place_meanwhile_is_done(cluster: SmallCluster) -> None:
    """Nothing is evicted for it any more."""
    plan = planned(cluster)
    cluster.node("n0", card(0, uuid="C"))
    cluster.bind(cluster.get("big"), "n0", "C")
    result = evicted(cluster, plan)
    assert (result.done, result.evicted) == (True, ())
    assert result.outcome == "default/big is on n0 card C."
