"""Whatever is decided, ``schedule`` decided it, over the extender's own books."""

import random

import pytest

from gpushare.domain.frag.policy import ENOUGH
from gpushare.domain.links import with_scores
from gpushare.domain.model import NodeName, Placement, PodRef, Refusal
from gpushare.domain.placement import schedule
from gpushare.domain.policies import POLICIES, PolicyChoice
from gpushare.kube import names
from gpushare.kube.annotations import encode_cards, read_cards
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.codec import read_pod_record
from gpusharectl.simulator import cluster as simulated
from gpusharectl.simulator.cluster import PodNeeds, SimulatedCluster
from tests.gpusharectl.simulator.building import node, pod


def cluster(policy: str = "first-fit") -> SimulatedCluster:
    found = SimulatedCluster(PolicyChoice(policy))
    for number in range(4):
        cpu = str(2 + 4 * (number // 2))
        found.add_node(node(f"n-{number}", 29, 20, cpu=cpu, memory="64Gi"))
    return found


def pending(of: SimulatedCluster, body: Json) -> tuple[PodRef, PodNeeds]:
    ref, needs = of.add(body)
    assert not isinstance(needs, Refusal)
    return ref, needs


@pytest.mark.parametrize("policy", POLICIES)
def test_only_nodes_without_a_chance_are_left_out(policy: str) -> None:
    """The same placement comes of all nodes that pass the filters.

    The pod is bound with it, and the extender's ledger says the same.
    """
    dice = random.Random(7)
    here = cluster(policy)
    there: list[Placement] = []
    for number in range(60):
        units, cpu = dice.choice([2, 5, 11, 20]), dice.choice(["500m", "1", ""])
        cores = dice.choice([1, 1, 1, 100])
        ref, needs = pending(here, pod(f"p-{number}", units, cores, cpu=cpu))
        of = here.candidates
        judged = {name: of.judge(needs, name) for name in of.properties}
        nodes = [here.ledger.node(name) for name, no in judged.items() if not no]
        found = [node for node in nodes if node is not None]
        wanted = schedule(needs.request, found, needs.policy)
        got = here.place(ref, needs)
        stored = read_pod_record(here.api.get(Kind.PODS, "default", ref.name))
        assert stored.placement == here.ledger.placement(ref.uid)
        if isinstance(wanted, Placement):
            assert got == wanted == stored.placement
            there.append(wanted)
        else:
            assert not isinstance(got, Placement)
            assert stored.placement is None
            reasons = [no for no in judged.values() if no]
            assert got.nodes == len(reasons) == 4
            here.take_away(ref, None)
        if there and number % 3 == 0:
            gone = there.pop(dice.randrange(len(there)))
            here.take_away(gone.pod, gone.node)
    assert there


@pytest.mark.parametrize("policy", POLICIES)
def test_nodes_with_links_are_compared_with_all_others(policy: str) -> None:
    """The same placement comes of all nodes, not only of the fullest."""
    dice, here = random.Random(11), SimulatedCluster(PolicyChoice(policy))
    for number in range(5):
        body = node(f"n-{number}", 64, 64, 64, 64)
        if number:
            scores = [dice.choice([10, 30, 50, 150, 250]) for _ in range(6)]
            notes = body["metadata"]["annotations"]
            its_cards = with_scores(read_cards(body), scores)
            notes[names.CARDS] = encode_cards(its_cards)
        here.add_node(body)
    there: list[Placement] = []
    for number in range(80):
        cores = dice.choice([1, 100, 200, 200, 300])
        ref, needs = pending(here, pod(f"p-{number}", 9, cores))
        nodes = [here.ledger.node(NodeName(f"n-{n}")) for n in range(5)]
        wanted = schedule(needs.request, filter(None, nodes), needs.policy)
        got = here.place(ref, needs)
        if isinstance(wanted, Placement):
            assert got == wanted
            there.append(wanted)
        else:
            here.take_away(ref, None)
        if there and number % 2:
            gone = there.pop(dice.randrange(len(there)))
            here.take_away(gone.pod, gone.node)
    assert there


def test_what_is_known_to_fit_is_not_judged_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once frag has learned, it chooses among the nodes that pass the filters."""
    here, calls = cluster("frag"), []

    def count(*args: object) -> object:
        calls.append(args)
        return schedule(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(simulated, "schedule", count)
    for number in range(20):
        ref, needs = pending(here, pod(f"p-{number}", 2))
        assert isinstance(here.place(ref, needs), Placement)
        assert len(calls) == min(number + 1, ENOUGH - 1)


def test_no_more_pods_than_a_node_takes() -> None:
    here = SimulatedCluster(PolicyChoice())
    here.add_node(node("n", 29, pods=1))
    first, needs = pending(here, pod("a", 1))
    assert isinstance(here.place(first, needs), Placement)
    assert not isinstance(here.place(*pending(here, pod("b", 1))), Placement)
    here.take_away(first, NodeName("n"))
    assert isinstance(here.place(*pending(here, pod("c", 1))), Placement)


def test_the_same_twice() -> None:
    """Nothing hangs on chance: UIDs of pods and cards are the same in every run."""
    found = []
    for _ in range(2):
        here = cluster("spread")
        placed = [
            here.place(*pending(here, pod(f"p-{number}", 5))) for number in range(9)
        ]
        found.append(placed)
    assert found[0] == found[1]
